//! The sums of a job over its processes, also over those that have ended. No I/O, no clock.
//!
//! Each read of a process gives its counters since it began. After its end, the counters move into the job's past: the larger of those of the last
//! read and of those that the kernel reported when its threads ended. A process that began and ended between two reads is known from the kernel's
//! report, through its parent.
//!
//! I/O is different. When a parent waits for a child, the kernel adds the child's I/O to that of the parent, and so on upwards. So the I/O of an
//! ended process belongs to the past only if no ancestor among the job's processes has it now.

use std::collections::{HashMap, VecDeque};

use super::usage::{COUNTERS, IO, ProcessGauges, Usage};

/// The most ended processes that wait for a job to take them. The oldest are dropped first.
pub const EXITS_MAX: usize = 16_384;

/// The most generations of processes that ended between two reads.
const GENERATIONS_MAX: usize = 64;

/// The parent of a process whose parent is unknown.
const NOBODY: u32 = 0;

/// A process of a job.
#[derive(Debug, Clone, Copy)]
struct KnownProcess {
    /// Start time in ticks since boot, which distinguishes the process from a later one with the same number.
    start: u64,
    parent: u32,
    usage: Usage,
    gauges: ProcessGauges,
    /// The number of the last read with this process.
    read: u64,
}

/// One read of a process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessSample {
    pub start: u64,
    pub parent: u32,
    pub usage: Usage,
    /// `None` for a zombie.
    pub gauges: Option<ProcessGauges>,
}

/// The sums of a job.
#[derive(Debug, Default)]
pub struct JobAccount {
    processes: HashMap<u32, KnownProcess>,
    /// The counters of ended processes.
    past: Usage,
    ended: u64,
    /// The number of the current read.
    read: u64,
    /// The largest sums so far. They keep a counter from falling before a child's I/O has been added to that of its parent.
    largest: Usage,
    /// The processes that ended since the previous read, each with its parent. A field to reuse its memory.
    gone: HashMap<u32, u32>,
}

/// The sums of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobSums {
    pub processes: u64,
    pub ended: u64,
    pub gauges: ProcessGauges,
    pub usage: Usage,
}

impl JobAccount {
    /// Begins a read of the job.
    pub fn begin(&mut self) {
        self.read += 1;
    }

    /// Adds the read of a process.
    pub fn add(&mut self, pid: u32, sample: ProcessSample) {
        if self.processes.get(&pid).is_some_and(|process| process.start != sample.start) {
            self.end(pid, &HashMap::new());
        }
        let new = KnownProcess {
            start: sample.start,
            parent: 0,
            usage: Usage::default(),
            gauges: ProcessGauges::default(),
            read: 0,
        };
        let process = self.processes.entry(pid).or_insert(new);
        process.usage.raise(&sample.usage);
        process.parent = sample.parent;
        process.gauges = sample.gauges.unwrap_or_default();
        process.read = self.read;
    }

    /// Keeps the counters of a process that is in the list and could not be read.
    pub fn keep(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.read = self.read;
        }
    }

    /// Writes the processes that were not in this read to `out`, each with its start time. They may be zombies.
    pub fn missing(&self, out: &mut Vec<(u32, u64)>) {
        let missing = self.processes.iter().filter(|(_, process)| process.read != self.read);
        out.clear();
        out.extend(missing.map(|(pid, process)| (*pid, process.start)));
    }

    /// Ends the read: processes that were not in it have ended. The exits up to the number `mark` were reported before the list of processes was
    /// read, so that a process with one of these exits is in the list or has ended.
    pub fn finish(&mut self, exits: &mut ProcessExits, mark: u64) -> JobSums {
        self.gone.clear();
        for (pid, process) in self.processes.iter_mut().filter(|(_, process)| process.read != self.read) {
            if let Some(exit) = exits.take(*pid) {
                process.usage.raise(&exit.usage);
                if exit.parent != NOBODY {
                    process.parent = exit.parent;
                }
            }
            self.gone.insert(*pid, process.parent);
        }
        let gone = std::mem::take(&mut self.gone);
        gone.keys().for_each(|pid| self.end(*pid, &gone));
        self.gone = gone;
        self.claim(exits, mark);
        self.sums()
    }

    /// Takes ended processes that were never in the list and whose parents are the job's, then their children, and so on.
    fn claim(&mut self, exits: &mut ProcessExits, mark: u64) {
        loop {
            let before = self.gone.len();
            let Self { processes, gone, past, ended, read, .. } = self;
            exits.claim(|exit| {
                let is_ours = exit.sequence <= mark
                    && !processes.contains_key(&exit.process)
                    && (processes.contains_key(&exit.parent) || gone.contains_key(&exit.parent));
                if is_ours {
                    past.add(&exit.usage, 0, own_counters(processes, gone, *read, exit.parent));
                    *ended += 1;
                    gone.insert(exit.process, exit.parent);
                }
                is_ours
            });
            if self.gone.len() == before {
                return;
            }
        }
    }

    fn end(&mut self, pid: u32, gone: &HashMap<u32, u32>) {
        if let Some(process) = self.processes.remove(&pid) {
            let counters = own_counters(&self.processes, gone, self.read, process.parent);
            self.past.add(&process.usage, 0, counters);
            self.ended += 1;
        }
    }

    fn sums(&mut self) -> JobSums {
        let mut sums = JobSums { ended: self.ended, usage: self.past, ..JobSums::default() };
        for process in self.processes.values() {
            sums.usage.add(&process.usage, 0, COUNTERS);
            sums.processes += u64::from(process.gauges.threads > 0);
            sums.gauges.threads += process.gauges.threads;
            sums.gauges.rss_bytes += process.gauges.rss_bytes;
            sums.gauges.peak_rss_bytes += process.gauges.peak_rss_bytes;
        }
        self.largest.raise(&sums.usage);
        sums.usage = self.largest;
        sums
    }
}

