//! The agent's program: reads arguments and configuration, and runs, checks or samples once.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use wholegrain_agent::{Config, Shutdown, agent, check, heap, once, plugins};
use wholegrain_model::LogLevel;

/// Usage or configuration is wrong.
const EXIT_USAGE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  wholegrain-agent --config /etc/wholegrain/agent.toml --check   validate, show the groups, topics and rates
  wholegrain-agent --config agent.toml --once --format json      read every sensor once
  wholegrain-agent --config agent.toml                           run until SIGTERM or SIGINT

Exit codes: 0 done, 1 failed, 2 arguments or configuration are wrong.
While it runs, `wholegrain ctl` controls it over its socket.";

/// Samples this machine and sends the readings to a Wholegrain server
#[derive(Parser)]
#[command(name = "wholegrain-agent", version, after_help = EXAMPLES)]
struct Arguments {
    /// The configuration file to read
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
    /// Validate, list groups with sensors, interval, topic and estimated rates, and exit
    #[arg(long, conflicts_with = "once")]
    check: bool,
    /// Sample every group once, print it, and exit
    #[arg(long)]
    once: bool,
    /// The format of --check and --once
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The lowest severity to log; overrides log_level of the configuration until the next reload
    #[arg(long, value_name = "LEVEL", value_parser = level_parser())]
    log_level: Option<LogLevel>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people to read
    Text,
    /// For programs, as JSON
    Json,
}

fn main() -> ExitCode {
    heap::limit();
    let mut raw = std::env::args().skip(1);
    if raw.next().as_deref() == Some(plugins::ARGUMENT) {
        return plugins::run_host(raw.next().as_deref());
    }
    let arguments = Arguments::parse();
    let mut config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("wholegrain-agent: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    config.log_level = arguments.log_level.unwrap_or(config.log_level);
    log(config.log_level);
    agent::raise_open_files();
    let result = if arguments.check {
        let report = check::check(&config);
        print(&report, check::text(&report), arguments.format).and_then(|()| all_run(&report.failures))
    } else if arguments.once {
        let once = once::once(&config);
        // On stderr: another program may parse the readings on stdout.
        once.notes.iter().for_each(|note| eprintln!("note: {note}"));
        print(&once, once::text(&once), arguments.format).and_then(|()| all_run(&once.failures))
    } else {
        run(config)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wholegrain-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn level_parser() -> impl TypedValueParser<Value = LogLevel> {
    PossibleValuesParser::new(LogLevel::ALL.map(LogLevel::name)).try_map(|name| name.parse::<LogLevel>())
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

fn log(level: LogLevel) {
    let colours = std::io::stderr().is_terminal();
    let (level, switch) = tracing_subscriber::reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_ansi(colours).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(level).with(lines).init();
    wholegrain_agent::log::on_change(move |level| {
        // Fails only if the log no longer exists.
        let _ = switch.reload(filter(level));
    });
}

/// Fails if a source or a plug-in cannot run.
fn all_run(failures: &[String]) -> anyhow::Result<()> {
    anyhow::ensure!(failures.is_empty(), "cannot run: {}", failures.join("; "));
    Ok(())
}

fn print(value: &impl serde::Serialize, text: String, format: Format) -> anyhow::Result<()> {
    let text = match format {
        Format::Text => text,
        Format::Json => serde_json::to_string_pretty(value)? + "\n",
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

fn run(config: Config) -> anyhow::Result<()> {
    let shutdown = Shutdown::new()?;
    shutdown.on_signals(&[libc::SIGTERM, libc::SIGINT])?;
    shutdown.reload_on_signal(libc::SIGHUP)?;
    let name = config.name.clone();
    agent::run(config, &shutdown, |handles, _| {
        let groups = handles.registry.live();
        let sensors: usize = groups.iter().map(|group| group.schema.len()).sum();
        tracing::info!("agent {name} samples {sensors} sensors in {} groups", groups.len());
    })?;
    tracing::info!("agent {name} ended");
    Ok(())
}
