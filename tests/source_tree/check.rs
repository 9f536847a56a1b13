//! Runs of a checker, on the tree's sources and on sources that the tests make up.

use std::rc::Rc;

use super::fault::Fault;
use super::source::Source;

pub fn all(sources: &[Rc<Source>], check: fn(&Source) -> Vec<Fault>) -> Vec<Fault> {
    sources.iter().flat_map(|source| check(source)).collect()
}

/// The checker finds exactly one fault, in line `line`, whose text contains `says`; none if `line`
/// is 0.
#[track_caller]
pub fn finds(check: fn(&Source) -> Vec<Fault>, path: &str, text: &str, line: usize, says: &str) {
    found(check(&Source::new(path, text)), path, text, line, says);
}

#[track_caller]
pub fn found(faults: Vec<Fault>, path: &str, text: &str, line: usize, says: &str) {
    if line == 0 {
        assert!(faults.is_empty(), "{text}: {faults:?}");
        return;
    }
    let [fault] = &faults[..] else {
        panic!("{text}: {faults:?}");
    };
    assert_eq!((fault.path.as_str(), fault.line), (path, line), "{fault}");
    assert!(fault.what.contains(says), "{fault}, not {says}");
}
