//! Every backend against FP64, with a bound that follows from the problem (`exact`): any layout,
//! mask, choice of keys and format, with special values among them.

use std::fmt::Debug;

use amla::{
    Backend, Data, Elements, Extra, IndexList, Indices, Inputs, Options, Output, Pages, Precision,
    Problem, ProblemShape, Rescale, SUPPORTED_DIMS, Sparse, Split, decode, reference,
};
use half::{bf16, f16};

use crate::common::{backends, normal, used_workspace};
use crate::draw::Draw;
use crate::exact::{Arithmetic, Row, Want, rows};
use crate::hosts::{self, Host, Keys, Layout, Rows};
use crate::stored::{Format, Stored};

// By its path, as other roots include this file by its own.
#[path = "cut.rs"]
mod cut;

use cut::{Cut, nth, split};

pub fn run(data: &[u8]) {
    with_problem(data, |problem, call| {
        let given = rows(problem, false);
        let d_v = problem.shape.d_v;
        let (o, lse) = hosts::golden(problem);
        golden_max_logits(problem, &given);
        let golden = Wants::of(&given, Arithmetic::FP64);
        golden.check(|row, c| o[row * d_v + c], |row| lse[row], &"Golden");
        let mut wants = golden;
        for backend in backends() {
            let options = Options {
                backend,
                ..call.options
            };
            let (o, lse) = hosts::decoded(problem, &options);
            let number = |bits: u32| f64::from(f32::from_bits(bits));
            // Several backends compute alike.
            let arithmetic = Arithmetic::of(problem, &options);
            if wants.arithmetic != arithmetic {
                wants = match arithmetic.rounded_inputs {
                    true => Wants::of(&rows(problem, true), arithmetic),
                    false => Wants::of(&given, arithmetic),
                };
            }
            wants.check(
                |row, c| number(o[row * d_v + c]),
                |row| number(lse[row]),
                &options,
            );
            let rounded_rows = arithmetic.rounded_inputs.then(|| rows(problem, true));
            let taken = rounded_rows.as_ref().unwrap_or(&given);
            for (i, (got, row)) in max_logits(problem, &options)
                .into_iter()
                .zip(taken)
                .enumerate()
            {
                let (got, want) = (got.into(), row.largest(arithmetic));
                assert!(
                    want.admits(got),
                    "max_logits[{i}] = {got}, want {want:?}, {options:?}"
                );
            }
            if call.rounded {
                rounded(problem, &options, &o);
            }
        }
    });
}

/// Masks, layout and formats.
pub fn kind(data: &[u8]) -> Option<String> {
    let mut kind = None;
    with_problem(data, |problem, call| {
        let name = |data: &Data| match data {
            Data::Bf16(_) => "bf16",
            Data::F16(_) => "f16",
            Data::Fp8(_) => "fp8",
            Data::Model1 { .. } => "model1",
            Data::Int8 { .. } => "int8",
            Data::E4m3 { .. } => "e4m3",
            Data::F32(_) => "f32",
            Data::Q8_0(_) => "q8_0",
            Data::Q4_0(_) => "q4_0",
        };
        let mut words = vec![name(&problem.kv.data)];
        let q = name(&problem.q.data);
        words.extend((q != "bf16").then_some(q));
        let mut add = |there: bool, word: &'static str| words.extend(there.then_some(word));
        add(problem.pages.is_some(), "paged");
        add(problem.kv_indptr.is_some(), "ragged");
        add(problem.v.is_some(), "v");
        add(problem.k_rope.is_some(), "rope");
        add(problem.causal, "causal");
        add(problem.window.is_some(), "window");
        add(problem.tail_mask.is_some(), "tree");
        add(problem.sparse.is_some(), "sparse");
        add(
            problem.sparse.is_some_and(|sparse| sparse.extra.is_some()),
            "extra",
        );
        add(problem.q_rope.is_some(), "q-rope");
        add(problem.q_indptr.is_some(), "ragged-q");
        add(problem.v_offset > 0, "offset");
        let strided = |pages: Pages| pages.stride != pages.max_blocks;
        add(problem.pages.is_some_and(strided), "strided-table");
        add(problem.cache_seqlens_stride != 1, "strided-lengths");
        let heads = |sparse: Sparse| sparse.indices.strides[2] > 0;
        add(problem.sparse.is_some_and(heads), "heads");
        let wide = |sparse: Sparse| matches!(sparse.indices.indices, IndexList::I64(_));
        add(problem.sparse.is_some_and(wide), "wide");
        add(problem.sink.is_some(), "sink");
        add(problem.split != Split::ByLength, "split");
        add(call.options.inputs == Inputs::Bf16, "rounded");
        add(call.special, "special");
        add(problem.shape.s_k >= 2048, "long");
        kind = Some(words.join("-"));
    });
    kind
}

