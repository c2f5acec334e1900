//! Checks tokens and roles of requests, also while a response streams.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use super::permission::forbidden;
use super::routes::route;
use super::serve::PeerAddress;
use super::{Api, ApiError};
use crate::access::audit::{AuditEntry, AuditEvent, AuditOutcome};
use crate::access::tokens::{BadToken, Bearer};
use crate::access::{BadBearer, Permission, Role, bearer_name, seconds};
use crate::admission::{AdmissionError, ConnectionPermit};

/// Schemes of `Authorization`: the standard's, and that of InfluxDB clients.
const SCHEMES: [&str; 2] = ["bearer", "token"];

/// How long a client may take to send a request's body. Routes with long bodies from many clients have shorter limits of their own.
const BODY_TIME_MAX: Duration = Duration::from_secs(300);

/// Checks the token and its role, and counts the request. Handlers find the [`Bearer`] and its role in the request's extensions.
pub(super) async fn guard(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let route = route(request.uri().path());
    let wanted = route.map(|(_, wants)| wants.of(request.method()));
    let is_read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let response = match admit(&api, &request, wanted) {
        Ok(None) => last(next.run(request).await),
        Ok(Some(bearer)) => {
            request.extensions_mut().insert(bearer.role);
            request.extensions_mut().insert(bearer.clone());
            let line = noted(&request, wanted);
            let request = request.map(|body| in_time(body, is_read.clone()));
            let response = next.run(request).await;
            if let Some((what, peer)) = line {
                audit_answer(&api, &bearer, peer, &what, response.status());
            }
            if response.body().size_hint().exact().is_some() { response } else { watched(&api, bearer, response) }
        }
        Err(refusal) => *refusal,
    };
    // After an unread body no other request can follow: hyper closes the connection, and the header informs the client.
    let response = if is_read.load(Relaxed) { response } else { last(response) };
    api.metrics.http_request(route.map_or("other", |(path, _)| path), response.status().as_u16());
    response
}

/// The response with a header that closes the connection: an unauthenticated client has no claim to it.
fn last(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The audit log's text for a request that changes the server. An import has one entry instead of one for each part.
fn noted(request: &Request, wanted: Option<Permission>) -> Option<(String, SocketAddr)> {
    let is_noted = wanted == Some(Permission::Manage) && request.uri().path() != wholegrain_api::paths::IMPORT;
    is_noted.then(|| (format!("{} {}", request.method(), request.uri().path()), peer(request)))
}

/// Writes the result to the audit log.
fn audit_answer(api: &Api, bearer: &Bearer, peer: SocketAddr, what: &str, status: StatusCode) {
    let (outcome, what) = match status {
        status if status.is_server_error() => (AuditOutcome::Failed, format!("{what}: {}", status.as_u16())),
        status if status.is_client_error() => (AuditOutcome::Refused, format!("{what}: {}", status.as_u16())),
        _ => (AuditOutcome::Ok, what.to_owned()),
    };
    api.security.audit.always(AuditEntry::new(AuditEvent::Manage, outcome, &bearer_name(bearer), peer, &what));
}

fn peer(request: &Request) -> SocketAddr {
    request.extensions().get::<PeerAddress>().map_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), |peer| peer.0)
}

/// The body, with a time limit; sets `is_read` when it has been read to its end.
fn in_time(body: Body, is_read: Arc<AtomicBool>) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let late = futures_util::stream::once(async {
        tokio::time::sleep(BODY_TIME_MAX).await;
        let message = format!("the body was not there within {} s", BODY_TIME_MAX.as_secs());
        Some(Err(axum::Error::new(std::io::Error::new(std::io::ErrorKind::TimedOut, message))))
    });
    let end = futures_util::stream::once(async move {
        is_read.store(true, Relaxed);
        None
    });
    let chunks = body.into_data_stream().map(Some).chain(end);
    let both = futures_util::stream::select(chunks, Box::pin(late));
    Body::from_stream(both.scan((), |(), chunk| std::future::ready(chunk)))
}

