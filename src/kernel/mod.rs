//! The seam between AMLA and an instruction set: a handful of micro-kernels, as in BLIS.
//!
//! A backend sees whole tiles only ([`crate::tile`]). It implements, for one
//! panel of query rows and one block of keys:
//!
//! | stage | paper | operation |
//! |---|---|---|
//! | [`qk`](Kernel::qk) | C1, Algorithm 2 line 4 | `S^T = K Q^T` |
//! | [`softmax`](Kernel::softmax) | V1, lines 5-12 | running reference, P, sums, increments |
//! | [`pv`](Kernel::pv) | C2, lines 13-18 | `O += increment` on the bits, then `O += P V`, for all panels |
//! | [`epilogue`](Kernel::epilogue) | line 20 | normalise, merge, store |
//!
//! [`cycle`](Kernel::cycle) runs the stages of one cycle of the pipeline. With few rows a backend may
//! run all three stages in one pass over a few keys at a time ([`fused`](Kernel::fused)).
//! How to add a backend: `CONTRIBUTING.md`.
#![cfg_attr(
    amla_emulated,
    allow(unused_unsafe, reason = "functions without `target_feature` are safe to call")
)]

mod backend;
mod detect;
mod fp32;
mod memory;
mod portable;
pub mod prefetch;
mod scalar;
mod simd;
mod softmax;
#[cfg(test)]
mod tests;

/// The instructions that `avx512`, `avx512bf16` and `amx` are written with.
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod arch;
/// Twins of these in plain Rust, for tests: under `--cfg amla_emulated` what `arch` has.
#[cfg(any(amla_emulated, all(test, target_arch = "x86_64", target_feature = "sse2")))]
mod emulated;

// Linux is the only system whose permission for tiles is known. Small tiles are smaller than those.
#[cfg(all(
    any(
        amla_emulated,
        all(target_arch = "x86_64", target_feature = "sse2", target_os = "linux")
    ),
    target_pointer_width = "64",
    not(amla_tiles = "small")
))]
mod amx;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod asimd;
// A build without SSE2 is for code that may not touch vector registers at all, a kernel's, and the
// compiler has no way to pass vectors there.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod avx2;
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod avx512;
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod avx512bf16;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod neon;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", not(amla_tiles = "small")))]
mod neonbf16;
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod zmm;

use core::ops::Range;
use core::slice::IterMut;

pub use backend::{Backend, BackendId, Visitor};
use half::bf16;
pub use memory::{heads, pointers, row_tile};
use scalar::half_of;

use crate::bits::{Increment, bf16_to_f32};
use crate::format::Row;
use crate::problem::{Precision, Rescale};
use crate::tile::{
    BLOCK_KEYS, L0a, L0b, ORow, PANEL_ROWS, PTile, QPanel, RowState, STRIP, STile, Tiles,
};

/// The rows of one block, wherever they are in memory.
pub struct Rows<'a> {
    rows: [&'a [bf16]; BLOCK_KEYS],
    len: usize,
}

impl<'a> Rows<'a> {
    /// No rows.
    pub const NONE: Self = Self {
        rows: [&[]; BLOCK_KEYS],
        len: 0,
    };

    /// Takes `rows` instead; at most one block of them.
    pub fn gather(&mut self, rows: impl Iterator<Item = &'a [bf16]>) {
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
    pub fn as_slice(&self) -> &[&'a [bf16]] {
        &self.rows[..self.len]
    }
}

/// Room for a block's rows.
pub struct Slots<'s, 'a>(IterMut<'s, &'a [bf16]>);

impl<'a> Slots<'_, 'a> {
    /// Takes one more row, unless the block is full.
    pub fn put(&mut self, row: &'a [bf16]) {
        if let Some(slot) = self.0.next() {
            *slot = row;
        }
    }
}

/// Which rows of a panel see each key of a block: bit `r` of a key's word is row `r`.
pub type Mask = [u64; BLOCK_KEYS];

const _: () = assert!(PANEL_ROWS <= u64::BITS as usize);

/// C1 of one panel and block.
pub struct Qk<'a> {
    /// The panel of [`Tiles::q`].
    pub panel: usize,
    /// Rows of the panel.
    pub rows: usize,
    /// Keys of the block.
    pub keys: &'a Rows<'a>,
    /// Rows to prefetch.
    pub prefetch: &'a [&'a [bf16]],
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
    pub prefetch: &'a [&'a [bf16]],
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

