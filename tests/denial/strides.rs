//! Strides of lists, indices of heads and of tokens, columns of values.

use std::cell::RefCell;

use amla::format::{FP8_ROW, MODEL1_ROW};
use amla::{Argument, Data, Error, IndexList, Indices, Pages, Plan, Problem, Sparse, TensorRef};

use crate::caller::{
    Caller, DIMS, LENS, MAX, PAGE, out_of_range, report, too_short, with, with_apart, with_sparse,
    wrong_length,
};
use crate::host::{Host, Keys, Layout, PLAIN, paged};

const HUGE: [usize; 2] = [usize::MAX, usize::MAX / 2 + 1];

/// Of two requests: lists that end elsewhere than with the last one's entry, and entries of either.
#[test]
fn strided_lengths() {
    let caller = RefCell::new(Caller::new());
    with_apart(|good| {
        let deny = |list: &[i32], stride, want| {
            let bad = with(good, |_| ());
            let bad = Problem {
                cache_seqlens: Some(list),
                cache_seqlens_stride: stride,
                ..bad
            };
            caller.borrow_mut().problem(&bad, good, want);
        };
        for stride in [0, 1, 2, 5] {
            for len in (0..8).filter(|&len| len != stride + 1) {
                let want = wrong_length(Argument::CacheSeqlens, len, stride + 1);
                deny(&[1; 8][..len], stride, want);
            }
        }
        let want = wrong_length(Argument::CacheSeqlens, 2, usize::MAX / 2 + 2);
        deny(&[1; 2], HUGE[1], want);
        let want = Error::Overflow {
            argument: Argument::CacheSeqlens,
            dimension: 0,
        };
        deny(&[1; 2], HUGE[0], want);
        let limits = match good.kv_indptr {
            Some(_) => LENS,
            None => [good.shape.s_k; 2],
        };
        for (request, limit) in limits.into_iter().enumerate() {
            for value in [i32::MIN, -1, i32::try_from(limit).unwrap() + 1] {
                // Between entries there may be anything.
                let mut list = [1, -7, 1];
                list[2 * request] = value;
                let want = Error::Seqlen {
                    request,
                    value,
                    limit,
                };
                deny(&list, 2, want);
            }
        }
    });
    report("strided lengths", &caller.borrow(), 1000);
}

/// Tables that requests share, or whose rows are apart.
#[test]
fn strided_block_tables() {
    let mut caller = Caller::new();
    let host = Host::new([6, 2], DIMS, &LENS.map(|len| (2, len)));
    let laid = host.laid(paged(PAGE));
    let good = &laid.problem();
    let pages = good.pages.unwrap();
    let blocks = LENS.map(|len| len.div_ceil(PAGE));
    // Tasks of either request, of which each has one for each of the KV heads.
    let mut deny = |request: usize, pages: Pages<'_>, want| {
        let bad = Problem {
            pages: Some(pages),
            ..*good
        };
        caller.tasks(&bad, good, want, &[2 * request, 2 * request + 1]);
    };
    for (stride, len) in [(5, 5), (9, 5), (9, 9), (1 << 40, 5)] {
        let want = too_short(Argument::BlockTable, len, stride + blocks[1]);
        let block_table = &[0; 16][..len];
        deny(
            1,
            Pages {
                block_table,
                stride,
                ..pages
            },
            want,
        );
    }
    let overflow = Error::Overflow {
        argument: Argument::BlockTable,
        dimension: 0,
    };
    let stride = usize::MAX;
    deny(1, Pages { stride, ..pages }, overflow);
    for len in 0..blocks[0] {
        let want = too_short(Argument::BlockTable, len, blocks[0]);
        let block_table = &[0; 16][..len];
        let stride = 0;
        deny(
            0,
            Pages {
                block_table,
                stride,
                ..pages
            },
            want,
        );
    }
    for (index, value) in [(0, -1), (1, i32::MAX), (2, i32::MIN)] {
        let mut table = vec![0; blocks[0]];
        table[index] = value;
        let want = Error::Page {
            request: 0,
            index,
            value,
            limit: pages.pages,
        };
        let stride = 0;
        deny(
            0,
            Pages {
                block_table: &table,
                stride,
                ..pages
            },
            want,
        );
    }
    report("strided block tables", &caller, 100);
}

