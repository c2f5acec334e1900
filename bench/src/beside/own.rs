//! Wholegrain's own server, written to by MQTT as agents do.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_schema::DataType;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::Value;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use wholegrain_model::Timestamp;
use wholegrain_store::{Store, StoreConfig};
use wholegrain_testing::{Process, Site};
use wholegrain_transport::client::{Client, ClientConfig, Event};
use wholegrain_transport::tls;

use super::recording::{Recording, Sums};
use super::system::{About, Lane, Request, SensorSelection, Span, Stored, System, span};
use super::victoria::until;
use crate::installation::{bytes_below, installation, metric};
use crate::load::{own_cpu_ns, wall_ns};

/// Publishes of one connection that wait for their acknowledgement; the server's default is as many.
const WINDOW: usize = 64;
/// How long the server may acknowledge nothing.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A day is merged into one block before this age, ns.
const TWO_DAYS_NS: i64 = 2 * 86_400 * 1_000_000_000;
/// The journal is sealed when it is so old. The default of a minute would only make the measurement longer.
const SEAL_AFTER: &str = "\"5s\"";

pub struct Own {
    /// A batch has one sample, where agents would send several.
    singles: bool,
    running: Option<RunningServer>,
    /// CPU of earlier servers and of the merges.
    before_ns: u64,
}

struct RunningServer {
    process: Process,
    asker: QueryClient,
    plain: String,
    site: Site,
}

impl Own {
    /// With batches as they were recorded, or with one sample in each.
    pub fn new(singles: bool) -> Self {
        Self { singles, running: None, before_ns: 0 }
    }

    fn running(&self) -> anyhow::Result<&RunningServer> {
        self.running.as_ref().context("the server does not run")
    }
}

fn publish(plain: &str, lane: &Lane) -> anyhow::Result<()> {
    let config = ClientConfig { url: plain.to_owned(), client_id: lane.node.clone(), ..ClientConfig::default() };
    let mut client = Client::connect(&config)?;
    let window = WINDOW.min(client.receive_max().into());
    let mut requests = lane.requests.iter();
    let mut next = requests.next();
    while next.is_some() || client.in_flight() > 0 {
        while let Some(request) = next.filter(|_| client.in_flight() < window) {
            client.publish(&request.to, &request.body, true, false)?;
            next = requests.next();
        }
        client.flush()?;
        match client.poll(SILENCE_MAX)?.context("the server acknowledges nothing")? {
            Event::Acked { reason, .. } => {
                ensure!(!reason.is_error(), "{}: a publish was refused: {reason:?}", lane.node)
            }
            other => drop(other),
        }
    }
    Ok(client.disconnect()?)
}

impl System for Own {
    fn about(&self) -> About {
        let samples = if self.singles { "one sample a batch" } else { "the agent's own batches" };
        About {
            system: if self.singles { "wholegrain, one sample a batch" } else { "wholegrain" }.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            configured: format!(
                "seal_after = {SEAL_AFTER}, else default; written to by MQTT 5 with quality of service 1, without TLS, {samples}, at most {WINDOW} \
                 unacknowledged; asked at /api/v1/query (Arrow) and /api/v1/newest (JSON) with TLS and a token"
            ),
            durable: "acknowledged after fdatasync: a crash takes nothing",
            counted: "the Parquet blocks, sealed and merged as after the day is over; not the windows of tiers, the catalogue and the list of sensors",
        }
    }

    fn fresh(&mut self, _dir: &Path) -> anyhow::Result<()> {
        self.running = None;
        self.before_ns = 0;
        let (site, target) = installation(&[("store", "seal_after", SEAL_AFTER)]);
        let process = site.start_server();
        let plain = format!("mqtt://{}", target.addresses[0]);
        self.running = Some(RunningServer { process, asker: QueryClient::new(&site)?, plain, site });
        Ok(())
    }

    fn prepare(&self, recording: &Recording) -> anyhow::Result<Lane> {
        let messages = if self.singles { recording.singles().messages() } else { recording.messages() };
        let requests = messages.into_iter().map(|(to, body)| Request { to, body }).collect();
        Ok(Lane { node: recording.node.clone(), requests, readings: recording.readings() })
    }

