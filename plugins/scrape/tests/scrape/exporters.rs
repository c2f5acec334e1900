//! Exporters that Debian ships, Prometheus itself beside them, and the Python library for OpenMetrics.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use wholegrain_model::Kind;
use wholegrain_testkit::checkout::root;
use wholegrain_testkit::{free_port, wait_for};

use super::started;

/// A program that ends with the test.
struct Peer(Child);

impl Peer {
    fn start(program: &str, arguments: &[String]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}; run make prepare")))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn node_exporter() -> (Peer, u16) {
    let port = free_port();
    let flags =
        ["--collector.disable-defaults", "--web.disable-exporter-metrics", "--collector.meminfo", "--collector.stat"];
    let more =
        ["--collector.uname", "--collector.cpu", "--collector.filesystem", "--collector.loadavg", "--collector.time"];
    let flags = flags.iter().chain(&more).map(|flag| (*flag).to_owned());
    let flags = flags.chain([format!("--web.listen-address=127.0.0.1:{port}")]).collect::<Vec<_>>();
    (Peer::start("prometheus-node-exporter", &flags), port)
}

fn config(port: u16, keys: &str) -> String {
    format!(
        "[plugins.scrape]\ninterval = \"100ms\"\ntimeout = \"10s\"\nfirst_answers = \"10s\"\n{keys}\n[[plugins.scrape.device]]\nhosts = [\"127.0.0.1:{port}\"]\npath = \"e\"\n"
    )
}

fn get(url: &str) -> Option<Value> {
    let text = ureq::get(url).call().ok()?.body_mut().read_to_string().ok()?;
    serde_json::from_str(&text).ok()
}

#[test]
fn values_of_node_exporter_are_those_of_the_kernel() {
    let (_peer, port) = node_exporter();
    let mut running = started(&config(port, ""));
    let values = running.answer("e", |_| true);
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")).unwrap();
    assert_eq!(values["e/node_memory_MemTotal_bytes"], Some(total.parse::<f64>().unwrap() * 1024.0));
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let line = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    assert_eq!(values["e/node_boot_time_seconds"], line("btime "));
    let switches = values["e/node_context_switches_total"].unwrap();
    assert!(switches > 0.0 && switches <= line("ctxt ").unwrap(), "{switches}");
    let group = running.group("e");
    let sensor = |name: &str| group.sensors.iter().find(|sensor| sensor.name == name).expect(name);
    let cpu = sensor("e/node_cpu_seconds_total/0/idle");
    assert_eq!((cpu.kind, cpu.unit.as_str()), (Kind::Counter, "s"));
    assert_eq!(sensor("e/node_memory_MemTotal_bytes").unit, "By");
    assert!(sensor("e/node_load1").description.contains("1m load average"));
}

#[test]
fn series_and_values_are_those_that_prometheus_scrapes() {
    let (_exporter, port) = node_exporter();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prometheus.yml");
    let scrape = format!(
        "scrape_configs:\n- job_name: node\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['127.0.0.1:{port}']\n"
    );
    std::fs::File::create(&file).unwrap().write_all(scrape.as_bytes()).unwrap();
    let api = free_port();
    let flags = [
        format!("--config.file={}", file.display()),
        format!("--storage.tsdb.path={}", folder.path().join("data").display()),
        format!("--web.listen-address=127.0.0.1:{api}"),
    ];
    let _prometheus = Peer::start("prometheus", &flags);
    let url = format!("http://127.0.0.1:{api}/api/v1/query?query=%7Bjob%3D%22node%22%2C__name__%3D~%22node_.%2B%22%7D");
    let result = wait_for("Prometheus' scrape", || {
        let answer = get(&url)?;
        answer["data"]["result"].as_array().filter(|list| list.len() > 20).cloned()
    });
    let mut running = started(&config(port, "names = \"{name}/{pairs}\""));
    let values = running.answer("e", |_| true);
    let mut expected = BTreeSet::new();
    let mut compared = 0;
    for series in &result {
        let labels = series["metric"].as_object().unwrap();
        let name = labels["__name__"].as_str().unwrap();
        let pairs = labels.iter().filter(|(label, _)| !["__name__", "instance", "job"].contains(&label.as_str()));
        let pairs = pairs.map(|(label, value)| {
            let level = format!("{label}={}", value.as_str().unwrap());
            format!("/{}", wholegrain_model::name::sanitize_level(&level))
        });
        let path = format!("e/{name}{}", pairs.collect::<String>());
        let value: f64 = series["value"][1].as_str().unwrap().parse().unwrap();
        // What does not change between the two scrapes.
        if ["node_boot_time_seconds", "node_uname_info", "node_memory_MemTotal_bytes", "node_filesystem_size_bytes"]
            .contains(&name)
        {
            assert_eq!(values.get(&path), Some(&Some(value)), "{path}");
            compared += 1;
        }
        expected.insert(path);
    }
    assert!(compared >= 4, "{compared}");
    let found: BTreeSet<String> = values.into_keys().filter(|name| name.starts_with("e/node_")).collect();
    assert_eq!(found, expected);
}

