//! Random problems: heads, lengths, layouts, masks, sinks, formats, chosen keys.

use std::fmt;

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES, encode_fp8, encode_int8, encode_model1};
use amla::{
    Backend, Data, Extra, IndexList, Indices, Options, Pages, Problem, SUPPORTED_DIMS, Sparse,
    TensorRef,
};
use amla_examples::problem::{Elements, Format, Stored};
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{modes, normal};
use crate::host::{Host, Keys, Laid, Layout};

/// Query heads of a KV head, and KV heads: one row to two panels of rows, and several KV heads.
const HEADS: [[usize; 2]; 9] = [
    [1, 1],
    [3, 1],
    [8, 1],
    [16, 1],
    [33, 1],
    [70, 1],
    [128, 1],
    [5, 2],
    [2, 8],
];
const PAGE_SIZES: [usize; 6] = [1, 7, 16, 64, 100, 576];

/// A problem, and how to compute it.
pub struct Recipe {
    number: u64,
    host: Host,
    layout: Layout,
    format: Format,
    sparse: Option<SparseKeys>,
    pub options: Options,
}

/// Indices of keys for sparse attention, and a second cache.
struct SparseKeys {
    topk: usize,
    indices: Vec<i32>,
    lengths: Option<Vec<i32>>,
    extra: Option<SecondCache>,
}

struct SecondCache {
    rows: Vec<bf16>,
    pages: usize,
    page_size: usize,
    topk: usize,
    indices: Vec<i32>,
}

fn one<T: Copy>(rng: &mut ChaCha8Rng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

/// Lengths around blocks and splits, and any.
fn keys(rng: &mut ChaCha8Rng) -> usize {
    match rng.random_range(0..4) {
        0 => one(rng, &[0, 1, 2, 191, 192, 193, 383, 385]),
        1 => rng.random_range(2000..2400),
        2 => rng.random_range(0..64),
        _ => rng.random_range(0..700),
    }
}

impl Recipe {
    /// Problem `number` of a seed, whatever else was made.
    pub fn new(seed: u64, number: u64, backends: &[Backend]) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(number);
        let rng = &mut rng;
        let [group, h_kv] = one(rng, &HEADS);
        let dims = one(rng, SUPPORTED_DIMS);
        let sparse = rng.random_ratio(1, 4);
        let equal = sparse || rng.random();
        let n = rng.random_range(1..=3);
        let requests: Vec<_> = (0..rng.random_range(1..=3))
            .map(|_| (if equal { n } else { rng.random_range(0..=4) }, keys(rng)))
            .collect();
        let mut host = Host::new([group * h_kv, h_kv], dims, &requests);
        host.scale *= one(rng, &[1.0, -0.3, 3.0, 0.0]);
        if rng.random_ratio(1, 3) {
            host = host.sink(|h| h as f32 / 4.0 - 2.0);
        }
        let mut layout = layout(rng, dims);
        let mut apart = false;
        if sparse {
            (layout.ragged_q, layout.split_k) = (false, false);
        } else {
            if rng.random_ratio(1, 4) {
                host = host.separate_v();
                apart = true;
            }
            match rng.random_range(0..4) {
                0 => host = host.causal(true),
                1 => host = host.tree(one(rng, &[1, 64, 65, 130]), number),
                _ => {}
            }
            if rng.random_ratio(1, 4) {
                host = host.window(one(rng, &[1, 100, 192, 500]));
            }
        }
        let format = format(rng, dims, h_kv, apart);
        if format != Format::Bf16 {
            (layout.padding, layout.split_k) = (0, false);
        }
        let backend = one(rng, backends);
        let mut recipe = Self {
            number,
            host,
            layout,
            format,
            sparse: None,
            options: one(rng, &modes(backend)),
        };
        if sparse {
            let keys = SparseKeys::new(rng, &recipe.laid().problem());
            recipe.sparse = Some(keys);
        }
        recipe
    }

    /// The problem in memory, dense and in BF16.
    pub fn laid(&self) -> Laid<'_> {
        self.host.laid(self.layout)
    }

    /// The cache in the recipe's format, unless that is BF16.
    pub fn stored(&self, laid: &Laid) -> Option<Stored> {
        store(&laid.problem().kv, self.host.dims.0, self.format)
    }

    pub fn problem<'a>(&'a self, laid: &'a Laid, stored: Option<&'a Stored>) -> Problem<'a> {
        let mut problem = laid.problem();
        if let Some(stored) = stored {
            problem.kv = stored.tensor();
        }
        let s_q = problem.shape.s_q;
        problem.sparse = self.sparse.as_ref().map(|keys| keys.sparse(s_q, &problem));
        problem
    }
}

