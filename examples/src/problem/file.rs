//! Problems and results as safetensors files.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use amla::{ProblemShape, SUPPORTED_DIMS};
use safetensors::tensor::{Dtype, TensorView};

use super::case::{Case, Tail, heads_first};
use super::layout::{Keys, Parts, Queries};
use super::sparse::{SparseKeys, TopK};
use super::stored::ExpectedIn;
use super::tensors::{Named, Tensors};

/// Reads a file.
///
/// # Errors
/// One line that names the file and the fault.
pub fn read(path: &Path, d_v: Option<usize>) -> Result<Case, String> {
    fs::read(path)
        .map_err(|e| e.to_string())
        .and_then(|bytes| parse(&bytes, d_v))
        .map_err(|e| format!("{}: {e}", path.display()))
}

/// Reads a file's bytes; `d_v` is the width of a value, if the user gives one.
///
/// # Errors
/// One line: a tensor is missing, unknown, or does not fit. [`amla::Plan::new`] checks values, and
/// sizes that fit each other.
pub fn parse(bytes: &[u8], d_v: Option<usize>) -> Result<Case, String> {
    let mut file = Tensors::of(bytes)?;
    let q = Parts::of(&mut file, ["q", "q_nope", "q_rope"])?;
    let kv = Parts::of(&mut file, ["kv", "ckv", "k_rope"])?;
    let scale = file.required("softmax_scale")?;
    let v = file.input("v")?;
    let [tail_mask, sink, expected_o, expected_lse] =
        ["tail_mask", "sink", "expected_o", "expected_lse"].map(|name| file.optional(name));

    let queries = Queries::of(&mut file, &q)?;
    let [.., h_q] = queries.rows;
    let topk = TopK::of(&mut file, ["indices", "topk_length"], &queries)?;
    let keys = Keys::of(&mut file, &kv, queries.b, topk.is_some())?;
    let [.., h_kv] = keys.rows;
    // Indices of slots don't depend on requests and their lengths.
    let lengths = topk.is_none() || keys.indptr.is_some();
    let cache_seqlens = lengths.then(|| file.optional("cache_seqlens")).flatten();

    // All tensors that have d_v columns must agree.
    let rope = q.rope.as_ref().map_or(0, Named::columns);
    let d_qk = q.first.columns().saturating_add(rope);
    let mut width = d_v;
    for (tensor, rows) in [
        (q.rope.as_ref().and(Some(&q.first)), &q.first),
        (kv.rope.as_ref().and(Some(&kv.first)), &kv.first),
        (v.as_ref(), &kv.first),
        (expected_o.as_ref(), &q.first),
    ] {
        if let Some(tensor) = tensor {
            let width = *width.get_or_insert(tensor.columns());
            tensor.expect_like(rows, width)?;
        }
    }
    let usual = || SUPPORTED_DIMS.iter().find(|d| d.0 == d_qk).map(|d| d.1);
    let d_v = width
        .or_else(usual)
        .ok_or_else(|| format!("no kernel is for d_qk = {d_qk}, whatever d_v"))?;
    let rope = d_qk.saturating_sub(d_v);
    if let Some(q_rope) = &q.rope {
        q_rope.expect_like(&q.first, rope)?;
    }
    match &kv.rope {
        Some(k_rope) => k_rope.expect_like(&kv.first, rope)?,
        None => kv.first.expect_like(&kv.first, d_qk)?,
    }

    for (tensor, want) in [
        (Some(&scale), 1),
        (cache_seqlens.as_ref(), queries.b),
        (sink.as_ref(), h_q),
    ] {
        if let Some(tensor) = tensor {
            tensor.expect(&[want])?;
        }
    }

    let sparse = SparseKeys::of(&mut file, topk, &queries, h_kv, d_qk)?;
    let tail_mask = tail_mask
        .map(|mask| tail(&mask, queries.lead()))
        .transpose()?;
    let ragged = queries.indptr.is_some();
    let expected = [&expected_o, &expected_lse].into_iter().flatten();
    let expected_in = expected.map(Named::expected_in).min();
    let lse = |lse: Named| log_sums(&lse, queries.rows, ragged);
    Ok(Case {
        shape: ProblemShape {
            b: queries.b,
            s_q: queries.s_q,
            s_k: keys.s_k,
            h_q,
            h_kv,
            d_qk,
            d_v,
        },
        q: file.stored(&q.first, queries.rows)?,
        q_rope: q
            .rope
            .map(|part| file.stored(&part, queries.rows))
            .transpose()?,
        q_indptr: queries.indptr,
        kv: file.stored(&kv.first, keys.rows)?,
        k_rope: kv
            .rope
            .map(|part| file.stored(&part, keys.rows))
            .transpose()?,
        v: v.map(|v| file.stored(&v, keys.rows)).transpose()?,
        pages: keys.pages,
        kv_indptr: keys.indptr,
        cache_seqlens: cache_seqlens.map(|lens| lens.i32s()).transpose()?,
        causal: causal(&file)?,
        window: window(&file)?,
        sparse,
        tail_mask,
        sink: sink.map(|sink| sink.f32s()).transpose()?,
        softmax_scale: scale.f32s()?[0],
        rows: queries.rows,
        expected_o: expected_o.map(|o| o.f64s()).transpose()?,
        expected_lse: expected_lse.map(lse).transpose()?,
        expected_in: expected_in.unwrap_or(ExpectedIn::F32),
        notes: file.notes(),
    })
}

