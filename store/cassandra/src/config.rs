//! The settings of a store in Cassandra.

use std::sync::Arc;
use std::time::Duration;

use scylla::statement::Consistency;
use serde::Deserialize;
use wholegrain_store::Clock;

/// How many replicas answer before a request has succeeded. Two that add up to more replicas than there are see each other's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsistencyLevel {
    One,
    LocalOne,
    Quorum,
    #[default]
    LocalQuorum,
    EachQuorum,
    All,
}

impl ConsistencyLevel {
    pub(crate) fn of_driver(self) -> Consistency {
        match self {
            Self::One => Consistency::One,
            Self::LocalOne => Consistency::LocalOne,
            Self::Quorum => Consistency::Quorum,
            Self::LocalQuorum => Consistency::LocalQuorum,
            Self::EachQuorum => Consistency::EachQuorum,
            Self::All => Consistency::All,
        }
    }
}

/// How a server reaches Cassandra, and what it is called there.
#[derive(Clone)]
pub struct CassandraConfig {
    /// Addresses of some nodes, each `host` or `host:port`.
    pub contact_points: Vec<String>,
    pub keyspace: String,
    pub credentials: Option<(String, String)>,
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Nodes of this data centre are asked; `None`: any node.
    pub data_centre: Option<String>,
    pub read_consistency: ConsistencyLevel,
    pub write_consistency: ConsistencyLevel,
    /// The time after which a request has failed.
    pub timeout: Duration,
    /// How long a deletion waits for Cassandra and for the other servers.
    pub deletion_timeout: Duration,
    /// The name of this server, unique among those that share the keyspace.
    pub server: String,
    /// Orders uploads and changes.
    pub clock: Clock,
}

impl CassandraConfig {
    /// The defaults, for these nodes and this server.
    pub fn new(contact_points: Vec<String>, keyspace: &str, server: &str) -> Self {
        Self {
            contact_points,
            keyspace: keyspace.to_owned(),
            credentials: None,
            tls: None,
            data_centre: None,
            read_consistency: ConsistencyLevel::default(),
            write_consistency: ConsistencyLevel::default(),
            timeout: Duration::from_secs(10),
            deletion_timeout: Duration::from_secs(30),
            server: server.to_owned(),
            clock: Clock::default(),
        }
    }
}

/// What [`crate::create`] makes a keyspace with.
#[derive(Debug, Clone)]
pub struct KeyspaceOptions {
    /// The number of replicas in each data centre; empty: one replica, without regard to data centres.
    pub replication: Vec<(String, u32)>,
    /// The sub-trees of this many levels are the partitions; 0: the sub-tree of each agent.
    pub shard_levels: u8,
}

/// Whether a name can be a keyspace: a letter, then letters, digits and underscores, at most 48 in all.
pub fn check_keyspace(name: &str) -> Result<(), String> {
    let is_valid = name.len() <= 48
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    match is_valid {
        true => Ok(()),
        false => Err(format!("keyspace = {name:?}: use a lower-case letter, then letters, digits and _, at most 48")),
    }
}
