//! Malformed calls by the hundred, each with the error that it must give: of every tensor its
//! length, strides and format, of every list its length and entries, every count, option and
//! output. All functions that look at what is wrong agree, and none touches an output.
//! `api`, `hosts` and `sparse` have the single cases, and the words of each error.

mod common;
#[allow(dead_code, reason = "shared with `hosts`, which uses the rest")]
#[path = "common/hosts.rs"]
mod host;

use std::cell::RefCell;

use amla::{
    Argument, Data, Elements, Error, Extra, Indices, Lse, Options, Output, Pages, Part, Plan,
    Problem, SUPPORTED_DIMS, Shape, Sparse, TailMask, Tensor, Workspace, combine, decode, merge,
    run_task, run_tasks,
};
use common::workspace;
use half::{bf16, f16};
use host::{Host, Keys, Layout, PATTERN, PLAIN, paged, rows, untouched};

const MAX: usize = i32::MAX as usize;
/// Query heads, KV heads, widths, lengths of the two requests.
const HEADS: [usize; 2] = [6, 2];
const DIMS: (usize, usize) = (192, 128);
const LENS: [usize; 2] = [40, 7];
const PAGE: usize = 16;

/// Calls of everything that takes a problem, with outputs that must stay as they are.
struct Caller {
    workspace: Box<Workspace>,
    o: Vec<f32>,
    halves: Vec<u16>,
    lse: Vec<f32>,
    partials: Vec<f32>,
    denied: usize,
}

/// Of 16 bits, what no call computes.
const HALF: u16 = 0xffd1;

impl Caller {
    fn new() -> Self {
        let elements = 2 * 2 * HEADS[0] * DIMS.1;
        Self {
            workspace: workspace(),
            o: vec![PATTERN; elements],
            halves: vec![HALF; elements],
            lse: vec![PATTERN; elements],
            partials: vec![PATTERN; 16 * 64 * (DIMS.1 + 2)],
            denied: 0,
        }
    }

    /// `call` refuses an output of each format that `arrange` has changed.
    #[track_caller]
    fn output(
        &mut self,
        shape: Shape,
        want: Error,
        arrange: impl Fn(&mut Output),
        mut call: impl FnMut(Output, &mut Workspace, &mut [f32]) -> Result<(), Error>,
    ) {
        for format in 0..3 {
            let o = match format {
                0 => Elements::F32(&mut self.o),
                1 => Elements::Bf16(bytemuck::cast_slice_mut(&mut self.halves)),
                _ => Elements::F16(bytemuck::cast_slice_mut(&mut self.halves)),
            };
            let mut output = Output::dense(shape, o, &mut self.lse);
            arrange(&mut output);
            let result = call(output, &mut self.workspace, &mut self.partials);
            self.same(result, want);
        }
        assert!(untouched(&self.o) && untouched(&self.lse) && untouched(&self.partials));
        assert!(self.halves.iter().all(|&x| x == HALF));
    }

    /// As text, for an error may hold a NaN.
    #[track_caller]
    fn same(&mut self, got: Result<(), Error>, want: Error) {
        assert_eq!(format!("{got:?}"), format!("{:?}", Err::<(), _>(want)));
        self.denied += 1;
    }

    /// Everything refuses `bad`, which was made of `good`.
    #[track_caller]
    fn problem(&mut self, bad: &Problem, good: &Problem, want: Error) {
        let last = Plan::new(good).unwrap().tasks() - 1;
        self.tasks(bad, good, want, &[0, last, usize::MAX]);
    }

    /// The same, but of single tasks only these do.
    #[track_caller]
    fn tasks(&mut self, bad: &Problem, good: &Problem, want: Error, tasks: &[usize]) {
        let (options, plan, shape) = (Options::default(), &Plan::new(good).unwrap(), good.shape);
        self.same(Plan::new(bad).map(drop), want);
        self.output(
            shape,
            want,
            |_| (),
            |output, workspace, _| decode(bad, &options, workspace, output),
        );
        self.output(
            shape,
            want,
            |_| (),
            |output, _, partials| combine(bad, plan, partials, output),
        );
        for &task in tasks {
            let (workspace, partials) = (&mut self.workspace, &mut self.partials);
            let result = run_task(bad, &options, plan, task, workspace, partials);
            self.same(result, want);
        }
        let (workspace, partials) = (&mut self.workspace, &mut self.partials);
        let result = run_tasks(bad, &options, plan, 0..plan.tasks(), workspace, partials);
        self.same(result, want);
        assert!(untouched(&self.partials));
    }
}

