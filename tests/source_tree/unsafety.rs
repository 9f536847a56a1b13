//! Where unsafe code may stand, and that each use says why it is sound.

use syn::visit::Visit;

use super::check::{all, finds};
use super::fault::{Fault, assert_none};
use super::source::{Source, everywhere, idents};

const UNSAFE: &[&str] = &["src/kernel/", "ffi/", "python/src/", "examples/bare-metal/"];

#[test]
fn unsafe_stays_in_its_folders() {
    assert_none(&all(&everywhere(), folders));
}

#[test]
fn unsafe_has_safety_comments() {
    assert_none(&all(&everywhere(), safety_comments));
}

/// The keyword by tokens, as macros have it too.
fn folders(source: &Source) -> Vec<Fault> {
    if UNSAFE.iter().any(|folder| source.path.starts_with(folder)) {
        return Vec::new();
    }
    let keywords = source.tokens.iter().filter(|token| token.text == "unsafe");
    let mut lines: Vec<usize> = keywords.map(|token| token.line).collect();
    let mut lints = Lints(Vec::new());
    lints.visit_file(&source.file);
    lines.extend(lints.0);
    let fault = |line| source.fault(line, format!("unsafe outside of {UNSAFE:?}"));
    lines.into_iter().map(fault).collect()
}

/// Lines of attributes that let unsafe code in.
struct Lints(Vec<usize>);

impl<'ast> Visit<'ast> for Lints {
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let path = attribute.path();
        let level = path.get_ident().map(ToString::to_string);
        let lets = matches!(level.as_deref(), Some("allow" | "expect" | "warn"));
        let lints = attribute.meta.require_list();
        let lints = lints.map(|list| idents(list.tokens.clone()));
        if lets && lints.is_ok_and(|lints| lints.iter().any(|lint| lint == "unsafe_code")) {
            self.0.push(path.segments[0].ident.span().start().line);
        }
    }
}

fn safety_comments(source: &Source) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (i, token) in source.tokens.iter().enumerate() {
        // A function has a section `# Safety` instead, which clippy demands.
        let needs = ["{", "impl"].iter().any(|next| source.is(i + 1, next))
            || (source.is(i + 1, "extern") && !source.is(i + 2, "fn") && !source.is(i + 3, "fn"));
        if token.text == "unsafe" && needs && !has_safety_comment(source, i) {
            faults.push(source.fault(token.line, "unsafe without a SAFETY comment above"));
        }
    }
    faults
}

/// Whether a comment stands directly before the token, or before the statement that it is in.
fn has_safety_comment(source: &Source, token: usize) -> bool {
    let tokens = &source.tokens;
    for i in (0..=token).rev() {
        let start = if i == 0 { 0 } else { tokens[i - 1].range.end };
        let gap = &source.text[start..tokens[i].range.start];
        if gap.contains("//") || gap.contains("/*") {
            // Nothing between the two.
            let (_, comment) = gap.rsplit_once("\n\n").unwrap_or(("", gap));
            return comment.contains("SAFETY:");
        }
        let begins = i > 0
            && match tokens[i - 1].text.as_str() {
                "{" | "}" | ";" => true,
                // Fields, arms and items of a list.
                "," => tokens[i - 1].inside == '{',
                _ => false,
            };
        if begins {
            return false;
        }
    }
    false
}

#[test]
fn finds_misplaced_unsafe() {
    for (path, text, line) in [
        (
            "src/kernel/memory.rs",
            "#![allow(unsafe_code)]\nunsafe fn f() {}",
            0,
        ),
        ("ffi/src/lib.rs", "unsafe extern {}", 0),
        (
            "src/lib.rs",
            "#![deny(unsafe_code)] // unsafe\n#![forbid(unsafe_code)]",
            0,
        ),
        ("src/plan.rs", "\n\nfn f() { unsafe { g() } }", 3),
        ("src/plan.rs", "fn f() {\n m!(unsafe { g() }) }", 2),
        ("src/plan.rs", "#![allow(unsafe_code)]", 1),
        (
            "src/plan.rs",
            "\n#[expect(dead_code, unsafe_code)]\nfn f() {}",
            2,
        ),
        ("examples/x.rs", "unsafe impl Send for X {}", 1),
        ("tests/x.rs", "const X: &str = r#\"unsafe \"quoted\"\"#;", 0),
    ] {
        finds(folders, path, text, line, "outside");
    }
}

#[test]
fn finds_unargued_unsafe() {
    for (text, line) in [
        ("fn f() {\n// SAFETY: so.\nunsafe { f() } }", 0),
        (
            "fn f() {\n// SAFETY: so,\n// and so.\nlet x = unsafe { f() }; }",
            0,
        ),
        (
            "fn f() {\n// SAFETY: so.\nlet x =\n    unsafe { f() }; }",
            0,
        ),
        ("fn f() {\n// SAFETY: so.\ng(a, unsafe { f() }); }", 0),
        ("// SAFETY: so.\n#[allow(x)]\nunsafe impl Send for X {}", 0),
        ("fn f() { /* SAFETY: so. */ unsafe { f() } }", 0),
        ("trait T { /// # Safety\n/// So.\nunsafe fn f(); }", 0),
        ("/// # Safety\n/// So.\nunsafe extern \"C\" fn f() {}", 0),
        ("// SAFETY: so.\nunsafe extern \"C\" {}", 0),
        ("unsafe extern \"C\" {}", 1),
        (
            "// unsafe { f() }\nconst C: char = '\"'; const S: &str = \"unsafe { }\";",
            0,
        ),
        ("fn f() { unsafe { f() } }", 1),
        (
            "fn f() {\n// SAFETY: so.\nunsafe { f() }\nunsafe { g() } }",
            4,
        ),
        ("fn f() {\n// SAFETY: so.\n\nunsafe { f() } }", 4),
        ("// Is safe.\nunsafe impl Send for X {}", 2),
        ("fn f() {\n// SAFETY: so.\ng();\nunsafe { h() }\n}", 4),
        (
            "fn f() { match x {\n// SAFETY: so.\nA => unsafe { f() },\nB => unsafe { g() },\n} }",
            4,
        ),
        ("macro_rules! m { () => {\nunsafe { f() } } }", 2),
    ] {
        finds(safety_comments, "src/kernel/x.rs", text, line, "SAFETY");
    }
}
