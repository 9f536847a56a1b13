//! Results against expected values.

use std::process::Output;

use amla::{Backend, BackendId};
use half::bf16;
use safetensors::tensor::Dtype;

use crate::files::Tensors;
use crate::runs::{counts, decode, floats, folder, object, run, text};

/// Runs the program on the file. The exit code is 0, or 1 if a result differs too much, which standard
/// error says in one line that begins with `error: in, exact: `.
fn judged(name: &str, tensors: &Tensors, args: &[&str]) -> (i32, Output) {
    let path = folder(name).join("in.safetensors");
    tensors.write(&path);
    let output = decode().arg(&path).args(args).output().unwrap();
    let code = output.status.code().unwrap();
    let errors = text(&output.stderr).lines();
    let errors = errors.filter(|line| line.starts_with("error: in, exact: "));
    match errors.count() {
        0 => assert_eq!(code, 0, "{}", text(&output.stderr)),
        _ => assert_eq!(code, 1, "{}", text(&output.stderr)),
    }
    (code, output)
}

/// The small problem, with its own results as expected values, scaled. They are those of a run with these arguments, in a folder
/// of that name.
fn expecting(name: &str, args: &[&str], [o_scale, lse_scale]: [f32; 2]) -> Tensors {
    let (_, _, out) = run(&folder(name), &Tensors::small(), args);
    let scaled = |name, scale: f32| -> (Vec<usize>, Vec<f32>) {
        let (shape, values) = floats(&out, name);
        (shape, values.into_iter().map(|x| x * scale).collect())
    };
    let ((o_shape, o), (lse_shape, lse)) = (scaled("o", o_scale), scaled("lse", lse_scale));
    Tensors::small()
        .f32s("expected_o", &o_shape, &o)
        .f32s("expected_lse", &lse_shape, &lse)
}

#[test]
fn expectations_hold_for_their_masks_only() {
    let run = |tensors: &Tensors, args: &[&str]| judged("expectations", tensors, args);
    let expecting = Tensors::small()
        .zeros("expected_o", Dtype::F32, &[2, 2, 3, 128])
        .zeros("expected_lse", Dtype::F32, &[2, 3, 2]);
    let masked = expecting
        .clone()
        .metadata("causal", "true")
        .metadata("window", "3");
    for (tensors, args, without) in [
        (&expecting, &[][..], ""),
        (&expecting, &["--causal"], "--causal"),
        (&expecting, &["--window", "3"], "--window"),
        (
            &expecting,
            &["--window", "3", "--causal"],
            "--causal and --window",
        ),
        (&masked, &[], ""),
        (&masked, &["--causal"], ""),
        (&masked, &["--causal", "--window", "3"], ""),
        (&masked, &["--causal", "--window", "2"], "--window"),
    ] {
        let (code, output) = run(tensors, &[args, &["--json"]].concat());
        let record = object(&output);
        let masks = tensors.metadata.len() == 2;
        assert_eq!(record["causal"], masks || args.contains(&"--causal"));
        let error = record["error"].as_f64();
        if without.is_empty() {
            assert_eq!(record["reference"], "expected");
            // Infinite, as zeros are expected.
            assert_eq!(error, None);
            assert_eq!(code, 1);
        } else {
            assert_eq!(code, 0);
            let note = format!(
                "note: expected_o and expected_lse were computed without {without}: \
                 not compared, errors are against Golden\n"
            );
            assert_eq!(text(&output.stderr), note);
            assert_eq!(record["reference"], "golden");
            assert!(error.unwrap() < 1e-2, "{record}");
            let seen = match (record["causal"] == true, record["window"].as_u64()) {
                (true, None) => 4 + 5,
                (true, Some(window)) => window + window,
                (false, Some(3)) => 4 + 3,
                _ => panic!("{record}"),
            };
            counts(&record, (2 * 3 * seen) as f64, 256.0);
            // With the table too.
            assert_eq!(text(&run(tensors, args).1.stderr), note);
        }
    }

    // One expected tensor, or none.
    let one = expecting.without("expected_lse");
    let note = "expected_o was computed without --causal";
    assert!(text(&run(&one, &["--causal"]).1.stderr).contains(note));
    let one = one
        .without("expected_o")
        .zeros("expected_lse", Dtype::F32, &[2, 3, 2]);
    let note = "expected_lse was computed without --causal";
    assert!(text(&run(&one, &["--causal"]).1.stderr).contains(note));
    let none = one.without("expected_lse");
    assert_eq!(text(&run(&none, &["--causal"]).1.stderr), "");
}

