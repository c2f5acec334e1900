//! The JSON of responses.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use wholegrain_model::{Kind, Timestamp, Value, ValueType};
use wholegrain_sources::descriptors;

use super::context::ApiContext;
use crate::counters::AgentCounters;
use crate::engine::Group;
use crate::engine::lag::BUCKETS;
use crate::plugins::PluginProgress;
use crate::status::{AgentStatus, LinkStatus, PluginStatus, SourceStatus};
use crate::sync::lock;

/// An error as JSON: `{"error": "…"}`.
pub fn error(why: &str) -> Vec<u8> {
    bytes(&serde_json::json!({ "error": why }))
}

/// JSON with a final newline.
pub fn bytes(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).unwrap_or_else(|_| b"{}".to_vec());
    bytes.push(b'\n');
    bytes
}

#[derive(Serialize)]
pub struct SensorsView<'a> {
    pub sensors: Vec<SensorView<'a>>,
}

#[derive(Serialize)]
pub struct SensorView<'a> {
    pub path: &'a str,
    pub unit: &'a str,
    pub kind: Kind,
    #[serde(rename = "type")]
    pub value_type: ValueType,
    pub scale: f64,
    pub interval_ns: u64,
    pub last_time: Option<String>,
    pub group: &'a str,
    pub description: &'a str,
}

#[derive(Serialize)]
pub struct ReadingsView<'a> {
    pub readings: Vec<ReadingView<'a>>,
}

#[derive(Serialize)]
pub struct ReadingView<'a> {
    pub path: &'a str,
    pub time: Option<String>,
    pub value: Option<Value>,
    pub unit: &'a str,
}

#[derive(Serialize)]
pub struct AveragesView {
    pub averages: Vec<AverageView>,
}

#[derive(Serialize)]
pub struct AverageView {
    pub path: String,
    pub mean: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub unit: String,
    pub count: usize,
    pub gaps: usize,
    pub first_time: Option<String>,
    pub last_time: Option<String>,
}

#[derive(Serialize)]
pub struct GroupsView {
    pub groups: Vec<GroupView>,
}

#[derive(Serialize)]
pub struct GroupView {
    pub group: String,
    pub source: String,
    pub sensors: usize,
    pub interval_ns: u64,
    pub offset_ns: u64,
    pub synchronous: bool,
    /// The window of an accumulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ns: Option<i64>,
    pub samples: u64,
    pub missed_ticks: u64,
    /// The fraction of ticks that were read, 0 to 1; below 1 the interval cannot be sustained.
    pub achieved: Option<f64>,
    pub gaps: u64,
    pub overruns: u64,
    pub lag: LagView,
    pub problem: Option<String>,
    pub topic: String,
    pub schema: String,
}

#[derive(Serialize)]
pub struct LagView {
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    /// Counts of lags below 1 µs, 2 µs, 4 µs, …; the last bucket has the longer ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<[u64; BUCKETS]>,
}

/// A group's state, for `/v1/status` with the whole histogram.
pub fn group(group: &Group, with_buckets: bool) -> GroupView {
    let (stats, lag) = (&group.stats, &group.stats.lag);
    GroupView {
        group: group.name().to_owned(),
        source: group.source.clone(),
        sensors: group.schema.len(),
        interval_ns: group.ticking.interval.ns(),
        offset_ns: group.ticking.offset.ns(),
        synchronous: group.ticking.synchronous,
        window_ns: group.accumulated.as_ref().map(|accumulated| accumulated.window_ns),
        samples: load(&stats.samples),
        missed_ticks: load(&stats.missed),
        achieved: achieved(load(&stats.samples), load(&stats.missed)),
        gaps: load(&stats.gaps),
        overruns: load(&stats.overruns),
        lag: LagView {
            p50_ns: lag.quantile_ns(0.5).min(lag.max_ns()),
            p99_ns: lag.quantile_ns(0.99).min(lag.max_ns()),
            max_ns: lag.max_ns(),
            buckets: with_buckets.then(|| lag.counts()),
        },
        problem: stats.problem.get().map(|problem| problem.to_string()),
        topic: group.topic.to_string(),
        schema: group.sent_schema().hash().to_string(),
    }
}

