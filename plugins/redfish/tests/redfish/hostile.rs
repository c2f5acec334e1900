//! Services that are slow, late, endless, loop, lie, and vanish.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use wholegrain_sources::ReadProblem;
use wholegrain_testkit::{Random, free_port, wait_until};

use wholegrain_source_testkit::SensorValues;

use super::service::{ServiceReply, TestService, link, temperature};
use super::started;

const CPU: &str = "b/chassis/1/temperature/CPU";
const GROUP: &str = "b/chassis/1/thermal";
const THERMAL: &str = "/redfish/v1/Chassis/1/Thermal";

/// Makes an answer that is wrong.
type WrongReply = Box<dyn Fn() -> ServiceReply + Send + Sync>;

/// Settings for a service, with a controller `b`.
pub fn config(port: u16, keys: &str) -> String {
    format!(
        "[plugins.redfish]\ninterval = \"40ms\"\ntimeout = \"20s\"\nfirst_answers = \"20s\"\n[[plugins.redfish.device]]\n\
         hosts = [\"127.0.0.1:{port}\"]\npath = \"b\"\nscheme = \"http\"\n{keys}\n"
    )
}

fn os(what: &'static str, errno: i32) -> ReadProblem {
    ReadProblem::Os { what, errno }
}

#[test]
fn a_temperature_becomes_a_sensor_and_gaps_are_gaps() {
    let service = TestService::new();
    let mut running = started(&config(service.port, "subsystems = [\"thermal\"]"));
    for _ in 0..5 {
        assert_eq!(running.answer(GROUP, |_| true)[CPU], Some(41.0));
    }
    // A walk of three requests, then one for each poll of the only resource with readings.
    let walk = service.requests().iter().filter(|request| !request.path.ends_with("/Thermal")).count();
    assert_eq!(walk, 3, "{:?}", service.requests().iter().map(|request| request.path.clone()).collect::<Vec<_>>());
    service.put(THERMAL, temperature(json!(42.5)));
    running.answer(GROUP, |values| values[CPU] == Some(42.5));
    for wrong in [Value::Null, json!("43"), json!([44]), json!({ "Reading": 45 }), json!(true)] {
        service.put(THERMAL, temperature(wrong));
        running.answer(GROUP, |values| values[CPU].is_none());
        service.put(THERMAL, temperature(json!(42.5)));
        running.answer(GROUP, |values| values[CPU] == Some(42.5));
    }
    let absent = json!({ "Temperatures": [{ "Name": "CPU", "ReadingCelsius": 46, "Status": { "State": "Absent" } }] });
    service.put(THERMAL, absent);
    running.answer(GROUP, |values| values[CPU].is_none());
    service.put(THERMAL, json!({ "Temperatures": "none", "Fans": [1, null, [], "x", { "Name": 5 }] }));
    running.answer(GROUP, |values| values[CPU].is_none());
}

#[test]
fn garbage_endless_and_wrong_answers_are_gaps() {
    let service = TestService::new();
    let mut running = started(&config(service.port, "body_bytes_max = \"100KiB\""));
    let garbage = Random::seeded().bytes(64 << 10);
    let deep = vec![b'['; 90_000];
    let page = |status: u16, body: &[u8]| {
        let body = body.to_vec();
        move || ServiceReply::Page(status, String::new(), body.clone())
    };
    let garbage_raw = garbage.clone();
    let refused = |text| ReadProblem::Message { text };
    let replies: Vec<(WrongReply, ReadProblem)> = vec![
        (Box::new(page(200, &garbage)), os("not JSON", libc::EBADMSG)),
        (Box::new(page(200, &deep)), os("not JSON", libc::EBADMSG)),
        (Box::new(page(200, b"[]")), os("JSON that is no resource", libc::EBADMSG)),
        (Box::new(|| ServiceReply::Endless), os("more than body_bytes_max", libc::EBADMSG)),
        (Box::new(move || ServiceReply::Raw(garbage_raw.clone())), os("not HTTP", libc::EBADMSG)),
        (Box::new(page(500, b"{}")), refused("HTTP 5xx: an error of the device")),
        (Box::new(page(403, b"{}")), refused("Redfish: the user may not read the resource (403)")),
        (
            Box::new(|| ServiceReply::Page(302, "Location: http://127.0.0.1:1/\r\n".to_owned(), Vec::new())),
            refused("HTTP: a redirect, which is not followed"),
        ),
    ];
    for (reply, problem) in replies {
        running.answer(GROUP, |values| values[CPU] == Some(41.0));
        service.hook(move |request| (request.path == THERMAL).then(&reply));
        running.wait_for_gaps(GROUP, problem);
        service.unhook();
    }
    running.answer(GROUP, |values| values[CPU] == Some(41.0));
}

