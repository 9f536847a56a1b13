//! What is to be computed: shapes, tensors and options, and their validation.

use core::ops::Range;

use half::{bf16, f16};

use crate::bits::bf16_round;
use crate::error::{Argument, Error, right_length};
use crate::format::{Data, MODEL1_SCALES, Row};
use crate::shape::Shape;

/// A borrowed tensor whose last dimension is contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The elements.
    pub data: Data<'a>,
    /// Elements from one index to the next, outermost dimension first, of every
    /// dimension but the last.
    pub strides: [usize; 3],
}

impl<'a> Tensor<'a> {
    /// The row at these indices, `width` elements wide. The extent was checked.
    pub(crate) fn row(&self, at: [usize; 3], width: usize) -> Row<'a> {
        self.data.row(at, self.strides, width)
    }
}

/// A cache in pages of equal size, anywhere in it: vLLM's and FlashMLA's.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// `[b, max_blocks]`: the page that holds keys `i * page_size` on of a request.
    /// Entries of pages that a window hides from all queries, or behind a request's last key, are
    /// never read.
    pub block_table: &'a [i32],
    /// Entries of `block_table` from one request to the next.
    pub max_blocks: usize,
    /// Keys per page.
    pub page_size: usize,
    /// Pages of the cache.
    pub pages: usize,
}

/// Which of a request's last keys each of its queries sees: the branches of a
/// speculative tree.
#[derive(Clone, Copy, Debug)]
pub struct TailMask<'a> {
    /// `[b, s_q, words]` (`[tokens, words]` with `q_indptr`), `words = tail / 64`
    /// rounded up: bit `i % 64` of word `i / 64` is 1 where the query sees key
    /// `len - tail + i`. Keys before those it sees anyway.
    pub words: &'a [u64],
    /// How many keys it covers. Of a shorter request the first bits count for nothing.
    pub tail: usize,
}

/// Which keys each query attends to, by their places in the cache: DeepSeek's sparse
/// attention, as FlashMLA decodes it.
///
/// A place is `page * page_size + key in the page` if the cache is paged, otherwise the
/// key's number within its request. Places that are negative or beyond the cache (the request's
/// `cache_seqlens`, unless it is paged) are skipped.
#[derive(Clone, Copy, Debug)]
pub struct Sparse<'a> {
    /// The keys of each query position.
    pub indices: Indices<'a>,
    /// Keys of a second cache, behind those of the first.
    pub extra: Option<Extra<'a>>,
}

/// Places of keys, `[b, s_q, topk]`.
#[derive(Clone, Copy, Debug)]
pub struct Indices<'a> {
    /// The places.
    pub indices: &'a [i32],
    /// Strides over `(b, s_q)`.
    pub strides: [usize; 2],
    /// Places of each query position.
    pub topk: usize,
    /// How many of them count, `[b]`; all if absent.
    pub topk_length: Option<&'a [i32]>,
}

/// A second cache for sparse attention; values are the first `d_v` columns of its rows.
#[derive(Clone, Copy, Debug)]
pub struct Extra<'a> {
    /// `[pages, page_size, h_kv, d_qk]`.
    pub kv: Tensor<'a>,
    /// Pages of it.
    pub pages: usize,
    /// Keys per page.
    pub page_size: usize,
    /// The keys of each query position.
    pub indices: Indices<'a>,
}

/// One batched attention: `O = softmax(softmax_scale * Q K^T) V` per request and
/// head.
///
/// Tensors of queries have dimensions `(request, position, head)`, or `(-, token,
/// head)` with `q_indptr`, whose first stride then counts for nothing. Tensors of
/// keys have `(request, key, head)`, `(-, token, head)` with `kv_indptr`, or `(page,
/// key in the page, head)` with `pages`.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The sizes.
    pub shape: Shape,
    /// Absorbed queries, `[b, s_q, h_q, d_qk]`; only the first `d_v` columns of them
    /// if `q_rope` has the others.
    pub q: Tensor<'a>,
    /// The queries' rotary part, `[b, s_q, h_q, d_qk - d_v]`, if it lies apart.
    pub q_rope: Option<Tensor<'a>>,
    /// Where each request's queries begin in `q`, `[b + 1]`; request `i` has
    /// `q_indptr[i + 1] - q_indptr[i]` positions, at most `s_q`. Tokens before the first
    /// are nobody's: their outputs are left as they were.
    pub q_indptr: Option<&'a [i32]>,
    /// Cache, `[b, s_k, h_kv, d_qk]`, or `d_v` columns of it if `k_rope` has the others;
    /// unless `v` is given, its first `d_v` columns are the values.
    pub kv: Tensor<'a>,
    /// The keys' rotary part, `[b, s_k, h_kv, d_qk - d_v]`, if it lies apart.
    pub k_rope: Option<Tensor<'a>>,
    /// Separate values, `[b, s_k, h_kv, d_v]`.
    pub v: Option<Tensor<'a>>,
    /// The cache is paged.
    pub pages: Option<Pages<'a>>,
    /// The cache is ragged: where each request's keys begin, `[b + 1]`.
    pub kv_indptr: Option<&'a [i32]>,
    /// Valid keys of each request, `[b]`, at most `s_k` and what the cache has for
    /// it; all of them if absent. Rows beyond are never read, but where [`Sparse`] chooses them
    /// from a paged cache.
    pub cache_seqlens: Option<&'a [i32]>,
    /// Whether query `j` of a request's `n` sees only the first `len - (n - 1 - j)`
    /// keys, the last of which is its own.
    pub causal: bool,
    /// How far back a query sees: its own key, `len - n + j`, and so many less one before
    /// it. Later keys are for `causal` to hide.
    pub window: Option<usize>,
    /// Which of the last keys each query sees; instead of `causal`.
    pub tail_mask: Option<TailMask<'a>>,
    /// Each query attends to chosen keys only; not with `causal`, `window`, `tail_mask`,
    /// `q_indptr`, or `k_rope` or `v` apart. The block table then counts for nothing.
    pub sparse: Option<Sparse<'a>>,
    /// Attention sink of each query head, `[h_q]`: a natural logarithm of what is added
    /// to the sum of exponentials that O is divided by. lse doesn't hold it.
    pub sink: Option<&'a [f32]>,
    /// Factor on the scores; finite, and so is its product with `log2(e)`.
    pub softmax_scale: f32,
}

