//! A computed problem as a line of a table or of JSON.

use std::fmt;

use amla::{Options, ProblemShape};
use amla_examples::cli::{inputs_name, precision_name, rescale_name};
use amla_examples::engine::Measurement;
use serde_json::{Value, json};

/// One computed problem.
pub struct Record<'a> {
    pub problem: &'a str,
    pub shape: ProblemShape,
    pub causal: bool,
    pub window: Option<usize>,
    pub options: Options,
    /// Formats of queries, keys and separate values.
    pub dtypes: [Option<&'static str>; 3],
    pub threads: usize,
    /// The name of the values that `error`, `base_error` and `worst` compare with.
    pub reference: &'static str,
    /// The largest valid [`error`](Self::error), and [`relative_lse_error`](Self::relative_lse_error).
    pub tolerance: f64,
    /// Relative Frobenius error of O.
    pub error: f64,
    /// The same, of Base.
    pub base_error: f64,
    /// Largest absolute error of an element of O.
    pub worst: f64,
    /// Largest absolute error of an lse, if there are values to compare with.
    pub lse_error: Option<f64>,
    /// Largest magnitude of a finite lse among these values.
    pub largest_lse: f64,
    pub measured: Measurement,
}

/// The table's first line.
pub const HEADER: &str =
    "problem          rescale      error   base  worst    lse  time, ms GFLOP/s    FU";

/// The formats of queries, keys and separate values.
pub fn formats([q, kv, v]: [Option<&str>; 3]) -> String {
    let named = [("q", q), ("kv", kv), ("v", v)];
    let named = named.map(|(name, format)| Some(format!("{name} in {}", format?)));
    named.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What the table's columns mean.
pub const LEGEND: &str = "\
error, base: relative Frobenius error of O (FP32) by AMLA and by Base, against the problem's expected values or Golden
worst, lse: largest absolute error of an element of O, and of lse
FU: GFLOP/s against the peak of the backend's own multiply-add, measured in turn with it";

impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let m = &self.measured;
        let lse = self
            .lse_error
            .map_or_else(|| "-".to_owned(), |e| format!("{e:.1e}"));
        write!(
            f,
            "{:<16} {:<11} {:>6.1e} {:>6.1e} {:>6.1e} {lse:>6} {:>9.3} {:>7.1} {:>5.2}",
            self.problem,
            rescale_name(self.options.rescale),
            self.error,
            self.base_error,
            self.worst,
            m.seconds * 1e3,
            m.gflops,
            m.utilization,
        )
    }
}

impl Record<'_> {
    /// Largest absolute error of an lse, relative to the largest of them or to 1.
    fn relative_lse_error(&self) -> Option<f64> {
        Some(self.lse_error? / self.largest_lse.max(1.0))
    }

    /// One line for each result that is off by more than the tolerance.
    pub fn differences(&self) -> Vec<String> {
        let (tolerance, rescale) = (self.tolerance, rescale_name(self.options.rescale));
        let reference = match self.reference {
            "expected" => "the expected values",
            _ => "Golden",
        };
        let errors = [
            ("o", "relative Frobenius error", Some(self.error)),
            (
                "lse",
                "largest error over largest lse",
                self.relative_lse_error(),
            ),
        ];
        let over = errors.into_iter().filter_map(|(result, kind, error)| {
            let error = error.filter(|&error| error.is_nan() || error > tolerance)?;
            Some(format!(
                "{}, {rescale}: {result} differs from {reference} by {error:.2e} ({kind}), \
                 more than the tolerance of {tolerance:.2e}",
                self.problem
            ))
        });
        over.collect()
    }

    /// The record as one object; null for infinities.
    pub fn json(&self) -> Value {
        let (s, m) = (&self.shape, &self.measured);
        json!({
            "problem": self.problem,
            "backend": self.options.backend.id().name(),
            "rescale": rescale_name(self.options.rescale),
            "precision": precision_name(self.options.precision),
            "inputs": inputs_name(self.options.inputs),
            "q_dtype": self.dtypes[0],
            "kv_dtype": self.dtypes[1],
            "v_dtype": self.dtypes[2],
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
            "tolerance": self.tolerance,
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
