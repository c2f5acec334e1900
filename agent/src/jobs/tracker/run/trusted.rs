//! Decides by the owners of a path whether its directories are a manager's.

use std::path::Path;

use super::super::layout::{DirectoryRole, JobPath};
use super::super::live::DirId;
use super::super::trust::{AllowedOwner, AllowedOwners, Ownership};
use super::TrackerThread;

impl TrackerThread {
    /// The owners of the parents of a directory, from the hierarchy's root on; `None` if the root itself has a wrong owner.
    pub(super) fn above(&mut self, dir: &DirId) -> Option<Vec<Ownership>> {
        let root = self.core.path(&DirId::new(dir.hierarchy, ""));
        let owned = Ownership::of_root(&root).ok()?;
        if !self.trust.allows(AllowedOwner::Root, &owned) {
            self.report(&format!(
                "{}: no jobs are monitored here, because it belongs to uid {} with mode {:03o}; only trees of root and the agent's user count",
                root.display(),
                owned.uid,
                owned.mode & 0o777
            ));
            return None;
        }
        let ends = dir.path.match_indices('/').map(|(at, _)| &dir.path[..at]);
        ends.map(|above| Ownership::of(&root.join(above)).ok()).collect()
    }

    /// Whether the owners of a path match one of these.
    pub(super) fn has_allowed_owners(
        &mut self,
        dir: &DirId,
        all: &[AllowedOwners],
        owned: &[Ownership],
        path: &Path,
    ) -> bool {
        let refused = all.iter().map(|owners| self.trust.refuses(owners, owned)).min().flatten();
        // A manager creates a directory and then gives it away: directories that are found below it in between are correct.
        if let Some(level) = refused.filter(|level| !self.may_be_given(dir, *level)) {
            self.own.refused += 1;
            let uid = owned.get(level).map(|owned| owned.uid).unwrap_or_default();
            if self.own.log_limiter.is_new(&format!("refused {uid}")) {
                tracing::warn!(
                    "{}: not a job, because a directory on its path belongs to uid {uid} or can be written by others",
                    path.display()
                );
            }
        }
        refused.is_none()
    }

    /// Whether the manager may give the directory at this level to a user.
    fn may_be_given(&self, dir: &DirId, level: usize) -> bool {
        let Some((end, _)) = dir.path.match_indices('/').nth(level) else { return false };
        let given = DirId::new(dir.hierarchy, &dir.path[..end]);
        matches!(self.core.role_of(&given), DirectoryRole::Job(found) if found.owners.last() == Some(&AllowedOwner::Anyone))
    }

    /// Nothing is read below a directory that was given to a user.
    pub(super) fn may_be_deeper(&self, found: &JobPath, owned: &[Ownership]) -> bool {
        let given = found.owners.last() == Some(&AllowedOwner::Anyone);
        !given || owned.last().is_some_and(|owned| self.trust.has(owned.uid))
    }
}
