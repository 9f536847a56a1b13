//! Formats of rows.

use half::{bf16, f16};
use safetensors::tensor::Dtype;

use crate::files::{Tensors, cut, fp8, model1, numbers, pages, steps};
use crate::runs::{floats, folder, run, same};

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
    let halves = |x: &[bf16]| -> Vec<f16> { x.iter().map(|x| f16::from_f32(x.to_f32())).collect() };
    let plain = Tensors::scaled()
        .bf16s("q_nope", &[2, 2, 3, 128], &q_nope)
        .bf16s("q_rope", &[2, 2, 3, 64], &q_rope)
        .bf16s("ckv", &[2, 5, 128], &ckv)
        .bf16s("k_rope", &[2, 5, 64], &k_rope);
    let stored = plain
        .clone()
        .f16s("q_nope", &[2, 2, 3, 128], &halves(&q_nope))
        .f16s("k_rope", &[2, 5, 64], &halves(&k_rope));
    let stored = stored.int8s(["ckv", "ckv_scale"], &[2, 5, 128], &ckv);
    same("parts", &[plain, stored]);
}

#[test]
fn f16_rows() {
    // Thirds in FP16 are not exact in BF16.
    let thirds = |len, seed| -> Vec<f16> {
        let numbers = numbers(len, seed).into_iter();
        numbers.map(|x| f16::from_f32(x.to_f32() / 3.0)).collect()
    };
    let [q, kv, v] = [(1536, 1), (1280, 2), (1280, 3)].map(|(len, seed)| thirds(len, seed));
    let round = |x: &[f16]| -> Vec<bf16> { x.iter().map(|x| bf16::from_f32(x.to_f32())).collect() };
    let stored = Tensors::scaled()
        .f16s("q", &[2, 2, 3, 128], &q)
        .f16s("kv", &[2, 5, 128], &kv)
        .f16s("v", &[2, 5, 128], &v);
    let plain = Tensors::scaled()
        .bf16s("q", &[2, 2, 3, 128], &round(&q))
        .bf16s("kv", &[2, 5, 128], &round(&kv))
        .bf16s("v", &[2, 5, 128], &round(&v));
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
