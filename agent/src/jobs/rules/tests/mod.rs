//! The rules' core with a clock and jobs of the tests' own.

mod admission;
mod kept;
mod resolution;

use wholegrain_model::Interval;
use wholegrain_model::config::Document;

use super::super::{CallerIdentity, JobsAction, JobsCommand, JobsOutcome, Role};
use super::{JobMetric, JobsRefusal, RawRule, RuleJob, Rules, RulesConfig};
use crate::jobs::JobsConfig;

/// One second of the tests' clock, ns.
pub const S: i64 = 1_000_000_000;

/// What a job of the tests has: name and shortest interval.
pub const METRICS: &[(&str, u64)] = &[
    ("cpu/usage", 1_000_000),
    ("cpu/user", 1_000_000),
    ("memory/usage", 1_000_000),
    ("memory/events/oom", 1_000_000),
    ("perf/cycles", 1_000_000),
    ("perf/instructions", 1_000_000),
    ("tasks/running", 100_000_000),
];

pub fn metrics() -> Vec<JobMetric<'static>> {
    METRICS.iter().map(|(name, ns)| JobMetric { name, interval_min: Interval::from_ns(*ns) }).collect()
}

pub fn subject(id: &'static str, uid: u32) -> RuleJob<'static> {
    let user = match uid {
        1000 => Some("alice"),
        1001 => Some("bob"),
        _ => None,
    };
    RuleJob { id, level: id, also: None, uid: Some(uid), user }
}

/// Two jobs of alice, one of bob.
pub fn jobs() -> Vec<(RuleJob<'static>, Vec<JobMetric<'static>>)> {
    vec![(subject("4711", 1000), metrics()), (subject("4712", 1000), metrics()), (subject("99", 1001), metrics())]
}

pub fn alice() -> CallerIdentity {
    CallerIdentity {
        name: "uid 1000 (alice)".into(),
        role: Role::User,
        uid: Some(1000),
        user: Some("alice".into()),
        pid: Some(1),
    }
}

pub fn bob() -> CallerIdentity {
    CallerIdentity { name: "token bob".into(), role: Role::User, uid: None, user: Some("bob".into()), pid: None }
}

pub fn root() -> CallerIdentity {
    CallerIdentity { name: "uid 0".into(), role: Role::Admin, uid: Some(0), user: None, pid: None }
}

/// `[jobs]` with these lines.
pub fn config(text: &str) -> RulesConfig {
    let text = format!("[jobs]\n{text}");
    let document = Document::new("agent.toml", &text);
    JobsConfig::read(&document.root().child("jobs"), std::path::Path::new("/"))
        .unwrap_or_else(|error| panic!("{error}"))
        .rules
}

pub fn rules(text: &str) -> Rules {
    let (rules, problems) = Rules::open(&config(text), None, 0);
    assert!(problems.is_empty(), "{problems:?}");
    rules
}

/// `job metrics every [for]`, with `-` for none; `metrics` are separated by commas.
pub fn rule(text: &str) -> RawRule {
    let words: Vec<&str> = text.split(' ').collect();
    RawRule {
        jobs: Some(words[0].to_owned()).filter(|job| job != "-"),
        metrics: words[1].split(',').filter(|text| !text.is_empty()).map(str::to_owned).collect(),
        every: words[2].to_owned(),
        accumulate: None,
        within: words.get(3).map(|text| Interval::parse(text).unwrap()),
    }
}

pub fn add(rules: &mut Rules, who: &CallerIdentity, raw: RawRule, now: i64) -> Result<JobsOutcome, JobsRefusal> {
    rules.execute(&JobsCommand { who: who.clone(), action: JobsAction::Add(raw) }, &jobs(), now)
}

/// The setting as text, and its rule.
pub fn setting(rules: &Rules, job: &'static str, uid: u32, metric: &str, now: i64) -> String {
    let (setting, rule) = rules.of_job(&subject(job, uid), now).resolve(metric);
    format!("{rule}: {setting}")
}
