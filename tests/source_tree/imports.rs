//! Which way imports point.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use amla::BackendId;

use super::check::found;
use super::fault::{Fault, assert_none, assert_none_but};
use super::manifest::{DEPENDENCIES, roots};
use super::modules::Crate;
use super::source::{Source, root};

/// Modules of `src/`; each imports from those before it. Those of the third layer may import each
/// other in this order, other layers nothing of their own.
const LAYERS: &[&[&str]] = &[
    &["bits", "schedule", "shape"],
    &["error"],
    &["format", "problem", "tile"],
    &["kernel", "merge", "reference"],
    &["group"],
    &["epilogue", "fallback", "slots", "source"],
    &["attend"],
    &["dims"],
    &["plan", "stages"],
    &["run"],
    &["pool"],
    &["attention"],
    &["owned"],
    &["lib"],
];
const ORDERED_LAYER: usize = 2;

/// Modules that import nothing but `core`.
const CORE_ONLY: &[&str] = &["bits", "schedule"];

/// Files of `src/kernel/` that know all backends.
const DISPATCH: &[&str] = &["src/kernel/mod.rs", "src/kernel/backend.rs"];

/// Circles to be opened, by a file or folder that they go through.
const CIRCLES: &[&str] = &["examples/bare-metal/"];

fn library() -> Crate {
    Crate::read(&root().join("src/lib.rs"))
}

#[test]
fn imports_point_left() {
    assert_none(&layers(&library()));
}

#[test]
fn layers_are_modules() {
    let library = library();
    for module in LAYERS.iter().copied().flatten() {
        let mut files = library.modules.iter().map(|module| layer_of(&module.file));
        assert!(files.any(|name| name == *module), "there is no {module}");
    }
}

#[test]
fn no_circles() {
    // A file that several targets share is looked at in each.
    let faults: BTreeMap<_, _> = roots()
        .iter()
        .flat_map(|root| circles(&Crate::read(root)))
        .map(|fault| (fault.to_string(), fault))
        .collect();
    assert_none_but(CIRCLES, faults.into_values().collect());
}

#[test]
fn backends_are_apart() {
    let library = library();
    for id in BackendId::ALL {
        let mut files = library
            .modules
            .iter()
            .map(|module| backend_of(&module.file));
        assert!(files.any(|backend| backend == id.name()), "{}", id.name());
    }
    assert_none(&backends(&library));
}

#[test]
fn core_only() {
    assert_none(&foreign(&library()));
}

// -------------------------------------------------------------------------------------------------
// The checkers
// -------------------------------------------------------------------------------------------------

/// The module of `src/` that a file is or belongs to.
fn layer_of(file: &str) -> &str {
    let path = file.strip_prefix("src/").unwrap_or(file);
    path.split(['/', '.']).next().unwrap_or_default()
}

fn layer(module: &str) -> Option<(usize, usize)> {
    LAYERS.iter().enumerate().find_map(|(layer, modules)| {
        let index = modules.iter().position(|&m| m == module)?;
        Some((layer, index))
    })
}

fn may_import(from: &str, to: &str) -> bool {
    let (Some(own), Some(other)) = (layer(from), layer(to)) else {
        return false;
    };
    let left = other.0 < own.0 || (own.0 == ORDERED_LAYER && other.0 == own.0 && other.1 < own.1);
    from == to || left
}

/// By the module whose name for it is used: what the root re-exports is the root's.
fn layers(library: &Crate) -> Vec<Fault> {
    let mut faults = Vec::new();
    for module in &library.modules {
        let name = layer_of(&module.file);
        if layer(name).is_none() {
            faults.push(Fault::new(&module.file, 1, format!("{name} has no layer")));
        }
    }
    for import in library.imports() {
        let [from, to] = [import.from, import.named].map(|id| &library.modules[id].file);
        let [own, other] = [from, to].map(|file| layer_of(file));
        // The root re-exports from all.
        if own != "lib" && layer(own).is_some() && !may_import(own, other) {
            let what = format!("{own} imports from {other}: {}", import.path);
            faults.push(Fault::new(from, import.line, what));
        }
    }
    first_of_lines(faults)
}

/// Of several faults in one line the first.
fn first_of_lines(mut faults: Vec<Fault>) -> Vec<Fault> {
    let mut seen = BTreeSet::new();
    faults.retain(|fault| seen.insert((fault.path.clone(), fault.line)));
    faults
}

