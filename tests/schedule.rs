//! The preload pipeline: AMLA's order, and the theorem behind it.

use amla::Split;
use amla::schedule::{
    Bound, Cycle, PRELOAD_COUNT, PROBABILITY_TILES, Phase, Rotation, SCORE_TILES, ScheduleError,
    Stage, Step, cycles, preload, preload_by, rotation,
};
use proptest::prelude::*;

use promise::{check_promise, sum};

#[path = "common/promise.rs"]
mod promise;

// AMLA's order.

fn steps(items: usize) -> Vec<Step> {
    preload(items).collect()
}

fn stages(items: usize) -> Vec<Stage> {
    preload(items).map(|step| step.stage).collect()
}

/// Run one after the other, the stages of all cycles come in the paper's order, or in turn.
#[test]
fn cycles_are_the_preload_order() {
    let stages = |items, preload| -> Vec<_> {
        let stages = cycles(items, preload).flat_map(|Cycle { c1, v1, c2 }| {
            let [c1, v1, c2] = [c1.map(Stage::C1), v1.map(Stage::V1), c2.map(Stage::C2)];
            if preload == 0 {
                [c1, v1, c2]
            } else {
                [c1, c2, v1]
            }
        });
        stages.flatten().collect()
    };
    for items in 0..12 {
        for count in [0, PRELOAD_COUNT] {
            let order = preload_by(items, count).map(|step| step.stage);
            let order: Vec<_> = order.filter(|&stage| stage != Stage::Last).collect();
            assert_eq!(stages(items, count), order);
        }
    }
}

#[test]
fn literal_order_of_five() {
    use Phase::{Drain, Loop, Preload};
    use Stage::{C1, C2, Last, V1};
    let expected = [
        (Preload, [C1(0), C1(1), V1(0)]),
        (Loop, [C1(2), C2(0), V1(1)]),
        (Loop, [C1(3), C2(1), V1(2)]),
        (Loop, [C1(4), C2(2), V1(3)]),
        (Drain, [C2(3), V1(4), C2(4)]),
    ];
    let mut expected: Vec<_> = expected
        .into_iter()
        .flat_map(|(phase, stages)| stages.map(|stage| Step { phase, stage }))
        .collect();
    expected.push(Step {
        phase: Phase::Last,
        stage: Last,
    });
    assert_eq!(steps(5), expected);
}

#[test]
fn short_orders() {
    use Phase::{Drain, Preload};
    use Stage::{C1, C2, Last, V1};
    let with_phases = |items| {
        steps(items)
            .into_iter()
            .map(|s| (s.phase, s.stage))
            .collect::<Vec<_>>()
    };
    let last = (Phase::Last, Last);
    assert_eq!(with_phases(0), [last]);
    assert_eq!(
        with_phases(1),
        [(Preload, C1(0)), (Preload, V1(0)), (Drain, C2(0)), last]
    );
    assert_eq!(
        with_phases(2),
        [
            (Preload, C1(0)),
            (Preload, C1(1)),
            (Preload, V1(0)),
            (Drain, C2(0)),
            (Drain, V1(1)),
            (Drain, C2(1)),
            last
        ]
    );
}

#[test]
fn every_stage_once_after_what_it_needs() {
    for items in 0..=64 {
        let order = stages(items);
        let at = |stage| {
            let mut found = (0..order.len()).filter(|&t| order[t] == stage);
            let first = found.next().expect("stage is missing");
            assert_eq!(found.next(), None, "{stage:?} runs twice of {items}");
            first
        };
        for i in 0..items {
            assert!(at(Stage::C1(i)) < at(Stage::V1(i)), "V1({i}) of {items}");
            assert!(at(Stage::V1(i)) < at(Stage::C2(i)), "C2({i}) of {items}");
        }
        assert_eq!(at(Stage::Last), 3 * items);
        // Nothing but these.
        assert_eq!(order.len(), 3 * items + 1);
    }
}

#[test]
fn phases_come_in_order_with_the_papers_counts() {
    for items in 2..=64 {
        let all = steps(items);
        let of = |phase| {
            all.iter()
                .filter(|s| s.phase == phase)
                .map(|s| s.stage)
                .collect::<Vec<_>>()
        };
        let (first, cycles, drain) = (of(Phase::Preload), of(Phase::Loop), of(Phase::Drain));
        let rejoined: Vec<_> = [&first[..], &cycles, &drain, &of(Phase::Last)].concat();
        assert_eq!(rejoined, stages(items), "phases interleave");
        let cubes_1 = |part: &[Stage]| part.iter().filter(|s| matches!(s, Stage::C1(_))).count();
        assert_eq!(cubes_1(&first), PRELOAD_COUNT);
        assert_eq!(first.len(), 3);
        assert_eq!(drain.len(), 3);
        // No stage of a cycle needs another one of it: three different items.
        assert_eq!(cycles.len(), 3 * (items - 2));
        for (i, cycle) in cycles.chunks_exact(3).enumerate() {
            assert_eq!(cycle, [Stage::C1(i + 2), Stage::C2(i), Stage::V1(i + 1)]);
        }
    }
}

