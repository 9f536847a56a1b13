//! Tensors in memory, read from Python's objects without a copy.
//!
//! torch's are read by their attributes, which is faster than DLPack. numpy's are read by `__array_struct__`, which is
//! `__array_interface__` in C, and by their dtype's name: numpy has BF16 neither in buffers nor in DLPack. Others are
//! read by DLPack, or as numpy reads them.

use std::ops::Range;
use std::slice;

use bytemuck::Pod;
use pyo3::prelude::{Bound, PyAny, PyResult};

use crate::dtype::Dtype;
use crate::error::{kind, value};
use crate::foreign::{self, Framework, MAX_DIMS, Memory};

/// A tensor on the CPU. Its memory stays for as long as this does.
pub struct Tensor<'py> {
    /// The argument's.
    pub name: &'static str,
    pub object: Bound<'py, PyAny>,
    pub framework: Framework,
    pub dtype: Dtype,
    /// A multiple of the dtype's size.
    address: usize,
    ndim: usize,
    dims: [usize; MAX_DIMS],
    /// In elements.
    strides: [usize; MAX_DIMS],
    /// Elements from the first to the last, both included.
    extent: usize,
    writable: bool,
    _owner: Option<Bound<'py, PyAny>>,
}

impl<'py> Tensor<'py> {
    /// Reads an argument.
    pub fn read(name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let (framework, memory) = foreign::read(name, object)?;
        Self::new(name, object.clone(), framework, memory)
    }

