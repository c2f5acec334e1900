//! The list of bad lines: number, reason and text.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::parse::Bad;
use crate::failure::Failure;
use crate::output::Output;
use crate::output::style;

/// The most bad lines on standard error.
const SHOWN_MAX: usize = 5;

/// The list. Its file is made with the first bad line.
pub struct BadLines {
    path: PathBuf,
    output: Option<Output>,
    count: u64,
    first: Vec<Bad>,
}

impl BadLines {
    pub fn new(path: PathBuf) -> Self {
        Self { path, output: None, count: 0, first: Vec::new() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn add(&mut self, bad: &[Bad]) -> Result<(), Failure> {
        if bad.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        for Bad { line, why, text: whole } in bad {
            let _ = writeln!(text, "{line}\t{}\t{whole}", why.replace(['\t', '\n'], " "));
        }
        if self.output.is_none() {
            self.output = Some(Output::open(Some(&self.path))?);
        }
        if let Some(output) = &mut self.output {
            output.write_all(text.as_bytes()).map_err(Failure::writing(&self.path.display().to_string()))?;
        }
        self.count += bad.len() as u64;
        let room = SHOWN_MAX.saturating_sub(self.first.len());
        self.first.extend(bad.iter().take(room).cloned());
        Ok(())
    }

    /// Finishes the file, which then has its final name.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.output.take().map_or(Ok(()), Output::finish)
    }

    /// Prints the first bad lines.
    pub fn print(&self) {
        let style = style::on_stderr();
        for Bad { line, why, .. } in &self.first {
            eprintln!("{} line {line}: {why}", style.error("refused:"));
        }
        if self.count > 0 {
            let (count, path) = (self.count, self.path.display());
            let more = if count > SHOWN_MAX as u64 {
                format!(" and {} more", count - SHOWN_MAX as u64)
            } else {
                String::new()
            };
            eprintln!("{}{more} are listed in {path}", if more.is_empty() { "all" } else { "these" });
        }
    }
}
