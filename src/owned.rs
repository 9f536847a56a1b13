//! Calls that bring the memory themselves (features `alloc` and `rayon`).

extern crate alloc;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::attention::Attention;
#[cfg(feature = "rayon")]
use crate::attention::{OutputNumber, output};
use crate::error::Error;
use crate::plan::Plan;
#[cfg(feature = "rayon")]
use crate::pool::{Rayon, decode_on};
use crate::tile::Workspace;

impl Workspace {
    /// One on the heap, without a copy on the stack: `Box::new(Workspace::new())` has one in builds without
    /// optimisation, which may be more than a thread's stack.
    #[must_use]
    pub fn boxed() -> Box<Self> {
        bytemuck::zeroed_box()
    }
}

impl Attention<'_> {
    /// Computes O, `[b, s_q, h_q, d_v]`, and lse, `[b, h_q, s_q]`, on one thread.
    ///
    /// # Errors
    /// Whatever is wrong with the arguments.
    pub fn decode_alloc(&self) -> Result<(Vec<f32>, Vec<f32>), Error> {
        let problem = self.problem()?;
        // Before memory for results of sizes that may be wrong.
        Plan::new(&problem)?;
        let [b, s_q] = problem.q_dims();
        let rows = b * s_q * problem.shape.h_q;
        let (mut o, mut lse) = (vec![0.0; rows * problem.shape.d_v], vec![0.0; rows]);
        self.decode_with_lse(&mut Workspace::boxed(), &mut o, &mut lse)?;
        Ok((o, lse))
    }
}

/// What the threads of a pool compute in: it grows with the first calls and serves all others.
#[cfg(feature = "rayon")]
#[derive(Default)]
pub struct Workspaces {
    workspaces: Vec<Box<Workspace>>,
    partials: Vec<f32>,
}

#[cfg(feature = "rayon")]
impl Workspaces {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            workspaces: Vec::new(),
            partials: Vec::new(),
        }
    }
}

#[cfg(feature = "rayon")]
impl Attention<'_> {
    /// Computes O, and lse if it is wanted, on all threads of the current rayon pool, with the bits of
    /// [`decode`](Self::decode).
    ///
    /// # Errors
    /// Whatever is wrong with the arguments; O and lse are then untouched.
    pub fn decode_parallel<T: OutputNumber>(
        &self,
        workspaces: &mut Workspaces,
        o: &mut [T],
        lse: Option<&mut [f32]>,
    ) -> Result<(), Error> {
        let problem = self.problem()?;
        let threads = ::rayon::current_num_threads();
        let plan = Plan::for_threads(&problem, threads)?;
        let Workspaces {
            workspaces,
            partials,
        } = workspaces;
        // No more than have something to do.
        let threads = threads.min(plan.tasks()).max(1);
        while workspaces.len() < threads {
            workspaces.push(Workspace::boxed());
        }
        let needed = plan.partials_len();
        if partials.len() < needed {
            partials.resize(needed, 0.0);
        }
        let output = output(&problem, o, lse);
        decode_on(
            &Rayon,
            &problem,
            self.options(),
            &plan,
            &mut workspaces[..threads],
            partials,
            output,
        )
    }
}
