//! The rescale of every backend, bit for bit that of `amla::bits`.

#[macro_use]
mod common;

use std::io::{Write, stderr};
use std::ops::Range;
use std::thread;

use amla::Backend;
use amla::bits::{Increment, add_increment_f32};
use common::backends;

suites![edges, lengths_and_offsets];

/// Both signs, every exponent, and the mantissas at the ends and the middle.
fn patterns() -> Vec<u32> {
    let mantissas = [
        0, 1, 2, 0x3f_ffff, 0x40_0000, 0x40_0001, 0x7f_fffe, 0x7f_ffff,
    ];
    let mut patterns = Vec::new();
    for sign in [0, 1 << 31] {
        for exponent in 0..=255_u32 {
            patterns.extend(mantissas.map(|mantissa| sign | exponent << 23 | mantissa));
        }
    }
    patterns
}

/// Every power of two, compensated ones, and bits around each bound of the rule.
fn increments() -> Vec<Increment> {
    let mut all = vec![Increment::NONE];
    all.extend((-257..=257).map(Increment::pow2));
    all.extend([i32::MIN, i32::MAX].map(Increment::pow2));
    for n in [
        i32::MIN,
        -255,
        -254,
        -127,
        -126,
        -30,
        -2,
        -1,
        0,
        1,
        2,
        5,
        127,
        254,
        255,
        i32::MAX,
    ] {
        for epsilon in [
            1.0 / 64.0,
            3.0 / 256.0,
            1e-3,
            1e-7,
            1e-9,
            f32::INFINITY,
            f32::NAN,
        ] {
            all.push(Increment::compensated(n, epsilon));
            all.push(Increment::compensated(n, -epsilon));
        }
    }
    for bits in [
        0,
        1,
        0x7f_ffff,
        0x80_0000,
        0x80_0001,
        0x7f00_0000,
        0x7f80_0000,
        i32::MAX,
    ] {
        all.push(Increment::from_bits_clamped(bits));
        all.push(Increment::from_bits_clamped(-bits));
    }
    all.push(Increment::from_bits_clamped(i32::MIN));
    all
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().copied().map(f32::from_bits).collect()
}

/// The element that differs, if any does; NaNs are told apart.
#[track_caller]
fn assert_added(got: &[f32], xs: &[f32], increment: Increment, context: &str) {
    assert_eq!(got.len(), xs.len());
    for (i, (got, &x)) in got.iter().zip(xs).enumerate() {
        let want = add_increment_f32(x, increment).to_bits();
        let (got, x) = (got.to_bits(), x.to_bits());
        assert!(
            got == want,
            "{x:#010x} + {:#x} is {got:#010x}, want {want:#010x}; element {i} {context}",
            increment.bits()
        );
    }
}

fn edges(backend: Backend) {
    let xs = floats(&patterns());
    for increment in increments() {
        let mut got = xs.clone();
        backend.rescale(&mut got, increment);
        assert_added(&got, &xs, increment, "of the edges");
    }
}

fn lengths_and_offsets(backend: Backend) {
    let patterns = patterns();
    // A step that has no common factor with their number: edges of all kinds.
    let mut at = (0..).map(|i| patterns[i * 1237 % patterns.len()]);
    for increment in [
        Increment::NONE,
        Increment::pow2(-3),
        Increment::pow2(200),
        Increment::compensated(-1, 0.01),
        Increment::compensated(2, -0.01),
    ] {
        for len in 0..=67 {
            for offset in 0..=16 {
                let bits: Vec<u32> = at.by_ref().take(offset + len + 17).collect();
                let xs = floats(&bits);
                let mut got = xs.clone();
                backend.rescale(&mut got[offset..offset + len], increment);
                let context = format!("of {len} at offset {offset}");
                let inside = offset..offset + len;
                assert_added(&got[inside.clone()], &xs[inside], increment, &context);
                for i in (0..offset).chain(offset + len..xs.len()) {
                    assert_eq!(got[i].to_bits(), bits[i], "outside {context}");
                }
            }
        }
    }
}

/// Every backend at once, as what is expected takes longer than what they do.
#[test]
#[ignore = "exhaustive: run with --release"]
fn every_pattern() {
    let backends: Vec<Backend> = backends().collect();
    let names: Vec<&str> = backends.iter().map(|b| b.id().name()).collect();
    let _ = writeln!(stderr(), "every FP32 pattern on {}", names.join(", "));
    let increments = [
        Increment::pow2(0),
        Increment::pow2(-1),
        Increment::pow2(-30),
        Increment::pow2(-126),
        Increment::pow2(-149),
        Increment::pow2(-255),
        Increment::pow2(5),
        Increment::pow2(254),
        Increment::pow2(255),
        Increment::from_bits_clamped(1),
        Increment::from_bits_clamped(-1),
        Increment::compensated(0, 3.0 / 256.0),
        Increment::compensated(-1, -3.0 / 256.0),
        Increment::compensated(-30, 1.0 / 64.0),
        Increment::compensated(3, -1.0 / 64.0),
    ];
    let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
    let share = (1 << 32) / threads;
    thread::scope(|scope| {
        for thread in 0..threads {
            let end = if thread + 1 == threads {
                1 << 32
            } else {
                (thread + 1) * share
            };
            let (increments, backends) = (&increments, &backends);
            scope.spawn(move || every_pattern_of(thread * share..end, increments, backends));
        }
    });
}

fn every_pattern_of(patterns: Range<u64>, increments: &[Increment], backends: &[Backend]) {
    // Small enough for L1d three times over.
    const CHUNK: usize = 1 << 11;
    let [mut xs, mut want, mut got] = [[0.0; CHUNK]; 3];
    for start in patterns.step_by(CHUNK) {
        for (x, bits) in xs.iter_mut().zip(start..) {
            *x = f32::from_bits(bits as u32);
        }
        for &increment in increments {
            for (want, &x) in want.iter_mut().zip(&xs) {
                *want = add_increment_f32(x, increment);
            }
            for backend in backends {
                got.copy_from_slice(&xs);
                backend.rescale(&mut got, increment);
                let differences = got
                    .iter()
                    .zip(&want)
                    .fold(0, |all, (got, want)| all | (got.to_bits() ^ want.to_bits()));
                if differences != 0 {
                    let context = format!("of its chunk on {}", backend.id().name());
                    assert_added(&got, &xs, increment, &context);
                }
            }
        }
    }
}
