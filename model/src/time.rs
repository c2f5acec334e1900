//! Timestamps: nanoseconds since the Unix epoch. Parses RFC 3339, dates, times of day, named time zones, Unix seconds, `now` and relative times such
//! as `-10m`.

use std::borrow::Cow;
use std::fmt;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};

use crate::interval::Interval;

const SECOND_NS: i64 = 1_000_000_000;
/// The length of a POSIX day, s.
const DAY_S: i64 = 86_400;

/// A time in ns since 1970-01-01T00:00:00Z without leap seconds, as in POSIX. Years 1678 to 2262.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// Why a time was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The format is unknown.
    #[error(
        "{0:?} is not a time; write RFC 3339 (2026-01-31T12:00:00Z), a date (2026-01-31, UTC), a time of today (14:00), today, yesterday, a time with its zone (2026-01-31 13:00 Europe/Berlin), Unix seconds (@1769860800), now, or relative like -10m"
    )]
    Unreadable(String),
    /// The machine does not know the time zone.
    #[error(
        "{text:?}: no time zone {zone:?} is known on this machine; write a name such as Europe/Berlin, UTC, or the offset from UTC (2026-01-31T13:00:00+01:00). The package tzdata has the names"
    )]
    Zone { text: String, zone: String },
    /// The clocks of the zone were put forward over this time.
    #[error(
        "{text:?}: that time does not exist in {zone}, where clocks are put forward over it; write {earlier} or {later}"
    )]
    Skipped {
        text: String,
        zone: String,
        /// With the offset from UTC after the change.
        earlier: String,
        /// With the offset from UTC before the change.
        later: String,
    },
    /// The clocks of the zone were put back over this time.
    #[error("{text:?}: that time comes twice in {zone}, where clocks are put back; write {earlier} or {later}")]
    Twice { text: String, zone: String, earlier: String, later: String },
    /// The given offset from UTC is not that of the given zone.
    #[error("{text:?}: in {zone} that instant is {right}; omit the zone or the offset")]
    Contradiction {
        text: String,
        zone: String,
        /// The time with the offset of the zone.
        right: String,
    },
    /// A second 60 that is not a leap second.
    #[error(
        "{0:?} has a second 60, but leap seconds come only as 23:59:60 UTC on the last day of a month; write :59, or the next minute"
    )]
    NoLeapSecond(String),
}

