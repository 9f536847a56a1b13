//! Fields of a call's structs, overwritten.

use std::mem::{offset_of, size_of};
use std::ptr;

use super::caller::Caller;
use super::memory::{Given, size_of_element};
use crate::draw::Draw;
use crate::types::{Call, Extra, Indices, Output, Tensor};

/// A size that fits no tensor.
fn size(draw: &mut Draw, now: usize) -> usize {
    match draw.u8() {
        0..=79 => draw.among(0..=80),
        80..=119 => now.wrapping_add(1),
        120..=159 => now.wrapping_sub(1),
        160..=199 => draw.one_of(&[
            usize::MAX,
            usize::MAX / 2,
            1 << 63,
            1 << 32,
            1 << 31,
            (1 << 31) - 1,
            (usize::MAX / 128) + 1,
        ]),
        _ => draw.u64() as usize,
    }
}

/// A length of memory: at most the right one, or more than any memory has.
pub fn len(draw: &mut Draw, now: usize) -> usize {
    match now > 1 << 40 || draw.once_in(4) {
        true => draw.one_of(&[usize::MAX, 1 << 63]),
        false => draw.among(0..=now),
    }
}

/// A number that stands for a choice.
pub fn choice(draw: &mut Draw) -> u32 {
    match draw.once_in(4) {
        true => draw.u32(),
        false => draw.among(0..=9) as u32,
    }
}

impl Caller {
    /// Overwrites a field.
    pub fn overwrite(&mut self, draw: &mut Draw) {
        match draw.among(0..=9) {
            0..=3 => self.overwrite_call(draw),
            4 | 5 => {
                let which = draw.among(0..=self.tensors.len() - 1);
                overwrite_tensor(&mut self.tensors[which], draw);
            }
            6 if !self.indices.is_empty() => {
                let which = draw.among(0..=self.indices.len() - 1);
                overwrite_indices(&mut self.indices[which], draw);
            }
            7 => {
                if let Some(extra) = &mut self.extra {
                    overwrite_extra(extra, draw);
                }
            }
            _ => self.overwrite_output(draw),
        }
    }

    fn overwrite_call(&mut self, draw: &mut Draw) {
        let call = &mut *self.call;
        match draw.among(0..=42) {
            0 => call.struct_size = size(draw, call.struct_size as usize) as u32,
            1 => call.flags = draw.one_of(&[0, 1, 2, 3, 4, u32::MAX]),
            2 => call.b = size(draw, call.b),
            3 => call.s_q = size(draw, call.s_q),
            4 => call.s_k = size(draw, call.s_k),
            5 => call.h_q = size(draw, call.h_q),
            6 => call.h_kv = size(draw, call.h_kv),
            7 => call.d_qk = size(draw, call.d_qk),
            8 => call.d_v = size(draw, call.d_v),
            9 => call.softmax_scale = draw.f32(),
            10 => call.rescale = choice(draw),
            11 => call.precision = choice(draw),
            12 => call.reserved = choice(draw),
            13 => call.backend = ptr::null(),
            14 => {
                // Any name; it ends in a zero.
                let at = draw.among(0..=self.name.len() - 1);
                let last = self.name.len() - 1;
                self.name[at] = draw.u8();
                self.name[last] = 0;
            }
            15 => call.q = ptr::null(),
            16 => call.kv = ptr::null(),
            17 => call.v = draw.one_of(&[ptr::null(), call.kv, call.q]),
            18 => call.q_rope = draw.one_of(&[ptr::null(), call.q]),
            19 => call.k_rope = draw.one_of(&[ptr::null(), call.kv]),
            20 => call.q_indptr_len = len(draw, call.q_indptr_len),
            21 => call.q_indptr = ptr::null(),
            22 => call.kv_indptr_len = len(draw, call.kv_indptr_len),
            23 => call.kv_indptr = ptr::null(),
            24 => call.cache_seqlens_len = len(draw, call.cache_seqlens_len),
            25 => call.cache_seqlens = ptr::null(),
            26 => call.block_table_len = len(draw, call.block_table_len),
            27 => call.block_table = ptr::null(),
            28 => call.max_blocks = size(draw, call.max_blocks),
            29 => call.page_size = size(draw, call.page_size),
            30 => call.pages = size(draw, call.pages),
            31 => call.window = size(draw, call.window),
            32 => call.tail = size(draw, call.tail),
            33 => call.tail_mask_len = len(draw, call.tail_mask_len),
            34 => call.sparse = ptr::null(),
            35 => call.extra = ptr::null(),
            36 => call.sink_len = len(draw, call.sink_len),
            37 => call.v_offset = size(draw, call.v_offset),
            38 => call.block_table_stride = size(draw, call.block_table_stride),
            39 => call.cache_seqlens_stride = size(draw, call.cache_seqlens_stride),
            40 => call.split_keys = size(draw, call.split_keys),
            // That of version 1.
            41 => call.struct_size = offset_of!(Call, v_offset) as u32,
            _ => call.output = ptr::null(),
        }
        // A list's entries are the caller's too.
        if draw.once_in(4) {
            let which = draw.among(0..=self.given.len() - 1);
            let Given { memory, before } = &mut self.given[which];
            if let Some(byte) = memory.len().checked_sub(1) {
                let at = draw.among(0..=byte);
                memory[at] = draw.u8();
                before.copy_from_slice(memory);
            }
        }
    }

