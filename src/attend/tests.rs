//! The driver with a preload against the driver without.

extern crate std;

use std::boxed::Box;
use std::vec::Vec;

use half::{bf16, f16};

use super::*;
use crate::bits::Increment;
use crate::format::{Data, Dtype, Row};
use crate::kernel::prefetch::{Budget, Shape as PrefetchShape};
use crate::kernel::{BackendId, Epilogue, FusedBlock, FusedEnd, PackQ, PackRow, Visitor};
use crate::problem::{Problem, TensorRef};
use crate::shape::ProblemShape;
use crate::tile::{GROUP_ROWS, L0a, L0b, PANELS, QPanel, STile, Workspace};

/// No result tells which memory the stages use.
#[test]
fn tiles_of_stages_in_flight_differ() {
    for panels in 1..=PANELS {
        for (preload, scores) in [(0, 1), (2, 2)] {
            let of = Slots { panels, preload };
            let items = 4 * panels;
            for cycle in cycles(items, preload) {
                let Cycle { c1, v1, c2 } = cycle;
                if let (Some(c1), Some(v1)) = (c1, v1) {
                    assert_eq!(of.s(c1) == of.s(v1), c1 == v1);
                    assert!(of.s(c1) < scores);
                }
                let last = c2.filter(|i| i % panels + 1 == panels);
                let Some(last) = last else { continue };
                let p = &of.p_of_panels(Some(last))[..panels];
                let each: Vec<_> = (last + 1 - panels..=last).map(|i| of.p(i)).collect();
                assert_eq!(p, each);
                // V1 may fill the next P while C2 reads these.
                if let Some(v1) = v1.filter(|&v1| v1 > last) {
                    assert!(!p.contains(&of.p(v1)));
                }
            }
        }
    }
}

/// A backend with a preload of 2 where it has none, and with none where it has one. Each cycle's stages run one
/// after the other.
#[derive(Clone, Copy)]
struct OtherPreload<K>(K);

impl<K: Kernel> Kernel for OtherPreload<K> {
    const PRELOAD: usize = 2 - K::PRELOAD;
    const MULTIPLIES_FP32: bool = K::MULTIPLIES_FP32;

    fn prefetch_budget(self, rows: &PrefetchShape) -> Budget {
        self.0.prefetch_budget(rows)
    }

    fn convert(self, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
        self.0.convert(row, next, out);
    }

    fn convert_fp32(self, row: &Row<'_>, next: &Row<'_>, out: &mut [f32]) {
        self.0.convert_fp32(row, next, out);
    }

    fn pack_q(self, call: &PackQ<'_>, panel: &mut [QPanel]) {
        self.0.pack_q(call, panel);
    }

    fn pack_row(self, call: &PackRow<'_>, panel: &mut [QPanel]) {
        self.0.pack_row(call, panel);
    }

    fn qk(self, call: &Qk<'_>, q: &[QPanel], scratch: &mut L0b, s: &mut STile) {
        self.0.qk(call, q, scratch, s);
    }

    fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
        self.0.softmax(call, s, p, state);
    }

    fn prob(self, p: &L0a, precision: Precision, k: usize, r: usize) -> f32 {
        self.0.prob(p, precision, k, r)
    }

    fn pv(self, call: &Pv<'_>, p: &[&L0a], scratch: &mut L0b, o: &mut [ORow]) -> Skipped {
        self.0.pv(call, p, scratch, o)
    }

    fn fused(
        self,
        call: &Softmax<'_>,
        block: &FusedBlock<'_>,
        p: &mut L0a,
        scratch: &mut L0b,
        state: &mut RowState,
        o: &mut [ORow],
    ) -> FusedEnd {
        self.0.fused(call, block, p, scratch, state, o)
    }

    fn permute(self, fused: bool, values: Dtype, o: &mut [ORow], to: Columns) {
        self.0.permute(fused, values, o, to);
    }

    fn epilogue(
        self,
        call: &Epilogue<'_>,
        earlier: Option<&[ORow]>,
        o: &mut [ORow],
        store: impl FnMut(usize, &[f32; STRIP]),
    ) {
        self.0.epilogue(call, earlier, o, store);
    }

    fn rescale(self, xs: &mut [f32], increment: Increment) {
        self.0.rescale(xs, increment);
    }

    fn dot_loop(self, iterations: u64) -> u64 {
        self.0.dot_loop(iterations)
    }
}

const D_QK: usize = 192;
const D_V: usize = 128;
/// Query positions.
const S_Q: usize = 4;

/// The driver over all rows and keys of a problem.
#[derive(Clone, Copy)]
struct Drive<'a> {
    problem: &'a Problem<'a>,
    rescale: Rescale,
    precision: Precision,
}

impl Visitor for Drive<'_> {
    /// The bits of the partial result, as the backend has it and with the other preload: O row by row in
    /// each strip, exponents, sums and largest scores.
    type Output = [Vec<u32>; 2];

    fn visit<K: Kernel>(self, kernel: K) -> Self::Output {
        const { assert!(K::PRELOAD == 0 || K::PRELOAD == 2) };
        [self.run(kernel), self.run(OtherPreload(kernel))]
    }
}

