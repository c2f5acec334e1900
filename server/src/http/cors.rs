//! CORS: pages of configured origins may send requests from a browser; others may not.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// How long a browser may cache a preflight response, in seconds.
const REMEMBERED_S: &str = "600";

/// Answers preflight requests, and lets pages of the configured origins read responses. The token is checked as always.
pub(super) async fn cors(State(origins): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let Some(origin) = origin.filter(|origin| origins.iter().any(|known| known.as_bytes() == origin.as_bytes())) else {
        return next.run(request).await;
    };
    let is_question =
        *request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_question { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    allow(response.headers_mut(), origin, is_question);
    response
}

fn allow(headers: &mut HeaderMap, origin: HeaderValue, is_question: bool) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    let lines = if is_question {
        [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST, PUT, DELETE"),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, accept"),
            (header::ACCESS_CONTROL_MAX_AGE, REMEMBERED_S),
        ]
        .to_vec()
    } else {
        let ours =
            "x-wholegrain-sensors, x-wholegrain-next, x-wholegrain-tier, x-wholegrain-every, x-wholegrain-warning";
        [(header::ACCESS_CONTROL_EXPOSE_HEADERS, ours)].to_vec()
    };
    for (name, value) in lines {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
