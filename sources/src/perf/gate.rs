//! Giving the hardware's counters up while somebody else wants them: the lock file.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::kernel::Kernel;

/// The shortest time between two looks at the lock file, in ms, however often counters are read.
pub const LOOK_MS: u64 = 100;

/// Whether the hardware's counters are somebody else's now: they are while the lock file is there and belongs to another user,
/// as the custom of LIKWID is.
pub struct Gate {
    kernel: Arc<dyn Kernel>,
    path: Option<CString>,
    is_held: AtomicBool,
    holder: AtomicU32,
    looked_ms: AtomicU64,
}

impl Gate {
    /// Of a lock file; without one the counters are always the agent's.
    pub fn new(kernel: &Arc<dyn Kernel>, path: Option<&Path>) -> Arc<Self> {
        let path = path.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        let gate = Self {
            kernel: kernel.clone(),
            path,
            is_held: AtomicBool::new(false),
            holder: AtomicU32::new(0),
            looked_ms: AtomicU64::new(0),
        };
        gate.look();
        Arc::new(gate)
    }

    /// Whether they are somebody else's, as of the last look, which is not long ago. Neither allocates nor blocks.
    #[inline]
    pub fn is_held(&self) -> bool {
        let Some(path) = &self.path else { return false };
        let now = self.kernel.coarse_ms();
        if now.wrapping_sub(self.looked_ms.load(Ordering::Relaxed)) >= LOOK_MS {
            self.look_at(path, now);
        }
        self.is_held.load(Ordering::Acquire)
    }

    /// Looks now.
    pub fn look(&self) -> bool {
        if let Some(path) = &self.path {
            self.look_at(path, self.kernel.coarse_ms());
        }
        self.is_held.load(Ordering::Acquire)
    }

    /// For people: whose they are, if somebody else's.
    pub fn holder(&self) -> Option<String> {
        let path = self.path.as_ref().filter(|_| self.is_held.load(Ordering::Acquire))?;
        let uid = self.holder.load(Ordering::Relaxed);
        Some(format!("{} belongs to the user with uid {uid}", path.to_string_lossy()))
    }

    fn look_at(&self, path: &CStr, now: u64) {
        self.looked_ms.store(now, Ordering::Relaxed);
        match self.kernel.owner(path) {
            Ok(uid) => {
                self.holder.store(uid, Ordering::Relaxed);
                self.is_held.store(uid != self.kernel.uid(), Ordering::Release);
            }
            Err(libc::ENOENT | libc::ENOTDIR) => self.is_held.store(false, Ordering::Release),
            // What cannot be seen has not changed, as far as one knows.
            Err(_) => {}
        }
    }
}
