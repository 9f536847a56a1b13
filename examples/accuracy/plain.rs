//! Attention in plain FP32, in the kernel's order: what multiplying the given inputs in FP32 yields. Products and
//! additions are rounded apart, P isn't rounded to BF16, and no reference exponent is an integer.

use amla::BLOCK_KEYS;
use amla::Split;

use crate::inputs::{D_QK, D_V};

/// Features whose products are added from zero, as in the kernel.
const CHUNK: usize = 96;

/// One query head over all keys.
pub fn attend(q: &[f32], kv: &[f32], softmax_scale: f32, o: &mut [f32]) {
    let keys: Vec<&[f32]> = kv.chunks(D_QK).collect();
    let mut total = Partial::NONE;
    for split in Split::ByLength.ranges(keys.len()) {
        let mut partial = Partial::NONE;
        for block in keys[split].chunks(BLOCK_KEYS) {
            partial.add(q, block, softmax_scale * std::f32::consts::LOG2_E);
        }
        total.merge(&partial);
    }
    for (o, sum) in o.iter_mut().zip(total.o) {
        *o = sum / total.sum;
    }
}

/// A result over some keys, relative to `2^max`.
struct Partial {
    max: f32,
    sum: f32,
    o: [f32; D_V],
}

impl Partial {
    const NONE: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
        o: [0.0; D_V],
    };

    /// Makes it relative to another maximum.
    fn rescale(&mut self, max: f32) {
        if self.max == max {
            return;
        }
        let factor = (self.max - max).exp2();
        self.sum *= factor;
        self.o.iter_mut().for_each(|o| *o *= factor);
        self.max = max;
    }

    fn add(&mut self, q: &[f32], block: &[&[f32]], scale: f32) {
        let scores: Vec<f32> = block.iter().map(|key| score(q, key) * scale).collect();
        self.rescale(scores.iter().copied().fold(self.max, f32::max));
        let mut sum = 0.0;
        // Products add to O itself. Of a pair of keys the odd one is first.
        for (scores, keys) in scores.chunks(2).zip(block.chunks(2)) {
            for (score, value) in scores.iter().zip(keys).rev() {
                let p = (score - self.max).exp2();
                sum += p;
                for (o, v) in self.o.iter_mut().zip(*value) {
                    *o += p * v;
                }
            }
        }
        self.sum += sum;
    }

    fn merge(&mut self, other: &Self) {
        let max = self.max.max(other.max);
        self.rescale(max);
        let factor = (other.max - max).exp2();
        self.sum += factor * other.sum;
        for (o, other) in self.o.iter_mut().zip(other.o) {
            *o += factor * other;
        }
    }
}

fn score(q: &[f32], k: &[f32]) -> f32 {
    let chunks = q.chunks(CHUNK).zip(k.chunks(CHUNK));
    let sums = chunks.map(|(q, k)| {
        let mut sum = 0.0;
        // Of a pair of features the odd one first.
        for (q, k) in q.chunks(2).zip(k.chunks(2)) {
            for (q, k) in q.iter().zip(k).rev() {
                sum += q * k;
            }
        }
        sum
    });
    sums.sum()
}
