//! Problems apart from how hosts lay them out in memory, the layouts, and runs whose results don't
//! show them.

use std::fmt::Debug;

use amla::{
    Argument, Backend, Data, Elements, Error, Lse, Options, Output, Pages, Plan, Problem,
    ProblemShape, TailMask, TensorRef, decode, reference,
};
use half::bf16;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    assert_one_nan, close, halves, modes, normal, run_plan, tolerance, used_workspace,
    with_magnitudes,
};

// -------------------------------------------------------------------------------------------------
// Hosts
// -------------------------------------------------------------------------------------------------

/// What is to be computed, however it is laid out.
#[derive(Clone, Debug)]
pub struct Host {
    /// Query heads and KV heads.
    pub heads: [usize; 2],
    pub dims: (usize, usize),
    pub requests: Vec<Request>,
    pub causal: bool,
    pub window: Option<usize>,
    pub tail: Option<usize>,
    pub sink: Option<Vec<f32>>,
    /// The column of keys at which values begin that aren't apart.
    pub v_offset: usize,
    pub scale: f32,
}

#[derive(Clone, Debug)]
pub struct Request {
    /// Query positions.
    pub n: usize,
    /// Keys.
    pub len: usize,
    /// `[n, h_q, d_qk]`.
    q: Vec<bf16>,
    /// `[len, h_kv, d_qk]`.
    k: Vec<bf16>,
    /// `[len, h_kv, d_v]`, if not the keys' first columns.
    v: Option<Vec<bf16>>,
    /// `[n, words]` of the tail mask.
    mask: Vec<u64>,
}

impl Host {
    /// N(0, 1) data for requests, each of a number of queries and one of keys.
    pub fn new(heads: [usize; 2], dims: (usize, usize), requests: &[(usize, usize)]) -> Self {
        let request = |(r, &(n, len)): (usize, &(usize, usize))| Request {
            n,
            len,
            q: normal(3 * r as u64, 1.0, n * heads[0] * dims.0),
            k: normal(3 * r as u64 + 1, 1.0, len * heads[1] * dims.0),
            v: None,
            mask: Vec::new(),
        };
        Self {
            heads,
            dims,
            requests: requests.iter().enumerate().map(request).collect(),
            causal: false,
            window: None,
            tail: None,
            sink: None,
            v_offset: 0,
            scale: (dims.0 as f32).sqrt().recip(),
        }
    }

    /// Values apart from the keys.
    pub fn separate_v(mut self) -> Self {
        let width = self.heads[1] * self.dims.1;
        for (r, request) in self.requests.iter_mut().enumerate() {
            request.v = Some(normal(3 * r as u64 + 2, 1.0, request.len * width));
        }
        self
    }

    /// Values behind the rotary part.
    pub fn rope_first(mut self) -> Self {
        self.v_offset = self.dims.0 - self.dims.1;
        self
    }

    pub fn causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    pub fn window(mut self, window: usize) -> Self {
        self.window = Some(window);
        self
    }

    pub fn sink(mut self, sink: impl Fn(usize) -> f32) -> Self {
        self.sink = Some((0..self.heads[0]).map(sink).collect());
        self
    }

    /// Query `j` of request `r` sees bit `i` of its last keys where `shown(r, j, i)`.
    pub fn tail(mut self, tail: usize, mut shown: impl FnMut(usize, usize, usize) -> bool) -> Self {
        let words = tail.div_ceil(64);
        for (r, request) in self.requests.iter_mut().enumerate() {
            request.mask = vec![0; request.n * words];
            for (j, i) in (0..request.n).flat_map(|j| (0..tail).map(move |i| (j, i))) {
                request.mask[j * words + i / 64] |= u64::from(shown(r, j, i)) << (i % 64);
            }
        }
        self.tail = Some(tail);
        self
    }

    /// A random mask of the last `tail` keys.
    pub fn tree(self, tail: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        self.tail(tail, |_, _, _| rng.random_bool(0.5))
    }

