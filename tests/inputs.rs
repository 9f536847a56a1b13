//! Inputs of more than BF16 holds, unrounded: FP16, FP32 and ggml's blocks, by themselves, mixed with each other and
//! with the formats that store BF16 in less. Against Golden of the given numbers on every backend: one that multiplies
//! BF16 leaves such calls to the FP32 backend of its processor, unless numbers may be rounded.

#[macro_use]
mod common;
#[path = "common/hosts.rs"]
#[allow(dead_code, reason = "other suites use the rest")]
mod host;
#[path = "../fuzz/src/rows.rs"]
#[allow(dead_code, reason = "fuzz targets use the rest")]
mod rows;
#[path = "common/stored.rs"]
#[allow(dead_code, reason = "FP8 has a suite of its own")]
mod stored;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use amla::{
    Backend, Data, Extra, IndexList, Indices, Inputs, Options, Pages, Precision, Problem, Rescale,
    Sparse, TensorRef,
};
use common::{close, frobenius, modes, normal, stores_p_in_fp32};
use half::bf16;
use host::{Host, Keys, Layout, PLAIN, Rows, combined, decoded, golden, paged, same};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use stored::Format::{self, Bf16, E4m3, F16, F32, Int8, Q4_0, Q8_0};
use stored::Stored;

suites![
    every_size,
    bits_of_the_same_numbers,
    uniform_numbers,
    mixtures,
    split_tensors,
    chosen_keys,
    values_that_are_not_finite,
    scores_that_are_not_finite,
    rounded_where_wanted,
    rounded_among_chosen_keys,
];

const WIDER: [Format; 4] = [F16, F32, Q8_0, Q4_0];
const ROWS: [usize; 6] = [1, 5, 16, 17, 64, 130];
const KEYS: [usize; 7] = [1, 95, 96, 97, 191, 500, 770];
const MLA: (usize, usize) = (576, 512);
const MHA: (usize, usize) = (192, 128);
const DIMS: [(usize, usize); 4] = [(64, 64), MHA, (128, 128), (512, 512)];

/// How each tensor of a problem is stored.
#[derive(Clone, Copy, Debug)]
struct Formats {
    q: Format,
    q_rope: Format,
    kv: Format,
    k_rope: Format,
    v: Format,
}

const fn formats(q: Format, kv: Format) -> Formats {
    Formats {
        q,
        q_rope: q,
        kv,
        k_rope: kv,
        v: kv,
    }
}

/// Dimensions of tensors of queries, and of keys.
fn dims(problem: &Problem) -> [[usize; 3]; 2] {
    let s = problem.shape;
    let end = |indptr: &[i32]| usize::try_from(*indptr.last().unwrap()).unwrap();
    let queries = match problem.q_indptr {
        Some(indptr) => [1, end(indptr), s.h_q],
        None => [s.b, s.s_q, s.h_q],
    };
    let keys = match (&problem.pages, problem.kv_indptr) {
        (Some(pages), _) => [pages.pages, pages.page_size, s.h_kv],
        (None, Some(indptr)) => [1, end(indptr), s.h_kv],
        (None, None) => [s.b, s.s_k, s.h_kv],
    };
    [queries, keys]
}

