//! Bounds on the file descriptors of jobs' readers: of all jobs together, and of the jobs of one user.
//!
//! - In: the bounds ([`set_bounds`]). A reader of a job takes a [`Descriptor`] before it opens a file.
//! - Out: an error (`EMFILE`) in place of a file; the numbers of held and refused descriptors.
//! - Never: a bound on readers of the node, which have all other descriptors of the process.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The free descriptors that a reliable discovery needs: it has a few folders and a file open at a time, and other threads open files too.
const SPARE: usize = 16;
/// The most users in the table of which some hold no descriptor.
const IDLE_USERS_MAX: usize = 64;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
static USER_MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static USERS: Mutex<Option<HashMap<u32, Arc<AtomicUsize>>>> = Mutex::new(None);

/// Sets the bounds: of all jobs, and of the jobs of one user. Descriptors that are held already stay.
pub fn set_bounds(max: usize, user_max: usize) {
    MAX.store(max, Ordering::Relaxed);
    USER_MAX.store(user_max, Ordering::Relaxed);
}

/// The number of descriptors that readers of jobs hold.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// The current bounds: of all jobs, and of the jobs of one user.
pub fn bounds() -> (usize, usize) {
    (MAX.load(Ordering::Relaxed), USER_MAX.load(Ordering::Relaxed))
}

/// The number of descriptors that readers of this user's jobs may still take. Takes a lock: not for the sampling path.
pub fn left(uid: Option<u32>) -> usize {
    let (max, user_max) = bounds();
    let of_user = Quota::of(uid).user.map_or(0, |held| held.load(Ordering::Relaxed));
    let of_user = if uid.is_some_and(|uid| uid != 0) { user_max.saturating_sub(of_user) } else { usize::MAX };
    max.saturating_sub(held()).min(of_user)
}

/// The number of refused descriptors.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Whether this process can open [`SPARE`] more files. Without descriptors a folder cannot be listed and looks empty, so that a discovery is reliable
/// only if this is true before and after it.
pub fn are_left() -> bool {
    let opened: Vec<File> = (0..SPARE).map_while(|_| File::open("/").ok()).collect();
    opened.len() == SPARE
}

/// Pays for the descriptors of one user's jobs.
#[derive(Debug, Clone)]
pub struct Quota {
    /// The descriptors that the user's jobs hold; `None` for jobs of root and of unknown users, which only the bound of all jobs limits.
    user: Option<Arc<AtomicUsize>>,
}

impl Quota {
    /// The quota of a user. Takes a lock: not for the sampling path.
    pub fn of(uid: Option<u32>) -> Self {
        let Some(uid) = uid.filter(|uid| *uid != 0) else { return Self { user: None } };
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        let users = users.get_or_insert_default();
        if users.len() >= IDLE_USERS_MAX {
            users.retain(|_, held| Arc::strong_count(held) > 1);
        }
        Self { user: Some(users.entry(uid).or_default().clone()) }
    }

    /// Takes one descriptor; `None` when none is left.
    pub fn take(&self) -> Option<Descriptor> {
        let taken = take(&HELD, &MAX)
            && self.user.as_deref().is_none_or(|held| {
                let taken = take(held, &USER_MAX);
                if !taken {
                    HELD.fetch_sub(1, Ordering::Relaxed);
                }
                taken
            });
        if !taken {
            REFUSED.fetch_add(1, Ordering::Relaxed);
        }
        taken.then(|| Descriptor { user: self.user.clone() })
    }
}

fn take(held: &AtomicUsize, max: &AtomicUsize) -> bool {
    let max = max.load(Ordering::Relaxed);
    held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| (held < max).then_some(held + 1)).is_ok()
}

/// A descriptor of a quota, returned when dropped.
#[derive(Debug)]
pub struct Descriptor {
    user: Option<Arc<AtomicUsize>>,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::Relaxed);
        if let Some(user) = &self.user {
            user.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
