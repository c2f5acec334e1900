//! Counters of jobs: event groups for each job, in its cgroup, on its CPUs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wholegrain_model::{Interval, SensorDef};

use super::counter_lock::CounterLock;
use super::event_group::{EventGroup, EventGroupReader, EventSlots};
use super::kernel::{CountScope, Kernel, KernelFd};
use super::machine::{Cpus, Machine, RequestedGroup, ResolvedGroup};
use super::open_errors::OpenErrors;
use crate::descriptors::Quota;
use crate::file::Errno;
use crate::job::{JobCgroups, JobSource, MetricSet};
use crate::plan::Slot;
use crate::reader::Reader;

/// The shortest interval of a read, in ms.
const INTERVAL_MIN_MS: u64 = 1;

/// The controller of version 1 by whose cgroups perf counts.
const CONTROLLER: &str = "perf_event";

/// The source at job scope.
pub struct PerfJobs {
    kernel: Arc<dyn Kernel>,
    machine: Machine,
    counter_lock: Arc<CounterLock>,
    requested: Vec<RequestedGroup>,
    /// `None` before the first job.
    resolved: Option<Vec<Arc<ResolvedGroup>>>,
    jobs: HashMap<String, JobCounters>,
}

struct JobCounters {
    directory: PathBuf,
    groups: Vec<Arc<EventGroup>>,
}

impl PerfJobs {
    /// The job scope with these groups, of which none is open yet.
    pub fn new(
        kernel: Arc<dyn Kernel>,
        machine: Machine,
        counter_lock: Arc<CounterLock>,
        requested: Vec<RequestedGroup>,
    ) -> Self {
        Self { kernel, machine, counter_lock, requested, resolved: None, jobs: HashMap::new() }
    }

    fn groups(&mut self, report: &mut dyn FnMut(String)) -> Vec<Arc<ResolvedGroup>> {
        if self.resolved.is_none() {
            let resolved = self.requested.iter().filter_map(|requested| self.machine.resolve(requested, report));
            let resolved: Vec<Arc<ResolvedGroup>> = resolved.map(Arc::new).collect();
            self.resolved = Some(resolved);
        }
        let all = self.resolved.iter().flatten();
        let of_jobs = all.filter(|group| {
            let is_shared = group.units.iter().any(|unit| matches!(unit.cpus, Cpus::Shared(_)));
            if is_shared {
                let events: Vec<&str> = group.events.iter().map(|event| event.text.as_str()).collect();
                report(format!(
                    "perf: {} counts all processes of the node together and is not available for a job; put it into node_events",
                    events.join(", ")
                ));
            }
            !is_shared
        });
        of_jobs.cloned().collect()
    }

    /// Opens the directory of the job by which perf counts.
    fn directory(&self, cgroups: &JobCgroups, report: &mut dyn FnMut(String)) -> Option<(PathBuf, KernelFd)> {
        let Some(path) = cgroups.v1(CONTROLLER).or(cgroups.v2.as_deref()) else {
            report(
                "perf: jobs have no directory in the unified hierarchy nor below the controller perf_event, so their events cannot \
                 be counted; let the resource manager use one of these (Slurm: CgroupPlugin=cgroup/v2)"
                    .to_owned(),
            );
            return None;
        };
        match self.kernel.open_directory(path) {
            Ok(fd) => Some((path.to_owned(), KernelFd::new(fd, &self.kernel))),
            // The job has ended.
            Err(libc::ENOENT | libc::ENOTDIR) => None,
            Err(errno) => {
                report(cannot_open(errno));
                None
            }
        }
    }

    fn metric_sets_of(&self, cgroups: &JobCgroups) -> Vec<MetricSet> {
        self.jobs.get(&cgroups.level).map(|job| job.groups.iter().filter_map(metric_set).collect()).unwrap_or_default()
    }

    fn exists(&self, directory: &Path) -> bool {
        !matches!(self.kernel.open_directory(directory).map(|fd| KernelFd::new(fd, &self.kernel)), Err(libc::ENOENT))
    }

    fn cpus(&self, cgroups: &JobCgroups) -> Vec<u32> {
        let online = self.machine.online();
        let own: Vec<u32> = online.iter().copied().filter(|cpu| cgroups.cpus.contains(cpu)).collect();
        if own.is_empty() { online } else { own }
    }
}

