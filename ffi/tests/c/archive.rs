//! What is in the archive, what it needs, and how much it adds to a program.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::toolchain::{c, library, root, run, scratch, tool};

/// Functions that the header declares and the library has.
pub fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(root().join("include/amla.h")).unwrap();
    let code = header.lines().filter(|line| {
        !["//", " ", "static inline"]
            .iter()
            .any(|start| line.starts_with(start))
    });
    let names = code.filter_map(|line| line.split_once('('));
    let names = names.filter_map(|(before, _)| before.rsplit([' ', '*']).next());
    names
        .filter(|name| name.starts_with("amla_"))
        .map(str::to_owned)
        .collect()
}

/// Lines of a symbol table: binding, visibility, section, name.
fn symbols(args: &[&str], file: &str) -> Vec<[String; 4]> {
    let output = run(Command::new("readelf").args(args).arg(library().join(file)));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() >= 8 && row[0].ends_with(':'))
        .map(|row| [row[4], row[5], row[6], row[7]].map(str::to_owned))
        .collect()
}

/// Visible definitions, of which the weak ones give way to a program's own.
fn exported(symbols: &[[String; 4]]) -> BTreeSet<String> {
    let strong = symbols.iter().filter(|[binding, visibility, section, _]| {
        binding == "GLOBAL" && visibility == "DEFAULT" && section != "UND"
    });
    strong.map(|[.., name]| name.clone()).collect()
}

#[test]
fn the_archive_exports_the_header_and_nothing_else() {
    if tool("readelf") {
        assert_eq!(exported(&symbols(&["-sW"], "libamla.a")), declared());
    }
}

#[test]
fn the_shared_library_exports_the_header_and_nothing_else() {
    if !tool("readelf") {
        return;
    }
    let symbols = symbols(&["--dyn-syms", "-W"], "libamla.so");
    assert_eq!(exported(&symbols), declared());
    let needed = symbols.iter().filter(|s| s[2] == "UND" && s[0] == "GLOBAL");
    for [.., name] in needed {
        let name = name.split('@').next().unwrap();
        let memory = ["memcpy", "memmove", "memset", "memcmp", "bcmp"];
        assert!(memory.contains(&name), "libamla.so needs {name}");
    }
}

/// A program that links it by its path finds it where it is installed.
#[test]
fn the_shared_library_has_a_name() {
    if tool("readelf") {
        let mut readelf = Command::new("readelf");
        let dynamic = run(readelf.arg("-d").arg(library().join("libamla.so"))).stdout;
        let dynamic = String::from_utf8(dynamic).unwrap();
        let (minor, _) = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap();
        let soname = format!("soname: [libamla.so.{minor}]");
        assert!(dynamic.contains(&soname), "{dynamic}");
    }
}

/// Text and data of a program, in bytes.
fn size(path: &std::path::Path) -> u64 {
    run(Command::new("strip").arg(path));
    fs::metadata(path).unwrap().len()
}

#[test]
fn the_library_adds_little_to_a_program() {
    if !tool("gcc") || !tool("strip") {
        return;
    }
    let with = size(&c("gcc", "examples/decode.c").args(&["-lm"]).built());
    let empty = scratch("empty").join("empty.c");
    fs::write(&empty, "int main(void) { return 0; }\n").unwrap();
    let without = size(&c("gcc", empty.to_str().unwrap()).built());
    let added = with - without;
    println!("libamla.a adds {added} bytes to examples/decode.c");
    assert!(added <= 3 << 19, "{added} bytes are more than 1.5 MiB");
}
