//! What torch, numpy and DLPack say of a tensor.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyErr, PyResult, Python};
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyCapsule, PyCapsuleMethods, PyString, PyStringMethods, PyTuple, PyTupleMethods, PyType,
};
use pyo3::{ffi, intern};

use crate::dtype::Dtype;
use crate::error::{kind, type_name, value};

/// Dimensions of a tensor at most.
pub const MAX_DIMS: usize = 8;

/// Whose tensor it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    Torch,
    Numpy,
    Other,
}

/// What a framework says of a tensor's memory.
pub struct Memory<'py> {
    pub dtype: Dtype,
    pub address: usize,
    pub dims: Numbers,
    /// In bytes; `None` where elements are contiguous.
    pub strides: Option<Numbers>,
    pub writable: bool,
    /// What the memory belongs to, if not to the object itself.
    pub owner: Option<Bound<'py, PyAny>>,
}

impl Memory<'_> {
    /// A new tensor's.
    pub fn contiguous(name: &str, dtype: Dtype, address: usize, dims: &[usize]) -> PyResult<Self> {
        let number = |dim: &usize| Ok(i64::try_from(*dim).unwrap_or(i64::MAX));
        Ok(Self {
            dtype,
            address,
            dims: Numbers::new(name, dims.iter().map(number))?,
            strides: None,
            writable: true,
            owner: None,
        })
    }
}

/// A number for each dimension.
#[derive(Clone, Copy, Default)]
pub struct Numbers {
    len: usize,
    numbers: [i64; MAX_DIMS],
}

impl Numbers {
    pub fn new(
        name: &str,
        numbers: impl ExactSizeIterator<Item = PyResult<i64>>,
    ) -> PyResult<Self> {
        let len = numbers.len();
        if len > MAX_DIMS {
            return Err(value(format!(
                "{name} has {len} dimensions, more than {MAX_DIMS}"
            )));
        }
        let mut own = Self {
            len,
            ..Self::default()
        };
        for (to, number) in own.numbers.iter_mut().zip(numbers) {
            *to = number?;
        }
        Ok(own)
    }

    pub fn as_slice(&self) -> &[i64] {
        &self.numbers[..self.len]
    }
}

/// Reads a tensor.
pub fn read<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<(Framework, Memory<'py>)> {
    let py = object.py();
    match framework(object)? {
        Framework::Numpy => return Ok((Framework::Numpy, numpy(name, object)?)),
        Framework::Torch => return Ok((Framework::Torch, torch(name, object)?)),
        Framework::Other => {}
    }
    if object.hasattr(intern!(py, "__dlpack__"))? {
        return Ok((Framework::Other, dlpack(name, object)?));
    }
    if object.hasattr(intern!(py, "__array_interface__"))? {
        let array = py.import("numpy")?.call_method1("asarray", (object,))?;
        let mut memory = numpy(name, &array)?;
        memory.owner = Some(array);
        return Ok((Framework::Other, memory));
    }
    let own = type_name(object);
    Err(kind(format!(
        "{name} is of type {own}, which is no tensor: it has neither __dlpack__ nor __array_interface__"
    )))
}

/// Whose tensor an object is.
fn framework(object: &Bound<'_, PyAny>) -> PyResult<Framework> {
    static NUMPY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static TORCH: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = object.py();
    let classes = [
        (
            class(&NUMPY, intern!(py, "numpy"), intern!(py, "ndarray")),
            Framework::Numpy,
        ),
        (
            class(&TORCH, intern!(py, "torch"), intern!(py, "Tensor")),
            Framework::Torch,
        ),
    ];
    // Most objects are of one of them, and not of one derived.
    let own = object.get_type();
    for (class, framework) in classes {
        if class.is_some_and(|class| own.is(class)) {
            return Ok(framework);
        }
    }
    for (class, framework) in classes {
        if let Some(class) = class
            && object.is_instance(class.bind(py))?
        {
            return Ok(framework);
        }
    }
    Ok(Framework::Other)
}

