//! Each twin against its instruction, bit for bit, where the processor has it.
//!
//! Operands are random, and special often: NaNs of either kind and with payloads, infinities, zeros, subnormals, numbers next to a
//! limit of FP32, halves. Every immediate that a kernel uses has a line of its own in the tables, which a test compares with
//! the sources.
//!
//! Of two operands that are NaN, sums, products and multiply-adds give either: the compiler may swap factors and terms. So a
//! lane has one there. Dots are one instruction with operands in order, and have as many as come.

extern crate std;

use core::arch::x86_64 as native;
use core::mem::transmute_copy;
use std::is_x86_feature_detected as has;
use std::println;
use std::string::String;
use std::vec::Vec;

use super::super::emulated as twin;
use super::*;
use crate::kernel::zmm::NOT_FINITE;

/// Pseudo-random numbers (xorshift).
struct Random {
    state: u64,
    /// Lanes in which no more NaN may come, and whether a NaN shuts its lane.
    shut: u16,
    shuts: bool,
}

impl Random {
    fn new(shuts: bool) -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
            shut: 0,
            shuts,
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "some of its bits")]
    fn word(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 20) as u32
    }

    fn one_of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.word() as usize % some.len()]
    }

    /// An exponent: of what is special, in the middle, or such that products come close to the limits.
    fn exponent(&mut self) -> u32 {
        match self.word() % 8 {
            0 => self.one_of(&[0, 1, 2, 23, 24, 103, 126, 127, 149, 150, 253, 254, 255]),
            1 => 50 + self.word() % 20,
            2 => 185 + self.word() % 10,
            3 => self.word() % 256,
            _ => 120 + self.word() % 14,
        }
    }

    /// An FP32, of which BF16 is the upper half.
    fn float(&mut self, lane: usize) -> u32 {
        let mantissa = match self.word() % 4 {
            0 => self.one_of(&[
                0, 1, 0x40_0000, 0x40_0001, 0x7f_ffff, 0x7f_0000, 0x00_8000, 0x01_8000, 0x00_7fff,
                0x00_8001,
            ]),
            1 => self.word() & 0x7f_0000,
            _ => self.word() & 0x7f_ffff,
        };
        let magnitude = match self.word() % 8 {
            // Often enough to meet another one.
            0 => self.one_of(&[0, 0x3f80_0000, 0x7f80_0000, 0x7f80_0001, 0x7fc0_0001]),
            _ => self.exponent() << 23 | mantissa,
        };
        let mut bits = self.word() & 0x8000_0000 | magnitude;
        if f32::from_bits(bits).is_nan() {
            if self.shut >> lane & 1 != 0 {
                bits = 0x3fc0_0000;
            }
            self.shut |= u16::from(self.shuts) << lane;
        }
        bits
    }

    /// A small integer, a half between two, or the number next to one.
    fn count(&mut self, lane: usize) -> u32 {
        let integer = f32::from(u16::try_from(self.word() % 600).unwrap()) - 300.0;
        match self.word() % 4 {
            0 => self.float(lane),
            1 => (integer + 0.5).to_bits(),
            2 => integer.to_bits() ^ 1,
            _ => integer.to_bits(),
        }
    }

    /// Two BF16.
    fn pair(&mut self, lane: usize) -> u32 {
        self.float(lane) & 0xffff_0000 | self.float(lane) >> 16
    }

    /// Two FP16.
    fn halves(&mut self) -> u32 {
        let special = [0, 1, 0x3ff, 0x400, 0x7bff, 0x7c00, 0x7c01, 0x7e00, 0x7fff];
        match self.word() % 2 {
            0 => {
                let sign = self.word() & 0x8000_8000;
                self.one_of(&special) | self.one_of(&special) << 16 | sign
            }
            _ => self.word(),
        }
    }
}

/// A kind of operands.
trait Kind {
    type Native: Copy;
    type Twin: Copy;

    /// A lane of 32 bits, whichever part of it counts.
    fn lane(random: &mut Random, lane: usize) -> u32;
}

macro_rules! kinds {
    ($($Kind:ident: $Native:ty, $Twin:ty, $lane:expr;)*) => {$(
        struct $Kind;

        impl Kind for $Kind {
            type Native = $Native;
            type Twin = $Twin;

            fn lane(random: &mut Random, lane: usize) -> u32 {
                let draw: fn(&mut Random, usize) -> u32 = $lane;
                draw(random, lane)
            }
        }
    )*};
}

