//! Compilers, the library, and what they make.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder for what tests make.
pub fn scratch(name: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{count}-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Whether there is such a command. Said aloud where there isn't, and a failure in CI.
pub fn tool(name: &str) -> bool {
    let found = Command::new(name).arg("--version").output().is_ok();
    said_if_missing(name, found)
}

/// Whether Python has such a module; as [`tool`].
pub fn python(module: &str) -> bool {
    let import = format!("import {module}");
    let output = Command::new("python3").args(["-c", &import]).output();
    let found = output.is_ok_and(|output| output.status.success());
    said_if_missing(&format!("Python's {module}"), found)
}

fn said_if_missing(name: &str, found: bool) -> bool {
    if !found {
        // Past the test harness's capture.
        let _ = writeln!(std::io::stderr(), "NOT RUN: {name} is missing");
        assert!(env::var("CI").as_deref() != Ok("true"), "{name} is missing");
    }
    found
}

/// Runs a command that must succeed.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The folder with `libamla.a` and `libamla.so`, as `cargo build --profile dist -p amla-ffi` builds them.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--profile",
            "dist",
            "-p",
            "amla-ffi",
            "--target-dir",
        ]);
        run(cargo.arg(target).current_dir(root()));
        target.join("dist")
    })
}

/// A program of ours that is yet to be compiled.
pub struct Program {
    command: Command,
    path: PathBuf,
}

/// A C program, linked with the static library.
pub fn c(compiler: &str, source: &str) -> Program {
    Program::new(compiler, "-std=c11", &root().join(source)).warn()
}

/// A C++ program, linked with the static library.
pub fn cpp(compiler: &str, source: &str) -> Program {
    Program::new(compiler, "-std=c++17", &root().join(source)).warn()
}

impl Program {
    pub fn new(compiler: &str, standard: &str, source: &Path) -> Self {
        Self::of(compiler, &[standard], source)
    }

    /// With options that come before the source.
    pub fn of(compiler: &str, options: &[&str], source: &Path) -> Self {
        let name = source.file_stem().unwrap().to_str().unwrap();
        let path = scratch(name).join(name);
        let mut command = Command::new(compiler);
        command.args(options).args(["-O2", "-g"]);
        command.arg("-I").arg(root().join("include"));
        command.arg(source).arg("-o").arg(&path);
        Self { command, path }
    }

    pub fn warn(self) -> Self {
        self.args(&["-pedantic", "-Wall", "-Wextra", "-Werror"])
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.command.args(args);
        self
    }

    /// Checks addresses and undefined behaviour.
    pub fn sanitized(self) -> Self {
        self.args(&[
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            "-fno-omit-frame-pointer",
        ])
    }

    /// Compiles it.
    #[track_caller]
    pub fn built(mut self) -> PathBuf {
        // Behind whatever needs it.
        self.command.arg(library().join("libamla.a"));
        run(&mut self.command);
        self.path
    }

    /// Compiles it, runs it, and returns what it printed.
    #[track_caller]
    pub fn run(self, args: &[&str]) -> String {
        let output = run(Command::new(self.built()).args(args));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Runs a program under memcheck: no errors, no leaks.
#[track_caller]
pub fn valgrind(program: &Path, args: &[&Path]) {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
    run(valgrind.arg(program).args(args));
}
