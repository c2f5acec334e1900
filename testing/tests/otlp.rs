//! The SDK of OpenTelemetry for Python exports to a real server.

use std::collections::BTreeMap;

use serde_json::Value;
use wholegrain_testing::{Site, python};

/// The newest values below a path, by the path below it.
fn stored(site: &Site, below: &str) -> BTreeMap<String, f64> {
    let answer = site.api(&format!("/api/v1/newest?pattern={below}/**")).expect("an answer");
    let one = |reading: &Value| {
        let path = reading["path"].as_str().expect("a path").trim_start_matches(below).trim_start_matches('/');
        Some((path.to_owned(), reading["value"].as_f64()?))
    };
    answer["readings"].as_array().expect("readings").iter().filter_map(one).collect()
}

#[test]
fn the_sdk_of_opentelemetry_exports_what_it_counts() {
    let site = Site::new();
    let mut server = site.start_server();
    let export = |path: &str, temporality: &str| -> BTreeMap<String, f64> {
        let url = format!("https://localhost:{}{path}", site.http_port);
        let arguments =
            [url.as_ref(), site.path("token").as_path(), site.path("ca.pem").as_path(), temporality.as_ref()]
                .map(std::path::Path::to_owned);
        let printed = python("otlp_export.py", &arguments.each_ref().map(std::path::PathBuf::as_path));
        serde_json::from_str(&printed).expect("the expected values")
    };
    let expected = export("/v1/metrics", "cumulative");
    assert_eq!(stored(&site, "/n7/plant/cumulative"), expected);
    assert_eq!(site.metric("wholegrain_server_otlp_points_refused_total"), Some(0.0));
    let sensors = site.api("/api/v1/sensors?pattern=/n7/plant/cumulative/**").expect("sensors");
    let properties = |name: &str| {
        let path = format!("/n7/plant/cumulative/{name}");
        let found =
            sensors["sensors"].as_array().expect("sensors").iter().find(|sensor| sensor["path"] == path.as_str());
        let text = |key: &str| found.expect("a sensor")[key].as_str().unwrap_or_default().to_owned();
        [text("unit"), text("kind"), text("description")]
    };
    assert_eq!(properties("heat/pump=1"), ["J", "counter", "Heat that left."]);
    assert_eq!(properties("inlet.temperature/loop=b"), ["Cel", "gauge", "At the inlet."]);
    assert_eq!(properties("tank.level"), ["{unit}", "gauge", ""]);
    assert_eq!(properties("valve.duration/le=2/bucket"), ["1", "counter", ""]);

    // The same messages in JSON.
    let expected = export("/v1/metrics", "json");
    assert_eq!(stored(&site, "/n7/plant/json"), expected);
    assert_eq!(site.metric("wholegrain_server_otlp_points_refused_total"), Some(0.0));

    // Deltas are refused and counted; gauges and up-down counters of the same requests are stored.
    let mut expected = export("/api/v1/write/otlp", "delta");
    expected.retain(|path, _| path.starts_with("inlet") || path.starts_with("tank"));
    assert_eq!(stored(&site, "/n7/plant/delta"), expected);
    assert!(site.metric("wholegrain_server_otlp_points_refused_total").is_some_and(|count| count >= 3.0));
    let lines = server.log().lines().filter(|line| line.contains("data points of OpenTelemetry are refused: ")).count();
    assert_eq!(lines, 1, "few senders show what is refused: {}", server.log());
    assert!(server.stop().success());
}
