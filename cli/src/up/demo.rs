//! The demonstration centre of `wholegrain up --demo`: its file, its agents' certificates, the thread that sends its readings.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use clap::Args;
use serde::{Deserialize, Serialize};
use wholegrain_demo::ROOT;
use wholegrain_demo::plan::{CentreOptions, CentrePlan, DAYS, DAYS_MAX, NODES, NODES_MIN_MAX, SEED};
use wholegrain_demo::send::{self, RunControl, ServerAddress};
use wholegrain_model::Pattern;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::values;
use crate::sensors;

/// The default directory of an installation, and that of a demonstration beside another installation.
const DIRS: (&str, &str) = ("var", "var-demo");
/// The file with the options of a demonstration; an installation with this file is a demonstration.
const FILE: &str = "demo.json";
/// The last reading of this sensor tells where an earlier run stopped.
const LAST: &str = "/demo/facility/power";

/// The option `--demo` and its parameters.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Add a demonstration centre below /demo: 256 nodes with jobs, power and cooling; seven days of history, then live readings
    #[arg(long)]
    pub demo: bool,
    /// The number of nodes of the demonstration
    #[arg(long, value_name = "N", requires = "demo", default_value_t = NODES, value_parser = nodes)]
    demo_nodes: usize,
    /// The number of days of history
    #[arg(long, value_name = "N", requires = "demo", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX)))]
    demo_days: u32,
    /// The seed of its jobs and readings: the same seed gives the same centre
    #[arg(long, value_name = "N", requires = "demo", default_value_t = SEED)]
    demo_seed: u64,
}

fn nodes(text: &str) -> Result<usize, String> {
    let range = NODES_MIN_MAX.0..=NODES_MIN_MAX.1;
    let error = || format!("expected {} to {} nodes", range.start(), range.end());
    text.parse().ok().filter(|nodes| range.contains(nodes)).ok_or_else(error)
}

/// The content of `demo.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    seed: u64,
    nodes: usize,
    days: u32,
    began: i64,
}

pub struct Demo {
    /// The sensors of this machine's own agent, as a pattern.
    beside: String,
    shared: Arc<DemoState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct DemoState {
    stops: AtomicBool,
    readings: AtomicU64,
    ready: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl RunControl for DemoState {
    fn now_ns(&self) -> i64 {
        values::now().0
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    fn sent(&self, readings: u64, ready: bool) {
        self.readings.store(readings, Ordering::Relaxed);
        self.ready.store(ready, Ordering::Relaxed);
    }
}

/// The directory of the installation without `--dir`.
pub fn directory(args: &DemoArgs) -> PathBuf {
    let var = PathBuf::from(DIRS.0);
    if args.demo && check(&var, args).is_err() { PathBuf::from(DIRS.1) } else { var }
}

/// Refuses to mix a demonstration with another installation. `dir` may not exist yet.
pub fn check(dir: &Path, args: &DemoArgs) -> Result<(), Failure> {
    let (is_demo, exists) = (dir.join(FILE).exists(), dir.join("server/server.toml").exists());
    let shown = dir.display();
    match args.demo {
        true if exists && !is_demo => Err(Failure::Usage(format!(
            "{shown} holds an installation that is not a demonstration; name another directory with --dir"
        ))),
        false if is_demo => Err(Failure::Usage(format!(
            "{shown} holds a demonstration; start it with --demo, or name another directory with --dir"
        ))),
        _ => Ok(()),
    }
}

/// The options of the demonstration in `dir`, or those of `args` for a new one.
pub fn options(dir: &Path, args: &DemoArgs) -> Result<CentreOptions, Failure> {
    let path = dir.join(FILE);
    let shown = path.display().to_string();
    let file = match fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| Failure::Failed(format!("cannot read {shown}: {error}; remove {}", dir.display())))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let began = values::now().0 / 1_000_000_000;
            let file = File { seed: args.demo_seed, nodes: args.demo_nodes, days: args.demo_days, began };
            let text = serde_json::to_string(&file).map_err(Failure::failed)?;
            fs::create_dir_all(dir).and_then(|()| fs::write(&path, text + "\n")).map_err(Failure::writing(&shown))?;
            file
        }
        Err(error) => return Err(Failure::Failed(format!("cannot read {shown}: {error}"))),
    };
    Ok(CentreOptions { seed: file.seed, nodes: file.nodes, days: file.days, began_s: file.began })
}

