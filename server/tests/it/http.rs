//! The HTTP API.

use std::io::{BufRead, BufReader, Read};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampNanosecondType};
use wholegrain_model::{Schema, SensorDef, SensorPath, Timestamp};
use wholegrain_transport::mqtt::Version;

use crate::harness::{NOON, SECOND, TestAgent, TestServer, schema, wait_for, wait_until};

const DAY: &str = "from=2026-01-31&to=2026-02-01";

/// A server with ten readings of one sensor, and the agent that sent them.
fn with_readings() -> (TestServer, TestAgent, Schema) {
    let server = TestServer::start();
    let schema = schema("n1", "mem", "MemFree");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let samples: Vec<(i64, i64)> = (0..10).map(|i| (NOON + i * SECOND, i)).collect();
    let ids = [agent.schema(&schema), agent.batch(&schema, &samples)];
    agent.acked(&ids);
    (server, agent, schema)
}

#[test]
fn a_small_response_is_sent_at_once_and_is_equal() {
    let (server, _agent, _) = with_readings();
    let bearer = format!("Bearer {}", server.token);
    let ask = |range: &str, format: &str| {
        let path = format!("/api/v1/query?pattern=MemFree&{range}&format={format}");
        let answer = server.response(&path, Some(&bearer));
        let length = answer.headers().get("content-length").map(|length| length.to_str().unwrap().parse().unwrap());
        (length, server.get(&path).body)
    };
    for format in ["json", "csv", "arrow"] {
        // A busy machine that does not compute the response in time streams it.
        let at_once = || {
            let (length, small) = ask("from=2026-01-31T12:00:00Z&to=2026-01-31T13:00:00Z", format);
            Some((length?, small))
        };
        let (length, small) = wait_for("a response that is sent at once", at_once);
        let (unknown, streamed) = ask(DAY, format);
        assert_eq!((length, unknown), (small.len(), None), "{format}");
        assert!(small.len() > 100);
        assert_eq!(small, streamed, "{format}");
    }
    let nothing = server.get("/api/v1/query?pattern=none&from=2026-01-31T12:00:00Z&to=2026-01-31T13:00:00Z&format=csv");
    assert_eq!((nothing.sensors.as_deref(), nothing.text()), (Some("0"), "sensor,time,value\n"));
}

#[test]
fn sensors_and_newest_values() {
    let (server, _agent, _) = with_readings();
    let answer = server.get("/api/v1/sensors?pattern=/site/**");
    assert_eq!(
        (answer.status, answer.sensors.as_deref(), answer.content_type.as_str()),
        (200, Some("1"), "application/json")
    );
    let expected = serde_json::json!({
        "path": "/site/n1/MemFree", "unit": "By", "kind": "gauge", "type": "int", "scale": 1024.0, "interval_ns": 1_000_000_000,
        "last_time": "2026-01-31T12:00:09Z", "description": "A test's sensor.", "agent": "n1",
    });
    assert_eq!(answer.json()["sensors"], serde_json::json!([expected]));
    let newest = server.get("/api/v1/newest?pattern=MemFree").json();
    let expected = serde_json::json!([{ "path": "/site/n1/MemFree", "time": "2026-01-31T12:00:09Z", "value": 9216, "unit": "By" }]);
    assert_eq!(newest["readings"], expected);
    let nothing = server.get("/api/v1/newest?pattern=MemFreee");
    assert_eq!((nothing.status, nothing.sensors.as_deref()), (200, Some("0")));
    assert_eq!(nothing.json()["readings"], serde_json::json!([]));
}

