//! The kernel's stages, one call at a time, for the benches.
//!
//! **Not part of the stable interface**: this module exists behind the feature
//! `stages` and changes with the kernel, in any release.
//!
//! [`Stages`] borrows a [`Workspace`] and the inputs of one panel of 64 query rows
//! and one block of 192 keys, at widths (576, 512), and prepares every tile. Each
//! method then runs one stage on those tiles, as often as one likes, and returns
//! the [`Work`] that it did. Nothing that a stage reads is written by another one:
//! [`Stages::qk`] writes a tile of its own, and the scores of
//! [`Stages::softmax`] come from [`Stages::spread_scores`].

use core::array::from_fn;

use half::bf16;

use crate::attend::Options;
use crate::bits::{HEADROOM, Increment, as_printed_f32, mul_pow2_f32};
use crate::format::Dtype;
use crate::kernel::{Kernel, PackQ, Pv, Qk, Rows, Softmax, Visitor};
use crate::tile::{
    BLOCK_KEYS, L0a, MAX_D_QK, MAX_D_V, ORow, PANEL_ROWS, RowState, STRIP, Tiles, Workspace,
};

pub use crate::tile::PANELS;

/// Query rows of the panel.
pub const ROWS: usize = PANEL_ROWS;
/// Keys of the block.
pub const KEYS: usize = BLOCK_KEYS;
/// Width of queries and keys.
pub const D_QK: usize = MAX_D_QK;
/// Width of values and outputs.
pub const D_V: usize = MAX_D_V;
/// Rows of O, a strip wide, of a panel.
const PANEL_O: usize = D_V / STRIP * ROWS;

/// What one call of a stage did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Floating-point operations of a matrix product, two per multiply-add.
    Flop(u64),
    /// Elements touched once: of S, O or Q.
    Elements(u64),
}

/// How the block's scores compare with those before it (V1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The first block of a request.
    First,
    /// Like many blocks before: the reference stays, and no key stands out.
    Stays,
    /// Like many blocks before, but so much larger in every row that the reference moves.
    Moves,
}

/// What C2 does to O before it accumulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Overwrites it: the first block.
    Overwrite,
    /// Every increment is zero, and its addition skipped.
    Nothing,
    /// Every row is halved by integer addition.
    Rescale,
}

impl Before {
    /// What C2 adds to the bits of each row.
    fn increment(self) -> [i32; ROWS] {
        match self {
            Self::Overwrite | Self::Nothing => [0; ROWS],
            Self::Rescale => [Increment::pow2(-1).bits(); ROWS],
        }
    }
}

/// Tiles of one panel and one block, ready for each stage.
pub struct Stages<'a> {
    options: Options,
    tiles: &'a mut Tiles,
    /// Panel by panel, strip by strip.
    o: &'a mut [ORow],
    q: &'a [bf16],
    kv: &'a [bf16],
}

/// The score tile that [`Stages::qk`] writes.
const QK_TILE: usize = 0;
/// The score tile that [`Stages::softmax`] reads.
const SOFTMAX_TILE: usize = 1;
/// Blocks before this one, where there are any.
const HISTORY: f32 = 20.0;

impl<'a> Stages<'a> {
    /// Prepares the tiles: packs `q`, [`ROWS`] x [`D_QK`], spreads scores over 8 powers of two, and
    /// runs V1 and C2 once for [`PANELS`] panels. `kv`, [`KEYS`] x [`D_QK`], has keys and values.
    ///
    /// # Panics
    /// If an input has another length.
    #[must_use]
    pub fn new(
        options: Options,
        workspace: &'a mut Workspace,
        q: &'a [bf16],
        kv: &'a [bf16],
    ) -> Self {
        assert_eq!(q.len(), ROWS * D_QK);
        assert_eq!(kv.len(), KEYS * D_QK);
        let Workspace {
            tiles, partials, ..
        } = workspace;
        let mut stages = Self {
            options,
            tiles,
            o: bytemuck::cast_slice_mut(&mut partials[0][..PANELS * ROWS * D_V]),
            q,
            kv,
        };
        stages.pack_q();
        stages.qk();
        stages.spread_scores(4.0);
        stages.pv(PANELS, Before::Overwrite);
        stages
    }

