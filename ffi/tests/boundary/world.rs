//! A call and all that it points to, the functions that take it, and what they refuse.

use std::ffi::{CStr, c_char, c_void};
use std::mem::size_of;

use half::bf16;

use crate::memory;
use crate::run::{
    amla_combine, amla_plan, amla_plan_size, amla_run, amla_run_tasks, amla_workspace_size,
};
use crate::types::*;

pub const B: usize = 2;
pub const S_K: usize = 3;
pub const H_Q: usize = 2;
/// The narrowest pair with a rotary part.
pub const D_QK: usize = 192;
pub const D_V: usize = 128;
pub const ROPE: usize = D_QK - D_V;
pub const TOPK: usize = 2;
pub const PATTERN: f32 = f32::from_bits(0xffd0_1235);

#[repr(C, align(64))]
#[derive(Clone)]
pub struct Line([u8; 64]);

/// A call and all that it points to. Boxed, so that addresses stay; see `linked`.
pub struct World {
    pub call: Call,
    pub q: Tensor,
    pub q_rope: Tensor,
    pub kv: Tensor,
    pub k_rope: Tensor,
    pub v: Tensor,
    pub extra_kv: Tensor,
    pub output: Output,
    pub indices: Indices,
    pub extra_indices: Indices,
    pub extra: Extra,
    pub numbers: Vec<bf16>,
    pub scales: Vec<f32>,
    pub lens: Vec<i32>,
    pub chosen: Vec<i32>,
    pub counts: Vec<i32>,
    pub indptr: Vec<i32>,
    pub table: Vec<i32>,
    pub mask: Vec<u64>,
    pub sink: Vec<f32>,
    pub o: Vec<f32>,
    pub lse: Vec<f32>,
    pub max_logits: Vec<f32>,
    pub partials: Vec<f32>,
    pub partials_len: usize,
    pub plan: Vec<u8>,
    pub workspace: Vec<Line>,
    pub workspace_size: usize,
    pub begin: usize,
    pub end: usize,
}

fn tensor(numbers: &[bf16], scales: &[f32], rows: [usize; 3], width: usize) -> Tensor {
    let strides = [rows[1] * rows[2], rows[2], 1];
    Tensor {
        struct_size: size_of::<Tensor>() as u32,
        dtype: AMLA_DTYPE_BF16,
        data: numbers.as_ptr().cast(),
        len: rows.iter().product::<usize>() * width,
        strides: strides.map(|stride| stride * width),
        scales: scales.as_ptr(),
        scales_len: rows.iter().product(),
        scale_strides: strides,
        model1_scales: 0,
        model1_scale_stride: 0,
    }
}

pub fn zeroed<T: memory::Struct>() -> T {
    // SAFETY: every bit pattern is a value of such a struct (`Struct`).
    unsafe { std::mem::zeroed() }
}

impl World {
    /// Tensors in parts, values apart, lengths and a sink.
    pub fn apart() -> Box<Self> {
        let mut w = Self::blank();
        let (numbers, scales) = (&w.numbers, &w.scales);
        w.q = tensor(numbers, scales, [B, 1, H_Q], D_V);
        w.q_rope = tensor(numbers, scales, [B, 1, H_Q], ROPE);
        w.kv = tensor(numbers, scales, [B, S_K, 1], D_V);
        w.k_rope = tensor(numbers, scales, [B, S_K, 1], ROPE);
        w.v = tensor(numbers, scales, [B, S_K, 1], D_V);
        (w.call.q_rope, w.call.k_rope, w.call.v) = (&w.q_rope, &w.k_rope, &w.v);
        (w.call.cache_seqlens, w.call.cache_seqlens_len) = (w.lens.as_ptr(), B);
        (w.call.sink, w.call.sink_len) = (w.sink.as_ptr(), H_Q);
        w.planned()
    }

    /// Keys chosen in two caches.
    pub fn sparse() -> Box<Self> {
        let mut w = Self::blank();
        let (numbers, scales) = (&w.numbers, &w.scales);
        w.q = tensor(numbers, scales, [B, 1, H_Q], D_QK);
        w.kv = tensor(numbers, scales, [B, S_K, 1], D_QK);
        w.extra_kv = tensor(numbers, scales, [B, S_K, 1], D_QK);
        let indices = Indices {
            struct_size: size_of::<Indices>() as u32,
            reserved: 0,
            indices: w.chosen.as_ptr(),
            indices_len: B * TOPK,
            strides: [TOPK, TOPK],
            topk: TOPK,
            topk_length: w.counts.as_ptr(),
            topk_length_len: B,
            ..zeroed()
        };
        (w.indices, w.extra_indices) = (indices, indices);
        w.extra = Extra {
            struct_size: size_of::<Extra>() as u32,
            reserved: 0,
            kv: &w.extra_kv,
            pages: B,
            page_size: S_K,
            indices: &w.extra_indices,
        };
        (w.call.sparse, w.call.extra) = (&w.indices, &w.extra);
        w.planned()
    }

