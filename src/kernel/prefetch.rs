//! Asking memory for rows to come, between one multiply-add and the next.

use half::bf16;

use super::simd::Simd;

/// Elements of a cache line.
pub const LINE: usize = 64 / size_of::<bf16>();

/// How a core is asked for lines from memory.
#[cfg(any(test, all(target_arch = "x86_64", target_feature = "sse2")))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Into L1d, and once more a few keys later, as a core drops what it has no slot for.
    L1dTwice,
    /// Into L2.
    L2,
    /// Into L2, and once or twice more.
    L2Twice,
}

/// Rows on their way from memory: asked for line by line in the order that they
/// lie there, so that the processor's own prefetcher joins in, and as evenly as can be: a
/// processor that is asked for more than memory has to give drops what is too much.
pub struct Ahead<'a> {
    rows: core::slice::Iter<'a, &'a [bf16]>,
    line: *const bf16,
    /// Lines of the row that are left.
    left: usize,
    /// Lines altogether, asked for in so many steps.
    lines: usize,
    steps: usize,
    /// Steps' lines that are due, times `steps`.
    due: usize,
}

impl<'a> Ahead<'a> {
    /// All lines of `rows`, spread over `steps` steps.
    #[inline(always)]
    pub fn of(rows: &'a [&'a [bf16]], steps: usize) -> Self {
        Self {
            rows: rows.iter(),
            line: core::ptr::null(),
            left: 0,
            lines: rows.len() * rows.first().map_or(0, |row| row.len() / LINE),
            steps: steps.max(1),
            due: 0,
        }
    }

    /// Asks for the next lines.
    #[cfg_attr(
        not(any(
            all(target_arch = "x86_64", target_feature = "sse2"),
            all(target_arch = "aarch64", target_feature = "neon", not(amla_tiles = "small"))
        )),
        allow(dead_code, reason = "for backends of other processors")
    )]
    #[inline(always)]
    pub fn step<S: Simd>(&mut self, simd: S) {
        self.ask(|line| simd.prefetch(line));
    }

    /// The same with [`Simd::prefetch_far`].
    #[inline(always)]
    pub fn step_far<S: Simd>(&mut self, simd: S) {
        self.ask(|line| simd.prefetch_far(line));
    }

    /// The one or the other: into L2, or L1d.
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    #[inline(always)]
    pub fn step_into<S: Simd>(&mut self, l2: bool, simd: S) {
        self.ask(|line| {
            if l2 {
                simd.prefetch_far(line);
            } else {
                simd.prefetch(line);
            }
        });
    }

    #[inline(always)]
    fn ask(&mut self, one: impl Fn(*const bf16)) {
        self.due += self.lines;
        while self.due >= self.steps {
            self.due -= self.steps;
            if self.left == 0 {
                let Some(row) = self.rows.next() else { return };
                self.line = row.as_ptr();
                self.left = row.len() / LINE;
            }
            one(self.line);
            self.line = self.line.wrapping_add(LINE);
            self.left = self.left.saturating_sub(1);
        }
    }
}
