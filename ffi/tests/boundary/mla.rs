//! `amla_mla_decode`: the bits of the full call, and its refusals.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use amla::{Elements, Options, Output, Problem, ProblemShape, Workspace, decode};
use half::bf16;

use crate::run::amla_mla_decode;
use crate::types::*;
use crate::world::PATTERN;

const D_QK: usize = AMLA_MLA_D_QK;
const D_V: usize = AMLA_MLA_D_V;

/// The arguments, in memory of exactly their size. Vectors, so that addresses stay valid where the struct moves.
struct Mla {
    q: *const u16,
    kv: *const u16,
    b: usize,
    s_q: usize,
    s_k: usize,
    h_q: usize,
    scale: f32,
    o: *mut f32,
    lse: *mut f32,
    workspace: *mut c_void,
    workspace_size: usize,
    numbers: [Vec<bf16>; 2],
    results: [Vec<f32>; 2],
    memory: Vec<Workspace>,
}

impl Mla {
    fn new([b, s_q, s_k, h_q]: [usize; 4]) -> Self {
        let number = |i: usize| bf16::from_f32((i * 37 % 101) as f32 / 50.0 - 1.0);
        let numbers = |n: usize| (0..n).map(number).collect::<Vec<_>>();
        let rows = b * s_q * h_q;
        let mut mla = Self {
            q: null(),
            kv: null(),
            b,
            s_q,
            s_k,
            h_q,
            scale: 0.05,
            o: null_mut(),
            lse: null_mut(),
            workspace: null_mut(),
            workspace_size: size_of::<Workspace>(),
            numbers: [numbers(rows * D_QK), numbers(b * s_k * D_QK)],
            results: [rows * D_V, rows].map(|n| vec![PATTERN; n]),
            memory: bytemuck::zeroed_vec(1),
        };
        [mla.q, mla.kv] = mla
            .numbers
            .each_ref()
            .map(|numbers| numbers.as_ptr().cast());
        [mla.o, mla.lse] = mla.results.each_mut().map(|results| results.as_mut_ptr());
        mla.workspace = mla.memory.as_mut_ptr().cast();
        mla
    }

    fn run(&self) -> Status {
        // SAFETY: all pointers are this test's, or must be refused.
        unsafe {
            amla_mla_decode(
                self.q,
                self.kv,
                self.b,
                self.s_q,
                self.s_k,
                self.h_q,
                self.scale,
                self.o,
                self.lse,
                self.workspace,
                self.workspace_size,
            )
        }
    }

    fn is_untouched(&self) -> bool {
        let all = self.results.iter().flatten();
        all.into_iter().all(|x| x.to_bits() == PATTERN.to_bits())
    }
}

#[test]
fn it_is_the_full_call() {
    let sizes: &[[usize; 4]] = if cfg!(miri) {
        &[[1, 1, 2, 1]]
    } else {
        &[
            [1, 1, 1, 1],
            [2, 1, 100, 16],
            [1, 3, 5, 2],
            [3, 2, 193, 5],
            [1, 4, 2, 3],
            [1, 1, 0, 2],
            [0, 1, 7, 2],
            [1, 2, 400, 128],
        ]
    };
    for &[b, s_q, s_k, h_q] in sizes {
        let mut mla = Mla::new([b, s_q, s_k, h_q]);
        assert_eq!(mla.run(), AMLA_OK, "{:?}", [b, s_q, s_k, h_q]);
        let shape = ProblemShape {
            b,
            s_q,
            s_k,
            h_q,
            h_kv: 1,
            d_qk: D_QK,
            d_v: D_V,
        };
        let problem = Problem {
            causal: true,
            ..Problem::dense(shape, &mla.numbers[0], &mla.numbers[1], mla.scale)
        };
        let mut want = mla
            .results
            .each_ref()
            .map(|results| vec![PATTERN; results.len()]);
        let [o, lse] = &mut want;
        let output = Output::dense(shape, Elements::F32(o), lse);
        let mut workspace = bytemuck::zeroed_box::<Workspace>();
        decode(&problem, &Options::default(), &mut workspace, output).unwrap();
        let bits = |xs: &[f32]| xs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (got, want) in mla.results.iter().zip(&want) {
            assert_eq!(bits(got), bits(want), "{shape:?}");
        }
        // Without lse.
        mla.results[0].fill(PATTERN);
        mla.lse = null_mut();
        assert_eq!(mla.run(), AMLA_OK);
        assert_eq!(bits(&mla.results[0]), bits(&want[0]), "{shape:?}");
    }
}

/// Query j of a request's s_q sees the first s_k - (s_q - 1 - j) keys.
#[test]
fn positions_see_no_later_keys() {
    if cfg!(miri) {
        return; // Minutes, and nothing that the calls above don't do.
    }
    let all = Mla::new([1, 3, 40, 2]);
    assert_eq!(all.run(), AMLA_OK);
    for j in 0..3 {
        let mut one = Mla::new([1, 1, 38 + j, 2]);
        let queries = &all.numbers[0][j * 2 * D_QK..][..2 * D_QK];
        one.q = queries.as_ptr().cast();
        assert_eq!(one.run(), AMLA_OK);
        let rows = &all.results[0][j * 2 * D_V..][..2 * D_V];
        for (a, b) in rows.iter().zip(&one.results[0]) {
            assert!((a - b).abs() < 4e-3, "{a} {b}");
        }
        // A key more or less is 0.02 of lse.
        for (head, want) in one.results[1].iter().enumerate() {
            assert!((all.results[1][head * 3 + j] - want).abs() < 1e-3);
        }
    }
    // With fewer keys than queries the first see none.
    let short = Mla::new([1, 3, 1, 2]);
    assert_eq!(short.run(), AMLA_OK);
    let [o, lse] = &short.results;
    assert!(o[..2 * 2 * D_V].iter().all(|&x| x == 0.0));
    for head in lse.chunks(3) {
        assert_eq!(head[..2], [f32::INFINITY; 2]);
        assert!(head[2].is_finite());
    }
}

