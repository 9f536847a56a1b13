//! C2.

use super::arithmetic::{add_pair, add_tiles};
use super::*;
use crate::bits::{add_increment_f32, bf16_to_f32};
use crate::kernel::scalar::half_of;

/// Increments of rows that don't move, that move by powers of two, and that are compensated.
fn increments() -> [i32; PANEL_ROWS] {
    core::array::from_fn(|r| match r % 3 {
        0 => 0,
        1 => Increment::pow2(-i32::try_from(r).unwrap()).bits(),
        _ => Increment::compensated(-1, 0.003).bits(),
    })
}

#[test]
fn products_have_the_same_bits_on_every_backend() {
    let operands = Operands::new([21, 23, 25]);
    let increments = increments();
    for (rows, len) in shapes() {
        // As all of their group, and as the last panel of a larger one.
        let planned = [rows, GROUP_ROWS.max(17)];
        let planned = &planned[..if rows <= 16 { 2 } else { 1 }];
        for (&planned_rows, increment) in planned
            .iter()
            .flat_map(|rows| [None, Some(&increments)].map(|increment| (rows, increment)))
        {
            let run = Run {
                planned_rows,
                increment,
                ..operands.run(rows, len)
            };
            for backend in backends() {
                let got = backend.with(run);
                assert_eq!(got.skipped, Skipped::NONE);
                for r in 0..rows {
                    let row = Row::of(backend, &run, &got, r);
                    for column in 0..MAX_D_V {
                        let want = row.sums(column);
                        let got = got.o(column / STRIP, r)[column % STRIP];
                        assert!(
                            want.map(f32::to_bits).contains(&got.to_bits()),
                            "{backend:?} {rows} {len} {r} {column}: {got} {want:?}"
                        );
                    }
                }
                check_the_rest(backend, &run, &got);
            }
        }
    }
}

/// A row of O as C2 computes it.
struct Row<'a> {
    backend: Backend,
    run: &'a Run<'a>,
    got: &'a Stages,
    r: usize,
    /// P as it is stored.
    p: Vec<f32>,
    weight: f32,
    /// The key of the largest P, and what rounding took from that.
    residual: Option<(usize, f32)>,
}

impl<'a> Row<'a> {
    fn of(backend: Backend, run: &'a Run<'a>, got: &'a Stages, r: usize) -> Self {
        let mut p: Vec<f32> = got.p.iter().map(|p| p[r]).collect();
        let l0a = &got.tiles.tiles.l0a[0];
        let mut weight = 1.0;
        if weights_products(backend) {
            weight = l0a.weights[r];
            // P has fewer bits than the quotient.
            let stored = |p: &mut f32| *p = bf16::from_f32(*p / weight).to_f32();
            p.iter_mut().for_each(stored);
        }
        let residual = has_residuals(backend).then(|| {
            let word = l0a.residuals.p[r];
            let largest = 2 * l0a.residuals.pair[r] as usize + usize::from(word > 0xffff);
            let residual = bf16_to_f32(half_of(word, largest));
            // Exact: both have less than twice a BF16's bits.
            p[largest] -= residual;
            (largest, residual)
        });
        Self {
            backend,
            run,
            got,
            r,
            p,
            weight,
            residual,
        }
    }

    /// An element of O by products and sums, and by multiply-adds: a backend with P in FP32 has either. Other products are
    /// exact, so that both are the same.
    fn sums(&self, column: usize) -> [f32; 2] {
        let Self { backend, run, .. } = *self;
        let before = run.increment.map_or(0.0, |increment| {
            let increment = Increment::from_bits_clamped(increment[self.r]);
            let before = self.got.o_before(column / STRIP, self.r)[column % STRIP];
            add_increment_f32(before, increment)
        });
        let value = |k: usize| run.values[k * MAX_D_V + column].to_f32();
        let factors = |k: usize| match k < run.len {
            true => (self.p[k], value(k)),
            false => (0.0, 0.0),
        };
        // Weighted products are added to O at the end, others begin with it.
        let begin = if weights_products(backend) {
            0.0
        } else {
            before
        };
        let (mut sum, mut fma) = (begin, begin);
        let pairs = (0..run.len).step_by(2);
        let pairs = pairs.map(|pair| [factors(pair + 1), factors(pair)]);
        if backend.id() == BackendId::Amx && run.planned_rows <= 16 {
            // A product has 16 keys of a skinny group, and O comes after them.
            let terms = (0..run.len).map(factors).map(|(p, v)| [0.0, p * v]);
            sum = before + add_tiles(0.0, terms);
        } else if backend.id() == BackendId::Amx {
            sum = add_tiles(before, pairs.map(|terms| terms.map(|(p, v)| p * v)));
        } else {
            for terms in pairs {
                sum = add_pair(backend, sum, terms.map(|(p, v)| p * v));
                fma = terms.into_iter().fold(fma, |o, (p, v)| p.mul_add(v, o));
            }
        }
        // The largest P comes again at the end, with what rounding took from it.
        if let Some((largest, residual)) = self.residual {
            let value = value(largest);
            [sum, fma] = [sum + residual * value, residual.mul_add(value, sum)];
        }
        if weights_products(backend) {
            [sum, fma] = [sum, fma].map(|x| x.mul_add(self.weight, before));
        }
        [sum, fma]
    }
}

