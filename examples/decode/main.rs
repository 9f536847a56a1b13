//! Computes MLA decode problems and says how well and how fast.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::available_parallelism;

use amla::{Backend, BackendId, Options, Plan, Precision, Rescale, Shape};
use clap::Parser;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use half::bf16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

mod case;
#[path = "../common/engine.rs"]
mod engine;
mod evaluate;
mod file;
mod layout;
mod reference;
mod report;
mod sparse;
mod stored;
mod tensors;

use case::Case;
use engine::Engine;
use evaluate::{Truth, evaluate, solve};

/// Real activations; see `examples/data/README.md`.
const BUNDLED: &[u8] = include_bytes!("../data/minilm_l2_512.safetensors");

const ABOUT: &str = "\
Computes MLA decode problems with AMLA, and says how well and how fast.

Without FILE: real activations that come with the example, and a problem of DeepSeek-V3's shape
(128 heads, 4096 keys, 576/512 wide, 1 and 2 query positions, seeded normal values).";

const FILE_HELP: &str = "\
Tensors of FILE:
  q                rows         [b, s_q, h_q, d_qk]
  kv               rows         [b, s_k, d_qk] or [b, s_k, h_kv, d_qk]; its first d_v columns are the
                                values if there is no v
  softmax_scale    F32          [1]
and optionally
  q_nope, q_rope   rows         instead of q, its first d_v columns and the others
  ckv, k_rope      rows         instead of kv, its first d_v columns and the others
  v                rows         [b, s_k, d_v] or [b, s_k, h_kv, d_v], as kv is
  q_indptr         I32          [b + 1], where each request's queries begin; tensors of queries are
                                then [tokens, ...], not [b, s_q, ...]
  kv_indptr        I32          [b + 1], where each request's keys begin; tensors of keys are then
                                [tokens, ...], not [b, s_k, ...]
  block_table      I32          [b, max_blocks], the pages that hold each request's keys; tensors of
                                keys are then [pages, page_size, ...]
  cache_seqlens    I32          [b], valid keys of each request; all that there is room for if absent
  tail_mask        BOOL or U8   [b, s_q, tail], which of a request's last keys each query sees
  sink             F32          [h_q], each head's attention sink
  indices          I32          [b, s_q, topk], sparse attention: the keys that each query sees, by
                                their places. kv is then [pages, page_size, ...], whoever the pages
                                belong to, and a place is page * page_size + key in the page; with
                                kv_indptr it is the key's number within its request. Places that are
                                negative or beyond the cache are skipped
  topk_length      I32          [b], how many of each query's places count; all of them if absent
  extra_kv         rows         [pages, page_size, d_qk] or [pages, page_size, h_kv, d_qk], a second
                                cache for sparse attention, with
  extra_indices, extra_topk_length
                                as indices and topk_length
  expected_o       floats       [b, s_q, h_q, d_v], in BF16, F16 or F32
  expected_lse     floats       [b, h_q, s_q] or [b, s_q, h_q], [h_q, tokens] or [tokens, h_q] with
                                q_indptr; the first where both fit
Rows, for each tensor as it likes:
  BF16, F16        as they are
  F32              rounded to BF16 when FILE is read, and a note says so
  I8               with a scale for each row, F32: q_scale, kv_scale, v_scale, extra_kv_scale, ... of
                   the tensor's shape without its last dimension
  U8 or F8_E4M3    FlashMLA's FP8 rows of 576 columns, [..., 656]: 512 e4m3, 4 F32 scales, 64 BF16
                   FlashMLA's MODEL1 rows of 512 columns, [..., 584]: of each page (or request, or all
                   tokens) first the rows, 448 e4m3 and 64 BF16, then 8 bytes of scales for each
The kernel rounds all of them to BF16, and so does Golden.
Metadata of FILE, optional: causal (\"true\" or \"false\") and window (\"N\"), as the options.
d_v is the width of a tensor that has it, or else --d-v, or else the usual one: 512, 512, 256, 128,
128, 64 for d_qk = 576, 512, 320, 192, 128, 64. Errors are against expected_o and expected_lse, or
else Golden, the same problem computed here in f64; so too if --causal or --window change what FILE's
metadata say, and a note says so.

Tensors of OUT:
  o                F32          [b, s_q, h_q, d_v], or [tokens, h_q, d_v] with q_indptr
  lse              F32          [b, h_q, s_q], or [h_q, tokens]; natural logarithm
A row that sees no key has o = 0 and lse = +inf.

Exit code: 0, or 2 with one line on stderr if a file or an option is no good.";

/// The command line.
#[derive(Parser)]
#[command(name = "decode", version, about = ABOUT, after_help = FILE_HELP)]
struct Args {
    /// A problem as a safetensors file
    file: Option<PathBuf>,

    /// Where to write o and lse
    #[arg(short, long, value_name = "OUT", requires = "file")]
    output: Option<PathBuf>,

    /// Kernel to use [default: the fastest that this processor runs]
    #[arg(long, value_name = "NAME", value_parser = backends())]
    backend: Option<BackendId>,

    /// How the accumulator follows the running maximum [default: exact; without FILE, both in turn]
    #[arg(long, value_name = "MODE", value_parser = rescales())]
    rescale: Option<Rescale>,

    /// How probabilities enter the second product
    #[arg(long, default_value = "bf16", value_parser = precisions())]
    precision: Precision,

    /// Threads of the kernel [default: one per processor]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    threads: Option<usize>,

    /// Let query position j of n see only the first len - (n - 1 - j) keys
    #[arg(long)]
    causal: bool,

    /// Hide from query position j the keys more than N - 1 before its own, len - n + j
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    window: Option<usize>,

    /// Width of a value, where no tensor of FILE has it [default: see below]
    #[arg(long, value_name = "N", requires = "file")]
    d_v: Option<usize>,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

fn backends() -> impl TypedValueParser<Value = BackendId> {
    named(BackendId::ALL, BackendId::name)
}

fn rescales() -> impl TypedValueParser<Value = Rescale> {
    named([Rescale::Exact, Rescale::Compensated], report::rescale_name)
}

fn precisions() -> impl TypedValueParser<Value = Precision> {
    named([Precision::Bf16, Precision::Bf16x2], report::precision_name)
}

/// Reads one of `values` by its name.
fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.map(name)).try_map(move |given| {
        values
            .into_iter()
            .find(|&value| name(value) == given)
            .ok_or("unknown value")
    })
}

