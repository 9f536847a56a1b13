//! Layouts of queries and keys, sinks and masks.

use amla::{Data, Problem, ProblemShape, TailMask, TensorRef};
use half::bf16;
use safetensors::tensor::Dtype;

use crate::files::{SMALL, Tensors, cut, dense, numbers, pages};
use crate::runs::{agrees, counts, decode, folder, json};

#[test]
fn paged_caches() {
    let (q, kv, v) = (numbers(1536, 1), numbers(1280, 2), numbers(1280, 3));
    let ((mut table, paged), (_, paged_v)) = (pages(&kv, 128), pages(&v, 128));
    // No request uses the page after the last key.
    table[5] = -1;
    let lens = [5, 4];
    let tensors = Tensors::scaled()
        .bf16s("q", &[2, 2, 3, 128], &q)
        .bf16s("kv", &[8, 2, 128], &paged)
        .i32s("block_table", &[2, 3], &table)
        .seqlens(&lens);
    let problem = Problem {
        cache_seqlens: Some(&lens),
        ..dense(SMALL, &q, &kv)
    };
    agrees("paged", &tensors, &problem);

    let tensors =
        tensors
            .bf16s("kv", &[8, 2, 1, 128], &paged)
            .bf16s("v", &[8, 2, 1, 128], &paged_v);
    let problem = Problem {
        v: Some(TensorRef {
            data: Data::Bf16(&v),
            strides: problem.kv.strides,
        }),
        ..problem
    };
    agrees("paged_v", &tensors, &problem);

    // A full table.
    let (_, paged) = pages(&numbers(1280, 2), 128);
    let tensors = Tensors::scaled()
        .bf16s("q", &[2, 2, 3, 128], &q)
        .bf16s("kv", &[8, 2, 128], &paged)
        .i32s("block_table", &[2, 2], &[5, 0, 2, 7]);
    let page = |page: usize| &paged[page * 256..][..256];
    let kv = [page(5), page(0), page(2), page(7)].concat();
    let shape = ProblemShape { s_k: 4, ..SMALL };
    agrees("paged_full", &tensors, &dense(shape, &q, &kv));
}

#[test]
fn ragged_queries_and_caches() {
    // The second request has no queries and no keys, the last more queries than keys.
    let (q_indptr, kv_indptr) = ([0, 1, 1, 3, 6], [1, 6, 6, 9, 11]);
    let (q, mut kv) = (numbers(6 * 384, 1), numbers(12 * 128, 2));
    kv[..128].fill(bf16::NAN);
    kv[11 * 128..].fill(bf16::NAN);
    let shape = ProblemShape {
        b: 4,
        s_q: 3,
        ..SMALL
    };
    let queries = Tensors::scaled()
        .bf16s("q", &[6, 3, 128], &q)
        .i32s("q_indptr", &[5], &q_indptr);
    let ragged = queries.clone().i32s("kv_indptr", &[5], &kv_indptr);
    let problem = Problem {
        q_indptr: Some(&q_indptr),
        kv_indptr: Some(&kv_indptr),
        ..dense(shape, &q, &kv)
    };
    let tensors = ragged.clone().bf16s("kv", &[12, 128], &kv);
    agrees("ragged", &tensors, &problem);

    let causal = tensors.metadata("causal", "true").metadata("window", "2");
    let masked = Problem {
        causal: true,
        window: Some(2),
        ..problem
    };
    let record = agrees("ragged_causal", &causal, &masked);
    counts(&record, 3.0 * f64::from(2 + 2 + 2 + 1 + 2), 256.0);

    let lens = [4, 0, 3, 1];
    let tensors = ragged.bf16s("kv", &[12, 1, 128], &kv).seqlens(&lens);
    let shorter = Problem {
        cache_seqlens: Some(&lens),
        ..problem
    };
    agrees("ragged_seqlens", &tensors, &shorter);

    // Only queries, or only keys, are ragged.
    let kv = numbers(20 * 128, 2);
    let tensors = queries.bf16s("kv", &[4, 5, 128], &kv);
    let problem = Problem {
        q_indptr: Some(&q_indptr),
        ..dense(shape, &q, &kv)
    };
    agrees("ragged_queries", &tensors, &problem);
    let tensors =
        Tensors::small()
            .bf16s("kv", &[8, 128], &kv[..1024])
            .i32s("kv_indptr", &[3], &[0, 5, 8]);
    let problem = Problem {
        kv_indptr: Some(&[0, 5, 8]),
        ..dense(SMALL, &numbers(1536, 1), &kv[..1024])
    };
    agrees("ragged_keys", &tensors, &problem);
}

#[test]
fn rotary_parts() {
    let (q, kv) = (numbers(12 * 192, 1), numbers(10 * 192, 2));
    let ([q_nope, q_rope], [ckv, k_rope]) = (cut(&q, 192, 128), cut(&kv, 192, 128));
    let problem = dense(ProblemShape { d_qk: 192, ..SMALL }, &q, &kv);
    let scaled = Tensors::scaled;
    let one_q = |tensors: Tensors| tensors.bf16s("q", &[2, 2, 3, 192], &q);
    let split_q = |tensors: Tensors| {
        tensors
            .bf16s("q_nope", &[2, 2, 3, 128], &q_nope)
            .bf16s("q_rope", &[2, 2, 3, 64], &q_rope)
    };
    let one_kv = |tensors: Tensors| tensors.bf16s("kv", &[2, 5, 192], &kv);
    let split_kv = |tensors: Tensors| {
        tensors
            .bf16s("ckv", &[2, 5, 128], &ckv)
            .bf16s("k_rope", &[2, 5, 64], &k_rope)
    };
    agrees("split", &split_q(split_kv(scaled())), &problem);
    agrees("split_q", &split_q(one_kv(scaled())), &problem);
    agrees("split_kv", &one_q(split_kv(scaled())), &problem);
}

