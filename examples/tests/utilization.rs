//! The `utilization` example as its users run it. Speed isn't tested.

mod common;

use std::fs;
use std::path::Path;

use common::{number, objects, printed};

/// As short as possible.
const SHORT: [&str; 4] = ["--seconds", "0.001", "--backend", "portable"];

#[test]
fn cells_are_objects() {
    let shapes = "--context 192 --context 500 --s-q 1 --s-q 3 --heads 20 --batch 2 --threads 2";
    let arguments: Vec<_> = shapes.split(' ').chain(SHORT).chain(["--json"]).collect();
    let cells = objects("utilization", &arguments);
    let at = |name: &str| -> Vec<_> { cells.iter().map(|c| c[name].as_u64().unwrap()).collect() };
    assert_eq!(at("s_q"), [1, 1, 3, 3]);
    assert_eq!(at("s_k"), [192, 500, 192, 500]);
    for cell in &cells {
        let [s_q, s_k] = ["s_q", "s_k"].map(|name| number(cell, name));
        assert_eq!((&cell["h_q"], &cell["batch"]), (&20.into(), &2.into()));
        assert_eq!(
            (&cell["threads"], &cell["table"]),
            (&2.into(), &"paper".into())
        );
        assert_eq!(cell["backend"], "portable");
        let positive = |name| {
            let x = number(cell, name);
            assert!(x > 0.0, "{name} in {cell}");
            x
        };
        let flop = 2.0 * 2.0 * 20.0 * s_q * s_k * (576.0 + 512.0);
        let done = positive("seconds") * positive("gflops") * 1e9;
        assert!((done / flop - 1.0).abs() < 1e-9, "{cell}");
        let intensity = 20.0 * s_q * 1088.0 / 576.0;
        assert!((positive("intensity") / intensity - 1.0).abs() < 1e-9);
        let memory = positive("read_gbs") * intensity;
        let bound = memory.min(positive("peak_gflops"));
        assert!((positive("bound_gflops") / bound - 1.0).abs() < 1e-9);
        // The fraction of the smaller of both; of the peak, the median over runs.
        let of_memory = number(cell, "gflops") / memory;
        let of_bound = positive("utilization").max(of_memory);
        assert!((positive("of_bound") / of_bound - 1.0).abs() < 1e-9);
        assert!(cell["paper_910"].is_null() && cell["paper_gpu"].is_null());
    }
}

#[test]
fn tables_and_plot_are_complete() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("utilization.svg");
    let shown = path.to_str().unwrap();
    let arguments = [
        "--context",
        "192",
        // The paper has figures of it.
        "--context",
        "1024",
        "--threads",
        "1",
        "--skinny",
        "--svg",
        shown,
    ];
    let text = printed("utilization", &[&arguments[..], &SHORT].concat());
    common::fits(&text);
    let rows = |start: &str| {
        let table = text
            .split(start)
            .nth(1)
            .unwrap_or_else(|| panic!("{text}\nlacks {start}"));
        let rows = table.lines().skip(1).take_while(|line| !line.is_empty());
        rows.map(|row| {
            row.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect::<Vec<_>>()
    };
    let heads: Vec<_> = rows("\nh_q ")
        .into_iter()
        .map(|row| row[0].clone())
        .collect();
    let all = [
        "1", "2", "3", "4", "5", "6", "7", "8", "12", "16", "24", "32", "48", "64",
    ];
    assert_eq!(heads, all);
    // The paper's intensities.
    let kinds: Vec<_> = rows("\nvariant ").iter().map(|row| row.join(" ")).collect();
    let beginnings = [
        "MHA 64 64 1 1 ",
        "GQA 64 8 1 8 ",
        "MLA-64 64 1 1 121 ",
        "MLA-128 128 1 1 242 ",
        "MLA-128, s_q 2 128 1 2 484 ",
    ];
    assert_eq!(kinds.len(), beginnings.len());
    for (kind, beginning) in kinds.iter().zip(beginnings) {
        assert!(kind.starts_with(beginning), "{kind}");
    }
    let svg = fs::read_to_string(&path).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let texts: Vec<_> = svg.lines().collect();
    let shows = |text: &str| assert!(texts.contains(&text), "the plot lacks {text}");
    // The same figures: of each cell FU, and the roofline's title.
    let cells = rows("\ns_q ");
    assert_eq!(cells.len(), 4);
    cells.iter().for_each(|cell| shows(&cell[5]));
    let title = text.lines().find(|line| line.starts_with("Roofline: "));
    shows(title.unwrap());
    for name in [
        "MHA (1)",
        "GQA (8)",
        "MLA-64 (121)",
        "MLA-128 (242)",
        "MLA-128, s_q 2 (484)",
    ] {
        assert!(svg.contains(name), "the plot lacks {name}");
    }
}
