//! What the compiler must be told about the workspace's memory.
#![allow(unsafe_code, reason = "a marker trait, and a view of bytes")]

use crate::error::{Argument, Error};
use crate::tile::Workspace;

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