/// C2 of one block, all panels of a group.
#[derive(Clone, Copy)]
pub struct Pv<'a> {
    /// Rows of the group: panels are full but for the last.
    pub rows: usize,
    /// Rows of the group as it was planned. Where the order of sums depends on the number of rows,
    /// it is on this one.
    #[allow(dead_code, reason = "for a backend that not every build has")]
    pub planned_rows: usize,
    /// Keys of the block.
    pub keys: usize,
    /// Values of the block.
    pub values: &'a Rows<'a>,
    /// Whether P's low part is added.
    pub precision: Precision,
    /// Whether this is the first block, which overwrites O. Others add P's increments to its bits.
    pub first: bool,
    /// Rows to prefetch.
    pub prefetch: &'a [&'a [bf16]],
}

impl Pv<'_> {
    /// Rows of a panel.
    pub fn panel_rows(&self, panel: usize) -> usize {
        PANEL_ROWS.min(self.rows - panel * PANEL_ROWS)
    }

    /// The rows of strip `strip` of a panel's O, of `strips`, and what room it has behind them.
    pub fn strip<'o>(
        &self,
        panel: usize,
        strip: usize,
        strips: usize,
        o: &'o mut [ORow],
    ) -> &'o mut [ORow] {
        let len = strip_rows(self.panel_rows(panel), self.planned_rows);
        &mut o[panel * strips * PANEL_ROWS + strip * len..][..len]
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
/// that strips are close together and don't share a few sets of L1d.
pub const fn strip_rows(rows: usize, planned_rows: usize) -> usize {
    const FEW: usize = 16;
    if planned_rows <= FEW {
        rows
    } else {
        rows.next_multiple_of(FEW)
    }
}

/// [`Kernel::prob`] of where a tile has the key's pair.
fn prob_of(p: &L0a, precision: Precision, k: usize, r: usize, pair: impl Fn(&PTile) -> u32) -> f32 {
    let mut prob = bf16_to_f32(half_of(pair(&p.high), k));
    let residuals = &p.residuals;
    match precision {
        Precision::Bf16x2 => prob += bf16_to_f32(half_of(pair(&p.low), k)),
        Precision::Bf16 if residuals.pair[r] as usize == k / 2 => {
            prob += bf16_to_f32(half_of(residuals.p[r], k));
        }
        Precision::Bf16 => {}
    }
    prob * p.weights[r]
}

/// The end of a panel's O, in this order. A product that is NaN is [`NAN`](crate::bits::NAN).
pub struct Epilogue<'a> {
    /// Rows of the panel: some or all.
    pub rows: Range<usize>,
    /// The factor of each row; 1 leaves it as it is.
    pub factor: &'a [f32; PANEL_ROWS],
    /// What is added to the bits of each row of O over earlier keys, and of this one; nothing without
    /// earlier keys.
    pub increments: &'a [[Increment; 2]; PANEL_ROWS],
    /// The factor of the sum.
    pub inverse: Option<&'a [f32; PANEL_ROWS]>,
}

/// A set of strips of O, a bit each.
pub type Strips = u32;

/// Strips of O that C2 skipped because an element of V may not be finite, for all panels.
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

/// [`Kernel::fused`] takes a multiple of this many keys at once. Keys behind a block's last don't count.
pub const FUSED_MULTIPLE: usize = 16;
/// Rows that [`Kernel::fused`] is given: a block's, and all that it may compute on or prefetch beyond.
pub const FUSED_KEYS: usize = BLOCK_KEYS + 104;

/// The operands of [`Kernel::fused`].
#[allow(dead_code, reason = "for backends that not every build has")]
pub struct FusedBlock<'a, const D_QK: usize, const D_V: usize> {
    /// The queries, as [`Kernel::pack_q`] packs them for it.
    pub q: &'a QPanel,
    /// A block's keys, and others.
    pub keys: &'a [&'a [bf16; D_QK]; FUSED_KEYS],
    /// Rows to prefetch some keys ahead: the keys and those behind them, or others in their
    /// place. These may be anywhere.
    pub prefetch: &'a [*const bf16; FUSED_KEYS],
    /// Its values, and copies of the last up to a [multiple](FUSED_MULTIPLE): one that isn't finite
    /// there would show. It may be `keys` itself, where values are the heads of keys and there are
    /// whole multiples of them.
    pub values: &'a [&'a [bf16; D_V]; FUSED_KEYS],
}

/// Where [`Kernel::fused`] stopped.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedEnd {
    /// The last keys that it computed, if C2 skipped strips: P is of those keys then, and O was rescaled.
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
}

/// The order of O's columns within a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// As in V.
    Natural,
    /// As C2 keeps them.
    Own,
}

/// An instruction set's micro-kernels.
///
/// Implementors are capability tokens: holding one proves that the processor
/// has the instructions.
pub trait Kernel: Copy {
    /// C1 stages that run ahead of C2 ([`crate::schedule::cycles`]): 2 where [`cycle`](Self::cycle)
    /// overlaps matrix and vector work, 0 where stages run one after the other.
    const PRELOAD: usize = 0;
    /// Up to this many rows of a planned group [`fused`](Self::fused) beats the stages one by one.
    const FUSED_ROWS: usize = 0;