#[test]
fn a_resource_that_hangs_harms_no_other() {
    let service = TestService::new();
    service.put("/redfish/v1/Chassis", json!({ "Members": [link("Chassis/0"), link("Chassis/1"), link("Chassis/2")] }));
    service.put("/redfish/v1/Chassis/0", json!({ "Thermal": link("Chassis/0/Thermal") }));
    service.put("/redfish/v1/Chassis/0/Thermal", temperature(json!(40)));
    service.put("/redfish/v1/Chassis/2", json!({ "Thermal": link("Chassis/2/Thermal") }));
    service.put("/redfish/v1/Chassis/2/Thermal", temperature(json!(42)));
    let text = config(service.port, "").replace("timeout = \"20s\"", "timeout = \"2s\"");
    let mut running = started(&text);
    running.answer(GROUP, |_| true);
    service.hook(|request| (request.path == THERMAL).then_some(ServiceReply::Never));
    running.wait_for_gaps(GROUP, os("device", libc::ETIMEDOUT));
    for (group, value) in [("b/chassis/0/thermal", 40.0), ("b/chassis/2/thermal", 42.0)] {
        let sensor = group.replace("thermal", "temperature/CPU");
        running.answer(group, |values| values[&sensor] == Some(value));
    }
}

#[test]
fn a_service_that_never_answers_or_drips_is_silent_and_others_are_polled() {
    let (silent, slow, good) = (TestService::new(), TestService::new(), TestService::new());
    silent.hook(|_| Some(ServiceReply::Never));
    slow.hook(|_| Some(ServiceReply::Slow(vec![b' '; 100_000])));
    let text = format!(
        "[plugins.redfish]\ninterval = \"40ms\"\ntimeout = \"1s\"\npoll_timeout = \"2s\"\nin_flight = 4\nfirst_answers = \"20s\"\n\
         [[plugins.redfish.device]]\nhosts = [\"127.0.0.1:{}\", \"127.0.0.1:{}\", \"127.0.0.1:{}\"]\npath = \"b/{{host}}\"\nscheme = \"http\"\n",
        silent.port, slow.port, good.port
    );
    let text = text.replace("poll_timeout = \"2s\"\n", "") + "poll_timeout = \"2s\"\n";
    let mut running = started(&text);
    let group = format!("b/127.0.0.1:{}/chassis/1/thermal", good.port);
    for _ in 0..10 {
        running.answer(&group, |_| true);
    }
    running.wait_for_note(&format!("b/127.0.0.1:{} (127.0.0.1:{}): no answer in time", silent.port, silent.port));
    running.wait_for_note(&format!("b/127.0.0.1:{} (127.0.0.1:{}): no answer in time", slow.port, slow.port));
}