fn main() -> ExitCode {
    let result = match Args::try_parse() {
        Ok(args) => run(&args),
        Err(e) if !e.use_stderr() => e.exit(),
        Err(e) => {
            let text = e.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            Err(first.trim_start_matches("error: ").to_owned())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            tell("error", &message);
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    // Before the first backend is chosen: where there is AMX, it is the fastest.
    Backend::permit_amx();
    let mut options = Options {
        precision: args.precision,
        ..Options::default()
    };
    if let Some(id) = args.backend {
        options.backend = Backend::request(id).map_err(line)?;
    }
    let threads = args
        .threads
        .unwrap_or_else(|| available_parallelism().map_or(1, Into::into));
    let mut engine = Engine::new(options, threads).map_err(line)?;

    if let Some(path) = &args.file {
        let rescale = args.rescale.unwrap_or_default();
        engine.options.rescale = rescale;
        let mut case = file::read(path, args.d_v)?;
        case.restrict(args.causal, args.window);
        let problem = case.problem();
        Plan::new(&problem).map_err(|e| format!("{}: {e}", path.display()))?;
        if let Some(output) = &args.output {
            if output
                .canonicalize()
                .is_ok_and(|o| path.canonicalize().is_ok_and(|p| o == p))
            {
                return Err(format!("{} is the problem itself", output.display()));
            }
            let (o, lse) = solve(&mut engine, &case).map_err(line)?;
            file::write(output, &case, &o, &lse)?;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        report(args, &mut engine, &[rescale], [(name.into_owned(), case)])?;
    } else {
        let both = [Rescale::Exact, Rescale::Compensated];
        let rescales = args
            .rescale
            .as_ref()
            .map_or(&both[..], std::slice::from_ref);
        let cases = [
            ("minilm_l2_512", file::parse(BUNDLED, None)?),
            ("deepseek_v3_s_q1", deepseek_v3(1)),
            ("deepseek_v3_s_q2", deepseek_v3(2)),
        ];
        let cases = cases.map(|(name, mut case)| {
            case.restrict(args.causal, args.window);
            (name.to_owned(), case)
        });
        report(args, &mut engine, rescales, cases)?;
    }
    Ok(())
}

/// Computes each case in each mode and prints a line about it.
fn report(
    args: &Args,
    engine: &mut Engine,
    rescales: &[Rescale],
    cases: impl IntoIterator<Item = (String, Case)>,
) -> Result<(), String> {
    if !args.json {
        print(&format_args!(
            "amla {}, P in {}, threads: {}\n\n{}",
            env!("CARGO_PKG_VERSION"),
            report::precision_name(args.precision),
            engine.threads(),
            report::HEADER
        ))?;
    }
    for (name, case) in cases {
        for note in &case.notes {
            tell("note", note);
        }
        let truth = Truth::of(&case).map_err(line)?;
        for &rescale in rescales {
            engine.options.rescale = rescale;
            let record = evaluate(engine, &name, &case, &truth).map_err(line)?;
            if args.json {
                print(&record.json())?;
            } else {
                print(&record)?;
            }
        }
    }
    if !args.json {
        print(&format_args!("\n{}", report::LEGEND))?;
    }
    Ok(())
}

/// A decode step of DeepSeek-V3: absorbed queries over a cache of 4096 keys.
fn deepseek_v3(s_q: usize) -> Case {
    let shape = Shape {
        b: 1,
        s_q,
        s_k: 4096,
        h_q: 128,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
    };
    let mut rng = ChaCha8Rng::seed_from_u64(s_q as u64);
    let mut normal = |len| -> Vec<bf16> {
        let values = StandardNormal.sample_iter(&mut rng).take(len);
        values.map(bf16::from_f32).collect()
    };
    let (q, kv) = (
        normal(s_q * shape.h_q * shape.d_qk),
        normal(shape.s_k * shape.d_qk),
    );
    // Keys are 192 wide before absorption.
    Case::dense(shape, q, kv, 192_f32.sqrt().recip())
}

fn line(e: impl Display) -> String {
    e.to_string()
}

/// A line on stderr, whatever the message holds.
fn tell(kind: &str, message: &str) {
    let words: Vec<_> = message.split_whitespace().collect();
    // Nobody is left to hear that stderr is closed.
    let _ = writeln!(io::stderr(), "{kind}: {}", words.join(" "));
}

/// A line on stdout; ends the program quietly if the reader has gone.
fn print(what: &dyn Display) -> Result<(), String> {
    match writeln!(io::stdout(), "{what}") {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.map_err(|e| format!("cannot write to stdout: {e}")),
    }
}
