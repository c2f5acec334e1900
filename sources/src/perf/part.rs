//! A group's counters on all their CPUs, and its readers.
//!
//! A part lives as long as the job or the source; its counters are opened, given up and opened anew below it, off the sampling
//! path, while its readers stay. All readers share the sums, so that none of them begins anew when another comes or goes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::config::GROUP_EVENTS_MAX;
use super::gate::Gate;
use super::kernel::{Attr, DISABLED, Kernel, Owned, Whose};
use super::machine::{Cpus, Found};
use super::refusals::Refusals;
use super::tally::{Fell, Tally, Times};
use crate::descriptors::Quota;
use crate::file::Errno;
use crate::{ReadProblem, Reader, Reading, Row};

/// Words of a group's read before its events: how many, time enabled, time running.
const HEAD_WORDS: usize = 3;
/// Words of an event in it: its count, its id.
const EVENT_WORDS: usize = 2;
/// How often a reader tries to get at the counters while another thread has them: about as long as that one's read takes.
const TRIES_MAX: usize = 20_000;
/// A group that was wanted for so long and never got onto the hardware will not, in ns.
const NEVER_COUNTED_NS: u64 = 1_000_000_000;

const WHAT: &str = "perf events";
const OFFLINE: ReadProblem = ReadProblem::Os { what: "perf events of a CPU that went offline", errno: libc::ENODATA };
const GIVEN_UP: ReadProblem =
    ReadProblem::Os { what: "perf events, given up while the lock file is another user's", errno: libc::EBUSY };
const TAKEN: ReadProblem = ReadProblem::Os { what: "perf events that another thread is reading", errno: libc::EAGAIN };
const NEVER_COUNTED: ReadProblem = ReadProblem::Os {
    what: "perf events that find no free counters (fewer in a group may; the NMI watchdog takes one)",
    errno: libc::EBUSY,
};

/// One group of events and its counters.
pub struct Part {
    kernel: Arc<dyn Kernel>,
    gate: Arc<Gate>,
    found: Arc<Found>,
    is_forgotten: AtomicBool,
    /// A reader saw that a CPU's counters are no more.
    is_broken: AtomicBool,
    inner: Mutex<Counters>,
}

/// The open counters.
struct Counters {
    cells: Vec<Cell>,
    /// The events that could be opened, in the order of the reads.
    kept: Vec<usize>,
    /// What was counted by cells that are no more.
    gone: Tally,
    /// The events and the places of when counters were last to be opened, for as long as they are given up.
    before: Option<(Vec<usize>, Vec<At>)>,
}

/// A group on one CPU.
struct Cell {
    unit: usize,
    cpu: u32,
    /// The leader first.
    events: Vec<(Owned, u64)>,
    tally: Tally,
}

/// A PMU's place among the group's, and a CPU.
type At = (usize, u32);

impl Part {
    /// With nothing open yet.
    pub fn new(kernel: &Arc<dyn Kernel>, gate: &Arc<Gate>, found: Arc<Found>) -> Self {
        let gone = Tally::new(found.events.len());
        Self {
            kernel: kernel.clone(),
            gate: gate.clone(),
            found,
            is_forgotten: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            inner: Mutex::new(Counters { cells: Vec::new(), kept: Vec::new(), gone, before: None }),
        }
    }

    /// What it counts.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// The events that it has sensors for, and where it counts: what could be opened. While that is given up, what could be before,
    /// or all events when that is not known, so that sensors do not come and go with the lock file.
    pub fn shown(&self) -> (Vec<usize>, Vec<At>) {
        let inner = self.lock();
        if inner.cells.is_empty() && self.is_given_up() {
            let all = || ((0..self.found.events.len()).collect(), Vec::new());
            return inner.before.clone().unwrap_or_else(all);
        }
        (inner.kept.clone(), inner.cells.iter().map(Cell::at).collect())
    }

