//! All that guards a running server, in one place: rules, users, tokens, revoked certificates, failed logins, the audit log.
//! It takes over changed files by itself, and a changed configuration when told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use wholegrain_model::Timestamp;
use wholegrain_store::Store;

use super::audit::{Audit, Event, Line, Outcome};
use super::files::{self, FileError, Stamp};
use super::logins::Logins;
use super::revoked::Revoked;
use super::tokens::{BadToken, Bearer, SHOWN_BYTES_MAX, TokenTable};
use super::{Access, AccessConfig, users};
use crate::broker::auth::Passwords;
use crate::broker::log_limit::{LogLimit, quoted};
use crate::config::ServerConfig;
use crate::metrics::Metrics;

/// How often the files of users, tokens and revoked certificates are looked at: a change counts after this at the latest.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why an MQTT client with user and password may not come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadLogin {
    /// The password is wrong, or there is no such user.
    Wrong,
    /// Too many failed before; the next try is free after this.
    Wait(Duration),
}

/// Why an HTTP client's token does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadBearer {
    /// The token itself.
    Token(BadToken),
    /// The same, and too many from this address failed before.
    Wait(Duration),
}

/// What guards the server.
#[derive(Debug)]
pub struct Security {
    /// Who may publish and subscribe what.
    pub access: Access,
    /// What happened.
    pub audit: Audit,
    passwords: Arc<Passwords>,
    logins: Logins,
    tokens: RwLock<Arc<TokenTable>>,
    revoked: RwLock<Arc<Revoked>>,
    watched: Mutex<Watched>,
    metrics: Arc<Metrics>,
    log: LogLimit,
}

/// The files, and how they were when they were read last.
#[derive(Debug)]
struct Watched {
    /// Users of server.toml itself.
    own_users: BTreeMap<String, String>,
    passwords: Option<(PathBuf, Option<Stamp>)>,
    tokens: (PathBuf, Option<Stamp>),
    revoked: (PathBuf, Option<Stamp>),
}

/// A file's content and how the file was just before: a change in between is noticed at the next look.
fn load<T>(
    path: &Path,
    parse: impl FnOnce(&Path, &str) -> Result<T, FileError>,
) -> (Option<Stamp>, Result<T, FileError>) {
    let stamp = Stamp::of(path);
    (stamp, files::read_or_empty(path).and_then(|text| parse(path, &text)))
}

fn now() -> Timestamp {
    let ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    Timestamp(i64::try_from(ns).unwrap_or(i64::MAX))
}

impl Watched {
    /// Nothing read yet.
    fn of(config: &ServerConfig) -> Self {
        Self {
            own_users: config.mqtt.users.clone(),
            passwords: config.mqtt.password_file.clone().map(|path| (path, None)),
            tokens: (config.http.tokens_file.clone(), None),
            revoked: (config.security.revoked_file.clone(), None),
        }
    }
}

impl Security {
    /// Reads the files that `config` names and learns from the store whose prefixes are whose.
    pub fn open(config: &ServerConfig, store: &Store, metrics: Arc<Metrics>) -> anyhow::Result<Arc<Self>> {
        let known = store.schema_agents();
        let audit = Audit::start(&config.security.audit, metrics.clone()).with_context(|| {
            let path = config.security.audit.path.as_deref().unwrap_or(Path::new(""));
            format!("cannot write the audit log {}; name another security.audit_file, or \"off\"", path.display())
        })?;
        let security = Arc::new(Self {
            access: Access::new(
                &AccessConfig::of(&config.mqtt),
                known.iter().map(|(prefix, agent)| (prefix, &**agent)),
            ),
            audit,
            passwords: Passwords::new(config.mqtt.users.clone()),
            logins: Logins::new(config.security.logins),
            tokens: RwLock::default(),
            revoked: RwLock::default(),
            watched: Mutex::new(Watched::of(config)),
            metrics,
            log: LogLimit::default(),
        });
        security.read_all(config.http.listen.is_some())?;
        security.audit.always(Line::new(Event::Start, Outcome::Ok, "server", "local", ""));
        Ok(security)
    }

    fn read_all(&self, wants_tokens: bool) -> Result<(), FileError> {
        let mut watched = self.watched();
        self.read_passwords(&mut watched)?;
        self.read_revoked(&mut watched)?;
        if wants_tokens {
            self.read_tokens(&mut watched)?;
        }
        Ok(())
    }

