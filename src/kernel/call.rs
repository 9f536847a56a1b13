//! The operands and results of kernels.

use core::ops::Range;
use core::slice::IterMut;

use super::memory::{FUSED_KEYS, ThinRows, Word};
use crate::bits::Increment;
use crate::format::Dtype;
use crate::problem::{Precision, Rescale};
#[cfg(doc)]
use crate::tile::Tiles;
use crate::tile::{BLOCK_KEYS, ORow, PANEL_ROWS, QPanel};

/// The rows of one block, wherever they are in memory.
pub struct Rows<'a> {
    /// How numbers are stored.
    pub dtype: Dtype,
    rows: [&'a [Word]; BLOCK_KEYS],
    len: usize,
}

impl<'a> Rows<'a> {
    /// No rows.
    pub const NONE: Self = Self::of(Dtype::Bf16);

    /// No rows yet, of numbers that are stored so.
    pub const fn of(dtype: Dtype) -> Self {
        Self {
            dtype,
            rows: [&[]; BLOCK_KEYS],
            len: 0,
        }
    }

    /// Takes `rows` instead; at most one block of them.
    pub fn gather(&mut self, rows: impl Iterator<Item = &'a [Word]>) {
        self.fill(|slots| rows.for_each(|row| slots.put(row)));
    }

    /// Takes the rows instead that `fill` puts into slots. They are counted once: with the number in
    /// memory, each row would wait for the one before.
    pub fn fill(&mut self, fill: impl FnOnce(&mut Slots<'_, 'a>)) {
        let mut slots = Slots(self.rows.iter_mut());
        fill(&mut slots);
        self.len = BLOCK_KEYS - slots.0.len();
    }

    /// Removes all rows.
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// The rows.
    pub fn as_slice(&self) -> &[&'a [Word]] {
        &self.rows[..self.len]
    }
}

/// Room for a block's rows.
pub struct Slots<'s, 'a>(IterMut<'s, &'a [Word]>);

impl<'a> Slots<'_, 'a> {
    /// Takes one more row, unless the block is full.
    pub fn put(&mut self, row: &'a [Word]) {
        if let Some(slot) = self.0.next() {
            *slot = row;
        }
    }
}

/// Which rows of a panel see each key of a block: bit `r` of a key's word is row `r`.
pub type Mask = [u64; BLOCK_KEYS];

const _: () = assert!(PANEL_ROWS <= u64::BITS as usize);

/// Query rows of a panel in BF16, to be packed.
pub struct PackQ<'a> {
    /// Numbers of each.
    pub d_qk: usize,
    /// At most [`PANEL_ROWS`].
    pub rows: &'a [&'a [Word]],
    /// Whether signs are flipped.
    pub negate: bool,
    /// How keys are stored, if the fused kernel takes the queries.
    pub fused: Option<Dtype>,
}

/// A query row of a panel in FP32, to be packed.
#[allow(dead_code, reason = "for kernels that multiply in FP32")]
pub struct PackRow<'a> {
    /// Its numbers.
    pub numbers: &'a [f32],
    /// Which row of the panel.
    pub row: usize,
    /// Rows of the panel.
    pub rows: usize,
    /// Whether signs are flipped.
    pub negate: bool,
    /// How keys are stored, if the fused kernel takes the queries.
    pub fused: Option<Dtype>,
}

/// The tiles of [`Tiles::q`] that have a panel of queries: two of FP32, as others are packed unless they are BF16.
pub fn panel_memory(queries: Dtype, panel: usize) -> Range<usize> {
    let tiles = if queries == Dtype::Bf16 { 1 } else { 2 };
    panel * tiles..(panel + 1) * tiles
}

