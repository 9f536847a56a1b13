//! `merge` against the definition in FP64, whatever the strides and the values.

use amla::{Elements, EmptyLse, Error, Lse, LseBase, Output, Part, ProblemShape, merge};

use crate::common::assert_one_nan;
use crate::draw::Draw;
use crate::hosts::{PATTERN, untouched};

struct Input {
    shape: ProblemShape,
    o_strides: [usize; 3],
    lse_strides: [usize; 3],
    format: Lse,
    /// O and lse of all results, the first of which is the total.
    results: Vec<[Vec<f32>; 2]>,
}

fn input(draw: &mut Draw) -> Input {
    let [b, s_q, h_q] = [3, 3, 5].map(|most| draw.among(0..=most));
    let d_v = draw.one_of(&[1, 2, 63, 64, 65, 130]);
    let shape = ProblemShape {
        b,
        s_q,
        s_k: 0,
        h_q,
        h_kv: 1,
        d_qk: d_v,
        d_v,
    };
    let gaps = [(); 3].map(|()| draw.among(0..=3));
    let row = d_v + gaps[0];
    let token = h_q * row + gaps[1];
    let o_strides = [s_q * token + gaps[2], token, row];
    let outer = |dim: usize, stride: usize| dim * stride + gaps[2];
    let lse_strides = match draw.once_in(2) {
        true => [outer(h_q, s_q + gaps[1]), s_q + gaps[1], 1],
        false => [outer(s_q, h_q + gaps[1]), 1, h_q + gaps[1]],
    };
    let format = Lse {
        base: draw.one_of(&[LseBase::E, LseBase::Two]),
        empty: draw.one_of(&[EmptyLse::Infinity, EmptyLse::MinusInfinity]),
    };
    // To the last row, and what is behind it.
    let len = |dims: [usize; 3], strides: [usize; 3], width: usize| {
        let last = dims.map(|dim| dim.max(1) - 1);
        dot(last, strides) + width + gaps[0]
    };
    let o_len = len([b, s_q, h_q], o_strides, d_v);
    let lse_len = len([b, h_q, s_q], lse_strides, 1);
    let spread = draw.one_of(&[1.0, 30.0, 1e3, 1e38]);
    let number = |draw: &mut Draw, spread: f32| match draw.u8() {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        3 => draw.f32(),
        x => (f32::from(x) / 128.0 - 1.0) * spread,
    };
    let parts = draw.among(0..=4);
    let results = (0..=parts)
        .map(|_| {
            let lse: Vec<f32> = (0..lse_len).map(|_| number(draw, spread)).collect();
            // What is in O follows from a few of the bytes.
            let some: Vec<f32> = (0..17).map(|_| number(draw, 2.0)).collect();
            let o = (0..o_len).map(|i| some[i * i % some.len()]).collect();
            [o, lse]
        })
        .collect();
    Input {
        shape,
        o_strides,
        lse_strides,
        format,
        results,
    }
}

pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut input = input(&mut draw);
    if draw.once_in(8) && input.results.len() > 1 {
        // A part of another length is refused, and nothing is written.
        let last = input.results.len() - 1;
        input.results[last][usize::from(draw.once_in(2))].push(0.0);
        let [mut o, mut lse] = input.results[0].clone();
        o.fill(PATTERN);
        lse.fill(PATTERN);
        let refused = merged(&input, &mut o, &mut lse);
        assert!(
            matches!(refused, Err(Error::WrongLength { .. })),
            "{refused:?}"
        );
        assert!(untouched(&o) && untouched(&lse));
        return;
    }
    let [mut o, mut lse] = input.results[0].clone();
    merged(&input, &mut o, &mut lse).unwrap();
    let ProblemShape {
        b, s_q, h_q, d_v, ..
    } = input.shape;
    let (mut o_written, mut lse_written) = (vec![false; o.len()], vec![false; lse.len()]);
    for (b, j, h) in
        (0..b).flat_map(|b| (0..s_q).flat_map(move |j| (0..h_q).map(move |h| (b, j, h))))
    {
        let start = dot([b, j, h], input.o_strides);
        let at = dot([b, h, j], input.lse_strides);
        lse_written[at] = true;
        o_written[start..start + d_v].fill(true);
        assert_one_nan(&o[start..start + d_v]);
        assert_one_nan(&[lse[at]]);
        row(&input, start, at, &o[start..start + d_v], lse[at]);
    }
    for (got, (written, before)) in [(&o, &o_written), (&lse, &lse_written)]
        .into_iter()
        .zip(&input.results[0])
        .flat_map(|((got, written), before)| got.iter().zip(written.iter().zip(before)))
    {
        assert!(
            *written || got.to_bits() == before.to_bits(),
            "written between rows"
        );
    }
}

/// Bases, empty rows, and how many parts there are.
pub fn kind(data: &[u8]) -> Option<String> {
    let Input {
        format, results, ..
    } = input(&mut Draw::new(data));
    let Lse { base, empty } = format;
    Some(format!("{}-parts-{base:?}-{empty:?}", results.len() - 1).to_lowercase())
}

