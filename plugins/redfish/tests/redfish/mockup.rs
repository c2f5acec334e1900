//! sushy-tools: sushy-static with the hand-written mockup, and sushy-emulator with its fake driver. An independent reader in Python reads the same service.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use wholegrain_devices::system_time;
use wholegrain_model::Kind;
use wholegrain_model::time::Timestamp;
use wholegrain_testkit::checkout::root;
use wholegrain_testkit::{free_port, wait_for, wait_until};

use wholegrain_source_testkit::{SampledSource, SensorValues};

use super::started;

/// A program of the Python environment that ends with the test.
struct PythonPeer {
    child: Child,
    port: u16,
}

impl PythonPeer {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let port = free_port();
        let file = root().join(".venv/bin").join(program);
        let mut command = Command::new(&file);
        command.args(arguments).args(["-i", "127.0.0.1", "-p", &port.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}; run make prepare", file.display()));
        let peer = Self { child, port };
        wait_until("the service listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        peer
    }

    /// What the reader in Python finds.
    fn independent(&self) -> BTreeMap<String, Option<f64>> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redfish/reader.py");
        let url = format!("http://127.0.0.1:{}", self.port);
        let output = Command::new(root().join(".venv/bin/python")).args([script, &url]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let values: BTreeMap<String, Value> = serde_json::from_slice(&output.stdout).unwrap();
        values.into_iter().map(|(name, value)| (format!("b/{name}"), value.as_f64())).collect()
    }

    fn running(&self, keys: &str) -> SampledSource {
        started(&format!(
            "[plugins.redfish]\ninterval = \"200ms\"\ntimeout = \"30s\"\nfirst_answers = \"30s\"\n[[plugins.redfish.device]]\n\
             hosts = [\"127.0.0.1:{}\"]\npath = \"b\"\nscheme = \"http\"\n{keys}\n",
            self.port
        ))
    }
}

impl Drop for PythonPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Copies the mockup and replaces `{time:N}` by the time N seconds ago, in whole seconds. The time that is now in it.
fn copy_mockup(to: &Path) -> i64 {
    let now = system_time() / 1_000_000_000;
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redfish/mockup");
    let mut folders = vec![from.clone()];
    while let Some(folder) = folders.pop() {
        let target = to.join(folder.strip_prefix(&from).unwrap());
        std::fs::create_dir_all(&target).unwrap();
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let mut text = std::fs::read_to_string(entry.path()).unwrap();
            for ago in [0, 10, 20] {
                let time = Timestamp((now - ago) * 1_000_000_000).to_string();
                text = text.replace(&format!("{{time:{ago}}}"), &time);
            }
            std::fs::write(target.join(entry.file_name()), text).unwrap();
        }
    }
    now
}

/// The values of all groups of a controller, once as many groups as expected have answered.
fn all_values(running: &mut SampledSource, groups: usize) -> SensorValues {
    wait_until("the groups", || {
        running.discover();
        running.groups.iter().filter(|group| group.name.starts_with("b/")).count() >= groups
    });
    let names: Vec<String> =
        running.groups.iter().map(|group| group.name.clone()).filter(|name| name.starts_with("b/")).collect();
    names.iter().flat_map(|name| running.answer(name, |_| true)).collect()
}

#[test]
fn values_of_the_mockup_are_those_of_an_independent_reader() {
    let folder = tempfile::tempdir().unwrap();
    copy_mockup(folder.path());
    let peer = PythonPeer::start("sushy-static", &["-m", &folder.path().display().to_string()]);
    let expected = peer.independent();
    assert!(expected.len() > 80, "{}", expected.len());
    let subsystems = "subsystems = [\"thermal\", \"power\", \"environment\", \"sensors\", \"state\"]";
    let mut running = peer.running(subsystems);
    // Of 1U: thermal, power, environment, sensors, state; of Blade: thermal_metrics, fans, supplies, state; of CDU: sensors, state; a system, a manager.
    let values = all_values(&mut running, 13);
    assert_eq!(values, expected);
    let sensor = |name: &str| {
        let mut sensors = running.groups.iter().flat_map(|group| &group.sensors);
        sensors.find(|sensor| sensor.name == format!("b/{name}")).unwrap_or_else(|| panic!("{name}"))
    };
    for (name, unit, kind) in [
        ("chassis/1U/temperature/CPU1_Temp", "Cel", Kind::Gauge),
        ("chassis/1U/fan/Fan_1/speed", "/min", Kind::Gauge),
        ("chassis/1U/fan/Fan_2/percent", "%", Kind::Gauge),
        ("chassis/1U/environment/energy", "kW.h", Kind::Counter),
        ("chassis/1U/environment/power_apparent_power", "V.A", Kind::Gauge),
        ("chassis/1U/sensor/Energy", "J", Kind::Counter),
        ("chassis/Blade/supply/Bay1/input_current", "A", Kind::Gauge),
        ("chassis/CDU/sensor/Flow", "L/min", Kind::Gauge),
        ("chassis/CDU/sensor/Fan", "/min", Kind::Gauge),
        ("chassis/CDU/sensor/Valve", "%", Kind::Gauge),
        ("system/437XR/power_state", "1", Kind::Gauge),
    ] {
        assert_eq!((sensor(name).unit.as_str(), sensor(name).kind), (unit, kind), "{name}");
    }
    let text = &sensor("chassis/1U/temperature/CPU1_Temp").description;
    assert_eq!(text, "CPU1 Temp (CPU); upper caution 42; upper critical 45");
    assert!(sensor("chassis/1U/sensor/Ambient").description.ends_with("upper caution 40.5; upper critical 45"));
}

