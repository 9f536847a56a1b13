//! `merge`.

use amla::{Elements, Lse, Output, Part, ProblemShape};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyResult, Python, pyfunction};
use pyo3::types::{PyDict, PyString};

use crate::dtype::Dtype;
use crate::error::{refused, unknown, value};
use crate::options::set_lse;
use crate::output::{self, Wanted};
use crate::tensor::{Tensor, check_overlaps};

/// O and lse over all keys, of the results over some of them each: a shared prefix, or a cache sharded over processes.
///
/// All are float32 and contiguous, `out` and `lse` among them: O `[b, s_q, h_q, d_v]` and lse `[b, h_q, s_q]`, or
/// `[tokens, h_q, d_v]` and `[h_q, tokens]`. `out` may be `outs[0]`, and `lse` `lses[0]`. The same results in the same order
/// give the same bits. Results with a sink can't be merged.
#[pyfunction]
#[pyo3(
    signature = (outs, lses, **named),
    text_signature = "(outs, lses, *, out=None, lse=None, lse_base='e', empty_lse=1e999)"
)]
pub fn merge<'py>(
    py: Python<'py>,
    outs: &Bound<'py, PyAny>,
    lses: &Bound<'py, PyAny>,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let (mut out, mut lse, mut format) = (None, None, Lse::default());
    for (name, argument) in named.into_iter().flatten() {
        let name = name.cast::<PyString>()?.to_string();
        let argument = Some(argument).filter(|argument| !argument.is_none());
        match name.as_str() {
            "out" => out = argument,
            "lse" => lse = argument,
            _ if set_lse(&mut format, &name, argument.as_ref())? => {}
            _ => return Err(unknown("merge", &name)),
        }
    }
    let (outs, lses) = (parts("outs", outs)?, parts("lses", lses)?);
    if outs.len() != lses.len() {
        return Err(value(format!(
            "there are {} outs, but {} lses",
            outs.len(),
            lses.len()
        )));
    }
    let Some((first, first_lse)) = outs.first().zip(lses.first()) else {
        return Err(value("there is nothing to merge"));
    };
    let shape = shape_of(first)?;
    let mut lse_dims = first.dims()[..first.dims().len() - 2].to_vec();
    lse_dims.insert(lse_dims.len() - 1, shape.h_q);
    for (part, lse) in outs.iter().zip(&lses) {
        part.expect_dims(first.dims())?;
        lse.expect_dims(&lse_dims)?;
    }
    let new = |given: Option<&Bound<'py, PyAny>>, name, like: &Tensor<'py>| {
        let wanted = Wanted {
            name,
            like: like.framework,
            dtype: Dtype::F32,
            zeros: false,
        };
        output::given_or_new(given, py, &wanted, like.dims())
    };
    let total = new(out.as_ref(), "out", first)?;
    let total_lse = new(lse.as_ref(), "lse", first_lse)?;
    for tensor in [&total, &total_lse] {
        tensor.expect_dtype(&[Dtype::F32])?;
        tensor.expect_contiguous()?;
    }
    // The first part may be merged into.
    let in_place = [(&total, first), (&total_lse, first_lse)].map(|(a, b)| a.range() == b.range());
    let rest = outs[1..].iter().chain(&lses[1..]);
    let firsts = [(in_place[0], first), (in_place[1], first_lse)];
    let firsts = firsts.into_iter().filter(|(same, _)| !same);
    let inputs = rest.chain(firsts.map(|(_, tensor)| tensor));
    check_overlaps(inputs, &[&total, &total_lse])?;
    let parts: Vec<Part<'_>> = outs[1..]
        .iter()
        .zip(&lses[1..])
        .map(|(o, lse)| {
            Ok(Part {
                o: o.elements()?,
                lse: lse.elements()?,
                max_logits: None,
            })
        })
        .collect::<PyResult<_>>()?;
    let copied = [copied(in_place[0], first)?, copied(in_place[1], first_lse)?];
    // SAFETY: overlaps with what is read were refused above. A first part in place isn't read.
    let o: &mut [f32] = unsafe { total.elements_mut() }?;
    // SAFETY: the same.
    let lse: &mut [f32] = unsafe { total_lse.elements_mut() }?;
    let numbers = [o, lse];
    py.detach(|| merge_into(&shape, numbers, copied, format, &parts))
        .map_err(refused)?;
    Ok((total.object, total_lse.object))
}

/// The numbers of a first part that is copied, as it isn't in place.
fn copied<'a>(in_place: bool, part: &'a Tensor<'_>) -> PyResult<Option<&'a [f32]>> {
    let part = (!in_place).then_some(part);
    part.map(Tensor::elements).transpose()
}

/// Copies the first part, unless it is there, and merges the others into it.
fn merge_into(
    shape: &ProblemShape,
    [o, lse]: [&mut [f32]; 2],
    [first, first_lse]: [Option<&[f32]>; 2],
    format: Lse,
    parts: &[Part<'_>],
) -> Result<(), amla::Error> {
    if let Some(first) = first {
        o.copy_from_slice(first);
    }
    if let Some(first) = first_lse {
        lse.copy_from_slice(first);
    }
    let output = Output {
        lse_format: format,
        ..Output::dense(*shape, Elements::F32(o), lse)
    };
    amla::merge(shape, output, parts)
}

/// Tensors of results, from a sequence of them or a tensor with one more dimension.
fn parts<'py>(name: &'static str, all: &Bound<'py, PyAny>) -> PyResult<Vec<Tensor<'py>>> {
    let mut tensors = Vec::new();
    for part in all.try_iter()? {
        let tensor = Tensor::read(name, &part?)?;
        tensor.expect_dtype(&[Dtype::F32])?;
        tensor.expect_contiguous()?;
        tensors.push(tensor);
    }
    Ok(tensors)
}

/// Sizes of a problem with such a result.
fn shape_of(o: &Tensor<'_>) -> PyResult<ProblemShape> {
    o.expect_ndim(&[3, 4])?;
    let [b, s_q, h_q, d_v] = match *o.dims() {
        [b, s_q, h_q, d_v] => [b, s_q, h_q, d_v],
        [tokens, h_q, d_v] => [1, tokens, h_q, d_v],
        _ => [0; 4],
    };
    Ok(ProblemShape {
        b,
        s_q,
        s_k: 0,
        h_q,
        h_kv: 1,
        d_qk: d_v,
        d_v,
    })
}
