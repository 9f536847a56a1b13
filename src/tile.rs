//! Fixed-size, 64-byte aligned tiles that partition a thread's working set the
//! way AMLA partitions the Ascend 910's L1, L0 and UB.
//!
//! | Ascend 910 (paper, Hierarchical Tiling) | here | bytes |
//! |---|---|---|
//! | L1, four Q/P buffers of 72 KiB | [`QPanel`]: 64 query rows x 576 | 4 x 72 KiB |
//! | L1, three K/V buffers of 72 KiB | [`VBuffer`]: 192 keys x 3 strips of 64 columns | 3 x 72 KiB |
//! | L0A, two halves of 32 KiB | [`PTile`]: P of 192 keys x 64 rows, high and low part | 2 x 24 KiB |
//! | L0B, two halves of 32 KiB | [`Widened`]: operands widened to FP32, for backends without a BF16 dot | 2 x 24 KiB |
//! | L0C, two halves of 64 KiB | [`STile`]: scores of 192 keys x 64 rows; two are alive in the preload pipeline | 2 x 48 KiB |
//! | UB, 192 KiB | [`RowState`]: running exponent and sums of 64 rows | 4 x 1.5 KiB |
//! | GM | [`OStrip`]: O accumulators, 64 rows x 64 columns | 16 KiB each |
//!
//! On a CPU the L1 budget falls into the L2 cache and L0 into L1d. All panels of
//! 256 rows fit at once, so Q stays packed for the whole call, where the NPU
//! shares its four buffers between Q and P and loads Q again in every iteration;
//! P then lives in L0A. The three K/V buffers hold one block of 192 keys,
//! which is how the block size follows from the budget (`docs/adr/0002`); where V isn't
//! packed, keys that had to be widened (`docs/adr/0011`), or P of other panels (`docs/adr/0030`).
//!
//! **Small tiles.** Built with `--cfg amla_tiles="small"`, all this takes 159 KiB instead: one
//! panel of 16 rows, blocks of 24 keys (`docs/adr/0017`).
//!
//! **Pairs.** The BF16 dot instructions multiply two neighbouring elements per
//! 32-bit lane, so operands are stored as pairs in a `u32`: the element of even
//! index in the low half. Q pairs two features, P and V pair two keys.

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
    /// Rows that the paper processes together: 128 heads, two query positions.
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
/// Keys of a block.
pub const BLOCK_KEYS: usize = if SMALL { TILE_KEYS } else { 192 };
/// Key pairs of a block.
pub const BLOCK_PAIRS: usize = BLOCK_KEYS / 2;
/// Widest query.
pub const MAX_D_QK: usize = 576;
/// Columns of a strip of V and O.
pub const STRIP: usize = 64;
/// Strips of V in one L1 buffer.
pub const BUFFER_STRIPS: usize = 3;
/// Widest value.
pub const MAX_D_V: usize = 512;

/// `R` rows of `C` elements, row-major, on a cache line boundary.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Tile<T, const R: usize, const C: usize>(pub [[T; C]; R]);

/// Q of one panel, transposed: feature pairs x rows.
pub type QPanel = Tile<u32, { MAX_D_QK / 2 }, PANEL_ROWS>;
/// One strip of V: key pairs x columns.
pub type VStrip = Tile<u32, BLOCK_PAIRS, STRIP>;
/// One L1 buffer of V strips.
pub type VBuffer = [VStrip; BUFFER_STRIPS];
/// Scores of one block and panel, transposed: keys x rows.
pub type STile = Tile<f32, BLOCK_KEYS, PANEL_ROWS>;
/// Probabilities of one block and panel: key pairs x rows.
pub type PTile = Tile<u32, BLOCK_PAIRS, PANEL_ROWS>;
/// Half of the probabilities of one block and panel in FP32: key pairs x keys x rows.
pub type PTileWhole = [[[f32; PANEL_ROWS]; 2]; BLOCK_PAIRS / 2];
/// An operand widened to FP32, 96 deep: a panel's rows, or the keys of a register tile.
pub type Widened = Tile<f32, { ascend::BASE_K }, WIDENED_ROWS>;
const WIDENED_ROWS: usize = if SMALL { TILE_KEYS } else { PANEL_ROWS };
/// Rows of one block, or queries of a panel, as the kernel wants them.
pub type RowTile = [[bf16; MAX_D_QK]; BLOCK_KEYS];
/// O accumulators of one panel and strip: rows x columns.
pub type OStrip = [[f32; STRIP]; PANEL_ROWS];

