//! The stages of few rows in one: against their definitions in f64, and against themselves.

use super::*;
use crate::kernel::prefetch::Asking;
use crate::kernel::{STREAM_KEYS, STREAM_MULTIPLE, Streamed, Streams, heads};

/// A block, all of it or from some key on, of rows so wide: those of the run, or what they begin with.
#[derive(Clone, Copy)]
struct Stream<'a, const D_QK: usize = MAX_D_QK, const D_V: usize = MAX_D_V> {
    run: Run<'a>,
    from: usize,
    /// Where the next block's keys begin, which are asked for and nothing else.
    next: &'a [bf16],
    /// What earlier keys left.
    before: Option<&'a After>,
    /// Whether values are what keys begin with.
    latent: bool,
}

#[derive(Clone)]
struct After {
    o: Vec<OStrip>,
    state: RowState,
    streamed: Streamed,
    /// P of the keys that were not finished.
    p: Vec<[f32; PANEL_ROWS]>,
}

impl<const D_QK: usize, const D_V: usize> Visitor for Stream<'_, D_QK, D_V> {
    /// Nothing, if there are too many rows.
    type Output = Option<After>;

    fn visit<K: Kernel>(self, kernel: K) -> Option<After> {
        let Run {
            rows, len, keys, ..
        } = self.run;
        if rows > K::STREAM_ROWS {
            return None;
        }
        let mut tiles: Box<Workspace> = bytemuck::zeroed_box();
        let Tiles { l1, l0a, .. } = &mut tiles.tiles;
        let q: Vec<_> = self.run.q.chunks(MAX_D_QK).take(rows).collect();
        kernel.pack_stream_q::<D_QK>(&q, false, &mut l1.q[0]);
        let keys = keys.as_chunks::<MAX_D_QK>().0[..len].iter();
        let next = self.next.as_chunks::<MAX_D_QK>().0.iter();
        let values = self.run.values.as_chunks::<MAX_D_V>().0;
        let mut keys = keys.chain(next).map(|key| key.first_chunk().unwrap());
        let mut last: &[bf16; D_QK] = self.run.keys.first_chunk().unwrap();
        let keys: [_; STREAM_KEYS] = core::array::from_fn(|_| {
            last = keys.next().unwrap_or(last);
            last
        });
        let values = core::array::from_fn::<_, STREAM_KEYS, _>(|k| {
            // What isn't to be read would show.
            if k < len.next_multiple_of(STREAM_MULTIPLE) {
                values[k.min(len - 1)].first_chunk::<D_V>().unwrap()
            } else {
                &[bf16::NAN; _]
            }
        });
        let streams = Streams {
            q: &l1.q[0],
            keys: &keys,
            asked: &keys.map(|key| key.as_ptr()),
            values: match heads(&keys) {
                Some(begun) if self.latent => begun,
                _ => &values,
            },
        };
        let call = Softmax {
            rows,
            keys: len,
            scale: self.run.scale,
            mask: self.run.mask,
            maxima: None,
            rescale: self.run.rescale,
            precision: self.run.precision,
            next: &[],
        };
        let (mut o, mut state) = match self.before {
            Some(before) => (before.o.clone(), before.state),
            None => {
                // Other rows aren't read.
                let mut o = std::vec![[[f32::NAN; STRIP]; PANEL_ROWS]; D_V / STRIP];
                for o in &mut o {
                    o[..rows].fill([0.0; STRIP]);
                }
                (o, RowState::START)
            }
        };
        kernel.settle(&mut o, rows, true);
        kernel.settle_stream(&mut o, rows, true);
        let streamed = kernel.stream(&call, &streams, self.from, l0a, &mut state, &mut o);
        kernel.settle_stream(&mut o, rows, false);
        kernel.settle(&mut o, rows, false);
        // Other rows hold whatever the backend left there.
        for o in &mut o {
            o[rows..].fill([0.0; STRIP]);
        }
        let prob = |k| core::array::from_fn(|r| kernel.prob(l0a, self.run.precision, k, r));
        Some(After {
            o,
            state,
            p: (0..streamed.keys.len()).map(prob).collect(),
            streamed,
        })
    }
}

