//! `wholegrain server`: runs the server in this process, or changes the running one.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use wholegrain_api::{LogState, ReloadResult, paths};
use wholegrain_model::{Interval, LogLevel};
use wholegrain_server::{ServerConfig, log::filter};

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::print;

const EXAMPLES: &str = "\
`log` and `reload` send requests to the server of client.toml. A reload does the same as SIGHUP and `systemctl reload`, and prints the \
changed settings.

Examples:
  wholegrain server --config var/server/server.toml --check
  wholegrain server --config /etc/wholegrain/server.toml
  wholegrain server log debug --for 10min
  wholegrain server reload";

/// Run the server, which receives, stores and answers; or change the running one
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct ServerArgs {
    /// The configuration of the server
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Only check the configuration and print its main settings
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<ServerCommand>,
}

#[derive(Subcommand)]
enum ServerCommand {
    /// Show or change the log level of the running server
    #[command(after_help = EXAMPLES)]
    Log {
        /// The new level [default: print the current level]
        #[arg(value_parser = level_parser())]
        level: Option<LogLevel>,
        /// How long, such as 10min; then the configured level applies again [default: until a reload or restart]
        #[arg(long = "for", value_name = "LENGTH", requires = "level")]
        within: Option<Interval>,
        #[command(flatten)]
        client: ClientOption,
    },
    /// Reload configuration and certificates of the running server; connections stay
    #[command(after_help = EXAMPLES)]
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
    let config = ServerConfig::load(file).map_err(Failure::usage)?;
    if check {
        let off = || "off".to_owned();
        println!("{} is valid", file.display());
        println!("data      {}", config.data.display());
        println!("MQTT/TLS  {}", config.mqtt.tls_listen.clone().unwrap_or_else(off));
        println!("MQTT      {}", config.mqtt.listen.clone().unwrap_or_else(off));
        println!("HTTPS     {}", config.http.listen.clone().unwrap_or_else(off));
        return Ok(());
    }
    write_log(filter(config.log));
    // The server itself logs its addresses.
    wholegrain_server::run_until_signal(config, |_| {})?;
    Ok(())
}

/// Log lines to standard error, of a level that can change.
fn write_log(level: LevelFilter) {
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // While Cassandra is away, its driver reports each attempt of each connection. The store's own lines have the reasons, once.
    let of_driver = |level: LevelFilter| if level < LevelFilter::DEBUG { LevelFilter::OFF } else { level };
    let of_all = move |level: LevelFilter| Targets::new().with_default(level).with_target("scylla", of_driver(level));
    let (level, switch) = tracing_subscriber::reload::Layer::new(of_all(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours).with_target(false);
    tracing_subscriber::registry().with(level).with(lines).init();
    wholegrain_server::log::on_change(move |level| {
        // Fails only when the log itself is gone.
        let _ = switch.reload(of_all(filter(level)));
    });
}

fn log(level: Option<LogLevel>, within: Option<Interval>, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(client)?;
    let request = match level {
        None => connection.get(paths::LOG),
        Some(level) => connection.put(paths::LOG).query("level", level).each("for", within),
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
