//! Opening a store: what a crash left is put in order, and what is durable in the journal is live again.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, RwLock};

use crate::block::cache::BlockCache;
use crate::block::read::{Block, RemovedBlocks};
use crate::block::record::BlockRecord;
use crate::catalogue::{Catalogue, CatalogueContents};
use crate::computed::ResultFiles;
use crate::disk::{Disk, read_all};
use crate::jobs::Jobs;
use crate::journal::{AppendQueue, Journal};
use crate::live::{LiveBatch, LiveSegment, LiveSubscribers, NewestBatches};
use crate::paths::StorePaths;
use crate::quarantine::Quarantine;
use crate::registry::Registry;
use crate::replay::{Replay, ReplayReport};
use crate::segment::segment_number;
use crate::sensors::Sensors;
use crate::stats::{Counters, add};
use crate::store::{CommitState, Shared};
use crate::synced::SyncedLengthFile;
use crate::view::StoreView;
use crate::{OpenReport, StoreConfig, StoreError};

/// Opens the directory; the journal is to be run by the caller.
pub(crate) fn open(config: StoreConfig, disk: Arc<dyn Disk>) -> Result<(Arc<Shared>, Journal, OpenReport), StoreError> {
    let paths = paths_in(&config.dir);
    for dir in [&paths.dir, &paths.journal, &paths.blocks, &paths.temporary, &paths.damaged, &paths.quarantine] {
        disk.create_dirs(dir).map_err(|error| StoreError::io("creating", dir, error))?;
    }
    let lock = take_lock(disk.as_ref(), &paths.dir)?;
    sync_names(disk.as_ref(), &paths)?;
    refuse_lost_catalogue(disk.as_ref(), &paths)?;
    let mut report = OpenReport::default();
    let (catalogue, contents) = Catalogue::open(&disk, &paths.catalogue)?;
    clear_leftovers(disk.as_ref(), &paths, &catalogue, &contents, &mut report)?;
    let removed: Arc<RemovedBlocks> = Arc::default();
    let (blocks, absent) = check_blocks(&disk, &paths, &contents, &removed, &mut report);
    let counters = Counters::default();
    let (jobs, damaged_jobs) = Jobs::open(&disk, &paths.dir, &paths.damaged)?;
    add(&counters.damaged_jobs, damaged_jobs.len() as u64);
    report.damaged_jobs = damaged_jobs;
    let (registry, damaged_lines) = Registry::open(&disk, &paths.dir)?;
    report.damaged_registry = damaged_lines;
    let kept = ResultFiles::new(&disk, &config);
    if !config.background {
        kept.scan()?;
    }
    let mut sensors = with_settings(contents.sensors, &registry);
    let mut replay = Replay {
        disk: disk.as_ref(),
        paths: &paths,
        held: contents.held.clone(),
        arrivals: 0,
        counters: &counters,
        report: &mut report,
        registry: &registry,
        now: config.clock.now(),
    };
    let ReplayReport { closed, next, last } = replay.journal(contents.sealed_through, &mut sensors)?;
    let (held, arrivals) = (replay.held, replay.arrivals);
    let synced = SyncedLengthFile::open(disk.as_ref(), &paths.journal, &last)?;
    let lost = crate::losses::open(&registry);
    report.lost.clone_from(&lost);
    let quarantine = Quarantine::open(&disk, paths.quarantine.clone(), &counters)?;
    add(&counters.damaged_at_open, report.damaged_blocks.len() as u64);
    add(&counters.damaged_bytes, report.damaged_bytes + report.torn_bytes);
    let live: Vec<Arc<LiveBatch>> = closed.iter().flat_map(|segment| segment.groups()).flatten().collect();
    let (tiers, blocks): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.record.tier.is_some());
    let view = StoreView { blocks, tiers, closed, open: Arc::new(LiveSegment::new(next)), absent };
    let backlog_bytes = AtomicU64::new(counters.live_bytes.load(Relaxed));
    let shared = Arc::new(Shared {
        disk,
        catalogue,
        queue: AppendQueue::default(),
        counters,
        newest: NewestBatches::default(),
        subscribers: LiveSubscribers::default(),
        cache: Arc::new(BlockCache::default()),
        sensors: RwLock::new(sensors),
        jobs,
        policy: RwLock::new(crate::retention::rules::policy(&config, &registry)),
        registry,
        synced,
        lost: RwLock::new(lost.into()),
        setting: Mutex::new(()),
        settings_changes: AtomicU64::new(1),
        config,
        kept,
        view: RwLock::new(Arc::new(view)),
        commit_state: Mutex::new(CommitState {
            sealed: contents.held,
            imports: contents.imports,
            attempted: Vec::new(),
        }),
        removed,
        next_block: AtomicU64::new(contents.next_block.max(1)),
        first_segment: next,
        backlog_bytes,
        retained_at: AtomicI64::new(i64::MIN),
        properties_written: AtomicU64::new(0),
        properties_rest: Mutex::new(None),
        expiring: RwLock::new(()),
        expiry_failed: AtomicBool::new(false),
        expiry_unresolved: AtomicBool::new(false),
        expiry_state: Mutex::default(),
        registrations: Default::default(),
        sealing: Mutex::new(()),
        importing: Mutex::new(()),
        merging: Mutex::new(()),
        closing: AtomicBool::new(false),
        // Not 0, so that the sealer begins with what was replayed.
        work: Mutex::new(1),
        worked: Condvar::new(),
        paths,
        _lock: lock,
    });
    shared.heard(&live, &[]);
    note_for_kept(&shared);
    shared.newest.note(&live, std::time::Instant::now());
    let journal = Journal::new(shared.clone(), held, arrivals, last, quarantine);
    Ok((shared, journal, report))
}

