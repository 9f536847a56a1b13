//! Random problems in random layouts, against Golden and bit for bit.

use amla::{Backend, ProblemShape};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::calls::{MEDIUM, SMALL, decoded};
use crate::common::{Case, modes, normal};
use crate::layouts::{Layout, ORDERS, check_layout};

#[derive(Clone, Debug)]
struct Recipe {
    shape: ProblemShape,
    seed: u64,
    separate: bool,
    causal: bool,
    /// Lengths in parts of 255 of `s_k`.
    lens: Option<Vec<u8>>,
    /// Times one over the root of `d_qk`.
    scale: f32,
    layout: Layout,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let dims = prop_oneof![3 => Just(SMALL), 1 => Just(MEDIUM)];
    let counts = (0..=3_usize, 1..=4_usize, 0..=260_usize, 1..=20_usize);
    let layout = (0..6_usize, any::<bool>(), [0..20_usize, 0..20, 0..20]);
    let lens = proptest::option::of(proptest::collection::vec(any::<u8>(), 3));
    let flags = (any::<bool>(), any::<bool>());
    (
        counts,
        dims,
        lens,
        flags,
        any::<u64>(),
        -1.5_f32..1.5,
        layout,
    )
        .prop_map(
            |((b, s_q, s_k, h_q), (d_qk, d_v), lens, (separate, causal), seed, scale, layout)| {
                Recipe {
                    shape: ProblemShape {
                        b,
                        s_q,
                        s_k,
                        h_q,
                        h_kv: 1,
                        d_qk,
                        d_v,
                    },
                    seed,
                    separate,
                    causal,
                    lens,
                    scale,
                    layout: Layout {
                        rows: ORDERS[layout.0],
                        keys: if layout.1 { [0, 1] } else { [1, 0] },
                        padding: layout.2,
                    },
                }
            },
        )
}

impl Recipe {
    fn case(&self) -> Case {
        let ProblemShape {
            b,
            s_q,
            s_k,
            h_q,
            h_kv: _,
            d_qk,
            d_v,
        } = self.shape;
        let data = |i, n| normal(self.seed.wrapping_add(i), 1.0, n);
        Case {
            shape: self.shape,
            q: data(0, b * s_q * h_q * d_qk),
            kv: data(1, b * s_k * d_qk),
            v: self.separate.then(|| data(2, b * s_k * d_v)),
            lens: self.lens.as_ref().map(|lens| {
                let len = |&part: &u8| i32::try_from(usize::from(part) * s_k / 255).unwrap();
                lens[..b].iter().map(len).collect()
            }),
            causal: self.causal,
            scale: self.scale / (d_qk as f32).sqrt(),
        }
    }
}

pub fn any_problem(backend: Backend) {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_250_930),
        ..Config::with_cases(40)
    });
    let check = |recipe: Recipe| {
        let case = recipe.case();
        case.check(backend);
        let options = modes(backend)[recipe.seed as usize % 4];
        let want = decoded(&case.problem(), &options);
        check_layout(&case, &options, recipe.layout, &want);
        Ok(())
    };
    if let Err(error) = runner.run(&recipe(), check) {
        panic!("{error}");
    }
}
