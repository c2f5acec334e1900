//! The job of a process, by `/proc/PID/cgroup` (cgroups(7)) and the directories of the running jobs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wholegrain_sources::Roots;
use wholegrain_sources::job::JobCgroups;

use crate::jobs::{JobView, JobsView};

/// The most bytes of `/proc/PID/cgroup` that are read: 64 KiB.
const CGROUP_BYTES_MAX: usize = 64 << 10;

/// The cgroups of a process: for each hierarchy whether it is the unified one, and the path below its root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessLocation(Vec<(bool, PathBuf)>);

impl ProcessLocation {
    pub fn of(roots: &Roots, pid: i32) -> io::Result<Self> {
        let text = fs::read(roots.proc.join(pid.to_string()).join("cgroup"))?;
        Ok(Self::parse(&text[..text.len().min(CGROUP_BYTES_MAX)]))
    }

    /// Parses the file's lines, `<hierarchy>:<controllers>:<path>`; hierarchy 0 is the unified one.
    pub fn parse(text: &[u8]) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let lines = text.split(|byte| *byte == b'\n').filter_map(|line| {
            let mut fields = line.splitn(3, |byte| *byte == b':');
            let (hierarchy, _, path) = (fields.next()?, fields.next()?, fields.next()?);
            let path = Path::new(std::ffi::OsStr::from_bytes(path.strip_prefix(b"/")?));
            (!path.as_os_str().is_empty()).then(|| (hierarchy == b"0", path.to_owned()))
        });
        Self(lines.collect())
    }

    /// The deepest of the paths, for messages.
    pub fn deepest(&self) -> Option<&Path> {
        self.0.iter().map(|(_, path)| path.as_path()).max_by_key(|path| path.components().count())
    }

    /// The job of the process; of nested jobs, the innermost one.
    pub fn job(&self, view: &JobsView, roots: &Roots) -> Option<Arc<JobView>> {
        let depth = |job: &JobView| self.0.iter().filter_map(|at| depth_within(&job.cgroups, at, &roots.cgroup)).max();
        let found = view.jobs.iter().filter_map(|job| Some((depth(job)?, job))).max_by_key(|(depth, _)| *depth);
        found.map(|(_, job)| job.clone())
    }
}

/// The number of levels of the job's directory below the hierarchy's root, if the process is in it or below it.
fn depth_within(cgroups: &JobCgroups, (is_unified, path): &(bool, PathBuf), root: &Path) -> Option<usize> {
    let below = |dir: &Path| {
        let below = dir.strip_prefix(root).ok()?;
        // Version 1 hierarchies are mounted below the root under their controllers' names, the unified one on the root or beside them.
        let mut levels = below.components();
        if !*is_unified || below.starts_with("unified") {
            levels.next();
        }
        let below = levels.as_path();
        (!below.as_os_str().is_empty() && path.starts_with(below)).then(|| below.components().count())
    };
    if *is_unified { below(cgroups.v2.as_deref()?) } else { cgroups.v1.values().filter_map(|dir| below(dir)).max() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_model::JobRecord;

    fn job(level: &str, v1: &[(&str, &str)], v2: Option<&str>) -> Arc<JobView> {
        let cgroups = JobCgroups {
            level: level.into(),
            v1: v1.iter().map(|(controller, dir)| ((*controller).to_owned(), dir.into())).collect(),
            v2: v2.map(Into::into),
            ..JobCgroups::default()
        };
        let record = JobRecord { job: level.into(), level: level.into(), ..JobRecord::default() };
        Arc::new(JobView { record, cgroups, wait_reason: None, metrics: Vec::new() })
    }

    #[test]
    fn by_either_version() {
        let view = JobsView {
            jobs: vec![
                job(
                    "5",
                    &[("memory", "/cg/memory/slurm/uid_0/job_5"), ("cpuacct", "/cg/cpu,cpuacct/slurm/uid_0/job_5")],
                    None,
                ),
                job("51", &[("memory", "/cg/memory/slurm/uid_0/job_51")], None),
                job("u", &[], Some("/cg/unified/flux/u")),
                job("s", &[], Some("/cg/system.slice/slurmstepd.scope/job_7")),
                job("inner", &[], Some("/cg/system.slice/slurmstepd.scope/job_7/inner")),
            ],
            ..JobsView::default()
        };
        let roots = Roots { cgroup: "/cg".into(), ..Roots::default() };
        let check = |text: &str, expected: Option<&str>| {
            let found = ProcessLocation::parse(text.as_bytes()).job(&view, &roots);
            assert_eq!(found.map(|job| job.record.level.clone()).as_deref(), expected, "{text}");
        };
        check("4:memory:/slurm/uid_0/job_5/step_0/task_0\n0::/\n", Some("5"));
        check("2:cpu,cpuacct:/slurm/uid_0/job_5\n", Some("5"));
        check("4:memory:/slurm/uid_0/job_51\n", Some("51"));
        check("4:memory:/slurm/uid_0\n", None);
        check("4:memory:/job_5\n3:pids:/uid_0/job_5\n", None);
        check("0::/slurm/uid_0/job_5\n", None);
        check("0::/flux/u/x\n", Some("u"));
        check("0::/u\n", None);
        check("0::/system.slice/slurmstepd.scope/job_7/step_0\n", Some("s"));
        check("0::/slurmstepd.scope/job_7\n", None);
        check("0::/system.slice/slurmstepd.scope/job_7/inner/x\n", Some("inner"));
        check("4:memory:/../job_5\n0::/../..\n", None);
        check("", None);
        check("::\n:\nx\n4:memory\n\u{fffd}:a:b\n", None);
    }
}
