//! Vectors of FP32: what an instruction set must offer for the kernels that are
//! written once ([`super::softmax`], [`super::fp32`]).
//!
//! All of them are inlined into a backend's feature-gated functions. Arrays of
//! vectors are filled by loops, never by `map` or `from_fn`: a closure that isn't
//! inlined would lack the features and hand vectors over by way of memory.

use core::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::call::Epilogue;
use super::memory::Word;
use crate::bits::{Increment, NAN};
use crate::format::f16_to_f32;
use crate::tile::{ORow, STRIP};

/// The vectors of an instruction set.
///
/// Implementors are capability tokens: holding one proves that the processor has
/// the instructions.
#[expect(
    clippy::wrong_self_convention,
    reason = "self is the proof that the processor has the instructions"
)]
pub trait Simd: Copy {
    /// A vector's numbers in memory: an array of `f32`.
    type Lanes: Pod;
    /// Numbers.
    type F32: Copy;
    /// Their bits, or integers.
    type I32: Copy;
    /// A truth value per lane.
    type Mask: Copy;

    /// Numbers of a vector.
    const LANES: usize = size_of::<Self::Lanes>() / size_of::<f32>();

    /// The same number everywhere.
    fn splat(self, x: f32) -> Self::F32;
    /// Reads a vector.
    fn load(self, from: &Self::Lanes) -> Self::F32;
    /// Reads a vector that was just written, four numbers at a time: where a load of all of it would wait until those have left
    /// for the cache, by as many loads.
    #[inline(always)]
    fn load_fours(self, from: &Self::Lanes) -> Self::F32 {
        self.load(from)
    }
    /// Writes a vector.
    fn store(self, x: Self::F32, to: &mut Self::Lanes);
    /// `a + b`
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once where the processor can.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// The larger one; `b` where `a` is NaN.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a < b`, or either is NaN.
    fn not_ge(self, a: Self::F32, b: Self::F32) -> Self::Mask;
    /// Whether the mask holds anywhere.
    fn any(self, mask: Self::Mask) -> bool;
    /// `yes` where the mask holds, `no` elsewhere.
    fn select(self, mask: Self::Mask, yes: Self::F32, no: Self::F32) -> Self::F32;
    /// Bits `v * LANES` and up: the rows of vector `v` of a panel's 64.
    fn mask_of(self, rows: u64, v: usize) -> Self::Mask;

