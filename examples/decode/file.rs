//! Problems and results as safetensors files.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use amla::{Data, Problem, SUPPORTED_DIMS, Shape, Tensor};
use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

/// A problem that owns its tensors, all dense.
pub struct Case {
    pub shape: Shape,
    pub q: Vec<bf16>,
    pub kv: Vec<bf16>,
    pub v: Option<Vec<bf16>>,
    pub cache_seqlens: Option<Vec<i32>>,
    pub softmax_scale: f32,
    /// `[b, s_q, h_q, d_v]`
    pub expected_o: Option<Vec<f64>>,
    /// `[b, h_q, s_q]`
    pub expected_lse: Option<Vec<f64>>,
    /// What the user should know about how the file was read.
    pub notes: Vec<String>,
}

impl Case {
    /// The problem, borrowed.
    pub fn problem(&self, causal: bool) -> Problem<'_> {
        let s = self.shape;
        Problem {
            v: self.v.as_ref().map(|data| Tensor {
                data: Data::Bf16(data),
                strides: [s.s_k * s.d_v, s.d_v, 0],
            }),
            cache_seqlens: self.cache_seqlens.as_deref(),
            causal,
            ..Problem::dense(s, &self.q, &self.kv, self.softmax_scale)
        }
    }

    /// Reads a file's bytes; `d_v` is the user's word on the width of a value.
    ///
    /// # Errors
    /// One line: what is missing or does not fit.
    pub fn parse(bytes: &[u8], d_v: Option<usize>) -> Result<Self, String> {
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|e| format!("not a valid safetensors file: {e}"))?;
        let optional = |name| tensors.tensor(name).ok();
        let required = |name| optional(name).ok_or_else(|| format!("there is no tensor {name}"));
        let mut notes = Vec::new();

        let (q, kv) = (required("q")?, required("kv")?);
        let (v, expected_o) = (optional("v"), optional("expected_o"));
        let [b, s_q, h_q, d_qk] = dims("q", &q, "[b, s_q, h_q, d_qk]")?;
        let [_, s_k, _] = dims("kv", &kv, "[b, s_k, d_qk]")?;
        expect("kv", &kv, &[b, s_k, d_qk])?;

        let mut width = d_v;
        if let Some(v) = &v {
            let [_, _, last] = dims("v", v, "[b, s_k, d_v]")?;
            expect("v", v, &[b, s_k, *width.get_or_insert(last)])?;
        }
        if let Some(o) = &expected_o {
            let [_, _, _, last] = dims("expected_o", o, "[b, s_q, h_q, d_v]")?;
            expect("expected_o", o, &[b, s_q, h_q, *width.get_or_insert(last)])?;
        }
        let usual = || SUPPORTED_DIMS.iter().find(|d| d.0 == d_qk).map(|d| d.1);
        let d_v = width
            .or_else(usual)
            .ok_or_else(|| format!("no kernel is for d_qk = {d_qk}, whatever d_v"))?;

        let scale = required("softmax_scale")?;
        expect("softmax_scale", &scale, &[1])?;
        let cache_seqlens = optional("cache_seqlens");
        if let Some(lens) = &cache_seqlens {
            expect("cache_seqlens", lens, &[b])?;
        }

        let mut unused: Vec<_> = tensors.names();
        unused.retain(|name| {
            ![
                "q",
                "kv",
                "v",
                "softmax_scale",
                "cache_seqlens",
                "expected_o",
                "expected_lse",
            ]
            .contains(name)
        });
        unused.sort_unstable();
        notes.extend(unused.iter().map(|name| format!("{name:?} is not used")));

        Ok(Self {
            shape: Shape {
                b,
                s_q,
                s_k,
                h_q,
                h_kv: 1,
                d_qk,
                d_v,
            },
            q: inputs("q", &q, &mut notes)?,
            kv: inputs("kv", &kv, &mut notes)?,
            v: v.map(|v| inputs("v", &v, &mut notes)).transpose()?,
            cache_seqlens: cache_seqlens
                .map(|lens| elements("cache_seqlens", &lens, Dtype::I32, i32::from_le_bytes))
                .transpose()?,
            softmax_scale: elements("softmax_scale", &scale, Dtype::F32, f32::from_le_bytes)?[0],
            expected_o: expected_o.map(|o| floats("expected_o", &o)).transpose()?,
            expected_lse: optional("expected_lse")
                .map(|lse| log_sums(&lse, [b, h_q, s_q]))
                .transpose()?,
            notes,
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// One line that names the file and what is wrong.
    pub fn read(path: &Path, d_v: Option<usize>) -> Result<Self, String> {
        fs::read(path)
            .map_err(|e| e.to_string())
            .and_then(|bytes| Self::parse(&bytes, d_v))
            .map_err(|e| format!("{}: {e}", path.display()))
    }
}

/// The sizes of a tensor of rank `N`.
fn dims<const N: usize>(name: &str, tensor: &TensorView, want: &str) -> Result<[usize; N], String> {
    let shape = tensor.shape();
    shape
        .try_into()
        .map_err(|_| format!("{name} has shape {shape:?}, expected {want}"))
}

/// The tensor's shape is the one that the other tensors ask for.
fn expect(name: &str, tensor: &TensorView, want: &[usize]) -> Result<(), String> {
    let shape = tensor.shape();
    if shape == want {
        Ok(())
    } else {
        Err(format!("{name} has shape {shape:?}, expected {want:?}"))
    }
}

/// The elements of a tensor of one type.
fn elements<const N: usize, T>(
    name: &str,
    tensor: &TensorView,
    dtype: Dtype,
    decode: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>, String> {
    if tensor.dtype() != dtype {
        return Err(format!("{name} is {}, expected {dtype}", tensor.dtype()));
    }
    let (chunks, _) = tensor.data().as_chunks();
    Ok(chunks.iter().map(|&bytes| decode(bytes)).collect())
}

/// A kernel input: BF16, or F32 rounded to it.
fn inputs(name: &str, tensor: &TensorView, notes: &mut Vec<String>) -> Result<Vec<bf16>, String> {
    match tensor.dtype() {
        Dtype::BF16 => elements(name, tensor, Dtype::BF16, bf16::from_le_bytes),
        Dtype::F32 => {
            notes.push(format!("{name} is F32, rounded to BF16"));
            elements(name, tensor, Dtype::F32, |bytes| {
                bf16::from_f32(f32::from_le_bytes(bytes))
            })
        }
        other => Err(format!("{name} is {other}, expected BF16 or F32")),
    }
}

/// An expected result: BF16 or F32, widened.
fn floats(name: &str, tensor: &TensorView) -> Result<Vec<f64>, String> {
    match tensor.dtype() {
        Dtype::BF16 => elements(name, tensor, Dtype::BF16, |bytes| {
            f64::from(bf16::from_le_bytes(bytes))
        }),
        Dtype::F32 => elements(name, tensor, Dtype::F32, |bytes| {
            f64::from(f32::from_le_bytes(bytes))
        }),
        other => Err(format!("{name} is {other}, expected BF16 or F32")),
    }
}

/// `expected_lse` as `[b, h_q, s_q]`, from that or from `[b, s_q, h_q]`.
fn log_sums(tensor: &TensorView, [b, h_q, s_q]: [usize; 3]) -> Result<Vec<f64>, String> {
    let lse = floats("expected_lse", tensor)?;
    match *tensor.shape() {
        [x, y, z] if [x, y, z] == [b, h_q, s_q] => Ok(lse),
        [x, y, z] if [x, y, z] == [b, s_q, h_q] => Ok(heads_first(&lse, [b, s_q, h_q])),
        ref shape => Err(format!(
            "expected_lse has shape {shape:?}, expected {:?} or {:?}",
            [b, h_q, s_q],
            [b, s_q, h_q]
        )),
    }
}

/// `[b, s_q, h_q]` to `[b, h_q, s_q]`.
pub fn heads_first<T: Copy>(values: &[T], [b, s_q, h_q]: [usize; 3]) -> Vec<T> {
    (0..b * h_q * s_q)
        .map(|i| {
            let (request, head, position) = (i / (h_q * s_q), i / s_q % h_q, i % s_q);
            values[(request * s_q + position) * h_q + head]
        })
        .collect()
}

/// Writes `o` `[b, s_q, h_q, d_v]` and `lse` `[b, h_q, s_q]` to `path`, whole
/// or not at all: to a temporary file beside it, then renamed.
///
/// # Errors
/// One line that names the file and what is wrong.
pub fn write(path: &Path, shape: Shape, o: &[f32], lse: &[f32]) -> Result<(), String> {
    let fail = |e: &dyn std::fmt::Display| format!("cannot write {}: {e}", path.display());
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(fail(&"it is not a regular file"));
    }
    // A link stays, what it points to is replaced.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = target.file_name().ok_or_else(|| fail(&"no file name"))?;

    let bytes = |data: &[f32]| -> Vec<u8> { data.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let (o, lse) = (bytes(o), bytes(lse));
    let view = |dims, data| TensorView::new(Dtype::F32, dims, data).map_err(|e| fail(&e));
    let Shape {
        b, s_q, h_q, d_v, ..
    } = shape;
    let tensors = [
        ("o", view(vec![b, s_q, h_q, d_v], &o)?),
        ("lse", view(vec![b, h_q, s_q], &lse)?),
    ];
    let bytes = safetensors::serialize(tensors, None).map_err(|e| fail(&e))?;

    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = target.with_file_name(temporary);
    let mut file = File::create_new(&temporary).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => fail(&format!("{} is in the way", temporary.display())),
        _ => fail(&e),
    })?;
    file.write_all(&bytes)
        .and_then(|()| fs::rename(&temporary, &target))
        .map_err(|e| {
            // Best effort: the first error is the one to tell.
            let _ = fs::remove_file(&temporary);
            fail(&e)
        })
}
