//! AMLA, Algorithm 2 of the paper, over tiles: this file is the algorithm, and
//! everything else serves it.
//!
//! One task attends a group of up to 256 query rows (heads x positions of one
//! request) to a range of keys. Keys come in blocks of 192, rows in panels of 64 (fewer, where
//! tiles are small);
//! an item `i` is one panel of one block, `block = i / panels`.
//!
//! ```text
//! pack Q, panel by panel                                  (MTE2 of the NPU)
//! for stage in schedule::preload_by(blocks * panels, 2):  C1 C1 V1 | C1 C2 V1 ... | C2 V1 C2
//!                 up to two panels, by 0 (ADR 0021):      C1 V1 C2 ...
//!                 where C2 of all is one (ADR 0030):      C1 V1 C1 V1 C2 ...
//!     C1(i):  S[i % 2] = K_block Q_panel^T                line 4
//!     V1(i):  e' = e, or 3 above ceil(log2-max of S)      lines 5, 6
//!                  where that is larger (ADR 0029)
//!             P = exp2(S - e' - r), rounded to BF16,      lines 6, 7, 10
//!                  r so that the largest is exact (ADR 0035)
//!             l = l * 2^(e - e') + 2^r rowsum(P)          line 6
//!             N = (e - e') * 2^23                         lines 11, 12
//!     C2(i):  at the block's first panel: pack V on the way (or before)
//!             O = AS_FP32(AS_INT32(O) + N), total         lines 13-16, in one visit
//!             O = O + 2^r P V                             lines 17, 18   of each tile
//!             after the last block: O and l to one sum    then, in `results`: O / l, lse (20)
//! ```
//!
//! With very few rows a backend may go through these stages in steps of its own (`Kernel::stream`).
//!
//! Deviations from the paper, each argued in `docs/algorithm.md`:
//!
//! 1. The integer addition is total: zeros, subnormals, infinities and NaNs are
//!    not shifted ([`crate::bits`]).
//! 2. Exact mode replaces the real maximum by an integer exponent `e`, so that
//!    every rescale is a power of two and no compensation is left to make.
//!    Compensated mode keeps the paper's, with the appendix's (right) ratio.
//! 3. Base 2 throughout: `log2(e) * softmax_scale` is one factor, applied to a
//!    score's (exact) distance from the block's maximum.
//! 4. The constant 1e-6 of line 11 is left out and the clamp of -30 is -255.
//! 5. O is normalised by the sum of P as rounded, lse comes from the unrounded
//!    sum. Each block's largest P, which may carry the row, is a power of two, and products
//!    are weighed for that; or, where they are accumulated in O, it is two BF16.
//! 6. S^T and O are computed with query rows across S's vectors and value columns
//!    across O's, so that no vector is ever reduced horizontally.
//! 7. Blocks have 192 keys, not 512, so that V fits the three K/V buffers
//!    (`docs/adr/0002`).
//! 8. A block whose V holds an infinity or a NaN takes a scalar path that skips
//!    the keys a row doesn't see; the fast path may then multiply hidden keys by
//!    zero.

use core::array::from_fn;
use core::ops::Range;
use core::slice::IterMut;

use half::bf16;

use crate::bits::{Increment, add_increment_f32, bf16_widen};
use crate::error::Error;
use crate::format::Row;
use crate::group::{Group, Partial};
use crate::kernel::{
    Backend, Kernel, Left, Mask, Pv, Rows, STREAM_KEYS, STREAM_MULTIPLE, Softmax, Streams, Strips,
    Visitor, heads, p_memory, pointers, row_tile,
};
use crate::problem::{Precision, Rescale};
use crate::results::{End, Write};
use crate::schedule::{PRELOAD_COUNT, SCORE_TILES, Stage, preload_by};
use crate::tile::{
    BLOCK_KEYS, L0a, L0b, MAX_D_V, OStrip, PANEL_ROWS, PANELS, QPanel, RowState, RowTile, STRIP,
    Tiles, VBuffer,
};

/// Up to so many rows memory limits as much as the multipliers do, and keys are
/// asked for ahead (the NPU's MTE2). With more the processor's own prefetcher keeps
/// up, and asking again showed no gain, but to a backend that computes faster ([`Kernel::ALL_ASK`]).
const FEW_ROWS: usize = 16;