    /// The same integer everywhere.
    fn splat_i32(self, x: i32) -> Self::I32;
    /// Reads the pairs that begin a row, which has no alignment but its own: `LANES` of
    /// them.
    fn load_pairs(self, row: &[bf16]) -> Self::I32;
    /// Reads `LANES` numbers of FP16, in words; they have no alignment but their own.
    #[inline(always)]
    fn load_f16(self, words: &[Word]) -> Self::F32 {
        let mut numbers = Self::Lanes::zeroed();
        let lanes: &mut [f32] = bytemuck::cast_slice_mut(core::slice::from_mut(&mut numbers));
        for (x, word) in lanes.iter_mut().zip(words) {
            *x = f16_to_f32(word.to_bits());
        }
        self.load(&numbers)
    }
    /// Reads `LANES` integers of a byte each, in words.
    #[inline(always)]
    fn load_i8(self, words: &[Word]) -> Self::I32 {
        let mut bits = Self::Lanes::zeroed();
        let lanes: &mut [i32] = bytemuck::cast_slice_mut(core::slice::from_mut(&mut bits));
        let integers: &[i8] = bytemuck::cast_slice(words);
        for (x, &integer) in lanes.iter_mut().zip(integers) {
            *x = integer.into();
        }
        self.to_bits(self.load(&bits))
    }
    /// Integers of up to 23 bits as numbers.
    #[inline(always)]
    fn number(self, x: Self::I32) -> Self::F32 {
        // The integer is added to the bits of 1.5 * 2^23, whose last has the weight 1.
        const ONES: f32 = 12_582_912.0;
        let bits = self.add_i32(x, self.splat_i32(ONES.to_bits().cast_signed()));
        self.sub(self.from_bits(bits), self.splat(ONES))
    }
    /// The same number everywhere, an FP16.
    #[inline(always)]
    fn splat_f16(self, word: Word) -> Self::F32 {
        self.splat(f16_to_f32(word.to_bits()))
    }
    /// A number's bits.
    fn to_bits(self, x: Self::F32) -> Self::I32;
    /// The number of these bits.
    fn from_bits(self, x: Self::I32) -> Self::F32;
    /// `a + b`, wrapping.
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a & b`
    fn and(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a | b`
    fn or(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `x << N`
    fn shl<const N: u32>(self, x: Self::I32) -> Self::I32;
    /// `a > b`
    fn gt_i32(self, a: Self::I32, b: Self::I32) -> Self::Mask;

    /// `a0 b0 a1 b1 ...`, in two vectors.
    fn interleave(self, a: Self::F32, b: Self::F32) -> [Self::F32; 2];
    /// The elements of even index in `a` and then `b`, and those of odd index.
    fn deinterleave(self, a: Self::F32, b: Self::F32) -> [Self::F32; 2];
    /// The sum of each vector's lanes.
    fn sum_lanes(self, x: [Self::F32; 4]) -> [f32; 4];
    /// Prefetches the line of memory at an address, which need not be valid, into L1d.
    fn prefetch(self, at: *const bf16);

    /// The same into L2.
    #[inline(always)]
    fn prefetch_l2(self, at: *const bf16) {
        self.prefetch(at);
    }

    /// Whether this core had better prefetch into L2 than into L1d where memory limits.
    #[inline(always)]
    fn prefetches_into_l2(self) -> bool {
        false
    }

    /// `2^t`; zero below `2^-126`, NaN for NaN.
    #[inline(always)]
    fn exp2(self, t: Self::F32) -> Self::F32 {
        // Adding 1.5 * 2^23 rounds to an integer, which is then the low bits.
        const ROUND: f32 = 12_582_912.0;
        let round = self.splat(ROUND);
        let shifted = self.add(t, round);
        let y = self.exp2_fraction(self.sub(t, self.sub(shifted, round)));
        // The paper's lemma: times 2^j is an addition to the exponent, and t >= -126
        // it meets the lemma's premise. The bits of ROUND are shifted out.
        let j = self.shl::<23>(self.to_bits(shifted));
        let scaled = self.from_bits(self.add_i32(self.to_bits(y), j));
        let flushed = self.not_ge(t, self.splat(EXP2_MIN));
        let nan = self.not_ge(t, self.splat(f32::NEG_INFINITY));
        let rest = self.select(nan, t, self.splat(0.0));
        self.select(flushed, rest, scaled)
    }

    /// [`exp2`](Self::exp2) of each, step by step where the compiler would compute one after the other.
    #[inline(always)]
    fn exp2_each<const N: usize>(self, mut t: [Self::F32; N]) -> [Self::F32; N] {
        for t in &mut t {
            *t = self.exp2(*t);
        }
        t
    }

    /// `2^r` for `|r| <= 1/2`.
    #[inline(always)]
    fn exp2_fraction(self, r: Self::F32) -> Self::F32 {
        let mut y = self.splat(EXP2[4]);
        for c in [EXP2[3], EXP2[2], EXP2[1], EXP2[0], 1.0] {
            y = self.mul_add(y, r, self.splat(c));
        }
        y
    }

    /// [`crate::bits::add_increment_f32`] on every lane, off the multiply ports.
    #[inline(always)]
    fn add_increment(self, x: Self::F32, increment: i32) -> Self::F32 {
        const MIN_NORMAL: i32 = 0x0080_0000;
        const INFINITY: i32 = 0x7f80_0000;
        let zero = self.splat(0.0);
        let infinity = self.splat_i32(INFINITY);
        let bits = self.to_bits(x);
        let magnitude = self.and(bits, self.splat_i32(i32::MAX));
        let sign = self.and(bits, self.splat_i32(i32::MIN));
        let moved = self.add_i32(magnitude, self.splat_i32(increment));
        let below_normal = self.splat_i32(MIN_NORMAL - 1);
        let moved = if increment > 0 {
            // The sum may pass i32::MAX: compared before it is made.
            let over = self.gt_i32(magnitude, self.splat_i32(INFINITY - increment));
            let moved = self.select(over, self.from_bits(infinity), self.from_bits(moved));
            self.select(self.gt_i32(magnitude, below_normal), moved, zero)
        } else {
            let normal = self.gt_i32(moved, below_normal);
            self.select(normal, self.from_bits(moved), zero)
        };
        let signed = self.from_bits(self.or(self.to_bits(moved), sign));
        self.select(self.gt_i32(infinity, magnitude), signed, x)
    }
}

/// Methods of a capability token as a table, a line each: `name(parameters) -> result = expression;`. The table's first
/// word, `unsafe` or `safe`, says what block an expression stands in.
macro_rules! methods {
    (@body unsafe $body:expr) => {
        // SAFETY: the token, `self`, proves the features. Pointers of loads and stores come from references to arrays of the
        // vector's size: valid, and aligned as elements are, which is all that these need. A prefetch faults on no address
        // and touches no memory as far as the program can tell.
        unsafe { $body }
    };
    (@body safe $body:expr) => { $body };
    ($safety:tt; $(
        $(#[$attribute:meta])*
        $visibility:vis $name:ident $(<const $N:ident: u32>)? ($($x:tt: $X:ty),*) $(-> $Out:ty)? = $body:expr;
    )*) => {$(
        $(#[$attribute])*
        #[allow(unused_unsafe, reason = "some need none, some only with older compilers")]
        #[inline(always)]
        $visibility fn $name $(<const $N: u32>)? (self, $($x: $X),*) $(-> $Out)? {
            methods!(@body $safety $body)
        }
    )*};
}
pub(super) use methods;

/// `2^r - 1 = r * (C[0] + r * (C[1] + ...))` for `|r| <= 1/2`: relative error of
/// `2^r` below 9.2e-8 before rounding (Remez, constrained to be exact at 0):
/// 0.693147, 0.240222, 0.0555073, 0.00967151, 0.00132647.
pub const EXP2: [f32; 5] = [
    f32::from_bits(0x3f31_7215),
    f32::from_bits(0x3e75_fcde),
    f32::from_bits(0x3d63_5ba9),
    f32::from_bits(0x3c1e_7544),
    f32::from_bits(0x3aad_dd0a),
];

/// Probabilities below 2^-126 are flushed to zero, as the dot instructions do.
pub const EXP2_MIN: f32 = -126.0;

/// The vectors of a row of numbers.
#[inline(always)]
pub fn lanes<S: Simd>(row: &[f32]) -> &[S::Lanes] {
    bytemuck::cast_slice(row)
}

/// The vectors of a row of numbers, to be written.
#[inline(always)]
pub fn lanes_mut<S: Simd>(row: &mut [f32]) -> &mut [S::Lanes] {
    bytemuck::cast_slice_mut(row)
}

/// The vectors of a row of pairs.
#[inline(always)]
pub fn pairs<S: Simd>(row: &[u32]) -> &[S::Lanes] {
    bytemuck::cast_slice(row)
}

#[allow(dead_code, reason = "for backends that not every build has")]
/// The vectors of a row of pairs, to be written.
#[inline(always)]
pub fn pairs_mut<S: Simd>(row: &mut [u32]) -> &mut [S::Lanes] {
    bytemuck::cast_slice_mut(row)
}

/// The numbers of even index of pairs.
#[inline(always)]
pub fn even<S: Simd>(simd: S, pairs: S::I32) -> S::F32 {
    simd.from_bits(simd.shl::<16>(pairs))
}

/// The numbers of odd index of pairs.
#[inline(always)]
pub fn odd<S: Simd>(simd: S, pairs: S::I32) -> S::F32 {
    simd.from_bits(simd.and(pairs, simd.splat_i32(0xffff_0000_u32.cast_signed())))
}

/// Both.
#[inline(always)]
pub fn split<S: Simd>(simd: S, pairs: S::I32) -> [S::F32; 2] {
    [even(simd, pairs), odd(simd, pairs)]
}

/// [`super::Kernel::rescale`].
#[inline(always)]
pub fn rescale<S: Simd>(simd: S, xs: &mut [f32], increment: Increment) {
    let full = xs.len() / S::LANES * S::LANES;
    let (chunks, rest) = xs.split_at_mut(full);
    for chunk in lanes_mut::<S>(chunks) {
        let x = simd.add_increment(simd.load(chunk), increment.bits());
        simd.store(x, chunk);
    }
    crate::bits::add_increment_f32_slice(rest, increment);
}

/// Adds each row's increment to the bits of some of its vectors.
#[inline(always)]
pub fn rescale_rows<S: Simd, const WIDTH: usize>(
    simd: S,
    rows: &mut [[f32; WIDTH]],
    increment: &[i32],
    vectors: Range<usize>,
) {
    for (row, &increment) in rows.iter_mut().zip(increment) {
        // Most blocks don't move the reference: nothing to add then.
        if increment != 0 {
            for x in &mut lanes_mut::<S>(row)[vectors.clone()] {
                simd.store(simd.add_increment(simd.load(x), increment), x);
            }
        }
    }
}

/// [`super::Kernel::epilogue`].
#[inline(always)]
pub fn epilogue<S: Simd>(
    simd: S,
    call: &Epilogue<'_>,
    earlier: Option<&[ORow]>,
    o: &mut [ORow],
    mut store: impl FnMut(usize, &[f32; STRIP]),
) {
    /// Numbers of a cache line.
    const LINE: usize = 64 / size_of::<f32>();
    for (r, o) in call.rows.clone().zip(&mut o[call.rows.clone()]) {
        if let Some(next) = call.next.get(r) {
            for line in (0..STRIP).step_by(LINE) {
                simd.prefetch((&raw const next[line]).cast());
            }
        }
        // Each condition once a row: what is stored meanwhile is in L1d.
        let vectors = lanes_mut::<S>(o);
        if let Some(factor) = call.factor.map(|factor| factor[r])
            && factor != 1.0
        {
            let factor = simd.splat(factor);
            for x in &mut *vectors {
                simd.store(product(simd, simd.load(x), factor), x);
            }
        }
        if let Some(earlier) = earlier {
            let earlier = lanes::<S>(&earlier[r]);
            let [before, own] = call.increments[r].map(Increment::bits);
            for (x, earlier) in vectors.iter_mut().zip(earlier) {
                let earlier = moved(simd, simd.load(earlier), before);
                simd.store(simd.add(earlier, moved(simd, simd.load(x), own)), x);
            }
        }
        if let Some(inverse) = call.inverse {
            let inverse = simd.splat(inverse[r]);
            for x in vectors {
                simd.store(product(simd, simd.load(x), inverse), x);
            }
        }
        store(r, o);
    }
}

/// Most rows don't move: nothing to add then.
#[inline(always)]
fn moved<S: Simd>(simd: S, x: S::F32, increment: i32) -> S::F32 {
    if increment == 0 {
        x
    } else {
        simd.add_increment(x, increment)
    }
}

/// With one NaN for all.
#[inline(always)]
fn product<S: Simd>(simd: S, a: S::F32, b: S::F32) -> S::F32 {
    let product = simd.mul(a, b);
    let nan = simd.not_ge(product, product);
    simd.select(nan, simd.splat(NAN), product)
}
