//! Any processor: the `wide` crate's vectors, which become whatever the build's
//! target features allow (SSE2 in a default x86-64 build, NEON on aarch64).
//!
//! | kernel | register tile ([`super::fp32`]) | peak model |
//! |---|---|---|
//! | C1, C2 | 4 keys, 6 rows x 8 lanes (6 x 16 with AVX) | a multiply and an add per lane, fused where the build has FMA |

use bytemuck::cast;
use core::ops::Range;

use half::bf16;
use wide::{f32x8, i32x8};

use super::advance::Advance;
use super::fp32::element::{Element, splits};
use super::fp32::{self, backend, by_dtype};
use super::simd::{self, Simd, methods};
use super::{Columns, Epilogue, Kernel, Pv, Qk, Skipped, Softmax, prefetch, scalar, softmax};
use crate::bits::Increment;
use crate::format::{Dtype, Row};
use crate::problem::Precision;
use crate::tile::{L0a, L0b, ORow, QPanel, RowState, STile};

const LANES: usize = 8;

/// Needs nothing, so that anyone may hold it.
#[derive(Clone, Copy)]
pub struct Portable;

impl Advance for Portable {}

impl Simd for Portable {
    type Lanes = [f32; LANES];
    type F32 = f32x8;
    type I32 = i32x8;
    type Mask = f32x8;

    methods! {
        safe;
        splat(x: f32) -> f32x8 = f32x8::splat(x);
        load(from: &[f32; LANES]) -> f32x8 = f32x8::new(*from);
        store(x: f32x8, to: &mut [f32; LANES]) = *to = x.to_array();
        add(a: f32x8, b: f32x8) -> f32x8 = a + b;
        sub(a: f32x8, b: f32x8) -> f32x8 = a - b;
        mul(a: f32x8, b: f32x8) -> f32x8 = a * b;
        mul_add(a: f32x8, b: f32x8, c: f32x8) -> f32x8 = a.mul_add(b, c);
        // False for NaN.
        max(a: f32x8, b: f32x8) -> f32x8 = a.simd_gt(b).bitselect(a, b);
        not_ge(a: f32x8, b: f32x8) -> f32x8 = !a.simd_ge(b);
        any(mask: f32x8) -> bool = mask.any();
        select(mask: f32x8, yes: f32x8, no: f32x8) -> f32x8 = mask.bitselect(yes, no);
        mask_of(rows: u64, v: usize) -> f32x8 = {
            const BITS: i32x8 = i32x8::new([1, 2, 4, 8, 16, 32, 64, 128]);
            let rows = i32x8::splat(i32::from(rows.to_le_bytes()[v]));
            cast((rows & BITS).simd_eq(BITS))
        };

        splat_i32(x: i32) -> i32x8 = i32x8::splat(x);
        load_pairs(row: &[bf16]) -> i32x8 = cast::<[bf16; 2 * LANES], _>(row.as_chunks().0[0]);
        to_bits(x: f32x8) -> i32x8 = cast(x);
        from_bits(x: i32x8) -> f32x8 = cast(x);
        add_i32(a: i32x8, b: i32x8) -> i32x8 = a + b;
        and(a: i32x8, b: i32x8) -> i32x8 = a & b;
        or(a: i32x8, b: i32x8) -> i32x8 = a | b;
        shl<const N: u32>(x: i32x8) -> i32x8 = x << N;
        gt_i32(a: i32x8, b: i32x8) -> f32x8 = cast(a.simd_gt(b));

        interleave(a: f32x8, b: f32x8) -> [f32x8; 2] = {
            let (a, b) = (a.to_array(), b.to_array());
            let half = |from: usize| {
                let mut out = [0.0; LANES];
                for i in 0..LANES / 2 {
                    out[2 * i] = a[from + i];
                    out[2 * i + 1] = b[from + i];
                }
                f32x8::new(out)
            };
            [half(0), half(LANES / 2)]
        };
        deinterleave(a: f32x8, b: f32x8) -> [f32x8; 2] = {
            let (a, b) = (a.to_array(), b.to_array());
            let half = |from: usize| {
                let mut out = [0.0; LANES];
                for i in 0..LANES / 2 {
                    out[i] = a[from + 2 * i];
                    out[LANES / 2 + i] = b[from + 2 * i];
                }
                f32x8::new(out)
            };
            [half(0), half(1)]
        };
        sum_lanes(x: [f32x8; 4]) -> [f32; 4] = x.map(f32x8::reduce_add);
        prefetch(_at: *const bf16) = ();
    }
}

#[cfg(target_feature = "avx")]
backend! {
    Portable;
    pack: scalar;
    c1: _ => 6 x 2;
    c2: 2;
    prefetching: 32;
    fused: 16;
    fused c1: 1: 4, 2: 4, 3: 2, 4: 2, 5: 2, 6: 2;
    fused c2: 1: 4, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1;
    chains: 12;
}

#[cfg(not(target_feature = "avx"))]
backend! {
    Portable;
    pack: scalar;
    c1: _ => 4 x 1;
    c2: 1;
    prefetching: 32;
    fused: 12;
    fused c1: 1: 4, 2: 2, 3: 2;
    fused c2: 1: 2, 2: 1;
    chains: 6;
}