impl Demo {
    /// Makes certificates for its agents and starts the thread. `agent` is the name of this machine's own agent.
    pub fn start(
        dir: &Path,
        options: CentreOptions,
        mqtt_port: u16,
        agent: &str,
        connection: &Connection,
    ) -> Result<Self, Failure> {
        let names = send::agents(&CentrePlan::new(options.clone()));
        if names.iter().any(|name| name == agent) {
            return Err(Failure::Usage(format!(
                "the agent of this machine and an agent of the demonstration have the same name, {agent}; remove {} and choose another \
                 name with `wholegrain init {0} --agent NAME` first",
                dir.display()
            )));
        }
        for name in &names {
            wholegrain_server::issue_agent_certificate(dir, name).map_err(crate::init::failed)?;
        }
        let from_s = last_reading_s(connection)?.map_or(options.first_s(), |last| last + 1);
        let shared = Arc::new(DemoState::default());
        let (thread, dir) = (shared.clone(), dir.to_owned());
        let thread = std::thread::Builder::new().name("demo".to_owned()).spawn(move || {
            let url = format!("mqtts://localhost:{mqtt_port}");
            let (ca, certificates): (PathBuf, PathBuf) = (dir.join("ca.pem"), dir.join("agents"));
            let server = ServerAddress { url: &url, ca: &ca, certificates: &certificates };
            if let Err(error) = send::run(&options, &server, from_s, &*thread) {
                *thread.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
        });
        let thread = thread.map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
        Ok(Self { beside: format!("/{agent}/**"), shared, thread: Some(thread) })
    }

    /// The sensors of this machine's own agent, as a pattern.
    pub fn beside(&self) -> &str {
        &self.beside
    }

    /// Whether the history is stored, or the demonstration has failed.
    pub fn is_ready(&self) -> bool {
        self.shared.ready.load(Ordering::Relaxed) || self.has_ended()
    }

    /// Whether the demonstration has ended, which happens only after a failure.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Shows the progress of the history on a terminal.
    pub fn show(&self) {
        let readings = self.shared.readings.load(Ordering::Relaxed);
        if io::IsTerminal::is_terminal(&io::stdout()) {
            print!("\rHistory of the demonstration: {readings} readings ");
            let _ = io::stdout().flush();
        }
    }

    /// Prints the number of readings.
    pub fn report(&self) {
        let readings = self.shared.readings.load(Ordering::Relaxed);
        let erase = if io::IsTerminal::is_terminal(&io::stdout()) { "\r" } else { "" };
        println!("{erase}Demonstration data: {readings} readings of a centre that does not exist, all below {ROOT}.");
    }

    /// Stops the demonstration. Fails if it had failed.
    pub fn stop(&mut self) -> Result<(), String> {
        self.shared.stops.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            return Err("the demonstration has failed by a fault in the program".to_owned());
        }
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// The time of the last stored reading, s since the Unix epoch.
fn last_reading_s(connection: &Connection) -> Result<Option<i64>, Failure> {
    let pattern = Pattern::new(LAST).map_err(Failure::usage)?;
    let known = sensors::fetch(connection, &[pattern])?;
    Ok(known.first().and_then(|sensor| sensor.last_time).map(|time| time.0 / 1_000_000_000))
}

/// Five commands to begin with.
pub fn examples() -> [String; 5] {
    [
        "jobs --running".to_owned(),
        "jobs show 4711".to_owned(),
        "jobs stats 4711 cpu/usage power".to_owned(),
        format!("query {ROOT}/facility/power --from -1d --every 1h --agg max"),
        "jobs boost 4712 --metrics 'perf/*' --every 1ms --for 10m".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(demo: bool) -> DemoArgs {
        DemoArgs { demo, demo_nodes: 16, demo_days: 1, demo_seed: 5 }
    }

    #[test]
    fn a_demonstration_stays_what_it_was_made_of() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("d");
        let first = options(&dir, &args(true)).unwrap();
        assert_eq!((first.seed, first.nodes, first.days), (5, 16, 1));
        let again = options(&dir, &DemoArgs { demo_seed: 6, demo_nodes: 99, ..args(true) }).unwrap();
        assert_eq!(first, again);
    }

    #[test]
    fn demonstrations_and_installations_are_not_mixed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(dir.path(), &args(true)).is_ok() && check(dir.path(), &args(false)).is_ok());
        fs::create_dir_all(dir.path().join("server")).unwrap();
        fs::write(dir.path().join("server/server.toml"), "").unwrap();
        assert!(check(dir.path(), &args(true)).is_err() && check(dir.path(), &args(false)).is_ok());
        options(dir.path(), &args(true)).unwrap();
        assert!(check(dir.path(), &args(true)).is_ok() && check(dir.path(), &args(false)).is_err());
    }
}
