//! Authorization: topics and prefixes over MQTT, roles over HTTP.
//!
//! - Input: the configuration, the files of users and tokens, the store's schemas; an identity and its request.
//! - Output: allowed, or refused with the reason.
//! - Never: an unverified identity where verification is possible; a secret in a log line, response or file.
//!
//! Defaults: an agent publishes at and below paths that have its name as a level, unless another agent was first; it subscribes to its own subtree
//! and its own native topics. The configuration grants everything else.

pub mod audit;
mod config;
pub mod files;
mod filter;
pub mod logins;
mod owners;
pub mod passwords;
pub mod revoked;
mod role;
mod security;
pub mod tokens;
pub mod users;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use wholegrain_model::{Schema, SensorPath};
use wholegrain_transport::mqtt;
use wholegrain_transport::topics::{self, Topic};

use crate::log_limit::quoted;
use crate::text_topics;
pub use config::{
    ACL_FILTERS_MAX, ACL_LINES_MAX, ANONYMOUS, AUDIT_BYTES, AUDIT_FILE, AUDIT_FILES_MAX, AccessConfig, AclLine,
    AuditConfig, EVERYBODY, LOGIN_FAILURES_MAX, LOGIN_TIME, LoginLimits, REVOKED_FILE, SecurityConfig,
    SecuritySettings,
};
pub(crate) use config::{RawSecurity, check_acl};
use filter::covers;
use owners::{OwnedPrefix, PrefixOwners, home};
pub use role::{Permission, Role};
pub use security::{BadBearer, BadLogin, LOOK_EVERY, Security};
pub(crate) use security::{bearer_name, seconds};

/// The first level of native topics.
const NATIVE: &str = "wholegrain";

/// A client's identity: authenticated, or the name that an anonymous client claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity<'a> {
    /// The agent's or the user's name.
    pub name: &'a str,
    /// Whether the name is only claimed.
    pub anonymous: bool,
}

impl<'a> From<&'a str> for Identity<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, anonymous: false }
    }
}

impl<'a> From<&'a String> for Identity<'a> {
    fn from(name: &'a String) -> Self {
        Self::from(name.as_str())
    }
}

