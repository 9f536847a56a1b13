//! The kernel against Golden: one suite, stamped onto every backend.

#[macro_use]
mod common;

use amla::Split;
use amla::{
    BLOCK_KEYS, Backend, BackendId, Precision, Problem, Rescale, SUPPORTED_DIMS, reference,
};
use common::precision::{Stage, check};
use common::{Case, backends, frobenius, modes, stores_p_in_fp32, wanted};
use half::bf16;

const MLA: (usize, usize) = (576, 512);
const SMALL: (usize, usize) = (128, 128);

suites![
    dims,
    other_dims,
    key_counts,
    head_counts,
    query_positions,
    more_rows_than_a_group,
    separate_values,
    ragged_batch,
    causal,
    causal_hides_blocks,
    no_keys,
    zero_columns,
    negative_and_zero_scales,
    subnormal_scales_of_large_scores,
    jump_of_more_than_2_to_30,
    large_scores,
    moving_maxima,
    first_block_of_minus_infinity,
    only_minus_infinity,
    constant_maximum_does_not_drift,
    ties_with_hidden_keys,
    rows_that_see_nothing_of_a_split,
    masked_by_the_smallest_number,
    sinks_beside_nan,
    sinks_where_scores_are_minus_infinity,
    non_finite_q,
    non_finite_k,
    non_finite_v,
    non_finite_v_in_a_hidden_key,
    non_finite_request_stays_alone,
    special_values_at_full_width,
    poisoned_tail,
    unaligned_slices,
    subnormals,
    frobenius_errors,
    largest,
];

#[test]
fn says_which_backends_run() {
    use std::io::Write;
    let run: Vec<_> = backends().map(|backend| backend.id().name()).collect();
    let _ = writeln!(
        std::io::stderr(),
        "backends tested: {}; the default is {}",
        run.join(", "),
        Backend::detect().id().name()
    );
    assert_eq!(run.contains(&"portable"), wanted(BackendId::Portable));
}

fn dims(backend: Backend) {
    for &dims in SUPPORTED_DIMS {
        for h_q in [1, 2, 3, 5, 8, 9] {
            Case::new(1, 1, 300, h_q, dims).check(backend);
        }
        Case::new(1, 1, 700, 70, dims).check(backend);
    }
}

/// Widths that are no multiple of a line, or of a strip; and values wider than keys.
fn other_dims(backend: Backend) {
    let dims = [
        (8, 8),
        (40, 24),
        (72, 40),
        (104, 96),
        (136, 136),
        (192, 192),
        (200, 72),
        (320, 320),
        (568, 504),
    ];
    for (i, dims) in dims.into_iter().enumerate() {
        for h_q in [1, 4, 6, 16, 20, 70] {
            let case = Case::new(2, 1, 200 + i, h_q, dims);
            case.check(backend);
            case.separate_v().check(backend);
        }
    }
    for dims in [(64, 128), (32, 512), (88, 448), (576, 320)] {
        for h_q in [1, 5, 16, 70] {
            Case::new(1, 1, 300, h_q, dims).separate_v().check(backend);
        }
    }
}

fn key_counts(backend: Backend) {
    let around = |n: usize| [n - 1, n, n + 1];
    let tiles = [6, 8, 12, 24, 64, 96, BLOCK_KEYS, 2 * BLOCK_KEYS, 512, 1024].map(around);
    for s_k in [0, 1, 2, 3].into_iter().chain(tiles.into_iter().flatten()) {
        // Of a fused group, and of a panel.
        for h_q in [7, 20] {
            Case::new(1, 1, s_k, h_q, SMALL).check(backend);
        }
    }
    for s_k in [0, 1, 2, 511, 512, 513] {
        Case::new(1, 1, s_k, 3, MLA).check(backend);
    }
}

fn head_counts(backend: Backend) {
    for h_q in [
        1, 2, 3, 5, 6, 7, 15, 16, 17, 32, 33, 48, 49, 63, 64, 65, 126, 127, 128,
    ] {
        Case::new(1, 1, 300, h_q, SMALL).check(backend);
    }
    for h_q in [1, 3, 16, 63, 64, 126, 128] {
        Case::new(1, 1, 250, h_q, MLA).check(backend);
    }
}

fn query_positions(backend: Backend) {
    for s_q in [1, 2, 3, 5] {
        Case::new(2, s_q, 200, 20, SMALL).check(backend);
    }
}

