//! Multiplication by a power of two as one integer addition, for every bit pattern and every
//! exponent.
//!
//! The paper's `lem:AMLA`: read the bits of an FP32 number `F` with exponent field `E` as an
//! integer `I`. If `0 < E < 255` and `0 < E + n < 255`, then `F * 2^n` has the bits `I + n * 2^23`.
//! AMLA rescales its output that way instead of multiplying (Algorithm 2, lines 13 to 16). The
//! remark after the lemma extends it to other formats; here they are FP64, BF16 and FP16.
//!
//! Outside the lemma's premise the bare addition carries into the sign or turns a zero into a
//! number. Outputs of attention do get there: a masked or padded column of V is exactly zero.
//! [`as_printed_f32`] shows the effect. The other functions are total. With `e` exponent bits, `m`
//! mantissa bits and `T = 2^e - 1`, the all-ones exponent:
//!
//! | operand | condition | result |
//! |---|---|---|
//! | normal | `0 < E + n < T` | its bits plus `n * 2^m`: exact, the lemma |
//! | normal | `E + n <= 0` | zero of its sign |
//! | normal | `E + n >= T` | infinity of its sign |
//! | zero or subnormal | any `n`, 0 included | zero of its sign |
//! | infinity or NaN | any `n` | itself, bit for bit |
//!
//! Subnormal operands (DAZ) and results (FTZ) are zeros, as in the BF16 dot instructions of x86-64.
//! No result is ever rounded. So multiplying by `2^a` and then by `2^b` is multiplying by `2^(a + b)`
//! whenever the first result is normal, and always when `a` and `b` have the same sign. AMLA's
//! rescales, all by `n <= 0`, may be merged.
//!
//! The error compensation of the paper's appendix is a small addition to the same integer; see
//! [`Increment`].

// -------------------------------------------------------------------------------------------------
// The rule, once for every format
// -------------------------------------------------------------------------------------------------

/// A module with the total addition for one IEEE 754 style format, sign bit first, then exponent,
/// then mantissa.
macro_rules! binary_format {
    ($name:ident: $Bits:ty as $Int:ty, exponent $exponent:literal, mantissa $mantissa:literal) => {
        mod $name {
            const EXPONENT_MAX: i32 = (1 << $exponent) - 1;
            const SIGN: $Bits = 1 << ($exponent + $mantissa);
            const MIN_NORMAL: $Int = 1 << $mantissa;
            pub const INFINITY: $Int = (SIGN - (1 << $mantissa)).cast_signed();

            /// `n * 2^mantissa`; a larger `|n|` than the exponent field holds would flush or
            /// overflow all the same.
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_lossless,
                reason = "clamped to what the exponent field holds; `From` isn't const"
            )]
            pub const fn addend(n: i32) -> $Int {
                let n = if n < -EXPONENT_MAX {
                    -EXPONENT_MAX
                } else if n > EXPONENT_MAX {
                    EXPONENT_MAX
                } else {
                    n
                };
                (n as $Int) << $mantissa
            }

            /// The total addition; `addend` is in `-INFINITY..=INFINITY`.
            #[inline]
            pub const fn add(bits: $Bits, addend: $Int) -> $Bits {
                // The magnitudes in low..high are those whose sum stays normal. Comparing them with
                // bounds made from the addend can't overflow, as the sum could.
                let (low, high) = if addend >= 0 {
                    (MIN_NORMAL, INFINITY - addend)
                } else if addend > MIN_NORMAL - INFINITY {
                    (MIN_NORMAL - addend, INFINITY)
                } else {
                    (INFINITY, INFINITY)
                };
                let sign = bits & SIGN;
                let magnitude = (bits & !SIGN).cast_signed();
                // Every arm is a value, none is `bits` itself: that makes loops selects, whereas
                // LLVM would turn storing an unchanged element into a masked store.
                let result = if magnitude < low {
                    0
                } else if magnitude < high {
                    magnitude + addend
                } else if magnitude < INFINITY {
                    INFINITY
                } else {
                    magnitude // infinity or NaN
                };
                sign | result.cast_unsigned()
            }
        }
    };
}

