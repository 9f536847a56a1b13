//! Of every tensor its length, strides and format.

use std::cell::RefCell;

use amla::format::{Q4_0, Q8_0};
use amla::{Argument, Data, Error, Problem, TensorRef};
use half::f16;

use crate::caller::{Caller, DIMS, report, too_short, with, with_apart, with_sparse};

type Access = for<'a, 'b> fn(&'b mut Problem<'a>) -> &'b mut TensorRef<'a>;

const TENSORS: [(Argument, usize, Access); 5] = [
    (Argument::Q, DIMS.1, |p| &mut p.q),
    (Argument::QRope, DIMS.0 - DIMS.1, |p| {
        p.q_rope.as_mut().unwrap()
    }),
    (Argument::Kv, DIMS.1, |p| &mut p.kv),
    (Argument::KRope, DIMS.0 - DIMS.1, |p| {
        p.k_rope.as_mut().unwrap()
    }),
    (Argument::V, DIMS.1, |p| p.v.as_mut().unwrap()),
];

const EXTRA: (Argument, usize, Access) = (Argument::ExtraKv, DIMS.0, |p| {
    &mut p.sparse.as_mut().unwrap().extra.as_mut().unwrap().kv
});

/// Dimensions of a tensor's rows.
fn dims(problem: &Problem, argument: Argument) -> [usize; 3] {
    let s = &problem.shape;
    let end = |indptr: &[i32]| usize::try_from(*indptr.last().unwrap()).unwrap();
    let pages = problem
        .pages
        .map(|pages| [pages.pages, pages.page_size, s.h_kv]);
    match argument {
        Argument::Q | Argument::QRope => match problem.q_indptr {
            Some(indptr) => [1, end(indptr), s.h_q],
            None => [s.b, s.s_q, s.h_q],
        },
        _ => match (pages, problem.kv_indptr) {
            (Some(pages), _) => pages,
            (None, Some(indptr)) => [1, end(indptr), s.h_kv],
            (None, None) => [s.b, s.s_k, s.h_kv],
        },
    }
}

fn deny_tensor(
    caller: &mut Caller,
    good: &Problem,
    (argument, width, at): (Argument, usize, Access),
) {
    let dims = dims(good, argument);
    let mut copy = *good;
    let TensorRef { data, strides } = *at(&mut copy);
    let Data::Bf16(data) = data else {
        unreachable!()
    };
    let extent = |strides: [usize; 3]| -> usize {
        dims.iter()
            .zip(strides)
            .map(|(dim, stride)| (dim - 1) * stride)
            .sum()
    };
    let needed = extent(strides) + width;
    let halves: Vec<f16> = vec![f16::ONE; needed];
    let values = vec![1; needed];
    let scales = vec![1.0; dims.iter().product()];
    let scale_strides = [dims[1] * dims[2], dims[2], 1];
    let int8 = |values, scales, strides| Data::Int8 {
        values,
        scales,
        strides,
    };
    let (floats, codes) = (vec![1.0_f32; needed], vec![0x38_u8; needed]);
    let e4m3 = |len, scales, strides| Data::E4m3 {
        values: &codes[..len],
        scales,
        strides,
    };
    let mut deny = |want, data, strides| {
        let bad = with(good, |p| *at(p) = TensorRef { data, strides });
        caller.problem(&bad, good, want);
    };
    for len in [0, 1, needed / 2, needed - 1] {
        let want = too_short(argument, len, needed);
        deny(want, Data::Bf16(&data[..len]), strides);
        deny(want, Data::F16(&halves[..len]), strides);
        deny(want, int8(&values[..len], &scales, scale_strides), strides);
        deny(want, Data::F32(&floats[..len]), strides);
        deny(want, e4m3(len, &scales, scale_strides), strides);
    }
    for len in [0, scales.len() - 1] {
        let want = too_short(Argument::Scales, len, scales.len());
        deny(want, int8(&values, &scales[..len], scale_strides), strides);
        deny(want, e4m3(needed, &scales[..len], scale_strides), strides);
    }
    for dimension in (0..3).filter(|&dimension| dims[dimension] > 1) {
        let mut longer = strides;
        longer[dimension] += 1;
        let want = too_short(argument, needed, extent(longer) + width);
        deny(want, Data::Bf16(&data[..needed]), longer);
        deny(want, Data::F32(&floats), longer);
        for stride in [usize::MAX, usize::MAX - width + 1] {
            let overflow = |argument| Error::Overflow {
                argument,
                dimension,
            };
            let mut vast = strides;
            vast[dimension] = stride;
            deny(overflow(argument), Data::Bf16(data), vast);
            deny(overflow(argument), Data::F16(&halves), vast);
            deny(overflow(argument), Data::F32(&floats), vast);
            let mut vast = scale_strides;
            vast[dimension] = usize::MAX;
            deny(
                overflow(Argument::Scales),
                int8(&values, &scales, vast),
                strides,
            );
            deny(
                overflow(Argument::Scales),
                e4m3(needed, &scales, vast),
                strides,
            );
        }
    }
    for data in [
        Data::Fp8(&[0; 656]),
        Data::Model1 {
            bytes: &[0; 584],
            scales: 576,
            scale_stride: 8,
        },
    ] {
        deny(Error::Format { argument, width }, data, strides);
    }
    deny_blocks(caller, good, (argument, width, at));
}

