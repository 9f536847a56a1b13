//! The choice of a backend: what the processor can run, and what a caller selects.

use super::{Kernel, cap, detect, portable};
use crate::bits::Increment;
use crate::error::Error;

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

    /// Whether this processor runs an earlier one faster, as it does where this one is emulated.
    fn outrun(self) -> bool {
        match self {
            Self::Avx512 | Self::Avx512Bf16 | Self::Amx if cfg!(amla_emulated) => true,
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx512Bf16 => detect::slow_bf16_dots(),
            _ => false,
        }
    }

    /// Whether the processor runs it, and the process may use it.
    fn available(self) -> bool {
        struct Nothing;
        impl Visitor for Nothing {
            type Output = ();
            fn visit<K: Kernel>(self, _: K) {}
        }
        self.within(Self::cap()) && (self == Self::Portable || self.with(Nothing).is_ok())
    }

    /// The process's cap, which stays from now on.
    fn cap() -> Option<Self> {
        Self::from_cap(cap::fixed(|| {
            cap::environment(|name| {
                let id = Self::from_name(name).filter(|id| id.is_of_this_architecture());
                id.map(Self::to_cap)
            })
        }))
    }

    const fn to_cap(self) -> u32 {
        self as u32 + 1
    }

    fn from_cap(cap: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.to_cap() == cap)
    }

    /// Whether a cap lets it be used.
    fn within(self, cap: Option<Self>) -> bool {
        match cap {
            None => true,
            Some(cap) => {
                let below = self.to_cap() <= cap.to_cap() && self.is_arm() == cap.is_arm();
                self == Self::Portable || below
            }
        }
    }

    const fn is_arm(self) -> bool {
        matches!(self, Self::Neon | Self::NeonBf16)
    }

    /// Whether processors of the build's architecture may have it.
    const fn is_of_this_architecture(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon | Self::NeonBf16 => cfg!(target_arch = "aarch64"),
            Self::Avx2 => cfg!(target_arch = "x86_64"),
            Self::Avx512 | Self::Avx512Bf16 | Self::Amx => {
                cfg!(any(amla_emulated, target_arch = "x86_64"))
            }
        }
    }

    /// Calls `visitor` with the backend's token, or returns it if this processor or build has none, and for the portable
    /// backend, which has none.
    fn with<V: Visitor>(self, visitor: V) -> Result<V::Output, V> {
        match self {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx2 => with_token(super::avx2::Avx2::new(), visitor),
            #[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
            Self::Avx512 => with_token(super::zmm::Zmm::new(), visitor),
            #[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
            Self::Avx512Bf16 => with_token(super::avx512bf16::Avx512Bf16::new(), visitor),
            #[cfg(all(
                any(
                    amla_emulated,
                    all(target_arch = "x86_64", target_feature = "sse2", target_os = "linux")
                ),
                target_pointer_width = "64",
                not(amla_tiles = "small")
            ))]
            Self::Amx => with_token(super::amx::Amx::new(), visitor),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Self::Neon => Ok(visitor.visit(super::asimd::Neon::new())),
            #[cfg(all(
                target_arch = "aarch64",
                target_feature = "neon",
                not(amla_tiles = "small")
            ))]
            Self::NeonBf16 => with_token(super::neonbf16::NeonBf16::new(), visitor),
            // Another architecture's, or not in this build.
            _ => Err(visitor),
        }
    }
}

/// Calls `visitor` with the token, if there is one.
#[allow(dead_code, reason = "for backends that not every build has")]
fn with_token<K: Kernel, V: Visitor>(token: Option<K>, visitor: V) -> Result<V::Output, V> {
    match token {
        Some(kernel) => Ok(visitor.visit(kernel)),
        None => Err(visitor),
    }
}

