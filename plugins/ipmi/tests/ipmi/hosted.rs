//! The plug-in through the C interface, as the agent calls the shared object.

use wholegrain_plugin::abi::PluginDescriptor;
use wholegrain_plugin::{HostError, HostSettings, HostedSource};
// Links the plug-in, whose symbol is called below.
use wholegrain_plugin_ipmi as _;
use wholegrain_sources::ConfigureContext;
use wholegrain_testkit::wait_until;

use crate::sampled::{put_credentials, right};

unsafe extern "C" {
    safe fn wholegrain_source_v1() -> *const PluginDescriptor;
}

fn hosted(table: &str, folder: &std::path::Path) -> Result<HostedSource, HostError> {
    let context = ConfigureContext { config_dir: folder.to_owned(), ..ConfigureContext::default() };
    let settings = HostSettings { table: table.to_owned(), file: "agent.toml".to_owned(), context };
    // SAFETY: the descriptor of the plug-in that this program links.
    unsafe { HostedSource::configure(wholegrain_source_v1(), &settings) }
}

#[test]
fn the_symbol_configures_discovers_and_reads() {
    let folder = tempfile::tempdir().unwrap();
    put_credentials(folder.path(), "bmc", &right());
    let table = "interval = \"100ms\"\ntimeout = \"100ms\"\nretries = 0\n[local]\ndevice = \"/nonexistent/ipmi0\"\n\
        interval = \"100ms\"\n[[device]]\nhosts = [\"127.0.0.1:9\"]\ncredentials = \"bmc\"\n";
    let mut source = hosted(table, folder.path()).unwrap();
    assert_eq!(source.name(), "ipmi");
    let mut found = source.discover().unwrap();
    let names: Vec<&str> = found.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["ipmi", "ipmi/local"], "nothing answers: only the status of both");
    let absent =
        "device bmc (/nonexistent/ipmi0, of the kernel modules ipmi_devintf and ipmi_si): No such file or directory";
    for text in ["device 127.0.0.1:9 ", absent] {
        assert!(found.notes.iter().any(|note| note.starts_with(text)), "{text}: {:?}", found.notes);
    }
    wait_until("both fail", || {
        found.groups.iter_mut().all(|status| {
            let (mut values, mut gaps) = ([0; 6], [0; 1]);
            status.reader.read(&mut values, &mut gaps);
            values[..2] == [3, 1]
        })
    });
}
