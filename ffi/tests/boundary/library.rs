//! What the library says of itself, and what plans and merging refuse.

use std::ffi::CStr;
use std::mem::offset_of;
use std::mem::size_of;
use std::ptr::null;

use amla::{Backend, BackendId, SUPPORTED_DIMS};

use crate::info;
use crate::merge::amla_merge;
use crate::run::{amla_plan_query, amla_plan_size, amla_workspace_size};
use crate::types::*;
use crate::world::*;

/// A string of the library's; null is none.
fn string(chars: *const std::ffi::c_char) -> Option<&'static str> {
    // SAFETY: null, or a constant of the library.
    (!chars.is_null()).then(|| unsafe { CStr::from_ptr(chars) }.to_str().unwrap())
}

#[test]
fn the_library_says_what_it_is_and_can_do() {
    assert_eq!(info::amla_abi_version(), AMLA_ABI_VERSION);
    assert_eq!(
        string(info::amla_version_string()),
        Some(env!("CARGO_PKG_VERSION"))
    );
    // Which backends there are doesn't change any more then.
    let amx = match info::amla_permit_amx() {
        AMLA_OK => true,
        AMLA_ERROR_BACKEND_UNAVAILABLE => false,
        other => panic!("{other}"),
    };
    assert_eq!(amx, Backend::request(BackendId::Amx).is_ok());
    let name = Backend::detect().id().name();
    assert_eq!(string(info::amla_backend_name()), Some(name));
    let can_run = |id: &BackendId| Backend::request(*id).is_ok();
    let backends: Vec<_> = BackendId::ALL.into_iter().filter(can_run).collect();
    for i in 0..=backends.len() {
        let name = backends.get(i).map(|id| id.name());
        assert_eq!(string(info::amla_available_backend(i)), name);
    }
    assert_eq!(string(info::amla_available_backend(usize::MAX)), None);

    let mut set = CapabilitySet {
        struct_size: size_of::<CapabilitySet>() as u32,
        ..zeroed()
    };
    // SAFETY: the struct is this test's.
    assert_eq!(unsafe { info::amla_capabilities(&mut set) }, AMLA_OK);
    assert_eq!(set.struct_size as usize, size_of::<CapabilitySet>());
    assert_eq!(set.abi_version, AMLA_ABI_VERSION);
    assert_eq!(set.features.count_ones(), 12);
    let bits = |dtypes: &[u32]| dtypes.iter().map(|dtype| 1 << dtype).sum::<u32>();
    let halves = [AMLA_DTYPE_BF16, AMLA_DTYPE_F16];
    let stored = [
        AMLA_DTYPE_F32,
        AMLA_DTYPE_FP8,
        AMLA_DTYPE_MODEL1,
        AMLA_DTYPE_INT8,
        AMLA_DTYPE_Q8_0,
        AMLA_DTYPE_Q4_0,
        AMLA_DTYPE_E4M3,
    ];
    assert_eq!(set.input_dtypes, bits(&halves) | bits(&stored));
    assert_eq!(set.output_dtypes, bits(&halves) | bits(&[AMLA_DTYPE_F32]));
    assert_eq!(set.backends_len as usize, backends.len());
    let dims = &set.dims[..set.dims_len as usize];
    let widths = |&(d_qk, d_v): &(usize, usize)| [d_qk as u32, d_v as u32];
    let want: Vec<_> = SUPPORTED_DIMS.iter().map(widths).collect();
    assert_eq!(dims, want);

    let null = std::ptr::null_mut();
    // SAFETY: null and a misaligned struct must be refused.
    unsafe {
        assert_eq!(info::amla_capabilities(null), AMLA_ERROR_NULL_POINTER);
        let odd = odd(&raw const set).cast_mut();
        assert_eq!(info::amla_capabilities(odd), AMLA_ERROR_MISALIGNED);
    }
    set.struct_size += 8;
    // SAFETY: the struct is this test's.
    let status = unsafe { info::amla_capabilities(&mut set) };
    assert_eq!(
        (status, set.dims_len as usize),
        (AMLA_ERROR_STRUCT_SIZE, want.len())
    );
    assert_eq!(
        string(info::amla_status_string(Status::MAX)),
        string(info::amla_status_string(AMLA_ERROR_BACKEND_IN_USE + 1)),
    );
}

/// In this process a backend was detected: `c/max_backend.c` has the calls that are done.
#[test]
fn a_cap_is_denied() {
    let _ = Backend::detect();
    let unknown = [c"", c"avx", c"Portable", c"portable ", c"amx\n", c"\xff"];
    let foreign = if cfg!(target_arch = "aarch64") {
        [c"avx2", c"avx512", c"avx512bf16"]
    } else {
        [c"neon", c"neonbf16", c"neonbf1"]
    };
    let names = unknown.into_iter().chain(foreign);
    let cases = names.map(|name| (name.as_ptr(), AMLA_ERROR_BACKEND_UNAVAILABLE));
    let late = (c"portable".as_ptr(), AMLA_ERROR_BACKEND_IN_USE);
    for (name, status) in cases.chain([(null(), AMLA_ERROR_NULL_POINTER), late]) {
        // SAFETY: null, or a string.
        assert_eq!(unsafe { info::amla_set_max_backend(name) }, status);
    }
}