#[test]
fn a_long_list_comes_whole_and_in_order() {
    let server = TestServer::start();
    let sensors = (0..10_000).map(|i| SensorDef::gauge(format!("s{i}"), "W", "")).collect();
    let schema = Schema::new(SensorPath::new("/n1").unwrap(), "wide", sensors).unwrap();
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let ids = [agent.schema(&schema), agent.publish("wholegrain/v1/batch/n1/wide", &wide_batch(&schema, 1, 2))];
    agent.acked(&ids);
    let mut expected: Vec<String> = (0..10_000).map(|i| format!("/n1/s{i}")).collect();
    expected.sort();
    // Two patterns choose some of them twice.
    for (route, list) in [("sensors", "sensors"), ("newest", "readings")] {
        let answer = server.get(&format!("/api/v1/{route}?pattern=/n1/*&pattern=/n1/s1*"));
        assert_eq!(answer.sensors.as_deref(), Some("10000"));
        let json = answer.json();
        let paths: Vec<&str> = json[list].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
        assert_eq!(paths, expected, "{route}");
    }
    for (route, list) in [("sensors", "sensors"), ("newest", "readings"), ("properties", "sensors")] {
        let (mut paged, mut next) = (Vec::new(), String::new());
        loop {
            let page = server.get(&format!("/api/v1/{route}?pattern=/n1/*&limit=3000{next}")).json();
            let sensors = page[list].as_array().unwrap();
            assert!(sensors.len() <= 3000);
            paged.extend(sensors.iter().map(|one| one["path"].as_str().unwrap().to_owned()));
            match page["next"].as_str() {
                Some(after) => next = format!("&after={after}"),
                None => break,
            }
        }
        assert_eq!(paged, expected, "{route} page by page");
    }
    assert!(server.get("/api/v1/properties?pattern=/**&limit=10001").text().contains("`limit`: expected 1 to 10000"));
    let sums = server.get(&format!("/api/v1/query?pattern=/n1/*&{DAY}&across=sum"));
    assert_eq!((sums.status, sums.sensors.as_deref()), (200, Some("10000")));
    let rows: Vec<serde_json::Value> = sums.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = [500, 501].map(|ms| {
        let time = NOON + ms * 1_000_000;
        let sum = time as f64 * 10_000.0;
        serde_json::json!({ "sensor": "/n1/sum(*)", "time": Timestamp(time).to_string(), "value": sum })
    });
    assert_eq!(rows, expected);
    for (path, status, part) in [
        ("across=mode", 400, "parameter `across`: \"mode\" is not an aggregate"),
        ("across=first", 400, "no first or last value"),
        ("levels=2", 400, "parameter `levels` divides the sensors of `across`"),
        ("across=sum&levels=x", 400, "parameter `levels`: \"x\" is not a number of levels"),
        ("across=sum&levels=0", 400, "levels must be at least 1"),
        ("from=2026-03-29%2002:30%20Europe/Berlin&to=now", 400, "does not exist in Europe/Berlin"),
    ] {
        let answer = server.get(&format!("/api/v1/query?pattern=/n1/*&{path}"));
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.text().replace("\\\"", "\"").contains(part), "{path}: {}", answer.text());
    }
}

#[test]
fn queries_in_all_formats() {
    let (server, _agent, _) = with_readings();
    let json = server.get(&format!("/api/v1/query?pattern=MemFree&{DAY}&limit=2"));
    assert_eq!((json.content_type.as_str(), json.sensors.as_deref()), ("application/x-ndjson", Some("1")));
    assert_eq!(
        json.text(),
        "{\"sensor\":\"/site/n1/MemFree\",\"time\":\"2026-01-31T12:00:00Z\",\"value\":0}\n\
         {\"sensor\":\"/site/n1/MemFree\",\"time\":\"2026-01-31T12:00:01Z\",\"value\":1024}\n"
    );
    let csv = server.get(&format!("/api/v1/query?pattern=MemFree&{DAY}&every=5s&agg=mean&format=csv"));
    assert_eq!(csv.content_type, "text/csv; charset=utf-8");
    assert_eq!(
        csv.text(),
        "sensor,time,value\n/site/n1/MemFree,2026-01-31T12:00:00Z,2560.0\n/site/n1/MemFree,2026-01-31T12:00:05Z,7168.0\n"
    );
    let arrow = server.get(&format!("/api/v1/query?pattern=MemFree&{DAY}&format=arrow"));
    assert_eq!(arrow.content_type, "application/vnd.apache.arrow.stream");
    let batches: Vec<_> = arrow_ipc::reader::StreamReader::try_new(arrow.body.as_slice(), None)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let mut rows = Vec::new();
    for batch in &batches {
        let sensor = batch.column_by_name("sensor").unwrap().as_dictionary::<Int32Type>();
        let times = batch.column_by_name("time").unwrap().as_primitive::<TimestampNanosecondType>();
        let values = batch.column_by_name("value").unwrap().as_primitive::<Int64Type>();
        let names = sensor.values().as_string::<i32>();
        for row in 0..batch.num_rows() {
            rows.push((names.value(sensor.keys().value(row) as usize).to_owned(), times.value(row), values.value(row)));
        }
    }
    let expected: Vec<_> = (0..10).map(|i| ("/site/n1/MemFree".to_owned(), NOON + i * SECOND, i * 1024)).collect();
    assert_eq!(rows, expected);
    let nothing = server.get(&format!("/api/v1/query?pattern=none&{DAY}&format=csv"));
    assert_eq!((nothing.sensors.as_deref(), nothing.text()), (Some("0"), "sensor,time,value\n"));
}