    fn ingest(&mut self, lanes: &[Lane]) -> anyhow::Result<()> {
        let plain = &self.running()?.plain;
        std::thread::scope(|scope| {
            let threads: Vec<_> = lanes.iter().map(|lane| scope.spawn(move || publish(plain, lane))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a sender ended")))
        })
    }

    /// The merge of a day comes when it has been over for two hours: it is made now, by the store's own code in this process.
    fn flush_and_merge(&mut self) -> anyhow::Result<()> {
        let mut running = self.running.take().context("the server does not run")?;
        until("the journal is sealed", || Ok(metric(&running.site, "journal_bytes")? == 0.0))?;
        self.before_ns += running.process.cpu_ns();
        ensure!(running.process.stop().success(), "the server did not stop cleanly: {}", running.process.log());
        let before = own_cpu_ns();
        let config = StoreConfig { background: false, ..StoreConfig::new(running.site.path("server/store")) };
        let (store, _) = Store::open(config).context("opening the store for its merge")?;
        store.maintain(wall_ns() + TWO_DAYS_NS)?;
        store.close()?;
        drop(store);
        self.before_ns += own_cpu_ns() - before;
        running.process = running.site.start_server();
        // The CPU of the start belongs to no reading.
        self.before_ns -= running.process.cpu_ns().min(self.before_ns);
        self.running = Some(running);
        Ok(())
    }

    fn cpu_ns(&self) -> u64 {
        self.before_ns + self.running.as_ref().map_or(0, |running| running.process.cpu_ns())
    }

    fn rss_kb(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.process.status_kb("VmRSS"))
    }

    fn stored(&self) -> anyhow::Result<Stored> {
        let store = self.running()?.site.path("server/store");
        Ok(Stored { bytes: bytes_below(&store.join("blocks")), all: bytes_below(&store) })
    }

    fn sums(&mut self, recording: &Recording) -> anyhow::Result<Sums> {
        let (asker, node) = (&self.running()?.asker, &recording.node);
        let scales = asker.scales(node)?;
        let mut sums = Sums::new();
        // Integers arrive scaled: divide them by the scale.
        asker.rows(&format!("/bench/{node}/**"), &[], span(recording), |sensor, value| {
            let name = sensor.strip_prefix(&format!("/bench/{node}/")).unwrap_or(sensor);
            let sum = sums.entry(name.to_owned()).or_default();
            sum.count += 1;
            sum.sum += (value / scales.get(sensor).unwrap_or(&1.0)).round();
        })?;
        Ok(sums)
    }

    fn one_sensor(&mut self, node: &str, sensor: &str, span: Span) -> anyhow::Result<usize> {
        self.running()?.asker.rows(&format!("/bench/{node}/{sensor}"), &[], span, |_, _| {})
    }

    fn windows(&mut self, _chosen: &SensorSelection, span: Span, window_s: u64) -> anyhow::Result<usize> {
        let every = format!("{window_s}s");
        let more = [("every", every.as_str()), ("agg", "last"), ("across", "sum")];
        self.running()?.asker.query(&SensorSelection::patterns(), &more, span, |_, _| {})
    }

    fn newest(&mut self, chosen: &SensorSelection, _span: Span) -> anyhow::Result<usize> {
        self.running()?.asker.newest(&chosen.nodes)
    }
}

struct QueryClient {
    http: ureq::Agent,
    base: String,
    token: String,
}

impl QueryClient {
    fn new(site: &Site) -> anyhow::Result<Self> {
        let pem = std::fs::read(site.path("ca.pem"))?;
        let authority = CertificateDer::from_pem_slice(&pem).context("ca.pem")?;
        let roots = RootCerts::Specific(Arc::new(vec![Certificate::from_der(&authority).to_owned()]));
        let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(tls::provider()).build();
        Ok(Self {
            http: ureq::Agent::config_builder()
                .tls_config(tls)
                .proxy(None)
                .http_status_as_error(false)
                .build()
                .new_agent(),
            base: format!("https://localhost:{}/api/v1", site.http_port),
            token: format!("Bearer {}", std::fs::read_to_string(site.path("token"))?.trim()),
        })
    }