    /// Another precision, another way to rescale, or another backend, on the same
    /// inputs, V1 run as on a first block.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
        self.pack_q();
        self.first_block();
    }

    /// Fills the scores that V1 reads with numbers spread evenly from `-spread` to
    /// `spread`, in log2 units, and runs V1 on them as on a first block.
    pub fn spread_scores(&mut self, spread: f32) {
        let mut x = 1_u32;
        for s in self.tiles.l0c[SOFTMAX_TILE].0.as_flattened_mut() {
            // Numerical Recipes' quick generator; the upper bits as a fraction of 1.
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let uniform = f32::from_bits(0x3f80_0000 | x >> 9) - 1.0;
            *s = (2.0 * uniform - 1.0) * spread;
        }
        self.first_block();
    }

    /// V1 of all panels as on a first block.
    fn first_block(&mut self) {
        (0..PANELS).for_each(|panel| self.v1(panel, Reference::First));
    }

    /// Packs the panel's Q.
    pub fn pack_q(&mut self) -> Work {
        struct Pack<'b>(&'b mut Tiles, &'b [bf16]);
        impl Visitor for Pack<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                let mut rows: [&[bf16]; ROWS] = [&[]; _];
                for (row, q) in rows.iter_mut().zip(self.1.chunks(D_QK)) {
                    *row = q;
                }
                let call = PackQ {
                    d_qk: D_QK,
                    rows: &rows,
                    negate: false,
                    fused: None,
                };
                kernel.pack_q(&call, &mut self.0.q[..1]);
            }
        }
        self.options.backend.with(Pack(self.tiles, self.q));
        Work::Elements((ROWS * D_QK) as u64)
    }

    /// C1: the scores of the block for the panel.
    pub fn qk(&mut self) -> Work {
        struct C1<'b>(&'b mut Tiles, Qk<'b>);
        impl Visitor for C1<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                let Self(Tiles { q, l0b, l0c, .. }, call) = self;
                kernel.qk(&call, &q[..1], l0b, &mut l0c[call.s]);
            }
        }
        let mut keys = Rows::NONE;
        keys.gather(self.kv.chunks(D_QK));
        let call = Qk {
            panel: 0,
            rows: ROWS,
            queries: Dtype::Bf16,
            d_qk: D_QK,
            keys: keys.as_slice(),
            dtype: Dtype::Bf16,
            prefetch: &[],
            s: QK_TILE,
        };
        self.options.backend.with(C1(self.tiles, call));
        Work::Flop((2 * KEYS * ROWS * D_QK) as u64)
    }

    /// V1: probabilities of the spread scores, and what follows from them.
    pub fn softmax(&mut self, reference: Reference) -> Work {
        self.v1(0, reference);
        Work::Elements((KEYS * ROWS) as u64)
    }

    /// V1 of a panel.
    fn v1(&mut self, panel: usize, reference: Reference) {
        struct V1<'b>(&'b mut Tiles, usize, Softmax<'b>);
        impl Visitor for V1<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                let Self(Tiles { l0a, l0c, ub, .. }, panel, call) = self;
                kernel.softmax(&call, &l0c[SOFTMAX_TILE], &mut l0a[panel], &mut ub[panel]);
            }
        }
        // The state before the call; 256 bytes each, against 48 KiB of scores.
        let state = &mut self.tiles.ub[panel];
        match reference {
            Reference::First => *state = RowState::START,
            Reference::Stays | Reference::Moves => {
                // A block's sum is at most that of P = 1 for every key.
                state.sum = [HISTORY * BLOCK_KEYS as f32; ROWS];
                state.rounded_sum = state.sum;
            }
        }
        if reference == Reference::Moves {
            // So far that exact mode's has to as well.
            state
                .reference
                .iter_mut()
                .for_each(|e| *e -= 1.0 + HEADROOM);
        }
        let call = Softmax {
            rows: ROWS,
            keys: KEYS,
            scale: 1.0,
            mask: None,
            rescale: self.options.rescale,
            precision: self.options.precision,
            prefetch: &[],
        };
        self.options.backend.with(V1(self.tiles, panel, call));
    }

    /// C2 of a group of 1 to [`PANELS`] panels, each with a P of its own: rescales O and adds P V.
    ///
    /// # Panics
    /// If there are no or more panels.
    pub fn pv(&mut self, panels: usize, before: Before) -> Work {
        struct C2<'b>(&'b mut Tiles, Pv<'b>, &'b mut [ORow]);
        impl Visitor for C2<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                let Self(Tiles { l0a, l0b, .. }, call, o) = self;
                let p: [&L0a; PANELS] = from_fn(|panel| &l0a[panel]);
                // All numbers are finite here: nothing is skipped.
                let _ = kernel.pv(&call, &p[..call.rows / ROWS], l0b, o);
            }
        }
        assert!((1..=PANELS).contains(&panels));
        for p in &mut self.tiles.l0a[..panels] {
            p.increment = before.increment();
        }
        let mut values = Rows::NONE;
        values.gather(self.kv.chunks(D_QK).map(|row| &row[..D_V]));
        let call = Pv {
            rows: panels * ROWS,
            planned_rows: panels * ROWS,
            keys: KEYS,
            strips: D_V / STRIP,
            values: &values,
            precision: self.options.precision,
            skips: false,
            first: before == Before::Overwrite,
            prefetch: &[],
        };
        let o = &mut self.o[..panels * PANEL_O];
        self.options.backend.with(C2(self.tiles, call, o));
        Work::Flop((2 * KEYS * panels * ROWS * D_V) as u64)
    }

    /// Lines 14 and 15 alone: O times `2^n` by integer addition, as a pass of its
    /// own over the panel's O.
    pub fn rescale(&mut self, n: i32) -> Work {
        let o = self.o[..PANEL_O].as_flattened_mut();
        self.options.backend.rescale(o, Increment::pow2(n));
        Work::Elements((ROWS * D_V) as u64)
    }

    /// The same by FP32 multiplication, which the compiler vectorises for the
    /// build's target features, not for the backend's.
    pub fn multiply(&mut self, n: i32) -> Work {
        let o = self.o[..PANEL_O].as_flattened_mut();
        multiply(o, n);
        Work::Elements((ROWS * D_V) as u64)
    }
}

/// `x * 2^n` for every element by FP32 multiplication; `|n| <= 126`.
pub fn multiply(xs: &mut [f32], n: i32) {
    let factor = mul_pow2_f32(1.0, n);
    for x in xs {
        *x *= factor;
    }
}

/// `x * 2^n` for every element by the addition as the paper prints it: right for
/// normal operands and results only.
pub fn add_as_printed(xs: &mut [f32], n: i32) {
    for x in xs {
        *x = as_printed_f32(*x, n << 23);
    }
}
