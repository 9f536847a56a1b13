//! A row of the results.

use amla::ProblemShape;

/// One number of workers of one shape.
pub struct Point {
    pub shape: ProblemShape,
    pub workers: usize,
    pub tasks: usize,
    pub makespan: f64,
    pub speedup: f64,
    pub bandwidth_limited: bool,
}

impl Point {
    /// Speed-up for each of them.
    pub fn efficiency(&self) -> f64 {
        self.speedup / self.workers as f64
    }

    /// A line of JSON.
    pub fn json(&self) -> String {
        format!(
            "{{\"h_q\": {}, \"s_k\": {}, \"workers\": {}, \"tasks\": {}, \"makespan_seconds\": {:.9}, \"speedup\": {:.4}, \
             \"efficiency\": {:.4}, \"bandwidth_limited\": {}}}",
            self.shape.h_q,
            self.shape.s_k,
            self.workers,
            self.tasks,
            self.makespan,
            self.speedup,
            self.efficiency(),
            self.bandwidth_limited,
        )
    }
}
