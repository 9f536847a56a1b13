//! Prefetch: which rows to come each stage prefetches, and how lines are spread over a stage's
//! work. Policies are data, one for each kind of core.
#![allow(dead_code, reason = "for backends that not every build has")]

use half::bf16;

use super::simd::Simd;
use crate::format::Row;

/// Elements of a cache line.
pub const LINE: usize = 64 / size_of::<bf16>();

/// The sizes that a budget depends on.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Rows of the panel that C1 and V1 are at.
    pub panel_rows: usize,
    /// Rows of the group.
    pub group_rows: usize,
    /// Width of keys.
    pub d_qk: usize,
    /// Width of values.
    pub d_v: usize,
}

/// The keys that the stages of a panel and block prefetch: the first that begin `distance` keys behind
/// the block's first and weren't prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// From a key to the one that is prefetched with it.
    pub distance: usize,
    /// Keys for C1.
    pub c1: usize,
    /// Keys for V1.
    pub v1: usize,
    /// Keys for C2.
    pub c2: usize,
}

impl Budget {
    /// Nothing is prefetched: the processor's own prefetcher is fast enough.
    pub const NONE: Self = Self::c1(0, 0);

    /// C1 prefetches all keys that it needs `distance` keys later.
    pub const fn c1(distance: usize, keys: usize) -> Self {
        Self {
            distance,
            c1: keys,
            v1: 0,
            c2: 0,
        }
    }
}

/// The cache that lines are brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// L1d, and all behind it.
    L1,
    /// L2. It has more slots for lines on their way; those of L1d are taken for as long as memory takes.
    L2,
}

impl Hint {
    /// Prefetches the line at an address, which need not be valid.
    #[inline(always)]
    pub fn line<S: Simd>(self, simd: S, at: *const bf16) {
        match self {
            Self::L1 => simd.prefetch(at),
            Self::L2 => simd.prefetch_l2(at),
        }
    }
}

/// The kinds of core that differ in how they take prefetches and dots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    /// Two dots a cycle. Drops prefetches when its slots are taken; gains nothing by L2's.
    Zen5,
    /// Drops prefetches; gains by L2's slots.
    Zen4,
    /// Drops nothing; gains by L2's slots. Multiply-adds are twice as fast as dots.
    Intel,
}

/// Rows on their way from memory: prefetched line by line in the order of memory, so that the
/// processor's own prefetcher joins in, and evenly: with more prefetches than memory serves, a
/// core drops some.
pub struct Spread<'a> {
    rows: core::slice::Iter<'a, &'a [bf16]>,
    line: *const bf16,
    /// Lines of the row that remain.
    remaining: usize,
    /// Lines altogether, spread over this many steps.
    lines: usize,
    steps: usize,
    /// Lines due, times `steps`.
    due: usize,
}

impl<'a> Spread<'a> {
    /// All lines of `rows`, spread over `steps` steps.
    #[inline(always)]
    pub fn of(rows: &'a [&'a [bf16]], steps: usize) -> Self {
        Self {
            rows: rows.iter(),
            line: core::ptr::null(),
            remaining: 0,
            lines: rows.len() * rows.first().map_or(0, |row| row.len() / LINE),
            steps: steps.max(1),
            due: 0,
        }
    }

    /// Prefetches the lines of a step.
    #[inline(always)]
    pub fn step<S: Simd>(&mut self, simd: S, hint: Hint) {
        self.due += self.lines;
        while self.due >= self.steps {
            self.due -= self.steps;
            if self.remaining == 0 {
                let Some(row) = self.rows.next() else { return };
                self.line = row.as_ptr();
                self.remaining = row.len() / LINE;
            }
            hint.line(simd, self.line);
            self.line = self.line.wrapping_add(LINE);
            self.remaining = self.remaining.saturating_sub(1);
        }
    }
}

/// The lines of a stored row and of the memory behind it, prefetched one by one.
pub struct RowLines(*const bf16);

impl RowLines {
    /// From a row's first on.
    #[inline(always)]
    pub fn of(row: &Row<'_>) -> Self {
        Self(row.memory().0)
    }

    /// Prefetches the next line.
    #[inline(always)]
    pub fn step<S: Simd>(&mut self, simd: S) {
        simd.prefetch(self.0);
        self.0 = self.0.wrapping_add(LINE);
    }

    /// Prefetches all lines of a row.
    #[inline(always)]
    pub fn all<S: Simd>(row: &Row<'_>, simd: S) {
        let (_, bytes) = row.memory();
        let mut lines = Self::of(row);
        (0..bytes.div_ceil(LINE_BYTES)).for_each(|_| lines.step(simd));
    }
}

/// Lines that a step of a register tile of AMX prefetches: fewer than it has products, as each holds a slot of L1d that
/// operands from L2 need as well.
pub const TILE_LINES: usize = 3;
/// Bytes of a line.
const LINE_BYTES: usize = size_of::<[bf16; LINE]>();

/// What a register tile prefetches: [`TILE_LINES`] contiguous lines with each step, and `step` bytes from one step's to the next
/// one's. Addresses need not be valid.
#[derive(Clone, Copy)]
pub struct TilePrefetch {
    /// The first step's first line.
    pub at: *const u8,
    /// From step to step.
    pub step: usize,
}

impl TilePrefetch {
    /// Nothing but lines of an operand, which are in cache.
    pub const fn nothing<T>(operand: *const T) -> Self {
        Self {
            at: operand.cast(),
            step: 0,
        }
    }
}

/// Rows to come, prefetched line by line by register tiles. Within a tile's lines, a row's end is followed by the memory behind it:
/// the next rows where rows are contiguous.
pub struct TileRows<'a> {
    rows: &'a [&'a [bf16]],
    /// The end of what was prefetched of the first of them, if something was.
    at: *const u8,
}

impl<'a> TileRows<'a> {
    /// All lines of rows.
    pub const fn of(rows: &'a [&'a [bf16]]) -> Self {
        Self {
            rows,
            at: core::ptr::null(),
        }
    }

    /// The lines of a register tile of `steps` steps; those of `operand` if no rows remain.
    #[inline]
    pub fn next<T>(&mut self, steps: usize, operand: *const T) -> TilePrefetch {
        let Some(row) = self.rows.first() else {
            return TilePrefetch::nothing(operand);
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
        let step = TILE_LINES * LINE_BYTES;
        let end = at.wrapping_add(steps * step);
        let ends = |row: &[bf16]| row.as_ptr_range().end.cast();
        while let [row, rest @ ..] = self.rows
            && at < ends(row)
            && ends(row) <= end
        {
            self.rows = rest;
        }
        self.at = end;
        TilePrefetch { at, step }
    }
}
