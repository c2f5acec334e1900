//! Counters of jobs: one set for each job, in its cgroup, on its CPUs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wholegrain_model::{Interval, SensorDef};

use super::gate::Gate;
use super::kernel::{Kernel, Owned, Whose};
use super::machine::{Cpus, Found, Machine, Wanted};
use super::part::{Part, PartReader, Slots};
use super::refusals::Refusals;
use crate::descriptors::Quota;
use crate::file::Errno;
use crate::job::{JobPart, JobPlace, JobSource};
use crate::plan::Slot;

/// The shortest interval that a part can be read at, in ms.
const INTERVAL_MIN_MS: u64 = 1;

/// The v1 controller whose directories perf counts by.
const CONTROLLER: &str = "perf_event";

/// The source at job scope.
pub struct Jobs {
    kernel: Arc<dyn Kernel>,
    machine: Machine,
    gate: Arc<Gate>,
    wanted: Vec<Wanted>,
    /// Looked up with the first job.
    found: Option<Vec<Arc<Found>>>,
    jobs: HashMap<String, Job>,
}

struct Job {
    directory: PathBuf,
    parts: Vec<Arc<Part>>,
}

impl Jobs {
    /// Opens nothing yet.
    pub fn new(kernel: Arc<dyn Kernel>, machine: Machine, gate: Arc<Gate>, wanted: Vec<Wanted>) -> Self {
        Self { kernel, machine, gate, wanted, found: None, jobs: HashMap::new() }
    }

    fn found(&mut self, report: &mut dyn FnMut(String)) -> Vec<Arc<Found>> {
        if self.found.is_none() {
            let found = self.wanted.iter().filter_map(|wanted| self.machine.find(wanted, report));
            let found: Vec<Arc<Found>> = found.map(Arc::new).collect();
            self.found = Some(found);
        }
        let all = self.found.iter().flatten();
        let of_jobs = all.filter(|found| {
            let is_shared = found.units.iter().any(|unit| matches!(unit.cpus, Cpus::Shared(_)));
            if is_shared {
                let events: Vec<&str> = found.events.iter().map(|event| event.text.as_str()).collect();
                report(format!(
                    "perf: {} counts for all of the node's processes together and cannot be had for a job; put it into node_events",
                    events.join(", ")
                ));
            }
            !is_shared
        });
        of_jobs.cloned().collect()
    }

    /// The job's directory that perf counts by, opened.
    fn directory(&self, place: &JobPlace, report: &mut dyn FnMut(String)) -> Option<(PathBuf, Owned)> {
        let Some(path) = place.v1(CONTROLLER).or(place.v2.as_deref()) else {
            report(
                "perf: jobs have no directory in the unified hierarchy nor below the controller perf_event, so their events cannot \
                 be counted; let the resource manager use one of these (Slurm: CgroupPlugin=cgroup/v2)"
                    .to_owned(),
            );
            return None;
        };
        match self.kernel.open_directory(path) {
            Ok(fd) => Some((path.to_owned(), Owned::new(fd, &self.kernel))),
            // It is over already.
            Err(libc::ENOENT | libc::ENOTDIR) => None,
            Err(errno) => {
                report(cannot_open(errno));
                None
            }
        }
    }

    fn known_parts(&self, place: &JobPlace) -> Vec<JobPart> {
        self.jobs.get(&place.level).map(|job| job.parts.iter().filter_map(job_part).collect()).unwrap_or_default()
    }

    fn is_there(&self, directory: &Path) -> bool {
        !matches!(self.kernel.open_directory(directory).map(|fd| Owned::new(fd, &self.kernel)), Err(libc::ENOENT))
    }

    fn cpus(&self, place: &JobPlace) -> Vec<u32> {
        let online = self.machine.online();
        let own: Vec<u32> = online.iter().copied().filter(|cpu| place.cpus.contains(cpu)).collect();
        if own.is_empty() { online } else { own }
    }
}

