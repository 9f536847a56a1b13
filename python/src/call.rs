//! `decode`.

use amla::{Elements, Lse, Options, Output, Plan, Problem};
use half::{bf16, f16};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyResult, Python, pyfunction};
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};

use crate::arguments::Arguments;
use crate::dtype::Dtype;
use crate::error::{kind, refused, value};
use crate::options::{set_lse, set_option};
use crate::output::{self, Wanted};
use crate::plan;
use crate::pool;
use crate::rows::Format;
use crate::tensor::{Tensor, check_overlaps};

/// Widths of values at most: those of wrong sizes are refused before memory is allocated.
const MAX_D_V: usize = amla::SUPPORTED_DIMS[0].1;

/// The arguments of `decode` alone.
#[derive(Default)]
struct Results<'py> {
    options: Options,
    out: Option<Bound<'py, PyAny>>,
    lse: Option<Bound<'py, PyAny>>,
    max_logits: Option<Bound<'py, PyAny>>,
    out_dtype: Option<Dtype>,
    format: Lse,
    plan: Option<Bound<'py, plan::Plan>>,
}

impl<'py> Results<'py> {
    /// Sets an argument, if it is one of these.
    fn set(&mut self, name: &str, argument: Option<&Bound<'py, PyAny>>) -> PyResult<bool> {
        match name {
            "out" => self.out = argument.cloned(),
            "lse" => self.lse = argument.cloned(),
            "max_logits" => self.max_logits = argument.filter(|wanted| !is(wanted, false)).cloned(),
            "out_dtype" => self.out_dtype = argument.map(out_dtype).transpose()?,
            "plan" => {
                let plan = argument.map(|plan| plan.cast::<plan::Plan>().cloned());
                self.plan = plan.transpose().map_err(|_| kind("plan is no amla.Plan"))?;
            }
            _ => {
                return Ok(set_lse(&mut self.format, name, argument)?
                    || set_option(&mut self.options, name, argument)?);
            }
        }
        Ok(true)
    }
}