kinds! {
    Ps: native::__m512, __m512, Random::float;
    Counts: native::__m512, __m512, Random::count;
    Pd: native::__m512d, __m512d, |random, _| random.word();
    Si: native::__m512i, __m512i, |random, _| random.word();
    Bh: native::__m512bh, __m512bh, Random::pair;
    Ps256: native::__m256, __m256, Random::float;
    Si256: native::__m256i, __m256i, |random, _| random.word();
    Bh256: native::__m256bh, __m256bh, Random::pair;
    Ph256: native::__m256i, __m256i, |random, _| random.halves();
    Ps128: native::__m128, __m128, Random::float;
    Si128: native::__m128i, __m128i, |random, _| random.word();
    Mask: u16, u16, |random, _| random.word();
    F32: f32, f32, Random::float;
    I16: i16, i16, |random, _| random.word();
    I32: i32, i32, |random, _| random.word();
    I64: i64, i64, |random, _| random.word();
}

/// The same operand for both.
fn draw<K: Kind>(random: &mut Random) -> (K::Native, K::Twin) {
    let bits: [u32; 16] = core::array::from_fn(|lane| K::lane(random, lane));
    const { assert!(size_of::<K::Native>() == size_of::<K::Twin>()) };
    const { assert!(size_of::<K::Native>() <= 64) };
    // SAFETY: neither is larger than the operand of `transmute_copy`, and every pattern is a value of both.
    unsafe { (transmute_copy(&bits), transmute_copy(&bits)) }
}

/// The first bytes of a result.
fn bytes<const N: usize, T: Copy>(x: &T) -> [u8; N] {
    const { assert!(size_of::<T>() >= N) };
    // SAFETY: `T` has `N` bytes, by the assertion, and all are initialised: vectors and integers have no padding.
    unsafe { transmute_copy(x) }
}

const TIMES: usize = 3000;

/// What a table compares: the name, and the immediate.
type Compared = (&'static str, &'static str);

/// Tables of twins: operands, and how many bytes of the result are specified.
macro_rules! twins {
    ($table:ident, $test:ident, $has:expr, one NaN a lane: $shuts:literal;
     $($name:ident $(::<$how:tt>)? ($($arg:ident: $Kind:ident),*) -> $bytes:literal;)*) => {
        const $table: &[Compared] = &[$((stringify!($name), concat!($(stringify!($how))?)),)*];

        #[test]
        fn $test() {
            if !$has {
                println!("not run: this processor lacks the instructions");
                return;
            }
            let mut random = Random::new($shuts);
            $(for _ in 0..TIMES {
                random.shut = 0;
                $(let $arg = draw::<$Kind>(&mut random);)*
                // SAFETY: the processor has the instruction, which takes values alone.
                #[allow(unused_unsafe, reason = "some of core::arch's are safe to call")]
                let want = unsafe { native::$name $(::<$how>)? ($($arg.0),*) };
                let got = twin::$name $(::<$how>)? ($($arg.1),*);
                assert_eq!(
                    bytes::<$bytes, _>(&got),
                    bytes::<$bytes, _>(&want),
                    "{} {:?}",
                    stringify!($name),
                    [concat!($(stringify!($how))?).into(), $(std::format!("{:x?}", $arg.1)),*] as [String; _]
                );
            })*
        }
    };
}

fn has_avx512() -> bool {
    has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl")
}

/// The immediate of shifts that are generic.
const N: u32 = 20;

twins! {
    SUMS, sums_and_products, has_avx512(), one NaN a lane: true;
    _mm512_add_ps(a: Ps, b: Ps) -> 64;
    _mm512_sub_ps(a: Ps, b: Ps) -> 64;
    _mm512_mul_ps(a: Ps, b: Ps) -> 64;
    _mm512_mask_mul_ps(from: Ps, mask: Mask, a: Ps, b: Ps) -> 64;
    _mm512_fmadd_ps(a: Ps, b: Ps, c: Ps) -> 64;
    _mm512_fmsub_ps(a: Ps, b: Ps, c: Ps) -> 64;
    _mm512_mask3_fmadd_ps(a: Ps, b: Ps, c: Ps, mask: Mask) -> 64;
    _mm256_add_ps(a: Ps256, b: Ps256) -> 32;
    _mm_add_ps(a: Ps128, b: Ps128) -> 16;
}

