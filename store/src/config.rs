//! The configuration of a store.

use std::path::PathBuf;
use std::time::Duration;

use wholegrain_model::Interval;
use wholegrain_model::size::ByteSize;

use crate::Clock;
use wholegrain_model::Pattern;

/// How a store behaves. [`StoreConfig::new`] gives the defaults for a directory.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Where everything lies; made when it is not there.
    pub dir: PathBuf,
    /// The journal is sealed into blocks when its oldest reading has waited so long.
    pub seal_after: Interval,
    /// The journal is sealed into blocks when it holds so many bytes.
    pub seal_bytes: ByteSize,
    /// The least time from one group commit of the journal to the next while more than a thousand batches a second come, or
    /// two hundred from many senders: small ones then share an fsync.
    pub commit_every: Duration,
    /// How long the newest batch of a group that fell silent stays in memory; afterwards it is read from its block.
    pub live: Interval,
    /// Payload bytes not sealed yet that may lie in memory; over it [`crate::StoreError::Busy`] until sealing has caught up. What the
    /// journal held at the opening comes on top.
    pub live_bytes_max: ByteSize,
    /// Payload bytes that may wait for the journal; over it [`crate::StoreError::Busy`].
    pub queue_bytes_max: ByteSize,
    /// Batches and readings further than this behind the clock are quarantined; `None`: no bound.
    pub past_max: Option<Interval>,
    /// Batches and readings further than this ahead of the clock are quarantined; `None`: no bound.
    pub future_max: Option<Interval>,
    /// Lengths of the windows of the tiers, finest first, each a multiple of the one before; none for no tiers.
    pub tiers: Vec<Interval>,
    /// How long what is kept; the first rule whose pattern matches a sensor counts. At most [`crate::RETENTION_RULES_MAX`].
    pub retention: Vec<RetentionRule>,
    /// Readings and windows of other sensors are dropped when they are older than this.
    pub retention_age: Option<Interval>,
    /// Jobs that ended longer ago are forgotten; `None`: none is.
    pub jobs_age: Option<Interval>,
    /// Sensors of which nothing is stored any more are forgotten when they have not been heard of for so long; `None`: none is.
    pub forget_after: Option<Interval>,
    /// The oldest files are dropped while all blocks and tiers together are larger than this.
    pub retention_bytes: Option<ByteSize>,
    /// Results of computed sensors that are kept may take so many bytes; those used longest ago go first. 0: none are kept.
    pub derived_bytes: ByteSize,
    /// So many small blocks of one day become one larger block.
    pub merge_fan_in: usize,
    /// A day is merged into one block when it has been over for so long.
    pub merge_delay: Interval,
    /// Inputs larger than this together are not merged.
    pub merge_bytes_max: ByteSize,
    /// Level of zstd in the blocks of days that are over, 1 to 22.
    pub merge_zstd_level: i32,
    /// Level of zstd in freshly sealed blocks, and in merged ones of a day under way, 1 to 22.
    pub seal_zstd_level: i32,
    /// What time it is.
    pub clock: Clock,
    /// Whether sealing, merging and retention run by themselves; without it they run when called (as a simulator does).
    pub background: bool,
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
            forget_after: None,
            retention_bytes: None,
            derived_bytes: ByteSize::mib(1024),
            merge_fan_in: 30,
            merge_delay: Interval::from_s(2 * 3600),
            merge_bytes_max: ByteSize::mib(1024),
            merge_zstd_level: 3,
            seal_zstd_level: 1,
            clock: Clock::default(),
            background: true,
        }
    }
}

/// The maximum number of rules in [`StoreConfig::retention`].
pub const RETENTION_RULES_MAX: usize = 256;

/// How long the readings of the sensors that a pattern chooses are kept. The first rule whose pattern matches counts.
#[derive(Debug, Clone, PartialEq)]
pub struct RetentionRule {
    pub pattern: Pattern,
    /// How long readings are kept; `None` is forever.
    pub raw: Option<Interval>,
    /// How long the windows of a tier are kept, `None` being forever; a tier that is not named is kept as long as the readings.
    pub tiers: Vec<(Interval, Option<Interval>)>,
}