fn cannot_open(errno: Errno) -> String {
    let error = std::io::Error::from_raw_os_error(errno);
    match errno {
        libc::EMFILE | libc::ENFILE => format!(
            "perf: cannot open a job's directory for lack of file descriptors ({error}): raise LimitNOFILE= of the agent's \
             unit (ulimit -n)"
        ),
        _ => format!("perf: cannot open a job's directory: {error}"),
    }
}

impl JobSource for PerfJobs {
    fn metric_sets(&mut self, cgroups: &JobCgroups, report: &mut dyn FnMut(String)) -> Vec<MetricSet> {
        let groups = self.groups(report);
        // The final counts of a job can be read after its directory was removed.
        let Some((directory, fd)) = self.directory(cgroups, report) else { return self.metric_sets_of(cgroups) };
        if self.counter_lock.check() {
            report(yielded(&self.counter_lock));
        }
        let cpus = self.cpus(cgroups);
        if self.jobs.get(&cgroups.level).is_some_and(|job| job.directory != directory) {
            self.forget(cgroups);
        }
        let is_new = !self.jobs.contains_key(&cgroups.level);
        let (kernel, counter_lock) = (&self.kernel, &self.counter_lock);
        let job = self.jobs.entry(cgroups.level.clone()).or_insert_with(|| {
            let groups =
                groups.into_iter().map(|group| Arc::new(EventGroup::new(kernel, counter_lock, group))).collect();
            JobCounters { directory: directory.clone(), groups }
        });
        let mut errors = OpenErrors::default();
        let quota = Quota::of(cgroups.uid);
        for group in &job.groups {
            group.refresh(CountScope::Cgroup(fd.fd()), Some(&quota), &cpus, &mut errors);
        }
        // The kernel gives the same error for a job that has just ended and for an unknown event.
        if errors.is_empty() || self.exists(&directory) {
            errors.report(&self.machine, report);
        } else if is_new {
            self.forget(cgroups);
        }
        self.metric_sets_of(cgroups)
    }

    fn forget(&mut self, cgroups: &JobCgroups) {
        if let Some(job) = self.jobs.remove(&cgroups.level) {
            job.groups.iter().for_each(|group| group.close());
        }
    }
}

/// The report while another user has the hardware's counters.
pub fn yielded(counter_lock: &CounterLock) -> String {
    format!("perf: the hardware's counters are closed while {}", counter_lock.holder().unwrap_or_default())
}

/// The sensor of the fraction of time in which the hardware counted a group.
pub fn running_sensor(group: &ResolvedGroup, events: &[usize]) -> SensorDef {
    let names: Vec<&str> = events.iter().map(|event| group.events[*event].text.as_str()).collect();
    let mut description = format!("Fraction of the time in which the hardware counted {}.", names.join(", "));
    let mut end = description.len().min(wholegrain_model::schema::DESCRIPTION_BYTES_MAX);
    while !description.is_char_boundary(end) {
        end -= 1;
    }
    description.truncate(end);
    SensorDef::gauge(format!("perf/{}/running", group.name), "1", &description).float()
}

fn metric_set(group: &Arc<EventGroup>) -> Option<MetricSet> {
    let (resolved, (events, _)) = (group.resolved(), group.offered());
    if events.is_empty() {
        return None;
    }
    let mut sensors: Vec<SensorDef> = events.iter().map(|event| resolved.events[*event].sensor.clone()).collect();
    if !resolved.is_software {
        sensors.push(running_sensor(resolved, &events));
    }
    let (name, group) = (resolved.name.clone(), group.clone());
    let open = move |slots: &[Slot]| -> Box<dyn Reader> {
        let sums = events.iter().zip(slots).filter_map(|(event, slot)| Some((*event, (*slot)?))).collect();
        let running = slots.get(events.len()).copied().flatten();
        Box::new(EventGroupReader::new(group.clone(), EventSlots { sums, running, places: Vec::new() }))
    };
    Some(MetricSet {
        name,
        sensors,
        interval_min: Interval::from_ms(INTERVAL_MIN_MS),
        blocking: false,
        open: Box::new(open),
    })
}
