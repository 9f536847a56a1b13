//! What can be read off the sources: which way imports point, where `unsafe` may stand, how long
//! files and functions are, which words they use, and what the packages depend on.
//!
//! Every checker is tried on faulty sources too. A rule that today's tree breaks has a list of
//! exceptions, which must shrink: an exception without a fault fails.

mod check;
mod fault;
mod imports;
mod manifest;
mod modules;
mod sizes;
mod source;
mod std_and_leftovers;
mod unsafety;
mod words;
