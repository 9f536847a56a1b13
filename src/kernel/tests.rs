//! Stage by stage, every backend against the portable one and against scalar code
//! written here.

extern crate std;

#[path = "../../tests/common/precision.rs"]
mod precision;
mod stream;

use std::boxed::Box;
use std::format;
use std::vec::Vec;

use half::bf16;

use super::{
    Backend, BackendId, Close, Kernel, Left, Mask, Maxima, Pv, Rows, Softmax, Visitor, half_of,
};
use crate::bits::{HEADROOM, Increment, add_increment_f32, bf16_round, bf16_to_f32, one_nan};
use crate::problem::{Precision, Rescale};
use crate::tile::{
    BLOCK_KEYS, MAX_D_QK, MAX_D_V, OStrip, PANEL_ROWS, Residuals, RowState, STRIP, Tile, Tiles,
    Workspace, ascend,
};

const STRIPS: usize = MAX_D_V / STRIP;

/// Numbers between -1 and 1 with all BF16 bits in use.
fn numbers(seed: u32, n: usize) -> Vec<bf16> {
    let mut state = seed | 1;
    core::iter::repeat_with(|| {
        state = state.wrapping_mul(0x915f_77f5).wrapping_add(0x0d2e_4f1b);
        bf16::from_f32(f32::from(u16::try_from(state >> 16).unwrap()) / 32768.0 - 1.0)
    })
    .take(n)
    .collect()
}

/// Everything that one block leaves in its tiles.
struct Stages {
    tiles: Box<Workspace>,
    /// P as C2 takes it, keys x rows.
    p: Vec<[f32; PANEL_ROWS]>,
    o: Vec<OStrip>,
    non_finite: bool,
    /// What it left out.
    packed: Left,
    /// Whether the rows are so few that C1 sums in another order.
    few: bool,
    /// The same from unpacked values, and what was left out, where the backend
    /// offers it for so few rows.
    direct: Option<(Vec<OStrip>, Left)>,
    /// The same as the first of several panels whose C2 is one.
    together: Option<(Vec<OStrip>, Left)>,
    /// What V1 begins with, if C1 says so.
    maxima: Option<Maxima>,
}

/// Runs all stages on one panel and block.
#[derive(Clone, Copy)]
struct Run<'a> {
    q: &'a [bf16],
    keys: &'a [bf16],
    values: &'a [bf16],
    rows: usize,
    len: usize,
    scale: f32,
    mask: Option<&'a Mask>,
    rescale: Rescale,
    precision: Precision,
    increment: Option<&'a [i32; PANEL_ROWS]>,
}

impl Visitor for Run<'_> {
    type Output = Stages;

    fn visit<K: Kernel>(self, kernel: K) -> Stages {
        let mut tiles: Box<Workspace> = bytemuck::zeroed_box();
        let Tiles {
            l1,
            l0a,
            l0b,
            l0c,
            ub,
            ..
        } = &mut tiles.tiles;
        // Whatever lies there doesn't matter, NaN neither.
        l1.v = [[Tile([[u32::MAX; _]; _]); _]; _];
        (l0a.high, l0a.low) = (Tile([[u32::MAX; _]; _]), Tile([[u32::MAX; _]; _]));
        *l0b = [Tile([[f32::NAN; _]; _]); _];
        *l0c = [Tile([[f32::NAN; _]; _]); _];
        let q: Vec<_> = self.q.chunks(MAX_D_QK).take(self.rows).collect();
        let (mut keys, mut values) = (Rows::NONE, Rows::NONE);
        keys.gather(self.keys.chunks(MAX_D_QK).take(self.len));
        values.gather(self.values.chunks(MAX_D_V).take(self.len));
        kernel.pack_q::<MAX_D_QK>(&q, false, &mut l1.q[0]);
        let non_finite = kernel.pack_v::<MAX_D_V>(values.as_slice(), 0, keys.as_slice(), &mut l1.v);
        let maxima = kernel.qk::<MAX_D_QK>(&l1.q[0], self.rows, &keys, &[], l0b, &mut l0c[0]);
        ub[0] = RowState::START;
        let call = Softmax {
            rows: self.rows,
            keys: self.len,
            scale: self.scale,
            mask: self.mask,
            maxima: maxima.as_ref(),
            rescale: self.rescale,
            precision: self.precision,
            next: keys.as_slice(),
        };
        kernel.softmax(&call, &l0c[0], l0a, &mut ub[0]);
        let prob = |k| core::array::from_fn(|r| kernel.prob(l0a, self.precision, k, r));
        let p = (0..self.len).map(prob).collect();
        let call = Pv {
            rows: self.rows,
            group_rows: self.rows,
            keys: self.len,
            precision: self.precision,
            increment: self.increment,
            next: keys.as_slice(),
        };
        let start: Vec<OStrip> = std::vec![[[0.75; STRIP]; PANEL_ROWS]; STRIPS];
        let mut o = start.clone();
        kernel.settle(&mut o, self.rows, true);
        let packed = kernel.pv::<MAX_D_V>(&call, l0a, &l1.v, l0b, &mut o);
        kernel.settle(&mut o, self.rows, false);
        let direct = (self.rows <= K::DIRECT_ROWS).then(|| {
            let mut o = start.clone();
            kernel.settle(&mut o, self.rows, true);
            let left = kernel.pv_direct::<MAX_D_V>(&call, l0a, &values, l0b, &mut o);
            kernel.settle(&mut o, self.rows, false);
            (o, left)
        });
        let together = (K::PANELS_TOGETHER && self.rows == PANEL_ROWS).then(|| {
            const OTHERS: usize = 7;
            let strips = start.len();
            let mut o = start.repeat(3);
            let others = Pv {
                rows: OTHERS,
                ..call
            };
            let calls = [call, others, others];
            let left = kernel.pv_panels::<MAX_D_V>(&calls, &[&*l0a; 3], &values, l0b, &mut o);
            let others = o.split_off(strips);
            for (strip, other) in others.iter().enumerate() {
                let strip = strip % strips;
                let bits = |o: &[[f32; STRIP]]| -> Vec<u32> {
                    o.as_flattened().iter().map(|x| x.to_bits()).collect()
                };
                assert_eq!(bits(&other[..OTHERS]), bits(&o[strip][..OTHERS]));
                assert_eq!(bits(&other[OTHERS..]), bits(&start[strip][OTHERS..]));
            }
            (o, left)
        });
        Stages {
            tiles,
            p,
            o,
            non_finite,
            packed,
            // Features in the lanes: these read keys in the order in which they ask for them.
            few: self.rows <= K::ASKING_ROWS && K::lead(self.rows) < BLOCK_KEYS,
            direct,
            together,
            maxima,
        }
    }
}