/// How to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whose instructions; the fastest that the processor has by default.
    pub backend: Backend,
    /// How O follows the running maximum.
    pub rescale: Rescale,
    /// How P enters the second matrix product.
    pub precision: Precision,
}

/// Instantiates the kernel: one pair is one line.
macro_rules! dims {
    ($($d_qk:literal x $d_v:literal;)*) => {
        /// The `(d_qk, d_v)` that kernels are instantiated for.
        pub const SUPPORTED_DIMS: &[(usize, usize)] = &[$(($d_qk, $d_v)),*];

        impl Visitor for Task<'_> {
            type Output = Result<(), Error>;

            fn visit<K: Kernel>(self, kernel: K) -> Self::Output {
                let shape = &self.group.problem.shape;
                match (shape.d_qk, shape.d_v) {
                    $(($d_qk, $d_v) => {
                        attend::<K, $d_qk, $d_v>(kernel, self);
                        Ok(())
                    })*
                    _ => check_dims(shape.d_qk, shape.d_v),
                }
            }
        }
    };
}

dims! {
    576 x 512;
    512 x 512;
    320 x 256;
    192 x 128;
    128 x 128;
    64 x 64;
}

/// # Errors
/// [`Error::UnsupportedDims`] if no kernel is instantiated for these widths.
pub fn check_dims(d_qk: usize, d_v: usize) -> Result<(), Error> {
    if SUPPORTED_DIMS.contains(&(d_qk, d_v)) {
        Ok(())
    } else {
        Err(Error::UnsupportedDims {
            d_qk,
            d_v,
            supported: SUPPORTED_DIMS,
        })
    }
}

/// The preload count of a group of so many panels. The stages of a core don't overlap, so that a preload
/// gains nothing; the paper's group of four panels keeps its order, where that costs nothing. Smaller
/// groups are faster without (`docs/adr/0021`), and so are all whose C2 is one (`docs/adr/0030`).
const fn preload_count(panels: usize, together: bool) -> usize {
    if panels > 2 && !together {
        PRELOAD_COUNT
    } else {
        0
    }
}

/// Blocks that are in flight at once: those from C2's to C1's, which the schedule has so many
/// items ahead.
const fn blocks_in_flight(panels: usize, preload: usize) -> usize {
    1 + preload.div_ceil(panels)
}

/// Memory for the widened rows of a block in flight: GM, or the K/V buffers. `None` where those
/// are too few.
fn row_memory<'t>(
    slot: usize,
    gm: &'t mut RowTile,
    v: &'t mut [VBuffer],
) -> Option<&'t mut RowTile> {
    match slot {
        0 => Some(gm),
        _ => row_tile(v),
    }
}

/// Writes rows' parts one behind the other, as BF16.
fn put_together<'b, K: Kernel>(
    kernel: K,
    widths: [usize; 2],
    rows: impl Iterator<Item = [Row<'b>; 2]>,
    gm: &mut RowTile,
) {
    for ([first, second], row) in rows.zip(gm) {
        let (head, tail) = row.split_at_mut(widths[0]);
        kernel.widen(&first, head);
        kernel.widen(&second, &mut tail[..widths[1]]);
    }
}

/// Keys of a group, put together. Apart, as it is the same for all widths.
#[inline(never)]
fn widen_keys<K: Kernel>(kernel: K, group: &Group<'_>, keys: Range<usize>, memory: &mut RowTile) {
    let parts = group.keys(keys);
    put_together(kernel, group.problem.k_widths(), parts, memory);
}

/// Keys of a group, as they lie. Apart, as it is the same for all widths and backends.
#[inline(never)]
fn gather_keys<'a>(group: &Group<'a>, keys: Range<usize>, rows: &mut Rows<'a>) {
    let problem = group.problem;
    rows.fill(|slots| problem.each_key(group.request, group.head, keys, |row| slots.put(row)));
}

/// The same of values.
#[inline(never)]
fn gather_values<'a>(group: &Group<'a>, keys: Range<usize>, rows: &mut Rows<'a>) {
    let problem = group.problem;
    rows.fill(|slots| {
        problem.each_value(group.request, group.head, keys, |row| slots.put(row));
    });
}

