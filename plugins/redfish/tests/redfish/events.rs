//! Streams of events: counts by severity, metric reports, reconnects, and streams that are wrong.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use wholegrain_devices::system_time;
use wholegrain_model::time::Timestamp;
use wholegrain_testkit::wait_until;

use wholegrain_source_testkit::SampledSource;

use super::hostile::config;
use super::service::{ReadWrite, ServiceReply, TestService, link};
use super::sessions::{TestSessions, running};
use super::started;

const STREAM: &str = "/redfish/v1/EventService/SSE";

/// What the stream of a service sends next; `None` ends the stream.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Vec<Option<String>>>>);

impl Script {
    fn send(&self, id: u32, event: &Value) {
        self.0.lock().unwrap().push(Some(format!("id: {id}\ndata: {event}\n\n")));
    }

    fn raw(&self, text: &str) {
        self.0.lock().unwrap().push(Some(text.to_owned()));
    }

    fn end(&self) {
        self.0.lock().unwrap().push(None);
    }

    fn reply(&self) -> ServiceReply {
        let script = self.clone();
        ServiceReply::Written(Box::new(move |stream: &mut dyn ReadWrite| {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n: hello\n\n";
            let mut is_open = stream.write_all(head.as_bytes()).is_ok();
            while is_open {
                let next: Vec<Option<String>> = std::mem::take(&mut *script.0.lock().unwrap());
                for part in next {
                    let Some(text) = part else { return };
                    is_open &= stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).is_ok();
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }))
    }
}

fn with_events(service: &TestService) -> Script {
    service.put(
        "/redfish/v1",
        json!({ "Chassis": link("Chassis"), "EventService": link("EventService"), "TelemetryService": link("TelemetryService"),
            "Links": { "Sessions": link("SessionService/Sessions") } }),
    );
    service.put("/redfish/v1/EventService", json!({ "ServerSentEventUri": STREAM }));
    Script::default()
}

fn event(severities: &[&str]) -> Value {
    let events: Vec<Value> = severities.iter().map(|severity| json!({ "MessageSeverity": severity })).collect();
    json!({ "@odata.type": "#Event.v1_9_0.Event", "Events": events })
}

/// Waits until the counts are these: ok, warning, critical, other, dropped.
fn wait_for_counts(running: &mut SampledSource, expected: [f64; 5]) {
    let names = ["ok", "warning", "critical", "other", "dropped"];
    let mut last = Vec::new();
    wait_until("the counts", || {
        let values = running.read("b/events").1;
        last = names.iter().map(|name| values[&format!("b/events/{name}")]).collect();
        last == expected.map(Some)
    });
}

#[test]
fn events_are_counted_once_and_the_stream_is_opened_again() {
    let (folder, service) = (tempfile::tempdir().unwrap(), TestService::new());
    let script = with_events(&service);
    let sessions = TestSessions::guard(&service, 1, 503);
    let (stream, guard) = (script.clone(), sessions.clone());
    service.hook(move |request| match guard.answer(request, 1, 503) {
        None if request.path == STREAM => Some(stream.reply()),
        answer => answer,
    });
    let credentials = "user = \"monitor\"\npassword = \"pass-word\"\n";
    let mut running = running(folder.path(), &service, credentials, "events = \"sse\"");
    wait_until("a stream", || running.read("b/events").1["b/events/connected"] == Some(1.0));
    script.send(1, &event(&["OK", "Warning", "Critical"]));
    script.send(2, &json!({ "Events": [{ "Severity": "Critical" }, { "MessageId": "x" }] }));
    script.raw("data: no json\n\n");
    script.raw(&format!("data: {{\"Events\":[{}{{}}]}}\n\n", "{\"\":0},".repeat(100_000)));
    wait_for_counts(&mut running, [1.0, 1.0, 2.0, 1.0, 2.0]);
    script.end();
    // The service repeats its last event on the new stream.
    wait_until("a second stream", || service.count("GET", STREAM) == 2);
    script.send(2, &event(&["Critical"]));
    script.send(3, &event(&["Warning"]));
    wait_for_counts(&mut running, [1.0, 2.0, 2.0, 1.0, 2.0]);
    let requests = service.requests();
    let streams: Vec<_> = requests.iter().filter(|request| request.path == STREAM).collect();
    assert_eq!(streams[1].headers.get("last-event-id").map(String::as_str), Some("2"));
    assert!(streams.iter().all(|request| request.headers["accept"] == "text/event-stream"));
    assert!(requests.iter().all(|request| request.method == "GET" || request.path.contains("/Sessions")));
    assert_eq!(running.read("redfish").1["redfish/logins"], Some(1.0), "the stream uses the session of the polls");
}

#[test]
fn a_stream_that_sends_too_much_is_closed_and_opened_again_later() {
    let service = TestService::new();
    let script = with_events(&service);
    let stream = script.clone();
    let floods = AtomicUsize::new(2);
    service.hook(move |request| {
        (request.path == STREAM).then(|| {
            if floods.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
                return stream.reply();
            }
            ServiceReply::Written(Box::new(|stream: &mut dyn ReadWrite| {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
                let mut is_open = stream.write_all(head.as_bytes()).is_ok();
                let events = format!("data: {}\n\n", event(&["Warning"])).repeat(1000);
                while is_open {
                    is_open = stream.write_all(events.as_bytes()).is_ok();
                }
            }))
        })
    });
    let mut running = started(&config(service.port, "events = \"sse\""));
    running.wait_for_note("b: its stream sends more than 50 events or 256 KiB a second in 10 s");
    let values = running.read("b/events").1;
    assert_eq!((values["b/events/connected"], values["b/events/warning"]), (Some(0.0), None));
    script.send(1, &event(&["Critical"]));
    let mut values = values;
    wait_until("a stream that is slow enough", || {
        values = running.read("b/events").1;
        values["b/events/critical"] == Some(1.0)
    });
    assert_eq!((values["b/events/overruns"], values["b/events/streams"]), (Some(2.0), Some(3.0)));
    let warnings = values["b/events/warning"].unwrap();
    assert!((1000.0..2000.0).contains(&warnings), "{warnings}");
}

