//! Decides whether a caller may have a rule: first the permission, then whether the rule applies to running jobs, then the limits, and last the load
//! of all rules together.

use std::sync::Arc;

use serde::Serialize;
use wholegrain_model::suggest::nearest;
use wholegrain_model::{Interval, Pattern};

use super::super::{CallerIdentity, JobsOutcome, MetricSetting, Role};
use super::config::Limits;
use super::job::{JobMetric, RuleJob};
use super::refusal::JobsRefusal;
use super::rule::{RULES_MAX, RawRule, Rule, RuleOwner, RuleSpec, shown};
use super::table::{RuleTable, may_change};

/// The most different changes in one line of the audit log.
const CHANGES_MAX: usize = 16;
/// The most metric names for each change.
const NAMES_MAX: usize = 4;

type JobMetrics<'a> = [(RuleJob<'a>, Vec<JobMetric<'a>>)];

/// A permitted rule, and the jobs that it would apply to.
#[derive(Debug)]
pub struct RulePlan {
    pub rule: Rule,
    /// Indexes in the list of jobs.
    pub jobs: Vec<usize>,
    pub ids: Vec<String>,
    /// The number of their metrics.
    pub metrics: u64,
    /// Metrics for which the rule does not fully apply, with the reason.
    notes: Vec<String>,
}

impl RulePlan {
    /// The plan of an existing rule.
    pub fn of_existing(rule: &Arc<Rule>, jobs: &JobMetrics) -> Self {
        let made_for = |job: &RuleJob| match &rule.owner {
            Some(owner) => owner.only.iter().any(|id| id == job.id),
            None => rule.spec.jobs.matches_job(job),
        };
        let applies = |job: &RuleJob| rule.holds_for(job) && made_for(job);
        Self::new((**rule).clone(), jobs, (0..jobs.len()).filter(|at| applies(&jobs[*at].0)).collect())
    }

    fn new(rule: Rule, jobs: &JobMetrics, chosen: Vec<usize>) -> Self {
        let ids = chosen.iter().map(|at| jobs[*at].0.id.to_owned()).collect();
        let metrics = chosen.iter().map(|at| matched(&rule.spec, &jobs[*at].1).count() as u64).sum();
        Self { rule, jobs: chosen, ids, metrics, notes: Vec::new() }
    }

    pub fn done(&self, load: f64) -> JobsOutcome {
        let mut done = format!("rule {}: {}", self.rule.id, self.rule);
        for note in &self.notes {
            done.push_str("; ");
            done.push_str(note);
        }
        JobsOutcome {
            done,
            notes: self.notes.clone(),
            rule: Some(self.rule.id),
            jobs: self.ids.clone(),
            metrics: self.metrics,
            until: self.rule.until.map(shown),
            readings_per_second: load,
        }
    }
}

fn matched<'a>(spec: &'a RuleSpec, metrics: &'a [JobMetric<'a>]) -> impl Iterator<Item = &'a JobMetric<'a>> {
    metrics.iter().filter(|metric| spec.metrics.iter().any(|pattern| pattern.matches(metric.name)))
}

/// Checks everything except the load.
pub fn plan(
    table: &RuleTable,
    who: &CallerIdentity,
    raw: &RawRule,
    jobs: &JobMetrics,
    id: u64,
    now: i64,
) -> Result<RulePlan, JobsRefusal> {
    let spec = RuleSpec::read(raw)?;
    let is_user = who.role == Role::User;
    let until = until(raw.within, is_user, &table.limits, now)?;
    let chosen = if is_user { own_jobs(who, raw, &spec, jobs)? } else { any_jobs(&spec, jobs)? };
    let theirs: Vec<&[JobMetric]> = chosen.iter().map(|at| jobs[*at].1.as_slice()).collect();
    every_pattern_matches(&spec, &theirs)?;
    let mut notes = Vec::new();
    if is_user {
        within_limits(&spec, &theirs, &table.limits)?;
        let all = chosen.iter().map(|at| &jobs[*at]);
        notes.extend(not_lowered(table, &spec, all, now)?);
        room_for_user(table, who)?;
    }
    if table.above(RULES_MAX as u64).count() >= RULES_MAX {
        return Err(JobsRefusal::Limit {
            limit: "of rules at a time",
            value: RULES_MAX.to_string(),
            why: "there are too many rules; `wholegrain ctl rules` lists them, `rule remove` removes one".into(),
        });
    }
    let owner = is_user.then(|| RuleOwner {
        uid: who.uid,
        user: who.user.clone(),
        only: chosen.iter().map(|at| jobs[*at].0.id.to_owned()).collect(),
    });
    notes.extend(slower(&spec, &theirs));
    let rule = Rule { id, spec, until, by: who.name.clone(), owner, made: Some(now) };
    Ok(RulePlan { notes, ..RulePlan::new(rule, jobs, chosen) })
}

