//! V1 over any vectors: maximum, reference, probabilities, sums, residuals.

use super::advance::{Advance, Bases, Maxima};
use super::call::{Mask, Softmax};
use super::simd::{Simd, lanes, lanes_mut, pairs_mut, split};
use crate::bits::{bf16_round, bf16_to_f32};
use crate::problem::{Precision, Rescale};
use crate::tile::{BLOCK_KEYS, BLOCK_PAIRS, L0a, PANEL_ROWS, PTile, Residuals, RowState, STile};

/// How P is stored for C2.
pub trait StoreP<S: Simd>: Copy {
    /// Whether it is stored in FP32, unrounded.
    const UNROUNDED: bool;
    /// Whether the largest P of a row and block is a power of two in exact mode with P in one part: rounding
    /// leaves it alone, and C2's products have a factor ([`L0a::weights`]).
    const WEIGHTED: bool = false;
    /// From this fraction of the row's sum so far on, the largest P of a block has a residual, which C2 adds.
    const RESIDUAL_FRACTION: f32 = 0.0;

    /// Stores two keys' probabilities, of a pair and a vector of the rows, with `LOW` also what
    /// their rounding took, and adds what was stored to `sum` if there is one.
    fn store<const LOW: bool>(
        self,
        simd: S,
        prob: [S::F32; 2],
        p: &mut L0a,
        at: [usize; 2],
        sum: Option<S::F32>,
    ) -> Option<S::F32>;
}

/// P in FP32.
#[derive(Clone, Copy)]
pub struct StoreFp32;

impl<S: Simd> StoreP<S> for StoreFp32 {
    const UNROUNDED: bool = true;

    #[inline(always)]
    fn store<const LOW: bool>(
        self,
        simd: S,
        [even, odd]: [S::F32; 2],
        p: &mut L0a,
        [pair, v]: [usize; 2],
        sum: Option<S::F32>,
    ) -> Option<S::F32> {
        const HALF: usize = BLOCK_PAIRS / 2;
        let [first, second] = p.fp32_mut();
        let half = if pair < HALF { first } else { second };
        let [odds, evens] = &mut half[pair % HALF];
        simd.store(odd, &mut lanes_mut::<S>(odds)[v]);
        simd.store(even, &mut lanes_mut::<S>(evens)[v]);
        sum
    }
}

/// Pairs of BF16, by the processor's own instructions.
#[allow(dead_code, reason = "for backends that not every build has")]
pub trait RoundPairs<S: Simd>: Copy {
    /// Two keys' probabilities, rounded to nearest even, as pairs; NaN stays NaN.
    fn round(self, simd: S, prob: [S::F32; 2]) -> S::I32;
    /// `sum` and both of each pair.
    fn add(self, simd: S, sum: S::F32, pairs: S::I32) -> S::F32;

    /// The memory of pair `pair` of vector `v` of the rows.
    #[inline(always)]
    fn slot(p: &mut PTile, [pair, v]: [usize; 2]) -> &mut S::Lanes {
        &mut pairs_mut::<S>(&mut p.0[pair])[v]
    }
}

/// P in BF16. `RESIDUAL` is one over [`StoreP::RESIDUAL_FRACTION`]; 0 makes P [weighted](StoreP::WEIGHTED).
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "for backends that not every build has")]
pub struct StoreBf16<R, const RESIDUAL: u32 = 0>(pub R);

impl<S: Simd, R: RoundPairs<S>, const RESIDUAL: u32> StoreP<S> for StoreBf16<R, RESIDUAL> {
    const UNROUNDED: bool = false;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    const RESIDUAL_FRACTION: f32 = if RESIDUAL == 0 {
        0.0
    } else {
        1.0 / RESIDUAL as f32
    };
    const WEIGHTED: bool = RESIDUAL == 0;

