//! What `schedule::rotation` promises.

use amla::schedule::{Bound, rotation};

/// Checks everything that `rotation` promises, from the durations alone where that is possible.
pub fn check_promise(cube: &[u64], vector: &[u64]) {
    let cycle = rotation(cube, vector).unwrap();
    let n = cube.len();
    assert_eq!(cycle.pairs(), n);
    let (cubes, vectors) = (sum(cube), sum(vector));
    assert_eq!(
        cycle.bound(),
        if vectors <= cubes {
            Bound::Cube
        } else {
            Bound::Vector
        }
    );

    // eq:reformulated_ineq, in the paper's own indices. start() is m + 2 of a count from 1.
    let at =
        |durations: &[u64], i: i128| i128::from(durations[(i - 1).rem_euclid(n as i128) as usize]);
    let (c, v) = (|i| at(cube, i), |i| at(vector, i));
    let m = cycle.start() as i128 + 1 - 2;
    for j in 1..n as i128 {
        match cycle.bound() {
            Bound::Cube => {
                assert!((0..j).map(|i| v(m - i) - c(m + 1 - i)).sum::<i128>() <= 0);
                // eq:compound_ineq as printed, where k is n - m.
                let (n, k) = (n as i128, n as i128 - m);
                let covered: i128 = (0..j).map(|i| v(n - k - i)).sum();
                assert!(covered <= (0..j).map(|i| c(n + 1 - k - i)).sum());
            }
            Bound::Vector => {
                let covered: i128 = (0..j).map(|i| c(m + 2 + i)).sum();
                assert!(covered <= (0..j).map(|i| v(m + 1 + i)).sum());
            }
        }
    }

    // The same as a timeline: every stage once, in the cycle, in order without overlap, n - 1 dependencies met.
    let period = u128::try_from(cubes.max(vectors)).unwrap();
    assert_eq!(cycle.period(), period);
    let placements: Vec<_> = cycle.placements().collect();
    assert!(placements.iter().map(|p| p.pair).eq(cycle.order()));
    let placement = |pair| placements.iter().find(|p| p.pair == pair).unwrap();
    let (mut cube_time, mut vector_time) = (0, period - u128::try_from(vectors).unwrap());
    for pair in cycle.order() {
        let p = placement(pair);
        assert_eq!(p.cube, cube_time..cube_time + u128::from(cube[pair]));
        cube_time = p.cube.end;
    }
    for pair in cycle.vector_order() {
        let p = placement(pair);
        assert_eq!(
            p.vector,
            vector_time..vector_time + u128::from(vector[pair])
        );
        vector_time = p.vector.end;
    }
    assert!(cube_time <= period);
    assert_eq!(vector_time, period);
    for pair in cycle.internal_dependencies() {
        assert!(
            placement(pair).slack().is_some(),
            "{cube:?} {vector:?} pair {pair}"
        );
    }

    // The shape of the answer.
    assert_eq!(cycle.order().next(), Some(cycle.start()));
    assert_eq!(cycle.order().last(), Some(cycle.external()));
    assert_eq!(cycle.vector_order().next(), Some(cycle.external()));
    assert!(cycle.internal_dependencies().eq(cycle.order().take(n - 1)));
    for order in [
        cycle.order().collect::<Vec<_>>(),
        cycle.vector_order().collect(),
    ] {
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..n));
    }
    assert_eq!(cycle.preload_count(), n);
    assert_eq!(
        cycle.preload_count(),
        2 * n - 1 - cycle.internal_dependencies().len()
    );
}

pub fn sum(durations: &[u64]) -> i128 {
    durations.iter().map(|&d| i128::from(d)).sum()
}
