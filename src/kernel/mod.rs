//! The seam between AMLA and an instruction set: four micro-kernels, as in BLIS,
//! and the choice of who provides them.
//!
//! A backend sees whole tiles only ([`crate::tile`]) and implements, for one
//! panel of query rows and one block of keys:
//!
//! | stage | paper | operation |
//! |---|---|---|
//! | [`qk`](Kernel::qk) | C1, Algorithm 2 line 4 | `S^T = K Q^T` |
//! | [`softmax`](Kernel::softmax) | V1, lines 5-12 | running reference, P, sums, increments |
//! | [`pv`](Kernel::pv) | C2, lines 13-18 | `O += increment` on the bits, then `O += P V` |
//! | [`rescale`](Kernel::rescale) | lines 14-15 alone | the same integer addition over a slice |
//!
//! and the packing that feeds them, of V also within C2 ([`pv_panels`](Kernel::pv_panels),
//! [`pv_direct`](Kernel::pv_direct)). With few rows a backend may do all of it in steps of its own
//! ([`stream`](Kernel::stream)). How to add one: `CONTRIBUTING.md`.

mod detect;
mod fp32;
mod memory;
mod portable;
mod prefetch;
mod scalar;
mod simd;
mod softmax;
#[cfg(test)]
mod tests;

// Only of Linux it is known how a process may use tiles. Small tiles are smaller than those.
#[cfg(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_pointer_width = "64",
    target_feature = "sse2",
    not(amla_tiles = "small")
))]
mod amx;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod asimd;
// A build without SSE2 is for code that may not touch vector registers at all, a kernel's, and the
// compiler has no way to pass vectors there.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod avx2;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod avx512;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod avx512bf16;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod neon;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", not(amla_tiles = "small")))]
mod neonbf16;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod zmm;

use core::ops::Range;
use core::slice::IterMut;

use half::bf16;

pub use memory::{heads, p_memory, pointers, row_tile};
use scalar::half_of;

use crate::bits::{Increment, bf16_widen};
use crate::error::Error;
use crate::format::Row;
use crate::problem::{Precision, Rescale};
use crate::schedule::Stage;
use crate::tile::{
    BLOCK_KEYS, L0a, L0b, OStrip, PANEL_ROWS, PTile, QPanel, RowState, STRIP, STile, VBuffer,
};

/// The rows of one block, wherever they lie in the cache.
pub struct Rows<'a> {
    rows: [&'a [bf16]; BLOCK_KEYS],
    len: usize,
}

impl<'a> Rows<'a> {
    /// No rows.
    pub const NONE: Self = Self {
        rows: [&[]; BLOCK_KEYS],
        len: 0,
    };

    /// Takes `rows` instead; at most one block of them.
    pub fn gather(&mut self, rows: impl Iterator<Item = &'a [bf16]>) {
        self.fill(|slots| rows.for_each(|row| slots.put(row)));
    }

    /// Takes those instead that `fill` puts into slots. They are counted once: each row would wait for the one before, were
    /// their number in memory.
    pub fn fill(&mut self, fill: impl FnOnce(&mut Slots<'_, 'a>)) {
        let mut slots = Slots(self.rows.iter_mut());
        fill(&mut slots);
        self.len = BLOCK_KEYS - slots.0.len();
    }

    /// Forgets all rows.
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// The rows.
    pub fn as_slice(&self) -> &[&'a [bf16]] {
        &self.rows[..self.len]
    }
}

/// Where a block's rows go.
pub struct Slots<'s, 'a>(IterMut<'s, &'a [bf16]>);

impl<'a> Slots<'_, 'a> {
    /// Takes one more row, unless the block is full.
    pub fn put(&mut self, row: &'a [bf16]) {
        if let Some(slot) = self.0.next() {
            *slot = row;
        }
    }
}

/// Which rows of a panel see each key of a block: bit `r` of a key's word is row `r`.
pub type Mask = [u64; BLOCK_KEYS];

const _: () = assert!(PANEL_ROWS <= u64::BITS as usize);

/// The largest score of each row over a block's keys, seen or not; NaN doesn't count.
pub type Maxima = [f32; PANEL_ROWS];