/// Rows of ggml's blocks: lengths and strides count these.
fn deny_blocks(
    caller: &mut Caller,
    good: &Problem,
    (argument, width, at): (Argument, usize, Access),
) {
    let dims = dims(good, argument);
    let blocks = width / 32;
    let strides = [dims[1] * dims[2], dims[2], 1].map(|rows| rows * blocks);
    let needed = dims.iter().product::<usize>() * blocks;
    let (q8, q4) = (vec![Q8_0::default(); needed], vec![Q4_0::default(); needed]);
    let mut deny = |want, len: usize, strides| {
        for data in [Data::Q8_0(&q8[..len]), Data::Q4_0(&q4[..len])] {
            let bad = with(good, |p| *at(p) = TensorRef { data, strides });
            caller.problem(&bad, good, want);
        }
    };
    for len in [0, 1, needed / 2, needed - 1] {
        deny(too_short(argument, len, needed), len, strides);
    }
    for dimension in (0..3).filter(|&dimension| dims[dimension] > 1) {
        // Of numbers, as a host may take them for.
        let mut of_numbers = strides;
        of_numbers[dimension] *= 32;
        let more = (dims[dimension] - 1) * (of_numbers[dimension] - strides[dimension]);
        deny(
            too_short(argument, needed, needed + more),
            needed,
            of_numbers,
        );
        let mut vast = strides;
        vast[dimension] = usize::MAX;
        let overflow = Error::Overflow {
            argument,
            dimension,
        };
        deny(overflow, needed, vast);
    }
    // Rows that end within a block: narrower than what the others have.
    let (d_qk, d_v) = match argument {
        Argument::QRope | Argument::KRope => (DIMS.1 + 48, DIMS.1),
        Argument::ExtraKv => (DIMS.0 - 16, DIMS.1),
        _ => (DIMS.0 - 16, DIMS.1 - 16),
    };
    let width = match argument {
        Argument::QRope | Argument::KRope => d_qk - d_v,
        Argument::ExtraKv => d_qk,
        _ => d_v,
    };
    for data in [Data::Q8_0(&q8), Data::Q4_0(&q4)] {
        let bad = with(good, |p| {
            (p.shape.d_qk, p.shape.d_v) = (d_qk, d_v);
            *at(p) = TensorRef { data, strides };
        });
        caller.problem(&bad, good, Error::Format { argument, width });
    }
}

#[test]
fn tensors() {
    let caller = RefCell::new(Caller::new());
    with_apart(|good| {
        for tensor in TENSORS {
            deny_tensor(&mut caller.borrow_mut(), good, tensor);
        }
    });
    with_sparse(|good| deny_tensor(&mut caller.borrow_mut(), good, EXTRA));
    report("tensors", &caller.borrow(), 9000);
}