/// How an input wants its problem computed.
pub struct Call {
    pub options: Options,
    /// Outputs in BF16 and FP16, too.
    rounded: bool,
    /// There are values that nobody expects.
    special: bool,
}

/// What each row must be, computed so.
struct Wants {
    arithmetic: Arithmetic,
    rows: Vec<(Vec<Want>, Want)>,
}

impl Wants {
    fn of(rows: &[Row], arithmetic: Arithmetic) -> Self {
        Self {
            arithmetic,
            rows: rows.iter().map(|row| row.want(arithmetic)).collect(),
        }
    }

    fn check(&self, o: impl Fn(usize, usize) -> f64, lse: impl Fn(usize) -> f64, who: &dyn Debug) {
        for (i, (want_o, want_lse)) in self.rows.iter().enumerate() {
            let got = lse(i);
            assert!(
                want_lse.admits(got),
                "lse[{i}] = {got}, want {want_lse:?}, {who:?}"
            );
            for (c, want) in want_o.iter().enumerate() {
                let got = o(i, c);
                assert!(
                    want.admits(got),
                    "O[{i}][{c}] = {got}, want {want:?}, {who:?}"
                );
            }
        }
    }
}

/// The largest scores, token by token, without lse.
fn max_logits(problem: &Problem, options: &Options) -> Vec<f32> {
    let rows = hosts::rows(problem);
    let (mut o, mut max_logits) = (vec![0.0; rows * problem.shape.d_v], vec![0.0; rows]);
    let output = Output {
        lse: None,
        max_logits: Some(&mut max_logits),
        ..hosts::output(problem, Elements::F32(&mut o), &mut [])
    };
    used_workspace(|workspace| decode(problem, options, workspace, output)).unwrap();
    max_logits
}

/// Golden has them dense.
fn golden_max_logits(problem: &Problem, rows: &[Row]) {
    let ProblemShape { s_q, h_q, .. } = problem.shape;
    let mut got = vec![0.0; rows.len()];
    reference::golden_max_logits(problem, &mut got).unwrap();
    let s_q = problem.q_indptr.map_or(s_q, |_| rows.len() / h_q);
    for (i, row) in rows.iter().enumerate() {
        let (token, h) = (i / h_q, i % h_q);
        let got = got[(token / s_q * h_q + h) * s_q + token % s_q];
        let want = row.largest(Arithmetic::FP64);
        assert!(
            want.admits(got),
            "max_logits[{i}] = {got}, want {want:?}, Golden"
        );
    }
}

/// Outputs in other formats are FP32's, rounded.
fn rounded(problem: &Problem, options: &Options, o: &[u32]) {
    let rows = hosts::rows(problem);
    let mut lse = vec![0.0; rows];
    let (mut bf16s, mut f16s) = (vec![bf16::ZERO; o.len()], vec![f16::ZERO; o.len()]);
    for elements in [Elements::Bf16(&mut bf16s), Elements::F16(&mut f16s)] {
        let output = hosts::output(problem, elements, &mut lse);
        used_workspace(|workspace| decode(problem, options, workspace, output)).unwrap();
    }
    for (i, &x) in o.iter().enumerate() {
        let x = f32::from_bits(x);
        let got = [bf16s[i].to_bits(), f16s[i].to_bits()];
        let want = [bf16::from_f32(x).to_bits(), f16::from_f32(x).to_bits()];
        assert_eq!(got, want, "{x} in BF16 and FP16");
    }
}