binary_format!(fp64: u64 as i64, exponent 11, mantissa 52);
binary_format!(fp32: u32 as i32, exponent 8, mantissa 23);
binary_format!(bf16: u16 as i16, exponent 8, mantissa 7);
binary_format!(fp16: u16 as i16, exponent 5, mantissa 10);
#[cfg(test)]
binary_format!(fp8: u8 as i8, exponent 4, mantissa 3);

// -------------------------------------------------------------------------------------------------
// Increments: what a rescale adds
// -------------------------------------------------------------------------------------------------

/// What one rescale adds to the bits of every element of an output row: the paper's N (Algorithm 2,
/// lines 11 and 12).
///
/// It is `n * 2^23` for the factor `2^n`, plus a compensation in units of `2^-23`. Its range is
/// `-255 * 2^23` to `255 * 2^23`, which is enough to flush or overflow every number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Increment(i32);

impl Increment {
    /// The increment of a row whose reference exponent and scale did not change (Algorithm 2, line
    /// 11, with `N = 0`).
    ///
    /// Adding it returns its operand, subnormals excepted, so a caller may skip the addition
    /// altogether.
    pub const NONE: Self = Self(0);

    /// The increment that multiplies by `2^n`, exactly (`lem:AMLA`, equation `amla:update1`); `n`
    /// is clamped to `-255..=255`, which changes no result.
    #[must_use]
    pub const fn pow2(n: i32) -> Self {
        Self(fp32::addend(n))
    }

    /// The increment of Algorithm 2, lines 11 and 12: `2^n`, compensated by `epsilon` from
    /// [`compensation`].
    ///
    /// `n` is clamped to `-255..=255` and `epsilon` to ±1/64 (two BF16 scales need at most
    /// 3/256; NaN counts as 0); `epsilon * 2^23` is rounded to nearest, ties to even. Two parts of
    /// the printed lines are left out:
    ///
    /// * the constant 1e-6, which adds eight units in the last place to every element even where
    ///   nothing changed;
    /// * the lower bound -30 on `n`, for the total addition needs none.
    ///
    /// # Accuracy
    ///
    /// Let `e = epsilon / 1.5` be the wanted factor less 1. Adding `1.5 e` to the significand
    /// `1 + f` gives `1 + f + 1.5 e` where `(1 + f) (1 + e)` is right. The relative error is
    /// `e (0.5 - f) / ((1 + f) (1 + e))`: none at the middle of the binade, about `e / 2` at its
    /// lower end and `-e / 4` at its upper end. A sum that leaves the binade is no worse.
    /// In all, the rounding included, it is below `|e| / (2 (1 - |e|)) + 2^-23`: 0.2 % at the
    /// appendix's bound `|e| < 1/256`, and 0.4 % at 1/128, which the quotient of two scales, each
    /// off by BF16's `2^-8`, can reach.
    ///
    /// ```
    /// use amla::bits::{Increment, add_increment_f32, compensation};
    /// let increment = Increment::compensated(-1, compensation(1.0, 1.003));
    /// assert!((add_increment_f32(1.5, increment) - 0.75 * 1.003).abs() < 1e-7); // mid-binade
    /// assert!((add_increment_f32(1.0, increment) - 0.50 * 1.003).abs() < 8e-4); // the worst
    /// ```
    #[must_use]
    pub const fn compensated(n: i32, epsilon: f32) -> Self {
        const LIMIT: f32 = 1.0 / 64.0;
        // Between 2^23 and 2^24 the unit in the last place is 1: the sum rounds, and its bits count
        // the integers.
        const ROUNDER: f32 = 12_582_912.0;
        let epsilon = if epsilon.is_nan() {
            0.0
        } else {
            epsilon.clamp(-LIMIT, LIMIT)
        };
        let rounded = epsilon * 8_388_608.0 + ROUNDER;
        let steps = rounded.to_bits().cast_signed() - ROUNDER.to_bits().cast_signed();
        Self::from_bits_clamped(fp32::addend(n) + steps)
    }

