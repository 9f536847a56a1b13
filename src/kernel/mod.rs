//! The seam between AMLA and an instruction set: a handful of micro-kernels, as in BLIS.
//!
//! A backend sees whole tiles only ([`crate::tile`]). It implements, for one
//! panel of query rows and one block of keys:
//!
//! | stage | paper | operation |
//! |---|---|---|
//! | [`qk`](Kernel::qk) | C1, Algorithm 2 line 4 | `S^T = K Q^T` |
//! | [`softmax`](Kernel::softmax) | V1, lines 5-12 | running reference, P, sums, increments |
//! | [`pv`](Kernel::pv) | C2, lines 13-18 | `O += increment` on the bits, then `O += P V`, for some panels |
//! | [`epilogue`](Kernel::epilogue) | line 20 | normalise, merge, store |
//!
//! [`cycle`](Kernel::cycle) runs the stages of one cycle of the pipeline. With few rows a backend may
//! run all three stages in one pass over a few keys at a time ([`fused`](Kernel::fused)).
//! How to add a backend: `CONTRIBUTING.md`.
#![cfg_attr(
    amla_emulated,
    allow(unused_unsafe, reason = "functions without `target_feature` are safe to call")
)]

/// Methods of a token's trait whose bodies are compiled with the features that it proves. In a body, `self` has the name
/// that the method gives it.
#[allow(unused_macro_rules, unused_macros, reason = "for backends that not every build has")]
macro_rules! with_features {
    ([$($attribute:tt)*] $token:ident) => {};
    (
        [$($attribute:tt)*] $token:ident
        fn $name:ident $(<$(const $n:ident: usize),+>)? ($this:ident $(, $arg:ident: $type:ty)* $(,)?)
            $(-> $result:ty)? $body:block
        $($rest:tt)*
    ) => {
        fn $name $(<$(const $n: usize),+>)? (self $(, $arg: $type)*) $(-> $result)? {
            $($attribute)*
            fn run $(<$(const $n: usize),+>)? ($this: $token $(, $arg: $type)*) $(-> $result)? $body
            // SAFETY: the token proves the features.
            unsafe { run $(::<$($n),+>)? (self $(, $arg)*) }
        }
        with_features! { [$($attribute)*] $token $($rest)* }
    };
}

mod advance;
mod backend;
mod call;
mod cap;
mod detect;
mod fp32;
mod memory;
mod portable;
pub mod prefetch;
mod scalar;
pub mod shared;
mod simd;
mod softmax;
mod softmax_rows;
#[cfg(test)]
mod tests;

/// The instructions that `avx512`, `avx512bf16` and `amx` are written with.
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod arch;
/// Twins of these in plain Rust, for tests: under `--cfg amla_emulated` what `arch` has.
#[cfg(any(amla_emulated, all(test, target_arch = "x86_64", target_feature = "sse2")))]
mod emulated;

// Linux is the only system whose permission for tiles is known. Small tiles are smaller than those.
#[cfg(all(
    any(
        amla_emulated,
        all(target_arch = "x86_64", target_feature = "sse2", target_os = "linux")
    ),
    target_pointer_width = "64",
    not(amla_tiles = "small")
))]
mod amx;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod asimd;
// A build without SSE2 is for code that may not touch vector registers at all, a kernel's, and the
// compiler has no way to pass vectors there.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod avx2;
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod avx512;
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod avx512bf16;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod neon;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", not(amla_tiles = "small")))]
mod neonbf16;
#[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
mod zmm;

pub use backend::{Backend, BackendId, Visitor};
pub use call::{
    C2, Columns, Epilogue, FUSED_MULTIPLE, FusedBlock, FusedEnd, Mask, PackQ, PackRow, Pv, Qk,
    Rows, Skipped, Softmax, Stages, Strips, V1, panel_memory, strip_rows,
};
use half::bf16;
pub use memory::{FUSED_KEYS, RowList, Word, row_tile};

use crate::bits::Increment;
use crate::format::{Dtype, Row};
use crate::problem::Precision;
use crate::tile::{L0a, L0b, ORow, QPanel, RowState, STRIP, STile, Tiles};

/// An instruction set's micro-kernels.
///
/// Implementors are capability tokens: holding one proves that the processor
/// has the instructions.
pub trait Kernel: Copy {
    /// C1 stages that run before C2 ([`crate::schedule::cycles`]): 2 where [`cycle`](Self::cycle)
    /// overlaps matrix and vector work, 0 where stages run one after the other.
    const PRELOAD: usize = 0;
    /// Up to this many rows of a planned group [`fused`](Self::fused) beats the stages one by one.
    const FUSED_ROWS: usize = 0;
    /// Whether it multiplies in FP32, and reads rows of every [`Dtype`] in place. Others multiply BF16, and read no other rows.
    const MULTIPLIES_FP32: bool = false;