#[test]
fn any_preload_count_orders_stages_by_their_needs() {
    for (items, count) in (0..=12).flat_map(|items| (0..=6).map(move |count| (items, count))) {
        let all: Vec<_> = preload_by(items, count).collect();
        let at = |stage| {
            let mut indices = all.iter().enumerate().filter(|(_, s)| s.stage == stage);
            let index = indices.next().map(|(index, _)| index);
            assert_eq!(indices.next(), None, "{stage:?} twice");
            index.unwrap_or_else(|| panic!("no {stage:?}"))
        };
        assert_eq!(all.len(), 3 * items + 1);
        assert_eq!(at(Stage::Last), 3 * items);
        for i in 0..items {
            let [c1, v1, c2] = [Stage::C1(i), Stage::V1(i), Stage::C2(i)].map(at);
            assert!(c1 < v1 && v1 < c2, "{i} of {items} by {count}");
            // One tile of P, and one of S for each C1 of the preload.
            assert!(i == 0 || at(Stage::C2(i - 1)) < v1);
            let tiles = count.max(1);
            assert!(i < tiles || at(Stage::V1(i - tiles)) < c1);
        }
        let first = all.iter().take_while(|s| matches!(s.stage, Stage::C1(_)));
        assert_eq!(first.count(), items.min(count.max(1)));
        let of = |phase| all.iter().filter(|s| s.phase == phase).count();
        assert_eq!(of(Phase::Loop), 3 * items.saturating_sub(count));
        let first = usize::from(items > 0 && count > 0);
        assert_eq!(of(Phase::Preload), items.min(count) + first);
        assert!(all.is_sorted_by_key(|s| s.phase as u8));
    }
    assert!(preload(9).eq(preload_by(9, PRELOAD_COUNT)));
}

#[test]
fn two_score_tiles_and_one_probability_tile() {
    for items in 0..=64 {
        let mut scores: Vec<usize> = Vec::new();
        let mut probabilities: Vec<usize> = Vec::new();
        let (mut most_scores, mut most_probabilities) = (0, 0);
        for stage in stages(items) {
            // A tile is alive from the stage that writes it up to and including the stage that reads it.
            match stage {
                Stage::C1(i) => scores.push(i),
                Stage::V1(i) => probabilities.push(i),
                Stage::C2(_) | Stage::Last => {}
            }
            most_scores = most_scores.max(scores.len());
            most_probabilities = most_probabilities.max(probabilities.len());
            // Tiles alive at once never share a buffer, if the buffer is the index modulo the number of tiles.
            assert!(scores.len() < 2 || scores[0] % SCORE_TILES != scores[1] % SCORE_TILES);
            match stage {
                Stage::V1(i) => scores.retain(|&s| s != i),
                Stage::C2(i) => probabilities.retain(|&p| p != i),
                Stage::C1(_) | Stage::Last => {}
            }
        }
        assert!(scores.is_empty() && probabilities.is_empty());
        assert_eq!(most_scores, items.min(SCORE_TILES));
        assert_eq!(most_probabilities, items.min(PROBABILITY_TILES));
    }
}

#[test]
fn size_is_exact_at_every_step() {
    for items in 0..=64 {
        let mut order = preload(items);
        for left in (0..=3 * items + 1).rev() {
            assert_eq!(order.len(), left);
            assert_eq!(order.size_hint(), (left, Some(left)));
            assert_eq!(order.clone().count(), left);
            assert_eq!(order.next().is_some(), left > 0);
        }
        assert_eq!(order.next(), None);
        assert_eq!(order.len(), 0);
    }
}

#[test]
fn no_number_of_items_overflows() {
    let largest_exact = (usize::MAX - 1) / 3;
    assert_eq!(preload(largest_exact).len(), 3 * largest_exact + 1);
    let mut order = preload(usize::MAX);
    assert_eq!(order.size_hint(), (usize::MAX, None));
    assert_eq!(order.len(), usize::MAX);
    assert_eq!(order.nth(3).map(|s| s.stage), Some(Stage::C1(2)));
}

// KV splits.

