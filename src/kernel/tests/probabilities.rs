//! V1.

use super::*;
use crate::bits::{HEADROOM, bf16_round, bf16_to_f32, difference};
use crate::kernel::scalar::half_of;

#[test]
fn probabilities_and_sums() {
    // Q and keys are the same numbers: one key carries each row.
    let operands = Operands::new([5, 5, 7]);
    // Row r sees the first 7 r % 190 keys, and none that 5 divides.
    let mut mask = [0; BLOCK_KEYS];
    for (k, mask) in mask.iter_mut().enumerate() {
        let rows = (0..PANEL_ROWS).filter(|r| k < 7 * r % 190 && k % 5 != 0);
        *mask = rows.fold(0, |mask, r| mask | 1 << r);
    }
    for (rows, len) in shapes() {
        for mask in [None, Some(&mask)] {
            for precision in [Precision::Bf16, Precision::Bf16x2] {
                for backend in backends() {
                    let got = backend.with(Run {
                        mask,
                        precision,
                        ..operands.run(rows, len)
                    });
                    // What P is rounded to, on top of the exponential.
                    let rounding = match (stores_p_unrounded(backend), precision) {
                        (true, _) => 0.0,
                        (false, Precision::Bf16) => 2_f64.powi(-8),
                        (false, Precision::Bf16x2) => 2_f64.powi(-17),
                    };
                    check_softmax(&got, rows, mask, rounding);
                }
            }
        }
    }
}

/// Exact mode against its definition, in f64.
#[expect(clippy::needless_range_loop, reason = "r and k index several arrays")]
fn check_softmax(got: &Stages, rows: usize, mask: Option<&Mask>, rounding: f64) {
    let (tiles, len) = (&got.tiles.tiles, got.p.len());
    let (s, state) = (&tiles.l0c[0].0, &tiles.ub[0]);
    for r in 0..rows {
        let sees = |k: usize| mask.is_none_or(|mask| mask[k] >> r & 1 == 1);
        let score = |k: usize| f64::from(s[k][r]) * f64::from(0.3_f32);
        let seen = (0..len).filter(|&k| sees(k));
        let max = seen.map(score).fold(f64::NEG_INFINITY, f64::max);
        let reference = max.ceil() + f64::from(HEADROOM);
        assert_eq!(f64::from(state.reference[r]), reference);
        let (mut sum, mut rounded_sum) = (0.0, 0.0);
        for k in 0..len {
            let got = f64::from(got.p[k][r]);
            if !sees(k) {
                assert_eq!(got, 0.0);
                continue;
            }
            let t = score(k) - reference;
            let want = t.exp2();
            // The rounding of P, the polynomial, and the rounding of t.
            let bound = rounding + 2e-7 + t.abs() * 2_f64.powi(-23);
            assert!((got - want).abs() <= bound * want, "{got} {want}");
            sum += want;
            rounded_sum += got;
        }
        assert!((f64::from(state.sum[r]) - sum).abs() <= 5e-7 * sum);
        assert!((f64::from(state.rounded_sum[r]) - rounded_sum).abs() <= 5e-7 * rounded_sum);
    }
}

type Scores = [[f32; PANEL_ROWS]; BLOCK_KEYS];

/// V1 of a panel's first blocks.
struct Blocks<'a> {
    scores: &'a [Scores],
    /// Keys of each.
    keys: usize,
    precision: Precision,
}

/// What V1 of a block wrote.
struct Block {
    p: Vec<[f32; PANEL_ROWS]>,
    residuals: Residuals,
    increment: [i32; PANEL_ROWS],
    state: RowState,
}

