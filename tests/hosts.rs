//! What hosts hand over: caches in pages, ragged or in parts, several KV heads, windows, masks and
//! sinks. Bit for bit the same problem laid out plainly; against Golden; what is refused.

#[macro_use]
mod common;
#[path = "common/hosts.rs"]
mod host;

use amla::{
    Argument, Backend, Data, Elements, EmptyLse, Error, Lse, LseBase, Options, Output, Pages, Plan,
    Problem, TailMask, Tensor, combine, decode, reference, run_task,
};
use common::{backends, close, modes, workspace};
use half::{bf16, f16};
use host::{
    Host, Keys, Layout, PATTERN, PLAIN, combined, decoded, golden, int, joined, output, paged,
    rows, same, untouched,
};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::strategy::Union;
use proptest::test_runner::{Config, RngSeed, TestRunner};

const MLA: (usize, usize) = (576, 512);
const MHA: (usize, usize) = (192, 128);
const SMALL: (usize, usize) = (128, 128);
const TINY: (usize, usize) = (64, 64);

const PAGE_SIZES: [usize; 7] = [1, 2, 16, 53, 64, 128, 576];
/// Around a block, and more than a split.
const LENS: [usize; 6] = [0, 1, 191, 192, 193, 2060];
const WINDOWS: [usize; 6] = [1, 2, 100, 192, 193, 2050];

suites![
    layouts_hold_the_same,
    kv_heads_are_problems_of_their_own,
    requests_stay_alone,
    tables_of_requests_without_keys,
    triangles_are_causal,
    wide_windows_show_everything,
    windows_are_the_last_keys,
    sinks_of_nothing,
    formats_of_outputs,
    everything_at_once,
    tree_masks,
    windows,
    sinks,
    sinks_without_rivals,
    rows_that_see_nothing,
    hidden_keys_stay_hidden,
    any_host,
];

// -------------------------------------------------------------------------------------------------
// The same problem in other words
// -------------------------------------------------------------------------------------------------

/// Wherever their entries would be, even where there are no numbers for that.
fn tables_of_requests_without_keys(backend: Backend) {
    for h_q in [1, 6, 70] {
        let mut case = common::Case::new(3, 1, 5, h_q, (128, 128));
        let lens = [1, 0, 0];
        case.lens = Some(lens.to_vec());
        let mut problem = case.problem();
        let options = &modes(backend)[0];
        let want = common::run(&problem, case.sizes(), options);
        problem.pages = Some(Pages {
            block_table: &[0],
            max_blocks: usize::MAX / 2 + 1,
            page_size: 5,
            pages: 3,
        });
        assert_eq!(common::run(&problem, case.sizes(), options), want);
    }
}

fn layouts() -> Vec<Layout> {
    let mut all = Vec::new();
    for (keys, spare) in [Keys::Contiguous, Keys::Ragged]
        .into_iter()
        .chain(PAGE_SIZES.map(Keys::Paged))
        .flat_map(|keys| [(keys, 0), (keys, 3)])
    {
        // Eight combinations, and paddings 0, 5, 10, 15.
        for i in [all.len(), all.len() + 1] {
            all.push(Layout {
                keys,
                spare,
                padding: i % 4 * 5,
                ragged_q: i & 1 != 0,
                split_q: i & 2 != 0,
                split_k: (i / 3) & 1 != 0,
            });
        }
    }
    all
}

fn layouts_hold_the_same(backend: Backend) {
    for h_q in [1, 5, 16, 70] {
        // Two splits for some only: emulated processors take their time.
        let lens = if h_q == 5 { &LENS[..] } else { &LENS[..5] };
        let requests = |n| lens.iter().map(|&len| (n, len)).collect::<Vec<_>>();
        let latent = Host::new([h_q, 1], MLA, &requests(1));
        let apart = Host::new([h_q, 1], MHA, &requests(2));
        for host in [latent, apart.separate_v().causal(true)] {
            let wants = modes(backend).map(|options| host.run(PLAIN, &options));
            // All of them where that is cheap.
            let every = if h_q < 16 { 1 } else { 5 };
            for (i, layout) in layouts().into_iter().enumerate().step_by(every) {
                let mode = i / 2 % 4;
                let options = modes(backend)[mode];
                let got = host.run(layout, &options);
                same(&got, &wants[mode], &(host.heads, layout, options));
            }
        }
    }
}

