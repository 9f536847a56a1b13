//! The reader of the `decode` example: any file is read or refused, and a read problem is valid or
//! refused.
//!
//! Half of the inputs are files. The others are headers in JSON up to a line's end, and then
//! bytes that are repeated for as long as the header says: a mutation then needn't guess
//! lengths.

use amla::{Options, Plan, ProblemShape};
use amla_examples::problem::parse;

use crate::common::backends;
use crate::hosts::decoded;

/// A file may be so long.
const MOST: usize = 1 << 16;

pub fn run(data: &[u8]) {
    let Some((file, d_v)) = input(data) else {
        return;
    };
    let Ok(case) = parse(&file, d_v) else {
        return;
    };
    let problem = case.problem();
    let Ok(plan) = Plan::new(&problem) else {
        return;
    };
    let ProblemShape { b, s_q, h_q, .. } = problem.shape;
    // Tensors without elements may have any number of rows.
    let bounded = |x: usize, y: usize| x.checked_mul(y).filter(|&n| n <= 4096);
    let Some(rows) = bounded(b, s_q).and_then(|n| bounded(n, h_q)) else {
        return;
    };
    assert!(case.flop() >= 0.0 && case.positions().count() * h_q <= rows);
    if plan.tasks() <= 16 && case.flop() < 1e8 {
        for backend in backends() {
            let options = Options {
                backend,
                ..Options::default()
            };
            decoded(&problem, &options);
        }
    }
}

/// How the library takes it.
pub fn kind(data: &[u8]) -> Option<String> {
    let (file, d_v) = input(data)?;
    Some(match parse(&file, d_v) {
        Ok(case) if Plan::new(&case.problem()).is_ok() => "problem".to_owned(),
        Ok(_) => "file".to_owned(),
        Err(_) => "nothing".to_owned(),
    })
}

fn input(data: &[u8]) -> Option<(Vec<u8>, Option<usize>)> {
    let (&first, data) = data.split_first()?;
    let d_v = (first & 6 == 6).then_some(64);
    if first & 1 == 0 {
        return Some((data.to_vec(), d_v));
    }
    let end = data.iter().position(|&byte| byte == b'\n')?;
    let (header, bytes) = (&data[..end], &data[end + 1..]);
    let ends = std::str::from_utf8(header)
        .ok()?
        .split("\"data_offsets\":[")
        .skip(1);
    let ends = ends.filter_map(|rest| rest.split(']').next()?.split(',').next_back()?.parse().ok());
    let len = ends.max().unwrap_or(0).min(MOST);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    let bytes = if bytes.is_empty() { &[0] } else { bytes };
    file.extend(bytes.iter().copied().cycle().take(len));
    Some((file, d_v))
}
