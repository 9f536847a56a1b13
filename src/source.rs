//! Where a block's keys and values come from: rows in place, or rows converted into the K/V buffers.
//! This file alone knows how a cache stores them.

use core::ops::Range;

use half::bf16;

use crate::format::Row;
use crate::group::Group;
use crate::kernel::prefetch::{Budget, Shape};
use crate::kernel::{FUSED_KEYS, FUSED_MULTIPLE, FusedBlock, Kernel, RowList, Rows};
use crate::problem::Problem;
use crate::schedule::Cycle;
use crate::tile::{BLOCK_KEYS, PANEL_ROWS, QPanel, RowTile};

/// Converts rows in two parts, one after the other, to BF16, and concatenates each row's.
fn concatenate<'b, K: Kernel>(
    kernel: K,
    widths: [usize; 2],
    rows: impl Iterator<Item = [Row<'b>; 2]>,
    to: &mut RowTile,
) {
    for ([first, second], row) in rows.zip(to) {
        let (head, tail) = row.split_at_mut(widths[0]);
        kernel.convert(&first, head);
        kernel.convert(&second, &mut tail[..widths[1]]);
    }
}

/// Packs the queries of each panel, by way of `kv` where they can't be used in place.
pub fn pack_queries<K: Kernel>(
    kernel: K,
    group: &Group<'_>,
    fused: bool,
    kv: &mut RowTile,
    to: &mut [QPanel],
) {
    let problem = group.problem;
    let d_qk = problem.shape.d_qk;
    // A negative scale's sign goes into Q, exactly.
    let negate = problem.softmax_scale < 0.0;
    for (panel, to) in (0..group.panels()).zip(to) {
        let queries = (0..group.panel_rows(panel)).map(|r| {
            let (j, h) = group.position(panel * PANEL_ROWS + r);
            problem.query(group.request, j, h)
        });
        let mut rows: [&[bf16]; PANEL_ROWS] = [&[]; _];
        let rows = &mut rows[..group.panel_rows(panel)];
        if problem.queries_in_place() {
            for (row, [query, _]) in rows.iter_mut().zip(queries) {
                *row = query.as_bf16();
            }
        } else {
            concatenate(kernel, problem.q_widths(), queries, kv);
            for (row, query) in rows.iter_mut().zip(&*kv) {
                *row = &query[..d_qk];
            }
        }
        kernel.pack_q(d_qk, rows, negate, fused, to);
    }
}

/// Converts a block's keys. Not inlined, as it is the same for all widths.
#[inline(never)]
pub fn convert_keys<K: Kernel>(kernel: K, group: &Group<'_>, keys: Range<usize>, to: &mut RowTile) {
    let rows = group.keys(keys);
    concatenate(kernel, group.problem.k_widths(), rows, to);
}

/// Converts a block's values. Not inlined, as it is the same for all widths.
#[inline(never)]
pub fn convert_values<K: Kernel>(
    kernel: K,
    group: &Group<'_>,
    keys: Range<usize>,
    to: &mut RowTile,
) {
    let d_v = group.problem.shape.d_v;
    for (row, out) in group.values(keys).zip(to) {
        kernel.convert(&row, &mut out[..d_v]);
    }
}

/// Lists a block's keys in place. Not inlined, as it is the same for all widths and backends.
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

/// Where rows are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Location {
    /// In the cache, as BF16.
    Cache,
    /// Columns of the block's keys; the first, if those are in the cache.
    Keys,
    /// Nowhere as BF16: they are converted first.
    Converted,
}

/// The columns of converted rows that have the values.
fn converted_columns(problem: &Problem<'_>, values: Location) -> Range<usize> {
    let first = match values {
        Location::Keys => problem.v_offset,
        _ => 0,
    };
    first..first + problem.shape.d_v
}

/// The keys and values of a group, block by block.
pub struct Sources<'a> {
    group: &'a Group<'a>,
    keys: Location,
    values: Location,
    /// Keys in the cache, of the block that C1 is at.
    key_rows: Rows<'a>,
    /// Values in the cache, of the block that C2 is at.
    value_rows: Rows<'a>,
    key_count: usize,
    value_count: usize,
    /// The first key that wasn't prefetched.
    next: usize,
    /// Rows to prefetch, and where those of each stage end.
    prefetched: Rows<'a>,
    ends: [usize; 3],
}

impl<'a> Sources<'a> {
    /// Those of a group.
    pub fn of(group: &'a Group<'a>) -> Self {
        let problem = group.problem;
        let keys = if problem.keys_in_place() {
            Location::Cache
        } else {
            Location::Converted
        };
        let values = match problem.v {
            // In the cache, lists of keys serve for values that begin with them.
            None if keys == Location::Cache && problem.v_offset == 0 => Location::Keys,
            None if problem.values_are_in_keys() => Location::Keys,
            _ if problem.values_in_place() => Location::Cache,
            _ => Location::Converted,
        };
        Self {
            group,
            keys,
            values,
            key_rows: Rows::NONE,
            value_rows: Rows::NONE,
            key_count: 0,
            value_count: 0,
            next: 0,
            prefetched: Rows::NONE,
            ends: [0; 3],
        }
    }

