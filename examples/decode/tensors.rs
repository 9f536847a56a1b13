//! A safetensors file's tensors, by name and type.

use std::collections::HashMap;
use std::fmt;

use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

/// A file's tensors and metadata.
pub struct Tensors<'a> {
    tensors: SafeTensors<'a>,
    metadata: HashMap<String, String>,
    /// What somebody has asked for.
    known: Vec<&'static str>,
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

    pub fn optional(&mut self, name: &'static str) -> Option<Named<'a>> {
        self.known.push(name);
        let view = self.tensors.tensor(name).ok()?;
        Some(Named { name, view })
    }

    /// # Errors
    /// There is no such tensor.
    pub fn required(&mut self, name: &'static str) -> Result<Named<'a>, String> {
        self.optional(name)
            .ok_or_else(|| format!("there is no tensor {name}"))
    }

    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// The elements of a kernel input: BF16, or F32 rounded to it.
    ///
    /// # Errors
    /// Another type.
    pub fn inputs(&mut self, tensor: &Named) -> Result<Vec<bf16>, String> {
        if tensor.view.dtype() == Dtype::F32 {
            let note = format!("{} is F32, rounded to BF16", tensor.name);
            self.notes.push(note);
        }
        tensor.floats(bf16::from_f32, |x| x)
    }

    /// The notes, with one for each tensor that nobody has asked for.
    pub fn notes(self) -> Vec<String> {
        let mut unused = self.tensors.names();
        unused.retain(|name| !self.known.contains(name));
        unused.sort_unstable();
        let unused = unused.iter().map(|name| format!("{name:?} is not used"));
        unused.chain(self.notes).collect()
    }
}

/// A tensor and its name.
pub struct Named<'a> {
    name: &'static str,
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

    /// The shape with another last dimension.
    pub fn shape_with(&self, width: usize) -> Vec<usize> {
        let (_, rows) = self.shape().split_last().unwrap_or((&0, &[]));
        [rows, &[width]].concat()
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
    /// The elements are neither F32 nor BF16.
    pub fn f64s(&self) -> Result<Vec<f64>, String> {
        self.floats(f64::from, f64::from)
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

    /// The elements, if they are F32 or BF16.
    fn floats<T>(&self, f32s: fn(f32) -> T, bf16s: fn(bf16) -> T) -> Result<Vec<T>, String> {
        match self.view.dtype() {
            Dtype::BF16 => self.elements(Dtype::BF16, |bytes| bf16s(bf16::from_le_bytes(bytes))),
            Dtype::F32 => self.elements(Dtype::F32, |bytes| f32s(f32::from_le_bytes(bytes))),
            _ => Err(self.mistyped("BF16 or F32")),
        }
    }
}

/// As errors show it: name and shape.
impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.shape())
    }
}
