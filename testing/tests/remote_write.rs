//! An unmodified Prometheus scrapes a target and writes to a real server; its own answers and the server's are compared.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;
use wholegrain_model::Timestamp;
use wholegrain_testing::{Process, Site, checkout, free_port, wait_until};

/// An exporter of the test: a counter that rises with each scrape, a gauge, a histogram; while it is off it answers with an error.
struct Exporter {
    port: u16,
    off: Arc<AtomicBool>,
}

impl Exporter {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (port, off) = (listener.local_addr().expect("an address").port(), Arc::new(AtomicBool::new(false)));
        let (is_off, scrapes) = (off.clone(), AtomicU64::new(0));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
                    line.clear();
                }
                let count = scrapes.fetch_add(1, Ordering::Relaxed);
                let body = page(count);
                let status = if is_off.load(Ordering::Relaxed) { "500 Internal Server Error" } else { "200 OK" };
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
                let _ = write!(stream, "{head}Content-Type: text/plain; version=0.0.4\r\n\r\n{body}");
            }
        });
        Self { port, off }
    }
}

fn page(count: u64) -> String {
    format!(
        "# HELP pump_flow_joules_total Heat that left.\n# TYPE pump_flow_joules_total counter\n\
         pump_flow_joules_total{{loop=\"a/1\"}} {}\npump_flow_joules_total{{loop=\"b\"}} {}\n\
         # HELP inlet_celsius Temperature of the inlet.\n# TYPE inlet_celsius gauge\ninlet_celsius {}\n\
         # TYPE call_seconds histogram\ncall_seconds_bucket{{le=\"0.5\"}} {count}\ncall_seconds_bucket{{le=\"+Inf\"}} {count}\n\
         call_seconds_sum 1.25\ncall_seconds_count {count}\n# TYPE odd gauge\nodd NaN\n",
        count * 3,
        count as f64 / 8.0,
        20.5 + (count % 7) as f64,
    )
}

/// A Prometheus with the configuration of docs/prometheus.md that writes to this installation.
fn prometheus(site: &Site, exporter: &Exporter) -> (Process, u16) {
    let document = std::fs::read_to_string(checkout().join("docs/prometheus.md")).expect("a document");
    let (_, rest) = document.split_once("```yaml\nremote_write:").expect("a configuration in the document");
    let (config, _) = rest.split_once("```").expect("its end");
    let config = config
        .replace("https://wholegrain.example:8443", &format!("https://localhost:{}", site.http_port))
        .replace("/etc/prometheus/wholegrain-write-token", &site.path("token").display().to_string())
        .replace("/etc/prometheus/wholegrain-ca.pem", &site.path("ca.pem").display().to_string());
    let scrape = format!(
        "global:\n  scrape_interval: 500ms\nscrape_configs:\n  - job_name: plant\n    static_configs:\n      - targets: [\"127.0.0.1:{}\"]\n\
         remote_write:{config}    queue_config:\n      batch_send_deadline: 200ms\n    metadata_config:\n      send_interval: 1s\n",
        exporter.port
    );
    let (file, port) = (site.path("prometheus.yml"), free_port());
    std::fs::write(&file, scrape).expect("a configuration");
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", site.path("tsdb").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"));
    (Process::start(&mut command, &site.path("prometheus.log")), port)
}

type Samples = BTreeMap<i64, Option<f64>>;

/// The samples of a series in Prometheus, by time in ms.
fn own_samples(port: u16, series: &str) -> Samples {
    let answer = Command::new("curl")
        .args(["--silent", "--get", "--max-time", "30", &format!("http://127.0.0.1:{port}/api/v1/query")])
        .args(["--data-urlencode", &format!("query={series}[1h]")])
        .output()
        .expect("curl");
    let answer: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
    let values = answer["data"]["result"][0]["values"].as_array().cloned().unwrap_or_default();
    let one = |point: &Value| {
        let time_ms = (point[0].as_f64().expect("a time") * 1000.0).round() as i64;
        (time_ms, point[1].as_str().and_then(|text| text.parse().ok()))
    };
    values.iter().map(one).collect()
}

