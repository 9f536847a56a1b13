//! Good calls: results bit for bit those of `amla`, in every mode, layout and format.

use std::ptr::null;

use half::bf16;

use crate::merge::amla_merge;
use crate::run::{amla_plan_for_threads, amla_plan_query};
use crate::types::*;
use crate::world::*;

#[test]
fn good_calls_are_done_at_once_and_by_tasks() {
    for world in [World::apart, World::sparse] {
        let mut w = world();
        let mut answers = w.answers(Who::All);
        answers.retain(|&(_, status, _)| status != AMLA_OK);
        assert!(answers.is_empty());
        // `amla_run` came before `amla_combine`, which wrote the same.
        let combined = results(&w);
        w.o.fill(PATTERN);
        w.lse.fill(PATTERN);
        assert_eq!(w.answers(Who::Compute)[1].1, AMLA_OK);
        assert_eq!(results(&w), combined);
        let nan = |x: &f32| x.is_nan();
        assert!(!w.o.iter().any(nan) && !w.lse.iter().any(nan));
    }
}

#[test]
fn the_last_task_can_be_run_alone_and_touches_its_own_part() {
    let mut w = World::apart().long();
    w.begin = 2 * B - 1;
    assert_eq!(w.answers(Who::Tasks)[0].1, AMLA_OK);
    let mut info = PlanInfo {
        struct_size: size_of::<PlanInfo>() as u32,
        ..zeroed()
    };
    let (plan, size) = (w.plan.as_ptr().cast(), w.plan.len());
    // SAFETY: the plan and the struct are this test's.
    let status = unsafe { amla_plan_query(plan, size, &mut info, std::ptr::null_mut()) };
    assert_eq!((status, info.tasks), (AMLA_OK, 2 * B));
    assert_eq!(
        (info.partial_tasks, info.merges),
        (2 * B, B * H_Q * D_V.div_ceil(amla::tile::STRIP))
    );
    let last = (2 * B - 1) * info.partial_len;
    let (first, second) = w.partials.split_at(last);
    assert!(first.iter().all(|x| x.to_bits() == PATTERN.to_bits()));
    assert!(
        second[..H_Q * D_V]
            .iter()
            .any(|x| x.to_bits() != PATTERN.to_bits())
    );
}

/// Requests that share their rows are as many as one likes; results of their own they can't have.
#[test]
fn a_plan_may_need_more_memory_than_there_is() {
    let mut w = World::apart().long();
    w.call.b = usize::MAX / D_V;
    (w.call.cache_seqlens, w.call.cache_seqlens_len) = (null(), 0);
    (w.q.strides[0], w.q_rope.strides[0]) = (0, 0);
    w.partials_len = usize::MAX;
    // Only more threads than there can be are worth as many partial results.
    let (mut plan, mut detail) = (vec![0; w.plan.len()], detail());
    let call = w.linked();
    // SAFETY: all that the call points to is this world's, and so is the plan.
    let status = unsafe {
        let memory = plan.as_mut_ptr().cast();
        amla_plan_for_threads(call, usize::MAX, memory, plan.len(), &mut detail)
    };
    assert_eq!(status, AMLA_OK);
    w.plan = plan;
    let mut info = PlanInfo {
        struct_size: size_of::<PlanInfo>() as u32,
        ..zeroed()
    };
    let (plan, size) = (w.plan.as_ptr().cast(), w.plan.len());
    // SAFETY: the plan and the struct are this test's.
    let status = unsafe { amla_plan_query(plan, size, &mut info, std::ptr::null_mut()) };
    assert_eq!((status, info.partials_len), (AMLA_OK, usize::MAX));
    (w.begin, w.end) = (info.tasks - 1, info.tasks);
    for (name, status, _) in w.answers(Who::Tasks) {
        assert_eq!(status, AMLA_ERROR_TOO_SHORT, "{name}");
    }
    assert!(w.untouched());
}

#[test]
fn merging_with_a_result_over_no_keys_changes_nothing() {
    let mut w = World::apart();
    assert_eq!(w.answers(Who::Compute)[1].1, AMLA_OK);
    let want = results(&w);
    let (o, lse) = (vec![0.0_f32; w.o.len()], vec![f32::INFINITY; w.lse.len()]);
    let part = part(&o, &lse);
    let mut detail = detail();
    // SAFETY: total and part are this test's.
    let status = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, &part, 1, &mut detail) };
    assert_eq!(status, AMLA_OK);
    assert_eq!(results(&w), want);
}

