//! Programs that print lines: values and gaps, rights, deadlines, output without end, streams.

mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tree::{discover, source};
use wholegrain_model::Kind;
use wholegrain_sources::{GroupPlan, ReadProblem, Reading, Roots, Row, Source};
use wholegrain_testkit::{wait_for, wait_until};

/// A folder with programs, and the source that runs them.
struct Programs {
    folder: tempfile::TempDir,
    source: Box<dyn Source>,
}

/// Writes a shell script that every user can run.
fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

impl Programs {
    /// Each program with its settings and its text.
    fn new(programs: &[(&str, &str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(folder.path().join("open")).unwrap();
        fs::set_permissions(folder.path().join("open"), fs::Permissions::from_mode(0o777)).unwrap();
        let tables = programs.iter().map(|(name, keys, text)| {
            let text = text.replace("OPEN", &folder.path().join("open").display().to_string());
            let path = script(folder.path(), name, &text);
            format!("[sources.exec.{name}]\ncommand = [{path:?}, \"argument\"]\n{keys}\n")
        });
        let config: String = tables.collect();
        let source = source("exec", &config, &Roots::default()).unwrap();
        Self { folder, source }
    }

    fn open(&self, name: &str) -> PathBuf {
        self.folder.path().join("open").join(name)
    }

    /// The groups, once all programs have answered.
    fn groups(&mut self, count: usize) -> BTreeMap<String, GroupPlan> {
        wait_for("the groups", || {
            let (groups, reports) = discover(self.source.as_mut());
            if groups.len() < count {
                println!("{reports:?}");
            }
            (groups.len() == count).then_some(groups)
        })
    }

    fn group(&mut self) -> GroupPlan {
        self.groups(1).into_values().next().unwrap()
    }
}

fn floats(group: &mut GroupPlan) -> (BTreeMap<String, Option<f64>>, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    let name = |index: usize| group.sensors[index].name.rsplit('/').next().unwrap().to_owned();
    let values = (0..count).map(|index| (name(index), row.int(index).map(|bits| f64::from_bits(bits as u64))));
    (values.collect(), reading)
}

#[track_caller]
fn check(group: &mut GroupPlan, expected: &[(&str, Option<f64>)], problem: Option<&'static str>) -> Reading {
    let (values, reading) = floats(group);
    let expected: BTreeMap<String, Option<f64>> =
        expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    assert_eq!((values, reading.problem), (expected, problem.map(|text| ReadProblem::Message { text })));
    reading
}

#[test]
fn a_program_runs_for_each_sample() {
    let text = "echo run >> OPEN/runs\nn=$(wc -l < OPEN/runs)\necho \"runs $n kind=counter\"\necho 'load 0.5 unit=%'\n\
                [ $n -lt 3 ] && echo 'early 1'\nprintf 'last 7'";
    let mut programs = Programs::new(&[("counting", "interval = \"10s\"\ndeadline = \"1min\"", text)]);
    let mut group = programs.group();
    assert_eq!((group.name.as_str(), group.blocking), ("exec/counting", true));
    let names: Vec<&str> = group.sensors.iter().map(|sensor| sensor.name.as_str()).collect();
    assert_eq!(names, ["early", "last", "load", "runs"].map(|name| format!("exec/counting/{name}")));
    assert_eq!((group.sensors[2].unit.as_str(), group.sensors[3].kind), ("%", Kind::Counter));
    let all = |runs: f64, early| [("early", early), ("last", Some(7.0)), ("load", Some(0.5)), ("runs", Some(runs))];
    let reading = check(&mut group, &all(1.0, Some(1.0)), None);
    assert!(reading.taken_at.is_some(), "the discovery's run, with its time");
    let reading = check(&mut group, &all(2.0, Some(1.0)), None);
    assert_eq!(reading.taken_at, None, "at the tick");
    check(&mut group, &all(3.0, None), None);
}

#[test]
fn a_run_that_fails_gives_gaps_and_its_first_error_is_named_once() {
    let text = "echo 'a 1'\necho 'b x'\n[ -e OPEN/bad ] && { echo 'no pump' >&2; echo more >&2; exit 3; }\n\
                [ -e OPEN/signal ] && kill -9 $$\nexit 0";
    let mut programs = Programs::new(&[("failing", "", text)]);
    let mut group = programs.group();
    let (values, reading) = floats(&mut group);
    assert_eq!((values["a"], values["b"]), (Some(1.0), None));
    assert_eq!(reading.problem, Some(ReadProblem::Garbage { what: "the program's output", line: 2 }));
    fs::write(programs.open("bad"), "").unwrap();
    let gaps = [("a", None), ("b", None)];
    assert!(check(&mut group, &gaps, Some("the program failed")).layout_changed);
    let (groups, reports) = discover(programs.source.as_mut());
    assert_eq!(groups.len(), 1, "the group stays");
    assert_eq!(reports, ["exec: failing: ended with status 3; it said \"no pump\""]);
    let reading = check(&mut group, &gaps, Some("the program failed, and its next run has to wait"));
    assert!(!reading.layout_changed, "once");
    fs::remove_file(programs.open("bad")).unwrap();
    fs::write(programs.open("signal"), "").unwrap();
    wait_until("the next run", || {
        floats(&mut group).1.problem == Some(ReadProblem::Message { text: "the program was ended by a signal" })
    });
    fs::remove_file(programs.open("signal")).unwrap();
    wait_until("a good run", || floats(&mut group).0["a"] == Some(1.0));
}

#[test]
fn a_value_that_is_no_integer_of_64_bits_is_a_gap_and_named_once() {
    let text = "echo 'a 1'\necho 'b 2.5 type=int'\necho 'c: 3'\necho 'd 9223372036854775808 type=int'\n\
                echo 'e 18446744073709551615 type=int kind=counter'\necho 'f 9223372036854775807 type=int'";
    let mut programs = Programs::new(&[("counting", "", text)]);
    let (groups, reports) = wait_for("the group", || {
        let (groups, reports) = discover(programs.source.as_mut());
        (groups.len() == 1).then_some((groups, reports))
    });
    assert_eq!(reports, ["exec: counting: line 3: \"c:\": the name ends with a colon; leave it out"]);
    let (values, reading) = floats(&mut groups.into_values().next().unwrap());
    // The values of integers are shown by their bits.
    let largest = f64::from_bits(i64::MAX as u64);
    assert_eq!([values["a"], values["b"], values["d"], values["e"]], [Some(1.0), None, None, None]);
    assert_eq!(values["f"].map(f64::to_bits), Some(largest.to_bits()));
    let what = "the program's output (type=int takes integers that fit into 64 bits with sign)";
    assert_eq!(reading.problem, Some(ReadProblem::Garbage { what, line: 2 }));
}

#[test]
fn the_deadline_ends_a_program_with_all_that_it_started() {
    let text = "echo 'a 1'\n[ -e OPEN/hang ] || exit 0\nsleep 1000 & echo $! > OPEN/child\nwait";
    let mut programs = Programs::new(&[("hanging", "deadline = \"300ms\"", text), ("quick", "", "echo 'b 2'")]);
    let mut groups = programs.groups(2);
    let mut quick = groups.remove("exec/quick").unwrap();
    let mut group = groups.remove("exec/hanging").unwrap();
    check(&mut quick, &[("b", Some(2.0))], None);
    fs::write(programs.open("hang"), "").unwrap();
    wait_until("a run that hangs", || {
        let (values, reading) = floats(&mut group);
        assert!(reading.problem.is_none() || values["a"].is_none());
        reading.problem == Some(ReadProblem::Message { text: "the program was killed at its deadline" })
    });
    let child = fs::read_to_string(programs.open("child")).unwrap();
    wait_until("the end of the child", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    check(&mut quick, &[("b", Some(2.0))], None);
    let (_, reports) = discover(programs.source.as_mut());
    assert_eq!(reports, ["exec: hanging: killed after 300ms"]);
}

/// Whether the process in this file runs.
fn is_running(file: &Path) -> bool {
    let pid = fs::read_to_string(file).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// A program may leave nothing behind: neither a process in a group of its own, nor a daemon in a session of its own.
#[test]
fn a_program_ends_with_its_daemons() {
    let daemons = "setsid sh -c 'echo $$ > OPEN/daemon; exec sleep 1000' >/dev/null 2>&1 </dev/null &\n\
                   timeout 1000 sh -c 'echo $$ > OPEN/group; exec sleep 1000' >/dev/null 2>&1 </dev/null &\n\
                   while ! [ -s OPEN/daemon ] || ! [ -s OPEN/group ]; do sleep 0.01; done\n";
    let text = format!("[ -e OPEN/go ] && {{ {daemons} }}\n[ -e OPEN/hang ] && exec sleep 1000\necho 'a 1'");
    let mut programs = Programs::new(&[("daemons", "deadline = \"1min\"", &text)]);
    let mut group = programs.group();
    check(&mut group, &[("a", Some(1.0))], None);
    fs::write(programs.open("go"), "").unwrap();
    check(&mut group, &[("a", Some(1.0))], None);
    for name in ["daemon", "group"] {
        wait_until("the end of the processes", || !is_running(&programs.open(name)));
        fs::remove_file(programs.open(name)).unwrap();
    }
    // Also with a program that is killed.
    fs::write(programs.open("hang"), "").unwrap();
    let mut programs =
        Programs { source: source("exec", &config(&programs, "500ms"), &Roots::default()).unwrap(), ..programs };
    let (groups, _) = discover(programs.source.as_mut());
    assert!(groups.is_empty());
    wait_until("the numbers of the processes", || {
        ["daemon", "group"]
            .iter()
            .all(|name| fs::read_to_string(programs.open(name)).is_ok_and(|pid| pid.ends_with('\n')))
    });
    wait_until("the program is killed", || {
        discover(programs.source.as_mut()).1.iter().any(|report| report.contains("killed after 500ms"))
    });
    for name in ["daemon", "group"] {
        wait_until("the end of the processes", || !is_running(&programs.open(name)));
    }
}

/// The configuration of the program `daemons` with a deadline.
fn config(programs: &Programs, deadline: &str) -> String {
    let path = programs.folder.path().join("daemons");
    format!("[sources.exec.daemons]\ncommand = [{path:?}]\ndeadline = {deadline:?}\n")
}

/// A program that prints errors faster than they are read is ended at its deadline.
#[test]
fn errors_without_end_do_not_hold_the_agent() {
    let flood = "(exec cat /dev/zero >&2) & ".repeat(8);
    let text = format!("echo 'a 1'\n[ -e OPEN/flood ] || exit 0\n{flood}wait");
    let mut programs = Programs::new(&[("flooding", "deadline = \"300ms\"", &text)]);
    let mut group = programs.group();
    wait_until("a value", || floats(&mut group).0["a"] == Some(1.0));
    fs::write(programs.open("flood"), "").unwrap();
    wait_until("the end at the deadline", || {
        floats(&mut group).1.problem == Some(ReadProblem::Message { text: "the program was killed at its deadline" })
    });
}

#[test]
fn programs_of_one_interval_run_at_the_same_time() {
    // Each waits for the other: one after the other they would not end.
    let text = |own: &str, other: &str| {
        format!(
            "[ -e OPEN/together ] || {{ echo 'a 1'; exit 0; }}\n: > OPEN/{own}\nwhile ! [ -e OPEN/{other} ]; do sleep 0.01; done\necho 'a 2'"
        )
    };
    let keys = "interval = \"10ms\"\ndeadline = \"30s\"";
    let mut programs = Programs::new(&[("one", keys, &text("one", "two")), ("two", keys, &text("two", "one"))]);
    let mut groups = programs.groups(2);
    for group in groups.values_mut() {
        check(group, &[("a", Some(1.0))], None);
    }
    fs::write(programs.open("together"), "").unwrap();
    let mut times = Vec::new();
    for group in groups.values_mut() {
        times.push(check(group, &[("a", Some(2.0))], None).taken_at);
    }
    assert!(times[0].is_none() && times[1].is_some(), "{times:?}");
}

#[test]
fn output_without_end_is_bounded() {
    let text = "echo 'a 1'\n[ -e OPEN/flood ] && while :; do echo 'a 2'; done\nexit 0";
    let mut programs = Programs::new(&[("flooding", "output_bytes_max = \"4KiB\"", text)]);
    let mut group = programs.group();
    check(&mut group, &[("a", Some(1.0))], None);
    fs::write(programs.open("flood"), "").unwrap();
    check(&mut group, &[("a", None)], Some("the program printed too much and was killed"));
    let (_, reports) = discover(programs.source.as_mut());
    assert_eq!(reports, ["exec: flooding: printed more than 4096 bytes, killed"]);
}

#[test]
fn a_stream_gives_the_newest_values_and_is_started_again() {
    let text = "echo start >> OPEN/starts\necho 'x 1'; echo 'y 1'; echo 'x 2'\n\
                while ! [ -e OPEN/go ]; do sleep 0.01; done\necho 'x 3'; printf 'y 4'\n\
                while ! [ -e OPEN/end ]; do sleep 0.01; done\nrm -f OPEN/end OPEN/go";
    let mut programs = Programs::new(&[("stream", "mode = \"stream\"", text)]);
    wait_until("both names", || programs.groups(1)["exec/stream"].sensors.len() == 2);
    let mut group = programs.group();
    let mut seen = BTreeMap::new();
    wait_until("the first values", || {
        let (values, _) = floats(&mut group);
        seen.extend(values.into_iter().filter(|(_, value)| value.is_some()));
        seen.get("x") == Some(&Some(2.0)) && seen.contains_key("y")
    });
    assert!(floats(&mut group).1.unchanged, "nothing new");
    fs::write(programs.open("go"), "").unwrap();
    let (values, reading) =
        wait_for("the next value", || Some(floats(&mut group)).filter(|(_, reading)| !reading.unchanged));
    assert_eq!(
        (values["x"], values["y"], reading.problem),
        (Some(3.0), None, None),
        "a line that is not complete is none"
    );
    fs::write(programs.open("end"), "").unwrap();
    wait_until("the end", || {
        floats(&mut group).1.problem == Some(ReadProblem::Message { text: "the program has ended" })
    });
    wait_until("the second start", || floats(&mut group).0["x"] == Some(2.0));
    assert_eq!(fs::read_to_string(programs.open("starts")).unwrap().lines().count(), 2);
}

const RIGHTS: &str = "grep -E '^(Cap...|NoNewPrivs|Uid|Gid|Groups|Sig)' /proc/self/status > OPEN/status\n\
    env > OPEN/env\nls /proc/self/fd > OPEN/fds\npwd > OPEN/pwd\nps -o pgid= -p $$ > OPEN/pgid\numask >> OPEN/pgid\necho \"uid $(id -u)\"\necho \"argument 1\"";

/// Checks what a program that runs with [`RIGHTS`] wrote.
fn check_rights(programs: &Programs) {
    let status = fs::read_to_string(programs.open("status")).unwrap();
    for line in status.lines().filter(|line| line.starts_with("Cap")) {
        assert_eq!(line.split_whitespace().nth(1), Some("0000000000000000"), "{status}");
    }
    assert_eq!(status.matches("Cap").count(), 5, "{status}");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let env = fs::read_to_string(programs.open("env")).unwrap();
    let names: Vec<&str> = env.lines().filter_map(|line| line.split('=').next()).collect();
    assert!(
        names.iter().all(|name| ["PATH", "PWD", "SHLVL", "_", "OLDPWD", "SITE", "WHOLEGRAIN_RUN"].contains(name)),
        "{env}"
    );
    assert!(env.contains("SITE=hall 1"));
    assert_eq!(fs::read_to_string(programs.open("pwd")).unwrap(), "/\n");
    // Standard input, output and error, and the folder that `ls` lists.
    assert_eq!(fs::read_to_string(programs.open("fds")).unwrap(), "0\n1\n2\n3\n");
}

#[test]
fn a_program_has_none_of_the_agents_rights() {
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root has capabilities to lose");
        return;
    }
    let leak = fs::File::open("/proc/self/status").unwrap();
    // SAFETY: the descriptor is open. Without its flag a child would have it.
    unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&leak), libc::F_SETFD, 0) };
    let keys = "env = { SITE = \"hall 1\" }";
    for (user, expected) in [("", 65534.0), ("user = \"root\"\n", 0.0), ("user = \"daemon\"\n", 1.0)] {
        let mut programs = Programs::new(&[("rights", &format!("{user}{keys}"), RIGHTS)]);
        let mut group = programs.group();
        check(&mut group, &[("argument", Some(1.0)), ("uid", Some(expected))], None);
        check_rights(&programs);
        let status = fs::read_to_string(programs.open("status")).unwrap();
        assert!(status.lines().any(|line| line.trim_end() == "Groups:"), "{status}");
    }
}