/// Tensors in parts and values apart, lengths, a sink; and how its keys lie.
fn with_apart(call: impl Fn(&Problem)) {
    let requests = LENS.map(|len| (2, len));
    let host = Host::new(HEADS, DIMS, &requests).separate_v();
    let host = host.sink(|h| h as f32 - 2.0);
    for keys in [Keys::Contiguous, Keys::Ragged, Keys::Paged(PAGE)] {
        let layout = Layout {
            keys,
            ragged_q: matches!(keys, Keys::Ragged),
            split_q: true,
            split_k: true,
            ..PLAIN
        };
        let laid = host.laid(layout);
        let problem = laid.problem();
        Plan::new(&problem).unwrap();
        call(&problem);
    }
}

/// Keys chosen in a paged cache and a second one.
fn with_sparse(call: impl Fn(&Problem)) {
    let host = Host::new(HEADS, DIMS, &LENS.map(|len| (2, len)));
    let laid = host.laid(paged(PAGE));
    let problem = laid.problem();
    let places = Indices {
        indices: &[0, 5, -1, 17, 3, 3, 90, 2, 1, 0, 4, 8],
        strides: [6, 3],
        topk: 3,
        topk_length: Some(&[3, 2]),
    };
    let sparse = Sparse {
        indices: places,
        extra: Some(Extra {
            kv: problem.kv,
            pages: problem.pages.unwrap().pages,
            page_size: PAGE,
            indices: places,
        }),
    };
    let problem = with(&problem, |p| p.sparse = Some(sparse));
    Plan::new(&problem).unwrap();
    call(&problem);
}

