//! Standard output, the plot's file, and what to do when either fails.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::cell::Cell;
use crate::cli::Cli;

/// Where results go.
pub struct Output<'a> {
    json: bool,
    svg: Option<(&'a Path, File)>,
    /// Whether somebody still reads.
    open: bool,
}

impl<'a> Output<'a> {
    /// # Errors
    /// The plot's file can't be written.
    pub fn new(cli: &'a Cli) -> Result<Self, String> {
        let open = |path: &'a Path| {
            // Before the minute of work, and without touching what it holds.
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(|e| cannot_write(path, &e))?;
            Ok::<_, String>((path, file))
        };
        Ok(Self {
            json: cli.json,
            svg: cli.svg.as_deref().map(open).transpose()?,
            open: true,
        })
    }

    /// A line that JSON has no place for.
    ///
    /// # Errors
    /// Standard output fails.
    pub fn line(&mut self, line: &dyn Display) -> Result<(), String> {
        if self.json { Ok(()) } else { self.print(line) }
    }

    /// A cell, as JSON or as what `row` makes of it.
    ///
    /// # Errors
    /// Standard output fails.
    pub fn cell(&mut self, cell: &Cell, row: fn(&Cell) -> String) -> Result<(), String> {
        if self.json {
            self.print(&cell.json())
        } else {
            self.print(&row(cell))
        }
    }

    /// The plot, if one was asked for.
    ///
    /// # Errors
    /// It can't be drawn or written.
    pub fn svg(&mut self, draw: impl FnOnce() -> Result<String, String>) -> Result<(), String> {
        let Some((path, file)) = &mut self.svg else {
            return Ok(());
        };
        let text = draw()?;
        replace(file, &text).map_err(|e| cannot_write(path, &e))
    }

    /// Ends the program quietly if the reader has gone and there is no plot to make.
    fn print(&mut self, line: &dyn Display) -> Result<(), String> {
        if !self.open {
            return Ok(());
        }
        match writeln!(io::stdout(), "{line}") {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                if self.svg.is_none() {
                    std::process::exit(0);
                }
                self.open = false;
                Ok(())
            }
            result => result.map_err(|e| format!("cannot write to stdout: {e}")),
        }
    }
}

/// Makes `text` all that the just opened `file` holds.
fn replace(file: &mut File, text: &str) -> io::Result<()> {
    // Pipes and devices have no length.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

fn cannot_write(path: &Path, e: &io::Error) -> String {
    format!("cannot write {}: {e}", path.display())
}

/// A line on stderr, whatever the message holds.
pub fn complain(message: &str) {
    let words: Vec<_> = message.split_whitespace().collect();
    // Nobody is left to hear that stderr is closed.
    let _ = writeln!(io::stderr(), "error: {}", words.join(" "));
}