/// Those that the processor can run, or of them the one that `AMLA_TEST_BACKEND` names
/// (`tests/common/mod.rs`).
fn backends() -> impl Iterator<Item = Backend> {
    let chosen = std::env::var("AMLA_TEST_BACKEND").unwrap_or_default();
    Backend::permit_amx();
    BackendId::ALL
        .into_iter()
        .filter(move |id| chosen.is_empty() || chosen == id.name())
        .filter_map(|id| Backend::request(id).ok())
}

/// Whether the backend keeps P in FP32.
fn keeps_p_whole(backend: Backend) -> bool {
    !matches!(
        backend.id(),
        BackendId::Avx512Bf16 | BackendId::Amx | BackendId::NeonBf16
    )
}

/// Whether P is relative to the block's largest, and C2 weighs its products (`docs/adr/0035`).
fn weighs_products(backend: Backend) -> bool {
    matches!(backend.id(), BackendId::Avx512Bf16 | BackendId::NeonBf16)
}

/// Whether the largest P is in two parts where it counts.
fn splits_the_largest(backend: Backend) -> bool {
    !keeps_p_whole(backend) && !weighs_products(backend)
}

/// `sum` and the products of a pair, as the backend's dots add them.
fn add_pair(backend: Backend, sum: f32, [odd, even]: [f32; 2]) -> f32 {
    match backend.id() {
        BackendId::NeonBf16 => add_to_odd(sum, add_to_odd(odd, even)),
        _ => sum + odd + even,
    }
}

/// `sum` and products by pairs, 16 of those at a time, as tiles add them: the odd ones and the even ones
/// apart.
fn add_tiles(mut sum: f32, mut products: impl Iterator<Item = [f32; 2]>) -> f32 {
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

/// The shapes at which tiles have edges: `(rows, keys)`.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    let fit = |&(rows, keys): &_| rows <= PANEL_ROWS && keys <= BLOCK_KEYS;
    let few = (9..30).map(|rows| (rows, 3 * rows - 20));
    few.chain(SHAPES).filter(fit)
}

const SHAPES: [(usize, usize); 15] = [
    (1, 1),
    (2, 65),
    (3, 2),
    (4, 130),
    (5, BLOCK_KEYS),
    (6, 64),
    (7, 33),
    (8, Left::TAIL - 1),
    (33, 97),
    (48, 191),
    (63, 192),
    (64, 12),
    (PANEL_ROWS / 2 + 1, BLOCK_KEYS / 2 + 1),
    (PANEL_ROWS - 1, BLOCK_KEYS - 1),
    (PANEL_ROWS, BLOCK_KEYS),
];

#[test]
fn scores_have_the_same_bits_everywhere_but_in_few_rows() {
    let (q, keys) = (numbers(1, 64 * MAX_D_QK), numbers(2, BLOCK_KEYS * MAX_D_QK));
    let values = numbers(3, BLOCK_KEYS * MAX_D_V);
    for (rows, len) in shapes() {
        for backend in backends() {
            let got = backend.with(run(&q, &keys, &values, rows, len));
            for r in 0..rows {
                for k in 0..len {
                    let product =
                        |i: usize| q[r * MAX_D_QK + i].to_f32() * keys[k * MAX_D_QK + i].to_f32();
                    let score = got.tiles.tiles.l0c[0].0[k][r];
                    if got.few {
                        // A sum of exact products in any order, 128 additions deep at most.
                        let products = (0..MAX_D_QK).map(product).map(f64::from);
                        let want: f64 = products.clone().sum();
                        let bound = 2_f64.powi(-17) * products.map(f64::abs).sum::<f64>();
                        assert!(
                            (f64::from(score) - want).abs() <= bound,
                            "{backend:?} {r} {k}"
                        );
                        continue;
                    }
                    // Exact products; of a pair, the odd one first.
                    let pairs = |start: usize, len: usize| {
                        let pairs = (start..start + len).step_by(2);
                        pairs.map(|pair| [product(pair + 1), product(pair)])
                    };
                    let want = if backend.id() == BackendId::Amx {
                        add_tiles(0.0, pairs(0, MAX_D_QK))
                    } else {
                        let mut want = 0.0;
                        for start in (0..MAX_D_QK).step_by(ascend::BASE_K) {
                            let mut chunk = 0.0;
                            for products in pairs(start, ascend::BASE_K) {
                                chunk = add_pair(backend, chunk, products);
                            }
                            want += chunk;
                        }
                        want
                    };
                    assert_eq!(score.to_bits(), f32::to_bits(want), "{backend:?} {r} {k}");
                }
            }
        }
    }
}

