//! Runs of the program, and checks of their results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use amla::{Problem, reference};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::Value;

use crate::common;
use crate::files::Tensors;

pub fn decode() -> Command {
    common::command("decode")
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
    object(output)
}

/// The one JSON object that a run prints.
pub fn object(output: &Output) -> Value {
    let stdout = text(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(stdout).unwrap()
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

/// The JSON object of a successful run on the file, all of its output, and OUT.
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

/// Checks that the result is Golden's of `problem`, for the file with these expected values and
/// without. Expected lse has the library's order.
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

/// Checks that all files have the same results, bit for bit, and that these are Golden's.
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

/// Checks that the speed counts `keys` keys, of `width` columns of keys and values.
#[track_caller]
pub fn counts(record: &Value, keys: f64, width: f64) {
    let [seconds, gflops] = ["seconds", "gflops"].map(|key| record[key].as_f64().unwrap());
    let counted = seconds * gflops * 1e9 / (2.0 * width);
    assert!((counted / keys - 1.0).abs() < 1e-6, "{counted}: {record}");
}

/// Exit code 2, one line on stderr that contains `why`, nothing on stdout.
pub fn refused(command: &mut Command, why: &str) {
    let output = common::refused(command, why);
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
