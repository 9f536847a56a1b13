//! The eight tile registers, and how to multiply with them.
//!
//! The instructions are assembled, as their intrinsics aren't stable. A tile can't be an operand of `asm!`: what loads
//! accumulators, multiplies, and stores them is one block, and no value stays in a tile between two.
#![allow(unsafe_code, reason = "tile instructions")]

use core::marker::PhantomData;

use half::bf16;

use crate::kernel::arch::asm;
use crate::kernel::detect;
use crate::kernel::prefetch::TilePrefetch;
use crate::kernel::zmm::Zmm;
use crate::kernel::zmm::dots::Dots;
use crate::tile::{PANEL_ROWS, STRIP};

/// Proof that the processor has AMX with BF16 products, that this process may use it, and that the processor has
/// AVX-512 F, BW, DQ, VL and BF16.
#[derive(Clone, Copy)]
pub struct Amx {
    pub zmm: Zmm,
    pub dots: Dots,
}

impl Amx {
    /// The token, if the processor and the process qualify.
    pub fn new() -> Option<Self> {
        let (zmm, dots) = (Zmm::new()?, Dots::new()?);
        detect::has_amx().then_some(Self { zmm, dots })
    }
}

/// Rows of a tile, and its columns of 32 bits.
pub const SIDE: usize = 16;
/// Features, or keys, that one product sums over: a tile's pairs.
pub const DEPTH: usize = 2 * SIDE;
/// A contiguous tile.
pub type Square = [[u32; SIDE]; SIDE];
/// From one row of S, O, P and V to the next, in bytes.
const ROW: usize = size_of::<[u32; STRIP]>();
/// The same of a contiguous tile.
const SQUARE_ROW: usize = size_of::<[u32; SIDE]>();

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

/// Tiles of K, `N` of them one below the other: 16 keys each, of which a step takes 32 features.
#[derive(Clone, Copy)]
pub struct Keys<const N: usize> {
    /// Where each tile begins.
    pub at: [*const u8; N],
    /// From key to key, in bytes.
    pub stride: usize,
}

/// Rows at one distance from each to the next.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Strided {
    /// Where the first begins.
    pub at: *const u8,
    /// From row to row, in bytes.
    pub stride: usize,
}

impl Strided {
    /// Nowhere.
    pub const NOTHING: Self = Self {
        at: core::ptr::null(),
        stride: 0,
    };

    /// The same `bytes` bytes further in each row.
    pub fn from(self, bytes: usize) -> Self {
        let at = self.at.wrapping_add(bytes);
        Self { at, ..self }
    }

    /// One behind the other.
    pub const fn of<T>(rows: &[T; DEPTH]) -> Self {
        Self {
            at: rows.as_ptr().cast(),
            stride: size_of::<T>(),
        }
    }
}

/// Rows of `columns` columns as one operand, if they are at one distance from each to the next. Not inlined into its
/// callers.
#[inline(never)]
pub fn strided(rows: &[&[bf16]], columns: usize) -> Option<Strided> {
    let at = |row: &[bf16]| row[..columns].as_ptr().expose_provenance();
    let (first, second) = (at(rows.first()?), at(rows.get(1)?));
    let stride = second.wrapping_sub(first);
    let expected = |i: usize| first.wrapping_add(i.wrapping_mul(stride));
    let alike = rows
        .iter()
        .enumerate()
        .all(|(i, row)| at(row) == expected(i));
    alike.then(|| Strided {
        at: core::ptr::with_exposed_provenance(first),
        stride,
    })
}

impl Keys<4> {
    /// Whether each row of a tile is in one cache line, and doesn't take two loads.
    pub fn in_lines(&self) -> bool {
        let aligned = |at: usize| at.is_multiple_of(size_of::<[u32; SIDE]>());
        aligned(self.stride) && self.at.iter().all(|at| aligned(at.addr()))
    }

    /// The same `bytes` bytes further in each row.
    pub fn from(self, bytes: usize) -> Self {
        let at = self.at.map(|at| at.wrapping_add(bytes));
        Self { at, ..self }
    }

    /// The first two tiles, and the others.
    pub fn halves(self) -> [Keys<2>; 2] {
        let [a, b, c, d] = self.at;
        let stride = self.stride;
        [[a, b], [c, d]].map(|at| Keys { at, stride })
    }
}

