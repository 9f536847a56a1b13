//! Computes MLA decode problems; prints errors and speed.

use std::path::PathBuf;
use std::process::ExitCode;

use amla::{Inputs, Options, Plan, Precision, ProblemShape, Rescale};
use amla_examples::cli::{self, Processor};
use amla_examples::engine::Engine;
use amla_examples::output::{print, print_object, tell};
use amla_examples::problem::{self, Case};
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use half::bf16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

mod evaluate;
mod reference;
mod report;
mod tolerance;

use evaluate::{Truth, evaluate, solve};

/// Real activations; see `examples/data/README.md`.
const BUNDLED: &[u8] = include_bytes!("../data/minilm_l2_512.safetensors");

const ABOUT: &str = "\
Computes MLA decode problems with AMLA; prints errors and speed.

Without FILE: real activations, which the program contains, and a problem of DeepSeek-V3's shape (128 heads, 4096 keys, \
576/512 wide, 1 and 2 query positions, seeded normal values).";

const FILE_HELP: &str = "\
Tensors of FILE:
  q              rows    [b, s_q, h_q, d_qk]
  kv             rows    [b, s_k, d_qk] or [b, s_k, h_kv, d_qk]; its first d_v
                         columns are the values if there is no v
  softmax_scale  F32     [1]
and optionally
  q_nope, q_rope rows    instead of q: its first d_v columns, and the others
  ckv, k_rope    rows    instead of kv: its first d_v columns, and the others
  v              rows    [b, s_k, d_v] or [b, s_k, h_kv, d_v], as kv is
  q_indptr       I32     [b + 1], offsets of each request's queries; tensors of
                         queries are then [tokens, ...], not [b, s_q, ...]
  kv_indptr      I32     [b + 1], offsets of each request's keys; tensors of
                         keys are then [tokens, ...], not [b, s_k, ...]
  block_table    I32     [b, max_blocks], the pages that hold each request's
                         keys; tensors of keys are then [pages, page_size, ...]
  cache_seqlens  I32     [b], valid keys of each request; default: s_k, or a
                         full table of pages
  tail_mask      BOOL,   [b, s_q, tail], which of a request's last keys each
                 U8      query sees
  sink           F32     [h_q], each head's attention sink
  indices        I32     [b, s_q, topk], sparse attention: the indices of the
                         keys that each query sees. kv is then [pages,
                         page_size, ...], of any request, and an index is page
                         * page_size + slot in the page; with kv_indptr it
                         counts keys within the request. Indices that are
                         negative or beyond the cache are skipped
  topk_length    I32     [b], the number of valid indices of each query;
                         default: topk
  extra_kv       rows    [pages, page_size, d_qk] or [pages, page_size, h_kv,
                         d_qk], a second cache for sparse attention, with
  extra_indices, I32     as indices and topk_length
  extra_topk_length
  expected_o     floats  [b, s_q, h_q, d_v], in BF16, F16 or F32
  expected_lse   floats  [b, h_q, s_q] or [b, s_q, h_q]; [h_q, tokens] or
                         [tokens, h_q] with q_indptr; the first where both fit
A file with any other tensor is refused.

Rows, each tensor in a format of its own:
  BF16, F16, F32 unchanged
  I8             with a scale for each row, F32: q_scale, kv_scale, v_scale,
                 extra_kv_scale, ... of the tensor's shape without its last
                 dimension
  U8, F8_E4M3    FlashMLA's FP8 rows of 576 columns, [..., 656]: 512 e4m3, 4
                 F32 scales, 64 BF16
                 FlashMLA's MODEL1 rows of 512 columns, [..., 584]: of each
                 page (or request, or all tokens) first the rows, 448 e4m3 and
                 64 BF16, then 8 bytes of scales for each
Products of I8, FP8 and MODEL1 rows with their scales are rounded to BF16, and
Golden rounds them too. F16 and F32 rows are multiplied in FP32 unless --inputs
is bf16. Golden takes them as they are.

