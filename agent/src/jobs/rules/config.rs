//! `[[jobs.rule]]` and `[jobs.limits]`.

use serde::{Deserialize, Serialize};
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, Pattern};

use super::super::Accumulation;
use super::RULES_MAX;
use super::rule::{Rule, RuleSpec};

/// `[[jobs.rule]]`, and what people send to have one made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRule {
    /// Patterns of metrics, below the job, such as `perf/*`.
    pub metrics: Vec<String>,
    /// Pattern of job ids, with `*` for any text; every job when left out.
    pub jobs: Option<String>,
    /// The interval, such as `1ms`, or `off`.
    pub every: String,
    /// What is kept of each window in place of every sample.
    pub accumulate: Option<Accumulation>,
    /// How long it holds; not in the configuration, where it holds always.
    #[serde(rename = "for")]
    pub within: Option<Interval>,
}

/// `[jobs.limits]`: what users may ask for. The node's limit holds for administrators too.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The metrics that users may change.
    pub metrics: Vec<Pattern>,
    pub interval_min: Interval,
    /// The longest time that a rule may hold.
    pub duration_max: Interval,
    /// Readings a second of all jobs of one user.
    pub readings_per_second_user: u64,
    /// Readings a second of all jobs of the node.
    pub readings_per_second_node: u64,
    /// Rules of one user at a time.
    pub rules_per_user: u32,
    /// Orders of one user within a minute, refused ones too; not those that end rules.
    pub changes_per_minute: u32,
    /// Whether a user's rule may have less kept than the rules of the configuration and of administrators ask for.
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
    /// What users may ask for.
    pub limits: Limits,
}

impl Default for RulesConfig {
    fn default() -> Self {
        Self { rules: built_in(), limits: Limits::default() }
    }
}

/// What holds where the configuration has no rules.
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

    /// Its rules, numbered from 1.
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