/// What stands for each tensor, made by `of` of the tensor, its dimensions, its width and its format.
fn with_tensors<T>(
    problem: &Problem,
    formats: Formats,
    of: impl Fn(&TensorRef, [usize; 3], usize, Format) -> T,
    tensor: impl Fn(&T) -> TensorRef<'_>,
    use_it: &mut dyn FnMut(&Problem),
) {
    let [queries, keys] = dims(problem);
    let s = problem.shape;
    let width = |rope: Option<TensorRef>| if rope.is_some() { s.d_v } else { s.d_qk };
    let rope = s.d_qk - s.d_v;
    let q = of(&problem.q, queries, width(problem.q_rope), formats.q);
    let kv = of(&problem.kv, keys, width(problem.k_rope), formats.kv);
    let q_rope = problem
        .q_rope
        .map(|t| of(&t, queries, rope, formats.q_rope));
    let k_rope = problem.k_rope.map(|t| of(&t, keys, rope, formats.k_rope));
    let v = problem.v.map(|t| of(&t, keys, s.d_v, formats.v));
    let extra = problem.sparse.and_then(|sparse| sparse.extra);
    let extra_kv = extra.map(|extra| {
        let dims = [extra.pages, extra.page_size, s.h_kv];
        of(&extra.kv, dims, s.d_qk, formats.v)
    });
    let mut changed = Problem {
        q: tensor(&q),
        q_rope: q_rope.as_ref().map(&tensor),
        kv: tensor(&kv),
        k_rope: k_rope.as_ref().map(&tensor),
        v: v.as_ref().map(&tensor),
        ..*problem
    };
    if let (Some(sparse), Some(kv)) = (&mut changed.sparse, &extra_kv) {
        sparse.extra = extra.map(|extra| Extra {
            kv: tensor(kv),
            ..extra
        });
    }
    use_it(&changed);
}

/// The problem in these formats; a second cache is in that of `v`.
fn stored(problem: &Problem, formats: Formats, use_it: &mut dyn FnMut(&Problem)) {
    with_tensors(problem, formats, Stored::new, Stored::tensor, use_it);
}

/// Rows of a tensor by the definition of its format.
fn numbers(tensor: &TensorRef, [outer, inner, heads]: [usize; 3], width: usize) -> Vec<f32> {
    let indices =
        (0..outer * inner * heads).map(|i| [i / heads / inner, i / heads % inner, i % heads]);
    indices
        .flat_map(|at| rows::row(tensor, at, width))
        .collect()
}

fn dense([_, inner, heads]: [usize; 3], width: usize) -> [usize; 3] {
    [inner * heads * width, heads * width, width]
}

/// The same numbers in FP32.
fn in_fp32(problem: &Problem, use_it: &mut dyn FnMut(&Problem)) {
    let of =
        |tensor: &TensorRef, dims, width, _| (numbers(tensor, dims, width), dense(dims, width));
    fn tensor((data, strides): &(Vec<f32>, [usize; 3])) -> TensorRef<'_> {
        TensorRef {
            data: Data::F32(data),
            strides: *strides,
        }
    }
    with_tensors(problem, formats(F32, F32), of, tensor, use_it);
}

/// The same numbers rounded to BF16.
fn in_bf16(problem: &Problem, use_it: &mut dyn FnMut(&Problem)) {
    let of = |tensor: &TensorRef, dims, width, _| {
        let numbers = numbers(tensor, dims, width).into_iter();
        let rounded: Vec<bf16> = numbers.map(bf16::from_f32).collect();
        (rounded, dense(dims, width))
    };
    fn tensor((data, strides): &(Vec<bf16>, [usize; 3])) -> TensorRef<'_> {
        TensorRef {
            data: Data::Bf16(data),
            strides: *strides,
        }
    }
    with_tensors(problem, formats(Bf16, Bf16), of, tensor, use_it);
}

// -------------------------------------------------------------------------------------------------
// Golden
// -------------------------------------------------------------------------------------------------

/// O and lse of the given numbers, and the largest score of each row.
struct Want {
    o: Vec<f64>,
    lse: Vec<f64>,
    largest: Vec<f64>,
}

