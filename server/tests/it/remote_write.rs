//! Prometheus remote write with requests made from its specification: versions 1.0 and 2.0, partial writes, bounds, permissions.

use wholegrain_server::access::Role;

use crate::harness::{NOON, SECOND, TestServer};
use crate::protobuf::MessageBuilder;
use crate::security::token;

const PATH: &str = "/api/v1/write/prometheus";
const V1: &str = "application/x-protobuf";
const V2: &str = "application/x-protobuf;proto=io.prometheus.write.v2.Request";
const NOON_MS: i64 = NOON / 1_000_000;
/// The stale marker of Prometheus.
const STALE: u64 = 0x7ff0_0000_0000_0002;

fn message() -> MessageBuilder {
    MessageBuilder::default()
}

fn sample(time_ms: i64, value: f64) -> MessageBuilder {
    message().double(1, value).int(2, time_ms)
}

/// A series of version 1.0.
fn series(labels: &[(&str, &str)], samples: &[(i64, f64)]) -> MessageBuilder {
    let labelled = labels
        .iter()
        .fold(message(), |series, (name, value)| series.message(1, message().bytes(1, name).bytes(2, value)));
    samples.iter().fold(labelled, |series, (time, value)| series.message(2, sample(*time, *value)))
}

struct Answer {
    status: u16,
    samples: Option<String>,
    body: String,
}

fn post_as(server: &TestServer, kind: &str, message: &MessageBuilder, token: &str) -> Answer {
    let packed = snap::raw::Encoder::new().compress_vec(&message.0).unwrap();
    let headers = [("content-type", kind), ("content-encoding", "snappy")];
    let (status, headers, body) = server.post_bytes(PATH, &headers, &packed, token);
    let samples = headers.get("x-prometheus-remote-write-samples-written");
    let samples = samples.map(|count| count.to_str().unwrap().to_owned());
    Answer { status, samples, body: String::from_utf8(body).unwrap() }
}

fn post(server: &TestServer, kind: &str, message: &MessageBuilder) -> Answer {
    post_as(server, kind, message, &server.token)
}

/// Time in seconds after noon and value of each reading, a gap as `-`.
fn readings(server: &TestServer, path: &str) -> Vec<String> {
    let answer = server.get(&format!("/api/v1/query?pattern={path}&from=@{}&format=json", NOON / SECOND));
    let one = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let time = wholegrain_model::Timestamp::parse(row["time"].as_str().unwrap(), wholegrain_model::Timestamp(0));
        let value = row["value"].as_f64().map_or("-".to_owned(), |value| value.to_string());
        format!("{}={value}", (time.unwrap().0 - NOON) / SECOND)
    };
    answer.text().lines().map(one).collect()
}

fn sensor(server: &TestServer, path: &str) -> serde_json::Value {
    server.get(&format!("/api/v1/sensors?pattern={path}")).json()["sensors"][0].clone()
}