/// O and lse of `O = softmax(softmax_scale * Q K^T) V`.
///
/// Tensors:
///   q: `[b, s_q, h_q, d_qk]`; `[tokens, h_q, d_qk]` with `cu_seqlens_q`.
///   kv: keys, `[b, s_k, h_kv, d_qk]`; `[pages, page_size, h_kv, d_qk]` if paged; `[tokens, h_kv, d_qk]` with `cu_seqlens_k`.
///     Unless there is `v`, `head_dim_v` columns from `value_offset` on are the values: an MLA cache.
///   v: values apart, with the dimensions of kv but for the width.
///   q_rope, k_rope: the rotary parts, if they are tensors of their own. q and kv are then without them.
///   They have BF16 (`bfloat16`, `uint16`), FP16 or FP32 numbers, or rows in a format of `Rows`.
/// Sizes:
///   head_dim_v: the width of v; with `k_rope` that of kv; otherwise d_qk - 64, and 512 for MODEL1 pages.
///   softmax_scale: `d_qk ** -0.5`.
/// Hidden keys:
///   causal: query j of n sees the first `len - (n - 1 - j)` keys of its request.
///   window: how many keys a query sees, up to and with its own.
///   tail_mask: bool, `[b, s_q, tail]`, `[tokens, tail]` with `cu_seqlens_q`: which of the last `tail` keys each query sees.
///   cache_seqlens: int32, `[b]`, the keys of each request.
/// Where keys are:
///   block_table: int32, `[b, max_blocks]`, the pages of each request.
///   cu_seqlens_q, cu_seqlens_k: int32, `[b + 1]`, where each request's tokens begin.
/// Sparse attention:
///   indices: int32 or int64, `[b, s_q, topk]` or `[b, s_q, h_kv, topk]`; `[tokens, topk]` or `[tokens, h_kv, topk]` with
///     `cu_seqlens_q`. `page * page_size + key`, or with `paged=False` or `cu_seqlens_k` the key's number within its request.
///     Negative ones and those beyond the cache are skipped.
///   topk_length: int32, `[b]` or `[b, s_q]`, `[tokens]` with `cu_seqlens_q`: how many of the indices count.
///   extra_k_cache, extra_indices_in_kvcache, extra_topk_length: a second cache in pages.
///   paged: whether kv has pages; by default with `block_table` or `indices`, unless there is `cu_seqlens_k`.
///   attn_sink: float32, `[h_q]`, the logarithm of another term of each head's sum.
/// How it is computed:
///   split_keys: after how many keys they are cut, a multiple of 32; results depend on it. By default by their number.
///   precision: of probabilities, "bf16" or pairs, "bf16x2". FP32 backends don't round them.
///   inputs: whether FP16, FP32 and blocks may be rounded to BF16: "as_given" or "bf16".
///   rescale: "exact" or "compensated", the paper's.
///   backend: a name of `backends()`; by default `backend()`.
///   plan: a `Plan` of the same sizes and lengths.
///   threads: by default `get_num_threads()`; with a plan the plan's.
/// Results, as torch tensors if q is one, otherwise as numpy arrays:
///   out: `[b, s_q, h_q, head_dim_v]`; `[tokens, h_q, head_dim_v]` with `cu_seqlens_q`. It has the dtype of q, FP32 for blocks and
///     bytes, or `out_dtype`.
///   lse: float32, `[b, h_q, s_q]`; `[h_q, tokens]` with `cu_seqlens_q`. To base `lse_base`; `empty_lse`, infinity or minus
///     infinity, where a query sees no key.
///   max_logits: with `max_logits=True` or a tensor for it: each row's largest score, float32, as lse. Strides are those of lse.
/// Tensors given for results are returned as such. Tokens of no request have results of 0 in new tensors, and none in given ones.
#[pyfunction]
#[pyo3(
    signature = (q, kv, **named),
    // 1e999 is infinity.
    text_signature = "(q, kv, *, v=None, q_rope=None, k_rope=None, head_dim_v=None, value_offset=0, softmax_scale=None, \
        causal=False, window=None, tail_mask=None, cache_seqlens=None, block_table=None, \
        cu_seqlens_q=None, cu_seqlens_k=None, indices=None, topk_length=None, extra_k_cache=None, \
        extra_indices_in_kvcache=None, extra_topk_length=None, paged=None, attn_sink=None, \
        split_keys=None, precision=\"bf16\", inputs=\"as_given\", rescale=\"exact\", backend=None, \
        out=None, lse=None, max_logits=None, out_dtype=None, lse_base=\"e\", empty_lse=1e999, \
        plan=None, threads=None)"
)]
pub fn decode<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    kv: &Bound<'py, PyAny>,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let mut results = Results::default();
    let mut set = |name: &str, argument: Option<&Bound<'py, PyAny>>| results.set(name, argument);
    let arguments = Arguments::read("decode", q, kv, named, &mut set)?;
    let problem = arguments.problem()?;
    let tensors = Tensors::new(py, &arguments, &problem, &results)?;
    check_overlaps(arguments.tensors(), &tensors.all())?;
    let plan = results.plan.as_ref().map(|plan| plan.get());
    let threads = arguments.threads.or(plan.map(|plan| plan.threads));
    let pool = pool::of(threads.unwrap_or_else(pool::default))?;
    let plan: Option<&Plan> = plan.map(|plan| &plan.plan);
    // SAFETY: overlaps were refused above.
    let output = unsafe { tensors.output(results.format) }?;
    pool.decode(py, &problem, &results.options, plan, output)?;
    let objects = tensors.all().into_iter().map(|tensor| &tensor.object);
    PyTuple::new(py, objects)
}

/// Where results go.
struct Tensors<'py> {
    o: Tensor<'py>,
    lse: Tensor<'py>,
    max_logits: Option<Tensor<'py>>,
}

