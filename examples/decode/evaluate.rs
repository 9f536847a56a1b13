//! Errors and speed of a case.

use std::borrow::Cow;
use std::time::Duration;

use amla::{Elements, Error, Output};

use amla_examples::engine::{Engine, output_shape};
use amla_examples::metrics::{relative_frobenius, worst};
use amla_examples::problem::Case;

use crate::reference;
use crate::report::Record;
use crate::tolerance;

/// Time to measure each problem's speed.
const BUDGET: Duration = Duration::from_millis(500);

/// The results that a case should have.
pub struct Truth<'a> {
    name: &'static str,
    o: Cow<'a, [f64]>,
    lse: Option<Cow<'a, [f64]>>,
    base_error: f64,
}

impl<'a> Truth<'a> {
    /// The case's expected values, or else Golden.
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
            base_error: relative_frobenius(&reference::base(case)?, &o),
            o,
        })
    }
}

/// Computes the case and compares. `tolerance` is the command line's, if it has one.
///
/// # Errors
/// The problem is malformed.
pub fn evaluate<'a>(
    engine: &mut Engine,
    name: &'a str,
    case: &Case,
    truth: &Truth,
    tolerance: Option<f64>,
) -> Result<Record<'a>, Error> {
    let (o, lse) = solve(engine, case)?;
    Ok(Record {
        problem: name,
        shape: case.shape,
        causal: case.causal,
        window: case.window,
        options: engine.options,
        dtypes: case.dtypes(),
        threads: engine.threads(),
        reference: truth.name,
        tolerance: tolerance.unwrap_or_else(|| tolerance::usual(&engine.options, case)),
        error: relative_frobenius(&o, &truth.o),
        base_error: truth.base_error,
        worst: worst(&o, &truth.o),
        lse_error: truth.lse.as_ref().map(|truth| worst(&lse, truth)),
        largest_lse: truth.lse.as_ref().map_or(0.0, |truth| largest(truth)),
        measured: engine.measure(&case.problem(), case.flop(), BUDGET)?,
    })
}

/// The largest magnitude of a finite element.
fn largest(values: &[f64]) -> f64 {
    let finite = values.iter().filter(|x| x.is_finite());
    finite.fold(0.0, |largest, x| x.abs().max(largest))
}

/// `o` and `lse` in the layout of the case's expected values.
///
/// # Errors
/// The problem is malformed.
pub fn solve(engine: &mut Engine, case: &Case) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let rows = case.rows.iter().product::<usize>();
    let (mut o, mut lse) = (vec![0.0; rows * case.shape.d_v], vec![0.0; rows]);
    let problem = case.problem();
    let output = Output::dense(output_shape(&problem), Elements::F32(&mut o), &mut lse);
    engine.run(&problem, output)?;
    Ok((o, lse))
}
