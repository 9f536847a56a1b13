//! [`v1::advance`] where no reference moves, as after most blocks: 16 rows at once.

use super::*;
use crate::isa::v1::Bases;
use crate::isa::{Maxima, Softmax};
use crate::problem::Rescale;
use crate::tile::RowState;

/// What P of a vector of rows is relative to: the largest scores and how far these are above the reference, as
/// [`Bases`] has them; or nothing, where a reference moves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub fn follow(
    call: &Softmax<'_>,
    rows: __mmask16,
    score: __m512,
    reference: __m512,
) -> Option<[__m512; 2]> {
    let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
    let scale = _mm512_set1_ps(call.scale);
    let some = _mm512_mask_cmp_ps_mask::<_CMP_NEQ_UQ>(rows, score, lowest);
    let scaled = _mm512_mask_mul_ps(lowest, some, score, scale);
    // Also where a finite score leaves FP32 when scaled.
    let some = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(scaled, lowest);
    let follows = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(scaled, reference);
    // Beyond 2^22 FP32 has no fraction left.
    let size = _mm512_abs_ps(reference);
    let near = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, _mm512_set1_ps(4_194_304.0));
    if some & !(follows & near) != 0 {
        return None;
    }
    let offset = match call.rescale {
        // Rounded once: the product is exact.
        Rescale::Exact => _mm512_fmsub_ps(score, scale, reference),
        Rescale::Compensated => _mm512_sub_ps(scaled, reference),
    };
    Some([
        _mm512_maskz_mov_ps(some, score),
        _mm512_mask_mov_ps(lowest, some, offset),
    ])
}

/// The same of a panel's rows. Where none moves their state is as it has to be.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub fn panel(zmm: Zmm, call: &Softmax<'_>, max: &Maxima, state: &mut RowState) -> Option<Bases> {
    let mut bases = Bases::NONE;
    let rows = u64::MAX >> (64 - call.rows);
    let vectors = call.rows.div_ceil(LANES);
    for (v, max) in max.as_chunks().0.iter().take(vectors).enumerate() {
        let reference = zmm.load(&state.reference.as_chunks().0[v]);
        let [max, offset] = follow(call, zmm.mask_of(rows, v), zmm.load(max), reference)?;
        zmm.store(max, &mut bases.max.as_chunks_mut().0[v]);
        zmm.store(offset, &mut bases.offset.as_chunks_mut().0[v]);
    }
    if call.rescale == Rescale::Compensated {
        bases.factor = state.factor;
    }
    state.increment[..vectors * LANES].fill(0);
    Some(bases)
}
