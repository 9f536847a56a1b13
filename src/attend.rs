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
//! 9. C2 takes neighbouring panels of a block at once, so that V is packed once, strip by strip, in L1d.
//! 10. A panel has no stage of a block that none of its rows sees, and C1 of others ends with the last key that one may see; fused
//!     kernels leave blocks out alone.
//! 11. With few rows of each KV head, a task may have several heads: block by block one after the other, so that memory is read in
//!     its own order.

use core::array;
use core::ops::Range;

use crate::epilogue::{self, Write};
use crate::fallback::Fallback;
use crate::format::Dtype;
use crate::group::{Group, Partial};
use crate::kernel::{
    Backend, C2, Columns, Kernel, Pv, Qk, Rows, Skipped, Softmax, Stages, V1, Visitor, row_tile,
};
use crate::problem::{Inputs, Precision, Rescale};
use crate::schedule::{Cycle, cycles};
use crate::slots::{Slots, apart};
use crate::source::{
    Layout, Load, Memory, Sources, convert_keys, convert_values, each_fused_block, pack_queries,
};
use crate::tile::{
    BLOCK_KEYS, ORow, P_TILES, PANEL_ROWS, PANELS, Q_TILES, QPanel, RowState, RowTile, STRIP,
    Tiles, padded_d_qk, strips,
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
    /// The memory of the [results](Partial), one for each KV head; overwritten.
    pub partial: &'a mut [f32],
    /// The results over earlier keys, which are added.
    pub earlier: Option<&'a mut [f32]>,
    /// Where the results are written, if these are the last keys.
    pub write: Option<Write<'a>>,
}

/// Whether KV heads of a group's rows are attended in turn, block by block: with few rows and keys and values in place.
/// Memory then comes in its own order where the heads of a token are next to each other.
pub struct JoinsHeads<'a>(pub &'a Group<'a>);

impl Visitor for JoinsHeads<'_> {
    type Output = bool;

    fn visit<K: Kernel>(self, _: K) -> bool {
        is_fused::<K>(self.0) && Layout::of::<K>(self.0.problem).in_place()
    }
}

/// Whether a backend's fused kernel takes the rows of a group. Without one the compiler leaves its loop out.
fn is_fused<K: Kernel>(group: &Group<'_>) -> bool {
    // Such a group has one panel, and the others' memory is free.
    const ROOM: bool = (Q_TILES - 1) * size_of::<QPanel>() >= size_of::<RowTile>();
    ROOM && K::FUSED_ROWS > 0 && group.planned_rows <= K::FUSED_ROWS
}

