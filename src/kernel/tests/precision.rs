//! The largest errors of the stages, over all shapes, against scalar code in f64.

#[path = "../../../tests/common/precision.rs"]
mod table;

use table::{Stage, check};

use super::*;

/// The table is of the default tiles: with small ones sums are shorter, and some exceptions aren't needed.
#[test]
#[cfg_attr(amla_tiles = "small", ignore = "the table is of the default tiles")]
fn stages_are_as_exact_as_the_table_says() {
    // Q and keys are the same numbers: one key carries each row.
    let operands = Operands::new([17, 17, 19]);
    for backend in backends() {
        for (mode, precision) in [("bf16", Precision::Bf16), ("bf16x2", Precision::Bf16x2)] {
            let mut worst = Worst::default();
            for (rows, len) in shapes() {
                let run = Run {
                    precision,
                    ..operands.run(rows, len)
                };
                worst.take(&run, &backend.with(run));
            }
            let name = backend.id().name();
            check(Stage::Scores, mode, name, worst.scores);
            check(Stage::Probabilities, mode, name, worst.probabilities);
            check(Stage::Sums, mode, name, worst.sums);
            check(Stage::Products, mode, name, worst.products);
        }
    }
}

/// The largest errors seen so far, each against exact results of what the stage was given.
#[derive(Default)]
struct Worst {
    scores: f64,
    probabilities: f64,
    sums: f64,
    products: f64,
}

impl Worst {
    fn take(&mut self, run: &Run<'_>, got: &Stages) {
        let (tiles, state) = (&got.tiles.tiles, &got.tiles.tiles.ub[0]);
        let relative = |worst: f64, got: f32, want: f64, scale: f64| {
            worst.max((f64::from(got) - want).abs() / scale)
        };
        for r in 0..run.rows {
            let q = &run.q[r * MAX_D_QK..][..MAX_D_QK];
            let (mut sum, mut rounded_sum) = (0.0, 0.0);
            for k in 0..run.len {
                let key = &run.keys[k * MAX_D_QK..][..MAX_D_QK];
                let score = tiles.l0c[0].0[k][r];
                let products = q.iter().zip(key).map(|(q, k)| q.to_f64() * k.to_f64());
                let (want, scale) = sums(products);
                self.scores = relative(self.scores, score, want, scale);
                let scaled = f64::from(score) * f64::from(run.scale);
                let p = (scaled - f64::from(state.reference[r])).exp2();
                self.probabilities = relative(self.probabilities, got.p[k][r], p, p);
                sum += p;
                rounded_sum += f64::from(got.p[k][r]);
            }
            self.sums = relative(self.sums, state.sum[r], sum, sum);
            self.sums = relative(self.sums, state.rounded_sum[r], rounded_sum, rounded_sum);
            for column in 0..MAX_D_V {
                let products = (0..run.len)
                    .map(|k| f64::from(got.p[k][r]) * run.values[k * MAX_D_V + column].to_f64());
                let (want, scale) = sums(products);
                let o = got.o(column / STRIP, r)[column % STRIP];
                self.products = relative(self.products, o, want, scale);
            }
        }
    }
}

/// Of numbers, and of their magnitudes.
fn sums(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    numbers.fold((0.0, 0.0), |(sum, magnitudes), x| {
        (sum + x, magnitudes + x.abs())
    })
}
