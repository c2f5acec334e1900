//! What the processes of each job use of each GPU: memory, and time of its processors.
//!
//! The driver reports the processes, and the kernel their cgroups: a user cannot claim another job's GPU by an environment variable.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nvml_wrapper_sys::bindings as nvml;
use wholegrain_model::SensorDef;
use wholegrain_sources::options::{self, GroupOptions, NO_OPTIONS};
use wholegrain_sources::{Reader, Reading, Row};

use crate::directories::JobDirectories;
use crate::library::{Handle, Library, NvmlCode, call};
use crate::quantities::wide;
use crate::read::{lock, problem};
use crate::session::{DeviceKind, Session};

/// The most processes of a GPU that are read; with more, its sensors of jobs are gaps.
const PROCESSES_MAX: usize = 2048;
/// The most samples of processes' use that are read at once.
const SAMPLES_MAX: usize = 8192;
/// The most pairs of a job and a device.
const PAIRS_MAX: usize = 8192;
/// The number of a process that is in no instance.
const NO_INSTANCE: u32 = u32::MAX;

/// A job on a device: the job's level, and the device's path.
type Pair = (String, String);

/// The places in the row of the sensors of a job on a device.
#[derive(Debug, Clone, Copy, Default)]
struct PairSlots {
    memory_used: Option<usize>,
    processes: Option<usize>,
    utilization: Option<usize>,
}

/// What the group `nvml/jobs` has.
#[derive(Debug, Clone, Default)]
pub struct JobsPlan {
    /// The number of processes of each GPU, by path.
    counts: BTreeMap<String, usize>,
    pairs: BTreeMap<Pair, PairSlots>,
}

/// What the processes of one job use of one device.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct JobUse {
    /// `None` if the driver does not know it of a process.
    memory_used: Option<i64>,
    processes: i64,
    /// In percent, `None` if the driver has no sample.
    utilization: Option<f64>,
}

/// The uses at one time.
#[derive(Default)]
struct Usage {
    of_jobs: BTreeMap<Pair, JobUse>,
    counts: BTreeMap<String, i64>,
    error: Option<NvmlCode>,
}

/// Finds processes and their jobs.
#[derive(Clone)]
pub struct ProcessSource {
    directories: JobDirectories,
    offered: BTreeSet<Pair>,
    /// The GPUs whose driver lists processes, by path.
    listed: HashSet<String>,
}

impl ProcessSource {
    /// A source that has read nothing yet.
    pub fn new(records: PathBuf, proc: &Path, cgroup: &Path) -> Self {
        let directories = JobDirectories::new(records, proc, cgroup);
        Self { directories, offered: BTreeSet::new(), listed: HashSet::new() }
    }

    /// The sensors of the jobs that use a GPU now, or did at the last discovery and still run.
    pub fn plan(
        &mut self,
        session: &mut Session,
        common: &GroupOptions,
        report: &mut dyn FnMut(String),
    ) -> (Vec<SensorDef>, JobsPlan) {
        if let Err(error) = self.directories.refresh() {
            report(format!("nvml: no sensors of jobs: {error}"));
        }
        let usage = self.usage(session, false);
        let still = std::mem::take(&mut self.offered);
        let still = still.into_iter().filter(|(level, _)| self.directories.has(level));
        let mut pairs: BTreeSet<Pair> = still.chain(usage.of_jobs.into_keys()).collect();
        while pairs.len() > PAIRS_MAX {
            report(format!("nvml: more than {PAIRS_MAX} pairs of a job and a GPU; the others have no sensors"));
            pairs.pop_last();
        }
        let (mut sensors, mut plan) = (Vec::new(), JobsPlan::default());
        let mut add = |sensor: SensorDef| {
            options::keeps(common, &NO_OPTIONS, &sensor).then(|| {
                sensors.push(sensor);
                sensors.len() - 1
            })
        };
        self.listed.extend(usage.counts.into_keys());
        for path in session.devices.values().map(|device| &device.path).filter(|path| self.listed.contains(*path)) {
            let sensor = SensorDef::gauge(format!("{path}/processes"), "1", "Processes that use the GPU.");
            if let Some(slot) = add(sensor) {
                plan.counts.insert(path.clone(), slot);
            }
        }
        for (level, device) in &pairs {
            let name = |quantity: &str| format!("job/{level}/{device}/{quantity}");
            let slots = PairSlots {
                memory_used: add(SensorDef::gauge(
                    name("memory_used"),
                    "By",
                    "Memory of the GPU that the job's processes use.",
                )),
                processes: add(SensorDef::gauge(name("processes"), "1", "Processes of the job that use the GPU.")),
                utilization: add(SensorDef::gauge(
                    name("utilization"),
                    "%",
                    "Part of the time in which kernels of the job's processes ran.",
                )
                .float()),
            };
            plan.pairs.insert((level.clone(), device.clone()), slots);
        }
        self.offered = pairs;
        (sensors, plan)
    }