fn cannot_open(errno: Errno) -> String {
    let error = std::io::Error::from_raw_os_error(errno);
    match errno {
        libc::EMFILE | libc::ENFILE => format!(
            "perf: a job's directory cannot be opened for want of file descriptors ({error}): raise LimitNOFILE= of the agent's \
             unit (ulimit -n)"
        ),
        _ => format!("perf: a job's directory cannot be opened: {error}"),
    }
}

impl JobSource for Jobs {
    fn parts(&mut self, place: &JobPlace, report: &mut dyn FnMut(String)) -> Vec<JobPart> {
        let found = self.found(report);
        // What a job came to can still be read when its directory is gone.
        let Some((directory, fd)) = self.directory(place, report) else { return self.known_parts(place) };
        if self.gate.look() {
            report(given_up(&self.gate));
        }
        let cpus = self.cpus(place);
        if self.jobs.get(&place.level).is_some_and(|job| job.directory != directory) {
            self.forget(place);
        }
        let is_new = !self.jobs.contains_key(&place.level);
        let (kernel, gate) = (&self.kernel, &self.gate);
        let job = self.jobs.entry(place.level.clone()).or_insert_with(|| {
            let parts = found.into_iter().map(|found| Arc::new(Part::new(kernel, gate, found))).collect();
            Job { directory: directory.clone(), parts }
        });
        let mut refusals = Refusals::default();
        let quota = Quota::of(place.uid);
        for part in &job.parts {
            part.refresh(Whose::Cgroup(fd.fd()), Some(&quota), &cpus, &mut refusals);
        }
        // The kernel says of a job that ended meanwhile what it says of an event that there is not.
        if refusals.is_empty() || self.is_there(&directory) {
            refusals.tell(&self.machine, report);
        } else if is_new {
            self.forget(place);
        }
        self.known_parts(place)
    }

    fn forget(&mut self, place: &JobPlace) {
        if let Some(job) = self.jobs.remove(&place.level) {
            job.parts.iter().for_each(|part| part.forget());
        }
    }
}

/// What people are told when the counters are somebody else's.
pub fn given_up(gate: &Gate) -> String {
    format!("perf: the hardware's counters are given up while {}", gate.holder().unwrap_or_default())
}

/// The sensor of the part of the time that a group is on the hardware.
pub fn running_sensor(found: &Found, events: &[usize]) -> SensorDef {
    let names: Vec<&str> = events.iter().map(|event| found.events[*event].text.as_str()).collect();
    let mut description = format!("Part of the time that the hardware counted {}.", names.join(", "));
    let mut end = description.len().min(wholegrain_model::schema::DESCRIPTION_BYTES_MAX);
    while !description.is_char_boundary(end) {
        end -= 1;
    }
    description.truncate(end);
    SensorDef::gauge(format!("perf/{}/running", found.name), "1", &description).float()
}

fn job_part(part: &Arc<Part>) -> Option<JobPart> {
    let (found, (events, _)) = (part.found(), part.shown());
    if events.is_empty() {
        return None;
    }
    let mut sensors: Vec<SensorDef> = events.iter().map(|event| found.events[*event].sensor.clone()).collect();
    if !found.is_software {
        sensors.push(running_sensor(found, &events));
    }
    let (name, part) = (found.name.clone(), part.clone());
    let open = move |slots: &[Slot]| -> Box<dyn crate::Reader> {
        let sums = events.iter().zip(slots).filter_map(|(event, slot)| Some((*event, (*slot)?))).collect();
        let running = slots.get(events.len()).copied().flatten();
        Box::new(PartReader::new(part.clone(), Slots { sums, running, places: Vec::new() }))
    };
    Some(JobPart {
        name,
        sensors,
        interval_min: Interval::from_ms(INTERVAL_MIN_MS),
        blocking: false,
        open: Box::new(open),
    })
}