/// Each key once and in order; no pair or register tile in two ranges.
#[test]
fn splits_hold_every_key_once() {
    for keys in (0..3000).chain([
        8191,
        8192,
        16383,
        16384,
        65535,
        65536,
        1_000_003,
        usize::MAX,
    ]) {
        let mut end = 0;
        for split in Split::ByLength.ranges(keys) {
            assert_eq!(split.start, end, "{keys}");
            assert!(split.start.is_multiple_of(32) || split.is_empty(), "{keys}");
            end = split.end;
        }
        assert_eq!(end, keys);
    }
}

/// The same of ranges of a chosen length, all of which but the last have it.
#[test]
fn chosen_ranges_hold_every_key_once() {
    for every in [32, 64, 96, 1024, usize::MAX / 32 * 32] {
        for keys in [0, 1, 31, 32, 33, 1000, 4096, 100_003] {
            let ranges: Vec<_> = Split::Every(every).ranges(keys).collect();
            assert_eq!(ranges.len(), keys.div_ceil(every).max(1));
            let mut start = 0_usize;
            for range in &ranges {
                assert_eq!(*range, start..keys.min(start.saturating_add(every)));
                start = range.end;
            }
            assert_eq!(start, keys);
        }
    }
    let ranges = Split::Every(32).ranges(usize::MAX);
    assert_eq!(ranges.len(), usize::MAX.div_ceil(32));
}

/// As many as there are in the documentation's words: enough to share a long request, and few
/// enough that ranges have 1024 keys and more: up to 31 fewer for each of them the last.
#[test]
fn longer_requests_have_more_splits() {
    let counts = [
        (0, 1),
        (2047, 1),
        (2048, 2),
        (8191, 2),
        (8192, 4),
        (16383, 4),
        (16384, 8),
        (65535, 8),
        (65536, 16),
        (usize::MAX, 16),
    ];
    for (keys, count) in counts {
        assert_eq!(Split::ByLength.ranges(keys).len(), count, "{keys}");
    }
    for keys in 2048..=1 << 16 {
        let (count, mut lens) = (
            Split::ByLength.ranges(keys).len(),
            Split::ByLength.ranges(keys).map(|range| range.len()),
        );
        let first = lens.next().unwrap_or_default();
        assert!((1024..=8192).contains(&first), "{keys}");
        assert!(lens.all(|len| len >= 1024 - 31 * count), "{keys}");
    }
}

// The theorem.

fn durations() -> impl Strategy<Value = (Vec<u64>, Vec<u64>)> {
    // Small numbers make ties, zeros and near-equal sums; the whole range finds overflow.
    let ticks = prop_oneof![Just(0), 0..4_u64, 0..1000_u64, any::<u64>(), Just(u64::MAX)];
    prop::collection::vec((ticks.clone(), ticks), 1..=16)
        .prop_map(|pairs| pairs.into_iter().unzip())
}

fn small_durations() -> impl Strategy<Value = (Vec<u64>, Vec<u64>)> {
    prop::collection::vec((0..12_u64, 0..12_u64), 1..=16)
        .prop_map(|pairs| pairs.into_iter().unzip())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    // Exchanging the lists makes each draw a case of both bounds.
    #[test]
    fn promise_holds((a, b) in prop_oneof![durations(), small_durations()]) {
        check_promise(&a, &b);
        check_promise(&b, &a);
    }

    #[test]
    fn promise_holds_where_sums_are_equal((a, mut b) in small_durations()) {
        let missing = sum(&a) - sum(&b);
        if let Ok(missing) = u64::try_from(missing) {
            b[0] += missing;
            check_promise(&a, &b);
            check_promise(&b, &a);
        }
    }
}

#[test]
fn promise_holds_for_all_small_durations() {
    for (n, base) in [(1, 4), (2, 4), (3, 4), (4, 3)] {
        for durations in lists(2 * n, base) {
            let (cube, vector) = durations.split_at(n as usize);
            check_promise(cube, vector);
        }
    }
}

fn shape(cycle: Rotation) -> (Vec<usize>, Vec<usize>) {
    (
        cycle.order().collect(),
        cycle.internal_dependencies().collect(),
    )
}

