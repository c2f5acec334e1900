//! How soon an answer begins: one sensor over a day among a thousand, while the server takes readings in.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use wholegrain_model::Timestamp;
use wholegrain_store::{Store, StoreConfig};
use wholegrain_testing::{Random, Site};
use wholegrain_transport::tls;

use crate::installation::{bytes_below, installation};
use crate::load::agent::Agent;
use crate::load::fleet::{Fleet, Pace, Target};
use crate::load::wall_ns;
use crate::report::{Aim, aim, keep, line, quantile};
use crate::server_ingest::{SENSORS, agents};

const SECOND_NS: i64 = 1_000_000_000;
/// Agents whose day is preloaded.
const NODES: usize = 4;
/// Samples of a preloaded batch, which are those of one seal.
const SAMPLES: usize = 60;
/// Agents that publish meanwhile.
const PUBLISHERS: usize = 12;
/// Queries before those that count: nothing is cold then.
const WARM_UP: usize = 20;
/// Aim for the first row, ms.
const FIRST_ROW_MS_MAX: f64 = 20.0;

#[derive(clap::Args, Clone)]
pub struct RangeQueryOptions {
    /// Queries in each of the two formats.
    #[arg(long, default_value_t = 200)]
    queries: usize,
    /// Sensors that are preloaded at 1 s.
    #[arg(long, default_value_t = 1000)]
    sensors: usize,
    /// Hours of them, up to now.
    #[arg(long, default_value_t = 24)]
    hours: i64,
    /// Readings a second that are taken in meanwhile.
    #[arg(long, default_value_t = 200_000.0)]
    rate: f64,
}

impl Default for RangeQueryOptions {
    fn default() -> Self {
        Self { queries: 200, sensors: 1000, hours: 24, rate: 200_000.0 }
    }
}

/// Fills the store as a server would have: a seal a minute, merges as they come due. The first time in it.
fn preload(site: &Site, options: &RangeQueryOptions) -> anyhow::Result<i64> {
    let config = StoreConfig { background: false, ..StoreConfig::new(site.path("server/store")) };
    let (store, _) = Store::open(config)?;
    let minutes = options.hours * 60;
    let start = (wall_ns() / SECOND_NS - minutes * 60 - 5) * SECOND_NS;
    let mut nodes = Vec::new();
    for node in 0..NODES {
        let mut agent = Agent::new(format!("day{node}"), options.sensors / NODES, SAMPLES, SECOND_NS)?;
        store.register_schema(agent.schema())?;
        agent.go_to(start);
        nodes.push(agent);
    }
    for minute in 1..=minutes {
        for agent in &mut nodes {
            agent.make();
            store.append_blocking(agent.message().1.to_vec().into())?;
        }
        store.seal()?;
        store.maintain(start + minute * 60 * SECOND_NS)?;
    }
    store.close()?;
    Ok(start)
}

/// How one answer came, ms after it was asked for.
struct Timing {
    first_row: f64,
    whole: f64,
}

struct QueryClient {
    http: ureq::Agent,
    base: String,
    token: String,
    from: i64,
    to: i64,
    rows: u64,
}

impl QueryClient {
    fn new(site: &Site, from: i64, options: &RangeQueryOptions) -> anyhow::Result<Self> {
        let pem = std::fs::read(site.path("ca.pem"))?;
        let authority = CertificateDer::from_pem_slice(&pem).context("ca.pem")?;
        let roots = RootCerts::Specific(Arc::new(vec![Certificate::from_der(&authority).to_owned()]));
        let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(tls::provider()).build();
        let http = ureq::Agent::config_builder().tls_config(tls).proxy(None).build().new_agent();
        let rows = options.hours as u64 * 3600;
        Ok(Self {
            http,
            base: format!("https://localhost:{}/api/v1/query", site.http_port),
            token: format!("Bearer {}", std::fs::read_to_string(site.path("token"))?.trim()),
            from,
            to: from + rows as i64 * SECOND_NS,
            rows,
        })
    }

    /// Asks for one sensor's day; every row must come.
    fn ask(&self, sensor: &str, format: &str) -> anyhow::Result<Timing> {
        let start = Instant::now();
        let request = (self.http.get(&self.base).query("pattern", sensor).query("format", format))
            .query("from", Timestamp(self.from).to_string())
            .query("to", Timestamp(self.to).to_string())
            .header("authorization", &self.token);
        let body = request.call().with_context(|| format!("asking for {sensor}"))?.into_body();
        let reader = body.into_with_config().limit(u64::MAX).reader();
        let (first, rows) = if format == "arrow" { read_arrow(reader)? } else { read_lines(reader)? };
        let whole = start.elapsed().as_secs_f64() * 1e3;
        ensure!(rows == self.rows, "{sensor}: {rows} rows came, {} are there", self.rows);
        Ok(Timing { first_row: (first - start).as_secs_f64() * 1e3, whole })
    }
}

