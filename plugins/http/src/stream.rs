//! Answers that go on for hours: streams of events.

use std::io::Read;
use std::time::{Duration, Instant};

use ureq::http;
use wholegrain_devices::DeviceProblem;

use crate::{AnswerHead, DeviceClient, DeviceRequest, TIMEOUT_MIN, problem};

impl DeviceClient {
    /// Sends a GET and gives the body as it comes, without decompression. The head has to be there by `deadline`. A read fails after `idle` without a
    /// byte. Redirects are not followed. The caller bounds what it reads.
    pub fn open(
        &self,
        request: &DeviceRequest,
        deadline: Instant,
        idle: Duration,
    ) -> Result<(AnswerHead, impl Read + Send + use<>), DeviceProblem> {
        let left = Some(deadline.saturating_duration_since(Instant::now()).max(TIMEOUT_MIN));
        let mut build = http::Request::builder().method("GET").uri(request.url);
        for (name, value) in request.headers {
            build = build.header(*name, *value);
        }
        for (name, value) in self.secrets.iter().filter(|_| request.authorized) {
            build = build.header(name, value);
        }
        let get = build.body(()).map_err(|_| DeviceProblem::Refused("HTTP: the request cannot be written"))?;
        let get = self.agent.configure_request(get).timeout_resolve(left).timeout_connect(left);
        let get = get.timeout_send_request(left).timeout_recv_response(left).timeout_per_read(Some(idle)).build();
        let response = self.agent.run(get).map_err(|error| problem(&error)).inspect_err(|_| self.names.forget())?;
        let head = AnswerHead { status: response.status().as_u16(), headers: response.headers().clone() };
        Ok((head, response.into_body().into_reader()))
    }
}
