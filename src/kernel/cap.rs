//! The cap on backends, for the whole process: the one setting of the library that isn't an argument. It is a number; `backend`
//! knows what it means.

#[cfg(feature = "std")]
extern crate std;

/// That there is none.
pub const NONE: u32 = 0;

#[cfg(target_has_atomic = "32")]
mod state {
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::NONE;

    /// The cap, and whether it was looked at. The one word is all that threads share, so that no order is needed.
    static STATE: AtomicU32 = AtomicU32::new(NONE);
    const IN_USE: u32 = 1 << 31;

    /// The cap. It stays, from the first call on.
    pub fn fixed(default: impl Fn() -> u32) -> u32 {
        let mut state = STATE.load(Relaxed);
        while state & IN_USE == 0 {
            let cap = if state == NONE { default() } else { state };
            match STATE.compare_exchange(state, cap | IN_USE, Relaxed, Relaxed) {
                Ok(_) => state = cap | IN_USE,
                Err(now) => state = now,
            }
        }
        state & !IN_USE
    }

    /// The cap, which may still change.
    pub fn now() -> u32 {
        STATE.load(Relaxed) & !IN_USE
    }

    /// Sets the cap, unless it was looked at: whether it did.
    pub fn set(cap: u32) -> bool {
        let mut state = STATE.load(Relaxed);
        while state & IN_USE == 0 {
            match STATE.compare_exchange(state, cap, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }
}

/// A processor without such instructions has one backend: there is nothing to cap.
#[cfg(not(target_has_atomic = "32"))]
mod state {
    pub fn fixed(_: impl Fn() -> u32) -> u32 {
        super::NONE
    }

    pub const fn now() -> u32 {
        super::NONE
    }

    pub const fn set(_: u32) -> bool {
        true
    }
}

pub use state::{fixed, now, set};

/// The cap that the environment variable AMLA_MAX_BACKEND names, if it can be read and names one.
#[cfg(feature = "std")]
pub fn environment(cap: impl Fn(&str) -> Option<u32>) -> u32 {
    let name = std::env::var("AMLA_MAX_BACKEND").ok();
    name.and_then(|name| cap(&name)).unwrap_or(NONE)
}

#[cfg(not(feature = "std"))]
pub fn environment(_: impl Fn(&str) -> Option<u32>) -> u32 {
    NONE
}
