//! Cost of a host's cache layout: paged, quantised and sparse problems against the same keys, dense in
//! BF16, both in turn in this process; medians of the paired ratios.
//!
//!     cargo bench --bench hosts
//!     cargo bench --bench hosts -- --backend portable

mod common;

use std::time::{Duration, Instant};

use amla::format::{
    FP8_ROW, MODEL1_ROW, MODEL1_SCALES, Q4_0, Q8_0, encode_e4m3, encode_fp8, encode_int8,
    encode_model1, encode_q4_0, encode_q8_0,
};
use amla::{
    Backend, BackendId, Data, Elements, IndexList, Indices, Inputs, Options, Output, Pages,
    Problem, ProblemShape, Sparse, TensorRef, Workspace, decode,
};
use half::{bf16, f16};

const HEADS: usize = 128;
/// Keys of a problem, and of the sparse one's cache.
const CONTEXT: usize = 4096;
const TOPK: usize = 2048;
const SPARSE: usize = 32768;
const BUDGET: Duration = Duration::from_secs(4);

fn main() {
    let mut args = std::env::args()
        .skip_while(|arg| arg != "--backend")
        .skip(1);
    let backend = args.next().map_or_else(Backend::detect, |name| {
        let id = BackendId::from_name(&name).expect("a backend's name");
        Backend::request(id).expect("a backend of this processor")
    });
    println!(
        "{}, h_q {HEADS}, context {CONTEXT}, one thread",
        backend.id().name()
    );
    let q = common::inputs(1, HEADS * 576);
    let kv = common::inputs(2, SPARSE * 576);
    let mut bench = Bench {
        options: Options {
            backend,
            ..Options::default()
        },
        workspace: bytemuck::zeroed_box(),
        o: vec![0.0; HEADS * 512],
        lse: vec![0.0; HEADS],
    };
    let dense = problem(576, CONTEXT, q, kv);
    bench.paired("dense against itself", &dense, &dense);
    for page_size in [1, 16, 64, 128] {
        paged(&mut bench, &dense, page_size);
    }
    apart(&mut bench, &dense, kv);
    unrounded(&mut bench, &dense, kv);
    quantised(&mut bench, &dense, q, kv);
    sparse(&mut bench, q, kv);
}

fn problem<'a>(d_qk: usize, s_k: usize, q: &'a [bf16], kv: &'a [bf16]) -> Problem<'a> {
    let shape = ProblemShape {
        b: 1,
        s_q: 1,
        s_k,
        h_q: HEADS,
        h_kv: 1,
        d_qk,
        d_v: 512,
    };
    Problem::dense(shape, q, kv, 1.0 / 24.0)
}

/// The numbers below `n` in an order without runs.
fn scattered(n: usize) -> Vec<i32> {
    (0..n)
        .map(|i| i32::try_from(i * 7919 % n).expect("small"))
        .collect()
}

fn paged(bench: &mut Bench, dense: &Problem, page_size: usize) {
    let pages = CONTEXT / page_size;
    let block_table = scattered(pages);
    let problem = Problem {
        kv: TensorRef {
            strides: [page_size * 576, 576, 0],
            ..dense.kv
        },
        pages: Some(Pages {
            block_table: &block_table,
            max_blocks: pages,
            stride: pages,
            page_size,
            pages,
        }),
        ..*dense
    };
    bench.paired(&format!("pages of {page_size}"), &problem, dense);
}

fn apart(bench: &mut Bench, dense: &Problem, kv: &[bf16]) {
    let rows = || kv.chunks(576).take(CONTEXT);
    let ckv: Vec<bf16> = rows().flat_map(|row| &row[..512]).copied().collect();
    let rope: Vec<bf16> = rows().flat_map(|row| &row[512..]).copied().collect();
    let tensor = |data, width| TensorRef {
        data: Data::Bf16(data),
        strides: [0, width, 0],
    };
    let problem = Problem {
        kv: tensor(&ckv, 512),
        k_rope: Some(tensor(&rope, 64)),
        ..*dense
    };
    bench.paired("ckv and k_rope apart", &problem, dense);
}

/// Caches of more than BF16 holds. A backend that multiplies BF16 leaves them to the FP32 backend of its
/// processor, unless they may be rounded.
fn unrounded(bench: &mut Bench, dense: &Problem, kv: &[bf16]) {
    let numbers: Vec<f32> = kv[..CONTEXT * 576].iter().map(|x| x.to_f32()).collect();
    let halves: Vec<f16> = numbers.iter().copied().map(f16::from_f32).collect();
    let mut q8 = vec![Q8_0::default(); CONTEXT * 18];
    let mut q4 = vec![Q4_0::default(); CONTEXT * 18];
    encode_q8_0(&numbers, &mut q8).expect("whole blocks");
    encode_q4_0(&numbers, &mut q4).expect("whole blocks");
    for (name, data, row) in [
        ("FP16", Data::F16(&halves), 576),
        ("FP32", Data::F32(&numbers), 576),
        ("Q8_0", Data::Q8_0(&q8), 18),
        ("Q4_0", Data::Q4_0(&q4), 18),
    ] {
        let problem = Problem {
            kv: TensorRef {
                data,
                strides: [0, row, 0],
            },
            ..*dense
        };
        bench.paired(name, &problem, dense);
        if name == "FP16" {
            bench.options.inputs = Inputs::Bf16;
            bench.paired("FP16, rounded to BF16", &problem, dense);
            bench.options.inputs = Inputs::AsGiven;
        }
    }
}

