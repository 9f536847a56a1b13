//! The epilogue, and the order of O's columns.

use super::*;
use crate::bits::{add_increment_f32, one_nan};
use crate::kernel::Epilogue;

/// A strip of O of a panel.
type OStrip = [ORow; PANEL_ROWS];

/// The epilogue of a strip, of which `o` is, after the same over earlier keys.
struct EpilogueRun<'a> {
    call: Epilogue<'a>,
    earlier: Option<&'a OStrip>,
    o: &'a OStrip,
}

impl Visitor for EpilogueRun<'_> {
    /// The strip, and the rows that were stored.
    type Output = [OStrip; 2];

    fn visit<K: Kernel>(self, kernel: K) -> [OStrip; 2] {
        let (mut o, mut stored) = (*self.o, [[0.75; STRIP]; PANEL_ROWS]);
        let earlier = self.earlier.map(|earlier| &earlier[..]);
        kernel.epilogue(&self.call, earlier, &mut o, |r, row| stored[r] = *row);
        [o, stored]
    }
}

fn strip(seed: u32) -> OStrip {
    let all = numbers(seed, PANEL_ROWS * STRIP);
    let number = |i: usize| match i % 97 {
        0 => 0.0,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        3 => f32::from_bits(0x7fc0_1234),
        4 => f32::MIN_POSITIVE / 8.0,
        _ => all[i].to_f32(),
    };
    core::array::from_fn(|r| core::array::from_fn(|i| number(r * STRIP + i)))
}

#[test]
fn the_epilogue_has_the_same_bits_on_every_backend() {
    let (o, earlier) = (strip(19), strip(20));
    let factor = core::array::from_fn(|r| [1.0, 1.003, 1.0, 0.5][r % 4]);
    let inverse: [f32; PANEL_ROWS] = core::array::from_fn(|r| if r == 5 { f32::NAN } else { 0.3 });
    let increments: [[Increment; 2]; PANEL_ROWS] = core::array::from_fn(|r| {
        [r % 3, r % 5].map(|n| Increment::pow2(-i32::try_from(n).unwrap()))
    });
    for (rows, earlier, inverse) in [
        (0..PANEL_ROWS, None, None),
        (0..PANEL_ROWS, Some(&earlier), None),
        (0..PANEL_ROWS, Some(&earlier), Some(&inverse)),
        (0..PANEL_ROWS / 2 + 1, None, Some(&inverse)),
        (5..7, Some(&earlier), Some(&inverse)),
    ] {
        let want = |r: usize, i: usize| {
            let mut x = o[r][i];
            if factor[r] != 1.0 {
                x = one_nan(x * factor[r]);
            }
            if let Some(earlier) = earlier {
                let moved = |x, n: Increment| match n {
                    Increment::NONE => x,
                    n => add_increment_f32(x, n),
                };
                let [before, own] = increments[r];
                x = moved(earlier[r][i], before) + moved(x, own);
            }
            inverse.map_or(x, |inverse| one_nan(x * inverse[r]))
        };
        for backend in backends() {
            let call = Epilogue {
                rows: rows.clone(),
                factor: Some(&factor),
                increments: &increments,
                inverse: inverse.map(|inverse| &inverse[..]),
                // Prefetched, and nothing else.
                next: &o[3..9],
            };
            let [got, stored] = backend.with(EpilogueRun {
                call,
                earlier,
                o: &o,
            });
            for (r, i) in (0..PANEL_ROWS).flat_map(|r| (0..STRIP).map(move |i| (r, i))) {
                let wants = match rows.contains(&r) {
                    true => [want(r, i); 2],
                    false => [o[r][i], 0.75],
                };
                // Which NaN a sum is isn't said; a product's is.
                let any = earlier.is_some() && inverse.is_none();
                for (got, want) in [got[r][i], stored[r][i]].into_iter().zip(wants) {
                    let same =
                        got.to_bits() == want.to_bits() || any && got.is_nan() && want.is_nan();
                    assert!(same, "{backend:?} {rows:?} {r} {i}: {got} {want}");
                }
            }
        }
    }
}

/// Columns of O to the order of a backend's own, and back.
struct Permute(bool);

impl Visitor for Permute {
    /// Both.
    type Output = [OStrip; 2];

    fn visit<K: Kernel>(self, kernel: K) -> [OStrip; 2] {
        let mut own = strip(23);
        kernel.permute(self.0, Dtype::Bf16, &mut own, Columns::Own);
        let mut natural = own;
        kernel.permute(self.0, Dtype::Bf16, &mut natural, Columns::Natural);
        [own, natural]
    }
}

#[test]
fn columns_are_permuted_and_back() {
    let bits = |row: &ORow| row.map(f32::to_bits);
    let sorted = |row: &ORow| {
        let mut bits = bits(row);
        bits.sort_unstable();
        bits
    };
    let before = strip(23);
    for (backend, fused) in backends().flat_map(|b| [false, true].map(|fused| (b, fused))) {
        let [own, natural] = backend.with(Permute(fused));
        for (r, before) in before.iter().enumerate() {
            assert_eq!(sorted(&own[r]), sorted(before), "{backend:?} {fused} {r}");
            assert_eq!(bits(&natural[r]), bits(before), "{backend:?} {fused} {r}");
        }
    }
}
