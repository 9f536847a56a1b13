//! Constants of the architecture, the same for every chip of the family.

/// FLOP of one Cube core in a cycle: 16 x 16 x 16 multiply-adds of BF16, the Da Vinci Cube's fractal.
pub const CUBE_FLOP_PER_CYCLE: f64 = 2.0 * 16.0 * 16.0 * 16.0;

/// Edge of the Cube's fractal, in elements: operands are padded to multiples of it.
pub const FRACTAL: usize = 16;

/// Vector cores beside each Cube core (the paper's 1:2 ratio, `subsec:computestage`).
pub const VECTOR_CORES: usize = 2;

/// Bytes of a BF16.
pub(crate) const BF16: usize = 2;
/// Bytes of an FP32.
pub(crate) const FP32: usize = 4;
/// Buffers of a double-buffered memory: L0A, L0B, L0C and UB's chunks.
pub(crate) const HALVES: usize = 2;
