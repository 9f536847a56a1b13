//! The fused kernels against themselves, bit for bit, and where they stop.

use super::fused::{
    After, Fused, MODES, OnCore, ROWS, cases, fused, fused_of_widths, on_all_cores, score,
};
use super::*;
use crate::bits::add_increment_f32;
use crate::kernel::{FUSED_MULTIPLE, FusedEnd};

/// Neither where a call begins nor what is prefetched meanwhile changes a bit.
#[test]
fn calls_resume_with_the_same_bits() {
    resume::<MAX_D_QK, MAX_D_V>();
    resume::<192, 128>();
}

fn resume<const D_QK: usize, const D_V: usize>() {
    let operands = Operands::new([71, 73, 75]);
    let next = numbers(79, 9 * MAX_D_QK);
    let modes = MODES.into_iter();
    let modes = modes.chain([(Rescale::Compensated, Precision::Bf16x2)]);
    for (rows, len) in cases() {
        for (rescale, precision) in modes.clone() {
            let run = Run {
                rescale,
                precision,
                ..operands.run(rows, len)
            };
            for on in on_all_cores() {
                let all = fused_of_widths::<D_QK, D_V>(run);
                let Some(want) = on.with(all) else {
                    continue;
                };
                let step = on.step_of(rows, D_QK + D_V);
                let at = [step, 128].into_iter().filter(|at| at % step == 0);
                for at in at.filter(|&at| at < len) {
                    let first = on.with(fused_of_widths::<D_QK, D_V>(Run { len: at, ..run }));
                    let second = Fused {
                        from: at,
                        next: &next,
                        before: first.as_ref(),
                        ..all
                    };
                    let got = on.with(second).unwrap();
                    got.check_same(&want, rows, rows, &format!("{on:?} {at}"));
                }
            }
        }
    }
}

/// Whether other rows have a reference yet changes no bit: a pool may take some rows of a group without
/// the others.
#[test]
fn rows_that_see_nothing_change_no_bits() {
    let operands = Operands::new([73, 75, 77]);
    for (rows, len) in cases().filter(|case| case.0 > 1) {
        // The last row.
        let mask = [(1 << (rows - 1)) - 1; BLOCK_KEYS];
        for (rescale, precision) in MODES {
            let all = Run {
                rescale,
                precision,
                ..operands.run(rows, len)
            };
            let some = Run {
                mask: Some(&mask),
                ..all
            };
            for on in on_all_cores() {
                let (Some(got), Some(want)) = (on.with(fused(some)), on.with(fused(all))) else {
                    continue;
                };
                got.check_same(&want, rows, rows - 1, &format!("{on:?} {len}"));
            }
        }
    }
}

/// Kinds of core differ in what they prefetch, and not in a bit of the results where steps are alike.
#[test]
fn cores_have_the_same_bits() {
    let operands = Operands::new([75, 77, 79]);
    let mut others = on_all_cores().filter(|on| !on.is_usual()).peekable();
    if others.peek().is_none() {
        std::eprintln!("other kinds of core NOT RUN: no backend here tells them apart");
    }
    for on in others {
        let alike = |rows| rows <= on.limit() && on.step(rows) == on.usual().step(rows);
        for (rows, len) in cases().filter(|case| alike(case.0)) {
            for (rescale, precision) in MODES {
                let run = Run {
                    rescale,
                    precision,
                    ..operands.run(rows, len)
                };
                let [got, want] = [on, on.usual()].map(|on| on.with(fused(run)).unwrap());
                got.check_same(&want, rows, rows, &format!("{on:?} {len}"));
            }
        }
    }
}

/// Rows of other widths have the bits of wide ones whose other columns are zeros, if their steps are as long.
#[test]
fn narrow_rows_have_the_bits_of_wide_ones() {
    narrow::<512, 512>();
    narrow::<320, 256>();
    narrow::<192, 128>();
    narrow::<64, 64>();
}