/// Which list of chosen keys is at fault.
fn lists() -> [(Argument, Argument, bool); 2] {
    [
        (Argument::Indices, Argument::TopkLength, false),
        (Argument::ExtraIndices, Argument::ExtraTopkLength, true),
    ]
}

/// Two requests of two positions each, with two KV heads: indices of their own for each, and numbers of them.
#[test]
fn indices_of_heads() {
    let caller = RefCell::new(Caller::new());
    with_sparse(|good| {
        let sparse = good.sparse.unwrap();
        for (list, length, extra) in lists() {
            let deny = |indices: Indices, want| {
                let mut sparse = sparse;
                match &mut sparse.extra {
                    Some(second) if extra => second.indices = indices,
                    _ => sparse.indices = indices,
                }
                let bad = Problem {
                    sparse: Some(sparse),
                    ..*good
                };
                caller.borrow_mut().problem(&bad, good, want);
            };
            let good = sparse.indices;
            let strides = [12, 6, 3];
            for len in [0, 1, 23] {
                for indices in [
                    IndexList::I32(&[0; 24][..len]),
                    IndexList::I64(&[0; 24][..len]),
                ] {
                    let want = too_short(list, len, 24);
                    deny(
                        Indices {
                            indices,
                            strides,
                            ..good
                        },
                        want,
                    );
                }
            }
            for dimension in 0..3 {
                for stride in HUGE {
                    let mut strides = strides;
                    strides[dimension] = stride;
                    // The sum of all overflows with the last, at the latest.
                    let want = match stride {
                        usize::MAX => Error::Overflow {
                            argument: list,
                            dimension,
                        },
                        _ => {
                            let rest: usize = strides.iter().map(|s| s % HUGE[1]).sum();
                            too_short(list, 24, rest + HUGE[1] + 3)
                        }
                    };
                    let indices = IndexList::I64(&[0; 24]);
                    deny(
                        Indices {
                            indices,
                            strides,
                            ..good
                        },
                        want,
                    );
                }
            }
            for (topk_length_strides, needed) in [
                ([2, 1], 4),
                ([0, 1], 2),
                ([0, 0], 1),
                ([1, 2], 4),
                ([7, 0], 8),
            ] {
                for len in (0..9).filter(|&len| len != needed) {
                    let topk_length = Some(&[1; 9][..len]);
                    let want = wrong_length(length, len, needed);
                    deny(
                        Indices {
                            topk_length,
                            topk_length_strides,
                            ..good
                        },
                        want,
                    );
                }
            }
            for dimension in 0..2 {
                let mut topk_length_strides = [2, 1];
                topk_length_strides[dimension] = usize::MAX;
                let want = Error::Overflow {
                    argument: length,
                    dimension,
                };
                let topk_length = Some(&[1; 4][..]);
                deny(
                    Indices {
                        topk_length,
                        topk_length_strides,
                        ..good
                    },
                    want,
                );
            }
            for (i, value) in (0..4).flat_map(|i| [i32::MIN, -1, 4, i32::MAX].map(|x| (i, x))) {
                let mut lengths = [3, 0, 1, 2];
                lengths[i] = value;
                let want = Error::TopkLength {
                    argument: length,
                    request: i / 2,
                    position: i % 2,
                    value,
                    limit: 3,
                };
                let topk_length = Some(&lengths[..]);
                deny(
                    Indices {
                        topk_length,
                        topk_length_strides: [2, 1],
                        ..good
                    },
                    want,
                );
            }
        }
    });
    report("indices of heads", &caller.borrow(), 1500);
}

