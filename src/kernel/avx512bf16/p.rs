//! P as C2 wants it: 16 rows at a time, of those all pairs of keys (the NPU's L0A has blocks of 16 rows, too).
//!
//! In a tile of pairs x rows those of a few rows are 256 bytes apart, and share a quarter of L1d's sets with a strip of V
//! (`docs/design.md`).
#![allow(unsafe_code, reason = "pointer loads and stores")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use super::common::*;
use crate::kernel::simd::pairs_mut;
use crate::kernel::softmax::RoundPairs;

/// Rows of a block.
pub const BLOCK_ROWS: usize = LANES;
/// P of such rows: pairs x rows.
pub type Block = [[u32; BLOCK_ROWS]; BLOCK_PAIRS];

const _: () = assert!(PANEL_ROWS.is_multiple_of(BLOCK_ROWS));

/// A tile's memory by blocks.
pub fn blocks(p: &PTile) -> &[Block] {
    p.0.as_flattened().as_chunks().0.as_chunks().0
}

/// The same, to be written.
pub fn blocks_mut(p: &mut PTile) -> &mut [Block] {
    p.0.as_flattened_mut().as_chunks_mut().0.as_chunks_mut().0
}

/// The index of a row's first pair in that memory; the others follow [`BLOCK_ROWS`] further on each.
pub const fn offset(row: usize) -> usize {
    row / BLOCK_ROWS * (BLOCK_ROWS * BLOCK_PAIRS) + row % BLOCK_ROWS
}

/// The pair that a row has.
pub fn pair_of(p: &PTile, pair: usize, row: usize) -> u32 {
    blocks(p)[row / BLOCK_ROWS][pair][row % BLOCK_ROWS]
}

/// [`RoundPairs`] with the processor's own conversion and dots, stored in blocks.
#[derive(Clone, Copy)]
pub struct Blocked(pub Dots);

impl RoundPairs<Zmm> for Blocked {
    #[inline(always)]
    fn round(self, zmm: Zmm, prob: [__m512; 2]) -> __m512i {
        self.0.round(zmm, prob)
    }

    #[inline(always)]
    fn add(self, zmm: Zmm, sum: __m512, pairs: __m512i) -> __m512 {
        self.0.add(zmm, sum, pairs)
    }

    #[inline(always)]
    fn slot(p: &mut PTile, [pair, v]: [usize; 2]) -> &mut [f32; LANES] {
        &mut pairs_mut::<Zmm>(&mut blocks_mut(p)[v][pair])[0]
    }
}
