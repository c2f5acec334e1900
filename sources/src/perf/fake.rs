//! A simulated kernel for tests: gives the configured counts and errors, and checks that every descriptor is closed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::counter_sums::Times;
use super::kernel::{Attr, CountScope, DISABLED, Fd, Kernel};
use crate::file::Errno;

/// The content of memory that was never written.
pub const JUNK: u64 = 0xdead_beef_dead_beef;

/// The configured behaviour, and what was opened.
#[derive(Default)]
pub struct FakeState {
    next: Fd,
    pub events: BTreeMap<Fd, FakeEvent>,
    pub directories: HashSet<Fd>,
    /// Errors of events, by type and config.
    pub refused: HashMap<(u32, u64), Errno>,
    pub all_refused: Option<Errno>,
    /// The most events that may be open at a time.
    pub events_max: Option<usize>,
    /// Counts by CPU, type and config.
    pub counts: HashMap<(u32, u32, u64), u64>,
    /// Times by CPU of groups with a hardware event; those of other groups are in `software_times`.
    pub times: HashMap<u32, Times>,
    pub software_times: HashMap<u32, Times>,
    /// CPUs that are offline. Reads of their events give no bytes.
    pub offline: HashSet<u32>,
    pub read_error: Option<Errno>,
    pub wrong_ids: bool,
    /// A job's directory, which vanishes when its first event is opened.
    pub vanishing: Option<PathBuf>,
    pub lock_owner: Option<u32>,
    pub now_ms: u64,
    pub reads: u64,
    pub lock_checks: u64,
}

/// An open event with its parameters.
pub struct FakeEvent {
    pub attr: Attr,
    pub cpu: u32,
    pub scope: CountScope,
    pub leader: Option<Fd>,
    pub is_enabled: bool,
}

/// The user id of the agent in tests.
pub const OWN_UID: u32 = 990;

/// The simulated kernel of the tests.
#[derive(Default)]
pub struct FakeKernel(Mutex<FakeState>);

impl FakeKernel {
    /// A kernel without events or errors.
    pub fn new() -> Arc<Self> {
        let fake = Self::default();
        fake.state().next = 100;
        Arc::new(fake)
    }

    /// Locks the state to change or check it.
    pub fn state(&self) -> MutexGuard<'_, FakeState> {
        // A failing test shows its own panic, not that of closing its descriptors.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of open descriptors.
    pub fn descriptors(&self) -> usize {
        let state = self.state();
        state.events.len() + state.directories.len()
    }

    /// Sets the count of an event.
    pub fn count(&self, cpu: u32, kind: u32, config: u64, count: u64) {
        self.state().counts.insert((cpu, kind, config), count);
    }

    /// Sets the times of hardware groups.
    pub fn times(&self, cpu: u32, enabled: u64, running: u64) {
        self.state().times.insert(cpu, Times { enabled, running });
    }
}

impl Kernel for FakeKernel {
    fn open(&self, attr: &Attr, scope: CountScope, cpu: u32, leader: Option<Fd>) -> Result<Fd, Errno> {
        let mut state = self.state();
        if let CountScope::Cgroup(fd) = scope {
            assert!(state.directories.contains(&fd), "the directory is open");
        }
        assert_eq!((attr.size, attr.read_format), (72, 15));
        assert_eq!(attr.flags & DISABLED != 0, leader.is_none(), "the leader waits, the others follow it");
        if let Some(path) = state.vanishing.take() {
            std::fs::remove_dir(path).unwrap();
            state.all_refused = Some(libc::ENOENT);
        }
        if let Some(errno) = state.all_refused.or(state.refused.get(&(attr.kind, attr.config)).copied()) {
            return Err(errno);
        }
        if state.offline.contains(&cpu) {
            return Err(libc::ENODEV);
        }
        if state.events_max.is_some_and(|max| state.events.len() >= max) {
            return Err(libc::EMFILE);
        }
        if let Some(leader) = leader {
            assert_eq!(state.events[&leader].cpu, cpu);
        }
        let fd = state.next;
        state.next += 1;
        state.events.insert(fd, FakeEvent { attr: *attr, cpu, scope, leader, is_enabled: false });
        Ok(fd)
    }

    fn id(&self, fd: Fd) -> Result<u64, Errno> {
        Ok(fd as u64 * 7)
    }

    fn enable(&self, leader: Fd) -> Result<(), Errno> {
        let mut state = self.state();
        let event = state.events.get_mut(&leader).ok_or(libc::EBADF)?;
        assert!(event.leader.is_none() && !event.is_enabled);
        event.is_enabled = true;
        Ok(())
    }

    fn read(&self, leader: Fd, words: &mut [u64]) -> Result<usize, Errno> {
        words.fill(JUNK);
        let mut state = self.state();
        state.reads += 1;
        if let Some(errno) = state.read_error {
            return Err(errno);
        }
        let event = state.events.get(&leader).ok_or(libc::EBADF)?;
        assert!(event.is_enabled, "only an enabled group counts");
        let cpu = event.cpu;
        if state.offline.contains(&cpu) {
            return Ok(0);
        }
        let members: Vec<(Fd, Attr)> = state
            .events
            .iter()
            .filter(|(fd, event)| **fd == leader || event.leader == Some(leader))
            .map(|(fd, event)| (*fd, event.attr))
            .collect();
        let is_software = members.iter().all(|(_, attr)| matches!(attr.kind, 1 | 2));
        let times = if is_software { &state.software_times } else { &state.times };
        let times = times.get(&cpu).copied().unwrap_or_default();
        let mut content = vec![members.len() as u64, times.enabled, times.running];
        for (fd, attr) in members {
            let count = state.counts.get(&(cpu, attr.kind, attr.config)).copied().unwrap_or(0);
            content.extend([count, fd as u64 * 7 + u64::from(state.wrong_ids)]);
        }
        let Some(to) = words.get_mut(..content.len()) else { return Err(libc::ENOSPC) };
        to.copy_from_slice(&content);
        Ok(content.len() * 8)
    }

    fn close(&self, fd: Fd) {
        let mut state = self.state();
        let known = state.events.remove(&fd).is_some() || state.directories.remove(&fd);
        drop(state);
        assert!(known || std::thread::panicking(), "{fd} is closed once");
    }

    fn open_directory(&self, path: &Path) -> Result<Fd, Errno> {
        if !path.is_dir() {
            return Err(libc::ENOENT);
        }
        let mut state = self.state();
        let fd = state.next;
        state.next += 1;
        state.directories.insert(fd);
        Ok(fd)
    }

    fn owner(&self, _path: &CStr) -> Result<u32, Errno> {
        let mut state = self.state();
        state.lock_checks += 1;
        state.lock_owner.ok_or(libc::ENOENT)
    }

    fn uid(&self) -> u32 {
        OWN_UID
    }

    fn coarse_ms(&self) -> u64 {
        self.state().now_ms
    }
}
