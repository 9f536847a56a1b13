//! The `decode` example as its users run it.

#[path = "common/cli.rs"]
mod cli;
#[path = "common/example.rs"]
mod example;

use std::fs;
use std::process::Stdio;

use amla::{
    Backend, BackendId, Data, Extra, Indices, Pages, Problem, Shape, Sparse, TailMask, Tensor,
};
use half::{bf16, f16};
use safetensors::tensor::Dtype;

use cli::{
    SCALE, Tensors, agrees, counts, decode, floats, folder, fp8, json, model1, names, numbers,
    refused, refused_file, run, same, steps, text,
};

const BUNDLED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/examples/data/minilm_l2_512.safetensors"
);

#[test]
fn bundled_problem_as_a_file() {
    let folder = folder("bundled");
    let out = folder.join("out.safetensors");
    fs::write(&out, "what was there before").unwrap();
    let output = decode()
        .args([BUNDLED, "--json", "-o"])
        .arg(&out)
        .current_dir(&folder)
        .output()
        .unwrap();
    let record = json(&output);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(names(&folder), ["out.safetensors"]);

    assert_eq!(record["problem"], "minilm_l2_512");
    // As the example does.
    Backend::permit_amx();
    assert_eq!(record["backend"], Backend::detect().id().name());
    assert_eq!(record["rescale"], "exact");
    assert_eq!(record["precision"], "bf16");
    assert_eq!(record["reference"], "expected");
    for (key, value) in [
        ("b", 1),
        ("s_q", 2),
        ("s_k", 512),
        ("h_q", 12),
        ("d_qk", 576),
        ("d_v", 512),
    ] {
        assert_eq!(record[key], value, "{key}");
    }
    let number = |key: &str| record[key].as_f64().unwrap_or_else(|| panic!("{record}"));
    for key in ["threads", "seconds", "gflops", "peak_gflops", "utilization"] {
        assert!(number(key) > 0.0, "{key}: {record}");
    }
    assert!(number("error") < 1e-3, "{record}");
    assert!(number("base_error") < 1e-3, "{record}");
    assert!(number("lse_error") < 1e-4, "{record}");

    // What was written is what was judged.
    let (expected, written) = (fs::read(BUNDLED).unwrap(), fs::read(&out).unwrap());
    let (shape, o) = floats(&written, "o");
    assert_eq!(shape, [1, 2, 12, 512]);
    let (_, expected_o) = floats(&expected, "expected_o");
    let squares =
        |f: &dyn Fn(usize) -> f32| -> f64 { (0..o.len()).map(|i| f64::from(f(i)).powi(2)).sum() };
    let error = (squares(&|i| o[i] - expected_o[i]) / squares(&|i| expected_o[i])).sqrt();
    assert!((error / number("error") - 1.0).abs() < 1e-3, "{error}");

    let (shape, lse) = floats(&written, "lse");
    assert_eq!(shape, [1, 12, 2]);
    let (_, expected_lse) = floats(&expected, "expected_lse");
    for head in 0..12 {
        for j in 0..2 {
            assert!((lse[head * 2 + j] - expected_lse[j * 12 + head]).abs() < 1e-4);
        }
    }
}

#[test]
fn bundled_problem_as_a_table() {
    let output = decode()
        .args([BUNDLED, "--rescale", "compensated"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let rows = stdout.lines().filter(|line| {
        line.starts_with("minilm_l2_512 ") && line.split_whitespace().nth(2) == Some("compensated")
    });
    assert_eq!(rows.count(), 1, "{stdout}");
}

#[test]
fn masks_dtypes_and_threads() {
    let folder = folder("masks");
    let run = |tensors: &Tensors, args: &[&str]| {
        run(
            &folder,
            tensors,
            &[&["--backend", "portable"], args].concat(),
        )
    };

    // The second request sees nothing; with a causal mask the first position
    // of the first request sees one key only.
    let tensors = Tensors::small().seqlens(&[2, 0]);
    let (record, output, one) = run(&tensors, &["--causal", "--threads", "1"]);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(record["reference"], "golden");
    assert_eq!(record["causal"], true);
    assert_eq!(record["d_v"], 128);
    assert!(record["error"].as_f64().unwrap() < 1e-2, "{record}");
    assert!(record["lse_error"].as_f64().unwrap() < 1e-4, "{record}");
    let (shape, o) = floats(&one, "o");
    assert_eq!(shape, [2, 2, 3, 128]);
    let (_, lse) = floats(&one, "lse");
    let (key, _) = tensors.tensors["kv"].2.as_chunks();
    for (x, &bytes) in o[..128].iter().zip(key) {
        assert!((x - bf16::from_le_bytes(bytes).to_f32()).abs() < 1e-6);
    }
    assert!(o[768..].iter().all(|&x| x == 0.0));
    assert!(lse[..6].iter().all(|x| x.is_finite()));
    assert!(lse[6..].iter().all(|&x| x == f32::INFINITY));

    // Neither threads nor a lossless change of type change a bit.
    let (_, _, two) = run(&tensors, &["--causal", "--threads", "2"]);
    assert!(one == two);
    let (_, output, wide) = run(&tensors.clone().widened(), &["--causal"]);
    assert!(one == wide);
    assert_eq!(
        text(&output.stderr),
        "note: q is F32, rounded to BF16\nnote: kv is F32, rounded to BF16\n"
    );

    // Values of their own; what is expected is taken from the run before, its
    // lse in either layout.
    let (dtype, shape, data) = tensors.tensors["kv"].clone();
    let tensors = tensors.with("v", dtype, &shape, data);
    let (_, _, same) = run(&tensors, &["--causal"]);
    assert!(one == same);
    let swapped: Vec<_> = (0..12)
        .map(|i| lse[i / 6 * 6 + i % 3 * 2 + i / 3 % 2])
        .collect();
    let tensors = tensors
        .f32s("expected_o", &[2, 2, 3, 128], &o)
        .metadata("causal", "true");
    for (shape, lse) in [([2, 3, 2], &lse), ([2, 2, 3], &swapped)] {
        let expecting = tensors.clone().f32s("expected_lse", &shape, lse);
        let (record, output, _) = run(&expecting, &[]);
        assert_eq!(text(&output.stderr), "");
        assert_eq!(record["causal"], true);
        assert_eq!(record["reference"], "expected");
        assert_eq!(record["error"], 0.0);
        assert_eq!(record["lse_error"], 0.0);
    }
}

/// A problem over dense tensors that outlive it.
fn dense(shape: Shape, q: &[bf16], kv: &[bf16]) -> Problem<'static> {
    Problem::dense(shape, q.to_vec().leak(), kv.to_vec().leak(), SCALE)
}

const SMALL: Shape = Shape {
    b: 2,
    s_q: 2,
    s_k: 5,
    h_q: 3,
    h_kv: 1,
    d_qk: 128,
    d_v: 128,
};

/// Pages of two keys, not in their order: those that hold the keys of `kv`, `width` wide,
/// five for each of two requests, and NaN where nobody looks.
fn pages(kv: &[bf16], width: usize) -> (Vec<i32>, Vec<bf16>) {
    let table = vec![5, 0, 3, 7, 2, 4];
    let mut pages = vec![bf16::NAN; 8 * 2 * width];
    for (row, data) in kv.chunks(width).enumerate() {
        let (request, key) = (row / 5, row % 5);
        let page = table[request * 3 + key / 2] as usize;
        pages[(page * 2 + key % 2) * width..][..width].copy_from_slice(data);
    }
    (table, pages)
}

#[test]
fn paged_caches() {
    let (q, kv, v) = (numbers(1536, 1), numbers(1280, 2), numbers(1280, 3));
    let ((mut table, paged), (_, paged_v)) = (pages(&kv, 128), pages(&v, 128));
    // Behind the last key nobody looks for a page.
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
        v: Some(Tensor {
            data: Data::Bf16(&v),
            strides: problem.kv.strides,
        }),
        ..problem
    };
    agrees("paged_v", &tensors, &problem);

    // As many keys as the table has room for.
    let (_, paged) = pages(&numbers(1280, 2), 128);
    let tensors = Tensors::scaled()
        .bf16s("q", &[2, 2, 3, 128], &q)
        .bf16s("kv", &[8, 2, 128], &paged)
        .i32s("block_table", &[2, 2], &[5, 0, 2, 7]);
    let page = |page: usize| &paged[page * 256..][..256];
    let kv = [page(5), page(0), page(2), page(7)].concat();
    let shape = Shape { s_k: 4, ..SMALL };
    agrees("paged_whole", &tensors, &dense(shape, &q, &kv));
}

