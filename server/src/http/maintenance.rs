//! `/api/v1/data/{compact,verify,repair}`: long-running maintenance of the store. A task is started, continues without its client, reports its
//! progress, and can be cancelled. One at a time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use wholegrain_api::{
    CheckedFile, CheckedFileCount, CompactResult, MaintenanceKind, MaintenanceResult, RepairResult, RepairedFile,
    VerifyResult,
};
use wholegrain_store::verify::{FileKind, FileReport, verify_watched};
use wholegrain_store::{Store, StoreError};

use super::clock::now;
use super::data::{audit, is_try};
use super::maintenance_tasks::MaintenanceTask;
use super::params::QueryParams;
use super::serve::PeerAddress;
use super::{Api, ApiError};
use crate::access::audit::AuditOutcome;
use crate::access::bearer_name;
use crate::access::tokens::Bearer;

pub(super) const REPAIR: &[&str] = &["try"];
/// The most files in a result.
const NAMED_MAX: usize = 1_000;

fn kind(uri: &Uri) -> Result<MaintenanceKind, ApiError> {
    let kind = MaintenanceKind::ALL.into_iter().find(|kind| kind.path() == uri.path());
    kind.ok_or_else(|| ApiError::internal("the path names no maintenance task"))
}

/// The task's progress or result.
pub(super) async fn show(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, ApiError> {
    let kind = kind(&uri)?;
    match api.upkeep.latest(kind) {
        Some(task) => Ok(Json(task.status()).into_response()),
        None => {
            let message = format!("{} has not been begun since the server was started", kind.name());
            Err(ApiError::new(StatusCode::NOT_FOUND, message))
        }
    }
}

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
    Ok(Json(task.status()).into_response())
}

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
    Ok(Json(task.status()).into_response())
}

fn run(
    store: &Store,
    kind: MaintenanceKind,
    dry_run: bool,
    watch: wholegrain_store::CancellableProgress,
) -> Result<MaintenanceResult, StoreError> {
    match kind {
        MaintenanceKind::Compact => {
            let done = store.compact(now().0, watch)?;
            let result = CompactResult { blocks: done.blocks, bytes: done.bytes, cut_short: done.cut_short };
            Ok(MaintenanceResult::Compact(result))
        }
        MaintenanceKind::Verify => {
            let report = verify_watched(&store.dir(), watch)?;
            let (damaged, lost) = (report.damaged().count() as u64, report.lost.len() as u64);
            let mut counts: BTreeMap<String, CheckedFileCount> = BTreeMap::new();
            for file in &report.files {
                let count = counts.entry(kind_name(file.kind).to_owned()).or_default();
                count.files += 1;
                count.bytes += file.bytes;
                count.damaged += u64::from(!file.problems.is_empty());
            }
            let remarkable = |file: &FileReport| !file.problems.is_empty() || file.note.is_some();
            let files = report.files.into_iter().filter(remarkable).take(NAMED_MAX).map(checked_file).collect();
            Ok(MaintenanceResult::Verify(VerifyResult { damaged, counts, files, lost }))
        }
        MaintenanceKind::Repair => {
            let report = store.repair(dry_run, watch)?;
            let (damaged, lost) = (report.files.len() as u64, report.lost());
            let files = report.files.into_iter().take(NAMED_MAX).map(repaired_file).collect();
            Ok(MaintenanceResult::Repair(RepairResult { damaged, lost, files }))
        }
    }
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Catalogue => "catalogue",
        FileKind::Journal => "journal",
        FileKind::Block => "block",
        FileKind::Tier => "tier",
        FileKind::Unknown => "unknown",
    }
}

fn checked_file(file: FileReport) -> CheckedFile {
    let FileReport { path, kind, bytes, rows, problems, note } = file;
    CheckedFile { path: path.display().to_string(), kind: kind_name(kind).to_owned(), bytes, rows, problems, note }
}

fn repaired_file(file: wholegrain_store::repair::RepairedFile) -> RepairedFile {
    RepairedFile {
        path: file.path.display().to_string(),
        kind: kind_name(file.kind).to_owned(),
        problem: file.problem,
        rows: file.rows,
        kept: file.kept,
        damaged_copy: file.damaged_copy.map(|path| path.display().to_string()),
        note: file.note,
    }
}
