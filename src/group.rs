//! A task's rows and keys, and its partial result.

use core::ops::Range;

use crate::format::Row;
use crate::kernel::{Mask, strip_rows};
use crate::problem::Problem;
use crate::tile::{ORow, PANEL_ROWS, ROW_SUMS, RowSums, STRIP, strips};

/// The rows of one request and KV head that a task holds, and the keys it attends
/// them to; or those of several KV heads.
#[derive(Clone)]
pub struct Group<'a> {
    /// The problem, checked.
    pub problem: &'a Problem<'a>,
    /// The request.
    pub request: usize,
    /// The KV head; the first, if there are several.
    pub head: usize,
    /// How many KV heads there are, each with as many rows. More than one only where they are attended
    /// in turn ([`JoinsHeads`](crate::attend::JoinsHeads)).
    pub heads: usize,
    /// Rows `j * g + h` of the request, where `g` query heads share the KV head; at
    /// most [`GROUP_ROWS`](crate::tile::GROUP_ROWS).
    pub rows: Range<usize>,
    /// Keys of the request.
    pub keys: Range<usize>,
    /// The end of the keys that the same thread attends next; that of `keys` if it
    /// doesn't go on.
    pub prefetch_end: usize,
    /// Rows of the group as it was planned, of which `rows` may be some panels: bits may depend on
    /// this number, but not on which thread computes which panels.
    pub planned_rows: usize,
    /// Keys of a block.
    pub block_keys: usize,
}

impl<'a> Group<'a> {
    /// Whether `other` has the same queries.
    pub fn same_rows(&self, other: &Self) -> bool {
        (self.request, self.head, &self.rows) == (other.request, other.head, &other.rows)
    }

    /// Whether `other` is the next KV head of the same rows and keys.
    pub fn is_before(&self, other: &Self) -> bool {
        (self.request, self.head + self.heads, &self.rows, &self.keys)
            == (other.request, other.head, &other.rows, &other.keys)
    }

    /// One of its KV heads.
    pub fn of_head(&self, i: usize) -> Self {
        Self {
            head: self.head + i,
            heads: 1,
            ..self.clone()
        }
    }

    /// Panels the rows fill.
    pub fn panels(&self) -> usize {
        self.rows.len().div_ceil(PANEL_ROWS)
    }

    /// Query position and head of row `r` of the group.
    pub fn position(&self, r: usize) -> (usize, usize) {
        let row = self.rows.start + r;
        let group = self.problem.shape.group();
        (row / group, self.head * group + row % group)
    }

    /// Where head `h` of query position `j` is in a tensor with these strides: of requests, of
    /// positions, of heads.
    pub fn start(&self, j: usize, h: usize, [s0, s1, s2]: [usize; 3]) -> usize {
        let [b, token] = self.problem.token(self.request, j);
        b * s0 + token * s1 + h * s2
    }

    /// Rows of a panel.
    pub fn panel_rows(&self, panel: usize) -> usize {
        PANEL_ROWS.min(self.rows.len() - panel * PANEL_ROWS)
    }

    /// Rows that each strip of a panel's O has room for.
    pub fn strip_rows(&self, panel: usize) -> usize {
        strip_rows(self.panel_rows(panel), self.planned_rows)
    }

    /// Rows that its partial result has room for: those of all strips.
    pub fn room(&self) -> usize {
        match self.panels() {
            0 => 0,
            panels => (panels - 1) * PANEL_ROWS + self.strip_rows(panels - 1),
        }
    }

    /// Blocks the keys fill.
    pub fn blocks(&self) -> usize {
        self.keys.len().div_ceil(self.block_keys)
    }

    /// The keys of a block.
    pub fn block(&self, block: usize) -> Range<usize> {
        let start = self.keys.start + block * self.block_keys;
        start..self.keys.end.min(start + self.block_keys)
    }

    /// The keys of a block; behind the last those of a block up to `prefetch_end`, and then none.
    pub fn prefetched_block(&self, block: usize) -> Range<usize> {
        match block.checked_sub(self.blocks()) {
            None => self.block(block),
            Some(later) => {
                let start = self.keys.end + later * self.block_keys;
                start..self.prefetch_end.min(start + self.block_keys)
            }
        }
    }

