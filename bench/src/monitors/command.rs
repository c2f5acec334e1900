//! `monitor run` and `monitor list`: one monitor by itself, until it is told to stop.

use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use serde_json::json;
use wholegrain_model::Interval;

use super::{Monitor, Ready, Role, Running, Used, all, folder, parts};

const EXAMPLES: &str = "\
Examples:
  wholegrain-bench monitor list
  wholegrain-bench monitor run wholegrain --configuration same --interval 10ms --dir /tmp/m
                                        until Ctrl-C, or until standard input ends
  wholegrain-bench monitor run collectd --interval 1s --role server --dir /shared/m
  srun --nodes=1 --ntasks=1 --nodelist=n2 wholegrain-bench monitor run collectd --interval 1s --role node --dir /shared/m
                                        one server, and what samples on a node: a launch of its own for each node,
                                        since launchers give standard input to one process only";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Start one; print `{"ready":…}` when it samples; on SIGTERM, SIGINT or the end of standard input stop it and print `{"used":…}`.
    Run(RunOptions),
    /// Which there are: version or why not, configurations, shortest period.
    List {
        /// As one line of JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct RunOptions {
    /// Which, see `monitor list`.
    name: String,
    /// Which of its configurations; the first when left out.
    #[arg(long)]
    configuration: Option<String>,
    /// Sampling period, such as 1ms, 1s.
    #[arg(long, default_value = "1s")]
    interval: Interval,
    /// Which part of it runs here.
    #[arg(long, value_enum, default_value = "both")]
    role: Role,
    /// For its files. With `--role node` the folder that `--role server` was started with.
    #[arg(long)]
    dir: PathBuf,
}

/// `wholegrain-bench monitor`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    match &options.action {
        Action::Run(options) => run_one(options),
        Action::List { json } => list(*json),
    }
}

/// The monitor of that name.
pub fn find(name: &str) -> anyhow::Result<Box<dyn Monitor>> {
    let names: Vec<&str> = all().iter().map(|monitor| monitor.name()).collect();
    let found = all().into_iter().find(|monitor| monitor.name() == name);
    found.with_context(|| format!("there is no monitor {name}; there are {}", names.join(", ")))
}

fn list(as_json: bool) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for monitor in all() {
        let (version, missing) = match monitor.version() {
            Ok(version) => (Some(version), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let shortest = Interval::from_ns(monitor.shortest_interval().as_nanos() as u64);
        if !as_json {
            println!(
                "{:<14} {:<34} from {shortest}; {}",
                monitor.name(),
                monitor.configurations().join(", "),
                version.as_deref().or(missing.as_deref()).unwrap_or_default()
            );
        }
        rows.push(json!({ "monitor": monitor.name(), "version": version, "missing": missing,
            "configurations": monitor.configurations(), "shortest_interval_ns": shortest.ns() }));
    }
    if as_json {
        println!("{}", serde_json::Value::Array(rows));
    }
    Ok(())
}

fn run_one(options: &RunOptions) -> anyhow::Result<()> {
    let monitor = find(&options.name)?;
    let there = monitor.configurations();
    let configuration = options.configuration.as_deref().unwrap_or(there[0]);
    ensure!(
        there.contains(&configuration),
        "{} has no configuration {configuration}; there are {}",
        options.name,
        there.join(", ")
    );
    let (interval, shortest) = (options.interval.duration(), monitor.shortest_interval());
    ensure!(
        interval >= shortest,
        "{} cannot be told a period of {}; {shortest:?} is its shortest",
        options.name,
        options.interval
    );
    let version = monitor.version()?;
    // Before anything is started: a signal meanwhile waits until there is something to stop.
    let signals = signals()?;
    let running = monitor.start(options.role, configuration, interval, &options.dir)?;
    let ready = Ready {
        monitor: options.name.clone(),
        configuration: configuration.to_owned(),
        version,
        interval_ns: options.interval.ns(),
        metrics: running.metrics(),
        host: folder::node(),
        configured: running.configured(),
        job: running.job(),
    };
    let used = window(running.as_ref(), &ready, &signals)?;
    running.stop();
    say(&json!({ "used": used }))
}

/// From [`Ready`] to the signal: what was used meanwhile.
fn window(running: &dyn Running, ready: &Ready, signals: &OwnedFd) -> anyhow::Result<Used> {
    let processes = running.processes();
    let watched = processes.iter().map(|(name, id, _)| Ok((name.as_str(), watch(*id)?)));
    let watched: Vec<(&str, OwnedFd)> = watched.collect::<anyhow::Result<_>>()?;
    let ticks = running.ticks();
    say(&json!({ "ready": ready }))?;
    let before = parts::measure(&processes);
    let start = Instant::now();
    let ended = wait(signals, &watched);
    let window_ns = start.elapsed().as_nanos() as u64;
    let mut used = parts::measure(&processes);
    ended?;
    for (used, before) in used.iter_mut().zip(before) {
        used.cpu_ns = used.cpu_ns.saturating_sub(before.cpu_ns);
    }
    let since = ticks.zip(running.ticks()).map(|(old, new)| (new.0.saturating_sub(old.0), new.1.saturating_sub(old.1)));
    Ok(Used { window_ns, processes: used, samples: since.map(|(made, _)| made), missed: since.map(|(_, lost)| lost) })
}

/// Prints a line at once.
fn say(what: &serde_json::Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}").and_then(|()| out.flush()).context("printing")
}

/// SIGTERM and SIGINT, held back, as something to be read.
fn signals() -> anyhow::Result<OwnedFd> {
    // SAFETY: the set is filled before it is used, and all pointers are to it.
    let descriptor = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC)
    };
    ensure!(descriptor >= 0, "taking signals: {}", std::io::Error::last_os_error());
    // SAFETY: it was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A descriptor that becomes readable when a process ends.
fn watch(id: u32) -> anyhow::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two numbers and gives a descriptor back.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, id as libc::pid_t, 0) };
    ensure!(descriptor >= 0, "watching process {id}: {}", std::io::Error::last_os_error());
    // SAFETY: it was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(libc::c_int::try_from(descriptor)?) })
}

/// Sleeps until a signal comes or standard input ends; an error when a process of the monitor ends before. Takes no time of the
/// machine meanwhile.
fn wait(signals: &OwnedFd, watched: &[(&str, OwnedFd)]) -> anyhow::Result<()> {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries = vec![entry(signals.as_raw_fd()), entry(libc::STDIN_FILENO)];
    entries.extend(watched.iter().map(|(_, descriptor)| entry(descriptor.as_raw_fd())));
    let mut ignored = [0u8; 256];
    loop {
        // SAFETY: the array is as long as said and lives through the call.
        let count = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, -1) };
        if count < 0 {
            let error = std::io::Error::last_os_error();
            ensure!(error.kind() == std::io::ErrorKind::Interrupted, "waiting: {error}");
            continue;
        }
        let ended = entries[2..].iter().zip(watched).find(|(entry, _)| entry.revents != 0);
        if let Some((_, (name, _))) = ended {
            bail!("{name} ended while it was measured; its log is in the folder given with --dir");
        }
        if entries[0].revents != 0 {
            return Ok(());
        }
        if entries[1].revents != 0 {
            // SAFETY: the buffer is as long as said.
            let read = unsafe { libc::read(libc::STDIN_FILENO, ignored.as_mut_ptr().cast(), ignored.len()) };
            if read <= 0 {
                return Ok(());
            }
        }
    }
}
