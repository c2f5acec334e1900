//! `[[mqtt.device]]`: which topics are of devices, and which sensors their values are.

use std::collections::BTreeMap;

use wholegrain_model::name::check_relative;
use wholegrain_model::{Kind, Pattern, SensorPath};

use super::super::names::{escape, keep_level};
use super::super::resolution::SensorProperties;

/// The placeholder of the value's name within the message: one level or several.
const PATH: &str = "path";

/// The encoding of a device's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DevicePayload {
    Json,
    Sparkplug,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TopicLevel {
    Literal(String),
    /// `{name}`: any level, for the path.
    Named(String),
    /// `+`: any level, not used.
    Any,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum PathPart {
    Literal(String),
    Placeholder(String),
}

/// The named levels of a topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicNames<'a>(pub Vec<(&'a str, &'a str)>);

impl<'a> TopicNames<'a> {
    /// The level of this name.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, level)| *level)
    }
}

/// One table `[[mqtt.device]]`, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceTemplate {
    pub payload: DevicePayload,
    pub(super) topic: Vec<TopicLevel>,
    pub(super) path: Vec<Vec<PathPart>>,
    /// Patterns of values' names; all if empty.
    pub include: Vec<Pattern>,
    pub exclude: Vec<Pattern>,
    /// UCUM units by the whole name of a value or its last level.
    pub units: BTreeMap<String, String>,
    /// Patterns of values that only rise.
    pub counters: Vec<Pattern>,
    /// Texts that stand for numbers.
    pub states: BTreeMap<String, f64>,
    /// The name of the value with the message's time.
    pub time: Option<String>,
}

impl DeviceTemplate {
    /// Parses the topic and the path; the error says what is wrong.
    pub fn new(payload: DevicePayload, topic: &str, path: &str) -> Result<Self, String> {
        let topic = topic.split('/').map(topic_level).collect::<Result<Vec<_>, _>>()?;
        let rest = path.strip_prefix('/').ok_or_else(|| format!("path {path:?} must begin with `/`"))?;
        let levels = rest.split('/').map(path_level).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<&str> = match payload {
            DevicePayload::Sparkplug => vec!["group", "node", "device"],
            DevicePayload::Json => topic.iter().filter_map(TopicLevel::name).collect(),
        };
        let mut has_path = false;
        for level in &levels {
            for part in level {
                let PathPart::Placeholder(name) = part else { continue };
                if name == PATH && level.len() > 1 {
                    return Err(format!("path {path:?}: {{path}} must be alone in its level"));
                }
                if name != PATH && !names.contains(&name.as_str()) {
                    return Err(format!("path {path:?}: {{{name}}} is not a level of the topic"));
                }
                has_path |= name == PATH;
            }
        }
        if !has_path {
            return Err(format!("path {path:?} has no {{path}}: all values of a message would be one sensor"));
        }
        if let Some(name) = names.iter().find(|name| names.iter().filter(|other| other == name).count() > 1) {
            return Err(format!("{{{name}}} is in the topic twice"));
        }
        Ok(Self {
            payload,
            topic,
            path: levels,
            include: Vec::new(),
            exclude: Vec::new(),
            units: BTreeMap::new(),
            counters: Vec::new(),
            states: BTreeMap::new(),
            time: None,
        })
    }

    /// The named levels of a topic, if it is one of these devices.
    pub fn matches<'a>(&'a self, topic: &'a str) -> Option<TopicNames<'a>> {
        let mut names = TopicNames::default();
        let mut levels = topic.split('/');
        for wanted in &self.topic {
            let level = levels.next()?;
            match wanted {
                TopicLevel::Literal(text) if text != level => return None,
                TopicLevel::Named(name) if !level.is_empty() => names.0.push((name, level)),
                TopicLevel::Named(_) => return None,
                _ => {}
            }
        }
        levels.next().is_none().then_some(names)
    }

