//! The lines that fused kernels for AVX-512 prefetch in C2.

use std::cell::RefCell;

use super::*;
use crate::SUPPORTED_DIMS;
use crate::kernel::prefetch::LINE;
use crate::kernel::zmm::fused_rows::{KEYS, Passes, Prefetch, PrefetchRows, ROWS};

/// Each line of each row once, in the order of memory.
#[test]
fn every_line_is_prefetched() {
    for &(d_qk, d_v) in SUPPORTED_DIMS {
        // Tiles that share the rows, or parts of a strip.
        for (often, vectors) in [1, 2]
            .into_iter()
            .flat_map(|n| (1..=4).map(move |v| (n, v)))
        {
            let (lines, strips) = (d_qk / LINE, d_v / STRIP);
            // Half of the keys, or all values.
            for (lines, count) in [(lines, ROWS), (d_v / LINE, KEYS)] {
                check((lines, count), strips, often, vectors, PAIRS);
                check((lines, count), strips, often, vectors, KEYS / often);
            }
        }
    }
}

const PAIRS: usize = KEYS / 2;

struct Recorder(RefCell<Vec<*const bf16>>);

impl Prefetch<1> for Recorder {
    fn prefetch(&self, [at]: &mut [*const bf16; 1]) {
        self.0.borrow_mut().push(*at);
        *at = at.wrapping_add(LINE);
    }
}

fn check(
    (lines, count): (usize, usize),
    strips: usize,
    often: usize,
    vectors: usize,
    steps: usize,
) {
    let row = |r: usize| core::ptr::without_provenance(0x10000 * (r + 1));
    let rows: Vec<*const bf16> = (0..vectors * count).map(row).collect();
    let recorder = Recorder(RefCell::new(Vec::new()));
    let times = often * strips;
    let prefetch = PrefetchRows::of([&rows], Passes::of(lines, count, times));
    for i in 0..times * vectors {
        let mut lines = prefetch.pass(i, steps, &recorder);
        (0..steps).for_each(|_| lines.prefetch(&recorder));
    }
    let row_lines = |row: &*const bf16| {
        let row = *row;
        (0..lines).map(move |line| row.wrapping_add(line * LINE))
    };
    let want: Vec<_> = rows.iter().flat_map(row_lines).collect();
    assert_eq!(recorder.0.into_inner(), want, "{times} {vectors} {steps}");
}
