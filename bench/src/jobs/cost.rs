//! CPU and ticks of the agent with all metrics of one job and of ten, beside a loop of the same reads.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use wholegrain_testing::Process;

use super::Jobs;
use crate::report::{aim, keep, line, measure_for, median};

#[derive(clap::Args)]
pub struct JobCostOptions {
    /// Length of each measuring window, seconds.
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Windows of each of the two, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Ticks to measure at, milliseconds.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10])]
    interval_ms: Vec<u64>,
    /// Numbers of concurrent jobs.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10])]
    jobs: Vec<usize>,
    /// The jobs' processes sleep in place of using a core each.
    #[arg(long)]
    idle: bool,
}

impl Default for JobCostOptions {
    fn default() -> Self {
        Self { seconds: 8.0, rounds: 5, interval_ms: vec![1, 10], jobs: vec![1, 10], idle: false }
    }
}

struct Window {
    us_per_tick: f64,
    made: f64,
    rss_kb: u64,
    /// us a tick of each kind of read, from the loop that takes the time.
    kinds_us: [f64; 3],
}

impl JobCostOptions {
    fn ticks(&self, interval_ms: u64) -> f64 {
        self.seconds * 1e3 / interval_ms as f64
    }

    fn bare(&self, interval_ms: u64, jobs: &Jobs, reads: &Path, time: bool) -> Window {
        let mut command = Command::new(std::env::current_exe().unwrap_or_default());
        command.args(["bare-jobs", "--interval-ms", &interval_ms.to_string(), "--reads"]).arg(reads);
        let mut process = Process::start(command.args(time.then_some("--time")), &jobs.site.site.path("bare.log"));
        measure_for(1.0);
        let before = process.cpu_ns();
        measure_for(self.seconds);
        let used = process.cpu_ns() - before;
        let rss_kb = process.status_kb("VmRSS");
        process.kill();
        let log = process.log();
        let last: Vec<f64> = log.lines().last().unwrap_or_default().split(' ').filter_map(|w| w.parse().ok()).collect();
        let (made, missed) = (last.first().copied().unwrap_or(0.0), last.get(1).copied().unwrap_or(0.0));
        let kind = |index: usize| last.get(2 + index).map_or(0.0, |ns| ns / 1e3 / made.max(1.0));
        Window {
            us_per_tick: used as f64 / 1e3 / self.ticks(interval_ms),
            made: made / (made + missed).max(1.0),
            rss_kb,
            kinds_us: [kind(0), kind(1), kind(2)],
        }
    }

    fn agent(&self, interval_ms: u64, jobs: &Jobs) -> Window {
        let mut process = jobs.start();
        measure_for(1.0);
        let (missed, samples) = (jobs.site.status("missed_ticks"), jobs.site.status("samples"));
        let before = process.cpu_ns();
        measure_for(self.seconds);
        let used = process.cpu_ns() - before;
        let missed = jobs.site.status("missed_ticks") - missed;
        let samples = jobs.site.status("samples") - samples;
        let rss_kb = process.status_kb("VmRSS");
        process.stop();
        Window {
            us_per_tick: used as f64 / 1e3 / self.ticks(interval_ms),
            made: samples as f64 / (samples + missed).max(1) as f64,
            rss_kb,
            kinds_us: [0.0; 3],
        }
    }

    fn compare(&self, count: usize, interval_ms: u64) -> anyhow::Result<serde_json::Value> {
        let jobs = Jobs::new(count, !self.idle)?;
        let _server = jobs.site.site.start_server();
        jobs.configure(&format!("{interval_ms}ms"));
        let mut first = jobs.start();
        let (reads, metrics) = (jobs.reads(&first)?, jobs.metrics().len());
        first.stop();
        let list = jobs.keep_reads(&reads)?;
        let pairs: Vec<(Window, Window)> = (0..self.rounds)
            .map(|round| {
                eprintln!("  {count} jobs at {interval_ms} ms: round {} of {}", round + 1, self.rounds);
                (self.bare(interval_ms, &jobs, &list, false), self.agent(interval_ms, &jobs))
            })
            .collect();
        let timed = self.bare(interval_ms, &jobs, &list, true);
        let of = |f: &dyn Fn(&(Window, Window)) -> f64| pairs.iter().map(f).collect::<Vec<f64>>();
        let ratios = of(&|(bare, agent)| agent.us_per_tick / bare.us_per_tick);
        let bare_us = median(&of(&|(bare, _)| bare.us_per_tick));
        let agent_us = median(&of(&|(_, agent)| agent.us_per_tick));
        let (made, bare_made) = (median(&of(&|(_, agent)| agent.made)), median(&of(&|(bare, _)| bare.made)));
        let rss_kb = pairs.iter().map(|(_, agent)| agent.rss_kb).max().unwrap_or(0);
        let [memory_us, perf_us, other_us] = timed.kinds_us;
        println!(" {count} jobs at {interval_ms} ms: {metrics} metrics each, {} reads a tick in all", reads.len());
        line("bare loop, us of CPU a tick", format!("{bare_us:.1}"), "");
        line("  of it memory.stat, us", format!("{memory_us:.1}"), "");
        line("  of it perf, us", format!("{perf_us:.1}"), "");
        line("  of it other files, us", format!("{other_us:.1}"), "");
        line("agent, us of CPU a tick", format!("{agent_us:.1}"), "");
        line("agent, % of a core", format!("{:.1}", agent_us / interval_ms as f64 / 10.0), "");
        aim("ratio, median of pairs", median(&ratios), 2, 1.5, "1.5, goal 1.25");
        line("ticks made by the bare loop, %", format!("{:.3}", bare_made * 100.0), "");
        line("ticks made by the agent, %", format!("{:.3}", made * 100.0), "every tick");
        line("agent's resident memory, MB", format!("{:.1}", rss_kb as f64 / 1e3), "");
        Ok(json!({ "jobs": count, "interval_ms": interval_ms, "metrics": metrics, "reads": reads.len(),
                   "bare_us": bare_us, "agent_us": agent_us, "ratios": ratios, "ticks_made": made,
                   "bare_ticks_made": bare_made, "rss_kb": rss_kb, "memory_stat_us": memory_us, "perf_us": perf_us,
                   "other_us": other_us }))
    }
}

pub fn run(options: &JobCostOptions) -> anyhow::Result<()> {
    println!(
        "agent: all metrics of jobs, beside a bare loop of the same reads ({} x {} s each)",
        options.rounds, options.seconds
    );
    let mut figures = Vec::new();
    for &count in &options.jobs {
        for &interval_ms in &options.interval_ms {
            figures.push(options.compare(count, interval_ms)?);
        }
    }
    keep("job-cost", json!({ "cases": figures, "seconds": options.seconds, "rounds": options.rounds }))
}