    /// The parts of keys.
    pub fn keys(&self, keys: Range<usize>) -> impl Iterator<Item = [Row<'a>; 2]> + use<'a> {
        self.problem.keys(self.request, self.head, keys)
    }

    /// Values.
    pub fn values(&self, keys: Range<usize>) -> impl Iterator<Item = Row<'a>> + use<'a> {
        self.problem.values(self.request, self.head, keys)
    }

    /// The query positions of a panel's rows.
    fn positions(&self, panel: usize) -> Range<usize> {
        let rows = self.panel_rows(panel);
        if rows == 0 {
            return 0..0;
        }
        let [(first, _), (last, _)] = [0, rows - 1].map(|r| self.position(panel * PANEL_ROWS + r));
        first..last + 1
    }

    /// The keys that causality and window let some row of a panel see, and those that all see: later positions see neither
    /// earlier keys nor less of the later ones.
    fn visible(&self, panel: usize) -> [Range<usize>; 2] {
        let positions = self.positions(panel);
        let of = |j: usize| self.problem.visible(self.request, j);
        let [first, last] = [of(positions.start), of(positions.end.saturating_sub(1))];
        [first.start..last.end, last.start..first.end]
    }

    /// Whether a row of the panel sees any of `keys`; others needn't be read for it. Bits depend on that, and so it doesn't
    /// depend on which other panels the group has.
    pub fn panel_sees(&self, panel: usize, keys: &Range<usize>) -> bool {
        let problem = self.problem;
        if !problem.hides() {
            return !keys.is_empty();
        }
        let [some, _] = self.visible(panel);
        let keys = keys.start.max(some.start)..keys.end.min(some.end);
        if keys.is_empty() || keys.start < problem.shown_before(self.request) {
            return !keys.is_empty();
        }
        let mut positions = self.positions(panel);
        positions.any(|j| {
            let visible = problem.visible(self.request, j);
            let keys = keys.start.max(visible.start)..keys.end.min(visible.end);
            problem.shows_any(self.request, self.head, j, keys)
        })
    }

    /// How many of `keys`, some of which its rows see, there are up to the last that they may.
    pub fn seen_end(&self, panel: usize, keys: &Range<usize>) -> usize {
        if !self.problem.hides() {
            return keys.len();
        }
        let [some, _] = self.visible(panel);
        keys.len().min(some.end.saturating_sub(keys.start))
    }

    /// Whether any row sees any key.
    pub fn sees_any(&self) -> bool {
        (0..self.blocks()).any(|block| {
            let keys = self.block(block);
            (0..self.panels()).any(|panel| self.panel_sees(panel, &keys))
        })
    }

    /// Which rows of the panel see each of the keys, at most a block, written to `mask`;
    /// `None` if all rows see all of them.
    pub fn mask<'b>(
        &self,
        panel: usize,
        keys: &Range<usize>,
        mask: &'b mut Mask,
    ) -> Option<&'b Mask> {
        let problem = self.problem;
        if !problem.hides() {
            return None;
        }
        let shown_before = problem.shown_before(self.request);
        let [_, all] = self.visible(panel);
        if keys.end <= shown_before && all.start <= keys.start && keys.end <= all.end {
            return None;
        }
        let rows = self.panel_rows(panel);
        let first_row = self.rows.start + panel * PANEL_ROWS;
        // The heads of one position see alike.
        let heads = problem.shape.group();
        let bits = |positions: Range<usize>| {
            let [start, end] = [positions.start, positions.end]
                .map(|j| (j * heads).saturating_sub(first_row).min(rows));
            below(end) & !below(start)
        };
        let viewers = problem.viewers(self.request);
        let mut all_see = true;
        for (k, mask) in keys.clone().zip(&mut *mask) {
            *mask = bits(viewers(k));
            if k >= shown_before {
                for j in self.positions(panel) {
                    if !problem.shows(self.request, self.head, j, k) {
                        *mask &= !bits(j..j + 1);
                    }
                }
            }
            all_see &= *mask == below(rows);
        }
        (!all_see).then_some(mask)
    }
}

