//! Queries of a job: its readings, statistics over its nodes, its energy; and no data of other users.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use wholegrain_model::{JobRecord, SensorDef};
use wholegrain_testing::probe::now_ns;
use wholegrain_testing::publisher::{Publisher, Values};
use wholegrain_testing::{Site, wait_until};

const SECOND: i64 = 1_000_000_000;
const INTERVAL_S: i64 = 10;
/// Readings of each sensor.
const COUNT: i64 = 300;
/// The job's time range, s after the first reading.
const JOB: (i64, i64) = (600, 1800);
/// The time range of another job on the second node.
const OTHER: (i64, i64) = (1200, 2400);
/// Rows without a reading on the second node: 70 s between two readings.
const HOLE: std::ops::Range<i64> = 100..106;

fn record(job: &str, user: &str, cpus: &str, (from, to): (i64, i64), start_s: i64) -> JobRecord {
    JobRecord {
        job: job.to_owned(),
        level: job.to_owned(),
        manager: "slurm".to_owned(),
        user: Some(user.to_owned()),
        cpus: Some(cpus.to_owned()),
        from: (start_s + from) * SECOND,
        to: Some((start_s + to) * SECOND),
        revision: 1,
        ..JobRecord::default()
    }
}

/// Three nodes: one used by the job alone, one shared, one without a power sensor.
fn fill(site: &Site) -> i64 {
    let start_s = (now_ns() / SECOND - COUNT * INTERVAL_S) / 60 * 60;
    for (number, node) in [(1, "n1"), (2, "n2"), (3, "n3")] {
        let rows: Vec<i64> = (0..COUNT).filter(|row| number != 2 || !HOLE.contains(row)).collect();
        let times: Vec<i64> = rows.iter().map(|row| (start_s + row * INTERVAL_S) * SECOND).collect();
        let values = |of: &dyn Fn(i64) -> f64| -> Values { rows.iter().map(|row| Some(of(*row))).collect() };
        let mut sensors = vec![
            (SensorDef::gauge("cpu/0/frequency", "Hz", ""), values(&|row| row as f64)),
            (SensorDef::gauge("cpu/2/frequency", "Hz", ""), values(&|row| row as f64)),
            (SensorDef::counter("job/4711/cpu/usage", "s", ""), values(&|row| row as f64 * 30.0)),
            (SensorDef::counter("job/4712/cpu/usage", "s", ""), values(&|row| row as f64 * 10.0)),
        ];
        if number < 3 {
            sensors.push((SensorDef::gauge("power", "W", ""), values(&|_| 100.0 * f64::from(number))));
        }
        let mut publisher = Publisher::new(site, node);
        publisher.send("all", INTERVAL_S * SECOND, &times, sensors);
        publisher.job(record("4711", "anna", "2-3", JOB, start_s));
        if number == 2 {
            publisher.job(record("4712", "bert", "0-1", OTHER, start_s));
        }
    }
    start_s
}

/// Writes a client.toml with another token.
fn client(site: &Site, name: &str, role: &str) -> PathBuf {
    let config = site.path("server/server.toml").display().to_string();
    let token = site.answer(&["auth", "token", "create", name, "--role", role, "--server-config", &config]);
    std::fs::write(site.path(&format!("{name}.token")), token).expect("a token");
    let path = site.path(&format!("{name}.toml"));
    let text =
        format!("url = \"https://localhost:{}\"\nca = \"ca.pem\"\ntoken_file = \"{name}.token\"\n", site.http_port);
    std::fs::write(&path, text).expect("a client.toml");
    path
}

fn run_as(site: &Site, client: &Path, arguments: &[&str]) -> Output {
    site.command(arguments).arg("--client").arg(client).output().expect("wholegrain")
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[track_caller]
fn close(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap_or(f64::NAN);
    assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found}, expected {expected}");
}