    /// The keys that each stage prefetches.
    fn prefetch_budget(self, _rows: &prefetch::Shape) -> prefetch::Budget {
        prefetch::Budget::NONE
    }

    /// Writes the first columns of a stored row, rounded to BF16. `next` is a row to come, to prefetch.
    fn convert(self, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]);

    /// The same in FP32, where that is what it multiplies.
    fn convert_fp32(self, _row: &Row<'_>, _next: &Row<'_>, _out: &mut [f32]) {}

    /// Packs query rows into a panel's memory, and zero rows behind them as far as C1 reads: for [`fused`](Self::fused) or
    /// [`qk`](Self::qk).
    fn pack_q(self, call: &PackQ<'_>, panel: &mut [QPanel]);

    /// Packs a query row in FP32 into a panel's memory, which is zero at first but for the fused kernel, where that is what it multiplies.
    fn pack_row(self, _call: &PackRow<'_>, _panel: &mut [QPanel]) {}

    /// C1: the scores of the block's keys for the panel's rows. Lanes of rows beyond are
    /// unspecified.
    fn qk(self, call: &Qk<'_>, q: &[QPanel], scratch: &mut L0b, s: &mut STile);

    /// V1: P, the running state and the increments of one block.
    fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState);

    /// P of key `k` and row `r` as C2 takes it.
    fn prob(self, p: &L0a, precision: Precision, k: usize, r: usize) -> f32 {
        scalar::prob_of(p, precision, k, r, |tile| tile.0[k / 2][r])
    }

    /// C2 of some panels: rescales the rows of O whose reference moved by integer addition, tile by tile,
    /// and adds `P V`.
    ///
    /// `p` has each panel's P. `o` has the call's strips, of [`strip_rows`] rows for each panel, panel by
    /// panel [`PANEL_ROWS`] rows a strip apart.
    fn pv(self, call: &Pv<'_>, p: &[&L0a], scratch: &mut L0b, o: &mut [ORow]) -> Skipped;

    /// The stages of one cycle. A core with a matrix unit beside its vector unit can overlap them
    /// where [`PRELOAD`](Self::PRELOAD) is 2.
    fn cycle(self, stages: &Stages<'_>, tiles: &mut Tiles, o: &mut [ORow]) -> Skipped {
        let Tiles {
            q,
            l0a,
            l0b,
            l0c,
            ub,
        } = tiles;
        if let Some(c1) = &stages.c1 {
            self.qk(
                c1,
                &q[panel_memory(c1.queries, c1.panel)],
                l0b,
                &mut l0c[c1.s],
            );
        }
        if let Some(v1) = &stages.v1 {
            self.softmax(&v1.call, &l0c[v1.s], &mut l0a[v1.p], &mut ub[v1.panel]);
        }
        let Some(c2) = &stages.c2 else {
            return Skipped::NONE;
        };
        let mut p = [&l0a[0]; crate::tile::PANELS];
        for (to, &p) in p.iter_mut().zip(c2.p) {
            *to = &l0a[p];
        }
        self.pv(&c2.call, &p[..c2.p.len()], l0b, o)
    }

    /// C1, V1 and C2 of up to [`FUSED_ROWS`](Self::FUSED_ROWS) rows over the keys of a block from `from`
    /// on, a few at a time. O has the columns in the backend's own order.
    fn fused(
        self,
        call: &Softmax<'_>,
        block: &FusedBlock<'_>,
        _p: &mut L0a,
        _scratch: &mut L0b,
        _state: &mut RowState,
        _o: &mut [ORow],
    ) -> FusedEnd {
        FusedEnd::skipping(Strips::MAX, block.from..call.keys)
    }

    /// Brings the columns of rows of strips of O from the order in which C2, or with `fused` the fused
    /// kernel, has them into another order, where values are stored so.
    fn permute(self, _fused: bool, _values: Dtype, _o: &mut [ORow], _to: Columns) {}

    /// Brings a strip of O to its end, row by row: multiplies it, adds O over earlier keys, both
    /// moved by integer addition, normalises it, and hands each row to `store`. `o` and `earlier` have
    /// the panel's rows.
    fn epilogue(
        self,
        call: &Epilogue<'_>,
        earlier: Option<&[ORow]>,
        o: &mut [ORow],
        store: impl FnMut(usize, &[f32; STRIP]),
    );

    /// Adds `increment` to the bits of every element
    /// ([`crate::bits::add_increment_f32`], bit for bit).
    fn rescale(self, xs: &mut [f32], increment: Increment);

    /// Runs `iterations` of a register-resident loop of the backend's own
    /// multiply-add and returns the FLOP done.
    fn dot_loop(self, iterations: u64) -> u64;
}
