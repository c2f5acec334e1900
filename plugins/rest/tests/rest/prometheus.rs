//! A real API: that of Debian's Prometheus, asked by the plug-in and beside it.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use wholegrain_model::name::sanitize_level;
use wholegrain_testkit::{free_port, wait_for};

use super::started;

/// A program that ends with the test.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(url: &str) -> Option<Value> {
    let text = ureq::get(url).call().ok()?.body_mut().read_to_string().ok()?;
    serde_json::from_str(&text).ok()
}

#[test]
fn values_are_those_that_prometheus_has() {
    let folder = tempfile::tempdir().unwrap();
    let (file, port) = (folder.path().join("prometheus.yml"), free_port());
    let own = format!(
        "scrape_configs:\n- job_name: own\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['127.0.0.1:{port}']\n"
    );
    std::fs::File::create(&file).unwrap().write_all(own.as_bytes()).unwrap();
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _peer = Peer(command.spawn().unwrap_or_else(|error| panic!("prometheus: {error}; run make prepare")));
    // What does not change while it runs.
    let names = ["process_start_time_seconds", "go_info", "prometheus_build_info", "go_gc_gogc_percent"];
    let query = format!("%7B__name__%3D~%22{}%22%7D", names.join("%7C"));
    let url = format!("http://127.0.0.1:{port}/api/v1/query?query={query}");
    let result = wait_for("what Prometheus has scraped of itself", || {
        let answer = get(&url)?;
        answer["data"]["result"].as_array().filter(|list| list.len() >= 3).cloned()
    });
    let mut running = started(&format!(
        r#"[plugins.rest]
interval = "200ms"
timeout = "10s"
first_answers = "20s"
[[plugins.rest.device]]
hosts = ["127.0.0.1:{port}"]
path = "p"
[[plugins.rest.device.url]]
name = "query"
uri = "/api/v1/query?query={query}"
value = [{{ name = "status", path = "status", states = {{ success = 1, error = 0 }} }}]
table = [{{ name = "q", rows = "$.data.result[*]", index = ["metric.__name__", "metric.instance"], time = "value[0]", column = [{{ name = "value", path = "value[1]" }}] }}]
[[plugins.rest.device.url]]
name = "post"
uri = "/api/v1/query"
body = "query=process_start_time_seconds"
headers = {{ Content-Type = "application/x-www-form-urlencoded" }}
value = [{{ name = "started", path = "$.data.result[0].value[1]", unit = "s" }}]
"#
    ));
    let values = running.answer("p/query", |values| values.len() == result.len() + 4);
    assert_eq!(values["p/status"], Some(1.0));
    for series in &result {
        let label = |name: &str| sanitize_level(series["metric"][name].as_str().unwrap());
        let expected: f64 = series["value"][1].as_str().unwrap().parse().unwrap();
        let sensor = format!("p/q/{}/{}/value", label("__name__"), label("instance"));
        assert_eq!(values[&sensor], Some(expected), "{sensor}");
    }
    let started = running.answer("p/post", |values| values["p/started"].is_some())["p/started"];
    let sensor = format!("p/q/process_start_time_seconds/127.0.0.1:{port}/value");
    assert_eq!(started, values[&sensor], "{values:?}");
}
