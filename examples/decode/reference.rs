//! Golden and Base on all processors, row by row.

use amla::{Error, reference};
use amla_examples::problem::{Case, heads_first};
use amla_examples::progress::Progress;
use rayon::prelude::*;

/// Keys per block of Base, as in the paper.
const BLOCK_N: usize = 512;

/// Golden's `o` and `lse` in the layout of the case's expected values.
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
    let progress = Progress::new(what, rows);
    o.par_chunks_mut(d_v)
        .zip(&mut lse)
        .enumerate()
        .try_for_each(|(i, (o, lse))| {
            let [b, j] = positions[i / h_q];
            *lse = compute([b, j, i % h_q], o)?;
            progress.step();
            Ok(())
        })?;
    Ok((o, heads_first(&lse, case.rows)))
}
