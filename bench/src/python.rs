//! Starts the Python packages of `bench/`: experiment, monitors, workloads and what is compared with other systems.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use wholegrain_testing::checkout;

/// Words that a package parses itself.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct PackageArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Replaces this process by a package.
pub fn exec(package: &str, arguments: &PackageArguments) -> anyhow::Result<()> {
    Err(command(package)?.args(&arguments.words).exec()).context("starting Python: `make prepare` installs it in .venv")
}

fn command(package: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(checkout().join(".venv/bin/python"));
    command.args(["-m", package]).env("PYTHONPATH", checkout().join("bench"));
    command.env("WHOLEGRAIN_BENCH", std::env::current_exe().context("the path of this program")?);
    Ok(command)
}
