//! The line protocol of InfluxDB, which ClusterCockpit uses as well. No I/O.
//!
//! `measurement,tag=value,… field=value,… timestamp`: the whole syntax of versions 1 and 2, with escapes, quoted strings (which may contain line
//! ends), integers (`1i`), unsigned integers (`1u`), booleans, floats, and comments. An invalid line ends at its first line end and does not affect
//! the next one.

use std::borrow::Cow;

pub const LINE_BYTES_MAX: usize = 256 << 10;
pub const TAGS_MAX: usize = 64;
pub const FIELDS_MAX: usize = 4096;

#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// Written with an `i`, as in `1i`.
    Int(i64),
    /// Written with a `u`, as in `1u`.
    Unsigned(u64),
    /// `1.5`; `1` is a float as well.
    Float(f64),
    /// Written as `t`, `true`, `f`, `false`.
    Bool(bool),
    /// `"text"`: accepted, but never a reading.
    Text,
}

#[derive(Debug, Clone, PartialEq)]
pub struct InfluxLine<'a> {
    pub measurement: Cow<'a, str>,
    /// In the order of the line; no key twice.
    pub tags: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// In the order of the line; at least one.
    pub fields: Vec<(Cow<'a, str>, FieldValue)>,
    /// In the unit that the request declares.
    pub timestamp: Option<i64>,
}

impl InfluxLine<'_> {
    pub fn tag(&self, key: &str) -> Option<&str> {
        self.tags.iter().find(|(known, _)| known == key).map(|(_, value)| &**value)
    }
}

/// Iterates over the lines of a text with their numbers, from 1. Skips empty lines and comments.
#[derive(Debug, Clone)]
pub struct InfluxLines<'a> {
    text: &'a str,
    at: usize,
    number: usize,
}

impl<'a> InfluxLines<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0, number: 0 }
    }
}

impl<'a> Iterator for InfluxLines<'a> {
    type Item = (usize, std::result::Result<InfluxLine<'a>, &'static str>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = &self.text[self.at..];
            if rest.is_empty() {
                return None;
            }
            let line_end = rest.find('\n').unwrap_or(rest.len());
            let start = rest[..line_end].trim_start_matches([' ', '\t', '\r']);
            self.number += 1;
            if start.is_empty() || start.starts_with('#') {
                self.at = (self.at + line_end + 1).min(self.text.len());
                continue;
            }
            let number = self.number;
            let skipped = line_end - start.len();
            let mut cursor = LineCursor { text: &rest[skipped..], at: 0 };
            let result = cursor.line();
            // A valid line may contain line ends within strings; an invalid line ends at its first line end.
            let end = if result.is_ok() { skipped + cursor.at } else { line_end };
            self.number += rest[..end].matches('\n').count();
            self.at = (self.at + end + 1).min(self.text.len());
            return Some((number, result));
        }
    }
}

struct LineCursor<'a> {
    text: &'a str,
    at: usize,
}

type LineResult<T> = std::result::Result<T, &'static str>;

