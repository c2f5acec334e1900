//! `/api/v1/data/…`: retention, deletion, statistics and backups. For administrators; the audit log records every change.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use wholegrain_api::{
    DeleteReadings, DeletedReadings, RetentionList, RetentionSource, SetRetention, StatedRetention, StoreCounts,
    StoreStatistics, SubtreeStatistics, UtcTime,
};
use wholegrain_model::{Interval, Pattern, Timestamp};
use wholegrain_store::{Deletion, DeletionReport, RetentionRule, Store, StoreError, SubtreeUsage};

use super::clock::now;
use super::params::QueryParams;
use super::read::run_until_abandoned;
use super::serve::PeerAddress;
use super::sink::sink;
use super::{Api, ApiError};
use crate::access::audit::{AuditEntry, AuditEvent, AuditOutcome};
use crate::access::bearer_name;
use crate::access::tokens::Bearer;

pub(super) const SET_RETENTION: &[&str] = &["try"];
pub(super) const UNSET_RETENTION: &[&str] = &["pattern"];
pub(super) const DELETE: &[&str] = &["try"];
pub(super) const STATS: &[&str] = &["pattern", "level"];
/// How long a request for statistics waits for others.
const STATS_TIME_MAX: Duration = Duration::from_secs(30);
/// The most levels of subtrees in statistics.
const LEVEL_MAX: usize = 32;
/// The retention of data that is never dropped.
const FOREVER: &str = "forever";
/// The largest list of files that a client has from an earlier backup, in bytes.
pub(super) const HAVE_BYTES_MAX: usize = 256 << 20;

/// Whether the request is a dry run.
pub(super) fn is_try(params: &QueryParams) -> Result<bool, ApiError> {
    let read = params.read("try", |text| match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("expected 1 or 0"),
    })?;
    Ok(read.unwrap_or(false))
}

pub(super) fn body<'a, T: Deserialize<'a>>(body: &'a [u8], example: &str) -> Result<T, ApiError> {
    let refuse =
        |error| ApiError::bad_request(format!("the body cannot be read: {error}; write JSON such as {example}"));
    serde_json::from_slice(body).map_err(refuse)
}

/// Runs disk I/O on a blocking thread.
pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("it ended early: {error}")))?.map_err(refused)
}

/// Maps an error of the store to a client error or a server error.
pub(super) fn refused(error: StoreError) -> ApiError {
    match error {
        StoreError::Sensor(text) | StoreError::Payload(text) => ApiError::bad_request(text),
        error @ (StoreError::DiskFull { .. }
        | StoreError::Busy
        | StoreError::Remote { .. }
        | StoreError::RemoteUnavailable { .. }
        | StoreError::Closed) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        error => ApiError::internal(error.to_string()),
    }
}

/// Writes an entry to the audit log.
pub(super) fn audit(
    api: &Api,
    bearer: &Bearer,
    peer: Option<Extension<PeerAddress>>,
    outcome: AuditOutcome,
    what: &str,
) {
    let from = peer.map_or_else(|| "unknown".to_owned(), |Extension(PeerAddress(address))| address.to_string());
    api.security.audit.always(AuditEntry::new(AuditEvent::Manage, outcome, &bearer_name(bearer), from, what));
}

pub(super) fn outcome<T, E>(result: &Result<T, E>) -> AuditOutcome {
    if result.is_ok() { AuditOutcome::Ok } else { AuditOutcome::Refused }
}

/// Lists the retention rules in their order of precedence.
pub(super) async fn retention(State(api): State<Arc<Api>>) -> Response {
    let age = |age: Option<Interval>| age.map_or_else(|| FOREVER.to_owned(), |age| age.to_string());
    let rules: Vec<StatedRetention> = api
        .store
        .retention_rules()
        .into_iter()
        .map(|rule| {
            let tiers: BTreeMap<String, String> =
                rule.rule.tiers.iter().map(|(tier, kept)| (tier.to_string(), age(*kept))).collect();
            let source = if rule.set.is_some() { RetentionSource::Set } else { RetentionSource::Configuration };
            let (who, at) = rule.set.map(|(who, at)| (who, UtcTime(at))).unzip();
            let pattern = rule.rule.pattern.as_str().to_owned();
            StatedRetention { pattern, keep: age(rule.rule.raw), tiers, source, who, at }
        })
        .collect();
    Json(RetentionList { rules, default: age(api.store.retention_age()) }).into_response()
}

