//! What the servers share but for readings: schemas, schemaless sensors, and what users set. A schema's name is the hash of its content, and a
//! sensor's name is its path, so that no two servers can give a name twice.

use std::collections::{HashMap, HashSet};

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use wholegrain_model::{Kind, Schema, SchemaHash, SensorPath, ValueType};
use wholegrain_store::{SchemalessSensor, SensorInfo, Store, StoreError};

use crate::session::CassandraSession;
use crate::settings::SharedSettings;

/// Partitions of the table of schemaless sensors.
const SHARDS: u8 = 64;
/// The kinds of changes in the table of changes.
const KIND_SCHEMA: i8 = 1;
const KIND_SENSOR: i8 = 2;
const KIND_SETTINGS: i8 = 3;
/// Writes at the same time.
const WRITES_MAX: usize = 64;
const MINUTE_US: i64 = 60_000_000;
/// The table of changes is read from this long before the newest change that is known: clocks differ.
const OVERLAP_US: i64 = 15_000_000;

/// A schemaless sensor as the table has it.
#[derive(Serialize, Deserialize)]
struct SensorDefinition {
    unit: String,
    counter: bool,
    float: bool,
    scale: f64,
    description: String,
}

/// A row of the table of sensors: path, source, definition.
type SensorRow = (String, Option<String>, Option<String>);

/// Exchanges schemas and schemaless sensors with the other servers.
pub(crate) struct SharedCatalogue {
    /// The number of the first sensor that was not looked at yet.
    sensors_seen: usize,
    /// Schemas, and hashes of the paths of schemaless sensors, that are in Cassandra.
    schemas: HashSet<[u8; 16]>,
    sensors: HashSet<[u8; 16]>,
    settings: SharedSettings,
    /// The time to which changes were read, microseconds since the Unix epoch.
    read_to: i64,
}

/// A short name of a path that no other path has.
fn name_of(path: &str) -> [u8; 16] {
    SchemaHash::of(path.as_bytes()).0
}

fn shard_of(path: &str) -> i8 {
    (crc32c::crc32c(path.as_bytes()) % u32::from(SHARDS)) as i8
}

impl SharedCatalogue {
    /// Registers everything that the servers share in the local store, and writes what only the local store has.
    pub async fn open(session: &CassandraSession, local: &Store, server: i16, stamp: i64) -> Result<Self, StoreError> {
        // Before the tables are read: a change during the reading is read again.
        let mut catalogue = Self {
            sensors_seen: 0,
            schemas: HashSet::new(),
            sensors: HashSet::new(),
            settings: SharedSettings::default(),
            read_to: stamp,
        };
        let doing = "reading the schemas";
        let mut schemas = Vec::new();
        for (hash, body) in session.rows::<(Vec<u8>, Vec<u8>)>(doing, "SELECT hash, body FROM $.schemas", ()).await? {
            let schema = Schema::decode(&body);
            let schema = schema.map_err(|error| StoreError::Remote { doing, reason: error.to_string() })?;
            if hash == schema.hash().0 {
                catalogue.schemas.insert(schema.hash().0);
                schemas.push(schema);
            }
        }
        local.register_schemas(&schemas).into_iter().collect::<Result<(), _>>()?;
        for shard in 0..SHARDS {
            let text = "SELECT path, source, definition FROM $.sensors WHERE shard = ?";
            let rows = session.rows::<SensorRow>("reading the sensors", text, (shard.cast_signed(),)).await?;
            catalogue.sensors.extend(rows.iter().map(|row| name_of(&row.0)));
            rows.into_iter().try_for_each(|row| register_sensor(local, row))?;
        }
        catalogue.settings = SharedSettings::open(session, local, server).await?;
        Ok(catalogue)
    }

    /// Whether no sensor was registered here since the last [`SharedCatalogue::send`].
    pub fn is_sent(&self, local: &Store) -> bool {
        local.sensor_numbers().0 == self.sensors_seen
    }