fn more_rows_than_a_group(backend: Backend) {
    let mut case = Case::new(1, 3, 2100, 129, SMALL);
    case.causal = true;
    case.check(backend);
}

fn separate_values(backend: Backend) {
    Case::new(2, 1, 300, 10, SMALL).separate_v().check(backend);
    Case::new(1, 2, 100, 4, MLA).separate_v().check(backend);
}

fn ragged_batch(backend: Backend) {
    let mut case = Case::new(6, 1, 2300, 9, SMALL);
    case.lens = Some(vec![0, 1, 2300, 192, 193, 2048]);
    case.check(backend);
}

fn causal(backend: Backend) {
    for s_k in [2, 3, 191, 192, 193, 194, 400] {
        let mut case = Case::new(1, 3, s_k, 30, SMALL);
        case.causal = true;
        case.check(backend);
    }
}

fn causal_hides_blocks(backend: Backend) {
    // Row 0 sees 5 keys, and the first 195 rows see nothing of the second block.
    let mut case = Case::new(1, 260, 264, 1, SMALL);
    case.causal = true;
    case.check(backend);
    // The first 20 positions see no key at all.
    let mut case = Case::new(1, 120, 100, 1, SMALL);
    case.causal = true;
    case.check(backend);
    let (o, lse) = case.run(&modes(backend)[0]);
    assert!(o[..20 * 128].iter().all(|&x| x == 0.0));
    assert!(lse[..20].iter().all(|&x| x == f32::INFINITY));
    assert!(lse[20..].iter().all(|x| x.is_finite()));
}

fn no_keys(backend: Backend) {
    for case in [Case::new(2, 2, 0, 3, MLA), {
        let mut case = Case::new(2, 2, 300, 3, MLA);
        case.lens = Some(vec![0, 0]);
        case
    }] {
        for options in modes(backend) {
            let (o, lse) = case.run(&options);
            assert!(o.iter().all(|&x| x == 0.0));
            assert!(lse.iter().all(|&x| x == f32::INFINITY));
        }
    }
}

fn zero_columns(backend: Backend) {
    let mut case = Case::new(1, 2, 700, 10, SMALL).separate_v();
    // Rising scores, so that O is rescaled often.
    rising(&mut case, 20.0);
    for k in 0..700 {
        case.value(0, k)[10..20].fill(bf16::ZERO);
        case.value(0, k)[20..30].fill(bf16::NEG_ZERO);
    }
    case.check(backend);
    for options in modes(backend) {
        let (o, _) = case.run(&options);
        for row in o.chunks(128) {
            assert!(row[10..30].iter().all(|&x| x == 0.0), "{options:?}");
        }
    }
}

fn negative_and_zero_scales(backend: Backend) {
    let mut case = Case::new(1, 1, 500, 10, SMALL);
    case.scale = -case.scale;
    case.check(backend);
    case.scale = 0.0;
    case.check(backend);
    case.scale = 1e-40;
    case.check(backend);
}

/// Then a score at the reference, which is above all of these, is beyond FP32: differences to it once were, too.
fn subnormal_scales_of_large_scores(backend: Backend) {
    for heads in [1, 5, 16, 70] {
        let mut case = Case::new(1, 1, 40, heads, SMALL);
        for (row, q) in case.q.chunks_mut(128).enumerate() {
            let size = if row % 2 == 0 { -1e32 } else { 1e32 };
            q.iter_mut()
                .for_each(|x| *x = bf16::from_f32(size * x.to_f32().abs()));
        }
        case.kv
            .iter_mut()
            .for_each(|x| *x = bf16::from_f32(x.to_f32().abs()));
        for scale in [1e-42, 1e-39, 1e-37, -1e-42] {
            case.scale = scale;
            case.check(backend);
        }
    }
}

/// Makes the score of key `k` `step * f(k)` in log2 units, for every row, with
/// small noise left in the other features.
fn steer(case: &mut Case, score: impl Fn(usize) -> f32) {
    let d = case.shape.d_qk;
    for row in case.q.chunks_mut(d) {
        row.iter_mut()
            .for_each(|x| *x = bf16::from_f32(x.to_f32() / 8.0));
        row[0] = bf16::ONE;
    }
    let unit = case.scale * std::f32::consts::LOG2_E;
    for (k, key) in case.kv.chunks_mut(d).enumerate() {
        key[0] = bf16::from_f32(score(k % case.shape.s_k) / unit);
    }
}

