//! Writes the seeds, `corpus/TARGET/KIND`: of drawn inputs the shortest of each kind, as the
//! target itself tells kinds apart, and for `safetensors` the headers below.
//!
//!     cargo run --release --example seeds

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Kind = fn(&[u8]) -> Option<String>;

const TARGETS: [(&str, Kind, usize); 7] = [
    ("rescale_bits", amla_fuzz::rescale_bits::kind, 400),
    ("bf16_round", amla_fuzz::bf16_round::kind, 64),
    ("decode", amla_fuzz::decode::kind, 256),
    ("plan", amla_fuzz::plan::kind, 256),
    ("schedule", amla_fuzz::schedule::kind, 200),
    ("merge", amla_fuzz::merge::kind, 600),
    ("formats", amla_fuzz::formats::kind, 400),
];

/// Inputs drawn for a target, and the most seeds that it gets.
const DRAWN: usize = 3000;
const MOST: usize = 80;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, kind, len) in TARGETS {
        let mut rng = ChaCha8Rng::seed_from_u64(len as u64);
        let mut seeds: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for _ in 0..DRAWN {
            let len = rng.random_range(1..=len);
            let data: Vec<u8> = (0..len).map(|_| rng.random()).collect();
            let Some(kind) = kind(&data) else {
                continue;
            };
            let better = match seeds.get(&kind) {
                Some(shortest) => data.len() < shortest.len(),
                None => seeds.len() < MOST,
            };
            if better {
                seeds.insert(kind, data);
            }
        }
        write(&corpus.join(target), seeds)?;
    }
    // A descriptor's problem is `decode`'s, behind the bytes that overwrite its fields.
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut calls = BTreeMap::new();
    for entry in fs::read_dir(corpus.join("decode"))? {
        let entry = entry?;
        let mut data: Vec<u8> = (0..64).map(|_| rng.random()).collect();
        data.extend(fs::read(entry.path())?);
        calls.insert(entry.file_name().to_string_lossy().into_owned(), data);
    }
    write(&corpus.join("c_abi"), calls)?;
    let files = FILES.map(|(name, tensors, metadata)| {
        let file = format!("\u{1}{}\n\u{10}?\u{20}@\u{0}<", header(tensors, metadata));
        (name.to_owned(), file.into_bytes())
    });
    write(&corpus.join("safetensors"), files.into())
}

fn write(folder: &Path, seeds: BTreeMap<String, Vec<u8>>) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, data) in &seeds {
        fs::write(folder.join(name), data)?;
    }
    println!("{}: {} seeds", folder.display(), seeds.len());
    Ok(())
}

type Tensors = &'static [(&'static str, &'static str, &'static [usize])];

/// One file for each way to say where things are.
const FILES: [(&str, Tensors, &str); 9] = [
    (
        "dense",
        &[
            ("q", "BF16", &[1, 2, 2, 64]),
            ("kv", "BF16", &[1, 3, 64]),
            SCALE,
        ],
        "\"causal\":\"true\",\"window\":\"2\"",
    ),
    (
        "formats",
        &[
            ("q", "F32", &[1, 1, 2, 64]),
            ("kv", "I8", &[1, 3, 1, 64]),
            ("kv_scale", "F32", &[1, 3, 1]),
            ("v", "F16", &[1, 3, 1, 64]),
            SCALE,
        ],
        "",
    ),
    (
        "fp8",
        &[
            ("q", "BF16", &[1, 1, 1, 576]),
            ("kv", "U8", &[1, 2, 656]),
            SCALE,
        ],
        "",
    ),
    (
        "model1",
        &[
            ("q", "BF16", &[1, 1, 1, 512]),
            ("kv", "F8_E4M3", &[1, 2, 1, 584]),
            ("expected_lse", "F32", &[1, 1, 1]),
            SCALE,
        ],
        "",
    ),
    (
        "ragged",
        &[
            ("q_nope", "BF16", &[0, 1, 128]),
            ("q_rope", "BF16", &[0, 1, 64]),
            ("q_indptr", "I32", &[1]),
            ("ckv", "BF16", &[1, 2, 128]),
            ("k_rope", "BF16", &[1, 2, 64]),
            ("kv_indptr", "I32", &[1]),
            SCALE,
        ],
        "",
    ),
    (
        "paged",
        &[
            ("q", "BF16", &[1, 1, 1, 64]),
            ("kv", "BF16", &[2, 4, 1, 64]),
            ("block_table", "I32", &[1, 2]),
            ("cache_seqlens", "I32", &[1]),
            SCALE,
        ],
        "",
    ),
    (
        "tree",
        &[
            ("q", "BF16", &[1, 2, 1, 64]),
            ("kv", "BF16", &[1, 4, 64]),
            ("tail_mask", "BOOL", &[1, 2, 3]),
            ("sink", "F32", &[1]),
            SCALE,
        ],
        "",
    ),
    (
        "sparse",
        &[
            ("q", "BF16", &[1, 1, 1, 64]),
            ("kv", "BF16", &[2, 2, 1, 64]),
            ("indices", "I32", &[1, 1, 3]),
            ("topk_length", "I32", &[1]),
            ("extra_kv", "BF16", &[1, 2, 1, 64]),
            ("extra_indices", "I32", &[1, 1, 2]),
            SCALE,
        ],
        "",
    ),
    (
        "huge",
        &[
            ("q", "BF16", &[1 << 40, 0, 1, 64]),
            ("kv", "BF16", &[1 << 40, 0, 64]),
            SCALE,
        ],
        "",
    ),
];

const SCALE: (&str, &str, &[usize]) = ("softmax_scale", "F32", &[1]);

fn header(tensors: Tensors, metadata: &str) -> String {
    let mut end = 0;
    let entries = tensors.iter().map(|&(name, dtype, shape)| {
        let element = match dtype {
            "F32" | "I32" => 4,
            "BF16" | "F16" => 2,
            _ => 1,
        };
        let start = end;
        end += element * shape.iter().product::<usize>();
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}")
    });
    let entries: Vec<String> = entries.collect();
    format!("{{\"__metadata__\":{{{metadata}}},{}}}", entries.join(","))
}