    /// The increment with these bits (Algorithm 2, line 12), clamped to `-255 * 2^23..=255 * 2^23`,
    /// for code that computes increments as integers.
    #[must_use]
    pub const fn from_bits_clamped(bits: i32) -> Self {
        if bits < -fp32::INFINITY {
            Self(-fp32::INFINITY)
        } else if bits > fp32::INFINITY {
            Self(fp32::INFINITY)
        } else {
            Self(bits)
        }
    }

    /// The integer to add, within ±`255 * 2^23` (Algorithm 2, line 12).
    #[must_use]
    pub const fn bits(self) -> i32 {
        self.0
    }

    /// Whether this is [`Increment::NONE`], whose addition may be skipped (Algorithm 2, lines 13 to
    /// 16).
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The compensation `epsilon = 1.5 (c / c_prev - 1)` between two blocks' scales, where
/// `c = r / r' = S16 / S32` (appendix, equation `eqn:modifiediteration`).
///
/// Algorithm 2, line 9, prints the inverse, `c = S32 / S16`. **The appendix is right**: P was
/// scaled by the rounded S16, so the accumulator carries the factor `S16 / S32` of its block and
/// must take the next block's. With the printed quotient the error is added a second time instead
/// of removed.
///
/// It is computed as `1.5 (c - c_prev) / c_prev`. The difference is exact for scales this close, so
/// the result has FP32's relative precision; the printed form cancels. The 1.5 is the
/// middle of the mantissa's range; see [`Increment::compensated`] for what it leaves. Without a
/// finite answer (`c_prev` zero, say) the result isn't finite either, and
/// [`Increment::compensated`] copes.
///
/// ```
/// use amla::bits::compensation;
/// assert_eq!(compensation(1.0, 1.0), 0.0);
/// assert_eq!(compensation(1.0, 1.0 + 1.0 / 256.0), 1.5 / 256.0);
/// ```
#[must_use]
pub const fn compensation(c_prev: f32, c: f32) -> f32 {
    1.5 * ((c - c_prev) / c_prev)
}

// -------------------------------------------------------------------------------------------------
// FP32
// -------------------------------------------------------------------------------------------------

/// `x * 2^n` for an FP32, exact or flushed as the [module](self) says (`lem:AMLA`; equation
/// `amla:update1`).
///
/// ```
/// use amla::bits::mul_pow2_f32;
/// assert_eq!(mul_pow2_f32(-3.5, -2), -0.875);
/// assert_eq!(mul_pow2_f32(1e-30, -30).to_bits(), 0); // would be subnormal
/// assert_eq!(mul_pow2_f32(-1e-40, 60).to_bits(), (-0.0_f32).to_bits()); // is subnormal
/// assert_eq!(mul_pow2_f32(-1e30, i32::MAX), f32::NEG_INFINITY);
/// assert_eq!(mul_pow2_f32(f32::INFINITY, i32::MIN), f32::INFINITY);
/// ```
#[inline]
#[must_use]
pub const fn mul_pow2_f32(x: f32, n: i32) -> f32 {
    add_increment_f32(x, Increment::pow2(n))
}

/// [`mul_pow2_f32`] on every element (`lem:AMLA`; equation `amla:update1`).
#[inline]
pub fn mul_pow2_f32_slice(xs: &mut [f32], n: i32) {
    add_increment_f32_slice(xs, Increment::pow2(n));
}

/// Adds an increment to the bits of `x`, by the [module](self)'s rule for its magnitude (Algorithm
/// 2, lines 14 and 15, made total).
///
/// A normal result is exactly the printed sum. One below the smallest normal number is a zero, one
/// above the largest an infinity, both of the sign of `x`. For [`Increment::pow2`] this is
/// [`mul_pow2_f32`].
///
/// ```
/// use amla::bits::{Increment, add_increment_f32};
/// assert_eq!(add_increment_f32(-1.0, Increment::pow2(3)), -8.0);
/// assert_eq!(add_increment_f32(-0.0, Increment::pow2(3)).to_bits(), (-0.0_f32).to_bits());
/// assert_eq!(add_increment_f32(1.0, Increment::compensated(0, -0.0)), 1.0);
/// ```
#[inline]
#[must_use]
pub const fn add_increment_f32(x: f32, increment: Increment) -> f32 {
    f32::from_bits(fp32::add(x.to_bits(), increment.bits()))
}

/// [`add_increment_f32`] on every element: the rescale of one row of O (Algorithm 2, lines 14 and
/// 15, made total).
#[inline]
pub fn add_increment_f32_slice(xs: &mut [f32], increment: Increment) {
    for x in xs {
        *x = add_increment_f32(*x, increment);
    }
}

/// AS_FP32(AS_INT32(x) + N) as printed (Algorithm 2, lines 14 and 15), wrapping and **not total**:
/// only for references and tests.
///
/// It equals [`add_increment_f32`] where operand and result are normal, and goes wrong elsewhere:
///
/// ```
/// use amla::bits::{as_printed_f32, mul_pow2_f32};
/// let printed = |x, n: i32| as_printed_f32(x, n << 23);
/// assert_eq!(printed(3.0, -1), 1.5); // the lemma
///
/// assert_eq!(printed(0.0, -1), f32::NEG_INFINITY);
/// assert_eq!(mul_pow2_f32(0.0, -1), 0.0);
///
/// assert!(printed(1e-30, -30) < -1e38);
/// assert_eq!(mul_pow2_f32(1e-30, -30), 0.0);
///
/// assert!(printed(f32::INFINITY, -1).is_finite());
/// assert_eq!(mul_pow2_f32(f32::INFINITY, -1), f32::INFINITY);
///
/// assert!(printed(1e30, 30).is_sign_negative());
/// assert_eq!(mul_pow2_f32(1e30, 30), f32::INFINITY);
/// ```
#[inline]
#[must_use]
pub const fn as_printed_f32(x: f32, addend: i32) -> f32 {
    f32::from_bits(x.to_bits().wrapping_add(addend.cast_unsigned()))
}

// -------------------------------------------------------------------------------------------------
// The other formats
// -------------------------------------------------------------------------------------------------

/// `x * 2^n` for an FP64, exact or flushed as the [module](self) says (`lem:AMLA` and the remark
/// after it).
///
/// ```
/// use amla::bits::mul_pow2_f64;
/// assert_eq!(mul_pow2_f64(3.0, -1000), 3.0 / 2f64.powi(1000));
/// assert_eq!(mul_pow2_f64(3.0, -1024).to_bits(), 0);
/// ```
#[inline]
#[must_use]
pub const fn mul_pow2_f64(x: f64, n: i32) -> f64 {
    f64::from_bits(fp64::add(x.to_bits(), fp64::addend(n)))
}

/// [`mul_pow2_f64`] on every element (`lem:AMLA` and the remark after it).
#[inline]
pub fn mul_pow2_f64_slice(xs: &mut [f64], n: i32) {
    for x in xs {
        *x = mul_pow2_f64(*x, n);
    }
}

/// `x * 2^n` for the bits of a BF16, exact or flushed as the [module](self) says (`lem:AMLA` and
/// the remark after it).
///
/// ```
/// use amla::bits::{bf16_round, mul_pow2_bf16};
/// assert_eq!(mul_pow2_bf16(bf16_round(3.0), -1), bf16_round(1.5));
/// ```
#[inline]
#[must_use]
pub const fn mul_pow2_bf16(x: u16, n: i32) -> u16 {
    bf16::add(x, bf16::addend(n))
}

/// [`mul_pow2_bf16`] on every element (`lem:AMLA` and the remark after it).
#[inline]
pub fn mul_pow2_bf16_slice(xs: &mut [u16], n: i32) {
    for x in xs {
        *x = mul_pow2_bf16(*x, n);
    }
}

/// `x * 2^n` for the bits of an FP16, exact or flushed as the [module](self) says (`lem:AMLA` and
/// the remark after it).
///
/// ```
/// use amla::bits::mul_pow2_f16;
/// assert_eq!(mul_pow2_f16(0x3c00, -1), 0x3800); // 1.0 to 0.5
/// assert_eq!(mul_pow2_f16(0xbc00, 16), 0xfc00); // -1.0 to -infinity: 65504 is the largest
/// ```
#[inline]
#[must_use]
pub const fn mul_pow2_f16(x: u16, n: i32) -> u16 {
    fp16::add(x, fp16::addend(n))
}

/// [`mul_pow2_f16`] on every element (`lem:AMLA` and the remark after it).
#[inline]
pub fn mul_pow2_f16_slice(xs: &mut [u16], n: i32) {
    for x in xs {
        *x = mul_pow2_f16(*x, n);
    }
}

// -------------------------------------------------------------------------------------------------
// Exponents
// -------------------------------------------------------------------------------------------------

/// How far above the largest score exact mode puts its reference exponent when it moves. Scores may
/// grow by that many powers of two before it moves again.
pub(crate) const HEADROOM: f32 = 3.0;

/// `from - to` for integers held in FP32, clamped to what FP32 can be scaled by.
#[expect(clippy::cast_possible_truncation, reason = "clamped to a small range first")]
pub(crate) fn difference(from: f32, to: f32) -> i32 {
    if from == to {
        // Also where inf - inf would be NaN.
        return 0;
    }
    (from - to).clamp(-255.0, 255.0) as i32
}

// -------------------------------------------------------------------------------------------------
// NaN
// -------------------------------------------------------------------------------------------------

/// The NaN of all results, quiet and positive. An operation on two NaNs gives one of them, and the
/// compiler chooses the order of operands.
pub(crate) const NAN: f32 = f32::from_bits(0x7fc0_0000);

/// `x`, or [`NAN`] for any NaN.
#[inline(always)]
pub(crate) const fn one_nan(x: f32) -> f32 {
    if x.is_nan() { NAN } else { x }
}

// -------------------------------------------------------------------------------------------------
// BF16 rounding
// -------------------------------------------------------------------------------------------------

/// The bits of the BF16 nearest to `x`, ties to even (Algorithm 2, lines 8 and 10).
///
/// The relative error of a normal result is at most `2^-8`. Subnormals round like other numbers, and
/// the largest FP32 numbers round to infinity. A NaN becomes a quiet NaN of the same sign with the
/// top of its payload.
///
/// ```
/// use amla::bits::{bf16_round, bf16_to_f32};
/// assert_eq!(bf16_to_f32(bf16_round(1.0 / 3.0)), 0.333_984_38);
/// assert_eq!(bf16_round(1.0 + 1.0 / 256.0), bf16_round(1.0)); // a tie, to even
/// assert_eq!(bf16_round(f32::MAX), bf16_round(f32::INFINITY));
/// ```
#[inline]
#[must_use]
pub const fn bf16_round(x: f32) -> u16 {
    let bits = x.to_bits();
    let upper = (bits >> 16) as u16;
    if x.is_nan() {
        upper | 0x0040 // quiet: a payload in the lower half alone must not leave an infinity
    } else {
        // A carry out of the mantissa into the exponent is the right answer too. Only a NaN's sum
        // could wrap.
        (bits.wrapping_add(0x7fff + (upper & 1) as u32) >> 16) as u16
    }
}

/// [`bf16_round`] from `xs` to `out`, as far as the shorter of the two goes (Algorithm 2, line 10).
#[inline]
pub fn bf16_round_slice(xs: &[f32], out: &mut [u16]) {
    for (out, &x) in out.iter_mut().zip(xs) {
        *out = bf16_round(x);
    }
}

/// The FP32 with the value of a BF16's bits, exactly (Algorithm 2, line 8, "then back to FP32").
#[inline]
#[must_use]
pub const fn bf16_to_f32(x: u16) -> f32 {
    f32::from_bits((x as u32) << 16)
}

/// [`bf16_to_f32`] from `xs` to `out`, as far as the shorter of the two goes (Algorithm 2, line 8).
#[inline]
pub fn bf16_to_f32_slice(xs: &[u16], out: &mut [f32]) {
    for (out, &x) in out.iter_mut().zip(xs) {
        *out = bf16_to_f32(x);
    }
}

// -------------------------------------------------------------------------------------------------
// The rule, proved by exhaustion for an 8-bit format
// -------------------------------------------------------------------------------------------------

#[cfg(test)]
mod tests {
    use super::{difference, fp8};

