//! Very few rows, where memory limits: C1, V1 and C2 of 16 keys, then of the next 16.
//!
//! What memory delivers must not wait for anything, so keys come to L1d once and stay there until C2 is done
//! with them: a core has few slots for lines on their way, and those from L2 would take them from those from
//! memory. In all of C1 and C2, lines of rows to come are asked for one after the other, in the order that they lie
//! there; and once more a few keys later, since a core drops what it has no slot for (`docs/adr/0026`).
//!
//! | stage | register tile | streams |
//! |---|---|---|
//! | C1 | 4 keys x 1 to 4 rows, features in the lanes | Q row-major, K from the cache itself |
//! | V1 | 4 rows, a row's 16 keys in the lanes | S, and P by row |
//! | C2 | 1 to 4 rows x 4 vectors of 16 columns | V from the cache itself, P by broadcast |
//!
//! Meanwhile O's columns lie as V's halves interleave.

use super::few::{PIECES, interleave, interleaved, restore};
use super::*;
use crate::isa::ahead::LINE;
use crate::isa::{Mask, STREAM_KEYS, Streamed, Streams};
use crate::problem::Rescale;

/// Up to so many rows.
pub(super) const ROWS: usize = 4;
/// Keys of a step: as many as a vector has lanes.
const KEYS: usize = LANES;
/// Pairs of them.
const PAIRS: usize = KEYS / 2;
/// Keys of a register tile of C1.
const TILE_KEYS: usize = 4;
/// A step asks for the keys that lie so many behind its own: with more, those at hand would leave L1d.
const LEAD: usize = 20;
/// And once more for those that lie so many behind.
const AGAIN: usize = 14;
/// Of those keys C1 asks for so many, and C2 for the others.
const C1_ASKS: usize = KEYS / 2;

const _: () = assert!(STREAM_KEYS >= BLOCK_KEYS + LEAD + KEYS);

/// Scores, row by row.
type Scores = [[f32; KEYS]; ROWS];

/// P of a step, as C2 takes it.
struct Probs {
    /// Rounded, row by row, and what that took.
    parts: [[[u32; PAIRS]; ROWS]; 2],
    /// Parts that count.
    len: usize,
    /// The rows of whose largest that counts too, in its pair.
    carried: u32,
    residuals: [Residual; ROWS],
}

/// A word of the second part, alone.
#[derive(Clone, Copy)]
struct Residual {
    pair: usize,
    p: u32,
}

/// [`Isa::stream`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn stream<const D_QK: usize, const D_V: usize>(
    zmm: Zmm,
    call: &Softmax<'_>,
    block: &Streams<'_, D_QK, D_V>,
    from: usize,
    p: &mut L0a,
    state: &mut RowState,
    o: &mut [OStrip],
) -> Streamed {
    let q = block.q.0.as_flattened();
    let o = &mut o[..D_V / STRIP];
    interleave(o, call.rows);
    let mut streamed = Streamed::ALL;
    for first in (from..call.keys).step_by(KEYS) {
        let len = KEYS.min(call.keys - first);
        let step = Step {
            zmm,
            rows: call.rows,
            pairs: len.div_ceil(2),
            half_lines: D_QK / LINE / 2,
            keys: sixteen(block.keys, first),
            asked: [
                sixteen(block.asked, first + LEAD),
                sixteen(block.asked, first + AGAIN),
            ],
        };
        let mut s = [[0.0; KEYS]; ROWS];
        step.qk(q, &mut s);
        let probs = softmax(zmm, call, first, len, &s, state);
        if state.increment[..call.rows].iter().any(|&n| n != 0) {
            advance(zmm, &state.increment, o, call.rows);
        }
        let values = sixteen(block.values, first);
        let all = step.pv(&probs, values, o);
        if all != 0 {
            probs.spread(call.rows, p);
            streamed = Streamed {
                keys: first..first + len,
                left: Left { all, tail: 0 },
            };
            break;
        }
    }
    restore(o, call.rows);
    streamed
}

/// A step's rows.
fn sixteen<T>(rows: &[T; STREAM_KEYS], first: usize) -> &[T; KEYS] {
    &rows[first..].as_chunks().0[0]
}

/// Moves O to where the reference moved; rare.
#[cold]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn advance(zmm: Zmm, increment: &[i32; PANEL_ROWS], o: &mut [OStrip], rows: usize) {
    for o in o {
        for (o, &increment) in o.iter_mut().zip(&increment[..rows]) {
            rescale(zmm, o, Increment::from_bits_clamped(increment));
        }
    }
}

