//! Shapes at the limits of their integers: calls refuse them at once, or count right.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use amla::{Elements, Output, Plan, Problem, ProblemShape, combine, decode, reference};
use half::bf16;

use crate::calls::{REFERENCES, bits, default_on, pattern};
use crate::common::{backends, workspace};

/// Runs `call` on a thread of its own; fails instead of hanging.
#[track_caller]
fn in_no_time<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(call()));
    let result = receiver.recv_timeout(Duration::from_secs(5));
    result.unwrap_or_else(|error| panic!("{what}: {error}"))
}

const SOME: [bf16; 576] = [bf16::ONE; 576];

/// All calls with that problem and next to no output refuse it.
fn all_refuse(problem: &Problem) {
    let (mut o, mut lse) = (pattern(8), pattern(8));
    let mut workspace = workspace();
    for backend in backends() {
        let output = Output::dense(problem.shape, Elements::F32(&mut o), &mut lse);
        decode(problem, &default_on(backend), &mut workspace, output).unwrap_err();
    }
    for (_, reference) in REFERENCES {
        reference(problem, 16, &mut o, &mut lse).unwrap_err();
    }
    reference::golden(problem, &mut [0.0; 8], &mut [0.0; 8]).unwrap_err();
    assert_eq!(
        (bits(&o), bits(&lse)),
        (bits(&pattern(8)), bits(&pattern(8)))
    );
}

#[test]
fn huge_shapes_over_tiny_buffers() {
    let max = usize::MAX;
    let int = i32::MAX as usize;
    for huge in [
        int - 1,
        int,
        int + 1,
        max / 7,
        max / 4 + 1,
        max / 2,
        max - 1,
        max,
    ] {
        for field in 0..8 {
            in_no_time(&format!("{huge} in field {field}"), move || {
                let [b, s_q, s_k, h_q, h_kv, d_qk, d_v] =
                    std::array::from_fn(|i| if i == field || field == 7 { huge } else { 1 });
                let shape = ProblemShape {
                    b,
                    s_q,
                    s_k,
                    h_q,
                    h_kv,
                    d_qk: if field < 5 { 576 } else { d_qk },
                    d_v: if field < 5 { 512 } else { d_v },
                };
                let problem = Problem::dense(shape, &SOME, &SOME, 1.0);
                assert!(Plan::new(&problem).is_err());
                all_refuse(&problem);
            });
        }
    }
}

/// Where a word has 32 bits a valid shape can have more tasks than it counts; where it has 64,
/// none has.
#[cfg(target_pointer_width = "32")]
#[test]
fn more_tasks_than_can_be_counted() {
    let heads = 1 << 28;
    let shape = ProblemShape {
        b: 1,
        s_q: 1,
        s_k: 65_536,
        h_q: heads,
        h_kv: heads,
        d_qk: 64,
        d_v: 64,
    };
    let row = [bf16::ONE; 64];
    let mut problem = Problem::dense(shape, &row, &row, 1.0);
    problem.q.strides = [0; 3];
    problem.kv.strides = [0; 3];
    // 16 KV splits for each would be too many.
    assert_eq!(Plan::new(&problem).map(|plan| plan.tasks()), Ok(heads));
    problem.shape.b = 16;
    let text = Plan::new(&problem).unwrap_err().to_string();
    assert_eq!(text, "b is 16, not in 0..=15");
}

/// Strides of 0 make shapes valid that no output could hold.
#[test]
fn huge_shapes_of_repeated_rows() {
    let int = i32::MAX as usize;
    let huge = [int, usize::MAX / 2, usize::MAX];
    let shape = ProblemShape {
        b: 1,
        s_q: 1,
        s_k: 1,
        h_q: 1,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
    };
    let mut shapes = Vec::new();
    for b in huge {
        shapes.push(ProblemShape { b, ..shape });
        shapes.push(ProblemShape {
            b,
            s_k: int,
            ..shape
        });
        shapes.push(ProblemShape {
            b,
            s_q: int,
            h_q: int,
            s_k: int,
            ..shape
        });
    }
    shapes.push(ProblemShape {
        s_q: int,
        h_q: int,
        ..shape
    });
    shapes.push(ProblemShape { h_q: int, ..shape });
    for shape in shapes {
        in_no_time(&format!("{shape:?}"), move || {
            let mut problem = Problem::dense(shape, &SOME, &SOME, 1.0);
            problem.q.strides = [0; 3];
            problem.kv.strides = [0; 3];
            all_refuse(&problem);
            // A plan may be made or refused; its numbers must be right.
            if let Ok(plan) = Plan::new(&problem) {
                assert!(plan.tasks() >= shape.b, "{} tasks", plan.tasks());
                assert!(plan.partial_len() <= 256 * (512 + 3));
                let (mut o, mut lse) = (pattern(8), pattern(8));
                let output = Output::dense(shape, Elements::F32(&mut o), &mut lse);
                combine(&problem, &plan, 0..1, &[], &output.into()).unwrap_err();
            }
        });
    }
}
