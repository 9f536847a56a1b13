//! Problems as files.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES, encode_fp8, encode_int8, encode_model1};
use amla::{Problem, ProblemShape};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};

pub const SCALE: f32 = 0.125;

/// Multiples of 1/16 of magnitude below 2, exact in BF16.
pub fn numbers(len: usize, seed: usize) -> Vec<bf16> {
    (0..len)
        .map(|i| ((i * 37 + seed) * (i + 11) % 61) as f32 / 16.0 - 1.875)
        .map(bf16::from_f32)
        .collect()
}

/// Numbers that FP8 (`largest` 14) and INT8 (`largest` 127) represent exactly: in chunks, each with a
/// power of two of its own and an element of `largest` steps.
pub fn steps(len: usize, seed: usize, chunk: usize, largest: usize) -> Vec<bf16> {
    let step = |i: usize| match i % chunk {
        0 => largest as f32,
        _ => ((i * 37 + seed) * (i + 11) % (2 * largest + 1)) as f32 - largest as f32,
    };
    (0..len)
        .map(|i| {
            step(i) / largest.next_power_of_two() as f32 * 0.5_f32.powi((i / chunk % 5) as i32)
        })
        .map(bf16::from_f32)
        .collect()
}

pub fn fp8(rows: &[bf16]) -> Vec<u8> {
    let mut bytes = vec![0; rows.len() / 576 * FP8_ROW];
    for (row, bytes) in rows.chunks(576).zip(bytes.chunks_mut(FP8_ROW)) {
        encode_fp8(row, bytes).unwrap();
    }
    bytes
}

/// Pages, or requests, of `page_size` rows.
pub fn model1(rows: &[bf16], page_size: usize) -> Vec<u8> {
    let page = page_size * (MODEL1_ROW + MODEL1_SCALES);
    let mut bytes = vec![0; rows.len() / 512 / page_size * page];
    for (rows, page) in rows.chunks(page_size * 512).zip(bytes.chunks_mut(page)) {
        let (values, scales) = page.split_at_mut(page_size * MODEL1_ROW);
        let stored = values
            .chunks_mut(MODEL1_ROW)
            .zip(scales.chunks_mut(MODEL1_SCALES));
        for (row, (values, scales)) in rows.chunks(512).zip(stored) {
            encode_model1(row, values, scales).unwrap();
        }
    }
    bytes
}

/// A file to write.
#[derive(Clone, Default)]
pub struct Tensors {
    pub tensors: BTreeMap<&'static str, (Dtype, Vec<usize>, Vec<u8>)>,
    pub metadata: HashMap<String, String>,
}

impl Tensors {
    /// Two requests of two positions and three heads over five keys.
    pub fn small() -> Self {
        Self::scaled()
            .bf16s("q", &[2, 2, 3, 128], &numbers(1536, 1))
            .bf16s("kv", &[2, 5, 128], &numbers(1280, 2))
    }

    /// A scale only.
    pub fn scaled() -> Self {
        Self::default().f32s("softmax_scale", &[1], &[SCALE])
    }

    pub fn bf16s(self, name: &'static str, shape: &[usize], data: &[bf16]) -> Self {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.with(name, Dtype::BF16, shape, bytes)
    }

    pub fn f32s(self, name: &'static str, shape: &[usize], data: &[f32]) -> Self {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.with(name, Dtype::F32, shape, bytes)
    }

    pub fn i32s(self, name: &'static str, shape: &[usize], data: &[i32]) -> Self {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.with(name, Dtype::I32, shape, bytes)
    }

    pub fn f16s(self, name: &'static str, shape: &[usize], data: &[f16]) -> Self {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.with(name, Dtype::F16, shape, bytes)
    }

    /// Rows in INT8, and their scales, by these names.
    pub fn int8s(self, [name, scale]: [&'static str; 2], shape: &[usize], rows: &[bf16]) -> Self {
        let (width, lead) = shape.split_last().unwrap();
        let mut values = vec![0; rows.len()];
        let stored = rows.chunks(*width).zip(values.chunks_mut(*width));
        let scales: Vec<_> = stored
            .map(|(row, values)| encode_int8(row, values).unwrap())
            .collect();
        let bytes = values.iter().map(|x| x.cast_unsigned()).collect();
        self.with(name, Dtype::I8, shape, bytes)
            .f32s(scale, lead, &scales)
    }

    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn with(
        mut self,
        name: &'static str,
        dtype: Dtype,
        shape: &[usize],
        data: Vec<u8>,
    ) -> Self {
        self.tensors.insert(name, (dtype, shape.to_vec(), data));
        self
    }

    pub fn zeros(self, name: &'static str, dtype: Dtype, shape: &[usize]) -> Self {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        self.with(name, dtype, shape, vec![0; bytes])
    }

    pub fn seqlens(self, lens: &[i32]) -> Self {
        self.i32s("cache_seqlens", &[lens.len()], lens)
    }

    pub fn without(mut self, name: &str) -> Self {
        self.tensors.remove(name).unwrap();
        self
    }

    /// BF16 tensors converted to F32.
    pub fn in_f32(mut self) -> Self {
        for (dtype, _, data) in self.tensors.values_mut() {
            if *dtype == Dtype::BF16 {
                *dtype = Dtype::F32;
                // BF16 is the upper half of an F32.
                *data = data
                    .chunks(2)
                    .flat_map(|half| [0, 0, half[0], half[1]])
                    .collect();
            }
        }
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, data))| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        // Of which crate the map is depends on features.
        let metadata = self.metadata.clone().into_iter().collect();
        safetensors::serialize(views, Some(metadata)).unwrap()
    }

    pub fn write(&self, path: &Path) {
        fs::write(path, self.bytes()).unwrap();
    }
}

// -------------------------------------------------------------------------------------------------
// Problems
// -------------------------------------------------------------------------------------------------

/// Sizes of [`Tensors::small`].
pub const SMALL: ProblemShape = ProblemShape {
    b: 2,
    s_q: 2,
    s_k: 5,
    h_q: 3,
    h_kv: 1,
    d_qk: 128,
    d_v: 128,
};

/// A problem over dense tensors that outlive it.
pub fn dense(shape: ProblemShape, q: &[bf16], kv: &[bf16]) -> Problem<'static> {
    Problem::dense(shape, q.to_vec().leak(), kv.to_vec().leak(), SCALE)
}

/// A block table and shuffled pages of two keys. They hold the keys of `kv`, `width` wide, five for
/// each of two requests; all other slots are NaN.
pub fn pages(kv: &[bf16], width: usize) -> (Vec<i32>, Vec<bf16>) {
    let table = vec![5, 0, 3, 7, 2, 4];
    let mut pages = vec![bf16::NAN; 8 * 2 * width];
    for (row, data) in kv.chunks(width).enumerate() {
        let (request, key) = (row / 5, row % 5);
        let page = table[request * 3 + key / 2] as usize;
        pages[(page * 2 + key % 2) * width..][..width].copy_from_slice(data);
    }
    (table, pages)
}

/// The first `at` columns of rows of `width`, and the others.
pub fn cut(rows: &[bf16], width: usize, at: usize) -> [Vec<bf16>; 2] {
    let rows = rows.chunks(width);
    [
        rows.clone().flat_map(|row| &row[..at]).copied().collect(),
        rows.flat_map(|row| &row[at..]).copied().collect(),
    ]
}
