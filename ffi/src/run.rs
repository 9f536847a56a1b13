//! Planning, running, combining.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr;

use amla::{Plan, ProblemShape, Workspace, combine, decode, run_tasks};

use crate::call::{options, output, problem, read_call, split};
use crate::fault::Fault;
use crate::memory::{self, Regions, Written, blank, fill, put, sized};
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
        unsafe { planned(&mut regions, call, Plan::THREADS) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { answer(&mut regions, size, PLAN_SIZE) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Cuts a call into tasks for some threads: amla_plan_for_threads() for 16.
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
    // SAFETY: needs what this function's contract promises.
    unsafe { amla_plan_for_threads(call, Plan::THREADS, plan, plan_size, detail) }
}

/// Cuts a call into tasks for a number of threads. Any number may run them; of this number none should wait long for the others.
///
/// The plan is numbers only: it may be copied, moved and stored. It serves every call with the
/// same shape and lengths (window, topk and split_keys included), from layer to layer. Results are
/// those of amla_run() to the bit, for any number of threads.
///
/// @param call What is to be computed; its output isn't looked at.
/// @param threads How many threads will run the tasks.
/// @param plan Where the plan goes; any alignment.
/// @param plan_size Bytes there, at least what amla_plan_size() says.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_plan_for_threads(
    call: *const Call,
    threads: usize,
    plan: *mut c_void,
    plan_size: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let planned = unsafe { planned(&mut regions, call, threads) }?;
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
        let value = PlanInfo {
            tasks: plan.tasks(),
            partial_len: plan.partial_len(),
            partials_len: plan.partials_len(),
            partial_tasks: plan.partial_tasks(),
            merges: plan.merges(),
            ..blank()
        };
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { fill("info", info, value) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Tells how much memory holds the partial results of any call of at most these sizes: any lengths, ragged or sparse, planned for any
/// number of threads. For hosts that fix their memory before lengths are known.
///
/// @param max_b Requests.
/// @param max_s_q Query positions of a request.
/// @param max_s_k Keys of a request, or with sparse attention indices of both caches.
/// @param h_q Query heads.
/// @param h_kv KV heads.
/// @param d_v Width of values.
/// @param split_keys As the call's.
/// @param partials_len Where the FP32 numbers go: 0 where no call has partial results, SIZE_MAX where there can't be as many.
/// @param detail Null, or where the reason goes if the sizes are refused.
/// @return AMLA_OK, or what is wrong with the arguments.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_plan_bound(
    max_b: usize,
    max_s_q: usize,
    max_s_k: usize,
    h_q: usize,
    h_kv: usize,
    d_v: usize,
    split_keys: usize,
    partials_len: *mut usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        let shape = ProblemShape {
            b: max_b,
            s_q: max_s_q,
            s_k: max_s_k,
            h_q,
            h_kv,
            d_qk: d_v,
            d_v,
        };
        let bound = Plan::bound(&shape, split(split_keys))?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { answer(&mut regions, partials_len, bound) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

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
        unsafe { planned(&mut regions, call, Plan::THREADS) }?;
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
    let workspace = working(&mut regions, workspace, workspace_size, 1)?;
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
/// each. Tasks have no order. The first partial_tasks of a plan have partial results: a call touches only its own tasks'
/// part of `partials`, from begin * partial_len on. The others write their rows of the output. When all tasks are done,
/// amla_combine() or amla_combine_range() merges the partial results.
///
/// @param call What is to be computed, and where results go.
/// @param plan What amla_plan() wrote for a call with this shape and these lengths.
/// @param plan_size Bytes of it.
/// @param begin The first task.
/// @param end One more than the last task.
/// @param workspace Memory to work in, this thread's alone, aligned to AMLA_WORKSPACE_ALIGN.
/// @param workspace_size Bytes there, at least what amla_workspace_size() says.
/// @param partials Where all partial results go; the same memory for all threads. It needn't be
///   initialised.
/// @param partials_len FP32 numbers there, at least what amla_plan_query() says.
/// @param detail Null, or where the reason goes if the call is refused; this thread's alone.
/// @return AMLA_OK, or whatever is wrong with the arguments; then output and `partials` are untouched.
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
        let output = unsafe { output(&mut regions, call.output) }?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let plan = unsafe { read_plan(&mut regions, plan, plan_size) }?;
        in_range("end", end, plan.tasks())?;
        in_range("begin", begin, end)?;
        enough_partials(&plan, partials_len)?;
        // Within `partials_len`.
        let [start, end_of] =
            [begin, end].map(|task| task.min(plan.partial_tasks()) * plan.partial_len());
        let own = Written::part(&mut regions, "partials", partials, start, end_of - start)?;
        let workspace = working(&mut regions, workspace, workspace_size, 1)?;
        regions.check()?;
        // SAFETY: the regions were checked. The workspace is this call's alone, and so is the part
        // of `partials` of its tasks, which no other call runs: this function's contract. No slice
        // of all of `partials` is made. Other calls may write other rows of the output.
        let (own, workspace, output) = unsafe { (own.claim(), workspace.claim(), output.share()) };
        let workspace = Workspace::from_bytes(workspace)?;
        Ok(run_tasks(
            &problem,
            &options,
            &plan,
            begin..end,
            workspace,
            own,
            &output,
        )?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Merges all partial results, in the order of the keys, and writes their rows of the outputs.
///
/// @param call What was computed, and where results go.
/// @param plan The plan that the tasks are of.
/// @param plan_size Bytes of it.
/// @param partials What amla_run_tasks() wrote for all tasks.
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
    partials: *const f32,
    partials_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: needs what this function's contract promises.
        unsafe { combined(call, plan, plan_size, None, partials, partials_len) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Merges partial results in the order of the keys: merges begin, begin + 1, ..., end - 1 of a plan. Any number of threads may do
/// so at the same time, for disjoint ranges, when all tasks are done.
///
/// @param call What was computed, and where results go.
/// @param plan The plan that the tasks are of.
/// @param plan_size Bytes of it.
/// @param begin The first merge.
/// @param end One more than the last merge.
/// @param partials What amla_run_tasks() wrote for all tasks.
/// @param partials_len FP32 numbers there, at least what amla_plan_query() says.
/// @param detail Null, or where the reason goes if the call is refused; this thread's alone.
/// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_combine_range(
    call: *const Call,
    plan: *const c_void,
    plan_size: usize,
    begin: usize,
    end: usize,
    partials: *const f32,
    partials_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let merges = Some(begin..end);
    let body = || {
        // SAFETY: needs what this function's contract promises.
        unsafe { combined(call, plan, plan_size, merges, partials, partials_len) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Does some of a plan's merges, or all.
///
/// # Safety
/// Pointers are as documented with what they point to.
unsafe fn combined(
    call: *const Call,
    plan: *const c_void,
    plan_size: usize,
    merges: Option<Range<usize>>,
    partials: *const f32,
    partials_len: usize,
) -> Result<(), Fault> {
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
    let merges = merges.unwrap_or(0..plan.merges());
    in_range("end", merges.end, plan.merges())?;
    in_range("begin", merges.start, merges.end)?;
    // SAFETY: the caller's pointers are as documented: this function's contract.
    let partials = unsafe { memory::slice(&mut regions, "partials", partials, partials_len) }?;
    regions.check()?;
    // SAFETY: the regions were checked; other calls may write other parts of the output.
    let output = unsafe { output.share() };
    Ok(combine(&problem, &plan, merges, partials, &output)?)
}

/// The plan of a call.
///
/// # Safety
/// `call` is as documented.
unsafe fn planned(regions: &mut Regions, call: *const Call, threads: usize) -> Result<Plan, Fault> {
    // SAFETY: needs what this function's contract promises.
    let call = unsafe { read_call(regions, call) }?;
    // SAFETY: needs what this function's contract promises; the borrows end with it.
    let problem = unsafe { problem(regions, &call) }?;
    // A call that no function would run has no plan.
    // SAFETY: needs what this function's contract promises.
    unsafe { options(&call) }?;
    Ok(Plan::for_threads(&problem, threads)?)
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

/// The memory of some threads, of the right size and alignment.
pub fn working(
    regions: &mut Regions,
    memory: *mut c_void,
    size: usize,
    threads: usize,
) -> Result<Written<u8>, Fault> {
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
    let needed = threads * size_of::<Workspace>();
    enough("workspace", size, needed)?;
    // The rest, if there is more, is none of this call's business.
    Written::new(regions, "workspace", bytes, needed)
}

/// Whether there is room for all partial results of a plan.
pub fn enough_partials(plan: &Plan, len: usize) -> Result<(), Fault> {
    let needed = plan.partials_len();
    // As many as there are numbers for can't be.
    if len < needed || needed == usize::MAX {
        return Err(amla::Error::TooShort {
            argument: amla::Argument::Partials,
            len,
            needed,
        }
        .into());
    }
    Ok(())
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
pub unsafe fn read_plan(
    regions: &mut Regions,
    plan: *const c_void,
    size: usize,
) -> Result<Plan, Fault> {
    if plan.is_null() {
        return Err(Fault::Null { argument: "plan" });
    }
    enough("plan", size, PLAN_SIZE)?;
    // SAFETY: needs what this function's contract promises, of at least PLAN_SIZE bytes (above).
    let bytes = unsafe { memory::slice(regions, "plan", plan.cast::<u8>(), PLAN_SIZE) }?;
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
