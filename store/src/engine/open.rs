//! Opening a store: what a crash left is put in order, and what is durable in the journal is live again.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::block::cache::BlockCache;
use crate::block::draft::DraftDirectory;
use crate::block::read::{Block, RemovedBlocks};
use crate::catalogue::{Catalogue, CatalogueContents};
use crate::compaction::Compactor;
use crate::compaction::rewrite::FileRewriter;
use crate::compaction::seal::Sealer;
use crate::compaction::tiers::MissingTiers;
use crate::computed::ResultFiles;
use crate::deletes::Deleter;
use crate::disk::{Disk, files_below};
use crate::downsample::write::Downsampler;
use crate::engine::Engine;
use crate::expiry::SensorExpiry;
use crate::files::view::StoreView;
use crate::files::{FileSet, FileSetParts};
use crate::head::live::{LiveBatch, LiveSegment, LiveSubscribers, NewestBatches};
use crate::imports::Importer;
use crate::jobs::Jobs;
use crate::losses::Losses;
use crate::maintenance::backup::BackupMaker;
use crate::maintenance::repair::Repairer;
use crate::paths::{StorePaths, take_lock};
use crate::registration::Registration;
use crate::registry::Registry;
use crate::retention::Retention;
use crate::retention::rules::RetentionRules;
use crate::retention_policy::PolicyInForce;
use crate::segment::files::SegmentFiles;
use crate::segment::segment_number;
use crate::segment::synced::SyncedLengthFile;
use crate::sensors::file::SensorFile;
use crate::sensors::gate::ExpiryGate;
use crate::sensors::{SensorIndex, Sensors};
use crate::settings::change::PropertySettings;
use crate::snapshot::SnapshotSource;
use crate::snapshot::newest::NewestReadings;
use crate::stats::{Counters, add};
use crate::wal::appender::Appender;
use crate::wal::journal::{Journal, JournalParts, note_newest};
use crate::wal::quarantine::Quarantine;
use crate::wal::queue::AppendQueue;
use crate::wal::replay::{Replay, ReplayReport};
use crate::work::WorkSignal;
use crate::{OpenReport, StoreConfig, StoreError};

/// Builds a component; a field that is only named takes a clone of the variable with its name.
macro_rules! component {
    ($type:ident { $($field:ident $(: $value:expr)?),* $(,)? }) => {
        $type { $($field: component!(@value $field $(, $value)?)),* }
    };
    (@value $field:ident) => { $field.clone() };
    (@value $field:ident, $value:expr) => { $value };
}

