//! Plans, tasks and partial results that belong to another problem, are out of range or too short.

use std::ops::Range;

use amla::{Argument, Elements, Error, Options, Output, Plan, SharedOutput, combine, run_tasks};

use crate::calls::{MEDIUM, SMALL, bits, default_on, dense, pattern};
use crate::common::{Case, backends, run_unseen, workspace};
use crate::refusals::{assert_refused, good, untouched};

#[test]
fn refuses_tasks_out_of_range() {
    let case = good();
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    assert_eq!(plan.tasks(), 2);
    for backend in backends() {
        for task in [2, 3, usize::MAX] {
            let mut partial = pattern(plan.partial_len());
            let options = default_on(backend);
            let end = task.saturating_add(1);
            let result = run_unseen(
                &problem,
                &options,
                &plan,
                task..end,
                &mut workspace(),
                &mut partial,
            );
            let want = Error::OutOfRange {
                argument: Argument::Task,
                value: end,
                min: 0,
                max: 2,
            };
            let text = format!("task is {end}, not in 0..=2");
            assert_refused(result, &(want, text), "run_tasks");
            assert_eq!(bits(&partial), bits(&pattern(partial.len())));
        }
    }
}

#[test]
fn refuses_short_partials() {
    let case = Case::new(1, 1, 9000, 5, SMALL);
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    assert_eq!((plan.tasks(), plan.partial_tasks()), (4, 4));
    let dense = |output: &mut Output| {
        let dense = Output::dense(problem.shape, Elements::F32(&mut []), &mut []);
        (output.o_strides, output.lse_strides) = (dense.o_strides, dense.lse_strides);
    };
    let error = |len, needed| {
        let want = Error::TooShort {
            argument: Argument::Partials,
            len,
            needed,
        };
        let text = want.to_string();
        assert!(text.starts_with("partials holds "), "{text}");
        assert!(text.contains(&len.to_string()) && text.contains(&needed.to_string()));
        (want, text)
    };
    let needed = plan.partial_len();
    for len in [0, 1, needed - 1] {
        let want = error(len, needed);
        for backend in backends() {
            let mut partial = pattern(len);
            let options = default_on(backend);
            let mut workspace = workspace();
            let result = run_unseen(
                &problem,
                &options,
                &plan,
                1..2,
                &mut workspace,
                &mut partial,
            );
            assert_refused(result, &want, "run_tasks");
            assert_eq!(bits(&partial), bits(&pattern(len)));
        }
    }
    let needed = 4 * needed;
    for len in [0, needed / 2, needed - 1] {
        let want = error(len, needed);
        let partials = pattern(len);
        let call = |output: Output| combine(&problem, &plan, 0..5, &partials, &output.into());
        untouched(case.sizes(), dense, call, &want, "combine");
    }
    let partials = pattern(needed);
    #[expect(clippy::reversed_empty_ranges, reason = "is refused")]
    for (merges, value, max) in [
        (0..11, 11, 10),
        (3..2, 3, 2),
        (usize::MAX..10, usize::MAX, 10),
    ] {
        let want = Error::OutOfRange {
            argument: Argument::Merges,
            value,
            min: 0,
            max,
        };
        let text = format!("merges is {value}, not in 0..={max}");
        let call =
            |output: Output| combine(&problem, &plan, merges.clone(), &partials, &output.into());
        untouched(case.sizes(), dense, call, &(want, text), "combine");
    }
}

#[test]
fn refuses_plans_of_another_shape() {
    let case = good();
    let problem = case.problem();
    let plans = [
        Case::new(3, 2, 40, 3, SMALL),
        Case::new(2, 200, 40, 3, SMALL),
        Case::new(2, 2, 2000, 3, SMALL),
        // These have as many tasks.
        Case::new(2, 1, 40, 3, SMALL),
        Case::new(2, 2, 39, 3, SMALL),
        Case::new(2, 2, 40, 4, SMALL),
        Case::new(2, 2, 40, 3, MEDIUM),
    ];
    for other in &plans {
        let plan = Plan::new(&other.problem()).unwrap();
        let mut partials = pattern(plan.partials_len() + 100_000);
        let len = partials.len();
        for backend in backends() {
            let options = default_on(backend);
            let mut workspace = workspace();
            let error = run_unseen(
                &problem,
                &options,
                &plan,
                0..1,
                &mut workspace,
                &mut partials,
            )
            .expect_err("run_tasks");
            assert_eq!(bits(&partials), bits(&pattern(len)));
            let call = |output: Output| combine(&problem, &plan, 0..0, &partials, &output.into());
            let want = (error, error.to_string());
            untouched(case.sizes(), |_| {}, call, &want, "combine");
        }
    }
    // The same shape, other lengths: shorter ones make fewer tasks.
    let mut long = Case::new(1, 1, 3000, 1, SMALL);
    let plan = Plan::new(&long.problem()).unwrap();
    long.lens = Some(vec![10]);
    let mut partials = pattern(plan.partials_len());
    let mut workspace = workspace();
    let (problem, options) = (long.problem(), Options::default());
    let result = run_unseen(
        &problem,
        &options,
        &plan,
        0..1,
        &mut workspace,
        &mut partials,
    );
    let want = Error::PlanMismatch {
        argument: Argument::CacheSeqlens,
        planned: None,
        given: Some(10),
    };
    assert_eq!(result, Err(want));
    assert_eq!(bits(&partials), bits(&pattern(partials.len())));
}

