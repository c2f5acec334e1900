//! What the allocations of one job come to together.
//!
//! - In: the job's records, one of each node.
//! - Out: a [`Summary`]: cores, devices, steps, totals over the nodes.
//! - Never: a number for what is not known; a record kept.

pub mod config;

use wholegrain_api::{JobMetricTotal, JobStep, JobSummary, UtcTime};
use wholegrain_model::job::STEPS_MAX;
use wholegrain_model::{JobRecord, StepRecord};

/// The most different devices that are named.
const DEVICES_MAX: usize = 256;

/// Adds one node's record to the summary of its job.
pub fn add_to_summary(summary: &mut JobSummary, record: &JobRecord) {
    summary.allocations += 1;
    if let Some(cpus) = record.cpus.as_deref().and_then(count_cpus) {
        summary.cpus += cpus;
        summary.cpus_nodes += 1;
    }
    summary.devices_count += record.devices.len() as u64;
    for device in &record.devices {
        if summary.devices.len() < DEVICES_MAX {
            summary.devices.insert(device.clone());
        }
    }
    summary.steps_dropped += record.steps_dropped;
    record.steps.iter().for_each(|step| add_step(summary, step));
    for (name, value) in &record.totals {
        let one = JobMetricTotal { sum: *value, min: *value, max: *value, nodes: 1 };
        let total = summary.totals.entry(name.clone()).and_modify(|total| {
            total.sum += value;
            total.min = total.min.min(*value);
            total.max = total.max.max(*value);
            total.nodes += 1;
        });
        total.or_insert(one);
    }
    summary.end_unseen += u64::from(record.end_unseen);
}

fn add_step(summary: &mut JobSummary, step: &StepRecord) {
    if let Some(known) = summary.steps.iter_mut().find(|known| known.name == step.name) {
        known.from = known.from.min(UtcTime(step.from));
        known.to = known.to.zip(step.to).map(|(a, b)| a.max(UtcTime(b)));
        known.nodes += 1;
    } else if summary.steps.len() < STEPS_MAX {
        let StepRecord { name, from, to } = step.clone();
        summary.steps.push(JobStep { name, from: UtcTime(from), to: to.map(UtcTime), nodes: 1 });
    } else {
        summary.steps_dropped += 1;
    }
}

/// How many CPUs a list of the kernel's has, such as `0-3,8` (Documentation/admin-guide/cputopology.rst); `None` when it is none.
fn count_cpus(list: &str) -> Option<u64> {
    list.split(',').map(str::trim).filter(|range| !range.is_empty()).try_fold(0u64, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + u64::from(last.checked_sub(first)?) + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted() {
        for (list, count) in
            [("0", Some(1)), ("0-3,8", Some(5)), ("", Some(0)), ("3-1", None), ("a", None), ("0-", None)]
        {
            assert_eq!(count_cpus(list), count, "{list:?}");
        }
    }

    #[test]
    fn nodes_come_together() {
        let step = |name: &str, from, to| StepRecord { name: name.to_owned(), from, to };
        let record = |cpu: f64, steps| JobRecord {
            cpus: Some("0-1".to_owned()),
            devices: vec!["gpu/0".to_owned()],
            totals: [("cpu/usage".to_owned(), cpu)].into(),
            steps,
            ..JobRecord::default()
        };
        let mut summary = JobSummary::default();
        add_to_summary(&mut summary, &record(1.0, vec![step("step_0", 5, Some(9)), step("step_1", 10, Some(11))]));
        add_to_summary(&mut summary, &record(3.0, vec![step("step_0", 4, Some(8)), step("step_1", 10, None)]));
        add_to_summary(&mut summary, &JobRecord { end_unseen: true, ..JobRecord::default() });
        assert_eq!((summary.allocations, summary.cpus, summary.cpus_nodes), (3, 4, 2));
        assert_eq!((summary.devices.len(), summary.devices_count, summary.end_unseen), (1, 2, 1));
        assert_eq!(summary.totals["cpu/usage"], JobMetricTotal { sum: 4.0, min: 1.0, max: 3.0, nodes: 2 });
        let steps: Vec<_> =
            summary.steps.iter().map(|step| (step.from.0, step.to.map(|to| to.0), step.nodes)).collect();
        assert_eq!(steps, [(4, Some(9), 2), (10, None, 2)]);
    }
}
