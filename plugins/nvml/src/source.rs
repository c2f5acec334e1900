//! The groups of the devices.

use std::sync::{Arc, Mutex};

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::options::{self, GroupOptions, NO_OPTIONS};
use wholegrain_sources::{ConfigureContext, GroupPlan, Source, SourceType};

use crate::config::NvmlConfig;
use crate::library::Library;
use crate::processes::{JobsReader, ProcessSource};
use crate::quantities::{self, Probe, VALUES_MAX};
use crate::read::{BoundProbe, DeviceReader, lock};
use crate::session::{DeviceKind, Session};

/// The entry for lists of sources.
pub const SOURCE: SourceType = SourceType {
    name: "nvml",
    summary: "NVIDIA GPUs and MIG instances: use, memory, clocks, power, errors, links, and what each job uses (NVML)",
    configure,
    jobs: None,
};

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let config = NvmlConfig::read(section, context)?;
    let processes = config.job_records.clone().map(|records| ProcessSource::new(records, &config.proc, &config.cgroup));
    Ok(Box::new(NvmlSource { config, session: Arc::default(), processes }))
}

struct NvmlSource {
    config: NvmlConfig,
    session: Arc<Mutex<Session>>,
    processes: Option<ProcessSource>,
}

impl Source for NvmlSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let mut session = lock(&self.session);
        if session.library.is_none() {
            match Library::load(self.config.library.as_deref()) {
                Ok(library) => session.library = Some(library),
                Err(reason) => {
                    report(format!("nvml: {reason}"));
                    return Vec::new();
                }
            }
        }
        session.find(self.config.names, report);
        let ids: Vec<u32> = session.devices.keys().copied().collect();
        let mut groups: Vec<GroupPlan> = ids.iter().flat_map(|id| self.groups_of(&mut session, *id)).collect();
        if let Some(processes) = &mut self.processes {
            let (sensors, plan) = processes.plan(&mut session, &self.config.common, report);
            if !sensors.is_empty() {
                groups.push(GroupPlan {
                    name: "nvml/jobs".to_owned(),
                    sensors,
                    reader: Box::new(JobsReader::new(self.session.clone(), processes.clone(), plan)),
                    timing: NO_OPTIONS.timing(&self.config.common),
                    blocking: true,
                });
            }
        }
        groups
    }
}

impl NvmlSource {
    fn groups_of(&self, session: &mut Session, id: u32) -> Vec<GroupPlan> {
        let Some(kind) = session.devices.get(&id).map(|device| device.kind) else { return Vec::new() };
        let plans = match kind {
            DeviceKind::Gpu => vec![
                ("", &NO_OPTIONS, quantities::of_gpu(self.config.pcie_throughput)),
                ("/health", &self.config.health, quantities::of_health()),
                ("/nvlink", &self.config.nvlink, quantities::of_nvlink()),
            ],
            DeviceKind::Instance { .. } => vec![("", &NO_OPTIONS, quantities::of_instance())],
        };
        plans.into_iter().filter_map(|(end, own, probes)| self.group(session, id, end, own, probes)).collect()
    }

    /// The group of those sensors that the device has; `None` without any.
    fn group(
        &self,
        session: &mut Session,
        id: u32,
        end: &str,
        own: &GroupOptions,
        probes: Vec<Probe>,
    ) -> Option<GroupPlan> {
        let mut sensors = Vec::new();
        let mut bound = Vec::new();
        let path = session.devices.get(&id)?.path.clone();
        for Probe { read, argument, sensors: named } in probes {
            let mut values = [None; VALUES_MAX];
            let result = session.device(id).map(|(library, handle)| read(library, handle, argument, &mut values));
            if let Some(Err(code)) = result
                && code.is_lost()
            {
                session.lose(id);
            }
            let known = &mut session.devices.get_mut(&id)?.known;
            let mut slots = [None; VALUES_MAX];
            for (index, mut sensor) in named.into_iter().enumerate() {
                sensor.name = format!("{path}/{}", sensor.name);
                match result {
                    Some(Ok(())) if values[index].is_some() => _ = known.insert(sensor.name.clone()),
                    Some(Err(code)) if code.is_unsupported() => _ = known.remove(&sensor.name),
                    _ => {}
                }
                if known.contains(&sensor.name) && options::keeps(&self.config.common, own, &sensor) {
                    slots[index] = Some(sensors.len());
                    sensors.push(sensor);
                }
            }
            if slots.iter().any(Option::is_some) {
                bound.push(BoundProbe { read, argument, slots });
            }
        }
        (!sensors.is_empty()).then(|| GroupPlan {
            name: format!("{path}{end}"),
            sensors,
            reader: Box::new(DeviceReader { session: self.session.clone(), device: id, probes: bound }),
            timing: own.timing(&self.config.common),
            blocking: true,
        })
    }
}