    /// Writes schemas and sensors that were registered here since the last call. `stamp` gives numbers for the changes.
    pub async fn send(
        &mut self,
        session: &CassandraSession,
        local: &Store,
        server: i16,
        stamp: &(dyn Fn() -> i64 + Sync),
    ) -> Result<(), StoreError> {
        for kind in self.settings.send(session, local, server).await? {
            write_change(session, server, stamp(), KIND_SETTINGS, kind.as_bytes()).await?;
        }
        let (next, _) = local.sensor_numbers();
        if next == self.sensors_seen {
            return Ok(());
        }
        let (mut schemas, mut sensors) = (HashMap::new(), Vec::new());
        for path in local.sensor_paths_from(self.sensors_seen) {
            let Some(id) = local.sensor_id(&path) else { continue };
            let columns = local.schema_columns(id);
            if columns.is_empty() && !self.sensors.contains(&name_of(&path)) {
                sensors.extend(local.sensor(id));
            }
            let unknown = columns.into_iter().filter(|(schema, _)| !self.schemas.contains(&schema.hash().0));
            schemas.extend(unknown.map(|(schema, _)| (schema.hash().0, schema)));
        }
        let write_schema = async |schema: Schema| {
            let hash = schema.hash().0;
            let insert = "INSERT INTO $.schemas (hash, body) VALUES (?, ?)";
            session.write_once("writing a schema", insert, (hash.as_slice(), schema.encode())).await?;
            write_change(session, server, stamp(), KIND_SCHEMA, &hash).await?;
            Ok::<_, StoreError>(hash)
        };
        let written = futures_util::stream::iter(schemas.into_values().map(write_schema)).buffer_unordered(WRITES_MAX);
        let mut written = std::pin::pin!(written);
        // What was written before an error is not written again.
        while let Some(hash) = written.next().await {
            self.schemas.insert(hash?);
        }
        let write_sensor = async |info: SensorInfo| {
            let definition = SensorDefinition {
                unit: info.unit,
                counter: info.kind == Kind::Counter,
                float: info.value_type == ValueType::Float,
                scale: info.scale,
                description: info.description,
            };
            let definition = serde_json::to_string(&definition).unwrap_or_default();
            let insert = "INSERT INTO $.sensors (shard, path, source, definition) VALUES (?, ?, ?, ?)";
            let values = (shard_of(&info.path), &*info.path, &*info.agent, definition);
            session.write_once("writing a sensor", insert, values).await?;
            write_change(session, server, stamp(), KIND_SENSOR, info.path.as_bytes()).await?;
            Ok::<_, StoreError>(name_of(&info.path))
        };
        let written = futures_util::stream::iter(sensors.into_iter().map(write_sensor)).buffer_unordered(WRITES_MAX);
        let mut written = std::pin::pin!(written);
        while let Some(name) = written.next().await {
            self.sensors.insert(name?);
        }
        self.sensors_seen = next;
        Ok(())
    }

    /// Registers what other servers have written since the last call. `now` is a time in microseconds.
    pub async fn receive(&mut self, session: &CassandraSession, local: &Store, now: i64) -> Result<(), StoreError> {
        let from = self.read_to.saturating_sub(OVERLAP_US);
        // A server whose clock is ahead writes into a minute that has not begun here.
        for minute in from.div_euclid(MINUTE_US)..=now.saturating_add(OVERLAP_US).div_euclid(MINUTE_US) {
            let text = "SELECT kind, key FROM $.changes WHERE minute = ? AND at >= ?";
            let rows = session.rows::<(i8, Vec<u8>)>("reading changes", text, (minute, from)).await?;
            for (kind, key) in rows {
                self.apply(session, local, kind, &key).await?;
            }
        }
        self.read_to = self.read_to.max(now);
        Ok(())
    }

    async fn apply(
        &mut self,
        session: &CassandraSession,
        local: &Store,
        kind: i8,
        key: &[u8],
    ) -> Result<(), StoreError> {
        match kind {
            KIND_SCHEMA => {
                let Ok(hash) = <[u8; 16]>::try_from(key) else { return Ok(()) };
                if !self.schemas.contains(&hash) {
                    let doing = "reading a schema";
                    let text = "SELECT body FROM $.schemas WHERE hash = ?";
                    for (body,) in session.rows::<(Vec<u8>,)>(doing, text, (key,)).await? {
                        let schema = Schema::decode(&body);
                        let schema = schema.map_err(|error| StoreError::Remote { doing, reason: error.to_string() })?;
                        local.register_schema(&schema)?;
                    }
                    self.schemas.insert(hash);
                }
            }
            KIND_SENSOR => {
                let path = String::from_utf8_lossy(key).into_owned();
                if !self.sensors.contains(&name_of(&path)) {
                    let text = "SELECT path, source, definition FROM $.sensors WHERE shard = ? AND path = ?";
                    let rows = session.rows::<SensorRow>("reading a sensor", text, (shard_of(&path), path.as_str()));
                    rows.await?.into_iter().try_for_each(|row| register_sensor(local, row))?;
                    self.sensors.insert(name_of(&path));
                }
            }
            KIND_SETTINGS => {
                let kind = String::from_utf8_lossy(key).into_owned();
                self.settings.receive(session, local, &kind).await?;
            }
            _ => {}
        }
        Ok(())
    }
}

async fn write_change(
    session: &CassandraSession,
    server: i16,
    at: i64,
    kind: i8,
    key: &[u8],
) -> Result<(), StoreError> {
    let insert = "INSERT INTO $.changes (minute, at, server, kind, key) VALUES (?, ?, ?, ?, ?) USING TTL 86400";
    session.write_once("writing a change", insert, (at.div_euclid(MINUTE_US), at, server, kind, key)).await
}

/// Registers a schemaless sensor, also if a schema defines it here: chunks can have its readings of before.
fn register_sensor(local: &Store, (path, source, definition): SensorRow) -> Result<(), StoreError> {
    if local.sensor_id(&path).is_some_and(|id| local.is_schemaless(id)) {
        return Ok(());
    }
    let doing = "reading a sensor";
    let wrong = |reason: String| StoreError::Remote { doing, reason: format!("{path}: {reason}") };
    let definition: SensorDefinition =
        serde_json::from_str(&definition.unwrap_or_default()).map_err(|error| wrong(error.to_string()))?;
    let sensor = SchemalessSensor {
        path: SensorPath::new(path.as_str()).map_err(|error| wrong(error.to_string()))?,
        unit: definition.unit,
        kind: if definition.counter { Kind::Counter } else { Kind::Gauge },
        value_type: if definition.float { ValueType::Float } else { ValueType::Int },
        scale: definition.scale,
        description: definition.description,
    };
    local.register_sensors(source.as_deref().unwrap_or_default(), &[sensor]).map(drop)
}