impl Drive<'_> {
    fn run<K: Kernel>(self, kernel: K) -> Vec<u32> {
        let ProblemShape { h_q, s_k, .. } = self.problem.shape;
        let rows = S_Q * h_q;
        let group = Group {
            problem: self.problem,
            request: 0,
            head: 0,
            heads: 1,
            rows: 0..rows,
            keys: 0..s_k,
            prefetch_end: s_k,
            planned_rows: rows,
            block_keys: BLOCK_KEYS,
        };
        let mut workspace: Box<Workspace> = bytemuck::zeroed_box();
        let mut memory = std::vec![f32::NAN; Partial::len(group.room(), D_V)];
        let task = Task {
            group: &group,
            options: &Options {
                rescale: self.rescale,
                precision: self.precision,
                ..Options::default()
            },
            tiles: &mut workspace.tiles,
            kv: &mut workspace.kv,
            packed: false,
            partial: &mut memory,
            earlier: None,
            write: None,
        };
        attend(kernel, task);
        let partial = Partial::view(&mut memory, D_V);
        let mut numbers = partial.sums[..rows].as_flattened().to_vec();
        for panel in 0..group.panels() {
            let o = panel_o(&group, panel, partial.o);
            for strip in o.chunks(group.strip_rows(panel)) {
                numbers.extend(strip[..group.panel_rows(panel)].as_flattened());
            }
        }
        numbers.into_iter().map(f32::to_bits).collect()
    }
}

/// Numbers between -1 and 1; scores rise and fall from block to block.
fn numbers(seed: u32, n: usize) -> Vec<bf16> {
    let mut state = seed;
    core::iter::repeat_with(|| {
        state = state.wrapping_mul(0x915f_77f5).wrapping_add(0x0d2e_4f1b);
        bf16::from_f32(f32::from(u16::try_from(state >> 16).unwrap()) / 32768.0 - 1.0)
    })
    .take(n)
    .collect()
}

/// Backends that the processor can run, or the one that `AMLA_TEST_BACKEND` names.
fn backends() -> impl Iterator<Item = Backend> {
    let chosen = std::env::var("AMLA_TEST_BACKEND").unwrap_or_default();
    Backend::permit_amx();
    BackendId::ALL
        .into_iter()
        .filter(move |id| chosen.is_empty() || chosen == id.name())
        .filter_map(|id| Backend::request(id).ok())
}

/// A group of 1 to 4 panels, the last of which may have few rows, over several blocks: with masks, with values of their own,
/// with values that aren't finite, and with keys that are converted first.
#[test]
fn a_preload_changes_no_bits() {
    const KEYS: usize = 4 * BLOCK_KEYS;
    let q = numbers(1, GROUP_ROWS * D_QK);
    let kv = numbers(3, KEYS * D_QK);
    let halves: Vec<_> = kv.iter().map(|x| f16::from_f32(x.to_f32())).collect();
    let v = numbers(5, KEYS * D_V);
    // Of the first strip in one block, of the second in another.
    let mut bad = v.clone();
    bad[(BLOCK_KEYS / 2 + 1) * D_V] = bf16::INFINITY;
    bad[(2 * BLOCK_KEYS + 1) * D_V + 100] = bf16::NAN;
    let groups = [
        PANEL_ROWS - 4,
        PANEL_ROWS,
        PANEL_ROWS + 4,
        2 * PANEL_ROWS,
        3 * PANEL_ROWS - 8,
        4 * PANEL_ROWS,
    ];
    let lengths = [1, BLOCK_KEYS, BLOCK_KEYS + 7, 2 * BLOCK_KEYS, KEYS - 1];
    for (n, (rows, s_k)) in groups
        .into_iter()
        .filter(|&rows| rows <= GROUP_ROWS)
        .flat_map(|rows| lengths.map(|s_k| (rows, s_k)))
        .enumerate()
    {
        let shape = ProblemShape {
            b: 1,
            s_q: S_Q,
            s_k,
            h_q: rows / S_Q,
            h_kv: 1,
            d_qk: D_QK,
            d_v: D_V,
        };
        let latent = Problem::dense(shape, &q[..rows * D_QK], &kv[..s_k * D_QK], 0.2);
        let causal = Problem {
            causal: true,
            ..latent
        };
        let with_values = |v| Problem {
            v: Some(TensorRef {
                data: Data::Bf16(v),
                strides: [s_k * D_V, D_V, D_V],
            }),
            ..causal
        };
        let (separate, not_finite) = (with_values(&v[..s_k * D_V]), with_values(&bad[..s_k * D_V]));
        let converted = Problem {
            kv: TensorRef {
                data: Data::F16(&halves[..s_k * D_QK]),
                ..latent.kv
            },
            ..latent
        };
        // Every other one, the others with the next pair.
        for (i, problem) in [&latent, &causal, &separate, &not_finite, &converted]
            .into_iter()
            .enumerate()
            .skip(n % 2)
            .step_by(2)
        {
            let (rescale, precision) = [
                (Rescale::Exact, Precision::Bf16),
                (Rescale::Exact, Precision::Bf16x2),
                (Rescale::Compensated, Precision::Bf16),
            ][(i + rows / 4 + s_k) % 3];
            problem.check().unwrap();
            let drive = Drive {
                problem,
                rescale,
                precision,
            };
            for backend in backends() {
                let [own, other] = backend.with(drive);
                assert_eq!(own, other, "{backend:?} {rows} {s_k} {i}");
            }
        }
    }
}
