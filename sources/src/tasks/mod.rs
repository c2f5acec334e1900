//! What a job's processes have used, one by one and summed: time on CPUs and waited for them, waits for disks and memory,
//! context switches, page faults, I/O; those that have ended stay in the sums.
//!
//! - In: `[sources.tasks]`, a job's cgroup.procs, taskstats over netlink, /proc/PID.
//! - Out: one part, read on a thread that may wait.
//! - Never: a sum that falls because a process has ended.

mod account;
mod kernel;
mod members;
mod netlink;
mod proc;
mod usage;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::Filter;
use wholegrain_model::{Interval, SensorDef};

use self::account::{Account, Exits, Observed, Sums};
use self::kernel::Kernel;
use self::members::{Members, Trouble};
use self::proc::Proc;
use self::usage::{COUNTERS, DELAY_BLKIO, DELAY_CPU, ENDED, GAUGES, IO, RUN, SWITCHES, Usage};
use crate::job::{JobPart, JobPlace, JobSource, Last};
use crate::plan::Slot;
use crate::source::NoGroups;
use crate::{ConfigureContext, ReadProblem, Reader, Reading, Roots, Row, Source, SourceType};

/// The line in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "tasks",
    summary: "jobs' processes: delays, context switches, faults and I/O, by taskstats or /proc, those that ended included",
    configure,
    jobs: Some(configure_jobs),
};

/// The shortest interval: 100 ms. A look costs some 40 us a process.
const INTERVAL_MIN_MS: u64 = 100;

/// The table as it is written.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// Which metrics, by their names below the job.
    metrics: Filter,
    /// Whether the kernel is asked over netlink where that is possible.
    taskstats: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { metrics: Filter::default(), taskstats: true }
    }
}

fn configure(section: &Section, _context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    section.parse::<Config>().map(|_| Box::new(NoGroups) as Box<dyn Source>)
}

fn configure_jobs(section: &Section, context: &ConfigureContext) -> Result<Box<dyn JobSource>, ConfigError> {
    Ok(Box::new(Tasks {
        config: section.parse()?,
        roots: context.roots.clone(),
        proc: None,
        hub: None,
        jobs: HashMap::new(),
    }))
}

/// Every sensor there can be, in order; a kernel may lack some.
pub fn sensors() -> Vec<SensorDef> {
    usage::sensors()
}

struct Tasks {
    config: Config,
    roots: Roots,
    /// Opened when the first job comes.
    proc: Option<Proc>,
    /// Made when the first job comes.
    hub: Option<Arc<Mutex<Hub>>>,
    /// By the job's level: a part that is made anew goes on with the job's sums.
    jobs: HashMap<String, Arc<Mutex<Job>>>,
}

/// What all jobs share.
struct Hub {
    kernel: Option<Kernel>,
    exits: Exits,
    /// How often the kernel had more to tell of ended processes than it kept.
    losses: u64,
}

/// One job.
struct Job {
    members: Members,
    proc: Proc,
    account: Account,
    pids: Vec<u32>,
    missing: Vec<(u32, u64)>,
    /// The hub's losses when the job began.
    losses: u64,
    /// What had been told of ended processes at the last look; `None` before the first.
    looked: Option<u64>,
}

impl JobSource for Tasks {
    fn parts(&mut self, place: &JobPlace, report: &mut dyn FnMut(String)) -> Vec<JobPart> {
        let hub = self.hub(report);
        let members = Members::of(place);
        let job = match self.jobs.get(&place.level) {
            Some(job) => {
                lock(job).members = members;
                Arc::clone(job)
            }
            None => match self.proc() {
                Ok(proc) => {
                    let losses = lock(&hub).losses;
                    let job = Arc::new(Mutex::new(Job::new(members, proc, losses)));
                    self.jobs.insert(place.level.clone(), Arc::clone(&job));
                    job
                }
                Err(error) => {
                    report(format!("tasks: {} cannot be opened: {error}; left out", self.roots.proc.display()));
                    return Vec::new();
                }
            },
        };
        self.listen(&hub, report);
        let is_told = self.told(&hub, report);
        let all = usage::sensors().into_iter().enumerate();
        let chosen = all.filter(|(n, sensor)| is_told[*n] && self.config.metrics.keeps(&sensor.name));
        let (values, sensors): (Vec<usize>, Vec<SensorDef>) = chosen.unzip();
        if sensors.is_empty() {
            return Vec::new();
        }
        let open = move |slots: &[Slot]| {
            let wanted = values.iter().zip(slots).filter_map(|(value, slot)| slot.map(|slot| (*value, slot as usize)));
            let (hub, job) = (Arc::clone(&hub), Arc::clone(&job));
            Box::new(TasksReader { hub, job, wanted: wanted.collect(), is_gone: false }) as Box<dyn Reader>
        };
        let interval_min = Interval::from_ms(INTERVAL_MIN_MS);
        vec![JobPart { name: "tasks".to_owned(), sensors, interval_min, blocking: true, open: Box::new(open) }]
    }

