//! Schemas: the ordered sensors of a group. Agents send a schema once; its hash identifies it. `transport/FORMAT.md` describes the byte layout.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::name::{self, NameError, SensorPath};

/// The most sensors of one group.
pub const SENSORS_MAX: usize = 65_536;
/// The longest unit, in bytes.
pub const UNIT_BYTES_MAX: usize = 64;
/// The longest description, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 512;
/// The largest encoded schema, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 16 << 20;
/// The version of the byte layout.
pub const SCHEMA_VERSION: u8 = 1;

/// The meaning of a sensor's successive values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The value is the current quantity; it can rise and fall.
    Gauge,
    /// The value only rises, except for restarts and wraps; its differences are the quantity.
    Counter,
}

impl Kind {
    /// The name in files, requests and responses.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "gauge" => Ok(Kind::Gauge),
            "counter" => Ok(Kind::Counter),
            _ => Err("expected gauge or counter"),
        }
    }
}

/// The type of raw values, which is never converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueType {
    Int,
    Float,
}

/// One sensor of a schema.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SensorDef {
    /// The name below the schema's prefix, such as `cpu/3/user`.
    pub name: String,
    /// The unit of the scaled value as a UCUM code (`By`, `s`, `Cel`, `W`, `Hz`, `1`).
    pub unit: String,
    pub kind: Kind,
    pub value_type: ValueType,
    /// Raw value times scale is the quantity in `unit`. Finite and not zero.
    pub scale: f64,
    /// The modulus of a counter that wraps: the first raw value that it cannot represent.
    pub wraps_at: Option<u64>,
    /// A description in one sentence.
    pub description: String,
}

impl SensorDef {
    /// An integer gauge of scale 1.
    pub fn gauge(name: impl Into<String>, unit: &str, description: &str) -> Self {
        Self {
            name: name.into(),
            unit: unit.to_owned(),
            kind: Kind::Gauge,
            value_type: ValueType::Int,
            scale: 1.0,
            wraps_at: None,
            description: description.to_owned(),
        }
    }

    /// An integer counter of scale 1.
    pub fn counter(name: impl Into<String>, unit: &str, description: &str) -> Self {
        Self { kind: Kind::Counter, ..Self::gauge(name, unit, description) }
    }

    /// Sets the scale of raw values.
    pub fn scaled(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    /// Makes the values floating-point numbers.
    pub fn float(self) -> Self {
        Self { value_type: ValueType::Float, ..self }
    }
}

/// The identity of a schema: the first 16 bytes of the SHA-256 of its encoding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchemaHash(pub [u8; 16]);

impl SchemaHash {
    /// The hash of an encoded schema.
    pub fn of(encoded: &[u8]) -> Self {
        let digest = Sha256::digest(encoded);
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest[..16]);
        Self(hash)
    }

