//! Plans on the caller's threads. Processors without atomic exchanges have one core, and no need of this.

use core::ffi::c_void;
use core::slice;

use amla::{ParallelFor, Workspace, decode_on};

use crate::call::{options, output, problem, read_call};
use crate::environment::{self, Caller};
use crate::fault::Fault;
use crate::memory::{Regions, Written};
use crate::report::report;
use crate::run::{enough_partials, read_plan, working};
use crate::types::{Call, ErrorDetail, Status};

/// Calls `body` with `arg` and each number below `n`, once, on any threads in any order, and returns when all calls have.
pub type ParallelForFn = Option<
    unsafe extern "C" fn(
        pool: *mut c_void,
        n: usize,
        body: unsafe extern "C" fn(arg: *mut c_void, i: usize),
        arg: *mut c_void,
    ),
>;

/// A call of a plan on the caller's threads: as many as there are workspaces. Results are those of amla_run() to the bit.
///
/// `parallel_for` is called once, or not at all where one thread has all there is to do: OpenMP's loop, a thread pool's, a loop that
/// starts threads. It has the caller's floating-point environment. What it leaves undone is done afterwards. With
/// amla_plan_for_threads() for this number of threads none should wait long for the others.
///
/// @param call What is to be computed, and where results go.
/// @param plan What amla_plan() or amla_plan_for_threads() wrote for a call with this shape and these lengths.
/// @param plan_size Bytes of it.
/// @param parallel_for Calls `body` with `arg` and each number below `n`, once, on any threads in any order, and returns when
///   all calls have.
/// @param pool What `parallel_for` gets first; may be null.
/// @param workspaces Memory to work in, aligned to AMLA_WORKSPACE_ALIGN, for all threads: one behind the other, each of the
///   size that amla_workspace_size() says.
/// @param workspaces_size Bytes there, of one workspace at least.
/// @param partials Where partial results go. It needn't be initialised; null where there are none.
/// @param partials_len FP32 numbers there, at least what amla_plan_query() says.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_run_parallel(
    call: *const Call,
    plan: *const c_void,
    plan_size: usize,
    parallel_for: ParallelForFn,
    pool: *mut c_void,
    workspaces: *mut c_void,
    workspaces_size: usize,
    partials: *mut f32,
    partials_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let caller = &Caller::here();
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
        if parallel_for.is_none() {
            return Err(Fault::Null {
                argument: "parallel_for",
            });
        }
        let pool = Pool {
            caller,
            parallel_for,
            pool,
        };
        enough_partials(&plan, partials_len)?;
        let partials = Written::new(&mut regions, "partials", partials, plan.partials_len())?;
        let most = workspaces_size / size_of::<Workspace>();
        let workspaces = working(&mut regions, workspaces, workspaces_size, most.max(1))?;
        regions.check()?;
        // SAFETY: the regions were checked; that nobody else touches outputs, partial results and workspaces
        // meanwhile is this function's contract.
        let (output, partials, memory) =
            unsafe { (output.claim(), partials.claim(), workspaces.claim()) };
        let threads = memory.len() / size_of::<Workspace>();
        // SAFETY: as long, and aligned as checked (`working`). A workspace is made of numbers, and any bits are some.
        let workspaces: &mut [Workspace] =
            unsafe { slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), threads) };
        Ok(decode_on(
            &pool, &problem, &options, &plan, workspaces, partials, output,
        )?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// The caller's threads.
struct Pool<'a> {
    /// The floating-point environment of its own code, which threads that it starts have as well.
    caller: &'a Caller,
    parallel_for: ParallelForFn,
    pool: *mut c_void,
}

impl ParallelFor for Pool<'_> {
    fn parallel_for(&self, n: usize, body: &(dyn Fn(usize) + Sync)) {
        /// In the default environment, whatever the thread has.
        unsafe extern "C" fn call(body: *mut c_void, i: usize) {
            // SAFETY: what `parallel_for` was given below, which outlives its calls, and may be called from any thread: it is
            // `Sync`.
            let body = unsafe { &*body.cast::<&(dyn Fn(usize) + Sync)>() };
            environment::default(|| body(i));
        }
        let body = (&raw const body).cast_mut().cast();
        if let Some(parallel_for) = self.parallel_for {
            // SAFETY: the caller's function, called as documented.
            self.caller
                .run(|| unsafe { parallel_for(self.pool, n, call, body) });
        }
    }
}
