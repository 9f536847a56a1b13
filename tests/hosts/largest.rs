//! Largest scores: of rows in every kernel, of keys that a reference needn't move for, and of special values.

use amla::{Backend, Elements, Options, Output, Plan, Problem, ProblemShape, decode, reference};
use half::bf16;

use crate::common::{close, modes, run_plan, used_workspace, workspace};
use crate::host::{Host, PATTERN, PLAIN, bits, decoded, output, paged, rows};
use crate::sizes::{MLA, SMALL};

/// Groups that go through fused kernels, and panels; keys in one split, and in several.
pub fn largest_scores(backend: Backend) {
    let heads = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 64, 65, 130];
    for (i, heads) in heads.into_iter().enumerate() {
        let requests = [(1, 1), (1, 193), (2, 0), (1, 2060)];
        // Each scale with every mode, each number of heads with three.
        for (j, scale) in [1.0, -0.3, 0.0].into_iter().enumerate() {
            let mut host = Host::new([heads, 1], SMALL, &requests).window(2050);
            host.scale *= scale;
            let options = modes(backend)[(i + j) % 4];
            check_max_logits(&host.laid(paged(16)).problem(), &options);
        }
    }
    let host = Host::new([16, 1], MLA, &[(1, 500)]);
    check_max_logits(&host.laid(PLAIN).problem(), &modes(backend)[0]);
}

/// Scores rise a little from key to key, then once, and fall: the running reference seldom moves.
pub fn slowly_rising_scores(backend: Backend) {
    for heads in [1, 5, 8, 12, 70] {
        let mut host = Host::new([heads, 1], SMALL, &[(1, 700)]);
        host.scale = 1.0;
        host.queries(0).fill(bf16::ZERO);
        for (h, query) in host.queries(0).chunks_mut(SMALL.0).enumerate() {
            query[0] = bf16::from_f32(1.0 + h as f32 / 128.0);
        }
        for k in 0..700 {
            host.key(0, k)[0] = bf16::from_f32(match k {
                600.. => 1.0,
                _ => -2.0 + (k / 16) as f32 / 64.0,
            });
        }
        let laid = host.laid(PLAIN);
        for options in modes(backend) {
            check_max_logits(&laid.problem(), &options);
        }
    }
}

/// Infinite scores count, NaN doesn't; and what else is written doesn't depend on largest scores.
pub fn special_scores(backend: Backend) {
    let specials = [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY];
    for (heads, special) in [1, 4, 8, 20]
        .into_iter()
        .flat_map(|heads| specials.map(|special| (heads, special)))
    {
        // Values apart, so that keys alone are special.
        let mut host = Host::new([heads, 1], SMALL, &[(1, 300)]).separate_v();
        for query in host.queries(0).chunks_mut(SMALL.0) {
            query[0] = bf16::ONE;
        }
        for k in [0, 100, 299] {
            host.key(0, k)[0] = special;
        }
        let laid = host.laid(PLAIN);
        let problem = laid.problem();
        for options in modes(backend) {
            check_max_logits(&problem, &options);
            let want = decoded(&problem, &options);
            let rows = rows(&problem);
            let (mut o, mut lse) = (vec![0.0; rows * SMALL.1], vec![0.0; rows]);
            let mut max_logits = vec![0.0; rows];
            let output = Output {
                max_logits: Some(&mut max_logits),
                ..output(&problem, Elements::F32(&mut o), &mut lse)
            };
            decode(&problem, &options, &mut workspace(), output).unwrap();
            let bits = |xs: &[f32]| xs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!((bits(&o), bits(&lse)) == want, "{options:?}");
        }
    }
}

/// The largest scores alone, of the whole and of tasks, bit for bit alike and near Golden's.
#[track_caller]
pub fn check_max_logits(problem: &Problem, options: &Options) {
    let (rows, ProblemShape { s_q, h_q, .. }) = (rows(problem), problem.shape);
    // Of a request, or of all where they are ragged: dense, as Golden has them.
    let tokens = problem.q_indptr.map_or(s_q, |_| rows / h_q);
    let mut want = vec![0.0; rows];
    reference::golden_max_logits(problem, &mut want).unwrap();
    let mut o = vec![PATTERN; rows * problem.shape.d_v];
    let plan = Plan::new(problem).unwrap();
    let mut of = |at_once| {
        let mut max_logits = vec![PATTERN; rows];
        let output = Output {
            lse: None,
            lse_strides: [h_q * tokens, tokens, 1],
            max_logits: Some(&mut max_logits),
            ..output(problem, Elements::F32(&mut o), &mut [])
        };
        match at_once {
            true => used_workspace(|memory| decode(problem, options, memory, output)).unwrap(),
            false => run_plan(problem, options, &plan, 0..plan.tasks(), output).unwrap(),
        }
        max_logits
    };
    let got = of(true);
    assert_eq!(bits(&got), bits(&of(false)), "{options:?}");
    for (row, (&got, &want)) in got.iter().zip(&want).enumerate() {
        let limit = 4e-7 * want.abs().max(8.0);
        assert!(
            close(got, want, limit),
            "max_logits[{row}] = {got}, want {want}, {options:?}"
        );
    }
}
