//! Views of memory as other types: of the workspace, and of references to rows.
#![allow(unsafe_code, reason = "a marker trait, and views of memory as other types")]

use half::bf16;

use super::scalar;
use crate::error::{Argument, Error};
use crate::tile::{QPanel, RowTile, STRIP, Workspace};

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

/// The addresses of rows.
pub fn pointers<'a, const D: usize, const N: usize>(
    rows: &'a [&[bf16; D]; N],
) -> &'a [*const bf16; N] {
    // SAFETY: a reference to an array is laid out as a pointer to what it begins with, and is valid as one; both
    // arrays have as many elements.
    unsafe { &*core::ptr::from_ref(rows).cast() }
}

/// The heads of rows, if they are long enough.
pub fn heads<'a, 'b, const D: usize, const HEAD: usize, const N: usize>(
    rows: &'a [&'b [bf16; D]; N],
) -> Option<&'a [&'b [bf16; HEAD]; N]> {
    if HEAD > D {
        return None;
    }
    // SAFETY: references to arrays are laid out alike; each of these is valid for the first HEAD of its D elements too;
    // both arrays of references have as many.
    Some(unsafe { &*core::ptr::from_ref(rows).cast() })
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
