//! Setting and unsetting properties.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use wholegrain_model::Pattern;

use crate::StoreError;
use crate::registry::Registry;
use crate::sensors::SensorIndex;
use crate::sensors::info::SensorInfo;
use crate::settings::{
    KIND, Property, PropertyOrigins, PropertySetting, SETTINGS_MAX, SensorSetting, SetReport, Settings, is_path, key,
    value_of,
};
use crate::work::WorkSignal;

/// Sets properties of sensors, one change at a time.
pub(crate) struct PropertySettings {
    registry: Arc<Registry>,
    sensors: Arc<SensorIndex>,
    work: Arc<WorkSignal>,
    lock: Mutex<()>,
    /// Changes since the store was opened, plus one.
    generation: AtomicU64,
}

impl PropertySettings {
    pub(crate) fn new(registry: Arc<Registry>, sensors: Arc<SensorIndex>, work: Arc<WorkSignal>) -> Self {
        Self { registry, sensors, work, lock: Mutex::new(()), generation: AtomicU64::new(1) }
    }

    pub(crate) fn set_properties(
        &self,
        settings: &[SensorSetting],
        only_new: bool,
        who: &str,
        at: i64,
    ) -> Result<SetReport, StoreError> {
        if self.work.is_closing() {
            return Err(StoreError::Closed);
        }
        let _one_change = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let (changes, report) = self.changes(settings, only_new)?;
        if !changes.is_empty() {
            self.registry.change(KIND, changes, who, at)?;
            self.in_force();
        }
        Ok(report)
    }

    pub(crate) fn try_properties(&self, settings: &[SensorSetting], only_new: bool) -> Result<SetReport, StoreError> {
        self.changes(settings, only_new).map(|(_, report)| report)
    }

    fn changes(&self, settings: &[SensorSetting], only_new: bool) -> Result<(SettingChanges, SetReport), StoreError> {
        let mut changes: HashMap<String, Value> = HashMap::new();
        let mut same = 0;
        for (order, setting) in settings.iter().enumerate() {
            let refused = |reason| StoreError::Sensor(format!("{}: {reason}", setting.pattern));
            setting.check().map_err(refused)?;
            let info = (only_new && is_path(&setting.pattern))
                .then(|| self.sensors.read().info_by_path(setting.pattern.as_str()))
                .flatten();
            for (property, value) in setting.values() {
                if info.as_ref().is_some_and(|info| value_of(info, property) == value) {
                    same += 1;
                    continue;
                }
                changes.insert(key(&setting.pattern, property), json!({"is": value, "order": order}));
            }
        }
        let known = self.registry.all(KIND);
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

    pub(crate) fn unset_properties(
        &self,
        pattern: &Pattern,
        properties: &[Property],
        who: &str,
        at: i64,
    ) -> Result<u64, StoreError> {
        let _one_change = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = Property::ALL.into_iter().map(|(_, property)| property);
        let wanted = wanted.filter(|property| properties.is_empty() || properties.contains(property));
        let there = wanted.map(|property| key(pattern, property));
        let changes: SettingChanges =
            there.filter(|key| self.registry.get(KIND, key).is_some()).map(|key| (key, None)).collect();
        let count = changes.len() as u64;
        if count > 0 {
            self.registry.change(KIND, changes, who, at)?;
            self.in_force();
        }
        Ok(count)
    }

    pub(crate) fn property_settings(&self) -> Vec<Arc<PropertySetting>> {
        let settings = self.sensors.read().settings();
        settings.all.iter().map(|(setting, _)| setting.clone()).collect()
    }

    pub(crate) fn property_history(
        &self,
        pattern: Option<&Pattern>,
        most: usize,
    ) -> Result<Vec<PropertySetting>, StoreError> {
        let registry = &self.registry;
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

    pub(crate) fn explain(&self, sensors: &[SensorInfo]) -> Vec<PropertyOrigins> {
        let known = self.sensors.read();
        let settings = known.settings();
        let one = |info: &SensorInfo| {
            let sent = known.sent(info.id)?;
            let set = known.held(info.id).map(|held| settings.settings(&held)).unwrap_or_default();
            Some(PropertyOrigins { info: known.info(info.id)?, sent, set })
        };
        sensors.iter().filter_map(one).collect()
    }

    pub(crate) fn properties_generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }
}

type SettingChanges = Vec<(String, Option<Value>)>;

impl PropertySettings {
    /// Applies the registry's settings to the sensors.
    pub(crate) fn in_force(&self) {
        let settings = Settings::load(&self.registry);
        self.sensors.write().set_settings(settings);
        self.generation.fetch_add(1, Relaxed);
        // The sealer then writes sensors.csv again.
        self.work.wake();
    }
}