fn until(within: Option<Interval>, is_user: bool, limits: &Limits, now: i64) -> Result<Option<i64>, JobsRefusal> {
    let Some(within) = within else {
        return if is_user {
            Err(JobsRefusal::Limit {
                limit: "duration_max",
                value: limits.duration_max.to_string(),
                why: "for: a user's rule ends; say how long it holds".into(),
            })
        } else {
            Ok(None)
        };
    };
    if within.ns() == 0 {
        return Err(JobsRefusal::Invalid(
            "for: 0s is no time; leave it out for a rule that stays, or say how long".into(),
        ));
    }
    if is_user && within > limits.duration_max {
        return Err(JobsRefusal::Limit {
            limit: "duration_max",
            value: limits.duration_max.to_string(),
            why: format!("for: {within} is too long"),
        });
    }
    Ok(Some(now.saturating_add_unsigned(within.ns())))
}

/// The user's jobs that the rule matches. Other users' jobs are treated as if they did not exist: a response that distinguished them from jobs that
/// do not run would tell anybody, id by id or pattern by pattern, which jobs others run.
fn own_jobs(
    who: &CallerIdentity,
    raw: &RawRule,
    spec: &RuleSpec,
    jobs: &JobMetrics,
) -> Result<Vec<usize>, JobsRefusal> {
    let mine: Vec<usize> = (0..jobs.len()).filter(|at| who.owns(jobs[*at].0.uid, jobs[*at].0.user)).collect();
    let names = |at: &usize| raw.jobs.is_none() || spec.jobs.matches_job(&jobs[*at].0);
    let chosen: Vec<usize> = mine.iter().copied().filter(names).collect();
    if chosen.is_empty() {
        let ids: Vec<&str> = mine.iter().map(|at| jobs[*at].0.id).collect();
        return Err(no_job(who, spec.jobs.as_str(), &ids));
    }
    Ok(chosen)
}

fn any_jobs(spec: &RuleSpec, jobs: &JobMetrics) -> Result<Vec<usize>, JobsRefusal> {
    let chosen: Vec<usize> = (0..jobs.len()).filter(|at| spec.jobs.matches_job(&jobs[*at].0)).collect();
    if chosen.is_empty() && spec.jobs.is_literal() {
        let ids: Vec<&str> = jobs.iter().map(|(job, _)| job.id).collect();
        return Err(no_such_job(spec.jobs.as_str(), &ids));
    }
    Ok(chosen)
}

fn no_job(who: &CallerIdentity, text: &str, ids: &[&str]) -> JobsRefusal {
    if ids.is_empty() {
        return JobsRefusal::Unknown(format!("no job of {} runs here", who.name));
    }
    no_such_job(text, ids)
}

fn no_such_job(text: &str, ids: &[&str]) -> JobsRefusal {
    let near = nearest(text, ids.iter().copied());
    let hint = match near {
        Some(near) => format!("did you mean {near:?}?"),
        None => "`wholegrain ctl jobs` lists those that do".to_owned(),
    };
    JobsRefusal::Unknown(format!("job {text:?} does not run here; {hint}"))
}

