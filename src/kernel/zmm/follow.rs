//! [`advance`], 16 rows at once: in exact mode, and in the other where no reference moves, as after most blocks.
#![allow(unsafe_code, reason = "stores, and feature-gated calls")]

use super::vectors::{LANES, Zmm};
use crate::bits::HEADROOM;
use crate::kernel::advance::{Advance, Bases, Maxima, advance};
use crate::kernel::arch::*;
use crate::kernel::call::Softmax;
use crate::kernel::simd::Simd;
use crate::problem::Rescale;
use crate::tile::{PANEL_ROWS, RowState};

/// Scores from which on FP32 has no fraction left in log2 units, nor the vectors here.
const FAR: f32 = 4_194_304.0;
/// The exponent by which any number becomes zero.
const LOWEST: f32 = -255.0;

/// Moves the references of a panel's vector `v` to the block's largest scores and brings the sums along. What P is relative to:
/// the largest scores, and how far these are above the reference, as [`Bases`] has them.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn follow(
    zmm: Zmm,
    call: &Softmax<'_>,
    v: usize,
    score: __m512,
    state: &mut RowState,
    increment: &mut [i32; PANEL_ROWS],
) -> [__m512; 2] {
    let rows = zmm.mask_of(u64::MAX >> (64 - call.rows), v);
    let reference = zmm.load(&state.reference.as_chunks().0[v]);
    let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
    let scale = _mm512_set1_ps(call.scale);
    let some = _mm512_mask_cmp_ps_mask::<_CMP_NEQ_UQ>(rows, score, lowest);
    let scaled = _mm512_mask_mul_ps(lowest, some, score, scale);
    // Also where a finite score leaves FP32 when scaled.
    let some = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(scaled, lowest);
    let exact = call.rescale == Rescale::Exact;
    // References of exact mode are integers: a number above one stays so when rounded up.
    let moves = some & !_mm512_cmp_ps_mask::<_CMP_LE_OQ>(scaled, reference);
    let above = _mm512_roundscale_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(scaled);
    let above = _mm512_add_ps(above, _mm512_set1_ps(HEADROOM));
    let next = _mm512_mask_mov_ps(reference, moves, above);
    if some & !near(next) != 0 || moves != 0 && !exact {
        return one_by_one(zmm, call, v, score, state, increment);
    }
    let mut moved = _mm512_setzero_si512();
    if moves != 0 {
        let n = _mm512_max_ps(_mm512_sub_ps(reference, next), _mm512_set1_ps(LOWEST));
        moved = _mm512_slli_epi32::<23>(_mm512_maskz_cvtps_epi32(moves, n));
        zmm.store(next, &mut state.reference.as_chunks_mut().0[v]);
        for sum in [&mut state.sum, &mut state.rounded_sum] {
            let sum = &mut sum.as_chunks_mut().0[v];
            let old = zmm.load(sum);
            let new = _mm512_scalef_ps(old, n);
            let normal = zmm.not_below(new, _mm512_set1_ps(f32::MIN_POSITIVE));
            let new = _mm512_maskz_mov_ps(normal, new);
            zmm.store(_mm512_mask_mov_ps(old, moves, new), sum);
        }
    }
    let increment: &mut [i32; LANES] = &mut increment.as_chunks_mut().0[v];
    // SAFETY: 16 i32 are 64 bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(increment.as_mut_ptr().cast(), moved) };
    let offset = if exact {
        // Rounded once: the product is exact.
        _mm512_fmsub_ps(score, scale, next)
    } else {
        _mm512_sub_ps(scaled, next)
    };
    [
        _mm512_maskz_mov_ps(some, score),
        _mm512_mask_mov_ps(lowest, some, offset),
    ]
}

/// Which references are numbers that FP32 has fractions around.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn near(reference: __m512) -> __mmask16 {
    _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(reference), _mm512_set1_ps(FAR))
}

#[cold]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn one_by_one(
    zmm: Zmm,
    call: &Softmax<'_>,
    v: usize,
    score: __m512,
    state: &mut RowState,
    increment: &mut [i32; PANEL_ROWS],
) -> [__m512; 2] {
    let mut max = [f32::NEG_INFINITY; PANEL_ROWS];
    zmm.store(score, &mut max.as_chunks_mut().0[v]);
    let mut bases = Bases::NONE;
    let rows = v * LANES..call.rows.min((v + 1) * LANES);
    advance(call, rows, &max, state, increment, &mut bases);
    [bases.max, bases.offset].map(|base| zmm.load(&base.as_chunks().0[v]))
}

impl Advance for Zmm {
    #[inline(always)]
    fn advance(
        self,
        call: &Softmax<'_>,
        max: &Maxima,
        state: &mut RowState,
        increment: &mut [i32; PANEL_ROWS],
    ) -> Bases {
        // SAFETY: the token proves the features.
        unsafe { panel(self, call, max, state, increment) }
    }
}

/// [`follow`] of a panel.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn panel(
    zmm: Zmm,
    call: &Softmax<'_>,
    max: &Maxima,
    state: &mut RowState,
    increment: &mut [i32; PANEL_ROWS],
) -> Bases {
    let mut bases = Bases::NONE;
    for v in 0..call.rows.div_ceil(LANES) {
        let score = zmm.load(&max.as_chunks().0[v]);
        let [max, offset] = follow(zmm, call, v, score, state, increment);
        zmm.store(max, &mut bases.max.as_chunks_mut().0[v]);
        zmm.store(offset, &mut bases.offset.as_chunks_mut().0[v]);
    }
    if call.rescale == Rescale::Compensated {
        bases.factor = state.factor;
    }
    bases
}