/// C1 of keys wherever they lie.
struct Scores<'a, const D_QK: usize> {
    q: &'a [bf16],
    rows: usize,
    keys: &'a [&'a [bf16]],
}

impl<const D_QK: usize> Visitor for Scores<'_, D_QK> {
    type Output = Vec<[f32; PANEL_ROWS]>;

    fn visit<K: Kernel>(self, kernel: K) -> Self::Output {
        let mut workspace: Box<Workspace> = bytemuck::zeroed_box();
        let Tiles { l1, l0b, l0c, .. } = &mut workspace.tiles;
        let q: Vec<_> = self.q.chunks(D_QK).take(self.rows).collect();
        let mut keys = Rows::NONE;
        keys.gather(self.keys.iter().copied());
        kernel.pack_q::<D_QK>(&q, false, &mut l1.q[0]);
        kernel.qk::<D_QK>(&l1.q[0], self.rows, &keys, &[], l0b, &mut l0c[0]);
        l0c[0].0[..self.keys.len()].to_vec()
    }
}

fn keys_may_lie_anywhere<const D_QK: usize>() {
    const LINE: usize = 32;
    let q = numbers(31, PANEL_ROWS * D_QK);
    let memory = numbers(32, 2 * BLOCK_KEYS * D_QK + 2 * LINE);
    let line = memory.as_ptr().align_offset(64);
    // Where the n-th key lies; the rest are distances that some have, or none.
    let places: [&dyn Fn(usize) -> usize; 8] = [
        &|n| n,
        &|n| 2 * n,
        &|n| BLOCK_KEYS - 1 - n,
        &|_| 7,
        &|n| if n < 16 { n } else { 2 * n - 16 },
        &|n| if n % 32 < 16 { n } else { n ^ 15 },
        &|n| 37 * n % BLOCK_KEYS,
        &|n| if n == BLOCK_KEYS / 2 { 0 } else { n },
    ];
    for backend in backends() {
        for (rows, len) in [(5, 16), (48, 100), (64, 192)] {
            let (rows, len) = (rows.min(PANEL_ROWS), len.min(BLOCK_KEYS));
            for (start, place) in [0, 8]
                .iter()
                .flat_map(|s| places.map(|place| (line + s, place)))
            {
                let key = |n| &memory[start + place(n) * D_QK..][..D_QK];
                let keys: Vec<_> = (0..len).map(key).collect();
                let copies: Vec<Vec<_>> = keys.iter().map(|key| key.to_vec()).collect();
                let apart: Vec<_> = copies.iter().map(|key| &key[..]).collect();
                let q = &q;
                let scores = |keys| backend.with(Scores::<D_QK> { q, rows, keys });
                let (got, want) = (scores(&keys), scores(&apart));
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(got[..rows], want[..rows], "{backend:?} {rows} {len}");
                }
            }
        }
    }
}

#[test]
fn keys_lie_anywhere() {
    keys_may_lie_anywhere::<MAX_D_QK>();
    keys_may_lie_anywhere::<320>();
}

#[test]
fn maxima_are_those_of_the_scores() {
    let (q, mut keys) = (numbers(4, 64 * MAX_D_QK), numbers(5, BLOCK_KEYS * MAX_D_QK));
    let values = numbers(6, BLOCK_KEYS * MAX_D_V);
    // NaN doesn't count, and infinity does.
    for (key, bad) in [
        (0, bf16::NAN),
        (7, bf16::INFINITY),
        (BLOCK_KEYS - 2, bf16::NAN),
    ] {
        keys[key * MAX_D_QK + 100] = bad;
    }
    for (rows, len) in shapes() {
        for backend in backends() {
            let got = backend.with(run(&q, &keys, &values, rows, len));
            let Some(maxima) = got.maxima else { continue };
            for (r, max) in maxima[..rows].iter().enumerate() {
                let scores = got.tiles.tiles.l0c[0].0[..len].iter().map(|s| s[r]);
                let want = scores.fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(*max, want, "{backend:?} {rows} {len} {r}");
            }
        }
    }
}

fn run<'a>(
    q: &'a [bf16],
    keys: &'a [bf16],
    values: &'a [bf16],
    rows: usize,
    len: usize,
) -> Run<'a> {
    Run {
        q,
        keys,
        values,
        rows,
        len,
        scale: 0.3,
        mask: None,
        rescale: Rescale::Exact,
        precision: Precision::Bf16,
        increment: None,
    }
}

#[test]
fn probabilities_and_sums() {
    let (q, keys) = (numbers(4, 64 * MAX_D_QK), numbers(5, BLOCK_KEYS * MAX_D_QK));
    let values = numbers(6, BLOCK_KEYS * MAX_D_V);
    // Row r sees the first 7 r % 190 keys, and none that 5 divides.
    let mut mask = [0; BLOCK_KEYS];
    for (k, mask) in mask.iter_mut().enumerate() {
        let rows = (0..PANEL_ROWS).filter(|r| k < 7 * r % 190 && k % 5 != 0);
        *mask = rows.fold(0, |mask, r| mask | 1 << r);
    }
    for (rows, len) in shapes() {
        for mask in [None, Some(&mask)] {
            for precision in [Precision::Bf16, Precision::Bf16x2] {
                for backend in backends() {
                    let got = backend.with(Run {
                        mask,
                        precision,
                        ..run(&q, &keys, &values, rows, len)
                    });
                    // What P is rounded to, on top of the exponential.
                    let rounding = match (keeps_p_whole(backend), precision) {
                        (true, _) => 0.0,
                        (false, Precision::Bf16) => 2_f64.powi(-8),
                        (false, Precision::Bf16x2) => 2_f64.powi(-17),
                    };
                    check_softmax(&got, rows, mask, rounding);
                }
            }
        }
    }
}

