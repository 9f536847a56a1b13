//! Results over different keys, merged.

mod common;

use amla::{
    Argument, Backend, Elements, EmptyLse, Error, Lse, LseBase, Output, Part, ProblemShape, merge,
};
use common::{Case, modes};
use half::bf16;

const fn format(base: LseBase, empty: EmptyLse) -> Lse {
    Lse { base, empty }
}

const FORMATS: [Lse; 4] = [
    format(LseBase::E, EmptyLse::Infinity),
    format(LseBase::E, EmptyLse::MinusInfinity),
    format(LseBase::Two, EmptyLse::Infinity),
    format(LseBase::Two, EmptyLse::MinusInfinity),
];

const fn part<'a>(o: &'a [f32], lse: &'a [f32]) -> Part<'a> {
    Part {
        o,
        lse,
        max_logits: None,
    }
}

fn into(
    shape: &ProblemShape,
    o: &mut [f32],
    lse: &mut [f32],
    parts: &[Part],
    lse_format: Lse,
) -> Result<(), Error> {
    let total = Output {
        lse_format,
        ..Output::dense(*shape, Elements::F32(o), lse)
    };
    merge(shape, total, parts)
}

/// Two rows of two columns.
const SMALL: ProblemShape = ProblemShape {
    b: 2,
    s_q: 1,
    s_k: 0,
    h_q: 1,
    h_kv: 1,
    d_qk: 2,
    d_v: 2,
};

#[test]
fn parts_merge_to_the_result_over_all_keys() {
    let case = Case::new(1, 2, 900, 3, (128, 128));
    let (want_o, want_lse) = case.golden();
    for format in FORMATS {
        let mut parts = Vec::new();
        // One range is empty.
        for keys in [0..100, 100..100, 100..101, 101..900] {
            let mut part = case.clone();
            part.kv = case.kv[keys.start * 128..keys.end * 128].to_vec();
            part.shape.s_k = keys.len();
            let options = &modes(Backend::detect())[1];
            parts.push(common::run_with(
                &part.problem(),
                part.sizes(),
                options,
                format,
            ));
        }
        let (mut o, mut lse) = parts.remove(0);
        let parts: Vec<Part> = parts.iter().map(|(o, lse)| part(o, lse)).collect();
        into(&case.shape, &mut o, &mut lse, &parts, format).unwrap();
        for (got, want) in o.iter().zip(&want_o) {
            assert!((f64::from(*got) - want).abs() < 2e-5, "{got} {want}");
        }
        for (got, want) in lse.iter().zip(&want_lse) {
            let want = match format.base {
                LseBase::E => *want,
                LseBase::Two => want / std::f64::consts::LN_2,
            };
            assert!(
                (f64::from(*got) - want).abs() < 2e-6 * want.abs().max(1.0),
                "{got} {want}"
            );
        }
    }
}

#[test]
fn merging_nothing() {
    for format in FORMATS {
        let empty = format.empty.value();
        let (mut o, mut lse) = ([f32::NAN, 3.0, 1.0, 2.0], [empty, 0.5]);
        let part = Part {
            o: &[f32::NAN; 4],
            lse: &[empty; 2],
            max_logits: None,
        };
        into(&SMALL, &mut o, &mut lse, &[part, part], format).unwrap();
        assert_eq!((o, lse), ([0.0, 0.0, 1.0, 2.0], [empty, 0.5]));
        // NaN isn't lost.
        let part = Part {
            o: &[1.0; 4],
            lse: &[1.0, f32::NAN],
            max_logits: None,
        };
        into(&SMALL, &mut o, &mut lse, &[part], format).unwrap();
        assert_eq!((&o[..2], lse[0]), (&[1.0; 2][..], 1.0));
        assert!(o[2].is_nan() && lse[1].is_nan());
    }
}

