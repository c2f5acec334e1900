//! Lookups of users on a thread of their own: the system may query a directory service that does not respond, and no job waits for it.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};

use crate::waker::Waker;

/// The most lookups that wait; further ones are repeated at the next rescan.
const WAITING_MAX: usize = 256;
/// The most cached results.
const CACHED_MAX: usize = 4096;
/// How long a result is valid: 1 h, and 1 min if there is no such user.
const FOUND_VALID_NS: u64 = 3_600_000_000_000;
const NOT_FOUND_VALID_NS: u64 = 60_000_000_000;
/// The longest entry of a user, in bytes.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The uid and the name; `None` if there is no such user.
pub type LookupResult = Option<(u32, String)>;

/// A lookup in the user database.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UserLookup {
    /// The name of a uid.
    Uid(u32),
    /// The uid of a name.
    User(String),
}

/// The thread and its results.
pub struct UserNames {
    to: SyncSender<UserLookup>,
    from: Receiver<(UserLookup, LookupResult)>,
    cached: HashMap<UserLookup, (LookupResult, u64)>,
    pending: HashSet<UserLookup>,
}

impl UserNames {
    /// Starts the thread; `waker` is woken for each result. The thread ends after this is dropped and its lookups are done; nobody waits for it.
    pub fn start(waker: Arc<Waker>) -> std::io::Result<Self> {
        let (to, lookups) = sync_channel::<UserLookup>(WAITING_MAX);
        let (results, from) = channel();
        std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            for lookup in lookups {
                let user = lookup.run();
                // Bounded by the number of lookups.
                if results.send((lookup, user)).is_err() {
                    return;
                }
                waker.wake();
            }
        })?;
        Ok(Self { to, from, cached: HashMap::new(), pending: HashSet::new() })
    }

    /// The cached result. If there is none, queues the lookup and returns `None`; [`UserNames::results`] returns the user later.
    pub fn look_up(&mut self, of: UserLookup, mono: u64) -> LookupResult {
        if let Some((user, until)) = self.cached.get(&of)
            && mono < *until
        {
            return user.clone();
        }
        if !self.pending.contains(&of) {
            match self.to.try_send(of.clone()) {
                Ok(()) => _ = self.pending.insert(of),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
            }
        }
        None
    }

    /// Whether a result is still missing.
    pub fn is_pending(&self, of: &UserLookup) -> bool {
        self.pending.contains(of)
    }

    /// The users found since the last call. That a user does not exist is only cached.
    pub fn results(&mut self, mono: u64) -> Vec<(UserLookup, u32, String)> {
        let mut found = Vec::new();
        while let Ok((of, user)) = self.from.try_recv() {
            self.pending.remove(&of);
            if self.cached.len() >= CACHED_MAX {
                self.cached.clear();
            }
            let until = mono + if user.is_some() { FOUND_VALID_NS } else { NOT_FOUND_VALID_NS };
            self.cached.insert(of.clone(), (user.clone(), until));
            if let Some((uid, name)) = user {
                found.push((of, uid, name));
            }
        }
        found
    }
}

impl UserLookup {
    /// Asks the system, which may wait for a directory service.
    pub fn run(&self) -> LookupResult {
        let name = match self {
            UserLookup::User(name) => CString::new(name.as_str()).ok()?,
            UserLookup::Uid(_) => CString::default(),
        };
        let mut buffer: Vec<libc::c_char> = vec![0; 1024];
        loop {
            // SAFETY: an all-zero passwd is valid.
            let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
            let mut found = std::ptr::null_mut();
            let (room, length) = (buffer.as_mut_ptr(), buffer.len());
            // SAFETY: all buffers outlive the calls, and their sizes are given.
            let error = unsafe {
                match self {
                    UserLookup::Uid(uid) => libc::getpwuid_r(*uid, &mut entry, room, length, &mut found),
                    UserLookup::User(_) => libc::getpwnam_r(name.as_ptr(), &mut entry, room, length, &mut found),
                }
            };
            match error {
                libc::ERANGE if length < ENTRY_BYTES_MAX => buffer.resize(length * 4, 0),
                libc::EINTR => {}
                0 if !found.is_null() && !entry.pw_name.is_null() => {
                    // SAFETY: the call succeeded, so that the name is in the buffer and ends with a zero.
                    let name = unsafe { CStr::from_ptr(entry.pw_name) };
                    return Some((entry.pw_uid, name.to_str().ok()?.to_owned()));
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn root_is_found_both_ways_and_asked_for_once() {
        let waker = Arc::new(Waker::new().unwrap());
        let mut names = UserNames::start(waker.clone()).unwrap();
        let nobody = UserLookup::User("no such user, surely".to_owned());
        for of in [UserLookup::Uid(0), UserLookup::User("root".to_owned()), nobody.clone()] {
            assert_eq!(names.look_up(of.clone(), 0), None);
            assert_eq!(names.look_up(of, 0), None);
        }
        let mut found = Vec::new();
        while !names.pending.is_empty() {
            waker.wait(Duration::from_secs(60));
            found.extend(names.results(0));
        }
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|(_, uid, name)| (*uid, name.as_str()) == (0, "root")));
        assert_eq!(names.look_up(UserLookup::Uid(0), 1), Some((0, "root".to_owned())));
        assert_eq!(names.look_up(nobody.clone(), 1), None);
        assert!(names.pending.is_empty(), "a missing user is cached too");
        assert_eq!(names.look_up(nobody, NOT_FOUND_VALID_NS), None);
        assert_eq!(names.pending.len(), 1, "only until it expires");
    }
}
