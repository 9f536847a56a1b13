//! The `decode` example as its users run it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use amla::{Backend, BackendId};
use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

const BUNDLED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/examples/data/minilm_l2_512.safetensors"
);

/// The example beside this test: target/PROFILE/{deps/this, examples/decode}.
fn decode() -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push(format!("examples/decode{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "{} is missing; `cargo test` builds it, `cargo test --test decode_cli` does not",
        path.display()
    );
    let mut command = Command::new(path);
    command.stdin(Stdio::null());
    command
}

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one JSON object that a successful run prints.
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(stdout).unwrap()
}

/// A file in the making.
#[derive(Clone)]
struct Tensors(BTreeMap<&'static str, (Dtype, Vec<usize>, Vec<u8>)>);

impl Tensors {
    /// Two requests of two positions and three heads over five keys.
    fn small() -> Self {
        let values = |len: usize, seed: usize| {
            // Multiples of 1/16 below 2, exact in BF16.
            (0..len).map(move |i| ((i * 37 + seed) * (i + 11) % 61) as f32 / 16.0 - 1.875)
        };
        let bf16s = |len, seed| {
            values(len, seed)
                .flat_map(|x| bf16::from_f32(x).to_le_bytes())
                .collect::<Vec<_>>()
        };
        let tensors = Self(BTreeMap::new());
        tensors
            .with("q", Dtype::BF16, &[2, 2, 3, 128], bf16s(1536, 1))
            .with("kv", Dtype::BF16, &[2, 5, 128], bf16s(1280, 2))
            .with(
                "softmax_scale",
                Dtype::F32,
                &[1],
                0.125_f32.to_le_bytes().to_vec(),
            )
    }

    fn with(mut self, name: &'static str, dtype: Dtype, shape: &[usize], data: Vec<u8>) -> Self {
        self.0.insert(name, (dtype, shape.to_vec(), data));
        self
    }

    fn zeros(self, name: &'static str, dtype: Dtype, shape: &[usize]) -> Self {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        self.with(name, dtype, shape, vec![0; bytes])
    }

    fn seqlens(self, lens: &[i32]) -> Self {
        let bytes = lens.iter().flat_map(|len| len.to_le_bytes()).collect();
        self.with("cache_seqlens", Dtype::I32, &[lens.len()], bytes)
    }

    fn without(mut self, name: &str) -> Self {
        self.0.remove(name).unwrap();
        self
    }

    /// BF16 tensors become F32, the values stay.
    fn widened(mut self) -> Self {
        for (dtype, _, data) in self.0.values_mut() {
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

    fn bytes(&self) -> Vec<u8> {
        let views = self.0.iter().map(|(name, (dtype, shape, data))| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    fn write(&self, path: &Path) {
        fs::write(path, self.bytes()).unwrap();
    }
}

/// An F32 tensor of a file.
fn floats(bytes: &[u8], name: &str) -> (Vec<usize>, Vec<f32>) {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    let (chunks, _) = tensor.data().as_chunks();
    let values = chunks.iter().map(|&x| f32::from_le_bytes(x)).collect();
    (tensor.shape().to_vec(), values)
}

#[test]
fn bundled_problem_as_a_file() {
    let folder = folder("bundled");
    let out = folder.join("out.safetensors");
    fs::write(&out, "what was there before").unwrap();
    let output = decode()
        .args([BUNDLED, "--json", "-o"])
        .arg(&out)
        .current_dir(&folder)
        .output()
        .unwrap();
    let record = json(&output);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(names(&folder), ["out.safetensors"]);

    assert_eq!(record["problem"], "minilm_l2_512");
    assert_eq!(record["backend"], Backend::detect().id().name());
    assert_eq!(record["rescale"], "exact");
    assert_eq!(record["precision"], "bf16");
    assert_eq!(record["reference"], "expected");
    for (key, value) in [
        ("b", 1),
        ("s_q", 2),
        ("s_k", 512),
        ("h_q", 12),
        ("d_qk", 576),
        ("d_v", 512),
    ] {
        assert_eq!(record[key], value, "{key}");
    }
    let number = |key: &str| record[key].as_f64().unwrap_or_else(|| panic!("{record}"));
    for key in ["threads", "seconds", "gflops", "peak_gflops", "utilization"] {
        assert!(number(key) > 0.0, "{key}: {record}");
    }
    assert!(number("error") < 1e-3, "{record}");
    assert!(number("base_error") < 1e-3, "{record}");
    assert!(number("lse_error") < 1e-4, "{record}");

    // What was written is what was judged.
    let (expected, written) = (fs::read(BUNDLED).unwrap(), fs::read(&out).unwrap());
    let (shape, o) = floats(&written, "o");
    assert_eq!(shape, [1, 2, 12, 512]);
    let (_, expected_o) = floats(&expected, "expected_o");
    let squares =
        |f: &dyn Fn(usize) -> f32| -> f64 { (0..o.len()).map(|i| f64::from(f(i)).powi(2)).sum() };
    let error = (squares(&|i| o[i] - expected_o[i]) / squares(&|i| expected_o[i])).sqrt();
    assert!((error / number("error") - 1.0).abs() < 1e-3, "{error}");

    let (shape, lse) = floats(&written, "lse");
    assert_eq!(shape, [1, 12, 2]);
    let (_, expected_lse) = floats(&expected, "expected_lse");
    for head in 0..12 {
        for j in 0..2 {
            assert!((lse[head * 2 + j] - expected_lse[j * 12 + head]).abs() < 1e-4);
        }
    }
}

#[test]
fn bundled_problem_as_a_table() {
    let output = decode()
        .args([BUNDLED, "--rescale", "compensated"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let rows = stdout.lines().filter(|line| {
        line.starts_with("minilm_l2_512 ") && line.split_whitespace().nth(2) == Some("compensated")
    });
    assert_eq!(rows.count(), 1, "{stdout}");
}

#[test]
fn masks_dtypes_and_threads() {
    let folder = folder("masks");
    let (problem, out) = (
        folder.join("in.safetensors"),
        folder.join("out.safetensors"),
    );
    let run = |tensors: &Tensors, args: &[&str]| {
        tensors.write(&problem);
        let output = decode()
            .arg(&problem)
            .args(["--json", "--backend", "portable", "-o"])
            .arg(&out)
            .args(args)
            .output()
            .unwrap();
        (json(&output), output, fs::read(&out).unwrap())
    };

    // The second request sees nothing; with a causal mask the first position
    // of the first request sees one key only.
    let tensors = Tensors::small().seqlens(&[2, 0]);
    let (record, output, one) = run(&tensors, &["--causal", "--threads", "1"]);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(record["reference"], "golden");
    assert_eq!(record["causal"], true);
    assert_eq!(record["d_v"], 128);
    assert!(record["error"].as_f64().unwrap() < 1e-2, "{record}");
    assert!(record["lse_error"].as_f64().unwrap() < 1e-4, "{record}");
    let (shape, o) = floats(&one, "o");
    assert_eq!(shape, [2, 2, 3, 128]);
    let (_, lse) = floats(&one, "lse");
    let (key, _) = tensors.0["kv"].2.as_chunks();
    for (x, &bytes) in o[..128].iter().zip(key) {
        assert!((x - bf16::from_le_bytes(bytes).to_f32()).abs() < 1e-6);
    }
    assert!(o[768..].iter().all(|&x| x == 0.0));
    assert!(lse[..6].iter().all(|x| x.is_finite()));
    assert!(lse[6..].iter().all(|&x| x == f32::INFINITY));

    // Neither threads nor a lossless change of type change a bit.
    let (_, _, two) = run(&tensors, &["--causal", "--threads", "2"]);
    assert!(one == two);
    let (_, output, wide) = run(&tensors.clone().widened(), &["--causal"]);
    assert!(one == wide);
    assert_eq!(
        text(&output.stderr),
        "note: q is F32, rounded to BF16\nnote: kv is F32, rounded to BF16\n"
    );

    // Values of their own; what is expected is taken from the run before, its
    // lse in either layout.
    let (dtype, shape, data) = tensors.0["kv"].clone();
    let tensors = tensors.with("v", dtype, &shape, data);
    let (_, _, same) = run(&tensors, &["--causal"]);
    assert!(one == same);
    let f32s = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let swapped: Vec<_> = (0..12)
        .map(|i| lse[i / 6 * 6 + i % 3 * 2 + i / 3 % 2])
        .collect();
    let tensors = tensors.with("expected_o", Dtype::F32, &[2, 2, 3, 128], f32s(&o));
    for (shape, lse) in [([2, 3, 2], &lse), ([2, 2, 3], &swapped)] {
        let expecting = tensors
            .clone()
            .with("expected_lse", Dtype::F32, &shape, f32s(lse));
        let (record, _, _) = run(&expecting, &["--causal"]);
        assert_eq!(record["reference"], "expected");
        assert_eq!(record["error"], 0.0);
        assert_eq!(record["lse_error"], 0.0);
    }
}

#[test]
fn nothing_to_compute() {
    let folder = folder("nothing");
    let problem = folder.join("in.safetensors");
    for (b, s_k) in [(0, 5), (2, 0)] {
        Tensors::small()
            .zeros("q", Dtype::BF16, &[b, 2, 3, 128])
            .zeros("kv", Dtype::BF16, &[b, s_k, 128])
            .write(&problem);
        for threads in ["1", "2"] {
            let record = json(
                &decode()
                    .arg(&problem)
                    .args(["--json", "--threads", threads])
                    .output()
                    .unwrap(),
            );
            for key in ["error", "base_error", "lse_error", "gflops", "utilization"] {
                assert_eq!(record[key], 0.0, "{key}: {record}");
            }
        }
    }
}

#[test]
fn closed_stdout_ends_quietly() {
    let folder = folder("closed");
    let problem = folder.join("in.safetensors");
    Tensors::small().write(&problem);
    for args in [&["--json"][..], &[], &["--help"]] {
        let mut child = decode()
            .arg(&problem)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(text(&output.stderr), "");
    }
}

/// Exit code 2, one line on stderr that says `why`, nothing on stdout.
fn refused(command: &mut Command, why: &str) {
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{why}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{why}: {stderr}");
    assert!(
        stderr.starts_with("error: ") && stderr.contains(why),
        "{why}: {stderr}"
    );
    assert_eq!(text(&output.stdout), "", "{why}");
}

#[test]
fn malformed_files_are_refused() {
    use Dtype::{BF16, F16, F32, F64, I32, I64};
    let folder = folder("malformed");
    let problem = folder.join("in.safetensors");
    let small = Tensors::small;
    let whole = small().bytes();
    let scale = |x: f32| small().with("softmax_scale", F32, &[1], x.to_le_bytes().to_vec());
    let square = |d| {
        small()
            .zeros("q", BF16, &[2, 2, 3, d])
            .zeros("kv", BF16, &[2, 5, d])
    };
    let mut cases = vec![
        (Vec::new(), "not a valid safetensors file"),
        (b"hello, world".to_vec(), "not a valid safetensors file"),
        (vec![0xff; 64], "not a valid safetensors file"),
        (whole[..4].to_vec(), "not a valid safetensors file"),
        (whole[..40].to_vec(), "not a valid safetensors file"),
        (
            whole[..whole.len() - 1].to_vec(),
            "not a valid safetensors file",
        ),
    ];
    cases.extend(
        [
            (small().without("q"), "no tensor q"),
            (small().without("kv"), "no tensor kv"),
            (small().without("softmax_scale"), "no tensor softmax_scale"),
            (small().zeros("q", F16, &[2, 2, 3, 128]), "q is F16"),
            (small().zeros("kv", F64, &[2, 5, 128]), "kv is F64"),
            (small().zeros("v", I32, &[2, 5, 128]), "v is I32"),
            (
                small().zeros("softmax_scale", F64, &[1]),
                "softmax_scale is F64",
            ),
            (
                small().zeros("cache_seqlens", I64, &[2]),
                "cache_seqlens is I64",
            ),
            (
                small().zeros("expected_o", F64, &[2, 2, 3, 128]),
                "expected_o is F64",
            ),
            (
                small().zeros("expected_lse", F64, &[2, 2, 3]),
                "expected_lse is F64",
            ),
            (
                small().zeros("q", BF16, &[2, 6, 128]),
                "q has shape [2, 6, 128]",
            ),
            (
                small().zeros("kv", BF16, &[10, 128]),
                "kv has shape [10, 128]",
            ),
            (
                small().zeros("v", BF16, &[2, 5, 1, 128]),
                "v has shape [2, 5, 1, 128]",
            ),
            (
                small().zeros("softmax_scale", F32, &[]),
                "softmax_scale has shape []",
            ),
            (
                small().zeros("softmax_scale", F32, &[2]),
                "softmax_scale has shape [2]",
            ),
            (
                small().zeros("kv", BF16, &[1, 5, 128]),
                "kv has shape [1, 5, 128]",
            ),
            (
                small().zeros("kv", BF16, &[2, 5, 64]),
                "kv has shape [2, 5, 64]",
            ),
            (
                small().zeros("v", BF16, &[2, 4, 128]),
                "v has shape [2, 4, 128]",
            ),
            (
                small().zeros("cache_seqlens", I32, &[3]),
                "cache_seqlens has shape [3]",
            ),
            (
                small().zeros("expected_o", F32, &[2, 3, 2, 128]),
                "expected_o has shape",
            ),
            (
                small().zeros("expected_lse", F32, &[2, 6]),
                "expected_lse has shape",
            ),
            (small().zeros("v", BF16, &[2, 5, 64]), "(128, 64)"),
            (small().seqlens(&[5, 6]), "cache_seqlens[1] is 6"),
            (small().seqlens(&[-1, 5]), "cache_seqlens[0] is -1"),
            (scale(f32::NAN), "softmax_scale is NaN"),
            (scale(f32::INFINITY), "softmax_scale is inf"),
            (square(96), "d_qk = 96"),
            (square(0), "d_qk = 0"),
            (small().zeros("q", BF16, &[2, 2, 0, 128]), "h_q is 0"),
        ]
        .map(|(tensors, why)| (tensors.bytes(), why)),
    );
    for (bytes, why) in cases {
        fs::write(&problem, bytes).unwrap();
        let out = folder.join("out.safetensors");
        refused(decode().arg(&problem).arg("--json").arg("-o").arg(out), why);
        assert_eq!(names(&folder), ["in.safetensors"], "{why}");
    }
}

#[test]
fn malformed_command_lines_are_refused() {
    let folder = folder("flags");
    let problem = folder.join("in.safetensors");
    Tensors::small().write(&problem);
    for (args, why) in [
        (&["missing.safetensors"][..], "missing.safetensors"),
        (&["."], "directory"),
        (&["in.safetensors", "more"], "more"),
        (&["in.safetensors", "--nonsense"], "--nonsense"),
        (&["in.safetensors", "--backend", "sse9"], "sse9"),
        (&["in.safetensors", "--rescale", "never"], "never"),
        (&["in.safetensors", "--precision", "fp8"], "fp8"),
        (&["in.safetensors", "--threads", "0"], "--threads"),
        (&["in.safetensors", "--threads", "many"], "many"),
        (&["in.safetensors", "--d-v", "-1"], "-1"),
        (&["in.safetensors", "--d-v", "96"], "(128, 96)"),
        (&["in.safetensors", "--d-v", "18446744073709551615"], "d_v"),
        (&["in.safetensors", "-o"], "--output"),
        (&["-o", "out.safetensors"], "FILE"),
        (&["--d-v", "128"], "FILE"),
        (&["in.safetensors", "-o", "no/such/out"], "no/such/out"),
        (&["in.safetensors", "-o", "."], "cannot write ."),
        (&["in.safetensors", "-o", ""], "--output"),
        (
            &["in.safetensors", "-o", "./in.safetensors"],
            "is the problem itself",
        ),
    ] {
        refused(decode().args(args).current_dir(&folder), why);
        assert_eq!(names(&folder), ["in.safetensors"], "{args:?}");
    }
    for id in BackendId::ALL {
        if Backend::request(id).is_err() {
            let name = id.name();
            refused(decode().arg(&problem).args(["--backend", name]), name);
        }
    }
}
