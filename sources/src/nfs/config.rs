//! The settings of `[sources.nfs]`.

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::Filter;

use crate::options::{self, GroupOptions};

/// The groups of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NfsGroup {
    /// Each mount of the client, with its operations.
    Mounts,
    /// Requests of the client.
    Client,
    /// Requests to the server.
    Server,
    /// The pools of the server's threads.
    Pools,
}

impl NfsGroup {
    const ALL: [Self; 4] = [Self::Mounts, Self::Client, Self::Server, Self::Pools];

    /// The group's name in the agent.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mounts => "nfs/mounts",
            Self::Client => "nfs/client",
            Self::Server => "nfs/server",
            Self::Pools => "nfs/pools",
        }
    }
}

/// The keys of the source's table besides those of [`GroupOptions`], and the tables of its groups.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NfsKeys {
    groups: Vec<NfsGroup>,
    points: Filter,
    mounts_max: usize,
    all_operations: bool,
    mounts: GroupOptions,
    client: GroupOptions,
    server: GroupOptions,
    pools: GroupOptions,
}

impl Default for NfsKeys {
    fn default() -> Self {
        Self {
            groups: NfsGroup::ALL.to_vec(),
            points: Filter::default(),
            mounts_max: 128,
            all_operations: false,
            mounts: GroupOptions::default(),
            client: GroupOptions::default(),
            server: GroupOptions::default(),
            pools: GroupOptions::default(),
        }
    }
}

/// The checked settings of the source.
#[derive(Debug, Default)]
pub struct NfsConfig {
    pub common: GroupOptions,
    /// The enabled groups, each once.
    pub groups: Vec<(NfsGroup, GroupOptions)>,
    /// Filters by the mount point.
    pub points: Filter,
    pub mounts_max: usize,
    /// Whether operations that never happened have sensors.
    pub all_operations: bool,
}

impl NfsConfig {
    /// Reads and checks the table of the source.
    pub fn read(section: &Section) -> Result<Self, ConfigError> {
        let (common, keys): (GroupOptions, NfsKeys) = options::read(section)?;
        let all = [
            (NfsGroup::Mounts, "mounts", keys.mounts),
            (NfsGroup::Client, "client", keys.client),
            (NfsGroup::Server, "server", keys.server),
            (NfsGroup::Pools, "pools", keys.pools),
        ];
        let mut groups = Vec::new();
        for (group, key, options) in all {
            options.check(&section.child(key))?;
            if keys.groups.contains(&group) {
                groups.push((group, options));
            }
        }
        let NfsKeys { points, mounts_max, all_operations, .. } = keys;
        Ok(Self { common, groups, points, mounts_max, all_operations })
    }
}
