//! JSON texts as trees with a bound on their nodes.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The most values of an answer: numbers, texts, lists and objects together. An object needs up to 700 bytes beside its texts, others 32.
pub const NODES_MAX: usize = 50_000;
/// The most levels of an answer. Each node that a query finds is held with the way to it.
const LEVELS_MAX: usize = 32;

/// Parses a text. Bare `NaN`, `Infinity` and numbers beyond those of 64 bits, which are not JSON but are written by some devices, become null, so
/// that they harm no other value.
pub fn parse(text: &str) -> Result<Value, String> {
    let error = match parse_strict(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    without_bad_numbers(text).and_then(|mended| parse_strict(&mended).ok()).ok_or(error)
}

fn parse_strict(text: &str) -> Result<Value, String> {
    let left = Cell::new(NODES_MAX);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value =
        BoundedTree { left: &left, level: 0 }.deserialize(&mut deserializer).map_err(|error| error.to_string())?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// The text with `null` in place of numbers that JSON does not have. `None` without any.
fn without_bad_numbers(text: &str) -> Option<String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let (bytes, mut at, mut copied, mut out) = (text.as_bytes(), 0, 0, String::new());
    while at < bytes.len() {
        let begin = at;
        if bytes[at] == b'"' {
            at += 1;
            while at < bytes.len() && bytes[at] != b'"' {
                at += if bytes[at] == b'\\' { 2 } else { 1 };
            }
            at += 1;
        } else if is_part(bytes[at]) {
            while at < bytes.len() && is_part(bytes[at]) {
                at += 1;
            }
            let token = &text[begin..at];
            let is_number = token.starts_with(|c: char| c.is_ascii_digit() || c == '-');
            let is_bad = ["NaN", "-NaN", "Infinity", "-Infinity"].contains(&token)
                || (is_number && token.parse::<f64>().is_ok_and(f64::is_infinite));
            if is_bad {
                out.push_str(&text[copied..begin]);
                out.push_str("null");
                copied = at;
            }
        } else {
            at += 1;
        }
    }
    (copied > 0).then(|| out + &text[copied..])
}

/// Makes a tree while the count of nodes lasts.
struct BoundedTree<'a> {
    left: &'a Cell<usize>,
    level: usize,
}

impl BoundedTree<'_> {
    fn below(&self) -> Self {
        Self { left: self.left, level: self.level + 1 }
    }
}

impl<'de> DeserializeSeed<'de> for BoundedTree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(D::Error::custom(format!("more than {NODES_MAX} values")));
        };
        if self.level > LEVELS_MAX {
            return Err(D::Error::custom(format!("more than {LEVELS_MAX} levels")));
        }
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedTree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element_seed(self.below())? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            map.insert(key, access.next_value_seed(self.below())?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_trees() {
        for text in
            ["null", "[1, -2, 3.5, \"a\\u00e9\", true, {\"b\": {}}]", "18446744073709551615", "-9223372036854775808"]
        {
            assert_eq!(parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
    }

    #[test]
    fn numbers_that_are_not_json_become_null() {
        let value = parse(r#"{"a": NaN, "b": -Infinity, "c": 1e999, "d": "NaN, \" NaN", "e": 5}"#).unwrap();
        assert_eq!(value, serde_json::json!({ "a": null, "b": null, "c": null, "d": "NaN, \" NaN", "e": 5 }));
        for text in ["{\"a\": nan}", "NaN NaN", "[NaN", "{\"a\": 1} x", "", "\"NaN", "\"\\"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn depth_and_nodes_are_bounded() {
        assert!(parse(&"[".repeat(100_000)).unwrap_err().contains("more than 32 levels"));
        let list = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        assert!(parse(&list(NODES_MAX - 1)).is_ok());
        assert!(parse(&list(NODES_MAX)).unwrap_err().contains("more than 50000 values"));
    }
}
