//! Selects the tier for a scan: for windows the coarsest that divides them; for one value over a range the coarsest that misses no stored data.

use std::sync::Arc;

use crate::StoreError;
use crate::block::read::Block;
use crate::snapshot::Snapshot;
use crate::snapshot::plan::{PlanStep, SourceSpan, plan};
use crate::snapshot::tiers::TierScanSource;

/// Stands for readings without windows.
const READINGS: i64 = 1;
/// A range cuts windows at both ends: readings are read there, and should be few.
const WINDOWS_MIN: i64 = 8;

impl Snapshot {
    /// The resolution in ns of the coarsest tier for windows of `every` (`None`: one window) in a part of `from <= time < to`.
    pub fn tier_for(&self, from: i64, to: i64, every: Option<i64>) -> Option<i64> {
        let there = self.tiers_there(from, to);
        match every {
            Some(every) => there.into_iter().rev().find(|resolution| every % resolution == 0),
            None => {
                let found = there.iter().rev().find(|resolution| is_short(**resolution, to.saturating_sub(from)));
                // If readings are gone, a coarser tier is better than nothing.
                found.or_else(|| there.first().filter(|_| self.is_gone(from, to))).copied()
            }
        }
    }

    /// The resolutions of the tiers in a range, finest first.
    fn tiers_there(&self, from: i64, to: i64) -> Vec<i64> {
        let overlaps =
            |tier: &&Arc<Block>| tier.record.first_time < to && tier.record.last_time >= from && !tier.is_damaged();
        let tiers = self.view.tiers.iter().filter(overlaps);
        let mut there: Vec<i64> = tiers.filter_map(|tier| Some(tier.record.tier?.resolution_ns)).collect();
        there.sort_unstable();
        there.dedup();
        there
    }

    /// The tier for one sensor, and its sources; `None` if readings are better.
    pub(super) fn chosen(
        &self,
        path: &str,
        (from, to): (i64, i64),
        every: Option<i64>,
    ) -> Result<Option<(i64, Vec<TierScanSource>)>, StoreError> {
        if every.is_some() {
            let Some(resolution) = self.tier_for(from, to, every) else { return Ok(None) };
            return Ok(Some((resolution, self.sources(path, from, to, resolution)?)));
        }
        let there = self.tiers_there(from, to);
        let (short, long): (Vec<i64>, Vec<i64>) =
            there.into_iter().partition(|resolution| is_short(*resolution, to.saturating_sub(from)));
        let mut best: Option<(i64, i64, Vec<TierScanSource>)> = None;
        for resolution in short.into_iter().rev().chain([READINGS]).chain(long) {
            let sources = self.sources(path, from, to, resolution)?;
            let lost = self.not_shown(&sources, path, (from, to), resolution)?;
            if best.as_ref().is_none_or(|best| lost < best.0) {
                best = Some((lost, resolution, sources));
            }
            if lost == 0 {
                break;
            }
        }
        Ok(best.map(|(_, resolution, sources)| (resolution, sources)).filter(|(resolution, _)| *resolution != READINGS))
    }

    /// How much time with stored data of the sensor, in ns, these sources miss.
    fn not_shown(
        &self,
        sources: &[TierScanSource],
        path: &str,
        (from, to): (i64, i64),
        resolution: i64,
    ) -> Result<i64, StoreError> {
        let spans: Vec<SourceSpan> = sources.iter().map(|source| source.span).collect();
        let missing = plan(&spans, from, to, resolution).into_iter().map(|step| match step {
            PlanStep::Missing { lo, hi } => hi.saturating_sub(lo),
            _ => 0,
        });
        let mut lost = missing.fold(0, i64::saturating_add);
        let mut counted: Vec<u64> = Vec::new();
        for tier in self.view.tiers.iter().filter(|tier| !tier.is_damaged()) {
            let Some(of) = tier.record.tier.filter(|of| resolution % of.resolution_ns != 0) else { continue };
            if tier.record.first_time >= to || tier.record.last_time < from || counted.contains(&of.block) {
                continue;
            }
            let Some(entry) = self.found_in(tier, path)? else { continue };
            let hidden = self.policy.tier_hidden_before(path, self.retained_at, of.resolution_ns);
            let (first, last) = (entry.first_time.max(hidden).max(from), entry.last_time.min(to.saturating_sub(1)));
            let of_block = sources.iter().find(|source| source.block() == Some(of.block));
            let shown_from = of_block.map_or(i64::MAX, |source| source.span.first);
            let more = last.min(shown_from.saturating_sub(1)).saturating_sub(first).saturating_add(1);
            if more > 0 {
                counted.push(of.block);
                lost = lost.saturating_add(more);
            }
        }
        Ok(lost)
    }
}

/// Whether windows of a resolution are short beside a range.
fn is_short(resolution: i64, range: i64) -> bool {
    resolution.saturating_mul(WINDOWS_MIN) <= range
}
