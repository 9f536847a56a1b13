//! Rows of queries, keys and values: numbers, or the storage formats of caches.

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES, Q4_0, Q8_0};
use amla::{Data, TensorRef};
use half::{bf16, f16};
use pyo3::prelude::{Bound, Py, PyAny, PyResult, Python, pyclass, pymethods};

use crate::dtype::Dtype;
use crate::error::{kind, value};
use crate::tensor::Tensor;

/// How rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Bf16,
    F16,
    F32,
    Fp8,
    Model1,
    Int8,
    E4m3,
    Q8_0,
    Q4_0,
}

/// Bytes of a row of MODEL1 with its scales, which is the width of a page's tensor.
pub const MODEL1_WIDTH: usize = MODEL1_ROW + MODEL1_SCALES;
/// Columns of an FP8 row.
pub const FP8_COLUMNS: usize = 576;
/// Columns of a MODEL1 row.
pub const MODEL1_COLUMNS: usize = 512;

impl Format {
    const ALL: [Self; 9] = [
        Self::Bf16,
        Self::F16,
        Self::F32,
        Self::Fp8,
        Self::Model1,
        Self::Int8,
        Self::E4m3,
        Self::Q8_0,
        Self::Q4_0,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Fp8 => "fp8",
            Self::Model1 => "model1",
            Self::Int8 => "int8",
            Self::E4m3 => "e4m3",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    pub fn from_name(name: &str) -> PyResult<Self> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            value(format!("format is {name:?}, not one of {names}"))
        })
    }

    /// Dtypes of tensors with such rows, the one of new ones first.
    pub const fn dtypes(self) -> &'static [Dtype] {
        match self {
            Self::Bf16 => &[Dtype::Bf16, Dtype::U16],
            Self::F16 => &[Dtype::F16],
            Self::F32 => &[Dtype::F32],
            Self::Fp8 | Self::Model1 | Self::E4m3 => &[Dtype::U8, Dtype::E4m3],
            Self::Int8 => &[Dtype::I8],
            Self::Q8_0 | Self::Q4_0 => &[Dtype::U8],
        }
    }

    /// Whether each row has a scale in another tensor.
    pub const fn has_scale(self) -> bool {
        matches!(self, Self::Int8 | Self::E4m3)
    }

    /// Columns of a block, and elements of the tensor that it takes.
    pub const fn block(self) -> [usize; 2] {
        match self {
            Self::Fp8 => [FP8_COLUMNS, FP8_ROW],
            Self::Model1 => [MODEL1_COLUMNS, MODEL1_WIDTH],
            Self::Q8_0 => [amla::format::BLOCK, size_of::<Q8_0>()],
            Self::Q4_0 => [amla::format::BLOCK, size_of::<Q4_0>()],
            _ => [1, 1],
        }
    }

    /// The format of a tensor that is no [`Rows`].
    fn of(tensor: &Tensor<'_>) -> PyResult<Self> {
        let name = tensor.name;
        let width = tensor.dims().last().copied().unwrap_or_default();
        match tensor.dtype {
            Dtype::Bf16 | Dtype::U16 => Ok(Self::Bf16),
            Dtype::F16 => Ok(Self::F16),
            Dtype::F32 => Ok(Self::F32),
            Dtype::U8 | Dtype::E4m3 if width == FP8_ROW => Ok(Self::Fp8),
            Dtype::U8 | Dtype::E4m3 if width == MODEL1_WIDTH => Ok(Self::Model1),
            Dtype::U8 | Dtype::E4m3 => Err(value(format!(
                "{name} has rows of {width} bytes; those of FP8 have {FP8_ROW}, of MODEL1 {MODEL1_WIDTH}, and others need amla.Rows"
            ))),
            other => Err(kind(format!(
                "{name} is {}, which are no rows without amla.Rows",
                other.name()
            ))),
        }
    }
}