#[test]
fn counts_are_gaps_without_a_stream() {
    let service = TestService::new();
    with_events(&service);
    service.hook(|request| (request.path == STREAM).then(|| ServiceReply::json(503, &json!({}))));
    let mut running = started(&config(service.port, "events = \"sse\""));
    running.wait_for_note("its stream of events: answers with an error");
    let values = running.read("b/events").1;
    assert_eq!((values["b/events/connected"], values["b/events/critical"]), (Some(0.0), None));
    running.answer("b/chassis/1/thermal", |_| true);
    let service = TestService::new();
    with_events(&service);
    service.put(STREAM, json!({}));
    started(&config(service.port, "events = \"sse\"")).wait_for_note("no stream of events");
    let service = TestService::new();
    started(&config(service.port, "events = \"sse\"")).wait_for_note("it has no event service");
}

#[test]
fn metric_reports_come_as_events_too() {
    let service = TestService::new();
    let script = with_events(&service);
    let stream = script.clone();
    service.hook(move |request| (request.path == STREAM).then(|| stream.reply()));
    service.put("/redfish/v1/TelemetryService", json!({ "MetricReports": link("TelemetryService/MetricReports") }));
    service.put(
        "/redfish/v1/TelemetryService/MetricReports",
        json!({ "Members": [link("TelemetryService/MetricReports/P")] }),
    );
    let begin = system_time() / 1_000_000_000 - 100;
    let report = |second: i64, value: &str| {
        let time = Timestamp((begin + second) * 1_000_000_000).to_string();
        json!({ "@odata.type": "#MetricReport.v1_5_0.MetricReport", "@odata.id": "/redfish/v1/TelemetryService/MetricReports/P",
            "Timestamp": time, "MetricValues": [{ "MetricId": "InletCelsius", "MetricValue": value }] })
    };
    service.put("/redfish/v1/TelemetryService/MetricReports/P", report(0, "20"));
    let keys = "events = \"sse\"\nsubsystems = [\"telemetry\"]";
    let mut running = started(&config(service.port, keys));
    let mut samples = Vec::new();
    let mut collect = |running: &mut SampledSource, count: usize| {
        wait_until("samples", || {
            let (reading, values) = running.read("b/report/P");
            samples.extend(reading.taken_at.map(|at| (at / 1_000_000_000 - begin, values["b/report/P/InletCelsius"])));
            samples.len() == count
        });
        samples.clone()
    };
    assert_eq!(collect(&mut running, 1), [(0, Some(20.0))]);
    wait_until("a stream", || running.read("b/events").1["b/events/connected"] == Some(1.0));
    script.send(1, &report(10, "21"));
    assert_eq!(collect(&mut running, 2)[1], (10, Some(21.0)));
    // Older than what was read, from a clock that is years off, and the same again.
    for (second, value) in [(5_i64, "22"), (-1_000_000_000, "23"), (10, "24"), (20, "25")] {
        script.send(second.unsigned_abs() as u32 + 2, &report(second, value));
    }
    assert_eq!(collect(&mut running, 3)[2], (20, Some(25.0)));
    assert_eq!(running.group("b/report/P").sensors[0].unit, "Cel");
    running.wait_for_note("values with times that cannot be are left out");
}
