//! Text of 80 columns, errors that begin alike, and progress on terminals. `utilization.rs` has the text of `utilization`.

mod common;

use common::{command, printed, refused};

#[track_caller]
fn fits(program: &str, arguments: &str) {
    let text = printed(program, &arguments.split(' ').collect::<Vec<_>>());
    assert!(text.lines().count() > 3, "{program}: {text}");
    common::fits(&text);
}

#[test]
fn help() {
    for program in ["decode", "accuracy", "utilization", "scaling", "soak"] {
        fits(program, "--help");
    }
}

#[test]
fn decode() {
    fits(
        "decode",
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/data/minilm_l2_512.safetensors"
        ),
    );
}

#[test]
fn accuracy() {
    let conditions = "--samples 2 --rows 1 --context 200 --block-n 100";
    fits("accuracy", conditions);
    fits("accuracy", &format!("{conditions} --distribution N(0,1)"));
}

#[test]
fn scaling() {
    fits(
        "scaling",
        "--heads 16 --context 1024 --workers 1 --workers 2 --workers 256 --repetitions 1",
    );
}

#[test]
fn soak() {
    fits("soak", "--seconds 0 --threads 2 --backend portable");
}

#[test]
fn errors_begin_alike() {
    for program in ["decode", "accuracy", "utilization", "scaling", "soak"] {
        refused(command(program).arg("--nonsense"), "--nonsense");
    }
}

/// `script`, of util-linux, has a terminal for the program's standard error.
#[cfg(target_os = "linux")]
#[test]
fn progress_is_for_terminals() {
    let mut soak = command("soak");
    soak.args(["--seconds", "2.5", "--backend", "portable"]);
    let output = soak.output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );

    let shell = format!("{soak:?}");
    let Ok(output) = std::process::Command::new("script")
        .args(["-qec", &shell, "/dev/null"])
        .output()
    else {
        let missing = "NOT RUN: progress on a terminal, without script (util-linux)";
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{missing}");
        return eprintln!("{missing}");
    };
    let text = String::from_utf8(output.stdout).unwrap();
    // The report replaces it.
    let (_, report) = text.split_once("soak 100 %\r").expect(&text);
    assert!(
        report
            .trim_start()
            .starts_with(|c: char| c.is_ascii_digit()),
        "{text:?}"
    );
}
