//! The `ascend` example as its users run it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The example, in the target folder of this test: PROFILE/{deps/this test, examples/ascend}.
fn command(arguments: &[&str]) -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push(format!("examples/ascend{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "{} is missing; `cargo test -p amla-ascend` builds it, `--test cli` alone doesn't",
        path.display()
    );
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Standard output of a successful run.
fn printed(arguments: &[&str]) -> String {
    let output = command(arguments).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON objects of a successful run, one per line.
fn objects(arguments: &[&str]) -> Vec<Value> {
    printed(arguments)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn number(object: &Value, name: &str) -> f64 {
    object[name].as_f64().unwrap()
}

#[test]
fn the_table_is_twelve_cells_beside_the_paper() {
    let cells = objects(&["--json"]);
    assert_eq!(cells.len(), 12);
    let fitted = cells.iter().filter(|cell| cell["fitted"] == true).count();
    assert_eq!(fitted, 4);
    let (mut worst, mut sum) = (0.0_f64, 0.0);
    for cell in &cells {
        assert!(cell["s_q"].is_u64() && cell["s_k"].is_u64());
        let [model, paper] = ["model_us", "paper_us"].map(|name| number(cell, name));
        assert!((model / paper - 1.0).abs() < 0.06, "{cell}");
        if cell["fitted"] == false {
            let error = (number(cell, "model_fu") - number(cell, "paper_fu")).abs() * 100.0;
            worst = worst.max(error);
            sum += error;
        }
    }
    assert!(worst < 4.0 && sum / 8.0 < 2.5, "{worst} {sum}");
    let table = printed(&[]);
    assert!(table.contains("8 cells predicted: FU within"), "{table}");
    assert_eq!(table.matches(" fit ").count(), 4, "{table}");
}

#[test]
fn other_shapes_have_no_figures_of_the_paper() {
    let cells = objects(&["--json", "--heads", "64", "--context", "1000", "--s-q", "3"]);
    let [cell] = cells.as_slice() else {
        panic!("{cells:?}");
    };
    assert!(cell["paper_us"].is_null() && cell["paper_fu"].is_null());
    assert_eq!(cell["fitted"], false);
    // Another batch has none either.
    let cells = objects(&["--json", "--batch", "48"]);
    assert!(cells.iter().all(|cell| cell["paper_us"].is_null()));
}

#[test]
fn charts_show_every_pipe() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ascend.svg");
    let path = path.to_str().unwrap();
    let chart = printed(&["--context", "4096", "--s-q", "2", "--gantt", "--svg", path]);
    for (pipe, letters) in [
        ("MTE2", "13 24"),
        ("MTE1", "13 24"),
        ("MMAD", "13 24"),
        ("FixP", "13 24"),
        ("AIV0 out", "vV rR"),
        ("AIV1 in", "vV L"),
    ] {
        let lanes: Vec<_> = chart
            .lines()
            .filter(|line| line.trim_start().starts_with(&format!("{pipe} |")))
            .collect();
        assert_eq!(lanes.len(), 2, "{pipe}\n{chart}");
        let lanes = lanes.concat();
        for letter in letters.chars() {
            assert!(lanes.contains(letter), "{pipe} has no {letter}\n{chart}");
        }
    }
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.matches("<rect").count() > 200);
    // Its legend, and pipes that aren't named as stages are.
    for name in ["C1", "V1", "Rescale", "C2", "Last", "AIV0 in", "AIV1"] {
        let text = format!(">\n{name}\n</text>");
        assert!(svg.contains(&text), "the plot has no {name}");
    }
    for text in [&svg, &chart] {
        assert_eq!(
            text.matches("V1 in").count(),
            text.matches("AIV1 in").count()
        );
    }
}

#[test]
fn text_has_80_columns() {
    for arguments in [
        &["--help"][..],
        &["claims", "--help"],
        &["sweep", "--help"],
        &["fit", "--help"],
        &["execute", "--help"],
        &["--gantt"],
        &["--gantt", "--algorithm", "base", "--context", "1048576"],
        &["claims"],
        &["sweep", "--context", "1024", "--batch", "48"],
        &["fit"],
        &["execute", "--rows", "48", "--keys", "700"],
    ] {
        for line in printed(arguments).lines() {
            assert!(line.chars().count() <= 80, "{arguments:?}: {line}");
        }
    }
}

#[test]
fn help_groups_the_options() {
    let help = printed(&["--help"]);
    let group = |heading: &str| -> Vec<&str> {
        let lines = help
            .lines()
            .skip_while(|line| *line != format!("{heading}:"));
        let lines = lines.skip(1).take_while(|line| !line.is_empty());
        let options = lines.filter_map(|line| line.trim_start().split_once("--"));
        options
            .filter_map(|(_, rest)| rest.split(' ').next())
            .collect()
    };
    assert_eq!(group("Problem"), ["batch", "heads", "s-q", "context"]);
    assert_eq!(group("Algorithm"), ["algorithm", "pipeline"]);
    assert_eq!(group("Output"), ["json", "gantt", "svg"]);
    assert!(group("Machine").contains(&"hbm") && group("Tiling").contains(&"block"));
    assert_eq!(group("Options"), ["help", "version"]);
}

#[test]
fn claims_are_reported() {
    let claims = printed(&["claims"]);
    for line in [
        "MLA-128, s_q 2   483.6, paper 484: Cube-bound",
        "s_q 2, Amla Preload: FU 86.1 %, limit Cube (MMAD) (98.6 %)",
        "4 for Q/P, 3 for K/V: FU 86.1 %",
        "singleN = 256 as printed: L1 for K/V overflows: K takes 147456 bytes of 73728",
        "M = 256: O takes 256 KB of 192 on each core, nothing fits beside it",
    ] {
        assert!(claims.contains(line), "{claims}\nlacks: {line}");
    }
}

#[test]
fn the_papers_tiling_is_the_fastest_that_fits() {
    let arguments = ["sweep", "--s-q", "2", "--context", "2048", "--batch", "48"];
    let tilings = objects(&[&arguments[..], &["--json", "--best", "3"]].concat());
    assert_eq!(tilings.len(), 4);
    let paper = tilings.last().unwrap();
    assert_eq!(paper["paper"], true);
    let best = number(&tilings[0], "model_us");
    assert!(number(paper, "model_us") <= best * 1.01, "{tilings:?}");
    assert!(tilings[..3].is_sorted_by_key(|tiling| number(tiling, "model_us")));
}

#[test]
fn tile_loops_run_on_data() {
    for algorithm in ["base", "amla"] {
        let arguments = [
            "execute",
            "--rows",
            "48",
            "--keys",
            "700",
            "--algorithm",
            algorithm,
        ];
        let result = objects(&[&arguments[..], &["--json"]].concat());
        let error = |name: &str| result[0][name][0].as_f64().unwrap();
        assert!(
            error("model") < 1.5e-3 && error("kernel") < 1.5e-3,
            "{result:?}"
        );
        assert!(
            (error("model") / error("reference") - 1.0).abs() < 0.02,
            "{result:?}"
        );
    }
}

#[test]
fn mistakes_are_one_line_that_names_the_culprit() {
    for (arguments, message) in [
        (
            &["--c1", "128,256,288,128,128,96"][..],
            "L1 for K/V overflows: K takes 147456 bytes of 73728",
        ),
        (&["--c1", "1,2"], "--c1"),
        (
            &["--kv-buffers", "5"],
            "the partition of L1 takes 663552 bytes",
        ),
        (
            &["--qp-buffers", "2"],
            "L1 for Q/P: Q needs 4 buffers at once, there are 2",
        ),
        (&["--block", "0"], "the block is 0"),
        (&["--hbm", "0"], "--hbm"),
        (&["--hbm", "nan"], "--hbm"),
        (&["--hbm-credit=-1"], "--hbm-credit: not a number from 0"),
        (&["--pipeline", "parallel"], "--pipeline"),
        (&["--svg", "/nowhere/at/all.svg"], "/nowhere/at/all.svg"),
        (&["execute", "--rows", "300"], "--rows 300"),
        (&["execute", "--sigma", "nan"], "--sigma"),
    ] {
        let output = command(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.contains(message),
            "{arguments:?}: {stderr}"
        );
    }
}
