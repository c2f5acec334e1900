//! Rows of tables: found while the source runs, bounded, with names of their own.

use wholegrain_testkit::wait_until;

use super::stub::{StubAnswer, StubServer};
use super::{config, started};

const TABLE: &str = r#"
table = [{ name = "pump", rows = "$.halls[*].pumps[*]", index = ["../../name", "id"], column = [{ name = "rpm", path = "rpm", unit = "/min" }, { name = "on", path = "on" }] }]
"#;

fn page(pumps: &str) -> StubAnswer {
    StubAnswer::text(&format!("{{\"halls\": [{{\"name\": \"hall A\", \"pumps\": [{pumps}]}}]}}"))
}

#[test]
fn rows_are_named_by_members_and_found_at_run_time() {
    let server = StubServer::new(page(r#"{"id": 1, "rpm": "900", "on": true}"#));
    let mut running = started(&config(&server, "", TABLE));
    let values = running.answer("d/u", |values| values["d/pump/hall_A/1/rpm"] == Some(900.0));
    assert_eq!((values["d/pump/hall_A/1/on"], values["d/rest/u/left_out"]), (Some(1.0), Some(0.0)));
    // Another order, and a new row.
    server.set(page(r#"{"id": 2, "rpm": 800, "on": false}, {"id": 1, "rpm": 901, "on": true}"#));
    let values = running.answer("d/u", |values| values.get("d/pump/hall_A/2/rpm") == Some(&Some(800.0)));
    assert_eq!((values["d/pump/hall_A/1/rpm"], values["d/pump/hall_A/2/on"]), (Some(901.0), Some(0.0)));
    // A row that has gone is a gap, and may come back.
    server.set(page(r#"{"id": 2, "rpm": 801, "on": false}"#));
    let values = running.answer("d/u", |values| values["d/pump/hall_A/2/rpm"] == Some(801.0));
    assert_eq!(values["d/pump/hall_A/1/rpm"], None);
    running.wait_for_note("d/pump/hall_A/1/rpm has no row in the answer");
    server.set(page(r#"{"id": 1, "rpm": 902, "on": true}"#));
    running.answer("d/u", |values| values["d/pump/hall_A/1/rpm"] == Some(902.0));
}

#[test]
fn rows_with_one_name_without_a_name_and_with_a_wrong_one() {
    let long = "x".repeat(200);
    let pumps = format!(
        r#"{{"id": 1, "rpm": 1}}, {{"id": "1", "rpm": 2}}, {{"rpm": 3}}, {{"id": null, "rpm": 4}}, {{"id": "a/b\n*", "rpm": 5}}, {{"id": "{long}", "rpm": 6}}"#
    );
    let server = StubServer::new(page(&pumps));
    let mut running = started(&config(&server, "", TABLE));
    let values = running.answer("d/u", |values| values["d/pump/hall_A/a_b__/rpm"] == Some(5.0));
    assert_eq!(values["d/pump/hall_A/1/rpm"], None, "nobody knows which one it is");
    assert_eq!(values["d/rest/u/left_out"], Some(2.0), "those without a name");
    assert_eq!(values[&format!("d/pump/hall_A/{}/rpm", &long[..128])], Some(6.0));
    running.wait_for_note("d/pump/hall_A/1/rpm has several rows with its name");
    running.wait_for_note("table \"pump\": 2 rows have nothing at `index`");
}

#[test]
fn the_number_of_sensors_is_bounded_and_what_is_left_out_is_counted() {
    let pumps = |from: usize, count: usize| {
        let pumps = (from..from + count).map(|id| format!(r#"{{"id": {id}, "rpm": {id}, "on": true}}"#));
        page(&pumps.collect::<Vec<_>>().join(","))
    };
    let server = StubServer::new(pumps(0, 100));
    let mut running = started(&config(&server, "", &format!("series_max = 21\n{TABLE}")));
    let values = running.answer("d/u", |_| true);
    assert_eq!(values.len(), 20 + 3, "10 rows of 2 columns; an 11th would have half a row");
    assert_eq!(values["d/rest/u/left_out"], Some(90.0));
    running.wait_for_note("more than series_max = 21 sensors");
    // Others in their place: the known ones are gaps, nothing grows.
    server.set(pumps(500, 100));
    let values = running.answer("d/u", |values| values["d/rest/u/left_out"] == Some(100.0));
    assert_eq!(values.len(), 20 + 3);
    let requests = server.requests();
    wait_until("more polls", || server.requests() > requests + 10);
    running.discover();
    assert_eq!(running.count_notes("more than series_max"), 1, "{:?}", running.notes);
}

#[test]
fn keys_of_objects_name_rows_and_rows_have_times() {
    let now = wholegrain_devices::system_time() / 1_000_000_000;
    let server = StubServer::new(StubAnswer::text(&format!(
        "{{\"sensors\": {{\"t 1\": {{\"v\": 1, \"at\": {now}}}, \"t2\": {{\"v\": 2, \"at\": {}}}, \"t3\": {{\"v\": 3}}, \"t4\": {{\"v\": 4, \"at\": {}}}}}}}",
        now - 4000,
        now + 4000
    )));
    let keys =
        "table = [{ name = \"\", rows = \"$.sensors.*\", time = \"at\", column = [{ name = \"v\", path = \"v\" }] }]";
    let mut running = started(&config(&server, "", keys).replace("\"1s\"", "\"1000s\""));
    let values = running.answer("d/u", |values| values["d/t_1/v"] == Some(1.0));
    assert_eq!((values["d/t2/v"], values["d/t3/v"], values["d/t4/v"]), (None, None, None));
    running.wait_for_note("d/t2/v is older than stale_after; d/t3/v has a time that cannot be read; d/t4/v has a time that cannot be read");
}

#[test]
fn rows_cannot_take_names_of_other_sensors() {
    let server =
        StubServer::new(StubAnswer::text("{\"a\": {\"v\": 7}, \"b\": {\"v\": 8}, \"rest\": {\"u/duration\": 1}}"));
    let keys = "value = [{ name = \"a/v\", path = \"$.a.v\", scale = 2.0 }]\ntable = [{ name = \"\", rows = \"$.*\", column = [{ name = \"v\", path = \"v\" }] }]";
    let mut running = started(&config(&server, "", keys));
    let values = running.answer("d/u", |values| values["d/a/v"] == Some(7.0));
    assert_eq!((values["d/b/v"], values["d/rest/u/left_out"]), (Some(8.0), Some(1.0)));
    running.wait_for_note("the row \"a\" is left out");
    assert_eq!(
        running
            .group("d/u")
            .sensors
            .iter()
            .filter(|sensor| sensor.name == "d/a/v")
            .map(|sensor| sensor.scale)
            .collect::<Vec<_>>(),
        [2.0]
    );
}
