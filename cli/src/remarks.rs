//! Warnings and notes of a response about readings.

use std::collections::BTreeSet;

use crate::output::style;

/// What a response lacks.
#[derive(Debug, Default)]
pub struct Remarks {
    /// Readings that could not be read.
    pub warnings: BTreeSet<String>,
    /// Readings that are left out on purpose, such as readings dropped by retention.
    pub notes: BTreeSet<String>,
}

impl Remarks {
    pub fn extend(&mut self, other: Remarks) {
        self.warnings.extend(other.warnings);
        self.notes.extend(other.notes);
    }

    /// The remarks that `known` does not have.
    pub fn without(mut self, known: &Remarks) -> Self {
        self.warnings.retain(|warning| !known.warnings.contains(warning));
        self.notes.retain(|note| !known.notes.contains(note));
        self
    }

    /// Prints to standard error.
    pub fn print(&self) {
        self.notes.iter().for_each(|note| eprintln!("note: {note}"));
        self.warnings.iter().for_each(|warning| eprintln!("{} {warning}", style::on_stderr().error("warning:")));
    }
}