/// A change, and the status that it must give.
type Wrong = (fn(&mut Mla), Status);

fn odd<T>(pointer: *const T) -> *mut T {
    pointer.cast_mut().wrapping_byte_add(1)
}

#[test]
fn malformed_calls_are_denied() {
    let mut denied = 0;
    let mut deny = |change: &dyn Fn(&mut Mla), status: Status, what: &str| {
        let mut mla = Mla::new([2, 2, 3, 2]);
        change(&mut mla);
        assert_eq!(mla.run(), status, "{what}");
        assert!(mla.is_untouched(), "{what}");
        denied += 1;
    };
    let cases: [Wrong; 25] = [
        (|m| m.q = null(), AMLA_ERROR_NULL_POINTER),
        (|m| m.kv = null(), AMLA_ERROR_NULL_POINTER),
        (|m| m.o = null_mut(), AMLA_ERROR_NULL_POINTER),
        (|m| m.workspace = null_mut(), AMLA_ERROR_NULL_POINTER),
        (|m| m.q = odd(m.q), AMLA_ERROR_MISALIGNED),
        (|m| m.kv = odd(m.kv), AMLA_ERROR_MISALIGNED),
        (|m| m.o = odd(m.o), AMLA_ERROR_MISALIGNED),
        (|m| m.lse = odd(m.lse), AMLA_ERROR_MISALIGNED),
        (|m| m.workspace = odd(m.workspace), AMLA_ERROR_MISALIGNED),
        (
            |m| m.workspace = m.workspace.wrapping_byte_add(32),
            AMLA_ERROR_MISALIGNED,
        ),
        (|m| m.o = m.q.cast_mut().cast(), AMLA_ERROR_ALIASED),
        (|m| m.o = m.kv.cast_mut().cast(), AMLA_ERROR_ALIASED),
        (|m| m.lse = m.q.cast_mut().cast(), AMLA_ERROR_ALIASED),
        (|m| m.lse = m.kv.cast_mut().cast(), AMLA_ERROR_ALIASED),
        (|m| m.lse = m.o, AMLA_ERROR_ALIASED),
        (|m| m.o = m.lse, AMLA_ERROR_ALIASED),
        (|m| m.workspace = m.q.cast_mut().cast(), AMLA_ERROR_ALIASED),
        (|m| m.o = m.workspace.cast(), AMLA_ERROR_ALIASED),
        (|m| m.lse = m.workspace.cast(), AMLA_ERROR_ALIASED),
        (|m| m.q = m.workspace.cast(), AMLA_ERROR_ALIASED),
        (|m| m.kv = m.workspace.cast(), AMLA_ERROR_ALIASED),
        (|m| m.s_q = 0, AMLA_ERROR_OUT_OF_RANGE),
        (|m| m.h_q = 0, AMLA_ERROR_OUT_OF_RANGE),
        (|m| (m.s_q, m.q) = (0, null()), AMLA_ERROR_OUT_OF_RANGE),
        (|m| (m.b, m.s_q) = (0, 0), AMLA_ERROR_OUT_OF_RANGE),
    ];
    for (i, (change, status)) in cases.into_iter().enumerate() {
        // What isn't a workspace's alignment is refused as such before.
        let aligned = |m: &Mla| (m.workspace as usize).is_multiple_of(AMLA_WORKSPACE_ALIGN);
        let change = |m: &mut Mla| {
            change(m);
            if status == AMLA_ERROR_ALIASED && !aligned(m) {
                m.workspace = m.workspace.wrapping_byte_sub(m.workspace as usize % 64);
            }
        };
        deny(&change, status, &format!("case {i}"));
    }
    let vast = [
        1 << 56,
        usize::MAX / 2,
        usize::MAX / 576,
        usize::MAX - 1,
        usize::MAX,
    ];
    let sizes: [fn(&mut Mla) -> &mut usize; 4] =
        [|m| &mut m.b, |m| &mut m.s_q, |m| &mut m.s_k, |m| &mut m.h_q];
    for (i, size) in sizes.into_iter().enumerate() {
        for value in vast {
            let what = format!("size {i} = {value}");
            deny(&|m| *size(m) = value, AMLA_ERROR_BAD_EXTENT, &what);
            // Nor where the product wraps to something small.
            let both = |m: &mut Mla| (m.b, *size(m)) = (1 << 32, value);
            deny(&both, AMLA_ERROR_BAD_EXTENT, &what);
        }
    }
    for scale in [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        3e38,
    ] {
        let change = |m: &mut Mla| m.scale = scale;
        deny(&change, AMLA_ERROR_NON_FINITE_SCALE, &format!("{scale}"));
    }
    let full = size_of::<Workspace>();
    for size in [
        0,
        1,
        63,
        64,
        1 << 10,
        1 << 16,
        full / 2,
        full - 64,
        full - 1,
    ] {
        let change = |m: &mut Mla| m.workspace_size = size;
        deny(
            &change,
            AMLA_ERROR_TOO_SHORT,
            &format!("workspace of {size}"),
        );
    }
    println!("{denied} calls denied");
    assert!(denied > 75);
}