/// One call of the kernel.
pub struct Task<'a> {
    /// What to attend to what.
    pub group: &'a Group<'a>,
    /// How.
    pub options: &'a Options,
    /// The on-chip memories.
    pub tiles: &'a mut Tiles,
    /// Whether they hold the queries of these rows already, from the task before.
    pub packed: bool,
    /// The result; overwritten.
    pub partial: Partial<'a>,
    /// What becomes of it.
    pub then: Then<'a>,
}

/// What becomes of a task's result, panel by panel as their keys are through.
pub struct Then<'a> {
    /// The result over earlier keys, which is added.
    pub earlier: Option<Partial<'a>>,
    /// Whether O's columns are put in order; they are left as the backend keeps them otherwise
    /// ([`Kernel::settle`]).
    pub settle: bool,
    /// Where it is written, if these are the last keys.
    pub write: Option<Write<'a>>,
}

fn attend<K: Kernel, const D_QK: usize, const D_V: usize>(kernel: K, task: Task<'_>) {
    let Task {
        group,
        options,
        tiles,
        packed,
        mut partial,
        mut then,
    } = task;
    const { assert!(D_QK.is_multiple_of(2) && D_V.is_multiple_of(STRIP)) };
    let problem = group.problem;
    let panels = group.panels();
    let blocks = group.blocks();
    let strips = D_V / STRIP;
    // A negative scale's sign goes into Q, exactly.
    let scale = problem.log2_scale().abs();
    let negate = problem.softmax_scale < 0.0;

    let Tiles {
        l1,
        l0a,
        l0b,
        l0c,
        ub,
        gm,
    } = tiles;

    let streams = K::STREAM_ROWS > 0 && group.planned_rows <= K::STREAM_ROWS;
    // V isn't packed then, and its memory is free.
    let stream_memory = if streams { row_tile(&mut l1.v) } else { None };
    ub[..panels].fill(RowState::START);
    for panel in 0..if packed { 0 } else { panels } {
        let queries = (0..group.panel_rows(panel)).map(|r| {
            let (j, h) = group.position(panel * PANEL_ROWS + r);
            problem.query(group.request, j, h)
        });
        let mut rows: [&[bf16]; PANEL_ROWS] = [&[]; _];
        let rows = &mut rows[..group.panel_rows(panel)];
        if problem.queries_as_they_lie() {
            for (row, [query, _]) in rows.iter_mut().zip(queries) {
                *row = query.as_bf16();
            }
        } else {
            put_together(kernel, problem.q_widths(), queries, gm);
            for (row, query) in rows.iter_mut().zip(&*gm) {
                *row = &query[..D_QK];
            }
        }
        if stream_memory.is_some() {
            kernel.pack_stream_q::<D_QK>(rows, negate, &mut l1.q[panel]);
        } else {
            kernel.pack_q::<D_QK>(rows, negate, &mut l1.q[panel]);
        }
    }
    if let Some(memory) = stream_memory {
        let (q, state, o) = (&l1.q[0], &mut ub[0], &mut partial.o[..strips]);
        stream::<K, D_QK, D_V>(kernel, group, options, q, [gm, memory], l0a, state, o);
        finish(kernel, group, options, ub, 0, &mut partial, &mut then);
        return;
    }

    if blocks == 0 {
        partial.o.fill([[0.0; STRIP]; PANEL_ROWS]);
    }

    let preload = preload_count(panels, K::PANELS_TOGETHER);
    let mut keys = [Rows::NONE; blocks_in_flight(PANELS, preload_count(PANELS, false))];
    let (mut values, mut next) = (Rows::NONE, Rows::NONE);
    let as_they_lie = problem.keys_as_they_lie();
    // A block whose V isn't finite is given up as a whole where it was packed before, so that who packs must not depend on who
    // computes which rows. C2 of all panels tells strips apart, as C2 of one does.
    let rows = if K::PANELS_TOGETHER {
        group.rows.len()
    } else {
        group.planned_rows
    };
    let reads_rows = rows <= K::DIRECT_ROWS;
    let lie = problem.values_as_they_lie();
    // Whether C2 takes the rows that C1 took.
    let one_row = as_they_lie && problem.v.is_none();
    // Whether C2 reads the rows that C1 had widened: each block's stay until it has, in memory
    // that packed values don't need then.
    let in_flight = blocks_in_flight(panels, preload);
    let fits = |slot| reads_rows && row_memory(slot, gm, &mut l1.v).is_some();
    let reuse = problem.values_begin_keys() && (1..in_flight).all(fits);
    // Whether C2 finds rows of BF16, and packs none or while it computes.
    let at_hand = lie || reuse;
    let direct = reads_rows && at_hand;
    // Whether all panels' C2 are one: P of all but the last have to stay.
    let together = K::PANELS_TOGETHER && panels > 1 && at_hand && p_memory(&mut l1.v[0]).is_some();
    let slot = |block: usize| if reuse { block % in_flight } else { 0 };
    let few = group.rows.len() <= FEW_ROWS;
    // Who asks for keys: all stages, or else C1, with few rows both, or C2 alone.
    let all_ask = K::ALL_ASK && as_they_lie;
    let c1_asks = reads_rows && lie && problem.has_key_rows() && group.rows.len() <= K::ASKING_ROWS;
    let both = if c1_asks {
        kernel.pv_asks(group.rows.len())
    } else {
        0
    };
    // Keys that are put together first are wanted all at once.
    let lead = if as_they_lie {
        K::lead(group.rows.len())
    } else {
        BLOCK_KEYS
    };
    let mut asked = group.keys.start + lead;
    let mut mask = [0; BLOCK_KEYS];
    let mut finite = true;
    let mut maxima = [None; SCORE_TILES];
    // Where the block ends that C1 has come to. Where all stages ask, they do for the one behind it.
    let mut begun = group.keys.start;
    for step in preload_by(blocks * panels, preload) {
        if all_ask {
            let item = match step.stage {
                Stage::C1(i) | Stage::V1(i) | Stage::C2(i) => i,
                Stage::Last => 0,
            };
            if step.stage == Stage::C1(item) && item % panels == 0 {
                begun = group.block(item / panels).end;
            }
            asked = asked.max(begun);
            let share = K::share(step.stage, group.panel_rows(item % panels), [D_QK, D_V]);
            let to = (begun + BLOCK_KEYS).min(asked + share);
            group.ahead(to, &mut asked, &mut next);
        } else {
            // What one stage asks for the next ones needn't.
            next.clear();
        }
        match step.stage {
            Stage::C1(i) => {
                let (block, panel) = (i / panels, i % panels);
                let range = group.block(block);
                if panel == 0 {
                    if as_they_lie {
                        gather_keys(group, range.clone(), &mut keys[block % in_flight]);
                    }
                    if c1_asks {
                        group.ahead(range.end + lead, &mut asked, &mut next);
                    }
                }
                let mut rows = Rows::NONE;
                let keys = if as_they_lie {
                    &keys[block % in_flight]
                } else {
                    if let Some(memory) = row_memory(slot(block), gm, &mut l1.v) {
                        if panel == 0 {
                            widen_keys(kernel, group, range.clone(), memory);
                        }
                        rows.gather(memory[..range.len()].iter().map(|row| &row[..D_QK]));
                    }
                    &rows
                };
                maxima[i % SCORE_TILES] = kernel.qk::<D_QK>(
                    &l1.q[panel],
                    group.panel_rows(panel),
                    keys,
                    next.as_slice(),
                    l0b,
                    &mut l0c[i % SCORE_TILES],
                );
            }
            Stage::V1(i) => {
                let (block, panel) = (i / panels, i % panels);
                let keys = group.block(block);
                let call = Softmax {
                    rows: group.panel_rows(panel),
                    keys: keys.len(),
                    scale,
                    mask: group.mask(panel, block, &mut mask),
                    maxima: maxima[i % SCORE_TILES].as_ref(),
                    rescale: options.rescale,
                    precision: options.precision,
                    next: next.as_slice(),
                };
                let buffer = if together { l1.v.get_mut(panel) } else { None };
                let stays = buffer.filter(|_| panel + 1 < panels).and_then(p_memory);
                let p = stays.unwrap_or(l0a);
                kernel.softmax(&call, &l0c[i % SCORE_TILES], p, &mut ub[panel]);
            }
            Stage::C2(i) => {
                let (block, panel) = (i / panels, i % panels);
                let range = group.block(block);
                if panel == 0 {
                    if !one_row && !reuse {
                        gather_values(group, range.clone(), &mut values);
                    }
                    if both > 0 {
                        group.ahead(asked + both, &mut asked, &mut next);
                    } else if few && !c1_asks && !K::ALL_ASK {
                        // The block that C1 will begin with then.
                        let end = range.end + in_flight * BLOCK_KEYS;
                        group.ahead(end, &mut asked, &mut next);
                    }
                    if !at_hand {
                        let v = &mut l1.v;
                        finite = !widen_and_pack::<K, D_V>(kernel, group, range.clone(), l0b, v);
                    }
                }
                let call = |panel: usize| Pv {
                    rows: group.panel_rows(panel),
                    group_rows: group.planned_rows,
                    keys: range.len(),
                    precision: options.precision,
                    increment: (block > 0).then_some(&ub[panel].increment),
                    next: next.as_slice(),
                };
                let lying = if one_row {
                    &keys[block % in_flight]
                } else {
                    &values
                };
                let mut widened = Rows::NONE;
                let last = panel + 1 == panels;
                // Whether values are packed as they lie, before this panel's C2 or within it.
                let packs = at_hand && !direct && if together { last } else { panel == 0 };
                let lying = if packs && reuse {
                    widened.gather(gm[..range.len()].iter().map(|row| &row[..D_V]));
                    &widened
                } else {
                    lying
                };
                if together && !last {
                    // It comes with the last one's.
                    continue;
                }
                if together {
                    let calls: [_; PANELS] = from_fn(|panel| call(panel.min(panels - 1)));
                    let calls = &calls[..panels];
                    let mut p = [&*l0a; PANELS];
                    for (p, buffer) in p.iter_mut().zip(&mut l1.v).take(panels - 1) {
                        *p = p_memory(buffer).map_or(*p, |p| &*p);
                    }
                    let o = &mut partial.o[..panels * strips];
                    let left = kernel.pv_panels::<D_V>(calls, &p[..panels], lying, l0b, o);
                    if left != Left::NOTHING {
                        for (panel, o) in o.chunks_mut(strips).enumerate() {
                            let (call, p) = (&calls[panel], p[panel]);
                            let mask = group.mask(panel, block, &mut mask);
                            pv_non_finite(kernel, group, range.clone(), call, p, mask, left, o);
                        }
                    }
                    for panel in 0..if block + 1 == blocks { panels } else { 0 } {
                        finish(kernel, group, options, ub, panel, &mut partial, &mut then);
                    }
                    continue;
                }
                let call = call(panel);
                if packs {
                    finite = !kernel.pack_v::<D_V>(lying.as_slice(), 0, call.next, &mut l1.v);
                }
                let o = &mut partial.o[panel * strips..][..strips];
                let left = if direct {
                    let mut widened = Rows::NONE;
                    let values = if reuse {
                        if let Some(memory) = row_memory(slot(block), gm, &mut l1.v) {
                            widened.gather(memory[..range.len()].iter().map(|row| &row[..D_V]));
                        }
                        &widened
                    } else {
                        lying
                    };
                    kernel.pv_direct::<D_V>(&call, l0a, values, l0b, o)
                } else if finite {
                    kernel.pv::<D_V>(&call, l0a, &l1.v, l0b, o)
                } else {
                    Left::EVERYTHING
                };
                if left != Left::NOTHING {
                    let mask = group.mask(panel, block, &mut mask);
                    pv_non_finite(kernel, group, range, &call, l0a, mask, left, o);
                }
                if block + 1 == blocks {
                    // While L2 has it.
                    finish(kernel, group, options, ub, panel, &mut partial, &mut then);
                }
            }
            Stage::Last => {
                for panel in 0..if blocks == 0 { panels } else { 0 } {
                    finish(kernel, group, options, ub, panel, &mut partial, &mut then);
                }
            }
        }
    }
}

