//! `make demo-facility` as a user has it: devices of four protocols, the agent with four plug-ins, the server, virtual sensors by the command line.
//!
//! - Input: the peers of `demo/facility`, whose values are a function of seed and time.
//! - Output: measured power, heat, efficiency and PUE beside those of the model at the same times; gaps while a device is away.
//! - Never: a comparison with a time that the machine's load decides.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wholegrain_model::Timestamp;
use wholegrain_testing::{DEADLINE, Process, checkout, free_port, program, wait_for, wait_until};

const SEED: &str = "7";
/// Between two polls, and between two values of virtual sensors, s.
const INTERVAL_S: i64 = 3;
/// How long a device is away, s: longer than its newest value counts.
const AWAY_S: &str = "20";
/// Values that are compared.
const VALUES: usize = 8;
const PLUGINS: [&str; 4] = ["bacnet", "modbus", "rest", "snmp"];
const SECOND_NS: i64 = 1_000_000_000;

/// A reading: ns since the epoch, and the value or a gap.
type Measured = (i64, Option<f64>);

fn python() -> PathBuf {
    let interpreter = checkout().join(".venv/bin/python");
    assert!(interpreter.exists(), "{} is missing: `make prepare` installs it", interpreter.display());
    interpreter
}

fn now_ns() -> i64 {
    std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as i64
}