#[test]
fn a_number_of_windows_determines_their_length_which_is_reported() {
    let (server, _agent, _) = with_readings();
    let url = "/api/v1/query?pattern=MemFree&from=2026-01-31T12:00:00Z&to=2026-01-31T12:00:10Z&agg=max&points=5";
    let header = |url: &str, name: &str| {
        let response = server.response(url, Some(&format!("Bearer {}", server.token)));
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(header(url, "x-wholegrain-every").as_deref(), Some("2s"));
    let values: Vec<f64> = server
        .get(url)
        .text()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["value"].as_f64().unwrap())
        .collect();
    assert_eq!(values, [1024.0, 3072.0, 5120.0, 7168.0, 9216.0]);
    // Unsealed readings have no tiers yet, so no tier is named.
    let long = format!("/api/v1/query?pattern=MemFree&{DAY}&every=1h&agg=sum");
    assert_eq!(header(&long, "x-wholegrain-tier"), None);
    assert_eq!(server.get(&format!("{long}&points=5")).status, 400, "one of the two");
}

#[test]
fn readings_require_a_token() {
    let server = TestServer::start();
    let good = format!("Bearer {}", server.token);
    for path in [
        "/api/v1/sensors",
        "/api/v1/newest?pattern=a",
        "/api/v1/query?pattern=a",
        "/api/v1/watch?pattern=a",
        "/metrics",
        "/nothing",
    ] {
        for (header, says) in [
            (None, "no token; send the header `Authorization: Bearer <token>`"),
            (Some("Bearer wrong"), "unknown token"),
            (Some("Basic abc"), "the Authorization header is not `Bearer <token>`"),
        ] {
            let answer = server.get_as(path, header);
            assert_eq!(answer.status, 401, "{path} {header:?}");
            assert!(answer.json()["error"].as_str().unwrap().starts_with(says), "{path}: {}", answer.text());
        }
    }
    for path in ["/healthz", "/openapi.json"] {
        assert_eq!(server.get_as(path, None).status, 200, "{path}");
    }
    assert_eq!(server.get_as("/nothing", Some(&good)).status, 404);
    assert_eq!(server.get_as("/healthz", None).json()["status"], "ok");
    assert_eq!(server.get_as("/openapi.json", None).json()["openapi"], "3.1.0");
}

