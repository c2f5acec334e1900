//! Numbers and times as text.

use wholegrain_model::size::ByteSize;
use wholegrain_model::{Interval, Timestamp};

/// Significant digits in tables.
const DIGITS: i32 = 6;
/// Numbers outside of this range have an exponent.
const WRITTEN_OUT_MAX: f64 = 1e15;
const WRITTEN_OUT_MIN: f64 = 1e-4;

/// A float for a table: whole numbers whole, others with six digits, trailing zeros dropped.
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let size = value.abs();
    if value.fract() == 0.0 && size < WRITTEN_OUT_MAX {
        return format!("{value:.0}").replace("-0", if value == 0.0 { "0" } else { "-0" });
    }
    if !(WRITTEN_OUT_MIN..WRITTEN_OUT_MAX).contains(&size) {
        let text = format!("{value:.*e}", DIGITS as usize - 1);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", trim_zeros(mantissa));
    }
    let decimals = (DIGITS - 1 - size.log10().floor() as i32).max(0) as usize;
    trim_zeros(&format!("{value:.decimals$}")).to_owned()
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// A float for programs: the shortest text that is read back as the same value; NaN and infinities as `NaN`, `inf`, `-inf`.
pub fn float_exact(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < WRITTEN_OUT_MAX { format!("{value}") } else { format!("{value:?}") }
}

/// The decimals of a second that `time_ns` needs: 0, 3, 6 or 9.
pub fn decimals_of(time_ns: i64) -> usize {
    match time_ns {
        t if t % 1_000_000_000 == 0 => 0,
        t if t % 1_000_000 == 0 => 3,
        t if t % 1_000 == 0 => 6,
        _ => 9,
    }
}

/// RFC 3339 in UTC with this number of decimals of a second; further ones are cut off.
pub fn time(time_ns: i64, decimals: usize) -> String {
    let whole = Timestamp(time_ns).to_string();
    let body = whole.trim_end_matches('Z');
    let (seconds, fraction) = body.split_once('.').unwrap_or((body, ""));
    if decimals == 0 {
        return format!("{seconds}Z");
    }
    let cut: String = fraction.chars().chain(std::iter::repeat('0')).take(decimals).collect();
    format!("{seconds}.{cut}Z")
}

/// How long ago a time was, in one unit.
pub fn ago(time_ns: i64, now_ns: i64) -> String {
    let seconds = (now_ns.saturating_sub(time_ns)) / 1_000_000_000;
    match seconds {
        ..0 => "in the future".to_owned(),
        0 => "now".to_owned(),
        1..120 => format!("{seconds}s ago"),
        120..7_200 => format!("{}min ago", seconds / 60),
        7_200..172_800 => format!("{}h ago", seconds / 3_600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// A number of ns as a length of time; `-` for 0, which means that there is none.
pub fn interval(ns: u64) -> String {
    if ns == 0 { "-".to_owned() } else { Interval::from_ns(ns).to_string() }
}

/// A length of time in its two largest units.
pub fn duration(ns: i64) -> String {
    const UNITS: [(&str, i64); 5] = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
    ];
    let Some(at) = UNITS.iter().position(|(_, unit)| ns >= *unit) else { return "0s".to_owned() };
    let (name, unit) = UNITS[at];
    let whole = format!("{}{name}", ns / unit);
    match UNITS.get(at + 1).filter(|(next, _)| *next != "ms") {
        Some((next, smaller)) if ns % unit >= *smaller => format!("{whole}{}{next}", ns % unit / smaller),
        _ => whole,
    }
}

/// A size in bytes for people.
pub fn size(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes.max(0.0), 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { ByteSize(value as u64).to_string() } else { format!("{value:.1}{}", UNITS[unit]) }
}

/// A part of 0 to 1, in percent.
pub fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

/// The time of this machine's clock.
pub fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (-100.0, "-100"),
            (123456789.0, "123456789"),
            (0.1 + 0.2, "0.3"),
            (2.345678901, "2.34568"),
            (-2.5, "-2.5"),
            (123456.789, "123457"),
            (0.00012345678, "0.000123457"),
            (1.5e-9, "1.5e-9"),
            (1e15, "1e15"),
            (1.23456789e300, "1.23457e300"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(value), expected, "{value:?}");
        }
        for (value, expected) in [(1.0, "1"), (0.1, "0.1"), (1e300, "1e300"), (1e-7, "1e-7"), (f64::NAN, "NaN")] {
            assert_eq!(float_exact(value), expected);
        }
        assert_eq!(float_exact(0.1 + 0.2).parse::<f64>().unwrap(), 0.1 + 0.2);
    }

    #[test]
    fn times() {
        let ns = 1_769_860_800_250_000_000;
        for (decimals, expected) in
            [(0, "2026-01-31T12:00:00Z"), (3, "2026-01-31T12:00:00.250Z"), (9, "2026-01-31T12:00:00.250000000Z")]
        {
            assert_eq!(time(ns, decimals), expected);
        }
        assert_eq!((decimals_of(ns), decimals_of(0), decimals_of(1), decimals_of(1_000)), (3, 0, 9, 6));
        let s = 1_000_000_000;
        for (seconds, expected) in [
            (0, "now"),
            (5, "5s ago"),
            (130, "2min ago"),
            (7_300, "2h ago"),
            (200_000, "2d ago"),
            (-5, "in the future"),
        ] {
            assert_eq!(ago(0, seconds * s), expected);
        }
    }

    #[test]
    fn lengths_and_sizes() {
        const S: i64 = 1_000_000_000;
        for (ns, expected) in [
            (0, "0s"),
            (-5, "0s"),
            (S / 4, "250ms"),
            (S + S / 2, "1s"),
            (60 * S, "1min"),
            (90 * S, "1min30s"),
            (5400 * S + 5 * S, "1h30min"),
            (86_400 * S * 3 + 60 * S, "3d"),
        ] {
            assert_eq!(duration(ns), expected);
            assert!(Interval::parse(expected).is_ok(), "it can be written back");
        }
        for (bytes, expected) in
            [(0.0, "0B"), (1023.0, "1023B"), (1536.0, "1.5KiB"), (f64::powi(1024.0, 5) * 3.0, "3.0PiB")]
        {
            assert_eq!(size(bytes), expected);
        }
    }
}