impl<'a> Problem<'a> {
    /// A problem over dense tensors, every key visible to every query.
    #[must_use]
    pub const fn dense(shape: Shape, q: &'a [bf16], kv: &'a [bf16], softmax_scale: f32) -> Self {
        let q_row = shape.h_q.saturating_mul(shape.d_qk);
        let kv_row = shape.h_kv.saturating_mul(shape.d_qk);
        Self {
            shape,
            q: Tensor {
                data: Data::Bf16(q),
                strides: [q_row.saturating_mul(shape.s_q), q_row, shape.d_qk],
            },
            q_rope: None,
            q_indptr: None,
            kv: Tensor {
                data: Data::Bf16(kv),
                strides: [shape.s_k.saturating_mul(kv_row), kv_row, shape.d_qk],
            },
            k_rope: None,
            v: None,
            pages: None,
            kv_indptr: None,
            cache_seqlens: None,
            causal: false,
            window: None,
            tail_mask: None,
            sparse: None,
            sink: None,
            softmax_scale,
        }
    }

    /// `log2(e) * softmax_scale`, rounded once: takes scores to log2 units.
    #[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
    pub(crate) fn log2_scale(&self) -> f32 {
        (f64::from(self.softmax_scale) * core::f64::consts::LOG2_E) as f32
    }

    /// How many parts of the batch have keys of their own: requests, or query positions
    /// where each chooses its keys. They go as `b` in what follows.
    pub(crate) fn units(&self) -> usize {
        match self.sparse {
            Some(_) => self.shape.b * self.shape.s_q,
            None => self.shape.b,
        }
    }

    /// Unit and position within it of position `j` of request `b`.
    pub(crate) fn unit(&self, b: usize, j: usize) -> (usize, usize) {
        match self.sparse {
            Some(_) => (b * self.shape.s_q + j, 0),
            None => (b, j),
        }
    }

    /// Keys of unit `b`.
    pub(crate) fn len(&self, b: usize) -> usize {
        match &self.sparse {
            Some(sparse) => {
                let request = b / self.shape.s_q;
                sparse.indices.len(request)
                    + sparse.extra.map_or(0, |extra| extra.indices.len(request))
            }
            None => self.cached(b),
        }
    }

    /// Keys that the cache holds of request `b`.
    fn cached(&self, b: usize) -> usize {
        match (self.cache_seqlens, self.kv_indptr) {
            (Some(lens), _) => usize::try_from(lens[b]).unwrap_or_default(),
            (None, Some(indptr)) => between(indptr, b).len(),
            (None, None) => self.shape.s_k,
        }
    }

    /// Query positions of unit `b`.
    pub(crate) fn queries(&self, b: usize) -> usize {
        if self.sparse.is_some() {
            return 1;
        }
        self.q_indptr
            .map_or(self.shape.s_q, |indptr| between(indptr, b).len())
    }

    /// Where position `j` of request `b` lies in tensors of queries and outputs.
    pub(crate) fn token(&self, b: usize, j: usize) -> [usize; 2] {
        if self.sparse.is_some() {
            return [b / self.shape.s_q, b % self.shape.s_q];
        }
        match self.q_indptr {
            Some(indptr) => [0, between(indptr, b).start + j],
            None => [b, j],
        }
    }

    /// The keys that query position `j` of request `b` sees, but for those that the
    /// tail mask hides.
    pub(crate) fn visible(&self, b: usize, j: usize) -> Range<usize> {
        let len = self.len(b);
        // One more than the position's own key.
        let end = (len + j + 1).saturating_sub(self.queries(b));
        let start = self.window.map_or(0, |window| end.saturating_sub(window));
        let end = if self.causal { end } else { len };
        start.min(end)..end
    }

    /// The keys that any query of request `b` may see.
    pub(crate) fn span(&self, b: usize) -> Range<usize> {
        let len = self.len(b);
        if self.window.is_none() {
            return 0..len;
        }
        // The first position's window begins first.
        self.visible(b, 0).start.min(len)..len
    }

    /// Whether query position `j` of request `b` sees key `k`.
    pub(crate) fn sees(&self, b: usize, j: usize, k: usize) -> bool {
        self.visible(b, j).contains(&k) && self.shows(b, j, k)
    }

