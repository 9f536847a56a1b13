//! Where a block's keys and values come from: rows in place, or rows converted into the K/V buffers.
//! This file alone knows how a cache stores them.

use core::ops::Range;

use crate::format::{Dtype, Row};
use crate::group::Group;
use crate::kernel::prefetch::{Budget, Shape};
use crate::kernel::{
    FUSED_KEYS, FUSED_MULTIPLE, FusedBlock, Kernel, PackQ, PackRow, RowList, Rows, Word,
    panel_memory,
};
use crate::problem::Problem;
use crate::schedule::Cycle;
use crate::tile::{BLOCK_KEYS, MAX_D_QK, PANEL_ROWS, QPanel, RowTile, STRIP, padded_d_qk, strips};

/// Where rows are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Location {
    /// In the cache, as the kernel reads them.
    Cache,
    /// Columns of the block's keys; the first, if those are in the cache.
    Keys,
    /// In the K/V buffers: they are converted first.
    Converted,
}

/// Where a kernel finds the rows of a problem, and how their numbers are stored there.
#[derive(Clone, Copy)]
pub struct Layout {
    keys: Location,
    values: Location,
    /// Queries, before they are packed.
    pub q: Dtype,
    /// Keys.
    pub k: Dtype,
    /// Values.
    pub v: Dtype,
}

impl Layout {
    /// Of the rows of a problem.
    pub fn of<K: Kernel>(problem: &Problem<'_>) -> Self {
        let readable = |dtype: Option<Dtype>| {
            dtype.filter(|&dtype| dtype == Dtype::Bf16 || K::MULTIPLIES_FP32)
        };
        let converted = |is_bf16: bool| {
            if is_bf16 || !K::MULTIPLIES_FP32 {
                Dtype::Bf16
            } else {
                Dtype::F32
            }
        };
        let shape = &problem.shape;
        let (d_qk, d_v) = (padded_d_qk(shape.d_qk), strips(shape.d_v) * STRIP);
        let offset = problem.v_offset;
        // Others are padded.
        let readable_keys = |dtype| readable(dtype).filter(|_| shape.d_qk == d_qk);
        let keys = readable_keys(problem.keys_in_place());
        let k = keys.unwrap_or_else(|| converted(problem.has_bf16_keys()));
        let keys = keys.map_or(Location::Converted, |_| Location::Cache);
        let values = readable(problem.values_in_place());
        let (values, v) = match (problem.v, values) {
            // In the cache, lists of keys serve for values that begin with them.
            (None, Some(v)) if keys == Location::Cache && offset == 0 && d_v <= d_qk => {
                (Location::Keys, v)
            }
            (_, Some(v)) if shape.d_v == d_v => (Location::Cache, v),
            (None, _) if keys == Location::Converted && offset + d_v <= MAX_D_QK => {
                (Location::Keys, k)
            }
            _ => (Location::Converted, converted(problem.has_bf16_values())),
        };
        Self {
            keys,
            values,
            q: converted(problem.has_bf16_queries()),
            k,
            v,
        }
    }

    /// Keys of a block: what the K/V buffers hold, if rows are converted.
    pub fn block_keys(&self) -> usize {
        let rows = [(self.keys, self.k), (self.values, self.v)];
        if rows.contains(&(Location::Converted, Dtype::F32)) {
            BLOCK_KEYS / 2
        } else {
            BLOCK_KEYS
        }
    }

    /// Whether all rows are used in place, and the K/V buffers aren't needed.
    pub fn in_place(&self) -> bool {
        self.keys == Location::Cache && self.values != Location::Converted
    }
}

/// Rows in the K/V buffers.
fn converted_rows(
    kv: &RowTile,
    dtype: Dtype,
    columns: Range<usize>,
) -> impl Iterator<Item = &[Word]> {
    let rows = kv.as_flattened().chunks_exact(dtype.words(MAX_D_QK));
    let words = dtype.words(columns.start)..dtype.words(columns.end);
    rows.map(move |row| &row[words.clone()])
}

/// Rows from one that is converted to the one that is prefetched meanwhile: memory takes as long as a few.
const DISTANCE: usize = 8;