    fn last(&mut self, place: &JobPlace) -> Option<Last> {
        let hub = self.hub.clone()?;
        let usage = lock(self.jobs.get(&place.level)?).last(&mut lock(&hub))?;
        let is_told = self.told(&hub, &mut |_| {});
        let all = usage::sensors().into_iter().enumerate().skip(ENDED);
        let chosen = all.filter(|(n, sensor)| is_told[*n] && self.config.metrics.keeps(&sensor.name));
        Some(match usage {
            Ok(sums) => Last::Counters(chosen.map(|(n, sensor)| (sensor, value(&sums, n) as i64)).collect()),
            Err(why) => Last::Unknown(why),
        })
    }

    fn forget(&mut self, place: &JobPlace) {
        self.jobs.remove(&place.level);
        if let Some(hub) = self.hub.as_ref().filter(|_| self.jobs.is_empty()) {
            let mut hub = lock(hub);
            hub.exits = Exits::default();
            if let Some(kernel) = &mut hub.kernel {
                kernel.stop_listening();
            }
        }
    }
}

impl Tasks {
    fn proc(&mut self) -> io::Result<Proc> {
        if self.proc.is_none() {
            self.proc = Some(Proc::open(&self.roots.proc)?);
        }
        self.proc.as_ref().map(Proc::sharing).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn hub(&mut self, report: &mut dyn FnMut(String)) -> Arc<Mutex<Hub>> {
        if let Some(hub) = &self.hub {
            return Arc::clone(hub);
        }
        // The numbers of processes in a recorded tree mean nothing to the kernel.
        let is_real = self.config.taskstats && self.roots.proc == Path::new("/proc");
        let kernel = is_real.then(Kernel::open).and_then(|kernel| {
            kernel
                .map_err(|error| {
                    report(format!(
                        "tasks: taskstats cannot be used: {error}; /proc/PID is read instead: no delays but those for CPUs, \
                         and processes that live only between two reads are missed"
                    ));
                })
                .ok()
        });
        let hub = Arc::new(Mutex::new(Hub { kernel, exits: Exits::default(), losses: 0 }));
        self.hub = Some(Arc::clone(&hub));
        hub
    }

    /// Begins to be told of ended threads, if that has not begun.
    fn listen(&self, hub: &Arc<Mutex<Hub>>, report: &mut dyn FnMut(String)) {
        let mut hub = lock(hub);
        let Some(kernel) = hub.kernel.as_mut().filter(|kernel| !kernel.is_listening()) else { return };
        let cpus = fs::read_to_string(self.roots.sys.join("devices/system/cpu/possible"));
        if let Err(error) = cpus.and_then(|cpus| kernel.listen(cpus.trim())) {
            report(format!(
                "tasks: the kernel does not tell of ended tasks: {error}; processes that live only between two reads are missed"
            ));
        }
    }

    /// Which of [`usage::sensors`] this machine can tell.
    fn told(&self, hub: &Arc<Mutex<Hub>>, report: &mut dyn FnMut(String)) -> Vec<bool> {
        let hub = lock(hub);
        let has_delays = self.has_delays();
        if hub.kernel.is_some() && !has_delays {
            report(
                "tasks: delays other than those for CPUs are left out: the kernel does not count them (sysctl \
                 kernel.task_delayacct=1, or delayacct at boot, makes it count those of processes that begin afterwards)"
                    .to_owned(),
            );
        }
        let counter = |n: usize| match (&hub.kernel, n) {
            (_, RUN) | (_, FAULTS_AND_IO..) => true,
            (None, DELAY_CPU..DELAY_BLKIO) => self.roots.proc.join("self/schedstat").exists(),
            (None, DELAY_BLKIO..SWITCHES) => false,
            (Some(kernel), DELAY_BLKIO..SWITCHES) => has_delays && kernel.has(n),
            _ => true,
        };
        (0..=GAUGES).map(|_| true).chain((0..COUNTERS).map(counter)).collect()
    }

    /// Whether the kernel counts waits for disks and memory. Kernels before 5.14 have no such switch, and count.
    fn has_delays(&self) -> bool {
        let text = fs::read_to_string(self.roots.proc.join("sys/kernel/task_delayacct"));
        text.map_or(true, |text| text.trim() != "0")
    }
}

/// The counters that /proc tells wherever it is.
const FAULTS_AND_IO: usize = usage::FAULTS;

impl Job {
    fn new(members: Members, proc: Proc, losses: u64) -> Self {
        let (account, pids, missing) = (Account::default(), Vec::new(), Vec::new());
        Self { members, proc, account, pids, missing, losses, looked: None }
    }

    /// The sums when all processes have ended; what is in the way of knowing them. `None` where it was never looked at.
    fn last(&mut self, hub: &mut Hub) -> Option<Result<Sums, &'static str>> {
        let before = self.looked?;
        if !hub.kernel.as_ref().is_some_and(Kernel::is_listening) {
            return Some(Err("the agent is not told of processes that end (taskstats, which needs CAP_NET_ADMIN)"));
        }
        let result = self.look(hub, true);
        if hub.losses > self.losses || hub.exits.lacks_some_after(before) {
            return Some(Err("more processes ended on the node at once than the kernel or the agent keeps"));
        }
        Some(match result {
            Ok((sums, None)) => Ok(sums),
            _ => Err("its processes could not be read"),
        })
    }