#[test]
fn wrong_parameters_are_named() {
    let server = TestServer::start();
    for (path, says) in [
        ("/api/v1/newest", "parameter `pattern` is missing; write pattern=MemAvailable"),
        ("/api/v1/query", "parameter `pattern` is missing"),
        ("/api/v1/watch", "parameter `pattern` is missing"),
        ("/api/v1/query?patern=a", "unknown parameter `patern`; did you mean `pattern`?"),
        ("/api/v1/sensors?form=x", "unknown parameter `form`"),
        ("/api/v1/query?pattern=", "parameter `pattern`: pattern \"\": has an empty level"),
        ("/api/v1/query?pattern=a/%2B/b", "parameter `pattern`: pattern \"a/+/b\": `+` and `#` are MQTT's wildcards"),
        ("/api/v1/query?pattern=a%20b", "parameter `pattern`: pattern \"a b\": contains white space"),
        ("/api/v1/query?pattern=a&from=soon", "parameter `from`: \"soon\" is not a time; write RFC 3339"),
        ("/api/v1/query?pattern=a&to=10m", "parameter `to`: \"10m\" is not a time"),
        ("/api/v1/query?pattern=a&from=now&to=-1h", "parameter `to` ("),
        ("/api/v1/query?pattern=a&from=now&from=now", "parameter `from` is given twice"),
        ("/api/v1/query?pattern=a&every=10", "parameter `every`: \"10\" is not a length of time (no unit)"),
        (
            "/api/v1/query?pattern=a&agg=median",
            "parameter `agg`: \"median\" is not an aggregate; write one of mean, min",
        ),
        (
            "/api/v1/query?pattern=a&op=derive",
            "parameter `op`: \"derive\" is not an operation; write one of rate, delta",
        ),
        ("/api/v1/query?pattern=a&limit=-1", "parameter `limit`: \"-1\" is not a number of rows"),
        ("/api/v1/query?pattern=a&format=parquet", "parameter `format`: unknown format `parquet`"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        let message = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(message.starts_with(says), "{path}: {message:?} does not begin with {says:?}");
    }
    let many = format!("/api/v1/sensors?{}", "pattern=a&".repeat(257));
    assert!(server.get(&many).text().contains("is given 257 times, at most 256"));
    let many = format!("/api/v1/jobs/1/energy?pattern=b&pattern={}a", "a+%2B+".repeat(255));
    assert!(server.get(&many).text().contains("`pattern` has 257 patterns, at most 256"));
}

#[test]
fn metrics_are_well_formed() {
    let (server, _agent, _) = with_readings();
    let text = server.get("/metrics").text().to_owned();
    let mut declared = std::collections::HashMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(declared.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} is declared twice");
            assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
            let name = series.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .filter(|base| declared.contains_key(*base));
            assert!(declared.contains_key(base.unwrap_or(name)), "{name} is not declared");
        }
    }
    for (name, expected) in [
        ("wholegrain_server_batches_total", 1.0),
        ("wholegrain_server_readings_total", 10.0),
        ("wholegrain_server_schemas_total", 1.0),
        ("wholegrain_server_acks_total", 2.0),
        ("wholegrain_server_connections", 1.0),
        ("wholegrain_server_in_flight", 0.0),
        ("wholegrain_server_ack_seconds_count", 2.0),
        ("wholegrain_server_store_sensors", 1.0),
    ] {
        assert_eq!(server.metric(name), expected, "{name}");
    }
    assert!(server.metric("wholegrain_server_journal_fsyncs_total") >= 1.0);
    assert!(server.metric("wholegrain_server_process_resident_memory_bytes") > 1e6);
}

#[test]
fn live_streams_show_durable_readings() {
    let (server, mut agent, schema) = with_readings();
    let authorization = format!("Bearer {}", server.token);
    let mut response = server.response("/api/v1/watch?pattern=/site/*/MemFree", Some(&authorization));
    assert_eq!(response.headers()["x-wholegrain-sensors"], "1");
    let other = crate::harness::schema("n1", "other", "SwapFree");
    let ids =
        [agent.schema(&other), agent.batch(&other, &[(NOON, 1)]), agent.batch(&schema, &[(NOON + 20 * SECOND, 3)])];
    agent.acked(&ids);
    let mut line = String::new();
    BufReader::new(response.body_mut().as_reader()).read_line(&mut line).unwrap();
    assert_eq!(line, "{\"sensor\":\"/site/n1/MemFree\",\"time\":\"2026-01-31T12:00:20Z\",\"value\":3072}\n");
    assert_eq!(server.metric("wholegrain_server_watchers"), 1.0);
    drop(response);
    wait_until("the watcher's end", || server.metric("wholegrain_server_watchers") == 0.0);
}

#[test]
fn a_query_ends_when_its_client_disconnects() {
    let server = TestServer::start();
    let sensors = (0..200).map(|i| SensorDef::gauge(format!("s{i}"), "1", "")).collect();
    let schema = Schema::new(SensorPath::new("/n1").unwrap(), "wide", sensors).unwrap();
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let mut ids = vec![agent.schema(&schema)];
    for seq in 1..=20 {
        ids.push(agent.publish("wholegrain/v1/batch/n1/wide", &wide_batch(&schema, seq, 500)));
    }
    agent.acked(&ids);
    let path = format!("/api/v1/query?pattern=/n1/*&{DAY}");
    let authorization = format!("Bearer {}", server.token);
    let mut response = server.response(&path, Some(&authorization));
    let mut some = [0; 1000];
    response.body_mut().as_reader().read_exact(&mut some).unwrap();
    // Two million rows cannot lie in the buffers between us: it waits for us to read on.
    assert_eq!(server.metric("wholegrain_server_queries_running"), 1.0);
    drop(response);
    wait_until("the query's end", || server.metric("wholegrain_server_queries_running") == 0.0);
    assert_eq!(server.metric("wholegrain_server_queries_abandoned_total"), 1.0);
    assert!(server.metric("wholegrain_server_query_rows_total") < 2_000_000.0);
}

