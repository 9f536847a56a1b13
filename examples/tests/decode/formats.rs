//! Formats of rows.

use amla::{Data, Problem, ProblemShape, TensorRef, reference};
use half::{bf16, f16};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use safetensors::tensor::Dtype;

use crate::files::{Tensors, cut, fp8, model1, numbers, pages, steps};
use crate::runs::{floats, folder, run, same, text};

#[test]
fn fp8_rows() {
    let (q, kv) = (numbers(12 * 576, 1), steps(10 * 576, 2, 64, 14));
    let (table, paged) = pages(&kv, 576);
    let queries = Tensors::scaled().bf16s("q", &[2, 2, 3, 576], &q);
    let plain = queries.clone().bf16s("kv", &[2, 5, 576], &kv);
    let rows = queries
        .clone()
        .with("kv", Dtype::U8, &[2, 5, 656], fp8(&kv));
    // As torch saves FlashMLA's cache.
    let in_pages = queries
        .with("kv", Dtype::F8_E4M3, &[8, 2, 1, 656], fp8(&paged))
        .i32s("block_table", &[2, 3], &table)
        .seqlens(&[5, 5]);
    same("fp8", &[plain, rows, in_pages]);

    // Rows of two heads.
    let heads = Tensors::scaled().bf16s("q", &[1, 2, 6, 576], &q);
    let plain = heads.clone().bf16s("kv", &[1, 5, 2, 576], &kv);
    let rows = heads.with("kv", Dtype::U8, &[1, 5, 2, 656], fp8(&kv));
    same("fp8_heads", &[plain, rows]);
}

#[test]
fn model1_pages() {
    let (q, kv) = (numbers(12 * 512, 1), steps(10 * 512, 2, 64, 14));
    let (table, paged) = pages(&kv, 512);
    let queries = Tensors::scaled().bf16s("q", &[2, 2, 3, 512], &q);
    let plain = queries.clone().bf16s("kv", &[2, 5, 512], &kv);
    let of_requests = queries
        .clone()
        .with("kv", Dtype::U8, &[2, 5, 1, 584], model1(&kv, 5));
    let ragged = queries
        .clone()
        .with("kv", Dtype::U8, &[10, 584], model1(&kv, 10))
        .i32s("kv_indptr", &[3], &[0, 5, 10]);
    let in_pages = queries
        .with("kv", Dtype::F8_E4M3, &[8, 2, 1, 584], model1(&paged, 2))
        .i32s("block_table", &[2, 3], &table)
        .seqlens(&[5, 5]);
    same("model1", &[plain, of_requests, ragged, in_pages]);
}

#[test]
fn int8_rows() {
    let [q, kv, v] =
        [(16, 1), (20, 2), (20, 3)].map(|(rows, seed)| steps(rows * 128, seed, 128, 127));
    // Two KV heads.
    let (q_shape, shape) = ([2, 2, 4, 128], [2, 5, 2, 128]);
    let plain = Tensors::scaled()
        .bf16s("q", &q_shape, &q)
        .bf16s("kv", &shape, &kv)
        .bf16s("v", &shape, &v);
    let stored = Tensors::scaled()
        .int8s(["q", "q_scale"], &q_shape, &q)
        .int8s(["kv", "kv_scale"], &shape, &kv)
        .int8s(["v", "v_scale"], &shape, &v);
    same("int8", &[plain, stored]);
}

#[test]
fn parts_of_several_formats() {
    let (q, kv) = (numbers(12 * 192, 1), numbers(10 * 192, 2));
    let ([q_nope, q_rope], [_, k_rope]) = (cut(&q, 192, 128), cut(&kv, 192, 128));
    let ckv = steps(10 * 128, 2, 128, 127);
    let longer = |x: &[bf16]| -> Vec<f32> { x.iter().map(|x| x.to_f32()).collect() };
    let plain = Tensors::scaled()
        .bf16s("q_nope", &[2, 2, 3, 128], &q_nope)
        .bf16s("q_rope", &[2, 2, 3, 64], &q_rope)
        .bf16s("ckv", &[2, 5, 128], &ckv)
        .bf16s("k_rope", &[2, 5, 64], &k_rope);
    let plain = plain
        .f32s("q_nope", &[2, 2, 3, 128], &longer(&q_nope))
        .f32s("k_rope", &[2, 5, 64], &longer(&k_rope));
    let stored = plain
        .clone()
        .f16s("q_nope", &[2, 2, 3, 128], &in_f16(&longer(&q_nope)))
        .f16s("k_rope", &[2, 5, 64], &in_f16(&longer(&k_rope)));
    let stored = stored.int8s(["ckv", "ckv_scale"], &[2, 5, 128], &ckv);
    same("parts", &[plain, stored]);
}

/// Numbers of N(0, 1), about, in more bits than BF16 has.
fn normal(len: usize, seed: u64) -> Vec<f32> {
    let rng = ChaCha8Rng::seed_from_u64(seed);
    StandardNormal.sample_iter(rng).take(len).collect()
}

