//! A cell of the table: model beside paper, as text and as JSON.

use amla::ProblemShape;
use amla_ascend::paper::{self, Figure};
use amla_ascend::{Kernel, Pipe, Report};
use amla_examples::output::percent;
use serde_json::{Value, json};

use crate::cli::{Cli, algorithm_name, pipeline_name};

/// A shape and its run.
pub struct Cell {
    pub shape: ProblemShape,
    kernel: Kernel,
    pub report: Report,
}

impl Cell {
    pub fn new(shape: ProblemShape, kernel: &Kernel, report: Report) -> Self {
        Self {
            shape,
            kernel: *kernel,
            report,
        }
    }

    /// The paper's figure, if it has one.
    pub fn paper(&self) -> Option<Figure> {
        paper::figure(&self.shape)
    }

    /// The model's FU minus the paper's, as a share of the peak.
    pub fn error(&self) -> Option<f64> {
        Some(self.report.utilization() - self.paper()?.utilization)
    }

    /// Whether the machine's constants were fitted on it.
    pub fn is_fitted(&self) -> bool {
        paper::CORNERS.contains(&(self.shape.s_q, self.shape.s_k)) && self.paper().is_some()
    }

    /// The share of the kernel's time for which the pipes of a kind are busy, in the mean.
    fn busy(&self, pipe: impl Fn(Pipe) -> bool) -> f64 {
        let pipes = Pipe::ALL.iter().zip(self.report.busy);
        let busy: Vec<f64> = pipes
            .filter(|(p, _)| pipe(**p))
            .map(|(_, busy)| busy)
            .collect();
        busy.iter().sum::<f64>() / busy.len() as f64 / self.report.kernel_seconds
    }