/// C1 of one panel and block.
pub struct Qk<'a> {
    /// The panel of [`Tiles::q`].
    pub panel: usize,
    /// Rows of the panel.
    pub rows: usize,
    /// BF16, or FP32: how they are packed.
    pub queries: Dtype,
    /// Width of keys and queries.
    pub d_qk: usize,
    /// Keys of the block: the first ones, where the panel's rows see none of the others.
    pub keys: &'a [&'a [Word]],
    /// How these are stored.
    pub dtype: Dtype,
    /// Rows to prefetch.
    pub prefetch: &'a [&'a [Word]],
    /// The tile of [`Tiles::l0c`] that takes S.
    pub s: usize,
}

/// V1 of one panel and block, or of a fused block.
pub struct Softmax<'a> {
    /// Rows of the panel.
    pub rows: usize,
    /// Keys of the block.
    pub keys: usize,
    /// `log2(e) * |softmax_scale|`: scores become powers of two. The sign went
    /// into Q.
    pub scale: f32,
    /// Which rows see each of the block's keys; `None` where all see all of them.
    pub mask: Option<&'a Mask>,
    /// How the reference follows the maximum.
    pub rescale: Rescale,
    /// Whether P's low part is stored.
    pub precision: Precision,
    /// Rows to prefetch.
    #[allow(dead_code, reason = "for a backend that not every build has")]
    pub prefetch: &'a [&'a [Word]],
}

/// V1 of a cycle: the call and its tiles.
pub struct V1<'a> {
    /// The panel, whose state is in [`Tiles::ub`].
    pub panel: usize,
    /// The tile of [`Tiles::l0c`] that has S.
    pub s: usize,
    /// The tile of [`Tiles::l0a`] that takes P.
    pub p: usize,
    /// The rest.
    pub call: Softmax<'a>,
}

/// C2 of one block and neighbouring panels of a group.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "for backends that not every build has")]
pub struct Pv<'a> {
    /// Rows of these panels, which are full but for the last.
    pub rows: usize,
    /// Rows of the group as it was planned. Where the order of sums depends on the number of rows,
    /// it is on this one.
    pub planned_rows: usize,
    /// Keys of the block.
    pub keys: usize,
    /// Strips of values, and of O.
    pub strips: usize,
    /// Values of the block.
    pub values: &'a Rows<'a>,
    /// Whether P's low part is added.
    pub precision: Precision,
    /// Whether strips are skipped in which values aren't finite, as some row doesn't see some key: with a P of 0 it would be NaN.
    /// Otherwise products are what IEEE 754 says, but for those of a P in two parts.
    pub skips: bool,
    /// Whether this is the first block, which overwrites O. Others add P's increments to its bits.
    pub first: bool,
    /// Rows to prefetch.
    pub prefetch: &'a [&'a [Word]],
}

impl Pv<'_> {
    /// Rows of a panel.
    pub fn panel_rows(&self, panel: usize) -> usize {
        PANEL_ROWS.min(self.rows - panel * PANEL_ROWS)
    }

    /// The rows of strip `strip` of a panel's O, and what room it has behind them.
    pub fn strip<'o>(&self, panel: usize, strip: usize, o: &'o mut [ORow]) -> &'o mut [ORow] {
        let len = strip_rows(self.panel_rows(panel), self.planned_rows);
        &mut o[panel * self.strips * PANEL_ROWS + strip * len..][..len]
    }
}

/// C2 of a cycle: the call and its tiles.
pub struct C2<'a> {
    /// The tile of [`Tiles::l0a`] that has each panel's P.
    pub p: &'a [usize],
    /// The rest.
    pub call: Pv<'a>,
}

/// The stages of one cycle; see [`crate::schedule::cycles`].
pub struct Stages<'a> {
    /// C1 of an item.
    pub c1: Option<Qk<'a>>,
    /// V1 of the same item, or the one before.
    pub v1: Option<V1<'a>>,
    /// C2 of the last block that V1 is through with.
    pub c2: Option<C2<'a>>,
}

/// Rows that each strip of O has room for, for `rows` rows of a panel: with few rows none more, so
/// that strips are contiguous and don't share a few sets of L1d.
pub const fn strip_rows(rows: usize, planned_rows: usize) -> usize {
    const COMPACT: usize = 16;
    if planned_rows <= COMPACT {
        rows
    } else {
        rows.next_multiple_of(COMPACT)
    }
}

