//! The groups of the node and of its jobs.

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::options::{self, NO_OPTIONS};
use wholegrain_sources::{ConfigureContext, GroupPlan, Reader, Source, SourceType};

use crate::counts::{LOSSES_WORDS, SlotQuantity};
use crate::kernel::KernelPrograms;
use crate::programs::{OBJECT, ProgramSet};
use crate::read::{EbpfState, JobReader, NodeQuantity, NodeReader, SharedState, lock};
use crate::records::{Hierarchy, RecordReader};
use crate::settings::EbpfConfig;
use crate::slots::JobSlots;

/// The entry for lists of sources.
pub const SOURCE: SourceType = SourceType {
    name: "ebpf",
    summary: "run-queue latency, off-CPU time, block I/O latency and TCP retransmits of node and jobs (eBPF)",
    configure,
    jobs: None,
};

/// The sensors of what is lost, in the order of `struct losses`.
const LOSSES: [(&str, &str); LOSSES_WORDS] = [
    ("ebpf/lost/tasks", "Times and begins of tasks without a state, for lack of memory."),
    ("ebpf/lost/requests", "Requests of block devices whose job was not noted, as too many were in flight."),
    ("ebpf/lost/clock", "Times that were not counted as a clock went backwards."),
    ("ebpf/lost/untimed", "Requests of block devices of which the kernel keeps no time (queue/iostats is 0)."),
    ("ebpf/lost/unseen", "Times between switches of which the kernel showed only one."),
];

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    configure_with(OBJECT, section, context)
}

fn configure_with(
    object: &'static [u8],
    section: &Section,
    context: &ConfigureContext,
) -> Result<Box<dyn Source>, ConfigError> {
    let config = EbpfConfig::read(section, context)?;
    if object.is_empty() {
        let message = "the plug-in was built without clang and has no programs: install clang and build it again";
        return Err(section.error("", message));
    }
    Ok(Box::new(EbpfSource { object, config, state: SharedState::default() }))
}

struct EbpfSource {
    object: &'static [u8],
    config: EbpfConfig,
    state: SharedState,
}

impl Source for EbpfSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let mut state = lock(&self.state);
        if state.is_none() {
            match KernelPrograms::load(self.object, &self.config, report) {
                Ok(kernel) => {
                    let records = self.config.job_records.clone();
                    let records = records.map(|file| RecordReader::new(file, &self.config.cgroup));
                    *state = Some(EbpfState { kernel, slots: JobSlots::new(self.config.jobs_max), records });
                }
                Err(reason) => {
                    report(format!("ebpf: no sensors: {reason}"));
                    return Vec::new();
                }
            }
        }
        let Some(state) = &mut *state else { return Vec::new() };
        if let Err(error) = state.update_jobs() {
            report(format!("ebpf: no new jobs: {error}"));
        }
        if state.slots.left_out() > 0 {
            report(format!(
                "ebpf: {} jobs are left out or counted in part, {} of them without a process: at most {} at a time, with directories in one hierarchy of cgroups",
                state.slots.left_out(),
                state.slots.without_process(),
                self.config.jobs_max
            ));
        }
        let running = state.kernel.running();
        if running.contains(&ProgramSet::Tcp) && state.slots.hierarchy() != Hierarchy::Unified {
            report("ebpf: no retransmits of jobs: sockets have cgroups of version 2 only".to_owned());
        }
        let mut groups = vec![self.node(state)];
        groups.extend(state.slots.jobs().filter_map(|(level, job)| {
            let prefix = format!("job/{level}/ebpf");
            let is_unified = state.slots.hierarchy() == Hierarchy::Unified;
            let quantities = running.iter().flat_map(|set| set.quantities());
            let known = quantities.filter(|quantity| is_unified || *quantity != SlotQuantity::Retransmits);
            let (sensors, quantities) = self.select(known.map(|one| (one, one.sensor())), &prefix);
            let reader = JobReader { state: self.state.clone(), level: level.to_owned(), job, quantities };
            (!sensors.is_empty()).then(|| self.group(prefix, sensors, Box::new(reader)))
        }));
        groups.retain(|group| !group.sensors.is_empty());
        groups
    }
}

impl EbpfSource {
    fn node(&self, state: &EbpfState) -> GroupPlan {
        let counted = state.kernel.running().iter().flat_map(|set| set.quantities());
        let counted = counted.map(|one| (NodeQuantity::Counted(one), one.sensor()));
        let (mut sensors, mut quantities) = self.select(counted, "ebpf");
        let losses = LOSSES.iter().enumerate().map(|(index, (name, description))| {
            (NodeQuantity::Lost(index), SensorDef::counter(*name, "1", description))
        });
        let mut own: Vec<(NodeQuantity, SensorDef)> = losses.collect();
        let nested = "Events that were not counted as they interrupted the same program on the same CPU.";
        own.push((NodeQuantity::Nested, SensorDef::counter("ebpf/lost/nested", "1", nested)));
        if state.records.is_some() {
            let left_out = "Jobs that are not counted, or not with all directories.";
            own.push((NodeQuantity::Jobs, SensorDef::gauge("ebpf/jobs", "1", "Jobs that are counted.")));
            own.push((NodeQuantity::JobsLeftOut, SensorDef::gauge("ebpf/jobs_left_out", "1", left_out)));
        }
        for (quantity, sensor) in own {
            if options::keeps(&self.config.common, &NO_OPTIONS, &sensor) {
                sensors.push(sensor);
                quantities.push(quantity);
            }
        }
        self.group("ebpf".to_owned(), sensors, Box::new(NodeReader { state: self.state.clone(), quantities }))
    }

    /// The sensors that the filter keeps, with their names below `prefix`.
    fn select<T>(&self, all: impl Iterator<Item = (T, SensorDef)>, prefix: &str) -> (Vec<SensorDef>, Vec<T>) {
        let named = all.map(|(quantity, sensor)| {
            let name = format!("{prefix}/{}", sensor.name);
            (SensorDef { name, ..sensor }, quantity)
        });
        named.filter(|(sensor, _)| options::keeps(&self.config.common, &NO_OPTIONS, sensor)).unzip()
    }

    fn group(&self, name: String, sensors: Vec<SensorDef>, reader: Box<dyn Reader>) -> GroupPlan {
        GroupPlan { name, sensors, reader, timing: NO_OPTIONS.timing(&self.config.common), blocking: true }
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::config::Document;

    use super::*;

    #[test]
    fn without_programs_the_table_is_refused() {
        let document = Document::new("agent.toml", "[plugins.ebpf]\njobs_max = 3\n");
        let section = document.root().child("plugins").child("ebpf");
        let refused = configure_with(&[], &section, &ConfigureContext::default()).err().unwrap().to_string();
        assert!(refused.starts_with("agent.toml:2:1: the plug-in was built without clang"), "{refused}");
        assert!(configure_with(&[1], &section, &ConfigureContext::default()).is_ok());
    }
}
