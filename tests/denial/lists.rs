//! Of every list its length and entries.

use std::cell::RefCell;

use amla::{Argument, Error, Extra, IndexList, Indices, Pages, Problem, Sparse};

use crate::caller::{
    Caller, HEADS, LENS, MAX, PAGE, out_of_range, report, too_short, with, with_apart, with_sparse,
    wrong_length,
};

#[test]
fn lists() {
    let caller = RefCell::new(Caller::new());
    let deny = |good: &Problem, bad: &Problem, want| {
        caller.borrow_mut().problem(bad, good, want);
    };
    with_apart(|good| {
        for len in [0, 1, 3, 4] {
            let want = wrong_length(Argument::CacheSeqlens, len, 2);
            let bad = with(good, |p| p.cache_seqlens = Some(&[1; 4][..len]));
            deny(good, &bad, want);
        }
        let limits = match good.kv_indptr {
            Some(_) => LENS,
            None => [good.shape.s_k; 2],
        };
        for (request, limit) in limits.into_iter().enumerate() {
            let above = i32::try_from(limit).unwrap() + 1;
            for value in [i32::MIN, -1, above, i32::MAX] {
                let mut lens = [1; 2];
                lens[request] = value;
                let want = Error::Seqlen {
                    request,
                    value,
                    limit,
                };
                deny(good, &with(good, |p| p.cache_seqlens = Some(&lens)), want);
            }
        }
        if let Some(indptr) = good.q_indptr {
            deny_indptr(&deny, good, Argument::QIndptr, indptr, good.shape.s_q);
        }
        if let Some(indptr) = good.kv_indptr {
            deny_indptr(&deny, good, Argument::KvIndptr, indptr, good.shape.s_k);
        }
        if let Some(pages) = good.pages {
            deny_pages(&caller, good, pages);
        }
    });
    report("lists", &caller.borrow(), 600);
}

fn deny_indptr(
    deny: &impl Fn(&Problem, &Problem, Error),
    good: &Problem,
    argument: Argument,
    indptr: &[i32],
    limit: usize,
) {
    let given = |offsets: &[i32], want| {
        let mut bad = *good;
        let call = |problem: &Problem| deny(good, problem, want);
        match argument {
            Argument::QIndptr => call(&Problem {
                q_indptr: Some(offsets),
                ..bad
            }),
            _ => {
                bad.cache_seqlens = None;
                call(&Problem {
                    kv_indptr: Some(offsets),
                    ..bad
                });
            }
        }
    };
    for len in [0, 1, 2, 4] {
        given(&[0; 4][..len], wrong_length(argument, len, 3));
    }
    let rows = i32::try_from(limit).unwrap();
    for (request, start, end) in [
        (0, -1, 0),
        (0, i32::MIN, i32::MAX),
        (0, 1, 0),
        (0, 0, rows + 1),
        (0, 0, i32::MAX),
        (1, indptr[1], indptr[1] - 1),
        (1, indptr[1], i32::MIN),
        (1, indptr[1], indptr[1] + rows + 1),
        (1, indptr[1], i32::MAX),
    ] {
        let mut offsets = [0, indptr[1], indptr[1]];
        offsets[request] = start;
        offsets[request + 1] = end;
        let want = Error::Indptr {
            argument,
            request,
            start,
            end,
            limit,
        };
        given(&offsets, want);
    }
}