/// The problem that an input describes: sizes first, values last.
pub fn with_problem(data: &[u8], use_it: impl FnOnce(&Problem, &Call)) {
    let mut draw = Draw::new(data);
    let draw = &mut draw;
    Backend::permit_amx();
    let call = Call {
        options: Options {
            backend: Backend::detect(),
            rescale: draw.one_of(&[Rescale::Exact, Rescale::Compensated]),
            precision: draw.one_of(&[Precision::Bf16, Precision::Bf16x2]),
            ..Options::default()
        },
        rounded: draw.once_in(8),
        special: false,
    };
    if draw.once_in(3) {
        with_sparse(draw, call, use_it);
    } else {
        with_host(draw, call, use_it);
    }
}

const FORMATS: [Format; 5] = [
    Format::Bf16,
    Format::F16,
    Format::Int8,
    Format::Fp8,
    Format::Model1,
];

/// Whether rows have one width.
fn is_quantised(format: Format) -> bool {
    matches!(format, Format::Fp8 | Format::Model1)
}

/// A column of rows in that format from which they can be read.
fn first_of_block(column: usize, format: Format) -> usize {
    match format {
        Format::Q8_0 | Format::Q4_0 => column / 32 * 32,
        _ => column,
    }
}

/// Sometimes another format instead. Drawn behind all else, so that older inputs mean what they meant.
fn instead(draw: &mut Draw, format: Format) -> Format {
    if is_quantised(format) || !draw.once_in(3) {
        return format;
    }
    draw.one_of(&[
        Format::F16,
        Format::F32,
        Format::Q8_0,
        Format::Q4_0,
        Format::E4m3,
        Format::Bf16,
    ])
}

/// Sometimes numbers are rounded to BF16 by backends that multiply it. Drawn behind all else, too.
fn inputs(draw: &mut Draw, options: &mut Options) {
    if draw.once_in(4) {
        (options.precision, options.inputs) = (Precision::Bf16, Inputs::Bf16);
    }
}

/// Small widths more often than large ones, unless the format has but one.
fn dims(draw: &mut Draw, format: Format) -> (usize, usize) {
    match format {
        Format::Fp8 => (576, 512),
        Format::Model1 => (512, 512),
        _ if draw.once_in(4) => draw.one_of(SUPPORTED_DIMS),
        _ => draw.one_of(&[(64, 64), (128, 128), (192, 128)]),
    }
}

/// Query heads and KV heads: a row, few of them, panels and parts of them.
fn heads(draw: &mut Draw, format: Format) -> [usize; 2] {
    let group = draw.one_of(&[1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 64, 65, 130]);
    let h_kv = match format {
        Format::Model1 => 1,
        _ if group < 8 => draw.one_of(&[1, 1, 2, 3]),
        _ => 1,
    };
    [group * h_kv, h_kv]
}

/// A number of keys, often one beside an edge, at most `most`, so that an execution takes milliseconds.
fn keys(draw: &mut Draw, most: usize) -> usize {
    const EDGES: [usize; 24] = [
        0, 1, 2, 3, 31, 32, 33, 63, 95, 96, 97, 191, 192, 193, 194, 287, 288, 289, 383, 384, 385,
        577, 2048, 2113,
    ];
    match draw.once_in(2) {
        true => draw.one_of(&EDGES),
        false => draw.among(0..=300),
    }
    .min(most)
}

/// Multiply-adds of one backend on one problem, about.
const WORK: usize = 1 << 18;

fn scale(draw: &mut Draw, d_qk: usize) -> f32 {
    let usual = (d_qk as f32).sqrt().recip();
    let any = draw.f32();
    match draw.u8() {
        0..=99 => usual,
        100..=199 => -usual * draw.one_of(&[-0.01, -4.0, -30.0, 1.0, 10.0, -1000.0]),
        200..=220 => draw.one_of(&[0.0, -0.0, 1e-30, 1e-42, 1.0, -1.0]),
        _ if (f64::from(any) * 2.0).is_finite() && any.abs() < 1e38 => any,
        _ => usual,
    }
}

