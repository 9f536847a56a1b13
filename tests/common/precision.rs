//! How far results may be from the reference: one table for every stage and backend. Where a backend
//! needs another bound than the rest, the table says why; an exception that nothing needs any
//! more fails ([`check`]).

/// What is measured, by its largest error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// C1: relative to the sum of the products' magnitudes.
    Scores,
    /// V1: P relative to itself.
    Probabilities,
    /// V1: the sums of P, relative to themselves.
    Sums,
    /// C2: relative to the sum of the products' magnitudes.
    Products,
    /// O of a whole call: relative Frobenius error.
    Decode,
}

use Stage::{Decode, Probabilities, Products, Scores, Sums};

struct Bound {
    stage: Stage,
    /// The way to compute it, by [`Precision`](amla::Precision) and, for whole calls,
    /// [`Rescale`](amla::Rescale); every way if empty.
    mode: &'static str,
    /// All but those with an exception if empty.
    backend: &'static str,
    error: f64,
}

const fn bound(stage: Stage, mode: &'static str, backend: &'static str, error: f64) -> Bound {
    Bound {
        stage,
        mode,
        backend,
        error,
    }
}

/// Measured (x86-64, and AArch64 under qemu), and about a third more.
const TABLE: &[Bound] = &[
    // FP32: 96 roundings of a chunk and six of the chunks, of either sign.
    bound(Scores, "", "", 3e-7),
    // The rounding of an exponent of up to 64, twice without fused multiply-adds, and the
    // polynomial.
    bound(Probabilities, "", "", 8e-6),
    // P rounded to BF16, or to two of them.
    bound(Probabilities, "bf16", "avx512bf16", 3.92e-3),
    bound(Probabilities, "bf16", "amx", 3.92e-3),
    bound(Probabilities, "bf16", "neonbf16", 3.92e-3),
    bound(Probabilities, "bf16x2", "avx512bf16", 1.3e-5),
    bound(Probabilities, "bf16x2", "amx", 1.3e-5),
    bound(Probabilities, "bf16x2", "neonbf16", 1.3e-5),
    bound(Sums, "", "", 2.5e-7),
    // P's halves are added one after the other, and the sum is weighed.
    bound(Sums, "bf16", "neonbf16", 3.8e-7),
    bound(Products, "", "", 3e-7),
    // P's halves are added one after the other: twice the roundings.
    bound(Products, "bf16x2", "avx512bf16", 4.5e-7),
    bound(Products, "bf16x2", "neonbf16", 6e-7),
    // What rounds in FP32 alone; the compensation is BF16's (`bits::compensation`).
    bound(Decode, "compensated bf16", "", 4e-4),
    bound(Decode, "", "", 7e-7),
    // As for P.
    bound(Decode, "exact bf16", "avx512bf16", 2e-3),
    bound(Decode, "exact bf16", "amx", 2e-3),
    bound(Decode, "exact bf16", "neonbf16", 2e-3),
    bound(Decode, "compensated bf16", "avx512bf16", 2e-3),
    bound(Decode, "compensated bf16", "amx", 2e-3),
    bound(Decode, "compensated bf16", "neonbf16", 2e-3),
    bound(Decode, "exact bf16x2", "avx512bf16", 4e-6),
    bound(Decode, "exact bf16x2", "amx", 4e-6),
    bound(Decode, "exact bf16x2", "neonbf16", 4e-6),
    bound(Decode, "compensated bf16x2", "avx512bf16", 4e-6),
    bound(Decode, "compensated bf16x2", "amx", 4e-6),
    bound(Decode, "compensated bf16x2", "neonbf16", 4e-6),
];

/// Holds the largest error that was seen against the table.
#[track_caller]
pub fn check(stage: Stage, mode: &str, backend: &str, worst: f64) {
    let find = |backend: &str| {
        let fits = |b: &&Bound| {
            b.stage == stage && b.backend == backend && (b.mode.is_empty() || b.mode == mode)
        };
        TABLE.iter().find(fits).map(|b| b.error)
    };
    let general = find("").expect("every stage has a bound");
    let exception = find(backend);
    let limit = exception.unwrap_or(general);
    assert!(
        worst <= limit,
        "{stage:?} {mode} on {backend}: {worst:e}, more than {limit:e}"
    );
    assert!(
        exception.is_none() || worst > general,
        "{stage:?} {mode} on {backend}: {worst:e} needs no exception to {general:e}"
    );
}
