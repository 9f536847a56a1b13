//! The roofline: read bandwidth, arithmetic intensities (the paper's
//! subsec:arithmeticintensity) and the bound that follows from both.

use std::array::from_fn;
use std::fmt::Write;
use std::hint::black_box;
use std::thread;
use std::time::Instant;

use half::bf16;

use crate::cell::{Cell, percent};

/// Passes over the memory, of which the fastest counts.
const PASSES: usize = 8;

/// What memory delivers, in GB/s.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// To one thread.
    pub one_thread: f64,
    /// To all that were asked for, together.
    pub all_threads: f64,
}

impl Bandwidth {
    /// By sums over `memory`, much more of it than fits the last-level cache.
    pub fn measure(memory: &[bf16], threads: usize) -> Self {
        let (_, words, _) = bytemuck::pod_align_to::<_, u64>(memory);
        let one_thread = best_of_passes(words, 1);
        let all_threads = if threads == 1 {
            one_thread
        } else {
            best_of_passes(words, threads)
        };
        Self {
            one_thread,
            all_threads,
        }
    }
}

fn best_of_passes(words: &[u64], threads: usize) -> f64 {
    let pass = |sum: fn(&[u64]) -> u64| {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in words.chunks(words.len().div_ceil(threads)) {
                scope.spawn(|| black_box(sum(part)));
            }
        });
        size_of_val(words) as f64 * 1e-9 / start.elapsed().as_secs_f64()
    };
    let passes = (0..PASSES).flat_map(|_| [pass(sum::<1>), pass(sum::<4>)]);
    passes.fold(0.0, f64::max)
}

/// In one stream or several, whichever keeps more reads on their way, each with
/// accumulators enough for the compiler to use vectors.
fn sum<const STREAMS: usize>(words: &[u64]) -> u64 {
    let part = words.len() / STREAMS;
    let streams: [_; STREAMS] = from_fn(|i| words[i * part..][..part].as_chunks::<8>().0);
    let mut sums = [[0_u64; 8]; STREAMS];
    for i in 0..part / 8 {
        for (sums, stream) in sums.iter_mut().zip(streams) {
            for (sum, word) in sums.iter_mut().zip(stream[i]) {
                *sum = sum.wrapping_add(word);
            }
        }
    }
    sums.as_flattened()
        .iter()
        .copied()
        .fold(0, u64::wrapping_add)
}

/// FLOP per byte of KV cache for `rows` query rows (heads x positions) that share
/// one latent row of `d_qk` elements, the first `d_v` of which are the value.
pub fn intensity(rows: usize, d_qk: usize, d_v: usize) -> f64 {
    (rows * (d_qk + d_v)) as f64 / d_qk as f64
}

/// A kind of attention (tab:arithmetic intensity).
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub name: &'static str,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub s_q: usize,
}

/// The paper's.
pub const VARIANTS: [Variant; 5] = [
    Variant::new("MHA", 64, 64, 1),
    Variant::new("GQA", 64, 8, 1),
    Variant::new("MLA-64", 64, 1, 1),
    Variant::new("MLA-128", 128, 1, 1),
    Variant::new("MLA-128, s_q 2", 128, 1, 2),
];

impl Variant {
    const fn new(name: &'static str, q_heads: usize, kv_heads: usize, s_q: usize) -> Self {
        Self {
            name,
            q_heads,
            kv_heads,
            s_q,
        }
    }

    /// Whether keys and values are one latent row, which is what our kernel takes.
    pub fn is_mla(&self) -> bool {
        self.kv_heads == 1
    }

    /// FLOP per byte of KV cache. Where keys and values are apart, the paper's formula
    /// lacks the number of KV heads, which its table has.
    pub fn intensity(&self) -> f64 {
        let rows = self.q_heads * self.s_q;
        if self.is_mla() {
            intensity(rows, 576, 512)
        } else {
            rows as f64 / self.kv_heads as f64
        }
    }
}

/// The highest peak beside any of the cells.
pub fn peak<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> f64 {
    let peaks = cells.into_iter().map(|cell| cell.measured.peak_gflops);
    peaks.fold(0.0, f64::max)
}

/// The table of all variants; `points` are the measured ones.
pub fn report(bandwidth: &Bandwidth, threads: usize, points: &[(&Variant, Cell)]) -> String {
    let peak = peak(points.iter().map(|(_, cell)| cell));
    let mut text = format!(
        "
Roofline on {threads} thread{}: peak {peak:.1} GFLOP/s, reads {:.1} GB/s (one thread alone: {:.1})
bound = min(peak, reads x FLOP/byte); reached: context 4096, keys from memory

variant           q heads  kv heads  s_q  FLOP/byte     bound   reached  of bound",
        if threads == 1 { "" } else { "s" },
        bandwidth.all_threads,
        bandwidth.one_thread,
    );
    for variant in &VARIANTS {
        let cell = points.iter().find(|(v, _)| v.name == variant.name);
        let bound = cell.map_or_else(
            || (bandwidth.all_threads * variant.intensity()).min(peak),
            |(_, cell)| cell.bound(),
        );
        let (reached, fraction) = cell.map_or(("-".to_owned(), "-".to_owned()), |(_, cell)| {
            (
                format!("{:.1}", cell.measured.gflops),
                percent(cell.of_bound()),
            )
        });
        write!(
            text,
            "\n{:<17} {:>7} {:>9} {:>4} {:>10.0} {bound:>9.1} {reached:>9} {fraction:>9}",
            variant.name,
            variant.q_heads,
            variant.kv_heads,
            variant.s_q,
            variant.intensity(),
        )
        .expect("a string has room");
    }
    text
}