/// The same stages over few rows: a backend goes through a block's keys a few at a time. Apart, so that its arrays don't
/// lie on the stack of all other groups.
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "called in one place")]
fn stream<K: Kernel, const D_QK: usize, const D_V: usize>(
    kernel: K,
    group: &Group<'_>,
    options: &Options,
    q: &QPanel,
    memory: [&mut RowTile; 2],
    p: &mut L0a,
    state: &mut RowState,
    o: &mut [OStrip],
) {
    let problem = group.problem;
    let rows = group.rows.len();
    let [keys_memory, values_memory] = memory;
    let strips = o.len();
    o.as_flattened_mut()[..strips * rows].fill([0.0; STRIP]);
    let as_they_lie = problem.keys_as_they_lie();
    let mut lying = [const { &[bf16::ZERO; D_QK] }; STREAM_KEYS];
    // Those of a block that are there already, as the one before asked for them.
    let mut have = 0;
    let mut mask = [0; BLOCK_KEYS];
    for block in 0..group.blocks() {
        let range = group.block(block);
        let len = range.len();
        let mut widened;
        let keys = if as_they_lie {
            let end = group.reach.min(range.start + STREAM_KEYS);
            let new = range.start + have..end;
            list_keys(group, new, &mut lying, &mut have);
            &lying
        } else {
            widen_keys(kernel, group, range.clone(), keys_memory);
            widened = [const { &[bf16::ZERO; D_QK] }; STREAM_KEYS];
            gather(&keys_memory[..len], &mut widened);
            &widened
        };
        let mut located;
        let asked = if as_they_lie || !problem.has_key_rows() {
            pointers(keys)
        } else {
            // Those to be widened next.
            let to = group.reach.min(range.end + STREAM_KEYS);
            located = *pointers(keys);
            locate_keys(group, range.end..to, &mut located);
            &located
        };
        let mut gathered;
        // What lies behind the block may be another task's, and may not be finite.
        let whole = len.is_multiple_of(STREAM_MULTIPLE);
        let begun = heads(keys).filter(|_| problem.v.is_none() && whole);
        let values = if let Some(values) = begun {
            values
        } else {
            gathered = [const { &[bf16::ZERO; D_V] }; STREAM_KEYS];
            if problem.v.is_none() {
                gather(&keys[..len], &mut gathered);
            } else if problem.values_as_they_lie() {
                list_values(group, range.clone(), &mut gathered);
            } else {
                widen_values(kernel, group, range.clone(), D_V, values_memory);
                gather(&values_memory[..len], &mut gathered);
            }
            &gathered
        };
        let call = Softmax {
            rows,
            keys: len,
            scale: problem.log2_scale().abs(),
            mask: group.mask(0, block, &mut mask),
            maxima: None,
            rescale: options.rescale,
            precision: options.precision,
            next: &[],
        };
        let streams = Streams {
            q,
            keys,
            asked,
            values,
        };
        let mut from = 0;
        while from < len {
            let done = kernel.stream(&call, &streams, from, p, state, o);
            if done.left == Left::NOTHING {
                break;
            }
            from = done.keys.end;
            let some = range.start + done.keys.start..range.start + done.keys.end;
            let mut seen = [0; BLOCK_KEYS];
            if let Some(mask) = call.mask {
                seen[..some.len()].copy_from_slice(&mask[done.keys]);
            }
            let mask = call.mask.map(|_| &seen);
            let call = Pv {
                rows: call.rows,
                group_rows: group.planned_rows,
                keys: some.len(),
                precision: call.precision,
                increment: Some(&[0; _]),
                next: &[],
            };
            kernel.settle_stream(o, rows, false);
            pv_non_finite(kernel, group, some, &call, p, mask, done.left, o);
            kernel.settle_stream(o, rows, true);
        }
        lying.copy_within(len.., 0);
        have = have.saturating_sub(len);
    }
    kernel.settle_stream(o, rows, false);
}

