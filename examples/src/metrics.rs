//! How far a result is from the truth.

/// `||got - want||_F / ||want||_F`, the paper's error measure; 0 if nothing differs.
///
/// Elements that are the same infinity, or both NaN, agree. If only one of the two is finite, or if
/// they are different infinities, the error is infinite.
///
/// # Panics
/// If the lengths differ.
pub fn relative_frobenius(got: &[f32], want: &[f64]) -> f64 {
    let mut error = 0.0;
    let mut norm = 0.0;
    for (difference, want) in differences(got, want) {
        error += difference * difference;
        if want.is_finite() {
            norm += want * want;
        }
    }
    if error == 0.0 {
        return 0.0;
    }
    (error / norm).sqrt()
}

/// The largest `|got - want|`, with the rule of [`relative_frobenius`] for elements that are not
/// finite.
///
/// # Panics
/// If the lengths differ.
pub fn worst(got: &[f32], want: &[f64]) -> f64 {
    differences(got, want).fold(0.0, |worst, (difference, _)| difference.max(worst))
}

/// Every `(|got - want|, want)`.
fn differences<'a>(got: &'a [f32], want: &'a [f64]) -> impl Iterator<Item = (f64, f64)> + 'a {
    assert_eq!(got.len(), want.len(), "results of different lengths");
    got.iter().zip(want).map(|(&got, &want)| {
        let got = f64::from(got);
        let difference = if got.is_finite() && want.is_finite() {
            (got - want).abs()
        } else if got == want || (got.is_nan() && want.is_nan()) {
            0.0
        } else {
            f64::INFINITY
        };
        (difference, want)
    })
}
