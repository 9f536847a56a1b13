//! The order of the stages, the cycles of the theorem, and the cut into ranges.

use std::collections::HashMap;

use amla::Split;
use amla::schedule::{
    PRELOAD_COUNT, Phase, ScheduleError, Stage, Step, preload, preload_by, rotation,
};

use crate::draw::Draw;
use crate::promise::check_promise;

pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let items = draw.among(0..=300);
    order(items);
    order_by(items, items % 5);
    beginning(draw.u64() as usize, draw.among(0..=100));
    ranges(draw.u64() as usize >> draw.among(0..=63));
    let [spare, bits] = [usize::from(draw.once_in(16)), draw.among(0..=64)];
    let mut ticks = Vec::new();
    while !draw.is_empty() && ticks.len() < 64 {
        ticks.push(draw.u64().checked_shr(64 - bits as u32).unwrap_or(0));
    }
    let (cube, vector) = ticks.split_at((ticks.len() / 2 + spare).min(ticks.len()));
    if cube.len() != vector.len() {
        let (cube, vector) = (cube.len(), vector.len());
        let refused = Err(ScheduleError::LengthMismatch { cube, vector });
        assert_eq!(rotation(&ticks[..cube], &ticks[cube..]), refused);
    } else if cube.is_empty() {
        assert_eq!(rotation(cube, vector), Err(ScheduleError::Empty));
    } else {
        check_promise(cube, vector);
        check_promise(vector, cube);
    }
}

/// How many pairs there are, and how long they take.
pub fn kind(data: &[u8]) -> Option<String> {
    let mut draw = Draw::new(data);
    let items = match draw.among(0..=300) {
        0 => "nothing",
        1 => "one",
        2 => "two",
        _ => "many",
    };
    let pairs = data.len().saturating_sub(22) / 16;
    Some(format!("{items}-of-{pairs}-pairs"))
}

/// Every stage once, after what it needs, before its tile is overwritten.
fn order(items: usize) {
    let steps: Vec<Step> = preload(items).collect();
    assert_eq!(steps.len(), 3 * items + 1);
    let mut indices = HashMap::new();
    for (index, step) in steps.iter().enumerate() {
        assert_eq!(indices.insert(step.stage, index), None, "{step:?} twice");
    }
    let at = |stage: Stage| indices[&stage];
    for i in 0..items {
        let [c1, v1, c2] = [Stage::C1(i), Stage::V1(i), Stage::C2(i)].map(at);
        assert!(c1 < v1 && v1 < c2);
        if i > 0 {
            // One tile of P.
            assert!(at(Stage::C2(i - 1)) < v1);
        }
        if i >= PRELOAD_COUNT {
            // Two of S.
            assert!(at(Stage::V1(i - PRELOAD_COUNT)) < c1);
        }
    }
    let last = steps[steps.len() - 1];
    assert_eq!((last.stage, last.phase), (Stage::Last, Phase::Last));
    let first = steps
        .iter()
        .take_while(|step| !matches!(step.stage, Stage::V1(_)));
    assert_eq!(first.count() % steps.len(), PRELOAD_COUNT.min(items));
    // Phases in their order, and of the sizes that the paper has.
    let count = |phase| steps.iter().filter(|step| step.phase == phase).count();
    let drain = if items == 0 {
        0
    } else {
        3 * items.min(PRELOAD_COUNT) - items.min(PRELOAD_COUNT) - 1
    };
    assert_eq!(
        count(Phase::Preload),
        (items.min(PRELOAD_COUNT) + 1) * usize::from(items > 0)
    );
    assert_eq!(count(Phase::Loop), 3 * items.saturating_sub(PRELOAD_COUNT));
    assert_eq!(count(Phase::Drain), drain);
    assert!(steps.is_sorted_by_key(|step| step.phase as u8));
}

/// The same with any preload count, as far as it holds for all of them.
fn order_by(items: usize, preload: usize) {
    let steps: Vec<Step> = preload_by(items, preload).collect();
    assert_eq!(steps.len(), 3 * items + 1);
    let indices: HashMap<_, _> = steps
        .iter()
        .enumerate()
        .map(|(i, s)| (s.stage, i))
        .collect();
    let at = |stage: Stage| indices[&stage];
    for i in 0..items {
        let [c1, v1, c2] = [Stage::C1(i), Stage::V1(i), Stage::C2(i)].map(at);
        assert!(c1 < v1 && v1 < c2);
        assert!(i == 0 || at(Stage::C2(i - 1)) < v1);
        let tiles = preload.max(1);
        assert!(i < tiles || at(Stage::V1(i - tiles)) < c1);
    }
    assert!(steps.is_sorted_by_key(|step| step.phase as u8));
}

/// No number of items overflows, and the length is right at every step.
fn beginning(items: usize, count: usize) {
    let mut order = preload(items);
    let mut left = 3 * items as u128 + 1;
    for _ in 0..count {
        let len = usize::try_from(left).unwrap_or(usize::MAX);
        assert_eq!(order.len(), len);
        assert_eq!(order.next().is_some(), left > 0);
        left = left.saturating_sub(1);
    }
}

/// Each key in one range.
fn ranges(keys: usize) {
    let ranges = Split::ByLength.ranges(keys);
    assert!((1..=16).contains(&ranges.len()));
    let mut end = 0;
    for range in ranges {
        assert!(range.start == end && range.end >= end, "{keys} keys");
        assert!(range.start.is_multiple_of(32) || range.start == keys);
        end = range.end;
    }
    assert_eq!(end, keys);
}
