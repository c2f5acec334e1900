//! The report on one job, as `jobs show --format json` prints it.

use serde::Serialize;
use wholegrain_api::UtcTime;

use super::records::JobRecords;

/// A job with the statistics of its sensors.
#[derive(Debug, Serialize)]
pub struct JobReport {
    #[serde(flatten)]
    pub records: JobRecords,
    pub node_statistics: Vec<JobNodeUsage>,
    pub sensors: Vec<SensorGroupQuality>,
    pub regions: Vec<Region>,
    /// What is missing or uncertain.
    pub problems: Vec<String>,
}

/// The use of a job on one node.
#[derive(Debug, Default, Serialize)]
pub struct JobNodeUsage {
    pub node: String,
    /// CPU seconds of the record, else of the readings.
    pub cpu_s: Option<f64>,
    pub cpus_used: Option<ValueRange>,
    /// The mean of the used CPUs, divided by the number of CPUs.
    pub utilisation: Option<f64>,
    pub memory: Option<ValueRange>,
    /// According to the kernel.
    pub memory_peak: Option<f64>,
    pub read_bytes: Option<f64>,
    pub written_bytes: Option<f64>,
    pub end_unseen: bool,
}

/// The least, mean and greatest value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ValueRange {
    pub min: f64,
    pub mean: f64,
    pub max: f64,
}

/// The data quality of sensors with the same first level and interval, on all nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SensorGroupQuality {
    /// The first level of their names below the job.
    pub group: String,
    /// The current interval; 0 for events.
    pub interval_ns: u64,
    pub sensors: u64,
    pub nodes: u64,
    /// The number of values at this interval in the job's time.
    pub requested: Option<u64>,
    /// The number of stored values.
    pub got: u64,
    /// The part of the requested values that is stored, 0 to 1. Surplus values of one sensor do not count for another.
    pub covered: Option<f64>,
    /// Time without values in ns, the average over the sensors.
    pub missing_ns: Option<u64>,
    pub last_seen: Option<UtcTime>,
}

/// A region over all nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Region {
    pub region: String,
    pub count: u64,
    /// The sum over the nodes.
    pub seconds: f64,
    /// The number of nodes on which the region had not ended at the last mark.
    pub open: u64,
    pub nodes: u64,
}
