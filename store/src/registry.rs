//! What people set while the server runs and what must outlive it: properties of sensors, virtual sensors, rules of retention. Few, small, and each
//! with its history.
//!
//! A text file, `registry.log`, that is only ever appended to: one line for each change, fsync'ed before it counts. `FORMAT.md` describes it. Readers
//! of a kind take what is set now ([`Registry::all`]) and look again when [`Registry::generation`] has risen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::StoreError;
use crate::disk::{Disk, DiskFile, read_file};

/// The file's name in the store's directory.
pub(crate) const FILE: &str = "registry.log";
const HEAD: &str = "wholegrain registry 1";
/// The kinds that all servers of a keyspace share, if the store hands over its readings.
pub const SHARED_KINDS: [&str; 3] = ["property", "virtual", "retention"];
/// The most bytes of one change.
pub const CHANGE_BYTES_MAX: usize = 16 << 20;
/// The most entries of one kind that are set at a time.
pub const ENTRIES_MAX: usize = 200_000;

/// An entry: it has a kind (`property`, `virtual`, `retention`, `loss`) and a key within the kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegistryEntry {
    /// Number of the change that set it; rises with every change of any kind.
    pub number: u64,
    /// When it was set, ns since the Unix epoch.
    pub at: i64,
    pub who: String,
    pub key: String,
    /// `None` in a history if the entry was removed.
    pub value: Option<Value>,
}

/// A line of the file after its checksum.
#[derive(Serialize, Deserialize)]
struct RegistryLine {
    number: u64,
    at: i64,
    who: String,
    kind: String,
    changes: Vec<(String, Option<Value>)>,
}

#[derive(Default)]
struct RegistryContent {
    /// By kind and key.
    set: BTreeMap<String, BTreeMap<String, RegistryEntry>>,
    next: u64,
    /// The offset of the next line.
    end: u64,
}

/// The registry. All calls may come from any thread.
pub struct Registry {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    content: RwLock<RegistryContent>,
    /// The file, once it exists; locked while it is written.
    file: Mutex<Option<Arc<dyn DiskFile>>>,
    generation: AtomicU64,
}

impl Registry {
    /// Reads the file if it exists; returns a message for each damaged line, which is left out.
    pub(crate) fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(Self, Vec<String>), StoreError> {
        let path = dir.join(FILE);
        let mut content = RegistryContent { next: 1, ..RegistryContent::default() };
        let mut damaged = Vec::new();
        if disk.exists(&path) {
            let bytes = read_file(disk.as_ref(), &path).map_err(|error| StoreError::io("reading", &path, error))?;
            // A partial last line was never acknowledged.
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            content.end = whole as u64;
            let mut lines = bytes[..whole].split(|byte| *byte == b'\n');
            match lines.next() {
                Some(head) if head == HEAD.as_bytes() => {}
                Some(head) if head.starts_with(b"wholegrain registry ") => {
                    let found = String::from_utf8_lossy(&head[20..]).trim().parse().unwrap_or(u64::MAX);
                    return Err(StoreError::NewerVersion { path, found, known: 1 });
                }
                _ if whole == 0 => {}
                _ => {
                    return Err(StoreError::damaged(&path, "its first line is not the one it is made with".to_owned()));
                }
            }
            for (number, line) in (2..).zip(lines).filter(|(_, line)| !line.is_empty()) {
                match decode(line) {
                    Some(line) => content.take(line),
                    None => damaged.push(format!("{}, line {number}: its checksum does not fit", path.display())),
                }
            }
        }
        damaged.iter().for_each(|text| tracing::error!("registry: damaged and left out: {text}"));
        let registry = Self {
            disk: disk.clone(),
            path,
            content: RwLock::new(content),
            file: Mutex::new(None),
            generation: AtomicU64::new(1),
        };
        Ok((registry, damaged))
    }

    /// Copies the valid part of the file; `false` if there is none.
    pub(crate) fn copy_to(&self, to: &Path) -> Result<bool, StoreError> {
        let end = self.content.read().unwrap_or_else(PoisonError::into_inner).end;
        if end == 0 {
            return Ok(false);
        }
        let mut bytes =
            read_file(self.disk.as_ref(), &self.path).map_err(|error| StoreError::io("reading", &self.path, error))?;
        bytes.truncate(usize::try_from(end).unwrap_or(usize::MAX));
        let write = || {
            let file = self.disk.create(to)?;
            file.write_at(0, &bytes)?;
            file.sync()
        };
        write().map(|()| true).map_err(|error| StoreError::io("writing", to, error))
    }