/// L1: Q of the group, V of the block.
#[repr(C, align(64))]
pub struct L1 {
    /// The Q/P buffers.
    pub q: [QPanel; PANELS],
    /// The three K/V buffers.
    pub v: [VBuffer; ascend::KV_BUFFERS],
}

/// L0A: P of the item in flight, for backends with BF16 dots as two BF16 parts.
///
/// Others take the memory of both as one tile of FP32 ([`whole`](Self::whole)).
#[repr(C, align(64))]
pub struct L0a {
    /// P rounded to BF16.
    pub high: PTile,
    /// What that rounding took, rounded to BF16 ([`Precision::Bf16x2`](crate::Precision)).
    pub low: PTile,
    /// What it took from the largest P of each row ([`Precision::Bf16`](crate::Precision)), if that isn't a power of two.
    pub residuals: Residuals,
    /// What each row's products count for: P is so much smaller than it were relative to the reference.
    pub weights: [f32; PANEL_ROWS],
}

/// What rounding took from a block's largest P of each row, as one more pair of P.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Residuals {
    /// Whose pair of keys it is.
    pub pair: [u32; PANEL_ROWS],
    /// `P - bf16(P)` as BF16 in the half of the key that has the largest P, zero in the other.
    pub p: [u32; PANEL_ROWS],
}

impl L0a {
    /// P as it is, half of the keys x rows in either. Of each pair of keys the odd one comes
    /// first, which is the order of the sums.
    #[must_use]
    pub fn whole(&self) -> [&PTileWhole; 2] {
        [&self.high, &self.low].map(|half| bytemuck::cast_ref(&half.0))
    }

    /// The same, to be written.
    pub fn whole_mut(&mut self) -> [&mut PTileWhole; 2] {
        [&mut self.high, &mut self.low].map(|half| bytemuck::cast_mut(&mut half.0))
    }
}

/// L0B: operands widened to FP32.
pub type L0b = [Widened; 2];

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
    /// What the next C2 adds to the bits of O before it accumulates.
    pub increment: [i32; PANEL_ROWS],
    /// S16 of the last block: the reference's fraction as a BF16 (compensated).
    pub factor: [f32; PANEL_ROWS],
}

impl RowState {
    /// All zeros, which is no state of a row.
    const ZERO: Self = Self {
        reference: [0.0; PANEL_ROWS],
        sum: [0.0; PANEL_ROWS],
        rounded_sum: [0.0; PANEL_ROWS],
        c: [0.0; PANEL_ROWS],
        increment: [0; PANEL_ROWS],
        factor: [0.0; PANEL_ROWS],
    };

    /// Before the first block.
    pub const START: Self = Self {
        reference: [f32::NEG_INFINITY; PANEL_ROWS],
        c: [1.0; PANEL_ROWS],
        factor: [1.0; PANEL_ROWS],
        ..Self::ZERO
    };
}

/// The on-chip memories of one task.
#[repr(C, align(64))]
pub struct Tiles {
    /// Q panels and the V block.
    pub l1: L1,
    /// P.
    pub l0a: L0a,
    /// Widened operands.
    pub l0b: L0b,
    /// S.
    pub l0c: L0c,
    /// Row state.
    pub ub: [RowState; PANELS],
    /// Rows put together or widened, where the caller's can't be used as they lie: the
    /// NPU does the same by way of GM.
    pub gm: RowTile,
}

/// FP32 numbers that one task leaves behind at most: O, and exponent and sum of
/// each row.
pub const MAX_PARTIAL: usize = GROUP_ROWS * (MAX_D_V + 2);

/// The memory that one thread works in: about 1.9 MiB (159 KiB with small tiles), 64-byte
/// aligned.
///
/// It holds nothing between calls. Make one with [`Workspace::new`] (for a
/// `static`), or on the heap with `bytemuck::zeroed_box`, or view bytes as one
/// with [`Workspace::from_bytes`].
#[repr(C, align(64))]
pub struct Workspace {
    pub(crate) tiles: Tiles,
    /// Where a row group's splits are folded together, and the split in flight.
    pub(crate) partials: [[f32; MAX_PARTIAL]; 2],
}