#[test]
fn samples_stale_markers_and_metadata_of_version_1() {
    let server = TestServer::start();
    let labels = [("__name__", "node_cpu_seconds_total"), ("instance", "n7:9100"), ("job", "node"), ("mode", "a/b")];
    let path = "/node/n7:9100/node_cpu_seconds_total/mode=a%252Fb";
    let stale = f64::from_bits(STALE);
    let request = message()
        .message(1, series(&labels, &[(NOON_MS, 1.5), (NOON_MS + 1000, stale), (NOON_MS + 2000, f64::NAN)]))
        .message(1, series(&[("__name__", "up"), ("job", "node"), ("instance", "n7:9100")], &[(NOON_MS, 1.0)]));
    let answer = post(&server, V1, &request);
    assert_eq!((answer.status, answer.samples.as_deref(), answer.body.as_str()), (204, Some("4"), ""));
    assert_eq!(readings(&server, path), ["0=1.5", "1=-", "2=-"]);
    assert_eq!(readings(&server, "/node/n7:9100/up"), ["0=1"]);
    assert_eq!(server.metric("wholegrain_server_remote_write_stale_total"), 1.0);
    // Without metadata the name decides; metadata comes later, by itself.
    assert_eq!((&sensor(&server, path)["unit"], &sensor(&server, path)["kind"]), (&"s".into(), &"counter".into()));
    assert_eq!(sensor(&server, "/node/n7:9100/up")["kind"], "gauge");
    let family =
        |kind, name: &str, help: &str, unit: &str| message().int(1, kind).bytes(2, name).bytes(4, help).bytes(5, unit);
    let metadata = message()
        .message(3, family(1, "node_cpu_seconds", "Time of the CPU.", ""))
        .message(3, family(1, "up", "", "things"));
    assert_eq!(post(&server, V1, &metadata).status, 204);
    // Out of order, a repetition and a later value: sensor and time identify a reading.
    let request = message()
        .message(1, series(&labels, &[(NOON_MS - 1000, 7.0), (NOON_MS + 3000, 2.5), (NOON_MS, 1.5)]))
        .message(1, series(&[("__name__", "up"), ("job", "node"), ("instance", "n7:9100")], &[(NOON_MS, 0.0)]));
    assert_eq!(post(&server, V1, &request).status, 204);
    assert_eq!(readings(&server, path), ["0=1.5", "1=-", "2=-", "3=2.5"]);
    assert_eq!(readings(&server, "/node/n7:9100/up"), ["0=0"]);
    let known = sensor(&server, path);
    assert_eq!((&known["description"], &known["kind"]), (&"Time of the CPU.".into(), &"counter".into()));
    let known = sensor(&server, "/node/n7:9100/up");
    assert_eq!((&known["unit"], &known["kind"]), (&"things".into(), &"counter".into()));
}

/// A request of version 2.0 with one series; its metadata are a counter in seconds.
fn v2(labels: &[&str], fields: impl Fn(MessageBuilder) -> MessageBuilder) -> MessageBuilder {
    let symbols = ["", "Calls.", "seconds"].iter().chain(labels);
    let request = symbols.fold(message(), |request, symbol| request.bytes(4, symbol));
    let references: Vec<u64> = (0..labels.len() as u64).map(|at| at + 3).collect();
    let series = message().packed(1, &references).message(5, message().int(1, 1).int(3, 1).int(4, 2)).int(6, NOON_MS);
    request.message(5, fields(series))
}

#[test]
fn version_2_and_its_headers() {
    let server = TestServer::start();
    let labels = ["__name__", "calls_total", "job", "j", "instance", "i"];
    let answer = post(&server, V2, &v2(&labels, |series| series.message(2, sample(NOON_MS, 4.0))));
    assert_eq!((answer.status, answer.samples.as_deref()), (204, Some("1")), "{}", answer.body);
    let known = sensor(&server, "/j/i/calls_total");
    assert_eq!(
        [&known["unit"], &known["kind"], &known["description"]],
        [&"s".into(), &"counter".into(), &serde_json::Value::from("Calls.")]
    );
    assert_eq!(readings(&server, "/j/i/calls_total"), ["0=4"]);
    // A native histogram is refused, counted and named; samples beside it are stored.
    let histogram = |series: MessageBuilder| series.message(2, sample(NOON_MS + 1000, 5.0)).message(3, message());
    let answer = post(&server, V2, &v2(&labels, histogram));
    assert_eq!((answer.status, answer.samples.as_deref()), (400, Some("1")));
    assert!(answer.body.contains("native histograms are not stored"), "{}", answer.body);
    assert_eq!(readings(&server, "/j/i/calls_total"), ["0=4", "1=5"]);
    assert_eq!(server.metric("wholegrain_server_remote_write_histograms_total"), 1.0);
}

