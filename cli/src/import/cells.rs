//! Cells of a file: numbers, gaps, and what is neither. A cell is read exactly or refused.

/// What a cell is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell {
    /// The cell has no text.
    Empty,
    /// A word that says that there is no value.
    Gap,
    Int(i64),
    Float(f64),
}

/// Words for no value.
const GAPS: [&[u8]; 6] = [b"NA", b"N/A", b"null", b"NULL", b"None", b"-"];
/// Digits that fit into 64 bits in any case.
const DIGITS_SAFE: usize = 18;

/// Reads a cell; `comma` is whether decimals come after a comma.
pub fn cell(text: &[u8], comma: bool) -> Result<Cell, &'static str> {
    let text = text.trim_ascii();
    let (negative, digits) = match text {
        [] => return Ok(Cell::Empty),
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
        if digits.len() <= DIGITS_SAFE {
            let value = digits.iter().fold(0i64, |value, byte| value * 10 + i64::from(byte - b'0'));
            return Ok(match (negative, value) {
                // An integer has no such zero.
                (true, 0) => Cell::Float(-0.0),
                (true, value) => Cell::Int(-value),
                (false, value) => Cell::Int(value),
            });
        }
        let text = std::str::from_utf8(text).map_err(|_| "no number")?;
        return text.parse().map(Cell::Int).map_err(|_| "an integer that does not fit into 64 bits");
    }
    if GAPS.contains(&text) {
        return Ok(Cell::Gap);
    }
    let with_point;
    let text = if comma {
        if text.contains(&b'.') {
            return Err("no number: a point where decimals come after a comma");
        }
        with_point = text.iter().map(|byte| if *byte == b',' { b'.' } else { *byte }).collect::<Vec<u8>>();
        &with_point[..]
    } else {
        text
    };
    let text = std::str::from_utf8(text).map_err(|_| "no number")?;
    let value: f64 = text.parse().map_err(|_| "no number")?;
    if value.is_infinite() && digits.first().is_some_and(u8::is_ascii_digit) {
        return Err("a number that is too large");
    }
    Ok(Cell::Float(value))
}

/// Splits a line into its fields, each as a range of the line or, where quotes had to be taken out, of `scratch`.
pub struct Fields {
    delimiter: u8,
    ranges: Vec<(usize, usize, bool)>,
    scratch: Vec<u8>,
}

impl Fields {
    pub fn new(delimiter: u8) -> Self {
        Self { delimiter, ranges: Vec::new(), scratch: Vec::new() }
    }

    /// Finds the fields of a line; the text says why there are none.
    pub fn split(&mut self, line: &[u8]) -> Result<(), &'static str> {
        self.ranges.clear();
        self.scratch.clear();
        if memchr::memchr(b'"', line).is_some() {
            return self.split_quoted(line);
        }
        let mut start = 0;
        for at in memchr::memchr_iter(self.delimiter, line) {
            self.ranges.push((start, at, false));
            start = at + 1;
        }
        self.ranges.push((start, line.len(), false));
        Ok(())
    }

    fn split_quoted(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let mut at = 0;
        loop {
            let blanks = line[at..].iter().take_while(|b| **b == b' ' && self.delimiter != b' ').count();
            if line.get(at + blanks) == Some(&b'"') {
                let start = self.scratch.len();
                at += blanks + 1;
                loop {
                    let Some(length) = memchr::memchr(b'"', &line[at..]) else {
                        return Err("a quote that is not closed in its line");
                    };
                    self.scratch.extend_from_slice(&line[at..at + length]);
                    at += length + 1;
                    if line.get(at) != Some(&b'"') {
                        break;
                    }
                    self.scratch.push(b'"');
                    at += 1;
                }
                self.ranges.push((start, self.scratch.len(), true));
                at += line[at..].iter().take_while(|b| **b == b' ' && self.delimiter != b' ').count();
                match line.get(at) {
                    None => return Ok(()),
                    Some(byte) if *byte == self.delimiter => at += 1,
                    Some(_) => return Err("text after a closing quote"),
                }
            } else {
                let end = memchr::memchr(self.delimiter, &line[at..]).map_or(line.len(), |length| at + length);
                self.ranges.push((at, end, false));
                if end == line.len() {
                    return Ok(());
                }
                at = end + 1;
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn get<'a>(&'a self, line: &'a [u8], at: usize) -> &'a [u8] {
        match self.ranges.get(at) {
            None => b"",
            Some((start, end, true)) => &self.scratch[*start..*end],
            Some((start, end, false)) => &line[*start..*end],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells() {
        for (text, expected) in [
            ("", Ok(Cell::Empty)),
            ("  ", Ok(Cell::Empty)),
            ("NA", Ok(Cell::Gap)),
            ("-", Ok(Cell::Gap)),
            ("0", Ok(Cell::Int(0))),
            ("-12", Ok(Cell::Int(-12))),
            ("-0", Ok(Cell::Float(-0.0))),
            ("+7", Ok(Cell::Int(7))),
            ("9223372036854775807", Ok(Cell::Int(i64::MAX))),
            ("-9223372036854775808", Ok(Cell::Int(i64::MIN))),
            ("9223372036854775808", Err("an integer that does not fit into 64 bits")),
            ("1.5", Ok(Cell::Float(1.5))),
            ("1e-3", Ok(Cell::Float(0.001))),
            ("inf", Ok(Cell::Float(f64::INFINITY))),
            ("1e999", Err("a number that is too large")),
            ("0x10", Err("no number")),
            ("1 000", Err("no number")),
            ("on", Err("no number")),
            ("1,5", Err("no number")),
        ] {
            assert_eq!(cell(text.as_bytes(), false), expected, "{text}");
        }
        assert!(matches!(cell(b"NaN", false), Ok(Cell::Float(value)) if value.is_nan()));
        assert_eq!(cell(b"1,5", true), Ok(Cell::Float(1.5)));
        assert!(cell(b"1.234,5", true).is_err());
    }

    #[track_caller]
    fn check(line: &str, delimiter: u8, expected: Result<&[&str], &'static str>) {
        let mut fields = Fields::new(delimiter);
        let found = fields.split(line.as_bytes()).map(|()| {
            (0..fields.len()).map(|at| String::from_utf8_lossy(fields.get(line.as_bytes(), at)).into_owned()).collect()
        });
        let expected: Result<Vec<String>, _> = expected.map(|fields| fields.iter().map(|&f| f.to_owned()).collect());
        assert_eq!(found, expected, "{line}");
    }

    #[test]
    fn fields() {
        check("a,b,,c", b',', Ok(&["a", "b", "", "c"]));
        check("", b',', Ok(&[""]));
        check("a,", b',', Ok(&["a", ""]));
        check("\"a,b\",c", b',', Ok(&["a,b", "c"]));
        check("\"a\"\"b\"", b',', Ok(&["a\"b"]));
        check("x, \"y\" ,z", b',', Ok(&["x", "y", "z"]));
        check("\"a\",", b',', Ok(&["a", ""]));
        check("a;\"b;c\"", b';', Ok(&["a", "b;c"]));
        check("\"a,b", b',', Err("a quote that is not closed in its line"));
        check("\"a\"b,c", b',', Err("text after a closing quote"));
    }
}
