//! Masks, windows and sinks against Golden.

use amla::Backend;
use half::bf16;

use crate::common::modes;
use crate::host::{Host, PLAIN, decoded, golden, paged};
use crate::sizes::{MHA, MLA, SMALL, TINY, WINDOWS};

pub fn tree_masks(backend: Backend) {
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

pub fn windows(backend: Backend) {
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

pub fn sinks(backend: Backend) {
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
pub fn sinks_without_rivals(backend: Backend) {
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

pub fn rows_that_see_nothing(backend: Backend) {
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

pub fn hidden_keys_stay_hidden(backend: Backend) {
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
