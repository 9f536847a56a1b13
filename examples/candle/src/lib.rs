//! MLA decode over a paged cache as an operator of candle, for its CPU device.

pub mod own;

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use amla::{Attention, TensorView, Workspaces};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

/// Columns of a cached row, and of the value that it begins with.
pub const D_QK: usize = 576;
/// Columns of a value.
pub const D_V: usize = 512;

/// What the threads compute in. A model has one, for all its layers and steps; of calls at the same time one reuses it.
#[derive(Default)]
pub struct Memory(Mutex<Workspaces>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Workspaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `O = softmax(softmax_scale Q Kᵀ) V` of a decode step, on rayon's threads.
///
/// Arguments of the operator, both in BF16, with any strides but for the last dimension, which is contiguous:
/// queries `[b, s_q, h_q, 576]`, absorbed, and the cache `[pages, page_size, 576]`. The result is FP32,
/// `[b, s_q, h_q, 512]`. Query position `j` of `s_q` sees the first `lengths - (s_q - 1 - j)` keys of its request.
pub struct PagedMla<'a> {
    /// `[b, max_blocks]`, the pages of each request; those behind its last key may be -1.
    pub block_table: &'a [i32],
    /// `[b]`, the keys of each request.
    pub lengths: &'a [i32],
    /// Of scores before the softmax: `1 / sqrt(192)` for DeepSeek-V3, times what YaRN adds.
    pub softmax_scale: f32,
    /// What the threads compute in.
    pub memory: &'a Memory,
}

impl PagedMla<'_> {
    /// Applies the operator.
    ///
    /// # Errors
    /// A tensor has another type, shape or device, or the library refuses the call, which names the argument.
    pub fn forward(&self, q: &Tensor, cache: &Tensor) -> Result<Tensor> {
        q.apply_op2_no_bwd(cache, self)
    }
}

impl CustomOp2 for PagedMla<'_> {
    fn name(&self) -> &'static str {
        "paged-mla"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        cache: &CpuStorage,
        cache_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (b, s_q, h_q, _) = q_layout.shape().dims4()?;
        cache_layout.shape().dims3()?;
        let (q, kv) = (view("q", q, q_layout)?, view("cache", cache, cache_layout)?);
        let mut o = vec![0.0_f32; b * s_q * h_q * D_V];
        // No lock while the threads compute: meanwhile rayon may begin another call on this one.
        let mut memory = mem::take(&mut *self.memory.lock());
        let result = Attention::mla(q, kv, self.softmax_scale)
            .causal()
            .paged(self.block_table)
            .lengths(self.lengths)
            .decode_parallel(&mut memory, &mut o, None);
        *self.memory.lock() = memory;
        result.map_err(candle_core::Error::wrap)?;
        Ok((CpuStorage::F32(o), Shape::from((b, s_q, h_q, D_V))))
    }
}

/// A tensor as the library takes it: four dimensions, the cache's with one KV head.
fn view<'a>(name: &str, storage: &'a CpuStorage, layout: &Layout) -> Result<TensorView<'a>> {
    let CpuStorage::BF16(elements) = storage else {
        bail!("{name} is {:?}, expected BF16", storage.dtype());
    };
    let (dims, strides) = (layout.dims(), layout.stride());
    let (dims, strides) = match (dims, strides) {
        (&[a, b, c, d], &[x, y, z, 1]) => ([a, b, c, d], [x, y, z]),
        (&[pages, size, d], &[x, y, 1]) => ([pages, size, 1, d], [x, y, 0]),
        _ => bail!("{name} {dims:?} has strides {strides:?}, expected 1 for the last dimension"),
    };
    if dims[3] != D_QK {
        bail!("{name} is {dims:?}, expected {D_QK} columns");
    }
    Ok(TensorView::new(&elements[layout.start_offset()..], dims).strides(strides))
}
