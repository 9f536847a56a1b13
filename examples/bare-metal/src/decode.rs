//! The same decode on every machine: 16 heads at MLA's widths over 100 keys, compared with
//! the library's FP64 reference on the machine itself.

use core::fmt;

use amla::{
    BackendId, Elements, Options, Output, Plan, Precision, Problem, ProblemShape, Workspace,
    decode, reference,
};
use half::bf16;

const H_Q: usize = 16;
const S_K: usize = 100;
const D_QK: usize = 576;
const D_V: usize = 512;

/// `|O - Golden| / |Golden|` at most, by Frobenius' norm: what FP32 sums may be off by; and each
/// probability as a pair of BF16, where a backend multiplies those.
const fn bar(backend: BackendId) -> f64 {
    match backend {
        BackendId::Avx512Bf16 | BackendId::NeonBf16 => 1.0 / (1 << 17) as f64,
        _ => 2e-6,
    }
}
/// `|lse - Golden's|` at most.
const LSE_BAR: f64 = 2e-6;

/// BF16 numbers in memory that can't be written: magnitudes from 2^-4 to 2, either sign.
const fn numbers<const N: usize>(seed: u32) -> [bf16; N] {
    let mut out = [bf16::ZERO; N];
    let mut state = seed;
    let mut i = 0;
    while i < N {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [_, _, low, high] = state.to_le_bytes();
        // Two bits of the exponent and seven of the fraction are random.
        let exponent = 123 + (high as u16 >> 1 & 3) + (high as u16 >> 3 & 1);
        out[i] = bf16::from_bits((high as u16 >> 7) << 15 | exponent << 7 | low as u16 & 0x7f);
        i += 1;
    }
    out
}

static Q: [bf16; H_Q * D_QK] = numbers(1);
static KV: [bf16; S_K * D_QK] = numbers(2);

/// The memory that a decode writes.
pub struct Memory {
    workspace: Workspace,
    o: [f32; H_Q * D_V],
    lse: [f32; H_Q],
    /// A row of the reference's.
    golden: [f64; D_V],
}

impl Memory {
    /// Zeroed, for a `static`.
    pub const fn new() -> Self {
        Self {
            workspace: Workspace::new(),
            o: [0.0; _],
            lse: [0.0; _],
            golden: [0.0; _],
        }
    }
}

/// Decodes, prints how far the result is off, and tells whether that is near enough.
///
/// # Errors
/// If `console` can't be written to, or the library refuses the problem, which it prints.
pub fn run(memory: &mut Memory, console: &mut impl fmt::Write) -> Result<bool, fmt::Error> {
    match attend(memory) {
        Ok(report) => {
            report.print(console)?;
            Ok(report.error <= bar(report.backend) && report.lse_error <= LSE_BAR)
        }
        Err(error) => {
            writeln!(console, "{error}")?;
            Err(fmt::Error)
        }
    }
}

struct Report {
    backend: BackendId,
    tasks: usize,
    error: f64,
    lse_error: f64,
    /// A hash of Golden's bits: the same on all machines.
    golden: u64,
    /// A hash of O's.
    o: u64,
}

impl Report {
    fn print(&self, console: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            backend,
            tasks,
            error,
            lse_error,
            golden,
            o,
        } = self;
        let workspace = size_of::<Workspace>();
        let (bar, backend) = (bar(*backend), backend.name());
        writeln!(
            console,
            "{H_Q} heads, {S_K} keys, widths {D_QK} and {D_V}; backend {backend}, {tasks} task, \
             workspace of {workspace} bytes"
        )?;
        writeln!(console, "golden {golden:016x}, O {o:016x}")?;
        writeln!(
            console,
            "relative error of O {error:.2e} (bar {bar:.1e}), error of lse {lse_error:.2e} (bar \
             {LSE_BAR:e})"
        )
    }
}

fn attend(memory: &mut Memory) -> Result<Report, amla::Error> {
    let shape = ProblemShape {
        b: 1,
        s_q: 1,
        s_k: S_K,
        h_q: H_Q,
        h_kv: 1,
        d_qk: D_QK,
        d_v: D_V,
    };
    let problem = Problem::dense(shape, &Q, &KV, 0.0625);
    // Some backends multiply BF16; the others store probabilities unrounded in either precision.
    let options = Options {
        precision: Precision::Bf16x2,
        ..Options::default()
    };
    let plan = Plan::new(&problem)?;

    let Memory {
        workspace,
        o,
        lse,
        golden,
    } = memory;
    let output = Output::dense(shape, Elements::F32(o), lse);
    decode(&problem, &options, workspace, output)?;

    let (mut off, mut norm, mut lse_error) = (0.0, 0.0, 0.0_f64);
    let (mut golden_hash, mut o_hash) = (OFFSET_BASIS, OFFSET_BASIS);
    for (h, (o, &lse)) in o.chunks(D_V).zip(&*lse).enumerate() {
        let golden_lse = reference::golden_row(&problem, [0, 0, h], golden)?;
        for (&o, &golden) in o.iter().zip(&*golden) {
            let difference = f64::from(o) - golden;
            off += difference * difference;
            norm += golden * golden;
            golden_hash = hash(golden_hash, golden.to_bits());
            o_hash = hash(o_hash, o.to_bits().into());
        }
        // Not by `f64::max`, which prefers anything to NaN.
        let difference = (f64::from(lse) - golden_lse).abs();
        if difference.is_nan() || difference > lse_error {
            lse_error = difference;
        }
        golden_hash = hash(golden_hash, golden_lse.to_bits());
        o_hash = hash(o_hash, lse.to_bits().into());
    }
    Ok(Report {
        backend: options.backend.id(),
        tasks: plan.tasks(),
        error: libm::sqrt(off / norm),
        lse_error,
        golden: golden_hash,
        o: o_hash,
    })
}

/// Where [`hash`] starts.
const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, word by word.
const fn hash(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01b3)
}
