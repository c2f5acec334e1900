//! The agent's counters over all groups.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::engine::passes::ClockPasses;
use crate::sync::lock;

/// Counts since the start of the process. Any thread adds, any thread reads.
#[derive(Debug, Default)]
pub struct AgentCounters {
    pub samples: AtomicU64,
    /// Ticks without a read.
    pub missed: AtomicU64,
    /// Values that could not be read.
    pub gaps: AtomicU64,
    /// Samples overwritten in a ring before they were encoded.
    pub overruns: AtomicU64,
    /// Steps of the wall clock.
    pub clock_steps: AtomicU64,
    /// The last step of the wall clock, ns.
    pub clock_step_ns: AtomicI64,
    /// The times that were sampled before the last step. Locked only when a sampler thread starts and when the clock is stepped.
    passes: Mutex<Option<ClockPasses>>,
    pub batches: AtomicU64,
    /// Bytes of those batches.
    pub batch_bytes: AtomicU64,
    /// Batches that the server acknowledged.
    pub acknowledged: AtomicU64,
    /// Batches dropped because the queue was full and could not be spooled, or because the spool was full.
    pub dropped: AtomicU64,
    /// Messages that the server refused for good.
    pub refused: AtomicU64,
    /// Messages that the server refused for now; they are sent again.
    pub deferred: AtomicU64,
    /// Batches written to the spool.
    pub spooled: AtomicU64,
    /// Connections made after the first.
    pub reconnects: AtomicU64,
    /// Connections to another server than the one before.
    pub server_changes: AtomicU64,
    /// The place of the server in use in the agent's order, from 1; 0 without a connection.
    pub server_place: AtomicU64,
    /// Bytes in the send queue and in flight.
    pub queue_bytes: AtomicU64,
    /// Bytes in the spool.
    pub spool_bytes: AtomicU64,
    /// Connections that the API refused because too many were open.
    pub api_refused: AtomicU64,
    /// Marks of jobs stored.
    pub marks: AtomicU64,
    /// Marks of jobs over the rate.
    pub marks_dropped: AtomicU64,
    /// Invalid marks of jobs.
    pub marks_refused: AtomicU64,
    pub jobs: AtomicU64,
    /// Jobs that are not read because of the bounds.
    pub jobs_waiting: AtomicU64,
    /// Directories of jobs that are skipped because there are too many jobs.
    pub jobs_skipped: AtomicU64,
    pub job_sensors: AtomicU64,
    /// Directories of users with too many directories, which are not all read.
    pub directories_skipped: AtomicU64,
    /// Crashes and hangs of plug-ins, and bounds that they exceeded.
    pub plugin_faults: AtomicU64,
    /// Inotify watches of the tracker.
    pub watches: AtomicU64,
    /// A sampler has news for the manager: a changed layout, a failing read or its end. The encoder, which wakes regularly, wakes the manager.
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

    /// The times that the process has sampled, for a new thread; `None` for the first one.
    pub fn passes(&self) -> Option<ClockPasses> {
        *lock(&self.passes)
    }

    /// The time before which nothing may be stored, because readings of these times exist: see [`ClockPasses::held_until`].
    pub fn held_until(&self, time: i64) -> Option<i64> {
        self.passes()?.held_until(time)
    }

    pub fn set_passes(&self, passes: ClockPasses) {
        *lock(&self.passes) = Some(passes);
    }

    /// Notes a step of the wall clock; `passes` are the times that were sampled before.
    pub fn note_step(&self, by_ns: i64, passes: ClockPasses) {
        self.set_passes(passes);
        self.clock_step_ns.store(by_ns, Ordering::Relaxed);
        self.clock_steps.fetch_add(1, Ordering::Release);
        self.attention.store(true, Ordering::Release);
    }

    /// The longest lag since the last call, ns.
    pub fn take_lag_max(&self) -> u64 {
        self.lag_max_ns.swap(0, Ordering::Relaxed)
    }
}
