//! A processor that has all emulated instructions.

extern crate std;

use crate::kernel::prefetch::Core;

pub const fn has_avx512() -> bool {
    true
}

pub const fn has_avx512_bf16() -> bool {
    true
}

#[cfg_attr(amla_tiles = "small", allow(dead_code, reason = "for tiles that aren't small"))]
pub const fn has_amx() -> bool {
    true
}

pub const fn permit_amx() -> bool {
    cfg!(not(amla_tiles = "small"))
}

/// As the core that the variable `AMLA_TEST_CORE` names, or the one with the most kernels of its own.
pub fn core() -> Core {
    match std::env::var("AMLA_TEST_CORE").as_deref() {
        Ok("zen4") => Core::Zen4,
        Err(_) | Ok("zen5") => Core::Zen5,
        Ok("intel") => Core::Intel,
        Ok(core) => panic!("AMLA_TEST_CORE is zen4, zen5 or intel, not {core}"),
    }
}