/// The number of counters of an ended process that no living process includes: all, or those before I/O if an ancestor lives.
fn own_counters(processes: &HashMap<u32, KnownProcess>, gone: &HashMap<u32, u32>, read: u64, parent: u32) -> usize {
    let ancestors = std::iter::successors(Some(parent), |pid| gone.get(pid).copied()).take(GENERATIONS_MAX);
    let lives = |pid: &u32| processes.get(pid).is_some_and(|process| process.read == read);
    if ancestors.into_iter().any(|pid| lives(&pid)) { IO } else { COUNTERS }
}

/// A process with threads that have ended.
#[derive(Debug, Clone, Copy)]
pub struct ProcessExit {
    pub process: u32,
    pub parent: u32,
    /// The sum of its ended threads.
    pub usage: Usage,
    /// The number of the report of its last exit.
    pub sequence: u64,
}

/// The exits that the kernel reported, until the jobs take those of their processes. Most belong to no job and are dropped later.
#[derive(Debug, Default)]
pub struct ProcessExits {
    by_process: HashMap<u32, ProcessExit>,
    /// In the order of reports. May contain processes that were taken.
    order: VecDeque<u32>,
    sequence: u64,
    /// The largest number of an exit that was dropped for lack of room.
    dropped: u64,
}

impl ProcessExits {
    /// Whether an exit with a number above `mark` was dropped.
    pub fn lacks_some_after(&self, mark: u64) -> bool {
        self.dropped > mark
    }

    /// The number of the last exit.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Adds the exit of a thread. `parent` is 0 if `process` may be the number of a thread, so that only a job that knows the process takes it.
    pub fn add(&mut self, process: u32, parent: u32, usage: &Usage) {
        self.sequence += 1;
        let sequence = self.sequence;
        let order = &mut self.order;
        let exit = self.by_process.entry(process).or_insert_with(|| {
            order.push_back(process);
            ProcessExit { process, parent, usage: Usage::default(), sequence }
        });
        exit.usage.add(usage, 0, COUNTERS);
        (exit.parent, exit.sequence) = (parent, sequence);
        if self.order.len() > EXITS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            let exit = self.by_process.remove(&oldest);
            self.dropped = self.dropped.max(exit.map_or(0, |exit| exit.sequence));
        }
    }

    fn take(&mut self, process: u32) -> Option<ProcessExit> {
        self.by_process.remove(&process)
    }

    fn claim(&mut self, mut is_taken: impl FnMut(&ProcessExit) -> bool) {
        self.by_process.retain(|_, exit| !is_taken(exit));
    }
}

#[cfg(test)]
mod tests {
    use super::super::usage::{FAULTS, RUN};
    use super::*;

    fn usage(run: u64, chars: u64) -> Usage {
        let mut usage = Usage::default();
        (usage.0[RUN], usage.0[FAULTS], usage.0[IO]) = (run, run, chars);
        usage
    }

    fn sample(parent: u32, run: u64, chars: u64) -> ProcessSample {
        let gauges = ProcessGauges { threads: 2, rss_bytes: 10, peak_rss_bytes: 20 };
        ProcessSample { start: 1, parent, usage: usage(run, chars), gauges: Some(gauges) }
    }

    /// Reads these processes: number, parent, run time, characters.
    fn read(
        account: &mut JobAccount,
        exits: &mut ProcessExits,
        processes: &[(u32, u32, u64, u64)],
    ) -> (u64, u64, u64, u64) {
        account.begin();
        for &(pid, parent, run, chars) in processes {
            account.add(pid, sample(parent, run, chars));
        }
        let mark = exits.sequence();
        let sums = account.finish(exits, mark);
        (sums.processes, sums.ended, sums.usage.0[RUN], sums.usage.0[IO])
    }