    const MIN_NORMAL: f64 = 1.0 / 64.0;
    const MAX: f64 = 240.0;
    const INFINITY: u8 = 0x78;

    fn exponents() -> impl Iterator<Item = i32> + Clone {
        (-20..=20).chain([i32::MIN, -300, -128, 127, 128, 256, i32::MAX])
    }

    fn mul_pow2(x: u8, n: i32) -> u8 {
        fp8::add(x, fp8::addend(n))
    }

    fn pow2(n: i32) -> f64 {
        // 2^-30 to 2^30 flush or overflow every 8-bit number, as every other power does.
        let exponent = 1023 + i64::from(n.clamp(-30, 30));
        f64::from_bits(exponent.cast_unsigned() << 52)
    }

    fn is_normal(x: u8) -> bool {
        (1..15).contains(&(x >> 3 & 15))
    }

    /// The value of a finite pattern.
    fn value(x: u8) -> f64 {
        let significand = f64::from(x & 7) / 8.0;
        let magnitude = match x >> 3 & 15 {
            0 => significand * MIN_NORMAL,
            e => (1.0 + significand) * pow2(i32::from(e) - 7),
        };
        if x < 0x80 { magnitude } else { -magnitude }
    }

    #[test]
    fn the_rule_holds_for_every_pattern_and_exponent() {
        for x in 0..=u8::MAX {
            for n in exponents() {
                let (sign, got) = (x & 0x80, mul_pow2(x, n));
                let product = value(x) * pow2(n);
                if x & !0x80 >= INFINITY {
                    assert_eq!(got, x, "special {x:#x}, {n}");
                } else if value(x).abs() < MIN_NORMAL || product.abs() < MIN_NORMAL {
                    assert_eq!(got, sign, "flushed {x:#x}, {n}");
                } else if product.abs() > MAX {
                    assert_eq!(got, sign | INFINITY, "overflown {x:#x}, {n}");
                } else {
                    assert!(is_normal(got));
                    assert_eq!(value(got), product, "{x:#x}, {n}");
                    assert_eq!(i32::from(got), i32::from(x) + 8 * n, "lemma {x:#x}, {n}");
                }
            }
        }
    }

    #[test]
    fn exponents_compose() {
        for x in 0..=u8::MAX {
            for a in exponents() {
                for b in exponents() {
                    let first = mul_pow2(x, a);
                    if is_normal(first) || (a <= 0) == (b <= 0) {
                        let both = mul_pow2(x, a.saturating_add(b));
                        assert_eq!(mul_pow2(first, b), both, "{x:#x}, {a}, {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn difference_is_total() {
        assert_eq!(difference(f32::NEG_INFINITY, f32::NEG_INFINITY), 0);
        assert_eq!(difference(f32::NEG_INFINITY, 3.0), -255);
        assert_eq!(difference(f32::INFINITY, f32::INFINITY), 0);
        assert_eq!(difference(2.0, f32::INFINITY), -255);
        assert_eq!(difference(-1e38, 1e38), -255);
        assert_eq!(difference(5.0, 3.0), 2);
    }
}
