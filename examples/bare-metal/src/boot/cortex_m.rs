//! Cortex-M4: the vector table, and what must be before Rust can run.

use core::arch::global_asm;

// Vectors, of which a program without interrupts needs the first four. Then: the stack is
// painted, so that its use can be told afterwards; FPU on (CPACR); .data; .bss.
global_asm!(
    ".section .vectors, \"a\"
    .word __stack_start
    .word reset
    .word fault
    .word fault

    .section .text.reset, \"ax\"
    .global reset
    .type reset, %function
    .thumb_func
reset:
    ldr r0, =__stack_end
    ldr r1, =__stack_start
    ldr r2, ={PAINT}
1:  cmp r0, r1
    itt lo
    strlo r2, [r0], #4
    blo 1b

    ldr r0, =0xe000ed88
    ldr r1, [r0]
    orr r1, r1, #0xf00000
    str r1, [r0]
    dsb
    isb

    ldr r0, =__data_start
    ldr r1, =__data_end
    ldr r2, =__data_load
2:  cmp r0, r1
    ittt lo
    ldrlo r3, [r2], #4
    strlo r3, [r0], #4
    blo 2b

    ldr r0, =__bss_start
    ldr r1, =__bss_end
    movs r2, #0
3:  cmp r0, r1
    itt lo
    strlo r2, [r0], #4
    blo 3b

    bl start
    udf #0
    .ltorg

    .type fault, %function
    .thumb_func
fault:
    bl fail",
    PAINT = const super::PAINT,
);

/// Calls a service of the debugger, or of QEMU.
///
/// # Safety
/// `parameter` is what `operation` takes (Arm's "Semihosting for AArch32 and AArch64").
pub unsafe fn semihost(operation: usize, parameter: usize) -> usize {
    let result;
    // SAFETY: the debugger reads what the caller vouches for, and writes r0 only.
    unsafe {
        core::arch::asm!(
            "bkpt #0xab",
            inlateout("r0") operation => result,
            in("r1") parameter,
            options(nostack),
        );
    }
    result
}
