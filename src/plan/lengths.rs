//! What a plan depends on besides the shape.

use crate::error::Argument;
use crate::problem::Problem;
use crate::schedule::Split;

/// What a plan depends on besides the shape, so that one for other lengths is noticed, and what differs told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedLengths {
    /// Those of [`COUNTS`]; `usize::MAX` where there is none.
    pub counts: [usize; COUNTS.len()],
    /// Those of [`LISTS`].
    pub lists: [List; LISTS.len()],
}

pub const COUNTS: [Argument; 4] = [
    Argument::Window,
    Argument::Topk,
    Argument::ExtraTopk,
    Argument::SplitKeys,
];

pub const LISTS: [Argument; 5] = [
    Argument::QIndptr,
    Argument::KvIndptr,
    Argument::CacheSeqlens,
    Argument::TopkLength,
    Argument::ExtraTopkLength,
];

/// A list of lengths or offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Rows in all.
    pub total: u64,
    /// 0 where there is no list.
    pub hash: u64,
}

impl List {
    const NONE: Self = Self { total: 0, hash: 0 };

    /// Of lengths and how many of each there are; they were checked not to be negative.
    fn of(runs: impl Iterator<Item = (i32, usize)>) -> Self {
        let mut total = 0_u64;
        let hash = hash_runs(
            OFFSET_BASIS,
            runs.inspect(|&(length, count)| {
                let length = u64::from(length.unsigned_abs());
                total = total.wrapping_add(length.wrapping_mul(count as u64));
            }),
        );
        Self { total, hash }
    }

    /// Of offsets, which were checked not to fall.
    fn of_offsets(list: Option<&[i32]>) -> Self {
        let Some(list) = list else {
            return Self::NONE;
        };
        let total = match list {
            [first, .., last] => first.abs_diff(*last).into(),
            _ => 0,
        };
        Self {
            total,
            ..Self::of(list.iter().map(|&offset| (offset, 1)))
        }
    }
}

impl PlannedLengths {
    pub fn of(problem: &Problem<'_>) -> Self {
        let topk = problem.sparse.map(|sparse| sparse.indices);
        let extra = problem.sparse.and_then(|sparse| sparse.extra);
        let extra = extra.map(|extra| extra.indices);
        let counts = [
            problem.window,
            topk.map(|indices| indices.topk),
            extra.map(|indices| indices.topk),
            match problem.split {
                Split::ByLength => None,
                Split::Every(keys) => Some(keys),
            },
        ];
        let seqlens = problem.cache_seqlens.map(|_| List::of(problem.seqlens()));
        let [topk, extra] = problem.topk_lengths().map(|lengths| {
            let runs =
                lengths.map(|lengths| lengths.runs().map(|(_, length, count)| (length, count)));
            runs.map_or(List::NONE, List::of)
        });
        Self {
            counts: counts.map(|count| count.unwrap_or(usize::MAX)),
            lists: [
                List::of_offsets(problem.q_indptr),
                List::of_offsets(problem.kv_indptr),
                seqlens.unwrap_or(List::NONE),
                topk,
                extra,
            ],
        }
    }
}

/// Where [`hash`] starts.
const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, word by word.
const fn hash(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01b3)
}

/// [`hash`] of numbers and how many of each there are, however they are divided into runs.
fn hash_runs(mut lengths: u64, runs: impl Iterator<Item = (i32, usize)>) -> u64 {
    let (mut last, mut total) = (0, 0_usize);
    let hash_run = |lengths, number: i32, count: usize| match count {
        0 => lengths,
        _ => hash(
            hash(lengths, u64::from(number.cast_unsigned())),
            count as u64,
        ),
    };
    for (number, count) in runs {
        if number != last {
            lengths = hash_run(lengths, last, total);
            (last, total) = (number, 0);
        }
        total = total.wrapping_add(count);
    }
    hash_run(lengths, last, total)
}
