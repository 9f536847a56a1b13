//! What calls refuse of hosts' inputs. Refused calls write nothing.

use amla::{
    Argument, Data, Elements, Error, Options, Output, Pages, Plan, Problem, TailMask, TensorRef,
    combine, decode, reference, run_tasks,
};

use crate::common::{backends, modes, run_unseen, workspace};
use crate::host::{
    Host, Keys, Layout, PATTERN, PLAIN, decoded, int, output, paged, plan_mismatch, rows, same,
    untouched,
};
use crate::sizes::{MHA, SMALL};

/// Every way to compute on this processor.
fn all_modes() -> impl Iterator<Item = Options> {
    backends().flat_map(modes)
}

/// Passes a problem to be changed: two requests of 40 and 7 keys, each one task for each of its two KV
/// heads, with all optional tensors.
fn with_good(keys: Keys, test: impl FnOnce(&Problem)) {
    let host = Host::new([6, 2], MHA, &[(2, 40), (2, 7)]).separate_v();
    let laid = host.laid(Layout {
        keys,
        spare: usize::from(matches!(keys, Keys::Ragged)),
        padding: 0,
        ragged_q: true,
        split_q: true,
        split_k: true,
    });
    test(&laid.problem());
}

/// Three pages of the first request, one of the second.
const PAGED: Keys = Keys::Paged(16);

