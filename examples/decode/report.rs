//! What is said about a computed problem, as a table or as JSON.

use std::fmt;

use amla::{Options, Precision, Rescale, Shape};
use serde_json::{Value, json};

use crate::engine::Measurement;

/// One computed problem.
pub struct Record<'a> {
    pub problem: &'a str,
    pub shape: Shape,
    pub causal: bool,
    pub window: Option<usize>,
    pub options: Options,
    pub threads: usize,
    /// What `error`, `base_error` and `worst` compare with.
    pub reference: &'static str,
    /// Relative Frobenius error of O.
    pub error: f64,
    /// The same, of Base.
    pub base_error: f64,
    /// Largest absolute error of an element of O.
    pub worst: f64,
    /// Largest absolute error of an lse, where there is one to compare with.
    pub lse_error: Option<f64>,
    pub measured: Measurement,
}

/// The table's first line.
pub const HEADER: &str = "problem           backend     rescale       error     base    worst      lse   time, ms   \
                          GFLOP/s   peak    FU";

/// What the table's columns mean.
pub const LEGEND: &str = "error, base: relative Frobenius error of O (FP32) by AMLA and by Base, against the problem's \
                          expected values or Golden\n\
                          worst, lse: largest absolute error of an element of O, and of lse\n\
                          FU: GFLOP/s against the peak of the backend's own multiply-add, measured in turn with it";

impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let m = &self.measured;
        let lse = self
            .lse_error
            .map_or_else(|| "-".to_owned(), |e| format!("{e:.1e}"));
        write!(
            f,
            "{:<17} {:<11} {:<11} {:>7.2e} {:>8.2e} {:>8.1e} {lse:>8} {:>10.3} {:>9.1} {:>6.1} {:>5.2}",
            self.problem,
            self.options.backend.id().name(),
            rescale_name(self.options.rescale),
            self.error,
            self.base_error,
            self.worst,
            m.seconds * 1e3,
            m.gflops,
            m.peak_gflops,
            m.utilization,
        )
    }
}

impl Record<'_> {
    /// The record as one object; what is no number is null.
    pub fn json(&self) -> Value {
        let (s, m) = (&self.shape, &self.measured);
        json!({
            "problem": self.problem,
            "backend": self.options.backend.id().name(),
            "rescale": rescale_name(self.options.rescale),
            "precision": precision_name(self.options.precision),
            "threads": self.threads,
            "causal": self.causal,
            "window": self.window,
            "b": s.b,
            "s_q": s.s_q,
            "s_k": s.s_k,
            "h_q": s.h_q,
            "h_kv": s.h_kv,
            "d_qk": s.d_qk,
            "d_v": s.d_v,
            "reference": self.reference,
            "error": self.error,
            "base_error": self.base_error,
            "worst": self.worst,
            "lse_error": self.lse_error,
            "seconds": m.seconds,
            "gflops": m.gflops,
            "peak_gflops": m.peak_gflops,
            "utilization": m.utilization,
        })
    }
}

/// As the command line spells it.
pub fn rescale_name(rescale: Rescale) -> &'static str {
    match rescale {
        Rescale::Exact => "exact",
        Rescale::Compensated => "compensated",
    }
}

/// As the command line spells it.
pub fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Bf16 => "bf16",
        Precision::Bf16x2 => "bf16x2",
    }
}

/// Frobenius norm of the difference over that of `truth`; 0 where both are.
pub fn relative_error(values: &[f32], truth: &[f64]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = pairs(values, truth).map(|(x, y)| square(x - y)).sum();
    if difference == 0.0 {
        return 0.0;
    }
    let norm: f64 = truth.iter().copied().map(square).sum();
    (difference / norm).sqrt()
}

/// Largest absolute difference; NaN if there is one.
pub fn worst_error(values: &[f32], truth: &[f64]) -> f64 {
    pairs(values, truth)
        // Equal infinities do not differ.
        .map(|(x, y)| if x == y { 0.0 } else { (x - y).abs() })
        .fold(0.0, |worst, error| {
            if error > worst || error.is_nan() {
                error
            } else {
                worst
            }
        })
}

fn pairs(values: &[f32], truth: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    assert_eq!(values.len(), truth.len());
    values
        .iter()
        .map(|&x| f64::from(x))
        .zip(truth.iter().copied())
}
