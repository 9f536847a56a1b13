//! Asking memory for rows to come, between products: fewer lines than products, as each holds a slot of L1d that operands
//! from L2 need as well.

use half::bf16;

use crate::kernel::prefetch;

/// Lines that a step of a register tile asks for.
pub const LINES: usize = 3;
/// Bytes of a line.
const LINE: usize = size_of::<[bf16; prefetch::LINE]>();

/// Where a register tile asks: [`LINES`] in a row with each step, and further on by `step` bytes. That may be anywhere, as
/// asking touches no memory as far as the program can tell.
#[derive(Clone, Copy)]
pub struct Ask {
    pub at: *const u8,
    pub step: usize,
}

impl Ask {
    /// Nothing that isn't there: lines of an operand.
    pub const fn nothing<T>(operand: *const T) -> Self {
        Self {
            at: operand.cast(),
            step: 0,
        }
    }
}

/// Rows to come, asked for line by line. A row that ends within a register tile's lines is followed by what lies behind it,
/// which are the next rows where there is no gap.
pub struct Asks<'a> {
    rows: &'a [&'a [bf16]],
    /// Up to where the first of them is asked for, if something of it is.
    at: *const u8,
}

impl<'a> Asks<'a> {
    pub const fn of(rows: &'a [&'a [bf16]]) -> Self {
        Self {
            rows,
            at: core::ptr::null(),
        }
    }

    /// For a register tile of so many steps; `operand` if nothing is left.
    #[inline]
    pub fn next<T>(&mut self, steps: usize, operand: *const T) -> Ask {
        let Some(row) = self.rows.first() else {
            return Ask::nothing(operand);
        };
        let within = |at: *const u8, row: &[bf16]| {
            let row = row.as_ptr_range();
            row.start.cast() <= at && at < row.end.cast()
        };
        let at = if within(self.at, row) {
            self.at
        } else {
            row.as_ptr().cast()
        };
        let step = LINES * LINE;
        let end = at.wrapping_add(steps * step);
        let ends = |row: &[bf16]| row.as_ptr_range().end.cast();
        while let [row, rest @ ..] = self.rows
            && at < ends(row)
            && ends(row) <= end
        {
            self.rows = rest;
        }
        self.at = end;
        Ask { at, step }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const WIDTH: usize = 9 * LINE / size_of::<bf16>();
    static OPERAND: u8 = 0;

    /// How often each line of `memory` is asked for until nothing is left, and in how many register tiles of so many steps.
    fn asked(memory: &[bf16], rows: &[&[bf16]], steps: usize) -> (Vec<usize>, usize) {
        let mut asks = Asks::of(rows);
        let mut lines = std::vec![0; size_of_val(memory) / LINE];
        for tiles in 0.. {
            let ask = asks.next(steps, &raw const OPERAND);
            if ask.step == 0 {
                assert_eq!(ask.at, &raw const OPERAND);
                return (lines, tiles);
            }
            assert_eq!(ask.step, LINES * LINE);
            let first = (ask.at.addr() - memory.as_ptr().addr()) / LINE;
            for count in lines.iter_mut().skip(first).take(steps * LINES) {
                *count += 1;
            }
        }
        unreachable!()
    }

    #[test]
    fn rows_without_a_gap_are_asked_for_once() {
        let memory = [bf16::ZERO; 24 * WIDTH];
        let rows: Vec<_> = memory.chunks(WIDTH).collect();
        for steps in 1..40 {
            let (lines, tiles) = asked(&memory, &rows, steps);
            assert!(lines.iter().all(|&n| n == 1), "{steps}: {lines:?}");
            assert_eq!(tiles, lines.len().div_ceil(steps * LINES));
        }
        assert_eq!(asked(&memory, &[], 1).1, 0);
    }

    #[test]
    fn rows_anywhere_are_asked_for() {
        let memory = [bf16::ZERO; 24 * WIDTH];
        // Two of three rows, the second half first.
        let mut rows: Vec<_> = (0..24).filter(|i| i % 3 < 2).collect();
        rows.rotate_left(8);
        let listed: Vec<_> = rows.iter().map(|i| &memory[i * WIDTH..][..WIDTH]).collect();
        for steps in 1..40 {
            let (lines, tiles) = asked(&memory, &listed, steps);
            let whole = |i: &usize| lines[9 * i..][..9].iter().all(|&n| n > 0);
            assert!(rows.iter().all(whole), "{steps}: {lines:?}");
            assert!(tiles <= rows.len() * 9_usize.div_ceil(steps * LINES));
        }
    }
}
