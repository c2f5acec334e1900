//! Metrics of OpenTelemetry in the JSON encoding of OTLP: read as they stream and written as protobuf, which `otlp.rs` reads. No I/O.
//!
//! The mapping is that of protobuf with OTLP's exceptions (opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): names in lowerCamelCase,
//! enumerations as numbers, integers of 64 bits as texts or numbers, unknown names ignored. Fields that `otlp.rs` does not read are ignored too.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::prometheus::wire::{put_bytes, put_int, put_varint};

/// How a field of a message is written.
#[derive(Debug, Clone, Copy)]
enum JsonType {
    Message(&'static [JsonField]),
    Text,
    /// An integer, an enumeration or a boolean as a varint.
    Varint,
    /// An unsigned or signed integer of eight bytes.
    Fixed64,
    Double,
    /// A value that is no number, text or boolean: only that it is there.
    Presence,
}

/// A field: its name in JSON, its number in protobuf, its type. An array of it is several fields.
#[derive(Debug, Clone, Copy)]
struct JsonField(&'static str, u64, JsonType);

use JsonType::{Double, Fixed64, Message, Presence, Text, Varint};

const ANY_VALUE: &[JsonField] = &[
    JsonField("stringValue", 1, Text),
    JsonField("boolValue", 2, Varint),
    JsonField("intValue", 3, Varint),
    JsonField("doubleValue", 4, Double),
    JsonField("arrayValue", 5, Presence),
    JsonField("kvlistValue", 6, Presence),
    JsonField("bytesValue", 7, Presence),
];
const KEY_VALUE: &[JsonField] = &[JsonField("key", 1, Text), JsonField("value", 2, Message(ANY_VALUE))];
const NUMBER: &[JsonField] = &[
    JsonField("attributes", 7, Message(KEY_VALUE)),
    JsonField("timeUnixNano", 3, Fixed64),
    JsonField("asDouble", 4, Double),
    JsonField("asInt", 6, Fixed64),
    JsonField("flags", 8, Varint),
];
const HISTOGRAM: &[JsonField] = &[
    JsonField("attributes", 9, Message(KEY_VALUE)),
    JsonField("timeUnixNano", 3, Fixed64),
    JsonField("count", 4, Fixed64),
    JsonField("sum", 5, Double),
    JsonField("bucketCounts", 6, Fixed64),
    JsonField("explicitBounds", 7, Double),
    JsonField("flags", 10, Varint),
    JsonField("min", 11, Double),
    JsonField("max", 12, Double),
];
const EXPONENTIAL: &[JsonField] = &[
    JsonField("attributes", 1, Message(KEY_VALUE)),
    JsonField("timeUnixNano", 3, Fixed64),
    JsonField("count", 4, Fixed64),
    JsonField("sum", 5, Double),
    JsonField("flags", 10, Varint),
    JsonField("min", 12, Double),
    JsonField("max", 13, Double),
];
const QUANTILE: &[JsonField] = &[JsonField("quantile", 1, Double), JsonField("value", 2, Double)];
const SUMMARY: &[JsonField] = &[
    JsonField("attributes", 7, Message(KEY_VALUE)),
    JsonField("timeUnixNano", 3, Fixed64),
    JsonField("count", 4, Fixed64),
    JsonField("sum", 5, Double),
    JsonField("quantileValues", 6, Message(QUANTILE)),
    JsonField("flags", 8, Varint),
];
const TEMPORALITY: JsonField = JsonField("aggregationTemporality", 2, Varint);
const METRIC: &[JsonField] = &[
    JsonField("name", 1, Text),
    JsonField("description", 2, Text),
    JsonField("unit", 3, Text),
    JsonField("gauge", 5, Message(&[JsonField("dataPoints", 1, Message(NUMBER))])),
    JsonField(
        "sum",
        7,
        Message(&[JsonField("dataPoints", 1, Message(NUMBER)), TEMPORALITY, JsonField("isMonotonic", 3, Varint)]),
    ),
    JsonField("histogram", 9, Message(&[JsonField("dataPoints", 1, Message(HISTOGRAM)), TEMPORALITY])),
    JsonField("exponentialHistogram", 10, Message(&[JsonField("dataPoints", 1, Message(EXPONENTIAL)), TEMPORALITY])),
    JsonField("summary", 11, Message(&[JsonField("dataPoints", 1, Message(SUMMARY))])),
];
const REQUEST: &[JsonField] = &[JsonField(
    "resourceMetrics",
    1,
    Message(&[
        JsonField("resource", 1, Message(&[JsonField("attributes", 1, Message(KEY_VALUE))])),
        JsonField("scopeMetrics", 2, Message(&[JsonField("metrics", 2, Message(METRIC))])),
    ]),
)];

/// The message `ExportMetricsServiceRequest` in protobuf encoding, at most about `bytes_max` long; the error says where the JSON is wrong.
pub fn to_protobuf(json: &[u8], bytes_max: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(json);
    MessageSeed { fields: REQUEST, out: &mut out, bytes_max }
        .deserialize(&mut reader)
        .and_then(|()| reader.end())
        .map_err(|error| format!("its JSON is not that of OTLP: {error}"))?;
    Ok(out)
}

/// Writes an object as the fields of a message.
struct MessageSeed<'o> {
    fields: &'static [JsonField],
    out: &'o mut Vec<u8>,
    bytes_max: usize,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<std::borrow::Cow<'_, str>>()? {
            match self.fields.iter().find(|JsonField(name, ..)| *name == key) {
                Some(field) => {
                    let (out, bytes_max) = (&mut *self.out, self.bytes_max);
                    map.next_value_seed(FieldSeed { field, out, bytes_max, is_element: false })?;
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Writes one value of a field, or each element of an array of them.
struct FieldSeed<'o> {
    field: &'static JsonField,
    out: &'o mut Vec<u8>,
    /// Short numbers take less room as text than as eight bytes.
    bytes_max: usize,
    is_element: bool,
}

impl FieldSeed<'_> {
    fn integer<E: Error>(self, value: i128) -> Result<(), E> {
        let JsonField(name, number, kind) = *self.field;
        // The bits of a negative number are those of its two's complement.
        let bits = match (u64::try_from(value), i64::try_from(value)) {
            (Ok(bits), _) => bits,
            (_, Ok(negative)) => negative.cast_unsigned(),
            _ => return Err(E::custom(format!("{name} is beyond 64 bits"))),
        };
        match kind {
            Varint => put_int(number, bits.cast_signed(), self.out),
            Fixed64 => put_fixed(number, bits, self.out),
            Double => put_fixed(number, (value as f64).to_bits(), self.out),
            Message(_) | Text | Presence => return Err(E::custom(format!("{name} is not a number"))),
        }
        Ok(())
    }
}

/// Appends a field of eight bytes.
fn put_fixed(number: u64, bits: u64, out: &mut Vec<u8>) {
    put_varint(number << 3 | 1, out);
    out.extend_from_slice(&bits.to_le_bytes());
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if let JsonField(_, number, Presence) = self.field {
            put_bytes(*number, &[], self.out);
            return deserializer.deserialize_ignored_any(IgnoredAny).map(drop);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of {}", self.field.0)
    }

    /// Null is the same as an absent field.
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        if !matches!(self.field.2, Varint) {
            return Err(E::custom(format!("{} is not a boolean", self.field.0)));
        }
        self.integer(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.integer(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.integer(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        let JsonField(name, number, kind) = *self.field;
        match kind {
            Double => put_fixed(number, value.to_bits(), self.out),
            // `1e3` is an integer; beyond 2^53 a float may have lost digits.
            Varint | Fixed64 if value.fract() == 0.0 && value.abs() <= 9e15 => return self.integer(value as i128),
            _ => return Err(E::custom(format!("{name} is not a float"))),
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let JsonField(name, number, kind) = *self.field;
        let wrong = || E::custom(format!("{name} is not a number: {:?}", super::resolution::cut(text, 64)));
        match kind {
            Text => put_bytes(number, text.as_bytes(), self.out),
            Varint | Fixed64 => return self.integer(text.parse().map_err(|_| wrong())?),
            // `NaN`, `Infinity` and `-Infinity` are texts in the mapping of protobuf.
            Double => put_fixed(number, text.parse::<f64>().map_err(|_| wrong())?.to_bits(), self.out),
            Message(_) | Presence => return Err(E::custom(format!("{name} is not an object"))),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        if self.is_element {
            return Err(A::Error::custom(format!("{} is an array of arrays", self.field.0)));
        }
        loop {
            let (field, bytes_max) = (self.field, self.bytes_max);
            let element = FieldSeed { field, out: &mut *self.out, bytes_max, is_element: true };
            if elements.next_element_seed(element)?.is_none() {
                return Ok(());
            }
            if self.out.len() > bytes_max {
                return Err(A::Error::custom(format!("it has over {bytes_max} bytes")));
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let JsonField(_, number, Message(fields)) = *self.field else {
            return Err(A::Error::custom(format!("{} is an object", self.field.0)));
        };
        let mut body = Vec::new();
        MessageSeed { fields, out: &mut body, bytes_max: self.bytes_max }.visit_map(map)?;
        put_bytes(number, &body, self.out);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
