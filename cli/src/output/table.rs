//! Tables in memory, printed as aligned text or as CSV.

use std::borrow::Cow;
use std::io::{self, Write};

use wholegrain_model::text::{csv_field, escaped};

use super::style::Style;

/// Rows below column heads.
#[derive(Debug, Default)]
pub struct Table {
    heads: Vec<String>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

/// The head of a column and the cell of an item in it.
pub type TableColumn<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

impl Table {
    /// A head that begins with `>` aligns its column to the right.
    pub fn new<H: AsRef<str>>(heads: &[H]) -> Self {
        let heads = heads.iter().map(AsRef::as_ref);
        Self {
            heads: heads.clone().map(|head| head.trim_start_matches('>').to_owned()).collect(),
            right: heads.map(|head| head.starts_with('>')).collect(),
            rows: Vec::new(),
        }
    }

    /// A table with a row for each item.
    pub fn of<'i, T: 'i>(items: impl IntoIterator<Item = &'i T>, columns: &[TableColumn<'_, T>]) -> Self {
        let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
        let mut table = Self::new(&heads);
        items.into_iter().for_each(|item| table.row(columns.iter().map(|(_, cell)| cell(item)).collect()));
        table
    }

    /// Appends a row; missing cells are empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes heads and rows as CSV.
    pub fn write_csv(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.heads.join(","))?;
        self.rows.iter().try_for_each(|row| {
            let fields: Vec<String> = row.iter().map(|cell| csv_field(cell)).collect();
            writeln!(out, "{}", fields.join(","))
        })
    }

    /// Writes heads and rows as text: each column as wide as its widest cell, no blanks at the ends of lines, hidden characters escaped.
    pub fn write(&self, style: Style, out: &mut impl Write) -> io::Result<()> {
        let rows: Vec<Vec<Cow<'_, str>>> =
            self.rows.iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect();
        let widths: Vec<usize> = (0..self.heads.len())
            .map(|i| {
                let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| width(cell));
                cells.chain([width(&self.heads[i])]).max().unwrap_or(0)
            })
            .collect();
        let heads: Vec<Cow<'_, str>> = self.heads.iter().map(|head| head.as_str().into()).collect();
        if heads.iter().any(|head| !head.is_empty()) {
            writeln!(out, "{}", style.head(&self.line(&heads, &widths)))?;
        }
        rows.iter().try_for_each(|row| writeln!(out, "{}", self.line(row, &widths)))
    }

    fn line(&self, cells: &[Cow<'_, str>], widths: &[usize]) -> String {
        let mut line = String::new();
        for (i, column) in widths.iter().enumerate() {
            let cell = cells.get(i).map_or("", |cell| cell);
            let blanks = " ".repeat(column.saturating_sub(width(cell)));
            let gap = if i == 0 { "" } else { "  " };
            line.push_str(gap);
            if self.right[i] {
                line.push_str(&blanks);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&blanks);
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// The width of a text on a terminal: its characters (names have no control characters).
pub fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned() {
        let mut table = Table::new(&["NAME", ">VALUE", "UNIT"]);
        table.row(vec!["/höhe".into(), "7".into(), "m".into()]);
        table.row(vec!["/a".into(), "1234567".into(), String::new()]);
        table.row(vec!["/a\u{202e}b".into()]);
        let mut out = Vec::new();
        table.write(Style::PLAIN, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "NAME           VALUE  UNIT\n/höhe              7  m\n/a           1234567\n/a\\u{202e}b\n"
        );
    }
}