fn with<'a>(good: &Problem<'a>, change: impl FnOnce(&mut Problem<'a>)) -> Problem<'a> {
    let mut problem = *good;
    change(&mut problem);
    problem
}

const fn too_short(argument: Argument, len: usize, needed: usize) -> Error {
    Error::TooShort {
        argument,
        len,
        needed,
    }
}

const fn out_of_range(argument: Argument, value: usize, min: usize, max: usize) -> Error {
    Error::OutOfRange {
        argument,
        value,
        min,
        max,
    }
}

/// Calls with outputs for a good problem, which must stay as they were.
#[track_caller]
fn call_refused(good: &Problem, want: Error, call: impl FnOnce(Output) -> Result<(), Error>) {
    let rows = rows(good);
    let (mut o, mut lse) = (vec![PATTERN; rows * good.shape.d_v], vec![PATTERN; rows]);
    let result = call(output(good, Elements::F32(&mut o), &mut lse));
    assert_eq!(result, Err(want));
    assert!(untouched(&o) && untouched(&lse));
}

/// Calls what takes a plan; `run_tasks` with each of these tasks.
#[track_caller]
fn plan_refused(problem: &Problem, good: &Problem, plan: &Plan, tasks: &[usize], want: Error) {
    let partial = &mut vec![PATTERN; plan.partial_len()][..];
    let memory = &mut workspace();
    for options in all_modes() {
        for &task in tasks {
            let tasks = task..task.saturating_add(1);
            call_refused(good, want, |output| {
                let output = &output.into();
                run_tasks(problem, &options, plan, tasks, memory, partial, output)
            });
        }
    }
    let partials = vec![PATTERN; plan.partials_len()];
    let rows = 0..plan.merges();
    call_refused(good, want, |output| {
        combine(problem, plan, rows, &partials, &output.into())
    });
    assert!(untouched(partial));
}

/// Everything that takes a problem refuses this one, but of its tasks only these.
#[track_caller]
fn tasks_refused(problem: &Problem, good: &Problem, tasks: &[usize], want: Error) {
    assert_eq!(Plan::new(problem), Err(want));
    for options in all_modes() {
        let memory = &mut workspace();
        call_refused(good, want, |output| {
            decode(problem, &options, memory, output)
        });
    }
    let rows = rows(good);
    let (mut o, mut lse) = (vec![-7.75; rows * good.shape.d_v], vec![-7.75; rows]);
    assert_eq!(reference::golden(problem, &mut o, &mut lse), Err(want));
    assert!(o.iter().chain(&lse).all(|&x| x == -7.75));
    plan_refused(problem, good, &Plan::new(good).unwrap(), tasks, want);
}

#[track_caller]
fn refused(problem: &Problem, good: &Problem, want: Error) {
    tasks_refused(problem, good, &[0, 1, 2, 3], want);
}

#[test]
fn refuses_heads_that_do_not_divide() {
    with_good(PAGED, |good| {
        for h_kv in [4, 5, 12] {
            let problem = with(good, |p| p.shape.h_kv = h_kv);
            refused(&problem, good, Error::Heads { h_q: 6, h_kv });
        }
        let want = out_of_range(Argument::HKv, 0, 1, i32::MAX as usize);
        refused(&with(good, |p| p.shape.h_kv = 0), good, want);
    });
}

/// `good` with another entry in its block table.
fn with_entry(good: &Problem, at: usize, value: i32, test: impl FnOnce(&Problem)) {
    let pages = good.pages.unwrap();
    let mut table = pages.block_table.to_vec();
    table[at] = value;
    let block_table = &table[..];
    test(&with(good, |p| {
        p.pages = Some(Pages {
            block_table,
            ..pages
        })
    }));
}

#[test]
fn refuses_pages_that_are_not() {
    with_good(PAGED, |good| {
        let Pages {
            max_blocks,
            pages: limit,
            ..
        } = good.pages.unwrap();
        for (request, index) in [(0, 0), (0, 2), (1, 0)] {
            let (tasks, others) = if request == 0 {
                ([0, 1], [2, 3])
            } else {
                ([2, 3], [0, 1])
            };
            for value in [-1, int(limit), i32::MIN, i32::MAX] {
                with_entry(good, request * max_blocks + index, value, |problem| {
                    let want = Error::Page {
                        request,
                        index,
                        value,
                        limit,
                    };
                    tasks_refused(problem, good, &tasks, want);
                    // The other request's tasks have nothing to do with it.
                    let plan = Plan::new(good).unwrap();
                    let partial = &mut vec![0.0; plan.partial_len()][..];
                    for (options, task) in all_modes().zip(others.into_iter().cycle()) {
                        let memory = &mut workspace();
                        let tasks = task..task + 1;
                        run_unseen(problem, &options, &plan, tasks, memory, partial).unwrap();
                    }
                });
            }
        }
        let ignored = |good: &Problem, at, value| {
            with_entry(good, at, value, |problem| {
                for options in all_modes() {
                    let [got, want] = [problem, good].map(|p| decoded(p, &options));
                    same(&got, &want, &options);
                }
            });
        };
        // Behind a request's last key there may be anything.
        for (at, value) in [(3, int(limit)), (4, -1), (max_blocks + 1, i32::MIN)] {
            ignored(good, at, value);
        }
        // And where a window hides all of a page: here those before key 32, and before key 31.
        for (window, hidden) in [(7, 2), (8, 1)] {
            let recent = with(good, |p| p.window = Some(window));
            for at in 0..hidden {
                ignored(&recent, at, -1);
            }
            with_entry(&recent, hidden, -1, |problem| {
                let want = Error::Page {
                    request: 0,
                    index: hidden,
                    value: -1,
                    limit,
                };
                tasks_refused(problem, &recent, &[0, 1], want);
            });
        }
    });
}

#[test]
fn refuses_tables_and_caches_that_are_too_short() {
    with_good(PAGED, |good| {
        let pages = good.pages.unwrap();
        let paged = |change: &dyn Fn(&mut Pages)| {
            let mut pages = pages;
            change(&mut pages);
            with(good, |p| p.pages = Some(pages))
        };
        let table = |len| {
            with(good, |p| {
                let block_table = &pages.block_table[..len];
                p.pages = Some(Pages {
                    block_table,
                    ..pages
                });
            })
        };
        for len in [0, 1, 2] {
            let want = too_short(Argument::BlockTable, len, 3);
            tasks_refused(&table(len), good, &[0, 1], want);
        }
        let needed = pages.max_blocks + 1;
        for len in [3, pages.max_blocks] {
            let want = too_short(Argument::BlockTable, len, needed);
            tasks_refused(&table(len), good, &[2, 3], want);
        }
        Plan::new(&table(needed)).unwrap();
        for max_blocks in [0, 2] {
            let want = out_of_range(Argument::BlockTable, 3, 0, max_blocks);
            tasks_refused(&paged(&|p| p.max_blocks = max_blocks), good, &[0, 1], want);
        }
        let want = out_of_range(Argument::PageSize, 0, 1, usize::MAX);
        refused(&paged(&|p| p.page_size = 0), good, want);
        let max = i32::MAX as usize;
        let want = out_of_range(Argument::Pages, max + 1, 0, max);
        refused(&paged(&|p| p.pages = max + 1), good, want);
        let needed = (pages.pages + 1) * good.kv.strides[0];
        let want = too_short(Argument::Kv, needed - good.kv.strides[0], needed);
        refused(&paged(&|p| p.pages += 1), good, want);
    });
}

#[test]
fn refuses_offsets() {
    with_good(Keys::Ragged, |good| {
        // Those of the keys begin at 1.
        assert_eq!(good.kv_indptr, Some(&[1, 42, 50][..]));
        for (argument, limit) in [(Argument::QIndptr, 2), (Argument::KvIndptr, 41)] {
            let check = |indptr: &[i32], want| {
                let problem = with(good, |p| match argument {
                    Argument::QIndptr => p.q_indptr = Some(indptr),
                    _ => p.kv_indptr = Some(indptr),
                });
                refused(&problem, good, want);
            };
            let n = int(limit);
            for (indptr, request) in [
                ([2, 0, 2], 0),
                ([0, 2, 1], 1),
                ([-1, 1, 2], 0),
                ([i32::MIN, i32::MAX, 2], 0),
                ([0, n + 1, n + 1], 0),
                ([0, n, 2 * n + 1], 1),
                ([0, i32::MAX, 2], 0),
            ] {
                let want = Error::Indptr {
                    argument,
                    request,
                    start: indptr[request],
                    end: indptr[request + 1],
                    limit,
                };
                check(&indptr, want);
            }
            for len in [0, 1, 2, 4] {
                let want = Error::WrongLength {
                    argument,
                    len,
                    expected: 3,
                };
                check(&[0, 1, 2, 3][..len], want);
            }
        }
        for (lens, request, limit) in [([42, 7], 0, 41), ([40, 9], 1, 8), ([-1, 7], 0, 41)] {
            let want = Error::Seqlen {
                request,
                value: lens[request],
                limit,
            };
            refused(&with(good, |p| p.cache_seqlens = Some(&lens)), good, want);
        }
    });
}

#[test]
fn refuses_options() {
    with_good(PAGED, |good| {
        let masked = |words, tail| with(good, |p| p.tail_mask = Some(TailMask { words, tail }));
        let max = i32::MAX as usize;
        let mut cases = vec![
            (
                with(good, |p| p.kv_indptr = Some(&[0, 40, 47])),
                Error::Conflict {
                    first: Argument::BlockTable,
                    second: Argument::KvIndptr,
                },
            ),
            (
                with(&masked(&[0; 4], 2), |p| p.causal = true),
                Error::Conflict {
                    first: Argument::TailMask,
                    second: Argument::Causal,
                },
            ),
            (
                with(good, |p| p.window = Some(0)),
                out_of_range(Argument::Window, 0, 1, usize::MAX),
            ),
            (
                masked(&[], max + 1),
                out_of_range(Argument::TailMask, max + 1, 1, max),
            ),
            (masked(&[], 0), out_of_range(Argument::TailMask, 0, 1, max)),
        ];
        // Four tokens.
        for (tail, len, needed) in [(1, 3, 4), (64, 0, 4), (65, 7, 8), (129, 11, 12)] {
            let want = too_short(Argument::TailMask, len, needed);
            cases.push((masked(&[0; 12][..len], tail), want));
            Plan::new(&masked(&[0; 12][..needed], tail)).unwrap();
        }
        for len in [0, 5, 7] {
            let want = Error::WrongLength {
                argument: Argument::Sink,
                len,
                expected: 6,
            };
            cases.push((with(good, |p| p.sink = Some(&[0.0; 7][..len])), want));
        }
        for (problem, want) in cases {
            refused(&problem, good, want);
        }
    });
}

/// Takes the last element off; how many there were.
fn shorten(tensor: &mut TensorRef<'_>) -> usize {
    let Data::Bf16(data) = tensor.data else {
        unreachable!();
    };
    tensor.data = Data::Bf16(&data[..data.len() - 1]);
    data.len()
}

#[test]
fn refuses_parts() {
    type Part = for<'a, 'b> fn(&'b mut Problem<'a>) -> &'b mut TensorRef<'a>;
    let parts: [(Argument, Part); 5] = [
        (Argument::Q, |p| &mut p.q),
        (Argument::QRope, |p| p.q_rope.as_mut().unwrap()),
        (Argument::Kv, |p| &mut p.kv),
        (Argument::KRope, |p| p.k_rope.as_mut().unwrap()),
        (Argument::V, |p| p.v.as_mut().unwrap()),
    ];
    for keys in [Keys::Contiguous, Keys::Ragged, PAGED] {
        with_good(keys, |good| {
            for (argument, part) in parts {
                let mut needed = 0;
                let problem = with(good, |p| needed = shorten(part(p)));
                refused(&problem, good, too_short(argument, needed - 1, needed));
            }
        });
    }
    // A rotary part of no columns.
    let host = Host::new([6, 2], SMALL, &[(2, 40), (2, 7)]);
    for host in [host.clone(), host.separate_v()] {
        let laid = host.laid(PLAIN);
        let good = laid.problem();
        let want = out_of_range(Argument::DV, 128, 1, 127);
        refused(&with(&good, |p| p.q_rope = Some(good.q)), &good, want);
        refused(&with(&good, |p| p.k_rope = Some(good.kv)), &good, want);
    }
}

#[test]
fn refuses_plans_of_other_lengths() {
    let host = |requests| Host::new([6, 2], MHA, requests).separate_v();
    let base = host(&[(1, 40), (2, 7)]);
    let layout = Layout {
        keys: Keys::Ragged,
        ..PLAIN
    };
    let hosts = [
        (base.clone(), layout),
        (base.clone(), PLAIN),
        (host(&[(2, 40), (1, 7)]), layout),
        (host(&[(1, 7), (2, 40)]), layout),
        (host(&[(1, 40), (2, 8)]), layout),
        (base.clone().window(39), layout),
        (base.clone().window(40), layout),
    ];
    let laid: Vec<_> = hosts
        .iter()
        .map(|(host, layout)| host.laid(*layout))
        .collect();
    let problems: Vec<Problem> = laid.iter().map(|laid| laid.problem()).collect();
    for (i, planned) in problems.iter().enumerate() {
        let plan = Plan::new(planned).unwrap();
        for (_, given) in problems.iter().enumerate().filter(|&(j, _)| i != j) {
            // It is only the lengths that differ.
            assert_eq!(planned.shape, given.shape);
            let want = plan_mismatch(planned, given);
            plan_refused(given, given, &plan, &[0, 3], want);
        }
    }
    // Masks, sinks and the layout of keys don't concern a plan.
    let other = base.clone().sink(|_| 1.0).tree(9, 1);
    let laid = other.laid(paged(16));
    let plan = Plan::new(&problems[1]).unwrap();
    let partial = &mut vec![0.0; plan.partial_len()][..];
    for options in all_modes() {
        run_unseen(
            &laid.problem(),
            &options,
            &plan,
            0..1,
            &mut workspace(),
            partial,
        )
        .unwrap();
    }
}
