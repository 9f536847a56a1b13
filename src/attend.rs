//! AMLA, Algorithm 2 of the paper, over tiles: this file is the algorithm, and
//! everything else serves it.
//!
//! One task attends a group of up to 256 query rows (heads x positions of one
//! request) to one of its KV splits. Keys come in blocks of 192, rows in panels of 64; small tiles
//! have fewer. An item `i` is one panel of one block.
//!
//! ```text
//! pack Q, panel by panel                                  (MTE2 of the NPU)
//! for cycle in schedule::cycles(blocks * panels, preload):
//!     C1(i):  S = K_block Q_panel^T                       line 4
//!     V1(i):  e' = e, or 3 above ceil(log2-max of S)      lines 5, 6
//!                  where that is larger
//!             P = exp2(S - e' - r), rounded to BF16,      lines 6, 7, 10
//!                  r so that the largest is exact
//!             l = l * 2^(e - e') + 2^r rowsum(P)          line 6
//!             N = (e - e') * 2^23                         lines 11, 12
//!     C2(i):  after the block's last panel, for all:
//!             O = AS_FP32(AS_INT32(O) + N), total         lines 13-16, in one visit
//!             O = O + 2^r P V                             lines 17, 18   of each tile
//! epilogue: O / l, lse                                    line 20
//! ```
//!
//! With a preload of 0 a cycle is C1(i), V1(i), C2(i): for a core whose stages can't overlap, one
//! block's keys are then in flight. With a preload of 2, the paper's, it is C1(i + 2), V1(i + 1), C2(i),
//! which don't depend on each other. With few rows a backend's fused kernel runs the three stages in one pass over a few
//! keys at a time.
//!
//! Deviations from the paper, each argued in `docs/algorithm.md`:
//!
//! 1. The integer addition is total: zeros, subnormals, infinities and NaNs are
//!    not shifted ([`crate::bits`]).
//! 2. Exact mode replaces the real maximum by an integer exponent `e`, so that
//!    every rescale is a power of two and no compensation is left to make.
//!    Compensated mode has the paper's, with the appendix's (right) ratio.
//! 3. Base 2 throughout: `log2(e) * softmax_scale` is one factor, applied to a
//!    score's (exact) distance from the block's maximum.
//! 4. The constant 1e-6 of line 11 is left out and the clamp of -30 is -255.
//! 5. O is normalised by the sum of P as rounded, lse comes from the unrounded
//!    sum. Each block's largest P, which may carry the row, is a power of two, and products have
//!    a factor for that; or, where they are accumulated in O, it is two BF16.
//! 6. S^T and O are computed with query rows across S's vectors and value columns
//!    across O's, so that no vector is ever reduced horizontally.
//! 7. Blocks have 192 keys, not 512, so that a block fits the three K/V buffers.
//! 8. Where a row doesn't see a key of a block, a strip whose V holds an infinity or a NaN takes a scalar path that skips
//!    the keys a row doesn't see; the fast path may then multiply hidden keys by
//!    zero.
//! 9. C2 takes all panels of a block at once, so that V is packed once, strip by strip, in L1d.

use core::ops::Range;

use crate::epilogue::{self, Write};
use crate::fallback::Fallback;
use crate::group::{Group, Partial};
use crate::kernel::{
    Backend, C2, Columns, Kernel, Pv, Qk, Rows, Skipped, Softmax, Stages, V1, row_tile,
};
use crate::problem::{Inputs, Precision, Rescale};
use crate::schedule::{Cycle, cycles};
use crate::slots::{Slots, apart};
use crate::source::{
    Convert, Layout, Sources, convert_keys, convert_values, each_fused_block, pack_queries,
};
use crate::tile::{
    BLOCK_KEYS, ORow, P_TILES, PANEL_ROWS, RowState, RowTile, STRIP, Tiles, padded_d_qk, strips,
};

/// How to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whose instructions; the fastest that the processor has by default.
    pub backend: Backend,
    /// How O follows the running maximum.
    pub rescale: Rescale,
    /// How P enters the second matrix product.
    pub precision: Precision,
    /// Whether inputs may be rounded to BF16.
    pub inputs: Inputs,
}

impl Options {
    /// The backend whose kernels take a group.
    pub(crate) fn backend_of(&self, group: &Group<'_>) -> Backend {
        let exact = self.inputs == Inputs::AsGiven && group.problem.needs_fp32();
        self.backend.of_call(group.planned_rows, exact)
    }
}