    /// Whether [`Self::reload`] would find every file good.
    pub fn check(config: &ServerConfig) -> Result<(), FileError> {
        if let Some(passwords) = &config.mqtt.password_file {
            load(passwords, users::parse).1?;
        }
        load(&config.security.revoked_file, Revoked::parse).1?;
        if config.http.listen.is_some() {
            load(&config.http.tokens_file, TokenTable::parse).1?;
        }
        Ok(())
    }

    /// Takes over a changed configuration: rules, users, tokens, revoked certificates and the bounds on failed logins. The audit
    /// log stays where it is until the next start. When a file is wrong nothing but the rules and bounds changes. Gives back whose
    /// connections should end.
    pub fn reload(&self, config: &ServerConfig) -> Result<Vec<String>, FileError> {
        self.access.replace(&AccessConfig::of(&config.mqtt));
        self.logins.set_limits(config.security.logins);
        let mut watched = self.watched();
        *watched = Watched::of(config);
        let mut gone = self.read_passwords(&mut watched)?;
        gone.extend(self.read_revoked(&mut watched)?);
        if config.http.listen.is_some() {
            self.read_tokens(&mut watched)?;
        }
        self.metrics.security_reloads.inc();
        self.audit.always(Line::new(Event::Reload, Outcome::Ok, "server", "local", "configuration"));
        Ok(gone)
    }

    /// Looks whether a file has changed and takes it over; one that is wrong is reported and what was read before still counts.
    /// Gives back whose connections should end: users that are gone or have another password, and revoked agents. Blocks on the
    /// disk.
    pub fn look(&self) -> Vec<String> {
        let mut watched = self.watched();
        let mut gone = Vec::new();
        let changed = |(path, stamp): &(PathBuf, Option<Stamp>)| Stamp::of(path) != *stamp;
        if watched.passwords.as_ref().is_some_and(changed) {
            let result = self.read_passwords(&mut watched);
            gone.extend(self.taken_over(result, "users"));
        }
        if changed(&watched.revoked) {
            let result = self.read_revoked(&mut watched);
            gone.extend(self.taken_over(result, "revoked certificates"));
        }
        if changed(&watched.tokens) {
            let result = self.read_tokens(&mut watched).map(|()| Vec::new());
            self.taken_over(result, "tokens");
        }
        gone
    }

    fn taken_over(&self, result: Result<Vec<String>, FileError>, what: &str) -> Vec<String> {
        let (outcome, said) = match &result {
            Ok(_) => {
                self.metrics.security_reloads.inc();
                tracing::info!("{what}: the changed file counts from now on");
                (Outcome::Ok, what.to_owned())
            }
            Err(error) => {
                tracing::error!("{what}: {error}; those read before still count");
                (Outcome::Failed, format!("{what}: {error}"))
            }
        };
        self.audit.always(Line::new(Event::Reload, outcome, "server", "local", &said));
        result.unwrap_or_default()
    }

