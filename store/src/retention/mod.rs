//! Retention: readings and windows that are too old are dropped, and the oldest files if all together are too large.
//!
//! Readings and windows that have expired by a rule are hidden from the next pass on ([`RetentionPolicy::hidden_before`]). A file is dropped when
//! all of its content has expired. A block is rewritten without expired readings when a quarter of it has expired; each byte is so written at most
//! four times in all. A block whose tiers outlive it waits for them and for the last merge of its day, so that no window counts a reading twice for
//! ever.

pub(crate) mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::StoreError;
use crate::block::draft::{BlockDraft, DraftDirectory};
use crate::block::read::Block;
use crate::block::record::{BlockRecord, kind_of};
use crate::block::windows::TierSource;
use crate::catalogue::CatalogueChange;
use crate::compaction::Compactor;
use crate::compaction::pick::{is_over, stands_between};
use crate::compaction::rewrite::FileRewriter;
use crate::compaction::write::{MergeOutput, open_all, run};
use crate::computed::ResultFiles;
use crate::config::StoreConfig;
use crate::files::FileSet;
use crate::retention_policy::{PolicyInForce, RetentionPolicy};
use crate::stats::{Counters, add};

/// A block is rewritten when at least this part of its rows has expired.
const EXPIRED_PART: u64 = 4;

pub(crate) struct Retention {
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub drafts: Arc<DraftDirectory>,
    pub policy: Arc<PolicyInForce>,
    pub results: Arc<ResultFiles>,
    pub compactor: Arc<Compactor>,
    pub rewriter: Arc<FileRewriter>,
    pub counters: Arc<Counters>,
}

impl Retention {
    /// Drops files that exceed the bounds at the time `now`; returns their number.
    pub(crate) fn retain(&self, now: i64) -> Result<u64, StoreError> {
        let _no_merge = self.compactor.lock();
        drop(self.files.reconcile()?);
        self.policy.note_pass(now);
        let policy = self.policy.get();
        let mut dropped = if policy.is_empty() { Vec::new() } else { self.by_age(&policy, now)? };
        if let Some(max) = self.config.retention_bytes {
            self.by_size(max.0, &mut dropped);
        }
        if dropped.is_empty() {
            return Ok(0);
        }
        let raw = || dropped.iter().filter(|block| block.record.tier.is_none()).map(|block| &block.record);
        let span = raw().map(|block| block.first_time).min().zip(raw().map(|block| block.last_time).max());
        // Results computed from these readings must go too, also if a crash follows.
        span.map_or(Ok(()), |(first, last)| self.results.changed(first, last, None))?;
        if !self.files.publish(&[], &dropped, CatalogueChange::default())? {
            return Ok(0);
        }
        span.map_or(Ok(()), |(first, last)| self.results.changed(first, last, None))?;
        let rows = dropped.iter().filter(|block| block.record.tier.is_none()).map(|block| block.record.rows).sum();
        add(&self.counters.retention_blocks, dropped.len() as u64);
        add(&self.counters.retention_rows, rows);
        tracing::info!(files = dropped.len(), rows, "dropped by retention");
        Ok(dropped.len() as u64)
    }

    /// The files whose content has expired. Blocks that have partly expired are rewritten here.
    fn by_age(&self, policy: &RetentionPolicy, now: i64) -> Result<Vec<Arc<Block>>, StoreError> {
        let (mut dropped, mut due) = (Vec::new(), Vec::new());
        let view = self.files.view();
        for block in &view.blocks {
            let shares = if block.is_damaged() { None } else { policy.shares(block)? };
            let Some(shares) = shares else {
                if block.record.last_time < policy.least_raw_cut(now) {
                    dropped.push(block.clone());
                }
                continue;
            };
            let (expired, rows) = (policy.expired_rows(&shares, now), block.record.rows);
            let whole = expired == rows;
            if expired == 0 || (!whole && expired.saturating_mul(EXPIRED_PART) < rows) {
                continue;
            }
            let mut outliving = policy.outliving(&shares);
            if outliving.is_empty() && whole {
                dropped.push(block.clone());
                continue;
            }
            outliving.retain(|resolution| !policy.is_tier_expired(&shares, *resolution, now));
            let merge_delay_ns = i64::try_from(self.config.merge_delay.ns()).unwrap_or(i64::MAX);
            let has = |resolution: &i64| {
                tiers_of(&view.tiers, block.record.id).any(|(_, of)| of.resolution_ns == *resolution)
            };
            if block.record.trimmed || (outliving.iter().all(has) && is_over(&block.record, merge_delay_ns, now)) {
                due.push((block.clone(), whole));
            }
        }
        for tier in &view.tiers {
            let Some(of) = tier.record.tier else { continue };
            let Some(shares) = policy.shares(tier)? else { continue };
            if policy.is_tier_expired(&shares, of.resolution_ns, now) {
                dropped.push(tier.clone());
            }
        }
        dropped.extend(self.merge_before_drop(policy, &due, now)?);
        Ok(dropped)
    }

