//! Messages of DCDB pushers: arrays of records, and names of topics. No I/O.
//!
//! - The topic of a reading is the sensor's path. The payload is an array of records of 16 bytes: value and time (ns since the Unix epoch), both
//!   64-bit little-endian integers. A payload of 8 bytes is a value alone; its time is the time of arrival.
//! - `/DCDB_MAP/<topic>` announces the name in its payload for the sensor of `<topic>`. `<topic>` begins with a slash, so that two slashes follow
//!   each other; one is accepted as well.
//! - `/DCDB_MAP/METADATA/<topic>` announces the name in a JSON object (`publicName`), with `unit`, `scale` and `monotonic`.
//!
//! The layout is defined by DCDB's collect agent (`collectagent.cpp`) and pusher (`MQTTPusher.cpp`).

use wholegrain_model::schema::UNIT_BYTES_MAX;
use wholegrain_model::{Kind, NameError, SensorPath};

pub const RECORD_BYTES: usize = 16;
/// The size of a payload that is a value alone.
pub const VALUE_BYTES: usize = 8;
/// The most records of one message; a DCDB pusher sends at most 1,024.
pub const RECORDS_MAX: usize = 65_536;
/// The prefix of topics that announce names.
pub const MAP: &str = "/DCDB_MAP/";
/// The largest announcement, in bytes.
pub const ANNOUNCEMENT_BYTES_MAX: usize = 16 << 10;

/// The interpretation of a payload as DCDB data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DcdbPayload<'a> {
    /// A value without a time.
    Value(i64),
    /// Whole records, at least one.
    Records(&'a [[u8; RECORD_BYTES]]),
    /// The number of records exceeds [`RECORDS_MAX`].
    TooMany(usize),
    Other,
}

/// Interprets a payload. Printable text is not interpreted as records: other programs send texts of 16 characters, and as a record the text would be
/// a value above 2e18 or a time after 2043.
pub fn payload(payload: &[u8]) -> DcdbPayload<'_> {
    if let Ok(value) = <[u8; VALUE_BYTES]>::try_from(payload) {
        return if is_text(payload) { DcdbPayload::Other } else { DcdbPayload::Value(i64::from_le_bytes(value)) };
    }
    let (records, rest) = payload.as_chunks::<RECORD_BYTES>();
    if records.is_empty() || !rest.is_empty() || is_text(payload) {
        return DcdbPayload::Other;
    }
    if records.len() > RECORDS_MAX { DcdbPayload::TooMany(records.len()) } else { DcdbPayload::Records(records) }
}

fn is_text(payload: &[u8]) -> bool {
    payload.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r'))
}

/// Returns value and time of a record.
pub fn record(record: &[u8; RECORD_BYTES]) -> (i64, i64) {
    let half = |at: usize| {
        let mut bytes = [0; VALUE_BYTES];
        bytes.copy_from_slice(&record[at..at + VALUE_BYTES]);
        i64::from_le_bytes(bytes)
    };
    (half(0), half(VALUE_BYTES))
}

/// The announced properties of a topic's sensor.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SensorAnnouncement {
    /// The topic of its readings.
    pub topic: SensorPath,
    /// The sensor's path in the store.
    pub name: SensorPath,
    /// Empty if none was announced.
    #[serde(default)]
    pub unit: String,
    /// Value times scale is in the unit.
    #[serde(default = "one")]
    pub scale: f64,
    #[serde(default = "gauge")]
    pub kind: Kind,
}

fn one() -> f64 {
    1.0
}

fn gauge() -> Kind {
    Kind::Gauge
}

