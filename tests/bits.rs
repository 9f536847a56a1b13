//! `amla::bits` against oracles that share no code with it: floating-point multiplication with the
//! flush rule applied by comparison, wide integer arithmetic, and the `half` crate.
//!
//! The exhaustive FP32 tests take their time: `cargo test --release --test bits -- --ignored`.

use amla::bits::{
    Increment, add_increment_f32, add_increment_f32_slice, as_printed_f32, bf16_round,
    bf16_round_slice, bf16_to_f32, bf16_to_f32_slice, compensation, mul_pow2_bf16,
    mul_pow2_bf16_slice, mul_pow2_f16, mul_pow2_f16_slice, mul_pow2_f32, mul_pow2_f32_slice,
    mul_pow2_f64, mul_pow2_f64_slice,
};
use half::{bf16, f16};
use proptest::prelude::*;

const EXTREMES: [i32; 6] = [i32::MIN, i32::MIN + 1, -1000, 1000, i32::MAX - 1, i32::MAX];

/// `2^n` from its bits, for normal results.
fn exact_pow2(n: i32) -> f64 {
    assert!((-1022..=1023).contains(&n));
    f64::from_bits(((1023 + n) as u64) << 52)
}

/// `2^n` in f64, `n` clamped to ±300. Every format here but FP64 has its numbers within `2^-149` and
/// `2^128`, a ratio below `2^300`: a larger `|n|` flushes or overflows just as ±300 does, and the
/// product, within `2^±449`, is exact.
fn factor(n: i32) -> f64 {
    exact_pow2(n.clamp(-300, 300))
}

/// The finite `x` times `factor`, by the flush rule of a format with this range of normal numbers.
fn flushed_product(x: f64, factor: f64, min_normal: f64, max: f64) -> f64 {
    let product = x * factor;
    if x.abs() < min_normal || product.abs() < min_normal {
        0.0_f64.copysign(x)
    } else if product.abs() > max {
        f64::INFINITY.copysign(x)
    } else {
        product
    }
}

#[test]
fn bf16_all_patterns_all_exponents() {
    let (min, max) = (bf16::MIN_POSITIVE.to_f64(), bf16::MAX.to_f64());
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    for n in (-300..=300).chain(EXTREMES) {
        let factor = factor(n);
        let mut slice = patterns.clone();
        mul_pow2_bf16_slice(&mut slice, n);
        for (&bits, &in_slice) in patterns.iter().zip(&slice) {
            let x = bf16::from_bits(bits);
            let expected = if x.is_finite() {
                bf16::from_f64(flushed_product(x.to_f64(), factor, min, max)).to_bits()
            } else {
                bits
            };
            let got = mul_pow2_bf16(bits, n);
            assert_eq!(got, expected, "{bits:#06x} * 2^{n}");
            assert_eq!(in_slice, got, "slice, {bits:#06x} * 2^{n}");
        }
    }
}

#[test]
fn f16_all_patterns_all_exponents() {
    let (min, max) = (f16::MIN_POSITIVE.to_f64(), f16::MAX.to_f64());
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    for n in (-40..=40)
        .chain([-256, -128, 127, 128, 255])
        .chain(EXTREMES)
    {
        let factor = factor(n);
        let mut slice = patterns.clone();
        mul_pow2_f16_slice(&mut slice, n);
        for (&bits, &in_slice) in patterns.iter().zip(&slice) {
            let x = f16::from_bits(bits);
            let expected = if x.is_finite() {
                f16::from_f64(flushed_product(x.to_f64(), factor, min, max)).to_bits()
            } else {
                bits
            };
            let got = mul_pow2_f16(bits, n);
            assert_eq!(got, expected, "{bits:#06x} * 2^{n}");
            assert_eq!(in_slice, got, "slice, {bits:#06x} * 2^{n}");
        }
    }
}

// -------------------------------------------------------------------------------------------------
// FP32
// -------------------------------------------------------------------------------------------------

