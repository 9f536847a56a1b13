//! The machine's three constants from four cells of the paper's table, by least squares.
//!
//! Residuals are logarithms of model over paper durations; three constants and four cells leave one
//! degree of freedom. Gauss and Newton's method, with slopes from differences.

use amla::Shape;
use amla::ascend::{Algorithm, Calibration, Kernel, Machine, Pipeline, Tiling};

use crate::cli::{Cli, FitArgs};
use crate::output::line;
use crate::paper;

/// The corners of the table, (s_q, s_k): chosen because everything else lies between them.
pub const CELLS: [(usize, usize); 4] = [(1, 1024), (1, 16384), (2, 1024), (2, 16384)];

/// Each constant's step for its slope.
const STEPS: [f64; 3] = [0.5e-6, 0.005, 0.005];
const ITERATIONS: usize = 6;

/// A cell of the table, its place, and the paper's figures.
struct Target {
    cell: (usize, usize),
    shape: Shape,
    seconds: f64,
    utilization: f64,
}

/// Prints the constants, and how well they predict.
///
/// # Errors
/// Standard output, or a tiling that doesn't fit.
pub fn report(cli: &Cli, options: &FitArgs) -> Result<(), String> {
    let targets = targets(cli);
    let chosen = CELLS.map(|cell| {
        let place = targets.iter().position(|target| target.cell == cell);
        place.expect("the corners are cells of the table")
    });
    let constants = fit(&targets, chosen)?;
    let (worst, mean) = held_out(&targets, chosen, constants)?;
    line(&format!(
        "fitted on (s_q, s_k) {CELLS:?}:\n  launch {:.1} us, {:.3} of HBM's bandwidth, {:.3} of the clock\n\
         the other eight: FU within {worst:.2} points of the paper's, {mean:.2} in the mean",
        constants.launch * 1e6,
        constants.hbm_share,
        constants.clock_share
    ))?;
    if !options.all {
        return Ok(());
    }
    let mut all = Vec::new();
    for chosen in choices(targets.len()) {
        let two_of_each = chosen
            .iter()
            .filter(|&&cell| targets[cell].cell.0 == 1)
            .count()
            == 2;
        let errors = held_out(&targets, chosen, fit(&targets, chosen)?)?;
        all.push((errors, two_of_each));
    }
    // Three or four cells of one s_q say little about what limits the other.
    let balanced: Vec<_> = all
        .iter()
        .filter(|(_, two)| *two)
        .map(|(e, _)| *e)
        .collect();
    line(&spread("choices of two cells of each s_q", balanced))?;
    let all = all.into_iter().map(|(errors, _)| errors).collect();
    line(&spread("choices of any four cells", all))
}

/// How well so many fits predict: their worst and mean errors, in points.
fn spread(name: &str, mut errors: Vec<(f64, f64)>) -> String {
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    let good = errors
        .iter()
        .filter(|(worst, mean)| *worst <= 4.0 && *mean <= 2.5)
        .count();
    let at = |part: usize, of: usize| errors[part * (errors.len() - 1) / of].0;
    format!(
        "{} {name}: {good} predict the other eight within 4 points, 2.5 in the mean; worst error: \
         median {:.1}, 90th percentile {:.1}, most {:.1} points",
        errors.len(),
        at(1, 2),
        at(9, 10),
        at(1, 1)
    )
}

fn targets(cli: &Cli) -> Vec<Target> {
    let cells = paper::S_Q
        .into_iter()
        .flat_map(|s_q| paper::CONTEXTS.map(|s_k| (s_q, s_k)));
    cells
        .filter_map(|(s_q, s_k)| {
            let shape = Shape {
                b: paper::BATCH,
                h_q: 128,
                ..cli.shape(s_q, s_k)
            };
            let figure = paper::figures(&shape)?.ascend;
            Some(Target {
                cell: (s_q, s_k),
                shape,
                seconds: figure.microseconds * 1e-6,
                utilization: figure.utilization,
            })
        })
        .collect()
}