    #[inline(always)]
    fn store<const LOW: bool>(
        self,
        simd: S,
        prob: [S::F32; 2],
        p: &mut L0a,
        at: [usize; 2],
        mut sum: Option<S::F32>,
    ) -> Option<S::F32> {
        let high = self.0.round(simd, prob);
        simd.store(simd.from_bits(high), R::slot(&mut p.high, at));
        if let Some(sum) = &mut sum {
            *sum = self.0.add(simd, *sum, high);
        }
        if LOW {
            let used = split(simd, high);
            let rest = [simd.sub(prob[0], used[0]), simd.sub(prob[1], used[1])];
            let low = self.0.round(simd, rest);
            simd.store(simd.from_bits(low), R::slot(&mut p.low, at));
            if let Some(sum) = &mut sum {
                *sum = self.0.add(simd, *sum, low);
            }
        }
        sum
    }
}

/// [`super::Kernel::softmax`], with `beside` after each pair and vector. `max` has the largest scores if C1
/// found them.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined everywhere")]
pub fn softmax<S: Advance, T: StoreP<S>>(
    simd: S,
    to: T,
    call: &Softmax<'_>,
    max: Option<&Maxima>,
    s: &STile,
    p: &mut L0a,
    state: &mut RowState,
    mut beside: impl FnMut(),
) {
    let vectors = call.rows.div_ceil(S::LANES);
    let max = match (max, call.mask) {
        (Some(max), None) => *max,
        _ => block_maxima(simd, call, s),
    };
    let so_far = lanes_mut::<S>(&mut state.max).iter_mut();
    for (so_far, max) in so_far.zip(lanes::<S>(&max)).take(vectors) {
        // NaN doesn't count.
        simd.store(simd.max(simd.load(max), simd.load(so_far)), so_far);
    }
    let bases = simd.advance(call, &max, state, &mut p.increment);
    let mut largest = Largest {
        p: [0.0; PANEL_ROWS],
        key: [0.0; PANEL_ROWS],
    };
    if !T::UNROUNDED {
        p.weights = [1.0; _];
    }
    if T::WEIGHTED {
        p.residuals.p = [0; _];
    }
    for v in 0..vectors {
        let vector = Vector {
            simd,
            to,
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
    if !T::UNROUNDED && !T::WEIGHTED && call.precision == Precision::Bf16 {
        // With the compensation the row's largest P is exact, and no residual is needed.
        largest.store_residuals(
            T::RESIDUAL_FRACTION,
            &mut p.residuals,
            &mut state.rounded_sum,
        );
    }
}

/// All rows see all keys.
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

/// Keys whose exponentials are computed side by side, so that latency doesn't limit.
const KEYS: usize = 4;

/// A vector of the panel's rows.
struct Vector<'a, S, T> {
    simd: S,
    to: T,
    call: &'a Softmax<'a>,
    bases: &'a Bases,
    v: usize,
}

impl<S: Simd, T: StoreP<S>> Vector<'_, S, T> {
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
            to,
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
        let rounded = !T::UNROUNDED && !LOW && exact;
        let weighted = T::WEIGHTED && rounded;
        let tracked = rounded && !weighted;
        let mut weight = simd.splat(1.0);
        if weighted {
            [offset, weight] = weights(simd, offset);
            simd.store(weight, &mut lanes_mut::<S>(&mut p.weights)[v]);
        }
        let (mut sums, mut last) = ([zero; 2], zero);
        let mut stored = exact.then_some(zero);
        let one = simd.splat(1.0);
        let mut index = zero;
        let groups = s.0.as_chunks::<KEYS>().0[..call.keys.div_ceil(KEYS)].iter();
        for (group, s) in groups.enumerate() {
            let (mut below, mut t) = ([zero; KEYS], [zero; KEYS]);
            for i in 0..KEYS {
                below[i] = simd.sub(simd.load(&lanes::<S>(&s[i])[v]), max);
                t[i] = simd.mul_add(below[i], scale, offset);
            }
            let mut prob = simd.exp2_each(t);
            for i in 0..KEYS {
                let key = KEYS * group + i;
                if MASKED {
                    let seen = simd.mask_of(mask[key], v);
                    prob[i] = simd.select(seen, prob[i], zero);
                    below[i] = simd.select(seen, below[i], lowest);
                }
                if key >= call.keys {
                    // Behind the last key are an earlier block's scores.
                    prob[i] = zero;
                    below[i] = lowest;
                }
                if tracked {
                    last = simd.select(simd.not_ge(below[i], zero), last, index);
                    index = simd.add(index, one);
                }
                sums[i % 2] = simd.add(sums[i % 2], prob[i]);
                if !exact {
                    prob[i] = simd.mul(prob[i], factor);
                }
            }
            for i in 0..KEYS / 2 {
                let (pair, prob) = (KEYS / 2 * group + i, [prob[2 * i], prob[2 * i + 1]]);
                stored = to.store::<LOW>(simd, prob, p, [pair, v], stored);
                beside();
            }
        }
        let sum = simd.add(sums[0], sums[1]);
        let stored = match stored {
            Some(stored) if !T::UNROUNDED => stored,
            // Nothing was rounded, or the mode has no use for it.
            _ => sum,
        };
        for (state, sum) in [(&mut state.sum, sum), (&mut state.rounded_sum, stored)] {
            let state = &mut lanes_mut::<S>(state)[v];
            let before = simd.load(state);
            let total = if weighted {
                simd.mul_add(sum, weight, before)
            } else {
                simd.add(before, sum)
            };
            simd.store(total, state);
        }
        if tracked {
            simd.store(simd.exp2(offset), &mut lanes_mut::<S>(&mut largest.p)[v]);
            simd.store(last, &mut lanes_mut::<S>(&mut largest.key)[v]);
        }
    }
}

