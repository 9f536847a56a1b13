//! AArch64, at EL1: what must be before Rust can run.
//!
//! The MMU stays off: all memory is Device memory then, in which accesses must be aligned.
//! The target's `strict-align` sees to that.

use core::arch::global_asm;

// A vector table whose sixteen entries all report a fault. Then: FP and SIMD on (CPACR_EL1),
// the stack painted, so that its use can be told afterwards, and .bss cleared. QEMU loaded
// .data where it belongs.
global_asm!(
    ".section .text.boot, \"ax\"
    .global reset
    .type reset, %function
reset:
    mov x0, #(3 << 20)
    msr cpacr_el1, x0
    adrp x0, vectors
    add x0, x0, :lo12:vectors
    msr vbar_el1, x0
    isb

    adrp x0, __stack_end
    add x0, x0, :lo12:__stack_end
    adrp x1, __stack_start
    add x1, x1, :lo12:__stack_start
    mov sp, x1
    ldr w2, ={PAINT}
1:  cmp x0, x1
    b.hs 2f
    str w2, [x0], #4
    b 1b

2:  adrp x0, __bss_start
    add x0, x0, :lo12:__bss_start
    adrp x1, __bss_end
    add x1, x1, :lo12:__bss_end
3:  cmp x0, x1
    b.hs 4f
    str xzr, [x0], #8
    b 3b

4:  bl start
    brk #0
    .ltorg

    .balign 2048
vectors:
    .rept 16
    bl fail
    .balign 128
    .endr",
    PAINT = const super::PAINT,
);

/// Calls a service of the debugger, or of QEMU.
///
/// # Safety
/// `parameter` is what `operation` takes (Arm's "Semihosting for AArch32 and AArch64").
pub unsafe fn semihost(operation: usize, parameter: usize) -> usize {
    let result;
    // SAFETY: the debugger reads what the caller vouches for, and writes x0 only.
    unsafe {
        core::arch::asm!(
            "hlt #0xf000",
            inlateout("x0") operation => result,
            in("x1") parameter,
            options(nostack),
        );
    }
    result
}
