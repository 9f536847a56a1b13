//! WebAssembly: `wasm.mjs` is the host.

use core::fmt;
use core::panic::PanicInfo;

// SAFETY: `wasm.mjs` has this function, with these numbers.
#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn print(address: *const u8, length: usize);
}

/// The status to exit with.
#[unsafe(no_mangle)]
extern "C" fn run() -> u32 {
    u32::from(!crate::run(&mut Console))
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _ = fmt::Write::write_fmt(&mut Console, format_args!("{info}\n"));
    core::arch::wasm32::unreachable()
}

/// The host's standard output.
struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the host reads the bytes of `text`, and stores nothing.
        unsafe { print(text.as_ptr(), text.len()) };
        Ok(())
    }
}
