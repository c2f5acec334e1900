//! A sampler thread: one wake-up for all groups that are due. Once warm it allocates nothing, takes no lock and waits only for its next tick.
//! Commands arrive and freed groups leave through a [`Stack`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wholegrain_sources::{Reader, Row};

use super::clock::{self, Wake};
use super::cpu_placement::{self, CpuPlacement};
use super::group::Group;
use super::mailbox::{Stack, StackNode};
use super::passes::ClockPasses;
use super::schedule::{ClockReading, DueTick, Ticker, WallClock, sleep_until};
use crate::counters::AgentCounters;

/// The stack of a sampler thread: 256 KiB. Readers keep their buffers on the heap.
const STACK_BYTES: usize = 256 << 10;
/// How often a thread that waits for a sampler checks it: 1 ms.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A group with its reader and its schedule.
pub struct Sampled {
    group: Arc<Group>,
    reader: Box<dyn Reader>,
    ticker: Option<Ticker>,
    /// The first sample is taken at once instead of at the first tick.
    at_once: bool,
    /// The clock was stepped after the last sample: a gap is stored before the next one.
    gap_due: bool,
    /// The time of the last sample since the last step of the clock.
    last: i64,
    values: Box<[u64]>,
    gaps: Box<[u64]>,
}

impl Sampled {
    /// A group and its reader; the schedule starts when the sampler takes it.
    pub fn new(group: Arc<Group>, reader: Box<dyn Reader>) -> Self {
        let sensors = group.schema.len();
        Self {
            group,
            reader,
            ticker: None,
            at_once: false,
            gap_due: false,
            last: i64::MIN,
            values: vec![0; sensors].into(),
            gaps: vec![0; sensors.div_ceil(64)].into(),
        }
    }
}

/// When an added group is first read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupStart {
    /// At its first tick.
    OnTick,
    /// At once, and then at its ticks.
    AtOnce,
    /// At the next tick of the group with this id and the same interval, so that a sensor that moves between the two misses no tick. At once if this
    /// thread does not read that group.
    InStepWith(u64),
}

/// A step of a change. The sampler leaves in it what has to be freed.
enum SamplerAction {
    Add { sampled: Option<Sampled>, start: GroupStart },
    Remove { id: u64, removed: Option<Sampled> },
    Replace { id: u64, with: Option<Sampled>, keep_ticks: bool },
    Retime { id: u64, group: Option<Arc<Group>>, keep_ticks: bool },
}

/// Steps that a sampler takes together between two reads: no tick falls in between.
#[derive(Default)]
pub struct SamplerChange {
    actions: Vec<SamplerAction>,
}

impl SamplerChange {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Starts reading a group.
    pub fn add(&mut self, sampled: Sampled, start: GroupStart) {
        self.actions.push(SamplerAction::Add { sampled: Some(sampled), start });
    }

    /// Stops reading a group; it is sealed when that is done.
    pub fn remove(&mut self, id: u64) {
        self.actions.push(SamplerAction::Remove { id, removed: None });
    }

    /// Replaces a group and its reader. With `keep_ticks` the schedule continues.
    pub fn replace(&mut self, id: u64, with: Sampled, keep_ticks: bool) {
        self.actions.push(SamplerAction::Replace { id, with: Some(with), keep_ticks });
    }

    /// Replaces a group and keeps its reader. With `keep_ticks` the schedule continues.
    pub fn retime(&mut self, id: u64, group: Arc<Group>, keep_ticks: bool) {
        self.actions.push(SamplerAction::Retime { id, group: Some(group), keep_ticks });
    }
}

struct SamplerCommand {
    actions: Vec<SamplerAction>,
    /// A list with room for all groups: the sampler moves its groups into it instead of growing its own list.
    room: Vec<Sampled>,
}

#[derive(Default)]
struct SamplerShared {
    commands: Stack<SamplerCommand>,
    done: Stack<SamplerCommand>,
    wake: Wake,
    stop: AtomicBool,
    placement: Arc<CpuPlacement>,
}

