//! `include/amla.h` is what cbindgen makes of the sources. `AMLA_BLESS=1` writes it.

use std::path::Path;
use std::{env, fs};

/// In the order in which the header has their items.
const SOURCES: [&str; 4] = ["types", "info", "run", "encode"];

#[test]
fn the_header_is_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join(format!("src/{source}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = tidied(&String::from_utf8(made).unwrap());
    let path = root.join("include/amla.h");
    if env::var_os("AMLA_BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "{} isn't what the sources say: run this test with AMLA_BLESS=1",
        path.display()
    );
}

/// Without what only Rust's readers need, which cbindgen has no setting for.
fn tidied(made: &str) -> String {
    let mut lines = Vec::new();
    let mut skipping = false;
    for line in made.lines() {
        // "# Safety" and what follows it, to the end of the comment.
        skipping = line.starts_with("// # Safety") || (skipping && line.starts_with("//"));
        if skipping {
            // With the empty line of the comment before it.
            if lines.last().is_some_and(|line: &String| line == "//") {
                lines.pop();
            }
            continue;
        }
        lines.push(line.to_owned());
    }
    format!("{}\n", lines.join("\n").trim())
}
