//! The page of one exporter over HTTP or HTTPS.

use std::time::Instant;

use wholegrain_device_http::{AnswerBody, DeviceClient, DeviceRequest, check_status};
use wholegrain_devices::DeviceProblem;
use wholegrain_sources::exposition::Dialect;

/// What an exporter is asked for, the best first.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// The client of one exporter.
#[derive(Clone)]
pub struct Fetcher {
    pub client: DeviceClient,
    pub url: String,
}

impl Fetcher {
    /// Gets the page into `body`, which is cleared first. Gives its language.
    pub fn fetch(&self, deadline: Instant, body: &mut AnswerBody) -> Result<Dialect, DeviceProblem> {
        let request = DeviceRequest::get(&self.url, &[("Accept", ACCEPT)]);
        let head = self.client.call_with_room(&request, deadline, body)?;
        check_status(head.status)?;
        let media_type = head.header("content-type").unwrap_or_default().trim_start();
        let is_open = media_type.starts_with("application/openmetrics-text");
        Ok(if is_open { Dialect::OpenMetrics } else { Dialect::Text })
    }
}