/// Controls a sampler thread.
pub struct Sampler {
    shared: Arc<SamplerShared>,
    thread: Option<JoinHandle<()>>,
    groups: usize,
    /// The capacity of the thread's list once it has applied all commands.
    room: usize,
}

impl Sampler {
    /// Starts a thread without groups. One thread of the process counts steps of the clock (`counts_steps`).
    pub fn start(name: &str, counters: Arc<AgentCounters>, counts_steps: bool) -> io::Result<Self> {
        let shared = Arc::new(SamplerShared::default());
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(move || {
            clock::sharpen_timers();
            cpu_placement::shorten_slice();
            theirs.placement.begin();
            SamplerLoop::new(theirs, counters, counts_steps).run();
        })?;
        Ok(Self { shared, thread: Some(thread), groups: 0, room: 0 })
    }

    /// Applies a change as soon as the thread has finished its current reads.
    pub fn change(&mut self, change: SamplerChange) {
        self.collect();
        let count = |of: fn(&SamplerAction) -> bool| change.actions.iter().filter(|action| of(action)).count();
        self.groups += count(|action| matches!(action, SamplerAction::Add { .. }));
        let room = if self.groups > self.room { Vec::with_capacity(self.groups * 2) } else { Vec::new() };
        self.room = self.room.max(room.capacity());
        self.groups = self.groups.saturating_sub(count(|action| matches!(action, SamplerAction::Remove { .. })));
        self.shared.commands.push(StackNode::new(SamplerCommand { actions: change.actions, room }));
        self.shared.wake.wake();
    }

    pub fn placement(&self) -> Arc<CpuPlacement> {
        self.shared.placement.clone()
    }

    fn one(&mut self, action: SamplerAction) {
        self.change(SamplerChange { actions: vec![action] });
    }

    /// Starts reading a group at its first tick.
    pub fn add(&mut self, sampled: Sampled) {
        self.one(SamplerAction::Add { sampled: Some(sampled), start: GroupStart::OnTick });
    }

    /// Stops reading a group; it is sealed when that is done.
    pub fn remove(&mut self, id: u64) {
        self.one(SamplerAction::Remove { id, removed: None });
    }

    /// Replaces a group and its reader. With `keep_ticks` the schedule continues.
    pub fn replace(&mut self, id: u64, with: Sampled, keep_ticks: bool) {
        self.one(SamplerAction::Replace { id, with: Some(with), keep_ticks });
    }

    /// Gives a group another interval: `group` has the ring for it and replaces the old one; the reader stays.
    pub fn retime(&mut self, id: u64, group: Arc<Group>) {
        self.one(SamplerAction::Retime { id, group: Some(group), keep_ticks: false });
    }

    /// Frees what the thread has handed back.
    pub fn collect(&self) {
        drop(self.shared.done.take());
    }

    /// Whether the thread has ended; before [`Sampler::stop`] that is an error.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Requests the thread's end. It seals its groups.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
    }

    /// Waits at most `timeout` for the thread's end, and returns whether it ended. A thread that hangs in a device is abandoned.
    pub fn join(mut self, timeout: Duration) -> bool {
        self.stop();
        let deadline = Instant::now() + timeout;
        while !self.has_ended() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.thread.take().is_none_or(|thread| thread.join().is_ok())
    }
}

struct SamplerLoop {
    shared: Arc<SamplerShared>,
    counters: Arc<AgentCounters>,
    counts_steps: bool,
    groups: Vec<Sampled>,
    clock: WallClock,
}

impl SamplerLoop {
    fn new(shared: Arc<SamplerShared>, counters: Arc<AgentCounters>, counts_steps: bool) -> Self {
        let clock = WallClock::new(clock::now(), counters.passes());
        if counts_steps {
            counters.set_passes(*clock.passes());
        }
        Self { shared, counters, counts_steps, groups: Vec::new(), clock }
    }

