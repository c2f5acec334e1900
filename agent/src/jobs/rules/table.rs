//! Finds the rule that counts for a metric of a job, among ten thousand rules.
//!
//! Rules for one job are found by its id. Job patterns that several rules share are matched once. For one job the metric patterns are collected so
//! that each different one occurs once, with the last rule that has it; patterns without `*` are looked up instead of matched.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use wholegrain_model::Pattern;

use super::super::MetricSetting;
use super::config::Limits;
use super::job::RuleJob;
use super::rule::{JobPattern, Rule, count_evaluation};

/// All rules with their indexes.
#[derive(Debug)]
pub struct RuleTable {
    pub limits: Arc<Limits>,
    rules: BTreeMap<u64, Arc<Rule>>,
    /// Numbers of the rules for one job id, ascending.
    by_id: HashMap<String, Vec<u64>>,
    /// Numbers of the rules for each job pattern, ascending.
    wide: Vec<(JobPattern, Vec<u64>)>,
    ends: BTreeSet<(i64, u64)>,
}

impl RuleTable {
    pub fn new(limits: Arc<Limits>) -> Self {
        Self { limits, rules: BTreeMap::new(), by_id: HashMap::new(), wide: Vec::new(), ends: BTreeSet::new() }
    }

    pub fn insert(&mut self, rule: Rule) {
        let id = rule.id;
        let put = |list: &mut Vec<u64>| {
            if let Err(at) = list.binary_search(&id) {
                list.insert(at, id);
            }
        };
        match (&rule.owner, rule.spec.jobs.is_literal()) {
            (Some(owner), _) => owner.only.iter().for_each(|job| put(self.by_id.entry(job.clone()).or_default())),
            (None, true) => put(self.by_id.entry(rule.spec.jobs.as_str().to_owned()).or_default()),
            (None, false) => match self.wide.iter_mut().find(|(pattern, _)| *pattern == rule.spec.jobs) {
                Some((_, list)) => put(list),
                None => self.wide.push((rule.spec.jobs.clone(), vec![id])),
            },
        }
        self.ends.extend(rule.until.map(|until| (until, id)));
        self.rules.insert(id, Arc::new(rule));
    }

    pub fn remove(&mut self, id: u64) -> Option<Arc<Rule>> {
        let rule = self.rules.remove(&id)?;
        if let Some(until) = rule.until {
            self.ends.remove(&(until, id));
        }
        let named: &[String] = match &rule.owner {
            Some(owner) => &owner.only,
            None => &[rule.spec.jobs.as_str().to_owned()],
        };
        for job in named {
            if let Some(list) = self.by_id.get_mut(job) {
                list.retain(|other| *other != id);
                if list.is_empty() {
                    self.by_id.remove(job);
                }
            }
        }
        self.wide.iter_mut().for_each(|(_, list)| list.retain(|other| *other != id));
        self.wide.retain(|(_, list)| !list.is_empty());
        Some(rule)
    }

    pub fn get(&self, id: u64) -> Option<&Arc<Rule>> {
        self.rules.get(&id)
    }

    /// All rules, in the order in which they count.
    pub fn all(&self) -> Vec<Arc<Rule>> {
        self.rules.values().cloned().collect()
    }