twins! {
    LANES, lanes, has_avx512(), one NaN a lane: false;
    _mm512_max_ps(a: Ps, b: Ps) -> 64;
    _mm512_mask_max_ps(from: Ps, mask: Mask, a: Ps, b: Ps) -> 64;
    _mm256_max_ps(a: Ps256, b: Ps256) -> 32;
    _mm_max_ps(a: Ps128, b: Ps128) -> 16;
    _mm512_abs_ps(x: Ps) -> 64;
    _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x: Counts) -> 64;
    _mm512_roundscale_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(x: Counts) -> 64;
    _mm512_scalef_ps(a: Ps, b: Counts) -> 64;
    _mm512_maskz_scalef_ps(mask: Mask, a: Ps, b: Counts) -> 64;
    _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a: Ps, b: Ps) -> 2;
    _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a: Counts, b: Counts) -> 2;
    _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a: Ps, b: Ps) -> 2;
    _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a: Counts, b: Counts) -> 2;
    _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a: Counts, b: Counts) -> 2;
    _mm512_cmp_ps_mask::<_CMP_NGE_UQ>(a: Counts, b: Counts) -> 2;
    _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a: Counts, b: Counts) -> 2;
    _mm512_mask_cmp_ps_mask::<_CMP_NEQ_UQ>(mask: Mask, a: Counts, b: Counts) -> 2;
    _mm512_fpclass_ps_mask::<NOT_FINITE>(x: Ps) -> 2;
    _mm512_mask_fpclass_ps_mask::<NOT_FINITE>(mask: Mask, x: Ps) -> 2;
    _mm512_add_epi32(a: Si, b: Si) -> 64;
    _mm512_max_epu16(a: Si, b: Si) -> 64;
    _mm512_slli_epi32::<16>(x: Si) -> 64;
    _mm512_slli_epi32::<N>(x: Si) -> 64;
    _mm512_slli_epi32::<23>(x: Si) -> 64;
    _mm512_srli_epi32::<16>(x: Si) -> 64;
    _mm512_cmpgt_epi32_mask(a: Si, b: Si) -> 2;
    _mm512_cmpge_epu16_mask(a: Si, b: Si) -> 4;
    _mm512_and_si512(a: Si, b: Si) -> 64;
    _mm512_or_si512(a: Si, b: Si) -> 64;
    _mm512_xor_si512(a: Si, b: Si) -> 64;
    _mm512_or_ps(a: Ps, b: Ps) -> 64;
    _mm512_cvtepi32_ps(x: Si) -> 64;
    _mm512_maskz_cvtps_epi32(mask: Mask, x: Counts) -> 64;
    _mm512_cvtepi8_epi32(x: Si128) -> 64;
    _mm512_cvtepu16_epi32(x: Si256) -> 64;
    _mm512_cvtepi32_epi16(x: Si) -> 32;
    _mm512_cvtph_ps(x: Ph256) -> 64;
}

