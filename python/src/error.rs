//! How errors are raised: the library's as `ValueError`, with the names that arguments have in Python.

use pyo3::PyErr;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyTypeMethods};

/// Names of the library's arguments, and of Python's.
const NAMES: &[(&str, &str)] = &[
    ("d_v", "head_dim_v"),
    ("extra_indices", "extra_indices_in_kvcache"),
    ("extra_kv", "extra_k_cache"),
    ("kv_indptr", "cu_seqlens_k"),
    ("o", "out"),
    ("q_indptr", "cu_seqlens_q"),
    ("sink", "attn_sink"),
    ("v_offset", "value_offset"),
];

/// The library's sentence.
pub fn refused(error: amla::Error) -> PyErr {
    value(rename(&error.to_string()))
}

pub fn value(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

pub fn kind(message: impl Into<String>) -> PyErr {
    PyTypeError::new_err(message.into())
}

/// An argument that a function hasn't.
pub fn unknown(function: &str, argument: &str) -> PyErr {
    kind(format!(
        "{function}() got an unexpected keyword argument '{argument}'"
    ))
}

fn rename(sentence: &str) -> String {
    let mut renamed = String::new();
    let mut rest = sentence;
    while !rest.is_empty() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        let known = NAMES.iter().find(|(own, _)| *own == name);
        renamed.push_str(known.map_or(name, |(_, python)| python));
        let other = behind.find(is_name).unwrap_or(behind.len());
        renamed.push_str(&behind[..other]);
        rest = &behind[other..];
    }
    renamed
}

/// The name of an object's type.
pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().name();
    name.map_or_else(|_| "object".to_owned(), |name| name.to_string())
}
