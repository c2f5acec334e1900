//! The whole path over recorded trees: fixtures of /proc and /sys, agent, MQTT over TLS, journal, query. One file lists every sensor with unit, kind
//! and value; review its changes. `UPDATE_EXPECT=1` rewrites it.

use std::collections::BTreeMap;
use std::process::Command;

use expect_test::expect_file;
use wholegrain_testing::{Process, Site, checkout, program, wait_until};

#[test]
fn every_sensor_of_the_fixtures_arrives_with_the_recorded_values() {
    let site = Site::new();
    let (certificate, key) = site.agent_certificate("golden");
    let fixtures = checkout().join("sources/fixtures");
    let config = format!(
        "name = \"golden\"\n[roots]\nproc = \"{}\"\nsys = \"{}\"\n[mqtt]\nurl = \"mqtts://localhost:{}\"\nca = \"{}\"\n\
         cert = \"{}\"\nkey = \"{}\"\n[sources.procfs]\ninterval = \"1s\"\n[sources.sysfs]\ninterval = \"1s\"\n\
         [sources.agent]\nenabled = false\n",
        fixtures.join("recorded/proc").display(),
        fixtures.join("handmade/sys").display(),
        site.mqtt_port,
        site.path("ca.pem").display(),
        certificate.display(),
        key.display(),
    );
    std::fs::write(site.path("golden.toml"), config).expect("a writable folder");
    let checked =
        Command::new(program("wholegrain-agent")).arg("--config").arg(site.path("golden.toml")).arg("--once").output();
    let sensors = String::from_utf8(checked.expect("the agent").stdout)
        .expect("UTF-8")
        .lines()
        // A link that is down has no speed.
        .filter(|line| line.starts_with('/') && line.split_whitespace().nth(1) != Some("-"))
        .count();

    let mut server = site.start_server();
    let mut command = Command::new(program("wholegrain-agent"));
    let mut agent = Process::start(command.arg("--config").arg(site.path("golden.toml")), &site.path("golden.log"));
    wait_until("every sensor has a value", || newest(&site).len() >= sensors);
    let values = newest(&site);
    assert!(agent.stop().success() && server.stop().success());

    let mut text = String::from("sensor,unit,kind,scale,value\n");
    for (sensor, line) in values {
        text += &format!("{sensor},{line}\n");
    }
    expect_file![checkout().join("testing/golden.csv")].assert_eq(&text);
}

/// The newest value of each sensor that has one, with its properties, by sensor.
fn newest(site: &Site) -> BTreeMap<String, String> {
    let properties: serde_json::Value = site.api("/api/v1/sensors?pattern=/**").unwrap_or_default();
    let readings: serde_json::Value = site.api("/api/v1/newest?pattern=/**").unwrap_or_default();
    let properties = properties["sensors"].as_array().cloned().unwrap_or_default();
    let by_path: BTreeMap<&str, &serde_json::Value> =
        properties.iter().filter_map(|s| Some((s["path"].as_str()?, s))).collect();
    let readings = readings["readings"].as_array().cloned().unwrap_or_default();
    let line = |reading: &serde_json::Value| {
        let path = reading["path"].as_str()?;
        let sensor = by_path.get(path)?;
        let text = |name: &str| sensor[name].to_string().trim_matches('"').to_owned();
        Some((path.to_owned(), format!("{},{},{},{}", text("unit"), text("kind"), text("scale"), reading["value"])))
    };
    readings.iter().filter_map(line).collect()
}