impl<'py> Tensors<'py> {
    fn new(
        py: Python<'py>,
        arguments: &Arguments<'py>,
        problem: &Problem<'_>,
        results: &Results<'py>,
    ) -> PyResult<Self> {
        let shape = &problem.shape;
        if shape.d_v > MAX_D_V {
            Plan::for_threads(problem, 1).map_err(refused)?;
        }
        let q = &arguments.q;
        let framework = q.tensor.framework;
        let dtype = match (results.out_dtype, q.format) {
            (Some(dtype), _) => dtype,
            (None, Format::Bf16 | Format::F16 | Format::F32) => q.tensor.dtype,
            (None, _) => Dtype::F32,
        };
        let positions = arguments.positions();
        let heads = [shape.h_q, shape.d_v];
        let o_dims: Vec<_> = positions.iter().copied().chain(heads).collect();
        let mut lse_dims = positions.to_vec();
        lse_dims.insert(positions.len() - 1, shape.h_q);
        // Tokens of no request have no results.
        let zeros = problem.q_indptr.is_some_and(|indptr| {
            let ends = indptr.first().zip(indptr.last());
            ends.is_none_or(|(first, last)| {
                *first != 0 || usize::try_from(*last).ok() != Some(positions[0])
            })
        });
        let new = |name, given: Option<&Bound<'py, PyAny>>, dtype, dims: &[usize]| {
            let wanted = Wanted {
                name,
                like: framework,
                dtype,
                zeros,
            };
            output::given_or_new(given, py, &wanted, dims)
        };
        let o = new("out", results.out.as_ref(), dtype, &o_dims)?;
        o.expect_rows()?;
        o.expect_dtype(OUT)?;
        if results.out.is_some() && results.out_dtype.is_some() {
            o.expect_dtype(&[dtype])?;
        }
        let rows = |name, given: Option<&Bound<'py, PyAny>>| {
            let rows = new(name, given, Dtype::F32, &lse_dims)?;
            rows.expect_dtype(&[Dtype::F32])?;
            PyResult::Ok(rows)
        };
        let lse = rows("lse", results.lse.as_ref())?;
        let wanted = results.max_logits.as_ref();
        let given = wanted.filter(|wanted| !is(wanted, true));
        let max_logits = wanted.map(|_| rows("max_logits", given)).transpose()?;
        if let Some(max_logits) = &max_logits
            && max_logits.strides() != lse.strides()
        {
            return Err(value("max_logits doesn't have the strides of lse"));
        }
        Ok(Self { o, lse, max_logits })
    }

    fn all(&self) -> Vec<&Tensor<'py>> {
        let mut all = vec![&self.o, &self.lse];
        all.extend(&self.max_logits);
        all
    }

    /// Their memory, to be written.
    ///
    /// # Safety
    /// `check_overlaps` let them pass with everything that the call reads. It is called once.
    unsafe fn output(&self, lse_format: Lse) -> PyResult<Output<'_>> {
        // Behind ragged tensors' first dimension, which the library ignores.
        let behind = |strides: &[usize]| {
            let mut all = [0; 3];
            all[3 - strides.len()..].copy_from_slice(strides);
            all
        };
        let strides = self.o.strides();
        // SAFETY: they overlap nothing, by this function's contract.
        unsafe {
            Ok(Output {
                o: match self.o.dtype {
                    Dtype::F32 => Elements::F32(self.o.elements_mut::<f32>()?),
                    Dtype::F16 => Elements::F16(self.o.elements_mut::<f16>()?),
                    _ => Elements::Bf16(self.o.elements_mut::<bf16>()?),
                },
                o_strides: behind(&strides[..strides.len() - 1]),
                lse: Some(self.lse.elements_mut()?),
                lse_strides: behind(self.lse.strides()),
                max_logits: match &self.max_logits {
                    Some(max_logits) => Some(max_logits.elements_mut()?),
                    None => None,
                },
                lse_format,
            })
        }
    }
}

/// Whether it is a bool of this value.
fn is(object: &Bound<'_, PyAny>, value: bool) -> bool {
    object.is(PyBool::new(object.py(), value))
}

/// Dtypes of O.
const OUT: &[Dtype] = &[Dtype::Bf16, Dtype::U16, Dtype::F16, Dtype::F32];

/// A dtype of torch's or numpy's, or its name.
fn out_dtype(argument: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    // numpy's scalar types have a name; its dtypes and torch's are written as one.
    let name = match argument.getattr("__name__") {
        Ok(name) => name,
        Err(_) => argument.str()?.into_any(),
    };
    let name = name.cast::<PyString>()?.to_string();
    let dtype = Dtype::from_name(&name).filter(|dtype| OUT.contains(dtype));
    dtype.ok_or_else(|| kind(format!("out_dtype is {name}, not {}", Dtype::names(OUT))))
}
