//! Fixed-size, 64-byte aligned tiles that partition a thread's working set the
//! way AMLA partitions the Ascend 910's L1, L0 and UB.
//!
//! | Ascend 910 (paper, Hierarchical Tiling) | here | bytes |
//! |---|---|---|
//! | L1, four Q/P buffers of 72 KiB | [`QPanel`]: 64 query rows x 576 | 4 x 72 KiB |
//! | L1, three K/V buffers of 72 KiB | [`RowTile`]: 192 keys x 576, or their values | 216 KiB |
//! | L0A, two halves of 32 KiB | [`L0a`]: P of 192 keys x 64 rows, high and low part; one for each panel and one more | 5 x 49 KiB |
//! | L0B, two halves of 32 KiB | [`Fp32Tile`]: a strip of V packed, or operands in FP32 for backends without a BF16 dot | 2 x 24 KiB |
//! | L0C, two halves of 64 KiB | [`STile`]: scores of 192 keys x 64 rows; two are alive in the preload pipeline | 2 x 48 KiB |
//! | UB, 192 KiB | [`RowState`]: running exponent, sums and largest score of 64 rows | 4 x 1.5 KiB |
//! | GM | O accumulators, strips of 64 columns | 16 KiB for a panel |
//!
//! On a CPU the L1 budget falls into the L2 cache and L0 into L1d. All panels of
//! 256 rows fit at once, so Q stays packed for the whole call, where the NPU
//! shares its four buffers between Q and P and loads Q again in every iteration.
//! C2 takes panels of a block at once, so each panel has a P of its own; the
//! preload pipeline fills one more meanwhile. The K/V buffers hold one block of 192 keys,
//! which is how the block size follows from the budget (`docs/adr/0002`). The kernels read
//! BF16 rows in place, so the buffers are used only for keys or values that are converted or
//! concatenated first.
//!
//! **Small tiles.** Built with `--cfg amla_tiles="small"`, all this takes 152 KiB instead: one
//! panel of 16 rows, blocks of 24 keys (`docs/adr/0017`).
//!
//! **Pairs.** The BF16 dot instructions multiply two neighbouring elements per
//! 32-bit lane, so operands are stored as pairs in a `u32`: the element of even
//! index in the low half. Q pairs two features, P and V pair two keys.

use core::ops::Range;

use half::bf16;

/// The Ascend 910's memories and the paper's cut of them, in bytes.
pub mod ascend {
    /// L1 of a Cube core.
    pub const L1: usize = 512 * 1024;
    /// One of the seven buffers that L1 is cut into.
    pub const L1_BUFFER: usize = 72 * 1024;
    /// L1 buffers for Q and P.
    pub const QP_BUFFERS: usize = 4;
    /// L1 buffers for K and V.
    pub const KV_BUFFERS: usize = 3;
    /// L0A, left operands; double buffered.
    pub const L0A: usize = 64 * 1024;
    /// L0B, right operands; double buffered.
    pub const L0B: usize = 64 * 1024;
    /// L0C, accumulators; double buffered.
    pub const L0C: usize = 128 * 1024;
    /// Unified Buffer of a Vector core.
    pub const UB: usize = 192 * 1024;
    /// Rows that the paper processes at once: 128 heads, two query positions.
    pub const M: usize = 256;
    /// Depth of an L0 tile in C1: a sixth of the query's width.
    pub const BASE_K: usize = 96;
}

/// Whether this is a build for processors with little memory: `--cfg amla_tiles="small"`.
const SMALL: bool = cfg!(amla_tiles = "small");
/// Keys of the largest register tile of C1; every other one is a divisor.
const TILE_KEYS: usize = 24;

