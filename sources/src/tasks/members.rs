//! Which processes a job has: cgroup.procs of its directory and of all below it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::job::JobPlace;
use crate::scan;

/// The most processes of one job that are looked at.
pub const PROCESSES_MAX: usize = 16_384;
/// The most directories of one job.
const DIRECTORIES_MAX: usize = 4096;
/// The deepest directory below a job's.
const DEPTH_MAX: usize = 16;

/// The order in which version 1's hierarchies are asked; a job's processes are in all of them.
const PREFERRED: [&str; 7] = ["pids", "cpuacct", "memory", "cpu", "freezer", "cpuset", "devices"];

/// What is in the way of a list of a job's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// None of the job's directories is there.
    Gone,
    /// An `errno`; E2BIG for more processes or directories than are looked at.
    Os(i32),
}

/// The directories of a job.
pub struct Members {
    /// One of these has the processes: the first that has any.
    trees: Vec<Tree>,
    text: Vec<u8>,
}

/// One directory and all below it.
struct Tree {
    root: PathBuf,
    directories: Vec<Directory>,
}

struct Directory {
    /// Its cgroup.procs. Opened anew for each read: a file of version 1 that stays open may go on showing an old list.
    processes: PathBuf,
    path: PathBuf,
    /// The kernel counts a directory's own below it in its links.
    links: u64,
    inode: u64,
}

impl Members {
    /// Of a job.
    pub fn of(place: &JobPlace) -> Self {
        let preferred = PREFERRED.iter().filter_map(|name| place.v1(name));
        let others = place.v1.iter().filter(|(name, _)| !PREFERRED.contains(&name.as_str())).map(|(_, path)| path);
        let roots = place.v2.as_deref().into_iter().chain(preferred).chain(others.map(PathBuf::as_path));
        let trees = roots.map(|root| Tree { root: root.to_owned(), directories: Vec::new() });
        Self { trees: trees.collect(), text: Vec::new() }
    }

    /// Puts the processes into `out`.
    pub fn list(&mut self, out: &mut Vec<u32>) -> Result<(), Trouble> {
        out.clear();
        let mut any = false;
        for tree in &mut self.trees {
            match tree.list(&mut self.text, out) {
                Ok(()) => any = true,
                Err(Trouble::Gone) => continue,
                Err(trouble) => return Err(trouble),
            }
            if !out.is_empty() {
                return Ok(());
            }
        }
        if any { Ok(()) } else { Err(Trouble::Gone) }
    }
}

impl Tree {
    fn list(&mut self, text: &mut Vec<u8>, out: &mut Vec<u32>) -> Result<(), Trouble> {
        if !self.directories.iter().all(Directory::is_as_it_was) || self.directories.is_empty() {
            self.walk()?;
        }
        for directory in &self.directories {
            text.clear();
            match File::open(&directory.processes).and_then(|mut file| file.read_to_end(text)) {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    // Gone since, or a threaded cgroup, whose processes are those of the directory above.
                    Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => continue,
                    errno => return Err(Trouble::Os(errno.unwrap_or(libc::EIO))),
                },
            }
            let numbers = scan::lines(text).filter_map(|line| scan::number_at(line, 0));
            // 0 is a process of another namespace of processes.
            out.extend(numbers.filter_map(|(pid, _)| u32::try_from(pid).ok()).filter(|pid| *pid > 0));
            if out.len() > PROCESSES_MAX {
                return Err(Trouble::Os(libc::E2BIG));
            }
        }
        Ok(())
    }

    fn walk(&mut self) -> Result<(), Trouble> {
        self.directories.clear();
        let mut waiting = vec![(self.root.clone(), 0)];
        while let Some((path, depth)) = waiting.pop() {
            let directory = match Directory::at(&path) {
                Ok(directory) => directory,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR) => continue,
                    errno => return Err(Trouble::Os(errno.unwrap_or(libc::EIO))),
                },
            };
            self.directories.push(directory);
            if self.directories.len() > DIRECTORIES_MAX {
                return Err(Trouble::Os(libc::E2BIG));
            }
            for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
                if depth < DEPTH_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push((entry.path(), depth + 1));
                }
            }
        }
        if self.directories.is_empty() { Err(Trouble::Gone) } else { Ok(()) }
    }
}

impl Directory {
    fn at(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        let (links, inode) = (metadata.nlink(), metadata.ino());
        Ok(Self { processes: path.join("cgroup.procs"), path: path.to_owned(), links, inode })
    }

    fn is_as_it_was(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|now| (now.nlink(), now.ino()) == (self.links, self.inode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_all_directories_as_they_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("job_1");
        let write = |below: &str, text: &str| {
            fs::create_dir_all(root.join(below)).unwrap();
            fs::write(root.join(below).join("cgroup.procs"), text).unwrap();
        };
        let place = JobPlace { v2: Some(root.clone()), ..JobPlace::default() };
        let mut members = Members::of(&place);
        let mut listed = |expected: Result<&[u32], Trouble>| {
            let mut out = Vec::new();
            let result = members.list(&mut out);
            out.sort_unstable();
            assert_eq!(result.map(|()| out.as_slice()), expected);
        };
        listed(Err(Trouble::Gone));
        write("", "");
        listed(Ok(&[]));
        write("step_0/task_0", "10\n11\n");
        write("step_1", "12\n0\n");
        listed(Ok(&[10, 11, 12]));
        fs::remove_dir_all(root.join("step_0")).unwrap();
        write("step_2", "7\n");
        listed(Ok(&[7, 12]));
        fs::remove_dir_all(&root).unwrap();
        listed(Err(Trouble::Gone));
        let all: String = (1..PROCESSES_MAX + 2).map(|pid| format!("{pid}\n")).collect();
        write("", &all);
        assert_eq!(members.list(&mut Vec::new()), Err(Trouble::Os(libc::E2BIG)));
    }

    #[test]
    fn the_first_hierarchy_that_has_processes() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str, text: &str| {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("cgroup.procs"), text).unwrap();
            folder.path().join(name)
        };
        let place = JobPlace {
            v2: Some(place("unified", "")),
            v1: [("memory".to_owned(), place("memory", "5\n")), ("cpuacct".to_owned(), place("cpuacct", "5\n6\n"))]
                .into(),
            ..JobPlace::default()
        };
        let mut out = Vec::new();
        Members::of(&place).list(&mut out).unwrap();
        assert_eq!(out, [5, 6]);
    }
}
