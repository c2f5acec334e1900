//! `/api/v1/names`: completions of a sensor name, and the name nearest to a missing one.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use wholegrain_api::NameList;
use wholegrain_query::names::NameSearch;

use super::params::{NAMES, QueryParams};
use super::visibility::only_user;
use super::{Api, ApiError, read};
use crate::access::tokens::Bearer;

/// Answers `begin=TEXT` or `near=PATTERN`.
pub(super) async fn names(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, NAMES)?;
    let text = |name: &str| params.read(name, |text| Ok::<_, String>(text.to_owned()));
    let (begin, near) = (text("begin")?, text("near")?);
    let user = only_user(&bearer).map(str::to_owned);
    let place = read::place(&api, &bearer).await?;
    let metrics = api.metrics.clone();
    let search = move |is_gone: &dyn Fn() -> bool| {
        let _place = place;
        let names = NameSearch::new(&api.space, user.as_deref()).stop_when(is_gone);
        match (begin, near) {
            (Some(begin), None) => Ok(names.completions(&begin)),
            (None, Some(near)) => Ok(names.nearest(&near).into_iter().collect()),
            _ => Err(ApiError::bad_request("write either begin=TEXT or near=PATTERN")),
        }
    };
    let found: Result<Vec<String>, ApiError> = read::run_until_abandoned(&metrics, search).await?;
    Ok(Json(NameList { names: found? }).into_response())
}
