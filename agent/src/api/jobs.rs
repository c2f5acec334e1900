//! Jobs and rules over HTTP.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::failure::HttpFailure;
use super::http::{self, HttpRequest};
use super::service::ApiService;
use super::view;
use crate::jobs::rules::RawRule;
use crate::jobs::{CallerIdentity, JobView, JobsAction, JobsCommand, JobsView, Role, RuleView};

/// A job in a list.
#[derive(Serialize)]
struct JobLine<'a> {
    job: &'a str,
    user: Option<&'a str>,
    uid: Option<u32>,
    manager: &'a str,
    name: Option<&'a str>,
    partition: Option<&'a str>,
    cpus: Option<&'a str>,
    start_time: String,
    steps: u64,
    metrics: usize,
    readings_per_second: f64,
}

/// The jobs that the caller may see.
pub(super) fn list(jobs: &JobsView, who: &CallerIdentity) -> Vec<u8> {
    let lines = jobs.jobs.iter().filter(|job| job.is_visible_to(who)).map(|job| {
        let record = &job.record;
        let readings = job.metrics.iter().filter_map(|metric| metric.interval_ns);
        JobLine {
            job: &record.job,
            user: record.user.as_deref(),
            uid: record.uid,
            manager: &record.manager,
            name: record.name.as_deref(),
            partition: record.partition.as_deref(),
            cpus: record.cpus.as_deref(),
            start_time: view::time(record.from),
            steps: record.steps.len() as u64 + record.steps_dropped,
            metrics: job.metrics.len(),
            readings_per_second: readings.map(|ns| 1e9 / ns.max(1) as f64).sum(),
        }
    });
    view::bytes(&serde_json::json!({ "jobs": lines.collect::<Vec<_>>() }))
}

/// One job, found by any of its ids.
pub(super) fn one(jobs: &JobsView, who: &CallerIdentity, id: &str) -> Result<Vec<u8>, HttpFailure> {
    let id =
        http::decode(id, false).ok_or_else(|| HttpFailure::new(400, "the job's id is not percent-encoded UTF-8"))?;
    // A user does not learn that other users' jobs exist.
    let visible = || jobs.jobs.iter().filter(|job| job.is_visible_to(who));
    if let Some(job) = visible().find(|job| job.has_id(&id)) {
        return Ok(view::bytes(&shown(job)));
    }
    let hint = match wholegrain_model::suggest::nearest(&id, visible().map(|job| job.record.job.as_str())) {
        Some(near) => format!("did you mean {near:?}?"),
        None => "GET /v1/jobs lists those that do".to_owned(),
    };
    Err(HttpFailure::new(404, format!("job {id:.80?} does not run here; {hint}")))
}

/// A job with times in RFC 3339.
fn shown(job: &JobView) -> Value {
    let mut value = serde_json::to_value(job).unwrap_or_default();
    let put = |value: &mut Value, key: &str| {
        if let Some(ns) = value.get(key).and_then(Value::as_i64) {
            value[key] = view::time(ns).into();
        }
    };
    for key in ["from", "to", "totals_at"] {
        put(&mut value, key);
    }
    for step in value.get_mut("steps").and_then(Value::as_array_mut).into_iter().flatten() {
        put(step, "from");
        put(step, "to");
    }
    value
}

/// The rules that the caller may see. A user sees those of the configuration, their own, and those of administrators unless they concern only other
/// users' jobs.
pub(super) fn rules(jobs: &JobsView, who: &CallerIdentity) -> Vec<u8> {
    let own: Vec<&Arc<JobView>> = jobs.jobs.iter().filter(|job| job.is_owned_by(who)).collect();
    let sees = |rule: &&RuleView| {
        if who.role != Role::User || who.owns(rule.uid, rule.user.as_deref()) {
            return true;
        }
        let of_a_user = rule.uid.is_some() || rule.user.is_some();
        let pattern = crate::jobs::rules::JobPattern::new(&rule.jobs);
        let for_them = pattern.is_ok_and(|pattern| {
            pattern.as_str() == "*"
                || own.iter().any(|job| pattern.matches_job(&crate::jobs::rules::RuleJob::of(&job.record)))
        });
        !of_a_user && for_them
    };
    // Users do not learn names and addresses of administrators.
    let of_an_administrator = |rule: &RuleView| rule.made.is_some() && rule.uid.is_none() && rule.user.is_none();
    let rules = jobs.rules.iter().filter(sees).cloned().map(|mut rule| {
        if who.role == Role::User && of_an_administrator(&rule) {
            rule.by = "an administrator".to_owned();
        }
        rule
    });
    let rules: Vec<RuleView> = rules.collect();
    view::bytes(&serde_json::json!({ "rules": rules }))
}

/// Adds a rule; with `?try=1` only checks it.
pub(super) fn add(service: &ApiService, who: &CallerIdentity, request: &HttpRequest) -> Result<Vec<u8>, HttpFailure> {
    let raw: RawRule = serde_json::from_slice(&request.body).map_err(|error| {
        let example = r#"{"metrics": ["perf/*"], "jobs": "4711", "every": "1ms", "for": "10m"}"#;
        HttpFailure::new(400, format!("the body is not a rule: {error}; one is written as {example}"))
    })?;
    let action = match request.value("try") {
        None | Some("0" | "false") => JobsAction::Add(raw),
        Some("" | "1" | "true") => JobsAction::Try(raw),
        Some(other) => return Err(HttpFailure::new(400, format!("try: {other:.40?} is neither 1 nor 0"))),
    };
    ask(service, who, action)
}

pub(super) fn remove(service: &ApiService, who: &CallerIdentity, id: &str) -> Result<Vec<u8>, HttpFailure> {
    let id = id.parse().map_err(|_| {
        HttpFailure::new(400, format!("{id:.40?} is not the number of a rule; GET /v1/rules lists them"))
    })?;
    ask(service, who, JobsAction::Remove(id))
}

fn ask(service: &ApiService, who: &CallerIdentity, action: JobsAction) -> Result<Vec<u8>, HttpFailure> {
    Ok(view::bytes(&service.manager_handle.execute_jobs(JobsCommand { who: who.clone(), action })?))
}
