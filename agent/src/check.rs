//! `--check`: the groups that would be sampled, their intervals, their topics and the estimated data rate.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use wholegrain_model::size::ByteSize;
use wholegrain_model::{BatchHeader, Interval, Schema, ValueType};
use wholegrain_sources::{Reader, Row, Source};
use wholegrain_transport::payload::{BatchEncoder, Rows};
use wholegrain_transport::topics::Topic;

use crate::config::{Config, SendMode};
use crate::counters::AgentCounters;
use crate::engine::clock;
use crate::engine::group::batch_samples;
use crate::jobs;
use crate::jobs::groups::JobSourceHandle;
use crate::jobs::groups::preview::{GroupPreview, PreviewNode, preview};
use crate::plugins::{self, NOT_RUNNING, PluginServices, SharedProgress};
use crate::reconcile::{SensorOwners, left_out};
use crate::selfstat::{self, SelfSource};
use crate::sync::lock;

/// Samples of each group to estimate the compressed size.
const TRIAL_SAMPLES: usize = 5;
/// The pause between these samples.
const TRIAL_PAUSE: Duration = Duration::from_millis(20);

/// How long the report waits for the reason why a plug-in ended in a read: 5 s.
const FAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A group that a source offers now.
pub struct OfferedGroup {
    pub source: String,
    pub schema: Schema,
    pub interval: Interval,
    pub reader: Box<dyn Reader>,
}

impl std::fmt::Debug for OfferedGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offered").field("source", &self.source).field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// One sample of a group.
#[derive(Debug, Clone)]
pub struct TrialSample {
    /// 64 bits for each sensor.
    pub values: Vec<u64>,
    /// A bit for each gap, 64 a word.
    pub gaps: Vec<u64>,
    /// When a device answered, in ns since the Unix epoch; `None` for values of the read itself.
    pub taken_at: Option<i64>,
}

impl TrialSample {
    /// Whether sensor `index` is a gap.
    pub fn is_gap(&self, index: usize) -> bool {
        self.gaps[index / 64] >> (index % 64) & 1 == 1
    }
}

/// What the sources of a configuration offer on this machine.
pub struct Offer {
    pub groups: Vec<OfferedGroup>,
    pub notes: Vec<String>,
    /// Sources and plug-ins that cannot run.
    pub failures: Vec<String>,
    /// The state of each plug-in, by its name.
    plugins: Vec<(String, SharedProgress)>,
    #[expect(dead_code, reason = "readers of plug-ins work as long as their sources")]
    sources: Vec<Box<dyn Source>>,
}

impl Offer {
    /// Reads a group once. Returns the sample and a problem; the plug-in of the group may have failed in the read.
    pub fn read(&mut self, index: usize) -> (TrialSample, Option<String>) {
        let group = &mut self.groups[index];
        let (sample, problem) = read(group);
        if problem.as_deref() == Some(NOT_RUNNING)
            && let Some(at) = self.plugins.iter().position(|(name, _)| *name == group.source)
        {
            let (name, progress) = self.plugins.remove(at);
            self.failures.push(format!("plug-in {name}: {}", wait_fault(&progress)));
        }
        (sample, problem)
    }
}

