//! The catalogue: the database of schemas, sensors, blocks, and the batches in the blocks. One transaction makes a seal, a merge or a drop true.

pub(crate) mod imports;

use std::collections::{HashMap, HashSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use wholegrain_model::{Schema, SchemaHash, SensorPath};

use crate::block::record::BlockRecord;
use crate::catalogue::imports::{ImportRecord, Imports};
use crate::database::{self, DatabaseFile, copy_file, fail, in_memory};
use crate::disk::{Disk, read_file};
use crate::progress::ProgressLog;
use crate::ranges::{RangeSet, StoredBatches};
use crate::sensors::plan::SchemaRegistration;
use crate::sensors::{GroupState, SchemalessProperties, Sensors};
use crate::{SensorId, StoreError};

/// Version of the catalogue's tables. Another one is refused.
const FORMAT_VERSION: u64 = 4;
/// How often a catalogue that is being written is copied again before it is reported as damaged, and the pause between.
const COPIES_MAX: usize = 20;
const COPY_WAIT: std::time::Duration = std::time::Duration::from_millis(50);
/// Checking a larger catalogue takes so long that it is logged, in bytes.
const LARGE_BYTES: u64 = 256 << 20;
/// Memory for the database's pages, in bytes.
const CACHE_BYTES: usize = 8 << 20;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Hash -> (number of its latest registration, number of its first sensor, name of its list of sensors, prefix, group). Where the number is not
/// [`SINGLY`], the sensors have that one and those after it, in their order, and are not in [`SENSORS`].
const ANNOUNCED: TableDefinition<[u8; 16], SchemaRegistrationRow> = TableDefinition::new("announced");
type SchemaRegistrationRow = (u64, u32, [u8; 16], &'static str, &'static str);
/// No first number: the sensors are numbered one by one.
const SINGLY: u32 = u32::MAX;
/// Name of a list of sensors -> the sensors, as a schema's bytes end with them.
const LISTS: TableDefinition<[u8; 16], &[u8]> = TableDefinition::new("lists");
/// Sensor's number -> path.
const SENSORS: TableDefinition<u32, &str> = TableDefinition::new("sensors");
/// Block's number -> [`BlockRecord`] as JSON.
const BLOCKS: TableDefinition<u64, &[u8]> = TableDefinition::new("blocks");
/// Block's number -> path of a file that the next opening removes.
const PENDING_FILES: TableDefinition<u64, &str> = TableDefinition::new("pending_files");
/// (agent, boot) -> sequence numbers in blocks.
const RANGES: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("ranges");
/// Schema's hash -> (agent, interval in ns, time of the newest sample) of its sealed batches.
const GROUPS: TableDefinition<[u8; 16], (&str, u64, i64)> = TableDefinition::new("groups");

/// Sensor's number -> (sender that registered it, properties) of schemaless sensors.
const SCHEMALESS: TableDefinition<u32, (&str, &[u8])> = TableDefinition::new("schemaless");
/// Sensor's number / [`NEWEST_TIMES_SENSORS`] -> newest times of schemaless sensors in blocks.
const NEWEST_TIMES: TableDefinition<u32, &[u8]> = TableDefinition::new("newest_times");
/// Import's id -> (order of its latest part among imports, readings, ranges of its parts).
const IMPORTS: TableDefinition<&str, (u64, u64, &[u8])> = TableDefinition::new("imports");

/// A change by one seal, merge or drop, all or nothing.
#[derive(Debug, Default)]
pub(crate) struct CatalogueChange<'a> {
    pub add: &'a [BlockRecord],
    pub remove: &'a [BlockRecord],
    pub sealed_through: Option<u64>,
    /// New ranges of (agent, boot).
    pub ranges: Vec<(Arc<str>, u64, Vec<u8>)>,
    /// New states of the groups.
    pub groups: Vec<(SchemaHash, GroupState)>,
    /// New newest times of schemaless sensors, by part of the sensors.
    pub newest_times: Vec<(u32, Vec<u8>)>,
    /// Pending files that no longer exist.
    pub gone: Vec<u64>,
    /// New records of files whose content does not change.
    pub relink: Vec<BlockRecord>,
    /// Blocks that must still exist, because files are made from them.
    pub requires: Vec<u64>,
    /// An import with its new parts, and imports that are dropped.
    pub import: Option<(String, ImportRecord)>,
    pub dropped_imports: Vec<String>,
}