/// Opens the directory. The caller runs the journal.
pub(super) fn open(config: StoreConfig, disk: Arc<dyn Disk>) -> Result<(Arc<Engine>, Journal, OpenReport), StoreError> {
    let paths = Arc::new(paths_in(&config.dir));
    let config = Arc::new(config);
    for dir in [&paths.dir, &paths.journal, &paths.blocks, &paths.temporary, &paths.damaged, &paths.quarantine] {
        disk.create_dirs(dir).map_err(|error| StoreError::io("creating", dir, error))?;
    }
    let lock = take_lock(disk.as_ref(), &paths.dir)?;
    sync_names(disk.as_ref(), &paths)?;
    refuse_lost_catalogue(disk.as_ref(), &paths)?;
    let mut report = OpenReport::default();
    let (catalogue, contents) = Catalogue::open(&disk, &paths.catalogue)?;
    clear_leftovers(disk.as_ref(), &paths, &catalogue, &contents, &mut report)?;
    let catalogue = Arc::new(catalogue);
    let removed: Arc<RemovedBlocks> = Arc::default();
    let (blocks, absent) = check_blocks(&disk, &paths, &contents, &removed, &mut report);
    let counters = Arc::new(Counters::default());
    let (jobs, damaged_jobs) = Jobs::open(&disk, &paths, config.clone(), counters.clone())?;
    report.damaged_jobs = damaged_jobs;
    let (registry, damaged_lines) = Registry::open(&disk, &paths.dir)?;
    report.damaged_registry = damaged_lines;
    let registry = Arc::new(registry);
    let policy = Arc::new(PolicyInForce::new(crate::retention::rules::policy(&config, &registry)));
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
    let sensors = Arc::new(SensorIndex::new(sensors));
    let results =
        ResultFiles::new(&disk, &config, sensors.clone(), catalogue.clone(), policy.clone(), counters.clone());
    let results = Arc::new(results);
    if !config.background {
        results.scan()?;
    }
    let synced = Arc::new(SyncedLengthFile::open(disk.as_ref(), &paths.journal, &last)?);
    let losses = Arc::new(Losses::new(registry.clone()));
    report.lost = losses.open().to_vec();
    let quarantine = Quarantine::open(&disk, paths.quarantine.clone(), &counters)?;
    add(&counters.damaged_at_open, report.damaged_blocks.len() as u64);
    add(&counters.damaged_bytes, report.damaged_bytes + report.torn_bytes);
    let live: Vec<Arc<LiveBatch>> = closed.iter().flat_map(|segment| segment.groups()).flatten().collect();
    let (tiers, blocks): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.record.tier.is_some());
    let view = StoreView { blocks, tiers, closed, open: Arc::new(LiveSegment::new(next)), absent };
    let segments = Arc::new(SegmentFiles::new(disk.clone(), paths.journal.clone(), counters.clone(), next));
    let gate: Arc<ExpiryGate> = Arc::default();
    let files = component! { FileSetParts {
        disk, paths, catalogue, cache: Arc::new(BlockCache::default()), sensors, gate, results, segments, removed,
    } };
    let files = Arc::new(FileSet::new(files, view, contents.held, contents.imports));
    note_newest(&sensors, &results, &live, &[]);
    note_replayed(&files, &results);
    let newest: Arc<NewestBatches> = Arc::default();
    newest.note(&live, Instant::now());
    let queue: Arc<AppendQueue> = Arc::default();
    let subscribers: Arc<LiveSubscribers> = Arc::default();
    let work: Arc<WorkSignal> = Arc::default();
    let parts = component! { JournalParts {
        config, paths, disk, queue, files, sensors, gate, synced, newest, subscribers, results, counters, work,
    } };
    let journal = Journal::new(parts, held, arrivals, last, quarantine);
    let opened = Opened {
        config,
        paths,
        disk,
        lock,
        catalogue,
        next_block: contents.next_block.max(1),
        counters,
        jobs: Arc::new(jobs),
        registry,
        policy,
        sensors,
        results,
        synced,
        losses,
        segments,
        gate,
        files,
        newest,
        queue,
        subscribers,
        work,
    };
    Ok((Arc::new(opened.wire()), journal, report))
}

/// The components that an opening makes of what is on disk.
struct Opened {
    config: Arc<StoreConfig>,
    paths: Arc<StorePaths>,
    disk: Arc<dyn Disk>,
    lock: Box<dyn std::any::Any + Send + Sync>,
    catalogue: Arc<Catalogue>,
    next_block: u64,
    counters: Arc<Counters>,
    jobs: Arc<Jobs>,
    registry: Arc<Registry>,
    policy: Arc<PolicyInForce>,
    sensors: Arc<SensorIndex>,
    results: Arc<ResultFiles>,
    synced: Arc<SyncedLengthFile>,
    losses: Arc<Losses>,
    segments: Arc<SegmentFiles>,
    gate: Arc<ExpiryGate>,
    files: Arc<FileSet>,
    newest: Arc<NewestBatches>,
    queue: Arc<AppendQueue>,
    subscribers: Arc<LiveSubscribers>,
    work: Arc<WorkSignal>,
}