    /// What jobs use now. Only a reader has `with_samples`: each sample of the driver counts once.
    fn usage(&mut self, session: &mut Session, with_samples: bool) -> Usage {
        let mut usage = Usage::default();
        let gpus = session.devices.iter().filter(|(_, device)| device.kind == DeviceKind::Gpu);
        let gpus: Vec<(u32, String)> = gpus.map(|(id, device)| (*id, device.path.clone())).collect();
        for (id, path) in gpus {
            let Some((library, handle)) = session.device(id) else { continue };
            match processes(library, handle) {
                Ok(list) => {
                    let since = session.sampled.get(&path).copied().unwrap_or_default();
                    let (busy, last) =
                        if with_samples { utilization(library, handle, since) } else { Default::default() };
                    if last > since {
                        session.sampled.insert(path.clone(), last);
                    }
                    usage.counts.insert(path.clone(), list.len() as i64);
                    self.attribute(session, &path, &list, &busy, &mut usage);
                }
                Err(code) => {
                    if code.is_lost() {
                        session.lose(id);
                    }
                    if !code.is_unsupported() {
                        usage.error.get_or_insert(code);
                    }
                }
            }
        }
        usage
    }

    fn attribute(
        &mut self,
        session: &Session,
        gpu: &str,
        list: &BTreeMap<u32, GpuProcess>,
        busy: &HashMap<u32, f64>,
        usage: &mut Usage,
    ) {
        for (pid, process) in list {
            if self.directories.level_of(*pid).is_none() {
                // The job may be younger than the records that were read. A faulty file was reported by the discovery.
                let _ = self.directories.refresh();
            }
            let Some(level) = self.directories.level_of(*pid) else { continue };
            let Some(device) = device_of(session, gpu, process) else { continue };
            let use_of_job = usage
                .of_jobs
                .entry((level.to_owned(), device))
                .or_insert(JobUse { memory_used: Some(0), ..JobUse::default() });
            use_of_job.processes += 1;
            let sum = use_of_job.memory_used.zip(process.memory_used);
            use_of_job.memory_used = sum.and_then(|(sum, bytes)| sum.checked_add(bytes));
            if let Some(percent) = busy.get(pid) {
                *use_of_job.utilization.get_or_insert(0.0) += percent;
            }
        }
    }
}

/// The mean use by each process since a time in us, in percent, and the time of the last sample.
fn utilization(library: &Library, gpu: Handle, since: u64) -> (HashMap<u32, f64>, u64) {
    let empty =
        nvml::nvmlProcessUtilizationSample_t { pid: 0, timeStamp: 0, smUtil: 0, memUtil: 0, encUtil: 0, decUtil: 0 };
    let mut samples = vec![empty; SAMPLES_MAX];
    let mut count = SAMPLES_MAX as u32;
    let result = call!(library, nvmlDeviceGetProcessUtilization(gpu.0, samples.as_mut_ptr(), &mut count, since));
    // Without a sample since then there is no value, and neither is there on GPUs with MIG.
    if result.is_err() {
        return Default::default();
    }
    samples.truncate(count as usize);
    // Places without a process have the number 0, and some drivers fill in all ones.
    let valid = samples.iter().filter(|sample| sample.pid != 0 && sample.smUtil <= 100 && sample.timeStamp > since);
    let mut sums: HashMap<u32, (f64, f64)> = HashMap::new();
    let mut last = since;
    for sample in valid {
        last = last.max(sample.timeStamp);
        let (sum, number) = sums.entry(sample.pid).or_default();
        (*sum, *number) = (*sum + f64::from(sample.smUtil), *number + 1.0);
    }
    (sums.into_iter().map(|(pid, (sum, number))| (pid, sum / number)).collect(), last)
}

/// A process on a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
struct GpuProcess {
    memory_used: Option<i64>,
    instance: u32,
    compute: u32,
}

/// The device whose sensors a process counts for: its instance, or the GPU.
fn device_of(session: &Session, gpu: &str, process: &GpuProcess) -> Option<String> {
    if process.instance == NO_INSTANCE {
        return Some(gpu.to_owned());
    }
    let kind = DeviceKind::Instance { instance: process.instance, compute: process.compute };
    session.devices.values().find(|device| device.kind == kind && device.gpu == gpu).map(|device| device.path.clone())
}