    /// From which key on [`shows`](Self::shows) may be false.
    pub(crate) fn shown_before(&self, b: usize) -> usize {
        match (&self.sparse, &self.tail_mask) {
            (Some(_), _) => 0,
            (None, Some(mask)) => self.len(b).saturating_sub(mask.tail),
            (None, None) => self.len(b),
        }
    }

    /// Whether key `k`, within what is [`visible`](Self::visible), is neither hidden by
    /// the tail mask nor a place that there isn't.
    pub(crate) fn shows(&self, b: usize, j: usize, k: usize) -> bool {
        if self.sparse.is_some() {
            return self.place(b, k).is_some();
        }
        let Some(mask) = &self.tail_mask else {
            return true;
        };
        // Below 0 for the keys before the tail.
        let Some(i) = (k + mask.tail).checked_sub(self.len(b)) else {
            return true;
        };
        let words = mask.tail.div_ceil(64);
        let [request, token] = self.token(b, j);
        let row = request * self.shape.s_q + token;
        mask.words[row * words + i / 64] >> (i % 64) & 1 != 0
    }

    /// Whether query position `j` of request `b` sees any key.
    pub(crate) fn sees_any(&self, b: usize, j: usize) -> bool {
        let visible = self.visible(b, j);
        let before = self.shown_before(b).min(visible.end);
        visible.start < before
            || (before.max(visible.start)..visible.end).any(|k| self.shows(b, j, k))
    }

    /// Where entry `k` of a sparse unit's keys lies.
    fn place(&self, b: usize, k: usize) -> Option<Place> {
        let sparse = self.sparse.as_ref()?;
        let at = [b / self.shape.s_q, b % self.shape.s_q];
        let own = sparse.indices.len(at[0]);
        if let Some(k) = k.checked_sub(own) {
            let extra = sparse.extra.as_ref()?;
            let place = extra.indices.get(at, k)?;
            let page = place / extra.page_size;
            return (page < extra.pages).then_some(Place::Extra([page, place % extra.page_size]));
        }
        let place = sparse.indices.get(at, k)?;
        match &self.pages {
            Some(pages) => {
                let page = place / pages.page_size;
                (page < pages.pages).then_some(Place::Cache([page, place % pages.page_size]))
            }
            None => {
                let start = self
                    .kv_indptr
                    .map_or([at[0], 0], |indptr| [0, between(indptr, at[0]).start]);
                (place < self.cached(at[0])).then_some(Place::Cache([start[0], start[1] + place]))
            }
        }
    }