    /// The keys that each stage prefetches.
    fn prefetch_budget(self, _rows: &prefetch::Shape) -> prefetch::Budget {
        prefetch::Budget::NONE
    }

    /// Writes the first columns of a stored row, rounded to BF16.
    fn convert(self, row: &Row<'_>, out: &mut [bf16]);

    /// Packs up to [`PANEL_ROWS`] query rows of `D_QK` elements into a panel, with signs flipped if
    /// `negate`, and zero rows behind them as far as C1 reads: for [`fused`](Self::fused) or
    /// [`qk`](Self::qk).
    fn pack_q<const D_QK: usize>(
        self,
        rows: &[&[bf16]],
        negate: bool,
        fused: bool,
        panel: &mut QPanel,
    );

    /// C1: the scores of the block's keys for the panel's rows. Lanes of rows beyond are
    /// unspecified.
    fn qk<const D_QK: usize>(self, call: &Qk<'_>, q: &QPanel, scratch: &mut L0b, s: &mut STile);

    /// V1: P, the running state and the increments of one block.
    fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState);

    /// P of key `k` and row `r` as C2 takes it.
    fn prob(self, p: &L0a, precision: Precision, k: usize, r: usize) -> f32 {
        prob_of(p, precision, k, r, |tile| tile.0[k / 2][r])
    }

    /// C2 of all panels: rescales the rows of O whose reference moved by integer addition, tile by tile,
    /// and adds `P V`.
    ///
    /// `p` has each panel's P. `o` has `D_V / 64` strips of [`strip_rows`] rows for each panel, panel by
    /// panel [`PANEL_ROWS`] rows a strip apart.
    fn pv<const D_V: usize>(
        self,
        call: &Pv<'_>,
        p: &[&L0a],
        scratch: &mut L0b,
        o: &mut [ORow],
    ) -> Skipped;

    /// The stages of one cycle. A core with a matrix unit beside its vector unit can overlap them
    /// where [`PRELOAD`](Self::PRELOAD) is 2.
    fn cycle<const D_QK: usize, const D_V: usize>(
        self,
        stages: &Stages<'_>,
        tiles: &mut Tiles,
        o: &mut [ORow],
    ) -> Skipped {
        let Tiles {
            q,
            l0a,
            l0b,
            l0c,
            ub,
        } = tiles;
        if let Some(c1) = &stages.c1 {
            self.qk::<D_QK>(c1, &q[c1.panel], l0b, &mut l0c[c1.s]);
        }
        if let Some(v1) = &stages.v1 {
            self.softmax(&v1.call, &l0c[v1.s], &mut l0a[v1.p], &mut ub[v1.panel]);
        }
        let Some(c2) = &stages.c2 else {
            return Skipped::NONE;
        };
        let mut p = [&l0a[0]; crate::tile::PANELS];
        for (to, &p) in p.iter_mut().zip(c2.p) {
            *to = &l0a[p];
        }
        self.pv::<D_V>(&c2.call, &p[..c2.p.len()], l0b, o)
    }

    /// C1, V1 and C2 of up to [`FUSED_ROWS`](Self::FUSED_ROWS) rows over the keys of a block from `from`
    /// on, a few at a time. O has the columns in the backend's own order.
    fn fused<const D_QK: usize, const D_V: usize>(
        self,
        call: &Softmax<'_>,
        _block: &FusedBlock<'_, D_QK, D_V>,
        from: usize,
        _p: &mut L0a,
        _state: &mut RowState,
        _o: &mut [ORow],
    ) -> FusedEnd {
        let skipped = Skipped {
            all: Strips::MAX,
            tail: 0,
        };
        FusedEnd {
            keys: from..call.keys,
            skipped,
        }
    }

    /// Brings the columns of rows of strips of O from the order in which C2, or with `fused` the fused
    /// kernel, keeps them into another order.
    fn permute(self, _fused: bool, _o: &mut [ORow], _to: Columns) {}

    /// Brings a strip of O to its end, row by row: multiplies it, adds O over earlier keys, both
    /// moved by integer addition, normalises it, and hands each row to `store`. `o` and `earlier` have
    /// the panel's rows.
    fn epilogue(
        self,
        call: &Epilogue<'_>,
        earlier: Option<&[ORow]>,
        o: &mut [ORow],
        store: impl FnMut(usize, &[f32; STRIP]),
    );

    /// Adds `increment` to the bits of every element
    /// ([`crate::bits::add_increment_f32`], bit for bit).
    fn rescale(self, xs: &mut [f32], increment: Increment);

    /// Runs `iterations` of a register-resident loop of the backend's own
    /// multiply-add and returns the FLOP done.
    fn dot_loop(self, iterations: u64) -> u64;
}