/// Query rows of a panel: four vectors of 16 FP32 lanes, or one.
pub const PANEL_ROWS: usize = if SMALL { 16 } else { 64 };
/// Panels that one task holds.
pub const PANELS: usize = if SMALL { 1 } else { ascend::QP_BUFFERS };
/// Query rows that one task holds: the paper's M, unless tiles are small.
pub const GROUP_ROWS: usize = PANELS * PANEL_ROWS;
/// Query rows that one task holds if queries aren't BF16: they are packed in FP32, which takes twice the memory.
pub const FP32_GROUP_ROWS: usize = Q_TILES / 2 * PANEL_ROWS;
/// Tiles of Q.
pub const Q_TILES: usize = if PANELS < 2 { 2 } else { PANELS };
/// Keys of a block.
pub const BLOCK_KEYS: usize = if SMALL { TILE_KEYS } else { 192 };
/// Key pairs of a block.
pub const BLOCK_PAIRS: usize = BLOCK_KEYS / 2;
/// Widest query.
pub const MAX_D_QK: usize = 576;
/// Columns of a strip of V and O.
pub const STRIP: usize = 64;
/// Numbers that the width of keys in kernels is a multiple of.
pub const WIDTH_MULTIPLE: usize = 32;
/// P tiles: one for each panel, and one that V1 fills while C2 reads the others.
pub const P_TILES: usize = PANELS + 1;
/// Widest value.
pub const MAX_D_V: usize = 512;

/// `R` rows of `C` elements, row-major, on a cache line boundary.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Tile<T, const R: usize, const C: usize>(pub [[T; C]; R]);

/// Q of one panel, transposed: feature pairs x rows.
pub type QPanel = Tile<u32, { MAX_D_QK / 2 }, PANEL_ROWS>;
/// One packed strip of V: key pairs x columns.
pub type VStrip = Tile<u32, BLOCK_PAIRS, STRIP>;
/// Scores of one block and panel, transposed: keys x rows; and the largest of each row over all keys, where a
/// backend's C1 finds it for its V1.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct STile(pub [[f32; PANEL_ROWS]; BLOCK_KEYS], pub [f32; PANEL_ROWS]);

/// Probabilities of one block and panel: key pairs x rows.
pub type PTile = Tile<u32, BLOCK_PAIRS, PANEL_ROWS>;
/// Half of the probabilities of one block and panel in FP32: key pairs x keys x rows.
pub type PTileFp32 = [[[f32; PANEL_ROWS]; 2]; BLOCK_PAIRS / 2];
/// An operand in FP32, 96 deep: a panel's rows, or the keys of a register tile.
pub type Fp32Tile = Tile<f32, { ascend::BASE_K }, FP32_ROWS>;
const FP32_ROWS: usize = if SMALL { TILE_KEYS } else { PANEL_ROWS };
/// BF16 rows of one block: keys or values.
pub type RowTile = [[bf16; MAX_D_QK]; BLOCK_KEYS];
/// A row of a strip of O.
pub type ORow = [f32; STRIP];

/// L0A: P of one panel and block, for backends with BF16 dots as two BF16 parts.
///
/// Others take the memory of both as one tile of FP32 ([`fp32`](Self::fp32)).
#[repr(C, align(64))]
pub struct L0a {
    /// P rounded to BF16.
    pub high: PTile,
    /// The residual of that rounding, rounded to BF16 ([`Precision::Bf16x2`](crate::Precision)).
    pub low: PTile,
    /// The residual of each row's largest P ([`Precision::Bf16`](crate::Precision)), unless that is a
    /// power of two.
    pub residuals: Residuals,
    /// The factor of each row's products: P is smaller by it than relative to the reference.
    pub weights: [f32; PANEL_ROWS],
    /// What C2 adds to the bits of each row of O before it accumulates.
    pub increment: [i32; PANEL_ROWS],
}

/// The rounding residual of a block's largest P of each row, as one more pair of P.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Residuals {
    /// The pair of keys.
    pub pair: [u32; PANEL_ROWS],
    /// `P - bf16(P)` as BF16 in the half of the key that has the largest P, zero in the other.
    pub p: [u32; PANEL_ROWS],
}

impl L0a {
    /// P in FP32, half of the keys x rows in either. Of each pair of keys the odd one comes
    /// first, which is the order of the sums.
    #[must_use]
    pub fn fp32(&self) -> [&PTileFp32; 2] {
        [&self.high, &self.low].map(|half| bytemuck::cast_ref(&half.0))
    }

    /// The same, to be written.
    pub fn fp32_mut(&mut self) -> [&mut PTileFp32; 2] {
        [&mut self.high, &mut self.low].map(|half| bytemuck::cast_mut(&mut half.0))
    }
}