fn sink(draw: &mut Draw, heads: usize) -> Option<Vec<f32>> {
    draw.once_in(4).then(|| {
        let one = |_| match draw.u8() {
            0 => draw.f32(),
            1 => f32::INFINITY,
            2 => f32::NEG_INFINITY,
            x => f32::from(x) / 16.0 - 8.0,
        };
        (0..heads).map(one).collect()
    })
}

/// Multiplies by a power of two.
fn shift(row: &mut [bf16], exponent: i32) {
    for x in row {
        *x = bf16::from_f32(x.to_f32() * (exponent as f32).exp2());
    }
}

/// A pattern that an input puts somewhere.
fn special(draw: &mut Draw) -> bf16 {
    let bits = draw.u16();
    match draw.u8() {
        0..=40 => bf16::NAN,
        41..=80 => bf16::INFINITY,
        81..=120 => bf16::NEG_INFINITY,
        121..=130 => bf16::MAX,
        131..=140 => bf16::from_bits(1),
        _ => bf16::from_bits(bits),
    }
}

// -------------------------------------------------------------------------------------------------
// Keys in their order
// -------------------------------------------------------------------------------------------------

fn with_host(draw: &mut Draw, mut call: Call, use_it: impl FnOnce(&Problem, &Call)) {
    let format = draw.one_of(&FORMATS);
    let dims = dims(draw, format);
    let heads = heads(draw, format);
    let requests = draw.among(1..=3);
    let most = WORK / (dims.0 * heads[0] * requests);
    let requests: Vec<(usize, usize)> = (0..requests)
        .map(|_| {
            let n = draw.one_of(&[1, 1, 1, 0, 2, 3]);
            (n, keys(draw, most / n.max(1)))
        })
        .collect();
    let mut host = Host::new(heads, dims, &requests);
    let quantised = is_quantised(format);
    if !quantised && draw.once_in(3) {
        host = host.separate_v();
    }
    match draw.one_of(&[0, 0, 1, 1, 2]) {
        0 => {}
        1 => host = host.causal(true),
        _ => {
            let tail = draw.one_of(&[1, 5, 63, 64, 65, 130]);
            let bits = [draw.u64(), draw.u64()];
            host = host.tail(tail, |r, j, i| {
                bits[(r + j) % 2] >> ((i * (j + 1) + r) % 64) & 1 == 1
            });
        }
    }
    if draw.once_in(3) {
        host = host.window(draw.one_of(&[1, 2, 31, 100, 192, 193]));
    }
    host.sink = sink(draw, heads[0]);
    host.scale = scale(draw, dims.0);
    for r in 0..requests.len() {
        if draw.once_in(4) {
            shift(host.queries(r), draw.exponent(20).clamp(-140, 100));
        }
    }
    for _ in 0..draw.one_of(&[0, 0, 0, 1, 2, 5]) {
        put(draw, &mut host);
        call.special = true;
    }
    let split = !quantised && dims.0 > dims.1;
    let layout = Layout {
        keys: match draw.among(0..=2) {
            0 => Keys::Contiguous,
            1 => Keys::Ragged,
            _ => Keys::Paged(draw.one_of(&[1, 2, 3, 16, 64, 100])),
        },
        spare: draw.one_of(&[0, 0, 1, 3]),
        padding: draw.one_of(&[0, 0, 1, 3]),
        ragged_q: draw.once_in(4),
        split_q: split && draw.once_in(3),
        split_k: split && draw.once_in(3),
    };
    let laid = host.laid(layout);
    let problem = laid.problem();
    let (q, v) = (
        draw.one_of(&[Format::Bf16, Format::Bf16, Format::F16, Format::Int8]),
        draw.one_of(&FORMATS[..3]),
    );
    let s = problem.shape;
    let outer = match (&problem.pages, problem.kv_indptr) {
        (Some(pages), _) => [pages.pages, pages.page_size, s.h_kv],
        (None, Some(indptr)) => [1, *indptr.last().unwrap() as usize, s.h_kv],
        (None, None) => [s.b, s.s_k, s.h_kv],
    };
    let queries = match problem.q_indptr {
        Some(indptr) => [1, *indptr.last().unwrap() as usize, s.h_q],
        None => [s.b, s.s_q, s.h_q],
    };
    let width = |split: bool| if split { s.d_v } else { s.d_qk };
    let [q, kv, v] = [q, format, v].map(|format| instead(draw, format));
    let [q_rope, k_rope] = [(); 2].map(|()| instead(draw, Format::Bf16));
    inputs(draw, &mut call.options);
    let rope = s.d_qk - s.d_v.min(s.d_qk);
    let q = Stored::new(&problem.q, queries, width(layout.split_q), q);
    let kv_format = kv;
    let kv = Stored::new(&problem.kv, outer, width(layout.split_k), kv_format);
    let v = problem
        .v
        .map(|tensor| Stored::new(&tensor, outer, s.d_v, v));
    let q_rope = problem
        .q_rope
        .map(|tensor| Stored::new(&tensor, queries, rope, q_rope));
    let k_rope = problem
        .k_rope
        .map(|tensor| Stored::new(&tensor, outer, rope, k_rope));
    let mut problem = Problem {
        q: q.tensor(),
        q_rope: q_rope.as_ref().map(Stored::tensor),
        kv: kv.tensor(),
        k_rope: k_rope.as_ref().map(Stored::tensor),
        v: v.as_ref().map(Stored::tensor),
        ..problem
    };
    // Drawn last, so that older inputs are what they were.
    if v.is_none() && !layout.split_k && !quantised && draw.once_in(3) {
        problem.v_offset = first_of_block(draw.among(0..=dims.0 - dims.1), kv_format);
    }
    let [step, gap] = [draw.among(0..=2), draw.among(0..=3)];
    let lens = problem.cache_seqlens.map(|lens| spread(lens, 1, step));
    if let Some(lens) = &lens {
        problem.cache_seqlens = Some(&lens[..]);
        problem.cache_seqlens_stride = 1 + step;
    }
    let table = problem.pages.map(|pages| {
        let table = spread(pages.block_table, pages.max_blocks, gap);
        (pages, table)
    });
    if let Some((pages, table)) = &table {
        problem.pages = Some(Pages {
            block_table: table,
            stride: pages.max_blocks + gap,
            ..*pages
        });
    }
    problem.split = chosen_split(draw);
    use_it(&problem, &call);
}