/// Decides what an identity may publish and subscribe to. Shared by all connections; [`Access::replace`] changes its rules.
#[derive(Debug)]
pub struct Access {
    rules: RwLock<Arc<AccessRules>>,
    owners: RwLock<PrefixOwners>,
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct AccessRules {
    config: AccessConfig,
    /// Indices into `config.acl`, by identity.
    by_identity: HashMap<String, Vec<usize>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopicAction {
    Publish,
    Subscribe,
}

impl AccessRules {
    fn new(config: &AccessConfig) -> Self {
        let mut by_identity: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, line) in config.acl.iter().enumerate() {
            by_identity.entry(line.identity.clone()).or_default().push(index);
        }
        Self { config: config.clone(), by_identity }
    }

    fn lines(&self, key: &str) -> impl Iterator<Item = &AclLine> {
        self.by_identity.get(key).into_iter().flatten().map(|&index| &self.config.acl[index])
    }

    /// Whether the configuration explicitly grants `wanted`, a topic or a filter, to `who`.
    fn grants(&self, who: Identity, doing: TopicAction, wanted: &str) -> bool {
        let keys = match who {
            Identity { anonymous: true, .. } => [ANONYMOUS, ""],
            // An authenticated identity named "anonymous" does not get the grants of anonymous clients.
            Identity { name: ANONYMOUS, .. } => [EVERYBODY, ""],
            Identity { name, .. } => [name, EVERYBODY],
        };
        let filters = |line: &AclLine| match doing {
            TopicAction::Publish => line.publish.iter().any(|filter| covers(filter, who.name, wanted)),
            TopicAction::Subscribe => line.subscribe.iter().any(|filter| covers(filter, who.name, wanted)),
        };
        if keys.iter().any(|key| self.lines(key).any(filters)) {
            return true;
        }
        let subtrees = self.config.prefixes.get(who.name).filter(|_| !who.anonymous);
        doing == TopicAction::Publish
            && subtrees.is_some_and(|subtrees| subtrees.iter().any(|subtree| within(wanted, subtree)))
    }

    /// Whether ordinary topics are open to `who`. If anonymous clients may use them, everybody may: a client could simply omit its certificate.
    fn is_open(&self) -> bool {
        self.config.anonymous && !self.by_identity.contains_key(ANONYMOUS)
    }

    /// Whether `who` publishes below its own name. Agents in `[mqtt.prefixes]`, and anonymous clients with an ACL line, publish only where that
    /// says.
    fn has_home(&self, who: Identity) -> bool {
        !self.config.prefixes.contains_key(who.name) && (!who.anonymous || !self.by_identity.contains_key(ANONYMOUS))
    }
}

/// Whether a topic or filter lies at or below a sensor path.
fn within(wanted: &str, subtree: &SensorPath) -> bool {
    wanted.strip_prefix(subtree.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn taken(taken: &OwnedPrefix) -> String {
    format!(
        "{} belongs to {:?}, which announced it first; give each agent a prefix of its own, or grant it explicitly in \
         [[mqtt.acl]] or [mqtt.prefixes] of server.toml",
        taken.prefix, taken.owner
    )
}

impl Access {
    /// Creates the rules, and the owners of the prefixes that the store knows; the first owner wins.
    pub fn new<'a>(config: &AccessConfig, known: impl IntoIterator<Item = (&'a SensorPath, &'a str)>) -> Self {
        let access = Self {
            rules: RwLock::new(Arc::new(AccessRules::new(config))),
            owners: RwLock::default(),
            generation: AtomicU64::new(0),
        };
        let known: Vec<(&SensorPath, &str)> = known.into_iter().collect();
        let mut owners = access.owners.write().unwrap_or_else(PoisonError::into_inner);
        // Prefixes below the owner's name first: a granted subtree does not become the grantee's forever.
        for at_home in [true, false] {
            let chosen = known.iter().filter(|(prefix, name)| home(prefix.as_str(), name).is_some() == at_home);
            chosen.for_each(|(prefix, name)| owners.claim(name, prefix));
        }
        drop(owners);
        access
    }

    /// Replaces the rules, as at a reload. Watchers of [`Access::generation`] check existing subscriptions again.
    pub fn replace(&self, config: &AccessConfig) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(AccessRules::new(config));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Changes whenever an allowed request may now be refused: results may be cached while it stays the same.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The number of owned prefixes.
    pub fn prefixes_owned(&self) -> usize {
        self.owners().len()
    }

    fn rules(&self) -> RwLockReadGuard<'_, Arc<AccessRules>> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn owners(&self) -> RwLockReadGuard<'_, PrefixOwners> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `who` may publish on `topic`: an ordinary topic, a sensor path, or a native topic of its own. The error is the reason for the log and
    /// the reason string. A permitted publish does not allocate, except under `text/`.
    pub fn may_publish<'a>(&self, who: impl Into<Identity<'a>>, topic: &str) -> Result<(), String> {
        let who = who.into();
        let refuse = |why: &str| Err(format!("{:?} may not publish on {:?}: {why}", who.name, quoted(topic)));
        if topic.starts_with('$') {
            return refuse("topics that begin with $ are reserved for the server");
        }
        if topic.starts_with(topics::ROOT) {
            return match Topic::parse(topic) {
                Some(
                    Topic::Batch { agent, .. }
                    | Topic::Schema { agent, .. }
                    | Topic::Job { agent }
                    | Topic::Response { agent },
                ) if agent == who.name => Ok(()),
                Some(Topic::Need { .. } | Topic::Control { .. }) => refuse("only the server publishes there"),
                Some(_) => refuse("a client may publish under its own name only"),
                None => refuse("the server has no such native topic"),
            };
        }
        if let Some(path) = text_topics::path(topic) {
            return self.publish_at(who, &path, topic).or_else(|why| refuse(&why));
        }
        self.publish_at(who, topic, topic).or_else(|why| refuse(&why))
    }

    fn publish_at(&self, who: Identity, path: &str, topic: &str) -> Result<(), String> {
        let rules = self.rules();
        if rules.grants(who, TopicAction::Publish, path) || rules.grants(who, TopicAction::Publish, topic) {
            return Ok(());
        }
        let at_home = rules.has_home(who) && home(path, who.name).is_some();
        if !at_home && !rules.is_open() {
            return Err(
                "neither below its own name nor granted in [[mqtt.acl]] or [mqtt.prefixes] of server.toml".into()
            );
        }
        match self.owners().around(who.name, path) {
            Some(other) => Err(taken(&other)),
            None => Ok(()),
        }
    }

    /// Whether `who` may subscribe to `filter`, which may be shared: only if everything it matches is allowed.
    pub fn may_subscribe<'a>(&self, who: impl Into<Identity<'a>>, filter: &str) -> Result<(), String> {
        let who = who.into();
        let plain = mqtt::shared(filter).map_or(filter, |shared| shared.filter);
        let path = text_topics::path(plain);
        let path = path.as_deref().unwrap_or(plain);
        let rules = self.rules();
        if rules.grants(who, TopicAction::Subscribe, plain) || rules.grants(who, TopicAction::Subscribe, path) {
            return Ok(());
        }
        if plain.starts_with('$') {
            return Err(format!(
                "{:?} may not subscribe to {:?}: nothing under $ is granted",
                who.name,
                quoted(filter)
            ));
        }
        if rules.is_open() || self.own_native(who, plain) || self.own_subtree(&rules, who, path) {
            return Ok(());
        }
        Err(format!(
            "{:?} may not subscribe to {:?}: all matching topics must be below its own name or granted in [[mqtt.acl]] of \
             server.toml",
            who.name,
            quoted(filter)
        ))
    }

