//! The functional mode: the kernel's tile loops on data, against Golden and the scalar reference of the
//! same algorithm, and against this crate's own kernel.

use amla::ascend::{Algorithm, Datapath, Inputs, Memory, Outputs};
use amla::reference::{self, amla_compensated, base};
use amla::{Elements, Options, Output, Problem, Rescale, Shape, Workspace, decode};
use half::bf16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use serde_json::json;

use crate::cli::{Cli, ExecuteArgs, algorithm_name, pipeline_name};
use crate::metrics::{relative_frobenius, worst};
use crate::output::line;

const SEED: u64 = 910;

/// Runs and prints.
///
/// # Errors
/// What doesn't fit, what goes wrong, or standard output.
pub fn compare(cli: &Cli, options: &ExecuteArgs) -> Result<(), String> {
    let shape = Shape {
        b: 1,
        s_q: 1,
        s_k: options.keys,
        h_q: options.rows,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
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

    let (o_len, rows) = (load.rows * load.d_v, load.rows);
    let (mut golden, mut golden_lse) = (vec![0.0; o_len], vec![0.0; rows]);
    reference::golden(&problem, &mut golden, &mut golden_lse).map_err(|e| e.to_string())?;

    let (mut o, mut lse) = (vec![0.0; o_len], vec![0.0; rows]);
    let [bf16_len, f32_len] = Datapath::memory(&kernel);
    // Garbage, so that what isn't written shows.
    let (mut bf16s, mut f32s) = (vec![bf16::NAN; bf16_len], vec![f32::NAN; f32_len]);
    let mut datapath = Datapath::new(
        &kernel,
        Inputs {
            q: &q,
            kv: &kv,
            softmax_scale,
        },
        Outputs {
            o: &mut o,
            lse: &mut lse,
        },
        Memory {
            bf16: &mut bf16s,
            f32: &mut f32s,
        },
    )
    .map_err(|e| e.to_string())?;
    let report = kernel
        .run_with(kernel.order(), &mut datapath)
        .map_err(|e| e.to_string())?;

    let (mut scalar, mut scalar_lse) = (vec![0.0; o_len], vec![0.0; rows]);
    let block = kernel.tiling().block.min(reference::MAX_BLOCK);
    let (name, result) = match cli.algorithm {
        Algorithm::Base => ("base", base(&problem, block, &mut scalar, &mut scalar_lse)),
        Algorithm::Amla => (
            "amla_compensated",
            amla_compensated(&problem, block, &mut scalar, &mut scalar_lse),
        ),
    };
    result.map_err(|e| e.to_string())?;

    let (mut ours, mut ours_lse) = (vec![0.0; o_len], vec![0.0; rows]);
    let mut workspace = bytemuck::zeroed_box::<Workspace>();
    let how = Options {
        rescale: Rescale::Compensated,
        ..Options::default()
    };
    let output = Output::dense(shape, Elements::F32(&mut ours), &mut ours_lse);
    decode(&problem, &how, &mut workspace, output).map_err(|e| e.to_string())?;

    let results = [
        ("model".to_owned(), &o, &lse),
        (format!("reference::{name}"), &scalar, &scalar_lse),
        (
            format!("kernel, {}", how.backend.id().name()),
            &ours,
            &ours_lse,
        ),
    ];
    if cli.json {
        let [model, scalar, kernel] = results
            .map(|(_, o, lse)| json!([relative_frobenius(o, &golden), worst(lse, &golden_lse)]));
        let object = json!({
            "rows": load.rows,
            "keys": load.keys,
            "instructions": report.instructions,
            "model": model,
            "reference": scalar,
            "kernel": kernel,
        });
        return line(&object.to_string());
    }
    line(&format!(
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
    for (name, o, lse) in results {
        let (o, lse) = (relative_frobenius(o, &golden), worst(lse, &golden_lse));
        line(&format!("{name:<28} {o:>12.3e} {lse:>12.1e}"))?;
    }
    Ok(())
}