/// The most names that a refusal suggests.
const NEAREST_MAX: usize = 3;

/// Each pattern has to match a metric, so that a typing mistake is not taken for a change. Without a running job there is nothing to compare with.
fn every_pattern_matches(spec: &RuleSpec, jobs: &[&[JobMetric]]) -> Result<(), JobsRefusal> {
    if jobs.is_empty() {
        return Ok(());
    }
    let names = || jobs.iter().flat_map(|metrics| metrics.iter().map(|metric| metric.name));
    for pattern in &spec.metrics {
        if names().any(|name| pattern.matches(name)) {
            continue;
        }
        // A pattern is compared with patterns: `prf/*` is a mistake for `perf/*`.
        let mut known: Vec<String> = match pattern.as_str().contains('*') {
            false => names().map(str::to_owned).collect(),
            true => names().filter_map(|name| Some(format!("{}/*", name.rsplit_once('/')?.0))).collect(),
        };
        known.sort_unstable();
        known.dedup();
        let mut near = Vec::new();
        while near.len() < NEAREST_MAX {
            let found = nearest(pattern.as_str(), known.iter().map(String::as_str));
            let Some(at) = found.and_then(|found| known.iter().position(|name| name == found)) else { break };
            near.push(known.remove(at));
        }
        let hint = match near.is_empty() {
            true => "`wholegrain ctl job ID` lists what can be read".to_owned(),
            false => format!("the nearest are {}", near.join(", ")),
        };
        return Err(JobsRefusal::Unknown(format!(
            "metrics: {:?} matches no metric of the job; {hint}",
            pattern.as_str()
        )));
    }
    Ok(())
}

fn within_limits(spec: &RuleSpec, jobs: &[&[JobMetric]], limits: &Limits) -> Result<(), JobsRefusal> {
    if let MetricSetting::On(rate) = &spec.setting
        && rate.interval < limits.interval_min
    {
        return Err(JobsRefusal::Limit {
            limit: "interval_min",
            value: limits.interval_min.to_string(),
            why: format!("every: {} is too short", rate.interval),
        });
    }
    for metric in jobs.iter().flat_map(|metrics| matched(spec, metrics)) {
        if !may_change(limits, metric.name) {
            return Err(JobsRefusal::Limit {
                limit: "metrics",
                value: patterns(&limits.metrics),
                why: format!("metrics: users may not change {}", metric.name),
            });
        }
    }
    Ok(())
}

fn patterns(patterns: &[Pattern]) -> String {
    let texts: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(" ") }
}

fn room_for_user(table: &RuleTable, who: &CallerIdentity) -> Result<(), JobsRefusal> {
    let theirs = table.above(RULES_MAX as u64).filter(|rule| is_of(rule, who)).count();
    if theirs >= table.limits.rules_per_user as usize {
        return Err(JobsRefusal::Limit {
            limit: "rules_per_user",
            value: table.limits.rules_per_user.to_string(),
            why: format!("you have {theirs} rules; remove one or wait until one is over"),
        });
    }
    Ok(())
}

fn is_of(rule: &Rule, who: &CallerIdentity) -> bool {
    rule.owner.as_ref().is_some_and(|owner| who.owns(owner.uid, owner.user.as_deref()))
}

/// The metrics that a user's rule would lower below rules of the configuration or of administrators: those keep their settings, and the response says
/// so. A rule that could only lower is refused.
fn not_lowered<'a>(
    table: &RuleTable,
    spec: &RuleSpec,
    jobs: impl Iterator<Item = &'a (RuleJob<'a>, Vec<JobMetric<'a>>)>,
    now: i64,
) -> Result<Option<String>, JobsRefusal> {
    let (mut all, mut kept_up, mut first) = (0u64, 0u64, None);
    for (job, metrics) in jobs {
        let rules = table.of_job(job, now);
        for metric in matched(spec, metrics) {
            all += 1;
            if let Some(rule) = rules.kept_up_by(&spec.setting, metric.name) {
                kept_up += 1;
                first.get_or_insert_with(|| format!("{} {} (rule {})", metric.name, rule.spec.setting, rule.id));
            }
        }
    }
    let Some(first) = first else { return Ok(None) };
    if kept_up == all {
        return Err(JobsRefusal::Limit {
            limit: "users_may_lower",
            value: table.limits.users_may_lower.to_string(),
            why: format!("{} samples less than the administrators' rules ask for: {first}", spec.setting),
        });
    }
    Ok(Some(format!("{kept_up} of {all} metrics stay as the administrators' rules ask, such as {first}")))
}