    pub fn blank() -> Box<Self> {
        let number = |i: usize| bf16::from_f32((i * 37 % 101) as f32 / 50.0 - 1.0);
        let mut w = Box::new(Self {
            call: zeroed(),
            q: zeroed(),
            q_rope: zeroed(),
            kv: zeroed(),
            k_rope: zeroed(),
            v: zeroed(),
            extra_kv: zeroed(),
            output: zeroed(),
            indices: zeroed(),
            extra_indices: zeroed(),
            extra: zeroed(),
            // Room for as many in FP32.
            numbers: (0..2 * B * S_K * D_QK).map(number).collect(),
            scales: vec![0.5; B * S_K],
            lens: vec![3, 1],
            chosen: vec![2, 0, -1, 1],
            counts: vec![2, 1],
            indptr: vec![0, 1, 2],
            table: vec![1, 0],
            mask: vec![5, 7],
            sink: vec![0.5, -1.0],
            o: vec![PATTERN; B * H_Q * D_V],
            lse: vec![PATTERN; B * H_Q],
            max_logits: vec![PATTERN; B * H_Q],
            partials: vec![PATTERN; B * 64 * (D_V + 3)],
            partials_len: B * 64 * (D_V + 3),
            plan: vec![0; AMLA_PLAN_MAX],
            workspace: vec![Line([0; 64]); AMLA_WORKSPACE_MAX / 64],
            workspace_size: AMLA_WORKSPACE_MAX,
            begin: 0,
            end: B,
        });
        w.output = Output {
            struct_size: size_of::<Output>() as u32,
            dtype: AMLA_DTYPE_F32,
            o: w.o.as_mut_ptr().cast(),
            o_len: B * H_Q * D_V,
            o_strides: [H_Q * D_V, H_Q * D_V, D_V],
            lse: w.lse.as_mut_ptr(),
            lse_len: B * H_Q,
            lse_strides: [H_Q, 1, 1],
            lse_base: AMLA_LSE_BASE_E,
            lse_empty: AMLA_LSE_EMPTY_INFINITY,
            max_logits: w.max_logits.as_mut_ptr(),
            max_logits_len: B * H_Q,
        };
        w.call = Call {
            struct_size: size_of::<Call>() as u32,
            b: B,
            s_q: 1,
            s_k: S_K,
            h_q: H_Q,
            h_kv: 1,
            d_qk: D_QK,
            d_v: D_V,
            softmax_scale: 0.1,
            backend: c"portable".as_ptr(),
            q: &w.q,
            kv: &w.kv,
            output: &w.output,
            ..zeroed()
        };
        w
    }

    /// The call. A pointer into the world itself is borrowed anew, as it would be invalid after
    /// any change of what it points to.
    pub fn linked(&mut self) -> *const Call {
        fn renew<T>(pointer: &mut *const T, to: &T) {
            if std::ptr::eq(*pointer, to) {
                *pointer = to;
            }
        }
        renew(&mut self.extra.kv, &self.extra_kv);
        renew(&mut self.extra.indices, &self.extra_indices);
        let call = &mut self.call;
        renew(&mut call.q, &self.q);
        renew(&mut call.q_rope, &self.q_rope);
        renew(&mut call.kv, &self.kv);
        renew(&mut call.k_rope, &self.k_rope);
        renew(&mut call.v, &self.v);
        renew(&mut call.sparse, &self.indices);
        renew(&mut call.extra, &self.extra);
        renew(&mut call.output, &self.output);
        call
    }

    pub fn planned(mut self: Box<Self>) -> Box<Self> {
        let mut plan = vec![0; AMLA_PLAN_MAX];
        let (mut size, mut detail) = (0, detail());
        let call = self.linked();
        // SAFETY: all that the call points to is this world's.
        unsafe {
            assert_eq!(amla_plan_size(call, &mut size, &mut detail), AMLA_OK);
            let plan = plan.as_mut_ptr().cast();
            assert_eq!(amla_plan(call, plan, size, &mut detail), AMLA_OK);
        }
        plan.truncate(size);
        self.plan = plan;
        self
    }

    /// Keys enough for partial results, all of them one row.
    pub fn long(mut self: Box<Self>) -> Box<Self> {
        self.call.s_k = 5000;
        self.lens.fill(5000);
        for rows in [&mut self.kv, &mut self.k_rope, &mut self.v] {
            rows.strides = [0; 3];
        }
        let mut world = self.planned();
        world.end = 2 * B;
        world
    }

    pub fn untouched(&self) -> bool {
        let outputs = self.o.iter().chain(&self.lse).chain(&self.max_logits);
        let all = outputs.chain(&self.partials);
        all.copied().all(|x| x.to_bits() == PATTERN.to_bits())
    }