    /// Where keys lie that aren't chosen one by one.
    fn locate(&self, b: usize, keys: Range<usize>) -> Locations<'a> {
        let left = keys.len();
        match (&self.pages, self.kv_indptr) {
            (Some(pages), _) => {
                let table = &pages.block_table[b
                    .saturating_mul(pages.max_blocks)
                    .min(pages.block_table.len())..];
                let mut locations = Locations {
                    table: table
                        .get(keys.start / pages.page_size..)
                        .unwrap_or_default(),
                    page_size: pages.page_size,
                    outer: 0,
                    token: pages.page_size,
                    left,
                };
                if left > 0 {
                    locations.turn();
                    locations.token = keys.start % pages.page_size;
                }
                locations
            }
            (None, Some(indptr)) => {
                Locations::contiguous(0, between(indptr, b).start + keys.start, left)
            }
            (None, None) => Locations::contiguous(b, keys.start, left),
        }
    }

    /// [`locate`](Self::locate) for one key.
    fn locate_one(&self, b: usize, k: usize) -> [usize; 2] {
        match (&self.pages, self.kv_indptr) {
            (Some(pages), _) => {
                let page = pages.block_table[b * pages.max_blocks + k / pages.page_size];
                let page = usize::try_from(page).unwrap_or_default();
                [page, k % pages.page_size]
            }
            (None, Some(indptr)) => [0, between(indptr, b).start + k],
            (None, None) => [b, k],
        }
    }

    /// Width of the columns that `q` and `kv` hold, and of their rotary parts.
    pub(crate) fn q_widths(&self) -> [usize; 2] {
        widths(&self.shape, self.q_rope.is_some())
    }

    pub(crate) fn k_widths(&self) -> [usize; 2] {
        widths(&self.shape, self.k_rope.is_some())
    }

    /// The parts of a query: all of it, or what lies before the rotary part, and that.
    pub(crate) fn query(&self, b: usize, j: usize, h: usize) -> [Row<'a>; 2] {
        let [request, token] = self.token(b, j);
        let [width, rope] = self.q_widths();
        let at = [request, token, h];
        let rope = self
            .q_rope
            .map_or(Row::EMPTY, |tensor| tensor.row(at, rope));
        [self.q.row(at, width), rope]
    }

    /// The parts of keys of request `b` for a KV head.
    pub(crate) fn keys(
        &self,
        b: usize,
        head: usize,
        keys: Range<usize>,
    ) -> impl Iterator<Item = [Row<'a>; 2]> + use<'a> {
        let [width, rope] = self.k_widths();
        let problem = *self;
        self.places(b, keys).map(move |place| {
            let (tensor, [outer, token]) = match place {
                Some(Place::Cache(at)) => (&problem.kv, at),
                Some(Place::Extra(at)) => (problem.extra(), at),
                None => return [Row::Bf16(&ZEROS[..width]), Row::EMPTY],
            };
            let at = [outer, token, head];
            let rope = problem
                .k_rope
                .map_or(Row::EMPTY, |tensor| tensor.row(at, rope));
            [tensor.row(at, width), rope]
        })
    }

    /// The places of keys of unit `b`, `None` where there isn't one.
    fn places(
        &self,
        b: usize,
        keys: Range<usize>,
    ) -> impl Iterator<Item = Option<Place>> + use<'a> {
        let problem = *self;
        let mut locations = match self.sparse {
            Some(_) => None,
            None => Some(self.locate(b, keys.clone())),
        };
        keys.map(move |k| match &mut locations {
            Some(locations) => locations.next().map(Place::Cache),
            None => problem.place(b, k),
        })
    }

    /// The second cache; the first where there is none.
    fn extra(&self) -> &Tensor<'a> {
        let extra = self
            .sparse
            .as_ref()
            .and_then(|sparse| sparse.extra.as_ref());
        extra.map_or(&self.kv, |extra| &extra.kv)
    }

    /// Values of request `b` for a KV head.
    pub(crate) fn values(
        &self,
        b: usize,
        head: usize,
        keys: Range<usize>,
    ) -> impl Iterator<Item = Row<'a>> + use<'a> {
        let problem = *self;
        self.places(b, keys)
            .map(move |place| problem.value_at(place, head))
    }

    /// Value `k` of request `b` for a KV head.
    pub(crate) fn value(&self, b: usize, head: usize, k: usize) -> Row<'a> {
        let place = match self.sparse {
            None => Some(Place::Cache(self.locate_one(b, k))),
            Some(_) => self.place(b, k),
        };
        self.value_at(place, head)
    }

    fn value_at(&self, place: Option<Place>, head: usize) -> Row<'a> {
        let width = self.shape.d_v;
        let (tensor, [outer, token]) = match place {
            Some(Place::Cache(at)) => (self.v.as_ref().unwrap_or(&self.kv), at),
            Some(Place::Extra(at)) => (self.extra(), at),
            None => return Row::Bf16(&ZEROS[..width]),
        };
        tensor.row([outer, token, head], width)
    }

    /// Calls `visit` with keys as they lie in the cache.
    pub(crate) fn each_key(
        &self,
        b: usize,
        head: usize,
        keys: Range<usize>,
        visit: impl FnMut(&'a [bf16]),
    ) {
        let [width, _] = self.k_widths();
        self.each_row(&self.kv, width, b, head, keys, visit);
    }

    /// Those of the keys, from the first on, that lie one behind the other, each `D` elements wide and nothing between them: all, or those
    /// of a page, unless pages are small.
    pub(crate) fn keys_in_a_row<const D: usize>(
        &self,
        b: usize,
        head: usize,
        keys: &Range<usize>,
    ) -> Option<&'a [[bf16; D]]> {
        let [over_outer, over_token, over_head] = self.kv.strides;
        let Data::Bf16(data) = self.kv.data else {
            return None;
        };
        if over_token != D {
            return None;
        }
        let ([outer, token], run) = self.run(b, keys)?;
        let first = outer * over_outer + token * over_token + head * over_head;
        data[first..].as_chunks().0.get(..run)
    }

    /// Where the first of these keys lies, and how many of them, it among them, follow each other at one distance: all, or those of a page, unless
    /// pages are small.
    fn run(&self, b: usize, keys: &Range<usize>) -> Option<([usize; 2], usize)> {
        /// A page of so many tokens is looked up once, and not for each of them.
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

    /// Calls `visit` with values as they lie in the cache.
    pub(crate) fn each_value(
        &self,
        b: usize,
        head: usize,
        keys: Range<usize>,
        visit: impl FnMut(&'a [bf16]),
    ) {
        let values = self.v.as_ref().unwrap_or(&self.kv);
        self.each_row(values, self.shape.d_v, b, head, keys, visit);
    }

    fn each_row(
        &self,
        tensor: &Tensor<'a>,
        width: usize,
        b: usize,
        head: usize,
        keys: Range<usize>,
        mut visit: impl FnMut(&'a [bf16]),
    ) {
        // With few heads a nanosecond for each row counts: the usual case on its own.
        if let (None, Data::Bf16(data)) = (&self.sparse, tensor.data) {
            let [over_outer, over_token, over_head] = tensor.strides;
            let base = head * over_head;
            let mut keys = keys;
            // Chunks, where rows don't overlap.
            while over_token >= width
                && let Some(([outer, token], run)) = self.run(b, &keys)
            {
                let first = base + outer * over_outer + token * over_token;
                for row in data[first..].chunks(over_token).take(run) {
                    visit(&row[..width]);
                }
                keys.start += run;
            }
            for [outer, token] in self.locate(b, keys) {
                let start = base + outer * over_outer + token * over_token;
                visit(&data[start..start + width]);
            }
            return;
        }
        for place in self.places(b, keys) {
            let (tensor, [outer, token]) = match place {
                Some(Place::Cache(at)) => (tensor, at),
                Some(Place::Extra(at)) => (self.extra(), at),
                None => {
                    visit(&ZEROS[..width]);
                    continue;
                }
            };
            visit(tensor.row([outer, token, head], width).as_bf16());
        }
    }

    /// Whether queries can be used as they lie.
    pub(crate) fn queries_as_they_lie(&self) -> bool {
        self.q.data.is_bf16() && self.q_rope.is_none()
    }

    /// Whether keys can be used as they lie.
    pub(crate) fn keys_as_they_lie(&self) -> bool {
        self.has_key_rows() && self.k_rope.is_none()
    }

    /// Whether [`each_key`](Self::each_key) has rows to visit: keys, or what lies before their rotary part.
    pub(crate) fn has_key_rows(&self) -> bool {
        self.kv.data.is_bf16() && self.extra().data.is_bf16()
    }

    /// Whether values can be used as they lie.
    pub(crate) fn values_as_they_lie(&self) -> bool {
        let values = self.v.as_ref().unwrap_or(&self.kv);
        let extra = self
            .sparse
            .as_ref()
            .and_then(|sparse| sparse.extra.as_ref());
        values.data.is_bf16() && extra.is_none_or(|extra| extra.kv.data.is_bf16())
    }

    /// Whether values are what keys begin with, and neither can be used as it lies.
    pub(crate) fn values_begin_keys(&self) -> bool {
        self.v.is_none() && !self.values_as_they_lie()
    }

    /// Checks every argument, whatever the widths.
    ///
    /// # Errors
    /// The first argument found at fault.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_sizes()?;
        // Without a table or keys there is nothing to see, and b may be huge.
        if self.pages.is_none() || self.sparse.is_some() || self.shape.s_k == 0 {
            return Ok(());
        }
        (0..self.shape.b).try_for_each(|b| self.check_pages(b))
    }

    /// Everything but the block table.
    pub(crate) fn check_sizes(&self) -> Result<(), Error> {
        let s = &self.shape;
        // Key indices travel in 32-bit lanes.
        let max = i32::MAX as usize;
        for (argument, value, min) in [
            (Argument::SQ, s.s_q, 1),
            (Argument::SK, s.s_k, 0),
            (Argument::HQ, s.h_q, 1),
            (Argument::HKv, s.h_kv, 1),
            (Argument::DQk, s.d_qk, 1),
            (Argument::DV, s.d_v, 1),
        ] {
            in_range(argument, value, min, max)?;
        }
        if !s.h_q.is_multiple_of(s.h_kv) {
            return Err(Error::Heads {
                h_q: s.h_q,
                h_kv: s.h_kv,
            });
        }
        let split = self.q_rope.is_some() || self.k_rope.is_some();
        if split || self.v.is_none() {
            in_range(Argument::DV, s.d_v, 1, s.d_qk - usize::from(split))?;
        }
        if !self.log2_scale().is_finite() {
            return Err(Error::NonFiniteScale {
                value: self.softmax_scale,
            });
        }
        let sparse = self.sparse.map(|_| Argument::Indices);
        for (first, second) in [
            (sparse, self.causal.then_some(Argument::Causal)),
            (sparse, self.window.map(|_| Argument::Window)),
            (sparse, self.tail_mask.map(|_| Argument::TailMask)),
            (sparse, self.q_indptr.map(|_| Argument::QIndptr)),
            (sparse, self.k_rope.map(|_| Argument::KRope)),
            (sparse, self.v.map(|_| Argument::V)),
            (
                self.pages.map(|_| Argument::BlockTable),
                self.kv_indptr.map(|_| Argument::KvIndptr),
            ),
            (
                self.tail_mask.map(|_| Argument::TailMask),
                self.causal.then_some(Argument::Causal),
            ),
        ] {
            if let (Some(first), Some(second)) = (first, second) {
                return Err(Error::Conflict { first, second });
            }
        }
        self.check_queries()?;
        self.check_keys()?;
        if let Some(mask) = &self.tail_mask {
            in_range(Argument::TailMask, mask.tail, 0, max)?;
            let [b, s_q] = self.q_dims();
            let words = mask.tail.div_ceil(64);
            reaches(
                Argument::TailMask,
                mask.words.len(),
                [b, s_q],
                [s_q.saturating_mul(words), words],
                words,
            )?;
        }
        if let Some(sparse) = &self.sparse {
            self.check_sparse(sparse)?;
        }
        if let Some(window) = self.window {
            in_range(Argument::Window, window, 1, usize::MAX)?;
        }
        if let Some(sink) = self.sink {
            right_length(Argument::Sink, sink.len(), s.h_q)?;
        }
        Ok(())
    }

    /// The first two dimensions of tensors of queries and outputs.
    pub(crate) fn q_dims(&self) -> [usize; 2] {
        match self.q_indptr {
            Some(indptr) => [1, last(indptr)],
            None => [self.shape.b, self.shape.s_q],
        }
    }

    fn check_sparse(&self, sparse: &Sparse<'_>) -> Result<(), Error> {
        let s = &self.shape;
        // Units and keys are counted.
        s.b.checked_mul(s.s_q).ok_or(Error::Overflow {
            argument: Argument::Indices,
            dimension: 0,
        })?;
        in_range(Argument::DQk, s.d_qk, 1, MAX_WIDTH)?;
        let limit = i32::MAX as usize / 2;
        sparse
            .indices
            .check(Argument::Indices, Argument::TopkLength, s, limit)?;
        let Some(extra) = &sparse.extra else {
            return Ok(());
        };
        in_range(Argument::PageSize, extra.page_size, 1, usize::MAX)?;
        in_range(Argument::Pages, extra.pages, 0, i32::MAX as usize)?;
        let tensors = [(Argument::ExtraKv, Some(&extra.kv), s.d_qk)];
        check_tensors(tensors, [extra.pages, extra.page_size, s.h_kv])?;
        let (indices, length) = (Argument::ExtraIndices, Argument::ExtraTopkLength);
        extra.indices.check(indices, length, s, limit)
    }

    fn check_queries(&self) -> Result<(), Error> {
        let s = &self.shape;
        if let Some(indptr) = self.q_indptr {
            check_indptr(Argument::QIndptr, indptr, s.b, s.s_q)?;
        }
        let [b, s_q] = self.q_dims();
        let [width, rope] = self.q_widths();
        let tensors = [
            (Argument::Q, Some(&self.q), width),
            (Argument::QRope, self.q_rope.as_ref(), rope),
        ];
        check_tensors(tensors, [b, s_q, s.h_q])
    }

    fn check_keys(&self) -> Result<(), Error> {
        let s = &self.shape;
        if let Some(indptr) = self.kv_indptr {
            check_indptr(Argument::KvIndptr, indptr, s.b, s.s_k)?;
        }
        if let Some(lens) = self.cache_seqlens {
            right_length(Argument::CacheSeqlens, lens.len(), s.b)?;
            for (request, &value) in lens.iter().enumerate() {
                let limit = self
                    .kv_indptr
                    .map_or(s.s_k, |indptr| between(indptr, request).len());
                if !usize::try_from(value).is_ok_and(|len| len <= limit) {
                    return Err(Error::Seqlen {
                        request,
                        value,
                        limit,
                    });
                }
            }
        }
        let [outer, tokens] = match (&self.pages, self.kv_indptr) {
            (Some(pages), _) => {
                in_range(Argument::PageSize, pages.page_size, 1, usize::MAX)?;
                in_range(Argument::Pages, pages.pages, 0, i32::MAX as usize)?;
                [pages.pages, pages.page_size]
            }
            (None, Some(indptr)) => [1, last(indptr)],
            (None, None) => [s.b, s.s_k],
        };
        let [width, rope] = self.k_widths();
        let tensors = [
            (Argument::Kv, Some(&self.kv), width),
            (Argument::KRope, self.k_rope.as_ref(), rope),
            (Argument::V, self.v.as_ref(), s.d_v),
        ];
        check_tensors(tensors, [outer, tokens, s.h_kv])
    }

    /// The entries of the block table that request `b` has keys on.
    ///
    /// # Errors
    /// [`Error::TooShort`] if the table has too few, [`Error::Page`] for the first that is
    /// no page.
    pub(crate) fn check_pages(&self, b: usize) -> Result<(), Error> {
        let (Some(pages), None) = (&self.pages, &self.sparse) else {
            return Ok(());
        };
        let blocks = self.len(b).div_ceil(pages.page_size);
        if blocks == 0 {
            return Ok(());
        }
        in_range(Argument::BlockTable, blocks, 0, pages.max_blocks)?;
        let overflow = Error::Overflow {
            argument: Argument::BlockTable,
            dimension: 0,
        };
        let start = b.checked_mul(pages.max_blocks).ok_or(overflow)?;
        let end = start.checked_add(blocks).ok_or(overflow)?;
        let entries = pages.block_table.get(start..end).ok_or(Error::TooShort {
            argument: Argument::BlockTable,
            len: pages.block_table.len(),
            needed: end,
        })?;
        let first = self.span(b).start / pages.page_size;
        for (index, &value) in entries.iter().enumerate().skip(first) {
            if !usize::try_from(value).is_ok_and(|page| page < pages.pages) {
                return Err(Error::Page {
                    request: b,
                    index,
                    value,
                    limit: pages.pages,
                });
            }
        }
        Ok(())
    }
}

/// A key's place in the cache or in the second one: the first two indices.
enum Place {
    Cache([usize; 2]),
    Extra([usize; 2]),
}

/// What stands for a key that there isn't; it is hidden, too.
static ZEROS: [bf16; MAX_WIDTH] = [bf16::ZERO; _];
/// At least the widest row.
const MAX_WIDTH: usize = 1024;

impl Indices<'_> {
    /// Places that count for a request.
    fn len(&self, request: usize) -> usize {
        self.topk_length.map_or(self.topk, |lengths| {
            usize::try_from(lengths[request]).unwrap_or_default()
        })
    }

    /// A place, unless it is negative.
    fn get(&self, [b, j]: [usize; 2], k: usize) -> Option<usize> {
        let place = self.indices[b * self.strides[0] + j * self.strides[1] + k];
        usize::try_from(place).ok()
    }

    fn check(
        &self,
        indices: Argument,
        length: Argument,
        s: &Shape,
        limit: usize,
    ) -> Result<(), Error> {
        in_range(indices, self.topk, 0, limit)?;
        reaches(
            indices,
            self.indices.len(),
            [s.b, s.s_q],
            self.strides,
            self.topk,
        )?;
        let Some(lengths) = self.topk_length else {
            return Ok(());
        };
        right_length(length, lengths.len(), s.b)?;
        for (request, &value) in lengths.iter().enumerate() {
            if !usize::try_from(value).is_ok_and(|len| len <= self.topk) {
                return Err(Error::TopkLength {
                    argument: length,
                    request,
                    value,
                    limit: self.topk,
                });
            }
        }
        Ok(())
    }
}