#[test]
fn grouped_heads() {
    // Two query heads for each of two KV heads.
    let shape = ProblemShape {
        h_q: 4,
        h_kv: 2,
        ..SMALL
    };
    let (q, kv, v) = (numbers(2048, 1), numbers(2560, 2), numbers(2560, 3));
    let tensors =
        Tensors::scaled()
            .bf16s("q", &[2, 2, 4, 128], &q)
            .bf16s("kv", &[2, 5, 2, 128], &kv);
    let problem = dense(shape, &q, &kv);
    agrees("heads", &tensors, &problem);
    let tensors = tensors.bf16s("v", &[2, 5, 2, 128], &v);
    let problem = Problem {
        v: Some(TensorRef {
            data: Data::Bf16(&v),
            strides: problem.kv.strides,
        }),
        ..problem
    };
    agrees("heads_v", &tensors, &problem);
    // No keys.
    let tensors =
        Tensors::scaled()
            .bf16s("q", &[2, 2, 4, 128], &q)
            .bf16s("kv", &[2, 0, 2, 128], &[]);
    let path = folder("heads_empty").join("in.safetensors");
    tensors.write(&path);
    let record = json(&decode().arg(&path).arg("--json").output().unwrap());
    assert_eq!(
        (&record["error"], &record["h_kv"]),
        (&0.0.into(), &2.into())
    );
}

#[test]
fn sinks_and_tail_masks() {
    let sink = [0.5, -3.0, f32::NEG_INFINITY];
    let problem = Problem {
        sink: Some(&sink),
        ..dense(SMALL, &numbers(1536, 1), &numbers(1280, 2))
    };
    let tensors = Tensors::small().f32s("sink", &[3], &sink);
    agrees("sink", &tensors, &problem);

    // A tail shorter than the requests, one longer than the second, and one of two words.
    let (q, kv) = (numbers(1536, 1), numbers(2 * 80 * 128, 2));
    let lens = [80, 66];
    for (dtype, tail) in [(Dtype::U8, 3), (Dtype::BOOL, 80), (Dtype::U8, 70)] {
        let sees = |row: usize, i: usize| !(row * 5 + i * i).is_multiple_of(3);
        let bytes = (0..4 * tail).map(|i| u8::from(sees(i / tail, i % tail)));
        let mut words = vec![0; 4 * tail.div_ceil(64)];
        for (row, i) in (0..4).flat_map(|row| (0..tail).map(move |i| (row, i))) {
            words[row * tail.div_ceil(64) + i / 64] |= u64::from(sees(row, i)) << (i % 64);
        }
        let tensors = Tensors::scaled()
            .bf16s("q", &[2, 2, 3, 128], &q)
            .bf16s("kv", &[2, 80, 128], &kv)
            .with("tail_mask", dtype, &[2, 2, tail], bytes.collect())
            .metadata("window", "75")
            .seqlens(&lens);
        let problem = Problem {
            tail_mask: Some(TailMask {
                words: &words,
                tail,
            }),
            window: Some(75),
            cache_seqlens: Some(&lens),
            ..dense(ProblemShape { s_k: 80, ..SMALL }, &q, &kv)
        };
        agrees(&format!("tail_{tail}"), &tensors, &problem);
    }
}

#[test]
fn everything_at_once() {
    // Five query rows of requests of 2 and 3, pages of two KV heads, in parts.
    let (q, kv) = (numbers(5 * 4 * 192, 1), numbers(10 * 2 * 192, 2));
    let ([q_nope, q_rope], [ckv, k_rope]) = (cut(&q, 192, 128), cut(&kv, 192, 128));
    let ((table, ckv), (_, k_rope)) = (pages(&ckv, 256), pages(&k_rope, 128));
    let (indptr, lens, sink) = ([0, 2, 5], [4, 5], [0.0, 1.0, 2.0, -1.0]);
    let mask = [[0, 1, 1], [1, 0, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]];
    let words = mask.map(|row| row[0] | row[1] << 1 | row[2] << 2);
    let bytes = mask.as_flattened().iter().map(|&bit| bit as u8);
    let tensors = Tensors::scaled()
        .bf16s("q_nope", &[5, 4, 128], &q_nope)
        .bf16s("q_rope", &[5, 4, 64], &q_rope)
        .i32s("q_indptr", &[3], &indptr)
        .bf16s("ckv", &[8, 2, 2, 128], &ckv)
        .bf16s("k_rope", &[8, 2, 2, 64], &k_rope)
        .i32s("block_table", &[2, 3], &table)
        .with("tail_mask", Dtype::BOOL, &[5, 3], bytes.collect())
        .f32s("sink", &[4], &sink)
        .metadata("window", "4")
        .seqlens(&lens);
    let shape = ProblemShape {
        s_q: 3,
        h_q: 4,
        h_kv: 2,
        d_qk: 192,
        ..SMALL
    };
    let problem = Problem {
        q_indptr: Some(&indptr),
        cache_seqlens: Some(&lens),
        window: Some(4),
        tail_mask: Some(TailMask {
            words: &words,
            tail: 3,
        }),
        sink: Some(&sink),
        ..dense(shape, &q, &kv)
    };
    let record = agrees("everything", &tensors, &problem);
    // The window hides the first key of the last row only.
    counts(&record, 4.0 * f64::from(3 + 3 + 3 + 4 + 1), 320.0);
}
