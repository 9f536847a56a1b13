//! Views of memory as other types: of the workspace, and of references to rows.
#![allow(unsafe_code, reason = "a marker trait, and views of memory as other types")]

use core::marker::PhantomData;

use half::bf16;

use crate::error::{Argument, Error};
use crate::format::{Dtype, Q4_0, Q8_0};
use crate::problem::Run;
use crate::tile::{BLOCK_KEYS, Fp32Tile, MAX_D_QK, QPanel, RowTile, Workspace};

/// Panels as rows of BF16, if they have room for a block of them.
pub fn row_tile(panels: &mut [QPanel]) -> Option<&mut RowTile> {
    const { assert!(align_of::<QPanel>() >= align_of::<RowTile>()) };
    if size_of_val(panels) < size_of::<RowTile>() {
        return None;
    }
    // SAFETY: the memory is borrowed exclusively for the result's lifetime, long enough and
    // aligned (both checked above), and initialised; panels are made of `u32` without padding (`tile` asserts that),
    // and every bit pattern is a `bf16`, and is an integer again.
    Some(unsafe { &mut *panels.as_mut_ptr().cast() })
}

/// 16 bits of a row: a BF16 number, or part of what another [`Dtype`] has. Rows of all dtypes are lists of these, so that kernels
/// which multiply BF16 need no other view.
pub type Word = bf16;

/// Rows that [`Kernel::fused`](super::Kernel::fused) is given: a block's, and all that it may compute on or prefetch beyond.
pub const FUSED_KEYS: usize = BLOCK_KEYS + 104;

/// Rows of the fused kernels' lists, anywhere in memory, as thin references: each is valid for reads of as many numbers.
#[derive(Clone, Copy)]
pub struct ThinRows<'a> {
    rows: &'a [*const Word; FUSED_KEYS],
    dtype: Dtype,
    width: usize,
}

impl<'a> ThinRows<'a> {
    /// The addresses.
    pub const fn pointers(self) -> &'a [*const Word; FUSED_KEYS] {
        self.rows
    }

    /// How numbers are stored.
    pub const fn dtype(self) -> Dtype {
        self.dtype
    }

    /// Numbers of each.
    pub const fn width(self) -> usize {
        self.width
    }

    /// The first columns of the rows, if they are long enough.
    pub fn first_columns(self, width: usize) -> Option<Self> {
        (width <= self.width).then_some(Self { width, ..self })
    }
}

/// A list of such rows, to be filled.
pub struct RowList<'a> {
    rows: [*const Word; FUSED_KEYS],
    dtype: Dtype,
    width: usize,
    /// Rows that are listed; behind them are copies of the last, or of `ZEROS`.
    len: usize,
    memory: PhantomData<&'a [Word]>,
}

impl<'a> RowList<'a> {
    /// No rows of `width` numbers.
    pub fn new(dtype: Dtype, width: usize) -> Self {
        /// Aligned as numbers of every dtype.
        #[repr(align(64))]
        struct Zeros([Word; Dtype::F32.words(MAX_D_QK)]);
        static ZEROS: Zeros = Zeros([Word::ZERO; _]);
        assert!(dtype.words(width) <= ZEROS.0.len());
        Self {
            rows: [ZEROS.0.as_ptr(); _],
            dtype,
            width,
            len: 0,
            memory: PhantomData,
        }
    }

    /// How numbers are stored.
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Words of each row.
    pub const fn words(&self) -> usize {
        self.dtype.words(self.width)
    }

    /// Rows that are listed.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Appends heads of rows, as many as there is room for.
    #[inline(always)]
    pub fn extend(&mut self, rows: impl Iterator<Item = &'a [Word]>) {
        let words = self.words();
        let mut to = self.rows[self.len..].iter_mut();
        // In this order: `to` isn't advanced where there is no row.
        for (row, to) in rows.zip(to.by_ref()) {
            *to = row[..words].as_ptr();
        }
        self.len = FUSED_KEYS - to.len();
    }

