//! A server that is killed while it uploads: after its start every reading is there, once.

use std::time::Duration;

use wholegrain_model::SensorDef;
use wholegrain_testing::Random;
use wholegrain_testing::publisher::Publisher;

use crate::{START, keyspace, node, site, wait_for_server};

const ROUNDS: i64 = 5;
const BATCHES: i64 = 8;
const SENSORS: i64 = 40;
const READINGS: i64 = 20;
/// The latest moment of the kill after the last acknowledgement.
const KILL_WITHIN_MS: u64 = 600;

#[test]
fn a_server_killed_during_uploads_loses_nothing() {
    let mut random = Random::seeded();
    keyspace("crash");
    let site = site(&node().cluster.contact_points(), "crash", "a");
    let mut sent = (0_i64, 0_i64);
    for round in 0..ROUNDS {
        // Started again at once after the kill: its own name is not refused.
        let mut server = site.start_server();
        let mut publisher = Publisher::new(&site, &format!("n{round}"));
        for batch in 0..BATCHES {
            let first = START + batch * READINGS;
            let times: Vec<i64> = (first..first + READINGS).map(|second| second * 1_000_000_000).collect();
            let values = |sensor: i64| (0..READINGS).map(|at| Some((sensor + batch * at) as f64)).collect::<Vec<_>>();
            let sensors = (0..SENSORS).map(|sensor| (SensorDef::gauge(format!("s{sensor}"), "W", ""), values(sensor)));
            publisher.send("load", 1_000_000_000, &times, sensors.collect());
            sent.0 += SENSORS * READINGS;
            sent.1 += (0..SENSORS).flat_map(|sensor| (0..READINGS).map(move |at| sensor + batch * at)).sum::<i64>();
        }
        std::thread::sleep(Duration::from_millis(random.below(KILL_WITHIN_MS)));
        server.kill();
    }
    let _server = site.start_server();
    wait_for_server(&site);
    for (aggregate, expected) in [("count", sent.0), ("sum", sent.1)] {
        let range = ["--from", "2026-05-28T00:00:00Z", "--to", "2026-05-29T00:00:00Z"];
        let how = ["--agg", aggregate, "--across", "sum", "--format", "csv"];
        let answer = site.answer(&[&["query", "/site/*/*"][..], &range, &how].concat());
        // sensor, time, value, unit
        let found = answer.trim().rsplit(',').nth(1).and_then(|text| text.parse().ok());
        assert_eq!(found, Some(expected as f64), "{aggregate}: {answer}");
    }
}
