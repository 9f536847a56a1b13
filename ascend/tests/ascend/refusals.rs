//! Tilings, schedules, machines and sizes that are refused, each with its error.

use amla::ProblemShape;
use amla_ascend::{
    Algorithm, Dependency, Fault, Kernel, Machine, Pipe, Pipeline, Tiling, VECTOR_CORES, Work,
    paper,
};

use crate::{amla, amla_on, one};

/// The error for a changed tiling of the paper, with 256 rows.
fn refusal(change: impl Fn(&mut Tiling)) -> String {
    let mut tiling = Tiling::PAPER;
    change(&mut tiling);
    let (algorithm, pipeline) = (Algorithm::Amla, Pipeline::Preload);
    Kernel::new(
        Machine::ASCEND_910,
        tiling,
        algorithm,
        pipeline,
        paper::shape(2, 4096),
    )
    .expect_err("this tiling doesn't fit")
    .to_string()
}

type Change = fn(&mut Tiling);

#[test]
fn broken_tilings_name_the_buffer() {
    let broken: [(Change, &str); 17] = [
        // As the paper prints it.
        (
            |t| t.c1.single_n = 256,
            "L1 for K/V overflows: K takes 147456 bytes of 73728",
        ),
        (
            |t| t.c2.single_n = 256,
            "L1 for K/V overflows: V takes 131072 bytes of 73728",
        ),
        (
            |t| t.c1.single_m = 256,
            "L1 for Q/P overflows: Q takes 147456 bytes of 73728",
        ),
        (
            |t| t.c2.single_k = 512,
            "L1 for Q/P overflows: P takes 131072 bytes of 73728",
        ),
        (
            |t| t.kv_buffers = 4,
            "the partition of L1 takes 589824 bytes of 524288",
        ),
        (
            |t| t.l1_buffer = 80 * 1024,
            "the partition of L1 takes 573440 bytes of 524288",
        ),
        (
            |t| t.c1.base_k = 144,
            "L0A overflows: Q takes 36864 bytes of 32768",
        ),
        (
            |t| (t.c1.single_k, t.c1.single_n, t.c1.base_n) = (144, 256, 256),
            "L0B overflows: K takes 49152 bytes of 32768",
        ),
        (
            |t| (t.c2.single_k, t.c2.single_n, t.c2.base_n, t.c2.base_k) = (128, 256, 256, 64),
            "L0C overflows: an accumulator, baseM x baseN takes 131072 bytes of 65536",
        ),
        (
            |t| t.qp_buffers = 3,
            "L1 for Q/P: Q needs 4 buffers at once, there are 3",
        ),
        (
            |t| t.kv_buffers = 1,
            "L1 for K/V: K needs 2 buffers at once, there are 1",
        ),
        (
            |t| t.block = 1024,
            "L1 for Q/P: P needs 8 buffers at once, there are 4",
        ),
        (|t| t.vector_rows = 32, "UB of AIV0, in overflows"),
        (
            |t| t.c1.base_m = 100,
            "baseM is 100; it must be a multiple of 16",
        ),
        (|t| t.c2.base_k = 0, "baseK is 0"),
        (|t| t.block = 0, "the block is 0"),
        (
            |t| (t.qp_buffers, t.l1_buffer, t.c1.single_k) = (17, 8192, 16),
            "L1 for Q/P",
        ),
    ];
    for (change, message) in broken {
        let refused = refusal(change);
        assert!(refused.contains(message), "{refused}\nisn't: {message}");
    }
    // More rows than there are buffers for: four positions at once.
    let tiling = Tiling {
        rows: 512,
        ..Tiling::PAPER
    };
    let (algorithm, pipeline) = (Algorithm::Amla, Pipeline::Preload);
    let fault = Kernel::new(
        Machine::ASCEND_910,
        tiling,
        algorithm,
        pipeline,
        paper::shape(4, 4096),
    );
    let message = fault.unwrap_err().to_string();
    assert!(
        message.contains("Q needs 8 buffers at once, there are 4"),
        "{message}"
    );
}

/// A change of an order.
type Break = dyn Fn(&mut Vec<Work>);

/// The fault of AMLA's order over eight blocks after a change.
fn fault(change: impl Fn(&mut Vec<Work>)) -> Fault {
    let kernel = amla(one(256, 4096));
    let mut order: Vec<Work> = kernel.order().collect();
    change(&mut order);
    kernel
        .run_with(order.into_iter(), &mut ())
        .expect_err("this order is broken")
}

fn without(work: Work) -> impl Fn(&mut Vec<Work>) {
    move |order| order.retain(|&other| other != work)
}

fn twice(work: Work) -> impl Fn(&mut Vec<Work>) {
    move |order| {
        let index = order.iter().position(|&other| other == work).unwrap();
        order.insert(index, work);
    }
}

