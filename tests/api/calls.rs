//! Calls, and what they write: outputs bit for bit.

use amla::{
    Backend, Elements, Error, Options, Output, Plan, Precision, Problem, ProblemShape, decode,
    reference,
};
use half::bf16;

use crate::common::{run_plan, workspace};

/// Widths of the cheapest cases: d_qk, d_v.
pub const SMALL: (usize, usize) = (128, 128);
/// Widths with a rotary part.
pub const MEDIUM: (usize, usize) = (320, 256);

pub fn default_on(backend: Backend) -> Options {
    Options {
        backend,
        ..Options::default()
    }
}

/// What an output holds before a call: NaNs that no call computes, each another.
pub fn pattern(n: usize) -> Vec<f32> {
    let bits = (0..n).map(|i| 0xffd0_0001 | (i as u32) << 1 & 0xf_ffff);
    bits.map(f32::from_bits).collect()
}

pub fn pattern16(n: usize) -> Vec<bf16> {
    let bits = (0..n).map(|i| 0xffd1 | (i as u16) << 1 & 0xf);
    bits.map(bf16::from_bits).collect()
}

pub fn bits(xs: &[f32]) -> Vec<u32> {
    xs.iter().map(|x| x.to_bits()).collect()
}

pub fn bits16(xs: &[bf16]) -> Vec<u16> {
    xs.iter().map(|x| x.to_bits()).collect()
}

/// O and lse, bit for bit.
pub type Bits = (Vec<u32>, Vec<u32>);

/// Calls with dense FP32 outputs of that shape.
pub fn dense(shape: ProblemShape, call: impl FnOnce(Output) -> Result<(), Error>) -> Bits {
    let rows = shape.b * shape.s_q * shape.h_q;
    let (mut o, mut lse) = (pattern(rows * shape.d_v), pattern(rows));
    call(Output::dense(shape, Elements::F32(&mut o), &mut lse)).unwrap();
    (bits(&o), bits(&lse))
}

pub fn decoded(problem: &Problem, options: &Options) -> Bits {
    dense(problem.shape, |output| {
        decode(problem, options, &mut workspace(), output)
    })
}

/// The same through tasks.
pub fn combined(problem: &Problem, options: &Options) -> Bits {
    // Long tasks, and as many as can be.
    let [long, many] = [1, 1 << 20].map(|threads| {
        let plan = Plan::for_threads(problem, threads).unwrap();
        dense(problem.shape, |output| {
            run_plan(problem, options, &plan, 0..plan.tasks(), output)
        })
    });
    assert!(long == many, "{:?}, {options:?}", problem.shape);
    many
}

pub type Reference = fn(&Problem, usize, &mut [f32], &mut [f32]) -> Result<(), Error>;

pub const REFERENCES: [(&str, Reference); 6] = [
    ("base", reference::base),
    ("amla_as_printed", reference::amla_as_printed),
    ("amla_compensated", reference::amla_compensated),
    ("amla_exact", |problem, block_n, o, lse| {
        reference::amla_exact(problem, block_n, Precision::Bf16, o, lse)
    }),
    ("amla_exact, pair", |problem, block_n, o, lse| {
        reference::amla_exact(problem, block_n, Precision::Bf16x2, o, lse)
    }),
    ("amla_exact_split_max", |problem, block_n, o, lse| {
        reference::amla_exact_split_max(problem, block_n, o, lse)
    }),
];
