//! Golden and Base on all processors, row by row.

use amla::{Error, Problem, reference};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use crate::engine::flop;
use crate::file::heads_first;

/// Keys per block of Base, as in the paper.
const BLOCK_N: usize = 512;

/// Below this many operations, no progress bar flickers by.
const LONG: f64 = 1e9;

/// Golden's `o` `[b, s_q, h_q, d_v]` and `lse` `[b, h_q, s_q]`.
pub fn golden(problem: &Problem) -> Result<(Vec<f64>, Vec<f64>), Error> {
    by_rows(problem, "Golden", |at, o| {
        reference::golden_row(problem, at, o)
    })
}

/// Base's `o` `[b, s_q, h_q, d_v]`.
pub fn base(problem: &Problem) -> Result<Vec<f32>, Error> {
    let (o, _) = by_rows(problem, "Base", |at, o| {
        reference::base_row(problem, BLOCK_N, at, o)
    })?;
    Ok(o)
}

/// Computes rows `[b, j, h]` in parallel.
fn by_rows<T: Copy + Default + Send>(
    problem: &Problem,
    what: &'static str,
    compute: impl Fn([usize; 3], &mut [T]) -> Result<T, Error> + Sync,
) -> Result<(Vec<T>, Vec<T>), Error> {
    let s = problem.shape;
    let rows = s.b * s.s_q * s.h_q;
    let mut o = vec![T::default(); rows * s.d_v];
    let mut lse = vec![T::default(); rows];
    let bar = progress(what, rows as u64, flop(problem) >= LONG);
    o.par_chunks_mut(s.d_v)
        .zip(&mut lse)
        .enumerate()
        .try_for_each(|(i, (o, lse))| {
            *lse = compute([i / (s.s_q * s.h_q), i / s.h_q % s.s_q, i % s.h_q], o)?;
            bar.inc(1);
            Ok(())
        })?;
    bar.finish_and_clear();
    Ok((o, heads_first(&lse, [s.b, s.s_q, s.h_q])))
}

/// A bar on stderr if that is a terminal and the work is long.
fn progress(what: &'static str, rows: u64, long: bool) -> ProgressBar {
    if !long {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:>6} [{wide_bar}] {pos}/{len} rows, {eta} left")
        .expect("the template is valid")
        .progress_chars("=> ");
    ProgressBar::new(rows).with_style(style).with_message(what)
}
