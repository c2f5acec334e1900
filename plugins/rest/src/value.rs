//! One value of an answer: text, number or boolean to the 64 bits of a sensor.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Number;
use wholegrain_model::{SensorDef, ValueType};

/// The integers up to which a float has all integers: 2^53.
const FLOAT_INTEGERS_MAX: f64 = 9_007_199_254_740_992.0;

/// Why a sensor has no value in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GapReason {
    #[error("is missing")]
    Missing,
    #[error("is null")]
    Null,
    #[error("is there several times; a table can have them all")]
    Several,
    #[error("is a list or an object")]
    Structure,
    #[error("is a text that is no number; `states` can give it one")]
    NotNumber,
    #[error("is not finite")]
    NotFinite,
    #[error("is no integer; leave out type = \"int\"")]
    NotInteger,
    #[error("is out of range")]
    OutOfRange,
    #[error("has a state that is not in `states`")]
    UnknownState,
    #[error("has the value that means none")]
    Absent,
    #[error("is older than stale_after")]
    Stale,
    #[error("has a time that cannot be read")]
    NoTime,
    #[error("has no row in the answer")]
    NoRow,
    #[error("has several rows with its name")]
    SeveralRows,
}

impl GapReason {
    /// Whether the administrator learns of it: not of what the configuration expects.
    pub fn is_noted(self) -> bool {
        self != Self::Absent
    }
}

/// What is at a path of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum PageScalar<'t> {
    Null,
    Bool(bool),
    Number(&'t Number),
    Text(Cow<'t, str>),
    Structure,
}

impl PageScalar<'_> {
    /// The text of it, as the name of a row.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Null | Self::Structure => None,
            Self::Bool(value) => Some(value.to_string().into()),
            Self::Number(number) => Some(number.to_string().into()),
            Self::Text(text) => Some(text.trim().into()).filter(|text: &Cow<str>| !text.is_empty()),
        }
    }
}

/// A number before its scale.
#[derive(Debug, Clone, Copy, PartialEq)]
enum PageNumber {
    Int(i64),
    Float(f64),
}

/// A sensor of a value or of a column of a table, and how its values are read.
#[derive(Debug, Clone)]
pub struct PageValue {
    /// With the name below the device's path, or below that of a row.
    pub sensor: SensorDef,
    pub states: BTreeMap<String, f64>,
    /// Numbers and texts that mean that there is no value.
    pub absent_numbers: Vec<f64>,
    pub absent_texts: Vec<String>,
    pub min: f64,
    pub max: f64,
    /// Scale and offset, if the sensor's scale is not enough.
    pub linear: Option<(f64, f64)>,
    pub has_decimal_comma: bool,
}

impl PageValue {
    /// The bits of a value, by the sensor's type.
    pub fn bits(&self, scalar: &PageScalar) -> Result<u64, GapReason> {
        let number = self.number(scalar)?;
        let float = match number {
            PageNumber::Int(value) => value as f64,
            PageNumber::Float(value) => value,
        };
        if self.absent_numbers.contains(&float) {
            return Err(GapReason::Absent);
        }
        if !float.is_finite() {
            return Err(GapReason::NotFinite);
        }
        if float < self.min || float > self.max {
            return Err(GapReason::OutOfRange);
        }
        match (self.sensor.value_type, number) {
            (ValueType::Int, PageNumber::Int(value)) => Ok(value as u64),
            (ValueType::Int, PageNumber::Float(value)) if value.fract() != 0.0 => Err(GapReason::NotInteger),
            (ValueType::Int, PageNumber::Float(value)) if value.abs() <= FLOAT_INTEGERS_MAX => Ok(value as i64 as u64),
            (ValueType::Int, _) => Err(GapReason::OutOfRange),
            _ => {
                let value = self.linear.map_or(float, |(scale, offset)| float * scale + offset);
                if value.is_finite() { Ok(value.to_bits()) } else { Err(GapReason::NotFinite) }
            }
        }
    }

