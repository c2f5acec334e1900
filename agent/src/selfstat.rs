//! The agent as a source: its costs and losses, in the group `agent`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use wholegrain_model::{Interval, SensorDef};
use wholegrain_sources::{GroupPlan, ReadProblem, Reader, Reading, Row, Source, Timing, descriptors};

use crate::counters::AgentCounters;
use crate::engine::clock;

/// The name of the source and of its group.
pub const NAME: &str = "agent";

/// The settings of `[sources.agent]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SelfMetricsConfig {
    /// `None`: the default interval.
    pub interval: Option<Interval>,
    /// Added to the multiples on the wall clock.
    pub offset: Interval,
    /// On multiples of the wall clock, or free-running.
    pub synchronous: bool,
    pub enabled: bool,
}

impl Default for SelfMetricsConfig {
    fn default() -> Self {
        Self { interval: None, offset: Interval::default(), synchronous: true, enabled: true }
    }
}

pub struct SelfSource {
    config: SelfMetricsConfig,
    counters: Arc<AgentCounters>,
}

impl SelfSource {
    pub fn new(config: SelfMetricsConfig, counters: Arc<AgentCounters>) -> Self {
        Self { config, counters }
    }
}

/// The number of sensors before those of [`COUNTED`].
const OWN: usize = 5;

type CounterSensor = (&'static str, &'static str, bool, fn(&AgentCounters) -> &AtomicU64, &'static str);

/// Name, unit, whether it is a counter, field, description.
const COUNTED: &[CounterSensor] = &[
    ("agent/samples", "1", true, |c| &c.samples, "Samples taken, of all groups."),
    ("agent/missed_ticks", "1", true, |c| &c.missed, "Ticks that passed without a read."),
    ("agent/gaps", "1", true, |c| &c.gaps, "Values that could not be read."),
    ("agent/overruns", "1", true, |c| &c.overruns, "Samples overwritten in memory before they were encoded."),
    ("agent/clock_steps", "1", true, |c| &c.clock_steps, "Steps of the wall clock."),
    ("agent/batches", "1", true, |c| &c.batches, "Batches encoded."),
    ("agent/batch_bytes", "By", true, |c| &c.batch_bytes, "Bytes of the batches encoded."),
    ("agent/acknowledged", "1", true, |c| &c.acknowledged, "Batches acknowledged by the server."),
    ("agent/dropped_batches", "1", true, |c| &c.dropped, "Batches given up because queue and spool were full."),
    ("agent/refused_batches", "1", true, |c| &c.refused, "Batches that the server refused for good."),
    ("agent/deferred_batches", "1", true, |c| &c.deferred, "Batches refused for now and sent again."),
    ("agent/spooled", "1", true, |c| &c.spooled, "Batches written to the spool."),
    ("agent/reconnects", "1", true, |c| &c.reconnects, "Connections made after the first."),
    ("agent/server_changes", "1", true, |c| &c.server_changes, "Connections to another server than the one before."),
    (
        "agent/server_place",
        "1",
        false,
        |c| &c.server_place,
        "Place of the server in use in the agent's order: 1 is the preferred one, 0 is no connection.",
    ),
    ("agent/marks", "1", true, |c| &c.marks, "Marks of jobs stored."),
    ("agent/marks_dropped", "1", true, |c| &c.marks_dropped, "Marks of jobs over the rate, dropped."),
    ("agent/marks_refused", "1", true, |c| &c.marks_refused, "Invalid marks of jobs, refused."),
    ("agent/queue_bytes", "By", false, |c| &c.queue_bytes, "Bytes that wait in memory, unsent or unacknowledged."),
    ("agent/spool_bytes", "By", false, |c| &c.spool_bytes, "Bytes that wait in the spool."),
    ("agent/jobs", "1", false, |c| &c.jobs, "Running jobs."),
    ("agent/jobs_waiting", "1", false, |c| &c.jobs_waiting, "Jobs not read because of the bounds."),
    ("agent/jobs_skipped", "1", false, |c| &c.jobs_skipped, "Directories of jobs over the bounds, skipped."),
    ("agent/directories_skipped", "1", false, |c| &c.directories_skipped, "Directories over a user's bound."),
    ("agent/job_sensors", "1", false, |c| &c.job_sensors, "Sensors of jobs."),
    (
        "agent/plugin_faults",
        "1",
        true,
        |c| &c.plugin_faults,
        "Crashes, hangs, exceeded bounds and refusals of plug-ins.",
    ),
    ("agent/watches", "1", false, |c| &c.watches, "Inotify watches."),
];

impl Source for SelfSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if !self.config.enabled {
            return Vec::new();
        }
        let statm = File::open("/proc/self/statm")
            .map_err(|error| report(format!("agent/rss: /proc/self/statm: {error}")))
            .ok();
        let mut sensors = vec![
            SensorDef::counter("agent/cpu", "s", "CPU time of the agent's process.").scaled(1e-9),
            SensorDef::gauge("agent/rss", "By", "Resident memory of the agent's process."),
            SensorDef::gauge("agent/lag_max", "s", "The longest lag of a read since the last sample.").scaled(1e-9),
            SensorDef::gauge("agent/job_descriptors", "1", "Files and counters that readers of jobs hold open."),
            SensorDef::counter("agent/job_descriptors_refused", "1", "Files of jobs not opened because of the bounds."),
        ];
        sensors.extend(COUNTED.iter().map(|(name, unit, counter, _, description)| {
            if *counter {
                SensorDef::counter(*name, unit, description)
            } else {
                SensorDef::gauge(*name, unit, description)
            }
        }));
        let timing =
            Timing { interval: self.config.interval, offset: self.config.offset, synchronous: self.config.synchronous };
        let reader = Box::new(SelfReader { counters: self.counters.clone(), statm });
        vec![GroupPlan { name: NAME.to_owned(), sensors, reader, timing, blocking: false }]
    }
}