#[test]
fn appendix_example_of_three() {
    // The appendix's permutations C1 C2 C3, C2 C3 C1 and C3 C1 C2, each with the two pairs that it meets, from 0.
    let listed = [[0, 1, 2], [1, 2, 0], [2, 0, 1]];
    let mut alone = [0; 3];
    for durations in lists(6, 4) {
        let (c, v) = durations.split_at(3);
        if sum(v) > sum(c) {
            continue;
        }
        // Its three conditions, as printed.
        let holds = [
            v[0] + v[1] <= c[1] + c[2] && v[1] <= c[2],
            v[1] + v[2] <= c[2] + c[0] && v[2] <= c[0],
            v[2] + v[0] <= c[0] + c[1] && v[0] <= c[1],
        ];
        let (order, internal) = shape(rotation(c, v).unwrap());
        let chosen = listed.iter().position(|l| order == l).unwrap();
        assert!(holds[chosen], "{c:?} {v:?}");
        assert_eq!(internal, listed[chosen][..2]);
        if holds.iter().filter(|&&h| h).count() == 1 {
            alone[chosen] += 1;
        }
    }
    // Where one condition holds alone there is no choice, and each of the three does somewhere.
    assert!(
        alone[0] > 0 && alone.iter().all(|&count| count == alone[0]),
        "{alone:?}"
    );
}

/// F is -1 after each of the pairs; the paper takes the first.
#[test]
fn the_first_of_equal_minima_is_taken() {
    let cycle = rotation(&[5, 1, 1], &[0, 1, 5]).unwrap();
    assert_eq!((cycle.external(), cycle.start()), (1, 2));
}

#[test]
fn amla_as_two_pairs() {
    // AMLA is n = 2 with V2 = 0: C2 -> V2 is met for nothing, so C1 -> V1 and V1 -> C2 are what the preload has to meet.
    let cycle = rotation(&[576, 512], &[300, 0]).unwrap();
    assert_eq!(shape(cycle), (vec![1, 0], vec![1]));
    assert_eq!(cycle.preload_count(), PRELOAD_COUNT);
}

#[test]
fn vector_bound_example() {
    // Sum of V is 12, of C 6. Only V1 is long enough to cover C2, and V1 + V2 to cover C2 + C3.
    let (cube, vector) = ([1, 4, 1], [10, 1, 1]);
    let cycle = rotation(&cube, &vector).unwrap();
    assert_eq!(cycle.bound(), Bound::Vector);
    assert_eq!(shape(cycle), (vec![1, 2, 0], vec![1, 2]));
    let slack: Vec<_> = cycle.placements().map(|p| p.slack()).collect();
    assert_eq!(slack, [Some(6), Some(6), None]);
    check_promise(&cube, &vector);
}

#[test]
fn zero_durations_and_single_pairs() {
    for n in 1..=16 {
        check_promise(&vec![0; n], &vec![0; n]);
        check_promise(&vec![0; n], &vec![u64::MAX; n]);
        check_promise(&vec![u64::MAX; n], &vec![0; n]);
    }
    for (c, v) in [(0, 0), (1, 0), (0, 1), (7, 7), (u64::MAX, 1), (1, u64::MAX)] {
        let (cube, vector) = ([c], [v]);
        check_promise(&cube, &vector);
        assert_eq!(shape(rotation(&cube, &vector).unwrap()), (vec![0], vec![]));
    }
}

#[test]
fn errors() {
    assert_eq!(rotation(&[], &[]), Err(ScheduleError::Empty));
    assert_eq!(
        rotation(&[1, 2], &[]),
        Err(ScheduleError::LengthMismatch { cube: 2, vector: 0 })
    );
    let error = rotation(&[], &[1]).unwrap_err();
    assert_eq!(error, ScheduleError::LengthMismatch { cube: 0, vector: 1 });
    assert_eq!(
        error.to_string(),
        "0 Cube durations don't pair with 1 Vector durations"
    );
    let _: &dyn std::error::Error = &error;
}

// The upper bound (lem:preload_upper): no cycle at all does better for adversarial durations.

type Span = (u64, u64);

/// The most dependencies that any cycle of length T, the larger sum, meets inside itself.
///
/// The busier kind of core has no idle tick in T, so its stages run back to back from 0 to T and a permutation says all
/// about them. The other kind's stages may stand anywhere within the cycle, in any order, without overlap: all integer
/// start times are tried. Integers are enough because a set of met dependencies, an order and the ends of the cycle are
/// inequalities between differences of start times with integer constants, and such a system that has a solution has an
/// integer one. So every cycle is seen, up to the set of dependencies that it meets.
///
/// The dependencies are all 2n - 1 of the chain: C_j -> V_j and V_j -> C_{j+1}.
fn most_met_by_any_cycle(cube: &[u64], vector: &[u64]) -> usize {
    let vector_bound = sum(vector) > sum(cube);
    let (busy, other) = if vector_bound {
        (vector, cube)
    } else {
        (cube, vector)
    };
    let period: u64 = busy.iter().sum();
    let mut best = 0;
    permutations(&mut (0..busy.len()).collect::<Vec<_>>(), 0, &mut |order| {
        let mut fixed = vec![(0, 0); busy.len()];
        let mut time = 0;
        for &i in order {
            fixed[i] = (time, time + busy[i]);
            time += busy[i];
        }
        placements(other, period, &mut Vec::new(), &mut |free| {
            let (cubes, vectors) = if vector_bound {
                (free, &fixed[..])
            } else {
                (&fixed[..], free)
            };
            best = best.max(met(cubes, vectors));
        });
    });
    best
}

