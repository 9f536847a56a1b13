//! The `decode` example as a command, the files that it reads, and what a run must come to.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES, encode_fp8, encode_int8, encode_model1};
use amla::{Problem, reference};
use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

use crate::example;

pub const SCALE: f32 = 0.125;

/// The example.
pub fn decode() -> Command {
    example::command("decode")
}

/// An empty folder for one test.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one JSON object that a successful run prints.
pub fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(stdout).unwrap()
}

/// Multiples of 1/16 of magnitude below 2, exact in BF16.
pub fn numbers(len: usize, seed: usize) -> Vec<bf16> {
    (0..len)
        .map(|i| ((i * 37 + seed) * (i + 11) % 61) as f32 / 16.0 - 1.875)
        .map(bf16::from_f32)
        .collect()
}

/// Numbers that no format here rounds where `largest`, 14 or 127, is what it takes: in
/// chunks, each with a power of two of its own and an element of that many steps.
pub fn steps(len: usize, seed: usize, chunk: usize, largest: usize) -> Vec<bf16> {
    let step = |i: usize| match i % chunk {
        0 => largest as f32,
        _ => ((i * 37 + seed) * (i + 11) % (2 * largest + 1)) as f32 - largest as f32,
    };
    (0..len)
        .map(|i| {
            step(i) / largest.next_power_of_two() as f32 * 0.5_f32.powi((i / chunk % 5) as i32)
        })
        .map(bf16::from_f32)
        .collect()
}

pub fn fp8(rows: &[bf16]) -> Vec<u8> {
    let mut bytes = vec![0; rows.len() / 576 * FP8_ROW];
    for (row, bytes) in rows.chunks(576).zip(bytes.chunks_mut(FP8_ROW)) {
        encode_fp8(row, bytes).unwrap();
    }
    bytes
}

/// Pages, or requests, of so many rows.
pub fn model1(rows: &[bf16], page_size: usize) -> Vec<u8> {
    let page = page_size * (MODEL1_ROW + MODEL1_SCALES);
    let mut bytes = vec![0; rows.len() / 512 / page_size * page];
    for (rows, page) in rows.chunks(page_size * 512).zip(bytes.chunks_mut(page)) {
        let (values, scales) = page.split_at_mut(page_size * MODEL1_ROW);
        let stored = values
            .chunks_mut(MODEL1_ROW)
            .zip(scales.chunks_mut(MODEL1_SCALES));
        for (row, (values, scales)) in rows.chunks(512).zip(stored) {
            encode_model1(row, values, scales).unwrap();
        }
    }
    bytes
}

/// A file in the making.
#[derive(Clone, Default)]
pub struct Tensors {
    pub tensors: BTreeMap<&'static str, (Dtype, Vec<usize>, Vec<u8>)>,
    pub metadata: HashMap<String, String>,
}

impl Tensors {
    /// Two requests of two positions and three heads over five keys.
    pub fn small() -> Self {
        Self::scaled()
            .bf16s("q", &[2, 2, 3, 128], &numbers(1536, 1))
            .bf16s("kv", &[2, 5, 128], &numbers(1280, 2))
    }

    /// Nothing but a scale.
    pub fn scaled() -> Self {
        Self::default().f32s("softmax_scale", &[1], &[SCALE])
    }

    pub fn bf16s(self, name: &'static str, shape: &[usize], data: &[bf16]) -> Self {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.with(name, Dtype::BF16, shape, bytes)
    }

    pub fn f32s(self, name: &'static str, shape: &[usize], data: &[f32]) -> Self {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.with(name, Dtype::F32, shape, bytes)
    }

    pub fn i32s(self, name: &'static str, shape: &[usize], data: &[i32]) -> Self {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.with(name, Dtype::I32, shape, bytes)
    }

    pub fn f16s(self, name: &'static str, shape: &[usize], data: &[f16]) -> Self {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.with(name, Dtype::F16, shape, bytes)
    }

    /// Rows in INT8, and their scales, of these names.
    pub fn int8s(self, [name, scale]: [&'static str; 2], shape: &[usize], rows: &[bf16]) -> Self {
        let (width, lead) = shape.split_last().unwrap();
        let mut values = vec![0; rows.len()];
        let stored = rows.chunks(*width).zip(values.chunks_mut(*width));
        let scales: Vec<_> = stored
            .map(|(row, values)| encode_int8(row, values).unwrap())
            .collect();
        let bytes = values.iter().map(|x| x.cast_unsigned()).collect();
        self.with(name, Dtype::I8, shape, bytes)
            .f32s(scale, lead, &scales)
    }

    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn with(
        mut self,
        name: &'static str,
        dtype: Dtype,
        shape: &[usize],
        data: Vec<u8>,
    ) -> Self {
        self.tensors.insert(name, (dtype, shape.to_vec(), data));
        self
    }

    pub fn zeros(self, name: &'static str, dtype: Dtype, shape: &[usize]) -> Self {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        self.with(name, dtype, shape, vec![0; bytes])
    }

    pub fn seqlens(self, lens: &[i32]) -> Self {
        self.i32s("cache_seqlens", &[lens.len()], lens)
    }

    pub fn without(mut self, name: &str) -> Self {
        self.tensors.remove(name).unwrap();
        self
    }

    /// BF16 tensors become F32, the values stay.
    pub fn widened(mut self) -> Self {
        for (dtype, _, data) in self.tensors.values_mut() {
            if *dtype == Dtype::BF16 {
                *dtype = Dtype::F32;
                // BF16 is the upper half of an F32.
                *data = data
                    .chunks(2)
                    .flat_map(|half| [0, 0, half[0], half[1]])
                    .collect();
            }
        }
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, data))| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        let metadata = Some(self.metadata.clone());
        safetensors::serialize(views, metadata).unwrap()
    }

    pub fn write(&self, path: &Path) {
        fs::write(path, self.bytes()).unwrap();
    }
}