/// Exact mode against its definition, in f64.
#[expect(clippy::needless_range_loop, reason = "r and k index several arrays")]
fn check_softmax(got: &Stages, rows: usize, mask: Option<&Mask>, rounding: f64) {
    let (tiles, len) = (&got.tiles.tiles, got.p.len());
    let (s, state) = (&tiles.l0c[0].0, &tiles.ub[0]);
    for r in 0..rows {
        let sees = |k: usize| mask.is_none_or(|mask| mask[k] >> r & 1 == 1);
        let score = |k: usize| f64::from(s[k][r]) * f64::from(0.3_f32);
        let seen = (0..len).filter(|&k| sees(k));
        let max = seen.map(score).fold(f64::NEG_INFINITY, f64::max);
        let reference = max.ceil() + f64::from(HEADROOM);
        assert_eq!(f64::from(state.reference[r]), reference);
        let (mut sum, mut rounded_sum) = (0.0, 0.0);
        for k in 0..len {
            let got = f64::from(got.p[k][r]);
            if !sees(k) {
                assert_eq!(got, 0.0);
                continue;
            }
            let t = score(k) - reference;
            let want = t.exp2();
            // The rounding of P, the polynomial, and the rounding of t.
            let bound = rounding + 2e-7 + t.abs() * 2_f64.powi(-23);
            assert!((got - want).abs() <= bound * want, "{got} {want}");
            sum += want;
            rounded_sum += got;
        }
        assert!((f64::from(state.sum[r]) - sum).abs() <= 5e-7 * sum);
        assert!((f64::from(state.rounded_sum[r]) - rounded_sum).abs() <= 5e-7 * rounded_sum);
    }
}

/// V1 of two blocks: P of either, and the sums after each.
struct TwoBlocks<'a>(&'a [[[f32; PANEL_ROWS]; BLOCK_KEYS]; 2], Precision);

impl Visitor for TwoBlocks<'_> {
    type Output = [(Vec<[f32; PANEL_ROWS]>, RowState); 2];

    fn visit<K: Kernel>(self, kernel: K) -> Self::Output {
        let Self(scores, precision) = self;
        let mut workspace: Box<Workspace> = bytemuck::zeroed_box();
        let Tiles { l0a, l0c, ub, .. } = &mut workspace.tiles;
        // What another call left.
        l0a.residuals.p = [0x3f80; _];
        l0a.weights = [7.0; _];
        ub[0] = RowState::START;
        scores.each_ref().map(|scores| {
            l0c[0].0 = *scores;
            let call = Softmax {
                rows: PANEL_ROWS,
                keys: BLOCK_KEYS,
                scale: 1.0,
                mask: None,
                maxima: None,
                rescale: Rescale::Exact,
                precision,
                next: &[],
            };
            kernel.softmax(&call, &l0c[0], l0a, &mut ub[0]);
            let prob = |k| core::array::from_fn(|r| kernel.prob(l0a, precision, k, r));
            ((0..BLOCK_KEYS).map(prob).collect(), ub[0])
        })
    }
}

#[test]
fn the_largest_is_whole_where_it_counts() {
    // A peak that carries each row, in another place; then nothing that counts.
    let mut scores = [
        [[-3.1; PANEL_ROWS]; BLOCK_KEYS],
        [[-9.3; PANEL_ROWS]; BLOCK_KEYS],
    ];
    for r in 0..PANEL_ROWS {
        scores[0][3 * r % BLOCK_KEYS][r] = 7.7;
        scores[1][5 * r % BLOCK_KEYS][r] = -8.7;
    }
    for precision in [Precision::Bf16, Precision::Bf16x2] {
        for backend in backends().filter(|&backend| !keeps_p_whole(backend)) {
            let blocks = backend.with(TwoBlocks(&scores, precision));
            let mut sum = [0.0_f64; PANEL_ROWS];
            for (p, state) in &blocks {
                for r in 0..PANEL_ROWS {
                    sum[r] += p.iter().map(|p| f64::from(p[r])).sum::<f64>();
                    let kept = f64::from(state.rounded_sum[r]);
                    // Equal terms round alike.
                    assert!(
                        (kept - sum[r]).abs() <= 2e-5 * sum[r],
                        "{backend:?} {precision:?} {r}: {kept} {}",
                        sum[r]
                    );
                }
            }
            if precision == Precision::Bf16 {
                let whole = |block: usize, place: usize| {
                    let (p, state) = &blocks[block];
                    (0..PANEL_ROWS).all(|r| {
                        let key = place * r % BLOCK_KEYS;
                        let want = (scores[block][key][r] - state.reference[r]).exp2();
                        (p[key][r] - want).abs() < 2e-5 * want
                    })
                };
                assert!(whole(0, 3), "{backend:?}");
                assert_eq!(whole(1, 5), !splits_the_largest(backend), "{backend:?}");
            }
        }
    }
}

/// V1 of a first block of so many keys: what rounding took, P and the sums.
struct OneBlock<'a>(&'a [[f32; PANEL_ROWS]; BLOCK_KEYS], usize);

impl Visitor for OneBlock<'_> {
    type Output = (Residuals, Vec<[f32; PANEL_ROWS]>, RowState);

    fn visit<K: Kernel>(self, kernel: K) -> Self::Output {
        let Self(scores, keys) = self;
        let mut workspace: Box<Workspace> = bytemuck::zeroed_box();
        let Tiles { l0a, l0c, ub, .. } = &mut workspace.tiles;
        ub[0] = RowState::START;
        l0c[0].0 = *scores;
        let call = Softmax {
            rows: PANEL_ROWS,
            keys,
            scale: 1.0,
            mask: None,
            maxima: None,
            rescale: Rescale::Exact,
            precision: Precision::Bf16,
            next: &[],
        };
        kernel.softmax(&call, &l0c[0], l0a, &mut ub[0]);
        let prob = |k| core::array::from_fn(|r| kernel.prob(l0a, Precision::Bf16, k, r));
        let probs = (0..keys).map(prob).collect();
        (l0a.residuals, probs, ub[0])
    }
}

