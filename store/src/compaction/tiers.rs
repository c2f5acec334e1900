//! Makes tiers of blocks that have none: blocks that were never merged, and blocks of an earlier configuration.

use std::sync::Arc;

use crate::StoreError;
use crate::block::index::IndexEntry;
use crate::block::read::Block;
use crate::block::record::kind_of;
use crate::catalogue::CatalogueChange;
use crate::compaction::pick::is_over;
use crate::compaction::write::{MergeOutput, open_all, run};
use crate::config::{StoreConfig, resolutions};
use crate::downsample::write::Downsampler;
use crate::files::FileSet;
use crate::holes::bound_of;
use crate::retention_policy::PolicyInForce;
use crate::sensors::SensorIndex;
use crate::stats::{Counters, add};

/// The tiers that are missing or outdated.
pub(crate) struct MissingTiers {
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub sensors: Arc<SensorIndex>,
    pub policy: Arc<PolicyInForce>,
    pub downsampler: Arc<Downsampler>,
    pub counters: Arc<Counters>,
}

impl MissingTiers {
    /// Makes the missing tiers of one block that will not be merged again; `false` if there is none.
    pub(crate) fn tier_once(&self, now: i64) -> Result<bool, StoreError> {
        let wanted = resolutions(&self.config.tiers);
        let merge_delay_ns = i64::try_from(self.config.merge_delay.ns()).unwrap_or(i64::MAX);
        if wanted.is_empty() {
            return Ok(false);
        }
        let (view, policy) = (self.files.view(), self.policy.get());
        for block in &view.blocks {
            if block.is_damaged() || block.record.trimmed || !is_over(&block.record, merge_delay_ns, now) {
                continue;
            }
            let of_block = |tier: &&Arc<Block>| tier.record.tier.is_some_and(|tier| tier.block == block.record.id);
            let tiers: Vec<Arc<Block>> = view.tiers.iter().filter(of_block).cloned().collect();
            let has = |resolution: i64| {
                let same = |tier: &Arc<Block>| tier.record.tier.is_some_and(|tier| tier.resolution_ns == resolution);
                tiers.iter().any(|tier| same(tier) && !tier.is_damaged())
            };
            let missing: Vec<i64> = wanted.iter().copied().filter(|resolution| !has(*resolution)).collect();
            if missing.is_empty() {
                continue;
            }
            let Some(shares) = policy.shares(block)? else { continue };
            // Retention would drop it at once.
            let alive = |resolution: &i64| !policy.is_tier_expired(&shares, *resolution, now);
            let missing: Vec<i64> = missing.into_iter().filter(alive).collect();
            if missing.is_empty() {
                continue;
            }
            let damaged: Vec<Arc<Block>> = tiers.into_iter().filter(|tier| tier.is_damaged()).collect();
            self.make(block, &missing, &damaged)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Drops tiers whose lines do not agree with the present intervals of their sensors, if [`MissingTiers::tier_once`] can make them again;
    /// returns their number. The caller holds the compactor's lock.
    pub(crate) fn drop_outdated(&self, now: i64) -> Result<usize, StoreError> {
        drop(self.files.reconcile()?);
        let merge_delay_ns = i64::try_from(self.config.merge_delay.ns()).unwrap_or(i64::MAX);
        let wanted = resolutions(&self.config.tiers);
        let view = self.files.view();
        let mut outdated = Vec::new();
        for tier in view.tiers.iter().filter(|tier| !tier.is_damaged()) {
            let Some(of) = tier.record.tier.filter(|of| wanted.contains(&of.resolution_ns)) else { continue };
            let is_whole =
                |block: &&Arc<Block>| block.record.id == of.block && !block.record.trimmed && !block.is_damaged();
            let block = view.blocks.iter().find(is_whole);
            if block.is_none_or(|block| !is_over(&block.record, merge_delay_ns, now)) {
                continue;
            }
            let Some(open) = open_all(std::slice::from_ref(tier))? else { continue };
            let sensors = self.sensors.read();
            let fits = |(at, entry): (usize, &IndexEntry)| {
                let interval_ns =
                    sensors.id(&entry.path).and_then(|id| sensors.info(id)).map_or(0, |info| info.interval_ns);
                open[0].drawn_at(at).fits(bound_of(interval_ns))
            };
            if !open[0].entries().iter().enumerate().all(fits) {
                outdated.push(tier.clone());
            }
        }
        if outdated.is_empty() || !self.files.publish(&[], &outdated, CatalogueChange::default())? {
            return Ok(0);
        }
        Ok(outdated.len())
    }

    fn make(&self, block: &Arc<Block>, missing: &[i64], damaged: &[Arc<Block>]) -> Result<(), StoreError> {
        let inputs = [block.clone()];
        let Some(open) = open_all(&inputs)? else { return Ok(()) };
        let record = &block.record;
        let kind = kind_of(record);
        let tiers = self.downsampler.begin(kind, record.id, missing)?;
        let Some(finished) = run(&open, &inputs, MergeOutput { draft: None, tiers: Some(tiers), keep_from: None })?
        else {
            return Ok(());
        };
        let bytes: u64 = finished.iter().map(|tier| tier.record.bytes).sum();
        let change = CatalogueChange { requires: vec![record.id], ..CatalogueChange::default() };
        if self.files.publish(&finished, damaged, change)? {
            add(&self.counters.tier_bytes_written, bytes);
        }
        Ok(())
    }
}
