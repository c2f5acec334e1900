//! Readings as text: `value` or `value;timestamp`. No I/O.
//!
//! A value is a decimal number: `42` is an integer; `42.0`, `4.2e1` and integers beyond 64 bits are floats. `nan` and `inf` are not readings.
//!
//! A timestamp counts s, ms, us or ns since the Unix epoch. Its size gives the unit: below 1e11 s, below 1e14 ms, below 1e17 us, otherwise ns. From
//! March 1973 to the year 5138 only one unit fits a timestamp. Digits after the decimal point are fractions of the unit.

use wholegrain_model::Value;

/// The longest payload that is parsed as text, in bytes.
pub const TEXT_BYTES_MAX: usize = 96;

/// Upper bounds of timestamps, with the ns of their unit.
const UNITS: [(i64, i64); 4] = [
    (100_000_000_000, 1_000_000_000),
    (100_000_000_000_000, 1_000_000),
    (100_000_000_000_000_000, 1_000),
    (i64::MAX, 1),
];

/// Parses a payload into the value and its time in ns, if it has one; `None` if it is not a reading as text.
pub fn parse(payload: &[u8]) -> Option<(Value, Option<i64>)> {
    if payload.len() > TEXT_BYTES_MAX {
        return None;
    }
    // Other payloads are mostly binary; their first byte distinguishes most of them.
    if !payload
        .first()
        .is_some_and(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b' ' | b'\t' | b'\n' | b'\r'))
    {
        return None;
    }
    let text = std::str::from_utf8(payload).ok()?.trim_ascii();
    match text.split_once(';') {
        None => Some((number(text)?, None)),
        Some((value, time)) => Some((number(value.trim_ascii_end())?, Some(time_ns(time.trim_ascii_start())?))),
    }
}

/// Parses a decimal number.
pub fn number(text: &str) -> Option<Value> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')) {
        return None;
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(value) = text.parse::<i64>()
    {
        return Some(Value::Int(value));
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite()).map(Value::Float)
}

/// Parses a time in s, ms, us or ns, by its size, into ns.
pub fn time_ns(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let count = whole.strip_prefix('-').unwrap_or(whole);
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if count.is_empty() || !all_digits(count) || !all_digits(fraction) || (text.contains('.') && fraction.is_empty()) {
        return None;
    }
    let whole_value: i64 = whole.parse().ok()?;
    let unit = unit_ns(whole_value);
    // At most nine digits after the point of a second matter; fractions of a ns are dropped.
    let (mut part, mut weight) = (0, unit);
    for digit in fraction.bytes() {
        weight /= 10;
        part += i64::from(digit - b'0') * weight;
    }
    let whole_ns = whole_value.checked_mul(unit)?;
    if whole.starts_with('-') { whole_ns.checked_sub(part) } else { whole_ns.checked_add(part) }
}

/// The ns of a timestamp's unit, by its size.
pub fn unit_ns(timestamp: i64) -> i64 {
    let size = timestamp.saturating_abs();
    UNITS.iter().find(|(bound, _)| size < *bound).map_or(1, |(_, unit)| *unit)
}

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::*;

    const NOON: i64 = 1_769_860_800_000_000_000;

    #[test]
    fn values_and_times() {
        let int = |v| Some((Value::Int(v), None));
        let float = |v| Some((Value::Float(v), None));
        let at = |v, t| Some((Value::Int(v), Some(t)));
        for (text, expected) in [
            ("42", int(42)),
            ("-7", int(-7)),
            ("+7", int(7)),
            (" 42\n", int(42)),
            ("0", int(0)),
            ("9223372036854775807", int(i64::MAX)),
            ("-9223372036854775808", int(i64::MIN)),
            ("9223372036854775808", float(9_223_372_036_854_775_808.0)),
            ("42.0", float(42.0)),
            (".5", float(0.5)),
            ("5.", float(5.0)),
            ("-1.5e-3", float(-0.0015)),
            ("1E3", float(1000.0)),
            ("5;1769860800", at(5, NOON)),
            ("5;1769860800000", at(5, NOON)),
            ("5;1769860800000000", at(5, NOON)),
            ("5;1769860800000000000", at(5, NOON)),
            ("5 ; 1769860800", at(5, NOON)),
            ("5;1769860800.25", at(5, NOON + 250_000_000)),
            ("5;1769860800.000000001", at(5, NOON + 1)),
            ("5;1769860800.00000000199", at(5, NOON + 1)),
            ("5;1769860800000.5", at(5, NOON + 500_000)),
            ("5;-1.5", at(5, -1_500_000_000)),
            ("5;99999999999", at(5, 99_999_999_999_000_000_000_i128.min(i64::MAX as i128) as i64)),
        ] {
            // Seconds just below the bound are beyond the range of ns.
            let expected = if text.ends_with(";99999999999") { None } else { expected };
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_reading() {
        for text in [
            "",
            " ",
            "-",
            ".",
            "e5",
            "1e",
            "nan",
            "NaN",
            "inf",
            "-inf",
            "infinity",
            "0x10",
            "1,5",
            "1 2",
            "5;",
            ";5",
            "5;x",
            "5;1;2",
            "5;1.",
            "5;.5",
            "5;1e9",
            "1e999",
            "5;99999999999999999999",
            "twelve",
            "1_000",
            "٣",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse(&[b'1'; TEXT_BYTES_MAX + 1]), None);
        assert_eq!(parse(&[b'1', 0xff]), None);
    }

    #[test]
    fn any_bytes_are_parsed_without_panic() {
        let mut random = Random::seeded_or(0x5eed_7e47);
        let alphabet = b"0123456789+-.eE; \n\0\xffx";
        for round in 0..200_000 {
            let mut payload = Vec::new();
            for _ in 0..round % 24 {
                payload.push(random.pick(alphabet));
            }
            // An accepted value survives formatting and parsing.
            if let Some((value, _)) = parse(&payload) {
                let text = match value {
                    Value::Int(value) => value.to_string(),
                    Value::Float(value) => format!("{value:e}"),
                };
                assert_eq!(number(&text), Some(value), "round {round}: {payload:?}");
            }
        }
    }
}
