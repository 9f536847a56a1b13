//! A queue of fixed capacity.

/// At most `N` elements, first in, first out.
pub(crate) struct Queue<T, const N: usize> {
    elements: [Option<T>; N],
    first: usize,
    len: usize,
}

impl<T: Copy, const N: usize> Queue<T, N> {
    pub const fn new() -> Self {
        Self {
            elements: [None; N],
            first: 0,
            len: 0,
        }
    }

    pub const fn is_full(&self) -> bool {
        self.len == N
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The caller has checked that the queue isn't full.
    pub fn push(&mut self, element: T) {
        debug_assert!(!self.is_full(), "the queue is full");
        self.elements[(self.first + self.len) % N] = Some(element);
        self.len += 1;
    }

    pub fn front(&self) -> Option<&T> {
        if self.is_empty() {
            None
        } else {
            self.elements[self.first].as_ref()
        }
    }

    /// First to last.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).filter_map(|i| self.elements[(self.first + i) % N].as_ref())
    }

    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let element = self.elements[self.first].take();
        self.first = (self.first + 1) % N;
        self.len -= 1;
        element
    }
}
