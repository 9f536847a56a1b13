//! V1 over any vectors: maximum, reference, probabilities, sums, residuals.

use core::ops::Range;

use super::simd::{Simd, lanes, lanes_mut, pairs_mut, split};
use super::{Mask, Maxima, Softmax};
use crate::bits::{
    HEADROOM, Increment, bf16_round, bf16_widen, compensation, difference, mul_pow2_f32,
};
use crate::problem::{Precision, Rescale};
use crate::tile::{BLOCK_KEYS, BLOCK_PAIRS, L0a, PANEL_ROWS, PTile, Residuals, RowState, STile};

/// How C2 takes P.
pub trait Keep<S: Simd>: Copy {
    /// Whether C2 takes it as V1 computes it, so that there is no rounding to make up for.
    const WHOLE: bool;
    /// Whether the largest P of a row and block is a power of two in exact mode with P in one part, so that it is whole as it is, and
    /// C2 weighs its products (`docs/adr/0035`).
    const WEIGHED: bool = false;
    /// The share of the row's sum so far from which on what rounding takes from the block's largest P is kept.
    const COUNTS: f32 = 0.0;

    /// Keeps two keys' probabilities, of a pair and a vector of the rows, with `LOW` what
    /// their rounding takes as well, and adds what was kept to `sum` if there is one.
    fn keep<const LOW: bool>(
        self,
        simd: S,
        prob: [S::F32; 2],
        p: &mut L0a,
        at: [usize; 2],
        sum: Option<S::F32>,
    ) -> Option<S::F32>;
}

/// As FP32.
#[derive(Clone, Copy)]
pub struct Whole;

impl<S: Simd> Keep<S> for Whole {
    const WHOLE: bool = true;

    #[inline(always)]
    fn keep<const LOW: bool>(
        self,
        simd: S,
        [even, odd]: [S::F32; 2],
        p: &mut L0a,
        [pair, v]: [usize; 2],
        sum: Option<S::F32>,
    ) -> Option<S::F32> {
        const HALF: usize = BLOCK_PAIRS / 2;
        let [first, second] = p.whole_mut();
        let half = if pair < HALF { first } else { second };
        let [odds, evens] = &mut half[pair % HALF];
        simd.store(odd, &mut lanes_mut::<S>(odds)[v]);
        simd.store(even, &mut lanes_mut::<S>(evens)[v]);
        sum
    }
}

#[cfg_attr(
    not(all(target_arch = "x86_64", target_feature = "sse2")),
    allow(dead_code, reason = "for backends of other processors")
)]
/// As pairs of BF16, by the processor's own instructions.
pub trait Rounding<S: Simd>: Copy {
    /// Two keys' probabilities, rounded to nearest even, as pairs; NaN stays NaN.
    fn round(self, simd: S, prob: [S::F32; 2]) -> S::I32;
    /// `sum` and both of each pair.
    fn add(self, simd: S, sum: S::F32, pairs: S::I32) -> S::F32;

    /// Where pair `pair` of vector `v` of the rows lies.
    #[inline(always)]
    fn place(p: &mut PTile, [pair, v]: [usize; 2]) -> &mut S::Lanes {
        &mut pairs_mut::<S>(&mut p.0[pair])[v]
    }
}

#[cfg_attr(
    not(all(target_arch = "x86_64", target_feature = "sse2")),
    allow(dead_code, reason = "for backends of other processors")
)]
/// Rounded. From what share of a row's sum on its largest P is in two parts: a part in `RARE`; or if that is 0, the largest is whole
/// and C2 weighs its products.
#[derive(Clone, Copy)]
pub struct Pairs<R, const RARE: u32 = 0>(pub R);

impl<S: Simd, R: Rounding<S>, const RARE: u32> Keep<S> for Pairs<R, RARE> {
    const WHOLE: bool = false;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    const COUNTS: f32 = if RARE == 0 { 0.0 } else { 1.0 / RARE as f32 };
    const WEIGHED: bool = RARE == 0;

    #[inline(always)]
    fn keep<const LOW: bool>(
        self,
        simd: S,
        prob: [S::F32; 2],
        p: &mut L0a,
        at: [usize; 2],
        mut sum: Option<S::F32>,
    ) -> Option<S::F32> {
        let high = self.0.round(simd, prob);
        simd.store(simd.from_bits(high), R::place(&mut p.high, at));
        if let Some(sum) = &mut sum {
            *sum = self.0.add(simd, *sum, high);
        }
        if LOW {
            let used = split(simd, high);
            let left = [simd.sub(prob[0], used[0]), simd.sub(prob[1], used[1])];
            let low = self.0.round(simd, left);
            simd.store(simd.from_bits(low), R::place(&mut p.low, at));
            if let Some(sum) = &mut sum {
                *sum = self.0.add(simd, *sum, low);
            }
        }
        sum
    }
}