/// The metrics that cannot be read as often as requested; they are read as often as possible.
fn slower(spec: &RuleSpec, jobs: &[&[JobMetric]]) -> Option<String> {
    let MetricSetting::On(rate) = &spec.setting else { return None };
    let all = || jobs.iter().flat_map(|metrics| matched(spec, metrics));
    let mut slower = all().filter(|metric| metric.interval_min > rate.interval);
    let first = slower.next()?;
    let count = 1 + slower.count();
    Some(format!(
        "{count} of {} metrics only as often as they can be read, such as {} every {}",
        all().count(),
        first.name,
        first.interval_min
    ))
}

/// Whether a rule that was allowed before still is.
pub fn still_allowed(rule: &Rule, limits: &Limits, now: i64) -> Result<(), String> {
    if rule.owner.is_none() {
        return Ok(());
    }
    let left = rule.until.map(|until| until.saturating_sub(now));
    if left.is_none_or(|left| left > i64::try_from(limits.duration_max.ns()).unwrap_or(i64::MAX)) {
        return Err(format!("it would hold longer than the limit duration_max, {}", limits.duration_max));
    }
    match &rule.spec.setting {
        MetricSetting::On(rate) if rate.interval < limits.interval_min => {
            Err(format!("every {} is shorter than the limit interval_min, {}", rate.interval, limits.interval_min))
        }
        _ => Ok(()),
    }
}

/// The rule of this number, if the caller may remove it.
pub fn removable(table: &RuleTable, who: &CallerIdentity, id: u64) -> Result<Arc<Rule>, JobsRefusal> {
    let of_others = |rule: &Arc<Rule>| who.role == Role::User && rule.owner.is_some() && !is_of(rule, who);
    let Some(rule) = table.get(id).filter(|rule| !of_others(rule)) else {
        return Err(JobsRefusal::Unknown(format!("there is no rule {id}; `wholegrain ctl rules` lists them")));
    };
    if id <= RULES_MAX as u64 {
        return Err(JobsRefusal::Forbidden(format!(
            "rule {id} is the configuration's; change [[jobs.rule]] there and reload, or add a rule after it"
        )));
    }
    if who.role == Role::User && !is_of(rule, who) {
        return Err(JobsRefusal::Forbidden(format!(
            "rule {id} is an administrator's; users remove their own rules only"
        )));
    }
    Ok(rule.clone())
}

/// The added rules for exactly this job that the caller may remove.
pub fn rules_of(table: &RuleTable, who: &CallerIdentity, job: &str) -> Result<Vec<Arc<Rule>>, JobsRefusal> {
    let names = |rule: &Arc<Rule>| match &rule.owner {
        Some(owner) => owner.only.len() == 1 && owner.only[0] == job,
        None => rule.spec.jobs.as_str() == job,
    };
    let theirs = |rule: &Arc<Rule>| who.role != Role::User || is_of(rule, who);
    let rules: Vec<_> = table.above(RULES_MAX as u64).filter(|rule| names(rule) && theirs(rule)).cloned().collect();
    if rules.is_empty() {
        let whose = if who.role == Role::User { " of yours" } else { "" };
        return Err(JobsRefusal::Unknown(format!("there is no rule{whose} for job {job:.80?} alone")));
    }
    Ok(rules)
}

