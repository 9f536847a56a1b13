//! A stream's block, whatever its widths, and which lines of rows to come C2 asks for, one after the other.

use half::bf16;

use super::stream::KEYS;
use crate::kernel::prefetch::LINE;
use crate::kernel::{STREAM_KEYS, Streams, pointers};
use crate::tile::{MAX_D_QK, MAX_D_V, STRIP};

/// How wide keys and values are. As numbers that the compiler doesn't see they cost some instructions with each key, as
/// constants each pair of them costs its own code: MLA's are constants.
pub trait Widths: Copy {
    /// Whether these are [`Mla`], worth kernels of their own for each kind of processor.
    const MLA: bool;

    /// Lines of a key.
    fn lines(self) -> usize;
    /// Strips of a value, and of O.
    fn strips(self) -> usize;
}

/// The widest.
#[derive(Clone, Copy)]
pub struct Mla;

impl Mla {
    /// Whether these are the widths.
    pub const fn has(d_qk: usize, d_v: usize) -> bool {
        d_qk == MAX_D_QK && d_v == MAX_D_V
    }
}

impl Widths for Mla {
    const MLA: bool = true;

    #[inline(always)]
    fn lines(self) -> usize {
        MAX_D_QK / LINE
    }

    #[inline(always)]
    fn strips(self) -> usize {
        MAX_D_V / STRIP
    }
}

/// Any others.
#[derive(Clone, Copy)]
pub struct Other {
    lines: usize,
    strips: usize,
}

impl Other {
    pub const fn of(d_qk: usize, d_v: usize) -> Self {
        Self {
            lines: d_qk / LINE,
            strips: d_v / STRIP,
        }
    }
}

impl Widths for Other {
    const MLA: bool = false;

    #[inline(always)]
    fn lines(self) -> usize {
        self.lines
    }

    #[inline(always)]
    fn strips(self) -> usize {
        self.strips
    }
}

/// A block's rows.
pub struct Block<'a, W> {
    pub widths: W,
    /// Each is valid for as many lines as `widths` says.
    pub keys: &'a [*const bf16; STREAM_KEYS],
    /// These may lie anywhere.
    pub asked: &'a [*const bf16; STREAM_KEYS],
    /// Each is valid for as many strips as `widths` says.
    pub values: &'a [*const bf16; STREAM_KEYS],
}

impl<'a, W: Widths> Block<'a, W> {
    pub fn of<const D_QK: usize, const D_V: usize>(
        widths: W,
        block: &Streams<'a, D_QK, D_V>,
    ) -> Self {
        assert!(widths.lines() * LINE == D_QK && widths.strips() * STRIP == D_V);
        Self {
            widths,
            keys: pointers(block.keys),
            asked: block.asked,
            values: pointers(block.values),
        }
    }
}

/// A vector of keys asks for so many rows to come in C1, and for as many in C2.
pub const ROWS: usize = KEYS / 2;

// C2 goes over a strip twice at most.
const _: () = assert!(2 * MAX_D_V / STRIP <= 2 * ROWS);

/// Asks memory for lines. Not a closure, which the compiler needn't put where it is called: all accumulators would go to the stack
/// each time.
pub trait Ask<const LISTS: usize> {
    /// Asks for a line of each list; then come those behind them. To be inlined always.
    fn ask(&self, at: &mut [*const bf16; LISTS]);
}

/// Lists of rows to come, all as long; a line is asked for in each list at once. These may lie anywhere.
///
/// Nothing here changes meanwhile, and all but the rows are constants where the widths are: it is asked in the innermost loops.
pub struct Requests<'a, const LISTS: usize> {
    rows: [&'a [*const bf16]; LISTS],
    /// Lines of a row.
    lines: usize,
    /// Whether a time asks for half of a row's lines, or else for whole rows.
    halves: bool,
    /// Rows that a time asks for something of.
    each: usize,
}

