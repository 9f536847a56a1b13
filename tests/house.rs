//! The house rules, read off the sources: which way imports point, where `unsafe` may stand, and
//! what the crate depends on. Every checker is tried on something bad too.

use std::fs;
use std::path::{Path, PathBuf};

// -------------------------------------------------------------------------------------------------
// The rules
// -------------------------------------------------------------------------------------------------

/// Modules of `src/`; each imports from those before it. Those of the third layer may import
/// each other in this order, other layers nothing of their own.
const LAYERS: &[&[&str]] = &[
    &["bits", "schedule", "shape"],
    &["error"],
    &["format", "problem", "tile"],
    &["kernel", "merge", "reference"],
    &["group"],
    &["results"],
    &["attend"],
    &["plan", "stages"],
    &["pool"],
    &["lib"],
];
const ORDERED_LAYER: usize = 2;

/// Modules that import nothing but `core`.
const CORE_ONLY: &[&str] = &["bits", "schedule"];

/// Files of `src/kernel/` that aren't backends: any backend may use them.
const COMMON: &[&str] = &[
    "asimd", "detect", "fp32", "memory", "prefetch", "scalar", "simd", "softmax", "zmm",
];

/// Where unsafe code may stand.
const UNSAFE: &[&str] = &["src/kernel/", "ffi/", "examples/bare-metal/"];

const DEPENDENCIES: &[&str] = &["bytemuck", "half", "libm", "wide"];

/// Behind a feature of the same name, and only there.
const OPTIONAL: &[&str] = &["rayon"];

/// Modules behind features that need std.
const STD_MODULES: &[&str] = &["pool"];

#[test]
fn imports_point_left() {
    assert_none(all(&sources(&["src"]), imports));
}

#[test]
fn backends_are_apart() {
    let mut sources = sources(&["src/kernel"]);
    // The choice among them names them all.
    sources.retain(|source| source.path != "src/kernel/mod.rs");
    assert!(sources.iter().any(|s| s.path == "src/kernel/portable.rs"));
    assert_none(backends(&sources));
}

#[test]
fn unsafe_stays_in_its_place() {
    assert_none(all(&sources(EVERYWHERE), unsafe_places));
}

#[test]
fn unsafe_is_argued() {
    assert_none(all(&sources(EVERYWHERE), safety_comments));
}

#[test]
fn no_std() {
    // A file `tests.rs` is a module under cfg(test), and so are those in a folder of that name.
    let mut sources = sources(&["src"]);
    sources.retain(|source| {
        let tests = source.stem() == "tests" || source.path.contains("/tests/");
        !tests && !STD_MODULES.contains(&source.stem())
    });
    sources.extend(self::sources(&["ascend/src"]));
    // The C interface's root alone may name std: where panics unwind.
    sources.extend(
        self::sources(&["ffi/src"])
            .into_iter()
            .filter(|s| s.stem() != "lib"),
    );
    assert_none(all(&sources, std_and_alloc));
}

#[test]
fn nothing_left_over() {
    assert_none(all(&sources(EVERYWHERE), leftovers));
}

#[test]
fn dependencies() {
    assert_none(dependencies_of(&read(&root().join("Cargo.toml"))));
}

/// The C interface is built of nothing but the library and its number formats. That it sees
/// the public interface only is the compiler's to hold: it is a crate of its own.
#[test]
fn dependencies_of_the_c_interface() {
    let manifest = read(&root().join("ffi/Cargo.toml"));
    let (_, rest) = manifest.split_once("[dependencies]\n").unwrap();
    let section = rest.split("\n[").next().unwrap();
    let names = section.lines().filter_map(|line| line.split_once(" = "));
    assert!(
        names.map(|(name, _)| name).eq(["amla", "half"]),
        "{section}"
    );
    assert!(!section.contains(" features = "), "{section}");
}

// -------------------------------------------------------------------------------------------------
// The checkers: each returns "file:line: what is wrong"
// -------------------------------------------------------------------------------------------------

