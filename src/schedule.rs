//! The preload pipeline as data (the paper's `subsec:preloadpipeline` and `app:preload-proofs`).
//!
//! Two things live here. [`preload`] is the order in which AMLA runs C1 (S = Q Kᵀ), V1 (softmax) and C2 (O += P V)
//! over the key blocks. [`rotation`] is the theorem behind it, for any number of Cube/Vector pairs.
//!
//! # Indices
//!
//! The paper counts from 1, this module from 0. The paper uses `k` for two things: Theorem `thm:existence_pipeline` has
//! `m = n - k`, while its proof lets `k` minimise the partial sum `F(k)` and then takes `m = k`. So the theorem's `k` is
//! `n` minus the proof's `k` (modulo `n`). We take `m`, the proof's `k`.
//!
//! Inequality `eq:reformulated_ineq` then says that `V_m` fits beside `C_{m+1}`, `V_m + V_{m-1}` beside `C_{m+1} + C_m`,
//! and so on. The cycle ends with `C_{m+1}`, opens with `C_{m+2}`, and meets `C_j -> V_j` for every pair but `m + 1`. The
//! appendix's three permutations for n = 3 are `m = 2, 3, 1`, in the order in which it lists them.
//!
//! # Which dependencies
//!
//! The paper calls the internal dependencies "V -> C" in its prose and in `thm:preload_tight_bound`. Its example and
//! inequalities are about `C_j -> V_j`, and so is this module.

use core::fmt;
use core::iter::FusedIterator;
use core::ops::Range;

/// How many C1 stages run before the loop: `n` of `thm:preload_tight_bound` for AMLA's two Cube/Vector pairs.
pub const PRELOAD_COUNT: usize = 2;

/// How many score tiles S, in tiles, are alive at once when [`preload`]'s order runs serially.
///
/// S(i) lives from C1(i) to the end of V1(i); C1(i + 2) writes while S(i + 1) still waits for V1(i + 1), so two
/// alternating buffers, `i % 2`, are enough.
pub const SCORE_TILES: usize = 2;

/// How many probability tiles P, in tiles, are alive at once when [`preload`]'s order runs serially.
///
/// P(i) lives from V1(i) to the end of C2(i), and C2(i) precedes V1(i + 1). A machine that runs the two at the same
/// time, as the NPU does, needs a second tile.
pub const PROBABILITY_TILES: usize = 1;

/// One unit of work of AMLA's pipeline (`subsec:preloadpipeline`); the number is the index of the key block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Cube stage 1, S(i) = Q Kᵀ(i).
    C1(usize),
    /// Vector stage 1, P(i) = softmax of S(i), which needs C1(i).
    V1(usize),
    /// Cube stage 2, O += P(i) V(i), which needs V1(i).
    C2(usize),
    /// The paper's "Last \[V\]": normalisation of O by the row sum.
    Last,
}

/// The part of the pipeline that a [`Stage`] runs in (`subsec:preloadpipeline`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// `[C1, C1, V1]`: meets the dependencies of the first cycle.
    Preload,
    /// `[C1, C2, V1]`: a steady cycle whose three stages don't depend on each other.
    Loop,
    /// `[C2, C2, V1]`: the stages whose C1 ran before the last cycles.
    Drain,
    /// `Last [V]`: once, after every block.
    Last,
}

/// One element of the order that [`preload`] yields (`subsec:preloadpipeline`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The part of the pipeline.
    pub phase: Phase,
    /// The work to do.
    pub stage: Stage,
}

/// AMLA's order over `items` key blocks: `3 * items + 1` steps that a serial machine can run one after another
/// (`subsec:preloadpipeline`).
///
/// Preload `C1(0) C1(1) V1(0)`; for each i in `0..items - 2` the loop `C1(i + 2) C2(i) V1(i + 1)`; drain
/// `C2(n - 2) V1(n - 1) C2(n - 1)`; `Last`. One block has no loop and no preload: `C1(0) V1(0) C2(0) Last`.
///
/// The paper lists the drain as `[C2, C2, V1]`. That is a list per kind of core, Cube first, not an order: the second
/// C2 needs the V1. On the NPU the Vector cores run that V1 while the Cube cores run the first C2; run serially, V1 has
/// to stand between the two.
///
/// ```
/// use amla::schedule::{Stage::*, preload};
/// assert!(preload(2).map(|s| s.stage).eq([C1(0), C1(1), V1(0), C2(0), V1(1), C2(1), Last]));
/// ```
pub const fn preload(items: usize) -> Preload {
    preload_by(items, PRELOAD_COUNT)
}