#[test]
fn queries_statistics_and_energy_of_a_job() {
    let site = Site::new();
    let mut server = site.start_server();
    let start_s = fill(&site);

    // The job's sensors: those of its CPUs, and its own.
    let sensors = site.answer(&["sensors", "--job", "4711", "--format", "csv"]);
    let paths: Vec<&str> = sensors.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
    let of = |node: &str| ["cpu/2/frequency", "job/4711/cpu/usage", "power"].map(|name| format!("/site/{node}/{name}"));
    let expected: Vec<String> =
        ["n1", "n2", "n3"].iter().flat_map(|node| of(node)).filter(|path| path != "/site/n3/power").collect();
    assert_eq!(paths, expected);

    // Its readings, from its first to its last second.
    let rows = site.answer(&["query", "power", "--job", "4711", "--format", "csv"]);
    let times: Vec<&str> =
        rows.lines().filter(|row| row.contains("/n1/")).filter_map(|row| row.split(',').nth(1)).collect();
    assert_eq!(times.len() as i64, (JOB.1 - JOB.0) / INTERVAL_S + 1, "{rows}");
    let within = site.answer(&[
        "query",
        "power",
        "--job",
        "4711",
        "--from",
        &format!("@{}", start_s + 1700),
        "--agg",
        "count",
        "--format",
        "csv",
    ]);
    assert!(within.lines().nth(1).is_some_and(|row| row.contains(",11,")), "{within}");
    let nothing = site.run(&["query", "power", "--job", "999"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("there is no job 999"));

    let stats = json(&site.answer(&["jobs", "stats", "4711", "power", "/**/job/4711/**", "--format", "json"]));
    let metrics = stats["metrics"].as_array().expect("metrics");
    assert_eq!(metrics.len(), 2, "{stats}");
    let (cpu, power) = (&metrics[0], &metrics[1]);
    assert_eq!((cpu["metric"].as_str(), cpu["unit"].as_str()), (Some("job/4711/cpu/usage"), Some("s/s")));
    close(&cpu["mean"], 3.0);
    close(&cpu["imbalance"], 0.0);
    assert_eq!((power["nodes"].as_u64(), power["max_node"].as_str()), (Some(2), Some("n2")));
    close(&power["node_means"]["mean"], 150.0);
    close(&power["imbalance"], 200.0 / 150.0 - 1.0);
    close(&power["coverage"], (1200.0 + 1130.0) / 2400.0);
    let (n1, n2) = (121.0, 121.0 - 6.0);
    let mean = (100.0 * n1 + 200.0 * n2) / (n1 + n2);
    close(&power["mean"], mean);
    close(&power["deviation"], ((n1 * (100.0 - mean).powi(2) + n2 * (200.0 - mean).powi(2)) / (n1 + n2)).sqrt());
    let nodes = stats["nodes"].as_array().expect("nodes");
    let of_n2 = nodes.iter().find(|row| row["node"] == "n2" && row["metric"] == "power").expect("a node");
    close(&of_n2["coverage"], 1130.0 / 1200.0);
    assert_eq!(of_n2["count"].as_f64(), Some(n2));
    let csv = site.answer(&["jobs", "stats", "4711", "power", "--format", "csv"]);
    assert!(csv.contains("\npower,W,n1,121,100,100,100,0,1,,,,\n") && csv.lines().count() == 4, "{csv}");
    assert!(site.answer(&["jobs", "stats", "4711", "power"]).contains("33.3%"));

    let energy = |more: &[&str]| json(&site.answer(&[&["jobs", "energy", "4711", "--format", "json"], more].concat()));
    let by_cores = energy(&[]);
    close(&by_cores["nodes"][0]["joules"], 100.0 * 1200.0);
    // Half of the energy after the other job started.
    close(&by_cores["nodes"][1]["joules"], 200.0 * (600.0 - 70.0) + 200.0 * 600.0 / 2.0);
    close(&by_cores["nodes"][1]["share"], 0.75);
    assert!(by_cores["nodes"][2]["joules"].is_null() && by_cores["nodes"][2]["problem"].is_string(), "{by_cores}");
    close(&by_cores["total"]["joules"], 120_000.0 + 106_000.0 + 60_000.0);
    close(&by_cores["total"]["coverage"], (1200.0 + 1130.0) / 3600.0);
    assert!(by_cores["rule"].as_str().is_some_and(|rule| rule.contains("cores")));
    close(&energy(&["--share", "all"])["nodes"][1]["joules"], 200.0 * 1130.0);
    // The increase of a counter belongs to the later reading (docs/sums.md), so that the 10 s before each job's first reading count.
    let (used, other) = (3.0 * (1200.0 - 70.0 + 10.0), 600.0 + 10.0);
    close(&energy(&["--share", "cpu-time"])["nodes"][1]["joules"], 200.0 * 1130.0 * used / (used + other));
    assert_eq!(site.run(&["jobs", "energy", "4711", "--meter", "nothing"]).status.code(), Some(1));
    assert_eq!(site.run(&["jobs", "energy", "4711", "--source", "facility"]).status.code(), Some(2));

    // Access by owner.
    let (anna, bert) = (client(&site, "anna", "user"), client(&site, "bert", "user"));
    wait_until("the server has read the tokens", || {
        [&anna, &bert].iter().all(|user| run_as(&site, user, &["sensors", "power"]).status.success())
    });
    for arguments in [
        &["query", "power", "--job", "4711"][..],
        &["sensors", "--job", "4711"],
        &["jobs", "stats", "4711", "power"],
        &["jobs", "energy", "4711"],
    ] {
        assert_eq!(run_as(&site, &anna, arguments).status.code(), Some(0), "{arguments:?}");
        let refused = run_as(&site, &bert, arguments);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("or it is not yours"), "{arguments:?}");
    }
    assert!(server.stop().success());
}

#[test]
fn energy_from_sensors_of_the_facility() {
    let site = Site::new();
    site.set("server/server.toml", "jobs", "power", "[\"nothing\"]");
    site.set("server/server.toml", "jobs", "facility_power", "[\"/site/hall/power\"]");
    site.set("server/server.toml", "jobs", "facility_nodes", "10");
    let mut server = site.start_server();
    let start_s = fill(&site);
    let times: Vec<i64> = (0..COUNT).map(|row| (start_s + row * INTERVAL_S) * SECOND).collect();
    let power = times.iter().map(|_| Some(2.0)).collect();
    Publisher::new(&site, "hall").send(
        "all",
        INTERVAL_S * SECOND,
        &times,
        vec![(SensorDef::gauge("power", "kW", ""), power)],
    );
    let energy = json(&site.answer(&["jobs", "energy", "4711", "--format", "json"]));
    assert_eq!(energy["source"], "facility", "{energy}");
    // 200 W for each node; half of the cores of the second node for half of the time.
    close(&energy["total"]["joules"], 200.0 * 1200.0 * 2.75);
    close(&energy["total"]["coverage"], 1.0);
    assert!(energy["rule"].as_str().is_some_and(|rule| rule.contains("10 nodes")), "{energy}");
    assert!(server.stop().success());
}
