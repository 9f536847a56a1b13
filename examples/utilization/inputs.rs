//! Random queries and KV caches.

use amla::{Data, Problem, ProblemShape, TensorRef};
use half::bf16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::machine;
use crate::shapes::{D_QK, cache_bytes, cache_row};

/// The first rows of all caches.
pub struct Inputs {
    kv: Vec<bf16>,
}

impl Inputs {
    /// Enough for caches of up to `s_k` keys.
    pub fn draw(s_k: usize) -> Self {
        Self {
            kv: normal(0, s_k * D_QK),
        }
    }

    /// The queries of a problem.
    pub fn queries(&self, shape: ProblemShape) -> Vec<bf16> {
        normal(1, shape.b * shape.s_q * shape.h_q * shape.d_qk)
    }
}

fn normal(seed: u64, len: usize) -> Vec<bf16> {
    let values = StandardNormal
        .sample_iter(ChaCha8Rng::seed_from_u64(seed))
        .take(len);
    values.map(bf16::from_f32).collect()
}

/// KV caches of one or more batches, contiguous and equal in content; each request has memory of its
/// own.
///
/// They start on a cache line, as memory from a host's allocator does.
#[derive(Default)]
pub struct Caches {
    memory: Vec<bf16>,
    start: usize,
    batches: usize,
}

impl Caches {
    /// The caches of one batch.
    pub fn of(inputs: &Inputs, s_k: usize, b: usize) -> Self {
        Self::repeated(inputs, s_k, b, 1)
    }

    /// The caches of enough batches for twice the last-level cache, and half a GiB at least: each is
    /// evicted before its next turn.
    pub fn beyond_the_processor(inputs: &Inputs, s_k: usize, b: usize) -> Self {
        let beyond = (2 * machine::last_level_cache()).max(512 << 20);
        Self::repeated(inputs, s_k, b, beyond.div_ceil(cache_bytes(s_k, b)))
    }

    fn repeated(inputs: &Inputs, s_k: usize, b: usize, batches: usize) -> Self {
        const LINE: usize = 64;
        let requests = b * batches;
        let mut memory: Vec<bf16> = Vec::with_capacity(requests * s_k * D_QK + LINE);
        let start = memory.as_ptr().align_offset(LINE);
        memory.resize(start, bf16::ZERO);
        for _ in 0..requests {
            memory.extend_from_slice(&inputs.kv[..s_k * D_QK]);
        }
        Self {
            memory,
            start,
            batches,
        }
    }

    /// All elements.
    pub fn elements(&self) -> &[bf16] {
        &self.memory[self.start..]
    }

    /// The number of batches.
    pub fn batches(&self) -> usize {
        self.batches
    }

    /// One problem for each batch that fits the memory, all with the same queries. A batch larger than the memory is
    /// cut to fit.
    pub fn problems<'a>(&'a self, shape: ProblemShape, q: &'a [bf16]) -> Vec<Problem<'a>> {
        let ProblemShape {
            s_k, h_kv, d_qk, ..
        } = shape;
        let elements = self.elements();
        let of_request = s_k * cache_row(&shape);
        let b = shape.b.min(elements.len() / of_request);
        let problem = |cache: &'a [bf16]| {
            if h_kv == 1 {
                // Keys are 192 wide before absorption.
                return Problem::dense(
                    ProblemShape { b, ..shape },
                    q,
                    cache,
                    192_f32.sqrt().recip(),
                );
            }
            // Head by head: all keys, then all values.
            let (keys, values) = cache.split_at(cache.len() / 2);
            let strides = [h_kv * s_k * d_qk, d_qk, s_k * d_qk];
            let tensor = |data| TensorRef {
                data: Data::Bf16(data),
                strides,
            };
            Problem {
                kv: tensor(keys),
                v: Some(tensor(values)),
                ..Problem::dense(
                    ProblemShape { b, ..shape },
                    q,
                    &[],
                    (d_qk as f32).sqrt().recip(),
                )
            }
        };
        elements.chunks_exact(b * of_request).map(problem).collect()
    }
}
