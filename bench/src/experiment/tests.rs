//! Of the parts that start no process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use wholegrain_model::Interval;

use super::file::{Experiment, Kind, Known, TimedBy};
use super::plan::{Condition, Offer, Plan};
use super::records::{Folder, Identity, Journal, Record};
use crate::workloads::Outcome;

fn known() -> Known {
    let monitors =
        [("wholegrain", vec!["default", "same"]), ("collectd", vec!["default"]), ("bare", vec!["tick", "reads"])];
    Known { workloads: vec!["ep", "wavefront", "noise"], monitors: BTreeMap::from(monitors) }
}

fn parse(text: &str) -> Result<Experiment, String> {
    Experiment::parse(Path::new("e.toml"), text, &known()).map_err(|error| error.to_string())
}

/// Two workloads beside three settings of ours, two of another, and none.
const WHOLE: &str = r#"
name = "both"
repetitions = 3
warm_up = 1
none_per_round = 2
intervals = ["1ms", "1s"]

[[workload]]
name = "ep"
size = "S"
ranks = 2

[[workload]]
name = "mine"
command = ["./mine", "{ranks}"]
timed_by = "program"

[[monitor]]
name = "wholegrain"
configurations = ["same", "default"]

[[monitor]]
name = "collectd"
intervals = ["10ms"]
workloads = ["ep"]

[limits]
run = "1min"
"#;

#[test]
fn a_file_is_read_as_written() {
    let experiment = parse(WHOLE).unwrap();
    assert_eq!((experiment.seed, experiment.repetitions, experiment.warm_up), (None, 3, 1));
    assert_eq!(experiment.workloads[1].timed_by, TimedBy::Program);
    assert_eq!(experiment.monitors[0].intervals, [Interval::from_ms(1), Interval::from_s(1)]);
    assert_eq!(experiment.monitors[1].configurations, ["default"]);
    assert_eq!((experiment.launcher.kind, experiment.limits.run), (Kind::Local, Interval::from_s(60)));
    assert_eq!(experiment.limits.ready, Interval::from_s(60));
}

#[test]
fn mistakes_are_named_with_line_and_the_nearest_word() {
    let base = "name = \"x\"\nrepetitions = 2\n";
    let ep = "[[workload]]\nname = \"ep\"\nsize = \"S\"\n";
    let check = |text: &str, expected: &str| {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
    };
    check("name = \"x\"\nrepetition = 2\n", "e.toml:2:1: unknown key `repetition`; did you mean `repetitions`?");
    check("name = \"a b\"\nrepetitions = 2\n", "e.toml:1:8: name = \"a b\"");
    check("name = \"x\"\nrepetitions = 0\n", "e.toml:2:15: repetitions is from 1");
    check(base, "e.toml:1:8: nothing to run");
    check(&format!("{base}{ep}rank = 2\n"), "e.toml:6:1: unknown key `rank`; did you mean `ranks`?");
    check(
        &format!("{base}[[workload]]\nname = \"wavefrnt\"\n"),
        "e.toml:4:8: unknown workload `wavefrnt`; did you mean `wavefront`?",
    );
    check(&format!("{base}[[workload]]\nname = \"ep\"\n"), "e.toml:3:1: ep needs a size");
    check(&format!("{base}{ep}ranks = 0\n"), "e.toml:6:9: ranks is at least 1");
    check(&format!("{base}{ep}timed_by = \"runner\"\n"), "e.toml:6:12: timed_by is for a `command`");
    check(&format!("{base}{ep}timed_by = \"runer\"\n"), "e.toml:6:12: unknown value `runer`; did you mean `runner`?");
    check(&format!("{base}{ep}{ep}"), "e.toml:3:3: ep of this size");
    let monitor = |rest: &str| format!("{base}{ep}[[monitor]]\n{rest}\n");
    check(&monitor("name = \"colectd\""), "e.toml:7:8: unknown monitor `colectd`; did you mean `collectd`?");
    check(&monitor("name = \"none\""), "e.toml:7:8: runs without a monitor are in every round");
    check(&monitor("name = \"collectd\""), "e.toml:7:8: collectd has no intervals");
    let wrong = "name = \"wholegrain\"\nconfigurations = [\"same\", \"defualt\"]\nintervals = [\"1s\"]";
    check(&monitor(wrong), "e.toml:8:27: unknown configuration of wholegrain `defualt`; did you mean `default`?");
    check(&monitor("name = \"bare\"\nintervals = [\"1\"]"), "e.toml:8:14: \"1\" is not a length of time");
    let elsewhere = "name = \"bare\"\nintervals = [\"1s\"]\nworkloads = [\"eq\"]";
    check(&monitor(elsewhere), "e.toml:9:14: unknown workload of this file `eq`; expected one of `ep`");
    let twice = "name = \"bare\"\nintervals = [\"1s\"]\n[[monitor]]\nname = \"bare\"\nintervals = [\"1s\"]\nworkloads = [\"ep\"]";
    check(&monitor(twice), "e.toml:6:3: bare tick at 1s is named twice");
    let twice = "name = \"bare\"\nintervals = [\"1s\"]\nworkloads = [\"ep\"]\n[[monitor]]\nname = \"bare\"\nintervals = [\"1s\"]";
    check(&monitor(twice), "e.toml:6:3: bare tick at 1s is named twice");
    let own = "[[workload]]\nname = \"own\"\nsize = \"S\"\ncommand = [\"x\"]\n";
    check(&format!("{base}{ep}{own}parts = [\"ep\"]\n"), "e.toml:3:3: ep of own is named twice");
    check(&format!("{base}{own}parts = [\"a\", \"a\"]\n"), "e.toml:3:3: a of own is named twice");
    check(&format!("{base}{ep}[launcher]\nkind = \"mpirun\"\n"), "e.toml:7:1: mpirun needs either");
    check(
        &format!("{base}{ep}[launcher]\nkind = \"slrm\"\n"),
        "e.toml:7:8: unknown value `slrm`; did you mean `slurm`?",
    );
    check(&format!("{base}{ep}[limits]\nrun = \"0s\"\n"), "e.toml:7:1: run is how long");
    check(&format!("{base}{ep}[quiet]\nwarn = 0.0\n"), "e.toml:7:1: warn is a share");
}

