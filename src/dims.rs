//! The widths that kernels have.

use crate::attend::{Task, attend};
use crate::error::Error;
use crate::kernel::{Kernel, Visitor};

/// The `(d_qk, d_v)` that there are.
pub const SUPPORTED_DIMS: &[(usize, usize)] = &[
    (576, 512),
    (512, 512),
    (320, 256),
    (192, 128),
    (128, 128),
    (64, 64),
];

impl Visitor for Task<'_> {
    type Output = ();

    fn visit<K: Kernel>(self, kernel: K) {
        attend(kernel, self);
    }
}

/// # Errors
/// [`Error::UnsupportedDims`] if no kernel is instantiated for these widths.
pub fn check_dims(d_qk: usize, d_v: usize) -> Result<(), Error> {
    if SUPPORTED_DIMS.contains(&(d_qk, d_v)) {
        Ok(())
    } else {
        Err(Error::UnsupportedDims {
            d_qk,
            d_v,
            supported: SUPPORTED_DIMS,
        })
    }
}