/// The same order with another preload count: the number of C1 stages before the loop.
///
/// A machine whose stages don't overlap gains nothing by a preload. With a count of 0, `C1(i) V1(i) C2(i)`, the data of
/// C1 is still in a near cache for V1 and C2.
///
/// ```
/// use amla::schedule::{Stage::*, preload_by};
/// assert!(preload_by(2, 0).map(|s| s.stage).eq([C1(0), V1(0), C2(0), C1(1), V1(1), C2(1), Last]));
/// ```
pub const fn preload_by(items: usize, count: usize) -> Preload {
    Preload {
        items,
        count,
        stage: if items == 0 {
            Stage::Last
        } else {
            Stage::C1(0)
        },
        remaining: 3 * (items as u128) + 1,
    }
}

/// The iterator of [`preload`] and [`preload_by`]; its length is exact.
///
/// If more than `usize::MAX` steps are left, `size_hint` says `(usize::MAX, None)` and `len` says `usize::MAX`.
#[derive(Clone, Debug)]
pub struct Preload {
    items: usize,
    /// C1 stages before the loop.
    count: usize,
    /// The next stage, if `remaining` isn't 0.
    stage: Stage,
    /// Wider than `usize`, so that three steps per item can't overflow.
    remaining: u128,
}

impl Preload {
    /// Here and below i < items, so that the differences can't wrap.
    fn phase(&self) -> Phase {
        let (items, count) = (self.items, self.count);
        match self.stage {
            Stage::Last => Phase::Last,
            _ if count == 0 => Phase::Loop,
            Stage::C1(i) if i < count => Phase::Preload,
            Stage::V1(0) => Phase::Preload,
            Stage::C1(_) => Phase::Loop,
            Stage::V1(i) if items - i >= count => Phase::Loop,
            Stage::C2(i) if items - i > count => Phase::Loop,
            Stage::V1(_) | Stage::C2(_) => Phase::Drain,
        }
    }

    /// The stage after the present one.
    fn successor(&self) -> Stage {
        let (items, count) = (self.items, self.count);
        let left = |i: usize| items - i;
        match self.stage {
            Stage::C1(i) if i >= count && count > 0 => Stage::C2(i - count),
            Stage::C1(i) if left(i) > 1 && count > i.saturating_add(1) => Stage::C1(i + 1),
            Stage::C1(i) if count == 0 => Stage::V1(i),
            Stage::C1(_) => Stage::V1(0),
            Stage::V1(i) if count > 0 && left(i) > count => Stage::C1(i + count),
            Stage::V1(i) => Stage::C2(i),
            Stage::C2(i) if left(i) > 1 && count == 0 => Stage::C1(i + 1),
            Stage::C2(i) if left(i) > 1 => Stage::V1(i + 1),
            Stage::C2(_) | Stage::Last => Stage::Last,
        }
    }
}

impl Iterator for Preload {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.remaining = self.remaining.checked_sub(1)?;
        let step = Step {
            phase: self.phase(),
            stage: self.stage,
        };
        self.stage = self.successor();
        Some(step)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match usize::try_from(self.remaining) {
            Ok(remaining) => (remaining, Some(remaining)),
            Err(_) => (usize::MAX, None),
        }
    }
}

impl ExactSizeIterator for Preload {
    fn len(&self) -> usize {
        self.size_hint().0
    }
}

impl FusedIterator for Preload {}

/// The stages of one cycle; the numbers are those of their items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cycle {
    /// S = Q Kᵀ.
    pub c1: Option<usize>,
    /// P = softmax of S.
    pub v1: Option<usize>,
    /// O += P V.
    pub c2: Option<usize>,
}