/// Puts keys as they lie behind the first `n` rows, and copies of the last behind them.
#[inline(never)]
fn list_keys<'a, const D: usize>(
    group: &Group<'a>,
    keys: Range<usize>,
    rows: &mut [&'a [bf16; D]; STREAM_KEYS],
    n: &mut usize,
) {
    let (problem, request, head) = (group.problem, group.request, group.head);
    // Often an addition for each, and nothing to look up: with few rows a nanosecond counts.
    match problem.keys_in_a_row(request, head, &keys) {
        Some(run) if run.len() == keys.len() => {
            let mut to = rows[*n..].iter_mut();
            // In this order: `to` keeps what there is no key for.
            for (row, to) in run.iter().zip(to.by_ref()) {
                *to = row;
            }
            *n = STREAM_KEYS - to.len();
        }
        _ => list_runs(group, keys, rows, n),
    }
    repeat_last(*n, rows);
}

/// The same of keys that don't all lie in a row. Apart, as the usual case is slower with this loop around it.
#[inline(never)]
fn list_runs<'a, const D: usize>(
    group: &Group<'a>,
    mut keys: Range<usize>,
    rows: &mut [&'a [bf16; D]; STREAM_KEYS],
    n: &mut usize,
) {
    let (problem, request, head) = (group.problem, group.request, group.head);
    while let Some(run) = problem.keys_in_a_row(request, head, &keys) {
        for (to, row) in rows[*n..].iter_mut().zip(run) {
            *to = row;
        }
        *n += run.len();
        keys.start += run.len();
    }
    let mut to = rows[*n..].iter_mut();
    problem.each_key(request, head, keys, |row| put(row, &mut to));
    *n = STREAM_KEYS - to.len();
}