/// An F32 tensor of a file.
pub fn floats(bytes: &[u8], name: &str) -> (Vec<usize>, Vec<f32>) {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    let (chunks, _) = tensor.data().as_chunks();
    let values = chunks.iter().map(|&x| f32::from_le_bytes(x)).collect();
    (tensor.shape().to_vec(), values)
}

/// What a successful run on the file prints as JSON, all of its output, and OUT.
pub fn run(folder: &Path, tensors: &Tensors, args: &[&str]) -> (Value, Output, Vec<u8>) {
    let [file, out] = ["in.safetensors", "out.safetensors"].map(|name| folder.join(name));
    tensors.write(&file);
    let output = decode()
        .arg(&file)
        .args(["--json", "-o"])
        .arg(&out)
        .args(args)
        .output()
        .unwrap();
    (json(&output), output, fs::read(&out).unwrap())
}

/// The example's result is Golden's of `problem`, both where the file has that and where
/// it hasn't. The file's order of lse is the library's.
#[track_caller]
pub fn agrees(name: &str, tensors: &Tensors, problem: &Problem) -> Value {
    let s = problem.shape;
    let (lead, lse_shape) = match problem.q_indptr {
        Some(indptr) => {
            let tokens = indptr[s.b] as usize;
            (vec![tokens], vec![s.h_q, tokens])
        }
        None => (vec![s.b, s.s_q], vec![s.b, s.h_q, s.s_q]),
    };
    let o_shape = [&lead[..], &[s.h_q, s.d_v]].concat();
    let mut o = vec![0.0; o_shape.iter().product()];
    let mut lse = vec![0.0; lse_shape.iter().product()];
    reference::golden(problem, &mut o, &mut lse).unwrap();
    let [o, lse] = [o, lse].map(|values| values.iter().map(|&x| x as f32).collect::<Vec<_>>());
    let expecting =
        tensors
            .clone()
            .f32s("expected_o", &o_shape, &o)
            .f32s("expected_lse", &lse_shape, &lse);

    let folder = folder(name);
    let mut last = Value::Null;
    for (tensors, reference, threads) in [(&expecting, "expected", "1"), (tensors, "golden", "2")] {
        let args = ["--precision", "bf16x2", "--threads", threads];
        let (record, output, written) = run(&folder, tensors, &args);
        assert_eq!(text(&output.stderr), "");
        assert_eq!(record["reference"], reference, "{record}");
        for (key, limit) in [("error", 1e-5), ("lse_error", 1e-5), ("base_error", 1e-2)] {
            assert!(record[key].as_f64().unwrap() < limit, "{key}: {record}");
        }
        assert!(record["gflops"].as_f64().unwrap() > 0.0, "{record}");
        for (name, shape, want) in [("o", &o_shape, &o), ("lse", &lse_shape, &lse)] {
            let (written_shape, got) = floats(&written, name);
            assert_eq!(written_shape, *shape, "{name}");
            let near = |(&x, &y): (&f32, &f32)| x == y || (x - y).abs() < 1e-4;
            assert!(got.iter().zip(want).all(near), "{name}");
        }
        last = record;
    }
    last
}

/// The files have the same results, bit for bit, and Golden has them too.
#[track_caller]
pub fn same(name: &str, files: &[Tensors]) {
    let folder = folder(name);
    let mut first = None;
    for (i, tensors) in files.iter().enumerate() {
        let (record, output, written) = run(&folder, tensors, &[]);
        assert_eq!(text(&output.stderr), "");
        assert_eq!(record["reference"], "golden");
        for (key, limit) in [("error", 1e-2), ("lse_error", 1e-4), ("base_error", 1e-2)] {
            assert!(record[key].as_f64().unwrap() < limit, "{key}: {record}");
        }
        // Not `assert_eq`, which would print all of them.
        assert!(*first.get_or_insert(written.clone()) == written, "file {i}");
    }
}

/// The speed counts so many keys of a row, of `width` columns of keys and values.
#[track_caller]
pub fn counts(record: &Value, keys: f64, width: f64) {
    let [seconds, gflops] = ["seconds", "gflops"].map(|key| record[key].as_f64().unwrap());
    let counted = seconds * gflops * 1e9 / (2.0 * width);
    assert!((counted / keys - 1.0).abs() < 1e-6, "{counted}: {record}");
}

/// Exit code 2, one line on stderr that says `why`, nothing on stdout.
pub fn refused(command: &mut Command, why: &str) {
    let output = example::refused(command, why);
    assert_eq!(text(&output.stdout), "", "{why}");
}

/// [`refused`], and no output, in an empty folder.
#[track_caller]
pub fn refused_file(folder: &Path, bytes: &[u8], args: &[&str], why: &str) {
    let [file, out] = ["in.safetensors", "out.safetensors"].map(|name| folder.join(name));
    fs::write(&file, bytes).unwrap();
    let mut command = decode();
    command.arg(&file).arg("--json").arg("-o").arg(out);
    refused(command.args(args), why);
    assert_eq!(names(folder), ["in.safetensors"], "{why}");
}
