//! Starts the Python package `bench/experiment`, which makes the tables and the statistics of the finished runs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use wholegrain_testing::checkout;

/// What the summary prints; it always writes its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryOutput {
    Table,
    Json,
    Nothing,
}

/// Summarises a folder of results.
pub fn summarize(dir: &Path, output: SummaryOutput) -> anyhow::Result<()> {
    let python = checkout().join(".venv/bin/python");
    let mut command = Command::new(&python);
    command.env("PYTHONPATH", checkout().join("bench")).args(["-m", "experiment", "summary"]).arg(dir);
    match output {
        SummaryOutput::Table => {}
        SummaryOutput::Json => drop(command.arg("--json")),
        SummaryOutput::Nothing => drop(command.arg("--quiet")),
    }
    let status =
        command.status().with_context(|| format!("starting {}: `make prepare` installs it", python.display()))?;
    ensure!(status.success(), "the summary of {} was not made: the reason is above", dir.display());
    Ok(())
}
