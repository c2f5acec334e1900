//! A sampler thread: one wake-up for all groups that are due. Once warm it allocates nothing, takes no lock and waits for
//! nothing but its next tick; new groups come and old ones go through a [`Stack`].

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
use super::schedule::{ClockReading, DueTick, Ticker, WallClock, sleep_until};
use crate::counters::AgentCounters;

/// The stack of a sampler thread: readers keep their buffers on the heap. 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// How often a caller that waits for a sampler looks: 1 ms.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A group as the sampler holds it.
pub struct Sampled {
    group: Arc<Group>,
    reader: Box<dyn Reader>,
    ticker: Option<Ticker>,
    /// Its first sample is to be taken now, whatever its clockwork says.
    at_once: bool,
    /// The clock was stepped since its last sample: a gap comes before the next one.
    gap_due: bool,
    values: Box<[u64]>,
    gaps: Box<[u64]>,
}

impl Sampled {
    /// A group and what reads it; its clockwork starts when the sampler takes it.
    pub fn new(group: Arc<Group>, reader: Box<dyn Reader>) -> Self {
        let sensors = group.schema.len();
        Self {
            group,
            reader,
            ticker: None,
            at_once: false,
            gap_due: false,
            values: vec![0; sensors].into(),
            gaps: vec![0; sensors.div_ceil(64)].into(),
        }
    }
}

/// When a group that is added is first read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupStart {
    /// At its first tick.
    OnTick,
    /// At once, and then at its ticks.
    AtOnce,
    /// At the next tick of the group of this id, which has the same interval: so that what is moved from there to here misses no
    /// tick. At once when that group is not read by this thread.
    InStepWith(u64),
}

/// What is asked of a sampler. After it is done, the same action holds what has to be freed.
enum SamplerAction {
    Add { sampled: Option<Sampled>, start: GroupStart },
    Remove { id: u64, removed: Option<Sampled> },
    Replace { id: u64, with: Option<Sampled>, keep_ticks: bool },
    Retime { id: u64, group: Option<Arc<Group>>, keep_ticks: bool },
}

/// Steps that a sampler makes together, between two reads: no tick falls in between.
#[derive(Default)]
pub struct SamplerChange {
    actions: Vec<SamplerAction>,
}

impl SamplerChange {
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it asks for nothing.
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

    /// Puts another reader and ring in a group's place. With `keep_ticks` the clockwork goes on as it was.
    pub fn replace(&mut self, id: u64, with: Sampled, keep_ticks: bool) {
        self.actions.push(SamplerAction::Replace { id, with: Some(with), keep_ticks });
    }

    /// Puts `group` and its ring in the old one's place; the reader stays. With `keep_ticks` the clockwork does too.
    pub fn retime(&mut self, id: u64, group: Arc<Group>, keep_ticks: bool) {
        self.actions.push(SamplerAction::Retime { id, group: Some(group), keep_ticks });
    }
}

struct SamplerCommand {
    actions: Vec<SamplerAction>,
    /// A list with room for all groups there will be: the sampler moves into it rather than growing its own.
    room: Vec<Sampled>,
}

/// What a sampler thread and its handle share.
#[derive(Default)]
struct SamplerShared {
    commands: Stack<SamplerCommand>,
    done: Stack<SamplerCommand>,
    wake: Wake,
    stop: AtomicBool,
    placement: Arc<CpuPlacement>,
}

/// The other end of a sampler thread.
pub struct Sampler {
    shared: Arc<SamplerShared>,
    thread: Option<JoinHandle<()>>,
    groups: usize,
    /// For how many groups the thread's list has room, once it has done what was asked of it.
    room: usize,
}

impl Sampler {
    /// Starts a thread without groups. Steps of the clock are counted when `counts_steps`: once for the process.
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

    /// Has the thread make a change, now.
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

    /// Where the thread runs.
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

    /// Puts another reader and ring in a group's place. With `keep_ticks` the clockwork goes on as it was.
    pub fn replace(&mut self, id: u64, with: Sampled, keep_ticks: bool) {
        self.one(SamplerAction::Replace { id, with: Some(with), keep_ticks });
    }

