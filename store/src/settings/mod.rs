//! Properties of sensors that people set while the server runs, in place of those of the sensors' schemas. README.md says what they are.

mod matching;

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, UNIT_BYTES_MAX};
use wholegrain_model::{Interval, Kind, Pattern, Unit};

use crate::registry::{Registry, RegistryEntry};
use crate::sensors::info::SensorInfo;
use crate::store::Shared;
use crate::{Store, StoreError};
use matching::PatternTree;

/// The kind of the registry's entries.
const KIND: &str = "property";
/// The most properties that are set at a time, over all patterns.
pub const SETTINGS_MAX: usize = 100_000;
/// How many properties of a sensor can be set.
const PROPERTIES: usize = 5;
/// The longest interval that can be set: a year.
const INTERVAL_MAX: Interval = Interval::from_s(366 * 86_400);
/// Stands for a property without a setting.
const NONE: u32 = u32::MAX;

/// What can be set of a sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Property {
    /// The unit of the scaled values.
    Unit,
    /// What raw values are multiplied with.
    Scale,
    Kind,
    /// What the sensor is.
    Description,
    /// How far apart its readings are, for the rule of holes.
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

/// What shall hold for the sensors that a pattern chooses. What is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SensorSetting {
    /// Which sensors, also those that come later.
    pub pattern: Pattern,
    /// The unit of their scaled values, a UCUM code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// What their raw values are multiplied with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How far apart their readings are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