/// The number of samples of each sensor.
fn wide_batch(schema: &Schema, seq: u64, samples: i64) -> Vec<u8> {
    use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps};
    let header = BatchHeader { agent: "n1".to_owned(), boot: 1, seq, schema: schema.hash(), interval_ns: 1_000_000 };
    let times: Vec<i64> = (0..samples).map(|i| NOON + (seq as i64 * 500 + i) * 1_000_000).collect();
    let columns =
        (0..schema.len()).map(|_| Column { values: ColumnValues::Int(times.clone()), gaps: Gaps::default() }).collect();
    wholegrain_transport::payload::encode_batch(&Batch { header, times, columns })
}

#[test]
fn a_response_without_a_damaged_block_has_a_warning() {
    let mut server = TestServer::start_with("[store]\nseal_after = \"100ms\"");
    let schema = schema("n1", "g", "s");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let ids = [agent.schema(&schema), agent.batch(&schema, &[(NOON, 1)])];
    agent.acked(&ids);
    wait_until("a block", || server.metric("wholegrain_server_store_blocks") == 1.0);
    let warnings = |server: &TestServer, day: u32| -> Vec<String> {
        let path = format!("/api/v1/query?pattern=s&from=2026-01-{day}&to=2026-01-{day}T23:00:00Z");
        let response = server.response(&path, Some(&format!("Bearer {}", server.token)));
        assert_eq!(response.status().as_u16(), 200);
        let values = response.headers().get_all("x-wholegrain-warning").iter();
        values.map(|value| value.to_str().unwrap().to_owned()).collect()
    };
    assert!(warnings(&server, 31).is_empty());
    server.stop();
    // Its windows may be there already, in files of their own beside it.
    let blocks = parquet_files(&server.path("server/store/blocks"));
    assert_eq!(blocks.len(), 1);
    std::fs::remove_file(&blocks[0]).unwrap();
    let server = server.restart();
    let said = warnings(&server, 31);
    assert!(said.len() == 1 && said[0].contains("cannot be read"), "{said:?}");
    assert!(warnings(&server, 30).is_empty(), "it holds nothing of that day");
}

/// A compressed response has the same content as an uncompressed one; live streams and small responses are never compressed.
#[test]
fn responses_are_compressed_if_the_client_accepts_it() {
    let (server, mut agent, schema) = with_readings();
    let samples: Vec<(i64, i64)> = (10..10_010).map(|i| (NOON + i * SECOND, i)).collect();
    let id = agent.batch(&schema, &samples);
    agent.acked(&[id]);
    let ask = |path: &str, accepted: &str| {
        let head = [("accept-encoding", accepted)];
        let mut response = server.response_with(path, Some(&format!("Bearer {}", server.token)), &head);
        assert_eq!(response.status().as_u16(), 200);
        let coding = response.headers().get("content-encoding").map(|value| value.to_str().unwrap().to_owned());
        (coding, response.body_mut().read_to_vec().unwrap())
    };
    let unpacked = |accepted: &str, body: &[u8]| -> Vec<u8> {
        let mut plain = Vec::new();
        match accepted {
            "gzip" => drop(flate2::read::GzDecoder::new(body).read_to_end(&mut plain).unwrap()),
            _ => plain = zstd::decode_all(body).unwrap(),
        }
        plain
    };
    let query = |format: &str| format!("/api/v1/query?pattern=MemFree&{DAY}&format={format}");
    for path in [query("json"), query("csv"), query("arrow"), "/openapi.json".to_owned()] {
        let (none, plain) = ask(&path, "identity");
        assert_eq!((none, ask(&path, "br").0), (None, None));
        for accepted in ["gzip", "zstd"] {
            let (coding, body) = ask(&path, accepted);
            assert_eq!(coding.as_deref(), Some(accepted), "{path}");
            assert!(body.len() * 2 < plain.len(), "{path}: {} of {} bytes", body.len(), plain.len());
            assert!(unpacked(accepted, &body) == plain, "{path} {accepted}");
        }
    }
    // The size of a small result is known if it is ready within a few milliseconds; else it is streamed.
    let small = "/api/v1/query?pattern=MemFree&from=2026-01-31T12:00:00Z&to=2026-01-31T12:00:01Z";
    wait_until("a small response without compression", || ask(small, "gzip").0.is_none());
    let watch = server.response_with(
        "/api/v1/watch?pattern=/**",
        Some(&format!("Bearer {}", server.token)),
        &[("accept-encoding", "gzip")],
    );
    assert!(watch.headers().get("content-encoding").is_none());
    let id = agent.batch(&schema, &[(NOON + 20_000 * SECOND, 1)]);
    agent.acked(&[id]);
    let mut line = String::new();
    BufReader::new(watch.into_body().into_reader()).read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"sensor\":"), "{line}");
}