impl Opened {
    /// Builds the components that work on them.
    fn wire(self) -> Engine {
        let Self { config, paths, disk, lock, catalogue, next_block, counters, jobs, registry, policy, .. } = self;
        let Self { sensors, results, synced, losses, segments, gate, files, newest, queue, subscribers, work, .. } =
            self;
        let drafts = Arc::new(DraftDirectory::new(disk.clone(), paths.temporary.clone(), next_block));
        let downsampler = Arc::new(Downsampler::new(config.clone(), drafts.clone(), sensors.clone()));
        let sensor_file = Arc::new(SensorFile::new(disk.clone(), config.dir.clone(), sensors.clone()));
        let registration = Arc::new(Registration::new(files.clone(), catalogue.clone(), sensors.clone(), work.clone()));
        let snapshots = Arc::new(component!(SnapshotSource { config, files, sensors, policy, results, losses }));
        let sealer = Arc::new(component! { Sealer {
            config, files, drafts, segments, sensors, results, sensor_file, queue, counters, lock: Mutex::default(),
        } });
        let rewriter = Arc::new(component!(FileRewriter { config, files, drafts, downsampler, counters }));
        let tiers = component!(MissingTiers { config, files, sensors, policy, downsampler, counters });
        let compactor = Arc::new(component! { Compactor {
            config, files, drafts, downsampler, rewriter, tiers: tiers, counters, lock: Mutex::default(),
        } });
        Engine {
            properties: PropertySettings::new(registry.clone(), sensors.clone(), work.clone()),
            appender: component!(Appender { config, sensors, segments, queue, counters, work }),
            newest_readings: component!(NewestReadings { sensors, batches: newest.clone(), snapshots }),
            rules: component!(RetentionRules { config, registry, policy, results, work }),
            retention: component! { Retention {
                config, files, drafts, policy, results, compactor, rewriter, counters,
            } },
            expiry: component! { SensorExpiry {
                config, files, catalogue, sensors, newest, compactor, gate, counters, state: Mutex::default(),
            } },
            importer: component! { Importer {
                config, files, drafts, sensors, registration, sealer, policy, results, sensor_file, counters, work,
                lock: Mutex::default(),
            } },
            deleter: component! { Deleter {
                config, files, catalogue, sensors, newest, sealer, compactor, results, snapshots, counters, work,
            } },
            repairer: component!(Repairer { disk, paths, config, files, drafts, downsampler, compactor, work }),
            backups: component!(BackupMaker { disk, paths, drafts, files, catalogue, jobs, registry, sealer }),
            config,
            disk,
            counters,
            work,
            registry,
            losses,
            sensors,
            sensor_file,
            registration,
            jobs,
            queue,
            synced,
            newest,
            subscribers,
            files,
            snapshots,
            results,
            sealer,
            compactor,
            _lock: lock,
        }
    }
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

/// Cached results may be older than readings in the journal: a crash can come between an acknowledgement and the removal of a result.
fn note_replayed(files: &FileSet, results: &ResultFiles) {
    if results.is_any() {
        let logs = files.view().closed.iter().map(|segment| segment.all_readings()).collect::<Vec<_>>();
        logs.iter().flat_map(|log| log.times()).for_each(|(sensor, time)| results.replayed(sensor, time));
    }
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
            "it is missing, yet there are readings such as {}; restore it, or move journal/ and blocks/ elsewhere to start with an empty store",
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
    let mut known: HashSet<PathBuf> = HashSet::new();
    for record in &contents.blocks {
        let block = Block::new(record.clone(), &paths.blocks, disk.clone(), removed.clone());
        let size = disk.open(&block.path, false).and_then(|file| file.size());
        known.insert(block.path.clone());
        if size.as_ref().is_ok_and(|size| *size == record.bytes) {
            blocks.push(Arc::new(block));
        } else {
            block
                .mark_damaged(&StoreError::damaged(&block.path, format!("missing or cut short: its size is {size:?}")));
            report.damaged_blocks.push(block.path.clone());
            absent.push(Arc::new(block));
        }
    }
    for file in files_below(disk.as_ref(), &paths.blocks).into_iter().filter(|file| !known.contains(file)) {
        tracing::warn!(file = %file.display(), "not a file of this store; left alone");
        report.foreign_files.push(file);
    }
    (blocks, absent)
}