fn rising(case: &mut Case, step: f32) {
    steer(case, |k| step * (k / 100) as f32);
}

fn jump_of_more_than_2_to_30(backend: Backend) {
    for (before, after) in [(0.0, 3e9), (-3e9, 3e9), (3e9, -3e9), (-3e9, 0.0)] {
        let mut case = Case::new(1, 1, 400, 5, SMALL).separate_v();
        steer(&mut case, |k| if k < 250 { before } else { after });
        // At this size FP32 scores hold nothing else.
        case.q
            .chunks_mut(128)
            .for_each(|row| row[1..].fill(bf16::ZERO));
        case.check(backend);
    }
}

fn large_scores(backend: Backend) {
    // One feature carries the score, so that FP32 accumulates it exactly.
    for magnitude in [1e4_f32, -1e4] {
        let mut case = Case::new(1, 1, 800, 20, SMALL).separate_v();
        steer(&mut case, |k| magnitude + 64.0 * (k % 3) as f32);
        case.q
            .chunks_mut(128)
            .for_each(|row| row[1..].fill(bf16::ZERO));
        case.check(backend);
    }
}

fn moving_maxima(backend: Backend) {
    let patterns: [fn(usize) -> f32; 4] = [
        |k| 0.9 * (k / 50) as f32,
        |k| -0.9 * (k / 50) as f32,
        |k| if k / 192 % 2 == 0 { 6.3 } else { -6.3 },
        |k| 40.0 * ((k / 192 % 3) as f32),
    ];
    for pattern in patterns {
        let mut case = Case::new(1, 2, 1000, 10, SMALL).separate_v();
        steer(&mut case, pattern);
        case.check(backend);
    }
}

fn first_block_of_minus_infinity(backend: Backend) {
    let mut case = Case::new(1, 2, 500, 10, SMALL).separate_v();
    case.q.chunks_mut(128).for_each(|row| row[3] = bf16::ONE);
    for k in 0..BLOCK_KEYS + 10 {
        case.key(0, k)[3] = bf16::NEG_INFINITY;
    }
    case.check(backend);
    case.scale = -case.scale;
    case.q
        .chunks_mut(128)
        .for_each(|row| row[3] = bf16::NEG_ONE);
    case.check(backend);
}

fn only_minus_infinity(backend: Backend) {
    let mut case = Case::new(1, 1, 300, 4, SMALL).separate_v();
    case.q_row(0, 0, 2)[7] = bf16::ONE;
    for h in [0, 1, 3] {
        case.q_row(0, 0, h)[7] = bf16::from_f32(0.5);
    }
    for k in 0..300 {
        case.key(0, k)[7] = bf16::NEG_INFINITY;
    }
    case.check(backend);
}

fn constant_maximum_does_not_drift(backend: Backend) {
    // The same 8192 keys over and over: the same O, and a maximum that no key
    // after the first of them moves.
    let mut case = Case::new(1, 1, 8192, 2, SMALL).separate_v();
    let (want, _) = case.golden();
    let short = modes(backend).map(|options| frobenius(&case.run(&options).0, &want));
    case.shape.s_k *= 16;
    case.kv = case.kv.repeat(16);
    case.v = case.v.map(|v| v.repeat(16));
    let (want, want_lse) = case.golden();
    for (options, short) in modes(backend).into_iter().zip(short) {
        let (o, lse) = case.run(&options);
        let long = frobenius(&o, &want);
        // Where P isn't rounded, what is left are the sums' own roundings in FP32.
        let bound = 1.5
            * if stores_p_in_fp32(backend) {
                short.max(2e-6)
            } else {
                short
            };
        assert!(long <= bound, "{long:e}, {short:e}, {options:?}");
        for (got, want) in lse.iter().zip(&want_lse) {
            assert!((f64::from(*got) - want).abs() < 2e-6);
        }
    }
}

