//! The plug-in through the C interface, as the agent calls the shared object.

use std::time::Duration;

use wholegrain_plugin::abi::PluginDescriptor;
use wholegrain_plugin::{HostError, HostSettings, HostedSource};
// Links the plug-in, whose symbol is called below.
use wholegrain_plugin_snmp as _;
use wholegrain_sources::ConfigureContext;
use wholegrain_testkit::wait_until;

unsafe extern "C" {
    safe fn wholegrain_source_v1() -> *const PluginDescriptor;
}

fn hosted(table: &str) -> Result<HostedSource, HostError> {
    let settings =
        HostSettings { table: table.to_owned(), file: "agent.toml".to_owned(), context: ConfigureContext::default() };
    // SAFETY: the descriptor of the plug-in that this program links.
    unsafe { HostedSource::configure(wholegrain_source_v1(), &settings) }
}

#[test]
fn the_symbol_configures_discovers_and_reads() {
    let table = "[[device]]\nhosts = [\"127.0.0.1:9\"]\npresets = [\"ports\", \"ups\"]\n";
    let mut source = hosted(&format!("interval = \"100ms\"\ntimeout = \"100ms\"\nretries = 0\n{table}")).unwrap();
    assert_eq!(source.name(), "snmp");
    let mut found = source.discover().unwrap();
    assert_eq!(found.groups.len(), 1, "nothing answers: only the status");
    assert!(found.notes.iter().any(|note| note.starts_with("device 127.0.0.1:9 ")), "{:?}", found.notes);
    let status = &mut found.groups[0];
    let names: Vec<&str> = status.sensors.iter().map(|sensor| sensor.name.as_str()).collect();
    assert_eq!(names, ["snmp/groups", "snmp/failing", "snmp/polls", "snmp/answers", "snmp/timeouts", "snmp/strays"]);
    wait_until("the device fails", || {
        let (mut values, mut gaps) = ([0; 6], [0; 1]);
        status.reader.read(&mut values, &mut gaps);
        std::thread::sleep(Duration::from_millis(1));
        values[..2] == [2, 1]
    });
}

#[test]
fn errors_arrive_with_their_line() {
    let error = hosted("interval = \"1s\"\nintervall = \"1s\"\n").err();
    let Some(HostError::Settings { line: 2, message, .. }) = error else { panic!("{error:?}") };
    assert_eq!(message, "unknown key `intervall`; did you mean `interval`?");
}
