//! The arguments of `decode` and `Plan`, and the problem that they are.

use amla::{
    Argument, Error, Extra, IndexList, Indices, Pages, Problem, ProblemShape, Sparse, Split,
    TailMask,
};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyResult};
use pyo3::types::{PyDict, PyString, PyStringMethods};

use crate::dtype::Dtype;
use crate::error::{refused, unknown, value};
use crate::options::{count, number, truth};
use crate::pool;
use crate::rows::{Format, RowTensor, View};
use crate::tensor::Tensor;

/// The arguments of a call but for its results.
pub struct Arguments<'py> {
    pub q: RowTensor<'py>,
    kv: RowTensor<'py>,
    v: Option<RowTensor<'py>>,
    q_rope: Option<RowTensor<'py>>,
    k_rope: Option<RowTensor<'py>>,
    head_dim_v: Option<usize>,
    value_offset: usize,
    softmax_scale: Option<f32>,
    causal: bool,
    window: Option<usize>,
    tail_mask: Option<Mask<'py>>,
    cache_seqlens: Option<Tensor<'py>>,
    block_table: Option<Tensor<'py>>,
    cu_seqlens_q: Option<Tensor<'py>>,
    cu_seqlens_k: Option<Tensor<'py>>,
    indices: Option<Tensor<'py>>,
    topk_length: Option<Tensor<'py>>,
    extra_k_cache: Option<RowTensor<'py>>,
    extra_indices: Option<Tensor<'py>>,
    extra_topk_length: Option<Tensor<'py>>,
    paged: Option<bool>,
    attn_sink: Option<Tensor<'py>>,
    split: Split,
    pub threads: Option<usize>,
}

/// A tail mask, and its bits.
struct Mask<'py> {
    tensor: Tensor<'py>,
    words: Vec<u64>,
}

/// Sets an argument of some name, if it is known.
pub type Set<'a, 'py> = &'a mut dyn FnMut(&str, Option<&Bound<'py, PyAny>>) -> PyResult<bool>;

impl<'py> Arguments<'py> {
    /// Reads the arguments of a function. `other` has more of them.
    pub fn read(
        function: &str,
        q: &Bound<'py, PyAny>,
        kv: &Bound<'py, PyAny>,
        named: Option<&Bound<'py, PyDict>>,
        other: Set<'_, 'py>,
    ) -> PyResult<Self> {
        let mut arguments = Self {
            q: RowTensor::read("q", q)?,
            kv: RowTensor::read("kv", kv)?,
            v: None,
            q_rope: None,
            k_rope: None,
            head_dim_v: None,
            value_offset: 0,
            softmax_scale: None,
            causal: false,
            window: None,
            tail_mask: None,
            cache_seqlens: None,
            block_table: None,
            cu_seqlens_q: None,
            cu_seqlens_k: None,
            indices: None,
            topk_length: None,
            extra_k_cache: None,
            extra_indices: None,
            extra_topk_length: None,
            paged: None,
            attn_sink: None,
            split: Split::ByLength,
            threads: None,
        };
        for (name, argument) in named.into_iter().flatten() {
            let name = name.cast::<PyString>()?.to_cow()?;
            // None is an argument that isn't given.
            let argument = Some(&argument).filter(|argument| !argument.is_none());
            if !arguments.set(&name, argument)? && !other(&name, argument)? {
                return Err(unknown(function, &name));
            }
        }
        Ok(arguments)
    }

