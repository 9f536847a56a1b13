//! The widths that the driver is instantiated for.

use crate::attend::{Task, attend};
use crate::error::Error;
use crate::kernel::{Kernel, Visitor};

/// Instantiates the kernel: one pair is one line.
macro_rules! dims {
    ($($d_qk:literal x $d_v:literal;)*) => {
        /// The `(d_qk, d_v)` that kernels are instantiated for.
        pub const SUPPORTED_DIMS: &[(usize, usize)] = &[$(($d_qk, $d_v)),*];

        impl Visitor for Task<'_> {
            type Output = Result<(), Error>;

            fn visit<K: Kernel>(self, kernel: K) -> Self::Output {
                let shape = &self.group.problem.shape;
                match (shape.d_qk, shape.d_v) {
                    $(($d_qk, $d_v) => {
                        attend::<K, $d_qk, $d_v>(kernel, self);
                        Ok(())
                    })*
                    _ => check_dims(shape.d_qk, shape.d_v),
                }
            }
        }
    };
}

dims! {
    576 x 512;
    512 x 512;
    320 x 256;
    192 x 128;
    128 x 128;
    64 x 64;
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
