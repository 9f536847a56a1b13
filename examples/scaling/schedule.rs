//! What steps take on several threads.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Seconds from the end of the last task to the first merge: a cache line goes from one core to another.
const BARRIER: f64 = 0.5e-6;

/// The steps of a plan, each timed alone, in seconds.
pub struct Steps {
    /// Keys of each KV split, if the plan has a length of its own.
    pub every: Option<usize>,
    /// A call on one thread with the default split, and with this one.
    pub alone: f64,
    pub split_alone: f64,
    pub tasks: Vec<f64>,
    /// Merges, some at once.
    pub merges: Vec<f64>,
    /// Bytes that tasks read of the cache, and move as partial results.
    pub bytes: f64,
}

impl Steps {
    /// When the last thread is done: each takes the next task when it has completed one, and behind a barrier the next merge.
    /// Waking the threads takes `wake`. `bandwidth` in GB/s is a limit for all.
    pub fn makespan(&self, workers: usize, wake: f64, bandwidth: Option<usize>) -> f64 {
        if workers == 1 {
            return self.split_alone;
        }
        let workers = workers.min(self.tasks.len());
        let mut end = wake + list_schedule(&self.tasks, workers);
        if !self.merges.is_empty() {
            end += BARRIER + list_schedule(&self.merges, workers);
        }
        let limit = bandwidth.map_or(0.0, |gbs| self.bytes / (gbs as f64 * 1e9));
        end.max(limit)
    }
}

/// When the last of `workers` is done, each of which takes the next item when it has completed one.
fn list_schedule(items: &[f64], workers: usize) -> f64 {
    // In nanoseconds, which have an order.
    let nanoseconds = |seconds: f64| (seconds * 1e9).round() as u64;
    let mut ends: BinaryHeap<_> = (0..workers).map(|_| Reverse(0)).collect();
    let mut last = 0;
    for &item in items {
        if let Some(mut end) = ends.peek_mut() {
            end.0 += nanoseconds(item);
            last = last.max(end.0);
        }
    }
    last as f64 * 1e-9
}