struct SelfReader {
    counters: Arc<AgentCounters>,
    statm: Option<File>,
}

/// The resident pages: the second number of `statm` (proc(5)).
fn resident_pages(statm: &[u8]) -> Option<i64> {
    let field = statm.split(|byte| *byte == b' ').nth(1)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

impl Reader for SelfReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut reading = Reading::default();
        row.set_int(0, clock::process_cpu());
        let mut buffer = [0; 128];
        match self.statm.as_ref().map(|file| file.read_at(&mut buffer, 0)) {
            Some(Ok(length)) => {
                if let Some(pages) = resident_pages(&buffer[..length]) {
                    // SAFETY: queries a constant of the system.
                    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
                    row.set_int(1, pages * page);
                }
            }
            Some(Err(error)) => {
                reading.problem =
                    Some(ReadProblem::Os { what: "self/statm", errno: error.raw_os_error().unwrap_or(0) });
            }
            None => {}
        }
        row.set_int(2, self.counters.take_lag_max() as i64);
        row.set_int(3, descriptors::held() as i64);
        row.set_int(4, descriptors::refused() as i64);
        for (index, (_, _, _, counter, _)) in COUNTED.iter().enumerate() {
            row.set_int(OWN + index, counter(&self.counters).load(Ordering::Relaxed) as i64);
        }
        reading
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sensor_has_a_value() {
        let counters = Arc::new(AgentCounters::default());
        counters.missed.store(7, Ordering::Relaxed);
        counters.note_lag(5);
        let mut source = SelfSource::new(SelfMetricsConfig::default(), counters);
        let mut plans = source.discover(&mut |line| panic!("{line}"));
        let plan = &mut plans[0];
        let (mut values, mut gaps) = (vec![0; plan.sensors.len()], vec![0; 1]);
        let mut row = Row::new(&mut values, &mut gaps);
        assert_eq!(plan.reader.read(&mut row), Reading::default());
        assert!((0..row.len()).all(|index| row.int(index).is_some()));
        assert!(row.int(0) > Some(0) && row.int(1) > Some(100_000));
        let missed = plan.sensors.iter().position(|sensor| sensor.name == "agent/missed_ticks").unwrap();
        assert_eq!((row.int(2), row.int(missed)), (Some(5), Some(7)));
    }

    #[test]
    fn statm() {
        assert_eq!(resident_pages(b"1000 250 100 1 0 50 0\n"), Some(250));
        assert_eq!(resident_pages(b""), None);
    }
}
