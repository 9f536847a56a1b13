//! What this processor can do, without std, found once: CPUID and XGETBV; on AArch64 the
//! register that Linux reads for programs.
#![allow(unsafe_code, reason = "instructions that query the processor")]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[cfg(all(target_arch = "aarch64", not(amla_tiles = "small")))]
pub use aarch64::has_bf16;
// In an emulated build its names come before those of `x86`.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub use x86::*;

#[cfg(amla_emulated)]
pub use super::emulated::processor::{core, has_amx, has_avx512, has_avx512_bf16, permit_amx};

/// Of another architecture than the build's.
#[cfg(not(any(amla_emulated, all(target_arch = "x86_64", target_feature = "sse2"))))]
pub const fn permit_amx() -> bool {
    false
}

/// What `query` answers. It runs once, as it may trap (CPUID under a hypervisor, MRS under Linux).
#[allow(dead_code, reason = "for processors that are queried")]
fn features(query: fn() -> u32) -> u32 {
    /// The answers' highest bit: that there are any.
    const KNOWN: u32 = 1 << 31;
    static FEATURES: AtomicU32 = AtomicU32::new(0);
    let cached = FEATURES.load(Relaxed);
    if cached != 0 {
        return cached;
    }
    let known = query() | KNOWN;
    // Racing threads store the same value.
    FEATURES.store(known, Relaxed);
    known
}

/// Linux lets a process use AMX's tiles once it called for them, as signal frames grow by 8 KiB
/// (Documentation/arch/x86/xstate.rst): without, the first instruction on a tile kills it.
#[cfg(all(
    target_arch = "x86_64",
    target_feature = "sse2",
    target_os = "linux",
    target_pointer_width = "64"
))]
mod tiles {
    use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

    const ARCH_PRCTL: usize = 158;
    const ARCH_GET_XCOMP_PERM: usize = 0x1022;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    /// The tiles' data among the registers that a processor saves.
    const XTILEDATA: usize = 18;

    /// That it was granted: it isn't taken back.
    static PERMITTED: AtomicBool = AtomicBool::new(false);

    /// Whether this process may. Looks anew until it does: the permission may come at any time.
    pub fn permitted() -> bool {
        if PERMITTED.load(Relaxed) {
            return true;
        }
        let mut granted = 0_u64;
        // SAFETY: this call writes 8 bytes to its second argument, an exclusively borrowed u64.
        let status =
            unsafe { arch_prctl(ARCH_GET_XCOMP_PERM, (&raw mut granted).expose_provenance()) };
        let granted = status == 0 && granted >> XTILEDATA & 1 != 0;
        if granted {
            PERMITTED.store(true, Relaxed);
        }
        granted
    }

    /// Calls for it.
    pub fn permit() -> bool {
        // SAFETY: this call touches no memory of the process; that signal frames grow is what the caller wants.
        permitted() || unsafe { arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA) } == 0 && permitted()
    }

    /// # Safety
    /// As the kernel documents the call; a number that it doesn't know is answered with an error.
    unsafe fn arch_prctl(code: usize, argument: usize) -> isize {
        let status;
        // SAFETY: Linux's calls take their number in RAX and arguments in RDI and RSI, return in RAX, and change
        // RCX and R11 alone; what this one does to memory is the caller's to know.
        unsafe {
            core::arch::asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => status,
                in("rdi") code,
                in("rsi") argument,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack)
            );
        }
        status
    }
}

/// Of other systems it isn't known how a process may use tiles.
#[cfg(all(
    target_arch = "x86_64",
    target_feature = "sse2",
    not(all(target_os = "linux", target_pointer_width = "64"))
))]
mod tiles {
    pub const fn permitted() -> bool {
        false
    }

    pub const fn permit() -> bool {
        false
    }
}

#[cfg(all(target_arch = "aarch64", not(amla_tiles = "small")))]
mod aarch64 {
    const BF16: u32 = 1;

