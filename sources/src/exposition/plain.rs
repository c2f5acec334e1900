//! Attributes after the value of a plain line: `fan/1/speed 1200 unit={revolution}/min kind=gauge`.

use wholegrain_model::{Kind, SensorDef, Unit, UnitError};

use super::number;

/// The attributes of one line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attributes<'a> {
    pub unit: Option<&'a str>,
    pub kind: Option<Kind>,
    /// `type=int`: a decimal is a gap.
    pub is_integer: bool,
    /// `time=`, in ns since the epoch; the text has seconds.
    pub time: Option<i64>,
}

/// Why the words after a value are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError<'a> {
    #[error("the attributes are not UTF-8")]
    Encoding,
    /// A word that is no `key=value` or has an unknown key. Messages leave out the value: it may be another one in each text.
    #[error("{:?} after the value is none of unit=, kind=, type= and time=", key_of(.0))]
    Unknown(&'a str),
    #[error("kind={0} is neither kind=gauge nor kind=counter")]
    Kind(&'a str),
    #[error("type={0} is neither type=int nor type=float")]
    Type(&'a str),
    #[error("time= is no time in seconds since the epoch")]
    Time,
}

fn key_of(word: &str) -> &str {
    word.split_once('=').map_or("a word", |(key, _)| key)
}

impl<'a> Attributes<'a> {
    /// Parses `key=value` words. Readers call this for each line, so that it allocates nothing and does not check the unit.
    pub fn parse(text: &'a [u8]) -> Result<Self, AttributeError<'a>> {
        let mut attributes = Self::default();
        let text = std::str::from_utf8(text).map_err(|_| AttributeError::Encoding)?;
        for word in text.split([' ', '\t']).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').ok_or(AttributeError::Unknown(word))?;
            match key {
                "unit" => attributes.unit = Some(value),
                "kind" => attributes.kind = Some(value.parse().map_err(|_| AttributeError::Kind(value))?),
                "type" => attributes.is_integer = is_integer(value).ok_or(AttributeError::Type(value))?,
                "time" => {
                    attributes.time = Some(time_of_seconds(value.as_bytes()).ok_or(AttributeError::Time)?);
                }
                _ => return Err(AttributeError::Unknown(word)),
            }
        }
        Ok(attributes)
    }

    /// The sensor of a line with this name, unless the unit is no UCUM code: no query could convert its values.
    pub fn sensor(&self, path: String) -> Result<SensorDef, UnitError> {
        if let Some(code) = self.unit {
            Unit::parse(code)?;
        }
        let mut sensor = SensorDef::gauge(path, self.unit.unwrap_or("1"), "");
        sensor.kind = self.kind.unwrap_or(Kind::Gauge);
        Ok(if self.is_integer { sensor } else { sensor.float() })
    }
}

fn is_integer(name: &str) -> Option<bool> {
    match name {
        "int" => Some(true),
        "float" => Some(false),
        _ => None,
    }
}

/// Nanoseconds since the epoch of a text with seconds.
pub fn time_of_seconds(text: &[u8]) -> Option<i64> {
    let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    // Whole seconds and their decimals on their own are exact, which a float of today's nanoseconds is not.
    let ns = if point > 0 && digits(&text[..point]) && digits(text.get(point + 1..).unwrap_or_default()) {
        let part = if point + 1 < text.len() { number::float(&text[point..])? } else { 0.0 };
        number::int(&text[..point])?.checked_mul(1_000_000_000)?.checked_add((part * 1e9).round() as i64)?
    } else {
        let ns = number::float(text)? * 1e9;
        (ns.is_finite() && ns.abs() < i64::MAX as f64).then_some(ns as i64)?
    };
    (ns >= 0).then_some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_lines() {
        let parsed = Attributes::parse(b"unit=By kind=counter type=int time=1700000000.25").unwrap();
        let time = Some(1_700_000_000_250_000_000);
        assert_eq!(parsed, Attributes { unit: Some("By"), kind: Some(Kind::Counter), is_integer: true, time });
        assert_eq!(Attributes::parse(b""), Ok(Attributes::default()));
        for (bad, error) in [
            ("5", AttributeError::Unknown("5")),
            ("kind=gauge unit", AttributeError::Unknown("unit")),
            ("kind=counts", AttributeError::Kind("counts")),
            ("type=double", AttributeError::Type("double")),
            ("time=x", AttributeError::Time),
            ("time=-5", AttributeError::Time),
            ("unit=Cel colour=red", AttributeError::Unknown("colour=red")),
        ] {
            assert_eq!(Attributes::parse(bad.as_bytes()), Err(error), "{bad}");
        }
        assert_eq!(Attributes::parse(b"\xff"), Err(AttributeError::Encoding));
        assert_eq!(time_of_seconds(b"1.7e9"), Some(1_700_000_000_000_000_000));
    }
}
