//! Numbers drawn from an input. Behind its end all are 0.

use arbitrary::Unstructured;

pub struct Draw<'a>(Unstructured<'a>);

impl<'a> Draw<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u64(&mut self) -> u64 {
        self.0.arbitrary().unwrap_or_default()
    }

    pub fn u32(&mut self) -> u32 {
        self.0.arbitrary().unwrap_or_default()
    }

    pub fn u16(&mut self) -> u16 {
        self.0.arbitrary().unwrap_or_default()
    }

    pub fn u8(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or_default()
    }

    /// True once in `times` draws.
    pub fn once_in(&mut self, times: u8) -> bool {
        self.u8() % times == times - 1
    }

    /// A number of a range.
    pub fn among(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        let start = *range.start();
        self.0.int_in_range(range).unwrap_or(start)
    }

    /// One of some.
    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.among(0..=of.len() - 1)]
    }

    /// An exponent: mostly a moderate one, sometimes any.
    pub fn exponent(&mut self, moderate: usize) -> i32 {
        match self.u8() {
            0..=31 => self.u32().cast_signed(),
            _ => self.among(0..=2 * moderate) as i32 - moderate as i32,
        }
    }

    /// An FP32 pattern: any, or one with a mantissa of few bits and any exponent.
    pub fn f32(&mut self) -> f32 {
        let bits = self.u32();
        f32::from_bits(if self.once_in(2) {
            bits & 0xffe0_0003
        } else {
            bits
        })
    }

    /// What is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.0.bytes(self.0.len()).unwrap_or_default()
    }
}
