//! The settings of `[sources.cgroup]`.

use wholegrain_model::pattern::Filter;

use crate::options::GroupOptions;

/// The table of the source.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CgroupConfig {
    /// Filter of names below the job.
    pub metrics: Filter,
    /// Whether each block device has its own metrics besides the sums.
    pub per_device: bool,
}

impl Default for CgroupConfig {
    fn default() -> Self {
        Self { metrics: Filter::default(), per_device: true }
    }
}

impl CgroupConfig {
    /// The filter as options of a group.
    pub fn options(&self) -> GroupOptions {
        GroupOptions { metrics: self.metrics.clone(), ..GroupOptions::default() }
    }
}