fn narrow<const D_QK: usize, const D_V: usize>() {
    let mut operands = Operands::new([77, 79, 81]);
    for q in operands.q.chunks_mut(MAX_D_QK) {
        q[D_QK..].fill(bf16::ZERO);
    }
    for (rows, len) in cases() {
        for precision in [Precision::Bf16, Precision::Bf16x2] {
            let run = Run {
                precision,
                ..operands.run(rows, len)
            };
            for on in on_all_cores() {
                let (Some(got), Some(want)) = (
                    on.with(fused_of_widths::<D_QK, D_V>(run)),
                    on.with(fused(run)),
                ) else {
                    continue;
                };
                assert_eq!(got.end, FusedEnd::ALL);
                let at = format!("{on:?} {len}");
                if on.step_of(rows, D_QK + D_V) == on.step(rows) {
                    got.check_same(&want, rows, rows, &at);
                } else {
                    got.check_near(&want, rows, 1e-5, &at);
                }
            }
        }
    }
}

/// Keys behind the block's change no bit: C1 may compute on some of them.
#[test]
fn keys_behind_the_block_change_no_bits() {
    let operands = Operands::new([81, 83, 85]);
    let next = std::vec![bf16::NAN; 9 * MAX_D_QK];
    for (rows, len) in cases() {
        let usual = fused(operands.run(rows, len));
        let other = Fused {
            next: &next,
            ..usual
        };
        for on in on_all_cores() {
            let (Some(got), Some(want)) = (on.with(other), on.with(usual)) else {
                continue;
            };
            assert_eq!(got.end, FusedEnd::ALL);
            got.check_same(&want, rows, rows, &format!("{on:?} {len}"));
        }
    }
}

/// Values that are the heads of keys are as good as others, finite or not, seen or not.
#[test]
fn latent_values_have_the_same_bits() {
    let operands = Operands::new([83, 85, 87]);
    // Behind full vectors of keys there are no values of the block.
    for (rows, len) in cases().filter(|case| case.1.is_multiple_of(FUSED_MULTIPLE)) {
        // A kernel may look at pairs of neighbouring keys apart.
        let slots = [(0, 0), (2, 70), (5, 200), (len / 2, 300), (len - 1, 530)].map(Some);
        for bad in [None].into_iter().chain(slots) {
            let mut keys = operands.keys.clone();
            let mut hidden = [u64::MAX; BLOCK_KEYS];
            if let Some((key, column)) = bad {
                keys[key * MAX_D_QK + column] = [bf16::NAN, bf16::INFINITY][rows % 2];
                hidden[key] = 0;
            }
            let heads = keys.chunks(MAX_D_QK).map(|key| &key[..MAX_D_V]);
            let values = heads.collect::<Vec<_>>().concat();
            for (mask, rescale, precision) in [
                (None, Rescale::Exact, Precision::Bf16),
                (Some(&hidden), Rescale::Exact, Precision::Bf16),
                (Some(&hidden), Rescale::Exact, Precision::Bf16x2),
                (Some(&hidden), Rescale::Compensated, Precision::Bf16),
            ] {
                let run = Run {
                    keys: &keys,
                    values: &values,
                    mask,
                    rescale,
                    precision,
                    ..operands.run(rows, len)
                };
                on_all_cores().for_each(|on| check_latent(on, run, bad));
            }
        }
    }
}