/// The content of the catalogue.
#[derive(Default)]
pub(crate) struct CatalogueContents {
    pub sensors: Sensors,
    pub blocks: Vec<BlockRecord>,
    pub pending_files: Vec<(u64, String)>,
    pub held: StoredBatches,
    pub imports: Imports,
    pub sealed_through: u64,
    pub next_block: u64,
}

/// The open database of the catalogue.
pub(crate) struct Catalogue {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// `None` after a failure: the library refuses to continue with a database whose file failed.
    db: RwLock<Option<Database>>,
    /// Whether an operation failed; it may still have committed.
    suspect: AtomicBool,
    /// Whether an fsync of the file failed.
    unsynced: Arc<AtomicBool>,
}

impl Catalogue {
    /// Opens or creates the database and reads it.
    pub fn open(disk: &Arc<dyn Disk>, path: &Path) -> Result<(Self, CatalogueContents), StoreError> {
        if disk.exists(path) {
            let size = disk.open(path, false).and_then(|file| file.size()).unwrap_or(0);
            if size > LARGE_BYTES {
                tracing::info!("store: opening, checking the checksums of the catalogue: {} MB", size / 1_000_000);
            }
            refuse_damage(disk.as_ref(), path)?;
        } else {
            create(disk.as_ref(), path)?;
        }
        let catalogue = Self {
            disk: disk.clone(),
            path: path.to_owned(),
            db: RwLock::new(None),
            suspect: AtomicBool::new(true),
            unsynced: Arc::default(),
        };
        // An earlier process may have been killed after an fsync that failed: see `copy_file`.
        match catalogue.copy_file() {
            Err(error @ StoreError::DiskFull { .. }) => {
                tracing::warn!(%error, "cannot copy the catalogue; going on with it as it is")
            }
            result => result?,
        }
        let contents = catalogue.reopen()?;
        Ok((catalogue, contents))
    }

