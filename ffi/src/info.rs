//! What the library is, and what it can do.

use core::ffi::{CStr, c_char};
use core::ptr;

use amla::{Backend, BackendId, SUPPORTED_DIMS};

use crate::call::backend_named;
use crate::choice;
use crate::fault::Fault;
use crate::memory::fill;
use crate::report::report;
use crate::types::{self, CapabilitySet, Status};

/// The version of the interface: AMLA_ABI_VERSION as the library was compiled. A program that
/// finds another one here than in its header must not go on.
///
/// @return The number.
#[unsafe(no_mangle)]
pub extern "C" fn amla_abi_version() -> u32 {
    types::AMLA_ABI_VERSION
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// The version of the library.
///
/// @return A string like "0.1.0", there as long as the library is.
#[unsafe(no_mangle)]
pub extern "C" fn amla_version_string() -> *const c_char {
    VERSION.as_ptr()
}

/// Longer than any backend's name.
const NAME_MAX: usize = 32;

/// Names of all backends, as C strings.
static NAMES: [[u8; NAME_MAX]; BackendId::ALL.len()] = names();

#[expect(clippy::indexing_slicing, reason = "when the library is compiled")]
const fn names() -> [[u8; NAME_MAX]; BackendId::ALL.len()] {
    let mut names = [[0; NAME_MAX]; BackendId::ALL.len()];
    let mut i = 0;
    while i < names.len() {
        let name = BackendId::ALL[i].name().as_bytes();
        assert!(name.len() < NAME_MAX);
        let mut j = 0;
        while j < name.len() {
            names[i][j] = name[j];
            j += 1;
        }
        i += 1;
    }
    names
}

/// Null if there is none.
fn c_name(id: Option<BackendId>) -> *const c_char {
    let index = id.and_then(|id| BackendId::ALL.into_iter().position(|other| other == id));
    let name = index.and_then(|index| NAMES.get(index));
    name.map_or(ptr::null(), |name| name.as_ptr().cast())
}

/// Name of the backend that calls use unless amla_call.backend names another: the fastest that
/// this process can use.
///
/// @return A string like "avx512bf16" or "portable", there as long as the library is.
#[unsafe(no_mangle)]
pub extern "C" fn amla_backend_name() -> *const c_char {
    c_name(Some(Backend::detect().id()))
}

/// Requests permission from Linux for this process to use AMX. Then the backend "amx" is available,
/// and amla_backend_name returns it on processors that have AMX.
///
/// Linux demands the request because signals then take 8 KiB more of a thread's stack. It refuses
/// where a thread's alternate signal stack is too small for that, and refuses such stacks afterwards.
///
/// Call it before anything else, as calls without a named backend use the fastest. The permission
/// holds for all threads and can't be taken back. Without AMX the function does nothing. Other
/// functions learn of the permission by the system call arch_prctl, on processors that have AMX.
///
/// @return AMLA_OK if the process may use it, AMLA_ERROR_BACKEND_UNAVAILABLE otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn amla_permit_amx() -> Status {
    if Backend::permit_amx() {
        types::AMLA_OK
    } else {
        types::AMLA_ERROR_BACKEND_UNAVAILABLE
    }
}

/// Caps the backend for the whole process, as oneDNN's dnnl_set_max_cpu_isa() does: for a host that
/// meets a bad one in the field. Backends are in the order portable, avx2, avx512, avx512bf16, amx on
/// x86, portable, neon, neonbf16 on AArch64. Those behind the cap are unavailable, whether the
/// processor has the cap itself or not.
///
/// Call it before anything else but amla_permit_amx(). From the first call on that plans, computes,
/// merges or lists backends the cap stays. It is the library's one setting for a whole process. The
/// library reads no environment variables; a host that wants one passes it here:
/// `if (getenv("AMLA_MAX_BACKEND")) amla_set_max_backend(getenv("AMLA_MAX_BACKEND"));`
///
/// @param name A backend's name.
/// @return AMLA_OK; AMLA_ERROR_NULL_POINTER; AMLA_ERROR_BACKEND_UNAVAILABLE if there is no such
///   backend on this architecture; AMLA_ERROR_BACKEND_IN_USE if it comes too late.
///
/// # Safety
/// `name` is null, or a string that ends in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_set_max_backend(name: *const c_char) -> Status {
    let body = || {
        if name.is_null() {
            return Err(Fault::Null { argument: "name" });
        }
        // SAFETY: not null (above), and so a string: this function's contract.
        let id = unsafe { backend_named(name) }?;
        Ok(Backend::set_max(id)?)
    };
    // SAFETY: without a detail nothing is written.
    unsafe { report(ptr::null_mut(), body) }
}

/// Name of a backend that this process can use, the narrowest first. The fastest is
/// amla_backend_name.
///
/// @param index Which one.
/// @return A string, there as long as the library is; null if there are fewer.
#[unsafe(no_mangle)]
pub extern "C" fn amla_available_backend(index: usize) -> *const c_char {
    c_name(available().nth(index))
}

