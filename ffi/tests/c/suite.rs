//! The numeric suite through C: cases written to a file, computed by suite.c, and compared bit for
//! bit with what Rust computes of the same.

use std::fs;
use std::path::Path;

use amla::format::{Q4_0, Q8_0};
use amla::{
    Data, Elements, EmptyLse, Extra, IndexList, Indices, Inputs, Lse, LseBase, Options, Output,
    Part, Precision, Problem, Rescale, Sparse, Split, TensorRef, decode, format, merge,
};
use half::{bf16, f16};

use crate::common::workspace;

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As the header has it: FP32, BF16 or FP16.
    pub dtype: u32,
    pub lse: Lse,
    /// Elements between tokens.
    pub gap: usize,
}

pub const F32: Target = Target {
    dtype: 3,
    lse: Lse {
        base: LseBase::E,
        empty: EmptyLse::Infinity,
    },
    gap: 0,
};

/// Cases as suite.c reads them, and what it must answer.
#[derive(Default)]
pub struct Cases {
    file: Vec<u8>,
    want: Vec<u8>,
    /// Where each case's answer begins, and what it was.
    names: Vec<(usize, String)>,
}

fn bytes_of<T: Copy, const N: usize>(xs: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    xs.iter().flat_map(|&x| bytes(x)).collect()
}

fn halves(xs: &[bf16]) -> Vec<u8> {
    bytes_of(xs, bf16::to_le_bytes)
}

fn floats(xs: &[f32]) -> Vec<u8> {
    bytes_of(xs, f32::to_le_bytes)
}

impl Cases {
    fn word(&mut self, word: u64) {
        self.file.extend(word.to_le_bytes());
    }

    fn size(&mut self, size: usize) {
        self.word(size as u64);
    }

