//! Finds and ends all processes that a program has started, also those that have left its session: their environment has the mark of its run.
//!
//! - In: the number of the program's session, and the mark.
//! - Never: a signal to a process that the program has not started; a wait.

use std::fs::{self, File};
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The variable of the environment that has the mark.
pub const VARIABLE: &str = "WHOLEGRAIN_RUN";
/// The most rounds in which processes are looked for: each ends all that the previous one found.
const ROUNDS_MAX: usize = 100;
/// How much of an environment is looked at, in bytes.
const ENVIRONMENT_BYTES_MAX: u64 = 64 << 10;
/// The most bytes of `/proc/self/oom_score_adj`.
const SCORE_BYTES_MAX: usize = 16;

/// Removes this process's protection from being ended for want of memory, which it has from the agent. System calls only.
pub fn be_ended_before_the_agent() {
    // SAFETY: C strings and a buffer of the given length; the descriptor was just opened.
    unsafe {
        let fd = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 {
            return;
        }
        let mut score = [0u8; SCORE_BYTES_MAX];
        // A negative number protects; to raise it needs no right.
        if libc::read(fd, score.as_mut_ptr().cast(), score.len()) > 0 && score[0] == b'-' {
            libc::write(fd, c"0".as_ptr().cast(), 1);
        }
        libc::close(fd);
    }
}

/// Session and process group of a process: fields 6 and 5 of its `stat` (proc(5)).
fn session_of(stat: &str) -> Option<(i32, i32)> {
    // The name of the program may have spaces and parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let group = fields.nth(2)?.parse().ok()?;
    Some((fields.next()?.parse().ok()?, group))
}

/// A new mark, which no other run on this machine has.
pub fn new_mark() -> String {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let time_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{}-{time_ns}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed))
}

/// Whether the environment of a process has `variable`, a name with its value. `false` if this process may not read it.
fn has_variable(pid: i32, variable: &[u8]) -> bool {
    let mut environment = Vec::new();
    let read = File::open(format!("/proc/{pid}/environ"))
        .and_then(|file| file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut environment));
    read.is_ok() && environment.split(|byte| *byte == 0).any(|one| one == variable)
}

/// The process groups of a run except its first one, without those of ended processes.
fn groups_of(session: i32, variable: &[u8]) -> Vec<i32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    // A process of the run is younger than its first one. Numbers begin again at the largest one, and then all have to be looked at.
    let newest = fs::read_to_string("/proc/loadavg");
    let newest: i32 = newest.ok().and_then(|text| text.split_whitespace().last()?.parse().ok()).unwrap_or_default();
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let young = numbers.filter(|pid| newest < session || *pid > session);
    let mut groups: Vec<i32> = young
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (of, group) = session_of(&stat)?;
            let has_ended = stat.rsplit_once(") ")?.1.starts_with('Z');
            // SAFETY: takes no arguments.
            let is_own = group == unsafe { libc::getpgrp() };
            let is_left = group != session && group > 1 && !has_ended && !is_own;
            (is_left && (of == session || has_variable(pid, variable))).then_some(group)
        })
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Ends all processes of a run. The first one, whose session it is, is a child of this process that was not waited for, so that its number is still
/// its own.
pub fn end_run(session: u32, mark: &str) {
    let Some(session) = i32::try_from(session).ok().filter(|session| *session > 1) else { return };
    let variable = format!("{VARIABLE}={mark}");
    // SAFETY: the number of a process group of the run: no other process can be in one.
    let end = |group: i32| unsafe { libc::kill(-group, libc::SIGKILL) };
    end(session);
    for _ in 0..ROUNDS_MAX {
        let groups = groups_of(session, variable.as_bytes());
        if groups.is_empty() {
            return;
        }
        groups.into_iter().for_each(|group| _ = end(group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_behind_the_name() {
        assert_eq!(session_of("7 (a) b) S 1 11 22 0 -1\n"), Some((22, 11)));
        assert_eq!((session_of(""), session_of("7 (a) S 1")), (None, None));
        // SAFETY: takes numbers only.
        let own = unsafe { (libc::getsid(0), libc::getpgrp()) };
        assert_eq!(session_of(&fs::read_to_string("/proc/self/stat").unwrap()), Some(own));
    }
}