/// A step's keys and those to come.
struct Step<'a, const D_QK: usize> {
    zmm: Zmm,
    rows: usize,
    /// Of keys.
    pairs: usize,
    /// Half of the lines of a row, where the compiler doesn't see it.
    half_lines: usize,
    keys: &'a [&'a [bf16; D_QK]; KEYS],
    /// Rows to come, and closer ones, that were asked for before.
    asked: [&'a [*const bf16; KEYS]; 2],
}

impl<const D_QK: usize> Step<'_, D_QK> {
    /// Lines of a row.
    const LINES: usize = D_QK / LINE;

    /// Asks for a line of a row to come, and again for one of a row that is closer.
    #[inline(always)]
    fn ask(&self, row: usize, line: usize) {
        for rows in self.asked {
            self.zmm.prefetch(rows[row].wrapping_add(line * LINE));
        }
    }

    /// C1.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn qk(&self, q: &[u32], s: &mut Scores) {
        for group in 0..KEYS / TILE_KEYS {
            match self.rows {
                0 | 1 => self.scores::<1>(q, group, s),
                2 => self.scores::<2>(q, group, s),
                3 => self.scores::<3>(q, group, s),
                _ => self.scores::<ROWS>(q, group, s),
            }
        }
    }

    /// Scores of `N` rows over a group of keys.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn scores<const N: usize>(&self, q: &[u32], group: usize, s: &mut Scores) {
        const { assert!(D_QK.is_multiple_of(2 * LINE)) };
        let zmm = self.zmm;
        let q = &q[..N * D_QK / 2];
        let keys: &[_; TILE_KEYS] = &self.keys.as_chunks().0[group];
        assert!(self.half_lines <= Self::LINES / 2);
        // A group asks for two rows to come.
        const { assert!(C1_ASKS == 2 * (KEYS / TILE_KEYS)) };
        let mut acc = [[_mm512_setzero_ps(); N]; TILE_KEYS];
        for half in 0..2 {
            // Unrolled, requests would be moved together, and Q to the stack.
            for i in 0..self.half_lines {
                let v = half * (Self::LINES / 2) + i;
                self.ask(2 * group + half, 2 * i);
                self.ask(2 * group + half, 2 * i + 1);
                let mut pairs = [as_pairs(_mm512_setzero_si512()); N];
                for r in 0..N {
                    // SAFETY: q has the D_QK / 2 pairs of N rows, by the slicing above, and v is one of
                    // the vectors that those of a row fill, by the assertion; no alignment needed.
                    pairs[r] = as_pairs(unsafe {
                        _mm512_loadu_si512(q.as_ptr().add(r * D_QK / 2 + v * LANES).cast())
                    });
                }
                for k in 0..TILE_KEYS {
                    // SAFETY: the key has D_QK elements, and v is one of the vectors they fill; no
                    // alignment needed.
                    let key = as_pairs(unsafe {
                        _mm512_loadu_si512(keys[k].as_ptr().add(v * LINE).cast())
                    });
                    for r in 0..N {
                        acc[k][r] = _mm512_dpbf16_ps(acc[k][r], pairs[r], key);
                    }
                }
            }
        }
        for r in 0..N {
            let sums = zmm.sum_lanes([acc[0][r], acc[1][r], acc[2][r], acc[3][r]]);
            s[r].as_chunks_mut().0[group] = sums;
        }
    }

    /// C2. Returns the strips that it left, as values in them aren't finite.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn pv<const D_V: usize>(
        &self,
        p: &Probs,
        values: &[&[bf16; D_V]; KEYS],
        o: &mut [OStrip],
    ) -> Strips {
        let values = &values.as_chunks().0[..self.pairs];
        let mut left = 0;
        for (strip, o) in o.iter_mut().enumerate() {
            let done = match self.rows {
                0 | 1 => self.products::<1, D_V>(p, values, strip, o),
                2 => self.products::<2, D_V>(p, values, strip, o),
                3 => self.products::<3, D_V>(p, values, strip, o),
                _ => self.products::<ROWS, D_V>(p, values, strip, o),
            };
            left |= Strips::from(!done) << strip;
        }
        left
    }

    /// `N` rows of O over a strip. A V that isn't finite makes every row's O so, since 0 times it is NaN: the first
    /// row tells, and all are left as they were then.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn products<const N: usize, const D_V: usize>(
        &self,
        p: &Probs,
        values: &[[&[bf16; D_V]; 2]],
        strip: usize,
        o: &mut OStrip,
    ) -> bool {
        assert!((strip + 1) * STRIP <= D_V);
        let o: &mut [[f32; STRIP]; N] = &mut o.as_chunks_mut().0[0];
        let mut acc = [[[_mm512_setzero_ps(); 2]; PIECES]; N];
        for r in 0..N {
            for i in 0..PIECES {
                acc[r][i] = read(&o[r], i);
            }
        }
        let each = const { Self::LINES / PAIRS };
        self.ask_some::<D_V>(strip, PAIRS * each, Self::LINES % PAIRS);
        for p in &p.parts[..p.len] {
            for (k, pair) in values.iter().enumerate() {
                self.ask_some::<D_V>(strip, k * each, each);
                // SAFETY: the strip lies within D_V, asserted above.
                let v = unsafe { interleaved(pair, strip) };
                for r in 0..N {
                    for i in 0..PIECES {
                        add(&mut acc[r][i], &v[i], p[r][k]);
                    }
                }
            }
        }
        if p.carried != 0 {
            for r in 0..N {
                let Some(residual) = p.residual(r) else {
                    continue;
                };
                // SAFETY: the strip lies within D_V, asserted above.
                let v = unsafe { interleaved(&values[residual.pair], strip) };
                for i in 0..PIECES {
                    add(&mut acc[r][i], &v[i], residual.p);
                }
            }
        }
        let mut wrong = 0;
        for acc in acc[0].as_flattened() {
            wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(*acc);
        }
        if wrong != 0 {
            return false;
        }
        for r in 0..N {
            for i in 0..PIECES {
                write(&mut o[r], i, acc[r][i]);
            }
        }
        true
    }

    /// Asks for some lines of the rows to come that are a strip's to ask for.
    #[inline(always)]
    fn ask_some<const D_V: usize>(&self, strip: usize, from: usize, lines: usize) {
        let rows = const { (KEYS - C1_ASKS) / (D_V / STRIP) };
        for row in 0..rows {
            for line in from..from + lines {
                self.ask(C1_ASKS + strip * rows + row, line);
            }
        }
    }
}

