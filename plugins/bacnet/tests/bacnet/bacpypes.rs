use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use wholegrain_testkit::{checkout, free_port};

use super::*;

/// A device of bacpypes3. It ends when this is dropped.
pub struct BacpypesDevice {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub port: u16,
}

impl BacpypesDevice {
    pub fn start(settings: &str) -> Self {
        let (root, port) = (checkout::root(), free_port());
        let mut child = Command::new(root.join(".venv/bin/python"))
            .arg(root.join("plugins/bacnet/tests/peer.py"))
            .args([&port.to_string(), settings])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("make prepare makes .venv");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut device = Self { child, input, output, port };
        device.expect("ready\n");
        device
    }

    fn expect(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("output of the peer");
        assert_eq!(line, expected);
    }

    /// Changes a present value.
    pub fn set(&mut self, object: &str, value: &str) {
        writeln!(self.input, "{object} {value}").expect("the peer runs");
        self.expect("done\n");
    }
}

impl Drop for BacpypesDevice {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const OBJECTS: &str = r#"[
    ["analog-input", 1, "Supply temperature", 17.25, "degreesCelsius", [0, 0, 0, 0]],
    ["analog-input", 2, "Return temperature", 24.5, "degreesCelsius", [0, 1, 0, 0]],
    ["analog-value", 7, "Cooling load", 350.0, "tonsRefrigeration", [0, 0, 0, 0]],
    ["analog-output", 3, "Valve", 42.0, "percent", [0, 0, 0, 1]],
    ["binary-input", 4, "Pump runs", "active", "", [0, 0, 0, 0]],
    ["binary-value", 5, "Alarm", "inactive", "", [1, 0, 0, 0]],
    ["multi-state-input", 6, "Mode", 3, "", [0, 0, 0, 0]]
]"#;

fn device(keys: &str) -> String {
    format!("{{\"instance\": 1201, \"objects\": {OBJECTS}{keys}}}")
}

/// The values of [`OBJECTS`] by their sensors.
fn expected() -> Vec<(&'static str, RowValue)> {
    vec![
        ("chiller/analog-input/1", RowValue::Float(17.25)),
        // It has a fault.
        ("chiller/analog-input/2", RowValue::Gap),
        // It is out of service.
        ("chiller/analog-output/3", RowValue::Gap),
        ("chiller/analog-value/7", RowValue::Float(350.0)),
        ("chiller/binary-input/4", RowValue::Int(1)),
        ("chiller/binary-value/5", RowValue::Int(0)),
        ("chiller/multi-state-input/6", RowValue::Int(3)),
    ]
}

fn configuration(port: u16, keys: &str) -> String {
    format!(
        "[plugins.bacnet]\ninterval = \"200ms\"\ntimeout = \"1s\"\n[[plugins.bacnet.device]]\nhosts = [\"127.0.0.1:{port}\"]\n\
         path = \"chiller\"\n{keys}\n"
    )
}

/// The values of an answer by the names of their sensors.
fn by_name(running: &BacnetRun, values: &[RowValue]) -> Vec<(String, RowValue)> {
    let names = running.group("chiller").sensors.iter().map(|sensor| sensor.name.clone());
    let mut named: Vec<(String, RowValue)> = names.zip(values.iter().copied()).collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    named
}

#[track_caller]
fn check_all(running: &mut BacnetRun) {
    running.wait_for_group("chiller");
    let (taken_at, values) = running.answer("chiller");
    check_time(taken_at);
    let named = by_name(running, &values);
    assert_eq!(named.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>(), expected());
}

#[test]
fn all_objects_of_a_device() {
    let peer = BacpypesDevice::start(&device(""));
    let mut running = BacnetRun::new(&configuration(peer.port, "objects = [\"all\"]"));
    check_all(&mut running);
    check_all(&mut running);
    let sensors = &running.group("chiller").sensors;
    let sensor = |name: &str| sensors.iter().find(|sensor| sensor.name == name).expect("a sensor");
    let temperature = sensor("chiller/analog-input/1");
    assert_eq!((temperature.unit.as_str(), temperature.scale), ("Cel", 1.0));
    assert_eq!(temperature.description, "Supply temperature (analog-input/1)");
    let load = sensor("chiller/analog-value/7");
    assert_eq!((load.unit.as_str(), load.scale), ("[Btu_IT]/h", 12_000.0));
    assert_eq!(sensor("chiller/binary-input/4").unit, "1");
    assert_eq!(running.notes(), [""; 0]);
}

#[test]
fn a_count_has_the_scale_and_the_largest_value_of_the_device() {
    let objects = r#"[["accumulator", 8, "Energy", 4711, "wattHours", [0, 0, 0, 0]]]"#;
    for without in ["", ", \"without\": [\"ReadPropertyMultiple\"]"] {
        let peer = BacpypesDevice::start(&format!("{{\"instance\": 1201, \"objects\": {objects}{without}}}"));
        let mut running = BacnetRun::new(&configuration(peer.port, "objects = [\"all\"]"));
        running.wait_for_group("chiller");
        assert_eq!(running.answer("chiller").1, [RowValue::Int(4711)]);
        let energy = &running.group("chiller").sensors[0];
        assert_eq!((energy.name.as_str(), energy.unit.as_str()), ("chiller/accumulator/8", "W.h"));
        assert_eq!((energy.scale, energy.wraps_at), (1000.0, Some(100_000)));
    }
}