/// The readings of a sensor, gaps included, by time in ms.
fn stored(site: &Site, path: &str) -> Samples {
    let answer = site.run(&["query", path, "--from", "-1h", "--format", "json"]);
    let rows = String::from_utf8(answer.stdout).expect("UTF-8");
    let one = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("a row");
        let time = Timestamp::parse(row["time"].as_str().expect("a time"), Timestamp(0)).expect("a time");
        (time.0 / 1_000_000, row["value"].as_f64())
    };
    rows.lines().map(one).collect()
}

#[test]
fn prometheus_writes_what_it_scrapes() {
    let site = Site::new();
    let mut server = site.start_server();
    let exporter = Exporter::start();
    let (mut process, port) = prometheus(&site, &exporter);
    let target = format!("127.0.0.1:{}", exporter.port);
    let path = |name: &str| format!("/plant/{target}/{name}");
    let pairs = [
        ("pump_flow_joules_total{loop=\"a/1\"}", path("pump_flow_joules_total/loop=a%2F1")),
        ("pump_flow_joules_total{loop=\"b\"}", path("pump_flow_joules_total/loop=b")),
        ("inlet_celsius", path("inlet_celsius")),
        ("call_seconds_bucket{le=\"0.5\"}", path("call_seconds_bucket/le=0.5")),
        ("call_seconds_bucket{le=\"+Inf\"}", path("call_seconds_bucket/le=%2BInf")),
        ("call_seconds_sum", path("call_seconds_sum")),
        ("up", path("up")),
    ];
    wait_until("samples in Prometheus", || {
        assert!(process.runs(), "Prometheus ended: {}", process.log());
        own_samples(port, "inlet_celsius").len() >= 5
    });
    // The target fails: Prometheus marks its series as stale.
    exporter.off.store(true, Ordering::Relaxed);
    wait_until("a stale marker", || stored(&site, &pairs[2].1).values().any(Option::is_none));
    wait_until("two failed scrapes", || own_samples(port, "up").values().filter(|up| **up == Some(0.0)).count() >= 2);
    exporter.off.store(false, Ordering::Relaxed);
    let before = own_samples(port, "inlet_celsius").len();
    wait_until("samples again", || own_samples(port, "inlet_celsius").len() >= before + 3);
    for (series, path) in &pairs {
        let expected = own_samples(port, series);
        assert!(expected.len() >= 5, "{series}: {expected:?}");
        wait_until("the last sample", || stored(&site, path).last_key_value() >= expected.last_key_value());
        let last = *expected.last_key_value().expect("a sample").0;
        let values: Samples =
            stored(&site, path).into_iter().filter(|(time, value)| *time <= last && value.is_some()).collect();
        assert_eq!(values, expected, "{series}");
        let gaps = stored(&site, path).range(..last).filter(|(_, value)| value.is_none()).count();
        assert_eq!(gaps, usize::from(*series != "up"), "{series}: a stale marker is one gap");
    }
    assert!(stored(&site, &path("odd")).values().all(Option::is_none), "NaN is a gap");
    // Metadata comes once a second, apart from the samples.
    let sensor = |path: &str| site.api(&format!("/api/v1/sensors?pattern={}", path.replace('%', "%25")));
    wait_until("metadata", || {
        sensor(&pairs[1].1).is_some_and(|all| all["sensors"][0]["description"] == "Heat that left.")
    });
    let all = sensor(&pairs[1].1).expect("a sensor");
    assert_eq!((all["sensors"][0]["unit"].as_str(), all["sensors"][0]["kind"].as_str()), (Some("J"), Some("counter")));
    let all = sensor(&pairs[2].1).expect("a sensor");
    assert_eq!((all["sensors"][0]["unit"].as_str(), all["sensors"][0]["kind"].as_str()), (Some("Cel"), Some("gauge")));
    // A server that is away for a while loses nothing: Prometheus repeats what was not acknowledged.
    server.kill();
    let count = own_samples(port, "inlet_celsius").len();
    wait_until("samples without a server", || own_samples(port, "inlet_celsius").len() >= count + 4);
    let mut server = site.start_server();
    let expected = own_samples(port, "inlet_celsius");
    wait_until("all samples", || {
        let found = stored(&site, &pairs[2].1);
        expected.iter().all(|(time, value)| found.get(time) == Some(value))
    });
    assert_eq!(site.metric("wholegrain_server_remote_write_series_refused_total"), Some(0.0));
    process.stop();
    assert!(server.stop().success());
}
