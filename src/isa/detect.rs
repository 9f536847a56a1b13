//! What this processor can do, without std: CPUID and XGETBV, asked once.
#![allow(unsafe_code, reason = "XGETBV")]

#[cfg(target_arch = "x86_64")]
pub use x86::avx512_bf16;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{__cpuid_count, _xgetbv, CpuidResult};
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

    const ASKED: u32 = 1;
    const AVX512_BF16: u32 = 2;

    /// The answers, so that CPUID (which traps under a hypervisor) runs once.
    /// Racing threads store the same value.
    static FEATURES: AtomicU32 = AtomicU32::new(0);

    /// AVX-512 F, BW, DQ, VL and BF16, with the operating system saving the
    /// registers.
    pub fn avx512_bf16() -> bool {
        features() & AVX512_BF16 != 0
    }

    fn features() -> u32 {
        let cached = FEATURES.load(Relaxed);
        if cached != 0 {
            return cached;
        }
        let asked = ask() | ASKED;
        FEATURES.store(asked, Relaxed);
        asked
    }

    fn ask() -> u32 {
        const fn bit(word: u32, n: u32) -> bool {
            word >> n & 1 != 0
        }
        let leaves = cpuid(0, 0).eax;
        if leaves < 7 {
            return 0;
        }
        let osxsave = bit(cpuid(1, 0).ecx, 27);
        if !osxsave {
            return 0;
        }
        // SAFETY: XGETBV exists where CPUID reports OSXSAVE, checked above.
        let saved = unsafe { xcr0() };
        // XMM, YMM, opmask, the upper halves of ZMM0-15, and ZMM16-31.
        let zmm = saved & 0b1110_0110 == 0b1110_0110;
        let leaf7 = cpuid(7, 0);
        let [f, dq, bw, vl] = [16, 17, 30, 31].map(|n| bit(leaf7.ebx, n));
        let bf16 = leaf7.eax >= 1 && bit(cpuid(7, 1).eax, 5);
        if zmm && f && dq && bw && vl && bf16 {
            AVX512_BF16
        } else {
            0
        }
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

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    extern crate std;

    #[test]
    fn agrees_with_std() {
        use std::is_x86_feature_detected as has;
        assert_eq!(
            super::avx512_bf16(),
            has!("avx512f")
                && has!("avx512bw")
                && has!("avx512dq")
                && has!("avx512vl")
                && has!("avx512bf16")
        );
    }
}
