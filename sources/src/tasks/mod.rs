//! Sums over the processes of a job: time on CPUs, waits for CPUs, disks and memory, context switches, page faults, I/O. Processes that have ended
//! stay in the sums.
//!
//! - In: `[sources.tasks]`, the job's cgroup.procs, taskstats over netlink, /proc/PID.
//! - Out: one metric set, read on a thread that may block.
//! - Never: a sum that falls because a process has ended.

mod account;
mod netlink;
mod proc;
mod processes;
mod taskstats;
mod usage;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::Filter;
use wholegrain_model::{Interval, SensorDef};

use self::account::{JobAccount, JobSums, ProcessExits, ProcessSample};
use self::proc::Proc;
use self::processes::{JobProcesses, ListError};
use self::taskstats::Taskstats;
use self::usage::{COUNTERS, DELAY_BLKIO, DELAY_CPU, ENDED, GAUGES, IO, RUN, SWITCHES, Usage};
use crate::job::{FinalCounters, JobCgroups, JobSource, MetricSet};
use crate::plan::Slot;
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::source::{ConfigureContext, NoGroups, Roots, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "tasks",
    summary: "jobs' processes: delays, context switches, faults and I/O, by taskstats or /proc, those that ended included",
    configure,
    jobs: Some(configure_jobs),
};

/// The shortest interval, in ms. A read costs about 40 us for each process.
const INTERVAL_MIN_MS: u64 = 100;

/// The table of the source.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TasksConfig {
    /// Filter of names below the job.
    metrics: Filter,
    /// Whether to use taskstats over netlink, where that is possible.
    taskstats: bool,
}

impl Default for TasksConfig {
    fn default() -> Self {
        Self { metrics: Filter::default(), taskstats: true }
    }
}

fn configure(section: &Section, _context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    section.parse::<TasksConfig>().map(|_| Box::new(NoGroups) as Box<dyn Source>)
}

fn configure_jobs(section: &Section, context: &ConfigureContext) -> Result<Box<dyn JobSource>, ConfigError> {
    Ok(Box::new(TasksSource {
        config: section.parse()?,
        roots: context.roots.clone(),
        proc: None,
        shared: None,
        jobs: HashMap::new(),
    }))
}

/// All sensors, in order. A kernel may lack some.
pub fn sensors() -> Vec<SensorDef> {
    usage::sensors()
}

struct TasksSource {
    config: TasksConfig,
    roots: Roots,
    /// `None` before the first job.
    proc: Option<Proc>,
    /// `None` before the first job.
    shared: Option<Arc<Mutex<SharedTaskstats>>>,
    /// By the job's level. A new metric set of a known job goes on with its sums.
    jobs: HashMap<String, Arc<Mutex<TrackedJob>>>,
}

/// The connection to taskstats, which all jobs share.
struct SharedTaskstats {
    taskstats: Option<Taskstats>,
    exits: ProcessExits,
    /// How often the kernel lost messages about ended processes.
    losses: u64,
}

struct TrackedJob {
    processes: JobProcesses,
    proc: Proc,
    account: JobAccount,
    pids: Vec<u32>,
    missing: Vec<(u32, u64)>,
    /// The losses when the job began.
    losses: u64,
    /// The number of the last exit that had been reported at the last read; `None` before the first read.
    last_read: Option<u64>,
}