    fn get(&self, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<impl Read> {
        let mut request = self.http.get(format!("{}{path}", self.base)).header("authorization", &self.token);
        for (name, value) in parameters {
            request = request.query(name, value);
        }
        let answer = request.call().with_context(|| format!("asking {path} {parameters:?}"))?;
        let status = answer.status();
        let mut body = answer.into_body();
        ensure!(status.is_success(), "{path} {parameters:?} is answered {status}: {}", body.read_to_string()?);
        Ok(body.into_with_config().limit(u64::MAX).reader())
    }

    /// Every row of a query: sensor and value. How many there were.
    fn query(
        &self,
        patterns: &[String],
        more: &[(&str, &str)],
        span: Span,
        mut each: impl FnMut(&str, f64),
    ) -> anyhow::Result<usize> {
        // The end is without.
        let (from, to) = (Timestamp(span.from).to_string(), Timestamp(span.to + 1).to_string());
        let mut parameters = vec![("from", from.as_str()), ("to", to.as_str()), ("format", "arrow")];
        parameters.extend(patterns.iter().map(|pattern| ("pattern", pattern.as_str())));
        parameters.extend(more);
        let mut rows = 0;
        let mut answer = arrow_ipc::reader::StreamReader::try_new(self.get("/query", &parameters)?, None)?;
        for batch in answer.by_ref() {
            let batch = batch?;
            rows += batch.num_rows();
            let [sensors, _, values] = batch.columns() else { bail!("{} columns came", batch.num_columns()) };
            let sensors = sensors.as_any_dictionary_opt().context("the sensors are no dictionary")?;
            let (keys, names) = (sensors.normalized_keys(), sensors.values().as_string::<i32>());
            let value: &dyn Fn(usize) -> f64 = match values.data_type() {
                DataType::Int64 => &|row| values.as_primitive::<Int64Type>().value(row) as f64,
                DataType::Float64 => &|row| values.as_primitive::<Float64Type>().value(row),
                other => bail!("values of type {other} came"),
            };
            keys.into_iter()
                .enumerate()
                .filter(|(row, _)| values.is_valid(*row))
                .for_each(|(row, key)| each(names.value(key), value(row)));
        }
        // The stream's own end is not the answer's. One that is not read to its end costs the connection: the next question would begin with
        // a handshake, where the other systems' do not.
        std::io::copy(answer.get_mut(), &mut std::io::sink())?;
        Ok(rows)
    }

    fn rows(
        &self,
        pattern: &str,
        more: &[(&str, &str)],
        span: Span,
        each: impl FnMut(&str, f64),
    ) -> anyhow::Result<usize> {
        self.query(&[pattern.to_owned()], more, span, each)
    }

    /// The members of a list of that name.
    fn list(&self, name: &str, path: &str, patterns: &[String]) -> anyhow::Result<Vec<Value>> {
        let parameters: Vec<_> = patterns.iter().map(|pattern| ("pattern", pattern.as_str())).collect();
        let mut list: Value = serde_json::from_reader(BufReader::new(self.get(path, &parameters)?))?;
        match list[name].take() {
            Value::Array(members) => Ok(members),
            _ => bail!("{path} gave no {name}"),
        }
    }

    fn scales(&self, node: &str) -> anyhow::Result<BTreeMap<String, f64>> {
        let sensors = self.list("sensors", "/sensors", &[format!("/bench/{node}/**")])?;
        let one = |sensor: &Value| Some((sensor["path"].as_str()?.to_owned(), sensor["scale"].as_f64()?));
        Ok(sensors.iter().filter_map(one).collect())
    }

    fn newest(&self, nodes: &[String]) -> anyhow::Result<usize> {
        let patterns: Vec<String> = nodes.iter().map(|node| format!("/bench/{node}/**")).collect();
        Ok(self.list("readings", "/newest", &patterns)?.len())
    }
}