fn in_f16(x: &[f32]) -> Vec<f16> {
    x.iter().copied().map(f16::from_f32).collect()
}

/// Golden of the file's own numbers, and its results rounded once as expected values: on the fastest backend,
/// with a cache in FP16 or FP32, for one position and for several.
#[test]
fn f16_and_f32_files() {
    for (s_q, s_k, seed) in [(1, 300, 1), (4, 77, 2)] {
        let shape = ProblemShape {
            b: 1,
            s_q,
            s_k,
            h_q: 16,
            h_kv: 1,
            d_qk: 576,
            d_v: 512,
        };
        let (q_shape, kv_shape) = ([1, s_q, 16, 576], [1, s_k, 576]);
        let (q, kv) = (normal(s_q * 16 * 576, seed), normal(s_k * 576, seed + 10));
        let (q16, kv16) = (in_f16(&q), in_f16(&kv));
        let scale = 576_f32.sqrt().recip();
        let tensors = Tensors::default().f32s("softmax_scale", &[1], &[scale]);
        let with_q = tensors.clone().f32s("q", &q_shape, &q);
        let rows = [s_q * 16 * 576, 16 * 576, 576];
        let given = |data, strides| TensorRef { data, strides };
        let wide = given(Data::F32(&q), rows);
        let keys = [s_k * 576, 576, 576];
        for (dtypes, file, q, kv) in [
            (
                ["f32", "f32"],
                with_q.clone().f32s("kv", &kv_shape, &kv),
                wide,
                given(Data::F32(&kv), keys),
            ),
            (
                ["f32", "f16"],
                with_q.f16s("kv", &kv_shape, &kv16),
                wide,
                given(Data::F16(&kv16), keys),
            ),
            (
                ["f16", "f16"],
                tensors
                    .f16s("q", &q_shape, &q16)
                    .f16s("kv", &kv_shape, &kv16),
                given(Data::F16(&q16), rows),
                given(Data::F16(&kv16), keys),
            ),
        ] {
            let problem = Problem {
                q,
                kv,
                ..Problem::dense(shape, &[], &[], scale)
            };
            let rows = s_q * 16;
            let (mut o, mut lse) = (vec![0.0; rows * 512], vec![0.0; rows]);
            reference::golden(&problem, &mut o, &mut lse).unwrap();
            let [o, lse] = [o, lse].map(|x| x.iter().map(|&x| x as f32).collect::<Vec<_>>());
            let expecting = file
                .clone()
                .f32s("expected_o", &[1, s_q, 16, 512], &o)
                .f32s("expected_lse", &[1, 16, s_q], &lse);
            let folder = folder("f16_and_f32");
            for (file, reference) in [(&file, "golden"), (&expecting, "expected")] {
                let (record, output, _) = run(&folder, file, &[]);
                assert_eq!(text(&output.stderr), "");
                assert_eq!(record["reference"], reference);
                assert_eq!([&record["q_dtype"], &record["kv_dtype"]], dtypes);
                assert!(record["error"].as_f64().unwrap() <= 2e-6, "{record}");
                assert!(record["lse_error"].as_f64().unwrap() <= 2e-6, "{record}");
            }
        }
    }
}

#[test]
fn f16_rows() {
    // Thirds in FP16 are not exact in BF16.
    let thirds = |len, seed| -> Vec<f16> {
        let numbers = numbers(len, seed).into_iter();
        numbers.map(|x| f16::from_f32(x.to_f32() / 3.0)).collect()
    };
    let [q, kv, v] = [(1536, 1), (1280, 2), (1280, 3)].map(|(len, seed)| thirds(len, seed));
    let longer = |x: &[f16]| -> Vec<f32> { x.iter().map(|x| x.to_f32()).collect() };
    let stored = Tensors::scaled()
        .f16s("q", &[2, 2, 3, 128], &q)
        .f16s("kv", &[2, 5, 128], &kv)
        .f16s("v", &[2, 5, 128], &v);
    let plain = Tensors::scaled()
        .f32s("q", &[2, 2, 3, 128], &longer(&q))
        .f32s("kv", &[2, 5, 128], &longer(&kv))
        .f32s("v", &[2, 5, 128], &longer(&v));
    same("f16", &[plain, stored.clone()]);

    // Expected values from a host that computes in FP16.
    let folder = folder("f16_expected");
    let (_, _, out) = run(&folder, &stored, &[]);
    let rounded = |name| -> Vec<f16> {
        floats(&out, name)
            .1
            .into_iter()
            .map(f16::from_f32)
            .collect()
    };
    let expecting = stored
        .f16s("expected_o", &[2, 2, 3, 128], &rounded("o"))
        .f16s("expected_lse", &[2, 3, 2], &rounded("lse"));
    let (record, _, _) = run(&folder, &expecting, &[]);
    assert_eq!(record["reference"], "expected");
    for key in ["error", "lse_error"] {
        let error = record[key].as_f64().unwrap();
        assert!((1e-6..2e-3).contains(&error), "{key}: {record}");
    }
}
