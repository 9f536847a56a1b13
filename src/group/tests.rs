//! Masks, and what panels needn't read, against what each row sees of each key.

extern crate std;

use std::vec;
use std::vec::Vec;

use half::bf16;

use super::*;
use crate::plan::row_groups;
use crate::problem::{IndexList, Indices, Sparse, TailMask};
use crate::shape::ProblemShape;
use crate::tile::{BLOCK_KEYS, PANELS};

const SHAPE: ProblemShape = ProblemShape {
    b: 1,
    s_q: 2 * PANEL_ROWS + 5,
    s_k: 3 * BLOCK_KEYS + 7,
    h_q: 3,
    h_kv: 1,
    d_qk: 64,
    d_v: 64,
};

/// Checks every group, panel and block of a problem.
fn check(problem: &Problem<'_>) {
    problem.check().unwrap();
    for (cut, group) in [1, PANELS]
        .map(|panels| row_groups(problem, panels))
        .into_iter()
        .flatten()
    {
        for keys in cut.splits() {
            let group = Group {
                keys,
                ..group.clone()
            };
            check_group(&group);
        }
    }
}

fn check_group(group: &Group<'_>) {
    let problem = group.problem;
    let mut any = false;
    for keys in (0..group.blocks()).map(|block| group.block(block)) {
        for panel in 0..group.panels() {
            let want: Vec<u64> = keys
                .clone()
                .map(|k| {
                    let sees = |r: &usize| {
                        let (j, h) = group.position(panel * PANEL_ROWS + r);
                        let head = h / problem.shape.group();
                        problem.sees(group.request, head, j, k)
                    };
                    (0..group.panel_rows(panel))
                        .filter(sees)
                        .map(|r| 1 << r)
                        .sum()
                })
                .collect();
            let all = want
                .iter()
                .all(|&bits| bits == below(group.panel_rows(panel)));
            let mut mask = [0; BLOCK_KEYS];
            let got = group.mask(panel, &keys, &mut mask);
            assert_eq!(
                got.map(|mask| &mask[..keys.len()]),
                (!all).then_some(&want[..])
            );
            let sees = want.iter().any(|&bits| bits != 0);
            assert_eq!(
                group.panel_sees(panel, &keys),
                sees,
                "panel {panel}, {keys:?}"
            );
            any |= sees;
            let end = group.seen_end(panel, &keys);
            assert!(want[end..].iter().all(|&bits| bits == 0));
            // Exact but for masks of their own.
            let last = problem.tail_mask.is_none() && problem.sparse.is_none() && sees;
            assert!(!last || want[end - 1] != 0, "panel {panel}, {keys:?}");
        }
    }
    assert_eq!(group.sees_any(), any);
}

/// Queries and keys of one problem after the other.
fn with_problem(shape: ProblemShape, check: impl FnOnce(Problem<'_>)) {
    let q = vec![bf16::ZERO; shape.s_q * shape.h_q * shape.d_qk];
    let kv = vec![bf16::ZERO; shape.s_k * shape.d_qk];
    check(Problem::dense(shape, &q, &kv, 1.0));
}

#[test]
fn causality_and_windows() {
    // More queries than keys, too.
    for s_k in [SHAPE.s_k, 1, BLOCK_KEYS, SHAPE.s_q - 3, 0] {
        with_problem(ProblemShape { s_k, ..SHAPE }, |dense| {
            for causal in [false, true] {
                for window in [None, Some(1), Some(PANEL_ROWS), Some(300), Some(usize::MAX)] {
                    check(&Problem {
                        causal,
                        window,
                        ..dense
                    });
                }
            }
        });
    }
}

/// Some blocks are hidden from all rows, and others from those of one panel between two that see them.
#[test]
fn hidden_blocks() {
    let (tail, s_q) = (2 * BLOCK_KEYS + 9, SHAPE.s_q);
    let each = tail.div_ceil(64);
    let panel = |j: usize| j * SHAPE.h_q / PANEL_ROWS;
    let bit = |j: usize, i: usize| match i {
        0..BLOCK_KEYS => panel(j) != 1 && (i + j).is_multiple_of(7),
        _ => i + 1 == tail && j == 0,
    };
    let word = |j: usize, word: usize| -> u64 {
        let bits = (0..64).filter(|i| bit(j, 64 * word + i));
        bits.map(|i| 1 << i).sum()
    };
    let words: Vec<u64> = (0..s_q * each).map(|i| word(i / each, i % each)).collect();
    with_problem(SHAPE, |dense| {
        for window in [None, Some(2 * BLOCK_KEYS)] {
            check(&Problem {
                window,
                tail_mask: Some(TailMask {
                    words: &words,
                    tail,
                }),
                ..dense
            });
        }
    });
}

/// Indices that name no key.
#[test]
fn indices_of_no_key() {
    let topk = 2 * BLOCK_KEYS + 5;
    let shape = ProblemShape { s_q: 2, ..SHAPE };
    let index = |i: usize| match i {
        0..BLOCK_KEYS => -1,
        _ if i.is_multiple_of(5) => i32::MAX,
        _ => (i % SHAPE.s_k).try_into().unwrap(),
    };
    let list: Vec<i32> = (0..topk).map(index).chain(vec![-1; topk]).collect();
    with_problem(shape, |dense| {
        check(&Problem {
            sparse: Some(Sparse {
                indices: Indices {
                    indices: IndexList::I32(&list),
                    strides: [0, topk, 0],
                    topk,
                    topk_length: None,
                    topk_length_strides: [0; 2],
                },
                extra: None,
            }),
            ..dense
        });
    });
}

/// Merges find rows where tasks have them, also in memory for more rows than a task has.
#[test]
fn rows_of_partial_results() {
    let shape = ProblemShape {
        d_qk: 128,
        d_v: 128,
        ..SHAPE
    };
    with_problem(shape, |dense| {
        let groups = [1, PANELS].map(|panels| row_groups(&dense, panels));
        for (_, group) in groups.into_iter().flatten() {
            // Strips of few rows are contiguous.
            for planned_rows in [1, group.planned_rows] {
                check_partial(&Group {
                    planned_rows,
                    ..group.clone()
                });
            }
        }
    });
}

fn check_partial(group: &Group<'_>) {
    const AT_ONCE: usize = 3;
    let (room, d_v) = (group.room(), group.problem.shape.d_v);
    for len in [room, room + 16].map(|rows| Partial::len(rows, d_v)) {
        let partial: Vec<f32> = (0_u16..).take(len).map(f32::from).collect();
        let mut memory = partial.clone();
        for panel in 0..group.panels() {
            let part = Partial::view(&mut memory, d_v).panel(panel);
            let count = group.panel_rows(panel);
            for r in 0..count {
                let some = r..count.min(r + AT_ONCE);
                let [start, end] = [some.start, some.end].map(|r| panel * PANEL_ROWS + r);
                let offsets = PartialRows::of(group, &(start..end), len);
                assert_eq!(offsets.sums(&partial), &part.sums[some.clone()]);
                let strip_rows = group.strip_rows(panel);
                for (strip, o) in part.o.chunks(strip_rows).take(strips(d_v)).enumerate() {
                    assert_eq!(offsets.o(&partial, strip), &o[some.clone()], "row {start}");
                }
            }
        }
    }
}
