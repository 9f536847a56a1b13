//! The Python package `amla`: the library's calls on tensors of torch, numpy and whatever else has DLPack.
//!
//! | module | has |
//! |---|---|
//! | `dtype` | what elements are |
//! | `foreign` | what torch, numpy and DLPack say of a tensor |
//! | `tensor` | tensors in memory, read from Python's objects |
//! | `rows` | their rows as numbers or blocks |
//! | `options` | arguments that are numbers and words |
//! | `arguments` | the arguments of a call, and its problem |
//! | `output` | tensors for results |
//! | `call` | `decode` |
//! | `plan`, `merge`, `encode` | the functions of that name |
//! | `pool` | threads and their memory |
//! | `info` | backends and threads of the process |
//! | `error` | how errors are raised |

mod arguments;
mod call;
mod dtype;
mod encode;
mod error;
mod foreign;
mod info;
mod merge;
mod options;
mod output;
mod plan;
mod pool;
mod rows;
mod tensor;

/// The extension module; `amla/__init__.py` has its names.
#[pyo3::pymodule]
mod _amla {
    use pyo3::prelude::{Bound, PyAnyMethods, PyModule, PyModuleMethods, PyResult};
    use pyo3::types::IntoPyDict;
    use pyo3::wrap_pyfunction;

    #[pymodule_export]
    use crate::call::decode;
    #[pymodule_export]
    use crate::encode::encode;
    #[pymodule_export]
    use crate::info::{
        backend, backends, get_num_threads, permit_amx, set_max_backend, set_num_threads,
    };
    #[pymodule_export]
    use crate::merge::merge;
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::rows::Rows;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // Where processes fork: the new one has none of the threads.
        if let Ok(register) = module.py().import("os")?.getattr("register_at_fork") {
            let forget = wrap_pyfunction!(crate::pool::forget_threads, module)?;
            let named = [("after_in_child", forget)].into_py_dict(module.py())?;
            register.call((), Some(&named))?;
        }
        Ok(())
    }
}
