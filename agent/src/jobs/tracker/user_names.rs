//! Names of users, asked on a thread of their own: the system may ask a directory service that does not answer, and no job
//! waits for that.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};

use super::core::UserLookup;
use crate::waker::Waker;

/// The most names that wait to be asked for; further ones are asked for at the next rescan.
const WAITING_MAX: usize = 256;
/// The most answers that are kept.
const KEPT_MAX: usize = 4096;
/// How long an answer holds: 1 h, and 1 min that there is none.
const GOOD_NS: u64 = 3_600_000_000_000;
const NONE_NS: u64 = 60_000_000_000;
/// The longest entry of a user, in bytes.
const ENTRY_BYTES_MAX: usize = 1 << 20;

type UserEntry = Option<(u32, String)>;

/// The thread and what it has answered.
pub struct UserNames {
    to: SyncSender<UserLookup>,
    from: Receiver<(UserLookup, UserEntry)>,
    kept: HashMap<UserLookup, (UserEntry, u64)>,
    asked: HashSet<UserLookup>,
}

impl UserNames {
    /// Starts the thread; `waker` rings when there is an answer. The thread ends when this is dropped and it has no question left,
    /// and is not waited for.
    pub fn start(waker: Arc<Waker>) -> std::io::Result<Self> {
        let (to, questions) = sync_channel::<UserLookup>(WAITING_MAX);
        let (answers, from) = channel();
        std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            for question in questions {
                let user = look_up(&question);
                // Bounded by the questions.
                if answers.send((question, user)).is_err() {
                    return;
                }
                waker.wake();
            }
        })?;
        Ok(Self { to, from, kept: HashMap::new(), asked: HashSet::new() })
    }

    /// The answer, if it is known; else it is asked for, and comes out of [`UserNames::answers`].
    pub fn ask(&mut self, of: UserLookup, mono: u64) -> UserEntry {
        if let Some((user, until)) = self.kept.get(&of)
            && mono < *until
        {
            return user.clone();
        }
        if !self.asked.contains(&of) {
            match self.to.try_send(of.clone()) {
                Ok(()) => _ = self.asked.insert(of),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
            }
        }
        None
    }

    /// Whether an answer is still to come.
    pub fn is_asking(&self, of: &UserLookup) -> bool {
        self.asked.contains(of)
    }

    /// Users that have been found since.
    pub fn answers(&mut self, mono: u64) -> Vec<(UserLookup, u32, String)> {
        let mut found = Vec::new();
        while let Ok((of, user)) = self.from.try_recv() {
            self.asked.remove(&of);
            if self.kept.len() >= KEPT_MAX {
                self.kept.clear();
            }
            let until = mono + if user.is_some() { GOOD_NS } else { NONE_NS };
            self.kept.insert(of.clone(), (user.clone(), until));
            if let Some((uid, name)) = user {
                found.push((of, uid, name));
            }
        }
        found
    }
}

fn look_up(of: &UserLookup) -> UserEntry {
    let name = match of {
        UserLookup::User(name) => CString::new(name.as_str()).ok()?,
        UserLookup::Uid(_) => CString::default(),
    };
    let mut buffer: Vec<libc::c_char> = vec![0; 1024];
    loop {
        // SAFETY: all-zero is a valid passwd.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let (room, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: everything pointed to outlives the calls, and the buffer has the length that is said.
        let error = unsafe {
            match of {
                UserLookup::Uid(uid) => libc::getpwuid_r(*uid, &mut entry, room, length, &mut found),
                UserLookup::User(_) => libc::getpwnam_r(name.as_ptr(), &mut entry, room, length, &mut found),
            }
        };
        match error {
            libc::ERANGE if length < ENTRY_BYTES_MAX => buffer.resize(length * 4, 0),
            libc::EINTR => {}
            0 if !found.is_null() && !entry.pw_name.is_null() => {
                // SAFETY: the call succeeded, so the name is in the buffer and ends with a zero.
                let name = unsafe { CStr::from_ptr(entry.pw_name) };
                return Some((entry.pw_uid, name.to_str().ok()?.to_owned()));
            }
            _ => return None,
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
            assert_eq!(names.ask(of.clone(), 0), None);
            assert_eq!(names.ask(of, 0), None);
        }
        let mut found = Vec::new();
        while !names.asked.is_empty() {
            waker.wait(Duration::from_secs(60));
            found.extend(names.answers(0));
        }
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|(_, uid, name)| (*uid, name.as_str()) == (0, "root")));
        assert_eq!(names.ask(UserLookup::Uid(0), 1), Some((0, "root".to_owned())));
        assert_eq!(names.ask(nobody.clone(), 1), None);
        assert!(names.asked.is_empty(), "that there is none is known too");
        assert_eq!(names.ask(nobody, NONE_NS), None);
        assert_eq!(names.asked.len(), 1, "for a while");
    }
}
