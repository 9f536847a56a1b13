//! A described call as `amla`'s types.

use core::ffi::{c_char, c_void};

use amla::format::{Q4_0, Q8_0};
use amla::{
    Backend, BackendId, Data, Elements, EmptyLse, IndexList, Inputs, Lse, LseBase, Options, Pages,
    Precision, Problem, ProblemShape, Rescale, SharedElements, SharedOutput, Sparse, Split,
    TailMask,
};
use half::{bf16, f16};

use crate::choice::{self, Known};
use crate::fault::{Fault, Name};
use crate::memory::{Regions, Written, list, read, read_optional, slice};
use crate::types::{self, Call, Extra, Indices, Output, Tensor};

/// What the caller calls the parts of a tensor.
struct Names {
    tensor: &'static str,
    dtype: &'static str,
    scales: &'static str,
}

macro_rules! names {
    ($name:literal) => {
        Names {
            tensor: $name,
            dtype: concat!($name, ".dtype"),
            scales: concat!($name, ".scales"),
        }
    };
}

/// A field that nothing is said with yet.
fn zero(argument: &'static str, value: u32) -> Result<(), Fault> {
    match value {
        0 => Ok(()),
        _ => Err(Fault::Unknown {
            argument,
            value,
            known: Known::Zero,
        }),
    }
}

/// # Safety
/// `call` is null, or a struct as long as it says. Its pointers are as documented for as long as
/// the result is used.
pub unsafe fn read_call(regions: &mut Regions, call: *const Call) -> Result<Call, Fault> {
    // SAFETY: the caller's pointers are as documented: this function's contract.
    let call = unsafe { read(regions, "call", call) }?;
    zero("call.reserved", call.reserved)?;
    Ok(call)
}

/// The problem that a call describes.
///
/// # Safety
/// What `call` points to is as its documentation says during `'a`.
pub unsafe fn problem<'a>(regions: &mut Regions, call: &Call) -> Result<Problem<'a>, Fault> {
    if call.flags & !(types::AMLA_CAUSAL | types::AMLA_LIST_STRIDES) != 0 {
        return Err(Fault::Unknown {
            argument: "flags",
            value: call.flags,
            known: choice::FLAGS,
        });
    }
    // SAFETY: what the call points to is as documented: this function's contract.
    let q = unsafe { tensor(regions, &names!("q"), call.q) }?;
    // SAFETY: as above.
    let kv = unsafe { tensor(regions, &names!("kv"), call.kv) }?;
    // SAFETY: as above.
    let q_rope = unsafe { optional_tensor(regions, &names!("q_rope"), call.q_rope) }?;
    // SAFETY: as above.
    let k_rope = unsafe { optional_tensor(regions, &names!("k_rope"), call.k_rope) }?;
    // SAFETY: as above.
    let v = unsafe { optional_tensor(regions, &names!("v"), call.v) }?;
    // SAFETY: as above.
    let q_indptr = unsafe { list(regions, "q_indptr", call.q_indptr, call.q_indptr_len) }?;
    // SAFETY: as above.
    let kv_indptr = unsafe { list(regions, "kv_indptr", call.kv_indptr, call.kv_indptr_len) }?;
    let (lens, lens_len) = (call.cache_seqlens, call.cache_seqlens_len);
    // SAFETY: as above.
    let cache_seqlens = unsafe { list(regions, "cache_seqlens", lens, lens_len) }?;
    let (words, words_len) = (call.tail_mask, call.tail_mask_len);
    // SAFETY: as above.
    let words = unsafe { list(regions, "tail_mask", words, words_len) }?;
    if words.is_none() && call.tail != 0 {
        return Err(Fault::NullBeside {
            argument: "tail_mask",
            beside: "tail isn't 0",
        });
    }
    // SAFETY: as above.
    let sink = unsafe { list(regions, "sink", call.sink, call.sink_len) }?;
    // SAFETY: as above.
    let pages = unsafe { pages(regions, call) }?;
    // SAFETY: as above.
    let sparse = unsafe { sparse(regions, call) }?;
    Ok(Problem {
        shape: ProblemShape {
            b: call.b,
            s_q: call.s_q,
            s_k: call.s_k,
            h_q: call.h_q,
            h_kv: call.h_kv,
            d_qk: call.d_qk,
            d_v: call.d_v,
        },
        q,
        q_rope,
        q_indptr,
        kv,
        v_offset: call.v_offset,
        k_rope,
        v,
        pages,
        kv_indptr,
        cache_seqlens,
        cache_seqlens_stride: if lists_have_strides(call) {
            call.cache_seqlens_stride
        } else {
            1
        },
        causal: call.flags & types::AMLA_CAUSAL != 0,
        window: (call.window != 0).then_some(call.window),
        tail_mask: words.map(|words| TailMask {
            words,
            tail: call.tail,
        }),
        sparse,
        sink,
        split: split(call.split_keys),
        softmax_scale: call.softmax_scale,
    })
}