#[test]
fn ragged_queries_and_caches() {
    // The second request has nothing, the last more queries than keys.
    let (q_indptr, kv_indptr) = ([0, 1, 1, 3, 6], [1, 6, 6, 9, 11]);
    let (q, mut kv) = (numbers(6 * 384, 1), numbers(12 * 128, 2));
    kv[..128].fill(bf16::NAN);
    kv[11 * 128..].fill(bf16::NAN);
    let shape = Shape {
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

    // Either alone.
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

/// The first `at` columns of rows of `width`, and the others.
fn cut(rows: &[bf16], width: usize, at: usize) -> [Vec<bf16>; 2] {
    let rows = rows.chunks(width);
    [
        rows.clone().flat_map(|row| &row[..at]).copied().collect(),
        rows.flat_map(|row| &row[at..]).copied().collect(),
    ]
}

#[test]
fn rotary_parts_apart() {
    let (q, kv) = (numbers(12 * 192, 1), numbers(10 * 192, 2));
    let ([q_nope, q_rope], [ckv, k_rope]) = (cut(&q, 192, 128), cut(&kv, 192, 128));
    let problem = dense(Shape { d_qk: 192, ..SMALL }, &q, &kv);
    let scaled = Tensors::scaled;
    let whole_q = |tensors: Tensors| tensors.bf16s("q", &[2, 2, 3, 192], &q);
    let split_q = |tensors: Tensors| {
        tensors
            .bf16s("q_nope", &[2, 2, 3, 128], &q_nope)
            .bf16s("q_rope", &[2, 2, 3, 64], &q_rope)
    };
    let whole_kv = |tensors: Tensors| tensors.bf16s("kv", &[2, 5, 192], &kv);
    let split_kv = |tensors: Tensors| {
        tensors
            .bf16s("ckv", &[2, 5, 128], &ckv)
            .bf16s("k_rope", &[2, 5, 64], &k_rope)
    };
    agrees("split", &split_q(split_kv(scaled())), &problem);
    agrees("split_q", &split_q(whole_kv(scaled())), &problem);
    agrees("split_kv", &whole_q(split_kv(scaled())), &problem);
}

#[test]
fn grouped_heads() {
    // Two query heads for each of two KV heads.
    let shape = Shape {
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
        v: Some(Tensor {
            data: Data::Bf16(&v),
            strides: problem.kv.strides,
        }),
        ..problem
    };
    agrees("heads_v", &tensors, &problem);
    // Nothing to see for anyone.
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
    for (dtype, tail) in [
        (Dtype::U8, 3),
        (Dtype::BOOL, 80),
        (Dtype::U8, 70),
        (Dtype::U8, 0),
    ] {
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
            ..dense(Shape { s_k: 80, ..SMALL }, &q, &kv)
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
    let shape = Shape {
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

/// Sparse attention over the caches of [`sparse_attention`].
fn sparse<'a>(
    problem: Problem<'a>,
    own: Indices<'a>,
    extra: Option<(&'a [bf16], Indices<'a>)>,
) -> Problem<'a> {
    Problem {
        sparse: Some(Sparse {
            indices: own,
            extra: extra.map(|(kv, indices)| Extra {
                kv: Tensor {
                    data: Data::Bf16(kv),
                    strides: [3 * 128, 128, 0],
                },
                pages: 3,
                page_size: 3,
                indices,
            }),
        }),
        ..problem
    }
}

#[test]
fn sparse_attention() {
    let (q, kv, extra_kv) = (numbers(1536, 1), numbers(1280, 2), numbers(9 * 128, 3));
    let (table, paged) = pages(&kv, 128);
    let place = |request: usize, key: usize| table[request * 3 + key / 2] * 2 + (key % 2) as i32;
    // Another request's keys, one twice, a row without any, and some that don't count.
    let indices = [
        [place(0, 3), -1, place(0, 0), place(1, 2)],
        [16, i32::MIN, 2_147_480_000, -1],
        [place(1, 4), place(1, 4), place(0, 1), place(1, 0)],
        [99, place(1, 0), place(1, 1), place(1, 2)],
    ];
    let extra_indices = [[8, 0], [9, -5], [1, 1], [2, 3]];
    let own = Indices {
        indices: indices.as_flattened(),
        strides: [8, 4],
        topk: 4,
        topk_length: None,
    };
    let extra = Indices {
        indices: extra_indices.as_flattened(),
        strides: [4, 2],
        topk: 2,
        topk_length: None,
    };
    let dense = Problem {
        kv: Tensor {
            data: Data::Bf16(&paged),
            strides: [256, 128, 0],
        },
        pages: Some(Pages {
            block_table: &[],
            max_blocks: 0,
            page_size: 2,
            pages: 8,
        }),
        ..dense(Shape { s_k: 16, ..SMALL }, &q, &kv)
    };
    let tensors = Tensors::scaled()
        .bf16s("q", &[2, 2, 3, 128], &q)
        .bf16s("kv", &[8, 2, 128], &paged)
        .i32s("indices", &[2, 2, 4], indices.as_flattened());
    let record = agrees("sparse", &tensors, &sparse(dense, own, None));
    counts(&record, 3.0 * f64::from(3 + 4 + 3), 256.0);

    let lengths = tensors.clone().i32s("topk_length", &[2], &[3, 2]);
    let shorter = Indices {
        topk_length: Some(&[3, 2]),
        ..own
    };
    let record = agrees("sparse_lengths", &lengths, &sparse(dense, shorter, None));
    counts(&record, 3.0 * f64::from(2 + 2 + 1), 256.0);

    let sink = [0.5, f32::NEG_INFINITY, 3.0];
    let more = lengths
        .bf16s("kv", &[8, 2, 1, 128], &paged)
        .bf16s("extra_kv", &[3, 3, 128], &extra_kv)
        .i32s("extra_indices", &[2, 2, 2], extra_indices.as_flattened())
        .f32s("sink", &[3], &sink);
    let dense = Problem {
        sink: Some(&sink),
        ..dense
    };
    let problem = sparse(dense, shorter, Some((&extra_kv, extra)));
    let record = agrees("sparse_extra", &more, &problem);
    counts(&record, 3.0 * f64::from(2 + 2 + 1 + 2 + 2 + 2), 256.0);
    let more =
        more.bf16s("extra_kv", &[3, 3, 1, 128], &extra_kv)
            .i32s("extra_topk_length", &[2], &[1, 0]);
    let extra = Indices {
        topk_length: Some(&[1, 0]),
        ..extra
    };
    let problem = sparse(dense, shorter, Some((&extra_kv, extra)));
    let record = agrees("sparse_extra_lengths", &more, &problem);
    counts(&record, 3.0 * f64::from(2 + 2 + 1 + 1), 256.0);

    // What FlashMLA takes and has no use for is named.
    let unused = tensors.i32s("block_table", &[1, 1], &[0]).seqlens(&[7]);
    let (_, output, _) = run(&folder("sparse_unused"), &unused, &[]);
    assert_eq!(
        text(&output.stderr),
        "note: \"block_table\" is not used\nnote: \"cache_seqlens\" is not used\n"
    );
}

/// With offsets, places count within the request.
#[test]
fn sparse_attention_to_ragged_caches() {
    let (q, kv) = (numbers(1536, 1), numbers(11 * 128, 2));
    let indices = [[0, 4, 2], [5, 1, -1], [3, 4, 0], [1, 1, 6]];
    let tensors = Tensors::scaled()
        .bf16s("q", &[2, 2, 3, 128], &q)
        .bf16s("kv", &[11, 128], &kv)
        .i32s("kv_indptr", &[3], &[1, 6, 11])
        .i32s("indices", &[2, 2, 3], indices.as_flattened());
    let places = Indices {
        indices: indices.as_flattened(),
        strides: [6, 3],
        topk: 3,
        topk_length: None,
    };
    let problem = Problem {
        kv_indptr: Some(&[1, 6, 11]),
        ..sparse(dense(SMALL, &q, &kv), places, None)
    };
    let record = agrees("sparse_ragged", &tensors, &problem);
    counts(&record, 3.0 * f64::from(3 + 1 + 3 + 2), 256.0);
    let problem = Problem {
        cache_seqlens: Some(&[5, 4]),
        ..problem
    };
    let record = agrees("sparse_seqlens", &tensors.seqlens(&[5, 4]), &problem);
    counts(&record, 3.0 * f64::from(3 + 1 + 2 + 2), 256.0);
}

#[test]
fn sparse_attention_to_all_keys_is_dense() {
    // Sparse, each position is a group of its own: one kernel takes its rows and those of both.
    // Of `avx512` that is so with up to 4 rows, from 5 to 16, and from 17 on. Of `avx512bf16`, where it is
    // the default, up to 3, from 4 to 8 (on Zen 5 up to 4, from 5 to 8) and from 9 on to 28; of `amx` from 5 on.
    Backend::permit_amx();
    let some = match Backend::detect().id() {
        // More rows of both positions are cut where those of one aren't.
        _ if cfg!(amla_tiles = "small") => &[1, 2][..],
        BackendId::Avx512Bf16 => &[1, 10, 14],
        BackendId::Avx512 => &[2, 5, 8, 20],
        BackendId::Amx => &[1, 5, 8, 20],
        _ => &[2, 4, 8, 20],
    };
    for &heads in some {
        sparse_to_all_keys(heads);
    }
}

fn sparse_to_all_keys(heads: usize) {
    let kv = numbers(2 * 500 * 128, 2);
    let dense = Tensors::scaled()
        .bf16s("q", &[2, 2, heads, 128], &numbers(4 * heads * 128, 1))
        .bf16s("kv", &[2, 500, 128], &kv);
    // Places of both positions of either request.
    let places = |keys: std::ops::Range<i32>, over: i32| -> Vec<i32> {
        let positions = [0, 0, 1, 1].map(|request| keys.clone().map(move |k| request * over + k));
        positions.into_iter().flatten().collect()
    };
    let by_page = dense
        .clone()
        .i32s("indices", &[2, 2, 500], &places(0..500, 500));
    let by_request = dense
        .clone()
        .bf16s("kv", &[1000, 128], &kv)
        .i32s("kv_indptr", &[3], &[0, 500, 1000])
        .i32s("indices", &[2, 2, 500], &places(0..500, 0));
    let from_two = dense
        .clone()
        .bf16s("kv", &[250, 4, 128], &kv)
        .i32s("indices", &[2, 2, 200], &places(0..200, 500))
        .bf16s("extra_kv", &[40, 25, 1, 128], &kv)
        .i32s("extra_indices", &[2, 2, 300], &places(200..500, 500));
    same(
        &format!("sparse_all_{heads}"),
        &[dense, by_page, by_request, from_two],
    );
}

#[test]
fn fp8_rows() {
    let (q, kv) = (numbers(12 * 576, 1), steps(10 * 576, 2, 64, 14));
    let (table, paged) = pages(&kv, 576);
    let queries = Tensors::scaled().bf16s("q", &[2, 2, 3, 576], &q);
    let wide = queries.clone().bf16s("kv", &[2, 5, 576], &kv);
    let rows = queries
        .clone()
        .with("kv", Dtype::U8, &[2, 5, 656], fp8(&kv));
    // As torch saves FlashMLA's cache.
    let in_pages = queries
        .with("kv", Dtype::F8_E4M3, &[8, 2, 1, 656], fp8(&paged))
        .i32s("block_table", &[2, 3], &table)
        .seqlens(&[5, 5]);
    same("fp8", &[wide, rows, in_pages]);

    // Rows of two heads.
    let heads = Tensors::scaled().bf16s("q", &[1, 2, 6, 576], &q);
    let wide = heads.clone().bf16s("kv", &[1, 5, 2, 576], &kv);
    let rows = heads.with("kv", Dtype::U8, &[1, 5, 2, 656], fp8(&kv));
    same("fp8_heads", &[wide, rows]);
}

#[test]
fn model1_pages() {
    let (q, kv) = (numbers(12 * 512, 1), steps(10 * 512, 2, 64, 14));
    let (table, paged) = pages(&kv, 512);
    let queries = Tensors::scaled().bf16s("q", &[2, 2, 3, 512], &q);
    let wide = queries.clone().bf16s("kv", &[2, 5, 512], &kv);
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
    same("model1", &[wide, of_requests, ragged, in_pages]);
}

#[test]
fn int8_rows() {
    let [q, kv, v] =
        [(16, 1), (20, 2), (20, 3)].map(|(rows, seed)| steps(rows * 128, seed, 128, 127));
    // Two KV heads.
    let (q_shape, shape) = ([2, 2, 4, 128], [2, 5, 2, 128]);
    let wide = Tensors::scaled()
        .bf16s("q", &q_shape, &q)
        .bf16s("kv", &shape, &kv)
        .bf16s("v", &shape, &v);
    let stored = Tensors::scaled()
        .int8s(["q", "q_scale"], &q_shape, &q)
        .int8s(["kv", "kv_scale"], &shape, &kv)
        .int8s(["v", "v_scale"], &shape, &v);
    same("int8", &[wide, stored]);
}

#[test]
fn parts_of_several_formats() {
    let (q, kv) = (numbers(12 * 192, 1), numbers(10 * 192, 2));
    let ([q_nope, q_rope], [_, k_rope]) = (cut(&q, 192, 128), cut(&kv, 192, 128));
    let ckv = steps(10 * 128, 2, 128, 127);
    let halves = |x: &[bf16]| -> Vec<f16> { x.iter().map(|x| f16::from_f32(x.to_f32())).collect() };
    let wide = Tensors::scaled()
        .bf16s("q_nope", &[2, 2, 3, 128], &q_nope)
        .bf16s("q_rope", &[2, 2, 3, 64], &q_rope)
        .bf16s("ckv", &[2, 5, 128], &ckv)
        .bf16s("k_rope", &[2, 5, 64], &k_rope);
    let stored = wide
        .clone()
        .f16s("q_nope", &[2, 2, 3, 128], &halves(&q_nope))
        .f16s("k_rope", &[2, 5, 64], &halves(&k_rope));
    let stored = stored.int8s(["ckv", "ckv_scale"], &[2, 5, 128], &ckv);
    same("parts", &[wide, stored]);
}

#[test]
fn f16_rows() {
    // Thirds are FP16 numbers that BF16 isn't.
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
    let wide = Tensors::scaled()
        .bf16s("q", &[2, 2, 3, 128], &round(&q))
        .bf16s("kv", &[2, 5, 128], &round(&kv))
        .bf16s("v", &[2, 5, 128], &round(&v));
    same("f16", &[wide, stored.clone()]);

    // What a host that computes in FP16 expects.
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

/// DeepSeek's sparse attention as FlashMLA runs it: FP8 pages, chosen from by their places.
#[test]
fn sparse_attention_to_stored_rows() {
    let places = |tensors: Tensors| {
        let indices = [-1, 3, 15, 0, 7, 2, 99, 4, 1, 1, -7, 5];
        tensors
            .i32s("indices", &[2, 2, 3], &indices)
            .i32s("topk_length", &[2], &[2, 3])
            .i32s("extra_indices", &[2, 2, 2], &[0, 8, 9, 1, 2, 3, 5, 4])
            .f32s("sink", &[3], &[0.0, 1.0, f32::INFINITY])
    };
    let (q, kv, extra_kv) = (
        numbers(12 * 576, 1),
        steps(16 * 576, 2, 64, 14),
        steps(9 * 576, 3, 576, 127),
    );
    let queries = places(Tensors::scaled().bf16s("q", &[2, 2, 3, 576], &q));
    let wide = queries.clone().bf16s("kv", &[8, 2, 1, 576], &kv).bf16s(
        "extra_kv",
        &[3, 3, 1, 576],
        &extra_kv,
    );
    let stored = queries.with("kv", Dtype::U8, &[8, 2, 1, 656], fp8(&kv));
    let names = ["extra_kv", "extra_kv_scale"];
    let stored = stored.int8s(names, &[3, 3, 1, 576], &extra_kv);
    same("sparse_fp8", &[wide, stored]);

    let (kv, extra_kv) = (steps(16 * 512, 2, 64, 14), steps(9 * 512, 3, 64, 14));
    let queries = places(Tensors::scaled().bf16s("q", &[2, 2, 3, 512], &numbers(12 * 512, 1)));
    let wide = queries.clone().bf16s("kv", &[8, 2, 1, 512], &kv).bf16s(
        "extra_kv",
        &[3, 3, 1, 512],
        &extra_kv,
    );
    let stored = queries
        .with("kv", Dtype::F8_E4M3, &[8, 2, 1, 584], model1(&kv, 2))
        .with("extra_kv", Dtype::U8, &[3, 3, 584], model1(&extra_kv, 3));
    same("sparse_model1", &[wide, stored]);
}

#[test]
fn expectations_hold_for_their_masks_only() {
    let path = folder("expectations").join("in.safetensors");
    let run = |tensors: &Tensors, args: &[&str]| {
        tensors.write(&path);
        let output = decode().arg(&path).args(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        output
    };
    let expecting = Tensors::small()
        .zeros("expected_o", Dtype::F32, &[2, 2, 3, 128])
        .zeros("expected_lse", Dtype::F32, &[2, 3, 2]);
    let masked = expecting
        .clone()
        .metadata("causal", "true")
        .metadata("window", "3");
    for (tensors, args, without) in [
        (&expecting, &[][..], ""),
        (&expecting, &["--causal"], "--causal"),
        (&expecting, &["--window", "3"], "--window"),
        (
            &expecting,
            &["--window", "3", "--causal"],
            "--causal and --window",
        ),
        (&masked, &[], ""),
        (&masked, &["--causal"], ""),
        (&masked, &["--causal", "--window", "3"], ""),
        (&masked, &["--causal", "--window", "2"], "--window"),
    ] {
        let output = run(tensors, &[args, &["--json"]].concat());
        let record = json(&output);
        let masks = tensors.metadata.len() == 2;
        assert_eq!(record["causal"], masks || args.contains(&"--causal"));
        let error = record["error"].as_f64();
        if without.is_empty() {
            assert_eq!(text(&output.stderr), "");
            assert_eq!(record["reference"], "expected");
            // Infinite, as zeros are expected.
            assert_eq!(error, None);
        } else {
            let note = format!(
                "note: expected_o and expected_lse were computed without {without}: \
                 not compared, errors are against Golden\n"
            );
            assert_eq!(text(&output.stderr), note);
            assert_eq!(record["reference"], "golden");
            assert!(error.unwrap() < 1e-2, "{record}");
            let seen = match (record["causal"] == true, record["window"].as_u64()) {
                (true, None) => 4 + 5,
                (true, Some(window)) => window + window,
                (false, Some(3)) => 4 + 3,
                _ => panic!("{record}"),
            };
            counts(&record, (2 * 3 * seen) as f64, 256.0);
            // So in the table.
            assert_eq!(text(&run(tensors, args).stderr), note);
        }
    }

    // One of them, and none.
    let one = expecting.without("expected_lse");
    let note = "expected_o was computed without --causal";
    assert!(text(&run(&one, &["--causal"]).stderr).contains(note));
    let one = one
        .without("expected_o")
        .zeros("expected_lse", Dtype::F32, &[2, 3, 2]);
    let note = "expected_lse was computed without --causal";
    assert!(text(&run(&one, &["--causal"]).stderr).contains(note));
    let none = one.without("expected_lse");
    assert_eq!(text(&run(&none, &["--causal"]).stderr), "");
}

#[test]
fn nothing_to_compute() {
    let folder = folder("nothing");
    let problem = folder.join("in.safetensors");
    for (b, s_k) in [(0, 5), (2, 0)] {
        Tensors::small()
            .zeros("q", Dtype::BF16, &[b, 2, 3, 128])
            .zeros("kv", Dtype::BF16, &[b, s_k, 128])
            .write(&problem);
        for threads in ["1", "2"] {
            let record = json(
                &decode()
                    .arg(&problem)
                    .args(["--json", "--threads", threads])
                    .output()
                    .unwrap(),
            );
            for key in ["error", "base_error", "lse_error", "gflops", "utilization"] {
                assert_eq!(record[key], 0.0, "{key}: {record}");
            }
        }
    }
}

#[test]
fn closed_stdout_ends_quietly() {
    let folder = folder("closed");
    let problem = folder.join("in.safetensors");
    Tensors::small().write(&problem);
    for args in [&["--json"][..], &[], &["--help"]] {
        let mut child = decode()
            .arg(&problem)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn malformed_files_are_refused() {
    use Dtype::{BF16, F32, F64, I32, I64};
    let folder = folder("malformed");
    let small = Tensors::small;
    let whole = small().bytes();
    let scale = |x: f32| small().f32s("softmax_scale", &[1], &[x]);
    let square = |d| {
        small()
            .zeros("q", BF16, &[2, 2, 3, d])
            .zeros("kv", BF16, &[2, 5, d])
    };
    let mut cases = vec![
        (Vec::new(), "not a valid safetensors file"),
        (b"hello, world".to_vec(), "not a valid safetensors file"),
        (vec![0xff; 64], "not a valid safetensors file"),
        (whole[..4].to_vec(), "not a valid safetensors file"),
        (whole[..40].to_vec(), "not a valid safetensors file"),
        (
            whole[..whole.len() - 1].to_vec(),
            "not a valid safetensors file",
        ),
    ];
    cases.extend(
        [
            (small().without("q"), "no tensor q"),
            (small().without("kv"), "no tensor kv"),
            (small().without("softmax_scale"), "no tensor softmax_scale"),
            (small().zeros("q", F64, &[2, 2, 3, 128]), "q is F64"),
            (small().zeros("kv", F64, &[2, 5, 128]), "kv is F64"),
            (small().zeros("v", I32, &[2, 5, 128]), "v is I32"),
            (
                small().zeros("softmax_scale", F64, &[1]),
                "softmax_scale is F64",
            ),
            (
                small().zeros("cache_seqlens", I64, &[2]),
                "cache_seqlens is I64",
            ),
            (
                small().zeros("expected_o", F64, &[2, 2, 3, 128]),
                "expected_o is F64",
            ),
            (
                small().zeros("expected_lse", F64, &[2, 2, 3]),
                "expected_lse is F64",
            ),
            (
                small().zeros("q", BF16, &[2, 6, 128]),
                "q has shape [2, 6, 128]",
            ),
            (
                small().zeros("kv", BF16, &[10, 128]),
                "kv has shape [10, 128]",
            ),
            (
                small().zeros("v", BF16, &[2, 5, 1, 128]),
                "v has shape [2, 5, 1, 128]",
            ),
            (
                small().zeros("softmax_scale", F32, &[]),
                "softmax_scale has shape []",
            ),
            (
                small().zeros("softmax_scale", F32, &[2]),
                "softmax_scale has shape [2]",
            ),
            (
                small().zeros("kv", BF16, &[1, 5, 128]),
                "kv has shape [1, 5, 128]",
            ),
            (
                small().zeros("kv", BF16, &[2, 5, 64]),
                "kv has shape [2, 5, 64]",
            ),
            (
                small().zeros("v", BF16, &[2, 4, 128]),
                "v has shape [2, 4, 128]",
            ),
            (
                small().zeros("cache_seqlens", I32, &[3]),
                "cache_seqlens has shape [3]",
            ),
            (
                small().zeros("expected_o", F32, &[2, 3, 2, 128]),
                "expected_o has shape",
            ),
            (
                small().zeros("expected_lse", F32, &[2, 6]),
                "expected_lse has shape",
            ),
            (small().zeros("v", BF16, &[2, 5, 64]), "(128, 64)"),
            (small().seqlens(&[5, 6]), "cache_seqlens[1] is 6"),
            (small().seqlens(&[-1, 5]), "cache_seqlens[0] is -1"),
            (scale(f32::NAN), "softmax_scale is NaN"),
            (scale(f32::INFINITY), "softmax_scale is inf"),
            (square(96), "d_qk = 96"),
            (square(0), "d_qk = 0"),
            (small().zeros("q", BF16, &[2, 2, 0, 128]), "h_q is 0"),
        ]
        .map(|(tensors, why)| (tensors.bytes(), why)),
    );
    for (bytes, why) in cases {
        refused_file(&folder, &bytes, &[], why);
    }
}

#[test]
fn files_that_do_not_fit_together_are_refused() {
    use Dtype::{BF16, F32, I32, I64, U8};
    const HUGE: usize = 1 << 63;
    let folder = folder("misfits");
    let small = Tensors::small;
    let ragged_q = |indptr: &[i32]| {
        let tokens = small().zeros("q", BF16, &[4, 3, 128]);
        tokens.i32s("q_indptr", &[indptr.len()], indptr)
    };
    let ragged_kv = |indptr: &[i32]| {
        let tokens = small().zeros("kv", BF16, &[8, 128]);
        tokens.i32s("kv_indptr", &[indptr.len()], indptr)
    };
    let paged = |table: &[i32; 6]| {
        let pages = small().zeros("kv", BF16, &[8, 2, 128]);
        pages.i32s("block_table", &[2, 3], table)
    };
    let fine = &[5, 0, 3, 7, 2, 4];
    let split = || {
        Tensors::scaled()
            .zeros("q_nope", BF16, &[2, 2, 3, 128])
            .zeros("q_rope", BF16, &[2, 2, 3, 64])
            .zeros("ckv", BF16, &[2, 5, 128])
            .zeros("k_rope", BF16, &[2, 5, 64])
    };
    let grouped = |h_q, h_kv| {
        small()
            .zeros("q", BF16, &[2, 2, h_q, 128])
            .zeros("kv", BF16, &[2, 5, h_kv, 128])
    };
    let mask = |shape: &[usize]| small().zeros("tail_mask", U8, shape);
    for (tensors, why) in [
        // Offsets of queries.
        (
            small().i32s("q_indptr", &[3], &[0, 2, 4]),
            "q has shape [2, 2, 3, 128], expected [tokens, h_q, d_qk]",
        ),
        (
            small().zeros("q", BF16, &[4, 3, 128]),
            "q has shape [4, 3, 128], expected [b, s_q, h_q, d_qk]",
        ),
        (ragged_q(&[]), "q_indptr has shape [0], expected [b + 1]"),
        (
            ragged_q(&[0, 2, 4]).zeros("q_indptr", I32, &[1, 3]),
            "q_indptr has shape [1, 3], expected [b + 1]",
        ),
        (
            ragged_q(&[0, 2, 4]).zeros("q_indptr", I64, &[3]),
            "q_indptr is I64",
        ),
        (
            ragged_q(&[0, 2, 5]),
            "q_indptr [3] runs from 0 to 5, not over q [4, 3, 128]",
        ),
        (ragged_q(&[0, 2, 3]), "q_indptr [3] runs from 0 to 3"),
        (ragged_q(&[1, 2, 4]), "q_indptr [3] runs from 1 to 4"),
        (ragged_q(&[0, 2, -1]), "q_indptr [3] runs from 0 to -1"),
        (
            ragged_q(&[0, i32::MIN, 4]),
            "q_indptr[0..=1] is 0, -2147483648",
        ),
        (ragged_q(&[0, 3, 2, 4]), "kv has shape [2, 5, 128]"),
        (
            ragged_q(&[0, 3, 2, 4]).zeros("kv", BF16, &[3, 5, 128]),
            "q_indptr[1..=2] is 3, 2",
        ),
        (
            ragged_q(&[0, 2, 4]).zeros("expected_o", F32, &[2, 2, 3, 128]),
            "expected_o has shape [2, 2, 3, 128], expected [4, 3, 128]",
        ),
        (
            ragged_q(&[0, 2, 4]).zeros("expected_lse", F32, &[1, 3, 4]),
            "expected_lse has shape [1, 3, 4], expected [3, 4] or [4, 3]",
        ),
        // Offsets of keys.
        (
            small()
                .i32s("kv_indptr", &[3], &[0, 5, 8])
                .zeros("kv", BF16, &[1, 8, 1, 128]),
            "kv has shape [1, 8, 1, 128], expected [tokens, d_qk] or [tokens, h_kv, d_qk]",
        ),
        (ragged_kv(&[0, 5]), "kv_indptr has shape [2], expected [3]"),
        (ragged_kv(&[]), "kv_indptr has shape [0], expected [b + 1]"),
        (
            ragged_kv(&[0, 5, 9]),
            "kv_indptr [3] runs to 9, kv [8, 128] does not",
        ),
        (ragged_kv(&[0, 5, -8]), "kv_indptr [3] runs to -8"),
        (ragged_kv(&[-1, 5, 8]), "kv_indptr[0..=1] is -1, 5"),
        (ragged_kv(&[0, 8, 5]), "kv_indptr[1..=2] is 8, 5"),
        (
            ragged_kv(&[0, 5, 8]).zeros("kv_indptr", F32, &[3]),
            "kv_indptr is F32",
        ),
        (
            ragged_kv(&[0, 5, 8]).seqlens(&[5, 4]),
            "cache_seqlens[1] is 4",
        ),
        (
            ragged_kv(&[0, 5, 8]).zeros("v", BF16, &[2, 5, 128]),
            "v has shape [2, 5, 128], expected [8, 128]",
        ),
        // Pages.
        (
            paged(fine).zeros("kv", BF16, &[16, 128]),
            "kv has shape [16, 128], expected [pages, page_size, d_qk] or",
        ),
        (
            paged(fine).zeros("kv", BF16, &[8, 0, 128]),
            "kv [8, 0, 128] has a page size of 0",
        ),
        (
            paged(fine).zeros("block_table", I32, &[6]),
            "block_table has shape [6], expected [b, max_blocks]",
        ),
        (
            paged(fine).zeros("block_table", I32, &[3, 2]),
            "block_table has shape [3, 2], expected [2, 2]",
        ),
        (
            paged(fine).zeros("block_table", I64, &[2, 3]),
            "block_table is I64",
        ),
        (paged(&[5, 0, 3, 8, 2, 4]), "block_table[1][0] is 8"),
        (paged(&[5, 0, -1, 7, 2, 4]), "block_table[0][2] is -1"),
        (paged(fine).seqlens(&[5, 7]), "cache_seqlens[1] is 7"),
        (
            paged(fine).zeros("v", BF16, &[8, 2, 1, 128]),
            "v has shape [8, 2, 1, 128], expected [8, 2, 128]",
        ),
        (
            paged(fine).i32s("kv_indptr", &[3], &[0, 5, 8]),
            "block_table [2, 3] and kv_indptr [3] exclude each other",
        ),
        // Parts.
        (
            split().zeros("q", BF16, &[2, 2, 3, 192]),
            "q [2, 2, 3, 192] and q_nope [2, 2, 3, 128] exclude each other",
        ),
        (
            small().zeros("q_rope", BF16, &[2, 2, 3, 64]),
            "q [2, 2, 3, 128] and q_rope [2, 2, 3, 64] exclude each other",
        ),
        (
            small().zeros("ckv", BF16, &[2, 5, 128]),
            "kv [2, 5, 128] and ckv [2, 5, 128] exclude each other",
        ),
        (
            split().without("q_rope"),
            "there is no tensor q_rope for q_nope [2, 2, 3, 128]",
        ),
        (
            split().without("q_nope"),
            "there is no tensor q_nope for q_rope [2, 2, 3, 64]",
        ),
        (
            split().without("k_rope"),
            "there is no tensor k_rope for ckv [2, 5, 128]",
        ),
        (
            split().without("ckv"),
            "there is no tensor ckv for k_rope [2, 5, 64]",
        ),
        (
            split().zeros("q_nope", BF16, &[2, 6, 128]),
            "q_nope has shape [2, 6, 128], expected [b, s_q, h_q, d_v]",
        ),
        (
            split().zeros("q_rope", BF16, &[2, 2, 1, 64]),
            "q_rope has shape [2, 2, 1, 64], expected [2, 2, 3, 64]",
        ),
        (
            split().zeros("q_rope", BF16, &[]),
            "q_rope has shape [], expected [2, 2, 3, 0]",
        ),
        (
            split().zeros("ckv", BF16, &[2, 5, 64]),
            "ckv has shape [2, 5, 64], expected [2, 5, 128]",
        ),
        (
            split().zeros("k_rope", BF16, &[2, 5, 32]),
            "k_rope has shape [2, 5, 32], expected [2, 5, 64]",
        ),
        (
            split().zeros("k_rope", BF16, &[2, 5, 1, 64]),
            "k_rope has shape [2, 5, 1, 64], expected [2, 5, 64]",
        ),
        (split().zeros("k_rope", I32, &[2, 5, 64]), "k_rope is I32"),
        (
            split().zeros("v", BF16, &[2, 5, 64]),
            "v has shape [2, 5, 64], expected [2, 5, 128]",
        ),
        (
            small()
                .without("kv")
                .zeros("ckv", BF16, &[2, 5, 128])
                .zeros("k_rope", BF16, &[2, 5, 0]),
            "d_v is 128, not in 1..=127",
        ),
        // KV heads.
        (grouped(3, 2), "h_q is 3, not a multiple of h_kv, 2"),
        (grouped(3, 0), "h_kv is 0"),
        (
            grouped(4, 2).zeros("v", BF16, &[2, 5, 128]),
            "v has shape [2, 5, 128], expected [2, 5, 2, 128]",
        ),
        (
            grouped(4, 2).zeros("v", BF16, &[2, 5, 1, 128]),
            "v has shape [2, 5, 1, 128], expected [2, 5, 2, 128]",
        ),
        (
            small().zeros("kv", BF16, &[2, 5, 1, 1, 128]),
            "kv has shape [2, 5, 1, 1, 128], expected [b, s_k, d_qk] or [b, s_k, h_kv, d_qk]",
        ),
        // Sinks and masks.
        (
            small().zeros("sink", F32, &[4]),
            "sink has shape [4], expected [3]",
        ),
        (
            small().zeros("sink", F32, &[1, 3]),
            "sink has shape [1, 3], expected [3]",
        ),
        (small().zeros("sink", BF16, &[3]), "sink is BF16"),
        (
            mask(&[2, 4]),
            "tail_mask has shape [2, 4], expected [2, 2, 4]",
        ),
        (mask(&[]), "tail_mask has shape [], expected [2, 2, 0]"),
        (
            mask(&[2, 3, 4]),
            "tail_mask has shape [2, 3, 4], expected [2, 2, 4]",
        ),
        (
            small().zeros("tail_mask", I32, &[2, 2, 4]),
            "tail_mask is I32, expected BOOL or U8",
        ),
        (
            small().with("tail_mask", U8, &[2, 2, 1], vec![0, 1, 3, 1]),
            "tail_mask holds 3",
        ),
        (
            mask(&[2, 2, 4]).metadata("causal", "true"),
            "tail_mask and causal can't be combined",
        ),
        (
            small().metadata("causal", "1"),
            "metadata causal is \"1\", expected true or false",
        ),
        (
            small().metadata("window", "0"),
            "metadata window is \"0\", expected 1 or more",
        ),
        (
            small().metadata("window", "-1"),
            "metadata window is \"-1\"",
        ),
        (
            small().metadata("window", "many\nkeys"),
            "metadata window is \"many\\nkeys\"",
        ),
        // Sizes that nothing bounds, as there are no elements.
        (
            small().zeros("q", BF16, &[usize::MAX, 0, 3, 128]),
            "kv has shape [2, 5, 128]",
        ),
        (
            small().zeros("q", BF16, &[usize::MAX, 0, 3, 128]).zeros(
                "kv",
                BF16,
                &[usize::MAX, 0, 128],
            ),
            "s_q is 0",
        ),
        (
            ragged_kv(&[0, 5, 8]).zeros("q", BF16, &[usize::MAX, 0, 3, 128]),
            "kv_indptr has shape [3], expected [18446744073709551615]",
        ),
        (
            split()
                .zeros("q_nope", BF16, &[0, 2, 3, HUGE])
                .zeros("q_rope", BF16, &[0, 2, 3, HUGE]),
            "ckv has shape",
        ),
        (
            small()
                .zeros("q", BF16, &[2, 0, HUGE, 128])
                .zeros("expected_lse", F32, &[2, 0, HUGE]),
            "s_q is 0",
        ),
        (
            paged(fine)
                .zeros("q", BF16, &[0, HUGE, 3, 128])
                .zeros("kv", BF16, &[0, HUGE, 128])
                .zeros("block_table", I32, &[0, HUGE]),
            "s_q is 9223372036854775808",
        ),
    ] {
        refused_file(&folder, &tensors.bytes(), &[], why);
    }
}

#[test]
fn rows_and_places_that_do_not_fit_are_refused() {
    use Dtype::{BF16, F8_E5M2, F32, I8, I32, I64, U8};
    const HUGE: usize = 1 << 63;
    let folder = folder("rows_and_places");
    let small = Tensors::small;
    let wide = |d_qk| Tensors::scaled().zeros("q", BF16, &[2, 2, 4, d_qk]);
    let quantised = || {
        let tensors = small().zeros("kv", I8, &[2, 5, 128]);
        tensors.zeros("kv_scale", F32, &[2, 5])
    };
    let sparse = || small().zeros("indices", I32, &[2, 2, 4]);
    let two = || {
        sparse()
            .zeros("extra_kv", BF16, &[3, 3, 128])
            .zeros("extra_indices", I32, &[2, 2, 2])
    };
    for (tensors, why) in [
        // Bytes.
        (
            small().zeros("kv", U8, &[2, 5, 128]),
            "kv is U8 in rows of 128, expected 656 (FP8) or 584 (MODEL1)",
        ),
        (
            small().zeros("kv", F8_E5M2, &[2, 5, 656]),
            "kv is F8_E5M2, expected BF16, F16, F32, I8, U8 or F8_E4M3",
        ),
        (
            small().zeros("kv", U8, &[2, 5, 656]),
            "kv has shape [2, 5, 656], expected [2, 5, 128]; its rows have 576 columns",
        ),
        (
            wide(576).zeros("kv", U8, &[2, 5, 584]),
            "kv has shape [2, 5, 584], expected [2, 5, 576]; its rows have 512 columns",
        ),
        (
            wide(576).zeros("kv", U8, &[3, 5, 656]),
            "kv has shape [3, 5, 656], expected [2, 5, 656]",
        ),
        (
            wide(576).zeros("kv", U8, &[10, 656]),
            "kv has shape [10, 656], expected [b, s_k, d_qk]",
        ),
        (
            wide(512).zeros("kv", U8, &[2, 5, 2, 584]),
            "kv [2, 5, 2, 584] has MODEL1 rows of 2 heads, not 1",
        ),
        (small().zeros("v", U8, &[2, 5, 656]), "(128, 576)"),
        // Scales.
        (
            quantised().without("kv_scale"),
            "there is no tensor kv_scale for kv [2, 5, 128]",
        ),
        (
            quantised().zeros("kv_scale", F32, &[2, 5, 1]),
            "kv_scale has shape [2, 5, 1], expected [2, 5]",
        ),
        (
            quantised().zeros("kv_scale", F32, &[1]),
            "kv_scale has shape [1], expected [2, 5]",
        ),
        (
            quantised().zeros("kv_scale", BF16, &[2, 5]),
            "kv_scale is BF16, expected F32",
        ),
        (
            quantised().zeros("kv", BF16, &[2, 5, 128]),
            "kv_scale [2, 5] is for kv in I8, which is BF16",
        ),
        (
            small().zeros("q", I8, &[2, 2, 3, 128]),
            "there is no tensor q_scale for q [2, 2, 3, 128]",
        ),
        (
            two().zeros("extra_kv", I8, &[3, 3, 128]),
            "there is no tensor extra_kv_scale for extra_kv [3, 3, 128]",
        ),
        // Places.
        (sparse().zeros("indices", I64, &[2, 2, 4]), "indices is I64"),
        (
            sparse().zeros("indices", I32, &[2, 4]),
            "indices has shape [2, 4], expected [2, 2, 4]",
        ),
        (
            sparse().zeros("indices", I32, &[]),
            "indices has shape [], expected [2, 2, 0]",
        ),
        (
            sparse().zeros("topk_length", I32, &[2, 2]),
            "topk_length has shape [2, 2], expected [2]",
        ),
        (
            sparse().zeros("topk_length", I64, &[2]),
            "topk_length is I64",
        ),
        (
            sparse().i32s("topk_length", &[2], &[4, 5]),
            "topk_length[1] is 5, not in 0..=4",
        ),
        (
            sparse().i32s("topk_length", &[2], &[-1, 4]),
            "topk_length[0] is -1",
        ),
        (
            small().zeros("topk_length", I32, &[2]),
            "there is no tensor indices for topk_length [2]",
        ),
        (
            sparse().zeros("kv", BF16, &[10, 128]),
            "kv has shape [10, 128], expected [pages, page_size, d_qk] or",
        ),
        (
            sparse().zeros("kv", BF16, &[2, 0, 128]),
            "kv [2, 0, 128] has a page size of 0",
        ),
        // The second cache.
        (
            two().without("indices"),
            "there is no tensor indices for extra_kv",
        ),
        (
            two().without("extra_kv"),
            "there is no tensor extra_kv for extra_indices",
        ),
        (
            two().without("extra_indices"),
            "there is no tensor extra_indices for extra_kv [3, 3, 128]",
        ),
        (
            sparse().zeros("extra_topk_length", I32, &[2]),
            "there is no tensor extra_indices for extra_topk_length [2]",
        ),
        (
            two().zeros("extra_kv", BF16, &[9, 128]),
            "extra_kv has shape [9, 128], expected [pages, page_size, 1, 128]",
        ),
        (
            two().zeros("extra_kv", BF16, &[3, 3, 2, 128]),
            "extra_kv has shape [3, 3, 2, 128], expected [pages, page_size, 1, 128]",
        ),
        (
            two().zeros("extra_kv", BF16, &[3, 3, 64]),
            "extra_kv has shape [3, 3, 64], expected [3, 3, 128]",
        ),
        (
            two().zeros("extra_kv", U8, &[3, 3, 584]),
            "extra_kv has shape [3, 3, 584], expected [3, 3, 128]; its rows have 512 columns",
        ),
        (
            two().zeros("extra_kv", BF16, &[3, 0, 128]),
            "extra_kv [3, 0, 128] has a page size of 0",
        ),
        (
            two().zeros("extra_kv", I32, &[3, 3, 128]),
            "extra_kv is I32",
        ),
        (
            two().zeros("extra_indices", I32, &[2, 1, 2]),
            "extra_indices has shape [2, 1, 2], expected [2, 2, 2]",
        ),
        (
            two().i32s("extra_topk_length", &[2], &[0, 3]),
            "extra_topk_length[1] is 3, not in 0..=2",
        ),
        // What can't go with places.
        (
            sparse().metadata("causal", "true"),
            "indices and causal can't be combined",
        ),
        (
            sparse().metadata("window", "3"),
            "indices and window can't be combined",
        ),
        (
            sparse().zeros("tail_mask", U8, &[2, 2, 4]),
            "indices and tail_mask can't be combined",
        ),
        (
            sparse().zeros("v", BF16, &[2, 5, 128]),
            "indices and v can't be combined",
        ),
        (
            wide(192)
                .zeros("ckv", BF16, &[2, 5, 128])
                .zeros("k_rope", BF16, &[2, 5, 64])
                .zeros("indices", I32, &[2, 2, 4]),
            "indices and k_rope can't be combined",
        ),
        (
            sparse()
                .zeros("q", BF16, &[4, 3, 128])
                .i32s("q_indptr", &[3], &[0, 2, 4])
                .zeros("indices", I32, &[4, 4]),
            "indices and q_indptr can't be combined",
        ),
        (
            sparse()
                .zeros("kv", BF16, &[10, 128])
                .i32s("kv_indptr", &[3], &[0, 5, 10])
                .zeros("block_table", I32, &[2, 1]),
            "block_table [2, 1] and kv_indptr [3] exclude each other",
        ),
        // Sizes that nothing bounds, as there are no elements.
        (
            sparse()
                .zeros("q", BF16, &[0, HUGE, 3, 128])
                .zeros("indices", I32, &[0, HUGE, HUGE]),
            "s_q is 9223372036854775808",
        ),
        (
            sparse().zeros("kv", BF16, &[HUGE, 1, 0, 128]),
            "s_k is 9223372036854775808",
        ),
    ] {
        refused_file(&folder, &tensors.bytes(), &[], why);
    }
    for args in [&["--causal"][..], &["--window", "3"]] {
        let why = format!("indices and {} can't be combined", &args[0][2..]);
        refused_file(&folder, &sparse().bytes(), args, &why);
    }
}

#[test]
fn malformed_command_lines_are_refused() {
    let folder = folder("flags");
    let problem = folder.join("in.safetensors");
    Tensors::small().write(&problem);
    for (args, why) in [
        (&["missing.safetensors"][..], "missing.safetensors"),
        (&["."], "directory"),
        (&["in.safetensors", "more"], "more"),
        (&["in.safetensors", "--nonsense"], "--nonsense"),
        (&["in.safetensors", "--backend", "sse9"], "sse9"),
        (&["in.safetensors", "--rescale", "never"], "never"),
        (&["in.safetensors", "--precision", "fp8"], "fp8"),
        (&["in.safetensors", "--threads", "0"], "--threads"),
        (&["in.safetensors", "--threads", "many"], "many"),
        (&["in.safetensors", "--window", "0"], "--window"),
        (&["in.safetensors", "--window", "many"], "many"),
        (&["in.safetensors", "--d-v", "-1"], "-1"),
        (&["in.safetensors", "--d-v", "96"], "(128, 96)"),
        (&["in.safetensors", "--d-v", "18446744073709551615"], "d_v"),
        (&["in.safetensors", "-o"], "--output"),
        (&["-o", "out.safetensors"], "FILE"),
        (&["--d-v", "128"], "FILE"),
        (&["in.safetensors", "-o", "no/such/out"], "no/such/out"),
        (&["in.safetensors", "-o", "."], "cannot write ."),
        (&["in.safetensors", "-o", ""], "--output"),
        (
            &["in.safetensors", "-o", "./in.safetensors"],
            "is the problem itself",
        ),
    ] {
        refused(decode().args(args).current_dir(&folder), why);
        assert_eq!(names(&folder), ["in.safetensors"], "{args:?}");
    }
    Backend::permit_amx();
    for id in BackendId::ALL {
        if Backend::request(id).is_err() {
            let name = id.name();
            refused(decode().arg(&problem).args(["--backend", name]), name);
        }
    }
}
