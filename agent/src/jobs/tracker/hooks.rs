//! Files of the resource manager's prologs and epilogs: one small file of `key=value` lines for each job.
//!
//! A hook runs as root and names the owner of a job, so that only files written by root or by the agent's user count.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use wholegrain_model::JobRecord;

use super::layout::PathOwner;

/// The most hooks that wait for their job's directory, and the most ended jobs that wait for an epilog's hook.
pub const HOOKS_MAX: usize = 4096;
/// The largest file, in bytes.
pub const HOOK_BYTES_MAX: u64 = 16 * 1024;
/// The longest value, in characters.
const VALUE_CHARS_MAX: usize = 1024;
/// The most devices of one job.
const DEVICES_MAX: usize = 256;
/// A file without a job is removed after this time, in s.
const AGE_S_MAX: i64 = 86_400;

/// The contents of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hook {
    /// The resource manager, as `slurm` or `oar`.
    pub manager: String,
    pub job: String,
    /// A second id of the job.
    pub also: Option<String>,
    pub uid: Option<u32>,
    pub user: Option<String>,
    pub name: Option<String>,
    /// The account that is charged.
    pub account: Option<String>,
    /// The partition or queue.
    pub partition: Option<String>,
    /// All nodes of the job as the manager writes them.
    pub nodes: Option<String>,
    /// Devices of the job, such as `gpu/0`.
    pub devices: Vec<String>,
    /// Whether the epilog wrote the file.
    pub ended: bool,
}

impl Hook {
    /// Parses a file; of a repeated key the last value counts.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut hook = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let Some((key, value)) = line.split_once('=') else {
                return Err(format!("a line without `=`: {:?}", line.chars().take(40).collect::<String>()));
            };
            let value: String =
                value.chars().filter(|c| !c.is_control()).take(VALUE_CHARS_MAX).collect::<String>().trim().to_owned();
            if value.is_empty() {
                continue;
            }
            match key {
                "manager" => hook.manager = value,
                "job" => hook.job = value,
                "also" => hook.also = Some(value),
                "uid" => hook.uid = Some(value.parse().map_err(|_| format!("uid is {value:?}, not a number"))?),
                "user" => hook.user = Some(value),
                "name" => hook.name = Some(value),
                "account" => hook.account = Some(value),
                "partition" => hook.partition = Some(value),
                "nodes" => hook.nodes = Some(value),
                "devices" => {
                    let devices = value.split(',').filter(|device| !device.is_empty());
                    hook.devices = devices.take(DEVICES_MAX).map(str::to_owned).collect();
                }
                "ended" => hook.ended = true,
                // A key of a later version.
                _ => {}
            }
        }
        if hook.manager.is_empty() || hook.job.is_empty() {
            return Err("it names no manager and job".to_owned());
        }
        Ok(hook)
    }

    /// Whether it is about this job, by either of its ids, and not about another user's job with the same id.
    pub fn is_of(&self, record: &JobRecord) -> bool {
        self.manager == record.manager
            && (self.job == record.job || self.also.as_ref() == Some(&record.job))
            && self.may_be_of(&PathOwner::of_record(&record.owner))
    }

    /// Whether its user contradicts the job's path. A user's own unit is not a job of a hook.
    fn may_be_of(&self, owner: &PathOwner) -> bool {
        match owner {
            PathOwner::Unspecified => true,
            PathOwner::Uid(uid) => self.uid.is_none_or(|of| of == *uid),
            PathOwner::Name(name) => self.user.as_ref().is_none_or(|of| of == name),
            PathOwner::Own(_) => false,
        }
    }

    /// Completes a record, except for uid and devices. Whether anything has changed.
    pub fn merge_into(&self, record: &mut JobRecord) -> bool {
        let before = record.clone();
        let put = |to: &mut Option<String>, from: &Option<String>| {
            if from.is_some() {
                to.clone_from(from);
            }
        };
        put(&mut record.name, &self.name);
        put(&mut record.account, &self.account);
        put(&mut record.partition, &self.partition);
        put(&mut record.nodes, &self.nodes);
        if record.user.is_none() {
            put(&mut record.user, &self.user);
        }
        match &self.also {
            Some(also) if *also == record.job => record.also = Some(self.job.clone()),
            also => put(&mut record.also, also),
        }
        before != *record
    }
}

/// The directory, and the files that were read.
pub struct HooksDir {
    dir: PathBuf,
    known: HashMap<String, ReadHook>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ReadHook {
    inode: u64,
    changed: (i64, i64),
    job: (String, String),
}

impl HooksDir {
    /// A directory that may not exist yet.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, known: HashMap::new() }
    }

