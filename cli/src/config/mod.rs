//! `wholegrain config`: settings of the running server, and maintenance of its store. One file for each subcommand.

use std::path::Path;

use clap::{Args, Subcommand};

use crate::failure::Failure;

mod backup;
mod data;
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