/// The processes of a GPU by pid, each once: with contexts of computing, of MPS or of graphics.
fn processes(library: &Library, gpu: Handle) -> Result<BTreeMap<u32, GpuProcess>, NvmlCode> {
    let mut all = BTreeMap::new();
    let compute =
        list(|count, out| match call!(library, nvmlDeviceGetComputeRunningProcesses_v3(gpu.0, count, out)) {
            Err(NvmlCode::FUNCTION_NOT_FOUND) => {
                call!(library, nvmlDeviceGetComputeRunningProcesses_v2(gpu.0, count, out))
            }
            result => result,
        })?;
    let graphics =
        list(|count, out| match call!(library, nvmlDeviceGetGraphicsRunningProcesses_v3(gpu.0, count, out)) {
            Err(NvmlCode::FUNCTION_NOT_FOUND) => {
                call!(library, nvmlDeviceGetGraphicsRunningProcesses_v2(gpu.0, count, out))
            }
            result => result,
        });
    let mps = list(|count, out| call!(library, nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu.0, count, out)));
    let mut add = |list: Vec<nvml::nvmlProcessInfo_t>| {
        for info in list {
            let process = GpuProcess {
                memory_used: wide(info.usedGpuMemory),
                instance: info.gpuInstanceId,
                compute: info.computeInstanceId,
            };
            let known = all.entry(info.pid).or_insert(process);
            known.memory_used = known.memory_used.max(process.memory_used);
        }
    };
    add(compute);
    for more in [graphics, mps] {
        match more {
            Ok(more) => add(more),
            Err(code) if code.is_unsupported() => {}
            Err(code) => return Err(code),
        }
    }
    Ok(all)
}

fn list(
    fill: impl Fn(&mut u32, *mut nvml::nvmlProcessInfo_t) -> Result<(), NvmlCode>,
) -> Result<Vec<nvml::nvmlProcessInfo_t>, NvmlCode> {
    let empty = nvml::nvmlProcessInfo_t {
        pid: 0,
        usedGpuMemory: 0,
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
    };
    let mut list = vec![empty; PROCESSES_MAX];
    let mut count = PROCESSES_MAX as u32;
    fill(&mut count, list.as_mut_ptr())?;
    list.truncate(count as usize);
    Ok(list)
}

/// Reads the group `nvml/jobs`.
pub struct JobsReader {
    session: Arc<Mutex<Session>>,
    processes: ProcessSource,
    plan: JobsPlan,
    /// Pairs for which a discovery was requested, so that it is requested once.
    requested: HashSet<Pair>,
}

impl JobsReader {
    pub fn new(session: Arc<Mutex<Session>>, processes: ProcessSource, plan: JobsPlan) -> Self {
        Self { session, processes, plan, requested: HashSet::new() }
    }
}

impl Reader for JobsReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut session = lock(&self.session);
        let usage = self.processes.usage(&mut session, true);
        let mut reading = Reading { problem: usage.error.map(problem), ..Reading::COMPLETE };
        for (path, slot) in &self.plan.counts {
            if let Some(count) = usage.counts.get(path) {
                row.set_int(*slot, *count);
            }
        }
        for ((level, device), slots) in &self.plan.pairs {
            let of_gpu = session.devices.values().find(|one| one.path == *device).map(|one| &one.gpu);
            // Without the list of processes it is not known that the job has none.
            if !of_gpu.is_some_and(|gpu| usage.counts.contains_key(gpu)) {
                continue;
            }
            let none = JobUse { memory_used: Some(0), ..JobUse::default() };
            let pair = (level.clone(), device.clone());
            let current = usage.of_jobs.get(&pair).copied().unwrap_or(none);
            if let (Some(slot), Some(bytes)) = (slots.memory_used, current.memory_used) {
                row.set_int(slot, bytes);
            }
            if let Some(slot) = slots.processes {
                row.set_int(slot, current.processes);
            }
            if let (Some(slot), Some(percent)) = (slots.utilization, current.utilization) {
                row.set_float(slot, percent);
            }
        }
        for pair in usage.of_jobs.into_keys() {
            if !self.plan.pairs.contains_key(&pair) && self.requested.len() < PAIRS_MAX {
                reading.layout_changed |= self.requested.insert(pair);
            }
        }
        reading
    }
}