fn with_settings(mut sensors: Sensors, registry: &Registry) -> Sensors {
    let settings = crate::settings::Settings::load(registry);
    if !settings.is_empty() {
        sensors.set_settings(settings);
    }
    sensors
}

fn paths_in(dir: &Path) -> StorePaths {
    StorePaths {
        journal: dir.join("journal"),
        blocks: dir.join("blocks"),
        temporary: dir.join("tmp"),
        damaged: dir.join("damaged"),
        quarantine: dir.join("quarantine"),
        catalogue: dir.join("catalogue.redb"),
        dir: dir.to_owned(),
    }
}

/// What is kept may be older than what the journal held: a crash can come between an acknowledgement and the forgetting.
fn note_for_kept(shared: &Shared) {
    if shared.kept.is_any() {
        let logs = shared.view().closed.iter().map(|segment| segment.all_readings()).collect::<Vec<_>>();
        logs.iter().flat_map(|log| log.times()).for_each(|(sensor, time)| shared.kept.replayed(sensor, time));
    }
}

pub(crate) fn take_lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn std::any::Any + Send + Sync>, StoreError> {
    let path = dir.join("lock");
    disk.lock(&path).map_err(|error| {
        if error.kind() != io::ErrorKind::WouldBlock {
            return StoreError::io("locking", &path, error);
        }
        let pid = disk.open(&path, false).and_then(|file| read_all(file.as_ref())).unwrap_or_default();
        let pid = String::from_utf8_lossy(&pid).trim().chars().take(20).collect();
        StoreError::Locked { path: dir.to_owned(), pid }
    })
}

/// Brings the names to stable storage that a process made that was killed before it synced them: from here on they count.
fn sync_names(disk: &dyn Disk, paths: &StorePaths) -> Result<(), StoreError> {
    for dir in [&paths.dir, &paths.journal, &paths.blocks] {
        disk.sync_dir(dir).map_err(|error| StoreError::io("syncing", dir, error))?;
    }
    if let Some(parent) = paths.dir.parent()
        && let Err(error) = disk.sync_dir(parent)
    {
        // It may be somebody else's. Where we made the store's directory ourselves it was synced then.
        tracing::debug!(dir = %parent.display(), %error, "cannot sync the directory above the store");
    }
    Ok(())
}