#[test]
fn plans_of_another_shape_with_as_many_tasks_are_told_apart() {
    let case = good();
    let plan = Plan::new(&Case::new(2, 2, 39, 3, SMALL).problem()).unwrap();
    let problem = case.problem();
    let (mut o, mut lse) = (vec![0.0; case.sizes().0], vec![0.0; case.sizes().1]);
    let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
    let error = combine(&problem, &plan, 0..0, &[], &output.into()).unwrap_err();
    let want = Error::PlanMismatch {
        argument: Argument::SK,
        planned: Some(39),
        given: Some(40),
    };
    assert_eq!(error, want);
    assert_eq!(error.to_string(), "the plan is for s_k 39, not 40");
}

/// Of a plan's numbers that differ in one word: its sizes, its counts, totals and hashes of its lists,
/// its tasks and rows. The call has cache_seqlens 40, 7.
fn first_difference(word: usize, planned: u64, given: u64) -> Error {
    const ARGUMENTS: [Argument; 16] = [
        Argument::B,
        Argument::SQ,
        Argument::SK,
        Argument::HQ,
        Argument::HKv,
        Argument::DQk,
        Argument::DV,
        Argument::Window,
        Argument::Topk,
        Argument::ExtraTopk,
        Argument::SplitKeys,
        Argument::QIndptr,
        Argument::KvIndptr,
        Argument::CacheSeqlens,
        Argument::TopkLength,
        Argument::ExtraTopkLength,
    ];
    let (argument, hash) = match word {
        0..11 => (ARGUMENTS[word], false),
        11..21 => (ARGUMENTS[11 + (word - 11) / 2], word.is_multiple_of(2)),
        _ => (Argument::Plan, false),
    };
    let there = |value: u64| match argument {
        Argument::Window | Argument::Topk | Argument::ExtraTopk | Argument::SplitKeys => {
            value != usize::MAX as u64
        }
        _ => !hash || value != 0,
    };
    let number = |value: u64| {
        let total = if argument == Argument::CacheSeqlens {
            47
        } else {
            0
        };
        there(value).then_some(if hash { total } else { value })
    };
    Error::PlanMismatch {
        argument,
        planned: number(planned),
        given: number(given),
    }
}

#[test]
fn a_mismatch_is_told_in_words() {
    let told = |argument, planned, given| {
        let error = Error::PlanMismatch {
            argument,
            planned,
            given,
        };
        error.to_string()
    };
    let lens = Argument::CacheSeqlens;
    for (got, want) in [
        (
            told(Argument::SQ, Some(1), Some(2)),
            "the plan is for s_q 1, not 2",
        ),
        (
            told(Argument::Window, None, Some(2)),
            "the plan is for a call without window",
        ),
        (
            told(lens, Some(47), None),
            "the plan is for a call with cache_seqlens",
        ),
        (
            told(lens, Some(47), Some(46)),
            "the plan is for cache_seqlens of 47 rows in all, not 46",
        ),
        (
            told(lens, Some(47), Some(47)),
            "the plan is for other cache_seqlens, also of 47 rows in all",
        ),
        (
            told(Argument::Plan, Some(1), Some(2)),
            "the plan is damaged, or from another build",
        ),
    ] {
        assert_eq!(got, want);
    }
}

