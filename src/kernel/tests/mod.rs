//! Stage by stage: every backend against scalar code written here.

extern crate std;

mod arithmetic;
mod convert;
mod detect;
mod epilogue;
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod follow;
mod fused;
mod fused_bits;
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod fused_prefetch;
mod non_finite;
mod precision;
mod probabilities;
mod products;
mod scores;
mod tile_prefetch;

use core::ops::Range;
use std::boxed::Box;
use std::format;
use std::vec::Vec;

use half::bf16;

use super::{
    Backend, BackendId, Columns, Kernel, Mask, PackQ, Pv, Qk, Rows, Skipped, Softmax, Visitor,
    strip_rows,
};
use crate::bits::Increment;
use crate::format::Dtype;
use crate::problem::{Precision, Rescale};
use crate::tile::{
    BLOCK_KEYS, GROUP_ROWS, L0a, MAX_D_QK, MAX_D_V, ORow, PANEL_ROWS, PANELS, Residuals, RowState,
    STRIP, STile, Tile, Tiles, Workspace,
};

const STRIPS: usize = MAX_D_V / STRIP;
/// Rows of O of a panel that has no row to spare.
const PANEL_O: usize = STRIPS * PANEL_ROWS;

// -------------------------------------------------------------------------------------------------
// Backends
// -------------------------------------------------------------------------------------------------

/// Those that the processor can run, or of them the one that `AMLA_TEST_BACKEND` names
/// (`tests/common/mod.rs`).
fn backends() -> impl Iterator<Item = Backend> {
    let chosen = std::env::var("AMLA_TEST_BACKEND").unwrap_or_default();
    Backend::permit_amx();
    BackendId::ALL
        .into_iter()
        .filter(move |id| chosen.is_empty() || chosen == id.name())
        .filter_map(|id| Backend::request(id).ok())
}

/// Whether P is stored in FP32.
fn stores_p_unrounded(backend: Backend) -> bool {
    !matches!(
        backend.id(),
        BackendId::Avx512Bf16 | BackendId::Amx | BackendId::NeonBf16
    )
}

/// Whether P is relative to the block's largest, and C2 weights its products (`docs/algorithm.md`).
fn weights_products(backend: Backend) -> bool {
    matches!(backend.id(), BackendId::Avx512Bf16 | BackendId::NeonBf16)
}

/// Whether a block's largest P has a residual, where it counts.
fn has_residuals(backend: Backend) -> bool {
    !stores_p_unrounded(backend) && !weights_products(backend)
}

/// Up to this many rows a backend's C1 has features in the lanes, and sums in an order of its own. All
/// other panels have the same bits on every backend.
fn rows_summed_across_lanes(backend: Backend) -> usize {
    match backend.id() {
        BackendId::Avx512Bf16 => 28,
        _ => 0,
    }
}

// -------------------------------------------------------------------------------------------------
// Operands
// -------------------------------------------------------------------------------------------------

/// Numbers between -1 and 1 with all BF16 bits in use.
fn numbers(seed: u32, n: usize) -> Vec<bf16> {
    let mut state = seed | 1;
    core::iter::repeat_with(|| {
        state = state.wrapping_mul(0x915f_77f5).wrapping_add(0x0d2e_4f1b);
        bf16::from_f32(f32::from(u16::try_from(state >> 16).unwrap()) / 32768.0 - 1.0)
    })
    .take(n)
    .collect()
}

/// Q, keys and values, as many as a group and a block have.
struct Operands {
    q: Vec<bf16>,
    keys: Vec<bf16>,
    values: Vec<bf16>,
}

impl Operands {
    /// Of odd seeds, equal ones for the same numbers.
    fn new([q, keys, values]: [u32; 3]) -> Self {
        Self {
            q: numbers(q, GROUP_ROWS * MAX_D_QK),
            keys: numbers(keys, BLOCK_KEYS * MAX_D_QK),
            values: numbers(values, BLOCK_KEYS * MAX_D_V),
        }
    }