    fn overwrite_output(&mut self, draw: &mut Draw) {
        let output = &mut *self.output;
        match draw.among(0..=15) {
            0 => output.struct_size = choice(draw),
            1 => {
                let bytes = output.o_len.saturating_mul(size_of_element(output.dtype));
                output.dtype = choice(draw);
                output.o_len = bytes / size_of_element(output.dtype);
            }
            2 => output.o = ptr::null_mut(),
            3 => output.o_len = len(draw, output.o_len),
            4 => output.lse = ptr::null_mut(),
            5 => output.lse_len = len(draw, output.lse_len),
            6 => output.o_strides[draw.among(0..=2)] = size(draw, output.o_strides[1]),
            7 => output.lse_strides[draw.among(0..=2)] = size(draw, output.lse_strides[1]),
            8 => output.lse_base = choice(draw),
            9 => output.lse_empty = choice(draw),
            10 => {
                // The queries, as memory to be written.
                let memory = &mut self.given[self.queries].memory;
                output.o = memory.as_mut_ptr().cast();
                output.o_len = memory.len() / size_of::<f32>();
            }
            11 => output.max_logits = ptr::null_mut(),
            12 => output.max_logits_len = len(draw, output.max_logits_len),
            13 => (output.lse, output.lse_len) = (ptr::null_mut(), 0),
            14 => output.struct_size = offset_of!(Output, max_logits) as u32,
            _ => {
                // One output on the other.
                output.lse = self.o.pointer();
                output.lse_len = self.o.len / size_of::<f32>();
            }
        }
    }
}

fn overwrite_tensor(tensor: &mut Tensor, draw: &mut Draw) {
    match draw.among(0..=12) {
        0 => tensor.struct_size = choice(draw),
        1 => {
            let bytes = tensor.len.saturating_mul(size_of_element(tensor.dtype));
            tensor.dtype = choice(draw);
            tensor.len = bytes / size_of_element(tensor.dtype);
        }
        2 => tensor.data = ptr::null(),
        3 => tensor.len = len(draw, tensor.len),
        4..=6 => tensor.strides[draw.among(0..=2)] = size(draw, tensor.strides[1]),
        7 if tensor.len > 0 && tensor.len < 1 << 40 && !tensor.data.is_null() => {
            // Misaligned, where elements have more than a byte.
            tensor.data = tensor.data.wrapping_byte_add(1);
            tensor.len -= 1;
        }
        8 => tensor.scales = ptr::null(),
        9 => tensor.scales_len = len(draw, tensor.scales_len),
        10 => tensor.scale_strides[draw.among(0..=2)] = size(draw, tensor.scale_strides[1]),
        11 => tensor.model1_scales = size(draw, tensor.model1_scales),
        _ => tensor.model1_scale_stride = size(draw, tensor.model1_scale_stride),
    }
}

fn overwrite_indices(indices: &mut Indices, draw: &mut Draw) {
    match draw.among(0..=10) {
        0 => indices.struct_size = choice(draw),
        1 => indices.reserved = choice(draw),
        2 => indices.indices = ptr::null(),
        3 => indices.indices_len = len(draw, indices.indices_len),
        4 => indices.strides[draw.among(0..=1)] = size(draw, indices.strides[1]),
        5 => indices.topk = size(draw, indices.topk),
        6 => indices.topk_length_len = len(draw, indices.topk_length_len),
        7 => indices.stride_h_kv = size(draw, indices.stride_h_kv),
        8 => {
            let stride = size(draw, indices.topk_length_strides[0]);
            indices.topk_length_strides[draw.among(0..=1)] = stride;
        }
        9 => indices.indices64 = ptr::null(),
        _ => indices.struct_size = offset_of!(Indices, indices64) as u32,
    }
}

fn overwrite_extra(extra: &mut Extra, draw: &mut Draw) {
    match draw.among(0..=5) {
        0 => extra.struct_size = choice(draw),
        1 => extra.reserved = choice(draw),
        2 => extra.kv = ptr::null(),
        3 => extra.pages = size(draw, extra.pages),
        4 => extra.page_size = size(draw, extra.page_size),
        _ => extra.indices = ptr::null(),
    }
}
