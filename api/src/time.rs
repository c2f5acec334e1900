//! A time in JSON.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wholegrain_model::Timestamp;

/// A time, in ns since the Unix epoch; RFC 3339 in UTC in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtcTime(pub i64);

impl From<Timestamp> for UtcTime {
    fn from(time: Timestamp) -> Self {
        Self(time.0)
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        Timestamp(self.0).fmt(out)
    }
}

impl Serialize for UtcTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UtcTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Relative times count from the epoch here; the server sends none.
        Timestamp::parse(&text, Timestamp(0)).map(Self::from).map_err(D::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for UtcTime {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "UtcTime".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_rfc_3339() {
        let time = UtcTime(1_500_000_000_123_000_000);
        let text = serde_json::to_string(&time).unwrap();
        assert_eq!(text, "\"2017-07-14T02:40:00.123Z\"");
        assert_eq!(serde_json::from_str::<UtcTime>(&text).unwrap(), time);
        assert!(serde_json::from_str::<UtcTime>("\"soon\"").is_err());
    }
}
