//! Attributes after the value of a plain line: `fan/1/speed 1200 unit={revolution}/min kind=gauge`.

use wholegrain_model::{Kind, SensorDef};

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

impl<'a> Attributes<'a> {
    /// Parses `key=value` words. `None` if one is unknown or wrong.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let mut attributes = Self::default();
        for word in std::str::from_utf8(text).ok()?.split([' ', '\t']).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=')?;
            match key {
                "unit" => attributes.unit = Some(value),
                "kind" => attributes.kind = Some(value.parse().ok()?),
                "type" => attributes.is_integer = is_integer(value)?,
                "time" => attributes.time = Some(time_of_seconds(value.as_bytes())?),
                _ => return None,
            }
        }
        Some(attributes)
    }

    /// The sensor of a line with this name.
    pub fn sensor(&self, path: String) -> SensorDef {
        let mut sensor = SensorDef::gauge(path, self.unit.unwrap_or("1"), "");
        sensor.kind = self.kind.unwrap_or(Kind::Gauge);
        if self.is_integer { sensor } else { sensor.float() }
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
        assert_eq!(Attributes::parse(b""), Some(Attributes::default()));
        for bad in ["5", "unit", "kind=counts", "type=double", "time=x", "colour=red", "time=-5"] {
            assert_eq!(Attributes::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(time_of_seconds(b"1.7e9"), Some(1_700_000_000_000_000_000));
    }
}