/// Checks whether the request is allowed; `None` for a route that does not exist.
fn admit(api: &Api, request: &Request, permission: Option<Permission>) -> Result<Option<Bearer>, Box<Response>> {
    let is_open = permission == Some(Permission::Open) && matches!(*request.method(), Method::GET | Method::HEAD);
    // A token on an open route may give more detail.
    if is_open && !request.headers().contains_key(header::AUTHORIZATION) {
        return Ok(None);
    }
    let peer = peer(request);
    let unknown = |refusal: Box<Response>| Box::new(last(*refusal));
    let token = token(request.headers()).map_err(|why| refuse(StatusCode::UNAUTHORIZED, why));
    let bearer = token.and_then(|token| api.security.check_token(peer, token).map_err(bad_token));
    let bearer = match bearer {
        Err(_) if is_open => return Ok(None),
        bearer => bearer.map_err(unknown)?,
    };
    if let Some(place) = request.extensions().get::<Arc<ConnectionPermit>>() {
        place.prove(&bearer.id, bearer.role == Role::Admin).map_err(full)?;
    }
    // Every token may learn that a path does not exist.
    let Some(permission) = permission.filter(|permission| !bearer.role.may(*permission)) else {
        return Ok(Some(bearer));
    };
    Err(Box::new(forbidden(api, &bearer, peer, permission).into_response()))
}

/// The response without a permit for the connection, which is closed.
fn full(full: AdmissionError) -> Box<Response> {
    Box::new(last(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("{full}; try again shortly")).into_response()))
}

fn refuse(status: StatusCode, message: impl Into<String>) -> Box<Response> {
    Box::new(ApiError::new(status, message).into_response())
}

/// The token in the header.
fn token(headers: &HeaderMap) -> Result<&str, &'static str> {
    let Some(header) = headers.get(header::AUTHORIZATION) else {
        return Err("no token; send the header `Authorization: Bearer <token>`");
    };
    let parts = header.to_str().ok().and_then(|header| header.split_once(' '));
    match parts {
        Some((scheme, token)) if SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known)) => Ok(token.trim()),
        _ => Err("the Authorization header is not `Bearer <token>`"),
    }
}

fn bad_token(bad: BadBearer) -> Box<Response> {
    const ANOTHER: &str = "an administrator makes another with `wholegrain auth token create`";
    match bad {
        BadBearer::Token(BadToken::Unknown) => refuse(
            StatusCode::UNAUTHORIZED,
            format!("unknown token; `wholegrain auth token list` shows those that count; {ANOTHER}"),
        ),
        BadBearer::Token(BadToken::Expired(bearer, when)) => {
            refuse(StatusCode::UNAUTHORIZED, format!("token {:?} expired at {when}; {ANOTHER}", bearer.name))
        }
        BadBearer::Token(BadToken::Revoked(bearer, when)) => {
            refuse(StatusCode::UNAUTHORIZED, format!("token {:?} was revoked at {when}; {ANOTHER}", bearer.name))
        }
        BadBearer::Wait(wait) => {
            let wait = seconds(wait);
            let message = format!("too many unknown tokens from this address; the next try counts in {wait} s");
            let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, message);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait));
            response
        }
    }
}

/// The response, broken off as soon as its token is no longer valid.
fn watched(api: &Arc<Api>, bearer: Bearer, response: Response) -> Response {
    let security = api.security.clone();
    let over = async move {
        security.until_over(&bearer).await;
        Some(Err(axum::Error::new(std::io::Error::other("the token counts no longer"))))
    };
    response.map(|body| {
        let ends = futures_util::stream::once(over);
        let chunks = body.into_data_stream().map(Some).chain(futures_util::stream::once(async { None }));
        // The first stream to end ends the response; an error breaks the connection, so that the client does not take it for complete.
        let both = futures_util::stream::select(chunks, ends);
        Body::from_stream(both.scan((), |(), chunk| std::future::ready(chunk)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        for (header, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Token abc", Some("abc")),
            ("Basic abc", None),
            ("abc", None),
            ("Bearer", None),
        ] {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(header))]);
            assert_eq!(token(&headers).ok(), expected, "{header}");
        }
        assert!(token(&HeaderMap::new()).unwrap_err().starts_with("no token"));
    }
}
