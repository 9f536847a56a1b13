//! A measured shape, as a line of a table or of JSON.

use amla::{Options, ProblemShape};
use amla_examples::cli::{precision_name, rescale_name};
use amla_examples::engine::Measurement;
use amla_examples::output::percent;
use amla_examples::paper::{self, Figure};
use serde_json::{Value, json};

use crate::inputs::Caches;
use crate::machine::gib;
use crate::shapes::intensity;

/// One measured shape.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub shape: ProblemShape,
    /// The table it belongs to.
    pub table: &'static str,
    pub options: Options,
    pub threads: usize,
    /// Read bandwidth of all threads, in GB/s.
    pub read_gbs: f64,
    pub measured: Measurement,
}

/// The first lines of the paper's table.
pub const TABLE_HEADER: &str =
    "                                                          Ascend 910         GPU
s_q    s_k  time, ms GFLOP/s    peak  FU, %   quartiles     us FU, %    us FU, %";

/// An explanation of the tables' columns.
pub const LEGEND: &str = "
time, GFLOP/s, peak, FU: medians; FLOP are 2 b h_q s_q s_k (d_qk + d_v), the paper's count, also for bf16x2
peak: the backend's own multiply-add in registers, on all threads at once, in turn with the kernel
FU: each run against the mean of the two peaks beside it (so not quite GFLOP/s over peak)
Ascend 910, GPU: the paper's figures of AMLA and of FlashMLA";

impl Cell {
    /// FLOP per byte of KV cache.
    pub fn intensity(&self) -> f64 {
        intensity(&self.shape)
    }

    /// The roofline's bound, in GFLOP/s.
    pub fn bound(&self) -> f64 {
        let memory = self.read_gbs * self.intensity();
        memory.min(self.measured.peak_gflops)
    }

    /// The speed as a fraction of the bound.
    pub fn of_bound(&self) -> f64 {
        // Peaks beside each run are more accurate than their median.
        let of_memory = self.measured.gflops / (self.read_gbs * self.intensity());
        of_memory.max(self.measured.utilization)
    }

    /// A line of the paper's table.
    pub fn table_row(&self) -> String {
        let figure = |figure: Option<Figure>| {
            figure.map_or_else(
                || format!("{:>6}{:>6}", "-", "-"),
                |f| format!("{:>6}{:>6}", f.microseconds, percent(f.utilization)),
            )
        };
        let paper = paper::figures(&self.shape);
        format!(
            "{:>3} {:>6} {}{}{}",
            self.shape.s_q,
            self.shape.s_k,
            self.speed(),
            figure(paper.map(|figures| figures.ascend)),
            figure(paper.map(|figures| figures.gpu)),
        )
    }

    /// Time, speed, peak, FU and its quartiles, in both tables.
    fn speed(&self) -> String {
        let m = &self.measured;
        let [q1, q3] = m.quartiles.map(percent);
        format!(
            "{:>9.3} {:>7.1} {:>7.1} {:>6} {q1:>5}..{q3:<5}",
            m.seconds * 1e3,
            m.gflops,
            m.peak_gflops,
            percent(m.utilization),
        )
    }

    /// A line of the table of 1 to 64 heads.
    pub fn skinny_row(&self) -> String {
        format!(
            "{:>3} {}{:>6.1} {:>9.1} {:>7.1} {:>6}",
            self.shape.h_q,
            self.speed(),
            self.read_gbs,
            self.intensity(),
            self.bound(),
            percent(self.of_bound()),
        )
    }

    /// As one object.
    pub fn json(&self) -> Value {
        let (s, m) = (&self.shape, &self.measured);
        let figure = |figure: Figure| {
            json!({
                "seconds": figure.microseconds * 1e-6,
                "utilization": figure.utilization,
            })
        };
        let paper = paper::figures(s);
        json!({
            "table": self.table,
            "s_q": s.s_q,
            "s_k": s.s_k,
            "h_q": s.h_q,
            "h_kv": s.h_kv,
            "batch": s.b,
            "d_qk": s.d_qk,
            "d_v": s.d_v,
            "threads": self.threads,
            "backend": self.options.backend.id().name(),
            "rescale": rescale_name(self.options.rescale),
            "precision": precision_name(self.options.precision),
            "seconds": m.seconds,
            "gflops": m.gflops,
            "peak_gflops": m.peak_gflops,
            "utilization": m.utilization,
            "quartiles": m.quartiles,
            "read_gbs": self.read_gbs,
            "intensity": self.intensity(),
            "bound_gflops": self.bound(),
            "of_bound": self.of_bound(),
            "paper_910": paper.map(|figures| figure(figures.ascend)),
            "paper_gpu": paper.map(|figures| figure(figures.gpu)),
        })
    }
}

/// The first lines of the table of 1 to 64 heads.
pub fn skinny_header(caches: &Caches) -> String {
    format!(
        "
1 to 64 heads at context 4096. Calls take turns over the KV caches of {} batches, {:.2} GiB in total and at least \
twice the last-level cache: keys come from memory. GB/s: plain reads of them, the mean of before and after each row; \
bound = min(peak, GB/s x FLOP/byte)

                                                                            % of
h_q  time, ms GFLOP/s    peak  FU, %   quartiles   GB/s FLOP/byte   bound  bound",
        caches.batches(),
        gib(size_of_val(caches.elements())),
    )
}

/// The growth of time from 4096 to 16384 keys, if the table has both.
pub fn growth(cells: &[Cell]) -> Vec<String> {
    let at = |s_k| cells.iter().filter(move |cell| cell.shape.s_k == s_k);
    at(4096)
        .filter_map(|short| {
            let long = at(16384).find(|long| long.shape.s_q == short.shape.s_q)?;
            let time = long.measured.seconds / short.measured.seconds;
            let at_peak = 4.0 * short.measured.utilization / long.measured.utilization;
            Some(format!(
                "time(16384) / time(4096), s_q {}: {time:.2}; against the peaks beside them: {at_peak:.2}",
                short.shape.s_q
            ))
        })
        .collect()
}
