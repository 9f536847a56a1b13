//! The fused kernels: their limits, and their results against definitions in f64.

use super::*;
use crate::bits::HEADROOM;
use crate::kernel::prefetch::Core;
use crate::kernel::{FUSED_KEYS, FUSED_MULTIPLE, FusedBlock, FusedEnd, RowList};

// -------------------------------------------------------------------------------------------------
// Who has one
// -------------------------------------------------------------------------------------------------

/// The rows that each backend's fused kernel takes at most. Backends that aren't listed have none.
const LIMITS: &[(BackendId, usize)] = &[
    (
        BackendId::Portable,
        if cfg!(target_feature = "avx") { 16 } else { 12 },
    ),
    (BackendId::Avx2, 16),
    (BackendId::Neon, 16),
    (BackendId::Avx512, 16),
    (BackendId::Avx512Bf16, 8),
];

/// Rows of the largest group that any backend may fuse.
pub(super) const ROWS: usize = if PANEL_ROWS < 32 { PANEL_ROWS / 2 } else { 16 };

/// A backend as on one kind of core, which some choose their kernel by.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnCore {
    pub(super) backend: Backend,
    pub(super) core: Core,
}

/// The kind of core that other kinds are compared with, and the only one for most backends.
const USUAL: Core = Core::Intel;

impl OnCore {
    /// Nothing, if there are too many rows for the fused kernel.
    pub(super) fn with<const D_QK: usize, const D_V: usize>(
        self,
        fused: Fused<'_, D_QK, D_V>,
    ) -> Option<After> {
        self.backend.with_core(self.core, fused)
    }

    /// The same backend as on the usual core.
    pub(super) fn usual(self) -> Self {
        Self {
            core: USUAL,
            ..self
        }
    }

    pub(super) fn is_usual(self) -> bool {
        self.core == USUAL
    }

    /// The largest group.
    pub(super) fn limit(self) -> usize {
        let limit = LIMITS.iter().find(|limit| limit.0 == self.backend.id());
        limit.map_or(0, |limit| limit.1.min(ROWS))
    }

    /// Keys of a step: a call may end after any number of steps, and another begin there, with the same bits.
    pub(super) fn step(self, rows: usize) -> usize {
        self.step_of(rows, MAX_D_QK + MAX_D_V)
    }

    /// The same where rows have `widths` numbers in Q and in O.
    pub(super) fn step_of(self, rows: usize, widths: usize) -> usize {
        match (self.backend.id(), self.core) {
            (BackendId::Avx512Bf16, Core::Zen5) if rows >= 5 => 96,
            (BackendId::Avx512Bf16, Core::Zen5) => 16,
            (BackendId::Avx512Bf16, Core::Zen4) if rows >= 4 => 64,
            (BackendId::Avx512Bf16, _) if rows >= 5 => 64,
            (BackendId::Avx512Bf16, _) => 16,
            _ if rows * widths > 4 * (MAX_D_QK + MAX_D_V) => 64,
            _ => 16,
        }
    }

    /// Whether P is relative to a step's largest, and C2 weights its products.
    fn weights_products(self, rows: usize) -> bool {
        self.backend.id() == BackendId::Avx512Bf16 && self.core == Core::Zen5 && rows >= 5
    }
}

pub(super) fn on_all_cores() -> impl Iterator<Item = OnCore> {
    backends().flat_map(|backend| {
        let cores = if backend.id() == BackendId::Avx512Bf16 {
            &[USUAL, Core::Zen5, Core::Zen4][..]
        } else {
            &[USUAL]
        };
        cores.iter().map(move |&core| OnCore { backend, core })
    })
}

/// The other tests pass where no backend has a fused kernel: this one shows if one has lost it.
#[test]
fn fused_kernels_have_their_limits() {
    let operands = Operands::new([61, 63, 65]);
    for on in on_all_cores() {
        for rows in 1..=ROWS {
            let got = on.with(fused(operands.run(rows, 1)));
            assert_eq!(got.is_some(), rows <= on.limit(), "{on:?} {rows}");
        }
    }
    if on_all_cores().all(|on| on.limit() == 0) {
        std::eprintln!("fused kernels NOT RUN: no backend here has one");
    }
}

// -------------------------------------------------------------------------------------------------
// A call
// -------------------------------------------------------------------------------------------------

