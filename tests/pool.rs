//! A plan on rayon and on other pools: the same bits for any number of threads.

mod common;

use std::thread;

use amla::{
    Argument, Elements, Error, Options, Output, ParallelFor, Plan, Problem, ProblemShape, Rayon,
    Workspace, decode, decode_on,
};
use common::{Case, backends, normal, workspace};
use half::{bf16, f16};
use rayon::ThreadPoolBuilder;

fn ragged() -> Case {
    let mut case = Case::new(5, 2, 5000, 33, (128, 128));
    case.lens = Some(vec![5000, 0, 1500, 333, 4096]);
    case.causal = true;
    case
}

/// Threads to plan for, where as many tasks as possible are wanted.
const MANY: usize = 1 << 20;

/// Ragged requests, rows enough for three threads (the last of them few, one not finite; a value that isn't), and too few for two.
#[test]
fn any_number_of_threads() {
    let mut rows = Case::new(1, 2, 2100, 70, (64, 64));
    rows.causal = true;
    let keys = Case::new(1, 1, 9000, 5, (64, 64));
    let mut spoiled = Case::new(1, 1, 600, 70, (576, 512));
    spoiled.q_row(0, 0, 64)[100] = bf16::NAN;
    let mut values = Case::new(1, 1, 300, 130, (576, 512));
    values.value_in_key(0, 20)[3] = bf16::INFINITY;
    // Sixteen ranges, which threads take with all panels.
    let long = Case::new(1, 1, 65_536, 66, (64, 64));
    let cases = [ragged(), rows, keys, spoiled, values, long];
    for (case, backend) in cases
        .iter()
        .flat_map(|case| backends().map(move |b| (case, b)))
    {
        let options = Options {
            backend,
            ..Options::default()
        };
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let (want_o, want_lse) = case.run(&options);
        let problem = case.problem();
        let mut want_max = vec![0.0; want_lse.len()];
        let (mut o, mut lse) = (vec![0.0; want_o.len()], vec![0.0; want_lse.len()]);
        let output = Output {
            max_logits: Some(&mut want_max),
            ..Output::dense(case.shape, Elements::F32(&mut o), &mut lse)
        };
        decode(&problem, &options, &mut workspace(), output).unwrap();
        for (threads, planned) in [(1, 1), (2, 2), (3, MANY), (7, 7)] {
            let plan = Plan::for_threads(&problem, planned).unwrap();
            let pool = ThreadPoolBuilder::new().num_threads(threads).build();
            let mut workspaces: Vec<Box<Workspace>> = (0..threads).map(|_| workspace()).collect();
            let mut partials = vec![f32::NAN; plan.partials_len()];
            let (mut o, mut lse) = (vec![0.0; want_o.len()], vec![0.0; want_lse.len()]);
            let mut max = vec![0.0; want_max.len()];
            let output = Output {
                max_logits: Some(&mut max),
                ..Output::dense(case.shape, Elements::F32(&mut o), &mut lse)
            };
            pool.unwrap()
                .install(|| {
                    decode_on(
                        &Rayon,
                        &problem,
                        &options,
                        &plan,
                        &mut workspaces,
                        &mut partials,
                        output,
                    )
                })
                .unwrap();
            let same = bits(&o) == bits(&want_o)
                && bits(&lse) == bits(&want_lse)
                && bits(&max) == bits(&want_max);
            assert!(same, "{backend:?}, {threads} threads");
        }
    }
}

/// The same bits wherever rows are, and nothing between them.
#[test]
fn outputs_of_any_order_and_format() {
    let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let (b, s_q, h_q, d_v) = (2, 2, 34, 64);
    for (h_kv, s_k) in [(1, 2060), (2, 200), (1, 0)] {
        let mut case = Case::new(b, s_q, s_k, h_q, (64, d_v));
        case.shape.h_kv = h_kv;
        case.kv = normal(3, 1.0, b * s_k * h_kv * 64);
        let problem = case.problem();
        let plan = Plan::new(&problem).unwrap();
        for (gap, strides) in [
            (0, [s_q * h_q * d_v, h_q * d_v, d_v]),
            (
                9,
                [s_q * (h_q * (d_v + 9) + 5), h_q * (d_v + 9) + 5, d_v + 9],
            ),
            // Heads outermost.
            (0, [d_v, b * d_v, s_q * b * d_v]),
            // Requests between positions and heads.
            (0, [d_v, b * h_q * d_v, b * d_v]),
        ] {
            let len = b * s_q * h_q * (d_v + gap) + b * s_q * 5;
            // Whatever backend other tests request.
            let options = &Options::default();
            let run = |o: Elements<'_>, on_rayon: bool| {
                let mut lse = vec![-7.5; b * s_q * h_q];
                let output = Output {
                    o_strides: strides,
                    // Positions before heads.
                    lse_strides: [s_q * h_q, 1, h_q],
                    ..Output::dense(case.shape, o, &mut lse)
                };
                if on_rayon {
                    let mut partials = vec![f32::NAN; plan.partials_len()];
                    let mut workspaces = [workspace(), workspace()];
                    pool.install(|| {
                        decode_on(
                            &Rayon,
                            &problem,
                            options,
                            &plan,
                            &mut workspaces,
                            &mut partials,
                            output,
                        )
                    })
                } else {
                    decode(&problem, options, &mut workspace(), output)
                }
                .unwrap();
                lse
            };
            macro_rules! same {
                ($format:ident, $fill:expr) => {{
                    let [mut one, mut many] = [0; 2].map(|_| vec![$fill; len]);
                    let want = run(Elements::$format(&mut one), false);
                    let got = run(Elements::$format(&mut many), true);
                    assert!(one == many && want == got, "{h_kv} {s_k} {strides:?}");
                    let left = many.iter().filter(|&&x| x == $fill).count();
                    assert_eq!(left, len - b * s_q * h_q * d_v, "{strides:?}");
                }};
            }
            same!(F32, -7.5e33);
            same!(Bf16, bf16::MIN);
            same!(F16, f16::MIN);
        }
    }
}

