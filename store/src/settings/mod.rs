//! Properties of sensors that users set while the server runs; they replace those of the schemas. README.md describes them.

pub(crate) mod change;
mod matching;

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, UNIT_BYTES_MAX};
use wholegrain_model::{Interval, Kind, Pattern, Unit};

use crate::registry::{Registry, RegistryEntry};
use crate::sensors::info::SensorInfo;
use matching::PatternTree;

/// The kind of the registry's entries.
pub(crate) const KIND: &str = "property";
/// The most properties that can be set, over all patterns.
pub const SETTINGS_MAX: usize = 100_000;
/// How many properties of a sensor can be set.
const PROPERTIES: usize = 5;
/// The longest interval that can be set: a year.
const INTERVAL_MAX: Interval = Interval::from_s(366 * 86_400);
/// Stands for a property without a setting.
const NONE: u32 = u32::MAX;

/// A property that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Property {
    /// The unit of the scaled values.
    Unit,
    /// The factor from raw to scaled values.
    Scale,
    Kind,
    Description,
    /// The interval of its readings, for the rule of holes.
    Interval,
}

impl Property {
    /// All of them with their names.
    pub const ALL: [(&'static str, Property); PROPERTIES] = [
        ("unit", Property::Unit),
        ("scale", Property::Scale),
        ("kind", Property::Kind),
        ("description", Property::Description),
        ("interval", Property::Interval),
    ];

    /// The name of the property in requests and files.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, property)| *property == self).map_or("", |(name, _)| name)
    }
}

/// Properties for the sensors that match a pattern. `None` leaves a property unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SensorSetting {
    /// Matches sensors that are registered later, too.
    pub pattern: Pattern,
    /// The unit of their scaled values, a UCUM code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The factor from raw to scaled values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The interval of their readings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

impl SensorSetting {
    /// Checks the values; the error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if let Some(unit) = &self.unit {
            if unit.len() > UNIT_BYTES_MAX {
                return Err(format!("the unit is longer than {UNIT_BYTES_MAX} bytes"));
            }
            Unit::parse(unit).map_err(|error| error.to_string())?;
        }
        if let Some(scale) = self.scale.filter(|scale| !scale.is_finite() || *scale == 0.0) {
            return Err(format!("the scale is {scale}; it must be finite and not 0"));
        }
        if self.description.as_ref().is_some_and(|text| text.len() > DESCRIPTION_BYTES_MAX) {
            return Err(format!("the description is longer than {DESCRIPTION_BYTES_MAX} bytes"));
        }
        if self.description.as_ref().is_some_and(|text| text.chars().any(char::is_control)) {
            return Err("the description has a control character".to_owned());
        }
        if let Some(interval) = self.interval.filter(|interval| interval.ns() == 0 || *interval > INTERVAL_MAX) {
            return Err(format!(
                "the interval is {interval}; it must be over 0 and at most {INTERVAL_MAX}, such as 1h"
            ));
        }
        Ok(())
    }

    fn values(&self) -> impl Iterator<Item = (Property, Value)> {
        [
            self.unit.as_ref().map(|unit| (Property::Unit, json!(unit))),
            self.scale.map(|scale| (Property::Scale, json!(scale))),
            self.kind.map(|kind| (Property::Kind, json!(kind))),
            self.description.as_ref().map(|text| (Property::Description, json!(text))),
            self.interval.map(|interval| (Property::Interval, json!(interval))),
        ]
        .into_iter()
        .flatten()
    }
}

/// A setting or, in a history, its removal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PropertySetting {
    pub pattern: String,
    pub property: Property,
    /// `None` for a removal.
    pub value: Option<Value>,
    pub who: String,
    /// When, ns since the Unix epoch.
    pub at: i64,
    /// The number of the change.
    pub number: u64,
}

impl PropertySetting {
    fn of(entry: RegistryEntry) -> Option<Self> {
        let (pattern, name) = entry.key.split_once(' ')?;
        let (_, property) = Property::ALL.into_iter().find(|(known, _)| *known == name)?;
        let value = match entry.value {
            None => None,
            Some(mut value) => Some(value.get_mut("is")?.take()),
        };
        let RegistryEntry { number, at, who, .. } = entry;
        Some(Self { pattern: pattern.to_owned(), property, value, who, at, number })
    }
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SetReport {
    /// Properties that were set.
    pub set: u64,
    /// Properties that had the value already.
    pub same: u64,
}

/// A sensor with the origins of its properties.
#[derive(Debug, Clone, PartialEq)]
pub struct PropertyOrigins {
    pub info: SensorInfo,
    /// The sensor as its sender defines it.
    pub sent: SensorInfo,
    /// The settings that apply, in the order of [`Property::ALL`]; `None` if the sender's value applies.
    pub set: [Option<Arc<PropertySetting>>; PROPERTIES],
}

/// The settings in force, prepared for look-ups.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// The later ones count.
    all: Vec<(Arc<PropertySetting>, SettingValue)>,
    /// Those whose pattern is a path.
    paths: HashMap<String, Vec<u32>>,
    tree: PatternTree,
}