/// A piece of a row of O.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn read(o: &[f32; STRIP], piece: usize) -> [__m512; 2] {
    let o: &[_; 2] = &o.as_chunks().0.as_chunks().0[piece];
    o.map(|o| load(&o))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn write(o: &mut [f32; STRIP], piece: usize, acc: [__m512; 2]) {
    let o: &mut [_; 2] = &mut o.as_chunks_mut().0.as_chunks_mut().0[piece];
    for i in 0..2 {
        store(&mut o[i], acc[i]);
    }
}

/// A piece of a row of O and a pair's P, times their values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn add(o: &mut [__m512; 2], v: &[__m512i; 2], p: u32) {
    let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
    for i in 0..2 {
        o[i] = _mm512_dpbf16_ps(o[i], as_pairs(v[i]), p);
    }
}

/// V1 of the keys from `first` on, `len` of them.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn softmax(
    zmm: Zmm,
    call: &Softmax<'_>,
    first: usize,
    len: usize,
    s: &Scores,
    state: &mut RowState,
) -> Probs {
    let seen = seen(call.mask, first, len);
    let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
    // The second where the first is NaN.
    let largest = |r: usize| _mm512_mask_max_ps(lowest, seen[r], load(&s[r]), lowest);
    let mut max = [f32::NEG_INFINITY; PANEL_ROWS];
    max.as_chunks_mut().0[0] = zmm.max_lanes([largest(0), largest(1), largest(2), largest(3)]);
    let bases = v1::advance(call, &max, state);
    let exact = call.rescale == Rescale::Exact;
    let whole = call.precision == Precision::Bf16x2;
    let zero = _mm512_setzero_ps();
    let scale = _mm512_set1_ps(call.scale);
    let mut probs = Probs {
        parts: [[[0; PAIRS]; ROWS]; 2],
        len: if whole { 2 } else { 1 },
        carried: 0,
        residuals: [Residual { pair: 0, p: 0 }; _],
    };
    let mut key = [0; ROWS];
    let (mut sums, mut kept) = ([zero; ROWS], [zero; ROWS]);
    for r in 0..ROWS {
        let below = _mm512_sub_ps(load(&s[r]), _mm512_set1_ps(bases.max[r]));
        let t = _mm512_fmadd_ps(below, scale, _mm512_set1_ps(bases.offset[r]));
        let mut prob = _mm512_maskz_mov_ps(seen[r], zmm.exp2(t));
        sums[r] = prob;
        // The last key of those that have the largest score.
        let largest = _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(seen[r], below, zero);
        key[r] = largest.checked_ilog2().unwrap_or(0);
        if !exact {
            prob = _mm512_mul_ps(prob, _mm512_set1_ps(bases.factor[r]));
        }
        let high = _mm512_cvtneps_pbh(prob);
        let used = _mm512_cvtpbh_ps(high);
        kept[r] = used;
        probs.parts[0][r] = words(high);
        if whole {
            let rest = _mm512_cvtneps_pbh(_mm512_sub_ps(prob, used));
            probs.parts[1][r] = words(rest);
            kept[r] = _mm512_add_ps(used, _mm512_cvtpbh_ps(rest));
        }
    }
    let sums = zmm.sum_lanes(sums);
    let kept = if exact { zmm.sum_lanes(kept) } else { sums };
    for r in 0..ROWS {
        state.sum[r] += sums[r];
        state.rounded_sum[r] += kept[r];
    }
    if exact && !whole {
        probs.carry(zmm, &bases.offset, &key, call.rows, state);
    }
    probs
}

