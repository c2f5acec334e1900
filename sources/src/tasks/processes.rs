//! The processes of a job: cgroup.procs of its directory and of all directories below it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::job::JobCgroups;
use crate::scan;

/// The most processes of one job.
pub const PROCESSES_MAX: usize = 16_384;
/// The most directories of one job.
const DIRECTORIES_MAX: usize = 4096;
/// The most levels of directories searched below a job's.
const DEPTH_MAX: usize = 16;

/// The cgroup v1 controllers whose hierarchies are tried first, in this order.
const PREFERRED_CONTROLLERS: [&str; 7] = ["pids", "cpuacct", "memory", "cpu", "freezer", "cpuset", "devices"];

/// Why the list of a job's processes cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListError {
    /// The job has no directory any more.
    NoDirectory,
    /// An `errno`; E2BIG for too many processes or directories.
    Os(i32),
}

/// The directories of a job, and a reader of its processes.
pub struct JobProcesses {
    /// In the order of trial. Each hierarchy lists all processes of the job, so the first that is not empty is enough.
    trees: Vec<CgroupTree>,
    text: Vec<u8>,
}

/// A directory and all directories below it.
struct CgroupTree {
    root: PathBuf,
    directories: Vec<CgroupDirectory>,
}

struct CgroupDirectory {
    /// The path of cgroup.procs. It is opened for each read: an open file of version 1 may show an old list.
    processes: PathBuf,
    path: PathBuf,
    /// `st_nlink`: changes when a subdirectory is created or removed.
    links: u64,
    inode: u64,
}

impl JobProcesses {
    /// The directories of a job, not yet read.
    pub fn of(cgroups: &JobCgroups) -> Self {
        let preferred = PREFERRED_CONTROLLERS.iter().filter_map(|name| cgroups.v1(name));
        let others =
            cgroups.v1.iter().filter(|(name, _)| !PREFERRED_CONTROLLERS.contains(&name.as_str())).map(|(_, path)| path);
        let roots = cgroups.v2.as_deref().into_iter().chain(preferred).chain(others.map(PathBuf::as_path));
        let trees = roots.map(|root| CgroupTree { root: root.to_owned(), directories: Vec::new() });
        Self { trees: trees.collect(), text: Vec::new() }
    }

    /// Writes the processes to `out`.
    pub fn list(&mut self, out: &mut Vec<u32>) -> Result<(), ListError> {
        out.clear();
        let mut has_tree = false;
        for tree in &mut self.trees {
            match tree.list(&mut self.text, out) {
                Ok(()) => has_tree = true,
                Err(ListError::NoDirectory) => continue,
                Err(error) => return Err(error),
            }
            if !out.is_empty() {
                return Ok(());
            }
        }
        if has_tree { Ok(()) } else { Err(ListError::NoDirectory) }
    }
}

impl CgroupTree {
    fn list(&mut self, text: &mut Vec<u8>, out: &mut Vec<u32>) -> Result<(), ListError> {
        if !self.directories.iter().all(CgroupDirectory::is_unchanged) || self.directories.is_empty() {
            self.walk()?;
        }
        for directory in &self.directories {
            text.clear();
            match File::open(&directory.processes).and_then(|mut file| file.read_to_end(text)) {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    // Just removed, or a threaded cgroup, whose processes belong to the directory above.
                    Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => continue,
                    errno => return Err(ListError::Os(errno.unwrap_or(libc::EIO))),
                },
            }
            let numbers = scan::lines(text).filter_map(|line| scan::number_at(line, 0));
            // 0 stands for a process of another PID namespace.
            out.extend(numbers.filter_map(|(pid, _)| u32::try_from(pid).ok()).filter(|pid| *pid > 0));
            if out.len() > PROCESSES_MAX {
                return Err(ListError::Os(libc::E2BIG));
            }
        }
        Ok(())
    }

    fn walk(&mut self) -> Result<(), ListError> {
        self.directories.clear();
        let mut waiting = vec![(self.root.clone(), 0)];
        while let Some((path, depth)) = waiting.pop() {
            let directory = match CgroupDirectory::at(&path) {
                Ok(directory) => directory,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR) => continue,
                    errno => return Err(ListError::Os(errno.unwrap_or(libc::EIO))),
                },
            };
            self.directories.push(directory);
            if self.directories.len() > DIRECTORIES_MAX {
                return Err(ListError::Os(libc::E2BIG));
            }
            for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
                if depth < DEPTH_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push((entry.path(), depth + 1));
                }
            }
        }
        if self.directories.is_empty() { Err(ListError::NoDirectory) } else { Ok(()) }
    }
}

impl CgroupDirectory {
    fn at(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        let (links, inode) = (metadata.nlink(), metadata.ino());
        Ok(Self { processes: path.join("cgroup.procs"), path: path.to_owned(), links, inode })
    }

    fn is_unchanged(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|now| (now.nlink(), now.ino()) == (self.links, self.inode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_directories_that_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("job_1");
        let write = |below: &str, text: &str| {
            fs::create_dir_all(root.join(below)).unwrap();
            fs::write(root.join(below).join("cgroup.procs"), text).unwrap();
        };
        let cgroups = JobCgroups { v2: Some(root.clone()), ..JobCgroups::default() };
        let mut members = JobProcesses::of(&cgroups);
        let mut listed = |expected: Result<&[u32], ListError>| {
            let mut out = Vec::new();
            let result = members.list(&mut out);
            out.sort_unstable();
            assert_eq!(result.map(|()| out.as_slice()), expected);
        };
        listed(Err(ListError::NoDirectory));
        write("", "");
        listed(Ok(&[]));
        write("step_0/task_0", "10\n11\n");
        write("step_1", "12\n0\n");
        listed(Ok(&[10, 11, 12]));
        fs::remove_dir_all(root.join("step_0")).unwrap();
        write("step_2", "7\n");
        listed(Ok(&[7, 12]));
        fs::remove_dir_all(&root).unwrap();
        listed(Err(ListError::NoDirectory));
        let all: String = (1..PROCESSES_MAX + 2).map(|pid| format!("{pid}\n")).collect();
        write("", &all);
        assert_eq!(members.list(&mut Vec::new()), Err(ListError::Os(libc::E2BIG)));
    }

    #[test]
    fn the_first_hierarchy_with_processes() {
        let folder = tempfile::tempdir().unwrap();
        let directory = |name: &str, text: &str| {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("cgroup.procs"), text).unwrap();
            folder.path().join(name)
        };
        let cgroups = JobCgroups {
            v2: Some(directory("unified", "")),
            v1: [
                ("memory".to_owned(), directory("memory", "5\n")),
                ("cpuacct".to_owned(), directory("cpuacct", "5\n6\n")),
            ]
            .into(),
            ..JobCgroups::default()
        };
        let mut out = Vec::new();
        JobProcesses::of(&cgroups).list(&mut out).unwrap();
        assert_eq!(out, [5, 6]);
    }
}