fn kv_heads_are_problems_of_their_own(backend: Backend) {
    for h_kv in [2, 3, 8] {
        for group in [1, 3, 20].into_iter().filter(|g| h_kv * g <= 60) {
            let requests = [(2, 200), (1, 0), (1, if group == 3 { 2060 } else { 300 })];
            let heads = [h_kv * group, h_kv];
            let latent = [MLA, SMALL].map(|dims| Host::new(heads, dims, &requests));
            let apart = [MHA, SMALL, TINY].map(|dims| Host::new(heads, dims, &requests));
            let apart = apart.map(Host::separate_v);
            for (i, host) in latent.into_iter().chain(apart).enumerate() {
                let host = host.causal(group == 3).sink(|h| h as f32 / 8.0);
                let options = modes(backend)[i % 4];
                let all = [PLAIN, paged(64)].map(|layout| host.run(layout, &options));
                same(&all[0], &all[1], &(heads, host.dims, options));
                for head in 0..h_kv {
                    let want = host.head(head).run(PLAIN, &options);
                    let got = host.of_head(head, &all[0]);
                    same(&got, &want, &(heads, host.dims, head, options));
                }
            }
        }
    }
}

/// Neither neighbours nor their order change a request.
fn requests_stay_alone(backend: Backend) {
    let requests = [
        (2, 300),
        (0, 20),
        (1, 193),
        (2, 2060),
        (3, 0),
        (1, 1),
        (0, 0),
    ];
    let order = [3, 0, 5, 1, 4, 6, 2];
    for (heads, dims) in [([70, 1], MHA), ([6, 2], SMALL), ([5, 1], MLA)] {
        for causal in [false, true] {
            let host = Host::new(heads, dims, &requests).causal(causal);
            for options in &modes(backend)[2 * usize::from(causal)..][..2] {
                let alone = |r| host.only(&[r]).run(PLAIN, options);
                let alone: Vec<_> = (0..requests.len()).map(alone).collect();
                let context = (heads, dims, causal, options);
                let want = joined(alone.iter().cloned());
                same(&host.run(PLAIN, options), &want, &context);
                let want = joined(order.into_iter().map(|r| alone[r].clone()));
                same(&host.only(&order).run(paged(53), options), &want, &context);
            }
        }
    }
}

fn triangles_are_causal(backend: Backend) {
    for n in [1, 2, 5, 70] {
        let lens = if n < 70 { &LENS[..] } else { &LENS[..5] };
        let requests: Vec<_> = lens.iter().map(|&len| (n, len)).collect();
        let host = Host::new([3, 1], TINY, &requests);
        for options in modes(backend) {
            let want = host.clone().causal(true).run(PLAIN, &options);
            for tail in [n - 1, n, n + 63, n + 64, n + 128, 2000] {
                let masked = host.clone().tail(tail, |_, j, i| i + n <= tail + j);
                let got = masked.run(paged(64), &options);
                same(&got, &want, &(n, tail, options));
            }
        }
    }
}

fn wide_windows_show_everything(backend: Backend) {
    for causal in [false, true] {
        let host = Host::new([5, 1], SMALL, &LENS.map(|len| (3, len))).causal(causal);
        for options in modes(backend) {
            let want = host.run(PLAIN, &options);
            for window in [2060, 2061, usize::MAX] {
                let got = host.clone().window(window).run(paged(16), &options);
                same(&got, &want, &(window, causal, options));
            }
        }
    }
}

