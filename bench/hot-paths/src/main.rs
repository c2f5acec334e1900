//! Counts the instructions of the hot paths and holds them against budgets: the guard against slower code that noise cannot fool.
//!
//! - In: the recorded and made-up data of `paths/`, the same on every run; the budgets of `bench/budgets/hot-paths.toml`.
//! - Out: the count of each path beside its budget; an error that names the path, the figure, and by how much it is over.
//! - Never: a clock. Callgrind counts the instructions in user space, whatever else the machine does meanwhile.

mod budgets;
mod callgrind;
mod check;
mod paths;
mod request;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Holds the instruction counts of the hot paths against their budgets")]
#[command(after_help = "Examples:\n  \
    cargo run --profile hot-paths -p wholegrain-hot-paths -- check\n  \
    cargo run --profile hot-paths -p wholegrain-hot-paths -- check --only encode-batch\n  \
    cargo run --profile hot-paths -p wholegrain-hot-paths -- check --update\n  \
    cargo run --profile hot-paths -p wholegrain-hot-paths -- list")]
struct HotPathsArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Counts under callgrind and compares with the budgets; exit status 1 when one is exceeded.
    Check(check::CheckOptions),
    /// The paths and their units.
    List,
    /// One path within callgrind: `check` starts it.
    #[command(hide = true)]
    Run { path: String },
}

fn main() -> ExitCode {
    let done = match HotPathsArguments::parse().command {
        Command::Check(options) => check::run(&options),
        Command::List => {
            for path in paths::ALL {
                println!("{:<16} {}", path.name, path.unit);
            }
            Ok(true)
        }
        Command::Run { path } => paths::run(&path).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
