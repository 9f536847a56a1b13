//! Memory that several threads write, each its own part.
#![allow(
    unsafe_code,
    reason = "parts of memory that no other thread has, and views as atomics"
)]

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::slice;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};

/// Memory in chunks, of which each is given out once, to any thread.
pub struct Chunks<'a, T> {
    memory: *mut T,
    each: usize,
    count: usize,
    /// Calls of `take`.
    taken: AtomicUsize,
    /// How many chunks were given back.
    back: AtomicUsize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: threads get elements by exclusive references, no element twice (`take`), and by shared ones when all of those are gone
// (`all`).
unsafe impl<T: Send + Sync> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    /// Chunks of `each` elements, of which there is one at least; what is left behind the last isn't given out.
    pub const fn new(memory: &'a mut [T], each: usize) -> Self {
        assert!(each > 0);
        Self {
            memory: memory.as_mut_ptr(),
            each,
            count: memory.len() / each,
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
        let chunk = (i < self.count).then(|| {
            // SAFETY: within the memory, which is borrowed exclusively; no other chunk has the number, and all of them are
            // taken before they can be had as `all`.
            let chunk = unsafe {
                let start = self.memory.add(i * self.each);
                slice::from_raw_parts_mut(start, self.each)
            };
            Chunk {
                chunk,
                back: &self.back,
            }
        });
        (i, chunk)
    }

    /// All chunks, if all were given out and given back.
    pub fn all(&self) -> Option<&[T]> {
        // Acquire: with what was written to them.
        let back = self.back.load(Ordering::Acquire);
        // SAFETY: as many as there are were given back, so that nobody has or gets an exclusive reference; the memory is as long.
        (back == self.count)
            .then(|| unsafe { slice::from_raw_parts(self.memory, self.count * self.each) })
    }
}

/// A chunk, given back when it is dropped.
pub struct Chunk<'a, T> {
    chunk: &'a mut [T],
    back: &'a AtomicUsize,
}

impl<T> Deref for Chunk<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.chunk
    }
}

impl<T> DerefMut for Chunk<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.chunk
    }
}

impl<T> Drop for Chunk<'_, T> {
    fn drop(&mut self) {
        self.back.fetch_add(1, Ordering::Release);
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