/// Whether the call says how its lists are laid out.
const fn lists_have_strides(call: &Call) -> bool {
    call.flags & types::AMLA_LIST_STRIDES != 0
}

/// # Safety
/// As [`problem`].
unsafe fn pages<'a>(regions: &mut Regions, call: &Call) -> Result<Option<Pages<'a>>, Fault> {
    let Call {
        block_table,
        block_table_len,
        max_blocks,
        page_size,
        pages,
        ..
    } = *call;
    if page_size == 0 {
        // They alone say nothing; more likely the page size was forgotten.
        if !block_table.is_null() || max_blocks != 0 || pages != 0 {
            return Err(Fault::ZeroBeside {
                argument: "page_size",
                beside: "block_table, max_blocks or pages is given",
            });
        }
        return Ok(None);
    }
    // SAFETY: needs what this function's contract promises.
    let block_table = unsafe { slice(regions, "block_table", block_table, block_table_len) }?;
    Ok(Some(Pages {
        block_table,
        max_blocks,
        stride: if lists_have_strides(call) {
            call.block_table_stride
        } else {
            max_blocks
        },
        page_size,
        pages,
    }))
}

/// # Safety
/// As [`problem`].
unsafe fn sparse<'a>(regions: &mut Regions, call: &Call) -> Result<Option<Sparse<'a>>, Fault> {
    if call.sparse.is_null() {
        if !call.extra.is_null() {
            return Err(Fault::NullBeside {
                argument: "sparse",
                beside: "extra isn't",
            });
        }
        return Ok(None);
    }
    let names = ["indices", "indices64", "indices.reserved", "topk_length"];
    // SAFETY: needs what this function's contract promises.
    let indices = unsafe { indices(regions, call, names, call.sparse) }?;
    // SAFETY: needs what this function's contract promises.
    let extra = unsafe { read_optional(regions, "extra", call.extra) }?;
    let extra = match extra {
        // SAFETY: needs what this function's contract promises.
        Some(extra) => Some(unsafe { second_cache(regions, call, &extra) }?),
        None => None,
    };
    Ok(Some(Sparse { indices, extra }))
}

/// # Safety
/// As [`problem`].
unsafe fn second_cache<'a>(
    regions: &mut Regions,
    call: &Call,
    extra: &Extra,
) -> Result<amla::Extra<'a>, Fault> {
    zero("extra.reserved", extra.reserved)?;
    let names = [
        "extra_indices",
        "extra_indices64",
        "extra_indices.reserved",
        "extra_topk_length",
    ];
    Ok(amla::Extra {
        // SAFETY: needs what this function's contract promises.
        kv: unsafe { tensor(regions, &names!("extra_kv"), extra.kv) }?,
        pages: extra.pages,
        page_size: extra.page_size,
        // SAFETY: needs what this function's contract promises.
        indices: unsafe { indices(regions, call, names, extra.indices) }?,
    })
}

