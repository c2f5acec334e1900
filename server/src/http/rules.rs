//! `/api/v1/jobs/{id}/rules`: shows and changes what is sampled of a running job on all its nodes at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use wholegrain_api::{NodeResponse, NodeResponses};

use super::params::QueryParams;
use super::serve::PeerAddress;
use super::{Api, ApiError};
use crate::access::audit::{AuditEntry, AuditEvent, AuditOutcome};
use crate::access::tokens::Bearer;
use crate::access::{Role, bearer_name};
use crate::control::NODES_MAX;

pub(super) const RULES: &[&str] = &["try"];
/// The largest rule, in bytes.
const RULE_BYTES_MAX: usize = 32 << 10;
/// The largest body, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 2 * RULE_BYTES_MAX;

/// Shows what each node samples of a job.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    Path(job): Path<String>,
) -> Result<Response, ApiError> {
    let (job, nodes) = nodes(&api, &bearer, &job)?;
    let answers = ask(&api, &bearer, &nodes, &json!({ "show": job })).await;
    Ok(answered(&job, answers))
}

/// Adds a rule for one job.
pub(super) async fn add(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    Path(job): Path<String>,
    uri: Uri,
    body: Bytes,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, RULES)?;
    let dry = params.read("try", |text| match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("expected 1 or 0"),
    })?;
    let mut rule = rule(&body)?;
    let (job, nodes) = nodes(&api, &bearer, &job)?;
    rule["jobs"] = json!(job);
    let action = if dry == Some(true) { json!({ "try": rule }) } else { json!({ "add": rule }) };
    let answers = ask(&api, &bearer, &nodes, &json!({ "action": action })).await;
    if dry != Some(true) {
        audit(&api, &bearer, peer, &format!("job {job}: {rule}"), &answers);
    }
    Ok(answered(&job, answers))
}

/// Ends the rules made for one job.
pub(super) async fn end(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    Path(job): Path<String>,
) -> Result<Response, ApiError> {
    let (job, nodes) = nodes(&api, &bearer, &job)?;
    let answers = ask(&api, &bearer, &nodes, &json!({ "action": { "end": job } })).await;
    audit(&api, &bearer, peer, &format!("job {job}: end of its rules"), &answers);
    Ok(answered(&job, answers))
}

/// Reads a request's rule. Agents check its content, because they know their metrics and limits.
fn rule(body: &[u8]) -> Result<Value, ApiError> {
    if body.len() > RULE_BYTES_MAX {
        return Err(ApiError::bad_request(format!(
            "the rule has {} bytes; at most {RULE_BYTES_MAX} are read",
            body.len()
        )));
    }
    const WANTED: &str = r#"expected a rule, such as {"metrics": ["perf/*"], "every": "1ms", "for": "10m"}"#;
    let rule: Value =
        serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("{error}; {WANTED}")))?;
    match rule.as_object() {
        Some(keys) if !keys.contains_key("jobs") => Ok(rule),
        Some(_) => Err(ApiError::bad_request("`jobs` is the job in the path; leave it out")),
        None => Err(ApiError::bad_request(WANTED)),
    }
}

/// The job's id as its manager writes it, and the nodes on which it runs; only if the bearer may see it.
fn nodes(api: &Api, bearer: &Bearer, job: &str) -> Result<(String, Vec<String>), ApiError> {
    let mut seen = api.store.job(job);
    seen.retain(|own| bearer.role != Role::User || own.user.as_deref() == Some(bearer.name.as_str()));
    // If an id was used again, the newest run counts.
    let Some(id) = seen.last().map(|newest| newest.job.clone()) else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, format!("there is no job {job}, or it is not yours")));
    };
    let running = seen.into_iter().filter(|own| own.to.is_none() && own.job == id);
    let nodes: BTreeSet<String> = running.map(|own| own.node).collect();
    match nodes.len() {
        0 => Err(ApiError::new(StatusCode::CONFLICT, format!("job {job} has ended"))),
        count if count > NODES_MAX => {
            Err(ApiError::bad_request(format!("job {job} has {count} nodes; a command goes to at most {NODES_MAX}")))
        }
        _ => Ok((id, nodes.into_iter().collect())),
    }
}

async fn ask(api: &Api, bearer: &Bearer, nodes: &[String], what: &Value) -> Vec<NodeResponse> {
    api.broker.control.ask(&api.broker.subscriptions, bearer, nodes, what).await
}

fn audit(api: &Api, bearer: &Bearer, peer: Option<Extension<PeerAddress>>, what: &str, answers: &[NodeResponse]) {
    let failed = answers.iter().filter(|answer| answer.error.is_some()).count();
    let outcome = if failed == 0 { AuditOutcome::Ok } else { AuditOutcome::Refused };
    let what = format!("{what}; {} of {} nodes did it", answers.len() - failed, answers.len());
    let from = peer.map_or_else(|| "unknown".to_owned(), |Extension(PeerAddress(address))| address.to_string());
    api.security.audit.always(AuditEntry::new(AuditEvent::JobRule, outcome, &bearer_name(bearer), from, &what));
}

/// 200 if every node succeeded, else 207 (RFC 4918, section 11.1).
fn answered(job: &str, nodes: Vec<NodeResponse>) -> Response {
    let failed = nodes.iter().filter(|node| node.error.is_some()).count();
    let status = if failed == 0 { StatusCode::OK } else { StatusCode::MULTI_STATUS };
    (status, Json(NodeResponses { job: job.to_owned(), failed: failed as u64, nodes })).into_response()
}
