//! AVX-512 with BF16 dot products: `vdpbf16ps` multiplies 32 BF16 pairs and adds
//! them into 16 FP32 lanes, treating subnormals as zero.
//!
//! | kernel | register tile | streams |
//! |---|---|---|
//! | C1 | 6 keys x 4 vectors of 16 rows (8 x 3, 12 x 2 for narrow panels; up to 28 rows: `few`) | Q panel 256 B per feature pair, K by broadcast from the cache itself |
//! | C2 | 6 rows x 4 vectors of 16 columns (up to 16 rows: `few`) | V strip 256 B per key pair, P by broadcast |
//!
//! The fewest rows go through all stages in `stream`, or in `lanes`. The kernels above keep 24 accumulators, so that
//! neither the latency of the dot nor the load ports limit them: 10 loads per 24 dots. C1 walks the query's width in
//! chunks of 96 (the paper's baseK): the panel's chunk is 12 KiB and stays in
//! L1d while all keys of the block pass over it, and sums of 96 products round
//! less than sums of 576; its tiles end a few keys at a time (`docs/adr/0027`). C2 (`c2`) begins with zeros, to
//! which O comes in the end, and holds one strip of V (24 KiB) in L1d while all rows pass over it, the first of
//! which pack it. Peak: 64 FLOP per dot, at the rate that [`dot_loop`] measures.
#![allow(unsafe_code, reason = "pointer loads and feature-gated calls of the micro-kernels")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

mod c2;
mod few;
mod lanes;
mod p;
mod stream;

use core::arch::x86_64::*;
use core::slice::from_ref;

use half::bf16;
use p::Blocked;

use super::prefetch::{Ahead, Asking};
use super::simd::{self, Simd};
use super::softmax::{self, Pairs};
use super::zmm::dots::{self, Dots, as_pairs, from_pairs, load_pairs};
use super::zmm::{self, LANES, NOT_FINITE, Zmm, load_row, store_pairs};
use super::{
    Close, Kernel, Left, Maxima, Pv, Rows, Softmax, Streamed, Streams, Strips, detect, prob_of,
};
use crate::bits::Increment;
use crate::format::Row;
use crate::problem::Precision;
use crate::tile::{
    BLOCK_KEYS, BLOCK_PAIRS, L0a, L0b, MAX_D_QK, MAX_D_V, OStrip, PANEL_ROWS, QPanel, Residuals,
    RowState, STRIP, STile, VBuffer, ascend,
};

/// Feature pairs of one visit to the Q panel.
const PAIRS_K: usize = ascend::BASE_K / 2;

/// Proof that the processor has AVX-512 F, BW, DQ, VL and BF16.
#[derive(Clone, Copy)]
pub struct Avx512Bf16 {
    zmm: Zmm,
    dots: Dots,
    /// How streams ask memory for lines.
    asking: Asking,
}

impl Avx512Bf16 {
    /// The token, if the processor qualifies.
    pub fn new() -> Option<Self> {
        Some(Self {
            zmm: Zmm::new()?,
            dots: Dots::new()?,
            asking: detect::asking(),
        })
    }

    /// The same as on processors that are asked in that way.
    #[cfg(test)]
    pub fn asking(asking: Asking) -> Option<Self> {
        Self::new().map(|kernel| Self { asking, ..kernel })
    }

    /// Whether C1 of up to 32 rows asks for rows to come into L2: where a core drops requests (not timed on others).
    const fn asks_l2(self) -> bool {
        matches!(self.asking, Asking::L2Twice)
    }

    /// Whether the core does two dots a cycle, which needs 12 of them that don't wait for each other, or more: Zen 5, as all
    /// others that are known do one or less.
    const fn two_dots(self) -> bool {
        matches!(self.asking, Asking::L1dTwice)
    }

    /// Whether so many rows that stream share the lanes, which was not timed on other cores.
    const fn shares_lanes(self, rows: usize) -> bool {
        self.two_dots() && rows > stream::TILE_ROWS
    }
}

impl Kernel for Avx512Bf16 {
    const DIRECT_ROWS: usize = PANEL_ROWS;
    // Beyond few rows those for which a tile's own requests come too late (`docs/adr/0020`).
    const ASKING_ROWS: usize = 32;
    const STREAM_ROWS: usize = stream::ROWS;
    const PANELS_TOGETHER: bool = true;

    fn widen(self, row: &Row<'_>, out: &mut [bf16]) {
        // SAFETY: the token proves the features.
        unsafe { dots::widen_row(self.zmm, self.dots, row, out) }
    }

    fn lead(rows: usize) -> usize {
        // Panels read parts of all keys of a block before the next parts.
        if rows <= few::C1_ROWS { 16 } else { BLOCK_KEYS }
    }