impl Timestamp {
    /// Parses a time; relative times count from `now`.
    ///
    /// - RFC 3339. Without an offset from UTC, and for a date alone, the time is in UTC.
    /// - With the name of a time zone after a space or in brackets: `2026-03-29 12:00 Europe/Berlin`, `2026-03-29T12:00[Europe/Berlin]`. A time that does
    ///   not exist there because clocks are put forward, or exists twice because they are put back, is refused; the error has both possible
    ///   instants. The machine provides the zones (`/usr/share/zoneinfo`).
    /// - `14:00` or `14:00:05` is a time of the current day, `today` and `yesterday` are the begins of days, `yesterday 14:00` is a time of that day; in
    ///   UTC, or in the zone after it: `yesterday 14:00 Europe/Berlin`.
    /// - `23:59:60` on the last day of a month, UTC, is a leap second. POSIX has no number for it: it equals 00:00:00 of the next day. Whether that day
    ///   had a leap second is not checked. Any other second 60 is refused.
    /// - `@1769860800.5`: POSIX seconds since the Unix epoch.
    /// - `now`, `-10m` or `now-10m`, `+10m` or `now+10m`: physical time; a day is 24 hours, also where clocks change.
    pub fn parse(text: &str, now: Timestamp) -> Result<Self, TimeError> {
        let text = text.trim();
        let refuse = || TimeError::Unreadable(shown(text));
        if text == "now" {
            return Ok(now);
        }
        if let Some(back) = text.strip_prefix('-').or_else(|| text.strip_prefix("now-")) {
            let ns = Interval::parse(back).map_err(|_| refuse())?.ns();
            return now.0.checked_sub_unsigned(ns).map(Self).ok_or_else(refuse);
        }
        if let Some(ahead) = text.strip_prefix('+').or_else(|| text.strip_prefix("now+")) {
            let ns = Interval::parse(ahead).map_err(|_| refuse())?.ns();
            return now.0.checked_add_unsigned(ns).map(Self).ok_or_else(refuse);
        }
        if let Some(seconds) = text.strip_prefix('@') {
            return unix_seconds(seconds).map(Self).ok_or_else(refuse);
        }
        let (written, zone) = split_zone(text);
        let written = match with_date(written, zone, now) {
            Some(dated) => Cow::Owned(dated),
            None => Cow::Borrowed(written),
        };
        let (written, leap) = match leap_second(&written) {
            Some(second_before) => (Cow::Owned(second_before), true),
            None => (written, false),
        };
        let instant = match zone {
            Some(zone) => in_zone(text, &written, zone)?,
            None => match written.parse::<jiff::Timestamp>() {
                Ok(instant) => instant,
                Err(_) => {
                    let civil: DateTime = written.parse().map_err(|_| refuse())?;
                    civil.to_zoned(TimeZone::UTC).map_err(|_| refuse())?.timestamp()
                }
            },
        };
        let found = i64::try_from(instant.as_nanosecond()).map_err(|_| refuse())?;
        if !leap {
            return Ok(Self(found));
        }
        let last_of_day = found.div_euclid(SECOND_NS).rem_euclid(DAY_S) == DAY_S - 1;
        let next = found.checked_add(SECOND_NS).ok_or_else(refuse)?;
        if !last_of_day
            || jiff::Timestamp::from_nanosecond(next.into()).is_ok_and(|next| Offset::UTC.to_datetime(next).day() != 1)
        {
            return Err(TimeError::NoLeapSecond(shown(text)));
        }
        Ok(Self(next))
    }

    /// Parses the end of a range: as [`Timestamp::parse`], but `+10m` counts from the begin of the range.
    pub fn parse_end(text: &str, from: Timestamp, now: Timestamp) -> Result<Self, TimeError> {
        Self::parse(text, if text.trim_start().starts_with('+') { from } else { now })
    }

    /// Adds `ns`; the result stays within the range of timestamps.
    pub fn saturating_add(self, ns: i64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

/// Cuts a text for an error.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Splits off the name of a time zone: the last word, or text in brackets.
fn split_zone(text: &str) -> (&str, Option<&str>) {
    if let Some((before, zone)) = text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        return (before.trim_end(), Some(zone));
    }
    match text.rsplit_once(char::is_whitespace) {
        Some((before, word)) if word.starts_with(|c: char| c.is_ascii_alphabetic()) => (before.trim_end(), Some(word)),
        _ => (text, None),
    }
}

fn is_time_of_day(text: &str) -> bool {
    text.contains(':') && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.'))
}

/// Adds the date to `14:00`, `today`, `yesterday` and `yesterday 14:00`; `None` for any other text.
fn with_date(text: &str, zone: Option<&str>, now: Timestamp) -> Option<String> {
    let (day, time) = match text.split_once(char::is_whitespace) {
        Some((day, time)) => (day, Some(time.trim_start())),
        None if is_time_of_day(text) => ("today", Some(text)),
        None => (text, None),
    };
    let days_back = match day {
        "today" => 0,
        "yesterday" => 1,
        _ => return None,
    };
    let time = match time {
        Some(time) => Some(time).filter(|time| is_time_of_day(time))?,
        None => "00:00",
    };
    let zone = zone.map_or(Ok(TimeZone::UTC), TimeZone::get).ok()?;
    let today = zone.to_datetime(jiff::Timestamp::from_nanosecond(now.0.into()).ok()?).date();
    let date = today.checked_sub(jiff::Span::new().days(days_back)).ok()?;
    Some(format!("{date} {time}"))
}

/// Replaces a second 60 by 59; `None` for any other second.
fn leap_second(text: &str) -> Option<String> {
    let start = text.find(['T', 't', ' '])? + 1;
    let rest = &text[start..];
    let length = rest.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(rest.len());
    let time = &rest[..length];
    let is_leap =
        (length == 8 && time.ends_with(":60")) || (length == 6 && !time.contains(':') && time.ends_with("60"));
    let end = start + length;
    is_leap.then(|| format!("{}59{}", &text[..end - 2], &text[end..]))
}

/// The instant of a local time in a zone.
fn in_zone(text: &str, written: &str, name: &str) -> Result<jiff::Timestamp, TimeError> {
    let (unreadable, zone) = (|| TimeError::Unreadable(shown(text)), name.to_owned());
    let known = TimeZone::get(name).map_err(|_| TimeError::Zone { text: shown(text), zone: zone.clone() })?;
    let civil: Option<DateTime> = written.parse().ok();
    if let Ok(instant) = written.parse::<jiff::Timestamp>() {
        // Z is UTC in any zone; another offset must be that of the zone.
        let offset = known.to_offset(instant);
        return match civil {
            Some(civil) if civil != offset.to_datetime(instant) => {
                let right = rfc3339(offset.to_datetime(instant), offset);
                Err(TimeError::Contradiction { text: shown(text), zone, right })
            }
            _ => Ok(instant),
        };
    }
    let civil = civil.ok_or_else(unreadable)?;
    let (text, at) = (shown(text), |offset: Offset| rfc3339(civil, offset));
    match known.to_ambiguous_timestamp(civil).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).map_err(|_| unreadable()),
        AmbiguousOffset::Gap { before, after } => {
            Err(TimeError::Skipped { text, zone, earlier: at(after), later: at(before) })
        }
        AmbiguousOffset::Fold { before, after } => {
            Err(TimeError::Twice { text, zone, earlier: at(before), later: at(after) })
        }
    }
}

