//! The programs as their users run them.
#![allow(dead_code, reason = "each test uses some of it")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The example beside this test: target/PROFILE/{deps/this, examples/NAME}.
pub fn command(name: &str) -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push(format!("examples/{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "{} is missing; `cargo test -p amla-examples` builds it, but not with `--test`",
        path.display()
    );
    let mut command = Command::new(path);
    command.stdin(Stdio::null());
    command
}

/// Standard output of a successful run.
pub fn printed(name: &str, arguments: &[&str]) -> String {
    let output = command(name).args(arguments).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON objects that a successful run prints, one a line.
pub fn objects(name: &str, arguments: &[&str]) -> Vec<Value> {
    let lines = printed(name, arguments);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub fn number(object: &Value, name: &str) -> f64 {
    object[name].as_f64().unwrap()
}

/// Exit code 2, one line on standard error that contains `why`.
pub fn refused(command: &mut Command, why: &str) -> Output {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{why}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{why}: {stderr}");
    assert!(
        stderr.starts_with("error: ") && stderr.contains(why),
        "{why}: {stderr}"
    );
    output
}

/// Lines of at most 80 columns, as no terminal says otherwise.
#[track_caller]
pub fn fits(text: &str) {
    for line in text.lines() {
        let columns = line.chars().count();
        assert!(columns <= 80, "{columns} columns: {line}");
    }
}
