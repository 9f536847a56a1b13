//! The examples, README's program, and the library where `install.sh` puts it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::toolchain::{Program, c, cpp, library, root, run, scratch, tool};

#[test]
fn decode() {
    for compiler in ["gcc", "clang"] {
        if tool(compiler) {
            c(compiler, "examples/decode.c").args(&["-lm"]).run(&[]);
        }
    }
}

#[test]
fn decode_openmp() {
    if tool("gcc") {
        let program = c("gcc", "examples/decode_openmp.c");
        program.args(&["-fopenmp", "-lm"]).run(&[]);
    }
}

#[test]
fn decode_threads() {
    for compiler in ["g++", "clang++"] {
        if tool(compiler) {
            let program = cpp(compiler, "examples/decode_threads.cpp");
            program.args(&["-pthread"]).run(&[]);
        }
    }
}

#[test]
fn freestanding() {
    for compiler in ["gcc", "clang"] {
        if tool(compiler) {
            let source = root().join("examples/freestanding.c");
            let program = Program::new(compiler, "-std=c11", &source);
            let alone = [
                "-ffreestanding",
                "-nostdlib",
                "-static",
                "-fno-stack-protector",
            ];
            program
                .args(&alone)
                .args(&["-Wall", "-Wextra", "-Werror"])
                .run(&[]);
        }
    }
}

#[test]
fn cann_aicpu() {
    if tool("g++") {
        let program = cpp("g++", "examples/cann_aicpu.cpp");
        let headers = format!("-I{}", root().join("examples/cann").display());
        program.args(&["-pthread", &headers]).run(&[]);
    }
}

#[test]
fn mpi_decode() {
    if !tool("mpicc") || !tool("mpirun") {
        return;
    }
    let source = root().join("examples/mpi_decode.c");
    let program = Program::new("mpicc", "-std=c11", &source);
    let program = program
        .args(&["-Wall", "-Wextra", "-Werror", "-lm"])
        .built();
    for ranks in ["1", "2", "4"] {
        let mut mpirun = Command::new("mpirun");
        mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", ranks]);
        let output = run(mpirun.arg(&program));
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// The program in README, and what README says it prints.
fn readme() -> (String, String) {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("<!-- program -->\n```c\n").unwrap();
    let (program, rest) = rest.split_once("```").unwrap();
    let (_, rest) = rest.split_once("```text\n").unwrap();
    let (prints, _) = rest.split_once("```").unwrap();
    (program.to_owned(), prints.to_owned())
}

#[test]
fn the_program_in_the_readme() {
    let (program, prints) = readme();
    let lines = program.lines().count();
    assert!(lines <= 30, "{lines} lines");
    let source = scratch("readme").join("program.c");
    fs::write(&source, program).unwrap();
    for compiler in ["gcc", "clang"] {
        if tool(compiler) {
            assert_eq!(c(compiler, source.to_str().unwrap()).run(&[]), prints);
        }
    }
}

/// Installed below a folder that isn't the prefix, as packagers do, into `libdir`.
fn installed(libdir: &str) -> std::path::PathBuf {
    let folder = scratch("install");
    let mut install = Command::new(root().join("install.sh"));
    install.args(["--prefix", "/opt/amla", "--libdir", libdir, "--destdir"]);
    install.arg(&folder);
    install.env("CARGO_TARGET_DIR", library().parent().unwrap());
    run(&mut install);
    folder.join("opt/amla")
}

#[test]
fn what_is_installed() {
    if !tool("bash") {
        return;
    }
    let help = run(Command::new(root().join("install.sh")).arg("--help")).stdout;
    assert!(String::from_utf8(help).unwrap().contains("--prefix DIR"));
    if !tool("strip") {
        return;
    }
    let prefix = installed("lib");
    let version = env!("CARGO_PKG_VERSION");
    let (minor, _) = version.rsplit_once('.').unwrap();
    let named = |name: &str| fs::read_link(prefix.join("lib").join(name)).unwrap();
    assert_eq!(
        named("libamla.so"),
        Path::new(&format!("libamla.so.{minor}"))
    );
    assert_eq!(
        named(&format!("libamla.so.{minor}")),
        Path::new(&format!("libamla.so.{version}"))
    );
    // Neither this folder nor the registry's.
    for name in ["libamla.a", "libamla.so"] {
        let bytes = fs::read(prefix.join("lib").join(name)).unwrap();
        for path in [root().to_str().unwrap(), ".cargo/registry"] {
            let found = bytes.windows(path.len()).any(|x| x == path.as_bytes());
            assert!(!found, "{name}: {path}");
        }
    }
    let licences = prefix.join("share/licenses/amla");
    for name in [
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "libm/LICENSE.txt",
        "half/LICENSE-MIT",
    ] {
        assert!(licences.join(name).is_file(), "{name}");
    }
}

fn write_readme_program(folder: &Path) {
    fs::write(folder.join("program.c"), readme().0).unwrap();
}

#[test]
fn pkg_config_finds_it() {
    if !tool("gcc") || !tool("pkg-config") {
        return;
    }
    let prefix = installed("lib");
    let folder = scratch("pkg-config");
    write_readme_program(&folder);
    let mut pkg = Command::new("pkg-config");
    pkg.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    pkg.arg(format!("--define-variable=prefix={}", prefix.display()));
    let flags = run(pkg.args(["--cflags", "--libs", "amla"])).stdout;
    let flags = String::from_utf8(flags).unwrap();
    let program = folder.join("program");
    let mut gcc = Command::new("gcc");
    gcc.arg(folder.join("program.c")).arg("-o").arg(&program);
    run(gcc.args(flags.split_whitespace()));
    // The shared library, which comes first where both are.
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", prefix.join("lib"));
    let printed = run(&mut command).stdout;
    assert_eq!(String::from_utf8(printed).unwrap(), readme().1);
}

#[test]
fn cmake_finds_it() {
    if !tool("cmake") || !tool("gcc") {
        return;
    }
    let prefix = installed("lib/somewhere-gnu");
    let folder = scratch("cmake");
    write_readme_program(&folder);
    let lists = "cmake_minimum_required(VERSION 3.13)\n\
                 project(program C)\n\
                 set(CMAKE_C_STANDARD 11)\n\
                 find_package(amla 0.1 REQUIRED)\n\
                 add_executable(static program.c)\n\
                 target_link_libraries(static PRIVATE amla::amla)\n\
                 add_executable(dynamic program.c)\n\
                 target_link_libraries(dynamic PRIVATE amla::shared)\n";
    fs::write(folder.join("CMakeLists.txt"), lists).unwrap();
    let build = folder.join("build");
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(&folder).arg("-B").arg(&build);
    let config = prefix.join("lib/somewhere-gnu/cmake/amla");
    run(cmake.arg(format!("-Damla_DIR={}", config.display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["static", "dynamic"] {
        // Cargo's folders have a libamla.so as well, perhaps of other sources.
        let mut program = Command::new(build.join(program));
        let printed = run(program.env_remove("LD_LIBRARY_PATH")).stdout;
        assert_eq!(String::from_utf8(printed).unwrap(), readme().1);
    }
    // A later version isn't there.
    let lists = lists.replace("amla 0.1", "amla 0.2");
    fs::write(folder.join("CMakeLists.txt"), lists).unwrap();
    assert!(!cmake.output().unwrap().status.success());
}
