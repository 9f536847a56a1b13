//! The machine's three constants from four cells of the paper's table, by least squares.
//!
//! A residual is the logarithm of the model's duration over the paper's. Three constants and four cells
//! leave one degree of freedom. The method is Gauss-Newton, with slopes from finite differences.

use amla::ProblemShape;
use amla_ascend::{Algorithm, Calibration, Kernel, Machine, Pipeline, Tiling, paper};

use amla_examples::output::print;
use amla_examples::progress::Progress;

use crate::cli::FitArgs;

/// The step of each constant for its slope.
const STEPS: [f64; 3] = [0.5e-6, 0.005, 0.005];
const ITERATIONS: usize = 6;

/// A cell of the table, (s_q, s_k), and the paper's figures.
struct Target {
    cell: (usize, usize),
    shape: ProblemShape,
    seconds: f64,
    utilization: f64,
}

/// Prints the constants, and their errors on the other cells.
///
/// # Errors
/// A failure of standard output.
pub fn report(options: &FitArgs) -> Result<(), String> {
    let targets = targets();
    let chosen = paper::CORNERS.map(|cell| {
        let index = targets.iter().position(|target| target.cell == cell);
        index.expect("the corners are cells of the table")
    });
    let constants = fit(&targets, chosen)?;
    let (worst, mean) = held_out(&targets, chosen, constants)?;
    print(&format_args!(
        "fitted on (s_q, s_k) {:?}:\n  launch {:.1} us, {:.3} of HBM's bandwidth, {:.3} of the clock\n\
         the other eight: FU within {worst:.2} points of the paper's, {mean:.2} in the mean",
        paper::CORNERS,
        constants.launch * 1e6,
        constants.hbm_share,
        constants.clock_share
    ))?;
    if !options.all {
        return Ok(());
    }
    let mut all = Vec::new();
    let progress = Progress::new("fits", choices(targets.len()).count());
    for chosen in choices(targets.len()) {
        let two_of_each = chosen
            .iter()
            .filter(|&&cell| targets[cell].cell.0 == 1)
            .count()
            == 2;
        let errors = held_out(&targets, chosen, fit(&targets, chosen)?)?;
        all.push((errors, two_of_each));
        progress.step();
    }
    // Three or four cells of one s_q contain little about the limits of the other.
    let balanced: Vec<_> = all
        .iter()
        .filter(|(_, two)| *two)
        .map(|(e, _)| *e)
        .collect();
    print(&spread("choices of two cells of each s_q", balanced))?;
    let all = all.into_iter().map(|(errors, _)| errors).collect();
    print(&spread("choices of any four cells", all))
}

/// The distribution of the fits' errors; `errors` has worst and mean of each, in points.
fn spread(name: &str, mut errors: Vec<(f64, f64)>) -> String {
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    let good = errors
        .iter()
        .filter(|(worst, mean)| *worst <= 4.0 && *mean <= 2.5)
        .count();
    let quantile = |part: usize, of: usize| errors[part * (errors.len() - 1) / of].0;
    format!(
        "{} {name}: {good} predict the other eight within 4 points, 2.5 in the mean; worst error: \
         median {:.1}, 90th percentile {:.1}, most {:.1} points",
        errors.len(),
        quantile(1, 2),
        quantile(9, 10),
        quantile(1, 1)
    )
}

/// All cells of the table.
fn targets() -> Vec<Target> {
    paper::cells()
        .filter_map(|(s_q, s_k)| {
            let shape = paper::shape(s_q, s_k);
            let figure = paper::figure(&shape)?;
            Some(Target {
                cell: (s_q, s_k),
                shape,
                seconds: figure.microseconds * 1e-6,
                utilization: figure.utilization,
            })
        })
        .collect()
}

/// The model's duration in seconds, and FU.
fn model(shape: ProblemShape, calibration: Calibration) -> Result<(f64, f64), String> {
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

/// Constants within their domains.
fn constants(x: [f64; 3]) -> Calibration {
    Calibration {
        launch: x[0].max(0.0),
        hbm_share: x[1].clamp(0.05, 1.0),
        clock_share: x[2].clamp(0.05, 1.0),
    }
}

/// The constants that fit the chosen cells best.
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
        // The normal equations. The damping fixes a constant on which the cells don't depend.
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

/// Worst and mean error of FU over the cells that weren't chosen, in points.
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

/// Every choice of four of `n`.
fn choices(n: usize) -> impl Iterator<Item = [usize; 4]> {
    (0..n).flat_map(move |a| {
        (a + 1..n)
            .flat_map(move |b| (b + 1..n).flat_map(move |c| (c + 1..n).map(move |d| [a, b, c, d])))
    })
}

/// The solution of three linear equations, by Cramer's rule.
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
