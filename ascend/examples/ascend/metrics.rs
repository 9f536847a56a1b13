//! Errors of a result.

/// `||got - want||_F / ||want||_F`, the paper's error measure; infinite if an element of `got` isn't finite.
///
/// # Panics
/// If the lengths differ.
pub fn relative_frobenius(got: &[f32], want: &[f64]) -> f64 {
    let error: f64 = differences(got, want).map(|d| d * d).sum();
    let norm: f64 = want.iter().map(|want| want * want).sum();
    error.sqrt() / (norm.sqrt() + 1e-10)
}

/// The largest `|got - want|`; infinite if an element of `got` isn't finite.
///
/// # Panics
/// If the lengths differ.
pub fn worst(got: &[f32], want: &[f64]) -> f64 {
    differences(got, want).fold(0.0, f64::max)
}

/// Every `|got - want|`.
fn differences(got: &[f32], want: &[f64]) -> impl Iterator<Item = f64> {
    assert_eq!(got.len(), want.len(), "results of different lengths");
    got.iter().zip(want).map(|(&got, &want)| {
        let difference = (f64::from(got) - want).abs();
        if difference.is_finite() {
            difference
        } else {
            f64::INFINITY
        }
    })
}