impl JobSource for TasksSource {
    fn metric_sets(&mut self, cgroups: &JobCgroups, report: &mut dyn FnMut(String)) -> Vec<MetricSet> {
        let shared = self.shared(report);
        let processes = JobProcesses::of(cgroups);
        let job = match self.jobs.get(&cgroups.level) {
            Some(job) => {
                lock(job).processes = processes;
                Arc::clone(job)
            }
            None => match self.proc() {
                Ok(proc) => {
                    let losses = lock(&shared).losses;
                    let job = Arc::new(Mutex::new(TrackedJob::new(processes, proc, losses)));
                    self.jobs.insert(cgroups.level.clone(), Arc::clone(&job));
                    job
                }
                Err(error) => {
                    report(format!("tasks: {} cannot be opened: {error}; left out", self.roots.proc.display()));
                    return Vec::new();
                }
            },
        };
        self.listen(&shared, report);
        let is_available = self.available(&shared, report);
        let all = usage::sensors().into_iter().enumerate();
        let sampled = all.filter(|(n, sensor)| is_available[*n] && self.config.metrics.keeps(&sensor.name));
        let (values, sensors): (Vec<usize>, Vec<SensorDef>) = sampled.unzip();
        if sensors.is_empty() {
            return Vec::new();
        }
        let open = move |slots: &[Slot]| {
            let slots = values.iter().zip(slots).filter_map(|(value, slot)| slot.map(|slot| (*value, slot as usize)));
            let (shared, job) = (Arc::clone(&shared), Arc::clone(&job));
            Box::new(TasksReader { shared, job, slots: slots.collect(), is_gone: false }) as Box<dyn Reader>
        };
        let interval_min = Interval::from_ms(INTERVAL_MIN_MS);
        vec![MetricSet { name: "tasks".to_owned(), sensors, interval_min, blocking: true, open: Box::new(open) }]
    }

    fn final_counters(&mut self, cgroups: &JobCgroups) -> Option<FinalCounters> {
        let shared = self.shared.clone()?;
        let usage = lock(self.jobs.get(&cgroups.level)?).final_sums(&mut lock(&shared))?;
        let is_available = self.available(&shared, &mut |_| {});
        let all = usage::sensors().into_iter().enumerate().skip(ENDED);
        let sampled = all.filter(|(n, sensor)| is_available[*n] && self.config.metrics.keeps(&sensor.name));
        Some(match usage {
            Ok(sums) => FinalCounters::Known(sampled.map(|(n, sensor)| (sensor, value(&sums, n) as i64)).collect()),
            Err(reason) => FinalCounters::Unknown(reason),
        })
    }

    fn forget(&mut self, cgroups: &JobCgroups) {
        self.jobs.remove(&cgroups.level);
        if let Some(shared) = self.shared.as_ref().filter(|_| self.jobs.is_empty()) {
            let mut shared = lock(shared);
            shared.exits = ProcessExits::default();
            if let Some(taskstats) = &mut shared.taskstats {
                taskstats.stop_listening();
            }
        }
    }
}

impl TasksSource {
    fn proc(&mut self) -> io::Result<Proc> {
        if self.proc.is_none() {
            self.proc = Some(Proc::open(&self.roots.proc)?);
        }
        self.proc.as_ref().map(Proc::sharing).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn shared(&mut self, report: &mut dyn FnMut(String)) -> Arc<Mutex<SharedTaskstats>> {
        if let Some(shared) = &self.shared {
            return Arc::clone(shared);
        }
        // The kernel knows nothing about the processes of a recorded tree.
        let is_real = self.config.taskstats && self.roots.proc == Path::new("/proc");
        let taskstats = is_real.then(Taskstats::open).and_then(|taskstats| {
            taskstats
                .map_err(|error| {
                    report(format!(
                        "tasks: taskstats cannot be used: {error}; the agent reads /proc/PID instead: only delays for CPUs, \
                         and processes that begin and end between two reads are missed"
                    ));
                })
                .ok()
        });
        let shared = Arc::new(Mutex::new(SharedTaskstats { taskstats, exits: ProcessExits::default(), losses: 0 }));
        self.shared = Some(Arc::clone(&shared));
        shared
    }

    /// Starts to receive exits of threads, if it has not started.
    fn listen(&self, shared: &Arc<Mutex<SharedTaskstats>>, report: &mut dyn FnMut(String)) {
        let mut shared = lock(shared);
        let Some(taskstats) = shared.taskstats.as_mut().filter(|taskstats| !taskstats.is_listening()) else { return };
        let cpus = fs::read_to_string(self.roots.sys.join("devices/system/cpu/possible"));
        if let Err(error) = cpus.and_then(|cpus| taskstats.listen(cpus.trim())) {
            report(format!(
                "tasks: the kernel does not report ended tasks: {error}; processes that begin and end between two reads are missed"
            ));
        }
    }

    /// Which of [`usage::sensors`] this machine has.
    fn available(&self, shared: &Arc<Mutex<SharedTaskstats>>, report: &mut dyn FnMut(String)) -> Vec<bool> {
        let shared = lock(shared);
        let has_delays = self.has_delays();
        if shared.taskstats.is_some() && !has_delays {
            report(
                "tasks: delays other than those for CPUs are left out: the kernel does not count them (sysctl \
                 kernel.task_delayacct=1, or delayacct at boot, enables it for processes that start afterwards)"
                    .to_owned(),
            );
        }
        let counter = |n: usize| match (&shared.taskstats, n) {
            (_, RUN) | (_, FAULTS_AND_IO..) => true,
            (None, DELAY_CPU..DELAY_BLKIO) => self.roots.proc.join("self/schedstat").exists(),
            (None, DELAY_BLKIO..SWITCHES) => false,
            (Some(taskstats), DELAY_BLKIO..SWITCHES) => has_delays && taskstats.has(n),
            _ => true,
        };
        (0..=GAUGES).map(|_| true).chain((0..COUNTERS).map(counter)).collect()
    }

    /// Whether the kernel counts waits for disks and memory. Kernels before 5.14 always do, and have no such setting.
    fn has_delays(&self) -> bool {
        let text = fs::read_to_string(self.roots.proc.join("sys/kernel/task_delayacct"));
        text.map_or(true, |text| text.trim() != "0")
    }
}

/// The first of the counters that every /proc has.
const FAULTS_AND_IO: usize = usage::FAULTS;

impl TrackedJob {
    fn new(processes: JobProcesses, proc: Proc, losses: u64) -> Self {
        let (account, pids, missing) = (JobAccount::default(), Vec::new(), Vec::new());
        Self { processes, proc, account, pids, missing, losses, last_read: None }
    }

