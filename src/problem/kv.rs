//! Rows of queries, keys and values in memory.
//!
//! Tensors are dense, ragged or paged. Rows may be split from their rotary part, chosen one by one, and
//! stored in any format.

use core::ops::Range;

use half::bf16;

use super::sequence::segment;
use super::{Extra, Indices, Problem, TensorRef};
use crate::format::{Dtype, Row};
use crate::shape::ProblemShape;

/// Where a key is: the first two indices in the tensors of the first cache, or of the second.
pub(super) enum Slot {
    Cache([usize; 2]),
    Extra([usize; 2]),
}

/// Rows that are equally far apart.
pub struct Run<'a> {
    /// The first row, and all behind it.
    pub rows: &'a [Word],
    /// Words from row to row.
    pub stride: usize,
    /// How many there are.
    pub len: usize,
}

/// The row of an index that names no key. It is hidden as well.
static ZEROS: Zeros = Zeros([Word::ZERO; _]);
/// Aligned as numbers of every format.
#[repr(align(64))]
struct Zeros([Word; Dtype::F32.words(MAX_WIDTH)]);
/// 16 bits of a row in memory.
type Word = bf16;
/// At least the widest row.
pub(super) const MAX_WIDTH: usize = 1024;

// -------------------------------------------------------------------------------------------------
// Rows
// -------------------------------------------------------------------------------------------------

impl<'a> Problem<'a> {
    /// Columns of `q`, and of its rotary part.
    pub(crate) fn q_widths(&self) -> [usize; 2] {
        widths(&self.shape, self.q_rope.is_some())
    }

    /// Columns of `kv`, and of its rotary part.
    pub(crate) fn k_widths(&self) -> [usize; 2] {
        widths(&self.shape, self.k_rope.is_some())
    }

    /// A query in two parts; the second is empty where the query isn't split.
    pub(crate) fn query(&self, b: usize, j: usize, h: usize) -> [Row<'a>; 2] {
        let [request, token] = self.token(b, j);
        let [width, rope] = self.q_widths();
        let at = [request, token, h];
        let rope = self
            .q_rope
            .map_or(Row::EMPTY, |tensor| tensor.row(at, rope));
        [self.q.row(at, width), rope]
    }

    /// Keys of sequence `b` for a KV head, each in two parts.
    pub(crate) fn keys(
        &self,
        b: usize,
        head: usize,
        keys: Range<usize>,
    ) -> impl Iterator<Item = [Row<'a>; 2]> + use<'a> {
        let [width, rope] = self.k_widths();
        let problem = *self;
        self.slots(b, head, keys).map(move |slot| {
            let (tensor, [outer, token]) = match slot {
                Some(Slot::Cache(at)) => (&problem.kv, at),
                Some(Slot::Extra(at)) => (problem.extra(), at),
                None => return [width, rope].map(|width| Row::Bf16(&ZEROS.0[..width])),
            };
            let at = [outer, token, head];
            let rope = problem
                .k_rope
                .map_or(Row::EMPTY, |tensor| tensor.row(at, rope));
            [tensor.row(at, width), rope]
        })
    }

    /// Values of sequence `b` for a KV head.
    pub(crate) fn values(
        &self,
        b: usize,
        head: usize,
        keys: Range<usize>,
    ) -> impl Iterator<Item = Row<'a>> + use<'a> {
        let problem = *self;
        self.slots(b, head, keys)
            .map(move |slot| problem.value_at(slot, head))
    }

    /// Value `k` of sequence `b` for a KV head.
    pub(crate) fn value(&self, b: usize, head: usize, k: usize) -> Row<'a> {
        let slot = match self.sparse {
            None => Some(Slot::Cache(self.locate_one(b, k))),
            Some(_) => self.chosen(b, head, k),
        };
        self.value_at(slot, head)
    }

