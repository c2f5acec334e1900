//! Many concurrent jobs at an ordinary rate: CPU, memory and descriptors of the agent.

use serde_json::json;
use wholegrain_testing::jobs::Descriptors;

use super::Jobs;
use crate::report::{keep, line, measure_for};

#[derive(clap::Args)]
pub struct JobManyOptions {
    /// Number of concurrent jobs.
    #[arg(long, default_value_t = 200)]
    jobs: usize,
    /// How often everything of each is read, milliseconds.
    #[arg(long, default_value_t = 1000)]
    interval_ms: u64,
    /// Length of the measurement, seconds.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
}

impl Default for JobManyOptions {
    fn default() -> Self {
        Self { jobs: 200, interval_ms: 1000, seconds: 60.0 }
    }
}

pub fn run(options: &JobManyOptions) -> anyhow::Result<()> {
    println!("agent: {} concurrent jobs every {} ms for {} s", options.jobs, options.interval_ms, options.seconds);
    // Sleeping processes: hundreds of busy ones would measure the scheduler.
    let jobs = Jobs::new(options.jobs, false)?;
    let mut server = jobs.site.site.start_server();
    jobs.configure(&format!("{}ms", options.interval_ms));
    let mut agent = jobs.start();
    let metrics = jobs.metrics().len();
    measure_for(2.0);
    let (samples, missed) = (jobs.site.status("samples"), jobs.site.status("missed_ticks"));
    let (used, served) = (agent.cpu_ns(), server.cpu_ns());
    measure_for(options.seconds);
    let core = |ns: u64| ns as f64 / 1e9 / options.seconds * 100.0;
    let (cpu, server_cpu) = (core(agent.cpu_ns() - used), core(server.cpu_ns() - served));
    let samples = jobs.site.status("samples") - samples;
    let missed = jobs.site.status("missed_ticks") - missed;
    let rss_kb = agent.status_kb("VmRSS");
    let open = Descriptors::of(agent.id());
    let readings = (options.jobs * metrics) as f64 * 1e3 / options.interval_ms as f64;
    line("metrics of each job", metrics, "");
    line("readings a second, about", format!("{readings:.0}"), "");
    line("agent's CPU, % of a core", format!("{cpu:.2}"), "");
    line(
        "  of it a job, us a tick",
        format!("{:.1}", cpu * options.interval_ms as f64 * 10.0 / options.jobs as f64),
        "",
    );
    line("server's CPU, % of a core", format!("{server_cpu:.2}"), "");
    line("agent's resident memory, MB", format!("{:.1}", rss_kb as f64 / 1e3), "");
    line("  of it a job, kB", format!("{:.0}", rss_kb as f64 / options.jobs as f64), "");
    line("agent's descriptors", open.all, "");
    line("  of them perf events", open.perf, "");
    line("inotify watches", open.watches, "");
    line("samples, and ticks missed", format!("{samples} {missed}"), "");
    agent.stop();
    server.stop();
    keep(
        "job-many",
        json!({ "jobs": options.jobs, "interval_ms": options.interval_ms, "metrics": metrics,
        "cpu_percent": cpu, "server_cpu_percent": server_cpu, "rss_kb": rss_kb, "descriptors": open.all,
        "perf_descriptors": open.perf, "watches": open.watches, "samples": samples, "missed_ticks": missed }),
    )
}