/// The pipeline over `items` as cycles, for a machine that starts a cycle's stages at once.
///
/// Without a preload a cycle is `C1(i) V1(i) C2(i)`, each of which needs the one before. With a preload of 2, the
/// paper's, it is `C1(i + 2) V1(i + 1) C2(i)`, which don't depend on each other; the first and the last cycles have
/// fewer. Another even number `p` makes it `C1(i + p) V1(i + p / 2) C2(i)`.
///
/// ```
/// use amla::schedule::{Cycle, cycles};
/// let full = |i| Cycle { c1: Some(i), v1: Some(i), c2: Some(i) };
/// assert!(cycles(2, 0).eq([full(0), full(1)]));
/// let third = cycles(9, 2).nth(2);
/// assert_eq!(third, Some(Cycle { c1: Some(2), v1: Some(1), c2: Some(0) }));
/// ```
pub fn cycles(items: usize, preload: usize) -> impl Iterator<Item = Cycle> + Clone {
    let count = if items == 0 {
        0
    } else {
        items.saturating_add(preload)
    };
    (0..count).map(move |cycle| {
        let stage = |behind: usize| cycle.checked_sub(behind).filter(|&item| item < items);
        Cycle {
            c1: stage(0),
            v1: stage(preload / 2),
            c2: stage(preload),
        }
    })
}

/// How the keys of a request are cut into ranges: its KV splits, which threads compute in parallel, and whose results are
/// merged in their order.
///
/// Results depend on it to the bit, and neither on the request's neighbours nor on the number of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// By their number alone, into 16 splits at most: few enough for the merge to cost next to nothing, and enough for long
    /// requests on some threads.
    #[default]
    ByLength,
    /// After every `n` keys, a multiple of [`MULTIPLE`](Self::MULTIPLE), with no limit to the splits: for more threads.
    Every(usize),
}

impl Split {
    /// No pair of keys straddles two splits, and each but the last has full vectors of keys. Blocks and
    /// register tiles begin with a split.
    pub const MULTIPLE: usize = 32;

    /// The splits of a number of keys: always at least one, in order.
    ///
    /// ```
    /// use amla::Split;
    /// assert!(Split::ByLength.ranges(2100).eq([0..1056, 1056..2100]));
    /// assert!(Split::Every(64).ranges(150).eq([0..64, 64..128, 128..150]));
    /// ```
    pub fn ranges(
        self,
        keys: usize,
    ) -> impl ExactSizeIterator<Item = Range<usize>> + Clone + use<> {
        let (count, len) = self.cut(keys);
        (0..count).map(move |i| range(i, len, keys))
    }

    /// Split `i` of a number of keys; empty behind the last.
    pub(crate) fn range(self, i: usize, keys: usize) -> Range<usize> {
        range(i, self.cut(keys).1, keys)
    }

    /// How many ranges there are, and how many keys each but the last has.
    fn cut(self, keys: usize) -> (usize, usize) {
        match self {
            Self::ByLength => {
                let count: usize = match keys {
                    0..2048 => 1,
                    2048..8192 => 2,
                    8192..16384 => 4,
                    16384..65536 => 8,
                    _ => 16,
                };
                (count, keys.div_ceil(count).next_multiple_of(Self::MULTIPLE))
            }
            // A problem refuses it.
            Self::Every(0) => (1, keys),
            Self::Every(len) => (keys.div_ceil(len).max(1), len),
        }
    }
}

/// Split `i`, of `len` keys.
fn range(i: usize, len: usize, keys: usize) -> Range<usize> {
    let start = i.saturating_mul(len).min(keys);
    start..start.saturating_add(len).min(keys)
}

/// Why [`rotation`] refuses its input (the premises of `thm:existence_pipeline`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleError {
    /// There is no Cube/Vector pair.
    Empty,
    /// The two lists don't pair up.
    LengthMismatch {
        /// The number of Cube durations.
        cube: usize,
        /// The number of Vector durations.
        vector: usize,
    },
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a schedule needs at least one Cube/Vector pair"),
            Self::LengthMismatch { cube, vector } => {
                write!(
                    f,
                    "{cube} Cube durations don't pair with {vector} Vector durations"
                )
            }
        }
    }
}

impl core::error::Error for ScheduleError {}

/// The kind of core whose total duration is the length of the cycle (`app:preload-proofs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// Sum of V <= sum of C: the Cube cores never wait.
    Cube,
    /// Sum of V > sum of C: the Vector cores never wait.
    Vector,
}

