//! The functions of `amla.h` called from Rust, their sources compiled into this test: so Miri, the
//! sanitizers and coverage see the code that turns pointers into slices. Good calls give the bits
//! that `amla` gives; malformed ones, made by the hundred, the status that each must, with every
//! output untouched. What C sees of all this is in `c/`.
#![allow(unsafe_code, reason = "calls what C calls")]
#![allow(dead_code, reason = "not all of the sources' numbers are needed")]

extern crate alloc;

#[path = "../src/call.rs"]
mod call;
#[path = "../src/encode.rs"]
mod encode;
#[path = "../src/fault.rs"]
mod fault;
#[path = "../src/info.rs"]
mod info;
#[path = "../src/memory.rs"]
mod memory;
#[path = "../src/run.rs"]
mod run;
#[path = "../src/types.rs"]
mod types;

#[path = "boundary/rest.rs"]
mod rest;

use std::ffi::{CStr, c_void};
use std::mem::size_of;
use std::ptr::null;

use half::bf16;
use run::{
    amla_combine, amla_merge, amla_plan, amla_plan_query, amla_plan_size, amla_run, amla_run_tasks,
    amla_workspace_size,
};
use types::*;

const B: usize = 2;
const S_K: usize = 3;
const H_Q: usize = 2;
/// The narrowest pair with a rotary part.
const D_QK: usize = 192;
const D_V: usize = 128;
const ROPE: usize = D_QK - D_V;
const TOPK: usize = 2;
const PATTERN: f32 = f32::from_bits(0xffd0_1235);

#[repr(C, align(64))]
#[derive(Clone)]
struct Line([u8; 64]);