    /// Whether a value is a sensor; `name` has levels that are escaped already.
    pub fn takes(&self, name: &str) -> bool {
        (self.include.is_empty() || self.include.iter().any(|pattern| pattern.matches(name)))
            && !self.exclude.iter().any(|pattern| pattern.matches(name))
    }

    /// The path of a value's sensor.
    pub fn path(&self, names: &TopicNames<'_>, value: &str) -> Result<SensorPath, String> {
        let mut path = String::with_capacity(64);
        for level in &self.path {
            match level.first() {
                Some(PathPart::Placeholder(name)) if name == PATH => {
                    path.push('/');
                    path.push_str(value);
                    continue;
                }
                // A value of a Sparkplug node itself has no device.
                Some(PathPart::Placeholder(name)) if level.len() == 1 && names.get(name).is_none() => continue,
                _ => {}
            }
            path.push('/');
            let start = path.len();
            for part in level {
                match part {
                    PathPart::Literal(text) => path.push_str(text),
                    PathPart::Placeholder(name) => escape(names.get(name).unwrap_or_default(), &mut path),
                }
            }
            keep_level(start, &mut path);
        }
        SensorPath::new(path).map_err(|error| error.to_string())
    }

    /// Unit and kind of a value, as configured; `unit` is that of the message.
    pub fn properties(&self, name: &str, unit: Option<&str>) -> SensorProperties {
        let last = name.rsplit('/').next().unwrap_or(name);
        let configured = self.units.get(name).or_else(|| self.units.get(last)).map(String::as_str);
        let is_counter = self.counters.iter().any(|pattern| pattern.matches(name));
        SensorProperties {
            unit: configured.or(unit).unwrap_or_default().to_owned(),
            kind: if is_counter { Kind::Counter } else { Kind::Gauge },
            description: String::new(),
            is_declared: configured.is_some() || unit.is_some() || is_counter,
        }
        .bounded()
    }
}

impl TopicLevel {
    fn name(&self) -> Option<&str> {
        if let TopicLevel::Named(name) = self { Some(name) } else { None }
    }
}

/// Appends one level of a value's name to the levels before it.
pub fn push_level(level: &str, name: &mut String) {
    if !name.is_empty() {
        name.push('/');
    }
    let start = name.len();
    if level.is_empty() {
        // An empty level would end the path.
        name.push('%');
    }
    escape(level, name);
    keep_level(start, name);
}

fn topic_level(level: &str) -> Result<TopicLevel, String> {
    match level.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        Some(PATH) => Err("{path} is the name of a value, and not a level of the topic".to_owned()),
        Some(name) if !name.is_empty() && !name.contains(['{', '}']) => Ok(TopicLevel::Named(name.to_owned())),
        _ if level == "+" => Ok(TopicLevel::Any),
        _ if level.is_empty() || level.contains(['+', '#', '{', '}']) => {
            Err(format!("the level {level:?} of the topic is neither text nor {{name}} nor +"))
        }
        _ => Ok(TopicLevel::Literal(level.to_owned())),
    }
}