    /// Rises with every change.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// All entries of a kind, in the order in which they were set.
    pub fn all(&self, kind: &str) -> Vec<RegistryEntry> {
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        let mut entries: Vec<RegistryEntry> =
            content.set.get(kind).into_iter().flat_map(|of| of.values().cloned()).collect();
        entries.sort_by_key(|entry| entry.number);
        entries
    }

    /// The entry with this key.
    pub fn get(&self, kind: &str, key: &str) -> Option<RegistryEntry> {
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        content.set.get(kind)?.get(key).cloned()
    }

    /// Sets (`Some`) and removes (`None`) entries, all or none; durable when it returns. Returns the number of the change.
    pub fn change(
        &self,
        kind: &str,
        changes: Vec<(String, Option<Value>)>,
        who: &str,
        at: i64,
    ) -> Result<u64, StoreError> {
        self.change_numbered(kind, changes, who, at, None)
    }

    /// The same with a number from elsewhere. Numbers that are given here later are larger.
    pub(crate) fn change_numbered(
        &self,
        kind: &str,
        changes: Vec<(String, Option<Value>)>,
        who: &str,
        at: i64,
        number: Option<u64>,
    ) -> Result<u64, StoreError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, end, count) = {
            let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
            (number.unwrap_or(content.next), content.end, content.set.get(kind).map_or(0, BTreeMap::len))
        };
        if count + changes.len() > ENTRIES_MAX {
            return Err(StoreError::Sensor(format!(
                "there would be more than {ENTRIES_MAX} entries of the kind {kind}"
            )));
        }
        let line = RegistryLine { number, at, who: who.to_owned(), kind: kind.to_owned(), changes };
        let json = serde_json::to_string(&line).map_err(|error| StoreError::Sensor(error.to_string()))?;
        if json.len() > CHANGE_BYTES_MAX {
            return Err(StoreError::Sensor(format!(
                "the change has {} bytes, at most {CHANGE_BYTES_MAX} are allowed",
                json.len()
            )));
        }
        let io = |error| StoreError::io("writing", &self.path, error);
        let mut text = String::new();
        if end == 0 {
            text.push_str(&format!("{HEAD}\n"));
        }
        text.push_str(&format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes())));
        if file.is_none() {
            let there = self.disk.exists(&self.path);
            let opened = if there { self.disk.open(&self.path, true) } else { self.disk.create(&self.path) };
            let opened = opened.map_err(io)?;
            // A partial line that a crash left must not become the beginning of this one.
            opened.set_len(end).map_err(io)?;
            if !there {
                self.disk.sync_dir(self.path.parent().unwrap_or(&self.path)).map_err(io)?;
            }
            *file = Some(opened);
        }
        let written =
            file.as_ref().map_or(Ok(()), |file| file.write_at(end, text.as_bytes()).and_then(|()| file.sync()));
        if let Err(error) = written {
            // The content of the file is unknown now; the next change truncates it to the valid part.
            *file = None;
            return Err(io(error));
        }
        let mut content = self.content.write().unwrap_or_else(PoisonError::into_inner);
        content.end = end + text.len() as u64;
        content.take(line);
        self.generation.fetch_add(1, Relaxed);
        Ok(number)
    }

    /// The latest `most` changes of a kind, or of one key, the latest last.
    pub fn history(&self, kind: &str, key: Option<&str>, most: usize) -> Result<Vec<RegistryEntry>, StoreError> {
        let end = self.content.read().unwrap_or_else(PoisonError::into_inner).end;
        if end == 0 {
            return Ok(Vec::new());
        }
        let mut bytes =
            read_file(self.disk.as_ref(), &self.path).map_err(|error| StoreError::io("reading", &self.path, error))?;
        bytes.truncate(usize::try_from(end).unwrap_or(usize::MAX));
        let mut found = Vec::new();
        for line in bytes.split(|byte| *byte == b'\n').skip(1).filter_map(decode).filter(|line| line.kind == kind) {
            let RegistryLine { number, at, who, changes, .. } = line;
            let wanted = changes.into_iter().filter(|(of, _)| key.is_none_or(|key| key == of));
            found.extend(wanted.map(|(key, value)| RegistryEntry { number, at, who: who.clone(), key, value }));
        }
        found.drain(..found.len().saturating_sub(most));
        Ok(found)
    }
}

