//! The library as C hosts see it: built as they build it, linked by their compilers.
//!
//! A tool that is missing is said aloud and its test skipped; under `CI=true` it fails.

mod archive;
mod examples;
mod hosts;
mod layout;
mod suite;
mod toolchain;

// What the Rust suites compute is what the C suite computes.
#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/hosts.rs"]
#[allow(dead_code, reason = "the library's own suites use the rest")]
mod host;

use std::collections::BTreeSet;
use std::process::Command;

use toolchain::{c, run, tool, valgrind};

#[test]
fn refusals() {
    for compiler in ["gcc", "clang"] {
        if tool(compiler) {
            c(compiler, "tests/c/refusals.c").run(&[]);
        }
    }
}

#[test]
fn refusals_sanitized() {
    if tool("gcc") {
        c("gcc", "tests/c/refusals.c").sanitized().run(&[]);
    }
}

#[test]
fn refusals_under_valgrind() {
    if tool("gcc") && tool("valgrind") {
        valgrind(&c("gcc", "tests/c/refusals.c").built(), &[]);
    }
}

/// Numbers of all kinds in all fields: a panic of the library's would be a trap here.
#[test]
fn any_numbers() {
    if tool("gcc") {
        c("gcc", "tests/c/numbers.c").run(&["30000"]);
        c("gcc", "tests/c/numbers.c").sanitized().run(&["3000"]);
    }
}

/// No exported function takes more than 64 KiB, on any backend of this machine.
#[test]
fn stack() {
    if tool("gcc") {
        // Symbols are bound at the start: the first call would bind them on the measured stack.
        let program = c("gcc", "tests/c/stack.c").args(&["-pthread", "-Wl,-z,now"]);
        let printed = program.run(&[]);
        println!("{printed}");
        let names = printed.lines().filter_map(|line| line.split(' ').next());
        let measured: BTreeSet<_> = names.map(str::to_owned).collect();
        assert_eq!(measured, archive::declared());
    }
}

/// Caps on backends, a process for each.
#[test]
fn caps() {
    if !tool("gcc") {
        return;
    }
    let program = c("gcc", "tests/c/max_backend.c").built();
    for case in ["low", "last", "late", "other", "amx", "environment"] {
        let mut command = Command::new(&program);
        run(command.arg(case).env("AMLA_MAX_BACKEND", "portable"));
    }
}

/// Whatever environment a host leaves behind.
#[test]
fn environments() {
    if tool("gcc") && cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        c("gcc", "tests/c/environment.c").run(&[]);
    }
}