#[test]
fn the_last_of_the_largest_is_whole() {
    // By rows: where the largest is, and that once more behind it.
    let places = |r: usize, len: usize| [5 * r % len, (5 * r + 3 * (r % 7)) % len];
    let lens = [1, 2, 3, 4, 7, 12, 65, BLOCK_KEYS - 1, BLOCK_KEYS];
    for len in lens.into_iter().filter(|&len| len <= BLOCK_KEYS) {
        // Behind the last key lies what counts for nothing.
        let mut scores = [[9.9; PANEL_ROWS]; BLOCK_KEYS];
        for (k, scores) in scores[..len].iter_mut().enumerate() {
            for (r, score) in scores.iter_mut().enumerate() {
                let largest = places(r, len).contains(&k);
                *score = if largest { 7.7 } else { -8.0 - (k % 5) as f32 };
            }
        }
        for backend in backends().filter(|&backend| !keeps_p_whole(backend)) {
            let (residuals, p, _) = backend.with(OneBlock(&scores, len));
            for r in 0..PANEL_ROWS {
                let last = places(r, len).into_iter().max().unwrap_or(0);
                let at = format!("{backend:?} {len} {r}");
                let want = (7.7_f32 - 11.0).exp2();
                assert!((p[last][r] - want).abs() < 2e-5 * want, "{at}");
                if !splits_the_largest(backend) {
                    // And so is any other as large.
                    for key in places(r, len) {
                        assert_eq!(p[key][r], p[last][r], "{at}");
                    }
                    assert_eq!(residuals.p[r], 0, "{at}");
                    continue;
                }
                assert_eq!(residuals.pair[r] as usize, last / 2, "{at}");
                let taken = half_of(residuals.p[r], last);
                let p = (7.7_f32 - 11.0).exp2();
                let want = p - bf16_to_f32(bf16_round(p));
                let off = bf16_to_f32(taken) - want;
                assert!(off.abs() < 0.005 * want.abs(), "{at}");
                assert_eq!(half_of(residuals.p[r], last + 1), 0, "{at}");
            }
        }
    }
}

#[test]
fn nan_is_nobodys_largest() {
    for (sign, len) in [(1.0, BLOCK_KEYS), (-1.0, BLOCK_KEYS), (1.0, 9), (-1.0, 9)] {
        // With bits that would be a key's number.
        let nan = f32::from_bits(0x7fc0_7f80).copysign(sign);
        let mut scores = [[-3.0; PANEL_ROWS]; BLOCK_KEYS];
        for r in 0..PANEL_ROWS {
            scores[11 * r % len][r] = 2.0;
            // Every other row has one.
            scores[7 * r % len][r] = if r % 2 == 0 { nan } else { -3.5 };
        }
        for backend in backends() {
            let (residuals, probs, state) = backend.with(OneBlock(&scores, len));
            for r in 0..PANEL_ROWS {
                let at = format!("{backend:?} {len} {r}");
                assert_eq!(probs[7 * r % len][r].is_nan(), r % 2 == 0, "{at}");
                assert_eq!(state.sum[r].is_nan(), r % 2 == 0, "{at}");
                // C2 reads that key's value.
                assert!(residuals.pair[r] as usize <= (len - 1) / 2, "{at}");
            }
        }
    }
}

