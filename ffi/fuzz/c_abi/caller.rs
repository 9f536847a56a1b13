//! A call and all that it points to.

use std::ffi::c_void;
use std::mem::size_of;
use std::ptr;

use amla::{Data, IndexList, Inputs, Options, Precision, Problem, Rescale, Split};

use super::memory::{Given, Guarded, size_of_element, struct_size};
use crate::hosts::rows;
use crate::types::{self, Call, ErrorDetail, Extra, Indices, Output, Tensor};

/// A call and all that it points to. Structs are boxed, so that their addresses stay.
#[allow(clippy::vec_box, reason = "pointed to while the vector grows")]
pub struct Caller {
    pub call: Box<Call>,
    pub output: Box<Output>,
    pub tensors: Vec<Box<Tensor>>,
    pub indices: Vec<Box<Indices>>,
    pub extra: Option<Box<Extra>>,
    pub given: Vec<Given>,
    /// Which of these the queries are.
    pub queries: usize,
    pub o: Guarded,
    pub lse: Guarded,
    pub max_logits: Guarded,
    /// Parts of it end in a zero.
    pub name: Box<[u8]>,
    pub detail: Box<ErrorDetail>,
}

impl Caller {
    pub fn new(problem: &Problem, options: &Options, dtype: u32) -> Self {
        let shape = problem.shape;
        let name = [options.backend.id().name().as_bytes(), &[0]].concat();
        let rows = rows(problem);
        // SAFETY: integers, floats and pointers, all of which may be zero.
        let (call, output, detail) = unsafe { std::mem::zeroed::<(Call, Output, ErrorDetail)>() };
        let mut caller = Self {
            call: Box::new(call),
            output: Box::new(output),
            tensors: Vec::new(),
            indices: Vec::new(),
            extra: None,
            given: Vec::new(),
            queries: 0,
            o: Guarded::new(rows * shape.d_v * size_of_element(dtype)),
            lse: Guarded::new(rows * size_of::<f32>()),
            max_logits: Guarded::new(rows * size_of::<f32>()),
            name: name.into(),
            detail: Box::new(detail),
        };
        caller.detail.struct_size = struct_size::<ErrorDetail>();
        let row = shape.h_q * shape.d_v;
        *caller.output = Output {
            struct_size: struct_size::<Output>(),
            dtype,
            o: caller.o.pointer(),
            o_len: rows * shape.d_v,
            o_strides: [shape.s_q * row, row, shape.d_v],
            lse: caller.lse.pointer(),
            lse_len: rows,
            lse_strides: [shape.s_q * shape.h_q, 1, shape.h_q],
            max_logits: caller.max_logits.pointer(),
            max_logits_len: rows,
            ..output
        };
        let q = caller.tensor(Some(&problem.q));
        caller.queries = caller.given.len() - 1;
        let (q_indptr, q_indptr_len) = caller.list(problem.q_indptr);
        let (kv_indptr, kv_indptr_len) = caller.list(problem.kv_indptr);
        let (cache_seqlens, cache_seqlens_len) = caller.list(problem.cache_seqlens);
        let (tail_mask, tail_mask_len) = caller.list(problem.tail_mask.map(|mask| mask.words));
        let (sink, sink_len) = caller.list(problem.sink);
        let (block_table, block_table_len) = caller.list(problem.pages.map(|p| p.block_table));
        let sparse = problem.sparse.map(|sparse| caller.indices(&sparse.indices));
        let extra = problem.sparse.and_then(|sparse| sparse.extra).map(|extra| {
            let extra = Box::new(Extra {
                struct_size: struct_size::<Extra>(),
                reserved: 0,
                kv: caller.tensor(Some(&extra.kv)),
                pages: extra.pages,
                page_size: extra.page_size,
                indices: caller.indices(&extra.indices),
            });
            &raw const **caller.extra.insert(extra)
        });
        *caller.call = Call {
            struct_size: struct_size::<Call>(),
            flags: types::AMLA_LIST_STRIDES
                | if problem.causal {
                    types::AMLA_CAUSAL
                } else {
                    0
                },
            b: shape.b,
            s_q: shape.s_q,
            s_k: shape.s_k,
            h_q: shape.h_q,
            h_kv: shape.h_kv,
            d_qk: shape.d_qk,
            d_v: shape.d_v,
            softmax_scale: problem.softmax_scale,
            rescale: (options.rescale == Rescale::Compensated).into(),
            precision: match (options.precision, options.inputs) {
                (_, Inputs::Bf16) => types::AMLA_PRECISION_BF16_INPUTS,
                (Precision::Bf16x2, _) => types::AMLA_PRECISION_BF16X2,
                _ => types::AMLA_PRECISION_BF16,
            },
            backend: caller.name.as_ptr().cast(),
            q,
            q_rope: caller.tensor(problem.q_rope.as_ref()),
            kv: caller.tensor(Some(&problem.kv)),
            k_rope: caller.tensor(problem.k_rope.as_ref()),
            v: caller.tensor(problem.v.as_ref()),
            q_indptr,
            q_indptr_len,
            kv_indptr,
            kv_indptr_len,
            cache_seqlens,
            cache_seqlens_len,
            block_table,
            block_table_len,
            max_blocks: problem.pages.map_or(0, |p| p.max_blocks),
            page_size: problem.pages.map_or(0, |p| p.page_size),
            pages: problem.pages.map_or(0, |p| p.pages),
            window: problem.window.unwrap_or(0),
            tail_mask,
            tail_mask_len,
            tail: problem.tail_mask.map_or(0, |mask| mask.tail),
            sparse: sparse.unwrap_or(ptr::null()),
            extra: extra.unwrap_or(ptr::null()),
            sink,
            sink_len,
            output: &raw const *caller.output,
            v_offset: problem.v_offset,
            block_table_stride: problem.pages.map_or(0, |p| p.stride),
            cache_seqlens_stride: problem.cache_seqlens_stride,
            split_keys: match problem.split {
                Split::ByLength => 0,
                Split::Every(keys) => keys,
            },
            ..call
        };
        caller
    }

