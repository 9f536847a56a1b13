//! The event loop.
//!
//! Each core issues its instructions in program order to the queues of its pipes. Each pipe runs its
//! instructions one at a time and in order. An instruction starts when its flags allow it.
//!
//! Instructions of MTE1, MMAD and the Vector units take a number of cycles. Transfers to and from GM share
//! the core's L2 bandwidth evenly, each within its own port. A transfer from HBM is also limited to the
//! core's share of HBM. Rates change when a transfer starts or ends, so time advances from one such moment
//! to the next.
//!
//! **HBM among 48 cores.** A core that computes C2 doesn't use HBM. The cores start at the same time but
//! get out of step, so that others use its bandwidth meanwhile. The model gives a core credit for its unused
//! share, up to [`Machine::hbm_credit`](crate::Machine::hbm_credit). While it has credit, a transfer runs
//! at the speed of its port. In the long run a core gets its share and no more.

use crate::arch::{BF16, VECTOR_CORES};
use crate::fault::Fault;
use crate::kernel::Kernel;
use crate::op::{Cost, Dependency, Flag, Op, Pipe, Wait, Work};
use crate::program::{CubeProgram, VectorProgram};
use crate::queue::Queue;
use crate::report::Report;
use crate::scoreboard::Scoreboard;

/// Capacity of a pipe's queue, in instructions.
const QUEUE: usize = 32;
/// Number of pipes.
const PIPES: usize = Pipe::ALL.len();
/// An instruction ends when it has at most this many cycles or bytes to go: a bound on rounding errors.
const ROUNDING: f64 = 1e-6;

/// An observer of a run, or an executor of its instructions on data.
pub trait Observer {
    /// `op` ran from `start` to `end`, in seconds from the kernel's first instruction.
    ///
    /// Instructions come in the order in which they end. The operands of an instruction are present from
    /// its start to its end.
    fn done(&mut self, op: &Op, start: f64, end: f64);
}

/// Ignores all instructions.
impl Observer for () {
    fn done(&mut self, _: &Op, _: f64, _: f64) {}
}

/// An instruction in execution.
struct Running {
    op: Op,
    start: f64,
    /// Remaining cycles or bytes.
    remaining: f64,
    /// Cycles or bytes per second, at present.
    rate: f64,
}

/// One pipe.
struct Lane {
    queue: Queue<Op, QUEUE>,
    running: Option<Running>,
}

impl Kernel {
    /// Runs the stages of [`Kernel::order`].
    ///
    /// It takes about 200 KiB of stack.
    ///
    /// # Errors
    /// None for this order, unless a dependency is [ignored](Kernel::ignoring): then the defect that the
    /// dependency prevents.
    pub fn run(&self) -> Result<Report, Fault> {
        self.run_with(self.order(), &mut ())
    }

    /// Runs stages in any order, and shows `observer` every instruction. The Cube core and the Vector cores
    /// each take their stages from `order`, in this order.
    ///
    /// # Errors
    /// The defect of the order: an operand that isn't present, a result that is overwritten, a dependency
    /// that is never met, a stage that doesn't exist or is missing.
    pub fn run_with(
        &self,
        order: impl Iterator<Item = Work> + Clone,
        observer: &mut impl Observer,
    ) -> Result<Report, Fault> {
        let mut engine = Engine {
            kernel: self,
            cube: CubeProgram::new(order.clone()),
            vector: core::array::from_fn(|core| VectorProgram::new(order.clone(), core)),
            lanes: core::array::from_fn(|_| Lane {
                queue: Queue::new(),
                running: None,
            }),
            flags: [[0; VECTOR_CORES]; Dependency::ALL.len()],
            scoreboard: Scoreboard::new(),
            now: 0.0,
            hbm_credit: 0.0,
            report: Report::new(self),
        };
        engine.run(observer)?;
        Ok(engine.report)
    }
}

type Flags = [[usize; VECTOR_CORES]; Dependency::ALL.len()];

struct Engine<'a, I> {
    kernel: &'a Kernel,
    cube: CubeProgram<I>,
    vector: [VectorProgram<I>; VECTOR_CORES],
    lanes: [Lane; PIPES],
    flags: Flags,
    scoreboard: Scoreboard,
    now: f64,
    /// Unused bytes of the core's share of HBM.
    hbm_credit: f64,
    report: Report,
}

