//! C2 of strips in which V holds an infinity or a NaN, or a row's P or O does: IEEE arithmetic in
//! FP32, and only over the keys that each row sees.

use core::ops::Range;

use half::bf16;

use crate::bits::{Increment, add_increment_f32, bf16_to_f32};
use crate::format::{Dtype, Row};
use crate::group::Group;
use crate::kernel::{Columns, Kernel, Skipped, Strips};
use crate::problem::Precision;
use crate::tile::{BLOCK_KEYS, L0a, MAX_D_V, ORow, STRIP};

/// Strips that C2, or the fused kernel, skipped for one panel.
pub struct Fallback<'a> {
    /// The rows.
    pub group: &'a Group<'a>,
    /// Their panel.
    pub panel: usize,
    /// Keys of the request that P is of.
    pub keys: Range<usize>,
    /// How P is stored.
    pub precision: Precision,
    /// P, and what moves O. `first` overwrites O.
    pub p: &'a L0a,
    /// Whether O holds nothing yet.
    pub first: bool,
    /// Whether the fused kernel ran, which has moved O.
    pub fused: bool,
    /// How the kernel reads values.
    pub values: Dtype,
    /// The strips.
    pub skipped: Skipped,
}

impl Fallback<'_> {
    /// A value as the kernel multiplies it.
    fn convert<K: Kernel>(&self, kernel: K, row: &Row<'_>, out: &mut [f32]) {
        if self.values != Dtype::Bf16 {
            kernel.convert_fp32(row, &Row::EMPTY, out);
            return;
        }
        let mut value = [bf16::ZERO; MAX_D_V];
        let value = &mut value[..out.len()];
        kernel.convert(row, &Row::EMPTY, value);
        for (out, x) in out.iter_mut().zip(value) {
            *out = bf16_to_f32(x.to_bits());
        }
    }

    /// Computes them, in the panel's O.
    #[cold]
    pub fn run<K: Kernel>(&self, kernel: K, o: &mut [ORow]) {
        self.rescale(o);
        kernel.permute(self.fused, self.values, o, Columns::Natural);
        self.add(
            &mut |row, out| self.convert(kernel, row, out),
            &|k, r| kernel.prob(self.p, self.precision, k, r),
            o,
        );
        kernel.permute(self.fused, self.values, o, Columns::Own);
    }

    /// Moves O to the block's reference.
    fn rescale(&self, o: &mut [ORow]) {
        let rows = self.group.panel_rows(self.panel);
        for (_, o) in o
            .chunks_mut(self.group.strip_rows(self.panel))
            .enumerate()
            .filter(|&(i, _)| has(self.skipped.all, i))
        {
            for (o, &increment) in o[..rows].iter_mut().zip(&self.p.increment) {
                if self.first {
                    o.fill(0.0);
                } else if !self.fused {
                    let increment = Increment::from_bits_clamped(increment);
                    o.iter_mut()
                        .for_each(|x| *x = add_increment_f32(*x, increment));
                }
            }
        }
    }

    /// Adds the values that each row sees, by one code for all backends.
    fn add(
        &self,
        convert: &mut dyn FnMut(&Row<'_>, &mut [f32]),
        prob: &dyn Fn(usize, usize) -> f32,
        o: &mut [ORow],
    ) {
        let (group, panel, skipped) = (self.group, self.panel, self.skipped);
        let (rows, strip_rows) = (group.panel_rows(panel), group.strip_rows(panel));
        let mut mask = [0; BLOCK_KEYS];
        let mask = group.mask(panel, &self.keys, &mut mask);
        let strips = o.len() / strip_rows;
        let d_v = group.problem.shape.d_v;
        let mut value = [0.0; MAX_D_V];
        let value = &mut value[..strips * STRIP];
        for (k, row) in group.values(self.keys.clone()).enumerate() {
            let strips = match k {
                ..Skipped::TAIL => skipped.all,
                _ => skipped.all | skipped.tail,
            };
            convert(&row, &mut value[..d_v]);
            let values = value.as_chunks::<STRIP>().0;
            let sees = |&r: &usize| mask.is_none_or(|mask| mask[k] >> r & 1 == 1);
            for r in (0..rows).filter(sees) {
                let prob = prob(k, r);
                for (i, (o, value)) in o.chunks_mut(strip_rows).zip(values).enumerate() {
                    if has(strips, i) {
                        axpy(prob, value, &mut o[r]);
                    }
                }
            }
        }
    }
}

/// Whether a strip is among some.
const fn has(strips: Strips, strip: usize) -> bool {
    strips & 1 << strip != 0
}

/// `o += p * value`.
fn axpy(p: f32, value: &[f32; STRIP], o: &mut [f32; STRIP]) {
    for (o, v) in o.iter_mut().zip(value) {
        *o += p * v;
    }
}
