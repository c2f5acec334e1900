//! A group of events with its counters on all CPUs, and its readers.
//!
//! An event group lives as long as the job or the source. Its counters are opened, closed and opened again outside the sampling path, while
//! its readers stay. All readers share the sums, so that no sum restarts when a reader comes or goes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::config::GROUP_EVENTS_MAX;
use super::counter_lock::CounterLock;
use super::counter_sums::{CountDecreased, CounterSums, Times};
use super::kernel::{Attr, CountScope, DISABLED, Kernel, KernelFd};
use super::machine::{Cpus, ResolvedGroup};
use super::open_errors::OpenErrors;
use crate::descriptors::Quota;
use crate::file::Errno;
use crate::reader::{ReadProblem, Reader, Reading, Row};

/// Words of a group's read before its events: the number of events, time enabled, time running.
const HEAD_WORDS: usize = 3;
/// Words of each event in it: its count and its id.
const EVENT_WORDS: usize = 2;
/// How often a reader tries to lock the counters while another thread reads them: about the duration of that read.
const TRIES_MAX: usize = 20_000;
/// A group that was enabled for this time, in ns, and never counted will not be counted.
const NEVER_COUNTED_NS: u64 = 1_000_000_000;

const WHAT: &str = "perf events";
const OFFLINE: ReadProblem = ReadProblem::Os { what: "perf events of a CPU that went offline", errno: libc::ENODATA };
const YIELDED: ReadProblem =
    ReadProblem::Os { what: "perf events, closed while the lock file belongs to another user", errno: libc::EBUSY };
const LOCKED: ReadProblem = ReadProblem::Os { what: "perf events that another thread reads", errno: libc::EAGAIN };
const NEVER_COUNTED: ReadProblem = ReadProblem::Os {
    what: "perf events that find no free counters (put fewer into a group; the NMI watchdog takes one)",
    errno: libc::EBUSY,
};

/// A group of events with its counters.
pub struct EventGroup {
    kernel: Arc<dyn Kernel>,
    counter_lock: Arc<CounterLock>,
    resolved: Arc<ResolvedGroup>,
    is_closed: AtomicBool,
    /// A reader saw that the counters of a CPU no longer work.
    is_broken: AtomicBool,
    counters: Mutex<OpenCounters>,
}

struct OpenCounters {
    cpus: Vec<CpuCounters>,
    /// The indices of the open events, in the order of a read.
    events: Vec<usize>,
    /// The sums of counters that were closed.
    closed: CounterSums,
    /// The events and places of the last attempt to open counters, for the time in which counters are yielded.
    last_opened: Option<(Vec<usize>, Vec<CounterPlace>)>,
}

/// The counters of a group on one CPU.
struct CpuCounters {
    unit: usize,
    cpu: u32,
    /// Descriptors and ids of the events. The first is the leader.
    events: Vec<(KernelFd, u64)>,
    sums: CounterSums,
}

/// The index of a PMU in the group, and a CPU.
pub type CounterPlace = (usize, u32);

impl EventGroup {
    /// Opens no counters yet.
    pub fn new(kernel: &Arc<dyn Kernel>, counter_lock: &Arc<CounterLock>, resolved: Arc<ResolvedGroup>) -> Self {
        let closed = CounterSums::new(resolved.events.len());
        let counters = OpenCounters { cpus: Vec::new(), events: Vec::new(), closed, last_opened: None };
        Self {
            kernel: kernel.clone(),
            counter_lock: counter_lock.clone(),
            resolved,
            is_closed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            counters: Mutex::new(counters),
        }
    }

    /// The events of the group on this machine.
    pub fn resolved(&self) -> &ResolvedGroup {
        &self.resolved
    }

    /// The events with sensors, and the places where they count: those that could be opened. While counters are yielded, those of the last
    /// attempt, or all events before the first one, so that sensors do not come and go with the lock file.
    pub fn offered(&self) -> (Vec<usize>, Vec<CounterPlace>) {
        let counters = self.lock();
        if counters.cpus.is_empty() && self.is_yielded() {
            let all = || ((0..self.resolved.events.len()).collect(), Vec::new());
            return counters.last_opened.clone().unwrap_or_else(all);
        }
        (counters.events.clone(), counters.cpus.iter().map(CpuCounters::place).collect())
    }

