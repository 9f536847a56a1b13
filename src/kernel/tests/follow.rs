//! References that vectors move, against [`advance`] row by row.

use super::*;
use crate::kernel::advance::{Advance, Bases, advance};
use crate::kernel::zmm::Zmm;

const INFINITY: f32 = f32::INFINITY;

/// All of these with all of those, row by row.
fn cases() -> impl Iterator<Item = [f32; 3]> {
    let references = [
        -INFINITY,
        -8e6,
        -300.0,
        -127.0,
        -2.0,
        0.0,
        3.0,
        100.0,
        4_194_303.0,
        5e6,
    ];
    let scores = [
        -INFINITY,
        -1e38,
        -5e6,
        -250.5,
        -2.0,
        -1.25,
        0.0,
        1e-3,
        2.0,
        2.5,
        99.0,
        4_194_302.5,
        1e9,
        3e38,
        INFINITY,
    ];
    let sums = [
        0.0,
        1e-40,
        f32::MIN_POSITIVE,
        1e-37,
        0.7,
        3e5,
        1e38,
        INFINITY,
        f32::NAN,
    ];
    references.into_iter().flat_map(move |reference| {
        scores
            .into_iter()
            .flat_map(move |score| sums.map(|sum| [reference, score, sum]))
    })
}

#[test]
fn vectors_move_as_rows_do() {
    let Some(zmm) = Zmm::new() else {
        std::println!("not run: this processor has no AVX-512");
        return;
    };
    let cases: Vec<_> = cases().collect();
    for rescale in [Rescale::Exact, Rescale::Compensated] {
        for scale in [1.0, 0.37, -2.0] {
            for rows in [1, 15, 16, 17, 47, PANEL_ROWS]
                .into_iter()
                .filter(|&rows| rows <= PANEL_ROWS)
            {
                for cases in cases.chunks(rows) {
                    let call = Softmax {
                        rows: cases.len(),
                        keys: 2,
                        scale,
                        mask: None,
                        rescale,
                        precision: Precision::Bf16,
                        prefetch: &[],
                    };
                    let mut state = RowState::START;
                    let mut scores = [7.5; PANEL_ROWS];
                    let mut increment = [77; PANEL_ROWS];
                    for (r, &[reference, score, sum]) in cases.iter().enumerate() {
                        state.reference[r] = reference;
                        state.sum[r] = sum;
                        state.rounded_sum[r] = 0.75 * sum;
                        scores[r] = score;
                    }
                    let (mut want_state, mut want) = (state, Bases::NONE);
                    let mut want_increment = increment;
                    advance(
                        &call,
                        0..call.rows,
                        &scores,
                        &mut want_state,
                        &mut want_increment,
                        &mut want,
                    );
                    let got = zmm.advance(&call, &scores, &mut state, &mut increment);
                    assert_eq!(increment[..cases.len()], want_increment[..cases.len()]);
                    for (r, case) in cases.iter().enumerate() {
                        let all = |bases: &Bases, state: &RowState| {
                            [
                                bases.max[r],
                                bases.offset[r],
                                state.reference[r],
                                state.sum[r],
                                state.rounded_sum[r],
                                state.c[r],
                            ]
                            .map(f32::to_bits)
                        };
                        assert_eq!(
                            all(&got, &state),
                            all(&want, &want_state),
                            "{rescale:?} {scale} {rows} {r} {case:?}"
                        );
                    }
                }
            }
        }
    }
}