/// The same with values, from the first row on.
#[inline(never)]
fn list_values<'a, const D: usize>(
    group: &Group<'a>,
    keys: Range<usize>,
    rows: &mut [&'a [bf16; D]; STREAM_KEYS],
) {
    let (request, head) = (group.request, group.head);
    let (problem, mut to) = (group.problem, rows.iter_mut());
    problem.each_value(request, head, keys, |row| put(row, &mut to));
    repeat_last(STREAM_KEYS - to.len(), rows);
}

/// Where keys lie.
#[inline(never)]
fn locate_keys(group: &Group<'_>, keys: Range<usize>, rows: &mut [*const bf16; STREAM_KEYS]) {
    let mut rows = rows.iter_mut();
    let problem = group.problem;
    problem.each_key(group.request, group.head, keys, |row| {
        if let Some(to) = rows.next() {
            *to = row.as_ptr();
        }
    });
}

/// Puts what a row begins with in the next place, if there is one.
fn put<'a, const D: usize>(row: &'a [bf16], to: &mut IterMut<'_, &'a [bf16; D]>) {
    if let Some(row) = row.first_chunk()
        && let Some(to) = to.next()
    {
        *to = row;
    }
}

/// What rows begin with, and copies of the last. Apart, so that a pair of widths has it once.
#[inline(never)]
fn gather<'a, const D: usize>(
    rows: &'a [impl AsRef<[bf16]>],
    out: &mut [&'a [bf16; D]; STREAM_KEYS],
) {
    let mut to = out.iter_mut();
    for row in rows {
        put(row.as_ref(), &mut to);
    }
    repeat_last(STREAM_KEYS - to.len(), out);
}

