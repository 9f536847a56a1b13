//! Golden and Base on all processors, row by row.

use amla::{Error, Problem, Shape, reference};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use crate::engine::{flop, visible};
use crate::file::heads_first;

/// Keys per block of Base, as in the paper.
const BLOCK_N: usize = 512;

/// Below this many operations, no progress bar flickers by.
const LONG: f64 = 1e9;

/// Golden's `o` `[b, s_q, h_q, d_v]` and `lse` `[b, h_q, s_q]`.
pub fn golden(problem: &Problem) -> Result<(Vec<f64>, Vec<f64>), Error> {
    by_rows(problem, "Golden", reference::golden)
}

/// Base's `o` `[b, s_q, h_q, d_v]`.
pub fn base(problem: &Problem) -> Result<Vec<f32>, Error> {
    let (o, _) = by_rows(problem, "Base", |row, o, lse| {
        reference::base(row, BLOCK_N, o, lse)
    })?;
    Ok(o)
}

/// Computes every row as a problem of its own.
fn by_rows<T: Copy + Default + Send>(
    problem: &Problem,
    what: &'static str,
    compute: impl Fn(&Problem, &mut [T], &mut [T]) -> Result<(), Error> + Sync,
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
            let (b, j, h) = (i / (s.s_q * s.h_q), i / s.h_q % s.s_q, i % s.h_q);
            let lens = [i32::try_from(visible(problem, b, j)).expect("keys are counted in i32")];
            compute(
                &row(problem, [b, j, h], &lens),
                o,
                std::slice::from_mut(lse),
            )?;
            bar.inc(1);
            Ok(())
        })?;
    bar.finish_and_clear();
    Ok((o, heads_first(&lse, [s.b, s.s_q, s.h_q])))
}

/// The one row `(b, j, h)`, which sees `lens[0]` keys.
fn row<'a>(problem: &Problem<'a>, [b, j, h]: [usize; 3], lens: &'a [i32; 1]) -> Problem<'a> {
    let mut row = *problem;
    row.shape = Shape {
        b: 1,
        s_q: 1,
        h_q: 1,
        ..problem.shape
    };
    let [over_b, over_j, over_h] = row.q.strides;
    row.q.data = &row.q.data[b * over_b + j * over_j + h * over_h..];
    row.kv.data = &row.kv.data[b * row.kv.strides[0]..];
    if let Some(v) = &mut row.v {
        v.data = &v.data[b * v.strides[0]..];
    }
    row.cache_seqlens = Some(lens);
    row.causal = false;
    row
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
