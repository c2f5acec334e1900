//! Error responses.

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use wholegrain_api::ErrorResponse;
use wholegrain_query::QueryError;

use crate::token_permits::PermitRefused;

/// A status and a message: `{"error": "…"}`.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub message: String,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

impl From<PermitRefused> for ApiError {
    fn from(refused: PermitRefused) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, refused.0)
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Invalid(message) => Self::bad_request(message),
            other => {
                tracing::error!("query: {other}");
                Self::internal(other.to_string())
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(ErrorResponse { error: self.message })).into_response();
        let (name, value) = match self.status {
            StatusCode::UNAUTHORIZED => (header::WWW_AUTHENTICATE, "Bearer"),
            StatusCode::SERVICE_UNAVAILABLE => (header::RETRY_AFTER, "1"),
            _ => return response,
        };
        response.headers_mut().insert(name, HeaderValue::from_static(value));
        response
    }
}

/// The most bytes of a plain-text error that are read.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// Converts the framework's plain-text errors (a body that is too large, a path that is not UTF-8) to JSON.
pub(super) async fn in_json(response: Response) -> Response {
    let is_plain = |headers: &HeaderMap| {
        headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"))
    };
    let status = response.status();
    if !status.is_client_error() || !is_plain(response.headers()) {
        return response;
    }
    let text = axum::body::to_bytes(response.into_body(), TEXT_BYTES_MAX).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let message = match status {
        StatusCode::PAYLOAD_TOO_LARGE => "the body is larger than this path takes".to_owned(),
        _ => text.into_owned(),
    };
    ApiError::new(status, message).into_response()
}