    /// One look at every process. At the last one of a job that has ended its directories may be gone.
    fn look(&mut self, hub: &mut Hub, is_last: bool) -> Result<(Sums, Option<ReadProblem>), Trouble> {
        let Hub { kernel, exits, losses } = hub;
        let mut is_whole = true;
        let mut take = |kernel: &mut Option<Kernel>, exits: &mut Exits| {
            is_whole &= kernel.as_mut().is_none_or(|kernel| kernel.take_exits(exits));
        };
        take(kernel, exits);
        let mark = exits.sequence();
        match self.members.list(&mut self.pids) {
            Err(Trouble::Gone) if is_last => {}
            listed => listed?,
        }
        self.looked = Some(mark);
        // Whoever is not in the list has told its end by now.
        take(kernel, exits);
        let mut problem = None;
        self.account.begin();
        for index in 0..self.pids.len() {
            let pid = self.pids[index];
            match self.observe(kernel.as_mut(), pid, &mut problem) {
                Ok(seen) => self.account.see(pid, seen),
                Err(error) => {
                    self.account.see_unread(pid);
                    note(&mut problem, "a process", &error);
                }
            }
        }
        self.wait_for_parents();
        if !is_whole {
            *losses += 1;
            problem.get_or_insert(ReadProblem::Os { what: "ended tasks over netlink", errno: libc::ENOBUFS });
        }
        Ok((self.account.finish(exits, mark), problem))
    }

    fn observe(
        &mut self,
        kernel: Option<&mut Kernel>,
        pid: u32,
        problem: &mut Option<ReadProblem>,
    ) -> io::Result<Observed> {
        let stat = self.proc.stat(pid)?;
        let mut now = self.proc.now(&stat);
        let mut usage = Usage::default();
        match kernel {
            Some(kernel) => {
                let told = kernel.look(pid)?;
                (usage, now.peak_rss_bytes) = (told.usage, told.peak_rss_bytes);
            }
            None => now.peak_rss_bytes = self.proc.threads(pid, stat.threads, &mut usage)?,
        }
        proc::add_faults(&stat, &mut usage);
        if let Err(error) = self.proc.io(pid, &mut usage) {
            note(problem, IO_FILE, &error);
        }
        Ok(Observed { start: stat.start, parent: stat.parent, usage, now: Some(now) })
    }

    /// Ended processes that nobody has waited for are in no list, and their I/O is not their parents' yet.
    fn wait_for_parents(&mut self) {
        self.account.missing(&mut self.missing);
        for &(pid, start) in &self.missing {
            let Ok(stat) = self.proc.stat(pid) else { continue };
            let mut usage = Usage::default();
            if stat.start == start && stat.has_ended && self.proc.io(pid, &mut usage).is_ok() {
                proc::add_faults(&stat, &mut usage);
                self.account.see(pid, Observed { start, parent: stat.parent, usage, now: None });
            }
        }
    }
}

/// The value of one of [`usage::sensors`].
fn value(sums: &Sums, sensor: usize) -> u64 {
    match sensor {
        0 => sums.processes,
        1 => sums.now.threads,
        2 => sums.now.rss_bytes,
        3 => sums.now.peak_rss_bytes,
        ENDED => sums.ended,
        _ => sums.usage.0[sensor - GAUGES - 1],
    }
}

/// What people are told that a process's I/O is in.
const IO_FILE: &str = "proc/PID/io";

/// Notes what went wrong, unless it is only that the process has ended meanwhile.
fn note(problem: &mut Option<ReadProblem>, what: &'static str, error: &io::Error) {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    if !matches!(errno, libc::ENOENT | libc::ESRCH) {
        problem.get_or_insert(ReadProblem::Os { what, errno });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a job's processes.
struct TasksReader {
    hub: Arc<Mutex<Hub>>,
    job: Arc<Mutex<Job>>,
    /// Which of [`usage::sensors`] goes where.
    wanted: Vec<(usize, usize)>,
    is_gone: bool,
}

impl Reader for TasksReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let gone = Reading { gone: true, ..Reading::default() };
        if self.is_gone {
            return gone;
        }
        let result = lock(&self.job).look(&mut lock(&self.hub), false);
        let (sums, problem) = match result {
            Ok(read) => read,
            Err(Trouble::Gone) => {
                self.is_gone = true;
                return gone;
            }
            Err(Trouble::Os(errno)) => {
                let problem = Some(ReadProblem::Os { what: "cgroup.procs", errno });
                return Reading { problem, ..Reading::default() };
            }
        };
        // A sum without some of its parts is none.
        let is_without_io = matches!(problem, Some(ReadProblem::Os { what: IO_FILE, .. }));
        for &(sensor, slot) in &self.wanted {
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