    /// These requests, in that order.
    pub fn only(&self, requests: &[usize]) -> Self {
        let mut only = self.clone();
        let requests = requests.iter().map(|&r| self.requests[r].clone());
        only.requests = requests.collect();
        only
    }

    /// One KV head, and the query heads that share it.
    pub fn head(&self, head: usize) -> Self {
        let ([h_q, h_kv], (d_qk, d_v)) = (self.heads, self.dims);
        let group = h_q / h_kv;
        let part = |rows: &[bf16], len: usize| -> Vec<bf16> {
            let parts = rows.chunks(len).skip(head).step_by(h_kv);
            parts.flatten().copied().collect()
        };
        let mut one = self.clone();
        one.heads = [group, 1];
        if let Some(sink) = &mut one.sink {
            *sink = sink[head * group..][..group].to_vec();
        }
        for request in &mut one.requests {
            request.q = part(&request.q, group * d_qk);
            request.k = part(&request.k, d_qk);
            request.v = request.v.as_deref().map(|v| part(v, d_v));
        }
        one
    }

    /// The same with the keys for which `chosen(len, k)` holds, and no others.
    pub fn keys(&self, chosen: impl Fn(usize, usize) -> bool) -> Self {
        let mut host = self.clone();
        for request in &mut host.requests {
            let chosen = |k| chosen(request.len, k);
            let select = |rows: &[bf16], width: usize| -> Vec<bf16> {
                let rows = rows.chunks(self.heads[1] * width).enumerate();
                let rows = rows.filter(|&(k, _)| chosen(k));
                rows.flat_map(|(_, row)| row).copied().collect()
            };
            request.k = select(&request.k, self.dims.0);
            request.v = request.v.as_deref().map(|v| select(v, self.dims.1));
            request.len = (0..request.len).filter(|&k| chosen(k)).count();
        }
        host
    }

    /// Query `j` of request `r`, and just the keys that it sees.
    fn row(&self, r: usize, j: usize) -> Self {
        let mut one = self.only(&[r]).keys(|_, k| self.sees(r, j, k));
        (one.causal, one.window, one.tail, one.sink) = (false, None, None, None);
        let width = self.heads[0] * self.dims.0;
        let request = &mut one.requests[0];
        request.q = request.q[j * width..][..width].to_vec();
        request.n = 1;
        one
    }

    /// The same with the values' magnitudes beside the values.
    fn with_magnitudes(&self) -> Self {
        let mut host = self.clone();
        host.dims.1 *= 2;
        host.v_offset = 0;
        for Request { k, v, .. } in &mut host.requests {
            let columns = k
                .chunks(self.dims.0)
                .flat_map(|k| &k[self.v_offset..][..self.dims.1]);
            let values = v.take().unwrap_or_else(|| columns.copied().collect());
            *v = Some(with_magnitudes(k, Some(&values), self.dims));
        }
        host
    }

    /// Whether query `j` of request `r` sees key `k`.
    pub fn sees(&self, r: usize, j: usize, k: usize) -> bool {
        let Request { n, len, mask, .. } = &self.requests[r];
        // How far behind the query's own key.
        let past = (len + j) as isize - (n + k) as isize;
        let left = |window: usize| !usize::try_from(past).is_ok_and(|past| past >= window);
        let shown = |tail: usize| match (k + tail).checked_sub(*len) {
            Some(i) => mask[j * tail.div_ceil(64) + i / 64] >> (i % 64) & 1 == 1,
            None => true,
        };
        (past >= 0 || !self.causal) && self.window.is_none_or(left) && self.tail.is_none_or(shown)
    }

    /// Keys of request `r` that none of its queries sees.
    pub fn hidden(&self, r: usize) -> Vec<usize> {
        let Request { n, len, .. } = self.requests[r];
        let mut keys: Vec<usize> = (0..len).collect();
        keys.retain(|&k| !(0..n).any(|j| self.sees(r, j, k)));
        keys
    }

