//! Dense calls in one line, of which up to three arguments are overwritten.

use std::mem::size_of;
use std::ptr;

use amla::Workspace;

use super::memory::{Given, Guarded};
use crate::draw::Draw;
use crate::run::amla_mla_decode;
use crate::types::{self, AMLA_MLA_D_QK, AMLA_MLA_D_V, Status};

/// Sizes that no memory has, whatever the other three are.
const VAST: [usize; 4] = [usize::MAX, usize::MAX / 2, usize::MAX / 576, 1 << 56];

/// A call in memory of its sizes; false memory is never stated.
pub fn mla(draw: &mut Draw) {
    let mut sizes = [
        draw.among(0..=2),
        draw.among(1..=3),
        draw.among(0..=20),
        draw.among(1..=4),
    ];
    let [b, s_q, s_k, h_q] = sizes;
    let rows = b * s_q * h_q;
    let mut numbers = |n: usize| Given::new(&vec![draw.u8(); 2 * n * AMLA_MLA_D_QK]);
    let given = [numbers(rows), numbers(b * s_k)];
    let mut outputs = [4 * rows * AMLA_MLA_D_V, 4 * rows].map(Guarded::new);
    let mut workspace = Guarded::new(size_of::<Workspace>());
    let inputs = given.each_ref().map(|given| given.memory.as_ptr());
    let results: [*mut u8; 2] = outputs.each_mut().map(Guarded::pointer);
    let scratch: *mut u8 = workspace.pointer();
    let (mut read, mut written, mut memory) = (inputs, results, scratch);
    let mut memory_size = size_of::<Workspace>();
    let mut scale = 0.05;
    let wrong = draw.one_of(&[0, 1, 1, 2, 3]);
    for _ in 0..wrong {
        let which = draw.among(0..=1);
        match draw.among(0..=9) {
            0 => read[which] = ptr::null(),
            1 => written[which] = ptr::null_mut(),
            2 => memory = ptr::null_mut(),
            // A misaligned address, which is refused before its last byte matters: never moved twice.
            3 => read[which] = inputs[which].wrapping_add(1),
            4 => written[which] = results[which].wrapping_add(1),
            5 => memory = scratch.wrapping_add(draw.one_of(&[1, 8, 32])),
            6 => memory_size = draw.among(0..=memory_size),
            7 => scale = draw.f32(),
            8 => sizes[draw.among(0..=3)] = draw.one_of(&VAST),
            // Fewer than there is memory for.
            _ => {
                let size = draw.among(0..=3);
                sizes[size] = draw.among(0..=sizes[size]);
            }
        }
    }
    let [b, s_q, s_k, h_q] = sizes;
    // SAFETY: each pointer is null, misaligned or to as much memory as the sizes say, or these are of no memory.
    let status = unsafe {
        amla_mla_decode(
            read[0].cast(),
            read[1].cast(),
            b,
            s_q,
            s_k,
            h_q,
            scale,
            written[0].cast(),
            written[1].cast(),
            memory.cast(),
            memory_size,
        )
    };
    check(status, wrong, &outputs);
    workspace.check();
    for Given { memory, before } in &given {
        assert!(memory == before, "written where nothing may be");
    }
}

fn check(status: Status, wrong: usize, outputs: &[Guarded; 2]) {
    assert!((types::AMLA_OK..=types::AMLA_ERROR_OTHER).contains(&status));
    assert!(wrong > 0 || status == types::AMLA_OK, "{status}");
    for output in outputs {
        output.check();
        assert!(status == types::AMLA_OK || output.is_untouched());
    }
}
