//! Arguments that are numbers and words: how a call is computed, and how lse is written.

use amla::{Backend, EmptyLse, Inputs, Lse, LseBase, Options, Precision, Rescale};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyErr, PyResult};

use crate::error::{kind, refused, type_name, value};
use crate::info::backend_id;

/// A number of something, if it is given.
pub fn count(name: &str, argument: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    let Some(argument) = argument else {
        return Ok(None);
    };
    if let Ok(count) = argument.extract::<usize>() {
        return Ok(Some(count));
    }
    match argument.extract::<i64>() {
        Ok(number) => Err(value(format!("{name} is {number}, less than 0"))),
        Err(_) => Err(wrong(name, argument, "an int")),
    }
}

/// A number, rounded to FP32.
pub fn number(name: &str, argument: Option<&Bound<'_, PyAny>>) -> PyResult<Option<f32>> {
    #[expect(clippy::cast_possible_truncation, reason = "rounds")]
    let round = |number: f64| number as f32;
    extract(name, argument, "a number").map(|number| number.map(round))
}

pub fn truth(name: &str, argument: Option<&Bound<'_, PyAny>>) -> PyResult<Option<bool>> {
    extract(name, argument, "a bool")
}

fn extract<'py, T: FromPyObjectOwned<'py>>(
    name: &str,
    argument: Option<&Bound<'py, PyAny>>,
    needed: &str,
) -> PyResult<Option<T>> {
    let extract = |argument: &Bound<'py, PyAny>| {
        let extracted = argument.extract();
        extracted.map_err(|_| wrong(name, argument, needed))
    };
    argument.map(extract).transpose()
}

fn wrong(name: &str, argument: &Bound<'_, PyAny>, needed: &str) -> PyErr {
    let own = type_name(argument);
    kind(format!("{name} is of type {own}, not {needed}"))
}

/// One of some words, or the first if none is given.
fn choice<T: Copy, const N: usize>(
    name: &str,
    argument: Option<&Bound<'_, PyAny>>,
    choices: [(&str, T); N],
) -> PyResult<T> {
    let own: Option<String> = extract(name, argument, "a str")?;
    let own = own.as_deref().unwrap_or(choices[0].0);
    let found = choices.iter().find(|(word, _)| *word == own);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let words = choices.map(|(word, _)| format!("{word:?}")).join(" or ");
        value(format!("{name} is {own:?}, not {words}"))
    })
}

/// Sets how a call is computed, if it is an argument that says so.
pub fn set_option(
    options: &mut Options,
    name: &str,
    argument: Option<&Bound<'_, PyAny>>,
) -> PyResult<bool> {
    match name {
        "precision" => {
            let choices = [("bf16", Precision::Bf16), ("bf16x2", Precision::Bf16x2)];
            options.precision = choice(name, argument, choices)?;
        }
        "inputs" => {
            let choices = [("as_given", Inputs::AsGiven), ("bf16", Inputs::Bf16)];
            options.inputs = choice(name, argument, choices)?;
        }
        "rescale" => {
            let choices = [
                ("exact", Rescale::Exact),
                ("compensated", Rescale::Compensated),
            ];
            options.rescale = choice(name, argument, choices)?;
        }
        "backend" => {
            let own: Option<String> = extract(name, argument, "a str")?;
            if let Some(own) = own {
                options.backend = Backend::request(backend_id(&own)?).map_err(refused)?;
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Sets how lse is written, if it is an argument that says so.
pub fn set_lse(
    format: &mut Lse,
    name: &str,
    argument: Option<&Bound<'_, PyAny>>,
) -> PyResult<bool> {
    match name {
        "lse_base" => {
            let choices = [("e", LseBase::E), ("2", LseBase::Two)];
            format.base = choice(name, argument, choices)?;
        }
        "empty_lse" => {
            format.empty = match number(name, argument)? {
                None | Some(f32::INFINITY) => EmptyLse::Infinity,
                Some(f32::NEG_INFINITY) => EmptyLse::MinusInfinity,
                Some(other) => return Err(value(format!("empty_lse is {other}, not inf or -inf"))),
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}
