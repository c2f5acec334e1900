//! The paths of a store.

use std::path::PathBuf;

/// The paths below the directory of the store.
#[derive(Debug)]
pub(crate) struct StorePaths {
    pub dir: PathBuf,
    pub journal: PathBuf,
    pub blocks: PathBuf,
    pub temporary: PathBuf,
    pub damaged: PathBuf,
    pub quarantine: PathBuf,
    pub catalogue: PathBuf,
}