    /// Makes the counters so that they are open on these CPUs, or closed while somebody else wants the hardware's. Those of jobs
    /// take their descriptors from a quota.
    pub fn refresh(&self, whose: Whose, quota: Option<&Quota>, cpus: &[u32], refusals: &mut Refusals) {
        if self.is_forgotten.load(Ordering::Acquire) {
            return;
        }
        if self.is_given_up() {
            return self.exchange(Vec::new(), Vec::new());
        }
        let wanted = self.wanted(cpus);
        let is_so = self.lock().cells.iter().map(Cell::at).eq(wanted.iter().copied());
        if is_so && !wanted.is_empty() && !self.is_broken.load(Ordering::Acquire) {
            return;
        }
        let (cells, kept) = self.open((whose, quota), &wanted, refusals).unwrap_or_default();
        self.is_broken.store(false, Ordering::Release);
        let shown = (kept.clone(), cells.iter().map(Cell::at).collect());
        self.exchange(cells, kept);
        self.lock().before = Some(shown);
    }

    /// Closes everything for good.
    pub fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Release);
        self.exchange(Vec::new(), Vec::new());
    }

    fn is_given_up(&self) -> bool {
        !self.found.is_software && self.gate.is_held()
    }

    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the sampling path: never waits.
    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, Counters>> {
        for _ in 0..TRIES_MAX {
            match self.inner.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    fn wanted(&self, cpus: &[u32]) -> Vec<At> {
        let units = self.found.units.iter().enumerate();
        let all = units.flat_map(|(unit, found)| {
            let cpus = cpus.iter().copied().filter(move |cpu| match &found.cpus {
                Cpus::All => true,
                Cpus::Some(some) | Cpus::Shared(some) => some.contains(cpu),
            });
            cpus.map(move |cpu| (unit, cpu))
        });
        all.collect()
    }

    /// Puts other cells in place of those that are there, which are read a last time; the sums go on.
    fn exchange(&self, mut cells: Vec<Cell>, kept: Vec<usize>) {
        let mut inner = self.lock();
        let old_kept = std::mem::replace(&mut inner.kept, kept);
        let mut old = std::mem::take(&mut inner.cells);
        for cell in &mut old {
            // What cannot be read any more stays at what it was.
            let _ = cell.read(&*self.kernel, &old_kept);
            let tally = std::mem::take(&mut cell.tally).begun_anew();
            match cells.iter_mut().find(|new| new.at() == cell.at()) {
                Some(new) => new.tally = tally,
                None => inner.gone.add(&tally),
            }
        }
        inner.cells = cells;
        drop(inner);
        // Closed only now, as that takes longer than a reader should have to try.
        drop(old);
    }

    /// Opens the group on every place, without the events that one of them refuses.
    fn open(&self, whose: Target<'_>, wanted: &[At], refusals: &mut Refusals) -> Option<(Vec<Cell>, Vec<usize>)> {
        let mut kept: Vec<usize> = (0..self.found.events.len()).collect();
        while !kept.is_empty() {
            match self.open_all(whose, wanted, &kept) {
                Ok(cells) if cells.is_empty() => return None,
                Ok(cells) => return Some((cells, kept)),
                Err((event, errno)) if is_of_the_event(errno) => {
                    refusals.add(errno, &self.found.events[event].text);
                    kept.retain(|other| *other != event);
                }
                Err((_, errno)) => {
                    kept.iter().for_each(|event| refusals.add(errno, &self.found.events[*event].text));
                    return None;
                }
            }
        }
        None
    }

    fn open_all(&self, whose: Target<'_>, wanted: &[At], kept: &[usize]) -> Result<Vec<Cell>, (usize, Errno)> {
        let mut cells: Vec<Cell> = Vec::with_capacity(wanted.len());
        for &at in wanted {
            match self.open_cell(whose, at, kept) {
                Ok(cell) => cells.push(cell),
                // It went offline since it was looked up; others have the event.
                Err((_, libc::ENODEV)) if !cells.is_empty() => {}
                Err(failure) => return Err(failure),
            }
        }
        for cell in &cells {
            let leader = cell.events.first().map_or(-1, |(fd, _)| fd.fd());
            self.kernel.enable(leader).map_err(|errno| (kept[0], errno))?;
        }
        Ok(cells)
    }

    fn open_cell(&self, (whose, quota): Target<'_>, (unit, cpu): At, kept: &[usize]) -> Result<Cell, (usize, Errno)> {
        let mut events: Vec<(Owned, u64)> = Vec::with_capacity(kept.len());
        for &event in kept {
            let attr = self.found.units[unit].attrs[event];
            let leader = events.first().map(|(fd, _)| fd.fd());
            // Only the first waits; the others count when it does, so that all begin at the same instant.
            let attr = Attr { flags: attr.flags | if leader.is_none() { DISABLED } else { 0 }, ..attr };
            let descriptor = quota.map(|quota| quota.take().ok_or((event, libc::EMFILE))).transpose()?;
            let fd = self.kernel.open(&attr, whose, cpu, leader).map_err(|errno| (event, errno))?;
            let fd = Owned::new(fd, &self.kernel).holding(descriptor);
            let id = self.kernel.id(fd.fd()).map_err(|errno| (event, errno))?;
            events.push((fd, id));
        }
        Ok(Cell { unit, cpu, events, tally: Tally::new(self.found.events.len()) })
    }
}

/// What is counted, and whose descriptors that takes.
type Target<'a> = (Whose, Option<&'a Quota>);