/// L0B: a packed strip of V, or operands in FP32.
pub type L0b = [Fp32Tile; 2];

/// L0C: the scores of the two items in flight.
pub type L0c = [STile; crate::schedule::SCORE_TILES];

/// Per-row state of a panel between blocks, in the Unified Buffer.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct RowState {
    /// Reference exponent `e`, an integer (exact), or the running maximum in
    /// log2 units (compensated); -inf until a key was seen.
    pub reference: [f32; PANEL_ROWS],
    /// Sum of the unrounded P.
    pub sum: [f32; PANEL_ROWS],
    /// Sum of P as C2 uses it (exact).
    pub rounded_sum: [f32; PANEL_ROWS],
    /// Compensation `c` of the last block (compensated).
    pub c: [f32; PANEL_ROWS],
    /// S16 of the last block: the reference's fraction as a BF16 (compensated).
    pub factor: [f32; PANEL_ROWS],
    /// The largest unscaled score; -inf until a key was seen. NaN doesn't count.
    pub max: [f32; PANEL_ROWS],
}

impl RowState {
    /// All zeros, which is no state of a row.
    const ZERO: Self = Self {
        reference: [0.0; PANEL_ROWS],
        sum: [0.0; PANEL_ROWS],
        rounded_sum: [0.0; PANEL_ROWS],
        c: [0.0; PANEL_ROWS],
        factor: [0.0; PANEL_ROWS],
        max: [0.0; PANEL_ROWS],
    };

    /// Before the first block.
    pub const START: Self = Self {
        reference: [f32::NEG_INFINITY; PANEL_ROWS],
        c: [1.0; PANEL_ROWS],
        factor: [1.0; PANEL_ROWS],
        max: [f32::NEG_INFINITY; PANEL_ROWS],
        ..Self::ZERO
    };

    /// Overwrites rows from row `to` on by some of another panel's.
    pub fn copy_rows(&mut self, to: usize, from: &Self, rows: Range<usize>) {
        let own = to..to + rows.len();
        for (to, from) in [
            (&mut self.reference, &from.reference),
            (&mut self.sum, &from.sum),
            (&mut self.rounded_sum, &from.rounded_sum),
            (&mut self.c, &from.c),
            (&mut self.factor, &from.factor),
            (&mut self.max, &from.max),
        ] {
            to[own.clone()].copy_from_slice(&from[rows.clone()]);
        }
    }
}

/// The on-chip memories of one task, but for the K/V buffers.
#[repr(C, align(64))]
pub struct Tiles {
    /// Q, panel by panel (L1).
    pub q: [QPanel; Q_TILES],
    /// P.
    pub l0a: [L0a; P_TILES],
    /// A strip of V, or operands in FP32.
    pub l0b: L0b,
    /// S.
    pub l0c: L0c,
    /// Row state.
    pub ub: [RowState; PANELS],
}

/// Strips of values of a width, the last of which may have columns beyond.
pub const fn strips(d_v: usize) -> usize {
    d_v.div_ceil(STRIP)
}

/// The width of keys in kernels.
pub const fn padded_d_qk(d_qk: usize) -> usize {
    d_qk.next_multiple_of(WIDTH_MULTIPLE)
}

/// A row's reference exponent, -inf if it saw no key; its sum of the unrounded P; its largest unscaled score, -inf if it saw
/// no key.
pub type RowSums = [f32; ROW_SUMS];

/// Numbers of a row of a partial result beside its O.
pub const ROW_SUMS: usize = 3;

/// Most FP32 numbers of one task's partial result: O, and exponent, sum and largest score of each row.
pub const MAX_PARTIAL: usize = GROUP_ROWS * (MAX_D_V + ROW_SUMS);

/// The memory that one thread works in: about 1.9 MiB (152 KiB with small tiles), 64-byte
/// aligned.
///
/// It holds nothing between calls. Make one with [`Workspace::new`] (for a
/// `static`), or on the heap with `bytemuck::zeroed_box`, or view bytes as one
/// with [`Workspace::from_bytes`].
#[repr(C, align(64))]
pub struct Workspace {
    pub(crate) tiles: Tiles,
    /// The K/V buffers (L1): keys or values that can't be used in place.
    pub(crate) kv: RowTile,
    /// Where a row group's splits are merged, and the split in flight.
    pub(crate) partials: [[f32; MAX_PARTIAL]; 2],
}