/// A tensor whose dtype doesn't say how its rows are stored. `decode` takes it wherever it takes a tensor of rows.
///
/// `fp8`: FlashMLA's rows of 656 bytes. `model1`: FlashMLA's pages, `[pages, page_size, 1, 584]`, whose bytes are `page_size` rows
/// of 576 and then `page_size` times 8 scales. `q8_0`, `q4_0`: ggml's blocks of 34 or 18 bytes for 32 columns. `int8`, `e4m3`:
/// a number for each column, and an FP32 `scale` for each row: `scale` has the dimensions of `data` but the last.
///
/// A plain tensor of bytes (`uint8`, `float8_e4m3fn`) that is 656 or 584 wide is taken as `fp8` or `model1`.
#[pyclass(frozen, module = "amla")]
pub struct Rows {
    /// The tensor.
    #[pyo3(get)]
    pub data: Py<PyAny>,
    pub format: Format,
    /// Each row's scale.
    #[pyo3(get)]
    pub scale: Option<Py<PyAny>>,
}

#[pymethods]
impl Rows {
    #[new]
    #[pyo3(signature = (data, format, scale=None))]
    fn new(data: Py<PyAny>, format: &str, scale: Option<Py<PyAny>>) -> PyResult<Self> {
        let format = Format::from_name(format)?;
        if format.has_scale() != scale.is_some() {
            let (verb, name) = (
                if scale.is_some() { "have no" } else { "need a" },
                format.name(),
            );
            return Err(value(format!("{name} rows {verb} scale")));
        }
        Ok(Self {
            data,
            format,
            scale,
        })
    }

    #[getter]
    fn format(&self) -> &'static str {
        self.format.name()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let tensor = Tensor::read("data", self.data.bind(py))?;
        let (dims, format) = (tensor.dims(), self.format.name());
        Ok(format!("amla.Rows({dims:?}, {format:?})"))
    }
}

/// An argument that is a tensor of rows.
pub struct RowTensor<'py> {
    pub tensor: Tensor<'py>,
    pub format: Format,
    pub scale: Option<Tensor<'py>>,
}

/// A tensor of four dimensions, the third of heads.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub tensor: TensorRef<'a>,
    /// The last one in columns.
    pub dims: [usize; 4],
    /// 1 for a ragged tensor, whose first dimension is made up.
    pub missing: usize,
}

impl<'py> RowTensor<'py> {
    pub fn read(name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(rows) = object.cast::<Rows>() {
            let (py, rows) = (object.py(), rows.get());
            let tensor = Tensor::read(name, rows.data.bind(py))?;
            tensor.expect_dtype(rows.format.dtypes())?;
            let scale = rows.scale.as_ref();
            let scale = scale.map(|scale| Tensor::read("scale", scale.bind(py)));
            return Ok(Self {
                tensor,
                format: rows.format,
                scale: scale.transpose()?,
            });
        }
        let tensor = Tensor::read(name, object)?;
        Ok(Self {
            format: Format::of(&tensor)?,
            tensor,
            scale: None,
        })
    }

