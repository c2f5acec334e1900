//! The tables that show the plan of an import.

use std::io::{self, Write};

use serde::Serialize;

use super::encode::FirstReading;
use crate::output::style::Style;
use crate::output::table::Table;

/// The most columns that are shown.
pub const COLUMNS_SHOWN_MAX: usize = 20;
/// The most readings that are shown.
pub const READINGS_SHOWN_MAX: usize = 6;

/// A column of values and its sensor; with LDMS the producer decides the sensor.
#[derive(Serialize)]
pub struct PlannedColumn<'a> {
    pub column: &'a str,
    pub sensor: Option<&'a str>,
    pub unit: Option<&'a str>,
}

pub fn write_columns(columns: &[PlannedColumn<'_>], style: Style, out: &mut impl Write) -> io::Result<()> {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let table = Table::of(
        columns.iter().take(COLUMNS_SHOWN_MAX),
        &[
            ("COLUMN", &|one| one.column.to_owned()),
            ("SENSOR", &|one| text(one.sensor)),
            ("UNIT", &|one| text(one.unit)),
        ],
    );
    table.write(style, out)?;
    match columns.len().saturating_sub(COLUMNS_SHOWN_MAX) {
        0 => writeln!(out),
        more => writeln!(out, "… and {more} more columns (--json lists all)\n"),
    }
}

pub fn write_first(first: &[FirstReading], style: Style, out: &mut impl Write) -> io::Result<()> {
    let table = Table::of(
        first,
        &[
            ("FIRST READINGS", &|reading| reading.sensor.clone()),
            ("TIME", &|reading| reading.time.to_string()),
            (">VALUE", &|reading| reading.value.clone()),
            ("UNIT", &|reading| reading.unit.clone()),
        ],
    );
    table.write(style, out)
}