impl Workspace {
    /// Zeroed memory: a `static` of it takes no room in the program's file.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            tiles: Tiles {
                q: [Tile([[0; _]; _]); _],
                l0a: [const {
                    L0a {
                        high: Tile([[0; _]; _]),
                        low: Tile([[0; _]; _]),
                        residuals: Residuals {
                            pair: [0; _],
                            p: [0; _],
                        },
                        weights: [0.0; _],
                        increment: [0; _],
                    }
                }; _],
                l0b: [Tile([[0.0; _]; _]); _],
                l0c: [STile([[0.0; _]; _], [0.0; _]); _],
                ub: [RowState::ZERO; _],
            },
            kv: [[bf16::ZERO; _]; _],
            partials: [[0.0; _]; _],
        }
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = {
    use core::mem::{align_of, size_of};
    // The paper's figures: seven buffers of 72 KiB within L1 ...
    assert!((ascend::QP_BUFFERS + ascend::KV_BUFFERS) * ascend::L1_BUFFER <= ascend::L1);
    // ... of which ours fill each to the byte, and a group has the paper's rows.
    if !SMALL {
        assert!(size_of::<QPanel>() == ascend::L1_BUFFER);
        assert!(size_of::<RowTile>() == ascend::KV_BUFFERS * ascend::L1_BUFFER);
        assert!(GROUP_ROWS == ascend::M);
    }
    // L0 and UB: each half within its half.
    assert!(size_of::<PTile>() <= ascend::L0A / 2 && size_of::<L0a>() <= ascend::L0A);
    assert!(size_of::<Fp32Tile>() <= ascend::L0B / 2 && size_of::<L0b>() <= ascend::L0B);
    assert!(size_of::<STile>() <= ascend::L0C / 2 && size_of::<L0c>() <= ascend::L0C);
    assert!(size_of::<[RowState; PANELS]>() <= ascend::UB);
    // Small: a third of 256 KiB remains for the host.
    assert!(size_of::<Workspace>() <= if SMALL { 170 << 10 } else { 2 << 20 });
    assert!(align_of::<Workspace>() == 64);
    // No padding anywhere, so that the workspace is plain memory.
    assert!(size_of::<QPanel>() == 4 * MAX_D_QK / 2 * PANEL_ROWS);
    assert!(size_of::<STile>() == 4 * (BLOCK_KEYS + 1) * PANEL_ROWS);
    assert!(size_of::<PTile>() == 4 * BLOCK_PAIRS * PANEL_ROWS);
    assert!(size_of::<Fp32Tile>() == 4 * ascend::BASE_K * FP32_ROWS);
    assert!(
        size_of::<L0a>() == 2 * size_of::<PTile>() + size_of::<Residuals>() + 2 * 4 * PANEL_ROWS
    );
    assert!(size_of::<Residuals>() == PANEL_ROWS * 2 * 4);
    assert!(size_of::<RowState>() == PANEL_ROWS * 6 * 4);
    assert!(
        size_of::<Tiles>()
            == Q_TILES * size_of::<QPanel>()
                + P_TILES * size_of::<L0a>()
                + size_of::<L0b>()
                + size_of::<L0c>()
                + PANELS * size_of::<RowState>()
    );
    assert!(
        size_of::<Workspace>() == size_of::<Tiles>() + size_of::<RowTile>() + 2 * 4 * MAX_PARTIAL
    );
    // A block is whole in every register tile: 24, 12, 8, 6 or 4 keys; and so is either half
    // of it in pairs.
    assert!(BLOCK_KEYS.is_multiple_of(TILE_KEYS) && BLOCK_PAIRS.is_multiple_of(2));
    // L0B holds each operand: Q's depth of 96, a register tile's keys, half a block of a strip
    // in FP32, or all of it packed.
    assert!(FP32_ROWS >= PANEL_ROWS && FP32_ROWS >= TILE_KEYS);
    assert!(BLOCK_PAIRS * STRIP <= ascend::BASE_K * FP32_ROWS);
    // A panel's queries fit where a block's keys do.
    assert!(BLOCK_KEYS >= PANEL_ROWS);
};