    #[test]
    fn an_ended_process_stays_in_the_sums() {
        let (mut account, mut exits) = (JobAccount::default(), ProcessExits::default());
        assert_eq!(read(&mut account, &mut exits, &[(10, 1, 5, 100), (11, 1, 7, 50)]), (2, 0, 12, 150));
        exits.add(11, 1, &usage(9, 60));
        assert_eq!(read(&mut account, &mut exits, &[(10, 1, 6, 100)]), (1, 1, 15, 160), "its counters at its end");
        assert_eq!(
            read(&mut account, &mut exits, &[]),
            (0, 2, 15, 160),
            "its last counters, without a report of its end"
        );
        assert_eq!(
            read(&mut account, &mut exits, &[(10, 1, 1, 0)]),
            (1, 2, 16, 160),
            "another process of the same number"
        );
    }

    #[test]
    fn the_io_of_a_child_moves_to_the_parent_that_waits() {
        let (mut account, mut exits) = (JobAccount::default(), ProcessExits::default());
        read(&mut account, &mut exits, &[(10, 1, 5, 100), (11, 10, 7, 50)]);
        exits.add(11, 10, &usage(8, 0));
        assert_eq!(
            read(&mut account, &mut exits, &[(10, 1, 5, 100)]),
            (1, 1, 13, 150),
            "before the parent waits: no counter falls"
        );
        assert_eq!(read(&mut account, &mut exits, &[(10, 1, 5, 160)]), (1, 1, 13, 160), "and 10 more");
        exits.add(12, 10, &usage(1, 1024));
        assert_eq!(
            read(&mut account, &mut exits, &[(10, 1, 5, 1300)]),
            (1, 2, 14, 1300),
            "a process that was never read"
        );
    }

    #[test]
    fn short_processes_are_found_through_their_parents() {
        let (mut account, mut exits) = (JobAccount::default(), ProcessExits::default());
        read(&mut account, &mut exits, &[(10, 1, 5, 0)]);
        // A grandchild ends before its parent, which was never read either. The last one is no process of the job.
        exits.add(21, 20, &usage(1, 2048));
        exits.add(20, 10, &usage(2, 1024));
        exits.add(30, 31, &usage(100, 100));
        assert_eq!(read(&mut account, &mut exits, &[(10, 1, 5, 3072)]), (1, 2, 8, 3072));
        assert_eq!(exits.by_process.len(), 1, "the process of no job stays for other jobs");
    }

    #[test]
    fn the_exit_of_a_thread_is_not_that_of_its_process() {
        let (mut account, mut exits) = (JobAccount::default(), ProcessExits::default());
        read(&mut account, &mut exits, &[(10, 1, 5, 0)]);
        exits.add(10, 1, &usage(3, 0));
        assert_eq!(read(&mut account, &mut exits, &[(10, 1, 6, 0)]), (1, 0, 6, 0));
        // The other thread: their sum is larger than the last read.
        exits.add(10, 1, &usage(4, 0));
        assert_eq!(read(&mut account, &mut exits, &[]), (0, 1, 7, 0));
    }

    #[test]
    fn an_exit_after_the_list_waits_for_the_next_list() {
        let (mut account, mut exits) = (JobAccount::default(), ProcessExits::default());
        account.begin();
        account.add(10, sample(1, 5, 0));
        let mark = exits.sequence();
        exits.add(20, 10, &usage(2, 0));
        assert_eq!(account.finish(&mut exits, mark).ended, 0);
        assert_eq!(read(&mut account, &mut exits, &[(10, 1, 5, 0)]), (1, 1, 7, 0));
    }

    #[test]
    fn exits_that_no_job_takes_are_dropped() {
        let mut exits = ProcessExits::default();
        for process in 0..EXITS_MAX as u32 + 100 {
            exits.add(process, 1, &usage(1, 1));
        }
        assert_eq!((exits.by_process.len(), exits.order.len()), (EXITS_MAX, EXITS_MAX));
        assert!(exits.take(99).is_none() && exits.take(100).is_some());
    }

    #[test]
    fn no_counter_ever_falls() {
        let mut random = crate::testing::Random::seeded();
        for _ in 0..200 {
            let (mut account, mut exits) = (JobAccount::default(), ProcessExits::default());
            let mut alive: Vec<(u32, u32, u64, u64)> = Vec::new();
            let mut before = Usage::default();
            for step in 0..60u32 {
                for _ in 0..random.index(4) {
                    let parent = alive.get(random.index(alive.len())).map_or(1, |process| process.0);
                    alive.push((100 + step * 10 + random.index(10) as u32, parent, 0, 0));
                }
                alive.sort_unstable();
                alive.dedup_by_key(|process| process.0);
                for process in &mut alive {
                    process.2 += random.below(100);
                    process.3 += random.below(100);
                }
                if !alive.is_empty() && random.index(2) == 0 {
                    let ended = alive.swap_remove(random.index(alive.len()));
                    exits.add(ended.0, ended.1, &usage(ended.2, ended.3));
                }
                read(&mut account, &mut exits, &alive);
                let now = account.sums().usage;
                assert!(now.0.iter().zip(before.0).all(|(now, before)| *now >= before));
                before = now;
            }
        }
    }
}