#[test]
fn blackbox_exporter_probes_what_a_url_names() {
    let (_node, target) = node_exporter();
    let port = free_port();
    let flags =
        ["--config.file=/etc/prometheus/blackbox.yml".to_owned(), format!("--web.listen-address=127.0.0.1:{port}")];
    let _blackbox = Peer::start("prometheus-blackbox-exporter", &flags);
    let text = format!(
        "[plugins.scrape]\ninterval = \"200ms\"\ntimeout = \"20s\"\n[[plugins.scrape.device]]\nhosts = [\"127.0.0.1\"]\n\
         path = \"probe/{{host}}\"\nurl = \"http://127.0.0.1:{port}/probe?module=http_2xx&target=http://{{host}}:{target}/metrics\"\n"
    );
    let mut running = started(&text);
    let values = running.answer("probe/127.0.0.1", |values| values["probe/127.0.0.1/probe_success"] == Some(1.0));
    assert_eq!(values["probe/127.0.0.1/probe_http_status_code"], Some(200.0));
    assert!(values["probe/127.0.0.1/probe_duration_seconds"].is_some_and(|seconds| seconds > 0.0));
}

#[test]
fn process_exporter_counts_processes_of_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let name = "wg-sleeper";
    std::fs::copy("/bin/sleep", folder.path().join(name)).unwrap();
    let sleeper = folder.path().join(name).display().to_string();
    let _sleepers = [(); 2].map(|()| Peer::start(&sleeper, &["1000".to_owned()]));
    let port = free_port();
    let flags = ["-procnames".to_owned(), name.to_owned(), format!("-web.listen-address=127.0.0.1:{port}")];
    let _exporter = Peer::start("prometheus-process-exporter", &flags);
    let rules = "rules = [{ metrics = \"go_*\", drop = true }, { metrics = \"namedprocess_namegroup_num_procs\", path = \"processes/{label:groupname}\" }]";
    let mut running = started(&config(port, rules));
    let values = running.answer("e", |values| values.get("e/processes/wg-sleeper") == Some(&Some(2.0)));
    assert!(values.keys().all(|name| !name.starts_with("e/go_")));
}

#[test]
fn open_metrics_of_the_python_library() {
    let port = free_port();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scrape/openmetrics.py");
    let python = root().join(".venv/bin/python").display().to_string();
    let _exporter = Peer::start(&python, &[script.to_owned(), port.to_string()]);
    let mut running = started(&config(port, ""));
    let values = running.answer("e", |_| true);
    for (name, expected) in [
        ("pumped_joules_total/p1", 17.5),
        ("pumped_joules_total/p2", 3.0),
        ("supply_celsius", 16.25),
        ("latency_seconds_bucket/0.1", 1.0),
        ("latency_seconds_bucket/1.0", 1.0),
        ("latency_seconds_bucket/Inf", 2.0),
        ("latency_seconds_count", 2.0),
        ("latency_seconds_sum", 5.05),
        ("answer_bytes_count", 2.0),
        ("answer_bytes_sum", 150.0),
        ("build_info/1.2", 1.0),
        ("mode/off", 0.0),
        ("mode/on", 1.0),
    ] {
        assert_eq!(values.get(&format!("e/{name}")), Some(&Some(expected)), "{name}");
    }
    let now = wholegrain_devices::system_time() as f64 / 1e9;
    let created = values["e/pumped_joules_created/p1"].unwrap();
    assert!((now - 300.0..=now).contains(&created), "{created}, now {now}");
    let group = running.group("e");
    let of = |name: &str| {
        let sensor = group.sensors.iter().find(|sensor| sensor.name == format!("e/{name}")).expect(name);
        (sensor.kind, sensor.unit.clone())
    };
    let (counter, gauge) = (Kind::Counter, Kind::Gauge);
    for (name, kind, unit) in [
        ("pumped_joules_total/p1", counter, "J"),
        ("pumped_joules_created/p1", gauge, "s"),
        ("supply_celsius", gauge, "Cel"),
        ("latency_seconds_bucket/Inf", counter, "1"),
        ("latency_seconds_sum", counter, "s"),
        ("answer_bytes_sum", counter, "By"),
        ("mode/on", gauge, "1"),
    ] {
        assert_eq!(of(name), (kind, unit.to_owned()), "{name}");
    }
}
