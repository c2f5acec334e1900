//! Numbers of bytes as users write them: `64KiB`, `1.5GB`.

use std::fmt;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a size; write a number with B, KiB, MiB, GiB, TiB (powers of 1024) or kB, MB, GB, TB (powers of 1000), such as 64MiB"
)]
/// Why a text is not a size.
pub struct ByteSizeError(String);

const UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl ByteSize {
    /// A size of `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Parses `64MiB`. A number without a unit is refused, except 0.
    pub fn parse(text: &str) -> Result<Self, ByteSizeError> {
        let refuse = || ByteSizeError(text.chars().take(40).collect());
        let trimmed = text.trim();
        if trimmed == "0" {
            return Ok(Self(0));
        }
        let (name, unit) = UNITS.iter().find(|(name, _)| trimmed.ends_with(name)).ok_or_else(refuse)?;
        let number: f64 = trimmed[..trimmed.len() - name.len()].trim().parse().map_err(|_| refuse())?;
        let bytes = number * *unit as f64;
        if !(0.0..=i64::MAX as f64).contains(&bytes) {
            return Err(refuse());
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, unit) in &UNITS[..4] {
            if self.0 >= *unit {
                let scaled = self.0 as f64 / *unit as f64;
                return if scaled.fract() == 0.0 {
                    write!(f, "{scaled}{name}")
                } else {
                    write!(f, "{scaled:.1}{name}")
                };
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl std::str::FromStr for ByteSize {
    type Err = ByteSizeError;
    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        Self::parse(text)
    }
}

impl<'de> serde::Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl serde::de::Visitor<'_> for SizeVisitor {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size in quotes, such as \"64MiB\" or \"2GB\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteSize, E> {
                ByteSize::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(SizeVisitor)
    }
}

impl serde::Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_and_written() {
        for (text, bytes, shown) in [
            ("64MiB", 64 << 20, "64MiB"),
            ("1.5GiB", 3 << 29, "1.5GiB"),
            ("2GB", 2_000_000_000, "1.9GiB"),
            ("10 B", 10, "10B"),
            ("0", 0, "0B"),
        ] {
            let size = ByteSize::parse(text).unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown));
        }
        for bad in ["", "10", "-1MiB", "MiB", "10 mib", "NaNB"] {
            assert!(ByteSize::parse(bad).is_err(), "{bad:?} should be refused");
        }
    }
}
