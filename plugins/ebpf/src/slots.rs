//! Which slot of the kernel's counts a job has.
//!
//! The kernel finds jobs by the numbers of their directories. A slot is given to one job at a time; its counts are never set to 0, so that a job's
//! values are those since it got the slot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use crate::counts::SlotTotals;
use crate::records::{Hierarchy, RunningJobs};
use crate::shares::chosen_jobs;

/// The directories that a job may have in one hierarchy: a bound of each job, so that none takes those of others.
pub const DIRECTORIES_PER_JOB: u32 = 4;

/// The maps of the kernel that say which cgroup is which job.
pub trait JobMaps {
    /// The counts of a slot.
    fn read(&mut self, slot: u32) -> io::Result<SlotTotals>;
    /// Counts what is in a cgroup for a slot.
    fn insert(&mut self, cgroup: u64, slot: u32, epoch: u32) -> io::Result<()>;
    fn remove(&mut self, cgroup: u64) -> io::Result<()>;
    /// Sets the epoch of the job of a slot; 0 for none.
    fn set_epoch(&mut self, slot: u32, epoch: u32) -> io::Result<()>;
    /// Makes the programs look up the jobs of tasks again.
    fn publish(&mut self, jobs: &RunningJobs, generation: u32) -> io::Result<()>;
}

/// A job that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSlot {
    pub slot: u32,
    /// Another job of the same name has another one.
    pub epoch: u32,
    pub before: SlotTotals,
}

/// The slots of jobs. Slot 0 is the node's.
pub struct JobSlots {
    free: VecDeque<u32>,
    jobs: BTreeMap<String, JobSlot>,
    /// The cgroups in the kernel's map.
    cgroups: BTreeMap<u64, JobSlot>,
    current: RunningJobs,
    jobs_max: usize,
    generation: u32,
    epoch: u32,
    left_out: usize,
}

impl JobSlots {
    pub fn new(jobs_max: u32) -> Self {
        Self {
            free: (1..=jobs_max).collect(),
            jobs: BTreeMap::new(),
            cgroups: BTreeMap::new(),
            current: RunningJobs::default(),
            jobs_max: jobs_max as usize,
            generation: 0,
            epoch: 0,
            left_out: 0,
        }
    }

    /// The counted jobs, by their levels.
    pub fn jobs(&self) -> impl Iterator<Item = (&str, JobSlot)> {
        self.jobs.iter().map(|(level, slot)| (level.as_str(), *slot))
    }

    /// Whether a job still has its slot.
    pub fn has(&self, level: &str, epoch: u32) -> bool {
        self.jobs.get(level).is_some_and(|job| job.epoch == epoch)
    }

    pub fn count(&self) -> usize {
        self.jobs.len()
    }

    /// The hierarchy of the jobs' directories.
    pub fn hierarchy(&self) -> Hierarchy {
        self.current.hierarchy
    }

    /// Running jobs without a slot, or with a cgroup that is not counted.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Those of the jobs left out that had no process so far.
    pub fn without_process(&self) -> usize {
        self.current.without_process
    }

    /// Takes the running jobs. Whether the counted jobs are others than before. A job that runs on keeps its slot, except as in [`chosen_jobs`].
    pub fn update(&mut self, running: &RunningJobs, maps: &mut dyn JobMaps) -> io::Result<bool> {
        if *running == self.current {
            return Ok(false);
        }
        // After an error the same jobs are tried again.
        self.current = RunningJobs::default();
        let chosen = chosen_jobs(running, |level| self.jobs.contains_key(level), self.jobs_max);
        let released = self.release(running, &chosen, maps)?;
        let (mut added, mut left_out) = (false, running.elsewhere + running.without_process);
        for (level, running) in &running.jobs {
            if !chosen.contains(level.as_str()) {
                left_out += 1;
                continue;
            }
            let job = match self.jobs.get(level) {
                Some(job) => *job,
                None => {
                    let Some(slot) = self.free.pop_front() else {
                        left_out += 1;
                        continue;
                    };
                    match self.begin(slot, maps) {
                        Ok(job) => {
                            self.jobs.insert(level.clone(), job);
                            added = true;
                            job
                        }
                        Err(error) => {
                            self.free.push_front(slot);
                            return Err(error);
                        }
                    }
                }
            };
            let mut is_whole = true;
            let mut count = self.cgroups.values().filter(|other| **other == job).count();
            for cgroup in &running.cgroups {
                if self.cgroups.contains_key(cgroup) {
                    continue;
                }
                if count == DIRECTORIES_PER_JOB as usize {
                    is_whole = false;
                    continue;
                }
                count += 1;
                maps.insert(*cgroup, job.slot, job.epoch)?;
                self.cgroups.insert(*cgroup, job);
            }
            left_out += usize::from(!is_whole);
        }
        self.publish(running, maps)?;
        self.left_out = left_out;
        self.current = running.clone();
        Ok(released || added)
    }