#[test]
fn plans_survive_as_numbers() {
    let mut case = good();
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    let words = plan.to_words();
    assert_eq!(Plan::from_words(words), Some(plan));
    // Numbers that no plan has, and those of a plan that isn't this problem's.
    let mut told = 0;
    for i in 0..Plan::WORDS {
        for value in [0, 1, 257, 1 << 20, u64::MAX] {
            let mut other = words;
            other[i] = value;
            if other == words {
                continue;
            }
            let Some(other) = Plan::from_words(other) else {
                continue;
            };
            told += 1;
            let mut partials = pattern(plan.partial_len());
            let (options, mut workspace) = (Options::default(), workspace());
            let call = |output: Output| combine(&problem, &other, 0..0, &partials, &output.into());
            let error = first_difference(i, value, words[i]);
            let want = (error, error.to_string());
            untouched(case.sizes(), |_| {}, call, &want, "combine");
            let result = run_unseen(
                &problem,
                &options,
                &other,
                0..1,
                &mut workspace,
                &mut partials,
            );
            assert_eq!(result, Err(error));
            assert_eq!(bits(&partials), bits(&pattern(partials.len())));
        }
    }
    assert!(told > 60, "{told} plans told apart");
    let [rows, split, absent] = [Plan::WORDS - 1, 10, 11];
    for (i, value) in [
        (5, 575),
        (6, 511),
        (rows, 0),
        (rows, 257),
        (split, 33),
        (absent, 5),
    ] {
        let mut none = words;
        none[i] = value;
        assert_eq!(Plan::from_words(none), None, "word {i} = {value}");
    }
    case.lens = None;
    assert_ne!(Plan::new(&case.problem()).unwrap().to_words(), words);
}

#[test]
fn neighbouring_tasks_are_tasks() {
    let mut case = Case::new(3, 2, 2600, 3, SMALL);
    case.lens = Some(vec![2600, 0, 2300]);
    let (problem, options) = (case.problem(), Options::default());
    let plan = Plan::new(&problem).unwrap();
    let (tasks, len) = (plan.tasks(), plan.partial_len());
    // A request without keys has its results at once.
    assert_eq!((tasks, plan.partial_tasks()), (5, 4));
    let mut workspace = workspace();
    let mut run = |ranges: &[Range<usize>]| {
        let mut partials = pattern(4 * len);
        let output = dense(problem.shape, |output| {
            let output = &SharedOutput::from(output);
            ranges.iter().try_for_each(|tasks| {
                let own = &mut partials[tasks.start.min(4) * len..];
                let tasks = tasks.clone();
                run_tasks(
                    &problem,
                    &options,
                    &plan,
                    tasks,
                    &mut workspace,
                    own,
                    output,
                )
            })
        });
        (output, bits(&partials))
    };
    for (begin, end) in (0..=tasks).flat_map(|end| (0..=end).map(move |begin| (begin, end))) {
        let single: Vec<_> = (begin..end).map(|task| task..task + 1).collect();
        let (got, want) = (run(std::slice::from_ref(&(begin..end))), run(&single));
        assert!(got == want, "{begin}..{end}");
        // Nothing but what they are about.
        let untouched = bits(&pattern(4 * len));
        let [before, after] = [begin, end].map(|task| task.min(4) * len);
        assert_eq!(got.1[..before], untouched[..before]);
        assert_eq!(got.1[after..], untouched[after..]);
        let unwritten = bits(&pattern(got.0.1.len()));
        let written = (got.0.1.iter().zip(&unwritten)).filter(|(a, b)| a != b);
        assert_eq!(
            written.count(),
            if (begin..end).contains(&4) { 6 } else { 0 }
        );
    }
    let out_of_range = |value, max| Error::OutOfRange {
        argument: Argument::Task,
        value,
        min: 0,
        max,
    };
    let short = Error::TooShort {
        argument: Argument::Partials,
        len: 4 * len - 1,
        needed: 4 * len,
    };
    let mut partials = pattern(4 * len - 1);
    #[expect(clippy::reversed_empty_ranges, reason = "is refused")]
    for (range, want) in [
        (0..tasks + 1, out_of_range(tasks + 1, tasks)),
        (usize::MAX - 1..usize::MAX, out_of_range(usize::MAX, tasks)),
        (2..1, out_of_range(2, 1)),
        (0..tasks, short),
    ] {
        let result = run_unseen(
            &problem,
            &options,
            &plan,
            range,
            &mut workspace,
            &mut partials,
        );
        assert_eq!(result, Err(want));
        assert_eq!(bits(&partials), bits(&pattern(partials.len())));
    }
}