    /// Whether the content is unknown after a failure: call [`Catalogue::reopen`] before anything else.
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Relaxed)
    }

    /// Opens the database again and reads its content.
    pub fn reopen(&self) -> Result<CatalogueContents, StoreError> {
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        *db = None;
        if self.unsynced.load(Relaxed) {
            self.copy_file()?;
        }
        let file = self.disk.open(&self.path, true).map_err(|error| StoreError::io("opening", &self.path, error))?;
        let opened = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(DatabaseFile { file, unsynced: self.unsynced.clone() });
        let opened = opened.map_err(|error| fail("opening", &self.path, error.into()))?;
        let contents = match read_tables(&opened).map_err(|error| fail("reading", &self.path, error))? {
            Ok(contents) => contents,
            Err(ReadFault::Damaged(reason)) => return Err(StoreError::damaged(&self.path, reason)),
            Err(ReadFault::Newer(found)) => {
                return Err(StoreError::NewerVersion { path: self.path.clone(), found, known: FORMAT_VERSION });
            }
        };
        // What was read may be an uncommitted state in memory: a durable transaction on top makes it true.
        count_opening(&opened).map_err(|error| fail("writing", &self.path, error))?;
        *db = Some(opened);
        self.suspect.store(false, Relaxed);
        Ok(contents)
    }

    /// Copies the file while no transaction runs.
    pub fn copy_to(&self, to: &Path) -> Result<(), StoreError> {
        let _no_write = self.db.write().unwrap_or_else(PoisonError::into_inner);
        crate::database::copy_to(self.disk.as_ref(), &self.path, to)
    }

    fn copy_file(&self) -> Result<(), StoreError> {
        copy_file(self.disk.as_ref(), &self.path)?;
        self.unsynced.store(false, Relaxed);
        Ok(())
    }

    /// Runs one writing transaction; after a failure the catalogue is suspect.
    fn write(
        &self,
        doing: &'static str,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        let (Some(db), false) = (db.as_ref(), self.is_suspect()) else {
            let reason = "an earlier operation failed; the next attempt opens the file again".to_owned();
            return Err(StoreError::Catalogue { doing, path: self.path.clone(), reason });
        };
        let run = || -> Result<(), redb::Error> {
            let txn = db.begin_write()?;
            change(&txn)?;
            Ok(txn.commit()?)
        };
        run().map_err(|error| {
            self.suspect.store(true, Relaxed);
            fail(doing, &self.path, error)
        })
    }

    /// Makes schemas and the numbers of their new sensors durable, all or none.
    pub fn add_schemas(&self, registrations: &[SchemaRegistration]) -> Result<(), StoreError> {
        self.write("registering schemas", |txn| {
            let mut meta = txn.open_table(META)?;
            let mut order = meta.get("registrations")?.map_or(0, |value| value.value());
            let mut announced = txn.open_table(ANNOUNCED)?;
            let (mut lists, mut sensors) = (txn.open_table(LISTS)?, txn.open_table(SENSORS)?);
            for SchemaRegistration { schema, list, first, single, .. } in registrations {
                order += 1;
                let (hash, prefix) = (schema.hash().0, schema.prefix().as_str());
                announced.insert(hash, (order, first.unwrap_or(SINGLY), list.0, prefix, schema.group()))?;
                if lists.get(list.0)?.is_none() {
                    lists.insert(list.0, schema.encode_sensors().1.as_slice())?;
                }
                for (id, path) in single {
                    sensors.insert(id, &**path)?;
                }
            }
            meta.insert("registrations", order)?;
            Ok(())
        })
    }

    /// Makes registrations of schemaless sensors durable: of each its number, its path if the number is new, and its properties.
    pub fn add_schemaless(&self, source: &str, sensors: &[(u32, Option<&str>, Vec<u8>)]) -> Result<(), StoreError> {
        self.write("registering sensors", |txn| {
            let mut paths = txn.open_table(SENSORS)?;
            let mut schemaless = txn.open_table(SCHEMALESS)?;
            for (id, path, properties) in sensors {
                if let Some(path) = path {
                    paths.insert(id, *path)?;
                }
                schemaless.insert(id, (source, properties.as_slice()))?;
            }
            Ok(())
        })
    }

    /// Records files that are about to be written. If a crash comes before [`Catalogue::commit`] adds them, the next opening removes them.
    pub fn intend(&self, files: &[(u64, String)]) -> Result<(), StoreError> {
        self.write("preparing a block", |txn| {
            let mut pending_files = txn.open_table(PENDING_FILES)?;
            let mut meta = txn.open_table(META)?;
            for (id, path) in files {
                pending_files.insert(id, path.as_str())?;
                let next = meta.get("next_block")?.map_or(0, |value| value.value());
                meta.insert("next_block", next.max(id + 1))?;
            }
            Ok(())
        })
    }

    pub(crate) fn commit(&self, change: &CatalogueChange) -> Result<(), StoreError> {
        self.write("committing blocks", |txn| {
            let mut blocks = txn.open_table(BLOCKS)?;
            let mut pending_files = txn.open_table(PENDING_FILES)?;
            for id in &change.gone {
                pending_files.remove(id)?;
            }
            for record in change.remove {
                blocks.remove(record.id)?;
                pending_files.insert(record.id, record.path.as_str())?;
            }
            for record in change.add.iter().chain(&change.relink) {
                let json = serde_json::to_vec(record).map_err(|error| redb::Error::Io(io::Error::other(error)))?;
                blocks.insert(record.id, json.as_slice())?;
                pending_files.remove(record.id)?;
            }
            if let Some(segment) = change.sealed_through {
                txn.open_table(META)?.insert("sealed_through", segment)?;
            }
            let mut ranges = txn.open_table(RANGES)?;
            for (agent, boot, bytes) in &change.ranges {
                ranges.insert((&**agent, *boot), bytes.as_slice())?;
                forget_old_boots(&mut ranges, agent)?;
            }
            let mut groups = txn.open_table(GROUPS)?;
            for (hash, state) in &change.groups {
                groups.insert(hash.0, (&*state.agent, state.interval_ns, state.last_time))?;
            }
            if !change.newest_times.is_empty() {
                let mut table = txn.open_table(NEWEST_TIMES)?;
                for (chunk, times) in &change.newest_times {
                    table.insert(chunk, times.as_slice())?;
                }
            }
            if let Some((id, known)) = &change.import {
                let mut imports = txn.open_table(IMPORTS)?;
                imports.insert(id.as_str(), (known.order, known.readings, known.parts.encode().as_slice()))?;
                for id in &change.dropped_imports {
                    imports.remove(id.as_str())?;
                }
            }
            Ok(())
        })
    }

    /// Removes sensors and schemas. `left` are sensors that stay and were numbered with one of the schemas; `next` is the number of the next new
    /// sensor.
    pub fn remove_sensors(
        &self,
        sensors: &[SensorId],
        schemas: &[SchemaHash],
        left: &[(u32, Arc<str>)],
        next: u32,
    ) -> Result<(), StoreError> {
        self.write("removing sensors", |txn| {
            let (mut paths, mut schemaless) = (txn.open_table(SENSORS)?, txn.open_table(SCHEMALESS)?);
            for id in sensors {
                paths.remove(id.0)?;
                schemaless.remove(id.0)?;
            }
            for (id, path) in left {
                paths.insert(id, &**path)?;
            }
            let (mut announced, mut groups) = (txn.open_table(ANNOUNCED)?, txn.open_table(GROUPS)?);
            for hash in schemas {
                announced.remove(hash.0)?;
                groups.remove(hash.0)?;
            }
            if !schemas.is_empty() {
                let mut used = HashSet::new();
                for entry in announced.iter()? {
                    used.insert(entry?.1.value().2);
                }
                txn.open_table(LISTS)?.retain(|list, _| used.contains(&list))?;
            }
            txn.open_table(META)?.insert("next_sensor", u64::from(next))?;
            Ok(())
        })
    }

    /// Removes the entries of pending files that no longer exist.
    pub fn remove_pending_files(&self, ids: Vec<u64>) -> Result<(), StoreError> {
        if ids.is_empty() { Ok(()) } else { self.commit(&CatalogueChange { gone: ids, ..CatalogueChange::default() }) }
    }
}

