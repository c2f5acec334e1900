//! Compresses responses with gzip or zstd for clients that accept it.

use axum::http::{Extensions, HeaderMap, StatusCode, Version, header};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{Predicate, SizeAbove};

/// The `Cache-Control` of responses that neither the server nor proxies may compress (RFC 9111, 5.2.2.6).
pub(super) const NO_TRANSFORM: &str = "no-transform";

/// Responses known to be smaller, in bytes, are not compressed: it would cost more than it saves.
const BYTES_MIN: u64 = 1024;

/// Compressed media types. Backups, their Parquet files and Prometheus chunks have their own compression; events are live.
const TYPES: [&str; 5] =
    ["application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream", "text/csv", "text/plain"];

/// Compresses while the client reads: memory holds at most one piece of the response and one compressor's window (512 KiB with zstd, 32 KiB with
/// gzip, and their tables). Uses the lowest level of both, because the server's processors serve many clients.
pub(super) fn layer() -> CompressionLayer<impl Predicate> {
    CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(SizeAbove::new(BYTES_MIN).and(is_compressed))
}

fn is_compressed(_: StatusCode, _: Version, headers: &HeaderMap, _: &Extensions) -> bool {
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = value(header::CONTENT_TYPE).split(';').next().unwrap_or_default();
    TYPES.contains(&kind) && value(header::CACHE_CONTROL) != NO_TRANSFORM
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::body::{Body, HttpBody};
    use axum::routing::get;
    use bytes::Bytes;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    /// A route that gives this body once.
    fn routed(body: Body) -> Router {
        let body = Arc::new(Mutex::new(Some(body)));
        let answer = || async move { ([("content-type", "text/csv")], body.lock().unwrap().take().unwrap()) };
        Router::new().route("/", get(answer)).layer(layer())
    }

    /// The first chunks of the answer, as the client sees them, until it ends.
    async fn answer(router: Router, coding: &str, mut chunk: impl FnMut(Result<Bytes, axum::Error>) -> bool) -> String {
        let request = hyper::Request::get("/").header("accept-encoding", coding).body(Body::empty()).unwrap();
        let response = TowerToHyperService::new(router).call(request).await.unwrap();
        let used = response.headers().get("content-encoding").map_or("", |value| value.to_str().unwrap()).to_owned();
        let mut body = pin!(response.into_body());
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            if !chunk(frame.map(|frame| frame.into_data().unwrap())) {
                break;
            }
        }
        used
    }

    /// Text that can be compressed to about a half.
    fn text(number: usize) -> Bytes {
        let mut state = number as u64 + 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            b'a' + (state % 16) as u8
        };
        (0..64 << 10).map(|_| next()).collect()
    }

    #[tokio::test]
    async fn what_the_client_does_not_read_is_not_made() {
        for coding in ["gzip", "zstd"] {
            let made = Arc::new(AtomicUsize::new(0));
            let count = made.clone();
            let pieces = futures_util::stream::iter((0..10_000).map(move |number| {
                count.fetch_add(1, Relaxed);
                Ok::<_, io::Error>(text(number))
            }));
            let router = routed(Body::from_stream(pieces));
            let mut read = 0;
            let used = answer(router, coding, |chunk| {
                read += chunk.unwrap().len();
                read < 1 << 20
            })
            .await;
            assert_eq!(used, coding);
            // A MiB compressed is about two: some 35 pieces, and what the compressor holds.
            assert!((20..60).contains(&made.load(Relaxed)), "{coding}: {}", made.load(Relaxed));
        }
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_is_not_whole() {
        for coding in ["gzip", "zstd"] {
            let pieces = [Ok(text(0)), Err(io::Error::other("cut"))];
            let router = routed(Body::from_stream(futures_util::stream::iter(pieces)));
            let mut last = Ok(Bytes::new());
            answer(router, coding, |chunk| {
                last = chunk;
                last.is_ok()
            })
            .await;
            assert!(last.is_err(), "{coding}");
        }
    }

    #[test]
    fn what_is_compressed() {
        for (kind, control, expected) in [
            ("application/json", "", true),
            ("text/plain; version=0.0.4; charset=utf-8", "", true),
            ("application/x-ndjson", "", true),
            ("application/x-ndjson", NO_TRANSFORM, false),
            ("text/event-stream", "", false),
            ("application/x-tar", "", false),
            ("application/x-protobuf", "", false),
        ] {
            let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, control)];
            let headers = headers.map(|(name, value)| (name, value.parse().unwrap())).into_iter().collect();
            let is_it = is_compressed(StatusCode::OK, Version::HTTP_11, &headers, &Extensions::new());
            assert_eq!(is_it, expected, "{kind} {control}");
        }
    }
}
