//! What jobs notice: run time of programs of two processes with and without the agent, in random order.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use wholegrain_testing::cgroups::JobGroup;
use wholegrain_testing::{Random, wait_until};

use super::Jobs;
use crate::report::keep;
use crate::statistics::{Difference, Summary};
use crate::workloads::{Binding, Built, Launch, Prepared, Request, size_of_length};

/// Processes of each program.
const RANKS: usize = 2;

#[derive(clap::Args)]
pub struct Options {
    /// Runs of each program in each setting.
    #[arg(long, default_value_t = 20)]
    repetitions: usize,
    /// About how long one run is, seconds.
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Programs, as `workload list` has them: `compute` and `memory` need mpi.h of libopenmpi-dev, `hpl` needs hpcc.
    #[arg(long, value_delimiter = ',', default_values_t = ["compute".to_owned(), "memory".to_owned(), "hpl".to_owned()])]
    programs: Vec<String>,
    /// How often everything of the job is read, milliseconds; beside runs without the agent.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 10, 1])]
    interval_ms: Vec<u64>,
    /// A folder with mpi.h, where the compiler does not find it itself.
    #[arg(long)]
    include: Option<PathBuf>,
    /// The server runs with the others' priority. Without it the server, which is on another machine in a cluster, takes only what the
    /// programs leave.
    #[arg(long)]
    server_at_full_priority: bool,
}

/// One run to be made: which program, and how often the agent reads; `None` for no agent.
type Run = (usize, Option<u64>);

pub fn run(options: &Options) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let programs: Vec<Prepared> =
        options.programs.iter().map(|name| prepare(name, options, folder.path())).collect::<anyhow::Result<_>>()?;
    let mut random = Random::announced();
    // One job with a sleeping process in it; each program is started in its cgroups.
    let jobs = Jobs::new(1, false)?;
    let server = jobs.site.site.start_server();
    if !options.server_at_full_priority {
        // SAFETY: setpriority takes three numbers and touches no memory.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, server.id(), 19) };
    }
    let settings: Vec<Option<u64>> =
        std::iter::once(None).chain(options.interval_ms.iter().copied().map(Some)).collect();
    let all: Vec<Run> = (0..programs.len()).flat_map(|p| settings.iter().map(move |s| (p, *s))).collect();
    let mut seconds: Vec<(Run, f64)> = Vec::new();
    for round in 0..options.repetitions {
        // Each round makes each run once, in an order of its own: what drifts slowly meets all alike.
        let mut order = all.clone();
        for last in (1..order.len()).rev() {
            order.swap(last, random.within(0, last as u64 + 1) as usize);
        }
        for run in order {
            let took = one(&programs[run.0], run.1, &jobs)?;
            eprintln!(
                "  {} of {}: {} {} {took:.3} s",
                round + 1,
                options.repetitions,
                programs[run.0].name(),
                name(run.1)
            );
            seconds.push((run, took));
        }
    }
    drop(server);
    report(options, &programs, &settings, &seconds)
}

fn prepare(name: &str, options: &Options, dir: &Path) -> anyhow::Result<Prepared> {
    Prepared::new(&Request {
        name: name.to_owned(),
        size: size_of_length(name, options.seconds)?,
        ranks: RANKS,
        launch: Launch::new(None, Binding::Auto)?,
        built: Built::within(dir.to_owned(), options.include.clone()),
    })
}

/// Runs a program to its end in a job; the seconds of its own measuring.
fn in_job(program: &Prepared, job: &JobGroup) -> anyhow::Result<f64> {
    // The log is appended to, and each run wants one of its own.
    let folder = tempfile::tempdir()?;
    let mut watch = program.watch()?;
    let mut process = job.start(&mut program.command(), &folder.path().join("out"));
    // Longer than any test may wait for anything: a benchmark's runs are long.
    while process.runs() {
        watch.wait(Duration::from_millis(50));
    }
    let status = process.wait();
    ensure!(status.success(), "{} failed: {}", program.name(), process.log());
    let outcome = program.outcome(&process.log(), watch)?;
    ensure!(outcome.verified, "{}: the result was wrong: {}", program.name(), process.log());
    Ok(outcome.seconds)
}

fn one(program: &Prepared, interval_ms: Option<u64>, jobs: &Jobs) -> anyhow::Result<f64> {
    let agent = interval_ms.map(|ms| {
        jobs.configure(&format!("{ms}ms"));
        let agent = jobs.start();
        let before = jobs.site.status("samples");
        wait_until("the agent samples", || jobs.site.status("samples") > before + 2);
        agent
    });
    let took = in_job(program, jobs.first());
    if let Some(mut agent) = agent {
        agent.stop();
    }
    took
}

fn name(interval_ms: Option<u64>) -> String {
    interval_ms.map_or("without".to_owned(), |ms| format!("{ms} ms"))
}

fn report(
    options: &Options,
    programs: &[Prepared],
    settings: &[Option<u64>],
    seconds: &[(Run, f64)],
) -> anyhow::Result<()> {
    println!("run time of two processes with and without the agent, {} runs each in random order", options.repetitions);
    println!("  program  agent        mean s   deviation   difference %   95 % interval        significant");
    let mut figures = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        let of = |setting: Option<u64>| -> Vec<f64> {
            seconds.iter().filter(|(run, _)| *run == (index, setting)).map(|(_, s)| *s).collect()
        };
        let without = Summary::of(&of(None));
        for &setting in settings {
            let values = of(setting);
            let summary = Summary::of(&values);
            let deviation = summary.variance.sqrt();
            let shown =
                format!("  {:<8} {:<9} {:>9.3}   {deviation:>9.3}", program.name(), name(setting), summary.mean);
            if setting.is_none() {
                println!("{shown}");
                figures.push(json!({ "program": program.name(), "interval_ms": null, "seconds": values }));
                continue;
            }
            let difference = Difference::between(&without, &summary);
            let percent = |s: f64| s / without.mean * 100.0;
            let (low, high) = (difference.mean - difference.half_width, difference.mean + difference.half_width);
            let significant = difference.is_significant();
            println!(
                "{shown}   {:>+12.2}   {:>+7.2} to {:>+7.2}   {}",
                percent(difference.mean),
                percent(low),
                percent(high),
                if significant { "yes" } else { "no" }
            );
            figures.push(json!({ "program": program.name(), "interval_ms": setting, "seconds": values,
                "difference_percent": percent(difference.mean), "low_percent": percent(low), "high_percent": percent(high),
                "significant": significant }));
        }
    }
    keep("job-overhead", json!({ "repetitions": options.repetitions, "runs": figures }))
}
