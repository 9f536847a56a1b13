//! Progress of long computations.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A percentage on standard error, if that is a terminal.
pub struct Progress {
    what: &'static str,
    total: usize,
    done: AtomicUsize,
    visible: bool,
}

impl Progress {
    /// Progress of `total` steps of `what`; never visible unless `long`.
    pub fn new(what: &'static str, total: usize, long: bool) -> Self {
        Self {
            what,
            total,
            done: AtomicUsize::new(0),
            visible: long && stderr().is_terminal(),
        }
    }

    /// Counts one step, from any thread.
    pub fn step(&self) {
        let percent = |done| 100 * done / self.total;
        let done = self.done.fetch_add(1, Ordering::Relaxed);
        if self.visible && percent(done) != percent(done + 1) {
            let _ = write!(stderr(), "\r{} {:>3} %", self.what, percent(done + 1));
        }
    }
}

/// Clears the line.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.visible {
            let _ = write!(stderr(), "\r{:1$}\r", "", self.what.len() + 6);
        }
    }
}