/// Which of a step's keys each row sees.
fn seen(mask: Option<&Mask>, first: usize, len: usize) -> [__mmask16; ROWS] {
    let all = __mmask16::MAX >> (KEYS - len);
    let Some(mask) = mask else {
        return [all; _];
    };
    let mut seen = [0; ROWS];
    for (k, rows) in mask[first..][..len].iter().enumerate() {
        for (r, seen) in seen.iter_mut().enumerate() {
            *seen |= __mmask16::from(rows >> r & 1 != 0) << k;
        }
    }
    seen
}

impl Probs {
    /// What rounding took from a row's largest, if it counts.
    #[inline(always)]
    fn residual(&self, r: usize) -> Option<&Residual> {
        (self.carried >> r & 1 != 0).then(|| &self.residuals[r])
    }

    /// Keeps what rounding took from each row's largest P, where that may count: as a row's sum grows, other keys' P, from
    /// which nothing is kept, lose as much.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn carry(
        &mut self,
        zmm: Zmm,
        offset: &[f32; PANEL_ROWS],
        key: &[u32; ROWS],
        rows: usize,
        state: &mut RowState,
    ) {
        /// The part of a row's sum from which on a P counts: 2^-6 of its error of 2^-9.
        const COUNTS: f32 = 1.0 / 64.0;
        let offset = load(&offset.as_chunks().0[0]);
        let largest = zmm.exp2(offset);
        let high = _mm512_cvtpbh_ps(_mm512_cvtneps_pbh(largest));
        let residual = _mm512_cvtneps_pbh(_mm512_sub_ps(largest, high));
        let sum = load(&state.sum.as_chunks().0[0]);
        let least = _mm512_mul_ps(sum, _mm512_set1_ps(COUNTS));
        let counts = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, least);
        let counts = counts & __mmask16::MAX >> (LANES - rows);
        if counts == 0 {
            return;
        }
        let residual = _mm512_maskz_mov_ps(counts, _mm512_cvtpbh_ps(residual));
        let rounded = &mut state.rounded_sum.as_chunks_mut().0[0];
        store(rounded, _mm512_add_ps(load(rounded), residual));
        let mut bits = [0.0; LANES];
        store(&mut bits, residual);
        for r in 0..ROWS {
            // A BF16's bits are the upper half of its FP32's.
            let bits = bits[r].to_bits() >> 16;
            self.residuals[r] = Residual {
                pair: key[r] as usize / 2,
                p: bits << (16 * (key[r] % 2)),
            };
        }
        self.carried = u32::from(counts);
    }

    /// As other kernels have it, pair by pair.
    #[cold]
    fn spread(&self, rows: usize, p: &mut L0a) {
        for r in 0..rows {
            for k in 0..PAIRS {
                p.high.0[k][r] = self.parts[0][r][k];
                p.low.0[k][r] = self.parts[1][r][k];
            }
        }
        for (r, residual) in self.residuals.iter().enumerate() {
            p.residuals.pair[r] = u32::try_from(residual.pair).unwrap_or(0);
            p.residuals.p[r] = residual.p;
        }
    }
}

/// The pairs of a row's P.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn words(p: __m256bh) -> [u32; PAIRS] {
    // SAFETY: both are 32 bytes of which every pattern is a value.
    unsafe { core::mem::transmute(p) }
}