/// The bits of `x * 2^n` by the rule, the FP32 taken as f64.
fn oracle_f32(x: f32, factor: f64) -> u32 {
    let (min, max) = (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
    let product = flushed_product(f64::from(x), factor, min, max) as f32; // exact
    if x.is_finite() {
        product.to_bits()
    } else {
        x.to_bits()
    }
}

/// Every exponent with the mantissas around its ends and middle, of both signs.
fn edge_patterns_f32() -> Vec<u32> {
    let mantissas = [
        0, 1, 2, 0x3f_ffff, 0x40_0000, 0x40_0001, 0x7f_fffe, 0x7f_ffff,
    ];
    (0..512)
        .flat_map(|sign_and_exponent: u32| mantissas.map(|m| sign_and_exponent << 23 | m))
        .collect()
}

#[test]
fn f32_edge_patterns_all_exponents() {
    let patterns = edge_patterns_f32();
    for n in (-300..=300).chain(EXTREMES) {
        let factor = factor(n);
        for &bits in &patterns {
            let x = f32::from_bits(bits);
            let got = mul_pow2_f32(x, n).to_bits();
            assert_eq!(got, oracle_f32(x, factor), "{bits:#010x} * 2^{n}");
            let added = add_increment_f32(x, Increment::pow2(n)).to_bits();
            assert_eq!(added, got, "increment, {bits:#010x} * 2^{n}");
        }
    }
}

const BUFFER: usize = 2048; // its copies as FP32 and f64 stay in L1

/// Calls `check` with consecutive patterns, a buffer at a time, until every FP32 has been there; on
/// two threads.
fn for_every_f32(check: impl Fn(&[f32; BUFFER]) + Sync) {
    std::thread::scope(|scope| {
        for sign in [0, 1 << 31] {
            let check = &check;
            scope.spawn(move || {
                let mut xs = [0.0; BUFFER];
                for start in (sign..=sign | 0x7fff_ffff).step_by(BUFFER) {
                    for (i, x) in xs.iter_mut().enumerate() {
                        *x = f32::from_bits(start + i as u32);
                    }
                    check(&xs);
                }
            });
        }
    });
}

/// The rule once more, arranged to vectorise: no early exits, and `x` converted to FP64 once for all `n`.
#[test]
#[ignore = "exhaustive: run with --release"]
fn f32_all_patterns() {
    let difference = |a: f32, b: f32| a.to_bits() ^ b.to_bits();
    let any = |all: u32, one: u32| all | one;
    for_every_f32(|xs| {
        // A buffer holds patterns of one sign and one exponent.
        let special = !xs[0].is_finite();
        let fp64 = xs.map(|x| {
            let x = f64::from(x);
            if x.abs() < f64::from(f32::MIN_POSITIVE) {
                0.0_f64.copysign(x)
            } else {
                x
            }
        });
        let mut got = [0.0; BUFFER];
        for n in [0, -1, -2, -30, -126, -127, -149, -255, 1, 30, 127, 254] {
            got.copy_from_slice(xs);
            mul_pow2_f32_slice(&mut got, n);
            let factor = factor(n);
            let differences = if special {
                xs.iter()
                    .zip(&got)
                    .map(|(&x, &got)| difference(x, got))
                    .fold(0, any)
            } else {
                let expected = |&x: &f64| {
                    let product = x * factor;
                    let flushed = if product.abs() < f64::from(f32::MIN_POSITIVE) {
                        0.0_f64.copysign(x)
                    } else {
                        product
                    };
                    flushed as f32 // exact, or infinity from 2^128 on
                };
                let both = fp64.iter().map(expected).zip(&got);
                both.map(|(expected, &got)| difference(expected, got))
                    .fold(0, any)
            };
            assert_eq!(differences, 0, "2^{n}, from {:#010x}", xs[0].to_bits());
        }
    });
}

#[test]
#[ignore = "exhaustive: run with --release"]
fn bf16_round_all_patterns() {
    for_every_f32(|xs| {
        let mut got = [0; BUFFER];
        bf16_round_slice(xs, &mut got);
        for (&x, &got) in xs.iter().zip(&got) {
            assert_eq!(got, bf16::from_f32(x).to_bits(), "{:#010x}", x.to_bits());
        }
    });
}

// -------------------------------------------------------------------------------------------------
// FP64
// -------------------------------------------------------------------------------------------------

/// The bits of `x * 2^n` by the rule. There is no wider format: the flush is decided by comparing
/// `x` with the smallest normal number over `2^n`, and multiplying in three steps makes every factor
/// normal.
fn oracle_f64(x: f64, n: i32) -> u64 {
    // The largest number over the smallest normal one is just below 2^2046.
    let n = n.clamp(-2046, 2046);
    let times_pow2 = |x: f64, n: i32| {
        let third = exact_pow2(n / 3);
        x * third * third * exact_pow2(n - 2 * (n / 3))
    };
    let threshold = f64::MIN_POSITIVE.max(times_pow2(f64::MIN_POSITIVE, -n.min(0)));
    if !x.is_finite() {
        x.to_bits()
    } else if x.abs() < threshold {
        0.0_f64.copysign(x).to_bits()
    } else {
        times_pow2(x, n).to_bits() // normal throughout, or infinity
    }
}

#[test]
fn f64_edge_patterns() {
    let middle = 1_u64 << 51;
    let mantissas = [0, 1, middle - 1, middle, middle + 1, 2 * middle - 1];
    let every_exponent: Vec<f64> = (0..4096)
        .flat_map(|sign_and_exponent: u64| mantissas.map(|m| sign_and_exponent << 52 | m))
        .map(f64::from_bits)
        .collect();
    for n in (-2100..=2100)
        .step_by(7)
        .chain(-3..=3)
        .chain(-2047..=-2044)
        .chain(EXTREMES)
    {
        let mut slice = every_exponent.clone();
        mul_pow2_f64_slice(&mut slice, n);
        for (&x, in_slice) in every_exponent.iter().zip(&slice) {
            let got = mul_pow2_f64(x, n).to_bits();
            assert_eq!(got, oracle_f64(x, n), "{:#018x} * 2^{n}", x.to_bits());
            assert_eq!(
                in_slice.to_bits(),
                got,
                "slice, {:#018x} * 2^{n}",
                x.to_bits()
            );
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Increments
// -------------------------------------------------------------------------------------------------

/// The rule for magnitudes in 64-bit integers, where nothing can wrap.
fn oracle_increment(bits: u32, increment: i32) -> u32 {
    let (sign, magnitude) = (bits & 0x8000_0000, i64::from(bits & 0x7fff_ffff));
    let sum = magnitude + i64::from(increment);
    match magnitude {
        0x7f80_0000.. => bits,
        ..0x0080_0000 => sign,
        _ if sum < 0x0080_0000 => sign,
        _ if sum >= 0x7f80_0000 => sign | 0x7f80_0000,
        _ => sign | sum as u32,
    }
}

#[test]
fn increment_bits_are_clamped_and_rounded() {
    const FULL: i32 = 255 << 23;
    let bits = |n, epsilon| Increment::compensated(n, epsilon).bits();
    let unit = 1.0 / 8_388_608.0;
    assert_eq!(Increment::default(), Increment::NONE);
    assert!(Increment::NONE.is_none() && Increment::pow2(0).is_none());
    assert!(!Increment::pow2(-1).is_none() && !Increment::compensated(0, unit).is_none());
    assert_eq!(Increment::pow2(-30).bits(), -30 << 23);
    assert_eq!(Increment::pow2(i32::MIN).bits(), -FULL);
    assert_eq!(Increment::pow2(i32::MAX).bits(), FULL);
    assert_eq!(Increment::from_bits_clamped(i32::MIN).bits(), -FULL);
    assert_eq!(Increment::from_bits_clamped(i32::MAX).bits(), FULL);
    assert_eq!(Increment::from_bits_clamped(-12_345).bits(), -12_345);
    assert_eq!(bits(i32::MIN, -1.0), -FULL);
    assert_eq!(bits(i32::MIN, 1.0), -FULL + (1 << 17));
    assert_eq!(bits(i32::MAX, 1.0), FULL);
    assert_eq!(bits(0, 1.0), 1 << 17);
    assert_eq!(bits(0, f32::NEG_INFINITY), -(1 << 17));
    assert_eq!(bits(-3, f32::NAN), -3 << 23);
    for (units, rounded) in [
        (0.5, 0),
        (0.51, 1),
        (1.5, 2),
        (2.5, 2),
        (-0.5, 0),
        (-1.5, -2),
    ] {
        assert_eq!(
            bits(-1, units * unit),
            (-1 << 23) + rounded,
            "{units} units"
        );
    }
    // Where nothing changed, nothing is added: no 1e-6.
    assert!(Increment::compensated(0, compensation(0.998, 0.998)).is_none());
}

#[test]
fn adding_none_is_the_identity_except_for_subnormals() {
    for bits in edge_patterns_f32() {
        let x = f32::from_bits(bits);
        let expected = if x.is_subnormal() {
            bits & 0x8000_0000
        } else {
            bits
        };
        assert_eq!(
            add_increment_f32(x, Increment::NONE).to_bits(),
            expected,
            "{bits:#010x}"
        );
    }
}

/// Every BF16 scale that Algorithm 2 can meet has `S16 / S32` within `1 ± 2^-8`.
#[test]
fn compensation_error_is_below_the_documented_bound() {
    let mut worst = [0.0_f64; 2]; // (-, +)
    for step in -64..=64 {
        let (c_prev, c) = (1.0, 1.0 + step as f32 / 64.0 / 128.0);
        let increment = Increment::compensated(-7, compensation(c_prev, c));
        let e = f64::from(c) - 1.0;
        let bound = e.abs() / (2.0 * (1.0 - e.abs())) + exact_pow2(-23);
        // The binade [1, 2), its ends, and the crossings into both neighbours.
        for mantissa in (0..0x80_0000)
            .step_by(997)
            .chain(0..2000)
            .chain(0x7f_f000..0x80_0000)
        {
            let x = f32::from_bits(0x3f80_0000 | mantissa);
            let right = f64::from(x) * f64::from(c) / 128.0;
            let error = f64::from(add_increment_f32(x, increment)) / right - 1.0;
            assert!(
                error.abs() <= bound,
                "{x} by {c}: {error:e} above {bound:e}"
            );
            let side = &mut worst[usize::from(error > 0.0)];
            *side = side.max(error.abs());
        }
    }
    // The bound is attained, but for terms in e^2, at |e| = 1/128.
    let largest = 1.0 / 256.0;
    assert!(
        worst.iter().all(|w| (0.97..1.0).contains(&(w / largest))),
        "{worst:?}"
    );
}

/// Against the printed quotient in f64, for scales that aren't one: a product or a remainder in its
/// place would pass beside 1.
#[test]
fn compensation_is_the_relative_change_of_c() {
    for c_prev in [0.25_f32, 0.7512, 0.9961, 1.0, 1.0039, 3.0, 1000.0] {
        for change in [-0.5_f64, -1.0 / 128.0, -1e-6, 0.0, 1e-6, 1.0 / 128.0, 0.75] {
            let c = (f64::from(c_prev) * (1.0 + change)) as f32;
            let want = 1.5 * (f64::from(c) / f64::from(c_prev) - 1.0);
            let got = f64::from(compensation(c_prev, c));
            // Two roundings after the exact difference; three where it isn't.
            assert!(
                (got - want).abs() <= want.abs() * 2e-7,
                "{c_prev} {c}: {got} {want}"
            );
        }
    }
}

/// Five blocks with wandering scales: the appendix's quotient follows them; the one printed in
/// Algorithm 2, line 9, doubles the error that it should remove.
#[test]
fn the_appendix_is_right_about_c() {
    let s32 = [1.0_f32, 0.7512, 1.2344, 0.9031, 1.0039];
    let scales = s32.map(|s| (s, bf16_to_f32(bf16_round(s))));
    let (mut by_appendix, mut as_printed) = (1.5_f32, 1.5_f32); // mid-binade: the 1.5 is exact
    for pair in scales.windows(2) {
        let [(r_prev, s_prev), (r, s)] = [pair[0], pair[1]];
        let appendix = Increment::compensated(0, compensation(s_prev / r_prev, s / r));
        let printed = Increment::compensated(0, compensation(r_prev / s_prev, r / s));
        by_appendix = add_increment_f32(by_appendix, appendix);
        as_printed = add_increment_f32(as_printed, printed);
    }
    let (r, s) = scales[4];
    let right = 1.5 * f64::from(s) / f64::from(r);
    let error = |x: f32| (f64::from(x) / right - 1.0).abs();
    assert!(error(by_appendix) < 2e-5, "{:e}", error(by_appendix));
    assert!(error(as_printed) > 5e-3, "{:e}", error(as_printed));
}

#[test]
fn the_printed_addition_goes_wrong_where_ours_is_total() {
    let printed = |x: f32, n: i32| as_printed_f32(x, n << 23);
    let bits = |x: f32, n: i32| mul_pow2_f32(x, n).to_bits();

    assert_eq!(printed(0.0, -1), f32::NEG_INFINITY);
    assert_eq!(bits(0.0, -1), 0.0_f32.to_bits());
    assert_eq!(printed(-0.0, -1), f32::INFINITY);
    assert_eq!(bits(-0.0, -1), (-0.0_f32).to_bits());

    assert!((-1.2e38..-1.0e38).contains(&printed(1e-30, -30)));
    assert_eq!(bits(1e-30, -30), 0.0_f32.to_bits());
    assert_eq!(bits(-1e-30, -30), (-0.0_f32).to_bits());

    assert!(printed(f32::INFINITY, -1).is_finite());
    assert_eq!(bits(f32::INFINITY, -1), f32::INFINITY.to_bits());
    assert!(printed(f32::NAN, -1).is_finite());
    assert_eq!(bits(f32::NAN, -1), f32::NAN.to_bits());

    assert!(printed(1e30, 40) < 0.0);
    assert_eq!(bits(1e30, 40), f32::INFINITY.to_bits());

    // The drift of line 11's constant: one unchanged block moves every element by eight units.
    assert_eq!(
        as_printed_f32(1.0, (1e-6 * 8_388_608.0) as i32).to_bits(),
        1.0_f32.to_bits() + 8
    );
}

// -------------------------------------------------------------------------------------------------
// BF16 rounding
// -------------------------------------------------------------------------------------------------

#[test]
fn bf16_conversions_agree_with_half() {
    let lower = [0, 1, 0x0040, 0x7fff, 0x8000, 0x8001, 0xc000, 0xffff];
    for upper in 0..=u16::MAX {
        for lower in lower {
            let x = f32::from_bits(u32::from(upper) << 16 | lower);
            let expected = bf16::from_f32(x).to_bits();
            assert_eq!(bf16_round(x), expected, "{:#010x}", x.to_bits());
        }
        // Not by value: `half` quiets NaNs when it converts them.
        let fp32 = bf16_to_f32(upper);
        assert_eq!(fp32.to_bits(), u32::from(upper) << 16);
        assert!(fp32.is_nan() || fp32 == bf16::from_bits(upper).to_f32());
        assert!(fp32.is_nan() || bf16_round(fp32) == upper);
    }
}

#[test]
fn bf16_slices_stop_at_the_shorter() {
    let (xs, mut narrow, mut wide) = ([1.0, 2.0, 3.0], [7; 2], [7.0; 4]);
    bf16_round_slice(&xs, &mut narrow);
    assert_eq!(narrow, [0x3f80, 0x4000]);
    bf16_to_f32_slice(&narrow, &mut wide);
    assert_eq!(wide, [1.0, 2.0, 7.0, 7.0]);
    bf16_round_slice(&xs[..1], &mut narrow[1..]);
    assert_eq!(narrow, [0x3f80; 2]);
}

// -------------------------------------------------------------------------------------------------
// Random patterns
// -------------------------------------------------------------------------------------------------

/// Mostly exponents that matter, some of the rest.
fn any_exponent(width: i32) -> impl Strategy<Value = i32> {
    prop_oneof![8 => -2 * width..=2 * width, 4 => -30..=3, 1 => any::<i32>()]
}

/// Uniform bits, so a share of zeros, subnormals, infinities and NaNs is added.
fn any_f32() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => any::<u32>().prop_map(f32::from_bits),
        1 => (any::<u32>(), prop::sample::select(vec![0_u32, 1, 254, 255]))
            .prop_map(|(bits, e)| f32::from_bits(bits & 0x807f_ffff | e << 23)),
    ]
}

fn any_increment() -> impl Strategy<Value = Increment> {
    prop_oneof![
        any::<i32>().prop_map(Increment::from_bits_clamped),
        (any_exponent(255), -0.02_f32..0.02).prop_map(|(n, e)| Increment::compensated(n, e)),
    ]
}

fn all_bits(xs: &[f32]) -> Vec<u32> {
    xs.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn f32_is_ldexp_with_flush(x in any_f32(), n in any_exponent(255)) {
        prop_assert_eq!(mul_pow2_f32(x, n).to_bits(), oracle_f32(x, factor(n)));
    }

    #[test]
    fn f64_is_ldexp_with_flush(bits in any::<u64>(), n in any_exponent(2046)) {
        let x = f64::from_bits(bits);
        prop_assert_eq!(mul_pow2_f64(x, n).to_bits(), oracle_f64(x, n));
    }

    #[test]
    fn f32_increment_is_the_wide_sum(x in any_f32(), increment in any_increment()) {
        let got = add_increment_f32(x, increment).to_bits();
        prop_assert_eq!(got, oracle_increment(x.to_bits(), increment.bits()));
        // On the premise of the lemma, and there only, it is the listing's addition.
        if x.is_normal() && f32::from_bits(got).is_normal() {
            prop_assert_eq!(got, as_printed_f32(x, increment.bits()).to_bits());
        }
    }

    #[test]
    fn f32_exponents_compose(x in any_f32(), a in -300..=300_i32, b in -300..=300_i32) {
        let first = mul_pow2_f32(x, a);
        if first.is_normal() || (a <= 0) == (b <= 0) {
            let both = mul_pow2_f32(x, a + b).to_bits();
            prop_assert_eq!(mul_pow2_f32(first, b).to_bits(), both);
        }
    }

    #[test]
    fn f32_slices_are_the_scalar_function(
        xs in prop::collection::vec(any_f32(), 0..70),
        n in any_exponent(255),
        increment in any_increment(),
    ) {
        let (mut multiplied, mut added) = (xs.clone(), xs.clone());
        mul_pow2_f32_slice(&mut multiplied, n);
        add_increment_f32_slice(&mut added, increment);
        let by_n: Vec<_> = xs.iter().map(|&x| mul_pow2_f32(x, n)).collect();
        let by_increment: Vec<_> = xs.iter().map(|&x| add_increment_f32(x, increment)).collect();
        prop_assert_eq!(all_bits(&multiplied), all_bits(&by_n));
        prop_assert_eq!(all_bits(&added), all_bits(&by_increment));
    }

    #[test]
    fn bf16_slices_are_the_scalar_functions(xs in prop::collection::vec(any_f32(), 0..70)) {
        let mut narrow = vec![0; xs.len()];
        bf16_round_slice(&xs, &mut narrow);
        let mut wide = vec![0.0; xs.len()];
        bf16_to_f32_slice(&narrow, &mut wide);
        for ((&x, &narrow), &wide) in xs.iter().zip(&narrow).zip(&wide) {
            prop_assert_eq!(narrow, bf16_round(x));
            prop_assert_eq!(wide.to_bits(), bf16_to_f32(narrow).to_bits());
        }
    }
}
