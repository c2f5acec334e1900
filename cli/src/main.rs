//! The `wholegrain` command: asks the server and the agents, starts them, and prints for people and programs.
//!
//! - In: the command line, `client.toml`, answers of the server (HTTPS) and of an agent (Unix socket or HTTPS).
//! - Out: tables, CSV, JSON and Parquet; messages on standard error; an exit code that scripts can rely on.
//! - Never: a whole answer in memory where it can stream; a colour or a progress bar into a file; a secret on the screen.
//!
//! One file for each subcommand. `connection.rs` finds and asks the server, `socket.rs` an agent on this machine, `rows/`
//! formats readings, `table.rs` everything else that is a table, `failure.rs` has the exit codes.

/// As the standard library's, but for a standard error that is closed: there is nobody to tell then, and what is being done goes on.
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
mod ctl;
mod doctor;
mod export;
mod failure;
mod import;
mod init;
mod jobs;
mod man;
mod no_match;
mod notation;
mod of_job;
mod output;
mod progress;
mod query;
mod range;
mod rule;
mod sensors;
mod server;
mod socket;
mod store;
mod up;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::EXIT_CODES;
use wholegrain_model::text::escaped;

const EXAMPLES: &str = "\
Examples:
  wholegrain up                               run server and agent
  wholegrain up --demo                        and a demonstration centre beside them
  wholegrain sensors --tree                   what there is
  wholegrain query MemAvailable --from -1h    readings
  wholegrain ca agent node0042                one more node";

/// Whole-system, fine-grain monitoring for HPC: from the chiller to one job's instructions.
#[derive(Parser)]
#[command(name = "wholegrain", version, arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
struct Cli {
    /// The client.toml that says where the server is; else ./var/client.toml, ~/.config/wholegrain/client.toml,
    /// /etc/wholegrain/client.toml
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
    Doctor(doctor::DoctorArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

impl Command {
    /// Whether it writes files that hold readings, or what belongs to them.
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

/// Files that are made from now on are not for everybody on this machine.
fn close_to_others() {
    // SAFETY: the calls cannot fail, and no other thread runs yet that makes files.
    unsafe {
        let before = libc::umask(0o027);
        libc::umask(before | 0o027);
    }
}

fn main() -> ExitCode {
    completions::answer_shell();
    let cli = Cli::parse();
    let client = cli.client.as_deref();
    if cli.command.writes_readings() {
        close_to_others();
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
        Command::Doctor(args) => doctor::run(args, client),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    };
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let (code, message) = failure.report();
    if let Some(message) = message {
        // What a message quotes can come from anybody.
        let lines: Vec<_> = message.split('\n').map(escaped).collect();
        eprintln!("{} {}", output::style::on_stderr().error("wholegrain:"), lines.join("\n"));
    }
    ExitCode::from(code)
}

/// The whole command line, for completions and manual pages.
fn command_line() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}