/// Reproduces the problem.
impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = self.host.requests.iter().map(|r| (r.n, r.len));
        f.debug_struct("Recipe")
            .field("number", &self.number)
            .field("heads", &self.host.heads)
            .field("dims", &self.host.dims)
            .field("requests", &requests.collect::<Vec<_>>())
            .field("layout", &self.layout)
            .field("sparse", &self.sparse.is_some())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

fn layout(rng: &mut ChaCha8Rng, dims: (usize, usize)) -> Layout {
    let splits = dims.0 > dims.1;
    Layout {
        keys: match rng.random_range(0..3) {
            0 => Keys::Contiguous,
            1 => Keys::Ragged,
            _ => Keys::Paged(one(rng, &PAGE_SIZES)),
        },
        spare: one(rng, &[0, 3]),
        padding: one(rng, &[0, 5]),
        ragged_q: rng.random(),
        split_q: splits && rng.random(),
        split_k: splits && rng.random(),
    }
}

/// A format that has rows of this width.
fn format(rng: &mut ChaCha8Rng, dims: (usize, usize), h_kv: usize, apart: bool) -> Format {
    let mut formats = vec![
        Format::Bf16,
        Format::Bf16,
        Format::F16,
        Format::F32,
        Format::Int8,
    ];
    if dims == (576, 512) && !apart {
        formats.push(Format::Fp8);
    }
    if dims == (512, 512) && h_kv == 1 && !apart {
        formats.push(Format::Model1);
    }
    one(rng, &formats)
}

/// A number with more bits than BF16 has, near this one.
fn longer((i, x): (usize, &bf16)) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16 | ((i * 40_503) & 0xffff) as u32)
}

/// A contiguous tensor's rows of `width` in another format.
fn store(tensor: &TensorRef, width: usize, format: Format) -> Option<Stored> {
    let Data::Bf16(data) = tensor.data else {
        return None;
    };
    let [outer, token, _] = tensor.strides;
    let (heads, inner) = (token / width, outer / token);
    let rows = || data.chunks(width);
    let count = data.len() / width;
    let pages = count.checked_div(heads * inner).unwrap_or_default();
    let mut row = width;
    let elements = match format {
        Format::F32 => Elements::F32(data.iter().enumerate().map(longer).collect()),
        Format::F16 => Elements::F16(data.iter().map(|x| f16::from_f32(x.to_f32())).collect()),
        Format::Int8 => {
            let mut values = vec![0; data.len()];
            let scales = rows().zip(values.chunks_mut(width));
            let scales = scales.map(|(row, values)| encode_int8(row, values).unwrap_or_default());
            let scales = scales.collect();
            Elements::Int8 { values, scales }
        }
        Format::Fp8 => {
            row = FP8_ROW;
            let mut bytes = vec![0; count * FP8_ROW];
            for (row, bytes) in rows().zip(bytes.chunks_mut(FP8_ROW)) {
                encode_fp8(row, bytes).ok()?;
            }
            Elements::Fp8(bytes)
        }
        Format::Model1 => {
            row = MODEL1_ROW + MODEL1_SCALES;
            let mut bytes = vec![0; count * row];
            let page = (inner * width).max(1);
            let of_pages = data
                .chunks(page)
                .zip(bytes.chunks_mut((inner * row).max(1)));
            for (rows, page) in of_pages {
                let (values, scales) = page.split_at_mut(inner * MODEL1_ROW);
                let stored = values
                    .chunks_mut(MODEL1_ROW)
                    .zip(scales.chunks_mut(MODEL1_SCALES));
                for (row, (values, scales)) in rows.chunks(width).zip(stored) {
                    encode_model1(row, values, scales).ok()?;
                }
            }
            Elements::Model1(bytes)
        }
        Format::Bf16 => return None,
    };
    Some(Stored {
        elements,
        dims: [pages, inner, heads],
        row,
    })
}