/// Readings dropped by retention are no damage: the response is complete, and a note says why it begins later.
#[test]
fn readings_dropped_by_retention_give_a_note_and_no_warning() {
    let rule = "[[store.retention]]\npattern = \"/**\"\nraw = \"1d\"\ntiers = { \"1h\" = \"forever\" }";
    let server = TestServer::start_remote(&format!("[store]\nseal_after = \"100ms\"\n{rule}"));
    let schema = schema("n1", "g", "s");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let ids = [agent.schema(&schema), agent.batch(&schema, &[(NOON, 1)])];
    agent.acked(&ids);
    let authorization = format!("Bearer {}", server.token);
    let found = wait_for("a note", || {
        let response = server.response(&format!("/api/v1/query?pattern=s&{DAY}"), Some(&authorization));
        let count = |name: &str| response.headers().get_all(name).iter().count();
        let found = (count("x-wholegrain-note"), count("x-wholegrain-warning"));
        (found != (0, 0)).then_some(found)
    });
    assert_eq!(found, (1, 0));
}

/// Responses and metrics report losses of the journal until an administrator acknowledges them.
#[test]
fn a_loss_of_the_journal_is_on_record_until_it_is_acknowledged() {
    let mut server = TestServer::start();
    let schema = schema("n1", "g", "s");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let ids = [agent.schema(&schema), agent.batch(&schema, &[(NOON, 1), (NOON + 1, 2)])];
    agent.acked(&ids);
    server.stop();
    let segment = server.path("server/store/journal/0000000001.wal");
    let mut bytes = std::fs::read(&segment).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let server = server.restart();
    let authorization = format!("Bearer {}", server.token);
    let warned = || {
        let response = server.response(&format!("/api/v1/query?pattern=s&{DAY}"), Some(&authorization));
        response.headers().get_all("x-wholegrain-warning").iter().count()
    };
    assert_eq!((warned(), server.metric("wholegrain_server_store_lost_readings")), (1, 2.0));
    let lost = server.get("/api/v1/data/lost").json();
    assert_eq!((lost["lost"][0]["readings"].as_u64(), lost["lost"].as_array().unwrap().len()), (Some(2), 1));
    let left = server.json("POST", "/api/v1/data/lost", r#"{"all": true}"#, &server.token).json();
    assert_eq!(left["lost"].as_array().map(Vec::len), Some(0));
    assert_eq!((warned(), server.metric("wholegrain_server_store_lost")), (0, 0.0));
}

/// Errors of the HTTP framework have the same form as all others.
#[test]
fn a_body_that_is_too_large_is_refused_in_json() {
    let server = TestServer::start();
    // One byte more than the limit, so that all of it is sent before the server closes.
    for (method, path, bytes) in [
        ("PUT", "/api/v1/properties", (2 << 20) + 1),
        ("POST", "/api/v1/jobs/1/rules", (64 << 10) + 1),
        ("PUT", "/api/v1/data/retention", (2 << 20) + 1),
        ("POST", "/api/v1/data/delete", (2 << 20) + 1),
    ] {
        let answer = server.send_body(method, path, &"x".repeat(bytes), &server.token);
        assert_eq!((answer.status, answer.content_type.as_str()), (413, "application/json"), "{path}");
        assert_eq!(answer.json()["error"], "the body is larger than this path takes", "{path}");
    }
    let answer = server.get("/api/v1/jobs/%ff");
    assert_eq!((answer.status, answer.content_type.as_str()), (400, "application/json"));
    assert!(answer.json()["error"].is_string());
}

/// Parquet files in `dir` and below.
fn parquet_files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    let (dirs, files): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| path.is_dir());
    let here = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    here.chain(dirs.iter().flat_map(|dir| parquet_files(dir))).collect()
}
