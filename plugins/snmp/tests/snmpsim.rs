//! The source against snmpsim, which plays power distribution units, switches and many agents at a time.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{put_credentials, source};
use wholegrain_model::Kind;
use wholegrain_testkit::checkout::root;
use wholegrain_testkit::free_port;

/// A unit of PowerNet-MIB with three outlets, of which one has no meter (-1) and two have one name.
const PDU: &str = "\
1.3.6.1.2.1.1.3.0|67|12345
1.3.6.1.4.1.318.1.1.26.4.3.1.5.1|2|123
1.3.6.1.4.1.318.1.1.26.4.3.1.9.1|66|45678
1.3.6.1.4.1.318.1.1.26.6.3.1.5.1|2|57
1.3.6.1.4.1.318.1.1.26.6.3.1.6.1|2|230
1.3.6.1.4.1.318.1.1.26.6.3.1.7.1|2|131
1.3.6.1.4.1.318.1.1.26.9.4.3.1.3.1|4|node 1
1.3.6.1.4.1.318.1.1.26.9.4.3.1.3.2|4|spare
1.3.6.1.4.1.318.1.1.26.9.4.3.1.3.3|4|spare
1.3.6.1.4.1.318.1.1.26.9.4.3.1.6.1|2|12
1.3.6.1.4.1.318.1.1.26.9.4.3.1.6.2|2|0
1.3.6.1.4.1.318.1.1.26.9.4.3.1.6.3|2|-1
1.3.6.1.4.1.318.1.1.26.9.4.3.1.7.1|2|276
1.3.6.1.4.1.318.1.1.26.9.4.3.1.7.2|2|0
1.3.6.1.4.1.318.1.1.26.9.4.3.1.11.1|66|777
";

/// A switch with 40 ports: IF-MIB with 64-bit counters, and ENTITY-SENSOR-MIB with a temperature.
fn switch() -> String {
    let mut lines = vec![("1.3.6.1.2.1.1.3.0".to_owned(), "67|100".to_owned())];
    for port in 1..=40 {
        lines.push((format!("1.3.6.1.2.1.2.2.1.8.{port}"), "2|1".to_owned()));
        lines.push((format!("1.3.6.1.2.1.31.1.1.1.1.{port}"), format!("4|Eth1/{port}")));
        lines.push((format!("1.3.6.1.2.1.31.1.1.1.6.{port}"), format!("70|{}", 10_000_000_000u64 + port)));
        lines.push((format!("1.3.6.1.2.1.31.1.1.1.10.{port}"), format!("70|{port}")));
    }
    lines.push(("1.3.6.1.2.1.47.1.1.1.1.7.1006".to_owned(), "4|Inlet".to_owned()));
    for (column, value) in [(1, "2|8"), (2, "2|9"), (3, "2|1"), (4, "2|215"), (5, "2|1")] {
        lines.push((format!("1.3.6.1.2.1.99.1.1.1.{column}.1006"), value.to_owned()));
    }
    let key = |oid: &str| oid.split('.').map(|number| number.parse::<u64>().unwrap()).collect::<Vec<_>>();
    lines.sort_by_key(|(oid, _)| key(oid));
    lines.into_iter().map(|(oid, value)| format!("{oid}|{value}\n")).collect()
}

