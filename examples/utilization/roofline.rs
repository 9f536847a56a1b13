//! The roofline: read bandwidth, the paper's kinds of attention and the bound that follows from both.

use std::array::from_fn;
use std::hint::black_box;
use std::thread;
use std::time::Instant;

use amla::ProblemShape;
use amla_examples::engine::quantile;
use amla_examples::output::percent;
use half::bf16;

use crate::cell::Cell;
use crate::shapes::{CONTEXT, shape};

/// Passes over the memory in each way of reading; their median counts, as for the kernel.
const PASSES: usize = 8;

/// Read bandwidth of memory, in GB/s.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// To one thread.
    pub one_thread: f64,
    /// To all threads, their sum.
    pub all_threads: f64,
}

impl Bandwidth {
    /// The fastest of several sums over `memory`, which must exceed the last-level cache by far.
    pub fn measure(memory: &[bf16], threads: usize) -> Self {
        let (_, words, _) = bytemuck::pod_align_to::<_, u64>(memory);
        let one_thread = best_way(words, 1);
        let all_threads = if threads == 1 {
            one_thread
        } else {
            best_way(words, threads)
        };
        Self {
            one_thread,
            all_threads,
        }
    }
}

fn best_way(words: &[u64], threads: usize) -> f64 {
    let pass = |sum: fn(&[u64]) -> u64| {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in words.chunks(words.len().div_ceil(threads)) {
                scope.spawn(|| black_box(sum(part)));
            }
        });
        size_of_val(words) as f64 * 1e-9 / start.elapsed().as_secs_f64()
    };
    let mut passes = [[0.0; PASSES]; 3];
    for i in 0..PASSES {
        for (passes, sum) in passes.iter_mut().zip([sum::<1>, sum::<2>, sum::<4>]) {
            passes[i] = pass(sum);
        }
    }
    let medians = passes.map(|mut passes| quantile(&mut passes, 0.5));
    medians.into_iter().fold(0.0, f64::max)
}

/// The sum of one word in each cache line, in `STREAMS` streams. Memory delivers lines; the fewer instructions a line
/// takes, the more lines a core has in flight. On Zen 5 sums of all words read at 0.85 of this, loads of 64 bytes at
/// 0.98 to 1.02.
fn sum<const STREAMS: usize>(words: &[u64]) -> u64 {
    let part = words.len() / STREAMS;
    let streams: [_; STREAMS] = from_fn(|i| words[i * part..][..part].as_chunks::<8>().0);
    let mut sums = [0_u64; STREAMS];
    for i in 0..part / 8 {
        for (sum, stream) in sums.iter_mut().zip(streams) {
            *sum = sum.wrapping_add(stream[i][0]);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

/// A kind of attention (tab:arithmetic intensity).
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub name: &'static str,
    /// Of one request at context 4096.
    pub shape: ProblemShape,
}

/// The paper's variants. Widths of MHA's and GQA's heads cancel out of its intensities; here they are 128.
pub const VARIANTS: [Variant; 5] = [
    Variant::new("MHA", 64, 64, 1),
    Variant::new("GQA", 64, 8, 1),
    Variant::new("MLA-64", 64, 1, 1),
    Variant::new("MLA-128", 128, 1, 1),
    Variant::new("MLA-128, s_q 2", 128, 1, 2),
];

impl Variant {
    const fn new(name: &'static str, h_q: usize, h_kv: usize, s_q: usize) -> Self {
        let latent = shape(1, s_q, CONTEXT, h_q);
        let shape = match h_kv {
            1 => latent,
            _ => ProblemShape {
                h_kv,
                d_qk: 128,
                d_v: 128,
                ..latent
            },
        };
        Self { name, shape }
    }
}

/// The measured roofline: what the report prints and the plot draws.
pub struct Roofline<'a> {
    pub bandwidth: Bandwidth,
    pub threads: usize,
    /// The highest peak beside any of the points, in GFLOP/s.
    peak: f64,
    /// A cell of each variant.
    pub points: &'a [(&'a Variant, Cell)],
}

impl<'a> Roofline<'a> {
    pub fn new(bandwidth: Bandwidth, threads: usize, points: &'a [(&'a Variant, Cell)]) -> Self {
        let peaks = points.iter().map(|(_, cell)| cell.measured.peak_gflops);
        Self {
            bandwidth,
            threads,
            peak: peaks.fold(0.0, f64::max),
            points,
        }
    }

    /// The bound at an intensity, in GFLOP/s.
    pub fn bound(&self, gbs: f64, intensity: f64) -> f64 {
        (gbs * intensity).min(self.peak)
    }

    /// The intensity from which on the peak is the bound.
    pub fn ridge(&self, gbs: f64) -> f64 {
        self.peak / gbs
    }

    pub fn peak(&self) -> f64 {
        self.peak
    }

    /// Bandwidth and peak, as the report's and the plot's first line.
    pub fn title(&self) -> String {
        format!(
            "Roofline: reads {:.1} GB/s, peak {:.1} GFLOP/s; context {CONTEXT}, keys from memory",
            self.bandwidth.all_threads, self.peak,
        )
    }

    /// The bandwidth of one thread, where there are more.
    pub fn one_thread(&self) -> Option<String> {
        (self.threads > 1)
            .then(|| format!("one thread reads {:.1} GB/s", self.bandwidth.one_thread))
    }

    /// The table of all variants.
    pub fn report(&self) -> String {
        let mut text = format!("\n{}\n", self.title());
        text.extend(self.one_thread().map(|line| line + "\n"));
        text += "bound = min(peak, reads x FLOP/byte), with the reads and the peak beside each row\n\n\
                 variant         q heads kv heads  s_q FLOP/byte    bound  reached  of bound";
        for (variant, cell) in self.points {
            text += &format!(
                "\n{:<15} {:>7} {:>8} {:>4} {:>9.0} {:>8.1} {:>8.1} {:>7} %",
                variant.name,
                cell.shape.h_q,
                cell.shape.h_kv,
                cell.shape.s_q,
                cell.intensity(),
                cell.bound(),
                cell.measured.gflops,
                percent(cell.of_bound()),
            );
        }
        text
    }
}