/// [`super::Kernel::softmax`], and `beside` after each pair and vector.
#[inline(always)]
pub fn softmax<S: Simd, K: Keep<S>>(
    simd: S,
    keep: K,
    call: &Softmax<'_>,
    s: &STile,
    p: &mut L0a,
    state: &mut RowState,
    mut beside: impl FnMut(),
) {
    let vectors = call.rows.div_ceil(S::LANES);
    let max = match (call.maxima, call.mask) {
        (Some(maxima), None) => *maxima,
        _ => block_maxima(simd, call, s),
    };
    let bases = simd.advance(call, &max, state);
    let mut largest = Largest {
        p: [0.0; PANEL_ROWS],
        key: [0.0; PANEL_ROWS],
    };
    if !K::WHOLE {
        p.weights = [1.0; _];
    }
    if K::WEIGHED {
        p.residuals.p = [0; _];
    }
    for v in 0..vectors {
        let vector = Vector {
            simd,
            keep,
            call,
            bases: &bases,
            v,
        };
        match (call.mask, call.precision) {
            (None, Precision::Bf16) => {
                vector.exponentiate::<false, false>(s, p, state, &mut largest, &mut beside)
            }
            (None, Precision::Bf16x2) => {
                vector.exponentiate::<false, true>(s, p, state, &mut largest, &mut beside)
            }
            (Some(_), Precision::Bf16) => {
                vector.exponentiate::<true, false>(s, p, state, &mut largest, &mut beside)
            }
            (Some(_), Precision::Bf16x2) => {
                vector.exponentiate::<true, true>(s, p, state, &mut largest, &mut beside)
            }
        }
    }
    if !K::WHOLE && !K::WEIGHED && call.precision == Precision::Bf16 {
        // With the compensation the row's largest P is exact, and no other is kept.
        largest.keep_residuals(K::COUNTS, &mut p.residuals, &mut state.rounded_sum);
    }
}

/// Who sees what, where all see all.
static ALL: Mask = [u64::MAX; BLOCK_KEYS];

#[inline(always)]
fn block_maxima<S: Simd>(simd: S, call: &Softmax<'_>, s: &STile) -> Maxima {
    let mut maxima = [f32::NEG_INFINITY; PANEL_ROWS];
    let vectors = call.rows.div_ceil(S::LANES);
    for (v, max) in lanes_mut::<S>(&mut maxima)
        .iter_mut()
        .take(vectors)
        .enumerate()
    {
        let largest = match call.mask {
            None => block_max::<S, false>(simd, call, s, v),
            Some(_) => block_max::<S, true>(simd, call, s, v),
        };
        simd.store(largest, max);
    }
    maxima
}

#[inline(always)]
fn block_max<S: Simd, const MASKED: bool>(
    simd: S,
    call: &Softmax<'_>,
    s: &STile,
    v: usize,
) -> S::F32 {
    // Four chains, so that the latency of the maximum is not what limits.
    const CHAINS: usize = 4;
    let mask = call.mask.unwrap_or(&ALL);
    let mut max = [simd.splat(f32::NEG_INFINITY); CHAINS];
    let groups = s.0[..call.keys].chunks(CHAINS).zip(mask.chunks(CHAINS));
    for (s, mask) in groups {
        for ((s, mask), max) in s.iter().zip(mask).zip(&mut max) {
            let mut s = simd.load(&lanes::<S>(s)[v]);
            if MASKED {
                s = simd.select(simd.mask_of(*mask, v), s, *max);
            }
            *max = simd.max(s, *max);
        }
    }
    let [a, b, c, d] = max;
    simd.max(simd.max(a, b), simd.max(c, d))
}

/// What V1 gathers of a block, of a vector of rows.
pub struct Block<S: Simd> {
    /// Of P: even keys, odd keys.
    pub sums: [S::F32; 2],
    /// Of what C2 takes of P.
    pub kept: S::F32,
    /// The last key of those that have the largest score.
    pub key: S::F32,
}

/// A vector of the panel's rows.
struct Vector<'a, S, K> {
    simd: S,
    keep: K,
    call: &'a Softmax<'a>,
    bases: &'a Bases,
    v: usize,
}