/// Each request's entries are looked at by its own tasks, of which it has one for each KV head.
fn deny_pages(caller: &RefCell<Caller>, good: &Problem, pages: Pages) {
    let given = |request: usize, pages: Pages, want| {
        let bad = Problem {
            pages: Some(pages),
            ..*good
        };
        let tasks = [request * HEADS[1], request * HEADS[1] + 1];
        caller.borrow_mut().tasks(&bad, good, want, &tasks);
    };
    let blocks = LENS.map(|len| len.div_ceil(PAGE));
    for (request, blocks) in blocks.into_iter().enumerate() {
        for index in 0..blocks {
            let above = i32::try_from(pages.pages).unwrap();
            for value in [i32::MIN, -1, above, i32::MAX] {
                let mut table = pages.block_table.to_vec();
                table[request * pages.max_blocks + index] = value;
                let want = Error::Page {
                    request,
                    index,
                    value,
                    limit: pages.pages,
                };
                let block_table = &table;
                given(
                    request,
                    Pages {
                        block_table,
                        ..pages
                    },
                    want,
                );
            }
        }
    }
    for (request, len, needed) in [
        (0, 0, blocks[0]),
        (0, blocks[0] - 1, blocks[0]),
        (1, pages.max_blocks, pages.max_blocks + blocks[1]),
    ] {
        let block_table = &pages.block_table[..len];
        let want = too_short(Argument::BlockTable, len, needed);
        given(
            request,
            Pages {
                block_table,
                ..pages
            },
            want,
        );
    }
    for max_blocks in [0, 1, blocks[0] - 1] {
        let want = out_of_range(Argument::BlockTable, blocks[0], 0, max_blocks);
        given(
            0,
            Pages {
                max_blocks,
                ..pages
            },
            want,
        );
    }
    let want = Error::Overflow {
        argument: Argument::BlockTable,
        dimension: 0,
    };
    let stride = usize::MAX;
    given(1, Pages { stride, ..pages }, want);

    let given = |pages, want| {
        let bad = with(good, |p| p.pages = Some(pages));
        caller.borrow_mut().problem(&bad, good, want);
    };
    let want = out_of_range(Argument::PageSize, 0, 1, usize::MAX);
    given(
        Pages {
            page_size: 0,
            ..pages
        },
        want,
    );
    for count in [MAX + 1, usize::MAX] {
        let want = out_of_range(Argument::Pages, count, 0, MAX);
        given(
            Pages {
                pages: count,
                ..pages
            },
            want,
        );
    }
}

/// The first indices.
const fn shorter(indices: IndexList<'_>, len: usize) -> IndexList<'_> {
    match indices {
        IndexList::I32(indices) => IndexList::I32(indices.split_at(len).0),
        IndexList::I64(indices) => IndexList::I64(indices.split_at(len).0),
    }
}

#[test]
fn chosen_keys() {
    let caller = RefCell::new(Caller::new());
    // With the request whose length is no good.
    let lengths: Vec<([i32; 2], usize)> = [i32::MIN, -1, 4, i32::MAX]
        .into_iter()
        .flat_map(|value| [([value, 3], 0), ([3, value], 1)])
        .collect();
    with_sparse(|good| {
        let sparse = good.sparse.unwrap();
        let deny = |sparse, want| {
            let bad = with(good, |p| p.sparse = Some(sparse));
            caller.borrow_mut().problem(&bad, good, want);
        };
        let own = |indices| Sparse { indices, ..sparse };
        let second = |indices| Sparse {
            extra: sparse.extra.map(|extra| Extra { indices, ..extra }),
            ..sparse
        };
        for extra in [false, true] {
            let (list, length) = if extra {
                (Argument::ExtraIndices, Argument::ExtraTopkLength)
            } else {
                (Argument::Indices, Argument::TopkLength)
            };
            let deny = |indices, want| {
                deny(if extra { second(indices) } else { own(indices) }, want);
            };
            let good = sparse.indices;
            for len in [0, 1, 11] {
                let indices = shorter(good.indices, len);
                deny(Indices { indices, ..good }, too_short(list, len, 12));
            }
            for topk in [1 << 30, MAX, usize::MAX] {
                let want = out_of_range(list, topk, 0, MAX / 2);
                deny(Indices { topk, ..good }, want);
            }
            for dimension in 0..3 {
                let mut strides = good.strides;
                strides[dimension] = usize::MAX;
                let want = Error::Overflow {
                    argument: list,
                    dimension,
                };
                deny(Indices { strides, ..good }, want);
            }
            for len in [0, 1, 3] {
                let topk_length = Some(&[1; 3][..len]);
                let want = wrong_length(length, len, 2);
                deny(
                    Indices {
                        topk_length,
                        ..good
                    },
                    want,
                );
            }
            for (lengths, request) in &lengths {
                let want = Error::TopkLength {
                    argument: length,
                    request: *request,
                    position: 0,
                    value: lengths[*request],
                    limit: 3,
                };
                let topk_length = Some(&lengths[..]);
                deny(
                    Indices {
                        topk_length,
                        ..good
                    },
                    want,
                );
            }
        }
        let extra = |change: &dyn Fn(&mut Extra<'_>)| {
            let mut sparse = sparse;
            change(sparse.extra.as_mut().unwrap());
            sparse
        };
        let page_size = out_of_range(Argument::PageSize, 0, 1, usize::MAX);
        deny(extra(&|extra| extra.page_size = 0), page_size);
    });
    report("chosen keys", &caller.borrow(), 400);
}
