//! Inputs of the fuzz targets, replayed without a fuzzer.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// The repository's `fuzz`, from any of its packages.
fn fuzz() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = own.ancestors().map(|folder| folder.join("fuzz"));
    let mut folders = folders.filter(|fuzz| fuzz.join("corpus").exists());
    folders.next().unwrap()
}

/// Runs a target on its seeds.
pub fn replay(target: &str, run: fn(&[u8])) {
    let mut inputs: Vec<PathBuf> = fs::read_dir(fuzz().join("corpus").join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 4, "{target} has {} seeds", inputs.len());
    let failed: Vec<_> = inputs.iter().filter(|path| !passes(path, run)).collect();
    assert!(failed.is_empty(), "{target} fails on {failed:?}");
}

/// Runs a target on an input that it once failed on.
pub fn regression(target: &str, name: &str, run: fn(&[u8])) {
    let path = fuzz().join("regressions").join(target).join(name);
    assert!(passes(&path, run), "{target} fails on {}", path.display());
}

fn passes(path: &Path, run: fn(&[u8])) -> bool {
    let data = fs::read(path).unwrap();
    catch_unwind(|| run(&data)).is_ok()
}
