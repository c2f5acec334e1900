//! The lock file: while another user has it, the hardware's counters are left to that user.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::kernel::Kernel;

/// The shortest time between two checks of the lock file, in ms, however often counters are read.
pub const CHECK_MS: u64 = 100;

/// Whether another user has the hardware's counters: while the lock file exists and belongs to another user, as is the custom of LIKWID.
pub struct CounterLock {
    kernel: Arc<dyn Kernel>,
    path: Option<CString>,
    is_held: AtomicBool,
    holder: AtomicU32,
    checked_ms: AtomicU64,
}

impl CounterLock {
    /// With a lock file. Without one the counters always belong to the agent.
    pub fn new(kernel: &Arc<dyn Kernel>, path: Option<&Path>) -> Arc<Self> {
        let path = path.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        let lock = Self {
            kernel: kernel.clone(),
            path,
            is_held: AtomicBool::new(false),
            holder: AtomicU32::new(0),
            checked_ms: AtomicU64::new(0),
        };
        lock.check();
        Arc::new(lock)
    }

    /// Whether another user had the counters at the last check, which was at most [`CHECK_MS`] ago. Neither allocates nor blocks.
    #[inline]
    pub fn is_held(&self) -> bool {
        let Some(path) = &self.path else { return false };
        let now = self.kernel.coarse_ms();
        if now.wrapping_sub(self.checked_ms.load(Ordering::Relaxed)) >= CHECK_MS {
            self.check_file(path, now);
        }
        self.is_held.load(Ordering::Acquire)
    }

    /// Checks the file now; gives whether another user has the counters.
    pub fn check(&self) -> bool {
        if let Some(path) = &self.path {
            self.check_file(path, self.kernel.coarse_ms());
        }
        self.is_held.load(Ordering::Acquire)
    }

    /// A clause for the administrator about the user that has the counters.
    pub fn holder(&self) -> Option<String> {
        let path = self.path.as_ref().filter(|_| self.is_held.load(Ordering::Acquire))?;
        let uid = self.holder.load(Ordering::Relaxed);
        Some(format!("{} belongs to the user with uid {uid}", path.to_string_lossy()))
    }

    fn check_file(&self, path: &CStr, now: u64) {
        self.checked_ms.store(now, Ordering::Relaxed);
        match self.kernel.owner(path) {
            Ok(uid) => {
                self.holder.store(uid, Ordering::Relaxed);
                self.is_held.store(uid != self.kernel.uid(), Ordering::Release);
            }
            Err(libc::ENOENT | libc::ENOTDIR) => self.is_held.store(false, Ordering::Release),
            // A file that cannot be checked is assumed to be unchanged.
            Err(_) => {}
        }
    }
}
