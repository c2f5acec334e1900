//! Values of JSON, CSV and XML, and why some are gaps.

use wholegrain_devices::OLD_TIME;
use wholegrain_model::{Kind, ValueType};
use wholegrain_sources::ReadProblem;
use wholegrain_testkit::{wait_for, wait_until};

use super::stub::{StubAnswer, StubServer};
use super::{config, started};

const KEYS: &str = r#"
value = [
    { name = "a", path = "$.a" },
    { name = "mode", path = "$.mode", states = { off = 0, on = 1 } },
    { name = "starts", path = "$.starts", kind = "counter", type = "int" },
    { name = "energy", path = "$.e", unit = "kW.h", scale = 0.1, kind = "counter", description = "Energy." },
    { name = "fahrenheit", path = "$.f", unit = "Cel", scale = 0.5555555555555556, offset = -17.77777777777778, min = -40, max = 400, absent = [-999, "---"] },
]
"#;

const PAGE: &str = r#"{"a": 3, "mode": "on", "starts": 9007199254740993, "e": 125, "f": 212}"#;

#[test]
fn values_of_json_with_units_kinds_and_types() {
    let server = StubServer::new(StubAnswer::text(PAGE));
    let mut running = started(&config(&server, "", KEYS));
    let values = running.answer("d/u", |values| values["d/a"] == Some(3.0));
    assert_eq!((values["d/mode"], values["d/energy"]), (Some(1.0), Some(125.0)));
    assert!((values["d/fahrenheit"].unwrap() - 100.0).abs() < 1e-9, "{values:?}");
    assert!(values["d/rest/u/duration"].is_some_and(|duration| duration > 0.0));
    assert_eq!(running.bits("d/u", "d/starts"), 9_007_199_254_740_993, "more than a float can hold");
    let group = running.group("d/u");
    let sensor = |name: &str| group.sensors.iter().find(|sensor| sensor.name == name).unwrap();
    let energy = sensor("d/energy");
    assert_eq!(
        (energy.unit.as_str(), energy.scale, energy.kind, energy.description.as_str()),
        ("kW.h", 0.1, Kind::Counter, "Energy.")
    );
    assert_eq!((sensor("d/starts").value_type, sensor("d/a").value_type), (ValueType::Int, ValueType::Float));
    // An integer that becomes a fraction is the same sensor.
    server.set(StubAnswer::text(&PAGE.replace("\"a\": 3", "\"a\": 3.5")));
    running.answer("d/u", |values| values["d/a"] == Some(3.5));
    assert!(server.last().to_lowercase().contains("accept: application/json"), "{}", server.last());
}

#[test]
fn each_wrong_value_is_a_gap_of_its_own_and_named_once() {
    let server = StubServer::new(StubAnswer::text(PAGE));
    let mut running = started(&config(&server, "", KEYS));
    for (page, sensor, note) in [
        (PAGE.replace("\"a\": 3", "\"b\": 3"), "d/a", Some("d/a is missing")),
        (PAGE.replace("\"a\": 3", "\"a\": null"), "d/a", Some("d/a is null")),
        (PAGE.replace("\"a\": 3", "\"a\": NaN"), "d/a", Some("d/a is null")),
        (PAGE.replace("\"a\": 3", "\"a\": \"NaN\""), "d/a", Some("d/a is not finite")),
        (PAGE.replace("\"a\": 3", "\"a\": [1]"), "d/a", Some("d/a is a list or an object")),
        (PAGE.replace("\"a\": 3", "\"a\": \"warm\""), "d/a", Some("d/a is a text that is no number")),
        (PAGE.replace("\"on\"", "\"half\""), "d/mode", Some("d/mode has a state that is not in `states`")),
        (PAGE.replace("212", "401"), "d/fahrenheit", Some("d/fahrenheit is out of range")),
        (PAGE.replace("212", "-999"), "d/fahrenheit", None),
        (PAGE.replace("212", "\"---\""), "d/fahrenheit", None),
        (PAGE.replace("9007199254740993", "1.5"), "d/starts", Some("d/starts is no integer")),
        (PAGE.replace("9007199254740993", "1e300"), "d/starts", Some("d/starts is out of range")),
    ] {
        server.set(StubAnswer::text(PAGE));
        running.answer("d/u", |values| {
            values["d/rest/u/gaps"] == Some(0.0) && values["d/a"] == Some(3.0) && values["d/fahrenheit"].is_some()
        });
        server.set(StubAnswer::text(&page));
        let values = running.answer("d/u", |values| values[sensor].is_none());
        let others = values.iter().filter(|(name, value)| *name != sensor && value.is_none()).count();
        assert_eq!(
            (others, values["d/rest/u/gaps"]),
            (0, Some(f64::from(u8::from(note.is_some())))),
            "{page}: {values:?}"
        );
        if let Some(note) = note {
            running.wait_for_note(note);
        }
    }
    // Some polls later it is still one note.
    server.set(StubAnswer::text(&PAGE.replace("\"a\": 3", "\"b\": 3")));
    running.notes.clear();
    running.wait_for_note("d/a is missing");
    let requests = server.requests();
    wait_until("more polls", || server.requests() > requests + 10);
    running.discover();
    assert_eq!(running.count_notes("d/a is missing"), 1, "{:?}", running.notes);
}

