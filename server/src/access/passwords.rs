//! Passwords of users: hashes, the password file, checks of a login.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Argon2, Params};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

/// The most memory for checking one password, in KiB.
const HASH_MEMORY_KIB_MAX: u32 = 256 << 10;
/// The most passes for checking one password.
const HASH_PASSES_MAX: u32 = 16;
/// How many passwords are checked at a time: each check costs tens of milliseconds and megabytes, by design.
const CHECKS_AT_ONCE: usize = 2;
/// The hash that is checked for unknown users, so that the time does not reveal whether a user exists. No password matches it.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$1bPzWVP1SbzNFyPHzjX4N4tBJWJ1cMw4PQXXqXmTCFc";

/// Hashes a password with Argon2id and a random salt, for `password_hash` or a password file.
pub fn hash_password(password: &str) -> Result<String, String> {
    let hash = Argon2::default().hash_password(password.as_bytes());
    hash.map(|hash| hash.to_string()).map_err(|error| format!("cannot hash the password: {error}"))
}

/// Checks that `hash` is a usable Argon2id hash.
pub fn check_hash(hash: &str) -> Result<(), String> {
    let hint = "make one with `wholegrain auth hash`";
    let parsed = PasswordHash::new(hash).map_err(|error| format!("not a password hash ({error}); {hint}"))?;
    if parsed.algorithm.as_str() != "argon2id" {
        return Err(format!("hashed with {}, not argon2id; {hint}", parsed.algorithm));
    }
    let params = Params::try_from(&parsed).map_err(|error| format!("not a password hash ({error}); {hint}"))?;
    if params.m_cost() > HASH_MEMORY_KIB_MAX || params.t_cost() > HASH_PASSES_MAX {
        return Err(format!(
            "checking it needs more than {HASH_MEMORY_KIB_MAX} KiB or {HASH_PASSES_MAX} passes; {hint}"
        ));
    }
    Ok(())
}

/// Reads `name:hash` lines; skips empty lines and those that begin with `#`.
pub fn parse_password_file(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut users = BTreeMap::new();
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, hash) = line.split_once(':').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
            format!("line {number}: write name:hash, as `wholegrain auth hash --user NAME` prints it")
        })?;
        check_hash(hash).map_err(|error| format!("line {number}: {error}"))?;
        if users.insert(name.to_owned(), hash.to_owned()).is_some() {
            return Err(format!("line {number}: user {name:?} is listed twice; keep one"));
        }
    }
    Ok(users)
}

/// Checks passwords. A password that was right before is recognised without hashing it again: ten thousand agents that reconnect after a restart
/// must not take minutes.
#[derive(Debug)]
pub struct Passwords {
    users: RwLock<Arc<BTreeMap<String, String>>>,
    /// SHA-256 of (a key of this process, user, stored hash, password) of each user's last right password. One entry for each user; a changed
    /// password is not recognised.
    right: Mutex<HashMap<String, [u8; 32]>>,
    key: [u8; 32],
    checks: Arc<Semaphore>,
}

/// The users that a new password file changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedPasswords {
    pub added: Vec<String>,
    /// Users with another password.
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

impl Passwords {
    /// Takes users and their password hashes, checked by [`check_hash`].
    pub fn new(users: BTreeMap<String, String>) -> Arc<Self> {
        let mut key = [0; 32];
        // Without a random key an attacker who can read this process's memory would have less work; there is no other risk.
        let _ = rustls::crypto::ring::default_provider().secure_random.fill(&mut key);
        let users = RwLock::new(Arc::new(users));
        Arc::new(Self { users, right: Mutex::default(), key, checks: Arc::new(Semaphore::new(CHECKS_AT_ONCE)) })
    }

    pub fn replace(&self, users: BTreeMap<String, String>) -> ChangedPasswords {
        let mut changed = ChangedPasswords::default();
        let mut known = self.users.write().unwrap_or_else(PoisonError::into_inner);
        for (name, hash) in &users {
            match known.get(name) {
                None => changed.added.push(name.clone()),
                Some(old) if old != hash => changed.changed.push(name.clone()),
                Some(_) => {}
            }
        }
        changed.removed = known.keys().filter(|name| !users.contains_key(*name)).cloned().collect();
        *known = Arc::new(users);
        drop(known);
        self.lock().retain(|name, _| !changed.changed.contains(name) && !changed.removed.contains(name));
        changed
    }

    pub fn len(&self) -> usize {
        self.users().len()
    }

    pub fn is_empty(&self) -> bool {
        self.users().is_empty()
    }

