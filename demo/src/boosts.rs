//! Boosts: metrics of a running job that are sampled more often for a limited time. The nodes of the model handle commands as agents do, without
//! most of the limits, because a demonstration disturbs no job. As on real nodes, users cannot lower the rate that administrators set.
//!
//! - In: messages of the server on `wholegrain/v1/control/<agent>`, the time as an argument.
//! - Out: an answer to each message; the sampling intervals of the metrics of each job.

use serde::Deserialize;
use serde_json::{Value, json};
use wholegrain_model::{Interval, Pattern};

use crate::plan::CentrePlan;

/// The most boosts at a time. A boost is for one job on one node.
const BOOSTS_MAX: usize = 256;
/// The shortest sampling interval of the model.
const EVERY_MIN: Interval = Interval::from_ms(1);
/// The longest duration of a boost, and the default.
const WITHIN_MAX: Interval = Interval::from_s(3600);

/// Metrics of one job on one node that are sampled more often for a limited time.
#[derive(Debug, Clone)]
pub struct Boost {
    /// The index in [`CentrePlan::nodes`].
    pub node: usize,
    /// The index in [`CentrePlan::jobs`].
    pub job: usize,
    metrics: Vec<Pattern>,
    pub every: Interval,
    /// The end, ns since the Unix epoch.
    pub until_ns: i64,
    number: u64,
}

impl Boost {
    /// Whether one of the patterns matches the metric.
    pub fn covers(&self, metric: &str) -> bool {
        self.metrics.iter().any(|pattern| pattern.matches(metric))
    }
}

/// The boosts in force on all nodes.
#[derive(Debug, Default)]
pub struct Boosts {
    all: Vec<Boost>,
    last: u64,
}

#[derive(Deserialize)]
struct ControlMessage {
    id: u64,
    who: Requester,
    action: Option<BoostCommand>,
    show: Option<String>,
}

/// The person who sent the command, as authenticated by the server.
#[derive(Deserialize)]
struct Requester {
    role: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum BoostCommand {
    Add(BoostRule),
    Try(BoostRule),
    Remove(u64),
    End(String),
}

#[derive(Deserialize)]
struct BoostRule {
    metrics: Vec<String>,
    jobs: Option<String>,
    every: String,
    #[serde(rename = "for")]
    within: Option<String>,
}

/// A rule with what limits it.
struct RuleRequest {
    rule: BoostRule,
    /// The longest interval that the requester may set; `None` for administrators.
    slowest: Option<Interval>,
    /// `false` for a dry run.
    is_applied: bool,
}

impl Boosts {
    /// The boosts in force for a job on a node.
    pub fn of(&self, node: usize, job: usize) -> impl Iterator<Item = &Boost> {
        self.all.iter().filter(move |boost| (boost.node, boost.job) == (node, job))
    }

    /// Removes the boosts that have ended.
    pub fn expire(&mut self, now_ns: i64) {
        self.all.retain(|boost| boost.until_ns > now_ns);
    }

    /// Handles a message of the server to a node. Returns the answer, or `None` for a message that cannot be parsed. `metrics` are the names and
    /// units of a job's metrics, `otherwise` is their interval without a boost.
    pub fn handle(
        &mut self,
        plan: &CentrePlan,
        node: usize,
        message: &[u8],
        now_ns: i64,
        metrics: &[(&str, &str)],
        otherwise: Interval,
    ) -> Option<Value> {
        let message: ControlMessage = serde_json::from_slice(message).ok()?;
        let slowest = (message.who.role == "user").then_some(otherwise);
        let result = match (message.action, message.show) {
            (Some(BoostCommand::Add(rule)), _) => self.add(plan, node, RuleRequest { rule, slowest, is_applied: true }, now_ns, metrics),
            (Some(BoostCommand::Try(rule)), _) => self.add(plan, node, RuleRequest { rule, slowest, is_applied: false }, now_ns, metrics),
            (Some(BoostCommand::Remove(number)), _) => self.remove(|boost| (boost.node, boost.number) == (node, number)),
            (Some(BoostCommand::End(job)), _) => {
                plan.job(&job).ok_or_else(|| unknown(&job)).and_then(|job| self.remove(|boost| (boost.node, boost.job) == (node, job)))
            }
            (None, Some(job)) => plan.job(&job).ok_or_else(|| unknown(&job)).map(|job| {
                let views = metrics.iter().map(|(name, unit)| {
                    let boost = self.of(node, job).find(|boost| boost.covers(name));
                    let every = boost.map_or(otherwise, |boost| boost.every);
                    json!({
                        "name": name, "unit": unit, "interval_ns": every.ns(), "rule": boost.map_or(0, |boost| boost.number),
                    })
                });
                json!({ "metrics": views.collect::<Vec<_>>() })
            }),
            (None, None) => Err("the message has no command".to_owned()),
        };
        Some(match result {
            Ok(ok) => json!({ "id": message.id, "ok": ok }),
            Err(why) => json!({ "id": message.id, "error": why }),
        })
    }

