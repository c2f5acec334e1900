//! Reading, importing and deleting.

use wholegrain_model::Interval;

use super::Store;
use crate::catalogue::imports::ImportState;
use crate::computed::ResultCache;
use crate::config::RetentionRule;
use crate::deletes::{Deletion, DeletionReport};
use crate::error::StoreError;
use crate::imports::{ImportReport, ImportSeries};
use crate::sealed::SealedBlock;
use crate::snapshot::Snapshot;

impl Store {
    /// A consistent view of everything acknowledged until now.
    pub fn snapshot(&self) -> Snapshot {
        self.engine().snapshots.snapshot()
    }

    /// How long the readings of a sensor are kept; `None`: for ever.
    pub fn readings_age(&self, path: &str) -> Option<Interval> {
        let policy = self.engine().snapshots.policy.get();
        policy.raw_age(policy.rule_of(path))
    }

    /// The cache of results of virtual sensors; `None` if it is disabled.
    pub fn result_cache(&self) -> Option<ResultCache> {
        let engine = self.engine();
        (engine.config.result_cache_bytes.0 > 0).then(|| ResultCache::new(engine.results.clone()))
    }

    /// Stores a part of an import as blocks; durable and visible when it returns. The same part of the same import again is a duplicate, whatever
    /// it contains. `source` names the sender. Blocks on the disk.
    pub fn import(
        &self,
        id: &str,
        part: u64,
        source: &str,
        series: Vec<ImportSeries>,
    ) -> Result<ImportReport, StoreError> {
        self.engine().importer.import(id, part, source, series)
    }

    /// The parts of an import that are stored.
    pub fn import_state(&self, id: &str) -> Result<ImportState, StoreError> {
        self.engine().importer.import_state(id)
    }

    /// What [`Store::delete`] would delete now; changes nothing.
    pub fn would_delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        self.engine().deleter.would_delete(deletion)
    }

    /// What would be out of its retention at the time `now`, and is not yet, if this rule came before all others; changes nothing.
    pub fn would_expire(&self, rule: &RetentionRule, now: i64) -> Result<DeletionReport, StoreError> {
        self.engine().deleter.would_expire(rule, now)
    }

    /// The sealed block that is first in rank, for a store that takes it over; `None` if there is none.
    pub fn first_block(&self) -> Result<Option<SealedBlock>, StoreError> {
        SealedBlock::first(&self.engine().files)
    }

    /// Whether readers see this block, and as it was when it was taken: no deletion changed it.
    pub fn has_block(&self, block: &SealedBlock) -> bool {
        block.is_current(&self.engine().files)
    }

    /// Removes a block that another store has adopted. `false`, and nothing changed, if it was replaced since it was taken, as by a deletion.
    /// Results that were computed from its readings stay valid.
    pub fn release_block(&self, block: &SealedBlock) -> Result<bool, StoreError> {
        block.release(&self.engine().files)
    }

    /// Deletes the stored readings of the range; durable and in force when it returns. Readings that arrive afterwards are new. Batches that are
    /// delivered again are still duplicates; single readings of schemaless sensors that are sent again are new.
    pub fn delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        self.engine().deleter.delete(deletion)
    }
}