impl<'a> LineCursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn line(&mut self) -> LineResult<InfluxLine<'a>> {
        let measurement = self.name(b", ", b", ")?;
        if measurement.is_empty() {
            return Err("there is no measurement");
        }
        let tags = self.tags()?;
        self.spaces();
        let fields = self.fields()?;
        self.spaces();
        let timestamp = self.timestamp()?;
        self.spaces();
        match self.peek() {
            None | Some(b'\n') if self.at <= LINE_BYTES_MAX => Ok(InfluxLine { measurement, tags, fields, timestamp }),
            None | Some(b'\n') => Err("the line is too long"),
            Some(_) => Err("something follows the timestamp"),
        }
    }

    fn spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\r')) {
            self.at += 1;
        }
    }

    fn tags(&mut self) -> LineResult<Vec<(Cow<'a, str>, Cow<'a, str>)>> {
        let mut tags: Vec<(Cow<'a, str>, Cow<'a, str>)> = Vec::new();
        while self.peek() == Some(b',') {
            self.at += 1;
            let key = self.name(b",= ", b",= ")?;
            if key.is_empty() || self.peek() != Some(b'=') {
                return Err("a tag is not key=value");
            }
            self.at += 1;
            let value = self.name(b",= ", b", ")?;
            if value.is_empty() {
                return Err("a tag has no value");
            }
            if tags.iter().any(|(known, _)| *known == key) {
                return Err("a tag appears twice");
            }
            if tags.len() >= TAGS_MAX {
                return Err("there are too many tags");
            }
            tags.push((key, value));
        }
        if self.peek() == Some(b' ') { Ok(tags) } else { Err("there are no fields") }
    }

    fn fields(&mut self) -> LineResult<Vec<(Cow<'a, str>, FieldValue)>> {
        let mut fields = Vec::new();
        loop {
            let key = self.name(b",= ", b",= ")?;
            if key.is_empty() || self.peek() != Some(b'=') {
                return Err("a field is not key=value");
            }
            self.at += 1;
            let value = if self.peek() == Some(b'"') { self.quoted()? } else { self.plain_value()? };
            if fields.len() >= FIELDS_MAX {
                return Err("there are too many fields");
            }
            fields.push((key, value));
            if self.peek() != Some(b',') {
                break;
            }
            self.at += 1;
        }
        match self.peek() {
            None | Some(b' ' | b'\n' | b'\r') => Ok(fields),
            Some(_) => Err("something follows a field's value"),
        }
    }

    /// Reads up to one of `ends` or the line's end; a backslash makes each character of `escaped` literal.
    fn name(&mut self, escaped: &[u8], ends: &[u8]) -> LineResult<Cow<'a, str>> {
        let (bytes, start) = (self.text.as_bytes(), self.at);
        let mut owned: Option<String> = None;
        let mut from = start;
        while let Some(&byte) = bytes.get(self.at) {
            if byte == b'\\' && bytes.get(self.at + 1).is_some_and(|next| escaped.contains(next)) {
                // Drops the backslash and keeps the character after it.
                owned.get_or_insert_default().push_str(&self.text[from..self.at]);
                from = self.at + 1;
                self.at += 2;
                continue;
            }
            if ends.contains(&byte) || byte == b'\n' {
                break;
            }
            self.at += 1;
        }
        let last = self.text[from..self.at].trim_end_matches('\r');
        Ok(match owned {
            None => Cow::Borrowed(last),
            Some(mut owned) => {
                owned.push_str(last);
                Cow::Owned(owned)
            }
        })
    }

    fn quoted(&mut self) -> LineResult<FieldValue> {
        let bytes = self.text.as_bytes();
        self.at += 1;
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'\\' if matches!(bytes.get(self.at + 1), Some(b'"' | b'\\')) => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return Ok(FieldValue::Text);
                }
                _ => self.at += 1,
            }
        }
        Err("a string is not closed")
    }

    fn plain_value(&mut self) -> LineResult<FieldValue> {
        let start = self.at;
        while !matches!(self.peek(), None | Some(b',' | b' ' | b'\n' | b'\r')) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        match text {
            "" => return Err("a field has no value"),
            "t" | "T" | "true" | "True" | "TRUE" => return Ok(FieldValue::Bool(true)),
            "f" | "F" | "false" | "False" | "FALSE" => return Ok(FieldValue::Bool(false)),
            _ => {}
        }
        if let Some(digits) = text.strip_suffix('i') {
            return digits.parse().map(FieldValue::Int).map_err(|_| "an integer is invalid or beyond 64 bits");
        }
        if let Some(digits) = text.strip_suffix('u') {
            return digits
                .parse()
                .map(FieldValue::Unsigned)
                .map_err(|_| "an unsigned integer is invalid or beyond 64 bits");
        }
        let written = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        match text.parse::<f64>() {
            Ok(value) if written && value.is_finite() => Ok(FieldValue::Float(value)),
            _ => Err("a value is neither number, boolean nor quoted string"),
        }
    }

    fn timestamp(&mut self) -> LineResult<Option<i64>> {
        let start = self.at;
        while !matches!(self.peek(), None | Some(b' ' | b'\n' | b'\r')) {
            self.at += 1;
        }
        match &self.text[start..self.at] {
            "" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| "the timestamp is not a 64-bit integer"),
        }
    }
}

#[cfg(test)]
mod tests;