impl Visitor for Blocks<'_> {
    type Output = Vec<Block>;

    fn visit<K: Kernel>(self, kernel: K) -> Self::Output {
        let mut workspace = workspace();
        let Tiles { l0a, l0c, ub, .. } = &mut workspace.tiles;
        let (p, s, state) = (&mut l0a[0], &mut l0c[0], &mut ub[0]);
        *state = RowState::START;
        let block = |scores: &Scores| {
            s.0 = *scores;
            // As C1 leaves them.
            s.1 = core::array::from_fn(|r| {
                let keys = scores[..self.keys].iter();
                keys.fold(f32::NEG_INFINITY, |max, key| max.max(key[r]))
            });
            let call = Softmax {
                rows: PANEL_ROWS,
                keys: self.keys,
                scale: 1.0,
                mask: None,
                rescale: Rescale::Exact,
                precision: self.precision,
                prefetch: &[],
            };
            kernel.softmax(&call, s, p, state);
            let prob = |k| core::array::from_fn(|r| kernel.prob(p, self.precision, k, r));
            Block {
                p: (0..self.keys).map(prob).collect(),
                residuals: p.residuals,
                increment: p.increment,
                state: *state,
            }
        };
        self.scores.iter().map(block).collect()
    }
}

#[test]
fn the_largest_p_is_exact_where_it_counts() {
    // A peak that carries each row, at another key; then nothing that counts.
    let mut scores = [
        [[-3.1; PANEL_ROWS]; BLOCK_KEYS],
        [[-9.3; PANEL_ROWS]; BLOCK_KEYS],
    ];
    for r in 0..PANEL_ROWS {
        scores[0][3 * r % BLOCK_KEYS][r] = 7.7;
        scores[1][5 * r % BLOCK_KEYS][r] = -8.7;
    }
    for precision in [Precision::Bf16, Precision::Bf16x2] {
        for backend in backends().filter(|&backend| !stores_p_unrounded(backend)) {
            let blocks = backend.with(Blocks {
                scores: &scores,
                keys: BLOCK_KEYS,
                precision,
            });
            let mut sum = [0.0_f64; PANEL_ROWS];
            for Block { p, state, .. } in &blocks {
                for r in 0..PANEL_ROWS {
                    sum[r] += p.iter().map(|p| f64::from(p[r])).sum::<f64>();
                    let rounded_sum = f64::from(state.rounded_sum[r]);
                    // Equal terms round alike.
                    assert!(
                        (rounded_sum - sum[r]).abs() <= 2e-5 * sum[r],
                        "{backend:?} {precision:?} {r}: {rounded_sum} {}",
                        sum[r]
                    );
                }
            }
            if precision == Precision::Bf16 {
                let is_exact = |block: usize, factor: usize| {
                    let Block { p, state, .. } = &blocks[block];
                    (0..PANEL_ROWS).all(|r| {
                        let key = factor * r % BLOCK_KEYS;
                        let want = (scores[block][key][r] - state.reference[r]).exp2();
                        (p[key][r] - want).abs() < 2e-5 * want
                    })
                };
                assert!(is_exact(0, 3), "{backend:?}");
                assert_eq!(is_exact(1, 5), !has_residuals(backend), "{backend:?}");
            }
        }
    }
}

