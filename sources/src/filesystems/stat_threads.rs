//! Threads that call `statvfs`, so that a file system that hangs takes one thread and delays nobody.
//!
//! One thread calls the mounts in turn. When a call takes longer than [`SLOW`] and others wait, another thread continues with them. A mount whose call
//! has not returned is not called again. Threads beyond one end when they have nothing to do.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wholegrain_model::Interval;

use super::mounts::Mount;
use crate::file::Errno;

/// After this time of a call another thread continues with the mounts that wait.
const SLOW: Duration = Duration::from_millis(20);
/// The stack of a thread, which makes one system call.
const STACK_BYTES: usize = 64 << 10;

/// Numbers of blocks of `block` bytes, and of inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceNumbers {
    pub block: u64,
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub readonly: bool,
}

/// What is called for each mount; [`statvfs`], or a replacement in tests.
pub type StatFunction = Box<dyn Fn(&CStr) -> Result<SpaceNumbers, Errno> + Send + Sync>;

/// The call statvfs(3) of a path.
pub fn statvfs(path: &CStr) -> Result<SpaceNumbers, Errno> {
    // SAFETY: `statvfs` is plain numbers, for which zero is a value.
    let mut numbers: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in a NUL, and `numbers` is writable.
    if unsafe { libc::statvfs(path.as_ptr(), &mut numbers) } != 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    #[allow(clippy::unnecessary_cast, reason = "the widths differ between platforms")]
    Ok(SpaceNumbers {
        block: numbers.f_frsize as u64,
        blocks: numbers.f_blocks as u64,
        free: numbers.f_bfree as u64,
        available: numbers.f_bavail as u64,
        files: numbers.f_files as u64,
        files_free: numbers.f_ffree as u64,
        readonly: numbers.f_flag & libc::ST_RDONLY != 0,
    })
}

/// The result of the last call for a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Numbers(SpaceNumbers),
    Error(Errno),
    /// It has not returned in time.
    Late,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Waiting,
    Called,
}

/// A mount, the state of its call and the newest answer.
#[derive(Debug)]
pub struct MountSlot {
    path: CString,
    state: Mutex<(Phase, Answer)>,
}

impl MountSlot {
    /// A mount that was not called yet. `root` comes before its mount point.
    pub fn new(root: &Path, mount: &Mount) -> Self {
        let path = [root.as_os_str().as_bytes(), &mount.point].concat();
        Self { path: CString::new(path).unwrap_or_default(), state: Mutex::new((Phase::Idle, Answer::Late)) }
    }

    /// The answer to the call of this read.
    pub fn answer(&self) -> Answer {
        lock(&self.state).1
    }

    /// The problem of a mount that was called, for the administrator.
    pub fn problem(&self) -> Option<String> {
        match *lock(&self.state) {
            (_, Answer::Error(errno)) => {
                Some(format!("cannot read its size: {}", std::io::Error::from_raw_os_error(errno)))
            }
            (Phase::Called, Answer::Late) => Some("does not answer; its sensors are gaps until it does".to_owned()),
            _ => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads of a source. Those that do not hang end when it is dropped.
pub struct StatThreads {
    shared: Arc<StatQueue>,
    threads_max: usize,
    timeout: Duration,
}

struct StatQueue {
    stat: StatFunction,
    state: Mutex<QueueState>,
    /// A mount waits, or the source is dropped.
    work: Condvar,
    /// The call of a mount has returned.
    returned: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Arc<MountSlot>>,
    threads: usize,
    idle: usize,
    /// Calls of this read that have not returned, and their mounts that wait.
    pending: usize,
    /// The number of the read, so that the return of an earlier one's call is not taken for one of this.
    read: u64,
    is_dropped: bool,
}

impl StatThreads {
    /// Starts no thread yet. At most `threads_max` calls hang at a time; a read waits at most `timeout`.
    pub fn new(stat: StatFunction, threads_max: usize, timeout: Interval) -> Self {
        let shared = StatQueue { stat, state: Mutex::default(), work: Condvar::new(), returned: Condvar::new() };
        Self { shared: Arc::new(shared), threads_max, timeout: Duration::from_nanos(timeout.ns()) }
    }

    /// Calls all mounts whose previous call has returned, and waits for the answers until the timeout.
    pub fn call<'m>(&self, mounts: impl Iterator<Item = &'m Arc<MountSlot>>) {
        let until = Instant::now() + self.timeout;
        let mut queue = lock(&self.shared.state);
        queue.read += 1;
        queue.pending = 0;
        for mount in mounts {
            let mut state = lock(&mount.state);
            state.1 = Answer::Late;
            if state.0 == Phase::Idle {
                state.0 = Phase::Waiting;
                queue.waiting.push_back(mount.clone());
                queue.pending += 1;
            }
        }
        // All threads hang in calls of earlier reads, or nothing has returned for a while.
        let mut needs_thread = queue.idle == 0;
        while queue.pending > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if needs_thread && queue.idle == 0 && !queue.waiting.is_empty() && queue.threads < self.threads_max {
                self.start_thread(&mut queue);
            }
            self.shared.work.notify_one();
            let before = queue.pending;
            let more = Duration::min(left, if queue.threads < self.threads_max { SLOW } else { left });
            queue = self
                .shared
                .returned
                .wait_timeout_while(queue, more, |queue| queue.pending == before)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(queue, _)| queue);
            needs_thread = queue.pending == before;
        }
        for mount in queue.waiting.drain(..) {
            lock(&mount.state).0 = Phase::Idle;
        }
    }

    fn start_thread(&self, queue: &mut QueueState) {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("statvfs".to_owned()).stack_size(STACK_BYTES);
        // Without a thread the mounts have no answer in this read, and the next one tries again.
        if thread.spawn(move || run(&shared)).is_ok() {
            queue.threads += 1;
        }
    }

    /// The number of threads, for tests.
    #[cfg(test)]
    pub fn threads(&self) -> usize {
        lock(&self.shared.state).threads
    }

    /// Counts the threads and this value, also after its end; for tests.
    #[cfg(test)]
    pub fn owners(&self) -> impl Fn() -> usize + use<> {
        let shared = Arc::downgrade(&self.shared);
        move || shared.strong_count()
    }
}

impl Drop for StatThreads {
    fn drop(&mut self) {
        lock(&self.shared.state).is_dropped = true;
        self.shared.work.notify_all();
    }
}

/// A thread: calls mounts until the source is dropped, or until another thread has nothing to do either.
fn run(shared: &StatQueue) {
    let mut queue = lock(&shared.state);
    loop {
        if queue.is_dropped {
            break;
        }
        let Some(mount) = queue.waiting.pop_front() else {
            if queue.idle > 0 {
                break;
            }
            queue.idle += 1;
            queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
            continue;
        };
        let read = queue.read;
        lock(&mount.state).0 = Phase::Called;
        drop(queue);
        let result = (shared.stat)(&mount.path);
        queue = lock(&shared.state);
        let mut state = lock(&mount.state);
        state.0 = Phase::Idle;
        if queue.read == read {
            state.1 = result.map_or_else(Answer::Error, Answer::Numbers);
            queue.pending = queue.pending.saturating_sub(1);
            shared.returned.notify_all();
        }
    }
    queue.threads -= 1;
}