    /// Opens the counters on these CPUs, or closes them while another user has the hardware's counters. Counters of jobs take their
    /// descriptors from a quota.
    pub fn refresh(&self, scope: CountScope, quota: Option<&Quota>, cpus: &[u32], errors: &mut OpenErrors) {
        if self.is_closed.load(Ordering::Acquire) {
            return;
        }
        if self.is_yielded() {
            return self.replace(Vec::new(), Vec::new());
        }
        let places = self.places(cpus);
        let is_same = self.lock().cpus.iter().map(CpuCounters::place).eq(places.iter().copied());
        if is_same && !places.is_empty() && !self.is_broken.load(Ordering::Acquire) {
            return;
        }
        let (cpus, events) = self.open((scope, quota), &places, errors).unwrap_or_default();
        self.is_broken.store(false, Ordering::Release);
        let opened = (events.clone(), cpus.iter().map(CpuCounters::place).collect());
        self.replace(cpus, events);
        self.lock().last_opened = Some(opened);
    }

    /// Closes all counters for good.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.replace(Vec::new(), Vec::new());
    }

    fn is_yielded(&self) -> bool {
        !self.resolved.is_software && self.counter_lock.is_held()
    }

    fn lock(&self) -> MutexGuard<'_, OpenCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock for the sampling path, which never waits.
    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, OpenCounters>> {
        for _ in 0..TRIES_MAX {
            match self.counters.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    fn places(&self, cpus: &[u32]) -> Vec<CounterPlace> {
        let units = self.resolved.units.iter().enumerate();
        let all = units.flat_map(|(unit, pmu)| {
            let cpus = cpus.iter().copied().filter(move |cpu| match &pmu.cpus {
                Cpus::All => true,
                Cpus::Some(some) | Cpus::Shared(some) => some.contains(cpu),
            });
            cpus.map(move |cpu| (unit, cpu))
        });
        all.collect()
    }

    /// Replaces the open counters, after a last read of them. The sums go on.
    fn replace(&self, mut cpus: Vec<CpuCounters>, events: Vec<usize>) {
        let mut counters = self.lock();
        let old_events = std::mem::replace(&mut counters.events, events);
        let mut old = std::mem::take(&mut counters.cpus);
        for cpu in &mut old {
            // Counters that cannot be read keep their last sums.
            let _ = cpu.read(&*self.kernel, &old_events);
            let sums = std::mem::take(&mut cpu.sums).restarted();
            match cpus.iter_mut().find(|new| new.place() == cpu.place()) {
                Some(new) => new.sums = sums,
                None => counters.closed.add(&sums),
            }
        }
        counters.cpus = cpus;
        drop(counters);
        // Closing takes longer than a reader should try to lock, so the lock is released before.
        drop(old);
    }

    /// Opens the group at every place, without the events that one of them refuses.
    fn open(
        &self,
        target: Target<'_>,
        places: &[CounterPlace],
        errors: &mut OpenErrors,
    ) -> Option<(Vec<CpuCounters>, Vec<usize>)> {
        let mut events: Vec<usize> = (0..self.resolved.events.len()).collect();
        while !events.is_empty() {
            match self.open_all(target, places, &events) {
                Ok(cpus) if cpus.is_empty() => return None,
                Ok(cpus) => return Some((cpus, events)),
                Err((event, errno)) if concerns_one_event(errno) => {
                    errors.add(errno, &self.resolved.events[event].text);
                    events.retain(|other| *other != event);
                }
                Err((_, errno)) => {
                    events.iter().for_each(|event| errors.add(errno, &self.resolved.events[*event].text));
                    return None;
                }
            }
        }
        None
    }

    fn open_all(
        &self,
        target: Target<'_>,
        places: &[CounterPlace],
        events: &[usize],
    ) -> Result<Vec<CpuCounters>, (usize, Errno)> {
        let mut cpus: Vec<CpuCounters> = Vec::with_capacity(places.len());
        for &place in places {
            match self.open_on_cpu(target, place, events) {
                Ok(cpu) => cpus.push(cpu),
                // The CPU went offline after the look-up; others have the event.
                Err((_, libc::ENODEV)) if !cpus.is_empty() => {}
                Err(failure) => return Err(failure),
            }
        }
        for cpu in &cpus {
            let leader = cpu.events.first().map_or(-1, |(fd, _)| fd.fd());
            self.kernel.enable(leader).map_err(|errno| (events[0], errno))?;
        }
        Ok(cpus)
    }

    fn open_on_cpu(
        &self,
        (scope, quota): Target<'_>,
        (unit, cpu): CounterPlace,
        events: &[usize],
    ) -> Result<CpuCounters, (usize, Errno)> {
        let mut open: Vec<(KernelFd, u64)> = Vec::with_capacity(events.len());
        for &event in events {
            let attr = self.resolved.units[unit].attrs[event];
            let leader = open.first().map(|(fd, _)| fd.fd());
            // Only the leader is disabled. The others count when it does, so that all begin at the same time.
            let attr = Attr { flags: attr.flags | if leader.is_none() { DISABLED } else { 0 }, ..attr };
            let descriptor = quota.map(|quota| quota.take().ok_or((event, libc::EMFILE))).transpose()?;
            let fd = self.kernel.open(&attr, scope, cpu, leader).map_err(|errno| (event, errno))?;
            let fd = KernelFd::new(fd, &self.kernel).holding(descriptor);
            let id = self.kernel.id(fd.fd()).map_err(|errno| (event, errno))?;
            open.push((fd, id));
        }
        Ok(CpuCounters { unit, cpu, events: open, sums: CounterSums::new(self.resolved.events.len()) })
    }
}

/// What to count, and the quota that pays for the descriptors.
type Target<'a> = (CountScope, Option<&'a Quota>);