#[test]
fn products_have_the_same_bits_everywhere() {
    let (q, keys) = (numbers(7, 64 * MAX_D_QK), numbers(8, BLOCK_KEYS * MAX_D_QK));
    let values = numbers(9, BLOCK_KEYS * MAX_D_V);
    let mut increments = [0; PANEL_ROWS];
    for (r, increment) in (0..).zip(increments.iter_mut()) {
        *increment = match r % 3 {
            0 => 0,
            1 => Increment::pow2(-r).bits(),
            _ => Increment::compensated(-1, 0.003).bits(),
        };
    }
    for (rows, len) in shapes() {
        for increment in [None, Some(&increments)] {
            for backend in backends() {
                let got = backend.with(Run {
                    increment,
                    ..run(&q, &keys, &values, rows, len)
                });
                assert!(!got.non_finite);
                assert_eq!(got.packed, Left::NOTHING);
                for r in 0..rows {
                    let start = increment.map_or(0.0, |increment| {
                        let increment = Increment::from_bits_clamped(increment[r]);
                        add_increment_f32(0.75, increment)
                    });
                    let mut p: Vec<f32> = got.p.iter().map(|p| p[r]).collect();
                    let l0a = &got.tiles.tiles.l0a;
                    let mut weight = 1.0;
                    if weighs_products(backend) {
                        weight = l0a.weights[r];
                        // Of which P keeps fewer bits than the division.
                        let before = |p: &mut f32| *p = bf16::from_f32(*p / weight).to_f32();
                        p.iter_mut().for_each(before);
                    }
                    // The largest P comes again at the end, with what rounding took from it.
                    let residual = splits_the_largest(backend).then(|| {
                        let word = l0a.residuals.p[r];
                        let largest =
                            2 * l0a.residuals.pair[r] as usize + usize::from(word > 0xffff);
                        let residual = bf16_to_f32(half_of(word, largest));
                        // Exact: together they have less than twice a BF16's bits.
                        p[largest] -= residual;
                        (largest, residual)
                    });
                    // Whether O is what these are added to at the end, not what they are added to at the beginning.
                    let apart = weighs_products(backend);
                    let begin = if apart { 0.0 } else { start };
                    for column in 0..MAX_D_V {
                        let (mut want, mut fused) = (begin, begin);
                        let product = |k: usize| match k < len {
                            true => (p[k], values[k * MAX_D_V + column].to_f32()),
                            false => (0.0, 0.0),
                        };
                        let pairs = (0..len).step_by(2);
                        let pairs = pairs.map(|pair| [product(pair + 1), product(pair)]);
                        if backend.id() == BackendId::Amx && rows <= 16 {
                            // A group of so few has 16 keys in a product, and O after them.
                            let terms = (0..len).map(product).map(|(p, v)| [0.0, p * v]);
                            want = start + add_tiles(0.0, terms);
                        } else if backend.id() == BackendId::Amx {
                            want = add_tiles(start, pairs.map(|terms| terms.map(|(p, v)| p * v)));
                        } else {
                            for terms in pairs {
                                want = add_pair(backend, want, terms.map(|(p, v)| p * v));
                                fused = terms.into_iter().fold(fused, |o, (p, v)| p.mul_add(v, o));
                            }
                        }
                        // What keeps P whole fuses, or doesn't; else all products are exact.
                        if let Some((largest, residual)) = residual {
                            let value = values[largest * MAX_D_V + column].to_f32();
                            (want, fused) =
                                (want + residual * value, residual.mul_add(value, want));
                        }
                        if apart {
                            (want, fused) =
                                (want.mul_add(weight, start), fused.mul_add(weight, start));
                        }
                        let got = got.o[column / STRIP][r][column % STRIP];
                        assert!(
                            [want.to_bits(), fused.to_bits()].contains(&got.to_bits()),
                            "{backend:?} {r} {column}: {got} {want}"
                        );
                    }
                    for (o, left) in [&got.direct, &got.together].into_iter().flatten() {
                        assert_eq!(*left, Left::NOTHING);
                        assert_eq!(o, &got.o, "{backend:?} {rows} {len}");
                    }
                    // What lies beyond the rows, or their tiles, is somebody else's.
                    let tile = if backend.id() == BackendId::Amx {
                        16
                    } else {
                        1
                    };
                    for r in rows.next_multiple_of(tile)..PANEL_ROWS {
                        assert_eq!(got.o[0][r], [0.75; STRIP]);
                    }
                }
            }
        }
    }
}