    pub fn queries(&mut self, r: usize) -> &mut [bf16] {
        &mut self.requests[r].q
    }

    /// Key `k` of request `r`, all heads of it.
    pub fn key(&mut self, r: usize, k: usize) -> &mut [bf16] {
        let width = self.heads[1] * self.dims.0;
        &mut self.requests[r].k[k * width..][..width]
    }

    /// Whether values are a tensor of their own.
    pub fn has_values(&self) -> bool {
        self.requests.first().is_some_and(|r| r.v.is_some())
    }

    pub fn value(&mut self, r: usize, k: usize) -> &mut [bf16] {
        let width = self.heads[1] * self.dims.1;
        &mut self.requests[r].v.as_mut().unwrap()[k * width..][..width]
    }

    /// Golden of each row given only the keys that it sees, so that nothing rests on the crate's
    /// notion of what that is; with its sink.
    pub fn golden(&self) -> (Vec<f64>, Vec<f64>) {
        let [h_q, h_kv] = self.heads;
        let (mut o, mut lse) = (Vec::new(), Vec::new());
        for (r, request) in self.requests.iter().enumerate() {
            for (j, head) in (0..request.n).flat_map(|j| (0..h_kv).map(move |h| (j, h))) {
                let row = self.row(r, j).head(head);
                let (row_o, row_lse) = golden(&row.laid(PLAIN).problem());
                o.extend(row_o);
                lse.extend(row_lse);
            }
        }
        for (row, o) in o.chunks_mut(self.dims.1).enumerate() {
            if let Some(sink) = &self.sink
                && lse[row] < f64::INFINITY
            {
                let share = 1.0 / (1.0 + (f64::from(sink[row % h_q]) - lse[row]).exp());
                o.iter_mut().for_each(|o| *o *= share);
            }
        }
        (o, lse)
    }

    /// Every mode against Golden, with the bounds of `Case::check`; and Golden of the layout
    /// against Golden of each row.
    #[track_caller]
    pub fn check(&self, backend: Backend, layout: Layout) {
        let (want_o, want_lse) = self.with_magnitudes().golden();
        let [want_o, magnitudes] = halves(&want_o, self.dims.1);
        let laid = self.laid(layout);
        let problem = laid.problem();
        let (o, lse) = golden(&problem);
        for (&got, &want) in o.iter().zip(&want_o).chain(lse.iter().zip(&want_lse)) {
            let same = got == want || (got.is_nan() && want.is_nan());
            let near = (got - want).abs() <= 1e-12 * want.abs();
            assert!(same || near, "Golden of {layout:?}: {got}, {want}");
        }
        for options in modes(backend) {
            let (o, lse) = decoded(&problem, &options);
            assert_eq!((o.len(), lse.len()), (want_o.len(), want_lse.len()));
            let limit = tolerance(&options);
            let wants = want_o
                .iter()
                .zip(magnitudes.iter().map(|m| limit * m + 1e-35));
            for (i, (got, (&want, limit))) in o.into_iter().zip(wants).enumerate() {
                let (row, column) = (i / self.dims.1, i % self.dims.1);
                let got = f32::from_bits(got);
                assert!(
                    close(got, want, limit),
                    "O[{row}][{column}] = {got}, want {want} +- {limit:e}, {options:?}, {layout:?}"
                );
            }
            for (row, (got, &want)) in lse.into_iter().zip(&want_lse).enumerate() {
                let got = f32::from_bits(got);
                assert!(
                    close(got, want, 4e-7 * want.abs().max(8.0)),
                    "lse[{row}] = {got}, want {want}, {options:?}, {layout:?}"
                );
            }
        }
    }

    pub fn run(&self, layout: Layout, options: &Options) -> Bits {
        decoded(&self.laid(layout).problem(), options)
    }