#[test]
fn links_that_loop_and_pages_that_never_end_are_bounded() {
    let service = TestService::new();
    service.put(
        "/redfish/v1",
        json!({ "Chassis": link("Chassis"), "Systems": link("Systems"), "Managers": link("Chassis") }),
    );
    // A collection that is a member of itself, members twice, links to other hosts, and a chassis whose parts are the chassis.
    service.put(
        "/redfish/v1/Chassis",
        json!({ "Members": [link("Chassis"), link("Chassis/1"), link("Chassis/1"), { "@odata.id": "http://127.0.0.1:1/redfish/v1/x" },
            { "@odata.id": "//127.0.0.1:1/x" }, { "@odata.id": 5 }, null, link("Chassis/2")] }),
    );
    service.put(
        "/redfish/v1/Chassis/2",
        json!({ "ThermalSubsystem": link("Chassis/1"), "Power": link("Chassis/2"), "Thermal": null }),
    );
    // A and B are each the next page of the other.
    service.put(
        "/redfish/v1/Systems",
        json!({ "Members": [link("Systems/1")], "Members@odata.nextLink": "/redfish/v1/Systems/B" }),
    );
    service.put(
        "/redfish/v1/Systems/B",
        json!({ "Members": [link("Systems/2")], "Members@odata.nextLink": "/redfish/v1/Systems" }),
    );
    for number in 1..=2 {
        service.put(&format!("/redfish/v1/Systems/{number}"), json!({ "PowerState": "On" }));
    }
    let mut running = started(&config(service.port, ""));
    assert_eq!(running.answer(GROUP, |_| true)[CPU], Some(41.0));
    for number in 1..=2 {
        let power = format!("b/system/{number}/power_state");
        running.answer(&format!("b/system/{number}/state"), |values| values[&power] == Some(1.0));
    }
    running.wait_for_note("2 links lead to no resource of the service");
    running.wait_for_note("links back to /redfish/v1/Systems: its pages end there");

    // Pages without an end, each with a member.
    let service = TestService::new();
    service.put(
        "/redfish/v1/Chassis",
        json!({ "Members": [link("Chassis/1")], "Members@odata.nextLink": "/redfish/v1/Page/1" }),
    );
    service.hook(|request| {
        let page: usize = request.path.strip_prefix("/redfish/v1/Page/")?.parse().ok()?;
        let next = format!("/redfish/v1/Page/{}", page + 1);
        Some(ServiceReply::json(200, &json!({ "Members": [], "Members@odata.nextLink": next })))
    });
    let mut running = started(&config(service.port, ""));
    assert_eq!(running.answer(GROUP, |_| true)[CPU], Some(41.0));
    running.wait_for_note("more than 100 pages");
    let pages = service.requests().iter().filter(|request| request.path.starts_with("/redfish/v1/Page/")).count();
    assert_eq!(pages, 99);
}

#[test]
fn resources_and_sensors_are_bounded() {
    let service = TestService::new();
    let many: Vec<Value> = (0..2_000).map(|number| link(&format!("Chassis/{number}"))).collect();
    service.put("/redfish/v1/Chassis", json!({ "Members": many }));
    let temperatures: Vec<Value> =
        (0..100).map(|number| json!({ "Name": format!("T{number}"), "ReadingCelsius": number })).collect();
    service.hook(move |request| {
        let level = request.path.strip_prefix("/redfish/v1/Chassis/")?;
        let body = if level.ends_with("/Thermal") {
            json!({ "Temperatures": temperatures })
        } else {
            json!({ "Thermal": link(&format!("Chassis/{level}/Thermal")) })
        };
        Some(ServiceReply::json(200, &body))
    });
    let keys = "resources_max = 20\nsensors_max = 10\nsubsystems = [\"thermal\"]";
    let mut running = started(&config(service.port, keys));
    assert_eq!(running.answer(GROUP, |_| true).len(), 10);
    running.wait_for_note("/redfish/v1/Chassis has more than 1000 members");
    running.wait_for_note("more than resources_max = 20 resources: 982 ");
    running.wait_for_note("90 sensors are left out");
    assert_eq!(running.groups.iter().filter(|group| group.name.ends_with("/thermal")).count(), 18);
}

