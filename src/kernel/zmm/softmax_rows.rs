//! V1 of a step of a fused kernel ([`Kernel::fused`](super::super::Kernel::fused)), with 16 of a row's keys in the lanes of
//! each vector.
#![allow(unsafe_code, reason = "loads by way of pointers to rows")]

use half::bf16;

use super::follow;
use super::vectors::{LANES, Zmm};
use crate::bits::Increment;
use crate::kernel::arch::*;
use crate::kernel::call::{FUSED_MULTIPLE, Softmax};
use crate::kernel::scalar;
use crate::kernel::simd::{self, Simd};
use crate::problem::Rescale;
use crate::tile::{PANEL_ROWS, RowState, STRIP};

/// The largest group: V1's results have a lane for each row.
pub const ROWS: usize = LANES;
/// Keys of a vector; a step has some of these.
pub const KEYS: usize = LANES;
/// Keys whose scores are loaded at once, and rows whose maxima and sums are found at once.
pub const GROUP: usize = 4;

const _: () = assert!(FUSED_MULTIPLE.is_multiple_of(KEYS));

/// Scores, or P: `V` vectors of keys, row by row.
#[repr(align(64))]
pub struct ByRow<const V: usize>(pub [[[f32; KEYS]; V]; ROWS]);

/// The results of V1 beside P.
pub struct Known<const V: usize> {
    pub bases: Bases,
    pub seen: [[__mmask16; V]; ROWS],
    /// The sums of P, row by row, as it is before the compensated mode's factor.
    pub sums: __m512,
    /// The same with those of all keys before.
    pub totals: __m512,
}

/// V1 of the keys from `first` on, `len` of them, but for the sums of rounded P.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
#[expect(clippy::too_many_arguments, reason = "inlined")]
pub fn softmax<const V: usize>(
    zmm: Zmm,
    call: &Softmax<'_>,
    first: usize,
    len: usize,
    s: &ByRow<V>,
    p: &mut ByRow<V>,
    state: &mut RowState,
    increment: &mut [i32; PANEL_ROWS],
) -> Known<V> {
    let seen = seen(call, first, len);
    let lowest = zmm.splat(f32::NEG_INFINITY);
    // Rows beyond the call's compute on stale scores, and don't count.
    let fours = call.rows.div_ceil(GROUP);
    let mut max = lowest;
    for i in 0..fours {
        let mut largest = [lowest; GROUP];
        for (r, largest) in (GROUP * i..).zip(&mut largest) {
            for ((s, p), &seen) in s.0[r].iter().zip(&mut p.0[r]).zip(&seen[r]) {
                let scores = zmm.load_fours(s);
                zmm.store(scores, p);
                // The second where the first is NaN.
                *largest = _mm512_mask_max_ps(*largest, seen, scores, *largest);
            }
        }
        max = four(max, i, zmm.max_lanes(largest));
    }
    let bases = follow(zmm, call, max, state, increment);
    let rows = zmm.mask_of(u64::MAX >> (64 - call.rows), 0);
    let reference = zmm.load(&state.reference.as_chunks().0[0]);
    let near = match call.rescale {
        Rescale::Exact => rows & follow::near(reference),
        Rescale::Compensated => 0,
    };
    // Nothing of rows beyond is above theirs.
    let references = _mm512_mask_mov_ps(zmm.splat(f32::INFINITY), near, reference);
    // The processor foresees that no reference moves, and then doesn't wait for the largest scores.
    let sums = if near == rows {
        exponentiate::<V, true>(zmm, call, &seen, near, references, &bases, p)
    } else {
        exponentiate_apart(zmm, call, &seen, near, references, &bases, p)
    };
    let sum = &mut state.sum.as_chunks_mut().0[0];
    let totals = _mm512_add_ps(zmm.load(sum), sums);
    zmm.store(totals, sum);
    Known {
        bases,
        seen,
        sums,
        totals,
    }
}