/// The cache in pages of one key; queries and keys packed one request after the other.
#[test]
fn layouts_have_the_same_bits() {
    let all_keys = |w: &mut World| w.lens.fill(3);
    let want = run(World::apart, all_keys);
    assert_eq!(
        run(World::apart, |_| {}).0[..H_Q * D_V],
        want.0[..H_Q * D_V]
    );
    // Values and both parts of the keys have pages of their own, all of one key.
    let paged = run(World::apart, |w| {
        all_keys(w);
        w.table = (0..6).collect();
        (w.call.block_table, w.call.block_table_len) = (w.table.as_ptr(), 6);
        (w.call.max_blocks, w.call.page_size, w.call.pages) = (3, 1, 6);
        for tensor in [&mut w.kv, &mut w.k_rope, &mut w.v] {
            tensor.strides[0] = tensor.strides[1];
        }
    });
    assert_eq!(paged, want);
    let ragged = run(World::apart, |w| {
        all_keys(w);
        w.indptr = vec![0, 3, 6];
        (w.call.kv_indptr, w.call.kv_indptr_len) = (w.indptr.as_ptr(), 3);
        for tensor in [&mut w.kv, &mut w.k_rope, &mut w.v] {
            tensor.strides[0] = tensor.strides[1];
        }
    });
    assert_eq!(ragged, want);
    let ragged_q = run(World::apart, |w| {
        all_keys(w);
        w.indptr = vec![0, 1, 2];
        (w.call.q_indptr, w.call.q_indptr_len) = (w.indptr.as_ptr(), 3);
        w.output.lse_strides[2] = H_Q;
    });
    assert_eq!(ragged_q, want);
    // A tail of three keys of which every position sees the first and the last.
    let masked = run(World::apart, |w| {
        all_keys(w);
        (w.call.tail_mask, w.call.tail_mask_len) = (w.mask.as_ptr(), B);
        w.mask.fill(5);
        w.call.tail = 3;
    });
    assert_ne!(masked.0, want.0);
}

/// Every mode, output format and convention of lse that a call can have.
#[test]
fn modes_and_outputs() {
    let exact = run(World::apart, |_| {});
    let float = |bits: &u32| f32::from_bits(*bits);
    let close = |got: &(Vec<u32>, Vec<u32>)| {
        let pairs = got.0.iter().map(float).zip(exact.0.iter().map(float));
        pairs.fold(0.0_f32, |worst, (a, b)| worst.max((a - b).abs()))
    };
    let modes: [fn(&mut World); 3] = [
        |w| w.call.rescale = AMLA_RESCALE_COMPENSATED,
        |w| w.call.precision = AMLA_PRECISION_BF16X2,
        |w| w.call.backend = null(),
    ];
    for change in modes {
        assert!(close(&run(World::apart, change)) < 0.02);
    }
    // BF16 is what inputs would be rounded to.
    let rounded = run(World::apart, |w| {
        w.call.precision = AMLA_PRECISION_BF16_INPUTS;
    });
    assert_eq!(rounded, exact);
    let base2 = run(World::apart, |w| w.output.lse_base = AMLA_LSE_BASE_2);
    for (two, e) in base2.1.iter().map(float).zip(exact.1.iter().map(float)) {
        assert!((two * std::f32::consts::LN_2 - e).abs() < 1e-5);
    }
    let empty = |w: &mut World| {
        w.lens[0] = 0;
        (w.call.sink, w.call.sink_len) = (null(), 0);
    };
    let plus = run(World::apart, empty);
    let minus = run(World::apart, |w| {
        empty(w);
        w.output.lse_empty = AMLA_LSE_EMPTY_MINUS_INFINITY;
    });
    assert_eq!(plus.1.iter().map(float).next(), Some(f32::INFINITY));
    assert_eq!(minus.1.iter().map(float).next(), Some(f32::NEG_INFINITY));
    for dtype in [AMLA_DTYPE_BF16, AMLA_DTYPE_F16] {
        let halves = run(World::apart, |w| w.output.dtype = dtype);
        let elements: &[u16] = bytemuck::cast_slice(&halves.0);
        for (bits, want) in elements.iter().zip(exact.0.iter().map(float)) {
            let got = match dtype {
                AMLA_DTYPE_BF16 => bf16::from_bits(*bits).to_f32(),
                _ => half::f16::from_bits(*bits).to_f32(),
            };
            assert!((got - want).abs() <= want.abs() / 128.0, "{got} {want}");
        }
    }
    // A name that there is, at an address of its own.
    let name = c"portable".to_owned();
    let named = run(World::apart, |w| w.call.backend = name.as_ptr());
    assert_eq!(named, exact);
}
