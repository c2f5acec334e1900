//! Who asks.

use serde::{Deserialize, Serialize};

/// What somebody may do on this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Admin,
    /// Sees everything, changes nothing.
    Support,
    /// Sees and changes their own jobs, within the limits.
    User,
}

/// Somebody who asks, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerIdentity {
    /// For the log, such as `uid 1000 (alice) pid 4242`, `token ops (192.0.2.7)` or `alice through the server`.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// The user they are on this node, if they are one.
    pub uid: Option<u32>,
    /// The user's name, where a token or the server gives a name in place of a uid.
    pub user: Option<String>,
    /// The process at the other end of a Unix socket.
    pub pid: Option<i32>,
}

impl CallerIdentity {
    /// Whether a job with this uid and user name is theirs.
    pub fn owns(&self, uid: Option<u32>, user: Option<&str>) -> bool {
        let same_uid = self.uid.is_some() && self.uid == uid;
        let same_user = self.user.is_some() && self.user.as_deref() == user;
        same_uid || same_user
    }

    /// What tells this caller from others where something is counted for each.
    pub fn key(&self) -> String {
        match (self.uid, &self.user) {
            (Some(uid), _) => format!("uid {uid}"),
            (None, Some(user)) => format!("user {user}"),
            (None, None) => self.name.clone(),
        }
    }
}