impl<'a, const LISTS: usize> Requests<'a, LISTS> {
    /// Of keys so wide: over a vector of keys C2 goes so many times, a divisor of [`ROWS`] or twice as many.
    #[inline(always)]
    pub fn of(rows: [&'a [*const bf16]; LISTS], widths: impl Widths, times: usize) -> Self {
        debug_assert!((2 * ROWS).is_multiple_of(times));
        debug_assert!(times <= ROWS || widths.lines().is_multiple_of(2));
        Self {
            rows,
            lines: widths.lines(),
            halves: times > ROWS,
            each: (ROWS / times).max(1),
        }
    }

    /// What to ask for the `i`th time that C2 goes over a vector of keys, in so many steps. All of these ask for as many lines;
    /// the remainder is asked for here, and so are the rows before the last.
    #[inline(always)]
    pub fn time(&self, i: usize, steps: usize, memory: &impl Ask<LISTS>) -> Lines<LISTS> {
        let (row, lines, line) = if self.halves {
            (i / 2, self.lines / 2, i % 2 * (self.lines / 2))
        } else {
            ((i + 1) * self.each - 1, self.lines, 0)
        };
        for row in row + 1 - self.each..row {
            let mut at = self.at(row, 0);
            for _ in 0..self.lines {
                memory.ask(&mut at);
            }
        }
        let mut at = self.at(row, line);
        for _ in 0..lines % steps {
            memory.ask(&mut at);
        }
        Lines {
            at,
            each: lines / steps,
        }
    }

    #[inline(always)]
    fn at(&self, row: usize, line: usize) -> [*const bf16; LISTS] {
        self.rows.map(|rows| {
            debug_assert!(row < rows.len());
            let row = rows.get(row).copied();
            row.map_or(core::ptr::null(), |row| row.wrapping_add(line * LINE))
        })
    }
}

/// Lines of a row.
pub struct Lines<const LISTS: usize> {
    /// Where the next one is, in each list.
    at: [*const bf16; LISTS],
    /// With each step so many.
    each: usize,
}

impl<const LISTS: usize> Lines<LISTS> {
    /// Asks for those of a step.
    #[inline(always)]
    pub fn ask(&mut self, memory: &impl Ask<LISTS>) {
        self.ask_first(memory);
        self.ask_second(memory);
    }

    /// Asks for the first of a step.
    #[inline(always)]
    pub fn ask_first(&mut self, memory: &impl Ask<LISTS>) {
        if self.each > 0 {
            memory.ask(&mut self.at);
        }
    }

    /// Asks for the second, some work later.
    #[inline(always)]
    pub fn ask_second(&mut self, memory: &impl Ask<LISTS>) {
        // No third: not a loop, which the compiler would unroll.
        const { assert!(MAX_D_QK / LINE < 3 * KEYS / 2) };
        if self.each > 1 {
            memory.ask(&mut self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::cell::RefCell;
    use std::vec::Vec;

    use super::*;
    use crate::SUPPORTED_DIMS;

    /// Each line of each row once, in the order that they lie there.
    #[test]
    fn every_line_is_asked_for() {
        for &(d_qk, d_v) in SUPPORTED_DIMS {
            // Tiles that share the rows, or parts of a strip.
            for (often, vectors) in [1, 2]
                .into_iter()
                .flat_map(|n| (1..=4).map(move |v| (n, v)))
            {
                let widths = Other::of(d_qk, d_v);
                check(widths, often, vectors, PAIRS);
                check(widths, often, vectors, KEYS / often);
                if Mla::has(d_qk, d_v) {
                    check(Mla, often, vectors, PAIRS);
                }
            }
        }
    }

    const PAIRS: usize = KEYS / 2;

    struct Asked(RefCell<Vec<*const bf16>>);

    impl Ask<1> for Asked {
        fn ask(&self, [at]: &mut [*const bf16; 1]) {
            self.0.borrow_mut().push(*at);
            *at = at.wrapping_add(LINE);
        }
    }

    fn check(widths: impl Widths, often: usize, vectors: usize, steps: usize) {
        let row = |r: usize| core::ptr::without_provenance(0x10000 * (r + 1));
        let rows: Vec<*const bf16> = (0..vectors * ROWS).map(row).collect();
        let asked = Asked(RefCell::new(Vec::new()));
        let times = often * widths.strips();
        let requests = Requests::of([&rows], widths, times);
        for i in 0..times * vectors {
            let mut lines = requests.time(i, steps, &asked);
            (0..steps).for_each(|_| lines.ask(&asked));
        }
        let lines = |row: &*const bf16| {
            let row = *row;
            (0..widths.lines()).map(move |line| row.wrapping_add(line * LINE))
        };
        let want: Vec<_> = rows.iter().flat_map(lines).collect();
        assert_eq!(asked.0.into_inner(), want, "{times} {vectors} {steps}");
    }
}
