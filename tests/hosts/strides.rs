//! Tensors and lists as frameworks make them: expanded, or columns of others.

use amla::{Backend, Pages, Plan, Problem};

use crate::common::modes;
use crate::host::{Host, PLAIN, combined, decoded, golden, joined, paged, same};
use crate::sizes::{MHA, SMALL};

/// Inputs of stride 0 are what they expand to: requests, positions, heads, tokens of keys.
pub fn expanded_tensors(backend: Backend) {
    let options = modes(backend)[0];
    for heads in [[3, 1], [6, 2], [70, 1]] {
        let host = Host::new(heads, MHA, &[(2, 200)]).separate_v();
        let laid = host.laid(PLAIN);
        let one = laid.problem();
        let mut many = one;
        many.shape.b = 3;
        for tensor in [&mut many.q, &mut many.kv] {
            tensor.strides[0] = 0;
        }
        many.v.as_mut().unwrap().strides[0] = 0;
        let want = joined((0..3).map(|_| decoded(&one, &options)));
        same(&decoded(&many, &options), &want, &heads);
        same(&combined(&many, &options), &want, &heads);
        // One row of each tensor: any key is any other.
        let mut flat = one;
        for tensor in [&mut flat.q, &mut flat.kv, flat.v.as_mut().unwrap()] {
            tensor.strides = [0; 3];
        }
        let (o, lse) = golden(&flat);
        let (got_o, got_lse) = decoded(&flat, &options);
        for (got, want) in got_o.iter().zip(&o).chain(got_lse.iter().zip(&lse)) {
            let got = f64::from(f32::from_bits(*got));
            assert!(
                (got - want).abs() <= 0.01 * want.abs().max(1.0),
                "{got} {want}"
            );
        }
    }
}

/// A block table that all requests share, and one whose rows are further apart than they have entries.
pub fn strided_block_tables(backend: Backend) {
    for heads in [3, 70] {
        let host = Host::new([heads, 1], SMALL, &[(1, 200)]);
        let laid = host.laid(paged(16));
        let one = laid.problem();
        let pages = one.pages.unwrap();
        let options = modes(backend)[1];
        let alone = decoded(&one, &options);
        let want = joined((0..3).map(|_| alone.clone()));
        let mut shared = Problem {
            pages: Some(Pages { stride: 0, ..pages }),
            ..one
        };
        shared.shape.b = 3;
        shared.q.strides[0] = 0;
        same(&decoded(&shared, &options), &want, &heads);
        same(&combined(&shared, &options), &want, &heads);
        let lens = [200, 7, 200];
        let shorter = Problem {
            cache_seqlens: Some(&lens),
            ..shared
        };
        let short = Problem {
            cache_seqlens: Some(&[7]),
            ..one
        };
        let mixed = [&one, &short, &one].into_iter();
        let want_mixed = joined(mixed.map(|problem| decoded(problem, &options)));
        same(&decoded(&shorter, &options), &want_mixed, &heads);
        // Entries that nobody looks at are between the requests'.
        let blocks = 200_usize.div_ceil(16);
        let own = &pages.block_table[..blocks];
        let table = [own, &[i32::MIN; 9], own, &[-1; 9], own].concat();
        let apart = Problem {
            pages: Some(Pages {
                block_table: &table,
                max_blocks: blocks,
                stride: blocks + 9,
                ..pages
            }),
            ..shared
        };
        same(&decoded(&apart, &options), &want, &heads);
        same(&combined(&apart, &options), &want, &heads);
    }
}

/// Lengths that requests share, and lengths that are a column of a table; plans serve either.
pub fn strided_lengths(backend: Backend) {
    let host = Host::new([5, 1], SMALL, &[(2, 300), (2, 300), (2, 300)]);
    let laid = host.laid(PLAIN);
    for options in modes(backend) {
        for (contiguous, strided, stride) in [
            ([17, 0, 300], &[17, -5, 0, i32::MAX, 300][..], 2),
            ([193; 3], &[193], 0),
            ([300, 300, 193], &[300, 1, 2, 300, 4, 5, 193], 3),
        ] {
            let with = |lens, stride| Problem {
                cache_seqlens: Some(lens),
                cache_seqlens_stride: stride,
                ..laid.problem()
            };
            let (contiguous, strided) = (with(&contiguous, 1), with(strided, stride));
            let want = decoded(&contiguous, &options);
            same(&decoded(&strided, &options), &want, &stride);
            same(&combined(&strided, &options), &want, &stride);
            let plans = [&contiguous, &strided].map(|p| Plan::new(p).unwrap());
            assert_eq!(plans[0], plans[1]);
        }
    }
}

/// Requests beyond number, which nobody could go through one by one.
#[test]
fn lists_that_all_requests_share_are_read_once() {
    let host = Host::new([1, 1], SMALL, &[(1, 20)]);
    let laid = host.laid(paged(16));
    let mut problem = laid.problem();
    let pages = problem.pages.unwrap();
    problem.shape.b = usize::MAX / 8;
    problem.pages = Some(Pages { stride: 0, ..pages });
    problem.cache_seqlens = Some(&[17]);
    problem.cache_seqlens_stride = 0;
    for tensor in [&mut problem.q, &mut problem.kv] {
        tensor.strides[0] = 0;
    }
    // The pages have their places.
    problem.kv = laid.problem().kv;
    let plan = Plan::new(&problem).unwrap();
    assert_eq!(plan.tasks(), problem.shape.b);
}
