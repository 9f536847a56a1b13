//! The thread's floating-point environment. The library computes in the default one, which Rust assumes everywhere, whatever
//! a host or another library has left behind. Callers from C alone can have another, so it is set and taken back here.

/// The processor's control registers, as they were; dropped, they are so again.
pub struct Caller(registers::Saved);

impl Caller {
    /// As they are now.
    pub fn here() -> Self {
        Self(registers::get())
    }

    /// Runs `body`, the caller's own code, with these.
    #[cfg(target_has_atomic = "ptr")]
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> T {
        let _library = Self::here();
        registers::set(self.0);
        apart(body)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        registers::set(self.0);
    }
}

/// Runs `body` with rounding to the nearest, subnormals as they are and no traps. The caller's environment comes back,
/// with its sticky flags.
pub fn default<T>(body: impl FnOnce() -> T) -> T {
    let _caller = Caller::here();
    registers::set(registers::DEFAULT);
    apart(body)
}

/// Not inlined, so that no operation is moved to where the environment is another.
#[inline(never)]
fn apart<T>(body: impl FnOnce() -> T) -> T {
    body()
}

#[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse", not(miri)))]
mod registers {
    use core::arch::asm;

    /// MXCSR: flags, subnormals as zeros, masks of traps, rounding, flush to zero.
    pub type Saved = u32;
    /// All traps masked.
    pub const DEFAULT: Saved = 0x1f80;

    pub fn get() -> Saved {
        let mut saved = 0;
        // SAFETY: the instruction writes 4 bytes, an exclusively borrowed u32.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut saved, options(nostack, preserves_flags)) };
        saved
    }

    pub fn set(saved: Saved) {
        // SAFETY: the instruction reads 4 bytes, a borrowed u32. It is the default, or what the register had, and has no
        // reserved bits.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const saved, options(nostack)) };
    }
}

#[cfg(all(target_arch = "aarch64", target_feature = "neon", not(miri)))]
mod registers {
    use core::arch::asm;

    /// FPCR, with rounding, subnormals and traps, and FPSR, with the flags.
    pub type Saved = [u64; 2];
    pub const DEFAULT: Saved = [0; 2];

    pub fn get() -> Saved {
        let (control, status);
        // SAFETY: both registers may be read by any program.
        unsafe {
            asm!("mrs {}, fpcr", "mrs {}, fpsr", out(reg) control, out(reg) status, options(nostack, preserves_flags));
        };
        [control, status]
    }

    pub fn set([control, status]: Saved) {
        // SAFETY: both registers may be written by any program.
        unsafe {
            asm!("msr fpcr, {}", "msr fpsr, {}", in(reg) control, in(reg) status, options(nostack));
        }
    }
}

/// Of other processors the environment is left as it is.
#[cfg(not(all(
    any(
        all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse"),
        all(target_arch = "aarch64", target_feature = "neon")
    ),
    not(miri)
)))]
mod registers {
    pub type Saved = ();
    pub const DEFAULT: Saved = ();

    pub const fn get() -> Saved {}

    pub const fn set((): Saved) {}
}
