//! The file descriptors that readers of jobs may hold: so many of this process together, and so many of one user's jobs.
//!
//! - In: bounds from the agent ([`set_bounds`]); each reader of a job takes a [`Descriptor`] before it opens a file.
//! - Out: a refusal (`EMFILE`) in place of a file; counts of what is held and what was refused.
//! - Never: a bound on the node's own readers. What jobs may not hold is left for them.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How many descriptors a process wants free before a look at the machine is believed: a look has a few folders and a file open at a
/// time, and other threads open files meanwhile.
const SPARE: usize = 16;
/// Users that are remembered without a descriptor of theirs, at most.
const IDLE_USERS_MAX: usize = 64;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
static USER_MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static USERS: Mutex<Option<HashMap<u32, Arc<AtomicUsize>>>> = Mutex::new(None);

/// Bounds what readers of jobs hold from now on: of all jobs, and of the jobs of one user. What is held already stays.
pub fn set_bounds(max: usize, user_max: usize) {
    MAX.store(max, Ordering::Relaxed);
    USER_MAX.store(user_max, Ordering::Relaxed);
}

/// How many descriptors readers of jobs hold.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// The bounds in force: of all jobs, and of one user's.
pub fn bounds() -> (usize, usize) {
    (MAX.load(Ordering::Relaxed), USER_MAX.load(Ordering::Relaxed))
}

/// How many more readers of jobs of this user may hold. Takes a lock: not for the sampling path.
pub fn left(uid: Option<u32>) -> usize {
    let (max, user_max) = bounds();
    let of_user = Quota::of(uid).user.map_or(0, |held| held.load(Ordering::Relaxed));
    let of_user = if uid.is_some_and(|uid| uid != 0) { user_max.saturating_sub(of_user) } else { usize::MAX };
    max.saturating_sub(held()).min(of_user)
}

/// How often a reader of a job was refused one.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Whether this process can open files now, with some to spare. A folder that cannot be listed for want of descriptors looks like an
/// empty one to much code; a look at the machine between two answers of no is not believed.
pub fn are_left() -> bool {
    let opened: Vec<File> = (0..SPARE).map_while(|_| File::open("/").ok()).collect();
    opened.len() == SPARE
}

/// Whose descriptors they are.
#[derive(Debug, Clone)]
pub struct Quota {
    /// What that user's jobs hold; `None` for jobs of root, and of nobody known, which only the bound of all holds for.
    user: Option<Arc<AtomicUsize>>,
}

impl Quota {
    /// Of jobs of a user. Takes a lock: not for the sampling path.
    pub fn of(uid: Option<u32>) -> Self {
        let Some(uid) = uid.filter(|uid| *uid != 0) else { return Self { user: None } };
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        let users = users.get_or_insert_default();
        if users.len() >= IDLE_USERS_MAX {
            users.retain(|_, held| Arc::strong_count(held) > 1);
        }
        Self { user: Some(users.entry(uid).or_default().clone()) }
    }

    /// A place for one descriptor; `None` when there is none left.
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

/// One place, given back when it is dropped.
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
