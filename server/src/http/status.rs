//! `/healthz`, `/metrics` and `/openapi.json`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use wholegrain_store::StoreStats;

use super::{Api, ApiError};
use crate::access::Permission;
use crate::access::tokens::Bearer;
use crate::metrics::MetricsText;

/// The description of the API, written by hand; a test compares it with the routes.
pub(super) const OPENAPI: &str = include_str!("openapi.json");
/// With fewer free bytes on the store's disk the server is unhealthy.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// Tells an InfluxDB client that the server exists (204).
pub(super) async fn ping() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// [`healthz`] in the form of InfluxDB 2: `pass` or `fail`.
pub(super) async fn health(State(api): State<Arc<Api>>) -> Response {
    let is_well = matches!(tokio::task::spawn_blocking(move || trouble(&api)).await, Ok(None));
    let (code, status, message) = if is_well {
        (StatusCode::OK, "pass", "ready for queries and writes")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "fail", "readings cannot be stored now")
    };
    (code, Json(serde_json::json!({ "name": "wholegrain", "message": message, "status": status, "checks": [] })))
        .into_response()
}

/// 200 while readings can be stored, else 503. Clients with permission to see the status also get the reason, which may name files.
pub(super) async fn healthz(State(api): State<Arc<Api>>, bearer: Option<Extension<Bearer>>) -> Response {
    let trouble = tokio::task::spawn_blocking(move || trouble(&api)).await;
    let is_told = bearer.is_some_and(|Extension(bearer)| bearer.role.may(Permission::Status));
    match trouble {
        Ok(None) => Json(serde_json::json!({ "status": "ok" })).into_response(),
        Ok(Some(_)) if !is_told => {
            let message =
                "readings cannot be made durable; the log, and this page with the token of an administrator, say why";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).into_response()
        }
        Ok(Some(reason)) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
        Err(error) => ApiError::internal(format!("the check failed: {error}")).into_response(),
    }
}

fn trouble(api: &Api) -> Option<String> {
    if *api.shutdown.borrow() {
        return Some("the server is going down".to_owned());
    }
    if let Some(error) = api.metrics.store_trouble() {
        return Some(format!("nothing is acknowledged: {error}"));
    }
    let free = api.store.stats().free_bytes?;
    (free < FREE_BYTES_MIN)
        .then(|| format!("{free} bytes are free on the store's disk; free some space or lower the retention"))
}

/// All metrics in the Prometheus format.
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let text = tokio::task::spawn_blocking(move || {
        let stats = api.store.stats();
        api.metrics.render(|text| {
            store(text, &stats);
            api.reloader.render(text);
            crate::admission::render(&[api.reloader.http_admission(), api.broker.admission()], text);
        })
    });
    let text = text.await.map_err(|error| ApiError::internal(format!("counting failed: {error}")))?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// The document itself.
pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

fn store(text: &mut MetricsText, stats: &StoreStats) {
    store_counters(text, stats);
    store_gauges(text, stats);
}

