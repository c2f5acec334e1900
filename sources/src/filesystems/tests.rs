//! File systems that answer, that refuse, and that hang.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, Condvar, Mutex};

use wholegrain_model::Interval;
use wholegrain_testkit::wait_until;

use super::*;

const MOUNTINFO: &str = "27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 0:5 / /dev rw - devtmpfs dev rw\n\
    29 27 0:40 / /home rw - nfs4 server:/home rw\n30 27 0:41 / /lost rw - nfs4 server:/lost ro\n\
    31 27 0:42 / /user rw - fuse.x x rw,user_id=1000\n";

/// Paths whose calls do not return until they are removed.
#[derive(Clone, Default)]
struct Hanging(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Hanging {
    fn set(&self, paths: &[&str]) {
        *self.0.0.lock().unwrap() = paths.iter().map(|path| (*path).to_owned()).collect();
        self.0.1.notify_all();
    }

    fn function(&self) -> StatFunction {
        let Self(shared) = self.clone();
        Box::new(move |path: &CStr| {
            let path = path.to_str().unwrap().to_owned();
            let hanging = shared.0.lock().unwrap();
            drop(shared.1.wait_while(hanging, |hanging| hanging.contains(&path)).unwrap());
            match path.as_str() {
                "/lost" => Err(libc::EACCES),
                _ => Ok(SpaceNumbers {
                    block: 4096,
                    blocks: 1000,
                    free: 500,
                    available: 400,
                    files: 64,
                    files_free: path.len() as u64,
                    readonly: path == "/home",
                }),
            }
        })
    }
}

struct Machine {
    source: FilesystemsSource,
    hanging: Hanging,
    mountinfo: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Machine {
    fn new(keys: FilesystemsKeys) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mountinfo = folder.path().join("mountinfo");
        std::fs::write(&mountinfo, MOUNTINFO).unwrap();
        let hanging = Hanging::default();
        let source = FilesystemsSource::new(GroupOptions::default(), keys, mountinfo.clone(), hanging.function());
        Self { source, hanging, mountinfo, _folder: folder }
    }

    fn discover(&mut self) -> (GroupPlan, Vec<String>) {
        let mut reports = Vec::new();
        let mut groups = self.source.discover(&mut |text| reports.push(text));
        assert_eq!(groups.len(), 1);
        (groups.remove(0), reports)
    }
}

fn read(group: &mut GroupPlan) -> (BTreeMap<String, Option<i64>>, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    let name = |sensor: &SensorDef| sensor.name.strip_prefix("filesystems/").unwrap().to_owned();
    (group.sensors.iter().enumerate().map(|(index, sensor)| (name(sensor), row.int(index))).collect(), reading)
}

#[test]
fn mounts_with_their_numbers_and_errors() {
    let mut machine = Machine::new(FilesystemsKeys::default());
    let (mut group, reports) = machine.discover();
    assert!(reports.is_empty() && group.blocking, "{reports:?}");
    let (values, reading) = read(&mut group);
    assert_eq!(values.len(), 3 * 7, "neither /dev nor the user's: {values:?}");
    let of = |name: &str| values[name];
    assert_eq!((of("_/size"), of("_/free"), of("_/available")), (Some(4_096_000), Some(2_048_000), Some(1_638_400)));
    assert_eq!((of("_/files"), of("_/files_free"), of("home/files_free")), (Some(64), Some(1), Some(5)));
    assert_eq!((of("_/readonly"), of("home/readonly"), of("_/answers")), (Some(0), Some(1), Some(1)));
    assert_eq!((of("lost/size"), of("lost/readonly"), of("lost/answers")), (None, None, Some(0)));
    let problem = Some(ReadProblem::Os { what: "filesystems", errno: libc::EACCES });
    assert_eq!(reading, Reading { problem, layout_changed: true, ..Reading::COMPLETE });
    assert_eq!(read(&mut group).1, Reading { problem, ..Reading::COMPLETE }, "a discovery was requested once");
    let (_, reports) = machine.discover();
    assert_eq!(reports, ["filesystems: /lost: cannot read its size: Permission denied (os error 13)"]);
}

#[test]
fn one_that_hangs_delays_no_other_and_comes_back() {
    let mut machine = Machine::new(FilesystemsKeys { timeout: Interval::from_ms(300), ..FilesystemsKeys::default() });
    let (mut group, _) = machine.discover();
    machine.hanging.set(&["/home"]);
    let (values, reading) = read(&mut group);
    assert_eq!((values["_/size"], values["home/size"]), (Some(4_096_000), None));
    assert_eq!((values["_/answers"], values["home/answers"]), (Some(1), Some(0)));
    assert!(reading.layout_changed);
    let (mut group, reports) = machine.discover();
    assert!(reports.contains(&"filesystems: /home: does not answer; its sensors are gaps until it does".to_owned()));
    // Now nobody waits for it, also after the discovery.
    for _ in 0..50 {
        assert_eq!(read(&mut group).0["_/size"], Some(4_096_000));
    }
    assert!(machine.source.threads.threads() <= 3, "one that hangs is called once");
    machine.hanging.set(&[]);
    wait_until("the mount's return", || read(&mut group).0["home/size"] == Some(4_096_000));
    wait_until("the end of the second thread", || {
        read(&mut group);
        machine.source.threads.threads() == 1
    });
}

#[test]
fn all_threads_hang_and_the_others_are_gaps_until_one_returns() {
    let keys = FilesystemsKeys { timeout: Interval::from_ms(50), threads_max: 2, ..FilesystemsKeys::default() };
    let mut machine = Machine::new(keys);
    machine.hanging.set(&["/", "/home"]);
    let (mut group, _) = machine.discover();
    for _ in 0..3 {
        let (values, reading) = read(&mut group);
        assert!(["_/answers", "home/answers", "lost/answers"].iter().all(|name| values[*name] == Some(0)));
        assert_eq!(reading.problem, Some(ReadProblem::Os { what: "filesystems", errno: libc::ETIMEDOUT }));
    }
    assert_eq!(machine.source.threads.threads(), 2);
    machine.hanging.set(&[]);
    wait_until("all answers", || {
        let values = read(&mut group).0;
        values["_/answers"] == Some(1) && values["home/answers"] == Some(1)
    });
}

#[test]
fn mounts_come_and_go_and_are_bounded() {
    let mut machine = Machine::new(FilesystemsKeys { mounts_max: 3, ..FilesystemsKeys::default() });
    std::fs::write(&machine.mountinfo, format!("{MOUNTINFO}32 27 8:1 / /zzz rw - xfs /dev/sda1 rw\n")).unwrap();
    let (group, reports) = machine.discover();
    assert_eq!(group.sensors.len(), 21);
    assert_eq!(reports, ["filesystems: 1 mounts are left out, as mounts_max is 3; filter some"]);
    std::fs::write(&machine.mountinfo, "32 27 8:1 / /zzz rw - xfs /dev/sda1 rw\n").unwrap();
    let (mut group, reports) = machine.discover();
    assert_eq!((read(&mut group).0["zzz/size"], reports.len()), (Some(4_096_000), 0));
    std::fs::write(&machine.mountinfo, "1 1 8:1 / /a/b rw - xfs a rw\n2 1 8:1 / /a_b rw - xfs a rw\n").unwrap();
    let (group, reports) = machine.discover();
    assert_eq!((group.sensors.len(), reports.len()), (7, 7));
    assert!(reports[0].starts_with("filesystems/a_b/size: left out, as another"), "{reports:?}");
}

#[test]
fn the_threads_end_with_the_source() {
    let mut machine = Machine::new(FilesystemsKeys::default());
    let (mut group, _) = machine.discover();
    read(&mut group);
    let owners = machine.source.threads.owners();
    assert!(owners() >= 2);
    drop((group, machine));
    wait_until("the end of the threads", || owners() == 0);
}

#[test]
fn the_root_of_this_machine() {
    let numbers = statvfs(c"/").unwrap();
    assert!(numbers.block > 0 && numbers.blocks >= numbers.free, "{numbers:?}");
    assert_eq!(statvfs(c"/no/such/mount"), Err(libc::ENOENT));
}