/// Puts copies of the last of the first `n` rows behind them.
fn repeat_last<T: Copy>(n: usize, rows: &mut [T]) {
    if let Some(&last) = rows[..n].last() {
        rows[n..].fill(last);
    }
}

/// Values of a group. Apart, as it is the same for all widths.
#[inline(never)]
fn widen_values<K: Kernel>(
    kernel: K,
    group: &Group<'_>,
    keys: Range<usize>,
    d_v: usize,
    memory: &mut RowTile,
) {
    for (row, out) in group.values(keys).zip(memory) {
        kernel.widen(&row, &mut out[..d_v]);
    }
}

/// [`Kernel::pack_v`] for values that don't lie in the cache as BF16: some at a time, by
/// way of L0B.
fn widen_and_pack<K: Kernel, const D_V: usize>(
    kernel: K,
    group: &Group<'_>,
    keys: Range<usize>,
    l0b: &mut L0b,
    v: &mut [VBuffer; 3],
) -> bool {
    let memory: &mut [bf16] = bytemuck::cast_slice_mut(l0b[0].0.as_flattened_mut());
    let at_once = memory.len() / D_V / 4 * 4;
    let mut non_finite = false;
    for first in (0..keys.len()).step_by(at_once) {
        let some = keys.start + first..keys.end.min(keys.start + first + at_once);
        for (row, out) in group.values(some.clone()).zip(memory.chunks_mut(D_V)) {
            kernel.widen(&row, out);
        }
        let mut values = Rows::NONE;
        values.gather(memory.chunks(D_V).take(some.len()));
        non_finite |= kernel.pack_v::<D_V>(values.as_slice(), first, &[], v);
    }
    non_finite
}

