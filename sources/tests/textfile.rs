//! The source of files that scripts write: formats, half-written and old files, links and owners.

mod tree;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tree::{discover, source};
use wholegrain_model::Kind;
use wholegrain_sources::{GroupPlan, ReadProblem, Reading, Roots, Row, Source};

/// A folder of scripts, and the source that reads it.
struct Scripts {
    folder: tempfile::TempDir,
    source: Box<dyn Source>,
}

impl Scripts {
    fn new(keys: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!("[sources.textfile]\ndir = {:?}\n{keys}\n", folder.path());
        let source = source("textfile", &config, &Roots::default()).unwrap();
        Self { folder, source }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces a file as scripts do it.
    fn write(&self, name: &str, text: &str) {
        let new = self.path(&format!("{name}.tmp"));
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    fn groups(&mut self) -> (BTreeMap<String, GroupPlan>, Vec<String>) {
        discover(self.source.as_mut())
    }

    /// The only group of the folder.
    #[track_caller]
    fn group(&mut self) -> GroupPlan {
        let (groups, reports) = self.groups();
        assert_eq!(groups.len(), 1, "{reports:?}");
        groups.into_values().next().unwrap()
    }
}

fn floats(group: &mut GroupPlan) -> (Vec<Option<f64>>, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    ((0..count).map(|index| row.int(index).map(|bits| f64::from_bits(bits as u64))).collect(), reading)
}

#[track_caller]
fn check(group: &mut GroupPlan, expected: &[Option<f64>], problem: Option<ReadProblem>) -> Reading {
    let (values, reading) = floats(group);
    assert_eq!((values.as_slice(), reading.problem), (expected, problem));
    reading
}

fn fault(text: &'static str) -> Option<ReadProblem> {
    Some(ReadProblem::Message { text })
}

fn names(group: &GroupPlan) -> Vec<&str> {
    group.sensors.iter().map(|sensor| sensor.name.as_str()).collect()
}

const PROM: &str = "# HELP raid_disks Disks of an array.\n# TYPE raid_disks gauge\nraid_disks{array=\"md0\",state=\"failed\"} 1\n\
    # TYPE raid_written_bytes_total counter\nraid_written_bytes_total{array=\"md0\"} 5e3\n";

#[test]
fn a_file_of_prometheus_text() {
    let mut scripts = Scripts::new("interval = \"10s\"");
    scripts.write("raid.prom", PROM);
    scripts.write("other.log", "not 1\n");
    scripts.write(".hidden.prom", "not 1\n");
    let mut group = scripts.group();
    assert_eq!((group.name.as_str(), group.blocking), ("textfile/raid", true));
    assert_eq!(names(&group), ["textfile/raid/raid_disks/md0/failed", "textfile/raid/raid_written_bytes_total/md0"]);
    let (disks, written) = (&group.sensors[0], &group.sensors[1]);
    assert_eq!((disks.kind, disks.description.as_str()), (Kind::Gauge, "Disks of an array."));
    assert_eq!((written.kind, written.unit.as_str()), (Kind::Counter, "By"));
    check(&mut group, &[Some(1.0), Some(5000.0)], None);
    scripts.write("raid.prom", &PROM.replace(" 1\n", " 0.5\n"));
    check(&mut group, &[Some(0.5), Some(5000.0)], None);
    scripts.write("raid.prom", &PROM.replace(" 1\n", " one\n"));
    check(&mut group, &[None, Some(5000.0)], Some(ReadProblem::Garbage { what: "the file", line: 3 }));
    scripts.write("raid.prom", &format!("{PROM}raid_new 5\n"));
    assert!(check(&mut group, &[Some(1.0), Some(5000.0)], None).layout_changed);
    assert_eq!(scripts.group().sensors.len(), 3);
}

#[test]
fn lines_with_name_and_value() {
    let mut scripts = Scripts::new("prefix = \"site\"");
    scripts.write(
        "door.txt",
        "# the door of the hall\ndoor/open 1\ndoor/opened 12 kind=counter\ntemperature 21 unit=Cel\n",
    );
    let mut group = scripts.group();
    assert_eq!(names(&group), ["site/door/open", "site/door/opened", "site/temperature"]);
    assert_eq!((group.sensors[1].kind, group.sensors[2].unit.as_str()), (Kind::Counter, "Cel"));
    check(&mut group, &[Some(1.0), Some(12.0), Some(21.0)], None);
    scripts.write("door.txt", "temperature 21.5 unit=Cel\n");
    check(&mut group, &[None, None, Some(21.5)], None);
}

#[test]
fn lines_with_mistakes_are_left_out_and_named() {
    let mut scripts = Scripts::new("");
    scripts.write("door.txt", "good 1\nwarm 21 unit=degC\ncount 5.5 type=int\n");
    let (mut groups, reports) = scripts.groups();
    assert_eq!(
        reports,
        [
            "textfile: door.txt: line 2: \"warm\": unit \"degC\", at 1: `degC` is not a known UCUM unit; did you mean `Cel`?",
        ]
    );
    let mut group = groups.remove("textfile/door").unwrap();
    assert_eq!(names(&group), ["textfile/door/count", "textfile/door/good"]);
    let problem =
        Some(ReadProblem::Garbage { what: "the file (its integers must fit into 64 bits with sign)", line: 3 });
    check(&mut group, &[None, Some(1.0)], problem);
    scripts.write("door.txt", "good 1\n\ncount 9223372036854775808 type=int\n");
    check(&mut group, &[None, Some(1.0)], problem);
}

#[test]
fn half_written_and_old_files_are_gaps() {
    let mut scripts = Scripts::new("max_age = \"1min\"");
    scripts.write("a.prom", "a 1\nb 20\n");
    scripts.write("o.prom", "# TYPE a gauge\na 1\n# EOF\n");
    let (mut groups, _) = scripts.groups();
    let mut open = groups.remove("textfile/o").unwrap();
    let mut text = groups.remove("textfile/a").unwrap();
    check(&mut text, &[Some(1.0), Some(20.0)], None);
    check(&mut open, &[Some(1.0)], None);
    scripts.write("a.prom", "a 1\nb 2");
    check(&mut text, &[None, None], fault("the file is half-written: it has no end"));
    scripts.write("a.prom", "");
    check(&mut text, &[None, None], fault("the file is half-written: it has no end"));
    scripts.write("o.prom", "# TYPE a gauge\na 1\n");
    check(&mut open, &[None], fault("the file is half-written: it has no end"));
    scripts.write("a.prom", "a 1\nb 20\n");
    check(&mut text, &[Some(1.0), Some(20.0)], None);
    let old = SystemTime::now() - Duration::from_secs(90);
    File::options().append(true).open(scripts.path("a.prom")).unwrap().set_modified(old).unwrap();
    check(&mut text, &[None, None], fault("the file is older than max_age"));
    fs::remove_file(scripts.path("a.prom")).unwrap();
    let gone = Some(ReadProblem::Os { what: "the file", errno: libc::ENOENT });
    assert!(check(&mut text, &[None, None], gone).layout_changed);
    assert_eq!(scripts.group().name, "textfile/o");
}

#[test]
fn a_file_that_was_never_whole_is_named() {
    let mut scripts = Scripts::new("");
    scripts.write("x.txt", "a 1");
    scripts.write("o.prom", "# TYPE a unknown\na 1\n");
    let (groups, reports) = scripts.groups();
    assert!(groups.is_empty());
    assert_eq!(
        reports,
        [
            "textfile: o.prom has no `# EOF` at its end: it is read once it has one",
            "textfile: x.txt has no end of line at its end: it is read once it has one",
        ]
    );
    scripts.write("x.txt", "a 1\n");
    scripts.write("o.prom", "# TYPE a unknown\na 1\n# EOF\n");
    let (groups, reports) = scripts.groups();
    assert_eq!((groups.len(), reports.as_slice()), (2, &[][..]));
}

#[test]
fn a_file_that_is_half_written_at_discovery_keeps_its_sensors() {
    let mut scripts = Scripts::new("");
    scripts.write("a.prom", "a 1\nb 2\n");
    assert_eq!(scripts.group().sensors.len(), 2);
    scripts.write("a.prom", "a 1\nb");
    let mut group = scripts.group();
    check(&mut group, &[None, None], fault("the file is half-written: it has no end"));
    scripts.write("a.prom", "b 3\na 1\n");
    check(&mut group, &[Some(1.0), Some(3.0)], None);
}

#[test]
fn links_sizes_and_writable_files_are_refused_and_named() {
    let mut scripts = Scripts::new("file_bytes_max = \"100B\"");
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "secret 42\n").unwrap();
    symlink(secret.path(), scripts.path("link.txt")).unwrap();
    scripts.write("long.txt", &"a 1\n".repeat(100));
    scripts.write("open.txt", "a 1\n");
    fs::set_permissions(scripts.path("open.txt"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::create_dir(scripts.path("folder.prom")).unwrap();
    scripts.write("good.txt", "good 1\n");
    let (groups, reports) = scripts.groups();
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["textfile/good"]);
    for part in [
        "folder.prom is no regular file",
        "link.txt: Too many levels of symbolic links",
        "long.txt has 400 bytes; at most 100 are read",
        "open.txt is writable by group or others",
    ] {
        assert!(reports.iter().any(|report| report.contains(part)), "{part}: {reports:?}");
    }
    // What is refused after discovery is refused at the next read.
    let mut group = scripts.group();
    fs::remove_file(scripts.path("good.txt")).unwrap();
    symlink(secret.path(), scripts.path("good.txt")).unwrap();
    check(&mut group, &[None], Some(ReadProblem::Os { what: "the file", errno: libc::ELOOP }));
    fs::remove_file(scripts.path("good.txt")).unwrap();
    scripts.write("good.txt", "good 1\n");
    check(&mut group, &[Some(1.0)], None);
    fs::set_permissions(scripts.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    check(&mut group, &[None], Some(ReadProblem::Os { what: "the file", errno: libc::EPERM }));
    let (groups, reports) = scripts.groups();
    assert!(groups.contains_key("textfile/good"), "the group stays, with gaps");
    assert!(reports[0].contains("is writable by group or others (mode 0777)"), "{reports:?}");
    fs::set_permissions(scripts.folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let (_, reports) = scripts.groups();
    assert!(reports[0].contains("is for files of all users (mode 1777)"), "{reports:?}");
    assert!(!reports[0].contains("chmod"), "{reports:?}");
}

#[test]
fn names_that_collide_are_refused_and_named() {
    let mut scripts = Scripts::new("prefix = \"p\"\nfiles_max = 3");
    scripts.write("a.prom", "x 1\n");
    scripts.write("a.txt", "y 1\n");
    scripts.write("b.txt", "z 1\nx 2\n");
    scripts.write("c.txt", "w 1\n");
    scripts.write("d.txt", "v 1\n");
    let (groups, reports) = scripts.groups();
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["textfile/a", "textfile/c"]);
    assert_eq!(
        reports,
        [
            "textfile: \"a.prom\" and \"a.txt\" have the same name: the second is left out",
            "textfile: more than files_max = 3 files: \"d.txt\" and others are left out",
            "textfile: b.txt is left out: a.prom has its sensor p/x; write prefix with {file}",
        ]
    );
}

#[test]
fn all_files_together_have_a_bound() {
    let mut folder = Scripts::new("sensors_max = 3");
    folder.write("a.prom", "a 1\nb 2\n");
    folder.write("b.prom", "c 1\nd 2\n");
    folder.write("c.prom", "e 1\n");
    let (groups, notes) = folder.groups();
    let counts: Vec<usize> = groups.values().map(|group| group.sensors.len()).collect();
    assert_eq!(counts, [2, 1], "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("b.prom: more than 1 series")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("c.prom is left out: with it, the folder has more")), "{notes:?}");
    // A file that comes before known ones takes their room.
    folder.write("_.prom", "f 1\ng 2\n");
    let (groups, notes) = folder.groups();
    let counts: Vec<usize> = groups.values().map(|group| group.sensors.len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 3, "{counts:?} {notes:?}");
}

#[test]
fn settings_with_mistakes() {
    for (keys, expected) in [
        ("", "agent.toml:1:1: missing field `dir`"),
        ("dir = \"/x\"\nfiles_max = 0", "agent.toml:3:1: files_max is 0; expected 1 to 1000"),
        ("dir = \"/x\"\nfile_bytes_max = \"1\"", "agent.toml:3:1: \"1\" is not a size"),
        (
            "dir = \"/x\"\nfile_bytes_max = \"1GiB\"",
            "agent.toml:3:1: file_bytes_max is 1073741824; expected 1 to 64MiB",
        ),
        ("dir = \"/x\"\nowner = \"no-such-user-here\"", "agent.toml:3:1: there is no user \"no-such-user-here\""),
        ("dir = \"/x\"\npath = \"{nam}\"", "agent.toml:3:8: {nam} is none of"),
        ("dir = \"/x\"\nprefix = \"/a\"", "agent.toml:3:1: sensor name \"/a\" has an empty level"),
        ("dir = \"/x\"\nrules = [{ metrics = \"*\", scale = 0.0 }]", "agent.toml:3:1: the scale 0 of the rule"),
        (
            "dir = \"/x\"\nrules = [{ metrics = \"t_*\", unit = \"degC\" }]",
            "agent.toml:3:1: in the rule for \"t_*\": unit \"degC\", at 1: `degC` is not a known UCUM unit; did you mean `Cel`?",
        ),
        ("dir = \"/x\"\nmaxage = \"1s\"", "agent.toml:3:1: unknown key `maxage`; did you mean `max_age`?"),
    ] {
        let error = source("textfile", &format!("[sources.textfile]\n{keys}"), &Roots::default()).err().unwrap();
        assert!(error.to_string().starts_with(expected), "{keys:?}: {error} does not begin with {expected:?}");
    }
}

#[test]
fn a_missing_folder_is_named() {
    let config = "[sources.textfile]\ndir = \"/no/such/folder\"\n";
    let (groups, reports) = discover(source("textfile", config, &Roots::default()).unwrap().as_mut());
    assert!(groups.is_empty() && reports[0].starts_with("textfile: /no: No such file"), "{reports:?}");
    assert!(Path::new("/").is_dir());
}
