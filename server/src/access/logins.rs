//! Delays logins after too many failures, longer each time.
//!
//! Failures are counted for each address, each user, and each user at an address. Passwords that were right before, and certificates, are accepted
//! without this check: attempts to guess do not lock out legitimate clients.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::config::LoginLimits;
use crate::admission::source;

/// The most addresses, users and pairs that are remembered; beyond it those that failed longest ago are dropped.
pub const REMEMBERED_MAX: usize = 16_384;

/// The key under which failures are counted. Users are hashed, because their names may be long and are private.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum LoginKey {
    Source(IpAddr),
    User(u64),
    Pair(IpAddr, u64),
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
    wait_until: Instant,
}

#[derive(Debug)]
pub struct Logins {
    state: Mutex<LoginFailures>,
    hasher: RandomState,
}

#[derive(Debug)]
struct LoginFailures {
    limits: LoginLimits,
    failures: HashMap<LoginKey, Failures>,
}

impl Logins {
    pub fn new(limits: LoginLimits) -> Self {
        Self { state: Mutex::new(LoginFailures { limits, failures: HashMap::new() }), hasher: RandomState::new() }
    }

    pub fn set_limits(&self, limits: LoginLimits) {
        self.lock().limits = limits;
    }

    /// The time until the next attempt is allowed; `None` if it is allowed now. Without `user` only the address counts.
    pub fn wait(&self, address: IpAddr, user: Option<&str>, now: Instant) -> Option<Duration> {
        let state = self.lock();
        let waits = self.keys(address, user).into_iter().flatten().filter_map(|key| {
            let failures = state.failures.get(&key)?;
            failures.wait_until.checked_duration_since(now).filter(|wait| !wait.is_zero())
        });
        waits.max()
    }

    /// Records a failed attempt. Returns the wait before the next one, if any.
    pub fn failed(&self, address: IpAddr, user: Option<&str>, now: Instant) -> Option<Duration> {
        let mut state = self.lock();
        let limits = state.limits;
        let mut longest = None;
        for key in self.keys(address, user).into_iter().flatten() {
            let free =
                if matches!(key, LoginKey::Pair(..)) { limits.user_failures_free } else { limits.source_failures_free };
            state.make_room(&key, now);
            let failures = state.failures.entry(key).or_insert(Failures { count: 0, last: now, wait_until: now });
            if now.saturating_duration_since(failures.last) >= limits.forget_after {
                failures.count = 0;
            }
            failures.count = failures.count.saturating_add(1);
            failures.last = now;
            if failures.count > free {
                let doublings = (failures.count - free - 1).min(31);
                let wait = limits.delay.saturating_mul(1 << doublings).min(limits.delay_max);
                failures.wait_until = now + wait;
                longest = longest.max(Some(wait));
            }
        }
        longest
    }

    /// Records a success: drops the user's failures at this address. Those of the address stay, because it may belong to somebody who has one
    /// password and guesses another.
    pub fn succeeded(&self, address: IpAddr, user: &str) {
        let key = LoginKey::Pair(source(address), self.hasher.hash_one(user));
        self.lock().failures.remove(&key);
    }

    /// A user is new or has another password: drops all failures of the user.
    pub fn forgive(&self, user: &str) {
        let user = self.hasher.hash_one(user);
        self.lock().failures.retain(|key, _| !matches!(key, LoginKey::User(of) | LoginKey::Pair(_, of) if *of == user));
    }

    fn keys(&self, address: IpAddr, user: Option<&str>) -> [Option<LoginKey>; 3] {
        let address = source(address);
        let user = user.map(|user| self.hasher.hash_one(user));
        [Some(LoginKey::Source(address)), user.map(LoginKey::User), user.map(|user| LoginKey::Pair(address, user))]
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LoginFailures> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoginFailures {
    /// Makes room for one more entry: drops expired ones, then the oldest.
    fn make_room(&mut self, key: &LoginKey, now: Instant) {
        if self.failures.len() < REMEMBERED_MAX || self.failures.contains_key(key) {
            return;
        }
        let forget_after = self.limits.forget_after;
        self.failures.retain(|_, failures| now.saturating_duration_since(failures.last) < forget_after);
        if self.failures.len() >= REMEMBERED_MAX
            && let Some(oldest) = self.failures.iter().min_by_key(|(_, failures)| failures.last).map(|(key, _)| *key)
        {
            self.failures.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LoginLimits = LoginLimits {
        user_failures_free: 2,
        source_failures_free: 4,
        delay: Duration::from_secs(1),
        delay_max: Duration::from_secs(10),
        forget_after: Duration::from_secs(100),
    };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn waits_double_and_end_and_are_forgotten() {
        let (logins, here, start) = (Logins::new(LIMITS), address("10.0.0.1"), Instant::now());
        let seconds = |wait: Option<Duration>| wait.map(|wait| wait.as_secs());
        let waits: Vec<_> = (0..7).map(|_| seconds(logins.failed(here, Some("n1"), start))).collect();
        assert_eq!(waits, [None, None, Some(1), Some(2), Some(4), Some(8), Some(10)]);
        assert_eq!(seconds(logins.wait(here, Some("n1"), start)), Some(10));
        assert_eq!(logins.wait(here, Some("n1"), start + Duration::from_secs(10)), None);
        let later = start + Duration::from_secs(200);
        assert_eq!(logins.failed(here, Some("n1"), later), None, "the earlier ones are forgotten");
    }

    #[test]
    fn failures_of_one_client_do_not_delay_others() {
        let (logins, start) = (Logins::new(LIMITS), Instant::now());
        let (here, there) = (address("10.0.0.1"), address("10.0.0.2"));
        (0..3).for_each(|_| {
            logins.failed(here, Some("n1"), start);
        });
        assert!(logins.wait(here, Some("n1"), start).is_some());
        assert_eq!(logins.wait(here, Some("n2"), start), None, "another user at the same address");
        assert_eq!(logins.wait(there, Some("n1"), start), None, "the same user elsewhere");
        logins.succeeded(here, "n1");
        assert_eq!(logins.wait(here, Some("n1"), start), None);
        // Many users from one address, and one user from many addresses.
        (0..5).for_each(|i| {
            logins.failed(there, Some(&format!("u{i}")), start);
        });
        assert!(logins.wait(there, Some("fresh"), start).is_some() && logins.wait(there, None, start).is_some());
        (0..5).for_each(|i| {
            logins.failed(address(&format!("10.1.0.{i}")), Some("n9"), start);
        });
        assert!(logins.wait(address("10.2.0.1"), Some("n9"), start).is_some());
        logins.forgive("n9");
        assert_eq!(logins.wait(address("10.2.0.1"), Some("n9"), start), None);
        (0..5).for_each(|i| {
            logins.failed(address(&format!("2001:db8::{i}")), None, start);
        });
        assert!(logins.wait(address("2001:db8::ffff"), None, start).is_some(), "a network of IPv6 is one source");
        assert_eq!(logins.wait(address("2001:db8:0:1::"), None, start), None);
    }

    #[test]
    fn memory_is_bounded() {
        let (logins, start) = (Logins::new(LIMITS), Instant::now());
        for i in 0..20_000_u32 {
            logins.failed(IpAddr::V4(i.into()), Some("n1"), start + Duration::from_micros(i.into()));
        }
        assert!(logins.lock().failures.len() <= REMEMBERED_MAX);
        assert!(logins.wait(address("10.2.0.1"), Some("n1"), start + Duration::from_secs(1)).is_some());
    }
}
