//! Builds a catalogue from the files if there is no readable one.
//!
//! Blocks contain their sensors with times and number of readings; `sensors.csv` contains the properties of the sensors. What only the catalogue
//! contained is lost: the batches in the blocks (one that is sent again is stored again, and counts once in every answer), which of two blocks
//! counts for a reading of the same time (now the one with the larger number), and the schemas (agents announce them again). Journal segments
//! cannot be read without schemas and numbers of sensors: they are moved to `damaged/`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use wholegrain_model::{Interval, Kind, ValueType};

use crate::StoreError;
use crate::block::index::IndexEntry;
use crate::block::read::{Block, OpenBlock};
use crate::block::record::BlockRecord;
use crate::block::windows::{TIERS_DIR, TierSource};
use crate::catalogue::{Catalogue, CatalogueChange};
use crate::disk::{Disk, files_below, read_file};
use crate::segment::{SyncedLength, header, put_record, recover, segment_number};
use crate::sensors::SchemalessProperties;
use crate::time::DAY_NS;

/// The sender of the sensors in a rebuilt catalogue.
const SOURCE: &str = "repair";

/// The outcome of a rebuild.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RebuildReport {
    /// The damage of the catalogue.
    pub problem: String,
    /// Blocks and tiers that are in the new one.
    pub blocks: u64,
    pub readings: u64,
    pub sensors: u64,
    /// Files moved to `damaged/`: incomplete blocks, tiers that are made again, journal segments.
    pub damaged_copies: Vec<PathBuf>,
    /// Batches in these segments. A file with the extension `.readmit` is admitted when it is moved to `journal/` after agents have announced their
    /// schemas.
    pub batches: u64,
    /// Readings of schemaless sensors in these segments; their sensors are unknown now.
    pub unnamed: u64,
}

/// Rebuilds the catalogue of `dir` if it is damaged or missing beside blocks; with `dry_run` only reports it.
pub(crate) fn if_damaged(disk: &Arc<dyn Disk>, dir: &Path, dry_run: bool) -> Result<Option<RebuildReport>, StoreError> {
    let path = dir.join("catalogue.redb");
    let problem = if disk.exists(&path) {
        match crate::catalogue::refuse_damage(disk.as_ref(), &path) {
            Err(StoreError::Damaged { reason, .. }) => reason,
            result => return result.map(|()| None),
        }
    } else {
        "it is missing".to_owned()
    };
    let lock = crate::paths::take_lock(disk.as_ref(), dir)?;
    let mut rebuild =
        CatalogueRebuild { disk, dir, dry_run, rebuilt: RebuildReport { problem, ..RebuildReport::default() } };
    let records = rebuild.records()?;
    let sensors = rebuild.sensors(&records)?;
    rebuild.rebuilt.blocks = records.len() as u64;
    rebuild.rebuilt.readings =
        records.iter().filter(|(record, _)| record.tier.is_none()).map(|(record, _)| record.rows).sum();
    rebuild.rebuilt.sensors = sensors.len() as u64;
    rebuild.journal()?;
    if !dry_run {
        rebuild.write(&path, &records, &sensors)?;
    }
    drop(lock);
    Ok(Some(rebuild.rebuilt))
}

/// A file's record, and its index.
type IndexedFile = (BlockRecord, Vec<IndexEntry>);

/// Whether a tier can have been made from a block, by the indexes of both: `Some(true)` from all readings in it and others that retention took since, from the
/// beginning of a sensor's on.
fn is_trimmed(block: &[IndexEntry], tier: &[IndexEntry]) -> Option<bool> {
    let mut of_tier = tier.iter();
    let mut trimmed = block.len() != tier.len();
    for entry in block {
        let made = of_tier.find(|made| made.path == entry.path)?;
        if made.first_time > entry.first_time || made.last_time != entry.last_time {
            return None;
        }
        trimmed |= made.first_time < entry.first_time;
    }
    Some(trimmed)
}

struct CatalogueRebuild<'a> {
    disk: &'a Arc<dyn Disk>,
    dir: &'a Path,
    dry_run: bool,
    rebuilt: RebuildReport,
}

