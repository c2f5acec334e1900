//! `/api/v1/virtual`: lists, defines, checks and removes virtual sensors.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use wholegrain_api::{
    ChangeDefinitions, DefinitionHistory, DefinitionHistoryEntry, DefinitionsChanged, VirtualDefinition, VirtualSensor,
    VirtualSensorList,
};
use wholegrain_model::Pattern;
use wholegrain_query::virtuals::{
    ChangeReport, Definition, DefinitionChange, ListedDefinition, MissingOperands, VirtualError,
};
use wholegrain_store::registry::RegistryEntry;

use super::clock::now;
use super::params::QueryParams;
use super::permission::require;
use super::read::run_until_abandoned;
use super::serve::PeerAddress;
use super::visibility::UserVisibility;
use super::visibility::only_user;
use super::{Api, ApiError};
use crate::access::audit::{AuditEntry, AuditEvent, AuditOutcome};
use crate::access::tokens::Bearer;
use crate::access::{Permission, bearer_name};

pub(super) const LIST: &[&str] = &["pattern"];
pub(super) const REMOVE: &[&str] = &["path", "force"];
pub(super) const HISTORY: &[&str] = &["path", "limit"];
/// The largest request, in bytes: the maximum number of definitions with long expressions.
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;
/// Maximum and default of entries in a history.
const HISTORY_LIMIT: (usize, usize) = (10_000, 1_000);
/// The most refusals in a response.
const REFUSALS_MAX: usize = 50;
/// The most paths in one line of the audit log.
const PATHS_NOTED: usize = 20;

type Requester<'a> = (&'a Bearer, Option<SocketAddr>);

/// Lists definitions that match a pattern by their path or by one of their sensors.
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let patterns = QueryParams::of(&uri, LIST)?.patterns()?;
    let user = only_user(&bearer).map(str::to_owned);
    let place = super::read::place(&api, &bearer).await?;
    let metrics = api.metrics.clone();
    let listed = run_until_abandoned(&metrics, move |is_gone| {
        let _place = place;
        let chosen = |one: &ListedDefinition| {
            patterns.is_empty() || patterns.iter().any(|pattern| !is_gone() && chooses(&api, pattern, one, is_gone))
        };
        let seen = |one: ListedDefinition| match &user {
            None => Some(one),
            Some(user) => seen_by(&api, user, one, is_gone),
        };
        let all = api.space.virtuals().list();
        let definitions = all.into_iter().filter(|one| chosen(one)).filter_map(seen).map(virtual_sensor).collect();
        Json(VirtualSensorList { definitions }).into_response()
    });
    listed.await
}

fn chooses(api: &Api, pattern: &Pattern, one: &ListedDefinition, is_gone: &dyn Fn() -> bool) -> bool {
    let path = one.definition.path.as_str();
    if !path.contains('*') {
        return pattern.matches(path);
    }
    let made = api.space.virtuals().sensors_until(std::slice::from_ref(pattern), is_gone);
    let Ok(of) = Pattern::new(path) else { return false };
    pattern.as_str() == path || made.iter().any(|info| of.matches(&info.path))
}

/// A definition as the user may see it, with the number of visible sensors. `None` if its path or expression names other users' jobs, or the user
/// sees none of its sensors.
fn seen_by(api: &Api, user: &str, mut one: ListedDefinition, is_gone: &dyn Fn() -> bool) -> Option<ListedDefinition> {
    let path = one.definition.path.as_str();
    let view = UserVisibility::new(api, user, is_gone);
    if is_gone() || !view.sees_jobs_of(path) || !view.sees_jobs_of(&one.definition.expression) {
        return None;
    }
    let mut made = api.space.virtuals().sensors_until(&[Pattern::new(path).ok()?], is_gone);
    let all = made.len();
    api.space.retain_seen(user, &mut made);
    if made.is_empty() && (all > 0 || one.may_be_of_jobs) {
        return None;
    }
    one.sensors = made.len();
    Some(one)
}

fn virtual_sensor(one: ListedDefinition) -> VirtualSensor {
    VirtualSensor {
        definition: for_client(one.definition),
        sensors: one.sensors as u64,
        number: one.number,
        at: wholegrain_api::UtcTime(one.at),
        who: one.who,
    }
}

fn for_client(definition: Definition) -> VirtualDefinition {
    let Definition { path, expression, unit, description, interval, bridge, missing } = definition;
    let missing = match missing {
        MissingOperands::Gap => wholegrain_api::MissingOperands::Gap,
        MissingOperands::Skip => wholegrain_api::MissingOperands::Skip,
    };
    VirtualDefinition { path, expression, unit, description, interval, bridge, missing }
}

fn from_client(definition: VirtualDefinition) -> Definition {
    let VirtualDefinition { path, expression, unit, description, interval, bridge, missing } = definition;
    let missing = match missing {
        wholegrain_api::MissingOperands::Gap => MissingOperands::Gap,
        wholegrain_api::MissingOperands::Skip => MissingOperands::Skip,
    };
    Definition { path, expression, unit, description, interval, bridge, missing }
}

fn changed(report: ChangeReport) -> DefinitionsChanged {
    DefinitionsChanged {
        added: report.added,
        changed: report.changed,
        removed: report.removed,
        unchanged: report.unchanged as u64,
        sensors: report.sensors.into_iter().map(|(path, count)| (path, count as u64)).collect(),
        warnings: report.warnings,
    }
}

/// Defines or redefines sensors; all or none.
pub(super) async fn define(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(PeerAddress(address))| address);
    change(api, (&bearer, peer), wanted(&body)).await
}