/// # Safety
/// As [`problem`].
unsafe fn indices<'a>(
    regions: &mut Regions,
    call: &Call,
    [name, name64, reserved, length]: [&'static str; 4],
    indices: *const Indices,
) -> Result<amla::Indices<'a>, Fault> {
    // SAFETY: needs what this function's contract promises.
    let given = unsafe { read(regions, name, indices) }?;
    zero(reserved, given.reserved)?;
    let len = given.indices_len;
    let indices = if given.indices64.is_null() {
        // SAFETY: needs what this function's contract promises.
        IndexList::I32(unsafe { slice(regions, name, given.indices, len) }?)
    } else if given.indices.is_null() {
        // SAFETY: needs what this function's contract promises.
        IndexList::I64(unsafe { slice(regions, name64, given.indices64, len) }?)
    } else {
        return Err(Fault::Both {
            first: name,
            second: name64,
        });
    };
    let (lengths, len) = (given.topk_length, given.topk_length_len);
    let [over_request, over_position] = given.strides;
    Ok(amla::Indices {
        indices,
        strides: [over_request, over_position, given.stride_h_kv],
        topk: given.topk,
        // SAFETY: needs what this function's contract promises.
        topk_length: unsafe { list(regions, length, lengths, len) }?,
        topk_length_strides: if lists_have_strides(call) {
            given.topk_length_strides
        } else if call.q_indptr.is_null() {
            [1, 0]
        } else {
            [0, 1]
        },
    })
}

/// # Safety
/// As [`problem`].
unsafe fn optional_tensor<'a>(
    regions: &mut Regions,
    names: &Names,
    memory: *const Tensor,
) -> Result<Option<amla::TensorRef<'a>>, Fault> {
    if memory.is_null() {
        return Ok(None);
    }
    // SAFETY: needs what this function's contract promises.
    unsafe { tensor(regions, names, memory) }.map(Some)
}

/// # Safety
/// As [`problem`].
unsafe fn tensor<'a>(
    regions: &mut Regions,
    names: &Names,
    memory: *const Tensor,
) -> Result<amla::TensorRef<'a>, Fault> {
    // SAFETY: needs what this function's contract promises.
    let given = unsafe { read(regions, names.tensor, memory) }?;
    let (data, len, strides) = (given.data, given.len, given.strides);
    let name = names.tensor;
    let data = match given.dtype {
        types::AMLA_DTYPE_BF16 => {
            // SAFETY: needs what this function's contract promises, for elements of the type
            // that the caller says.
            let data = unsafe { slice(regions, name, data.cast::<bf16>(), len) }?;
            Data::Bf16(data)
        }
        types::AMLA_DTYPE_F16 => {
            // SAFETY: needs what this function's contract promises, for elements of the type
            // that the caller says.
            let data = unsafe { slice(regions, name, data.cast::<f16>(), len) }?;
            Data::F16(data)
        }
        types::AMLA_DTYPE_F32 => {
            // SAFETY: needs what this function's contract promises, for elements of the type
            // that the caller says.
            let data = unsafe { slice(regions, name, data.cast::<f32>(), len) }?;
            Data::F32(data)
        }
        types::AMLA_DTYPE_Q8_0 => {
            // SAFETY: needs what this function's contract promises, for elements of the type
            // that the caller says.
            let data = unsafe { slice(regions, name, data.cast::<Q8_0>(), len) }?;
            Data::Q8_0(data)
        }
        types::AMLA_DTYPE_Q4_0 => {
            // SAFETY: needs what this function's contract promises, for elements of the type
            // that the caller says.
            let data = unsafe { slice(regions, name, data.cast::<Q4_0>(), len) }?;
            Data::Q4_0(data)
        }
        types::AMLA_DTYPE_FP8 => {
            // SAFETY: needs what this function's contract promises, for elements of the type
            // that the caller says.
            let bytes = unsafe { slice(regions, name, data.cast::<u8>(), len) }?;
            Data::Fp8(bytes)
        }
        types::AMLA_DTYPE_MODEL1 => {
            // SAFETY: needs what this function's contract promises, for elements of the type
            // that the caller says.
            let bytes = unsafe { slice(regions, name, data.cast::<u8>(), len) }?;
            Data::Model1 {
                bytes,
                scales: given.model1_scales,
                scale_stride: given.model1_scale_stride,
            }
        }
        types::AMLA_DTYPE_INT8 => {
            // SAFETY: needs what this function's contract promises, for elements of the type
            // that the caller says.
            let values = unsafe { slice(regions, name, data.cast::<i8>(), len) }?;
            let (scales, scales_len) = (given.scales, given.scales_len);
            // SAFETY: needs what this function's contract promises.
            let scales = unsafe { slice(regions, names.scales, scales, scales_len) }?;
            Data::Int8 {
                values,
                scales,
                strides: given.scale_strides,
            }
        }
        types::AMLA_DTYPE_E4M3 => {
            // SAFETY: needs what this function's contract promises, for elements of the type
            // that the caller says.
            let values = unsafe { slice(regions, name, data.cast::<u8>(), len) }?;
            let (scales, scales_len) = (given.scales, given.scales_len);
            // SAFETY: needs what this function's contract promises.
            let scales = unsafe { slice(regions, names.scales, scales, scales_len) }?;
            Data::E4m3 {
                values,
                scales,
                strides: given.scale_strides,
            }
        }
        value => {
            return Err(Fault::Unknown {
                argument: names.dtype,
                value,
                known: choice::INPUT,
            });
        }
    };
    Ok(amla::TensorRef { data, strides })
}

