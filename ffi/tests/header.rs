//! `include/amla.h` and `include/amla.cdef.h` are what cbindgen makes of the sources. `AMLA_BLESS=1` writes
//! them.

use std::path::Path;
use std::{env, fs};

/// In the order in which the header has their items.
const SOURCES: [&str; 6] = ["types", "info", "run", "parallel", "merge", "encode"];

#[test]
fn the_headers_are_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = made(root);
    let inline = fs::read_to_string(root.join("src/inline.h")).unwrap();
    for (file, text) in [
        ("amla.h", header(&made, &inline)),
        ("amla.cdef.h", cdef(&made)),
    ] {
        let path = root.join("include").join(file);
        if env::var_os("AMLA_BLESS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == text,
            "{} isn't what the sources say: run this test with AMLA_BLESS=1",
            path.display()
        );
    }
}

/// What cbindgen makes, without what only Rust's readers need.
fn made(root: &Path) -> String {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join(format!("src/{source}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    tidied(&String::from_utf8(made).unwrap())
}

/// cbindgen has no setting for that.
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

// -------------------------------------------------------------------------------------------------
// C and C++
// -------------------------------------------------------------------------------------------------

/// Before the first item. C++ compilers warn of fields that a designated initialiser leaves out unless they
/// have defaults. Before C++20, which has such initialisers, the structs stay trivial: compilers warn of memset() on others.
const DEFAULTS: &str = "\
#ifdef __cplusplus
#define AMLA_ZERO {}
#else
#define AMLA_ZERO {0}
#endif

// In C++20 fields have defaults, for designated initialisers: struct_size is right, the others are 0.
#if defined(__cplusplus) && __cplusplus > 201703L
#define AMLA_DEFAULT = {}
#define AMLA_SIZE(type) = sizeof(type)
#else
#define AMLA_DEFAULT
#define AMLA_SIZE(type)
#endif

";

/// At the end.
const UNDEFINED: &str = "\
#undef AMLA_ZERO
#undef AMLA_DEFAULT
#undef AMLA_SIZE

";

/// With defaults of fields, and the inline functions.
fn header(made: &str, inline: &str) -> String {
    const INCLUDES: &str = "#include <stdint.h>\n\n";
    const END: &str = "#endif  /* AMLA_H */\n";
    let (before, rest) = made.split_once(INCLUDES).unwrap();
    let (items, end) = rest.split_at(rest.rfind(END).unwrap());
    let mut text = format!("{before}{INCLUDES}{DEFAULTS}");
    let mut within = None;
    for line in items.lines() {
        if let Some(name) = struct_begun(line) {
            within = Some(name);
        } else if line == "};" {
            within = None;
        }
        match (within, line.trim().strip_suffix(';')) {
            (Some(name), Some("uint32_t struct_size")) => {
                text += &format!("    uint32_t struct_size AMLA_SIZE({name});\n");
            }
            (Some(_), Some(field)) if !field.starts_with("//") => {
                text += &format!("    {field} AMLA_DEFAULT;\n");
            }
            _ => text += &format!("{line}\n"),
        }
    }
    format!("{text}\n{inline}\n{UNDEFINED}{end}")
}

/// The name of a struct, on the line that begins it.
fn struct_begun(line: &str) -> Option<&str> {
    line.strip_prefix("struct ")?.strip_suffix(" {")
}

// -------------------------------------------------------------------------------------------------
// Parsers of C without a preprocessor
// -------------------------------------------------------------------------------------------------

/// Declarations alone: no comments, and constants as those of enums.
fn cdef(made: &str) -> String {
    let mut text = String::new();
    let mut constants = Vec::new();
    for line in made.lines() {
        let code = line.trim();
        let constant = code.strip_prefix("#define AMLA_");
        if let Some((name, value)) = constant.and_then(|rest| rest.split_once(' ')) {
            constants.push(format!("    AMLA_{name} = {}", number(value)));
            continue;
        }
        let is_code = !["", "}", "extern \"C\" {"].contains(&code)
            && !["#", "/", "*", "}  //"]
                .iter()
                .any(|start| code.starts_with(start));
        if is_code {
            if !constants.is_empty() {
                text += &format!("enum {{\n{}\n}};\n", constants.join(",\n"));
                constants.clear();
            }
            text += &format!("{line}\n");
        }
    }
    assert!(constants.is_empty());
    text
}

/// A literal, or one shifted.
fn number(value: &str) -> u64 {
    let value = value.trim_matches(['(', ')']);
    match value.split_once(" << ") {
        Some((number, shift)) => number.parse::<u64>().unwrap() << shift.parse::<u32>().unwrap(),
        None => value.parse().unwrap(),
    }
}