/// Keys in their order, wherever they lie.
struct Locations<'a> {
    /// The block table from the next page on.
    table: &'a [i32],
    page_size: usize,
    outer: usize,
    token: usize,
    left: usize,
}

impl Locations<'_> {
    const fn contiguous(outer: usize, token: usize, left: usize) -> Self {
        Self {
            table: &[],
            page_size: usize::MAX,
            outer,
            token,
            left,
        }
    }

    /// On to the next page; the table was checked to have it.
    fn turn(&mut self) {
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
        self.left = self.left.checked_sub(1)?;
        if self.token == self.page_size {
            self.turn();
        }
        let at = [self.outer, self.token];
        self.token += 1;
        Some(at)
    }
}

/// Columns before the rotary part, and of it.
fn widths(shape: &Shape, split: bool) -> [usize; 2] {
    if split {
        [shape.d_v, shape.d_qk - shape.d_v]
    } else {
        [shape.d_qk, 0]
    }
}

/// What offsets leave request `b`. They were checked.
fn between(indptr: &[i32], b: usize) -> Range<usize> {
    let [start, end] = [indptr[b], indptr[b + 1]].map(|x| usize::try_from(x).unwrap_or_default());
    start..end
}

/// Rows that offsets reach.
fn last(indptr: &[i32]) -> usize {
    let end = indptr.last().copied().unwrap_or_default();
    usize::try_from(end).unwrap_or_default()
}