#[derive(Debug)]
enum SettingValue {
    Unit(String),
    Scale(f64),
    Kind(Kind),
    Description(String),
    Interval(Interval),
}

/// For each property the number of the setting that applies, in [`Settings::all`].
pub(crate) type AppliedSettings = [u32; PROPERTIES];

impl Settings {
    /// Reads the settings in the registry. Invalid entries are ignored and logged.
    pub fn load(registry: &Registry) -> Self {
        let mut entries = registry.all(KIND);
        // The settings of one change count in their order.
        entries.sort_by_key(|entry| {
            let order = entry.value.as_ref().and_then(|value| value["order"].as_u64());
            (entry.number, order.unwrap_or(0))
        });
        let mut settings = Self::default();
        for entry in entries {
            let key = entry.key.clone();
            if PropertySetting::of(entry).and_then(|setting| settings.add(setting)).is_none() {
                tracing::warn!("store: the property set as {key:?} cannot be understood and is left out");
            }
        }
        settings
    }

    fn add(&mut self, setting: PropertySetting) -> Option<()> {
        let value = setting.value.as_ref()?;
        let set = match setting.property {
            Property::Unit => SettingValue::Unit(value.as_str()?.to_owned()),
            Property::Scale => SettingValue::Scale(value.as_f64().filter(|scale| scale.is_finite() && *scale != 0.0)?),
            Property::Kind => SettingValue::Kind(serde_json::from_value(value.clone()).ok()?),
            Property::Description => SettingValue::Description(value.as_str()?.to_owned()),
            Property::Interval => SettingValue::Interval(serde_json::from_value(value.clone()).ok()?),
        };
        let pattern = Pattern::new(setting.pattern.as_str()).ok()?;
        let number = u32::try_from(self.all.len()).ok()?;
        if is_path(&pattern) {
            self.paths.entry(setting.pattern.clone()).or_default().push(number);
        } else {
            self.tree.insert(pattern.as_str(), number);
        }
        self.all.push((Arc::new(setting), set));
        Some(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The settings that apply to a path; `None` if there are none.
    pub fn held(&self, path: &str) -> Option<AppliedSettings> {
        let mut held: [Option<u32>; PROPERTIES] = [None; PROPERTIES];
        let mut take = |number: u32| {
            let place = &mut held[self.all[number as usize].0.property as usize];
            *place = (*place).max(Some(number));
        };
        self.paths.get(path).into_iter().flatten().for_each(|number| take(*number));
        self.tree.matches(path, take);
        held.iter().any(Option::is_some).then(|| held.map(|number| number.unwrap_or(NONE)))
    }

    /// Replaces the sender's values by the settings.
    pub fn apply(&self, held: &AppliedSettings, info: &mut SensorInfo) {
        for (_, set) in held.iter().filter_map(|number| self.all.get(*number as usize)) {
            match set {
                SettingValue::Unit(unit) => info.unit.clone_from(unit),
                SettingValue::Scale(scale) => info.scale = *scale,
                SettingValue::Kind(kind) => {
                    info.kind = *kind;
                    // Only a counter wraps.
                    info.wraps_at = info.wraps_at.filter(|_| *kind == Kind::Counter);
                }
                SettingValue::Description(text) => info.description.clone_from(text),
                SettingValue::Interval(interval) => info.interval_ns = interval.ns(),
            }
        }
    }

    fn settings(&self, held: &AppliedSettings) -> [Option<Arc<PropertySetting>>; PROPERTIES] {
        held.map(|number| self.all.get(number as usize).map(|(setting, _)| setting.clone()))
    }
}

/// Whether the pattern is a path.
pub(crate) fn is_path(pattern: &Pattern) -> bool {
    pattern.is_literal() && pattern.as_str().starts_with('/')
}

pub(crate) fn key(pattern: &Pattern, property: Property) -> String {
    format!("{pattern} {}", property.name())
}

/// The sensor's value of a property.
pub(crate) fn value_of(info: &SensorInfo, property: Property) -> Value {
    match property {
        Property::Unit => json!(info.unit),
        Property::Scale => json!(info.scale),
        Property::Kind => json!(info.kind),
        Property::Description => json!(info.description),
        Property::Interval if info.interval_ns == 0 => json!(""),
        Property::Interval => json!(Interval::from_ns(info.interval_ns)),
    }
}

impl PropertyOrigins {
    /// The value in force.
    pub fn value(&self, property: Property) -> Value {
        value_of(&self.info, property)
    }

    /// The value that the sender gave.
    pub fn sent(&self, property: Property) -> Value {
        value_of(&self.sent, property)
    }
}
