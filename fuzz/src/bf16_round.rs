//! BF16 rounding against the `half` crate and against the definition.

use amla::bits::{bf16_round, bf16_round_slice, bf16_to_f32, bf16_to_f32_slice};
use half::bf16;

use crate::draw::Draw;

pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut xs = Vec::new();
    while !draw.is_empty() && xs.len() < 256 {
        xs.push(draw.f32());
    }
    for &x in &xs {
        let (got, bits) = (bf16_round(x), x.to_bits());
        assert_eq!(got, bf16::from_f32(x).to_bits(), "{bits:#010x}");
        let back = bf16_to_f32(got);
        assert_eq!(back.to_bits(), u32::from(got) << 16);
        assert_eq!(bf16_round(back), got, "{bits:#010x} rounded twice");
        if x.is_nan() {
            let payload = bits >> 16 & 0xffbf;
            assert!(
                back.is_nan() && u32::from(got & 0xffbf) == payload,
                "{bits:#010x}"
            );
            continue;
        }
        // The nearest of the number cut off and the next one, the even one of two: a number
        // is as far from either as its lower half says.
        let cut = (bits >> 16) as u16;
        let up = match bits & 0xffff {
            ..0x8000 => false,
            0x8000 => cut % 2 == 1,
            _ => true,
        };
        assert_eq!(got, cut + u16::from(up), "{bits:#010x}");
    }
    slices(&xs, draw.among(0..=3));
}

/// As far as the shorter of the two goes.
fn slices(xs: &[f32], fewer: usize) {
    const UNWRITTEN: u16 = 0x5a5a;
    for len in [xs.len().saturating_sub(fewer), xs.len() + fewer] {
        let mut rounded = vec![UNWRITTEN; len];
        bf16_round_slice(xs, &mut rounded);
        let want = xs.iter().map(|&x| bf16_round(x));
        let want: Vec<u16> = want.chain([UNWRITTEN; 3]).take(len).collect();
        assert_eq!(rounded, want);
        let mut back = vec![f32::from_bits(UNWRITTEN.into()); xs.len()];
        bf16_to_f32_slice(&rounded, &mut back);
        for (i, x) in back.iter().enumerate() {
            let want = rounded
                .get(i)
                .map_or(UNWRITTEN.into(), |&x| u32::from(x) << 16);
            assert_eq!(x.to_bits(), want);
        }
    }
}

/// The kind of the first number, and how it rounds.
pub fn kind(data: &[u8]) -> Option<String> {
    let x = Draw::new(data).f32();
    let cut = match x.to_bits() & 0xffff {
        0 => "short",
        0x8000 => "tie",
        1..0x8000 => "down",
        _ => "up",
    };
    Some(format!("{:?}-{cut}", x.classify()).to_lowercase())
}
