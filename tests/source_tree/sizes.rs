//! How long files, functions and README are.

use super::check::{all, finds};
use super::fault::{Fault, assert_none_but};
use super::source::{Source, everywhere, sources};

/// Lines that a file may have.
const FILE: usize = 800;
/// Lines that a function of a library may have, from `fn` to its last brace.
const FUNCTION: usize = 120;

/// Characters that README may have.
const README: usize = 9000;

/// To be split.
const LONG_FILES: &[&str] = &[];
/// To be cut. A path and a function's name.
const LONG_FUNCTIONS: &[&str] = &[];

#[test]
fn files_are_short() {
    assert_none_but(LONG_FILES, all(&everywhere(), file));
}

#[test]
fn functions_are_short() {
    let libraries = sources(|path| path.starts_with("src/") || path.contains("/src/"));
    assert_none_but(LONG_FUNCTIONS, all(&libraries, functions));
}

#[test]
fn readme_is_short() {
    let characters = include_str!("../../README.md").chars().count();
    assert!(
        characters <= README,
        "README.md has {characters} characters, more than {README}"
    );
}

fn file(source: &Source) -> Vec<Fault> {
    let lines = source.text.lines().count();
    let long = (lines > FILE).then(|| format!("has {lines} lines, more than {FILE}"));
    long.map(|what| Fault::new(&source.path, lines, what))
        .into_iter()
        .collect()
}

/// By tokens, as macros define functions too.
fn functions(source: &Source) -> Vec<Fault> {
    let tokens = &source.tokens;
    let mut faults = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        // A pointer to a function has parentheses instead of a name.
        if token.text != "fn" || source.is(i + 1, "(") {
            continue;
        }
        let mut rest = tokens.iter().enumerate().skip(i);
        let body = rest.find(|(_, next)| {
            next.depth == token.depth && ["{", ";"].contains(&next.text.as_str())
        });
        let Some((open, _)) = body else { continue };
        let end = source.closing(open);
        let lines = tokens[end].line - token.line + 1;
        if lines > FUNCTION {
            let name = &tokens[i + 1].text;
            let what = format!("{name} has {lines} lines, more than {FUNCTION}");
            faults.push(Fault::new(&source.path, token.line, what));
        }
    }
    faults
}

#[test]
fn finds_long_files() {
    for (lines, line) in [(FILE, 0), (FILE + 1, FILE + 1)] {
        finds(file, "src/x.rs", &"\n".repeat(lines), line, "more than 800");
    }
}

#[test]
fn finds_long_functions() {
    let lines = |n: usize| "\n".repeat(n);
    for (text, line) in [
        (format!("fn f(x: fn()) {{{}}}", lines(119)), 0),
        (format!("\nfn f() {{{}}}", lines(120)), 2),
        (format!("fn f(x: [u8; 2])\n{{{}}}", lines(119)), 1),
        (
            format!("trait T {{ fn f(); fn g() {{{}}} }}", lines(120)),
            1,
        ),
        (
            format!("macro_rules! m {{ () => {{ fn f() {{{}}} }} }}", lines(120)),
            1,
        ),
        (format!("mod x {{{}}}", lines(500)), 0),
    ] {
        finds(functions, "src/x.rs", &text, line, "more than 120");
    }
}
