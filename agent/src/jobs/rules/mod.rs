//! Rules: how often each metric of each job is read and what is kept, and who may change that.
//!
//! - In: `[[jobs.rule]]` and `[jobs.limits]` of the configuration, commands of people and of the server, the time as an argument.
//! - Out: the [`MetricSetting`] of a metric of a job, refusals with their reason, `rules.json` and `audit.jsonl` in the jobs' directory.
//! - Never: a rule without an end that no administrator made; a user's rule for another user's job, whatever the rule says and whenever the job
//!   begins; a user's rule that lowers what the configuration and administrators ask for, unless `users_may_lower`; a change without a line in the
//!   audit log.
//!
//! Of all rules that match a metric of a job the last one counts: those of the configuration first, in its order, then those that people added, by
//! number. [`table`] finds it, [`admission`] decides whether a new rule is allowed, [`rule_file`] and [`audit`] write.

mod admission;
mod audit;
mod config;
mod job;
mod refusal;
mod rule;
mod rule_file;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use self::config::{Limits, RulesConfig};
pub use self::job::{JobMetric, RuleJob};
pub use self::refusal::JobsRefusal;
pub use self::rule::{JobPattern, RULES_MAX, RawRule, Rule};
pub use self::table::JobRules;

use self::admission::RulePlan;
use self::audit::{AuditLine, AuditLog};
use self::rule_file::RuleFile;
use self::table::RuleTable;
use super::{CallerIdentity, JobsAction, JobsCommand, JobsOutcome, Role, RuleView};
use crate::rate_limit::RateLimit;

/// All rules in force.
#[derive(Debug)]
pub struct Rules {
    table: RuleTable,
    file: Option<RuleFile>,
    audit: AuditLog,
    /// The number of the next added rule.
    next: u64,
    /// The rate of users' commands.
    asks: RateLimit,
}

