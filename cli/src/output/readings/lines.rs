//! One line per reading, for programs.

use std::io::{self, Write};

use wholegrain_model::text::csv_field;
use wholegrain_model::{Timestamp, Value};

use super::batch::PrintedReading;
use crate::output::values;

/// `sensor,time,value,unit`. Names hold neither comma nor quote nor line break, so they need no quotes.
pub fn csv(reading: &PrintedReading<'_>, out: &mut impl Write) -> io::Result<()> {
    let PrintedReading { sensor, time, value, unit } = *reading;
    writeln!(out, "{sensor},{},{},{}", Timestamp(time), value_exact(value), csv_field(unit))
}

/// A value for programs: the shortest text that is read back as the same value; an empty text for a gap.
pub fn value_exact(value: Option<Value>) -> String {
    match value {
        None => String::new(),
        Some(Value::Int(value)) => value.to_string(),
        Some(Value::Float(value)) => values::float_exact(value),
    }
}

pub fn json(reading: &PrintedReading<'_>, out: &mut impl Write) -> io::Result<()> {
    #[derive(serde::Serialize)]
    struct JsonReading<'a> {
        sensor: &'a str,
        time: String,
        value: Option<Value>,
        unit: &'a str,
    }
    // serde_json writes NaN and infinities as null.
    let PrintedReading { sensor, time, value, unit } = *reading;
    let line = JsonReading { sensor, time: Timestamp(time).to_string(), value, unit };
    serde_json::to_writer(&mut *out, &line)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: Option<Value>, expected_csv: &str, expected_json: &str) {
        let reading = PrintedReading { sensor: "/n/höhe", time: 1_500_000_000, value, unit: "By" };
        let mut out = Vec::new();
        csv(&reading, &mut out).unwrap();
        json(&reading, &mut out).unwrap();
        let time = "1970-01-01T00:00:01.5Z";
        let expected = format!(
            "/n/höhe,{time},{expected_csv},By\n{{\"sensor\":\"/n/höhe\",\"time\":\"{time}\",\"value\":{expected_json},\"unit\":\"By\"}}\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn lines() {
        check(None, "", "null");
        check(Some(Value::Int(i64::MIN)), "-9223372036854775808", "-9223372036854775808");
        check(Some(Value::Float(0.1)), "0.1", "0.1");
        check(Some(Value::Float(3.0)), "3", "3.0");
        check(Some(Value::Float(f64::NAN)), "NaN", "null");
        check(Some(Value::Float(f64::NEG_INFINITY)), "-inf", "null");
    }
}
