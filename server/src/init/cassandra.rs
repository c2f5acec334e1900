//! Creates the keyspace of a store in Cassandra.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::ServerConfig;

/// Creates the keyspace that the configuration of an installation names, with its tables, or brings them up to date. Returns its name.
pub fn init_cassandra(dir: &Path) -> anyhow::Result<String> {
    let places: [PathBuf; 2] = [dir.join("server/server.toml"), dir.join("server.toml")];
    let Some(path) = places.iter().find(|path| path.exists()) else {
        bail!("there is no {} and no {}; `wholegrain init` makes one", places[0].display(), places[1].display());
    };
    let config = ServerConfig::load(path)?;
    let Some(settings) = config.cassandra else {
        bail!(
            "{} has no store in Cassandra; write kind = \"cassandra\" in [store], and contact_points in [store.cassandra]",
            path.display()
        );
    };
    wholegrain_cassandra::create(&settings.load()?, &settings.options)
        .with_context(|| format!("cannot create the keyspace {}", settings.keyspace))?;
    Ok(settings.keyspace)
}
