//! Requests to a peer on this machine, without TLS, on connections that stay.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::system::Lane;

/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(120);

#[derive(Clone)]
pub struct Http {
    agent: ureq::Agent,
    base: String,
}

impl Http {
    /// On a loopback port.
    pub fn to(port: u16) -> Self {
        let config = ureq::Agent::config_builder().proxy(None).http_status_as_error(false);
        let agent = config.timeout_global(Some(ANSWER_MAX)).build().new_agent();
        Self { agent, base: format!("http://127.0.0.1:{port}") }
    }

    /// The body of an answer; an error for any status but success.
    pub fn get(&self, path: &str, parameters: &[(&str, String)]) -> anyhow::Result<Vec<u8>> {
        let url = format!("{}{path}", self.base);
        let mut request = self.agent.get(&url);
        for (name, value) in parameters {
            request = request.query(name, value);
        }
        body(request.call().with_context(|| format!("asking {url}"))?, &url)
    }

    /// The answer of the Prometheus API: `data`.
    pub fn data(&self, path: &str, parameters: &[(&str, String)]) -> anyhow::Result<Value> {
        let mut answer: Value = serde_json::from_slice(&self.get(path, parameters)?)?;
        ensure!(answer["status"] == "success", "{path} {parameters:?}: {answer}");
        Ok(answer["data"].take())
    }

    /// Sends a body; the answer's.
    pub fn post(&self, path: &str, headers: &[(&str, &str)], content: &[u8]) -> anyhow::Result<Vec<u8>> {
        let url = format!("{}{path}", self.base);
        let mut request = self.agent.post(&url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        body(request.send(content).with_context(|| format!("sending to {url}"))?, &url)
    }

    /// Sends lanes at once, each one request after the other.
    pub fn send(&self, lanes: &[Lane], headers: &[(&str, &str)]) -> anyhow::Result<()> {
        std::thread::scope(|scope| {
            let send =
                |lane: &Lane| lane.requests.iter().try_for_each(|one| self.post(&one.to, headers, &one.body).map(drop));
            let threads: Vec<_> = lanes.iter().map(|lane| scope.spawn(move || send(lane))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a sender ended")))
        })
    }
}

fn body(answer: ureq::http::Response<ureq::Body>, url: &str) -> anyhow::Result<Vec<u8>> {
    let status = answer.status();
    let bytes = answer.into_body().into_with_config().limit(u64::MAX).read_to_vec()?;
    let beginning = || String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
    ensure!(status.is_success(), "{url} answers {status}: {}", beginning());
    Ok(bytes)
}
