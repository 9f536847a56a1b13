//! What the backends with AVX-512 share: vectors, packing, conversion, references of 16 rows at once, and the operands and
//! prefetches of fused kernels.

pub mod convert;
pub mod dots;
pub mod follow;
pub mod fused_rows;
#[cfg_attr(amla_tiles = "small", allow(dead_code, reason = "AMX has no small tiles"))]
mod pack;
mod vectors;

pub use convert::convert_row;
#[cfg_attr(amla_tiles = "small", allow(unused_imports, reason = "AMX has no small tiles"))]
pub use pack::{
    Interleaved, interleave_indices, load_row, pack_q, store_pairs, transpose, transpose_q,
};
pub use vectors::{LANES, NOT_FINITE, Zmm};
