//! One connection: its requests one after another.

use super::caller::ApiCaller;
use super::limits::{ANSWER_TIMEOUT, REQUEST_TIMEOUT, REQUESTS_MAX};
use super::service::ApiService;
use super::timeouts::TimedConnection;
use super::unauthenticated::UNAUTHENTICATED_TIMEOUT;
use super::{http, routes, view};

/// Answers requests until the peer closes the connection, is idle for too long or has sent the most requests of one connection.
pub(super) fn serve(stream: &mut impl TimedConnection, service: &ApiService, caller: &ApiCaller) {
    let mut buffer = Vec::new();
    for number in 1..=REQUESTS_MAX {
        stream.within(if caller.is_known() { REQUEST_TIMEOUT } else { UNAUTHENTICATED_TIMEOUT });
        let read = http::read(stream, &mut buffer);
        stream.within(ANSWER_TIMEOUT);
        match read {
            Ok(mut request) => {
                request.keep = request.keep && number < REQUESTS_MAX && !service.is_stopped();
                // A client without a valid token counts as unauthenticated again.
                if routes::answer(stream, service, caller, &request).is_err() || !request.keep || !caller.is_known() {
                    return;
                }
            }
            Err(http::RequestError::Refused(status, why)) => {
                let _ = http::answer(stream, status, &view::error(&why), false);
                return;
            }
            Err(http::RequestError::Disconnected) => return,
        }
    }
}
