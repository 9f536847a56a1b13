//! AVX-512 with BF16 dot products: `vdpbf16ps` multiplies 32 BF16 pairs and adds
//! them into 16 FP32 lanes, treating subnormals as zero.
//!
//! | kernel | register tile | streams |
//! |---|---|---|
//! | C1 | 6 keys x 4 vectors of 16 rows (8 x 3, 12 x 2, 24 x 1 for narrow panels; up to 8 rows: `few`) | Q panel 256 B per feature pair, K by broadcast from the cache itself |
//! | C2 | 6 rows x 4 vectors of 16 columns | V strip 256 B per key pair, P by broadcast |
//!
//! Both keep 24 accumulators, so that neither the latency of the dot nor the
//! load ports limit it: 10 loads per 24 dots. C1 walks the query's width in
//! chunks of 96 (the paper's baseK): the panel's chunk is 12 KiB and stays in
//! L1d while all keys of the block pass over it, and sums of 96 products round
//! less than sums of 576. C2 holds one strip of V
//! (24 KiB) in L1d while all rows pass over it. Peak: 64 FLOP per dot, at the
//! rate that [`dot_loop`] measures.
#![allow(
    unsafe_code,
    reason = "pointer loads and feature-gated calls of the micro-kernels"
)]

mod few;
mod widen;

use core::arch::x86_64::*;

use half::bf16;

use super::shared::{self, Bases, EXP2, EXP2_MIN};
use super::{Isa, Pv, Rows, Softmax, Strips, detect};
use crate::bits::Increment;
use crate::format::{self, Row};
use crate::problem::{Precision, Rescale};
use crate::tile::{
    BLOCK_KEYS, BLOCK_PAIRS, L0a, L0b, MAX_D_V, OStrip, PANEL_ROWS, PTile, QPanel, RowState, STRIP,
    STile, VBuffer, ascend,
};

/// FP32 lanes of a vector.
const LANES: usize = 16;
/// Vectors across a panel's rows, or a strip's columns.
const VECTORS: usize = PANEL_ROWS / LANES;
/// Feature pairs of one visit to the Q panel.
const PAIRS_K: usize = ascend::BASE_K / 2;

/// Proof that the processor has AVX-512 F, BW, DQ, VL and BF16.
#[derive(Clone, Copy)]
pub struct Avx512Bf16(());

impl Avx512Bf16 {
    /// The token, if the processor qualifies.
    pub fn new() -> Option<Self> {
        detect::avx512_bf16().then_some(Self(()))
    }
}

impl Isa for Avx512Bf16 {
    const DIRECT_ROWS: usize = few::FEW_ROWS;

    fn widen(self, row: &Row<'_>, out: &mut [bf16]) {
        // SAFETY: the token proves the features.
        unsafe { widen::widen(row, out) }
    }

    fn pack_q<const D_QK: usize>(self, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
        // SAFETY: the token proves the features.
        unsafe { pack_q::<D_QK>(rows, negate, panel) }
    }

    fn pack_v<const D_V: usize>(
        self,
        values: &[&[bf16]],
        first: usize,
        next: &[&[bf16]],
        v: &mut [VBuffer; 3],
    ) -> bool {
        // SAFETY: the token proves the features.
        unsafe { pack_v::<D_V>(values, first, next, v) }
    }

    fn qk<const D_QK: usize>(
        self,
        q: &QPanel,
        rows: usize,
        keys: &Rows<'_>,
        next: &[&[bf16]],
        _scratch: &mut L0b,
        s: &mut STile,
    ) {
        // SAFETY: the token proves the features.
        unsafe {
            match rows {
                0..=few::FEW_ROWS => few::qk::<D_QK>(q, rows, keys, next, s),
                9..=16 => qk::<D_QK, 24, 1>(q, keys, s),
                17..=32 => qk::<D_QK, 12, 2>(q, keys, s),
                33..=48 => qk::<D_QK, 8, 3>(q, keys, s),
                _ => qk::<D_QK, 6, 4>(q, keys, s),
            }
        }
    }

    fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
        // SAFETY: the token proves the features.
        unsafe { softmax(call, s, p, state) }
    }

    fn pv<const D_V: usize>(
        self,
        call: &Pv<'_>,
        p: &L0a,
        v: &[VBuffer; 3],
        _scratch: &mut L0b,
        o: &mut [OStrip],
    ) {
        // SAFETY: the token proves the features.
        unsafe { pv::<D_V>(call, p, v, o) }
    }

    fn pv_direct<const D_V: usize>(
        self,
        call: &Pv<'_>,
        p: &L0a,
        values: &Rows<'_>,
        next: &[&[bf16]],
        o: &mut [OStrip],
    ) -> Strips {
        // SAFETY: the token proves the features.
        unsafe { few::pv::<D_V>(call, p, values, next, o) }
    }

    fn rescale(self, xs: &mut [f32], increment: Increment) {
        // SAFETY: the token proves the features.
        unsafe { rescale(xs, increment) }
    }

    fn fold(self, x: &mut [f32], dx: Increment, y: &[f32], dy: Increment) {
        // SAFETY: the token proves the features.
        unsafe { fold(x, dx, y, dy) }
    }

    fn axpy(self, factor: f32, value: &[bf16], o: &mut [OStrip], row: usize) {
        // SAFETY: the token proves the features.
        unsafe { axpy(factor, value, o, row) }
    }

    fn dot_loop(self, iterations: u64) -> u64 {
        // SAFETY: the token proves the features.
        unsafe { dot_loop(iterations) }
    }
}

/// Transposes 16 rows x 16 feature pairs at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn pack_q<const D_QK: usize>(rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
    const { assert!(D_QK.is_multiple_of(2 * LANES)) };
    let sign = _mm512_set1_epi32(if negate { 0x8000_8000_u32 } else { 0 }.cast_signed());
    if rows.len() <= few::FEW_ROWS {
        return few::pack_q::<D_QK>(rows, sign, panel);
    }
    for (v, rows) in rows.chunks(LANES).enumerate() {
        for first in (0..D_QK / 2).step_by(LANES) {
            let mut block = [_mm512_setzero_si512(); LANES];
            for (out, row) in block.iter_mut().zip(rows) {
                *out = _mm512_xor_si512(load_row(&row[2 * first..]), sign);
            }
            transpose(&mut block);
            for (out, column) in panel.0[first..].iter_mut().zip(block) {
                store_pairs(&mut out.as_chunks_mut().0[v], column);
            }
        }
    }
    for out in &mut panel.0[..D_QK / 2] {
        out[rows.len().next_multiple_of(LANES)..].fill(0);
    }
}

