//! `wholegrain up`: makes an installation on this machine, starts server and agent, and supervises both.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use wholegrain_model::{Interval, Pattern};
use wholegrain_server::path_owners::check_directory;
use wholegrain_server::{InitOptions, ServerConfig};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::{init, sensors, socket};

mod child;
mod demo;
mod free;
mod next;
mod ports;

use child::Child;
use demo::{Demo, DemoArgs};

/// How long a program may take before it responds; a server replays its journal first.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the number of sensors must stay the same: an agent announces group after group.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// How long after the end of a program its signal may reach this process, for example when a whole container stops.
const SIGNAL_LATE_MAX: Duration = Duration::from_secs(2);
/// A time longer than any run.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How long the generation of a demonstration's past may take.
const DEMO_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The interval of checks whether a program is ready or has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the agent may take to stop: it spools unsent batches.
const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the server may take to stop: it seals or syncs its journal.
const SERVER_STOP_TIMEOUT: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Makes the missing files of an installation in --dir (an authority, certificates, a token, the configurations), starts the server \
and the agent, and stops both on Ctrl-C. The next `wholegrain up` continues with the data.

Examples:
  wholegrain up
  wholegrain up --demo
  wholegrain up --dir /tmp/try --http-port 18443 --mqtt-port 18883";

/// Start server and agent on this machine, until Ctrl-C
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct UpArgs {
    /// The directory of configurations and data [default: var; with --demo var-demo if var is another installation]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    demo: DemoArgs,
    /// Port for MQTT over TLS [default: the configured one, at first 8883]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    mqtt_port: Option<u16>,
    /// Port for HTTPS [default: the configured one, at first 8443]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    http_port: Option<u16>,
    /// The agent's program [default: wholegrain-agent beside this one]
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// How long to wait for sensors before the examples are printed
    #[arg(long, value_name = "LENGTH", default_value = "5s", hide = true)]
    sensors_within: Interval,
}

pub fn run(args: &UpArgs) -> Result<(), Failure> {
    let (this, agent_program) = programs(args)?;
    let defaults = InitOptions::default();
    let options = InitOptions {
        mqtt_port: args.mqtt_port.unwrap_or(defaults.mqtt_port),
        http_port: args.http_port.unwrap_or(defaults.http_port),
        ..defaults
    };
    let dir = args.dir.clone().unwrap_or_else(|| demo::directory(&args.demo));
    check_directory(&dir).map_err(Failure::Usage)?;
    demo::check(&dir, &args.demo)?;
    let server_toml = dir.join("server/server.toml");
    // Checks that no server runs here and that the ports are free before it writes anything.
    let held = free::check(&server_toml, &options, args.mqtt_port, args.http_port)?;
    let centre = if args.demo.demo { Some(demo::options(&dir, &args.demo)?) } else { None };
    let report = wholegrain_server::init(&dir, &options).map_err(init::failed)?;
    ports::change(&dir, &server_toml, args.mqtt_port, args.http_port)?;
    let config = ServerConfig::load(&server_toml).map_err(Failure::usage)?;
    if report.created.is_empty() {
        println!("Continuing with the data in {}.", dir.display());
    } else {
        println!("Made a new installation in {}.", dir.display());
    }
    let signals = signals()?;
    let server_log = dir.join("server/server.log");
    // The server takes the lock itself.
    drop(held);
    let mut server =
        Child::start("server", &this, &["server".into(), "--config".into(), server_toml.into()], &server_log)?;
    let client_toml = dir.join("client.toml");
    let connection = Connection::open(Some(&client_toml))?;
    let healthy = || connection.get(wholegrain_api::paths::HEALTHZ).send().is_ok();
    let started = match wait(&mut [&mut server], &signals, READY_TIMEOUT, healthy) {
        Ok(true) => {
            server.set_ready();
            let agent_toml = dir.join("agent/agent.toml");
            let agent_log = dir.join("agent/agent.log");
            Child::start("agent", &agent_program, &["--config".into(), agent_toml.into()], &agent_log).map(Some)
        }
        Ok(false) => Ok(None),
        Err(failure) => Err(failure),
    };
    let mut demonstration = None;
    let started = match (started, centre) {
        (Ok(Some(agent)), Some(centre)) => {
            let port = config.mqtt.tls_listen.as_deref().and_then(ports::port_of).unwrap_or(defaults.mqtt_port);
            demonstration = Some(Demo::start(&dir, centre, port, &report.agent, &connection)?);
            Ok(Some(agent))
        }
        (started, _) => started,
    };
    let (mut agent, result) = match started {
        Ok(Some(mut agent)) => {
            let result = watch_over(args, &dir, &connection, demonstration.as_ref(), &mut server, &mut agent, &signals);
            (Some(agent), result)
        }
        Ok(None) => (None, Ok(())),
        Err(failure) => (None, Err(failure)),
    };
    if result.is_ok() {
        println!("\nStopping.");
    }
    // The agent first, so that the server receives its last batches.
    let stops = [
        demonstration.as_mut().map_or(Ok(()), Demo::stop),
        agent.as_mut().map_or(Ok(()), |agent| agent.stop(AGENT_STOP_TIMEOUT)),
        server.stop(SERVER_STOP_TIMEOUT),
    ];
    outcome(result, stops)?;
    println!("Stopped. The data is in {}.", dir.display());
    Ok(())
}