/// Files that import each other. A re-export isn't an import, nor is `mod name;`: what counts is
/// that a file uses what another one defines.
fn circles(library: &Crate) -> Vec<Fault> {
    let mut edges: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    let imports = library.imports();
    for import in imports.iter().filter(|import| !import.exported) {
        let [from, to] = [import.from, import.definer].map(|id| library.modules[id].file.as_str());
        if from != to {
            let line = edges
                .entry(from)
                .or_default()
                .entry(to)
                .or_insert(import.line);
            *line = import.line.min(*line);
        }
    }
    let mut faults = Vec::new();
    let mut done = BTreeSet::new();
    for &file in edges.keys() {
        // Each file is named once, in its shortest circle.
        if done.contains(file) {
            continue;
        }
        let Some(circle) = shortest_circle(&edges, file) else {
            continue;
        };
        done.extend(circle.iter().copied());
        let steps: Vec<String> = circle
            .windows(2)
            .map(|step| format!("{}:{}", step[0], edges[step[0]][step[1]]))
            .collect();
        let what = format!("imports itself: {} -> {file}", steps.join(" -> "));
        faults.push(Fault::new(file, edges[file][circle[1]], what));
    }
    faults
}

/// Files from `start` to `start`.
fn shortest_circle<'a>(
    edges: &BTreeMap<&'a str, BTreeMap<&'a str, usize>>,
    start: &'a str,
) -> Option<Vec<&'a str>> {
    let mut paths = vec![vec![start]];
    let mut seen = BTreeSet::new();
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            for &next in edges.get(path[path.len() - 1])?.keys() {
                let mut path = path.clone();
                path.push(next);
                if next == start {
                    return Some(path);
                }
                if edges.contains_key(next) && seen.insert(next) {
                    longer.push(path);
                }
            }
        }
        paths = longer;
    }
    None
}

/// The file or folder of `src/kernel/` that a file is or belongs to.
fn backend_of(file: &str) -> &str {
    let inside = file.strip_prefix("src/kernel/").unwrap_or_default();
    inside.split(['/', '.']).next().unwrap_or_default()
}

/// Backends, and what they share, that name a backend.
fn backends(library: &Crate) -> Vec<Fault> {
    let mut faults = Vec::new();
    for import in library.imports() {
        let [from, to] = [import.from, import.definer].map(|id| library.modules[id].file.as_str());
        let [own, other] = [from, to].map(backend_of);
        let backend = BackendId::from_name(other).is_some();
        if from.starts_with("src/kernel/") && !DISPATCH.contains(&from) && backend && own != other {
            let what = format!("{own} imports from the backend {other}: {}", import.path);
            faults.push(Fault::new(from, import.line, what));
        }
    }
    first_of_lines(faults)
}

/// Imports of other crates where only `core` may be.
fn foreign(library: &Crate) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (id, module) in library.modules.iter().enumerate() {
        let name = layer_of(&module.file);
        if !CORE_ONLY.contains(&name) {
            continue;
        }
        for (line, path, imported) in library.outside(id) {
            let krate = path[0].as_str();
            let named = path.len() > 1 && DEPENDENCIES.contains(&krate);
            if krate != "core" && (imported || named) {
                let what = format!("{name} imports from {krate}; it may use core only");
                faults.push(Fault::new(&module.file, line, what));
            }
        }
    }
    faults
}

// -------------------------------------------------------------------------------------------------
// The checkers, checked
// -------------------------------------------------------------------------------------------------

/// A library of these files.
fn of(files: &[(&str, &str)]) -> Crate {
    Crate::of("src/lib.rs", &|path| {
        let file = files.iter().find(|(name, _)| *name == path);
        file.map(|(_, text)| Rc::new(Source::new(path, text)))
    })
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
            "fn f() {\n m!(x, crate::plan::decode());\n}",
            2,
            "from plan",
        ),
        (
            "src/attend.rs",
            "fn f() -> super::plan::Plan {}",
            1,
            "from plan",
        ),
        (
            "src/attend.rs",
            "use crate::Plan;",
            1,
            "attend imports from lib",
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
        (
            "src/schedule.rs",
            "use crate::error::Error;",
            1,
            "from error",
        ),
        ("src/lib.rs", "pub use crate::plan::Plan;", 0, ""),
        ("src/extra.rs", "", 1, "extra has no layer"),
    ] {
        let names = LAYERS
            .iter()
            .copied()
            .flatten()
            .filter(|name| **name != "lib");
        let mods: String = names.map(|name| format!("mod {name};\n")).collect();
        let (_, own) = path.split_once('/').unwrap();
        let mut root = format!("{mods} mod extra; pub use plan::Plan;\n");
        let scalar = own
            .strip_prefix("kernel/scalar")
            .map_or("", |_| "mod scalar;");
        if path == "src/lib.rs" {
            root = format!("{text} {root}");
        }
        if own != "extra.rs" {
            root = root.replace("mod extra;", "");
        }
        let library = Crate::of("src/lib.rs", &|file| {
            let known = !file.ends_with("/mod.rs") || file == "src/kernel/mod.rs";
            let text = match file {
                "src/lib.rs" => &root,
                _ if file == path => text,
                "src/kernel/mod.rs" => scalar,
                "src/kernel.rs" => return None,
                "src/plan.rs" => "pub struct Plan;",
                _ if known => "",
                _ => return None,
            };
            Some(Rc::new(Source::new(file, text)))
        });
        found(layers(&library), path, text, line, says);
    }
}

