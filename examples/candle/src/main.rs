//! A decode step of DeepSeek-V3's shape, two requests: amla's operator and candle's own, in turn.

use std::process::ExitCode;
use std::time::Instant;

use amla::{Backend, BackendId};
use amla_candle::{D_QK, Memory, PagedMla, own};
use candle_core::{DType, Device, Result, Tensor};

const HEADS: usize = 128;
const PAGE_SIZE: usize = 64;
const LENGTHS: [i32; 2] = [4096, 3000];
const BLOCKS: usize = 64;
const RUNS: usize = 9;

/// The largest valid error: candle's operators are FP32, as backends are that don't multiply BF16.
fn tolerance() -> f64 {
    match Backend::detect().id() {
        BackendId::Avx512Bf16 | BackendId::Amx | BackendId::NeonBf16 => 5e-3,
        _ => 1e-5,
    }
}

fn main() -> Result<ExitCode> {
    Backend::permit_amx();
    let device = Device::Cpu;
    let normal = |shape: &[usize]| Tensor::randn(0_f32, 1.0, shape, &device)?.to_dtype(DType::BF16);
    let q = normal(&[LENGTHS.len(), 1, HEADS, D_QK])?;
    let cache = normal(&[LENGTHS.len() * BLOCKS, PAGE_SIZE, D_QK])?;
    // Pages of both requests alternate, from the last one on.
    let block = |request: usize, i: usize| (2 * (BLOCKS - 1 - i) + request) as i32;
    let block_table: Vec<_> = (0..2)
        .flat_map(|r| (0..BLOCKS).map(move |i| block(r, i)))
        .collect();
    let op = PagedMla {
        block_table: &block_table,
        lengths: &LENGTHS,
        softmax_scale: 192_f32.sqrt().recip(),
        memory: &Memory::default(),
    };

    let error = own::relative_error(&op.forward(&q, &cache)?, &own::forward(&op, &q, &cache)?)?;
    let rows = (0..2).map(|request| own::gather(&op, &cache, request));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    let gathered = || (0..2).try_for_each(|r| own::attend(&op, &q.get(r)?, &rows[r]).map(|_| ()));

    let mut times = [const { Vec::new() }; 3];
    for _ in 0..RUNS {
        times[0].push(seconds(|| op.forward(&q, &cache).map(|_| ()))?);
        times[1].push(seconds(|| own::forward(&op, &q, &cache).map(|_| ()))?);
        times[2].push(seconds(gathered)?);
    }
    let [amla, candle, gathered] = times.map(median);
    println!(
        "{HEADS} heads, {LENGTHS:?} keys in pages of {PAGE_SIZE}; backend {}",
        Backend::detect().id().name()
    );
    println!(
        "error against candle's operators: {error:.1e} (tolerance {:.0e})",
        tolerance()
    );
    for (what, time) in [
        ("amla's operator", amla),
        ("candle's, pages gathered and converted", candle),
        ("candle's, rows already FP32", gathered),
    ] {
        println!("{what:<40} {:>6.1} ms {:>5.2} x", time * 1e3, time / amla);
    }
    Ok(ExitCode::from(u8::from(
        error.is_nan() || error > tolerance(),
    )))
}

fn seconds(run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