/// What V1 needs beside its tiles.
pub struct Softmax<'a> {
    /// Rows of the panel.
    pub rows: usize,
    /// Keys of the block.
    pub keys: usize,
    /// `log2(e) * |softmax_scale|`: scores become powers of two. The sign went
    /// into Q.
    pub scale: f32,
    /// Which rows see each of the block's keys; `None` where all see all of them.
    pub mask: Option<&'a Mask>,
    /// The largest scores over all keys, if C1 found them.
    pub maxima: Option<&'a Maxima>,
    /// How the reference follows the maximum.
    pub rescale: Rescale,
    /// Whether P's low part is kept.
    pub precision: Precision,
    /// Rows to come, which V1 may ask memory for.
    #[allow(dead_code, reason = "for a backend that not every build has")]
    pub next: &'a [&'a [bf16]],
}

/// [`Kernel::prob`] of where a tile has the key's pair.
fn prob_of(p: &L0a, precision: Precision, k: usize, r: usize, pair: impl Fn(&PTile) -> u32) -> f32 {
    let mut prob = bf16_widen(half_of(pair(&p.high), k));
    let residuals = &p.residuals;
    match precision {
        Precision::Bf16x2 => prob += bf16_widen(half_of(pair(&p.low), k)),
        Precision::Bf16 if residuals.pair[r] as usize == k / 2 => {
            prob += bf16_widen(half_of(residuals.p[r], k));
        }
        Precision::Bf16 => {}
    }
    prob * p.weights[r]
}

/// What C2 needs beside its tiles.
#[derive(Clone, Copy)]
pub struct Pv<'a> {
    /// Rows of the panel.
    pub rows: usize,
    /// Rows of the group as it was planned.
    #[allow(dead_code, reason = "for a backend that not every build has")]
    pub group_rows: usize,
    /// Keys of the block.
    pub keys: usize,
    /// Whether P's low part is added.
    pub precision: Precision,
    /// What to add to the bits of each row of O; `None` for the first block,
    /// which overwrites O.
    pub increment: Option<&'a [i32; PANEL_ROWS]>,
    /// Rows to come, which C2 may ask memory for.
    pub next: &'a [&'a [bf16]],
}

/// What becomes of a panel's O when a task's keys are through, in this order. A product that is NaN is
/// [`NAN`](crate::bits::NAN).
pub struct Close<'a> {
    /// Rows of the panel: some or all.
    pub rows: Range<usize>,
    /// What each row is multiplied by; 1 leaves it as it is.
    pub factor: &'a [f32; PANEL_ROWS],
    /// What is added to the bits of each row of O over earlier keys, and of this one; nothing without
    /// earlier keys.
    pub moves: &'a [[Increment; 2]; PANEL_ROWS],
    /// What the sum is multiplied by.
    pub inverse: Option<&'a [f32; PANEL_ROWS]>,
    /// Whether columns are put in order, where C2 keeps them in another.
    pub settle: bool,
}

/// A set of strips of O, a bit each.
pub type Strips = u32;

/// What C2 left undone because an element of V, or of O, may not be finite.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Strips that are as they were.
    pub all: Strips,
    /// Strips that lack the keys from [`TAIL`](Self::TAIL) on.
    pub tail: Strips,
}

impl Left {
    /// All is done.
    pub const NOTHING: Self = Self { all: 0, tail: 0 };
    /// Nothing is.
    pub const EVERYTHING: Self = Self {
        all: Strips::MAX,
        tail: 0,
    };
    /// The first key of a block's second half.
    pub const TAIL: usize = BLOCK_KEYS / 2;
}

/// [`Kernel::stream`] takes a multiple of so many keys at once: behind a block's last ones others, which count for nothing.
pub const STREAM_MULTIPLE: usize = 16;
/// Rows that [`Kernel::stream`] is given: a block's, and as many as it may compute on or ask for beyond.
pub const STREAM_KEYS: usize = BLOCK_KEYS + 104;