/// The fused kernel over a block's keys from `from` on, with rows of these widths: those of the run, or
/// their heads.
#[derive(Clone, Copy)]
pub(super) struct Fused<'a, const D_QK: usize = MAX_D_QK, const D_V: usize = MAX_D_V> {
    pub(super) run: Run<'a>,
    pub(super) from: usize,
    /// Keys behind the block's.
    pub(super) next: &'a [bf16],
    /// The result over earlier keys.
    pub(super) before: Option<&'a After>,
    /// Whether values are the heads of keys.
    pub(super) latent: bool,
}

/// Those of the largest widths.
pub(super) fn fused(run: Run<'_>) -> Fused<'_> {
    fused_of_widths(run)
}

pub(super) fn fused_of_widths<const D_QK: usize, const D_V: usize>(
    run: Run<'_>,
) -> Fused<'_, D_QK, D_V> {
    Fused {
        run,
        from: 0,
        next: &[],
        before: None,
        latent: false,
    }
}

/// The results of a call.
#[derive(Clone)]
pub(super) struct After {
    /// Strips of the run's rows, columns as in V.
    pub(super) o: Vec<ORow>,
    pub(super) state: RowState,
    pub(super) end: FusedEnd,
    /// P of the last keys, if C2 skipped strips of these, and the increments.
    pub(super) p: Vec<[f32; PANEL_ROWS]>,
    pub(super) increment: [i32; PANEL_ROWS],
}

impl After {
    /// A row of a strip of O.
    pub(super) fn o(&self, rows: usize, strip: usize, r: usize) -> &ORow {
        &self.o[strip * rows + r]
    }

    /// The fields of a row's state.
    pub(super) fn state(&self, r: usize) -> [f32; 6] {
        let state = &self.state;
        let RowState {
            sum,
            rounded_sum,
            reference,
            c,
            factor,
            max,
        } = state;
        [sum, rounded_sum, reference, c, factor, max].map(|field| field[r])
    }

    /// Holds O and the state of the first `rows` of a group's against another result, bit for bit. O may be
    /// the head of the other's.
    #[track_caller]
    pub(super) fn check_same(&self, want: &Self, group: usize, rows: usize, at: &str) {
        let strips = self.o.len() / group;
        for (strip, r) in (0..strips).flat_map(|strip| (0..rows).map(move |r| (strip, r))) {
            let [got, want] = [self, want].map(|after| after.o(group, strip, r).map(f32::to_bits));
            assert_eq!(got, want, "{at} {group} {strip} {r}");
        }
        for r in 0..rows {
            let [got, want] = [self, want].map(|after| after.state(r).map(f32::to_bits));
            assert_eq!(got, want, "{at} {group} {r}");
        }
    }

    /// Holds the results against those of steps of another length, which add in another order and move references at
    /// other keys: within `bound` of a row's largest column.
    #[track_caller]
    pub(super) fn check_near(&self, want: &Self, rows: usize, bound: f32, at: &str) {
        for r in 0..rows {
            let [got, wanted] = [self, want].map(|after| after.state.max[r].to_bits());
            assert_eq!(got, wanted, "{at} {r}");
            let lse =
                [self, want].map(|after| after.state.sum[r].log2() + after.state.reference[r]);
            assert!((lse[0] - lse[1]).abs() <= bound, "{at} {r} {lse:?}");
            for strip in 0..self.o.len() / rows {
                let [got, want] = [self, want].map(|after| {
                    let sum = after.state.rounded_sum[r];
                    after.o(rows, strip, r).map(|o| o / sum)
                });
                let largest = want.iter().fold(0.0, |most: f32, o| most.max(o.abs()));
                for (got, want) in got.iter().zip(want) {
                    assert!((got - want).abs() <= bound * largest, "{at} {strip} {r}");
                }
            }
        }
    }
}