    fn run(&mut self) {
        loop {
            let state = self.shared.wake.state();
            if self.shared.stop.load(Ordering::Acquire) {
                break;
            }
            let now = clock::now();
            self.shared.placement.note();
            self.observe(now);
            self.read_due(now);
            // After the reads, so that a sensor that leaves a group has been read at every due tick.
            if self.apply_commands() {
                continue;
            }
            let tickers = self.groups.iter().filter_map(|sampled| sampled.ticker.as_ref());
            let deadline = sleep_until(tickers, now.mono, self.clock.offset());
            self.shared.wake.sleep_until(deadline, state);
        }
        self.apply_commands();
        for sampled in &self.groups {
            sampled.group.sealed.store(true, Ordering::Release);
        }
    }

    fn observe(&mut self, now: ClockReading) {
        let Some(by) = self.clock.observe(now) else { return };
        if self.counts_steps {
            self.counters.note_step(by, *self.clock.passes());
        }
        for sampled in &mut self.groups {
            sampled.gap_due = sampled.group.ring.head() > 0;
            sampled.last = i64::MIN;
            let missed = sampled.ticker.as_mut().map_or(0, |ticker| ticker.stepped(now));
            count_missed(&sampled.group, &self.counters, missed);
        }
    }

    /// Applies the waiting commands. Whether there were any.
    fn apply_commands(&mut self) -> bool {
        let mut any = false;
        for mut node in self.shared.commands.take() {
            any = true;
            let command = &mut node.value;
            if command.room.capacity() > self.groups.capacity() {
                command.room.append(&mut self.groups);
                std::mem::swap(&mut command.room, &mut self.groups);
            }
            let now = clock::now();
            for action in &mut command.actions {
                self.act(action, now);
            }
            self.shared.done.push(node);
        }
        any
    }

    fn act(&mut self, action: &mut SamplerAction, now: ClockReading) {
        match action {
            SamplerAction::Add { sampled, start } => {
                if let Some(mut sampled) = sampled.take() {
                    let of = |id: u64| self.groups.iter().find(|other| other.group.id == id);
                    let beside = if let GroupStart::InStepWith(id) = *start { of(id) } else { None };
                    sampled.gap_due = beside.is_some_and(|beside| beside.gap_due);
                    // If that group has not taken its first sample yet, sensors that leave it are sampled at once too.
                    sampled.at_once = beside.map_or(*start != GroupStart::OnTick, |beside| beside.at_once);
                    let kept = beside.and_then(|beside| beside.ticker);
                    sampled.ticker = kept.or_else(|| Some(Ticker::new(sampled.group.ticking, now)));
                    self.groups.push(sampled);
                }
            }
            SamplerAction::Remove { id, removed } => {
                if let Some(at) = self.groups.iter().position(|sampled| sampled.group.id == *id) {
                    let sampled = self.groups.swap_remove(at);
                    sampled.group.sealed.store(true, Ordering::Release);
                    *removed = Some(sampled);
                }
            }
            SamplerAction::Replace { id, with, keep_ticks } => {
                // A group that is not found stays in the command, and the command's sender frees it.
                if let Some(old) = self.groups.iter_mut().find(|sampled| sampled.group.id == *id)
                    && let Some(mut new) = with.take()
                {
                    new.ticker = if *keep_ticks { old.ticker } else { Some(Ticker::new(new.group.ticking, now)) };
                    new.at_once = old.at_once;
                    new.gap_due = old.gap_due;
                    new.last = old.last;
                    if !Arc::ptr_eq(&old.group, &new.group) {
                        old.group.sealed.store(true, Ordering::Release);
                    }
                    *with = Some(std::mem::replace(old, new));
                }
            }
            SamplerAction::Retime { id, group, keep_ticks } => {
                let found = self.groups.iter_mut().find(|sampled| sampled.group.id == *id);
                if let (Some(old), Some(new)) = (found, group.as_mut()) {
                    if !*keep_ticks {
                        old.ticker = Some(Ticker::new(new.ticking, now));
                    }
                    std::mem::swap(&mut old.group, new);
                    new.sealed.store(true, Ordering::Release);
                }
            }
        }
    }

