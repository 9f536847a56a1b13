//! The same problem in other words: bit for bit the results of the plain layout.

use amla::{Backend, Elements, EmptyLse, Lse, LseBase, Pages, Plan, decode};
use half::f16;

use crate::common::{self, close, modes, workspace};
use crate::host::{
    Host, Keys, Layout, PATTERN, PLAIN, combined, decoded, joined, output, paged, same,
};
use crate::sizes::{LENS, MHA, MLA, PAGE_SIZES, SMALL, TINY, WINDOWS};

/// Wherever their entries would be, even where there are no numbers for that.
pub fn tables_of_requests_without_keys(backend: Backend) {
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
            stride: usize::MAX / 2 + 1,
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

pub fn layouts_hold_the_same(backend: Backend) {
    for (n, h_q) in [1, 5, 16, 70].into_iter().enumerate() {
        // Two splits for some only: emulated processors take their time.
        let lens = if h_q == 5 { &LENS[..] } else { &LENS[..5] };
        let requests = |n| lens.iter().map(|&len| (n, len)).collect::<Vec<_>>();
        let latent = Host::new([h_q, 1], MLA, &requests(1));
        let apart = Host::new([h_q, 1], MHA, &requests(2));
        for host in [latent, apart.separate_v().causal(true)] {
            let wants = modes(backend).map(|options| host.run(PLAIN, &options));
            // More of them where that is cheap, other ones for each number of heads.
            let every = if h_q < 16 { 3 } else { 5 };
            let all = layouts().into_iter().enumerate();
            for (i, layout) in all.skip(n).step_by(every) {
                let mode = i / 2 % 4;
                let options = modes(backend)[mode];
                let got = host.run(layout, &options);
                same(&got, &wants[mode], &(host.heads, layout, options));
            }
        }
    }
}

pub fn kv_heads_are_problems_of_their_own(backend: Backend) {
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
pub fn requests_stay_alone(backend: Backend) {
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
    let sizes = [([70, 1], MHA), ([6, 2], SMALL), ([5, 1], MLA)];
    for (i, (heads, dims)) in sizes.into_iter().enumerate() {
        for causal in [false, true] {
            let host = Host::new(heads, dims, &requests).causal(causal);
            let options = &modes(backend)[(2 * usize::from(causal) + i) % 4];
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

pub fn triangles_are_causal(backend: Backend) {
    for n in [1, 2, 5, 70] {
        let lens = if n < 70 { &LENS[..] } else { &LENS[..5] };
        let requests: Vec<_> = lens.iter().map(|&len| (n, len)).collect();
        let host = Host::new([3, 1], TINY, &requests);
        for options in modes(backend) {
            let want = host.clone().causal(true).run(PLAIN, &options);
            for tail in [(n - 1).max(1), n, n + 63, n + 64, n + 128, 2000] {
                let masked = host.clone().tail(tail, |_, j, i| i + n <= tail + j);
                let got = masked.run(paged(64), &options);
                same(&got, &want, &(n, tail, options));
            }
        }
    }
}

pub fn wide_windows_show_everything(backend: Backend) {
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

pub fn windows_are_the_last_keys(backend: Backend) {
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

pub fn sinks_of_nothing(backend: Backend) {
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

pub fn everything_at_once(backend: Backend) {
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

pub fn formats_of_outputs(backend: Backend) {
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