    /// Handles blocks that have expired wholly or partly: their day is merged first if that is still to be done.
    fn merge_before_drop(
        &self,
        policy: &RetentionPolicy,
        due: &[(Arc<Block>, bool)],
        now: i64,
    ) -> Result<Vec<Arc<Block>>, StoreError> {
        let mut days: BTreeMap<DayAndType, Vec<&(Arc<Block>, bool)>> = BTreeMap::new();
        for entry in due {
            let record = &entry.0.record;
            days.entry((record.day, record.value_type == wholegrain_model::ValueType::Float)).or_default().push(entry);
        }
        let mut dropped = Vec::new();
        for ((day, _), entries) in days {
            let value_type = entries[0].0.record.value_type;
            let same = |block: &&Arc<Block>| {
                let record = &block.record;
                record.day == day && record.value_type == value_type && !record.trimmed && !block.is_damaged()
            };
            let mut siblings: Vec<Arc<Block>> = self.files.view().blocks.iter().filter(same).cloned().collect();
            siblings.sort_by_key(|block| (block.record.rank(), block.record.id));
            let parted = siblings
                .windows(2)
                .any(|pair| stands_between(&self.files.view().blocks, &pair[0].record, &pair[1].record));
            let bytes: u64 = siblings.iter().map(|block| block.record.bytes).sum();
            if day.is_some() && !parted && siblings.len() > 1 && bytes <= self.config.merge_bytes_max.0 {
                self.compactor.merge(&siblings, now)?;
                continue;
            }
            for (block, whole) in entries {
                // Windows that a deletion touches are made again while their readings are there.
                match self.rewriter.rewrite_of(block) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(StoreError::DiskFull { .. }) if *whole => {}
                    Err(error) => return Err(error),
                }
                if *whole {
                    dropped.push(block.clone());
                } else {
                    self.trim(policy, block, now)?;
                }
            }
        }
        Ok(dropped)
    }

    /// Rewrites a block without expired readings. Its tiers stay and belong to the new block.
    fn trim(&self, policy: &RetentionPolicy, block: &Arc<Block>, now: i64) -> Result<(), StoreError> {
        let record = &block.record;
        let inputs = [block.clone()];
        let Some(open) = open_all(&inputs)? else { return Ok(()) };
        let mut draft = BlockDraft::create(&self.drafts, kind_of(record), self.config.merge_zstd_level)?;
        draft.trimmed = true;
        let id = draft.id();
        let keep_from = |path: &str| policy.on_edge(policy.raw_cut(policy.rule_of(path), now));
        let output = MergeOutput { draft: Some(draft), tiers: None, keep_from: Some(&keep_from) };
        let Some(finished) = run(&open, &inputs, output)? else { return Ok(()) };
        let relink = tiers_of(&self.files.view().tiers, record.id)
            .map(|(tier, of)| BlockRecord { tier: Some(TierSource { block: id, ..of }), ..tier.record.clone() })
            .collect();
        let (rows, bytes) = (record.rows.saturating_sub(finished[0].record.rows), finished[0].record.bytes);
        // Results computed from them are hidden only as long as this pass is remembered: after an opening they would be used.
        self.results.changed(record.first_time, record.last_time, None)?;
        if self.files.publish(&finished, &inputs, CatalogueChange { relink, ..CatalogueChange::default() })? {
            self.results.changed_after_commit(record.first_time, record.last_time, None);
            add(&self.counters.retention_rows, rows);
            add(&self.counters.retention_rewritten_bytes, bytes);
            tracing::info!(block = %block.path.display(), rows, "expired readings removed from a block");
        }
        Ok(())
    }

    /// Drops the oldest files until the others are small enough together; readings go before the windows made from them.
    fn by_size(&self, bytes_max: u64, dropped: &mut Vec<Arc<Block>>) {
        let view = self.files.view();
        let gone = |block: &&Arc<Block>| !dropped.iter().any(|other| Arc::ptr_eq(other, block));
        let mut oldest_first: Vec<Arc<Block>> = view.blocks.iter().chain(&view.tiers).filter(gone).cloned().collect();
        let resolution = |block: &Block| block.record.tier.map_or(0, |tier| tier.resolution_ns);
        oldest_first.sort_by_key(|block| (block.record.last_time, resolution(block), block.record.id));
        let mut total: u64 = oldest_first.iter().map(|block| block.record.bytes).sum();
        for block in oldest_first {
            if total <= bytes_max {
                break;
            }
            total -= block.record.bytes;
            dropped.push(block);
        }
    }
}

/// The tiers made from a block.
fn tiers_of(tiers: &[Arc<Block>], block: u64) -> impl Iterator<Item = (&Arc<Block>, TierSource)> {
    tiers.iter().filter_map(move |tier| {
        let of = tier.record.tier?;
        (of.block == block).then_some((tier, of))
    })
}

/// The day of a block, and whether it holds floats.
type DayAndType = (Option<i64>, bool);