/// Checks the checksums of all pages in a copy in memory: the library repairs what it can, and would change the file before an administrator has
/// decided what to do.
pub(crate) fn refuse_damage(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    let content = read_file(disk, path).map_err(|error| StoreError::io("reading", path, error))?;
    let check = || -> Result<bool, redb::Error> {
        let mut copy = in_memory(&content, CACHE_BYTES)?;
        drop(content);
        Ok(copy.check_integrity()?)
    };
    // The library may panic on bytes that it did not write.
    let reason = match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(true)) => return Ok(()),
        Ok(Ok(false)) => "its checksums do not fit".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it is not what was written".to_owned(),
    };
    let advice = "nothing was changed; restore a backup, or let `wholegrain store repair --dir` make a catalogue from the blocks, which are whole";
    Err(StoreError::damaged(path, format!("{reason}; {advice}")))
}

/// Reads a catalogue that another process may be writing: from a copy in memory, taken until two copies are equal. Changes nothing.
pub(crate) fn read_copy(disk: &dyn Disk, path: &Path) -> Result<CatalogueContents, StoreError> {
    let take = || read_file(disk, path).map_err(|error| StoreError::io("reading", path, error));
    let mut copy = take()?;
    let mut reason = String::new();
    for _ in 0..COPIES_MAX {
        let again = take()?;
        let same = again == copy;
        copy = again;
        if !same {
            continue;
        }
        match in_memory(&copy, CACHE_BYTES).and_then(|db| read_tables(&db)) {
            Ok(Ok(contents)) => return Ok(contents),
            Ok(Err(ReadFault::Newer(found))) => {
                return Err(StoreError::NewerVersion { path: path.to_owned(), found, known: FORMAT_VERSION });
            }
            Ok(Err(ReadFault::Damaged(text))) => reason = text,
            Err(error) => reason = error.to_string(),
        }
        std::thread::sleep(COPY_WAIT);
    }
    Err(StoreError::damaged(path, reason))
}

