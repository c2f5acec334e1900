//! What the agent counts about itself, over all groups.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::engine::passes::ClockPasses;
use crate::state::lock;

/// Counts since the start of the process. Any thread adds, any thread reads.
#[derive(Debug, Default)]
pub struct AgentCounters {
    pub samples: AtomicU64,
    /// Ticks that passed unread.
    pub missed: AtomicU64,
    /// Values that could not be read.
    pub gaps: AtomicU64,
    /// Samples overwritten in a ring before they were encoded.
    pub overruns: AtomicU64,
    /// Steps of the wall clock.
    pub clock_steps: AtomicU64,
    /// By how much it was stepped last, ns.
    pub clock_step_ns: AtomicI64,
    /// The times that were sampled before the last step. Locked when a sampler thread starts and when the clock is stepped.
    passes: Mutex<Option<ClockPasses>>,
    pub batches: AtomicU64,
    /// Bytes of those batches.
    pub batch_bytes: AtomicU64,
    /// Batches that the server acknowledged.
    pub acknowledged: AtomicU64,
    /// Batches given up because the queue was full and the spool could not take them, or because the spool was full.
    pub dropped: AtomicU64,
    /// Messages that the server refused for good; they are given up.
    pub refused: AtomicU64,
    /// Messages that the server refused for a reason that may pass; they are sent again.
    pub put_off: AtomicU64,
    /// Batches written to the spool.
    pub spooled: AtomicU64,
    /// Connections made after the first.
    pub reconnects: AtomicU64,
    /// Bytes in the send queue and in flight.
    pub queue_bytes: AtomicU64,
    /// Bytes in the spool.
    pub spool_bytes: AtomicU64,
    /// Connections that the API refused because too many were open.
    pub api_refused: AtomicU64,
    /// Marks of jobs stored.
    pub marks: AtomicU64,
    /// Marks of jobs dropped because they were too many.
    pub marks_dropped: AtomicU64,
    /// Marks of jobs refused because they could not be.
    pub marks_refused: AtomicU64,
    /// Jobs that run here.
    pub jobs: AtomicU64,
    /// Jobs that are not read because others take all that the bounds allow.
    pub jobs_waiting: AtomicU64,
    /// Directories of jobs that are passed over because there are too many jobs.
    pub jobs_passed_over: AtomicU64,
    pub job_sensors: AtomicU64,
    /// Directories of users whose directories are not all looked at.
    pub directories_passed_over: AtomicU64,
    /// Inotify watches of the tracker.
    pub watches: AtomicU64,
    /// A sampler has something for the manager to look at: a layout that changed, a read that fails or does so no more. The encoder, which
    /// wakes anyway, tells it.
    pub attention: AtomicBool,
    lag_max_ns: AtomicU64,
}

impl AgentCounters {
    /// Notes a lag for [`AgentCounters::take_lag_max`].
    #[inline]
    pub fn note_lag(&self, lag_ns: u64) {
        if lag_ns > self.lag_max_ns.load(Ordering::Relaxed) {
            self.lag_max_ns.fetch_max(lag_ns, Ordering::Relaxed);
        }
    }

    /// The times that the process has sampled, for a thread that starts; `None` for the first one.
    pub fn passes(&self) -> Option<ClockPasses> {
        *lock(&self.passes)
    }

    /// Until when nothing is to be stored, because there are readings of this time already: see [`ClockPasses::held_until`].
    pub fn held_until(&self, time: i64) -> Option<i64> {
        self.passes()?.held_until(time)
    }

    /// Takes note of them.
    pub fn set_passes(&self, passes: ClockPasses) {
        *lock(&self.passes) = Some(passes);
    }

    /// The wall clock was stepped by so much; `passes` is what was sampled before.
    pub fn note_step(&self, by_ns: i64, passes: ClockPasses) {
        self.set_passes(passes);
        self.clock_step_ns.store(by_ns, Ordering::Relaxed);
        self.clock_steps.fetch_add(1, Ordering::Release);
        self.attention.store(true, Ordering::Release);
    }

    /// The longest lag since it was last asked for, ns.
    pub fn take_lag_max(&self) -> u64 {
        self.lag_max_ns.swap(0, Ordering::Relaxed)
    }
}