    fn users(&self) -> Arc<BTreeMap<String, String>> {
        self.users.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether `password` was right for `user` when it was last checked, and neither has changed.
    pub fn was_right(&self, user: &str, password: &[u8]) -> bool {
        let users = self.users();
        let digest = users.get(user).map(|hash| self.digest(user, hash, password));
        digest.is_some() && self.lock().get(user) == digest.as_ref()
    }

    /// Checks a password. The check may queue; `wanted` is called again before it starts, and the result is `None` if it returns false.
    pub async fn check(self: &Arc<Self>, user: &str, password: &[u8], wanted: impl FnOnce() -> bool) -> Option<bool> {
        if self.was_right(user, password) {
            return Some(true);
        }
        let permit = self.checks.clone().acquire_owned().await.ok()?;
        if !wanted() {
            return None;
        }
        let (hash, known) = match self.users().get(user) {
            Some(hash) => (hash.clone(), true),
            None => (NOBODY.to_owned(), false),
        };
        let digest = self.digest(user, &hash, password);
        let (passwords, user, password) = (self.clone(), user.to_owned(), password.to_vec());
        // A client that disconnects does not cancel the check: it runs on, counts until it is over, and its result makes the client's next login
        // fast.
        let check = tokio::task::spawn_blocking(move || {
            let right = verify(&hash, &password) && known;
            if right {
                passwords.lock().insert(user, digest);
            }
            drop(permit);
            right
        });
        Some(check.await.unwrap_or(false))
    }

    fn digest(&self, user: &str, hash: &str, password: &[u8]) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update(self.key);
        for part in [user, hash] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(password);
        hasher.finalize().into()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, [u8; 32]>> {
        self.right.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn verify(hash: &str, password: &[u8]) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_files_are_checked_line_by_line() {
        let hash = hash_password("secret").unwrap();
        let users = parse_password_file(&format!("# agents\n\nn1:{hash}\n")).unwrap();
        assert_eq!(users.keys().collect::<Vec<_>>(), ["n1"]);
        for (text, expected) in [
            ("n1", "line 1: write name:hash"),
            ("\nn1:secret", "line 2: not a password hash"),
            (&format!("n1:{hash}\nn1:{hash}"), "line 2: user \"n1\" is listed twice"),
            (
                "n1:$argon2id$v=19$m=4194304,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$1bPzWVP1SbzNFyPHzjX4N4tBJWJ1cMw4PQXXqXmTCFc",
                "line 1: checking it needs more",
            ),
        ] {
            let error = parse_password_file(text).unwrap_err();
            assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
        }
        check_hash(NOBODY).unwrap();
    }

    #[tokio::test]
    async fn a_client_that_leaves_while_its_password_is_checked_frees_no_place_before_the_check_is_over() {
        let passwords = Passwords::new(BTreeMap::from([("n1".to_owned(), hash_password("secret").unwrap())]));
        let check = passwords.check("n1", b"secret", || true);
        // Polled once, so that the check has begun; then dropped, as at a deadline.
        assert!(tokio::time::timeout(std::time::Duration::ZERO, check).await.is_err());
        // All places free again means that the check is over, and then it must have left its result.
        let _all = passwords.checks.acquire_many(CHECKS_AT_ONCE as u32).await.unwrap();
        assert!(passwords.was_right("n1", b"secret"));
    }

    #[tokio::test]
    async fn right_passwords_pass_and_wrong_ones_do_not() {
        let passwords = Passwords::new(BTreeMap::from([("n1".to_owned(), hash_password("secret").unwrap())]));
        let check = async |user: &str, password: &[u8]| passwords.check(user, password, || true).await == Some(true);
        for _ in 0..2 {
            assert!(check("n1", b"secret").await);
            assert!(!check("n1", b"Secret").await);
            assert!(!check("n2", b"secret").await);
            assert!(!check("", b"").await);
        }
        assert_eq!(passwords.check("n1", b"Secret", || false).await, None, "too late");
        assert_eq!(passwords.check("n1", b"secret", || false).await, Some(true), "known to be right");
    }

    #[tokio::test]
    async fn a_password_that_was_changed_is_not_remembered() {
        let users = |password: &str| BTreeMap::from([("n1".to_owned(), hash_password(password).unwrap())]);
        let passwords = Passwords::new(users("old"));
        assert_eq!(passwords.check("n1", b"old", || true).await, Some(true));
        let changed = passwords.replace(users("new"));
        assert_eq!(changed, ChangedPasswords { changed: vec!["n1".to_owned()], ..ChangedPasswords::default() });
        assert!(!passwords.was_right("n1", b"old"));
        assert_eq!(passwords.check("n1", b"old", || true).await, Some(false));
        assert_eq!(passwords.check("n1", b"new", || true).await, Some(true));
        assert_eq!(passwords.replace(BTreeMap::new()).removed, ["n1"]);
        assert_eq!(passwords.check("n1", b"new", || true).await, Some(false));
    }
}