/// What [`Kernel::stream`] goes through.
#[cfg_attr(
    not(all(target_arch = "x86_64", target_feature = "sse2")),
    allow(dead_code, reason = "for backends of other processors")
)]
pub struct Streams<'a, const D_QK: usize, const D_V: usize> {
    /// The queries, as [`Kernel::pack_stream_q`] packs them.
    pub q: &'a QPanel,
    /// A block's keys, and others.
    pub keys: &'a [&'a [bf16; D_QK]; STREAM_KEYS],
    /// Where rows lie that memory is asked for some keys ahead: the keys and those behind them, or others in their
    /// place.
    pub asked: &'a [*const bf16; STREAM_KEYS],
    /// Its values, and copies of the last up to a [multiple](STREAM_MULTIPLE): what isn't finite there would show. It may
    /// be `keys` itself, where values are what keys begin with and there are whole multiples of them.
    pub values: &'a [&'a [bf16; D_V]; STREAM_KEYS],
}

/// How far [`Kernel::stream`] came.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streamed {
    /// The last keys that it computed, if C2 left something of them: P is theirs then, and O was rescaled.
    pub keys: Range<usize>,
    /// What C2 left of those.
    pub left: Left,
}

impl Streamed {
    /// All keys are done.
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_feature = "sse2")),
        allow(dead_code, reason = "for backends of other processors")
    )]
    pub const ALL: Self = Self {
        keys: 0..0,
        left: Left::NOTHING,
    };
}

/// An instruction set's micro-kernels.
///
/// Implementors are capability tokens: holding one proves that the processor
/// has the instructions.
pub trait Kernel: Copy {
    /// Up to so many rows [`pv_direct`](Kernel::pv_direct) beats packing V for all panels first: rows of the group as it was planned,
    /// unless [`pv_panels`](Kernel::pv_panels) does panels together.
    const DIRECT_ROWS: usize = 0;
    /// Up to so many rows [`qk`](Kernel::qk) asks for the rows to come.
    const ASKING_ROWS: usize = 0;
    /// Whether C1, V1 and C2 of any number of rows ask for the block to come, each for its [share](Kernel::share).
    const ALL_ASK: bool = false;
    /// Whether C2 of a group's panels is one ([`pv_panels`](Kernel::pv_panels)), where values lie as BF16.
    const PANELS_TOGETHER: bool = false;
    /// Up to so many rows [`stream`](Kernel::stream) beats the stages one by one.
    const STREAM_ROWS: usize = 0;

    /// Where [`qk`](Kernel::qk) asks for rows to come, so many keys are on their way before the block it computes on: a few,
    /// if it reads keys in the order in which it asks for them.
    fn lead(_rows: usize) -> usize {
        16
    }

    /// For so many keys to come [`pv_direct`](Kernel::pv_direct) of so many rows asks as well, beyond C1's [lead](Kernel::lead), so that memory
    /// isn't idle meanwhile. C1 asks for so many fewer.
    fn pv_asks(self, _rows: usize) -> usize {
        0
    }

    /// How many rows to come a stage of a panel of so many rows asks for, where [all do](Kernel::ALL_ASK): those that its
    /// work leaves room for. The widths are `d_qk` and `d_v`.
    fn share(_stage: Stage, _rows: usize, _widths: [usize; 2]) -> usize {
        0
    }

    /// Writes the first columns of a row as it is stored, rounded to BF16.
    fn widen(self, row: &Row<'_>, out: &mut [bf16]);

    /// Packs up to [`PANEL_ROWS`] query rows of `D_QK` elements into a panel,
    /// zero rows behind them as far as C1 reads them, the signs flipped if `negate`.
    fn pack_q<const D_QK: usize>(self, rows: &[&[bf16]], negate: bool, panel: &mut QPanel);

    /// The same for [`stream`](Kernel::stream).
    fn pack_stream_q<const D_QK: usize>(self, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
        self.pack_q::<D_QK>(rows, negate, panel);
    }

    /// Interleaves values into strips, from key `first` of the block on, a multiple of four;
    /// zero where a pair has no second key, and tells whether any element is infinite or NaN. May
    /// ask for `next`, rows to come.
    fn pack_v<const D_V: usize>(
        self,
        values: &[&[bf16]],
        first: usize,
        next: &[&[bf16]],
        v: &mut [VBuffer; 3],
    ) -> bool;

    /// C1: the scores of `keys` for the first `rows` rows of the panel, which is as
    /// [`pack_q`](Kernel::pack_q) left it for so many. Lanes of rows beyond are
    /// unspecified. May ask for `next`, rows to come, and may return what V1 begins with.
    fn qk<const D_QK: usize>(
        self,
        q: &QPanel,
        rows: usize,
        keys: &Rows<'_>,
        next: &[&[bf16]],
        scratch: &mut L0b,
        s: &mut STile,
    ) -> Option<Maxima>;

    /// V1: P, the running state and the increments of one block.
    fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState);