/// A class of a module that someone has imported.
fn class<'c>(
    cell: &'c PyOnceLock<Py<PyType>>,
    module: &Bound<'_, PyString>,
    class: &Bound<'_, PyString>,
) -> Option<&'c Py<PyType>> {
    let py = module.py();
    if let Some(class) = cell.get(py) {
        return Some(class);
    }
    // SAFETY: a string, with the GIL; what it returns is null or a new reference.
    let module = unsafe {
        let module = ffi::PyImport_GetModule(module.as_ptr());
        Bound::from_owned_ptr_or_opt(py, module)
    };
    let Some(module) = module else {
        // Null may be an error, too.
        let _ = PyErr::take(py);
        return None;
    };
    // While it is being imported it has no classes yet.
    let class = module.getattr(class).ok()?.cast_into::<PyType>().ok()?;
    Some(cell.get_or_init(py, || class.unbind()))
}

/// The dtype that an object of torch's or numpy's is, by its name.
fn dtype(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    /// There is one object for each dtype. Others of the same name are looked up.
    static KNOWN: Mutex<Vec<(Py<PyAny>, Dtype)>> = Mutex::new(Vec::new());
    const MAX: usize = 32;
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_known = |(known, _): &&(Py<PyAny>, Dtype)| known.is(object);
    if let Some((_, dtype)) = lock().iter().find(is_known) {
        return Ok(*dtype);
    }
    // Without the lock, as Python code may wait for it.
    let own = object.str()?;
    let own = own.to_string_lossy();
    let Some(dtype) = Dtype::from_name(&own) else {
        let names = Dtype::names(Dtype::ALL);
        return Err(kind(format!("{name} has dtype {own}, not {names}")));
    };
    let mut known = lock();
    if known.len() < MAX {
        known.push((object.clone().unbind(), dtype));
    }
    Ok(dtype)
}

fn torch<'py>(name: &str, tensor: &Bound<'py, PyAny>) -> PyResult<Memory<'py>> {
    let py = tensor.py();
    let get = |attribute| tensor.getattr(attribute);
    if !get(intern!(py, "is_cpu"))?.is_truthy()? {
        let device = get(intern!(py, "device"))?;
        return Err(value(format!(
            "{name} is on device {device}, not on the CPU"
        )));
    }
    let dtype = dtype(name, &get(intern!(py, "dtype"))?)?;
    // As of the imaginary part of a conjugate.
    if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
        let text = "is a view that negates its memory: its resolve_neg() has the numbers";
        return Err(value(format!("{name} {text}")));
    }
    let strides = tensor.call_method0(intern!(py, "stride"))?;
    let address = tensor.call_method0(intern!(py, "data_ptr"))?;
    Ok(Memory {
        dtype,
        address: address.extract()?,
        dims: numbers(name, &get(intern!(py, "shape"))?, 1)?,
        strides: Some(numbers(name, &strides, dtype.size())?),
        writable: true,
        owner: None,
    })
}

/// A tuple of numbers, each times `size`.
fn numbers(name: &str, tuple: &Bound<'_, PyAny>, size: usize) -> PyResult<Numbers> {
    let tuple = tuple.cast::<PyTuple>()?;
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    let number = |number: Bound<'_, PyAny>| Ok(number.extract::<i64>()?.saturating_mul(size));
    Numbers::new(name, tuple.iter().map(number))
}

/// numpy's `PyArrayInterface`.
#[repr(C)]
struct ArrayInterface {
    two: c_int,
    nd: c_int,
    typekind: c_char,
    itemsize: c_int,
    flags: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *mut c_void,
    descr: *mut ffi::PyObject,
}

impl ArrayInterface {
    const WRITEABLE: c_int = 0x400;
}

fn numpy<'py>(name: &str, array: &Bound<'py, PyAny>) -> PyResult<Memory<'py>> {
    let py = array.py();
    let dtype = dtype(name, &array.getattr(intern!(py, "dtype"))?)?;
    if array.hasattr(intern!(py, "mask"))? {
        let text = "is a masked array, whose mask would not count";
        return Err(kind(format!("{name} {text}")));
    }
    let capsule = array.getattr(intern!(py, "__array_struct__"))?;
    let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(None)?;
    // SAFETY: numpy's `__array_struct__` is a capsule of this struct, which lives as long as the capsule.
    let interface = unsafe { pointer.cast::<ArrayInterface>().as_ref() };
    let ndim = usize::try_from(interface.nd).unwrap_or(usize::MAX);
    let numbers = |numbers| {
        // SAFETY: the struct has `nd` dimensions and strides.
        let numbers = unsafe { list(numbers, ndim) };
        let to_i64 = |&number: &isize| i64::try_from(number).unwrap_or(i64::MAX);
        Numbers::new(name, numbers.iter().map(|number| Ok(to_i64(number))))
    };
    Ok(Memory {
        dtype,
        address: interface.data as usize,
        dims: numbers(interface.shape)?,
        strides: Some(numbers(interface.strides)?),
        writable: interface.flags & ArrayInterface::WRITEABLE != 0,
        owner: None,
    })
}

