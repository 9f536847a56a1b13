//! `encode`.

use std::ops::Range;

use amla::format::{
    MODEL1_ROW, MODEL1_SCALES, encode_e4m3, encode_fp8, encode_int8, encode_model1, encode_q4_0,
    encode_q8_0,
};
use bytemuck::cast_slice_mut;
use half::{bf16, f16};
use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyResult, Python, pyfunction};

use crate::dtype::Dtype;
use crate::error::{kind, refused, value};
use crate::output::{self, Wanted};
use crate::rows::{Format, RowTensor, Rows};
use crate::tensor::{Tensor, check_overlaps};

/// Rows of numbers, `[..., d]`, in a storage format, as `decode` takes them.
///
/// `fp8` (d 576), `model1` (`[pages, page_size, 1, 512]`), `int8` and `e4m3` are encoded from BF16, to which others are
/// rounded; `q8_0` and `q4_0` from FP32, bit for bit as ggml does. x has float32, float16, bfloat16 or uint16 (BF16)
/// numbers. `out`, if it is given, has the format and the dimensions of the result; its rows are overwritten.
#[pyfunction]
#[pyo3(signature = (x, format, *, out=None))]
pub fn encode<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    format: &str,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Py<Rows>> {
    let x = Tensor::read("x", x)?;
    x.expect_dtype(&[Dtype::Bf16, Dtype::U16, Dtype::F16, Dtype::F32])?;
    x.expect_rows()?;
    let format = Format::from_name(format)?;
    let [columns, elements] = format.block();
    if columns == 1 && !format.has_scale() {
        return Err(value(format!("{} rows aren't encoded", format.name())));
    }
    let Some((&width, rows)) = x.dims().split_last() else {
        return Err(value("x has no dimensions"));
    };
    let fits = match format {
        Format::Fp8 | Format::Model1 => width == columns,
        _ => width.is_multiple_of(columns),
    };
    if !fits || format == Format::Model1 && !matches!(rows, [_, _, 1]) {
        let (dims, name) = (x.dims(), format.name());
        return Err(value(format!(
            "x has dimensions {dims:?}, which {name} rows can't have"
        )));
    }
    let mut dims = rows.to_vec();
    dims.push(width / columns * elements);
    let encoded = match &out {
        Some(out) => {
            if !out.is_instance_of::<Rows>() {
                return Err(kind("out is no amla.Rows"));
            }
            RowTensor::read("out", out)?
        }
        None => {
            let new = |dtype, dims: &[usize]| {
                let wanted = Wanted {
                    name: "out",
                    like: x.framework,
                    dtype,
                    zeros: false,
                };
                output::new(py, &wanted, dims)
            };
            RowTensor {
                tensor: new(format.dtypes()[0], &dims)?,
                format,
                scale: match format.has_scale() {
                    true => Some(new(Dtype::F32, rows)?),
                    false => None,
                },
            }
        }
    };
    if encoded.format != format {
        let (own, needed) = (encoded.format.name(), format.name());
        return Err(value(format!("out has {own} rows, not {needed}")));
    }
    encoded.tensor.expect_dims(&dims)?;
    encoded.tensor.expect_rows()?;
    if let Some(scale) = &encoded.scale {
        scale.expect_dtype(&[Dtype::F32])?;
        scale.expect_dims(rows)?;
    }
    let outputs: Vec<_> = encoded.tensors().collect();
    check_overlaps([&x].into_iter(), &outputs)?;
    write_rows(py, &x, &encoded)?;
    match out {
        Some(out) => Ok(out.cast_into::<Rows>()?.unbind()),
        None => Py::new(py, encoded.into_rows()),
    }
}

/// Numbers of rows.
enum Numbers<'a> {
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    F32(&'a [f32]),
}

impl<'a> Numbers<'a> {
    fn of(x: &'a Tensor<'_>) -> PyResult<Self> {
        Ok(match x.dtype {
            Dtype::F16 => Self::F16(x.elements()?),
            Dtype::F32 => Self::F32(x.elements()?),
            _ => Self::Bf16(x.elements()?),
        })
    }