#[test]
fn who_packs_values_does_not_matter() {
    let (q, keys) = (
        numbers(17, 64 * MAX_D_QK),
        numbers(18, BLOCK_KEYS * MAX_D_QK),
    );
    let values = numbers(19, BLOCK_KEYS * MAX_D_V);
    let increments = [Increment::pow2(-1).bits(); PANEL_ROWS];
    let lens = [1, 33, 95, 96, 97, 130, 191, 192];
    for len in lens.into_iter().filter(|&len| len <= BLOCK_KEYS) {
        for (rows, increment) in [(5, None), (17, Some(&increments)), (64, Some(&increments))] {
            for precision in [Precision::Bf16, Precision::Bf16x2] {
                for backend in backends() {
                    let rows = rows.min(PANEL_ROWS);
                    let got = backend.with(Run {
                        precision,
                        increment,
                        ..run(&q, &keys, &values, rows, len)
                    });
                    for (o, left) in [&got.direct, &got.together].into_iter().flatten() {
                        assert_eq!(*left, Left::NOTHING);
                        for (o, want) in o.iter().zip(&got.o) {
                            assert_eq!(o[..rows], want[..rows], "{backend:?} {rows} {len}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn non_finite_values_are_seen() {
    let (q, keys) = (numbers(10, MAX_D_QK), numbers(11, BLOCK_KEYS * MAX_D_QK));
    for backend in backends() {
        let inner = Left::TAIL + 4;
        for (at, len) in [
            (0, 1),
            (511, 2),
            (512, 2),
            (inner * MAX_D_V + 77, inner + 1),
        ] {
            for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
                let mut values = numbers(12, BLOCK_KEYS * MAX_D_V);
                values[at] = bad;
                // Behind the block nobody looks.
                values[len * MAX_D_V] = bf16::NAN;
                let seen =
                    |values: &[bf16]| backend.with(run(&q, &keys, values, 1, len)).non_finite;
                assert!(seen(&values), "{backend:?} {at} {bad}");
                values[at] = bf16::MAX;
                assert!(!seen(&values));
            }
        }
    }
}

#[test]
fn strips_with_non_finite_values_are_left_alone() {
    const LEN: usize = Left::TAIL + 5;
    let (q, keys) = (
        numbers(13, 64 * MAX_D_QK),
        numbers(14, BLOCK_KEYS * MAX_D_QK),
    );
    let increments = [Increment::pow2(-1).bits(); PANEL_ROWS];
    let places = [
        (0, 0),
        (1, 63),
        (2, 64),
        (Left::TAIL - 1, 300),
        (Left::TAIL, 15),
        (LEN - 1, 511),
    ];
    let heights = (1..=9).chain([PANEL_ROWS]);
    for (backend, rows) in backends().flat_map(|b| heights.clone().map(move |r| (b, r))) {
        let run = |values: &[bf16], len: usize| {
            backend.with(Run {
                increment: Some(&increments),
                ..run(&q, &keys, values, rows, len)
            })
        };
        let mut values = numbers(15, BLOCK_KEYS * MAX_D_V);
        let clean = run(&values, LEN).o;
        for (i, (key, column)) in places.into_iter().enumerate() {
            for bad in [bf16::NAN, [bf16::INFINITY, bf16::NEG_INFINITY][i % 2]] {
                let good = core::mem::replace(&mut values[key * MAX_D_V + column], bad);
                let stages = run(&values, LEN);
                values[key * MAX_D_V + column] = good;
                let all = [stages.direct, stages.together];
                for (o, left) in all.into_iter().flatten() {
                    let bit = 1 << (column / STRIP);
                    assert_ne!((left.all | left.tail) & bit, 0, "{backend:?} {rows} {key}");
                    assert!(left.tail == 0 || key >= Left::TAIL);
                    for (i, o) in o.iter().enumerate() {
                        for r in 0..rows {
                            if left.all & 1 << i != 0 {
                                assert_eq!(o[r], [0.75; STRIP], "{backend:?} {rows} {key}");
                            } else if left.tail & 1 << i == 0 {
                                assert_eq!(o[r], clean[i][r], "{backend:?} {rows} {key} {i}");
                            } else {
                                check_first_half(&o[r], &run(&values, LEN), &values, i, r);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A row of a strip of O with the first half of the keys alone.
fn check_first_half(o: &[f32; STRIP], run: &Stages, values: &[bf16], strip: usize, r: usize) {
    for (i, &got) in o.iter().enumerate() {
        let product = |k: usize| {
            let value = values[k * MAX_D_V + strip * STRIP + i];
            f64::from(run.p[k][r]) * f64::from(value.to_f32())
        };
        let want: f64 = 0.375 + (0..Left::TAIL).map(product).sum::<f64>();
        assert!((f64::from(got) - want).abs() < 1e-4, "{got} {want}");
    }
}

#[test]
fn the_end_has_the_same_bits_everywhere() {
    struct End<'a>(Close<'a>, Option<&'a OStrip>, &'a OStrip);
    impl Visitor for End<'_> {
        /// The strip, and what was put.
        type Output = [OStrip; 2];
        fn visit<K: Kernel>(self, kernel: K) -> [OStrip; 2] {
            let Self(call, earlier, o) = self;
            let (mut o, mut put) = ([*o], [[[0.75; STRIP]; PANEL_ROWS]]);
            let mut before = earlier.map(|earlier| [*earlier]);
            // As C2 leaves them.
            for strip in before.iter_mut().chain([&mut o]) {
                kernel.settle(strip, call.rows.end, true);
            }
            let before = before.as_ref().map(|before| &before[0]);
            kernel.close(&call, before, &mut o[0], |r, row| put[0][r] = *row);
            let as_they_were = if call.settle {
                call.rows.start
            } else {
                call.rows.end
            };
            kernel.settle(&mut o, as_they_were, false);
            kernel.settle(&mut put, as_they_were, false);
            [o[0], put[0]]
        }
    }
    let strip = |seed: u32| -> OStrip {
        let all = numbers(seed, PANEL_ROWS * STRIP);
        let number = |i: usize| match i % 97 {
            0 => 0.0,
            1 => f32::INFINITY,
            2 => f32::NEG_INFINITY,
            3 => f32::from_bits(0x7fc0_1234),
            4 => f32::MIN_POSITIVE / 8.0,
            _ => all[i].to_f32(),
        };
        core::array::from_fn(|r| core::array::from_fn(|i| number(r * STRIP + i)))
    };
    let (o, earlier) = (strip(19), strip(20));
    let factor = core::array::from_fn(|r| [1.0, 1.003, 1.0, 0.5][r % 4]);
    let inverse = core::array::from_fn(|r| if r == 5 { f32::NAN } else { 0.3 });
    let moves = core::array::from_fn(|r| {
        [r % 3, r % 5].map(|n| Increment::pow2(-i32::try_from(n).unwrap()))
    });
    for (rows, earlier, inverse, settle) in [
        (0..PANEL_ROWS, None, None, true),
        (0..PANEL_ROWS, Some(&earlier), None, false),
        (0..PANEL_ROWS, Some(&earlier), Some(&inverse), true),
        (0..PANEL_ROWS / 2 + 1, None, Some(&inverse), true),
        (5..7, Some(&earlier), Some(&inverse), true),
    ] {
        let want = |r: usize, i: usize| {
            let mut x = o[r][i];
            if factor[r] != 1.0 {
                x = one_nan(x * factor[r]);
            }
            if let Some(earlier) = earlier {
                let moved = |x, n: Increment| match n {
                    Increment::NONE => x,
                    n => add_increment_f32(x, n),
                };
                let [before, own]: [Increment; 2] = moves[r];
                x = moved(earlier[r][i], before) + moved(x, own);
            }
            inverse.map_or(x, |inverse| one_nan(x * inverse[r]))
        };
        for backend in backends() {
            let call = Close {
                rows: rows.clone(),
                factor: &factor,
                moves: &moves,
                inverse,
                settle,
            };
            let [got, put] = backend.with(End(call, earlier, &o));
            for r in 0..PANEL_ROWS {
                for i in 0..STRIP {
                    let (want, written) = match rows.contains(&r) {
                        true => (want(r, i), want(r, i)),
                        false => (o[r][i], 0.75),
                    };
                    // Which NaN a sum is isn't said; a product's is.
                    let any = earlier.is_some() && inverse.is_none();
                    for (got, want) in [(got[r][i], want), (put[r][i], written)] {
                        let same =
                            got.to_bits() == want.to_bits() || any && got.is_nan() && want.is_nan();
                        assert!(same, "{backend:?} {rows:?} {r} {i}: {got} {want}");
                    }
                }
            }
        }
    }
}

/// Against the general way, which is tested against the formats' definitions.
#[test]
fn stored_rows_are_widened_alike() {
    use crate::format::{self, Row, Scales};

    struct Widen<'a>(Row<'a>, usize);
    impl Visitor for Widen<'_> {
        type Output = Vec<bf16>;
        fn visit<K: Kernel>(self, kernel: K) -> Vec<bf16> {
            let mut out = std::vec![bf16::ONE; self.1];
            kernel.widen(&self.0, &mut out);
            out
        }
    }
    let check = |row: Row<'_>, width: usize| {
        let mut want = std::vec![bf16::ONE; width];
        format::widen(&row, &mut want);
        for backend in backends() {
            let got = backend.with(Widen(row, width));
            for (got, want) in got.iter().zip(&want) {
                // Subnormal numbers may become zero, as in the dots.
                let zero = !want.is_normal() && want.is_finite() && got.to_bits() & 0x7fff == 0;
                let nan = want.is_nan() && got.is_nan();
                let same = got.to_bits() == want.to_bits();
                assert!(same || zero || nan, "{backend:?} {got:?} {want:?}");
            }
        }
    };
    let halves: Vec<_> = (0..=u16::MAX).map(half::f16::from_bits).collect();
    for width in [64, 192, 100] {
        for row in halves.chunks_exact(width) {
            check(Row::F16(row), width);
        }
    }
    let bytes: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    for scale in [1.0, 0.007_3, 1e30, f32::NAN, 0.0] {
        check(
            Row::Int8 {
                values: &bytes,
                scale,
            },
            256,
        );
    }
    // All codes in each tile, with and without the two NaNs.
    let codes: Vec<u8> = (0..=u8::MAX).cycle().take(512).collect();
    let numbers: Vec<u8> = codes.iter().map(|x| x & !1).collect();
    let rope: Vec<u8> = numbers.iter().copied().take(128).collect();
    let floats: Vec<u8> = [1.0_f32, 3e-3, 1e20, 0.0]
        .into_iter()
        .flat_map(f32::to_le_bytes)
        .collect();
    for values in [&codes, &numbers] {
        for width in [512, 576, 500] {
            let scales = Scales::F32(&floats);
            let rope = &rope;
            check(
                Row::Fp8 {
                    values,
                    scales,
                    rope,
                },
                width,
            );
        }
        let scales = Scales::E8m0(&[127, 0, 120, 254, 255, 130, 1, 9]);
        let (values, rope) = (&values[..448], &rope);
        check(
            Row::Fp8 {
                values,
                scales,
                rope,
            },
            512,
        );
    }
}

/// The largest errors of the stages, over all shapes, against scalar code in f64. The table is
/// of the default tiles: with small ones sums are shorter, and some exceptions aren't needed.
#[test]
#[cfg_attr(amla_tiles = "small", ignore = "the table is of the default tiles")]
fn stages_are_as_exact_as_the_table_says() {
    use precision::{Stage, check};

    let (q, keys) = (
        numbers(16, 64 * MAX_D_QK),
        numbers(17, BLOCK_KEYS * MAX_D_QK),
    );
    let values = numbers(18, BLOCK_KEYS * MAX_D_V);
    for backend in backends() {
        for (mode, precision) in [("bf16", Precision::Bf16), ("bf16x2", Precision::Bf16x2)] {
            let mut worst = Worst::default();
            for (rows, len) in shapes() {
                let run = Run {
                    precision,
                    ..run(&q, &keys, &values, rows, len)
                };
                worst.take(&run, &backend.with(run));
            }
            let name = backend.id().name();
            check(Stage::Scores, mode, name, worst.scores);
            check(Stage::Probabilities, mode, name, worst.probabilities);
            check(Stage::Sums, mode, name, worst.sums);
            check(Stage::Products, mode, name, worst.products);
        }
    }
}

/// The largest errors seen so far, each against exact results of what the stage was given.
#[derive(Default)]
struct Worst {
    scores: f64,
    probabilities: f64,
    sums: f64,
    products: f64,
}

impl Worst {
    fn take(&mut self, run: &Run<'_>, got: &Stages) {
        let (tiles, state) = (&got.tiles.tiles, &got.tiles.tiles.ub[0]);
        let relative = |worst: f64, got: f32, want: f64, scale: f64| {
            worst.max((f64::from(got) - want).abs() / scale)
        };
        for r in 0..run.rows {
            let q = &run.q[r * MAX_D_QK..][..MAX_D_QK];
            let (mut sum, mut kept) = (0.0, 0.0);
            for k in 0..run.len {
                let key = &run.keys[k * MAX_D_QK..][..MAX_D_QK];
                let score = tiles.l0c[0].0[k][r];
                let products = q.iter().zip(key).map(|(q, k)| q.to_f64() * k.to_f64());
                let (want, scale) = sums(products);
                self.scores = relative(self.scores, score, want, scale);
                let scaled = f64::from(score) * f64::from(run.scale);
                let p = (scaled - f64::from(state.reference[r])).exp2();
                self.probabilities = relative(self.probabilities, got.p[k][r], p, p);
                sum += p;
                kept += f64::from(got.p[k][r]);
            }
            self.sums = relative(self.sums, state.sum[r], sum, sum);
            self.sums = relative(self.sums, state.rounded_sum[r], kept, kept);
            for column in 0..MAX_D_V {
                let products = (0..run.len)
                    .map(|k| f64::from(got.p[k][r]) * run.values[k * MAX_D_V + column].to_f64());
                let (want, scale) = sums(products);
                let o = got.o[column / STRIP][r][column % STRIP];
                self.products = relative(self.products, o, want, scale);
            }
        }
    }
}

/// Of numbers, and of their magnitudes.
fn sums(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    numbers.fold((0.0, 0.0), |(sum, magnitudes), x| {
        (sum + x, magnitudes + x.abs())
    })
}