twins! {
    MOVES, moves, has_avx512(), one NaN a lane: false;
    _mm512_setzero_ps() -> 64;
    _mm512_setzero_si512() -> 64;
    _mm512_set1_ps(x: F32) -> 64;
    _mm512_set1_epi32(x: I32) -> 64;
    _mm512_set1_epi16(x: I16) -> 64;
    _mm512_setr_epi32(
        a: I32, b: I32, c: I32, d: I32, e: I32, f: I32, g: I32, h: I32,
        i: I32, j: I32, k: I32, l: I32, m: I32, n: I32, o: I32, p: I32
    ) -> 64;
    _mm512_setr_epi64(
        a: I64, b: I64, c: I64, d: I64, e: I64, f: I64, g: I64, h: I64
    ) -> 64;
    _mm_setr_ps(a: F32, b: F32, c: F32, d: F32) -> 16;
    _mm512_castps_pd(x: Ps) -> 64;
    _mm512_castpd_ps(x: Pd) -> 64;
    _mm512_castps_si512(x: Ps) -> 64;
    _mm512_castsi512_ps(x: Si) -> 64;
    _mm512_castps512_ps256(x: Ps) -> 32;
    _mm256_castps256_ps128(x: Ps256) -> 16;
    _mm512_castsi512_si256(x: Si) -> 32;
    _mm512_castps128_ps512(x: Ps128) -> 16;
    _mm512_castsi256_si512(x: Si256) -> 32;
    _mm512_extractf32x8_ps::<1>(x: Ps) -> 32;
    _mm512_extracti64x4_epi64::<1>(x: Si) -> 32;
    _mm256_extractf128_ps::<1>(x: Ps256) -> 16;
    _mm512_insertf32x4::<1>(x: Ps, part: Ps128) -> 64;
    _mm512_insertf32x4::<2>(x: Ps, part: Ps128) -> 64;
    _mm512_insertf32x4::<3>(x: Ps, part: Ps128) -> 64;
    _mm512_inserti64x4::<1>(x: Si, part: Si256) -> 64;
    _mm512_broadcast_i64x4(x: Si256) -> 64;
    _mm512_mask_broadcast_f32x4(from: Ps, mask: Mask, x: Ps128) -> 64;
    _mm512_mask_mov_ps(from: Ps, mask: Mask, x: Ps) -> 64;
    _mm512_maskz_mov_ps(mask: Mask, x: Ps) -> 64;
    _mm512_mask_mov_epi32(from: Si, mask: Mask, x: Si) -> 64;
    _mm512_mask_blend_ps(mask: Mask, no: Ps, yes: Ps) -> 64;
    _mm512_permutex2var_ps(a: Ps, index: Si, b: Ps) -> 64;
    _mm512_permutex2var_epi16(a: Si, index: Si, b: Si) -> 64;
    _mm512_permutex2var_epi32(a: Si, index: Si, b: Si) -> 64;
    _mm512_permutex2var_epi64(a: Si, index: Si, b: Si) -> 64;
    _mm512_permutexvar_ps(index: Si, x: Ps) -> 64;
    _mm512_permutexvar_epi16(index: Si, x: Si) -> 64;
    _mm512_permute_ps::<0b10_11_00_01>(x: Ps) -> 64;
    _mm512_shuffle_ps::<0b10_00_10_00>(a: Ps, b: Ps) -> 64;
    _mm512_shuffle_ps::<0b11_01_11_01>(a: Ps, b: Ps) -> 64;
    _mm512_shuffle_f32x4::<0b01_00_11_10>(a: Ps, b: Ps) -> 64;
    _mm512_shuffle_f32x4::<0b10_00_10_00>(a: Ps, b: Ps) -> 64;
    _mm512_shuffle_f32x4::<0b11_01_11_01>(a: Ps, b: Ps) -> 64;
    _mm512_shuffle_i64x2::<0x44>(a: Si, b: Si) -> 64;
    _mm512_shuffle_i64x2::<0xee>(a: Si, b: Si) -> 64;
    _mm512_unpacklo_ps(a: Ps, b: Ps) -> 64;
    _mm512_unpackhi_ps(a: Ps, b: Ps) -> 64;
    _mm512_unpacklo_pd(a: Pd, b: Pd) -> 64;
    _mm512_unpackhi_pd(a: Pd, b: Pd) -> 64;
    _mm512_unpacklo_epi16(a: Si, b: Si) -> 64;
    _mm512_unpackhi_epi16(a: Si, b: Si) -> 64;
    _mm512_unpacklo_epi64(a: Si, b: Si) -> 64;
    _mm512_unpackhi_epi64(a: Si, b: Si) -> 64;
}

twins! {
    BF16, bf16, has_avx512() && has!("avx512bf16"), one NaN a lane: false;
    _mm512_cvtneps_pbh(x: Ps) -> 32;
    _mm512_cvtne2ps_pbh(high: Ps, low: Ps) -> 64;
    _mm512_cvtpbh_ps(x: Bh256) -> 64;
    _mm512_dpbf16_ps(sums: Ps, a: Bh, b: Bh) -> 64;
}

