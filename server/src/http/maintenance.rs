//! `/api/v1/data/{compact,verify,repair}`: long-running maintenance of the store. A task is started, continues without its client, reports its
//! progress, and can be cancelled. One at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use wholegrain_model::Timestamp;
use wholegrain_store::verify::{FileReport, verify_watched};
use wholegrain_store::{Store, StoreError};

use super::data::{audit, is_try};
use super::params::QueryParams;
use super::query::now;
use super::serve::PeerAddress;
use super::{Api, ApiError};
use crate::access::audit::AuditOutcome;
use crate::access::bearer_name;
use crate::access::tokens::Bearer;

pub(super) const REPAIR: &[&str] = &["try"];
/// The most files in a result.
const NAMED_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MaintenanceKind {
    Compact,
    Verify,
    Repair,
}

impl MaintenanceKind {
    const ALL: [MaintenanceKind; 3] = [MaintenanceKind::Compact, MaintenanceKind::Verify, MaintenanceKind::Repair];

    fn name(self) -> &'static str {
        match self {
            MaintenanceKind::Compact => "compact",
            MaintenanceKind::Verify => "verify",
            MaintenanceKind::Repair => "repair",
        }
    }
}

/// The latest task of each kind.
#[derive(Default)]
pub(crate) struct MaintenanceTasks {
    latest: Mutex<[Option<Arc<MaintenanceTask>>; 3]>,
}

struct MaintenanceTask {
    kind: MaintenanceKind,
    dry_run: bool,
    begun: Timestamp,
    by: String,
    done: AtomicU64,
    total: AtomicU64,
    ending: AtomicBool,
    ended: Mutex<Option<(Timestamp, Result<Value, String>)>>,
}

impl MaintenanceTask {
    fn is_running(&self) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn state(&self) -> Value {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = json!({
            "what": self.kind.name(), "dry_run": self.dry_run, "begun": self.begun.to_string(), "by": self.by,
            "running": ended.is_none(), "done": self.done.load(Relaxed), "total": self.total.load(Relaxed),
        });
        if let Some((at, result)) = ended.as_ref() {
            state["ended"] = json!(at.to_string());
            match result {
                Ok(result) => state["result"] = result.clone(),
                Err(error) => state["error"] = json!(error),
            }
        }
        state
    }
}

impl MaintenanceTasks {
    fn latest(&self, kind: MaintenanceKind) -> Option<Arc<MaintenanceTask>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize].clone()
    }

    /// Registers the task unless another one is running.
    fn begin(&self, task: Arc<MaintenanceTask>) -> Result<(), String> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = latest.iter().flatten().find(|other| other.is_running()) {
            return Err(format!("{} is going on since {}, begun by {}", other.kind.name(), other.begun, other.by));
        }
        let kind = task.kind;
        latest[kind as usize] = Some(task);
        Ok(())
    }
}

fn kind(uri: &Uri) -> Result<MaintenanceKind, ApiError> {
    let name = uri.path().rsplit('/').next().unwrap_or_default();
    MaintenanceKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| ApiError::internal("no such work"))
}

/// The task's progress or result.
pub(super) async fn show(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, ApiError> {
    let kind = kind(&uri)?;
    match api.upkeep.latest(kind) {
        Some(task) => Ok(Json(task.state()).into_response()),
        None => {
            let message = format!("{} has not been begun since the server was started", kind.name());
            Err(ApiError::new(StatusCode::NOT_FOUND, message))
        }
    }
}

/// Begins it.
pub(super) async fn begin(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let kind = kind(&uri)?;
    let dry_run = is_try(&QueryParams::of(&uri, if kind == MaintenanceKind::Repair { REPAIR } else { &[] })?)?;
    let task = Arc::new(MaintenanceTask {
        kind,
        dry_run,
        begun: now(),
        by: bearer_name(&bearer).to_string(),
        done: AtomicU64::new(0),
        total: AtomicU64::new(0),
        ending: AtomicBool::new(false),
        ended: Mutex::default(),
    });
    let begun = api.upkeep.begin(task.clone());
    let outcome = if begun.is_ok() { AuditOutcome::Ok } else { AuditOutcome::Refused };
    audit(&api, &bearer, peer, outcome, &format!("{}{}", kind.name(), if dry_run { ", only asked" } else { "" }));
    begun.map_err(|error| ApiError::new(StatusCode::CONFLICT, error))?;
    let (store, shutdown, work) = (api.store.clone(), api.shutdown.clone(), task.clone());
    tokio::task::spawn_blocking(move || {
        let mut watch = |done: u64, total: u64| {
            work.done.store(done, Relaxed);
            work.total.store(total, Relaxed);
            !work.ending.load(Relaxed) && !*shutdown.borrow()
        };
        let run = std::panic::AssertUnwindSafe(|| run(&store, kind, dry_run, &mut watch));
        let result = match std::panic::catch_unwind(run) {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("it ended early; the server's log says why".to_owned()),
        };
        *work.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some((now(), result));
    });
    Ok(Json(task.state()).into_response())
}

/// Cancels the task.
pub(super) async fn end(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let kind = kind(&uri)?;
    let Some(task) = api.upkeep.latest(kind).filter(|task| task.is_running()) else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, format!("{} is not going on", kind.name())));
    };
    task.ending.store(true, Relaxed);
    audit(&api, &bearer, peer, AuditOutcome::Ok, &format!("{} ended", kind.name()));
    Ok(Json(task.state()).into_response())
}

fn run(
    store: &Store,
    kind: MaintenanceKind,
    dry_run: bool,
    watch: wholegrain_store::CancellableProgress,
) -> Result<Value, StoreError> {
    match kind {
        MaintenanceKind::Compact => store.compact(now().0, watch).map(|done| json!(done)),
        MaintenanceKind::Verify => {
            let report = verify_watched(&store.dir(), watch)?;
            let mut counts: std::collections::BTreeMap<String, (u64, u64, u64)> = std::collections::BTreeMap::new();
            for file in &report.files {
                let name = json!(file.kind).as_str().unwrap_or_default().to_owned();
                let count = counts.entry(name).or_default();
                *count = (count.0 + 1, count.1 + file.bytes, count.2 + u64::from(!file.problems.is_empty()));
            }
            let counts: Value = counts
                .into_iter()
                .map(|(kind, (files, bytes, damaged))| {
                    (kind, json!({ "files": files, "bytes": bytes, "damaged": damaged }))
                })
                .collect::<serde_json::Map<String, Value>>()
                .into();
            let remarkable = |file: &&FileReport| !file.problems.is_empty() || file.note.is_some();
            let named: Vec<&FileReport> = report.files.iter().filter(remarkable).take(NAMED_MAX).collect();
            let (damaged, lost) = (report.damaged().count(), report.lost.len());
            Ok(json!({ "damaged": damaged, "counts": counts, "files": named, "lost": lost }))
        }
        MaintenanceKind::Repair => {
            let mut report = store.repair(dry_run, watch)?;
            let (lost, count) = (report.lost(), report.files.len());
            report.files.truncate(NAMED_MAX);
            Ok(json!({ "damaged": count, "lost": lost, "files": report.files }))
        }
    }
}