fn dot(at: [usize; 3], strides: [usize; 3]) -> usize {
    at.into_iter()
        .zip(strides)
        .map(|(i, stride)| i * stride)
        .sum()
}

fn merged(input: &Input, o: &mut [f32], lse: &mut [f32]) -> Result<(), Error> {
    // The logarithms stand for the largest scores, too.
    let parts = input.results[1..].iter().map(|[o, lse]| Part {
        o,
        lse,
        max_logits: Some(lse),
    });
    let parts: Vec<Part> = parts.collect();
    let mut max_logits = input.results[0][1].clone();
    let total = Output {
        o: Elements::F32(o),
        o_strides: input.o_strides,
        lse: Some(lse),
        lse_strides: input.lse_strides,
        max_logits: Some(&mut max_logits),
        lse_format: input.format,
    };
    merge(&input.shape, total, &parts)?;
    let ProblemShape { b, s_q, h_q, .. } = input.shape;
    for i in 0..b * h_q * s_q {
        let at = dot([i / s_q / h_q, i / s_q % h_q, i % s_q], input.lse_strides);
        let all = input.results.iter().map(|[_, lse]| lse[at]);
        let want = all.reduce(f32::max).unwrap();
        assert!(max_logits[at] == want || (max_logits[at].is_nan() && want.is_nan()));
    }
    Ok(())
}

fn row(input: &Input, start: usize, at: usize, got: &[f32], got_lse: f32) {
    let empty = match input.format.empty {
        EmptyLse::Infinity => f32::INFINITY,
        EmptyLse::MinusInfinity => f32::NEG_INFINITY,
    };
    // To natural logarithms; a row that saw nothing is an empty sum.
    let unit = match input.format.base {
        LseBase::E => 1.0,
        LseBase::Two => std::f64::consts::LN_2,
    };
    let lses = input.results.iter().map(|[_, lse]| match lse[at] {
        lse if lse == empty => f64::NEG_INFINITY,
        lse => f64::from(lse) * unit,
    });
    let lses: Vec<f64> = lses.collect();
    if lses.iter().all(|&lse| lse == f64::NEG_INFINITY) {
        assert!(got.iter().all(|o| o.to_bits() == 0) && got_lse == empty);
        return;
    }
    if lses.iter().any(|lse| lse.is_nan() || *lse == f64::INFINITY) {
        assert!(got.iter().all(|o| o.is_nan()), "{lses:?}: {got:?}");
        assert!(got_lse.is_nan(), "{lses:?}: {got_lse}");
        return;
    }
    // The logarithm of the sum from the largest down, one at a time.
    let mut sorted = lses.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let total = sorted[1..]
        .iter()
        .fold(sorted[0], |total, &lse| total + (lse - total).exp().ln_1p());
    // FP64 rounds scaled exponents, exponentials and sums, FP32 the result.
    let rounding = |x: f64| x.abs() * f64::EPSILON * 8.0;
    let spread = lses
        .iter()
        .filter(|lse| lse.is_finite())
        .fold(total.abs(), |s, lse| s.max(lse.abs()));
    let want_lse = total / unit;
    let limit = f64::from(f32::EPSILON) / 2.0 * want_lse.abs() + rounding(spread) / unit + 1e-45;
    assert!(
        (f64::from(got_lse) - want_lse).abs() <= limit || f64::from(got_lse) == want_lse,
        "lse {got_lse}, want {want_lse} of {lses:?}"
    );
    for (c, &got) in got.iter().enumerate() {
        let terms = lses.iter().zip(&input.results).map(|(&lse, [o, _])| {
            let weight = (lse - total).exp();
            let o = f64::from(o[start + c]);
            match weight {
                // Without weight there is nothing to add, whatever is there.
                _ if lse == f64::NEG_INFINITY => (0.0, true),
                // So small a weight may be none, as exponentials are rounded.
                ..1e-290 if !o.is_finite() => (0.0, false),
                _ => (weight * o, true),
            }
        });
        let terms: Vec<(f64, bool)> = terms.collect();
        let want: f64 = terms.iter().map(|(term, _)| term).sum();
        let size: f64 = terms.iter().map(|(term, _)| term.abs()).sum();
        if !terms.iter().all(|&(_, sure)| sure) {
            continue;
        }
        let limit = f64::from(f32::EPSILON) / 2.0 * want.abs()
            + size * (rounding(spread) + 16.0 * f64::EPSILON)
            + 1e-45;
        let context = || format!("O[{c}] = {got}, want {want} +- {limit:e} of {terms:?}, {lses:?}");
        if want.is_nan() {
            assert!(got.is_nan(), "{}", context());
        } else if want.abs() > f64::from(f32::MAX) {
            assert!(
                f64::from(got).abs() >= f64::from(f32::MAX) * (1.0 - 1e-7),
                "{}",
                context()
            );
            assert_eq!(
                got.is_sign_negative(),
                want.is_sign_negative(),
                "{}",
                context()
            );
        } else {
            assert!((f64::from(got) - want).abs() <= limit, "{}", context());
        }
    }
}
