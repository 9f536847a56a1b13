//! The caller's pointers, checked.
//!
//! Every slice of the library's is made here, after all checks that are possible. The caller must
//! see to the rest for as long as the call runs: the memory exists, nobody writes the inputs, and
//! nobody else touches the outputs.

use core::mem::{MaybeUninit, align_of, size_of};
use core::sync::atomic::{AtomicU16, AtomicU32};

use crate::fault::Fault;

/// Numbers for which every bit pattern is a value, and which have no padding.
///
/// # Safety
/// Implemented for nothing else.
pub unsafe trait Number: Copy {}

/// Structs made of numbers, pointers and such structs, the first of which is `struct_size`.
///
/// # Safety
/// Implemented for nothing else; every bit pattern is a value, though pointers may dangle. All zeros say
/// nothing with the fields behind the shortest size.
pub unsafe trait Struct: Copy {
    /// The size in version 1, whose fields the struct begins with.
    const FIRST: usize;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        // SAFETY: an integer or float, or a transparent wrapper of one (`half`'s).
        unsafe impl Number for $type {}
    )*};
}

numbers!(u8, i8, u64, usize, i32, i64, f32, half::bf16, half::f16);
// SAFETY: a wrapped integer and bytes, without padding: `bytemuck::Pod`.
unsafe impl Number for amla::format::Q8_0 {}
// SAFETY: as above.
unsafe impl Number for amla::format::Q4_0 {}

macro_rules! structs {
    ($($type:ident $(from $new:ident)?),*) => {$(
        // SAFETY: `repr(C)`, of integers, floats, pointers and arrays of them; that
        // `struct_size` is a `u32` at the beginning is asserted below.
        unsafe impl Struct for crate::types::$type {
            const FIRST: usize = structs!(@first $type $($new)?);
        }

        const _: () = assert!(core::mem::offset_of!(crate::types::$type, struct_size) == 0);
    )*};
    (@first $type:ident) => { size_of::<crate::types::$type>() };
    // The first of the fields that version 1 hadn't.
    (@first $type:ident $new:ident) => { core::mem::offset_of!(crate::types::$type, $new) };
}

structs!(
    Tensor,
    Indices from indices64,
    Extra,
    Output from max_logits,
    Call from v_offset,
    PlanInfo from partial_tasks,
    Part from max_logits,
    ErrorDetail,
    CapabilitySet
);

/// A struct of the library's own, as callers begin one: its size, and zeros.
pub fn blank<T: Struct>() -> T {
    // SAFETY: every bit pattern is a value (`Struct`).
    let mut blank: T = unsafe { core::mem::zeroed() };
    #[expect(clippy::cast_possible_truncation, reason = "some hundred bytes")]
    let size = size_of::<T>() as u32;
    // SAFETY: an exclusively borrowed struct, which begins with its `struct_size`, a `u32` (`Struct`).
    unsafe { (&raw mut blank).cast::<u32>().write(size) };
    blank
}

/// Memory of a call, as addresses.
#[derive(Clone, Copy)]
struct Region {
    argument: &'static str,
    start: usize,
    end: usize,
}

/// Which memory a call touches.
#[derive(Clone)]
pub struct Regions {
    all: [Region; Self::MAX],
    len: usize,
    /// Whether there was no room for a region. `MAX` is more than any call has; otherwise the call
    /// is refused.
    lost: bool,
    written: [Region; Self::MAX_WRITTEN],
    written_len: usize,
}

impl Regions {
    const MAX: usize = 48;
    const MAX_WRITTEN: usize = 5;
    const NONE: Region = Region {
        argument: "",
        start: 0,
        end: 0,
    };

    pub const fn new() -> Self {
        Self {
            all: [Self::NONE; Self::MAX],
            len: 0,
            lost: false,
            written: [Self::NONE; Self::MAX_WRITTEN],
            written_len: 0,
        }
    }

    fn read<T>(&mut self, argument: &'static str, memory: *const T, len: usize) {
        push(
            &mut self.all,
            &mut self.len,
            &mut self.lost,
            argument,
            memory,
            len,
        );
    }

    pub fn write<T>(&mut self, argument: &'static str, memory: *const T, len: usize) {
        let Self {
            written,
            written_len,
            lost,
            ..
        } = self;
        push(written, written_len, lost, argument, memory, len);
    }

    /// Refuses a call that would write what it also reads, or write it twice.
    pub fn check(&self) -> Result<(), Fault> {
        let (all, written) = (
            self.all.get(..self.len).unwrap_or_default(),
            self.written.get(..self.written_len).unwrap_or_default(),
        );
        for (i, a) in written.iter().enumerate() {
            for b in written.iter().skip(i + 1).chain(all) {
                if a.start < b.end && b.start < a.end {
                    return Err(Fault::Aliased {
                        first: a.argument,
                        second: b.argument,
                    });
                }
            }
        }
        if self.lost {
            return Err(Fault::TooManyRegions);
        }
        Ok(())
    }
}

