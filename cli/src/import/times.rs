//! Times in files: detects their notation, and parses them. Invalid and ambiguous times are refused.

use std::fmt;
use std::path::Path;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use wholegrain_model::Timestamp;

use crate::failure::Failure;

/// The system's directory of time zones.
const ZONES: &str = "/usr/share/zoneinfo";
/// A number outside of these years is not detected as a time: 1980 to 2100, in seconds.
const EPOCH_PLAUSIBLE: std::ops::Range<i64> = 315_532_800..4_102_444_800;
/// A notation is detected if at least one in this number of times has it.
const SAMPLE_PART: usize = 2;

/// The notation of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TimeFormat {
    /// Seconds since 1970-01-01 UTC, with or without decimals
    S,
    /// Milliseconds since the Unix epoch
    Ms,
    /// Microseconds since the Unix epoch
    Us,
    /// Nanoseconds since the Unix epoch
    Ns,
    /// Year, month, day and the time of day, such as RFC 3339
    Ymd,
    /// Day, month, year and the time of day
    Dmy,
    /// Month, day, year and the time of day
    Mdy,
    /// YYYYMMDDhhmmss without separators, or YYYYMMDDThhmmss
    Compact,
}

impl TimeFormat {
    const DATES: [TimeFormat; 4] = [TimeFormat::Ymd, TimeFormat::Compact, TimeFormat::Dmy, TimeFormat::Mdy];
    const EPOCHS: [TimeFormat; 4] = [TimeFormat::S, TimeFormat::Ms, TimeFormat::Us, TimeFormat::Ns];

    /// ns of one unit of an epoch time.
    fn unit_ns(self) -> Option<i64> {
        match self {
            TimeFormat::S => Some(1_000_000_000),
            TimeFormat::Ms => Some(1_000_000),
            TimeFormat::Us => Some(1_000),
            TimeFormat::Ns => Some(1),
            _ => None,
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            TimeFormat::S => "seconds since 1970-01-01 UTC",
            TimeFormat::Ms => "milliseconds since 1970-01-01 UTC",
            TimeFormat::Us => "microseconds since 1970-01-01 UTC",
            TimeFormat::Ns => "nanoseconds since 1970-01-01 UTC",
            TimeFormat::Ymd => "year, month, day, time of day",
            TimeFormat::Dmy => "day, month, year, time of day",
            TimeFormat::Mdy => "month, day, year, time of day",
            TimeFormat::Compact => "YYYYMMDDhhmmss",
        }
    }
}

/// The reason why a text is not a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeFault {
    NotATime,
    LeapSecond,
    /// The clocks were set forward over this local time.
    Skipped,
    /// The clocks were set back: this local time occurred twice.
    Twice,
    OutOfRange,
}

impl fmt::Display for TimeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeFault::NotATime => "the time cannot be read",
            TimeFault::LeapSecond => "a leap second, which Unix time does not have",
            TimeFault::Skipped => "a local time that did not exist: the clocks were set forward",
            TimeFault::Twice => "a local time that occurred twice: the clocks were set back",
            TimeFault::OutOfRange => "the time is outside the years 1678 to 2261",
        })
    }
}

/// The time zone of times without one.
#[derive(Debug, Clone)]
pub struct Zone {
    name: String,
    rules: TimeZone,
}

