//! Views of memory as other types: of the workspace, and of references to rows.
#![allow(unsafe_code, reason = "a marker trait, and views of memory as other types")]

use core::marker::PhantomData;

use half::bf16;

use super::scalar;
use crate::error::{Argument, Error};
use crate::tile::{BLOCK_KEYS, MAX_D_QK, QPanel, RowTile, STRIP, Workspace};

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

/// Rows that [`Kernel::fused`](super::Kernel::fused) is given: a block's, and all that it may compute on or prefetch beyond.
pub const FUSED_KEYS: usize = BLOCK_KEYS + 104;

/// Rows of the fused kernels' lists, anywhere in memory, as thin references: each is valid for reads of as many elements.
#[derive(Clone, Copy)]
pub struct ThinRows<'a> {
    rows: &'a [*const bf16; FUSED_KEYS],
    width: usize,
}

impl<'a> ThinRows<'a> {
    /// The addresses.
    pub const fn pointers(self) -> &'a [*const bf16; FUSED_KEYS] {
        self.rows
    }

    /// Elements of each.
    pub const fn width(self) -> usize {
        self.width
    }

    /// The heads of the rows, if they are long enough.
    pub fn heads(self, width: usize) -> Option<Self> {
        (width <= self.width).then_some(Self { width, ..self })
    }
}

/// A list of such rows, to be filled.
pub struct RowList<'a> {
    rows: [*const bf16; FUSED_KEYS],
    width: usize,
    /// Rows that are listed; behind them are copies of the last, or of `ZEROS`.
    len: usize,
    memory: PhantomData<&'a [bf16]>,
}

impl<'a> RowList<'a> {
    /// No rows of `width` elements.
    pub fn new(width: usize) -> Self {
        static ZEROS: [bf16; MAX_D_QK] = [bf16::ZERO; _];
        assert!(width <= ZEROS.len());
        Self {
            rows: [ZEROS.as_ptr(); _],
            width,
            len: 0,
            memory: PhantomData,
        }
    }

    /// Rows that are listed.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Appends heads of rows, as many as there is room for.
    #[inline(always)]
    pub fn extend(&mut self, rows: impl Iterator<Item = &'a [bf16]>) {
        let mut to = self.rows[self.len..].iter_mut();
        // In this order: `to` isn't advanced where there is no row.
        for (row, to) in rows.zip(to.by_ref()) {
            *to = row[..self.width].as_ptr();
        }
        self.len = FUSED_KEYS - to.len();
    }

    /// Appends the head of a row, if there is room.
    #[inline(always)]
    pub fn push(&mut self, row: &'a [bf16]) {
        if let Some(to) = self.rows.get_mut(self.len) {
            *to = row[..self.width].as_ptr();
            self.len += 1;
        }
    }

    /// Appends heads of another list's first `n` rows, and copies of the last.
    pub fn extend_from(&mut self, other: &Self, n: usize) {
        assert!(self.len == 0 && self.width <= other.width && n <= other.len);
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
            width: self.width,
        }
    }
}

/// [`scalar::finite`] of a strip.
///
/// # Safety
/// The values are valid for reads of the strip's columns and of those before.
#[cold]
pub unsafe fn strip_is_finite<const N: usize>(values: &[[*const bf16; N]], strip: usize) -> bool {
    let columns = strip * STRIP..(strip + 1) * STRIP;
    let values = values.as_flattened().iter().map(|&value| {
        // SAFETY: the caller's promise; they aren't written while the call runs.
        unsafe { core::slice::from_raw_parts(value, columns.end) }
    });
    scalar::finite(values, &columns)
}

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
