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

use half::bf16;

use crate::attend::Options;
use crate::bits::{HEADROOM, Increment, as_printed_f32, mul_pow2_f32};
use crate::kernel::{Kernel, Maxima, Pv, Rows, Softmax, Visitor};
use crate::tile::{
    BLOCK_KEYS, L0a, MAX_D_QK, MAX_D_V, OStrip, PANEL_ROWS, PANELS, RowState, STRIP, Tiles,
    Workspace,
};

/// Query rows of the panel.
pub const ROWS: usize = PANEL_ROWS;
/// Keys of the block.
pub const KEYS: usize = BLOCK_KEYS;
/// Width of queries and keys.
pub const D_QK: usize = MAX_D_QK;
/// Width of values and outputs.
pub const D_V: usize = MAX_D_V;
/// Panels that [`Stages::pv_as_it_lies`] takes together, at most.
pub const TOGETHER: usize = if PANELS < 2 { PANELS } else { 2 };

/// What one call of a stage did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Floating-point operations of a matrix product, two per multiply-add.
    Flop(u64),
    /// Elements touched once: of S, O, or what was packed.
    Elements(u64),
}

/// How the block's scores lie to those before it (V1).
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
    fn increment(self) -> Option<[i32; ROWS]> {
        match self {
            Self::Overwrite => None,
            Self::Nothing => Some([0; ROWS]),
            Self::Rescale => Some([Increment::pow2(-1).bits(); ROWS]),
        }
    }
}

/// Tiles of one panel and one block, ready for each stage.
pub struct Stages<'a> {
    options: Options,
    tiles: &'a mut Tiles,
    o: &'a mut [OStrip],
    q: &'a [bf16],
    kv: &'a [bf16],
    /// Of the scores that V1 reads.
    maxima: Maxima,
    /// Whether C1 tells V1 those.
    told: bool,
}

/// The score tile that [`Stages::qk`] writes.
const QK_TILE: usize = 0;
/// The score tile that [`Stages::softmax`] reads.
const SOFTMAX_TILE: usize = 1;
/// Blocks before this one, where there are any.
const HISTORY: f32 = 20.0;

