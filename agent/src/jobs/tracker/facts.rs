//! Facts about a job from its files, beside its path: creation time, owner of the processes, CPUs and devices.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use wholegrain_sources::job::JobCgroups;

use super::live::DirectoryStamp;

/// The most directories of a job, and the most processes in each, that are checked for their owner.
const DIRS_MAX: usize = 32;
const PIDS_MAX: usize = 16;
/// The longest `cpuset.cpus`, in bytes.
const CPUS_BYTES_MAX: usize = wholegrain_model::job::JOB_CPUS_BYTES_MAX;
/// Major numbers of GPU devices (Linux: `Documentation/admin-guide/devices.txt`): NVIDIA's, and the kernel's own, of which minor numbers from 128 on
/// are for computing.
const NVIDIA_MAJOR: u32 = 195;
const NVIDIA_MINOR_MAX: u32 = 253;
const DRM_MAJOR: u32 = 226;
const DRM_RENDER_MIN: u32 = 128;

/// Creation time and inode of a directory; `now` if the file system has no valid time.
pub fn stamp(path: &Path, now: i64) -> io::Result<DirectoryStamp> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: an all-zero statx is valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let wanted = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    // SAFETY: the name ends with a zero, and the structure outlives the call.
    let done = unsafe { libc::statx(libc::AT_FDCWD, name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW, wanted, &mut stat) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let ns = |time: &libc::statx_timestamp| time.tv_sec.saturating_mul(1_000_000_000) + i64::from(time.tv_nsec);
    let is_birth = stat.stx_mask & libc::STATX_BTIME != 0;
    let created = if is_birth { ns(&stat.stx_btime) } else { ns(&stat.stx_mtime).min(ns(&stat.stx_ctime)) };
    let created = if created <= 0 || created > now { now } else { created };
    Ok(DirectoryStamp { created, is_birth, inode: stat.stx_ino })
}

/// Whether there are processes, by these `cgroup.events` files, or in these directories of version 1 and below: the manager may have given a step's
/// directory to the user, who has moved the processes to one that is no step. True if unknown: without such files, without permission to read them,
/// or with more directories than are checked.
pub fn has_processes(events: &[PathBuf], v1: &[PathBuf]) -> bool {
    let mut was_read = false;
    for file in events.iter().take(DIRS_MAX) {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        was_read = true;
        if text.lines().any(|line| line == "populated 1") {
            return true;
        }
    }
    let mut waiting = v1.to_vec();
    for _ in 0..DIRS_MAX {
        let Some(dir) = waiting.pop() else { break };
        if let Ok(text) = std::fs::read_to_string(dir.join("cgroup.procs")) {
            was_read = true;
            if !text.is_empty() {
                return true;
            }
        }
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        waiting.extend(below.map(|entry| entry.path()).take(DIRS_MAX));
    }
    !was_read || !waiting.is_empty()
}

/// The owner of the processes in these directories: the first user that is neither root nor the manager's `account`, or root if all are root's;
/// without processes the owner of the first directory, unless that is one of the two.
pub fn uid(proc: &Path, dirs: &[PathBuf], account: Option<u32>) -> Option<u32> {
    let mut root = None;
    for dir in dirs.iter().take(DIRS_MAX) {
        let Ok(pids) = std::fs::read_to_string(dir.join("cgroup.procs")) else { continue };
        let pids = pids.lines().filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()));
        for pid in pids.take(PIDS_MAX) {
            match std::fs::read_to_string(proc.join(pid).join("status")).ok().as_deref().and_then(real_uid) {
                Some(0) => root = Some(0),
                uid @ Some(_) if uid == account => {}
                Some(uid) => return Some(uid),
                None => {}
            }
        }
    }
    let owner = dirs
        .first()
        .and_then(|dir| std::fs::metadata(dir).ok())
        .map(|meta| meta.uid())
        .filter(|uid| *uid != 0 && Some(*uid) != account);
    owner.or(root)
}

/// The first number of `Uid:` in `/proc/PID/status` (proc(5)): the real user, whatever the program changes.
fn real_uid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// The job's CPUs in the kernel's list format.
pub fn cpus(cgroups: &JobCgroups) -> Option<String> {
    let unified = cgroups.v2.iter().map(|dir| dir.join("cpuset.cpus.effective"));
    let v1 = ["cpuset.effective_cpus", "cpuset.cpus.effective", "cpuset.cpus"];
    let v1 = v1.iter().filter_map(|name| Some(cgroups.v1("cpuset")?.join(name)));
    unified.chain(v1).find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        let text = text.trim();
        let is_list = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',' || byte == b'-');
        (!text.is_empty() && text.len() <= CPUS_BYTES_MAX && is_list).then(|| text.to_owned())
    })
}