fn ties_with_hidden_keys(backend: Backend) {
    // All keys equal, the hidden one's value unlike the others'.
    let mut case = Case::new(1, 2, 100, 3, SMALL).separate_v();
    case.causal = true;
    for k in 0..100 {
        case.key(0, k).fill(bf16::ONE);
        case.value(0, k).fill(bf16::ONE);
    }
    case.value(0, 99).fill(bf16::from_f32(1000.0));
    case.check(backend);
    // A query of zeros sees all keys alike.
    let mut case = Case::new(1, 4, 40, 2, SMALL);
    case.causal = true;
    case.q_row(0, 1, 0).fill(bf16::ZERO);
    case.check(backend);
    // A hidden key repeats the one that weighs most.
    let mut case = Case::new(1, 3, 400, 5, SMALL);
    case.causal = true;
    for k in [150, 398, 399] {
        let key = case.q_row(0, 0, 2).to_vec();
        case.key(0, k).copy_from_slice(&key);
    }
    case.check(backend);
}

fn rows_that_see_nothing_of_a_split(backend: Backend) {
    // Causal: the first rows end before the second split begins.
    let mut case = Case::new(1, 1050, 2100, 1, (64, 64));
    assert!(Split::ByLength.ranges(2100).nth(1).unwrap().start > 2100 - 1050 + 1);
    case.causal = true;
    case.check(backend);
    // Scores of -inf all through the first split, or the second.
    for keys in [0..1100, 1000..2100] {
        let mut case = Case::new(1, 1, 2100, 3, SMALL).separate_v();
        case.q.chunks_mut(128).for_each(|row| row[3] = bf16::ONE);
        for k in keys {
            case.key(0, k)[3] = bf16::NEG_INFINITY;
        }
        case.check(backend);
    }
}

/// A NaN score is no sink's to hide.
fn sinks_beside_nan(backend: Backend) {
    let mut case = Case::new(1, 1, 4, 2, SMALL);
    case.key(0, 1)[3] = bf16::NAN;
    let problem = Problem {
        sink: Some(&[0.5, f32::INFINITY]),
        ..case.problem()
    };
    let (mut want, mut lse) = (vec![0.0; 2 * 128], vec![0.0; 2]);
    reference::golden(&problem, &mut want, &mut lse).unwrap();
    assert!(want.iter().chain(&lse).all(|x| x.is_nan()));
    for options in modes(backend) {
        let (o, lse) = common::run(&problem, case.sizes(), &options);
        assert!(o.iter().chain(&lse).all(|x| x.is_nan()));
    }
}

/// The sink has all the weight; 0 times what isn't finite is NaN all the same.
fn sinks_where_scores_are_minus_infinity(backend: Backend) {
    let mut case = Case::new(1, 1, 3, 3, SMALL).separate_v();
    case.q.fill(bf16::ONE);
    case.kv.fill(bf16::NEG_INFINITY);
    case.value(0, 1)[7] = bf16::INFINITY;
    let problem = Problem {
        sink: Some(&[0.5, f32::NEG_INFINITY, f32::NAN]),
        ..case.problem()
    };
    let (mut want, mut lse) = (vec![0.0; 3 * 128], vec![0.0; 3]);
    reference::golden(&problem, &mut want, &mut lse).unwrap();
    assert!(
        want[..128]
            .iter()
            .enumerate()
            .all(|(i, x)| *x == 0.0 || i == 7 && x.is_nan())
    );
    assert!(want[128..].iter().all(|x| x.is_nan()));
    for options in modes(backend) {
        let (o, lse) = common::run(&problem, case.sizes(), &options);
        for (got, want) in o.iter().zip(&want) {
            assert!(
                f64::from(*got) == *want || got.is_nan() && want.is_nan(),
                "{got} {want}"
            );
        }
        assert!(lse.iter().all(|x| x.is_nan()));
    }
}

fn masked_by_the_smallest_number(backend: Backend) {
    // Hosts mask with the smallest finite number, which leaves FP32 when scaled.
    for keys in [0..200, 300..600, 0..1100, 1900..2100] {
        let mut case = Case::new(1, 2, 2100, 3, SMALL).separate_v();
        case.scale = 1.0;
        for row in case.q.chunks_mut(128) {
            row.iter_mut()
                .for_each(|x| *x = bf16::from_f32(x.to_f32() / 8.0));
            row[3] = bf16::ONE;
        }
        for k in 0..2100 {
            let masked = keys.contains(&k);
            case.key(0, k)[3] = if masked { bf16::MIN } else { bf16::ZERO };
        }
        case.check(backend);
    }
}