/// Why a plug-in failed in a read. The thread that watches it finds the reason.
fn wait_fault(progress: &SharedProgress) -> String {
    let deadline = Instant::now() + FAULT_TIMEOUT;
    loop {
        match lock(progress).fault.clone() {
            Some(fault) => return fault,
            None if Instant::now() >= deadline => return "it failed in a read".to_owned(),
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// Discovers all groups of the configuration on this machine.
pub fn offered(config: &Config) -> Offer {
    let (mut notes, mut failures, mut plugins_progress) = (Vec::new(), Vec::new(), Vec::new());
    let mut sources: Vec<(String, Box<dyn Source>)> = Vec::new();
    for source in &config.sources {
        match source.build(&config.roots) {
            Ok(built) => sources.push((source.name.to_owned(), built)),
            Err(error) => failures.push(error.to_string()),
        }
    }
    for plugin in &config.plugins.plugins {
        // Without a waker the first discovery waits for the plug-in.
        let services =
            PluginServices { counters: Arc::default(), waker: None, progress: PluginServices::new_progress() };
        let progress = services.progress.clone();
        match plugins::start(plugin, services) {
            Ok(built) => {
                sources.push((plugin.name.clone(), built));
                plugins_progress.push((plugin.name.clone(), progress));
            }
            Err(error) => failures.push(error.to_string()),
        }
    }
    sources
        .push((selfstat::NAME.to_owned(), Box::new(SelfSource::new(config.own, Arc::new(AgentCounters::default())))));
    let mut groups = Vec::new();
    let mut owners = SensorOwners::default();
    for (name, source) in &mut sources {
        for plan in source.discover(&mut |text| notes.push(text)) {
            match Schema::new(config.prefix.clone(), plan.name, plan.sensors) {
                Ok(schema) if groups.iter().any(|other: &OfferedGroup| other.schema.group() == schema.group()) => {
                    notes.push(format!("{name}: group {} is left out: another group has this name", schema.group()));
                }
                Ok(schema) => {
                    if let Err((sensor, group)) = owners.take(&schema) {
                        notes.push(left_out(&schema, &sensor, &group));
                        continue;
                    }
                    let interval = plan.timing.interval.unwrap_or(config.interval);
                    groups.push(OfferedGroup { source: name.clone(), schema, interval, reader: plan.reader });
                }
                Err(error) => notes.push(format!("{name}: left out: {error}")),
            }
        }
    }
    if let Some(jobs) = &config.jobs {
        let sources = config.sources.iter();
        let sources =
            sources.filter_map(|source| Some(JobSourceHandle::started(source.name, source.build_jobs(&config.roots)?)));
        let (name, prefix, roots) = (&config.name, &config.prefix, &config.roots);
        let node = PreviewNode { name, prefix, roots, sources: sources.collect(), owners: &owners };
        let of_jobs = preview(jobs, node, &mut |text| notes.push(text)).into_iter();
        groups.extend(of_jobs.map(|GroupPreview { schema, interval, reader }| OfferedGroup {
            source: jobs::groups::SOURCE.to_owned(),
            schema,
            interval,
            reader,
        }));
    }
    // A plug-in in a process of its own fails while it discovers. Its note becomes a failure.
    plugins_progress.retain(|(name, progress): &(String, SharedProgress)| {
        let progress = lock(progress).clone();
        let Some(fault) = progress.fault else { return true };
        notes.retain(|note| !note.contains(&fault));
        // The message of a refusal has file and line.
        failures.push(if progress.state == "refused" { fault } else { format!("plug-in {name}: {fault}") });
        false
    });
    let sources = sources.into_iter().map(|(_, source)| source).collect();
    Offer { groups, notes, failures, plugins: plugins_progress, sources }
}

/// Reads a group once. Returns the sample and a problem.
pub fn read(group: &mut OfferedGroup) -> (TrialSample, Option<String>) {
    let sensors = group.schema.len();
    let mut sample = TrialSample { values: vec![0; sensors], gaps: vec![0; sensors.div_ceil(64)], taken_at: None };
    let reading = group.reader.read(&mut Row::new(&mut sample.values, &mut sample.gaps));
    sample.taken_at = reading.taken_at;
    (sample, reading.problem.map(|problem| problem.to_string()))
}

struct TrialRows<'a>(&'a [TrialSample]);

impl Rows for TrialRows<'_> {
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        self.0[sample].values[sensor]
    }

    fn is_gap(&self, sensor: usize, sample: usize) -> bool {
        self.0[sample].is_gap(sensor)
    }
}

/// The estimate of one group.
#[derive(Debug, Serialize)]
pub struct GroupCheck {
    pub group: String,
    pub source: String,
    pub sensors: usize,
    pub interval: Interval,
    /// `None` without a server.
    pub topic: Option<String>,
    pub readings_per_second: f64,
    /// Estimated from a few samples.
    pub bytes_per_second: f64,
    /// The problem of the last read.
    pub problem: Option<String>,
}

/// The estimate of the whole configuration.
#[derive(Debug, Serialize)]
pub struct CheckReport {
    pub name: String,
    /// The path above all its sensors.
    pub prefix: String,
    pub server: Option<String>,
    /// A description of how batches are sent.
    pub sending: String,
    pub groups: Vec<GroupCheck>,
    pub notes: Vec<String>,
    /// Sources and plug-ins that cannot run.
    pub failures: Vec<String>,
    /// Readings per second of all groups.
    pub readings_per_second: f64,
    /// Estimated bytes per second of all groups.
    pub bytes_per_second: f64,
}

/// The size of a batch of these samples.
fn batch_bytes(agent: &str, group: &OfferedGroup, samples: &[TrialSample]) -> f64 {
    let header = BatchHeader {
        agent: agent.to_owned(),
        boot: clock::real() as u64,
        seq: 1000,
        schema: group.schema.hash(),
        interval_ns: group.interval.ns(),
    };
    let types: Vec<ValueType> = group.schema.sensors().iter().map(|sensor| sensor.value_type).collect();
    let times: Vec<i64> = (0..samples.len() as i64).map(|n| n * group.interval.ns() as i64).collect();
    let mut out = Vec::new();
    BatchEncoder::new().encode(&header, &types, &times, &TrialRows(samples), &mut out);
    out.len() as f64
}

