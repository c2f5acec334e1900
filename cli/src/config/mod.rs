//! `wholegrain config`: what is set at the server while it runs, and the care of what it holds. One file for each thing.

use std::path::Path;

use clap::{Args, Subcommand};

use crate::failure::Failure;

pub mod data;
mod lost;
mod sensor;
mod virtuals;

/// Set properties of sensors, define virtual sensors, and take care of the data
#[derive(Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Units, scales, kinds and descriptions of sensors
    Sensor(Box<sensor::SensorArgs>),
    /// Sensors that are computed from others
    Virtual(virtuals::VirtualArgs),
    #[command(flatten)]
    Data(data::DataCommand),
}

/// Runs the subcommand.
pub fn run(args: &ConfigArgs, client: Option<&Path>) -> Result<(), Failure> {
    match &args.command {
        ConfigCommand::Sensor(args) => sensor::run(args, client),
        ConfigCommand::Virtual(args) => virtuals::run(args, client),
        ConfigCommand::Data(command) => data::run(command, client),
    }
}
