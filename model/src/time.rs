//! Instants: nanoseconds since the Unix epoch, UTC; read as RFC 3339, a date, Unix seconds, `now` or relative like `-10m`.

use std::fmt;

use crate::interval::Interval;

/// An instant in ns since 1970-01-01T00:00:00Z, leap seconds not counted, as POSIX has it. Years 1678 to 2262.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// Why a time was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a time; write RFC 3339 (2026-01-31T12:00:00Z), a date (2026-01-31, UTC), Unix seconds (@1769860800), now, or relative like -10m"
)]
pub struct TimeError(String);

impl Timestamp {
    /// Reads a time as a person writes it; relative ones count from `now`.
    pub fn parse(text: &str, now: Timestamp) -> Result<Self, TimeError> {
        let text = text.trim();
        let refuse = || TimeError(text.chars().take(60).collect());
        if text == "now" {
            return Ok(now);
        }
        if let Some(back) = text.strip_prefix('-').or_else(|| text.strip_prefix("now-")) {
            let ns = Interval::parse(back).map_err(|_| refuse())?.ns();
            return now.0.checked_sub_unsigned(ns).map(Self).ok_or_else(refuse);
        }
        if let Some(ahead) = text.strip_prefix("now+") {
            let ns = Interval::parse(ahead).map_err(|_| refuse())?.ns();
            return now.0.checked_add_unsigned(ns).map(Self).ok_or_else(refuse);
        }
        if let Some(seconds) = text.strip_prefix('@') {
            return unix_seconds(seconds).map(Self).ok_or_else(refuse);
        }
        let instant: jiff::Timestamp = match text.parse() {
            Ok(instant) => instant,
            Err(_) => {
                let civil: jiff::civil::DateTime = text.parse().map_err(|_| refuse())?;
                civil.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| refuse())?.timestamp()
            }
        };
        i64::try_from(instant.as_nanosecond()).map(Self).map_err(|_| refuse())
    }

    /// This instant moved by `ns`, stopping at the ends of the range.
    pub fn saturating_add(self, ns: i64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

/// Seconds with up to nine decimals, without going through a float.
fn unix_seconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let nanos: i64 = format!("{fraction:0<9}").parse().ok()?;
    let nanos = if whole.starts_with('-') { -nanos } else { nanos };
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, with as many decimals as it needs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(i128::from(self.0)) {
            Ok(instant) => write!(f, "{instant}"),
            Err(_) => write!(f, "@{}ns", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_and_written() {
        let now = Timestamp(1_769_860_800_000_000_000);
        for (text, ns) in [
            ("now", now.0),
            ("-10m", now.0 - 600_000_000_000),
            ("now-1h", now.0 - 3_600_000_000_000),
            ("2026-01-31T12:00:00Z", now.0),
            ("2026-01-31T13:00:00+01:00", now.0),
            ("2026-01-31T12:00:00.000000001Z", now.0 + 1),
            ("2026-01-31 12:00:00", now.0),
            ("2026-01-31", now.0 - 43_200_000_000_000),
            ("@1769860800", now.0),
            ("@1769860800.5", now.0 + 500_000_000),
            ("@-0.5", -500_000_000),
        ] {
            assert_eq!(Timestamp::parse(text, now).unwrap(), Timestamp(ns), "{text}");
        }
        assert_eq!(now.to_string(), "2026-01-31T12:00:00Z");
        assert_eq!(Timestamp(1).to_string(), "1970-01-01T00:00:00.000000001Z");
        for bad in ["", "yesterday", "10m", "-10", "2026-13-01", "@x", "-99999999999d", "9999-01-01T00:00:00Z"] {
            assert!(Timestamp::parse(bad, now).is_err(), "{bad:?} should be refused");
        }
    }
}