fn windows_are_the_last_keys(backend: Backend) {
    let lens = [0, 1, 2, 99, 100, 192, 193, 194, 1001, 2500];
    for (heads, dims) in [([3, 1], SMALL), ([20, 1], MLA)] {
        let host = Host::new(heads, dims, &lens.map(|len| (1, len)));
        for (i, window) in WINDOWS.into_iter().chain([2060]).enumerate() {
            let options = modes(backend)[i % 4];
            let last = host.keys(|len, k| k + window >= len);
            let want = last.run(PLAIN, &options);
            for (causal, layout) in [(false, PLAIN), (true, PLAIN), (true, paged(53))] {
                let host = host.clone().causal(causal).window(window);
                let got = host.run(layout, &options);
                same(&got, &want, &(heads, window, causal, options));
            }
        }
    }
}

fn sinks_of_nothing(backend: Backend) {
    let host = Host::new([5, 1], SMALL, &LENS.map(|len| (2, len))).causal(true);
    for options in modes(backend) {
        let want = host.run(PLAIN, &options);
        let nothing = host.clone().sink(|_| f32::NEG_INFINITY);
        same(&nothing.run(paged(16), &options), &want, &options);
        // Others leave lse as it is.
        let (_, lse) = host.clone().sink(|h| h as f32).run(PLAIN, &options);
        assert!(lse == want.1, "{options:?}");
    }
}

/// All options at once; two KV heads, and two splits within the first request's window.
fn everything() -> (Host, Layout) {
    let requests = [(3, 3000), (0, 10), (1, 0), (2, 193), (2, 3)];
    let host = Host::new([6, 2], MHA, &requests).separate_v().window(2200);
    let layout = Layout {
        keys: Keys::Paged(16),
        spare: 2,
        padding: 5,
        ragged_q: true,
        split_q: true,
        split_k: true,
    };
    (host.tree(70, 1).sink(|h| h as f32 - 2.0), layout)
}

fn everything_at_once(backend: Backend) {
    let (host, layout) = everything();
    let laid = host.laid(layout);
    let problem = laid.problem();
    assert_eq!(Plan::new(&problem).unwrap().tasks(), 2 * (2 + 1 + 1 + 1));
    for options in modes(backend) {
        let want = decoded(&problem, &options);
        same(&combined(&problem, &options), &want, &options);
        same(&host.run(PLAIN, &options), &want, &options);
    }
    host.check(backend, layout);
}

