//! What is refused of tensors.

use std::ptr::null;

use crate::types::*;
use crate::world::*;

/// A tensor of a world: its name, where it is, where the call points to it.
type Access = (
    &'static str,
    fn() -> Box<World>,
    fn(&mut World) -> &mut Tensor,
    fn(&mut World) -> &mut *const Tensor,
);

const TENSORS: [Access; 6] = [
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
        for dtype in [0, 10, 11, 255, 1 << 16, u32::MAX] {
            deny(AMLA_ERROR_UNKNOWN_VALUE, &dtypes, &|t| t.dtype = dtype);
        }
        for dtype in [AMLA_DTYPE_FP8, AMLA_DTYPE_MODEL1] {
            deny(AMLA_ERROR_FORMAT, name, &|t| t.dtype = dtype);
        }
        for dtype in [
            AMLA_DTYPE_BF16,
            AMLA_DTYPE_F16,
            AMLA_DTYPE_F32,
            AMLA_DTYPE_Q8_0,
            AMLA_DTYPE_Q4_0,
            AMLA_DTYPE_INT8,
            AMLA_DTYPE_E4M3,
        ] {
            // What lengths and strides count.
            let unit = match dtype {
                AMLA_DTYPE_Q8_0 | AMLA_DTYPE_Q4_0 => 32,
                _ => 1,
            };
            let set = move |t: &mut Tensor| {
                t.dtype = dtype;
                t.len /= unit;
                t.strides = t.strides.map(|stride| stride / unit);
            };
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
            for stride in [usize::MAX, usize::MAX - ROPE / unit + 1] {
                deny(AMLA_ERROR_OVERFLOW, name, &|t| {
                    (set(t), t.strides[0] = stride).1
                });
            }
            deny(AMLA_ERROR_TOO_SHORT, name, &|t| {
                (set(t), t.strides[0] += 1).1
            });
            if dtype != AMLA_DTYPE_INT8 && dtype != AMLA_DTYPE_E4M3 {
                deny(AMLA_ERROR_MISALIGNED, name, &|t| {
                    (set(t), t.data = odd(t.data)).1
                });
            }
            if dtype == AMLA_DTYPE_F32 {
                deny(AMLA_ERROR_MISALIGNED, name, &|t| {
                    (set(t), t.data = odd(odd(t.data))).1
                });
            }
        }
        // Strides that count numbers, not blocks; lengths that count bytes are too long to notice.
        for dtype in [AMLA_DTYPE_Q8_0, AMLA_DTYPE_Q4_0] {
            deny(AMLA_ERROR_TOO_SHORT, name, &|t| {
                t.dtype = dtype;
                t.len /= 32;
            });
        }
        // Rows that end within a block.
        for dtype in [AMLA_DTYPE_Q8_0, AMLA_DTYPE_Q4_0] {
            denials.expect(world, Who::All, AMLA_ERROR_FORMAT, name, |w| {
                at(w).dtype = dtype;
                at(w).len /= 32;
                let rope = name.ends_with("rope");
                (w.call.d_qk, w.call.d_v) = match name {
                    "extra_kv" => (D_QK - 16, D_V),
                    _ if rope => (D_V + 48, D_V),
                    _ => (D_QK - 16, D_V - 16),
                };
            });
        }
        let mut deny = |status, argument: &str, change: &dyn Fn(&mut Tensor)| {
            denials.expect(world, Who::All, status, argument, |w| change(at(w)));
        };
        for dtype in [AMLA_DTYPE_INT8, AMLA_DTYPE_E4M3] {
            let int8 = |t: &mut Tensor| t.dtype = dtype;
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
        }
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