    /// Parses 32 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 16];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for SchemaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SchemaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a schema was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SchemaError {
    #[error("schema of group {group:?}: {error}")]
    Name { group: String, error: NameError },
    /// A bound is exceeded or a property is invalid.
    #[error("schema of group {group:?}: {reason}")]
    Invalid { group: String, reason: String },
    /// The bytes are not a schema.
    #[error("not a schema: {reason} at byte {offset}")]
    Malformed { reason: &'static str, offset: usize },
}

/// The ordered sensors of one group with their properties. Valid, immutable, cheap to clone.
#[derive(Clone)]
pub struct Schema(Arc<Inner>);

struct Inner {
    prefix: SensorPath,
    group: String,
    sensors: Arc<[SensorDef]>,
    /// The sensors' types, contiguous for loops over batches.
    types: Arc<[ValueType]>,
    hash: SchemaHash,
}

impl Schema {
    /// Checks every name and property and computes the hash.
    pub fn new(prefix: SensorPath, group: impl Into<String>, sensors: Vec<SensorDef>) -> Result<Self, SchemaError> {
        let group = group.into();
        let invalid = |reason: String| Err(SchemaError::Invalid { group: group.clone(), reason });
        name::check_relative(&group).map_err(|error| SchemaError::Name { group: group.clone(), error })?;
        if sensors.is_empty() || sensors.len() > SENSORS_MAX {
            return invalid(format!("has {} sensors; 1 to {SENSORS_MAX} are allowed", sensors.len()));
        }
        let mut seen = HashSet::with_capacity(sensors.len());
        for sensor in &sensors {
            prefix.join(&sensor.name).map_err(|error| SchemaError::Name { group: group.clone(), error })?;
            if !seen.insert(sensor.name.as_str()) {
                return invalid(format!("names the sensor {:?} twice", sensor.name));
            }
            if !sensor.scale.is_finite() || sensor.scale == 0.0 {
                return invalid(format!(
                    "sensor {:?} has the scale {}; it must be finite and not 0",
                    sensor.name, sensor.scale
                ));
            }
            if sensor.unit.len() > UNIT_BYTES_MAX || sensor.unit.chars().any(char::is_control) {
                return invalid(format!(
                    "sensor {:?} has a unit over {UNIT_BYTES_MAX} bytes or with control characters",
                    sensor.name
                ));
            }
            if sensor.description.len() > DESCRIPTION_BYTES_MAX {
                return invalid(format!(
                    "sensor {:?} has a description over {DESCRIPTION_BYTES_MAX} bytes",
                    sensor.name
                ));
            }
        }
        drop(seen);
        let mut bytes = Vec::new();
        encode(&prefix, &group, &sensors, &mut bytes);
        if bytes.len() > SCHEMA_BYTES_MAX {
            return invalid(format!("takes {} bytes; at most {SCHEMA_BYTES_MAX} are allowed", bytes.len()));
        }
        let hash = SchemaHash::of(&bytes);
        let types = sensors.iter().map(|sensor| sensor.value_type).collect();
        Ok(Self(Arc::new(Inner { prefix, group, sensors: sensors.into(), types, hash })))
    }

    /// The path above all sensor names: the agent's place in the hierarchy.
    pub fn prefix(&self) -> &SensorPath {
        &self.0.prefix
    }

    /// The name of the group below the prefix, such as `meminfo`.
    pub fn group(&self) -> &str {
        &self.0.group
    }

    /// The sensors in their order.
    pub fn sensors(&self) -> &[SensorDef] {
        &self.0.sensors
    }

    /// The types of the sensors' values, in order.
    pub fn types(&self) -> &[ValueType] {
        &self.0.types
    }

    /// The number of sensors, at least 1.
    pub fn len(&self) -> usize {
        self.0.sensors.len()
    }

    /// Never: a schema has at least one sensor.
    pub fn is_empty(&self) -> bool {
        self.0.sensors.is_empty()
    }

    /// The hash of its content, which identifies it.
    pub fn hash(&self) -> SchemaHash {
        self.0.hash
    }

    /// The full path of sensor `index`.
    pub fn path(&self, index: usize) -> String {
        [self.0.prefix.as_str(), "/", &self.0.sensors[index].name].concat()
    }

    /// The same schema, which shares the memory of its sensors with `other` if they are equal.
    pub fn sharing(&self, other: &Schema) -> Self {
        if Arc::ptr_eq(&self.0.sensors, &other.0.sensors) || self.0.sensors != other.0.sensors {
            return self.clone();
        }
        let Inner { prefix, group, hash, .. } = &*self.0;
        let (prefix, group, hash) = (prefix.clone(), group.clone(), *hash);
        let (sensors, types) = (other.0.sensors.clone(), other.0.types.clone());
        Self(Arc::new(Inner { prefix, group, sensors, types, hash }))
    }

    /// The same sensors below another prefix. `hash` must be the known hash of the result. It is not computed and nothing is checked, so that a store
    /// loads the schemas of thousands of agents quickly.
    pub fn with_prefix(&self, prefix: SensorPath, group: String, hash: SchemaHash) -> Self {
        let (sensors, types) = (self.0.sensors.clone(), self.0.types.clone());
        let schema = Self(Arc::new(Inner { prefix, group, sensors, types, hash }));
        debug_assert_eq!(SchemaHash::of(&schema.encode()), hash);
        schema
    }

    /// The encoding of the sensors, which is the end of [`Schema::encode`], and its hash. Both are the same for all schemas of these sensors.
    pub fn encode_sensors(&self) -> (SchemaHash, Vec<u8>) {
        let mut bytes = Vec::new();
        encode_sensors(&self.0.sensors, &mut bytes);
        (SchemaHash::of(&bytes), bytes)
    }