/// Finds a cycle for the pairs C_1 -> V_1 -> ... -> C_n -> V_n, durations in ticks, in O(n) time. In it the busier kind
/// of core never idles, and n - 1 dependencies C_j -> V_j hold inside the cycle (`thm:existence_pipeline`).
///
/// With `a_i = V_i - C_{i+1}` (cyclic, `eq:aux_sequence`) and `F(l) = a_1 + ... + a_l`, it takes the first `m` in `0..=n`
/// with the least `F(m)`, where 0 and n mean the same rotation. Cube stages run in the order `C_{m+2} ... C_m C_{m+1}`
/// and Vector stages in the order `V_{m+1} V_{m+2} ... V_m`.
///
/// * Cube-bound: Cube stages fill the cycle, Vector stages end with it. `C_{m-j+1}` is done before `V_{m-j+1}` starts
///   iff the last j Vector stages take no longer than the last j Cube stages:
///   `a_m + a_{m-1} + ... + a_{m-j+1} <= 0` for `1 <= j <= n - 1` (`eq:reformulated_ineq`).
/// * Vector-bound: Vector stages fill the cycle, Cube stages start with it. `C_{m+j+1}` is done before `V_{m+j+1}` starts
///   iff the first j Cube stages take no longer than the first j Vector stages:
///   `a_{m+1} + a_{m+2} + ... + a_{m+j} >= 0`, which is `F(m+j) >= F(m)`, with `F(l+n) = F(l) + F(n)` and `F(n) >= 0`.
///
/// The paper leaves the second case to "reversing roles and inequalities". Time has to be reversed too. The chain
/// backwards is `V_n -> C_n -> ... -> V_1 -> C_1`, the first case with Vector in the role of Cube. Roles alone would give `V_j -> C_{j+1}`, of which the chain has n - 1 and the ring n, so one of those found may not exist.
///
/// Sums are exact for every input: a slice has fewer than 2^61 elements, so they stay below 2^125.
///
/// # Errors
///
/// [`ScheduleError::LengthMismatch`] if the lists differ in length, [`ScheduleError::Empty`] if both are empty.
///
/// ```
/// use amla::schedule::{Bound, rotation};
/// let cycle = rotation(&[5, 1, 6], &[4, 5, 2])?;
/// assert_eq!(cycle.bound(), Bound::Cube);
/// assert!(cycle.order().eq([1, 2, 0]));
/// // V_3 <= C_1 and V_3 + V_2 <= C_1 + C_3, so C_2 -> V_2 and C_3 -> V_3.
/// assert!(cycle.internal_dependencies().eq([1, 2]));
/// # Ok::<(), amla::schedule::ScheduleError>(())
/// ```
pub fn rotation<'a>(cube: &'a [u64], vector: &'a [u64]) -> Result<Rotation<'a>, ScheduleError> {
    let pairs = cube.len();
    if pairs != vector.len() {
        return Err(ScheduleError::LengthMismatch {
            cube: pairs,
            vector: vector.len(),
        });
    }
    if pairs == 0 {
        return Err(ScheduleError::Empty);
    }
    let next_cubes = cube.iter().cycle().skip(1);
    let (mut sum, mut least, mut m) = (0_i128, 0_i128, 0);
    for (i, (&v, &next_c)) in vector.iter().zip(next_cubes).enumerate() {
        sum += i128::from(v) - i128::from(next_c);
        if sum < least {
            (least, m) = (sum, i + 1);
        }
    }
    Ok(Rotation {
        cube,
        vector,
        // The paper's pair m + 1 is our pair m.
        external: m % pairs,
        bound: if sum <= 0 { Bound::Cube } else { Bound::Vector },
    })
}

/// A steady cycle found by [`rotation`] (`thm:existence_pipeline`); pairs are counted from 0, durations in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation<'a> {
    cube: &'a [u64],
    vector: &'a [u64],
    external: usize,
    bound: Bound,
}

