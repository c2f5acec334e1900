//! Retention rules that users set at run time, beside the configured ones.
//!
//! The registry stores them under the kind [`KIND`], with the pattern as the key. A rule that is set comes before those of the configuration, and a
//! later one before an earlier one: the latest that matches a sensor counts.

use std::sync::Arc;

use serde_json::{Value, json};
use wholegrain_model::{Interval, Pattern};

use crate::computed::ResultFiles;
use crate::config::{RETENTION_RULES_MAX, RetentionRule};
use crate::registry::{Registry, RegistryEntry};
use crate::retention_policy::{PolicyInForce, RetentionPolicy};
use crate::work::WorkSignal;
use crate::{StoreConfig, StoreError};

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

/// The policy of the configuration and the rules set by users.
pub(crate) fn policy(config: &StoreConfig, registry: &Registry) -> RetentionPolicy {
    let rules = all_rules(config, registry).into_iter().map(|rule| rule.rule).collect();
    RetentionPolicy::new(config, rules, registry.generation())
}

/// All rules; the first that matches a sensor counts.
fn all_rules(config: &StoreConfig, registry: &Registry) -> Vec<RuleInForce> {
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

/// Decodes a rule. A rule with an invalid age keeps everything that its pattern matches; a rule with an invalid pattern is ignored.
fn decode(entry: &RegistryEntry, config: &StoreConfig) -> Option<RetentionRule> {
    let pattern = Pattern::new(entry.key.as_str())
        .inspect_err(|error| tracing::error!(pattern = %entry.key, %error, "a stored retention rule has an invalid pattern; it is ignored"))
        .ok()?;
    let age = |value: &Value| match value.as_str() {
        Some(FOREVER) => Some(None),
        Some(text) => Interval::parse(text).ok().map(Some),
        None => None,
    };
    let value = entry.value.as_ref()?;
    let Some(raw) = age(&value["keep"]) else {
        tracing::error!(pattern = %entry.key, "a stored retention rule has an invalid age; it keeps everything that its pattern matches");
        return Some(RetentionRule { pattern, raw: None, tiers: Vec::new() });
    };
    let kept = value["tiers"].as_object().into_iter().flatten();
    let kept = kept.filter_map(|(tier, kept)| Some((Interval::parse(tier).ok()?, age(kept).unwrap_or(None))));
    let tiers = kept.filter(|(tier, _)| config.tiers.contains(tier)).collect();
    Some(RetentionRule { pattern, raw, tiers })
}

/// The rules of the configuration and those set by users.
pub(crate) struct RetentionRules {
    pub config: Arc<StoreConfig>,
    pub registry: Arc<Registry>,
    pub policy: Arc<PolicyInForce>,
    pub results: Arc<ResultFiles>,
    pub work: Arc<WorkSignal>,
}

impl RetentionRules {
    pub(crate) fn retention_rules(&self) -> Vec<RuleInForce> {
        all_rules(&self.config, &self.registry)
    }

    pub(crate) fn set_retention_rule(&self, rule: &RetentionRule, who: &str, at: i64) -> Result<(), StoreError> {
        rule.check(&self.config.tiers)?;
        let set = self.registry.all(KIND);
        if set.len() >= RETENTION_RULES_MAX && !set.iter().any(|entry| entry.key == rule.pattern.as_str()) {
            return Err(StoreError::Sensor(format!(
                "{RETENTION_RULES_MAX} retention rules are set, which is the maximum; use one pattern for more sensors, or unset rules"
            )));
        }
        let change = vec![(rule.pattern.as_str().to_owned(), Some(encode(rule)))];
        self.registry.change(KIND, change, who, at)?;
        self.apply();
        Ok(())
    }

    pub(crate) fn unset_retention(&self, pattern: &str, who: &str, at: i64) -> Result<bool, StoreError> {
        if self.registry.get(KIND, pattern).is_none() {
            return Ok(false);
        }
        self.registry.change(KIND, vec![(pattern.to_owned(), None)], who, at)?;
        self.apply();
        Ok(true)
    }

    /// Applies the current rules, invalidates cached results and wakes the retention thread.
    pub(crate) fn apply(&self) {
        self.policy.set(policy(&self.config, &self.registry));
        self.results.changed_after_commit(i64::MIN, i64::MAX, None);
        self.work.wake();
    }
}
