//! `wholegrain jobs`: lists jobs, and shows and changes one. A file for each subcommand.

mod boost;
mod energy;
mod job_fields;
mod list;
mod show;
mod stats;

use std::path::Path;

use clap::{Args, Subcommand};

use crate::client_file::ClientOption;
use crate::failure::{EXIT_CODES, Failure};
use crate::notation::TIMES;

const EXAMPLES: &str = "\
Examples:
  wholegrain jobs                                  the newest hundred
  wholegrain jobs --running --user anna            what runs of one user
  wholegrain jobs --node 'node00*' --since -1d     what was on these nodes within a day
  wholegrain jobs --format csv --limit 10000 > jobs.csv
  wholegrain jobs show 4711                        one job: where, when, what it used, data quality
  wholegrain jobs stats 4711 power                 least, mean, greatest and balance over its nodes
  wholegrain jobs energy 4711                      its energy, and how much of its time that is of
  wholegrain jobs boost 4711 --metrics 'perf/*' --every 1ms --for 10m";

/// List jobs, show what is known of one, and change what is sampled of it
#[derive(Args)]
#[command(after_help = format!("{TIMES}\n\n{EXAMPLES}\n\n{EXIT_CODES}"), args_conflicts_with_subcommands = true)]
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
