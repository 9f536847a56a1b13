//! Caches in every format against the same cache in BF16, and encoders.

#[macro_use]
mod common;

use amla::format::{
    FP8_ROW, MODEL1_ROW, MODEL1_SCALES, Q4_0, Q8_0, encode_e4m3, encode_fp8, encode_int8,
    encode_model1, encode_q4_0, encode_q8_0,
};
use amla::{
    Argument, Backend, Data, Error, Inputs, Plan, Problem, ProblemShape, TensorRef, reference,
};
use common::{Case, close, modes, normal};
use half::{bf16, f16};

suites![
    fp8_rows,
    model1_pages,
    int8_rows,
    e4m3_rows,
    quantised_values_alone,
    quantised_keys_alone,
    non_finite_values,
    infinities_of_hidden_keys,
    a_row_of_nan_spares_the_others,
    overflow_spares_the_others,
];

/// Bits of O and lse by every mode; where many rows take long, by one that changes with the shape.
fn all(problem: &Problem, case: &Case, backend: Backend) -> Vec<(Vec<u32>, Vec<u32>)> {
    let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect();
    let ProblemShape {
        b, h_q, s_k, d_qk, ..
    } = case.shape;
    let modes = modes(backend);
    let modes = match b * h_q * s_k {
        40_000.. => &modes[(h_q + d_qk / 64) % 4..][..1],
        _ => &modes,
    };
    modes
        .iter()
        .map(|options| {
            let (o, lse) = common::run(problem, case.sizes(), options);
            (bits(o), bits(lse))
        })
        .collect()
}

/// Row counts of every path: few rows, a panel, several; with enough blocks to reuse the memory of
/// converted rows.
const HEADS: [usize; 5] = [1, 5, 16, 64, 130];
const KEYS: [usize; 5] = [1, 191, 500, 400, 770];

/// `kv` in the format has the bits of `decoded`, the same rows as BF16.
fn same(case: &mut Case, kv: TensorRef, decoded: Vec<bf16>, backend: Backend) {
    case.kv = decoded;
    let want = all(&case.problem(), case, backend);
    let problem = Problem {
        kv,
        ..case.problem()
    };
    assert_eq!(all(&problem, case, backend), want, "{:?}", case.shape);
}

fn fp8_rows(backend: Backend) {
    for (h_q, s_k) in HEADS.into_iter().zip(KEYS) {
        let mut case = Case::new(2, 1, s_k, h_q, (576, 512));
        let mut bytes = vec![0; 2 * s_k * FP8_ROW];
        let mut decoded = Vec::new();
        for (row, bytes) in case.kv.chunks(576).zip(bytes.chunks_mut(FP8_ROW)) {
            encode_fp8(row, bytes).unwrap();
            for (i, &x) in bytes[..512].iter().enumerate() {
                let scale = bytes[512 + i / 128 * 4..][..4].try_into().unwrap();
                let x = e4m3(x) * f32::from_le_bytes(scale);
                decoded.push(bf16::from_f32(x));
                // Three bits of mantissa, or half a step of the smallest numbers.
                let bound = row[i].to_f32().abs() / 16.0 + f32::from_le_bytes(scale) / 1024.0;
                assert!((x - row[i].to_f32()).abs() <= bound);
            }
            decoded.extend_from_slice(&row[512..]);
        }
        let kv = TensorRef {
            data: Data::Fp8(&bytes),
            strides: [s_k * FP8_ROW, FP8_ROW, 0],
        };
        same(&mut case, kv, decoded, backend);
    }
}