/// Whether a refusal is of this one event, so that others may still be had.
fn is_of_the_event(errno: Errno) -> bool {
    !matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EBADF | libc::ENOSYS)
}

impl Cell {
    fn at(&self) -> At {
        (self.unit, self.cpu)
    }

    /// One system call.
    #[inline]
    fn read(&mut self, kernel: &dyn Kernel, kept: &[usize]) -> Result<(), ReadProblem> {
        let mut buffer = [0u64; HEAD_WORDS + EVENT_WORDS * GROUP_EVENTS_MAX];
        let words = &mut buffer[..HEAD_WORDS + EVENT_WORDS * self.events.len()];
        let Some((leader, _)) = self.events.first() else { return Err(OFFLINE) };
        let length = kernel.read(leader.fd(), words).map_err(|errno| ReadProblem::Os { what: WHAT, errno })?;
        // Of a counter that the kernel has given up it gives nothing, and what is in the buffer then is no count.
        if length != size_of_val(words) {
            return Err(OFFLINE);
        }
        let (head, counts) = words.split_at(HEAD_WORDS);
        let (counts, _) = counts.as_chunks::<EVENT_WORDS>();
        let is_whole = head[0] == self.events.len() as u64
            && counts.iter().zip(&self.events).all(|([_, id], (_, expected))| id == expected);
        if !is_whole {
            return Err(ReadProblem::Garbage { what: WHAT, line: 1 });
        }
        let times = Times { enabled: head[1], running: head[2] };
        let counts = kept.iter().copied().zip(counts.iter().map(|[count, _]| *count));
        self.tally.take(times, counts).map_err(|Fell| ReadProblem::Garbage { what: WHAT, line: 1 })
    }
}

/// Where a part's values go in the row.
#[derive(Debug, Default)]
pub struct Slots {
    /// Events' sums over all CPUs.
    pub sums: Vec<(usize, u32)>,
    /// Events on one CPU.
    pub places: Vec<(At, Vec<(usize, u32)>)>,
    /// The part of the time that they were counted.
    pub running: Option<u32>,
}

/// Reads a part: one system call for each CPU.
pub struct PartReader {
    part: Arc<Part>,
    slots: Slots,
    sums: Vec<u128>,
    /// The times at this reader's last read: of all, and of each of its places.
    seen: Times,
    places_seen: Vec<Times>,
}

