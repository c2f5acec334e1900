//! Who may do what: topics and prefixes over MQTT, roles over HTTP.
//!
//! - In: the configuration, the files of users and tokens, the store's schemas; an identity and what it wants.
//! - Out: yes, or no with the reason.
//! - Never: who somebody is taken on trust where it can be proved; a secret in a log line, an answer or a file.
//!
//! The defaults: an agent publishes at and below paths of which a level is its own name, unless another agent was there
//! first; it subscribes to its own subtree and its own native topics. Everything else is granted by the configuration.

pub mod audit;
mod config;
pub mod files;
mod filter;
pub mod logins;
mod owners;
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

use crate::broker::log_limit::quoted;
pub use config::{
    ACL_FILTERS_MAX, ACL_LINES_MAX, AUDIT_BYTES, AUDIT_FILE, AUDIT_FILES_MAX, AccessConfig, AclLine,
    LOGIN_FAILURES_MAX, LOGIN_TIME, REVOKED_FILE, SecurityConfig,
};
pub(crate) use config::{RawSecurity, check};
use filter::covers;
use owners::{Owners, Taken};
pub use role::{Permission, Role};
pub use security::{BadBearer, BadLogin, LOOK_EVERY, Security};
pub(crate) use security::{bearer_name, seconds};

/// In `[[mqtt.acl]]`: clients that proved no identity.
pub const ANONYMOUS: &str = "anonymous";
/// In `[[mqtt.acl]]`: everybody who proved one.
pub const EVERYBODY: &str = "*";
/// What topics of readings as text begin with; the rest is the sensor's path without its first `/`.
pub const TEXT_ROOT: &str = "text/";
/// The first level of native topics.
const NATIVE: &str = "wholegrain";

/// Who asks: a proved identity, or the name that an anonymous client gave itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who<'a> {
    /// The agent's or the user's name.
    pub name: &'a str,
    /// Whether it was only claimed.
    pub anonymous: bool,
}

impl<'a> From<&'a str> for Who<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, anonymous: false }
    }
}

impl<'a> From<&'a String> for Who<'a> {
    fn from(name: &'a String) -> Self {
        Self::from(name.as_str())
    }
}

/// Decides what an identity may publish and subscribe to. Shared by all connections; [`Access::replace`] changes its rules.
#[derive(Debug)]
pub struct Access {
    rules: RwLock<Arc<Rules>>,
    owners: RwLock<Owners>,
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Rules {
    config: AccessConfig,
    /// Indices into `config.acl`.
    by_identity: HashMap<String, Vec<usize>>,
}

/// Publishing or subscribing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Publish,
    Subscribe,
}

impl Rules {
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

    /// Whether the configuration grants `wanted`, a topic or a filter, to `who` in so many words.
    fn grants(&self, who: Who, doing: Doing, wanted: &str) -> bool {
        let keys = match who {
            Who { anonymous: true, .. } => [ANONYMOUS, ""],
            // Nobody gets what is meant for anonymous clients by being called so.
            Who { name: ANONYMOUS, .. } => [EVERYBODY, ""],
            Who { name, .. } => [name, EVERYBODY],
        };
        let filters = |line: &AclLine| match doing {
            Doing::Publish => line.publish.iter().any(|filter| covers(filter, who.name, wanted)),
            Doing::Subscribe => line.subscribe.iter().any(|filter| covers(filter, who.name, wanted)),
        };
        if keys.iter().any(|key| self.lines(key).any(filters)) {
            return true;
        }
        let subtrees = self.config.prefixes.get(who.name).filter(|_| !who.anonymous);
        doing == Doing::Publish
            && subtrees.is_some_and(|subtrees| subtrees.iter().any(|subtree| within(wanted, subtree)))
    }

    /// Whether `who` may do everything that is nobody else's. Where anonymous clients may, everybody may: leaving the
    /// certificate at home would be all it takes.
    fn is_open(&self) -> bool {
        self.config.anonymous && !self.by_identity.contains_key(ANONYMOUS)
    }

    /// Whether `who` publishes below its own name; agents in `[mqtt.prefixes]` and anonymous clients with a line of their own
    /// publish only where that says.
    fn has_home(&self, who: Who) -> bool {
        !self.config.prefixes.contains_key(who.name) && (!who.anonymous || !self.by_identity.contains_key(ANONYMOUS))
    }
}