    /// Appends heads of rows that are equally far apart, as many as there is room for.
    pub fn extend_run(&mut self, run: &Run<'a>) {
        let words = self.words();
        let to = &mut self.rows[self.len..];
        let len = run.len.min(to.len());
        if len == 0 {
            return;
        }
        // All are in memory, as the last one is.
        let end = (len - 1).saturating_mul(run.stride).saturating_add(words);
        let first = run.rows[..end].as_ptr();
        for (i, to) in to[..len].iter_mut().enumerate() {
            *to = first.wrapping_add(i * run.stride);
        }
        self.len += len;
    }

    /// Appends the head of a row, if there is room.
    #[inline(always)]
    pub fn push(&mut self, row: &'a [Word]) {
        let words = self.words();
        if let Some(to) = self.rows.get_mut(self.len) {
            *to = row[..words].as_ptr();
            self.len += 1;
        }
    }

    /// Appends heads of another list's first `n` rows, and copies of the last.
    pub fn extend_from(&mut self, other: &Self, n: usize) {
        assert!(self.len == 0 && self.width <= other.width && n <= other.len);
        assert!(self.dtype == other.dtype);
        self.rows[..n].copy_from_slice(&other.rows[..n]);
        self.len = n;
        self.repeat_last();
    }

    /// Puts copies of the last row behind the rows.
    pub fn repeat_last(&mut self) {
        if let Some(&last) = self.rows[..self.len].last() {
            self.rows[self.len..].fill(last);
        }
    }

    /// Drops the first `n` rows.
    pub fn advance(&mut self, n: usize) {
        self.rows.copy_within(n.., 0);
        self.len = self.len.saturating_sub(n);
    }

    /// The rows.
    pub fn rows(&self) -> ThinRows<'_> {
        ThinRows {
            rows: &self.rows,
            dtype: self.dtype,
            width: self.width,
        }
    }
}

// SAFETY: floats without padding (`tile` asserts that); every bit pattern is a value.
unsafe impl bytemuck::Zeroable for Fp32Tile {}
// SAFETY: as above; the type is `Copy` and has no references.
unsafe impl bytemuck::Pod for Fp32Tile {}
// SAFETY: integers without padding (`tile` asserts that); every bit pattern is a value.
unsafe impl bytemuck::Zeroable for QPanel {}
// SAFETY: as above; the type is `Copy` and has no references.
unsafe impl bytemuck::Pod for QPanel {}
// SAFETY: two bytes and 32 of them in C's order, without padding (asserted below); every bit pattern is a value of each.
unsafe impl bytemuck::Zeroable for Q8_0 {}
// SAFETY: as above; the type is `Copy` and has no references.
unsafe impl bytemuck::Pod for Q8_0 {}
// SAFETY: two bytes and 16 of them in C's order, without padding (asserted below); every bit pattern is a value of each.
unsafe impl bytemuck::Zeroable for Q4_0 {}
// SAFETY: as above; the type is `Copy` and has no references.
unsafe impl bytemuck::Pod for Q4_0 {}
const _: () = assert!(size_of::<Q8_0>() == 34 && size_of::<Q4_0>() == 18);

// SAFETY: `Workspace` is made of arrays of integers, floats and structs of them
// (its definition), for which all-zero bytes are a value.
unsafe impl bytemuck::Zeroable for Workspace {}

impl Workspace {
    /// Views the caller's memory as a workspace, whatever it holds.
    ///
    /// Its size and alignment are those of the type:
    /// `core::alloc::Layout::new::<Workspace>()`.
    ///
    /// # Errors
    /// [`Error::TooShort`] (in bytes) or [`Error::Misaligned`].
    pub fn from_bytes(bytes: &mut [u8]) -> Result<&mut Self, Error> {
        let (len, needed) = (bytes.len(), size_of::<Self>());
        let argument = Argument::Workspace;
        if len < needed {
            return Err(Error::TooShort {
                argument,
                len,
                needed,
            });
        }
        let workspace = bytes.as_mut_ptr().cast::<Self>();
        if !workspace.is_aligned() {
            return Err(Error::Misaligned {
                argument,
                align: align_of::<Self>(),
            });
        }
        // SAFETY: the memory is borrowed exclusively for the result's lifetime,
        // long enough and aligned (both checked above); every bit pattern is a
        // value of the numbers that `Workspace` is made of; and it has no padding
        // (const-asserted beside its definition), so that the bytes stay
        // initialised whatever is stored.
        Ok(unsafe { &mut *workspace })
    }
}