#[test]
fn values_of_csv_by_column_and_row() {
    let server = StubServer::new(StubAnswer::Page(
        200,
        "Content-Type: text/csv\r\n",
        b"# station\nsite;T \xb0C;wind\nnorth;12,5;3\nsouth;-1,25;\n".to_vec(),
    ));
    let keys = r#"
format = "csv"
csv = { delimiter = ";", decimal = ",", skip = 1 }
value = [
    { name = "last", path = "$[-1]['T °C']", unit = "Cel" },
    { name = "north", path = "$[?@.site=='north'].wind", unit = "m/s" },
    { name = "empty", path = "$[1].wind" },
    { name = "none", path = "$[?@.site=='east'].wind" },
]
table = [{ name = "site", rows = "$[*]", index = "site", column = [{ name = "t", path = "['T °C']", unit = "Cel" }] }]
"#;
    let mut running = started(&config(&server, "", keys));
    let values = running.answer("d/u", |values| values.get("d/site/south/t") == Some(&Some(-1.25)));
    assert_eq!(values["d/site/north/t"], Some(12.5));
    assert_eq!(
        (values["d/last"], values["d/north"], values["d/empty"], values["d/none"]),
        (Some(-1.25), Some(3.0), None, None)
    );
    running.wait_for_note("d/empty is null; d/none is missing");
}

#[test]
fn values_of_xml() {
    let page = "<?xml version=\"1.0\"?><ups><state source=\"battery\"/><battery><charge> 97.5</charge></battery>\
                <output><phase id=\"L1\"><voltage>230</voltage></phase><phase id=\"L2\"><voltage>x</voltage></phase></output></ups>";
    let server = StubServer::new(StubAnswer::text(page));
    let keys = r#"
format = "xml"
value = [
    { name = "charge", path = "/ups/battery/charge", unit = "%" },
    { name = "on_battery", path = "/ups/state/@source", states = { mains = 0, battery = 1 } },
    { name = "voltage", path = "//voltage" },
]
table = [{ name = "phase", rows = "/ups/output/phase", index = "@id", column = [{ name = "voltage", path = "voltage", unit = "V" }] }]
"#;
    let mut running = started(&config(&server, "", keys));
    let values = running.answer("d/u", |values| values.get("d/phase/L1/voltage") == Some(&Some(230.0)));
    assert_eq!((values["d/charge"], values["d/on_battery"]), (Some(97.5), Some(1.0)));
    assert_eq!((values["d/phase/L2/voltage"], values["d/voltage"]), (None, None));
    running.wait_for_note("d/voltage is there several times");
    server.set(StubAnswer::text(&format!("<!DOCTYPE ups [<!ENTITY a \"b\">]>{}", &page[21..])));
    running.wait_for_gaps("d/u", ReadProblem::Os { what: "no XML", errno: libc::EBADMSG });
    running.wait_for_note("the answer is no XML: ");
}

