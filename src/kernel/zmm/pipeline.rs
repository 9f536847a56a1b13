//! V1's probabilities of a block without masks, as a pipeline: what a group of keys begins with and another one ends with go beside
//! the polynomial of a third (`docs/adr/0032`).
//!
//! Inlined into a backend's feature-gated functions, as everything over [`Simd`].

use super::*;
use crate::kernel::simd::{EXP2, lanes};
use crate::tile::BLOCK_KEYS;

/// Pairs of keys of a group: with three, registers don't last.
const PAIRS: usize = 2;
/// Vectors of a group.
const KEYS: usize = 2 * PAIRS;
/// No key: as many as a block has.
#[expect(clippy::cast_precision_loss, reason = "a small number")]
const NONE: f32 = BLOCK_KEYS as f32;

/// A block's keys by number.
static NUMBERS: [i32; BLOCK_KEYS] = {
    let mut numbers = [0; BLOCK_KEYS];
    let mut i = 1;
    while i < BLOCK_KEYS {
        numbers[i] = numbers[i - 1] + 1;
        i += 1;
    }
    numbers
};

/// [`Simd::exponentiate`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "all that V1 goes by")]
pub fn exponentiate<K: Keep<Zmm>>(
    zmm: Zmm,
    keep: K,
    call: &Softmax<'_>,
    [max, offset]: [__m512; 2],
    v: usize,
    s: &STile,
    p: &mut L0a,
    block: &mut Block<Zmm>,
    beside: &mut impl FnMut(),
) -> usize {
    let groups = &s.0.as_chunks().0[..call.keys / KEYS];
    let mut numbered = groups.iter().zip(NUMBERS.as_chunks().0);
    let Some(mut next) = numbered.next() else {
        return 0;
    };
    let zero = zmm.splat(0.0);
    let scale = zmm.splat(call.scale);
    // The latest key of those that have the largest score, for those who keep what rounding takes from it: the others are below it,
    // and so negative.
    let mut latest = zmm.splat_i32(i32::MIN);
    // The exponents of the group that comes next, and those rounded.
    let (mut t, mut j) = ([zero; KEYS], [zero; KEYS]);
    // P of the group before, and of none before the first, in whose place that then comes.
    let mut prob = [zero; KEYS];
    below(zmm, next.0, v, max, &mut t);
    if !K::WEIGHED {
        find(zmm, next.1, &t, &mut latest);
    }
    scaled(zmm, scale, offset, &mut t);
    round(zmm, &t, &mut j);
    for group in 0..groups.len() {
        // Behind the last group comes that one again, which changes nothing.
        next = numbered.next().unwrap_or(next);
        let (mut r, exponent) = ([zero; KEYS], j);
        let mut normal = [0; KEYS];
        for i in 0..KEYS {
            r[i] = zmm.sub(t[i], j[i]);
            normal[i] = zmm.not_below(t[i], zmm.splat(EXP2_MIN));
        }
        zmm.in_order(&mut r);
        let mut y = [zmm.splat(EXP2[4]); KEYS];
        step(zmm, EXP2[3], &r, &mut y);
        sum(zmm, &prob, &mut block.sums);
        take(
            zmm,
            keep,
            &prob,
            p,
            group.saturating_sub(1),
            v,
            &mut block.kept,
        );
        zmm.in_order(&mut y);
        step(zmm, EXP2[2], &r, &mut y);
        below(zmm, next.0, v, max, &mut t);
        zmm.in_order(&mut y);
        zmm.in_order(&mut t);
        step(zmm, EXP2[1], &r, &mut y);
        if !K::WEIGHED {
            find(zmm, next.1, &t, &mut latest);
        }
        scaled(zmm, scale, offset, &mut t);
        zmm.in_order(&mut y);
        zmm.in_order(&mut t);
        step(zmm, EXP2[0], &r, &mut y);
        zmm.in_order(&mut y);
        step(zmm, 1.0, &r, &mut y);
        round(zmm, &t, &mut j);
        zmm.in_order(&mut y);
        zmm.in_order(&mut j);
        for i in 0..KEYS {
            prob[i] = zmm.scale(normal[i], y[i], exponent[i]);
        }
        zmm.in_order(&mut prob);
        for _ in 0..PAIRS {
            beside();
        }
    }
    sum(zmm, &prob, &mut block.sums);
    take(zmm, keep, &prob, p, groups.len() - 1, v, &mut block.kept);
    if K::WEIGHED {
        return PAIRS * groups.len();
    }
    // Next to NaN, which may be above any key, another one's residual is NaN all the same.
    let found = zmm.to_f32(zmm.max_i32(latest, zmm.splat_i32(0)));
    let none = zmm.not_below(found, zmm.splat(NONE));
    block.key = zmm.select(none, zero, found);
    PAIRS * groups.len()
}

/// How far scores are below the largest.
#[inline(always)]
fn below(
    zmm: Zmm,
    group: &[[f32; PANEL_ROWS]; KEYS],
    v: usize,
    max: __m512,
    t: &mut [__m512; KEYS],
) {
    for i in 0..KEYS {
        t[i] = zmm.sub(zmm.load(&lanes::<Zmm>(&group[i])[v]), max);
    }
}

#[inline(always)]
fn find(zmm: Zmm, numbers: &[i32; KEYS], below: &[__m512; KEYS], latest: &mut __m512i) {
    for i in 0..KEYS {
        let key = zmm.splat_i32(numbers[i]);
        *latest = zmm.max_i32(*latest, zmm.or(zmm.to_bits(below[i]), key));
    }
    let mut found = [zmm.from_bits(*latest)];
    zmm.in_order(&mut found);
    *latest = zmm.to_bits(found[0]);
}

#[inline(always)]
fn scaled(zmm: Zmm, scale: __m512, offset: __m512, t: &mut [__m512; KEYS]) {
    for t in t {
        *t = zmm.mul_add(*t, scale, offset);
    }
}

#[inline(always)]
fn round(zmm: Zmm, t: &[__m512; KEYS], j: &mut [__m512; KEYS]) {
    for i in 0..KEYS {
        j[i] = zmm.round(t[i]);
    }
}

/// A step of [`Simd::exp2_fraction`].
#[inline(always)]
fn step(zmm: Zmm, c: f32, r: &[__m512; KEYS], y: &mut [__m512; KEYS]) {
    for i in 0..KEYS {
        y[i] = zmm.mul_add(y[i], r[i], zmm.splat(c));
    }
}

#[inline(always)]
fn sum(zmm: Zmm, prob: &[__m512; KEYS], sums: &mut [__m512; 2]) {
    for i in 0..KEYS {
        sums[i % 2] = zmm.add(sums[i % 2], prob[i]);
    }
    zmm.in_order(sums);
}

#[inline(always)]
fn take<K: Keep<Zmm>>(
    zmm: Zmm,
    keep: K,
    prob: &[__m512; KEYS],
    p: &mut L0a,
    group: usize,
    v: usize,
    kept: &mut __m512,
) {
    for i in 0..PAIRS {
        let pair = [prob[2 * i], prob[2 * i + 1]];
        if let Some(sum) = keep.keep::<false>(zmm, pair, p, [PAIRS * group + i, v], Some(*kept)) {
            *kept = sum;
        }
    }
}