fn non_finite_q(backend: Backend) {
    for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        for (h_q, h) in [
            (20, 7),
            (2, 0),
            (2, 1),
            (5, 0),
            (8, 0),
            (8, 3),
            (40, 0),
            (70, 66),
        ] {
            let sound = Case::new(2, 2, 300, h_q, SMALL);
            let mut case = sound.clone();
            case.q_row(1, 1, h)[100] = bad;
            case.check(backend);
            let row = (2 + 1) * h_q + h;
            for options in modes(backend) {
                let [(o, _), (want, _)] = [&case, &sound].map(|case| case.run(&options));
                for (i, (o, want)) in o.chunks(128).zip(want.chunks(128)).enumerate() {
                    // Other rows don't notice.
                    assert_eq!(o.iter().all(|x| x.is_finite()), i != row);
                    assert!(i == row || o == want, "{options:?} {h_q} {h}");
                }
            }
        }
    }
}

fn non_finite_k(backend: Backend) {
    for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        for (k, h_q) in [
            (0, 20),
            (191, 20),
            (192, 20),
            (299, 20),
            (0, 1),
            (191, 2),
            (299, 1),
            (191, 5),
            (299, 8),
        ] {
            let mut case = Case::new(1, 2, 300, h_q, SMALL).separate_v();
            case.key(0, k)[5] = bad;
            case.check(backend);
            // As a latent row the same element is also a value.
            case.v = None;
            case.check(backend);
        }
    }
}

fn non_finite_v(backend: Backend) {
    for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        for (k, h_q) in [
            (0, 20),
            (191, 20),
            (192, 20),
            (299, 20),
            (0, 3),
            (191, 4),
            (299, 1),
            (0, 6),
            (191, 9),
            (299, 16),
            (100, 7),
            (100, 16),
            // Two panels.
            (191, 100),
            (200, 128),
        ] {
            let mut case = Case::new(1, 1, 300, h_q, SMALL).separate_v();
            case.value(0, k)[5] = bad;
            case.check(backend);
        }
    }
}

fn non_finite_v_in_a_hidden_key(backend: Backend) {
    for bad in [bf16::NAN, bf16::INFINITY] {
        for h_q in [20, 1, 30] {
            let mut case = Case::new(1, 3, 300, h_q, SMALL).separate_v();
            case.causal = true;
            case.value(0, 299)[5] = bad;
            case.value(0, 298)[6] = bad;
            case.check(backend);
            let (o, _) = case.run(&modes(backend)[0]);
            assert!(o[..h_q * 128].iter().all(|x| x.is_finite()));
        }
    }
}

fn non_finite_request_stays_alone(backend: Backend) {
    for dims in [SMALL, MLA] {
        for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
            let mut case = Case::new(3, 1, 300, 4, dims);
            let clean = case.run(&modes(backend)[0]);
            for k in 0..300 {
                case.key(1, k).fill(bad);
            }
            case.check(backend);
            let (o, lse) = case.run(&modes(backend)[0]);
            for request in [0, 2] {
                let o_range = request * 4 * dims.1..(request + 1) * 4 * dims.1;
                assert_eq!(o[o_range.clone()], clean.0[o_range]);
                let range = request * 4..(request + 1) * 4;
                assert_eq!(lse[range.clone()], clean.1[range]);
            }
        }
    }
}

/// The widths that the kernel is for, with everything at once: a latent row that
/// is key and value, several splits, a mask, zero columns and special values.
fn special_values_at_full_width(backend: Backend) {
    for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        for feature in [0, 300, 511, 512, 575] {
            let mut case = Case::new(2, 2, 400, 3, MLA);
            case.causal = true;
            for k in 0..400 {
                case.key(0, k)[100..130].fill(bf16::ZERO);
                case.key(1, k)[100..130].fill(bf16::NEG_ZERO);
            }
            case.key(0, 399)[feature] = bad;
            case.q_row(1, 0, 2)[feature] = bad;
            case.check(backend);
            let (o, _) = case.run(&modes(backend)[0]);
            // Position 0 of request 0 doesn't see key 399.
            assert!(o[..3 * 512].iter().all(|x| x.is_finite()));
            assert!(o[100..130].iter().all(|&x| x == 0.0));
        }
    }
}

fn poisoned_tail(backend: Backend) {
    // Of a fused group, and of a panel.
    let lens = [0, 1, 100, 192, 193, 299];
    for (len, h_q) in lens.into_iter().flat_map(|len| [(len, 5), (len, 20)]) {
        let mut case = Case::new(1, 2, 300, h_q, SMALL).separate_v();
        case.lens = Some(vec![len]);
        let clean = case.run(&modes(backend)[0]);
        for k in usize::try_from(len).unwrap()..300 {
            case.key(0, k).fill(bf16::NAN);
            case.value(0, k).fill(bf16::NAN);
        }
        assert_eq!(case.run(&modes(backend)[0]), clean);
        case.check(backend);
    }
}