/// When the first row was there, and how many came.
fn read_lines(reader: impl Read) -> anyhow::Result<(Instant, u64)> {
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    let first = Instant::now();
    ensure!(line.ends_with(b"\n"), "no row came");
    let mut rows = 1;
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok((first, rows));
        }
        rows += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let count = bytes.len();
        reader.consume(count);
    }
}

/// The same of an Arrow stream.
fn read_arrow(reader: impl Read) -> anyhow::Result<(Instant, u64)> {
    let mut batches = arrow_ipc::reader::StreamReader::try_new(BufReader::new(reader), None)?;
    let batch = batches.next().context("no row came")??;
    let first = Instant::now();
    let mut rows = batch.num_rows() as u64;
    for batch in batches {
        rows += batch?.num_rows() as u64;
    }
    Ok((first, rows))
}

/// A sensor's path, as [`Agent`] names them.
fn path(random: &mut Random, options: &RangeQueryOptions) -> String {
    let each = (options.sensors / NODES) as u64;
    let (node, sensor) = (random.within(0, NODES as u64), random.within(0, each));
    format!("/bench/day{node}/g{}/s{sensor:05}", sensor / 250)
}

/// Asks all questions while the agents publish; gives the timings of each format.
fn ask_all(asker: &QueryClient, options: &RangeQueryOptions) -> anyhow::Result<[Vec<Timing>; 2]> {
    let mut random = Random::seeded();
    let mut timings = [Vec::new(), Vec::new()];
    for round in 0..WARM_UP + options.queries {
        for (format, timings) in ["json", "arrow"].into_iter().zip(&mut timings) {
            let timing = asker.ask(&path(&mut random, options), format)?;
            if round >= WARM_UP {
                timings.push(timing);
            }
        }
    }
    Ok(timings)
}

/// Publishes until `stop` is set; readings a second that were acknowledged.
fn publish(target: &Target, rate: f64, stop: &AtomicBool) -> anyhow::Result<f64> {
    let mut fleet = Fleet::connect(agents(PUBLISHERS, &SENSORS, 10, rate)?, target, 64, PUBLISHERS)?;
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        fleet.run(Pace::Clock, Duration::from_secs(5), |_, _| {})?;
    }
    fleet.drain()?;
    Ok(fleet.totals.readings as f64 / start.elapsed().as_secs_f64())
}

pub fn run(options: &RangeQueryOptions) -> anyhow::Result<()> {
    println!(
        "range-query: one sensor of {} over {} h at 1 s, {} queries in each format, beside {:.0} readings/s",
        options.sensors, options.hours, options.queries, options.rate
    );
    let (site, target) = installation(&[]);
    let start = Instant::now();
    let from = preload(&site, options)?;
    line("preloading, s", format!("{:.0}", start.elapsed().as_secs_f64()), "");
    let mut server = site.start_server();
    let asker = QueryClient::new(&site, from, options)?;
    let stop = AtomicBool::new(options.rate <= 0.0);
    let (timings, published) = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| publish(&target, options.rate.max(1000.0), &stop));
        let timings = ask_all(&asker, options);
        stop.store(true, Ordering::Relaxed);
        (timings, publisher.join().map_err(|_| anyhow::anyhow!("the publishers' thread panicked")))
    });
    let (timings, published) = (timings?, published??);
    let blocks = site.metric("wholegrain_server_store_blocks ").unwrap_or(0.0);
    ensure!(server.stop().success(), "the server did not stop cleanly: {}", server.log());
    line("blocks, and MB of them", format!("{blocks:.0} {}", bytes_below(&site.path("server/store")) >> 20), "");
    line("readings a second taken in meanwhile", format!("{published:.0}"), "");
    let mut figures =
        json!({ "sensors": options.sensors, "hours": options.hours, "rate": published, "blocks": blocks });
    for (format, timings) in ["json", "arrow"].into_iter().zip(&timings) {
        let of = |f: fn(&Timing) -> f64| timings.iter().map(f).collect::<Vec<f64>>();
        let (first, whole) = (of(|timing| timing.first_row), of(|timing| timing.whole));
        println!(" {format}");
        line("first row, median, ms", format!("{:.1}", quantile(&first, 0.5)), "");
        let text = "20 (warm, while ingest runs)";
        aim("first row, 99th percentile, ms", quantile(&first, 0.99), 1, Aim::AtMost(FIRST_ROW_MS_MAX, text));
        line("first row, slowest, ms", format!("{:.1}", quantile(&first, 1.0)), "");
        line("whole answer, median, ms", format!("{:.1}", quantile(&whole, 0.5)), "");
        line("whole answer, 99th percentile, ms", format!("{:.1}", quantile(&whole, 0.99)), "");
        figures[format] = json!({ "first_row_ms": first, "whole_ms": whole });
    }
    keep("range-query", figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_lines_are_counted() {
        let (_, rows) = read_lines(&b"{}\n{}\n{}\n"[..]).unwrap();
        assert_eq!(rows, 3);
        assert!(read_lines(&b""[..]).is_err());
    }
}