impl RegistryContent {
    fn take(&mut self, line: RegistryLine) {
        let RegistryLine { number, at, who, kind, changes } = line;
        let of = self.set.entry(kind).or_default();
        for (key, value) in changes {
            if value.is_some() {
                of.insert(key.clone(), RegistryEntry { number, at, who: who.clone(), key, value });
            } else {
                of.remove(&key);
            }
        }
        self.next = self.next.max(number + 1);
    }
}

/// Decodes a line; `None` if its checksum is wrong.
fn decode(line: &[u8]) -> Option<RegistryLine> {
    let (sum, json) = line.split_at_checked(9)?;
    let sum = u32::from_str_radix(std::str::from_utf8(&sum[..8]).ok()?, 16).ok()?;
    if crc32c::crc32c(json) != sum {
        return None;
    }
    serde_json::from_slice(json).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::disk::RealDisk;

    fn open(dir: &Path) -> (Registry, Vec<String>) {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        Registry::open(&disk, dir).unwrap()
    }

    fn keys(registry: &Registry, kind: &str) -> Vec<String> {
        registry.all(kind).into_iter().map(|entry| entry.key).collect()
    }

    #[test]
    fn what_is_set_is_there_after_the_next_opening_with_its_history() {
        let dir = tempfile::tempdir().unwrap();
        let (registry, _) = open(dir.path());
        let generation = registry.generation();
        registry
            .change("virtual", vec![("/b".into(), Some(json!(1))), ("/a".into(), Some(json!(2)))], "ada", 5)
            .unwrap();
        registry.change("property", vec![("/x".into(), Some(json!({"unit": "W"})))], "ada", 6).unwrap();
        registry.change("virtual", vec![("/b".into(), None), ("/c".into(), Some(json!("\n")))], "eve", 7).unwrap();
        assert!(registry.generation() > generation);
        let (registry, damaged) = open(dir.path());
        assert!(damaged.is_empty());
        assert_eq!(keys(&registry, "virtual"), ["/a", "/c"]);
        assert_eq!(registry.get("property", "/x").unwrap().value, Some(json!({"unit": "W"})));
        assert_eq!(registry.get("virtual", "/b"), None);
        let history = registry.history("virtual", Some("/b"), 10).unwrap();
        let reported: Vec<_> =
            history.iter().map(|entry| (entry.number, entry.at, entry.who.as_str(), entry.value.clone())).collect();
        assert_eq!(reported, [(1, 5, "ada", Some(json!(1))), (3, 7, "eve", None)]);
        assert_eq!(registry.history("virtual", None, 1).unwrap().len(), 1);
    }

    #[test]
    fn half_a_line_is_cut_off_and_a_damaged_one_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let (registry, _) = open(dir.path());
        for key in ["/a", "/b", "/c"] {
            registry.change("virtual", vec![(key.into(), Some(json!(1)))], "ada", 5).unwrap();
        }
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        let second = bytes.windows(4).position(|window| window == b"\"/b\"").unwrap();
        bytes[second + 1] ^= 2;
        bytes.extend_from_slice(b"00000000 {\"number\":9");
        std::fs::write(&path, &bytes).unwrap();
        let (registry, damaged) = open(dir.path());
        assert_eq!((keys(&registry, "virtual"), damaged.len()), (vec!["/a".to_owned(), "/c".to_owned()], 1));
        registry.change("virtual", vec![("/d".into(), Some(json!(1)))], "ada", 5).unwrap();
        assert_eq!(keys(&open(dir.path()).0, "virtual"), ["/a", "/c", "/d"]);
        std::fs::write(&path, "wholegrain registry 2\n").unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        assert!(matches!(Registry::open(&disk, dir.path()), Err(StoreError::NewerVersion { found: 2, .. })));
    }
}
