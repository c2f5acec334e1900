//! The own time of an answer or a row: ISO 8601, a format of the configuration, or a number since the epoch.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use crate::page::PagePath;
use crate::value::PageScalar;

/// Numbers below it are seconds: those of 1973 in ms, of the year 5138 in s.
const SECONDS_BELOW: f64 = 1e11;
/// Numbers below it are milliseconds, below its thousandfold microseconds, and above it nanoseconds.
const MILLISECONDS_BELOW: f64 = 1e14;
const MICROSECONDS_BELOW: f64 = 1e17;

/// Where a time is and how it is written.
#[derive(Debug, Clone)]
pub struct PageTime {
    pub path: PagePath,
    /// In the notation of strftime, for texts that are not ISO 8601.
    pub format: Option<String>,
    /// Of texts without a zone.
    pub zone: TimeZone,
}

impl PageTime {
    /// The time in ns since the epoch.
    pub fn read(&self, scalar: &PageScalar) -> Option<i64> {
        match scalar {
            PageScalar::Number(number) => match number.as_i64() {
                Some(integer) => whole(integer),
                None => number.as_f64().and_then(fractional),
            },
            PageScalar::Text(text) => self.read_text(text.trim()),
            _ => None,
        }
    }

    fn read_text(&self, text: &str) -> Option<i64> {
        if let Some(format) = &self.format {
            let parts = strtime::parse(format, text).ok()?;
            return match parts.to_timestamp() {
                Ok(time) => ns(time),
                Err(_) => self.civil(parts.to_datetime().or_else(|_| parts.to_date().map(DateTime::from)).ok()?),
            };
        }
        if let Ok(integer) = text.parse::<i64>() {
            return whole(integer);
        }
        if let Ok(float) = text.parse::<f64>() {
            return fractional(float);
        }
        match text.parse::<Timestamp>() {
            Ok(time) => ns(time),
            Err(_) => self.civil(text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(DateTime::from)).ok()?),
        }
    }

    fn civil(&self, time: DateTime) -> Option<i64> {
        self.zone.to_ambiguous_timestamp(time).compatible().ok().and_then(ns)
    }
}

fn ns(time: Timestamp) -> Option<i64> {
    i64::try_from(time.as_nanosecond()).ok()
}

/// The factor from a number to ns, by its size.
fn factor(number: f64) -> i64 {
    match number.abs() {
        size if size < SECONDS_BELOW => 1_000_000_000,
        size if size < MILLISECONDS_BELOW => 1_000_000,
        size if size < MICROSECONDS_BELOW => 1000,
        _ => 1,
    }
}

fn whole(number: i64) -> Option<i64> {
    number.checked_mul(factor(number as f64))
}

fn fractional(number: f64) -> Option<i64> {
    let factor = factor(number);
    if number.is_nan() || (number * factor as f64).abs() >= i64::MAX as f64 {
        return None;
    }
    // A product of the whole number would be exact to 256 ns only.
    (number.trunc() as i64).checked_mul(factor)?.checked_add((number.fract() * factor as f64).round() as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::page::{PageFormat, json_scalar};

    fn time(format: Option<&str>, zone: &str) -> PageTime {
        let path = PagePath::parse("$.t", PageFormat::Json).unwrap();
        PageTime { path, format: format.map(str::to_owned), zone: TimeZone::get(zone).unwrap() }
    }

    #[track_caller]
    fn check(time: &PageTime, json: Value, expected_ms: Option<i64>) {
        assert_eq!(time.read(&json_scalar(&json)).map(|ns| ns / 1_000_000), expected_ms, "{json}");
    }

    #[test]
    fn times_in_many_forms() {
        let utc = time(None, "UTC");
        for form in [
            json!(1_732_759_200),
            json!(1_732_759_200_000_i64),
            json!(1_732_759_200_000_000_i64),
            json!(1_732_759_200_000_000_000_i64),
            json!(1_732_759_200.0),
            json!("1732759200"),
            json!("2024-11-28T02:00:00Z"),
            json!("2024-11-28T03:00:00+01:00"),
            json!("2024-11-28T03:00:00+0100"),
            json!("2024-11-28 02:00:00"),
            json!("2024-11-28T02:00"),
        ] {
            check(&utc, form, Some(1_732_759_200_000));
        }
        check(&utc, json!("2024-11-28T02:00:00.250Z"), Some(1_732_759_200_250));
        check(&utc, json!(1_732_759_200.25), Some(1_732_759_200_250));
        check(&utc, json!("2024-11-28"), Some(1_732_752_000_000));
        for bad in [
            json!("now"),
            json!(""),
            json!(null),
            json!(true),
            json!(1e300),
            json!("NaN"),
            json!("inf"),
            json!("2024-13-01"),
            json!("99999-01-01T00:00:00Z"),
        ] {
            check(&utc, bad, None);
        }
    }

    #[test]
    fn formats_and_zones() {
        let berlin = time(Some("%d.%m.%Y %H:%M"), "Europe/Berlin");
        check(&berlin, json!("28.11.2024 03:00"), Some(1_732_759_200_000));
        check(&berlin, json!("2024-11-28T02:00:00Z"), None);
        check(&time(None, "Europe/Berlin"), json!("2024-11-28 03:00:00"), Some(1_732_759_200_000));
        check(&time(Some("%Y%m%d%H%M%S%z"), "UTC"), json!("20241128030000+0100"), Some(1_732_759_200_000));
        check(&time(Some("%Y%m%d"), "UTC"), json!("20241128"), Some(1_732_752_000_000));
    }
}