impl<'a> Stages<'a> {
    /// Prepares the tiles: packs `q`, [`ROWS`] x [`D_QK`], and the values of `kv`,
    /// [`KEYS`] x [`D_QK`], spreads scores over 8 powers of two, and runs V1 and C2
    /// once.
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
        let Workspace { tiles, partials } = workspace;
        let mut stages = Self {
            options,
            tiles,
            o: bytemuck::cast_slice_mut(&mut partials[0][..TOGETHER * ROWS * D_V]),
            q,
            kv,
            maxima: [0.0; ROWS],
            told: false,
        };
        stages.pack_q();
        stages.pack_v();
        stages.qk();
        stages.spread_scores(4.0);
        stages.pv_as_it_lies(TOGETHER, Before::Overwrite);
        stages.pv(Before::Overwrite);
        stages
    }

    /// Another precision, another way to rescale, or another backend, on the same
    /// tiles, V1 run as on a first block.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
        self.qk();
        self.softmax(Reference::First);
    }

    /// Fills the scores that V1 reads with numbers spread evenly from `-spread` to
    /// `spread`, in log2 units, and runs V1 on them as on a first block.
    pub fn spread_scores(&mut self, spread: f32) {
        let mut x = 1_u32;
        for s in self.tiles.l0c[SOFTMAX_TILE].0.as_flattened_mut() {
            // Numerical Recipes' quick generator; the upper bits as a fraction of 1.
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let unit = f32::from_bits(0x3f80_0000 | x >> 9) - 1.0;
            *s = (2.0 * unit - 1.0) * spread;
        }
        self.maxima = [f32::NEG_INFINITY; ROWS];
        for scores in &self.tiles.l0c[SOFTMAX_TILE].0 {
            for (max, &s) in self.maxima.iter_mut().zip(scores) {
                *max = max.max(s);
            }
        }
        self.softmax(Reference::First);
    }

    /// Packs the panel's Q.
    pub fn pack_q(&mut self) -> Work {
        struct PackQ<'b>(&'b mut Tiles, &'b [bf16]);
        impl Visitor for PackQ<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                let mut rows: [&[bf16]; ROWS] = [&[]; _];
                for (row, q) in rows.iter_mut().zip(self.1.chunks(D_QK)) {
                    *row = q;
                }
                kernel.pack_q::<D_QK>(&rows, false, &mut self.0.l1.q[0]);
            }
        }
        self.options.backend.with(PackQ(self.tiles, self.q));
        Work::Elements((ROWS * D_QK) as u64)
    }

    /// Packs the block's V.
    pub fn pack_v(&mut self) -> Work {
        struct PackV<'b>(&'b mut Tiles, &'b Rows<'b>);
        impl Visitor for PackV<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                kernel.pack_v::<D_V>(self.1.as_slice(), 0, &[], &mut self.0.l1.v);
            }
        }
        let mut values = Rows::NONE;
        values.gather(self.kv.chunks(D_QK).map(|row| &row[..D_V]));
        self.options.backend.with(PackV(self.tiles, &values));
        Work::Elements((KEYS * D_V) as u64)
    }

    /// C1: the scores of the block for the panel.
    pub fn qk(&mut self) -> Work {
        struct Qk<'b>(&'b mut Tiles, &'b Rows<'b>);
        impl Visitor for Qk<'_> {
            type Output = bool;
            fn visit<K: Kernel>(self, kernel: K) -> bool {
                let Tiles { l1, l0b, l0c, .. } = self.0;
                kernel
                    .qk::<D_QK>(&l1.q[0], ROWS, self.1, &[], l0b, &mut l0c[QK_TILE])
                    .is_some()
            }
        }
        let mut keys = Rows::NONE;
        keys.gather(self.kv.chunks(D_QK));
        self.told = self.options.backend.with(Qk(self.tiles, &keys));
        Work::Flop((2 * KEYS * ROWS * D_QK) as u64)
    }

    /// V1: probabilities of the spread scores, and what follows from them.
    pub fn softmax(&mut self, reference: Reference) -> Work {
        struct V1<'b>(&'b mut Tiles, Softmax<'b>);
        impl Visitor for V1<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                let Tiles { l0a, l0c, ub, .. } = self.0;
                kernel.softmax(&self.1, &l0c[SOFTMAX_TILE], l0a, &mut ub[0]);
            }
        }
        // The state before the call; 256 bytes each, against 48 KiB of scores.
        let state = &mut self.tiles.ub[0];
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
            maxima: self.told.then_some(&self.maxima),
            rescale: self.options.rescale,
            precision: self.options.precision,
            next: &[],
        };
        self.options.backend.with(V1(self.tiles, call));
        Work::Elements((KEYS * ROWS) as u64)
    }

    /// C2 over packed V: rescales O and adds P V.
    pub fn pv(&mut self, before: Before) -> Work {
        struct C2<'b>(&'b mut Tiles, Pv<'b>, &'b mut [OStrip]);
        impl Visitor for C2<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                let Tiles { l1, l0a, l0b, .. } = self.0;
                // All numbers are finite here: nothing is left.
                let _ = kernel.pv::<D_V>(&self.1, l0a, &l1.v, l0b, self.2);
            }
        }
        let increment = before.increment();
        let call = self.c2(ROWS, increment.as_ref());
        let o = &mut self.o[..D_V / STRIP];
        self.options.backend.with(C2(self.tiles, call, o));
        Work::Flop((2 * KEYS * ROWS * D_V) as u64)
    }

    /// The same over V as it lies, for so many `panels`, all with the same P: the way that `decode` has it where the
    /// panels are a group's rows. Some backends read V from there, others pack it first.
    ///
    /// # Panics
    /// If `panels` is more than [`TOGETHER`].
    pub fn pv_as_it_lies(&mut self, panels: usize, before: Before) -> Work {
        struct C2<'b>(&'b mut Tiles, &'b [Pv<'b>], &'b Rows<'b>, &'b mut [OStrip]);
        impl Visitor for C2<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                let Self(Tiles { l1, l0a, l0b, .. }, calls, values, o) = self;
                // All numbers are finite here: nothing is left.
                if K::PANELS_TOGETHER && calls.len() > 1 {
                    let p: [&L0a; TOGETHER] = [l0a; _];
                    let _ = kernel.pv_panels::<D_V>(calls, &p, values, l0b, o);
                    return;
                }
                let direct = calls.len() * ROWS <= K::DIRECT_ROWS;
                if !direct {
                    kernel.pack_v::<D_V>(values.as_slice(), 0, &[], &mut l1.v);
                }
                for (call, o) in calls.iter().zip(o.chunks_mut(D_V / STRIP)) {
                    let _ = if direct {
                        kernel.pv_direct::<D_V>(call, l0a, values, l0b, o)
                    } else {
                        kernel.pv::<D_V>(call, l0a, &l1.v, l0b, o)
                    };
                }
            }
        }
        let mut values = Rows::NONE;
        values.gather(self.kv.chunks(D_QK).map(|row| &row[..D_V]));
        let increment = before.increment();
        let calls = [self.c2(panels * ROWS, increment.as_ref()); TOGETHER];
        let o = &mut self.o[..panels * D_V / STRIP];
        let call = C2(self.tiles, &calls[..panels], &values, o);
        self.options.backend.with(call);
        Work::Flop((2 * KEYS * panels * ROWS * D_V) as u64)
    }

    /// C2 of a panel of so many rows together.
    fn c2<'b>(&self, group_rows: usize, increment: Option<&'b [i32; ROWS]>) -> Pv<'b> {
        Pv {
            rows: ROWS,
            group_rows,
            keys: KEYS,
            precision: self.options.precision,
            increment,
            next: &[],
        }
    }

    /// Lines 14 and 15 alone: O times `2^n` by integer addition, as a pass of its
    /// own over the panel's O.
    pub fn rescale(&mut self, n: i32) -> Work {
        let o = self.o[..D_V / STRIP].as_flattened_mut().as_flattened_mut();
        self.options.backend.rescale(o, Increment::pow2(n));
        Work::Elements((ROWS * D_V) as u64)
    }

    /// The same by FP32 multiplication, which the compiler vectorises for the
    /// build's target features, not for the backend's.
    pub fn multiply(&mut self, n: i32) -> Work {
        let o = self.o[..D_V / STRIP].as_flattened_mut().as_flattened_mut();
        multiply(o, n);
        Work::Elements((ROWS * D_V) as u64)
    }

    /// Strips of O, of the first panel.
    #[must_use]
    pub fn o(&self) -> &[[[f32; STRIP]; ROWS]] {
        &self.o[..D_V / STRIP]
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
