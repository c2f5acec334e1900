//! `wholegrain jobs boost`, `unboost` and `rules`: changes what is sampled of a running job, on all its nodes at once.

use std::io::Write;
use std::path::Path;

use clap::Args;
use serde_json::Value;
use wholegrain_model::Interval;

use super::JobsFormat;
use crate::connection::{ClientOption, Connection, not_there};
use crate::failure::Failure;
use crate::output::Output;
use crate::rule::RuleArgs;
use crate::socket::encoded;
use crate::style;
use crate::table::Table;

/// The most bytes of an answer: every metric of a job on every node.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Sample metrics of a running job more often for a while, on all its nodes
#[derive(Args)]
#[command(after_help = "\
Patterns are matched against metric names below the job, such as cpu/usage, memory/anon or perf/instructions; `wholegrain jobs \
rules ID` lists them. What a user may ask for is bounded by [jobs.limits] of each agent.

Examples:
  wholegrain jobs boost 4711 --metrics 'perf/*' --every 1ms --for 10m
  wholegrain jobs boost 4711 --metrics 'memory/**' --every 10ms --for 1h --accumulate 1s --quantiles 0.5,0.99
  wholegrain jobs unboost 4711")]
pub struct BoostArgs {
    /// The job's id
    #[arg(value_name = "ID")]
    job: String,
    #[command(flatten)]
    rule: RuleArgs,
    #[command(flatten)]
    shown: Shown,
}

/// End what was boosted, on all nodes of the job
#[derive(Args)]
pub struct UnboostArgs {
    /// The job's id
    #[arg(value_name = "ID")]
    job: String,
    #[command(flatten)]
    shown: Shown,
}

/// What is sampled of a running job now, on each of its nodes
#[derive(Args)]
pub struct RulesArgs {
    /// The job's id
    #[arg(value_name = "ID")]
    job: String,
    #[command(flatten)]
    shown: Shown,
}

/// How the answer is written, and whom it is from.
#[derive(Args)]
struct Shown {
    /// How to write it
    #[arg(long, short, value_enum, default_value_t = JobsFormat::Table)]
    format: JobsFormat,
    #[command(flatten)]
    client: ClientOption,
}

fn path(job: &str) -> String {
    format!("/api/v1/jobs/{}/rules", encoded(job))
}

/// Runs `boost`.
pub fn boost(args: &BoostArgs, client: Option<&Path>) -> Result<(), Failure> {
    let server = Connection::open(args.shown.client.or(client))?;
    let path = if args.rule.dry { format!("{}?try=1", path(&args.job)) } else { path(&args.job) };
    let answer = server.post_json(&path, &args.rule.to_json()).map_err(not_there)?.read(ANSWER_BYTES_MAX)?;
    tell(&answer, &args.shown, |ok| {
        let jobs = ok["metrics"].as_u64().unwrap_or(0);
        let until = ok["until"].as_str().map_or(String::new(), |until| format!(" until {until}"));
        let notes: Vec<&str> = ok["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        [format!("{jobs} metrics{until}").as_str()].into_iter().chain(notes).collect::<Vec<_>>().join("; ")
    })
}

/// Runs `unboost`.
pub fn unboost(args: &UnboostArgs, client: Option<&Path>) -> Result<(), Failure> {
    let server = Connection::open(args.shown.client.or(client))?;
    let answer = server.delete(&path(&args.job)).map_err(not_there)?.read(ANSWER_BYTES_MAX)?;
    tell(&answer, &args.shown, |ok| ok["done"].as_str().unwrap_or("done").to_owned())
}

/// What a node's answer says, one line a node; nodes that did not do it make the command fail.
fn tell(answer: &[u8], shown: &Shown, words: impl Fn(&Value) -> String) -> Result<(), Failure> {
    let nodes = nodes(answer)?;
    let mut out = Output::open(None)?;
    let name = out.name();
    if shown.format == JobsFormat::Json {
        out.write_all(answer).and_then(|()| writeln!(out)).map_err(Failure::writing(&name))?;
    } else {
        let mut table = Table::new(&["node", "result"]);
        for node in &nodes {
            let result = match node["error"].as_str() {
                Some(error) => format!("not done: {error}"),
                None => words(&node["ok"]),
            };
            table.row(vec![node["node"].as_str().unwrap_or_default().to_owned(), result]);
        }
        let style = style::on_stdout();
        table.write(style, &mut out).map_err(Failure::writing(&name))?;
    }
    out.finish()?;
    let failed: Vec<&Value> = nodes.iter().filter(|node| node["error"].is_string()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let text = format!("not done on {} of {} nodes", failed.len(), nodes.len());
    let silent = failed.iter().all(|node| node["silent"].as_bool() == Some(true));
    Err(if silent { Failure::Unreachable(text) } else { Failure::Usage(text) })
}

fn nodes(answer: &[u8]) -> Result<Vec<Value>, Failure> {
    let parsed: Value = serde_json::from_slice(answer)
        .map_err(|error| Failure::Unreachable(format!("the server's answer cannot be read: {error}")))?;
    Ok(parsed["nodes"].as_array().cloned().unwrap_or_default())
}

/// Runs `rules`.
pub fn rules(args: &RulesArgs, client: Option<&Path>) -> Result<(), Failure> {
    let server = Connection::open(args.shown.client.or(client))?;
    let answer = server.get(&path(&args.job), &[], false)?.read(ANSWER_BYTES_MAX)?;
    if args.shown.format == JobsFormat::Json {
        return tell(&answer, &args.shown, |_| String::new());
    }
    let nodes = nodes(&answer)?;
    let mut out = Output::open(None)?;
    let name = out.name();
    let mut table = Table::new(&["node", "metric", "unit", ">every", ">window", ">rule"]);
    for node in &nodes {
        let who = node["node"].as_str().unwrap_or_default();
        if let Some(error) = node["error"].as_str() {
            table.row(vec![who.to_owned(), format!("({error})")]);
        }
        for metric in node["ok"]["metrics"].as_array().into_iter().flatten() {
            let length = |key: &str| metric[key].as_u64().map(|ns| Interval::from_ns(ns).to_string());
            table.row(vec![
                who.to_owned(),
                metric["name"].as_str().unwrap_or_default().to_owned(),
                metric["unit"].as_str().unwrap_or_default().to_owned(),
                length("interval_ns").unwrap_or_else(|| "off".to_owned()),
                length("window_ns").unwrap_or_default(),
                metric["rule"].to_string(),
            ]);
        }
    }
    let style = style::on_stdout();
    table.write(style, &mut out).map_err(Failure::writing(&name))?;
    out.finish()
}