/// A key of no weight whose value isn't finite makes O NaN, also when it is another part's.
#[test]
fn merging_what_is_not_finite_and_weighs_nothing() {
    let format = Lse::default();
    for bad in [f32::NAN, f32::INFINITY] {
        let (mut o, mut lse) = ([1.0_f32, 1.0, 2.0, 2.0], [0.0, 0.0]);
        // The second row's part saw no key.
        let part = Part {
            o: &[1.0, bad, bad, bad],
            lse: &[-1000.0, format.empty.value()],
            max_logits: None,
        };
        into(&SMALL, &mut o, &mut lse, &[part], format).unwrap();
        assert_eq!((o[0], o[2], o[3], lse), (1.0, 2.0, 2.0, [0.0; 2]));
        assert!(o[1].is_nan());
    }
}

/// At once, however often.
#[test]
fn merging_no_rows() {
    let shape = ProblemShape {
        b: usize::MAX / 16,
        h_q: 0,
        ..SMALL
    };
    assert_eq!(into(&shape, &mut [], &mut [], &[], Lse::default()), Ok(()));
}

#[test]
fn merging_takes_the_largest_scores() {
    let (o, lse) = ([1.0; 4], [0.0; 2]);
    let merged = |first: [f32; 2], others: &[[f32; 2]]| {
        let (mut total_o, mut total_lse, mut max_logits) = (o, lse, first);
        let parts: Vec<_> = others
            .iter()
            .map(|max_logits| Part {
                max_logits: Some(max_logits),
                ..part(&o, &lse)
            })
            .collect();
        let total = Output {
            max_logits: Some(&mut max_logits),
            ..Output::dense(SMALL, Elements::F32(&mut total_o), &mut total_lse)
        };
        merge(&SMALL, total, &parts).unwrap();
        assert!(total_o == [1.0; 4] && total_lse[0] > 0.0);
        max_logits
    };
    let none = f32::NEG_INFINITY;
    assert_eq!(merged([1.0, none], &[[2.0, none], [-1.0, 3.0]]), [2.0, 3.0]);
    assert_eq!(merged([none, 5.0], &[[none, f32::NAN]]), [none, 5.0]);
}

#[test]
fn merging_refuses_other_lengths() {
    let (mut o, mut lse) = ([1.0; 4], [1.0; 2]);
    let wrong = |argument, len, expected| {
        Err(Error::WrongLength {
            argument,
            len,
            expected,
        })
    };
    let format = Lse::default();
    let some = [1.0; 4];
    let parts = [part(&some[..], &some[..2]), part(&some[..3], &some[..2])];
    let mut with = |parts: &[Part]| into(&SMALL, &mut o, &mut lse, parts, format);
    assert_eq!(with(&parts), wrong(Argument::O, 3, 4));
    assert_eq!(
        with(&[part(&some[..], &some[..1])]),
        wrong(Argument::Lse, 1, 2)
    );
    let short = into(&SMALL, &mut o[..3], &mut lse, &[], format);
    let (argument, len, needed) = (Argument::O, 3, 4);
    assert_eq!(
        short,
        Err(Error::TooShort {
            argument,
            len,
            needed
        })
    );
    for (given, len) in [(None, 0), (Some(&some[..1]), 1), (Some(&some[..3]), 3)] {
        let mut max_logits = [1.0; 2];
        let total = Output {
            max_logits: Some(&mut max_logits),
            ..Output::dense(SMALL, Elements::F32(&mut o), &mut lse)
        };
        let part = Part {
            max_logits: given,
            ..part(&some[..], &some[..2])
        };
        assert_eq!(
            merge(&SMALL, total, &[part]),
            wrong(Argument::MaxLogits, len, 2)
        );
        assert_eq!(max_logits, [1.0; 2]);
    }
    let total = Output {
        lse: None,
        ..Output::dense(SMALL, Elements::F32(&mut o), &mut [])
    };
    let (argument, len, needed) = (Argument::Lse, 0, 1);
    assert_eq!(
        merge(&SMALL, total, &[]),
        Err(Error::TooShort {
            argument,
            len,
            needed
        })
    );
    let mut halves = [bf16::ZERO; 4];
    let total = Output::dense(SMALL, Elements::Bf16(&mut halves), &mut lse);
    let (argument, width) = (Argument::O, 2);
    assert_eq!(
        merge(&SMALL, total, &[]),
        Err(Error::Format { argument, width })
    );
    assert_eq!((o, lse), ([1.0; 4], [1.0; 2]));
}
