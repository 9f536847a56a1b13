//! The paper's statements about the machine and the algorithms.

use amla::schedule::{Stage, preload};
use amla_ascend::{
    Algorithm, Limit, Load, Machine, Observer, Op, Pipe, Pipeline, Report, Tiling, Work, paper,
};

use crate::{KERNELS, amla, amla_on, kernel, one};

#[test]
fn amla_is_cube_bound_with_two_positions() {
    let report = amla(paper::shape(2, 16384)).run().unwrap();
    let (limit, share) = report.limit();
    assert_eq!(limit, Limit::Mmad);
    assert!(share > 0.97, "{share}");
    // With one it isn't: M = 128 is below the paper's own condition on M.
    let report = amla(paper::shape(1, 16384)).run().unwrap();
    assert_eq!(report.limit().0, Limit::Hbm);
    let condition = Machine::ASCEND_910.peak / Machine::ASCEND_910.hbm;
    assert!((128.0..256.0).contains(&condition), "{condition}");
}

/// Seconds of V2 on one Vector core: into UB, arithmetic, out.
#[derive(Default)]
struct V2([f64; 3]);

impl Observer for V2 {
    fn done(&mut self, op: &Op, start: f64, end: f64) {
        if let (Work::V2(_), Pipe::VectorIn(0) | Pipe::Vector(0) | Pipe::VectorOut(0)) =
            (op.work, op.pipe)
        {
            self.0[op.pipe.index() - Pipe::VectorIn(0).index()] += end - start;
        }
    }
}

#[test]
fn v2_is_transfers_and_amla_saves_them() {
    for s_q in [1, 2] {
        let shape = paper::shape(s_q, 16384);
        let base = kernel((Algorithm::Base, Pipeline::Serial), shape);
        let mut v2 = V2::default();
        base.run_with(base.order(), &mut v2).unwrap();
        let [load, compute, store] = v2.0;
        assert!(load > 4.0 * compute && store > 2.0 * compute, "{:?}", v2.0);
    }
    // Each step gains, and AMLA with the preload pipeline is the fastest.
    let fu = |how| {
        kernel(how, paper::shape(2, 16384))
            .run()
            .unwrap()
            .utilization()
    };
    let [base_serial, base, amla_serial, amla] = KERNELS.map(fu);
    assert!(base_serial + 0.05 < amla_serial && amla_serial + 0.1 < base && base + 0.03 < amla);
}

#[test]
fn the_order_is_the_schedules() {
    let kernel = amla(one(256, 4096));
    let order = kernel.order().filter(|w| !matches!(w, Work::Rescale(_)));
    assert!(order.eq(preload(8).map(|step| Work::of(step.stage, 0))));
    // Several groups are one schedule, with a Last for each.
    let kernel = amla(paper::shape(2, 1024));
    let lasts: Vec<_> = kernel
        .order()
        .filter(|w| matches!(w, Work::Last(_)))
        .collect();
    assert_eq!(lasts, [Work::Last(0), Work::Last(1)]);
    let cube = kernel.order().filter(|work| work.is_cube());
    let schedule = preload(4).map(|step| step.stage);
    let schedule = schedule.filter(|stage| matches!(stage, Stage::C1(_) | Stage::C2(_)));
    assert!(cube.eq(schedule.map(|stage| Work::of(stage, 0))));
}

#[test]
fn a_preload_count_of_two_suffices_and_one_does_not() {
    // The time beyond the Cube's own, for a number of lanes of the Vector cores.
    let beyond = |lanes| {
        let machine = Machine {
            lanes,
            ..Machine::ASCEND_910
        };
        let kernel = amla_on(machine, one(256, 65536));
        let two = kernel.run().unwrap();
        let one = kernel.run_with(kernel.load().order_by(1), &mut ()).unwrap();
        let demand = |of| two.demands().iter().find(|d| d.0 == of).unwrap().1;
        let (cube, vector) = (demand(Limit::Mmad), demand(Limit::Vector));
        let excess = |report: &Report| report.kernel_seconds / cube - 1.0;
        (vector / cube, excess(&two), excess(&one))
    };
    // The 910's Vector cores are far from busy: a preload count of 1 would suffice.
    let (vector, two, one) = beyond(64);
    assert!(
        vector < 0.3 && two < 0.01 && one < 0.01,
        "{vector} {two} {one}"
    );
    // V1 with either Cube stage takes longer than both Cube stages (eqn:extreme-case). The Cube waits with a
    // preload count of 1, and not with 2.
    let (vector, two, one) = beyond(20);
    assert!((0.85..1.0).contains(&vector), "{vector}");
    assert!(two < 0.011 && one > two + 0.005, "{two} {one}");
    // With a longer V1, the Vector cores limit, as they also rescale.
    let (vector, two, _) = beyond(18);
    assert!(vector < 1.0 && two > 0.05, "{vector} {two}");
}

#[test]
fn output_stays_in_ub_for_one_position_only() {
    let beside = |rows| {
        let machine = Machine::ASCEND_910;
        let load = Load::new(&machine, one(rows, 4096), 256, 512, Algorithm::Base);
        Tiling::rows_beside_output(&machine, &load)
    };
    assert_eq!(beside(128), 7);
    assert_eq!(beside(256), 0);
    let crossover = (1..=256).find(|&rows| beside(rows) == 0);
    assert!(matches!(crossover, Some(177..=192)), "{crossover:?}");
}
