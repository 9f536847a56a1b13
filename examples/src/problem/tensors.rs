//! A safetensors file's tensors, by name and type.

use std::collections::HashMap;
use std::fmt;

use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::stored::{Elements, ExpectedIn, Format, Stored};

/// Tensors of rows, each of which may have a tensor of scales.
const ROWS: [&str; 8] = [
    "q", "q_nope", "q_rope", "kv", "ckv", "k_rope", "v", "extra_kv",
];

/// All other tensors.
const OTHERS: [&str; 13] = [
    "softmax_scale",
    "q_indptr",
    "kv_indptr",
    "block_table",
    "cache_seqlens",
    "tail_mask",
    "sink",
    "indices",
    "topk_length",
    "extra_indices",
    "extra_topk_length",
    "expected_o",
    "expected_lse",
];

/// Whether a problem may have a tensor of that name.
fn is_known(name: &str) -> bool {
    let rows = name.strip_suffix("_scale").unwrap_or(name);
    ROWS.contains(&rows) || OTHERS.contains(&name)
}

/// A file's tensors and metadata.
pub struct Tensors<'a> {
    tensors: SafeTensors<'a>,
    metadata: HashMap<String, String>,
    /// Names of tensors that the reader looked up.
    used: Vec<String>,
}

impl<'a> Tensors<'a> {
    /// # Errors
    /// One line: the file is malformed or has an unknown tensor.
    pub fn of(bytes: &'a [u8]) -> Result<Self, String> {
        let invalid = |e| format!("not a valid safetensors file: {e}");
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
        let tensors = SafeTensors::deserialize(bytes).map_err(invalid)?;
        // A misspelt name of an optional tensor would silently change the problem.
        let names = tensors.names().into_iter();
        if let Some(name) = names.filter(|name| !is_known(name)).min() {
            return Err(format!(
                "unknown tensor {name:?}; --help lists the known ones"
            ));
        }
        let metadata = header.metadata().iter().flatten();
        Ok(Self {
            tensors,
            metadata: metadata
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            used: Vec::new(),
        })
    }

    /// The tensor of that name.
    pub fn optional(&mut self, name: &str) -> Option<Named<'a>> {
        debug_assert!(is_known(name), "{name}");
        self.used.push(name.to_owned());
        let view = self.tensors.tensor(name).ok()?;
        Some(Named {
            name: name.to_owned(),
            view,
        })
    }

    /// # Errors
    /// There is no such tensor.
    pub fn required(&mut self, name: &str) -> Result<Named<'a>, String> {
        self.optional(name)
            .ok_or_else(|| format!("there is no tensor {name}"))
    }

    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// A tensor of queries, keys or values.
    ///
    /// # Errors
    /// The type is no format of rows.
    pub fn input(&mut self, name: &str) -> Result<Option<Named<'a>>, String> {
        let tensor = self.optional(name);
        if let Some(tensor) = &tensor {
            tensor.format()?;
        }
        Ok(tensor)
    }

    /// An input's elements. `dims` are those of [`Stored`].
    ///
    /// # Errors
    /// A tensor is missing or does not fit.
    pub fn stored(&mut self, tensor: &Named, dims: [usize; 3]) -> Result<Stored, String> {
        let format = tensor.format()?;
        let scale = format!("{}_scale", tensor.name);
        let elements = match (format, self.optional(&scale)) {
            (Format::Int8, Some(scale)) => {
                scale.expect(tensor.rows())?;
                Elements::Int8 {
                    values: tensor.elements(Dtype::I8, i8::from_le_bytes)?,
                    scales: scale.f32s()?,
                }
            }
            (Format::Int8, None) => return Err(missing(&scale, tensor)),
            (_, Some(scale)) => {
                let (name, dtype) = (&tensor.name, tensor.view.dtype());
                return Err(format!("{scale} is for {name} in I8, which is {dtype}"));
            }
            (Format::Bf16, None) => {
                Elements::Bf16(tensor.elements(Dtype::BF16, bf16::from_le_bytes)?)
            }
            (Format::F32, None) => Elements::F32(tensor.f32s()?),
            (Format::F16, None) => Elements::F16(tensor.elements(Dtype::F16, f16::from_le_bytes)?),
            (Format::Fp8, None) => Elements::Fp8(tensor.view.data().to_vec()),
            (Format::Model1, None) => {
                // The format defines no layout for several heads.
                if dims[2] != 1 {
                    return Err(format!(
                        "{tensor} has MODEL1 rows of {} heads, not 1",
                        dims[2]
                    ));
                }
                Elements::Model1(tensor.view.data().to_vec())
            }
        };
        Ok(Stored {
            elements,
            dims,
            row: tensor.width(),
        })
    }

    /// Notes for the user, one for each tensor that has no use in this problem.
    pub fn notes(self) -> Vec<String> {
        let mut unused = self.tensors.names();
        unused.retain(|name| !self.used.iter().any(|used| used == name));
        unused.sort_unstable();
        let unused = unused.iter().map(|name| format!("{name:?} is not used"));
        unused.collect()
    }
}

/// A tensor and its name.
pub struct Named<'a> {
    name: String,
    view: TensorView<'a>,
}

