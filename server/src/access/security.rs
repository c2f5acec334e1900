//! Authentication and authorization of a running server: rules, users, tokens, revoked certificates, failed logins, the audit log. Changed files are
//! reloaded automatically, a changed configuration on request.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use wholegrain_model::Timestamp;
use wholegrain_store::Store;

use super::audit::{Audit, AuditEntry, AuditEvent, AuditOutcome};
use super::files::{self, FileError, FileStamp};
use super::logins::Logins;
use super::passwords::Passwords;
use super::revoked::Revoked;
use super::tokens::{BadToken, Bearer, SHOWN_BYTES_MAX, TokenTable};
use super::{Access, SecuritySettings, users};
use crate::log_limit::{LogLimit, quoted};
use crate::metrics::Metrics;

/// How often the files of users, tokens and revoked certificates are checked: the longest delay until a change counts.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why an MQTT login is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadLogin {
    /// The password is wrong, or the user does not exist.
    Wrong,
    /// Too many failures; the next attempt is allowed after this time.
    Wait(Duration),
}

/// Why an HTTP client's token is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadBearer {
    Token(BadToken),
    /// The token is unknown, and too many attempts from this address have failed.
    Wait(Duration),
}

/// The credentials and rules of the server.
#[derive(Debug)]
pub struct Security {
    /// Topic permissions of identities.
    pub access: Access,
    pub audit: Audit,
    passwords: Arc<Passwords>,
    logins: Logins,
    tokens: RwLock<Arc<TokenTable>>,
    revoked: RwLock<Arc<Revoked>>,
    watched: Mutex<CredentialFiles>,
    metrics: Arc<Metrics>,
    log: LogLimit,
}

/// The credential files, with their stamps at the last read.
#[derive(Debug)]
struct CredentialFiles {
    /// Users in server.toml itself.
    own_users: BTreeMap<String, String>,
    passwords: Option<(PathBuf, Option<FileStamp>)>,
    tokens: Option<(PathBuf, Option<FileStamp>)>,
    revoked: (PathBuf, Option<FileStamp>),
}

/// A file's content, and its stamp just before: a change in between is noticed at the next check.
fn load<T>(
    path: &Path,
    parse: impl FnOnce(&Path, &str) -> Result<T, FileError>,
) -> (Option<FileStamp>, Result<T, FileError>) {
    let stamp = FileStamp::of(path);
    (stamp, files::read_or_empty(path).and_then(|text| parse(path, &text)))
}

fn now() -> Timestamp {
    let ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    Timestamp(i64::try_from(ns).unwrap_or(i64::MAX))
}

impl CredentialFiles {
    fn of(settings: &SecuritySettings) -> Self {
        Self {
            own_users: settings.users.clone(),
            passwords: settings.password_file.clone().map(|path| (path, None)),
            tokens: settings.tokens_file.clone().map(|path| (path, None)),
            revoked: (settings.security.revoked_file.clone(), None),
        }
    }
}

impl Security {
    /// Reads the files that `settings` names, and the owners of prefixes from the store.
    pub fn open(settings: &SecuritySettings, store: &Store, metrics: Arc<Metrics>) -> anyhow::Result<Arc<Self>> {
        let known = store.schema_agents();
        let audit = Audit::start(&settings.security.audit, metrics.clone()).with_context(|| {
            let path = settings.security.audit.path.as_deref().unwrap_or(Path::new(""));
            format!("cannot write the audit log {}; name another security.audit_file, or \"off\"", path.display())
        })?;
        let security = Arc::new(Self {
            access: Access::new(&settings.access, known.iter().map(|(prefix, agent)| (prefix, &**agent))),
            audit,
            passwords: Passwords::new(settings.users.clone()),
            logins: Logins::new(settings.security.logins),
            tokens: RwLock::default(),
            revoked: RwLock::default(),
            watched: Mutex::new(CredentialFiles::of(settings)),
            metrics,
            log: LogLimit::default(),
        });
        security.read_all()?;
        security.audit.always(AuditEntry::new(AuditEvent::Start, AuditOutcome::Ok, "server", "local", ""));
        Ok(security)
    }

    fn read_all(&self) -> Result<(), FileError> {
        let mut watched = self.watched();
        self.read_passwords(&mut watched)?;
        self.read_revoked(&mut watched)?;
        self.read_tokens(&mut watched)
    }

    /// Whether [`Self::reload`] would accept every file.
    pub fn check(settings: &SecuritySettings) -> Result<(), FileError> {
        if let Some(passwords) = &settings.password_file {
            load(passwords, users::parse).1?;
        }
        load(&settings.security.revoked_file, Revoked::parse).1?;
        if let Some(tokens) = &settings.tokens_file {
            load(tokens, TokenTable::parse).1?;
        }
        Ok(())
    }