    /// BFDOT, BFMMLA and BFCVTN. NEON needs no question: what is compiled for this
    /// architecture with floats uses it throughout.
    pub fn has_bf16() -> bool {
        super::features(query) & BF16 != 0
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn query() -> u32 {
        let isar1: u64;
        // SAFETY: Linux carries out this read for programs and answers what they may use,
        // since 4.11 (Documentation/arch/arm64/cpu-feature-registers.rst).
        unsafe {
            core::arch::asm!(
                "mrs {}, ID_AA64ISAR1_EL1",
                out(reg) isar1,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        // Bits 44 to 47: 1 is FEAT_BF16, 2 FEAT_EBF16 as well.
        if isar1 >> 44 & 0xf != 0 { BF16 } else { 0 }
    }

    /// Elsewhere the register is the system's alone: what the build was told.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn query() -> u32 {
        if cfg!(target_feature = "bf16") {
            BF16
        } else {
            0
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[cfg_attr(
    any(amla_emulated, amla_tiles = "small"),
    allow(dead_code, reason = "what is emulated, or has no kernels")
)]
pub mod x86 {
    use core::arch::x86_64::{__cpuid_count, _xgetbv, CpuidResult};

    use crate::kernel::prefetch::Core;

    const AVX2: u32 = 1;
    const AVX512: u32 = 2;
    const AVX512_BF16: u32 = 4;
    const INTEL: u32 = 8;
    const ZEN_4: u32 = 16;
    const AMX: u32 = 32;

    /// AVX-512 F, BW, DQ, VL and BF16, with the operating system saving the
    /// registers.
    pub fn has_avx512_bf16() -> bool {
        features() & AVX512_BF16 != 0
    }

    /// AVX2, FMA and F16C, with the operating system saving the registers.
    pub fn has_avx2() -> bool {
        features() & AVX2 != 0
    }

    /// The same without BF16.
    pub fn has_avx512() -> bool {
        features() & AVX512 != 0
    }

    /// AMX-TILE and AMX-BF16, with the operating system saving tiles and letting this process use them, and what
    /// [`has_avx512_bf16`] needs.
    pub fn has_amx() -> bool {
        features() & AMX != 0 && super::tiles::permitted()
    }

    /// The same after a call of the operating system to let this process.
    pub fn permit_amx() -> bool {
        cfg!(not(amla_tiles = "small")) && features() & AMX != 0 && super::tiles::permit()
    }

    /// Whether FP32 multiply-adds of 512 bits outrun BF16 dots of 512 bits: on Intel's
    /// cores, one of which does two of the former per cycle, or half of the latter.
    pub fn slow_bf16_dots() -> bool {
        features() & INTEL != 0
    }

    /// The kind of core, for its prefetches and dots. Others that are unknown count as Zen 5.
    pub fn core() -> Core {
        match features() {
            found if found & INTEL != 0 => Core::Intel,
            found if found & ZEN_4 != 0 => Core::Zen4,
            _ => Core::Zen5,
        }
    }

    fn features() -> u32 {
        super::features(query)
    }

    fn query() -> u32 {
        const fn bit(word: u32, n: u32) -> bool {
            word >> n & 1 != 0
        }
        if cfg!(miri) {
            return 0; // It has no CPUID.
        }
        let vendor = cpuid(0, 0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        let intel = name.as_flattened() == b"GenuineIntel";
        let amd = name.as_flattened() == b"AuthenticAMD";
        if vendor.eax < 7 {
            return 0;
        }
        let CpuidResult {
            eax, ecx: leaf1, ..
        } = cpuid(1, 0);
        // Above 15 the family is in two parts. Zen 3, which is of the same, has no AVX-512.
        let zen_4 = amd && (eax >> 8 & 15) + (eax >> 20 & 255) == 25;
        let [fma, osxsave, avx, f16c] = [12, 27, 28, 29].map(|n| bit(leaf1, n));
        if !osxsave {
            return 0;
        }
        // SAFETY: XGETBV exists where CPUID reports OSXSAVE, checked above.
        let saved = unsafe { xcr0() };
        // XMM and YMM.
        let ymm = saved & 0b110 == 0b110;
        // And opmask, the upper halves of ZMM0-15, and ZMM16-31.
        let zmm = saved & 0b1110_0110 == 0b1110_0110;
        // And what tiles are configured as, and their data.
        let tmm = saved & 0x6_0000 == 0x6_0000;
        let leaf7 = cpuid(7, 0);
        let [integers, f, dq, bw, vl] = [5, 16, 17, 30, 31].map(|n| bit(leaf7.ebx, n));
        let bf16 = leaf7.eax >= 1 && bit(cpuid(7, 1).eax, 5);
        let [amx_bf16, amx_tile] = [22, 24].map(|n| bit(leaf7.edx, n));
        // Eight tiles of 16 rows x 64 bytes, in the first palette.
        let large = vendor.eax >= 0x1d && {
            let palette = cpuid(0x1d, 1);
            palette.ebx & 0xffff >= 64 && palette.ebx >> 16 >= 8 && palette.ecx & 0xffff >= 16
        };
        let on_tiles = tmm && amx_bf16 && amx_tile && large;
        let on_ymm = ymm && avx && integers && fma && f16c;
        // The kernels for AVX-512 use the earlier instructions too.
        let on_zmm = on_ymm && zmm && f && dq && bw && vl;
        let mut found = 0;
        for (has, bit) in [
            (on_ymm, AVX2),
            (on_zmm, AVX512),
            (on_zmm && bf16, AVX512_BF16),
            (intel, INTEL),
            (zen_4, ZEN_4),
            (on_zmm && bf16 && on_tiles, AMX),
        ] {
            found |= if has { bit } else { 0 };
        }
        found
    }

    fn cpuid(leaf: u32, sub_leaf: u32) -> CpuidResult {
        // SAFETY: every x86-64 processor has CPUID.
        #[allow(unused_unsafe, reason = "a safe function in newer compilers")]
        unsafe {
            __cpuid_count(leaf, sub_leaf)
        }
    }

    /// The register sets that the operating system saves.
    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: XCR0 always exists where XGETBV does; the caller proved that.
        unsafe { _xgetbv(0) }
    }
}