/// Computed once for all backends.
fn want(name: &str, problem: &Problem) -> Arc<Want> {
    type Slot = Arc<OnceLock<Arc<Want>>>;
    static WANTED: LazyLock<Mutex<BTreeMap<String, Slot>>> = LazyLock::new(Mutex::default);
    let slot = Arc::clone(WANTED.lock().unwrap().entry(name.to_owned()).or_default());
    let compute = || {
        let (o, lse) = golden(problem);
        // With every score multiplied by this, the largest is what the sum is made of.
        const TIMES: f32 = 65_536.0;
        let steep = Problem {
            softmax_scale: TIMES * problem.softmax_scale,
            ..*problem
        };
        let largest = golden(&steep).1;
        let largest = largest.iter().map(|lse| lse.abs() / f64::from(TIMES));
        Arc::new(Want {
            o,
            lse,
            largest: largest.collect(),
        })
    };
    Arc::clone(slot.get_or_init(compute))
}

const fn exact(backend: Backend) -> Options {
    Options {
        backend,
        rescale: Rescale::Exact,
        precision: Precision::Bf16,
        inputs: Inputs::AsGiven,
    }
}

/// The default mode of a backend against Golden of the given numbers; tasks against the call.
fn check(backend: Backend, name: &str, problem: &Problem) {
    let want = want(name, problem);
    let options = exact(backend);
    let results = decoded(problem, &options);
    let [o, lse] = [&results.0, &results.1]
        .map(|bits| bits.iter().map(|&x| f32::from_bits(x)).collect::<Vec<_>>());
    let error = frobenius(&o, &want.o);
    assert!(o.iter().all(|x| x.is_finite()), "{name}");
    assert!(error <= 2e-6, "O is off by {error:e}: {name}");
    for (row, (&got, &lse)) in lse.iter().zip(&want.lse).enumerate() {
        let limit = 1e-6 * want.largest[row].max(1.0);
        assert!(
            close(got, lse, limit),
            "lse[{row}] is {got}, not {lse}: {name}"
        );
    }
    same(&combined(problem, &options), &results, &name);
}

fn check_stored(backend: Backend, name: &str, problem: &Problem, formats: Formats) {
    let name = format!("{name} {formats:?}");
    stored(problem, formats, &mut |problem| {
        check(backend, &name, problem);
    });
}

/// A stored problem is the same problem in FP32 to Golden, which so decodes as the formats are defined.
#[test]
fn golden_decodes_every_format() {
    let host = Host::new([2, 1], MHA, &[(2, 9), (2, 4)]).separate_v();
    let laid = host.laid(Layout {
        split_q: true,
        split_k: true,
        ..paged(4)
    });
    for format in WIDER.into_iter().chain([Int8, E4m3]) {
        stored(&laid.problem(), formats(format, format), &mut |problem| {
            let want = golden(problem);
            in_fp32(problem, &mut |plain| assert_eq!(golden(plain), want));
        });
    }
}

// -------------------------------------------------------------------------------------------------
// Finite numbers
// -------------------------------------------------------------------------------------------------

/// Numbers of rows and of keys around every tile, queries in FP32.
fn every_size(backend: Backend) {
    for (i, rows) in ROWS.into_iter().enumerate() {
        for (j, keys) in KEYS.into_iter().enumerate() {
            for (k, kv) in WIDER.into_iter().enumerate() {
                let dims = if keys == 191 || rows * keys == 500 {
                    MLA
                } else {
                    DIMS[(i + j + k) % 4]
                };
                let host = Host::new([rows, 1], dims, &[(1, keys)]);
                let laid = host.laid(PLAIN);
                let name = format!("{rows} rows, {keys} keys, {dims:?}");
                check_stored(backend, &name, &laid.problem(), formats(F32, kv));
            }
        }
    }
}

/// Bits depend on the numbers, not on how rows store them, be they converted in place or first.
fn bits_of_the_same_numbers(backend: Backend) {
    for rows in [1, 7, 16, 17] {
        for dims in [MHA, MLA] {
            let host = Host::new([rows, 1], dims, &[(1, 97)]);
            let laid = host.laid(PLAIN);
            for kv in [F16, Q8_0, Q4_0] {
                stored(&laid.problem(), formats(F32, kv), &mut |problem| {
                    let results = decoded(problem, &exact(backend));
                    in_fp32(problem, &mut |plain| {
                        let name = format!("{rows} rows, {dims:?}, {kv:?}");
                        same(&decoded(plain, &exact(backend)), &results, &name);
                    });
                });
            }
        }
    }
}