fn formats_of_outputs(backend: Backend) {
    let (host, layout) = everything();
    let laid = host.laid(layout);
    let problem = laid.problem();
    for options in modes(backend) {
        let (want_o, want_lse) = decoded(&problem, &options);
        let (mut o, mut lse) = (vec![f16::NAN; want_o.len()], vec![PATTERN; want_lse.len()]);
        let mut output = output(&problem, Elements::F16(&mut o), &mut lse);
        output.lse_format = Lse {
            base: LseBase::Two,
            empty: EmptyLse::MinusInfinity,
        };
        decode(&problem, &options, &mut workspace(), output).unwrap();
        for (got, want) in o.into_iter().zip(want_o) {
            let want = f16::from_f32(f32::from_bits(want));
            assert_eq!(got.to_bits(), want.to_bits(), "{options:?}");
        }
        assert!(want_lse.contains(&f32::INFINITY.to_bits()));
        for (got, want) in lse.into_iter().zip(want_lse) {
            let want = f64::from(f32::from_bits(want)) / std::f64::consts::LN_2;
            if want == f64::INFINITY {
                assert_eq!(got, f32::NEG_INFINITY);
            } else {
                // Both are rounded.
                let limit = 2_f64.powi(-23) * want.abs();
                assert!(close(got, want, limit), "{got}, {want}, {options:?}");
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Against Golden
// -------------------------------------------------------------------------------------------------

fn tree_masks(backend: Backend) {
    let requests = [(4, 0), (4, 1), (3, 50), (4, 193), (2, 2060)];
    for tail in [1, 2, 63, 64, 65, 128, 130] {
        let host = Host::new([3, 1], SMALL, &requests).tree(tail, tail as u64);
        host.check(backend, paged(64));
    }
    // More than a block of each third of the rows, so that they see nothing of others.
    let host = Host::new([1, 1], SMALL, &[(60, 700)]);
    let thirds = host.tail(600, |_, j, i| i / 200 == j % 3);
    thirds.check(backend, PLAIN);
}

fn windows(backend: Backend) {
    let requests = [(3, 0), (3, 2), (2, 193), (3, 2060)];
    for causal in [false, true] {
        for window in WINDOWS {
            let host = Host::new([3, 1], SMALL, &requests).causal(causal);
            host.window(window).check(backend, paged(16));
        }
        // The first rows see only the first block, the last ones only the second; with more
        // queries than keys, many see nothing.
        for request in [(200, 300), (250, 100)] {
            let host = Host::new([2, 1], TINY, &[request]).causal(causal);
            host.window(3).check(backend, PLAIN);
        }
    }
}

fn sinks(backend: Backend) {
    let sinks = [
        f32::NEG_INFINITY,
        -300.0,
        -3.0,
        0.5,
        8.0,
        40.0,
        f32::INFINITY,
    ];
    let requests = [(2, 0), (1, 1), (2, 193), (1, 2060)];
    for dims in [SMALL, MLA] {
        let host = Host::new([7, 1], dims, &requests).causal(true);
        host.sink(|h| sinks[h]).check(backend, paged(53));
    }
    let host = Host::new([6, 3], MHA, &requests).separate_v();
    host.sink(|h| sinks[h]).check(backend, PLAIN);
}

/// Every score is -inf: what sink there is has all the weight.
fn sinks_without_rivals(backend: Backend) {
    let mut host = Host::new([20, 1], SMALL, &[(1, 10), (2, 2100)]).separate_v();
    for r in 0..2 {
        host.queries(r).fill(bf16::ONE);
        for k in 0..host.requests[r].len {
            host.key(r, k)[0] = bf16::NEG_INFINITY;
        }
    }
    for (sink, nan) in [
        (f32::NEG_INFINITY, true),
        (-100.0, false),
        (f32::INFINITY, false),
    ] {
        let host = host.clone().sink(|_| sink);
        for layout in [PLAIN, paged(16)] {
            let laid = host.laid(layout);
            let problem = laid.problem();
            let (o, lse) = golden(&problem);
            assert!(o.iter().all(|&x| if nan { x.is_nan() } else { x == 0.0 }));
            assert!(lse.iter().all(|x| x.is_nan()));
            for options in modes(backend) {
                let (o, lse) = decoded(&problem, &options);
                let mut o = o.into_iter().map(f32::from_bits);
                assert!(o.all(|x| if nan { x.is_nan() } else { x == 0.0 }), "{sink}");
                assert!(
                    lse.into_iter().all(|x| f32::from_bits(x).is_nan()),
                    "{sink}"
                );
            }
        }
    }
}

fn rows_that_see_nothing(backend: Backend) {
    let requests = [(3, 60), (2, 200), (2, 130)];
    // Nothing of the first request, and second queries see nothing of a tail that is all there is
    // of the third.
    let host = Host::new([3, 1], SMALL, &requests).tail(130, |r, j, _| r > 0 && j == 0);
    let tokens = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)];
    for (host, blind) in [
        (host.clone(), [true, true, true, false, false, false, true]),
        (
            host.window(100).sink(|h| h as f32),
            [true, true, true, false, true, false, true],
        ),
    ] {
        for ((r, j), blind) in tokens.into_iter().zip(blind) {
            assert_eq!(!(0..requests[r].1).any(|k| host.sees(r, j, k)), blind);
        }
        host.check(backend, paged(64));
        for options in modes(backend) {
            let (o, lse) = host.run(paged(64), &options);
            for (row, o) in o.chunks(128).enumerate() {
                let blind = blind[row / 3];
                assert_eq!(o.iter().all(|&x| x == 0), blind, "{row}, {options:?}");
                assert_eq!(
                    lse[row] == f32::INFINITY.to_bits(),
                    blind,
                    "{row}, {options:?}"
                );
            }
        }
    }
}

fn hidden_keys_stay_hidden(backend: Backend) {
    let requests = [(2, 10), (3, 193), (2, 2060)];
    for heads in [[3, 1], [20, 2]] {
        let plain = Host::new(heads, SMALL, &requests).separate_v();
        let recent = plain.clone().window(100);
        let both = recent.clone().tree(130, 5);
        for mut host in [
            recent.clone(),
            recent.causal(true),
            both,
            plain.tree(130, 6),
        ] {
            for r in 0..requests.len() {
                for k in host.hidden(r) {
                    host.key(r, k).fill(bf16::NAN);
                    host.value(r, k).fill(bf16::NAN);
                }
            }
            assert!(host.golden().0.iter().all(|x| x.is_finite()));
            host.check(backend, paged(16));
            // And in keys that some of the rows see.
            for (r, (_, len)) in requests.into_iter().enumerate() {
                host.key(r, len - 1).fill(bf16::NAN);
                host.value(r, len - 2)[2] = bf16::NAN;
                host.value(r, len - 5)[5] = bf16::INFINITY;
            }
            host.check(backend, paged(16));
        }
    }
}

/// A host and how it is laid out, in numbers.
#[derive(Clone, Debug)]
struct Recipe {
    requests: Vec<(usize, usize)>,
    heads: [usize; 2],
    dims: (usize, usize),
    separate: bool,
    causal: bool,
    window: Option<usize>,
    /// And its seed.
    tail: Option<(usize, u64)>,
    sink: bool,
    /// Times one over the root of `d_qk`.
    scale: f32,
    layout: Layout,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let len = prop_oneof![8 => 0..=260_usize, 1 => 2000..=2100_usize];
    let requests = proptest::collection::vec((0..=4_usize, len), 0..=3);
    let heads = (1..=3_usize, 1..=6_usize).prop_map(|(h_kv, group)| [h_kv * group, h_kv]);
    let small = prop_oneof![Just(TINY), Just(SMALL), Just(MHA)];
    let dims = prop_oneof![12 => small, 1 => Just((320, 256)), 1 => Just(MLA)];
    let window = proptest::option::of(prop_oneof![1..=8_usize, 1..=300_usize]);
    let tail = proptest::option::of((0..=150_usize, any::<u64>()));
    let any_keys = [Just(Keys::Contiguous).boxed(), Just(Keys::Ragged).boxed()];
    let paged = (1..=70_usize).prop_map(Keys::Paged).boxed();
    let keys = Union::new(any_keys.into_iter().chain([paged]));
    let problem = (requests, heads, dims, window, tail, -1.5_f32..1.5);
    let layout = (keys, 0..=3_usize, 0..=6_usize);
    (problem, layout, any::<[bool; 6]>()).prop_map(|(problem, (keys, spare, padding), flags)| {
        let (requests, heads, dims, window, tail, scale) = problem;
        let [separate, causal, sink, ragged_q, split_q, split_k] = flags;
        let rope = dims.0 > dims.1;
        Recipe {
            requests,
            heads,
            dims,
            separate,
            causal: causal && tail.is_none(),
            window,
            tail,
            sink,
            scale,
            layout: Layout {
                keys,
                spare,
                padding,
                ragged_q,
                split_q: split_q && rope,
                split_k: split_k && rope,
            },
        }
    })
}

impl Recipe {
    fn host(&self) -> Host {
        let mut host = Host::new(self.heads, self.dims, &self.requests).causal(self.causal);
        if self.separate {
            host = host.separate_v();
        }
        if let Some((tail, seed)) = self.tail {
            host = host.tree(tail, seed);
        }
        if self.sink {
            host = host.sink(|h| (h as f32 - 5.0) / 2.0);
        }
        host.window = self.window;
        host.scale *= self.scale;
        host
    }
}

fn any_host(backend: Backend) {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_251_121),
        ..Config::with_cases(60)
    });
    let check = |recipe: Recipe| {
        let host = recipe.host();
        host.check(backend, recipe.layout);
        let options = modes(backend)[recipe.requests.len()];
        let want = host.run(PLAIN, &options);
        let laid = host.laid(recipe.layout);
        same(&decoded(&laid.problem(), &options), &want, &options);
        same(&combined(&laid.problem(), &options), &want, &options);
        Ok(())
    };
    if let Err(error) = runner.run(&recipe(), check) {
        panic!("{error}");
    }
}