    fn busy_of_all(&self) -> [(&'static str, f64); 7] {
        [
            ("MTE2", self.busy(|p| p == Pipe::Mte2)),
            ("MTE1", self.busy(|p| p == Pipe::Mte1)),
            ("MMAD", self.busy(|p| p == Pipe::Mmad)),
            ("FixP", self.busy(|p| p == Pipe::FixP)),
            ("AIV in", self.busy(|p| matches!(p, Pipe::VectorIn(_)))),
            ("AIV", self.busy(|p| matches!(p, Pipe::Vector(_)))),
            ("AIV out", self.busy(|p| matches!(p, Pipe::VectorOut(_)))),
        ]
    }

    /// MB that all cores move, at each level.
    fn megabytes(&self) -> [(&'static str, f64); 5] {
        let traffic = &self.report.traffic;
        let cores = self.kernel.machine().cube_cores as f64 / 1e6;
        [
            ("HBM", traffic.hbm * cores),
            ("L2-L1", traffic.l2_to_l1 * cores),
            ("L1-L0", (traffic.l1_to_l0a + traffic.l1_to_l0b) * cores),
            ("L0C-L2", traffic.l0c_to_l2 * cores),
            ("L2-UB", (traffic.l2_to_ub + traffic.ub_to_l2) * cores),
        ]
    }

    /// A line of the table beside the paper's.
    fn row(&self) -> String {
        let report = &self.report;
        let (limit, share) = report.limit();
        let paper = match (self.paper(), self.error()) {
            (Some(figure), Some(error)) => format!(
                "{:>8} {:>5} {:>+6.1} {:>3}",
                figure.microseconds,
                percent(figure.utilization),
                error * 100.0,
                if self.is_fitted() { "fit" } else { "" },
            ),
            _ => format!("{:>8} {:>5} {:>6} {:>3}", "-", "-", "-", ""),
        };
        format!(
            "{:>3} {:>6} {:>9.1} {:>5}  {paper}  {limit} {:.0} %",
            self.shape.s_q,
            self.shape.s_k,
            report.seconds() * 1e6,
            percent(report.utilization()),
            share * 100.0,
        )
    }

    /// A line of the table of pipes and memories.
    fn resources(&self) -> String {
        let (busy, moved) = (self.busy_of_all(), self.megabytes());
        let busy = busy.map(|(name, busy)| column(name, &format!("{:.0}", busy * 100.0)));
        let moved = moved.map(|(name, mb)| column(name, &format!("{mb:.0}")));
        let (s_q, s_k) = (self.shape.s_q, self.shape.s_k);
        format!("{s_q:>3} {s_k:>6}{}{}", busy.concat(), moved.concat())
    }

    /// The names of its columns.
    fn resource_names(&self) -> String {
        let (busy, moved) = (self.busy_of_all(), self.megabytes());
        let names = busy.iter().chain(&moved).map(|(name, _)| name);
        names.map(|name| column(name, name)).collect()
    }

    /// The cell as a JSON object.
    pub fn json(&self) -> Value {
        let (s, report) = (&self.shape, &self.report);
        let (limit, share) = report.limit();
        let paper = self.paper();
        let object = |entries: &[(&'static str, f64)]| -> Value {
            entries
                .iter()
                .map(|(name, x)| ((*name).to_owned(), json!(x)))
                .collect()
        };
        json!({
            "s_q": s.s_q,
            "s_k": s.s_k,
            "h_q": s.h_q,
            "batch": s.b,
            "algorithm": algorithm_name(self.kernel.algorithm()),
            "pipeline": pipeline_name(self.kernel.pipeline()),
            "model_us": report.seconds() * 1e6,
            "model_fu": report.utilization(),
            "paper_us": paper.map(|figure| figure.microseconds),
            "paper_fu": paper.map(|figure| figure.utilization),
            "fitted": self.is_fitted(),
            "limit": limit.to_string(),
            "limit_share": share,
            "busy": object(&self.busy_of_all()),
            "megabytes": object(&self.megabytes()),
        })
    }
}

/// A column as wide as its name.
fn column(name: &str, text: &str) -> String {
    format!(" {text:>0$}", name.len().max(4))
}

/// The tables, with legends.
pub fn tables(cli: &Cli, cells: &[Cell]) -> String {
    let mut text = format!(
        "amla {}: model of the Ascend 910
batch {}, h_q {}, d_qk 576, d_v 512, {} with the {} pipeline

                model             paper
s_q    s_k   time, us FU, %  time, us FU, %  error      limit",
        env!("CARGO_PKG_VERSION"),
        cli.batch,
        cli.heads,
        algorithm_name(cli.algorithm),
        pipeline_name(cli.pipeline),
    );
    for cell in cells {
        text += &format!("\n{}", cell.row());
    }
    text += &errors(cells);
    text += "\n\nPipes, busy for % of the kernel's time          MB moved, all cores\ns_q    s_k";
    text.extend(cells.first().map(Cell::resource_names));
    for cell in cells {
        text += &format!("\n{}", cell.resources());
    }
    text + "
MTE2, MTE1, MMAD, FixP: the Cube core's; AIV: the Vector cores', in the mean"
}

/// The model's errors, and a legend of the columns.
fn errors(cells: &[Cell]) -> String {
    let errors = |fitted: bool| -> Vec<f64> {
        cells
            .iter()
            .filter(|cell| cell.is_fitted() == fitted)
            .filter_map(Cell::error)
            .map(f64::abs)
            .collect()
    };
    let mut text = "
error: points of FU, model less paper; fit: one of the cells that the machine's constants were fitted on
limit: what would need most of the kernel's time alone, and how much of it (docs/ascend.md)"
        .to_owned();
    for (name, errors) in [("fitted", errors(true)), ("predicted", errors(false))] {
        if !errors.is_empty() {
            let worst = errors.iter().copied().fold(0.0, f64::max) * 100.0;
            let mean = errors.iter().sum::<f64>() / errors.len() as f64 * 100.0;
            text += &format!(
                "\n{} cells {name}: FU within {worst:.1} points of the paper's, {mean:.1} in the mean",
                errors.len()
            );
        }
    }
    text
}
