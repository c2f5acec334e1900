//! The source against ipmi_sim of OpenIPMI. ipmitool reads the same simulator, and its values are compared.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use wholegrain_testkit::{free_port, wait_until};

use crate::sampled::{Sampled, source};

const PASSWORD: &str = "hidden-word";

/// A running ipmi_sim with the configuration beside this file. It takes commands from its standard input.
struct Simulator {
    child: Child,
    commands: ChildStdin,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Simulator {
    fn start() -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ipmi");
        let config = std::fs::read_to_string(own.join("simulator.conf")).unwrap().replace("PORT", &port.to_string());
        std::fs::write(folder.path().join("lan.conf"), config).unwrap();
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let mut child = Command::new("ipmi_sim")
            .arg("-c")
            .arg(folder.path().join("lan.conf"))
            .arg("-f")
            .arg(own.join("simulator.emu"))
            .arg("-s")
            .arg(&state)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ipmi_sim runs; testing/prepare installs it");
        let commands = child.stdin.take().unwrap();
        let simulator = Self { child, commands, port, _folder: folder };
        wait_until("ipmi_sim answers", || simulator.ipmitool(&["mc", "info"]).is_some());
        simulator
    }

    /// What ipmitool prints, if it is successful.
    fn ipmitool(&self, arguments: &[&str]) -> Option<String> {
        let port = self.port.to_string();
        let output = Command::new("ipmitool")
            .args(["-I", "lanplus", "-H", "127.0.0.1", "-p", &port, "-U", "monitor", "-P", PASSWORD])
            .args(["-L", "user", "-C", "3", "-N", "5", "-R", "2"])
            .args(arguments)
            .output()
            .expect("ipmitool runs; testing/prepare installs it");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&mut self, text: &str) {
        writeln!(self.commands, "{text}").unwrap();
    }