/// Counts the openings. This transaction makes everything before it durable.
fn count_opening(db: &Database) -> Result<(), redb::Error> {
    let txn = db.begin_write()?;
    {
        let mut meta = txn.open_table(META)?;
        let openings = meta.get("openings")?.map_or(0, |value| value.value());
        meta.insert("openings", openings + 1)?;
    }
    Ok(txn.commit()?)
}

/// Reads all tables of the catalogue.
fn read_tables(db: &Database) -> Result<Result<CatalogueContents, ReadFault>, redb::Error> {
    let read = db.begin_read()?;
    let meta = read.open_table(META)?;
    let number = |name: &str| -> Result<u64, redb::Error> { Ok(meta.get(name)?.map_or(0, |value| value.value())) };
    let version = number("version")?;
    match version {
        FORMAT_VERSION => {}
        newer if newer > FORMAT_VERSION => return Ok(Err(ReadFault::Newer(newer))),
        other => return Ok(Err(ReadFault::Damaged(format!("it has format version {other}, which no release writes")))),
    }
    let mut contents = CatalogueContents {
        sealed_through: number("sealed_through")?,
        next_block: number("next_block")?,
        ..CatalogueContents::default()
    };
    let mut paths: Vec<(u32, Arc<str>)> = Vec::new();
    let table = read.open_table(SENSORS)?;
    let progress = ProgressLog::new("sensors of the catalogue read", table.len()?);
    for entry in table.iter()? {
        let (id, path) = entry?;
        paths.push((id.value(), path.value().into()));
        progress.at_small(paths.len() as u64);
    }
    contents.sensors = Sensors::of_paths(paths, u32::try_from(number("next_sensor")?).unwrap_or(u32::MAX));
    let mut schemas = Vec::new();
    if let Err(fault) = read_announced(&read, &mut contents.sensors, &mut schemas)? {
        return Ok(Err(fault));
    }
    schemas.sort_by_key(|(order, _)| *order);
    schemas.iter().for_each(|(_, schema)| contents.sensors.add_schema(schema));
    for entry in read.open_table(BLOCKS)?.iter()? {
        let (id, value) = entry?;
        match serde_json::from_slice(value.value()) {
            Ok(record) => contents.blocks.push(record),
            Err(error) => return Ok(Err(ReadFault::Damaged(format!("block {}: {error}", id.value())))),
        }
    }
    for entry in read.open_table(PENDING_FILES)?.iter()? {
        let (id, path) = entry?;
        contents.pending_files.push((id.value(), path.value().to_owned()));
    }
    for entry in read.open_table(RANGES)?.iter()? {
        let (key, value) = entry?;
        let (agent, boot) = key.value();
        match RangeSet::decode(value.value()) {
            Some(ranges) => contents.held.set(agent, boot, ranges),
            None => return Ok(Err(ReadFault::Damaged(format!("ranges of {agent}, boot {boot}")))),
        }
    }
    for entry in read.open_table(GROUPS)?.iter()? {
        let (hash, value) = entry?;
        let (agent, interval_ns, last_time) = value.value();
        contents
            .sensors
            .note_group(SchemaHash(hash.value()), GroupState { agent: agent.into(), interval_ns, last_time });
    }
    if let Err(fault) = read_schemaless(&read, &mut contents.sensors)? {
        return Ok(Err(fault));
    }
    for entry in read.open_table(IMPORTS)?.iter()? {
        let (id, value) = entry?;
        let (order, readings, parts) = value.value();
        match RangeSet::decode(parts) {
            Some(parts) => contents.imports.set(id.value(), ImportRecord { order, readings, parts }),
            None => return Ok(Err(ReadFault::Damaged(format!("parts of the import {}", id.value())))),
        }
    }
    Ok(Ok(contents))
}

