//! `wholegrain server`: the server in this process, or a question to the one that runs.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use wholegrain_api::{LogState, ReloadResult, paths};
use wholegrain_model::{Interval, LogLevel};
use wholegrain_server::{ServerConfig, log::filter};

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::{EXIT_CODES, Failure};
use crate::notation::LENGTHS;
use crate::output::print;

const EXAMPLES: &str = "\
`log` and `reload` ask the server that client.toml names. A reload does what SIGHUP and `systemctl reload` do, and says here what \
came of it.

Examples:
  wholegrain server --config var/server/server.toml --check
  wholegrain server --config /etc/wholegrain/server.toml
  wholegrain server log debug --for 10min
  wholegrain server reload";

/// Run the server: takes what agents publish, keeps it, and answers; or change the one that runs
#[derive(Args)]
#[command(after_help = format!("{LENGTHS}\n\n{EXAMPLES}\n\n{EXIT_CODES}"))]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct ServerArgs {
    /// The configuration of the server
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Only read the configuration, say what it means, and end
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<ServerCommand>,
}

#[derive(Subcommand)]
enum ServerCommand {
    /// Say or change how much the running server logs
    Log {
        /// The lowest level that is logged; without it, says what it is
        #[arg(value_parser = level_parser())]
        level: Option<LogLevel>,
        /// How long, such as 10min; then the configured level holds again. Without it: until a reload or restart
        #[arg(long = "for", value_name = "LENGTH", requires = "level")]
        within: Option<Interval>,
        #[command(flatten)]
        client: ClientOption,
    },
    /// Let the running server read its configuration and certificates again; no connection ends of it
    Reload {
        #[command(flatten)]
        client: ClientOption,
    },
}

fn level_parser() -> impl TypedValueParser<Value = LogLevel> {
    PossibleValuesParser::new(LogLevel::ALL.map(LogLevel::name)).try_map(|name| name.parse::<LogLevel>())
}

/// Runs the subcommand; the server itself ends on SIGINT or SIGTERM.
pub fn run(args: &ServerArgs, client: Option<&Path>) -> Result<(), Failure> {
    match (&args.command, &args.config) {
        (Some(ServerCommand::Log { level, within, client: named }), _) => log(*level, *within, named.or(client)),
        (Some(ServerCommand::Reload { client: named }), _) => reload(named.or(client)),
        (None, Some(config)) => serve(config, args.check),
        (None, None) => Err(Failure::Usage("which configuration? name it with --config FILE".into())),
    }
}

fn serve(file: &Path, check: bool) -> Result<(), Failure> {
    let config = ServerConfig::load(file).map_err(|error| Failure::Usage(error.to_string()))?;
    if check {
        let off = || "off".to_owned();
        println!("{} is good", file.display());
        println!("data      {}", config.data.display());
        println!("MQTT/TLS  {}", config.mqtt.tls_listen.clone().unwrap_or_else(off));
        println!("MQTT      {}", config.mqtt.listen.clone().unwrap_or_else(off));
        println!("HTTPS     {}", config.http.listen.clone().unwrap_or_else(off));
        return Ok(());
    }
    write_log(filter(config.log));
    // The server itself logs where it listens.
    wholegrain_server::run_until_signal(config, |_| {})?;
    Ok(())
}

/// Log lines to standard error, of a level that can change.
fn write_log(level: LevelFilter) {
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (level, switch) = tracing_subscriber::reload::Layer::new(level);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours).with_target(false);
    tracing_subscriber::registry().with(level).with(lines).init();
    wholegrain_server::log::on_change(move |level| {
        // Fails only when the log itself is gone.
        let _ = switch.reload(filter(level));
    });
}

fn log(level: Option<LogLevel>, within: Option<Interval>, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(client)?;
    let request = match level {
        None => connection.get(paths::LOG),
        Some(level) => {
            let request = connection.put(paths::LOG).query("level", level);
            within.iter().fold(request, |request, within| request.query("for", within))
        }
    };
    let LogState { level, configured, until } = request.send()?.json()?;
    let mut line = format!("level {level}");
    if let Some(until) = until {
        line += &format!(" until {until}");
    }
    if level != configured {
        line += &format!(", configured {configured}");
    }
    print_lines(&[line])
}

fn reload(client: Option<&Path>) -> Result<(), Failure> {
    let ReloadResult { changed, needs_restart } = Connection::open(client)?.post(paths::RELOAD).send()?.json()?;
    let mut lines: Vec<String> = changed.iter().map(|name| format!("changed        {name}")).collect();
    lines.extend(needs_restart.iter().map(|name| format!("needs restart  {name}")));
    if lines.is_empty() {
        lines.push("nothing has changed".to_owned());
    }
    print_lines(&lines)
}

fn print_lines(lines: &[String]) -> Result<(), Failure> {
    print(|_, out| lines.iter().try_for_each(|line| writeln!(out, "{line}")))
}
