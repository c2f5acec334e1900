//! The parameters `job` and `at`, which restrict a request to a job.

use std::sync::Arc;

use axum::http::StatusCode;
use wholegrain_model::Timestamp;
use wholegrain_query::Query;
use wholegrain_query::jobs::JobScope;

use super::clock::now;
use super::params::{self, JobFilter};
use super::visibility::only_user;
use super::{Api, ApiError};
use crate::access::tokens::Bearer;

/// The scope of the job that a request names, if any: 404 if it does not exist or the bearer may not see it.
pub(super) async fn find(
    api: &Arc<Api>,
    bearer: &Bearer,
    of_job: Option<&JobFilter>,
) -> Result<Option<Arc<JobScope>>, ApiError> {
    let Some(JobFilter { id, at, .. }) = of_job.cloned() else { return Ok(None) };
    let (api, user) = (api.clone(), only_user(bearer).map(str::to_owned));
    let missing = missing(&id, at);
    let found = tokio::task::spawn_blocking(move || JobScope::find(&api.store, &id, user.as_deref(), at)).await;
    match found.map_err(|error| ApiError::internal(format!("reading the job failed: {error}")))? {
        Ok(Some(job)) => Ok(Some(Arc::new(job))),
        Ok(None) => Err(missing),
        Err(error) => {
            tracing::error!("reading a job: {error}");
            Err(ApiError::internal(format!("reading the job failed: {error}")))
        }
    }
}

/// The response for a missing job.
pub(super) fn missing(id: &str, at: Option<i64>) -> ApiError {
    let before = if at.is_some() { " that had begun by then" } else { "" };
    let message =
        format!("there is no job {id}{before}, or it is not yours; the list of jobs has all that you may see");
    ApiError::new(StatusCode::NOT_FOUND, message)
}

/// Sets a query's range to the job's time where the request gives none.
pub(super) fn fit(of_job: &JobFilter, job: &JobScope, query: &mut Query) -> Result<(), ApiError> {
    let (from, to) = job.range(now().0);
    if !of_job.range_given.0 {
        query.from = Timestamp(from);
    }
    if !of_job.range_given.1 {
        query.to = Timestamp(to.max(query.from.0));
    }
    params::check_range(query.from, query.to)
}
