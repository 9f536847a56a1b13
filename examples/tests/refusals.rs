//! Refused command lines: exit code 2, and one line on standard error that names the culprit. Those of
//! `decode` are in `decode/refusals.rs`.

mod common;

use common::{command, refused};

#[test]
#[rustfmt::skip]
fn command_lines() {
    for (program, arguments, culprit) in [
        ("utilization", &["--backend", "cuda"][..], "--backend"),
        ("utilization", &["--context", "0"], "--context"),
        ("utilization", &["--heads", "1025"], "--heads"),
        ("utilization", &["--seconds", "nan"], "--seconds"),
        ("utilization", &["--threads", "0"], "--threads"),
        ("utilization", &["--svg", "/nowhere/at/all.svg"], "/nowhere/at/all.svg"),
        // Linux reports the available memory.
        #[cfg(target_os = "linux")]
        ("utilization", &["--batch", "1024", "--context", "1048576"], "GiB of available memory"),
        ("accuracy", &["--backend", "cuda"], "--backend"),
        ("accuracy", &["--distribution", "N(0,2)"], "--distribution"),
        ("accuracy", &["--block-n", "513"], "--block-n"),
        ("accuracy", &["--threads", "1025"], "--threads"),
        ("accuracy", &["--svg", "/nowhere/at/all.svg"], "/nowhere/at/all.svg"),
        ("accuracy", &["more"], "more"),
        ("soak", &["--backend", "cuda"], "--backend"),
        ("soak", &["--seconds=-1"], "--seconds"),
        ("soak", &["--threads", "0"], "--threads"),
        ("soak", &["--seed", "one"], "--seed"),
        ("soak", &["--nonsense"], "--nonsense"),
    ] {
        refused(command(program).args(arguments), culprit);
    }
}