impl Zone {
    /// `UTC`, a name such as `Europe/Berlin`, or an offset such as `+01:00`.
    pub fn parse(name: &str) -> Result<Self, Failure> {
        let named = |rules| Ok(Self { name: name.to_owned(), rules });
        if matches!(name, "UTC" | "utc" | "Z") {
            return named(TimeZone::UTC);
        }
        if let Some((seconds, b"")) = offset(name.as_bytes())
            && let Ok(offset) = jiff::tz::Offset::from_seconds(seconds)
        {
            return named(TimeZone::fixed(offset));
        }
        let refuse = |why: &str| {
            Failure::Usage(format!(
                "--time-zone {name}: {why}; write UTC, an offset such as +01:00, or a name such as Europe/Berlin (see {ZONES})"
            ))
        };
        let is_safe = name.split('/').all(|level| {
            !level.is_empty()
                && !level.starts_with('.')
                && level.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+_".contains(&b))
        });
        if !is_safe {
            return Err(refuse("this is not the name of a time zone"));
        }
        let data = std::fs::read(Path::new(ZONES).join(name)).map_err(|error| refuse(&error.to_string()))?;
        named(TimeZone::tzif(name, &data).map_err(|error| refuse(&error.to_string()))?)
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Parses times of one notation. Remembers the offset of the last minute, because the next time is nearly always in the same minute.
#[derive(Debug, Clone)]
pub struct Times {
    pub format: TimeFormat,
    zone: Zone,
    minute: Option<(i64, i64)>,
}

impl Times {
    pub fn new(format: TimeFormat, zone: &Zone) -> Self {
        Self { format, zone: zone.clone(), minute: None }
    }

    /// The instant, ns since 1970-01-01 UTC.
    pub fn parse(&mut self, text: &[u8]) -> Result<i64, TimeFault> {
        let text = text.trim_ascii();
        match self.format.unit_ns() {
            Some(unit) => epoch(text, unit),
            None => {
                let Civil { day, second, nanosecond, offset } = civil(text, self.format)?;
                let local =
                    day.checked_mul(86_400).and_then(|day| day.checked_add(second)).ok_or(TimeFault::OutOfRange)?;
                let offset = match offset {
                    Some(offset) => i64::from(offset),
                    None => self.offset_at(local)?,
                };
                let seconds = local - offset;
                let ns = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanosecond));
                ns.ok_or(TimeFault::OutOfRange)
            }
        }
    }

    /// Seconds east of UTC at a local time in seconds.
    fn offset_at(&mut self, local: i64) -> Result<i64, TimeFault> {
        let minute = local.div_euclid(60);
        if let Some((known, offset)) = self.minute
            && known == minute
        {
            return Ok(offset);
        }
        let midnight = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
        let civil = midnight.checked_add(jiff::SignedDuration::from_secs(local)).map_err(|_| TimeFault::OutOfRange)?;
        match self.zone.rules.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => {
                let offset = i64::from(offset.seconds());
                // Zones change on whole minutes since about 1970; before, a minute may have two offsets.
                if minute > 0 {
                    self.minute = Some((minute, offset));
                }
                Ok(offset)
            }
            AmbiguousOffset::Gap { .. } => Err(TimeFault::Skipped),
            AmbiguousOffset::Fold { .. } => Err(TimeFault::Twice),
        }
    }
}

/// Detects the notation of most of these times.
pub fn guess(sample: &[&[u8]], zone: &Zone) -> Result<TimeFormat, String> {
    let matching = |format: TimeFormat| {
        let mut times = Times::new(format, zone);
        let fits = |text: &&&[u8]| match times.parse(text) {
            Ok(time) => format.unit_ns().is_none() || EPOCH_PLAUSIBLE.contains(&time.div_euclid(1_000_000_000)),
            Err(TimeFault::NotATime | TimeFault::OutOfRange) => false,
            Err(_) => true,
        };
        sample.iter().filter(fits).count()
    };
    let example = || String::from_utf8_lossy(sample.first().copied().unwrap_or_default()).into_owned();
    let enough = |count: usize| count > 0 && count * SAMPLE_PART >= sample.len();
    for format in TimeFormat::EPOCHS {
        if enough(matching(format)) {
            return Ok(format);
        }
    }
    let counts = TimeFormat::DATES.map(matching);
    let [_, _, dmy, mdy] = counts;
    let best = (0..counts.len()).max_by_key(|at| (counts[*at], std::cmp::Reverse(*at))).unwrap_or(0);
    if !enough(counts[best]) {
        return Err(format!("the notation of times such as {:?} is unknown; name it with --time-format", example()));
    }
    if best >= 2 && dmy == mdy {
        return Err(format!(
            "{:?} can be day, month, year or month, day, year; choose with --time-format dmy or mdy",
            example()
        ));
    }
    Ok(TimeFormat::DATES[best])
}