Metadata of FILE, optional: causal (\"true\" or \"false\") and window (\"N\"), as
the options.

d_v is the width of a tensor that has it, or else --d-v, or else the usual one:
512, 512, 256, 128, 128, 64 for d_qk = 576, 512, 320, 192, 128, 64.

Errors are against expected_o and expected_lse, or else Golden, the same problem
computed here in f64. If --causal or --window differ from FILE's metadata,
errors are against Golden, and a note says so.

--tolerance is for the relative Frobenius error of o, and for the largest error
of an lse over the largest lse (or 1). Its default is 1e-2 where inputs,
probabilities or expected values are rounded to BF16, or their compensation is
(--rescale compensated); else 1e-3 where expected values are F16; else 1e-4.

Tensors of OUT:
  o              F32     [b, s_q, h_q, d_v], or [tokens, h_q, d_v] with q_indptr
  lse            F32     [b, h_q, s_q], or [h_q, tokens]; natural logarithm
A row that sees no key has o = 0 and lse = +inf.

Exit code: 0; 1 if an error is above the tolerance, with a line on stderr for
each; 2, with one line on stderr, if a file or an option is invalid.";

/// The command line.
#[derive(Parser)]
#[command(name = "decode", version, about = ABOUT, after_help = FILE_HELP)]
struct Args {
    /// A problem as a safetensors file
    file: Option<PathBuf>,

    /// Where to write o and lse
    #[arg(short, long, value_name = "OUT", requires = "file")]
    output: Option<PathBuf>,

    #[command(flatten)]
    processor: Processor,

    /// How the accumulator follows the running maximum [default: exact; without FILE, both in turn]
    #[arg(long, value_name = "MODE", value_parser = cli::rescales())]
    rescale: Option<Rescale>,

    /// How probabilities enter the second product
    #[arg(long, default_value = "bf16", value_parser = cli::precisions())]
    precision: Precision,

    /// How a backend that multiplies BF16 takes F16 and F32 rows: as they are, by leaving the call to
    /// the FP32 backend of the processor, or rounded to BF16
    #[arg(long, default_value = "as-given", value_parser = cli::inputs())]
    inputs: Inputs,

    /// Let query position j of n see only the first len - (n - 1 - j) keys
    #[arg(long)]
    causal: bool,

    /// Hide from query position j the keys more than N - 1 before its own, len - n + j
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    window: Option<usize>,

    /// Width of a value, where no tensor of FILE has it [default: see below]
    #[arg(long, value_name = "N", requires = "file")]
    d_v: Option<usize>,

    /// Largest valid error of o and lse; a larger one is exit code 1 [default: see below]
    #[arg(long, value_name = "X", value_parser = tolerance::parse)]
    tolerance: Option<f64>,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    cli::main(run)
}

fn run(args: &Args) -> Result<ExitCode, String> {
    let options = Options {
        backend: args.processor.backend()?,
        precision: args.precision,
        inputs: args.inputs,
        ..Options::default()
    };
    let threads = args.processor.threads();
    let mut engine = Engine::new(options, threads).map_err(|e| e.to_string())?;

    let same = if let Some(path) = &args.file {
        let rescale = args.rescale.unwrap_or_default();
        engine.options.rescale = rescale;
        let mut case = problem::read(path, args.d_v)?;
        case.restrict(args.causal, args.window);
        Plan::new(&case.problem()).map_err(|e| format!("{}: {e}", path.display()))?;
        if let Some(output) = &args.output {
            if output
                .canonicalize()
                .is_ok_and(|o| path.canonicalize().is_ok_and(|p| o == p))
            {
                return Err(format!("{} is the problem itself", output.display()));
            }
            let (o, lse) = solve(&mut engine, &case).map_err(|e| e.to_string())?;
            problem::write(output, &case, &o, &lse)?;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        report(args, &mut engine, &[rescale], [(name.into_owned(), case)])?
    } else {
        let both = [Rescale::Exact, Rescale::Compensated];
        let rescales = args
            .rescale
            .as_ref()
            .map_or(&both[..], std::slice::from_ref);
        let cases = [
            ("minilm_l2_512", problem::parse(BUNDLED, None)?),
            ("deepseek_v3_s_q1", deepseek_v3(1)),
            ("deepseek_v3_s_q2", deepseek_v3(2)),
        ];
        let cases = cases.map(|(name, mut case)| {
            case.restrict(args.causal, args.window);
            (name.to_owned(), case)
        });
        report(args, &mut engine, rescales, cases)?
    };
    Ok(ExitCode::from(u8::from(!same)))
}

/// Computes each case in each mode and prints a line about it. Returns whether all results are what
/// they should be.
fn report<const N: usize>(
    args: &Args,
    engine: &mut Engine,
    rescales: &[Rescale],
    cases: [(String, Case); N],
) -> Result<bool, String> {
    let mut same = true;
    if !args.json {
        print(&header(args, engine, &cases))?;
    }
    for (name, case) in cases {
        for note in &case.notes {
            tell("note", note);
        }
        let truth = Truth::of(&case).map_err(|e| e.to_string())?;
        for &rescale in rescales {
            engine.options.rescale = rescale;
            let record = evaluate(engine, &name, &case, &truth, args.tolerance);
            let record = record.map_err(|e| e.to_string())?;
            if args.json {
                print_object(&record.json())?;
            } else {
                print(&record)?;
            }
            for difference in record.differences() {
                tell("error", &difference);
                same = false;
            }
        }
    }
    if !args.json {
        print(&format_args!("\n{}", report::LEGEND))?;
    }
    Ok(same)
}

/// What is computed and how, and the table's first line.
fn header(args: &Args, engine: &Engine, cases: &[(String, Case)]) -> String {
    let mut text = format!(
        "amla {}: {}, P in {}, threads: {}\n",
        env!("CARGO_PKG_VERSION"),
        engine.options.backend.id().name(),
        cli::precision_name(args.precision),
        engine.threads(),
    );
    for (name, case) in cases {
        text += &format!("{name}: {}\n", report::formats(case.dtypes()));
    }
    text + "\n" + report::HEADER
}

/// A decode step of DeepSeek-V3: absorbed queries over a cache of 4096 keys.
fn deepseek_v3(s_q: usize) -> Case {
    let shape = ProblemShape {
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
