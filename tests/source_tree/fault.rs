//! What is wrong with a source.

use std::fmt;

/// What is wrong, and where.
pub struct Fault {
    pub path: String,
    pub line: usize,
    pub what: String,
}

impl Fault {
    pub fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[track_caller]
pub fn assert_none(faults: &[Fault]) {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "\n{}", lines.join("\n"));
}

/// No fault but those that the exceptions name. An exception is a path, or how it begins, and what
/// the fault's text begins with behind it.
#[track_caller]
pub fn assert_none_but(exceptions: &[&str], mut faults: Vec<Fault>) {
    for exception in exceptions {
        let names = |fault: &Fault| format!("{} {}", fault.path, fault.what).starts_with(exception);
        let found = faults.len();
        faults.retain(|fault| !names(fault));
        if faults.len() == found {
            faults.push(Fault::new(exception, 0, "an exception without a fault"));
        }
    }
    assert_none(&faults);
}

#[test]
#[should_panic(expected = "an exception without a fault")]
fn exceptions_need_faults() {
    let fault = || Fault::new("src/a.rs", 1, "so");
    assert_none_but(&["src/a.rs so"], vec![fault()]);
    assert_none_but(&["src/a.rs", "src/b.rs"], vec![fault()]);
}

#[test]
#[should_panic(expected = "src/b.rs:2: so")]
fn exceptions_are_no_others() {
    let faults = ["src/a.rs", "src/b.rs"].map(|path| Fault::new(path, 2, "so"));
    assert_none_but(&["src/a.rs"], faults.into());
}
