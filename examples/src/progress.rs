//! Progress of long computations: a percentage on standard error, if that is a terminal. Whatever is printed next
//! replaces it.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Programs that end within this time show none.
const SILENT: Duration = Duration::from_secs(2);

/// The first computation's start.
static START: OnceLock<Instant> = OnceLock::new();
/// Columns of the line that the terminal shows; 0 if it shows none.
static SHOWN: Mutex<usize> = Mutex::new(0);

/// The progress of one computation. It ends with the value.
pub struct Progress {
    what: &'static str,
    steps: usize,
    done: AtomicUsize,
    percent: AtomicUsize,
    terminal: bool,
}

impl Progress {
    /// A computation of that many steps begins.
    pub fn new(what: &'static str, steps: usize) -> Self {
        START.get_or_init(Instant::now);
        Self {
            what,
            steps,
            done: AtomicUsize::new(0),
            percent: AtomicUsize::new(usize::MAX),
            terminal: stderr().is_terminal(),
        }
    }

    /// One more step is done, on any thread.
    pub fn step(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        self.update(done as f64 / self.steps as f64);
    }

    /// A fraction of the computation is done.
    pub fn update(&self, fraction: f64) {
        if !self.terminal || START.get().is_none_or(|start| start.elapsed() < SILENT) {
            return;
        }
        let percent = (fraction * 100.0).min(100.0) as usize;
        if self.percent.swap(percent, Ordering::Relaxed) != percent {
            let line = format!("{} {percent:>3} %", self.what);
            replace(&line);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        clear();
    }
}

/// Removes the line from the terminal.
pub fn clear() {
    replace("");
}

/// Replaces the terminal's line.
fn replace(line: &str) {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut errors = stderr().lock();
    // A failure of standard error can't be reported.
    if *shown > 0 {
        let _ = write!(errors, "\r{:1$}\r", "", *shown);
    }
    let _ = write!(errors, "{line}");
    *shown = line.chars().count();
}