fn met(cubes: &[Span], vectors: &[Span]) -> usize {
    let consumed = cubes
        .iter()
        .zip(vectors)
        .filter(|(c, v)| c.1 <= v.0)
        .count();
    let fed = vectors
        .iter()
        .zip(&cubes[1..])
        .filter(|(v, c)| v.1 <= c.0)
        .count();
    consumed + fed
}

fn permutations(items: &mut [usize], from: usize, visit: &mut impl FnMut(&[usize])) {
    if from == items.len() {
        return visit(items);
    }
    for i in from..items.len() {
        items.swap(from, i);
        permutations(items, from + 1, visit);
        items.swap(from, i);
    }
}

fn placements(
    durations: &[u64],
    period: u64,
    placed: &mut Vec<Span>,
    visit: &mut impl FnMut(&[Span]),
) {
    let Some(&duration) = durations.get(placed.len()) else {
        return visit(placed);
    };
    for start in 0..=period - duration {
        let span = (start, start + duration);
        // A stage of no duration may touch another one's ends but can't run in its middle.
        if placed.iter().all(|p| span.1 <= p.0 || p.1 <= span.0) {
            placed.push(span);
            placements(durations, period, placed, visit);
            placed.pop();
        }
    }
}

/// Both bounds: `busy` covers, `other` is covered and holds the adversary of eq:extreme-case.
fn check_tight(busy: &[u64], other: &[u64]) {
    let n = busy.len();
    for (cube, vector, bound) in [(busy, other, Bound::Cube), (other, busy, Bound::Vector)] {
        let cycle = rotation(cube, vector).unwrap();
        // Equal sums are Cube-bound whichever list is called busy, and then both kinds are busy.
        assert!(cycle.bound() == bound || sum(busy) == sum(other));
        let best = most_met_by_any_cycle(cube, vector);
        assert_eq!(best, n - 1, "{cube:?} {vector:?}");
        assert_eq!(cycle.preload_count(), 2 * n - 1 - best);
    }
}

fn is_adversarial(busy: &[u64], long: u64) -> bool {
    busy.iter()
        .all(|&b| u128::from(long + b) > busy.iter().map(|&b| u128::from(b)).sum())
}

/// All lists of n numbers below `base`.
fn lists(n: u32, base: u64) -> impl Iterator<Item = Vec<u64>> {
    (0..base.pow(n)).map(move |code| (0..n).map(|i| code / base.pow(i) % base).collect())
}

#[test]
fn no_cycle_beats_the_bound_for_adversarial_durations() {
    // n = 1 to 3: all durations of the busy kind up to 4, all of the other kind that make an adversary of one stage.
    let mut seen = [0; 4];
    for n in 1..=3_u32 {
        for busy in lists(n, 5) {
            let total: u64 = busy.iter().sum();
            for other in lists(n, total + 1) {
                if other.iter().sum::<u64>() <= total
                    && other.iter().any(|&o| is_adversarial(&busy, o))
                {
                    check_tight(&busy, &other);
                    seen[n as usize] += 1;
                }
            }
        }
    }
    // How many there are, lest a filter empties the loops unseen.
    assert_eq!(seen, [0, 10, 100, 609]);
    // n = 4, with the long stage in every position.
    for k in 0..4 {
        let mut other = [1; 4];
        other[k] = 13;
        assert!(is_adversarial(&[4; 4], 13));
        check_tight(&[4; 4], &other);
        let mut other = [0; 4];
        other[k] = 10;
        assert!(is_adversarial(&[3, 4, 2, 2], 10));
        check_tight(&[3, 4, 2, 2], &other);
    }
}

#[test]
fn kinder_durations_allow_more() {
    // n - 1 is no artefact of the enumeration: short Vector stages can meet more, and all 2n - 1 if they take no time.
    assert!(most_met_by_any_cycle(&[4, 4, 4], &[1, 1, 1]) > 2);
    assert_eq!(most_met_by_any_cycle(&[4, 4, 4], &[0, 0, 0]), 5);
}