/// A call and all that it points to. Boxed, so that addresses stay; see `linked`.
struct World {
    call: Call,
    q: Tensor,
    q_rope: Tensor,
    kv: Tensor,
    k_rope: Tensor,
    v: Tensor,
    extra_kv: Tensor,
    output: Output,
    indices: Indices,
    extra_indices: Indices,
    extra: Extra,
    numbers: Vec<bf16>,
    scales: Vec<f32>,
    lens: Vec<i32>,
    places: Vec<i32>,
    counts: Vec<i32>,
    indptr: Vec<i32>,
    table: Vec<i32>,
    mask: Vec<u64>,
    sink: Vec<f32>,
    o: Vec<f32>,
    lse: Vec<f32>,
    partials: Vec<f32>,
    partials_len: usize,
    plan: Vec<u8>,
    workspace: Vec<Line>,
    workspace_size: usize,
    begin: usize,
    end: usize,
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

fn zeroed<T: memory::Struct>() -> T {
    // SAFETY: every bit pattern is a value of such a struct (`Struct`).
    unsafe { std::mem::zeroed() }
}

impl World {
    /// Tensors in parts, values apart, lengths and a sink.
    fn apart() -> Box<Self> {
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
    fn sparse() -> Box<Self> {
        let mut w = Self::blank();
        let (numbers, scales) = (&w.numbers, &w.scales);
        w.q = tensor(numbers, scales, [B, 1, H_Q], D_QK);
        w.kv = tensor(numbers, scales, [B, S_K, 1], D_QK);
        w.extra_kv = tensor(numbers, scales, [B, S_K, 1], D_QK);
        let indices = Indices {
            struct_size: size_of::<Indices>() as u32,
            reserved: 0,
            indices: w.places.as_ptr(),
            indices_len: B * TOPK,
            strides: [TOPK, TOPK],
            topk: TOPK,
            topk_length: w.counts.as_ptr(),
            topk_length_len: B,
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

    fn blank() -> Box<Self> {
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
            numbers: (0..B * S_K * D_QK).map(number).collect(),
            scales: vec![0.5; B * S_K],
            lens: vec![3, 1],
            places: vec![2, 0, -1, 1],
            counts: vec![2, 1],
            indptr: vec![0, 1, 2],
            table: vec![1, 0],
            mask: vec![5, 7],
            sink: vec![0.5, -1.0],
            o: vec![PATTERN; B * H_Q * D_V],
            lse: vec![PATTERN; B * H_Q],
            partials: vec![PATTERN; B * 64 * (D_V + 2)],
            partials_len: B * 64 * (D_V + 2),
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
    fn linked(&mut self) -> *const Call {
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

    fn planned(mut self: Box<Self>) -> Box<Self> {
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

    fn untouched(&self) -> bool {
        let all = self.o.iter().chain(&self.lse).chain(&self.partials);
        all.copied().all(|x| x.to_bits() == PATTERN.to_bits())
    }

    /// Every function that looks at what is wrong, by name.
    fn answers(&mut self, who: Who) -> Vec<(&'static str, Status, ErrorDetail)> {
        let mut answers = Vec::new();
        let mut ask = |name, call: &mut dyn FnMut(*mut ErrorDetail) -> Status| {
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
                ask("amla_plan_size", &mut |d| {
                    amla_plan_size(call, &mut size, d)
                });
                ask("amla_workspace_size", &mut |d| {
                    amla_workspace_size(call, &mut size, d)
                });
                let mut plan = [0_u8; AMLA_PLAN_MAX];
                let plan: *mut c_void = plan.as_mut_ptr().cast();
                ask("amla_plan", &mut |d| {
                    amla_plan(call, plan, AMLA_PLAN_MAX, d)
                });
            }
            if who != Who::Output {
                ask("amla_run_tasks", &mut |d| {
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
                ask("amla_run", &mut |d| {
                    amla_run(call, workspace, self.workspace_size, d)
                });
            }
            if matches!(who, Who::All | Who::Output) {
                ask("amla_combine", &mut |d| {
                    amla_combine(call, plan, plan_size, partials, partials_len, d)
                });
            }
        }
        answers
    }
}

/// What a change makes wrong, and the change.
type Change = (&'static str, fn(&mut World));

/// Which functions look at what is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    All,
    /// Those that write outputs.
    Output,
    /// Those that compute.
    Compute,
    Tasks,
}

fn detail() -> ErrorDetail {
    ErrorDetail {
        struct_size: size_of::<ErrorDetail>() as u32,
        ..zeroed()
    }
}

/// A result to be merged.
fn part(o: &[f32], lse: &[f32]) -> Part {
    Part {
        struct_size: size_of::<Part>() as u32,
        reserved: 0,
        o: o.as_ptr(),
        o_len: o.len(),
        lse: lse.as_ptr(),
        lse_len: lse.len(),
    }
}

fn text(chars: &[std::ffi::c_char]) -> &str {
    let bytes: &[u8] = bytemuck::cast_slice(chars);
    CStr::from_bytes_until_nul(bytes).unwrap().to_str().unwrap()
}

/// Counts what was refused as it had to be.
struct Denials(usize);

impl Denials {
    #[track_caller]
    fn expect(
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

/// A tensor of a world: its name, where it is, where the call points to it.
type Place = (
    &'static str,
    fn() -> Box<World>,
    fn(&mut World) -> &mut Tensor,
    fn(&mut World) -> &mut *const Tensor,
);

const TENSORS: [Place; 6] = [
    ("q", World::apart, |w| &mut w.q, |w| &mut w.call.q),
    (
        "q_rope",
        World::apart,
        |w| &mut w.q_rope,
        |w| &mut w.call.q_rope,
    ),
    ("kv", World::apart, |w| &mut w.kv, |w| &mut w.call.kv),
    (
        "k_rope",
        World::apart,
        |w| &mut w.k_rope,
        |w| &mut w.call.k_rope,
    ),
    ("v", World::apart, |w| &mut w.v, |w| &mut w.call.v),
    (
        "extra_kv",
        World::sparse,
        |w| &mut w.extra_kv,
        |w| &mut w.extra.kv,
    ),
];

fn odd<T>(pointer: *const T) -> *const T {
    pointer.cast::<u8>().wrapping_add(1).cast()
}

/// Of each tensor: what it says of itself, where it is, how long, in which format, how strided.
#[test]
fn tensors_are_denied() {
    let mut denials = Denials(0);
    for (name, world, at, pointer) in TENSORS {
        let [scales, dtypes] = ["scales", "dtype"].map(|field| format!("{name}.{field}"));
        let mut deny = |status, argument: &str, change: &dyn Fn(&mut Tensor)| {
            denials.expect(world, Who::All, status, argument, |w| change(at(w)));
        };
        let size = size_of::<Tensor>() as u32;
        for struct_size in [0, 1, 4, size - 1, size + 1, size + 8, 1 << 31, u32::MAX] {
            deny(AMLA_ERROR_STRUCT_SIZE, name, &|t| {
                t.struct_size = struct_size
            });
        }
        for dtype in [0, AMLA_DTYPE_F32, 7, 255, 1 << 16, u32::MAX] {
            deny(AMLA_ERROR_UNKNOWN_VALUE, &dtypes, &|t| t.dtype = dtype);
        }
        for dtype in [AMLA_DTYPE_FP8, AMLA_DTYPE_MODEL1] {
            deny(AMLA_ERROR_FORMAT, name, &|t| t.dtype = dtype);
        }
        for dtype in [AMLA_DTYPE_BF16, AMLA_DTYPE_F16, AMLA_DTYPE_INT8] {
            let set = move |t: &mut Tensor| t.dtype = dtype;
            deny(AMLA_ERROR_NULL_POINTER, name, &|t| {
                (set(t), t.data = null()).1
            });
            deny(AMLA_ERROR_TOO_SHORT, name, &|t| (set(t), t.len -= 1).1);
            deny(AMLA_ERROR_TOO_SHORT, name, &|t| (set(t), t.len = 0).1);
            deny(AMLA_ERROR_BAD_EXTENT, name, &|t| {
                (set(t), t.len = usize::MAX).1
            });
            deny(AMLA_ERROR_BAD_EXTENT, name, &|t| {
                (set(t), t.len = usize::MAX / 2 + 1).1
            });
            for stride in [usize::MAX, usize::MAX - ROPE + 1] {
                deny(AMLA_ERROR_OVERFLOW, name, &|t| {
                    (set(t), t.strides[0] = stride).1
                });
            }
            deny(AMLA_ERROR_TOO_SHORT, name, &|t| {
                (set(t), t.strides[0] += 1).1
            });
            if dtype != AMLA_DTYPE_INT8 {
                deny(AMLA_ERROR_MISALIGNED, name, &|t| {
                    (set(t), t.data = odd(t.data)).1
                });
            }
        }
        let int8 = |t: &mut Tensor| t.dtype = AMLA_DTYPE_INT8;
        deny(AMLA_ERROR_NULL_POINTER, &scales, &|t| {
            (int8(t), t.scales = null()).1
        });
        deny(AMLA_ERROR_MISALIGNED, &scales, &|t| {
            (int8(t), t.scales = odd(t.scales)).1
        });
        deny(AMLA_ERROR_BAD_EXTENT, &scales, &|t| {
            (int8(t), t.scales_len = usize::MAX).1
        });
        deny(AMLA_ERROR_TOO_SHORT, "scales", &|t| {
            (int8(t), t.scales_len -= 1).1
        });
        deny(AMLA_ERROR_TOO_SHORT, "scales", &|t| {
            (int8(t), t.scale_strides[0] += 1).1
        });
        deny(AMLA_ERROR_OVERFLOW, "scales", &|t| {
            (int8(t), t.scale_strides[0] = usize::MAX).1
        });
        denials.expect(world, Who::All, AMLA_ERROR_MISALIGNED, name, |w| {
            *pointer(w) = odd(*pointer(w));
        });
        // What is written may not be what is read.
        denials.expect(world, Who::Output, AMLA_ERROR_ALIASED, "o", |w| {
            w.output.o = at(w).data.cast_mut().cast();
        });
        denials.expect(world, Who::Output, AMLA_ERROR_ALIASED, "lse", |w| {
            w.output.lse = at(w).data.cast_mut().cast();
        });
    }
    println!("{} calls denied", denials.0);
    assert!(denials.0 > 1000);
}

/// Sizes, lists, choices, outputs, memory to work in.
#[test]
fn calls_are_denied() {
    let mut denials = Denials(0);
    let apart = World::apart as fn() -> Box<World>;
    let sparse = World::sparse as fn() -> Box<World>;
    let mut deny = |world, who, status, argument: &str, change: &dyn Fn(&mut World)| {
        denials.expect(world, who, status, argument, change);
    };
    let size = size_of::<Call>() as u32;
    for struct_size in [0, 4, size - 8, size + 8, u32::MAX] {
        let all = Who::All;
        deny(apart, all, AMLA_ERROR_STRUCT_SIZE, "call", &|w| {
            w.call.struct_size = struct_size
        });
        let output = AMLA_ERROR_STRUCT_SIZE;
        deny(apart, Who::Output, output, "output", &|w| {
            w.output.struct_size = struct_size
        });
        deny(sparse, all, output, "indices", &|w| {
            w.indices.struct_size = struct_size
        });
        deny(sparse, all, output, "extra_indices", &|w| {
            w.extra_indices.struct_size = struct_size
        });
        deny(sparse, all, output, "extra", &|w| {
            w.extra.struct_size = struct_size
        });
    }
    type Set = fn(&mut World) -> &mut usize;
    let counts: [(&str, Set); 6] = [
        ("s_q", |w| &mut w.call.s_q),
        ("s_k", |w| &mut w.call.s_k),
        ("h_q", |w| &mut w.call.h_q),
        ("h_kv", |w| &mut w.call.h_kv),
        ("d_qk", |w| &mut w.call.d_qk),
        ("d_v", |w| &mut w.call.d_v),
    ];
    for (name, count) in counts {
        for value in [0, 1 << 31, usize::MAX / 2, usize::MAX] {
            if name != "s_k" || value > 0 {
                deny(apart, Who::All, AMLA_ERROR_OUT_OF_RANGE, name, &|w| {
                    *count(w) = value
                });
            }
        }
    }
    for scale in [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
    ] {
        let status = AMLA_ERROR_NON_FINITE_SCALE;
        deny(apart, Who::All, status, "softmax_scale", &|w| {
            w.call.softmax_scale = scale
        });
    }
    for bit in 1..32 {
        let status = AMLA_ERROR_UNKNOWN_VALUE;
        deny(apart, Who::All, status, "flags", &|w| {
            w.call.flags = 1 << bit
        });
    }
    for value in [2, 3, 1 << 31, u32::MAX] {
        let unknown = AMLA_ERROR_UNKNOWN_VALUE;
        deny(apart, Who::All, unknown, "rescale", &|w| {
            w.call.rescale = value
        });
        deny(apart, Who::All, unknown, "precision", &|w| {
            w.call.precision = value
        });
        deny(apart, Who::Output, unknown, "lse_base", &|w| {
            w.output.lse_base = value
        });
        deny(apart, Who::Output, unknown, "lse_empty", &|w| {
            w.output.lse_empty = value
        });
        deny(apart, Who::All, unknown, "call.reserved", &|w| {
            w.call.reserved = value
        });
        deny(sparse, Who::All, unknown, "indices.reserved", &|w| {
            w.indices.reserved = value
        });
        deny(sparse, Who::All, unknown, "extra.reserved", &|w| {
            w.extra.reserved = value
        });
    }
    for name in [c"", c"p", c"portabl", c"portable ", c"Portable", c"avx1024"] {
        let status = AMLA_ERROR_BACKEND_UNAVAILABLE;
        deny(apart, Who::All, status, "backend", &|w| {
            w.call.backend = name.as_ptr()
        });
    }

    for value in [i32::MIN, -1, S_K as i32 + 1, i32::MAX] {
        for request in 0..B {
            let status = AMLA_ERROR_SEQLEN;
            deny(apart, Who::All, status, "cache_seqlens", &|w| {
                w.lens[request] = value
            });
            let status = AMLA_ERROR_TOPK_LENGTH;
            let counts = |w: &mut World| w.counts[request] = value;
            deny(sparse, Who::All, status, "topk_length", &counts);
        }
    }
    for len in [0, 1, 3, 1 << 20] {
        let wrong = if len < 3 {
            AMLA_ERROR_WRONG_LENGTH
        } else {
            AMLA_OK
        };
        // Longer than what is there: only its length is looked at.
        if wrong != AMLA_OK {
            deny(apart, Who::All, wrong, "sink", &|w| w.call.sink_len = len);
            deny(apart, Who::All, wrong, "cache_seqlens", &|w| {
                w.call.cache_seqlens_len = len
            });
        }
    }
    let null_lists: [Change; 3] = [
        ("sink", |w| w.call.sink = null()),
        ("cache_seqlens", |w| w.call.cache_seqlens = null()),
        ("tail_mask", |w| w.call.tail = 1),
    ];
    for (name, change) in null_lists {
        deny(apart, Who::All, AMLA_ERROR_NULL_POINTER, name, &change);
    }
    let odd_lists: [Change; 2] = [
        ("sink", |w| w.call.sink = odd(w.call.sink)),
        ("cache_seqlens", |w| {
            w.call.cache_seqlens = odd(w.call.cache_seqlens)
        }),
    ];
    for (name, change) in odd_lists {
        deny(apart, Who::All, AMLA_ERROR_MISALIGNED, name, &change);
    }
    let vast_lists: [Change; 2] = [
        ("sink", |w| w.call.sink_len = usize::MAX),
        ("cache_seqlens", |w| {
            w.call.cache_seqlens_len = usize::MAX / 4
        }),
    ];
    for (name, change) in vast_lists {
        deny(apart, Who::All, AMLA_ERROR_BAD_EXTENT, name, &change);
    }

    type List = (&'static str, fn(&mut World) -> &mut Indices);
    let indices: [List; 2] = [
        ("indices", |w| &mut w.indices),
        ("extra_indices", |w| &mut w.extra_indices),
    ];
    for (name, at) in indices {
        let mut deny = |status, change: &dyn Fn(&mut Indices)| {
            deny(sparse, Who::All, status, name, &|w| change(at(w)));
        };
        deny(AMLA_ERROR_NULL_POINTER, &|i| i.indices = null());
        deny(AMLA_ERROR_MISALIGNED, &|i| i.indices = odd(i.indices));
        deny(AMLA_ERROR_BAD_EXTENT, &|i| i.indices_len = usize::MAX);
        deny(AMLA_ERROR_TOO_SHORT, &|i| i.indices_len -= 1);
        deny(AMLA_ERROR_TOO_SHORT, &|i| i.strides[0] += 1);
        deny(AMLA_ERROR_OVERFLOW, &|i| i.strides[0] = usize::MAX);
        for topk in [1 << 30, 1 << 31, usize::MAX] {
            deny(AMLA_ERROR_OUT_OF_RANGE, &|i| i.topk = topk);
        }
    }

    for begin in [B + 1, usize::MAX] {
        let status = AMLA_ERROR_OUT_OF_RANGE;
        deny(apart, Who::Tasks, status, "end", &|w| w.end = begin);
        deny(apart, Who::Tasks, status, "begin", &|w| w.begin = begin);
    }
    for size in [0, 1, 1 << 10, 1 << 18] {
        let status = AMLA_ERROR_TOO_SHORT;
        deny(apart, Who::Compute, status, "workspace", &|w| {
            w.workspace_size = size
        });
    }
    let short: [Change; 6] = [
        ("o", |w| w.output.o_len -= 1),
        ("o", |w| w.output.o_len = 0),
        ("lse", |w| w.output.lse_len -= 1),
        ("lse", |w| w.output.lse_len = 0),
        ("o", |w| w.output.o_strides[0] += 1),
        ("lse", |w| w.output.lse_strides[0] += 1),
    ];
    for (name, change) in short {
        deny(apart, Who::Output, AMLA_ERROR_TOO_SHORT, name, &change);
    }
    for stride in [0, 1, D_V - 1] {
        let overlap = AMLA_ERROR_OVERLAP;
        deny(apart, Who::Output, overlap, "o", &|w| {
            w.output.o_strides[2] = stride
        });
        deny(apart, Who::Output, overlap, "o", &|w| {
            w.output.o_strides[0] = stride
        });
    }
    for dtype in [
        0,
        AMLA_DTYPE_FP8,
        AMLA_DTYPE_MODEL1,
        AMLA_DTYPE_INT8,
        7,
        u32::MAX,
    ] {
        let status = AMLA_ERROR_UNKNOWN_VALUE;
        deny(apart, Who::Output, status, "output.dtype", &|w| {
            w.output.dtype = dtype
        });
    }
    println!("{} calls denied", denials.0);
    assert!(denials.0 > 500);
}

/// Bits of a world's results.
fn results(w: &World) -> (Vec<u32>, Vec<u32>) {
    let bits = |xs: &[f32]| xs.iter().map(|x| x.to_bits()).collect();
    (bits(&w.o), bits(&w.lse))
}

#[test]
fn good_calls_are_done_whole_and_by_tasks() {
    for world in [World::apart, World::sparse] {
        let mut w = world();
        let mut answers = w.answers(Who::All);
        answers.retain(|&(_, status, _)| status != AMLA_OK);
        assert!(answers.is_empty());
        // `amla_run` came before `amla_combine`, which wrote the same.
        let combined = results(&w);
        w.o.fill(PATTERN);
        w.lse.fill(PATTERN);
        assert_eq!(w.answers(Who::Compute)[1].1, AMLA_OK);
        assert_eq!(results(&w), combined);
        let nan = |x: &f32| x.is_nan();
        assert!(!w.o.iter().any(nan) && !w.lse.iter().any(nan));
    }
}

#[test]
fn the_last_task_can_be_run_alone_and_touches_its_own_part() {
    let mut w = World::apart();
    w.begin = 1;
    assert_eq!(w.answers(Who::Tasks)[0].1, AMLA_OK);
    let mut info = PlanInfo {
        struct_size: size_of::<PlanInfo>() as u32,
        ..zeroed()
    };
    let (plan, size) = (w.plan.as_ptr().cast(), w.plan.len());
    // SAFETY: the plan and the struct are this test's.
    let status = unsafe { amla_plan_query(plan, size, &mut info, std::ptr::null_mut()) };
    assert_eq!((status, info.tasks), (AMLA_OK, B));
    let (first, second) = w.partials.split_at(info.partial_len);
    assert!(first.iter().all(|x| x.to_bits() == PATTERN.to_bits()));
    assert!(
        second[..H_Q * D_V]
            .iter()
            .any(|x| x.to_bits() != PATTERN.to_bits())
    );
}

/// Requests that share their rows are as many as one likes; results of their own they can't have.
#[test]
fn a_plan_may_need_more_memory_than_there_is() {
    let mut w = World::apart();
    w.call.b = usize::MAX / D_V;
    (w.call.cache_seqlens, w.call.cache_seqlens_len) = (null(), 0);
    let World {
        q,
        q_rope,
        kv,
        k_rope,
        v,
        ..
    } = &mut *w;
    for rows in [q, q_rope, kv, k_rope, v] {
        rows.strides[0] = 0;
    }
    w.partials_len = usize::MAX;
    let mut w = w.planned();
    let mut info = PlanInfo {
        struct_size: size_of::<PlanInfo>() as u32,
        ..zeroed()
    };
    let (plan, size) = (w.plan.as_ptr().cast(), w.plan.len());
    // SAFETY: the plan and the struct are this test's.
    let status = unsafe { amla_plan_query(plan, size, &mut info, std::ptr::null_mut()) };
    assert_eq!((status, info.partials_len), (AMLA_OK, usize::MAX));
    (w.begin, w.end) = (info.tasks - 1, info.tasks);
    for (name, status, _) in w.answers(Who::Tasks) {
        assert_eq!(status, AMLA_ERROR_TOO_SHORT, "{name}");
    }
    assert!(w.untouched());
}

#[test]
fn merging_with_a_result_over_no_keys_changes_nothing() {
    let mut w = World::apart();
    assert_eq!(w.answers(Who::Compute)[1].1, AMLA_OK);
    let want = results(&w);
    let (o, lse) = (vec![0.0_f32; w.o.len()], vec![f32::INFINITY; w.lse.len()]);
    let part = part(&o, &lse);
    let mut detail = detail();
    // SAFETY: total and part are this test's.
    let status = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, &part, 1, &mut detail) };
    assert_eq!(status, AMLA_OK);
    assert_eq!(results(&w), want);
}

#[test]
fn every_status_has_its_words() {
    let words: Vec<_> = (AMLA_OK..=AMLA_ERROR_OTHER)
        // SAFETY: the strings are the library's constants.
        .map(|status| unsafe { CStr::from_ptr(info::amla_status_string(status)) })
        .collect();
    for (i, word) in words.iter().enumerate() {
        assert!(!word.is_empty() && !words[..i].contains(word));
    }
}