    fn source(&self, keys: &str, user: &str) -> Sampled {
        let text = format!(
            "[plugins.ipmi]\ninterval = \"500ms\"\ntimeout = \"5s\"\n\
             [[plugins.ipmi.device]]\nhosts = [\"127.0.0.1:{}\"]\npath = \"n1\"\ncredentials = \"bmc\"\n{keys}\n",
            self.port
        );
        source(&text, &format!("user = \"{user}\"\npassword = \"{PASSWORD}\"\n"))
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The numbers of `ipmitool sensor`, by name: its number, unit and thresholds from the lowest on.
fn tool_sensors(simulator: &Simulator) -> Vec<(String, Vec<String>)> {
    let text = simulator.ipmitool(&["sensor"]).expect("ipmitool reads the sensors");
    text.lines()
        .map(|line| {
            let mut columns = line.split('|').map(|column| column.trim().to_owned());
            (columns.next().unwrap_or_default(), columns.collect())
        })
        .collect()
}

#[test]
fn readings_are_those_of_ipmitool() {
    let simulator = Simulator::start();
    let mut sampled = simulator.source("groups = [\"sensors\"]", "monitor");
    let values = sampled.wait("n1/sensors");
    let units: BTreeMap<&str, &str> =
        [("degrees C", "Cel"), ("Volts", "V"), ("RPM", "/min"), ("Watts", "W"), ("percent", "%")].into();
    let mut temps = 0;
    let tool = tool_sensors(&simulator);
    let expected = ["CPU Temp", "P12V", "Ambient", "Fan 1", "Temp", "Temp", "Off", "PSU1", "Power", "Load"];
    let names: Vec<&str> = tool.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, expected, "the sensors of simulator.emu");
    for (name, columns) in &tool {
        let name = match name.as_str() {
            "Temp" => {
                temps += 1;
                format!("n1/Temp:3.{temps}")
            }
            name => format!("n1/{}", name.replace(' ', "_")),
        };
        match columns[0].parse::<f64>() {
            // ipmitool prints three digits.
            Ok(number) => {
                let value = values[&name];
                assert!((value - number).abs() < 0.000_51, "{name}: {value}, {number} by ipmitool");
                assert_eq!(sampled.sensor(&name).unit, units[columns[1].as_str()], "{name}");
            }
            Err(_) => assert!(!values.contains_key(&name), "{name} has no number: {values:?}"),
        }
    }
    assert_eq!((values["n1/Ambient"], values["n1/P12V"]), (-10.0, 11.82));
    // Presence of the power supply; a sensor that is not scanned is a gap, with its states.
    assert_eq!(values["n1/state/PSU1"], 1.0);
    assert!(!values.contains_key("n1/Off") && !values.contains_key("n1/state/Off"));
    assert_eq!(sampled.sensor("n1/Off").unit, "Cel");
    let text = &sampled.sensor("n1/CPU_Temp").description;
    let expected =
        "Temperature of processor 3.1; upper non-critical 112; upper critical 224; upper non-recoverable 240.";
    assert_eq!(text, expected, "{:?}", tool[0]);
    assert_eq!(tool[0].1[6..9], ["112.000", "224.000", "240.000"]);
}

#[test]
fn values_and_states_follow_the_simulator() {
    let mut simulator = Simulator::start();
    let mut sampled = simulator.source("groups = [\"sensors\"]\nsession = \"close\"", "admin");
    sampled.wait_for_value("n1/sensors", "n1/CPU_Temp", 96.0);
    assert_eq!(sampled.wait("n1/sensors")["n1/state/CPU_Temp"], 0.0);
    simulator.command("sensor_set_value 0x20 0 1 0xe5 0");
    sampled.wait_for_value("n1/sensors", "n1/CPU_Temp", 229.0);
    // Upper non-critical and upper critical.
    sampled.wait_for_value("n1/sensors", "n1/state/CPU_Temp", 24.0);
    simulator.command("sensor_set_bit 0x20 0 20 1 1 0");
    sampled.wait_for_value("n1/sensors", "n1/state/PSU1", 3.0);
}

#[test]
fn entries_of_the_log_are_those_of_ipmitool() {
    let mut simulator = Simulator::start();
    simulator.command("sel_add 0x20 2 0 0 0 0x60 0x20 0 4 1 1 1 0x59 0 0");
    wait_until("an entry", || simulator.ipmitool(&["sel", "elist"]).is_some_and(|text| text.contains("CPU Temp")));
    let mut sampled = simulator.source("groups = [\"sel\"]\nprivilege = \"operator\"", "admin");
    let values = sampled.wait("n1/sel");
    assert_eq!((values["n1/sel/entries"], values["n1/sel/asserted/CPU_Temp"]), (1.0, 0.0));
    simulator.command("sel_add 0x20 2 1 0 0 0x60 0x20 0 4 1 1 1 0x59 0 0");
    simulator.command("sel_add 0x20 2 2 0 0 0x60 0x20 0 4 1 1 0x81 0x59 0 0");
    simulator.command("sel_add 0x20 2 3 0 0 0x60 0x20 0 4 8 20 0x6f 1 0xff 0xff");
    sampled.wait_for_value("n1/sel", "n1/sel/events", 3.0);
    let values = sampled.wait("n1/sel");
    assert_eq!((values["n1/sel/asserted/CPU_Temp"], values["n1/sel/asserted/PSU1"]), (1.0, 1.0));
    assert_eq!(values["n1/sel/entries"], 4.0);
    let text = simulator.ipmitool(&["sel", "info"]).unwrap();
    let free: f64 = text
        .lines()
        .find_map(|line| line.strip_prefix("Free Space       : ")?.split(' ').next()?.parse().ok())
        .unwrap();
    assert_eq!(values["n1/sel/free"], free);
}

#[test]
fn a_simulator_without_dcmi_has_no_power_and_no_fault() {
    let simulator = Simulator::start();
    let mut sampled = simulator.source("", "admin");
    sampled.wait("n1/sensors");
    sampled.wait("n1/sel");
    sampled.discover();
    assert!(!sampled.has_group("n1/power"));
    assert_eq!(sampled.status("failing"), 0, "{:?}", sampled.notes);
}

#[test]
fn wrong_passwords_and_users_are_named_once() {
    let simulator = Simulator::start();
    for (user, password) in [("monitor", "wrong-word"), ("nobody", PASSWORD)] {
        let text = format!(
            "[plugins.ipmi]\ninterval = \"200ms\"\ntimeout = \"5s\"\n\
             [[plugins.ipmi.device]]\nhosts = [\"127.0.0.1:{}\"]\npath = \"n1\"\ncredentials = \"bmc\"\n",
            simulator.port
        );
        let mut sampled = source(&text, &format!("user = \"{user}\"\npassword = \"{password}\"\n"));
        wait_until("the refusal is named", || sampled.noted("refuses the credentials") == 1);
        assert!(!sampled.notes.concat().contains(password));
    }
}