impl<const D_QK: usize, const D_V: usize> Visitor for Fused<'_, D_QK, D_V> {
    type Output = Option<After>;

    fn visit<K: Kernel>(self, kernel: K) -> Option<After> {
        let run = self.run;
        let (rows, len) = (run.rows, run.len);
        if rows > K::FUSED_ROWS {
            return None;
        }
        let mut tiles = workspace();
        let Tiles { q, l0a, l0b, .. } = &mut tiles.tiles;
        let queries: Vec<_> = run.q.chunks(MAX_D_QK).take(rows).collect();
        kernel.pack_q(&pack(D_QK, &queries, true), &mut q[..1]);
        let listed = run.keys.chunks(MAX_D_QK).take(len);
        let mut keys = RowList::new(Dtype::Bf16, D_QK);
        keys.extend(listed.chain(self.next.chunks(MAX_D_QK)));
        keys.repeat_last();
        // NaN would show, were it read.
        let nan = [bf16::NAN; MAX_D_V];
        let mut values = RowList::new(Dtype::Bf16, D_V);
        values.extend((0..FUSED_KEYS).map(|k| {
            if k < len.next_multiple_of(FUSED_MULTIPLE) {
                &run.values[k.min(len - 1) * MAX_D_V..][..MAX_D_V]
            } else {
                &nan
            }
        }));
        let keys = keys.rows();
        let block = FusedBlock {
            from: self.from,
            q: &q[..1],
            keys,
            prefetch: keys.pointers(),
            values: match keys.first_columns(D_V) {
                Some(heads) if self.latent => heads,
                _ => values.rows(),
            },
            prefetch_values: (!self.latent).then(|| values.rows().pointers()),
        };
        let (mut o, mut state) = match self.before {
            Some(before) => (before.o.clone(), before.state),
            None => (std::vec![[0.0; STRIP]; rows * D_V / STRIP], RowState::START),
        };
        let (call, p) = (run.softmax(rows, &[]), &mut l0a[0]);
        kernel.permute(true, Dtype::Bf16, &mut o, Columns::Own);
        let end = kernel.fused(&call, &block, p, l0b, &mut state, &mut o);
        kernel.permute(true, Dtype::Bf16, &mut o, Columns::Natural);
        let prob = |k| core::array::from_fn(|r| kernel.prob(p, run.precision, k, r));
        Some(After {
            o,
            state,
            p: (0..end.keys.len()).map(prob).collect(),
            increment: p.increment,
            end,
        })
    }
}

/// The sizes at which steps and vectors of keys have edges: `(rows, keys)`.
pub(super) fn cases() -> impl Iterator<Item = (usize, usize)> {
    const KEYS: [usize; 13] = [1, 2, 15, 16, 17, 24, 40, 57, 63, 64, 65, 131, 192];
    let lengths = KEYS.into_iter().filter(|&len| len <= BLOCK_KEYS);
    lengths.flat_map(|len| (1..=ROWS).map(move |rows| (rows, len)))
}

/// Every mode that a test needs where both precisions are alike in the compensated one.
pub(super) const MODES: [(Rescale, Precision); 3] = [
    (Rescale::Exact, Precision::Bf16),
    (Rescale::Exact, Precision::Bf16x2),
    (Rescale::Compensated, Precision::Bf16),
];

// -------------------------------------------------------------------------------------------------
// Against f64
// -------------------------------------------------------------------------------------------------

/// Sums, references and O of every mode, with rows that see all keys, some, one and none.
#[test]
fn results_are_those_of_the_definition() {
    let operands = Operands::new([63, 65, 67]);
    let mut mask = [0; BLOCK_KEYS];
    for (k, mask) in mask.iter_mut().enumerate() {
        let sees = |&r: &usize| match r {
            0 => k % 5 != 0,
            1 => k == 3,
            2 => false,
            _ => true,
        };
        *mask = (0..ROWS).filter(sees).fold(0, |mask, r| mask | 1 << r);
    }
    let modes = MODES.into_iter();
    let modes = modes.chain([(Rescale::Compensated, Precision::Bf16x2)]);
    for (rows, len) in cases() {
        for (mask, (rescale, precision)) in [None, Some(&mask)]
            .into_iter()
            .flat_map(|mask| modes.clone().map(move |mode| (mask, mode)))
        {
            let run = Run {
                mask,
                rescale,
                precision,
                ..operands.run(rows, len)
            };
            // The scores' error, and that of P.
            let rounding = match precision {
                Precision::Bf16 => 2_f64.powi(-8),
                Precision::Bf16x2 => 2_f64.powi(-16),
            };
            for on in on_all_cores() {
                if let Some(got) = on.with(fused(run)) {
                    assert_eq!(got.end, FusedEnd::ALL);
                    (0..rows).for_each(|r| check_row(&run, &got, r, rounding + 2e-5));
                }
            }
        }
    }
}

