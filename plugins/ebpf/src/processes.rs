//! Jobs whose cgroups had no process so far: they get no slot.
//!
//! A user with a delegated cgroup makes directories with names of jobs at no cost. One with a process costs that user a process, which the machine's
//! own bounds count.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::records::RunningJob;

/// The directories of one job that are looked at in a round.
const DIRECTORIES_PER_JOB_MAX: usize = 64;
/// The directories of all jobs that are looked at in a round.
const DIRECTORIES_MAX: usize = 256;
/// `cgroup.events` has two short lines.
const EVENTS_BYTES_MAX: u64 = 256;

/// A job in the records.
#[derive(Debug, Default)]
pub struct WaitingJob {
    pub job: RunningJob,
    /// Its directories in the counted hierarchy.
    pub directories: Vec<PathBuf>,
    /// The last round that read its processes.
    looked_at: u64,
}

/// The jobs that had no process so far.
#[derive(Debug, Default)]
pub struct WaitingJobs {
    jobs: BTreeMap<String, WaitingJob>,
    round: u64,
}

impl WaitingJobs {
    pub fn count(&self) -> usize {
        self.jobs.len()
    }

    pub fn replace(&mut self, mut jobs: BTreeMap<String, WaitingJob>) {
        for (level, job) in &mut jobs {
            job.looked_at = self.jobs.get(level).map_or(0, |before| before.looked_at);
        }
        self.jobs = jobs;
    }

    /// The jobs that have a process now, which wait no longer. Those that were not looked at are the first in the next round.
    pub fn take_populated(&mut self) -> Vec<(String, RunningJob)> {
        self.round += 1;
        let mut left = DIRECTORIES_MAX;
        let mut found = Vec::new();
        for level in self.in_turns() {
            if left == 0 {
                break;
            }
            let Some(job) = self.jobs.get_mut(&level) else { continue };
            job.looked_at = self.round;
            let (looks, is_populated) = has_process(&job.directories, left.min(DIRECTORIES_PER_JOB_MAX));
            left -= looks;
            if is_populated && let Some(job) = self.jobs.remove(&level) {
                found.push((level, job.job));
            }
        }
        found
    }

    /// The jobs of this round: one of each user, then a second one of each, and so on. So many jobs of one user do not delay those of others.
    fn in_turns(&self) -> Vec<String> {
        let mut of_user: BTreeMap<Option<u32>, Vec<(u64, i64, &str)>> = BTreeMap::new();
        for (level, job) in &self.jobs {
            of_user.entry(job.job.uid).or_default().push((job.looked_at, job.job.from, level));
        }
        let mut all = Vec::new();
        for jobs in of_user.values_mut() {
            jobs.sort_unstable();
            all.extend(jobs.iter().enumerate());
        }
        all.sort_unstable();
        all.into_iter().take(DIRECTORIES_MAX).map(|(_, (_, _, level))| (*level).to_owned()).collect()
    }
}

/// The number of directories that were looked at, and whether a process was found. A directory that cannot be read has none: who hides it is its
/// owner, and loses only the own job.
fn has_process(directories: &[PathBuf], looks_max: usize) -> (usize, bool) {
    let mut next: VecDeque<PathBuf> = directories.iter().take(looks_max).cloned().collect();
    let mut looks = 0;
    while let Some(directory) = next.pop_front() {
        if looks == looks_max {
            break;
        }
        looks += 1;
        match is_populated(&directory) {
            Some(true) => return (looks, true),
            Some(false) => continue,
            None => {}
        }
        if first_bytes(&directory.join("cgroup.procs"), 1).is_some_and(|text| !text.is_empty()) {
            return (looks, true);
        }
        let room = looks_max.saturating_sub(looks + next.len());
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let below = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        next.extend(below.take(room).map(|entry| entry.path()));
    }
    (looks, false)
}

/// Whether a directory of the unified hierarchy or one below it has a process. `None` in version 1, which has no such file.
fn is_populated(directory: &Path) -> Option<bool> {
    let text = first_bytes(&directory.join("cgroup.events"), EVENTS_BYTES_MAX)?;
    text.split(|byte| *byte == b'\n').find_map(|line| Some(line.strip_prefix(b"populated ")? != b"0"))
}

fn first_bytes(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(bytes_max).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(uid: u32, from: i64, directory: &Path) -> WaitingJob {
        let job = RunningJob { uid: Some(uid), from, cgroups: vec![1] };
        WaitingJob { job, directories: vec![directory.to_owned()], looked_at: 0 }
    }

    #[test]
    fn processes_are_found_in_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let (step, task) = (folder.path().join("step_0"), folder.path().join("step_0/task_0"));
        fs::create_dir_all(&task).unwrap();
        let check = |expected: (usize, bool)| assert_eq!(has_process(&[folder.path().to_owned()], 8), expected);
        check((3, false));
        for directory in [folder.path(), &step, &task] {
            fs::write(directory.join("cgroup.procs"), "").unwrap();
        }
        check((3, false));
        fs::write(task.join("cgroup.procs"), "17\n").unwrap();
        check((3, true));
        // Version 2 says it of all directories below in one file, and threaded cgroups have no other.
        fs::write(folder.path().join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
        check((1, false));
        fs::write(folder.path().join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        check((1, true));
        assert_eq!(has_process(&["/nonexistent".into()], 8), (1, false));
    }

    #[test]
    fn many_directories_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        for index in 0..100 {
            fs::create_dir_all(folder.path().join(format!("{index}/below"))).unwrap();
        }
        assert_eq!(has_process(&[folder.path().to_owned()], 40), (40, false));
    }

    /// One user's many jobs without processes delay another user's job by no round, and each is looked at in its turn.
    #[test]
    fn every_job_is_looked_at_and_users_take_turns() {
        let folder = tempfile::tempdir().unwrap();
        let populate = |name: &str, populated: u8| {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("cgroup.events"), format!("populated {populated}\n")).unwrap();
        };
        let mut jobs = BTreeMap::new();
        for index in 0..(2 * DIRECTORIES_MAX + 10) {
            let name = format!("00{index:04}");
            populate(&name, 0);
            jobs.insert(name.clone(), waiting(1000, 0, &folder.path().join(name)));
        }
        let last = jobs.keys().next_back().unwrap().clone();
        populate("4711", 1);
        jobs.insert("4711".to_owned(), waiting(7, 9, &folder.path().join("4711")));
        let mut waiting = WaitingJobs::default();
        waiting.replace(jobs);
        let found = waiting.take_populated();
        assert_eq!(found.iter().map(|(level, _)| level.as_str()).collect::<Vec<_>>(), ["4711"]);
        populate(&last, 1);
        let found: Vec<usize> = (0..2).map(|_| waiting.take_populated().len()).collect();
        assert_eq!((found, waiting.count()), (vec![0, 1], 2 * DIRECTORIES_MAX + 9));
    }
}