    /// A schema of sensors that [`Schema::encode_sensors`] encoded.
    pub fn decode_sensors(prefix: &str, group: &str, sensors: &[u8]) -> Result<Self, SchemaError> {
        let mut bytes = vec![SCHEMA_VERSION];
        put_text(prefix, &mut bytes);
        put_text(group, &mut bytes);
        bytes.extend_from_slice(sensors);
        Self::decode(&bytes)
    }

    /// The encoding, which agents send and the hash covers.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&self.0.prefix, &self.0.group, &self.0.sensors, &mut bytes);
        bytes
    }

    /// Decodes and checks the bytes of [`Schema::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, SchemaError> {
        let mut reader = Reader { bytes, at: 0 };
        if bytes.len() > SCHEMA_BYTES_MAX {
            return reader.fail("longer than a schema may be");
        }
        if reader.byte()? != SCHEMA_VERSION {
            return reader.fail("unknown version");
        }
        let prefix = reader.text()?.to_owned();
        let group = reader.text()?.to_owned();
        let count = reader.varint()?;
        // Each sensor takes at least 13 bytes: a false count cannot cause a large allocation.
        if count > SENSORS_MAX as u64 || count as usize > bytes.len() / 13 + 1 {
            return reader.fail("more sensors than fit");
        }
        let mut sensors = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let name = reader.text()?.to_owned();
            let unit = reader.text()?.to_owned();
            let flags = reader.byte()?;
            if flags & !0b111 != 0 {
                return reader.fail("unknown flags");
            }
            let scale = f64::from_bits(u64::from_le_bytes(reader.take(8)?.try_into().unwrap_or_default()));
            let wraps_at = if flags & 4 != 0 { Some(reader.varint()?) } else { None };
            let description = reader.text()?.to_owned();
            sensors.push(SensorDef {
                name,
                unit,
                kind: if flags & 1 != 0 { Kind::Counter } else { Kind::Gauge },
                value_type: if flags & 2 != 0 { ValueType::Float } else { ValueType::Int },
                scale,
                wraps_at,
                description,
            });
        }
        if reader.at != bytes.len() {
            return reader.fail("bytes after the end");
        }
        let prefix = SensorPath::new(prefix).map_err(|error| SchemaError::Name { group: group.clone(), error })?;
        Self::new(prefix, group, sensors)
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.0.hash == other.0.hash
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({}/{}, {} sensors, {})", self.0.prefix, self.0.group, self.len(), self.0.hash)
    }
}

fn encode(prefix: &SensorPath, group: &str, sensors: &[SensorDef], out: &mut Vec<u8>) {
    out.push(SCHEMA_VERSION);
    put_text(prefix.as_str(), out);
    put_text(group, out);
    encode_sensors(sensors, out);
}

