//! `/api/v1/data/lost`: acknowledged readings that the journal has lost, until an administrator acknowledges the loss.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use wholegrain_api::{AcknowledgeLosses, LossList, ReadingLoss, UtcTime};
use wholegrain_store::LossRecord;

use super::clock::now;
use super::data::{audit, body, on_disk, outcome};
use super::serve::PeerAddress;
use super::{Api, ApiError};
use crate::access::bearer_name;
use crate::access::tokens::Bearer;

fn loss(loss: &LossRecord) -> ReadingLoss {
    ReadingLoss {
        id: loss.id.clone(),
        readings: loss.readings,
        from: UtcTime(loss.from),
        to: UtcTime(loss.to),
        agents: loss.agents.clone(),
        others: loss.others,
        bytes: loss.bytes,
        segment: loss.segment,
        found: UtcTime(loss.found),
    }
}

pub(super) async fn list(State(api): State<Arc<Api>>) -> Response {
    Json(LossList { lost: api.store.losses().iter().map(loss).collect() }).into_response()
}

/// Acknowledges losses; returns the rest.
pub(super) async fn acknowledge(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let chosen: AcknowledgeLosses = body(&bytes, r#"{"ids": ["0000000012-68"]} or {"all": true}"#)?;
    if chosen.all != chosen.ids.is_empty() {
        return Err(ApiError::bad_request("name the ids, or write \"all\": true, and not both"));
    }
    let what = if chosen.all { "all losses".to_owned() } else { format!("the losses {}", chosen.ids.join(" ")) };
    let (store, who) = (api.store.clone(), bearer_name(&bearer));
    let ids = (!chosen.all).then_some(chosen.ids);
    let result = on_disk(move || store.acknowledge_losses(ids.as_deref(), &who, now().0)).await;
    audit(&api, &bearer, peer, outcome(&result), &format!("acknowledge {what}"));
    result?;
    Ok(list(State(api)).await)
}