/// A 16 x 16 transposition of 32-bit lanes: four rounds, each of which swaps the
/// off-diagonal halves of blocks half as large as the last.
///
/// Loops are counted and indices computed so that all of it unrolls into
/// registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn transpose(x: &mut [__m512i; LANES]) {
    for i in 0..8 {
        let (a, b) = (x[i], x[i + 8]);
        x[i] = _mm512_shuffle_i64x2::<0x44>(a, b);
        x[i + 8] = _mm512_shuffle_i64x2::<0xee>(a, b);
    }
    let low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    for n in 0..8 {
        let i = n % 4 + n / 4 * 8;
        let (a, b) = (x[i], x[i + 4]);
        x[i] = _mm512_permutex2var_epi64(a, low, b);
        x[i + 4] = _mm512_permutex2var_epi64(a, high, b);
    }
    for n in 0..8 {
        let i = n % 2 + n / 2 * 4;
        let (a, b) = (x[i], x[i + 2]);
        x[i] = _mm512_unpacklo_epi64(a, b);
        x[i + 2] = _mm512_unpackhi_epi64(a, b);
    }
    let low = _mm512_setr_epi32(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    let high = _mm512_setr_epi32(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    for n in 0..8 {
        let (a, b) = (x[2 * n], x[2 * n + 1]);
        x[2 * n] = _mm512_permutex2var_epi32(a, low, b);
        x[2 * n + 1] = _mm512_permutex2var_epi32(a, high, b);
    }
}

/// Interleaves two keys' words, 32 columns at a time, and keeps the largest
/// magnitude: with the sign off, BF16 patterns are ordered as integers, and
/// infinity and the NaNs are above all numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn pack_v<const D_V: usize>(
    values: &[&[bf16]],
    first: usize,
    next: &[&[bf16]],
    v: &mut [VBuffer; 3],
) -> bool {
    const INTERLEAVE: [[u16; 32]; 2] = {
        let mut index = [[0; 32]; 2];
        let mut i: u16 = 0;
        while i < 32 {
            // Word i of the first row and word i of the second, which the
            // permutation counts from 32 on.
            let pair = 2 * (i % 16) as usize;
            index[i as usize / 16][pair] = i;
            index[i as usize / 16][pair + 1] = i + 32;
            i += 1;
        }
        index
    };
    const MAGNITUDE: i16 = 0x7fff;
    let [low, high] = [load_words(&INTERLEAVE[0]), load_words(&INTERLEAVE[1])];
    let magnitude = _mm512_set1_epi16(MAGNITUDE);
    let mut largest = _mm512_setzero_si512();
    let mut next = next.iter();
    for (k, pair) in (first / 2..).zip(values.chunks(2)) {
        for row in next.by_ref().take(2) {
            prefetch::<_MM_HINT_T1>(row);
        }
        let even = &pair[0][..D_V];
        let odd = pair.get(1).map(|row| &row[..D_V]);
        for (strip, v) in v
            .as_flattened_mut()
            .iter_mut()
            .take(D_V / STRIP)
            .enumerate()
        {
            let out = v.0[k].as_chunks_mut::<LANES>().0;
            for (i, out) in out.chunks_mut(2).enumerate() {
                let column = strip * STRIP + i * 2 * LANES;
                let even = load_row(&even[column..]);
                let odd = match odd {
                    Some(odd) => load_row(&odd[column..]),
                    None => _mm512_setzero_si512(),
                };
                largest = _mm512_max_epu16(largest, _mm512_and_si512(even, magnitude));
                largest = _mm512_max_epu16(largest, _mm512_and_si512(odd, magnitude));
                store_pairs(&mut out[0], _mm512_permutex2var_epi16(even, low, odd));
                store_pairs(&mut out[1], _mm512_permutex2var_epi16(even, high, odd));
            }
        }
    }
    _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) != 0
}

/// C1: all keys of the block over one chunk of the Q panel, then over the next.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn qk<const D_QK: usize, const KEYS: usize, const VECS: usize>(
    q: &QPanel,
    keys: &Rows<'_>,
    s: &mut STile,
) {
    let keys = keys.as_slice();
    let q = &q.0[..D_QK / 2];
    for (chunk, q) in q.chunks(PAIRS_K).enumerate() {
        let features = 2 * PAIRS_K * chunk..2 * PAIRS_K * chunk + 2 * q.len();
        for (group, s) in s.0.chunks_mut(KEYS).enumerate() {
            let first = group * KEYS;
            if first >= keys.len() {
                break;
            }
            for row in keys.iter().skip(first + KEYS).take(KEYS) {
                prefetch::<_MM_HINT_T0>(&row[features.clone()]);
            }
            // A group at the end repeats its last key; nobody reads the copies.
            let mut rows: [&[bf16]; KEYS] = [&[]; KEYS];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = &keys[(first + i).min(keys.len() - 1)][features.clone()];
            }
            qk_tile::<KEYS, VECS>(q, rows, s, chunk > 0);
        }
    }
}

