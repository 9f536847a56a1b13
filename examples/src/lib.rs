//! What the example programs share.

pub mod cli;
pub mod engine;
pub mod metrics;
pub mod output;
pub mod paper;
pub mod problem;
pub mod progress;