/// Offsets as integers, so that the largest P is a power of two and rounding leaves it alone, and the factors of
/// products: 1 to 2, since P above its true size might overflow.
#[inline(always)]
pub fn weights<S: Simd>(simd: S, offset: S::F32) -> [S::F32; 2] {
    /// Makes any P zero.
    const LEAST: f32 = -256.0;
    /// Added to a number of some hundreds and subtracted again, it leaves an integer.
    const ROUND: f32 = 12_582_912.0;
    let near = simd.max(offset, simd.splat(LEAST));
    let above = simd.add(simd.sub(near, simd.splat(0.5)), simd.splat(ROUND));
    let integer = simd.sub(above, simd.splat(ROUND));
    // Rows that see no key, or none above -inf.
    let none = simd.not_ge(offset, simd.splat(f32::MIN));
    [
        simd.select(none, simd.splat(f32::NEG_INFINITY), integer),
        simd.exp2(simd.sub(offset, integer)),
    ]
}

/// The largest probability of each row in a block.
struct Largest {
    p: [f32; PANEL_ROWS],
    /// Its key: the last, where several have it.
    key: [f32; PANEL_ROWS],
}

impl Largest {
    /// Stores their residuals, and adds them to the sums of what is stored.
    #[inline(always)]
    fn store_residuals(
        &self,
        fraction: f32,
        residuals: &mut Residuals,
        sum: &mut [f32; PANEL_ROWS],
    ) {
        // Added to a small integer, it leaves that in the low bits.
        const SHIFT: f32 = 8_388_608.0;
        for (r, sum) in sum.iter_mut().enumerate() {
            let (p, key) = (self.p[r], (self.key[r] + SHIFT).to_bits() & 0xff);
            let residual = if p < fraction * *sum {
                0
            } else {
                bf16_round(p - bf16_to_f32(bf16_round(p)))
            };
            residuals.pair[r] = key / 2;
            residuals.p[r] = u32::from(residual) << (16 * (key % 2));
            *sum += bf16_to_f32(residual);
        }
    }
}