/// Whether an error concerns one event, so that the others may be opened.
fn concerns_one_event(errno: Errno) -> bool {
    !matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EBADF | libc::ENOSYS)
}

impl CpuCounters {
    fn place(&self) -> CounterPlace {
        (self.unit, self.cpu)
    }

    /// Reads the counters with one system call.
    #[inline]
    fn read(&mut self, kernel: &dyn Kernel, events: &[usize]) -> Result<(), ReadProblem> {
        let mut buffer = [0u64; HEAD_WORDS + EVENT_WORDS * GROUP_EVENTS_MAX];
        let words = &mut buffer[..HEAD_WORDS + EVENT_WORDS * self.events.len()];
        let Some((leader, _)) = self.events.first() else { return Err(OFFLINE) };
        let length = kernel.read(leader.fd(), words).map_err(|errno| ReadProblem::Os { what: WHAT, errno })?;
        // A counter that the kernel has closed gives no bytes. The buffer then holds no counts.
        if length != size_of_val(words) {
            return Err(OFFLINE);
        }
        let (head, counts) = words.split_at(HEAD_WORDS);
        let (counts, _) = counts.as_chunks::<EVENT_WORDS>();
        let is_complete = head[0] == self.events.len() as u64
            && counts.iter().zip(&self.events).all(|([_, id], (_, expected))| id == expected);
        if !is_complete {
            return Err(ReadProblem::Garbage { what: WHAT, line: 1 });
        }
        let times = Times { enabled: head[1], running: head[2] };
        let counts = events.iter().copied().zip(counts.iter().map(|[count, _]| *count));
        self.sums.update(times, counts).map_err(|CountDecreased| ReadProblem::Garbage { what: WHAT, line: 1 })
    }
}

/// The slots of a group's values.
#[derive(Debug, Default)]
pub struct EventSlots {
    /// Events with the slots of their sums over all CPUs.
    pub sums: Vec<(usize, u32)>,
    /// Events with their slots for one CPU.
    pub places: Vec<(CounterPlace, Vec<(usize, u32)>)>,
    /// The slot of the fraction of time in which the group was counted.
    pub running: Option<u32>,
}

/// Reads an event group with one system call for each CPU.
pub struct EventGroupReader {
    group: Arc<EventGroup>,
    slots: EventSlots,
    sums: Vec<u128>,
    /// The times at this reader's last read: of all CPUs, and of each of its places.
    last: Times,
    last_of_places: Vec<Times>,
}