impl Rules {
    /// The configuration's rules, and those of `dir` that are still valid. The texts report problems of the files for the log.
    pub fn open(config: &RulesConfig, dir: Option<&Path>, now: i64) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let mut rules = Self {
            table: RuleTable::new(Arc::new(config.limits.clone())),
            file: dir.map(RuleFile::new),
            audit: AuditLog::new(dir),
            next: RULES_MAX as u64 + 1,
            asks: RateLimit::per_minute(config.limits.changes_per_minute, u32::MAX),
        };
        rules.put_configured(config);
        if let Some(file) = &rules.file {
            let kept = file.load(now, &mut problems);
            rules.next = rules.next.max(kept.next);
            let mut dropped = kept.dropped;
            for rule in kept.rules {
                match admission::still_allowed(&rule, &config.limits, now) {
                    Ok(()) => rules.table.insert(rule),
                    Err(why) => {
                        problems.push(format!("rule {} of {} ends: {why}", rule.id, rule.by));
                        dropped = true;
                    }
                }
            }
            if dropped {
                problems.extend(rules.save().err().map(|error| error.to_string()));
            }
        }
        (rules, problems)
    }

    /// The rules that apply to a job's metrics.
    pub fn of_job(&self, job: &RuleJob, now: i64) -> JobRules {
        self.table.of_job(job, now)
    }

    /// Executes a command. `jobs` are all running jobs with all their metrics.
    pub fn execute(
        &mut self,
        command: &JobsCommand,
        jobs: &[(RuleJob, Vec<JobMetric>)],
        now: i64,
    ) -> Result<JobsOutcome, JobsRefusal> {
        let result = self.decide(command, jobs, now);
        if let Err(refusal) = &result {
            self.audit.refused(command, &refusal.to_string(), now);
        }
        result
    }

    fn decide(
        &mut self,
        command: &JobsCommand,
        jobs: &[(RuleJob, Vec<JobMetric>)],
        now: i64,
    ) -> Result<JobsOutcome, JobsRefusal> {
        let who = &command.who;
        match who.role {
            Role::Support => {
                return Err(JobsRefusal::Forbidden("the role support reads everything and changes nothing".into()));
            }
            // Ending rules is not limited: there are never more to end than exist.
            Role::User if adds_rule(&command.action) && !self.asks.take(&who.key(), now) => {
                return Err(JobsRefusal::Limit {
                    limit: "changes_per_minute",
                    value: self.table.limits.changes_per_minute.to_string(),
                    why: "too many commands within a minute; wait for the next one".into(),
                });
            }
            _ => {}
        }
        match &command.action {
            JobsAction::Add(raw) => self.add(who, raw, jobs, now, true),
            JobsAction::Try(raw) => self.add(who, raw, jobs, now, false),
            JobsAction::Remove(id) => {
                let rule = admission::removable(&self.table, who, *id)?;
                self.remove(who, &[rule], jobs, now)
            }
            JobsAction::End(job) => {
                let rules = admission::rules_of(&self.table, who, job)?;
                self.remove(who, &rules, jobs, now)
            }
        }
    }

    fn add(
        &mut self,
        who: &CallerIdentity,
        raw: &RawRule,
        jobs: &[(RuleJob, Vec<JobMetric>)],
        now: i64,
        for_good: bool,
    ) -> Result<JobsOutcome, JobsRefusal> {
        let plan = admission::plan(&self.table, who, raw, jobs, self.next, now)?;
        let id = plan.rule.id;
        let before = admission::settings(&self.table, &plan, jobs, now);
        let load_before = admission::load(&self.table, Some(who), jobs, now);
        self.table.insert(plan.rule.clone());
        let verdict = admission::check_load(&self.table, who, jobs, load_before, now);
        let changes = admission::changes(&self.table, &plan, jobs, &before, now);
        let load = match (verdict, for_good) {
            (Ok(load), true) => load,
            (other, _) => {
                self.table.remove(id);
                let load = other?;
                let mut done = plan.done(load);
                done.rule = None;
                done.done = format!("it could be done: {}", done.done);
                return Ok(done);
            }
        };
        let line = AuditLine { verb: "add", rule: Some(&plan.rule), changes, ..AuditLine::of(who, now) };
        if let Err(error) = self.audit.write(&line) {
            self.table.remove(id);
            return Err(error);
        }
        self.next += 1;
        if let Err(error) = self.save() {
            self.table.remove(id);
            self.audit.failed(who, id, &error, now);
            return Err(error);
        }
        tracing::info!("rule {id} by {}: {}", who.name, plan.rule);
        Ok(plan.done(load))
    }

    fn remove(
        &mut self,
        who: &CallerIdentity,
        rules: &[Arc<Rule>],
        jobs: &[(RuleJob, Vec<JobMetric>)],
        now: i64,
    ) -> Result<JobsOutcome, JobsRefusal> {
        let load_before = admission::load(&self.table, Some(who), jobs, now);
        let plans: Vec<RulePlan> = rules.iter().map(|rule| RulePlan::of_existing(rule, jobs)).collect();
        let before: Vec<_> = plans.iter().map(|plan| admission::settings(&self.table, plan, jobs, now)).collect();
        rules.iter().for_each(|rule| drop(self.table.remove(rule.id)));
        let result = self.finish_removal(who, &plans, &before, load_before, jobs, now);
        if result.is_err() {
            rules.iter().for_each(|rule| self.table.insert((**rule).clone()));
        }
        let load = result?;
        let numbers: Vec<String> = rules.iter().map(|rule| rule.id.to_string()).collect();
        tracing::info!("rules {} removed by {}", numbers.join(" "), who.name);
        let (many, are) = if rules.len() == 1 { ("rule", "is") } else { ("rules", "are") };
        let mut ids: Vec<String> = plans.iter().flat_map(|plan| plan.ids.iter().cloned()).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(JobsOutcome {
            done: format!("{many} {} {are} removed", numbers.join(", ")),
            notes: Vec::new(),
            rule: Some(rules).filter(|rules| rules.len() == 1).map(|rules| rules[0].id),
            jobs: ids,
            metrics: plans.iter().map(|plan| plan.metrics).max().unwrap_or(0),
            until: None,
            readings_per_second: load,
        })
    }

    /// Checks the limits, writes the audit log and saves the rules after a removal.
    fn finish_removal(
        &mut self,
        who: &CallerIdentity,
        plans: &[RulePlan],
        before: &[Vec<Option<Arc<Rule>>>],
        load_before: (f64, f64),
        jobs: &[(RuleJob, Vec<JobMetric>)],
        now: i64,
    ) -> Result<f64, JobsRefusal> {
        // Metrics that the removed rules slowed down or switched off would be read again.
        let load = admission::check_load(&self.table, who, jobs, load_before, now)?;
        for (plan, before) in plans.iter().zip(before) {
            let changes = admission::changes(&self.table, plan, jobs, before, now);
            self.audit.write(&AuditLine {
                verb: "remove",
                rule: Some(&plan.rule),
                changes,
                ..AuditLine::of(who, now)
            })?;
        }
        if let Err(error) = self.save() {
            plans.iter().for_each(|plan| self.audit.failed(who, plan.rule.id, &error, now));
            return Err(error);
        }
        Ok(load)
    }

    /// Ends expired rules, and returns their number.
    pub fn expire(&mut self, now: i64) -> usize {
        let over = self.table.take_expired(now);
        for rule in &over {
            let clock = CallerIdentity::admin("the clock");
            self.audit.write_or_warn(&AuditLine { verb: "end", rule: Some(rule), ..AuditLine::of(&clock, now) });
            tracing::info!("rule {} of {} is over: {rule}", rule.id, rule.by);
        }
        if !over.is_empty()
            && let Err(error) = self.save()
        {
            // Expired rules are dropped at the next start anyway.
            tracing::warn!("{error}");
        }
        over.len()
    }

    /// When the next rule expires.
    pub fn next_expiry(&self) -> Option<i64> {
        self.table.next_expiry()
    }

    /// Applies another configuration. Users' rules that its limits forbid end; the texts report them for the log.
    pub fn configure(&mut self, config: &RulesConfig, now: i64) -> Vec<String> {
        self.table.limits = Arc::new(config.limits.clone());
        self.asks = RateLimit::per_minute(config.limits.changes_per_minute, u32::MAX);
        self.put_configured(config);
        let mut problems = Vec::new();
        for rule in self.table.all() {
            if let Err(why) = admission::still_allowed(&rule, &config.limits, now) {
                self.table.remove(rule.id);
                let caller = CallerIdentity::admin("the configuration");
                let line = AuditLine { verb: "end", rule: Some(&rule), why: Some(&why), ..AuditLine::of(&caller, now) };
                problems.extend(self.audit.write(&line).err().map(|error| error.to_string()));
                problems.push(format!("rule {} of {} ends: {why}", rule.id, rule.by));
            }
        }
        if !problems.is_empty() {
            problems.extend(self.save().err().map(|error| error.to_string()));
        }
        problems
    }

    /// All rules, in the order in which they count.
    pub fn view(&self) -> Vec<RuleView> {
        self.table.all().iter().map(|rule| rule.view()).collect()
    }

    fn put_configured(&mut self, config: &RulesConfig) {
        for id in self.table.all().iter().map(|rule| rule.id).filter(|id| *id <= RULES_MAX as u64) {
            self.table.remove(id);
        }
        for rule in config.rules() {
            self.table.insert(rule);
        }
    }

    fn save(&mut self) -> Result<(), JobsRefusal> {
        let Some(file) = &self.file else { return Ok(()) };
        let made: Vec<Arc<Rule>> = self.table.all().into_iter().filter(|rule| rule.id > RULES_MAX as u64).collect();
        file.save(&made, self.next).map_err(|error| {
            JobsRefusal::Failed(format!(
                "cannot keep the rules in {}: {error}; nothing is changed",
                file.path().display()
            ))
        })
    }
}

fn adds_rule(action: &JobsAction) -> bool {
    matches!(action, JobsAction::Add(_) | JobsAction::Try(_))
}