/// Converts rows in two parts, one after the other, and concatenates each row's, with zeros behind them.
fn concatenate<K: Kernel>(
    kernel: K,
    dtype: Dtype,
    widths: [usize; 2],
    width: usize,
    rows: &mut dyn Iterator<Item = [Row<'_>; 2]>,
    kv: &mut RowTile,
) {
    let mut coming = [[Row::EMPTY; 2]; DISTANCE];
    let mut end = 0;
    for (slot, row) in coming.iter_mut().zip(&mut *rows) {
        *slot = row;
        end += 1;
    }
    let to = kv.as_flattened_mut();
    for (i, to) in to.chunks_exact_mut(dtype.words(MAX_D_QK)).enumerate() {
        if i == end {
            break;
        }
        let slot = &mut coming[i % DISTANCE];
        let [first, second] = *slot;
        if let Some(row) = rows.next() {
            *slot = row;
            end += 1;
        }
        let next = slot;
        let zeros = dtype.words(widths[0] + widths[1])..dtype.words(width);
        to[zeros].fill(Word::ZERO);
        if dtype == Dtype::F32 {
            let (head, tail) = bytemuck::cast_slice_mut(to).split_at_mut(widths[0]);
            kernel.convert_fp32(&first, &next[0], head);
            kernel.convert_fp32(&second, &next[1], &mut tail[..widths[1]]);
        } else {
            let (head, tail) = to.split_at_mut(widths[0]);
            kernel.convert(&first, &next[0], head);
            kernel.convert(&second, &next[1], &mut tail[..widths[1]]);
        }
    }
}

/// Packs the queries of each panel: BF16 rows by way of `kv` where they can't be used in place, others row by row.
pub fn pack_queries<K: Kernel>(
    kernel: K,
    group: &Group<'_>,
    layout: &Layout,
    fused: bool,
    kv: &mut RowTile,
    to: &mut [QPanel],
) {
    let problem = group.problem;
    let d_qk = padded_d_qk(problem.shape.d_qk);
    let in_place = problem.queries_in_place() == Some(layout.q) && problem.shape.d_qk == d_qk;
    // A negative scale's sign goes into Q, exactly.
    let negate = problem.softmax_scale < 0.0;
    let fused = fused.then_some(layout.k);
    for panel in 0..group.panels() {
        let count = group.panel_rows(panel);
        let queries = (0..count).map(|r| {
            let (j, h) = group.position(panel * PANEL_ROWS + r);
            problem.query(group.request, j, h)
        });
        // Few rows fit one tile in FP32, too.
        let to = match fused {
            Some(_) => &mut to[..1],
            None => &mut to[panel_memory(layout.q, panel)],
        };
        if layout.q != Dtype::Bf16 {
            // C1 of a panel reads rows beyond the last.
            if fused.is_none() {
                // By rows: a panel as a value would be 72 KiB of stack.
                for panel in &mut *to {
                    panel.0.fill([0; _]);
                }
            }
            let mut numbers = [0.0; MAX_D_QK];
            for (row, [first, second]) in queries.enumerate() {
                let [width, rope] = problem.q_widths();
                let (head, tail) = numbers.split_at_mut(width);
                kernel.convert_fp32(&first, &Row::EMPTY, head);
                kernel.convert_fp32(&second, &Row::EMPTY, &mut tail[..rope]);
                let call = PackRow {
                    numbers: &numbers[..d_qk],
                    row,
                    rows: count,
                    negate,
                    fused,
                };
                kernel.pack_row(&call, to);
            }
            continue;
        }
        let mut rows: [&[Word]; PANEL_ROWS] = [&[]; _];
        let rows = &mut rows[..count];
        if in_place {
            for (row, [query, _]) in rows.iter_mut().zip(queries) {
                *row = query.words();
            }
        } else {
            concatenate(
                kernel,
                layout.q,
                problem.q_widths(),
                d_qk,
                &mut { queries },
                kv,
            );
            for (row, query) in rows.iter_mut().zip(converted_rows(kv, layout.q, 0..d_qk)) {
                *row = query;
            }
        }
        let call = PackQ {
            d_qk,
            rows,
            negate,
            fused,
        };
        kernel.pack_q(&call, to);
    }
}

/// Converts a block's keys. Not inlined: calls that read rows in place need nothing of its frame.
#[inline(never)]
pub fn convert_keys<K: Kernel>(
    kernel: K,
    group: &Group<'_>,
    dtype: Dtype,
    keys: Range<usize>,
    to: &mut RowTile,
) {
    let shape = &group.problem.shape;
    // Values may be among their columns.
    let end = group.problem.v_offset + strips(shape.d_v) * STRIP;
    let width = padded_d_qk(shape.d_qk).max(end.min(MAX_D_QK));
    let mut rows = group.keys(keys);
    concatenate(
        kernel,
        dtype,
        group.problem.k_widths(),
        width,
        &mut rows,
        to,
    );
}

/// Converts a block's values. Not inlined, as [`convert_keys`].
#[inline(never)]
pub fn convert_values<K: Kernel>(
    kernel: K,
    group: &Group<'_>,
    dtype: Dtype,
    keys: Range<usize>,
    to: &mut RowTile,
) {
    let mut rows = group.values(keys).map(|row| [row, Row::EMPTY]);
    let d_v = group.problem.shape.d_v;
    concatenate(kernel, dtype, [d_v, 0], strips(d_v) * STRIP, &mut rows, to);
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

/// The columns of converted rows that have the values.
fn converted_columns(problem: &Problem<'_>, values: Location) -> Range<usize> {
    let first = match values {
        Location::Keys => problem.v_offset,
        _ => 0,
    };
    first..first + strips(problem.shape.d_v) * STRIP
}

/// The keys and values of a group, block by block.
pub struct Sources<'a> {
    group: &'a Group<'a>,
    layout: Layout,
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
    pub const fn of(group: &'a Group<'a>, layout: Layout) -> Self {
        Self {
            group,
            layout,
            key_rows: Rows::of(layout.k),
            value_rows: Rows::of(layout.v),
            key_count: 0,
            value_count: 0,
            next: 0,
            prefetched: Rows::NONE,
            ends: [0; 3],
        }
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
        let (group, layout) = (self.group, self.layout);
        if let Some(block) = keys.map(|block| group.block(block)) {
            self.key_count = block.len();
            match layout.keys {
                Location::Cache => gather_keys(group, block, &mut self.key_rows),
                _ => convert_keys(kernel, group, layout.k, block, kv),
            }
        }
        if let Some(block) = values.map(|block| group.block(block)) {
            self.value_count = block.len();
            match layout.values {
                Location::Keys if in_turn => {}
                Location::Keys | Location::Cache => {
                    gather_values(group, block, &mut self.value_rows)
                }
                Location::Converted => convert_values(kernel, group, layout.v, block, kv),
            }
        }
    }

    /// The keys that were loaded last; `list` is room for converted ones.
    pub fn keys<'r>(&'r self, kv: &'r RowTile, list: &'r mut Rows<'r>) -> &'r Rows<'r> {
        if self.layout.keys == Location::Cache {
            return &self.key_rows;
        }
        let d_qk = padded_d_qk(self.group.problem.shape.d_qk);
        let rows = converted_rows(kv, self.layout.k, 0..d_qk);
        list.dtype = self.layout.k;
        list.gather(rows.take(self.key_count));
        list
    }

    /// The values that were loaded last.
    pub fn values<'r>(
        &'r self,
        in_turn: bool,
        kv: &'r RowTile,
        list: &'r mut Rows<'r>,
    ) -> &'r Rows<'r> {
        match (self.layout.values, self.layout.keys) {
            (Location::Keys, Location::Cache) if in_turn => return &self.key_rows,
            (Location::Converted, _) | (Location::Keys, Location::Converted) => {}
            _ => return &self.value_rows,
        }
        let columns = converted_columns(self.group.problem, self.layout.values);
        let rows = converted_rows(kv, self.layout.v, columns);
        list.dtype = self.layout.v;
        list.gather(rows.take(self.value_count));
        list
    }

    /// Gathers rows for the stages of a cycle to prefetch.
    pub fn prefetch<K: Kernel>(&mut self, kernel: K, panels: usize, cycle: Cycle) {
        let (group, problem) = (self.group, self.group.problem);
        let item = cycle.c1.or(cycle.v1).or(cycle.c2).unwrap_or(0);
        let budget = kernel.prefetch_budget(&Shape {
            panel_rows: group.panel_rows(item % panels),
            group_rows: group.rows.len(),
            d_qk: padded_d_qk(problem.shape.d_qk),
            d_v: strips(problem.shape.d_v) * STRIP,
        });
        self.prefetched.clear();
        if budget == Budget::NONE || problem.key_rows().is_none() {
            return;
        }
        // Converted keys are needed all at once.
        let distance = match self.layout.keys {
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
    pub fn prefetched(&self, stage: usize) -> &[&'a [Word]] {
        let rows = self.prefetched.as_slice();
        let from = if stage == 0 { 0 } else { self.ends[stage - 1] };
        rows.get(from..self.ends[stage]).unwrap_or(&[])
    }
}

/// Converts the rows of some keys.
type Convert<'a> = &'a dyn Fn(Range<usize>, &mut RowTile);

/// How the operands of fused blocks are loaded.
pub struct Load<'a> {
    /// Packs the queries of a KV head's rows, if need be by way of the first K/V buffer.
    pub queries: &'a dyn Fn(&Group<'_>, &mut RowTile, &mut [QPanel]),
    /// Converts keys.
    pub keys: Convert<'a>,
    /// Converts values.
    pub values: Convert<'a>,
}