/// GPUs that the device controller of version 1 allows. They are named after their device files, because a GPU's index may differ from its minor
/// number.
pub fn devices(cgroups: &JobCgroups) -> Vec<String> {
    let list = cgroups.v1("devices").and_then(|dir| std::fs::read_to_string(dir.join("devices.list")).ok());
    let mut found: Vec<String> = list.iter().flat_map(|list| list.lines()).filter_map(device).collect();
    found.sort();
    found.dedup();
    found
}

/// Parses a line such as `c 195:0 rwm`.
fn device(line: &str) -> Option<String> {
    let mut fields = line.strip_prefix("c ")?.split_whitespace();
    let (major, minor) = fields.next()?.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    match (major, minor) {
        (NVIDIA_MAJOR, ..=NVIDIA_MINOR_MAX) => Some(format!("dev/nvidia{minor}")),
        (DRM_MAJOR, DRM_RENDER_MIN..) => Some(format!("dev/dri/renderD{minor}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_processes() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(path), text).unwrap();
        };
        let (proc, job, step) = (dir.path().join("proc"), dir.path().join("job"), dir.path().join("step"));
        write("job/cgroup.procs", "7\n8\n");
        write("proc/7/status", "Name:\tx\nUid:\t0\t0\t0\t0\n");
        let own = std::fs::metadata(dir.path()).unwrap().uid();
        assert_eq!(
            uid(&proc, std::slice::from_ref(&job), None),
            Some(own),
            "a process that cannot be asked counts for nothing"
        );
        write("step/cgroup.procs", "9\n");
        write("proc/9/status", "Name:\tsudo\nUid:\t1000\t0\t0\t0\n");
        assert_eq!(uid(&proc, &[job.clone(), step.clone()], None), Some(1000), "who started it");
        assert_ne!(uid(&proc, &[job, step], Some(1000)), Some(1000), "the manager's own");
        assert_eq!(uid(&proc, &[dir.path().join("none")], None), None);
    }

    #[test]
    fn an_empty_directory_has_no_processes_and_one_that_says_nothing_may() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path("job/step_0/task_0")).unwrap();
        std::fs::create_dir_all(path("unified")).unwrap();
        let (events, v1) = ([path("unified/cgroup.events")], [path("job")]);
        assert!(has_processes(&events, &v1), "nobody says");
        std::fs::write(path("job/cgroup.procs"), "").unwrap();
        std::fs::write(&events[0], "populated 0\nfrozen 0\n").unwrap();
        assert!(!has_processes(&events, &v1));
        std::fs::write(path("job/step_0/task_0/cgroup.procs"), "7\n").unwrap();
        assert!(has_processes(&events, &v1), "in a task");
        std::fs::write(path("job/step_0/task_0/cgroup.procs"), "").unwrap();
        assert!(!has_processes(&events, &v1));
        std::fs::write(&events[0], "populated 1\nfrozen 0\n").unwrap();
        assert!(has_processes(&events, &v1));
        std::fs::write(&events[0], "populated 0\nfrozen 0\n").unwrap();
        for n in 0..=DIRS_MAX {
            std::fs::create_dir(path(&format!("job/{n}"))).unwrap();
        }
        assert!(has_processes(&events, &v1), "not everything was looked at");
    }

    #[test]
    fn cpus_and_devices() {
        let dir = tempfile::tempdir().unwrap();
        let mut cgroups = JobCgroups::default();
        assert_eq!((cpus(&cgroups), devices(&cgroups)), (None, vec![]));
        cgroups.v1.insert("cpuset".to_owned(), dir.path().to_owned());
        cgroups.v1.insert("devices".to_owned(), dir.path().to_owned());
        std::fs::write(dir.path().join("cpuset.effective_cpus"), "\n").unwrap();
        std::fs::write(dir.path().join("cpuset.cpus"), "0-3,8\n").unwrap();
        let list = "c 1:3 rwm\nc 195:0 rw\nc 195:255 rw\nc 226:0 rw\nc 226:129 rw\nb *:* m\nc 195:* m\n";
        std::fs::write(dir.path().join("devices.list"), list).unwrap();
        assert_eq!(cpus(&cgroups).as_deref(), Some("0-3,8"));
        assert_eq!(devices(&cgroups), ["dev/dri/renderD129", "dev/nvidia0"]);
        std::fs::write(dir.path().join("devices.list"), "a *:* rwm\n").unwrap();
        assert!(devices(&cgroups).is_empty(), "what allows everything names none");
    }

    #[test]
    fn a_directory_made_now() {
        let dir = tempfile::tempdir().unwrap();
        let stamp_now = stamp(dir.path(), i64::MAX).unwrap();
        assert!(stamp_now.created > 1_600_000_000_000_000_000 && stamp_now.inode != 0);
        assert_eq!(stamp(dir.path(), 5).unwrap().created, 5, "never in the future");
        assert!(stamp(&dir.path().join("none"), 5).is_err());
    }
}