#[test]
fn thresholds_health_and_filters_are_settings() {
    let folder = tempfile::tempdir().unwrap();
    copy_mockup(folder.path());
    let peer = PythonPeer::start("sushy-static", &["-m", &folder.path().display().to_string()]);
    let keys = "thresholds = true\nhealth = true\nsubsystems = [\"thermal\", \"power\"]\n\
                sensors = { include = [\"chassis/1U/**\"], exclude = [\"**/supply/**\"] }";
    let values = all_values(&mut peer.running(keys), 2);
    let value = |name: &str| values.get(&format!("b/chassis/1U/{name}")).copied().flatten();
    assert_eq!(value("threshold/temperature/CPU1_Temp/upper_critical"), Some(45.0));
    assert_eq!(value("threshold/voltage/12V_Rail/lower_critical"), Some(11.0));
    assert_eq!((value("health/fan/Fan_1/speed"), value("health/fan/Fan_2/percent")), (Some(1.0), Some(0.0)));
    assert!(values.keys().all(|name| name.starts_with("b/chassis/1U/") && !name.contains("/supply/")), "{values:?}");
    // Without the part of a chassis that has both models.
    let values = all_values(&mut peer.running("prefer = \"subsystems\"\nsubsystems = [\"thermal\"]"), 2);
    assert!(values.keys().all(|name| name.starts_with("b/chassis/Blade/")), "{values:?}");
}

#[test]
fn values_of_a_report_have_their_own_times() {
    let folder = tempfile::tempdir().unwrap();
    let now = copy_mockup(folder.path());
    let peer = PythonPeer::start("sushy-static", &["-m", &folder.path().display().to_string()]);
    let mut running = peer.running("subsystems = [\"telemetry\"]");
    let group = "b/report/AvgPlatformPower";
    let power = format!("{group}/AverageConsumedWatts/Chassis_1U_Power_0_PowerConsumedWatts");
    let packets = format!("{group}/Packets");
    let mut samples = Vec::new();
    wait_until("three samples", || {
        let (reading, values) = running.read(group);
        if let Some(at) = reading.taken_at {
            samples.push((now - at / 1_000_000_000, values[&power], values[&packets]));
        }
        samples.len() == 3
    });
    assert_eq!(samples, [(20, Some(100.0), None), (10, Some(94.5), None), (0, Some(92.0), Some(12345.0))]);
    // The report stays the same: nothing is repeated.
    let before = running.read("redfish").1["redfish/requests"];
    wait_until("the report is polled again", || {
        running.read("redfish").1["redfish/requests"] > before.map(|count| count + 2.0)
    });
    let (reading, _) = running.read(group);
    assert!(reading.unchanged && reading.taken_at.is_none(), "{reading:?}");
    let sensors = &running.group(group).sensors;
    let of = |name: &str| {
        sensors.iter().find(|sensor| sensor.name == name).map(|sensor| (sensor.unit.as_str(), sensor.kind))
    };
    assert_eq!(of(&power), Some(("W", Kind::Gauge)));
    assert_eq!(of(&packets), Some(("{packet}", Kind::Counter)));
    assert_eq!(sensors.len(), 2, "a value that is no number is no sensor");
}

#[test]
fn values_of_the_emulator_are_those_of_an_independent_reader() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("sushy.conf");
    std::fs::write(&config, format!("SUSHY_EMULATOR_STATE_DIR = {:?}\n", folder.path().display().to_string())).unwrap();
    let peer = PythonPeer::start("sushy-emulator", &["--fake", "--config", &config.display().to_string()]);
    let expected = peer.independent();
    assert!(expected.len() >= 8, "{expected:?}");
    let mut running = peer.running("");
    let values = wait_for("all values", || {
        let values = all_values(&mut running, 3);
        (values.len() == expected.len()).then_some(values)
    });
    assert_eq!(values, expected);
}