fn achieved(samples: u64, missed: u64) -> Option<f64> {
    (samples + missed > 0).then(|| samples as f64 / (samples + missed) as f64)
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The time in RFC 3339.
pub fn time(ns: i64) -> String {
    Timestamp(ns).to_string()
}

#[derive(Serialize)]
pub struct SourcesView {
    pub sources: Vec<SourceView>,
}

#[derive(Serialize)]
pub struct SourceView {
    pub source: String,
    pub state: &'static str,
    pub groups: String,
    pub summary: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub notes: String,
}

pub fn sources(status: &AgentStatus) -> Vec<SourceView> {
    let view = |source: SourceStatus| SourceView {
        source: source.name,
        state: source.state,
        groups: source.groups.join(" "),
        summary: source.summary,
        notes: source.notes.join("; "),
    };
    status.sources().into_iter().map(view).collect()
}

#[derive(Serialize)]
pub struct PluginsView {
    pub plugins: Vec<PluginView>,
}

#[derive(Serialize)]
pub struct PluginView {
    pub plugin: String,
    #[serde(flatten)]
    pub progress: PluginProgress,
    pub isolated: bool,
    pub groups: usize,
    pub sensors: usize,
    pub library: String,
}

pub fn plugins(status: &AgentStatus) -> Vec<PluginView> {
    let view = |plugin: PluginStatus| PluginView {
        progress: lock(&plugin.progress).clone(),
        plugin: plugin.name,
        isolated: plugin.isolated,
        groups: plugin.groups,
        sensors: plugin.sensors,
        library: plugin.library,
    };
    status.plugins().into_iter().map(view).collect()
}

/// The response to `/v1/status`, in the order in which people read it.
#[derive(Serialize)]
pub struct StatusView<'a> {
    name: &'a str,
    prefix: &'a str,
    version: &'static str,
    pid: u32,
    start_time: String,
    uptime_ns: u64,
    server: LinkStatus,
    samples: u64,
    missed_ticks: u64,
    gaps: u64,
    overruns: u64,
    clock_steps: u64,
    batches: u64,
    acknowledged: u64,
    dropped_batches: u64,
    refused_batches: u64,
    deferred_batches: u64,
    spooled_batches: u64,
    reconnects: u64,
    server_changes: u64,
    queue_bytes: u64,
    spool_bytes: u64,
    cache_batches: usize,
    cache_bytes: u64,
    send_interval_ns: u64,
    plugin_faults: u64,
    jobs: JobLoadView,
    sources: Vec<SourceView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plugins: Vec<PluginView>,
    groups: Vec<GroupView>,
}

/// The node's load by jobs, and the part that `[jobs.bounds]` refuses.
#[derive(Serialize)]
pub struct JobLoadView {
    running: u64,
    /// Jobs that are not read because of the bounds.
    waiting: u64,
    skipped: u64,
    directories_skipped: u64,
    sensors: u64,
    descriptors: usize,
    descriptors_max: usize,
    descriptors_refused: u64,
    watches: u64,
}

impl JobLoadView {
    fn of(counters: &AgentCounters) -> Self {
        Self {
            running: load(&counters.jobs),
            waiting: load(&counters.jobs_waiting),
            skipped: load(&counters.jobs_skipped),
            directories_skipped: load(&counters.directories_skipped),
            sensors: load(&counters.job_sensors),
            descriptors: descriptors::held(),
            descriptors_max: descriptors::bounds().0,
            descriptors_refused: descriptors::refused(),
            watches: load(&counters.watches),
        }
    }
}

pub fn status(context: &ApiContext) -> StatusView<'_> {
    let (counters, (cache_batches, cache_bytes)) = (&context.counters, context.cache.size());
    StatusView {
        name: &context.identity.name,
        prefix: context.identity.prefix.as_str(),
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        start_time: time(context.identity.boot_ns as i64),
        uptime_ns: context.identity.started.elapsed().as_nanos() as u64,
        server: context.status.link(),
        samples: load(&counters.samples),
        missed_ticks: load(&counters.missed),
        gaps: load(&counters.gaps),
        overruns: load(&counters.overruns),
        clock_steps: load(&counters.clock_steps),
        batches: load(&counters.batches),
        acknowledged: load(&counters.acknowledged),
        dropped_batches: load(&counters.dropped),
        refused_batches: load(&counters.refused),
        deferred_batches: load(&counters.deferred),
        spooled_batches: load(&counters.spooled),
        reconnects: load(&counters.reconnects),
        server_changes: load(&counters.server_changes),
        queue_bytes: load(&counters.queue_bytes),
        spool_bytes: load(&counters.spool_bytes),
        cache_batches,
        cache_bytes,
        send_interval_ns: context.send_interval.get().ns(),
        plugin_faults: load(&counters.plugin_faults),
        jobs: JobLoadView::of(counters),
        sources: sources(&context.status),
        plugins: plugins(&context.status),
        groups: context.registry.live().iter().map(|live| group(live, true)).collect(),
    }
}
