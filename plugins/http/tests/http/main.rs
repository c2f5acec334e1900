//! The client against servers that do everything wrong.

mod hostile;
mod stub;
mod tls;

use std::time::{Duration, Instant};

use stub::StubServer;
use wholegrain_device_http::{AnswerBounds, AnswerHead, DeviceClient, DeviceRequest};
use wholegrain_devices::{Credentials, DeviceProblem};

const BOUNDS: AnswerBounds = AnswerBounds { bytes_max: 100 << 10, redirects: 0, checks_certificate: true };

fn client(credentials: Option<&Credentials>, bounds: AnswerBounds) -> DeviceClient {
    DeviceClient::new(b"", credentials, bounds).unwrap()
}

fn url(server: &StubServer, uri: &str) -> String {
    format!("http://127.0.0.1:{}{uri}", server.port)
}

fn get_within(client: &DeviceClient, url: &str, time: Duration) -> Result<(AnswerHead, String), DeviceProblem> {
    let mut body = b"of an earlier answer".to_vec();
    let head = client.call(&DeviceRequest::get(url, &[]), Instant::now() + time, &mut body)?;
    Ok((head, String::from_utf8_lossy(&body).into_owned()))
}

fn get(client: &DeviceClient, url: &str) -> Result<(AnswerHead, String), DeviceProblem> {
    get_within(client, url, Duration::from_secs(30))
}