/// The first `n` bits.
const fn below(n: usize) -> u64 {
    match n {
        0 => 0,
        _ => u64::MAX >> (u64::BITS as usize - n),
    }
}

/// The partial result of a task: O and the sum of P of each row, both relative to 2 to the power of its exponent.
/// `O / sum` is the attention over the task's keys.
pub struct Partial<'a> {
    /// Strips of O, some for each panel, contiguous in it ([`Group::strip_rows`]); those of all panels but the last have
    /// room for full panels.
    pub o: &'a mut [ORow],
    /// The other numbers of each row.
    pub sums: &'a mut [RowSums],
}

impl<'a> Partial<'a> {
    /// FP32 numbers that a partial result with room for `rows` rows ([`Group::room`]) takes.
    pub const fn len(rows: usize, d_v: usize) -> usize {
        rows * (strips(d_v) * STRIP + ROW_SUMS)
    }

    /// Where the sums begin in a partial result of `len` numbers.
    const fn sums_start(len: usize, d_v: usize) -> usize {
        len / Self::len(1, d_v) * strips(d_v) * STRIP
    }

    /// Copies what a partial result has of `room` rows ([`Group::room`]), which may be fewer than there is memory for.
    pub fn copy(from: &[f32], to: &mut [f32], room: usize, d_v: usize) {
        let sums = Self::sums_start(to.len(), d_v);
        for part in [0..room * strips(d_v) * STRIP, sums..sums + room * ROW_SUMS] {
            to[part.clone()].copy_from_slice(&from[part]);
        }
    }

    /// Views memory of [`len`](Self::len) numbers.
    pub fn view(memory: &'a mut [f32], d_v: usize) -> Self {
        debug_assert!(memory.len().is_multiple_of(Self::len(1, d_v)));
        let (o, sums) = memory.split_at_mut(Self::sums_start(memory.len(), d_v));
        Self {
            o: bytemuck::cast_slice_mut(o),
            sums: sums.as_chunks_mut().0,
        }
    }

    /// The same, borrowed anew.
    pub fn reborrow(&mut self) -> Partial<'_> {
        Partial {
            o: self.o,
            sums: self.sums,
        }
    }

    /// One panel's.
    pub fn panel(self, panel: usize) -> Self {
        let strips = self.o.len() / self.sums.len();
        let start = panel * PANEL_ROWS;
        let rows = start..self.sums.len().min(start + PANEL_ROWS);
        Self {
            o: &mut self.o[rows.start * strips..rows.end * strips],
            sums: &mut self.sums[rows],
        }
    }
}

/// Where each partial result of a group has some rows of one panel: it is the same in all, and computed once a merge.
pub struct PartialRows {
    /// Where the rows begin in the first strip.
    o: usize,
    /// Numbers of a strip.
    strip_len: usize,
    /// Where their sums begin.
    sums: usize,
    rows: usize,
}

impl PartialRows {
    /// In partial results of `len` numbers.
    pub fn of(group: &Group<'_>, rows: &Range<usize>, len: usize) -> Self {
        let d_v = group.problem.shape.d_v;
        let (panel, first) = (rows.start / PANEL_ROWS, rows.start % PANEL_ROWS);
        Self {
            o: (panel * PANEL_ROWS * strips(d_v) + first) * STRIP,
            strip_len: group.strip_rows(panel) * STRIP,
            sums: Partial::sums_start(len, d_v) + rows.start * ROW_SUMS,
            rows: rows.len(),
        }
    }

    /// The rows in a strip of O.
    pub fn o<'p>(&self, partial: &'p [f32], strip: usize) -> &'p [ORow] {
        &partial[self.o + strip * self.strip_len..].as_chunks().0[..self.rows]
    }

    /// Their sums.
    pub fn sums<'p>(&self, partial: &'p [f32]) -> &'p [RowSums] {
        &partial[self.sums..].as_chunks().0[..self.rows]
    }
}

#[cfg(test)]
mod tests;
