//! The C interface of `amla`: `libamla.a`, `libamla.so` and `include/amla.h`.
//!
//! | module | |
//! |---|---|
//! | `types` | the structs and numbers that cross the boundary |
//! | `layout` | offsets of their fields, asserted here and, from the same table, in C |
//! | `memory` | the caller's pointers into slices, each checked before it becomes one |
//! | `choice` | names of numbers that stand for choices |
//! | `fault` | why a call was refused: its status, arguments and numbers |
//! | `report` | the same in the caller's memory |
//! | `environment` | the thread's floating-point environment |
//! | `call` | a described call into `amla`'s `Problem`, `Options` and `Output` |
//! | `run`, `encode`, `info` | the functions |
//!
//! A function copies the caller's structs, turns every pointer into a slice or refuses, and checks
//! that its outputs overlap nothing else. Then it calls `amla`, which validates the rest before it
//! writes. Nothing panics: `amla` doesn't, for any arguments, and the code here neither indexes nor
//! unwraps.
//!
//! The library is the workspace's profile `dist`: it is `no_std` and aborts on panic. Where panics
//! unwind, as in Cargo's own profiles, and with the feature `std`, std has the panic handler.
#![no_std]
#![deny(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
#![allow(unsafe_code, reason = "pointers from C")]

#[cfg(any(panic = "unwind", feature = "std"))]
extern crate std;

mod call;
mod choice;
mod encode;
mod environment;
mod fault;
mod info;
mod layout;
mod memory;
mod merge;
#[cfg(target_has_atomic = "ptr")]
mod parallel;
mod report;
mod run;
mod types;

/// Ends the program, as `abort` would: for the linker, as nothing that a caller passes gets
/// here.
#[cfg(all(panic = "abort", not(feature = "std")))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an instruction that there isn't, which traps and goes nowhere.
    unsafe {
        core::arch::asm!("ud2", options(noreturn, nomem, nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a breakpoint; behind it, one more, so that it goes nowhere.
    unsafe {
        core::arch::asm!("2: brk #1", "b 2b", options(noreturn, nomem, nostack));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    loop {
        core::hint::spin_loop();
    }
}
