//! Problems as safetensors files; `decode --help` lists the tensors.

mod case;
mod file;
mod layout;
mod sparse;
mod stored;
mod tensors;

pub use case::{Case, heads_first};
pub use file::{parse, read, write};
pub use stored::{Elements, ExpectedIn, Format, Stored};