    /// What the query heads of one KV head have of all heads' results.
    pub fn of_head(&self, head: usize, (o, lse): &Bits) -> Bits {
        let [h_q, h_kv] = self.heads;
        let part = |all: &[u32], width: usize| -> Vec<u32> {
            let parts = all.chunks(h_q / h_kv * width).skip(head).step_by(h_kv);
            parts.flatten().copied().collect()
        };
        (part(o, self.dims.1), part(lse, 1))
    }
}

// -------------------------------------------------------------------------------------------------
// Layouts
// -------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
pub enum Keys {
    Contiguous,
    Ragged,
    /// In pages of that many keys.
    Paged(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub keys: Keys,
    /// Rows that each request's part of the cache has beyond its keys.
    pub spare: usize,
    /// Elements between heads, tokens and pages.
    pub padding: usize,
    /// `q_indptr` even where requests have equally many queries.
    pub ragged_q: bool,
    pub split_q: bool,
    pub split_k: bool,
}

pub const PLAIN: Layout = Layout {
    keys: Keys::Contiguous,
    spare: 0,
    padding: 0,
    ragged_q: false,
    split_q: false,
    split_k: false,
};

pub const fn paged(page_size: usize) -> Layout {
    Layout {
        keys: Keys::Paged(page_size),
        ..PLAIN
    }
}

/// A tensor of NaNs but for what was put there.
pub struct Rows {
    data: Vec<bf16>,
    strides: [usize; 3],
    width: usize,
}

impl Rows {
    pub fn new(dims: [usize; 3], width: usize, padding: usize) -> Self {
        let head = width + padding;
        let token = dims[2] * head + padding;
        let strides = [dims[1] * token + 3 * padding, token, head];
        let extents = dims
            .iter()
            .zip(strides)
            .map(|(dim, stride)| dim.saturating_sub(1) * stride);
        let len = if dims.contains(&0) {
            0
        } else {
            extents.sum::<usize>() + width
        };
        Self {
            data: vec![bf16::NAN; len],
            strides,
            width,
        }
    }

    fn start(&self, at: [usize; 3]) -> usize {
        at.iter()
            .zip(self.strides)
            .map(|(i, stride)| i * stride)
            .sum()
    }

    pub fn row(&mut self, at: [usize; 3]) -> &mut [bf16] {
        let start = self.start(at);
        &mut self.data[start..][..self.width]
    }

    /// All from that row on.
    pub fn from(&self, at: [usize; 3]) -> TensorRef<'_> {
        let start = self.start(at).min(self.data.len());
        TensorRef {
            data: Data::Bf16(&self.data[start..]),
            strides: self.strides,
        }
    }

    pub fn tensor(&self) -> TensorRef<'_> {
        self.from([0; 3])
    }

    /// The tensor, if it has columns.
    fn some(&self) -> Option<TensorRef<'_>> {
        (self.width > 0).then(|| self.tensor())
    }
}

/// A shuffled block table, with entries behind each request's that are no pages.
pub struct Table {
    entries: Vec<i32>,
    max_blocks: usize,
    page_size: usize,
    pub pages: usize,
}

impl Table {
    pub fn new(lens: &[usize], page_size: usize) -> Self {
        let blocks = lens.iter().map(|len| len.div_ceil(page_size));
        let pages = blocks.clone().sum::<usize>() + 3;
        let max_blocks = blocks.clone().max().unwrap_or_default() + 2;
        let mut order: Vec<i32> = (0..int(pages)).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(page_size as u64));
        let mut order = order.into_iter();
        let mut entries = Vec::new();
        for blocks in blocks {
            entries.extend(order.by_ref().take(blocks));
            let poison = [2_147_480_000, -1].into_iter().cycle();
            entries.extend(poison.take(max_blocks - blocks));
        }
        Self {
            entries,
            max_blocks,
            page_size,
            pages,
        }
    }

    /// Page and row of a request's key.
    pub fn at(&self, r: usize, k: usize) -> [usize; 2] {
        let page = self.entries[r * self.max_blocks + k / self.page_size];
        [usize::try_from(page).unwrap(), k % self.page_size]
    }

    /// The table of the requests from `r` on.
    pub fn from(&self, r: usize) -> Pages<'_> {
        Pages {
            block_table: &self.entries[r * self.max_blocks..],
            max_blocks: self.max_blocks,
            stride: self.max_blocks,
            page_size: self.page_size,
            pages: self.pages,
        }
    }
}