impl SparseKeys {
    /// Keys of each query position's own request, some of them twice, and some indices without a key.
    fn new(rng: &mut ChaCha8Rng, problem: &Problem) -> Self {
        let shape = &problem.shape;
        let topk = one(rng, &[0, 1, 40, 192, 300]);
        let mut indices = Vec::new();
        for query in 0..shape.b * shape.s_q {
            let request = query / shape.s_q;
            let len = keys_of(problem, request);
            indices.extend((0..topk).map(|_| match rng.random_range(0..20) {
                0 => one(rng, &[-1, i32::MIN, i32::MAX]),
                _ if len == 0 => -1,
                _ => index(problem.pages, request, rng.random_range(0..len)),
            }));
        }
        let lengths = rng.random_bool(0.5).then(|| {
            let topk = topk as i32;
            (0..shape.b).map(|_| rng.random_range(0..=topk)).collect()
        });
        let extra = rng.random_bool(0.5).then(|| {
            let (pages, page_size, topk) = (3, one(rng, &[5, 64]), one(rng, &[0, 7, 200]));
            let limit = (pages * page_size) as i32;
            SecondCache {
                rows: normal(9, 1.0, pages * page_size * shape.h_kv * shape.d_qk),
                pages,
                page_size,
                topk,
                indices: (0..shape.b * shape.s_q * topk)
                    .map(|_| rng.random_range(-2..limit + 2))
                    .collect(),
            }
        });
        Self {
            topk,
            indices,
            lengths,
            extra,
        }
    }

    fn sparse<'a>(&'a self, s_q: usize, problem: &Problem) -> Sparse<'a> {
        let (h_kv, d_qk) = (problem.shape.h_kv, problem.shape.d_qk);
        let indices = |indices, topk, topk_length| Indices {
            indices: IndexList::I32(indices),
            strides: [s_q * topk, topk, 0],
            topk,
            topk_length,
            topk_length_strides: [1, 0],
        };
        Sparse {
            indices: indices(&self.indices, self.topk, self.lengths.as_deref()),
            extra: self.extra.as_ref().map(|extra| Extra {
                kv: TensorRef {
                    data: Data::Bf16(&extra.rows),
                    strides: [extra.page_size * h_kv * d_qk, h_kv * d_qk, d_qk],
                },
                pages: extra.pages,
                page_size: extra.page_size,
                indices: indices(&extra.indices, extra.topk, None),
            }),
        }
    }
}

/// Keys of a request that hold numbers.
fn keys_of(problem: &Problem, request: usize) -> usize {
    let int = |x: i32| usize::try_from(x).unwrap_or_default();
    match (problem.cache_seqlens, problem.kv_indptr) {
        (Some(lens), _) => int(lens[request]),
        (None, Some(indptr)) => int(indptr[request + 1] - indptr[request]),
        (None, None) => problem.shape.s_k,
    }
}

/// The index of key `k` of a request for sparse attention.
fn index(pages: Option<Pages>, request: usize, k: usize) -> i32 {
    let k = k as i32;
    let Some(pages) = pages else { return k };
    let size = pages.page_size as i32;
    let blocks = &pages.block_table[request * pages.stride..];
    blocks[(k / size) as usize] * size + k % size
}