/// Asks for the lines of a row, to be read soon.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn prefetch<const LEVEL: i32>(row: &[bf16]) {
    for line in row.chunks(2 * LANES) {
        // SAFETY: a prefetch touches no memory as far as the program can tell.
        #[allow(unused_unsafe, reason = "a safe function in newer compilers")]
        unsafe {
            _mm_prefetch::<LEVEL>(line.as_ptr().cast());
        }
    }
}

/// `s[key][row] (+)= sum over pairs of k[key][pair] . q[pair][row]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn qk_tile<const KEYS: usize, const VECS: usize>(
    q: &[[u32; PANEL_ROWS]],
    k: [&[bf16]; KEYS],
    s: &mut [[f32; PANEL_ROWS]],
    accumulate: bool,
) {
    assert!(k.iter().all(|row| row.len() >= 2 * q.len()));
    assert!(s.len() == KEYS);
    let mut acc = [[_mm512_setzero_ps(); VECS]; KEYS];
    for (pair, q) in q.iter().enumerate() {
        let q: [__m512bh; VECS] = core::array::from_fn(|v| load_pairs(&q.as_chunks().0[v]));
        for (acc, k) in acc.iter_mut().zip(&k) {
            // SAFETY: pair < q.len(), and k holds 2 * q.len() elements, asserted
            // above; the load needs no alignment.
            let k = unsafe { k.as_ptr().add(2 * pair).cast::<i32>().read_unaligned() };
            let k = as_pairs(_mm512_set1_epi32(k));
            for (acc, q) in acc.iter_mut().zip(q) {
                *acc = _mm512_dpbf16_ps(*acc, q, k);
            }
        }
    }
    for (acc, s) in acc.iter().zip(s) {
        for (&acc, s) in acc.iter().zip(s.as_chunks_mut().0) {
            let sum = if accumulate {
                _mm512_add_ps(load(s), acc)
            } else {
                acc
            };
            store(s, sum);
        }
    }
}

/// V1: maximum, reference, probabilities, peaks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn softmax(call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
    let vectors = call.rows.div_ceil(LANES);
    let mut max = [f32::NEG_INFINITY; PANEL_ROWS];
    for v in 0..vectors {
        let m = match call.mask {
            None => block_max::<false>(call, s, v),
            Some(_) => block_max::<true>(call, s, v),
        };
        store(&mut max.as_chunks_mut().0[v], m);
    }
    let bases = shared::advance(call, &max, state);
    for v in 0..vectors {
        match (call.mask, call.precision) {
            (None, Precision::Bf16) => exponentiate::<false, false>(call, s, &bases, v, p, state),
            (None, Precision::Bf16x2) => exponentiate::<false, true>(call, s, &bases, v, p, state),
            (Some(_), Precision::Bf16) => exponentiate::<true, false>(call, s, &bases, v, p, state),
            (Some(_), Precision::Bf16x2) => {
                exponentiate::<true, true>(call, s, &bases, v, p, state);
            }
        }
    }
    if call.rescale == Rescale::Exact && call.precision == Precision::Bf16 {
        shared::collect_peaks(call, &bases, s, &p.high, state);
    }
}

/// The rows of vector `v` that see a key.
#[expect(clippy::cast_possible_truncation, reason = "takes 16 of 64 rows")]
const fn seeing(mask: u64, v: usize) -> __mmask16 {
    (mask >> (v * LANES)) as __mmask16
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn block_max<const MASKED: bool>(call: &Softmax<'_>, s: &STile, v: usize) -> __m512 {
    // Four chains, so that the latency of the maximum is not what limits.
    const CHAINS: usize = 4;
    let mask = call.mask.unwrap_or(&[0; BLOCK_KEYS]);
    let mut max = [_mm512_set1_ps(f32::NEG_INFINITY); CHAINS];
    for (group, s) in s.0[..call.keys].chunks(CHAINS).enumerate() {
        for ((i, s), max) in s.iter().enumerate().zip(&mut max) {
            let s = load(&s.as_chunks().0[v]);
            // The second operand is returned where the first is NaN.
            *max = if MASKED {
                let sees = seeing(mask[group * CHAINS + i], v);
                _mm512_mask_max_ps(*max, sees, s, *max)
            } else {
                _mm512_max_ps(s, *max)
            };
        }
    }
    let [a, b, c, d] = max;
    _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d))
}

