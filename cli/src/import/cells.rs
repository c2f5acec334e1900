//! Cells of a file: numbers and gaps. A cell is read exactly or refused.

/// The content of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell {
    /// The cell has no text.
    Empty,
    /// A word for a missing value.
    Gap,
    Int(i64),
    Float(f64),
}

/// Words for a missing value.
const GAPS: [&[u8]; 6] = [b"NA", b"N/A", b"null", b"NULL", b"None", b"-"];
/// Any number of this many digits fits into 64 bits.
const DIGITS_SAFE: usize = 18;

/// Parses a cell. With `comma`, decimals follow a comma.
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
                // Integers have no negative zero.
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
            return Err("no number: a point, but decimals follow a comma");
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
}
