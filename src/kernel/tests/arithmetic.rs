//! The orders in which dots and tiles add.

use super::{Backend, BackendId};

/// `sum` and the products of a pair, as the backend's dots add them.
pub(super) fn add_pair(backend: Backend, sum: f32, [odd, even]: [f32; 2]) -> f32 {
    match backend.id() {
        BackendId::NeonBf16 => add_to_odd(sum, add_to_odd(odd, even)),
        _ => sum + odd + even,
    }
}

/// `sum` and products by pairs, 16 of those at a time, as tiles add them: the odd ones and the even ones
/// apart.
pub(super) fn add_tiles(mut sum: f32, mut products: impl Iterator<Item = [f32; 2]>) -> f32 {
    loop {
        let (mut odds, mut evens, mut any) = (0.0, 0.0, false);
        for [odd, even] in products.by_ref().take(16) {
            (odds, evens, any) = (odds + odd, evens + even, true);
        }
        if !any {
            return sum;
        }
        sum += evens + odds;
    }
}

/// `a + b` rounded to odd: towards zero, the last bit set if anything was lost. What would be
/// subnormal is zero.
fn add_to_odd(a: f32, b: f32) -> f32 {
    let (x, y) = (f64::from(a), f64::from(b));
    let sum = x + y;
    // What that lost (Knuth's TwoSum).
    let y_part = sum - x;
    let lost = (x - (sum - y_part)) + (y - y_part);
    #[expect(clippy::cast_possible_truncation, reason = "rounds to nearest")]
    let nearest = sum as f32;
    let away = match f64::from(nearest) - sum {
        0.0 => -lost,
        beyond => beyond,
    };
    let toward_zero = nearest.to_bits() - u32::from(away * sum > 0.0);
    let rounded = f32::from_bits(toward_zero | u32::from(away != 0.0));
    if rounded.is_normal() { rounded } else { 0.0 }
}

#[test]
fn adds_to_odd() {
    let ulp = f32::EPSILON;
    for (a, b, want) in [
        (1.0, ulp, 1.0 + ulp),
        (1.0, ulp / 4.0, 1.0 + ulp),
        (1.0, 0.75 * ulp, 1.0 + ulp),
        (1.0 + ulp, ulp / 4.0, 1.0 + ulp),
        (1.0 + ulp, 0.75 * ulp, 1.0 + ulp),
        (1.0 + ulp, ulp, 1.0 + 2.0 * ulp),
        (-1.0, -ulp / 4.0, -1.0 - ulp),
        (1.0, 1e-30, 1.0 + ulp),
        (1.0, -1e-30, 1.0 - ulp / 2.0),
        (-1.0, 1e-30, ulp / 2.0 - 1.0),
        (f32::MIN_POSITIVE, -1.5 * f32::MIN_POSITIVE, 0.0),
        (3.0, -3.0, 0.0),
    ] {
        assert_eq!(add_to_odd(a, b), want, "{a:e} {b:e}");
        assert_eq!(add_to_odd(b, a), want, "{b:e} {a:e}");
    }
}
