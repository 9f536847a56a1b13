//! A safetensors file's tensors, by name and type.

use std::collections::HashMap;
use std::fmt;

use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::stored::{Elements, Format, Stored};

/// A file's tensors and metadata.
pub struct Tensors<'a> {
    tensors: SafeTensors<'a>,
    metadata: HashMap<String, String>,
    /// What somebody has asked for.
    known: Vec<String>,
    /// What the user should know about how the file was read.
    notes: Vec<String>,
}

impl<'a> Tensors<'a> {
    /// # Errors
    /// One line: what is wrong with the file.
    pub fn of(bytes: &'a [u8]) -> Result<Self, String> {
        let invalid = |e| format!("not a valid safetensors file: {e}");
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
        Ok(Self {
            tensors: SafeTensors::deserialize(bytes).map_err(invalid)?,
            metadata: header.metadata().clone().unwrap_or_default(),
            known: Vec::new(),
            notes: Vec::new(),
        })
    }

    pub fn optional(&mut self, name: &str) -> Option<Named<'a>> {
        self.known.push(name.to_owned());
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
    /// Nothing stores rows like that.
    pub fn input(&mut self, name: &str) -> Result<Option<Named<'a>>, String> {
        let tensor = self.optional(name);
        if let Some(tensor) = &tensor {
            tensor.format()?;
        }
        Ok(tensor)
    }

    /// An input's elements as they are, but for F32, which is rounded to BF16; `dims` are
    /// those of [`Stored`].
    ///
    /// # Errors
    /// What is missing or does not fit.
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
            (Format::F32, None) => {
                let note = format!("{} is F32, rounded to BF16", tensor.name);
                self.notes.push(note);
                let values = tensor.f32s()?;
                Elements::Bf16(values.into_iter().map(bf16::from_f32).collect())
            }
            (Format::F16, None) => Elements::F16(tensor.elements(Dtype::F16, f16::from_le_bytes)?),
            (Format::Fp8, None) => Elements::Fp8(tensor.view.data().to_vec()),
            (Format::Model1, None) => {
                // Where the next head's rows would lie, nobody has said.
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

    /// The notes, with one for each tensor that nobody has asked for.
    pub fn notes(self) -> Vec<String> {
        let mut unused = self.tensors.names();
        unused.retain(|name| !self.known.iter().any(|known| known == name));
        unused.sort_unstable();
        let unused = unused.iter().map(|name| format!("{name:?} is not used"));
        unused.chain(self.notes).collect()
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

    /// The shape but for the last dimension.
    pub fn rows(&self) -> &[usize] {
        self.shape().split_last().map_or(&[], |(_, rows)| rows)
    }

    /// Columns of a row, however it is stored.
    pub fn columns(&self) -> usize {
        let width = self.width();
        self.format().map_or(width, |format| format.columns(width))
    }

    /// How rows are stored.
    ///
    /// # Errors
    /// Like nothing that the kernel takes.
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

    /// The shape isn't the one that the other tensors ask for.
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
    /// The tensor hasn't as many rows as another, or not of so many columns.
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

    /// The elements, if they are of that type.
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

/// A tensor lacks another.
pub fn missing(name: &str, other: impl fmt::Display) -> String {
    format!("there is no tensor {name} for {other}")
}

/// As errors show it: name and shape.
impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.shape())
    }
}
