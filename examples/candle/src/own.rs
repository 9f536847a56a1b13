//! The same in candle's own operators.

use candle_core::{D, DType, Result, Tensor};
use candle_nn::ops::softmax_last_dim;

use crate::{D_V, PagedMla};

/// A request's rows of the cache, in FP32: `[keys, 576]`. Candle multiplies no BF16 on CPUs.
///
/// # Errors
/// A page isn't in the cache.
pub fn gather(op: &PagedMla, cache: &Tensor, request: usize) -> Result<Tensor> {
    let page_size = cache.dim(1)?;
    let max_blocks = op.block_table.len() / op.lengths.len();
    let keys = op.lengths[request] as usize;
    let pages = &op.block_table[request * max_blocks..][..keys.div_ceil(page_size)];
    let pages: Vec<u32> = pages.iter().map(|&page| page as u32).collect();
    let pages = Tensor::new(pages, cache.device())?;
    let rows = cache.index_select(&pages, 0)?.flatten_to(1)?;
    rows.narrow(0, 0, keys)?.to_dtype(DType::F32)
}

/// One request over its rows: `[s_q, h_q, 512]` of queries `[s_q, h_q, 576]`.
///
/// # Errors
/// The shapes don't fit.
pub fn attend(op: &PagedMla, q: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let (s_q, h_q, d_qk) = q.dims3()?;
    let keys = rows.dim(0)?;
    let q = q.to_dtype(DType::F32)?.contiguous()?;
    let q = (q * f64::from(op.softmax_scale))?.reshape((s_q * h_q, d_qk))?;
    let scores = q.matmul(&rows.t()?)?.reshape((s_q, h_q, keys))?;
    let p = softmax_last_dim(&scores.broadcast_add(&mask(s_q, keys, q.device())?)?)?;
    let values = rows.narrow(D::Minus1, 0, D_V)?.contiguous()?;
    let o = p.reshape((s_q * h_q, keys))?.matmul(&values)?;
    o.reshape((s_q, h_q, D_V))
}

/// 0 for keys that a position sees, -inf for later ones: `[s_q, 1, keys]`.
fn mask(s_q: usize, keys: usize, device: &candle_core::Device) -> Result<Tensor> {
    let hidden = |j: usize, key: usize| key + s_q > keys + j;
    let of = |hidden| if hidden { f32::NEG_INFINITY } else { 0.0 };
    let mask = (0..s_q).flat_map(|j| (0..keys).map(move |key| of(hidden(j, key))));
    Tensor::from_vec(mask.collect(), (s_q, 1, keys), device)
}

/// All requests, from the pages: `[b, s_q, h_q, 512]`.
///
/// # Errors
/// The shapes don't fit.
pub fn forward(op: &PagedMla, q: &Tensor, cache: &Tensor) -> Result<Tensor> {
    let requests = 0..q.dim(0)?;
    let o = requests.map(|request| attend(op, &q.get(request)?, &gather(op, cache, request)?));
    Tensor::stack(&o.collect::<Result<Vec<_>>>()?, 0)
}

/// `||a - b|| / ||b||`.
///
/// # Errors
/// The shapes differ.
pub fn relative_error(a: &Tensor, b: &Tensor) -> Result<f64> {
    let norm = |x: &Tensor| x.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>();
    Ok((norm(&(a - b)?)? / norm(b)?).sqrt())
}