/// Parses a number of units since the epoch with decimals, which are cut after the nanosecond.
fn epoch(text: &[u8], unit_ns: i64) -> Result<i64, TimeFault> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    let (whole, fraction) = match digits.iter().position(|b| *b == b'.' || *b == b',') {
        Some(at) => (&digits[..at], &digits[at + 1..]),
        None => (digits, &b""[..]),
    };
    let mut total = number(whole)?.checked_mul(unit_ns).ok_or(TimeFault::OutOfRange)?;
    let mut unit = unit_ns;
    for byte in fraction {
        if !byte.is_ascii_digit() {
            return Err(TimeFault::NotATime);
        }
        unit /= 10;
        total = total.checked_add(i64::from(byte - b'0') * unit).ok_or(TimeFault::OutOfRange)?;
    }
    Ok(if negative { -total } else { total })
}

fn number(digits: &[u8]) -> Result<i64, TimeFault> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(TimeFault::NotATime);
    }
    let add = |total: Option<i64>, byte: &u8| total?.checked_mul(10)?.checked_add(i64::from(byte - b'0'));
    digits.iter().fold(Some(0i64), add).ok_or(TimeFault::OutOfRange)
}

/// A date and time of day.
struct Civil {
    day: i64,
    second: i64,
    nanosecond: i64,
    /// Seconds east of UTC, if the text has it.
    offset: Option<i32>,
}

/// Parses digits at the beginning.
fn digits(text: &[u8], least: usize, most: usize) -> Option<(i64, &[u8])> {
    let count = text.iter().take(most).take_while(|b| b.is_ascii_digit()).count();
    if count < least {
        return None;
    }
    Some((number(&text[..count]).ok()?, &text[count..]))
}

fn civil(text: &[u8], format: TimeFormat) -> Result<Civil, TimeFault> {
    let (year, month, day, rest) = date(text, format).ok_or(TimeFault::NotATime)?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        _ => return Err(TimeFault::NotATime),
    };
    if !(1..=days).contains(&day) {
        return Err(TimeFault::NotATime);
    }
    let day = days_since_1970(year, month, day);
    if rest.is_empty() && format != TimeFormat::Compact {
        return Ok(Civil { day, second: 0, nanosecond: 0, offset: None });
    }
    let (second, nanosecond, rest) = time_of_day(rest, format == TimeFormat::Compact)?;
    let offset = match rest {
        b"" => None,
        b"Z" | b"z" | b"UTC" | b"GMT" => Some(0),
        other => match offset(other) {
            Some((seconds, b"")) => Some(seconds),
            _ => return Err(TimeFault::NotATime),
        },
    };
    Ok(Civil { day, second, nanosecond, offset })
}

/// Parses year, month and day. Returns the rest of the text too.
fn date(text: &[u8], format: TimeFormat) -> Option<(i64, i64, i64, &[u8])> {
    if format == TimeFormat::Compact {
        let (year, rest) = digits(text, 4, 4)?;
        let (month, rest) = digits(rest, 2, 2)?;
        let (day, rest) = digits(rest, 2, 2)?;
        return Some((year, month, day, rest.strip_prefix(b"T").unwrap_or(rest)));
    }
    let separator = |text: &[u8]| text.first().copied().filter(|b| b"-/.".contains(b));
    let (least, most) = if format == TimeFormat::Ymd { (4, 4) } else { (1, 2) };
    let (a, rest) = digits(text, least, most)?;
    let by = separator(rest)?;
    let (b, rest) = digits(&rest[1..], 1, 2)?;
    let rest = rest.strip_prefix(&[by])?;
    let (c, rest) = if format == TimeFormat::Ymd { digits(rest, 1, 2)? } else { digits(rest, 4, 4)? };
    let rest = match rest {
        [b'T' | b't', rest @ ..] => rest,
        [b',', b' ', rest @ ..] | [b' ', rest @ ..] => rest.trim_ascii_start(),
        [] => rest,
        _ => return None,
    };
    Some(match format {
        TimeFormat::Dmy => (c, b, a, rest),
        TimeFormat::Mdy => (c, a, b, rest),
        _ => (a, b, c, rest),
    })
}

