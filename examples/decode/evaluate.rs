//! How well and how fast a case is computed.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use amla::{Elements, Error, Output, Problem, Shape};
use half::bf16;

use crate::case::Case;
use crate::engine::{Engine, Measurement, flop};
use crate::reference;
use crate::report::{Record, relative_error, worst_error};

/// For how long each problem's speed is measured.
const BUDGET: Duration = Duration::from_millis(500);

/// What results are compared with.
pub struct Truth<'a> {
    name: &'static str,
    o: Cow<'a, [f64]>,
    lse: Option<Cow<'a, [f64]>>,
    base_error: f64,
}

impl<'a> Truth<'a> {
    /// What the case expects, or else Golden.
    ///
    /// # Errors
    /// The problem is malformed.
    pub fn of(case: &'a Case) -> Result<Self, Error> {
        let (name, o, golden_lse) = match &case.expected_o {
            Some(o) => ("expected", Cow::from(o), None),
            None => {
                let (o, lse) = reference::golden(case)?;
                ("golden", Cow::from(o), Some(Cow::from(lse)))
            }
        };
        Ok(Self {
            name,
            lse: case.expected_lse.as_ref().map(Cow::from).or(golden_lse),
            base_error: relative_error(&reference::base(case)?, &o),
            o,
        })
    }
}

/// Computes the case and compares.
///
/// # Errors
/// The problem is malformed.
pub fn evaluate<'a>(
    engine: &mut Engine,
    name: &'a str,
    case: &Case,
    truth: &Truth,
) -> Result<Record<'a>, Error> {
    let (o, lse) = solve(engine, case)?;
    Ok(Record {
        problem: name,
        shape: case.shape,
        causal: case.causal,
        window: case.window,
        options: engine.options,
        threads: engine.threads(),
        reference: truth.name,
        error: relative_error(&o, &truth.o),
        base_error: truth.base_error,
        worst: worst_error(&o, &truth.o),
        lse_error: truth.lse.as_ref().map(|truth| worst_error(&lse, truth)),
        measured: measure(engine, case)?,
    })
}

/// `o` and `lse`, laid out as what the case expects.
///
/// # Errors
/// The problem is malformed.
pub fn solve(engine: &mut Engine, case: &Case) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let rows = case.rows.iter().product::<usize>();
    let (mut o, mut lse) = (vec![0.0; rows * case.shape.d_v], vec![0.0; rows]);
    solve_into(engine, case, &mut o, &mut lse)?;
    Ok((o, lse))
}

fn solve_into(
    engine: &mut Engine,
    case: &Case,
    o: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    let [b, s_q, h_q] = case.rows;
    let outputs = Shape {
        b,
        s_q,
        h_q,
        ..case.shape
    };
    let output = Output::dense(outputs, Elements::F32(o), lse);
    engine.run(&case.problem(), output)
}

/// The kernel's speed, over the keys that rows see.
fn measure(engine: &mut Engine, case: &Case) -> Result<Measurement, Error> {
    if case.q_indptr.is_some() {
        return measure_ragged(engine, case);
    }
    let problem = case.problem();
    let measured = engine.measure(&problem, BUDGET)?;
    // The engine counts keys that windows, tails and offsets leave out.
    let counted = flop(&problem);
    let share = if counted > 0.0 {
        case.flop() / counted
    } else {
        1.0
    };
    Ok(Measurement {
        gflops: measured.gflops * share,
        utilization: measured.utilization * share,
        ..measured
    })
}

/// The same for ragged queries, whose outputs the engine has no place for: here it
/// measures the peak only, beside the smallest problem.
fn measure_ragged(engine: &mut Engine, case: &Case) -> Result<Measurement, Error> {
    let shape = Shape {
        b: 1,
        s_q: 1,
        s_k: 0,
        h_q: 1,
        h_kv: 1,
        ..case.shape
    };
    let q = vec![bf16::ZERO; shape.d_qk];
    let smallest = Problem::dense(shape, &q, &[], 1.0);

    let (mut o, mut lse) = solve(engine, case)?;
    let mut kernel = |engine: &mut Engine, runs: u32| {
        let start = Instant::now();
        for _ in 0..runs {
            solve_into(engine, case, &mut o, &mut lse)?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(runs))
    };
    // Long enough for the clock.
    let runs = (4e-3 / kernel(engine, 1)?).ceil().clamp(1.0, 1000.0) as u32;

    let gflop = case.flop() * 1e-9;
    let (mut seconds, mut peaks, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    loop {
        let peak = engine.measure(&smallest, Duration::ZERO)?.peak_gflops;
        let time = kernel(engine, runs)?;
        seconds.push(time);
        peaks.push(peak);
        ratios.push(gflop / time / peak);
        if start.elapsed() >= BUDGET {
            break;
        }
    }
    let [seconds, peak_gflops, utilization] = [seconds, peaks, ratios].map(median);
    Ok(Measurement {
        seconds,
        gflops: gflop / seconds,
        peak_gflops,
        utilization,
        quartiles: [utilization; 2],
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
