//! `wholegrain config`: settings of the running server, and maintenance of its store. One file for each subcommand.

use std::path::Path;

use clap::{Args, Subcommand};
use wholegrain_api::MaintenanceKind;

use crate::connection::Connection;
use crate::failure::Failure;

mod backup;
mod delete;
mod lost;
mod maintenance;
mod retention;
mod sensor;
mod stats;
mod virtuals;

const EXAMPLES: &str = "\
Examples:
  wholegrain config sensor set '/lrz/**/power' --unit W
  wholegrain config virtual list
  wholegrain config retention list
  wholegrain config stats";

/// Set properties of sensors, define virtual sensors, and maintain stored readings
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Units, scales, kinds and descriptions of sensors
    Sensor(Box<sensor::SensorArgs>),
    /// Sensors computed from other sensors
    Virtual(virtuals::VirtualArgs),
    /// Show and set how long readings are kept
    #[command(after_help = retention::HELP)]
    Retention(retention::RetentionArgs),
    /// Delete readings of a range of time
    #[command(after_help = delete::HELP)]
    Delete(delete::DeleteArgs),
    /// Merge the small blocks of each day
    #[command(after_help = maintenance::HELP)]
    Compact(maintenance::MaintenanceArgs),
    /// Compare every file of the running server with its checksums; exit code 4 if any is damaged
    #[command(after_help = maintenance::HELP)]
    Verify(maintenance::MaintenanceArgs),
    /// Keep the readable part of damaged files and move them away; exit code 4 if readings are lost
    #[command(after_help = maintenance::HELP)]
    Repair(maintenance::RepairArgs),
    /// List and acknowledge losses of acknowledged readings
    #[command(after_help = lost::HELP)]
    Lost(lost::LostArgs),
    /// Show statistics by subtree: sensors, rate, readings, bytes, oldest, newest
    #[command(after_help = stats::HELP)]
    Stats(stats::StatsArgs),
    /// Copy the store to this machine while the server runs
    #[command(after_help = backup::HELP)]
    Backup(backup::BackupArgs),
}

pub fn run(args: &ConfigArgs, client: Option<&Path>) -> Result<(), Failure> {
    let open = || Connection::open(client);
    match &args.command {
        ConfigCommand::Sensor(args) => sensor::run(args, client),
        ConfigCommand::Virtual(args) => virtuals::run(args, client),
        ConfigCommand::Retention(args) => retention::run(args, &open()?),
        ConfigCommand::Delete(args) => delete::run(args, &open()?),
        ConfigCommand::Compact(args) => maintenance::run(MaintenanceKind::Compact, false, args, &open()?),
        ConfigCommand::Verify(args) => maintenance::run(MaintenanceKind::Verify, false, args, &open()?),
        ConfigCommand::Repair(args) => maintenance::run(MaintenanceKind::Repair, args.dry_run, &args.common, &open()?),
        ConfigCommand::Lost(args) => lost::run(args, &open()?),
        ConfigCommand::Stats(args) => stats::run(args, &open()?),
        ConfigCommand::Backup(args) => backup::run(args, &open()?),
    }
}
