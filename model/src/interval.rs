//! Lengths of time as users write them: `1ms`, `10s`, `5min`, `1h`, `1h30m`.

use std::fmt;
use std::time::Duration;

/// The shortest sampling interval: 1 ms.
pub const SAMPLING_INTERVAL_NS_MIN: u64 = 1_000_000;

/// A length of time in whole nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Interval(u64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a length of time ({reason}); write a number with ns, us, ms, s, min (or m), h, d or w, such as 100ms, 10s or 1h30m"
)]
/// Why a text is not a length of time.
pub struct IntervalError {
    text: String,
    reason: &'static str,
}

/// Units with their length in ns.
const UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
    ("w", 604_800_000_000_000),
];

impl Interval {
    /// A length of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// A length of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// A length of `s` seconds.
    pub const fn from_s(s: u64) -> Self {
        Self(s * 1_000_000_000)
    }

    /// The length in nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// The length in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// As the standard library's type.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Parses `1ms`, `1.5s`, `1h30m`. A number without a unit is refused.
    pub fn parse(text: &str) -> Result<Self, IntervalError> {
        let refuse = |reason| IntervalError { text: text.chars().take(40).collect(), reason };
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(refuse("empty"));
        }
        let mut total: f64 = 0.0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(|| refuse("no unit"))?;
            let number: f64 = rest[..digits].parse().map_err(|_| refuse("no number before the unit"))?;
            rest = &rest[digits..];
            let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let (_, ns) = UNITS.iter().find(|(n, _)| *n == &rest[..letters]).ok_or_else(|| refuse("unknown unit"))?;
            total += number * *ns as f64;
            rest = &rest[letters..];
        }
        if total > i64::MAX as f64 {
            return Err(refuse("longer than 292 years"));
        }
        Ok(Self(total.round() as u64))
    }
}

impl fmt::Display for Interval {
    /// The shortest exact form with one unit: `1ms`, `90s`, `1h`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units =
            [("d", 86_400_000_000_000), ("h", 3_600_000_000_000), ("min", 60_000_000_000), ("s", 1_000_000_000)];
        let small = [("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
        for (name, ns) in units.into_iter().chain(small) {
            if self.0 >= ns && self.0.is_multiple_of(ns) {
                return write!(f, "{}{name}", self.0 / ns);
            }
        }
        f.write_str("0s")
    }
}

impl std::str::FromStr for Interval {
    type Err = IntervalError;
    fn from_str(text: &str) -> Result<Self, IntervalError> {
        Self::parse(text)
    }
}

impl<'de> serde::Deserialize<'de> for Interval {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntervalVisitor;
        impl serde::de::Visitor<'_> for IntervalVisitor {
            type Value = Interval;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time in quotes, such as \"100ms\", \"10s\" or \"1h\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Interval, E> {
                Interval::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(IntervalVisitor)
    }
}

impl serde::Serialize for Interval {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_and_written() {
        for (text, ns, shown) in [
            ("1ms", 1_000_000, "1ms"),
            ("0.5s", 500_000_000, "500ms"),
            ("1h30m", 5_400_000_000_000, "90min"),
            ("1min", 60_000_000_000, "1min"),
            ("2d", 172_800_000_000_000, "2d"),
            ("10us", 10_000, "10us"),
            ("0s", 0, "0s"),
        ] {
            let interval = Interval::parse(text).unwrap();
            assert_eq!((interval.ns(), interval.to_string().as_str()), (ns, shown));
        }
    }

    #[test]
    fn refused() {
        for (text, reason) in [
            ("", "empty"),
            ("10", "no unit"),
            ("s", "no number"),
            ("-1s", "no number"),
            ("1y", "unknown unit"),
            ("999999999d", "292 years"),
        ] {
            let error = Interval::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }
}