impl<S: Simd, K: Keep<S>> Vector<'_, S, K> {
    /// P, pair by pair, and the row sums.
    #[inline(always)]
    fn exponentiate<const MASKED: bool, const LOW: bool>(
        &self,
        s: &STile,
        p: &mut L0a,
        state: &mut RowState,
        largest: &mut Largest,
        beside: &mut impl FnMut(),
    ) {
        let Self {
            simd,
            keep,
            call,
            bases,
            v,
        } = *self;
        let mask = call.mask.unwrap_or(&ALL);
        let scale = simd.splat(call.scale);
        let max = simd.load(&lanes::<S>(&bases.max)[v]);
        let mut offset = simd.load(&lanes::<S>(&bases.offset)[v]);
        let factor = simd.load(&lanes::<S>(&bases.factor)[v]);
        let (zero, lowest) = (simd.splat(0.0), simd.splat(f32::NEG_INFINITY));
        let exact = call.rescale == Rescale::Exact;
        let rounded = !K::WHOLE && !LOW && exact;
        let weighed = K::WEIGHED && rounded;
        let tracked = rounded && !weighed;
        let mut weight = simd.splat(1.0);
        if weighed {
            [offset, weight] = weigh(simd, offset);
            simd.store(weight, &mut lanes_mut::<S>(&mut p.weights)[v]);
        }
        let mut block = Block {
            sums: [zero; 2],
            kept: zero,
            key: zero,
        };
        let mut done = 0;
        if rounded && !MASKED {
            done = simd.exponentiate(keep, call, [max, offset], v, s, p, &mut block, beside);
        }
        let Block {
            mut sums, mut key, ..
        } = block;
        let mut kept = exact.then_some(block.kept);
        let one = simd.splat(1.0);
        #[expect(clippy::cast_precision_loss, reason = "keys of a block")]
        let mut index = simd.splat((2 * done) as f32);
        for (pair, s) in s.0.as_chunks::<2>().0[..call.keys.div_ceil(2)]
            .iter()
            .enumerate()
            .skip(done)
        {
            let mut prob = [zero; 2];
            let mut below = [zero; 2];
            for i in 0..2 {
                below[i] = simd.sub(simd.load(&lanes::<S>(&s[i])[v]), max);
                prob[i] = simd.exp2(simd.mul_add(below[i], scale, offset));
                if MASKED {
                    let seen = simd.mask_of(mask[2 * pair + i], v);
                    prob[i] = simd.select(seen, prob[i], zero);
                    below[i] = simd.select(seen, below[i], lowest);
                }
            }
            if 2 * pair + 1 == call.keys {
                // Behind the last key is what an earlier block left.
                prob[1] = zero;
                below[1] = lowest;
            }
            for i in 0..2 {
                if tracked {
                    key = simd.select(simd.not_ge(below[i], zero), key, index);
                    index = simd.add(index, one);
                }
                sums[i] = simd.add(sums[i], prob[i]);
                if !exact {
                    prob[i] = simd.mul(prob[i], factor);
                }
            }
            kept = keep.keep::<LOW>(simd, prob, p, [pair, v], kept);
            beside();
        }
        let sum = simd.add(sums[0], sums[1]);
        let kept = match kept {
            Some(kept) if !K::WHOLE => kept,
            // Nothing was rounded, or nobody asks.
            _ => sum,
        };
        for (state, sum) in [(&mut state.sum, sum), (&mut state.rounded_sum, kept)] {
            let state = &mut lanes_mut::<S>(state)[v];
            let before = simd.load(state);
            let total = if weighed {
                simd.mul_add(sum, weight, before)
            } else {
                simd.add(before, sum)
            };
            simd.store(total, state);
        }
        if tracked {
            simd.store(simd.exp2(offset), &mut lanes_mut::<S>(&mut largest.p)[v]);
            simd.store(key, &mut lanes_mut::<S>(&mut largest.key)[v]);
        }
    }
}

/// How V1 turns scores into probabilities:
/// `P = exp2((s - max) * scale + offset) * factor`.
///
/// The difference comes before the product: it is exact for the scores that
/// matter, so that large ones lose nothing, with or without a fused multiply-add.
pub struct Bases {
    /// The block's largest score, unscaled; 0 where there is none.
    pub max: [f32; PANEL_ROWS],
    /// That score less the reference, in log2 units; -inf where there is none.
    pub offset: [f32; PANEL_ROWS],
    /// S16 of the compensated mode; ones in the exact one.
    pub factor: [f32; PANEL_ROWS],
}

impl Bases {
    /// Of rows that see no key.
    pub const NONE: Self = Self {
        max: [0.0; PANEL_ROWS],
        offset: [f32::NEG_INFINITY; PANEL_ROWS],
        factor: [1.0; PANEL_ROWS],
    };
}