    fn number(&self, scalar: &PageScalar) -> Result<PageNumber, GapReason> {
        match scalar {
            PageScalar::Null => return Err(GapReason::Null),
            PageScalar::Structure => return Err(GapReason::Structure),
            PageScalar::Text(text) if self.absent_texts.iter().any(|absent| absent == text.trim()) => {
                return Err(GapReason::Absent);
            }
            _ => {}
        }
        if !self.states.is_empty() {
            let state = scalar.text().and_then(|text| self.states.get(text.as_ref()).copied());
            return state.map(PageNumber::Float).ok_or(GapReason::UnknownState);
        }
        match scalar {
            PageScalar::Bool(value) => Ok(PageNumber::Int(i64::from(*value))),
            PageScalar::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(value), _) => Ok(PageNumber::Int(value)),
                (None, Some(value)) => Ok(PageNumber::Float(value)),
                (None, None) => Err(GapReason::OutOfRange),
            },
            PageScalar::Text(text) => self.text_number(text.trim()),
            PageScalar::Null | PageScalar::Structure => Err(GapReason::Null),
        }
    }

    fn text_number(&self, text: &str) -> Result<PageNumber, GapReason> {
        let text = match self.has_decimal_comma {
            // A point could be one of thousands, or the decimal one of another setting: no guess is made.
            true if text.contains('.') => return Err(GapReason::NotNumber),
            true => Cow::Owned(text.replacen(',', ".", 1)),
            false => Cow::Borrowed(text),
        };
        if text.is_empty() {
            return Err(GapReason::Null);
        }
        if let Ok(value) = text.parse::<i64>() {
            return Ok(PageNumber::Int(value));
        }
        match text.parse::<f64>() {
            // What a number of 64 bits cannot hold is read as an infinity.
            Ok(value) if value.is_infinite() && text.bytes().any(|byte| byte.is_ascii_digit()) => {
                Err(GapReason::OutOfRange)
            }
            Ok(value) if value.is_finite() => Ok(PageNumber::Float(value)),
            Ok(_) => Err(GapReason::NotFinite),
            Err(_) => Err(GapReason::NotNumber),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A value without any option.
    pub(crate) fn value(sensor: SensorDef) -> PageValue {
        PageValue {
            sensor,
            states: BTreeMap::new(),
            absent_numbers: Vec::new(),
            absent_texts: Vec::new(),
            min: f64::NEG_INFINITY,
            max: f64::INFINITY,
            linear: None,
            has_decimal_comma: false,
        }
    }

    fn float() -> PageValue {
        value(SensorDef::gauge("a", "1", "").float())
    }

    fn int() -> PageValue {
        value(SensorDef::gauge("a", "1", ""))
    }

    fn bits(value: &PageValue, json: &Value) -> Result<u64, GapReason> {
        value.bits(&crate::page::json_scalar(json))
    }

    #[track_caller]
    fn check_float(value: &PageValue, json: Value, expected: Result<f64, GapReason>) {
        assert_eq!(bits(value, &json).map(f64::from_bits), expected, "{json}");
    }

    #[track_caller]
    fn check_int(value: &PageValue, json: Value, expected: Result<i64, GapReason>) {
        assert_eq!(bits(value, &json).map(|bits| bits as i64), expected, "{json}");
    }

    #[test]
    fn floats() {
        use GapReason as Gap;
        for (json, expected) in [
            (json!(3), Ok(3.0)),
            (json!(3.5), Ok(3.5)),
            (json!(" 12.5 "), Ok(12.5)),
            (json!("1e3"), Ok(1000.0)),
            (json!(true), Ok(1.0)),
            (json!("true"), Err(Gap::NotNumber)),
            (json!("12,5"), Err(Gap::NotNumber)),
            (json!(null), Err(Gap::Null)),
            (json!(""), Err(Gap::Null)),
            (json!("NaN"), Err(Gap::NotFinite)),
            (json!("-inf"), Err(Gap::NotFinite)),
            (json!("1e999"), Err(Gap::OutOfRange)),
            (json!("warm"), Err(Gap::NotNumber)),
            (json!([1]), Err(Gap::Structure)),
            (json!({}), Err(Gap::Structure)),
        ] {
            check_float(&float(), json, expected);
        }
        let comma = PageValue { has_decimal_comma: true, ..float() };
        check_float(&comma, json!("-12,5"), Ok(-12.5));
        check_float(&comma, json!("7"), Ok(7.0));
        check_float(&comma, json!("1.234,5"), Err(Gap::NotNumber));
        check_float(&comma, json!("1.5"), Err(Gap::NotNumber));
    }

    #[test]
    fn integers_are_exact() {
        use GapReason as Gap;
        for (json, expected) in [
            (json!(9_007_199_254_740_993_i64), Ok(9_007_199_254_740_993)),
            (json!("9007199254740993"), Ok(9_007_199_254_740_993)),
            (json!(i64::MIN), Ok(i64::MIN)),
            (json!(u64::MAX), Err(Gap::OutOfRange)),
            (json!("18446744073709551615"), Err(Gap::OutOfRange)),
            (json!(4.0), Ok(4)),
            (json!(4.5), Err(Gap::NotInteger)),
            (json!(1e300), Err(Gap::OutOfRange)),
            (json!(false), Ok(0)),
        ] {
            check_int(&int(), json, expected);
        }
    }

    #[test]
    fn states_bounds_and_absent_values() {
        use GapReason as Gap;
        let states =
            [("on", 1.0), ("off", 0.0), ("true", 5.0), ("3", 7.0)].map(|(name, number)| (name.to_owned(), number));
        let value = PageValue { states: states.into(), ..int() };
        for (json, expected) in [
            (json!("on"), Ok(1)),
            (json!(" off"), Ok(0)),
            (json!(true), Ok(5)),
            (json!(3), Ok(7)),
            (json!("On"), Err(Gap::UnknownState)),
            (json!(1), Err(Gap::UnknownState)),
            (json!(null), Err(Gap::Null)),
        ] {
            check_int(&value, json, expected);
        }
        let value = PageValue {
            absent_numbers: vec![-32768.0],
            absent_texts: vec!["---".to_owned()],
            min: -50.0,
            max: 100.0,
            linear: Some((0.5, 10.0)),
            ..float()
        };
        check_float(&value, json!(100), Ok(60.0));
        check_float(&value, json!(100.5), Err(Gap::OutOfRange));
        check_float(&value, json!(-51), Err(Gap::OutOfRange));
        check_float(&value, json!(-32768), Err(Gap::Absent));
        check_float(&value, json!("---"), Err(Gap::Absent));
        check_float(&value, json!("--"), Err(Gap::NotNumber));
    }
}
