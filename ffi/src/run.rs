//! Planning, running, combining, merging.

use core::ffi::c_void;
use core::ptr;

use amla::{Part, Plan, ProblemShape, Workspace, combine, decode, merge, run_tasks};

use crate::call::{options, output, problem, read_call};
use crate::choice::Known;
use crate::fault::Fault;
use crate::memory::{Regions, Written, blank, fill, put, read, sized, slice};
use crate::report::report;
use crate::types::{self, Call, ErrorDetail, Output, PlanInfo, Status, Tensor};

/// What a plan in memory begins with, so that other memory is not taken for one.
const MAGIC: u64 = u64::from_le_bytes(*b"amlaplan");
/// Its words: the magic number, the interface's version, the plan's own.
const WORDS: usize = Plan::WORDS + 2;
const PLAN_SIZE: usize = 8 * WORDS;

const _: () = assert!(PLAN_SIZE <= types::AMLA_PLAN_MAX);
const _: () = assert!(size_of::<Workspace>() <= types::AMLA_WORKSPACE_MAX);
const _: () = assert!(align_of::<Workspace>() == types::AMLA_WORKSPACE_ALIGN);

/// Tells how many bytes the plan of a call takes.
///
/// Lengths and shapes of `call` are looked at, results aren't.
///
/// @param call What is to be computed.
/// @param size Where the number of bytes goes.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the call.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_plan_size(
    call: *const Call,
    size: *mut usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { planned(&mut regions, call) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { answer(&mut regions, size, PLAN_SIZE) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Cuts a call into tasks.
///
/// The plan is numbers only: it may be copied, moved and stored. It serves every call with the
/// same shape and lengths (window, topk and split_keys included), from layer to layer. Results are
/// those of amla_run() to the bit, for any number of threads.
///
/// @param call What is to be computed; its output isn't looked at.
/// @param plan Where the plan goes; any alignment.
/// @param plan_size Bytes there, at least what amla_plan_size() says.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_plan(
    call: *const Call,
    plan: *mut c_void,
    plan_size: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let planned = unsafe { planned(&mut regions, call) }?;
        let memory = Written::new(&mut regions, "plan", plan.cast::<u8>(), plan_size)?;
        regions.check()?;
        enough("plan", plan_size, PLAN_SIZE)?;
        // SAFETY: checked not to overlap what the call reads; nobody else's by contract.
        let memory = unsafe { memory.claim() };
        let header = [MAGIC, types::AMLA_ABI_VERSION.into()];
        let words = header.into_iter().chain(planned.to_words());
        for (bytes, word) in memory.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Ok(())
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Tells how many tasks a plan has, and how much memory their results take.
///
/// @param plan What amla_plan() wrote.
/// @param plan_size Bytes of it.
/// @param info Where the answer goes; set its struct_size.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, AMLA_ERROR_NOT_A_PLAN, or what is wrong with the other arguments.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_plan_query(
    plan: *const c_void,
    plan_size: usize,
    info: *mut PlanInfo,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let plan = unsafe { read_plan(&mut regions, plan, plan_size) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { sized("info", info.cast_const()) }?;
        regions.write("info", info.cast_const(), 1);
        regions.check()?;
        let (tasks, partial_len) = (plan.tasks(), plan.partial_len());
        let value = PlanInfo {
            struct_size: INFO_SIZE,
            reserved: 0,
            tasks,
            partial_len,
            // Where that is more than there are numbers for, no memory will do.
            partials_len: tasks.saturating_mul(partial_len),
        };
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { fill("info", info, value) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

#[expect(clippy::cast_possible_truncation, reason = "a few bytes")]
const INFO_SIZE: u32 = size_of::<PlanInfo>() as u32;

/// Tells how many bytes of memory a thread works in, aligned to AMLA_WORKSPACE_ALIGN.
///
/// It needn't be initialised and holds nothing between calls. Threads that run at the same
/// time need one each.
///
/// @param call What is to be computed; its output isn't looked at.
/// @param size Where the number of bytes goes; never more than AMLA_WORKSPACE_MAX.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the call.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_workspace_size(
    call: *const Call,
    size: *mut usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { planned(&mut regions, call) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { answer(&mut regions, size, size_of::<Workspace>()) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Computes a call on one thread: attends every query to its keys.
///
/// It takes up to 64 KiB of the thread's stack, as amla_run_tasks() does. Like all functions here
/// it computes in the default floating-point environment on x86 and AArch64: rounding to the
/// nearest, subnormals as they are, no traps. The thread's own is back when it returns, with its
/// flags as they were.
///
/// @param call What is to be computed, and where results go.
/// @param workspace Memory to work in, aligned to AMLA_WORKSPACE_ALIGN.
/// @param workspace_size Bytes there, at least what amla_workspace_size() says.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_run(
    call: *const Call,
    workspace: *mut c_void,
    workspace_size: usize,
    detail: *mut ErrorDetail,
) -> Status {
    // SAFETY: the caller's pointers are as documented: this function's contract.
    let body = || unsafe { run(call, workspace, workspace_size) };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// A dense call of DeepSeek's MLA in one line: amla_run() of contiguous BF16 queries and cache, into
/// FP32, with the default options.
///
/// As with AMLA_CAUSAL the queries of a request are those of its last s_q keys: query j sees the first
/// s_k - (s_q - 1 - j). With s_q = 1, a token at a time, all see all keys. A row that sees none gets
/// O = 0 and an infinite lse. All requests have s_k keys; for lengths of their own, pages, other formats
/// or several threads there is the full call, and for the reason of a refusal its detail.
///
/// @param q Absorbed queries, BF16, [b, s_q, h_q, AMLA_MLA_D_QK].
/// @param kv The cache, BF16, [b, s_k, AMLA_MLA_D_QK]; the first AMLA_MLA_D_V numbers of a row are the value.
/// @param b Requests.
/// @param s_q Query positions of a request.
/// @param s_k Keys of a request.
/// @param h_q Query heads.
/// @param softmax_scale Factor on the scores.
/// @param o Where O goes, [b, s_q, h_q, AMLA_MLA_D_V].
/// @param lse Where the natural logarithms of the sums of exponentials go, [b, h_q, s_q]; null if they aren't wanted.
/// @param workspace Memory to work in, aligned to AMLA_WORKSPACE_ALIGN.
/// @param workspace_size Bytes there; AMLA_WORKSPACE_MAX is enough.
/// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
///
/// # Safety
/// Pointers are null, or to memory as long as its dimensions say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_mla_decode(
    q: *const u16,
    kv: *const u16,
    b: usize,
    s_q: usize,
    s_k: usize,
    h_q: usize,
    softmax_scale: f32,
    o: *mut f32,
    lse: *mut f32,
    workspace: *mut c_void,
    workspace_size: usize,
) -> Status {
    const D_QK: usize = types::AMLA_MLA_D_QK;
    const D_V: usize = types::AMLA_MLA_D_V;
    // Where that is more than there are numbers for, no memory is as long, and the call refused.
    let contiguous = |n1: usize, n2: usize, width: usize| {
        let inner = n2.saturating_mul(width);
        let outer = n1.saturating_mul(inner);
        (b.saturating_mul(outer), [outer, inner, width])
    };
    let tensor = |data: *const u16, (len, strides)| Tensor {
        dtype: types::AMLA_DTYPE_BF16,
        data: data.cast(),
        len,
        strides,
        ..blank()
    };
    let queries = tensor(q, contiguous(s_q, h_q, D_QK));
    let cache = tensor(kv, contiguous(s_k, 1, D_QK));
    let (o_len, o_strides) = contiguous(s_q, h_q, D_V);
    let (lse_len, lse_strides) = contiguous(h_q, s_q, 1);
    let lse_len = if lse.is_null() { 0 } else { lse_len };
    let output = Output {
        dtype: types::AMLA_DTYPE_F32,
        o: o.cast(),
        o_len,
        o_strides,
        lse,
        lse_len,
        lse_strides,
        ..blank()
    };
    let call = Call {
        flags: types::AMLA_CAUSAL,
        b,
        s_q,
        s_k,
        h_q,
        h_kv: 1,
        d_qk: D_QK,
        d_v: D_V,
        softmax_scale,
        q: &raw const queries,
        kv: &raw const cache,
        output: &raw const output,
        ..blank()
    };
    // SAFETY: the structs are this function's and outlive the call; what they point to is as documented:
    // this function's contract.
    let body = || unsafe { run(&raw const call, workspace, workspace_size) };
    // SAFETY: without a detail nothing is written.
    unsafe { report(ptr::null_mut(), body) }
}

/// A call at once.
///
/// # Safety
/// Pointers are as documented with what they point to.
unsafe fn run(
    call: *const Call,
    workspace: *mut c_void,
    workspace_size: usize,
) -> Result<(), Fault> {
    let mut regions = Regions::new();
    // SAFETY: the caller's pointers are as documented: this function's contract.
    let call = unsafe { read_call(&mut regions, call) }?;
    // SAFETY: the caller's pointers are as documented, for as long as this call runs: this
    // function's contract.
    let problem = unsafe { problem(&mut regions, &call) }?;
    // SAFETY: the caller's pointers are as documented: this function's contract.
    let options = unsafe { options(&call) }?;
    // SAFETY: the caller's pointers are as documented: this function's contract.
    let output = unsafe { output(&mut regions, call.output) }?;
    let workspace = working(&mut regions, workspace, workspace_size)?;
    regions.check()?;
    // SAFETY: the regions were checked; that nobody else touches outputs and workspace
    // meanwhile is this function's contract.
    let (output, workspace) = unsafe { (output.claim(), workspace.claim()) };
    let workspace = Workspace::from_bytes(workspace)?;
    Ok(decode(&problem, &options, workspace, output)?)
}

/// Computes tasks begin, begin + 1, ..., end - 1 of a plan.
///
/// Any number of threads may do so at the same time, for disjoint ranges and with a workspace
/// each. Tasks have no order. A call touches only its own tasks'
/// part of `partials`, from begin * partial_len on. When all tasks are done, amla_combine()
/// merges the results.
///
/// @param call What is to be computed; its output isn't looked at.
/// @param plan What amla_plan() wrote for a call with this shape and these lengths.
/// @param plan_size Bytes of it.
/// @param begin The first task.
/// @param end One more than the last task.
/// @param workspace Memory to work in, this thread's alone, aligned to AMLA_WORKSPACE_ALIGN.
/// @param workspace_size Bytes there, at least what amla_workspace_size() says.
/// @param partials Where all tasks' results go; the same memory for all threads. It needn't be
///   initialised.
/// @param partials_len FP32 numbers there, at least what amla_plan_query() says.
/// @param detail Null, or where the reason goes if the call is refused; this thread's alone.
/// @return AMLA_OK, or whatever is wrong with the arguments; then `partials` is untouched.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_run_tasks(
    call: *const Call,
    plan: *const c_void,
    plan_size: usize,
    begin: usize,
    end: usize,
    workspace: *mut c_void,
    workspace_size: usize,
    partials: *mut f32,
    partials_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let call = unsafe { read_call(&mut regions, call) }?;
        // SAFETY: the caller's pointers are as documented, for as long as this call runs: this
        // function's contract.
        let problem = unsafe { problem(&mut regions, &call) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let options = unsafe { options(&call) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let plan = unsafe { read_plan(&mut regions, plan, plan_size) }?;
        in_range("end", end, plan.tasks())?;
        in_range("begin", begin, end)?;
        let each = plan.partial_len();
        let needed = plan.tasks().saturating_mul(each);
        // As many as there are numbers for can't be.
        if partials_len < needed || needed == usize::MAX {
            return Err(amla::Error::TooShort {
                argument: amla::Argument::Partials,
                len: partials_len,
                needed,
            }
            .into());
        }
        // Within `needed`, which didn't overflow.
        let (start, len) = (begin * each, (end - begin) * each);
        let own = Written::part(&mut regions, "partials", partials, start, len)?;
        let workspace = working(&mut regions, workspace, workspace_size)?;
        regions.check()?;
        // SAFETY: the regions were checked. The workspace is this call's alone, and so is the part
        // of `partials` of its tasks, which no other call runs: this function's contract. No slice
        // of all of `partials` is made.
        let (own, workspace) = unsafe { (own.claim(), workspace.claim()) };
        let workspace = Workspace::from_bytes(workspace)?;
        Ok(run_tasks(
            &problem,
            &options,
            &plan,
            begin..end,
            workspace,
            own,
        )?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Merges the results of all tasks, in the order of the keys, and writes the outputs.
///
/// @param call What was computed, and where results go.
/// @param plan The plan that the tasks are of.
/// @param plan_size Bytes of it.
/// @param partials What amla_run_tasks() wrote for all tasks; it is used up.
/// @param partials_len FP32 numbers there, at least what amla_plan_query() says.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_combine(
    call: *const Call,
    plan: *const c_void,
    plan_size: usize,
    partials: *mut f32,
    partials_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let call = unsafe { read_call(&mut regions, call) }?;
        // SAFETY: the caller's pointers are as documented, for as long as this call runs: this
        // function's contract.
        let problem = unsafe { problem(&mut regions, &call) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { options(&call) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let output = unsafe { output(&mut regions, call.output) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let plan = unsafe { read_plan(&mut regions, plan, plan_size) }?;
        let partials = Written::new(&mut regions, "partials", partials, partials_len)?;
        regions.check()?;
        // SAFETY: the regions were checked; that nobody else touches outputs and partial
        // results meanwhile is this function's contract.
        let (output, partials) = unsafe { (output.claim(), partials.claim()) };
        Ok(combine(&problem, &plan, partials, output)?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Merges results over different keys of the same queries into `total`, which holds one of them.
/// Keys are a shared prefix and those behind it, or caches sharded over devices or processes.
///
/// A part's weight is the exponential of its lse. Rows that saw no key have the total's
/// lse_empty and weigh nothing. With AMLA_LSE_EMPTY_MINUS_INFINITY, infinity is a number. Sums
/// are in FP64 and in the given order: the same parts in the same order give the same bits.
/// Results must be in FP32, and computed without a sink.
///
/// @param b Requests; 1 for ragged queries.
/// @param s_q Query positions of a request; for ragged queries all tokens.
/// @param h_q Query heads.
/// @param d_v Width of a row of O.
/// @param total Strides, format and memory, which holds one of the results.
/// @param parts The others, parts_len of them.
/// @param parts_len At most AMLA_MERGE_MAX.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then the total is untouched.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_merge(
    b: usize,
    s_q: usize,
    h_q: usize,
    d_v: usize,
    total: *const Output,
    parts: *const types::Part,
    parts_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut outputs = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let total = unsafe { output(&mut outputs, total) }?;
        outputs.check()?;
        if parts_len > types::AMLA_MERGE_MAX {
            return Err(Fault::TooMany {
                argument: "parts_len",
                len: parts_len,
                max: types::AMLA_MERGE_MAX,
            });
        }
        if parts.is_null() && parts_len > 0 {
            return Err(Fault::Null { argument: "parts" });
        }
        let mut given: [Part<'_>; types::AMLA_MERGE_MAX] = [Part {
            o: &[],
            lse: &[],
            max_logits: None,
        }; _];
        for (i, part) in given.iter_mut().enumerate().take(parts_len) {
            // What is written against each part on its own: parts may be the same memory.
            let mut regions = outputs.clone();
            // SAFETY: one of `parts_len` structs, this function's contract.
            let read = unsafe { read(&mut regions, "parts", parts.wrapping_add(i)) }?;
            if read.reserved != 0 {
                return Err(Fault::Unknown {
                    argument: "parts.reserved",
                    value: read.reserved,
                    known: Known::Zero,
                });
            }
            let lens = [
                ("parts.o_len", read.o_len),
                ("parts.lse_len", read.lse_len),
                ("parts.max_logits_len", read.max_logits_len),
            ];
            let pairs = lens.into_iter().zip(total.lens());
            // The total lacks what nobody needs.
            for ((argument, len), expected) in pairs.filter_map(|(len, total)| Some((len, total?)))
            {
                if len != expected {
                    return Err(Fault::PartLength {
                        argument,
                        part: i,
                        len,
                        expected,
                    });
                }
            }
            let [_, _, max_logits] = total.lens();
            *part = Part {
                // SAFETY: the caller's pointers are as documented: this function's contract.
                o: unsafe { slice(&mut regions, "parts.o", read.o, read.o_len) }?,
                // SAFETY: the caller's pointers are as documented: this function's contract.
                lse: unsafe { slice(&mut regions, "parts.lse", read.lse, read.lse_len) }?,
                max_logits: match max_logits {
                    // SAFETY: the caller's pointers are as documented: this function's contract.
                    Some(len) => Some(unsafe {
                        slice(&mut regions, "parts.max_logits", read.max_logits, len)
                    }?),
                    None => None,
                },
            };
            regions.check()?;
        }
        let given = given.get(..parts_len).unwrap_or_default();
        let shape = ProblemShape {
            b,
            s_q,
            s_k: 0,
            h_q,
            h_kv: 1,
            d_qk: d_v,
            d_v,
        };
        // SAFETY: checked against every part; nobody else's by this function's contract.
        let total = unsafe { total.claim() };
        Ok(merge(&shape, total, given)?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// The plan of a call.
///
/// # Safety
/// `call` is as documented.
unsafe fn planned(regions: &mut Regions, call: *const Call) -> Result<Plan, Fault> {
    // SAFETY: needs what this function's contract promises.
    let call = unsafe { read_call(regions, call) }?;
    // SAFETY: needs what this function's contract promises; the borrows end with it.
    let problem = unsafe { problem(regions, &call) }?;
    // A call that no function would run has no plan.
    // SAFETY: needs what this function's contract promises.
    unsafe { options(&call) }?;
    Ok(Plan::new(&problem)?)
}

/// Writes a size where the caller wants it, if that isn't what the call reads.
///
/// # Safety
/// As [`put`].
unsafe fn answer(regions: &mut Regions, size: *mut usize, value: usize) -> Result<(), Fault> {
    // Checked as what is written; put there when it is.
    let _: Written<usize> = Written::required(regions, "size", size)?;
    regions.check()?;
    // SAFETY: needs what this function's contract promises.
    unsafe { put("size", size, value) }
}

/// A thread's memory, of the right size and alignment.
fn working(regions: &mut Regions, memory: *mut c_void, size: usize) -> Result<Written<u8>, Fault> {
    let bytes = memory.cast::<u8>();
    if bytes.is_null() {
        return Err(Fault::Null {
            argument: "workspace",
        });
    }
    if !memory.addr().is_multiple_of(types::AMLA_WORKSPACE_ALIGN) {
        return Err(Fault::Misaligned {
            argument: "workspace",
            align: types::AMLA_WORKSPACE_ALIGN,
        });
    }
    enough("workspace", size, size_of::<Workspace>())?;
    // The rest, if there is more, is none of this call's business.
    Written::new(regions, "workspace", bytes, size_of::<Workspace>())
}

fn enough(argument: &'static str, len: usize, needed: usize) -> Result<(), Fault> {
    if len < needed {
        return Err(Fault::TooShort {
            argument,
            len,
            needed,
        });
    }
    Ok(())
}

fn in_range(argument: &'static str, len: usize, max: usize) -> Result<(), Fault> {
    if len > max {
        return Err(Fault::TooMany { argument, len, max });
    }
    Ok(())
}

/// A plan as [`amla_plan`] wrote it. Whether it is one for the problem at hand, `amla` checks.
///
/// # Safety
/// Unless null or refused, `plan` has `size` bytes that nobody writes meanwhile.
unsafe fn read_plan(
    regions: &mut Regions,
    plan: *const c_void,
    size: usize,
) -> Result<Plan, Fault> {
    if plan.is_null() {
        return Err(Fault::Null { argument: "plan" });
    }
    enough("plan", size, PLAN_SIZE)?;
    // SAFETY: needs what this function's contract promises, of at least PLAN_SIZE bytes (above).
    let bytes = unsafe { slice(regions, "plan", plan.cast::<u8>(), PLAN_SIZE) }?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    match words {
        [MAGIC, version, plan @ ..] if version == u64::from(types::AMLA_ABI_VERSION) => {
            Plan::from_words(plan).ok_or(Fault::NotAPlan)
        }
        [MAGIC, version, ..] if version != u64::from(types::AMLA_ABI_VERSION) => {
            Err(Fault::PlanVersion { version })
        }
        _ => Err(Fault::NotAPlan),
    }
}
