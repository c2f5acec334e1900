//! The processes below one process, from `/proc/PID/task/PID/children` (proc(5)).

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The most processes that are followed.
const PROCESSES_MAX: usize = 4096;

/// The children of all threads of a process.
pub(super) fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads
        .flatten()
        .take(PROCESSES_MAX)
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// All processes below a process, without itself.
pub(super) fn below(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut at = 0;
    while at < found.len() && found.len() < PROCESSES_MAX {
        found.extend(children(found[at]));
        at += 1;
    }
    found
}

/// Where files are in memory only, as links in `/proc/PID/fd` show it. Other files are not asked: their file systems need not answer.
const MEMORY_FILES: [&str; 2] = ["/memfd:", "/dev/shm/"];

/// The bytes that a process holds in open files in memory, such as those of `memfd_create`: no limit of the kernel and no resident memory of a process
/// covers them. `counted` has the files that were counted already.
pub(super) fn file_bytes(pid: u32, counted: &mut HashSet<(u64, u64)>) -> u64 {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let sizes = files.flatten().take(PROCESSES_MAX).filter_map(|file| {
        let target = fs::read_link(file.path()).ok()?;
        let is_memory =
            target.to_str().is_some_and(|target| MEMORY_FILES.iter().any(|start| target.starts_with(start)));
        let found = is_memory.then(|| fs::metadata(file.path()).ok())??;
        counted.insert((found.dev(), found.ino())).then_some(found.blocks() * 512)
    });
    sizes.sum()
}

/// CPU time in ticks and resident memory in pages of a process: fields 14 to 17 and 24 of its `stat` (proc(5)).
pub(super) fn usage(pid: u32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    usage_of(&text)
}

fn usage_of(stat: &str) -> Option<(u64, u64)> {
    // The name of the program may have spaces and parentheses.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some((number(14)? + number(15)? + number(16)? + number(17)?, number(24)?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;
    use std::process::Command;

    use super::*;

    #[test]
    fn children_are_found() {
        let mut child = Command::new("sh").args(["-c", "sleep 1000 & sleep 1000; true"]).spawn().unwrap();
        wholegrain_testkit::wait_until("both children", || children(child.id()).len() == 2);
        let found = below(std::process::id());
        assert!(found.contains(&child.id()) && found.len() >= 3, "{found:?}");
        for pid in children(child.id()) {
            // SAFETY: processes that this test has started.
            unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
        }
        child.wait().unwrap();
        assert!(below(u32::MAX).is_empty());
    }

    #[test]
    fn files_in_memory_are_counted_once() {
        // SAFETY: a string with an end; the descriptor is opened here.
        let file = unsafe { fs::File::from_raw_fd(libc::memfd_create(c"hidden".as_ptr(), libc::MFD_CLOEXEC)) };
        let before = file_bytes(std::process::id(), &mut HashSet::new());
        std::io::Write::write_all(&mut &file, &vec![1; 1 << 20]).unwrap();
        let second = file.try_clone().unwrap();
        let mut counted = HashSet::new();
        let after = file_bytes(std::process::id(), &mut counted);
        assert!((1 << 20..2 << 20).contains(&(after - before)), "{before} {after}");
        assert_eq!(file_bytes(std::process::id(), &mut counted), 0);
        drop(second);
    }

    #[test]
    fn usage_is_read_behind_the_name() {
        let stat =
            "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 11 22 33 44 20 0 1 0 100 1000 250 18446744073709551615 0 0\n";
        assert_eq!(usage_of(stat), Some((110, 250)));
        assert_eq!((usage_of(""), usage_of("7 (a) S 1")), (None, None));
        assert!(usage(std::process::id()).is_some_and(|(_, pages)| pages > 0));
    }
}
