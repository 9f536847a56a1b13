//! The processor, its caches and memory, as the system reports them.

use std::fs;

use amla::ProblemShape;

use crate::shapes::cache_bytes;

/// The processor's name.
pub fn processor() -> String {
    field("/proc/cpuinfo", "model name")
        .unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

/// Bytes of the last-level cache, or 64 MiB if the system doesn't report it.
pub fn last_level_cache() -> usize {
    (0..10)
        .filter_map(|index| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
            let text = fs::read_to_string(path).ok()?;
            text.trim().strip_suffix('K')?.parse::<usize>().ok()
        })
        .max()
        .map_or(64 << 20, |kibibytes| kibibytes << 10)
}

/// # Errors
/// The largest of the shapes needs more memory than there is.
pub fn has_room_for<'a>(shapes: impl IntoIterator<Item = &'a ProblemShape>) -> Result<(), String> {
    let bytes = |shape: &ProblemShape| {
        let rows = shape.b * shape.s_q * shape.h_q;
        // Q, O and up to 16 partial results of each row.
        cache_bytes(shape.s_k, shape.b) + rows * (16 * 2200 + 4096)
    };
    let needed = shapes.into_iter().map(bytes).max().unwrap_or_default();
    let available = field("/proc/meminfo", "MemAvailable")
        .and_then(|text| text.strip_suffix(" kB")?.parse::<usize>().ok())
        .map_or(usize::MAX, |kibibytes| kibibytes << 10);
    // The random rows that caches are copied from need memory too.
    if needed > available / 2 {
        return Err(format!(
            "the largest problem needs {:.1} GiB, of {:.1} GiB of available memory",
            gib(needed),
            gib(available)
        ));
    }
    Ok(())
}

/// In binary gigabytes.
pub fn gib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// The first `name : value` of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}