    fn value_at(&self, slot: Option<Slot>, head: usize) -> Row<'a> {
        let (values, columns) = self.value_columns();
        let (tensor, [outer, token]) = match slot {
            Some(Slot::Cache(at)) => (values, at),
            Some(Slot::Extra(at)) => (self.extra(), at),
            None => return Row::Bf16(&ZEROS.0[..columns.len()]),
        };
        let row = tensor.row([outer, token, head], columns.end);
        row.columns_from(columns.start)
    }

    /// The tensor whose rows have the values, and in which columns, which are those of a second cache, too.
    fn value_columns(&self) -> (&TensorRef<'a>, Range<usize>) {
        let d_v = self.shape.d_v;
        match &self.v {
            Some(v) => (v, 0..d_v),
            None => (&self.kv, self.v_offset..self.v_offset + d_v),
        }
    }

    /// The second cache.
    fn second_cache(&self) -> Option<&TensorRef<'a>> {
        let sparse = self.sparse.as_ref()?;
        sparse.extra.as_ref().map(|extra| &extra.kv)
    }

    /// The same; the first where there is none.
    fn extra(&self) -> &TensorRef<'a> {
        self.second_cache().unwrap_or(&self.kv)
    }
}

// -------------------------------------------------------------------------------------------------
// Rows in place
// -------------------------------------------------------------------------------------------------

impl<'a> Problem<'a> {
    /// How queries are stored, if kernels can read them in memory.
    pub(crate) fn queries_in_place(&self) -> Option<Dtype> {
        self.q.data.dtype().filter(|_| self.q_rope.is_none())
    }

    /// How keys are stored, if kernels can read them in memory.
    pub(crate) fn keys_in_place(&self) -> Option<Dtype> {
        self.key_rows().filter(|_| self.k_rope.is_none())
    }

    /// How the rows are stored that [`each_key`](Self::each_key) visits: keys, or their part before the
    /// rotary one.
    pub(crate) fn key_rows(&self) -> Option<Dtype> {
        let dtype = self.kv.data.dtype();
        dtype.filter(|_| self.extra().data.dtype() == dtype)
    }

    /// How values are stored, if kernels can read them in memory.
    pub(crate) fn values_in_place(&self) -> Option<Dtype> {
        let dtype = self.value_columns().0.data.dtype();
        let extra = self.second_cache();
        dtype.filter(|_| extra.is_none_or(|extra| extra.data.dtype() == dtype))
    }

    /// Whether queries are BF16 rows, perhaps stored in less.
    pub(crate) fn has_bf16_queries(&self) -> bool {
        let parts = [Some(&self.q), self.q_rope.as_ref()];
        parts.into_iter().flatten().all(|part| part.data.is_bf16())
    }

    /// Whether keys are BF16 rows, perhaps stored in less.
    pub(crate) fn has_bf16_keys(&self) -> bool {
        let parts = [Some(&self.kv), self.k_rope.as_ref(), self.second_cache()];
        parts.into_iter().flatten().all(|part| part.data.is_bf16())
    }

    /// Whether values are BF16 rows, perhaps stored in less.
    pub(crate) fn has_bf16_values(&self) -> bool {
        let parts = [Some(self.value_columns().0), self.second_cache()];
        parts.into_iter().flatten().all(|part| part.data.is_bf16())
    }

    /// Whether some input has more than BF16 holds.
    pub(crate) fn needs_fp32(&self) -> bool {
        !(self.has_bf16_queries() && self.has_bf16_keys() && self.has_bf16_values())
    }