/// One call of the kernel.
pub struct Task<'a> {
    /// The rows, and the keys that they are attended to.
    pub group: &'a Group<'a>,
    /// How.
    pub options: &'a Options,
    /// The on-chip memories.
    pub tiles: &'a mut Tiles,
    /// The K/V buffers.
    pub kv: &'a mut RowTile,
    /// Whether `tiles` holds the queries of these rows already, from the task before.
    pub packed: bool,
    /// The result; overwritten.
    pub partial: Partial<'a>,
    /// The result over earlier keys, which is added.
    pub earlier: Option<Partial<'a>>,
    /// Where the result is written, if these are the last keys.
    pub write: Option<Write<'a>>,
}

/// The paper's Algorithm 2 of a task.
pub fn attend<K: Kernel>(kernel: K, task: Task<'_>) {
    let layout = Layout::of::<K>(task.group.problem);
    let group = &Group {
        block_keys: layout.block_keys(),
        ..task.group.clone()
    };
    let mut task = Task { group, ..task };
    // Without a fused kernel the compiler leaves its loop out.
    let fused = K::FUSED_ROWS > 0
        && group.planned_rows <= K::FUSED_ROWS
        && row_tile(&mut task.tiles.q[1..]).is_some();
    if !task.packed {
        pack_queries(kernel, group, &layout, fused, task.kv, &mut task.tiles.q);
    }
    task.tiles.ub[..group.panels()].fill(RowState::START);
    if fused {
        run_fused(kernel, layout, &mut task);
    } else if group.blocks() > 0 {
        run_cycles(kernel, layout, &mut task);
    } else {
        task.partial.o.fill([0.0; STRIP]);
    }
    for panel in 0..group.panels() {
        kernel.permute(
            fused,
            layout.v,
            panel_o(group, panel, task.partial.o),
            Columns::Natural,
        );
    }
    let Task {
        options,
        tiles,
        mut partial,
        earlier,
        write,
        ..
    } = task;
    epilogue::run(
        kernel,
        group,
        options.rescale,
        &tiles.ub,
        &mut partial,
        earlier,
        write,
    );
}

/// The strips of a panel's O.
fn panel_o<'o>(group: &Group<'_>, panel: usize, o: &'o mut [ORow]) -> &'o mut [ORow] {
    let strips = strips(group.problem.shape.d_v);
    &mut o[panel * strips * PANEL_ROWS..][..strips * group.strip_rows(panel)]
}