#[test]
#[expect(clippy::needless_range_loop, reason = "r indexes several arrays")]
fn the_last_of_the_largest_has_the_residual() {
    // By rows: where the largest is, and where once more behind it.
    let largest = |r: usize, len: usize| [5 * r % len, (5 * r + 3 * (r % 7)) % len];
    let lens = [1, 2, 3, 4, 7, 12, 65, BLOCK_KEYS - 1, BLOCK_KEYS];
    for len in lens.into_iter().filter(|&len| len <= BLOCK_KEYS) {
        // Scores behind the last key count for nothing.
        let mut scores = [[9.9; PANEL_ROWS]; BLOCK_KEYS];
        for (k, scores) in scores[..len].iter_mut().enumerate() {
            for (r, score) in scores.iter_mut().enumerate() {
                let largest = largest(r, len).contains(&k);
                *score = if largest { 7.7 } else { -8.0 - (k % 5) as f32 };
            }
        }
        for backend in backends().filter(|&backend| !stores_p_unrounded(backend)) {
            let blocks = backend.with(Blocks {
                scores: &[scores],
                keys: len,
                precision: Precision::Bf16,
            });
            let Block { p, residuals, .. } = &blocks[0];
            for r in 0..PANEL_ROWS {
                let last = largest(r, len).into_iter().max().unwrap_or(0);
                let at = format!("{backend:?} {len} {r}");
                let want = (7.7_f32 - 11.0).exp2();
                assert!((p[last][r] - want).abs() < 2e-5 * want, "{at}");
                if !has_residuals(backend) {
                    // Any other as large is exact as well.
                    for key in largest(r, len) {
                        assert_eq!(p[key][r], p[last][r], "{at}");
                    }
                    assert_eq!(residuals.p[r], 0, "{at}");
                    continue;
                }
                assert_eq!(residuals.pair[r] as usize, last / 2, "{at}");
                let residual = bf16_to_f32(half_of(residuals.p[r], last));
                let want = want - bf16_to_f32(bf16_round(want));
                assert!((residual - want).abs() < 0.005 * want.abs(), "{at}");
                assert_eq!(half_of(residuals.p[r], last + 1), 0, "{at}");
            }
        }
    }
}

#[test]
fn nan_is_never_the_largest() {
    for (sign, len) in [(1.0, BLOCK_KEYS), (-1.0, BLOCK_KEYS), (1.0, 9), (-1.0, 9)] {
        // With bits that would be a key's number.
        let nan = f32::from_bits(0x7fc0_7f80).copysign(sign);
        let mut scores = [[-3.0; PANEL_ROWS]; BLOCK_KEYS];
        for r in 0..PANEL_ROWS {
            scores[11 * r % len][r] = 2.0;
            // Every other row has one.
            scores[7 * r % len][r] = if r % 2 == 0 { nan } else { -3.5 };
        }
        for backend in backends() {
            let blocks = backend.with(Blocks {
                scores: &[scores],
                keys: len,
                precision: Precision::Bf16,
            });
            let Block {
                p,
                residuals,
                state,
                ..
            } = &blocks[0];
            for r in 0..PANEL_ROWS {
                let at = format!("{backend:?} {len} {r}");
                assert_eq!(p[7 * r % len][r].is_nan(), r % 2 == 0, "{at}");
                assert_eq!(state.sum[r].is_nan(), r % 2 == 0, "{at}");
                // C2 reads that key's value.
                if has_residuals(backend) {
                    assert!(residuals.pair[r] as usize <= (len - 1) / 2, "{at}");
                }
            }
        }
    }
}

#[test]
fn increments_follow_the_reference() {
    // Row r's maximum rises by r / 4 from block to block, or falls.
    let maximum = |block: usize, r: usize| {
        let step = (r as f32 - 20.0) / 4.0;
        block as f32 * step
    };
    let scores: [Scores; 3] = core::array::from_fn(|block| {
        let key = |k| core::array::from_fn(|r| maximum(block, r) - (k % 7) as f32);
        core::array::from_fn(key)
    });
    for backend in backends() {
        let blocks = backend.with(Blocks {
            scores: &scores,
            keys: BLOCK_KEYS,
            precision: Precision::Bf16,
        });
        for (i, pair) in blocks.windows(2).enumerate() {
            let [before, after] = [&pair[0], &pair[1]];
            for r in 0..PANEL_ROWS {
                let [old, new] = [before, after].map(|block| block.state.reference[r]);
                let max = maximum(i + 1, r).ceil();
                let want = if max > old { max + HEADROOM } else { old };
                assert_eq!(new, want, "{backend:?} {i} {r}");
                let increment = Increment::pow2(difference(old, new)).bits();
                assert_eq!(after.increment[r], increment, "{backend:?} {i} {r}");
            }
        }
    }
}