/// Sometimes KV splits of a chosen length.
fn chosen_split(draw: &mut Draw) -> Split {
    match draw.once_in(4) {
        true => Split::Every(Split::MULTIPLE * draw.among(1..=12)),
        false => Split::ByLength,
    }
}

/// Rows of a list further apart, with entries between them that mean nothing.
fn spread(list: &[i32], width: usize, gap: usize) -> Vec<i32> {
    let rows: Vec<&[i32]> = list.chunks(width).collect();
    rows.join(&vec![i32::MIN; gap][..])
}

/// Puts a special value somewhere into a query, a key or a value, or makes many of a row.
fn put(draw: &mut Draw, host: &mut Host) {
    let r = draw.among(0..=host.requests.len() - 1);
    let (len, x) = (host.requests[r].len, special(draw));
    let k = draw.among(0..=len.max(1) - 1);
    let separate = draw.once_in(2);
    let row = match draw.among(0..=2) {
        0 => host.queries(r),
        _ if len == 0 => return,
        1 if separate && host.has_values() => host.value(r, k),
        _ => host.key(r, k),
    };
    if row.is_empty() {
        return;
    }
    let at = draw.among(0..=row.len() - 1);
    match draw.once_in(8) {
        true => row[at..].fill(x),
        false => row[at] = x,
    }
}

