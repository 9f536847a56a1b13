//! Widths and lengths of the tests.

pub const MLA: (usize, usize) = (576, 512);
pub const MHA: (usize, usize) = (192, 128);
pub const SMALL: (usize, usize) = (128, 128);
pub const TINY: (usize, usize) = (64, 64);

pub const PAGE_SIZES: [usize; 7] = [1, 2, 16, 53, 64, 128, 576];
/// Around a block, and more than a split.
pub const LENS: [usize; 6] = [0, 1, 191, 192, 193, 2060];
pub const WINDOWS: [usize; 6] = [1, 2, 100, 192, 193, 2050];
