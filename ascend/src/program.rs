//! The instructions of a core, generated on demand.

use crate::cube::{self, Product, STEP_OPS};
use crate::fault::Fault;
use crate::kernel::Kernel;
use crate::op::{Op, Work};
use crate::queue::Queue;
use crate::vector::{self, CHUNK_OPS, Rows};

/// The Cube core's instructions.
pub(crate) struct CubeProgram<I> {
    order: I,
    counts: cube::Counts,
    product: Option<Product>,
    ready: Queue<Op, STEP_OPS>,
}

impl<I: Iterator<Item = Work>> CubeProgram<I> {
    pub fn new(order: I) -> Self {
        Self {
            order,
            counts: cube::Counts::default(),
            product: None,
            ready: Queue::new(),
        }
    }

    /// The next instruction; generates it if necessary.
    pub fn peek(&mut self, kernel: &Kernel) -> Result<Option<&Op>, Fault> {
        while self.ready.is_empty() {
            let Some(product) = &mut self.product else {
                let Some(work) = next(kernel, &mut self.order, Work::is_cube)? else {
                    return Ok(None);
                };
                self.product = Product::new(kernel, work, self.counts);
                continue;
            };
            if !product.step(kernel, &mut self.counts, &mut self.ready) {
                self.product = None;
            }
        }
        Ok(self.ready.front())
    }

    pub fn pop(&mut self) -> Option<Op> {
        self.ready.pop()
    }

    /// Whether [`Self::peek`] has returned the last instruction.
    pub const fn is_done(&self) -> bool {
        self.ready.is_empty()
    }
}

/// A Vector core's instructions.
pub(crate) struct VectorProgram<I> {
    order: I,
    core: usize,
    counts: vector::Counts,
    rows: Option<Rows>,
    ready: Queue<Op, CHUNK_OPS>,
}

impl<I: Iterator<Item = Work>> VectorProgram<I> {
    pub fn new(order: I, core: usize) -> Self {
        Self {
            order,
            core,
            counts: vector::Counts::default(),
            rows: None,
            ready: Queue::new(),
        }
    }

    /// As [`CubeProgram::peek`].
    pub fn peek(&mut self, kernel: &Kernel) -> Result<Option<&Op>, Fault> {
        while self.ready.is_empty() {
            let Some(rows) = &mut self.rows else {
                let Some(work) = next(kernel, &mut self.order, |work| !work.is_cube())? else {
                    return Ok(None);
                };
                self.rows = Some(Rows::new(work, self.core));
                continue;
            };
            if !rows.step(kernel, &mut self.counts, &mut self.ready) {
                self.rows = None;
            }
        }
        Ok(self.ready.front())
    }

    pub fn pop(&mut self) -> Option<Op> {
        self.ready.pop()
    }

    /// Whether [`Self::peek`] has returned the last instruction.
    pub const fn is_done(&self) -> bool {
        self.ready.is_empty()
    }
}

/// The next stage of this core.
fn next(
    kernel: &Kernel,
    order: &mut impl Iterator<Item = Work>,
    own: impl Fn(Work) -> bool,
) -> Result<Option<Work>, Fault> {
    for work in order {
        if !kernel.load.has(work) {
            return Err(Fault::NoSuchWork { work });
        }
        if own(work) {
            return Ok(Some(work));
        }
    }
    Ok(None)
}
