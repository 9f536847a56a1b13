//! How the tensors of a problem with chosen keys are cut: split, ragged, with values apart.

use std::ops::Range;

use crate::common::normal;
use crate::draw::Draw;
use crate::hosts::Rows;

/// How a problem with chosen keys is cut into tensors.
pub struct Cut {
    pub q_indptr: Option<Vec<i32>>,
    /// Whether the rotary part of queries, and of keys, is a tensor of its own.
    pub q: bool,
    pub kv: bool,
    /// Whether values are.
    pub v: bool,
    pub v_offset: usize,
}

impl Cut {
    pub fn draw(
        draw: &mut Draw,
        extra: bool,
        scaled: bool,
        [b, s_q]: [usize; 2],
        [d_qk, d_v]: [usize; 2],
    ) -> Self {
        let apart = !extra && !scaled;
        let q_indptr = draw.once_in(4).then(|| {
            let mut starts = vec![0];
            for _ in 0..b {
                starts.push(starts[starts.len() - 1] + draw.among(0..=s_q) as i32);
            }
            starts
        });
        let [q, kv] = [true, apart].map(|may| may && d_qk > d_v && draw.once_in(3));
        let v = apart && draw.once_in(3);
        let v_offset = match !v && !kv && !scaled && draw.once_in(3) {
            true => draw.among(0..=d_qk - d_v),
            false => 0,
        };
        Self {
            q_indptr,
            q,
            kv,
            v,
            v_offset,
        }
    }

    /// The dimensions of queries.
    pub fn q_dims(&self, [b, s_q, h_q]: [usize; 3]) -> [usize; 3] {
        match &self.q_indptr {
            Some(starts) => [1, starts[b] as usize, h_q],
            None => [b, s_q, h_q],
        }
    }

    /// Values of their own.
    pub fn values(&self, dims: [usize; 3], d_v: usize) -> Option<Rows> {
        self.v.then(|| {
            let mut rows = Rows::new(dims, d_v, 0);
            let values = normal(4, 1.0, dims.iter().product::<usize>() * d_v);
            for (i, row) in values.chunks(d_v).enumerate() {
                rows.row(nth(i, dims)).copy_from_slice(row);
            }
            rows
        })
    }
}

/// The first rows of a tensor in other dimensions, and their rotary part if they are `split`.
pub fn split(
    mut rows: Rows,
    from: [usize; 3],
    to: [usize; 3],
    [d_qk, d_v]: [usize; 2],
    split: bool,
) -> (Rows, Option<Rows>) {
    if from == to && !split {
        return (rows, None);
    }
    let width = if split { d_v } else { d_qk };
    let [first, second] =
        [0..width, width..d_qk].map(|columns| recut(&mut rows, from, to, columns));
    (first, split.then_some(second))
}

/// The indices of row `i`.
pub const fn nth(i: usize, dims: [usize; 3]) -> [usize; 3] {
    [i / dims[2] / dims[1], i / dims[2] % dims[1], i % dims[2]]
}

/// Some columns of the first rows, in a tensor of other dimensions.
fn recut(rows: &mut Rows, from: [usize; 3], to: [usize; 3], columns: Range<usize>) -> Rows {
    let mut cut = Rows::new(to, columns.len(), 0);
    for i in 0..to.iter().product() {
        let row = &rows.row(nth(i, from))[columns.clone()];
        cut.row(nth(i, to)).copy_from_slice(row);
    }
    cut
}