/// U(-1, 1) where `Host` has N(0, 1).
fn uniform(mut host: Host) -> Host {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for r in 0..host.requests.len() {
        let len = host.requests[r].len;
        let mut fill = |row: &mut [bf16]| {
            row.fill_with(|| bf16::from_f32(rng.random_range(-1.0..1.0)));
        };
        fill(host.queries(r));
        (0..len).for_each(|k| fill(host.key(r, k)));
    }
    host
}

fn uniform_numbers(backend: Backend) {
    let mut cases = KEYS.into_iter().cycle().skip(2);
    for rows in ROWS {
        for (kv, q) in WIDER.into_iter().zip([F32, F16, F32, F32]) {
            let keys = cases.next().unwrap();
            let dims = if rows <= 17 { MLA } else { MHA };
            let host = uniform(Host::new([rows, 1], dims, &[(1, keys)]));
            let laid = host.laid(PLAIN);
            let name = format!("uniform, {rows} rows, {keys} keys");
            check_stored(backend, &name, &laid.problem(), formats(q, kv));
        }
    }
}

/// Layouts and masks of two requests, by number, with heads for groups of `rows` or one or two more.
fn any_host(i: usize, rows: usize, keys: usize, dims: (usize, usize)) -> (Host, Layout) {
    let positions = [1, 2, 3][i % 3];
    let heads = rows.div_ceil(positions);
    let mut host = Host::new([heads, 1], dims, &[(positions, keys), (1, keys / 2 + 1)]);
    match i % 5 {
        0 => host = host.causal(true),
        1 => host = host.window(100),
        2 => host.scale = -host.scale,
        3 => host = host.tree(67, i as u64).sink(|h| h as f32 / 4.0 - 2.0),
        _ => {}
    }
    let layout = match i % 4 {
        0 => PLAIN,
        1 => paged(64),
        2 => Layout {
            keys: Keys::Ragged,
            spare: 2,
            padding: 8,
            ragged_q: true,
            ..PLAIN
        },
        _ => Layout {
            padding: 2,
            ..paged(3)
        },
    };
    (host, layout)
}

/// Queries, keys and separate values, each in a format of its own.
fn mixtures(backend: Backend) {
    let of = |q, kv, v| Formats {
        v,
        ..formats(q, kv)
    };
    let mixtures = [
        of(F32, F16, F16),
        of(F32, Q8_0, Q8_0),
        of(F32, Bf16, Bf16),
        of(F32, Q4_0, Q4_0),
        of(F32, Int8, Int8),
        of(F32, E4m3, E4m3),
        of(F16, Bf16, F16),
        of(F16, F32, Bf16),
        of(Bf16, F16, F16),
        of(Bf16, F32, Q8_0),
        of(Bf16, Q8_0, Bf16),
        of(Bf16, Bf16, F16),
        of(Bf16, Bf16, F32),
        of(Bf16, Bf16, Q4_0),
        of(Q8_0, F16, Int8),
        of(Q4_0, Bf16, E4m3),
        of(Int8, F16, F32),
        of(F32, Int8, F16),
        of(E4m3, Int8, Q8_0),
        of(F16, F16, E4m3),
    ];
    for (i, formats) in mixtures.into_iter().enumerate() {
        for (j, rows) in ROWS.into_iter().enumerate() {
            let keys = KEYS[(i + 3 * j) % 7];
            let (mut host, layout) = any_host(i + j, rows, keys, DIMS[(i + j) % 3]);
            // Values that are the keys' may not be in another format.
            let apart = formats.v != formats.kv || j % 2 == 0;
            let wide = |format| WIDER.contains(&format);
            let exact = wide(formats.q) || wide(formats.kv) || (apart && wide(formats.v));
            if apart {
                host = host.separate_v();
            }
            if exact {
                let name = format!("mixture {i} {j}, {rows} rows, {keys} keys");
                check_stored(backend, &name, &host.laid(layout).problem(), formats);
            }
        }
    }
}