/// The model's states between two times, s, by time.
fn truth(seed: &str, from_s: i64, to_s: i64, every_s: i64) -> BTreeMap<i64, Value> {
    let numbers = [from_s, to_s, every_s].map(|number| number.to_string());
    let output = Command::new(python())
        .arg(checkout().join("demo/facility/plant.py"))
        .args(["--seed", seed, "--from", &numbers[0], "--to", &numbers[1], "--every", &numbers[2]])
        .output()
        .expect("python");
    assert!(output.status.success(), "plant.py: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let states = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    states.map(|state| (state["time"].as_f64().expect("a time") as i64, state)).collect()
}

/// A running demonstration. The process is ended before its folder is removed.
struct Facility {
    runs: Process,
    dir: tempfile::TempDir,
}

impl Facility {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let plugins = dir.path().join("plugins");
        fs::create_dir(&plugins).expect("a folder");
        for folder in [dir.path(), &plugins] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("the mode of a folder");
        }
        for name in PLUGINS {
            let to = plugins.join(format!("{name}.so"));
            fs::copy(program(&format!("libwholegrain_plugin_{name}.so")), &to).expect("a plug-in");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o644)).expect("the mode of a plug-in");
        }
        let mut command = Command::new(python());
        command.current_dir(dir.path()).env_remove("WHOLEGRAIN_CLIENT");
        command.arg(checkout().join("demo/facility/facility.py")).arg("--dir").arg(dir.path().join("facility"));
        command.arg("--bin").arg(program("wholegrain").parent().expect("a folder")).arg("--plugins").arg(&plugins);
        command.args(["--seed", SEED, "--interval", &format!("{INTERVAL_S}s"), "--restart-after", AWAY_S]);
        for name in ["snmp", "modbus", "bacnet", "rest", "mqtt", "http"] {
            command.args([&format!("--{name}-port"), &free_port().to_string()]);
        }
        let mut runs = Process::start(&mut command, &dir.path().join("facility.log"));
        let began = Instant::now();
        while !runs.log().contains("Ctrl-C stops") {
            assert!(runs.runs() && began.elapsed() < 5 * DEADLINE, "no facility: {}", runs.log());
            std::thread::sleep(Duration::from_millis(100));
        }
        Self { runs, dir }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join("facility").join(relative)
    }

    /// The output of `wholegrain`; empty if nothing matched.
    fn answer(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(program("wholegrain"));
        let output = command.args(arguments).env("WHOLEGRAIN_CLIENT", self.path("client.toml")).output();
        let output = output.expect("wholegrain");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "wholegrain {arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Readings of a sensor from a time on.
    fn readings(&self, sensor: &str, from_ns: i64) -> Vec<Measured> {
        let from = format!("@{}.{:09}", from_ns / SECOND_NS, from_ns % SECOND_NS);
        let text = self.answer(&["query", sensor, "--from", &from, "--format", "csv"]);
        let reading = |line: &str| {
            let columns: Vec<&str> = line.split(',').collect();
            let time = Timestamp::parse(columns[1], Timestamp(0)).expect("a time").0;
            (time, (!columns[2].is_empty()).then(|| columns[2].parse().expect("a number")))
        };
        text.lines().skip(1).map(reading).collect()
    }

    /// Waits for values of a sensor from a time on, without a gap among them. At the newest times some devices have not answered yet.
    #[track_caller]
    fn values(&self, sensor: &str, from_ns: i64) -> Vec<(i64, f64)> {
        wait_for(&format!("values of {sensor}"), || {
            let mut readings = self.readings(sensor, from_ns);
            while readings.pop_if(|(_, value)| value.is_none()).is_some() {}
            let values: Option<Vec<(i64, f64)>> =
                readings.iter().map(|(time, value)| Some((*time, (*value)?))).collect();
            let values = values.unwrap_or_else(|| panic!("{sensor} has a gap: {readings:?}\n{}", self.logs()));
            (values.len() >= VALUES).then_some(values)
        })
    }

    /// Compares a virtual sensor with the model at each of its times, and in the mean.
    #[track_caller]
    fn check(&self, sensor: &str, from_ns: i64, unit: f64, model: impl Fn(&Value) -> f64) {
        let values = self.values(sensor, from_ns);
        let (first, last) = (values[0].0 / SECOND_NS, values[values.len() - 1].0 / SECOND_NS);
        let truth = truth(SEED, first, last, INTERVAL_S);
        let pairs: Vec<(f64, f64)> =
            values.iter().map(|(time, value)| (value * unit, model(&truth[&(time / SECOND_NS)]))).collect();
        // Devices are polled at different times of an interval, and a busy machine answers late: the model changes by 1 % in a second.
        assert!(pairs.iter().all(|(value, truth)| (value / truth - 1.0).abs() < 0.03), "{sensor}: {pairs:?}");
        let sums = pairs.iter().fold((0.0, 0.0), |sums, (value, truth)| (sums.0 + value, sums.1 + truth));
        assert!((sums.0 / sums.1 - 1.0).abs() < 0.015, "{sensor}: {pairs:?}");
    }

    /// The logs of all programs.
    fn logs(&self) -> String {
        let files = fs::read_dir(self.path("log")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect()
    }

    fn number(&self, program: &str) -> i32 {
        let text = fs::read_to_string(self.path(&format!("run/{program}.pid"))).expect("the number of a process");
        text.trim().parse().expect("a number")
    }
}

#[test]
fn measured_efficiency_is_that_of_the_plant_and_a_lost_device_is_a_gap() {
    let mut facility = Facility::start();
    units(&facility);
    let from = now_ns();
    facility.check("/plant/power", from, 1000.0, |truth| truth["power_w"].as_f64().unwrap());
    facility.check("/plant/heat", from, 1000.0, |truth| truth["heat_w"].as_f64().unwrap());
    facility.check("/plant/efficiency", from, 0.01, |truth| truth["efficiency"].as_f64().unwrap());
    facility.check("/plant/pue", from, 1.0, |truth| truth["pue"].as_f64().unwrap());
    // The two meters have different registers and units.
    for (at, name) in ["loop1", "loop2"].into_iter().enumerate() {
        let heat = |truth: &Value| truth["loops"][at]["heat_w"].as_f64().unwrap();
        facility.check(&format!("/plant/cooling/{name}/heat"), from, 1000.0, heat);
    }
    documented_commands(&facility);
    lost_device(&facility);
    secrets(&facility);
    end(&mut facility);
}

/// The units are those of the devices and of the definitions.
fn units(facility: &Facility) {
    let expected = [
        ("/plant/racks/rack1/power", "W"),
        ("/plant/cooling/loop1/flow", "m3/h"),
        ("/plant/cooling/loop2/flow", "L/s"),
        ("/plant/cooling/loop1/outlet", "Cel"),
        ("/plant/cooling/pump1/power", "kW"),
        ("/plant/building/meter/ups-loss/power", "kW"),
        ("/plant/building/weather/temperature", "Cel"),
        ("/plant/power", "kW"),
        ("/plant/cooling/loop2/heat", "kW"),
        ("/plant/efficiency", "%"),
        ("/plant/efficiency_5min", "%"),
        ("/plant/pue", "1"),
    ];
    wait_until("all sensors", || {
        let text = facility.answer(&["sensors", "/plant/**", "--format", "csv"]);
        expected.iter().all(|(path, unit)| text.contains(&format!("{path},{unit},")))
    });
}

/// The commands of the README and of the terminal print something.
fn documented_commands(facility: &Facility) {
    let readme = fs::read_to_string(checkout().join("demo/facility/README.md")).expect("the README");
    let block = readme.split("```").nth(1).expect("a block of commands");
    let log = facility.runs.log();
    let shown =
        log.lines().filter_map(|line| line.strip_prefix("  wholegrain ")).filter(|line| !line.starts_with("watch"));
    let commands: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("wholegrain ")).chain(shown).collect();
    assert!(commands.len() >= 8, "{commands:?}");
    for command in commands {
        let output = Command::new("bash")
            .args(["-c", &format!("{} {command}", program("wholegrain").display())])
            .env("WHOLEGRAIN_CLIENT", facility.path("client.toml"))
            .output()
            .expect("bash");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.split(|byte| *byte == b'\n').count() > 2, "{command} prints nothing");
    }
}

