//! The interface of the systems that are compared.

use std::path::Path;

use super::recording::{Recording, Sums};

/// The description of a system beside its figures.
#[derive(Debug, Clone, serde::Serialize)]
pub struct About {
    /// Its name in the rows.
    pub system: String,
    /// As it tells it.
    pub version: String,
    /// Settings that are not its defaults, how it is written to and asked.
    pub configured: String,
    /// The acknowledged data that a crash of the machine loses.
    pub durable: &'static str,
    /// Which files are its stored bytes, and which are not.
    pub counted: &'static str,
}

/// A message, made before anything is measured.
pub struct Request {
    pub to: String,
    pub body: Vec<u8>,
}

impl AsRef<[u8]> for Request {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// The requests of one connection, in order.
pub struct Lane {
    /// Whose readings these are.
    pub node: String,
    /// One after the other; how many may wait for an answer is the system's matter.
    pub requests: Vec<Request>,
    /// Readings in all of them.
    pub readings: u64,
}

/// Files and their bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stored {
    pub bytes: u64,
    /// The whole folder, with journals, catalogues, caches, downsampled windows.
    pub all: u64,
}

/// A range of one question, ns since the Unix epoch, both ends within.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub from: i64,
    pub to: i64,
}

/// From a recording's first reading to its last.
pub fn span(recording: &Recording) -> Span {
    let (from, to) = recording.span();
    Span { from, to }
}

/// Prefix of the sensors that are added up: counters of one unit, because sums of different units are refused.
const BELOW: &str = "net/netstat/TcpExt/";
/// How their names go on. `TCPMemoryPressuresChrono` is a time.
const STARTS: [&str; 19] = [
    "D", "P", "S", "TCPA", "TCPB", "TCPC", "TCPD", "TCPF", "TCPH", "TCPK", "TCPL", "TCPO", "TCPP", "TCPR", "TCPS",
    "TCPT", "TCPW", "TCPZ", "TW",
];

/// Which sensors a question is about: some of each node, and all.
#[derive(Debug, Clone)]
pub struct SensorSelection {
    /// The nodes; the store has no others.
    pub nodes: Vec<String>,
    /// Names below the node of those that are added up.
    pub summed: Vec<String>,
}

impl SensorSelection {
    /// Of nodes that have these sensors.
    pub fn new<'a>(nodes: Vec<String>, all: impl Iterator<Item = &'a String>) -> Self {
        let is_summed = |name: &&'a String| {
            name.strip_prefix(BELOW).is_some_and(|rest| STARTS.iter().any(|start| rest.starts_with(start)))
        };
        Self { nodes, summed: all.filter(is_summed).cloned().collect() }
    }

    /// Patterns of the sensors that are added up.
    pub fn patterns() -> Vec<String> {
        STARTS.iter().map(|start| format!("/bench/*/{BELOW}{start}*")).collect()
    }

    /// The same for Prometheus' names.
    pub fn expression() -> String {
        format!("{}({}).*", BELOW.replace('/', "_"), STARTS.join("|"))
    }
}

/// One system on this machine, with files and ports of its own. It is gone when it is dropped.
pub trait System {
    fn about(&self) -> About;
    /// Begins with an empty store, below a folder that is empty; ends the process that ran before.
    fn fresh(&mut self, dir: &Path) -> anyhow::Result<()>;
    fn prepare(&self, recording: &Recording) -> anyhow::Result<Lane>;
    /// Sends everything and returns when all of it is acknowledged.
    fn ingest(&mut self, lanes: &[Lane]) -> anyhow::Result<()>;
    /// Returns when all is in files and these are merged, as the system would do by itself in time.
    fn flush_and_merge(&mut self) -> anyhow::Result<()>;
    /// Processor time that the system has used since [`System::fresh`], ns, with that of the work that `flush_and_merge` had others do for it.
    fn cpu_ns(&self) -> u64;
    fn rss_kb(&self) -> u64;
    /// Bytes of its files, after [`System::flush_and_merge`].
    fn stored(&self) -> anyhow::Result<Stored>;
    /// Number and sum of the readings of each sensor of the recording's node in its span.
    fn sums(&mut self, recording: &Recording) -> anyhow::Result<Sums>;
    /// Reads all readings of one sensor; how many came.
    fn one_sensor(&mut self, node: &str, sensor: &str, span: Span) -> anyhow::Result<usize>;
    /// Adds up the last values of the chosen sensors in each window; how many windows came.
    fn windows(&mut self, chosen: &SensorSelection, span: Span, window_s: u64) -> anyhow::Result<usize>;
    /// The newest value of each of the nodes' sensors, the chosen ones and all others; how many came.
    fn newest(&mut self, chosen: &SensorSelection, span: Span) -> anyhow::Result<usize>;
}