/// How a call is to be computed.
///
/// # Safety
/// `call.backend` is null or a string that ends in a zero.
pub unsafe fn options(call: &Call) -> Result<Options, Fault> {
    let rescale = match call.rescale {
        types::AMLA_RESCALE_EXACT => Rescale::Exact,
        types::AMLA_RESCALE_COMPENSATED => Rescale::Compensated,
        value => {
            return Err(Fault::Unknown {
                argument: "rescale",
                value,
                known: choice::RESCALE,
            });
        }
    };
    let (precision, inputs) = match call.precision {
        types::AMLA_PRECISION_BF16 => (Precision::Bf16, Inputs::AsGiven),
        types::AMLA_PRECISION_BF16X2 => (Precision::Bf16x2, Inputs::AsGiven),
        types::AMLA_PRECISION_BF16_INPUTS => (Precision::Bf16, Inputs::Bf16),
        value => {
            return Err(Fault::Unknown {
                argument: "precision",
                value,
                known: choice::PRECISION,
            });
        }
    };
    let backend = if call.backend.is_null() {
        Backend::detect()
    } else {
        // SAFETY: needs what this function's contract promises.
        Backend::request(unsafe { backend_named(call.backend) }?)?
    };
    Ok(Options {
        backend,
        rescale,
        precision,
        inputs,
    })
}

/// The backend of that name.
///
/// # Safety
/// `string` ends in a zero.
pub unsafe fn backend_named(string: *const c_char) -> Result<BackendId, Fault> {
    // SAFETY: needs what this function's contract promises.
    let named = |id: &BackendId| unsafe { is_string(string, id.name()) };
    BackendId::ALL
        .into_iter()
        .find(named)
        .ok_or_else(|| Fault::UnknownBackend {
            // SAFETY: needs what this function's contract promises.
            name: unsafe { beginning(string) },
        })
}

/// As much of a C string as a message quotes.
///
/// # Safety
/// `string` ends in a zero.
unsafe fn beginning(string: *const c_char) -> Name {
    let mut name = Name([0; _]);
    let mut at = string;
    for byte in &mut name.0 {
        // SAFETY: every byte before this one wasn't zero: the string goes on to here at least.
        let [next] = unsafe { at.read() }.to_ne_bytes();
        if next == 0 {
            break;
        }
        *byte = next;
        at = at.wrapping_add(1);
    }
    name
}

/// Whether the C string is `text`.
///
/// # Safety
/// `string` ends in a zero.
unsafe fn is_string(string: *const c_char, text: &str) -> bool {
    let mut at = string;
    for byte in text.bytes() {
        // SAFETY: every byte before this one was equal to one of `text`, and so not zero:
        // the string goes on to here at least.
        if unsafe { at.read() }.to_ne_bytes() != [byte] {
            return false;
        }
        at = at.wrapping_add(1);
    }
    // SAFETY: as above; this is at most the byte that ends the string.
    unsafe { at.read() == 0 }
}

/// Where keys are cut.
pub const fn split(keys: usize) -> Split {
    match keys {
        0 => Split::ByLength,
        keys => Split::Every(keys),
    }
}

/// An output that is yet to be claimed.
pub struct Results {
    o: Buffer,
    lse: Option<Written<f32>>,
    max_logits: Option<Written<f32>>,
    o_strides: [usize; 3],
    lse_strides: [usize; 3],
    format: Lse,
}

enum Buffer {
    Bf16(Written<bf16>),
    F16(Written<f16>),
    F32(Written<f32>),
}