/// C2 of what was `left` because V, or a row's P or O, holds an infinity or a NaN: IEEE
/// arithmetic in FP32, and only over the keys that each row sees.
#[cold]
#[expect(clippy::too_many_arguments, reason = "called in two places")]
fn pv_non_finite<K: Kernel>(
    kernel: K,
    group: &Group<'_>,
    keys: Range<usize>,
    call: &Pv<'_>,
    p: &L0a,
    mask: Option<&Mask>,
    left: Left,
    o: &mut [OStrip],
) {
    let has = |strips: Strips, strip: usize| strips & 1 << strip != 0;
    for (_, o) in o.iter_mut().enumerate().filter(|&(i, _)| has(left.all, i)) {
        for (r, o) in o[..call.rows].iter_mut().enumerate() {
            match call.increment {
                Some(increment) => {
                    let increment = Increment::from_bits_clamped(increment[r]);
                    o.iter_mut()
                        .for_each(|x| *x = add_increment_f32(*x, increment));
                }
                None => o.fill(0.0),
            }
        }
    }
    kernel.settle(o, call.rows, false);
    let mut value = [bf16::ZERO; MAX_D_V];
    let value = &mut value[..o.len() * STRIP];
    for (k, row) in group.values(keys).enumerate() {
        let strips = match k {
            ..Left::TAIL => left.all,
            _ => left.all | left.tail,
        };
        kernel.widen(&row, value);
        let values = value.as_chunks::<STRIP>().0;
        for r in (0..call.rows).filter(|r| mask.is_none_or(|mask| mask[k] >> r & 1 == 1)) {
            let prob = kernel.prob(p, call.precision, k, r);
            for (i, (o, value)) in o.iter_mut().zip(values).enumerate() {
                if has(strips, i) {
                    axpy(prob, value, &mut o[r]);
                }
            }
        }
    }
    kernel.settle(o, call.rows, true);
}

/// Brings a panel's O and sums into the form of [`Partial`], and to where they go then.
fn finish<K: Kernel>(
    kernel: K,
    group: &Group<'_>,
    options: &Options,
    states: &[RowState],
    panel: usize,
    partial: &mut Partial<'_>,
    then: &mut Then<'_>,
) {
    let state = &states[panel];
    let mut part = partial.reborrow().panel(panel);
    let mut factors = [1.0; PANEL_ROWS];
    for (r, to) in factors.iter_mut().enumerate().take(group.panel_rows(panel)) {
        let reference = state.reference[r];
        let (exponent, sum, factor) = match options.rescale {
            // O is a sum over the rounded P: dividing by theirs, errors that
            // they have in common cancel.
            Rescale::Exact => (reference, state.sum[r], state.sum[r] / state.rounded_sum[r]),
            Rescale::Compensated => {
                // O carries c, and the sum is relative to 2^m: both to 2^e, where
                // e = rint(m) = -n.
                let exponent = libm::rintf(reference);
                let fraction = if exponent == reference {
                    1.0 // Also for -inf, where nothing was seen.
                } else {
                    libm::exp2f(reference - exponent)
                };
                (exponent, state.sum[r] * fraction, state.c[r].recip())
            }
        };
        // A row without a sum has seen no key, or none with a score above -inf.
        let seen = sum != 0.0;
        if seen {
            *to = factor;
        }
        part.exponent[r] = if seen { exponent } else { f32::NEG_INFINITY };
        part.sum[r] = sum;
    }
    let earlier = then.earlier.as_mut();
    let earlier = earlier.map(|earlier| earlier.reborrow().panel(panel));
    let end = End {
        group,
        panel,
        part: &mut part,
        factor: &factors,
        earlier: earlier.as_ref(),
        settle: then.settle,
        write: then.write.as_mut().map(Write::reborrow),
    };
    end.visit(kernel);
}

/// `o += p * value`.
fn axpy(p: f32, value: &[bf16], o: &mut [f32; STRIP]) {
    for (o, v) in o.iter_mut().zip(value) {
        *o += p * bf16_widen(v.to_bits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No result tells, so this does: the paper's group has the paper's order.
    #[test]
    fn the_order_depends_on_the_panels() {
        let apart = [1, 2, 3, 4].map(|panels| preload_count(panels, false));
        assert_eq!(apart, [0, 0, 2, 2]);
        let together = [1, 2, 3, 4].map(|panels| preload_count(panels, true));
        assert_eq!(together, [0; 4]);
        let blocks = [1, 2, 3, 4].map(|panels| blocks_in_flight(panels, apart[panels - 1]));
        assert_eq!(blocks, [1, 1, 2, 2]);
    }
}
