//! The agent under faults: no server for longer than its memory lasts, a server killed with many batches in flight, SIGKILL, a full disk under the
//! spool.

use wholegrain_testing::probe::{CounterSample, INTERVAL_MS, Probe, assert_unbroken, folder_bytes, now_ns};
use wholegrain_testing::{Site, wait_until};

#[test]
fn a_server_away_for_longer_than_memory_gets_everything_in_order() {
    // 64 KiB hold much less than the samples taken while the server is away.
    let site = Site::new();
    let probe = Probe::new(&site, "probe", "probe-spool", "64KiB");
    let mut server = site.start_server();
    let mut agent = probe.start();
    wait_until("first readings", || !probe.stored().is_empty());
    server.kill();
    let left = now_ns();
    wait_until("the spool holds more than the memory", || folder_bytes(&site.path("probe-spool")) > 128 << 10);
    let mut server = site.start_server();
    let back = now_ns();
    // Live readings must not wait for the spool; then the hole must close.
    wait_until("live readings", || probe.has_later_than(back));
    wait_until("the hole closes", || {
        let rows = probe.stored();
        rows.iter().filter(|(time, _)| (left..back).contains(time)).count() as i64
            >= (back - left) / (INTERVAL_MS * 1_000_000) / 2
            && rows.windows(2).all(|pair| pair[1].1 == pair[0].1 + 1)
    });
    let rows = probe.stored();
    assert_unbroken(&rows);
    assert!(rows.first().is_some_and(|(time, _)| *time < left) && rows.last().is_some_and(|(time, _)| *time > back));
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn an_agent_killed_loses_at_most_what_the_spool_had_not_written() {
    let site = Site::new();
    let probe = Probe::new(&site, "probe", "probe-spool", "4MiB");
    let mut server = site.start_server();
    let mut agent = probe.start();
    wait_until("first readings", || !probe.stored().is_empty());
    server.kill();
    wait_until("the spool is written", || folder_bytes(&site.path("probe-spool")) > 64 << 10);
    agent.kill();
    let killed = now_ns();
    let mut server = site.start_server();
    let mut agent = probe.start();
    wait_until("readings of the new agent", || probe.has_later_than(killed));
    // A new process counts from the start: everything before its first value is from the old one.
    let old = |rows: &[CounterSample]| rows.iter().copied().filter(|(time, _)| *time < killed).collect::<Vec<_>>();
    // send_interval + spool.after + spool.flush_every are 0.8 s; the rest is a margin for busy machines.
    let bound_ns = 3_000_000_000;
    wait_until("the spool arrives", || old(&probe.stored()).last().is_some_and(|(time, _)| killed - time < bound_ns));
    assert_unbroken(&old(&probe.stored()));
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn a_full_disk_under_the_spool_drops_and_counts_and_harms_nothing_else() {
    let site = Site::new();
    let probe = Probe::new(&site, "probe", "full", "64KiB");
    let mut agent = probe.start_on_small_disk("128k", "full");
    wait_until("drops are counted", || {
        assert!(agent.runs(), "the agent ended: {}", agent.log());
        probe.status()["dropped_batches"].as_u64().is_some_and(|count| count > 10)
    });
    let log = agent.log();
    assert!(log.contains("no space left"), "the log names the cause: {log}");
    assert!(log.lines().count() < 200, "at a bounded rate: {} lines", log.lines().count());
    // Sampling continues, and a later server gets the spooled and all new batches.
    let mut server = site.start_server();
    let back = now_ns();
    wait_until("readings after the server's return", || probe.has_later_than(back));
    // Until it was connected again, which can take seconds, the agent went on to drop what is oldest.
    let connected = now_ns();
    wait_until("a second of live readings", || probe.has_later_than(connected + 1_000_000_000));
    let live: Vec<_> = probe.stored().into_iter().filter(|(time, _)| *time > connected).collect();
    assert_unbroken(&live);
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn a_server_killed_with_a_full_window_gets_everything_once() {
    let site = Site::new();
    let probe = Probe::new(&site, "probe", "probe-spool", "16MiB");
    let mut agent = probe.start();
    let waiting = || {
        let status = probe.status();
        let count = |name: &str| status[name].as_u64().unwrap_or(0);
        count("batches").saturating_sub(count("acknowledged"))
    };
    for round in 0..5 {
        let mut server = site.start_server();
        wait_until("readings arrive", || !probe.stored().is_empty());
        // A stopped server receives and acknowledges nothing: the agent's window fills.
        server.signal(libc::SIGSTOP);
        wait_until("the window fills", || waiting() >= 20);
        println!("round {round}: killed with {} batches sent and not acknowledged", waiting());
        server.kill();
    }
    let mut server = site.start_server();
    let back = now_ns();
    wait_until("live readings and an empty spool", || {
        probe.has_later_than(back) && probe.status()["spool_bytes"].as_u64() == Some(0) && waiting() < 20
    });
    assert_unbroken(&probe.stored());
    assert_eq!(probe.status()["dropped_batches"], 0);
    assert!(agent.stop().success() && server.stop().success());
}

/// A group with more new sensors than the server allows an agent in an hour: the other groups are sent, and it is sent when the quota allows it.
fn a_refused_group_silences_no_other(version: &str) {
    let site = Site::new();
    site.set("server/server.toml", "mqtt.limits", "schema_sensors_per_hour_max", "400");
    let probe = Probe::new(&site, "probe", "probe-spool", "256KiB");
    let file = site.path("probe.toml");
    let text = std::fs::read_to_string(&file).expect("the probe's configuration");
    let text = text.replace("[spool]", &format!("version = \"{version}\"\n[spool]"));
    std::fs::write(&file, text + "[sources.procfs]\ngroups = [\"meminfo\"]\ninterval = \"100ms\"\n")
        .expect("a writable file");
    let mut server = site.start_server();
    let mut agent = probe.start();
    let newest = || {
        let found = site.api("/api/v1/newest?pattern=/**/MemFree");
        found.and_then(|found| found["readings"][0]["time"].as_str().map(str::to_owned))
    };
    wait_until("the group that is refused is named", || {
        assert!(agent.runs(), "the agent ended: {}", agent.log());
        agent.log().contains("refuses the schema of group tester")
    });
    wait_until("readings of the other group", || newest().is_some());
    for _ in 0..5 {
        let before = newest();
        wait_until("later readings of the other group", || newest() > before);
    }
    assert!(probe.stored().is_empty(), "the quota holds");
    assert_eq!(agent.log().matches("refuses the schema of group").count(), 1, "named once: {}", agent.log());
    site.set("server/server.toml", "mqtt.limits", "schema_sensors_per_hour_max", "100000");
    server.signal(libc::SIGHUP);
    wait_until("the refused group is sent", || !probe.stored().is_empty());
    assert!(agent.log().contains("accepts the schema of group tester now"), "{}", agent.log());
    let back = now_ns();
    wait_until("live readings and an empty spool", || {
        probe.has_later_than(back) && probe.status()["spool_bytes"].as_u64() == Some(0)
    });
    let rows = probe.stored();
    assert_unbroken(&rows);
    assert_eq!(rows.first().map(|row| row.1), Some(0), "also what was sampled while it was refused");
    assert_eq!(probe.status()["dropped_batches"], 0);
    assert!(agent.stop().success() && server.stop().success());
}

#[test]
fn a_refused_group_silences_no_other_with_mqtt_5() {
    a_refused_group_silences_no_other("5");
}

#[test]
fn a_refused_group_silences_no_other_with_mqtt_3_1_1() {
    a_refused_group_silences_no_other("3.1.1");
}
