//! Golden and Base on all processors, row by row.

use amla::{Error, reference};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use crate::case::{Case, heads_first};

/// Keys per block of Base, as in the paper.
const BLOCK_N: usize = 512;

/// Below this many operations, no progress bar flickers by.
const LONG: f64 = 1e9;

/// Golden's `o` and `lse`, laid out as what the case expects.
pub fn golden(case: &Case) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let problem = case.problem();
    by_rows(case, "Golden", |at, o| {
        reference::golden_row(&problem, at, o)
    })
}

/// Base's `o`.
pub fn base(case: &Case) -> Result<Vec<f32>, Error> {
    let problem = case.problem();
    let (o, _) = by_rows(case, "Base", |at, o| {
        reference::base_row(&problem, BLOCK_N, at, o)
    })?;
    Ok(o)
}

/// Computes rows, `[request, position, head]`, in parallel.
fn by_rows<T: Copy + Default + Send>(
    case: &Case,
    what: &'static str,
    compute: impl Fn([usize; 3], &mut [T]) -> Result<T, Error> + Sync,
) -> Result<(Vec<T>, Vec<T>), Error> {
    let d_v = case.shape.d_v;
    let [_, _, h_q] = case.rows;
    let positions: Vec<_> = case.positions().collect();
    let rows = positions.len() * h_q;
    let mut o = vec![T::default(); rows * d_v];
    let mut lse = vec![T::default(); rows];
    let bar = progress(what, rows as u64, case.flop() >= LONG);
    o.par_chunks_mut(d_v)
        .zip(&mut lse)
        .enumerate()
        .try_for_each(|(i, (o, lse))| {
            let [b, j] = positions[i / h_q];
            *lse = compute([b, j, i % h_q], o)?;
            bar.inc(1);
            Ok(())
        })?;
    bar.finish_and_clear();
    Ok((o, heads_first(&lse, case.rows)))
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