/// Dots next to the limits of the normal numbers, of infinities and NaN, in all combinations.
#[test]
fn dots_at_the_limits() {
    const SUMS: [u32; 14] = [
        0,
        1,
        0x007f_ffff,
        0x0080_0000,
        0x0080_0001,
        0x00ff_ffff,
        0x0100_0000,
        0x3f80_0000,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7f80_0001,
        0x7fc0_0001,
        0x8080_0000,
        0xff80_0000,
    ];
    // 2^-80, 2^-76, 2^-75, 2^-74, 2^-63, the same with all bits, 1, 2^64, infinity, NaN.
    const ELEMENTS: [u16; 17] = [
        0, 0x0001, 0x007f, 0x1780, 0x1980, 0x1a00, 0x1a80, 0x2000, 0x207f, 0x3f80, 0x5f80, 0x7f7f,
        0x7f80, 0x7f81, 0x7fc1, 0x9a00, 0xdf80,
    ];
    if !(has_avx512() && has!("avx512bf16")) {
        println!("not run: this processor lacks the instructions");
        return;
    }
    let pair = |n: usize| {
        let [even, odd] = [n % ELEMENTS.len(), n / ELEMENTS.len()].map(|i| ELEMENTS[i]);
        u32::from(even) | u32::from(odd) << 16
    };
    let pairs = ELEMENTS.len().pow(2);
    for sum in SUMS {
        for a in 0..pairs {
            for b in (0..pairs).step_by(16) {
                let sums = [sum; 16];
                let a = [pair(a); 16];
                let b: [u32; 16] = core::array::from_fn(|i| pair((b + i) % pairs));
                // SAFETY: all are 64 bytes, of which every pattern is a value; the processor has the instruction.
                let (want, got) = unsafe {
                    let (sums, a, b) = (
                        transmute_copy(&sums),
                        transmute_copy(&a),
                        transmute_copy(&b),
                    );
                    let want = native::_mm512_dpbf16_ps(sums, a, b);
                    let (sums, a, b) = (
                        transmute_copy(&sums),
                        transmute_copy(&a),
                        transmute_copy(&b),
                    );
                    (want, _mm512_dpbf16_ps(sums, a, b))
                };
                assert_eq!(
                    bytes::<64, _>(&got),
                    bytes::<64, _>(&want),
                    "{sum:x} {a:x?} {b:x?}"
                );
            }
        }
    }
}

/// Three tiles: sums, and two operands.
type Operands = [assembly::Tile; 3];

/// A block on tiles for the processor, or for the interpreter.
macro_rules! block {
    ($asm:ident, $operands:expr) => {
        // SAFETY: the processor has AMX, or else the interpreter has. The operands are three tiles, the configuration 64 bytes.
        unsafe {
            $asm!(
                "ldtilecfg [{config}]",
                "tilezero tmm3",
                "tileloadd tmm0, [{at} + 1*{row}]",
                "tileloadd tmm6, [{at} + 1*{row} + 1024]",
                "tileloadd tmm7, [{at} + 1*{row} + 2048]",
                "tdpbf16ps tmm0, tmm6, tmm7",
                "tdpbf16ps tmm3, tmm6, tmm7",
                "tilestored [{at} + 1*{row}], tmm0",
                "tilestored [{at} + 1*{row} + 1024], tmm3",
                "tilerelease",
                config = in(reg) &raw const assembly::EIGHT_OF_16_X_64,
                at = in(reg) core::ptr::from_mut::<Operands>($operands),
                row = in(reg) 64_usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            )
        }
    };
}

/// Products of tiles. Which of several NaNs comes isn't told by Intel's manual: the operands have none, but infinities.
#[cfg(not(amla_emulated))]
#[test]
fn products_of_tiles() {
    use core::arch::asm as processor;

    use super::assembly::asm as interpreted;
    use crate::kernel::{Backend, BackendId};

    Backend::permit_amx();
    if Backend::request(BackendId::Amx).is_err() {
        println!("not run: this processor or process has no AMX");
        return;
    }
    let mut random = Random::new(false);
    for _ in 0..TIMES {
        random.shut = u16::MAX;
        let mut lanes = [[[0; 16]; 16]; 3];
        for sum in lanes[0].as_flattened_mut() {
            *sum = random.float(0);
        }
        for pair in lanes[1..].as_flattened_mut().as_flattened_mut() {
            *pair = random.pair(0);
        }
        let (mut want, mut got) = (lanes, lanes);
        block!(processor, &mut want);
        block!(interpreted, &mut got);
        let one_nan = |tiles: Operands| {
            tiles.map(|tile| {
                tile.map(|row| {
                    row.map(|x| {
                        if f32::from_bits(x).is_nan() {
                            u32::MAX
                        } else {
                            x
                        }
                    })
                })
            })
        };
        assert_eq!(one_nan(got), one_nan(want));
    }
}

