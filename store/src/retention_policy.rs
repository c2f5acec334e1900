//! The rules of retention in force.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use wholegrain_model::Interval;

use crate::block::read::{Block, OpenBlock, RuleShare};
use crate::config::{RetentionRule, resolutions};
use crate::time::{DAY_NS, floor};
use crate::{StoreConfig, StoreError};

/// The rules and what is computed from them.
#[derive(Debug, Clone)]
pub(crate) struct RetentionPolicy {
    rules: Vec<RetentionRule>,
    default_age: Option<Interval>,
    resolutions: Vec<i64>,
    /// Delay after the end of a day until its blocks are merged and its tiers are made, ns.
    merge_delay_ns: i64,
    /// Identifies the set of rules.
    generation: u64,
}

fn ns(age: Interval) -> i64 {
    i64::try_from(age.ns()).unwrap_or(i64::MAX)
}

/// The policy in force, and when it was last applied.
pub(crate) struct PolicyInForce {
    policy: RwLock<Arc<RetentionPolicy>>,
    passed_at: AtomicI64,
}

impl PolicyInForce {
    pub(crate) fn new(policy: RetentionPolicy) -> Self {
        Self { policy: RwLock::new(Arc::new(policy)), passed_at: AtomicI64::new(i64::MIN) }
    }

    pub(crate) fn get(&self) -> Arc<RetentionPolicy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, policy: RetentionPolicy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    /// The time of the last pass of retention; the least number before the first.
    pub fn passed_at(&self) -> i64 {
        self.passed_at.load(Relaxed)
    }

    pub(crate) fn note_pass(&self, now: i64) {
        self.passed_at.store(now, Relaxed);
    }
}

impl RetentionPolicy {
    pub(crate) fn new(config: &StoreConfig, rules: Vec<RetentionRule>, generation: u64) -> Self {
        let (default_age, resolutions) = (config.retention_age, resolutions(&config.tiers));
        Self { rules, default_age, resolutions, merge_delay_ns: ns(config.merge_delay), generation }
    }

    /// Readings of a sensor before this are hidden, because they are out of their retention as of the pass at `now`. Readings to which only
    /// [`StoreConfig::retention_age`] applies are shown until their block is dropped.
    pub fn hidden_before(&self, path: &str, now: i64) -> i64 {
        self.rule_for(path).filter(|_| now > i64::MIN).map_or(i64::MIN, |rule| self.raw_cut(rule, now))
    }

    /// The same of a tier's windows.
    pub fn tier_hidden_before(&self, path: &str, now: i64, resolution_ns: i64) -> i64 {
        self.rule_for(path).filter(|_| now > i64::MIN).map_or(i64::MIN, |rule| self.tier_cut(rule, resolution_ns, now))
    }

    /// The least cut of all rules and of the default age.
    pub fn least_raw_cut(&self, now: i64) -> i64 {
        (0..=self.rules.len()).map(|rule| self.raw_cut(rule, now)).min().unwrap_or(i64::MIN)
    }