    fn is_roots(&self) -> bool {
        std::fs::metadata(&self.dir).is_ok_and(|meta| meta.uid() == 0)
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Reads new and changed files. `report` gets refusals.
    pub fn read(&mut self, now_s: i64, report: &mut dyn FnMut(String)) -> Vec<Hook> {
        let mut hooks = Vec::new();
        let entries = match std::fs::metadata(&self.dir).and_then(|meta| Ok((meta, std::fs::read_dir(&self.dir)?))) {
            Ok((meta, _)) if !is_trusted(&meta) => {
                report(format!(
                    "{}: not read because users other than root and the agent's can write to it; run chmod go-w",
                    self.dir.display()
                ));
                return hooks;
            }
            Ok((_, entries)) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return hooks,
            Err(error) => {
                report(format!("cannot read the hooks in {}: {error}", self.dir.display()));
                return hooks;
            }
        };
        let names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        self.known.retain(|name, _| names.contains(name));
        for name in names.into_iter().filter(|name| !name.starts_with('.')) {
            match self.read_file(&name, now_s) {
                Ok(hook) => hooks.extend(hook),
                Err(error) => report(format!("hook {}: {error}", self.dir.join(&name).display())),
            }
        }
        hooks
    }

    fn read_file(&mut self, name: &str, now_s: i64) -> Result<Option<Hook>, String> {
        let path = self.dir.join(name);
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = match std::fs::OpenOptions::new().read(true).custom_flags(options).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let meta = file.metadata().map_err(|error| error.to_string())?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        if self.known.get(name).is_some_and(|known| (known.inode, known.changed) == (meta.ino(), changed)) {
            return Ok(None);
        }
        if !meta.is_file() || !is_trusted(&meta) {
            return Err(
                "refused: only a file of root or of the agent's user that no other user can write counts".to_owned()
            );
        }
        if meta.len() > HOOK_BYTES_MAX {
            return Err(format!("refused: it has {} bytes, at most {HOOK_BYTES_MAX} are allowed", meta.len()));
        }
        if self.known.len() >= HOOKS_MAX && !self.known.contains_key(name) {
            return Err(format!("not read because {HOOKS_MAX} others wait"));
        }
        let mut bytes = Vec::new();
        file.take(HOOK_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        let parsed = Hook::parse(&String::from_utf8_lossy(&bytes));
        let job = parsed.as_ref().map(|hook| (hook.manager.clone(), hook.job.clone())).unwrap_or_default();
        self.known.insert(name.to_owned(), ReadHook { inode: meta.ino(), changed, job });
        let hook = parsed?;
        if now_s.saturating_sub(meta.ctime()) > AGE_S_MAX {
            // A file that cannot be removed stays known, so that it is not read again.
            if std::fs::remove_file(&path).is_ok() {
                self.known.remove(name);
            }
        }
        Ok(Some(hook))
    }

    /// Removes the file of an ended job.
    pub fn remove(&mut self, manager: &str, job: &str, also: Option<&str>, report: &mut dyn FnMut(String)) {
        let is_its =
            |known: &ReadHook| known.job.0 == manager && (known.job.1 == job || Some(known.job.1.as_str()) == also);
        let names: Vec<String> =
            self.known.iter().filter(|(_, known)| is_its(known)).map(|(name, _)| name.clone()).collect();
        for name in names {
            match std::fs::remove_file(self.dir.join(&name)) {
                // The directory belongs to root, whose epilog script removes old files.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && self.is_roots() => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    // It stays known, so that it is not read again.
                    report(format!(
                        "cannot remove the hooks of jobs that have ended from {}: {error}",
                        self.dir.display()
                    ));
                }
                _ => _ = self.known.remove(&name),
            }
        }
    }
}

fn is_trusted(meta: &std::fs::Metadata) -> bool {
    // SAFETY: takes no argument and cannot fail.
    let own = unsafe { libc::geteuid() };
    (meta.uid() == 0 || meta.uid() == own) && meta.mode() & 0o022 == 0
}

/// A GPU that a prolog has assigned to a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuAssignment {
    pub job: String,
    /// The device, such as `gpu/0`.
    pub device: String,
    /// The owner of the job.
    pub uid: Option<u32>,
}

impl GpuAssignment {
    /// Whether it can be this job, by the owner and the known uid.
    pub fn may_be_of(&self, owner: &PathOwner, uid: Option<u32>) -> bool {
        let same = self.uid.is_none() || uid.is_none() || self.uid == uid;
        same && !matches!(owner, PathOwner::Own(_))
    }
}