/// A row against the same in f64: O to within `bound` of the values' magnitudes.
fn check_row(run: &Run<'_>, got: &After, r: usize, bound: f64) {
    let sees = |&k: &usize| run.mask.is_none_or(|mask| mask[k] >> r & 1 == 1);
    let seen: Vec<_> = (0..run.len)
        .filter(sees)
        .map(|k| (k, score(run, r, k)))
        .collect();
    let max = seen.iter().fold(f64::NEG_INFINITY, |max, s| max.max(s.1));
    let (state, reference) = (&got.state, f64::from(got.state.reference[r]));
    let o = |column: usize| got.o(run.rows, column / STRIP, r)[column % STRIP];
    if seen.is_empty() {
        assert_eq!((reference, state.sum[r]), (f64::NEG_INFINITY, 0.0));
        assert!((0..MAX_D_V).all(|column| o(column) == 0.0));
        return;
    }
    // What O and the sum are relative to.
    let (base, divisor) = match run.rescale {
        Rescale::Exact => {
            // The last step that moved it put it above the largest so far, and no later one had to.
            let mut largest = f64::NEG_INFINITY;
            let moved = seen.iter().any(|&(_, s)| {
                largest = largest.max(s);
                largest.ceil() + f64::from(HEADROOM) == reference
            });
            assert!(moved && max.ceil() <= reference, "{reference} {max}");
            (reference, f64::from(state.rounded_sum[r]))
        }
        Rescale::Compensated => {
            assert!((reference - max).abs() <= 1e-5);
            let fraction = (reference - reference.round_ties_even()).exp2();
            let sum = f64::from(state.sum[r]) * fraction * f64::from(state.c[r]);
            (reference, sum)
        }
    };
    let probs: Vec<_> = seen.iter().map(|&(k, s)| (k, (s - base).exp2())).collect();
    let sum: f64 = probs.iter().map(|p| p.1).sum();
    assert!((f64::from(state.sum[r]) / sum - 1.0).abs() <= 2e-5);
    for column in 0..MAX_D_V {
        let value = |k: usize| run.values[k * MAX_D_V + column].to_f64();
        let want = probs.iter().map(|&(k, p)| p * value(k)).sum::<f64>() / sum;
        let size = probs.iter().map(|&(k, p)| p * value(k).abs()).sum::<f64>() / sum;
        let error = (f64::from(o(column)) / divisor - want).abs();
        assert!(error <= bound * size, "{r} {column}: {error:e}");
    }
}

/// A score in log2 units, in f64.
pub(super) fn score(run: &Run<'_>, r: usize, k: usize) -> f64 {
    let (q, key) = (&run.q[r * MAX_D_QK..], &run.keys[k * MAX_D_QK..]);
    let products = q.iter().zip(key).take(MAX_D_QK);
    let sum: f64 = products.map(|(q, k)| q.to_f64() * k.to_f64()).sum();
    sum * f64::from(run.scale)
}

/// Rounding takes nothing from a row's largest P, or what it takes has a residual; BF16 holds all others.
#[test]
fn the_largest_p_is_exact() {
    const LARGEST: f32 = 0.75;
    let operands = Operands::new([65, 67, 69]);
    for (rows, len) in cases() {
        // Row r's scores are three of the keys' features, from 3r on, so that FP32 has all of them.
        let mut q = std::vec![bf16::ZERO; ROWS * MAX_D_QK];
        for r in 0..rows {
            q[r * MAX_D_QK + 3 * r..][..3].fill(bf16::ONE);
        }
        for on in on_all_cores() {
            // P is a power of two where a score is an integer. Where products are weighted, P is relative to the largest:
            // there it is one and a half times a power of two, since all powers would be rounded like the largest
            // without weights.
            let others = if on.weights_products(rows) {
                LARGEST + 1.5_f32.log2()
            } else {
                0.0
            };
            let mut keys = std::vec![bf16::ZERO; BLOCK_KEYS * MAX_D_QK];
            for r in 0..rows {
                let largest = (29 * r + 37) % len;
                for (k, key) in keys.chunks_mut(MAX_D_QK).take(len).enumerate() {
                    // Away from the largest they are so low that they don't count.
                    let below = (k + r) % 5 + if k / 16 == largest / 16 { 1 } else { 21 };
                    let score = others - f32::from(u8::try_from(below).unwrap());
                    let mut rest = if k == largest { LARGEST } else { score };
                    for part in &mut key[3 * r..][..3] {
                        *part = bf16::from_f32(rest);
                        rest -= part.to_f32();
                    }
                }
            }
            let run = Run {
                q: &q,
                keys: &keys,
                scale: 1.0,
                ..operands.run(rows, len)
            };
            if let Some(got) = on.with(fused(run)) {
                (0..rows).for_each(|r| check_row(&run, &got, r, 2_f64.powi(-16)));
            }
        }
    }
}