#[test]
fn every_status_has_its_words() {
    let words: Vec<_> = (AMLA_OK..=AMLA_ERROR_BACKEND_IN_USE)
        // SAFETY: the strings are the library's constants.
        .map(|status| unsafe { CStr::from_ptr(info::amla_status_string(status)) })
        .collect();
    for (i, word) in words.iter().enumerate() {
        assert!(!word.is_empty() && !words[..i].contains(word));
    }
}

/// What makes bytes no plan.
type Spoil = fn(&mut [u8]);

/// Merging and queries of a plan: what they refuse.
#[test]
fn merging_and_queries_are_denied() {
    let mut w = World::apart();
    let (o, lse) = (vec![0.0_f32; w.o.len()], vec![0.0_f32; w.lse.len()]);
    let good = part(&o, &lse);
    let cases: [Wrong<Part>; 10] = [
        (AMLA_ERROR_STRUCT_SIZE, "parts", |p| p.struct_size = 0),
        (AMLA_ERROR_UNKNOWN_VALUE, "parts.reserved", |p| {
            p.reserved = 1
        }),
        (AMLA_ERROR_NULL_POINTER, "parts.o", |p| p.o = null()),
        (AMLA_ERROR_MISALIGNED, "parts.lse", |p| p.lse = odd(p.lse)),
        (AMLA_ERROR_WRONG_LENGTH, "parts.o_len", |p| p.o_len -= 1),
        (AMLA_ERROR_WRONG_LENGTH, "parts.lse_len", |p| p.lse_len = 0),
        (AMLA_ERROR_NULL_POINTER, "parts.max_logits", |p| {
            p.max_logits = null()
        }),
        (AMLA_ERROR_MISALIGNED, "parts.max_logits", |p| {
            p.max_logits = odd(p.max_logits)
        }),
        (AMLA_ERROR_WRONG_LENGTH, "parts.max_logits_len", |p| {
            p.max_logits_len -= 1
        }),
        // That of version 1 has no largest scores.
        (AMLA_ERROR_WRONG_LENGTH, "parts.max_logits_len", |p| {
            p.struct_size = offset_of!(Part, max_logits) as u32
        }),
    ];
    for (status, argument, change) in cases {
        let (mut wrong, mut detail) = (good, detail());
        change(&mut wrong);
        // SAFETY: total and part are this test's, or must be refused.
        let got = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, &wrong, 1, &mut detail) };
        assert_eq!((got, text(&detail.argument)), (status, argument));
    }
    let mut detail = detail();
    for (parts, len, status, argument) in [
        (null(), 1, AMLA_ERROR_NULL_POINTER, "parts"),
        (
            &raw const good,
            AMLA_MERGE_MAX + 1,
            AMLA_ERROR_OUT_OF_RANGE,
            "parts_len",
        ),
        (odd(&raw const good), 1, AMLA_ERROR_MISALIGNED, "parts"),
    ] {
        // SAFETY: as above.
        let got = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, parts, len, &mut detail) };
        assert_eq!((got, text(&detail.argument)), (status, argument));
    }
    let mut wrong = [good; 3];
    wrong[2].lse_len = 2;
    // SAFETY: as above.
    let got = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, wrong.as_ptr(), 3, &mut detail) };
    assert_eq!((got, detail.index), (AMLA_ERROR_WRONG_LENGTH, 2));
    let said = format!("parts.lse_len of part 2 is 2, not {}", w.lse.len());
    assert_eq!(text(&detail.message), said);
    let mut aliased = good;
    aliased.o = w.o.as_ptr();
    // SAFETY: as above.
    let got = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, &aliased, 1, &mut detail) };
    assert_eq!((got, text(&detail.argument)), (AMLA_ERROR_ALIASED, "o"));
    assert!(w.untouched());

    let mut info = PlanInfo {
        struct_size: size_of::<PlanInfo>() as u32,
        ..zeroed()
    };
    let size = w.plan.len();
    let spoil: [(Status, usize, Spoil); 3] = [
        (AMLA_ERROR_NOT_A_PLAN, size, |plan| plan[0] ^= 1),
        (AMLA_ERROR_NOT_A_PLAN, size, |plan| plan[8] ^= 1),
        (AMLA_ERROR_TOO_SHORT, size - 1, |_| {}),
    ];
    for (status, size, change) in spoil {
        let mut plan = w.plan.clone();
        change(&mut plan);
        // SAFETY: the plan and the struct are this test's.
        let got = unsafe { amla_plan_query(plan.as_ptr().cast(), size, &mut info, &mut detail) };
        assert_eq!((got, text(&detail.argument)), (status, "plan"));
        std::mem::swap(&mut plan, &mut w.plan);
        if size == plan.len() {
            assert_eq!(w.answers(Who::Tasks)[0].1, status);
        }
        w.plan = plan;
    }
    assert_eq!(info.tasks, 0);
    // Answers don't go where the question is.
    let plan = w.plan.as_mut_ptr();
    // SAFETY: as above, and must be refused.
    let got = unsafe { amla_plan_query(plan.cast(), size, plan.cast(), &mut detail) };
    assert_eq!(
        (got, text(&detail.argument)),
        (AMLA_ERROR_STRUCT_SIZE, "info")
    );
    for query in [amla_plan_size, amla_workspace_size] {
        let pages = &raw mut w.call.pages;
        // SAFETY: as above.
        let got = unsafe { query(&w.call, pages, &mut detail) };
        assert_eq!((got, text(&detail.argument)), (AMLA_ERROR_ALIASED, "size"));
        assert_eq!(w.call.pages, 0);
    }
}