/// Some numbers in memory, or none.
///
/// # Safety
/// There are `len` at the pointer, unless it is null, for as long as the slice.
unsafe fn list<'a, T>(pointer: *const T, len: usize) -> &'a [T] {
    if pointer.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: this function's contract.
    unsafe { slice::from_raw_parts(pointer, len) }
}

/// DLPack's `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// DLPack's `DLManagedTensorVersioned`.
#[repr(C)]
struct DlVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: DlTensor,
}

impl DlTensor {
    const CPU: i32 = 1;

    fn dtype(&self) -> Option<Dtype> {
        let dtype = match (self.code, self.bits) {
            (0, 8) => Dtype::I8,
            (0, 32) => Dtype::I32,
            (0, 64) => Dtype::I64,
            (1, 8) => Dtype::U8,
            (1, 16) => Dtype::U16,
            (2, 16) => Dtype::F16,
            (2, 32) => Dtype::F32,
            (4, 16) => Dtype::Bf16,
            (6, 8) => Dtype::Bool,
            (10, 8) => Dtype::E4m3,
            _ => return None,
        };
        (self.lanes == 1).then_some(dtype)
    }
}

/// DLPack has no word for memory that can't be written before its version 1; others' outputs aren't written.
fn dlpack<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Memory<'py>> {
    const PLAIN: &CStr = c"dltensor";
    const VERSIONED: &CStr = c"dltensor_versioned";
    let capsule = object.call_method0(intern!(object.py(), "__dlpack__"))?;
    let content = capsule.cast::<PyCapsule>()?;
    let tensor: &DlTensor = if content.is_valid_checked(Some(VERSIONED)) {
        let pointer = content.pointer_checked(Some(VERSIONED))?;
        // SAFETY: what a capsule of this name holds, by DLPack, for as long as the capsule lives. All versions begin alike.
        let versioned = unsafe { pointer.cast::<DlVersioned>().as_ref() };
        if versioned.major != 1 {
            let major = versioned.major;
            return Err(kind(format!("{name} has version {major} of DLPack, not 1")));
        }
        &versioned.tensor
    } else {
        let pointer = content.pointer_checked(Some(PLAIN))?;
        // SAFETY: what a capsule of this name holds begins with its tensor.
        unsafe { pointer.cast::<DlTensor>().as_ref() }
    };
    if tensor.device_type != DlTensor::CPU {
        let device = tensor.device_type;
        return Err(value(format!(
            "{name} is on a device of DLPack's type {device}, not on the CPU"
        )));
    }
    let dtype = tensor.dtype().ok_or_else(|| {
        let (code, bits) = (tensor.code, tensor.bits);
        let names = Dtype::names(Dtype::ALL);
        kind(format!(
            "{name} has DLPack's type {code} of {bits} bits, not {names}"
        ))
    })?;
    let ndim = usize::try_from(tensor.ndim).unwrap_or_default();
    let numbers = |numbers: *const i64, size: usize| {
        // SAFETY: there are `ndim` of either, or none.
        let numbers = unsafe { list(numbers, ndim) };
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        Numbers::new(name, numbers.iter().map(|n| Ok(n.saturating_mul(size))))
    };
    let strides = (!tensor.strides.is_null()).then(|| numbers(tensor.strides, dtype.size()));
    let offset = usize::try_from(tensor.byte_offset).unwrap_or(usize::MAX);
    Ok(Memory {
        dtype,
        address: (tensor.data as usize).saturating_add(offset),
        dims: numbers(tensor.shape, 1)?,
        strides: strides.transpose()?,
        writable: false,
        owner: Some(capsule),
    })
}

/// An attribute of a module, looked up once.
pub fn cached<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyAny>>,
    module: &str,
    attribute: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let get = || PyResult::Ok(py.import(module)?.getattr(attribute)?.unbind());
    Ok(cell.get_or_try_init(py, get)?.bind(py).clone())
}
