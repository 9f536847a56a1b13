//! Sparse attention.

use amla::{
    Backend, BackendId, Data, Extra, IndexList, Indices, Pages, Problem, ProblemShape, Sparse,
    TensorRef,
};
use half::bf16;
use safetensors::tensor::Dtype;

use crate::files::{SMALL, Tensors, dense, fp8, model1, numbers, pages, steps};
use crate::runs::{agrees, counts, folder, run, same, text};

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
                kv: TensorRef {
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
    let index = |request: usize, key: usize| table[request * 3 + key / 2] * 2 + (key % 2) as i32;
    // Keys of another request, one key twice, a row without keys, and invalid indices.
    let indices = [
        [index(0, 3), -1, index(0, 0), index(1, 2)],
        [16, i32::MIN, 2_147_480_000, -1],
        [index(1, 4), index(1, 4), index(0, 1), index(1, 0)],
        [99, index(1, 0), index(1, 1), index(1, 2)],
    ];
    let extra_indices = [[8, 0], [9, -5], [1, 1], [2, 3]];
    let own = Indices {
        indices: IndexList::I32(indices.as_flattened()),
        strides: [8, 4, 0],
        topk: 4,
        topk_length: None,
        topk_length_strides: [1, 0],
    };
    let extra = Indices {
        indices: IndexList::I32(extra_indices.as_flattened()),
        strides: [4, 2, 0],
        topk: 2,
        topk_length: None,
        topk_length_strides: [1, 0],
    };
    let dense = Problem {
        kv: TensorRef {
            data: Data::Bf16(&paged),
            strides: [256, 128, 0],
        },
        pages: Some(Pages {
            block_table: &[],
            max_blocks: 0,
            stride: 0,
            page_size: 2,
            pages: 8,
        }),
        ..dense(ProblemShape { s_k: 16, ..SMALL }, &q, &kv)
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

    // FlashMLA accepts these tensors and ignores them.
    let unused = tensors.i32s("block_table", &[1, 1], &[0]).seqlens(&[7]);
    let (_, output, _) = run(&folder("sparse_unused"), &unused, &[]);
    assert_eq!(
        text(&output.stderr),
        "note: \"block_table\" is not used\nnote: \"cache_seqlens\" is not used\n"
    );
}

/// With offsets, indices count within the request.
#[test]
fn sparse_attention_to_ragged_caches() {
    let (q, kv) = (numbers(1536, 1), numbers(11 * 128, 2));
    let indices = [[0, 4, 2], [5, 1, -1], [3, 4, 0], [1, 1, 6]];
    let tensors = Tensors::scaled()
        .bf16s("q", &[2, 2, 3, 128], &q)
        .bf16s("kv", &[11, 128], &kv)
        .i32s("kv_indptr", &[3], &[1, 6, 11])
        .i32s("indices", &[2, 2, 3], indices.as_flattened());
    let own = Indices {
        indices: IndexList::I32(indices.as_flattened()),
        strides: [6, 3, 0],
        topk: 3,
        topk_length: None,
        topk_length_strides: [1, 0],
    };
    let problem = Problem {
        kv_indptr: Some(&[1, 6, 11]),
        ..sparse(dense(SMALL, &q, &kv), own, None)
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
    // A dense task has the rows of both positions, a sparse one those of one position. Results are equal to
    // the bit if the same kernel computes both. `avx512` has one for up to 4 rows, one for 5 to 16, one for more.
    // `avx512bf16` has one for up to 3 (Zen 5: 4), one for up to 8, one for up to 28; `amx` one from 5 on.
    Backend::permit_amx();
    let some = match Backend::detect().id() {
        // With more heads a dense task is cut, but a sparse one isn't.
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
    // Indices for both positions of either request.
    let indices = |keys: std::ops::Range<i32>, over: i32| -> Vec<i32> {
        let positions = [0, 0, 1, 1].map(|request| keys.clone().map(move |k| request * over + k));
        positions.into_iter().flatten().collect()
    };
    let by_page = dense
        .clone()
        .i32s("indices", &[2, 2, 500], &indices(0..500, 500));
    let by_request = dense
        .clone()
        .bf16s("kv", &[1000, 128], &kv)
        .i32s("kv_indptr", &[3], &[0, 500, 1000])
        .i32s("indices", &[2, 2, 500], &indices(0..500, 0));
    let from_two = dense
        .clone()
        .bf16s("kv", &[250, 4, 128], &kv)
        .i32s("indices", &[2, 2, 200], &indices(0..200, 500))
        .bf16s("extra_kv", &[40, 25, 1, 128], &kv)
        .i32s("extra_indices", &[2, 2, 300], &indices(200..500, 500));
    same(
        &format!("sparse_all_{heads}"),
        &[dense, by_page, by_request, from_two],
    );
}

/// DeepSeek's sparse attention as FlashMLA runs it: indices of slots in FP8 pages.
#[test]
fn sparse_attention_to_stored_rows() {
    let sparse = |tensors: Tensors| {
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
    let queries = sparse(Tensors::scaled().bf16s("q", &[2, 2, 3, 576], &q));
    let plain = queries.clone().bf16s("kv", &[8, 2, 1, 576], &kv).bf16s(
        "extra_kv",
        &[3, 3, 1, 576],
        &extra_kv,
    );
    let stored = queries.with("kv", Dtype::U8, &[8, 2, 1, 656], fp8(&kv));
    let names = ["extra_kv", "extra_kv_scale"];
    let stored = stored.int8s(names, &[3, 3, 1, 576], &extra_kv);
    same("sparse_fp8", &[plain, stored]);

    let (kv, extra_kv) = (steps(16 * 512, 2, 64, 14), steps(9 * 512, 3, 64, 14));
    let queries = sparse(Tensors::scaled().bf16s("q", &[2, 2, 3, 512], &numbers(12 * 512, 1)));
    let plain = queries.clone().bf16s("kv", &[8, 2, 1, 512], &kv).bf16s(
        "extra_kv",
        &[3, 3, 1, 512],
        &extra_kv,
    );
    let stored = queries
        .with("kv", Dtype::F8_E4M3, &[8, 2, 1, 584], model1(&kv, 2))
        .with("extra_kv", Dtype::U8, &[3, 3, 584], model1(&extra_kv, 3));
    same("sparse_model1", &[plain, stored]);
}
