//! The event loop.
//!
//! Each core issues its instructions in program order to its pipes' queues; each pipe runs them one at a
//! time, in order, as soon as their flags allow. Instructions of MTE1, MMAD and the Vector units take
//! their cycles. Transfers to and from GM share what L2 gives the core, evenly but each within its own
//! port, and what comes from HBM is held to this core's share of that; rates change whenever a transfer
//! starts or ends, so time advances from one such moment to the next.
//!
//! **HBM among 48 cores.** A core that computes C2 leaves HBM to the others. The cores start together but
//! don't stay in step, so what one leaves another finds: a core may draw ahead, at the speed of its port,
//! what it didn't use of its share, up to [`super::Machine::hbm_ahead`]. In the long run it gets its share
//! and no more.

use super::fault::Fault;
use super::kernel::Kernel;
use super::machine::VECTOR_CORES;
use super::op::{Cost, Dependency, Flag, Op, Pipe, Wait, Work};
use super::program::{CubeProgram, VectorProgram};
use super::queue::Queue;
use super::report::Report;
use super::scoreboard::Scoreboard;
use super::tiling::BF16;

/// Instructions that a pipe's queue holds.
const QUEUE: usize = 32;
/// How many pipes there are.
const PIPES: usize = Pipe::ALL.len();
/// Less than a byte, less than a millionth of a cycle: nothing.
const NOTHING: f64 = 1e-6;

/// Who watches a kernel run, or executes it on data.
pub trait Observer {
    /// `op` is done; it ran from `start` to `end`, in seconds from the kernel's first instruction.
    ///
    /// Instructions come in the order in which they end. What an instruction reads is there and stays
    /// until it ends.
    fn done(&mut self, op: &Op, start: f64, end: f64);
}

/// Nobody watches.
impl Observer for () {
    fn done(&mut self, _: &Op, _: f64, _: f64) {}
}

/// An instruction on its way.
struct Running {
    op: Op,
    start: f64,
    /// Cycles or bytes.
    left: f64,
    /// Of them in a second, at present.
    rate: f64,
}

/// One pipe.
struct Lane {
    queue: Queue<Op, QUEUE>,
    running: Option<Running>,
}

pub(super) fn run<I, O>(kernel: &Kernel, order: I, observer: &mut O) -> Result<Report, Fault>
where
    I: Iterator<Item = Work> + Clone,
    O: Observer,
{
    let mut engine = Engine {
        kernel,
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
        report: Report::new(kernel),
    };
    engine.run(observer)?;
    Ok(engine.report)
}

struct Engine<'a, I> {
    kernel: &'a Kernel,
    cube: CubeProgram<I>,
    vector: [VectorProgram<I>; VECTOR_CORES],
    lanes: [Lane; PIPES],
    flags: [[usize; VECTOR_CORES]; Dependency::ALL.len()],
    scoreboard: Scoreboard,
    now: f64,
    /// Bytes of its share of HBM that the core hasn't drawn.
    hbm_credit: f64,
    report: Report,
}