impl EventGroupReader {
    /// A reader that fills these slots.
    pub fn new(group: Arc<EventGroup>, slots: EventSlots) -> Self {
        let counters = group.lock();
        let last = counters.cpus.iter().fold(counters.closed.times, |times, cpu| times.plus(cpu.sums.times));
        let last_at = |place: &CounterPlace| {
            counters.cpus.iter().find(|cpu| cpu.place() == *place).map_or(Times::default(), |cpu| cpu.sums.times)
        };
        let last_of_places = slots.places.iter().map(|(place, _)| last_at(place)).collect();
        let sums = vec![0; group.resolved.events.len()];
        drop(counters);
        Self { group, slots, sums, last, last_of_places }
    }

    fn has_no_slots(&self) -> bool {
        self.slots.sums.is_empty() && self.slots.places.is_empty() && self.slots.running.is_none()
    }

    /// Reads the counters of every CPU: the sum of their times, or the first error.
    fn read_counters(&mut self, counters: &mut OpenCounters, row: &mut Row<'_>) -> Result<Times, ReadProblem> {
        self.sums.copy_from_slice(&counters.closed.totals);
        let (mut times, mut problem) = (counters.closed.times, None);
        for (index, cpu) in counters.cpus.iter_mut().enumerate() {
            if let Err(error) = cpu.read(&*self.group.kernel, &counters.events) {
                problem.get_or_insert(error);
                continue;
            }
            for &event in &counters.events {
                self.sums[event] = self.sums[event].wrapping_add(cpu.sums.totals[event]);
            }
            times = times.plus(cpu.sums.times);
            if !self.slots.places.is_empty() {
                self.set_place(index, cpu, &counters.events, row);
            }
        }
        problem.map_or(Ok(times), Err)
    }

    /// Sets the values of one CPU. The index of its place is in most cases that of the CPU.
    fn set_place(&mut self, index: usize, cpu: &CpuCounters, events: &[usize], row: &mut Row<'_>) {
        let places = &self.slots.places;
        let is_same = |(place, _): &(CounterPlace, _)| *place == cpu.place();
        let hint = Some(index).filter(|index| places.get(*index).is_some_and(is_same));
        let Some(index) = hint.or_else(|| places.iter().position(is_same)) else { return };
        let step = cpu.sums.times.since(self.last_of_places[index]);
        self.last_of_places[index] = cpu.sums.times;
        if !step.was_not_counted() {
            set_values(&self.group.resolved, &places[index].1, events, &cpu.sums.totals, row);
        }
    }
}

/// Sets the slots of open events to their totals.
#[inline]
fn set_values(group: &ResolvedGroup, slots: &[(usize, u32)], events: &[usize], totals: &[u128], row: &mut Row<'_>) {
    for &(event, slot) in slots.iter().filter(|(event, _)| events.contains(event)) {
        row.set_int(slot as usize, (totals[event] >> group.events[event].shift) as i64);
    }
}

impl Reader for EventGroupReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let group = self.group.clone();
        let failed = |layout_changed, problem| Reading { layout_changed, problem: Some(problem), ..Reading::COMPLETE };
        if group.is_closed.load(Ordering::Acquire) {
            return Reading { gone: true, ..Reading::default() };
        }
        if self.has_no_slots() {
            return Reading::default();
        }
        let Some(mut counters) = group.try_lock() else { return failed(false, LOCKED) };
        if group.is_yielded() {
            return failed(!counters.cpus.is_empty(), YIELDED);
        }
        // The lock is free again. Discovery opens the counters, and reports errors.
        if counters.cpus.is_empty() {
            return Reading { layout_changed: true, ..Reading::default() };
        }
        let times = match self.read_counters(&mut counters, row) {
            Ok(times) => times,
            Err(problem) => {
                group.is_broken.store(true, Ordering::Release);
                return failed(true, problem);
            }
        };
        let step = times.since(self.last);
        self.last = times;
        if !step.was_not_counted() {
            set_values(&group.resolved, &self.slots.sums, &counters.events, &self.sums, row);
        }
        if let Some(slot) = self.slots.running.filter(|_| step.enabled > 0) {
            row.set_float(slot as usize, (step.running as f64 / step.enabled as f64).min(1.0));
        }
        let is_stuck = times.running == 0 && times.enabled >= NEVER_COUNTED_NS;
        Reading { problem: is_stuck.then_some(NEVER_COUNTED), ..Reading::default() }
    }
}
