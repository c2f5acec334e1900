//! The `wholegrain` command: sends requests to the server and to agents, starts them, and prints for people and programs.
//!
//! - In: the command line, `client.toml`, responses of the server (HTTPS) and of an agent (Unix socket or HTTPS).
//! - Out: tables, CSV, JSON and Parquet; messages on standard error; an exit code that scripts can rely on.
//! - Never: a whole response in memory where it can stream; a colour or a progress bar in a file; a secret on the screen.
//!
//! One file or folder for each subcommand. `connection.rs` sends requests to the server, `socket.rs` to an agent on this machine. `output/`
//! prints readings, tables and JSON, `failure.rs` has the exit codes, `help.rs` the common parts of help texts.

/// As the standard library's, but ignores a closed standard error: the command continues without its messages.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
/// As [`eprintln`], without an end of line.
macro_rules! eprint {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($text)*);
    }};
}

mod auth;
mod ca;
mod client_file;
mod completions;
mod config;
mod connection;
mod csv;
mod ctl;
mod doctor;
mod export;
mod failure;
mod help;
mod import;
mod init;
mod job_arguments;
mod jobs;
mod man;
mod no_match;
mod output;
mod plugin;
mod progress;
mod query;
mod range;
mod reading_stream;
mod remarks;
mod rule;
mod sensors;
mod server;
mod socket;
mod store;
mod up;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use wholegrain_model::text::escaped;

const EXAMPLES: &str = "\
Examples:
  wholegrain up                               run server and agent
  wholegrain up --demo                        the same, with a simulated centre
  wholegrain sensors --tree                   list the sensors
  wholegrain query MemAvailable --from -1h    readings
  wholegrain ca agent node0042                add a node";

/// Whole-system, fine-grain monitoring for HPC: from the chiller to one job's instructions.
#[derive(Parser)]
#[command(name = "wholegrain", version, arg_required_else_help = true, max_term_width = 110, after_help = EXAMPLES)]
struct Cli {
    /// The client.toml with the server's address [default: the first of ./var/client.toml, ~/.config/wholegrain/client.toml,
    /// /etc/wholegrain/client.toml]
    #[arg(long, value_name = "FILE", env = "WHOLEGRAIN_CLIENT", hide_env_values = true)]
    client: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::UpArgs),
    Init(init::InitArgs),
    Server(server::ServerArgs),
    Ca(ca::CaArgs),
    Auth(auth::AuthArgs),
    Sensors(sensors::SensorsArgs),
    Query(query::QueryArgs),
    Watch(watch::WatchArgs),
    Jobs(jobs::JobsArgs),
    Import(import::ImportArgs),
    Export(export::ExportArgs),
    Config(config::ConfigArgs),
    Store(store::StoreArgs),
    Ctl(ctl::CtlArgs),
    Plugin(plugin::PluginArgs),
    Doctor(doctor::DoctorArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

impl Command {
    /// Whether it writes files with readings or with data about them.
    fn writes_readings(&self) -> bool {
        matches!(
            self,
            Command::Up(_)
                | Command::Server(_)
                | Command::Import(_)
                | Command::Export(_)
                | Command::Config(_)
                | Command::Store(_)
        )
    }
}

/// Removes write permission of the group, and all permissions of others, from new files.
fn restrict_new_files() {
    // SAFETY: the calls cannot fail, and no other thread runs yet that makes files.
    unsafe {
        let before = libc::umask(0o027);
        libc::umask(before | 0o027);
    }
}

fn main() -> ExitCode {
    completions::answer_shell(command_line);
    let cli = Cli::from_arg_matches(&command_line().get_matches()).unwrap_or_else(|error| error.exit());
    let client = cli.client.as_deref();
    if cli.command.writes_readings() {
        restrict_new_files();
    }
    let result = match &cli.command {
        Command::Up(args) => up::run(args),
        Command::Init(args) => init::run(args),
        Command::Server(args) => server::run(args, client),
        Command::Ca(args) => ca::run(args),
        Command::Auth(args) => auth::run(args),
        Command::Sensors(args) => sensors::run(args, client),
        Command::Query(args) => query::run(args, client),
        Command::Watch(args) => watch::run(args, client),
        Command::Jobs(args) => jobs::run(args, client),
        Command::Import(args) => import::run(args, client),
        Command::Export(args) => export::run(args, client),
        Command::Config(args) => config::run(args, client),
        Command::Store(args) => store::run(args),
        Command::Ctl(args) => ctl::run(args, client),
        Command::Plugin(args) => plugin::run(args),
        Command::Doctor(args) => doctor::run(args, client),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args, command_line()),
    };
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let (code, message) = failure.report();
    if let Some(message) = message {
        // A message can quote untrusted text with control characters.
        let lines: Vec<_> = message.split('\n').map(escaped).collect();
        eprintln!("{} {}", output::style::on_stderr().error("wholegrain:"), lines.join("\n"));
    }
    ExitCode::from(code)
}

/// The whole command line, also for completions and manual pages.
fn command_line() -> clap::Command {
    help::complete(Cli::command())
}
