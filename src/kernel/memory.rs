//! What the compiler must be told about the workspace's memory, and about references to rows.
#![allow(unsafe_code, reason = "a marker trait, and views of memory as other types")]

use half::bf16;

use crate::error::{Argument, Error};
use crate::tile::{L0a, RowTile, VBuffer, Workspace};

/// Buffers as rows of BF16, if they are enough for a block of them.
pub fn row_tile(buffers: &mut [VBuffer]) -> Option<&mut RowTile> {
    const { assert!(align_of::<VBuffer>() >= align_of::<RowTile>()) };
    if size_of_val(buffers) < size_of::<RowTile>() {
        return None;
    }
    // SAFETY: the memory is borrowed exclusively for the result's lifetime, long enough and
    // aligned (both checked above), and initialised; buffers are made of `u32` without padding (`tile` asserts that),
    // and every bit pattern is a `bf16`, and is an integer again.
    Some(unsafe { &mut *buffers.as_mut_ptr().cast() })
}

/// A buffer as L0A is, for P of one panel while another's is in L0A, if it is enough.
pub fn p_memory(buffer: &mut VBuffer) -> Option<&mut L0a> {
    const { assert!(align_of::<VBuffer>() >= align_of::<L0a>()) };
    if size_of::<VBuffer>() < size_of::<L0a>() {
        return None;
    }
    // SAFETY: the memory is borrowed exclusively for the result's lifetime, long enough and
    // aligned (both checked above), and initialised; both are made of `u32` without
    // padding (`tile` asserts that), of which every bit pattern is a value.
    Some(unsafe { &mut *core::ptr::from_mut(buffer).cast() })
}

/// Where rows lie.
pub fn pointers<'a, const D: usize, const N: usize>(
    rows: &'a [&[bf16; D]; N],
) -> &'a [*const bf16; N] {
    // SAFETY: a reference to an array is laid out as a pointer to what it begins with, and is valid as one; both
    // arrays have as many elements.
    unsafe { &*core::ptr::from_ref(rows).cast() }
}

/// What rows begin with, if they are long enough.
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