/// A backend that this processor can run: the only way to get one is to have
/// the processor queried.
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
    /// [`Error::BackendUnavailable`] if the processor lacks its instructions, [`Error::BackendAboveMax`] if this process
    /// may not use it ([`set_max`](Self::set_max)).
    pub fn request(id: BackendId) -> Result<Self, Error> {
        if id.available() {
            return Ok(Self(id));
        }
        let backend = id.name();
        Err(match BackendId::cap() {
            Some(max) if !id.within(Some(max)) => Error::BackendAboveMax {
                backend,
                max: max.name(),
            },
            _ => Error::BackendUnavailable { backend },
        })
    }

    /// Bars all backends behind `id` in [`BackendId::ALL`] from this process, whether the processor has `id` or not:
    /// for a host that meets a bad one in the field. [`detect`](Self::detect) doesn't find them, [`request`](Self::request)
    /// refuses them. [`BackendId::Portable`] is always there.
    ///
    /// Call it before anything else: from the first detection or request on, the cap stays. It is the library's one
    /// setting for a whole process. Where it isn't called, the environment variable `AMLA_MAX_BACKEND` sets the cap, if the
    /// feature `std` is on; a name that isn't a backend's of this architecture is ignored.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] for a backend of another architecture, [`Error::BackendInUse`] if a backend has
    /// been detected or requested.
    pub fn set_max(id: BackendId) -> Result<(), Error> {
        let backend = id.name();
        if !id.is_of_this_architecture() {
            return Err(Error::BackendUnavailable { backend });
        }
        if cap::set(id.to_cap()) {
            Ok(())
        } else {
            Err(Error::BackendInUse { max: backend })
        }
    }

    /// Has Linux let this process use AMX, and returns whether it may then: whether
    /// [`BackendId::Amx`] can be requested, and is what [`detect`](Self::detect) finds.
    ///
    /// Linux doesn't let a process unless it calls for it, since from then on a signal takes 8 KiB more of its thread's
    /// stack: it refuses where a thread's alternate stack ([`sigaltstack`]) is too small for that, and such stacks afterwards.
    /// So the program has to decide, before it first detects a backend. The permission holds for all threads, and
    /// stays. Where there is no AMX, nothing happens.
    ///
    /// Whether there is one already, [`detect`](Self::detect) and [`request`](Self::request) find out by the system call
    /// `arch_prctl`, on processors that have AMX: a filter of system calls has to let it return.
    ///
    /// Below a cap that bars AMX ([`set_max`](Self::set_max)), the call does nothing and returns false.
    ///
    /// [`sigaltstack`]: https://man7.org/linux/man-pages/man2/sigaltstack.2.html
    pub fn permit_amx() -> bool {
        BackendId::Amx.within(BackendId::from_cap(cap::now())) && detect::permit_amx()
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

    /// The backend whose kernels take a planned group of `rows`. A tile has 16 rows: with very few,
    /// memory is the limit, and a fused kernel is faster (`docs/experiments.md`). `exact` inputs have more than BF16 holds,
    /// and are multiplied in FP32. A processor with the one has the other.
    pub(crate) const fn of_call(self, rows: usize, exact: bool) -> Self {
        const FUSED: usize = 4;
        match self.0 {
            BackendId::Avx512Bf16 | BackendId::Amx if exact => Self(BackendId::Avx512),
            BackendId::NeonBf16 if exact => Self(BackendId::Neon),
            BackendId::Amx if rows <= FUSED => Self(BackendId::Avx512Bf16),
            _ => self,
        }
    }

    /// Calls `visitor` with the backend's token; the selection happens here,
    /// once per call of the library.
    pub(crate) fn with<V: Visitor>(self, visitor: V) -> V::Output {
        // A `Backend` of another kind only exists after detection; were that ever to change
        // its mind, the portable one is always right.
        self.0
            .with(visitor)
            .unwrap_or_else(|visitor| visitor.visit(portable::Portable))
    }

    /// The same as on another kind of core.
    #[cfg(test)]
    #[allow(unused_variables, reason = "for a backend that not every build has")]
    pub(crate) fn with_core<V: Visitor>(
        self,
        core: super::prefetch::Core,
        visitor: V,
    ) -> V::Output {
        #[cfg(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2")))]
        if self.0 == BackendId::Avx512Bf16
            && let Some(kernel) = super::avx512bf16::Avx512Bf16::on(core)
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
