//! Single readings of sensors that have no schema: what they are, and the journal record that holds many of them. `FORMAT.md` gives every byte.

use std::sync::Arc;

use wholegrain_model::batch::AGENT_BYTES_MAX;
use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, UNIT_BYTES_MAX, put_varint};
use wholegrain_model::{Kind, SensorPath, Value, ValueType};

use crate::ranges::get_varint;
use crate::{SensorId, StoreError};

/// What the payload of a record of readings begins with.
pub(crate) const READINGS_MAGIC: [u8; 2] = *b"WR";
/// Version of that payload's layout.
const READINGS_VERSION: u8 = 1;
/// The most readings of one call of [`crate::Store::append_readings`].
pub const READINGS_MAX: usize = 262_144;
/// The most bytes that one reading takes in a record: sensor and type, time, value.
pub(crate) const READING_BYTES_MAX: usize = 6 + 10 + 10;
/// The fewest: a count that lies cannot make a large allocation.
const READING_BYTES_MIN: usize = 3;

/// A sensor that comes without a schema, one reading at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemalessSensor {
    pub path: SensorPath,
    /// Unit of the scaled value, UCUM code; may be empty.
    pub unit: String,
    pub kind: Kind,
    /// The type that its readings usually have. A reading of the other type is stored as it is.
    pub value_type: ValueType,
    /// Raw value times scale is the quantity in `unit`. Finite and not zero.
    pub scale: f64,
    /// What it is; may be empty.
    pub description: String,
}

impl SchemalessSensor {
    /// The bounds that a schema has for its sensors.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let refuse = |what: String| Err(StoreError::Sensor(format!("sensor {}: {what}", self.path)));
        if !self.scale.is_finite() || self.scale == 0.0 {
            return refuse(format!("has the scale {}; finite and not 0 wanted", self.scale));
        }
        if self.unit.len() > UNIT_BYTES_MAX || self.unit.chars().any(char::is_control) {
            return refuse(format!("has a unit over {UNIT_BYTES_MAX} bytes or with control characters"));
        }
        if self.description.len() > DESCRIPTION_BYTES_MAX {
            return refuse(format!("has a description over {DESCRIPTION_BYTES_MAX} bytes"));
        }
        Ok(())
    }
}

/// One value of one sensor at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// The sensor, as [`crate::Store::register_sensors`] numbered it.
    pub sensor: SensorId,
    /// ns since the Unix epoch.
    pub time: i64,
    /// Raw: times the sensor's scale it is the quantity.
    pub value: Value,
}

/// Durable readings of sensors without a schema, in the order of arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveReadings {
    pub source: Arc<str>,
    pub readings: Vec<Reading>,
}

/// Whether `source` can stand in a record.
pub(crate) fn check_source(source: &str) -> Result<(), StoreError> {
    if source.len() <= AGENT_BYTES_MAX {
        return Ok(());
    }
    Err(StoreError::Payload(format!(
        "the sender's name has {} bytes, at most {AGENT_BYTES_MAX} are allowed",
        source.len()
    )))
}

/// Appends the payload of a record: each reading relative to the one before.
pub(crate) fn encode(readings: &LiveReadings, out: &mut Vec<u8>) {
    out.reserve(readings.readings.len() * 16 + readings.source.len() + 16);
    out.extend_from_slice(&READINGS_MAGIC);
    out.push(READINGS_VERSION);
    put_varint(readings.source.len() as u64, out);
    out.extend_from_slice(readings.source.as_bytes());
    put_varint(readings.readings.len() as u64, out);
    let (mut sensor, mut time) = (0i64, 0i64);
    for reading in &readings.readings {
        let is_float = matches!(reading.value, Value::Float(_));
        let id = i64::from(reading.sensor.0);
        put_varint(zigzag(id - sensor) << 1 | u64::from(is_float), out);
        put_varint(zigzag(reading.time.wrapping_sub(time)), out);
        match reading.value {
            Value::Int(value) => put_varint(zigzag(value), out),
            Value::Float(value) => out.extend_from_slice(&value.to_le_bytes()),
        }
        (sensor, time) = (id, reading.time);
    }
}

/// Reads what [`encode`] wrote; `None` for anything else.
pub(crate) fn decode(payload: &[u8]) -> Option<LiveReadings> {
    let mut at = READINGS_MAGIC.len() + 1;
    if !payload.starts_with(&READINGS_MAGIC) || payload.get(at - 1) != Some(&READINGS_VERSION) {
        return None;
    }
    let length = usize::try_from(get_varint(payload, &mut at)?).ok()?;
    let source = std::str::from_utf8(payload.get(at..at.checked_add(length)?)?).ok()?.into();
    at += length;
    let count = usize::try_from(get_varint(payload, &mut at)?).ok()?;
    if count > (payload.len() - at) / READING_BYTES_MIN {
        return None;
    }
    let mut readings = Vec::with_capacity(count);
    let (mut sensor, mut time) = (0i64, 0i64);
    for _ in 0..count {
        let head = get_varint(payload, &mut at)?;
        sensor = sensor.checked_add(unzigzag(head >> 1))?;
        time = time.wrapping_add(unzigzag(get_varint(payload, &mut at)?));
        let value = if head & 1 == 1 {
            let bytes = payload.get(at..)?.first_chunk::<8>()?;
            at += bytes.len();
            Value::Float(f64::from_le_bytes(*bytes))
        } else {
            Value::Int(unzigzag(get_varint(payload, &mut at)?))
        };
        readings.push(Reading { sensor: SensorId(u32::try_from(sensor).ok()?), time, value });
    }
    (at == payload.len()).then_some(LiveReadings { source, readings })
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> LiveReadings {
        let reading = |sensor, time, value| Reading { sensor: SensorId(sensor), time, value };
        LiveReadings {
            source: "gateway".into(),
            readings: vec![
                reading(7, 1_767_225_600_000_000_000, Value::Int(-5)),
                reading(8, 1_767_225_600_000_000_000, Value::Float(0.1)),
                reading(0, i64::MIN, Value::Int(i64::MIN)),
                reading(u32::MAX, i64::MAX, Value::Int(i64::MAX)),
                reading(7, 0, Value::Float(f64::NEG_INFINITY)),
            ],
        }
    }

    #[test]
    fn round_trip() {
        let mut bytes = Vec::new();
        encode(&example(), &mut bytes);
        assert_eq!(decode(&bytes), Some(example()));
        let most = bytes.len() - 3 - 8 - 1;
        assert!(most <= example().readings.len() * READING_BYTES_MAX, "{most}");
    }

    #[test]
    fn every_truncation_is_noticed_and_no_bit_flip_panics() {
        let mut bytes = Vec::new();
        encode(&example(), &mut bytes);
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(decode(&bad), Some(example()), "bit {bit}");
        }
        let mut lying = bytes[..12].to_vec();
        lying.extend([0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert_eq!(decode(&lying), None);
    }
}
