//! Names that DCDB pushers announced for topics, in memory and in a file.
//!
//! A pusher announces once, when it starts, so that names must survive a restart of the server. The file has one JSON object a line, and later lines
//! replace earlier ones. A line is synced before the announcement is acknowledged. At start the file is compacted.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use anyhow::Context;

use super::dcdb::SensorAnnouncement;

/// The most topics with announced names.
pub const TOPICS_MAX: usize = 1 << 20;
/// The file is rewritten at start if it has more than this many lines for each name.
const LINES_FACTOR: usize = 2;

#[derive(Debug)]
pub(crate) struct TopicNames {
    path: PathBuf,
    names: RwLock<HashMap<String, SensorAnnouncement>>,
    /// Locked while a line is written; holds the length of complete lines.
    file: Mutex<Option<File>>,
    generation: AtomicU64,
}

impl TopicNames {
    /// Reads the file if it exists.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let (mut names, mut lines) = (HashMap::new(), 0);
        for (number, line) in text.split_inclusive('\n').enumerate() {
            lines += 1;
            match serde_json::from_str::<SensorAnnouncement>(line) {
                Ok(announced) => drop(names.insert(announced.topic.as_str().to_owned(), announced)),
                // A line that a crash truncated was never acknowledged.
                Err(_) if !line.ends_with('\n') => lines += LINES_FACTOR * TOPICS_MAX,
                Err(error) => anyhow::bail!(
                    "{}:{}: {error}; delete the line; its pusher announces the name again",
                    path.display(),
                    number + 1
                ),
            }
        }
        let names = Self {
            path: path.to_owned(),
            names: RwLock::new(names),
            file: Mutex::new(None),
            generation: AtomicU64::new(0),
        };
        if lines > LINES_FACTOR * names.len().max(16) {
            names.rewrite().with_context(|| format!("cannot rewrite {}", path.display()))?;
        }
        Ok(names)
    }

    pub fn len(&self) -> usize {
        self.names.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Increases with every change.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The announcement for a topic.
    pub fn get(&self, topic: &str) -> Option<SensorAnnouncement> {
        self.names.read().unwrap_or_else(PoisonError::into_inner).get(topic).cloned()
    }

    /// Stores an announcement; durable when it returns. Blocks on the disk.
    pub fn put(&self, announced: &SensorAnnouncement) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if self.get(announced.topic.as_str()).as_ref() == Some(announced) {
            return Ok(());
        }
        if self.len() >= TOPICS_MAX {
            return Err(io::Error::other(format!("{TOPICS_MAX} topics already have names; no more are stored")));
        }
        let mut line = serde_json::to_vec(announced)?;
        line.push(b'\n');
        let open = || {
            let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
            self.path.parent().map_or(Ok(()), sync_directory)?;
            io::Result::Ok(file)
        };
        let mut out = match file.take() {
            Some(out) => out,
            None => open()?,
        };
        let whole = out.metadata()?.len();
        if let Err(error) = out.write_all(&line).and_then(|()| out.sync_data()) {
            // A partial line in the middle would make the next start fail.
            let _ = out.set_len(whole);
            return Err(error);
        }
        *file = Some(out);
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        names.insert(announced.topic.as_str().to_owned(), announced.clone());
        drop(names);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn rewrite(&self) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut out = io::BufWriter::new(File::create(&new)?);
        for announced in self.names.read().unwrap_or_else(PoisonError::into_inner).values() {
            serde_json::to_writer(&mut out, announced)?;
            out.write_all(b"\n")?;
        }
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        self.path.parent().map_or(Ok(()), sync_directory)
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::dcdb::announcement;
    use super::*;

    fn announced(topic: &str, name: &str) -> SensorAnnouncement {
        announcement(&format!("/DCDB_MAP/{topic}"), name.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn names_outlive_the_process_and_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("names.jsonl");
        let names = TopicNames::open(&path).unwrap();
        names.put(&announced("/a", "/x")).unwrap();
        names.put(&announced("/b", "/y")).unwrap();
        assert_eq!(names.generation(), 2);
        names.put(&announced("/b", "/y")).unwrap();
        assert_eq!(names.generation(), 2, "nothing new");
        for round in 0..40 {
            names.put(&announced("/a", &format!("/x{round}"))).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{{\"topic\":\"/c\"")).unwrap();
        let names = TopicNames::open(&path).unwrap();
        assert_eq!((names.len(), names.get("/a").unwrap().name.as_str()), (2, "/x39"));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2, "written again");
        names.put(&announced("/c", "/z")).unwrap();
        assert_eq!(TopicNames::open(&path).unwrap().get("/c").unwrap().name.as_str(), "/z");
        std::fs::write(&path, "nonsense\n{}\n").unwrap();
        assert!(TopicNames::open(&path).unwrap_err().to_string().contains(":1:"));
    }
}
