//! Shapes of problems, and the FLOP and bytes that follow from them.

use amla::ProblemShape;
use half::bf16;

/// Context length of the roofline and of the table of 1 to 64 heads.
pub const CONTEXT: usize = 4096;

/// Columns of a row of the KV cache.
pub const D_QK: usize = 576;
const D_V: usize = 512;

/// A problem of DeepSeek-V3's widths.
pub const fn shape(b: usize, s_q: usize, s_k: usize, h_q: usize) -> ProblemShape {
    ProblemShape {
        b,
        s_q,
        s_k,
        h_q,
        h_kv: 1,
        d_qk: D_QK,
        d_v: D_V,
    }
}

/// Floating-point operations of a problem's two products, the paper's count.
pub const fn flop(shape: ProblemShape) -> f64 {
    let ProblemShape {
        b,
        s_q,
        s_k,
        h_q,
        d_qk,
        d_v,
        ..
    } = shape;
    2.0 * (b * h_q * s_q * s_k * (d_qk + d_v)) as f64
}

/// Bytes of the KV caches of a batch.
pub const fn cache_bytes(s_k: usize, b: usize) -> usize {
    b * s_k * D_QK * size_of::<bf16>()
}

/// Elements of the KV cache for each token: a latent row, whose first columns are the value, for one KV head; keys and
/// values for several.
pub fn cache_row(shape: &ProblemShape) -> usize {
    match shape.h_kv {
        1 => shape.d_qk,
        heads => heads * (shape.d_qk + shape.d_v),
    }
}

/// FLOP per byte of KV cache (the paper's subsec:arithmeticintensity): two FLOP per product, two bytes per element. The
/// paper's formula for separate keys and values lacks the number of KV heads, which its table has.
pub fn intensity(shape: &ProblemShape) -> f64 {
    let rows = shape.h_q * shape.s_q;
    (rows * (shape.d_qk + shape.d_v)) as f64 / cache_row(shape) as f64
}
