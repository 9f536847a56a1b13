//! The eight tile registers, and three ways to multiply with them.
//!
//! The instructions are assembled, as their intrinsics aren't stable. A tile can't be an operand of `asm!`: what loads
//! accumulators, multiplies, and stores them is one block, and no value stays in a tile between two.

use core::arch::asm;
use core::marker::PhantomData;

use super::Amx;
use crate::tile::{PANEL_ROWS, STRIP};

/// Rows of a tile, and its columns of 32 bits.
pub const SIDE: usize = 16;
/// Features, or keys, that one product sums over: a tile's pairs.
pub const DEPTH: usize = 2 * SIDE;
/// From one row of S, O, Q, P and V to the next, in bytes.
const ROW: usize = size_of::<[u32; STRIP]>();

const _: () = assert!(PANEL_ROWS == STRIP);

/// The tile registers, each configured as 16 rows of 64 bytes; given back when dropped, so that the system has no
/// tiles to save.
///
/// They are the thread's.
pub struct Tiles(PhantomData<*const ()>);

/// LDTILECFG's operand: palette 1, the bytes of each tile's rows, their number.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        row_bytes[tile] = 64;
        rows[tile] = 16;
        tile += 1;
    }
    Config {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes,
        rows,
    }
};

/// Tiles of a left operand, `N` of them one beside the other: 16 rows of pairs each.
#[derive(Clone, Copy)]
pub struct Operand<const N: usize> {
    /// Where each begins.
    pub at: [*const u8; N],
    /// From row to row, in bytes.
    pub stride: usize,
    /// From one step to the next, in bytes.
    pub step: usize,
}

impl Operand<4> {
    /// Whether each row of a tile lies in one cache line, and doesn't take two loads.
    pub fn in_lines(&self) -> bool {
        let whole = |at: usize| at.is_multiple_of(size_of::<[u32; SIDE]>());
        whole(self.stride) && self.at.iter().all(|at| whole(at.addr()))
    }

    /// The same so many bytes further in each row.
    pub fn from(self, bytes: usize) -> Self {
        let at = self.at.map(|at| at.wrapping_add(bytes));
        Self { at, ..self }
    }

    /// The first two tiles, and the others.
    pub fn halves(self) -> [Operand<2>; 2] {
        let [a, b, c, d] = self.at;
        let Self { stride, step, .. } = self;
        [[a, b], [c, d]].map(|at| Operand { at, stride, step })
    }
}