/// Rows beyond a panel's are untouched, but those of a register tile within strips. So is the memory
/// behind O.
fn check_the_rest(backend: Backend, run: &Run<'_>, got: &Stages) {
    let tile = match backend.id() {
        BackendId::Amx => 16,
        _ => 1,
    };
    let beyond = run.rows.next_multiple_of(tile)..got.strip_rows;
    for (strip, r) in (0..STRIPS).flat_map(|strip| beyond.clone().map(move |r| (strip, r))) {
        let want = got.o_before(strip, r);
        assert_eq!(*got.o(strip, r), want, "{backend:?} {} {r}", run.rows);
    }
    for row in STRIPS * got.strip_rows..PANEL_O {
        assert_eq!(got.o[row], o_before(row), "{backend:?} {} {row}", run.rows);
    }
}

/// C2 of all panels of a group, each with a P of its own: in one call, or panel by panel.
pub(super) struct Panels<'a> {
    pub(super) run: Run<'a>,
    pub(super) at_once: bool,
}

impl Visitor for Panels<'_> {
    /// O, panel by panel, and the strips that were skipped.
    type Output = (Vec<ORow>, Vec<Skipped>);

    fn visit<K: Kernel>(self, kernel: K) -> Self::Output {
        let (run, mut tiles) = (self.run, workspace());
        let panels = run.rows.div_ceil(PANEL_ROWS);
        for panel in 0..panels {
            run.c1_and_v1(kernel, panel, &mut tiles.tiles);
        }
        let mut o: Vec<_> = (0..PANELS * PANEL_O).map(o_before).collect();
        let step = if self.at_once { panels } else { 1 };
        let calls = o.chunks_mut(step * PANEL_O).take(panels.div_ceil(step));
        let skipped = calls
            .enumerate()
            .map(|(i, o)| run.c2(kernel, i * step..(i + 1) * step, &mut tiles.tiles, o))
            .collect();
        (o, skipped)
    }
}

/// Threads may share a group's panels.
#[test]
fn panels_have_the_same_bits_at_once_and_one_by_one() {
    let operands = Operands::new([31, 33, 35]);
    let increments = increments();
    let groups = [3, 16, 17, 64, 65, 70, 80, 128, 130, 192, 199, 249, 256];
    let groups = groups.into_iter().filter(|&rows| rows <= GROUP_ROWS);
    for (i, rows) in groups.enumerate() {
        // Every other length with one group, the others with the next.
        for len in [1, 33, 95, 96, 97, 130, 192, 191]
            .into_iter()
            .skip(i % 2)
            .step_by(2)
        {
            let (increment, precision) = [
                (Some(&increments), Precision::Bf16),
                (Some(&increments), Precision::Bf16x2),
                (None, Precision::Bf16),
            ][(i + len) % 3];
            let run = Run {
                precision,
                increment,
                ..operands.run(rows, len.min(BLOCK_KEYS))
            };
            for backend in backends() {
                let [(got, skipped), (want, _)] =
                    [true, false].map(|at_once| backend.with(Panels { run, at_once }));
                assert_eq!(skipped, [Skipped::NONE], "{backend:?} {rows} {len}");
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let same = got.map(f32::to_bits) == want.map(f32::to_bits);
                    assert!(same, "{backend:?} {rows} {len} {i}");
                }
            }
        }
    }
}
