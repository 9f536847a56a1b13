//! The C interface under hostile callers: a problem of `decode`'s, with fields of its structs
//! overwritten.
//!
//! Whatever they hold, a call returns a status, reads only the memory that it was given, writes only
//! its outputs, and writes nothing if it refuses. A caller may state anything but false memory: no
//! length here is more than the memory has, unless it is more than any memory has.

mod caller;
mod calls;
mod encoders;
mod memory;
mod mla;
mod overwrite;

use amla::BackendId;

use crate::decode::with_problem;
use crate::draw::Draw;
use crate::hosts::decoded;
use crate::types;
use caller::Caller;
use encoders::encoders;
pub use mla::mla;

pub fn run(data: &[u8]) {
    let (own, rest) = data.split_at(data.len().min(64));
    with_problem(rest, |problem, call| {
        let mut draw = Draw::new(own);
        if draw.once_in(16) {
            encoders(&mut draw);
            mla(&mut draw);
        }
        let mut options = call.options;
        options.backend = one_that_runs(&mut draw);
        let mut caller = Caller::new(problem, &options, draw.one_of(&DTYPES));
        let wrong = draw.one_of(&[0, 1, 1, 1, 2, 3]);
        for _ in 0..wrong {
            caller.overwrite(&mut draw);
        }
        if caller.is_long() {
            caller.plan(&mut draw);
            return;
        }
        let ran = caller.run(&mut draw, wrong > 0);
        if wrong == 0 {
            assert_eq!(ran, types::AMLA_OK);
            if caller.output.dtype == types::AMLA_DTYPE_F32 {
                assert!(
                    caller.results() == decoded(problem, &options),
                    "{:?}",
                    problem.shape
                );
            }
        }
        caller.tasks(&mut draw, ran);
        caller.merge(&mut draw);
    });
}

/// What is described, and how many fields are overwritten.
pub fn kind(data: &[u8]) -> Option<String> {
    let (own, rest) = data.split_at(data.len().min(64));
    let mut draw = Draw::new(own);
    if draw.once_in(16) {
        return Some("encoders".to_owned());
    }
    one_that_runs(&mut draw);
    draw.one_of(&DTYPES);
    let wrong = draw.one_of(&[0, 1, 1, 1, 2, 3]);
    let mut kind = None;
    with_problem(rest, |problem, _| {
        let what = match (problem.sparse, problem.pages) {
            (Some(_), _) => "sparse",
            (None, Some(_)) => "paged",
            (None, None) => "plain",
        };
        kind = Some(format!("{what}-{wrong}-wrong"));
    });
    kind
}

fn one_that_runs(draw: &mut Draw) -> amla::Backend {
    let backends: Vec<_> = BackendId::ALL
        .into_iter()
        .filter_map(|id| amla::Backend::request(id).ok())
        .collect();
    draw.one_of(&backends)
}

const DTYPES: [u32; 3] = [
    types::AMLA_DTYPE_F32,
    types::AMLA_DTYPE_BF16,
    types::AMLA_DTYPE_F16,
];