    /// A tensor whose memory is known.
    pub fn new(
        name: &'static str,
        object: Bound<'py, PyAny>,
        framework: Framework,
        memory: Memory<'py>,
    ) -> PyResult<Self> {
        let (dims, size) = (&memory.dims, memory.dtype.size());
        let mut tensor = Self {
            name,
            object,
            framework,
            dtype: memory.dtype,
            address: memory.address,
            ndim: dims.as_slice().len(),
            dims: [0; MAX_DIMS],
            strides: [0; MAX_DIMS],
            extent: 1,
            writable: memory.writable,
            _owner: memory.owner,
        };
        let too_large = || value(format!("sizes and strides of {name} overflow"));
        // Where there are no elements, strides may be anything.
        let strides = memory.strides.filter(|_| !dims.as_slice().contains(&0));
        let mut inner = size;
        for i in (0..dims.as_slice().len()).rev() {
            let dim = usize::try_from(dims.as_slice()[i]).map_err(|_| too_large())?;
            let stride = match &strides {
                Some(strides) if dim > 1 => stride(name, memory.dtype, i, strides.as_slice()[i])?,
                // Of one element, where it may be anything, or contiguous.
                _ => inner / size,
            };
            inner = inner.checked_mul(dim.max(1)).ok_or_else(too_large)?;
            (tensor.dims[i], tensor.strides[i]) = (dim, stride);
            let behind = dim.saturating_sub(1).checked_mul(stride);
            let extent = behind.and_then(|behind| tensor.extent.checked_add(behind));
            tensor.extent = extent.ok_or_else(too_large)?;
        }
        if tensor.dims().contains(&0) {
            tensor.extent = 0;
            return Ok(tensor);
        }
        let bytes = tensor.extent.checked_mul(size);
        let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
        let end = bytes.and_then(|bytes| tensor.address.checked_add(bytes));
        end.ok_or_else(too_large)?;
        if tensor.address == 0 {
            return Err(value(format!("{name} has no memory")));
        }
        tensor.expect_aligned(size)?;
        Ok(tensor)
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.ndim]
    }

    /// In elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.ndim]
    }

    /// The addresses of its memory.
    pub fn range(&self) -> Range<usize> {
        self.address..self.address + self.extent * self.dtype.size()
    }

    pub fn is_contiguous(&self) -> bool {
        let mut inner = 1;
        let mut dims = self.dims().iter().zip(self.strides()).rev();
        self.extent == 0
            || dims.all(|(&dim, &stride)| {
                let fits = dim == 1 || stride == inner;
                inner *= dim;
                fits
            })
    }

    /// Refuses other dtypes.
    pub fn expect_dtype(&self, dtypes: &[Dtype]) -> PyResult<()> {
        if dtypes.contains(&self.dtype) {
            return Ok(());
        }
        let (name, own, others) = (self.name, self.dtype.name(), Dtype::names(dtypes));
        Err(kind(format!("{name} is {own}, not {others}")))
    }

    /// Refuses other numbers of dimensions.
    pub fn expect_ndim(&self, ndims: &[usize]) -> PyResult<()> {
        if ndims.contains(&self.ndim) {
            return Ok(());
        }
        let ndims: Vec<_> = ndims.iter().map(ToString::to_string).collect();
        let (name, ndim, ndims) = (self.name, self.ndim, ndims.join(" or "));
        Err(value(format!("{name} has {ndim} dimensions, not {ndims}")))
    }

    /// Refuses other dimensions.
    pub fn expect_dims(&self, dims: &[usize]) -> PyResult<()> {
        if self.dims() == dims {
            return Ok(());
        }
        let (name, own) = (self.name, self.dims());
        Err(value(format!(
            "{name} has dimensions {own:?}, not {dims:?}"
        )))
    }

    /// Refuses gaps within rows.
    pub fn expect_rows(&self) -> PyResult<()> {
        match (self.dims().last(), self.strides().last()) {
            (Some(2..), Some(stride)) if *stride != 1 => {
                let (name, last) = (self.name, self.ndim - 1);
                Err(value(format!(
                    "{name} has stride {stride} in dimension {last}, the last, where elements must be contiguous"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses gaps.
    pub fn expect_contiguous(&self) -> PyResult<()> {
        if self.is_contiguous() {
            return Ok(());
        }
        Err(value(format!("{} is not contiguous", self.name)))
    }

    pub fn expect_aligned(&self, align: usize) -> PyResult<()> {
        if self.address.is_multiple_of(align) {
            return Ok(());
        }
        let name = self.name;
        Err(value(format!("{name} is not aligned to {align} bytes")))
    }

    /// All of its memory, from the first element to the last, as values of some type.
    pub fn elements<T: Pod>(&self) -> PyResult<&[T]> {
        let len = self.len_of::<T>()?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: a framework said that the memory is there, and `self` holds the objects that it belongs to. It has `len` values of
        // `T`, at an aligned address (`len_of`), of any bits (`Pod`). That nobody writes it meanwhile is the rule of the package's
        // callers.
        Ok(unsafe { slice::from_raw_parts(self.address as *const T, len) })
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// No other slice of this memory exists while this one does.
    #[expect(clippy::mut_from_ref, reason = "the memory is the caller's")]
    pub unsafe fn elements_mut<T: Pod>(&self) -> PyResult<&mut [T]> {
        if !self.writable {
            return Err(value(format!("{} can't be written", self.name)));
        }
        let len = self.len_of::<T>()?;
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `elements`; it is writable, and exclusive by this function's contract and by the rule of the package's
        // callers that nobody else touches outputs.
        Ok(unsafe { slice::from_raw_parts_mut(self.address as *mut T, len) })
    }

    /// How many values of a type its memory has.
    fn len_of<T>(&self) -> PyResult<usize> {
        if self.extent > 0 {
            self.expect_aligned(align_of::<T>())?;
        }
        Ok(self.extent * self.dtype.size() / size_of::<T>())
    }
}

/// A stride in elements, of bytes.
fn stride(name: &str, dtype: Dtype, dimension: usize, bytes: i64) -> PyResult<usize> {
    let stride = usize::try_from(bytes).ok();
    match stride.filter(|stride| stride.is_multiple_of(dtype.size())) {
        Some(stride) => Ok(stride / dtype.size()),
        None => Err(value(format!(
            "{name} has a stride of {bytes} bytes in dimension {dimension}, not a multiple of {} of at least 0",
            dtype.size()
        ))),
    }
}

/// Refuses outputs that overlap inputs or each other. All slices of tensors are made behind this.
pub fn check_overlaps<'t, 'py: 't>(
    inputs: impl Iterator<Item = &'t Tensor<'py>> + Clone,
    outputs: &[&'t Tensor<'py>],
) -> PyResult<()> {
    for (i, output) in outputs.iter().enumerate() {
        let own = output.range();
        let others = inputs.clone().chain(outputs[..i].iter().copied());
        for other in others {
            let range = other.range();
            let is_empty = own.is_empty() || range.is_empty();
            if !is_empty && own.start < range.end && range.start < own.end {
                let (name, other) = (output.name, other.name);
                return Err(value(format!("{name} overlaps {other} in memory")));
            }
        }
    }
    Ok(())
}
