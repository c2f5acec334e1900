//! Numbers of all inputs: decimals after integers, integers that a float cannot represent; series that would be one sensor, and bounds of requests.

use std::io::Write;

use wholegrain_model::Timestamp;
use wholegrain_transport::mqtt::Version;

use crate::harness::{NOON, SECOND, TestServer, wait_until};
use crate::protobuf::MessageBuilder;

const OTLP: &str = "/v1/metrics";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// Time in s after noon and value of each reading of one sensor, a gap as `-`; `more` are further parameters.
fn rows(server: &TestServer, path: &str, more: &str) -> Vec<String> {
    let answer = server.get(&format!("/api/v1/query?pattern={path}&from=@{}&format=json{more}", NOON / SECOND));
    let one = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let time = Timestamp::parse(row["time"].as_str().unwrap(), Timestamp(0)).unwrap();
        let value = if row["value"].is_null() { "-".to_owned() } else { row["value"].to_string() };
        format!("{}={value}", (time.0 - NOON) / SECOND)
    };
    answer.text().lines().map(one).collect()
}

fn influx(server: &TestServer, lines: &str) {
    let (status, body) = server.post("/api/v1/write/influx?precision=s", lines);
    assert_eq!(status, 204, "{body}");
}

/// A request of OTLP in JSON with one cumulative counter, whose points are given.
fn counter(points: &str) -> String {
    format!(
        r#"{{"resourceMetrics":[{{"resource":{{"attributes":[{{"key":"service.name","value":{{"stringValue":"s"}}}}]}},
            "scopeMetrics":[{{"metrics":[{{"name":"m","unit":"J","sum":{{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[{points}]}}}}]}}]}}]}}"#
    )
}

