//! What is refused of sizes, lists, choices, outputs and memory.

use std::mem::offset_of;
use std::ptr::{null, null_mut};

use crate::run::amla_plan_size;
use crate::types::*;
use crate::world::*;

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
    for bit in 2..32 {
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
            w.call.precision = value.max(3)
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
        // Longer than the memory: only the length is read.
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
        static WIDE: [i64; B * TOPK] = [0; B * TOPK];
        deny(AMLA_ERROR_CONFLICT, &|i| i.indices64 = WIDE.as_ptr());
        let wide = |i: &mut Indices| (i.indices, i.indices64) = (null(), WIDE.as_ptr());
        deny(AMLA_ERROR_TOO_SHORT, &|i| (wide(i), i.indices_len -= 1).1);
        deny(AMLA_ERROR_TOO_SHORT, &|i| (wide(i), i.strides[0] += 1).1);
        for struct_size in [size_of::<Indices>() - 8, offset_of!(Indices, indices64) - 8] {
            let struct_size = struct_size as u32;
            deny(AMLA_ERROR_STRUCT_SIZE, &|i| i.struct_size = struct_size);
        }
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
    let short: [Change; 9] = [
        ("o", |w| w.output.o_len -= 1),
        ("o", |w| w.output.o_len = 0),
        ("lse", |w| w.output.lse_len -= 1),
        ("lse", |w| w.output.lse_len = 0),
        ("o", |w| w.output.o_strides[0] += 1),
        ("lse", |w| w.output.lse_strides[0] += 1),
        ("max_logits", |w| w.output.max_logits_len -= 1),
        ("max_logits", |w| w.output.max_logits_len = 0),
        ("max_logits", |w| {
            (w.output.lse, w.output.lse_len) = (null_mut(), 0);
            w.output.lse_strides[0] += 1;
        }),
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

/// Outputs, strides and places that version 1 hadn't.
#[test]
fn what_is_new_is_denied() {
    let mut denials = Denials(0);
    let apart = World::apart as fn() -> Box<World>;
    let sparse = World::sparse as fn() -> Box<World>;
    let mut deny = |world, who, status, argument: &str, change: &dyn Fn(&mut World)| {
        denials.expect(world, who, status, argument, change);
    };
    let outputs: [Wrong<World>; 6] = [
        (AMLA_ERROR_NULL_POINTER, "max_logits", |w| {
            w.output.max_logits = null_mut()
        }),
        (AMLA_ERROR_MISALIGNED, "max_logits", |w| {
            w.output.max_logits = w.output.max_logits.wrapping_byte_add(1)
        }),
        (AMLA_ERROR_BAD_EXTENT, "max_logits", |w| {
            w.output.max_logits_len = usize::MAX
        }),
        (AMLA_ERROR_ALIASED, "lse", |w| {
            w.output.max_logits = w.output.lse
        }),
        (AMLA_ERROR_ALIASED, "max_logits", |w| {
            w.output.max_logits = w.sink.as_ptr().cast_mut()
        }),
        (AMLA_ERROR_OVERLAP, "max_logits", |w| {
            (w.output.lse, w.output.lse_len) = (null_mut(), 0);
            w.output.lse_strides[0] = 0;
        }),
    ];
    for (status, argument, change) in outputs {
        deny(apart, Who::Output, status, argument, &change);
    }
    for stride in [2, 3, usize::MAX / 2] {
        let status = AMLA_ERROR_WRONG_LENGTH;
        deny(apart, Who::All, status, "cache_seqlens", &|w| {
            w.call.flags = AMLA_LIST_STRIDES;
            w.call.cache_seqlens_stride = stride;
        });
        deny(sparse, Who::All, status, "topk_length", &|w| {
            w.call.flags = AMLA_LIST_STRIDES;
            w.indices.topk_length_strides = [stride, 0];
        });
        deny(sparse, Who::All, status, "extra_topk_length", &|w| {
            w.call.flags = AMLA_LIST_STRIDES;
            w.indices.topk_length_strides = [1, 0];
            w.extra_indices.topk_length_strides = [stride, 0];
        });
    }
    deny(apart, Who::All, AMLA_ERROR_TOO_SHORT, "block_table", &|w| {
        w.call.flags = AMLA_LIST_STRIDES;
        w.call.cache_seqlens_stride = 1;
        (w.call.block_table, w.call.block_table_len) = (w.table.as_ptr(), B);
        (w.call.max_blocks, w.call.page_size, w.call.pages) = (1, S_K, B);
        w.call.block_table_stride = 2;
    });
    for offset in [1, ROPE + 1, usize::MAX] {
        deny(apart, Who::All, AMLA_ERROR_CONFLICT, "v_offset", &|w| {
            w.call.v_offset = offset
        });
        deny(apart, Who::All, AMLA_ERROR_OUT_OF_RANGE, "v_offset", &|w| {
            w.call.v = null();
            w.call.v_offset = offset;
        });
    }
    for offset in [ROPE + 1, usize::MAX] {
        deny(
            sparse,
            Who::All,
            AMLA_ERROR_OUT_OF_RANGE,
            "v_offset",
            &|w| w.call.v_offset = offset,
        );
    }
    deny(sparse, Who::All, AMLA_ERROR_CONFLICT, "extra_kv", &|w| {
        w.call.v = &raw const w.kv
    });
    for stride in [1, usize::MAX] {
        // Of the one KV head the stride isn't looked at.
        let mut w = World::sparse();
        w.indices.stride_h_kv = stride;
        let (mut size, mut detail) = (0, detail());
        // SAFETY: all pointers are this test's.
        let got = unsafe { amla_plan_size(w.linked(), &mut size, &mut detail) };
        assert_eq!(got, AMLA_OK);
    }
    println!("{} calls denied", denials.0);
    assert!(denials.0 > 100);
}

/// Faults in lists, in pages and in arguments that belong to each other.
#[test]
fn lists_are_denied() {
    let mut denials = Denials(0);
    let apart = World::apart as fn() -> Box<World>;
    let mut deny = |status, argument: &str, change: &dyn Fn(&mut World)| {
        denials.expect(apart, Who::All, status, argument, change);
    };
    fn paged(w: &mut World) {
        (w.call.block_table, w.call.block_table_len) = (w.table.as_ptr(), B);
        (w.call.max_blocks, w.call.page_size, w.call.pages) = (1, S_K, B);
    }
    let cases: [Wrong<World>; 15] = [
        (AMLA_ERROR_HEADS, "h_q", |w| {
            (w.call.h_q, w.call.h_kv) = (3, 2)
        }),
        (AMLA_ERROR_SEQLEN, "cache_seqlens", |w| w.lens[1] = 4),
        (AMLA_ERROR_SEQLEN, "cache_seqlens", |w| w.lens[0] = -1),
        (AMLA_ERROR_WRONG_LENGTH, "cache_seqlens", |w| {
            w.call.cache_seqlens_len = 1
        }),
        (AMLA_ERROR_PAGE, "block_table", |w| {
            (paged(w), w.table[0] = 2).1
        }),
        (AMLA_ERROR_PAGE, "block_table", |w| {
            (paged(w), w.table[1] = -1).1
        }),
        (AMLA_ERROR_NULL_POINTER, "block_table", |w| {
            (paged(w), w.call.block_table = null()).1
        }),
        (AMLA_ERROR_UNKNOWN_VALUE, "page_size", |w| {
            (paged(w), w.call.page_size = 0).1
        }),
        (AMLA_ERROR_INDPTR, "kv_indptr", |w| {
            w.indptr = vec![0, 4, 3];
            (w.call.kv_indptr, w.call.kv_indptr_len) = (w.indptr.as_ptr(), 3);
        }),
        (AMLA_ERROR_UNKNOWN_VALUE, "page_size", |w| w.call.pages = 3),
        (AMLA_ERROR_UNKNOWN_VALUE, "page_size", |w| {
            w.call.max_blocks = 1
        }),
        (AMLA_ERROR_INDPTR, "q_indptr", |w| {
            w.indptr = vec![0, 2, 1];
            (w.call.q_indptr, w.call.q_indptr_len) = (w.indptr.as_ptr(), 3);
        }),
        (AMLA_ERROR_CONFLICT, "block_table", |w| {
            paged(w);
            (w.call.kv_indptr, w.call.kv_indptr_len) = (w.indptr.as_ptr(), 3);
        }),
        (AMLA_ERROR_WRONG_LENGTH, "sink", |w| w.call.sink_len = 1),
        (AMLA_ERROR_NULL_POINTER, "sparse", |w| {
            w.call.extra = &raw const w.extra
        }),
    ];
    for (status, argument, change) in cases {
        deny(status, argument, &change);
    }
    let sparse = World::sparse as fn() -> Box<World>;
    let unsupported = AMLA_ERROR_UNSUPPORTED_DIMS;
    denials.expect(sparse, Who::All, unsupported, "d_qk", |w| w.call.d_v = 60);
    denials.expect(
        sparse,
        Who::All,
        AMLA_ERROR_TOPK_LENGTH,
        "topk_length",
        |w| w.counts[0] = TOPK as i32 + 1,
    );
    for name in [c"", c"avx1024"] {
        let status = AMLA_ERROR_BACKEND_UNAVAILABLE;
        denials.expect(apart, Who::All, status, "backend", |w| {
            w.call.backend = name.as_ptr()
        });
    }
}

/// Of a pair of ends that can't be, the detail has the one at fault.
#[test]
fn a_negative_start_is_told() {
    for (ends, value) in [([-1, 1, 2], -1), ([0, 2, 1], 2)] {
        let mut w = World::apart();
        w.indptr = ends.to_vec();
        (w.call.q_indptr, w.call.q_indptr_len) = (w.indptr.as_ptr(), 3);
        let (mut size, mut detail) = (0, detail());
        // SAFETY: all pointers are this test's.
        let got = unsafe { amla_plan_size(&w.call, &mut size, &mut detail) };
        assert_eq!((got, detail.value), (AMLA_ERROR_INDPTR, value));
    }
}
