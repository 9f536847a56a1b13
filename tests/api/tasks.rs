//! Tasks: how a plan cuts a problem into them, and that neither their order nor their threads change
//! a bit of the results.

use std::thread;

use amla::tile::{GROUP_ROWS, PANEL_ROWS, PANELS};
use amla::{
    Argument, Backend, BackendId, Data, Error, IndexList, Indices, Options, Plan, Problem,
    ProblemShape, SharedOutput, Sparse, Split, TailMask, TensorRef, combine, run_tasks,
};
use half::bf16;

use crate::calls::{Bits, MEDIUM, SMALL, combined, decoded, dense};
use crate::common::{self, Case, modes, normal, run_unseen, used_workspace, workspace};

/// A fixed shuffle of `0..n`.
fn shuffled(n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..n).rev() {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

/// With as many tasks as there can be.
fn finest(problem: &Problem) -> Plan {
    Plan::for_threads(problem, 1 << 20).unwrap()
}

/// Runs the tasks in that order, dealt to threads in turn, and combines them.
fn in_order(problem: &Problem, options: &Options, order: &[usize], threads: usize) -> Bits {
    let plan = finest(problem);
    assert_eq!(order.len(), plan.tasks());
    dense(problem.shape, |output| {
        let mut partials = vec![f32::NAN; plan.partials_len()];
        let memories = partials.chunks_mut(plan.partial_len()).map(Some);
        let mut memories: Vec<_> = memories.collect();
        let mut hands: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
        for (i, &task) in order.iter().enumerate() {
            let partial = memories.get_mut(task).and_then(Option::take);
            hands[i % threads].push((task, partial.unwrap_or_default()));
        }
        let (plan, output) = (&plan, &SharedOutput::from(output));
        thread::scope(|scope| {
            for hand in hands {
                scope.spawn(move || {
                    let mut workspace = workspace();
                    for (task, partial) in hand {
                        let tasks = task..task + 1;
                        run_tasks(
                            problem,
                            options,
                            plan,
                            tasks,
                            &mut workspace,
                            partial,
                            output,
                        )
                        .unwrap();
                    }
                });
            }
        });
        let partials = &partials;
        thread::scope(|scope| {
            for i in 0..threads {
                let start = |i| plan.merges() * i / threads;
                scope.spawn(move || {
                    combine(problem, plan, start(i)..start(i + 1), partials, output).unwrap();
                });
            }
        });
        Ok(())
    })
}

/// One thread attends few rows of several KV heads in turn, block by block; a task has those of one. Over several blocks and KV
/// splits, with keys in any order of memory, with keys that some rows don't see, and with values that aren't finite.
pub fn kv_heads_in_turn(backend: Backend) {
    const D_QK: usize = 96;
    const D_V: usize = 64;
    for (h_kv, group, s_q, s_k) in [
        (70, 1, 1, 530),
        (5, 2, 2, 4200),
        (9, 8, 1, 4100),
        (3, 20, 1, 300),
    ] {
        let shape = ProblemShape {
            b: 1,
            s_q,
            s_k,
            h_q: h_kv * group,
            h_kv,
            d_qk: D_QK,
            d_v: D_V,
        };
        let q = normal(1, 1.0, s_q * h_kv * group * D_QK);
        let kv = normal(2, 1.0, s_k * h_kv * D_QK);
        let v = normal(3, 1.0, s_k * h_kv * D_V);
        let mut bad = v.clone();
        bad[((s_k - 1) * h_kv + 1) * D_V + 3] = bf16::INFINITY;
        let latent = Problem {
            causal: true,
            ..Problem::dense(shape, &q, &kv, 0.3)
        };
        let values = |v, strides| {
            let data = Data::Bf16(v);
            Some(TensorRef { data, strides })
        };
        let token_major = Problem {
            v: values(&v, [0, h_kv * D_V, D_V]),
            ..latent
        };
        let mut head_major = Problem {
            v: values(&bad, [0, D_V, s_k * D_V]),
            window: Some(s_k / 2),
            ..latent
        };
        head_major.kv.strides = [0, D_QK, s_k * D_QK];
        let not_finite = Problem {
            v: values(&bad, [0, h_kv * D_V, D_V]),
            ..latent
        };
        // Each head has other keys, the last one none in the end.
        let indices: Vec<i32> = (0..h_kv * s_k)
            .map(|i| match (i / s_k, i % s_k) {
                (head, key) if head + 1 == h_kv && key > s_k / 3 => -1,
                (head, key) => i32::try_from((key * 7 + head) % s_k).unwrap(),
            })
            .collect();
        let sparse = Problem {
            causal: false,
            sparse: Some(Sparse {
                indices: Indices {
                    indices: IndexList::I32(&indices),
                    strides: [0, 0, s_k],
                    topk: s_k,
                    topk_length: None,
                    topk_length_strides: [0; 2],
                },
                extra: None,
            }),
            ..token_major
        };
        for problem in [latent, token_major, head_major, not_finite, sparse] {
            for options in modes(backend) {
                let order = shuffled(finest(&problem).tasks());
                let want = in_order(&problem, &options, &order, 2);
                assert!(
                    decoded(&problem, &options) == want,
                    "{shape:?}, {options:?}"
                );
                assert!(
                    combined(&problem, &options) == want,
                    "{shape:?}, {options:?}"
                );
            }
        }
    }
}

/// A partial result has memory for the largest group; a request's last group may have 2 rows.
pub fn two_rows_beside_full_groups(backend: Backend) {
    // 2 and 6 beyond three groups of 256. Four requests of four groups are tasks enough for none to be cut.
    for (dims, s_q, heads) in [(SMALL, 10, 77), (MEDIUM, 10, 77), (MEDIUM, 9, 86)] {
        for bad in [None, Some(bf16::INFINITY), Some(bf16::NAN)] {
            let mut case = Case::new(4, s_q, 40, heads, dims);
            if let Some(bad) = bad {
                case.value_in_key(0, 20)[3] = bad;
            }
            for options in modes(backend) {
                let problem = case.problem();
                assert!(decoded(&problem, &options) == combined(&problem, &options));
            }
        }
    }
}

/// Tasks of one panel, of two and of three, and full groups on one thread.
pub fn panels_alone_and_in_groups(backend: Backend) {
    // Requests, heads, panels of the largest task.
    for (dims, b, heads, panels) in [
        ((576, 512), 1, 128, 1),
        (SMALL, 1, 100, 1),
        (SMALL, 1, 200, 1),
        (SMALL, 4, 384, 2),
        (SMALL, 16, 130, 3),
    ] {
        for bad in [None, Some(bf16::INFINITY), Some(bf16::NAN)] {
            let mut case = Case::new(b, 1, 300 / b, heads, dims);
            if let Some(bad) = bad {
                case.value_in_key(0, 10)[3] = bad;
            }
            for options in modes(backend) {
                let problem = case.problem();
                let rows = Plan::new(&problem).unwrap().partial_len() / (dims.1 + 3);
                assert_eq!(rows.div_ceil(PANEL_ROWS), panels.min(PANELS));
                assert!(
                    decoded(&problem, &options) == combined(&problem, &options),
                    "{heads} heads, {bad:?}, {options:?}"
                );
            }
        }
    }
}

/// Values that aren't finite, with panels that see all keys beside panels that don't: each panel's own mask decides
/// whether a strip takes the scalar path.
pub fn panels_that_see_less_alone_and_in_groups(backend: Backend) {
    for (s_q, heads) in [(4 * PANEL_ROWS, 1), (5, PANEL_ROWS - 7)] {
        for bad in [bf16::INFINITY, bf16::NAN] {
            let mut case = Case::new(1, s_q, 300.max(s_q), heads, SMALL);
            case.causal = true;
            case.value_in_key(0, 0)[3] = bad;
            for options in modes(backend) {
                let problem = case.problem();
                assert!(
                    decoded(&problem, &options) == combined(&problem, &options),
                    "{s_q} x {heads}, {bad:?}, {options:?}"
                );
            }
        }
    }
}

/// A task that runs alone doesn't read the next one's keys; the same task within a call does.
pub fn keys_behind_a_task_do_not_matter(backend: Backend) {
    const KEYS: usize = 2304;
    let first = Split::ByLength.ranges(KEYS).nth(1).unwrap().start;
    // The next task's first key: it is hidden, or its score is minus infinity.
    let mut words = vec![u64::MAX; (KEYS - first).div_ceil(64)];
    words[0] = !1;
    let mask = TailMask {
        words: &words,
        tail: KEYS - first,
    };
    for h_q in [1, 4, 5, 8, 20] {
        for (bad, tail_mask) in [(bf16::NAN, Some(mask)), (bf16::INFINITY, None)] {
            let mut case = Case::new(1, 1, KEYS, h_q, SMALL);
            case.key(0, first)[3] = bad;
            for h in 0..h_q {
                case.q_row(0, 0, h)[3] = bf16::NEG_ONE;
            }
            let problem = Problem {
                tail_mask,
                ..case.problem()
            };
            for options in modes(backend) {
                assert!(decoded(&problem, &options) == combined(&problem, &options));
            }
        }
    }
}

/// Where full groups would be fewer than 16 tasks, halves or quarters of them are tasks.
#[test]
fn under_16_tasks_are_cut_finer() {
    let tasks = |b, s_q, s_k, h_q| {
        let (q, kv) = (vec![bf16::ZERO; 64], vec![bf16::ZERO; 64]);
        let mut problem = Problem::dense(
            ProblemShape {
                b,
                s_q,
                s_k,
                h_q,
                h_kv: 1,
                d_qk: 64,
                d_v: 64,
            },
            &q,
            &kv,
            1.0,
        );
        (problem.q.strides, problem.kv.strides) = ([0; 3], [0; 3]);
        let plan = Plan::new(&problem).unwrap();
        assert_eq!(Plan::from_words(plan.to_words()), Some(plan));
        // No result takes more room than its rows.
        let room = plan.partial_len() / (64 + 3);
        let rows = (s_q * h_q).min(room.div_ceil(PANEL_ROWS) * PANEL_ROWS);
        let padded = if s_q * h_q <= 16 {
            rows
        } else {
            rows.next_multiple_of(16)
        };
        assert_eq!(room, padded.clamp(1, GROUP_ROWS));
        (
            plan.tasks(),
            plan.partial_tasks(),
            room.div_ceil(PANEL_ROWS),
        )
    };
    let rows = |panels: usize| panels * PANEL_ROWS;
    if PANELS < 4 {
        // A group is a panel.
        assert_eq!(tasks(1, 1, 4096, rows(4)), (8, 8, 1));
        return;
    }
    // Two KV splits, or all keys where there are rows enough.
    assert_eq!(tasks(1, 1, 4096, rows(2)), (4, 4, 1));
    assert_eq!(tasks(1, 2, 4096, rows(2)), (8, 8, 1));
    assert_eq!(tasks(4, 1, 4096, rows(2)), (16, 16, 1));
    assert_eq!(tasks(4, 2, 4096, rows(2)), (16, 16, 2));
    assert_eq!(tasks(8, 2, 4096, rows(2)), (16, 16, 4));
    assert_eq!(tasks(8, 1, 4096, rows(2)), (16, 16, 2));
    // Rows of the last panel; groups of four panels, of three and of less than one.
    assert_eq!(tasks(1, 1, 100, rows(2) + 1), (3, 0, 1));
    assert_eq!(tasks(1, 1, 100, rows(4)), (4, 0, 1));
    assert_eq!(tasks(4, 1, 100, rows(6)), (16, 0, 2));
    assert_eq!(tasks(8, 1, 100, rows(6) - 1), (16, 0, 3));
    assert_eq!(tasks(1, 1, 100, 1), (1, 0, 1));
    assert_eq!(tasks(16, 1, 100, 1), (16, 0, 1));
    // A long prompt has no partial results.
    assert_eq!(tasks(1, 512, 16_384, rows(2)), (256, 0, 4));
}

/// No plan for less than some sizes has more partial results than the bound says.
#[test]
fn partial_results_are_bounded() {
    let row = [bf16::ZERO; 64];
    let mut reached = 0;
    for (b, s_q, group, h_kv, s_k) in [
        (1, 1, 1, 1, 70_000),
        (2, 3, 5, 2, 9000),
        (1, 1, 128, 1, 20_000),
        (3, 2, 130, 1, 5000),
        (1, 5, 77, 2, 3000),
        (2, 9, 16, 1, 4096),
    ] {
        let shape = |b, s_q, s_k| ProblemShape {
            b,
            s_q,
            s_k,
            h_q: group * h_kv,
            h_kv,
            d_qk: 64,
            d_v: 64,
        };
        for split in [Split::ByLength, Split::Every(32), Split::Every(1024)] {
            let bound = Plan::bound(&shape(b, s_q, s_k), split).unwrap();
            for (b, s_q, s_k, threads) in (1..=b).flat_map(|b| {
                let lengths = [1, s_k / 3, s_k - 1, s_k];
                let of = move |s_q| lengths.map(move |s_k| (b, s_q, s_k));
                let sizes = (1..=s_q).flat_map(of);
                sizes.flat_map(|(b, s_q, s_k)| [2, 16, 1 << 20].map(|t| (b, s_q, s_k, t)))
            }) {
                let mut problem = Problem::dense(shape(b, s_q, s_k), &row, &row, 1.0);
                (problem.q.strides, problem.kv.strides) = ([0; 3], [0; 3]);
                problem.split = split;
                let plan = Plan::for_threads(&problem, threads).unwrap();
                assert!(plan.partials_len() <= bound, "{:?}", problem.shape);
                reached += usize::from(plan.partials_len() == bound && bound > 0);
            }
        }
    }
    assert!(reached > 20, "{reached}");
}

pub fn tasks_in_any_order(backend: Backend) {
    let one_cache = |b, s_q, s_k, h_q| {
        let mut case = Case::new(1, s_q, s_k, h_q, (64, 64));
        case.shape.b = b;
        case.q = normal(5, 1.0, b * s_q * h_q * 64);
        case.causal = true;
        case
    };
    let mut cases = Vec::new();
    // Splits of one request.
    for (s_k, splits) in [
        (2047, 1),
        (2048, 2),
        (8191, 2),
        (8192, 4),
        (16_383, 4),
        (16_384, 8),
    ] {
        cases.push((one_cache(1, 2, s_k, 3), splits));
    }
    // A ragged batch, where each request has its own.
    let mut ragged = one_cache(7, 2, 17_001, 2);
    ragged.lens = Some(vec![0, 1, 2047, 2048, 5000, 17_001, 33]);
    cases.push((ragged, 1 + 1 + 1 + 2 + 2 + 8 + 1));
    // Several row groups.
    let mut groups = one_cache(2, 3, 2100, 129);
    groups.lens = Some(vec![2100, 40]);
    cases.push((groups, (3_usize * 129).div_ceil(PANEL_ROWS) * (2 + 1)));
    for (i, (case, tasks)) in cases.iter().enumerate() {
        let mut problem = case.problem();
        problem.kv.strides[0] = 0;
        let plan = finest(&problem);
        assert_eq!(plan.tasks(), *tasks, "{:?}", case.shape);
        let forward: Vec<usize> = (0..*tasks).collect();
        let reverse: Vec<usize> = (0..*tasks).rev().collect();
        for options in [0, 1 + i % 3].map(|mode| modes(backend)[mode]) {
            let want = decoded(&problem, &options);
            let context = format!("{:?}, {options:?}", case.shape);
            assert!(
                in_order(&problem, &options, &reverse, 1) == want,
                "{context}"
            );
            if options == modes(backend)[0] {
                assert!(
                    in_order(&problem, &options, &forward, 1) == want,
                    "{context}"
                );
                assert!(
                    in_order(&problem, &options, &forward, 5) == want,
                    "{context}"
                );
            }
            assert!(
                in_order(&problem, &options, &shuffled(*tasks), 3) == want,
                "{context}"
            );
        }
    }
}

/// Ranges of a chosen length: as many tasks, and the same bits from one thread or several, in any order.
pub fn chosen_splits(backend: Backend) {
    for (s_q, h_q) in [(1, 1), (1, 16), (2, 70)] {
        let mut case = Case::new(2, s_q, 4000, h_q, SMALL);
        case.lens = Some(vec![4000, 130]);
        case.causal = true;
        let golden = case.golden();
        for every in [32, 96, 320, 1024] {
            let problem = Problem {
                split: Split::Every(every),
                ..case.problem()
            };
            let plan = finest(&problem);
            let groups = (s_q * h_q).div_ceil(PANEL_ROWS);
            let tasks = groups * (4000_usize.div_ceil(every) + 130_usize.div_ceil(every));
            assert_eq!(plan.tasks(), tasks);
            assert_eq!(Plan::from_words(plan.to_words()), Some(plan));
            for options in modes(backend) {
                let want = decoded(&problem, &options);
                let order = shuffled(plan.tasks());
                assert!(in_order(&problem, &options, &order, 3) == want, "{every}");
                let got: Vec<f32> = want.0.iter().map(|&bits| f32::from_bits(bits)).collect();
                let error = common::frobenius(&got, &golden.0);
                assert!(error < 6e-3, "{every}, {options:?}: {error}");
            }
        }
    }
}

#[test]
fn splits_of_other_lengths_are_refused() {
    let case = Case::new(1, 1, 100, 1, SMALL);
    for value in [0, 1, 31, 33, usize::MAX] {
        let problem = Problem {
            split: Split::Every(value),
            ..case.problem()
        };
        let error = Plan::new(&problem).unwrap_err();
        let want = Error::NotMultiple {
            argument: Argument::SplitKeys,
            value,
            of: Split::MULTIPLE,
        };
        assert_eq!(error, want);
    }
    // A plan for others is noticed.
    let [by_length, every] = [Split::ByLength, Split::Every(64)].map(|split| Problem {
        split,
        ..case.problem()
    });
    let plan = Plan::new(&every).unwrap();
    let mut partials = vec![0.0; plan.partials_len()];
    let error = used_workspace(|workspace| {
        run_unseen(
            &by_length,
            &Options::default(),
            &plan,
            0..1,
            workspace,
            &mut partials,
        )
    });
    let want = Error::PlanMismatch {
        argument: Argument::SplitKeys,
        planned: Some(64),
        given: None,
    };
    assert_eq!(error, Err(want));
}

/// Tiles have sixteen rows: up to four rows take another kernel.
#[test]
fn amx_leaves_four_rows_to_dots() {
    let [Some(amx), Some(dots)] = [BackendId::Amx, BackendId::Avx512Bf16].map(common::backend)
    else {
        return;
    };
    for (h_q, same) in [(1, true), (4, true), (5, false), (257, false)] {
        let case = Case::new(1, 1, 1031, h_q, MEDIUM);
        for (tiles, dots) in modes(amx).iter().zip(&modes(dots)) {
            let got = decoded(&case.problem(), tiles);
            let want = decoded(&case.problem(), dots);
            assert_eq!(got == want, same, "{h_q}");
            // A last row alone, in tasks as in one call.
            assert_eq!(combined(&case.problem(), tiles), got, "{h_q}");
        }
    }
}