fn with<'a>(problem: &Problem<'a>, change: impl FnOnce(&mut Problem<'a>)) -> Problem<'a> {
    let mut problem = *problem;
    change(&mut problem);
    problem
}

fn out_of_range(argument: Argument, value: usize, min: usize, max: usize) -> Error {
    Error::OutOfRange {
        argument,
        value,
        min,
        max,
    }
}

fn wrong_length(argument: Argument, len: usize, expected: usize) -> Error {
    Error::WrongLength {
        argument,
        len,
        expected,
    }
}

fn too_short(argument: Argument, len: usize, needed: usize) -> Error {
    Error::TooShort {
        argument,
        len,
        needed,
    }
}

/// Says how many calls a test saw denied, past the harness's capture only if asked to.
fn report(what: &str, caller: &Caller, least: usize) {
    println!("{what}: {} calls denied", caller.denied);
    assert!(caller.denied >= least, "{}", caller.denied);
}

// -------------------------------------------------------------------------------------------------
// Tensors
// -------------------------------------------------------------------------------------------------

type Place = for<'a, 'b> fn(&'b mut Problem<'a>) -> &'b mut Tensor<'a>;

const TENSORS: [(Argument, usize, Place); 5] = [
    (Argument::Q, DIMS.1, |p| &mut p.q),
    (Argument::QRope, DIMS.0 - DIMS.1, |p| {
        p.q_rope.as_mut().unwrap()
    }),
    (Argument::Kv, DIMS.1, |p| &mut p.kv),
    (Argument::KRope, DIMS.0 - DIMS.1, |p| {
        p.k_rope.as_mut().unwrap()
    }),
    (Argument::V, DIMS.1, |p| p.v.as_mut().unwrap()),
];

const EXTRA: (Argument, usize, Place) = (Argument::ExtraKv, DIMS.0, |p| {
    &mut p.sparse.as_mut().unwrap().extra.as_mut().unwrap().kv
});

/// Dimensions of a tensor's rows.
fn dims(problem: &Problem, argument: Argument) -> [usize; 3] {
    let s = &problem.shape;
    let end = |indptr: &[i32]| usize::try_from(*indptr.last().unwrap()).unwrap();
    let pages = problem
        .pages
        .map(|pages| [pages.pages, pages.page_size, s.h_kv]);
    match argument {
        Argument::Q | Argument::QRope => match problem.q_indptr {
            Some(indptr) => [1, end(indptr), s.h_q],
            None => [s.b, s.s_q, s.h_q],
        },
        _ => match (pages, problem.kv_indptr) {
            (Some(pages), _) => pages,
            (None, Some(indptr)) => [1, end(indptr), s.h_kv],
            (None, None) => [s.b, s.s_k, s.h_kv],
        },
    }
}

fn deny_tensor(
    caller: &mut Caller,
    good: &Problem,
    (argument, width, at): (Argument, usize, Place),
) {
    let dims = dims(good, argument);
    let mut copy = *good;
    let Tensor { data, strides } = *at(&mut copy);
    let Data::Bf16(data) = data else {
        unreachable!()
    };
    let extent = |strides: [usize; 3]| -> usize {
        dims.iter()
            .zip(strides)
            .map(|(dim, stride)| (dim - 1) * stride)
            .sum()
    };
    let needed = extent(strides) + width;
    let halves: Vec<f16> = vec![f16::ONE; needed];
    let values = vec![1; needed];
    let scales = vec![1.0; dims.iter().product()];
    let scale_strides = [dims[1] * dims[2], dims[2], 1];
    let int8 = |values, scales, strides| Data::Int8 {
        values,
        scales,
        strides,
    };
    let mut deny = |want, data, strides| {
        let bad = with(good, |p| *at(p) = Tensor { data, strides });
        caller.problem(&bad, good, want);
    };
    for len in [0, 1, needed / 2, needed - 1] {
        let want = too_short(argument, len, needed);
        deny(want, Data::Bf16(&data[..len]), strides);
        deny(want, Data::F16(&halves[..len]), strides);
        deny(want, int8(&values[..len], &scales, scale_strides), strides);
    }
    for len in [0, scales.len() - 1] {
        let want = too_short(Argument::Scales, len, scales.len());
        deny(want, int8(&values, &scales[..len], scale_strides), strides);
    }
    for dimension in (0..3).filter(|&dimension| dims[dimension] > 1) {
        let mut longer = strides;
        longer[dimension] += 1;
        let want = too_short(argument, needed, extent(longer) + width);
        deny(want, Data::Bf16(&data[..needed]), longer);
        for stride in [usize::MAX, usize::MAX - width + 1] {
            let overflow = |argument| Error::Overflow {
                argument,
                dimension,
            };
            let mut vast = strides;
            vast[dimension] = stride;
            deny(overflow(argument), Data::Bf16(data), vast);
            deny(overflow(argument), Data::F16(&halves), vast);
            let mut vast = scale_strides;
            vast[dimension] = usize::MAX;
            deny(
                overflow(Argument::Scales),
                int8(&values, &scales, vast),
                strides,
            );
        }
    }
    for data in [
        Data::Fp8(&[0; 656]),
        Data::Model1 {
            bytes: &[0; 584],
            scales: 576,
            scale_stride: 8,
        },
    ] {
        deny(Error::Format { argument, width }, data, strides);
    }
}

#[test]
fn tensors() {
    let caller = RefCell::new(Caller::new());
    with_apart(|good| {
        for tensor in TENSORS {
            deny_tensor(&mut caller.borrow_mut(), good, tensor);
        }
    });
    with_sparse(|good| deny_tensor(&mut caller.borrow_mut(), good, EXTRA));
    report("tensors", &caller.borrow(), 4000);
}

// -------------------------------------------------------------------------------------------------
// Sizes, lists and options
// -------------------------------------------------------------------------------------------------

#[test]
fn sizes_and_options() {
    let caller = RefCell::new(Caller::new());
    with_apart(|good| {
        let deny = |want, change: &dyn Fn(&mut Problem)| {
            caller.borrow_mut().problem(&with(good, change), good, want);
        };
        type Set = fn(&mut Shape) -> &mut usize;
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
        for tail in [MAX + 1, usize::MAX] {
            deny(out_of_range(Argument::TailMask, tail, 0, MAX), &|p| {
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
            (Argument::Indices, Argument::KRope, |p| {
                p.sparse = Some(NOTHING_CHOSEN)
            }),
        ] {
            // Ragged queries are the first conflict that sparse attention is told of.
            let second = match (first, good.q_indptr) {
                (Argument::Indices, Some(_)) => Argument::QIndptr,
                _ => second,
            };
            deny(Error::Conflict { first, second }, &change);
        }
    });
    report("sizes and options", &caller.borrow(), 1500);
}

const NOTHING_CHOSEN: Sparse<'static> = Sparse {
    indices: Indices {
        indices: &[],
        strides: [0; 2],
        topk: 0,
        topk_length: None,
    },
    extra: None,
};

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
        page_size: PAGE,
        pages: 0,
    });
}

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
    let max_blocks = usize::MAX;
    given(
        1,
        Pages {
            max_blocks,
            ..pages
        },
        want,
    );

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
            let places = sparse.indices;
            for len in [0, 1, 11] {
                let indices = &places.indices[..len];
                deny(Indices { indices, ..places }, too_short(list, len, 12));
            }
            for topk in [1 << 30, MAX, usize::MAX] {
                let want = out_of_range(list, topk, 0, MAX / 2);
                deny(Indices { topk, ..places }, want);
            }
            for dimension in 0..2 {
                let mut strides = places.strides;
                strides[dimension] = usize::MAX;
                let want = Error::Overflow {
                    argument: list,
                    dimension,
                };
                deny(Indices { strides, ..places }, want);
            }
            for len in [0, 1, 3] {
                let topk_length = Some(&[1; 3][..len]);
                let want = wrong_length(length, len, 2);
                deny(
                    Indices {
                        topk_length,
                        ..places
                    },
                    want,
                );
            }
            for (lengths, request) in &lengths {
                let want = Error::TopkLength {
                    argument: length,
                    request: *request,
                    value: lengths[*request],
                    limit: 3,
                };
                let topk_length = Some(&lengths[..]);
                deny(
                    Indices {
                        topk_length,
                        ..places
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
        let pages = out_of_range(Argument::Pages, MAX + 1, 0, MAX);
        deny(extra(&|extra| extra.pages = MAX + 1), pages);
    });
    report("chosen keys", &caller.borrow(), 400);
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
            if d_v > d_qk || SUPPORTED_DIMS.contains(&(d_qk, d_v)) {
                continue;
            }
            let bad = with(&good, |p| {
                (p.shape.d_qk, p.shape.d_v) = (d_qk, d_v);
                (p.q.data, p.kv.data) = (Data::Bf16(&numbers), Data::Bf16(&numbers));
            });
            let want = Error::UnsupportedDims {
                d_qk,
                d_v,
                supported: SUPPORTED_DIMS,
            };
            caller.problem(&bad, &good, want);
        }
    }
    report("widths", &caller, 500);
}