/// P of all keys and its sums. For rows whose reference is `near`, or for all, it is relative to the reference itself: in exact mode an
/// integer, so that it is rounded once.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn exponentiate<const V: usize, const ALL: bool>(
    zmm: Zmm,
    call: &Softmax<'_>,
    seen: &[[__mmask16; V]; ROWS],
    near: __mmask16,
    references: __m512,
    bases: &Bases,
    p: &mut ByRow<V>,
) -> __m512 {
    let exact = ALL || call.rescale == Rescale::Exact;
    let scale = zmm.splat(call.scale);
    let mut sums = zmm.splat(0.0);
    for i in 0..call.rows.div_ceil(GROUP) {
        let mut probs = [zmm.splat(0.0); GROUP];
        for (r, sum) in (GROUP * i..).zip(&mut probs) {
            // Not by way of memory: a load of a part of what was just stored waits until that has left for L1d.
            let lane = _mm512_set1_epi32(i32::try_from(r).unwrap_or(0));
            let reference = _mm512_permutexvar_ps(lane, references);
            for (v, (p, &seen)) in p.0[r].iter_mut().zip(&seen[r]).enumerate() {
                let t = if ALL || near >> r & 1 != 0 {
                    _mm512_fmsub_ps(zmm.load(p), scale, reference)
                } else {
                    let below = _mm512_sub_ps(zmm.load(p), zmm.splat(bases.max[r]));
                    _mm512_fmadd_ps(below, scale, zmm.splat(bases.offset[r]))
                };
                let prob = _mm512_maskz_mov_ps(seen, zmm.exp2(t));
                let taken = if exact {
                    prob
                } else {
                    _mm512_mul_ps(prob, zmm.splat(bases.factor[r]))
                };
                zmm.store(taken, p);
                *sum = if v == 0 {
                    prob
                } else {
                    _mm512_add_ps(*sum, prob)
                };
            }
        }
        sums = four(sums, i, zmm.sum_lanes(probs));
    }
    sums
}

/// The same where not all rows are near. Not inlined: a choice between both would wait for the largest scores.
#[inline(never)]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn exponentiate_apart<const V: usize>(
    zmm: Zmm,
    call: &Softmax<'_>,
    seen: &[[__mmask16; V]; ROWS],
    near: __mmask16,
    references: __m512,
    bases: &Bases,
    p: &mut ByRow<V>,
) -> __m512 {
    exponentiate::<V, false>(zmm, call, seen, near, references, bases, p)
}

/// Adds to the sums of rounded P.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn add_rounded(zmm: Zmm, sums: __m512, state: &mut RowState) {
    let sum = &mut state.rounded_sum.as_chunks_mut().0[0];
    zmm.store(_mm512_add_ps(zmm.load(sum), sums), sum);
}

/// Rescales rows of strips of O, strip after strip; rare.
#[cold]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn rescale(zmm: Zmm, increment: &[i32], o: &mut [[f32; STRIP]]) {
    for o in o.chunks_mut(increment.len()) {
        for (o, &increment) in o.iter_mut().zip(increment).filter(|(_, n)| **n != 0) {
            simd::rescale(zmm, o, Increment::from_bits_clamped(increment));
        }
    }
}

/// [`scalar::finite`] of a strip.
///
/// # Safety
/// The values are valid for reads of the strip's columns and of those before.
#[cold]
pub unsafe fn finite(values: &[[*const bf16; KEYS]], strip: usize) -> bool {
    let columns = strip * STRIP..(strip + 1) * STRIP;
    let values = values.as_flattened().iter().map(|&value| {
        // SAFETY: the caller's promise; they aren't written while the call runs.
        unsafe { core::slice::from_raw_parts(value, columns.end) }
    });
    scalar::finite(values, &columns)
}

/// Sums or maxima of all rows, with those of the `i`th four put among them.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn four(rows: __m512, i: usize, four: [f32; GROUP]) -> __m512 {
    const QUARTER: __mmask16 = (1 << GROUP) - 1;
    _mm512_mask_broadcast_f32x4(rows, QUARTER << (GROUP * i), quarter(four))
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn quarter([a, b, c, d]: [f32; 4]) -> __m128 {
    _mm_setr_ps(a, b, c, d)
}

/// [`crate::kernel::advance::Bases`] of a fused group's rows.
pub struct Bases {
    pub max: [f32; LANES],
    pub offset: [f32; LANES],
    pub factor: [f32; LANES],
}

/// [`follow::follow`].
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn follow(
    zmm: Zmm,
    call: &Softmax<'_>,
    score: __m512,
    state: &mut RowState,
    increment: &mut [i32; PANEL_ROWS],
) -> Bases {
    let [max, offset] = follow::follow(zmm, call, 0, score, state, increment);
    let mut bases = Bases {
        max: [0.0; LANES],
        offset: [0.0; LANES],
        factor: *state.factor.first_chunk().unwrap_or(&[1.0; _]),
    };
    zmm.store(max, &mut bases.max);
    zmm.store(offset, &mut bases.offset);
    bases
}

/// Which of a step's keys each row sees.
fn seen<const V: usize>(call: &Softmax<'_>, first: usize, len: usize) -> [[__mmask16; V]; ROWS] {
    let Some(mask) = call.mask else {
        let all = core::array::from_fn(|v| {
            let beyond = ((v + 1) * KEYS).saturating_sub(len);
            __mmask16::MAX.unbounded_shr(u32::try_from(beyond).unwrap_or(u32::MAX))
        });
        return [all; _];
    };
    let mut seen = [[0; V]; ROWS];
    for (k, rows) in mask[first..][..len].iter().enumerate() {
        for (r, seen) in seen.iter_mut().enumerate().take(call.rows) {
            seen[k / KEYS] |= __mmask16::from(rows >> r & 1 != 0) << (k % KEYS);
        }
    }
    seen
}
