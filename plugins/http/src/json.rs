//! JSON texts as trees with bounds on their values, levels and bytes.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::tree_room::{TreeCost, TreeFault, TreeRoom};

/// The most levels of an answer. A query can hold each node that it finds with the way to it.
const LEVELS_MAX: usize = 32;
/// The most bytes of a tree for each byte of its text: `{"":[` and `]}` make an object and a list.
const BYTES_OF_TEXT_BYTE: usize = 128;

/// A parsed text, and its room among those of other answers.
pub struct JsonTree {
    value: Value,
    room: TreeRoom,
}

impl JsonTree {
    /// A tree that was made in this room.
    pub fn new(value: Value, room: TreeRoom) -> Self {
        Self { value, room }
    }

    /// The tree and its room, which must live as long.
    pub fn into_parts(self) -> (Value, TreeRoom) {
        (self.value, self.room)
    }
}

impl Deref for JsonTree {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl DerefMut for JsonTree {
    fn deref_mut(&mut self) -> &mut Value {
        &mut self.value
    }
}

/// Parses a text. Bare `NaN`, `Infinity` and numbers beyond those of 64 bits, which are not JSON but are written by some devices, become null, so
/// that they harm no other value.
pub fn parse(text: &str) -> Result<JsonTree, TreeFault> {
    let cost = TreeCost::reserve(text.len().saturating_mul(BYTES_OF_TEXT_BYTE))?;
    let error = match parse_strict(text, &cost) {
        Ok(value) => return Ok(JsonTree { value, room: cost.finish() }),
        Err(error) => error,
    };
    if let Some(fault) = cost.exceeded() {
        return Err(fault);
    }
    drop(cost);
    let wrong = TreeFault::Wrong(error);
    let Some(mended) = without_bad_numbers(text) else { return Err(wrong) };
    let cost = TreeCost::reserve(mended.len().saturating_mul(BYTES_OF_TEXT_BYTE))?;
    match parse_strict(&mended, &cost) {
        Ok(value) => Ok(JsonTree { value, room: cost.finish() }),
        Err(_) => Err(cost.exceeded().unwrap_or(wrong)),
    }
}

/// Parses the bytes of a text in UTF-8, as [`parse`].
pub fn parse_bytes(bytes: &[u8]) -> Result<JsonTree, TreeFault> {
    parse(std::str::from_utf8(bytes).map_err(|error| TreeFault::Wrong(error.to_string()))?)
}

fn parse_strict(text: &str, cost: &TreeCost) -> Result<Value, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = BoundedTree { cost, level: 0 }.deserialize(&mut deserializer).map_err(|error| error.to_string())?;
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

/// Makes a tree while its cost is within the bounds.
struct BoundedTree<'a> {
    cost: &'a TreeCost,
    level: usize,
}

impl BoundedTree<'_> {
    fn below(&self) -> Self {
        Self { cost: self.cost, level: self.level + 1 }
    }
}

impl<'de> DeserializeSeed<'de> for BoundedTree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.cost.add_node().map_err(D::Error::custom)?;
        if self.level > LEVELS_MAX {
            return Err(D::Error::custom(format!("more than {LEVELS_MAX} levels")));
        }
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

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.cost.add_text(value).map_err(E::custom)?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element_seed(self.below())? {
            self.cost.add_item(values.len()).map_err(A::Error::custom)?;
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let (mut map, mut count) = (Map::new(), 0);
        while let Some(key) = access.next_key::<String>()? {
            self.cost.add_entry(count, &key).map_err(A::Error::custom)?;
            count += 1;
            map.insert(key, access.next_value_seed(self.below())?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_room::{NODES_MAX, TREE_BYTES_MAX};

    fn fault(text: &str) -> String {
        parse(text).err().unwrap().to_string()
    }

    #[test]
    fn texts_become_trees() {
        for text in
            ["null", "[1, -2, 3.5, \"a\\u00e9\", true, {\"b\": {}}]", "18446744073709551615", "-9223372036854775808"]
        {
            assert_eq!(*parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
    }

    #[test]
    fn numbers_that_are_not_json_become_null() {
        let value = parse(r#"{"a": NaN, "b": -Infinity, "c": 1e999, "d": "NaN, \" NaN", "e": 5}"#).unwrap();
        assert_eq!(*value, serde_json::json!({ "a": null, "b": null, "c": null, "d": "NaN, \" NaN", "e": 5 }));
        for text in ["{\"a\": nan}", "NaN NaN", "[NaN", "{\"a\": 1} x", "", "\"NaN", "\"\\"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn depth_and_nodes_are_bounded() {
        assert!(fault(&"[".repeat(100_000)).contains("more than 32 levels"));
        let list = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        assert!(parse(&list(NODES_MAX - 1)).is_ok());
        assert!(fault(&list(NODES_MAX)).contains("more than 50000 values"));
    }

    #[test]
    fn objects_count_as_what_they_take() {
        let pages = "{\"\":".repeat(30) + "0" + &"}".repeat(30);
        for (item, count) in [("{\"\":0}", 24_000), (pages.as_str(), 1600)] {
            assert!(count < NODES_MAX);
            let text = format!("[{}0]", format!("{item},").repeat(count));
            assert!(fault(&text).contains("more than 8 MiB as a tree"), "{count} of {item}");
            assert!(parse(&format!("[{}0]", format!("{item},").repeat(count / 4))).is_ok());
        }
        // Nor is it parsed a second time for the sake of a wrong number.
        let text = format!("[NaN,{}0]", "{\"\":0},".repeat(570_000));
        assert!(fault(&text).contains("more than 8 MiB as a tree"));
    }

    #[test]
    fn no_small_text_needs_more_than_is_reserved_for_it() {
        let unique: String = (0..100).map(|number| format!("\"{number}\":0,")).collect();
        let repeats = |open: &str, close: &str| open.repeat(15) + "0" + &close.repeat(15);
        for text in [
            "[0]".to_owned(),
            "{\"\":0}".to_owned(),
            "\"a\"".to_owned(),
            "[\"a\",\"b\"]".to_owned(),
            format!("{{{}\"\":0}}", "\"\":0,".repeat(100)),
            format!("{{{unique}\"\":[0]}}"),
            format!("[{}0]", "[0],".repeat(1000)),
            format!("[{}0]", "{\"\":0},".repeat(1000)),
            repeats("{\"\":[", "]}"),
            repeats("{\"\":{\"a\":", "}}"),
            repeats("[[", "]]"),
        ] {
            assert!(parse(&text).is_ok(), "{text:.60}: {}", fault(&text));
            assert!(text.len() * BYTES_OF_TEXT_BYTE <= TREE_BYTES_MAX);
        }
    }
}
