//! `wholegrain config`: settings of the running server, and the maintenance of its store. A file for each subcommand.

use std::path::Path;

use clap::{Args, Subcommand};

use crate::failure::Failure;

mod backup;
mod data;
mod delete;
mod lost;
mod maintenance;
mod output;
mod retention;
mod sensor;
mod stats;
mod virtuals;

pub use output::progress_bar;

/// Set properties of sensors, define virtual sensors, and maintain stored readings
#[derive(Args)]
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
    #[command(flatten)]
    Data(data::DataCommand),
}

pub fn run(args: &ConfigArgs, client: Option<&Path>) -> Result<(), Failure> {
    match &args.command {
        ConfigCommand::Sensor(args) => sensor::run(args, client),
        ConfigCommand::Virtual(args) => virtuals::run(args, client),
        ConfigCommand::Data(command) => data::run(command, client),
    }
}