impl Named<'_> {
    pub fn shape(&self) -> &[usize] {
        self.view.shape()
    }

    /// Size of the last dimension, if there is one.
    pub fn width(&self) -> usize {
        self.shape().last().copied().unwrap_or_default()
    }

    /// The shape without the last dimension.
    pub fn rows(&self) -> &[usize] {
        self.shape().split_last().map_or(&[], |(_, rows)| rows)
    }

    /// Columns of a row in any format.
    pub fn columns(&self) -> usize {
        let width = self.width();
        self.format().map_or(width, |format| format.columns(width))
    }

    /// The format of rows.
    ///
    /// # Errors
    /// The kernel has no such format.
    fn format(&self) -> Result<Format, String> {
        match self.view.dtype() {
            Dtype::BF16 => Ok(Format::Bf16),
            Dtype::F32 => Ok(Format::F32),
            Dtype::F16 => Ok(Format::F16),
            Dtype::I8 => Ok(Format::Int8),
            Dtype::U8 | Dtype::F8_E4M3 => Format::of_bytes(self.width()).ok_or_else(|| {
                let (dtype, width) = (self.view.dtype(), self.width());
                let name = &self.name;
                format!("{name} is {dtype} in rows of {width}, expected 656 (FP8) or 584 (MODEL1)")
            }),
            _ => Err(self.mistyped("BF16, F16, F32, I8, U8 or F8_E4M3")),
        }
    }

    /// The error that the shape isn't the one that other tensors require.
    pub fn misfit(&self, want: impl fmt::Display) -> String {
        format!(
            "{} has shape {:?}, expected {want}",
            self.name,
            self.shape()
        )
    }

    /// # Errors
    /// The tensor has another shape.
    pub fn expect(&self, want: &[usize]) -> Result<(), String> {
        if self.shape() == want {
            Ok(())
        } else {
            Err(self.misfit(format_args!("{want:?}")))
        }
    }

    /// # Errors
    /// The tensor has another number of rows than `other`, or of columns than `columns`.
    pub fn expect_like(&self, other: &Named, columns: usize) -> Result<(), String> {
        let want = [other.rows(), &[columns]].concat();
        let own = self.columns();
        if own == self.width() {
            return self.expect(&want);
        }
        if self.rows() == other.rows() && own == columns {
            return Ok(());
        }
        Err(self.misfit(format_args!("{want:?}; its rows have {own} columns")))
    }

    /// The elements.
    ///
    /// # Errors
    /// They have another type.
    fn elements<const N: usize, T>(
        &self,
        dtype: Dtype,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, String> {
        if self.view.dtype() != dtype {
            return Err(self.mistyped(&dtype.to_string()));
        }
        let (chunks, _) = self.view.data().as_chunks();
        Ok(chunks.iter().map(|&bytes| decode(bytes)).collect())
    }

    fn mistyped(&self, want: &str) -> String {
        format!("{} is {}, expected {want}", self.name, self.view.dtype())
    }

    /// # Errors
    /// The elements are no I32.
    pub fn i32s(&self) -> Result<Vec<i32>, String> {
        self.elements(Dtype::I32, i32::from_le_bytes)
    }

    /// # Errors
    /// The elements are no F32.
    pub fn f32s(&self) -> Result<Vec<f32>, String> {
        self.elements(Dtype::F32, f32::from_le_bytes)
    }

    /// # Errors
    /// The elements are neither F32, F16 nor BF16.
    pub fn f64s(&self) -> Result<Vec<f64>, String> {
        match self.view.dtype() {
            Dtype::BF16 => self.elements(Dtype::BF16, |x| bf16::from_le_bytes(x).into()),
            Dtype::F16 => self.elements(Dtype::F16, |x| f16::from_le_bytes(x).into()),
            Dtype::F32 => self.elements(Dtype::F32, |x| f32::from_le_bytes(x).into()),
            _ => Err(self.mistyped("BF16, F16 or F32")),
        }
    }

    /// The format of expected values, which [`f64s`](Self::f64s) checks.
    pub fn expected_in(&self) -> ExpectedIn {
        match self.view.dtype() {
            Dtype::BF16 => ExpectedIn::Bf16,
            Dtype::F16 => ExpectedIn::F16,
            _ => ExpectedIn::F32,
        }
    }

    /// # Errors
    /// The elements are neither BOOL nor U8, or not all 0 or 1.
    pub fn bools(&self) -> Result<Vec<bool>, String> {
        if ![Dtype::BOOL, Dtype::U8].contains(&self.view.dtype()) {
            return Err(self.mistyped("BOOL or U8"));
        }
        let bytes = self.view.data().iter();
        bytes
            .map(|&byte| match byte {
                0 | 1 => Ok(byte == 1),
                // Packed bits, perhaps.
                _ => Err(format!("{} holds {byte}, expected 0 or 1", self.name)),
            })
            .collect()
    }
}

/// The error that a tensor requires another.
pub fn missing(name: &str, other: impl fmt::Display) -> String {
    format!("there is no tensor {name} for {other}")
}

/// Name and shape.
impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.shape())
    }
}