/// Four accumulators, whose memory is at `c` and the four offsets: they begin with zeros, or with that memory if `add`, which they overwrite. Then one step's
/// instructions, for all steps, and their operands beside `row` and `line`.
macro_rules! register_tile {
    ($steps:ident, $add:ident, $prefetch:ident,
     $c:ident + [$c0:literal, $c1:literal, $c2:literal, $c3:literal], [$($step:literal,)*], $($operands:tt)*) => {
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
            "add {line}, {line_step}",
            "dec {steps}",
            "jnz 3b",
            concat!("tilestored [{c} + 1*{row} + ", $c0, "], tmm0"),
            concat!("tilestored [{c} + 1*{row} + ", $c1, "], tmm1"),
            concat!("tilestored [{c} + 1*{row} + ", $c2, "], tmm2"),
            concat!("tilestored [{c} + 1*{row} + ", $c3, "], tmm3"),
            $($operands)*
            steps = inout(reg) $steps => _,
            line = inout(reg) $prefetch.at => _,
            line_step = in(reg) $prefetch.step,
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
    /// Configures them. Only one at a time: the first that drops releases all.
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

    /// C1, two tiles of keys by two of rows: `s[key][row] += sum over steps of k[key] q[row]`, from 0 if not `add`.
    ///
    /// # Safety
    /// There is a step at least. Each of 32 keys has `steps` times 64 bytes to read, `q` has two squares of 16 x 16 pairs in
    /// each 4096 bytes, and `s` 32 rows of 32 sums, 256 bytes apart.
    #[inline]
    pub unsafe fn scores(
        &self,
        k: Keys<2>,
        q: *const u32,
        steps: usize,
        s: *mut f32,
        add: bool,
        prefetch: TilePrefetch,
    ) {
        // SAFETY: AMX is there and configured: `self` proves it. What is read and written is the caller's promise.
        unsafe {
            register_tile!(
                steps,
                add,
                prefetch,
                s + ["0", "64", "4096", "4160"],
                [
                    "tileloadd tmm4, [{k0} + 1*{stride}]",
                    "tileloadd tmm6, [{q} + 1*{square}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "prefetcht1 [{line}]",
                    "tileloadd tmm7, [{q} + 1*{square} + 1024]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "prefetcht1 [{line} + 64]",
                    "tileloadd tmm5, [{k1} + 1*{stride}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "prefetcht1 [{line} + 128]",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {k0}, 64",
                    "add {k1}, 64",
                    "add {q}, 4096",
                ],
                k0 = inout(reg) k.at[0] => _,
                k1 = inout(reg) k.at[1] => _,
                q = inout(reg) q => _,
                stride = in(reg) k.stride,
                square = in(reg) SQUARE_ROW,
            );
        }
    }

    /// C1, four tiles of keys by one of rows.
    ///
    /// # Safety
    /// As for [`scores`](Self::scores), with 64 keys, one square, and 64 rows of 16 sums.
    #[inline]
    pub unsafe fn scores_of_16(
        &self,
        k: Keys<4>,
        q: *const u32,
        steps: usize,
        s: *mut f32,
        add: bool,
        prefetch: TilePrefetch,
    ) {
        // SAFETY: AMX is there and configured: `self` proves it. What is read and written is the caller's promise.
        unsafe {
            register_tile!(
                steps,
                add,
                prefetch,
                s + ["0", "4096", "8192", "12288"],
                [
                    "tileloadd tmm6, [{q} + 1*{square}]",
                    "tileloadd tmm4, [{k0} + 1*{stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "prefetcht1 [{line}]",
                    "tileloadd tmm5, [{k1} + 1*{stride}]",
                    "tdpbf16ps tmm1, tmm5, tmm6",
                    "prefetcht1 [{line} + 64]",
                    "tileloadd tmm7, [{k2} + 1*{stride}]",
                    "tdpbf16ps tmm2, tmm7, tmm6",
                    "prefetcht1 [{line} + 128]",
                    "tileloadd tmm4, [{k3} + 1*{stride}]",
                    "tdpbf16ps tmm3, tmm4, tmm6",
                    "add {k0}, 64",
                    "add {k1}, 64",
                    "add {k2}, 64",
                    "add {k3}, 64",
                    "add {q}, 4096",
                ],
                k0 = inout(reg) k.at[0] => _,
                k1 = inout(reg) k.at[1] => _,
                k2 = inout(reg) k.at[2] => _,
                k3 = inout(reg) k.at[3] => _,
                q = inout(reg) q => _,
                stride = in(reg) k.stride,
                square = in(reg) SQUARE_ROW,
            );
        }
    }

    /// C2, two tiles of rows by two of columns: `o[row][column] += sum over steps of p[row] v[column]`, from 0 if not
    /// `add`.
    ///
    /// # Safety
    /// There is a step at least. `p` has `steps` times 16 rows of 32 pairs to read, as tiles of rows x pairs, `v` as many
    /// times 16 pairs of 32 columns, and `o` 32 rows of 32 sums; rows of all are 256 bytes apart.
    #[inline]
    pub unsafe fn outputs(
        &self,
        p: *const u32,
        v: *const u32,
        steps: usize,
        o: *mut f32,
        add: bool,
        prefetch: TilePrefetch,
    ) {
        // SAFETY: AMX is there and configured: `self` proves it. What is read and written is the caller's promise.
        unsafe {
            register_tile!(
                steps,
                add,
                prefetch,
                o + ["0", "64", "4096", "4160"],
                [
                    "tileloadd tmm4, [{p} + 1*{row}]",
                    "tileloadd tmm6, [{v} + 1*{row}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "prefetcht1 [{line}]",
                    "tileloadd tmm7, [{v} + 1*{row} + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "prefetcht1 [{line} + 64]",
                    "tileloadd tmm5, [{p} + 1*{row} + 64]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "prefetcht1 [{line} + 128]",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {p}, 4096",
                    "add {v}, 4096",
                ],
                p = inout(reg) p => _,
                v = inout(reg) v => _,
            );
        }
    }

    /// C2, one tile of rows by four of columns.
    ///
    /// # Safety
    /// As for [`outputs`](Self::outputs), with 16 rows, and 64 columns.
    #[inline]
    pub unsafe fn outputs_of_16(
        &self,
        p: *const u32,
        v: *const u32,
        steps: usize,
        o: *mut f32,
        add: bool,
        prefetch: TilePrefetch,
    ) {
        // SAFETY: AMX is there and configured: `self` proves it. What is read and written is the caller's promise.
        unsafe {
            register_tile!(
                steps,
                add,
                prefetch,
                o + ["0", "64", "128", "192"],
                [
                    "tileloadd tmm4, [{p} + 1*{row}]",
                    "tileloadd tmm5, [{v} + 1*{row}]",
                    "tdpbf16ps tmm0, tmm4, tmm5",
                    "prefetcht1 [{line}]",
                    "tileloadd tmm6, [{v} + 1*{row} + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm6",
                    "prefetcht1 [{line} + 64]",
                    "tileloadd tmm7, [{v} + 1*{row} + 128]",
                    "tdpbf16ps tmm2, tmm4, tmm7",
                    "prefetcht1 [{line} + 128]",
                    "tileloadd tmm5, [{v} + 1*{row} + 192]",
                    "tdpbf16ps tmm3, tmm4, tmm5",
                    "add {p}, 4096",
                    "add {v}, 4096",
                ],
                p = inout(reg) p => _,
                v = inout(reg) v => _,
            );
        }
    }

    /// C2, a tile of rows by a strip of values in place, 32 keys a step: `sums[0][row][i] = sum over keys of p[row][key] v[key][2 i]`,
    /// `sums[1]` of odd columns, `sums[2]` and `sums[3]` the same of the strip's second half.
    ///
    /// # Safety
    /// There is a step at least. For each `p` has four tiles to read: of 16 keys, low halves and high halves, and of the
    /// next 16, and `rows` has where 32 rows of 128 bytes to read are.
    #[inline]
    pub unsafe fn outputs_in_place(
        &self,
        p: *const [Square; 4],
        rows: &[Strided],
        sums: &mut [Square; 4],
        prefetch: TilePrefetch,
    ) {
        // SAFETY: AMX is there and configured: `self` proves it. What is read is the caller's promise; `sums` are four
        // contiguous tiles.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "mov {v}, [{rows}]",
                "mov {stride}, [{rows} + 8]",
                "mov {next}, {stride}",
                "shl {next}, 4",
                "tileloadd tmm4, [{p} + 1*{square}]",
                "tileloadd tmm6, [{v} + 1*{stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht1 [{line}]",
                "tileloadd tmm7, [{v} + 1*{stride} + 64]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{p} + 1*{square} + 1024]",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "prefetcht1 [{line} + 64]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {v}, {next}",
                "tileloadd tmm4, [{p} + 1*{square} + 2048]",
                "tileloadd tmm6, [{v} + 1*{stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht1 [{line} + 128]",
                "tileloadd tmm7, [{v} + 1*{stride} + 64]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{p} + 1*{square} + 3072]",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {p}, 4096",
                "add {rows}, 16",
                "add {line}, {line_step}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + 1*{square}], tmm0",
                "tilestored [{sums} + 1*{square} + 1024], tmm1",
                "tilestored [{sums} + 1*{square} + 2048], tmm2",
                "tilestored [{sums} + 1*{square} + 3072], tmm3",
                v = out(reg) _,
                stride = out(reg) _,
                next = out(reg) _,
                p = inout(reg) p => _,
                rows = inout(reg) rows.as_ptr() => _,
                steps = inout(reg) rows.len() => _,
                line = inout(reg) prefetch.at => _,
                line_step = in(reg) prefetch.step,
                square = in(reg) SQUARE_ROW,
                sums = in(reg) sums,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
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