    fn pack_q<const D_QK: usize>(self, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
        // SAFETY: the token proves the features.
        unsafe { pack_q::<D_QK>(self.zmm, rows, negate, panel) }
    }

    fn pack_stream_q<const D_QK: usize>(self, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
        // SAFETY: the token proves the features.
        unsafe { stream::pack_q::<D_QK>(self, rows, negate, panel) }
    }

    fn pack_v<const D_V: usize>(
        self,
        values: &[&[bf16]],
        first: usize,
        next: &[&[bf16]],
        v: &mut [VBuffer; 3],
    ) -> bool {
        // SAFETY: the token proves the features.
        unsafe { zmm::pack_v::<D_V>(self.zmm, values, first, next, v) }
    }

    fn qk<const D_QK: usize>(
        self,
        q: &QPanel,
        rows: usize,
        keys: &Rows<'_>,
        next: &[&[bf16]],
        _scratch: &mut L0b,
        s: &mut STile,
    ) -> Option<Maxima> {
        let panel = &q.0[..D_QK / 2];
        // SAFETY: the token proves the features.
        unsafe {
            match rows {
                0..=few::C1_ROWS => {
                    few::qk::<D_QK>(self, q, rows, keys, next, s);
                    None
                }
                29..=32 if self.two_dots() => qk::<12, 2, 6>(self.zmm, panel, keys, &[], s),
                29..=32 => {
                    let next = if self.asks_l2() { next } else { &[] };
                    qk::<12, 2, 4>(self.zmm, panel, keys, next, s)
                }
                33..=48 => qk::<8, 3, 4>(self.zmm, panel, keys, &[], s),
                _ if self.two_dots() => qk::<6, 4, 6>(self.zmm, panel, keys, &[], s),
                _ => qk::<6, 4, 2>(self.zmm, panel, keys, &[], s),
            }
        }
    }

    fn pv_asks(self, rows: usize) -> usize {
        const { assert!(few::C2_ROWS >= 12) };
        // More rows leave memory time enough for C1's requests. Not timed on other cores.
        if self.two_dots() && rows <= 12 {
            BLOCK_KEYS / 2
        } else {
            0
        }
    }

    fn prob(self, p: &L0a, precision: Precision, k: usize, r: usize) -> f32 {
        prob_of(p, precision, k, r, |tile| p::pair_of(tile, k / 2, r))
    }

    fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
        // SAFETY: the token proves the features.
        unsafe { softmax(self, call, s, p, state) }
    }

    fn pv<const D_V: usize>(
        self,
        call: &Pv<'_>,
        p: &L0a,
        v: &[VBuffer; 3],
        _scratch: &mut L0b,
        o: &mut [OStrip],
    ) -> Left {
        // SAFETY: the token proves the features.
        unsafe { c2::pv::<D_V>(self.zmm, call, p, v, o) }
        Left::NOTHING
    }

    fn pv_panels<const D_V: usize>(
        self,
        calls: &[Pv<'_>],
        p: &[&L0a],
        values: &Rows<'_>,
        scratch: &mut L0b,
        o: &mut [OStrip],
    ) -> Left {
        // SAFETY: the token proves the features.
        let all = unsafe { c2::pv_packing::<D_V>(self.zmm, calls, p, values, scratch, o) };
        Left { all, tail: 0 }
    }

    fn pv_direct<const D_V: usize>(
        self,
        call: &Pv<'_>,
        p: &L0a,
        values: &Rows<'_>,
        scratch: &mut L0b,
        o: &mut [OStrip],
    ) -> Left {
        let all = if call.rows <= few::C2_ROWS {
            // SAFETY: the token proves the features.
            unsafe { few::pv::<D_V>(self, call, p, values, o) }
        } else {
            // SAFETY: the token proves the features.
            unsafe { c2::pv_packing::<D_V>(self.zmm, from_ref(call), &[p], values, scratch, o) }
        };
        Left { all, tail: 0 }
    }

    fn stream<const D_QK: usize, const D_V: usize>(
        self,
        call: &Softmax<'_>,
        block: &Streams<'_, D_QK, D_V>,
        from: usize,
        p: &mut L0a,
        state: &mut RowState,
        o: &mut [OStrip],
    ) -> Streamed {
        // SAFETY: the token proves the features.
        unsafe { stream::stream(self, call, block, from, p, state, o) }
    }

    fn settle_stream(self, o: &mut [OStrip], rows: usize, back: bool) {
        // SAFETY: the token proves the features.
        unsafe { stream::settle(o, rows, back) }
    }

    fn rescale(self, xs: &mut [f32], increment: Increment) {
        // SAFETY: the token proves the features.
        unsafe { rescale(self.zmm, xs, increment) }
    }

    fn close(
        self,
        call: &Close<'_>,
        earlier: Option<&OStrip>,
        o: &mut OStrip,
        put: impl FnMut(usize, &[f32; STRIP]),
    ) {
        // SAFETY: the token proves the features.
        unsafe { close(self.zmm, call, earlier, o, put) }
    }

    fn dot_loop(self, iterations: u64) -> u64 {
        // SAFETY: the token proves the features.
        unsafe { dot_loop(iterations) }
    }
}

