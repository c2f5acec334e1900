//! The state of maintenance tasks: their progress, and their results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_api::{MaintenanceKind, MaintenanceResult, MaintenanceStatus};
use wholegrain_model::Timestamp;

/// The latest task of each kind.
#[derive(Default)]
pub(crate) struct MaintenanceTasks {
    latest: Mutex<[Option<Arc<MaintenanceTask>>; 3]>,
}

pub(crate) struct MaintenanceTask {
    pub kind: MaintenanceKind,
    pub dry_run: bool,
    pub begun: Timestamp,
    pub by: String,
    pub done: AtomicU64,
    pub total: AtomicU64,
    pub ending: AtomicBool,
    pub ended: Mutex<Option<(Timestamp, Result<MaintenanceResult, String>)>>,
}

impl MaintenanceTask {
    pub fn is_running(&self) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    pub fn status(&self) -> MaintenanceStatus {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (ended, result) = ended.unzip();
        let (result, error) = match result {
            None => (None, None),
            Some(Ok(result)) => (Some(result), None),
            Some(Err(error)) => (None, Some(error)),
        };
        MaintenanceStatus {
            kind: self.kind,
            dry_run: self.dry_run,
            begun: self.begun.into(),
            by: self.by.clone(),
            running: ended.is_none(),
            done: self.done.load(Relaxed),
            total: self.total.load(Relaxed),
            ended: ended.map(Into::into),
            result,
            error,
        }
    }
}

impl MaintenanceTasks {
    pub fn latest(&self, kind: MaintenanceKind) -> Option<Arc<MaintenanceTask>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize].clone()
    }

    /// Registers the task unless another one is running.
    pub fn begin(&self, task: Arc<MaintenanceTask>) -> Result<(), String> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = latest.iter().flatten().find(|other| other.is_running()) {
            return Err(format!("{} is going on since {}, begun by {}", other.kind.name(), other.begun, other.by));
        }
        let kind = task.kind;
        latest[kind as usize] = Some(task);
        Ok(())
    }
}