/// The paper's Algorithm 2 of a task.
pub fn attend<K: Kernel>(kernel: K, task: Task<'_>) {
    let layout = Layout::of::<K>(task.group.problem);
    let group = &Group {
        block_keys: layout.block_keys(),
        ..task.group.clone()
    };
    let mut task = Task { group, ..task };
    let fused = is_fused::<K>(group);
    let d_v = group.problem.shape.d_v;
    task.tiles.ub[..group.panels()].fill(RowState::START);
    let mut heads = Heads {
        current: 0,
        rows: group.rows.len(),
        others: RowState::START,
    };
    if fused {
        run_fused(kernel, layout, &mut task, &mut heads);
    } else if group.sees_any() {
        if !task.packed {
            pack_queries(kernel, group, &layout, false, task.kv, &mut task.tiles.q);
        }
        run_cycles(kernel, layout, &mut task);
    } else {
        Partial::view(task.partial, d_v).o.fill([0.0; STRIP]);
    }
    let Task {
        options,
        tiles,
        partial,
        mut earlier,
        mut write,
        ..
    } = task;
    let len = partial.len() / group.heads;
    for (i, partial) in partial.chunks_exact_mut(len).enumerate() {
        let group = &group.of_head(i);
        let mut partial = Partial::view(partial, d_v);
        heads.switch(&mut tiles.ub[0], i);
        for panel in 0..group.panels() {
            let o = panel_o(group, panel, partial.o);
            kernel.permute(fused, layout.v, o, Columns::Natural);
        }
        let earlier = earlier.as_deref_mut();
        let earlier = earlier.map(|earlier| Partial::view(&mut earlier[i * len..][..len], d_v));
        epilogue::run(
            kernel,
            group,
            options.rescale,
            &tiles.ub,
            &mut partial,
            earlier,
            write.as_mut().map(Write::reborrow),
        );
    }
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
    let (panels, strips) = (group.panels(), strips(group.problem.shape.d_v));
    let Partial { o, .. } = Partial::view(task.partial, group.problem.shape.d_v);
    let (mut sources, in_place) = (Sources::of(group, layout), layout.in_place());
    // The K/V buffers hold one block.
    let preload = if in_place { K::PRELOAD } else { 0 };
    let of = Slots { panels, preload };
    let mut mask = [0; BLOCK_KEYS];
    // Whether some row doesn't see some key, for each P.
    let mut masked = [false; P_TILES];
    // Which panels see any key of the blocks in flight: they have nothing to do with the others.
    let mut seen = [[false; PANELS]; BLOCKS_IN_FLIGHT];
    for cycle in cycles(group.blocks() * panels, preload).flat_map(|cycle| apart(cycle, in_place)) {
        if let Some(block) = of.keys(cycle.c1) {
            let seen = &mut seen[block % BLOCKS_IN_FLIGHT];
            *seen = panels_that_see(group, block);
            for panel in (0..panels).filter(|&panel| block == 0 && !seen[panel]) {
                // Otherwise C2 of this block overwrites it.
                panel_o(group, panel, o).fill([0.0; STRIP]);
            }
        }
        let seen = |block: usize| seen[block % BLOCKS_IN_FLIGHT];
        let sees = |i: &usize| seen(i / panels)[i % panels];
        let any_sees = |block: &usize| seen(*block).contains(&true);
        // C2 waits for the block's last panel.
        let c2 = cycle
            .c2
            .filter(|i| i % panels + 1 == panels && any_sees(&(i / panels)));
        sources.load(
            kernel,
            of.keys(cycle.c1).filter(any_sees),
            of.block(c2),
            preload == 0,
            task.kv,
        );
        let (c1, v1) = (cycle.c1.filter(sees), cycle.v1.filter(sees));
        if [c1, v1, c2] == [None; 3] {
            continue;
        }
        sources.prefetch(kernel, panels, Cycle { c1, v1, c2 });
        let [mut keys, mut values] = [Rows::NONE; 2];
        let mut c1 = c1.map(|i| {
            let keys = sources.keys(task.kv, &mut keys);
            Qk {
                s: of.s(i),
                prefetch: sources.prefetched(0),
                ..scores(group, layout.q, [i % panels, i / panels], keys)
            }
        });
        let mut v1 = v1.map(|i| {
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
        let (p, block) = (of.p_of_panels(c2), c2.unwrap_or(0) / panels);
        let keys = group.block(block);
        // Neighbours are taken at once by C2 if they see the block, and skip strips alike. That is a matter of each
        // panel, not of the group that a thread takes: bits depend on it.
        let kind = |panel: usize| seen(block)[panel].then_some(masked[p[panel]]);
        let mut end = 0;
        loop {
            let start = (end..panels).find(|&panel| kind(panel).is_some());
            let start = start.filter(|_| c2.is_some()).unwrap_or(panels);
            end = (start..panels)
                .find(|&panel| kind(panel) != kind(start))
                .unwrap_or(panels);
            let call = values.filter(|_| start < end).map(|values| C2 {
                p: &p[start..end],
                call: Pv {
                    rows: group.rows.len().min(end * PANEL_ROWS) - start * PANEL_ROWS,
                    planned_rows: group.planned_rows,
                    keys: keys.len(),
                    strips,
                    values,
                    precision: options.precision,
                    skips: masked[p[start]],
                    first: block == 0,
                    prefetch: sources.prefetched(2),
                },
            });
            if c1.is_none() && v1.is_none() && call.is_none() {
                break;
            }
            let stages = Stages {
                c1: c1.take(),
                v1: v1.take(),
                c2: call,
            };
            let from = start.min(panels - 1) * strips * PANEL_ROWS;
            let skipped = kernel.cycle(&stages, task.tiles, &mut o[from..]);
            for (panel, &p) in (start..).zip(&p[start..end]) {
                if skipped != Skipped::NONE {
                    let fallback = Fallback {
                        group,
                        panel,
                        keys: keys.clone(),
                        precision: options.precision,
                        p: &task.tiles.l0a[p],
                        first: block == 0,
                        fused: false,
                        values: layout.v,
                        skipped,
                    };
                    fallback.run(kernel, panel_o(group, panel, o));
                }
            }
        }
    }
}

/// Which panels see any key of a block.
fn panels_that_see(group: &Group<'_>, block: usize) -> [bool; PANELS] {
    let keys = group.block(block);
    array::from_fn(|panel| panel < group.panels() && group.panel_sees(panel, &keys))
}

/// Blocks whose stages a cycle may have: with a preload of 2 and one panel three, rounded up to a power of two.
const BLOCKS_IN_FLIGHT: usize = 4;

/// C1 of a panel and a block: of the keys up to the last that a row sees.
fn scores<'a>(
    group: &Group<'_>,
    queries: Dtype,
    [panel, block]: [usize; 2],
    keys: &'a Rows<'a>,
) -> Qk<'a> {
    let seen = group.seen_end(panel, &group.block(block));
    Qk {
        panel,
        rows: group.panel_rows(panel),
        queries,
        d_qk: padded_d_qk(group.problem.shape.d_qk),
        keys: &keys.as_slice()[..seen],
        dtype: keys.dtype,
        prefetch: &[],
        s: 0,
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

/// The row states of a group's KV heads. A tile has those of one at a time.
struct Heads {
    current: usize,
    /// Rows of each.
    rows: usize,
    others: RowState,
}

impl Heads {
    /// Brings those of a head into the tile.
    fn switch(&mut self, tile: &mut RowState, head: usize) {
        if head != self.current {
            let rows = self.rows;
            self.others.copy_rows(self.current * rows, tile, 0..rows);
            tile.copy_rows(0, &self.others, head * rows..(head + 1) * rows);
            self.current = head;
        }
    }
}

/// All stages of few rows in one pass over each block, of one KV head after the other.
fn run_fused<K: Kernel>(kernel: K, layout: Layout, task: &mut Task<'_>, heads: &mut Heads) {
    let (group, options) = (task.group, task.options);
    let Tiles {
        q,
        l0a: [p, ..],
        l0b,
        ub: [state, ..],
        ..
    } = &mut *task.tiles;
    let (q, others) = q.split_at_mut(1);
    // There is room (`is_fused`).
    let Some(v_rows) = row_tile(others) else {
        return;
    };
    let d_v = group.problem.shape.d_v;
    let len = task.partial.len() / group.heads;
    for partial in task.partial.chunks_exact_mut(len) {
        panel_o(group, 0, Partial::view(partial, d_v).o).fill([0.0; STRIP]);
    }
    let mut mask = [0; BLOCK_KEYS];
    let memory = Memory {
        q,
        packed: task.packed,
        rows: [&mut *task.kv, v_rows],
    };
    let load = Load {
        queries: &|group, kv, q| pack_queries(kernel, group, &layout, true, kv, q),
        keys: &|keys, to| convert_keys(kernel, group, layout.k, keys, to),
        values: &|keys, to| convert_values(kernel, group, layout.v, keys, to),
    };
    each_fused_block(
        group,
        &layout,
        memory,
        &load,
        &mut |head, block, operands| {
            let group = &group.of_head(head);
            heads.switch(state, head);
            let o = Partial::view(&mut task.partial[head * len..][..len], d_v).o;
            let o = panel_o(group, 0, o);
            let call = Softmax {
                mask: group.mask(0, &block, &mut mask),
                ..softmax(group, options, 0, &block)
            };
            let mut operands = *operands;
            while operands.from < block.len() {
                let end = kernel.fused(&call, &operands, p, l0b, state, o);
                if end.skipped == Skipped::NONE {
                    break;
                }
                operands.from = end.keys.end;
                let fallback = Fallback {
                    group,
                    panel: 0,
                    keys: block.start + end.keys.start..block.start + end.keys.end,
                    precision: call.precision,
                    p,
                    first: false,
                    fused: true,
                    values: layout.v,
                    skipped: end.skipped,
                };
                fallback.run(kernel, o);
            }
        },
    );
}

#[cfg(test)]
mod tests;