    /// P of key `k` and row `r` as C2 takes it.
    fn prob(self, p: &L0a, precision: Precision, k: usize, r: usize) -> f32 {
        prob_of(p, precision, k, r, |tile| tile.0[k / 2][r])
    }

    /// C2: rescales the rows of O that move by integer addition, tile by tile, and adds `P V`.
    ///
    /// `o` holds `D_V / 64` strips; rows beyond the last, up to a multiple of 16, hold anything then. V must be
    /// finite. Returns the strips that it left because P or O isn't.
    fn pv<const D_V: usize>(
        self,
        call: &Pv<'_>,
        p: &L0a,
        v: &[VBuffer; 3],
        scratch: &mut L0b,
        o: &mut [OStrip],
    ) -> Left;

    /// C2 of all panels of a group, the first of them a full one, over values that nobody packed: strip by strip, each of which
    /// is packed into `scratch` and gone when the next one is. `o` holds one panel's strips after the other's. What it left it left
    /// of all panels. For backends of [`PANELS_TOGETHER`](Kernel::PANELS_TOGETHER).
    fn pv_panels<const D_V: usize>(
        self,
        _calls: &[Pv<'_>],
        _p: &[&L0a],
        _values: &Rows<'_>,
        _scratch: &mut L0b,
        _o: &mut [OStrip],
    ) -> Left {
        Left::EVERYTHING
    }

    /// C2 over values that nobody packed, for up to [`DIRECT_ROWS`](Kernel::DIRECT_ROWS)
    /// rows: the same sums in the same order as [`pv`](Kernel::pv).
    fn pv_direct<const D_V: usize>(
        self,
        _call: &Pv<'_>,
        _p: &L0a,
        _values: &Rows<'_>,
        _scratch: &mut L0b,
        _o: &mut [OStrip],
    ) -> Left {
        Left::EVERYTHING
    }

    /// C1, V1 and C2 of up to [`STREAM_ROWS`](Kernel::STREAM_ROWS) rows over the keys of a block from `from` on, a
    /// few at a time. O is what earlier keys left, and lies as [`settle_stream`](Kernel::settle_stream) puts it.
    fn stream<const D_QK: usize, const D_V: usize>(
        self,
        call: &Softmax<'_>,
        _block: &Streams<'_, D_QK, D_V>,
        from: usize,
        _p: &mut L0a,
        _state: &mut RowState,
        _o: &mut [OStrip],
    ) -> Streamed {
        Streamed {
            keys: from..call.keys,
            left: Left::EVERYTHING,
        }
    }

    /// Puts the first rows of O from where [`stream`](Kernel::stream) keeps them, strip by strip one behind the other, to where other stages
    /// expect them, or `back`; columns may have another order there. Whoever streams has it.
    /// The other rows hold anything then.
    fn settle_stream(self, _o: &mut [OStrip], _rows: usize, _back: bool) {}

    /// Puts the columns of the first rows of O in order, where C2 keeps them in another, or
    /// `back` into that one.
    fn settle(self, _o: &mut [OStrip], _rows: usize, _back: bool) {}

    /// Adds `increment` to the bits of every element
    /// ([`crate::bits::add_increment_f32`], bit for bit).
    fn rescale(self, xs: &mut [f32], increment: Increment);

    /// Brings a strip of O to its end, row by row: multiplies it, adds what `earlier` keys left, both
    /// moved by integer addition, normalises it and puts its columns in order, as the `call` asks, and
    /// hands each row to `put`.
    fn close(
        self,
        call: &Close<'_>,
        earlier: Option<&OStrip>,
        o: &mut OStrip,
        put: impl FnMut(usize, &[f32; STRIP]),
    );

    /// Runs `iterations` of a register-resident loop of the backend's own
    /// multiply-add and returns the FLOP done.
    fn dot_loop(self, iterations: u64) -> u64;
}

/// An instruction set that `amla` has micro-kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendId {
    /// The `wide` crate, with whatever the build's target features allow.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with BF16 dot products (`vdpbf16ps`).
    Avx512Bf16,
    /// AMX with BF16 products of tiles (`tdpbf16ps`), on Linux, where the process may use it
    /// ([`Backend::permit_amx`]). Groups of up to 4 rows have the kernels of [`Avx512Bf16`](Self::Avx512Bf16).
    Amx,
    /// NEON.
    Neon,
    /// NEON with BF16 matrix products (`bfmmla`).
    NeonBf16,
}

