//! Scalar code to read beside the paper: Golden, Base (Algorithm 1), Algorithm 2 as printed, corrected,
//! and with the exact rescale that the kernel has by default.
//!
//! | function | source | P in the product P V | O follows the maximum by |
//! |---|---|---|---|
//! | [`golden`] | equation `eq:atten` | FP64 | two passes: it needn't |
//! | [`base`] | Algorithm 1, `alg:flash_attention` | BF16 | a multiplication |
//! | [`amla_as_printed`] | Algorithm 2, `alg:ascend_mla` | BF16, times S16 | an integer addition, not total |
//! | [`amla_compensated`] | Algorithm 2 with the appendix | BF16, times S16 | a total integer addition |
//! | [`amla_exact`] | ours | BF16, or a BF16 pair | `2^n` exactly, where it moved |
//! | [`amla_exact_split_max`] | ours, accumulating in place | BF16, the largest a BF16 pair | the same |
//!
//! They take the kernel's [`Problem`], of any widths up to 1024, row by row. A row is one query head of one query
//! position of one request. They share no arithmetic with the kernel but [`crate::bits`].
//!
//! # Outputs
//!
//! `o` is dense `[b, s_q, h_q, d_v]`. `lse`, the natural logarithm of the sum of the exponentials of the
//! scaled scores, is dense `[b, h_q, s_q]`. With ragged queries (`q_indptr`), `b` is 1 and `s_q` the
//! tokens. Their lengths must be exactly that. [`golden_max_logits`] gives the largest scaled scores, dense as `lse`.
//!
//! # What they share
//!
//! * A row sees the keys of its request that the causal mask, the window, the tail mask or the choice of
//!   sparse attention doesn't hide. Other keys and their values take no part, whatever they hold.
//! * Rows of FP8, INT8 and E4M3 are BF16 rows stored in less ([`crate::format`]); all others are taken as they are.
//! * A sink adds to the sum that O is divided by, not to lse.
//! * A row that sees no key gets `O = 0` and `lse = +inf`.
//! * Other non-finite values follow IEEE 754: a score of NaN or +inf makes its row NaN, and a NaN in V
//!   makes its column NaN. A score of -inf weighs nothing, but 0 times an infinite value is NaN.
//! * A row whose visible scores are all -inf is 0/0: O and lse are NaN. While the running maximum is
//!   -inf, 0 is subtracted from the scores instead. [`golden`] needs no such rule, and
//!   [`amla_as_printed`] lacks it.
//! * Products are accumulated in FP32, in [`golden`] in FP64.
//! * The algorithms don't define an order of summation, nor does the Cube. Scores are summed here as in
//!   the kernel, so that both have the same S to the bit.
//! * The product P V adds key by key to O itself. The paper has a matrix T of its own (Algorithm 1,
//!   lines 6 and 7; Algorithm 2, lines 17 and 18).
//! * How keys are cut is a parameter, [`Blocks`]: blocks of 512 in the paper, blocks of 192 and KV splits
//!   in this crate's kernel.
//! * The paper divides the scores by the root of D_k; here [`Problem::softmax_scale`] multiplies them.

mod amla;
mod arithmetic;
mod base;
mod golden;
mod row;

pub use amla::{amla_as_printed, amla_compensated, amla_exact, amla_exact_split_max};
pub use base::{base, base_row};
pub use golden::{golden, golden_max_logits, golden_row};

use crate::error::{Argument, Error};
use crate::problem::{Problem, in_range};
use crate::tile::{BLOCK_KEYS, MAX_D_V};

/// How a row's keys are cut into blocks, and before that into KV splits, if there are many.
///
/// Each split is computed alone, and results are merged by their lse, in FP64. The paper has blocks
/// only; the kernel splits long requests for several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Keys of a block: 1 to [`MAX_BLOCK`].
    pub keys: usize,
    /// Whether requests are split as in the kernel ([`crate::Split`]); d_v is at most 512
    /// then.
    pub split: bool,
}

impl Blocks {
    /// The paper's.
    pub const PAPER: Self = Self {
        keys: 512,
        split: false,
    };
    /// The kernel's.
    pub const KERNEL: Self = Self {
        keys: BLOCK_KEYS,
        split: true,
    };

    /// # Errors
    /// [`Error::OutOfRange`].
    fn check(self, problem: &Problem) -> Result<(), Error> {
        in_range(Argument::BlockN, self.keys, 1, MAX_BLOCK)?;
        let widest = if self.split { MAX_D_V } else { usize::MAX };
        in_range(Argument::DV, problem.shape.d_v, 1, widest)
    }
}

/// Blocks of that many keys, and no splits.
impl From<usize> for Blocks {
    fn from(keys: usize) -> Self {
        Self { keys, split: false }
    }
}

/// Most keys in a block: the paper's own block, and the size of the references' score buffers on the
/// stack.
pub const MAX_BLOCK: usize = 512;