/// Reads the schemas, each shared list of sensors once, and adds the sensors that are numbered together.
fn read_announced(
    read: &redb::ReadTransaction,
    sensors: &mut Sensors,
    schemas: &mut Vec<(u64, Schema)>,
) -> Result<Result<(), ReadFault>, redb::Error> {
    let lists = read.open_table(LISTS)?;
    let mut known: HashMap<[u8; 16], Schema> = HashMap::new();
    let announced = read.open_table(ANNOUNCED)?;
    let (progress, mut done) = (ProgressLog::new("schemas of the catalogue read", announced.len()?), 0);
    for entry in announced.iter()? {
        done += 1;
        progress.at(done);
        let (hash, value) = entry?;
        let hash = SchemaHash(hash.value());
        let (order, first, list, prefix, group) = value.value();
        let damaged = |reason: &dyn std::fmt::Display| Ok(Err(ReadFault::Damaged(format!("schema {hash}: {reason}"))));
        let schema = match known.get(&list) {
            Some(like) => match SensorPath::new(prefix) {
                Ok(prefix) => like.with_prefix(prefix, group.to_owned(), hash),
                Err(error) => return damaged(&error),
            },
            None => {
                let Some(bytes) = lists.get(list)? else { return damaged(&"its list of sensors is missing") };
                match Schema::decode_sensors(prefix, group, bytes.value()) {
                    Ok(schema) if schema.hash() == hash => {
                        let schema = sensors.share(&schema);
                        known.insert(list, schema.clone());
                        schema
                    }
                    Ok(_) => return damaged(&"its hash is another's"),
                    Err(error) => return damaged(&error),
                }
            }
        };
        if first != SINGLY {
            let end = u64::from(first) + schema.len() as u64;
            if end > u64::from(SensorId::COMPUTED) || !sensors.may_number(&schema, first) {
                return damaged(&"its sensors are known under other numbers");
            }
            sensors.add_family(&schema, first);
        }
        schemas.push((order, schema));
    }
    Ok(Ok(()))
}

/// Reads the schemaless sensors.
fn read_schemaless(read: &redb::ReadTransaction, sensors: &mut Sensors) -> Result<Result<(), ReadFault>, redb::Error> {
    for entry in read.open_table(SCHEMALESS)?.iter()? {
        let (id, value) = entry?;
        let (source, properties) = value.value();
        match SchemalessProperties::decode(properties) {
            Some(properties) if sensors.has(SensorId(id.value())) => {
                sensors.add_schemaless(SensorId(id.value()), source, properties);
            }
            _ => return Ok(Err(ReadFault::Damaged(format!("properties of sensor {}", id.value())))),
        }
    }
    for entry in read.open_table(NEWEST_TIMES)?.iter()? {
        let (chunk, times) = entry?;
        if sensors.set_newest_times(chunk.value(), times.value()).is_none() {
            return Ok(Err(ReadFault::Damaged(format!("newest times of sensors, part {}", chunk.value()))));
        }
    }
    Ok(Ok(()))
}

/// Keeps the newest [`crate::ranges::BOOTS_MAX`] boots of an agent.
fn forget_old_boots(ranges: &mut redb::Table<(&str, u64), &[u8]>, agent: &str) -> Result<(), redb::Error> {
    let mut boots = Vec::new();
    for entry in ranges.range((agent, 0)..=(agent, u64::MAX))? {
        boots.push(entry?.0.value().1);
    }
    for boot in boots.iter().take(boots.len().saturating_sub(crate::ranges::BOOTS_MAX)) {
        ranges.remove((agent, *boot))?;
    }
    Ok(())
}

enum ReadFault {
    Newer(u64),
    Damaged(String),
}

fn create(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    database::create(disk, path, CACHE_BYTES, |txn| {
        txn.open_table(META)?.insert("version", FORMAT_VERSION)?;
        txn.open_table(IMPORTS)?;
        txn.open_table(SENSORS)?;
        txn.open_table(BLOCKS)?;
        txn.open_table(PENDING_FILES)?;
        txn.open_table(RANGES)?;
        txn.open_table(GROUPS)?;
        txn.open_table(SCHEMALESS)?;
        txn.open_table(NEWEST_TIMES)?;
        txn.open_table(ANNOUNCED)?;
        txn.open_table(LISTS)?;
        Ok(())
    })
}

#[cfg(test)]
mod tests;
