//! The process's memory: a limit for queries, and the return of freed memory to the system.
//!
//! The C library's allocator keeps freed memory in arenas, by default up to eight for each processor: after a burst of queries or connections the
//! process would never shrink. [`bound_arenas`] limits it to one for each processor, [`keep_small`] returns unused pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// How often the size of the process is checked.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Freed memory is returned at once after this growth in bytes, otherwise after this number of checks.
const GROWN_BYTES: u64 = 16 << 20;
const LOOKS_MAX: u32 = 6;

/// Resident anonymous memory in bytes; 0 if the system does not report it.
pub(crate) fn resident() -> u64 {
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else { return 0 };
    // proc(5): total, resident and shared size in pages.
    let mut fields = statm.split_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (Some(resident), Some(shared)) = (fields.next(), fields.next()) else { return 0 };
    // SAFETY: sysconf takes and returns a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    resident.saturating_sub(shared) * u64::try_from(page).unwrap_or(4096)
}

/// Returns freed pages to the system.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Limits the allocator to one arena for each processor, at least two. Call it before other threads start. `MALLOC_ARENA_MAX` in the environment has
/// precedence.
pub(crate) fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let arenas = libc::c_int::try_from(processors.max(2)).unwrap_or(libc::c_int::MAX);
        // SAFETY: mallopt takes two numbers and may be called at any time.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, arenas);
        }
    }
}

/// Starts the thread that returns freed memory.
pub(crate) fn keep_small() -> std::io::Result<()> {
    let work = || {
        let (mut after, mut looks) = (resident(), 0);
        loop {
            std::thread::sleep(LOOK_EVERY);
            looks += 1;
            if looks >= LOOKS_MAX || resident() > after + GROWN_BYTES {
                give_back();
                (after, looks) = (resident(), 0);
            }
        }
    };
    std::thread::Builder::new().name("memory".into()).spawn(work).map(drop)
}

/// The memory limit of all queries together.
#[derive(Debug)]
pub(crate) struct QueryMemory {
    bytes_max: AtomicU64,
    /// Resident memory when no query ran.
    before: AtomicU64,
    running: AtomicUsize,
}

/// A running query, until it is dropped.
#[derive(Debug)]
pub(crate) struct RunningQuery(Arc<QueryMemory>);

impl QueryMemory {
    /// `bytes_max` is in bytes.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max: bytes_max.into(), before: AtomicU64::new(0), running: AtomicUsize::new(0) })
    }

    pub fn set(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Relaxed);
    }

    /// Admits another query, or returns the memory that running queries have taken if it exceeds the limit. Other growth counts as theirs until no
    /// query runs.
    pub fn admit(self: &Arc<Self>) -> Result<RunningQuery, u64> {
        self.admit_with(resident).or_else(|_| {
            give_back();
            self.admit_with(resident)
        })
    }

    fn admit_with(self: &Arc<Self>, resident: impl Fn() -> u64) -> Result<RunningQuery, u64> {
        let now = resident();
        if self.running.load(Relaxed) == 0 {
            self.before.store(now, Relaxed);
        }
        let taken = now.saturating_sub(self.before.load(Relaxed));
        if taken > self.bytes_max.load(Relaxed) {
            return Err(taken);
        }
        self.running.fetch_add(1, Relaxed);
        Ok(RunningQuery(self.clone()))
    }
}

impl Drop for RunningQuery {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_wait_for_those_that_took_too_much_and_no_longer() {
        let memory = QueryMemory::new(100);
        let admit = |resident: u64| memory.admit_with(|| resident);
        let first = admit(1_000).unwrap();
        let second = admit(1_100).unwrap();
        assert_eq!(admit(1_101).unwrap_err(), 101);
        drop(first);
        assert_eq!(admit(1_101).unwrap_err(), 101, "one still runs");
        drop(second);
        let third = admit(5_000).unwrap();
        assert!(admit(5_050).is_ok() && admit(5_200).is_err());
        memory.set(1_000);
        assert!(admit(5_200).is_ok());
        drop(third);
    }

    #[test]
    fn the_process_has_memory_and_gives_some_back() {
        let before = resident();
        assert!(before > 1 << 20);
        let held: Vec<Vec<u8>> = (0..40_000).map(|_| vec![1; 4_000]).collect();
        let full = resident();
        // The last of them stays, so that the others cannot go by shrinking the heap alone.
        let last = held.into_iter().next_back();
        give_back();
        assert!(full > before + (100 << 20) && resident() < full - (60 << 20), "{before} {full} {}", resident());
        drop(last);
    }
}
