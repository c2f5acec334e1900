//! A sampler thread: one wake-up for all groups that are due. Once warm it allocates nothing, takes no lock and waits for
//! nothing but its next tick; new groups come and old ones go through a [`Stack`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wholegrain_sources::{Reader, Row};

use super::clock::{self, Wake};
use super::group::Group;
use super::mailbox::{Node, Stack};
use super::schedule::{Now, StepDetector, Ticker, sleep_until};
use crate::counters::Counters;

/// The stack of a sampler thread: readers keep their buffers on the heap. 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// How often a caller that waits for a sampler looks: 1 ms.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A group as the sampler holds it.
pub struct Sampled {
    group: Arc<Group>,
    reader: Box<dyn Reader>,
    ticker: Option<Ticker>,
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
            values: vec![0; sensors].into(),
            gaps: vec![0; sensors.div_ceil(64)].into(),
        }
    }
}

/// What is asked of a sampler. After it is done, the same command holds what has to be freed.
enum Action {
    Add(Option<Sampled>),
    Remove { id: u64, removed: Option<Sampled> },
    Replace { id: u64, with: Option<Sampled>, keep_ticks: bool },
    Retime { id: u64, group: Option<Arc<Group>> },
}

struct Command {
    action: Action,
    /// A list with room for one group more than there are: the sampler moves into it rather than growing its own.
    room: Vec<Sampled>,
}

/// What a sampler thread and its handle share.
#[derive(Default)]
struct Shared {
    commands: Stack<Command>,
    done: Stack<Command>,
    wake: Wake,
    stop: AtomicBool,
}

/// The other end of a sampler thread.
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    groups: usize,
}

impl Sampler {
    /// Starts a thread without groups. Steps of the clock are counted when `counts_steps`: once for the process.
    pub fn start(name: &str, counters: Arc<Counters>, counts_steps: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(move || {
            clock::sharpen_timers();
            Loop::new(theirs, counters, counts_steps).run();
        })?;
        Ok(Self { shared, thread: Some(thread), groups: 0 })
    }

    fn send(&mut self, action: Action) {
        self.collect();
        let room = Vec::with_capacity(self.groups + 1);
        self.shared.commands.push(Node::new(Command { action, room }));
        self.shared.wake.wake();
    }

    /// Starts reading a group.
    pub fn add(&mut self, sampled: Sampled) {
        self.groups += 1;
        self.send(Action::Add(Some(sampled)));
    }

    /// Stops reading a group; it is sealed when that is done.
    pub fn remove(&mut self, id: u64) {
        self.groups = self.groups.saturating_sub(1);
        self.send(Action::Remove { id, removed: None });
    }

    /// Puts another reader and ring in a group's place. With `keep_ticks` the clockwork goes on as it was.
    pub fn replace(&mut self, id: u64, with: Sampled, keep_ticks: bool) {
        self.send(Action::Replace { id, with: Some(with), keep_ticks });
    }

