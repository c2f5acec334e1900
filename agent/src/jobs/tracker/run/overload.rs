//! Bounds the cost of one user's directories: how many are visited, and how many events are handled.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::live::DirId;
use super::super::tree;
use super::super::watch::{InotifyWatches, WatchTarget};
use super::{EVENTS_OF_USER_MAX, TrackerThread, TreeScan, is_gone};

impl TrackerThread {
    /// The owner of a directory's parent.
    pub(super) fn owner_above(&self, dir: &DirId) -> u32 {
        let above = dir.path.rsplit_once('/').map_or("", |(above, _)| above);
        self.own.visited.owner(&DirId::new(dir.hierarchy, above))
    }

    /// Counts events of a user's directories. `false` if there are too many; then the user's watches are removed until the next scan.
    pub(super) fn admit_event(&mut self, uid: u32) -> bool {
        if uid == 0 {
            return true;
        }
        let count = self.own.events.entry(uid).or_default();
        *count += 1;
        if *count == EVENTS_OF_USER_MAX {
            let (core, visited) = (&self.core, &self.own.visited);
            if let Some(watches) = &mut self.own.watches {
                watches.retain(|what| match what {
                    WatchTarget::Dir(dir) => visited.owner(dir) != uid,
                    WatchTarget::Events(key) => core.job(key).and_then(|job| job.record.uid) != Some(uid),
                    WatchTarget::Hooks | WatchTarget::Gpus => true,
                });
            }
            self.own.unwatched = true;
            self.own.log_limiter.seldom(&format!("events {uid}"), || {
                format!("cgroups of uid {uid} change so often that only the rescan reads them")
            });
        }
        *count < EVENTS_OF_USER_MAX
    }

    /// The number of further directories of a user that may be visited.
    pub(super) fn allowance(&self, uid: u32, scan: &TreeScan) -> usize {
        if uid == 0 {
            return usize::MAX;
        }
        let before = if scan.whole { 0 } else { self.own.visited.charged_to(uid) };
        let charged = scan.charged.get(&uid).copied().unwrap_or(0);
        self.config.bounds.directories_per_user.saturating_sub(before + charged)
    }

    /// Notes a directory that was not read completely.
    pub(super) fn report_incomplete(&mut self, dir: DirId, uid: u32, scan: &mut TreeScan) {
        let most = self.config.bounds.directories_per_user;
        let path = self.core.path(&dir);
        scan.over.insert(dir);
        self.own.log_limiter.seldom(&format!("directories {uid}"), || {
            format!(
                "uid {uid} has more than {most} cgroups in cgroups of their own, {} among them; the rest is not read ([jobs.bounds] \
                 directories_per_user)",
                path.display()
            )
        });
    }

    pub(super) fn count(&mut self) {
        let skipped = self.core.skipped();
        if skipped > 0 {
            self.own.log_limiter.seldom("jobs", || {
                format!(
                    "{skipped} directories of jobs are skipped: there are as many jobs as [jobs.bounds] jobs and jobs_per_user allow"
                )
            });
        }
        let put = |count: &AtomicU64, value: usize| count.store(value as u64, Ordering::Relaxed);
        put(&self.counters.watches, self.own.watches.as_ref().map_or(0, InotifyWatches::count));
        put(&self.counters.jobs_skipped, skipped);
    }

    /// The number of directories that are listed in one of a user's.
    pub(super) fn listed_max(&self, uid: u32) -> usize {
        if uid == 0 { usize::MAX } else { self.config.bounds.directories_per_user }
    }

    /// The known directories of jobs in directories that were not read completely: they are checked one by one.
    pub(super) fn report_skipped(&self, scan: &mut TreeScan) {
        let is_over = |dir: &DirId| {
            let above = dir.path.match_indices('/').map(|(at, _)| &dir.path[..at]);
            above.chain(["", &*dir.path]).any(|path| scan.over.contains(&DirId::new(dir.hierarchy, path)))
        };
        if scan.over.is_empty() {
            return;
        }
        let known = self.core.jobs().flat_map(|(_, live)| live.dirs.iter().map(|(dir, _)| dir).chain(live.step_dirs()));
        let there: Vec<DirId> = known
            .filter(|dir| !scan.seen.contains(dir) && is_over(dir))
            .filter(|dir| !tree::stat(&self.core.path(dir)).is_err_and(|error| is_gone(&error)))
            .cloned()
            .collect();
        scan.seen.extend(there);
    }
}