fn all(sources: &[Source], check: fn(&Source) -> Vec<String>) -> Vec<String> {
    sources.iter().flat_map(check).collect()
}

fn layer(module: &str) -> Option<(usize, usize)> {
    LAYERS.iter().enumerate().find_map(|(layer, modules)| {
        let place = modules.iter().position(|&m| m == module)?;
        Some((layer, place))
    })
}

fn may_import(from: &str, to: &str) -> bool {
    let (Some(own), Some(other)) = (layer(from), layer(to)) else {
        return false;
    };
    let left = other.0 < own.0 || (own.0 == ORDERED_LAYER && other.0 == own.0 && other.1 < own.1);
    from == to || left
}

fn imports(source: &Source) -> Vec<String> {
    let module = source.module();
    let tokens = source.tokens();
    if layer(module).is_none() {
        return vec![source.at(1, &format!("module {module} has no place in the layers"))];
    }
    let mut wrong = Vec::new();
    for (line, target) in crate_paths(source.depth(), &tokens) {
        // The root is where modules are put together.
        if !may_import(module, &target) && module != "lib" {
            wrong.push(source.at(line, &format!("{module} imports from {target}")));
        }
    }
    if CORE_ONLY.contains(&module) {
        for (i, (line, token)) in tokens.iter().enumerate() {
            let import = i > 0 && is(&tokens, i - 1, "use") && is_name(token);
            let own = ["core", "self", "super", "crate"].contains(&token.as_str());
            let path = is(&tokens, i + 1, "::") && begins_path(&tokens, i);
            let foreign = DEPENDENCIES.contains(&token.as_str());
            if (import && !own) || (path && foreign && !import) {
                let what = format!("{module} imports {token}; it may use core only");
                wrong.push(source.at(*line, &what));
            }
        }
    }
    wrong
}

/// The modules that paths from the crate's root go to, whether they start with `crate` or with
/// enough `super`s.
fn crate_paths(file_depth: usize, tokens: &[Token]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // Braces of inline modules, and of anything else.
    let mut braces = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let start = i > 0 && is(tokens, i - 1, "::");
        match tokens[i].1.as_str() {
            "{" => braces.push(i >= 2 && is(tokens, i - 2, "mod")),
            "}" => drop(braces.pop()),
            "crate" if !start && is(tokens, i + 1, "::") => {
                found.extend(path_heads(tokens, i + 2));
            }
            "super" if !start => {
                let mut supers = 1;
                while is(tokens, i + 1, "::") && is(tokens, i + 2, "super") {
                    supers += 1;
                    i += 2;
                }
                let inline = braces.iter().filter(|&&module| module).count();
                if is(tokens, i + 1, "::") && supers >= file_depth + inline {
                    found.extend(path_heads(tokens, i + 2));
                }
            }
            _ => {}
        }
        i += 1;
    }
    found
}

