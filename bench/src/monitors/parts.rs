//! The processes of a monitor: started with their output in files, counted with all that they start, ended to the last one.
//!
//! A process that has ended and was waited for by its parent is in that parent's account of children, so the time of a whole tree
//! is that of its living members, each with its own children's. Processes that lose their parent come to this one, which waits for
//! none of them before the end; which part such a process is of stands in its environment.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::ProcessUsed;

/// How long a monitor may take until it samples.
const READY_MAX: Duration = Duration::from_secs(60);
/// How long a process may take to end after SIGTERM before it is killed.
const STOP_MAX: Duration = Duration::from_secs(10);
/// How often is looked whether something has come about, while a monitor starts or stops.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The variable by which processes that have lost their parent are known: the number of the part.
const MARK: &str = "WHOLEGRAIN_MONITOR_PART";
/// The priority of the server's part: what programs leave.
const SERVER_NICE: libc::c_int = 19;
/// Bytes of a log that an error shows.
const LOG_SHOWN: usize = 2000;

/// Processes that were started, in their order.
#[derive(Default)]
pub struct Parts(Vec<Part>);

struct Part {
    name: String,
    server: bool,
    child: Child,
    log: PathBuf,
}

impl Parts {
    /// None yet. From now on what loses its parent comes to this process.
    pub fn new() -> Self {
        take_orphans();
        Self(Vec::new())
    }

