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
pub fn near(reference: __m512) -> __mmask16 {
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

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::problem::Precision;

    const INFINITY: f32 = f32::INFINITY;

    /// All of these with all of those, row by row.
    fn cases() -> impl Iterator<Item = [f32; 3]> {
        let references = [
            -INFINITY,
            -8e6,
            -300.0,
            -127.0,
            -2.0,
            0.0,
            3.0,
            100.0,
            4_194_303.0,
            5e6,
        ];
        let scores = [
            -INFINITY,
            -1e38,
            -5e6,
            -250.5,
            -2.0,
            -1.25,
            0.0,
            1e-3,
            2.0,
            2.5,
            99.0,
            4_194_302.5,
            1e9,
            3e38,
            INFINITY,
        ];
        let sums = [
            0.0,
            1e-40,
            f32::MIN_POSITIVE,
            1e-37,
            0.7,
            3e5,
            1e38,
            INFINITY,
            f32::NAN,
        ];
        references.into_iter().flat_map(move |reference| {
            scores
                .into_iter()
                .flat_map(move |score| sums.map(|sum| [reference, score, sum]))
        })
    }

    #[test]
    fn vectors_move_as_rows_do() {
        let Some(zmm) = Zmm::new() else {
            std::println!("not run: this processor has no AVX-512");
            return;
        };
        let cases: Vec<_> = cases().collect();
        for rescale in [Rescale::Exact, Rescale::Compensated] {
            for scale in [1.0, 0.37, -2.0] {
                for rows in [1, 15, 16, 17, 47, PANEL_ROWS]
                    .into_iter()
                    .filter(|&rows| rows <= PANEL_ROWS)
                {
                    for cases in cases.chunks(rows) {
                        let call = Softmax {
                            rows: cases.len(),
                            keys: 2,
                            scale,
                            mask: None,
                            rescale,
                            precision: Precision::Bf16,
                            prefetch: &[],
                        };
                        let mut state = RowState::START;
                        let mut scores = [7.5; PANEL_ROWS];
                        let mut increment = [77; PANEL_ROWS];
                        for (r, &[reference, score, sum]) in cases.iter().enumerate() {
                            state.reference[r] = reference;
                            state.sum[r] = sum;
                            state.rounded_sum[r] = 0.75 * sum;
                            scores[r] = score;
                        }
                        let (mut want_state, mut want) = (state, Bases::NONE);
                        let mut want_increment = increment;
                        advance(
                            &call,
                            0..call.rows,
                            &scores,
                            &mut want_state,
                            &mut want_increment,
                            &mut want,
                        );
                        let got = zmm.advance(&call, &scores, &mut state, &mut increment);
                        assert_eq!(increment[..cases.len()], want_increment[..cases.len()]);
                        for (r, case) in cases.iter().enumerate() {
                            let all = |bases: &Bases, state: &RowState| {
                                [
                                    bases.max[r],
                                    bases.offset[r],
                                    state.reference[r],
                                    state.sum[r],
                                    state.rounded_sum[r],
                                    state.c[r],
                                ]
                                .map(f32::to_bits)
                            };
                            assert_eq!(
                                all(&got, &state),
                                all(&want, &want_state),
                                "{rescale:?} {scale} {rows} {r} {case:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}
