//! `wholegrain jobs boost`, `unboost` and `rules`: change the sampling of a running job on all its nodes.

use std::path::Path;

use clap::Args;
use serde_json::Value;
use wholegrain_api::{NodeResponse, NodeResponses, paths};
use wholegrain_model::Interval;

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::job_arguments::job_path;
use crate::output::table::Table;
use crate::output::{ResultFormat, print_json, print_table};
use crate::rule::RuleArgs;

/// Sample metrics of a running job more often for a while, on all its nodes
#[derive(Args)]
#[command(after_help = "\
Patterns are matched against metric names below the job, such as cpu/usage, memory/anon or perf/instructions; `wholegrain jobs \
rules ID` lists them. [jobs.limits] of each agent limits the requests of users.

Examples:
  wholegrain jobs boost 4711 --metrics 'perf/*' --every 1ms --for 10m
  wholegrain jobs boost 4711 --metrics 'memory/**' --every 10ms --for 1h --accumulate 1s --quantiles 0.5,0.99
  wholegrain jobs unboost 4711")]
pub struct BoostArgs {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    rule: RuleArgs,
}

/// End the rules of a job, on all its nodes
#[derive(Args)]
#[command(after_help = "\
Ends a user's own rules; for an administrator, all rules of the job.

Examples:
  wholegrain jobs unboost 4711
  wholegrain jobs unboost 4711 --format json")]
pub struct UnboostArgs {
    #[command(flatten)]
    target: TargetOptions,
}

/// List the metrics and intervals of a running job on each of its nodes
#[derive(Args)]
#[command(after_help = "\
Examples:
  wholegrain jobs rules 4711
  wholegrain jobs rules 4711 --format json")]
pub struct RulesArgs {
    #[command(flatten)]
    target: TargetOptions,
}

/// The job, the output format and the server.
#[derive(Args)]
struct TargetOptions {
    /// The id of the job
    #[arg(value_name = "ID")]
    job: String,
    /// The format of the output
    #[arg(long, short, value_enum, default_value_t = ResultFormat::Table)]
    format: ResultFormat,
    #[command(flatten)]
    client: ClientOption,
}

impl TargetOptions {
    fn path(&self) -> String {
        job_path(paths::JOB_RULES, &self.job)
    }
}

pub fn boost(args: &BoostArgs, client: Option<&Path>) -> Result<(), Failure> {
    let server = Connection::open(args.target.client.or(client))?;
    let request = server.post(args.target.path()).json(&args.rule.request());
    let request = if args.rule.dry_run { request.query("try", 1) } else { request };
    print_results(&request.find()?.json()?, args.target.format, |ok| {
        let metrics = ok["metrics"].as_u64().unwrap_or(0);
        let until = ok["until"].as_str().map_or(String::new(), |until| format!(" until {until}"));
        let notes: Vec<&str> = ok["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        [format!("{metrics} metrics{until}").as_str()].into_iter().chain(notes).collect::<Vec<_>>().join("; ")
    })
}

pub fn unboost(args: &UnboostArgs, client: Option<&Path>) -> Result<(), Failure> {
    let server = Connection::open(args.target.client.or(client))?;
    let responses = server.delete(args.target.path()).find()?.json()?;
    print_results(&responses, args.target.format, |ok| ok["done"].as_str().unwrap_or("done").to_owned())
}

/// Prints the result of each node. The command fails if any node failed.
fn print_results(
    responses: &NodeResponses,
    format: ResultFormat,
    text: impl Fn(&Value) -> String,
) -> Result<(), Failure> {
    let result = |response: &NodeResponse| match &response.error {
        Some(error) => format!("failed: {error}"),
        None => text(response.ok.as_ref().unwrap_or(&Value::Null)),
    };
    match format {
        ResultFormat::Json => print_json(responses)?,
        ResultFormat::Table => {
            print_table(&Table::of(&responses.nodes, &[("NODE", &|one| one.node.clone()), ("RESULT", &result)]))?;
        }
    }
    let failed: Vec<&NodeResponse> = responses.nodes.iter().filter(|node| node.error.is_some()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let text = format!("failed on {} of {} nodes", failed.len(), responses.nodes.len());
    Err(if failed.iter().all(|node| node.silent) { Failure::Unreachable(text) } else { Failure::Usage(text) })
}

pub fn rules(args: &RulesArgs, client: Option<&Path>) -> Result<(), Failure> {
    let server = Connection::open(args.target.client.or(client))?;
    let responses: NodeResponses = server.get(args.target.path()).find()?.json()?;
    if args.target.format == ResultFormat::Json {
        return print_results(&responses, ResultFormat::Json, |_| String::new());
    }
    let mut table = Table::new(&["NODE", "METRIC", "UNIT", ">EVERY", ">WINDOW", ">RULE"]);
    for response in &responses.nodes {
        if let Some(error) = &response.error {
            table.row(vec![response.node.clone(), format!("({error})")]);
        }
        let metrics = response.ok.as_ref().and_then(|ok| ok["metrics"].as_array());
        for metric in metrics.into_iter().flatten() {
            let text = |key: &str| metric[key].as_str().unwrap_or_default().to_owned();
            let length = |key: &str| metric[key].as_u64().map(|ns| Interval::from_ns(ns).to_string());
            table.row(vec![
                response.node.clone(),
                text("name"),
                text("unit"),
                length("interval_ns").unwrap_or_else(|| "off".to_owned()),
                length("window_ns").unwrap_or_default(),
                metric["rule"].to_string(),
            ]);
        }
    }
    print_table(&table)
}