    /// Gives a group another interval: `group` has the ring for it and takes the old one's place; the reader stays.
    pub fn retime(&mut self, id: u64, group: Arc<Group>) {
        self.send(Action::Retime { id, group: Some(group) });
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

    /// Waits for the end for at most `patience`: a thread that hangs in a device is left behind. Whether it ended.
    pub fn join(mut self, patience: Duration) -> bool {
        self.stop();
        let deadline = Instant::now() + patience;
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
struct Loop {
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    counts_steps: bool,
    groups: Vec<Sampled>,
    steps: StepDetector,
}

impl Loop {
    fn new(shared: Arc<Shared>, counters: Arc<Counters>, counts_steps: bool) -> Self {
        Self { shared, counters, counts_steps, groups: Vec::new(), steps: StepDetector::new(clock::now()) }
    }

    fn run(&mut self) {
        loop {
            let state = self.shared.wake.state();
            if self.shared.stop.load(Ordering::Acquire) {
                break;
            }
            let now = clock::now();
            self.observe(now);
            self.obey(now);
            self.read_due(now);
            let tickers = self.groups.iter().filter_map(|sampled| sampled.ticker.as_ref());
            let deadline = sleep_until(tickers, now.mono, self.steps.offset());
            self.shared.wake.sleep_until(deadline, state);
        }
        self.obey(clock::now());
        for sampled in &self.groups {
            sampled.group.sealed.store(true, Ordering::Release);
        }
    }

    fn observe(&mut self, now: Now) {
        if self.steps.observe(now).is_none() {
            return;
        }
        if self.counts_steps {
            self.counters.clock_steps.fetch_add(1, Ordering::Relaxed);
        }
        for sampled in &mut self.groups {
            let missed = sampled.ticker.as_mut().map_or(0, |ticker| ticker.stepped(now));
            count_missed(&sampled.group, &self.counters, missed);
        }
    }

    fn obey(&mut self, now: Now) {
        for mut node in self.shared.commands.take() {
            let command = &mut node.value;
            if self.groups.len() == self.groups.capacity() && command.room.capacity() > self.groups.len() {
                command.room.append(&mut self.groups);
                std::mem::swap(&mut command.room, &mut self.groups);
            }
            self.act(&mut command.action, now);
            self.shared.done.push(node);
        }
    }

    fn act(&mut self, action: &mut Action, now: Now) {
        match action {
            Action::Add(sampled) => {
                if let Some(mut sampled) = sampled.take() {
                    sampled.ticker = Some(Ticker::new(sampled.group.ticking, now));
                    self.groups.push(sampled);
                }
            }
            Action::Remove { id, removed } => {
                if let Some(at) = self.groups.iter().position(|sampled| sampled.group.id == *id) {
                    let sampled = self.groups.swap_remove(at);
                    sampled.group.sealed.store(true, Ordering::Release);
                    *removed = Some(sampled);
                }
            }
            Action::Replace { id, with, keep_ticks } => {
                let found = self.groups.iter_mut().find(|sampled| sampled.group.id == *id);
                if let (Some(old), Some(mut new)) = (found, with.take()) {
                    new.ticker = if *keep_ticks { old.ticker } else { Some(Ticker::new(new.group.ticking, now)) };
                    if !Arc::ptr_eq(&old.group, &new.group) {
                        old.group.sealed.store(true, Ordering::Release);
                    }
                    *with = Some(std::mem::replace(old, new));
                }
            }
            Action::Retime { id, group } => {
                let found = self.groups.iter_mut().find(|sampled| sampled.group.id == *id);
                if let (Some(old), Some(new)) = (found, group.as_mut()) {
                    old.ticker = Some(Ticker::new(new.ticking, now));
                    std::mem::swap(&mut old.group, new);
                    new.sealed.store(true, Ordering::Release);
                }
            }
        }
    }

    fn read_due(&mut self, woken: Now) {
        let offset = self.steps.offset();
        for sampled in &mut self.groups {
            let Some(ticker) = &mut sampled.ticker else { continue };
            if ticker.deadline(offset) > woken.mono {
                continue;
            }
            // The groups before this one took their time: the lag is this group's own.
            if let Some(tick) = self.steps.take(ticker, clock::now()) {
                sampled.read(tick.stamp, &self.counters);
                sampled.group.stats.lag.record(tick.lag as u64);
                self.counters.note_lag(tick.lag as u64);
                count_missed(&sampled.group, &self.counters, tick.missed);
            }
        }
    }
}

impl Sampled {
    /// One read into the scratch row and from there, whole, into the ring.
    fn read(&mut self, stamp: i64, counters: &Counters) {
        let reading = self.reader.read(&mut Row::new(&mut self.values, &mut self.gaps));
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
        stats.problem.set(reading.problem);
    }
}

fn count_missed(group: &Group, counters: &Counters, missed: u64) {
    if missed > 0 {
        group.stats.missed.fetch_add(missed, Ordering::Relaxed);
        counters.missed.fetch_add(missed, Ordering::Relaxed);
    }
}
