//! The configuration of a store.

use std::path::PathBuf;
use std::time::Duration;

use wholegrain_model::size::ByteSize;
use wholegrain_model::{Interval, Pattern};

use crate::{Clock, StoreError};

/// The behaviour of a store. [`StoreConfig::new`] gives the defaults for a directory.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Created if it does not exist.
    pub dir: PathBuf,
    /// The journal is sealed into blocks when its oldest reading has waited for this time.
    pub seal_after: Interval,
    /// The journal is sealed into blocks when it holds this many bytes.
    pub seal_bytes: ByteSize,
    /// The least time between two group commits of the journal while more than a thousand batches a second arrive, or two hundred from many
    /// senders: small batches then share an fsync.
    pub commit_every: Duration,
    /// How long the newest batch of a silent group stays in memory; afterwards it is read from its block.
    pub live: Interval,
    /// Payload bytes in memory that are not sealed; above it [`crate::StoreError::Busy`] until sealing has caught up. Segments that were there at
    /// the opening do not count.
    pub live_bytes_max: ByteSize,
    /// Payload bytes queued for the journal; above it [`crate::StoreError::Busy`].
    pub queue_bytes_max: ByteSize,
    /// Batches and readings further than this behind the clock are quarantined; `None`: no bound.
    pub past_max: Option<Interval>,
    /// Batches and readings further than this ahead of the clock are quarantined; `None`: no bound.
    pub future_max: Option<Interval>,
    /// Lengths of the windows of the tiers, finest first, each a multiple of the one before; empty for no tiers.
    pub tiers: Vec<Interval>,
    /// How long readings and windows are kept; the first rule whose pattern matches a sensor counts. At most [`crate::RETENTION_RULES_MAX`].
    pub retention: Vec<RetentionRule>,
    /// Readings and windows of other sensors are dropped when they are older than this.
    pub retention_age: Option<Interval>,
    /// Jobs that ended longer ago are removed; `None` keeps all.
    pub jobs_age: Option<Interval>,
    /// Sensors without stored readings are removed when they have been silent for this time; `None` keeps all.
    pub sensors_age: Option<Interval>,
    /// The oldest files are dropped while all blocks and tiers together are larger than this.
    pub retention_bytes: Option<ByteSize>,
    /// Size of the cache of results of virtual sensors; the least recently used go first. 0 disables it.
    pub result_cache_bytes: ByteSize,
    /// This many small blocks of one day are merged into a larger block.
    pub merge_fan_in: usize,
    /// A day is merged into one block when it has been over for this time.
    pub merge_delay: Interval,
    /// Blocks that are larger than this together are not merged.
    pub merge_bytes_max: ByteSize,
    /// Level of zstd in the blocks of days that are over, 1 to 22.
    pub merge_zstd_level: i32,
    /// Level of zstd in sealed blocks, and in merged blocks of the current day, 1 to 22.
    pub seal_zstd_level: i32,
    pub clock: Clock,
    /// Whether threads seal, merge and apply the retention; without them these run when they are called, as in a simulation.
    pub background: bool,
    /// Whether another store adopts sealed blocks ([`crate::Store::first_block`]). Then blocks are neither merged nor downsampled, and sensors do not
    /// expire.
    pub hands_over: bool,
}

impl StoreConfig {
    /// The defaults, in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), ..Self::default() }
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("store"),
            seal_after: Interval::from_s(60),
            seal_bytes: ByteSize::mib(64),
            commit_every: Duration::ZERO,
            live: Interval::from_s(600),
            live_bytes_max: ByteSize::mib(512),
            queue_bytes_max: ByteSize::mib(64),
            past_max: None,
            future_max: None,
            tiers: vec![Interval::from_s(10), Interval::from_s(300), Interval::from_s(3600)],
            retention: Vec::new(),
            retention_age: None,
            jobs_age: None,
            sensors_age: None,
            retention_bytes: None,
            result_cache_bytes: ByteSize::mib(1024),
            merge_fan_in: 30,
            merge_delay: Interval::from_s(2 * 3600),
            merge_bytes_max: ByteSize::mib(1024),
            merge_zstd_level: 3,
            seal_zstd_level: 1,
            clock: Clock::default(),
            background: true,
            hands_over: false,
        }
    }
}

/// The maximum number of rules in [`StoreConfig::retention`].
pub const RETENTION_RULES_MAX: usize = 256;

/// How long the readings of the sensors that match a pattern are kept. The first rule whose pattern matches counts.
#[derive(Debug, Clone, PartialEq)]
pub struct RetentionRule {
    pub pattern: Pattern,
    /// How long readings are kept; `None` is forever.
    pub raw: Option<Interval>,
    /// How long the windows of each tier are kept; `None` is for ever. A tier that is not listed is kept as long as the readings.
    pub tiers: Vec<(Interval, Option<Interval>)>,
}

impl RetentionRule {
    /// Checks the rule for a store with these tiers.
    pub(crate) fn check(&self, tiers: &[Interval]) -> Result<(), StoreError> {
        let ages = self.tiers.iter().map(|(_, age)| *age).chain([self.raw]);
        if ages.flatten().any(|age| age.ns() == 0) {
            return Err(StoreError::Sensor("an age of 0 keeps nothing; delete readings instead".to_owned()));
        }
        match self.tiers.iter().find(|(tier, _)| !tiers.contains(tier)) {
            None => Ok(()),
            Some((tier, _)) => {
                let known: Vec<String> = tiers.iter().map(Interval::to_string).collect();
                Err(StoreError::Sensor(format!("there is no tier of {tier}; there are [{}]", known.join(", "))))
            }
        }
    }
}

/// The most tiers of a store.
pub const TIERS_MAX: usize = 8;

/// The resolutions of a configuration in ns, finest first.
pub(crate) fn resolutions(tiers: &[Interval]) -> Vec<i64> {
    tiers.iter().map(|tier| i64::try_from(tier.ns()).unwrap_or(i64::MAX)).collect()
}

/// The coarsest of the resolutions, or `resolution` if that is coarser. Retention cuts at the edges of its windows.
pub(crate) fn coarsest(tiers: &[Interval], resolution: i64) -> i64 {
    resolutions(tiers).last().copied().unwrap_or(resolution).max(resolution)
}

/// Checks that each tier is a multiple of the one before. The error says what is wrong.
pub fn check_tiers(tiers: &[Interval]) -> Result<(), String> {
    if tiers.len() > TIERS_MAX {
        return Err(format!("has {} resolutions, at most {TIERS_MAX} are kept", tiers.len()));
    }
    if tiers.iter().any(|tier| tier.ns() == 0) {
        return Err("has a resolution of 0; write lengths of time such as \"10s\"".into());
    }
    for pair in tiers.windows(2) {
        if pair[1] <= pair[0] || !pair[1].ns().is_multiple_of(pair[0].ns()) {
            return Err(format!(
                "has {} after {}: each must be a multiple of the one before, such as \"10s\", \"5min\", \"1h\"",
                pair[1], pair[0]
            ));
        }
    }
    Ok(())
}