/// Duration and FU.
fn model(shape: Shape, calibration: Calibration) -> Result<(f64, f64), String> {
    let machine = Machine {
        calibration,
        ..Machine::ASCEND_910
    };
    Kernel::new(
        machine,
        Tiling::PAPER,
        Algorithm::Amla,
        Pipeline::Preload,
        shape,
    )
    .and_then(|kernel| kernel.run())
    .map(|report| (report.seconds(), report.utilization()))
    .map_err(|e| e.to_string())
}

fn constants(x: [f64; 3]) -> Calibration {
    Calibration {
        launch: x[0].max(0.0),
        hbm_share: x[1].clamp(0.05, 1.0),
        clock_share: x[2].clamp(0.05, 1.0),
    }
}

fn fit(targets: &[Target], chosen: [usize; 4]) -> Result<Calibration, String> {
    let residuals = |x: [f64; 3]| -> Result<[f64; 4], String> {
        let mut residuals = [0.0; 4];
        for (residual, &index) in residuals.iter_mut().zip(&chosen) {
            let target = &targets[index];
            *residual = (model(target.shape, constants(x))?.0 / target.seconds).ln();
        }
        Ok(residuals)
    };
    let mut x = [30e-6, 0.8, 0.9];
    for _ in 0..ITERATIONS {
        let at = residuals(x)?;
        let mut slopes = [[0.0; 4]; 3];
        for (index, step) in STEPS.into_iter().enumerate() {
            let mut beside = x;
            beside[index] -= step;
            let other = residuals(beside)?;
            for (slope, (a, b)) in slopes[index].iter_mut().zip(at.iter().zip(other)) {
                *slope = (a - b) / step;
            }
        }
        let dot = |a: &[f64; 4], b: &[f64; 4]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        // The normal equations. Where the cells say nothing about a constant it stays as it is.
        let matrix: [[f64; 3]; 3] = std::array::from_fn(|i| {
            std::array::from_fn(|j| {
                let damping = if i == j {
                    1e-9 + 1e-6 * dot(&slopes[i], &slopes[i])
                } else {
                    0.0
                };
                dot(&slopes[i], &slopes[j]) + damping
            })
        });
        let right = std::array::from_fn(|i| -dot(&slopes[i], &at));
        let step = solve(matrix, right);
        for (x, step) in x.iter_mut().zip(step) {
            *x += step;
        }
        x = [x[0].max(0.0), x[1].clamp(0.05, 1.0), x[2].clamp(0.05, 1.0)];
    }
    Ok(constants(x))
}

/// Worst and mean error of FU, in points, of the cells that weren't chosen.
fn held_out(
    targets: &[Target],
    chosen: [usize; 4],
    constants: Calibration,
) -> Result<(f64, f64), String> {
    let mut errors = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        if !chosen.contains(&index) {
            let (_, utilization) = model(target.shape, constants)?;
            errors.push((utilization - target.utilization).abs() * 100.0);
        }
    }
    let worst = errors.iter().copied().fold(0.0, f64::max);
    Ok((worst, errors.iter().sum::<f64>() / errors.len() as f64))
}

/// Every four of `n`.
fn choices(n: usize) -> impl Iterator<Item = [usize; 4]> {
    (0..n).flat_map(move |a| {
        (a + 1..n)
            .flat_map(move |b| (b + 1..n).flat_map(move |c| (c + 1..n).map(move |d| [a, b, c, d])))
    })
}

/// Cramer's rule.
fn solve(matrix: [[f64; 3]; 3], right: [f64; 3]) -> [f64; 3] {
    let determinant = |m: [[f64; 3]; 3]| {
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
            - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
            + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    };
    std::array::from_fn(|column| {
        let mut replaced = matrix;
        for (row, right) in replaced.iter_mut().zip(right) {
            row[column] = right;
        }
        determinant(replaced) / determinant(matrix)
    })
}