    /// Whether all rows are used in place, and the K/V buffers aren't needed.
    pub fn in_place(&self) -> bool {
        self.keys == Location::Cache && self.values != Location::Converted
    }

    /// Gathers the keys of a block and the values of another, or converts them into `kv`. In turn they
    /// are the same block's.
    pub fn load<K: Kernel>(
        &mut self,
        kernel: K,
        keys: Option<usize>,
        values: Option<usize>,
        in_turn: bool,
        kv: &mut RowTile,
    ) {
        let group = self.group;
        if let Some(block) = keys.map(|block| group.block(block)) {
            self.key_count = block.len();
            match self.keys {
                Location::Cache => gather_keys(group, block, &mut self.key_rows),
                _ => convert_keys(kernel, group, block, kv),
            }
        }
        if let Some(block) = values.map(|block| group.block(block)) {
            self.value_count = block.len();
            match self.values {
                Location::Keys if in_turn => {}
                Location::Keys | Location::Cache => {
                    gather_values(group, block, &mut self.value_rows)
                }
                Location::Converted => convert_values(kernel, group, block, kv),
            }
        }
    }

    /// The keys that were loaded last; `list` is room for converted ones.
    pub fn keys<'r>(&'r self, kv: &'r RowTile, list: &'r mut Rows<'r>) -> &'r Rows<'r> {
        if self.keys == Location::Cache {
            return &self.key_rows;
        }
        let d_qk = self.group.problem.shape.d_qk;
        list.gather(kv[..self.key_count].iter().map(|row| &row[..d_qk]));
        list
    }

    /// The values that were loaded last.
    pub fn values<'r>(
        &'r self,
        in_turn: bool,
        kv: &'r RowTile,
        list: &'r mut Rows<'r>,
    ) -> &'r Rows<'r> {
        match (self.values, self.keys) {
            (Location::Keys, Location::Cache) if in_turn => return &self.key_rows,
            (Location::Converted, _) | (Location::Keys, Location::Converted) => {}
            _ => return &self.value_rows,
        }
        let columns = converted_columns(self.group.problem, self.values);
        let rows = kv[..self.value_count].iter();
        list.gather(rows.map(|row| &row[columns.clone()]));
        list
    }

    /// Gathers rows for the stages of a cycle to prefetch.
    pub fn prefetch<K: Kernel>(&mut self, kernel: K, panels: usize, cycle: Cycle) {
        let (group, problem) = (self.group, self.group.problem);
        let item = cycle.c1.or(cycle.v1).or(cycle.c2).unwrap_or(0);
        let budget = kernel.prefetch_budget(&Shape {
            panel_rows: group.panel_rows(item % panels),
            group_rows: group.rows.len(),
            d_qk: problem.shape.d_qk,
            d_v: problem.shape.d_v,
        });
        self.prefetched.clear();
        if budget == Budget::NONE || !problem.has_key_rows() {
            return;
        }
        // Converted keys are needed all at once.
        let distance = match self.keys {
            Location::Cache => budget.distance,
            _ => BLOCK_KEYS,
        };
        let block = group.block(item / panels);
        // Earlier keys are needed about now.
        let first = self.next.max(block.start + distance);
        let mut end = first;
        for (end_of, stage, count) in [
            (0, cycle.c1, budget.c1),
            (1, cycle.v1, budget.v1),
            (2, cycle.c2, budget.c2),
        ] {
            if stage.is_some() {
                end += count;
            }
            end = end
                .min(first + BLOCK_KEYS)
                .min(block.end + distance)
                .min(group.prefetch_end)
                .max(first);
            self.ends[end_of] = end - first;
        }
        self.next = end;
        self.prefetched.fill(|slots| {
            problem.each_key(group.request, group.head, first..end, |row| slots.put(row));
        });
    }

    /// Rows for a stage to prefetch: C1, V1 or C2.
    pub fn prefetched(&self, stage: usize) -> &[&'a [bf16]] {
        let rows = self.prefetched.as_slice();
        let from = if stage == 0 { 0 } else { self.ends[stage - 1] };
        rows.get(from..self.ends[stage]).unwrap_or(&[])
    }
}

/// Converts the rows of some keys.
pub type Convert<'a> = &'a dyn Fn(Range<usize>, &mut RowTile);