impl Workspace {
    /// Zeroed memory: a `static` of it takes no room in the program's file.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            tiles: Tiles {
                l1: L1 {
                    q: [Tile([[0; _]; _]); _],
                    v: [[Tile([[0; _]; _]); _]; _],
                },
                l0a: L0a {
                    high: Tile([[0; _]; _]),
                    low: Tile([[0; _]; _]),
                    residuals: Residuals {
                        pair: [0; _],
                        p: [0; _],
                    },
                    weights: [0.0; _],
                },
                l0b: [Tile([[0.0; _]; _]); _],
                l0c: [Tile([[0.0; _]; _]); _],
                ub: [RowState::ZERO; _],
                gm: [[bf16::ZERO; _]; _],
            },
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
        assert!(size_of::<VBuffer>() == ascend::L1_BUFFER);
        assert!(size_of::<L1>() == (ascend::QP_BUFFERS + ascend::KV_BUFFERS) * ascend::L1_BUFFER);
        assert!(GROUP_ROWS == ascend::M);
    }
    // L0 and UB: each half within its half.
    assert!(size_of::<PTile>() <= ascend::L0A / 2 && size_of::<L0a>() <= ascend::L0A);
    assert!(size_of::<Widened>() <= ascend::L0B / 2 && size_of::<L0b>() <= ascend::L0B);
    assert!(size_of::<STile>() <= ascend::L0C / 2 && size_of::<L0c>() <= ascend::L0C);
    assert!(size_of::<[RowState; PANELS]>() <= ascend::UB);
    // Small: of 256 KiB, a third is left for the host.
    assert!(size_of::<Workspace>() <= if SMALL { 164 << 10 } else { 2 << 20 });
    assert!(align_of::<Workspace>() == 64);
    // No padding anywhere, so that the workspace is plain memory.
    assert!(size_of::<QPanel>() == 4 * MAX_D_QK / 2 * PANEL_ROWS);
    assert!(size_of::<VStrip>() == 4 * BLOCK_PAIRS * STRIP);
    assert!(size_of::<STile>() == 4 * BLOCK_KEYS * PANEL_ROWS);
    assert!(size_of::<PTile>() == 4 * BLOCK_PAIRS * PANEL_ROWS);
    assert!(size_of::<Widened>() == 4 * ascend::BASE_K * WIDENED_ROWS);
    assert!(size_of::<L0a>() == 2 * size_of::<PTile>() + size_of::<Residuals>() + 4 * PANEL_ROWS);
    assert!(size_of::<L1>() == PANELS * size_of::<QPanel>() + 9 * size_of::<VStrip>());
    assert!(size_of::<Residuals>() == PANEL_ROWS * 2 * 4);
    assert!(size_of::<RowState>() == PANEL_ROWS * 6 * 4);
    assert!(
        size_of::<Tiles>()
            == size_of::<L1>()
                + size_of::<L0a>()
                + size_of::<L0b>()
                + size_of::<L0c>()
                + PANELS * size_of::<RowState>()
                + size_of::<RowTile>()
    );
    assert!(size_of::<Workspace>() == size_of::<Tiles>() + 2 * 4 * MAX_PARTIAL);
    // V of the widest value fits into the K/V buffers, strip by strip.
    assert!(MAX_D_V / STRIP <= ascend::KV_BUFFERS * BUFFER_STRIPS);
    // A block is whole in every register tile: 24, 12, 8, 6 or 4 keys; and so is either half
    // of it in pairs.
    assert!(BLOCK_KEYS.is_multiple_of(TILE_KEYS) && BLOCK_PAIRS.is_multiple_of(2));
    // L0B holds each operand: Q's depth of 96, a register tile's keys, half a block of a strip.
    assert!(WIDENED_ROWS >= PANEL_ROWS && WIDENED_ROWS >= TILE_KEYS);
    assert!(BLOCK_PAIRS * STRIP <= ascend::BASE_K * WIDENED_ROWS);
    // What is put together is a block's keys or a panel's queries.
    assert!(BLOCK_KEYS >= PANEL_ROWS);
};
