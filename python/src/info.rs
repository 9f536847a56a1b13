//! What holds for the whole process: backends, and how many threads calls have.

use amla::{Backend, BackendId};
use pyo3::prelude::{PyResult, pyfunction};

use crate::error::{refused, value};
use crate::pool;

/// The fastest backend of this processor.
#[pyfunction]
pub fn backend() -> &'static str {
    Backend::detect().id().name()
}

/// All backends that this processor can run, the slowest first.
#[pyfunction]
pub fn backends() -> Vec<&'static str> {
    let available = |id: &BackendId| Backend::request(*id).is_ok();
    let ids = BackendId::ALL.into_iter().filter(available);
    ids.map(BackendId::name).collect()
}

/// Has Linux let this process use Intel's AMX, and returns whether it may. Call it before anything else.
#[pyfunction]
pub fn permit_amx() -> bool {
    Backend::permit_amx()
}

/// Bars faster backends from this process. Call it before anything else.
#[pyfunction]
pub fn set_max_backend(name: &str) -> PyResult<()> {
    Backend::set_max(backend_id(name)?).map_err(refused)
}

/// Threads of calls that don't say how many. At first all that the process may use.
#[pyfunction]
pub fn set_num_threads(threads: usize) -> PyResult<()> {
    pool::set_default(threads)
}

/// Threads of calls that don't say how many.
#[pyfunction]
pub fn get_num_threads() -> usize {
    pool::default()
}

/// The backend of a name.
pub fn backend_id(name: &str) -> PyResult<BackendId> {
    BackendId::from_name(name).ok_or_else(|| {
        let names = BackendId::ALL.map(BackendId::name).join(", ");
        value(format!("backend is {name:?}, not one of {names}"))
    })
}