/// The identifier at `i`, or the first of each path in the braces there.
fn path_heads(tokens: &[Token], i: usize) -> Vec<(usize, String)> {
    if !is(tokens, i, "{") {
        return tokens.get(i).cloned().into_iter().collect();
    }
    let mut heads = Vec::new();
    let mut depth = 0;
    for j in i..tokens.len() {
        match tokens[j].1.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ if depth == 1 && (is(tokens, j - 1, ",") || j == i + 1) => {
                heads.push(tokens[j].clone());
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    heads
}

/// The file or folder of `src/kernel/` that a source belongs to.
fn backend_of(source: &Source) -> &str {
    let inside = source.path.trim_start_matches("src/kernel/");
    inside.split(['/', '.']).next().unwrap_or(inside)
}

fn backends(sources: &[Source]) -> Vec<String> {
    let mut backends: Vec<&str> = sources.iter().map(backend_of).collect();
    backends.retain(|backend| !COMMON.contains(backend));
    let mut wrong = Vec::new();
    for source in sources {
        let own = backend_of(source);
        for (line, token) in source.tokens() {
            if token != own && backends.contains(&token.as_str()) {
                let what = format!(
                    "{own} names the backend {token}; what both need belongs in one of {COMMON:?}"
                );
                wrong.push(source.at(line, &what));
            }
        }
    }
    wrong
}

fn unsafe_places(source: &Source) -> Vec<String> {
    if UNSAFE.iter().any(|place| source.path.starts_with(place)) {
        return Vec::new();
    }
    let tokens = source.tokens();
    let mut wrong = Vec::new();
    for (i, (line, token)) in tokens.iter().enumerate() {
        let lint = || {
            let mut before = tokens[..i].iter().rev().map(|(_, token)| token.as_str());
            before.find(|token| ["allow", "expect", "warn", "deny", "forbid"].contains(token))
        };
        let bad = match token.as_str() {
            "unsafe" => true,
            "unsafe_code" => !matches!(lint(), Some("deny" | "forbid")),
            _ => false,
        };
        if bad {
            wrong.push(source.at(*line, &format!("{token} outside {UNSAFE:?}")));
        }
    }
    wrong
}

fn safety_comments(source: &Source) -> Vec<String> {
    let code: Vec<&str> = source.code.lines().collect();
    let comments: Vec<&str> = source.comments.lines().collect();
    let argued = |line: usize| {
        // `line` counts from 1; the comment may share it, or stand above the statement.
        let says = |i: usize| comments.get(i).is_some_and(|c| c.contains("SAFETY:"));
        let mut i = line - 1;
        if says(i) {
            return true;
        }
        while i > 0 {
            i -= 1;
            let above = code[i].trim();
            let comment = !comments[i].trim().is_empty();
            // Attributes, and the beginning of the statement itself, may lie between.
            let between = above.starts_with("#[") || above.ends_with('=') || above.ends_with('(');
            if above.is_empty() && comment {
                if says(i) {
                    return true;
                }
            } else if !between {
                return false;
            }
        }
        false
    };
    let tokens = source.tokens();
    let mut wrong = Vec::new();
    for (i, (line, token)) in tokens.iter().enumerate() {
        // A function has a section `# Safety` instead, which clippy asks for.
        let needs = ["{", "impl"].iter().any(|next| is(&tokens, i + 1, next))
            || (is(&tokens, i + 1, "extern") && !is(&tokens, i + 2, "fn"));
        if token == "unsafe" && needs && !argued(*line) {
            wrong.push(source.at(*line, "unsafe without a SAFETY comment above"));
        }
    }
    wrong
}

fn std_and_alloc(source: &Source) -> Vec<String> {
    let tokens = source.tokens();
    let mut wrong = Vec::new();
    for (i, (line, token)) in tokens.iter().enumerate() {
        let used = is(&tokens, i + 1, "::")
            || (i > 0 && ["crate", "use"].iter().any(|word| is(&tokens, i - 1, word)));
        if ["std", "alloc"].contains(&token.as_str()) && begins_path(&tokens, i) && used {
            wrong.push(source.at(*line, &format!("{token} in a no_std, no-alloc library")));
        }
    }
    wrong
}

fn leftovers(source: &Source) -> Vec<String> {
    const MARK: &str = concat!("FIX", "ME");
    let tokens = source.tokens();
    let mut wrong = Vec::new();
    for (i, (line, token)) in tokens.iter().enumerate() {
        let leftover = ["todo", "unimplemented", "dbg"].contains(&token.as_str());
        if leftover && is(&tokens, i + 1, "!") {
            wrong.push(source.at(*line, &format!("{token}! left over")));
        }
    }
    for (i, comment) in source.comments.lines().enumerate() {
        if comment.contains(MARK) {
            wrong.push(source.at(i + 1, &format!("{MARK} left over")));
        }
    }
    wrong
}

/// The direct dependencies that builds of the library have, from the manifest's text.
fn dependencies_of(manifest: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut found = Vec::new();
    let mut section = String::new();
    for (i, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let mut add = |name: &str| {
            let name = name.split('.').next().unwrap_or_default().trim_matches('"');
            let optional = OPTIONAL.contains(&name) && line.contains("optional = true");
            if !DEPENDENCIES.contains(&name) && !optional {
                wrong.push(format!("Cargo.toml:{}: depends on {name}", i + 1));
            }
            found.push(name.to_owned());
        };
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = header.trim().to_owned();
            if let Some(name) = section.strip_prefix("dependencies.") {
                add(name);
            } else if section.ends_with("build-dependencies")
                || (section.starts_with("target.") && section.contains(".dependencies"))
            {
                wrong.push(format!("Cargo.toml:{}: has [{section}]", i + 1));
            }
        } else if let Some((name, _)) = line.split_once('=')
            && section == "dependencies"
        {
            add(name.trim());
        }
    }
    for name in DEPENDENCIES {
        if !found.iter().any(|found| found == name) {
            wrong.push(format!(
                "Cargo.toml: doesn't depend on {name}; is the rule out of date?"
            ));
        }
    }
    wrong
}

#[track_caller]
fn assert_none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

// -------------------------------------------------------------------------------------------------
// Sources
// -------------------------------------------------------------------------------------------------

/// Folders with Rust code; those that there are.
const EVERYWHERE: &[&str] = &[
    "src", "ascend", "examples", "tests", "benches", "ffi", "fuzz", "xtask",
];

struct Source {
    /// From the repository's root, with slashes.
    path: String,
    /// The text without comments, strings and items for tests only.
    code: String,
    /// The text without everything but comments.
    comments: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let (code, comments) = split(text);
        Self {
            path: path.to_owned(),
            // Tests are code too, but of another crate: std is there, and so may be anything.
            code: if path.starts_with("src/") {
                without_tests(&code)
            } else {
                code
            },
            comments,
        }
    }

    fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.strip_suffix(".rs").unwrap_or(name)
    }

    /// The module of `src/` that the file is or belongs to.
    fn module(&self) -> &str {
        let path = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let head = path.split('/').next().unwrap_or_default();
        head.strip_suffix(".rs").unwrap_or(head)
    }

    /// How many `super`s lead from the file to the crate's root.
    fn depth(&self) -> usize {
        if self.path == "src/lib.rs" {
            0
        } else {
            self.path.matches('/').count()
        }
    }

    fn tokens(&self) -> Vec<Token> {
        tokens(&self.code)
    }

    fn at(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The Rust files below these folders.
fn sources(folders: &[&str]) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.starts_with('.') {
                let relative = path.strip_prefix(root()).unwrap();
                let relative = relative.to_str().unwrap().replace('\\', "/");
                sources.push(Source::new(&relative, &read(&path)));
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!sources.is_empty());
    sources
}