    /// Calls `visit` with each key's row in memory.
    pub(crate) fn each_key(
        &self,
        b: usize,
        head: usize,
        keys: Range<usize>,
        mut visit: impl FnMut(&'a [Word]),
    ) {
        let [width, _] = self.k_widths();
        self.each_row(&self.kv, 0..width, [b, head], keys, &mut visit);
    }

    /// Calls `visit` with each value's row in memory.
    pub(crate) fn each_value(
        &self,
        b: usize,
        head: usize,
        keys: Range<usize>,
        mut visit: impl FnMut(&'a [Word]),
    ) {
        let (tensor, columns) = self.value_columns();
        self.each_row(tensor, columns, [b, head], keys, &mut visit);
    }

    fn each_row(
        &self,
        tensor: &TensorRef<'a>,
        columns: Range<usize>,
        [b, head]: [usize; 2],
        mut keys: Range<usize>,
        visit: &mut dyn FnMut(&'a [Word]),
    ) {
        let Some(dtype) = tensor.data.dtype() else {
            return;
        };
        let first = dtype.words(columns.start);
        let width = dtype.words(columns.end) - first;
        while let Some(run) = self.row_run(tensor, columns.clone(), [b, head], &keys) {
            for i in 0..run.len {
                visit(&run.rows[i * run.stride..][..width]);
            }
            keys.start += run.len;
        }
        let words = |tensor: &TensorRef<'a>| {
            let (data, each) = tensor.data.words().unwrap_or_default();
            (data, tensor.strides.map(|stride| each * stride))
        };
        let (data, strides) = words(tensor);
        let (extra, extra_strides) = words(self.extra());
        for slot in self.slots(b, head, keys) {
            let (data, strides, [outer, token]) = match slot {
                Some(Slot::Cache(at)) => (data, strides, at),
                Some(Slot::Extra(at)) => (extra, extra_strides, at),
                None => {
                    visit(&ZEROS.0[..width]);
                    continue;
                }
            };
            let start = outer * strides[0] + token * strides[1] + head * strides[2] + first;
            visit(&data[start..][..width]);
        }
    }

    /// The longest run of `keys` from the first on whose rows are equally far apart: all of them, or those of a page. `None` where
    /// pages are small, or keys are chosen one by one.
    pub(crate) fn key_run(&self, b: usize, head: usize, keys: &Range<usize>) -> Option<Run<'a>> {
        let [width, _] = self.k_widths();
        self.row_run(&self.kv, 0..width, [b, head], keys)
    }

    /// The same of values.
    pub(crate) fn value_run(&self, b: usize, head: usize, keys: &Range<usize>) -> Option<Run<'a>> {
        let (tensor, columns) = self.value_columns();
        self.row_run(tensor, columns, [b, head], keys)
    }

    fn row_run(
        &self,
        tensor: &TensorRef<'a>,
        columns: Range<usize>,
        [b, head]: [usize; 2],
        keys: &Range<usize>,
    ) -> Option<Run<'a>> {
        let (data, each) = tensor.data.words()?;
        let first = tensor.data.dtype()?.words(columns.start);
        let [over_outer, over_token, over_head] = tensor.strides.map(|stride| each * stride);
        let ([outer, token], len) = self.run(b, keys)?;
        let start = outer * over_outer + token * over_token + head * over_head + first;
        Some(Run {
            rows: data.get(start..)?,
            stride: over_token,
            len,
        })
    }

    /// The indices of the first key, and the number of keys from it on at the stride of tokens: all
    /// of them, or those of a page. `None` where pages are small.
    fn run(&self, b: usize, keys: &Range<usize>) -> Option<([usize; 2], usize)> {
        /// Tokens from which on a page is looked up once, and not for each of them.
        const MANY: usize = 8;
        let page = self
            .pages
            .as_ref()
            .map_or(usize::MAX, |pages| pages.page_size);
        if self.sparse.is_some() || page < MANY || keys.is_empty() {
            return None;
        }
        let [outer, token] = self.locate_one(b, keys.start);
        Some(([outer, token], keys.len().min(page - token)))
    }
}

// -------------------------------------------------------------------------------------------------
// Indices
// -------------------------------------------------------------------------------------------------

