//! The widths that kernels have.

use crate::attend::{Task, attend};
use crate::error::Error;
use crate::kernel::{Kernel, Visitor};
use crate::tile::{MAX_D_QK, MAX_D_V};

/// `(d_qk, d_v)` of models, which kernels read in place. Other multiples of 8 will do, up to the largest of these: rows are copied
/// and padded with zeros unless d_qk is a multiple of 32 and d_v one of 64.
pub const SUPPORTED_DIMS: &[(usize, usize)] = &[
    (MAX_D_QK, MAX_D_V),
    (512, 512),
    (320, 256),
    (288, 256),
    (256, 256),
    (192, 128),
    (160, 128),
    (128, 128),
    (96, 64),
    (64, 64),
];

/// What either width is a multiple of.
pub const MULTIPLE: usize = 8;

impl Visitor for Task<'_> {
    type Output = ();

    fn visit<K: Kernel>(self, kernel: K) {
        attend(kernel, self);
    }
}

/// # Errors
/// [`Error::UnsupportedDims`] if kernels can't have these widths.
pub fn check_dims(d_qk: usize, d_v: usize) -> Result<(), Error> {
    let fits = |width: usize, max| width > 0 && width <= max && width.is_multiple_of(MULTIPLE);
    if fits(d_qk, MAX_D_QK) && fits(d_v, MAX_D_V) {
        Ok(())
    } else {
        Err(Error::UnsupportedDims {
            d_qk,
            d_v,
            multiple: MULTIPLE,
            max: (MAX_D_QK, MAX_D_V),
        })
    }
}