/// Where they are loaded to.
pub struct Memory<'a> {
    /// Queries.
    pub q: &'a mut [QPanel],
    /// Whether these are there already.
    pub packed: bool,
    /// Keys and values that are converted: both are needed at once.
    pub rows: [&'a mut RowTile; 2],
}

/// Calls `run` with each block of a group that goes through a fused kernel, and KV head. Not part of the driver, so
/// that its lists aren't on the stack of other groups, and all backends share the code.
#[inline(never)]
pub fn each_fused_block(
    group: &Group<'_>,
    layout: &Layout,
    memory: Memory<'_>,
    load: &Load<'_>,
    run: &mut dyn FnMut(usize, Range<usize>, &FusedBlock<'_>),
) {
    let problem = group.problem;
    let shape = &problem.shape;
    let (d_qk, d_v) = (padded_d_qk(shape.d_qk), strips(shape.d_v) * STRIP);
    let (key_location, value_location) = (layout.keys, layout.values);
    let Memory {
        q,
        mut packed,
        rows: [k_rows, v_rows],
    } = memory;
    let mut key_window = PrefetchWindow::new(layout.k, d_qk, list_keys);
    let mut value_window = (value_location == Location::Cache)
        .then(|| PrefetchWindow::new(layout.v, d_v, list_values));
    for item in 0..group.blocks() * group.heads {
        let (block, head) = (item / group.heads, item % group.heads);
        let range = group.block(block);
        let len = range.len();
        let own = &group.of_head(head);
        if own.panel_sees(0, &range) {
            if !packed {
                (load.queries)(own, k_rows, q);
                packed = group.heads == 1;
            }
            if key_location == Location::Cache {
                key_window.fill(group);
            } else {
                (load.keys)(range.clone(), k_rows);
            }
            match &mut value_window {
                Some(window) => window.fill(group),
                None if value_location == Location::Converted => {
                    (load.values)(range.clone(), v_rows)
                }
                None => {}
            }
            let mut converted;
            let keys = if key_location == Location::Cache {
                key_window.list.rows()
            } else {
                converted = RowList::new(layout.k, d_qk);
                list(k_rows, 0..d_qk, len, &mut converted);
                converted.rows()
            };
            let mut located;
            let prefetch = if key_location == Location::Cache || problem.key_rows().is_none() {
                keys.pointers()
            } else {
                // Those to be converted next.
                located = *keys.pointers();
                let end = group.prefetch_end.min(range.end + FUSED_KEYS);
                locate_keys(group, range.end..end, &mut located);
                &located
            };
            // Rows behind the block may be another task's or KV head's, and not finite.
            let complete = len.is_multiple_of(FUSED_MULTIPLE);
            let full = match &value_window {
                Some(window) => Some(window.list.rows()),
                None if value_location == Location::Keys && problem.v_offset == 0 => {
                    keys.first_columns(d_v)
                }
                None => None,
            };
            let mut listed;
            let values = if let Some(full) = full.filter(|_| complete) {
                full
            } else {
                listed = RowList::new(layout.v, d_v);
                match (&value_window, value_location, key_location) {
                    (Some(window), ..) => listed.extend_from(&window.list, len),
                    (None, Location::Keys, Location::Cache) => {
                        listed.extend_from(&key_window.list, len);
                    }
                    (None, Location::Keys, _) => {
                        let columns = converted_columns(problem, value_location);
                        list(k_rows, columns, len, &mut listed);
                    }
                    (None, ..) => list(v_rows, 0..d_v, len, &mut listed),
                }
                listed.rows()
            };
            let operands = FusedBlock {
                from: 0,
                q,
                keys,
                prefetch,
                values,
                prefetch_values: value_window
                    .as_ref()
                    .filter(|_| problem.v.is_some())
                    .map(|window| window.list.rows().pointers()),
            };
            run(head, range, &operands);
        }
        key_window.pass(item, len);
        if let Some(window) = &mut value_window {
            window.pass(item, len);
        }
    }
}

/// Rows in place of a group's blocks and KV heads in turn, from those in use on.
struct PrefetchWindow<'a> {
    list: RowList<'a>,
    /// Appends some rows of a KV head.
    append: fn(&Group<'a>, Range<usize>, &mut RowList<'a>),
    /// The first item, a block of a KV head, that isn't listed to its end, and how many of its rows are.
    item: usize,
    listed: usize,
}