/// Sums of products of integers: exact in any order.
#[test]
fn products_of_integers() {
    use super::assembly::asm as interpreted;

    #[expect(clippy::cast_possible_truncation, reason = "the upper half")]
    let bf16 = |n: usize| ((f32::from(n as u16 % 13) - 6.0).to_bits() >> 16) as u16;
    let number = |pair: u32, half: usize| f32::from_bits((pair >> (16 * half)) << 16);
    let pair = |n| u32::from(bf16(5 * n + 1)) | u32::from(bf16(3 * n)) << 16;
    let mut tiles: Operands = core::array::from_fn(|tile| {
        core::array::from_fn(|row| core::array::from_fn(|i| pair(tile + 7 * row + 4 * i)))
    });
    tiles[0] = [[1.5_f32.to_bits(); 16]; 16];
    let [_, a, b] = tiles;
    block!(interpreted, &mut tiles);
    for row in 0..16 {
        for column in 0..16 {
            let products = (0..16).flat_map(|i| {
                [0, 1].map(|half| number(a[row][i], half) * number(b[i][column], half))
            });
            let sum: f32 = products.sum();
            assert_eq!(f32::from_bits(tiles[0][row][column]), 1.5 + sum);
            assert_eq!(f32::from_bits(tiles[1][row][column]), sum);
        }
    }
    assert_eq!(tiles[2], b);
}

/// What blocks have beside tiles: loops, jumps either way, arithmetic, loads.
#[test]
fn blocks_are_interpreted() {
    const BLOCK: [&str; 15] = [
        "mov {v}, [{at} + 8]",
        "mov {sum}, {v}",
        "shl {sum}, 2",
        "test {skips}, {skips}",
        "jnz 2f",
        "add {sum}, 100",
        "jmp 3f",
        "2:",
        "add {sum}, {v}",
        "prefetcht1 [{at} + 1*{v} + 64]",
        "3:",
        "add {at}, 8",
        "dec {v}",
        "jnz 3b",
        "2:",
    ];
    let memory = [3_usize, 5];
    for (skips, sum) in [(0, 120), (1, 25)] {
        let at = memory.as_ptr().expose_provenance();
        let mut registers = [at, 0, 0, skips];
        // SAFETY: two words are there to be read.
        unsafe { assembly::run(&BLOCK, &["at", "v", "sum", "skips"], &mut registers) };
        assert_eq!(registers, [at + 5 * 8, 0, sum, skips]);
    }
}

#[test]
#[should_panic(expected = "no instruction vaddps")]
fn other_instructions_are_refused() {
    // SAFETY: it panics.
    unsafe { assembly::run(&["vaddps zmm0, zmm0, zmm0"], &[], &mut []) };
}

/// Loads and stores, at any distance from a multiple of their size.
macro_rules! memory {
    ($(load $load:ident -> $loaded:literal;)* $(store $store:ident($Kind:ident);)*) => {
        const MEMORY: &[Compared] =
            &[$((stringify!($load), ""),)* $((stringify!($store), ""),)* ("_mm512_maskz_loadu_ps", "")];

        #[test]
        fn memory() {
            if !has_avx512() {
                println!("not run: this processor lacks the instructions");
                return;
            }
            let mut random = Random::new(false);
            for i in 0..64 {
                let from: [u32; 32] = core::array::from_fn(|_| random.word());
                // SAFETY: there are more than 64 bytes from this one on, and the processor has the instruction.
                $(unsafe {
                    let at = from.as_ptr().cast::<u8>().add(i);
                    let want = native::$load(at.cast());
                    let got = twin::$load(at.cast());
                    assert_eq!(bytes::<$loaded, _>(&got), bytes::<$loaded, _>(&want));
                })*
                $({
                    let x = draw::<$Kind>(&mut random);
                    let (mut want, mut got) = (from, from);
                    // SAFETY: there is room for more than 64 bytes from this one on, and the processor has the
                    // instruction.
                    unsafe {
                        native::$store(want.as_mut_ptr().cast::<u8>().add(i).cast(), x.0);
                        twin::$store(got.as_mut_ptr().cast::<u8>().add(i).cast(), x.1);
                    }
                    assert_eq!(got, want);
                })*
                let lanes = from.map(f32::from_bits);
                let mask = draw::<Mask>(&mut random).0;
                // Of these no more are there.
                let some = 16 - mask.leading_zeros() as usize;
                let end = &lanes[lanes.len() - some..];
                // SAFETY: the lanes that the mask has are there, and the processor has the instruction.
                let (got, want) = unsafe {
                    (
                        twin::_mm512_maskz_loadu_ps(mask, end.as_ptr()),
                        native::_mm512_maskz_loadu_ps(mask, end.as_ptr()),
                    )
                };
                assert_eq!(bytes::<64, _>(&got), bytes::<64, _>(&want));
            }
        }
    };
}

