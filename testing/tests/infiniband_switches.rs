//! The program for switch ports of InfiniBand beside a simulated fabric: ibsim with two switches, configured by a real subnet manager.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use wholegrain_testing::{checkout, wait_until};

/// Two switches with two links between them, and a host at each.
const NET: &str = "Switch 8 \"edge1\"\n[1] \"host1\"[1]\n[3] \"edge2\"[3]\n[5] \"edge2\"[5]\n\n\
                   Switch 8 \"edge2\"\n[1] \"host2\"[1]\n[3] \"edge1\"[3]\n[5] \"edge1\"[5]\n\n\
                   Hca 2 \"host1\"\n[1] \"edge1\"[1]\n\nHca 2 \"host2\"\n[1] \"edge2\"[1]\n";
/// Bytes of a management datagram in the counters: 72 units of 4 bytes, whatever it carries.
const DATAGRAM_BYTES: u64 = 288;

/// A running simulator. Its console is its standard input: it ends with that.
struct Fabric {
    simulator: Child,
    folder: tempfile::TempDir,
}

impl Fabric {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("net"), NET).expect("a file");
        let mut ibsim = Command::new("ibsim");
        ibsim
            .args(["-s", "net"])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let simulator = ibsim.spawn().expect("ibsim; run make prepare");
        let fabric = Self { simulator, folder };
        wait_until("the simulator", || {
            fabric.command("ibswitches").output().is_ok_and(|output| output.status.success())
        });
        fabric
    }

    /// A command whose adapter is that of host1.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ibsim-run");
        command.arg(program).env("SIM_HOST", "host1").current_dir(self.folder.path()).stderr(Stdio::null());
        command
    }

    fn configure(&self) {
        let mut manager = self.command("opensm");
        manager
            .args(["-o", "-f", "opensm.log"])
            .env("OSM_CACHE_DIR", self.folder.path())
            .env("OSM_TMP_DIR", self.folder.path());
        assert!(manager.output().expect("opensm").status.success());
    }

    fn counters(&self, arguments: &[&str]) -> (Option<i32>, BTreeMap<String, u64>) {
        let program = checkout().join("packaging/programs/infiniband-switches");
        let mut command = self.command(program.to_str().expect("UTF-8"));
        let output = command.arg("--once").args(arguments).output().expect("the program");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let counter = |line: &str| {
            let mut words = line.split(' ');
            let (name, value) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
            let unit = if name.ends_with("_data") { "unit=By" } else { "unit=1" };
            assert_eq!(words.collect::<Vec<_>>(), [unit, "kind=counter", "type=int"], "{line}");
            Some((name, value))
        };
        let counters: BTreeMap<_, _> = text.lines().map(|line| counter(line).expect("name value")).collect();
        assert_eq!(counters.len(), text.lines().count(), "a name twice: {text}");
        (output.status.code(), counters)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        drop(self.simulator.kill());
        drop(self.simulator.wait());
    }
}

#[test]
fn counters_of_all_switch_ports_are_in_bytes_and_rise() {
    let fabric = Fabric::start();
    let (code, counters) = fabric.counters(&[]);
    assert_eq!((code, counters.len()), (Some(1), 0), "without a subnet manager no switch has a LID");

    fabric.configure();
    let (code, first) = fabric.counters(&[]);
    assert_eq!(code, Some(0));
    let ports: Vec<_> = first.keys().filter(|name| name.ends_with("/xmit_data")).collect();
    assert_eq!(ports.len(), 16, "{ports:?}");
    assert_eq!(first.len(), 16 * 17, "4 counters of 64 bits and 13 of errors for each port");
    for port in ["edge1/1", "edge1/3", "edge2/3", "edge2/5"] {
        let value = |counter: &str| first[&format!("{port}/{counter}")];
        assert!(value("xmit_packets") > 0, "{port}: {first:?}");
        assert_eq!(value("xmit_data"), value("xmit_packets") * DATAGRAM_BYTES, "{port}");
        assert_eq!(value("rcv_data"), value("rcv_packets") * DATAGRAM_BYTES, "{port}");
    }
    assert_eq!(first["edge1/2/xmit_data"], 0, "nothing is connected there");

    let (_, second) = fabric.counters(&[]);
    assert!(first.iter().all(|(name, value)| second[name] >= *value));
    assert!(second["edge1/1/xmit_data"] > first["edge1/1/xmit_data"], "the program's own requests are counted");

    let (_, by_guid) = fabric.counters(&["--names", "guid"]);
    assert!(by_guid.keys().all(|name| name.starts_with("0x")), "{by_guid:?}");
}