impl PartReader {
    /// For these slots.
    pub fn new(part: Arc<Part>, slots: Slots) -> Self {
        let inner = part.lock();
        let seen = inner.cells.iter().fold(inner.gone.times, |times, cell| times.plus(cell.tally.times));
        let seen_at = |at: &At| {
            inner.cells.iter().find(|cell| cell.at() == *at).map_or(Times::default(), |cell| cell.tally.times)
        };
        let places_seen = slots.places.iter().map(|(at, _)| seen_at(at)).collect();
        let sums = vec![0; part.found.events.len()];
        drop(inner);
        Self { part, slots, sums, seen, places_seen }
    }

    fn is_unwanted(&self) -> bool {
        self.slots.sums.is_empty() && self.slots.places.is_empty() && self.slots.running.is_none()
    }

    /// Reads every cell: the times, or what went wrong.
    fn read_cells(&mut self, inner: &mut Counters, row: &mut Row<'_>) -> Result<Times, ReadProblem> {
        self.sums.copy_from_slice(&inner.gone.totals);
        let (mut times, mut problem) = (inner.gone.times, None);
        for (index, cell) in inner.cells.iter_mut().enumerate() {
            if let Err(error) = cell.read(&*self.part.kernel, &inner.kept) {
                problem.get_or_insert(error);
                continue;
            }
            for &event in &inner.kept {
                self.sums[event] = self.sums[event].wrapping_add(cell.tally.totals[event]);
            }
            times = times.plus(cell.tally.times);
            if !self.slots.places.is_empty() {
                self.put_place(index, cell, &inner.kept, row);
            }
        }
        problem.map_or(Ok(times), Err)
    }

    /// A CPU's own values. Its place is mostly that of the cell.
    fn put_place(&mut self, index: usize, cell: &Cell, kept: &[usize], row: &mut Row<'_>) {
        let places = &self.slots.places;
        let is_same = |(at, _): &(At, _)| *at == cell.at();
        let hint = Some(index).filter(|index| places.get(*index).is_some_and(is_same));
        let Some(index) = hint.or_else(|| places.iter().position(is_same)) else { return };
        let step = cell.tally.times.since(self.places_seen[index]);
        self.places_seen[index] = cell.tally.times;
        if !step.is_unseen() {
            put(&self.part.found, &places[index].1, kept, &cell.tally.totals, row);
        }
    }
}

/// Puts sums into their slots.
#[inline]
fn put(found: &Found, slots: &[(usize, u32)], kept: &[usize], totals: &[u128], row: &mut Row<'_>) {
    for &(event, slot) in slots.iter().filter(|(event, _)| kept.contains(event)) {
        row.set_int(slot as usize, (totals[event] >> found.events[event].shift) as i64);
    }
}

impl Reader for PartReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let part = self.part.clone();
        let failed = |layout_changed, problem| Reading { layout_changed, problem: Some(problem), gone: false };
        if part.is_forgotten.load(Ordering::Acquire) {
            return Reading { gone: true, ..Reading::default() };
        }
        if self.is_unwanted() {
            return Reading::default();
        }
        let Some(mut inner) = part.try_lock() else { return failed(false, TAKEN) };
        if part.is_given_up() {
            return failed(!inner.cells.is_empty(), GIVEN_UP);
        }
        // They are to be opened, now that nobody else has them; if they cannot be, that is told there.
        if inner.cells.is_empty() {
            return Reading { layout_changed: true, ..Reading::default() };
        }
        let times = match self.read_cells(&mut inner, row) {
            Ok(times) => times,
            Err(problem) => {
                part.is_broken.store(true, Ordering::Release);
                return failed(true, problem);
            }
        };
        let step = times.since(self.seen);
        self.seen = times;
        if !step.is_unseen() {
            put(&part.found, &self.slots.sums, &inner.kept, &self.sums, row);
        }
        if let Some(slot) = self.slots.running.filter(|_| step.enabled > 0) {
            row.set_float(slot as usize, (step.running as f64 / step.enabled as f64).min(1.0));
        }
        let is_stuck = times.running == 0 && times.enabled >= NEVER_COUNTED_NS;
        Reading { problem: is_stuck.then_some(NEVER_COUNTED), ..Reading::default() }
    }
}
