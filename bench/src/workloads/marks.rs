//! When a growing file said what: the begin and end of hpcc's sections.
//!
//! The kernel wakes this process when the file was written to, a few dozen times in a run; nothing is polled beside the program
//! that is measured.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};

/// Watches one file for lines such as `Begin of PTRANS section.` and `End of PTRANS section.`.
#[derive(Debug)]
pub struct Marks {
    path: PathBuf,
    offset: u64,
    /// The beginning of a line whose end was not written yet.
    rest: String,
    begun: BTreeMap<String, Instant>,
    spans: BTreeMap<String, f64>,
    notices: OwnedFd,
}

impl Marks {
    /// Of a file that is not there yet, in a folder that is.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        let dir = path.parent().context("a file in a folder")?;
        let name = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
        // SAFETY: takes a flag only.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
        ensure!(fd >= 0, "asking the kernel to tell of changes: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let notices = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the name ends with a zero and lives until the call returns.
        let watch = unsafe { libc::inotify_add_watch(fd, name.as_ptr(), libc::IN_MODIFY | libc::IN_CREATE) };
        ensure!(watch >= 0, "watching {}: {}", dir.display(), std::io::Error::last_os_error());
        Ok(Self {
            path: path.to_owned(),
            offset: 0,
            rest: String::new(),
            begun: BTreeMap::new(),
            spans: BTreeMap::new(),
            notices,
        })
    }

    /// Readable when something in the folder changed.
    pub fn descriptor(&self) -> i32 {
        self.notices.as_raw_fd()
    }

    /// Takes in what was written since the last time.
    pub fn look(&mut self) {
        let now = Instant::now();
        let mut taken = [0u8; 4096];
        // SAFETY: the buffer is as long as said; the descriptor does not block.
        while unsafe { libc::read(self.descriptor(), taken.as_mut_ptr().cast(), taken.len()) } > 0 {}
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.offset))?;
            file.read_to_end(&mut bytes)
        });
        // Not there yet: nothing was said yet.
        self.offset += read.unwrap_or(0) as u64;
        self.take(&String::from_utf8_lossy(&bytes), now);
    }

    fn take(&mut self, text: &str, now: Instant) {
        self.rest.push_str(text);
        while let Some(end) = self.rest.find('\n') {
            let line: String = self.rest.drain(..=end).collect();
            let section = |begin: &str| line.trim().strip_prefix(begin)?.strip_suffix(" section.").map(str::to_owned);
            if let Some(name) = section("Begin of ") {
                self.begun.insert(name, now);
            } else if let Some(name) = section("End of ") {
                let begun = self.begun.remove(&name).unwrap_or(now);
                self.spans.insert(name, now.duration_since(begun).as_secs_f64());
            }
        }
    }

    /// What each section took that has ended, s.
    pub fn spans(&self) -> &BTreeMap<String, f64> {
        &self.spans
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sections_are_timed_however_the_text_is_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut marks = Marks::of(&folder.path().join("out")).expect("a watch");
        let start = Instant::now();
        marks.take("hello\nBegin of A sec", start);
        marks.take("tion.\nfigures\n", start + Duration::from_secs(1));
        marks.take("End of A section.\nBegin of B section.\n", start + Duration::from_secs(3));
        marks.take("End of B section.\nBegin of C section.\n", start + Duration::from_secs(7));
        let spans: Vec<(&str, f64)> = marks.spans().iter().map(|(name, s)| (name.as_str(), *s)).collect();
        assert_eq!(spans, [("A", 2.0), ("B", 4.0)]);
    }

    #[test]
    fn the_kernel_tells_of_what_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let mut marks = Marks::of(&path).expect("a watch");
        marks.look();
        for text in ["Begin of A section.\n", "Begin of A section.\nEnd of A section.\n"] {
            std::fs::write(&path, text).expect("a file");
            let mut poll = libc::pollfd { fd: marks.descriptor(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, as said.
            assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1);
            marks.look();
        }
        assert!(marks.spans().contains_key("A"));
    }
}