    fn add(
        &mut self,
        plan: &CentrePlan,
        node: usize,
        RuleRequest { rule, slowest, is_applied }: RuleRequest,
        now_ns: i64,
        metrics: &[(&str, &str)],
    ) -> Result<Value, String> {
        let id = rule.jobs.as_deref().ok_or("the rule names no job")?;
        let job = plan.job(id).ok_or_else(|| unknown(id))?;
        let every = Interval::parse(&rule.every).map_err(|error| format!("every {:?}: {error}", rule.every))?;
        if every < EVERY_MIN {
            return Err(format!("the shortest interval of the demonstration is {EVERY_MIN}"));
        }
        let within = rule.within.as_deref().map_or(Ok(WITHIN_MAX), Interval::parse);
        let within = within.map_err(|error| format!("for: {error}"))?;
        if within > WITHIN_MAX {
            return Err(format!("for {within} is longer than the demonstration allows: {WITHIN_MAX}"));
        }
        let patterns: Result<Vec<Pattern>, _> = rule.metrics.iter().map(Pattern::new).collect();
        let patterns = patterns.map_err(|error| error.to_string())?;
        let until_ns = now_ns.saturating_add(i64::try_from(within.ns()).unwrap_or(i64::MAX));
        let boost = Boost { node, job, metrics: patterns, every, until_ns, number: self.last + 1 };
        let mut names = metrics.iter().map(|(name, _)| *name).filter(|name| boost.covers(name));
        let Some(first) = names.next() else {
            return Err(format!("job {id} has no metric {}", rule.metrics.join(", ")));
        };
        let covered = 1 + names.count();
        if let Some(slowest) = slowest.filter(|slowest| every > *slowest) {
            return Err(format!(
                "every {every} samples less often than the administrators' rules ask for: {first} every {slowest} (rule 0); the limit users_may_lower is false"
            ));
        }
        let until = wholegrain_model::Timestamp(until_ns).to_string();
        let answer = json!({
            "done": format!("{covered} metrics each {every}"), "rule": boost.number, "jobs": [id], "metrics": covered, "until": until,
            "readings_per_second": covered as f64 / every.seconds(),
        });
        if is_applied {
            // A new boost replaces the earlier one of the job on this node.
            self.all.retain(|other| (other.node, other.job) != (node, job));
            if self.all.len() >= BOOSTS_MAX {
                return Err(format!("the demonstration has {BOOSTS_MAX} boosts at a time at most"));
            }
            self.last = boost.number;
            self.all.push(boost);
        }
        Ok(answer)
    }

    fn remove(&mut self, which: impl Fn(&Boost) -> bool) -> Result<Value, String> {
        let before = self.all.len();
        self.all.retain(|boost| !which(boost));
        let ended = before - self.all.len();
        Ok(json!({ "done": format!("{ended} {} ended", if ended == 1 { "rule" } else { "rules" }) }))
    }
}

fn unknown(job: &str) -> String {
    format!("there is no job {job} on this node")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{CentreOptions, CentrePlan};

    const METRICS: [(&str, &str); 2] = [("perf/cycles", "1"), ("cpu/usage", "s")];

    #[test]
    fn a_boost_holds_until_it_ends() {
        let plan = CentrePlan::new(CentreOptions { seed: 1, nodes: 16, days: 1, began_s: 1_780_000_000 });
        let (job, now) = (plan.job("4712").unwrap(), plan.options.began_s * 1_000_000_000);
        let mut boosts = Boosts::default();
        let ask_node = |boosts: &mut Boosts, node: usize, what: Value| {
            boosts.handle(&plan, node, what.to_string().as_bytes(), now, &METRICS, Interval::from_s(5)).unwrap()
        };
        let ask = |boosts: &mut Boosts, what: Value| ask_node(boosts, 0, what);
        let add = |kind: &str, metrics: &str, every: &str| json!({"id": 3, "who": {"name": "u", "role": "user"}, "action": {kind: {"metrics": [metrics], "jobs": "4712", "every": every, "for": "10m"}}});
        let tried = ask(&mut boosts, add("try", "perf/*", "1ms"));
        assert_eq!((tried["id"].as_u64(), tried["ok"]["metrics"].as_u64()), (Some(3), Some(1)), "{tried}");
        assert_eq!(boosts.of(0, job).count(), 0, "a dry run changes nothing");
        assert!(ask(&mut boosts, add("add", "perf/*", "1us"))["error"].is_string());
        assert!(ask(&mut boosts, add("add", "nothing", "1ms"))["error"].is_string());
        let mut long = add("add", "perf/*", "1ms");
        long["action"]["add"]["for"] = json!("1000d");
        let refused = ask(&mut boosts, long);
        assert!(refused["error"].as_str().is_some_and(|why| why.contains("longer than")), "{refused}");
        let lowered = ask(&mut boosts, add("add", "cpu/*", "6s"));
        assert!(
            lowered["error"]
                .as_str()
                .is_some_and(|why| why.contains("cpu/usage every 5s") && why.contains("users_may_lower")),
            "{lowered}"
        );
        let mut admins = add("try", "cpu/*", "6s");
        admins["who"]["role"] = json!("admin");
        assert!(ask(&mut boosts, admins)["ok"].is_object());
        assert!(ask(&mut boosts, add("try", "cpu/*", "5s"))["ok"].is_object());
        ask(&mut boosts, add("add", "perf/*", "1ms"));
        let shown = ask(&mut boosts, json!({"id": 4, "who": {"role": "user"}, "show": "4712"}));
        assert_eq!(shown["ok"]["metrics"][0]["interval_ns"], 1_000_000, "{shown}");
        assert_eq!(shown["ok"]["metrics"][1]["interval_ns"], 5_000_000_000u64, "{shown}");
        boosts.expire(now + 599_000_000_000);
        assert_eq!(boosts.of(0, job).count(), 1);
        boosts.expire(now + 600_000_000_000);
        assert_eq!(boosts.of(0, job).count(), 0);
        ask(&mut boosts, add("add", "**", "10ms"));
        let end = json!({"id": 5, "who": {"role": "user"}, "action": {"end": "4712"}});
        assert_eq!(
            ask_node(&mut boosts, 1, end.clone())["ok"]["done"],
            "0 rules ended",
            "the boost is on another node"
        );
        assert_eq!(ask(&mut boosts, end)["ok"]["done"], "1 rule ended");
    }
}
