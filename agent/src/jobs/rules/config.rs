//! `[[jobs.rule]]` and `[jobs.limits]`.

use serde::Deserialize;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, Pattern};

use super::rule::{RULES_MAX, RawRule, Rule, RuleSpec};

/// `[jobs.limits]`: limits of users' rules. The node's limit applies to administrators too.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The metrics that users may change.
    pub metrics: Vec<Pattern>,
    pub interval_min: Interval,
    /// The longest duration of a rule.
    pub duration_max: Interval,
    /// Readings per second of all jobs of one user.
    pub readings_per_second_user: u64,
    /// Readings per second of all jobs of the node.
    pub readings_per_second_node: u64,
    /// Rules of one user at a time.
    pub rules_per_user: u32,
    /// Commands of one user in a minute, including refused ones but not those that end rules.
    pub changes_per_minute: u32,
    /// Whether a user's rule may keep less than the rules of the configuration and of administrators ask for.
    pub users_may_lower: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            metrics: Pattern::new("**").into_iter().collect(),
            interval_min: Interval::from_ms(1),
            duration_max: Interval::from_s(3600),
            readings_per_second_user: 200_000,
            readings_per_second_node: 2_000_000,
            rules_per_user: 64,
            changes_per_minute: 60,
            users_may_lower: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct RulesConfig {
    rules: Vec<RuleSpec>,
    pub limits: Limits,
}

impl Default for RulesConfig {
    fn default() -> Self {
        Self { rules: built_in(), limits: Limits::default() }
    }
}

/// The rules if the configuration has none.
fn built_in() -> Vec<RuleSpec> {
    let rule = |metrics: &str, every: &str| {
        let raw =
            RawRule { metrics: vec![metrics.into()], jobs: None, every: every.into(), accumulate: None, within: None };
        RuleSpec::read(&raw)
    };
    [rule("**", "1s"), rule("tasks/**", "10s")].into_iter().flatten().collect()
}

impl RulesConfig {
    pub fn check(section: &Section, rules: Vec<RawRule>, limits: Limits) -> Result<Self, ConfigError> {
        let refuse = |key: &str, why: String| Err(section.error(key, why));
        if rules.len() > RULES_MAX {
            return refuse("rule", format!("{} rules; at most {RULES_MAX} are taken", rules.len()));
        }
        let mut specs = Vec::with_capacity(rules.len());
        for (number, raw) in rules.iter().enumerate().map(|(i, raw)| (i + 1, raw)) {
            if raw.within.is_some() {
                return refuse(
                    "rule",
                    format!("rule {number}: a rule of the configuration holds always; leave out `for`"),
                );
            }
            match RuleSpec::read(raw) {
                Ok(spec) => specs.push(spec),
                Err(refusal) => return refuse("rule", format!("rule {number}: {refusal}")),
            }
        }
        limits.check(&section.child("limits"))?;
        Ok(Self { rules: if specs.is_empty() { built_in() } else { specs }, limits })
    }

    /// The rules, numbered from 1.
    pub(super) fn rules(&self) -> impl Iterator<Item = Rule> + '_ {
        self.rules.iter().zip(1..).map(|(spec, id)| Rule::configured(id, spec.clone()))
    }
}

impl Limits {
    fn check(&self, section: &Section) -> Result<(), ConfigError> {
        if self.interval_min.ns() == 0 {
            return Err(section.error("interval_min", "interval_min is 0s; 1ms is the shortest that is sampled"));
        }
        if self.duration_max.ns() == 0 {
            return Err(section
                .error("duration_max", "duration_max is 0s; to let users change nothing write `rules_per_user = 0`"));
        }
        if self.readings_per_second_node == 0 {
            return Err(
                section.error("readings_per_second_node", "readings_per_second_node is 0: nothing could be read")
            );
        }
        Ok(())
    }
}
