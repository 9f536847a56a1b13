//! A real attention problem, `examples/data/minilm_l2_512.safetensors`: every backend in every
//! mode, and the references, against the expectations that came with it.

#[macro_use]
mod common;

use amla::{Backend, Precision, Problem, ProblemShape, Rescale, reference};
use common::{Case, frobenius, modes};
use half::bf16;
use safetensors::{Dtype, SafeTensors};

suites![agrees];

/// The file: the problem, expected O, and expected lse in the library's order.
struct Bundled {
    case: Case,
    o: Vec<f64>,
    lse: Vec<f64>,
}

fn load() -> Bundled {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/data/minilm_l2_512.safetensors"
    );
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let shape = ProblemShape {
        b: 1,
        s_q: 2,
        s_k: 512,
        h_q: 12,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
    };
    let data = |name: &str, dtype, dims: &[usize]| {
        let tensor = tensors.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, dims), "{name}");
        tensor.data().to_vec()
    };
    let bf16s = |name, dims: &[usize]| -> Vec<bf16> {
        let data = data(name, Dtype::BF16, dims);
        let pairs = data.as_chunks().0.iter();
        pairs.map(|&bytes| bf16::from_le_bytes(bytes)).collect()
    };
    let f32s = |name, dims: &[usize]| -> Vec<f32> {
        let data = data(name, Dtype::F32, dims);
        let words = data.as_chunks().0.iter();
        words.map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let expected_lse = f32s("expected_lse", &[1, 2, 12]);
    let by_head = (0..12).flat_map(|h| (0..2).map(move |j| j * 12 + h));
    Bundled {
        o: f32s("expected_o", &[1, 2, 12, 512])
            .into_iter()
            .map(f64::from)
            .collect(),
        lse: by_head.map(|i| expected_lse[i].into()).collect(),
        case: Case {
            shape,
            q: bf16s("q", &[1, 2, 12, 576]),
            kv: bf16s("kv", &[1, 512, 576]),
            v: None,
            lens: None,
            causal: false,
            scale: f32s("softmax_scale", &[1])[0],
        },
    }
}

impl Bundled {
    /// Columns of V that hold nothing but zeros.
    fn zero_columns(&self) -> Vec<usize> {
        let ProblemShape { d_qk, d_v, .. } = self.case.shape;
        let zero = |&column: &usize| {
            let mut rows = self.case.kv.chunks(d_qk);
            rows.all(|row| row[column] == bf16::ZERO)
        };
        (0..d_v).filter(zero).collect()
    }

    #[track_caller]
    fn check(&self, o: &[f32], lse: &[f32], limit: f64, what: &str) {
        assert_eq!((o.len(), lse.len()), (self.o.len(), self.lse.len()));
        let error = frobenius(o, &self.o);
        assert!(error <= limit, "{what}: {error:e} > {limit:e}");
        for (i, (&got, want)) in lse.iter().zip(&self.lse).enumerate() {
            let error = (f64::from(got) - want).abs();
            assert!(error <= 1e-5, "{what}: lse[{i}] = {got}, want {want}");
        }
        let zero_columns = self.zero_columns();
        for (row, o) in o.chunks(self.case.shape.d_v).enumerate() {
            for &column in &zero_columns {
                let got = o[column];
                assert!(got == 0.0, "{what}: O[{row}][{column}] = {got}, want 0");
            }
        }
    }
}

/// Relative Frobenius error that each mode may have in FP32.
fn limit(rescale: Rescale, precision: Precision) -> f64 {
    match (rescale, precision) {
        (Rescale::Exact, Precision::Bf16) => 1e-3,
        (Rescale::Exact, Precision::Bf16x2) => 1e-5,
        (Rescale::Compensated, Precision::Bf16) => 2e-3,
        (Rescale::Compensated, Precision::Bf16x2) => 1e-3,
    }
}

#[test]
fn is_what_the_tests_take_it_for() {
    let bundled = load();
    // Heads of 32, hidden size 384, padded.
    assert_eq!(bundled.case.scale, 32_f32.sqrt().recip());
    assert_eq!(bundled.zero_columns(), Vec::from_iter(384..512));
    let finite = |xs: &[f64]| xs.iter().all(|x| x.is_finite());
    assert!(finite(&bundled.o) && finite(&bundled.lse));
}

fn agrees(backend: Backend) {
    let bundled = load();
    for options in modes(backend) {
        let (o, lse) = bundled.case.run(&options);
        let limit = limit(options.rescale, options.precision);
        bundled.check(&o, &lse, limit, &format!("{options:?}"));
    }
}

#[test]
fn golden_agrees() {
    let bundled = load();
    let (o, lse) = bundled.case.golden();
    let f32s = |xs: Vec<f64>| -> Vec<f32> { xs.into_iter().map(|x| x as f32).collect() };
    bundled.check(&f32s(o), &f32s(lse), 1e-6, "golden");
}

type Reference = fn(&Problem, usize, &mut [f32], &mut [f32]) -> Result<(), amla::Error>;

#[test]
fn references_agree() {
    let bundled = load();
    let references: [(&str, Reference, f64); 4] = [
        ("base", reference::base, 2e-3),
        (
            "compensated",
            reference::amla_compensated,
            limit(Rescale::Compensated, Precision::Bf16),
        ),
        (
            "exact",
            |problem, block_n, o, lse| {
                reference::amla_exact(problem, block_n, Precision::Bf16, o, lse)
            },
            limit(Rescale::Exact, Precision::Bf16),
        ),
        (
            "exact pair",
            |problem, block_n, o, lse| {
                reference::amla_exact(problem, block_n, Precision::Bf16x2, o, lse)
            },
            limit(Rescale::Exact, Precision::Bf16x2),
        ),
    ];
    for (name, reference, limit) in references {
        for block_n in [64, 192, 512] {
            let (o, lse) = run(&bundled, reference, block_n);
            bundled.check(&o, &lse, limit, &format!("{name} in blocks of {block_n}"));
        }
    }
}

/// The defect that the total addition mends, on real data: zero columns don't stay zero.
#[test]
fn as_printed_loses_the_zero_columns() {
    let bundled = load();
    let zero_columns = bundled.zero_columns();
    let (o, _) = run(&bundled, reference::amla_as_printed, 192);
    let spoilt = o
        .chunks(512)
        .filter(|row| zero_columns.iter().any(|&column| row[column] != 0.0));
    assert!(spoilt.count() > 0);
}

fn run(bundled: &Bundled, reference: Reference, block_n: usize) -> (Vec<f32>, Vec<f32>) {
    let (o, lse) = bundled.case.sizes();
    let (mut o, mut lse) = (vec![-7.75e33; o], vec![-7.75e33; lse]);
    reference(&bundled.case.problem(), block_n, &mut o, &mut lse).unwrap();
    (o, lse)
}
