//! Refused files and command lines: exit code 2, one line on standard error, no output. Each row of
//! the tables is an input, and what the line must contain.

use amla::{Backend, BackendId};
use safetensors::tensor::Dtype::{BF16, F8_E5M2, F32, F64, I8, I32, I64, U8};

use crate::files::Tensors;
use crate::runs::{decode, folder, names, refused, refused_file};

type Row = (Tensors, &'static str);

const HUGE: usize = 1 << 63;

fn refuse(name: &str, rows: impl IntoIterator<Item = Row>) {
    let folder = folder(name);
    for (tensors, why) in rows {
        refused_file(&folder, &tensors.bytes(), &[], why);
    }
}

fn small() -> Tensors {
    Tensors::small()
}

#[test]
fn no_safetensors_files() {
    let folder = folder("malformed");
    let valid = small().bytes();
    for bytes in [
        &[][..],
        b"hello, world",
        &[0xff; 64],
        &valid[..4],
        &valid[..40],
        &valid[..valid.len() - 1],
    ] {
        refused_file(&folder, bytes, &[], "not a valid safetensors file");
    }
}

#[test]
#[rustfmt::skip]
fn names_types_and_values() {
    let scale = |x: f32| small().f32s("softmax_scale", &[1], &[x]);
    let square = |d| small().zeros("q", BF16, &[2, 2, 3, d]).zeros("kv", BF16, &[2, 5, d]);
    refuse("values", [
        // Names.
        (small().i32s("cache_seqlen", &[2], &[5, 4]), "unknown tensor \"cache_seqlen\""),
        (small().zeros("expected_max", F32, &[2, 3, 2]), "unknown tensor \"expected_max\"; --help lists the known ones"),
        (small().zeros("sink_scale", F32, &[3]), "unknown tensor \"sink_scale\""),
        (small().without("kv").zeros("k v\n", BF16, &[2, 5, 128]), "unknown tensor \"k v\\n\""),
        // Types, shapes and values.
        (small().without("q"), "no tensor q"),
        (small().without("kv"), "no tensor kv"),
        (small().without("softmax_scale"), "no tensor softmax_scale"),
        (small().zeros("q", F64, &[2, 2, 3, 128]), "q is F64"),
        (small().zeros("kv", F64, &[2, 5, 128]), "kv is F64"),
        (small().zeros("v", I32, &[2, 5, 128]), "v is I32"),
        (small().zeros("softmax_scale", F64, &[1]), "softmax_scale is F64"),
        (small().zeros("cache_seqlens", I64, &[2]), "cache_seqlens is I64"),
        (small().zeros("expected_o", F64, &[2, 2, 3, 128]), "expected_o is F64"),
        (small().zeros("expected_lse", F64, &[2, 2, 3]), "expected_lse is F64"),
        (small().zeros("q", BF16, &[2, 6, 128]), "q has shape [2, 6, 128]"),
        (small().zeros("kv", BF16, &[10, 128]), "kv has shape [10, 128]"),
        (small().zeros("v", BF16, &[2, 5, 1, 128]), "v has shape [2, 5, 1, 128]"),
        (small().zeros("softmax_scale", F32, &[]), "softmax_scale has shape []"),
        (small().zeros("softmax_scale", F32, &[2]), "softmax_scale has shape [2]"),
        (small().zeros("kv", BF16, &[1, 5, 128]), "kv has shape [1, 5, 128]"),
        (small().zeros("kv", BF16, &[2, 5, 64]), "kv has shape [2, 5, 64]"),
        (small().zeros("v", BF16, &[2, 4, 128]), "v has shape [2, 4, 128]"),
        (small().zeros("cache_seqlens", I32, &[3]), "cache_seqlens has shape [3]"),
        (small().zeros("expected_o", F32, &[2, 3, 2, 128]), "expected_o has shape"),
        (small().zeros("expected_lse", F32, &[2, 6]), "expected_lse has shape"),
        (small().zeros("v", BF16, &[2, 5, 60]), "(128, 60)"),
        (small().seqlens(&[5, 6]), "cache_seqlens[1] is 6"),
        (small().seqlens(&[-1, 5]), "cache_seqlens[0] is -1"),
        (scale(f32::NAN), "softmax_scale is NaN"),
        (scale(f32::INFINITY), "softmax_scale is inf"),
        (square(104), "d_qk = 104"),
        (square(0), "d_qk = 0"),
        (small().zeros("q", BF16, &[2, 2, 0, 128]), "h_q is 0"),
    ]);
}

#[test]
#[rustfmt::skip]
fn offsets_pages_parts_heads_and_masks() {
    let ragged_q = |indptr: &[i32]| small().zeros("q", BF16, &[4, 3, 128]).i32s("q_indptr", &[indptr.len()], indptr);
    let ragged_kv = |indptr: &[i32]| small().zeros("kv", BF16, &[8, 128]).i32s("kv_indptr", &[indptr.len()], indptr);
    let paged = |table: &[i32; 6]| small().zeros("kv", BF16, &[8, 2, 128]).i32s("block_table", &[2, 3], table);
    let fine = &[5, 0, 3, 7, 2, 4];
    let split = || {
        let queries = Tensors::scaled().zeros("q_nope", BF16, &[2, 2, 3, 128]).zeros("q_rope", BF16, &[2, 2, 3, 64]);
        queries.zeros("ckv", BF16, &[2, 5, 128]).zeros("k_rope", BF16, &[2, 5, 64])
    };
    let grouped = |h_q, h_kv| small().zeros("q", BF16, &[2, 2, h_q, 128]).zeros("kv", BF16, &[2, 5, h_kv, 128]);
    let mask = |shape: &[usize]| small().zeros("tail_mask", U8, shape);
    refuse("misfits", [
        // Offsets of queries.
        (small().i32s("q_indptr", &[3], &[0, 2, 4]), "q has shape [2, 2, 3, 128], expected [tokens, h_q, d_qk]"),
        (small().zeros("q", BF16, &[4, 3, 128]), "q has shape [4, 3, 128], expected [b, s_q, h_q, d_qk]"),
        (ragged_q(&[]), "q_indptr has shape [0], expected [b + 1]"),
        (ragged_q(&[0, 2, 4]).zeros("q_indptr", I32, &[1, 3]), "q_indptr has shape [1, 3], expected [b + 1]"),
        (ragged_q(&[0, 2, 4]).zeros("q_indptr", I64, &[3]), "q_indptr is I64"),
        (ragged_q(&[0, 2, 5]), "q_indptr [3] runs from 0 to 5, not over q [4, 3, 128]"),
        (ragged_q(&[0, 2, 3]), "q_indptr [3] runs from 0 to 3"),
        (ragged_q(&[1, 2, 4]), "q_indptr [3] runs from 1 to 4"),
        (ragged_q(&[0, 2, -1]), "q_indptr [3] runs from 0 to -1"),
        (ragged_q(&[0, i32::MIN, 4]), "q_indptr[1] is -2147483648, less than q_indptr[0], 0"),
        (ragged_q(&[0, 3, 2, 4]), "kv has shape [2, 5, 128]"),
        (ragged_q(&[0, 3, 2, 4]).zeros("kv", BF16, &[3, 5, 128]), "q_indptr[2] is 2, less than q_indptr[1], 3"),
        (ragged_q(&[0, 2, 4]).zeros("expected_o", F32, &[2, 2, 3, 128]), "expected_o has shape [2, 2, 3, 128], expected [4, 3, 128]"),
        (ragged_q(&[0, 2, 4]).zeros("expected_lse", F32, &[1, 3, 4]), "expected_lse has shape [1, 3, 4], expected [3, 4] or [4, 3]"),
        // Offsets of keys.
        (small().i32s("kv_indptr", &[3], &[0, 5, 8]).zeros("kv", BF16, &[1, 8, 1, 128]), "kv has shape [1, 8, 1, 128], expected [tokens, d_qk] or [tokens, h_kv, d_qk]"),
        (ragged_kv(&[0, 5]), "kv_indptr has shape [2], expected [3]"),
        (ragged_kv(&[]), "kv_indptr has shape [0], expected [b + 1]"),
        (ragged_kv(&[0, 5, 9]), "kv_indptr [3] runs to 9, kv [8, 128] does not"),
        (ragged_kv(&[0, 5, -8]), "kv_indptr [3] runs to -8"),
        (ragged_kv(&[-1, 5, 8]), "kv_indptr[0] is -1"),
        (ragged_kv(&[0, 8, 5]), "kv_indptr[2] is 5, less than kv_indptr[1], 8"),
        (ragged_kv(&[0, 5, 8]).zeros("kv_indptr", F32, &[3]), "kv_indptr is F32"),
        (ragged_kv(&[0, 5, 8]).seqlens(&[5, 4]), "cache_seqlens[1] is 4"),
        (ragged_kv(&[0, 5, 8]).zeros("v", BF16, &[2, 5, 128]), "v has shape [2, 5, 128], expected [8, 128]"),
        // Pages.
        (paged(fine).zeros("kv", BF16, &[16, 128]), "kv has shape [16, 128], expected [pages, page_size, d_qk] or"),
        (paged(fine).zeros("kv", BF16, &[8, 0, 128]), "kv [8, 0, 128] has a page size of 0"),
        (paged(fine).zeros("block_table", I32, &[6]), "block_table has shape [6], expected [b, max_blocks]"),
        (paged(fine).zeros("block_table", I32, &[3, 2]), "block_table has shape [3, 2], expected [2, 2]"),
        (paged(fine).zeros("block_table", I64, &[2, 3]), "block_table is I64"),
        (paged(&[5, 0, 3, 8, 2, 4]), "block_table[1][0] is 8"),
        (paged(&[5, 0, -1, 7, 2, 4]), "block_table[0][2] is -1"),
        (paged(fine).seqlens(&[5, 7]), "cache_seqlens[1] is 7"),
        (paged(fine).zeros("v", BF16, &[8, 2, 1, 128]), "v has shape [8, 2, 1, 128], expected [8, 2, 128]"),
        (paged(fine).i32s("kv_indptr", &[3], &[0, 5, 8]), "block_table [2, 3] and kv_indptr [3] exclude each other"),
        // Parts.
        (split().zeros("q", BF16, &[2, 2, 3, 192]), "q [2, 2, 3, 192] and q_nope [2, 2, 3, 128] exclude each other"),
        (small().zeros("q_rope", BF16, &[2, 2, 3, 64]), "q [2, 2, 3, 128] and q_rope [2, 2, 3, 64] exclude each other"),
        (small().zeros("ckv", BF16, &[2, 5, 128]), "kv [2, 5, 128] and ckv [2, 5, 128] exclude each other"),
        (split().without("q_rope"), "there is no tensor q_rope for q_nope [2, 2, 3, 128]"),
        (split().without("q_nope"), "there is no tensor q_nope for q_rope [2, 2, 3, 64]"),
        (split().without("k_rope"), "there is no tensor k_rope for ckv [2, 5, 128]"),
        (split().without("ckv"), "there is no tensor ckv for k_rope [2, 5, 64]"),
        (split().zeros("q_nope", BF16, &[2, 6, 128]), "q_nope has shape [2, 6, 128], expected [b, s_q, h_q, d_v]"),
        (split().zeros("q_rope", BF16, &[2, 2, 1, 64]), "q_rope has shape [2, 2, 1, 64], expected [2, 2, 3, 64]"),
        (split().zeros("q_rope", BF16, &[]), "q_rope has shape [], expected [2, 2, 3, 0]"),
        (split().zeros("ckv", BF16, &[2, 5, 64]), "ckv has shape [2, 5, 64], expected [2, 5, 128]"),
        (split().zeros("k_rope", BF16, &[2, 5, 32]), "k_rope has shape [2, 5, 32], expected [2, 5, 64]"),
        (split().zeros("k_rope", BF16, &[2, 5, 1, 64]), "k_rope has shape [2, 5, 1, 64], expected [2, 5, 64]"),
        (split().zeros("k_rope", I32, &[2, 5, 64]), "k_rope is I32"),
        (split().zeros("v", BF16, &[2, 5, 64]), "v has shape [2, 5, 64], expected [2, 5, 128]"),
        (small().without("kv").zeros("ckv", BF16, &[2, 5, 128]).zeros("k_rope", BF16, &[2, 5, 0]), "d_v is 128, not in 1..=127"),
        // KV heads.
        (grouped(3, 2), "h_q is 3, not a multiple of h_kv, 2"),
        (grouped(3, 0), "h_kv is 0"),
        (grouped(4, 2).zeros("v", BF16, &[2, 5, 128]), "v has shape [2, 5, 128], expected [2, 5, 2, 128]"),
        (grouped(4, 2).zeros("v", BF16, &[2, 5, 1, 128]), "v has shape [2, 5, 1, 128], expected [2, 5, 2, 128]"),
        (small().zeros("kv", BF16, &[2, 5, 1, 1, 128]), "kv has shape [2, 5, 1, 1, 128], expected [b, s_k, d_qk] or [b, s_k, h_kv, d_qk]"),
        // Sinks and masks.
        (small().zeros("sink", F32, &[4]), "sink has shape [4], expected [3]"),
        (small().zeros("sink", F32, &[1, 3]), "sink has shape [1, 3], expected [3]"),
        (small().zeros("sink", BF16, &[3]), "sink is BF16"),
        (mask(&[2, 4]), "tail_mask has shape [2, 4], expected [2, 2, 4]"),
        (mask(&[]), "tail_mask has shape [], expected [2, 2, 0]"),
        (mask(&[2, 3, 4]), "tail_mask has shape [2, 3, 4], expected [2, 2, 4]"),
        (small().zeros("tail_mask", I32, &[2, 2, 4]), "tail_mask is I32, expected BOOL or U8"),
        (small().with("tail_mask", U8, &[2, 2, 1], vec![0, 1, 3, 1]), "tail_mask holds 3"),
        (mask(&[2, 2, 4]).metadata("causal", "true"), "tail_mask and causal can't be combined"),
        (small().metadata("causal", "1"), "metadata causal is \"1\", expected true or false"),
        (small().metadata("window", "0"), "metadata window is \"0\", expected 1 or more"),
        (small().metadata("window", "-1"), "metadata window is \"-1\""),
        (small().metadata("window", "many\nkeys"), "metadata window is \"many\\nkeys\""),
        // Sizes that nothing bounds, as there are no elements.
        (small().zeros("q", BF16, &[usize::MAX, 0, 3, 128]), "kv has shape [2, 5, 128]"),
        (small().zeros("q", BF16, &[usize::MAX, 0, 3, 128]).zeros("kv", BF16, &[usize::MAX, 0, 128]), "s_q is 0"),
        (ragged_kv(&[0, 5, 8]).zeros("q", BF16, &[usize::MAX, 0, 3, 128]), "kv_indptr has shape [3], expected [18446744073709551615]"),
        (split().zeros("q_nope", BF16, &[0, 2, 3, HUGE]).zeros("q_rope", BF16, &[0, 2, 3, HUGE]), "ckv has shape"),
        (small().zeros("q", BF16, &[2, 0, HUGE, 128]).zeros("expected_lse", F32, &[2, 0, HUGE]), "s_q is 0"),
        (paged(fine).zeros("q", BF16, &[0, HUGE, 3, 128]).zeros("kv", BF16, &[0, HUGE, 128]).zeros("block_table", I32, &[0, HUGE]), "s_q is 9223372036854775808"),
    ]);
}

#[test]
#[rustfmt::skip]
fn formats_and_indices() {
    let wide = |d_qk| Tensors::scaled().zeros("q", BF16, &[2, 2, 4, d_qk]);
    let quantised = || small().zeros("kv", I8, &[2, 5, 128]).zeros("kv_scale", F32, &[2, 5]);
    let sparse = || small().zeros("indices", I32, &[2, 2, 4]);
    let two = || sparse().zeros("extra_kv", BF16, &[3, 3, 128]).zeros("extra_indices", I32, &[2, 2, 2]);
    refuse("formats", [
        // Bytes.
        (small().zeros("kv", U8, &[2, 5, 128]), "kv is U8 in rows of 128, expected 656 (FP8) or 584 (MODEL1)"),
        (small().zeros("kv", F8_E5M2, &[2, 5, 656]), "kv is F8_E5M2, expected BF16, F16, F32, I8, U8 or F8_E4M3"),
        (small().zeros("kv", U8, &[2, 5, 656]), "kv has shape [2, 5, 656], expected [2, 5, 128]; its rows have 576 columns"),
        (wide(576).zeros("kv", U8, &[2, 5, 584]), "kv has shape [2, 5, 584], expected [2, 5, 576]; its rows have 512 columns"),
        (wide(576).zeros("kv", U8, &[3, 5, 656]), "kv has shape [3, 5, 656], expected [2, 5, 656]"),
        (wide(576).zeros("kv", U8, &[10, 656]), "kv has shape [10, 656], expected [b, s_k, d_qk]"),
        (wide(512).zeros("kv", U8, &[2, 5, 2, 584]), "kv [2, 5, 2, 584] has MODEL1 rows of 2 heads, not 1"),
        (small().zeros("v", U8, &[2, 5, 656]), "(128, 576)"),
        // Scales.
        (quantised().without("kv_scale"), "there is no tensor kv_scale for kv [2, 5, 128]"),
        (quantised().zeros("kv_scale", F32, &[2, 5, 1]), "kv_scale has shape [2, 5, 1], expected [2, 5]"),
        (quantised().zeros("kv_scale", F32, &[1]), "kv_scale has shape [1], expected [2, 5]"),
        (quantised().zeros("kv_scale", BF16, &[2, 5]), "kv_scale is BF16, expected F32"),
        (quantised().zeros("kv", BF16, &[2, 5, 128]), "kv_scale [2, 5] is for kv in I8, which is BF16"),
        (small().zeros("q", I8, &[2, 2, 3, 128]), "there is no tensor q_scale for q [2, 2, 3, 128]"),
        (two().zeros("extra_kv", I8, &[3, 3, 128]), "there is no tensor extra_kv_scale for extra_kv [3, 3, 128]"),
        // Indices.
        (sparse().zeros("indices", I64, &[2, 2, 4]), "indices is I64"),
        (sparse().zeros("indices", I32, &[2, 4]), "indices has shape [2, 4], expected [2, 2, 4]"),
        (sparse().zeros("indices", I32, &[]), "indices has shape [], expected [2, 2, 0]"),
        (sparse().zeros("topk_length", I32, &[2, 2]), "topk_length has shape [2, 2], expected [2]"),
        (sparse().zeros("topk_length", I64, &[2]), "topk_length is I64"),
        (sparse().i32s("topk_length", &[2], &[4, 5]), "topk_length[1][0] is 5, not in 0..=4"),
        (sparse().i32s("topk_length", &[2], &[-1, 4]), "topk_length[0][0] is -1"),
        (small().zeros("topk_length", I32, &[2]), "there is no tensor indices for topk_length [2]"),
        (sparse().zeros("kv", BF16, &[10, 128]), "kv has shape [10, 128], expected [pages, page_size, d_qk] or"),
        (sparse().zeros("kv", BF16, &[2, 0, 128]), "kv [2, 0, 128] has a page size of 0"),
        // The second cache.
        (two().without("indices"), "there is no tensor indices for extra_kv"),
        (two().without("extra_kv"), "there is no tensor extra_kv for extra_indices"),
        (two().without("extra_indices"), "there is no tensor extra_indices for extra_kv [3, 3, 128]"),
        (sparse().zeros("extra_topk_length", I32, &[2]), "there is no tensor extra_indices for extra_topk_length [2]"),
        (two().zeros("extra_kv", BF16, &[9, 128]), "extra_kv has shape [9, 128], expected [pages, page_size, 1, 128]"),
        (two().zeros("extra_kv", BF16, &[3, 3, 2, 128]), "extra_kv has shape [3, 3, 2, 128], expected [pages, page_size, 1, 128]"),
        (two().zeros("extra_kv", BF16, &[3, 3, 64]), "extra_kv has shape [3, 3, 64], expected [3, 3, 128]"),
        (two().zeros("extra_kv", U8, &[3, 3, 584]), "extra_kv has shape [3, 3, 584], expected [3, 3, 128]; its rows have 512 columns"),
        (two().zeros("extra_kv", BF16, &[3, 0, 128]), "extra_kv [3, 0, 128] has a page size of 0"),
        (two().zeros("extra_kv", I32, &[3, 3, 128]), "extra_kv is I32"),
        (two().zeros("extra_indices", I32, &[2, 1, 2]), "extra_indices has shape [2, 1, 2], expected [2, 2, 2]"),
        (two().i32s("extra_topk_length", &[2], &[0, 3]), "extra_topk_length[1][0] is 3, not in 0..=2"),
        // Options that sparse attention excludes.
        (sparse().metadata("causal", "true"), "indices and causal can't be combined"),
        (sparse().metadata("window", "3"), "indices and window can't be combined"),
        (sparse().zeros("tail_mask", U8, &[2, 2, 4]), "indices and tail_mask can't be combined"),
        (sparse().zeros("kv", BF16, &[10, 128]).i32s("kv_indptr", &[3], &[0, 5, 10]).zeros("block_table", I32, &[2, 1]), "block_table [2, 1] and kv_indptr [3] exclude each other"),
        // Sizes that nothing bounds, as there are no elements.
        (sparse().zeros("q", BF16, &[0, HUGE, 3, 128]).zeros("indices", I32, &[0, HUGE, HUGE]), "s_q is 9223372036854775808"),
        (sparse().zeros("kv", BF16, &[HUGE, 1, 0, 128]), "s_k is 9223372036854775808"),
    ]);
    let folder = folder("sparse_masks");
    for args in [&["--causal"][..], &["--window", "3"]] {
        let why = format!("indices and {} can't be combined", &args[0][2..]);
        refused_file(&folder, &sparse().bytes(), args, &why);
    }
}

#[test]
#[rustfmt::skip]
fn command_lines() {
    let folder = folder("flags");
    let problem = folder.join("in.safetensors");
    small().write(&problem);
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
        (&["in.safetensors", "--d-v", "100"], "(128, 100)"),
        (&["in.safetensors", "--d-v", "18446744073709551615"], "d_v"),
        (&["in.safetensors", "--tolerance", "many"], "--tolerance"),
        (&["in.safetensors", "--tolerance=-1"], "--tolerance"),
        (&["in.safetensors", "--tolerance", "nan"], "--tolerance"),
        (&["in.safetensors", "-o"], "--output"),
        (&["-o", "out.safetensors"], "FILE"),
        (&["--d-v", "128"], "FILE"),
        (&["in.safetensors", "-o", "no/such/out"], "no/such/out"),
        (&["in.safetensors", "-o", "."], "cannot write ."),
        (&["in.safetensors", "-o", ""], "--output"),
        (&["in.safetensors", "-o", "./in.safetensors"], "is the problem itself"),
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