/// What the machine says: all is here, collectd not below 10 ms, or not at all.
fn offers(collectd: Result<String, String>) -> BTreeMap<String, Offer> {
    let ours = Offer { version: Ok("1".to_owned()), shortest: Duration::from_millis(1) };
    let theirs = Offer { version: collectd, shortest: Duration::from_millis(10) };
    BTreeMap::from([("wholegrain".to_owned(), ours), ("collectd".to_owned(), theirs)])
}

fn plan(text: &str, seed: u64) -> Plan {
    Plan::new(&parse(text).unwrap(), seed, &offers(Ok("5".to_owned())), 1).unwrap()
}

#[test]
fn the_order_depends_on_the_seed_alone() {
    assert_eq!(plan(WHOLE, 7), plan(WHOLE, 7));
    assert_ne!(plan(WHOLE, 7).runs, plan(WHOLE, 8).runs);
    // Of the same settings, whatever is said about limits or load.
    let other = WHOLE.replace("[limits]\nrun = \"1min\"", "[quiet]\nwarn = 20.0");
    assert_eq!(plan(WHOLE, 7).runs, plan(&other, 7).runs);
}

#[test]
fn each_round_makes_every_setting_once_in_an_order_of_its_own() {
    let plan = plan(WHOLE, 7);
    // ep: none, 2 x 2 of ours, collectd; mine: none, 2 x 2 of ours.
    assert_eq!((plan.conditions.len(), plan.left_out.len()), (11, 0));
    let rounds: Vec<Vec<usize>> = (0..4)
        .map(|round| plan.runs.iter().filter(|run| run.round == round).map(|run| run.condition).collect())
        .collect();
    for round in &rounds {
        assert_eq!(round.len(), 11 + 2, "each once, and each workload without a monitor once more");
        assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 11);
        for (index, condition) in plan.conditions.iter().enumerate() {
            let count = round.iter().filter(|c| **c == index).count();
            assert_eq!(count, if condition.is_without() { 2 } else { 1 }, "{condition}");
        }
    }
    assert!(rounds.windows(2).all(|pair| pair[0] != pair[1]));
    let warm_up = plan.runs.iter().filter(|run| run.warm_up).count();
    assert_eq!((warm_up, plan.runs.len()), (13, 4 * 13));
    assert!(plan.runs.iter().enumerate().all(|(at, run)| run.run == at && run.warm_up == (run.round == 0)));
}

#[test]
fn what_cannot_be_told_a_period_is_left_out_and_said_so() {
    let text = WHOLE.replace("intervals = [\"10ms\"]", "intervals = [\"1ms\", \"10ms\"]");
    let experiment = parse(&text).unwrap();
    let plan = Plan::new(&experiment, 1, &offers(Ok("5".to_owned())), 1).unwrap();
    assert_eq!(plan.left_out.len(), 1);
    assert_eq!((plan.left_out[0].interval_ns, plan.left_out[0].monitor.as_str()), (1_000_000, "collectd"));
    assert_eq!(plan.left_out[0].reason, "10ms is the shortest period it can be told");
    let plan = Plan::new(&experiment, 1, &offers(Err("install collectd-core".to_owned())), 1).unwrap();
    assert_eq!(plan.left_out.iter().map(|l| l.reason.as_str()).collect::<Vec<_>>(), ["install collectd-core"; 2]);
    assert!(plan.conditions.iter().all(|condition| condition.monitor != "collectd"));
}

