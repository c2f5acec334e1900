//! Repairing a store that no process has open.

use std::path::Path;
use std::sync::Arc;

use crate::disk::{Disk, RealDisk};
use crate::maintenance::repair::{RepairReport, rebuild};
use crate::progress::CancellableProgress;
use crate::{Store, StoreConfig, StoreError};

/// Repairs the store in `dir`, whose server must not run; with `dry_run` only says what would be done.
pub fn repair(dir: &Path, dry_run: bool, watch: CancellableProgress) -> Result<RepairReport, StoreError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let config = StoreConfig { background: false, ..StoreConfig::new(dir) };
    let catalogue = rebuild::if_damaged(&disk, dir, dry_run)?;
    if dry_run && catalogue.is_some() {
        return Ok(RepairReport { catalogue, files: Vec::new() });
    }
    let (store, _) = Store::open_on(config, disk)?;
    let report = store.repair(dry_run, watch)?;
    store.close()?;
    Ok(RepairReport { catalogue, ..report })
}
