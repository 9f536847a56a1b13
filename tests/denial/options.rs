//! Sizes, widths and options.

use std::cell::RefCell;

use amla::{
    Argument, Data, Error, Extra, IndexList, Indices, Pages, Problem, ProblemShape, Sparse, Split,
    TailMask,
};
use half::bf16;

use crate::caller::{
    Caller, HEADS, MAX, PAGE, out_of_range, report, too_short, with, with_apart, wrong_length,
};
use crate::host::{Host, PLAIN};

#[test]
fn sizes_and_options() {
    let caller = RefCell::new(Caller::new());
    with_apart(|good| {
        let deny = |want, change: &dyn Fn(&mut Problem)| {
            caller.borrow_mut().problem(&with(good, change), good, want);
        };
        type Set = fn(&mut ProblemShape) -> &mut usize;
        let counts: [(Argument, Set); 6] = [
            (Argument::SQ, |s| &mut s.s_q),
            (Argument::SK, |s| &mut s.s_k),
            (Argument::HQ, |s| &mut s.h_q),
            (Argument::HKv, |s| &mut s.h_kv),
            (Argument::DQk, |s| &mut s.d_qk),
            (Argument::DV, |s| &mut s.d_v),
        ];
        for (argument, count) in counts {
            let min = usize::from(argument != Argument::SK);
            let below = (0..min).chain([MAX + 1, 1 << 40, usize::MAX / 2, usize::MAX]);
            for value in below {
                deny(out_of_range(argument, value, min, MAX), &|p| {
                    *count(&mut p.shape) = value
                });
            }
        }
        for h_q in [1, 3, 5, 7, MAX] {
            deny(Error::Heads { h_q, h_kv: 2 }, &|p| p.shape.h_q = h_q);
        }
        for value in [
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
        ] {
            deny(Error::NonFiniteScale { value }, &|p| {
                p.softmax_scale = value
            });
        }
        deny(out_of_range(Argument::Window, 0, 1, usize::MAX), &|p| {
            p.window = Some(0)
        });
        for value in [0, 1, 31, 33, 100, usize::MAX] {
            let error = Error::NotMultiple {
                argument: Argument::SplitKeys,
                value,
                of: Split::MULTIPLE,
            };
            deny(error, &|p| p.split = Split::Every(value));
        }
        // Twice two tokens.
        for (tail, words) in [(1, 1), (64, 1), (65, 2), (1000, 16)] {
            for len in [0, 4 * words - 1] {
                deny(too_short(Argument::TailMask, len, 4 * words), &|p| {
                    p.tail_mask = Some(TailMask {
                        words: &[0; 64][..len],
                        tail,
                    });
                });
            }
        }
        for tail in [0, MAX + 1, usize::MAX] {
            deny(out_of_range(Argument::TailMask, tail, 1, MAX), &|p| {
                p.tail_mask = Some(TailMask { words: &[], tail });
            });
        }
        for len in (0..9).filter(|&len| len != HEADS[0]) {
            deny(wrong_length(Argument::Sink, len, HEADS[0]), &|p| {
                p.sink = Some(&[0.0; 9][..len])
            });
        }
        for (first, second, change) in [
            (
                Argument::TailMask,
                Argument::Causal,
                causal_tail as fn(&mut Problem),
            ),
            (Argument::BlockTable, Argument::KvIndptr, paged_and_ragged),
            (Argument::Indices, Argument::Causal, |p| {
                (p.sparse, p.causal) = (Some(NOTHING_CHOSEN), true);
            }),
            (Argument::Indices, Argument::Window, |p| {
                (p.sparse, p.window) = (Some(NOTHING_CHOSEN), Some(1));
            }),
            (Argument::Indices, Argument::TailMask, |p| {
                p.sparse = Some(NOTHING_CHOSEN);
                p.tail_mask = Some(TailMask {
                    words: &[0; 4],
                    tail: 1,
                });
            }),
            (Argument::ExtraKv, Argument::KRope, second_cache),
            (Argument::ExtraKv, Argument::V, |p| {
                second_cache(p);
                p.k_rope = None;
            }),
            (Argument::VOffset, Argument::V, |p| p.v_offset = 1),
            (Argument::VOffset, Argument::V, |p| p.v_offset = usize::MAX),
        ] {
            deny(Error::Conflict { first, second }, &change);
        }
    });
    report("sizes and options", &caller.borrow(), 1500);
}

const NOTHING_CHOSEN: Sparse<'static> = Sparse {
    indices: Indices {
        indices: IndexList::I32(&[]),
        strides: [0; 3],
        topk: 0,
        topk_length: None,
        topk_length_strides: [1, 0],
    },
    extra: None,
};

fn second_cache(problem: &mut Problem) {
    let indices = NOTHING_CHOSEN.indices;
    problem.sparse = Some(Sparse {
        indices,
        extra: Some(Extra {
            kv: problem.kv,
            pages: 0,
            page_size: 1,
            indices,
        }),
    });
}

fn causal_tail(problem: &mut Problem) {
    problem.causal = true;
    problem.tail_mask = Some(TailMask {
        words: &[],
        tail: 0,
    });
}

fn paged_and_ragged(problem: &mut Problem) {
    problem.kv_indptr = Some(&[0, 40, 47]);
    problem.pages = Some(Pages {
        block_table: &[],
        max_blocks: 0,
        stride: 0,
        page_size: PAGE,
        pages: 0,
    });
}

/// Every pair of widths up to a few over the widest that no kernel is for.
#[test]
fn widths() {
    let mut caller = Caller::new();
    let host = Host::new([1, 1], (64, 64), &[(1, 1)]);
    let laid = host.laid(PLAIN);
    let good = laid.problem();
    let numbers = vec![bf16::ONE; 2048];
    for d_qk in (1..=608).step_by(31).chain([64, 128, 192, 320, 512, 576]) {
        for d_v in (1..=d_qk).step_by(67).chain([63, 64, 128]) {
            let fit = d_qk <= 576 && d_v <= 512 && (d_qk % 8, d_v % 8) == (0, 0);
            if d_v > d_qk || fit {
                continue;
            }
            let bad = with(&good, |p| {
                (p.shape.d_qk, p.shape.d_v) = (d_qk, d_v);
                (p.q.data, p.kv.data) = (Data::Bf16(&numbers), Data::Bf16(&numbers));
            });
            let want = Error::UnsupportedDims {
                d_qk,
                d_v,
                multiple: 8,
                max: (576, 512),
            };
            caller.problem(&bad, &good, want);
        }
    }
    report("widths", &caller, 500);
}
