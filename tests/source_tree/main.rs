//! Rules of the source tree.
//!
//! They are about imports, `unsafe`, the length of files and functions, words, and dependencies.
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
