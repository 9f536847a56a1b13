//! What messages say: the argument, what was given, by its name where it has one, and what may be.

use std::ptr::null;

use crate::run::amla_plan_query;
use crate::types::*;
use crate::world::*;

/// A change, who looks at it, and what is said.
type Said = (Who, fn(&mut World), &'static str);

const BACKENDS: &str = "portable, avx2, avx512, avx512bf16, amx, neon or neonbf16";

#[track_caller]
fn assert_said(world: fn() -> Box<World>, who: Who, change: fn(&mut World), said: &str) {
    let mut w = world();
    change(&mut w);
    let answers = w.answers(who);
    assert!(!answers.is_empty());
    for (function, status, detail) in answers {
        assert_ne!(status, AMLA_OK, "{function}: {said}");
        assert_eq!(text(&detail.message), said, "{function}");
    }
}

#[test]
fn choices_are_named() {
    let cases: [Said; 16] = [
        (
            Who::All,
            |w| w.q.dtype = 0,
            "q.dtype is 0, not BF16, F16, F32, FP8, MODEL1, INT8, Q8_0, Q4_0 or E4M3",
        ),
        (
            Who::All,
            |w| w.v.dtype = 10,
            "v.dtype is 10, not BF16, F16, F32, FP8, MODEL1, INT8, Q8_0, Q4_0 or E4M3",
        ),
        (
            Who::All,
            |w| w.k_rope.dtype = 99,
            "k_rope.dtype is 99, not BF16, F16, F32, FP8, MODEL1, INT8, Q8_0, Q4_0 or E4M3",
        ),
        (
            Who::Output,
            |w| w.output.dtype = AMLA_DTYPE_INT8,
            "output.dtype is INT8, not BF16, F16 or F32",
        ),
        (
            Who::Output,
            |w| w.output.dtype = u32::MAX,
            "output.dtype is 4294967295, not BF16, F16 or F32",
        ),
        (
            Who::All,
            |w| w.call.rescale = 2,
            "rescale is 2, not EXACT or COMPENSATED",
        ),
        (
            Who::All,
            |w| w.call.precision = 7,
            "precision is 7, not BF16, BF16X2 or BF16_INPUTS",
        ),
        (
            Who::Output,
            |w| w.output.lse_base = 2,
            "lse_base is 2, not E or 2",
        ),
        (
            Who::Output,
            |w| w.output.lse_empty = 9,
            "lse_empty is 9, not INFINITY or MINUS_INFINITY",
        ),
        (
            Who::All,
            |w| w.call.flags = 0x12,
            "flags is 0x12, not a sum of AMLA_CAUSAL (0x1) or AMLA_LIST_STRIDES (0x2)",
        ),
        (
            Who::All,
            |w| w.call.reserved = 3,
            "call.reserved is 3, not 0",
        ),
        (
            Who::All,
            |w| w.call.tail = 3,
            "tail_mask is null, though tail isn't 0",
        ),
        (
            Who::All,
            |w| w.call.extra = &raw const w.extra,
            "sparse is null, though extra isn't",
        ),
        (
            Who::All,
            |w| w.call.pages = 3,
            "page_size is 0, though block_table, max_blocks or pages is given",
        ),
        (
            Who::All,
            |w| w.call.struct_size = 0,
            "call.struct_size is not set: it must be the struct's sizeof, 288",
        ),
        (
            Who::All,
            |w| w.call.struct_size = 1,
            "call.struct_size is 1, not 288",
        ),
    ];
    for (who, change, said) in cases {
        // Sizes are those of 64-bit pointers.
        let said = said.replace("288", &size_of::<Call>().to_string());
        assert_said(World::apart, who, change, &said);
    }
    let second = "extra_kv.dtype is 77, not BF16, F16, F32, FP8, MODEL1, INT8, Q8_0, Q4_0 or E4M3";
    let change = |w: &mut World| w.extra_kv.dtype = 77;
    assert_said(World::sparse, Who::All, change, second);
}

#[test]
fn backends_are_named() {
    let cases: [Change; 4] = [
        ("avx1024", |w| w.call.backend = c"avx1024".as_ptr()),
        ("", |w| w.call.backend = c"".as_ptr()),
        ("???\"", |w| w.call.backend = c"\x07\xc3\xa9\"".as_ptr()),
        ("a name longer than any b", |w| {
            w.call.backend = c"a name longer than any backend has".as_ptr()
        }),
    ];
    for (name, change) in cases {
        let said = format!("backend is \"{name}\", not {BACKENDS}");
        assert_said(World::apart, Who::All, change, &said);
    }
}

#[test]
fn numbers_are_told() {
    let cases: [Said; 6] = [
        (
            Who::All,
            |w| w.call.softmax_scale = 3e38,
            "softmax_scale is 3e38, whose product with log2(e) is infinite",
        ),
        (
            Who::All,
            |w| w.call.softmax_scale = f32::NAN,
            "softmax_scale is NaN, not a finite number",
        ),
        (
            Who::All,
            |w| offsets(w, [-1, 1, 2]),
            "q_indptr[0] is -1, below 0",
        ),
        (
            Who::All,
            |w| offsets(w, [0, 2, 1]),
            "q_indptr gives request 0 rows 0 to 2, more than s_q, 1",
        ),
        (
            Who::All,
            |w| offsets(w, [0, 1, 0]),
            "q_indptr[2] is 0, less than q_indptr[1], 1",
        ),
        (
            Who::All,
            |w| w.kv.strides[0] = usize::MAX,
            "sizes and strides of kv overflow in dimension 0",
        ),
    ];
    for (who, change, said) in cases {
        assert_said(World::apart, who, change, said);
    }
}

fn offsets(w: &mut World, ends: [i32; 3]) {
    w.indptr = ends.to_vec();
    (w.call.q_indptr, w.call.q_indptr_len) = (w.indptr.as_ptr(), 3);
}

/// What a call has that its plan wasn't made for.
#[test]
fn a_plan_that_does_not_fit_says_why() {
    type Differs = (fn(&mut World), &'static str, [i64; 2], &'static str);
    let cases: [Differs; 6] = [
        (
            |w| w.call.s_k = 2,
            "s_k",
            [3, 2],
            "the plan is for s_k 3, not 2",
        ),
        (
            |w| w.call.window = 2,
            "window",
            [0, 2],
            "the plan is for a call without window",
        ),
        (
            |w| w.lens[1] = 2,
            "cache_seqlens",
            [4, 5],
            "the plan is for cache_seqlens of 4 rows in all, not 5",
        ),
        (
            |w| w.lens.reverse(),
            "cache_seqlens",
            [4, 4],
            "the plan is for other cache_seqlens, also of 4 rows in all",
        ),
        (
            |w| (w.call.cache_seqlens, w.call.cache_seqlens_len) = (null(), 0),
            "cache_seqlens",
            [4, 0],
            "the plan is for a call with cache_seqlens",
        ),
        (
            |w| {
                let last = w.plan.len() - 8;
                w.plan[last] ^= 1;
            },
            "plan",
            [3, 2],
            "the plan is damaged, or from another build",
        ),
    ];
    for (change, differs, [planned, given], said) in cases {
        let mut w = World::apart();
        change(&mut w);
        w.lens
            .iter_mut()
            .for_each(|len| *len = (*len).min(w.call.s_k as i32));
        for (function, status, detail) in w.answers(Who::Tasks) {
            let told = (text(&detail.argument), text(&detail.other));
            assert_eq!(status, AMLA_ERROR_PLAN_MISMATCH, "{function}");
            assert_eq!(told, ("plan", differs), "{function}");
            assert_eq!([detail.min, detail.value], [planned, given], "{said}");
            assert_eq!(detail.max, planned);
            assert_eq!(text(&detail.message), said, "{function}");
        }
    }
}

#[test]
fn a_plan_of_another_version_is_told() {
    let mut w = World::apart();
    w.plan[8] = 1;
    let (mut info, mut detail) = (zeroed::<PlanInfo>(), detail());
    info.struct_size = size_of::<PlanInfo>() as u32;
    let (plan, size) = (w.plan.as_ptr().cast(), w.plan.len());
    // SAFETY: the plan and the structs are this test's.
    let status = unsafe { amla_plan_query(plan, size, &mut info, &mut detail) };
    assert_eq!(status, AMLA_ERROR_NOT_A_PLAN);
    let said = format!("the plan is of version 1 of the interface, not {AMLA_ABI_VERSION}");
    assert_eq!(text(&detail.message), said);
    assert_eq!((detail.value, detail.max), (1, AMLA_ABI_VERSION.into()));
}