impl<'a> PrefetchWindow<'a> {
    /// No rows yet.
    fn new(
        dtype: Dtype,
        width: usize,
        append: fn(&Group<'a>, Range<usize>, &mut RowList<'a>),
    ) -> Self {
        Self {
            list: RowList::new(dtype, width),
            append,
            item: 0,
            listed: 0,
        }
    }

    /// Lists as many rows as there is room for, also those of keys that the same thread attends later, and copies of the last.
    fn fill(&mut self, group: &Group<'a>) {
        while self.list.len() < FUSED_KEYS {
            let keys = group.prefetched_block(self.item / group.heads);
            let start = keys.start + self.listed;
            let end = keys.end.min(start + FUSED_KEYS - self.list.len());
            if start >= keys.end {
                break;
            }
            (self.append)(
                &group.of_head(self.item % group.heads),
                start..end,
                &mut self.list,
            );
            (self.item, self.listed) = if end == keys.end {
                (self.item + 1, 0)
            } else {
                (self.item, end - keys.start)
            };
        }
        self.list.repeat_last();
    }

    /// Drops the `len` rows of an item, the first one, whether they were listed or not.
    fn pass(&mut self, item: usize, len: usize) {
        self.list.advance(self.list.len().min(len));
        if self.item <= item {
            (self.item, self.listed) = (item + 1, 0);
        }
    }
}

