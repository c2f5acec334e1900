//! A bounded pool of threads for protocols whose libraries block, such as HTTPS clients. A device that hangs holds one thread until its deadline,
//! and nothing else.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::answers::{AnswerSlot, DeviceProblem, system_time};
use crate::notes::{GroupProblems, PollCounts};
use crate::protocol::PolledGroup;
use crate::schedule::{PollInstant, PollKey, PollSchedule};

/// The most threads of a pool.
pub const WORKERS_MAX: usize = 64;
/// The stack of a thread: 1 MiB, so that a full pool needs a quarter of what a plug-in has without `memory_bytes_max`.
pub const WORKER_STACK_BYTES: usize = 1 << 20;
const _: () = assert!(WORKERS_MAX * WORKER_STACK_BYTES <= 64 << 20);
/// The longest wait of a thread without a due poll: 1 s, so that a stopped pool ends soon.
const WAIT_NS_MAX: u64 = 1_000_000_000;

/// A device whose protocol blocks.
pub trait BlockingProtocol: Send {
    /// Polls `group` and stores the answer in `slot`, with its time. It must return by `deadline`, which the protocol gives its library as timeout.
    fn poll(&mut self, group: usize, slot: &AnswerSlot, deadline: Instant) -> Result<(), DeviceProblem>;
}

/// A device, for a pool.
pub struct PooledDevice {
    /// The path below the agent's prefix, for messages and for the place in the spread.
    pub path: String,
    /// The host, for messages.
    pub host: String,
    /// How long a poll may take as a whole.
    pub timeout: Duration,
    pub groups: Vec<PolledGroup>,
    pub protocol: Box<dyn BlockingProtocol>,
}

/// A running pool. Its threads end after their present poll when this is dropped; nobody waits for them.
pub struct WorkerPool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    state: Mutex<PoolState>,
    ended: Condvar,
    counts: Arc<PollCounts>,
    start: Instant,
}

struct PoolState {
    schedule: PollSchedule,
    /// `None` while a thread polls the device.
    devices: Vec<Option<PooledDevice>>,
    problems: Vec<GroupProblems>,
    has_ended: bool,
}

impl WorkerPool {
    /// Starts `workers` threads for these devices, or as many as can be made. It is an error if there is none.
    pub fn start(name: &str, devices: Vec<PooledDevice>, workers: usize) -> io::Result<Self> {
        let workers = workers.clamp(1, WORKERS_MAX).min(devices.len().max(1));
        let mut schedule = PollSchedule::new(workers);
        let now = PollInstant { mono_ns: 0, wall_ns: system_time() };
        for device in &devices {
            schedule.add(&device.path, device.groups.iter().map(|group| group.ticks).collect(), now);
        }
        let problems = devices.iter().map(|device| GroupProblems::new(device.groups.len())).collect();
        let devices = devices.into_iter().map(Some).collect();
        let state = Mutex::new(PoolState { schedule, devices, problems, has_ended: false });
        let shared = PoolShared { state, ended: Condvar::new(), counts: Arc::default(), start: Instant::now() };
        let pool = Self { shared: Arc::new(shared) };
        for number in 0..workers {
            let shared = pool.shared.clone();
            let builder = std::thread::Builder::new().name(format!("{name}-{number}")).stack_size(WORKER_STACK_BYTES);
            match builder.spawn(move || shared.work()) {
                Ok(_) => {}
                Err(error) if number == 0 => return Err(error),
                Err(error) => {
                    pool.shared.counts.add_note(format!(
                        "{number} threads poll, not {workers}: no more can be made ({error}); lower in_flight or raise memory_bytes_max"
                    ));
                    break;
                }
            }
        }
        Ok(pool)
    }

    /// What the threads have done so far.
    pub fn counts(&self) -> &Arc<PollCounts> {
        &self.shared.counts
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.shared.lock().has_ended = true;
        self.shared.ended.notify_all();
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> PollInstant {
        let mono_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        PollInstant { mono_ns, wall_ns: system_time() }
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.has_ended {
            let now = self.now();
            if let Some(key) = state.schedule.take(now)
                && let Some(mut device) = state.devices[key.device].take()
            {
                drop(state);
                PollCounts::add(&self.counts.polls);
                let slot = device.groups[key.group].slot.clone();
                let deadline = Instant::now() + device.timeout;
                // A library that panics harms one poll: its thread goes on with the next one.
                let poll = || device.protocol.poll(key.group, &slot, deadline);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll))
                    .unwrap_or(Err(DeviceProblem::Refused("a fault of the plug-in")));
                state = self.lock();
                self.end(&mut state, key, device, result);
                continue;
            }
            let due = state.schedule.next_due_ns().filter(|due| *due > now.mono_ns).unwrap_or(u64::MAX);
            let wait = Duration::from_nanos((due.saturating_sub(now.mono_ns)).min(WAIT_NS_MAX));
            state = self.ended.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn end(&self, state: &mut PoolState, key: PollKey, device: PooledDevice, result: Result<(), DeviceProblem>) {
        let problem = result.err();
        match problem {
            None => PollCounts::add(&self.counts.answers),
            Some(problem) if problem.is_of_group() => device.groups[key.group].slot.fail(problem),
            Some(problem) => device.groups.iter().for_each(|group| group.slot.fail(problem)),
        }
        if problem == Some(DeviceProblem::Silent) {
            PollCounts::add(&self.counts.timeouts);
        }
        state.problems[key.device].end(key.group, problem, &self.counts, &device.path, &device.host);
        state.devices[key.device] = Some(device);
        state.schedule.done(key, problem, self.now());
        // The end of this poll can make room for another one.
        self.ended.notify_one();
    }
}
