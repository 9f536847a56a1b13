//! The calls, and what must hold after each.

use std::ffi::c_void;
use std::mem::size_of;
use std::ptr;

use amla::Workspace;

use super::caller::Caller;
use super::memory::{Given, Guarded, struct_size};
use super::overwrite::{choice, len};
use crate::draw::Draw;
use crate::hosts::Bits;
use crate::merge::amla_merge;
use crate::parallel::amla_run_parallel;
use crate::run::{
    amla_combine, amla_combine_range, amla_plan_for_threads, amla_plan_query, amla_plan_size,
    amla_run, amla_run_tasks, amla_workspace_size,
};
use crate::types::{self, Call, Part, PlanInfo, Status};

/// A pool of one thread.
unsafe extern "C" fn backwards(
    _pool: *mut c_void,
    n: usize,
    body: unsafe extern "C" fn(*mut c_void, usize),
    arg: *mut c_void,
) {
    for i in (0..n).rev() {
        // SAFETY: as the function that gave it wants it called.
        unsafe { body(arg, i) }
    }
}

impl Caller {
    /// Whether a valid call would take long: strides of 0 make caches of any length.
    pub fn is_long(&self) -> bool {
        let Call {
            b, s_q, h_q, s_k, ..
        } = *self.call;
        let sizes = [b, s_q, h_q, s_k.max(1)];
        sizes.into_iter().fold(1, usize::saturating_mul) > 1 << 16
    }

    /// After every call.
    fn check(&self, status: Status) {
        assert!(
            (types::AMLA_OK..=types::AMLA_ERROR_BACKEND_IN_USE).contains(&status),
            "{status}"
        );
        self.o.check();
        self.lse.check();
        self.max_logits.check();
        for Given { memory, before } in &self.given {
            assert!(memory == before, "written where nothing may be");
        }
        if status != types::AMLA_OK {
            assert_eq!(self.detail.status, status);
        }
    }

    pub fn plan(&mut self, draw: &mut Draw) -> (Status, Guarded, usize) {
        let call: *const Call = if draw.once_in(64) {
            ptr::null()
        } else {
            &raw const *self.call
        };
        let detail = &raw mut *self.detail;
        let mut sizes = [usize::MAX; 2];
        // SAFETY: structs whose pointers are null or to memory as long as they say.
        let [first, second] = unsafe {
            [
                amla_plan_size(call, &raw mut sizes[0], detail),
                amla_workspace_size(call, &raw mut sizes[1], detail),
            ]
        };
        assert_eq!(first, second);
        self.check(first);
        if first == types::AMLA_OK {
            assert!(sizes[0] <= types::AMLA_PLAN_MAX && sizes[1] <= types::AMLA_WORKSPACE_MAX);
        } else {
            assert_eq!(sizes, [usize::MAX; 2]);
        }
        let len = if draw.once_in(16) {
            draw.among(0..=128)
        } else {
            types::AMLA_PLAN_MAX
        };
        let mut plan = Guarded::new(len);
        // SAFETY: as above; there are `len` bytes for the plan.
        let status = unsafe {
            let threads = draw.one_of(&[0, 1, 16, 1 << 20, usize::MAX]);
            amla_plan_for_threads(call, threads, plan.pointer(), len, detail)
        };
        self.check(status);
        plan.check();
        assert!(status == types::AMLA_OK || plan.is_untouched());
        (status, plan, len)
    }

    pub fn run(&mut self, draw: &mut Draw, wrong: bool) -> Status {
        let call = &raw const *self.call;
        let detail = &raw mut *self.detail;
        let exact = size_of::<Workspace>();
        let bytes = if wrong && draw.once_in(32) {
            draw.among(0..=exact + 64)
        } else {
            exact
        };
        let mut workspace = Guarded::new(bytes);
        let memory = match wrong && draw.once_in(64) {
            true => ptr::null_mut(),
            false => workspace.pointer(),
        };
        let before = self.outputs();
        // SAFETY: structs whose pointers are null or to memory as long as they say; the
        // workspace has `bytes` bytes.
        let status = unsafe { amla_run(call, memory, bytes, detail) };
        self.check(status);
        workspace.check();
        if status != types::AMLA_OK {
            assert!(self.outputs() == before);
        }
        status
    }