fn available() -> impl Iterator<Item = BackendId> {
    let can_run = |&id: &BackendId| Backend::request(id).is_ok();
    BackendId::ALL.into_iter().filter(can_run)
}

/// Tells what the library can do.
///
/// @param set Where the answer goes; set its struct_size.
/// @return AMLA_OK, AMLA_ERROR_NULL_POINTER, AMLA_ERROR_MISALIGNED or AMLA_ERROR_STRUCT_SIZE.
///
/// # Safety
/// `set` is null or a struct as long as its `struct_size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_capabilities(set: *mut CapabilitySet) -> Status {
    let mut dims = [[0; 2]; types::AMLA_DIMS_MAX];
    let mut dims_len = 0;
    for (pair, &(d_qk, d_v)) in dims.iter_mut().zip(SUPPORTED_DIMS) {
        *pair = [d_qk, d_v].map(|width| u32::try_from(width).unwrap_or_default());
        dims_len += 1;
    }
    let bits = |dtypes: &[u32]| dtypes.iter().fold(0, |bits, dtype| bits | 1 << dtype);
    let value = CapabilitySet {
        struct_size: SET_SIZE,
        abi_version: types::AMLA_ABI_VERSION,
        features: types::AMLA_FEATURE_PAGES
            | types::AMLA_FEATURE_RAGGED
            | types::AMLA_FEATURE_WINDOW
            | types::AMLA_FEATURE_TAIL_MASK
            | types::AMLA_FEATURE_SPARSE
            | types::AMLA_FEATURE_SINK
            | types::AMLA_FEATURE_MERGE
            | types::AMLA_FEATURE_SPARSE_SPLIT
            | types::AMLA_FEATURE_INDICES64
            | types::AMLA_FEATURE_MAX_LOGITS
            | types::AMLA_FEATURE_LIST_STRIDES
            | types::AMLA_FEATURE_V_OFFSET,
        input_dtypes: bits(choice::INPUTS),
        output_dtypes: bits(choice::OUTPUTS),
        dims_len,
        backends_len: u32::try_from(available().count()).unwrap_or_default(),
        dims,
    };
    let body = || {
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { fill("set", set, value) }
    };
    // SAFETY: without a detail nothing is written.
    unsafe { report(ptr::null_mut(), body) }
}

#[expect(clippy::cast_possible_truncation, reason = "a few bytes")]
const SET_SIZE: u32 = size_of::<CapabilitySet>() as u32;

const _: () = assert!(SUPPORTED_DIMS.len() <= types::AMLA_DIMS_MAX);

/// What a status means.
///
/// @param status What a function returned.
/// @return An English sentence, there as long as the library is; for numbers that are no
///   status, a sentence that says so.
#[unsafe(no_mangle)]
pub extern "C" fn amla_status_string(status: Status) -> *const c_char {
    let text = match status {
        types::AMLA_OK => c"done",
        types::AMLA_ERROR_NULL_POINTER => c"a pointer is null",
        types::AMLA_ERROR_STRUCT_SIZE => c"a struct's struct_size is unknown",
        types::AMLA_ERROR_UNKNOWN_VALUE => c"a value has no meaning",
        types::AMLA_ERROR_MISALIGNED => c"memory is misaligned",
        types::AMLA_ERROR_BAD_EXTENT => c"a buffer doesn't fit into the address space",
        types::AMLA_ERROR_ALIASED => c"memory that is written overlaps other memory",
        types::AMLA_ERROR_NOT_A_PLAN => c"the memory holds no plan",
        types::AMLA_ERROR_UNSUPPORTED_DIMS => c"there is no kernel for these widths",
        types::AMLA_ERROR_OUT_OF_RANGE => c"a count is out of range",
        types::AMLA_ERROR_TOO_SHORT => c"a buffer is too short",
        types::AMLA_ERROR_WRONG_LENGTH => c"a list has the wrong length",
        types::AMLA_ERROR_OVERFLOW => c"sizes and strides overflow",
        types::AMLA_ERROR_OVERLAP => c"elements of an output overlap",
        types::AMLA_ERROR_SEQLEN => c"a request's length is out of range",
        types::AMLA_ERROR_TOPK_LENGTH => c"a count of places is out of range",
        types::AMLA_ERROR_PAGE => c"an entry of the block table is no page",
        types::AMLA_ERROR_INDPTR => c"offsets fall or leave a request too many rows",
        types::AMLA_ERROR_FORMAT => c"a format has no rows of this width",
        types::AMLA_ERROR_HEADS => c"query heads don't divide among KV heads",
        types::AMLA_ERROR_CONFLICT => c"two arguments exclude each other",
        types::AMLA_ERROR_PLAN_MISMATCH => c"the plan is another problem's",
        types::AMLA_ERROR_NON_FINITE_SCALE => c"softmax_scale is not finite",
        types::AMLA_ERROR_BACKEND_UNAVAILABLE => c"the backend can't be used",
        types::AMLA_ERROR_OTHER => c"refused",
        types::AMLA_ERROR_BACKEND_IN_USE => c"a backend is in use already",
        _ => c"not a status of this library",
    };
    text.as_ptr()
}