/// FlashMLA's layout: a page's rows, then its scales.
fn model1_pages(backend: Backend) {
    for (h_q, s_k) in HEADS.into_iter().zip(KEYS) {
        let mut case = Case::new(2, 1, s_k, h_q, (512, 512));
        let page = s_k * (MODEL1_ROW + MODEL1_SCALES);
        let mut bytes = vec![0; 2 * page];
        let mut decoded = Vec::new();
        for (rows, page) in case.kv.chunks(s_k * 512).zip(bytes.chunks_mut(page)) {
            let (values, scales) = page.split_at_mut(s_k * MODEL1_ROW);
            let values = values.chunks_mut(MODEL1_ROW);
            let stored = values.zip(scales.chunks_mut(MODEL1_SCALES));
            for (row, (values, scales)) in rows.chunks(512).zip(stored) {
                encode_model1(row, values, scales).unwrap();
                for (i, &x) in values[..448].iter().enumerate() {
                    let scale = (f32::from(scales[i / 64]) - 127.0).exp2();
                    decoded.push(bf16::from_f32(e4m3(x) * scale));
                    let bound = row[i].to_f32().abs() / 16.0 + scale / 1024.0;
                    assert!((e4m3(x) * scale - row[i].to_f32()).abs() <= bound);
                }
                decoded.extend_from_slice(&row[448..]);
            }
        }
        let kv = TensorRef {
            data: Data::Model1 {
                bytes: &bytes,
                scales: s_k * MODEL1_ROW,
                scale_stride: MODEL1_SCALES,
            },
            strides: [page, MODEL1_ROW, 0],
        };
        same(&mut case, kv, decoded, backend);
    }
}

fn int8_rows(backend: Backend) {
    for (h_q, s_k) in HEADS.into_iter().zip(KEYS) {
        let mut case = Case::new(2, 1, s_k, h_q, (128, 128));
        let mut values = vec![0; case.kv.len()];
        let (mut scales, mut decoded) = (Vec::new(), Vec::new());
        for (row, values) in case.kv.chunks(128).zip(values.chunks_mut(128)) {
            let scale = encode_int8(row, values).unwrap();
            for (x, &value) in row.iter().zip(&*values) {
                let value = f32::from(value) * scale;
                decoded.push(bf16::from_f32(value));
                assert!((value - x.to_f32()).abs() <= scale * 0.501);
            }
            scales.push(scale);
        }
        let kv = TensorRef {
            data: Data::Int8 {
                values: &values,
                scales: &scales,
                strides: [s_k, 1, 0],
            },
            strides: [s_k * 128, 128, 0],
        };
        same(&mut case, kv, decoded, backend);
    }
}

fn e4m3_rows(backend: Backend) {
    for (h_q, s_k) in HEADS.into_iter().zip(KEYS) {
        let mut case = Case::new(2, 1, s_k, h_q, (192, 128));
        let mut values = vec![0; case.kv.len()];
        let (mut scales, mut decoded) = (Vec::new(), Vec::new());
        for (row, values) in case.kv.chunks(192).zip(values.chunks_mut(192)) {
            let scale = encode_e4m3(row, values).unwrap();
            for (x, &value) in row.iter().zip(&*values) {
                let value = e4m3(value) * scale;
                decoded.push(bf16::from_f32(value));
                let bound = x.to_f32().abs() / 16.0 + scale / 1024.0;
                assert!((value - x.to_f32()).abs() <= bound);
            }
            scales.push(scale);
        }
        let kv = TensorRef {
            data: Data::E4m3 {
                values: &values,
                scales: &scales,
                strides: [s_k, 1, 0],
            },
            strides: [s_k * 192, 192, 0],
        };
        same(&mut case, kv, decoded, backend);
    }
}

fn quantised_values_alone(backend: Backend) {
    let mut case = Case::new(1, 1, 400, 70, (64, 64)).separate_v();
    let v = case.v.clone().unwrap();
    let mut values = vec![0; v.len()];
    let scales: Vec<f32> = v
        .chunks(64)
        .zip(values.chunks_mut(64))
        .map(|(row, values)| encode_int8(row, values).unwrap())
        .collect();
    let stored = values
        .iter()
        .zip(scales.iter().flat_map(|scale| [scale; 64]));
    let decoded = stored.map(|(&x, scale)| bf16::from_f32(f32::from(x) * scale));
    case.v = Some(decoded.collect());
    let want = all(&case.problem(), &case, backend);
    let mut problem = case.problem();
    problem.v.as_mut().unwrap().data = Data::Int8 {
        values: &values,
        scales: &scales,
        strides: [0, 1, 0],
    };
    assert_eq!(all(&problem, &case, backend), want);
}