/// Reads assignments of GPUs, where a prolog writes `jobid uid` into a file for each GPU.
pub fn gpustat(dir: &Path) -> Vec<GpuAssignment> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten().take(DEVICES_MAX) {
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let Ok(file) = std::fs::OpenOptions::new().read(true).custom_flags(options).open(entry.path()) else {
            continue;
        };
        let mut bytes = Vec::new();
        let trusted = file.metadata().is_ok_and(|meta| meta.is_file() && is_trusted(&meta));
        if !trusted || file.take(256).read_to_end(&mut bytes).is_err() {
            continue;
        }
        let text = String::from_utf8_lossy(&bytes);
        let mut words = text.split_whitespace();
        if let Some(job) = words.next() {
            let device = format!("gpu/{}", String::from_utf8_lossy(entry.file_name().as_bytes()));
            found.push(GpuAssignment {
                job: job.to_owned(),
                device,
                uid: words.next().and_then(|uid| uid.parse().ok()),
            });
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_read_once_and_what_is_not_to_be_believed_never() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            std::fs::write(dir.path().join(name), text).unwrap();
            std::fs::set_permissions(dir.path().join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        write(
            "slurm-1",
            "manager=slurm\njob=1\nname=a=b\nname=  last \u{7} one \nuid=7\ndevices=gpu/0,,gpu/1\nnew=x\n",
            0o644,
        );
        write("slurm-2", "manager=slurm\njob=2\n", 0o666);
        write("slurm-3", &"x=y\n".repeat(5000), 0o644);
        write("slurm-4", "manager=slurm\n", 0o644);
        write("slurm-5", "manager=slurm\njob=5\nuid=root\n", 0o644);
        write("slurm-6", "\u{0}\u{1}garbage", 0o644);
        write(".slurm-7.tmp", "manager=slurm\njob=7\n", 0o644);
        std::os::unix::fs::symlink("slurm-1", dir.path().join("slurm-8")).unwrap();
        let mut hooks = HooksDir::new(dir.path().to_owned());
        let mut lines = Vec::new();
        let read = hooks.read(0, &mut |line| lines.push(line));
        let devices = ["gpu/0", "gpu/1"].map(str::to_owned).to_vec();
        let (name, uid) = (Some("last  one".to_owned()), Some(7));
        assert_eq!(read, [Hook { manager: "slurm".into(), job: "1".into(), name, uid, devices, ..Hook::default() }]);
        lines.sort();
        for (line, expected) in
            lines.iter().zip(["only a file", "20000 bytes", "no manager", "not a number", "without `=`", "symbolic"])
        {
            assert!(line.contains(expected), "{line:?} does not say {expected:?}");
        }
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(hooks.read(0, &mut |_| ()).is_empty(), "each once");
        hooks.remove("slurm", "1", None, &mut |line| panic!("{line}"));
        assert!(!dir.path().join("slurm-1").exists());
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let mut lines = Vec::new();
        assert!(HooksDir::new(dir.path().to_owned()).read(0, &mut |line| lines.push(line)).is_empty());
        assert!(lines[0].contains("chmod go-w"), "{lines:?}");
    }

    #[test]
    fn either_id_of_a_job_is_found() {
        let hook = Hook::parse("manager=slurm\njob=4711\nalso=s0123456789ABC\nnodes=n[1-2]\n").unwrap();
        let mut record = JobRecord { manager: "slurm".into(), job: "s0123456789ABC".into(), ..JobRecord::default() };
        assert!(hook.is_of(&record) && hook.merge_into(&mut record) && !hook.merge_into(&mut record));
        assert_eq!((record.also.as_deref(), record.nodes.as_deref()), (Some("4711"), Some("n[1-2]")));
        let mut record = JobRecord { manager: "slurm".into(), job: "4711".into(), ..JobRecord::default() };
        hook.merge_into(&mut record);
        assert_eq!(record.also.as_deref(), Some("s0123456789ABC"));
        let hook = Hook::parse("manager=slurm\njob=4711\nuid=1000\nuser=anna\n").unwrap();
        for (owner, is_its) in [
            ("", true),
            ("uid:1000", true),
            ("uid:1001", false),
            ("user:anna", true),
            ("user:bert", false),
            ("own:1000", false),
        ] {
            let record =
                JobRecord { manager: "slurm".into(), job: "4711".into(), owner: owner.into(), ..JobRecord::default() };
            assert_eq!(hook.is_of(&record), is_its, "{owner}");
        }
        assert!(!hook.is_of(&JobRecord { manager: "oar".into(), job: "4711".into(), ..JobRecord::default() }));
    }

    #[test]
    fn gpus() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("0"), "4711 1000\n").unwrap();
        std::fs::write(dir.path().join("GPU-5a"), "4712 1000").unwrap();
        std::fs::write(dir.path().join("1"), "").unwrap();
        let gpu =
            |job: &str, device: &str| GpuAssignment { job: job.to_owned(), device: device.to_owned(), uid: Some(1000) };
        assert_eq!(gpustat(dir.path()), [gpu("4711", "gpu/0"), gpu("4712", "gpu/GPU-5a")]);
        let gpu = gpu("4711", "gpu/0");
        assert!(gpu.may_be_of(&PathOwner::Unspecified, None) && gpu.may_be_of(&PathOwner::Uid(1000), Some(1000)));
        assert!(!gpu.may_be_of(&PathOwner::Uid(1001), Some(1001)) && !gpu.may_be_of(&PathOwner::Own(1000), Some(1000)));
    }
}
