//! The cost of polling 1,000 controllers every 10 s: 20 temperatures in one resource of each, over a connection for each request.
//!
//! `cargo run --release -p wholegrain-plugin-redfish --example redfish_controllers [seconds]`. Another process plays the controllers, without TLS.

#[path = "../tests/redfish/service.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod service;

use std::time::Duration;

use serde_json::json;
use wholegrain_plugin_redfish::SOURCE;
use wholegrain_source_testkit::{PeerProcess, PollCost, SampledSource, configure_plugin};
use wholegrain_testkit::wait_until;

use crate::service::TestService;

const CONTROLLERS: usize = 1000;
const TEMPERATURES: usize = 20;
const INTERVAL: Duration = Duration::from_secs(10);

fn main() {
    if PeerProcess::is_this() {
        return peers();
    }
    let seconds = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok()).unwrap_or(60);
    let peers = PeerProcess::start();
    let hosts: Vec<String> = peers.line.split(' ').map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let text = format!(
        "[plugins.redfish]\ninterval = \"{}s\"\nfirst_answers = \"60s\"\n[[plugins.redfish.device]]\nhosts = [{}]\nscheme = \"http\"\n\
         path = \"{{host}}\"\nsubsystems = [\"thermal\"]\n",
        INTERVAL.as_secs(),
        hosts.join(", ")
    );
    let mut source = SampledSource::of(configure_plugin(&SOURCE, "".as_ref(), &text).expect("good settings"));
    wait_until("all groups", || {
        source.discover();
        source.groups.len() > CONTROLLERS
    });
    let cost = PollCost::measure(&mut source, "redfish", Duration::from_secs(seconds), INTERVAL);
    println!("{CONTROLLERS} controllers every {} s, {TEMPERATURES} temperatures of each: {cost}", INTERVAL.as_secs());
}

/// Plays all controllers, each on a port of its own.
fn peers() {
    let temperatures: Vec<_> = (0..TEMPERATURES)
        .map(|number| json!({ "MemberId": number.to_string(), "Name": format!("T{number}"), "ReadingCelsius": number }))
        .collect();
    let services: Vec<TestService> = (0..CONTROLLERS).map(|_| TestService::new()).collect();
    for service in &services {
        service.put("/redfish/v1/Chassis/1/Thermal", json!({ "Temperatures": temperatures }));
    }
    let ports: Vec<String> = services.iter().map(|service| service.port.to_string()).collect();
    println!("{}", ports.join(" "));
    loop {
        std::thread::park();
    }
}