/// Line, from 1, and text: an identifier, `::`, or one character.
type Token = (usize, String);

fn is(tokens: &[Token], i: usize, text: &str) -> bool {
    tokens.get(i).is_some_and(|(_, token)| token == text)
}

/// Whether no other name stands before this one in its path.
fn begins_path(tokens: &[Token], i: usize) -> bool {
    !(i > 1 && is(tokens, i - 1, "::") && is_name(&tokens[i - 2].1))
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn tokens(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (i, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let len = if word(first) {
                rest.find(|c| !word(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push((i + 1, rest[..len].to_owned()));
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

/// Code and comments, each with spaces where the other is; strings and characters are in neither.
fn split(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let (mut code, mut comments) = (String::new(), String::new());
    let mut i = 0;
    while i < chars.len() {
        let rest = &chars[i..];
        let after_word = i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_');
        let (len, kind) = token_extent(rest, after_word);
        for &c in &rest[..len] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            code.push(if kind == Kind::Code { c } else { blank });
            comments.push(if kind == Kind::Comment { c } else { blank });
        }
        i += len;
    }
    (code, comments)
}

#[derive(PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// How far the comment, literal or single character at the beginning goes.
fn token_extent(rest: &[char], after_word: bool) -> (usize, Kind) {
    let begins = |text: &str| {
        text.chars()
            .enumerate()
            .all(|(i, c)| rest.get(i) == Some(&c))
    };
    if begins("//") {
        let end = rest.iter().position(|&c| c == '\n');
        return (end.unwrap_or(rest.len()), Kind::Comment);
    }
    if begins("/*") {
        let (mut depth, mut i) = (0, 0);
        while i < rest.len() {
            match (rest[i], rest.get(i + 1)) {
                ('/', Some('*')) => (depth, i) = (depth + 1, i + 1),
                ('*', Some('/')) => (depth, i) = (depth - 1, i + 1),
                _ => {}
            }
            i += 1;
            if depth == 0 {
                break;
            }
        }
        return (i, Kind::Comment);
    }
    // r"...", r#"..."#, br"..."
    let prefix = usize::from(begins("b"));
    if !after_word && rest.get(prefix) == Some(&'r') {
        let hashes = rest[prefix + 1..].iter().take_while(|&&c| c == '#').count();
        let open = prefix + 1 + hashes;
        if rest.get(open) == Some(&'"') {
            let closes =
                |i: &usize| rest[*i] == '"' && rest[i + 1..].iter().take(hashes).all(|&c| c == '#');
            let end = (open + 1..rest.len()).find(closes);
            return (
                end.map_or(rest.len(), |end| end + 1 + hashes),
                Kind::Literal,
            );
        }
    }
    if begins("\"") {
        return (quoted(rest, '"'), Kind::Literal);
    }
    // A character, not a lifetime.
    if begins("'") && (rest.get(1) == Some(&'\\') || rest.get(2) == Some(&'\'')) {
        return (quoted(rest, '\''), Kind::Literal);
    }
    (1, Kind::Code)
}

/// The length of a literal that starts with `quote`.
fn quoted(rest: &[char], quote: char) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != quote {
        i += if rest[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

/// Blanks the items under `#[cfg(test)]` and the like; `code` has no comments and strings.
fn without_tests(code: &str) -> String {
    let mut bytes = code.as_bytes().to_vec();
    let mut from = 0;
    while let Some(start) = find(&bytes, from, b"#[cfg(") {
        let attribute = closing(&bytes, start + 1);
        from = attribute;
        let words = tokens(&String::from_utf8_lossy(&bytes[start..attribute]));
        let test = words.iter().any(|(_, word)| word == "test");
        if !test || words.iter().any(|(_, word)| word == "not") {
            continue;
        }
        // To the item's braces or semicolon, over other attributes and parentheses.
        let mut end = attribute;
        while end < bytes.len() {
            end = match bytes[end] {
                b'(' | b'[' => closing(&bytes, end),
                b'{' => {
                    end = closing(&bytes, end);
                    break;
                }
                b';' => break,
                _ => end + 1,
            };
        }
        for byte in &mut bytes[start..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        from = end;
    }
    String::from_utf8(bytes).unwrap()
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    let windows = bytes[from..].windows(what.len());
    windows
        .enumerate()
        .find_map(|(i, window)| (window == what).then_some(from + i))
}

/// The index behind the bracket that closes the one at `open`.
fn closing(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0;
    for (i, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    bytes.len()
}

// -------------------------------------------------------------------------------------------------
// The checkers, checked
// -------------------------------------------------------------------------------------------------

/// The checker finds exactly one fault, in `path`, in line `line`, which it says `says` about; none
/// if `line` is 0.
#[track_caller]
fn finds(check: fn(&Source) -> Vec<String>, path: &str, text: &str, line: usize, says: &str) {
    let wrong = check(&Source::new(path, text));
    if line == 0 {
        assert_none(wrong);
        return;
    }
    assert_eq!(wrong.len(), 1, "{text}: {wrong:?}");
    assert!(
        wrong[0].starts_with(&format!("{path}:{line}: ")),
        "{wrong:?}"
    );
    assert!(wrong[0].contains(says), "{wrong:?}, {says}");
}

#[test]
fn finds_imports_to_the_right() {
    for (path, text, line, says) in [
        ("src/plan.rs", "use crate::attend::Task;", 0, ""),
        (
            "src/attend.rs",
            "\nuse crate::plan::Plan;",
            2,
            "attend imports from plan",
        ),
        (
            "src/attend.rs",
            "use super::plan::Plan;",
            1,
            "attend imports from plan",
        ),
        (
            "src/attend.rs",
            "use crate::{bits, plan::{Plan, kernel}};",
            1,
            "from plan",
        ),
        (
            "src/attend.rs",
            "fn f() {\n crate::plan::decode();\n}",
            2,
            "from plan",
        ),
        (
            "src/attend.rs",
            "use crate::Precision;",
            1,
            "from Precision",
        ),
        (
            "src/attend.rs",
            "// use crate::plan::Plan;\n/* crate::plan */",
            0,
            "",
        ),
        (
            "src/attend.rs",
            "const X: &str = \"crate::plan::Plan\";",
            0,
            "",
        ),
        (
            "src/attend.rs",
            "#[cfg(test)]\nmod tests { use crate::plan::Plan; }",
            0,
            "",
        ),
        (
            "src/attend.rs",
            "#[cfg(not(test))]\nmod x { use crate::plan::Plan; }",
            2,
            "plan",
        ),
        (
            "src/attend.rs",
            "mod x { use super::plan; use super::super::bits; }",
            0,
            "",
        ),
        (
            "src/attend.rs",
            "mod x { use super::super::plan; }",
            1,
            "from plan",
        ),
        (
            "src/kernel/scalar.rs",
            "use super::Rows;\nuse crate::kernel::Kernel;",
            0,
            "",
        ),
        (
            "src/kernel/scalar.rs",
            "use super::super::attend;",
            1,
            "kernel imports from attend",
        ),
        (
            "src/kernel/scalar.rs",
            "use crate::reference::golden;",
            1,
            "from reference",
        ),
        (
            "src/kernel/mod.rs",
            "use crate::attend::Task;",
            1,
            "kernel imports from attend",
        ),
        ("src/tile.rs", "use crate::format::Row;", 0, ""),
        (
            "src/format.rs",
            "use crate::tile::Tile;",
            1,
            "format imports from tile",
        ),
        (
            "src/error.rs",
            "use crate::tile::STRIP;",
            1,
            "error imports from tile",
        ),
        (
            "src/reference.rs",
            "use crate::kernel::Kernel;",
            1,
            "reference imports from kernel",
        ),
        ("src/reference.rs", "use crate::tile::STRIP;", 0, ""),
        ("src/bits.rs", "use core::fmt;\nuse self::fp32 as f;", 0, ""),
        ("src/bits.rs", "use half::bf16;", 1, "core only"),
        (
            "src/schedule.rs",
            "fn f() { libm::exp(1.0) }",
            1,
            "core only",
        ),
        (
            "src/schedule.rs",
            "use crate::error::Error;",
            1,
            "from error",
        ),
        ("src/lib.rs", "pub use crate::plan::Plan;", 0, ""),
        ("src/extra.rs", "", 1, "extra has no place"),
    ] {
        finds(imports, path, text, line, says);
    }
}

#[test]
fn finds_backends_that_lean_on_each_other() {
    let check = |leaning: &str, path: &str| {
        backends(&[
            Source::new("src/kernel/portable.rs", "use super::shared;"),
            Source::new("src/kernel/scalar.rs", "fn portable_too() {}"),
            Source::new(path, leaning),
        ])
    };
    let fine = "use super::shared; // as portable does\nconst X: &str = \"portable\";";
    assert_none(check(fine, "src/kernel/neon.rs"));
    for path in ["src/kernel/neon.rs", "src/kernel/fp32.rs"] {
        for leaning in [
            "use super::portable::Portable;",
            "use super::{Kernel, portable};",
            "use crate::kernel::portable::Portable;",
            "fn f() { super::portable::f() }",
        ] {
            let wrong = check(leaning, path);
            assert_eq!(wrong.len(), 1, "{leaning}");
            assert!(wrong[0].starts_with(&format!("{path}:1: ")), "{wrong:?}");
            assert!(wrong[0].contains("the backend portable"), "{wrong:?}");
        }
    }
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
        ("src/plan.rs", "#![allow(unsafe_code)]", 1),
        ("src/plan.rs", "#[expect(dead_code, unsafe_code)]", 1),
        ("examples/x.rs", "unsafe impl Send for X {}", 1),
        ("tests/x.rs", "const X: &str = r#\"unsafe \"quoted\"\"#;", 0),
    ] {
        finds(unsafe_places, path, text, line, "outside");
    }
}

#[test]
fn finds_unargued_unsafe() {
    for (text, line) in [
        ("// SAFETY: so.\nunsafe { f() }", 0),
        ("// SAFETY: so,\n// and so.\nlet x = unsafe { f() };", 0),
        ("// SAFETY: so.\nlet x =\n    unsafe { f() };", 0),
        ("// SAFETY: so.\n#[allow(x)]\nunsafe impl Send for X {}", 0),
        ("/* SAFETY: so. */ unsafe { f() }", 0),
        ("/// # Safety\n/// So.\nunsafe fn f();", 0),
        ("/// # Safety\n/// So.\nunsafe extern \"C\" fn f() {}", 0),
        ("unsafe extern \"C\" {}", 1),
        (
            "// unsafe { f() }\nlet c = '\"'; let s = \"unsafe { }\"; let l: &'a u8;",
            0,
        ),
        ("unsafe { f() }", 1),
        ("// SAFETY: so.\nunsafe { f() }\nunsafe { g() }", 3),
        ("// SAFETY: so.\n\nunsafe { f() }", 3),
        ("// Is safe.\nunsafe impl Send for X {}", 2),
        (
            "fn f() {\n    // SAFETY: so.\n    g();\n    unsafe { h() }\n}",
            4,
        ),
    ] {
        finds(safety_comments, "src/kernel/x.rs", text, line, "SAFETY");
    }
}

#[test]
fn finds_std() {
    for (text, line) in [
        ("use core::alloc::Layout; // std::vec\n/// std::vec", 0),
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
    ] {
        finds(std_and_alloc, "src/x.rs", text, line, "no_std");
    }
}

#[test]
fn finds_leftovers() {
    let mark = concat!("FIX", "ME");
    let comment = format!("fn f() {{\n// {mark} later\n}}");
    let string = format!("const X: &str = \"{mark}\";");
    for (text, line) in [
        ("let todo = 1; // todo!()", 0),
        (string.as_str(), 0),
        ("\nfn f() { todo!() }", 2),
        ("fn f() { unimplemented!(\"x\") }", 1),
        ("let x = dbg!(y);", 1),
        (comment.as_str(), 2),
    ] {
        finds(leftovers, "src/x.rs", text, line, "left over");
    }
}

#[test]
fn finds_dependencies() {
    let fine = "[dependencies]\nbytemuck = \"1\"\nhalf = { version = \"2\" } # x = y\n\
                libm.workspace = true\n[dependencies.wide]\nversion = \"1\"\n\
                [dev-dependencies]\nrand = \"1\"\n";
    assert_none(dependencies_of(fine));
    for (more, says) in [
        ("[dependencies.serde]\n", "Cargo.toml:9: depends on serde"),
        (
            "[build-dependencies]\n",
            "Cargo.toml:9: has [build-dependencies]",
        ),
        (
            "[target.x.dependencies]\n",
            "Cargo.toml:9: has [target.x.dependencies]",
        ),
    ] {
        assert_eq!(dependencies_of(&format!("{fine}{more}")), [says]);
    }
    let more = fine.replace("half =", "rayon = \"1\"\nhalf =");
    assert_eq!(dependencies_of(&more), ["Cargo.toml:3: depends on rayon"]);
    let less = fine.replace("bytemuck = \"1\"\n", "");
    assert!(dependencies_of(&less)[0].contains("doesn't depend on bytemuck"));
}