    /// The same as tasks: the same results.
    pub fn tasks(&mut self, draw: &mut Draw, ran: Status) {
        let (planned, mut plan, plan_len) = self.plan(draw);
        if draw.once_in(8) && plan_len > 0 {
            let at = draw.among(0..=plan_len - 1);
            let bytes: *mut u8 = plan.pointer();
            // SAFETY: within the plan's memory.
            unsafe { *bytes.add(at) ^= 1 << draw.among(0..=7) };
        }
        let (call, detail) = (&raw const *self.call, &raw mut *self.detail);
        let mut info = PlanInfo {
            struct_size: struct_size::<PlanInfo>(),
            reserved: 0,
            tasks: 0,
            partial_len: 0,
            partials_len: 0,
            partial_tasks: 0,
            merges: 0,
        };
        // SAFETY: there are `plan_len` bytes, and a struct.
        let status = unsafe { amla_plan_query(plan.pointer(), plan_len, &raw mut info, detail) };
        self.check(status);
        if info.partials_len > 1 << 22 {
            return;
        }
        let fewer = usize::from(draw.once_in(16)) * draw.among(0..=info.partials_len);
        let partials_len = info.partials_len - fewer;
        let mut partials = Guarded::new(4 * partials_len);
        let mut workspace = Guarded::new(size_of::<Workspace>());
        let middle = draw.among(0..=info.tasks);
        let shift = usize::from(draw.once_in(16));
        let before = self.outputs();
        let (mut all, mut wrote) = (planned, false);
        for [begin, end] in [[middle, info.tasks + shift], [0, middle]] {
            // SAFETY: as above; `partials` has as many numbers as it says.
            let status = unsafe {
                amla_run_tasks(
                    call,
                    plan.pointer(),
                    plan_len,
                    begin,
                    end,
                    workspace.pointer(),
                    size_of::<Workspace>(),
                    partials.pointer(),
                    partials_len,
                    detail,
                )
            };
            self.check(status);
            partials.check();
            workspace.check();
            all = all.max(status);
            wrote |= status == types::AMLA_OK;
        }
        let middle = draw.among(0..=info.merges);
        let merges = match draw.once_in(2) {
            true => vec![[0, info.merges]],
            false => vec![[middle, info.merges + shift], [0, middle]],
        };
        let mut status = types::AMLA_OK;
        for [begin, end] in merges {
            let partials = partials.pointer();
            // SAFETY: as above.
            let merge = unsafe {
                match [begin, end] == [0, info.merges] {
                    true => amla_combine(
                        call,
                        plan.pointer(),
                        plan_len,
                        partials,
                        partials_len,
                        detail,
                    ),
                    false => amla_combine_range(
                        call,
                        plan.pointer(),
                        plan_len,
                        begin,
                        end,
                        partials,
                        partials_len,
                        detail,
                    ),
                }
            };
            self.check(merge);
            status = status.max(merge);
            wrote |= merge == types::AMLA_OK;
        }
        if draw.once_in(2) {
            let threads = draw.among(1..=2);
            let mut workspaces = Guarded::new(threads * size_of::<Workspace>() + shift);
            // SAFETY: as above; the function calls what it gets as it should.
            let parallel = unsafe {
                amla_run_parallel(
                    call,
                    plan.pointer(),
                    plan_len,
                    (!draw.once_in(16)).then_some(backwards),
                    ptr::null_mut(),
                    workspaces.pointer(),
                    workspaces.len,
                    partials.pointer(),
                    partials_len,
                    detail,
                )
            };
            self.check(parallel);
            workspaces.check();
            all = all.max(parallel);
            wrote |= parallel == types::AMLA_OK;
        }
        partials.check();
        let same = self.outputs() == before;
        // Results without those of all tasks are none, and may be in the place of some.
        if !wrote || [status, all, ran] == [types::AMLA_OK; 3] {
            assert!(same, "{status} {all} {ran}");
        }
    }

    /// What the outputs hold.
    fn outputs(&self) -> [Vec<u8>; 3] {
        [&self.o, &self.lse, &self.max_logits].map(|memory| memory.inside().to_vec())
    }

    /// Results with themselves.
    pub fn merge(&mut self, draw: &mut Draw) {
        let Call {
            b, s_q, h_q, d_v, ..
        } = *self.call;
        if self.output.o != self.o.pointer() {
            // The queries are nothing that this call reads.
            return;
        }
        let mut numbers =
            [&self.o, &self.lse, &self.max_logits].map(|memory| Given::new(memory.inside()));
        let part = Part {
            struct_size: struct_size::<Part>(),
            reserved: 0,
            o: numbers[0].memory.as_mut_ptr().cast(),
            o_len: numbers[0].memory.len() / 4,
            lse: numbers[1].memory.as_mut_ptr().cast(),
            lse_len: numbers[1].memory.len() / 4,
            max_logits: numbers[2].memory.as_mut_ptr().cast(),
            max_logits_len: numbers[2].memory.len() / 4,
        };
        let mut parts = [part; 3];
        match draw.among(0..=15) {
            0 => parts[1].o = ptr::null(),
            1 => parts[1].o_len = len(draw, part.o_len),
            2 => parts[1].lse_len = len(draw, part.lse_len),
            3 => parts[1].reserved = choice(draw),
            4 => parts[1].struct_size = choice(draw),
            5 => parts[1].max_logits = ptr::null(),
            6 => parts[1].max_logits_len = len(draw, part.max_logits_len),
            7 => parts[1].o = self.output.o.cast_const().cast(),
            _ => {}
        }
        if parts[1].o == self.output.o.cast_const().cast() {
            parts[1].o_len = self.o.len / 4;
        }
        let count = match draw.once_in(16) {
            true => draw.one_of(&[types::AMLA_MERGE_MAX + 1, usize::MAX]),
            false => draw.among(0..=parts.len()),
        };
        let before = self.outputs();
        let (output, detail) = (&raw const *self.output, &raw mut *self.detail);
        // SAFETY: as above; there are as many parts as said, or more are said than a call takes.
        let status = unsafe { amla_merge(b, s_q, h_q, d_v, output, parts.as_ptr(), count, detail) };
        self.check(status);
        for Given { memory, before } in &numbers {
            assert!(memory == before);
        }
        if status != types::AMLA_OK {
            assert!(self.outputs() == before);
        }
    }

    /// As Rust's.
    pub fn results(&self) -> Bits {
        let words = |memory: &Guarded| -> Vec<u32> {
            memory
                .inside()
                .as_chunks()
                .0
                .iter()
                .map(|&x| u32::from_le_bytes(x))
                .collect()
        };
        (words(&self.o), words(&self.lse))
    }
}