/// Whether a topic or filter lies at or below a sensor path, wherever it goes from there.
fn within(wanted: &str, subtree: &SensorPath) -> bool {
    wanted.strip_prefix(subtree.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The end of the path down to the level `name`, if it is there before any wildcard: what a client of this name calls its own.
fn home<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let mut end = 0;
    for level in path.split('/') {
        if matches!(level, "+" | "#") {
            return None;
        }
        end += level.len();
        if level == name && !name.is_empty() {
            return Some(&path[..end]);
        }
        end += 1;
    }
    None
}

/// The sensor path, or filter of paths, that a topic under `text/` stands for.
fn text_path(topic: &str) -> Option<String> {
    topic.strip_prefix(TEXT_ROOT).map(|rest| format!("/{rest}"))
}

fn taken(taken: &Taken) -> String {
    format!(
        "{} belongs to {:?}, which announced it first; give each agent a prefix of its own, or grant it explicitly in \
         [[mqtt.acl]] or [mqtt.prefixes] of server.toml",
        taken.prefix, taken.owner
    )
}

impl Access {
    /// With these rules, and with the owners of prefixes that the store knows, first come first.
    pub fn new<'a>(config: &AccessConfig, known: impl IntoIterator<Item = (&'a SensorPath, &'a str)>) -> Self {
        let access = Self {
            rules: RwLock::new(Arc::new(Rules::new(config))),
            owners: RwLock::default(),
            generation: AtomicU64::new(0),
        };
        let known: Vec<(&SensorPath, &str)> = known.into_iter().collect();
        let mut owners = access.owners.write().unwrap_or_else(PoisonError::into_inner);
        // Those below their own name first: somebody who was granted another's subtree does not take it away for good.
        for at_home in [true, false] {
            let chosen = known.iter().filter(|(prefix, name)| home(prefix.as_str(), name).is_some() == at_home);
            chosen.for_each(|(prefix, name)| owners.claim(name, prefix));
        }
        drop(owners);
        access
    }

    /// New rules, as after a reload. What is already subscribed to is judged anew by whoever watches [`Access::generation`].
    pub fn replace(&self, config: &AccessConfig) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Rules::new(config));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Changes whenever an earlier yes may have become a no: answers may be kept as long as it stays the same.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The number of prefixes that belong to somebody.
    pub fn prefixes_owned(&self) -> usize {
        self.owners().len()
    }

    fn rules(&self) -> RwLockReadGuard<'_, Arc<Rules>> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn owners(&self) -> RwLockReadGuard<'_, Owners> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `who` may publish on `topic`: an ordinary topic, a sensor's path, or a native topic of its own. The error says
    /// why not, for the log and the reason string. Allocates nothing for a yes, but under `text/`.
    pub fn may_publish<'a>(&self, who: impl Into<Who<'a>>, topic: &str) -> Result<(), String> {
        let who = who.into();
        let refuse = |why: &str| Err(format!("{:?} may not publish on {:?}: {why}", who.name, quoted(topic)));
        if topic.starts_with('$') {
            return refuse("topics that begin with $ are the server's");
        }
        if topic.starts_with(topics::ROOT) {
            return match Topic::parse(topic) {
                Some(
                    Topic::Batch { agent, .. }
                    | Topic::Schema { agent, .. }
                    | Topic::Job { agent }
                    | Topic::Answer { agent },
                ) if agent == who.name => Ok(()),
                Some(Topic::Need { .. } | Topic::Control { .. }) => refuse("only the server publishes there"),
                Some(_) => refuse("a client publishes as itself only"),
                None => refuse("not a topic that means anything here"),
            };
        }
        if let Some(path) = text_path(topic) {
            return self.publish_at(who, &path, topic).or_else(|why| refuse(&why));
        }
        self.publish_at(who, topic, topic).or_else(|why| refuse(&why))
    }

    fn publish_at(&self, who: Who, path: &str, topic: &str) -> Result<(), String> {
        let rules = self.rules();
        if rules.grants(who, Doing::Publish, path) || rules.grants(who, Doing::Publish, topic) {
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

    /// Whether `who` may subscribe to `filter`, which may be a shared one: only if all that it chooses is allowed.
    pub fn may_subscribe<'a>(&self, who: impl Into<Who<'a>>, filter: &str) -> Result<(), String> {
        let who = who.into();
        let plain = mqtt::shared(filter).map_or(filter, |shared| shared.filter);
        let path = text_path(plain);
        let path = path.as_deref().unwrap_or(plain);
        let rules = self.rules();
        if rules.grants(who, Doing::Subscribe, plain) || rules.grants(who, Doing::Subscribe, path) {
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
            "{:?} may not subscribe to {:?}: all of it would have to be below its own name or granted in [[mqtt.acl]] of \
             server.toml",
            who.name,
            quoted(filter)
        ))
    }

    /// `wholegrain/v1/{need,control,batch,schema}/<name>` and below the latter two.
    fn own_native(&self, who: Who, filter: &str) -> bool {
        let Some((kind, rest)) = filter.strip_prefix(topics::ROOT).and_then(|rest| rest.split_once('/')) else {
            return false;
        };
        match (kind, rest.split_once('/')) {
            ("need" | "control", None) => rest == who.name,
            ("batch" | "schema", Some((agent, _))) => agent == who.name,
            _ => false,
        }
    }

    fn own_subtree(&self, rules: &Rules, who: Who, path: &str) -> bool {
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

    /// Whether `who` may announce schemas, and publish their batches, whose sensors lie below `prefix`.
    pub fn may_publish_below<'a>(&self, who: impl Into<Who<'a>>, prefix: &SensorPath) -> Result<(), String> {
        let owners = self.owners();
        self.check_below(&owners, who.into(), prefix)
    }

    /// The same, and from now on the prefix belongs to `who` if it was nobody's.
    pub fn claim<'a>(&self, who: impl Into<Who<'a>>, prefix: &SensorPath) -> Result<(), String> {
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

    fn check_below(&self, owners: &Owners, who: Who, prefix: &SensorPath) -> Result<(), String> {
        let rules = self.rules();
        if rules.grants(who, Doing::Publish, &format!("{prefix}/#")) {
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

    /// Whether all sensors of a schema are `who`'s to write, who may publish below its prefix: what another agent had below it before is still that agent's.
    pub fn may_write<'a>(&self, who: impl Into<Who<'a>>, schema: &Schema) -> Result<(), String> {
        let (who, prefix) = (who.into(), schema.prefix());
        let owners = self.owners();
        if owners.below(who.name, prefix.as_str()).is_none()
            || self.rules().grants(who, Doing::Publish, &format!("{prefix}/#"))
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