    /// The sums after all processes have ended, or the reason why they are unknown. `None` for a job that was never read.
    fn final_sums(&mut self, shared: &mut SharedTaskstats) -> Option<Result<JobSums, &'static str>> {
        let before = self.last_read?;
        if !shared.taskstats.as_ref().is_some_and(Taskstats::is_listening) {
            return Some(Err("the kernel does not report processes that end (taskstats, which needs CAP_NET_ADMIN)"));
        }
        let result = self.sum_up(shared, true);
        if shared.losses > self.losses || shared.exits.lacks_some_after(before) {
            return Some(Err(
                "more processes ended on the node at the same time than the kernel or the agent can hold",
            ));
        }
        Some(match result {
            Ok((sums, None)) => Ok(sums),
            _ => Err("its processes could not be read"),
        })
    }

    /// Reads every process and adds them up. In the last read of a job that has ended, its directories may be gone.
    fn sum_up(
        &mut self,
        shared: &mut SharedTaskstats,
        is_last: bool,
    ) -> Result<(JobSums, Option<ReadProblem>), ListError> {
        let SharedTaskstats { taskstats, exits, losses } = shared;
        let mut is_complete = true;
        let mut take = |taskstats: &mut Option<Taskstats>, exits: &mut ProcessExits| {
            is_complete &= taskstats.as_mut().is_none_or(|taskstats| taskstats.take_exits(exits));
        };
        take(taskstats, exits);
        let mark = exits.sequence();
        match self.processes.list(&mut self.pids) {
            Err(ListError::NoDirectory) if is_last => {}
            result => result?,
        }
        self.last_read = Some(mark);
        // The exits of processes that are not in the list have been reported by now.
        take(taskstats, exits);
        let mut problem = None;
        self.account.begin();
        for index in 0..self.pids.len() {
            let pid = self.pids[index];
            match self.sample(taskstats.as_mut(), pid, &mut problem) {
                Ok(sample) => self.account.add(pid, sample),
                Err(error) => {
                    self.account.keep(pid);
                    note(&mut problem, "a process", &error);
                }
            }
        }
        self.read_zombies();
        if !is_complete {
            *losses += 1;
            problem.get_or_insert(ReadProblem::Os { what: "ended tasks over netlink", errno: libc::ENOBUFS });
        }
        Ok((self.account.finish(exits, mark), problem))
    }