impl<'a> Problem<'a> {
    /// The slots of keys of sequence `b` for a KV head; `None` for an index that names no key.
    fn slots(
        &self,
        b: usize,
        head: usize,
        keys: Range<usize>,
    ) -> impl Iterator<Item = Option<Slot>> + use<'a> {
        let problem = *self;
        let mut locations = match self.sparse {
            Some(_) => None,
            None => Some(self.locate(b, keys.clone())),
        };
        keys.map(move |k| match &mut locations {
            Some(locations) => locations.next().map(Slot::Cache),
            None => problem.chosen(b, head, k),
        })
    }

    /// The slot that index `k` of a query position and KV head names, with sparse attention.
    pub(super) fn chosen(&self, b: usize, head: usize, k: usize) -> Option<Slot> {
        let sparse = self.sparse.as_ref()?;
        let [outer, token] = self.token(b, 0);
        let at = [outer, token, head];
        let of_cache = sparse.indices.len([outer, token]);
        if let Some(k) = k.checked_sub(of_cache) {
            return sparse.extra.as_ref()?.slot(at, k);
        }
        let index = sparse.indices.get(at, k)?;
        let request = b / self.shape.s_q;
        match &self.pages {
            Some(pages) => {
                let page = index / pages.page_size;
                (page < pages.pages).then_some(Slot::Cache([page, index % pages.page_size]))
            }
            None => {
                let start = self
                    .kv_indptr
                    .map_or([request, 0], |indptr| [0, segment(indptr, request).start]);
                (index < self.cached(request)).then(|| Slot::Cache([start[0], start[1] + index]))
            }
        }
    }

    /// The indices of keys, without sparse attention.
    fn locate(&self, b: usize, keys: Range<usize>) -> Locations<'a> {
        let remaining = keys.len();
        match (&self.pages, self.kv_indptr) {
            (Some(pages), _) => {
                let table = &pages.block_table
                    [b.saturating_mul(pages.stride).min(pages.block_table.len())..];
                let mut locations = Locations {
                    table: table
                        .get(keys.start / pages.page_size..)
                        .unwrap_or_default(),
                    page_size: pages.page_size,
                    outer: 0,
                    token: pages.page_size,
                    remaining,
                };
                if remaining > 0 {
                    locations.turn_page();
                    locations.token = keys.start % pages.page_size;
                }
                locations
            }
            (None, Some(indptr)) => {
                Locations::contiguous(0, segment(indptr, b).start + keys.start, remaining)
            }
            (None, None) => Locations::contiguous(b, keys.start, remaining),
        }
    }

    /// [`locate`](Self::locate) for one key.
    fn locate_one(&self, b: usize, k: usize) -> [usize; 2] {
        match (&self.pages, self.kv_indptr) {
            (Some(pages), _) => {
                let page = pages.block_table[b * pages.stride + k / pages.page_size];
                let page = usize::try_from(page).unwrap_or_default();
                [page, k % pages.page_size]
            }
            (None, Some(indptr)) => [0, segment(indptr, b).start + k],
            (None, None) => [b, k],
        }
    }
}

impl Extra<'_> {
    fn slot(&self, at: [usize; 3], k: usize) -> Option<Slot> {
        let index = self.indices.get(at, k)?;
        let page = index / self.page_size;
        (page < self.pages).then_some(Slot::Extra([page, index % self.page_size]))
    }
}

impl Indices<'_> {
    /// An index, unless it is negative.
    fn get(&self, [b, j, head]: [usize; 3], k: usize) -> Option<usize> {
        let [over_b, over_j, over_head] = self.strides;
        self.indices
            .get(b * over_b + j * over_j + head * over_head + k)
    }
}

/// Indices of keys in the order of the keys.
struct Locations<'a> {
    /// The block table from the next page on.
    table: &'a [i32],
    page_size: usize,
    outer: usize,
    token: usize,
    remaining: usize,
}

impl Locations<'_> {
    const fn contiguous(outer: usize, token: usize, remaining: usize) -> Self {
        Self {
            table: &[],
            page_size: usize::MAX,
            outer,
            token,
            remaining,
        }
    }

    /// On to the next page; the table was checked to have it.
    fn turn_page(&mut self) {
        let Some((&page, rest)) = self.table.split_first() else {
            return;
        };
        self.outer = usize::try_from(page).unwrap_or_default();
        self.table = rest;
        self.token = 0;
    }
}

impl Iterator for Locations<'_> {
    type Item = [usize; 2];

    fn next(&mut self) -> Option<[usize; 2]> {
        self.remaining = self.remaining.checked_sub(1)?;
        if self.token == self.page_size {
            self.turn_page();
        }
        let at = [self.outer, self.token];
        self.token += 1;
        Some(at)
    }
}

/// Columns before the rotary part, and of it.
fn widths(shape: &ProblemShape, split: bool) -> [usize; 2] {
    if split {
        [shape.d_v, shape.d_qk - shape.d_v]
    } else {
        [shape.d_qk, 0]
    }
}