/// Calls `run` with each block of a group that goes through a fused kernel: its keys and values are needed at
/// once, so each has its own memory if it is converted, by these functions. Not part of the driver, so
/// that its lists aren't on the stack of other groups, and all backends share the code.
#[inline(never)]
pub fn each_fused_block(
    group: &Group<'_>,
    q: &QPanel,
    [k_rows, v_rows]: [&mut RowTile; 2],
    convert: [Convert<'_>; 2],
    run: &mut dyn FnMut(Range<usize>, &FusedBlock<'_>),
) {
    let problem = group.problem;
    let [d_qk, d_v] = [problem.shape.d_qk, problem.shape.d_v];
    let Sources {
        keys: key_location,
        values: value_location,
        ..
    } = Sources::of(group);
    // Keys of a block that are listed already stay, as the one before prefetched them.
    let mut in_cache = RowList::new(d_qk);
    for block in 0..group.blocks() {
        let range = group.block(block);
        let len = range.len();
        if key_location == Location::Cache {
            let end = group.prefetch_end.min(range.start + FUSED_KEYS);
            list_keys(group, range.start + in_cache.len()..end, &mut in_cache);
        } else {
            convert[0](range.clone(), k_rows);
        }
        if value_location == Location::Converted {
            convert[1](range.clone(), v_rows);
        }
        let mut converted;
        let keys = if key_location == Location::Cache {
            in_cache.rows()
        } else {
            converted = RowList::new(d_qk);
            list(&k_rows[..len], &mut converted);
            converted.rows()
        };
        let mut located;
        let prefetch = if key_location == Location::Cache || !problem.has_key_rows() {
            keys.pointers()
        } else {
            // Those to be converted next.
            located = *keys.pointers();
            let end = group.prefetch_end.min(range.end + FUSED_KEYS);
            locate_keys(group, range.end..end, &mut located);
            &located
        };
        // Rows behind the block may be another task's, and not finite.
        let complete = len.is_multiple_of(FUSED_MULTIPLE);
        let heads = keys.heads(d_v);
        let at_head = value_location == Location::Keys && problem.v_offset == 0;
        let heads = heads.filter(|_| at_head && complete);
        let mut listed;
        let values = if let Some(heads) = heads {
            heads
        } else {
            listed = RowList::new(d_v);
            match (value_location, key_location) {
                (Location::Keys, Location::Cache) => listed.extend_from(&in_cache, len),
                (Location::Keys, _) => {
                    let columns = converted_columns(problem, value_location);
                    let rows = k_rows[..len].iter();
                    listed.extend(rows.map(|row| &row[columns.clone()]));
                    listed.repeat_last();
                }
                (Location::Cache, _) => list_values(group, range.clone(), &mut listed),
                (Location::Converted, _) => list(&v_rows[..len], &mut listed),
            }
            listed.rows()
        };
        run(
            range,
            &FusedBlock {
                q,
                keys,
                prefetch,
                values,
            },
        );
        in_cache.advance(len);
    }
}

/// Lists keys in place behind those that are listed, and copies of the last behind them.
#[inline(never)]
fn list_keys<'a>(group: &Group<'a>, keys: Range<usize>, list: &mut RowList<'a>) {
    let (problem, request, head) = (group.problem, group.request, group.head);
    let width = problem.shape.d_qk;
    // Often an addition for each, and no table: with few rows a nanosecond counts.
    match problem.contiguous_keys(request, head, &keys) {
        Some(run) if run.len() == keys.len() * width => list.extend(run.chunks_exact(width)),
        _ => list_runs(group, keys, list),
    }
    list.repeat_last();
}

/// The same of keys in several runs. Not inlined: the usual case is slower with this loop around it.
#[inline(never)]
fn list_runs<'a>(group: &Group<'a>, mut keys: Range<usize>, list: &mut RowList<'a>) {
    let (problem, request, head) = (group.problem, group.request, group.head);
    let width = problem.shape.d_qk;
    while let Some(run) = problem.contiguous_keys(request, head, &keys) {
        list.extend(run.chunks_exact(width));
        keys.start += run.len() / width;
    }
    problem.each_key(request, head, keys, |row| list.push(row));
}

/// The same of values, from the first row on.
#[inline(never)]
fn list_values<'a>(group: &Group<'a>, keys: Range<usize>, list: &mut RowList<'a>) {
    let problem = group.problem;
    problem.each_value(group.request, group.head, keys, |row| list.push(row));
    list.repeat_last();
}

/// The addresses of keys.
#[inline(never)]
fn locate_keys(group: &Group<'_>, keys: Range<usize>, rows: &mut [*const bf16; FUSED_KEYS]) {
    let mut rows = rows.iter_mut();
    let problem = group.problem;
    problem.each_key(group.request, group.head, keys, |row| {
        if let Some(to) = rows.next() {
            *to = row.as_ptr();
        }
    });
}

/// The heads of converted rows, and copies of the last.
fn list<'a>(rows: &'a [impl AsRef<[bf16]>], list: &mut RowList<'a>) {
    list.extend(rows.iter().map(AsRef::as_ref));
    list.repeat_last();
}
