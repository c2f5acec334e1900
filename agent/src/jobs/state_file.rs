//! State in a JSON file, replaced as a whole: a reader, also after a crash, sees the old or the new contents.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Debug, Clone)]
pub struct StateFile {
    path: PathBuf,
    bytes_max: u64,
    /// The consequence of a damaged file, as a clause for messages.
    loss: &'static str,
}

impl StateFile {
    /// A longer file than `bytes_max` is damaged.
    pub fn new(path: PathBuf, bytes_max: u64, loss: &'static str) -> Self {
        Self { path, bytes_max, loss }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The contents that pass `check`; `None` without a file. A damaged file is renamed to `….damaged`; the error reports it for the log.
    pub fn read<T: DeserializeOwned>(&self, check: impl Fn(&T) -> Result<(), String>) -> Result<Option<T>, String> {
        let content = self.parse().and_then(|content| match content {
            Some(content) => check(&content).map(|()| Some(content)),
            None => Ok(None),
        });
        content.map_err(|why| self.rename_damaged(&why))
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<Option<T>, String> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut bytes = Vec::new();
        file.take(self.bytes_max + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > self.bytes_max {
            return Err(format!("it has more than {} bytes", self.bytes_max));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|error| error.to_string())
    }

    fn rename_damaged(&self, why: &str) -> String {
        let damaged = self.path.with_extension("json.damaged");
        let shown = self.path.display();
        match fs::rename(&self.path, &damaged) {
            Ok(()) => format!("{shown} is damaged ({why}); {}, the file is kept as {}", self.loss, damaged.display()),
            Err(error) => format!("{shown} is damaged ({why}), and cannot be renamed: {error}"),
        }
    }

    /// Replaces the file, and creates its directory if necessary.
    pub fn write(&self, content: &impl Serialize) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir)?;
        let temporary = self.path.with_extension("json.new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = BufWriter::new(options.open(&temporary)?);
        serde_json::to_writer(&mut file, content)?;
        file.flush()?;
        file.get_ref().sync_all()?;
        fs::rename(&temporary, &self.path)?;
        File::open(dir)?.sync_all()
    }
}

/// Refuses another version of the format.
pub fn check_version(is: u32, expected: u32) -> Result<(), String> {
    match is == expected {
        true => Ok(()),
        false => Err(format!("its version is {is}; this agent reads version {expected}")),
    }
}
