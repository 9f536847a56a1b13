//! The lines that register tiles of AMX prefetch.

use super::*;
use crate::kernel::prefetch::{LINE, TILE_LINES, TileRows};

const WIDTH: usize = 9 * LINE;
const LINE_BYTES: usize = LINE * size_of::<bf16>();
static OPERAND: u8 = 0;

/// How often each line of `memory` is prefetched until no rows remain, and by how many register tiles of `steps` steps.
fn prefetched(memory: &[bf16], rows: &[&[bf16]], steps: usize) -> (Vec<usize>, usize) {
    let mut tile_rows = TileRows::of(rows);
    let mut lines = std::vec![0; size_of_val(memory) / LINE_BYTES];
    for tiles in 0.. {
        let lines_of_tile = tile_rows.next(steps, &raw const OPERAND);
        if lines_of_tile.step == 0 {
            assert_eq!(lines_of_tile.at, &raw const OPERAND);
            return (lines, tiles);
        }
        assert_eq!(lines_of_tile.step, TILE_LINES * LINE_BYTES);
        let first = (lines_of_tile.at.addr() - memory.as_ptr().addr()) / LINE_BYTES;
        for count in lines.iter_mut().skip(first).take(steps * TILE_LINES) {
            *count += 1;
        }
    }
    unreachable!()
}

#[test]
fn contiguous_rows_are_prefetched_once() {
    let memory = [bf16::ZERO; 24 * WIDTH];
    let rows: Vec<_> = memory.chunks(WIDTH).collect();
    for steps in 1..40 {
        let (lines, tiles) = prefetched(&memory, &rows, steps);
        assert!(lines.iter().all(|&n| n == 1), "{steps}: {lines:?}");
        assert_eq!(tiles, lines.len().div_ceil(steps * TILE_LINES));
    }
    assert_eq!(prefetched(&memory, &[], 1).1, 0);
}

#[test]
fn rows_anywhere_are_prefetched() {
    let memory = [bf16::ZERO; 24 * WIDTH];
    // Two of three rows, the second half first.
    let mut rows: Vec<_> = (0..24).filter(|i| i % 3 < 2).collect();
    rows.rotate_left(8);
    let listed: Vec<_> = rows.iter().map(|i| &memory[i * WIDTH..][..WIDTH]).collect();
    for steps in 1..40 {
        let (lines, tiles) = prefetched(&memory, &listed, steps);
        let complete = |i: &usize| lines[9 * i..][..9].iter().all(|&n| n > 0);
        assert!(rows.iter().all(complete), "{steps}: {lines:?}");
        assert!(tiles <= rows.len() * 9_usize.div_ceil(steps * TILE_LINES));
    }
}
