//! An aligned table of readings that streams: the first rows decide the widths, which grow when necessary.

use std::io::{self, Write};

use wholegrain_model::Value;
use wholegrain_model::text::escaped;

use super::batch::PrintedReading;
use crate::output::style::Style;
use crate::output::table::width;
use crate::output::values;

/// Rows held back to choose the widths.
const ROWS_HELD_MAX: usize = 1000;
/// Shown for a gap.
const GAP: &str = "-";

pub struct TableRows {
    style: Style,
    held: Vec<[String; 4]>,
    held_times: Vec<i64>,
    head_written: bool,
    decimals: usize,
    widths: [usize; 3],
}

impl TableRows {
    pub fn new(style: Style) -> Self {
        let widths = ["SENSOR", "TIME", "VALUE"].map(width);
        Self { style, held: Vec::new(), held_times: Vec::new(), head_written: false, decimals: 0, widths }
    }

    pub fn expect<'a>(&mut self, sensors: impl Iterator<Item = &'a str>) {
        self.widths[0] = sensors.map(width).chain([self.widths[0]]).max().unwrap_or(0);
    }

    pub fn write(&mut self, reading: &PrintedReading<'_>, out: &mut impl Write) -> io::Result<()> {
        let value = match reading.value {
            None => GAP.to_owned(),
            Some(Value::Int(value)) => value.to_string(),
            Some(Value::Float(value)) => values::float(value),
        };
        self.decimals = self.decimals.max(values::decimals_of(reading.time));
        let [sensor, unit] = [reading.sensor, reading.unit].map(|text| escaped(text).into_owned());
        self.held.push([sensor, String::new(), value, unit]);
        self.held_times.push(reading.time);
        if self.held.len() >= ROWS_HELD_MAX { self.write_held(out) } else { Ok(()) }
    }

    pub fn write_held(&mut self, out: &mut impl Write) -> io::Result<()> {
        let mut held = std::mem::take(&mut self.held);
        for (row, time) in held.iter_mut().zip(self.held_times.drain(..)) {
            row[1] = values::time(time, self.decimals);
            for (i, widest) in self.widths.iter_mut().enumerate() {
                *widest = (*widest).max(width(&row[i]));
            }
        }
        if held.is_empty() {
            return Ok(());
        }
        if !std::mem::replace(&mut self.head_written, true) {
            let head = self.line(&["SENSOR", "TIME", "VALUE", "UNIT"]);
            writeln!(out, "{}", self.style.head(&head))?;
        }
        held.iter().try_for_each(|row| writeln!(out, "{}", self.line(&row.each_ref().map(String::as_str))))
    }

    fn line(&self, [sensor, time, value, unit]: &[&str; 4]) -> String {
        let [a, b, c] = self.widths;
        let line = format!("{sensor:<a$}  {time:<b$}  {value:>c$} {unit}");
        line.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(sensor: &str, ms: i64, value: Option<Value>) -> PrintedReading<'_> {
        PrintedReading { sensor, time: ms * 1_000_000, value, unit: "By" }
    }

    #[test]
    fn aligned_and_growing() {
        let mut rows = TableRows::new(Style::PLAIN);
        let mut out = Vec::new();
        rows.write(&reading("/n/a", 0, Some(Value::Int(5))), &mut out).unwrap();
        rows.write(&reading("/n/longer", 500, None), &mut out).unwrap();
        assert!(out.is_empty(), "held back");
        rows.write_held(&mut out).unwrap();
        rows.write(&reading("/n/a", 1000, Some(Value::Float(123456.5))), &mut out).unwrap();
        rows.write_held(&mut out).unwrap();
        rows.write_held(&mut out).unwrap();
        let expected = "\
SENSOR     TIME                      VALUE UNIT
/n/a       1970-01-01T00:00:00.000Z      5 By
/n/longer  1970-01-01T00:00:00.500Z      - By
/n/a       1970-01-01T00:00:01.000Z  123456 By
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn never_holds_more_than_its_bound() {
        let mut rows = TableRows::new(Style::PLAIN);
        let mut out = Vec::new();
        for i in 0..ROWS_HELD_MAX as i64 {
            assert!(out.is_empty());
            rows.write(&reading("/n/a", i, Some(Value::Int(i))), &mut out).unwrap();
        }
        assert_eq!(out.iter().filter(|b| **b == b'\n').count(), ROWS_HELD_MAX + 1);
    }
}