struct Simulator {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Simulator {
    fn start(addresses: &[String]) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::fs::write(folder.path().join("data/pdus.snmprec"), PDU).unwrap();
        std::fs::write(folder.path().join("data/switches.snmprec"), switch()).unwrap();
        put_credentials(folder.path(), "pdus", "community = \"pdus\"");
        put_credentials(folder.path(), "switches", "community = \"switches\"");
        let script = root().join("plugins/snmp/tests/agents.py");
        let python = root().join(".venv/bin/python");
        let child = Command::new(if python.exists() { python } else { PathBuf::from("python3") })
            .arg(script)
            .arg(folder.path())
            .arg(port.to_string())
            .args(addresses)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("python runs; testing/requirements.txt has snmpsim");
        Self { child, port, folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_pdu_and_a_switch_have_the_values_that_were_recorded() {
    let simulator = Simulator::start(&["127.0.0.1".to_owned()]);
    let port = simulator.port;
    for version in ["1", "2c"] {
        let text = format!(
            "[plugins.snmp]\ninterval = \"2s\"\ntimeout = \"2s\"\nport = {port}\n\
             [[plugins.snmp.device]]\nhosts = [\"127.0.0.1\"]\nversion = \"{version}\"\ncredentials = \"pdus\"\n\
             presets = [\"pdu\"]\npath = \"{{rack}}/pdu\"\nparameters = {{ rack = \"r7\" }}\n\
             [[plugins.snmp.device]]\nhosts = [\"127.0.0.1\"]\nversion = \"{version}\"\ncredentials = \"switches\"\n\
             presets = [\"ports\", \"sensors\"]\npath = \"r7/switch\"\n"
        );
        let mut sampled = source(&text, simulator.path());
        let values = sampled.wait("r7/pdu/pdu");
        let expected = [
            ("unit/1/rPDU2DeviceStatusPower", 123.0),
            ("unit/1/rPDU2DeviceStatusEnergy", 45_678.0),
            ("phase/1/rPDU2PhaseStatusCurrent", 57.0),
            ("phase/1/rPDU2PhaseStatusVoltage", 230.0),
            ("phase/1/rPDU2PhaseStatusPower", 131.0),
            ("outlet/node_1/rPDU2OutletMeteredStatusCurrent", 12.0),
            ("outlet/node_1/rPDU2OutletMeteredStatusPower", 276.0),
            ("outlet/node_1/rPDU2OutletMeteredStatusEnergy", 777.0),
            ("outlet/spare:2/rPDU2OutletMeteredStatusCurrent", 0.0),
            ("outlet/spare:2/rPDU2OutletMeteredStatusPower", 0.0),
        ];
        let expected = expected.map(|(name, value)| (format!("r7/pdu/{name}"), value)).into();
        assert_eq!(values, expected, "version {version}");
        let power = sampled.sensor("r7/pdu/unit/1/rPDU2DeviceStatusPower");
        assert_eq!((power.unit.as_str(), power.scale, power.kind), ("W", 10.0, Kind::Gauge));

        let ports = sampled.wait("r7/switch/ports");
        // Version 1 has no 64-bit counters.
        let has_counters = version == "2c";
        assert_eq!(ports.len(), if has_counters { 3 * 40 } else { 40 });
        for port in (1..=40).filter(|_| has_counters) {
            let row = format!("r7/switch/port/Eth1_{port}");
            assert_eq!(ports[&format!("{row}/ifHCInOctets")], 1e10 + f64::from(port));
            assert_eq!(ports[&format!("{row}/ifHCOutOctets")], f64::from(port));
        }
        assert_eq!(sampled.wait("r7/switch/sensors")["r7/switch/sensor/Inlet"], 215.0);
        let inlet = sampled.sensor("r7/switch/sensor/Inlet");
        assert_eq!((inlet.unit.as_str(), inlet.scale), ("Cel", 0.1));
    }
}

#[test]
fn hundreds_of_agents_of_one_list() {
    let addresses: Vec<String> = (1..=200).map(|host| format!("127.0.9.{host}")).collect();
    let simulator = Simulator::start(&addresses);
    // The simulator answers some tens of requests a second: few are in flight, and they wait.
    let text = format!(
        "[plugins.snmp]\ninterval = \"5min\"\ntimeout = \"20s\"\nin_flight = 8\nfirst_answers = \"1min\"\nport = {}\n\
         [plugins.snmp.template.pdu]\ncredentials = \"pdus\"\n\
         [[plugins.snmp.template.pdu.group]]\nname = \"power\"\n\
         object = [{{ oid = \"1.3.6.1.4.1.318.1.1.26.4.3.1.5.1\", name = \"power\", unit = \"W\", scale = 10 }}]\n\
         [[plugins.snmp.device]]\nhosts = [\"127.0.9.[1-200]\"]\ntemplate = \"pdu\"\npath = \"row1/pdu{{1}}\"\n",
        simulator.port
    );
    let mut sampled = source(&text, simulator.path());
    for number in 1..=200 {
        assert_eq!(sampled.wait(&format!("row1/pdu{number}/power"))[&format!("row1/pdu{number}/power")], 123.0);
    }
    assert_eq!(sampled.status("groups"), 200);
}