    /// Starts `command` with its output in `log`; it stays in the foreground. A server's part gets the lowest priority.
    pub fn start(&mut self, name: &str, server: bool, command: &mut Command, log: &Path) -> anyhow::Result<u32> {
        let file = File::options().create(true).append(true).open(log);
        let file = file.with_context(|| format!("writing the log {}", log.display()))?;
        let error = file.try_clone().context("a second handle of a log")?;
        command.stdin(Stdio::null()).stdout(file).stderr(error).env(MARK, self.0.len().to_string());
        // SAFETY: between fork and exec only system calls are made, that touch nothing but a set of signals on the stack.
        unsafe {
            command.pre_exec(move || {
                // This process holds signals back, see `command`; what it starts is to be ended by them.
                let mut none: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut none);
                libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if server {
                    libc::setpriority(libc::PRIO_PROCESS, 0, SERVER_NICE);
                }
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| format!("starting {name}: {command:?}"))?;
        let id = child.id();
        self.0.push(Part { name: name.to_owned(), server, child, log: log.to_owned() });
        Ok(id)
    }

    /// An error when a process has ended by itself, with the end of its log.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for part in &mut self.0 {
            if let Some(status) = part.child.try_wait().context("the state of a process")? {
                bail!("{} ended ({status}): {}", part.name, tail(&part.log));
            }
        }
        Ok(())
    }

    /// Waits until something holds, while all processes run.
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !condition() {
            self.check().with_context(|| format!("waiting until {what}"))?;
            if start.elapsed() > READY_MAX {
                let logs: Vec<String> = self.0.iter().map(|p| format!("{}: {}", p.name, tail(&p.log))).collect();
                bail!("waited {} s in vain until {what}; {}", READY_MAX.as_secs(), logs.join("; "));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// For [`super::Running::processes`].
    pub fn list(&self) -> Vec<(String, u32, bool)> {
        self.0.iter().map(|part| (part.name.clone(), part.child.id(), part.server)).collect()
    }

    /// Ends all, the last one started first: SIGTERM, and after a while SIGKILL; then whatever they have left behind.
    pub fn stop(&mut self) {
        for part in self.0.iter_mut().rev() {
            let id = part.child.id() as libc::pid_t;
            if matches!(part.child.try_wait(), Ok(None)) {
                // SAFETY: the child was not waited for yet, so its number is still its own.
                unsafe { libc::kill(id, libc::SIGTERM) };
            }
            let start = Instant::now();
            while matches!(part.child.try_wait(), Ok(None)) {
                if start.elapsed() > STOP_MAX {
                    eprintln!("  {} did not end within {} s and is killed", part.name, STOP_MAX.as_secs());
                    let _ = part.child.kill();
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        self.0.clear();
        end_descendants();
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.stop();
    }
}

/// From now on what loses its parent comes to this process.
fn take_orphans() {
    // SAFETY: PR_SET_CHILD_SUBREAPER takes one number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Kills every process below this one and waits for it.
fn end_descendants() {
    let start = Instant::now();
    loop {
        let left = descendants(&table());
        if left.is_empty() || start.elapsed() > STOP_MAX {
            return;
        }
        for id in left {
            // SAFETY: it descends from this process, which waits for it only in the next line; no memory is touched.
            unsafe {
                libc::kill(id as libc::pid_t, libc::SIGKILL);
                libc::waitpid(id as libc::pid_t, std::ptr::null_mut(), libc::WNOHANG);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The end of a log, for an error.
fn tail(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LOG_SHOWN)..]).into_owned();
    format!("the end of {}: {}", log.display(), text.trim())
}

/// Samples made, and how many fewer those are than ticks since `start`.
pub fn ticks(made: u64, start: Instant, interval: Duration) -> (u64, u64) {
    let due = (start.elapsed().as_nanos() / interval.as_nanos().max(1)) as u64;
    (made, due.saturating_sub(made))
}

/// A process as the kernel's table of them has it.
#[derive(Debug, Clone, Copy)]
struct Row {
    parent: u32,
    /// User and system time of its children that have ended and were waited for, and of theirs, clock ticks.
    children_ticks: u64,
    own_ticks: u64,
}

fn table() -> BTreeMap<u32, Row> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| Some((id, row(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)?))).collect()
}

/// A line of /proc/<pid>/stat, proc(5).
fn row(stat: &str) -> Option<Row> {
    // The name is in parentheses and may have some itself; the field after it is the third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Row {
        parent: number(4)? as u32,
        own_ticks: number(14)? + number(15)?,
        children_ticks: number(16)? + number(17)?,
    })
}

/// Every process that descends from this one.
fn descendants(table: &BTreeMap<u32, Row>) -> Vec<u32> {
    table.keys().copied().filter(|id| root_of(*id, table).is_some()).collect()
}

/// The child of this process that a process descends from, itself perhaps.
fn root_of(mut id: u32, table: &BTreeMap<u32, Row>) -> Option<u32> {
    // A chain of parents is never longer than the table: it changes while it is read.
    for _ in 0..table.len() {
        let parent = table.get(&id)?.parent;
        if parent == std::process::id() {
            return Some(id);
        }
        id = parent;
    }
    None
}

/// Processor time, resident memory and share of it of each process with all that it has started: what was used since it began.
pub fn measure(processes: &[(String, u32, bool)]) -> Vec<ProcessUsed> {
    let table = table();
    let mut sums: Vec<ProcessUsed> = processes
        .iter()
        .map(|(name, _, server)| ProcessUsed { name: name.clone(), server: *server, cpu_ns: 0, rss_kb: 0, pss_kb: 0 })
        .collect();
    for id in descendants(&table) {
        let Some(root) = root_of(id, &table) else { continue };
        let part = processes.iter().position(|(_, process, _)| *process == root).or_else(|| marked(id));
        let Some(sum) = part.and_then(|part| sums.get_mut(part)) else { continue };
        sum.cpu_ns += cpu_ns(id, &table[&id]);
        sum.rss_kb += kb(id, "status", "VmRSS:");
        sum.pss_kb += kb(id, "smaps_rollup", "Pss:");
    }
    sums
}

/// Of which part a process is that has lost its parent.
fn marked(id: u32) -> Option<usize> {
    let environment = std::fs::read(format!("/proc/{id}/environ")).ok()?;
    let variables = environment.split(|byte| *byte == 0).filter_map(|v| std::str::from_utf8(v).ok());
    variables.filter_map(|v| v.strip_prefix(MARK)?.strip_prefix('=')?.parse().ok()).next()
}

fn cpu_ns(id: u32, row: &Row) -> u64 {
    // SAFETY: sysconf takes a number and gives a number back.
    let ticks_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    let ns = |ticks: u64| ticks * (1_000_000_000 / ticks_s);
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both out-pointers are to live variables of the right type.
    let told = unsafe {
        libc::clock_getcpuclockid(id as libc::pid_t, &mut clock) == 0 && libc::clock_gettime(clock, &mut time) == 0
    };
    let own = if told { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 } else { ns(row.own_ticks) };
    own + ns(row.children_ticks)
}

/// A field in kB of a file of a process.
fn kb(id: u32, file: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse().ok());
    value.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat =
            "77 (a ) b) S 5 77 77 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 12345 1000 200 18446744073709551615 1 1";
        let row = row(stat).unwrap();
        assert_eq!((row.parent, row.own_ticks, row.children_ticks), (5, 30, 70));
        assert!(super::row("77 (cut").is_none());
    }

    /// Processor time beyond what the first process of a tree used itself; the tree is gone afterwards.
    fn time_of_others_is_counted(script: &str) {
        take_orphans();
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).env(MARK, "0").process_group(0).spawn().unwrap();
        let processes = [("tree".to_owned(), child.id(), false)];
        let beyond = || {
            let own = table().get(&child.id()).map_or(0, |row| cpu_ns(child.id(), &Row { children_ticks: 0, ..*row }));
            measure(&processes)[0].cpu_ns.saturating_sub(own)
        };
        wholegrain_testing::wait_until("other processes' time is counted", || beyond() > 50_000_000);
        let used = &measure(&processes)[0];
        assert!(used.rss_kb > 0 && used.pss_kb > 0 && used.pss_kb <= used.rss_kb, "{used:?}");
        // SAFETY: the child was not waited for, so its group is still its own.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
        child.wait().unwrap();
    }

    #[test]
    fn children_that_have_ended_are_counted() {
        time_of_others_is_counted("while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done");
    }

    #[test]
    fn processes_that_have_lost_their_parent_are_counted() {
        time_of_others_is_counted("sh -c 'sh -c \"while :; do :; done\" &'; sleep 1000; :");
    }

    #[test]
    fn missed_ticks_are_those_that_samples_lack() {
        let start = Instant::now() - Duration::from_secs(10);
        assert_eq!(ticks(4, start, Duration::from_secs(1)), (4, 6));
        assert_eq!(ticks(1_000_000, start, Duration::from_secs(1)).1, 0);
    }
}
