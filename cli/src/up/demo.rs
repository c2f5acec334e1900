//! The demonstration centre of `wholegrain up --demo`: its file, its agents' certificates, the thread that reports it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::{Deserialize, Serialize};
use wholegrain_demo::ROOT;
use wholegrain_demo::plan::{CentreOptions, CentrePlan, DAYS, DAYS_MAX, NODES, NODES_MIN_MAX, SEED};
use wholegrain_demo::send::{self, RunControl, ServerAddress};
use wholegrain_model::Pattern;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::sensors;

/// Where an installation is unless `--dir` says otherwise, and where a demonstration is when that is another installation.
const DIRS: (&str, &str) = ("var", "var-demo");
/// What a demonstration was made of, and by which it is known, below its directory.
const FILE: &str = "demo.json";
/// Its last reading says where an earlier run stopped.
const LAST: &str = "/demo/facility/power";

/// `--demo` and what belongs to it.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Add a demonstration centre: 256 nodes with jobs, power and cooling, seven days of them, and then live, all below /demo
    #[arg(long)]
    pub demo: bool,
    /// How many nodes the demonstration has
    #[arg(long, value_name = "N", requires = "demo", default_value_t = NODES, value_parser = nodes)]
    demo_nodes: usize,
    /// How many days of the past it has
    #[arg(long, value_name = "N", requires = "demo", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX)))]
    demo_days: u32,
    /// What its jobs and readings are computed from: the same seed gives the same centre
    #[arg(long, value_name = "N", requires = "demo", default_value_t = SEED)]
    demo_seed: u64,
}

fn nodes(text: &str) -> Result<usize, String> {
    let range = NODES_MIN_MAX.0..=NODES_MIN_MAX.1;
    let wanted = || format!("{} to {} nodes are possible", range.start(), range.end());
    text.parse().ok().filter(|nodes| range.contains(nodes)).ok_or_else(wanted)
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

/// The centre while it runs.
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
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    fn sent(&self, readings: u64, ready: bool) {
        self.readings.store(readings, Ordering::Relaxed);
        self.ready.store(ready, Ordering::Relaxed);
    }
}

/// Where the installation is when `--dir` is not given.
pub fn directory(args: &DemoArgs) -> PathBuf {
    let var = PathBuf::from(DIRS.0);
    if args.demo && check(&var, args).is_err() { PathBuf::from(DIRS.1) } else { var }
}

/// Refuses to mix a demonstration with an installation that is none. `dir` may not be there yet.
pub fn check(dir: &Path, args: &DemoArgs) -> Result<(), Failure> {
    let (is_demo, is_there) = (dir.join(FILE).exists(), dir.join("server/server.toml").exists());
    let shown = dir.display();
    match args.demo {
        true if is_there && !is_demo => Err(Failure::Usage(format!(
            "{shown} holds an installation that is no demonstration; name another directory with --dir"
        ))),
        false if is_demo => Err(Failure::Usage(format!(
            "{shown} holds a demonstration; start it with --demo, or name another directory with --dir"
        ))),
        _ => Ok(()),
    }
}

/// What the demonstration in `dir` was made of; what is asked for when it is new.
pub fn options(dir: &Path, args: &DemoArgs) -> Result<CentreOptions, Failure> {
    let path = dir.join(FILE);
    let shown = path.display().to_string();
    let file = match fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| Failure::Failed(format!("cannot read {shown}: {error}; remove {}", dir.display())))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let began = DemoState::default().now_ns() / 1_000_000_000;
            let file = File { seed: args.demo_seed, nodes: args.demo_nodes, days: args.demo_days, began };
            let text = serde_json::to_string(&file).map_err(|error| Failure::Failed(error.to_string()))?;
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
                "this machine's agent is called {agent}, as one of the demonstration's; remove {} and call it otherwise by \
                 `wholegrain init {0} --agent NAME` before",
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

    /// Whether everything of the past is stored, or it has failed.
    pub fn is_ready(&self) -> bool {
        self.shared.ready.load(Ordering::Relaxed) || self.has_ended()
    }

    /// Whether it has ended, which it does only when it fails.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Shows how far the past is, on a terminal.
    pub fn show(&self) {
        let readings = self.shared.readings.load(Ordering::Relaxed);
        if io::IsTerminal::is_terminal(&io::stdout()) {
            print!("\rThe past of the demonstration: {readings} readings ");
            let _ = io::stdout().flush();
        }
    }

    /// Says how many readings there are.
    pub fn tell(&self) {
        let readings = self.shared.readings.load(Ordering::Relaxed);
        let erase = if io::IsTerminal::is_terminal(&io::stdout()) { "\r" } else { "" };
        println!("{erase}Demonstration data: {readings} readings of a centre that does not exist, all below {ROOT}.");
    }

    /// Stops it; an error if it had failed.
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

/// The time of the last reading that is there, s since the Unix epoch.
fn last_reading_s(connection: &Connection) -> Result<Option<i64>, Failure> {
    let pattern = Pattern::new(LAST).map_err(|error| Failure::Usage(error.to_string()))?;
    let known = sensors::fetch(connection, &[pattern])?;
    Ok(known.first().and_then(|sensor| sensor.last_time).map(|time| time.0 / 1_000_000_000))
}

/// Five questions to begin with.
pub fn questions() -> [String; 5] {
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