/// Rows across the lanes, or for few rows one after the other.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn pack_q<const D_QK: usize>(zmm: Zmm, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
    if rows.len() <= few::C1_ROWS {
        few::pack_q::<D_QK>(rows, negate, panel);
    } else {
        zmm::pack_q::<D_QK>(zmm, rows, negate, panel);
    }
}

/// C1: all keys of the block over one chunk of the Q panel, `q`, then over the next. Not for each width anew:
/// the compiler would gain nothing from knowing it.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn qk<const KEYS: usize, const VECS: usize, const GROUP: usize>(
    zmm: Zmm,
    q: &[[u32; PANEL_ROWS]],
    keys: &Rows<'_>,
    next: &[&[bf16]],
    s: &mut STile,
) -> Option<Maxima> {
    let keys = keys.as_slice();
    let d_qk = 2 * q.len();
    let mut max = [f32::NEG_INFINITY; PANEL_ROWS];
    // A group at the end repeats the last key; nobody reads the copies.
    let mut rows = [*keys.last()?; BLOCK_KEYS];
    for (row, key) in rows.iter_mut().zip(keys) {
        *row = &key[..d_qk];
    }
    let groups = &rows.as_chunks::<KEYS>().0[..keys.len().div_ceil(KEYS)];
    // The column and the group that are asked for.
    let (mut column, mut ahead) = (0, 2);
    let mut far = Ahead::of(next, groups.len() * q.chunks(PAIRS_K).len() * 3);
    for (chunk, q) in q.chunks(PAIRS_K).enumerate() {
        for (group, s) in groups.iter().zip(s.0.as_chunks_mut().0) {
            while ahead >= groups.len() {
                ahead -= groups.len();
                column += 2 * PAIRS_K;
            }
            let tile = KeyTile {
                zmm,
                keys: group,
                column: 2 * PAIRS_K * chunk,
                next: &groups[ahead],
                next_column: column,
            };
            ahead += 1;
            let max = (2 * (PAIRS_K * chunk + q.len()) == d_qk).then_some(&mut max);
            tile.qk::<VECS, GROUP>(q, &mut far, s, max);
        }
    }
    Some(max)
}

/// A group of keys, and the one that is asked for meanwhile.
struct KeyTile<'a, const KEYS: usize> {
    zmm: Zmm,
    keys: &'a [&'a [bf16]; KEYS],
    /// Where the chunk begins.
    column: usize,
    next: &'a [&'a [bf16]; KEYS],
    /// Where the other's chunk does. Behind the last column: nothing is left to ask for.
    next_column: usize,
}

/// Pairs at a tile's end that its keys take a few at a time.
const LAST: usize = 8;

