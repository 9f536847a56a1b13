//! The C interface under hostile callers: what a problem of `decode`'s describes, with fields of
//! its structs overwritten. Whatever they hold, a call returns a status, reads nothing that it
//! wasn't given, writes nothing but what it may, and nothing at all if it refuses.
//!
//! A caller may lie about anything but memory: no length here is more than there is, unless it
//! is more than any memory has.

use std::ffi::c_void;
use std::mem::size_of;
use std::ptr;

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES};
use amla::{BackendId, Data, Options, Precision, Problem, Rescale, Workspace};
use half::bf16;

use crate::decode::with_problem;
use crate::draw::Draw;
use crate::encode::{amla_encode_fp8, amla_encode_int8, amla_encode_model1};
use crate::hosts::{Bits, decoded, rows};
use crate::run::{
    amla_combine, amla_merge, amla_plan, amla_plan_query, amla_plan_size, amla_run, amla_run_tasks,
    amla_workspace_size,
};
use crate::types::{
    self, Call, ErrorDetail, Extra, Indices, Output, Part, PlanInfo, Status, Tensor,
};

pub fn run(data: &[u8]) {
    let (own, rest) = data.split_at(data.len().min(64));
    with_problem(rest, |problem, call| {
        let mut draw = Draw::new(own);
        if draw.once_in(16) {
            encoders(&mut draw);
        }
        let mut options = call.options;
        options.backend = one_that_runs(&mut draw);
        let mut caller = Caller::new(problem, &options, draw.one_of(&DTYPES));
        let wrong = draw.one_of(&[0, 1, 1, 1, 2, 3]);
        for _ in 0..wrong {
            caller.overwrite(&mut draw);
        }
        if caller.is_long() {
            caller.plan(&mut draw);
            return;
        }
        let ran = caller.run(&mut draw, wrong > 0);
        if wrong == 0 {
            assert_eq!(ran, types::AMLA_OK);
            if caller.output.dtype == types::AMLA_DTYPE_F32 {
                assert!(
                    caller.results() == decoded(problem, &options),
                    "{:?}",
                    problem.shape
                );
            }
        }
        caller.tasks(&mut draw, ran);
        caller.merge(&mut draw);
    });
}

/// What is described, and how many fields are overwritten.
pub fn kind(data: &[u8]) -> Option<String> {
    let (own, rest) = data.split_at(data.len().min(64));
    let mut draw = Draw::new(own);
    if draw.once_in(16) {
        return Some("encoders".to_owned());
    }
    one_that_runs(&mut draw);
    draw.one_of(&DTYPES);
    let wrong = draw.one_of(&[0, 1, 1, 1, 2, 3]);
    let mut kind = None;
    with_problem(rest, |problem, _| {
        let what = match (problem.sparse, problem.pages) {
            (Some(_), _) => "sparse",
            (None, Some(_)) => "paged",
            (None, None) => "plain",
        };
        kind = Some(format!("{what}-{wrong}-wrong"));
    });
    kind
}

fn one_that_runs(draw: &mut Draw) -> amla::Backend {
    let backends: Vec<_> = BackendId::ALL
        .into_iter()
        .filter_map(|id| amla::Backend::request(id).ok())
        .collect();
    draw.one_of(&backends)
}

const DTYPES: [u32; 3] = [
    types::AMLA_DTYPE_F32,
    types::AMLA_DTYPE_BF16,
    types::AMLA_DTYPE_F16,
];

/// Bytes of an element; 1 for what there isn't.
fn size_of_element(dtype: u32) -> usize {
    match dtype {
        types::AMLA_DTYPE_BF16 | types::AMLA_DTYPE_F16 => size_of::<bf16>(),
        types::AMLA_DTYPE_F32 => size_of::<f32>(),
        _ => 1,
    }
}

// -------------------------------------------------------------------------------------------------
// Memory
// -------------------------------------------------------------------------------------------------

/// Memory that is read, to the byte, so that sanitizers see what is read behind it.
struct Given {
    memory: Box<[u8]>,
    before: Box<[u8]>,
}

impl Given {
    fn new(bytes: &[u8]) -> Self {
        let memory: Box<[u8]> = bytes.into();
        assert!(memory.is_empty() || memory.as_ptr().cast::<u64>().is_aligned());
        Self {
            memory,
            before: bytes.into(),
        }
    }
}

/// Memory that is written, within zones that aren't.
struct Guarded {
    /// Cache lines: a zone, what may be written, and a zone from its last byte on.
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// What nobody has written.
const KEPT: u8 = 0xc5;

impl Guarded {
    fn new(len: usize) -> Self {
        Self {
            lines: vec![Line([KEPT; 64]); len.div_ceil(64) + 2],
            len,
        }
    }