// -------------------------------------------------------------------------------------------------
// Outputs, plans, partial results
// -------------------------------------------------------------------------------------------------

#[test]
fn outputs() {
    let mut caller = Caller::new();
    let host = Host::new(HEADS, DIMS, &LENS.map(|len| (2, len)));
    let laid = host.laid(PLAIN);
    let good = laid.problem();
    let plan = Plan::new(&good).unwrap();
    let rows = rows(&good);
    let sizes = [
        (Argument::O, rows * DIMS.1, DIMS.1),
        (Argument::Lse, rows, 1),
    ];
    for (argument, needed, width) in sizes {
        let of_o = argument == Argument::O;
        let dims = if of_o {
            [2, 2, HEADS[0]]
        } else {
            [2, HEADS[0], 2]
        };
        let mut deny = |want, change: &dyn Fn(&mut Output)| {
            let options = Options::default();
            let shape = good.shape;
            caller.output(shape, want, change, |output, workspace, _| {
                decode(&good, &options, workspace, output)
            });
            caller.output(shape, want, change, |output, _, partials| {
                combine(&good, &plan, partials, output)
            });
            caller.output(shape, want, change, |output, _, _| {
                merge(&shape, output, &[])
            });
        };
        for len in [0, 1, needed / 2, needed - 1] {
            deny(too_short(argument, len, needed), &|output| {
                shorten(output, of_o, len)
            });
        }
        for dimension in 0..3 {
            let strides = |output: &mut Output, stride| {
                let strides = if of_o {
                    &mut output.o_strides
                } else {
                    &mut output.lse_strides
                };
                strides[dimension] = stride;
            };
            let overflow = Error::Overflow {
                argument,
                dimension,
            };
            deny(overflow, &|output| strides(output, usize::MAX));
            assert!(dims[dimension] > 1);
            // In the place of the next one's rows.
            let overlap = Error::Overlap {
                argument,
                dimension,
                stride: 0,
                min: width,
            };
            deny(overlap, &|output| strides(output, 0));
        }
    }
    report("outputs", &caller, 150);
}

fn shorten(output: &mut Output, of_o: bool, len: usize) {
    if !of_o {
        output.lse = &mut std::mem::take(&mut output.lse)[..len];
        return;
    }
    let o = std::mem::replace(&mut output.o, Elements::F32(&mut []));
    output.o = match o {
        Elements::F32(o) => Elements::F32(&mut o[..len]),
        Elements::Bf16(o) => Elements::Bf16(&mut o[..len]),
        Elements::F16(o) => Elements::F16(&mut o[..len]),
    };
}

