//! Each twin against its instruction.