fn swapped(a: Work, b: Work) -> impl Fn(&mut Vec<Work>) {
    move |order| {
        let index = |work| order.iter().position(|&other| other == work).unwrap();
        let (a, b) = (index(a), index(b));
        order.swap(a, b);
    }
}

#[test]
fn broken_schedules_name_the_dependency() {
    use Work::{C1, C2, Last, Rescale, V1, V2};
    let broken: [(&Break, &str); 22] = [
        (
            &without(C1(0)),
            "V1(0) on AIV0 in uses S(0) before it is in S in GM [0], which is empty",
        ),
        (
            &without(C1(7)),
            "waits forever for C1 -> V1, S in GM: signal 8 of it, after 7",
        ),
        (
            &without(V1(1)),
            "C1(3) on FixP overwrites S(1) in S in GM [1] with S(3)",
        ),
        (
            &without(V1(6)),
            "C2(6) on MTE2 uses P(6) before it is in P in GM [0], which holds P(4)",
        ),
        (
            &without(V1(7)),
            "C2(7) on MTE2 waits forever for V1 -> C2, P in GM",
        ),
        (
            &without(Rescale(1)),
            "C2(1) on FixP waits forever for Rescale -> C2, O rescaled",
        ),
        (
            &without(Rescale(7)),
            "C2(7) on FixP waits forever for Rescale -> C2, O rescaled",
        ),
        (
            &without(C2(0)),
            "Rescale(1) on AIV0 out waits forever for C2 -> Rescale, P V added to O: signal 1",
        ),
        (
            &without(C2(7)),
            "Last(0) on AIV0 in waits forever for C2 -> Rescale, P V added to O",
        ),
        (&without(Last(0)), "0 results of 1 row groups"),
        (&twice(Last(0)), "2 results of 1 row groups"),
        (
            &twice(C1(0)),
            "C1(0) on FixP overwrites S(0) in S in GM [0] with S(0)",
        ),
        (
            &twice(V1(1)),
            "V1(1) on AIV0 out overwrites P(1) in P in GM [1] with P(1)",
        ),
        (
            &twice(Rescale(1)),
            "Rescale(1) on AIV0 out uses O with block 0 before it is in O in GM",
        ),
        (
            &twice(C2(7)),
            "C2(7) on FixP uses O rescaled for block 7 before it is in O in GM",
        ),
        (
            &swapped(C1(0), C1(1)),
            "V1(0) on AIV0 in uses S(0) before it is in S in GM [0]",
        ),
        (
            &swapped(V1(2), V1(3)),
            "C1(4) on FixP overwrites S(2) in S in GM [0] with S(4)",
        ),
        (
            &swapped(C2(3), C2(4)),
            "Rescale(4) on AIV0 out waits forever for C2 -> Rescale, P V added to O: signal 4",
        ),
        (
            &swapped(Rescale(2), Rescale(3)),
            "C2(2) on FixP waits forever for Rescale -> C2, O rescaled: signal 2",
        ),
        (
            &|order| order.push(V2(0)),
            "V2(0), which this problem hasn't",
        ),
        (
            &|order| order.push(C1(8)),
            "C1(8), which this problem hasn't",
        ),
        // Every C1 first: S has two slots, and the V1 that would release them come later.
        (
            &|order| order.sort_by_key(|work| !matches!(work, C1(_))),
            "waits forever for ",
        ),
    ];
    for (change, message) in broken {
        let refused = fault(change).to_string();
        assert!(refused.contains(message), "{refused}\nisn't: {message}");
    }
}

#[test]
fn a_missing_wait_is_detected() {
    use Dependency as D;
    let check = |kernel: Kernel, dependency: D, message: &str| {
        let refused = kernel.ignoring(dependency).run().unwrap_err().to_string();
        assert!(
            refused.contains(message),
            "{dependency:?}: {refused}\nisn't: {message}"
        );
    };
    let kernel = amla(one(256, 4096));
    for (dependency, message) in [
        (
            D::QpArrived,
            "uses Q(0) before it is in L1 for Q/P [0], which is empty",
        ),
        (D::QpReleased, "in L1 for Q/P [0] with "),
        (D::KvArrived, "before it is in L1 for K/V"),
        (D::KvReleased, "in L1 for K/V [1] with K(1)"),
        (
            D::L0Arrived,
            "uses Q(0) before it is in L0A [0], which is empty",
        ),
        (D::L0Released, "overwrites Q(0) in L0A [0]"),
        (
            D::L0cArrived,
            "uses S(0) before it is in L0C [0], which is empty",
        ),
        (D::L0cReleased, "in L0C [0]"),
        (
            D::ScoresReady,
            "uses S(0) before it is in S in GM [0], which is empty",
        ),
        (
            D::OutputAccumulated,
            "Rescale(1) on AIV0 out uses O with block 0 before it is in O in GM",
        ),
        (D::OutputRescaled, "uses O rescaled for block"),
        (
            D::UbInArrived,
            "uses S(0) before it is in UB of AIV0, in [0], which is empty",
        ),
        (D::UbInReleased, "overwrites S(0) in UB of AIV0, in [0]"),
        (
            D::UbOutArrived,
            "uses P(0) before it is in UB of AIV0, out [0], which is empty",
        ),
        (D::UbOutReleased, "in UB of AIV0, out"),
    ] {
        check(kernel, dependency, message);
    }
    // With Vector cores this slow, the Cube overtakes them.
    let slow = Machine {
        lanes: 4,
        ..Machine::ASCEND_910
    };
    let kernel = amla_on(slow, one(256, 4096));
    check(kernel, D::ScoresConsumed, "overwrites S(");
    let serial = crate::kernel((Algorithm::Amla, Pipeline::Serial), one(256, 4096));
    check(
        serial,
        D::ProbabilitiesReady,
        "uses P(0) before it is in P in GM [0], which is empty",
    );
    let base = crate::kernel((Algorithm::Base, Pipeline::Preload), one(256, 4096));
    check(base, D::ProductsReady, "before it is in T in GM");
    check(base, D::OutputUpdated, "before it is in O in GM");
}

