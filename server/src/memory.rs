//! The process's memory: what queries take of it together, and giving back what was freed.
//!
//! The C library's allocator keeps freed memory for later, in arenas, of which it makes up to eight for each processor: after a burst of
//! queries or of connections a process stays as large as it ever was. [`bound_arenas`] has it make one for each processor, and
//! [`keep_small`] has it return the pages nobody uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// How often is looked whether the process has grown.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// After growing by so much, in bytes, freed memory is given back at once; else after so many looks.
const GROWN_BYTES: u64 = 16 << 20;
const LOOKS_MAX: u32 = 6;

/// Resident memory that is no file's, in bytes; 0 where the system does not say.
pub(crate) fn resident() -> u64 {
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else { return 0 };
    // proc(5): size, resident and shared in pages.
    let mut fields = statm.split_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (Some(resident), Some(shared)) = (fields.next(), fields.next()) else { return 0 };
    // SAFETY: sysconf takes a number and gives a number back.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    resident.saturating_sub(shared) * u64::try_from(page).unwrap_or(4096)
}

/// Returns the pages that were freed to the system.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bounds the allocator's arenas, each of which holds pages for its own threads: one for each processor, and at least two. To be called
/// before other threads begin. `MALLOC_ARENA_MAX` in the environment comes first.
pub(crate) fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let arenas = libc::c_int::try_from(processors.max(2)).unwrap_or(libc::c_int::MAX);
        // SAFETY: mallopt takes two numbers, and may be called at any time.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, arenas);
        }
    }
}

/// Gives freed memory back as long as the process lives.
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

/// What queries may take together.
#[derive(Debug)]
pub(crate) struct QueryMemory {
    bytes_max: AtomicU64,
    /// What the process had when no query ran.
    before: AtomicU64,
    running: AtomicUsize,
}

/// A query that runs, until it is dropped.
#[derive(Debug)]
pub(crate) struct Running(Arc<QueryMemory>);

impl QueryMemory {
    /// With a bound in bytes.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max: bytes_max.into(), before: AtomicU64::new(0), running: AtomicUsize::new(0) })
    }

    /// Another bound from now on.
    pub fn set(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Relaxed);
    }

    /// Lets another query run, or says how many bytes those that run have taken, which is too much. What else grew meanwhile counts
    /// as theirs until none runs.
    pub fn admit(self: &Arc<Self>) -> Result<Running, u64> {
        self.admit_with(resident).or_else(|_| {
            give_back();
            self.admit_with(resident)
        })
    }

    fn admit_with(self: &Arc<Self>, resident: impl Fn() -> u64) -> Result<Running, u64> {
        let now = resident();
        if self.running.load(Relaxed) == 0 {
            self.before.store(now, Relaxed);
        }
        let taken = now.saturating_sub(self.before.load(Relaxed));
        if taken > self.bytes_max.load(Relaxed) {
            return Err(taken);
        }
        self.running.fetch_add(1, Relaxed);
        Ok(Running(self.clone()))
    }
}

impl Drop for Running {
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
