//! `[store.cassandra]`: the store in Cassandra.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use wholegrain_cassandra::{CassandraConfig, ConsistencyLevel, KeyspaceOptions, check_keyspace};
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_transport::tls::Identity;

use crate::settings::LIMIT_TIME;

/// Default of the time after which a request to Cassandra has failed.
const TIMEOUT: Interval = Interval::from_s(10);
/// The largest number of levels of a shard.
const SHARD_LEVELS_MAX: u8 = 16;
/// Port of clients of Cassandra.
const PORT: u16 = 9042;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawCassandra {
    contact_points: Vec<String>,
    keyspace: Option<String>,
    replication: BTreeMap<String, u32>,
    shard_levels: u8,
    data_centre: Option<String>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    read_consistency: Option<ConsistencyLevel>,
    write_consistency: Option<ConsistencyLevel>,
    timeout: Option<Interval>,
    name: Option<String>,
}

/// The checked settings. Files are read when the server starts.
#[derive(Debug, Clone)]
pub struct CassandraSettings {
    contact_points: Vec<String>,
    pub keyspace: String,
    pub options: KeyspaceOptions,
    data_centre: Option<String>,
    user: Option<(String, PathBuf)>,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    read_consistency: ConsistencyLevel,
    write_consistency: ConsistencyLevel,
    timeout: Duration,
    name: Option<String>,
}

impl RawCassandra {
    /// Checks the section; relative paths are below `base`.
    pub(super) fn check(self, section: &Section, base: &Path) -> Result<CassandraSettings, ConfigError> {
        if self.contact_points.is_empty() {
            let message = "names no node of Cassandra; write contact_points = [\"10.0.0.1:9042\"]";
            return Err(section.error("contact_points", message));
        }
        let keyspace = self.keyspace.unwrap_or_else(|| "wholegrain".to_owned());
        check_keyspace(&keyspace).map_err(|message| section.error("keyspace", message))?;
        if let Some((centre, _)) = self.replication.iter().find(|(_, replicas)| **replicas == 0) {
            return Err(section.error("replication", format!("has no replica in {centre}; write {{ {centre} = 3 }}")));
        }
        if self.shard_levels > SHARD_LEVELS_MAX {
            return Err(section.error("shard_levels", format!("is more than {SHARD_LEVELS_MAX}")));
        }
        let user = match (self.user, self.password_file) {
            (Some(user), Some(file)) => Some((user, base.join(file))),
            (None, None) => None,
            (Some(_), None) => return Err(section.error("user", "needs password_file too")),
            (None, Some(_)) => return Err(section.error("password_file", "needs user too")),
        };
        let identity = match (self.cert, self.key) {
            (Some(cert), Some(key)) => Some((base.join(cert), base.join(key))),
            (None, None) => None,
            _ => return Err(section.error("cert", "needs key, and key needs cert")),
        };
        if identity.is_some() && self.ca.is_none() {
            return Err(
                section.error("cert", "needs ca, the PEM file of the authority that signed Cassandra's certificates")
            );
        }
        let timeout = self.timeout.unwrap_or(TIMEOUT);
        if !(LIMIT_TIME.0..=LIMIT_TIME.1).contains(&timeout) {
            let message = format!("is {timeout}; write {} to {}", LIMIT_TIME.0, LIMIT_TIME.1);
            return Err(section.error("timeout", message));
        }
        let with_port = |point: String| match point.contains(':') {
            true => point,
            false => format!("{point}:{PORT}"),
        };
        Ok(CassandraSettings {
            contact_points: self.contact_points.into_iter().map(with_port).collect(),
            keyspace,
            options: KeyspaceOptions {
                replication: self.replication.into_iter().collect(),
                shard_levels: self.shard_levels,
            },
            data_centre: self.data_centre,
            user,
            ca: self.ca.map(|path| base.join(path)),
            identity,
            read_consistency: self.read_consistency.unwrap_or_default(),
            write_consistency: self.write_consistency.unwrap_or_default(),
            timeout: timeout.duration(),
            name: self.name,
        })
    }
}

impl CassandraSettings {
    /// Reads the files of password and certificates.
    pub fn load(&self) -> anyhow::Result<CassandraConfig> {
        let name = self.name.clone().unwrap_or_else(wholegrain_transport::host_name);
        let mut config = CassandraConfig::new(self.contact_points.clone(), &self.keyspace, &name);
        if let Some((user, file)) = &self.user {
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("cannot read store.cassandra.password_file {}", file.display()))?;
            config.credentials = Some((user.clone(), text.trim_end().to_owned()));
        }
        if let Some(ca) = &self.ca {
            let identity = self.identity.as_ref().map(|(cert, key)| Identity { cert, key });
            config.tls = Some(wholegrain_transport::tls::client_config(ca, identity)?);
        }
        config.data_centre = self.data_centre.clone();
        config.read_consistency = self.read_consistency;
        config.write_consistency = self.write_consistency;
        config.timeout = self.timeout;
        Ok(config)
    }
}
