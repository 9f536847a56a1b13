//! Malformed calls by the hundred, each with its error.
//!
//! Of every tensor its length, strides and format, of every list its length and entries, every count,
//! option and output. All functions that check an argument agree, and none touches an output. `api`,
//! `hosts` and `sparse` have the single cases, and the words of each error.

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "shared with `hosts`, which uses the rest")]
#[path = "../common/hosts.rs"]
mod host;

mod caller;
mod lists;
mod options;
mod outputs;
mod strides;
mod tensors;
