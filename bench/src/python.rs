//! Starts the Python packages of `bench/`: experiment, monitors, workloads, and the costs of one agent.

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
pub fn exec(package: &str, words: &[&str], arguments: &PackageArguments) -> anyhow::Result<()> {
    let error = command(package)?.args(words).args(&arguments.words).exec();
    Err(error).context("starting Python: `make prepare` installs it in .venv")
}

/// Runs a package with its defaults.
pub fn run(package: &str, words: &[&str]) -> anyhow::Result<()> {
    let status = command(package)?.args(words).status();
    let status = status.context("starting Python: `make prepare` installs it in .venv")?;
    anyhow::ensure!(status.success(), "it failed ({status}): the reason is above");
    Ok(())
}

fn command(package: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(checkout().join(".venv/bin/python"));
    command.args(["-m", package]).env("PYTHONPATH", checkout().join("bench"));
    command.env("WHOLEGRAIN_BENCH", std::env::current_exe().context("the path of this program")?);
    let words: Vec<String> = std::env::args().skip(1).collect();
    command.env("WHOLEGRAIN_BENCH_COMMAND", words.join(" "));
    Ok(command)
}
