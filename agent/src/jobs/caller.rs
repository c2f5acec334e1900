//! The identity of a caller.

use serde::{Deserialize, Serialize};

/// The rights of a caller on this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Admin,
    /// Reads everything, changes nothing.
    Support,
    /// Reads and changes their own jobs, within the limits.
    User,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerIdentity {
    /// For the log, such as `uid 1000 (alice) pid 4242`, `token ops (192.0.2.7)` or `alice through the server`.
    pub name: String,
    pub role: Role,
    /// The caller's uid on this node.
    pub uid: Option<u32>,
    /// The user's name, if a token or the server gives a name instead of a uid.
    pub user: Option<String>,
    /// The peer of a Unix socket.
    pub pid: Option<i32>,
}

impl CallerIdentity {
    /// An administrator, or the agent itself, who is no user of the node.
    pub fn admin(name: impl Into<String>) -> Self {
        Self { name: name.into(), role: Role::Admin, uid: None, user: None, pid: None }
    }

    /// Whether the caller owns a job with this uid and user name.
    pub fn owns(&self, uid: Option<u32>, user: Option<&str>) -> bool {
        let same_uid = self.uid.is_some() && self.uid == uid;
        let same_user = self.user.is_some() && self.user.as_deref() == user;
        same_uid || same_user
    }

    /// The key for counts and limits of one caller.
    pub fn key(&self) -> String {
        match (self.uid, &self.user) {
            (Some(uid), _) => format!("uid {uid}"),
            (None, Some(user)) => format!("user {user}"),
            (None, None) => self.name.clone(),
        }
    }
}