    fn read_passwords(&self, watched: &mut Watched) -> Result<Vec<String>, FileError> {
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

    fn read_tokens(&self, watched: &mut Watched) -> Result<(), FileError> {
        let (path, stamp) = &mut watched.tokens;
        let (read, table) = load(path, TokenTable::parse);
        *stamp = read;
        let table = table?;
        if table.len() == 0 {
            tracing::warn!(
                "{} holds no token: nobody can read; `wholegrain auth token create` makes one",
                path.display()
            );
        }
        if table.plain > 0 {
            tracing::warn!(
                "{} holds {} tokens in the clear, which count as admins'; make others with `wholegrain auth token create`, \
                 and take these out with `wholegrain auth token revoke`",
                path.display(),
                table.plain
            );
        }
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        Ok(())
    }

    fn read_revoked(&self, watched: &mut Watched) -> Result<Vec<String>, FileError> {
        let (path, stamp) = &mut watched.revoked;
        let (read, new) = load(path, Revoked::parse);
        *stamp = read;
        let new = new?;
        let mut revoked = self.revoked.write().unwrap_or_else(PoisonError::into_inner);
        let gone = new.newly_named(&revoked);
        *revoked = Arc::new(new);
        Ok(gone)
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the certificate of this name and serial number (hexadecimal) counts no longer.
    pub fn is_revoked(&self, peer: SocketAddr, name: &str, serial: &str) -> bool {
        let revoked = self.revoked.read().unwrap_or_else(PoisonError::into_inner).has(name, serial);
        if revoked {
            self.metrics.certificates_refused.inc();
            let what = format!("certificate {serial} is revoked");
            self.audit.bounded(Event::MqttLogin, Outcome::Refused, name, peer, &what);
        }
        revoked
    }

    /// Notes that a client showed a certificate that counts.
    pub fn certificate_shown(&self, peer: SocketAddr, name: &str) {
        self.audit.success(Event::MqttLogin, name, peer, "certificate");
    }

    /// Whether `password` is `user`'s. One that was right before passes whatever others did; else whoever failed too often waits,
    /// and nothing is looked at meanwhile.
    pub async fn check_password(&self, peer: SocketAddr, user: &str, password: &[u8]) -> Result<(), BadLogin> {
        let address = peer.ip();
        let waits = || self.logins.wait(address, Some(user), Instant::now());
        let bad = if self.passwords.was_right(user, password) {
            None
        } else if let Some(wait) = waits() {
            Some(BadLogin::Wait(wait))
        } else {
            // Many may have come at once: when its turn comes, others may have failed.
            match self.passwords.check(user, password, || waits().is_none()).await {
                Some(true) => None,
                Some(false) => Some(BadLogin::Wrong),
                None => Some(BadLogin::Wait(waits().unwrap_or_default())),
            }
        };
        match bad {
            None => {
                self.logins.succeeded(address, user);
                self.audit.success(Event::MqttLogin, user, peer, "password");
                Ok(())
            }
            Some(BadLogin::Wrong) => {
                self.metrics.logins_failed.inc();
                let wait = self.logins.failed(address, Some(user), Instant::now());
                let next = wait.map_or(String::new(), |wait| format!("; the next try counts in {} s", seconds(wait)));
                let what = format!("wrong password, or no such user{next}");
                self.audit.bounded(Event::MqttLogin, Outcome::Failed, user, peer, &what);
                Err(BadLogin::Wrong)
            }
            Some(wait) => {
                self.metrics.logins_delayed.inc();
                self.audit.bounded(Event::MqttLogin, Outcome::Refused, user, peer, "too many failed logins before");
                Err(wait)
            }
        }
    }

    /// Whose token this is. One that counts always passes: it cannot be guessed, so there is nobody to keep out with it.
    pub fn check_token(&self, peer: SocketAddr, token: &str) -> Result<Bearer, BadBearer> {
        let token = if token.len() > SHOWN_BYTES_MAX { "" } else { token };
        let known = match self.tokens().check(token, now()) {
            // Perhaps it was made a moment ago.
            Err(BadToken::Unknown) if self.new_tokens() => self.tokens().check(token, now()),
            known => known,
        };
        let bad = match known {
            Ok(bearer) => {
                self.audit.success(Event::HttpLogin, &bearer_name(&bearer), peer, bearer.role.name());
                return Ok(bearer);
            }
            Err(bad) => bad,
        };
        let wait = self.logins.wait(peer.ip(), None, Instant::now());
        self.metrics.http_logins_failed.inc();
        if let Some(wait) = wait {
            self.metrics.http_logins_delayed.inc();
            self.audit.bounded(Event::HttpLogin, Outcome::Refused, "", peer, "too many failed logins before");
            return Err(BadBearer::Wait(wait));
        }
        let (who, what) = match &bad {
            BadToken::Unknown => {
                // Only guesses cost time: whoever shows a token that was right once is only late.
                self.logins.failed(peer.ip(), None, Instant::now());
                (String::new(), "unknown token")
            }
            BadToken::Expired(bearer, _) => (bearer_name(bearer), "expired token"),
            BadToken::Revoked(bearer, _) => (bearer_name(bearer), "revoked token"),
        };
        self.log.warn(format_args!("https {peer}: {what} {}", quoted(&who)));
        self.audit.bounded(Event::HttpLogin, Outcome::Failed, &who, peer, what);
        Err(BadBearer::Token(bad))
    }

    /// Looks whether the file of tokens has changed, and takes it over. A file's status is asked for, and no more, at each guess.
    fn new_tokens(&self) -> bool {
        let mut watched = self.watched();
        let changed = Stamp::of(&watched.tokens.0) != watched.tokens.1;
        if changed {
            let result = self.read_tokens(&mut watched).map(|()| Vec::new());
            self.taken_over(result, "tokens");
        }
        changed
    }

    /// Is ready once the token counts no longer: it was revoked, has expired, or has another role.
    pub async fn until_over(&self, bearer: &Bearer) {
        while self.tokens().still_counts(bearer, now()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn tokens(&self) -> Arc<TokenTable> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A token's name and id, as the audit log has it.
pub(crate) fn bearer_name(bearer: &Bearer) -> String {
    format!("token {} ({})", bearer.name, bearer.id)
}

/// Whole seconds, at least one.
pub(crate) fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
