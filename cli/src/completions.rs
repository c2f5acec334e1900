//! `wholegrain completions`: completions for a shell; names of sensors, jobs and virtual sensors come from the server.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Command};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use serde::de::DeserializeOwned;
use wholegrain_api::{JobPage, NameList, VirtualSensorList, paths};
use wholegrain_model::text::is_hidden;

use crate::connection::{Connection, Request};
use crate::failure::Failure;
use crate::output::print;

/// How long the shell waits for names at most.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The most names of one kind.
const LIST_MAX: usize = 500;
/// The variable that the shell's script sets to request completions.
const VARIABLE: &str = "WHOLEGRAIN_COMPLETE";

const EXAMPLES: &str = "\
Names of sensors, jobs and virtual sensors come from the server of client.toml, if it answers within a second.

Examples:
  source <(wholegrain completions bash)
  source <(wholegrain completions zsh)
  wholegrain completions fish | source";

/// Print completions for a shell
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell to complete for
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let (shell, name) = (args.shell.as_str(), "wholegrain");
    let shells = Shells::builtins();
    let completer = shells.completer(shell).ok_or_else(|| Failure::Failed(format!("no completions for {shell}")))?;
    print(|_, out| completer.write_registration(VARIABLE, name, name, name, out))
}

/// Answers a request for completions and ends the process; returns if the shell sent none.
pub fn answer_shell(command_line: fn() -> Command) {
    CompleteEnv::with_factory(|| with_completers(command_line())).var(VARIABLE).complete();
}

/// The command line with completers for the arguments that name sensors and jobs.
fn with_completers(command: Command) -> Command {
    let of_agent = command.get_name() == "ctl";
    let of_virtuals = command.get_name() == "virtual";
    let completed = command.mut_args(|argument| {
        let name = argument.get_value_names().and_then(|names| names.first()).map(|name| name.as_str().to_owned());
        match name.as_deref() {
            Some("PATTERN") => argument.add(ArgValueCompleter::new(sensors)),
            Some("ID") => argument.add(ArgValueCompleter::new(jobs)),
            _ => argument,
        }
    });
    match (of_agent, of_virtuals) {
        // An agent has other sensors than the server, and no ids of jobs to complete.
        (true, _) => completed,
        (_, true) => completed.mut_subcommands(|below| {
            below.mut_args(|argument| match argument.get_value_names() {
                Some([name]) if ["PATTERN", "PATH"].contains(&name.as_str()) => {
                    argument.add(ArgValueCompleter::new(virtuals))
                }
                _ => argument,
            })
        }),
        _ => completed.mut_subcommands(with_completers),
    }
}

fn sensors(begin: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begin) = begin.to_str() else { return Vec::new() };
    let list: Option<NameList> = fetch(|server| server.get(paths::NAMES).query("begin", begin));
    candidates(begin, list.into_iter().flat_map(|list| list.names))
}

fn jobs(begin: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begin) = begin.to_str() else { return Vec::new() };
    let page: Option<JobPage> = fetch(|server| server.get(paths::JOBS).query("limit", LIST_MAX));
    candidates(begin, page.into_iter().flat_map(|page| page.jobs).map(|job| job.job))
}

fn virtuals(begin: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begin) = begin.to_str() else { return Vec::new() };
    let list: Option<VirtualSensorList> = fetch(|server| server.get(paths::VIRTUAL));
    candidates(begin, list.into_iter().flat_map(|list| list.definitions).map(|one| one.definition.path))
}

/// The names with this beginning, except names that a shell could interpret.
fn candidates(begin: &str, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let safe = |name: &String| !name.chars().any(|c| is_hidden(c) || c.is_whitespace());
    let fitting = names.into_iter().filter(|name| name.starts_with(begin)).filter(safe);
    fitting.take(LIST_MAX).map(CompletionCandidate::new).collect()
}

/// A response of the server; `None` on any error, because a shell has no place for a message.
fn fetch<T: DeserializeOwned>(request: impl FnOnce(&Connection) -> Request<'_>) -> Option<T> {
    let named = std::env::var_os("WHOLEGRAIN_CLIENT").map(PathBuf::from);
    let connection = Connection::open(named.as_deref()).ok()?;
    request(&connection).within(TIMEOUT).send().ok()?.json().ok()
}