impl<I: Iterator<Item = Work>> Engine<'_, I> {
    fn run(&mut self, observer: &mut impl Observer) -> Result<(), Fault> {
        loop {
            // A start frees an entry of a queue, so that another instruction can be issued.
            loop {
                self.issue()?;
                if !self.start()? {
                    break;
                }
            }
            if self.lanes.iter().all(|lane| lane.running.is_none()) {
                break;
            }
            self.set_rates();
            self.advance();
            self.retire(observer);
        }
        self.check_end()
    }

    // ---------------------------------------------------------------------------------------------
    // Issue
    // ---------------------------------------------------------------------------------------------

    /// Fills the queues. A core stops at the first instruction whose queue is full.
    fn issue(&mut self) -> Result<(), Fault> {
        while let Some(op) = self.cube.peek(self.kernel)? {
            let queue = &mut self.lanes[op.pipe.index()].queue;
            if queue.is_full() {
                break;
            }
            queue.push(*op);
            self.cube.pop();
        }
        for program in &mut self.vector {
            while let Some(op) = program.peek(self.kernel)? {
                let queue = &mut self.lanes[op.pipe.index()].queue;
                if queue.is_full() {
                    break;
                }
                queue.push(*op);
                program.pop();
            }
        }
        Ok(())
    }

    /// Starts every instruction that can start; true if there was one.
    fn start(&mut self) -> Result<bool, Fault> {
        let mut any = false;
        for lane in &mut self.lanes {
            if lane.running.is_some() {
                continue;
            }
            let ignored = self.kernel.ignored;
            let Some(op) = lane.queue.front() else {
                continue;
            };
            if waits_for(op, &self.flags, ignored).is_some() {
                continue;
            }
            let Some(op) = lane.queue.pop() else {
                continue;
            };
            self.scoreboard.begin(&op)?;
            lane.running = Some(Running {
                remaining: match op.cost {
                    Cost::Cycles(cycles) => cycles,
                    Cost::Bytes { bytes, .. } => bytes,
                },
                op,
                start: self.now,
                rate: 0.0,
            });
            any = true;
        }
        Ok(any)
    }

    // ---------------------------------------------------------------------------------------------
    // Time
    // ---------------------------------------------------------------------------------------------

    fn set_rates(&mut self) {
        let machine = &self.kernel.machine;
        let clock = machine.clock();
        let starved = self.hbm_credit < 1.0;
        // The rate of a transfer without others, in bytes per second.
        let alone = |op: &Op| {
            let port = match op.pipe {
                Pipe::Mte2 => machine.l2_read,
                Pipe::FixP => machine.l2_write,
                _ => machine.ub_port,
            } * clock;
            match op.cost {
                Cost::Bytes { hbm: true, .. } if starved => port.min(machine.hbm_per_core()),
                _ => port,
            }
        };
        for (direction, l2) in [
            (Direction::Read, machine.l2_read),
            (Direction::Write, machine.l2_write),
        ] {
            let mut bandwidth = l2 * clock;
            let mut sharers = self.in_direction(direction).count();
            let mut served = [false; PIPES];
            // A transfer that needs less than an even share gets its rate; the others share the rest.
            while sharers > 0 {
                let next = self
                    .in_direction(direction)
                    .filter(|(lane, _)| !served[*lane])
                    .map(|(lane, running)| (lane, alone(&running.op)))
                    .min_by(|a, b| a.1.total_cmp(&b.1));
                let Some((lane, rate)) = next else { break };
                let rate = rate.min(bandwidth / sharers as f64);
                if let Some(running) = &mut self.lanes[lane].running {
                    running.rate = rate;
                }
                served[lane] = true;
                bandwidth -= rate;
                sharers -= 1;
            }
        }
        for running in self
            .lanes
            .iter_mut()
            .filter_map(|lane| lane.running.as_mut())
        {
            if let Cost::Cycles(_) = running.op.cost {
                running.rate = clock;
            }
        }
    }

    /// The transfers of one direction, with their lanes.
    fn in_direction(&self, direction: Direction) -> impl Iterator<Item = (usize, &Running)> {
        let lanes = self.lanes.iter().enumerate();
        lanes.filter_map(move |(lane, state)| {
            let running = state.running.as_ref()?;
            (Direction::of(&running.op) == Some(direction)).then_some((lane, running))
        })
    }

    /// Advances time to the next end of an instruction, or change of a rate.
    fn advance(&mut self) {
        let running = || self.lanes.iter().filter_map(|lane| lane.running.as_ref());
        let ends = running().map(|r| r.remaining.max(0.0) / r.rate);
        let drawn: f64 = running()
            .filter(|r| matches!(r.op.cost, Cost::Bytes { hbm: true, .. }))
            .map(|r| r.rate)
            .sum();
        let gain = self.kernel.machine.hbm_per_core() - drawn;
        // Time until the credit is used up.
        let exhausted = if gain < 0.0 && self.hbm_credit >= 1.0 {
            self.hbm_credit / -gain
        } else {
            f64::INFINITY
        };
        let step = ends.fold(exhausted, f64::min);
        let load = &self.kernel.load;
        let block = (load.block() * load.d_qk * BF16) as f64;
        let most = self.kernel.machine.hbm_credit * block;
        self.hbm_credit = (self.hbm_credit + gain * step).clamp(0.0, most);
        self.now += step;
        for running in self
            .lanes
            .iter_mut()
            .filter_map(|lane| lane.running.as_mut())
        {
            running.remaining -= running.rate * step;
        }
    }

    /// Ends the instructions that are complete.
    fn retire(&mut self, observer: &mut impl Observer) {
        for lane in &mut self.lanes {
            if lane
                .running
                .as_ref()
                .is_none_or(|running| running.remaining > ROUNDING)
            {
                continue;
            }
            let Some(Running { op, start, .. }) = lane.running.take() else {
                continue;
            };
            self.scoreboard.end(&op);
            for Flag { dependency, core } in op.signals.into_iter().flatten() {
                self.flags[dependency.index()][core] += 1;
            }
            self.report.count(&op, self.now - start);
            observer.done(&op, start, self.now);
        }
    }

    // ---------------------------------------------------------------------------------------------
    // The end
    // ---------------------------------------------------------------------------------------------

    /// The instruction to report if instructions wait when none runs. It is one whose signal no instruction
    /// will send, or one of a circle of waits: of the earliest stage among the waits between cores, if any.
    fn deadlock(&self) -> Option<Fault> {
        let mut lane = (0..PIPES).find(|&lane| self.waiting(lane).is_some())?;
        // After `PIPES` steps the walk has ended, or is in a circle.
        for _ in 0..PIPES {
            match self.blocker(lane) {
                Some(next) => lane = next,
                None => return self.stuck(lane),
            }
        }
        let circle = core::iter::successors(Some(lane), |&lane| self.blocker(lane)).take(PIPES);
        let earliest = circle
            .filter_map(|lane| Some((lane, self.waiting(lane)?)))
            .filter(|(_, (_, wait))| wait.flag.dependency.is_between_cores())
            .min_by_key(|(_, (op, _))| op.work.number());
        self.stuck(earliest.map_or(lane, |(lane, _)| lane))
    }

    /// The instruction with which a lane waits, and its first unmet condition.
    fn waiting(&self, lane: usize) -> Option<(&Op, Wait)> {
        let op = self.lanes[lane].queue.front()?;
        Some((op, waits_for(op, &self.flags, self.kernel.ignored)?))
    }

    /// The lane that blocks a waiting lane: its sender or, if the sender's instructions aren't all issued,
    /// the full lane that prevents it. `None` if no instruction will send the signal.
    fn blocker(&self, lane: usize) -> Option<usize> {
        let (_, Wait { flag, .. }) = self.waiting(lane)?;
        let sender = flag.dependency.sender(flag.core);
        let mut queued = self.lanes[sender.index()].queue.iter();
        let to_come = queued.any(|op| op.signals.contains(&Some(flag)));
        if !to_come && self.is_issued(sender) {
            return None;
        }
        if self.waiting(sender.index()).is_some() {
            return Some(sender.index());
        }
        let of_same_core = |&other: &usize| Pipe::ALL[other].core() == sender.core();
        (0..PIPES)
            .filter(of_same_core)
            .find(|&other| self.lanes[other].queue.is_full())
    }

    /// Whether all instructions of a pipe's core are in its queues.
    fn is_issued(&self, pipe: Pipe) -> bool {
        match pipe.core() {
            None => self.cube.is_done(),
            Some(core) => self.vector[core].is_done(),
        }
    }

    fn stuck(&self, lane: usize) -> Option<Fault> {
        let (op, wait) = self.waiting(lane)?;
        Some(Fault::Deadlock {
            pipe: op.pipe,
            work: op.work,
            dependency: wait.flag.dependency,
            needed: wait.signals,
            signals: signals(&self.flags, wait.flag),
        })
    }

    /// After the last instruction: is the kernel complete?
    fn check_end(&mut self) -> Result<(), Fault> {
        if let Some(fault) = self.deadlock() {
            return Err(fault);
        }
        self.scoreboard.check_drained()?;
        let cores = self.kernel.vector_cores();
        let results = self.flags[Dependency::ResultsReady.index()];
        let normalised = results[..cores].iter().copied().min().unwrap_or(0);
        let groups = self.kernel.load.groups;
        if normalised != groups {
            return Err(Fault::NotNormalised { groups, normalised });
        }
        self.report.kernel_seconds = self.now;
        Ok(())
    }
}

/// The direction of a transfer, seen from the core.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    /// `None` if the instruction isn't a transfer to or from GM.
    fn of(op: &Op) -> Option<Self> {
        match (op.cost, op.pipe) {
            (Cost::Cycles(_), _) => None,
            (Cost::Bytes { .. }, Pipe::FixP | Pipe::VectorOut(_)) => Some(Self::Write),
            (Cost::Bytes { .. }, _) => Some(Self::Read),
        }
    }
}

/// Signals of `flag` so far.
fn signals(flags: &Flags, flag: Flag) -> usize {
    flags[flag.dependency.index()][flag.core]
}

/// The first unmet condition of an instruction.
fn waits_for(op: &Op, flags: &Flags, ignored: Option<Dependency>) -> Option<Wait> {
    op.waits.into_iter().flatten().find(|wait| {
        Some(wait.flag.dependency) != ignored && signals(flags, wait.flag) < wait.signals
    })
}
