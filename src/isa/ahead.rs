//! Asking memory for rows to come, between one multiply-add and the next.

use half::bf16;

use super::simd::Simd;

/// Elements of a cache line.
pub const LINE: usize = 64 / size_of::<bf16>();

/// Rows on their way from memory: asked for line by line in the order that they
/// lie there, so that the processor's own prefetcher joins in.
pub struct Ahead<'a> {
    rows: core::slice::Iter<'a, &'a [bf16]>,
    line: *const bf16,
    /// Lines of the row that are left.
    lines: usize,
    per_step: usize,
}

impl<'a> Ahead<'a> {
    /// All lines of `rows`, spread over `steps` steps.
    #[inline(always)]
    pub fn of(rows: &'a [&'a [bf16]], steps: usize) -> Self {
        let lines = rows.len() * rows.first().map_or(0, |row| row.len() / LINE);
        Self {
            rows: rows.iter(),
            line: core::ptr::null(),
            lines: 0,
            per_step: lines.div_ceil(steps.max(1)),
        }
    }

    /// Asks for the next lines.
    #[inline(always)]
    pub fn step<S: Simd>(&mut self, simd: S) {
        for _ in 0..self.per_step {
            if self.lines == 0 {
                let Some(row) = self.rows.next() else { return };
                self.line = row.as_ptr();
                self.lines = row.len() / LINE;
            }
            simd.prefetch::<true>(self.line);
            self.line = self.line.wrapping_add(LINE);
            self.lines = self.lines.saturating_sub(1);
        }
    }
}