memory! {
    load _mm512_loadu_ps -> 64;
    load _mm512_loadu_si512 -> 64;
    load _mm256_loadu_si256 -> 32;
    load _mm_loadu_si128 -> 16;
    store _mm512_storeu_ps(Ps);
    store _mm512_storeu_si512(Si);
    store _mm_storeu_ps(Ps128);
}

macro_rules! constants {
    ($($name:ident)*) => {
        const CONSTANTS: &[&str] = &[$(stringify!($name)),*];

        #[test]
        fn constants() {
            $(assert_eq!(twin::$name, native::$name);)*
        }
    };
}

constants! {
    _CMP_LT_OQ _CMP_LE_OQ _CMP_UNORD_Q _CMP_NEQ_UQ _CMP_NLT_UQ _CMP_NGE_UQ _CMP_GE_OQ
    _MM_FROUND_TO_NEAREST_INT _MM_FROUND_TO_POS_INF _MM_FROUND_NO_EXC
    _MM_HINT_T0 _MM_HINT_T1
}

/// The kernels that run over the twins.
const KERNELS: [&str; 4] = ["amx", "avx512.rs", "avx512bf16", "zmm"];

/// The text of a file, or of all in a folder.
fn text(path: &std::path::Path) -> String {
    if !path.is_dir() {
        return std::fs::read_to_string(path).unwrap();
    }
    let files = std::fs::read_dir(path).unwrap();
    files.map(|file| text(&file.unwrap().path())).collect()
}

/// Every instruction and constant of the kernels stands in a table, and nothing else does.
#[test]
fn every_instruction_is_compared() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernel");
    let source: String = KERNELS
        .iter()
        .map(|name| text(&folder.join(name)))
        .collect();
    let dense: String = source.split_whitespace().collect();
    let mut used = Vec::new();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, _) in dense.match_indices('_') {
        if dense[..at].ends_with(is_name) {
            continue;
        }
        let (name, rest) = dense[at..].split_at(dense[at..].find(|c| !is_name(c)).unwrap());
        let how = rest
            .strip_prefix("::<")
            .map_or("", |rest| rest.split('>').next().unwrap());
        if ["_mm", "_MM_", "_CMP_"]
            .iter()
            .any(|start| name.starts_with(start))
        {
            used.push((String::from(name), String::from(how)));
        }
    }
    used.sort();
    used.dedup();
    let tables = [SUMS, LANES, MOVES, BF16, MEMORY].concat();
    let mut compared: Vec<_> = tables
        .into_iter()
        .map(|(name, how)| {
            (
                String::from(name),
                how.split_whitespace().collect::<String>(),
            )
        })
        .chain(
            CONSTANTS
                .iter()
                .map(|&name| (String::from(name), String::new())),
        )
        // Nothing to compare: no program can tell what they did.
        .chain(
            ["_MM_HINT_T0", "_MM_HINT_T1"]
                .map(|how| (String::from("_mm_prefetch"), String::from(how))),
        )
        .collect();
    compared.sort();
    let missing: Vec<_> = used
        .iter()
        .filter(|&used| !compared.contains(used))
        .collect();
    assert!(
        missing.is_empty(),
        "kernels use, and no table has: {missing:?}"
    );
    let needless: Vec<_> = compared
        .iter()
        .filter(|&compared| !used.contains(compared))
        .collect();
    assert!(
        needless.is_empty(),
        "tables have, and no kernel uses: {needless:?}"
    );
}