fn check_indptr(argument: Argument, indptr: &[i32], b: usize, limit: usize) -> Result<(), Error> {
    right_length(argument, indptr.len(), b.saturating_add(1))?;
    for (request, ends) in indptr.windows(2).enumerate() {
        let (start, end) = (ends[0], ends[1]);
        let rows = usize::try_from(i64::from(end) - i64::from(start));
        if start < 0 || !rows.is_ok_and(|rows| rows <= limit) {
            return Err(Error::Indptr {
                argument,
                request,
                start,
                end,
                limit,
            });
        }
    }
    Ok(())
}

fn check_tensors<const N: usize>(
    tensors: [(Argument, Option<&Tensor<'_>>, usize); N],
    dims: [usize; 3],
) -> Result<(), Error> {
    for (argument, tensor, width) in tensors {
        let Some(Tensor { data, strides }) = tensor else {
            continue;
        };
        let width = data
            .row_len(width)
            .ok_or(Error::Format { argument, width })?;
        reaches(argument, data.len(), dims, *strides, width)?;
        match *data {
            Data::Model1 {
                bytes,
                scales,
                scale_stride,
            } => {
                // Scales have no dimension of heads.
                let heads = match argument {
                    Argument::Q | Argument::QRope => Argument::HQ,
                    _ => Argument::HKv,
                };
                in_range(heads, dims[2], 1, 1)?;
                let width = scales.saturating_add(MODEL1_SCALES);
                reaches(
                    Argument::Scales,
                    bytes.len(),
                    dims,
                    [strides[0], scale_stride, 0],
                    width,
                )?;
            }
            Data::Int8 {
                scales, strides, ..
            } => reaches(Argument::Scales, scales.len(), dims, strides, 1)?,
            _ => {}
        }
    }
    Ok(())
}

/// Where the output's elements go, and in which format.
#[derive(Debug)]
pub enum Elements<'a> {
    /// Rounded to nearest even.
    Bf16(&'a mut [bf16]),
    /// Rounded to nearest even; infinite from 65520 on.
    F16(&'a mut [f16]),
    /// Unrounded.
    F32(&'a mut [f32]),
}

impl<'a> Elements<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bf16(data) => data.len(),
            Self::F16(data) => data.len(),
            Self::F32(data) => data.len(),
        }
    }

    /// The same for a while.
    pub(crate) fn reborrow(&mut self) -> Elements<'_> {
        match self {
            Self::Bf16(data) => Elements::Bf16(data),
            Self::F16(data) => Elements::F16(data),
            Self::F32(data) => Elements::F32(data),
        }
    }

    /// Those before element `at`, and those from it on.
    #[cfg(feature = "rayon")]
    pub(crate) fn split_at(self, at: usize) -> [Self; 2] {
        match self {
            Self::Bf16(data) => <[_; 2]>::from(data.split_at_mut(at)).map(Elements::Bf16),
            Self::F16(data) => <[_; 2]>::from(data.split_at_mut(at)).map(Elements::F16),
            Self::F32(data) => <[_; 2]>::from(data.split_at_mut(at)).map(Elements::F32),
        }
    }

    /// Writes some numbers from element `at` on, rounded to the format. Inlined, to be compiled with the
    /// caller's instructions.
    #[inline(always)]
    pub(crate) fn write(&mut self, at: usize, row: &[f32]) {
        let at = at..at + row.len();
        match self {
            Self::Bf16(o) => {
                for (o, x) in o[at].iter_mut().zip(row) {
                    *o = bf16::from_bits(bf16_round(*x));
                }
            }
            Self::F16(o) => {
                for (o, x) in o[at].iter_mut().zip(row) {
                    *o = f16::from_f32(*x);
                }
            }
            Self::F32(o) => o[at].copy_from_slice(row),
        }
    }
}