// -------------------------------------------------------------------------------------------------
// Refusals
// -------------------------------------------------------------------------------------------------

/// Every way to compute on this processor.
fn all_modes() -> impl Iterator<Item = Options> {
    backends().flat_map(modes)
}

/// Hands over a problem to be changed: two requests of 40 and 7 keys, each one task for each of
/// its two KV heads, and with every tensor that there may be.
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

/// Calls what takes a plan; `run_task` with these tasks.
#[track_caller]
fn plan_refused(problem: &Problem, good: &Problem, plan: &Plan, tasks: &[usize], want: Error) {
    let mut partial = vec![PATTERN; plan.partial_len()];
    let memory = &mut workspace();
    for options in all_modes() {
        for &task in tasks {
            let result = run_task(problem, &options, plan, task, memory, &mut partial);
            assert_eq!(result, Err(want));
        }
    }
    let mut partials = vec![PATTERN; plan.tasks() * plan.partial_len()];
    call_refused(good, want, |output| {
        combine(problem, plan, &mut partials, output)
    });
    assert!(untouched(&partial) && untouched(&partials));
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
                        run_task(problem, &options, &plan, task, memory, partial).unwrap();
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
                out_of_range(Argument::TailMask, max + 1, 0, max),
            ),
        ];
        // Four tokens.
        for (tail, len, needed) in [(1, 3, 4), (64, 0, 4), (65, 7, 8), (129, 11, 12)] {
            let want = too_short(Argument::TailMask, len, needed);
            cases.push((masked(&[0; 12][..len], tail), want));
            Plan::new(&masked(&[0; 12][..needed], tail)).unwrap();
        }
        Plan::new(&masked(&[], 0)).unwrap();
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
fn shorten(tensor: &mut Tensor<'_>) -> usize {
    let Data::Bf16(data) = tensor.data else {
        unreachable!();
    };
    tensor.data = Data::Bf16(&data[..data.len() - 1]);
    data.len()
}

#[test]
fn refuses_parts() {
    type Part = for<'a, 'b> fn(&'b mut Problem<'a>) -> &'b mut Tensor<'a>;
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
            let want = Error::PlanMismatch {
                planned: planned.shape,
                given: given.shape,
            };
            plan_refused(given, given, &plan, &[0, 3], want);
        }
    }
    // Masks, sinks and where keys lie are none of a plan's business.
    let other = base.clone().sink(|_| 1.0).tree(9, 1);
    let laid = other.laid(paged(16));
    let plan = Plan::new(&problems[1]).unwrap();
    let partial = &mut vec![0.0; plan.partial_len()][..];
    for options in all_modes() {
        run_task(
            &laid.problem(),
            &options,
            &plan,
            0,
            &mut workspace(),
            partial,
        )
        .unwrap();
    }
}