fn encode_sensors(sensors: &[SensorDef], out: &mut Vec<u8>) {
    put_varint(sensors.len() as u64, out);
    for sensor in sensors {
        put_text(&sensor.name, out);
        put_text(&sensor.unit, out);
        let flags = u8::from(sensor.kind == Kind::Counter)
            | u8::from(sensor.value_type == ValueType::Float) << 1
            | u8::from(sensor.wraps_at.is_some()) << 2;
        out.push(flags);
        out.extend_from_slice(&sensor.scale.to_le_bytes());
        if let Some(wraps_at) = sensor.wraps_at {
            put_varint(wraps_at, out);
        }
        put_text(&sensor.description, out);
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_varint(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// Appends an unsigned LEB128 number: seven bits a byte, the lowest first, the high bit set on all but the last.
pub fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, reason: &'static str) -> Result<T, SchemaError> {
        Err(SchemaError::Malformed { reason, offset: self.at })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], SchemaError> {
        let Some(slice) = self.bytes.get(self.at..).and_then(|rest| rest.get(..count)) else {
            return self.fail("cut short");
        };
        self.at += count;
        Ok(slice)
    }

    fn byte(&mut self) -> Result<u8, SchemaError> {
        Ok(self.take(1)?[0])
    }

    fn varint(&mut self) -> Result<u64, SchemaError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte == 0 && shift > 0 {
                // A second way to write a schema would give it a second hash.
                return self.fail("number in more bytes than it needs");
            }
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        self.fail("number over 64 bits")
    }

    fn text(&mut self) -> Result<&'a str, SchemaError> {
        let length = self.varint()?;
        let start = self.at;
        let bytes = self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        std::str::from_utf8(bytes).map_err(|_| SchemaError::Malformed { reason: "text is not UTF-8", offset: start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Schema {
        let sensors = vec![
            SensorDef::gauge("meminfo/MemFree", "By", "Unused memory.").scaled(1024.0),
            SensorDef { wraps_at: Some(262_143_328_850), ..SensorDef::counter("rapl/0/energy", "J", "").scaled(1e-6) },
            SensorDef::gauge("load", "1", "").float(),
        ];
        Schema::new(SensorPath::new("/lab/n1").unwrap(), "meminfo", sensors).unwrap()
    }

    #[test]
    fn round_trip_keeps_everything_and_the_hash() {
        let schema = example();
        let back = Schema::decode(&schema.encode()).unwrap();
        assert_eq!(back.sensors(), schema.sensors());
        assert_eq!(back.hash(), schema.hash());
        assert_eq!(SchemaHash::of(&schema.encode()), schema.hash());
        assert_eq!(SchemaHash::from_hex(&schema.hash().to_string()), Some(schema.hash()));
        assert_eq!(schema.path(0), "/lab/n1/meminfo/MemFree");
    }

    #[test]
    fn sharing_changes_nothing_but_the_memory() {
        let schema = example();
        let elsewhere = Schema::new(SensorPath::new("/lab/n2").unwrap(), "other", schema.sensors().to_vec()).unwrap();
        let shared = elsewhere.sharing(&schema);
        assert!(
            std::ptr::eq(shared.sensors(), schema.sensors()) && !std::ptr::eq(shared.sensors(), elsewhere.sensors())
        );
        assert_eq!(
            (shared.hash(), shared.encode(), shared.path(0)),
            (elsewhere.hash(), elsewhere.encode(), elsewhere.path(0))
        );
        let fewer = Schema::new(SensorPath::new("/lab/n2").unwrap(), "other", schema.sensors()[1..].to_vec()).unwrap();
        assert!(std::ptr::eq(fewer.sharing(&schema).sensors(), fewer.sensors()));
    }

    #[test]
    fn sensors_alone_make_the_same_schema_again() {
        let schema = example();
        let (name, sensors) = schema.encode_sensors();
        assert!(schema.encode().ends_with(&sensors));
        let back = Schema::decode_sensors("/lab/n1", "meminfo", &sensors).unwrap();
        assert_eq!((back.hash(), back.sensors()), (schema.hash(), schema.sensors()));
        let other = Schema::new(SensorPath::new("/lab/n2").unwrap(), "m", schema.sensors().to_vec()).unwrap();
        assert_eq!(other.encode_sensors().0, name);
        let moved = back.with_prefix(other.prefix().clone(), "m".to_owned(), other.hash());
        assert_eq!((moved.hash(), moved.encode()), (other.hash(), other.encode()));
        assert!(std::ptr::eq(moved.sensors(), back.sensors()));
    }

    #[test]
    fn every_truncation_and_every_bit_flip_is_an_error_or_another_schema() {
        let schema = example();
        let bytes = schema.encode();
        for end in 0..bytes.len() {
            assert!(Schema::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        for at in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[at / 8] ^= 1 << (at % 8);
            if let Ok(other) = Schema::decode(&bad) {
                assert_ne!(other.hash(), schema.hash(), "bit {at}");
            }
        }
    }

    #[test]
    fn refused() {
        let prefix = SensorPath::new("/n").unwrap();
        let check = |sensors: Vec<SensorDef>, part: &str| {
            let error = Schema::new(prefix.clone(), "g", sensors).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(vec![], "0 sensors");
        check(vec![SensorDef::gauge("a", "1", ""), SensorDef::gauge("a", "1", "")], "twice");
        check(vec![SensorDef::gauge("../a", "1", "")], "which is relative");
        check(vec![SensorDef::gauge("a", "1", "").scaled(f64::NAN)], "scale");
        check(vec![SensorDef::gauge("a", &"x".repeat(65), "")], "unit");
    }
}