    fn blob(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => {
                self.size(bytes.len());
                self.file.extend(bytes);
            }
            None => self.word(u64::MAX),
        }
    }

    fn ints(&mut self, list: Option<&[i32]>) {
        let bytes = list.map(|list| bytes_of(list, i32::to_le_bytes));
        self.blob(bytes.as_deref());
    }

    fn sizes<const N: usize>(&mut self, sizes: [usize; N]) {
        sizes.into_iter().for_each(|size| self.size(size));
    }

    fn tensor(&mut self, tensor: Option<&TensorRef<'_>>) {
        let Some(TensorRef { data, strides }) = tensor else {
            return self.word(0);
        };
        self.word(1);
        let (mut scales, mut scale_strides, mut model1) = (None, [0; 3], [0; 2]);
        let (dtype, bytes) = match *data {
            Data::Bf16(data) => (1, halves(data)),
            Data::F16(data) => (2, bytes_of(data, f16::to_le_bytes)),
            Data::F32(data) => (3, bytes_of(data, f32::to_le_bytes)),
            Data::Q8_0(blocks) => (7, bytemuck::cast_slice(blocks).to_vec()),
            Data::Q4_0(blocks) => (8, bytemuck::cast_slice(blocks).to_vec()),
            Data::Fp8(bytes) => (4, bytes.to_vec()),
            Data::Model1 {
                bytes,
                scales,
                scale_stride,
            } => {
                model1 = [scales, scale_stride];
                (5, bytes.to_vec())
            }
            Data::Int8 {
                values,
                scales: of_rows,
                strides,
            } => {
                scales = Some(floats(of_rows));
                scale_strides = strides;
                (6, bytes_of(values, i8::to_le_bytes))
            }
            Data::E4m3 {
                values,
                scales: of_rows,
                strides,
            } => {
                scales = Some(floats(of_rows));
                scale_strides = strides;
                (9, values.to_vec())
            }
        };
        self.word(dtype);
        self.sizes(*strides);
        self.sizes(scale_strides);
        self.sizes(model1);
        self.blob(Some(&bytes));
        self.blob(scales.as_deref());
    }

    fn indices(&mut self, indices: Option<&Indices<'_>>) {
        let Some(indices) = indices else {
            return self.word(0);
        };
        self.word(1);
        self.sizes(indices.strides);
        self.size(indices.topk);
        self.sizes(indices.topk_length_strides);
        match indices.indices {
            IndexList::I32(list) => {
                self.word(32);
                self.ints(Some(list));
            }
            IndexList::I64(list) => {
                self.word(64);
                self.blob(Some(&bytes_of(list, i64::to_le_bytes)));
            }
        }
        self.ints(indices.topk_length);
    }

    /// A call, which Rust computes too.
    pub fn decode(&mut self, problem: &Problem<'_>, options: &Options, target: Target) {
        self.names.push((
            self.want.len(),
            format!("{target:?}, {options:?}, {:?}", problem.shape),
        ));
        let s = problem.shape;
        self.word(0);
        self.word(u64::from(problem.causal) + 2);
        self.sizes([s.b, s.s_q, s.s_k, s.h_q, s.h_kv, s.d_qk, s.d_v]);
        self.word(problem.softmax_scale.to_bits().into());
        self.word((options.rescale == Rescale::Compensated).into());
        self.word(match (options.precision, options.inputs) {
            (Precision::Bf16, Inputs::AsGiven) => 0,
            (Precision::Bf16x2, Inputs::AsGiven) => 1,
            (Precision::Bf16, Inputs::Bf16) => 2,
            (Precision::Bf16x2, Inputs::Bf16) => unreachable!("C has no number for it"),
        });
        let name = format!("{}\0", options.backend.id().name());
        self.blob(Some(name.as_bytes()));
        self.tensor(Some(&problem.q));
        self.tensor(problem.q_rope.as_ref());
        self.tensor(Some(&problem.kv));
        self.tensor(problem.k_rope.as_ref());
        self.tensor(problem.v.as_ref());
        self.ints(problem.q_indptr);
        self.ints(problem.kv_indptr);
        self.ints(problem.cache_seqlens);
        self.ints(problem.pages.map(|pages| pages.block_table));
        self.sizes(
            problem
                .pages
                .map_or([0; 4], |p| [p.max_blocks, p.stride, p.page_size, p.pages]),
        );
        let split = match problem.split {
            Split::ByLength => 0,
            Split::Every(keys) => keys,
        };
        self.sizes([problem.cache_seqlens_stride, problem.v_offset, split]);
        self.size(problem.window.unwrap_or(0));
        let mask = problem
            .tail_mask
            .map(|mask| bytes_of(mask.words, u64::to_le_bytes));
        self.blob(mask.as_deref());
        self.size(problem.tail_mask.map_or(0, |mask| mask.tail));
        let extra = problem.sparse.and_then(|sparse| sparse.extra);
        self.indices(problem.sparse.as_ref().map(|sparse| &sparse.indices));
        self.tensor(extra.as_ref().map(|extra| &extra.kv));
        self.sizes(extra.map_or([0; 2], |extra| [extra.pages, extra.page_size]));
        self.indices(extra.as_ref().map(|extra| &extra.indices));
        self.blob(problem.sink.map(floats).as_deref());
        self.results(problem, options, target);
    }

    fn results(&mut self, problem: &Problem<'_>, options: &Options, target: Target) {
        let s = problem.shape;
        let tokens = problem.q_indptr.map_or(s.b * s.s_q, |indptr| {
            usize::try_from(*indptr.last().unwrap()).unwrap()
        });
        let token = s.h_q * s.d_v + target.gap;
        let o_strides = [s.s_q * token, token, s.d_v];
        let lse_strides = [s.s_q * s.h_q, 1, s.h_q];
        let (o_len, lse_len) = (tokens * token, tokens * s.h_q);
        self.word(target.dtype.into());
        self.size(o_len);
        self.sizes(o_strides);
        self.size(lse_len);
        self.sizes(lse_strides);
        self.word((target.lse.base == LseBase::Two).into());
        self.word((target.lse.empty == EmptyLse::MinusInfinity).into());

        let filled = f32::from_le_bytes([0xa5; 4]);
        let (mut o, mut lse) = (vec![filled; o_len], vec![filled; lse_len]);
        let mut max_logits = lse.clone();
        let mut o16 = vec![bf16::from_le_bytes([0xa5; 2]); o_len];
        let mut f16s = vec![f16::from_le_bytes([0xa5; 2]); o_len];
        let elements = match target.dtype {
            1 => Elements::Bf16(&mut o16),
            2 => Elements::F16(&mut f16s),
            _ => Elements::F32(&mut o),
        };
        let output = Output {
            o: elements,
            o_strides,
            lse: Some(&mut lse),
            lse_strides,
            max_logits: Some(&mut max_logits),
            lse_format: target.lse,
        };
        decode(problem, options, &mut workspace(), output).unwrap();
        self.want.extend(match target.dtype {
            1 => halves(&o16),
            2 => bytes_of(&f16s, f16::to_le_bytes),
            _ => floats(&o),
        });
        self.want.extend(floats(&lse));
        self.want.extend(floats(&max_logits));
    }

    /// A dense call in one line, which suite.c compares with the full call: the default backend is its process's.
    pub fn mla(&mut self, problem: &Problem<'_>) {
        let s = problem.shape;
        self.word(3);
        self.sizes([s.b, s.s_q, s.s_k, s.h_q]);
        self.word(problem.softmax_scale.to_bits().into());
        for tensor in [problem.q, problem.kv] {
            match tensor.data {
                Data::Bf16(data) => self.blob(Some(&halves(data))),
                _ => panic!("not in BF16"),
            }
        }
    }

    /// A row of 576 numbers or more in each format.
    pub fn encode(&mut self, row: &[bf16]) {
        self.names.push((self.want.len(), "encoders".to_owned()));
        self.word(1);
        self.blob(Some(&halves(row)));
        let mut fp8 = [0; format::FP8_ROW];
        format::encode_fp8(&row[..576], &mut fp8).unwrap();
        let (mut model1, mut scales) = ([0; format::MODEL1_ROW], [0; format::MODEL1_SCALES]);
        format::encode_model1(&row[..512], &mut model1, &mut scales).unwrap();
        let mut int8 = vec![0; row.len()];
        let scale = format::encode_int8(row, &mut int8).unwrap();
        self.want.extend(fp8);
        self.want.extend(model1);
        self.want.extend(scales);
        self.want.extend(bytes_of(&int8, i8::to_le_bytes));
        self.want.extend(scale.to_le_bytes());
        let mut e4m3 = vec![0; row.len()];
        let scale = format::encode_e4m3(row, &mut e4m3).unwrap();
        self.want.extend(e4m3);
        self.want.extend(scale.to_le_bytes());
        let row: Vec<f32> = row[..576].iter().map(|x| x.to_f32()).collect();
        self.blob(Some(&floats(&row)));
        let (mut q8, mut q4) = ([Q8_0::default(); 18], [Q4_0::default(); 18]);
        format::encode_q8_0(&row, &mut q8).unwrap();
        format::encode_q4_0(&row, &mut q4).unwrap();
        self.want.extend(bytemuck::cast_slice::<_, u8>(&q8));
        self.want.extend(bytemuck::cast_slice::<_, u8>(&q4));
    }

    /// Results over different keys of a problem of this shape, the first of them the total.
    pub fn merge(&mut self, shape: amla::ProblemShape, results: &[(Vec<f32>, Vec<f32>)], lse: Lse) {
        self.names
            .push((self.want.len(), format!("{} results merged", results.len())));
        self.word(2);
        self.sizes([shape.b, shape.s_q, shape.h_q, shape.d_v, results.len() - 1]);
        self.word((lse.base == LseBase::Two).into());
        self.word((lse.empty == EmptyLse::MinusInfinity).into());
        for (o, lse) in results {
            self.blob(Some(&floats(o)));
            self.blob(Some(&floats(lse)));
        }
        let (mut o, mut total) = results[0].clone();
        // The logarithms stand for the largest scores, too.
        let mut max_logits = total.clone();
        let parts: Vec<_> = results[1..]
            .iter()
            .map(|(o, lse)| Part {
                o,
                lse,
                max_logits: Some(lse),
            })
            .collect();
        let output = Output {
            lse_format: lse,
            max_logits: Some(&mut max_logits),
            ..Output::dense(shape, Elements::F32(&mut o), &mut total)
        };
        merge(&shape, output, &parts).unwrap();
        self.want.extend(floats(&o));
        self.want.extend(floats(&total));
        self.want.extend(floats(&max_logits));
    }

    /// Has suite.c compute them, in a folder of its own.
    #[track_caller]
    pub fn compare(&self, folder: &Path, run: impl FnOnce(&Path, &Path)) {
        let (cases, results) = (folder.join("cases"), folder.join("results"));
        fs::write(&cases, &self.file).unwrap();
        run(&cases, &results);
        let got = fs::read(&results).unwrap();
        let wrong = got
            .iter()
            .zip(&self.want)
            .position(|(got, want)| got != want);
        if let Some(byte) = wrong {
            let (start, name) = self
                .names
                .iter()
                .rfind(|(start, _)| *start <= byte)
                .unwrap();
            panic!("byte {} of the result of {name}", byte - start);
        }
        assert_eq!(got.len(), self.want.len());
        // A gigabyte. What differed stays to be looked at.
        fs::remove_dir_all(folder).unwrap();
    }
}

/// The same keys in a second cache too, chosen in an order of their own, some of them twice, some
/// that there aren't.
pub fn sparse<'a>(problem: &Problem<'a>, indices: &'a [i32], counts: &'a [i32]) -> Problem<'a> {
    let s = problem.shape;
    let indices = Indices {
        indices: IndexList::I32(indices),
        strides: [indices.len() / s.b, indices.len() / s.b / s.s_q, 0],
        topk: indices.len() / s.b / s.s_q,
        topk_length: Some(counts),
        topk_length_strides: [1, 0],
    };
    Problem {
        sparse: Some(Sparse {
            indices,
            extra: Some(Extra {
                kv: problem.kv,
                pages: s.b,
                page_size: s.s_k,
                indices: Indices {
                    topk_length: None,
                    ..indices
                },
            }),
        }),
        cache_seqlens: None,
        ..*problem
    }
}
