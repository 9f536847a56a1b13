//! The header alone, and where C compilers put the fields of its structs.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::toolchain::{Program, library, python, root, run, scratch, tool};

const C: [&str; 2] = ["gcc", "clang"];
const CPP: [&str; 2] = ["g++", "clang++"];

/// Each standard that a host may have, C then C++.
const STANDARDS: [(&[&str], &str, &[&str]); 2] = [
    (&C, "c", &["c99", "c11", "c17"]),
    (&CPP, "cpp", &["c++11", "c++14", "c++17", "c++20"]),
];

/// Compiles a file in each language's standards from one on; a warning fails.
#[track_caller]
fn compiles(name: &str, text: &str, since: &[&str]) {
    let folder = scratch(name);
    for (compilers, of, standards) in STANDARDS {
        let path = folder.join(format!("{name}.{of}"));
        fs::write(&path, text).unwrap();
        let standards = standards
            .iter()
            .skip_while(|standard| !since.contains(standard));
        for standard in standards {
            for compiler in compilers {
                if tool(compiler) {
                    let mut command = Command::new(compiler);
                    command.args([&format!("-std={standard}"), "-pedantic", "-fsyntax-only"]);
                    command.args([
                        "-Wall",
                        "-Wextra",
                        "-Wmissing-field-initializers",
                        "-Werror",
                    ]);
                    command.arg("-I").arg(root().join("include"));
                    run(command.arg(&path));
                }
            }
        }
    }
}

#[test]
fn the_header_compiles_alone() {
    compiles("alone", "#include \"amla.h\"\n", &["c99", "c++11"]);
}
/// The table that the library asserts for itself, as C's assertions.
macro_rules! layout {
    ($($type:ident $name:ident $size:literal { $($field:ident $offset:literal)* })*) => {
        fn assertions(keyword: &str) -> String {
            let mut text = String::from("#include \"amla.h\"\n");
            let mut must = |what: String| writeln!(text, "{keyword}({what}, \"{what}\");").unwrap();
            $(
                let name = stringify!($name);
                must(format!("sizeof(struct {name}) == {}", $size));
                $(
                    let field = stringify!($field);
                    must(format!("offsetof(struct {name}, {field}) == {}", $offset));
                )*
            )*
            text
        }

        /// The same for programs that read it: a struct's name, a field's unless it is the size, and the number.
        fn lines() -> String {
            let mut text = String::new();
            $(
                let name = stringify!($name);
                writeln!(text, "{name} {}", $size).unwrap();
                $(writeln!(text, "{name} {} {}", stringify!($field), $offset).unwrap();)*
            )*
            text
        }
    };
}

include!("../../src/layout.in");

#[test]
#[cfg(target_pointer_width = "64")]
fn fields_have_the_offsets_of_rusts() {
    let folder = scratch("layout");
    let c = C.map(|compiler| (compiler, "-std=c11", "layout.c", "_Static_assert"));
    let cpp = CPP.map(|compiler| (compiler, "-std=c++17", "layout.cpp", "static_assert"));
    for (compiler, standard, file, keyword) in c.into_iter().chain(cpp) {
        if !tool(compiler) {
            continue;
        }
        let path = folder.join(file);
        fs::write(&path, assertions(keyword)).unwrap();
        let mut command = Command::new(compiler);
        command.args([standard, "-fsyntax-only", "-I"]);
        run(command.arg(root().join("include")).arg(&path));
        // And not elsewhere.
        let moved = assertions(keyword).replacen(" == ", " != ", 1);
        fs::write(&path, moved).unwrap();
        assert!(!command.output().unwrap().status.success());
    }
}

/// A program of version 1, whose structs had fewer fields, and plans fewer bytes.
#[test]
fn sources_of_version_1_compile_and_compute_the_same() {
    let source = root().join("tests/c/version1.c");
    let c = C.map(|compiler| [(compiler, "-std=c99", "c"), (compiler, "-std=c11", "c")]);
    let cpp = CPP.map(|compiler| (compiler, "-std=c++20", "c++"));
    for (compiler, standard, language) in c.into_iter().flatten().chain(cpp) {
        if !tool(compiler) {
            continue;
        }
        // The language is the source's, not the archive's behind it.
        let program = Program::of(compiler, &[standard, "-x", language], &source);
        let printed = program.args(&["-x", "none"]).warn().run(&[]);
        let twice = "o[0] = 0.25, lse[0] = 4.60517\n".repeat(2);
        let merged = "o[0] = 0.25, lse[0] = 5.29832\n";
        let sparse = "o[0] = 0.25, lse[0] = 2.99573\n";
        assert_eq!(printed, format!("{twice}{merged}{sparse}(576, 512)\n"));
    }
}

#[test]
fn designated_initialisers_compile_without_warnings() {
    for compiler in CPP {
        if tool(compiler) {
            let source = root().join("tests/c/designated.cpp");
            let program = Program::new(compiler, "-std=c++20", &source).warn();
            let printed = program.args(&["-Wmissing-field-initializers"]).run(&[]);
            assert_eq!(printed, "o[0] = 0.25, lse[0] = 4.60517\n");
        }
    }
}

/// cffi, which has no preprocessor, parses the other header as it is.
#[test]
#[cfg(target_pointer_width = "64")]
fn cffi_parses_its_header() {
    if !tool("python3") || !python("cffi") {
        return;
    }
    let layout = scratch("cdef").join("layout");
    fs::write(&layout, lines()).unwrap();
    let mut command = Command::new("python3");
    command.arg(root().join("tests/c/cdef.py"));
    command.arg(root().join("include/amla.cdef.h"));
    command.arg(library().join("libamla.so")).arg(&layout);
    let printed = String::from_utf8(run(&mut command).stdout).unwrap();
    assert_eq!(printed, "o[0] = 0.25, lse[0] = 4.60517\n");
}