fn check_latent(on: OnCore, run: Run<'_>, bad: Option<(usize, usize)>) {
    let latent = Fused {
        latent: true,
        ..fused(run)
    };
    let (Some(got), Some(want)) = (on.with(latent), on.with(fused(run))) else {
        return;
    };
    assert_eq!(got.end, want.end, "{on:?} {} {bad:?}", run.rows);
    let strips = bad.map_or(0, |(_, column)| u32::from(column < MAX_D_V));
    let skipped = got.end.skipped.all.count_ones();
    if run.mask.is_some() {
        assert_eq!(skipped, strips);
    } else {
        // A residual is a reason to skip, hidden keys aren't.
        assert!(skipped <= strips);
    }
    let same = |a: &f32, b: &f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let o = |after: &After| after.o.as_flattened().to_vec();
    let state = |after: &After| (0..run.rows).flat_map(|r| after.state(r)).collect();
    let p = |after: &After| {
        after
            .p
            .iter()
            .flat_map(|p| p[..run.rows].to_vec())
            .collect()
    };
    for of in [&o as &dyn Fn(&After) -> Vec<f32>, &state, &p] {
        let (got, want) = (of(&got), of(&want));
        assert!(
            got.iter().zip(&want).all(|(a, b)| same(a, b)),
            "{on:?} {bad:?}"
        );
    }
    if run.mask.is_some() {
        assert!(o(&got).iter().all(|x| x.is_finite()), "{on:?} {bad:?}");
    }
}

/// Where keys may be hidden, a call ends with the step in which a value isn't finite, and leaves that strip to its caller.
#[test]
fn calls_stop_where_values_are_not_finite() {
    let operands = Operands::new([85, 87, 89]);
    let all = [u64::MAX; BLOCK_KEYS];
    for (rows, len) in cases() {
        for (rescale, precision) in MODES {
            let finite = Run {
                rescale,
                precision,
                mask: Some(&all),
                ..operands.run(rows, len)
            };
            // Each place has each value, in one or another number of rows.
            let slots = [(0, 0), (len / 2, 63), (len - 1, 300), (len - 1, 511)];
            for (i, (key, column)) in slots.into_iter().enumerate() {
                let bad = [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY][(rows + i) % 3];
                let mut values = operands.values.clone();
                values[key * MAX_D_V + column] = bad;
                for on in on_all_cores() {
                    check_stop(on, &finite, &values, key, column / STRIP);
                }
            }
        }
    }
}

/// `values` differ from those of `finite` in one key's strip.
fn check_stop(on: OnCore, finite: &Run<'_>, values: &[bf16], key: usize, strip: usize) {
    let (rows, precision) = (finite.rows, finite.precision);
    let upto = |values, len| {
        let run = Run {
            values,
            len,
            ..*finite
        };
        on.with(fused(run))
    };
    let Some(got) = upto(values, finite.len) else {
        return;
    };
    let done = got.end.keys.clone();
    assert!(done.contains(&key), "{on:?} {key} {done:?}");
    let (all, tail) = (1 << strip, 0);
    assert_eq!(got.end.skipped, Skipped { all, tail });
    // The other strips have these keys; this one was rescaled and nothing else.
    let mut want = upto(finite.values, done.end).unwrap();
    let before = (done.start > 0).then(|| upto(finite.values, done.start).unwrap());
    for r in 0..rows {
        let increment = Increment::from_bits_clamped(got.increment[r]);
        let before = before.as_ref();
        let before = before.map_or([0.0; STRIP], |before| *before.o(rows, strip, r));
        want.o[strip * rows + r] = before.map(|x| add_increment_f32(x, increment));
    }
    got.check_same(&want, rows, rows, &format!("{on:?} {done:?} {strip}"));
    // P is of these keys.
    let bound = match precision {
        Precision::Bf16 => 2_f64.powi(-8),
        Precision::Bf16x2 => 2_f64.powi(-16) + 2e-5,
    };
    for (k, p) in done.zip(&got.p) {
        for (r, &p) in p[..rows].iter().enumerate() {
            let mut want = (score(finite, r, k) - f64::from(got.state.reference[r])).exp2();
            if finite.rescale == Rescale::Compensated {
                want *= f64::from(got.state.factor[r]);
            }
            let error = (f64::from(p) - want).abs();
            assert!(error <= bound * want, "{on:?} {r} {k}: {error:e}");
        }
    }
}

const _: () = assert!(ROWS <= PANEL_ROWS);
