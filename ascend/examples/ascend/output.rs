//! Standard output and standard error.

use std::io::{self, ErrorKind, Write};

/// Prints a line. Ends the program silently if the reader has closed the pipe.
///
/// # Errors
/// A failure of standard output.
pub fn line(text: &str) -> Result<(), String> {
    match writeln!(io::stdout(), "{text}") {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.map_err(|e| format!("cannot write to stdout: {e}")),
    }
}

/// Prints a message as one line on stderr.
pub fn report_error(message: &str) {
    let words: Vec<_> = message.split_whitespace().collect();
    // A failure of stderr can't be reported.
    let _ = writeln!(io::stderr(), "error: {}", words.join(" "));
}

/// In percent, to a tenth.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}
