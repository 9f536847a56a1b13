//! Standard output, standard error and plot files.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Prints a line; ends the program quietly if the reader has closed the pipe.
///
/// # Errors
/// Standard output fails otherwise.
pub fn print(line: &dyn Display) -> Result<(), String> {
    if !try_print(line)? {
        std::process::exit(0);
    }
    Ok(())
}

/// Prints a line; false if the reader has closed the pipe.
///
/// # Errors
/// Standard output fails otherwise.
pub fn try_print(line: &dyn Display) -> Result<bool, String> {
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(format!("cannot write to stdout: {e}")),
    }
}

/// Prints `kind: message` on standard error, as one line whatever the message contains.
pub fn tell(kind: &str, message: &str) {
    let words: Vec<_> = message.split_whitespace().collect();
    // A closed standard error leaves no way to report that.
    let _ = writeln!(io::stderr(), "{kind}: {}", words.join(" "));
}

/// A file for a plot. It is opened before the measurements, so that a bad path fails early.
pub struct PlotFile<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> PlotFile<'a> {
    /// Opens `path` for writing; its content stays until [`PlotFile::write`].
    ///
    /// # Errors
    /// The file can't be written.
    pub fn open(path: &'a Path) -> Result<Self, String> {
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false);
        match options.open(path) {
            Ok(file) => Ok(Self { path, file }),
            Err(e) => Err(cannot_write(path, &e)),
        }
    }

    /// Replaces the file's content.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(mut self, text: &str) -> Result<(), String> {
        let mut replace = || {
            // Pipes and devices have no length.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            self.file.write_all(text.as_bytes())
        };
        replace().map_err(|e| cannot_write(self.path, &e))
    }
}

fn cannot_write(path: &Path, e: &io::Error) -> String {
    format!("cannot write {}: {e}", path.display())
}
