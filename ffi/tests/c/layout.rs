//! The header alone, and where C compilers put the fields of its structs.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::toolchain::{root, run, scratch, tool};

const C: [&str; 2] = ["gcc", "clang"];
const CPP: [&str; 2] = ["g++", "clang++"];

#[test]
fn the_header_compiles_alone() {
    let header = root().join("include/amla.h");
    let c = C.map(|compiler| (compiler, "-std=c11", "c"));
    let cpp = CPP.map(|compiler| (compiler, "-std=c++17", "c++"));
    for (compiler, standard, language) in c.into_iter().chain(cpp) {
        if tool(compiler) {
            let mut command = Command::new(compiler);
            command.args([standard, "-pedantic", "-Wall", "-Wextra", "-Werror"]);
            command.args(["-fsyntax-only", "-x", language]);
            run(command.arg(&header));
        }
    }
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