    fn given(&mut self, bytes: &[u8]) -> *const c_void {
        self.given.push(Given::new(bytes));
        match self.given.last() {
            Some(given) => given.memory.as_ptr().cast(),
            None => ptr::null(),
        }
    }

    fn list<T: bytemuck::Pod>(&mut self, list: Option<&[T]>) -> (*const T, usize) {
        match list {
            Some(list) => (self.given(bytemuck::cast_slice(list)).cast(), list.len()),
            None => (ptr::null(), 0),
        }
    }

    fn tensor(&mut self, tensor: Option<&amla::TensorRef>) -> *const Tensor {
        let Some(tensor) = tensor else {
            return ptr::null();
        };
        // SAFETY: integers and pointers, all of which may be zero.
        let mut given = unsafe { std::mem::zeroed::<Tensor>() };
        let (dtype, bytes): (u32, &[u8]) = match tensor.data {
            Data::Bf16(data) => (types::AMLA_DTYPE_BF16, bytemuck::cast_slice(data)),
            Data::F16(data) => (types::AMLA_DTYPE_F16, bytemuck::cast_slice(data)),
            Data::F32(data) => (types::AMLA_DTYPE_F32, bytemuck::cast_slice(data)),
            Data::Q8_0(blocks) => (types::AMLA_DTYPE_Q8_0, bytemuck::cast_slice(blocks)),
            Data::Q4_0(blocks) => (types::AMLA_DTYPE_Q4_0, bytemuck::cast_slice(blocks)),
            Data::Fp8(bytes) => (types::AMLA_DTYPE_FP8, bytes),
            Data::Model1 {
                bytes,
                scales,
                scale_stride,
            } => {
                (given.model1_scales, given.model1_scale_stride) = (scales, scale_stride);
                (types::AMLA_DTYPE_MODEL1, bytes)
            }
            Data::Int8 {
                values,
                scales,
                strides,
            } => {
                (given.scales, given.scales_len) = self.list(Some(scales));
                given.scale_strides = strides;
                (types::AMLA_DTYPE_INT8, bytemuck::cast_slice(values))
            }
            Data::E4m3 {
                values,
                scales,
                strides,
            } => {
                (given.scales, given.scales_len) = self.list(Some(scales));
                given.scale_strides = strides;
                (types::AMLA_DTYPE_E4M3, values)
            }
        };
        (given.struct_size, given.dtype) = (struct_size::<Tensor>(), dtype);
        (given.data, given.len) = (self.given(bytes), tensor.data.len());
        given.strides = tensor.strides;
        self.tensors.push(Box::new(given));
        self.tensors
            .last()
            .map_or(ptr::null(), |tensor| &raw const **tensor)
    }

    fn indices(&mut self, indices: &amla::Indices) -> *const Indices {
        let (list, list64, indices_len) = match indices.indices {
            IndexList::I32(list) => {
                let (list, len) = self.list(Some(list));
                (list, ptr::null(), len)
            }
            IndexList::I64(list) => {
                let (list, len) = self.list(Some(list));
                (ptr::null(), list, len)
            }
        };
        let (topk_length, topk_length_len) = self.list(indices.topk_length);
        self.indices.push(Box::new(Indices {
            struct_size: struct_size::<Indices>(),
            reserved: 0,
            indices: list,
            indices_len,
            strides: [indices.strides[0], indices.strides[1]],
            topk: indices.topk,
            topk_length,
            topk_length_len,
            indices64: list64,
            stride_h_kv: indices.strides[2],
            topk_length_strides: indices.topk_length_strides,
        }));
        self.indices
            .last()
            .map_or(ptr::null(), |indices| &raw const **indices)
    }
}
