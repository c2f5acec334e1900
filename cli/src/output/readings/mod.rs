//! Readings as a table, CSV, JSON or Parquet.

mod batch;
mod lines;
mod parquet;
mod table;

use std::io::{self, Write};

pub use batch::{PrintedReading, ReadingBatch, Units};
pub use lines::value_exact;
pub use parquet::ParquetRows;
use table::TableRows;

use super::ListFormat;
use super::style::Style;

/// The format of readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReadingFormat {
    /// Aligned columns with units, for people
    Table,
    /// One line per reading: sensor,time,value,unit; a gap is an empty value
    Csv,
    /// One JSON object per line; gaps, NaN and infinities are null
    Json,
    /// A Parquet file, compressed with zstd
    Parquet,
}

impl ReadingFormat {
    /// The text format; `None` for Parquet.
    pub fn text(self) -> Option<ListFormat> {
        match self {
            ReadingFormat::Table => Some(ListFormat::Table),
            ReadingFormat::Csv => Some(ListFormat::Csv),
            ReadingFormat::Json => Some(ListFormat::Json),
            ReadingFormat::Parquet => None,
        }
    }
}

/// Writes readings as text.
pub enum TextRows {
    Table(TableRows),
    Csv { has_head: bool },
    Json,
}

impl TextRows {
    pub fn new(format: ListFormat, style: Style) -> Self {
        match format {
            ListFormat::Table => TextRows::Table(TableRows::new(style)),
            ListFormat::Csv => TextRows::Csv { has_head: false },
            ListFormat::Json => TextRows::Json,
        }
    }

    /// Makes a table wide enough for these sensors.
    pub fn expect<'a>(&mut self, sensors: impl Iterator<Item = &'a str>) {
        if let TextRows::Table(table) = self {
            table.expect(sensors);
        }
    }

    /// Writes one reading, or holds it back to choose widths.
    pub fn write(&mut self, reading: &PrintedReading<'_>, out: &mut impl Write) -> io::Result<()> {
        match self {
            TextRows::Table(table) => table.write(reading, out),
            TextRows::Csv { .. } => {
                self.write_head(out)?;
                lines::csv(reading, out)
            }
            TextRows::Json => lines::json(reading, out),
        }
    }

    /// Writes what was held back; live output calls it whenever no reading waits.
    pub fn write_held(&mut self, out: &mut impl Write) -> io::Result<()> {
        if let TextRows::Table(table) = self { table.write_held(out) } else { Ok(()) }
    }

    /// Writes the head of a CSV, once. A CSV without rows has one too.
    pub fn write_head(&mut self, out: &mut impl Write) -> io::Result<()> {
        if let TextRows::Csv { has_head } = self
            && !std::mem::replace(has_head, true)
        {
            writeln!(out, "sensor,time,value,unit")?;
        }
        Ok(())
    }
}