    /// Its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor<'py>> + Clone {
        [Some(&self.tensor), self.scale.as_ref()]
            .into_iter()
            .flatten()
    }

    /// Columns of its rows.
    pub fn columns(&self) -> PyResult<usize> {
        let [columns, elements] = self.format.block();
        let width = self.tensor.dims().last().copied().unwrap_or_default();
        let many = !matches!(self.format, Format::Fp8 | Format::Model1);
        if width % elements != 0 || !many && width != elements {
            let (name, format) = (self.tensor.name, self.format.name());
            let all = if many { "a multiple of " } else { "" };
            return Err(value(format!(
                "{name} is {width} bytes wide, not {all}{elements} as {format} rows are"
            )));
        }
        Ok(width / elements * columns)
    }

    /// As four dimensions; a ragged tensor has three.
    pub fn view(&self, ragged: bool) -> PyResult<View<'_>> {
        let tensor = &self.tensor;
        let missing = usize::from(ragged);
        tensor.expect_ndim(&[4 - missing])?;
        tensor.expect_rows()?;
        let mut dims = [1; 4];
        dims[missing..].copy_from_slice(tensor.dims());
        dims[3] = self.columns()?;
        self.expect_layout()?;
        let mut strides = [0; 3];
        strides[missing..].copy_from_slice(&tensor.strides()[..3 - missing]);
        let data = self.data(&dims, &mut strides)?;
        Ok(View {
            tensor: TensorRef { data, strides },
            dims,
            missing,
        })
    }

    /// The elements, and strides in the library's terms.
    fn data(&self, dims: &[usize; 4], strides: &mut [usize; 3]) -> PyResult<Data<'_>> {
        let tensor = &self.tensor;
        Ok(match self.format {
            Format::Bf16 => Data::Bf16(tensor.elements::<bf16>()?),
            Format::F16 => Data::F16(tensor.elements::<f16>()?),
            Format::F32 => Data::F32(tensor.elements::<f32>()?),
            Format::Fp8 => Data::Fp8(tensor.elements::<u8>()?),
            Format::Model1 => {
                // Rows of a page are its first bytes, scales its last.
                (strides[1], strides[2]) = (MODEL1_ROW, MODEL1_ROW);
                Data::Model1 {
                    bytes: tensor.elements::<u8>()?,
                    scales: dims[1] * MODEL1_ROW,
                    scale_stride: MODEL1_SCALES,
                }
            }
            Format::Int8 => {
                let (scales, strides) = self.scales()?;
                Data::Int8 {
                    values: tensor.elements::<i8>()?,
                    scales,
                    strides,
                }
            }
            Format::E4m3 => {
                let (scales, strides) = self.scales()?;
                Data::E4m3 {
                    values: tensor.elements::<u8>()?,
                    scales,
                    strides,
                }
            }
            Format::Q8_0 => {
                *strides = strides.map(|stride| stride / size_of::<Q8_0>());
                Data::Q8_0(tensor.elements()?)
            }
            Format::Q4_0 => {
                *strides = strides.map(|stride| stride / size_of::<Q4_0>());
                Data::Q4_0(tensor.elements()?)
            }
        })
    }

    /// Each row's scale, and their strides.
    fn scales(&self) -> PyResult<(&[f32], [usize; 3])> {
        let name = self.tensor.name;
        let missing = || value(format!("{name} has no scale"));
        let scale = self.scale.as_ref().ok_or_else(missing)?;
        scale.expect_dtype(&[Dtype::F32])?;
        let dims = self.tensor.dims();
        scale.expect_dims(&dims[..dims.len() - 1])?;
        let mut strides = [0; 3];
        strides[4 - dims.len()..].copy_from_slice(scale.strides());
        Ok((scale.elements()?, strides))
    }

    /// Refuses pages that aren't contiguous, and blocks that aren't whole.
    pub fn expect_layout(&self) -> PyResult<()> {
        let tensor = &self.tensor;
        let name = tensor.name;
        match self.format {
            Format::Model1 => match (tensor.dims(), tensor.strides()) {
                ([_, 0 | 1, 1, _], _) | ([_, _, 1, _], [_, MODEL1_WIDTH, ..]) => Ok(()),
                _ => Err(value(format!(
                    "{name} is no tensor of MODEL1 pages, [pages, page_size, 1, {MODEL1_WIDTH}] with contiguous pages"
                ))),
            },
            Format::Q8_0 | Format::Q4_0 => {
                let [_, block] = self.format.block();
                let (_, strides) = tensor.strides().split_last().unwrap_or((&0, &[]));
                match strides.iter().find(|stride| !stride.is_multiple_of(block)) {
                    None => tensor.expect_aligned(align_of::<Q8_0>()),
                    Some(stride) => Err(value(format!(
                        "{name} has a stride of {stride} bytes, not a multiple of {block} as {} rows need",
                        self.format.name()
                    ))),
                }
            }
            _ => Ok(()),
        }
    }

    /// The same as an object.
    pub fn into_rows(self) -> Rows {
        Rows {
            data: self.tensor.object.unbind(),
            format: self.format,
            scale: self.scale.map(|scale| scale.object.unbind()),
        }
    }
}