#[test]
fn results_must_be_as_expected() {
    let (code, output) = judged("as_expected", &expecting("own", &[], [1.0, 1.0]), &[]);
    assert_eq!((code, text(&output.stderr)), (0, ""));
    for (o, lse, why) in [
        (
            2.0,
            1.0,
            &["o differs from the expected values by 5.00e-1"][..],
        ),
        (
            1.02,
            1.0,
            &["o differs from the expected values by 1.96e-2"],
        ),
        (
            f32::NAN,
            1.0,
            &["o differs from the expected values by inf"],
        ),
        (
            1.0,
            1.1,
            &["lse differs from the expected values by 9.09e-2"],
        ),
        (0.0, -1.0, &["o differs from", "lse differs from"]),
    ] {
        for args in [&["--json"][..], &[]] {
            let (code, output) = judged("unexpected", &expecting("scaled", &[], [o, lse]), args);
            let stderr = text(&output.stderr);
            assert_eq!(code, 1, "{o} {lse}");
            assert_eq!(stderr.lines().count(), why.len(), "{stderr}");
            for (line, why) in stderr.lines().zip(why) {
                assert!(line.contains(why), "{line} lacks {why}");
            }
            // The figures are printed nevertheless.
            assert!(text(&output.stdout).contains("exact"));
        }
    }
    // Rounding is no error.
    let rounded = |name: &str, tensors: &Tensors| -> Vec<bf16> {
        let (_, values) = floats(&tensors.bytes(), name);
        values.into_iter().map(bf16::from_f32).collect()
    };
    let exact = expecting("exact", &[], [1.0, 1.0]);
    let (o, lse) = (
        rounded("expected_o", &exact),
        rounded("expected_lse", &exact),
    );
    let in_bf16 =
        exact
            .bf16s("expected_o", &[2, 2, 3, 128], &o)
            .bf16s("expected_lse", &[2, 3, 2], &lse);
    assert_eq!(judged("rounded", &in_bf16, &[]).0, 0);
}

/// The tolerance of a run on a backend that multiplies in FP32.
fn tolerance(tensors: &Tensors, args: &[&str]) -> f64 {
    let portable = ["--backend", "portable", "--json"];
    let (_, output) = judged("tolerance", tensors, &[&portable, args].concat());
    object(&output)["tolerance"].as_f64().unwrap()
}

#[test]
fn the_tolerance_depends_on_what_is_rounded() {
    let unrounded = expecting("unrounded", &[], [1.0, 1.0]);
    assert_eq!(tolerance(&Tensors::small(), &[]), 1e-4);
    assert_eq!(tolerance(&unrounded, &[]), 1e-4);
    for (precision, limit) in [("bf16", 1e-2), ("bf16x2", 1e-4)] {
        let args = ["--rescale", "compensated", "--precision", precision];
        assert_eq!(tolerance(&unrounded, &args), limit);
    }
    for (dtype, limit) in [(Dtype::BF16, 1e-2), (Dtype::F16, 1e-3)] {
        for name in ["expected_o", "expected_lse"] {
            let (_, shape, _) = &unrounded.tensors[name];
            let rounded = unrounded.clone().zeros(name, dtype, shape);
            assert_eq!(tolerance(&rounded, &[]), limit, "{name}");
            // Golden is in their place.
            assert_eq!(tolerance(&rounded, &["--causal"]), 1e-4);
        }
    }
    Backend::permit_amx();
    for id in [BackendId::Avx512Bf16, BackendId::Amx, BackendId::NeonBf16] {
        if Backend::request(id).is_err() {
            continue;
        }
        for (tensors, args, limit) in [
            (Tensors::small(), &[][..], 1e-2),
            (Tensors::small(), &["--precision", "bf16x2"], 1e-4),
            (Tensors::small().in_f32(), &[], 1e-4),
            (Tensors::small().in_f32(), &["--inputs", "bf16"], 1e-2),
        ] {
            let args = [&["--backend", id.name(), "--json"], args].concat();
            let (_, output) = judged("tolerance_bf16", &tensors, &args);
            assert_eq!(object(&output)["tolerance"], limit, "{args:?}");
        }
    }
}

#[test]
fn the_tolerance_can_be_chosen() {
    let portable = ["--backend", "portable", "--tolerance"];
    for (o, lse, chosen, code) in [
        (1.001, 1.0, "2e-3", 0),
        (1.001, 1.0, "5e-4", 1),
        (1.0, 1.001, "2e-3", 0),
        (1.0, 1.001, "5e-4", 1),
        (1.5, 0.5, "1e9", 0),
        // The expected values are those of the program itself.
        (1.0, 1.0, "0", 0),
    ] {
        let tensors = expecting("scaled_portable", &portable[..2], [o, lse]);
        let args = [&portable[..], &[chosen, "--json"]].concat();
        let (got, output) = judged("chosen", &tensors, &args);
        assert_eq!(got, code, "{o} {lse} {chosen}: {}", text(&output.stderr));
        assert_eq!(object(&output)["tolerance"], chosen.parse::<f64>().unwrap());
    }
}
