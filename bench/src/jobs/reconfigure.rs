//! From the request for another interval to the first sample at it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use wholegrain_model::Timestamp;
use wholegrain_testing::jobs::{JobSite, instant};
use wholegrain_testing::probe::now_ns;
use wholegrain_testing::wait_until;

use super::{Jobs, configure};
use crate::report::{aim, keep, line, quantile};

/// Intervals that are asked for in turn, ms: no multiple of each other, so that a sample tells which it is of.
const INTERVALS_MS: [i64; 2] = [10, 14];
const METRIC: &str = "cpu/usage";
/// How long a change may take before the benchmark gives up.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How often is looked for the new rate.
const LOOK: Duration = Duration::from_millis(5);

#[derive(clap::Args)]
pub struct JobReconfigureOptions {
    /// Number of measured changes.
    #[arg(long, default_value_t = 100)]
    changes: usize,
    /// Jobs on the node meanwhile; the changes are of one of them.
    #[arg(long, default_value_t = 10)]
    jobs: usize,
    /// Nodes of the job, for the changes through the server: as many agents, all on this machine.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
}

impl Default for JobReconfigureOptions {
    fn default() -> Self {
        Self { changes: 100, jobs: 10, nodes: 3 }
    }
}

pub fn run(options: &JobReconfigureOptions) -> anyhow::Result<()> {
    let JobReconfigureOptions { changes, jobs: count, nodes } = *options;
    println!(
        "reconfiguration: {changes} changes of one of {count} jobs, of one agent and of {nodes} through the server"
    );
    let jobs = Jobs::new(count, false)?;
    let _server = jobs.site.site.start_server();
    jobs.configure("1s");
    let names = (2..=nodes).map(|number| format!("node{number}"));
    let others: Vec<(String, JobSite)> = names.map(|name| (name.clone(), jobs.site.another(&name))).collect();
    let mut agents = vec![jobs.start()];
    for (name, site) in &others {
        configure(site, name, "1s");
        agents.push(site.start());
    }
    let all: Vec<&JobSite> = std::iter::once(&jobs.site).chain(others.iter().map(|(_, site)| site)).collect();
    wait_until("the server knows the job on every node", || all.iter().all(|site| site.record("1").is_some()));
    let mut figures = json!({ "changes": changes, "jobs": count, "nodes": nodes });
    for (way, ask, sites) in
        [("socket", by_socket as IntervalRequest, &all[..1]), ("server", by_server as IntervalRequest, &all[..])]
    {
        let mut first_ms = Vec::new();
        let mut answer_ms = Vec::new();
        for change in 0..changes {
            let (first, answer) = ask_and_see(sites, INTERVALS_MS[change % 2], ask)
                .with_context(|| format!("change {} by the {way}", change + 1))?;
            first_ms.push(first);
            answer_ms.push(answer);
            if change % 10 == 9 {
                eprintln!("  by the {way}: {} of {changes}", change + 1);
            }
        }
        println!(" by the {way}, {} agents", sites.len());
        line("until it is answered, median, ms", format!("{:.1}", quantile(&answer_ms, 0.5)), "");
        line(
            "first sample at the new rate on the last node, median, ms",
            format!("{:.1}", quantile(&first_ms, 0.5)),
            "",
        );
        let greatest = quantile(&first_ms, 1.0);
        aim("first sample at the new rate on the last node, slowest, ms", greatest, 1, 1000.0, "1000");
        figures[way] = json!({ "first_sample_ms": first_ms, "answer_ms": answer_ms });
    }
    keep("job-reconfigure", figures)
}

/// Asks for an interval.
type IntervalRequest = fn(&JobSite, i64) -> anyhow::Result<()>;

fn by_socket(site: &JobSite, interval_ms: i64) -> anyhow::Result<()> {
    let rule = json!({ "metrics": [METRIC], "jobs": "1", "every": format!("{interval_ms}ms"), "for": "10m" });
    let (status, body) = site.ask("POST", "/v1/rules", &rule.to_string()).context("the agent does not answer")?;
    ensure!((200..300).contains(&status), "refused: {status} {body}");
    Ok(())
}

fn by_server(site: &JobSite, interval_ms: i64) -> anyhow::Result<()> {
    let every = format!("{interval_ms}ms");
    let arguments = ["jobs", "boost", "1", "--metrics", METRIC, "--every", &every, "--for", "10m"];
    let output = site.site.run(&arguments);
    ensure!(output.status.success(), "refused: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Makes one change; ms from before the request to the first sample at the new rate of the agent that is last, and to the answer.
fn ask_and_see(sites: &[&JobSite], interval_ms: i64, ask: IntervalRequest) -> anyhow::Result<(f64, f64)> {
    let asked = now_ns();
    ask(sites[0], interval_ms)?;
    let answered = now_ns();
    let mut last = asked;
    for site in sites {
        last = last.max(first_since(site, asked, interval_ms * 1_000_000)?);
        // Rules do not pile up: those before the newest go, so that the newest stays in force.
        for id in own_rules(&site.get("/v1/rules").unwrap_or_default()).into_iter().rev().skip(1) {
            site.ask("DELETE", &format!("/v1/rules/{id}"), "");
        }
    }
    Ok(((last - asked) as f64 / 1e6, (answered - asked) as f64 / 1e6))
}

/// The first sample at an interval since a time.
fn first_since(site: &JobSite, asked: i64, interval_ns: i64) -> anyhow::Result<i64> {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        if let Some(first) = first_at(&history(site, asked), interval_ns) {
            return Ok(first);
        }
        std::thread::sleep(LOOK);
    }
    bail!("no sample every {} ms within {} s", interval_ns / 1_000_000, TIMEOUT.as_secs())
}

/// Numbers of the rules that somebody asked for, ascending.
fn own_rules(answer: &Value) -> Vec<u64> {
    let rows = answer.as_array().or_else(|| answer["rules"].as_array()).cloned().unwrap_or_default();
    let asked_for = rows.iter().filter(|row| !row["until"].is_null());
    let mut ids: Vec<u64> = asked_for.filter_map(|row| row["id"].as_u64()).collect();
    ids.sort_unstable();
    ids
}

/// Times of the metric's readings in the agent's cache from a time on, ascending.
fn history(site: &JobSite, from: i64) -> Vec<i64> {
    let path = format!("/v1/history?pattern=job/1/{METRIC}&from={}", Timestamp(from));
    let answer = site.get(&path).unwrap_or_default();
    let rows = answer["readings"].as_array().cloned().unwrap_or_default();
    let mut times: Vec<i64> = rows.iter().filter_map(|row| instant(&row["time"])).collect();
    times.sort_unstable();
    times
}

/// The first of two neighbours that are this far apart, within a tenth.
fn first_at(times: &[i64], interval_ns: i64) -> Option<i64> {
    let fits = |pair: &&[i64]| ((pair[1] - pair[0]) - interval_ns).abs() <= interval_ns / 10;
    times.windows(2).find(fits).map(|pair| pair[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_at_a_rate_is_found() {
        let times = [0, 10, 20, 28, 42, 56];
        assert_eq!((first_at(&times, 14), first_at(&times, 10), first_at(&times, 30)), (Some(28), Some(0), None));
        let rules = json!({ "rules": [{ "id": 3, "until": "2026-01-01T00:00:00Z" }, { "id": 1, "until": null }] });
        assert_eq!(own_rules(&rules), [3]);
    }
}