    fn read_due(&mut self, woken: ClockReading) {
        let offset = self.clock.offset();
        for sampled in &mut self.groups {
            if std::mem::take(&mut sampled.at_once) {
                let now = clock::now_near(offset);
                // Otherwise the group waits for its first tick.
                if self.clock.is_free(now) {
                    sampled.read(now.real, self.clock.passes(), &self.counters);
                }
            }
            let Some(ticker) = &mut sampled.ticker else { continue };
            if ticker.deadline(offset) > woken.mono {
                continue;
            }
            // The reads before this one took time: this lag is the group's own.
            match self.clock.take(ticker, woken, clock::now_near(offset)) {
                DueTick::Nothing => {}
                DueTick::AlreadySampled(missed) => count_missed(&sampled.group, &self.counters, missed),
                DueTick::Tick(tick) => {
                    if sampled.read(tick.stamp, self.clock.passes(), &self.counters) {
                        sampled.group.stats.lag.record(tick.lag as u64);
                        self.counters.note_lag(tick.lag as u64);
                        count_missed(&sampled.group, &self.counters, tick.missed);
                    }
                }
            }
        }
    }
}

impl Sampled {
    /// Reads once into the scratch row and copies it into the ring. A reading without new values is no sample. `false` if the group no longer
    /// exists.
    pub fn read(&mut self, stamp: i64, passes: &ClockPasses, counters: &AgentCounters) -> bool {
        if std::mem::take(&mut self.gap_due) {
            self.put_gap(stamp - 1);
        }
        let reading = self.reader.read(&mut Row::new(&mut self.values, &mut self.gaps));
        if reading.gone {
            return false;
        }
        let time = match reading.taken_at {
            // A device's clock may be ahead of this one; the answer came before now, and after 1970.
            Some(time) => Some(time.min(clock::real())).filter(|time| *time >= 0 && passes.held_until(*time).is_none()),
            None => Some(stamp),
        };
        // Times of a group increase: an answer that has a sample already is nothing new.
        if let Some(time) = time.filter(|time| *time > self.last && !reading.unchanged) {
            self.put(time, counters);
        }
        let stats = &self.group.stats;
        if reading.layout_changed {
            stats.layout_changed.store(true, Ordering::Release);
        }
        if stats.problem.set(reading.problem) || reading.layout_changed {
            counters.attention.store(true, Ordering::Release);
        }
        true
    }

    /// Copies the scratch row into the ring.
    fn put(&mut self, time: i64, counters: &AgentCounters) {
        self.last = time;
        let stats = &self.group.stats;
        self.group.ring.push(time, self.group.ticking.interval.ns(), &self.values, &self.gaps);
        let gaps: u32 = self.gaps.iter().map(|word| word.count_ones()).sum();
        stats.samples.store(stats.samples.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        counters.samples.fetch_add(1, Ordering::Relaxed);
        if gaps > 0 {
            stats.gaps.fetch_add(u64::from(gaps), Ordering::Relaxed);
            counters.gaps.fetch_add(u64::from(gaps), Ordering::Relaxed);
        }
    }
}

impl Sampled {
    /// Stores a sample of gaps only, because the time between its neighbours is unknown.
    #[cold]
    fn put_gap(&mut self, stamp: i64) {
        let _all_gaps = Row::new(&mut self.values, &mut self.gaps);
        self.last = stamp;
        self.group.ring.push(stamp, self.group.ticking.interval.ns(), &self.values, &self.gaps);
    }
}

fn count_missed(group: &Group, counters: &AgentCounters, missed: u64) {
    if missed > 0 {
        group.stats.missed.fetch_add(missed, Ordering::Relaxed);
        counters.missed.fetch_add(missed, Ordering::Relaxed);
    }
}
