//! `[jobs.bounds]`: the resources of a node that jobs may take. Every user can create directories of jobs, so that each bound of the node has one of
//! a user beside it.

use serde::Deserialize;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::descriptors;

/// The fractions of the process's descriptors for jobs, and of those for the jobs of one user. The rest is for the node's own files, connections and
/// the disk.
const DESCRIPTORS_OF_JOBS: (usize, usize) = (1, 2);
const DESCRIPTORS_OF_USER: (usize, usize) = (3, 4);

/// The settings of `[jobs.bounds]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobBounds {
    /// Jobs at once. Further directories are skipped: no record, no sensors.
    pub jobs: usize,
    /// The same for one user.
    pub jobs_per_user: usize,
    /// Sensors of all jobs. A job beyond it has a record and no sensors until other jobs end.
    pub sensors: usize,
    /// The same for one user's jobs.
    pub sensors_per_user: usize,
    /// Open files and counters of all jobs' readers; by default half of the process's limit.
    pub descriptors: Option<usize>,
    /// The same for one user's jobs; by default three quarters of that.
    pub descriptors_per_user: Option<usize>,
    /// Directories within directories of one user that are read, of jobs and others.
    pub directories_per_user: usize,
    /// Inotify watches; the rescan covers directories without a watch.
    pub watches: usize,
}

impl Default for JobBounds {
    fn default() -> Self {
        Self {
            jobs: 2048,
            jobs_per_user: 1024,
            sensors: 65_536,
            sensors_per_user: 49_152,
            descriptors: None,
            descriptors_per_user: None,
            directories_per_user: 2048,
            watches: 16_384,
        }
    }
}

impl JobBounds {
    pub fn check(self, section: &Section) -> Result<Self, ConfigError> {
        let keys = [
            ("jobs", self.jobs),
            ("jobs_per_user", self.jobs_per_user),
            ("sensors", self.sensors),
            ("sensors_per_user", self.sensors_per_user),
            ("descriptors", self.descriptors.unwrap_or(1)),
            ("descriptors_per_user", self.descriptors_per_user.unwrap_or(1)),
            ("directories_per_user", self.directories_per_user),
            ("watches", self.watches),
        ];
        match keys.iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err(section.error(key, format!("{key} is 0; use 1 or more"))),
            None => Ok(self),
        }
    }

    /// The bounds of all jobs and of one user's jobs, for a process with this limit.
    pub fn descriptors_of(&self, limit: usize) -> (usize, usize) {
        let part = |(part, of): (usize, usize), whole: usize| (whole / of).saturating_mul(part).max(1);
        let all = self.descriptors.unwrap_or_else(|| part(DESCRIPTORS_OF_JOBS, limit));
        (all, self.descriptors_per_user.unwrap_or_else(|| part(DESCRIPTORS_OF_USER, all)).min(all))
    }

    /// Applies the bounds on descriptors to this process.
    pub fn apply(&self) {
        let (all, of_user) = self.descriptors_of(open_files_max());
        descriptors::set_bounds(all, of_user);
    }
}

/// The process's limit of descriptors.
fn open_files_max() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid buffer for the result; the call has no other effect.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1024 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_descriptors_are_the_nodes_unless_people_say_otherwise() {
        let bounds = JobBounds::default();
        assert_eq!(bounds.descriptors_of(1024), (512, 384));
        assert_eq!(bounds.descriptors_of(0), (1, 1));
        assert_eq!(bounds.descriptors_of(usize::MAX).0, usize::MAX / 2);
        assert_eq!(JobBounds { descriptors: Some(100), ..bounds }.descriptors_of(1024), (100, 75));
        assert_eq!(JobBounds { descriptors_per_user: Some(900), ..bounds }.descriptors_of(1024), (512, 512));
    }
}