    fn sample(
        &mut self,
        taskstats: Option<&mut Taskstats>,
        pid: u32,
        problem: &mut Option<ReadProblem>,
    ) -> io::Result<ProcessSample> {
        let stat = self.proc.stat(pid)?;
        let mut gauges = self.proc.gauges(&stat);
        let mut usage = Usage::default();
        match taskstats {
            Some(taskstats) => {
                let totals = taskstats.totals(pid)?;
                (usage, gauges.peak_rss_bytes) = (totals.usage, totals.peak_rss_bytes);
            }
            None => gauges.peak_rss_bytes = self.proc.threads(pid, stat.threads, &mut usage)?,
        }
        proc::add_faults(&stat, &mut usage);
        if let Err(error) = self.proc.io(pid, &mut usage) {
            note(problem, IO_FILE, &error);
        }
        Ok(ProcessSample { start: stat.start, parent: stat.parent, usage, gauges: Some(gauges) })
    }

    /// Reads ended processes whose parents have not waited for them (zombies). They are in no list, and the kernel has not yet added their I/O to
    /// that of their parents.
    fn read_zombies(&mut self) {
        self.account.missing(&mut self.missing);
        for &(pid, start) in &self.missing {
            let Ok(stat) = self.proc.stat(pid) else { continue };
            let mut usage = Usage::default();
            if stat.start == start && stat.has_ended && self.proc.io(pid, &mut usage).is_ok() {
                proc::add_faults(&stat, &mut usage);
                self.account.add(pid, ProcessSample { start, parent: stat.parent, usage, gauges: None });
            }
        }
    }
}

/// The value of one of [`usage::sensors`].
fn value(sums: &JobSums, sensor: usize) -> u64 {
    match sensor {
        0 => sums.processes,
        1 => sums.gauges.threads,
        2 => sums.gauges.rss_bytes,
        3 => sums.gauges.peak_rss_bytes,
        ENDED => sums.ended,
        _ => sums.usage.0[sensor - GAUGES - 1],
    }
}

/// The name of a process's I/O file in messages.
const IO_FILE: &str = "proc/PID/io";

/// Records an error, unless the process has just ended.
fn note(problem: &mut Option<ReadProblem>, what: &'static str, error: &io::Error) {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    if !matches!(errno, libc::ENOENT | libc::ESRCH) {
        problem.get_or_insert(ReadProblem::Os { what, errno });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the processes of a job.
struct TasksReader {
    shared: Arc<Mutex<SharedTaskstats>>,
    job: Arc<Mutex<TrackedJob>>,
    /// Indices in [`usage::sensors`], each with its slot.
    slots: Vec<(usize, usize)>,
    is_gone: bool,
}

impl Reader for TasksReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let gone = Reading { gone: true, ..Reading::default() };
        if self.is_gone {
            return gone;
        }
        let result = lock(&self.job).sum_up(&mut lock(&self.shared), false);
        let (sums, problem) = match result {
            Ok(read) => read,
            Err(ListError::NoDirectory) => {
                self.is_gone = true;
                return gone;
            }
            Err(ListError::Os(errno)) => {
                let problem = Some(ReadProblem::Os { what: "cgroup.procs", errno });
                return Reading { problem, ..Reading::default() };
            }
        };
        // Without the I/O of some processes the sums of I/O are gaps.
        let is_without_io = matches!(problem, Some(ReadProblem::Os { what: IO_FILE, .. }));
        for &(sensor, slot) in &self.slots {
            if sensor <= GAUGES + IO || !is_without_io {
                row.set_int(slot, value(&sums, sensor) as i64);
            }
        }
        Reading { problem, ..Reading::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_follow_the_gauges() {
        let sensors = usage::sensors();
        assert_eq!(sensors.len(), GAUGES + 1 + COUNTERS);
        assert_eq!(sensors[ENDED].name, "tasks/ended");
        assert_eq!(sensors[GAUGES + 1 + IO].name, "tasks/io/read_chars");
        assert_eq!(sensors[GAUGES + 1 + usage::DELAY_IRQ].name, "tasks/delay/irq/count");
    }
}