/// Rotary parts of their own.
fn split_tensors(backend: Backend) {
    let of = |q, q_rope, kv, k_rope, v| Formats {
        q,
        q_rope,
        kv,
        k_rope,
        v,
    };
    let mixtures = [
        of(F32, F32, F16, F16, F16),
        of(F32, Bf16, Q8_0, F16, Q8_0),
        of(Bf16, F32, Bf16, Bf16, Bf16),
        of(Bf16, Bf16, Bf16, F32, Bf16),
        of(Bf16, Bf16, Int8, F16, Int8),
        of(F16, F16, Q4_0, Q4_0, Q4_0),
        of(F32, Q8_0, E4m3, Bf16, F16),
        of(F16, Int8, F32, E4m3, Bf16),
    ];
    for (i, formats) in mixtures.into_iter().enumerate() {
        for (j, rows) in ROWS.into_iter().enumerate() {
            let keys = KEYS[(2 * i + j) % 7];
            let dims = if rows * keys <= 3200 { MLA } else { MHA };
            let (mut host, layout) = any_host(i + j, rows, keys, dims);
            if formats.v != formats.kv || j % 2 == 1 {
                host = host.separate_v();
            }
            let [split_q, split_k] = [[true, true], [true, false], [false, true]][(i + j) % 3];
            let layout = Layout {
                split_q: split_q || formats.q != formats.q_rope,
                split_k: split_k || formats.kv != formats.k_rope,
                ..layout
            };
            let name = format!("split {i} {j}, {rows} rows, {keys} keys");
            check_stored(backend, &name, &host.laid(layout).problem(), formats);
        }
    }
}

/// Rows of a cache, all of them keys.
fn cache([pages, page_size]: [usize; 2], width: usize, seed: u64) -> Rows {
    let mut rows = Rows::new([pages, page_size, 1], width, 2);
    let numbers = normal(seed, 1.0, pages * page_size * width);
    for (i, row) in numbers.chunks(width).enumerate() {
        rows.row([i / page_size, i % page_size, 0])
            .copy_from_slice(row);
    }
    rows
}

/// Keys chosen in a cache of pages, some twice, some that are none; perhaps in a second cache, too.
fn with_chosen(rows: usize, topk: usize, second: bool, use_it: &mut dyn FnMut(&Problem)) {
    let dims = if rows <= 17 { MLA } else { MHA };
    let host = Host::new([rows, 1], dims, &[(2, 1), (2, 1)]);
    let laid = host.laid(PLAIN);
    let (first, other) = (cache([7, 16], dims.0, 11), cache([5, 29], dims.0, 12));
    // Each query position has its own; of 150 slots the first 112 or 145 are keys.
    let slots = |from: i32| -> Vec<i32> {
        let slots = (0..4 * topk).map(|i| (i as i32 * 37 + from) % 150 - 3);
        slots.collect()
    };
    let (own, others) = (slots(1), slots(2));
    let indices = |indices| Indices {
        indices: IndexList::I32(indices),
        strides: [2 * topk, topk, 0],
        topk,
        topk_length: None,
        topk_length_strides: [1, 0],
    };
    let lengths = [topk as i32, (topk / 2) as i32];
    let sparse = Sparse {
        indices: Indices {
            topk_length: Some(&lengths),
            ..indices(&own)
        },
        extra: second.then(|| Extra {
            kv: other.tensor(),
            pages: 5,
            page_size: 29,
            indices: indices(&others),
        }),
    };
    use_it(&Problem {
        kv: first.tensor(),
        pages: Some(Pages {
            block_table: &[],
            max_blocks: 0,
            stride: 0,
            page_size: 16,
            pages: 7,
        }),
        cache_seqlens: None,
        sparse: Some(sparse),
        ..laid.problem()
    });
}