#[test]
fn nothing_to_do_is_refused() {
    for change in [
        |s: &mut ProblemShape| s.b = 0,
        |s: &mut ProblemShape| s.s_q = 0,
        |s: &mut ProblemShape| s.s_k = 0,
        |s: &mut ProblemShape| s.h_q = 0,
        |s: &mut ProblemShape| s.h_kv = 0,
        |s: &mut ProblemShape| s.d_qk = 0,
        |s: &mut ProblemShape| s.d_v = 0,
    ] {
        let mut shape = paper::shape(1, 1024);
        change(&mut shape);
        let (algorithm, pipeline) = (Algorithm::Amla, Pipeline::Preload);
        let fault = Kernel::new(
            Machine::ASCEND_910,
            Tiling::PAPER,
            algorithm,
            pipeline,
            shape,
        );
        assert!(
            matches!(fault, Err(Fault::Size { value: 0, .. })),
            "{shape:?}"
        );
    }
}

#[test]
fn invalid_machines_are_refused() {
    type Break = fn(&mut Machine);
    let broken: [(Break, &str); 9] = [
        (|m| m.cube_cores = 0, "cube cores is 0"),
        (|m| m.lanes = 0, "lanes is 0"),
        (|m| m.peak = 0.0, "peak isn't"),
        (|m| m.hbm = f64::NAN, "HBM's bandwidth isn't"),
        (|m| m.l2_write = f64::INFINITY, "L2's write rate isn't"),
        (|m| m.ub_port = -1.0, "UB's port isn't"),
        (|m| m.hbm_credit = -1.0, "HBM's credit isn't"),
        (|m| m.calibration.launch = -1.0, "the launch isn't"),
        (
            |m| m.calibration.clock_share = 0.0,
            "the clock's share isn't",
        ),
    ];
    for (change, message) in broken {
        let mut machine = Machine::ASCEND_910;
        change(&mut machine);
        let (algorithm, pipeline) = (Algorithm::Amla, Pipeline::Preload);
        let fault = Kernel::new(
            machine,
            Tiling::PAPER,
            algorithm,
            pipeline,
            paper::shape(1, 1024),
        );
        let refused = fault.unwrap_err().to_string();
        assert!(refused.contains(message), "{refused}\nisn't: {message}");
    }
}

#[test]
fn no_size_makes_it_panic() {
    let (algorithm, pipeline) = (Algorithm::Amla, Pipeline::Preload);
    let machine = Machine::ASCEND_910;
    let refused = |tiling, shape| {
        let fault = Kernel::new(machine, tiling, algorithm, pipeline, shape);
        assert!(fault.is_err(), "{tiling:?} {shape:?}");
    };
    let paper = Tiling::PAPER;
    let most = usize::MAX / 16 * 16;
    for change in [
        |t: &mut Tiling, most| t.l1_buffer = most,
        |t: &mut Tiling, most| t.qp_buffers = most,
        |t: &mut Tiling, most| (t.c1.single_k, t.c1.single_m) = (most, most),
        |t: &mut Tiling, most| (t.block, t.c2.single_k) = (most, most),
    ] {
        let mut tiling = paper;
        change(&mut tiling, most);
        refused(tiling, paper::shape(2, 4096));
    }
    // More KV heads than query heads.
    refused(
        paper,
        ProblemShape {
            h_kv: 256,
            ..paper::shape(1, 4096)
        },
    );
}

#[test]
fn pipes_and_dependencies_have_their_indices() {
    for (index, pipe) in Pipe::ALL.into_iter().enumerate() {
        assert_eq!(pipe.index(), index);
        assert!(pipe.core().is_none_or(|core| core < VECTOR_CORES));
    }
    for (index, dependency) in Dependency::ALL.into_iter().enumerate() {
        assert_eq!(dependency as usize, index);
        assert!(!dependency.to_string().is_empty());
    }
}
