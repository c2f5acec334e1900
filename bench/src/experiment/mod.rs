//! The experiment of the papers: workloads x monitors x sampling periods x repetitions, in random order, on one machine or a
//! cluster, resumable, with the statistics and the files that a report is made from.
//!
//! - In: an experiment's TOML file (`bench/experiments/`).
//! - Out: a folder with `experiment.toml`, `machine.json` and `runs.jsonl`. The Python package `bench/experiment` makes `monitors.json`,
//!   `results.parquet`, `histogram.parquet` and `summary.parquet` of it.
//! - Never: a run thrown away or made twice unsaid; a mean over runs of which some failed, unsaid.

mod children;
mod file;
mod launcher;
mod machine;
mod one_run;
mod plan;
mod records;
mod session;
mod summary;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde_json::json;
use wholegrain_model::Interval;

use plan::Plan;
use session::{End, Fresh, SessionOptions, estimate, minutes};
use summary::{SummaryOutput, summarize};

/// Exit codes of programs that a signal ended are its number above this.
const SIGNALLED: i32 = 128;

#[derive(clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make the runs of an experiment that are not made yet.
    ///
    /// Each run is on disk as soon as it is finished. After a Ctrl-C or a crash the same command goes on where it was; it refuses when
    /// the file, the seed, a program or a monitor's version is another one.
    #[command(after_help = "Examples:\n  \
        wholegrain-bench experiment run bench/experiments/quick.toml --dir target/bench/quick\n  \
        wholegrain-bench experiment run mine.toml --dir results --retry-failed")]
    Run {
        /// The experiment's TOML file; bench/src/experiment/README.md describes it.
        file: PathBuf,
        /// The folder of its results, made where it is not there; on a cluster one that all nodes see.
        #[arg(long)]
        dir: PathBuf,
        /// Move the old results aside and start again.
        #[arg(long)]
        fresh: bool,
        /// The same, but only when what is in the folder is another experiment's or another build's.
        #[arg(long, conflicts_with = "fresh")]
        fresh_when_changed: bool,
        /// Make those runs again that failed; what they failed of stays in the results.
        #[arg(long)]
        retry_failed: bool,
    },
    /// Print the order of the runs, about how long they take, and what is left out and why.
    #[command(
        after_help = "Example:\n  wholegrain-bench experiment plan bench/experiments/full.toml --seed 1 --json | jq .left_out"
    )]
    Plan {
        /// The experiment's TOML file.
        file: PathBuf,
        /// The seed, where the file has none. Without it one is drawn, and `run` draws another.
        #[arg(long)]
        seed: Option<u64>,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Print what the finished runs say, setting by setting, and write the Parquet files again.
    #[command(
        after_help = "Example:\n  wholegrain-bench experiment summary target/bench/quick --json | jq '.rows[] | select(.significant)'"
    )]
    Summary {
        /// The folder of an experiment's results, finished or not.
        dir: PathBuf,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    match &options.command {
        Command::Run { file, dir, fresh, fresh_when_changed, retry_failed } => {
            let fresh = match (fresh, fresh_when_changed) {
                (true, _) => Fresh::Always,
                (_, true) => Fresh::WhenChanged,
                _ => Fresh::Never,
            };
            let end = session::run(&SessionOptions { file, dir, fresh, retry_failed: *retry_failed })?;
            if let End::Stopped(signal) = end {
                eprintln!("stopped; the same command goes on where this one was");
                std::process::exit(SIGNALLED + signal);
            }
            Ok(())
        }
        Command::Plan { file, seed, json } => show_plan(file, *seed, *json),
        Command::Summary { dir, json } => {
            summarize(dir, if *json { SummaryOutput::Json } else { SummaryOutput::Table })
        }
    }
}

fn print_left_out(left_out: &[plan::LeftOut]) {
    for entry in left_out {
        let interval = Interval::from_ns(entry.interval_ns);
        println!("  left out: {} {} {interval}: {}", entry.monitor, entry.configuration, entry.reason);
    }
}

fn show_plan(file: &std::path::Path, seed: Option<u64>, as_json: bool) -> anyhow::Result<()> {
    let (experiment, _) = session::read(file)?;
    let site = launcher::Site::new(&experiment.launcher)?;
    let seed = match experiment.seed.or(seed) {
        Some(seed) => seed,
        None => session::draw_seed()?,
    };
    let plan = Plan::new(&experiment, seed, &plan::offers(&experiment), site.hosts())?;
    let seconds = estimate(&experiment, &plan, &[], plan.runs.iter().copied());
    let condition = |planned: &plan::Planned| &plan.conditions[planned.condition];
    if as_json {
        let runs: Vec<_> = plan
            .runs
            .iter()
            .map(|p| json!({ "run": p.run, "round": p.round, "warm_up": p.warm_up, "condition": condition(p) }))
            .collect();
        let all = json!({ "name": experiment.name, "seed": seed, "estimated_s": seconds, "runs": runs, "left_out": plan.left_out });
        println!("{all}");
        return Ok(());
    }
    for planned in &plan.runs {
        println!(
            "  {:>6}  round {:>3}{}  {}",
            planned.run + 1,
            planned.round + 1,
            if planned.warm_up { " (warm-up)" } else { "" },
            condition(planned)
        );
    }
    println!(
        "{}: {} runs, {} settings, seed {seed}, about {}",
        experiment.name,
        plan.runs.len(),
        plan.conditions.len(),
        minutes(seconds)
    );
    print_left_out(&plan.left_out);
    Ok(())
}