/// A dry run of [`define`].
pub(super) async fn check(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    body: Bytes,
) -> Result<Response, ApiError> {
    require(&api, &bearer, peer.map(|Extension(PeerAddress(address))| address), Permission::Manage)?;
    let wanted = wanted(&body)?;
    blocking(move || Ok(Json(changed(api.space.virtuals().check(wanted).map_err(refusal)?)).into_response())).await
}

/// Removes definitions; all or none.
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(PeerAddress(address))| address);
    let params = QueryParams::of(&uri, REMOVE)?;
    let remove = params
        .read("path", |text| Ok::<_, &str>(vec![text.to_owned()]))?
        .ok_or_else(|| ApiError::bad_request("which one? add ?path= and the path of a definition"));
    let force = params.read("force", |text| match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("expected 1 or 0"),
    })?;
    let wanted =
        remove.map(|remove| DefinitionChange { remove, force: force == Some(true), ..DefinitionChange::default() });
    change(api, (&bearer, peer), wanted).await
}

/// Applies a change and writes it to the audit log.
async fn change(
    api: Arc<Api>,
    (bearer, peer): Requester<'_>,
    wanted: Result<DefinitionChange, ApiError>,
) -> Result<Response, ApiError> {
    require(&api, bearer, peer, Permission::Manage)?;
    let wanted = wanted?;
    let who = bearer_name(bearer);
    blocking(move || {
        let done = api.space.virtuals().change(wanted, &who, now().0);
        let from = peer.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        if let Ok(report) = &done
            && !report.is_nothing()
        {
            api.security.audit.always(AuditEntry::new(
                AuditEvent::Manage,
                AuditOutcome::Ok,
                &who,
                from,
                &noted(report),
            ));
        }
        Ok(Json(changed(done.map_err(refusal)?)).into_response())
    })
    .await
}

/// The audit log's text.
fn noted(changed: &ChangeReport) -> String {
    let mut said = Vec::new();
    for (what, paths) in [("defined", &changed.added), ("redefined", &changed.changed), ("removed", &changed.removed)] {
        if paths.is_empty() {
            continue;
        }
        let shown: Vec<&str> = paths.iter().take(PATHS_NOTED).map(String::as_str).collect();
        let more = paths.len().saturating_sub(PATHS_NOTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        said.push(format!("{what} {}{more}", shown.join(", ")));
    }
    format!("virtual sensors: {}", said.join("; "))
}

/// A definition, a list of them, or `{"define": […], "remove": […], "force": false}`.
fn wanted(body: &[u8]) -> Result<DefinitionChange, ApiError> {
    const WANTED: &str = r#"expected a definition, such as {"path": "/lab/*/ipc", "expression": "rate(<perf/instructions>) / rate(<perf/cycles>)", "unit": "1"}, or a list of them"#;
    let bad = |error: serde_json::Error| ApiError::bad_request(format!("{error}; {WANTED}"));
    let value: Value = serde_json::from_slice(body).map_err(bad)?;
    if value.is_array() {
        let define: Vec<VirtualDefinition> = serde_json::from_value(value).map_err(bad)?;
        let define = define.into_iter().map(from_client).collect();
        return Ok(DefinitionChange { define, ..DefinitionChange::default() });
    }
    if value.get("define").is_some() || value.get("remove").is_some() {
        let ChangeDefinitions { define, remove, force } = serde_json::from_value(value).map_err(bad)?;
        return Ok(DefinitionChange { define: define.into_iter().map(from_client).collect(), remove, force });
    }
    let define = vec![from_client(serde_json::from_value(value).map_err(bad)?)];
    Ok(DefinitionChange { define, ..DefinitionChange::default() })
}

fn refusal(error: VirtualError) -> ApiError {
    match error {
        VirtualError::Refused(refused) => {
            let more = refused.len().saturating_sub(REFUSALS_MAX);
            let shown: Vec<String> = refused.iter().take(REFUSALS_MAX).map(ToString::to_string).collect();
            let more = if more > 0 { format!("\n\nand {more} more") } else { String::new() };
            ApiError::bad_request(format!("{}{more}", shown.join("\n\n")))
        }
        VirtualError::Store(error) => {
            tracing::error!("virtual sensors: {error}");
            ApiError::internal(error.to_string())
        }
    }
}

/// Lists all definitions and removals.
pub(super) async fn history(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, HISTORY)?;
    let path = params.read("path", |text| Ok::<_, &str>(text.to_owned()))?;
    let limit = params.read("limit", |text| match text.parse() {
        Ok(limit) if (1..=HISTORY_LIMIT.0).contains(&limit) => Ok(limit),
        _ => Err(format!("expected 1 to {}", HISTORY_LIMIT.0)),
    })?;
    blocking(move || {
        let entries = api.space.virtuals().history(path.as_deref(), limit.unwrap_or(HISTORY_LIMIT.1));
        let entries = entries.map_err(|error| ApiError::internal(error.to_string()))?;
        let entry = |entry: RegistryEntry| {
            let definition = entry.value.map(serde_json::from_value).transpose()?;
            let (path, at) = (entry.key, wholegrain_api::UtcTime(entry.at));
            Ok(DefinitionHistoryEntry { path, number: entry.number, at, who: entry.who, definition })
        };
        let history: Result<_, serde_json::Error> = entries.into_iter().map(entry).collect();
        let history =
            history.map_err(|error| ApiError::internal(format!("a stored definition is unreadable: {error}")))?;
        Ok(Json(DefinitionHistory { history }).into_response())
    })
    .await
}

async fn blocking(work: impl FnOnce() -> Result<Response, ApiError> + Send + 'static) -> Result<Response, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("the work on virtual sensors failed: {error}")))?
}