#[test]
fn a_service_whose_resources_change_with_each_walk_is_bounded() {
    let service = TestService::new();
    let walks = Arc::new(Mutex::new(Vec::new()));
    let theirs = walks.clone();
    // Four walks with 20 resources of 110 names are more than 8,000.
    let temperatures: Vec<Value> =
        (0..110).map(|number| json!({ "Name": format!("T{number}"), "ReadingCelsius": 7 })).collect();
    let temperatures = json!({ "Temperatures": temperatures });
    service.hook(move |request| {
        let path = request.path.trim_end_matches('/');
        let mut walks = theirs.lock().unwrap();
        let body = match path.strip_prefix("/redfish/v1/Chassis") {
            Some("") => {
                // Back to the collection and the root, and each member three times.
                let members = (0..30).flat_map(|number| {
                    let path = format!("Chassis/{}_{number}", walks.len());
                    [link(&path), link(&format!("{path}/")), link(&format!("{path}?again"))]
                });
                let back = [link("Chassis"), link("Chassis/"), link("")];
                let members: Vec<Value> = back.into_iter().chain(members).collect();
                json!({ "Members": members })
            }
            Some(level) if level.ends_with("/Thermal") => temperatures.clone(),
            Some(level) => json!({ "Thermal": link(&format!("Chassis{level}/Thermal")) }),
            None => {
                walks.push(std::time::Instant::now());
                return None;
            }
        };
        Some(ServiceReply::json(200, &body))
    });
    let keys = "resources_max = 40\nrediscover = \"1s\"\nsubsystems = [\"thermal\", \"state\"]";
    let mut running = started(&config(service.port, keys));
    running.wait_for_note("20 resources are linked to twice, or more than resources_max = 40");
    wait_until("five walks", || {
        running.discover();
        let of_chassis = running.groups.iter().filter(|group| group.name.starts_with("b/chassis/")).count();
        assert!(of_chassis <= 40, "{of_chassis}");
        walks.lock().unwrap().len() >= 5
    });
    running.wait_for_note("or more new names in an hour than its budget");
    // 1 s, as rediscover says and as the first pause is, then 1 s, 2 s and 4 s.
    let walks = walks.lock().unwrap();
    assert!(walks[4] - walks[0] >= std::time::Duration::from_secs(7), "the pauses grow");
    assert!(service.requests().iter().all(|request| !request.path.contains('?')), "each resource is requested once");
}

#[test]
fn what_vanishes_has_gaps_and_comes_back_and_what_is_new_is_found() {
    let service = TestService::new();
    let keys = "rediscover = \"1s\"";
    let mut running = started(&config(service.port, keys));
    running.answer(GROUP, |_| true);
    service.remove(THERMAL);
    running.wait_for_gaps(GROUP, ReadProblem::Message { text: "Redfish: the resource does not exist (404)" });
    service.put(THERMAL, temperature(json!(43)));
    running.answer(GROUP, |values| values[CPU] == Some(43.0));
    // A chassis is added, another one goes for good: its group ends after three walks without it.
    service.put("/redfish/v1/Chassis", json!({ "Members": [link("Chassis/2")] }));
    service.put("/redfish/v1/Chassis/2", json!({ "Thermal": link("Chassis/2/Thermal") }));
    service.put("/redfish/v1/Chassis/2/Thermal", temperature(json!(50)));
    service.remove("/redfish/v1/Chassis/1");
    service.remove(THERMAL);
    assert_eq!(running.answer("b/chassis/2/thermal", |_| true)["b/chassis/2/temperature/CPU"], Some(50.0));
    wait_until("the group has ended", || {
        running.discover();
        running.groups.iter().all(|group| group.name != GROUP)
    });
}

