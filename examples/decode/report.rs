//! A computed problem as a line of a table or of JSON.

use std::fmt;

use amla::{Options, ProblemShape};
use amla_examples::cli::{inputs_name, precision_name, rescale_name};
use amla_examples::engine::Measurement;
use serde_json::{Value, json};

/// The largest valid relative Frobenius error of O. Rounding to BF16 alone costs 2e-3.
const O_LIMIT: f64 = 1e-2;
/// The largest valid error of an lse, relative to the largest lse or to 1. Rounding to BF16 alone
/// costs 2e-3.
const LSE_LIMIT: f64 = 1e-2;

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
pub const HEADER: &str = "problem           backend     rescale       error     base    worst      lse   time, ms   \
                          GFLOP/s   peak    FU  q/kv[/v]";

/// What the table's columns mean.
pub const LEGEND: &str = "error, base: relative Frobenius error of O (FP32) by AMLA and by Base, against the problem's \
                          expected values or Golden\n\
                          worst, lse: largest absolute error of an element of O, and of lse\n\
                          FU: GFLOP/s against the peak of the backend's own multiply-add, measured in turn with it\n\
                          q/kv[/v]: the formats of queries, keys and separate values";

impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let m = &self.measured;
        let dtypes: Vec<_> = self.dtypes.into_iter().flatten().collect();
        let lse = self
            .lse_error
            .map_or_else(|| "-".to_owned(), |e| format!("{e:.1e}"));
        write!(
            f,
            "{:<17} {:<11} {:<11} {:>7.2e} {:>8.2e} {:>8.1e} {lse:>8} {:>10.3} {:>9.1} {:>6.1} {:>5.2}  {}",
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
            dtypes.join("/"),
        )
    }
}

impl Record<'_> {
    /// One line for each result that is off by more than its limit.
    pub fn differences(&self) -> Vec<String> {
        let line = |result, error, kind, limit| {
            let rescale = rescale_name(self.options.rescale);
            format!(
                "{}, {rescale}: {result} is off by {error:.2e} ({kind}), the limit is {limit:.1e}",
                self.problem
            )
        };
        let mut lines = Vec::new();
        if self.error > O_LIMIT {
            let kind = "relative Frobenius error";
            lines.push(line("o", self.error, kind, O_LIMIT));
        }
        let limit = LSE_LIMIT * self.largest_lse.max(1.0);
        if let Some(error) = self.lse_error.filter(|&error| error > limit) {
            lines.push(line("lse", error, "largest absolute error", limit));
        }
        lines
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