fn rfc3339(civil: DateTime, offset: Offset) -> String {
    let seconds = offset.seconds();
    let (sign, minutes) = (if seconds < 0 { '-' } else { '+' }, seconds.abs() / 60);
    format!("{civil}{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}

/// Parses seconds with up to nine decimals exactly.
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
    /// Writes RFC 3339 in UTC, with the necessary decimals.
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
            ("-1w", now.0 - 604_800_000_000_000),
            ("+10m", now.0 + 600_000_000_000),
            ("14:00", now.0 + 7_200_000_000_000),
            ("14:00:05.5", now.0 + 7_205_500_000_000),
            ("14:00 Europe/Berlin", now.0 + 3_600_000_000_000),
            ("14:00[Europe/Berlin]", now.0 + 3_600_000_000_000),
            ("today", now.0 - 43_200_000_000_000),
            ("yesterday", now.0 - 129_600_000_000_000),
            ("yesterday 14:00", now.0 - 79_200_000_000_000),
            ("today Asia/Kathmandu", now.0 - 63_900_000_000_000),
        ] {
            assert_eq!(Timestamp::parse(text, now).unwrap(), Timestamp(ns), "{text}");
        }
        assert_eq!(now.to_string(), "2026-01-31T12:00:00Z");
        let from = Timestamp(5);
        assert_eq!(Timestamp::parse_end("+10m", from, now), Ok(Timestamp(600_000_000_005)));
        assert_eq!(Timestamp::parse_end("-10m", from, now), Ok(Timestamp(now.0 - 600_000_000_000)));
        assert_eq!(Timestamp(1).to_string(), "1970-01-01T00:00:00.000000001Z");
        for bad in [
            "",
            "tomorrow",
            "yesterday x",
            "24:30",
            "1400",
            "10m",
            "-10",
            "2026-13-01",
            "@x",
            "-99999999999d",
            "9999-01-01T00:00:00Z",
        ] {
            assert!(Timestamp::parse(bad, now).is_err(), "{bad:?} should be refused");
        }
    }

    fn parsed(text: &str) -> Result<String, String> {
        Timestamp::parse(text, Timestamp(0)).map(|time| time.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn clocks_of_a_zone() {
        for (text, expected) in [
            ("2026-03-29 01:59:59 Europe/Berlin", "2026-03-29T00:59:59Z"),
            ("2026-03-29 03:00 Europe/Berlin", "2026-03-29T01:00:00Z"),
            ("2026-03-29T03:00[Europe/Berlin]", "2026-03-29T01:00:00Z"),
            ("2026-07-01 Europe/Berlin", "2026-06-30T22:00:00Z"),
            ("2026-10-25T02:30:00+02:00[Europe/Berlin]", "2026-10-25T00:30:00Z"),
            ("2026-10-25T02:30:00+01:00[Europe/Berlin]", "2026-10-25T01:30:00Z"),
            ("2026-10-25T01:30:00Z[Europe/Berlin]", "2026-10-25T01:30:00Z"),
            ("2026-01-31 12:00 UTC", "2026-01-31T12:00:00Z"),
            ("2026-01-31 12:00 Asia/Kathmandu", "2026-01-31T06:15:00Z"),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, parts) in [
            (
                "2026-03-29 02:30 Europe/Berlin",
                ["does not exist in Europe/Berlin", "2026-03-29T02:30:00+02:00 or 2026-03-29T02:30:00+01:00"],
            ),
            (
                "2026-10-25 02:30 Europe/Berlin",
                ["comes twice in Europe/Berlin", "2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00"],
            ),
            (
                "2026-03-08T02:00[America/New_York]",
                ["does not exist", "2026-03-08T02:00:00-04:00 or 2026-03-08T02:00:00-05:00"],
            ),
            (
                "2026-07-01T12:00:00+01:00[Europe/Berlin]",
                ["in Europe/Berlin that instant is", "2026-07-01T13:00:00+02:00"],
            ),
            ("2026-01-31 12:00 Europe/Atlantis", ["no time zone \"Europe/Atlantis\"", "tzdata"]),
            ("tomorrow Europe/Berlin", ["is not a time", "Europe/Berlin"]),
            ("2026-01-31T12:00[]", ["no time zone \"\"", "tzdata"]),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        // Each instant that an error offers is one, the earlier first.
        for text in ["2026-03-29 02:30 Europe/Berlin", "2026-10-25 02:30 Europe/Berlin"] {
            let error = parsed(text).unwrap_err();
            let offered = error.rsplit_once("write ").unwrap().1.split(" or ");
            let times: Vec<Timestamp> = offered.map(|text| Timestamp::parse(text, Timestamp(0)).unwrap()).collect();
            assert_eq!(times[1].0 - times[0].0, 3_600 * SECOND_NS);
        }
    }

    #[test]
    fn leap_seconds_are_the_second_after_and_only_where_they_can_be() {
        for text in [
            "2016-12-31T23:59:60Z",
            "2016-12-31 23:59:60",
            "20161231T235960Z",
            "2017-01-01T00:59:60+01:00",
            "2017-01-01 00:59:60 Europe/Berlin",
            "2017-01-01T05:44:60[Asia/Kathmandu]",
        ] {
            assert_eq!(parsed(text).as_deref(), Ok("2017-01-01T00:00:00Z"), "{text}");
        }
        assert_eq!(parsed("2016-06-30T23:59:60.25Z").as_deref(), Ok("2016-07-01T00:00:00.25Z"));
        for text in ["2016-12-31T12:34:60Z", "2016-12-30T23:59:60Z", "2016-12-31T23:59:60+01:00", "20161231T123460Z"] {
            assert!(parsed(text).is_err_and(|error| error.contains("has a second 60")), "{text}");
        }
        assert!(parsed("2016-12-31T23:59:61Z").is_err() && parsed("2016-12-31T23:60:00Z").is_err());
        // A day is 24 hours of physical time, also where clocks change.
        let noon = Timestamp::parse("2026-03-29 12:00 Europe/Berlin", Timestamp(0)).unwrap();
        assert_eq!(Timestamp::parse("-1d", noon).unwrap().to_string(), "2026-03-28T10:00:00Z");
    }
}
