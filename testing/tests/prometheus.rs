//! PromQL with an unmodified Prometheus that reads from a real server with TLS and a token.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;
use wholegrain_model::{JobRecord, SensorDef, Timestamp};
use wholegrain_testing::probe::now_ns;
use wholegrain_testing::publisher::{Publisher, Values};
use wholegrain_testing::{Process, Site, free_port, wait_until};

const SECOND: i64 = 1_000_000_000;
/// The interval of the sensors.
const INTERVAL_S: i64 = 10;
/// Readings of each sensor.
const COUNT: i64 = 360;
/// Rows without a reading: the agent was disconnected.
const HOLE: std::ops::Range<i64> = 100..130;
/// A row with a gap.
const GAP: i64 = 200;

/// A Prometheus without its own data.
struct Prometheus {
    process: Process,
    port: u16,
}

impl Prometheus {
    /// Uses the configuration of docs/prometheus.md with this installation's names.
    fn start(site: &Site, name: &str, token: &str) -> Self {
        let document =
            std::fs::read_to_string(wholegrain_testing::checkout().join("docs/prometheus.md")).expect("a document");
        let (_, rest) = document.split_once("```yaml\n").expect("a configuration in the document");
        let (config, _) = rest.split_once("```").expect("its end");
        let (folder, port) = (site.path(name), free_port());
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("token"), token.trim()).expect("a token");
        let config = config
            .replace("https://wholegrain.example:8443", &format!("https://localhost:{}", site.http_port))
            .replace("/etc/prometheus/wholegrain-token", &folder.join("token").display().to_string())
            .replace("/etc/prometheus/wholegrain-ca.pem", &site.path("ca.pem").display().to_string());
        std::fs::write(folder.join("prometheus.yml"), config).expect("a configuration");
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = Process::start(&mut command, &folder.join("log"));
        let mut prometheus = Self { process, port };
        wait_until("Prometheus is ready", || {
            assert!(prometheus.process.runs(), "Prometheus ended: {}", prometheus.process.log());
            prometheus.get("/-/ready", &[]).contains("Ready")
        });
        prometheus
    }

    fn get(&self, path: &str, parameters: &[(&str, String)]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--get", "--max-time", "30", &format!("http://127.0.0.1:{}{path}", self.port)]);
        for (name, value) in parameters {
            curl.arg("--data-urlencode").arg(format!("{name}={value}"));
        }
        String::from_utf8(curl.output().expect("curl").stdout).expect("UTF-8")
    }

    fn api(&self, path: &str, parameters: &[(&str, String)]) -> Value {
        let text = self.get(path, parameters);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path} {parameters:?}: {error}: {text:?}"))
    }

    /// Values by series (some of its labels) and time in seconds.
    #[track_caller]
    fn range(&self, expression: &str, from_s: i64, to_s: i64, step_s: i64) -> BTreeMap<String, BTreeMap<i64, f64>> {
        let parameters = [
            ("query", expression.to_owned()),
            ("start", from_s.to_string()),
            ("end", to_s.to_string()),
            ("step", step_s.to_string()),
        ];
        let answer = self.api("/api/v1/query_range", &parameters);
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let point = |point: &Value| {
            (point[0].as_f64().expect("a time") as i64, point[1].as_str().expect("a value").parse().expect("a number"))
        };
        let series = answer["data"]["result"].as_array().expect("series").iter();
        series
            .map(|one| (name_of(&one["metric"]), one["values"].as_array().expect("values").iter().map(point).collect()))
            .collect()
    }
}

/// A series by its identifying labels.
fn name_of(metric: &Value) -> String {
    let text = |key: &str| metric[key].as_str().unwrap_or_default();
    [text("node"), text("cpu"), text("job")].join(" ").trim().to_owned()
}