#[test]
fn the_own_time_of_an_answer_decides() {
    let now = || wholegrain_devices::system_time();
    let page = |time: String, a: i64| StubAnswer::text(&format!("{{\"t\": {time}, \"a\": {a}}}"));
    let keys = "time = \"$.t\"\nvalue = [{ name = \"a\", path = \"$.a\" }]";
    let first = now() - 300_000_000;
    let server = StubServer::new(page(first.to_string(), 1));
    let mut running = started(&config(&server, "", keys).replace("\"1s\"", "\"3s\""));
    let (taken_at, _) = running.answer_at("d/u", |values| values["d/a"] == Some(1.0));
    assert_eq!(taken_at, first);
    // The same time again: no newer values, though the text says so.
    server.set(page(first.to_string(), 2));
    let requests = server.requests();
    wait_until("more polls", || server.requests() > requests + 10);
    let (reading, values) = running.read("d/u");
    assert!(reading.taken_at.is_none() && values["d/a"].is_none(), "{values:?}");
    let ms = now() / 1_000_000;
    server.set(page(ms.to_string(), 3));
    let (taken_at, _) = running.answer_at("d/u", |values| values["d/a"] == Some(3.0));
    assert_eq!(taken_at, ms * 1_000_000);
    for (time, what) in [
        ("\"2001-01-01T00:00:00Z\"".to_owned(), OLD_TIME),
        ((now() + 3_600_000_000_000).to_string(), "a time in the future: its clock is wrong"),
        ("\"soon\"".to_owned(), "an answer without a time at `time`"),
        // Of now at first: a time that never changes.
        (now().to_string(), OLD_TIME),
    ] {
        server.set(page(time, 4));
        let gap = wait_for("a gap", || {
            let (reading, values) = running.read("d/u");
            let is_gap = !reading.unchanged
                && values["d/a"].is_none()
                && reading.problem == Some(ReadProblem::Message { text: what });
            is_gap.then_some(reading.taken_at)
        });
        // The next value of a device whose time stays can have any later time: it must not be before the gap.
        assert_eq!(gap.is_some(), what == OLD_TIME);
        server.set(page(now().to_string(), 5));
        running.answer("d/u", |values| values["d/a"] == Some(5.0));
    }
}

#[test]
fn several_addresses_with_bodies_and_headers() {
    let server = StubServer::new(StubAnswer::text("{\"a\": 1}"));
    let keys = "value = [{ name = \"a\", path = \"$.a\" }]\n[[plugins.rest.device.url]]\nname = \"rpc\"\nuri = \"/rpc\"\ninterval = \"80ms\"\n\
                body = { method = \"get\", params = [\"x\"] }\nheaders = { X-Version = \"2\" }\nvalue = [{ name = \"b\", path = \"$.a\" }]";
    let mut running = started(&config(&server, "", keys));
    running.answer("d/rpc", |values| values["d/b"] == Some(1.0));
    running.answer("d/u", |values| values["d/a"] == Some(1.0));
    wait_until("a POST", || server.last().starts_with("POST"));
    server.set_at("/x", StubAnswer::Page(404, "", Vec::new()));
    running.wait_for_note("HTTP 404: there is no such page");
    let last = server.last().to_lowercase();
    assert!(last.starts_with("post /rpc ") || last.starts_with("get /x "), "{last}");
    wait_until("the POST again", || server.last().starts_with("POST"));
    let last = server.last();
    assert!(
        last.ends_with("\r\n\r\n{\"method\":\"get\",\"params\":[\"x\"]}")
            && last.to_lowercase().contains("x-version: 2"),
        "{last}"
    );
    // One address fails: the other one goes on, and the fault is named once.
    server.set_at("/rpc", StubAnswer::text("{\"a\": 2}"));
    running.answer("d/rpc", |values| values["d/b"] == Some(2.0));
    let requests = server.requests();
    wait_until("more polls", || server.requests() > requests + 20);
    running.discover();
    assert_eq!(running.count_notes("HTTP 404"), 1, "{:?}", running.notes);
}