/// Offsets as whole numbers, so that the largest P is a power of two and rounding takes nothing from it, and what products
/// count for then: 1 to 2, as they might overflow, were they larger than they count, where they count for nothing.
#[inline(always)]
pub fn weigh<S: Simd>(simd: S, offset: S::F32) -> [S::F32; 2] {
    /// By which any P becomes zero.
    const LEAST: f32 = -256.0;
    /// Added to a number of some hundreds and taken away again, it leaves a whole one.
    const WHOLE: f32 = 12_582_912.0;
    let near = simd.max(offset, simd.splat(LEAST));
    let above = simd.add(simd.sub(near, simd.splat(0.5)), simd.splat(WHOLE));
    let whole = simd.sub(above, simd.splat(WHOLE));
    // Rows that see none, or none above -inf.
    let none = simd.not_ge(offset, simd.splat(f32::MIN));
    [
        simd.select(none, simd.splat(f32::NEG_INFINITY), whole),
        simd.exp2(simd.sub(offset, whole)),
    ]
}

/// Moves the running reference to the block's maximum and brings the sums along
/// (Algorithm 2 lines 5-9, 11, 12; `docs/algorithm.md` for the exact mode).
///
/// `max` holds the largest unscaled score of each row that it sees, NaN ignored; `bases` are [`Bases::NONE`].
#[inline(always)]
pub fn advance(
    call: &Softmax<'_>,
    rows: Range<usize>,
    max: &Maxima,
    state: &mut RowState,
    bases: &mut Bases,
) {
    for r in rows {
        let score = max[r];
        // Not the product alone: -inf * 0 would be NaN.
        let max = if score == f32::NEG_INFINITY {
            score
        } else {
            score * call.scale
        };
        // Also where a finite score leaves FP32 when scaled.
        let none = max == f32::NEG_INFINITY;
        let old = state.reference[r];
        state.increment[r] = 0;
        match call.rescale {
            Rescale::Exact => {
                let block = libm::ceilf(max);
                if block > old {
                    let reference = block + HEADROOM;
                    let n = difference(old, reference);
                    state.reference[r] = reference;
                    state.increment[r] = Increment::pow2(n).bits();
                    state.sum[r] = mul_pow2_f32(state.sum[r], n);
                    state.rounded_sum[r] = mul_pow2_f32(state.rounded_sum[r], n);
                }
            }
            Rescale::Compensated => {
                if max > old {
                    // Lines 6-9 in base 2: n = -rint(m), S32 = 2^(n + m).
                    let e = libm::rintf(max);
                    let s32 = libm::exp2f(max - e);
                    // A pair needs no scale that BF16 can hold: c is 1 then.
                    let s16 = match call.precision {
                        Precision::Bf16 => bf16_widen(bf16_round(s32)),
                        Precision::Bf16x2 => s32,
                    };
                    let c = s16 / s32;
                    let n = difference(libm::rintf(old), e);
                    let epsilon = compensation(state.c[r], c);
                    state.reference[r] = max;
                    state.increment[r] = Increment::compensated(n, epsilon).bits();
                    state.sum[r] *= libm::exp2f(old - max);
                    state.c[r] = c;
                    state.factor[r] = s16;
                }
                bases.factor[r] = state.factor[r];
            }
        }
        if !none {
            bases.max[r] = score;
            bases.offset[r] = match call.rescale {
                Rescale::Exact => offset(score, max, call.scale, state.reference[r]),
                // Relative to the rounded product: the row's largest P is 1.
                Rescale::Compensated => max - state.reference[r],
            };
        }
    }
}

/// `score * scale - reference`, where `max` is that product rounded.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
fn offset(score: f32, max: f32, scale: f32, reference: f32) -> f32 {
    if reference.abs() < 4_194_304.0 {
        // In f64 the product is exact.
        (f64::from(score) * f64::from(scale) - f64::from(reference)) as f32
    } else {
        // Beyond 2^22 FP32 has no fraction left; what counts is that the largest
        // P doesn't leave the range of FP32.
        max - reference
    }
}

/// The largest probability of each row in a block.
struct Largest {
    p: [f32; PANEL_ROWS],
    /// Its key: the last, where several have it.
    key: [f32; PANEL_ROWS],
}

impl Largest {
    /// Keeps what rounding took from them, and adds it to the sums of what is kept.
    #[inline(always)]
    fn keep_residuals(&self, counts: f32, residuals: &mut Residuals, sum: &mut [f32; PANEL_ROWS]) {
        // Added to a small whole number, it leaves that in the low bits.
        const WHOLE: f32 = 8_388_608.0;
        for (r, sum) in sum.iter_mut().enumerate() {
            let (p, key) = (self.p[r], (self.key[r] + WHOLE).to_bits() & 0xff);
            let residual = if p < counts * *sum {
                0
            } else {
                bf16_round(p - bf16_widen(bf16_round(p)))
            };
            residuals.pair[r] = key / 2;
            residuals.p[r] = u32::from(residual) << (16 * (key % 2));
            *sum += bf16_widen(residual);
        }
    }
}
