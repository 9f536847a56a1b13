//! The boards: how they start, print and stop.

use core::fmt;
use core::panic::PanicInfo;

#[cfg_attr(target_arch = "arm", path = "boot/cortex_m.rs")]
#[cfg_attr(target_arch = "aarch64", path = "boot/aarch64.rs")]
mod arch;

use arch::semihost;

/// What an unused word of the stack holds.
const PAINT: u32 = 0xa31a_57ac;

/// Semihosting operations.
const SYS_WRITE0: usize = 0x04;
const SYS_EXIT_EXTENDED: usize = 0x20;
const APPLICATION_EXIT: usize = 0x20026;

/// Called on the stack, with memory as Rust expects it.
#[unsafe(no_mangle)]
extern "C" fn start() -> ! {
    let passed = crate::run(&mut Console);
    report_memory();
    exit(u8::from(!passed))
}

/// Called on any fault.
#[unsafe(no_mangle)]
extern "C" fn fail() -> ! {
    write0(b"fault\n\0");
    exit(2)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _ = fmt::Write::write_fmt(&mut Console, format_args!("{info}\n"));
    exit(3)
}

/// Where the debugger, or QEMU, shows text.
struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // In parts, each with the zero that ends it.
        let mut line = [0; 64];
        for part in text.as_bytes().chunks(line.len() - 1) {
            line[..part.len()].copy_from_slice(part);
            line[part.len()] = 0;
            write0(&line);
        }
        Ok(())
    }
}

/// Prints text that ends with a zero.
fn write0(text: &[u8]) {
    assert!(text.contains(&0));
    // SAFETY: the operation takes the address of text with a zero at its end, asserted above.
    unsafe { semihost(SYS_WRITE0, text.as_ptr().addr()) };
}

/// Ends QEMU with this status.
fn exit(status: u8) -> ! {
    let block = [APPLICATION_EXIT, usize::from(status)];
    // SAFETY: the operation takes the address of these two words.
    unsafe { semihost(SYS_EXIT_EXTENDED, block.as_ptr().addr()) };
    loop {
        core::hint::spin_loop();
    }
}

/// Prints how much memory was used: statics, and the stack at its deepest.
fn report_memory() {
    // SAFETY: symbols of the linker script, of which only addresses are taken here.
    unsafe extern "C" {
        static __ram_start: u8;
        static __stack_end: u32;
        static __stack_start: u32;
    }
    let (start, end) = (&raw const __stack_start, &raw const __stack_end);
    let words = (start.addr() - end.addr()) / size_of::<u32>();
    // SAFETY: the linker script reserves these words for the stack, and each is read once,
    // whatever it holds.
    let unused = (0..words).take_while(|&i| unsafe { end.add(i).read_volatile() } == PAINT);
    let stack = (words - unused.count()) * size_of::<u32>();
    let statics = end.addr() - (&raw const __ram_start).addr();
    let _ = fmt::Write::write_fmt(
        &mut Console,
        format_args!("memory: {statics} bytes in statics, {stack} on the stack at most\n"),
    );
}