pub fn int(n: usize) -> i32 {
    i32::try_from(n).unwrap()
}

/// Where parts of these numbers of rows begin, and where the last ends.
fn offsets(start: usize, counts: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut offsets = vec![start];
    offsets.extend(counts.scan(start, |end, count| {
        *end += count;
        Some(*end)
    }));
    offsets
}

/// A host's problem in memory.
pub struct Laid<'a> {
    host: &'a Host,
    shape: ProblemShape,
    /// Before the rotary part, and that.
    q: [Rows; 2],
    q_indptr: Option<Vec<i32>>,
    kv: [Rows; 2],
    v: Option<Rows>,
    table: Option<Table>,
    kv_indptr: Option<Vec<i32>>,
    lens: Option<Vec<i32>>,
    mask: Vec<u64>,
}

impl Host {
    pub fn laid(&self, layout: Layout) -> Laid<'_> {
        let Layout {
            keys,
            spare,
            padding,
            ..
        } = layout;
        let ([h_q, h_kv], (d_qk, d_v)) = (self.heads, self.dims);
        let lens: Vec<usize> = self.requests.iter().map(|r| r.len).collect();
        let queries = self.requests.iter().map(|r| r.n);
        let shape = ProblemShape {
            b: lens.len(),
            s_q: queries.clone().max().unwrap_or(0).max(1),
            s_k: lens.iter().max().unwrap_or(&0) + spare,
            h_q,
            h_kv,
            d_qk,
            d_v,
        };
        let ints = |list: &[usize]| list.iter().copied().map(int).collect();

        let widths = |split| if split { [d_v, d_qk - d_v] } else { [d_qk, 0] };
        let mut q_indptr = None;
        let q = if layout.ragged_q || queries.clone().any(|n| n != shape.s_q) {
            let starts = offsets(0, queries);
            q_indptr = Some(ints(&starts));
            let dims = [1, starts[shape.b], h_q];
            let at = |r: usize, j| [0, starts[r] + j];
            self.lay(dims, widths(layout.split_q), padding, |r| &r.q, at)
        } else {
            let dims = [shape.b, shape.s_q, h_q];
            self.lay(
                dims,
                widths(layout.split_q),
                padding,
                |r| &r.q,
                |r, j| [r, j],
            )
        };

        // Spare rows before the first request's too.
        let starts = offsets(spare, lens.iter().map(|len| len + spare));
        let table = match keys {
            Keys::Paged(page_size) => Table::new(&lens, page_size),
            _ => Table::new(&[], 1),
        };
        let (dims, needs_lens) = match keys {
            Keys::Contiguous => (
                [shape.b, shape.s_k, h_kv],
                lens.iter().any(|&l| l != shape.s_k),
            ),
            Keys::Ragged => ([1, starts[shape.b], h_kv], spare > 0),
            Keys::Paged(size) => (
                [table.pages, size, h_kv],
                lens.iter().any(|&l| l != shape.s_k),
            ),
        };
        let at = |r: usize, k| match keys {
            Keys::Contiguous => [r, k],
            Keys::Ragged => [0, starts[r] + k],
            Keys::Paged(_) => table.at(r, k),
        };
        let kv = self.lay(dims, widths(layout.split_k), padding, |r| &r.k, at);
        let v = self.has_values().then(|| {
            let [v, _] = self.lay(dims, [d_v, 0], padding, |r| r.v.as_ref().unwrap(), at);
            v
        });
        Laid {
            host: self,
            shape,
            q,
            q_indptr,
            kv,
            v,
            lens: needs_lens.then(|| ints(&lens)),
            kv_indptr: matches!(keys, Keys::Ragged).then(|| ints(&starts)),
            table: matches!(keys, Keys::Paged(_)).then_some(table),
            mask: self
                .requests
                .iter()
                .flat_map(|r| &r.mask)
                .copied()
                .collect(),
        }
    }

    /// Puts each request's rows where they belong, in two parts.
    fn lay(
        &self,
        dims: [usize; 3],
        widths: [usize; 2],
        padding: usize,
        rows: impl Fn(&Request) -> &[bf16],
        at: impl Fn(usize, usize) -> [usize; 2],
    ) -> [Rows; 2] {
        let mut laid = widths.map(|width| Rows::new(dims, width, padding));
        for (r, request) in self.requests.iter().enumerate() {
            for (i, row) in rows(request).chunks(widths[0] + widths[1]).enumerate() {
                let [outer, token] = at(r, i / dims[2]);
                let (first, second) = row.split_at(widths[0]);
                for (rows, part) in laid.iter_mut().zip([first, second]) {
                    rows.row([outer, token, i % dims[2]]).copy_from_slice(part);
                }
            }
        }
        laid
    }
}

