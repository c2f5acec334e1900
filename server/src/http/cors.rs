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

/// What is wrong with an origin of the configuration, if anything.
pub(crate) fn wrong_origin(origin: &str) -> Option<String> {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    let is_host = |host: &str| !host.is_empty() && host.is_ascii() && !host.contains(['/', '*', ' ', '@', '?', '#']);
    (!host.is_some_and(is_host)).then(|| {
        format!("{origin:?} is no origin; write scheme and host, such as \"https://grafana.example\" or \"http://localhost:3000\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        for (origin, good) in [
            ("https://grafana.example", true),
            ("http://localhost:3000", true),
            ("*", false),
            ("https://*.example", false),
            ("https://grafana.example/", false),
            ("grafana.example", false),
            ("null", false),
        ] {
            assert_eq!(wrong_origin(origin).is_none(), good, "{origin}");
        }
    }
}