impl Rotation<'_> {
    /// The number n of Cube/Vector pairs, at least 1.
    pub const fn pairs(&self) -> usize {
        self.cube.len()
    }

    /// The kind of core that fills the cycle; [`Bound::Cube`] if both do.
    pub const fn bound(&self) -> Bound {
        self.bound
    }

    /// The pair whose Cube stage opens the cycle, `m + 2` in the paper's count from 1.
    pub const fn start(&self) -> usize {
        (self.external + 1) % self.pairs()
    }

    /// The one pair whose C_j -> V_j isn't promised inside a cycle, `m + 1` in the paper's count from 1. Its Cube stage
    /// ends the cycle and its Vector stage begins the next one.
    pub const fn external(&self) -> usize {
        self.external
    }

    /// How many C_1 stages have to run before the first cycle: n (`thm:preload_tight_bound`), which is 2n - 1
    /// dependencies less the n - 1 internal ones (`lem:preload-count`).
    pub const fn preload_count(&self) -> usize {
        self.pairs()
    }

    /// The cycle's Cube stages, by pair, in the order in which they run.
    pub fn order(&self) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        ring(self.start(), self.pairs(), self.pairs())
    }

    /// The cycle's Vector stages, by pair, in the order in which they run.
    pub fn vector_order(&self) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        ring(self.external, self.pairs(), self.pairs())
    }

    /// The n - 1 pairs, in the order of the cycle, whose C_j is done before V_j starts in the same cycle
    /// (`eq:compound_ineq`).
    pub fn internal_dependencies(&self) -> impl ExactSizeIterator<Item = usize> + Clone + use<> {
        ring(self.start(), self.pairs() - 1, self.pairs())
    }

    /// The length of the cycle in ticks: the larger of the sums of Cube and Vector durations.
    pub fn period(&self) -> u128 {
        total(self.cube).max(total(self.vector))
    }

    /// When the stages of each pair run within a cycle, in the order of [`Rotation::order`]: Cube stages back to back
    /// from time 0, Vector stages back to back up to the end of the cycle (the arrangement of `fig:inequalities`).
    ///
    /// ```
    /// use amla::schedule::rotation;
    /// let cycle = rotation(&[3, 3, 3], &[0, 7, 2])?;
    /// let idle: Vec<_> = cycle.placements().map(|p| (p.pair, p.slack())).collect();
    /// assert_eq!(idle, [(2, Some(4)), (0, Some(3)), (1, None)]);
    /// # Ok::<(), amla::schedule::ScheduleError>(())
    /// ```
    pub fn placements(&self) -> impl ExactSizeIterator<Item = Placement> + Clone {
        let Self { cube, vector, .. } = *self;
        // The external pair is first of the Vector stages and last of the Cube stages; the rest share one order.
        let external = self.external;
        let first_vector = self.period() - total(vector);
        let mut cube_time = 0;
        let mut vector_time = first_vector + u128::from(vector[external]);
        self.order().map(move |pair| {
            let cube_start = cube_time;
            cube_time += u128::from(cube[pair]);
            let vector_start = if pair == external {
                first_vector
            } else {
                vector_time
            };
            let vector_end = vector_start + u128::from(vector[pair]);
            vector_time = vector_time.max(vector_end);
            Placement {
                pair,
                cube: cube_start..cube_time,
                vector: vector_start..vector_end,
            }
        })
    }
}

/// When the two stages of one pair run, in ticks from the start of a cycle (see [`Rotation::placements`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The pair, counted from 0.
    pub pair: usize,
    /// From the start to the end of the Cube stage.
    pub cube: Range<u128>,
    /// From the start to the end of the Vector stage.
    pub vector: Range<u128>,
}

impl Placement {
    /// The ticks from the end of the Cube stage to the start of the Vector stage; `Some` for every internal dependency
    /// (`eq:compound_ineq`). `None` if the Vector stage starts earlier, on a result of the cycle before.
    pub const fn slack(&self) -> Option<u128> {
        self.vector.start.checked_sub(self.cube.end)
    }
}

fn total(durations: &[u64]) -> u128 {
    durations.iter().map(|&ticks| u128::from(ticks)).sum()
}

/// `count` indices of a ring of `n`, from `start`. Both are at most n < 2^61, so the sum can't overflow.
fn ring(start: usize, count: usize, n: usize) -> impl ExactSizeIterator<Item = usize> + Clone {
    (0..count).map(move |i| (start + i) % n)
}