    /// Ends the jobs that do not run any more or lose their slot, and the cgroups that no job has.
    fn release(&mut self, running: &RunningJobs, chosen: &BTreeSet<&str>, maps: &mut dyn JobMaps) -> io::Result<bool> {
        let has = |cgroup: &u64, job: &JobSlot| {
            let mut counted = running.jobs.iter().filter(|(level, _)| chosen.contains(level.as_str()));
            counted.any(|(level, found)| self.jobs.get(level) == Some(job) && found.cgroups.contains(cgroup))
        };
        let ended: Vec<u64> =
            self.cgroups.iter().filter(|(cgroup, job)| !has(cgroup, job)).map(|(id, _)| *id).collect();
        for cgroup in ended {
            maps.remove(cgroup)?;
            self.cgroups.remove(&cgroup);
        }
        let ended: Vec<String> = self.jobs.keys().filter(|level| !chosen.contains(level.as_str())).cloned().collect();
        for level in &ended {
            let Some(slot) = self.jobs.get(level).map(|job| job.slot) else { continue };
            maps.set_epoch(slot, 0)?;
            self.jobs.remove(level);
            // The slot that is free for the longest time is used next.
            self.free.push_back(slot);
        }
        if !ended.is_empty() {
            self.publish(running, maps)?;
        }
        Ok(!ended.is_empty())
    }

    fn begin(&mut self, slot: u32, maps: &mut dyn JobMaps) -> io::Result<JobSlot> {
        // 0 stands for no job.
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        let job = JobSlot { slot, epoch: self.epoch, before: maps.read(slot)? };
        maps.set_epoch(slot, job.epoch)?;
        Ok(job)
    }

