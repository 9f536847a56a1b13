//! The `decode` example as its users run it.

#[path = "../common/mod.rs"]
mod common;
mod expectations;
mod files;
mod formats;
mod layouts;
mod refusals;
mod results;
mod runs;
mod sparse;