/// P of 16 rows, pair by pair, and the row sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn exponentiate<const MASKED: bool, const LOW: bool>(
    call: &Softmax<'_>,
    s: &STile,
    bases: &Bases,
    v: usize,
    p: &mut L0a,
    state: &mut RowState,
) {
    let mask = call.mask.unwrap_or(&[0; BLOCK_KEYS]);
    let scale = _mm512_set1_ps(call.scale);
    let max = load(&bases.max.as_chunks().0[v]);
    let offset = load(&bases.offset.as_chunks().0[v]);
    let factor = load(&bases.factor.as_chunks().0[v]);
    let ones = as_pairs(_mm512_set1_epi32(0x3f80_3f80));
    let exact = call.rescale == Rescale::Exact;
    let mut sums = [_mm512_setzero_ps(); 2];
    let mut rounded = _mm512_setzero_ps();
    for (pair, s) in s.0.as_chunks::<2>().0[..call.keys.div_ceil(2)]
        .iter()
        .enumerate()
    {
        // A loop, not `map`: a function without the features would take the vectors by way
        // of memory.
        let mut prob = [_mm512_setzero_ps(); 2];
        for i in 0..2 {
            let below = _mm512_sub_ps(load(&s[i].as_chunks().0[v]), max);
            prob[i] = exp2(_mm512_fmadd_ps(below, scale, offset));
            if MASKED {
                let sees = seeing(mask[2 * pair + i], v);
                prob[i] = _mm512_maskz_mov_ps(sees, prob[i]);
            }
        }
        if 2 * pair + 1 == call.keys {
            // Behind the last key is what an earlier block left.
            prob[1] = _mm512_setzero_ps();
        }
        for i in 0..2 {
            sums[i] = _mm512_add_ps(sums[i], prob[i]);
            if !exact {
                prob[i] = _mm512_mul_ps(prob[i], factor);
            }
        }
        let high = round_pair(prob);
        store_pairs(&mut p.high.0[pair].as_chunks_mut().0[v], high);
        if exact {
            rounded = _mm512_dpbf16_ps(rounded, as_pairs(high), ones);
        }
        if LOW {
            let used = widen_pair(high);
            let low = round_pair([
                _mm512_sub_ps(prob[0], used[0]),
                _mm512_sub_ps(prob[1], used[1]),
            ]);
            store_pairs(&mut p.low.0[pair].as_chunks_mut().0[v], low);
            if exact {
                rounded = _mm512_dpbf16_ps(rounded, as_pairs(low), ones);
            }
        }
    }
    let sum = &mut state.sum.as_chunks_mut().0[v];
    store(
        sum,
        _mm512_add_ps(load(sum), _mm512_add_ps(sums[0], sums[1])),
    );
    let sum = &mut state.rounded_sum.as_chunks_mut().0[v];
    store(sum, _mm512_add_ps(load(sum), rounded));
}

/// 2^t; zero below 2^-126, NaN for NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn exp2(t: __m512) -> __m512 {
    let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(t, _mm512_set1_ps(EXP2_MIN));
    let j = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(t);
    let r = _mm512_sub_ps(t, j);
    let mut y = _mm512_set1_ps(EXP2[4]);
    for c in [EXP2[3], EXP2[2], EXP2[1], EXP2[0], 1.0] {
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(c));
    }
    _mm512_maskz_scalef_ps(normal, y, j)
}

