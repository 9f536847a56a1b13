//! The largest probabilities of a row, and what rounding took from them.
//!
//! With an integer reference exponent the row maximum's P is no longer exactly
//! representable in BF16. A peaked row feels that: a few keys carry the whole
//! sum. So each row remembers the residual `P - bf16(P)` of its weightiest
//! block maxima and adds `residual * V[key]` once, when the row is finished. A
//! long flat row has no peaks and pays nothing.

use crate::bits::mul_pow2_f32;

/// Peaks that a row remembers.
pub const PEAKS: usize = 8;

/// Smallest share of the row's sum that makes a probability a peak.
///
/// At 1/64 the flattest of the paper's distributions, N(0, 1), is 4 % worse than
/// Base in FP32 output (8192 keys, one range), at 1/256 3 %, at 1/512 1 % better;
/// with the kernel's splits, each with peaks of its own, 9 %.
pub const PEAK_SHARE: f32 = 1.0 / 512.0;

/// One rounded probability, relative to the reference exponent of its block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Peak {
    /// The key's index within the request.
    pub key: u32,
    /// Reference exponent: the weight is `p * 2^exponent`. An integer.
    pub exponent: f32,
    /// The unrounded probability.
    pub p: f32,
    /// `p - bf16(p)`.
    pub residual: f32,
}

impl Peak {
    /// `value` taken from this peak's reference exponent to `exponent`.
    fn rebase(&self, value: f32, exponent: f32) -> f32 {
        mul_pow2_f32(value, difference(self.exponent, exponent))
    }
}

/// The weightiest peaks of one row.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Peaks {
    entries: [Peak; PEAKS],
    /// How many entries count.
    len: u32,
}

impl Peaks {
    /// No peaks.
    pub const EMPTY: Self = Self {
        entries: [Peak {
            key: 0,
            exponent: 0.0,
            p: 0.0,
            residual: 0.0,
        }; PEAKS],
        len: 0,
    };

    /// Takes `peak` in, if it outweighs the lightest, which it replaces; its
    /// exponent is not below that of any earlier one.
    pub fn push(&mut self, peak: Peak) {
        if let Some(free) = self.entries.get_mut(self.len as usize) {
            *free = peak;
            self.len += 1;
            return;
        }
        let weights = self.entries.map(|e| e.rebase(e.p, peak.exponent));
        let mut lightest = 0;
        for (i, &weight) in weights.iter().enumerate() {
            if weight < weights[lightest] {
                lightest = i;
            }
        }
        if peak.p > weights[lightest] {
            self.entries[lightest] = peak;
        }
    }

    /// The peaks that hold at least [`PEAK_SHARE`] of the sum `l`, as
    /// `(key, residual)` relative to `exponent`.
    pub fn significant(&self, exponent: f32, l: f32) -> impl Iterator<Item = (u32, f32)> {
        self.entries[..self.len as usize]
            .iter()
            .filter(move |e| e.rebase(e.p, exponent) >= PEAK_SHARE * l)
            .map(move |e| (e.key, e.rebase(e.residual, exponent)))
            .filter(|&(_, residual)| residual != 0.0)
    }
}

/// `from - to` for integers held in FP32, clamped to what FP32 can be scaled by.
#[expect(
    clippy::cast_possible_truncation,
    reason = "clamped to a small range first"
)]
pub fn difference(from: f32, to: f32) -> i32 {
    if from == to {
        // Also keeps inf - inf from becoming NaN.
        return 0;
    }
    (from - to).clamp(-255.0, 255.0) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak(key: u32, exponent: f32, p: f32) -> Peak {
        Peak {
            key,
            exponent,
            p,
            residual: p / 512.0,
        }
    }

    #[test]
    fn keeps_the_weightiest() {
        let mut peaks = Peaks::EMPTY;
        for key in 0..100_u8 {
            peaks.push(peak(key.into(), f32::from(key / 10), 0.9));
        }
        let mut seen = 0;
        for (key, residual) in peaks.significant(9.0, 1.0) {
            assert!(key >= 90, "{key}");
            assert_eq!(residual, 0.9 / 512.0);
            seen += 1;
        }
        assert_eq!(seen, PEAKS);
    }

    #[test]
    fn light_ones_are_not_significant() {
        let mut peaks = Peaks::EMPTY;
        let l = 1.0 / PEAK_SHARE;
        peaks.push(peak(1, 0.0, 1.0));
        assert_eq!(peaks.significant(0.0, l).count(), 1);
        assert_eq!(peaks.significant(0.0, l + 1.0).count(), 0);
        assert_eq!(peaks.significant(1.0, l).count(), 0);
    }

    #[test]
    fn difference_is_total() {
        assert_eq!(difference(f32::NEG_INFINITY, f32::NEG_INFINITY), 0);
        assert_eq!(difference(f32::NEG_INFINITY, 3.0), -255);
        assert_eq!(difference(f32::INFINITY, f32::INFINITY), 0);
        assert_eq!(difference(2.0, f32::INFINITY), -255);
        assert_eq!(difference(-1e38, 1e38), -255);
        assert_eq!(difference(5.0, 3.0), 2);
    }
}
