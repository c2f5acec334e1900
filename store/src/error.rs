//! Errors of the store. Each message says what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wholegrain_model::SchemaHash;

/// An error of the store. Cheap to clone: one failed write answers many batches.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The batch's schema is not registered; nothing was written. The sender must announce it and send again.
    #[error("schema {0} is not known here; it must be announced before its batches")]
    UnknownSchema(SchemaHash),
    /// The bytes are not a batch of the schema that they name; nothing was written.
    #[error("payload refused: {0}")]
    Payload(String),
    /// A sensor without a schema has properties that are not allowed, or a reading names a sensor that is not known; nothing was written.
    #[error("{0}")]
    Sensor(String),
    /// Too much is queued; nothing was written. Try again when [`crate::Store::append_room`] returns true.
    #[error("the store has no room for more waiting batches; try again shortly")]
    Busy,
    /// The disk is full. Nothing was acknowledged; appends succeed again when there is space.
    #[error(
        "{doing} {path}: the disk is full; free some space or lower the retention, appends then go on by themselves"
    )]
    DiskFull {
        /// What was being done.
        doing: &'static str,
        path: PathBuf,
    },
    /// The system refused a file operation.
    #[error("{doing} {path}: {error}")]
    Io {
        /// What was being done.
        doing: &'static str,
        path: PathBuf,
        /// What the system said.
        error: Arc<io::Error>,
    },
    /// The catalogue's database failed.
    #[error("{doing} in the catalogue {path}: {reason}")]
    Catalogue {
        /// What was being done.
        doing: &'static str,
        path: PathBuf,
        /// What the database said.
        reason: String,
    },
    /// Another process has the directory open.
    #[error("the store {path} is in use by the process {pid}; stop that server first, or choose another directory")]
    Locked {
        path: PathBuf,
        /// The process that holds it, as its lock file says.
        pid: String,
    },
    /// The directory was written by a newer release.
    #[error(
        "{path} has format version {found}, this release reads up to {known}; use the release that wrote it or a later one"
    )]
    NewerVersion {
        path: PathBuf,
        found: u64,
        /// The newest version known.
        known: u64,
    },
    /// A file's content is not what was written.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// A database on other machines has something that this release cannot use, or refuses this server.
    #[error("{doing}: {reason}")]
    Remote {
        /// What was being done.
        doing: &'static str,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A database on other machines did not answer or could not do it now. The same can succeed later.
    #[error("{doing}: {reason}")]
    RemoteUnavailable {
        /// What was being done.
        doing: &'static str,
        /// What the database or its driver said.
        reason: String,
    },
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// From a failed file operation; a full disk has its own variant.
    pub(crate) fn io(doing: &'static str, path: &Path, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Self::DiskFull { doing, path: path.to_owned() },
            _ => Self::Io { doing, path: path.to_owned(), error: Arc::new(error) },
        }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }
}