/// Four accumulators, of which `c` tells the places: zeros, or what lies there if `add`; one step's instructions, for
/// all steps; and what lies there then.
macro_rules! register_tile {
    ([$($left:ident = $at:expr),*], $a:ident, $b:ident, $steps:ident, $add:ident,
     $c:ident + [$c0:literal, $c1:literal, $c2:literal, $c3:literal], $($step:literal,)*) => {
        asm!(
            "test {add}, {add}",
            "jnz 2f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 3f",
            "2:",
            concat!("tileloadd tmm0, [{c} + 1*{row} + ", $c0, "]"),
            concat!("tileloadd tmm1, [{c} + 1*{row} + ", $c1, "]"),
            concat!("tileloadd tmm2, [{c} + 1*{row} + ", $c2, "]"),
            concat!("tileloadd tmm3, [{c} + 1*{row} + ", $c3, "]"),
            "3:",
            $($step,)*
            $(concat!("add {", stringify!($left), "}, {step}"),)*
            "add {b}, 4096",
            "dec {steps}",
            "jnz 3b",
            concat!("tilestored [{c} + 1*{row} + ", $c0, "], tmm0"),
            concat!("tilestored [{c} + 1*{row} + ", $c1, "], tmm1"),
            concat!("tilestored [{c} + 1*{row} + ", $c2, "], tmm2"),
            concat!("tilestored [{c} + 1*{row} + ", $c3, "], tmm3"),
            $($left = inout(reg) $at => _,)*
            b = inout(reg) $b => _,
            steps = inout(reg) $steps => _,
            stride = in(reg) $a.stride,
            step = in(reg) $a.step,
            row = in(reg) ROW,
            c = in(reg) $c,
            add = in(reg) usize::from($add),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

impl Tiles {
    /// Configures them. Only one at a time: what drops first takes them from all.
    #[inline]
    pub fn new(_: Amx) -> Self {
        // SAFETY: the token proves AMX; the operand is 64 bytes that describe tiles as the first palette has them.
        unsafe {
            asm!(
                "ldtilecfg [{}]",
                in(reg) &raw const CONFIG,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags)
            );
        }
        Self(PhantomData)
    }

    /// Two tiles by two: `c[m][n] += sum over steps of a[m] b[n]`, from 0 if not `add`.
    ///
    /// # Safety
    /// There is a step at least. `a` has so many of 16 rows to read, `b` as many of 16 rows of 32 pairs, `c` has 32
    /// rows of 32 sums; rows of either lie 256 bytes apart.
    #[inline]
    pub unsafe fn square(
        &self,
        a: Operand<2>,
        b: *const u32,
        steps: usize,
        c: *mut f32,
        add: bool,
    ) {
        // SAFETY: AMX is there and configured: `self` proves it. What is read and written is the caller's promise.
        unsafe {
            register_tile!(
                [a0 = a.at[0], a1 = a.at[1]],
                a,
                b,
                steps,
                add,
                c + ["0", "64", "4096", "4160"],
                "tileloadd tmm4, [{a0} + 1*{stride}]",
                "tileloadd tmm6, [{b} + 1*{row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + 1*{row} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a1} + 1*{stride}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
            );
        }
    }

    /// Four tiles by one: the same where `b` has 16 columns.
    ///
    /// # Safety
    /// As for [`square`](Self::square), with 16 pairs a row of `b` and 64 rows of 16 sums.
    #[inline]
    pub unsafe fn column(
        &self,
        a: Operand<4>,
        b: *const u32,
        steps: usize,
        c: *mut f32,
        add: bool,
    ) {
        // SAFETY: AMX is there and configured: `self` proves it. What is read and written is the caller's promise.
        unsafe {
            register_tile!(
                [a0 = a.at[0], a1 = a.at[1], a2 = a.at[2], a3 = a.at[3]],
                a,
                b,
                steps,
                add,
                c + ["0", "4096", "8192", "12288"],
                "tileloadd tmm6, [{b} + 1*{row}]",
                "tileloadd tmm4, [{a0} + 1*{stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a1} + 1*{stride}]",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "tileloadd tmm7, [{a2} + 1*{stride}]",
                "tdpbf16ps tmm2, tmm7, tmm6",
                "tileloadd tmm4, [{a3} + 1*{stride}]",
                "tdpbf16ps tmm3, tmm4, tmm6",
            );
        }
    }

    /// One tile by four: the same with 16 rows of `a`.
    ///
    /// # Safety
    /// As for [`square`](Self::square), with 64 pairs a row of `b` and 16 rows of 64 sums.
    #[inline]
    pub unsafe fn row(&self, a: Operand<1>, b: *const u32, steps: usize, c: *mut f32, add: bool) {
        // SAFETY: AMX is there and configured: `self` proves it. What is read and written is the caller's promise.
        unsafe {
            register_tile!(
                [a0 = a.at[0]],
                a,
                b,
                steps,
                add,
                c + ["0", "64", "128", "192"],
                "tileloadd tmm4, [{a0} + 1*{stride}]",
                "tileloadd tmm5, [{b} + 1*{row}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{b} + 1*{row} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tileloadd tmm7, [{b} + 1*{row} + 128]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{b} + 1*{row} + 192]",
                "tdpbf16ps tmm3, tmm4, tmm5",
            );
        }
    }

    /// Runs `iterations` of four products on registers alone and returns the FLOP done.
    pub fn products(&self, iterations: u64) -> u64 {
        for _ in 0..iterations {
            // SAFETY: AMX is there and configured: `self` proves it; no memory is touched.
            unsafe {
                asm!(
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, nomem, preserves_flags)
                );
            }
        }
        iterations * (4 * 2 * SIDE * SIDE * DEPTH) as u64
    }
}

impl Drop for Tiles {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: AMX is there and configured; nobody holds tiles any more.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem, preserves_flags)
            );
        }
    }
}
