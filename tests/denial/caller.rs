//! Calls of everything that takes a problem, good problems to be changed, and errors.

use std::iter;
use std::ops::Range;

use amla::{
    Argument, Elements, Error, Extra, IndexList, Indices, Options, Output, Plan, Problem,
    ProblemShape, Sparse, Workspace, combine, decode, run_tasks,
};

use crate::common::workspace;
use crate::host::{Host, Keys, Layout, PATTERN, PLAIN, paged, untouched};

pub const MAX: usize = i32::MAX as usize;
/// Query heads, KV heads, widths, lengths of the two requests.
pub const HEADS: [usize; 2] = [6, 2];
pub const DIMS: (usize, usize) = (192, 128);
pub const LENS: [usize; 2] = [40, 7];
pub const PAGE: usize = 16;

/// Calls of everything that takes a problem, with outputs that must stay as they are.
pub struct Caller {
    pub workspace: Box<Workspace>,
    pub o: Vec<f32>,
    pub halves: Vec<u16>,
    pub lse: Vec<f32>,
    pub partials: Vec<f32>,
    pub denied: usize,
}

/// Of 16 bits, what no call computes.
const HALF: u16 = 0xffd1;

impl Caller {
    pub fn new() -> Self {
        let elements = 2 * 2 * HEADS[0] * DIMS.1;
        Self {
            workspace: workspace(),
            o: vec![PATTERN; elements],
            halves: vec![HALF; elements],
            lse: vec![PATTERN; elements],
            partials: vec![PATTERN; 16 * 64 * (DIMS.1 + 3)],
            denied: 0,
        }
    }

    /// `call` refuses an output of each format that `arrange` has changed.
    #[track_caller]
    pub fn output(
        &mut self,
        shape: ProblemShape,
        want: Error,
        arrange: impl Fn(&mut Output),
        mut call: impl FnMut(Output, &mut Workspace, &mut [f32]) -> Result<(), Error>,
    ) {
        for format in 0..3 {
            let o = match format {
                0 => Elements::F32(&mut self.o),
                1 => Elements::Bf16(bytemuck::cast_slice_mut(&mut self.halves)),
                _ => Elements::F16(bytemuck::cast_slice_mut(&mut self.halves)),
            };
            let mut output = Output::dense(shape, o, &mut self.lse);
            arrange(&mut output);
            let result = call(output, &mut self.workspace, &mut self.partials);
            self.same(result, want);
        }
        assert!(untouched(&self.o) && untouched(&self.lse) && untouched(&self.partials));
        assert!(self.halves.iter().all(|&x| x == HALF));
    }

    /// As text, for an error may hold a NaN.
    #[track_caller]
    pub fn same(&mut self, got: Result<(), Error>, want: Error) {
        assert_eq!(format!("{got:?}"), format!("{:?}", Err::<(), _>(want)));
        self.denied += 1;
    }

    /// Everything refuses `bad`, which was made of `good`.
    #[track_caller]
    pub fn problem(&mut self, bad: &Problem, good: &Problem, want: Error) {
        let last = Plan::new(good).unwrap().tasks() - 1;
        self.tasks(bad, good, want, &[0, last, usize::MAX]);
    }

    /// The same, but of single tasks only these do.
    #[track_caller]
    pub fn tasks(&mut self, bad: &Problem, good: &Problem, want: Error, tasks: &[usize]) {
        let (options, plan, shape) = (Options::default(), &Plan::new(good).unwrap(), good.shape);
        self.same(Plan::new(bad).map(drop), want);
        self.output(
            shape,
            want,
            |_| (),
            |output, workspace, _| decode(bad, &options, workspace, output),
        );
        let room = plan.partials_len();
        self.combine(bad, shape, plan, 0..plan.merges(), room, want);
        let single = tasks.iter().map(|&task| task..task.saturating_add(1));
        for tasks in single.chain(iter::once(0..plan.tasks())) {
            self.run(bad, shape, plan, tasks, room, want);
        }
    }

    /// These tasks are refused, with outputs of a shape and `room` numbers of partial results.
    #[track_caller]
    pub fn run(
        &mut self,
        problem: &Problem,
        shape: ProblemShape,
        plan: &Plan,
        tasks: Range<usize>,
        room: usize,
        want: Error,
    ) {
        let options = &Options::default();
        self.output(
            shape,
            want,
            |_| (),
            |output, workspace, partials| {
                let (tasks, partials, output) =
                    (tasks.clone(), &mut partials[..room], &output.into());
                run_tasks(problem, options, plan, tasks, workspace, partials, output)
            },
        );
    }

    /// The same of rows to be combined.
    #[track_caller]
    pub fn combine(
        &mut self,
        problem: &Problem,
        shape: ProblemShape,
        plan: &Plan,
        rows: Range<usize>,
        room: usize,
        want: Error,
    ) {
        self.output(
            shape,
            want,
            |_| (),
            |output, _, partials| {
                let (rows, partials) = (rows.clone(), &partials[..room]);
                combine(problem, plan, rows, partials, &output.into())
            },
        );
    }
}

/// Split tensors, separate values, lengths and a sink, with contiguous, ragged and paged keys.
pub fn with_apart(call: impl Fn(&Problem)) {
    let requests = LENS.map(|len| (2, len));
    let host = Host::new(HEADS, DIMS, &requests).separate_v();
    let host = host.sink(|h| h as f32 - 2.0);
    for keys in [Keys::Contiguous, Keys::Ragged, Keys::Paged(PAGE)] {
        let layout = Layout {
            keys,
            ragged_q: matches!(keys, Keys::Ragged),
            split_q: true,
            split_k: true,
            ..PLAIN
        };
        let laid = host.laid(layout);
        let problem = laid.problem();
        Plan::new(&problem).unwrap();
        call(&problem);
    }
}

/// Keys chosen in a paged cache and a second one.
pub fn with_sparse(call: impl Fn(&Problem)) {
    let host = Host::new(HEADS, DIMS, &LENS.map(|len| (2, len)));
    let laid = host.laid(paged(PAGE));
    let problem = laid.problem();
    let indices = Indices {
        indices: IndexList::I32(&[0, 5, -1, 17, 3, 3, 90, 2, 1, 0, 4, 8]),
        strides: [6, 3, 0],
        topk: 3,
        topk_length: Some(&[3, 2]),
        topk_length_strides: [1, 0],
    };
    let sparse = Sparse {
        indices,
        extra: Some(Extra {
            kv: problem.kv,
            pages: problem.pages.unwrap().pages,
            page_size: PAGE,
            indices,
        }),
    };
    let problem = with(&problem, |p| p.sparse = Some(sparse));
    Plan::new(&problem).unwrap();
    call(&problem);
}

pub fn with<'a>(problem: &Problem<'a>, change: impl FnOnce(&mut Problem<'a>)) -> Problem<'a> {
    let mut problem = *problem;
    change(&mut problem);
    problem
}

pub fn out_of_range(argument: Argument, value: usize, min: usize, max: usize) -> Error {
    Error::OutOfRange {
        argument,
        value,
        min,
        max,
    }
}

pub fn wrong_length(argument: Argument, len: usize, expected: usize) -> Error {
    Error::WrongLength {
        argument,
        len,
        expected,
    }
}

pub fn too_short(argument: Argument, len: usize, needed: usize) -> Error {
    Error::TooShort {
        argument,
        len,
        needed,
    }
}

/// Prints how many calls a test saw denied.
pub fn report(what: &str, caller: &Caller, least: usize) {
    println!("{what}: {} calls denied", caller.denied);
    assert!(caller.denied >= least, "{}", caller.denied);
}