/// Reads every group a few times and estimates the rates.
pub fn check(config: &Config) -> CheckReport {
    let mut offer = offered(config);
    let mut trials: Vec<(Vec<TrialSample>, Option<String>)> = offer.groups.iter().map(|_| (Vec::new(), None)).collect();
    for round in 0..TRIAL_SAMPLES {
        if round > 0 {
            std::thread::sleep(TRIAL_PAUSE);
        }
        for (index, (samples, problem)) in trials.iter_mut().enumerate() {
            let (sample, wrong) = offer.read(index);
            samples.push(sample);
            *problem = wrong;
        }
    }
    let send_interval = config.send_interval();
    let mut groups = Vec::new();
    for (group, (samples, problem)) in offer.groups.iter().zip(trials) {
        let readings =
            samples[0].values.len() - samples[0].gaps.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        let (one, all) = (batch_bytes(&config.name, group, &samples[..1]), batch_bytes(&config.name, group, &samples));
        let more = (all - one) / (samples.len() - 1) as f64;
        let in_batch = batch_samples(group.schema.len(), group.interval, send_interval) as f64;
        let rate = 1.0 / group.interval.seconds();
        groups.push(GroupCheck {
            group: group.schema.group().to_owned(),
            source: group.source.clone(),
            sensors: group.schema.len(),
            interval: group.interval,
            topic: config
                .mqtt
                .as_ref()
                .map(|_| Topic::Batch { agent: &config.name, group: group.schema.group() }.to_string()),
            readings_per_second: readings as f64 * rate,
            bytes_per_second: (one + more * (in_batch - 1.0)) / in_batch * rate,
            problem,
        });
    }
    CheckReport {
        name: config.name.clone(),
        prefix: config.prefix.to_string(),
        server: config.mqtt.as_ref().map(|mqtt| mqtt.shown()),
        sending: sending(config),
        // The sum of no numbers is -0.
        readings_per_second: groups.iter().map(|group| group.readings_per_second).sum::<f64>() + 0.0,
        bytes_per_second: groups.iter().map(|group| group.bytes_per_second).sum::<f64>() + 0.0,
        groups,
        notes: offer.notes,
        failures: offer.failures,
    }
}

fn sending(config: &Config) -> String {
    let Some(mqtt) = &config.mqtt else { return "no [mqtt]: samples are kept in the cache only".to_owned() };
    let how = match mqtt.mode {
        SendMode::Continuous => format!("batches of {} sent as they come", mqtt.send_interval),
        SendMode::Staggered => format!("batches of {} sent once in each, staggered by name", mqtt.send_interval),
        SendMode::Burst { per_minute } => format!("batches of {} sent {per_minute} times a minute", mqtt.send_interval),
    };
    match &config.spool {
        Some(spool) => {
            format!("{how}; after {} to the spool {}, at most {}", spool.after, spool.dir.display(), spool.bytes_max)
        }
        None => format!("{how}; no [spool]: what does not fit {} is dropped", mqtt.queue_bytes_max),
    }
}

/// The report for people.
pub fn text(report: &CheckReport) -> String {
    let mut out = String::new();
    let server = report.server.as_deref().unwrap_or("nowhere");
    let _ = writeln!(out, "agent {} at {}, to {server}", report.name, report.prefix);
    let _ = writeln!(out, "{}\n", report.sending);
    let width = report.groups.iter().map(|group| group.group.len()).max().unwrap_or(0).max(5);
    let _ = writeln!(out, "{:<width$}  SENSORS  INTERVAL  READINGS/S     BYTES/S  TOPIC", "GROUP");
    for group in &report.groups {
        let (interval, topic) = (group.interval.to_string(), group.topic.as_deref().unwrap_or("-"));
        let (name, readings, bytes) = (&group.group, group.readings_per_second, group.bytes_per_second);
        let _ = writeln!(
            out,
            "{name:<width$}  {:>7}  {interval:>8}  {readings:>10.1}  {bytes:>10.0}  {topic}",
            group.sensors
        );
    }
    let bytes = ByteSize(report.bytes_per_second as u64);
    let _ = writeln!(out, "\n{:.1} readings/s, about {bytes}/s", report.readings_per_second);
    for group in &report.groups {
        if let Some(problem) = &group.problem {
            let _ = writeln!(out, "problem: {}: {problem}", group.group);
        }
    }
    for failure in &report.failures {
        let _ = writeln!(out, "failed: {failure}");
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}