impl<const KEYS: usize> KeyTile<'_, KEYS> {
    /// `s[key][row] (+)= sum over pairs of k[key][pair] . q[pair][row]`.
    ///
    /// Over the last pairs `GROUP` keys go first, then as many others: scores of the former are added up and
    /// written beside products of the latter, where all at once they would hold the next tile's up. A core that does
    /// two dots a cycle needs more of them at once than that leaves.
    ///
    /// With the last chunk the scores are whole, and `max` keeps up with the largest of each row.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn qk<const VECS: usize, const GROUP: usize>(
        &self,
        q: &[[u32; PANEL_ROWS]],
        far: &mut Ahead<'_>,
        s: &mut [[f32; PANEL_ROWS]; KEYS],
        mut max: Option<&mut Maxima>,
    ) {
        const { assert!(KEYS.is_multiple_of(GROUP) && KEYS <= 3 * GROUP) };
        let mut acc = [[_mm512_setzero_ps(); VECS]; KEYS];
        // A minimum, for the compiler not to know how many: it would unroll, and put together what hangs on
        // each other.
        let (most, last) = q.split_at(q.len() - q.len().min(LAST));
        for (line, q) in most.chunks(LANES).enumerate() {
            // A few at a time: a core has room for so many lines on their way, and may drop others.
            self.ask(2 * LANES * line);
            // Wider tiles are given nothing to ask for.
            if const { VECS < 3 } {
                far.step_far(self.zmm);
            }
            let column = self.column + 2 * LANES * line;
            accumulate(q, self.keys, column, &mut acc);
        }
        // The line that the chunk ends in, where it doesn't begin with one.
        self.ask(2 * PAIRS_K - 1);
        let column = self.column + 2 * most.len();
        self.end::<VECS, GROUP, 0>(last, column, &acc, s, max.as_deref_mut());
        if KEYS > GROUP {
            self.end::<VECS, GROUP, 1>(last, column, &acc, s, max.as_deref_mut());
        }
        if KEYS > 2 * GROUP {
            self.end::<VECS, GROUP, 2>(last, column, &acc, s, max);
        }
    }

    /// The last pairs of the keys from `G * GROUP` on, and what becomes of their sums. `G` is a constant for all
    /// accumulators to be indexed by constants, as they have to be in registers.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn end<const VECS: usize, const GROUP: usize, const G: usize>(
        &self,
        q: &[[u32; PANEL_ROWS]],
        column: usize,
        all: &[[__m512; VECS]; KEYS],
        s: &mut [[f32; PANEL_ROWS]; KEYS],
        max: Option<&mut Maxima>,
    ) {
        let mut acc = [[_mm512_setzero_ps(); VECS]; GROUP];
        for i in 0..GROUP {
            acc[i] = all[G * GROUP + i];
        }
        accumulate(q, &self.keys.as_chunks().0[G], column, &mut acc);
        let s: &mut [_; GROUP] = &mut s.as_chunks_mut().0[G];
        if self.column > 0 {
            for (acc, s) in acc.iter_mut().zip(&*s) {
                for (acc, s) in acc.iter_mut().zip(s.as_chunks().0) {
                    *acc = _mm512_add_ps(load(s), *acc);
                }
            }
        }
        for (acc, s) in acc.iter().zip(s) {
            for (&acc, s) in acc.iter().zip(s.as_chunks_mut().0) {
                store(s, acc);
            }
        }
        if let Some(max) = max {
            for (v, max) in max.as_chunks_mut().0.iter_mut().take(VECS).enumerate() {
                let mut largest = load(max);
                for acc in &acc {
                    // The second where the first is NaN.
                    largest = _mm512_max_ps(acc[v], largest);
                }
                store(max, largest);
            }
        }
    }

    /// Asks for a line of each of the other keys, where it has an element so far from its chunk's
    /// first.
    #[inline(always)]
    fn ask(&self, element: usize) {
        let column = (self.next_column + element).min(self.next[0].len() - 1);
        for key in self.next {
            self.zmm.prefetch(key.as_ptr().wrapping_add(column));
        }
    }
}

/// `acc[key][row] += sum over pairs of k[key][pair] . q[pair][row]`, keys from `column` on.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn accumulate<const KEYS: usize, const VECS: usize>(
    q: &[[u32; PANEL_ROWS]],
    keys: &[&[bf16]; KEYS],
    column: usize,
    acc: &mut [[__m512; VECS]; KEYS],
) {
    assert!(keys.iter().all(|k| column + 2 * q.len() <= k.len()));
    for (pair, q) in q.iter().enumerate() {
        let q: [__m512bh; VECS] = core::array::from_fn(|v| load_pairs(&q.as_chunks().0[v]));
        let column = column + 2 * pair;
        for (acc, k) in acc.iter_mut().zip(keys) {
            // SAFETY: column + 1 < column + 2 * q.len() for all of q, and k holds so many
            // elements, asserted above; the load needs no alignment.
            let k = unsafe { k.as_ptr().add(column).cast::<i32>().read_unaligned() };
            let k = as_pairs(_mm512_set1_epi32(k));
            for (acc, q) in acc.iter_mut().zip(q) {
                *acc = _mm512_dpbf16_ps(*acc, q, k);
            }
        }
    }
}

/// V1, with the processor's own conversion and dots.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn softmax(kernel: Avx512Bf16, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
    let keep = Pairs::<Blocked>(Blocked(kernel.dots));
    softmax::softmax(kernel.zmm, keep, call, s, p, state, || ());
}

#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn rescale(zmm: Zmm, xs: &mut [f32], increment: Increment) {
    simd::rescale(zmm, xs, increment);
}

#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn close(
    zmm: Zmm,
    call: &Close<'_>,
    earlier: Option<&OStrip>,
    o: &mut OStrip,
    put: impl FnMut(usize, &[f32; STRIP]),
) {
    simd::close(zmm, false, call, earlier, o, put);
}

#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
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
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn load(x: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 f32 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn store(to: &mut [f32; LANES], x: __m512) {
    // SAFETY: 16 f32 are 64 bytes; no alignment needed.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
}