impl Laid<'_> {
    /// The number by which indices of chosen keys name a request's key.
    pub fn index(&self, r: usize, k: usize) -> i64 {
        let index = match &self.table {
            Some(table) => {
                let [page, row] = table.at(r, k);
                page * table.page_size + row
            }
            None => k,
        };
        i64::try_from(index).unwrap()
    }

    pub fn problem(&self) -> Problem<'_> {
        Problem {
            q: self.q[0].tensor(),
            q_rope: self.q[1].some(),
            q_indptr: self.q_indptr.as_deref(),
            kv: self.kv[0].tensor(),
            v_offset: self.host.v_offset,
            k_rope: self.kv[1].some(),
            v: self.v.as_ref().map(Rows::tensor),
            pages: self.table.as_ref().map(|table| table.from(0)),
            kv_indptr: self.kv_indptr.as_deref(),
            cache_seqlens: self.lens.as_deref(),
            causal: self.host.causal,
            window: self.host.window,
            tail_mask: self.host.tail.map(|tail| TailMask {
                words: &self.mask,
                tail,
            }),
            sink: self.host.sink.as_deref(),
            ..Problem::dense(self.shape, &[], &[], self.host.scale)
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Runs
// -------------------------------------------------------------------------------------------------

/// O and lse, bit for bit: `[tokens, h_q, d_v]` and `[tokens, h_q]`, whatever the layout.
pub type Bits = (Vec<u32>, Vec<u32>);

/// What an output holds before a call: a NaN that no call computes.
pub const PATTERN: f32 = f32::from_bits(0xffd0_1235);

pub fn bits(xs: &[f32]) -> Vec<u32> {
    xs.iter().map(|x| x.to_bits()).collect()
}

/// Whether a call left it alone.
pub fn untouched(xs: &[f32]) -> bool {
    xs.iter().all(|x| x.to_bits() == PATTERN.to_bits())
}

/// Rows of a problem's results.
pub fn rows(problem: &Problem) -> usize {
    let ProblemShape { b, s_q, h_q, .. } = problem.shape;
    let tokens = |indptr: &[i32]| usize::try_from(indptr[b]).unwrap();
    problem.q_indptr.map_or(b * s_q, tokens) * h_q
}

/// Token by token.
pub fn output<'a>(problem: &Problem, o: Elements<'a>, lse: &'a mut [f32]) -> Output<'a> {
    let ProblemShape { s_q, h_q, d_v, .. } = problem.shape;
    Output {
        o,
        o_strides: [s_q * h_q * d_v, h_q * d_v, d_v],
        lse: Some(lse),
        lse_strides: [s_q * h_q, 1, h_q],
        max_logits: None,
        lse_format: Lse::default(),
    }
}

fn written(problem: &Problem, call: impl FnOnce(Output) -> Result<(), Error>) -> Bits {
    let rows = rows(problem);
    let (mut o, mut lse) = (vec![PATTERN; rows * problem.shape.d_v], vec![PATTERN; rows]);
    call(output(problem, Elements::F32(&mut o), &mut lse)).unwrap();
    assert_one_nan(&o);
    assert_one_nan(&lse);
    (bits(&o), bits(&lse))
}

pub fn decoded(problem: &Problem, options: &Options) -> Bits {
    written(problem, |output| {
        used_workspace(|workspace| decode(problem, options, workspace, output))
    })
}

/// The same through tasks, the last one first.
pub fn combined(problem: &Problem, options: &Options) -> Bits {
    let plan = Plan::new(problem).unwrap();
    written(problem, |output| {
        run_plan(problem, options, &plan, (0..plan.tasks()).rev(), output)
    })
}

/// Golden of a problem, token by token.
pub fn golden(problem: &Problem) -> (Vec<f64>, Vec<f64>) {
    let ProblemShape {
        b, s_q, h_q, d_v, ..
    } = problem.shape;
    let rows = rows(problem);
    let (mut o, mut lse) = (vec![0.0; rows * d_v], vec![0.0; rows]);
    reference::golden(problem, &mut o, &mut lse).unwrap();
    let [b, s_q] = match problem.q_indptr {
        Some(_) => [1, rows / h_q],
        None => [b, s_q],
    };
    let tokens = (0..b).flat_map(|r| (0..s_q).map(move |j| [r, j]));
    let by_token = tokens.flat_map(|[r, j]| (0..h_q).map(move |h| (r * h_q + h) * s_q + j));
    let lse = by_token.map(|i| lse[i]).collect();
    (o, lse)
}

#[track_caller]
pub fn same(got: &Bits, want: &Bits, context: &dyn Debug) {
    assert_eq!(got.0.len(), want.0.len(), "{context:?}");
    // Not `assert_eq`, which would print all of them.
    assert!(got.0 == want.0, "O of {context:?}");
    assert!(got.1 == want.1, "lse of {context:?}");
}

/// One after the other.
pub fn joined(parts: impl Iterator<Item = Bits>) -> Bits {
    parts.fold(Bits::default(), |mut all, (o, lse)| {
        all.0.extend(o);
        all.1.extend(lse);
        all
    })
}

/// What differs first between two problems that don't have the same plan.
pub fn plan_mismatch(planned: &Problem, given: &Problem) -> Error {
    let sizes = |p: &Problem| {
        let s = p.shape;
        let sizes = [s.b, s.s_q, s.s_k, s.h_q, s.h_kv].map(Some);
        sizes.into_iter().chain([p.window])
    };
    let arguments = [
        Argument::B,
        Argument::SQ,
        Argument::SK,
        Argument::HQ,
        Argument::HKv,
        Argument::Window,
    ];
    let sizes = arguments.into_iter().zip(sizes(planned).zip(sizes(given)));
    let as_number = |size: usize| size as u64;
    for (argument, (planned, given)) in sizes {
        if planned != given {
            return Error::PlanMismatch {
                argument,
                planned: planned.map(as_number),
                given: given.map(as_number),
            };
        }
    }
    type List = fn(&Problem<'_>) -> Option<Vec<i32>>;
    let lists: [(Argument, List); 3] = [
        (Argument::QIndptr, |p| p.q_indptr.map(Vec::from)),
        (Argument::KvIndptr, |p| p.kv_indptr.map(Vec::from)),
        (Argument::CacheSeqlens, |p| p.cache_seqlens.map(Vec::from)),
    ];
    for (argument, list) in lists {
        let total = |list: Vec<i32>| match argument {
            Argument::CacheSeqlens => list.iter().map(|len| u64::from(len.unsigned_abs())).sum(),
            _ => u64::from(list[0].abs_diff(list[list.len() - 1])),
        };
        if list(planned) != list(given) {
            return Error::PlanMismatch {
                argument,
                planned: list(planned).map(total),
                given: list(given).map(total),
            };
        }
    }
    panic!("the same plan");
}