/// Lists keys in place behind those that are listed.
#[inline(never)]
fn list_keys<'a>(group: &Group<'a>, mut keys: Range<usize>, list: &mut RowList<'a>) {
    let (problem, request, head) = (group.problem, group.request, group.head);
    while let Some(run) = problem.key_run(request, head, &keys) {
        keys.start += run.len;
        list.extend_run(&run);
    }
    problem.each_key(request, head, keys, |row| list.push(row));
}

/// The same of values.
#[inline(never)]
fn list_values<'a>(group: &Group<'a>, mut keys: Range<usize>, list: &mut RowList<'a>) {
    let (problem, request, head) = (group.problem, group.request, group.head);
    while let Some(run) = problem.value_run(request, head, &keys) {
        keys.start += run.len;
        list.extend_run(&run);
    }
    problem.each_value(request, head, keys, |row| list.push(row));
}

/// The addresses of keys.
#[inline(never)]
fn locate_keys(group: &Group<'_>, keys: Range<usize>, rows: &mut [*const Word; FUSED_KEYS]) {
    let mut rows = rows.iter_mut();
    let problem = group.problem;
    problem.each_key(group.request, group.head, keys, |row| {
        if let Some(to) = rows.next() {
            *to = row.as_ptr();
        }
    });
}

/// Columns of converted rows, and copies of the last.
fn list<'a>(rows: &'a RowTile, columns: Range<usize>, len: usize, list: &mut RowList<'a>) {
    let rows = converted_rows(rows, list.dtype(), columns);
    list.extend(rows.take(len));
    list.repeat_last();
}