/// A mask of bytes, `[b, s_q, tail]` or `[tokens, tail]`, as words.
fn tail(mask: &Named, queries: &[usize]) -> Result<Tail, String> {
    let tail = mask.width();
    mask.expect(&[queries, &[tail]].concat())?;
    let word = |bits: &[bool]| {
        let bits = bits.iter().rev();
        bits.fold(0, |word, &bit| word << 1 | u64::from(bit))
    };
    let bits = mask.bools()?;
    let rows = bits.chunks(tail.max(1));
    Ok(Tail {
        words: rows.flat_map(|row| row.chunks(64).map(word)).collect(),
        tail,
    })
}

fn causal(file: &Tensors) -> Result<bool, String> {
    match file.metadata("causal") {
        Some("true") => Ok(true),
        None | Some("false") => Ok(false),
        Some(other) => Err(format!(
            "metadata causal is {other:?}, expected true or false"
        )),
    }
}

fn window(file: &Tensors) -> Result<Option<usize>, String> {
    file.metadata("window")
        .map(|text| match text.parse() {
            Ok(window) if window > 0 => Ok(window),
            _ => Err(format!("metadata window is {text:?}, expected 1 or more")),
        })
        .transpose()
}

/// `expected_lse`, heads before positions, from either order.
fn log_sums(lse: &Named, [b, s_q, h_q]: [usize; 3], ragged: bool) -> Result<Vec<f64>, String> {
    let from = usize::from(ragged);
    let (heads, positions) = ([b, h_q, s_q], [b, s_q, h_q]);
    let values = lse.f64s()?;
    match lse.shape() {
        shape if shape == &heads[from..] => Ok(values),
        shape if shape == &positions[from..] => Ok(heads_first(&values, positions)),
        _ => {
            let (heads, positions) = (&heads[from..], &positions[from..]);
            Err(lse.misfit(format_args!("{heads:?} or {positions:?}")))
        }
    }
}

/// Writes `o` and `lse` to `path` atomically: to a temporary file beside it, then renamed.
///
/// # Errors
/// One line that names the file and the fault.
pub fn write(path: &Path, case: &Case, o: &[f32], lse: &[f32]) -> Result<(), String> {
    let fail = |e: &dyn std::fmt::Display| format!("cannot write {}: {e}", path.display());
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(fail(&"it is not a regular file"));
    }
    // Replaces the target of a link, not the link.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = target.file_name().ok_or_else(|| fail(&"no file name"))?;

    let bytes = |data: &[f32]| -> Vec<u8> { data.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let (o, lse) = (bytes(o), bytes(lse));
    let from = usize::from(case.q_indptr.is_some());
    let view = |dims: &[usize], data| {
        TensorView::new(Dtype::F32, dims[from..].to_vec(), data).map_err(|e| fail(&e))
    };
    let [b, s_q, h_q] = case.rows;
    let tensors = [
        ("o", view(&[b, s_q, h_q, case.shape.d_v], &o)?),
        ("lse", view(&[b, h_q, s_q], &lse)?),
    ];
    let bytes = safetensors::serialize(tensors, None).map_err(|e| fail(&e))?;

    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = target.with_file_name(temporary);
    let mut file = File::create_new(&temporary).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => fail(&format!("{} is in the way", temporary.display())),
        _ => fail(&e),
    })?;
    file.write_all(&bytes)
        .and_then(|()| fs::rename(&temporary, &target))
        .map_err(|e| {
            // Best effort: the first error is reported.
            let _ = fs::remove_file(&temporary);
            fail(&e)
        })
}
