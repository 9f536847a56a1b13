//! Standard output and the plot's file.

use std::fmt::Display;

use amla_examples::output::{PlotFile, columns, try_print, wrapped};

use crate::cell::Cell;
use crate::cli::Cli;

/// The results' destinations.
pub struct Output<'a> {
    json: bool,
    svg: Option<PlotFile<'a>>,
    /// Whether the reader of standard output has not closed it.
    open: bool,
}

impl<'a> Output<'a> {
    /// # Errors
    /// The plot's file can't be written.
    pub fn new(cli: &'a Cli) -> Result<Self, String> {
        Ok(Self {
            json: cli.json,
            svg: cli.svg.as_deref().map(PlotFile::open).transpose()?,
            open: true,
        })
    }

    /// A line, but not in JSON.
    ///
    /// # Errors
    /// Standard output fails.
    pub fn line(&mut self, line: &dyn Display) -> Result<(), String> {
        if self.json {
            return Ok(());
        }
        self.print(&wrapped(&line.to_string(), columns()))
    }

    /// A cell, in JSON or as a line of a table by `row`.
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

    /// The plot, if the command line names a file for it.
    ///
    /// # Errors
    /// It can't be drawn or written.
    pub fn svg(&mut self, draw: impl FnOnce() -> Result<String, String>) -> Result<(), String> {
        match self.svg.take() {
            Some(file) => file.write(&draw()?),
            None => Ok(()),
        }
    }

    /// Ends the program quietly if the reader has closed standard output and there is no plot to
    /// draw.
    fn print(&mut self, line: &dyn Display) -> Result<(), String> {
        self.open = self.open && try_print(line)?;
        if !self.open && self.svg.is_none() {
            std::process::exit(0);
        }
        Ok(())
    }
}