// -------------------------------------------------------------------------------------------------
// Chosen keys
// -------------------------------------------------------------------------------------------------

fn with_sparse(draw: &mut Draw, mut call: Call, use_it: impl FnOnce(&Problem, &Call)) {
    let format = draw.one_of(&FORMATS);
    let (d_qk, d_v) = dims(draw, format);
    let [h_q, h_kv] = heads(draw, format);
    let (b, s_q) = (draw.among(1..=2), draw.among(1..=2));
    let paged = draw.once_in(2);
    let [dims, second] = [(); 2].map(|()| {
        let (outer, inner) = (draw.among(1..=6), draw.one_of(&[1, 2, 16, 64]));
        [if paged { outer } else { b }, inner, h_kv]
    });
    let second = [second[0], second[1], h_kv];
    let most = WORK / (d_qk * h_q * b * s_q);
    let topk = keys(draw, most);
    let extra = draw.once_in(2).then(|| keys(draw, most - topk));
    let spread = draw.exponent(10).clamp(-100, 60);
    let mut fill = |dims: [usize; 3], width: usize, seed: u64| {
        let mut rows = Rows::new(dims, width, draw.one_of(&[0, 0, 1, 3]));
        let mut values = normal(seed, 1.0, dims.iter().product::<usize>() * width);
        if draw.once_in(4) {
            shift(&mut values, spread);
        }
        if draw.once_in(3) && !values.is_empty() {
            let at = draw.among(0..=values.len() - 1);
            values[at] = special(draw);
            call.special = true;
        }
        for (i, row) in values.chunks(width).enumerate() {
            rows.row(nth(i, dims)).copy_from_slice(row);
        }
        rows
    };
    let q = fill([b, s_q, h_q], d_qk, 1);
    let kv = fill(dims, d_qk, 2);
    let other = fill(second, d_qk, 3);
    let named = |[outer, inner, _]: [usize; 3]| if paged { outer * inner } else { inner };
    let mut indices = OwnedIndices::draw(draw, named(dims), [b, s_q], topk);
    let mut extra_indices =
        extra.map(|topk| OwnedIndices::draw(draw, named(second), [b, s_q], topk));
    let lens: Option<Vec<i32>> = (!paged && draw.once_in(2))
        .then(|| (0..b).map(|_| draw.among(0..=dims[1]) as i32).collect());
    let sink = sink(draw, h_q);
    let softmax_scale = scale(draw, d_qk);
    let other_format = if is_quantised(format) {
        format
    } else {
        draw.one_of(&FORMATS[..3])
    };
    // Drawn last, so that older inputs are what they were.
    let mut cut = Cut::draw(
        draw,
        extra.is_some(),
        is_quantised(format),
        [b, s_q],
        [d_qk, d_v],
    );
    for list in std::iter::once(&mut indices).chain(&mut extra_indices) {
        list.vary(draw, [b, s_q, h_kv], cut.q_indptr.as_deref());
    }
    let [q_format, format, other_format] =
        [Format::Bf16, format, other_format].map(|format| instead(draw, format));
    inputs(draw, &mut call.options);
    for format in [format, other_format] {
        cut.v_offset = first_of_block(cut.v_offset, format);
    }
    let q_dims = cut.q_dims([b, s_q, h_q]);
    let (q, q_rope) = split(q, [b, s_q, h_q], q_dims, [d_qk, d_v], cut.q);
    let (kv, k_rope) = split(kv, dims, dims, [d_qk, d_v], cut.kv);
    let v = cut.values(dims, d_v);
    let width = |split| if split { d_v } else { d_qk };
    let q = Stored::new(&q.tensor(), q_dims, width(cut.q), q_format);
    let kv = Stored::new(&kv.tensor(), dims, width(cut.kv), format);
    let other = Stored::new(&other.tensor(), second, d_qk, other_format);
    let shape = ProblemShape {
        b,
        s_q,
        s_k: if paged { 0 } else { dims[1] },
        h_q,
        h_kv,
        d_qk,
        d_v,
    };
    let problem = Problem {
        q: q.tensor(),
        q_rope: q_rope.as_ref().map(Rows::tensor),
        q_indptr: cut.q_indptr.as_deref(),
        kv: kv.tensor(),
        v_offset: cut.v_offset,
        k_rope: k_rope.as_ref().map(Rows::tensor),
        v: v.as_ref().map(Rows::tensor),
        pages: paged.then_some(Pages {
            block_table: &[],
            max_blocks: 0,
            stride: 0,
            page_size: dims[1],
            pages: dims[0],
        }),
        cache_seqlens: lens.as_deref(),
        sparse: Some(Sparse {
            indices: indices.indices(),
            extra: extra_indices.as_ref().map(|extra| Extra {
                kv: other.tensor(),
                pages: second[0],
                page_size: second[1],
                indices: extra.indices(),
            }),
        }),
        sink: sink.as_deref(),
        split: chosen_split(draw),
        ..Problem::dense(shape, &[], &[], softmax_scale)
    };
    use_it(&problem, &call);
}

