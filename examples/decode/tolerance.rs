//! The errors that results may have.

use amla::{BackendId, Inputs, Options, Precision, Rescale};
use amla_examples::problem::{Case, ExpectedIn};

/// Where something was rounded to BF16, which has steps of 2^-8: once costs 2e-3.
const BF16: f64 = 1e-2;
/// Where expected values were rounded to FP16: costs 3e-4.
const F16: f64 = 1e-3;
/// Where all is FP32: errors of real problems are below 3e-6.
const F32: f64 = 1e-4;

/// Parses a tolerance.
pub fn parse(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if (0.0..f64::INFINITY).contains(&x) => Ok(x),
        _ => Err("not a number from 0".to_owned()),
    }
}

/// The default of `--tolerance`.
pub fn usual(options: &Options, case: &Case) -> f64 {
    match case.expected_in {
        _ if rounds_to_bf16(options, case) => BF16,
        ExpectedIn::Bf16 => BF16,
        ExpectedIn::F16 => F16,
        ExpectedIn::F32 => F32,
    }
}

/// Whether the kernel rounds inputs, probabilities or their compensation to BF16.
fn rounds_to_bf16(options: &Options, case: &Case) -> bool {
    let multiplies_bf16 = matches!(
        options.backend.id(),
        BackendId::Avx512Bf16 | BackendId::Amx | BackendId::NeonBf16
    );
    let dtypes = case.dtypes();
    let inputs_are_wider = ["f16", "f32"].iter().any(|&d| dtypes.contains(&Some(d)));
    let one_bf16 = options.precision == Precision::Bf16;
    let rounds = if inputs_are_wider {
        // As given, they are the FP32 backend's.
        options.inputs == Inputs::Bf16
    } else {
        one_bf16
    };
    let compensates = options.rescale == Rescale::Compensated && one_bf16;
    compensates || (multiplies_bf16 && rounds)
}