    /// Rules with a number above this one.
    pub fn above(&self, id: u64) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.range(id + 1..).map(|(_, rule)| rule)
    }

    pub fn next_expiry(&self) -> Option<i64> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// Removes and returns expired rules.
    pub fn take_expired(&mut self, now: i64) -> Vec<Arc<Rule>> {
        let over: Vec<u64> = self.ends.range(..=(now, u64::MAX)).map(|(_, id)| *id).collect();
        over.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// The rules that apply to the metrics of a job.
    pub fn of_job(&self, job: &RuleJob, now: i64) -> JobRules {
        let mut ids: Vec<u64> = Vec::new();
        for name in [Some(job.id), Some(job.level), job.also].into_iter().flatten() {
            ids.extend(self.by_id.get(name).into_iter().flatten());
        }
        for (pattern, list) in &self.wide {
            if pattern.matches_job(job) {
                ids.extend(list);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        let mut of_job = JobRules {
            limits: self.limits.clone(),
            user_rules: MetricMatcher::default(),
            admin_rules: MetricMatcher::default(),
        };
        let rules = ids.iter().rev().filter_map(|id| self.rules.get(id));
        for rule in rules.filter(|rule| !rule.is_over(now) && rule.holds_for(job)) {
            if rule.owner.is_some() { of_job.user_rules.add(rule) } else { of_job.admin_rules.add(rule) }
        }
        of_job
    }
}

/// The rules of one job.
#[derive(Debug, Clone)]
pub struct JobRules {
    limits: Arc<Limits>,
    /// Users' rules: they apply only to metrics that users may change.
    user_rules: MetricMatcher,
    /// Rules of the configuration and of administrators.
    admin_rules: MetricMatcher,
}

/// Metric patterns, each once, with the last rule that has it.
#[derive(Debug, Clone, Default)]
struct MetricMatcher {
    /// Without `*`, at any depth.
    literal: HashMap<String, Arc<Rule>>,
    /// Without `*`, from the job on, without the slash.
    absolute: HashMap<String, Arc<Rule>>,
    /// The other patterns: the rule and the index of the pattern; the last rule first.
    globs: Vec<(Arc<Rule>, usize)>,
    /// The texts of `globs`.
    seen: std::collections::HashSet<String>,
}

impl MetricMatcher {
    /// Rules have to be added in descending order.
    fn add(&mut self, rule: &Arc<Rule>) {
        for (at, pattern) in rule.spec.metrics.iter().enumerate() {
            let text = pattern.as_str();
            if text.contains('*') {
                if self.seen.insert(text.to_owned()) {
                    self.globs.push((rule.clone(), at));
                }
                continue;
            }
            let (map, name) = match text.strip_prefix('/') {
                Some(name) => (&mut self.absolute, name),
                None => (&mut self.literal, text),
            };
            map.entry(name.to_owned()).or_insert_with(|| rule.clone());
        }
    }

    /// The last rule that matches.
    fn find(&self, metric: &str) -> Option<&Arc<Rule>> {
        let mut best = self.absolute.get(metric);
        let mut rest = Some(metric);
        while let Some(name) = rest.filter(|_| !self.literal.is_empty()) {
            best = best.into_iter().chain(self.literal.get(name)).max_by_key(|rule| rule.id);
            rest = name.split_once('/').map(|(_, rest)| rest);
        }
        for (rule, at) in &self.globs {
            if best.is_some_and(|best| best.id >= rule.id) {
                break;
            }
            count_evaluation();
            if rule.spec.metrics[*at].matches(metric) {
                return Some(rule);
            }
        }
        best
    }
}

impl JobRules {
    /// The setting of a metric, and the number of its rule; off and 0 without a rule.
    pub fn resolve(&self, metric: &str) -> (MetricSetting, u64) {
        match self.rule_of(metric) {
            Some(rule) => (rule.spec.setting.clone(), rule.id),
            None => (MetricSetting::Off, 0),
        }
    }

    /// The rule that counts for a metric.
    pub fn rule_of(&self, metric: &str) -> Option<&Arc<Rule>> {
        let admin_rules = self.admin_rules.find(metric);
        let user_rules =
            self.user_rules.find(metric).filter(|rule| admin_rules.is_none_or(|admin_rules| rule.id > admin_rules.id));
        match user_rules {
            Some(rule) if !self.is_too_little(&rule.spec.setting, admin_rules) && may_change(&self.limits, metric) => {
                Some(rule)
            }
            _ => admin_rules,
        }
    }

    /// The rule of the configuration or of an administrator that a user's setting for this metric would lower, if that is not allowed.
    pub fn kept_up_by(&self, setting: &MetricSetting, metric: &str) -> Option<&Arc<Rule>> {
        let admin_rules = self.admin_rules.find(metric);
        admin_rules.filter(|_| self.is_too_little(setting, admin_rules))
    }

    fn is_too_little(&self, setting: &MetricSetting, admin_rules: Option<&Arc<Rule>>) -> bool {
        !self.limits.users_may_lower
            && admin_rules.is_some_and(|admin_rules| setting.is_less_than(&admin_rules.spec.setting))
    }
}

/// Whether users may change a metric.
pub fn may_change(limits: &Limits, metric: &str) -> bool {
    let matches = |pattern: &Pattern| {
        count_evaluation();
        pattern.matches(metric)
    };
    limits.metrics.iter().any(matches)
}