#[test]
fn collections_are_expanded_where_the_service_can() {
    let service = TestService::new();
    let features = json!({ "ExpandQuery": { "NoLinks": true, "Levels": true } });
    service.put("/redfish/v1", json!({ "Chassis": link("Chassis"), "ProtocolFeaturesSupported": features }));
    service.put("/redfish/v1/Chassis/1", json!({ "Sensors": link("Chassis/1/Sensors") }));
    let sensor = |name: &str, value: i32| json!({ "@odata.id": format!("/redfish/v1/Chassis/1/Sensors/{name}"), "Id": name, "Reading": value, "ReadingUnits": "W" });
    let (a, b) = (sensor("A", 1), sensor("B", 2));
    service.put(
        "/redfish/v1/Chassis/1/Sensors",
        json!({ "Members": [link("Chassis/1/Sensors/A"), link("Chassis/1/Sensors/B")] }),
    );
    service.put("/redfish/v1/Chassis/1/Sensors/A", a.clone());
    service.put("/redfish/v1/Chassis/1/Sensors/B", b.clone());
    let expands = Arc::new(AtomicBool::new(true));
    let theirs = expands.clone();
    service.hook(move |request| {
        let query = request.path.strip_prefix("/redfish/v1/Chassis/1/Sensors?")?;
        if !theirs.load(Ordering::Relaxed) {
            return Some(ServiceReply::json(501, &json!({})));
        }
        assert_eq!(query, "$expand=.($levels=1)");
        Some(ServiceReply::json(200, &json!({ "Members": [a, b] })))
    });
    let expected = |values: &SensorValues| {
        values.get("b/chassis/1/sensor/A") == Some(&Some(1.0)) && values.get("b/chassis/1/sensor/B") == Some(&Some(2.0))
    };
    let mut running = started(&config(service.port, ""));
    running.answer("b/chassis/1/sensors", expected);
    assert_eq!(service.count("GET", "/redfish/v1/Chassis/1/Sensors/A"), 0);
    expands.store(false, Ordering::Relaxed);
    running.wait_for_note("it does not expand collections as it says; members are requested one by one");
    running.answer("b/chassis/1/sensors", expected);
    assert!(service.count("GET", "/redfish/v1/Chassis/1/Sensors/A") > 0);
}

#[test]
fn half_of_many_controllers_vanish_and_the_others_go_on() {
    let services: Vec<TestService> = (0..20).map(|_| TestService::new()).collect();
    let is_gone = Arc::new(AtomicBool::new(false));
    for (number, service) in services.iter().enumerate() {
        service.put(THERMAL, temperature(json!(number)));
        let is_gone = is_gone.clone();
        service
            .hook(move |_| (number % 2 == 1 && is_gone.load(Ordering::Relaxed)).then(|| ServiceReply::Raw(Vec::new())));
    }
    let dead = free_port();
    let hosts: Vec<String> = services.iter().map(|service| format!("\"127.0.0.1:{}\"", service.port)).collect();
    let text = format!(
        "[plugins.redfish]\ninterval = \"200ms\"\ntimeout = \"20s\"\nfirst_answers = \"20s\"\n[[plugins.redfish.device]]\n\
         hosts = [{}, \"127.0.0.1:{dead}\"]\npath = \"b/{{host}}\"\nscheme = \"http\"\nsubsystems = [\"thermal\"]\n",
        hosts.join(", ")
    );
    let running = Mutex::new(started(&text));
    let failing = || running.lock().unwrap().read("redfish").1["redfish/failing"];
    let group = |number: usize| format!("b/127.0.0.1:{}/chassis/1/thermal", services[number].port);
    let answers = |number: usize| {
        let sensor = group(number).replace("thermal", "temperature/CPU");
        running.lock().unwrap().answer(&group(number), |values| values[&sensor] == Some(number as f64));
    };
    (0..20).for_each(answers);
    wait_until("only the dead port fails", || failing() == Some(1.0));
    is_gone.store(true, Ordering::Relaxed);
    wait_until("half fail", || failing() == Some(11.0));
    (0..20).step_by(2).for_each(answers);
    (1..20).step_by(2).for_each(|number| {
        wait_until("gaps", || {
            let (reading, values) = running.lock().unwrap().read(&group(number));
            !reading.unchanged && reading.taken_at.is_none() && values.values().all(Option::is_none)
        });
    });
    is_gone.store(false, Ordering::Relaxed);
    wait_until("all are back", || failing() == Some(1.0));
    (0..20).for_each(answers);
}