#[test]
fn a_device_without_multiple_reads() {
    let peer = BacpypesDevice::start(&device(", \"without\": [\"ReadPropertyMultiple\"]"));
    let mut running = BacnetRun::new(&configuration(peer.port, "objects = [\"all\"]"));
    check_all(&mut running);
    check_all(&mut running);
}

#[test]
fn a_device_that_does_not_say_who_it_is() {
    let peer = BacpypesDevice::start(&device(", \"without\": [\"WhoIs\"]"));
    let mut running = BacnetRun::new(&configuration(peer.port, "objects = [\"all\"]\ninstance = 1201"));
    check_all(&mut running);
}

#[test]
fn a_device_with_short_messages() {
    let peer = BacpypesDevice::start(&device(", \"max_apdu\": 50"));
    let mut running = BacnetRun::new(&configuration(peer.port, "objects = [\"all\"]"));
    check_all(&mut running);
}

#[test]
fn a_long_list_of_objects() {
    let objects: Vec<String> = (1..=600)
        .map(|n| format!("[\"analog-value\", {n}, \"Value {n}\", {n}.5, \"kilowatts\", [0, 0, 0, 0]]"))
        .collect();
    let peer = BacpypesDevice::start(&format!("{{\"instance\": 9, \"objects\": [{}]}}", objects.join(",")));
    let mut running = BacnetRun::new(&configuration(peer.port, "objects = [\"analog-value\"]\nnames = \"device\""));
    running.wait_for_group("chiller");
    let (_, values) = running.answer("chiller");
    let named = by_name(&running, &values);
    assert_eq!(named.len(), 600);
    for n in 1..=600 {
        let name = format!("chiller/Value_{n}");
        assert!(named.contains(&(name.clone(), RowValue::Float(f64::from(n) + 0.5))), "{name}");
    }
}

#[test]
fn objects_of_the_configuration_have_its_names_and_units() {
    let peer = BacpypesDevice::start(&device(""));
    let mut running = BacnetRun::new(&configuration(
        peer.port,
        "object = [
            { type = \"analog-input\", instance = 1, name = \"supply\", unit = \"K\", scale = 2.0, description = \"Supply.\" },
            { type = \"analog-input\", instance = 99 },
            { type = \"multi-state-input\", instance = 6 },
        ]",
    ));
    running.wait_for_group("chiller");
    let values = [RowValue::Float(17.25), RowValue::Gap, RowValue::Int(3)];
    (0..2).for_each(|_| assert_eq!(running.answer("chiller").1, values));
    let sensor = &running.group("chiller").sensors[0];
    assert_eq!((sensor.name.as_str(), sensor.unit.as_str(), sensor.scale), ("chiller/supply", "K", 2.0));
    let notes = running.notes();
    let text = format!("device chiller (127.0.0.1:{}): analog-input/99: unknown object; its value is a gap", peer.port);
    assert_eq!(notes, [text]);
}

#[test]
fn another_device_at_the_address() {
    let peer = BacpypesDevice::start(&device(""));
    let mut running = BacnetRun::new(&configuration(peer.port, "objects = [\"all\"]\ninstance = 7"));
    let text = "answers with an error (another instance than the configuration; see `instance`)";
    let mut named = Vec::new();
    wait_until("the wrong instance is named", || {
        named.extend(running.notes().into_iter().filter(|note| note.contains(text)));
        !named.is_empty()
    });
    assert!(named[0].starts_with("device chiller (127.0.0.1"), "{named:?}");
    assert!(running.groups.iter().all(|group| group.name == "bacnet"), "only that of the polls");
    // It is polled further, and named no second time.
    let polls = |running: &mut BacnetRun| running.read("bacnet").1;
    let before = polls(&mut running);
    wait_until("more polls", || polls(&mut running) != before);
    assert!(!running.notes().iter().any(|note| note.contains(text)));
}

/// A change reaches the reader long before the next poll, and subscriptions last beyond their lifetime.
#[track_caller]
fn check_changes(mode: &str) {
    let mut peer = BacpypesDevice::start(&device(""));
    let keys = format!("objects = [\"all\"]\ncov = \"{mode}\"\ncov_lifetime = \"10s\"");
    let text = configuration(peer.port, &keys).replace("\"200ms\"", "\"1h\"");
    let mut running = BacnetRun::new(&text);
    check_all(&mut running);
    for value in ["18.5", "19.75", "21.0"] {
        peer.set("analog-input,1", value);
        let expected = RowValue::Float(value.parse().expect("a number"));
        wait_until("the change", || {
            let (reading, values) = running.read("chiller");
            let has_changed = by_name(&running, &values)[0].1 == expected;
            if has_changed {
                check_time(reading.taken_at.expect("a time"));
            }
            has_changed
        });
    }
    peer.set("binary-input,4", "inactive");
    wait_until("the change of a binary input", || {
        let (_, values) = running.read("chiller");
        by_name(&running, &values)[4].1 == RowValue::Int(0)
    });
}

#[test]
fn changes_are_notified() {
    check_changes("unconfirmed");
}

#[test]
fn changes_are_notified_and_confirmed() {
    check_changes("confirmed");
}
