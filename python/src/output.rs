//! Tensors for results: those given, or new ones.

use pyo3::intern;
use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyResult, Python};
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyDictMethods, PyTuple};

use crate::dtype::Dtype;
use crate::error::{kind, type_name};
use crate::foreign::{Framework, Memory, cached};
use crate::tensor::Tensor;

/// A tensor for results.
pub struct Wanted {
    pub name: &'static str,
    /// Whose it is, if it is a new one: torch's for its own, otherwise numpy's.
    pub like: Framework,
    pub dtype: Dtype,
    /// Whether a new one has zeros.
    pub zeros: bool,
}

/// A new tensor.
pub fn new<'py>(py: Python<'py>, wanted: &Wanted, dims: &[usize]) -> PyResult<Tensor<'py>> {
    let Wanted {
        name,
        like,
        dtype,
        zeros,
    } = *wanted;
    static TORCH: [PyOnceLock<Py<PyAny>>; 2] = [const { PyOnceLock::new() }; 2];
    static NUMPY: [PyOnceLock<Py<PyAny>>; 2] = [const { PyOnceLock::new() }; 2];
    let sizes = PyTuple::new(py, dims)?;
    if like != Framework::Torch {
        let function = if zeros { "zeros" } else { "empty" };
        let function = cached(py, &NUMPY[usize::from(zeros)], "numpy", function)?;
        return Tensor::read(name, &function.call1((sizes, numpy_dtype(py, dtype)?))?);
    }
    let names = torch_names(py, dtype)?;
    let object = if zeros {
        cached(py, &TORCH[1], "torch", "zeros")?.call((sizes,), Some(&names))?
    } else {
        // It takes two thirds of the time of `empty`.
        let strides = (0..dims.len()).map(|i| dims[i + 1..].iter().product::<usize>().max(1));
        let strides = PyTuple::new(py, strides)?;
        let function = cached(py, &TORCH[0], "torch", "empty_strided")?;
        function.call((sizes, strides), Some(&names))?
    };
    let address = object.call_method0(intern!(py, "data_ptr"))?;
    let memory = Memory::contiguous(name, dtype, address.extract()?, dims)?;
    Tensor::new(name, object, like, memory)
}

/// A tensor given for results, or a new one.
pub fn given_or_new<'py>(
    given: Option<&Bound<'py, PyAny>>,
    py: Python<'py>,
    wanted: &Wanted,
    dims: &[usize],
) -> PyResult<Tensor<'py>> {
    let Some(given) = given else {
        return new(py, wanted, dims);
    };
    let name = wanted.name;
    let tensor = Tensor::read(name, given)?;
    if tensor.framework == Framework::Other {
        let own = type_name(given);
        return Err(kind(format!(
            "{name} is of type {own}, neither torch's tensor nor numpy's array"
        )));
    }
    tensor.expect_dims(dims)?;
    if tensor.framework == Framework::Torch {
        // Backward passes that saved it are then refused.
        static INCREMENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let increment = cached(py, &INCREMENT, "torch.autograd.graph", "increment_version")?;
        increment.call1((given,))?;
    }
    Ok(tensor)
}

/// Named arguments of torch's functions, whatever its default device is.
fn torch_names<'py>(py: Python<'py>, dtype: Dtype) -> PyResult<Bound<'py, PyDict>> {
    static NAMES: [PyOnceLock<Py<PyDict>>; Dtype::ALL.len()] =
        [const { PyOnceLock::new() }; Dtype::ALL.len()];
    let make = || {
        let (names, torch) = (PyDict::new(py), py.import("torch")?);
        names.set_item(intern!(py, "dtype"), torch.getattr(dtype.name())?)?;
        names.set_item(
            intern!(py, "device"),
            torch.call_method1("device", ("cpu",))?,
        )?;
        PyResult::Ok(names.unbind())
    };
    Ok(NAMES[dtype as usize]
        .get_or_try_init(py, make)?
        .bind(py)
        .clone())
}

fn numpy_dtype<'py>(py: Python<'py>, dtype: Dtype) -> PyResult<Bound<'py, PyAny>> {
    static DTYPES: [PyOnceLock<Py<PyAny>>; Dtype::ALL.len()] =
        [const { PyOnceLock::new() }; Dtype::ALL.len()];
    let make = || {
        let named = match dtype {
            Dtype::Bf16 | Dtype::E4m3 => py.import("ml_dtypes")?.getattr(dtype.name())?,
            _ => pyo3::types::PyString::new(py, dtype.name()).into_any(),
        };
        PyResult::Ok(
            py.import("numpy")?
                .call_method1("dtype", (named,))?
                .unbind(),
        )
    };
    Ok(DTYPES[dtype as usize]
        .get_or_try_init(py, make)?
        .bind(py)
        .clone())
}
