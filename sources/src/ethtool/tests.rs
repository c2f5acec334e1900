//! Devices of this machine, and a pair of virtual ones in a network namespace of the test's thread.

use std::collections::BTreeMap;
use std::process::Command;

use wholegrain_model::config::Document;
use wholegrain_testkit::wait_until;

use super::*;

fn source(sys: &Path, keys: &str) -> Box<dyn Source> {
    let config = format!("[sources.ethtool]\n{keys}");
    let section = Document::new("agent.toml", &config).root().child("sources").child("ethtool");
    let roots = crate::Roots { sys: sys.to_owned(), ..crate::Roots::default() };
    configure(&section, &roots.into()).unwrap()
}

fn read(group: &mut GroupPlan) -> (BTreeMap<String, Option<i64>>, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    (group.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), row.int(index))).collect(), reading)
}

/// A tree with folders of devices, of which `hardware` have hardware.
fn tree(devices: &[&str], hardware: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for device in devices {
        std::fs::create_dir_all(folder.path().join("class/net").join(device)).unwrap();
    }
    for device in hardware {
        std::fs::create_dir_all(folder.path().join("class/net").join(device).join("device")).unwrap();
    }
    folder
}

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}

#[test]
fn a_virtual_pair_in_a_namespace_of_its_own() {
    // SAFETY: it affects this thread only.
    let is_own = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !is_own || !ip("link add wg0 type veth peer name wg1") {
        println!("skipped: cannot add a pair of devices (needs root and iproute2)");
        return;
    }
    let tree = tree(&["lo", "wg0", "wg1"], &["wg0"]);
    let names = |group: &GroupPlan| group.sensors.iter().map(|sensor| sensor.name.clone()).collect::<Vec<_>>();
    let groups = source(tree.path(), "counters.include = [\"peer_ifindex\"]\n").discover(&mut |text| panic!("{text}"));
    assert!(names(&groups[0]).iter().all(|name| name.starts_with("ethtool/wg0/")), "{:?}", names(&groups[0]));

    let keys = "virtual_devices = true\ndevices.exclude = [\"lo\"]\ncounters.include = [\"peer_ifindex\"]\n";
    let mut both = source(tree.path(), keys);
    let mut group = both.discover(&mut |text| panic!("{text}")).remove(0);
    let (values, reading) = read(&mut group);
    assert_eq!(reading, Reading::COMPLETE);
    let index = |device: &str| {
        let name = std::ffi::CString::new(device).unwrap();
        // SAFETY: the name ends in a NUL.
        Some(i64::from(unsafe { libc::if_nametoindex(name.as_ptr()) }))
    };
    assert_eq!(values["ethtool/wg0/peer_ifindex"], index("wg1"));
    assert_eq!(values["ethtool/wg1/peer_ifindex"], index("wg0"));
    assert_eq!((values["ethtool/wg0/link/up"], values["ethtool/wg0/link/duplex"]), (Some(0), Some(1)));
    assert_eq!(values["ethtool/wg0/link/speed"], Some(10_000));
    assert!(ip("link set wg0 up") && ip("link set wg1 up"));
    wait_until("the link", || read(&mut group).0["ethtool/wg0/link/up"] == Some(1));

    assert!(ip("link del wg0"));
    let (values, reading) = read(&mut group);
    assert!(values.values().all(Option::is_none), "{values:?}");
    assert_eq!(
        (reading.layout_changed, reading.problem),
        (true, Some(ReadProblem::Os { what: GROUP, errno: libc::ENODEV }))
    );
    assert!(both.discover(&mut |text| panic!("{text}")).is_empty());
}

#[test]
fn devices_of_this_machine() {
    let mut all = source(Path::new("/sys"), "virtual_devices = true\ncounters.include = [\"*\"]\n");
    for mut group in all.discover(&mut |text| println!("{text}")) {
        let (values, reading) = read(&mut group);
        assert_eq!((values.len(), reading), (group.sensors.len(), Reading::COMPLETE));
    }
    let nothing = tempfile::tempdir().unwrap();
    assert!(source(nothing.path(), "").discover(&mut |text| panic!("{text}")).is_empty());
}

#[test]
fn errors_of_the_kernel() {
    let socket = EthtoolSocket::new().unwrap();
    assert_eq!(socket.names("no-such-device"), Err(libc::ENODEV));
    assert_eq!(socket.names("a-name-that-is-longer-than-the-kernel-allows"), Err(libc::ENODEV));
    assert_eq!(socket.statistics("no-such-device", &mut StatBuffer::new(1)), Err(libc::ENODEV));
    assert_eq!(socket.link("no-such-device"), [None; 4]);
}