/// Parses the time of day. Returns seconds since midnight, nanoseconds, and the rest of the text.
fn time_of_day(text: &[u8], compact: bool) -> Result<(i64, i64, &[u8]), TimeFault> {
    let wrong = TimeFault::NotATime;
    let (hour, rest) = digits(text, if compact { 2 } else { 1 }, 2).ok_or(wrong)?;
    let colon = |rest: &'_ [u8]| if compact { Some(0) } else { (rest.first() == Some(&b':')).then_some(1) };
    let skip = colon(rest).ok_or(wrong)?;
    let (minute, mut rest) = digits(&rest[skip..], 2, 2).ok_or(wrong)?;
    let (mut second, mut nanosecond) = (0, 0);
    let more = if compact { rest.first().is_some_and(u8::is_ascii_digit) } else { rest.first() == Some(&b':') };
    if more {
        (second, rest) = digits(&rest[skip..], 2, 2).ok_or(wrong)?;
        if let [b'.' | b',', after @ ..] = rest {
            let count = after.iter().take_while(|b| b.is_ascii_digit()).count();
            let kept = count.min(9);
            nanosecond = number(&after[..kept])? * 10i64.pow(9 - kept as u32);
            rest = &after[count..];
        }
    }
    rest = rest.trim_ascii_start();
    let hour = match rest {
        [b'A' | b'a', b'M' | b'm', after @ ..] | [b'P' | b'p', b'M' | b'm', after @ ..] => {
            let afternoon = matches!(rest[0], b'P' | b'p');
            rest = after.trim_ascii_start();
            if !(1..=12).contains(&hour) {
                return Err(wrong);
            }
            hour % 12 + if afternoon { 12 } else { 0 }
        }
        _ => hour,
    };
    if second == 60 && minute == 59 {
        return Err(TimeFault::LeapSecond);
    }
    if hour > 23 || minute > 59 || second > 59 {
        return Err(wrong);
    }
    Ok((hour * 3600 + minute * 60 + second, nanosecond, rest))
}

/// Parses `+01:00`, `+0100` or `+01`. Returns seconds east of UTC, and the rest of the text.
fn offset(text: &[u8]) -> Option<(i32, &[u8])> {
    let sign = match text.first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, rest) = digits(&text[1..], 2, 2)?;
    let (minutes, rest) = match rest {
        [b':', after @ ..] => digits(after, 2, 2)?,
        [b'0'..=b'9', ..] => digits(rest, 2, 2)?,
        _ => (0, rest),
    };
    (hours <= 18 && minutes <= 59).then_some((sign * (hours * 3600 + minutes * 60) as i32, rest))
}

/// Counts days of the proleptic Gregorian calendar in eras of 400 years that begin in March.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

