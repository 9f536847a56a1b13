//! Computes MLA decode problems and says how well and how fast.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Duration;

use amla::{
    Backend, BackendId, Elements, Error, Options, Output, Plan, Precision, Problem, Rescale, Shape,
};
use clap::Parser;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use half::bf16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

#[path = "../common/engine.rs"]
mod engine;
mod file;
mod reference;
mod report;

use engine::Engine;
use file::Case;
use report::{Record, relative_error, worst_error};

/// For how long each problem's speed is measured.
const BUDGET: Duration = Duration::from_millis(500);

/// Real activations; see `examples/data/README.md`.
const BUNDLED: &[u8] = include_bytes!("../data/minilm_l2_512.safetensors");

const ABOUT: &str = "\
Computes MLA decode problems with AMLA, and says how well and how fast.

Without FILE: real activations that come with the example, and a problem of DeepSeek-V3's shape
(128 heads, 4096 keys, 576/512 wide, 1 and 2 query positions, seeded normal values).";

const FILE_HELP: &str = "\
Tensors of FILE:
  q              BF16 or F32  [b, s_q, h_q, d_qk]
  kv             BF16 or F32  [b, s_k, d_qk]; its first d_v columns are the values if there is no v
  softmax_scale  F32          [1]
  v              BF16 or F32  [b, s_k, d_v], optional
  cache_seqlens  I32          [b], optional; valid keys of each request, all s_k if absent
  expected_o     BF16 or F32  [b, s_q, h_q, d_v], optional
  expected_lse   BF16 or F32  [b, h_q, s_q] or [b, s_q, h_q], optional; the first where s_q = h_q
d_v is the width of v or of expected_o, or else --d-v, or else the usual one: 512, 512, 256, 128
for d_qk = 576, 512, 320, 128. Inputs in F32 are rounded to BF16, and a note says so. Errors are
against expected_o and expected_lse, or else Golden, the same problem computed here in f64.

Tensors of OUT:
  o              F32          [b, s_q, h_q, d_v]
  lse            F32          [b, h_q, s_q], natural logarithm
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

    /// Let query position j see only the first len - (s_q - 1 - j) keys
    #[arg(long)]
    causal: bool,

    /// Width of a value, where FILE has neither v nor expected_o [default: see below]
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
        let case = Case::read(path, args.d_v)?;
        let problem = case.problem(args.causal);
        Plan::new(&problem).map_err(|e| format!("{}: {e}", path.display()))?;
        if let Some(output) = &args.output {
            if output
                .canonicalize()
                .is_ok_and(|o| path.canonicalize().is_ok_and(|p| o == p))
            {
                return Err(format!("{} is the problem itself", output.display()));
            }
            let (o, lse) = solve(&mut engine, &problem).map_err(line)?;
            file::write(output, case.shape, &o, &lse)?;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        report(args, &mut engine, &[rescale], [(name.into_owned(), case)])?;
    } else {
        let mut bundled = Case::parse(BUNDLED, None)?;
        if args.causal {
            // What the file expects was computed without a mask.
            (bundled.expected_o, bundled.expected_lse) = (None, None);
        }
        let both = [Rescale::Exact, Rescale::Compensated];
        let rescales = args
            .rescale
            .as_ref()
            .map_or(&both[..], std::slice::from_ref);
        let cases = [
            ("minilm_l2_512".to_owned(), bundled),
            ("deepseek_v3_s_q1".to_owned(), deepseek_v3(1)),
            ("deepseek_v3_s_q2".to_owned(), deepseek_v3(2)),
        ];
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
        let problem = case.problem(args.causal);
        let truth = Truth::of(&case, &problem).map_err(line)?;
        for &rescale in rescales {
            engine.options.rescale = rescale;
            let record = evaluate(engine, &name, &problem, &truth).map_err(line)?;
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

/// What results are compared with.
struct Truth<'a> {
    name: &'static str,
    o: Cow<'a, [f64]>,
    lse: Option<Cow<'a, [f64]>>,
    base_error: f64,
}

impl<'a> Truth<'a> {
    /// What the case expects, or else Golden.
    fn of(case: &'a Case, problem: &Problem) -> Result<Self, Error> {
        let (name, o, golden_lse) = match &case.expected_o {
            Some(o) => ("expected", Cow::from(o), None),
            None => {
                let (o, lse) = reference::golden(problem)?;
                ("golden", Cow::from(o), Some(Cow::from(lse)))
            }
        };
        Ok(Self {
            name,
            lse: case.expected_lse.as_ref().map(Cow::from).or(golden_lse),
            base_error: relative_error(&reference::base(problem)?, &o),
            o,
        })
    }
}

fn evaluate<'a>(
    engine: &mut Engine,
    name: &'a str,
    problem: &Problem,
    truth: &Truth,
) -> Result<Record<'a>, Error> {
    let (o, lse) = solve(engine, problem)?;
    Ok(Record {
        problem: name,
        shape: problem.shape,
        causal: problem.causal,
        options: engine.options,
        threads: engine.threads(),
        reference: truth.name,
        error: relative_error(&o, &truth.o),
        base_error: truth.base_error,
        worst: worst_error(&o, &truth.o),
        lse_error: truth.lse.as_ref().map(|truth| worst_error(&lse, truth)),
        measured: engine.measure(problem, BUDGET)?,
    })
}

/// `o` `[b, s_q, h_q, d_v]` and `lse` `[b, h_q, s_q]`.
fn solve(engine: &mut Engine, problem: &Problem) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let shape = problem.shape;
    let rows = shape.b * shape.s_q * shape.h_q;
    let (mut o, mut lse) = (vec![0.0; rows * shape.d_v], vec![0.0; rows]);
    engine.run(
        problem,
        Output::dense(shape, Elements::F32(&mut o), &mut lse),
    )?;
    Ok((o, lse))
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
    Case {
        shape,
        q: normal(s_q * shape.h_q * shape.d_qk),
        kv: normal(shape.s_k * shape.d_qk),
        v: None,
        cache_seqlens: None,
        // Keys are 192 wide before absorption.
        softmax_scale: 192_f32.sqrt().recip(),
        expected_o: None,
        expected_lse: None,
        notes: Vec::new(),
    }
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
