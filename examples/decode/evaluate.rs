//! How well and how fast a case is computed.

use std::borrow::Cow;
use std::time::Duration;

use amla::{Elements, Error, Output};

use crate::case::Case;
use crate::engine::{Engine, output_shape};
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
        measured: engine.measure(&case.problem(), case.flop(), BUDGET)?,
    })
}

/// `o` and `lse`, laid out as what the case expects.
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
