//! CSV as a list of objects: a line becomes an object with the names of the columns.

use csv::{ReaderBuilder, StringRecord, Trim};
use serde_json::{Map, Value};

use crate::json::NODES_MAX;

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
pub fn parse(text: &str, format: CsvFormat) -> Result<Value, String> {
    let mut rest = text;
    for _ in 0..format.skip {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    let mut reader = ReaderBuilder::new()
        .delimiter(format.delimiter)
        .has_headers(format.has_header)
        .flexible(true)
        .trim(Trim::All)
        .from_reader(rest.as_bytes());
    let names = if format.has_header {
        reader.headers().map_err(|error| error.to_string())?.clone()
    } else {
        StringRecord::new()
    };
    let (mut rows, mut nodes) = (Vec::new(), 0);
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        nodes += record.len() + 1;
        if nodes > NODES_MAX {
            return Err(format!("more than {NODES_MAX} values"));
        }
        let value = |text: &str| if text.is_empty() { Value::Null } else { Value::String(text.to_owned()) };
        let row = record.iter().enumerate().map(|(at, text)| match names.get(at) {
            Some(name) => (name.to_owned(), value(text)),
            None => ((at + 1).to_string(), value(text)),
        });
        rows.push(Value::Object(row.collect::<Map<_, _>>()));
    }
    if rows.is_empty() { Err("no lines of values".to_owned()) } else { Ok(Value::Array(rows)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COMMA: CsvFormat = CsvFormat { delimiter: b',', has_header: true, skip: 0 };

    #[test]
    fn lines_become_objects() {
        let text = "name, T °C ,\"a,b\"\r\nnorth,12.5,\"x \"\"y\"\"\"\r\n\r\nsouth,\n";
        let expected =
            json!([{ "name": "north", "T °C": "12.5", "a,b": "x \"y\"" }, { "name": "south", "T °C": null }]);
        assert_eq!(parse(text, COMMA).unwrap(), expected);
        let format = CsvFormat { delimiter: b';', has_header: false, skip: 2 };
        assert_eq!(parse("a\nb\n1;2\n", format).unwrap(), json!([{ "1": "1", "2": "2" }]));
    }

    #[test]
    fn what_is_no_table() {
        assert!(parse("", COMMA).is_err());
        assert!(parse("a,b\n", COMMA).is_err());
        assert!(parse(&format!("a\n{}", ",\n".repeat(NODES_MAX / 2)), COMMA).unwrap_err().contains("more than"));
    }
}
