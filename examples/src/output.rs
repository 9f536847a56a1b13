//! Standard output, standard error and plot files.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use terminal_size::{Width, terminal_size_of};
use textwrap::{Options, WordSplitter};

use crate::progress;

/// Columns of text where standard output is no terminal.
const COLUMNS: u16 = 80;

/// Columns of text: the terminal's, or 80.
pub fn columns() -> usize {
    let terminal = terminal_size_of(io::stdout());
    usize::from(terminal.map_or(COLUMNS, |(Width(columns), _)| columns.max(1)))
}

/// Prints text, wrapped to [`columns`]. Ends the program quietly if the reader has closed the pipe.
///
/// # Errors
/// Standard output fails otherwise.
pub fn print(text: &dyn Display) -> Result<(), String> {
    print_object(&wrapped(&text.to_string(), columns()))
}

/// Prints a line of JSON, of any width. Ends the program quietly if the reader has closed the pipe.
///
/// # Errors
/// Standard output fails otherwise.
pub fn print_object(line: &dyn Display) -> Result<(), String> {
    if !try_print(line)? {
        std::process::exit(0);
    }
    Ok(())
}

/// Prints a line as it is; false if the reader has closed the pipe.
///
/// # Errors
/// Standard output fails otherwise.
pub fn try_print(line: &dyn Display) -> Result<bool, String> {
    progress::clear();
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(format!("cannot write to stdout: {e}")),
    }
}

/// Text in lines of at most `columns`, unless a word is longer. Further parts of a line have its indentation and two
/// columns more.
pub fn wrapped(text: &str, columns: usize) -> String {
    let fitted = |line: &str| {
        if line.chars().count() <= columns {
            return line.to_owned();
        }
        let words = line.trim_start_matches(' ');
        let indent = &line[..line.len() - words.len()];
        let further = format!("{indent}  ");
        let options = Options::new(columns)
            .initial_indent(indent)
            .subsequent_indent(&further)
            .break_words(false)
            .word_splitter(WordSplitter::NoHyphenation);
        textwrap::fill(words, options)
    };
    text.split('\n').map(fitted).collect::<Vec<_>>().join("\n")
}

/// Prints `kind: message` on standard error, as one line whatever the message contains.
pub fn tell(kind: &str, message: &str) {
    progress::clear();
    let words: Vec<_> = message.split_whitespace().collect();
    // A closed standard error leaves no way to report that.
    let _ = writeln!(io::stderr(), "{kind}: {}", words.join(" "));
}

/// A fraction in percent, to a tenth.
pub fn percent(fraction: f64) -> String {
    format!("{:.1}", fraction * 100.0)
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

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn long_lines_are_wrapped_at_words() {
        assert_eq!(
            wrapped("one two  three\n  four five-six seven\n\n", 11),
            "one two\n  three\n  four\n    five-six\n    seven\n\n"
        );
        assert_eq!(wrapped("  overlong words", 5), "  overlong\n    words");
    }
}