/// How log-sum-exp is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lse {
    /// The logarithm's base.
    pub base: LseBase,
    /// What stands for a row that sees no key.
    pub empty: EmptyLse,
}

/// The base of a logarithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LseBase {
    /// Natural: FlashMLA's and CANN's.
    #[default]
    E,
    /// Binary: FlashInfer's.
    Two,
}

/// lse of a row that sees no key, whose O is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmptyLse {
    /// Infinity, as in FlashMLA.
    #[default]
    Infinity,
    /// Minus infinity, the logarithm of the empty sum.
    MinusInfinity,
}

impl EmptyLse {
    /// As a number.
    #[must_use]
    pub const fn value(self) -> f32 {
        match self {
            Self::Infinity => f32::INFINITY,
            Self::MinusInfinity => f32::NEG_INFINITY,
        }
    }
}

/// Where results go.
///
/// A row that sees no key gets `O = 0`, and the lse that [`EmptyLse`] says. Every NaN is the quiet one
/// of its format with the sign clear and no payload, `0x7fc00000` in FP32.
#[derive(Debug)]
pub struct Output<'a> {
    /// `[b, s_q, h_q, d_v]`, the last dimension contiguous; `[tokens, h_q, d_v]` with
    /// `q_indptr`.
    pub o: Elements<'a>,
    /// Strides of `o` over `(b, s_q, h_q)`, in elements; the first counts for nothing
    /// with `q_indptr`.
    pub o_strides: [usize; 3],
    /// `[b, h_q, s_q]`, or `[h_q, tokens]`: logarithm of the sum of exponentials.
    pub lse: &'a mut [f32],
    /// Strides of `lse` over `(b, h_q, s_q)`, in elements.
    pub lse_strides: [usize; 3],
    /// How `lse` is written.
    pub lse_format: Lse,
}