    /// Every function that looks at what is wrong, by name.
    pub fn answers(&mut self, who: Who) -> Vec<(&'static str, Status, ErrorDetail)> {
        let mut answers = Vec::new();
        let mut call_it = |name, call: &mut dyn FnMut(*mut ErrorDetail) -> Status| {
            let mut detail = detail();
            let status = call(&mut detail);
            answers.push((name, status, detail));
        };
        let (call, mut size) = (self.linked(), 0);
        let (plan, plan_size) = (self.plan.as_ptr().cast(), self.plan.len());
        let workspace: *mut c_void = self.workspace.as_mut_ptr().cast();
        let (partials, partials_len) = (self.partials.as_mut_ptr(), self.partials_len);
        // SAFETY: all that the call points to is this world's, or must be refused.
        unsafe {
            if who == Who::All {
                call_it("amla_plan_size", &mut |d| {
                    amla_plan_size(call, &mut size, d)
                });
                call_it("amla_workspace_size", &mut |d| {
                    amla_workspace_size(call, &mut size, d)
                });
                let mut plan = [0_u8; AMLA_PLAN_MAX];
                let plan: *mut c_void = plan.as_mut_ptr().cast();
                call_it("amla_plan", &mut |d| {
                    amla_plan(call, plan, AMLA_PLAN_MAX, d)
                });
            }
            if who != Who::Output {
                call_it("amla_run_tasks", &mut |d| {
                    amla_run_tasks(
                        call,
                        plan,
                        plan_size,
                        self.begin,
                        self.end,
                        workspace,
                        self.workspace_size,
                        partials,
                        partials_len,
                        d,
                    )
                });
            }
            if who != Who::Tasks {
                call_it("amla_run", &mut |d| {
                    amla_run(call, workspace, self.workspace_size, d)
                });
            }
            if matches!(who, Who::All | Who::Output) {
                call_it("amla_combine", &mut |d| {
                    amla_combine(call, plan, plan_size, partials, partials_len, d)
                });
            }
        }
        answers
    }
}

/// What a change makes wrong, and the change.
pub type Change = (&'static str, fn(&mut World));

/// A status, the argument that it names, and the change to a `T` that must give it.
pub type Wrong<T> = (Status, &'static str, fn(&mut T));

pub fn odd<T>(pointer: *const T) -> *const T {
    pointer.cast::<u8>().wrapping_add(1).cast()
}

/// Which functions look at what is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    All,
    /// Those that write outputs.
    Output,
    /// Those that compute.
    Compute,
    Tasks,
}

pub fn detail() -> ErrorDetail {
    ErrorDetail {
        struct_size: size_of::<ErrorDetail>() as u32,
        ..zeroed()
    }
}

/// A result to be merged.
pub fn part(o: &[f32], lse: &[f32]) -> Part {
    Part {
        struct_size: size_of::<Part>() as u32,
        reserved: 0,
        o: o.as_ptr(),
        o_len: o.len(),
        lse: lse.as_ptr(),
        lse_len: lse.len(),
        // They stand for the largest scores, too.
        max_logits: lse.as_ptr(),
        max_logits_len: lse.len(),
    }
}

pub fn text(chars: &[c_char]) -> &str {
    let bytes: &[u8] = bytemuck::cast_slice(chars);
    CStr::from_bytes_until_nul(bytes).unwrap().to_str().unwrap()
}

/// Counts what was refused as it had to be.
pub struct Denials(pub usize);

impl Denials {
    #[track_caller]
    pub fn expect(
        &mut self,
        world: fn() -> Box<World>,
        who: Who,
        status: Status,
        argument: &str,
        change: impl FnOnce(&mut World),
    ) {
        let mut w = world();
        change(&mut w);
        for (function, got, detail) in w.answers(who) {
            let told = text(&detail.argument);
            assert_eq!(
                (got, detail.status, told),
                (status, status, argument),
                "{function}: {}",
                text(&detail.message)
            );
            self.0 += 1;
        }
        assert!(w.untouched(), "{argument}, status {status}");
    }
}

/// Bits of a world's results.
pub fn results(w: &World) -> (Vec<u32>, Vec<u32>) {
    let bits = |xs: &[f32]| xs.iter().map(|x| x.to_bits()).collect();
    (bits(&w.o), bits(&w.lse))
}

/// Runs a changed call and gives the bits of o and lse.
pub fn run(world: fn() -> Box<World>, change: impl FnOnce(&mut World)) -> (Vec<u32>, Vec<u32>) {
    let mut w = world();
    change(&mut w);
    let mut w = w.planned();
    for (function, status, detail) in w.answers(Who::All) {
        assert_eq!(status, AMLA_OK, "{function}: {}", text(&detail.message));
    }
    results(&w)
}