/// Two keys' probabilities as BF16 pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn round_pair([even, odd]: [__m512; 2]) -> __m512i {
    // Word 2i from word i of the even key, 2i + 1 from word i of the odd one,
    // which the conversion leaves 16 words further.
    const INTERLEAVE: [u16; 32] = {
        let mut index = [0; 32];
        let mut i = 0;
        while i < 16 {
            index[2 * i as usize] = i;
            index[2 * i as usize + 1] = i + 16;
            i += 1;
        }
        index
    };
    let halves = _mm512_cvtne2ps_pbh(odd, even);
    _mm512_permutexvar_epi16(load_words(&INTERLEAVE), from_pairs(halves))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn widen_pair(pairs: __m512i) -> [__m512; 2] {
    let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
    [
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
        _mm512_castsi512_ps(odd),
    ]
}

/// C2: strip by strip, all rows of the panel over one strip of V.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn pv<const D_V: usize>(call: &Pv<'_>, p: &L0a, v: &[VBuffer; 3], o: &mut [OStrip]) {
    let pairs = call.keys.div_ceil(2);
    let high = &p.high.0[..pairs];
    let low = match call.precision {
        Precision::Bf16 => &[],
        Precision::Bf16x2 => &p.low.0[..pairs],
    };
    let strips = v.as_flattened().iter().zip(o).take(D_V / STRIP);
    for (v, o) in strips {
        let v = &v.0[..pairs];
        let mut row = 0;
        while row < call.rows {
            let tile = Strip {
                high,
                low,
                v,
                row,
                increment: call.increment,
            };
            row += match call.rows - row {
                1 => pv_tile::<1>(&tile, o),
                2 => pv_tile::<2>(&tile, o),
                3 => pv_tile::<3>(&tile, o),
                4 => pv_tile::<4>(&tile, o),
                5 => pv_tile::<5>(&tile, o),
                _ => pv_tile::<6>(&tile, o),
            };
        }
    }
}

/// One strip of C2, from row `row` on.
struct Strip<'a> {
    high: &'a [[u32; PANEL_ROWS]],
    low: &'a [[u32; PANEL_ROWS]],
    v: &'a [[u32; STRIP]],
    row: usize,
    increment: Option<&'a [i32; PANEL_ROWS]>,
}

/// `ROWS` rows of a strip: rescale on the way in, accumulate in registers, write
/// once. Returns `ROWS`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn pv_tile<const ROWS: usize>(tile: &Strip<'_>, o: &mut OStrip) -> usize {
    let o = &mut o[tile.row..tile.row + ROWS];
    let mut acc = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    if let Some(increment) = tile.increment {
        let increment = &increment[tile.row..tile.row + ROWS];
        for ((acc, o), &increment) in acc.iter_mut().zip(&*o).zip(increment) {
            for (acc, o) in acc.iter_mut().zip(o.as_chunks().0) {
                *acc = load(o);
            }
            // Most blocks don't move the reference: nothing to add then.
            if increment != 0 {
                let increment = _mm512_set1_epi32(increment);
                for acc in acc {
                    *acc = add_increment(*acc, increment);
                }
            }
        }
    }
    accumulate(tile.high, tile.v, tile.row, &mut acc);
    accumulate(tile.low, tile.v, tile.row, &mut acc);
    for (acc, o) in acc.iter().zip(o) {
        for (acc, o) in acc.iter().zip(o.as_chunks_mut().0) {
            store(o, *acc);
        }
    }
    ROWS
}

/// `acc[row][column] += sum over pairs of p[pair][row] . v[pair][column]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn accumulate<const ROWS: usize>(
    p: &[[u32; PANEL_ROWS]],
    v: &[[u32; STRIP]],
    row: usize,
    acc: &mut [[__m512; VECTORS]; ROWS],
) {
    assert!(p.len() <= BLOCK_PAIRS && row + ROWS <= PANEL_ROWS);
    for (p, v) in p.iter().zip(v) {
        let v: [__m512bh; VECTORS] = core::array::from_fn(|i| load_pairs(&v.as_chunks().0[i]));
        for (acc, p) in acc.iter_mut().zip(&p[row..row + ROWS]) {
            let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
            for (acc, v) in acc.iter_mut().zip(v) {
                *acc = _mm512_dpbf16_ps(*acc, v, p);
            }
        }
    }
}