/// A store without its catalogue would start empty next to readings that it does not know. The catalogue is made before the
/// first of them, so that no crash leaves this.
fn refuse_lost_catalogue(disk: &dyn Disk, paths: &StorePaths) -> Result<(), StoreError> {
    if disk.exists(&paths.catalogue) {
        return Ok(());
    }
    let list = |dir: &Path| disk.list(dir).map_err(|error| StoreError::io("listing", dir, error));
    let mut found =
        list(&paths.journal)?.into_iter().map(|entry| entry.path).find(|path| segment_number(path).is_some());
    let mut dirs = vec![paths.blocks.clone()];
    while let (None, Some(dir)) = (&found, dirs.pop()) {
        for entry in list(&dir)? {
            if entry.is_dir {
                dirs.push(entry.path);
            } else if entry.path.extension().is_some_and(|extension| extension == "parquet") {
                found = Some(entry.path);
            }
        }
    }
    found.map_or(Ok(()), |file| {
        let reason = format!(
            "it is missing, yet there are readings such as {}; bring it back, or move journal/ and blocks/ elsewhere to start with an empty store",
            file.display()
        );
        Err(StoreError::damaged(&paths.catalogue, reason))
    })
}

/// Removes files of seals, merges and drops that did not come to their end.
fn clear_leftovers(
    disk: &dyn Disk,
    paths: &StorePaths,
    catalogue: &Catalogue,
    contents: &CatalogueContents,
    report: &mut OpenReport,
) -> Result<(), StoreError> {
    for entry in disk.list(&paths.temporary).map_err(|error| StoreError::io("listing", &paths.temporary, error))? {
        if !entry.is_dir {
            disk.remove(&entry.path).map_err(|error| StoreError::io("removing", &entry.path, error))?;
            report.leftovers += 1;
        }
    }
    let mut gone = Vec::new();
    for (id, path) in &contents.pending_files {
        let path = crate::block::locate(&paths.blocks, path);
        match disk.remove(&path) {
            Ok(()) => report.leftovers += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io("removing", &path, error)),
        }
        // Also when it was gone already: it may have been removed a moment ago, and a crash could bring it back.
        if let Some(dir) = path.parent() {
            match disk.sync_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::io("syncing", dir, error));
                }
                _ => {}
            }
        }
        gone.push(*id);
    }
    catalogue.remove_pending_files(gone)
}

/// Blocks whose file has the size that was written, and the others; and what else lies there.
fn check_blocks(
    disk: &Arc<dyn Disk>,
    paths: &StorePaths,
    contents: &CatalogueContents,
    removed: &Arc<RemovedBlocks>,
    report: &mut OpenReport,
) -> (Vec<Arc<Block>>, Vec<Arc<Block>>) {
    let (mut blocks, mut absent) = (Vec::new(), Vec::new());
    let mut known: HashMap<PathBuf, &BlockRecord> = HashMap::new();
    for record in &contents.blocks {
        let block = Block::new(record.clone(), &paths.blocks, disk.clone(), removed.clone());
        let size = disk.open(&block.path, false).and_then(|file| file.size());
        if size.as_ref().is_ok_and(|size| *size == record.bytes) {
            known.insert(block.path.clone(), record);
        } else {
            block
                .mark_damaged(&StoreError::damaged(&block.path, format!("missing or cut short: its size is {size:?}")));
            report.damaged_blocks.push(block.path.clone());
            known.insert(block.path.clone(), record);
            absent.push(Arc::new(block));
            continue;
        }
        blocks.push(Arc::new(block));
    }
    let mut dirs = vec![paths.blocks.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in disk.list(&dir).unwrap_or_default() {
            if entry.is_dir {
                dirs.push(entry.path);
            } else if !known.contains_key(&entry.path) {
                tracing::warn!(file = %entry.path.display(), "not a file of this store; left alone");
                report.foreign_files.push(entry.path);
            }
        }
    }
    report.foreign_files.sort();
    (blocks, absent)
}