#[test]
fn a_program_that_others_can_change_is_refused_and_named() {
    let mut programs = Programs::new(&[("changed", "", "echo 'a 1'")]);
    let path = programs.folder.path().join("changed");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&path, 0o775);
    let (groups, reports) = discover(programs.source.as_mut());
    assert!(groups.is_empty());
    assert!(reports[0].ends_with("/changed is writable by group or others (mode 0775); use chmod go-w"), "{reports:?}");
    mode(&path, 0o755);
    let mut group = programs.group();
    check(&mut group, &[("a", Some(1.0))], None);
    mode(programs.folder.path(), 0o777);
    check(&mut group, &[("a", None)], Some("the program cannot be started"));
    mode(programs.folder.path(), 0o755);
    wait_until("the next run", || floats(&mut group).0["a"] == Some(1.0));
    fs::rename(&path, programs.folder.path().join("away")).unwrap();
    check(&mut group, &[("a", None)], Some("the program cannot be started"));
}

#[test]
fn settings_with_mistakes() {
    for (keys, expected) in [
        ("[sources.exec.a]", "agent.toml:1:1: missing field `command`"),
        ("[sources.exec.a]\ncommand = []", "agent.toml:2:1: command begins with the absolute path"),
        ("[sources.exec.a]\ncommand = [\"true\"]", "agent.toml:2:1: command begins with the absolute path"),
        (
            "[sources.exec.a]\ncommand = [\"/x\"]\nmode = \"streams\"",
            "agent.toml:3:8: unknown value `streams`; did you mean `stream`?",
        ),
        ("[sources.exec.a]\ncommand = [\"/x\"]\nuser = \"no-such-user-here\"", "agent.toml:3:1: there is no user"),
        (
            "[sources.exec.a]\ncommand = [\"/x\"]\ndedline = \"1s\"",
            "agent.toml:3:1: unknown key `dedline`; did you mean `deadline`?",
        ),
        ("[sources.exec.a]\ncommand = [\"/x\"]\nsensors_max = 0", "agent.toml:3:1: sensors_max is 0"),
        ("[sources.exec.\"a/b\"]\ncommand = [\"/x\"]", "agent.toml:1:15: \"a/b\" is no level of a path; write \"a_b\""),
        ("[sources.exec]\ncommand = \"x\"", "agent.toml:2:11: command is a string, not a table"),
    ] {
        let error = source("exec", keys, &Roots::default()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with(expected), "{keys:?}: {error:?} does not begin with {expected:?}");
    }
}
