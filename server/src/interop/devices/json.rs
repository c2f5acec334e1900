//! JSON of a device: its numbers, booleans and known texts become readings named by their keys.

use serde_json::Value as Json;
use wholegrain_model::{Timestamp, Value};
use wholegrain_store::GAP;

use super::super::resolution::EXACT_MAX;
use super::super::text::unit_ns;
use super::template::{DeviceTemplate, TopicNames, push_level};
use super::{DeviceMessage, DeviceReading};

/// The largest message, in bytes.
pub const JSON_BYTES_MAX: usize = 256 << 10;
/// The most levels of objects and arrays within each other.
pub const DEPTH_MAX: usize = 16;
/// The most values of one message.
pub const VALUES_MAX: usize = 1024;

/// The readings of a message; an error if it is not a JSON object within the bounds. A value without a time of its own has that of its arrival.
pub fn read(
    template: &DeviceTemplate,
    names: &TopicNames<'_>,
    payload: &[u8],
    arrived: i64,
) -> Result<DeviceMessage, String> {
    if payload.len() > JSON_BYTES_MAX {
        return Err(format!("the message has {} bytes; send at most {JSON_BYTES_MAX}", payload.len()));
    }
    let json: Json = serde_json::from_slice(payload).map_err(|error| format!("the message is not JSON: {error}"))?;
    if !json.is_object() {
        return Err("the message is not a JSON object".to_owned());
    }
    let time = template.time.as_deref().and_then(|key| time_of(json.get(key)?, arrived)).unwrap_or(arrived);
    let mut reader = JsonReader { template, names, time, count: 0, message: DeviceMessage::default() };
    reader.value(&json, &mut String::new(), 0)?;
    Ok(reader.message)
}

/// A time as a number in s, ms, us or ns, or as RFC 3339 with its zone.
fn time_of(json: &Json, arrived: i64) -> Option<i64> {
    match json {
        Json::Number(number) => {
            let number = number.as_i64()?;
            number.checked_mul(unit_ns(number))
        }
        // A text without a zone would be read as UTC, and be hours off.
        Json::String(text) if text.contains('T') && has_zone(text) => {
            Timestamp::parse(text, Timestamp(arrived)).ok().map(|time| time.0)
        }
        _ => None,
    }
}

fn has_zone(text: &str) -> bool {
    let clock = text.split_once('T').map_or("", |(_, clock)| clock);
    clock.contains(['Z', '+', '-'])
}

struct JsonReader<'t> {
    template: &'t DeviceTemplate,
    names: &'t TopicNames<'t>,
    time: i64,
    count: usize,
    message: DeviceMessage,
}