fn store_counters(text: &mut MetricsText, stats: &StoreStats) {
    for (name, help, value) in [
        ("store_batches_total", "Batches stored since the start.", stats.batches),
        ("store_readings_total", "Readings in them, gaps included.", stats.readings),
        ("store_payload_bytes_total", "Bytes of payload in them.", stats.payload_bytes),
        (
            "store_schemaless_readings_total",
            "Readings of sensors without a schema, those sent twice counted twice.",
            stats.schemaless_readings,
        ),
        ("store_duplicates_total", "Batches that were there already.", stats.duplicates),
        ("store_rejected_total", "Batches refused: malformed or of an unknown schema.", stats.rejected),
        ("store_job_records_total", "Records of jobs written.", stats.job_records),
        ("store_job_commits_total", "Transactions that wrote them.", stats.job_commits),
        (
            "store_jobs_dropped_total",
            "Allocations of jobs dropped because they were older than jobs_age.",
            stats.jobs_dropped,
        ),
        ("store_result_cache_stored_total", "Pieces of results of virtual sensors kept.", stats.result_cache_stored),
        ("store_result_cache_hits_total", "Kept pieces that answered.", stats.result_cache_hits),
        ("store_result_cache_misses_total", "Pieces that had to be computed.", stats.result_cache_misses),
        (
            "store_result_cache_invalidated_total",
            "Kept pieces forgotten because something that they were made from changed.",
            stats.result_cache_invalidated,
        ),
        ("store_busy_total", "Batches turned away because too much was waiting.", stats.busy),
        ("store_write_errors_total", "Batches that could not be written.", stats.write_errors),
        ("journal_fsyncs_total", "Group commits of the journal.", stats.fsyncs),
        (
            "store_subscriber_lost_total",
            "Live batches that the server's own distribution was too slow for.",
            stats.subscriber_lost,
        ),
        (
            "store_quarantined_readings_total",
            "Readings set aside because their times are too far from the clock.",
            stats.quarantined_readings,
        ),
        (
            "store_quarantine_dropped_bytes_total",
            "Bytes of what was set aside that were dropped because there was too much.",
            stats.quarantine_dropped_bytes,
        ),
        ("store_seals_total", "Journal segments sealed into blocks.", stats.seals),
        ("store_seal_errors_total", "Seals that failed and were tried again.", stats.seal_errors),
        ("store_imported_parts_total", "Parts of imports stored.", stats.imported_parts),
        ("store_imported_readings_total", "Readings in them, gaps counted too.", stats.imported_readings),
        ("store_merges_total", "Merges of blocks.", stats.merges),
        ("store_merge_errors_total", "Merges that failed.", stats.merge_errors),
        ("store_merge_bytes_total", "Bytes that merges wrote.", stats.merge_bytes),
        ("store_tier_written_bytes_total", "Bytes of downsampled tiers written.", stats.tier_bytes_written),
        (
            "store_retention_rewritten_bytes_total",
            "Bytes of blocks written again without what was out of retention.",
            stats.retention_rewritten_bytes,
        ),
        ("store_deletions_total", "Deletions carried out.", stats.deletions),
        ("store_deleted_readings_total", "Readings deleted by them.", stats.deleted_readings),
        ("store_sensors_expired_total", "Sensors expired.", stats.sensors_expired),
        ("store_retention_blocks_total", "Blocks and tiers dropped by retention.", stats.retention_blocks),
        ("store_retention_rows_total", "Rows in them.", stats.retention_rows),
    ] {
        text.counter(name, help, value);
    }
    text.counter("journal_fsync_seconds_total", "Time spent in the journal's fsync.", stats.fsync_ns as f64 / 1e9);
}

fn store_gauges(text: &mut MetricsText, stats: &StoreStats) {
    for (name, help, value) in [
        ("journal_bytes", "Bytes of journal segments on disk.", stats.journal_bytes),
        ("journal_queue_bytes", "Bytes of payload that wait for the journal.", stats.queue_bytes),
        ("store_live_bytes", "Bytes of payload in memory that are not in blocks yet.", stats.live_bytes),
        ("store_quarantine_bytes", "Bytes of files that hold what was set aside.", stats.quarantine_bytes),
        ("store_result_cache_bytes", "Bytes of kept results of virtual sensors.", stats.result_cache_bytes),
        ("store_blocks", "Blocks.", stats.blocks),
        ("store_block_bytes", "Their bytes.", stats.block_bytes),
        ("store_deletion_files", "Files with deleted readings in them.", stats.deletion_files),
        ("store_block_rows", "Their rows.", stats.block_rows),
        ("store_tiers", "Files of downsampled tiers.", stats.tiers),
        ("store_tier_bytes", "Their bytes.", stats.tier_bytes),
        ("store_tier_rows", "Their rows.", stats.tier_rows),
        ("store_damaged_blocks", "Blocks that could not be read and are left out of answers.", stats.damaged_blocks),
        ("store_allocations", "Allocations of jobs known: jobs times nodes.", stats.allocations),
        ("store_damaged_jobs", "Records of jobs that could not be read and are left out.", stats.damaged_jobs),
        ("store_damaged_bytes", "Bytes of journal and payload found damaged.", stats.damaged_bytes),
        ("store_lost", "Losses of the journal that nobody has acknowledged.", stats.lost),
        ("store_lost_readings", "Acknowledged readings in them, as far as their number is known.", stats.lost_readings),
        ("store_sensors", "Sensors known.", stats.sensors),
        ("store_schemas", "Schemas known.", stats.schemas),
        ("store_newest_groups", "Groups whose newest batch is in memory.", stats.newest_groups),
        ("journal_segments", "Journal segments that are not in blocks yet, the open one too.", stats.segments),
    ] {
        text.gauge(name, help, value);
    }
    if let Some(free) = stats.free_bytes {
        text.gauge("store_free_bytes", "Bytes free on the store's disk.", free);
    }
}
