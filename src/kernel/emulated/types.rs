//! The vector types.

macro_rules! vectors {
    ($($(#[$doc:meta])* $name:ident: [$Lane:ty; $lanes:literal], $align:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C, align($align))]
        pub struct $name(pub(super) [$Lane; $lanes]);
    )*};
}

vectors! {
    /// 16 FP32.
    __m512: [f32; 16], 64;
    /// 512 bits, as 16 integers.
    __m512i: [i32; 16], 64;
    /// 512 bits, moved by 64.
    __m512d: [u64; 8], 64;
    /// 32 BF16.
    __m512bh: [u16; 32], 64;
    /// 8 FP32.
    __m256: [f32; 8], 32;
    /// 256 bits, as 8 integers.
    __m256i: [i32; 8], 32;
    /// 16 BF16.
    __m256bh: [u16; 16], 32;
    /// 4 FP32.
    __m128: [f32; 4], 16;
    /// 128 bits, as 4 integers.
    __m128i: [i32; 4], 16;
}

/// A bit for each of 16 lanes.
pub type __mmask16 = u16;
/// A bit for each of 32 lanes.
pub type __mmask32 = u32;