impl JsonReader<'_> {
    fn value(&mut self, json: &Json, name: &mut String, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("the message has over {DEPTH_MAX} levels"));
        }
        let length = name.len();
        match json {
            Json::Object(members) => {
                for (key, member) in members {
                    push_level(key, name);
                    self.value(member, name, depth + 1)?;
                    name.truncate(length);
                }
            }
            Json::Array(elements) => {
                for (at, element) in elements.iter().enumerate() {
                    push_level(&at.to_string(), name);
                    self.value(element, name, depth + 1)?;
                    name.truncate(length);
                }
            }
            plain => self.plain(plain, name)?,
        }
        Ok(())
    }

    fn plain(&mut self, json: &Json, name: &str) -> Result<(), String> {
        let value = match json {
            // A float wherever it has all digits: in JSON 3 and 3.0 are the same.
            Json::Number(number) => match number.as_i64() {
                Some(int) if int.unsigned_abs() > EXACT_MAX => Some(Value::Int(int)),
                _ => number.as_f64().map(Value::Float),
            },
            Json::Bool(is) => Some(Value::Float(f64::from(u8::from(*is)))),
            Json::String(text) => self.template.states.get(text).copied().map(Value::Float),
            Json::Null => Some(GAP),
            Json::Array(_) | Json::Object(_) => None,
        };
        let Some(value) = value else { return Ok(()) };
        if !self.template.takes(name) {
            return Ok(());
        }
        self.count += 1;
        if self.count > VALUES_MAX {
            return Err(format!("the message has over {VALUES_MAX} values; include fewer of them"));
        }
        match self.template.path(self.names, name) {
            Ok(path) => {
                let properties = self.template.properties(name, None);
                self.message.readings.push(DeviceReading { path, properties, time: self.time, value });
            }
            Err(why) => self.message.leave_out(|| why),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::template::DevicePayload;
    use super::*;

    const NOON: i64 = 1_769_860_800_000_000_000;

    fn template() -> DeviceTemplate {
        let mut template =
            DeviceTemplate::new(DevicePayload::Json, "tele/{device}/SENSOR", "/{device}/{path}").unwrap();
        template.states = [("ON".to_owned(), 1.0), ("OFF".to_owned(), 0.0)].into();
        template
    }

    fn readings(template: &DeviceTemplate, payload: &str) -> Result<Vec<String>, String> {
        let names = TopicNames(vec![("device", "p1")]);
        let message = read(template, &names, payload.as_bytes(), NOON)?;
        let one =
            |one: &DeviceReading| format!("{}={} @{}", one.path, one.value.as_f64(), (one.time - NOON) / 1_000_000_000);
        Ok(message.readings.iter().map(one).collect())
    }

    #[test]
    fn a_message_of_tasmota() {
        let payload = r#"{"Time":"2026-01-31T13:00:00","ENERGY":{"Total":3.185,"Power":12,"Current":[0.5,null]},
            "DS18B20":{"Id":"0114","Temperature":20.6},"POWER":"ON","Switch":false,"TempUnit":"C"}"#;
        let expected = [
            "/p1/DS18B20/Temperature=20.6 @0",
            "/p1/ENERGY/Current/0=0.5 @0",
            "/p1/ENERGY/Current/1=NaN @0",
            "/p1/ENERGY/Power=12 @0",
            "/p1/ENERGY/Total=3.185 @0",
            "/p1/POWER=1 @0",
            "/p1/Switch=0 @0",
        ];
        assert_eq!(readings(&template(), payload).unwrap(), expected);
    }

    #[test]
    fn integers_keep_their_digits() {
        let names = TopicNames(vec![("device", "p1")]);
        let payload =
            br#"{"a":9007199254740992,"b":9007199254740993,"c":-9223372036854775808,"d":18446744073709551615,"e":3}"#;
        let message = read(&template(), &names, payload, NOON).unwrap();
        let values: Vec<Value> = message.readings.iter().map(|reading| reading.value).collect();
        let expected = [
            Value::Float(9_007_199_254_740_992.0),
            Value::Int(9_007_199_254_740_993),
            Value::Int(i64::MIN),
            Value::Float(18_446_744_073_709_551_615.0),
            Value::Float(3.0),
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn times_of_messages() {
        let timed = DeviceTemplate { time: Some("last_seen".to_owned()), ..template() };
        for (time, expected) in [
            ("\"2026-01-31T13:00:05+01:00\"", 5),
            ("\"2026-01-31T12:00:05Z\"", 5),
            ("1769860805", 5),
            ("1769860805000", 5),
            ("\"2026-01-31T12:00:05\"", 0),
            ("\"N/A\"", 0),
            ("[]", 0),
            ("1e300", 0),
        ] {
            let found = readings(&timed, &format!("{{\"x\":true,\"last_seen\":{time}}}")).unwrap();
            assert!(found.contains(&format!("/p1/x=1 @{expected}")), "{time}: {found:?}");
        }
    }

    #[test]
    fn bounds() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        let deepest = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let many = format!("{{\"a\":[{}1]}}", "1,".repeat(VALUES_MAX));
        for (payload, expected) in [
            ("", "not JSON"),
            ("{\"a\":1", "not JSON"),
            ("[1]", "not a JSON object"),
            ("5", "not a JSON object"),
            ("\u{0}", "not JSON"),
            (&deep, "over 16 levels"),
            (&deepest, "not JSON"),
            (&many, "over 1024 values"),
            (&" ".repeat(JSON_BYTES_MAX + 1), "send at most 262144"),
        ] {
            let error = readings(&template(), payload).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let names = TopicNames(vec![("device", "p1")]);
        let long = format!("{{\"{}\":1,\"b\":2}}", "k".repeat(200));
        let message = read(&template(), &names, long.as_bytes(), NOON).unwrap();
        assert_eq!((message.readings.len(), message.left_out), (1, 1));
        assert!(message.fault.unwrap().contains("at most 128 allowed"));
    }
}