fn push<T>(
    regions: &mut [Region],
    len: &mut usize,
    lost: &mut bool,
    argument: &'static str,
    memory: *const T,
    count: usize,
) {
    let start = memory.addr();
    match regions.get_mut(*len) {
        // The caller has checked that this doesn't overflow.
        Some(region) if count > 0 => {
            *region = Region {
                argument,
                start,
                end: start.saturating_add(count.saturating_mul(size_of::<T>())),
            };
            *len += 1;
        }
        Some(_) => {}
        None => *lost |= count > 0,
    }
}

/// What every slice of `len` elements needs, whatever is in it.
fn check<T>(argument: &'static str, memory: *const T, len: usize) -> Result<(), Fault> {
    if memory.is_null() {
        return Err(Fault::Null { argument });
    }
    aligned(argument, memory)?;
    let bytes = len.checked_mul(size_of::<T>());
    let fits = bytes.is_some_and(|bytes| {
        isize::try_from(bytes).is_ok() && memory.addr().checked_add(bytes).is_some()
    });
    if !fits {
        return Err(Fault::Extent { argument, len });
    }
    Ok(())
}

fn aligned<T>(argument: &'static str, memory: *const T) -> Result<(), Fault> {
    if memory.is_aligned() {
        Ok(())
    } else {
        Err(Fault::Misaligned {
            argument,
            align: align_of::<T>(),
        })
    }
}

/// Memory that a call reads; a null pointer is memory of no elements.
///
/// # Safety
/// Unless null or refused, `memory` has `len` elements that nobody writes during `'a`.
pub unsafe fn slice<'a, T: Number>(
    regions: &mut Regions,
    argument: &'static str,
    memory: *const T,
    len: usize,
) -> Result<&'a [T], Fault> {
    if len == 0 {
        return Ok(&[]);
    }
    check(argument, memory, len)?;
    regions.read(argument, memory, len);
    // SAFETY: not null, aligned, at most `isize::MAX` bytes that don't wrap around (`check`).
    // Every bit pattern is a `T` (`Number`). The elements exist and don't change: this function's
    // contract.
    Ok(unsafe { core::slice::from_raw_parts(memory, len) })
}

/// A list that a call may have: it hasn't where the pointer is null and there are no elements.
///
/// # Safety
/// As [`slice`].
pub unsafe fn list<'a, T: Number>(
    regions: &mut Regions,
    argument: &'static str,
    memory: *const T,
    len: usize,
) -> Result<Option<&'a [T]>, Fault> {
    if memory.is_null() && len == 0 {
        return Ok(None);
    }
    // SAFETY: needs what this function's contract promises.
    unsafe { slice(regions, argument, memory, len) }.map(Some)
}

/// Memory that a call writes. It becomes a slice in [`Written::claim`], when nothing was found
/// to overlap it.
pub struct Written<T> {
    memory: *mut T,
    len: usize,
}

impl<T: Number> Written<T> {
    pub fn new(
        regions: &mut Regions,
        argument: &'static str,
        memory: *mut T,
        len: usize,
    ) -> Result<Self, Fault> {
        if len > 0 {
            check(argument, memory, len)?;
            regions.write(argument, memory, len);
        }
        Ok(Self { memory, len })
    }

    /// Memory that the caller may leave out: it does where the pointer is null and there are no elements.
    pub fn optional(
        regions: &mut Regions,
        argument: &'static str,
        memory: *mut T,
        len: usize,
    ) -> Result<Option<Self>, Fault> {
        if memory.is_null() && len == 0 {
            return Ok(None);
        }
        Self::new(regions, argument, memory, len).map(Some)
    }

    /// Memory of one element, which there must be.
    pub fn required(
        regions: &mut Regions,
        argument: &'static str,
        memory: *mut T,
    ) -> Result<Self, Fault> {
        Self::new(regions, argument, memory, 1)
    }

    /// The same memory without its first elements, and no more than `len` of them.
    pub fn part(
        regions: &mut Regions,
        argument: &'static str,
        memory: *mut T,
        start: usize,
        len: usize,
    ) -> Result<Self, Fault> {
        if len == 0 {
            return Ok(Self { memory, len });
        }
        let end = start.checked_add(len).ok_or(Fault::Extent {
            argument,
            len: usize::MAX,
        })?;
        check(argument, memory, end)?;
        // Within what was just found to be in the address space.
        Self::new(regions, argument, memory.wrapping_add(start), len)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// The memory has `len` elements that nobody else touches during `'a`; the regions that
    /// it was entered in were checked.
    pub unsafe fn claim<'a>(self) -> &'a mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: not null, aligned and of a possible size (`new`). Every bit pattern is a `T`
        // (`Number`), so any content is valid, and code that this compiler doesn't see has written
        // or returned the memory. Nothing else of the call is in it (`Regions::check`), and nobody
        // else uses it (this function's contract).
        unsafe { core::slice::from_raw_parts_mut(self.memory, self.len) }
    }
}

