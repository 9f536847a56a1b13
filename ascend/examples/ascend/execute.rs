//! The functional mode: the kernel's tile loops on data. It compares three results with Golden: the
//! model's, that of the scalar reference of the same algorithm, and that of `amla`'s kernel.

use amla::reference::{self, amla_compensated, base};
use amla::{Elements, Options, Output, Problem, ProblemShape, Rescale, Workspace, decode};
use amla_ascend::{Algorithm, Datapath, Inputs, Kernel, Memory, Outputs, Report, paper};
use amla_examples::output::{print, print_object};
use amla_examples::progress::Progress;
use half::bf16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use serde_json::json;

use crate::cli::{Cli, ExecuteArgs, algorithm_name, pipeline_name};
use crate::metrics::{relative_frobenius, worst};

const SEED: u64 = 910;

/// O and lse.
type Computed = (Vec<f32>, Vec<f32>);

/// Executes the kernel on random data, and prints the errors.
///
/// # Errors
/// A defect of the command line, or a failure of standard output.
pub fn compare(cli: &Cli, options: &ExecuteArgs) -> Result<(), String> {
    let shape = ProblemShape {
        b: 1,
        h_q: options.rows,
        ..paper::shape(1, options.keys)
    };
    let kernel = cli.kernel(shape)?;
    let load = *kernel.load();
    if load.rows != options.rows {
        return Err(format!("--rows {} are more than one group", options.rows));
    }
    let normal = Normal::new(0.0, options.sigma).map_err(|e| format!("--sigma: {e}"))?;
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut draw = |n: usize| -> Vec<bf16> {
        (0..n)
            .map(|_| bf16::from_f32(normal.sample(&mut rng)))
            .collect()
    };
    let (q, kv) = (draw(load.rows * load.d_qk), draw(load.keys * load.d_qk));
    let softmax_scale = (load.d_qk as f32).sqrt().recip();
    let problem = Problem::dense(shape, &q, &kv, softmax_scale);

    let progress = Progress::new("execute", 4);
    let (mut golden, mut golden_lse) = (vec![0.0; load.rows * load.d_v], vec![0.0; load.rows]);
    reference::golden(&problem, &mut golden, &mut golden_lse).map_err(|e| e.to_string())?;
    progress.step();

    let inputs = Inputs {
        q: &q,
        kv: &kv,
        softmax_scale,
    };
    let (model, report) = model(&kernel, inputs)?;
    progress.step();
    let (name, scalar) = scalar(&kernel, &problem)?;
    progress.step();
    let how = Options {
        rescale: Rescale::Compensated,
        ..Options::default()
    };
    let cpu = cpu(&how, &problem)?;

    let errors = [&model, &scalar, &cpu]
        .map(|(o, lse)| [relative_frobenius(o, &golden), worst(lse, &golden_lse)]);
    if cli.json {
        let [model, scalar, cpu] = errors;
        let object = json!({
            "rows": load.rows,
            "keys": load.keys,
            "instructions": report.instructions,
            "model": model,
            "reference": scalar,
            "kernel": cpu,
        });
        return print_object(&object);
    }
    print(&format_args!(
        "{} x {} keys, {} with the {} pipeline: {} instructions on data, against Golden\n\n{:<28} {:>12} {:>12}",
        load.rows,
        load.keys,
        algorithm_name(cli.algorithm),
        pipeline_name(cli.pipeline),
        report.instructions,
        "",
        "error of O",
        "worst lse",
    ))?;
    let names = [
        "model".to_owned(),
        format!("reference::{name}"),
        format!("kernel, {}", how.backend.id().name()),
    ];
    for (name, [o, lse]) in names.into_iter().zip(errors) {
        print(&format_args!("{name:<28} {o:>12.3e} {lse:>12.1e}"))?;
    }
    Ok(())
}

/// The model's result.
fn model(kernel: &Kernel, inputs: Inputs) -> Result<(Computed, Report), String> {
    let load = kernel.load();
    let (mut o, mut lse) = (vec![0.0; load.rows * load.d_v], vec![0.0; load.rows]);
    let [bf16_len, f32_len] = Datapath::memory(kernel);
    // NaN shows elements that are read before they are written.
    let (mut bf16s, mut f32s) = (vec![bf16::NAN; bf16_len], vec![f32::NAN; f32_len]);
    let outputs = Outputs {
        o: &mut o,
        lse: &mut lse,
    };
    let memory = Memory {
        bf16: &mut bf16s,
        f32: &mut f32s,
    };
    let report = Datapath::new(kernel, inputs, outputs, memory)
        .and_then(|mut datapath| kernel.run_with(kernel.order(), &mut datapath))
        .map_err(|e| e.to_string())?;
    Ok(((o, lse), report))
}

/// The name and the result of the scalar reference of the kernel's algorithm.
fn scalar(kernel: &Kernel, problem: &Problem) -> Result<(&'static str, Computed), String> {
    let load = kernel.load();
    let (mut o, mut lse) = (vec![0.0; load.rows * load.d_v], vec![0.0; load.rows]);
    let block = kernel.tiling().block.min(reference::MAX_BLOCK);
    let (name, result) = match kernel.algorithm() {
        Algorithm::Base => ("base", base(problem, block, &mut o, &mut lse)),
        Algorithm::Amla => (
            "amla_compensated",
            amla_compensated(problem, block, &mut o, &mut lse),
        ),
    };
    result.map_err(|e| e.to_string())?;
    Ok((name, (o, lse)))
}

/// The result of `amla`'s kernel.
fn cpu(how: &Options, problem: &Problem) -> Result<Computed, String> {
    let ProblemShape { h_q, d_v, .. } = problem.shape;
    let (mut o, mut lse) = (vec![0.0; h_q * d_v], vec![0.0; h_q]);
    let mut workspace = bytemuck::zeroed_box::<Workspace>();
    let output = Output::dense(problem.shape, Elements::F32(&mut o), &mut lse);
    decode(problem, how, &mut workspace, output).map_err(|e| e.to_string())?;
    Ok((o, lse))
}
