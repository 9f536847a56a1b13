//! A decode with all its memory in statics, without an operating system: on a Cortex-M4 with
//! 256 KiB of RAM, on AArch64, in WebAssembly; and on the machine at hand, for comparison.
//! The README says how to run it.
#![cfg_attr(any(target_os = "none", target_arch = "wasm32"), no_std)]
#![cfg_attr(any(target_os = "none", target_arch = "wasm32"), no_main)]

#[cfg(target_os = "none")]
mod boot;
mod decode;
#[cfg(target_arch = "wasm32")]
mod wasm;

use decode::Memory;

/// Decodes and prints; whether all is well.
fn run(console: &mut impl core::fmt::Write) -> bool {
    static mut MEMORY: Memory = Memory::new();
    let memory = &raw mut MEMORY;
    // SAFETY: there is one thread, which is here once: the only reference to MEMORY is this.
    let memory = unsafe { &mut *memory };
    decode::run(memory, console).unwrap_or(false)
}

#[cfg(not(any(target_os = "none", target_arch = "wasm32")))]
fn main() -> std::process::ExitCode {
    let mut text = String::new();
    let passed = run(&mut text);
    print!("{text}");
    if passed {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    }
}
