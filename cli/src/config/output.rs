//! The option `--json`, and the output of the subcommands that have it.

use std::io::{self, IsTerminal};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::style::Style;
use crate::output::{Output, print, print_json};

#[derive(Args)]
pub struct JsonOption {
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints the value as JSON if the option asks for it, else with `write`.
pub fn print_as(
    option: &JsonOption,
    value: &impl Serialize,
    write: impl FnOnce(Style, &mut Output) -> io::Result<()>,
) -> Result<(), Failure> {
    if option.json { print_json(value) } else { print(write) }
}

/// A progress bar in bytes, if standard error is a terminal.
pub fn progress_bar() -> Option<ProgressBar> {
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {bytes} of {total_bytes}  {elapsed}");
    std::io::stderr().is_terminal().then(|| match style {
        Ok(style) => ProgressBar::new(0).with_style(style),
        Err(_) => ProgressBar::new(0),
    })
}