    /// Applies a changed configuration: rules, users, tokens, revoked certificates and limits of failed logins. The audit log stays in place until a
    /// restart. If a file is wrong, only rules and limits change. Returns the identities whose connections must end.
    pub fn reload(&self, settings: &SecuritySettings) -> Result<Vec<String>, FileError> {
        self.access.replace(&settings.access);
        self.logins.set_limits(settings.security.logins);
        let mut watched = self.watched();
        *watched = CredentialFiles::of(settings);
        let mut gone = self.read_passwords(&mut watched)?;
        gone.extend(self.read_revoked(&mut watched)?);
        self.read_tokens(&mut watched)?;
        self.metrics.security_reloads.inc();
        self.audit.always(AuditEntry::new(AuditEvent::Reload, AuditOutcome::Ok, "server", "local", "configuration"));
        Ok(gone)
    }

    /// Reloads files that have changed; a wrong one is reported, and its previous content stays in force. Returns the identities whose connections
    /// must end: removed users, users with a new password, revoked agents. Blocks on the disk.
    pub fn look(&self) -> Vec<String> {
        let mut watched = self.watched();
        let mut gone = Vec::new();
        let changed = |(path, stamp): &(PathBuf, Option<FileStamp>)| FileStamp::of(path) != *stamp;
        if watched.passwords.as_ref().is_some_and(changed) {
            let result = self.read_passwords(&mut watched);
            gone.extend(self.record_reload(result, "users"));
        }
        if changed(&watched.revoked) {
            let result = self.read_revoked(&mut watched);
            gone.extend(self.record_reload(result, "revoked certificates"));
        }
        if watched.tokens.as_ref().is_some_and(changed) {
            let result = self.read_tokens(&mut watched).map(|()| Vec::new());
            self.record_reload(result, "tokens");
        }
        gone
    }

    fn record_reload(&self, result: Result<Vec<String>, FileError>, what: &str) -> Vec<String> {
        let (outcome, said) = match &result {
            Ok(_) => {
                self.metrics.security_reloads.inc();
                tracing::info!("{what}: loaded the changed file");
                (AuditOutcome::Ok, what.to_owned())
            }
            Err(error) => {
                tracing::error!("{what}: {error}; the previous content stays in force");
                (AuditOutcome::Failed, format!("{what}: {error}"))
            }
        };
        self.audit.always(AuditEntry::new(AuditEvent::Reload, outcome, "server", "local", &said));
        result.unwrap_or_default()
    }

    fn read_passwords(&self, watched: &mut CredentialFiles) -> Result<Vec<String>, FileError> {
        let mut all = watched.own_users.clone();
        if let Some((path, stamp)) = &mut watched.passwords {
            let (read, users) = load(path, users::parse);
            *stamp = read;
            all.extend(users?);
        }
        let changed = self.passwords.replace(all);
        changed.added.iter().chain(&changed.changed).for_each(|user| self.logins.forgive(user));
        Ok([changed.changed, changed.removed].concat())
    }

    fn read_tokens(&self, watched: &mut CredentialFiles) -> Result<(), FileError> {
        let Some((path, stamp)) = &mut watched.tokens else { return Ok(()) };
        let (read, table) = load(path, TokenTable::parse);
        *stamp = read;
        let table = table?;
        if table.len() == 0 {
            tracing::warn!(
                "{} holds no token, so no client can read; create one with `wholegrain auth token create`",
                path.display()
            );
        }
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        Ok(())
    }