/// # Safety
/// `output` is null, or a struct as long as it says.
pub unsafe fn output(regions: &mut Regions, output: *const Output) -> Result<Results, Fault> {
    // SAFETY: needs what this function's contract promises.
    let given = unsafe { read(regions, "output", output) }?;
    let base = match given.lse_base {
        types::AMLA_LSE_BASE_E => LseBase::E,
        types::AMLA_LSE_BASE_2 => LseBase::Two,
        value => {
            return Err(Fault::Unknown {
                argument: "lse_base",
                value,
                known: choice::LSE_BASE,
            });
        }
    };
    let empty = match given.lse_empty {
        types::AMLA_LSE_EMPTY_INFINITY => EmptyLse::Infinity,
        types::AMLA_LSE_EMPTY_MINUS_INFINITY => EmptyLse::MinusInfinity,
        value => {
            return Err(Fault::Unknown {
                argument: "lse_empty",
                value,
                known: choice::LSE_EMPTY,
            });
        }
    };
    let (o, len): (*mut c_void, usize) = (given.o, given.o_len);
    let o = match given.dtype {
        types::AMLA_DTYPE_BF16 => Buffer::Bf16(Written::new(regions, "o", o.cast(), len)?),
        types::AMLA_DTYPE_F16 => Buffer::F16(Written::new(regions, "o", o.cast(), len)?),
        types::AMLA_DTYPE_F32 => Buffer::F32(Written::new(regions, "o", o.cast(), len)?),
        value => {
            return Err(Fault::Unknown {
                argument: "output.dtype",
                value,
                known: choice::OUTPUT,
            });
        }
    };
    Ok(Results {
        o,
        lse: Written::optional(regions, "lse", given.lse, given.lse_len)?,
        max_logits: Written::optional(
            regions,
            "max_logits",
            given.max_logits,
            given.max_logits_len,
        )?,
        o_strides: given.o_strides,
        lse_strides: given.lse_strides,
        format: Lse { base, empty },
    })
}

impl Results {
    /// Numbers of O, of lse and of the largest scores; no length where there are none.
    pub fn lens(&self) -> [Option<usize>; 3] {
        let o = match &self.o {
            Buffer::Bf16(o) => o.len(),
            Buffer::F16(o) => o.len(),
            Buffer::F32(o) => o.len(),
        };
        let len = |rows: &Option<Written<f32>>| rows.as_ref().map(Written::len);
        [Some(o), len(&self.lse), len(&self.max_logits)]
    }

    /// # Safety
    /// As [`Written::share`], for the memory of all outputs.
    pub unsafe fn share<'a>(self) -> SharedOutput<'a> {
        // SAFETY: needs what this function's contract promises.
        let o = unsafe {
            match self.o {
                Buffer::Bf16(o) => SharedElements::Bf16(o.share()),
                Buffer::F16(o) => SharedElements::F16(o.share()),
                Buffer::F32(o) => SharedElements::F32(o.share()),
            }
        };
        SharedOutput {
            o,
            o_strides: self.o_strides,
            // SAFETY: needs what this function's contract promises.
            lse: self.lse.map(|lse| unsafe { lse.share() }),
            lse_strides: self.lse_strides,
            // SAFETY: needs what this function's contract promises.
            max_logits: self
                .max_logits
                .map(|max_logits| unsafe { max_logits.share() }),
            lse_format: self.format,
        }
    }

    /// # Safety
    /// As [`Written::claim`], for the memory of all outputs.
    pub unsafe fn claim<'a>(self) -> amla::Output<'a> {
        // SAFETY: needs what this function's contract promises.
        let o = unsafe {
            match self.o {
                Buffer::Bf16(o) => Elements::Bf16(o.claim()),
                Buffer::F16(o) => Elements::F16(o.claim()),
                Buffer::F32(o) => Elements::F32(o.claim()),
            }
        };
        amla::Output {
            o,
            o_strides: self.o_strides,
            // SAFETY: needs what this function's contract promises.
            lse: self.lse.map(|lse| unsafe { lse.claim() }),
            lse_strides: self.lse_strides,
            // SAFETY: needs what this function's contract promises.
            max_logits: self
                .max_logits
                .map(|max_logits| unsafe { max_logits.claim() }),
            lse_format: self.format,
        }
    }
}
