//! A program that `up` starts: its log, its end.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// A larger log is renamed to `.old` at the next start.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// The part of a log that is shown when its program has ended.
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 12;
/// The interval of checks whether a program has stopped.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A started program. It is killed when dropped.
pub struct Child {
    name: &'static str,
    log: PathBuf,
    process: std::process::Child,
    /// Whether the program has responded; from then on it handles SIGTERM.
    ready: bool,
    ended: bool,
}

/// The end of a program without a request to stop.
#[derive(Debug)]
pub struct Ended {
    /// Whether the exit status is success.
    pub cleanly: bool,
    /// The exit status and the end of the log.
    pub failure: Failure,
}

impl Child {
    /// Starts `program`, whose output is appended to `log`.
    pub fn start(name: &'static str, program: &Path, arguments: &[OsString], log: &Path) -> Result<Self, Failure> {
        let file = open_log(log).map_err(Failure::writing(&log.display().to_string()))?;
        let failed = |error: std::io::Error| Failure::Failed(format!("cannot start {}: {error}", program.display()));
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
        // In a process group of its own, so that Ctrl-C reaches only this program, which stops the others in order.
        command.process_group(0);
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; prctl is a plain system call and allocates
        // nothing. If this program is killed, the kernel stops the child.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let process = command.spawn().map_err(failed)?;
        Ok(Self { name, log: log.to_owned(), process, ready: false, ended: false })
    }

    /// The path of the log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Records that the program has responded.
    pub fn set_ready(&mut self) {
        self.ready = true;
    }

    /// Fails if the program has ended by itself.
    pub fn check(&mut self) -> Result<(), Ended> {
        let (cleanly, status) = match self.process.try_wait() {
            Ok(None) => return Ok(()),
            Ok(Some(status)) => (status.success(), status.to_string()),
            Err(error) => (false, error.to_string()),
        };
        self.ended = true;
        let tail = tail(&self.log);
        let tail = if tail.is_empty() { "its log is empty".to_owned() } else { format!("its last messages:\n{tail}") };
        let text = format!("the {} has ended by itself ({status}); see {}; {tail}", self.name, self.log.display());
        Err(Ended { cleanly, failure: Failure::Failed(text) })
    }

    /// Stops the program with SIGTERM, and kills it after `timeout`. Fails if it does not end in order.
    pub fn stop(&mut self, timeout: Duration) -> Result<(), String> {
        if self.ended {
            return Ok(());
        }
        self.signal(libc::SIGTERM);
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            match self.process.try_wait() {
                Ok(None) => std::thread::sleep(LOOK_EVERY),
                Ok(Some(status)) => {
                    self.ended = true;
                    if self.is_orderly(status) {
                        return Ok(());
                    }
                    return Err(format!("the {} ended badly ({status}); see {}", self.name, self.log.display()));
                }
                Err(error) => return Err(format!("cannot wait for the {}: {error}", self.name)),
            }
        }
        self.kill();
        Err(format!("the {} did not stop within {timeout:?} and was killed; see {}", self.name, self.log.display()))
    }

    /// Whether a program ended in order after SIGTERM. During its start a program does not handle the signal yet and dies of it; it has no data
    /// to lose then.
    fn is_orderly(&self, status: ExitStatus) -> bool {
        status.success() || (!self.ready && status.signal() == Some(libc::SIGTERM))
    }

    fn signal(&self, signal: i32) {
        let Ok(pid) = libc::pid_t::try_from(self.process.id()) else { return };
        // SAFETY: kill takes plain numbers; the process is a child that has not been waited for, so it still has this number.
        unsafe { libc::kill(pid, signal) };
    }

    fn kill(&mut self) {
        self.ended = true;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

fn open_log(path: &Path) -> std::io::Result<File> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    // A line that separates two runs.
    writeln!(file, "---- {}", crate::output::values::now())?;
    Ok(file)
}

/// The last lines of a log since its program started.
fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let start = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take_while(|line| !line.starts_with("---- ")).take(TAIL_LINES).collect();
    lines.into_iter().rev().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, log: &Path) -> Child {
        Child::start("test", Path::new("/bin/sh"), &["-c".into(), script.into()], log).unwrap()
    }

    fn ends_with(child: &mut Child) -> String {
        loop {
            if let Err(ended) = child.check() {
                return ended.failure.report().1.unwrap().to_owned();
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    #[test]
    fn an_end_is_reported_with_the_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a.log");
        let text = ends_with(&mut shell("echo first words; exit 0", &log));
        assert!(text.contains("first words"));
        let text = ends_with(&mut shell("echo port is taken >&2; exit 7", &log));
        assert!(text.contains("exit status: 7") && text.contains("  port is taken"), "{text}");
        assert!(!text.contains("first words"), "the run before is not shown: {text}");
    }

    #[test]
    fn stopping() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a.log");
        let ready = dir.path().join("ready");
        let wait_ready = || {
            while !ready.exists() {
                std::thread::sleep(LOOK_EVERY);
            }
            fs::remove_file(&ready).unwrap();
        };
        let script =
            |trap: &str| format!("trap '{trap}' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
        let mut good = shell(&script("exit 0"), &log);
        wait_ready();
        good.stop(Duration::from_secs(60)).unwrap();
        let mut bad = shell(&script("exit 3"), &log);
        wait_ready();
        assert!(bad.stop(Duration::from_secs(60)).unwrap_err().contains("exit status: 3"));
        let mut deaf = shell(&script(""), &log);
        wait_ready();
        assert!(deaf.stop(Duration::from_millis(50)).unwrap_err().contains("was killed"));
    }

    #[test]
    fn dying_of_the_signal_is_in_order_for_a_program_that_was_still_starting_and_only_then() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a.log");
        shell("exec sleep 600", &log).stop(Duration::from_secs(60)).unwrap();
        let mut running = shell("exec sleep 600", &log);
        running.set_ready();
        assert!(running.stop(Duration::from_secs(60)).unwrap_err().contains("signal: 15"));
    }
}