/// Values in BF16, which are used in place, though their keys aren't.
fn quantised_keys_alone(backend: Backend) {
    for (h_q, s_k) in HEADS.into_iter().zip(KEYS) {
        let mut case = Case::new(2, 1, s_k, h_q, (128, 128)).separate_v();
        let (mut values, mut scales) = (vec![0; case.kv.len()], Vec::new());
        for (row, values) in case.kv.chunks(128).zip(values.chunks_mut(128)) {
            scales.push(encode_e4m3(row, values).unwrap());
        }
        let stored = values
            .iter()
            .zip(scales.iter().flat_map(|scale| [scale; 128]));
        case.kv = stored
            .map(|(&x, scale)| bf16::from_f32(e4m3(x) * scale))
            .collect();
        let want = all(&case.problem(), &case, backend);
        let mut problem = case.problem();
        problem.kv.data = Data::E4m3 {
            values: &values,
            scales: &scales,
            strides: [s_k, 1, 0],
        };
        assert_eq!(all(&problem, &case, backend), want, "{:?}", case.shape);
    }
}

/// The scalar path decodes too. Positions that don't see an infinite row have numbers.
fn non_finite_values(backend: Backend) {
    for h_q in [2, 70] {
        let mut case = Case::new(1, 3, 300, h_q, (128, 128));
        case.causal = true;
        let (mut values, mut scales) = (vec![0; case.kv.len()], Vec::new());
        for (row, values) in case.kv.chunks(128).zip(values.chunks_mut(128)) {
            scales.push(encode_int8(row, values).unwrap());
        }
        (scales[299], scales[298]) = (f32::INFINITY, f32::NAN);
        // No zero times infinity among the keys' features, so that not all of a row is NaN.
        values[299 * 128..].fill(0);
        let stored = values
            .iter()
            .zip(scales.iter().flat_map(|scale| [scale; 128]));
        case.kv = stored
            .map(|(&x, scale)| bf16::from_f32(f32::from(x) * scale))
            .collect();
        let want = all(&case.problem(), &case, backend);
        let mut problem = case.problem();
        problem.kv.data = Data::Int8 {
            values: &values,
            scales: &scales,
            strides: [0, 1, 0],
        };
        assert_eq!(all(&problem, &case, backend), want);
        let finite = |o: &[u32]| o.iter().all(|&x| f32::from_bits(x).is_finite());
        for (o, _) in want {
            assert!(finite(&o[..h_q * 128]) && !finite(&o[h_q * 128..]));
        }
    }
}

/// Separate values, which are converted before they are packed: rows that don't see an infinity stay
/// finite.
fn infinities_of_hidden_keys(backend: Backend) {
    for h_q in [2, 20] {
        let mut case = Case::new(1, 3, 300, h_q, (128, 128)).separate_v();
        case.causal = true;
        let v = case.v.iter().flatten();
        let mut v: Vec<f16> = v.map(|x| f16::from_f32(x.to_f32() / 3.0)).collect();
        v[299 * 128 + 5] = f16::INFINITY;
        v[298 * 128 + 6] = f16::NEG_INFINITY;
        let mut problem = case.problem();
        problem.v.as_mut().unwrap().data = Data::F16(&v);
        let (o, lse) = case.sizes();
        let (mut want, mut lse) = (vec![0.0; o], vec![0.0; lse]);
        reference::golden(&problem, &mut want, &mut lse).unwrap();
        for mut options in modes(backend) {
            for inputs in [Inputs::AsGiven, Inputs::Bf16] {
                options.inputs = inputs;
                let (o, _) = common::run(&problem, case.sizes(), &options);
                for (&got, &want) in o.iter().zip(&want) {
                    assert!(close(got, want, 1e-2), "{got} {want}");
                }
                // The first position sees neither, the last both.
                let (first, last) = (&o[..h_q * 128], &o[2 * h_q * 128..]);
                assert!(first.iter().all(|x| x.is_finite()));
                for row in last.chunks(128) {
                    assert_eq!((row[5], row[6]), (f32::INFINITY, f32::NEG_INFINITY));
                }
            }
        }
    }
}

/// O of every row but the first, by every mode, in a workspace that held something else.
fn but_the_first(problem: &Problem, case: &Case, backend: Backend) -> Vec<Vec<f32>> {
    let run = |options| common::run(problem, case.sizes(), options).0;
    let outputs = modes(backend).iter().map(run).collect::<Vec<_>>();
    let d_v = case.shape.d_v;
    outputs.into_iter().map(|o| o[d_v..].to_vec()).collect()
}

fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
        let scale = want.abs().max(0.1);
        assert!((got - want).abs() <= 1e-2 * scale, "{what}: {got} {want}");
    }
}

