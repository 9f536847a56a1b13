//! What the benches share: inputs, backends, names.

#![allow(dead_code, reason = "each bench takes what it needs")]

use amla::{Backend, BackendId};
use half::bf16;

/// `len` numbers spread evenly between -1 and 1, the same ones every time.
pub fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut x = seed;
    let next = || {
        // SplitMix64.
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let y = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let y = (y ^ (y >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((y >> 40) as f32 / (1 << 23) as f32) - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// The same in BF16, from the start of a cache line on, where hosts' allocators put tensors; leaked, as benches draw
/// them once.
pub fn inputs(seed: u64, len: usize) -> &'static [bf16] {
    const LINE: usize = 64;
    let mut memory: Vec<bf16> = Vec::with_capacity(len + LINE / size_of::<bf16>());
    let start = memory.as_ptr().align_offset(LINE);
    memory.resize(start, bf16::ZERO);
    memory.extend(numbers(seed, len).into_iter().map(bf16::from_f32));
    &memory.leak()[start..]
}

/// The backends that this processor can run; says which it can't.
pub fn backends() -> Vec<Backend> {
    // Before the first backend is chosen: where there is AMX, it is the fastest.
    Backend::permit_amx();
    let request = |&id: &BackendId| match Backend::request(id) {
        Ok(backend) => Some(backend),
        Err(error) => {
            eprintln!("NOT RUN: {error}");
            None
        }
    };
    BackendId::ALL.iter().filter_map(request).collect()
}

/// What the compiler was allowed to use outside of backends.
pub const BUILD: &str = if cfg!(target_feature = "avx512f") {
    "AVX-512"
} else if cfg!(target_feature = "avx2") {
    "AVX2"
} else if cfg!(target_feature = "sse2") {
    "SSE2"
} else {
    "the target's default"
};