/// With a second cache of the same format or another, which `v` stands for.
fn chosen_keys(backend: Backend) {
    let of = |q, kv, v| Formats {
        v,
        ..formats(q, kv)
    };
    let mixtures = [
        (of(F32, F16, F16), false),
        (of(Bf16, F32, F32), false),
        (of(F32, Q8_0, Q8_0), false),
        (of(F16, Bf16, Bf16), false),
        (of(F32, F16, F16), true),
        (of(F32, Q8_0, Q8_0), true),
        (of(Bf16, Q4_0, Q4_0), true),
        (of(F32, F16, F32), true),
        (of(Bf16, Bf16, F16), true),
        (of(F32, Q8_0, Bf16), true),
        (of(F16, Int8, Q4_0), true),
        (of(Bf16, F16, E4m3), true),
        (of(F32, E4m3, Int8), true),
    ];
    for (i, (formats, second)) in mixtures.into_iter().enumerate() {
        for (j, rows) in ROWS.into_iter().enumerate() {
            let topk = [1, 40, 97, 200, 333][(i + j) % 5];
            let name = format!("chosen, {rows} rows, {topk} keys");
            with_chosen(rows, topk, second, &mut |problem| {
                check_stored(backend, &name, problem, formats);
            });
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Numbers that aren't finite
// -------------------------------------------------------------------------------------------------

/// Every element of Golden's class, and near it where it is finite.
fn check_classes(backend: Backend, name: &str, problem: &Problem, formats: Formats) {
    let name = format!("{name} {formats:?}");
    stored(problem, formats, &mut |problem| {
        let want = want(&name, problem);
        for rescale in [Rescale::Exact, Rescale::Compensated] {
            let options = Options {
                rescale,
                ..exact(backend)
            };
            // The compensation is BF16's.
            let limit = match rescale {
                Rescale::Exact => 1e-5,
                Rescale::Compensated => 1e-2,
            };
            let (o, lse) = decoded(problem, &options);
            for (i, (&got, &want)) in o.iter().zip(&want.o).enumerate() {
                let got = f32::from_bits(got);
                assert!(
                    close(got, want, limit),
                    "O[{i}] is {got}, not {want}, {rescale:?}: {name}"
                );
            }
            for (i, (&got, &want)) in lse.iter().zip(&want.lse).enumerate() {
                let got = f32::from_bits(got);
                assert!(
                    close(got, want, 1e-5),
                    "lse[{i}] is {got}, not {want}, {rescale:?}: {name}"
                );
            }
        }
    });
}

const SPECIAL: [bf16; 3] = [bf16::INFINITY, bf16::NEG_INFINITY, bf16::NAN];

/// In the last keys, which not all positions see. A block of ggml's with an infinity or a NaN has a scale of that.
fn values_that_are_not_finite(backend: Backend) {
    for (i, rows) in [2, 5, 16, 17, 64, 130].into_iter().enumerate() {
        for keys in [3, 97, 300] {
            for (j, v) in WIDER.into_iter().enumerate() {
                let mut host = Host::new([rows, 1], MHA, &[(3, keys)])
                    .causal(true)
                    .separate_v();
                host.value(0, keys - 1)[5] = SPECIAL[(i + j) % 3];
                host.value(0, keys - 1)[70] = SPECIAL[(i + j + 1) % 3];
                host.value(0, keys - 2)[100] = SPECIAL[(i + j + 2) % 3];
                host.value(0, 0)[127] = SPECIAL[(i + j) % 3];
                let laid = host.laid([PLAIN, paged(16)][i % 2]);
                let name = format!("values, {rows} rows, {keys} keys");
                for kv in [v, Bf16] {
                    let formats = Formats {
                        v,
                        ..formats(F32, kv)
                    };
                    check_classes(backend, &name, &laid.problem(), formats);
                }
            }
        }
    }
}

/// In keys and in queries: scores of either infinity, and NaN.
fn scores_that_are_not_finite(backend: Backend) {
    for (i, rows) in [1, 4, 16, 17, 64, 130].into_iter().enumerate() {
        for (j, kv) in WIDER.into_iter().enumerate() {
            for special in SPECIAL {
                let mut host = Host::new([rows, 1], MHA, &[(2, 200)]).causal(true);
                // Of the rotary part, so that values are finite but in blocks of their own.
                host.key(0, 199)[170] = special;
                host.key(0, 30)[191] = SPECIAL[i % 3];
                let laid = host.laid([PLAIN, paged(16)][j % 2]);
                let name = format!("keys, {rows} rows, {special}");
                check_classes(backend, &name, &laid.problem(), formats(F32, kv));

                let mut host = Host::new([rows, 1], MHA, &[(2, 200)]);
                // The first row alone, in which the others have no part.
                host.queries(0)[3] = special;
                let laid = host.laid(PLAIN);
                let name = format!("queries, {rows} rows, {special}");
                check_classes(backend, &name, &laid.problem(), formats(kv, F16));
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Rounded numbers
// -------------------------------------------------------------------------------------------------

/// Rows of one group whatever the queries' format: groups of BF16 are larger, and bits depend on the rows of a group.
const GROUPED: [usize; 6] = [1, 5, 16, 17, 64, 126];

/// Where a backend multiplies BF16 and may round, the bits are those of the rounded problem, which isn't Golden's.
/// Otherwise they are those of the numbers as they are.
fn check_rounded(backend: Backend, name: &str, problem: &Problem, formats: Formats) {
    stored(problem, formats, &mut |problem| {
        let bf16_products = !stores_p_in_fp32(backend);
        for options in modes(backend) {
            let rounded = Options {
                inputs: Inputs::Bf16,
                ..options
            };
            let got = decoded(problem, &rounded);
            same(&combined(problem, &rounded), &got, &name);
            let as_given = decoded(problem, &options);
            if bf16_products {
                in_bf16(problem, &mut |plain| {
                    same(&got, &decoded(plain, &options), &(name, formats, options));
                });
                assert!(got != as_given, "{name} {formats:?}: nothing was rounded");
            } else {
                same(&got, &as_given, &(name, formats, options));
            }
        }
    });
}

fn rounded_where_wanted(backend: Backend) {
    let mixtures = [
        formats(F16, F16),
        formats(F32, F32),
        formats(F32, Q8_0),
        formats(Bf16, Q4_0),
        formats(F32, Bf16),
        formats(F16, Int8),
    ];
    for (i, formats) in mixtures.into_iter().enumerate() {
        for (j, rows) in GROUPED.into_iter().enumerate() {
            let keys = [5, 95, 96, 97, 191, 500, 770][(i + j) % 7];
            let dims = if rows <= 17 { MLA } else { MHA };
            let (mut host, layout) = any_host(i + j, rows, keys, dims);
            if j % 3 == 0 {
                host = host.separate_v();
            }
            let layout = Layout {
                split_q: (i + j) % 4 == 1,
                split_k: (i + j) % 5 == 2,
                ..layout
            };
            let name = format!("{rows} rows, {keys} keys, {layout:?}");
            check_rounded(backend, &name, &host.laid(layout).problem(), formats);
        }
    }
}

fn rounded_among_chosen_keys(backend: Backend) {
    for (i, rows) in GROUPED.into_iter().enumerate() {
        for (kv, v) in [(F16, F16), (Q8_0, F32), (Bf16, Q4_0)] {
            let formats = Formats {
                v,
                ..formats(F32, kv)
            };
            let name = format!("chosen, {rows} rows");
            with_chosen(rows, [40, 200][i % 2], true, &mut |problem| {
                check_rounded(backend, &name, problem, formats);
            });
        }
    }
}
