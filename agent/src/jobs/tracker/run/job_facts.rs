//! Reads the facts of one job: its totals first, because a short job may end at any moment.

use std::path::Path;

use super::super::facts;
use super::super::hooks::GpuAssignment;
use super::super::layout::JobPath;
use super::super::live::JobKey;
use super::{EMPTY_NS_MAX, TrackerThread, now};
use crate::engine::clock;

impl TrackerThread {
    /// Reads the totals of a directory that was just found before anything else: a short job may have ended when other events are handled.
    pub(super) fn read_new_totals(&mut self, found: &JobPath, path: &Path) {
        let key = self.core.key_of(found);
        let Some(job) = self.core.job(&key) else { return };
        let totals = self.own.files.read_directory(&job.cgroups, path);
        self.core.apply_totals(&key, &totals, clock::real());
    }

    /// Reads the totals of a job.
    pub(super) fn read_totals(&mut self, key: &JobKey) {
        let Some(job) = self.core.job(key) else { return };
        let (totals, error) = self.own.files.read(key, &job.cgroups);
        self.core.apply_totals(key, &totals, clock::real());
        if let Some(error) = error
            && self.own.log_limiter.is_new(&format!("totals {:?}", error.kind()))
        {
            tracing::warn!("cannot read the totals of jobs: {error}; trying again");
        }
    }

    /// Reads all facts of a job.
    pub(super) fn read_facts(&mut self, key: &JobKey) {
        let Some(job) = self.core.job(key) else { return };
        let at = now();
        let has_processes = job.has_processes || {
            let (events, v1) = self.core.populated_files(job);
            facts::has_processes(&events, &v1)
        };
        if !has_processes && at.mono.saturating_sub(job.seen_mono) > EMPTY_NS_MAX {
            return;
        }
        self.read_totals(key);
        let Some(job) = self.core.job(key) else { return };
        let mut facts =
            super::super::live::JobFacts { cpus: facts::cpus(&job.cgroups), has_processes, ..Default::default() };
        facts.devices = facts::devices(&job.cgroups);
        let also = job.record.also.as_deref();
        let is_its = |gpu: &&GpuAssignment| {
            (gpu.job == job.record.job || Some(gpu.job.as_str()) == also) && gpu.may_be_of(&job.owner, job.record.uid)
        };
        facts.devices.extend(self.own.gpus.iter().filter(is_its).map(|gpu| gpu.device.clone()));
        if job.uid_from < super::super::live::UidSource::Processes {
            let dirs = self.core.process_dirs(job);
            facts.uid = facts::uid(&self.roots.proc, &dirs, job.account);
        }
        self.core.apply_facts(key, facts, now());
    }
}