    /// Whether there are rules.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether nothing is dropped by its age.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.default_age.is_none()
    }

    /// The number of the rule for a sensor.
    pub fn rule_of(&self, path: &str) -> usize {
        self.rule_for(path).unwrap_or(self.rules.len())
    }

    /// The same; `None` if no rule matches.
    pub fn rule_for(&self, path: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.pattern.matches(path))
    }

    /// How long the readings of a rule's sensors are kept.
    pub fn raw_age(&self, rule: usize) -> Option<Interval> {
        self.rules.get(rule).map_or(self.default_age, |rule| rule.raw)
    }

    fn tier_age(&self, rule: usize, resolution_ns: i64) -> Option<Interval> {
        let named =
            self.rules.get(rule).and_then(|rule| rule.tiers.iter().find(|(tier, _)| ns(*tier) == resolution_ns));
        named.map_or_else(|| self.raw_age(rule), |(_, age)| *age)
    }

    /// Readings before this have expired. A rule cuts at an edge of the coarsest windows, so that no window is cut. Readings whose windows are kept
    /// longer stay until these are made: until their day has been over for `merge_delay`.
    pub fn raw_cut(&self, rule: usize, now: i64) -> i64 {
        let cut = self.cut(rule, self.raw_age(rule), now);
        if self.resolutions.iter().any(|resolution| self.outlives(rule, *resolution)) {
            cut.min(floor(now.saturating_sub(self.merge_delay_ns), DAY_NS))
        } else {
            cut
        }
    }

    /// Whether windows are kept longer than the readings they are made from.
    fn outlives(&self, rule: usize, resolution: i64) -> bool {
        match (self.raw_age(rule), self.tier_age(rule, resolution)) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(raw), Some(tier)) => tier > raw,
        }
    }

    /// Windows of a tier before this have expired.
    pub fn tier_cut(&self, rule: usize, resolution_ns: i64, now: i64) -> i64 {
        self.cut(rule, self.tier_age(rule, resolution_ns), now)
    }

    fn cut(&self, rule: usize, age: Option<Interval>, now: i64) -> i64 {
        let Some(age) = age else { return i64::MIN };
        let exact = now.saturating_sub(ns(age));
        if rule < self.rules.len() { self.on_edge(exact) } else { exact }
    }

    /// The edge of the coarsest windows at or before a time.
    pub fn on_edge(&self, time: i64) -> i64 {
        floor(time, self.resolutions.last().copied().unwrap_or(1))
    }

    /// Tiers that outlive the readings they are made from.
    pub fn outliving(&self, shares: &[RuleShare]) -> Vec<i64> {
        let any = |resolution: &i64| shares.iter().any(|share| self.outlives(share.rule, *resolution));
        self.resolutions.iter().copied().filter(any).collect()
    }

    /// The number of expired rows.
    pub fn expired_rows(&self, shares: &[RuleShare], now: i64) -> u64 {
        shares.iter().filter(|share| share.last_time < self.raw_cut(share.rule, now)).map(|share| share.rows).sum()
    }

    /// Whether all windows of a tier have expired.
    pub fn is_tier_expired(&self, shares: &[RuleShare], resolution_ns: i64, now: i64) -> bool {
        shares.iter().all(|share| share.last_time < self.tier_cut(share.rule, resolution_ns, now))
    }

    /// How many rows of a file each rule applies to; `None` if the file cannot be read. The file is opened once, and only if there are rules.
    pub fn shares(&self, block: &Arc<Block>) -> Result<Option<Arc<[RuleShare]>>, StoreError> {
        let known = block.shares.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, shares)) = known.filter(|(generation, _)| *generation == self.generation) {
            return Ok(Some(shares));
        }
        let record = &block.record;
        let mut shares = vec![RuleShare { rule: self.rules.len(), rows: 0, last_time: i64::MIN }; self.rules.len() + 1];
        if self.rules.is_empty() {
            shares[0] = RuleShare { rule: 0, rows: record.rows, last_time: record.last_time };
        } else {
            let opened = match OpenBlock::open_once(block) {
                Ok(opened) => opened,
                Err(error @ StoreError::Damaged { .. }) => {
                    block.mark_damaged(&error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            for entry in opened.entries() {
                let rule = self.rule_of(&entry.path);
                let share = &mut shares[rule];
                share.rule = rule;
                share.rows += entry.rows;
                share.last_time = share.last_time.max(entry.last_time);
            }
        }
        shares.retain(|share| share.last_time > i64::MIN);
        let shares: Arc<[RuleShare]> = shares.into();
        *block.shares.lock().unwrap_or_else(PoisonError::into_inner) = Some((self.generation, shares.clone()));
        Ok(Some(shares))
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::Pattern;

    use super::*;

    #[test]
    fn readings_stay_until_the_windows_that_outlive_them_are_made() {
        let hour = 3_600_000_000_000;
        let rule = |tiers: &[(u64, Option<u64>)]| RetentionRule {
            pattern: Pattern::new("/**").unwrap(),
            raw: Some(Interval::from_s(3600)),
            tiers: tiers
                .iter()
                .map(|(of, age)| (Interval::from_s(*of), age.map(|hours| Interval::from_s(3600 * hours))))
                .collect(),
        };
        let policy = |rule: RetentionRule| {
            let config = StoreConfig { merge_delay: Interval::from_s(2 * 3600), ..StoreConfig::new("/nowhere") };
            RetentionPolicy::new(&config, vec![rule], 1)
        };
        let day = |days: i64| days * DAY_NS;
        let outlived = policy(rule(&[(3600, None)]));
        // Today, and yesterday until `merge_delay` is over, have no windows yet.
        assert_eq!(outlived.hidden_before("/a", day(10) + 23 * hour), day(10));
        assert_eq!(outlived.hidden_before("/a", day(10) + 2 * hour - 1), day(9));
        assert_eq!(outlived.hidden_before("/a", day(10) + 2 * hour), day(10));
        // Nothing waits for windows that go with the readings.
        for tiers in [&[][..], &[(3600, Some(1))]] {
            assert_eq!(policy(rule(tiers)).hidden_before("/a", day(10) + 23 * hour), day(10) + 22 * hour);
        }
    }
}
