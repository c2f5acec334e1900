//! Roles of tokens over HTTP, and their permissions.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Admin,
    /// Reads readings, metrics and status. Changes nothing.
    Support,
    User,
    /// Writes readings and reads nothing.
    Agent,
}

/// The permission that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    Open,
    /// Read readings, sensors and jobs.
    Read,
    /// Read the server's status.
    Status,
    Write,
    /// See and change the sampling of one's own jobs; administrators, of all jobs.
    Steer,
    Manage,
}

impl Role {
    /// All roles, the most powerful first.
    pub const ALL: [Role; 4] = [Role::Admin, Role::Support, Role::User, Role::Agent];

    /// The name in files and commands.
    pub fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Support => "support",
            Role::User => "user",
            Role::Agent => "agent",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    pub fn may(self, permission: Permission) -> bool {
        let roles: &[Role] = match permission {
            Permission::Open => &Role::ALL,
            Permission::Read => &[Role::Admin, Role::Support, Role::User],
            Permission::Status => &[Role::Admin, Role::Support],
            Permission::Write => &[Role::Admin, Role::Agent],
            Permission::Steer => &[Role::Admin, Role::User],
            Permission::Manage => &[Role::Admin],
        };
        roles.contains(&self)
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Permission {
    /// The allowed action, as a phrase after "may not".
    pub fn doing(self) -> &'static str {
        match self {
            Permission::Open => "call this",
            Permission::Read => "read readings",
            Permission::Status => "see the server's metrics and status",
            Permission::Write => "write readings",
            Permission::Steer => "change what is sampled of jobs",
            Permission::Manage => "change the server",
        }
    }

    /// The roles that have it, for messages.
    pub fn roles(self) -> String {
        let names: Vec<&str> = Role::ALL.into_iter().filter(|role| role.may(self)).map(Role::name).collect();
        names.join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_permissions() {
        for (permission, roles) in [
            (Permission::Open, "admin or support or user or agent"),
            (Permission::Read, "admin or support or user"),
            (Permission::Status, "admin or support"),
            (Permission::Write, "admin or agent"),
            (Permission::Steer, "admin or user"),
            (Permission::Manage, "admin"),
        ] {
            assert_eq!(permission.roles(), roles, "{permission:?}");
        }
        for role in Role::ALL {
            assert_eq!(Role::parse(role.name()), Some(role));
        }
    }
}
