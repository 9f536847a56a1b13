//! Standard output, and what to do when it fails.

use std::io::{self, ErrorKind, Write};

/// Prints a line; ends the program quietly if the reader has gone.
///
/// # Errors
/// Standard output fails.
pub fn line(text: &str) -> Result<(), String> {
    match writeln!(io::stdout(), "{text}") {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.map_err(|e| format!("cannot write to stdout: {e}")),
    }
}

/// A line on stderr, whatever the message holds.
pub fn complain(message: &str) {
    let words: Vec<_> = message.split_whitespace().collect();
    // Nobody is left to hear that stderr is closed.
    let _ = writeln!(io::stderr(), "error: {}", words.join(" "));
}

/// In percent, to a tenth.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}