struct OwnedIndices {
    entries: Vec<i32>,
    /// The same in 64 bits, instead.
    wide: Option<Vec<i64>>,
    strides: [usize; 3],
    topk: usize,
    lengths: Option<Vec<i32>>,
    length_strides: [usize; 2],
}

impl OwnedIndices {
    /// Indices of some of `keys` keys, some of which are none.
    fn draw(draw: &mut Draw, keys: usize, [b, s_q]: [usize; 2], topk: usize) -> Self {
        let [gap, far] = [draw.among(0..=2), usize::from(draw.once_in(4))];
        let bits = draw.u64();
        let index = |i: usize| {
            let index = (i.wrapping_mul(bits as usize | 1)) >> 7;
            (index % (keys + 3 + far * 1000)) as i32 - 2
        };
        let strides = [s_q * (topk + gap), topk + gap, 0];
        let lengths = draw
            .once_in(2)
            .then(|| (0..b).map(|_| draw.among(0..=topk) as i32));
        Self {
            entries: (0..b * strides[0] + topk).map(index).collect(),
            wide: None,
            strides,
            topk,
            lengths: lengths.map(Iterator::collect),
            length_strides: [1, 0],
        }
    }

    /// Indices of heads, which overlap, in 64 bits; lengths of query positions, or of tokens.
    fn vary(&mut self, draw: &mut Draw, [b, s_q, h_kv]: [usize; 3], q_indptr: Option<&[i32]>) {
        if h_kv > 1 {
            self.strides[2] = draw.among(0..=self.strides[1] / (h_kv - 1));
        }
        self.wide = draw.once_in(3).then(|| {
            let wide = self.entries.iter().enumerate();
            // In 32 bits some would be others.
            wide.map(|(i, &x)| i64::from(x) + (i64::from(i % 7 == 6) << 32))
                .collect()
        });
        let each = draw.once_in(3);
        let Some(lengths) = &mut self.lengths else {
            return;
        };
        let of = |token: usize| (lengths[token / s_q] as usize + token % s_q * 5) % (self.topk + 1);
        let tokens = q_indptr.map_or(b * s_q, |starts| starts[b] as usize);
        (*lengths, self.length_strides) = match (q_indptr, each) {
            (None, false) => return,
            (None, true) => ((0..tokens).map(|i| of(i) as i32).collect(), [s_q, 1]),
            (Some(_), true) => ((0..tokens).map(|i| of(i) as i32).collect(), [0, 1]),
            (Some(_), false) => (lengths[..tokens.min(1)].to_vec(), [0, 0]),
        };
    }

    fn indices(&self) -> Indices<'_> {
        Indices {
            indices: match &self.wide {
                Some(wide) => IndexList::I64(wide),
                None => IndexList::I32(&self.entries),
            },
            strides: self.strides,
            topk: self.topk,
            topk_length: self.lengths.as_deref(),
            topk_length_strides: self.length_strides,
        }
    }
}
