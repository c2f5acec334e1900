//! CSV as a list of objects: a line becomes an object with the names of the columns.

use std::borrow::Cow;

use csv::{ReaderBuilder, StringRecord, Trim};
use serde_json::{Map, Value};
use wholegrain_device_http::{JsonTree, TreeCost, TreeFault};

/// How the lines of a text are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsvFormat {
    pub delimiter: u8,
    /// Whether the first line has the names of the columns. Without it they are `1`, `2`, ….
    pub has_header: bool,
    /// Lines before the first one.
    pub skip: usize,
}

/// Parses a text. Values are texts; an empty one is null.
pub fn parse(text: &str, format: CsvFormat) -> Result<JsonTree, TreeFault> {
    let wrong = |error: csv::Error| TreeFault::Wrong(error.to_string());
    let mut rest = text;
    for _ in 0..format.skip {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    // Each line is an object, and has the names of all its columns.
    let length = rest.len();
    let cost = TreeCost::reserve(length.saturating_mul(512).saturating_add(length.saturating_mul(length) / 8))?;
    let mut reader = ReaderBuilder::new()
        .delimiter(format.delimiter)
        .has_headers(format.has_header)
        .flexible(true)
        .trim(Trim::All)
        .from_reader(rest.as_bytes());
    let names = if format.has_header { reader.headers().map_err(wrong)?.clone() } else { StringRecord::new() };
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(wrong)?;
        cost.add_node()?;
        cost.add_item(rows.len())?;
        let mut row = Map::new();
        for (at, text) in record.iter().enumerate() {
            let name = names.get(at).map_or_else(|| (at + 1).to_string().into(), Cow::Borrowed);
            cost.add_node()?;
            cost.add_entry(at, &name)?;
            cost.add_text(text)?;
            let value = if text.is_empty() { Value::Null } else { Value::String(text.to_owned()) };
            row.insert(name.into_owned(), value);
        }
        rows.push(Value::Object(row));
    }
    if rows.is_empty() {
        return Err(TreeFault::Wrong("no lines of values".to_owned()));
    }
    Ok(JsonTree::new(Value::Array(rows), cost.finish()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wholegrain_device_http::NODES_MAX;

    use super::*;

    const COMMA: CsvFormat = CsvFormat { delimiter: b',', has_header: true, skip: 0 };

    #[test]
    fn lines_become_objects() {
        let text = "name, T °C ,\"a,b\"\r\nnorth,12.5,\"x \"\"y\"\"\"\r\n\r\nsouth,\n";
        let expected =
            json!([{ "name": "north", "T °C": "12.5", "a,b": "x \"y\"" }, { "name": "south", "T °C": null }]);
        assert_eq!(*parse(text, COMMA).unwrap(), expected);
        let format = CsvFormat { delimiter: b';', has_header: false, skip: 2 };
        assert_eq!(*parse("a\nb\n1;2\n", format).unwrap(), json!([{ "1": "1", "2": "2" }]));
    }

    #[test]
    fn what_is_no_table() {
        assert!(parse("", COMMA).is_err());
        assert!(parse("a,b\n", COMMA).is_err());
        let fault = |text: &str| parse(text, COMMA).err().unwrap().to_string();
        let columns = "a,b,c,d,e,f,g,h,i,j\n".to_owned() + &",,,,,,,,,\n".repeat(NODES_MAX / 10);
        assert!(fault(&columns).contains("more than 50000 values"));
        assert!(fault(&format!("a\n{}", ",\n".repeat(NODES_MAX / 3))).contains("more than 8 MiB"));
    }

    #[test]
    fn long_names_count_in_each_line() {
        let text = |lines: usize| format!("T,{}\n{}", "x".repeat(100_000), "1,2\n".repeat(lines));
        assert!(parse(&text(50), COMMA).is_ok());
        assert!(parse(&text(4000), COMMA).err().unwrap().to_string().contains("more than 8 MiB as a tree"));
        // What is reserved for a small text is enough for it.
        for text in ["a\n1\n", &"1\n".repeat(100), &format!("{}\n{}", "n".repeat(1000), "1\n".repeat(1000))] {
            assert!(parse(text, COMMA).is_ok(), "{text:.60}");
        }
    }
}