    /// The client's own `wholegrain/v1/{need,control,batch,schema}/<name>` topics, and those below the latter two.
    fn own_native(&self, who: Identity, filter: &str) -> bool {
        let Some((kind, rest)) = filter.strip_prefix(topics::ROOT).and_then(|rest| rest.split_once('/')) else {
            return false;
        };
        match (kind, rest.split_once('/')) {
            ("need" | "control", None) => rest == who.name,
            ("batch" | "schema", Some((agent, _))) => agent == who.name,
            _ => false,
        }
    }

    fn own_subtree(&self, rules: &AccessRules, who: Identity, path: &str) -> bool {
        if path.split('/').next() == Some(NATIVE) || (who.anonymous && !rules.has_home(who)) {
            return false;
        }
        let owners = self.owners();
        match home(path, who.name) {
            Some(home) => owners.around(who.name, home).is_none() && owners.below(who.name, home).is_none(),
            None => {
                let granted = rules.config.prefixes.get(who.name).filter(|_| !who.anonymous);
                granted.is_some_and(|subtrees| subtrees.iter().any(|subtree| within(path, subtree)))
            }
        }
    }

    /// Whether `who` may announce schemas with sensors below `prefix`, and publish their batches.
    pub fn may_publish_below<'a>(&self, who: impl Into<Identity<'a>>, prefix: &SensorPath) -> Result<(), String> {
        let owners = self.owners();
        self.check_below(&owners, who.into(), prefix)
    }

    /// The same; the prefix also becomes `who`'s if nobody owned it.
    pub fn claim<'a>(&self, who: impl Into<Identity<'a>>, prefix: &SensorPath) -> Result<(), String> {
        let who = who.into();
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        self.check_below(&owners, who, prefix)?;
        let before = owners.len();
        owners.claim(who.name, prefix);
        if owners.len() != before {
            self.generation.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    fn check_below(&self, owners: &PrefixOwners, who: Identity, prefix: &SensorPath) -> Result<(), String> {
        let rules = self.rules();
        if rules.grants(who, TopicAction::Publish, &format!("{prefix}/#")) {
            return Ok(());
        }
        let name = who.name;
        if !rules.has_home(who) || home(prefix.as_str(), name).is_none() {
            return Err(format!(
                "agent {name:?} may not publish below {prefix}: give it a prefix with {name:?} as a level, or list it in the \
                 server's [mqtt.prefixes]"
            ));
        }
        match owners.around(name, prefix.as_str()).or_else(|| owners.obstacle(name, prefix.as_str())) {
            Some(other) => Err(format!("agent {name:?} may not publish below {prefix}: {}", taken(&other))),
            None => Ok(()),
        }
    }

    /// Whether `who` may write all sensors of a schema below whose prefix it may publish: sensors that another agent had there before stay that
    /// agent's.
    pub fn may_write<'a>(&self, who: impl Into<Identity<'a>>, schema: &Schema) -> Result<(), String> {
        let (who, prefix) = (who.into(), schema.prefix());
        let owners = self.owners();
        if owners.below(who.name, prefix.as_str()).is_none()
            || self.rules().grants(who, TopicAction::Publish, &format!("{prefix}/#"))
        {
            return Ok(());
        }
        let other = (0..schema.len()).find_map(|at| owners.around(who.name, &schema.path(at)));
        match other {
            Some(other) => {
                Err(format!("agent {:?} may not write all sensors of this schema: {}", who.name, taken(&other)))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
