//! Cost of lists and searches of names over very many sensors: time of the response and CPU of the server; and its CPU after the client has
//! closed the connection.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use wholegrain_testing::{Process, Site};
use wholegrain_transport::tls;

use crate::report::{keep, line, measure_for, median};

/// The data begins at 2026-01-31T00:00:00Z.
const BEGIN: u64 = 1_769_817_600;
/// Sensors of one node.
const NODE_SENSORS: u64 = 250;
/// Timeout of a request.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);
/// A client closes the connection after this time without a response.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(20);
/// How long the server's CPU is counted after that, s.
const AFTER_S: f64 = 5.0;

#[derive(clap::Args, Clone)]
pub struct ListsOptions {
    /// Sensors of the store.
    #[arg(long, default_value_t = 1_000_000)]
    sensors: u64,
    /// Requests of each kind; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A request: its name, the path, the parameters.
type ListRequest = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const ASKS: [ListRequest; 12] = [
    ("names: the levels below a place", "names", &[("begin", "/bench/")]),
    ("names: a beginning without /", "names", &[("begin", "m1")]),
    ("names: nearest, the last level of a path", "names", &[("near", "/bench/n00042/m01x")]),
    ("names: nearest, a last level below all nodes", "names", &[("near", "/bench/n*/m01x")]),
    ("names: nearest, below nodes that are not there", "names", &[("near", "/bench/*x/m017")]),
    ("names: nearest, without /", "names", &[("near", "m0x7")]),
    ("sensors: the first page (10,000)", "sensors", &[]),
    ("sensors: a page from the middle", "sensors", &[("after", "/bench/n02000/")]),
    ("sensors: one metric of all nodes", "sensors", &[("pattern", "/bench/*/m017")]),
    ("sensors: a pattern that chooses none", "sensors", &[("pattern", "/bench/**/none")]),
    ("newest: the first page (10,000)", "newest", &[("pattern", "/**")]),
    ("newest: a page of 100,000", "newest", &[("pattern", "/**"), ("limit", "100000")]),
];

struct Server {
    process: Process,
    agent: ureq::Agent,
    url: String,
}

impl Server {
    /// The bytes of the answer.
    fn ask(&self, token: &str, (_, path, params): &ListRequest, timeout: Duration) -> anyhow::Result<usize> {
        let url = format!("{}/api/v1/{path}", self.url);
        let request = self.agent.get(url).query_pairs(params.iter().copied());
        let request = request.header("Authorization", format!("Bearer {token}"));
        let mut answer = request.config().timeout_global(Some(timeout)).build().call()?;
        let mut body = Vec::new();
        answer.body_mut().as_reader().read_to_end(&mut body)?;
        Ok(body.len())
    }

    /// The time of an action and the server's CPU time for it, seconds.
    fn measured<T>(&self, work: impl FnOnce() -> T) -> (f64, f64, T) {
        let (used, begun) = (self.process.cpu_ns(), Instant::now());
        let result = work();
        (begun.elapsed().as_secs_f64(), (self.process.cpu_ns() - used) as f64 / 1e9, result)
    }
}

fn file(path: &Path, sensors: u64) -> anyhow::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(out, "sensor,time,value")?;
    for at in 0..sensors {
        writeln!(out, "n{:05}/m{:03},{BEGIN},{at}", at / NODE_SENSORS, at % NODE_SENSORS)?;
    }
    Ok(out.flush()?)
}

fn client(site: &Site) -> anyhow::Result<ureq::Agent> {
    let authority = Certificate::from_pem(&std::fs::read(site.path("ca.pem"))?)?;
    let roots = RootCerts::Specific(Arc::new(vec![authority]));
    let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(tls::provider()).build();
    Ok(ureq::Agent::config_builder().tls_config(tls).proxy(None).build().new_agent())
}

pub fn run(options: &ListsOptions) -> anyhow::Result<()> {
    println!("lists: {} sensors, {} requests of each kind", options.sensors, options.rounds);
    let site = Site::new();
    let process = site.start_server();
    let path = site.path("sensors.csv");
    file(&path, options.sensors)?;
    let begun = Instant::now();
    site.answer(&["import", "csv", path.to_str().context("the file's name")?, "--prefix", "/bench", "--yes"]);
    line("import of one reading of each, s", format!("{:.1}", begun.elapsed().as_secs_f64()), "");
    let config = site.path("server/server.toml").display().to_string();
    let user = site.answer(&["auth", "token", "create", "alice", "--role", "user", "--server-config", &config]);
    let admin = std::fs::read_to_string(site.path("token"))?;
    let (url, agent) = (format!("https://localhost:{}", site.http_port), client(&site)?);
    let mut server = Server { process, agent, url };
    let mut figures = json!({ "sensors": options.sensors });
    for (who, token) in [("admin", admin.trim()), ("user", user.trim())] {
        // The server looks at its file of tokens once a second.
        wholegrain_testing::wait_until("the token counts", || server.ask(token, &ASKS[0], ANSWER_TIME_MAX).is_ok());
        println!(" with a token of role {who}: median time, ms; CPU of the server, ms; size, kB");
        for ask in &ASKS {
            let (mut times, mut cpu, mut size) = (Vec::new(), Vec::new(), 0);
            for _ in 0..options.rounds {
                let (s, cpu_s, bytes) = server.measured(|| server.ask(token, ask, ANSWER_TIME_MAX));
                times.push(s * 1e3);
                cpu.push(cpu_s * 1e3);
                size = bytes.with_context(|| ask.0.to_owned())?;
            }
            let (time, cpu) = (median(&times), median(&cpu));
            line(ask.0, format!("{time:.1} {cpu:.1} {:.1}", size as f64 / 1e3), "");
            figures[who][ask.0] = json!({ "ms": times, "server_cpu_ms": cpu, "bytes": size });
            if time < 2.0 * CLIENT_TIMEOUT.as_secs_f64() * 1e3 {
                continue;
            }
            let (_, cpu_s, _) = server.measured(|| {
                let _ = server.ask(token, ask, CLIENT_TIMEOUT);
                measure_for(AFTER_S);
            });
            let label = format!("of them when the client closes after {} ms: CPU, ms", CLIENT_TIMEOUT.as_millis());
            line(&format!("  {label}"), format!("{:.1}", cpu_s * 1e3), "");
            figures[who][ask.0]["closed_cpu_ms"] = json!(cpu_s * 1e3);
        }
    }
    ensure!(server.process.stop().success(), "the server did not stop cleanly: {}", server.process.log());
    keep("lists", figures)
}