    fn read_revoked(&self, watched: &mut CredentialFiles) -> Result<Vec<String>, FileError> {
        let (path, stamp) = &mut watched.revoked;
        let (read, new) = load(path, Revoked::parse);
        *stamp = read;
        let new = new?;
        let mut revoked = self.revoked.write().unwrap_or_else(PoisonError::into_inner);
        let gone = new.newly_named(&revoked);
        *revoked = Arc::new(new);
        Ok(gone)
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, CredentialFiles> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the certificate of this name and serial number (hexadecimal) is revoked.
    pub fn is_revoked(&self, peer: SocketAddr, name: &str, serial: &str) -> bool {
        let revoked = self.revoked.read().unwrap_or_else(PoisonError::into_inner).has(name, serial);
        if revoked {
            self.metrics.certificates_refused.inc();
            let what = format!("certificate {serial} is revoked");
            self.audit.bounded(AuditEvent::MqttLogin, AuditOutcome::Refused, name, peer, &what);
        }
        revoked
    }

    /// Records that a client authenticated with a valid certificate.
    pub fn certificate_shown(&self, peer: SocketAddr, name: &str) {
        self.audit.success(AuditEvent::MqttLogin, name, peer, "certificate");
    }

    /// Checks a password. One that was right before is accepted whatever others did. Otherwise a client that failed too often waits, and its
    /// attempts are not checked meanwhile.
    pub async fn check_password(&self, peer: SocketAddr, user: &str, password: &[u8]) -> Result<(), BadLogin> {
        let address = peer.ip();
        let waits = || self.logins.wait(address, Some(user), Instant::now());
        let bad = if self.passwords.was_right(user, password) {
            None
        } else if let Some(wait) = waits() {
            Some(BadLogin::Wait(wait))
        } else {
            // Many attempts may arrive at once: others may have failed while this one queued.
            match self.passwords.check(user, password, || waits().is_none()).await {
                Some(true) => None,
                Some(false) => Some(BadLogin::Wrong),
                None => Some(BadLogin::Wait(waits().unwrap_or_default())),
            }
        };
        match bad {
            None => {
                self.logins.succeeded(address, user);
                self.audit.success(AuditEvent::MqttLogin, user, peer, "password");
                Ok(())
            }
            Some(BadLogin::Wrong) => {
                self.metrics.logins_failed.inc();
                let wait = self.logins.failed(address, Some(user), Instant::now());
                let next = wait.map_or(String::new(), |wait| format!("; the next try counts in {} s", seconds(wait)));
                let what = format!("wrong password, or no such user{next}");
                self.audit.bounded(AuditEvent::MqttLogin, AuditOutcome::Failed, user, peer, &what);
                Err(BadLogin::Wrong)
            }
            Some(wait) => {
                self.metrics.logins_delayed.inc();
                self.audit.bounded(
                    AuditEvent::MqttLogin,
                    AuditOutcome::Refused,
                    user,
                    peer,
                    "too many failed logins before",
                );
                Err(wait)
            }
        }
    }

    /// Checks a token. A valid one is always accepted: tokens cannot be guessed, so delaying them protects nothing.
    pub fn check_token(&self, peer: SocketAddr, token: &str) -> Result<Bearer, BadBearer> {
        let token = if token.len() > SHOWN_BYTES_MAX { "" } else { token };
        let known = match self.tokens().check(token, now()) {
            // The token may have been created a moment ago.
            Err(BadToken::Unknown) if self.new_tokens() => self.tokens().check(token, now()),
            known => known,
        };
        let bad = match known {
            Ok(bearer) => {
                self.audit.success(AuditEvent::HttpLogin, &bearer_name(&bearer), peer, bearer.role.name());
                return Ok(bearer);
            }
            Err(bad) => bad,
        };
        let wait = self.logins.wait(peer.ip(), None, Instant::now());
        self.metrics.http_logins_failed.inc();
        if let Some(wait) = wait {
            self.metrics.http_logins_delayed.inc();
            self.audit.bounded(AuditEvent::HttpLogin, AuditOutcome::Refused, "", peer, "too many failed logins before");
            return Err(BadBearer::Wait(wait));
        }
        let (who, what) = match &bad {
            BadToken::Unknown => {
                // Only guesses are delayed; an expired or revoked token is not one.
                self.logins.failed(peer.ip(), None, Instant::now());
                (String::new(), "unknown token")
            }
            BadToken::Expired(bearer, _) => (bearer_name(bearer), "expired token"),
            BadToken::Revoked(bearer, _) => (bearer_name(bearer), "revoked token"),
        };
        self.log.warn(format_args!("https {peer}: {what} {}", quoted(&who)));
        self.audit.bounded(AuditEvent::HttpLogin, AuditOutcome::Failed, &who, peer, what);
        Err(BadBearer::Token(bad))
    }

    /// Reloads the token file if it has changed. Each guess costs one stat of the file.
    fn new_tokens(&self) -> bool {
        let mut watched = self.watched();
        let changed = watched.tokens.as_ref().is_some_and(|(path, stamp)| FileStamp::of(path) != *stamp);
        if changed {
            let result = self.read_tokens(&mut watched).map(|()| Vec::new());
            self.record_reload(result, "tokens");
        }
        changed
    }

    /// Completes when the token is no longer valid: revoked, expired, or with another role.
    pub async fn until_over(&self, bearer: &Bearer) {
        while self.tokens().still_counts(bearer, now()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn tokens(&self) -> Arc<TokenTable> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A token's name and id, as written to the audit log.
pub(crate) fn bearer_name(bearer: &Bearer) -> String {
    format!("token {} ({})", bearer.name, bearer.id)
}

/// Whole seconds, at least one.
pub(crate) fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
