//! The subcommands of `wholegrain config` for stored readings.

use std::path::Path;

use clap::Subcommand;
use wholegrain_api::MaintenanceKind;

use super::{backup, delete, lost, maintenance, retention, stats};
use crate::connection::Connection;
use crate::failure::Failure;

#[derive(Subcommand)]
pub enum DataCommand {
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

pub fn run(command: &DataCommand, client: Option<&Path>) -> Result<(), Failure> {
    let server = Connection::open(client)?;
    match command {
        DataCommand::Retention(args) => retention::run(args, &server),
        DataCommand::Delete(args) => delete::run(args, &server),
        DataCommand::Compact(args) => maintenance::run(MaintenanceKind::Compact, false, args, &server),
        DataCommand::Verify(args) => maintenance::run(MaintenanceKind::Verify, false, args, &server),
        DataCommand::Repair(args) => maintenance::run(MaintenanceKind::Repair, args.dry_run, &args.common, &server),
        DataCommand::Lost(args) => lost::run(args, &server),
        DataCommand::Stats(args) => stats::run(args, &server),
        DataCommand::Backup(args) => backup::run(args, &server),
    }
}