impl CatalogueRebuild<'_> {
    fn files(&self, below: &str) -> Vec<PathBuf> {
        files_below(self.disk.as_ref(), &self.dir.join(below))
    }

    fn records(&mut self) -> Result<Vec<IndexedFile>, StoreError> {
        let mut blocks = Vec::new();
        for path in self.files("blocks") {
            match self.describe(&path, None)? {
                Some(found) => blocks.push(found),
                None => self.move_to_damaged(&path)?,
            }
        }
        let mut tiers = Vec::new();
        for path in self.files("tiers") {
            let name = path.strip_prefix(self.dir.join("tiers")).ok().and_then(|path| path.iter().next());
            let resolution = name.and_then(|name| Interval::parse(name.to_str()?).ok());
            let Some(resolution_ns) = resolution.and_then(|resolution| i64::try_from(resolution.ns()).ok()) else {
                continue;
            };
            let found = self.describe(&path, Some(TierSource { resolution_ns, block: 0 }))?;
            let Some((mut tier, entries)) = found else {
                self.move_to_damaged(&path)?;
                continue;
            };
            let over = |found: &&mut IndexedFile| {
                let block = &found.0;
                block.value_type == tier.value_type
                    && block.first_time <= tier.last_time
                    && block.last_time >= tier.first_time
            };
            let mut of: Vec<&mut IndexedFile> = blocks.iter_mut().filter(over).collect();
            let trimmed = of.first().filter(|_| of.len() == 1).and_then(|found| is_trimmed(&found.1, &entries));
            match (of.first_mut(), trimmed) {
                // Its readings are gone: nothing else has what it says.
                (None, _) => {}
                (Some(found), Some(trimmed)) => {
                    found.0.trimmed |= trimmed;
                    tier.tier = Some(TierSource { resolution_ns, block: found.0.id });
                }
                (Some(_), None) => {
                    self.move_to_damaged(&path)?;
                    continue;
                }
            }
            tiers.push((tier, entries));
        }
        blocks.extend(tiers);
        Ok(blocks)
    }

    /// What the catalogue would say of a file; `None` when it is no whole block.
    fn describe(&self, path: &Path, tier: Option<TierSource>) -> Result<Option<IndexedFile>, StoreError> {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let mut parts = stem.rsplitn(3, '-');
        let value_type = match parts.next() {
            Some("int") => ValueType::Int,
            Some("float") => ValueType::Float,
            _ => return Ok(None),
        };
        let Some(id) = parts.next().and_then(|id| id.parse::<u64>().ok()) else { return Ok(None) };
        let content = read_file(self.disk.as_ref(), path).map_err(|error| StoreError::io("reading", path, error))?;
        let blocks = self.dir.join("blocks");
        let below = if tier.is_some() { self.dir } else { &blocks };
        let mut record = BlockRecord {
            id,
            path: path.strip_prefix(below).unwrap_or(path).to_string_lossy().into_owned(),
            value_type,
            day: None,
            level: 1,
            first_segment: id,
            last_segment: id,
            import: 0,
            first_time: 0,
            last_time: 0,
            rows: 0,
            bytes: content.len() as u64,
            tier,
            trimmed: false,
            sums: None,
            tombstones: Vec::new(),
        };
        let block = Block::new(record.clone(), &blocks, self.disk.clone(), Arc::default());
        let opened = match OpenBlock::open_unknown(&block) {
            Ok(opened) => opened,
            Err(StoreError::Damaged { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let entries = opened.entries();
        record.rows = entries.iter().map(|entry| entry.rows).sum();
        record.first_time = entries.iter().map(|entry| entry.first_time).min().unwrap_or(0);
        record.last_time = entries.iter().map(|entry| entry.last_time).max().unwrap_or(0);
        let day = |time: i64| time.div_euclid(DAY_NS);
        record.day = (day(record.first_time) == day(record.last_time)).then(|| day(record.first_time));
        record.sums = Some(opened.sums_of(&content));
        debug_assert!(tier.is_none() || record.path.starts_with(TIERS_DIR));
        Ok(Some((record, entries.to_vec())))
    }

    /// The sensors of all files with what `sensors.csv` says of them.
    fn sensors(&self, records: &[IndexedFile]) -> Result<BTreeMap<String, SchemalessProperties>, StoreError> {
        let path = self.dir.join(crate::sensors::file::FILE);
        let text = match self.disk.exists(&path) {
            true => read_file(self.disk.as_ref(), &path),
            false => Ok(Vec::new()),
        };
        let text = text.map_err(|error| StoreError::io("reading", &path, error))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let said: HashMap<&str, SchemalessProperties> = text.lines().skip(1).filter_map(line).collect();
        let mut sensors = BTreeMap::new();
        for (record, entries) in records {
            for IndexEntry { path: name, .. } in entries {
                let plain = || SchemalessProperties {
                    unit: String::new(),
                    description: String::new(),
                    kind: Kind::Gauge,
                    value_type: record.value_type,
                    scale: 1.0,
                    interval_ns: 0,
                };
                let known = || said.get(name.as_str()).cloned().unwrap_or_else(plain);
                sensors.entry(name.clone()).or_insert_with(known);
            }
        }
        Ok(sensors)
    }

    /// Batches of the journal go where they can be taken in from again; single readings have lost their sensors' numbers.
    fn journal(&mut self) -> Result<(), StoreError> {
        for path in self.files("journal") {
            let Some(number) = segment_number(&path) else { continue };
            let bytes =
                read_file(self.disk.as_ref(), &path).map_err(|error| StoreError::io("reading", &path, error))?;
            let mut batches = header(number, SyncedLength::default()).to_vec();
            let mut count = 0;
            for place in recover(&bytes).payloads {
                match crate::head::readings::decode(&bytes[place.clone()]) {
                    Some(readings) => self.rebuilt.unnamed += readings.readings.len() as u64,
                    None => {
                        put_record(&bytes[place], &mut batches);
                        count += 1;
                    }
                }
            }
            self.rebuilt.batches += count;
            if count > 0 && !self.dry_run {
                let to = self.dir.join("damaged").join(format!("{number:010}.readmit"));
                let file = self.disk.create(&to).and_then(|file| file.write_at(0, &batches).and_then(|()| file.sync()));
                file.map_err(|error| StoreError::io("writing", &to, error))?;
                self.rebuilt.damaged_copies.push(to);
            }
            self.move_to_damaged(&path)?;
        }
        let synced = crate::segment::synced::path(&self.dir.join("journal"));
        if self.dry_run {
            return Ok(());
        }
        match self.disk.remove(&synced) {
            // It speaks of a segment that is not there any more.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io("removing", &synced, error))
            }
            _ => Ok(()),
        }
    }

    fn move_to_damaged(&mut self, path: &Path) -> Result<(), StoreError> {
        let (dir, name) = (self.dir.join("damaged"), path.file_name().unwrap_or_default());
        let to = dir.join(name);
        if !self.dry_run {
            let moved = self.disk.create_dirs(&dir).and_then(|()| self.disk.rename(path, &to));
            let moved = moved.and_then(|()| self.disk.sync_dir(&dir));
            moved.map_err(|error| StoreError::io("moving to damaged/", path, error))?;
        }
        self.rebuilt.damaged_copies.push(to);
        Ok(())
    }

    /// The new catalogue, beside the old one until it is whole.
    fn write(
        &mut self,
        path: &Path,
        records: &[IndexedFile],
        sensors: &BTreeMap<String, SchemalessProperties>,
    ) -> Result<(), StoreError> {
        let new = self.dir.join("rebuilt.redb");
        if self.disk.exists(&new) {
            self.disk.remove(&new).map_err(|error| StoreError::io("removing", &new, error))?;
        }
        let (catalogue, _) = Catalogue::open(self.disk, &new)?;
        let rows: Vec<(u32, Option<&str>, Vec<u8>)> = (0u32..)
            .zip(sensors)
            .map(|(id, (path, properties))| (id, Some(path.as_str()), properties.encode()))
            .collect();
        catalogue.add_schemaless(SOURCE, &rows)?;
        let add: Vec<BlockRecord> = records.iter().map(|(record, _)| record.clone()).collect();
        let last = add.iter().map(|record| record.id).max().unwrap_or(0);
        catalogue.intend(&[(last, "blocks".to_owned())])?;
        let change =
            CatalogueChange { add: &add, gone: vec![last], sealed_through: Some(last), ..CatalogueChange::default() };
        catalogue.commit(&change)?;
        drop(catalogue);
        if self.disk.exists(path) {
            self.move_to_damaged(path)?;
        }
        let named = self.disk.rename(&new, path).and_then(|()| self.disk.sync_dir(self.dir));
        named.map_err(|error| StoreError::io("naming", path, error))
    }
}

/// A line of `sensors.csv`: sensor, unit, kind, type, scale, wraps_at, interval_ns, description; unit and description in quotes.
fn line(line: &str) -> Option<(&str, SchemalessProperties)> {
    let (path, rest) = line.split_once(',')?;
    let (unit, rest) = quoted(rest)?;
    let mut fields = rest.strip_prefix(',')?.splitn(6, ',');
    let kind = if fields.next()? == "counter" { Kind::Counter } else { Kind::Gauge };
    let value_type = if fields.next()? == "float" { ValueType::Float } else { ValueType::Int };
    let scale = fields.next()?.parse().ok()?;
    let interval_ns = fields.nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    let description = fields.next().and_then(quoted).map(|(text, _)| text).unwrap_or_default();
    Some((path, SchemalessProperties { unit, description, kind, value_type, scale, interval_ns }))
}

/// A field in quotes, in which two quotes are one, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?;
    let mut out = String::new();
    loop {
        let (before, after) = rest.split_once('"')?;
        out.push_str(before);
        match after.strip_prefix('"') {
            Some(more) => {
                out.push('"');
                rest = more;
            }
            None => return Some((out, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_properties_is_read() {
        let (path, read) = line("/n/a,\"W\",counter,float,0.001,,1000,\"A \"\"b\"\", c.\"").unwrap();
        assert_eq!((path, read.unit.as_str(), read.description.as_str()), ("/n/a", "W", "A \"b\", c."));
        assert_eq!((read.kind, read.value_type, read.scale), (Kind::Counter, ValueType::Float, 0.001));
        assert_eq!(read.interval_ns, 1000);
        assert!(line("nothing").is_none());
    }
}