/// What looks like a V that isn't finite may be one row's P.
fn a_row_of_nan_spares_the_others(backend: Backend) {
    for h_q in [2, 8, 9, 64, 70] {
        let mut case = Case::new(1, 1, 300, h_q, (128, 128));
        let kv: Vec<f16> = case.kv.iter().map(|x| f16::from_f32(x.to_f32())).collect();
        let clean = {
            let mut problem = case.problem();
            problem.kv.data = Data::F16(&kv);
            but_the_first(&problem, &case, backend)
        };
        case.q_row(0, 0, 0)[0] = bf16::NAN;
        let mut problem = case.problem();
        problem.kv.data = Data::F16(&kv);
        let got = but_the_first(&problem, &case, backend);
        assert_close(&got, &clean, &format!("{h_q} rows"));
        let (o, _) = common::run(&problem, case.sizes(), &modes(backend)[0]);
        assert!(o[..128].iter().all(|x| x.is_nan()));
    }
}

/// Nor need it be more than one row's O that overflows.
fn overflow_spares_the_others(backend: Backend) {
    const NEAR: usize = 50;
    let mut case = Case::new(1, 1, 250, 9, (128, 128));
    // The first row looks at all keys alike, the others at the first of them alone.
    for h in 0..9 {
        case.q_row(0, 0, h).fill(bf16::ZERO);
        case.q_row(0, 0, h)[127] = bf16::from_f32(if h == 0 { 0.0 } else { 64.0 });
    }
    let (mut values, mut scales) = (vec![1_i8; 250 * 128], vec![0.5_f32; 250]);
    for (k, (values, scale)) in values.chunks_mut(128).zip(&mut scales).enumerate() {
        values[127] = if k < NEAR { 100 } else { 0 };
        if k >= NEAR {
            values[..127].fill(120);
            *scale = 2e36;
        }
    }
    let mut problem = case.problem();
    problem.kv.data = Data::Int8 {
        values: &values,
        scales: &scales,
        strides: [0, 1, 0],
    };
    for o in but_the_first(&problem, &case, backend) {
        for row in o.chunks(128) {
            for &x in &row[..127] {
                assert!((x - 0.5).abs() < 1e-2, "{x}");
            }
        }
    }
}

/// e4m3 by its definition.
fn e4m3(x: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(x >> 3 & 15), f32::from(x & 7));
    let magnitude = match exponent {
        0 => mantissa * (-9.0_f32).exp2(),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if x & 0x80 == 0 { magnitude } else { -magnitude }
}