pub fn shown(time: i64) -> String {
    Timestamp(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(format: TimeFormat, zone: &str, text: &str, expected: Result<&str, TimeFault>) {
        let found = Times::new(format, &Zone::parse(zone).unwrap()).parse(text.as_bytes());
        assert_eq!(found.map(shown), expected.map(str::to_owned), "{text}");
    }

    #[test]
    fn instants() {
        use TimeFormat::{Compact, Dmy, Mdy, Ms, Ns, S, Us, Ymd};
        for (format, text, expected) in [
            (S, "1769860800", "2026-01-31T12:00:00Z"),
            (S, "1769860800.000000001", "2026-01-31T12:00:00.000000001Z"),
            (S, " 1769860800.25 ", "2026-01-31T12:00:00.25Z"),
            (S, "-1", "1969-12-31T23:59:59Z"),
            (Ms, "1769860800123.5", "2026-01-31T12:00:00.1235Z"),
            (Us, "1769860800000001", "2026-01-31T12:00:00.000001Z"),
            (Ns, "1769860800000000001", "2026-01-31T12:00:00.000000001Z"),
            (Ymd, "2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
            (Ymd, "2026-01-31 13:00:00.125+01:00", "2026-01-31T12:00:00.125Z"),
            (Ymd, "2026/1/31 12:00", "2026-01-31T12:00:00Z"),
            (Ymd, "2024-02-29", "2024-02-29T00:00:00Z"),
            (Ymd, "2026-01-31 07:00:00 -0500", "2026-01-31T12:00:00Z"),
            (Dmy, "31.01.2026 12:00:00,5", "2026-01-31T12:00:00.5Z"),
            (Mdy, "1/31/2026 12:00:00 PM", "2026-01-31T12:00:00Z"),
            (Mdy, "1/31/2026, 12:05 am", "2026-01-31T00:05:00Z"),
            (Compact, "20260131120000", "2026-01-31T12:00:00Z"),
            (Compact, "20260131T120000Z", "2026-01-31T12:00:00Z"),
            (Ymd, "1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.5Z"),
        ] {
            check(format, "UTC", text, Ok(expected));
        }
    }

    #[test]
    fn what_is_no_instant_or_two_is_refused() {
        use TimeFormat::{Ms, Ns, S, Ymd};
        for (format, text, fault) in [
            (S, "", TimeFault::NotATime),
            (S, "17x", TimeFault::NotATime),
            (S, "1.2.3", TimeFault::NotATime),
            (S, "99999999999999", TimeFault::OutOfRange),
            (Ns, "9223372036854775808", TimeFault::OutOfRange),
            (Ms, "1e3", TimeFault::NotATime),
            (Ymd, "2026-02-29", TimeFault::NotATime),
            (Ymd, "2026-13-01", TimeFault::NotATime),
            (Ymd, "2026-01-31T24:00:00Z", TimeFault::NotATime),
            (Ymd, "2026-01-31T12:00:00 Mars", TimeFault::NotATime),
            (Ymd, "2016-12-31T23:59:60Z", TimeFault::LeapSecond),
            (Ymd, "9999-01-01", TimeFault::OutOfRange),
            (Ymd, "2026-01/31", TimeFault::NotATime),
        ] {
            check(format, "UTC", text, Err(fault));
        }
    }

    #[test]
    fn clocks_that_are_put_forward_and_back() {
        use TimeFormat::Ymd;
        let berlin = |text, expected| check(Ymd, "Europe/Berlin", text, expected);
        berlin("2026-01-31 13:00:00", Ok("2026-01-31T12:00:00Z"));
        berlin("2026-07-31 14:00:00", Ok("2026-07-31T12:00:00Z"));
        berlin("2026-03-29 01:59:59", Ok("2026-03-29T00:59:59Z"));
        berlin("2026-03-29 02:30:00", Err(TimeFault::Skipped));
        berlin("2026-10-25 02:30:00", Err(TimeFault::Twice));
        berlin("2026-10-25 02:30:00+02:00", Ok("2026-10-25T00:30:00Z"));
        berlin("2026-10-25 03:00:00", Ok("2026-10-25T02:00:00Z"));
        check(Ymd, "+05:30", "2026-01-31 17:30:00", Ok("2026-01-31T12:00:00Z"));
        assert!(Zone::parse("Europe/Nowhere").is_err());
        assert!(Zone::parse("../../etc/passwd").is_err());
    }

    #[test]
    fn formats_are_found_and_ambiguity_is_reported() {
        let zone = Zone::parse("UTC").unwrap();
        let found = |sample: &[&str]| guess(&sample.iter().map(|text| text.as_bytes()).collect::<Vec<_>>(), &zone);
        assert_eq!(found(&["1769860800", "1769860801.5"]), Ok(TimeFormat::S));
        assert_eq!(found(&["1769860800000"]), Ok(TimeFormat::Ms));
        assert_eq!(found(&["1769860800000000"]), Ok(TimeFormat::Us));
        assert_eq!(found(&["1769860800000000000"]), Ok(TimeFormat::Ns));
        assert_eq!(found(&["20260131120000"]), Ok(TimeFormat::Compact));
        assert_eq!(found(&["2026-01-31T12:00:00Z", "broken"]), Ok(TimeFormat::Ymd));
        assert_eq!(found(&["01.02.2026 10:00", "13.02.2026 10:00"]), Ok(TimeFormat::Dmy));
        assert_eq!(found(&["02/01/2026 10:00", "02/13/2026 10:00"]), Ok(TimeFormat::Mdy));
        assert!(found(&["01/02/2026 10:00"]).unwrap_err().contains("--time-format dmy or mdy"));
        assert!(found(&["yesterday"]).unwrap_err().contains("--time-format"));
        assert!(found(&["3.5", "4"]).is_err());
    }
}
