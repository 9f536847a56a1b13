//! What `no_std` crates may not name, and what nobody leaves in code.

use super::check::{all, finds};
use super::fault::{Fault, assert_none};
use super::source::{Source, everywhere, sources};

/// Modules behind features that need std or alloc, and the C interface's root, which names std where panics
/// unwind.
const WITH_STD: &[&str] = &[
    "src/pool.rs",
    "src/owned.rs",
    "src/kernel/cap.rs",
    "src/kernel/emulated/processor.rs",
    "ffi/src/lib.rs",
];

#[test]
fn no_std() {
    let roots = sources(|path| path.ends_with("src/lib.rs"));
    let roots = roots.iter().filter(|source| is_no_std(source));
    let folders: Vec<String> = roots.map(|root| root.path.replace("lib.rs", "")).collect();
    assert!(folders.iter().any(|folder| folder == "src/"));
    assert!(folders.iter().any(|folder| folder == "ffi/src/"));
    let inside = |path: &str| folders.iter().any(|folder| path.starts_with(folder));
    // A file `tests.rs` is a module under cfg(test), and so are those in a folder of that name.
    let tests = |path: &str| path.ends_with("/tests.rs") || path.contains("/tests/");
    let sources = sources(|path| inside(path) && !tests(path) && !WITH_STD.contains(&path));
    assert_none(&all(&sources, std_and_alloc));
}

#[test]
fn nothing_left_over() {
    assert_none(&all(&everywhere(), leftovers));
}

fn is_no_std(source: &Source) -> bool {
    let mut attributes = source.file.attrs.iter();
    attributes.any(|attribute| attribute.path().is_ident("no_std"))
}

/// By tokens, as macros name crates too.
fn std_and_alloc(source: &Source) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (i, token) in source.without_tests() {
        let before = |word: &str| i > 0 && source.is(i - 1, word);
        let used = source.is(i + 1, "::") || before("crate") || before("use");
        // The first name of its path.
        let name = i > 1 && before("::") && is_name(&source.tokens[i - 2].text);
        if ["std", "alloc"].contains(&token.text.as_str()) && used && !name {
            let what = format!("{} in a no_std, no-alloc library", token.text);
            faults.push(source.fault(token.line, what));
        }
    }
    faults
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && !["use", "return", "in", "as", "dyn", "impl"].contains(&token)
}

fn leftovers(source: &Source) -> Vec<Fault> {
    const MARK: &str = concat!("FIX", "ME");
    let mut faults = Vec::new();
    for (i, token) in source.tokens.iter().enumerate() {
        let leftover = ["todo", "unimplemented", "dbg"].contains(&token.text.as_str());
        if leftover && source.is(i + 1, "!") {
            faults.push(source.fault(token.line, format!("{}! left over", token.text)));
        }
    }
    for comment in &source.comments {
        if comment.text.contains(MARK) {
            faults.push(source.fault(comment.line, format!("{MARK} left over")));
        }
    }
    faults
}

#[test]
fn finds_std() {
    for (text, line) in [
        (
            "use core::alloc::Layout; // std::vec\n/// std::vec\nfn f() {}",
            0,
        ),
        (
            "#[cfg(test)]\nmod tests {\n extern crate std;\n use std::vec;\n}",
            0,
        ),
        (
            "#[cfg(all(test, unix))]\nmod tests { use std::vec; }\nuse core::fmt;",
            0,
        ),
        ("fn std(alloc: u8) {}", 0),
        ("\nuse std::vec::Vec;", 2),
        ("fn f() -> ::std::vec::Vec<u8> {}", 1),
        ("extern crate alloc;", 1),
        ("#[cfg(test)]\nuse std::fmt;\nuse alloc::vec::Vec;", 3),
        ("#[cfg(test)] fn f(x: [u8; 2]) {}\nuse alloc::vec::Vec;", 2),
        ("#[cfg(feature = \"test\")]\nuse std::fmt;", 2),
        (
            "impl X {\n#[cfg(test)]\nfn f() { std::f() }\nfn g() { std::g() } }",
            4,
        ),
        ("macro_rules! m { () => { std::vec![] } }", 1),
    ] {
        finds(std_and_alloc, "src/x.rs", text, line, "no_std");
    }
}

#[test]
fn finds_leftovers() {
    let mark = concat!("FIX", "ME");
    let comment = format!("fn f() {{\n// {mark} later\n}}");
    let doc = format!("\n/// {mark}\nfn f() {{}}");
    let string = format!("const X: &str = \"{mark}\";");
    for (text, line) in [
        ("fn f() { let todo = 1; } // todo!()", 0),
        (string.as_str(), 0),
        ("\nfn f() { todo!() }", 2),
        ("fn f() { unimplemented!(\"x\") }", 1),
        ("fn f() { let x = dbg!(y); }", 1),
        ("macro_rules! m { () => { todo!() } }", 1),
        (comment.as_str(), 2),
        (doc.as_str(), 2),
    ] {
        finds(leftovers, "src/x.rs", text, line, "left over");
    }
}
