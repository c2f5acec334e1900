//! What users set while the store is open, and the losses that they acknowledge.

use std::sync::Arc;

use wholegrain_model::{Interval, Pattern};

use super::Store;
use crate::config::RetentionRule;
use crate::error::StoreError;
use crate::losses::LossRecord;
use crate::registry::Registry;
use crate::retention::rules::RuleInForce;
use crate::sensors::info::SensorInfo;
use crate::settings::{Property, PropertyOrigins, PropertySetting, SensorSetting, SetReport};

impl Store {
    /// The registry: what users set while the server runs.
    pub fn registry(&self) -> &Registry {
        &self.engine().registry
    }

    /// Applies a change of the registry that was made in another store, with its author, and its time and number there; durable and in force when it
    /// returns. The caller knows that no later change of these keys was applied before.
    pub fn apply_change(
        &self,
        kind: &str,
        changes: Vec<(String, Option<serde_json::Value>)>,
        who: &str,
        (at, number): (i64, u64),
    ) -> Result<(), StoreError> {
        let engine = self.engine();
        engine.registry.change_numbered(kind, changes, who, at, Some(number))?;
        match kind {
            crate::settings::KIND => engine.properties.in_force(),
            crate::retention::rules::KIND => engine.rules.apply(),
            _ => {}
        }
        Ok(())
    }

    /// Sets properties, all or nothing; durable and in force when it returns. If several settings match a sensor the later one counts, property by
    /// property, and within one call the later in the list. With `only_new`, a property of a path that already has the value is left alone.
    pub fn set_properties(
        &self,
        settings: &[SensorSetting],
        only_new: bool,
        who: &str,
        at: i64,
    ) -> Result<SetReport, StoreError> {
        self.engine().properties.set_properties(settings, only_new, who, at)
    }

    /// The report of [`Store::set_properties`], without setting anything.
    pub fn try_properties(&self, settings: &[SensorSetting], only_new: bool) -> Result<SetReport, StoreError> {
        self.engine().properties.try_properties(settings, only_new)
    }

    /// Removes the settings with exactly this pattern, of all properties or of some; returns their number.
    pub fn unset_properties(
        &self,
        pattern: &Pattern,
        properties: &[Property],
        who: &str,
        at: i64,
    ) -> Result<u64, StoreError> {
        self.engine().properties.unset_properties(pattern, properties, who, at)
    }

    /// All settings in the order in which they count: the later after the earlier.
    pub fn property_settings(&self) -> Vec<Arc<PropertySetting>> {
        self.engine().properties.property_settings()
    }

    /// The latest `most` settings and removals, the latest last; with a pattern only those of exactly this pattern.
    pub fn property_history(&self, pattern: Option<&Pattern>, most: usize) -> Result<Vec<PropertySetting>, StoreError> {
        self.engine().properties.property_history(pattern, most)
    }

    /// Sensors with the origins of their properties. Sensors that are not the store's are left out.
    pub fn explain(&self, sensors: &[SensorInfo]) -> Vec<PropertyOrigins> {
        self.engine().properties.explain(sensors)
    }

    /// Rises whenever a property is set or removed.
    pub fn properties_generation(&self) -> u64 {
        self.engine().properties.properties_generation()
    }

    /// The rules in the order in which they count: first those set, the latest first, then those of the configuration.
    pub fn retention_rules(&self) -> Vec<RuleInForce> {
        self.engine().rules.retention_rules()
    }

    /// Sets how long readings and windows of the sensors that match `pattern` are kept, `None` for ever; this rule comes before all others. Durable
    /// when it returns, and in force from the next snapshot on. `who` sets it at the time `at` (ns since the Unix epoch).
    pub fn set_retention(
        &self,
        pattern: &Pattern,
        keep: Option<Interval>,
        who: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.set_retention_rule(&RetentionRule { pattern: pattern.clone(), raw: keep, tiers: Vec::new() }, who, at)
    }

    /// The same with separate ages for the tiers.
    pub fn set_retention_rule(&self, rule: &RetentionRule, who: &str, at: i64) -> Result<(), StoreError> {
        self.engine().rules.set_retention_rule(rule, who, at)
    }

    /// Checks whether a rule could be set.
    pub fn check_rule(&self, rule: &RetentionRule) -> Result<(), StoreError> {
        rule.check(&self.engine().config.tiers)
    }

    /// Removes the rule with this pattern; `false` if there is none.
    pub fn unset_retention(&self, pattern: &str, who: &str, at: i64) -> Result<bool, StoreError> {
        self.engine().rules.unset_retention(pattern, who, at)
    }

    /// How long readings are kept that no rule matches.
    pub fn retention_age(&self) -> Option<wholegrain_model::Interval> {
        self.engine().config.retention_age
    }

    /// The losses of the journal that nobody has acknowledged, in the order in which they were found.
    pub fn losses(&self) -> Vec<LossRecord> {
        self.engine().losses.open().to_vec()
    }

    /// Acknowledges these losses, or all, and returns their number. Answers over their times no longer contain a warning.
    pub fn acknowledge_losses(&self, ids: Option<&[String]>, who: &str, at: i64) -> Result<usize, StoreError> {
        self.engine().losses.acknowledge(ids, who, at)
    }
}
