//! `[[mqtt.device]]` as it is in the file.

use std::collections::BTreeMap;

use serde::Deserialize;
use wholegrain_model::Pattern;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::schema::UNIT_BYTES_MAX;

use super::sparkplug::NAMESPACE;
use super::template::{DevicePayload, DeviceTemplate};

/// The most tables `[[mqtt.device]]` of a file.
const DEVICES_MAX: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDevice {
    topic: Option<String>,
    payload: DevicePayload,
    path: String,
    #[serde(default)]
    include: Vec<String>,
    #[serde(default)]
    exclude: Vec<String>,
    #[serde(default)]
    units: BTreeMap<String, String>,
    #[serde(default)]
    counters: Vec<String>,
    states: Option<BTreeMap<String, f64>>,
    time: Option<String>,
}

/// Checks all `[[mqtt.device]]`; `mqtt` locates errors in the file.
pub(crate) fn check(devices: Vec<RawDevice>, mqtt: &Section) -> Result<Vec<DeviceTemplate>, ConfigError> {
    if devices.len() > DEVICES_MAX {
        return Err(mqtt.error("device", format!("appears {} times; at most {DEVICES_MAX} are allowed", devices.len())));
    }
    devices.into_iter().map(|raw| device(raw).map_err(|why| mqtt.error("device", why))).collect()
}

fn device(raw: RawDevice) -> Result<DeviceTemplate, String> {
    let topic = match (raw.payload, raw.topic) {
        (DevicePayload::Sparkplug, Some(_)) => {
            return Err(format!("topic is set; all of Sparkplug is below {NAMESPACE}, omit it"));
        }
        (DevicePayload::Sparkplug, None) => NAMESPACE.trim_end_matches('/').to_owned(),
        (DevicePayload::Json, Some(topic))
            if !topic.starts_with(['/', '$', '{', '+']) && !topic.starts_with("wholegrain/") =>
        {
            topic
        }
        (DevicePayload::Json, Some(topic)) => {
            return Err(format!(
                "topic {topic:?} must begin with a name of its own, such as \"tele/{{device}}/SENSOR\""
            ));
        }
        (DevicePayload::Json, None) => return Err("topic is missing, such as \"tele/{device}/SENSOR\"".to_owned()),
    };
    let patterns = |texts: Vec<String>| -> Result<Vec<Pattern>, String> {
        texts.into_iter().map(|text| Pattern::new(text).map_err(|error| error.to_string())).collect()
    };
    for (name, unit) in &raw.units {
        if unit.len() > UNIT_BYTES_MAX || unit.contains(char::is_control) {
            return Err(format!("the unit of {name:?} has over {UNIT_BYTES_MAX} bytes or control characters"));
        }
    }
    let states = raw.states.unwrap_or_else(|| BTreeMap::from([("ON".to_owned(), 1.0), ("OFF".to_owned(), 0.0)]));
    if let Some((text, _)) = states.iter().find(|(_, value)| !value.is_finite()) {
        return Err(format!("the state {text:?} is not a number"));
    }
    Ok(DeviceTemplate {
        include: patterns(raw.include)?,
        exclude: patterns(raw.exclude)?,
        units: raw.units,
        counters: patterns(raw.counters)?,
        states,
        time: raw.time,
        ..DeviceTemplate::new(raw.payload, &topic, &raw.path)?
    })
}

#[cfg(test)]
mod tests {
    use crate::ServerConfig;

    #[test]
    fn mistakes_are_named() {
        let load = |device: &str| {
            let text =
                format!("[mqtt]\ntls_listen = \"off\"\n[[mqtt.device]]\n{device}\n[http]\nlisten = \"127.0.0.1:0\"\n");
            ServerConfig::from_text("server.toml", &text, std::path::Path::new("/etc"))
        };
        let json = "payload = \"json\"\npath = \"/{d}/{path}\"\n";
        let config = load(&format!("{json}topic = \"tele/{{d}}/SENSOR\"\nunits = {{ x = \"W\" }}")).unwrap();
        assert_eq!(config.interop.devices[0].states["ON"], 1.0);
        for (device, expected) in [
            (json.to_owned(), "topic is missing"),
            (format!("{json}topic = \"/{{d}}\""), "must begin with a name of its own"),
            (format!("{json}topic = \"wholegrain/{{d}}\""), "must begin with a name of its own"),
            (format!("{json}topic = \"{{d}}/x\""), "must begin with a name of its own"),
            (format!("{json}topic = \"t/{{d}}\"\ninclude = [\"a//b\"]"), "has an empty level"),
            (format!("{json}topic = \"t/{{d}}\"\nunits = {{ a = \"{}\" }}", "u".repeat(65)), "the unit of \"a\""),
            (format!("{json}topic = \"t/{{d}}\"\nstates = {{ a = inf }}"), "the state \"a\" is not a number"),
            (format!("{json}topic = \"t/{{e}}\""), "{d} is not a level of the topic"),
            ("payload = \"xml\"\npath = \"/{path}\"".to_owned(), "unknown value `xml`"),
            ("payload = \"sparkplug\"\npath = \"/{path}\"\ntopic = \"x\"".to_owned(), "omit it"),
        ] {
            let error = load(&device).unwrap_err().to_string();
            assert!(error.contains(expected) && error.starts_with("server.toml:"), "{expected}: {error}");
        }
    }
}