/// [`crate::bits::add_increment_f32`] on 16 lanes: integer instructions only, off
/// the multiply ports.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn add_increment(x: __m512, increment: __m512i) -> __m512 {
    let min_normal = _mm512_set1_epi32(0x0080_0000);
    let infinity = _mm512_set1_epi32(0x7f80_0000);
    let bits = _mm512_castps_si512(x);
    let magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(i32::MAX));
    let sign = _mm512_xor_si512(bits, magnitude);
    let up = _mm512_cmpgt_epi32_mask(increment, _mm512_setzero_si512());
    let moved = _mm512_add_epi32(magnitude, increment);
    // Upwards, the sum may pass i32::MAX but not u32::MAX.
    let moved = _mm512_mask_min_epu32(moved, up, moved, infinity);
    let normal =
        _mm512_cmpge_epi32_mask(magnitude, min_normal) & _mm512_cmpge_epi32_mask(moved, min_normal);
    let finite = _mm512_cmplt_epi32_mask(magnitude, infinity);
    let result = _mm512_or_si512(_mm512_maskz_mov_epi32(normal, moved), sign);
    _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, finite, result))
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn rescale(xs: &mut [f32], increment: Increment) {
    let lanes = _mm512_set1_epi32(increment.bits());
    let (chunks, rest) = xs.as_chunks_mut();
    for chunk in chunks {
        let x = add_increment(load(chunk), lanes);
        store(chunk, x);
    }
    for x in rest {
        *x = crate::bits::add_increment_f32(*x, increment);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn fold(x: &mut [f32], dx: Increment, y: &[f32], dy: Increment) {
    let (x_chunks, x_rest) = x.as_chunks_mut();
    let (y_chunks, y_rest) = y.as_chunks();
    let (dx_lanes, dy_lanes) = (_mm512_set1_epi32(dx.bits()), _mm512_set1_epi32(dy.bits()));
    for (x, y) in x_chunks.iter_mut().zip(y_chunks) {
        let a = add_increment(load(x), dx_lanes);
        let b = add_increment(load(y), dy_lanes);
        store(x, _mm512_add_ps(a, b));
    }
    shared::fold(x_rest, dx, y_rest, dy);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn axpy(factor: f32, value: &[bf16], o: &mut [OStrip], row: usize) {
    shared::axpy(factor, value, o, row);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn dot_loop(iterations: u64) -> u64 {
    const CHAINS: usize = 24;
    let mut acc = [_mm512_setzero_ps(); CHAINS];
    let x = as_pairs(_mm512_set1_epi32(core::hint::black_box(0x3f80_3f80)));
    for _ in 0..iterations {
        for acc in &mut acc {
            *acc = _mm512_dpbf16_ps(*acc, x, x);
        }
    }
    core::hint::black_box(acc);
    iterations * (CHAINS * LANES * 4) as u64
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn load(x: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 f32 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn store(to: &mut [f32; LANES], x: __m512) {
    // SAFETY: 16 f32 are 64 bytes; no alignment needed.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn load_pairs(x: &[u32; LANES]) -> __m512bh {
    // SAFETY: 16 u32 are 64 bytes; no alignment needed.
    as_pairs(unsafe { _mm512_loadu_si512(x.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn load_words(x: &[u16; 2 * LANES]) -> __m512i {
    // SAFETY: 32 u16 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}

/// The first 16 pairs of a row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn load_row(row: &[bf16]) -> __m512i {
    let pairs: &[bf16; 2 * LANES] = &row.as_chunks().0[0];
    // SAFETY: 32 bf16 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn store_pairs(to: &mut [u32; LANES], x: __m512i) {
    // SAFETY: 16 u32 are 64 bytes; no alignment needed.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), x) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn as_pairs(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of which every pattern is a value.
    unsafe { core::mem::transmute(x) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn from_pairs(x: __m512bh) -> __m512i {
    // SAFETY: both are 64 bytes of which every pattern is a value.
    unsafe { core::mem::transmute(x) }
}