    fn pointer<T>(&mut self) -> *mut T {
        self.lines[1..].as_mut_ptr().cast()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: lines are bytes without padding, borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), 64 * self.lines.len()) }
    }

    fn inside(&self) -> &[u8] {
        &self.bytes()[64..64 + self.len]
    }

    /// Nothing around it was written.
    fn check(&self) {
        let bytes = self.bytes();
        let around = bytes[..64].iter().chain(&bytes[64 + self.len..]);
        assert!(around.into_iter().all(|&x| x == KEPT), "written outside");
    }

    fn is_untouched(&self) -> bool {
        self.inside().iter().all(|&x| x == KEPT)
    }
}

// -------------------------------------------------------------------------------------------------
// A caller
// -------------------------------------------------------------------------------------------------

/// A call and all that it points to. Structs are boxed: they keep their places.
#[allow(clippy::vec_box, reason = "pointed to while the vector grows")]
struct Caller {
    call: Box<Call>,
    output: Box<Output>,
    tensors: Vec<Box<Tensor>>,
    indices: Vec<Box<Indices>>,
    extra: Option<Box<Extra>>,
    given: Vec<Given>,
    /// Which of these the queries are.
    queries: usize,
    o: Guarded,
    lse: Guarded,
    /// Parts of it end in a zero.
    name: Box<[u8]>,
    detail: Box<ErrorDetail>,
}

const fn struct_size<T>() -> u32 {
    size_of::<T>() as u32
}