/// Tasks that there aren't, too little memory for them, and plans of other problems.
#[test]
fn plans_and_tasks() {
    let mut caller = Caller::new();
    let options = Options::default();
    with_apart_one(|good| {
        let plan = Plan::new(good).unwrap();
        let (tasks, len) = (plan.tasks(), plan.partial_len());
        let Caller {
            workspace,
            partials,
            ..
        } = &mut Caller::new();
        for task in [tasks, tasks + 1, usize::MAX] {
            let want = out_of_range(Argument::Task, task, 0, tasks - 1);
            let result = run_task(good, &options, &plan, task, workspace, partials);
            caller.same(result, want);
        }
        for room in [0, 1, len - 1] {
            let want = too_short(Argument::Partials, room, len);
            let result = run_task(good, &options, &plan, 0, workspace, &mut partials[..room]);
            caller.same(result, want);
        }
        assert!(untouched(partials));
        for room in [0, len, tasks * len - 1] {
            let want = too_short(Argument::Partials, room, tasks * len);
            caller.output(
                good.shape,
                want,
                |_| (),
                |output, _, partials| combine(good, &plan, &mut partials[..room], output),
            );
        }
        let others: [fn(&mut Problem); 5] = [
            |p| p.shape.b = 1,
            |p| p.shape.s_q = 1,
            |p| p.shape.s_k = 39,
            |p| p.window = Some(5),
            |p| p.cache_seqlens = Some(&[40, 6]),
        ];
        for change in others {
            let mut other = *good;
            change(&mut other);
            other.cache_seqlens = match (other.shape.b, other.shape.s_k, other.cache_seqlens) {
                (1, ..) => Some(&[40]),
                (_, 39, _) => Some(&[39, 7]),
                (.., lens) => lens,
            };
            let want = Error::PlanMismatch {
                planned: good.shape,
                given: other.shape,
            };
            let result = run_task(&other, &options, &plan, 0, workspace, partials);
            caller.same(result, want);
            assert!(untouched(partials));
            caller.output(
                good.shape,
                want,
                |_| (),
                |output, _, partials| combine(&other, &plan, partials, output),
            );
        }
    });
    report("plans and tasks", &caller, 30);
}

fn with_apart_one(call: impl FnOnce(&Problem)) {
    let host = Host::new(HEADS, DIMS, &LENS.map(|len| (2, len))).separate_v();
    let laid = host.laid(PLAIN);
    call(&laid.problem());
}

/// Parts of other lengths than the total's, and totals of less than FP32.
#[test]
fn merging() {
    let mut caller = Caller::new();
    let shape = Shape {
        b: 2,
        s_q: 2,
        s_k: 0,
        h_q: HEADS[0],
        h_kv: 1,
        d_qk: DIMS.0,
        d_v: DIMS.1,
    };
    let rows = 2 * 2 * HEADS[0];
    let (o, lse) = (vec![1.0; rows * DIMS.1 + 1], vec![1.0; rows + 1]);
    let (mut total, mut total_lse) = (vec![PATTERN; rows * DIMS.1], vec![PATTERN; rows]);
    for place in 0..3 {
        for (wrong_o, wrong_lse) in [(1, 0), (0, 1), (2, 0), (0, 2)] {
            let lens = |wrong: usize, right: usize| [right, right - 1, right + 1][wrong];
            let (o_len, lse_len) = (lens(wrong_o, rows * DIMS.1), lens(wrong_lse, rows));
            let mut parts = [Part {
                o: &o[..rows * DIMS.1],
                lse: &lse[..rows],
            }; 3];
            parts[place] = Part {
                o: &o[..o_len],
                lse: &lse[..lse_len],
            };
            let want = match wrong_lse {
                0 => wrong_length(Argument::O, o_len, rows * DIMS.1),
                _ => wrong_length(Argument::Lse, lse_len, rows),
            };
            let output = Output {
                lse_format: Lse::default(),
                ..Output::dense(shape, Elements::F32(&mut total), &mut total_lse)
            };
            caller.same(merge(&shape, output, &parts), want);
            assert!(untouched(&total) && untouched(&total_lse));
        }
    }
    report("merging", &caller, 12);
}