impl SensorSetting {
    /// Whether it can be set; the error says what is wrong.
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

/// A property that is or was set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PropertySetting {
    pub pattern: String,
    pub property: Property,
    /// To what; `None` in a history where it was taken away.
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

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SetReport {
    /// Properties that were set.
    pub set: u64,
    /// Properties that had the value already and were left alone.
    pub same: u64,
}

/// A sensor with where its properties come from.
#[derive(Debug, Clone, PartialEq)]
pub struct PropertyOrigins {
    pub info: SensorInfo,
    /// What whoever sends the sensor says of it.
    pub sent: SensorInfo,
    /// The settings that hold, in the order of [`Property::ALL`]; `None` where what is sent holds.
    pub set: [Option<Arc<PropertySetting>>; PROPERTIES],
}

/// The settings in force, made ready.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// The later ones win.
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

/// For each property the setting that holds, by its number in [`Settings::all`].
pub(crate) type AppliedSettings = [u32; PROPERTIES];

impl Settings {
    /// Reads the settings in the registry. Invalid entries are ignored and logged.
    pub fn load(registry: &Registry) -> Self {
        let mut entries = registry.all(KIND);
        // One change may have several: they count in the order in which they were given.
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

    /// Which settings hold for a path; `None` when none does.
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

    /// Puts what is set in the place of what was sent.
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

/// Whether it is chosen by its text alone.
fn is_path(pattern: &Pattern) -> bool {
    pattern.is_literal() && pattern.as_str().starts_with('/')
}

fn key(pattern: &Pattern, property: Property) -> String {
    format!("{pattern} {}", property.name())
}

/// What the sensor has of a property.
fn value_of(info: &SensorInfo, property: Property) -> Value {
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
    /// What holds of a property.
    pub fn value(&self, property: Property) -> Value {
        value_of(&self.info, property)
    }

    /// What was sent of it.
    pub fn sent(&self, property: Property) -> Value {
        value_of(&self.sent, property)
    }
}

impl Store {
    /// Sets properties, all or nothing; durable and in force when it returns. Where several choose a sensor the later counts, property by property,
    /// and within one call the later in the list. With `only_new` what is said of a path that has it already is left alone.
    pub fn set_properties(
        &self,
        settings: &[SensorSetting],
        only_new: bool,
        who: &str,
        at: i64,
    ) -> Result<SetReport, StoreError> {
        let shared = self.shared();
        if shared.closing.load(Relaxed) {
            return Err(StoreError::Closed);
        }
        let _setting = shared.setting.lock().unwrap_or_else(PoisonError::into_inner);
        let (changes, report) = self.changes(settings, only_new)?;
        if !changes.is_empty() {
            shared.registry.change(KIND, changes, who, at)?;
            in_force(shared);
        }
        Ok(report)
    }

    /// What [`Store::set_properties`] would do, without doing it.
    pub fn try_properties(&self, settings: &[SensorSetting], only_new: bool) -> Result<SetReport, StoreError> {
        self.changes(settings, only_new).map(|(_, report)| report)
    }

    fn changes(&self, settings: &[SensorSetting], only_new: bool) -> Result<(SettingChanges, SetReport), StoreError> {
        let shared = self.shared();
        let mut changes: HashMap<String, Value> = HashMap::new();
        let mut same = 0;
        for (order, setting) in settings.iter().enumerate() {
            let refused = |reason| StoreError::Sensor(format!("{}: {reason}", setting.pattern));
            setting.check().map_err(refused)?;
            let info = (only_new && is_path(&setting.pattern))
                .then(|| self.sensor_id(setting.pattern.as_str()).and_then(|id| self.sensor(id)))
                .flatten();
            for (property, value) in setting.values() {
                if info.as_ref().is_some_and(|info| value_of(info, property) == value) {
                    same += 1;
                    continue;
                }
                changes.insert(key(&setting.pattern, property), json!({"is": value, "order": order}));
            }
        }
        let known = shared.registry.all(KIND);
        let more = changes.len() - known.iter().filter(|entry| changes.contains_key(&entry.key)).count();
        if known.len() + more > SETTINGS_MAX {
            return Err(StoreError::Sensor(format!(
                "there would be {} properties set, at most {SETTINGS_MAX} can be; choose more sensors by fewer patterns",
                known.len() + more
            )));
        }
        let report = SetReport { set: changes.len() as u64, same };
        Ok((changes.into_iter().map(|(key, value)| (key, Some(value))).collect(), report))
    }

    /// Takes back what was set with this very pattern, all of it or some properties; how many there were.
    pub fn unset_properties(
        &self,
        pattern: &Pattern,
        properties: &[Property],
        who: &str,
        at: i64,
    ) -> Result<u64, StoreError> {
        let shared = self.shared();
        let _setting = shared.setting.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = Property::ALL.into_iter().map(|(_, property)| property);
        let wanted = wanted.filter(|property| properties.is_empty() || properties.contains(property));
        let there = wanted.map(|property| key(pattern, property));
        let changes: SettingChanges =
            there.filter(|key| shared.registry.get(KIND, key).is_some()).map(|key| (key, None)).collect();
        let count = changes.len() as u64;
        if count > 0 {
            shared.registry.change(KIND, changes, who, at)?;
            in_force(shared);
        }
        Ok(count)
    }

    /// Everything that is set, in the order in which it counts: the later before the earlier where both choose a sensor.
    pub fn property_settings(&self) -> Vec<Arc<PropertySetting>> {
        let settings = self.shared().sensors().settings();
        settings.all.iter().map(|(setting, _)| setting.clone()).collect()
    }

    /// What was ever set and taken back, the latest last and at most the latest `most`; with a pattern only what was set with that very pattern.
    pub fn property_history(&self, pattern: Option<&Pattern>, most: usize) -> Result<Vec<PropertySetting>, StoreError> {
        let registry = &self.shared().registry;
        let Some(pattern) = pattern else {
            return Ok(registry.history(KIND, None, most)?.into_iter().filter_map(PropertySetting::of).collect());
        };
        let mut found = Vec::new();
        for (_, property) in Property::ALL {
            found.extend(registry.history(KIND, Some(&key(pattern, property)), most)?);
        }
        found.sort_by_key(|entry| entry.number);
        found.drain(..found.len().saturating_sub(most));
        Ok(found.into_iter().filter_map(PropertySetting::of).collect())
    }

    /// Sensors with where their properties come from. Those that are not the store's are left out.
    pub fn explain(&self, sensors: &[SensorInfo]) -> Vec<PropertyOrigins> {
        let known = self.shared().sensors();
        let settings = known.settings();
        let one = |info: &SensorInfo| {
            let sent = known.sent(info.id)?;
            let set = known.held(info.id).map(|held| settings.settings(&held)).unwrap_or_default();
            Some(PropertyOrigins { info: known.info(info.id)?, sent, set })
        };
        sensors.iter().filter_map(one).collect()
    }

    /// The scale that holds for a path, if it is known.
    pub fn scale(&self, path: &str) -> Option<f64> {
        self.sensor_id(path).and_then(|id| self.sensor(id)).map(|info| info.scale)
    }

    /// How many sensors a pattern chooses now.
    pub fn count_sensors(&self, pattern: &Pattern) -> u64 {
        self.shared().sensors().count(pattern)
    }

    /// Rises whenever a unit, scale, kind, description or interval has been set or taken back.
    pub fn properties_generation(&self) -> u64 {
        self.shared().settings_changes.load(Relaxed)
    }
}

type SettingChanges = Vec<(String, Option<Value>)>;

/// Makes what stands in the registry hold for every sensor.
fn in_force(shared: &Shared) {
    let settings = Settings::load(&shared.registry);
    shared.sensors.write().unwrap_or_else(PoisonError::into_inner).set_settings(settings);
    shared.settings_changes.fetch_add(1, Relaxed);
    // This writes sensors.csv again.
    shared.wake_sealer();
}