fn unaligned_slices(backend: Backend) {
    use amla::{Elements, Options, Output, Problem, decode};
    let case = Case::new(1, 1, 200, 5, SMALL);
    let (want, _) = case.run(&modes(backend)[0]);
    for offset in [1, 2, 3, 31] {
        let shift = |x: &[bf16]| [vec![bf16::NAN; offset], x.to_vec()].concat();
        let (q, kv) = (shift(&case.q), shift(&case.kv));
        let problem = Problem::dense(case.shape, &q[offset..], &kv[offset..], case.scale);
        let mut o = vec![0.0; want.len() + offset];
        let mut lse = vec![0.0; 5 + offset];
        let o_elements = Elements::F32(&mut o[offset..]);
        let output = Output::dense(case.shape, o_elements, &mut lse[offset..]);
        let options = Options {
            backend,
            ..Options::default()
        };
        decode(&problem, &options, &mut common::workspace(), output).unwrap();
        assert_eq!(o[offset..], want);
        assert!(o[..offset].iter().all(|&x| x == 0.0));
    }
}

fn subnormals(backend: Backend) {
    // The dot instructions read them as zeros; neither may disturb the rest.
    for (h_q, dims) in [(4, SMALL), (17, SMALL), (3, MLA), (6, MLA)] {
        let mut case = Case::new(1, 1, 300, h_q, dims).separate_v();
        for k in 0..300 {
            case.value(0, k)[0] = bf16::from_bits(0x0001);
            case.value(0, k)[1] = bf16::from_bits(0x807f);
            case.key(0, k)[2] = bf16::from_bits(0x0040);
        }
        case.check(backend);
    }
}

/// Whole calls against the table of bounds, few rows and panels, one split and several.
fn frobenius_errors(backend: Backend) {
    let cases = [
        Case::new(1, 1, 300, 1, MLA),
        Case::new(1, 1, 700, 70, MLA),
        Case::new(2, 2, 2100, 5, SMALL),
        Case::new(1, 1, 193, 64, SMALL).separate_v(),
    ];
    let golden = cases.each_ref().map(|case| case.golden().0);
    for options in modes(backend) {
        let errors = cases.iter().zip(&golden).map(|(case, golden)| {
            let (o, _) = case.run(&options);
            frobenius(&o, golden)
        });
        let mode = match (options.rescale, options.precision) {
            (Rescale::Exact, Precision::Bf16) => "exact bf16",
            (Rescale::Exact, Precision::Bf16x2) => "exact bf16x2",
            (Rescale::Compensated, Precision::Bf16) => "compensated bf16",
            (Rescale::Compensated, Precision::Bf16x2) => "compensated bf16x2",
        };
        let worst = errors.fold(0.0, f64::max);
        check(Stage::Decode, mode, backend.id().name(), worst);
    }
}

/// One key has nearly all of a row's weight: what rounding its P took is there, in O and in the sum,
/// also where values aren't finite.
fn largest(backend: Backend) {
    for finite in [true, false] {
        let mut case = Case::new(1, 1, 300, 20, SMALL).separate_v();
        steer(&mut case, |k| if k == 150 { 20.0 } else { 0.0 });
        if !finite {
            case.value(0, 7)[5] = bf16::INFINITY;
            case.value(0, 150)[6] = bf16::NEG_INFINITY;
        }
        let (want, _) = case.golden();
        for options in modes(backend) {
            if options.rescale == Rescale::Compensated {
                continue; // Its largest P is exact.
            }
            let (got, _) = case.run(&options);
            let both = got
                .iter()
                .map(|&got| f64::from(got))
                .zip(want.iter().copied());
            let infinite: Vec<_> = both.filter(|(_, want)| !want.is_finite()).collect();
            assert_eq!(infinite.len(), if finite { 0 } else { 40 });
            assert!(infinite.iter().all(|(got, want)| got == want));
            // The other keys' share is 3e-4, of which BF16 loses less than a 256th.
            let error = frobenius(&got, &want);
            assert!(error < 2e-6, "{error:e}, {options:?}");
        }
    }
}