#[test]
fn refuses_formats_without_such_rows() {
    let case = Case::new(1, 1, 4, 1, (576, 512));
    let bytes = vec![0; 4 * FP8_ROW];
    let fp8 = |len| TensorRef {
        data: Data::Fp8(&bytes[..len]),
        strides: [4 * FP8_ROW, FP8_ROW, 0],
    };
    let with = |kv| {
        Plan::new(&Problem {
            kv,
            ..case.problem()
        })
        .map(|_| ())
    };
    assert_eq!(with(fp8(4 * FP8_ROW)), Ok(()));
    let (argument, needed) = (Argument::Kv, 4 * FP8_ROW);
    assert_eq!(
        with(fp8(needed - 1)),
        Err(Error::TooShort {
            argument,
            len: needed - 1,
            needed
        })
    );
    let model1 = TensorRef {
        data: Data::Model1 {
            bytes: &bytes,
            scales: 0,
            scale_stride: 0,
        },
        strides: [0; 3],
    };
    let width = 576;
    assert_eq!(with(model1), Err(Error::Format { argument, width }));
    let case = Case::new(1, 1, 4, 1, (512, 512));
    let with = |kv| {
        Plan::new(&Problem {
            kv,
            ..case.problem()
        })
        .map(|_| ())
    };
    let width = 512;
    assert_eq!(with(fp8(needed)), Err(Error::Format { argument, width }));
    let scales = |scales, scale_stride| TensorRef {
        data: Data::Model1 {
            bytes: &bytes[..4 * (MODEL1_ROW + MODEL1_SCALES)],
            scales,
            scale_stride,
        },
        strides: [0, MODEL1_ROW, 0],
    };
    let (first, len) = (4 * MODEL1_ROW, 4 * (MODEL1_ROW + MODEL1_SCALES));
    assert_eq!(with(scales(first, MODEL1_SCALES)), Ok(()));
    assert_eq!(
        with(scales(first + 1, MODEL1_SCALES)),
        Err(Error::TooShort {
            argument: Argument::Scales,
            len,
            needed: len + 1
        })
    );
    // Its scales are a row's: of several heads neither keys nor queries can be so.
    let heads = Case::new(1, 1, 4, 2, (512, 512));
    let problem = Problem {
        q: scales(first, MODEL1_SCALES),
        ..heads.problem()
    };
    assert_eq!(
        Plan::new(&problem).unwrap_err(),
        Error::OutOfRange {
            argument: Argument::HQ,
            value: 2,
            min: 1,
            max: 1
        }
    );
    let values = vec![0; 4 * 512];
    let int8 = |scales| TensorRef {
        data: Data::Int8 {
            values: &values,
            scales,
            strides: [0, 1, 0],
        },
        strides: [0, 512, 0],
    };
    assert_eq!(with(int8(&[1.0; 4])), Ok(()));
    assert_eq!(
        with(int8(&[1.0; 3])),
        Err(Error::TooShort {
            argument: Argument::Scales,
            len: 3,
            needed: 4
        })
    );
    let values = vec![0; 4 * 512];
    let e4m3 = |scales| TensorRef {
        data: Data::E4m3 {
            values: &values,
            scales,
            strides: [0, 1, 0],
        },
        strides: [0, 512, 0],
    };
    assert_eq!(with(e4m3(&[1.0; 4])), Ok(()));
    assert_eq!(
        with(e4m3(&[1.0; 3])),
        Err(Error::TooShort {
            argument: Argument::Scales,
            len: 3,
            needed: 4
        })
    );
    // Blocks are whole: their strides and lengths count them.
    let blocks = [Q8_0::default(); 4 * 16];
    let q8_0 = |len| TensorRef {
        data: Data::Q8_0(&blocks[..len]),
        strides: [0, 16, 0],
    };
    assert_eq!(with(q8_0(64)), Ok(()));
    assert_eq!(
        with(q8_0(63)),
        Err(Error::TooShort {
            argument: Argument::Kv,
            len: 63,
            needed: 64
        })
    );
    let blocks = [Q4_0::default(); 2];
    let part = ProblemShape {
        d_qk: 48,
        d_v: 32,
        ..case.shape
    };
    let problem = Problem {
        kv: TensorRef {
            data: Data::Q4_0(&blocks),
            strides: [0; 3],
        },
        ..Problem::dense(part, &case.q, &[], 1.0)
    };
    assert_eq!(
        Plan::new(&problem).unwrap_err(),
        Error::Format {
            argument: Argument::Kv,
            width: 48
        }
    );
}

#[test]
fn encoders_check_lengths() {
    let row = normal(1, 1.0, 576);
    let wrong = |argument, len, expected| Error::WrongLength {
        argument,
        len,
        expected,
    };
    let fp8 = |row, len| encode_fp8(row, &mut vec![0; len]).unwrap_err();
    assert_eq!(fp8(&row[1..], FP8_ROW), wrong(Argument::Row, 575, 576));
    assert_eq!(fp8(&row, 655), wrong(Argument::Bytes, 655, 656));
    let model1 =
        |row, len, scales| encode_model1(row, &mut vec![0; len], &mut vec![0; scales]).unwrap_err();
    let (len, scales) = (MODEL1_ROW, MODEL1_SCALES);
    assert_eq!(model1(&row, len, scales), wrong(Argument::Row, 576, 512));
    let row = &row[..512];
    assert_eq!(
        model1(row, len - 1, scales),
        wrong(Argument::Bytes, len - 1, len)
    );
    assert_eq!(
        model1(row, len, scales - 1),
        wrong(Argument::Scales, scales - 1, scales)
    );
    assert_eq!(
        encode_int8(row, &mut [0; 5]).unwrap_err(),
        wrong(Argument::Values, 5, 512)
    );
    assert_eq!(
        encode_e4m3(row, &mut [0; 513]).unwrap_err(),
        wrong(Argument::Values, 513, 512)
    );
    let row = [1.0; 64];
    for (len, blocks) in [(64, 1), (64, 3), (63, 2), (0, 1), (32, 0)] {
        let error = wrong(Argument::Row, len, 32 * blocks);
        let (mut q8, mut q4) = (vec![Q8_0::default(); blocks], vec![Q4_0::default(); blocks]);
        assert_eq!(encode_q8_0(&row[..len], &mut q8).unwrap_err(), error);
        assert_eq!(encode_q4_0(&row[..len], &mut q4).unwrap_err(), error);
        let untouched = q8.iter().all(|block| *block == Q8_0::default());
        assert!(untouched && q4.iter().all(|block| *block == Q4_0::default()));
    }
}