/// Readings per second of all jobs, and of the jobs of one user. Accumulated metrics count as often as they are read.
pub fn load(table: &RuleTable, who: Option<&CallerIdentity>, jobs: &JobMetrics, now: i64) -> (f64, f64) {
    let (mut node, mut user) = (0.0, 0.0);
    for (job, metrics) in jobs {
        let rules = table.of_job(job, now);
        let each = metrics.iter().map(|metric| {
            rules.rule_of(metric.name).map_or(0.0, |rule| rule.spec.setting.readings_per_second(metric.interval_min))
        });
        let sum: f64 = each.sum();
        node += sum;
        if who.is_some_and(|who| who.owns(job.uid, job.user)) {
            user += sum;
        }
    }
    (node, user)
}

/// The load with the present table: of the node, and for a user of the user's jobs. Refused if it is over a limit and has risen; a lower load is
/// always allowed.
pub fn check_load(
    table: &RuleTable,
    who: &CallerIdentity,
    jobs: &JobMetrics,
    before: (f64, f64),
    now: i64,
) -> Result<f64, JobsRefusal> {
    let (node, user) = load(table, Some(who), jobs, now);
    let limits = &table.limits;
    let over = |limit, max: u64, what: &str, is: f64, was: f64| {
        if is <= max as f64 || is <= was {
            return Ok(());
        }
        let why = match limit {
            // Users see the load of their own jobs only.
            "readings_per_second_node" if who.role == Role::User => format!("{what} would be read too often"),
            _ => format!("{what} would be read {is:.0} times a second in place of {was:.0}"),
        };
        Err(JobsRefusal::Limit { limit, value: max.to_string(), why })
    };
    if who.role == Role::User {
        let max = limits.readings_per_second_user;
        over("readings_per_second_user", max, "metrics of your jobs", user, before.1)?;
    }
    over("readings_per_second_node", limits.readings_per_second_node, "metrics of this node's jobs", node, before.0)?;
    Ok(if who.role == Role::User { user } else { node })
}

/// The settings of all metrics that a rule is about, job by job.
pub fn settings(table: &RuleTable, plan: &RulePlan, jobs: &JobMetrics, now: i64) -> Vec<Option<Arc<Rule>>> {
    let mut list = Vec::new();
    for (job, metrics) in plan.jobs.iter().map(|at| &jobs[*at]) {
        let rules = table.of_job(job, now);
        list.extend(matched(&plan.rule.spec, metrics).map(|metric| rules.rule_of(metric.name).cloned()));
    }
    list
}

/// Metrics that changed from one setting to another.
#[derive(Debug, PartialEq, Serialize)]
pub struct SettingChange {
    pub old: String,
    pub new: String,
    /// The number over all jobs.
    pub metrics: u64,
    pub such_as: Vec<String>,
}

/// The changes since `before` was collected.
pub fn changes(
    table: &RuleTable,
    plan: &RulePlan,
    jobs: &JobMetrics,
    before: &[Option<Arc<Rule>>],
    now: i64,
) -> Vec<SettingChange> {
    let said = |rule: &Option<Arc<Rule>>| match rule {
        Some(rule) => format!("{} (rule {})", rule.spec.setting, rule.id),
        None => "off (no rule)".to_owned(),
    };
    let after = settings(table, plan, jobs, now);
    let names = plan.jobs.iter().flat_map(|at| matched(&plan.rule.spec, &jobs[*at].1)).map(|metric| metric.name);
    let mut changes: Vec<SettingChange> = Vec::new();
    for ((name, old), new) in names.zip(before).zip(&after) {
        let (old, new) = (said(old), said(new));
        if old == new {
            continue;
        }
        if let Some(change) = changes.iter_mut().find(|change| change.old == old && change.new == new) {
            change.metrics += 1;
            if change.such_as.len() < NAMES_MAX && !change.such_as.iter().any(|other| other == name) {
                change.such_as.push(name.to_owned());
            }
        } else if changes.len() < CHANGES_MAX {
            changes.push(SettingChange { old, new, metrics: 1, such_as: vec![name.to_owned()] });
        }
    }
    changes
}