/// The end of a panel's O, in this order. A product that is NaN is [`NAN`](crate::bits::NAN).
pub struct Epilogue<'a> {
    /// Rows of the panel: some or all.
    pub rows: Range<usize>,
    /// The factor of each row; 1 leaves it as it is.
    pub factor: Option<&'a [f32; PANEL_ROWS]>,
    /// What is added to the bits of each row of O over earlier keys, and of this one; nothing without
    /// earlier keys.
    pub increments: &'a [[Increment; 2]],
    /// The factor of the sum.
    pub inverse: Option<&'a [f32]>,
    /// Rows to come, to prefetch: a row with each.
    pub next: &'a [ORow],
}

impl Epilogue<'_> {
    /// Nothing is done to any row.
    pub const NONE: Self = Self {
        rows: 0..0,
        factor: None,
        increments: &[],
        inverse: None,
        next: &[],
    };
}

/// A set of strips of O, a bit each.
pub type Strips = u32;

/// Strips of O that C2 skipped because an element of V may not be finite, for all of its panels.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Strips that are as they were.
    pub all: Strips,
    /// Strips that lack the keys from [`TAIL`](Self::TAIL) on.
    pub tail: Strips,
}

impl Skipped {
    /// No strip.
    pub const NONE: Self = Self { all: 0, tail: 0 };
    /// The first key of a block's second half.
    pub const TAIL: usize = BLOCK_KEYS / 2;
}

/// [`Kernel::fused`](super::Kernel::fused) takes a multiple of this many keys at once. Keys behind a block's last don't count.
pub const FUSED_MULTIPLE: usize = 16;

/// The operands of [`Kernel::fused`](super::Kernel::fused).
#[allow(dead_code, reason = "for backends that not every build has")]
#[derive(Clone, Copy)]
pub struct FusedBlock<'a> {
    /// The first key to attend; those before it were attended in earlier calls.
    pub from: usize,
    /// The queries, as [`Kernel::pack_q`](super::Kernel::pack_q) packs them for it.
    pub q: &'a [QPanel],
    /// A block's keys, and others.
    pub keys: ThinRows<'a>,
    /// Rows to prefetch some keys before their use: the keys and those behind them, or others in their
    /// place. These may be anywhere.
    pub prefetch: &'a [*const Word; FUSED_KEYS],
    /// The same of values, where they are rows of their own: C1 prefetches keys then, and C2 values. Otherwise each prefetches
    /// half of the keys.
    pub prefetch_values: Option<&'a [*const Word; FUSED_KEYS]>,
    /// Its values, and copies of the last up to a [multiple](FUSED_MULTIPLE): one that isn't finite
    /// there would show. It may be `keys` itself, where values are the heads of keys and there are
    /// whole multiples of them.
    pub values: ThinRows<'a>,
}

/// Where [`Kernel::fused`](super::Kernel::fused) stopped.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedEnd {
    /// The last keys that it computed, if C2 skipped strips: P and the increments are of those keys then, and O was rescaled.
    pub keys: Range<usize>,
    /// The strips that C2 skipped for them.
    pub skipped: Skipped,
}

impl FusedEnd {
    /// All keys are done.
    #[allow(dead_code, reason = "for backends that not every build has")]
    pub const ALL: Self = Self {
        keys: 0..0,
        skipped: Skipped::NONE,
    };

    /// C2 skipped these strips for these keys, which are the last that are done.
    #[allow(dead_code, reason = "for backends that not every build has")]
    pub const fn skipping(strips: Strips, keys: Range<usize>) -> Self {
        let skipped = Skipped {
            all: strips,
            tail: 0,
        };
        Self { keys, skipped }
    }
}

/// The order of O's columns within a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// As in V.
    Natural,
    /// As C2 has them.
    Own,
}