fn path_level(level: &str) -> Result<Vec<PathPart>, String> {
    let (mut parts, mut rest) = (Vec::new(), level);
    while !rest.is_empty() {
        let (literal, placeholder) = rest.split_once('{').map_or((rest, None), |(before, after)| (before, Some(after)));
        if !literal.is_empty() {
            check_relative(literal).map_err(|error| error.to_string())?;
            parts.push(PathPart::Literal(literal.to_owned()));
        }
        let Some(placeholder) = placeholder else { break };
        let (name, after) = placeholder.split_once('}').ok_or_else(|| format!("{level:?}: a `{{` is not closed"))?;
        parts.push(PathPart::Placeholder(name.to_owned()));
        rest = after;
    }
    if parts.is_empty() { Err("the path has an empty level".to_owned()) } else { Ok(parts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_paths() {
        let tasmota =
            DeviceTemplate::new(DevicePayload::Json, "tele/{device}/SENSOR", "/site/x-{device}/{path}").unwrap();
        let named =
            |topic: &str, value: &str| tasmota.path(&tasmota.matches(topic)?, value).ok().map(|path| path.to_string());
        assert_eq!(named("tele/plug1/SENSOR", "ENERGY/Power").as_deref(), Some("/site/x-plug1/ENERGY/Power"));
        assert_eq!(named("tele/a b/SENSOR", "x").as_deref(), Some("/site/x-a%20b/x"));
        for other in ["tele/plug1/STATE", "tele/SENSOR", "tele//SENSOR", "tele/plug1/SENSOR/x", "x/plug1/SENSOR"] {
            assert_eq!(named(other, "x"), None, "{other}");
        }
        let whole = DeviceTemplate::new(DevicePayload::Json, "z/{device}/+", "/{device}/{path}").unwrap();
        let dots = whole.matches("z/../x").unwrap();
        assert_eq!(whole.path(&dots, "v").unwrap().as_str(), "/%2E%2E/v");
        let sparkplug = DeviceTemplate::new(DevicePayload::Sparkplug, "x", "/{group}/{node}/{device}/{path}").unwrap();
        let names = TopicNames(vec![("group", "g"), ("node", "n")]);
        assert_eq!(sparkplug.path(&names, "v").unwrap().as_str(), "/g/n/v");
        for (topic, path, expected) in [
            ("a/#", "/{path}", "neither text nor"),
            ("a//b", "/{path}", "neither text nor"),
            ("a/x{b}", "/{path}", "neither text nor"),
            ("a/{path}", "/{path}", "is the name of a value"),
            ("a/{b}/{b}", "/{b}/{path}", "twice"),
            ("a/{b}", "{path}", "must begin with"),
            ("a/{b}", "/{b}", "would be one sensor"),
            ("a/{b}", "/{c}/{path}", "{c} is not a level of the topic"),
            ("a/{b}", "/x{path}", "must be alone"),
            ("a/{b}", "//{path}", "an empty level"),
            ("a/{b}", "/a b/{path}", "not allowed"),
            ("a/{b}", "/{b/{path}", "is not"),
        ] {
            let error = DeviceTemplate::new(DevicePayload::Json, topic, path).unwrap_err();
            assert!(error.contains(expected), "{topic} {path}: {error}");
        }
    }

    #[test]
    fn names_of_values_keep_their_levels() {
        let mut name = String::new();
        ["a/b", "..", "", "c d"].iter().for_each(|level| push_level(level, &mut name));
        assert_eq!(name, "a%2Fb/%2E%2E/%/c%20d");
        let mut template = DeviceTemplate::new(DevicePayload::Json, "t/{d}", "/{d}/{path}").unwrap();
        template.include = vec![Pattern::new("ENERGY/*").unwrap(), Pattern::new("**/Temperature").unwrap()];
        template.exclude = vec![Pattern::new("ENERGY/Today").unwrap()];
        template.units.insert("Temperature".to_owned(), "Cel".to_owned());
        template.units.insert("ENERGY/Power".to_owned(), "W".to_owned());
        template.counters = vec![Pattern::new("ENERGY/Total").unwrap()];
        for (name, expected) in
            [("ENERGY/Power", true), ("ENERGY/Today", false), ("AM2301/Temperature", true), ("x", false)]
        {
            assert_eq!(template.takes(name), expected, "{name}");
        }
        assert_eq!(template.properties("AM2301/Temperature", None).unit, "Cel");
        let total = template.properties("ENERGY/Total", Some("kW.h"));
        assert_eq!((total.kind, total.unit.as_str()), (Kind::Counter, "kW.h"));
        assert_eq!(template.properties("ENERGY/Power", Some("kW")).unit, "W", "the configuration is preferred");
    }
}