fn stream(run: Run<'_>) -> Stream<'_> {
    begun(run)
}

fn begun<const D_QK: usize, const D_V: usize>(run: Run<'_>) -> Stream<'_, D_QK, D_V> {
    Stream {
        run,
        from: 0,
        next: &[],
        before: None,
        latent: false,
    }
}

/// A backend, in one of the ways among which the processor chooses.
#[derive(Clone, Copy, Debug)]
struct Way {
    backend: Backend,
    /// Matters to some backends.
    asking: Asking,
}

impl Way {
    fn with<const D_QK: usize, const D_V: usize>(
        self,
        stream: Stream<'_, D_QK, D_V>,
    ) -> Option<After> {
        self.backend.with_asking(self.asking, stream)
    }

    /// The same, asked as others are.
    fn usual(self) -> Self {
        Self {
            asking: Asking::L2,
            ..self
        }
    }

    /// Up to so many rows.
    fn limit(self) -> usize {
        match self.backend.id() {
            BackendId::Avx512 => ROWS,
            BackendId::Avx512Bf16 => 8,
            _ => 0,
        }
    }

    /// Keys after which a call may end, and another begin, with the same bits: sums are of a step's.
    fn step(self, rows: usize) -> usize {
        let first = if self.asking == Asking::L2Twice { 4 } else { 5 };
        match rows {
            _ if self.shares_lanes(rows) => 96,
            _ if rows >= first && self.asking != Asking::L1dTwice => 64,
            _ => 16,
        }
    }

    /// Whether rows share the lanes, for other bits.
    fn shares_lanes(self, rows: usize) -> bool {
        let backend = self.backend.id() == BackendId::Avx512Bf16;
        backend && self.asking == Asking::L1dTwice && matches!(rows, 5..=8)
    }
}

fn ways() -> impl Iterator<Item = Way> {
    backends().flat_map(|backend| {
        let chosen = backend.id() == BackendId::Avx512Bf16;
        let all = if chosen {
            &[Asking::L2, Asking::L1dTwice, Asking::L2Twice][..]
        } else {
            &[Asking::L2]
        };
        all.iter().map(move |&asking| Way { backend, asking })
    })
}

/// Up to so many rows some backend streams.
const ROWS: usize = if PANEL_ROWS < 32 { PANEL_ROWS / 2 } else { 16 };

const KEYS: [usize; 13] = [1, 2, 15, 16, 17, 24, 40, 57, 63, 64, 65, 131, 192];

fn cases() -> impl Iterator<Item = (usize, usize)> {
    let lengths = KEYS.into_iter().filter(|&len| len <= BLOCK_KEYS);
    lengths.flat_map(|len| (1..=ROWS).map(move |rows| (rows, len)))
}

/// The tests below pass where nobody streams: here it shows if a backend no longer does.
#[test]
fn says_who_streams() {
    let (q, keys) = (numbers(41, ROWS * MAX_D_QK), numbers(43, MAX_D_QK));
    let values = numbers(45, MAX_D_V);
    for way in ways() {
        for rows in 1..=ROWS {
            let streams = way.with(stream(run(&q, &keys, &values, rows, 1)));
            assert_eq!(streams.is_some(), rows <= way.limit());
        }
    }
    if ways().all(|way| way.limit() == 0) {
        std::eprintln!("streams NOT RUN: this processor has no backend that has them");
    }
}

/// Sums, references and O of every mode, with rows that see all keys, some, one and none.
#[test]
fn streams_are_exact() {
    let (q, keys) = (
        numbers(47, ROWS * MAX_D_QK),
        numbers(49, BLOCK_KEYS * MAX_D_QK),
    );
    let values = numbers(51, BLOCK_KEYS * MAX_D_V);
    let mut mask = [0; BLOCK_KEYS];
    for (k, mask) in mask.iter_mut().enumerate() {
        let sees = |&r: &usize| match r {
            0 => k % 5 != 0,
            1 => k == 3,
            2 => false,
            _ => true,
        };
        *mask = (0..ROWS).filter(sees).fold(0, |mask, r| mask | 1 << r);
    }
    for (rows, len) in cases() {
        for mask in [None, Some(&mask)] {
            for rescale in [Rescale::Exact, Rescale::Compensated] {
                for precision in [Precision::Bf16, Precision::Bf16x2] {
                    let run = Run {
                        mask,
                        rescale,
                        precision,
                        ..run(&q, &keys, &values, rows, len)
                    };
                    for way in ways() {
                        let Some(got) = way.with(stream(run)) else {
                            continue;
                        };
                        assert_eq!(got.streamed, Streamed::ALL);
                        for r in 0..rows {
                            check_row(&run, &got, r);
                        }
                    }
                }
            }
        }
    }
}

/// A row against the same in f64.
fn check_row(run: &Run<'_>, got: &After, r: usize) {
    // The scores' error, and that of P.
    let rounding = match run.precision {
        Precision::Bf16 => 2_f64.powi(-8),
        Precision::Bf16x2 => 2_f64.powi(-16),
    };
    check_row_to(run, got, r, rounding + 2e-5);
}

/// The same, to within `bound` of the values' sizes.
fn check_row_to(run: &Run<'_>, got: &After, r: usize, bound: f64) {
    let sees = |&k: &usize| run.mask.is_none_or(|mask| mask[k] >> r & 1 == 1);
    let seen: Vec<_> = (0..run.len)
        .filter(sees)
        .map(|k| (k, score(run, r, k)))
        .collect();
    let max = seen.iter().fold(f64::NEG_INFINITY, |max, s| max.max(s.1));
    let (state, reference) = (&got.state, f64::from(got.state.reference[r]));
    let o = |column: usize| got.o[column / STRIP][r][column % STRIP];
    if seen.is_empty() {
        assert_eq!((reference, state.sum[r]), (f64::NEG_INFINITY, 0.0));
        assert!((0..MAX_D_V).all(|column| o(column) == 0.0));
        return;
    }
    // What O and the sum are relative to.
    let (base, divisor) = match run.rescale {
        Rescale::Exact => {
            // The last step that moved it put it above the largest so far, and no later one had to.
            let mut largest = f64::NEG_INFINITY;
            let moved = seen.iter().any(|&(_, s)| {
                largest = largest.max(s);
                largest.ceil() + f64::from(HEADROOM) == reference
            });
            assert!(moved && max.ceil() <= reference, "{reference} {max}");
            (reference, f64::from(state.rounded_sum[r]))
        }
        Rescale::Compensated => {
            assert!((reference - max).abs() <= 1e-5);
            let fraction = (reference - reference.round_ties_even()).exp2();
            let sum = f64::from(state.sum[r]) * fraction * f64::from(state.c[r]);
            (reference, sum)
        }
    };
    let probs: Vec<_> = seen.iter().map(|&(k, s)| (k, (s - base).exp2())).collect();
    let sum: f64 = probs.iter().map(|p| p.1).sum();
    assert!((f64::from(state.sum[r]) / sum - 1.0).abs() <= 2e-5);
    for column in 0..MAX_D_V {
        let value = |k: usize| run.values[k * MAX_D_V + column].to_f64();
        let want = probs.iter().map(|&(k, p)| p * value(k)).sum::<f64>() / sum;
        let size = probs.iter().map(|&(k, p)| p * value(k).abs()).sum::<f64>() / sum;
        let error = (f64::from(o(column)) / divisor - want).abs();
        assert!(error <= bound * size, "{r} {column}: {error:e}");
    }
}

/// Rounding takes nothing from a row's largest P, or what it takes isn't lost; BF16 holds all others.
#[test]
fn streams_keep_the_largest_whole() {
    const LARGEST: f32 = 0.75;
    let values = numbers(31, BLOCK_KEYS * MAX_D_V);
    for (rows, len) in cases() {
        // Row r's scores are three of the keys' features, from 3r on, so that FP32 has all of them.
        let mut q = std::vec![bf16::ZERO; ROWS * MAX_D_QK];
        for r in 0..rows {
            q[r * MAX_D_QK + 3 * r..][..3].fill(bf16::ONE);
        }
        for way in ways() {
            // P is a power of two where a score is a whole number. Where products are weighed, P is relative to the largest, and one and a half
            // times a power of two, as powers would all be rounded like it if they weren't weighed.
            let whole = if way.shares_lanes(rows) {
                LARGEST + 1.5_f32.log2()
            } else {
                0.0
            };
            let mut keys = std::vec![bf16::ZERO; BLOCK_KEYS * MAX_D_QK];
            for r in 0..rows {
                let largest = (29 * r + 37) % len;
                for (k, key) in keys.chunks_mut(MAX_D_QK).take(len).enumerate() {
                    // Away from the largest they are so low that they don't count.
                    let below = (k + r) % 5 + if k / 16 == largest / 16 { 1 } else { 21 };
                    let score = whole - f32::from(u8::try_from(below).unwrap());
                    let mut rest = if k == largest { LARGEST } else { score };
                    for part in &mut key[3 * r..][..3] {
                        *part = bf16::from_f32(rest);
                        rest -= part.to_f32();
                    }
                }
            }
            let run = Run {
                scale: 1.0,
                ..run(&q, &keys, &values, rows, len)
            };
            let Some(got) = way.with(stream(run)) else {
                continue;
            };
            for r in 0..rows {
                check_row_to(&run, &got, r, 2_f64.powi(-16));
            }
        }
    }
}

/// Neither where a call begins nor what is asked for meanwhile shows.
#[test]
fn streams_go_on() {
    let (q, keys) = (
        numbers(53, ROWS * MAX_D_QK),
        numbers(55, BLOCK_KEYS * MAX_D_QK),
    );
    let values = numbers(57, BLOCK_KEYS * MAX_D_V);
    let next = numbers(59, 9 * MAX_D_QK);
    for (rows, len) in cases() {
        for rescale in [Rescale::Exact, Rescale::Compensated] {
            for precision in [Precision::Bf16, Precision::Bf16x2] {
                let run = Run {
                    rescale,
                    precision,
                    ..run(&q, &keys, &values, rows, len)
                };
                for way in ways() {
                    let Some(whole) = way.with(stream(run)) else {
                        continue;
                    };
                    let at = [way.step(rows), 128];
                    let at = at.into_iter().filter(|at| at % way.step(rows) == 0);
                    for at in at.filter(|&at| at < len) {
                        check_resumed(way, run, at, &next, &whole);
                    }
                }
            }
        }
    }
}

/// Nor whether other rows have a reference yet: a pool may take some rows of a group without the others.
#[test]
fn rows_that_see_nothing_do_not_show() {
    let (q, keys) = (
        numbers(89, ROWS * MAX_D_QK),
        numbers(91, BLOCK_KEYS * MAX_D_QK),
    );
    let values = numbers(93, BLOCK_KEYS * MAX_D_V);
    for (rows, len) in cases().filter(|case| case.0 > 1) {
        // The last row.
        let mask = [(1 << (rows - 1)) - 1; BLOCK_KEYS];
        for (rescale, precision) in [
            (Rescale::Exact, Precision::Bf16),
            (Rescale::Exact, Precision::Bf16x2),
            (Rescale::Compensated, Precision::Bf16),
        ] {
            let all = Run {
                rescale,
                precision,
                ..run(&q, &keys, &values, rows, len)
            };
            let some = Run {
                mask: Some(&mask),
                ..all
            };
            for way in ways() {
                let (Some(got), Some(want)) = (way.with(stream(some)), way.with(stream(all)))
                else {
                    continue;
                };
                for (got, want) in got.o.iter().zip(&want.o) {
                    assert!(got[..rows - 1] == want[..rows - 1], "{way:?} {rows} {len}");
                }
                for (got, want) in fields(&got.state).iter().zip(fields(&want.state)) {
                    assert_eq!(got[..rows - 1], want[..rows - 1]);
                }
            }
        }
    }
}

/// With few rows processors differ in what memory is asked for, and in whether dots or multiply-adds of widened numbers are
/// taken, and not in a bit of the results.
#[test]
fn what_is_asked_for_does_not_show() {
    let (q, keys) = (
        numbers(67, ROWS * MAX_D_QK),
        numbers(69, BLOCK_KEYS * MAX_D_QK),
    );
    let values = numbers(71, BLOCK_KEYS * MAX_D_V);
    let mut other = ways().filter(|way| way.asking != Asking::L2).peekable();
    if other.peek().is_none() {
        std::eprintln!("other ways to ask memory NOT RUN: no backend here has several");
    }
    for way in other {
        let alike = |rows| rows <= way.limit() && way.step(rows) == way.usual().step(rows);
        for (rows, len) in cases().filter(|case| alike(case.0)) {
            for (rescale, precision) in [
                (Rescale::Exact, Precision::Bf16),
                (Rescale::Exact, Precision::Bf16x2),
                (Rescale::Compensated, Precision::Bf16),
            ] {
                let run = Run {
                    rescale,
                    precision,
                    ..run(&q, &keys, &values, rows, len)
                };
                let got = [way, way.usual()].map(|way| way.with(stream(run)));
                let [one, other] = got.map(Option::unwrap);
                assert!(one.o == other.o, "{rows} {len}");
                assert_eq!(fields(&one.state), fields(&other.state));
            }
        }
    }
}

/// Narrow keys and values have kernels of their own: the bits of wide ones whose other columns are zeros.
#[test]
fn narrow_streams_are_what_wide_ones_begin_with() {
    narrow::<512, 512>();
    narrow::<320, 256>();
    narrow::<192, 128>();
    narrow::<64, 64>();
}

fn narrow<const D_QK: usize, const D_V: usize>() {
    let mut q = numbers(73, ROWS * MAX_D_QK);
    for q in q.chunks_mut(MAX_D_QK) {
        q[D_QK..].fill(bf16::ZERO);
    }
    let keys = numbers(75, BLOCK_KEYS * MAX_D_QK);
    let values = numbers(77, BLOCK_KEYS * MAX_D_V);
    for (rows, len) in cases() {
        for precision in [Precision::Bf16, Precision::Bf16x2] {
            let run = Run {
                precision,
                ..run(&q, &keys, &values, rows, len)
            };
            for way in ways() {
                let (Some(got), Some(want)) =
                    (way.with(begun::<D_QK, D_V>(run)), way.with(stream(run)))
                else {
                    continue;
                };
                assert_eq!(got.streamed, Streamed::ALL);
                assert!(got.o == want.o[..D_V / STRIP], "{way:?} {rows} {len}");
                assert_eq!(fields(&got.state), fields(&want.state));
            }
        }
    }
}

/// The `whole` in two calls.
fn check_resumed(way: Way, run: Run<'_>, at: usize, next: &[bf16], whole: &After) {
    let first = way.with(stream(Run { len: at, ..run }));
    let second = way.with(Stream {
        from: at,
        next,
        before: first.as_ref(),
        ..stream(run)
    });
    let (got, want) = (second.unwrap(), whole);
    assert!(got.o == want.o, "{way:?} {} {at}", run.rows);
    assert_eq!(fields(&got.state), fields(&want.state));
}

fn fields(state: &RowState) -> [[f32; PANEL_ROWS]; 5] {
    let RowState {
        sum,
        rounded_sum,
        reference,
        c,
        factor,
        ..
    } = *state;
    [sum, rounded_sum, reference, c, factor]
}

/// A stream ends with the keys among whose values one isn't finite, and leaves that strip to its caller.
#[test]
fn streams_stop_where_values_are_not_finite() {
    let (q, keys) = (
        numbers(61, ROWS * MAX_D_QK),
        numbers(63, BLOCK_KEYS * MAX_D_QK),
    );
    let values = numbers(65, BLOCK_KEYS * MAX_D_V);
    for (rows, len) in cases() {
        for (rescale, precision) in [
            (Rescale::Exact, Precision::Bf16),
            (Rescale::Exact, Precision::Bf16x2),
            (Rescale::Compensated, Precision::Bf16),
        ] {
            let sound = Run {
                rescale,
                precision,
                ..run(&q, &keys, &values, rows, len)
            };
            // Each place has each value, in one or another number of rows.
            let places = [(0, 0), (len / 2, 63), (len - 1, 300), (len - 1, 511)];
            for (i, (key, column)) in places.into_iter().enumerate() {
                let bad = [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY][(rows + i) % 3];
                let mut broken = values.clone();
                broken[key * MAX_D_V + column] = bad;
                for way in ways() {
                    check_stop(way, &sound, &broken, key, column / STRIP);
                }
            }
        }
    }
}

/// Nor what lies behind the keys: C1 may compute on some of it.
#[test]
fn what_lies_behind_does_not_show() {
    let (q, keys) = (
        numbers(83, ROWS * MAX_D_QK),
        numbers(85, BLOCK_KEYS * MAX_D_QK),
    );
    let values = numbers(87, BLOCK_KEYS * MAX_D_V);
    let next = std::vec![bf16::NAN; 9 * MAX_D_QK];
    for (rows, len) in cases() {
        let usual = stream(run(&q, &keys, &values, rows, len));
        let other = Stream {
            next: &next,
            ..usual
        };
        for way in ways() {
            let (Some(got), Some(want)) = (way.with(other), way.with(usual)) else {
                continue;
            };
            assert_eq!(got.streamed, Streamed::ALL);
            assert!(got.o == want.o, "{way:?} {rows} {len}");
            assert_eq!(fields(&got.state), fields(&want.state));
        }
    }
}

/// Values that keys begin with are as good as others, finite or not, seen or not.
#[test]
fn streams_of_latent_values_are_the_same() {
    let q = numbers(79, ROWS * MAX_D_QK);
    let sound = numbers(81, BLOCK_KEYS * MAX_D_QK);
    // Behind whole vectors of keys is nothing that isn't a value.
    for (rows, len) in cases().filter(|case| case.1.is_multiple_of(STREAM_MULTIPLE)) {
        // Pairs of keys beside each other are looked at apart.
        let places = [(0, 0), (2, 70), (5, 200), (len / 2, 300), (len - 1, 530)].map(Some);
        for bad in [None].into_iter().chain(places) {
            let mut keys = sound.clone();
            let mut hidden = [u64::MAX; BLOCK_KEYS];
            if let Some((key, column)) = bad {
                keys[key * MAX_D_QK + column] = [bf16::NAN, bf16::INFINITY][rows % 2];
                hidden[key] = 0;
            }
            let rows_of = keys.chunks(MAX_D_QK).map(|key| &key[..MAX_D_V]);
            let values = rows_of.collect::<Vec<_>>().concat();
            for (mask, rescale, precision) in [
                (None, Rescale::Exact, Precision::Bf16),
                (Some(&hidden), Rescale::Exact, Precision::Bf16),
                (Some(&hidden), Rescale::Exact, Precision::Bf16x2),
                (Some(&hidden), Rescale::Compensated, Precision::Bf16),
            ] {
                let run = Run {
                    mask,
                    rescale,
                    precision,
                    ..run(&q, &keys, &values, rows, len)
                };
                ways().for_each(|way| check_latent(way, run, bad));
            }
        }
    }
}

fn check_latent(way: Way, run: Run<'_>, bad: Option<(usize, usize)>) {
    let apart = stream(run);
    let latent = Stream {
        latent: true,
        ..apart
    };
    let (Some(got), Some(want)) = (way.with(latent), way.with(apart)) else {
        return;
    };
    assert_eq!(got.streamed, want.streamed, "{way:?} {} {bad:?}", run.rows);
    let strips = bad.map_or(0, |(_, column)| u32::from(column < MAX_D_V));
    assert_eq!(got.streamed.left.all.count_ones(), strips);
    let same = |a: &f32, b: &f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let all = |x: &After| x.o.as_flattened().as_flattened().to_vec();
    let state = |x: &After| {
        fields(&x.state)
            .map(|row| row[..run.rows].to_vec())
            .concat()
    };
    let p = |x: &After| x.p.iter().flat_map(|p| p[..run.rows].to_vec()).collect();
    for of in [&all as &dyn Fn(&After) -> Vec<f32>, &state, &p] {
        let (got, want) = (of(&got), of(&want));
        assert!(
            got.iter().zip(&want).all(|(a, b)| same(a, b)),
            "{way:?} {bad:?}"
        );
    }
    if run.mask.is_some() {
        assert!(all(&got).iter().all(|x| x.is_finite()), "{way:?} {bad:?}");
    }
}

/// `broken` values differ from those of `sound` in one key's strip.
fn check_stop(way: Way, sound: &Run<'_>, broken: &[bf16], key: usize, strip: usize) {
    let upto = |values, len| {
        let run = Run {
            values,
            len,
            ..*sound
        };
        way.with(stream(run))
    };
    let Some(got) = upto(broken, sound.len) else {
        return;
    };
    let done = got.streamed.keys.clone();
    assert!(done.contains(&key), "{way:?} {key} {done:?}");
    let (all, tail) = (1 << strip, 0);
    assert_eq!(got.streamed.left, Left { all, tail });
    // The other strips are through with these keys; this one was rescaled and nothing else.
    let mut want = upto(sound.values, done.end).unwrap().o;
    let before = (done.start > 0).then(|| upto(sound.values, done.start).unwrap().o);
    for r in 0..sound.rows {
        let increment = Increment::from_bits_clamped(got.state.increment[r]);
        let before = before.as_ref().map_or([0.0; STRIP], |o| o[strip][r]);
        want[strip][r] = before.map(|x| add_increment_f32(x, increment));
    }
    assert!(got.o == want, "{way:?} {done:?} {strip}");
    // And P is these keys'.
    let bound = match sound.precision {
        Precision::Bf16 => 2_f64.powi(-8),
        Precision::Bf16x2 => 2_f64.powi(-16) + 2e-5,
    };
    for (k, p) in done.zip(&got.p) {
        for (r, &p) in p[..sound.rows].iter().enumerate() {
            let mut want = (score(sound, r, k) - f64::from(got.state.reference[r])).exp2();
            if sound.rescale == Rescale::Compensated {
                want *= f64::from(got.state.factor[r]);
            }
            let error = (f64::from(p) - want).abs();
            assert!(error <= bound * want, "{way:?} {r} {k}: {error:e}");
        }
    }
}

/// A score in log2 units, in f64.
fn score(run: &Run<'_>, r: usize, k: usize) -> f64 {
    let (q, key) = (&run.q[r * MAX_D_QK..], &run.keys[k * MAX_D_QK..]);
    let products = q.iter().zip(key).take(MAX_D_QK);
    let sum: f64 = products.map(|(q, k)| q.to_f64() * k.to_f64()).sum();
    sum * f64::from(run.scale)
}