#[test]
fn rows_of_zeros() {
    let zeros = [bf16::ZERO; 576];
    let mut bytes = [1; FP8_ROW];
    encode_fp8(&zeros, &mut bytes).unwrap();
    assert_eq!(bytes, [0; FP8_ROW]);
    let mut values = [1; 576];
    assert_eq!(encode_int8(&zeros, &mut values), Ok(0.0));
    assert_eq!(values, [0; 576]);
    let mut values = [1; 576];
    assert_eq!(encode_e4m3(&zeros, &mut values), Ok(0.0));
    assert_eq!(values, [0; 576]);
}

/// The blocks of ggml's `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref`, built by GCC 12 with
/// `-O2 -ffp-contract=off`: as FNV-1a of 10000 blocks, some of zeros, of one number, of ties.
#[test]
fn ggmls_blocks() {
    let fnv = |hash: u64, bytes: &[u8]| {
        let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        bytes.iter().fold(hash, step)
    };
    let (mut state, mut hashes) = (1_u32, [0xcbf2_9ce4_8422_2325; 2]);
    for r in 0..10_000 {
        let row: [f32; 32] = std::array::from_fn(|j| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = state.cast_signed() as f32 / 2_147_483_648.0;
            match r % 100 {
                99 => 0.0,
                98 if j != 7 => 0.0,
                97 => (state >> 9) as f32 % 17.0 / [-2.0, 2.0][j % 2],
                _ => number * 2.0_f32.powi(r % 40 - 20),
            }
        });
        let (mut q8, mut q4) = ([Q8_0::default()], [Q4_0::default()]);
        encode_q8_0(&row, &mut q8).unwrap();
        encode_q4_0(&row, &mut q4).unwrap();
        hashes[0] = fnv(hashes[0], bytemuck::cast_slice(&q8));
        hashes[1] = fnv(hashes[1], bytemuck::cast_slice(&q4));
        if r == 99 {
            assert_eq!(q8[0], Q8_0::default());
            // The scale is the largest over -8.
            assert_eq!((q4[0].d.to_bits(), q4[0].qs), (0x8000, [0x88; 16]));
        }
        if r == 97 {
            let first = [-56, 16, -8, 40, -87, 24, -40, 111];
            assert_eq!((q8[0].d.to_bits(), &q8[0].qs[..8]), (0x2c08, &first[..]));
            let first = [0x85, 0xe9, 0x38, 0x9b, 0x13, 0xca, 0x66, 0xcf];
            assert_eq!((q4[0].d.to_bits(), &q4[0].qs[..8]), (0x3c00, &first[..]));
        }
    }
    assert_eq!(hashes, [0x3dd4_ecdd_a961_c9bb, 0x9969_2773_9d87_91ef]);

    // Halves go away from zero in Q8_0, and up in Q4_0.
    let mut row = [0.0; 32];
    row[..6].copy_from_slice(&[127.0, 0.5, -0.5, 1.5, -2.5, 2.5]);
    let mut q8 = [Q8_0::default()];
    encode_q8_0(&row, &mut q8).unwrap();
    assert_eq!(q8[0].d, f16::ONE);
    assert_eq!(q8[0].qs[..7], [127, 1, -1, 2, -3, 3, 0]);
    row[..6].copy_from_slice(&[-8.0, 0.5, -0.5, 6.5, 7.5, 8.0]);
    let mut q4 = [Q4_0::default()];
    encode_q4_0(&row, &mut q4).unwrap();
    assert_eq!(q4[0].d, f16::ONE);
    assert_eq!(
        q4[0].qs[..7].iter().map(|x| x & 15).collect::<Vec<_>>(),
        [0, 9, 8, 15, 15, 15, 8]
    );
}
