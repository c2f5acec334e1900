//! Rules of retention that are set while the store is open, beside those of its configuration.
//!
//! They are kept in the registry under the kind [`KIND`], with the pattern as the key. What is set comes before what is configured, and what was set
//! later before what was set earlier: the last word about a sensor counts.

use std::sync::{Arc, PoisonError};

use serde_json::{Value, json};
use wholegrain_model::{Interval, Pattern};

use super::policy::RetentionPolicy;
use crate::config::{RETENTION_RULES_MAX, RetentionRule};
use crate::registry::{Registry, RegistryEntry};
use crate::store::Shared;
use crate::{Store, StoreConfig, StoreError};

/// The kind of the registry's entries.
pub(crate) const KIND: &str = "retention";
/// What stands for "never dropped".
const FOREVER: &str = "forever";

/// A rule and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleInForce {
    pub rule: RetentionRule,
    /// Who set it while the store was open and when (ns since the Unix epoch); `None` for one of the configuration.
    pub set: Option<(String, i64)>,
}

/// The policy of a configuration and what is set.
pub(crate) fn policy(config: &StoreConfig, registry: &Registry) -> Arc<RetentionPolicy> {
    let rules = in_force(config, registry).into_iter().map(|rule| rule.rule).collect();
    Arc::new(RetentionPolicy::new(config, rules, registry.generation()))
}

/// All rules, the first that matches a sensor counts.
fn in_force(config: &StoreConfig, registry: &Registry) -> Vec<RuleInForce> {
    let set = registry.all(KIND).into_iter().rev().filter_map(|entry| {
        let rule = decode(&entry, config)?;
        Some(RuleInForce { rule, set: Some((entry.who, entry.at)) })
    });
    let configured = config.retention.iter().map(|rule| RuleInForce { rule: rule.clone(), set: None });
    set.chain(configured).collect()
}

fn encode(rule: &RetentionRule) -> Value {
    let age = |age: &Option<Interval>| age.map_or_else(|| FOREVER.to_owned(), |age| age.to_string());
    let tiers: serde_json::Map<String, Value> =
        rule.tiers.iter().map(|(tier, kept)| (tier.to_string(), json!(age(kept)))).collect();
    json!({"keep": age(&rule.raw), "tiers": tiers})
}

/// The rule of an entry. One that cannot be understood keeps everything that it chooses: nothing is lost by it.
fn decode(entry: &RegistryEntry, config: &StoreConfig) -> Option<RetentionRule> {
    let pattern = Pattern::new(entry.key.as_str())
        .inspect_err(|error| tracing::error!(%error, "a rule of retention that is set has no pattern; left out"))
        .ok()?;
    let age = |value: &Value| match value.as_str() {
        Some(FOREVER) => Some(None),
        Some(text) => Interval::parse(text).ok().map(Some),
        None => None,
    };
    let value = entry.value.as_ref()?;
    let Some(raw) = age(&value["keep"]) else {
        tracing::error!(pattern = %entry.key, "a rule of retention that is set cannot be understood; it keeps everything");
        return Some(RetentionRule { pattern, raw: None, tiers: Vec::new() });
    };
    let kept = value["tiers"].as_object().into_iter().flatten();
    let kept = kept.filter_map(|(tier, kept)| Some((Interval::parse(tier).ok()?, age(kept).unwrap_or(None))));
    let tiers = kept.filter(|(tier, _)| config.tiers.contains(tier)).collect();
    Some(RetentionRule { pattern, raw, tiers })
}

impl Store {
    /// The rules in the order in which they count: what is set, the latest first, then the configuration's.
    pub fn retention_rules(&self) -> Vec<RuleInForce> {
        in_force(&self.shared().config, &self.shared().registry)
    }

    /// Keeps the readings (and windows) of the sensors that `pattern` chooses for so long, `None` for ever; before every other rule. Durable when it
    /// returns, and in force from the next snapshot on. `who` sets it, `at` in ns since the Unix epoch.
    pub fn set_retention(
        &self,
        pattern: &Pattern,
        keep: Option<Interval>,
        who: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.set_retention_rule(&RetentionRule { pattern: pattern.clone(), raw: keep, tiers: Vec::new() }, who, at)
    }

    /// The same with ages of tiers of their own.
    pub fn set_retention_rule(&self, rule: &RetentionRule, who: &str, at: i64) -> Result<(), StoreError> {
        let shared = self.shared();
        self.check_rule(rule)?;
        let set = shared.registry.all(KIND);
        if set.len() >= RETENTION_RULES_MAX && !set.iter().any(|entry| entry.key == rule.pattern.as_str()) {
            return Err(StoreError::Sensor(format!(
                "{RETENTION_RULES_MAX} rules of retention are set, which is the most; choose more sensors with one pattern, or unset some"
            )));
        }
        let change = vec![(rule.pattern.as_str().to_owned(), Some(encode(rule)))];
        shared.registry.change(KIND, change, who, at)?;
        renew(shared);
        Ok(())
    }

    /// Whether a rule could be set.
    pub fn check_rule(&self, rule: &RetentionRule) -> Result<(), StoreError> {
        let ages = rule.tiers.iter().map(|(_, age)| *age).chain([rule.raw]);
        if ages.flatten().any(|age| age.ns() == 0) {
            return Err(StoreError::Sensor("an age of 0 keeps nothing; delete readings instead".to_owned()));
        }
        let known = &self.shared().config.tiers;
        match rule.tiers.iter().find(|(tier, _)| !known.contains(tier)) {
            None => Ok(()),
            Some((tier, _)) => {
                let known: Vec<String> = known.iter().map(Interval::to_string).collect();
                Err(StoreError::Sensor(format!("there is no tier of {tier}; there are [{}]", known.join(", "))))
            }
        }
    }

    /// Takes a rule that was set away again; `false` when there is none with this pattern.
    pub fn unset_retention(&self, pattern: &str, who: &str, at: i64) -> Result<bool, StoreError> {
        let shared = self.shared();
        if shared.registry.get(KIND, pattern).is_none() {
            return Ok(false);
        }
        shared.registry.change(KIND, vec![(pattern.to_owned(), None)], who, at)?;
        renew(shared);
        Ok(true)
    }
}

/// Puts the rules as they are now in force, and has a pass of retention look at once.
fn renew(shared: &Shared) {
    *shared.policy.write().unwrap_or_else(PoisonError::into_inner) = policy(&shared.config, &shared.registry);
    if let Err(error) = shared.changed(i64::MIN, i64::MAX, None) {
        // On failure the invalidation stays pending and is applied before a cached result is used.
        tracing::warn!(%error, "kept results cannot be removed; tried again");
    }
    shared.wake_sealer();
}