    fn publish(&mut self, running: &RunningJobs, maps: &mut dyn JobMaps) -> io::Result<()> {
        self.generation = self.generation.wrapping_add(1);
        maps.publish(running, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::SlotQuantity;
    use crate::records::RunningJob;

    /// The kernel's maps, in which every slot counts one retransmit at each read.
    #[derive(Default)]
    struct RecordedMaps {
        counts: BTreeMap<u32, u64>,
        cgroups: BTreeMap<u64, (u32, u32)>,
        epochs: BTreeMap<u32, u32>,
        generations: Vec<u32>,
        fails: bool,
    }

    impl JobMaps for RecordedMaps {
        fn read(&mut self, slot: u32) -> io::Result<SlotTotals> {
            let mut totals = SlotTotals::ZERO;
            let count = self.counts.entry(slot).or_default();
            *count += 1;
            if let Some(last) = totals.0.last_mut() {
                *last = *count;
            }
            Ok(totals)
        }

        fn insert(&mut self, cgroup: u64, slot: u32, epoch: u32) -> io::Result<()> {
            if self.fails {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            self.cgroups.insert(cgroup, (slot, epoch));
            Ok(())
        }

        fn remove(&mut self, cgroup: u64) -> io::Result<()> {
            assert!(self.cgroups.remove(&cgroup).is_some());
            Ok(())
        }

        fn set_epoch(&mut self, slot: u32, epoch: u32) -> io::Result<()> {
            self.epochs.insert(slot, epoch);
            Ok(())
        }

        fn publish(&mut self, _: &RunningJobs, generation: u32) -> io::Result<()> {
            self.generations.push(generation);
            Ok(())
        }
    }

    fn running(jobs: &[(&str, &[u64])]) -> RunningJobs {
        let job = |cgroups: &[u64]| RunningJob { cgroups: cgroups.to_vec(), ..RunningJob::default() };
        let jobs = jobs.iter().map(|(level, cgroups)| ((*level).to_owned(), job(cgroups))).collect();
        RunningJobs { hierarchy: Hierarchy::Unified, jobs, ..RunningJobs::default() }
    }

    #[test]
    fn jobs_get_slots_keep_them_and_leave_them() {
        let (mut slots, mut maps) = (JobSlots::new(2), RecordedMaps::default());
        assert!(slots.update(&running(&[("1", &[10]), ("2", &[20, 21])]), &mut maps).unwrap());
        assert_eq!(maps.cgroups, BTreeMap::from([(10, (1, 1)), (20, (2, 2)), (21, (2, 2))]));
        assert!(!slots.update(&running(&[("1", &[10]), ("2", &[20, 21])]), &mut maps).unwrap());
        assert_eq!(maps.generations.len(), 1, "nothing is looked up again without a change");
        // A third job has no slot, and takes none from the others.
        assert!(!slots.update(&running(&[("0", &[5]), ("1", &[10]), ("2", &[20])]), &mut maps).unwrap());
        assert_eq!((slots.count(), slots.left_out()), (2, 1));
        assert_eq!(maps.cgroups, BTreeMap::from([(10, (1, 1)), (20, (2, 2))]));
        // It gets that of the first job that ends, and counts from there.
        assert!(slots.update(&running(&[("0", &[5]), ("2", &[20])]), &mut maps).unwrap());
        assert_eq!((slots.left_out(), maps.epochs[&1]), (0, 3));
        let job = slots.jobs().find(|(level, _)| *level == "0").unwrap().1;
        assert_eq!((job.slot, job.before.value(SlotQuantity::Retransmits)), (1, 2));
        assert!(slots.has("0", 3) && !slots.has("1", 1) && slots.has("2", 2));
        // The same level with another directory is the same job; without any it has ended.
        assert!(!slots.update(&running(&[("0", &[6]), ("2", &[20])]), &mut maps).unwrap());
        assert_eq!(maps.cgroups, BTreeMap::from([(6, (1, 3)), (20, (2, 2))]));
        assert!(slots.update(&running(&[]), &mut maps).unwrap());
        assert_eq!((maps.cgroups.len(), &maps.epochs), (0, &BTreeMap::from([(1, 0), (2, 0)])));
    }

    #[test]
    fn a_job_of_many_directories_is_bounded() {
        let (mut slots, mut maps) = (JobSlots::new(2), RecordedMaps::default());
        let many: Vec<u64> = (100..200).collect();
        slots.update(&running(&[("1", &many), ("2", &[20])]), &mut maps).unwrap();
        assert_eq!((maps.cgroups.len(), slots.left_out()), (DIRECTORIES_PER_JOB as usize + 1, 1));
        assert!(maps.cgroups.contains_key(&20), "the other job is whole");
        slots.update(&running(&[("1", &many[1..]), ("2", &[20])]), &mut maps).unwrap();
        assert_eq!((maps.cgroups.len(), slots.left_out()), (DIRECTORIES_PER_JOB as usize + 1, 1));
    }

    #[test]
    fn a_user_with_all_slots_gives_one_to_another_user() {
        let (mut slots, mut maps) = (JobSlots::new(2), RecordedMaps::default());
        let mut jobs = running(&[("00", &[10]), ("01", &[11]), ("02", &[12])]);
        jobs.jobs.values_mut().for_each(|job| job.uid = Some(1000));
        slots.update(&jobs, &mut maps).unwrap();
        assert_eq!((maps.cgroups.keys().collect::<Vec<_>>(), slots.left_out()), (vec![&10, &11], 1));
        jobs.without_process = 5;
        jobs.jobs.insert("4711".to_owned(), RunningJob { uid: Some(7), from: 9, cgroups: vec![20] });
        assert!(slots.update(&jobs, &mut maps).unwrap());
        assert_eq!((slots.left_out(), slots.without_process()), (7, 5));
        assert_eq!(maps.cgroups, BTreeMap::from([(10, (1, 1)), (20, (2, 3))]));
        assert_eq!(maps.epochs, BTreeMap::from([(1, 1), (2, 3)]));
        assert!(!slots.has("01", 2) && slots.has("4711", 3));
    }

    #[test]
    fn a_failed_update_is_tried_again() {
        let (mut slots, mut maps) = (JobSlots::new(2), RecordedMaps { fails: true, ..RecordedMaps::default() });
        let jobs = running(&[("1", &[10])]);
        assert!(slots.update(&jobs, &mut maps).is_err());
        maps.fails = false;
        slots.update(&jobs, &mut maps).unwrap();
        assert_eq!((maps.cgroups.len(), slots.count(), slots.left_out()), (1, 1, 0));
    }
}