#[test]
fn invalid_series_are_refused_and_the_others_stored() {
    let server = TestServer::start();
    let long = "x".repeat(129);
    let request = message()
        .message(1, series(&[("job", "j")], &[(NOON_MS, 1.0)]))
        .message(1, series(&[("__name__", "a"), ("job", "j"), ("instance", "i")], &[(NOON_MS, 1.0)]))
        .message(1, series(&[("__name__", "b"), ("job", &long), ("instance", "i")], &[(NOON_MS, 1.0)]));
    let answer = post(&server, V1, &request);
    assert_eq!((answer.status, answer.samples.as_deref()), (400, Some("1")));
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!([&body["series"][0]["series"], &body["series"][1]["series"]], [&1.into(), &serde_json::Value::from(3)]);
    assert!(answer.body.contains("no label __name__") && answer.body.contains("at most 128 allowed"), "{body}");
    assert_eq!(readings(&server, "/j/i/a"), ["0=1"]);
    assert_eq!(server.metric("wholegrain_server_remote_write_series_refused_total"), 2.0);
    // Nothing of a message that cannot be read is stored.
    let cut = message().message(1, series(&[("__name__", "c")], &[(NOON_MS, 1.0)])).bytes(1, [0x0a]);
    assert_eq!(post(&server, V1, &cut).status, 400);
    let far = message().message(1, series(&[("__name__", "c")], &[(i64::MAX, 1.0)]));
    assert_eq!(post(&server, V1, &far).status, 400);
    assert_eq!(server.newest("/prometheus/**"), []);
    // Other media types and codings, and a body that unpacks to more than is accepted.
    let post_raw = |kind: &str, coding: &str, body: &[u8]| {
        server.post_bytes(PATH, &[("content-type", kind), ("content-encoding", coding)], body, &server.token).0
    };
    assert_eq!(post_raw("application/json", "snappy", b""), 415);
    assert_eq!(post_raw("application/x-protobuf;proto=x", "snappy", b""), 415);
    assert_eq!(post_raw(V1, "gzip", b""), 415);
    assert_eq!(post_raw(V1, "snappy", b"\xff"), 400);
    let bomb = snap::raw::Encoder::new().compress_vec(&vec![0; (32 << 20) + 1]).unwrap();
    assert_eq!(post_raw(V1, "snappy", &bomb), 413);
    let most: Vec<u8> = [0x0a, 0x00].repeat(100_001);
    assert_eq!(post(&server, V1, &MessageBuilder(most)).status, 400);
}

#[test]
fn a_token_writes_where_a_client_with_its_name_may_publish() {
    let server = TestServer::start_with("[mqtt.readings]\nsensors_per_hour_max = 3\n");
    let (_, gateway) = token(&server, "n5", Role::Agent, None);
    let (_, reader) = token(&server, "reader", Role::User, None);
    let one = |name: &str, instance: &str| {
        let labels = [("__name__", name), ("job", "j"), ("instance", instance)];
        message().message(1, series(&labels, &[(NOON_MS, 1.0)]))
    };
    assert_eq!(post_as(&server, V1, &one("a", "n5"), &gateway).status, 204);
    let answer = post_as(&server, V1, &one("a", "n6"), &gateway);
    assert!(answer.status == 400 && answer.body.contains("neither below its own name nor granted"), "{}", answer.body);
    assert_eq!(post_as(&server, V1, &one("a", "n5"), &reader).status, 403);
    assert_eq!(post_as(&server, V1, &one("a", "n5"), "nothing").status, 401);
    assert_eq!(readings(&server, "/j/**"), ["0=1"]);
    // New sensors and changes of known ones are bounded by the hour; readings of known sensors are not.
    let metadata = |help: &str| message().message(3, message().int(1, 2).bytes(2, "a").bytes(4, help));
    for (help, expected) in [("one", "one"), ("two", "two"), ("three", "two")] {
        assert_eq!(post_as(&server, V1, &metadata(help), &gateway).status, 204);
        assert_eq!(post_as(&server, V1, &one("a", "n5"), &gateway).status, 204);
        assert_eq!(sensor(&server, "/j/n5/a")["description"], expected);
    }
    let answer = post_as(&server, V1, &one("b", "n5"), &gateway);
    assert!(answer.status == 400 && answer.body.contains("sensors_per_hour_max"), "{}", answer.body);
}