    /// Sets an argument, if it is one of these.
    fn set(&mut self, name: &str, argument: Option<&Bound<'py, PyAny>>) -> PyResult<bool> {
        let rows = |name| argument.map(|rows| RowTensor::read(name, rows)).transpose();
        let tensor = |name| {
            argument
                .map(|tensor| Tensor::read(name, tensor))
                .transpose()
        };
        match name {
            "v" => self.v = rows("v")?,
            "q_rope" => self.q_rope = rows("q_rope")?,
            "k_rope" => self.k_rope = rows("k_rope")?,
            "head_dim_v" => self.head_dim_v = count(name, argument)?,
            "value_offset" => self.value_offset = count(name, argument)?.unwrap_or(0),
            "softmax_scale" => self.softmax_scale = number(name, argument)?,
            "causal" => self.causal = truth(name, argument)?.unwrap_or(false),
            "window" => self.window = count(name, argument)?,
            "tail_mask" => self.tail_mask = argument.map(Mask::read).transpose()?,
            "cache_seqlens" => self.cache_seqlens = tensor("cache_seqlens")?,
            "block_table" => self.block_table = tensor("block_table")?,
            "cu_seqlens_q" => self.cu_seqlens_q = tensor("cu_seqlens_q")?,
            "cu_seqlens_k" => self.cu_seqlens_k = tensor("cu_seqlens_k")?,
            "indices" => self.indices = tensor("indices")?,
            "topk_length" => self.topk_length = tensor("topk_length")?,
            "extra_k_cache" => self.extra_k_cache = rows("extra_k_cache")?,
            "extra_indices_in_kvcache" => {
                self.extra_indices = tensor("extra_indices_in_kvcache")?;
            }
            "extra_topk_length" => self.extra_topk_length = tensor("extra_topk_length")?,
            "paged" => self.paged = truth(name, argument)?,
            "attn_sink" => self.attn_sink = tensor("attn_sink")?,
            "split_keys" => {
                self.split = count(name, argument)?.map_or(Split::ByLength, Split::Every);
            }
            "threads" => {
                self.threads = count(name, argument)?.map(pool::check).transpose()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// All tensors that are read.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor<'py>> + Clone {
        let rows = [
            Some(&self.q),
            Some(&self.kv),
            self.v.as_ref(),
            self.q_rope.as_ref(),
            self.k_rope.as_ref(),
            self.extra_k_cache.as_ref(),
        ];
        let lists = [
            &self.cache_seqlens,
            &self.block_table,
            &self.cu_seqlens_q,
            &self.cu_seqlens_k,
            &self.indices,
            &self.topk_length,
            &self.extra_indices,
            &self.extra_topk_length,
            &self.attn_sink,
        ];
        let rows = rows.into_iter().flatten().flat_map(RowTensor::tensors);
        rows.chain(lists.into_iter().flatten())
    }

    /// The dimensions of queries before their heads. There are as many as a view says.
    pub fn positions(&self) -> &[usize] {
        let dims = self.q.tensor.dims();
        &dims[..dims.len().saturating_sub(2)]
    }

    /// The problem. What else may be wrong with it, the library finds.
    pub fn problem(&self) -> PyResult<Problem<'_>> {
        let ragged = [&self.cu_seqlens_q, &self.cu_seqlens_k].map(Option::is_some);
        let (q, kv) = (self.q.view(ragged[0])?, self.kv.view(ragged[1])?);
        let v = view_of(&self.v, ragged[1])?;
        let ropes = [
            view_of(&self.q_rope, ragged[0])?,
            view_of(&self.k_rope, ragged[1])?,
        ];
        let q_indptr = self.cu_seqlens_q.as_ref().map(list).transpose()?;
        let kv_indptr = self.cu_seqlens_k.as_ref().map(list).transpose()?;
        let (b, s_q) = match (q_indptr, kv_indptr) {
            (Some(indptr), _) => (indptr.len().saturating_sub(1), longest(indptr)),
            (None, _) => (q.dims[0], q.dims[1]),
        };
        let pages = self.pages(&kv, b)?;
        let s_k = match (&pages, kv_indptr) {
            (Some(pages), _) if self.indices.is_some() => pages.pages.saturating_mul(kv.dims[1]),
            (Some(pages), _) => pages.max_blocks.saturating_mul(kv.dims[1]),
            (None, Some(indptr)) => longest(indptr),
            (None, None) => {
                same(Argument::Kv, &kv, 0, b)?;
                kv.dims[1]
            }
        };
        let widths = [q, kv].map(|view| view.dims[3]);
        let d_qk = widths[0] + ropes[0].map_or(0, |rope| rope.dims[3]);
        let d_v = match (self.head_dim_v, &v, &ropes[1]) {
            (Some(d_v), ..) => d_v,
            (None, Some(v), _) => v.dims[3],
            (None, None, Some(_)) => widths[1],
            (None, None, None) if self.kv.format == Format::Model1 => widths[1],
            // The rotary part of DeepSeek's models.
            (None, None, None) => d_qk.saturating_sub(64),
        };
        check_widths(&q, &kv, v.as_ref(), &ropes, [d_qk, d_v])?;
        let shape = ProblemShape {
            b,
            s_q,
            s_k: s_k.min(i32::MAX as usize),
            h_q: q.dims[2],
            h_kv: kv.dims[2],
            d_qk,
            d_v,
        };
        let scale = self.softmax_scale.unwrap_or_else(|| default_scale(d_qk));
        let mut problem = Problem {
            q: q.tensor,
            q_rope: ropes[0].map(|rope| rope.tensor),
            q_indptr,
            kv: kv.tensor,
            v_offset: self.value_offset,
            k_rope: ropes[1].map(|rope| rope.tensor),
            v: v.map(|v| v.tensor),
            pages,
            kv_indptr,
            causal: self.causal,
            window: self.window,
            split: self.split,
            ..Problem::dense(shape, &[], &[], scale)
        };
        let positions = self.positions();
        if let Some(lengths) = &self.cache_seqlens {
            lengths.expect_dims(&[b])?;
            problem.cache_seqlens = Some(int32(lengths)?);
            problem.cache_seqlens_stride = lengths.strides()[0];
        }
        if let Some(mask) = &self.tail_mask {
            problem.tail_mask = Some(mask.of(positions)?);
        }
        if let Some(sink) = &self.attn_sink {
            sink.expect_dtype(&[Dtype::F32])?;
            sink.expect_dims(&[shape.h_q])?;
            sink.expect_contiguous()?;
            problem.sink = Some(sink.elements()?);
        }
        problem.sparse = self.sparse(positions, &kv)?;
        Ok(problem)
    }

    /// The pages of the cache, if it has any.
    fn pages(&self, kv: &View<'_>, b: usize) -> PyResult<Option<Pages<'_>>> {
        let named = self.block_table.is_some() || self.indices.is_some();
        let paged = self.paged.unwrap_or(named && self.cu_seqlens_k.is_none());
        if !paged {
            // Both would be left out in silence.
            return match &self.block_table {
                Some(_) => Err(value(
                    "block_table and a cache without pages can't be combined",
                )),
                None => Ok(None),
            };
        }
        if !named {
            return Err(value("a paged cache needs block_table or indices"));
        }
        if self.cu_seqlens_k.is_some() {
            return Err(value("cu_seqlens_k and paged can't be combined"));
        }
        let mut pages = Pages {
            block_table: &[],
            max_blocks: 0,
            stride: 0,
            page_size: kv.dims[1],
            pages: kv.dims[0],
        };
        if let (Some(table), None) = (&self.block_table, &self.indices) {
            table.expect_ndim(&[2])?;
            table.expect_rows()?;
            pages.block_table = int32(table)?;
            pages.max_blocks = table.dims()[1];
            pages.stride = table.strides()[0];
            table.expect_dims(&[b, pages.max_blocks])?;
        }
        Ok(Some(pages))
    }

    /// The keys of sparse attention. `positions` are the dimensions of queries before their heads.
    fn sparse(&self, positions: &[usize], kv: &View<'_>) -> PyResult<Option<Sparse<'_>>> {
        let h_kv = kv.dims[2];
        let extra = match (&self.extra_k_cache, &self.extra_indices) {
            (Some(cache), Some(indices)) => {
                let view = cache.view(false)?;
                same(Argument::ExtraKv, &view, 2, h_kv)?;
                same(Argument::ExtraKv, &view, 3, kv.dims[3])?;
                Some(Extra {
                    kv: view.tensor,
                    pages: view.dims[0],
                    page_size: view.dims[1],
                    indices: indices_of(indices, &self.extra_topk_length, positions, h_kv)?,
                })
            }
            (None, None) => None,
            _ => {
                return Err(value(
                    "extra_k_cache and extra_indices_in_kvcache need each other",
                ));
            }
        };
        let Some(indices) = &self.indices else {
            return match extra {
                Some(_) => Err(value("extra_k_cache needs indices")),
                None => Ok(None),
            };
        };
        Ok(Some(Sparse {
            indices: indices_of(indices, &self.topk_length, positions, h_kv)?,
            extra,
        }))
    }
}

/// A view of an optional argument.
fn view_of<'a>(rows: &'a Option<RowTensor<'_>>, ragged: bool) -> PyResult<Option<View<'a>>> {
    rows.as_ref().map(|rows| rows.view(ragged)).transpose()
}

/// Widths and dimensions that tensors of rows must have in common.
fn check_widths(
    q: &View<'_>,
    kv: &View<'_>,
    v: Option<&View<'_>>,
    ropes: &[Option<View<'_>>; 2],
    [d_qk, d_v]: [usize; 2],
) -> PyResult<()> {
    let split = [q, kv].into_iter().zip(ropes);
    for ((main, rope), [argument, rope_argument]) in split.zip([
        [Argument::Q, Argument::QRope],
        [Argument::Kv, Argument::KRope],
    ]) {
        match rope {
            Some(rope) => {
                same(argument, main, 3, d_v)?;
                alike(rope_argument, rope, main)?;
                same(rope_argument, rope, 3, d_qk.saturating_sub(d_v))?;
            }
            None => same(argument, main, 3, d_qk)?,
        }
    }
    if let Some(v) = v {
        alike(Argument::V, v, kv)?;
        same(Argument::V, v, 3, d_v)?;
    }
    Ok(())
}

/// Refuses other dimensions than those of another tensor, but for the last.
fn alike(argument: Argument, view: &View<'_>, other: &View<'_>) -> PyResult<()> {
    (0..3).try_for_each(|i| same(argument, view, i, other.dims[i]))
}

/// Refuses a dimension that isn't what it must be.
fn same(argument: Argument, view: &View<'_>, dimension: usize, needed: usize) -> PyResult<()> {
    if view.dims[dimension] == needed {
        return Ok(());
    }
    Err(refused(Error::Dimension {
        argument,
        dimension: dimension - view.missing,
        value: view.dims[dimension],
        needed,
    }))
}

/// Indices and their numbers, with strides over requests, positions and heads.
fn indices_of<'a>(
    indices: &'a Tensor<'_>,
    lengths: &'a Option<Tensor<'_>>,
    positions: &[usize],
    h_kv: usize,
) -> PyResult<Indices<'a>> {
    let n = positions.len();
    indices.expect_dtype(&[Dtype::I32, Dtype::I64])?;
    indices.expect_ndim(&[n + 1, n + 2])?;
    indices.expect_rows()?;
    let topk = indices.dims()[indices.dims().len() - 1];
    let for_heads = indices.dims().len() == n + 2;
    let mut dims = positions.to_vec();
    dims.extend(for_heads.then_some(h_kv));
    dims.push(topk);
    indices.expect_dims(&dims)?;
    let mut strides = [0; 3];
    strides[2 - n..2].copy_from_slice(&indices.strides()[..n]);
    if for_heads {
        strides[2] = indices.strides()[n];
    }
    let mut topk_length_strides = [0; 2];
    if let Some(lengths) = lengths {
        let own = lengths.dims().len();
        // A number for each request, unless tokens are ragged.
        lengths.expect_ndim(if n == 1 { &[1] } else { &[1, 2] })?;
        lengths.expect_dims(&positions[..own])?;
        topk_length_strides[2 - n..][..own].copy_from_slice(lengths.strides());
    }
    Ok(Indices {
        indices: match indices.dtype {
            Dtype::I64 => IndexList::I64(indices.elements()?),
            _ => IndexList::I32(indices.elements()?),
        },
        strides,
        topk,
        topk_length: lengths.as_ref().map(int32).transpose()?,
        topk_length_strides,
    })
}

impl<'py> Mask<'py> {
    fn read(argument: &Bound<'py, PyAny>) -> PyResult<Self> {
        let tensor = Tensor::read("tail_mask", argument)?;
        tensor.expect_dtype(&[Dtype::Bool, Dtype::U8])?;
        tensor.expect_ndim(&[2, 3])?;
        tensor.expect_contiguous()?;
        let tail = tensor.dims()[tensor.dims().len() - 1];
        let mut words = Vec::new();
        for row in tensor.elements::<u8>()?.chunks(tail.max(1)) {
            let bits = |bits: &[u8]| {
                let bits = bits.iter().enumerate();
                bits.fold(0, |word, (i, &bit)| word | u64::from(bit != 0) << i)
            };
            words.extend(row.chunks(64).map(bits));
        }
        Ok(Self { tensor, words })
    }

    fn of(&self, positions: &[usize]) -> PyResult<TailMask<'_>> {
        let mut dims = positions.to_vec();
        let tail = self.tensor.dims()[self.tensor.dims().len() - 1];
        dims.push(tail);
        self.tensor.expect_dims(&dims)?;
        Ok(TailMask {
            words: &self.words,
            tail,
        })
    }
}

/// A contiguous list of int32.
fn list<'a>(tensor: &'a Tensor<'_>) -> PyResult<&'a [i32]> {
    tensor.expect_ndim(&[1])?;
    tensor.expect_contiguous()?;
    int32(tensor)
}

fn int32<'a>(tensor: &'a Tensor<'_>) -> PyResult<&'a [i32]> {
    tensor.expect_dtype(&[Dtype::I32])?;
    tensor.elements()
}

/// The longest of a list's requests.
fn longest(indptr: &[i32]) -> usize {
    let lengths = indptr
        .windows(2)
        .map(|ends| ends[1].saturating_sub(ends[0]));
    usize::try_from(lengths.max().unwrap_or_default()).unwrap_or_default()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "rounds to FP32"
)]
fn default_scale(d_qk: usize) -> f32 {
    (d_qk.max(1) as f64).sqrt().recip() as f32
}