const fn sparse(indices: Indices<'_>) -> Option<Sparse<'_>> {
    Some(Sparse {
        indices,
        extra: None,
    })
}

/// Three tokens of two requests, split tensors and chosen keys.
#[test]
fn chosen_keys_of_ragged_queries() {
    let mut caller = Caller::new();
    let host = Host::new([6, 2], DIMS, &[(2, LENS[0]), (1, LENS[1])]).separate_v();
    let laid = host.laid(Layout {
        keys: Keys::Ragged,
        ragged_q: true,
        split_q: true,
        split_k: true,
        ..PLAIN
    });
    const LIST: [i32; 18] = [0; 18];
    let indices = Indices {
        indices: IndexList::I32(&LIST),
        strides: [usize::MAX, 6, 3],
        topk: 3,
        topk_length: Some(&[3, 0, 2]),
        // The first isn't looked at.
        topk_length_strides: [usize::MAX, 1],
    };
    let good = &Problem {
        sparse: sparse(indices),
        ..laid.problem()
    };
    Plan::new(good).unwrap();
    let mut deny = |want, change: &dyn Fn(&mut Problem)| {
        let mut bad = *good;
        change(&mut bad);
        caller.problem(&bad, good, want);
    };
    for len in [0, 1, 17] {
        let shorter = IndexList::I32(&[0; 18][..len]);
        deny(too_short(Argument::Indices, len, 18), &|p| {
            p.sparse = sparse(Indices {
                indices: shorter,
                ..indices
            });
        });
    }
    for len in [0, 1, 2, 4] {
        deny(wrong_length(Argument::TopkLength, len, 3), &|p| {
            p.sparse = sparse(Indices {
                topk_length: Some(&[0; 4][..len]),
                ..indices
            });
        });
    }
    for (position, lengths) in [(0, [-1, 0, 0]), (1, [0, 4, 0]), (2, [0, 0, i32::MAX])] {
        let want = Error::TopkLength {
            argument: Argument::TopkLength,
            request: 0,
            position,
            value: lengths[position],
            limit: 3,
        };
        let bad = Problem {
            sparse: sparse(Indices {
                topk_length: Some(&lengths),
                ..indices
            }),
            ..*good
        };
        caller.problem(&bad, good, want);
    }
    type At = for<'a, 'b> fn(&'b mut Problem<'a>) -> &'b mut TensorRef<'a>;
    let parts: [(Argument, At); 3] = [
        (Argument::Kv, |p| &mut p.kv),
        (Argument::KRope, |p| p.k_rope.as_mut().unwrap()),
        (Argument::V, |p| p.v.as_mut().unwrap()),
    ];
    for (argument, at) in parts {
        let mut copy = *good;
        let Data::Bf16(data) = at(&mut copy).data else {
            unreachable!();
        };
        for len in [0, 1, data.len() - 1] {
            let bad = with(good, |p| at(p).data = Data::Bf16(&data[..len]));
            caller.problem(&bad, good, too_short(argument, len, data.len()));
        }
    }
    report("chosen keys of ragged queries", &caller, 200);
}

/// Values that begin behind the last column where they fit.
#[test]
fn columns_of_values() {
    let mut caller = Caller::new();
    let rope = DIMS.0 - DIMS.1;
    let host = Host::new([6, 2], DIMS, &LENS.map(|len| (2, len)));
    for (split_k, most) in [(false, rope), (true, 0)] {
        let laid = host.laid(Layout { split_k, ..PLAIN });
        let good = &laid.problem();
        for value in [most + 1, rope + 1, DIMS.1, DIMS.0, MAX, usize::MAX] {
            let want = out_of_range(Argument::VOffset, value, 0, most);
            caller.problem(&with(good, |p| p.v_offset = value), good, want);
        }
    }
    let laid = host.clone().separate_v();
    let laid = laid.laid(PLAIN);
    let good = &laid.problem();
    for value in [1, rope, usize::MAX] {
        let want = Error::Conflict {
            first: Argument::VOffset,
            second: Argument::V,
        };
        caller.problem(&with(good, |p| p.v_offset = value), good, want);
    }
    with_sparse(|good| {
        let mut caller = Caller::new();
        for value in [rope + 1, usize::MAX] {
            let want = out_of_range(Argument::VOffset, value, 0, rope);
            caller.problem(&with(good, |p| p.v_offset = value), good, want);
        }
    });
    // Rows with scales begin where they begin.
    let bytes = vec![0; 2 * LENS[0] * FP8_ROW];
    for (dims, data, row) in [
        ((576, 512), Data::Fp8(&bytes), FP8_ROW),
        (
            (512, 512),
            Data::Model1 {
                bytes: &bytes,
                scales: LENS[0] * MODEL1_ROW,
                scale_stride: 8,
            },
            MODEL1_ROW,
        ),
    ] {
        let host = Host::new([1, 1], dims, &[(1, LENS[0])]);
        let laid = host.laid(PLAIN);
        let good = &with(&laid.problem(), |p| {
            p.kv = TensorRef {
                data,
                strides: [0, row, 0],
            };
        });
        for value in [1, 64, usize::MAX] {
            let want = out_of_range(Argument::VOffset, value, 0, 0);
            caller.problem(&with(good, |p| p.v_offset = value), good, want);
        }
    }
    report("columns of values", &caller, 200);
}