fn quantised(bench: &mut Bench, dense: &Problem, q: &[bf16], kv: &[bf16]) {
    let rows = || kv.chunks(576).take(CONTEXT);
    let with = |data, row| Problem {
        kv: TensorRef {
            data,
            strides: [0, row, 0],
        },
        ..*dense
    };
    let mut bytes = vec![0; CONTEXT * FP8_ROW];
    for (row, bytes) in rows().zip(bytes.chunks_mut(FP8_ROW)) {
        encode_fp8(row, bytes).expect("576 numbers");
    }
    bench.paired("FP8", &with(Data::Fp8(&bytes), FP8_ROW), dense);
    let mut values = vec![0; CONTEXT * 576];
    let scales: Vec<f32> = rows()
        .zip(values.chunks_mut(576))
        .map(|(row, values)| encode_int8(row, values).expect("as many"))
        .collect();
    let int8 = Data::Int8 {
        values: &values,
        scales: &scales,
        strides: [0, 1, 0],
    };
    bench.paired("INT8", &with(int8, 576), dense);
    let mut values = vec![0; CONTEXT * 576];
    let scales: Vec<f32> = rows()
        .zip(values.chunks_mut(576))
        .map(|(row, values)| encode_e4m3(row, values).expect("as many"))
        .collect();
    let e4m3 = Data::E4m3 {
        values: &values,
        scales: &scales,
        strides: [0, 1, 0],
    };
    bench.paired("E4M3", &with(e4m3, 576), dense);

    let mut bytes = vec![0; CONTEXT * (MODEL1_ROW + MODEL1_SCALES)];
    let (stored, scales) = bytes.split_at_mut(CONTEXT * MODEL1_ROW);
    let stored = stored
        .chunks_mut(MODEL1_ROW)
        .zip(scales.chunks_mut(MODEL1_SCALES));
    for (row, (bytes, scales)) in rows().zip(stored) {
        encode_model1(&row[..512], bytes, scales).expect("512 numbers");
    }
    let narrow = problem(512, CONTEXT, q, kv);
    let model1 = Problem {
        kv: TensorRef {
            data: Data::Model1 {
                bytes: &bytes,
                scales: CONTEXT * MODEL1_ROW,
                scale_stride: MODEL1_SCALES,
            },
            strides: [0, MODEL1_ROW, 0],
        },
        ..narrow
    };
    bench.paired("MODEL1, d_qk 512", &model1, &narrow);
}

fn sparse(bench: &mut Bench, q: &[bf16], kv: &[bf16]) {
    let indices = scattered(SPARSE);
    let sparse = Problem {
        sparse: Some(Sparse {
            indices: Indices {
                indices: IndexList::I32(&indices),
                strides: [0; 3],
                topk: TOPK,
                topk_length: None,
                topk_length_strides: [1, 0],
            },
            extra: None,
        }),
        ..problem(576, SPARSE, q, kv)
    };
    let dense = problem(576, TOPK, q, kv);
    bench.paired(&format!("sparse, {TOPK} of {SPARSE}"), &sparse, &dense);
}

struct Bench {
    options: Options,
    workspace: Box<Workspace>,
    o: Vec<f32>,
    lse: Vec<f32>,
}

impl Bench {
    /// Prints how much longer `problem` takes than `other`.
    fn paired(&mut self, name: &str, problem: &Problem, other: &Problem) {
        let start = Instant::now();
        let (mut ratios, mut times) = (Vec::new(), Vec::new());
        while start.elapsed() < BUDGET {
            // Whoever goes first has the colder caches: in turn.
            let (time, base) = if ratios.len() % 2 == 0 {
                let base = self.time(other);
                (self.time(problem), base)
            } else {
                (self.time(problem), self.time(other))
            };
            ratios.push(time / base);
            times.push(time);
        }
        let quartile = |values: &mut Vec<f64>, i: usize| {
            values.sort_by(f64::total_cmp);
            values[(values.len() - 1) * i / 4]
        };
        println!(
            "{name:24} {:8.3} ms {:+6.1} %   quartiles {:+.1}..{:+.1}",
            quartile(&mut times, 2) * 1e3,
            (quartile(&mut ratios, 2) - 1.0) * 100.0,
            (quartile(&mut ratios, 1) - 1.0) * 100.0,
            (quartile(&mut ratios, 3) - 1.0) * 100.0,
        );
    }

    fn time(&mut self, problem: &Problem) -> f64 {
        let output = Output::dense(problem.shape, Elements::F32(&mut self.o), &mut self.lse);
        let start = Instant::now();
        decode(problem, &self.options, &mut self.workspace, output).expect("a valid problem");
        start.elapsed().as_secs_f64()
    }
}