    /// A panel and a block of these, in exact mode with P in one part.
    fn run(&self, rows: usize, len: usize) -> Run<'_> {
        Run {
            q: &self.q,
            keys: &self.keys,
            values: &self.values,
            rows,
            planned_rows: rows,
            len,
            scale: 0.3,
            mask: None,
            rescale: Rescale::Exact,
            precision: Precision::Bf16,
            increment: None,
        }
    }
}

/// O before C2: each row of memory has other numbers, of few bits, and so has each column.
fn o_before(memory_row: usize) -> ORow {
    core::array::from_fn(|i| {
        let number = u16::try_from((37 * memory_row + i) % 512).unwrap();
        0.5 + f32::from(number) / 1024.0
    })
}

/// The shapes at which tiles have edges: `(rows, keys)`.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    let fit = |&(rows, keys): &_| rows <= PANEL_ROWS && keys <= BLOCK_KEYS;
    let skinny = (9..30).map(|rows| (rows, 3 * rows - 20));
    skinny.chain(SHAPES).filter(fit)
}

const SHAPES: [(usize, usize); 15] = [
    (1, 1),
    (2, 65),
    (3, 2),
    (4, 130),
    (5, BLOCK_KEYS),
    (6, 64),
    (7, 33),
    (8, Skipped::TAIL - 1),
    (33, 97),
    (48, 191),
    (63, 192),
    (64, 12),
    (PANEL_ROWS / 2 + 1, BLOCK_KEYS / 2 + 1),
    (PANEL_ROWS - 1, BLOCK_KEYS - 1),
    (PANEL_ROWS, BLOCK_KEYS),
];

// -------------------------------------------------------------------------------------------------
// The stages
// -------------------------------------------------------------------------------------------------

/// Runs all stages on one panel and block.
#[derive(Clone, Copy)]
struct Run<'a> {
    q: &'a [bf16],
    keys: &'a [bf16],
    values: &'a [bf16],
    /// Of the panel, or of a group ([`Panels`](products::Panels)).
    rows: usize,
    planned_rows: usize,
    len: usize,
    scale: f32,
    mask: Option<&'a Mask>,
    rescale: Rescale,
    precision: Precision,
    /// Of each row of a panel; without it C2 is of the first block.
    increment: Option<&'a [i32; PANEL_ROWS]>,
}

/// The tiles after the stages of one panel and block.
struct Stages {
    tiles: Box<Workspace>,
    /// P as C2 takes it, keys x rows.
    p: Vec<[f32; PANEL_ROWS]>,
    /// O, columns as in V, and the memory behind it.
    o: Vec<ORow>,
    /// Rows that each strip of O has room for.
    strip_rows: usize,
    skipped: Skipped,
}

impl Stages {
    /// A row of a strip of O.
    fn o(&self, strip: usize, r: usize) -> &ORow {
        &self.o[strip * self.strip_rows + r]
    }

    /// The same before C2.
    fn o_before(&self, strip: usize, r: usize) -> ORow {
        o_before(strip * self.strip_rows + r)
    }
}

impl Visitor for Run<'_> {
    type Output = Stages;

    fn visit<K: Kernel>(self, kernel: K) -> Stages {
        let mut tiles = workspace();
        self.c1_and_v1(kernel, 0, &mut tiles.tiles);
        let l0a = &tiles.tiles.l0a[0];
        let prob = |k| core::array::from_fn(|r| kernel.prob(l0a, self.precision, k, r));
        let p = (0..self.len).map(prob).collect();
        let mut o: Vec<_> = (0..PANEL_O).map(o_before).collect();
        let skipped = self.c2(kernel, 0..1, &mut tiles.tiles, &mut o);
        Stages {
            tiles,
            p,
            o,
            strip_rows: strip_rows(self.rows, self.planned_rows),
            skipped,
        }
    }
}

/// No tile's content before a stage matters, not even NaN.
fn workspace() -> Box<Workspace> {
    let mut workspace: Box<Workspace> = bytemuck::zeroed_box();
    let Tiles { l0a, l0b, l0c, .. } = &mut workspace.tiles;
    for p in l0a {
        *p = L0a {
            high: Tile([[u32::MAX; _]; _]),
            low: Tile([[u32::MAX; _]; _]),
            residuals: Residuals {
                pair: [0; _],
                p: [0x3f80; _],
            },
            weights: [7.0; _],
            increment: [i32::MIN; _],
        };
    }
    *l0b = [Tile([[f32::NAN; _]; _]); _];
    *l0c = [STile([[f32::NAN; _]; _], [f32::NAN; _]); _];
    workspace
}