/// The gateway of the heat meters is killed: gaps and nothing else, until it is back; power goes on.
fn lost_device(facility: &Facility) {
    let flow = "/plant/cooling/loop1/flow";
    let number = facility.number("loops");
    // SAFETY: kill takes plain numbers; the process is a child of the facility, which is running.
    unsafe { libc::kill(number, libc::SIGKILL) };
    let killed = now_ns();
    wait_until("a gap", || facility.readings(flow, killed).iter().any(|(_, value)| value.is_none()));
    wait_until("the device again", || facility.runs.log().contains("loops runs again"));
    assert_ne!(facility.number("loops"), number);
    let back = wait_for("values again", || {
        let readings = facility.readings(flow, killed);
        let first_gap = readings.iter().position(|(_, value)| value.is_none())?;
        readings[first_gap..].iter().find(|(_, value)| value.is_some()).map(|(time, _)| *time)
    });
    let readings = facility.readings(flow, killed);
    let before: Vec<&Measured> = readings.iter().take_while(|(_, value)| value.is_some()).collect();
    // An answer may have been on its way.
    assert!(before.len() <= 1, "values of a device that was killed: {readings:?}");
    // Its absence is as long as it was away, and not one gap.
    assert!(readings.iter().filter(|(_, value)| value.is_none()).count() >= 2, "{readings:?}");
    let heat = facility.readings("/plant/heat", killed);
    let in_absence = |time: i64| time > killed + 2 * INTERVAL_S * SECOND_NS && time < back - SECOND_NS;
    assert!(heat.iter().all(|(time, value)| !in_absence(*time) || value.is_none()), "heat without a meter: {heat:?}");
    let power = facility.readings("/plant/power", killed);
    let powers: Vec<&Measured> = power.iter().filter(|(time, _)| in_absence(*time)).collect();
    assert!(powers.len() >= 3 && powers.iter().all(|(_, value)| value.is_some()), "power goes on: {power:?}");
    let steady = wait_for("heat again", || {
        let readings = facility.readings("/plant/heat", back);
        readings.iter().find(|(_, value)| value.is_some()).map(|(time, _)| *time)
    });
    facility.check("/plant/heat", steady, 1000.0, |truth| truth["heat_w"].as_f64().unwrap());
}

/// Only the owner can read secrets, and no log has them.
fn secrets(facility: &Facility) {
    let settings = fs::read_to_string(facility.path("peers/settings.json")).expect("the settings");
    let settings: Value = serde_json::from_str(&settings).expect("JSON");
    let secrets = ["snmp_password", "rest_token"].map(|name| settings[name].as_str().expect("a secret").to_owned());
    for file in ["agent/credentials/pdus", "agent/credentials/building", "peers/settings.json"] {
        let mode = fs::metadata(facility.path(file)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file}");
    }
    for file in fs::read_dir(facility.path("log")).expect("a folder") {
        let text = fs::read_to_string(file.expect("an entry").path()).expect("a log");
        assert!(secrets.iter().all(|secret| !text.contains(secret)), "{text}");
    }
    for program in ["pdus", "building", "agent"] {
        let line = fs::read(format!("/proc/{}/cmdline", facility.number(program))).expect("a command line");
        assert!(secrets.iter().all(|secret| !String::from_utf8_lossy(&line).contains(secret)), "{program}");
    }
}

/// Ctrl-C ends all processes.
fn end(facility: &mut Facility) {
    let programs = ["pdus", "loops", "plant_controller", "building", "server", "agent"];
    let numbers = programs.map(|program| facility.number(program));
    facility.runs.signal(libc::SIGINT);
    let status = facility.runs.wait();
    assert!(status.success(), "{status}: {}", facility.runs.log());
    let left = numbers.iter().filter(|number| fs::exists(format!("/proc/{number}")).unwrap_or(false));
    assert_eq!(left.count(), 0, "{numbers:?}: {}", facility.runs.log());
}

#[test]
fn a_directory_that_another_user_prepared_is_refused() {
    // SAFETY: takes no argument and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("NOT TESTED: only root can give a file to another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("venv/bin");
    fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/echo", bin.join("python")).unwrap();
    for place in [dir.path(), &dir.path().join("venv"), &bin] {
        std::os::unix::fs::chown(place, Some(12345), None).unwrap();
        let output = Command::new(checkout().join("demo/facility/run")).arg(dir.path()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(error.contains("belongs to another user"), "{error}");
        std::os::unix::fs::chown(place, Some(0), None).unwrap();
    }
}

#[test]
fn the_plant_is_a_function_of_seed_and_time_that_removes_nine_tenths() {
    let (from, to) = (1_790_000_040, 1_790_000_040 + 6 * 3600);
    let states = truth("1", from, to, 60);
    assert_eq!(states, truth("1", from, to, 60));
    assert_ne!(states, truth("2", from, to, 60));
    // A later begin changes nothing: a peer that starts again goes on.
    assert_eq!(states[&(to - 60)], truth("1", to - 60, to, 60)[&(to - 60)]);
    let sum = |key: &str| states.values().map(|state| state[key].as_f64().expect("a number")).sum::<f64>();
    let efficiency = sum("heat_w") / sum("power_w");
    assert!((0.88..0.92).contains(&efficiency), "{efficiency}");
}
