//! Records, tables and files of results.

use std::fs;
use std::process::Stdio;

use amla::Backend;
use half::bf16;
use safetensors::tensor::Dtype;

use crate::files::Tensors;
use crate::runs::{decode, floats, folder, json, names, run, text};

const BUNDLED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/data/minilm_l2_512.safetensors"
);

#[test]
fn bundled_problem_as_a_file() {
    let folder = folder("bundled");
    let out = folder.join("out.safetensors");
    fs::write(&out, "previous content").unwrap();
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
    // As the program does.
    Backend::permit_amx();
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

    // The errors are those of the written file.
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
        line.starts_with("minilm_l2_512 ") && line.split_whitespace().nth(1) == Some("compensated")
    });
    assert_eq!(rows.count(), 1, "{stdout}");
}

#[test]
fn masks_dtypes_and_threads() {
    let folder = folder("masks");
    let run = |tensors: &Tensors, args: &[&str]| {
        run(
            &folder,
            tensors,
            &[&["--backend", "portable"], args].concat(),
        )
    };

    // The second request sees no key. With a causal mask the first position of the first request sees
    // one key only.
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
    let (key, _) = tensors.tensors["kv"].2.as_chunks();
    for (x, &bytes) in o[..128].iter().zip(key) {
        assert!((x - bf16::from_le_bytes(bytes).to_f32()).abs() < 1e-6);
    }
    assert!(o[768..].iter().all(|&x| x == 0.0));
    assert!(lse[..6].iter().all(|x| x.is_finite()));
    assert!(lse[6..].iter().all(|&x| x == f32::INFINITY));

    // Neither threads nor a lossless conversion change a bit.
    let (_, _, two) = run(&tensors, &["--causal", "--threads", "2"]);
    assert!(one == two);
    // The same numbers in FP32, multiplied as such.
    for (args, inputs) in [
        (&["--causal"][..], "as-given"),
        (&["--causal", "--inputs", "bf16"], "bf16"),
    ] {
        let (record, output, f32) = run(&tensors.clone().in_f32(), args);
        assert_eq!(text(&output.stderr), "");
        assert_eq!(record["inputs"], inputs);
        assert_eq!(
            (&record["q_dtype"], &record["kv_dtype"]),
            (&"f32".into(), &"f32".into())
        );
        let (_, o_f32) = floats(&f32, "o");
        let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-2;
        assert!(o_f32.iter().zip(&o).all(near));
        let error = record["error"].as_f64().unwrap();
        assert!(
            error <= if inputs == "bf16" { 1e-2 } else { 2e-6 },
            "{record}"
        );
    }

    // Separate values. Expected values are those of the previous run, lse in either layout.
    let (dtype, shape, data) = tensors.tensors["kv"].clone();
    let tensors = tensors.with("v", dtype, &shape, data);
    let (_, _, same) = run(&tensors, &["--causal"]);
    assert!(one == same);
    let swapped: Vec<_> = (0..12)
        .map(|i| lse[i / 6 * 6 + i % 3 * 2 + i / 3 % 2])
        .collect();
    let tensors = tensors
        .f32s("expected_o", &[2, 2, 3, 128], &o)
        .metadata("causal", "true");
    for (shape, lse) in [([2, 3, 2], &lse), ([2, 2, 3], &swapped)] {
        let expecting = tensors.clone().f32s("expected_lse", &shape, lse);
        let (record, output, _) = run(&expecting, &[]);
        assert_eq!(text(&output.stderr), "");
        assert_eq!(record["causal"], true);
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