impl<T: Number> Written<T> {
    /// The memory as atomics, which several calls may write at the same time.
    ///
    /// # Safety
    /// The memory has `len` elements that nobody touches during `'a` but calls that have it by this function; the regions that
    /// it was entered in were checked.
    pub unsafe fn share<'a, A>(self) -> &'a [A]
    where
        T: Atomic<As = A>,
    {
        const { assert!(size_of::<A>() == size_of::<T>() && align_of::<A>() == align_of::<T>()) };
        if self.len == 0 {
            return &[];
        }
        // SAFETY: not null, aligned and of a possible size (`new`, and above). An atomic has the bits of its integer, and any are
        // valid. Nothing else of the call is in it (`Regions::check`), and others touch it as atomics (this function's contract).
        unsafe { core::slice::from_raw_parts(self.memory.cast(), self.len) }
    }
}

/// Numbers that several threads write.
pub trait Atomic: Number {
    /// With the same bits.
    type As;
}

impl Atomic for f32 {
    type As = AtomicU32;
}

impl Atomic for half::bf16 {
    type As = AtomicU16;
}

impl Atomic for half::f16 {
    type As = AtomicU16;
}

/// The `struct_size` of a caller's struct, if it is one that the struct has or had; nothing else of it is read.
///
/// # Safety
/// Unless null or refused, there are as many bytes as the struct's `struct_size` says.
pub unsafe fn sized<T: Struct>(argument: &'static str, memory: *const T) -> Result<usize, Fault> {
    if memory.is_null() {
        return Err(Fault::Null { argument });
    }
    aligned(argument, memory)?;
    // SAFETY: aligned and not null (above); any struct begins with its `struct_size`
    // (asserted beside `Struct`'s implementations).
    let size = unsafe { memory.cast::<u32>().read() };
    match usize::try_from(size) {
        Ok(known) if known == size_of::<T>() || known == T::FIRST => Ok(known),
        _ => Err(Fault::StructSize {
            argument,
            size,
            expected: size_of::<T>(),
        }),
    }
}

/// A copy of the caller's struct; fields that its version hadn't are zeros.
///
/// # Safety
/// As [`sized`], and its fields are initialised.
pub unsafe fn read<T: Struct>(
    regions: &mut Regions,
    argument: &'static str,
    memory: *const T,
) -> Result<T, Fault> {
    // SAFETY: needs what this function's contract promises.
    let size = unsafe { sized(argument, memory) }?;
    regions.read(argument, memory.cast::<u8>(), size);
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: not null and as long as it says, at most as the type (`sized`), which is what there is room for here.
    unsafe {
        memory
            .cast::<u8>()
            .copy_to_nonoverlapping(copy.as_mut_ptr().cast(), size);
    }
    // SAFETY: every bit pattern is a value (`Struct`), zeros among them.
    Ok(unsafe { copy.assume_init() })
}

/// A struct that the caller may leave out.
///
/// # Safety
/// As [`read`].
pub unsafe fn read_optional<T: Struct>(
    regions: &mut Regions,
    argument: &'static str,
    memory: *const T,
) -> Result<Option<T>, Fault> {
    if memory.is_null() {
        return Ok(None);
    }
    // SAFETY: needs what this function's contract promises.
    unsafe { read(regions, argument, memory) }.map(Some)
}

/// Fills a struct of the caller's whose `struct_size` is right, as far as its version goes.
///
/// # Safety
/// As [`sized`]; nobody else touches the memory.
pub unsafe fn fill<T: Struct>(
    argument: &'static str,
    memory: *mut T,
    value: T,
) -> Result<(), Fault> {
    // SAFETY: needs what this function's contract promises.
    let size = unsafe { sized(argument, memory.cast_const()) }?;
    let bytes = (&raw const value).cast::<u8>();
    // SAFETY: not null, as long as it says, at most as the type (`sized`), and the caller's to be written. Its size stays.
    unsafe {
        let first = size_of::<u32>();
        let to = memory.cast::<u8>().add(first);
        bytes.add(first).copy_to_nonoverlapping(to, size - first);
    }
    Ok(())
}

/// Writes a number to the caller's memory.
///
/// # Safety
/// Unless null or refused, `memory` may be written.
pub unsafe fn put<T: Copy>(argument: &'static str, memory: *mut T, value: T) -> Result<(), Fault> {
    check(argument, memory, 1)?;
    // SAFETY: not null and aligned (`check`), and the caller's to be written.
    unsafe { memory.write(value) };
    Ok(())
}

// Compiled where the modules are part of a test: `tests/abi.rs`.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_without_room_is_not_forgotten() {
        let mut regions = Regions::new();
        for _ in 0..Regions::MAX {
            regions.read("q", &0_u8, 1);
        }
        assert!(regions.check().is_ok());
        regions.read("kv", &0_u8, 1);
        assert!(matches!(regions.check(), Err(Fault::TooManyRegions)));
        // Nor when what comes behind it is nothing.
        regions.read("sink", &0_u8, 0);
        assert!(matches!(regions.check(), Err(Fault::TooManyRegions)));
    }
}