fn point(seconds: i64, value: &str) -> String {
    format!(r#"{{"timeUnixNano":"{}",{value}}}"#, NOON + seconds * SECOND)
}

fn otlp(server: &TestServer, body: &str) -> (u16, serde_json::Value) {
    let (status, headers, body) = server.post_bytes(OTLP, &JSON, body.as_bytes(), &server.token);
    assert_eq!(headers.get("content-type").unwrap(), "application/json");
    (status, serde_json::from_slice(&body).unwrap())
}

#[test]
fn a_decimal_after_integers_is_no_gap() {
    let server = TestServer::start();
    let s = NOON / SECOND;
    // In one request, and in requests of their own.
    influx(&server, &format!("a,host=n v=3i {s}\na,host=n v=3.5 {}", s + 1));
    assert_eq!(rows(&server, "/n/a/v", ""), ["0=3.0", "1=3.5"]);
    influx(&server, &format!("b,host=n v=3i {s}"));
    assert_eq!(rows(&server, "/n/b/v", ""), ["0=3"]);
    influx(&server, &format!("b,host=n v=3.5 {}\nb,host=n v=4i {}", s + 1, s + 2));
    assert_eq!(rows(&server, "/n/b/v", ""), ["0=3.0", "1=3.5", "2=4.0"]);
    assert_eq!(rows(&server, "/n/b/v", "&agg=max"), ["0=4.0"]);
    assert_eq!(rows(&server, "/n/b/v", "&agg=sum"), ["0=10.5"]);

    for (seconds, value) in [(0, r#""asInt":"3""#), (1, r#""asDouble":3.5"#), (2, r#""asInt":"5""#)] {
        assert_eq!(otlp(&server, &counter(&point(seconds, value))), (200, serde_json::json!({})));
    }
    assert_eq!(rows(&server, "/s/m", ""), ["0=3.0", "1=3.5", "2=5.0"]);
    assert_eq!(rows(&server, "/s/m", "&op=delta"), ["0=-", "1=0.5", "2=1.5"]);

    for version in [Version::V311, Version::V5] {
        let path = format!("/n1/{version:?}");
        let mut client = server.agent(&server.plain(version));
        for (seconds, value) in [(0, "3"), (1, "3.5"), (2, "4"), (3, "4.25")] {
            let id = client.publish(&path, format!("{value};{}", s + seconds).as_bytes());
            client.acked(&[id]);
        }
        assert_eq!(rows(&server, &path, ""), ["0=3.0", "1=3.5", "2=4.0", "3=4.25"]);
    }
    // Sensors that only ever had integers still have them.
    influx(&server, &format!("c,host=n v=9007199254740993i {s}\nc,host=n v=9223372036854775807i {}", s + 1));
    assert_eq!(rows(&server, "/n/c/v", ""), ["0=9007199254740993", "1=9223372036854775807"]);
    let big =
        counter(&[point(10, r#""asInt":"9007199254740993""#), point(11, r#""asInt":9007199254740995"#)].join(","));
    assert_eq!(otlp(&server, &big.replace("\"name\":\"m\"", "\"name\":\"big\"")).0, 200);
    assert_eq!(rows(&server, "/s/big", ""), ["10=9007199254740993", "11=9007199254740995"]);
    assert_eq!(rows(&server, "/s/big", "&op=delta"), ["10=-", "11=2.0"]);
}

#[test]
fn opentelemetry_in_json() {
    let server = TestServer::start();
    let delta =
        counter(&point(0, r#""asInt":"3""#)).replace("\"aggregationTemporality\":2", "\"aggregationTemporality\":1");
    let (status, answer) = otlp(&server, &delta);
    assert_eq!((status, &answer["partialSuccess"]["rejectedDataPoints"]), (200, &"1".into()), "{answer}");
    assert!(answer["partialSuccess"]["errorMessage"].as_str().unwrap().contains("TEMPORALITY_PREFERENCE=cumulative"));
    assert_eq!(server.metric("wholegrain_server_otlp_points_refused_total"), 1.0);
    let (status, answer) = otlp(&server, "{\"resourceMetrics\":5}");
    assert_eq!((status, &answer["code"]), (400, &3.into()));
    assert!(answer["message"].as_str().unwrap().contains("resourceMetrics is not a number"), "{answer}");
    let (status, ..) = server.post_bytes(OTLP, &[("content-type", "text/plain")], b"{}", &server.token);
    assert_eq!(status, 415);
    // Compressed, and as the media type may be written.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(counter(&point(0, r#""asInt":"7""#)).as_bytes()).unwrap();
    let headers = [("content-type", "Application/JSON; charset=utf-8"), ("content-encoding", "gzip")];
    assert_eq!(server.post_bytes(OTLP, &headers, &packed.finish().unwrap(), &server.token).0, 200);
    assert_eq!(rows(&server, "/s/m", ""), ["0=7"]);
    let known = server.get("/api/v1/sensors?pattern=/s/m").json()["sensors"][0].clone();
    assert_eq!((&known["unit"], &known["kind"]), (&"J".into(), &"counter".into()));
}

/// A series of remote write 1.0.
fn series(labels: &[(&str, &str)], time_ms: i64, value: f64) -> MessageBuilder {
    let message = MessageBuilder::default;
    let labelled = labels
        .iter()
        .fold(message(), |series, (name, value)| series.message(1, message().bytes(1, name).bytes(2, value)));
    labelled.message(2, message().double(1, value).int(2, time_ms))
}

fn remote_write(server: &TestServer, all: impl IntoIterator<Item = MessageBuilder>) -> (u16, String) {
    let request = all.into_iter().fold(MessageBuilder::default(), |request, series| request.message(1, series));
    let packed = snap::raw::Encoder::new().compress_vec(&request.0).unwrap();
    let headers = [("content-type", "application/x-protobuf"), ("content-encoding", "snappy")];
    let (status, _, body) = server.post_bytes("/api/v1/write", &headers, &packed, &server.token);
    (status, String::from_utf8(body).unwrap())
}

#[test]
fn two_series_of_a_request_are_never_one_sensor() {
    let server = TestServer::start();
    let ms = NOON / 1_000_000;
    // The level `prometheus` of a series without job and instance, and an instance of this name.
    let (status, body) = remote_write(
        &server,
        [
            series(&[("__name__", "up"), ("a", "1"), ("b", "2")], ms, 1.0),
            series(&[("__name__", "up"), ("instance", "prometheus"), ("a", "1"), ("b", "2")], ms + 1000, 2.0),
            // The same series again, with its labels in another order.
            series(&[("b", "2"), ("a", "1"), ("__name__", "up")], ms + 2000, 3.0),
        ],
    );
    assert_eq!(status, 400);
    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&answer["series"][0]["series"], answer["series"].as_array().unwrap().len()), (&2.into(), 1), "{body}");
    assert!(body.contains("another series of the request is /prometheus/up/a=1/b=2 already"), "{body}");
    assert_eq!(rows(&server, "/prometheus/up/**", ""), ["0=1.0", "2=3.0"]);
    // Two processes of one service without an instance.
    let resource = |pid: u8| {
        let whole: serde_json::Value =
            serde_json::from_str(&counter(&point(i64::from(pid), r#""asInt":"3""#))).unwrap();
        let mut resource = whole["resourceMetrics"][0].clone();
        let attribute = serde_json::json!({ "key": "process.pid", "value": { "intValue": pid } });
        resource["resource"]["attributes"].as_array_mut().unwrap().push(attribute);
        resource
    };
    let request = serde_json::json!({ "resourceMetrics": [resource(1), resource(2)] });
    let (status, answer) = otlp(&server, &request.to_string());
    assert_eq!((status, &answer["partialSuccess"]["rejectedDataPoints"]), (200, &"1".into()), "{answer}");
    assert_eq!(rows(&server, "/s/m", ""), ["1=3"]);
}

#[test]
fn an_infinity_is_a_reading_and_spoils_no_other() {
    let server = TestServer::start();
    let all = [0.0, 1.0, f64::INFINITY, 3.0, 4.0].into_iter().enumerate();
    let ms = |at: usize| (NOON + at as i64 * SECOND) / 1_000_000;
    let (status, body) =
        remote_write(&server, all.map(|(at, value)| series(&[("__name__", "x_total")], ms(at), value)));
    assert_eq!((status, body.as_str()), (204, ""));
    // JSON has no infinity; CSV and Arrow have.
    assert_eq!(rows(&server, "/prometheus/x_total", ""), ["0=0.0", "1=1.0", "2=-", "3=3.0", "4=4.0"]);
    assert_eq!(rows(&server, "/prometheus/x_total", "&op=delta"), ["0=-", "1=1.0", "2=-", "3=-", "4=1.0"]);
    let csv = server.get(&format!("/api/v1/query?pattern=/prometheus/x_total&from=@{}&format=csv", NOON / SECOND));
    assert!(csv.text().contains("2026-01-31T12:00:02Z,inf\n"), "{}", csv.text());
}

#[test]
fn a_time_out_of_range_refuses_its_series_only() {
    let server = TestServer::start();
    let all = [series(&[("__name__", "far")], i64::MAX, 1.0), series(&[("__name__", "near")], NOON / 1_000_000, 2.0)];
    let (status, body) = remote_write(&server, all);
    assert!(status == 400 && body.contains("the time 9223372036854775807 ms is out of range"), "{body}");
    assert_eq!(
        server.newest("/prometheus/**"),
        [("/prometheus/near=2.0".to_owned(), server.newest("/**")[0].1.clone())]
    );
}

#[test]
fn a_request_with_long_names_takes_bounded_memory() {
    let server = TestServer::start();
    // Each bucket is a sensor of its own: few bytes of the request become a path of 400 bytes.
    let bounds: Vec<String> = (0..1023).map(|bound| bound.to_string()).collect();
    let (counts, bounds) = (vec!["0"; 1024].join(","), bounds.join(","));
    let points: Vec<String> = (0..60)
        .map(|at| {
            let attribute = format!("{{\"key\":\"a\",\"value\":{{\"stringValue\":\"{}{at:02}\"}}}}", "x".repeat(100));
            let more = format!("{{\"key\":\"b\",\"value\":{{\"stringValue\":\"{}\"}}}}", "y".repeat(120));
            let time = NOON;
            format!(
                "{{\"timeUnixNano\":{time},\"count\":0,\"attributes\":[{attribute},{more}],\"bucketCounts\":[{counts}],\"explicitBounds\":[{bounds}]}}"
            )
        })
        .collect();
    let body = counter("")
        .replace("\"sum\"", "\"histogram\"")
        .replace("\"dataPoints\":[]", &format!("\"dataPoints\":[{}]", points.join(",")));
    let (status, answer) = otlp(&server, &body);
    assert_eq!(status, 200);
    let refused = &answer["partialSuccess"]["rejectedDataPoints"];
    let refused: u64 = refused.as_str().unwrap_or("0").parse().unwrap();
    let message = answer["partialSuccess"]["errorMessage"].as_str().unwrap();
    assert!(
        (1..60).contains(&refused) && message.contains("names of the request's sensors take more than"),
        "{answer}"
    );
    wait_until("the other points", || server.metric("wholegrain_server_otlp_points_total") == (60 - refused) as f64);
}
