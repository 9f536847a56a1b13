//! What a call through C costs over the same call from Rust: `cargo bench -p amla-ffi`.
//!
//! The shared library is loaded as hosts load it, and both are called in turn, so that what
//! the machine does meanwhile meets both alike. The small call, one key and one head, is nearly
//! nothing but what a call costs.
#![allow(unsafe_code, reason = "the library's functions, by their names")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::time::Instant;

use amla::{Elements, Options, Output, Problem, ProblemShape, Workspace, decode};
use half::bf16;

#[path = "../tests/c/toolchain.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod toolchain;
#[path = "../src/types.rs"]
#[allow(dead_code, reason = "the library uses the rest")]
mod types;

use types::{Call, ErrorDetail, Status, Tensor};

type Run = unsafe extern "C" fn(*const Call, *mut c_void, usize, *mut ErrorDetail) -> Status;

// SAFETY: libc's, of these types.
unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;

/// `amla_run` of the shared library.
fn amla_run() -> Run {
    let path = toolchain::library().join("libamla.so");
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a C string; the library has no code that runs when it is loaded.
    let library = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
    assert!(!library.is_null(), "{path:?} can't be loaded");
    // SAFETY: a loaded library, which stays, and a C string.
    let run = unsafe { dlsym(library, c"amla_run".as_ptr()) };
    assert!(!run.is_null(), "there is no amla_run");
    // SAFETY: the function of this name has this type (`src/run.rs`).
    unsafe { std::mem::transmute::<*mut c_void, Run>(run) }
}

/// Seconds of one of `calls` calls, in rounds of Rust and C in turn, sorted by C's over Rust's.
fn measure(run: Run, s_k: usize, h_q: usize, calls: u32, rounds: usize) -> Vec<(f64, f64)> {
    let shape = ProblemShape {
        b: 1,
        s_q: 1,
        s_k,
        h_q,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
    };
    let data = |n: usize| -> Vec<bf16> {
        let number = |i: usize| bf16::from_f32((i * 7919 % 1000) as f32 / 500.0 - 1.0);
        (0..n).map(number).collect()
    };
    let (q, kv) = (data(h_q * 576), data(s_k * 576));
    let mut workspace: Box<Workspace> = bytemuck::zeroed_box();
    let (mut o, mut lse) = (vec![0.0; h_q * 512], vec![0.0; h_q]);
    let problem = Problem::dense(shape, &q, &kv, 1.0 / 24.0);
    let tensor = |data: &[bf16], rows: usize| Tensor {
        struct_size: u32::try_from(size_of::<Tensor>()).unwrap(),
        dtype: types::AMLA_DTYPE_BF16,
        data: data.as_ptr().cast(),
        len: data.len(),
        strides: [rows * 576, 576 * if rows == s_k { 1 } else { rows }, 576],
        scales: ptr::null(),
        scales_len: 0,
        scale_strides: [0; 3],
        model1_scales: 0,
        model1_scale_stride: 0,
    };
    let (q_tensor, kv_tensor) = (tensor(&q, h_q), tensor(&kv, s_k));
    let output = types::Output {
        struct_size: u32::try_from(size_of::<types::Output>()).unwrap(),
        dtype: types::AMLA_DTYPE_F32,
        o: o.as_mut_ptr().cast(),
        o_len: o.len(),
        o_strides: [h_q * 512, h_q * 512, 512],
        lse: lse.as_mut_ptr(),
        lse_len: lse.len(),
        lse_strides: [h_q, 1, 1],
        lse_base: types::AMLA_LSE_BASE_E,
        lse_empty: types::AMLA_LSE_EMPTY_INFINITY,
        max_logits: ptr::null_mut(),
        max_logits_len: 0,
    };
    // SAFETY: numbers and pointers, of which zeros and null are values.
    let zero: Call = unsafe { std::mem::zeroed() };
    let call = Call {
        struct_size: u32::try_from(size_of::<Call>()).unwrap(),
        b: 1,
        s_q: 1,
        s_k,
        h_q,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
        softmax_scale: 1.0 / 24.0,
        q: &raw const q_tensor,
        kv: &raw const kv_tensor,
        output: &raw const output,
        ..zero
    };
    let memory = (&raw mut *workspace).cast::<c_void>();
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..calls {
            let output = Output::dense(shape, Elements::F32(&mut o), &mut lse);
            let problem = black_box(&problem);
            decode(problem, &Options::default(), &mut workspace, output).unwrap();
        }
        let rust = start.elapsed().as_secs_f64() / f64::from(calls);
        let start = Instant::now();
        for _ in 0..calls {
            // SAFETY: the structs describe the vectors above, which nothing else uses now.
            let status = unsafe {
                run(
                    &raw const call,
                    memory,
                    size_of::<Workspace>(),
                    ptr::null_mut(),
                )
            };
            assert_eq!(status, types::AMLA_OK);
        }
        let c = start.elapsed().as_secs_f64() / f64::from(calls);
        times.push((rust, c));
    }
    times.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    times
}

/// What a busy machine disturbs the least.
fn least(xs: impl Iterator<Item = f64>) -> f64 {
    xs.fold(f64::INFINITY, f64::min)
}

fn main() {
    // `cargo test --benches` runs it too: a round of each is enough there.
    let bench = std::env::args().any(|arg| arg == "--bench");
    let run = amla_run();
    let backend = Options::default().backend.id().name();
    println!("{backend}; the least times, and C over Rust in pairs of rounds: median, quartiles\n");
    println!("s_k    h_q   Rust, us     C, us   C / Rust");
    for (s_k, h_q, calls, rounds) in [(1024, 128, 4, 151), (64, 16, 200, 101), (1, 1, 2000, 101)] {
        let (calls, rounds) = if bench { (calls, rounds) } else { (1, 1) };
        let times = measure(run, s_k, h_q, calls, rounds);
        let ratio =
            |i: usize| times[i * (times.len() - 1) / 4].1 / times[i * (times.len() - 1) / 4].0;
        println!(
            "{s_k:<5} {h_q:>4} {:>10.3} {:>9.3}   {:.4} ({:.4} to {:.4})",
            1e6 * least(times.iter().map(|t| t.0)),
            1e6 * least(times.iter().map(|t| t.1)),
            ratio(2),
            ratio(1),
            ratio(3),
        );
    }
    println!("\nOne key and one head are 2176 FLOP: what that call takes is what calls cost.");
}
