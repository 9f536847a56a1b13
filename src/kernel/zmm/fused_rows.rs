//! The operands of a fused block, whatever their widths, and which lines of rows to come C2 prefetches, one by one.

use half::bf16;

use super::vectors::{LANES, Zmm};
use crate::kernel::call::{FUSED_MULTIPLE, FusedBlock};
use crate::kernel::memory::FUSED_KEYS;
use crate::kernel::prefetch::{Hint, LINE};
use crate::tile::{MAX_D_QK, MAX_D_V, STRIP};

/// Keys of a vector; a step has some of these.
pub const KEYS: usize = LANES;
/// Rows to come that C1 prefetches with a vector of keys; C2 as many.
pub const ROWS: usize = KEYS / 2;

const _: () = assert!(FUSED_MULTIPLE.is_multiple_of(KEYS));
// C2 goes over a strip twice at most.
const _: () = assert!(2 * MAX_D_V / STRIP <= 2 * ROWS);

/// Whether these are MLA's widths, the largest.
pub const fn is_mla(d_qk: usize, d_v: usize) -> bool {
    d_qk == MAX_D_QK && d_v == MAX_D_V
}

/// A block. MLA's widths are constants, which spares some instructions with each key; all others share their code.
pub struct Block<'a, const MLA: bool> {
    /// As the kernel packs it.
    q: &'a [u32],
    /// Each is valid for reads of as many lines.
    pub keys: &'a [*const bf16; FUSED_KEYS],
    /// Rows to prefetch; these may be anywhere.
    pub prefetch: &'a [*const bf16; FUSED_KEYS],
    /// Values to prefetch, where they are rows of their own; these may be anywhere.
    pub prefetch_values: Option<&'a [*const bf16; FUSED_KEYS]>,
    /// Each is valid for reads of as many strips.
    pub values: &'a [*const bf16; FUSED_KEYS],
    lines: usize,
    strips: usize,
}

impl<'a, const MLA: bool> Block<'a, MLA> {
    pub fn of(block: &FusedBlock<'a>) -> Self {
        let (d_qk, d_v) = (block.keys.width(), block.values.width());
        assert!(d_qk.is_multiple_of(LINE) && d_v.is_multiple_of(STRIP));
        assert!(MLA == is_mla(d_qk, d_v));
        Self {
            q: block.q[0].0.as_flattened(),
            keys: block.keys.pointers(),
            prefetch: block.prefetch,
            prefetch_values: block.prefetch_values,
            values: block.values.pointers(),
            lines: d_qk / LINE,
            strips: d_v / STRIP,
        }
    }

    /// The queries' pairs, of `rows` rows.
    pub fn q(&self, rows: usize) -> &'a [u32] {
        &self.q[..rows * self.lines() * LINE / 2]
    }

    /// Lines of a key.
    #[inline(always)]
    pub const fn lines(&self) -> usize {
        if MLA { MAX_D_QK / LINE } else { self.lines }
    }

    /// How C2 prefetches in some passes over a vector of keys: half of the keys, or all values.
    #[inline(always)]
    pub fn passes(&self, passes: usize) -> Passes {
        match self.prefetch_values {
            None => Passes::of(self.lines(), ROWS, passes),
            Some(_) => Passes::of(self.strips() * STRIP / LINE, KEYS, passes),
        }
    }

    /// Strips of a value, and of O.
    #[inline(always)]
    pub const fn strips(&self) -> usize {
        if MLA { MAX_D_V / STRIP } else { self.strips }
    }
}

/// Prefetches lines. Not a closure, which the compiler needn't inline: all accumulators would go to the stack
/// each time.
pub trait Prefetch<const LISTS: usize> {
    /// Prefetches a line of each list; then come those behind them. To be inlined always.
    fn prefetch(&self, at: &mut [*const bf16; LISTS]);
}

/// Lists of rows to come, all as long; a line of each list is prefetched at once. Rows may be anywhere.
///
/// Nothing here changes meanwhile: the innermost loops use it.
pub struct PrefetchRows<'a, const LISTS: usize> {
    rows: [&'a [*const bf16]; LISTS],
    passes: Passes,
}

/// How C2's passes over a vector of keys prefetch rows.
#[derive(Clone, Copy)]
pub struct Passes {
    /// Lines of a row.
    pub lines: usize,
    /// Whether a pass prefetches half of a row's lines, or else full rows.
    halves: bool,
    /// Rows of a pass.
    each: usize,
}

impl Passes {
    /// Of rows of some lines, and how many of them with a vector of keys. There are `passes` over a vector, at most twice [`ROWS`]. All
    /// rows are prefetched if `passes` divides their number, or is twice as many.
    #[inline(always)]
    pub fn of(lines: usize, count: usize, passes: usize) -> Self {
        debug_assert!(passes <= 2 * ROWS);
        Self {
            lines,
            halves: passes > count,
            each: (count / passes).max(1),
        }
    }
}

/// Prefetches full rows at once. Not inlined: all register tiles share it.
#[inline(never)]
pub fn prefetch_rows(zmm: Zmm, hint: Hint, rows: &[*const bf16], lines: usize) {
    for row in rows {
        for line in 0..lines {
            hint.line(zmm, row.wrapping_add(line * LINE));
        }
    }
}

impl<'a, const LISTS: usize> PrefetchRows<'a, LISTS> {
    #[inline(always)]
    pub const fn of(rows: [&'a [*const bf16]; LISTS], passes: Passes) -> Self {
        Self { rows, passes }
    }

    /// The lines of C2's `i`th pass over a vector of keys, in steps of as many lines each;
    /// the remainder is prefetched here, and so are the rows before the last.
    #[inline(always)]
    pub fn pass(&self, i: usize, steps: usize, memory: &impl Prefetch<LISTS>) -> Lines<LISTS> {
        let (row, lines, line) = if self.passes.halves {
            let first = self.passes.lines / 2;
            match i % 2 {
                0 => (i / 2, first, 0),
                _ => (i / 2, self.passes.lines - first, first),
            }
        } else {
            ((i + 1) * self.passes.each - 1, self.passes.lines, 0)
        };
        for row in row + 1 - self.passes.each..row {
            let mut at = self.at(row, 0);
            for _ in 0..self.passes.lines {
                memory.prefetch(&mut at);
            }
        }
        let mut at = self.at(row, line);
        for _ in 0..lines % steps {
            memory.prefetch(&mut at);
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
    /// Lines of a step.
    each: usize,
}

impl<const LISTS: usize> Lines<LISTS> {
    /// Prefetches those of a step.
    #[inline(always)]
    pub fn prefetch(&mut self, memory: &impl Prefetch<LISTS>) {
        self.prefetch_first(memory);
        self.prefetch_second(memory);
    }

    /// Prefetches the first of a step.
    #[inline(always)]
    pub fn prefetch_first(&mut self, memory: &impl Prefetch<LISTS>) {
        if self.each > 0 {
            memory.prefetch(&mut self.at);
        }
    }

    /// Prefetches the second, some work later.
    #[inline(always)]
    pub fn prefetch_second(&mut self, memory: &impl Prefetch<LISTS>) {
        // No third: not a loop, which the compiler would unroll.
        const { assert!(MAX_D_QK / LINE < 3 * KEYS / 2) };
        if self.each > 1 {
            memory.prefetch(&mut self.at);
        }
    }
}