/// Why an announcement was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncementError {
    /// Empty or too long.
    #[error("an announcement of {0} bytes; send 1 to {ANNOUNCEMENT_BYTES_MAX} bytes")]
    Length(usize),
    /// The payload is not text.
    #[error("the name is not UTF-8")]
    NotText,
    /// The payload is not valid metadata.
    #[error("the metadata is not a JSON object with a `publicName`: {0}")]
    Json(String),
    /// The topic or the name is not a valid path.
    #[error("the {0} cannot be a sensor's path: {1}")]
    Path(&'static str, NameError),
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct DcdbMetadata {
    public_name: Option<String>,
    unit: Option<String>,
    scale: Option<serde_json::Value>,
    monotonic: Option<serde_json::Value>,
}

/// Parses an announcement; `None` if the topic is not below [`MAP`].
pub fn announcement(topic: &str, payload: &[u8]) -> Option<Result<SensorAnnouncement, AnnouncementError>> {
    let rest = topic.strip_prefix(MAP)?;
    Some(match rest.strip_prefix("METADATA/") {
        Some(rest) => with_metadata(rest, payload),
        None => with_name(rest, payload),
    })
}

fn with_name(topic: &str, payload: &[u8]) -> Result<SensorAnnouncement, AnnouncementError> {
    check_length(payload)?;
    let name = std::str::from_utf8(payload).map_err(|_| AnnouncementError::NotText)?;
    // C programs may send the terminating zero.
    let name = path("name", name.trim_end_matches('\0').trim())?;
    Ok(SensorAnnouncement { topic: path("topic", topic)?, name, unit: String::new(), scale: 1.0, kind: Kind::Gauge })
}

fn with_metadata(topic: &str, payload: &[u8]) -> Result<SensorAnnouncement, AnnouncementError> {
    check_length(payload)?;
    let json = |error: serde_json::Error| AnnouncementError::Json(error.to_string());
    let metadata: DcdbMetadata = serde_json::from_slice(payload).map_err(json)?;
    let topic = path("topic", topic)?;
    let name = match metadata.public_name.as_deref().map(str::trim) {
        Some(name) if !name.is_empty() => path("name", name)?,
        _ => topic.clone(),
    };
    // DCDB's JSON writer puts numbers and booleans in quotes.
    let plain = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let scale = metadata.scale.as_ref().and_then(|value| plain(value).parse::<f64>().ok());
    let scale = scale.filter(|scale| scale.is_finite() && *scale != 0.0).unwrap_or(1.0);
    let monotonic = metadata.monotonic.as_ref().is_some_and(|value| matches!(plain(value).as_str(), "true" | "1"));
    let unit = metadata.unit.filter(|unit| unit.len() <= UNIT_BYTES_MAX && !unit.contains(char::is_control));
    let kind = if monotonic { Kind::Counter } else { Kind::Gauge };
    Ok(SensorAnnouncement { topic, name, unit: unit.unwrap_or_default(), scale, kind })
}

fn check_length(payload: &[u8]) -> Result<(), AnnouncementError> {
    if (1..=ANNOUNCEMENT_BYTES_MAX).contains(&payload.len()) {
        Ok(())
    } else {
        Err(AnnouncementError::Length(payload.len()))
    }
}

/// Parses a path whose first slash may be missing.
fn path(what: &'static str, text: &str) -> Result<SensorPath, AnnouncementError> {
    let path = if text.starts_with('/') { SensorPath::new(text) } else { SensorPath::new(format!("/{text}")) };
    path.map_err(|error| AnnouncementError::Path(what, error))
}

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::*;

    #[test]
    fn payloads() {
        assert_eq!(payload(&(-5_i64).to_le_bytes()), DcdbPayload::Value(-5));
        let mut two = Vec::new();
        for number in [7_i64, 1_769_860_800_000_000_000, -8, 1_769_860_801_000_000_000] {
            two.extend_from_slice(&number.to_le_bytes());
        }
        let DcdbPayload::Records(records) = payload(&two) else { panic!("{:?}", payload(&two)) };
        let pairs: Vec<_> = records.iter().map(record).collect();
        assert_eq!(pairs, [(7, 1_769_860_800_000_000_000), (-8, 1_769_860_801_000_000_000)]);
        for other in [&b""[..], b"1234567", b"overlapp", b"a text of 16 ch.", &two[..15], &two[..24], &[0; 33]] {
            assert_eq!(payload(other), DcdbPayload::Other, "{other:?}");
        }
        assert_eq!(payload(&vec![0; (RECORDS_MAX + 1) * RECORD_BYTES]), DcdbPayload::TooMany(RECORDS_MAX + 1));
        assert!(matches!(payload(&vec![0; RECORDS_MAX * RECORD_BYTES]), DcdbPayload::Records(_)));
    }

    #[test]
    fn names() {
        let plain = |topic: &str, name: &[u8]| {
            announcement(topic, name).unwrap().map(|a| (a.topic.as_str().to_owned(), a.name.as_str().to_owned()))
        };
        let both = |topic: &str, name: &str| Ok((topic.to_owned(), name.to_owned()));
        assert_eq!(plain("/DCDB_MAP//a/b", b"/site/n1/temp"), both("/a/b", "/site/n1/temp"));
        assert_eq!(plain("/DCDB_MAP/a/b", b"n1.temp\0"), both("/a/b", "/n1.temp"));
        assert_eq!(announcement("/a/b", b"x"), None);
        assert_eq!(announcement("/DCDB_MAP", b"x"), None);
        for (topic, name, part) in [
            ("/DCDB_MAP//a", &b""[..], "0 bytes"),
            ("/DCDB_MAP//a", b"a b", "the name cannot be"),
            ("/DCDB_MAP//a", b"/../b", "the name cannot be"),
            ("/DCDB_MAP/", b"/b", "the topic cannot be"),
            ("/DCDB_MAP//a//b", b"/b", "the topic cannot be"),
            ("/DCDB_MAP//a", b"\xff", "not UTF-8"),
            ("/DCDB_MAP/METADATA//a", b"x", "not a JSON object"),
            ("/DCDB_MAP/METADATA//a", b"[]", "not a JSON object"),
        ] {
            let error = announcement(topic, name).unwrap().unwrap_err().to_string();
            assert!(error.contains(part), "{topic} {name:?}: {error}");
        }
        assert!(announcement("/DCDB_MAP//a", &vec![b'a'; ANNOUNCEMENT_BYTES_MAX + 1]).unwrap().is_err());
    }

    #[test]
    fn metadata() {
        let text =
            br#"{"publicName":"/n1/energy","unit":"J","scale":"0.001","monotonic":"true","pattern":"/a","ttl":5}"#;
        let announced = announcement("/DCDB_MAP/METADATA//a", text).unwrap().unwrap();
        assert_eq!((announced.name.as_str(), announced.unit.as_str()), ("/n1/energy", "J"));
        assert_eq!((announced.scale, announced.kind), (0.001, Kind::Counter));
        let announced = announcement("/DCDB_MAP/METADATA//a", br#"{"scale":0,"monotonic":false}"#).unwrap().unwrap();
        assert_eq!((announced.name.as_str(), announced.scale, announced.kind), ("/a", 1.0, Kind::Gauge));
    }

    #[test]
    fn any_bytes_are_parsed_without_panic() {
        let mut random = Random::seeded_or(0x0dcd_b5ee);
        for round in 0..50_000_usize {
            let bytes: Vec<u8> =
                (0..round % 70).map(|_| random.below(if round % 3 == 0 { 128 } else { 256 }) as u8).collect();
            if let DcdbPayload::Records(records) = payload(&bytes) {
                assert_eq!(records.len() * RECORD_BYTES, bytes.len(), "round {round}");
            }
            for topic in ["/DCDB_MAP//a/b", "/DCDB_MAP/METADATA//a"] {
                // An accepted name is a valid path.
                if let Some(Ok(announced)) = announcement(topic, &bytes) {
                    assert!(SensorPath::new(announced.name.as_str()).is_ok(), "round {round}");
                }
            }
        }
    }
}