/// Queries to be packed.
fn pack<'a>(d_qk: usize, rows: &'a [&'a [bf16]], fused: bool) -> PackQ<'a> {
    PackQ {
        d_qk,
        rows,
        negate: false,
        fused: fused.then_some(Dtype::Bf16),
    }
}

/// At most a block's rows of a width.
fn gather<'a>(rows: &mut Rows<'a>, memory: &'a [bf16], width: usize, len: usize) {
    rows.gather(memory.chunks(width).take(len));
}

impl<'a> Run<'a> {
    /// The same over other values.
    fn over(self, values: &'a [bf16]) -> Self {
        Self { values, ..self }
    }
}

impl Run<'_> {
    fn softmax<'a>(&'a self, rows: usize, prefetch: &'a [&'a [bf16]]) -> Softmax<'a> {
        Softmax {
            rows,
            keys: self.len,
            scale: self.scale,
            mask: self.mask,
            rescale: self.rescale,
            precision: self.precision,
            prefetch,
        }
    }

    /// Packs Q of a panel of the group, and runs C1 and V1 of a first block. P has the increments of this
    /// run then.
    fn c1_and_v1<K: Kernel>(&self, kernel: K, panel: usize, tiles: &mut Tiles) {
        let Tiles {
            q,
            l0a,
            l0b,
            l0c,
            ub,
        } = tiles;
        let rows = PANEL_ROWS.min(self.rows - panel * PANEL_ROWS);
        let queries: Vec<_> = self.q.chunks(MAX_D_QK).collect();
        let queries = &queries[panel * PANEL_ROWS..][..rows];
        let mut keys = Rows::NONE;
        gather(&mut keys, self.keys, MAX_D_QK, self.len);
        let call = Qk {
            panel,
            rows,
            queries: Dtype::Bf16,
            d_qk: MAX_D_QK,
            keys: keys.as_slice(),
            dtype: Dtype::Bf16,
            prefetch: keys.as_slice(),
            s: 0,
        };
        let (q, p, state) = (&mut q[panel..=panel], &mut l0a[panel], &mut ub[panel]);
        kernel.pack_q(&pack(MAX_D_QK, queries, false), q);
        kernel.qk(&call, q, l0b, &mut l0c[0]);
        *state = RowState::START;
        kernel.softmax(&self.softmax(rows, keys.as_slice()), &l0c[0], p, state);
        if let Some(increment) = self.increment {
            p.increment = *increment;
        }
    }

    /// C2 of panels of the group, of which O is. `o` has the columns as in V, before and after.
    fn c2<K: Kernel>(
        &self,
        kernel: K,
        panels: Range<usize>,
        tiles: &mut Tiles,
        o: &mut [ORow],
    ) -> Skipped {
        let mut values = Rows::NONE;
        gather(&mut values, self.values, MAX_D_V, self.len);
        let call = Pv {
            rows: self.rows.min(panels.end * PANEL_ROWS) - panels.start * PANEL_ROWS,
            planned_rows: self.planned_rows,
            keys: self.len,
            strips: STRIPS,
            values: &values,
            precision: self.precision,
            skips: true,
            first: self.increment.is_none(),
            prefetch: values.as_slice(),
        };
        let permute = |o: &mut [ORow], to| {
            for (panel, o) in o.chunks_mut(PANEL_O).take(panels.len()).enumerate() {
                let len = STRIPS * strip_rows(call.panel_rows(panel), self.planned_rows);
                kernel.permute(false, Dtype::Bf16, &mut o[..len], to);
            }
        };
        let p: Vec<_> = tiles.l0a[panels.clone()].iter().collect();
        permute(o, Columns::Own);
        let skipped = kernel.pv(&call, &p, &mut tiles.l0b, o);
        permute(o, Columns::Natural);
        skipped
    }
}