impl Caller {
    fn new(problem: &Problem, options: &Options, dtype: u32) -> Self {
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
            flags: if problem.causal {
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
            precision: (options.precision == Precision::Bf16x2).into(),
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

    fn tensor(&mut self, tensor: Option<&amla::Tensor>) -> *const Tensor {
        let Some(tensor) = tensor else {
            return ptr::null();
        };
        // SAFETY: integers and pointers, all of which may be zero.
        let mut given = unsafe { std::mem::zeroed::<Tensor>() };
        let (dtype, bytes): (u32, &[u8]) = match tensor.data {
            Data::Bf16(data) => (types::AMLA_DTYPE_BF16, bytemuck::cast_slice(data)),
            Data::F16(data) => (types::AMLA_DTYPE_F16, bytemuck::cast_slice(data)),
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
        let (list, indices_len) = self.list(Some(indices.indices));
        let (topk_length, topk_length_len) = self.list(indices.topk_length);
        self.indices.push(Box::new(Indices {
            struct_size: struct_size::<Indices>(),
            reserved: 0,
            indices: list,
            indices_len,
            strides: indices.strides,
            topk: indices.topk,
            topk_length,
            topk_length_len,
        }));
        self.indices
            .last()
            .map_or(ptr::null(), |indices| &raw const **indices)
    }
}

/// A size that nobody has.
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

/// A length of memory: less than there is, or more than any has.
fn len(draw: &mut Draw, now: usize) -> usize {
    match now > 1 << 40 || draw.once_in(4) {
        true => draw.one_of(&[usize::MAX, 1 << 63]),
        false => draw.among(0..=now),
    }
}

/// A number that stands for a choice.
fn choice(draw: &mut Draw) -> u32 {
    match draw.once_in(4) {
        true => draw.u32(),
        false => draw.among(0..=8) as u32,
    }
}

impl Caller {
    /// Overwrites a field.
    fn overwrite(&mut self, draw: &mut Draw) {
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
        match draw.among(0..=37) {
            0 => call.struct_size = size(draw, call.struct_size as usize) as u32,
            1 => call.flags = choice(draw),
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
        match draw.among(0..=11) {
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
            _ => {
                // One output on the other.
                output.lse = self.o.pointer();
                output.lse_len = self.o.len / size_of::<f32>();
            }
        }
    }

    /// Whether a valid call would take its time: strides of 0 make caches of any length.
    fn is_long(&self) -> bool {
        let Call {
            b, s_q, h_q, s_k, ..
        } = *self.call;
        let sizes = [b, s_q, h_q, s_k.max(1)];
        sizes.into_iter().fold(1, usize::saturating_mul) > 1 << 16
    }

    /// After every call.
    fn check(&self, status: Status) {
        assert!(
            (types::AMLA_OK..=types::AMLA_ERROR_OTHER).contains(&status),
            "{status}"
        );
        self.o.check();
        self.lse.check();
        for Given { memory, before } in &self.given {
            assert!(memory == before, "written where nothing may be");
        }
        if status != types::AMLA_OK {
            assert_eq!(self.detail.status, status);
        }
    }

    fn plan(&mut self, draw: &mut Draw) -> (Status, Guarded, usize) {
        let call: *const Call = if draw.once_in(64) {
            ptr::null()
        } else {
            &raw const *self.call
        };
        let detail = &raw mut *self.detail;
        let mut sizes = [usize::MAX; 2];
        // SAFETY: structs whose pointers are null or to memory as long as they say.
        let [first, second] = unsafe {
            [
                amla_plan_size(call, &raw mut sizes[0], detail),
                amla_workspace_size(call, &raw mut sizes[1], detail),
            ]
        };
        assert_eq!(first, second);
        self.check(first);
        if first == types::AMLA_OK {
            assert!(sizes[0] <= types::AMLA_PLAN_MAX && sizes[1] <= types::AMLA_WORKSPACE_MAX);
        } else {
            assert_eq!(sizes, [usize::MAX; 2]);
        }
        let len = if draw.once_in(16) {
            draw.among(0..=128)
        } else {
            types::AMLA_PLAN_MAX
        };
        let mut plan = Guarded::new(len);
        // SAFETY: as above; there are `len` bytes for the plan.
        let status = unsafe { amla_plan(call, plan.pointer(), len, detail) };
        self.check(status);
        plan.check();
        assert!(status == types::AMLA_OK || plan.is_untouched());
        (status, plan, len)
    }

    fn run(&mut self, draw: &mut Draw, wrong: bool) -> Status {
        let call = &raw const *self.call;
        let detail = &raw mut *self.detail;
        let exact = size_of::<Workspace>();
        let bytes = if wrong && draw.once_in(32) {
            draw.among(0..=exact + 64)
        } else {
            exact
        };
        let mut workspace = Guarded::new(bytes);
        let memory = match wrong && draw.once_in(64) {
            true => ptr::null_mut(),
            false => workspace.pointer(),
        };
        let before = [&self.o, &self.lse].map(|memory| memory.inside().to_vec());
        // SAFETY: structs whose pointers are null or to memory as long as they say; the
        // workspace has so many bytes.
        let status = unsafe { amla_run(call, memory, bytes, detail) };
        self.check(status);
        workspace.check();
        if status != types::AMLA_OK {
            assert!(self.o.inside() == before[0] && self.lse.inside() == before[1]);
        }
        status
    }

    /// The same as tasks: the same results.
    fn tasks(&mut self, draw: &mut Draw, ran: Status) {
        let (planned, mut plan, plan_len) = self.plan(draw);
        if draw.once_in(8) && plan_len > 0 {
            let at = draw.among(0..=plan_len - 1);
            let bytes: *mut u8 = plan.pointer();
            // SAFETY: within the plan's memory.
            unsafe { *bytes.add(at) ^= 1 << draw.among(0..=7) };
        }
        let (call, detail) = (&raw const *self.call, &raw mut *self.detail);
        let mut info = PlanInfo {
            struct_size: struct_size::<PlanInfo>(),
            reserved: 0,
            tasks: 0,
            partial_len: 0,
            partials_len: 0,
        };
        // SAFETY: there are `plan_len` bytes, and a struct.
        let status = unsafe { amla_plan_query(plan.pointer(), plan_len, &raw mut info, detail) };
        self.check(status);
        if info.partials_len > 1 << 22 {
            return;
        }
        let fewer = usize::from(draw.once_in(16)) * draw.among(0..=info.partials_len);
        let partials_len = info.partials_len - fewer;
        let mut partials = Guarded::new(4 * partials_len);
        let mut workspace = Guarded::new(size_of::<Workspace>());
        let middle = draw.among(0..=info.tasks);
        let shift = usize::from(draw.once_in(16));
        let before = [&self.o, &self.lse].map(|memory| memory.inside().to_vec());
        let mut all = planned;
        for [begin, end] in [[middle, info.tasks + shift], [0, middle]] {
            // SAFETY: as above; `partials` has as many numbers as it says.
            let status = unsafe {
                amla_run_tasks(
                    call,
                    plan.pointer(),
                    plan_len,
                    begin,
                    end,
                    workspace.pointer(),
                    size_of::<Workspace>(),
                    partials.pointer(),
                    partials_len,
                    detail,
                )
            };
            self.check(status);
            partials.check();
            workspace.check();
            all = all.max(status);
        }
        // SAFETY: as above.
        let status = unsafe {
            let partials = partials.pointer();
            amla_combine(
                call,
                plan.pointer(),
                plan_len,
                partials,
                partials_len,
                detail,
            )
        };
        self.check(status);
        partials.check();
        let same = self.o.inside() == before[0] && self.lse.inside() == before[1];
        if status != types::AMLA_OK || (all == types::AMLA_OK && ran == types::AMLA_OK) {
            assert!(same, "{status} {all} {ran}");
        }
    }

    /// Results with themselves.
    fn merge(&mut self, draw: &mut Draw) {
        let Call {
            b, s_q, h_q, d_v, ..
        } = *self.call;
        if self.output.o != self.o.pointer() {
            // The queries are nothing that this call reads.
            return;
        }
        let mut numbers = [self.o.inside(), self.lse.inside()].map(Given::new);
        let part = Part {
            struct_size: struct_size::<Part>(),
            reserved: 0,
            o: numbers[0].memory.as_mut_ptr().cast(),
            o_len: numbers[0].memory.len() / 4,
            lse: numbers[1].memory.as_mut_ptr().cast(),
            lse_len: numbers[1].memory.len() / 4,
        };
        let mut parts = [part; 3];
        match draw.among(0..=15) {
            0 => parts[1].o = ptr::null(),
            1 => parts[1].o_len = len(draw, part.o_len),
            2 => parts[1].lse_len = len(draw, part.lse_len),
            3 => parts[1].reserved = choice(draw),
            4 => parts[1].struct_size = choice(draw),
            5 => parts[1].o = self.output.o.cast_const().cast(),
            _ => {}
        }
        if parts[1].o == self.output.o.cast_const().cast() {
            parts[1].o_len = self.o.len / 4;
        }
        let count = match draw.once_in(16) {
            true => draw.one_of(&[types::AMLA_MERGE_MAX + 1, usize::MAX]),
            false => draw.among(0..=parts.len()),
        };
        let before = [&self.o, &self.lse].map(|memory| memory.inside().to_vec());
        let (output, detail) = (&raw const *self.output, &raw mut *self.detail);
        // SAFETY: as above; there are as many parts as said, or more are said than a call takes.
        let status = unsafe { amla_merge(b, s_q, h_q, d_v, output, parts.as_ptr(), count, detail) };
        self.check(status);
        for Given { memory, before } in &numbers {
            assert!(memory == before);
        }
        if status != types::AMLA_OK {
            assert!(self.o.inside() == before[0] && self.lse.inside() == before[1]);
        }
    }

    /// As Rust's.
    fn results(&self) -> Bits {
        let words = |memory: &Guarded| -> Vec<u32> {
            memory
                .inside()
                .as_chunks()
                .0
                .iter()
                .map(|&x| u32::from_le_bytes(x))
                .collect()
        };
        (words(&self.o), words(&self.lse))
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
    match draw.among(0..=6) {
        0 => indices.struct_size = choice(draw),
        1 => indices.reserved = choice(draw),
        2 => indices.indices = ptr::null(),
        3 => indices.indices_len = len(draw, indices.indices_len),
        4 => indices.strides[draw.among(0..=1)] = size(draw, indices.strides[1]),
        5 => indices.topk = size(draw, indices.topk),
        _ => indices.topk_length_len = len(draw, indices.topk_length_len),
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

/// Rows of any length, to memory of any length.
fn encoders(draw: &mut Draw) {
    let row: Vec<u16> = vec![draw.u16(); draw.one_of(&[576, 512, 0, 1, 128])];
    let bytes_len = draw.one_of(&[FP8_ROW, MODEL1_ROW, row.len(), 7]);
    let scales_len = draw.one_of(&[MODEL1_SCALES, 4, 0]);
    let (mut bytes, mut scales) = (Guarded::new(bytes_len), Guarded::new(scales_len));
    let pointer: *const u16 = if draw.once_in(8) {
        ptr::null()
    } else {
        row.as_ptr()
    };
    let scale: *mut f32 = scales.pointer();
    let scale = if scales_len < 4 {
        ptr::null_mut()
    } else {
        scale
    };
    // SAFETY: structs of numbers may be zero.
    let mut detail = unsafe { std::mem::zeroed::<ErrorDetail>() };
    detail.struct_size = struct_size::<ErrorDetail>();
    let detail = &raw mut detail;
    let len = row.len();
    for which in 0..3 {
        let before = [&bytes, &scales].map(|memory| memory.inside().to_vec());
        // SAFETY: each pointer is null or to as much memory as said.
        let status = unsafe {
            match which {
                0 => amla_encode_fp8(pointer, len, bytes.pointer(), bytes_len, detail),
                1 => {
                    let (to, scales) = (bytes.pointer(), scales.pointer());
                    amla_encode_model1(pointer, len, to, bytes_len, scales, scales_len, detail)
                }
                _ => amla_encode_int8(pointer, len, bytes.pointer(), bytes_len, scale, detail),
            }
        };
        assert!((types::AMLA_OK..=types::AMLA_ERROR_OTHER).contains(&status));
        bytes.check();
        scales.check();
        if status != types::AMLA_OK {
            assert!(bytes.inside() == before[0] && scales.inside() == before[1]);
        }
    }
}