    /// Gives a group another interval: `group` has the ring for it and takes the old one's place; the reader stays.
    pub fn retime(&mut self, id: u64, group: Arc<Group>) {
        self.one(SamplerAction::Retime { id, group: Some(group), keep_ticks: false });
    }

    /// Frees what the sampler has handed back.
    pub fn collect(&self) {
        drop(self.shared.done.take());
    }

    /// Whether the thread has ended, which before [`Sampler::stop`] it never should.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks the thread to end. Its groups are sealed when it has.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
    }

    /// Waits for the end for at most `timeout`: a thread that hangs in a device is left behind. Whether it ended.
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

/// The thread's own state.
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
            // After the reads: a sensor that leaves its group does so with everything read that was due.
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
            let missed = sampled.ticker.as_mut().map_or(0, |ticker| ticker.stepped(now));
            count_missed(&sampled.group, &self.counters, missed);
        }
    }

    /// Does what was asked; whether anything was.
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
                    // A group that has yet to take its own first sample has it taken of what leaves it too.
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
                // What is not found stays in the command, to be freed by who sent it.
                if let Some(old) = self.groups.iter_mut().find(|sampled| sampled.group.id == *id)
                    && let Some(mut new) = with.take()
                {
                    new.ticker = if *keep_ticks { old.ticker } else { Some(Ticker::new(new.group.ticking, now)) };
                    new.at_once = old.at_once;
                    new.gap_due = old.gap_due;
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
                // Else its first tick will do.
                if self.clock.is_free(now) {
                    sampled.read(now.real, &self.counters);
                }
            }
            let Some(ticker) = &mut sampled.ticker else { continue };
            if ticker.deadline(offset) > woken.mono {
                continue;
            }
            // The groups before this one took their time: the lag is this group's own.
            match self.clock.take(ticker, woken, clock::now_near(offset)) {
                DueTick::Nothing => {}
                DueTick::AlreadySampled(missed) => count_missed(&sampled.group, &self.counters, missed),
                DueTick::Tick(tick) => {
                    if sampled.read(tick.stamp, &self.counters) {
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
    /// One read into the scratch row and from there, whole, into the ring. `false` when what it reads is no more.
    pub fn read(&mut self, stamp: i64, counters: &AgentCounters) -> bool {
        if std::mem::take(&mut self.gap_due) {
            self.put_gap(stamp - 1);
        }
        let reading = self.reader.read(&mut Row::new(&mut self.values, &mut self.gaps));
        if reading.gone {
            return false;
        }
        let stats = &self.group.stats;
        self.group.ring.push(stamp, self.group.ticking.interval.ns(), &self.values, &self.gaps);
        let gaps: u32 = self.gaps.iter().map(|word| word.count_ones()).sum();
        stats.samples.store(stats.samples.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        counters.samples.fetch_add(1, Ordering::Relaxed);
        if gaps > 0 {
            stats.gaps.fetch_add(u64::from(gaps), Ordering::Relaxed);
            counters.gaps.fetch_add(u64::from(gaps), Ordering::Relaxed);
        }
        if reading.layout_changed {
            stats.layout_changed.store(true, Ordering::Release);
        }
        if stats.problem.set(reading.problem) || reading.layout_changed {
            counters.attention.store(true, Ordering::Release);
        }
        true
    }
}

impl Sampled {
    /// A sample without any value: nobody knows how long it was between the samples before and after it.
    #[cold]
    fn put_gap(&mut self, stamp: i64) {
        let _all_gaps = Row::new(&mut self.values, &mut self.gaps);
        self.group.ring.push(stamp, self.group.ticking.interval.ns(), &self.values, &self.gaps);
    }
}

fn count_missed(group: &Group, counters: &AgentCounters, missed: u64) {
    if missed > 0 {
        group.stats.missed.fetch_add(missed, Ordering::Relaxed);
        counters.missed.fetch_add(missed, Ordering::Relaxed);
    }
}