/// Sets a rule, or reports what it would drop.
pub(super) async fn set_retention(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    uri: Uri,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let dry = is_try(&QueryParams::of(&uri, SET_RETENTION)?)?;
    let rule = rule(body(&bytes, r#"{"pattern": "/lrz/**", "keep": "30d"}"#)?)?;
    let (store, at) = (api.store.clone(), now().0);
    if dry {
        let affected = on_disk(move || store.would_expire(&rule, at)).await?;
        return Ok(Json(deleted(affected)).into_response());
    }
    let what = format!(
        "retention of {} set to {}",
        rule.pattern.as_str(),
        rule.raw.map_or_else(|| FOREVER.to_owned(), |age| age.to_string())
    );
    let who = bearer_name(&bearer);
    let result = on_disk(move || store.set_retention_rule(&rule, &who, at)).await;
    audit(&api, &bearer, peer, outcome(&result), &what);
    result?;
    Ok(retention(State(api)).await)
}

fn rule(raw: SetRetention) -> Result<RetentionRule, ApiError> {
    let wrong = |what: &str, error: String| ApiError::bad_request(format!("{what}: {error}"));
    let age = |what: &str, text: &str| match text {
        FOREVER => Ok(None),
        text => Interval::parse(text)
            .map(Some)
            .map_err(|error| wrong(what, format!("{error}; write a length of time such as 30d, or {FOREVER}"))),
    };
    let mut tiers = Vec::new();
    for (tier, kept) in &raw.tiers {
        let tier = Interval::parse(tier).map_err(|error| wrong("tiers", error.to_string()))?;
        tiers.push((tier, age("tiers", kept)?));
    }
    Ok(RetentionRule { pattern: pattern(&raw.pattern)?, raw: age("keep", &raw.keep)?, tiers })
}

fn pattern(text: &str) -> Result<Pattern, ApiError> {
    Pattern::new(text).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Removes a rule that was set through the API.
pub(super) async fn unset_retention(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, UNSET_RETENTION)?;
    let Some(pattern) = params.read("pattern", |text| Ok::<_, String>(text.to_owned()))? else {
        return Err(ApiError::bad_request("which rule? add ?pattern= and its pattern"));
    };
    let (store, who, at, wanted) = (api.store.clone(), bearer_name(&bearer), now().0, pattern.clone());
    let result = on_disk(move || store.unset_retention(&wanted, &who, at)).await;
    let what = format!("retention of {pattern} unset");
    audit(
        &api,
        &bearer,
        peer,
        if matches!(result, Ok(true)) { AuditOutcome::Ok } else { AuditOutcome::Refused },
        &what,
    );
    if result? {
        return Ok(retention(State(api)).await);
    }
    let message = format!("no rule was set with the pattern {pattern}; those of the configuration are changed there");
    Err(ApiError::new(StatusCode::NOT_FOUND, message))
}

/// Deletes readings, or reports what would be deleted.
pub(super) async fn delete(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    uri: Uri,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let dry = is_try(&QueryParams::of(&uri, DELETE)?)?;
    let example = r#"{"patterns": ["/lrz/**/power"], "from": "2026-01-01", "to": "2026-01-02"}"#;
    let raw: DeleteReadings = body(&bytes, example)?;
    let time = |name: &str, text: &str| {
        Timestamp::parse(text, now())
            .map(|time| time.0)
            .map_err(|error| ApiError::bad_request(format!("{name}: {error}")))
    };
    let deletion = Deletion {
        patterns: raw.patterns.iter().map(|text| pattern(text)).collect::<Result<_, _>>()?,
        from: time("from", &raw.from)?,
        to: time("to", &raw.to)?,
    };
    let what =
        format!("delete {} from {} to {}", raw.patterns.join(" "), Timestamp(deletion.from), Timestamp(deletion.to));
    let (store, cassandra) = (api.store.clone(), api.cassandra.clone());
    if dry {
        let affected = on_disk(move || match &cassandra {
            Some(cassandra) => cassandra.would_delete(&deletion),
            None => store.would_delete(&deletion),
        });
        let affected = affected.await?;
        return Ok(Json(deleted(affected)).into_response());
    }
    let delete = move || match &cassandra {
        Some(cassandra) => cassandra.delete(&deletion),
        None => store.delete(&deletion),
    };
    let result = on_disk(delete).await;
    let what = match &result {
        Ok(affected) => format!("{what}: {} readings of {} sensors", affected.readings, affected.sensors),
        Err(error) => format!("{what}: {}", error.message),
    };
    audit(&api, &bearer, peer, outcome(&result), &what);
    Ok(Json(deleted(result?)).into_response())
}

fn deleted(report: DeletionReport) -> DeletedReadings {
    DeletedReadings {
        sensors: report.sensors,
        readings: report.readings,
        bytes: report.bytes,
        windows: report.windows,
        files: report.files,
        times: times(report.times),
        unreadable: report.unreadable.iter().map(|path| path.display().to_string()).collect(),
    }
}

fn times(times: Option<(i64, i64)>) -> Option<(UtcTime, UtcTime)> {
    times.map(|(first, last)| (UtcTime(first), UtcTime(last)))
}

/// Statistics of stored readings by subtree.
pub(super) async fn stats(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, STATS)?;
    let mut patterns = params.patterns()?;
    if patterns.is_empty() {
        patterns.push(pattern("/**")?);
    }
    let level = params.read("level", |text| match text.parse::<usize>() {
        Ok(level) if level <= LEVEL_MAX => Ok(level),
        _ => Err(format!("{text:?}; expected a number of levels from 0 to {LEVEL_MAX}")),
    })?;
    // One at a time, besides administrators': it reads the index of every file.
    let place = api.stats.take(&bearer, STATS_TIME_MAX).await?;
    let (store, shutdown) = (api.store.clone(), api.shutdown.clone());
    let count = move |is_gone: &dyn Fn() -> bool| -> Result<_, StoreError> {
        let _place = place;
        let is_over = || is_gone() || *shutdown.borrow();
        let shares = store.holdings_by(level.unwrap_or(1), &patterns, now().0, &is_over)?;
        Ok((shares, counts(&store)))
    };
    let (shares, counts) = run_until_abandoned(&api.metrics, count).await?.map_err(refused)?;
    Ok(Json(StoreStatistics { subtrees: shares.into_iter().map(subtree).collect(), store: counts }).into_response())
}

fn subtree(usage: SubtreeUsage) -> SubtreeStatistics {
    let SubtreeUsage { path, sensors, live, per_s, readings, bytes, times: range } = usage;
    SubtreeStatistics { path, sensors, live, per_s, readings, bytes, times: times(range) }
}

fn counts(store: &Store) -> StoreCounts {
    let stats = store.stats();
    StoreCounts {
        sensors: stats.sensors,
        schemas: stats.schemas,
        blocks: stats.blocks,
        block_bytes: stats.block_bytes,
        readings: stats.block_rows,
        tiers: stats.tiers,
        tier_bytes: stats.tier_bytes,
        journal_bytes: stats.journal_bytes,
        jobs: stats.allocations,
        damaged: stats.damaged_blocks,
        waiting_to_be_rewritten: stats.deletion_files,
        sensors_expired: stats.sensors_expired,
        free_bytes: stats.free_bytes,
    }
}

/// A backup as a tar stream: its manifest, then the files that the body does not list as `name bytes sum`, one a line.
pub(super) async fn backup(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let have = have(&bytes)?;
    let Ok(place) = api.backups.clone().try_acquire_owned() else {
        let message = "another backup is being made; try again when it is done";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    let store = api.store.clone();
    let made = on_disk(move || store.backup(now().0)).await;
    audit(&api, &bearer, peer, outcome(&made), "backup");
    let made = made?;
    let (mut sink, body) = sink();
    tokio::task::spawn_blocking(move || {
        let _place = place;
        let has =
            |file: &wholegrain_store::backup::BackupFile| have.contains(&(file.name.clone(), file.bytes, file.sum));
        let written = made.write_tar(&has, &mut sink).and_then(|()| sink.flush());
        if let Err(error) = written {
            tracing::warn!(%error, "a backup was not taken to its end");
            sink.breaker().fail(error);
        }
    });
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"))], body).into_response())
}

fn have(bytes: &[u8]) -> Result<HashSet<(String, u64, u32)>, ApiError> {
    let wrong =
        || ApiError::bad_request("the body lists what is there already: a line `name bytes sum` each, or nothing");
    let text = std::str::from_utf8(bytes).map_err(|_| wrong())?;
    let line = |line: &str| {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some(name), Some(bytes), Some(sum), None) => {
                Some((name.to_owned(), bytes.parse().ok()?, sum.parse().ok()?))
            }
            _ => None,
        }
    };
    text.lines().map(line).collect::<Option<_>>().ok_or_else(wrong)
}
