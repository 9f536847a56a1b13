//! The examples as their users run them.
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
        "{} is missing; `cargo test` builds it, `cargo test --test {name}_cli` does not",
        path.display()
    );
    let mut command = Command::new(path);
    command.stdin(Stdio::null());
    command
}

/// What a run comes to.
pub fn output(name: &str, arguments: &[&str]) -> Output {
    command(name).args(arguments).output().unwrap()
}

/// What a successful run prints.
pub fn printed(name: &str, arguments: &[&str]) -> String {
    let output = output(name, arguments);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// The objects that it prints, one a line.
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

/// A run fails with one line on standard error, which names the culprit.
pub fn refused(name: &str, arguments: &[&str], culprit: &str) {
    let output = output(name, arguments);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
    assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
    assert!(complaint.starts_with("error: "), "{complaint}");
    assert!(complaint.contains(culprit), "{arguments:?}: {complaint}");
}