/// All blocks and panels, cycle by cycle. Not inlined: fused groups need nothing of its frame.
#[inline(never)]
fn run_cycles<K: Kernel>(kernel: K, layout: Layout, task: &mut Task<'_>) {
    let (group, options) = (task.group, task.options);
    let shape = &group.problem.shape;
    let mut sources = Sources::of(group, layout);
    let panels = group.panels();
    let in_place = layout.in_place();
    // The K/V buffers hold one block.
    let preload = if in_place { K::PRELOAD } else { 0 };
    let of = Slots { panels, preload };
    let mut mask = [0; BLOCK_KEYS];
    // Whether some row doesn't see some key, for each P.
    let mut masked = [false; P_TILES];
    for cycle in cycles(group.blocks() * panels, preload).flat_map(|cycle| apart(cycle, in_place)) {
        // C2 waits for the block's last panel.
        let c2 = cycle.c2.filter(|i| i % panels + 1 == panels);
        sources.load(
            kernel,
            of.keys(cycle.c1),
            of.block(c2),
            preload == 0,
            task.kv,
        );
        sources.prefetch(kernel, panels, Cycle { c2, ..cycle });
        let [mut keys, mut values] = [Rows::NONE; 2];
        let mut c1 = cycle.c1.map(|i| Qk {
            panel: i % panels,
            rows: group.panel_rows(i % panels),
            queries: layout.q,
            d_qk: padded_d_qk(shape.d_qk),
            keys: sources.keys(task.kv, &mut keys),
            prefetch: sources.prefetched(0),
            s: of.s(i),
        });
        let mut v1 = cycle.v1.map(|i| {
            let mask = group.mask(i % panels, &group.block(i / panels), &mut mask);
            masked[of.p(i)] = mask.is_some();
            V1 {
                panel: i % panels,
                s: of.s(i),
                p: of.p(i),
                call: Softmax {
                    mask,
                    prefetch: sources.prefetched(1),
                    ..softmax(group, options, i % panels, &group.block(i / panels))
                },
            }
        });
        let values = c2.map(|_| sources.values(preload == 0, task.kv, &mut values));
        let p = of.p_of_panels(c2);
        let block = c2.unwrap_or(0) / panels;
        // Neighbouring panels that skip strips alike are taken at once. Each panel's own mask decides that, so that bits
        // don't depend on a group's other panels.
        let mut end = 0;
        loop {
            let start = end;
            let alike = |&panel: &usize| masked[p[panel]] == masked[p[start]];
            end = c2.map_or(0, |_| (start..panels).take_while(alike).count() + start);
            let stages = Stages {
                c1: c1.take(),
                v1: v1.take(),
                c2: values.map(|values| C2 {
                    p: &p[start..end],
                    call: Pv {
                        rows: group.rows.len().min(end * PANEL_ROWS) - start * PANEL_ROWS,
                        planned_rows: group.planned_rows,
                        keys: group.block(block).len(),
                        strips: strips(shape.d_v),
                        values,
                        precision: options.precision,
                        skips: masked[p[start]],
                        first: block == 0,
                        prefetch: sources.prefetched(2),
                    },
                }),
            };
            let o = &mut task.partial.o[start * strips(shape.d_v) * PANEL_ROWS..];
            let skipped = kernel.cycle(&stages, task.tiles, o);
            if skipped != Skipped::NONE {
                for (panel, &p) in (start..).zip(&p[start..end]) {
                    let mut seen = [0; BLOCK_KEYS];
                    let fallback = Fallback {
                        group,
                        rows: group.panel_rows(panel),
                        keys: group.block(block),
                        mask: group.mask(panel, &group.block(block), &mut seen),
                        precision: options.precision,
                        p: &task.tiles.l0a[p],
                        first: block == 0,
                        fused: false,
                        values: layout.v,
                        skipped,
                    };
                    let o = panel_o(group, panel, task.partial.o);
                    fallback.run(kernel, group.strip_rows(panel), o);
                }
            }
            if c2.is_none() || end == panels {
                break;
            }
        }
    }
}

/// V1 of a panel and a block, but for masks.
fn softmax<'a>(
    group: &Group<'_>,
    options: &Options,
    panel: usize,
    block: &Range<usize>,
) -> Softmax<'a> {
    Softmax {
        rows: group.panel_rows(panel),
        keys: block.len(),
        // A negative scale's sign is in Q.
        scale: group.problem.log2_scale().abs(),
        mask: None,
        rescale: options.rescale,
        precision: options.precision,
        prefetch: &[],
    }
}

/// All stages of few rows in one pass over each block.
fn run_fused<K: Kernel>(kernel: K, layout: Layout, task: &mut Task<'_>) {
    let (group, options) = (task.group, task.options);
    let Tiles {
        q: [q, others @ ..],
        l0a: [p, ..],
        ub: [state, ..],
        ..
    } = &mut *task.tiles;
    // A fused group has one panel, and the others' memory is free.
    let Some(v_rows) = row_tile(others) else {
        return;
    };
    let o = panel_o(group, 0, task.partial.o);
    o.fill([0.0; STRIP]);
    let mut mask = [0; BLOCK_KEYS];
    let memory = [&mut *task.kv, v_rows];
    let convert: [Convert<'_>; 2] = [
        &|keys, to| convert_keys(kernel, group, layout.k, keys, to),
        &|keys, to| convert_values(kernel, group, layout.v, keys, to),
    ];
    let q = core::slice::from_ref(q);
    each_fused_block(group, &layout, q, memory, convert, &mut |block, rows| {
        let call = Softmax {
            mask: group.mask(0, &block, &mut mask),
            ..softmax(group, options, 0, &block)
        };
        let mut from = 0;
        while from < block.len() {
            let end = kernel.fused(&call, rows, from, p, state, o);
            if end.skipped == Skipped::NONE {
                break;
            }
            from = end.keys.end;
            let keys = block.start + end.keys.start..block.start + end.keys.end;
            let mut seen = [0; BLOCK_KEYS];
            let mask = group.mask(0, &keys, &mut seen);
            let fallback = Fallback {
                group,
                rows: call.rows,
                keys,
                mask,
                precision: call.precision,
                p,
                first: false,
                fused: true,
                values: layout.v,
                skipped: end.skipped,
            };
            fallback.run(kernel, call.rows, o);
        }
    });
}

#[cfg(test)]
mod tests;