impl BackendId {
    /// All of them, architecture by architecture, the slowest first where instructions issue at
    /// the same rate. Those of another architecture than the build's are never available.
    pub const ALL: [Self; 7] = [
        Self::Portable,
        Self::Avx2,
        Self::Avx512,
        Self::Avx512Bf16,
        Self::Amx,
        Self::Neon,
        Self::NeonBf16,
    ];

    /// The name used on command lines and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512bf16",
            Self::Amx => "amx",
            Self::Neon => "neon",
            Self::NeonBf16 => "neonbf16",
        }
    }

    /// The backend of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.name() == name)
    }

    /// Whether this processor runs an earlier one faster.
    fn outrun(self) -> bool {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if self == Self::Avx512Bf16 {
            return detect::slow_bf16_dots();
        }
        false
    }

    fn available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx2 => avx2::Avx2::new().is_some(),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx512 => zmm::Zmm::new().is_some(),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx512Bf16 => avx512bf16::Avx512Bf16::new().is_some(),
            #[cfg(all(
                target_arch = "x86_64",
                target_os = "linux",
                target_pointer_width = "64",
                target_feature = "sse2",
                not(amla_tiles = "small")
            ))]
            Self::Amx => amx::Amx::new().is_some(),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Self::Neon => true,
            #[cfg(all(
                target_arch = "aarch64",
                target_feature = "neon",
                not(amla_tiles = "small")
            ))]
            Self::NeonBf16 => neonbf16::NeonBf16::new().is_some(),
            // Another architecture's, or not in this build.
            _ => false,
        }
    }
}

/// A backend that this processor can run: the only way to get one is to have
/// the processor asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(BackendId);

impl Backend {
    /// The fastest backend of this processor (`docs/adr/0009`).
    #[must_use]
    pub fn detect() -> Self {
        BackendId::ALL
            .into_iter()
            .rev()
            .find(|id| id.available() && !id.outrun())
            .map_or(Self(BackendId::Portable), Self)
    }

    /// That backend and no other (but for [very few rows of AMX](BackendId::Amx)).
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if the processor lacks its instructions.
    pub fn request(id: BackendId) -> Result<Self, Error> {
        if id.available() {
            Ok(Self(id))
        } else {
            Err(Error::BackendUnavailable { backend: id.name() })
        }
    }