impl<I: Iterator<Item = Work>> Engine<'_, I> {
    fn run(&mut self, observer: &mut impl Observer) -> Result<(), Fault> {
        loop {
            // What one starts may let another be issued.
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
            self.finish(observer);
        }
        self.close()
    }

    // ---------------------------------------------------------------------------------------------
    // Issue
    // ---------------------------------------------------------------------------------------------

    /// Fills the queues as far as each core's program order lets it.
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

    /// Starts what can start; whether anything did.
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
                left: match op.cost {
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
        // Bytes per second that each transfer could take alone.
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
            let mut left = l2 * clock;
            let mut sharers = self.in_direction(direction).count();
            let mut served = [false; PIPES];
            // Whoever needs less than an even share gets it; the rest share what is left.
            while sharers > 0 {
                let next = self
                    .in_direction(direction)
                    .filter(|(lane, _)| !served[*lane])
                    .map(|(lane, running)| (lane, alone(&running.op)))
                    .min_by(|a, b| a.1.total_cmp(&b.1));
                let Some((lane, rate)) = next else { break };
                let rate = rate.min(left / sharers as f64);
                if let Some(running) = &mut self.lanes[lane].running {
                    running.rate = rate;
                }
                served[lane] = true;
                left -= rate;
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

    /// To the next moment at which something ends or a rate changes.
    fn advance(&mut self) {
        let running = || self.lanes.iter().filter_map(|lane| lane.running.as_ref());
        let ends = running().map(|r| r.left.max(0.0) / r.rate);
        let drawn: f64 = running()
            .filter(|r| matches!(r.op.cost, Cost::Bytes { hbm: true, .. }))
            .map(|r| r.rate)
            .sum();
        let gain = self.kernel.machine.hbm_per_core() - drawn;
        // When the credit runs out.
        let exhausted = if gain < 0.0 && self.hbm_credit >= 1.0 {
            self.hbm_credit / -gain
        } else {
            f64::INFINITY
        };
        let step = ends.fold(exhausted, f64::min);
        let load = &self.kernel.load;
        let block = (load.block() * load.d_qk * BF16) as f64;
        let most = self.kernel.machine.hbm_ahead * block;
        self.hbm_credit = (self.hbm_credit + gain * step).clamp(0.0, most);
        self.now += step;
        for running in self
            .lanes
            .iter_mut()
            .filter_map(|lane| lane.running.as_mut())
        {
            running.left -= running.rate * step;
        }
    }

    fn finish(&mut self, observer: &mut impl Observer) {
        for lane in &mut self.lanes {
            if lane
                .running
                .as_ref()
                .is_none_or(|running| running.left > NOTHING)
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

    /// Who waits although nothing runs any more: the one whose signal has nobody left to send it, or one
    /// of those that wait for each other: across cores if any does, and the earliest.
    fn deadlock(&self) -> Option<Fault> {
        let mut lane = (0..PIPES).find(|&lane| self.waiting(lane).is_some())?;
        // After as many steps as there are lanes, the walk has ended or goes round in a circle.
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

    /// What a lane waits with, and for.
    fn waiting(&self, lane: usize) -> Option<(&Op, Wait)> {
        let op = self.lanes[lane].queue.front()?;
        Some((op, waits_for(op, &self.flags, self.kernel.ignored)?))
    }

    /// The lane that keeps a waiting lane waiting: the one that should signal it or, where that one's
    /// instructions aren't issued yet, the full one in their way. `None` if no signal is to come.
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

    /// Nothing runs any more: is everything done?
    fn close(&mut self) -> Result<(), Fault> {
        if let Some(fault) = self.deadlock() {
            return Err(fault);
        }
        self.scoreboard.close()?;
        let cores = self.kernel.vector_cores();
        let results = self.flags[Dependency::ResultsReady.index()];
        let finished = results[..cores].iter().copied().min().unwrap_or(0);
        let groups = self.kernel.load.groups;
        if finished != groups {
            return Err(Fault::NotNormalised { groups, finished });
        }
        self.report.close(self.now);
        Ok(())
    }
}

/// Which way a transfer goes, seen from the core.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    /// `None` if it isn't a transfer to or from GM.
    fn of(op: &Op) -> Option<Self> {
        match (op.cost, op.pipe) {
            (Cost::Cycles(_), _) => None,
            (Cost::Bytes { .. }, Pipe::FixP | Pipe::VectorOut(_)) => Some(Self::Write),
            (Cost::Bytes { .. }, _) => Some(Self::Read),
        }
    }
}

type Flags = [[usize; VECTOR_CORES]; Dependency::ALL.len()];

fn signals(flags: &Flags, flag: Flag) -> usize {
    flags[flag.dependency.index()][flag.core]
}

/// The first wait that isn't met.
fn waits_for(op: &Op, flags: &Flags, ignored: Option<Dependency>) -> Option<Wait> {
    op.waits.into_iter().flatten().find(|wait| {
        Some(wait.flag.dependency) != ignored && signals(flags, wait.flag) < wait.signals
    })
}