/// `Ok` if all results are; else all errors, the first cause first.
fn outcome(result: Result<(), Failure>, stops: [Result<(), String>; 3]) -> Result<(), Failure> {
    let errors: Vec<String> = stops.into_iter().filter_map(Result::err).collect();
    match result {
        Ok(()) if errors.is_empty() => Ok(()),
        Ok(()) => Err(Failure::Failed(errors.join("; and "))),
        Err(Failure::Failed(text)) => {
            Err(Failure::Failed([text].into_iter().chain(errors).collect::<Vec<_>>().join("\nand ")))
        }
        Err(failure) => {
            errors.iter().for_each(|text| eprintln!("wholegrain: {text}"));
            Err(failure)
        }
    }
}

/// Runs from the agent's start to the signal. Fails if server or agent ends by itself.
fn watch_over(
    args: &UpArgs,
    dir: &Path,
    connection: &Connection,
    demonstration: Option<&Demo>,
    server: &mut Child,
    agent: &mut Child,
    signals: &Receiver<()>,
) -> Result<(), Failure> {
    let agent_socket = dir.join("agent/agent.sock");
    let responds = || socket::send(&agent_socket, "GET", "/v1/status", None).is_ok_and(|(status, _)| status == 200);
    if !wait(&mut [&mut *server, &mut *agent], signals, READY_TIMEOUT, responds)? {
        return Ok(());
    }
    agent.set_ready();
    let mut known = Vec::new();
    // Only sensors of this machine: the demonstration adds many others meanwhile.
    let all = demonstration.map_or_else(|| "/**".to_owned(), |demonstration| demonstration.beside().to_owned());
    let all = [Pattern::new(all).map_err(Failure::usage)?];
    let mut stable = StableCount::default();
    let sensors_are_there = || {
        known = sensors::fetch(connection, &all).unwrap_or_default();
        let read = known.iter().any(|sensor| sensor.last_time.is_some());
        stable.is(known.len(), Instant::now()) && read
    };
    match wait(&mut [&mut *server, &mut *agent], signals, args.sensors_within.duration(), sensors_are_there) {
        Ok(false) => return Ok(()),
        // No reading yet: the programs run, and their logs give the reason.
        Ok(true) | Err(Failure::Unreachable(_)) => {}
        Err(failure) => return Err(failure),
    }
    if let Some(demonstration) = demonstration {
        let past = || {
            demonstration.show();
            demonstration.is_ready()
        };
        if !wait(&mut [&mut *server, &mut *agent], signals, DEMO_TIMEOUT, past)? {
            return Ok(());
        }
        demonstration.report();
    }
    next::print(dir, connection.url(), &known, [server.log(), agent.log()], demonstration.is_some());
    // Waits for a signal, or for a failure of the demonstration.
    match wait(&mut [server, agent], signals, FOREVER, || demonstration.is_some_and(Demo::has_ended)) {
        Ok(_) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Reports when a number has stayed the same for [`STABLE_AFTER`].
#[derive(Debug, Default)]
struct StableCount(Option<(usize, Instant)>);

impl StableCount {
    fn is(&mut self, number: usize, now: Instant) -> bool {
        match self.0 {
            Some((before, since)) if before == number => now.duration_since(since) >= STABLE_AFTER,
            _ => {
                self.0 = Some((number, now));
                false
            }
        }
    }
}

/// Waits until `ready`. Returns false if a signal came before. Fails if one of `children` ends by itself, or after the timeout.
fn wait(
    children: &mut [&mut Child],
    signals: &Receiver<()>,
    timeout: Duration,
    mut ready: impl FnMut() -> bool,
) -> Result<bool, Failure> {
    let deadline = Instant::now() + timeout;
    loop {
        for child in children.iter_mut() {
            if let Err(ended) = child.check() {
                // A signal for this process may reach the program first.
                let ours = || !matches!(signals.recv_timeout(SIGNAL_LATE_MAX), Err(RecvTimeoutError::Timeout));
                return if ended.cleanly && ours() { Ok(false) } else { Err(ended.failure) };
            }
        }
        if ready() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            let names: Vec<String> = children.iter().map(|child| child.log().display().to_string()).collect();
            return Err(Failure::Unreachable(format!("no response within {timeout:?}; see {}", names.join(" and "))));
        }
        if !matches!(signals.recv_timeout(LOOK_EVERY), Err(RecvTimeoutError::Timeout)) {
            return Ok(false);
        }
    }
}

fn signals() -> Result<Receiver<()>, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// This program and the agent's.
fn programs(args: &UpArgs) -> Result<(PathBuf, PathBuf), Failure> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this program itself: {error}")))?;
    let agent = args.agent.clone().unwrap_or_else(|| this.with_file_name("wholegrain-agent"));
    if !agent.is_file() {
        return Err(Failure::Usage(format!(
            "found no agent at {}; build it with `cargo build --release --bin wholegrain-agent`, or name it with --agent FILE",
            agent.display()
        )));
    }
    Ok((this, agent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_stable_when_it_has_not_changed_for_a_while() {
        let (mut stable, start) = (StableCount::default(), Instant::now());
        let half = STABLE_AFTER / 2;
        assert!(!stable.is(218, start));
        assert!(!stable.is(218, start + half));
        assert!(!stable.is(623, start + 2 * half), "it changed just in time");
        assert!(!stable.is(623, start + 3 * half));
        assert!(stable.is(623, start + 4 * half));
    }

    #[test]
    fn everything_that_went_wrong_is_said() {
        let bad = |text: &str| Err(text.to_owned());
        assert!(outcome(Ok(()), [Ok(()), Ok(()), Ok(())]).is_ok());
        let text = |result: Result<(), Failure>| result.unwrap_err().report().1.unwrap().to_owned();
        assert_eq!(text(outcome(Ok(()), [Ok(()), bad("a"), bad("b")])), "a; and b");
        assert_eq!(text(outcome(Ok(()), [Ok(()), Ok(()), bad("b")])), "b");
        assert_eq!(text(outcome(Err(Failure::Failed("why".into())), [Ok(()), bad("a"), Ok(())])), "why\nand a");
        assert!(matches!(
            outcome(Err(Failure::Unreachable(String::new())), [Ok(()), Ok(()), Ok(())]),
            Err(Failure::Unreachable(_))
        ));
    }
}
