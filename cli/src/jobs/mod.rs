//! `wholegrain jobs`: lists jobs, and shows and changes one. A file for each subcommand.

mod boost;
mod energy;
mod list;
mod listed;
mod show;
mod stats;

use std::path::Path;

use clap::{Args, Subcommand};

use crate::client_file::ClientOption;
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  wholegrain jobs                                  the newest hundred
  wholegrain jobs --running --user anna            running jobs of one user
  wholegrain jobs --node 'node00*' --since -1d     jobs on these nodes in the last day
  wholegrain jobs --format csv --limit 10000 > jobs.csv
  wholegrain jobs show 4711                        one job: nodes, times, use, data quality
  wholegrain jobs stats 4711 power                 minimum, mean, maximum and imbalance of its nodes
  wholegrain jobs energy 4711                      its energy, and the part of its time that was measured
  wholegrain jobs boost 4711 --metrics 'perf/*' --every 1ms --for 10m";

/// List jobs, show one, and change the sampling of its metrics
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct JobsArgs {
    #[command(flatten)]
    list: list::ListJobsArgs,
    #[command(flatten)]
    client: ClientOption,
    #[command(subcommand)]
    command: Option<JobsCommand>,
}

#[derive(Subcommand)]
enum JobsCommand {
    Show(show::ShowJobArgs),
    Stats(stats::StatsArgs),
    Energy(energy::EnergyArgs),
    Boost(boost::BoostArgs),
    Unboost(boost::UnboostArgs),
    Rules(boost::RulesArgs),
}

pub fn run(args: &JobsArgs, client: Option<&Path>) -> Result<(), Failure> {
    let client = args.client.or(client);
    match &args.command {
        None => list::run(&args.list, client),
        Some(JobsCommand::Show(show)) => show::run(show, client),
        Some(JobsCommand::Stats(stats)) => stats::run(stats, client),
        Some(JobsCommand::Energy(energy)) => energy::run(energy, client),
        Some(JobsCommand::Boost(boost)) => boost::boost(boost, client),
        Some(JobsCommand::Unboost(unboost)) => boost::unboost(unboost, client),
        Some(JobsCommand::Rules(rules)) => boost::rules(rules, client),
    }
}