    /// Asks Linux to let this process use AMX, and returns whether it may then: whether
    /// [`BackendId::Amx`] can be requested, and is what [`detect`](Self::detect) finds.
    ///
    /// Linux doesn't let a process unless it asks, since from then on a signal takes 8 KiB more of its thread's
    /// stack: it refuses where a thread's alternate stack ([`sigaltstack`]) is too small for that, and such stacks afterwards.
    /// So the program has to decide, before it first detects a backend. The permission holds for all threads, and
    /// stays. Where there is no AMX, nothing is asked.
    ///
    /// Whether there is one already, [`detect`](Self::detect) and [`request`](Self::request) find out by the system call
    /// `arch_prctl`, on processors that have AMX: a filter of system calls has to let it return.
    ///
    /// [`sigaltstack`]: https://man7.org/linux/man-pages/man2/sigaltstack.2.html
    pub fn permit_amx() -> bool {
        #[cfg(all(
            target_arch = "x86_64",
            target_os = "linux",
            target_pointer_width = "64",
            target_feature = "sse2",
            not(amla_tiles = "small")
        ))]
        return detect::permit_amx();
        #[cfg(not(all(
            target_arch = "x86_64",
            target_os = "linux",
            target_pointer_width = "64",
            target_feature = "sse2",
            not(amla_tiles = "small")
        )))]
        false
    }

    /// Which one it is.
    #[must_use]
    pub const fn id(self) -> BackendId {
        self.0
    }

    /// Runs `iterations` of a register-resident loop of the backend's own
    /// multiply-add instruction and returns the FLOP it did.
    ///
    /// Timed, it gives the peak that utilisation is measured against.
    #[must_use]
    pub fn dot_loop(self, iterations: u64) -> u64 {
        struct Loop(u64);
        impl Visitor for Loop {
            type Output = u64;
            fn visit<K: Kernel>(self, kernel: K) -> u64 {
                kernel.dot_loop(self.0)
            }
        }
        self.with(Loop(iterations))
    }

    /// Adds `increment` to the bits of every element, with the backend's
    /// instructions: [`crate::bits::add_increment_f32`] bit for bit, as the kernel
    /// does it on the way into C2 (Algorithm 2 lines 14, 15).
    pub fn rescale(self, xs: &mut [f32], increment: Increment) {
        struct Add<'a>(&'a mut [f32], Increment);
        impl Visitor for Add<'_> {
            type Output = ();
            fn visit<K: Kernel>(self, kernel: K) {
                kernel.rescale(self.0, self.1);
            }
        }
        self.with(Add(xs, increment));
    }

    /// Whose kernels take a group of so many rows. A tile has 16: memory limits few of them, and what takes those a few
    /// keys at a time is faster (`docs/adr/0018`).
    pub(crate) const fn for_rows(self, rows: usize) -> Self {
        const FEW: usize = 4;
        match self.0 {
            // Who has the one has the other.
            BackendId::Amx if rows <= FEW => Self(BackendId::Avx512Bf16),
            _ => self,
        }
    }

    /// Calls `visitor` with the backend's token; the selection happens here,
    /// once per call of the library.
    pub(crate) fn with<V: Visitor>(self, visitor: V) -> V::Output {
        #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
        match self.0 {
            #[cfg(not(amla_tiles = "small"))]
            BackendId::NeonBf16 => {
                if let Some(kernel) = neonbf16::NeonBf16::new() {
                    return visitor.visit(kernel);
                }
            }
            BackendId::Neon => return visitor.visit(asimd::Neon::new()),
            _ => {}
        }
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        match self.0 {
            #[cfg(all(
                target_os = "linux",
                target_pointer_width = "64",
                not(amla_tiles = "small")
            ))]
            BackendId::Amx => {
                if let Some(kernel) = amx::Amx::new() {
                    return visitor.visit(kernel);
                }
            }
            BackendId::Avx512Bf16 => {
                if let Some(kernel) = avx512bf16::Avx512Bf16::new() {
                    return visitor.visit(kernel);
                }
            }
            BackendId::Avx512 => {
                if let Some(kernel) = zmm::Zmm::new() {
                    return visitor.visit(kernel);
                }
            }
            BackendId::Avx2 => {
                if let Some(kernel) = avx2::Avx2::new() {
                    return visitor.visit(kernel);
                }
            }
            _ => {}
        }
        // A `Backend` of another kind only exists after detection; were that ever to change
        // its mind, the portable one is always right.
        visitor.visit(portable::Portable)
    }

    /// The same as on a processor that is asked for lines in that way.
    #[cfg(test)]
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_feature = "sse2")),
        expect(unused_variables, reason = "for backends of x86-64")
    )]
    pub(crate) fn with_asking<V: Visitor>(self, asking: prefetch::Asking, visitor: V) -> V::Output {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if self.0 == BackendId::Avx512Bf16
            && let Some(kernel) = avx512bf16::Avx512Bf16::asking(asking)
        {
            return visitor.visit(kernel);
        }
        self.with(visitor)
    }
}

impl Default for Backend {
    fn default() -> Self {
        Self::detect()
    }
}

/// Code that is generic over the instruction set.
pub trait Visitor {
    /// What it returns.
    type Output;
    /// Runs with the chosen backend.
    fn visit<K: Kernel>(self, kernel: K) -> Self::Output;
}
