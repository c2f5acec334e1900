//! The cost of polling 1,000 controllers every 10 s: 20 sensors, power and the event log of each.
//!
//! `cargo run --release -p wholegrain-plugin-ipmi --example ipmi_controllers [seconds]`. Another process plays the controllers, with the tests' own side of RMCP+.

#[path = "../tests/ipmi/stand_in.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod stand_in;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use wholegrain_plugin_ipmi::SOURCE;
use wholegrain_source_testkit::{PeerProcess, PollCost, SampledSource, configure_plugin};
use wholegrain_testkit::wait_until;

use crate::stand_in::{Model, PASSWORD, StandIn, USER};

const CONTROLLERS: usize = 1000;
const SENSORS: u8 = 20;
/// The groups of each controller.
const GROUPS: usize = 3;
const INTERVAL: Duration = Duration::from_secs(10);

fn main() {
    if PeerProcess::is_this() {
        return peers();
    }
    let seconds = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok()).unwrap_or(60);
    let folder = tempfile::tempdir().expect("a folder");
    let credentials = folder.path().join("credentials");
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::create_dir(&credentials).expect("a new folder");
    std::fs::set_permissions(&credentials, mode(0o700)).expect("an own folder");
    let file = credentials.join("bmc");
    std::fs::write(&file, format!("user = \"{USER}\"\npassword = \"{PASSWORD}\"\n")).expect("a writable folder");
    std::fs::set_permissions(&file, mode(0o600)).expect("an own file");
    let peers = PeerProcess::start();
    let hosts: Vec<String> = peers.line.split(' ').map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let text = format!(
        "[plugins.ipmi]\ninterval = \"{}s\"\nfirst_answers = \"60s\"\n[[plugins.ipmi.device]]\nhosts = [{}]\ncredentials = \"bmc\"\npath = \"{{host}}\"\n",
        INTERVAL.as_secs(),
        hosts.join(", ")
    );
    let mut source = SampledSource::of(configure_plugin(&SOURCE, folder.path(), &text).expect("good settings"));
    wait_until("all groups", || {
        source.discover();
        source.groups.len() == CONTROLLERS * GROUPS + 1
    });
    let cost = PollCost::measure(&mut source, "ipmi", Duration::from_secs(seconds), INTERVAL);
    println!(
        "{CONTROLLERS} controllers every {} s, {SENSORS} sensors, power and event log of each: {cost}",
        INTERVAL.as_secs()
    );
}

/// Plays all controllers, a thread for each.
fn peers() {
    let controllers: Vec<StandIn> = (0..CONTROLLERS).map(|_| StandIn::start(Model::with_sensors(SENSORS))).collect();
    let ports: Vec<String> = controllers.iter().map(|controller| controller.port.to_string()).collect();
    println!("{}", ports.join(" "));
    loop {
        std::thread::park();
    }
}
