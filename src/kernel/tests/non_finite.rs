//! C2 over values that aren't finite: it skips their strips, and no others.

use super::products::Panels;
use super::*;

#[test]
fn non_finite_values_are_noticed() {
    let operands = Operands::new([41, 43, 45]);
    for backend in backends() {
        let inner = Skipped::TAIL + 4;
        for (at, len) in [
            (0, 1),
            (511, 2),
            (512, 2),
            (inner * MAX_D_V + 77, inner + 1),
        ] {
            for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
                let mut values = operands.values.clone();
                values[at] = bad;
                // Values behind the block aren't read.
                values[len * MAX_D_V] = bf16::NAN;
                let skipped = |values: &[bf16]| {
                    let run = operands.run(1, len);
                    backend.with(run.over(values)).skipped
                };
                let Skipped { all, tail } = skipped(&values);
                assert_eq!(all | tail, strip_of(at), "{backend:?} {at} {bad}");
                values[at] = bf16::MAX;
                assert_eq!(skipped(&values), Skipped::NONE);
            }
        }
    }
}

/// The strip that has an element of the values, as a set.
const fn strip_of(element: usize) -> u32 {
    1 << (element % MAX_D_V / STRIP)
}

/// Keys and columns of values that aren't finite, of [`LEN`] keys.
const SLOTS: [(usize, usize); 6] = [
    (0, 0),
    (1, 63),
    (2, 64),
    (Skipped::TAIL - 1, 300),
    (Skipped::TAIL, 15),
    (LEN - 1, 511),
];
const LEN: usize = Skipped::TAIL + 5;

/// Calls `check` with each of the places and bad values there, and the values.
fn each_slot(values: &[bf16], mut check: impl FnMut(&[bf16], usize, usize)) {
    let mut values = values.to_vec();
    for (i, (key, column)) in SLOTS.into_iter().enumerate() {
        for bad in [bf16::NAN, [bf16::INFINITY, bf16::NEG_INFINITY][i % 2]] {
            let good = core::mem::replace(&mut values[key * MAX_D_V + column], bad);
            check(&values, key, column);
            values[key * MAX_D_V + column] = good;
        }
    }
}

#[test]
fn strips_with_non_finite_values_are_skipped() {
    let operands = Operands::new([43, 45, 47]);
    let increments = [Increment::pow2(-1).bits(); PANEL_ROWS];
    let heights = (1..=9).chain([16, 17, 29, PANEL_ROWS]);
    let heights = heights.filter(|&rows| rows <= PANEL_ROWS);
    for (backend, rows) in backends().flat_map(|b| heights.clone().map(move |r| (b, r))) {
        let run = Run {
            increment: Some(&increments),
            ..operands.run(rows, LEN)
        };
        let finite = backend.with(run);
        each_slot(&operands.values, |values, key, column| {
            let got = backend.with(run.over(values));
            let (Skipped { all, tail }, bit) = (got.skipped, 1 << (column / STRIP));
            assert_eq!(all | tail, bit, "{backend:?} {rows} {key}");
            assert!(tail == 0 || key >= Skipped::TAIL);
            for (strip, r) in (0..STRIPS).flat_map(|strip| (0..rows).map(move |r| (strip, r))) {
                let o = got.o(strip, r);
                if all & 1 << strip != 0 {
                    assert_eq!(*o, got.o_before(strip, r), "{backend:?} {rows} {key}");
                } else if tail & 1 << strip == 0 {
                    assert_eq!(o, finite.o(strip, r), "{backend:?} {rows} {key} {strip}");
                } else {
                    check_first_half(&got, values, strip, r);
                }
            }
        });
    }
}

/// A row of a strip of O over the first half of the keys alone.
fn check_first_half(got: &Stages, values: &[bf16], strip: usize, r: usize) {
    let before = got.o_before(strip, r);
    for (i, &o) in got.o(strip, r).iter().enumerate() {
        let product = |k: usize| {
            let value = values[k * MAX_D_V + strip * STRIP + i];
            f64::from(got.p[k][r]) * f64::from(value.to_f32())
        };
        let want = f64::from(before[i]) / 2.0 + (0..Skipped::TAIL).map(product).sum::<f64>();
        assert!((f64::from(o) - want).abs() < 1e-4, "{o} {want}");
    }
}

/// A strip that is skipped is skipped of every panel, and that alone.
#[test]
fn strips_are_skipped_of_all_panels() {
    let operands = Operands::new([45, 47, 49]);
    let increments = [Increment::pow2(-1).bits(); PANEL_ROWS];
    let groups = [PANEL_ROWS + 7, 2 * PANEL_ROWS, GROUP_ROWS - 3];
    for rows in groups.into_iter().filter(|&rows| rows <= GROUP_ROWS) {
        for backend in backends() {
            let panels = |values: &[bf16], at_once| {
                let run = Run {
                    increment: Some(&increments),
                    values,
                    ..operands.run(rows, LEN)
                };
                backend.with(Panels { run, at_once })
            };
            each_slot(&operands.values, |values, key, column| {
                let (got, skipped) = panels(values, true);
                let (want, each) = panels(values, false);
                let at = format!("{backend:?} {rows} {key} {column}");
                assert_eq!(skipped.len(), 1);
                assert_eq!(skipped[0].all | skipped[0].tail, 1 << (column / STRIP));
                assert!(each.iter().all(|each| *each == skipped[0]), "{at}");
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(got.map(f32::to_bits), want.map(f32::to_bits), "{at}");
                }
            });
        }
    }
}
