//! The journal record that holds readings of schemaless sensors. `FORMAT.md` gives every byte.

use std::sync::Arc;

use wholegrain_model::Value;
use wholegrain_model::schema::put_varint;

use crate::SensorId;
use crate::ranges::{get_varint, unzigzag, zigzag};
use crate::segment::READINGS_MAGIC;
use crate::sensors::reading::Reading;

/// Version of the payload's layout.
const READINGS_VERSION: u8 = 1;
/// The most bytes of one reading in a record: sensor and type, time, value.
pub(crate) const READING_BYTES_MAX: usize = 6 + 10 + 10;
/// The fewest bytes of a reading: a wrong count must not cause a large allocation.
const READING_BYTES_MIN: usize = 3;

/// Durable readings of schemaless sensors, in the order of arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveReadings {
    pub source: Arc<str>,
    pub readings: Vec<Reading>,
}

/// Appends the payload of a record. Each reading is encoded relative to the one before.
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