/// One thread, from the last number on.
struct Backwards;

impl ParallelFor for Backwards {
    fn parallel_for(&self, n: usize, body: &(dyn Fn(usize) + Sync)) {
        (0..n).rev().for_each(body);
    }
}

/// A thread for each number.
struct Spawned;

impl ParallelFor for Spawned {
    fn parallel_for(&self, n: usize, body: &(dyn Fn(usize) + Sync)) {
        thread::scope(|scope| {
            for i in 0..n {
                scope.spawn(move || body(i));
            }
        });
    }
}

/// O and lse by a plan on some threads of a pool.
fn on(
    pool: &dyn ParallelFor,
    threads: usize,
    problem: &Problem,
    options: &Options,
    plan: &Plan,
) -> (Vec<f32>, Vec<f32>) {
    let shape = problem.shape;
    let rows = shape.b * shape.s_q * shape.h_q;
    let mut workspaces: Vec<_> = (0..threads).map(|_| workspace()).collect();
    let mut partials = vec![f32::NAN; plan.partials_len()];
    let (mut o, mut lse) = (vec![0.0; rows * shape.d_v], vec![0.0; rows]);
    decode_on(
        pool,
        problem,
        options,
        plan,
        &mut workspaces,
        &mut partials,
        Output::dense(shape, Elements::F32(&mut o), &mut lse),
    )
    .unwrap();
    (o, lse)
}

#[test]
fn pools_of_any_kind() {
    let long = Case::new(1, 1, 9000, 70, (64, 64));
    for case in [ragged(), long] {
        let problem = case.problem();
        let options = Options::default();
        let want = case.run(&options);
        for (pool, planned) in [&Backwards as &dyn ParallelFor, &Spawned]
            .into_iter()
            .flat_map(|pool| [1, 4, MANY].map(|planned| (pool, planned)))
        {
            let plan = Plan::for_threads(&problem, planned).unwrap();
            assert!(planned != MANY || plan.partial_tasks() > 0);
            for threads in [1, 2, 5] {
                let got = on(pool, threads, &problem, &options, &plan);
                assert!(got == want, "for {planned}, on {threads}");
            }
        }
    }
}

/// Threads take several KV heads at once, of requests of one length and of several.
#[test]
fn kv_heads() {
    let shape = ProblemShape {
        b: 3,
        s_q: 1,
        s_k: 530,
        h_q: 140,
        h_kv: 70,
        d_qk: 64,
        d_v: 64,
    };
    let q = normal(1, 1.0, shape.b * shape.h_q * 64);
    let kv = normal(2, 1.0, shape.b * shape.s_k * shape.h_kv * 64);
    let dense = Problem::dense(shape, &q, &kv, 0.2);
    let ragged = Problem {
        cache_seqlens: Some(&[530, 17, 400]),
        ..dense
    };
    for problem in [dense, ragged] {
        for backend in backends() {
            let options = Options {
                backend,
                ..Options::default()
            };
            let plan = Plan::for_threads(&problem, 2).unwrap();
            let results = [1, 2, 3].map(|n| on(&Spawned, n, &problem, &options, &plan));
            assert!(results[0] == results[1] && results[0] == results[2]);
        }
    }
}

#[test]
fn bad_arguments_touch_nothing() {
    let case = ragged();
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    let other = Case::new(1, 1, 10, 1, (128, 128));
    let other_plan = Plan::new(&other.problem()).unwrap();
    let room = plan.partials_len();
    let run = |plan: &Plan, workspaces: usize, partials: usize| {
        let (mut o, mut lse) = (vec![7.0; case.sizes().0], vec![7.0; case.sizes().1]);
        let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
        let mut workspaces: Vec<_> = (0..workspaces).map(|_| workspace()).collect();
        let error = decode_on(
            &Rayon,
            &problem,
            &Options::default(),
            plan,
            &mut workspaces,
            &mut vec![0.0; partials],
            output,
        );
        assert!(o.iter().chain(&lse).all(|&x| x == 7.0));
        error.unwrap_err()
    };
    assert_eq!(
        run(&plan, 0, room),
        Error::OutOfRange {
            argument: Argument::Workspace,
            value: 0,
            min: 1,
            max: usize::MAX
        }
    );
    assert_eq!(
        run(&plan, 2, room - 1),
        Error::TooShort {
            argument: Argument::Partials,
            len: room - 1,
            needed: room
        }
    );
    let mismatch = Error::PlanMismatch {
        argument: Argument::B,
        planned: Some(1),
        given: Some(case.shape.b as u64),
    };
    assert_eq!(run(&other_plan, 2, room), mismatch);
}