impl<'a> Output<'a> {
    /// Dense outputs.
    #[must_use]
    pub const fn dense(shape: Shape, o: Elements<'a>, lse: &'a mut [f32]) -> Self {
        let row = shape.h_q.saturating_mul(shape.d_v);
        Self {
            o,
            o_strides: [row.saturating_mul(shape.s_q), row, shape.d_v],
            lse,
            lse_strides: [shape.h_q.saturating_mul(shape.s_q), shape.s_q, 1],
            lse_format: Lse {
                base: LseBase::E,
                empty: EmptyLse::Infinity,
            },
        }
    }

    /// Checks that every element of the results of a problem with these dimensions of
    /// queries has a place of its own.
    ///
    /// # Errors
    /// The first argument found at fault.
    pub(crate) fn check(&self, [b, s_q]: [usize; 2], s: &Shape) -> Result<(), Error> {
        let o = [b, s_q, s.h_q];
        reaches(Argument::O, self.o.len(), o, self.o_strides, s.d_v)?;
        disjoint(Argument::O, o, self.o_strides, s.d_v)?;
        let lse = [b, s.h_q, s_q];
        reaches(Argument::Lse, self.lse.len(), lse, self.lse_strides, 1)?;
        disjoint(Argument::Lse, lse, self.lse_strides, 1)
    }
}

pub(crate) const fn in_range(
    argument: Argument,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), Error> {
    if value < min || value > max {
        return Err(Error::OutOfRange {
            argument,
            value,
            min,
            max,
        });
    }
    Ok(())
}

/// The buffer of `len` elements reaches the last row of `dims`.
fn reaches<const RANK: usize>(
    argument: Argument,
    len: usize,
    dims: [usize; RANK],
    strides: [usize; RANK],
    width: usize,
) -> Result<(), Error> {
    if dims.contains(&0) {
        return Ok(());
    }
    let mut needed = width;
    for (dimension, (dim, stride)) in dims.into_iter().zip(strides).enumerate() {
        needed = (dim - 1)
            .checked_mul(stride)
            .and_then(|extent| needed.checked_add(extent))
            .ok_or(Error::Overflow {
                argument,
                dimension,
            })?;
    }
    if len < needed {
        return Err(Error::TooShort {
            argument,
            len,
            needed,
        });
    }
    Ok(())
}

/// No two rows of an output share an element: taken from the smallest stride
/// up, each stride steps over everything inside it.
fn disjoint<const RANK: usize>(
    argument: Argument,
    dims: [usize; RANK],
    strides: [usize; RANK],
    width: usize,
) -> Result<(), Error> {
    if dims.contains(&0) {
        return Ok(());
    }
    let mut order = [0; RANK];
    for (i, place) in order.iter_mut().enumerate() {
        *place = i;
    }
    order.sort_unstable_by_key(|&i| strides[i]);
    let mut extent = width;
    for dimension in order {
        if dims[dimension] < 2 {
            continue;
        }
        let stride = strides[dimension];
        if stride < extent {
            return Err(Error::Overlap {
                argument,
                dimension,
                stride,
                min: extent,
            });
        }
        extent = extent.saturating_add((dims[dimension] - 1).saturating_mul(stride));
    }
    Ok(())
}

/// How the output accumulator follows the running maximum (`docs/algorithm.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rescale {
    /// The reference exponent is an integer, so that every rescale is an exact
    /// power of two and most blocks need none.
    #[default]
    Exact,
    /// Algorithm 2 with the compensation of the paper's appendix. With
    /// [`Precision::Bf16x2`] there is nothing to compensate.
    Compensated,
}

/// How P enters the second matrix product, at least: a backend that multiplies in FP32 takes
/// it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// One BF16 per probability.
    #[default]
    Bf16,
    /// A BF16 pair, high and low part: about 16 bits, for twice the work in C2 of a backend
    /// with BF16 dots.
    Bf16x2,
}