    /// Some of them, rounded to BF16.
    fn to_bf16(&self, range: Range<usize>, row: &mut Vec<bf16>) {
        row.clear();
        match self {
            Self::Bf16(x) => row.extend(&x[range]),
            Self::F16(x) => row.extend(x[range].iter().map(|x| bf16::from_f32(x.to_f32()))),
            Self::F32(x) => row.extend(x[range].iter().map(|&x| bf16::from_f32(x))),
        }
    }

    /// Some of them, exactly.
    fn to_f32(&self, range: Range<usize>, row: &mut Vec<f32>) {
        row.clear();
        match self {
            Self::Bf16(x) => row.extend(x[range].iter().map(|x| x.to_f32())),
            Self::F16(x) => row.extend(x[range].iter().map(|x| x.to_f32())),
            Self::F32(x) => row.extend(&x[range]),
        }
    }
}

/// Encodes all rows, without the GIL. Dimensions and formats were checked.
fn write_rows(py: Python<'_>, x: &Tensor<'_>, encoded: &RowTensor<'_>) -> PyResult<()> {
    let data = &encoded.tensor;
    if x.dims().last() == Some(&0) {
        return Err(value("x has rows of no numbers"));
    }
    encoded.expect_layout()?;
    let scales_strides = encoded.scale.as_ref().map_or(&[][..], Tensor::strides);
    let layout = Layout {
        dims: &data.dims()[..data.dims().len() - 1],
        columns: x.dims()[x.dims().len() - 1],
        width: data.dims()[data.dims().len() - 1],
        strides: [x.strides(), data.strides(), scales_strides],
    };
    let (numbers, format) = (Numbers::of(x)?, encoded.format);
    // SAFETY: that they overlap neither each other nor `x` was checked by the caller.
    let (bytes, scales) = unsafe {
        let scales = match &encoded.scale {
            Some(scale) => scale.elements_mut::<f32>()?,
            None => &mut [],
        };
        (data.elements_mut::<u8>()?, scales)
    };
    py.detach(|| layout.encode(format, &numbers, bytes, scales))
        .map_err(refused)
}

/// Rows of numbers, and where they go.
struct Layout<'a> {
    /// How many there are.
    dims: &'a [usize],
    /// Numbers of a row.
    columns: usize,
    /// Bytes of an encoded row.
    width: usize,
    /// Of numbers, bytes and scales.
    strides: [&'a [usize]; 3],
}

impl Layout<'_> {
    /// Where row `i` begins.
    fn start(&self, mut i: usize, strides: &[usize]) -> usize {
        let mut start = 0;
        for (dim, stride) in self.dims.iter().zip(strides).rev() {
            start += i % dim * stride;
            i /= dim;
        }
        start
    }

    fn encode(
        &self,
        format: Format,
        numbers: &Numbers<'_>,
        bytes: &mut [u8],
        scales: &mut [f32],
    ) -> Result<(), amla::Error> {
        let (mut narrow, mut wide) = (Vec::new(), Vec::new());
        for i in 0..self.dims.iter().product() {
            let [from, to, scale] = self.strides.map(|strides| self.start(i, strides));
            let row = from..from + self.columns;
            match format {
                Format::Q8_0 | Format::Q4_0 => numbers.to_f32(row, &mut wide),
                _ => numbers.to_bf16(row, &mut narrow),
            }
            if format == Format::Model1 {
                // Behind all rows of a page are their scales.
                let (page, slot) = (i / self.dims[1], i % self.dims[1]);
                let page = &mut bytes[page * self.strides[1][0]..];
                let (rows, scales) = page.split_at_mut(self.dims[1] * MODEL1_ROW);
                let row = &mut rows[slot * MODEL1_ROW..][..MODEL1_ROW];
                let scales = &mut scales[slot * MODEL1_SCALES..][..MODEL1_SCALES];
                encode_model1(&narrow, row, scales)?;
                continue;
            }
            let bytes = &mut bytes[to..to + self.width];
            match format {
                Format::Q8_0 => encode_q8_0(&wide, cast_slice_mut(bytes))?,
                Format::Q4_0 => encode_q4_0(&wide, cast_slice_mut(bytes))?,
                Format::Int8 => scales[scale] = encode_int8(&narrow, cast_slice_mut(bytes))?,
                Format::E4m3 => scales[scale] = encode_e4m3(&narrow, bytes)?,
                _ => encode_fp8(&narrow, bytes)?,
            }
        }
        Ok(())
    }
}