/// The server's own answers, by path and time in seconds.
fn own(site: &Site, arguments: &[&str]) -> BTreeMap<String, BTreeMap<i64, f64>> {
    let mut all: BTreeMap<String, BTreeMap<i64, f64>> = BTreeMap::new();
    let answer = site.answer(&[&["query"], arguments, &["--format", "json"]].concat());
    for line in answer.lines() {
        let line: Value = serde_json::from_str(line).expect("a row");
        let time = Timestamp::parse(line["time"].as_str().expect("a time"), Timestamp(0)).expect("a time").0 / SECOND;
        if let Some(value) = line["value"].as_f64() {
            let sensor = line["sensor"].as_str().expect("a sensor").to_owned();
            all.entry(sensor).or_default().insert(time, value);
        }
    }
    all
}

/// An hour of readings of two nodes until now, of a job of anna on both, and of one of bert on one. Returns the time of the first.
fn fill(site: &Site) -> i64 {
    let start_s = (now_ns() / SECOND - COUNT * INTERVAL_S) / 600 * 600;
    let rows: Vec<i64> = (0..COUNT).filter(|row| !HOLE.contains(row)).collect();
    let times: Vec<i64> = rows.iter().map(|row| (start_s + row * INTERVAL_S) * SECOND).collect();
    let values =
        |of: &dyn Fn(i64) -> f64| -> Values { rows.iter().map(|row| (*row != GAP).then(|| of(*row))).collect() };
    for (number, node) in [(1, "n1"), (2, "n2")] {
        let mut publisher = Publisher::new(site, node);
        let scale = f64::from(number);
        let mut sensors = vec![
            (SensorDef::gauge("power", "W", ""), values(&|row| 100.0 * scale + (row * 7 % 50) as f64)),
            (SensorDef::counter("cpu/0/user", "s", ""), values(&|row| scale * (row * row) as f64 / 8.0)),
            (SensorDef::counter("cpu/1/user", "s", ""), values(&|row| (row * 2) as f64)),
            (SensorDef::counter("job/4711/cpu/usage", "s", ""), values(&|row| row as f64 * scale)),
        ];
        if node == "n1" {
            sensors.push((SensorDef::counter("job/4712/cpu/usage", "s", ""), values(&|row| row as f64)));
        }
        publisher.send("all", INTERVAL_S * SECOND, &times, sensors);
        for (job, user) in [("4711", "anna"), ("4712", "bert")] {
            let (job, user) = (job.to_owned(), Some(user.to_owned()));
            let record = JobRecord {
                level: job.clone(),
                job,
                user,
                manager: "slurm".into(),
                from: times[0],
                ..JobRecord::default()
            };
            if record.job == "4711" || node == "n1" {
                publisher.job(JobRecord { revision: 1, ..record });
            }
        }
    }
    start_s
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

#[test]
fn promql_returns_the_values_of_native_queries() {
    let site = Site::new();
    let mut server = site.start_server();
    let start_s = fill(&site);
    let token = std::fs::read_to_string(site.path("token")).expect("a token");
    let prometheus = Prometheus::start(&site, "prometheus", &token);
    let end_s = start_s + (COUNT - 1) * INTERVAL_S;
    let (from, to) = (format!("@{start_s}"), format!("@{}", end_s + 1));

    // Every reading, and no value in the hole and at the gap.
    let power = own(&site, &["power", "--from", &from, "--to", &to]);
    for step_s in [INTERVAL_S, 60] {
        let found = prometheus.range("power", start_s, end_s, step_s);
        assert_eq!(found.len(), 2);
        for (node, found) in found {
            let expected = &power[&format!("/site/{node}/power")];
            for time in (start_s..=end_s).step_by(step_s as usize) {
                let row = (time - start_s) / INTERVAL_S;
                // A value is valid until three intervals after it.
                let value = if row < HOLE.start + 2 {
                    expected.range(..=time).next_back()
                } else {
                    expected.get_key_value(&time)
                };
                assert_eq!(found.get(&time), value.map(|(_, value)| value), "{node}, row {row}, every {step_s} s");
            }
        }
    }

    // A rate uses the seven readings from t - 60 s to t, which are those of the server's window that ends before t + 10 s.
    let rates = own(&site, &["cpu/0/user", "--op", "rate", "--every", "60s", "--from", &from, "--to", &to]);
    let found = prometheus.range("rate(cpu_user{cpu=\"0\"}[1m])", start_s + 50, end_s, 60);
    let mut compared = 0;
    for (series, found) in &found {
        let node = series.split(' ').next().unwrap_or_default();
        for (window, rate) in &rates[&format!("/site/{node}/cpu/0/user")] {
            let row = (window - start_s) / INTERVAL_S;
            let whole = |row: i64| {
                row > 0 && !(HOLE.start - 7..HOLE.end + 2).contains(&row) && !(GAP - 7..=GAP + 1).contains(&row)
            };
            if whole(row) {
                let prometheus = found[&(window + 50)];
                assert!(close(prometheus, *rate), "{node} at {window}: {prometheus}, ours {rate}");
                compared += 1;
            }
        }
    }
    assert!(compared > 70, "{compared}");

    // Sums over series at evaluation times where samples can be omitted, and where they cannot.
    for (step_s, offset) in [(60, 0), (60, 37), (INTERVAL_S, 0)] {
        let found = prometheus.range("sum by (node) (cpu_user)", start_s + offset, end_s, step_s);
        let cpu = own(&site, &["cpu/*/user", "--from", &from, "--to", &to]);
        for (node, found) in &found {
            assert!(found.len() > 30);
            for (time, sum) in found {
                let last = |cpu_number: u8| {
                    *cpu[&format!("/site/{node}/cpu/{cpu_number}/user")].range(..=time).next_back().expect("a value").1
                };
                assert!(close(*sum, last(0) + last(1)), "{node} at {time}: {sum}");
            }
        }
    }

    // A subquery is evaluated at whole minutes.
    let found = prometheus.range("max_over_time(sum(power)[10m:1m])", start_s + 2777, start_s + 3300, 61);
    for (time, max) in &found[""] {
        let minutes = (time - 600..=*time).filter(|at| at % 60 == 0);
        let sum =
            |at: i64| power.values().map(|values| values.range(..=at).next_back().expect("a value").1).sum::<f64>();
        assert!(close(*max, minutes.map(sum).fold(0.0, f64::max)), "at {time}");
    }
    assert!(found[""].len() > 5);

    // Names of series without their samples.
    let series =
        prometheus.api("/api/v1/series", &[("match[]", "{node=\"n1\"}".into()), ("start", start_s.to_string())]);
    assert_eq!(series["data"].as_array().map(Vec::len), Some(5), "{series}");
    let labels = &series["data"][0];
    assert_eq!((labels["level1"].as_str(), labels["unit"].as_str()), (Some("site"), Some("s")), "{series}");
    assert!(server.stop().success());
}

#[test]
fn access_and_limits_of_promql() {
    let site = Site::new();
    site.set("server/server.toml", "prometheus", "series_max", "6");
    site.set("server/server.toml", "prometheus", "samples_max", "1000");
    site.set("server/server.toml", "prometheus", "levels", "[\"/{place}/{node}/**\"]");
    let mut server = site.start_server();
    let start_s = fill(&site);
    let token = |name: &str, role: &str| {
        let config = site.path("server/server.toml").display().to_string();
        site.answer(&["auth", "token", "create", name, "--role", role, "--server-config", &config])
    };
    let (anna, agent) = (token("anna", "user"), token("pusher", "agent"));
    wait_until("the server has read the tokens", || {
        site.metric("wholegrain_server_tokens").is_none_or(|count| count >= 3.0)
    });
    let anna = Prometheus::start(&site, "anna", &anna);
    let (from_s, to_s) = (start_s + 3000, start_s + 3060);
    let jobs = |prometheus: &Prometheus| -> Vec<String> {
        prometheus.range("job_cpu_usage", from_s, to_s, 60).into_keys().collect()
    };
    wait_until("anna's Prometheus reads", || !jobs(&anna).is_empty());
    assert_eq!(jobs(&anna), ["n1  4711", "n2  4711"]);
    let admin = std::fs::read_to_string(site.path("token")).expect("a token");
    let admin = Prometheus::start(&site, "admin", &admin);
    assert_eq!(jobs(&admin), ["n1  4711", "n1  4712", "n2  4711"]);

    // Queries beyond the limits are refused with an explanation; the next query is answered.
    let refused = |prometheus: &Prometheus, expression: &str, expected: &str| {
        let range = [
            ("query", expression.to_owned()),
            ("start", from_s.to_string()),
            ("end", (from_s + 600).to_string()),
            ("step", "7".into()),
        ];
        let answer = prometheus.api("/api/v1/query_range", &range).to_string();
        assert!(answer.contains(expected), "{expression}: {answer}");
    };
    refused(&admin, "{place=\"site\"}", "choose 9 series, at most 6 are taken");
    refused(&admin, "rate(cpu_user[50m])", "over 1000 samples");
    refused(&Prometheus::start(&site, "agent", &agent), "power", "403");
    refused(&Prometheus::start(&site, "nobody", "none"), "power", "401");
    assert_eq!(jobs(&admin).len(), 3);

    let counts = streamed(&site, from_s * 1000, (from_s + 300) * 1000);
    assert_eq!(counts, [31, 31], "samples of each series");
    assert!(server.stop().success());
}

/// Requests the power of all nodes as streamed chunks; returns the number of samples of each series.
fn streamed(site: &Site, from_ms: i64, to_ms: i64) -> Vec<u64> {
    let bytes = |field: u8, bytes: &[u8]| [&[field << 3 | 2, bytes.len() as u8], bytes].concat();
    let int = |field: u8, mut value: i64| {
        let mut out = vec![field << 3];
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
        out
    };
    let matcher = [bytes(2, b"__name__"), bytes(3, b"power")].concat();
    let query = [int(1, from_ms), int(2, to_ms), bytes(3, &matcher)].concat();
    let request = [bytes(1, &query), bytes(2, &[1, 0])].concat();
    // The simplest form of snappy: the length, and one literal of at most 60 bytes.
    let mut packed = vec![request.len() as u8];
    for part in request.chunks(60) {
        packed.push((part.len() as u8 - 1) << 2);
        packed.extend_from_slice(part);
    }
    std::fs::write(site.path("request"), packed).expect("a request");
    let token = std::fs::read_to_string(site.path("token")).expect("a token");
    let answer = Command::new("curl")
        .args(["--silent", "--fail", "--max-time", "30", "--cacert"])
        .arg(site.path("ca.pem"))
        .args(["--header", &format!("Authorization: Bearer {}", token.trim()), "--data-binary"])
        .arg(format!("@{}", site.path("request").display()))
        .arg(format!("https://localhost:{}/api/v1/prometheus/read", site.http_port))
        .output()
        .expect("curl");
    assert!(answer.status.success());
    let (mut rest, mut counts) = (&answer.stdout[..], Vec::new());
    while !rest.is_empty() {
        let length = varint(&mut rest) as usize;
        let message = &rest[4..4 + length];
        rest = &rest[4 + length..];
        let series = field(message, 1).expect("a series");
        let samples = fields(series).into_iter().filter(|(number, _)| *number == 2);
        let count = |chunk: &[u8]| {
            let data = field(chunk, 4).expect("data");
            u64::from(data[0]) << 8 | u64::from(data[1])
        };
        counts.push(samples.map(|(_, chunk)| count(chunk)).sum());
    }
    counts
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// The fields of a message that contain bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = varint(&mut message) as usize;
        if key & 7 == 2 {
            found.push((key >> 3, &message[..length]));
            message = &message[length..];
        }
    }
    found
}

fn field(message: &[u8], number: u64) -> Option<&[u8]> {
    fields(message).into_iter().find(|(known, _)| *known == number).map(|(_, bytes)| bytes)
}