#[test]
fn finds_circles() {
    let check = |a: &str, b: &str, c: &str| {
        let files = [
            ("src/lib.rs", "mod a; mod d { pub use crate::a::b::B; }"),
            ("src/a.rs", &format!("pub mod b; pub mod c;\n{a}")),
            ("src/a/b.rs", b),
            ("src/a/c.rs", c),
        ];
        let faults = circles(&of(&files));
        faults
            .iter()
            .map(|fault| fault.what.clone())
            .collect::<Vec<_>>()
    };
    for (a, b, c) in [
        (
            "pub use b::B;\npub struct A;",
            "use super::A;\npub struct B;",
            "",
        ),
        ("use b::B;", "pub struct B;", "use super::b::B;"),
        (
            "pub struct A;",
            "use super::A;",
            "use super::A; use super::b::X;",
        ),
        (
            "use b::B;",
            "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }",
            "",
        ),
        // What is used is b's, whoever hands it on.
        (
            "pub use b::B;",
            "pub struct B;",
            "use super::B; use crate::d;",
        ),
    ] {
        assert!(check(a, b, c).is_empty(), "{:?}", check(a, b, c));
    }
    let both = "imports itself: src/a.rs:2 -> src/a/b.rs:1 -> src/a.rs";
    for (a, b) in [
        ("use b::B;\npub struct A;", "use super::A; pub struct B;"),
        (
            "fn f() -> b::B;\npub struct A;",
            "fn f() { let A = crate::a::A; } pub struct B;",
        ),
        ("fn f() { b::f() }\nfn g() {}", "use super::*; fn f() {}"),
        // A name that is handed on, and used too.
        ("pub use b::B; struct A(B);", "use super::A; pub struct B;"),
        ("use crate::d::B; struct A;", "use super::A; pub struct B;"),
        (
            "fn f() { m!(x = b::B) } pub struct A;",
            "use super::A; pub struct B;",
        ),
    ] {
        let a = a.replace("fn f() -> b::B;", "fn f() -> b::B {}");
        assert_eq!(check(&a, b, ""), [both], "{a}");
    }
    let three = check(
        "use c::C; pub struct A;",
        "use super::A; pub struct B;",
        "use super::b::B; pub struct C;",
    );
    let circle = "src/a.rs:2 -> src/a/c.rs:1 -> src/a/b.rs:1 -> src/a.rs";
    assert_eq!(three, [format!("imports itself: {circle}")]);
}

#[test]
fn finds_backends_that_lean_on_each_other() {
    let fine = "use super::shared; // as portable does\nconst X: &str = \"portable\"; fn f(portable: u8) {}";
    for (name, text, line) in [
        ("neon", fine, 0),
        ("neon", "use super::portable::Portable;", 1),
        ("neon", "use super::{Kernel, portable};", 1),
        ("neon", "\nuse crate::kernel::portable::Portable;", 2),
        ("neon", "fn f() { super::portable::f() }", 1),
        ("neon", "use super::Portable;", 1),
        ("fp32", "fn f() { super::portable::f() }", 1),
    ] {
        let path = format!("src/kernel/{name}.rs");
        let root = format!("mod portable; mod shared; mod {name}; pub use portable::Portable;");
        let files = [
            ("src/lib.rs", "mod kernel;"),
            ("src/kernel/mod.rs", &root),
            (
                "src/kernel/portable.rs",
                "use super::shared; pub struct Portable;",
            ),
            ("src/kernel/shared.rs", "fn portable_too() {}"),
            (&path, text),
        ];
        found(
            backends(&of(&files)),
            &path,
            text,
            line,
            "the backend portable",
        );
    }
}

#[test]
fn finds_foreign_crates() {
    for (text, line) in [
        ("use core::fmt;\nuse self::fp32 as f; mod fp32 {}", 0),
        (
            "use core::{fmt, mem::size_of}; fn f() { fmt::f(); core::f() }",
            0,
        ),
        ("mod tests { use super::X; } use tests::Y;", 0),
        ("\nuse half::bf16;", 2),
        ("use other::bf16;", 1),
        ("fn f() { libm::exp(1.0) }", 1),
        ("fn f() { m!(libm::exp(1.0)) }", 1),
    ] {
        let files = [("src/lib.rs", "mod bits;"), ("src/bits.rs", text)];
        found(foreign(&of(&files)), "src/bits.rs", text, line, "core only");
    }
    assert!(DEPENDENCIES.contains(&"libm"));
}
