//! Monitoring systems side by side: ours, others', and a bare loop of the same reads, each started, counted and stopped alike.
//!
//! - In: a monitor's name, its configuration's name, a sampling period, a folder.
//! - Out: [`Ready`] when it samples, [`Used`] when it was told to stop: one line of JSON each on standard output.
//! - Never: a monitor left running; a period that a monitor does not keep, unsaid.

mod bare;
mod collectd;
mod command;
mod exposition;
mod folder;
mod ganglia;
mod likwid;
mod netdata;
mod node_exporter;
mod parts;
mod pcp;
mod program;
mod pull;
mod rezolus;
mod started;
mod wholegrain;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use command::{Options, find, run};
pub use folder::Folder;
pub use parts::Parts;
use serde::{Deserialize, Serialize};
use started::Started;

/// Where a part of a monitor runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// What takes the readings in: once, on the machine the experiment is started on.
    Server,
    /// What samples: on each compute node.
    Node,
    /// Both, on one machine: the server's part at the lowest priority, so that it takes what the programs leave, as a server
    /// elsewhere would take nothing.
    Both,
}

/// Printed when the monitor samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// The monitor, as in [`all`].
    pub monitor: String,
    /// Which of its configurations.
    pub configuration: String,
    /// Its version as it tells it itself.
    pub version: String,
    /// The period it was told, ns.
    pub interval_ns: u64,
    /// Values that it takes at each period on this node, counted from what it gives out, not from what it was told.
    pub metrics: u64,
    /// This node's name.
    pub host: String,
    /// The files and arguments it was started with, in full.
    pub configured: String,
    /// Files that a process writes `0` to before it becomes the workload, so that it is the job whose metrics are read. Empty where
    /// no job is read, or where the workload is in a resource manager's.
    #[serde(default)]
    pub job: Vec<PathBuf>,
}

/// Printed when it has stopped: what it used since [`Ready`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// How long that was, ns.
    pub window_ns: u64,
    /// Each process on the node (and its children), and the server's.
    pub processes: Vec<ProcessUsed>,
    /// Samples made and ticks missed, where the monitor tells.
    pub samples: Option<u64>,
    /// See `samples`.
    pub missed: Option<u64>,
}

/// One process of a monitor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessUsed {
    /// Its name.
    pub name: String,
    /// Whether it is of the server's part.
    pub server: bool,
    /// User and system time of all threads, ns.
    pub cpu_ns: u64,
    /// Resident memory at the end, kB (VmRSS).
    pub rss_kb: u64,
    /// Its share of that memory when pages shared with others are divided among them, kB (Pss of smaps_rollup).
    pub pss_kb: u64,
}

/// A monitoring system that can be started here.
pub trait Monitor {
    /// What it is called in an experiment's file.
    fn name(&self) -> &'static str;
    /// The names of its configurations, the usual one first.
    fn configurations(&self) -> &'static [&'static str];
    /// Its version; or why it cannot be run on this machine and what to install.
    fn version(&self) -> anyhow::Result<String>;
    /// The shortest period that it can be told; an experiment leaves it out below it and says so.
    fn shortest_interval(&self) -> Duration;
    /// Starts a part of it with its files below `dir` and ports of its own; returns when it samples.
    fn start(
        &self,
        role: Role,
        configuration: &str,
        interval: Duration,
        dir: &Path,
    ) -> anyhow::Result<Box<dyn Running>>;
}

/// A monitor that samples. Dropping it ends all of its processes.
pub trait Running {
    /// See [`Ready::metrics`]; 0 for the server's part alone.
    fn metrics(&self) -> u64;
    /// See [`Ready::configured`].
    fn configured(&self) -> String;
    /// What was started, by name, number, and whether it is of the server's part. Whatever these start is counted with them.
    fn processes(&self) -> Vec<(String, u32, bool)>;
    /// Samples made and ticks missed since it was started, where it tells ([`Started::counts`] makes both of the samples alone). Asked
    /// before and after the time that is measured.
    fn ticks(&self) -> Option<(u64, u64)>;
    /// See [`Ready::job`].
    fn job(&self) -> Vec<PathBuf> {
        Vec::new()
    }
    /// Ends it in good order.
    fn stop(self: Box<Self>);
}

/// All monitors, in the order of reports.
pub fn all() -> Vec<Box<dyn Monitor>> {
    vec![
        Box::new(bare::Bare),
        Box::new(wholegrain::Wholegrain),
        Box::new(collectd::Collectd),
        Box::new(node_exporter::NodeExporter),
        Box::new(ganglia::Ganglia),
        Box::new(pcp::Pcp),
        Box::new(netdata::Netdata),
        Box::new(likwid::Likwid),
        Box::new(rezolus::Rezolus),
    ]
}
