//! Memory that several threads write, each its own part.
#![allow(
    unsafe_code,
    reason = "parts of memory that no other thread has, and views as atomics"
)]

use core::slice;
use core::sync::atomic::{AtomicU16, AtomicU32};

#[cfg(target_has_atomic = "ptr")]
pub use chunks::Chunks;

/// For processors that exchange atomic words: others have one core.
#[cfg(target_has_atomic = "ptr")]
mod chunks {
    use core::marker::PhantomData;
    use core::ops::{Deref, DerefMut};
    use core::ptr::NonNull;
    use core::slice;
    use core::sync::atomic::{AtomicUsize, Ordering};

    /// Memory in chunks, of which each is given out once, to any thread.
    pub struct Chunks<'a, T> {
        memory: NonNull<T>,
        each: usize,
        count: usize,
        /// Calls of `take`.
        taken: AtomicUsize,
        /// How many chunks were given back.
        back: AtomicUsize,
        borrow: PhantomData<&'a mut [T]>,
    }

    // SAFETY: threads get elements by exclusive access, no element twice (`take`), and by shared references when all of that is
    // over (`all`).
    unsafe impl<T: Send + Sync> Sync for Chunks<'_, T> {}

    impl<'a, T> Chunks<'a, T> {
        /// Chunks of `each` elements, of which there is one at least; what is left behind the last isn't given out.
        pub const fn new(memory: &'a mut [T], each: usize) -> Self {
            assert!(each > 0);
            let count = memory.len() / each;
            Self {
                memory: NonNull::from_mut(memory).cast(),
                each,
                count,
                taken: AtomicUsize::new(0),
                back: AtomicUsize::new(0),
                borrow: PhantomData,
            }
        }

        /// The number of times that this was called before, and the chunk of this number, if there is one.
        pub fn take(&self) -> (usize, Option<Chunk<'_, T>>) {
            let next = |i: usize| i.checked_add(1);
            // Relaxed: what is in a chunk was written before threads could take it.
            let taken = self
                .taken
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
            let i = taken.unwrap_or(usize::MAX);
            let chunk = (i < self.count).then(|| Chunk {
                // SAFETY: within the memory.
                start: unsafe { self.memory.add(i * self.each) },
                len: self.each,
                back: &self.back,
                borrow: PhantomData,
            });
            (i, chunk)
        }

        /// All chunks, if all were given out and given back.
        pub fn all(&self) -> Option<&[T]> {
            // Acquire: with what was written to them.
            let back = self.back.load(Ordering::Acquire);
            // SAFETY: as many as there are were given back, so that nobody has or gets exclusive access; the memory is as long.
            (back == self.count).then(|| unsafe {
                slice::from_raw_parts(self.memory.as_ptr(), self.count * self.each)
            })
        }
    }

    /// Exclusive access to a chunk. A pointer: a reference would have to be unused until it is out of scope, and others may read
    /// the chunk once it was given back.
    pub struct Chunk<'a, T> {
        start: NonNull<T>,
        len: usize,
        back: &'a AtomicUsize,
        borrow: PhantomData<&'a mut [T]>,
    }

    impl<T> Chunk<'_, T> {
        /// Gives it back. One that a panic drops is never back, and nobody reads what is in it.
        pub fn give_back(self) {
            self.back.fetch_add(1, Ordering::Release);
        }
    }

    impl<T> Deref for Chunk<'_, T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            // SAFETY: within memory that is borrowed exclusively; no other chunk has the number, and all of them are given back
            // before they can be had as `all`.
            unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
        }
    }

    impl<T> DerefMut for Chunk<'_, T> {
        fn deref_mut(&mut self) -> &mut [T] {
            // SAFETY: as above.
            unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
        }
    }
}

/// Numbers of 32 bits as atomics: several threads may write them.
pub fn atomic_u32(numbers: &mut [f32]) -> &[AtomicU32] {
    let len = numbers.len();
    // SAFETY: the same size and alignment, and borrowed exclusively: nobody writes them otherwise meanwhile. Every bit pattern
    // is an `f32`.
    unsafe { slice::from_raw_parts(numbers.as_mut_ptr().cast(), len) }
}

/// The same of 16 bits.
pub fn atomic_u16(numbers: &mut [u16]) -> &[AtomicU16] {
    let len = numbers.len();
    // SAFETY: as in `atomic_u32`.
    unsafe { slice::from_raw_parts(numbers.as_mut_ptr().cast(), len) }
}
