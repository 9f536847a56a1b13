//! Outputs, plans and partial results.

use std::ops::Range;

use amla::{
    Argument, Elements, Error, Lse, Options, Output, Pages, Part, Plan, Problem, ProblemShape,
    combine, decode, merge, run_tasks,
};

use crate::caller::{
    Caller, DIMS, HEADS, LENS, PAGE, out_of_range, report, too_short, wrong_length,
};
use crate::host::{Host, PATTERN, PLAIN, paged, plan_mismatch, rows, untouched};

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
        (Argument::MaxLogits, rows, 1),
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
            let mut max_logits = vec![PATTERN; rows];
            let mut call = |output: Output, call: &mut dyn FnMut(Output) -> Result<(), Error>| {
                let mut output = output;
                if argument == Argument::MaxLogits {
                    // In its place, with what was wrong with it.
                    let lens = output.lse.take().map_or(0, |lse| lse.len());
                    output.max_logits = Some(&mut max_logits[..lens.min(rows)]);
                }
                call(output)
            };
            caller.output(shape, want, change, |output, workspace, _| {
                call(output, &mut |output| {
                    decode(&good, &options, workspace, output)
                })
            });
            caller.output(shape, want, change, |output, _, partials| {
                call(output, &mut |output| {
                    let rows = 0..plan.merges();
                    combine(&good, &plan, rows, partials, &output.into())
                })
            });
            caller.output(shape, want, change, |output, workspace, partials| {
                call(output, &mut |output| {
                    let (tasks, output) = (0..plan.tasks(), &output.into());
                    run_tasks(&good, &options, &plan, tasks, workspace, partials, output)
                })
            });
            caller.output(shape, want, change, |output, _, _| {
                call(output, &mut |output| merge(&shape, output, &[]))
            });
            assert!(untouched(&max_logits));
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
            // The next one's rows are the same elements.
            let overlap = Error::Overlap {
                argument,
                dimension,
                stride: 0,
                min: width,
            };
            deny(overlap, &|output| strides(output, 0));
        }
    }
    report("outputs", &caller, 300);
}

fn shorten(output: &mut Output, of_o: bool, len: usize) {
    if !of_o {
        output.lse = output.lse.take().map(|lse| &mut lse[..len]);
        return;
    }
    let o = std::mem::replace(&mut output.o, Elements::F32(&mut []));
    output.o = match o {
        Elements::F32(o) => Elements::F32(&mut o[..len]),
        Elements::Bf16(o) => Elements::Bf16(&mut o[..len]),
        Elements::F16(o) => Elements::F16(&mut o[..len]),
    };
}

/// Tasks and rows that don't exist, and plans of other problems.
#[test]
fn plans_and_tasks() {
    let mut caller = Caller::new();
    with_apart_one(|good| {
        let plan = Plan::new(good).unwrap();
        let (tasks, shape) = (plan.tasks(), good.shape);
        for task in [tasks, tasks + 1, usize::MAX] {
            let want = out_of_range(Argument::Task, task.saturating_add(1), 0, tasks);
            caller.run(good, shape, &plan, task..task.saturating_add(1), 0, want);
        }
        let reversed = Range { start: 1, end: 0 };
        let want = out_of_range(Argument::Task, 1, 0, 0);
        caller.run(good, shape, &plan, reversed, 0, want);
        // None of them has a partial result.
        assert_eq!((plan.partials_len(), plan.merges()), (0, 0));
        for end in [1, usize::MAX] {
            let want = out_of_range(Argument::Merges, end, 0, 0);
            caller.combine(good, shape, &plan, 0..end, 0, want);
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
            let want = plan_mismatch(good, &other);
            caller.run(&other, shape, &plan, 0..1, 0, want);
            caller.combine(&other, shape, &plan, 0..0, 0, want);
        }
    });
    report("plans and tasks", &caller, 48);
}

/// Too little memory for partial results, merges that don't exist, and pages that don't.
#[test]
fn partial_results() {
    let mut caller = Caller::new();
    let host = Host::new(HEADS, DIMS, &[(1, 5000)]);
    let laid = host.laid(paged(PAGE));
    let long = &laid.problem();
    let plan = Plan::new(long).unwrap();
    let (tasks, len) = (plan.partial_tasks(), plan.partial_len());
    assert!(tasks == plan.tasks() && tasks > 2);
    let (merges, shape) = (plan.merges(), long.shape);
    let strips = DIMS.1.div_ceil(amla::tile::STRIP);
    assert_eq!(
        (merges, plan.partials_len()),
        (HEADS[0] * strips, tasks * len)
    );
    for (run, needed) in [
        (1..2, len),
        (0..tasks, tasks * len),
        (1..tasks, (tasks - 1) * len),
    ] {
        for room in [0, 1, needed - 1] {
            let want = too_short(Argument::Partials, room, needed);
            caller.run(long, shape, &plan, run.clone(), room, want);
        }
    }
    for room in [0, len, tasks * len - 1] {
        let want = too_short(Argument::Partials, room, tasks * len);
        for range in [0..0, 0..1, 0..merges] {
            caller.combine(long, shape, &plan, range, room, want);
        }
    }
    let reversed = Range { start: 3, end: 2 };
    for (wrong, value, max) in [
        (0..merges + 1, merges + 1, merges),
        (merges..merges + 1, merges + 1, merges),
        (0..usize::MAX, usize::MAX, merges),
        (reversed, 3, 2),
    ] {
        let want = out_of_range(Argument::Merges, value, 0, max);
        caller.combine(long, shape, &plan, wrong, tasks * len, want);
    }
    let pages = long.pages.unwrap();
    for index in [0, 100, 5000 / PAGE] {
        let mut table = pages.block_table.to_vec();
        table[index] = -1;
        let bad = Problem {
            pages: Some(Pages {
                block_table: &table,
                ..pages
            }),
            ..*long
        };
        let want = Error::Page {
            request: 0,
            index,
            value: -1,
            limit: pages.pages,
        };
        caller.tasks(&bad, long, want, &[0, 1, tasks - 1]);
    }
    report("partial results", &caller, 100);
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
    let shape = ProblemShape {
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
    for index in 0..3 {
        for (wrong_o, wrong_lse) in [(1, 0), (0, 1), (2, 0), (0, 2)] {
            let lens = |wrong: usize, right: usize| [right, right - 1, right + 1][wrong];
            let (o_len, lse_len) = (lens(wrong_o, rows * DIMS.1), lens(wrong_lse, rows));
            let mut parts = [Part {
                o: &o[..rows * DIMS.1],
                lse: &lse[..rows],
                max_logits: None,
            }; 3];
            parts[index] = Part {
                o: &o[..o_len],
                lse: &lse[..lse_len],
                max_logits: None,
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
