//! Reads the cgroup tree: its hierarchies, and the directories in a directory.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use wholegrain_sources::Roots;

use super::layout::CgroupVersion;

/// The most hierarchies; the kernel has about fifteen controllers.
const HIERARCHIES_MAX: usize = 64;

/// Controllers of version 1 whose directories account resources: a job ends with the last of these.
const ACCOUNTING: &[&str] = &["cpuacct", "cpu", "memory", "blkio", "pids"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupHierarchy {
    pub root: PathBuf,
    pub version: CgroupVersion,
    /// Its controllers, in version 1.
    pub controllers: Vec<String>,
}

impl CgroupHierarchy {
    pub fn accounts(&self) -> bool {
        self.version == CgroupVersion::V2 || self.controllers.iter().any(|name| ACCOUNTING.contains(&name.as_str()))
    }
}

/// All hierarchies: the unified one at the root, or the directories in the root and in `beside`, each once.
pub fn hierarchies(roots: &Roots, beside: &[PathBuf], report: &mut dyn FnMut(String)) -> Vec<CgroupHierarchy> {
    let root = &roots.cgroup;
    if root.join("cgroup.controllers").exists() {
        return vec![CgroupHierarchy { root: root.clone(), version: CgroupVersion::V2, controllers: Vec::new() }];
    }
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    for dir in std::iter::once(root).chain(beside) {
        let names = match children(dir, dir != root, usize::MAX) {
            Ok((names, _)) => names,
            Err(error) if dir != root && error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                report(format!("cannot look for cgroups in {}: {error}", dir.display()));
                continue;
            }
        };
        for name in names {
            let path = dir.join(&name);
            // Two mounts of one hierarchy have the same root.
            let Ok(meta) = fs::metadata(&path) else { continue };
            if found.len() < HIERARCHIES_MAX && known.insert((meta.dev(), meta.ino())) {
                found.push(hierarchy(path, &name));
            }
        }
    }
    if found.is_empty() {
        report(format!("{}: no cgroup hierarchy is there, so no jobs are found; see [roots]", root.display()));
    }
    found
}

fn hierarchy(root: PathBuf, name: &str) -> CgroupHierarchy {
    if name == "unified" || root.join("cgroup.controllers").exists() {
        return CgroupHierarchy { root, version: CgroupVersion::V2, controllers: Vec::new() };
    }
    let controllers = name.split(',').map(|name| name.trim_start_matches("name=").to_owned()).collect();
    CgroupHierarchy { root, version: CgroupVersion::V1, controllers }
}

/// The state of a directory that is known without listing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryStat {
    /// The kernel counts directories in a cgroup this way.
    links: u64,
    /// The time of the last change, which other file systems have.
    modified: (i64, i64),
    inode: u64,
    /// The owner, who can create directories in it.
    pub uid: u32,
}

/// Reads the [`DirectoryStat`] of a directory.
pub fn stat(dir: &Path) -> io::Result<DirectoryStat> {
    let meta = fs::metadata(dir)?;
    let modified = (meta.mtime(), meta.mtime_nsec());
    Ok(DirectoryStat { links: meta.nlink(), modified, inode: meta.ino(), uid: meta.uid() })
}

/// The names of the directories in a directory, sorted; with `links`, of symbolic links to directories too. Names that are not UTF-8 are skipped: no
/// resource manager creates them. At most `most` names; the second value says whether there are more.
pub fn children(dir: &Path, links: bool, most: usize) -> io::Result<(Vec<String>, bool)> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if names.len() >= most && kind.is_dir() {
            names.sort_unstable();
            return Ok((names, true));
        }
        if kind.is_dir() || (links && kind.is_symlink() && entry.path().is_dir()) {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort_unstable();
    Ok((names, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(roots: &Roots, beside: &[PathBuf], expected: &[&str]) {
        let mut lines = Vec::new();
        let found = hierarchies(roots, beside, &mut |line| lines.push(line));
        let text = |hierarchy: &CgroupHierarchy| {
            format!("{:?} {}", hierarchy.version, hierarchy.controllers.join("+")).trim_end().to_owned()
        };
        assert_eq!(found.iter().map(text).collect::<Vec<_>>(), expected);
        assert_eq!(lines.is_empty(), !expected.is_empty(), "{lines:?}");
    }

    #[test]
    fn the_three_ways_of_mounting() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { cgroup: dir.path().join("cgroup"), ..Roots::default() };
        let links = dir.path().join("links");
        check(&roots, &[], &[]);
        for name in ["cpu,cpuacct", "memory", "systemd", "unified"] {
            fs::create_dir_all(roots.cgroup.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("cpu,cpuacct", roots.cgroup.join("cpu")).unwrap();
        check(&roots, std::slice::from_ref(&links), &["V1 cpu+cpuacct", "V1 memory", "V1 systemd", "V2"]);
        fs::create_dir_all(dir.path().join("oar/perf_event")).unwrap();
        fs::create_dir_all(&links).unwrap();
        std::os::unix::fs::symlink(dir.path().join("oar/perf_event"), links.join("perf_event")).unwrap();
        std::os::unix::fs::symlink(roots.cgroup.join("memory"), links.join("memory")).unwrap();
        check(&roots, &[links], &["V1 cpu+cpuacct", "V1 memory", "V1 systemd", "V2", "V1 perf_event"]);
        fs::write(roots.cgroup.join("cgroup.controllers"), "cpu memory\n").unwrap();
        check(&roots, &[], &["V2"]);
    }
}