#[test]
fn a_workload_on_more_hosts_than_there_are_is_refused() {
    let text = WHOLE.replace("ranks = 2", "ranks = 2\nhosts = 2");
    let experiment = parse(&text).unwrap();
    let error = Plan::new(&experiment, 1, &offers(Ok("5".to_owned())), 1).unwrap_err().to_string();
    assert_eq!(error, "ep is to run on 2 hosts; the launcher has 1");
    let plan = Plan::new(&experiment, 1, &offers(Ok("5".to_owned())), 4).unwrap();
    // With and without the number of all of them, which are then the same.
    let twice = format!("{text}[[workload]]\nname = \"ep\"\nsize = \"S\"\nranks = 2\n");
    let refused = |hosts| Plan::new(&parse(&twice).unwrap(), 1, &offers(Ok("5".to_owned())), hosts).map(drop);
    let error = refused(2).unwrap_err().to_string();
    assert!(error.starts_with("ep S x2 on 2, none is named twice"), "{error}");
    refused(4).unwrap();
    let hosts: BTreeSet<(&str, usize)> = plan.conditions.iter().map(|c| (c.workload.as_str(), c.hosts)).collect();
    assert_eq!(hosts, BTreeSet::from([("ep", 2), ("mine", 4)]));
}

fn condition(monitor: &str) -> Condition {
    let (configuration, interval_ns) = if monitor == "none" { ("", None) } else { ("same", Some(1_000_000)) };
    Condition {
        workload: "ep".to_owned(),
        size: "S".to_owned(),
        ranks: 2,
        hosts: 1,
        monitor: monitor.to_owned(),
        configuration: configuration.to_owned(),
        interval_ns,
    }
}

fn record(run: usize, round: usize, monitor: &str, seconds: f64) -> Record {
    let outcome = Outcome {
        workload: "ep".to_owned(),
        size: "S".to_owned(),
        ranks: 2,
        seconds,
        verified: true,
        figures: BTreeMap::new(),
        histogram: Vec::new(),
    };
    Record {
        run,
        attempt: 0,
        round,
        warm_up: round == 0,
        condition: condition(monitor),
        started_ns: 1,
        wall_s: 1.0,
        others_percent: 0.0,
        outcome: Some(outcome),
        failure: None,
        seen: None,
        usage: None,
    }
}

#[test]
fn a_torn_last_line_is_cut_off_and_the_rest_kept() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::new(dir.path());
    let mut journal = Journal::open(&folder).unwrap();
    for run in 0..3 {
        journal.append(record(run, run, "none", 1.0)).unwrap();
    }
    drop(journal);
    let path = folder.path("runs.jsonl");
    let whole = std::fs::read(&path).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    // A crash at any byte of the last line loses that line and no other.
    for end in last..whole.len() {
        std::fs::write(&path, &whole[..end]).unwrap();
        assert_eq!(folder.read().unwrap().0.len(), 2, "{end}");
        let mut journal = Journal::open(&folder).unwrap();
        assert_eq!(journal.records.len(), 2, "{end}");
        journal.append(record(9, 0, "none", 1.0)).unwrap();
        drop(journal);
        assert_eq!(folder.read().unwrap().0.iter().map(|r| r.run).collect::<Vec<_>>(), [0, 1, 9], "{end}");
    }
    std::fs::write(&path, [b"{}\n", whole.as_slice()].concat()).unwrap();
    let error = format!("{:#}", folder.read().unwrap_err());
    assert!(error.contains("runs.jsonl:1: not a run"), "{error}");
}

#[test]
fn what_differs_between_two_starts_is_named() {
    let plan = plan(WHOLE, 7);
    let of = |seed, program: &str, monitors: &[(&str, &str)], hosts| {
        let monitors = monitors.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Identity::new(seed, vec![("wholegrain".to_owned(), program.to_owned())], monitors, hosts, &plan, Vec::new())
    };
    let old = of(7, "aa", &[("collectd", "5")], 1);
    let said = |new: Identity| old.differs(&new);
    assert_eq!(said(of(7, "aa", &[("collectd", "5")], 1)), None);
    assert_eq!(said(of(8, "aa", &[("collectd", "5")], 1)).unwrap(), "its seed is 7, not 8");
    assert_eq!(said(of(7, "ab", &[("collectd", "5")], 1)).unwrap(), "its program wholegrain was aa, and is now ab");
    assert_eq!(said(of(7, "aa", &[], 1)).unwrap(), "its monitor collectd was 5, and is now none");
    assert_eq!(said(of(7, "aa", &[("collectd", "5")], 2)).unwrap(), "it was made on 1 hosts, and there are 2 now");
}

#[test]
fn a_workload_enters_the_job_before_it_begins() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = ["a", "b c"].map(|name| folder.path().join(name));
    let command = [
        "sh",
        "-c",
        "cat \"$1\" \"$2\"; echo $3",
        "sh",
        &files[0].display().to_string(),
        &files[1].display().to_string(),
        "x y",
    ];
    let command = super::one_run::in_job(&files, command.map(str::to_owned).to_vec());
    let run = |command: &[String]| std::process::Command::new(&command[0]).args(&command[1..]).output().expect("sh");
    let output = run(&command);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n0\nx y\n");
    // A job that cannot be entered is no run of the workload outside of it.
    let gone =
        super::one_run::in_job(&[folder.path().join("none/procs")], vec!["echo".to_owned(), "outside".to_owned()]);
    let output = run(&gone);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(super::one_run::in_job(&[], vec!["true".to_owned()]), ["true"]);
}
