//! The agent's program: reads arguments and configuration, and runs, checks or samples once.

mod arguments;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use wholegrain_agent::{Config, Shutdown, agent, check, heap, once, plugins};
use wholegrain_model::LogLevel;

use self::arguments::{Action, Arguments, Format};

/// Usage or configuration is wrong.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    heap::limit();
    let mut raw = std::env::args().skip(1);
    if raw.next().as_deref() == Some(plugins::ARGUMENT) {
        return plugins::run_host(raw.next().as_deref());
    }
    let arguments = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("wholegrain-agent: {error}; see wholegrain-agent --help");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let result = match arguments.action {
        Action::Help => write(arguments::HELP),
        Action::Version => write(concat!("wholegrain-agent ", env!("CARGO_PKG_VERSION"), "\n")),
        Action::Run | Action::Check | Action::Once => match Config::load(&arguments.config) {
            Ok(config) => act(&arguments, config),
            Err(error) => {
                eprintln!("wholegrain-agent: {error}");
                return ExitCode::from(EXIT_USAGE);
            }
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wholegrain-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does with the configuration what the arguments say.
fn act(arguments: &Arguments, mut config: Config) -> anyhow::Result<()> {
    config.log_level = arguments.log_level.unwrap_or(config.log_level);
    log(config.log_level);
    agent::raise_open_files();
    match arguments.action {
        Action::Check => {
            let report = check::check(&config);
            print(&report, check::text(&report), arguments.format)?;
            // The report names them.
            match report.failures.len() {
                0 => Ok(()),
                1 => anyhow::bail!("a source or a plug-in cannot run: see `failed:`"),
                count => anyhow::bail!("{count} sources and plug-ins cannot run: see `failed:`"),
            }
        }
        Action::Once => {
            let once = once::once(&config);
            // On stderr: another program may parse the readings on stdout.
            once.notes.iter().for_each(|note| eprintln!("note: {note}"));
            print(&once, once::text(&once), arguments.format)?;
            all_run(&once.failures)
        }
        _ => run(config),
    }
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
    write(&text)
}

fn write(text: &str) -> anyhow::Result<()> {
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
