//! What is on disk: rules that outlive the agent, and the audit log.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use super::super::super::Accumulation;
use super::super::audit::{FILE_BYTES_MAX, FILES_MAX, REFUSALS_PER_MINUTE};
use super::*;

fn open(dir: &Path, now: i64) -> (Rules, Vec<String>) {
    Rules::open(&config(""), Some(dir), now)
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn rules_outlive_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made");
    let (mut rules, problems) = open(&dir, 0);
    assert!(problems.is_empty(), "{problems:?}");
    add(&mut rules, &alice(), rule("47* perf/*,cpu/usage 1ms 10s"), 0).unwrap();
    let accumulate = Some(Accumulation { window: Interval::from_s(1), quantiles: vec![0.5, 0.99] });
    add(&mut rules, &root(), RawRule { accumulate, ..rule("* memory/* 10ms") }, 0).unwrap();
    add(&mut rules, &bob(), rule("99 perf/* 7ms 20s"), 0).unwrap();
    let gone = add(&mut rules, &bob(), rule("99 cpu/* 7ms 20s"), 0).unwrap().rule.unwrap();
    rules.execute(&JobsCommand { who: bob(), action: JobsAction::Remove(gone) }, &jobs(), 0).unwrap();
    let before = rules.view();
    let shown = |rules: &Rules| serde_json::to_value(rules.view()).unwrap();
    drop(rules);
    let (again, problems) = open(&dir, 5 * S);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(shown(&again), serde_json::to_value(&before).unwrap());
    assert_eq!(setting(&again, "4711", 1000, "cpu/usage", 5 * S), "10001: every 1ms");
    assert_eq!(setting(&again, "4711", 1001, "cpu/usage", 5 * S), "1: every 1s", "still alice's jobs only");
    // What is over meanwhile is not there any more, and numbers are not given again.
    let (mut again, problems) = open(&dir, 15 * S);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(again.view().iter().map(|rule| rule.id).collect::<Vec<_>>(), [1, 2, 10_002, 10_003]);
    assert_eq!(add(&mut again, &alice(), rule("4711 perf/* 1s 1m"), 15 * S).unwrap().rule, Some(10_005));
    let mode = fs::metadata(dir.join("rules.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_damaged_file_is_renamed_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (path, aside) = (dir.path().join("rules.json"), dir.path().join("rules.json.damaged"));
    let (mut rules, _) = open(dir.path(), 0);
    add(&mut rules, &alice(), rule("4711 perf/* 1ms 10s"), 0).unwrap();
    drop(rules);
    let good = fs::read_to_string(&path).unwrap();
    let cut = &good[..good.len() / 2];
    let version = good.replace("\"version\":1", "\"version\":2");
    let deep = "[".repeat(100_000);
    for bad in ["", "{}", "\0\0\0", cut, version.as_str(), deep.as_str(), "[1,2]"] {
        fs::write(&path, bad).unwrap();
        let (mut rules, problems) = open(dir.path(), 0);
        assert!(problems.len() == 1 && problems[0].contains("rules.json is damaged"), "{problems:?}");
        assert!(problems[0].contains("rules.json.damaged"), "{problems:?}");
        assert_eq!(fs::read_to_string(&aside).unwrap(), bad);
        assert_eq!(rules.view().len(), 2, "the configuration's hold");
        add(&mut rules, &alice(), rule("4711 perf/* 1ms 10s"), 0).unwrap();
        assert_eq!(open(dir.path(), 0).0.view().len(), 3);
    }
    // One rule that makes no sense does not take the others with it.
    let two = good.replace("\"rules\":[", "\"rules\":[{\"id\":10050,\"rule\":{\"metrics\":[\"**\"],\"every\":\"-5s\"},\"by\":\"x\"},{\"id\":3,\"rule\":{\"metrics\":[\"**\"],\"every\":\"1s\"},\"by\":\"x\"},");
    fs::write(&path, two).unwrap();
    let (rules, problems) = open(dir.path(), 0);
    assert_eq!(rules.view().len(), 3, "{problems:?}");
    assert!(problems[0].contains("rule 10050: every: -5s is negative"), "{problems:?}");
    assert!(problems[1].contains("rule 3: its number is not one"), "{problems:?}");
    // A file that somebody edited cannot give a user more than the limits do.
    fs::write(&path, good.replace("\"until_ns\":10000000000", "\"until_ns\":null")).unwrap();
    let (rules, problems) = open(dir.path(), 0);
    assert!(rules.view().len() == 2 && problems[0].contains("duration_max"), "{problems:?}");
}

#[test]
fn a_change_that_cannot_be_kept_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rules, _) = open(dir.path(), 0);
    let kept = add(&mut rules, &alice(), rule("4711 perf/* 1s 10s"), 0).unwrap().rule.unwrap();
    // A directory in the place of the temporary file.
    fs::create_dir(dir.path().join("rules.json.new")).unwrap();
    let refusal = add(&mut rules, &alice(), rule("4711 perf/* 1ms 10s"), 0).unwrap_err();
    assert!(refusal.status() == 503 && refusal.to_string().contains("nothing is changed"), "{refusal}");
    assert_eq!(setting(&rules, "4711", 1000, "perf/cycles", 0), format!("{kept}: every 1s"));
    let remove = JobsCommand { who: alice(), action: JobsAction::Remove(kept) };
    assert_eq!(rules.execute(&remove, &jobs(), 0).unwrap_err().status(), 503);
    assert_eq!(setting(&rules, "4711", 1000, "perf/cycles", 0), format!("{kept}: every 1s"));
    // Nor one that the audit log cannot tell of.
    fs::remove_dir(dir.path().join("rules.json.new")).unwrap();
    fs::rename(dir.path().join("audit.jsonl"), dir.path().join("old")).unwrap();
    fs::create_dir(dir.path().join("audit.jsonl")).unwrap();
    let refusal = add(&mut rules, &alice(), rule("4711 perf/* 1ms 10s"), 0).unwrap_err();
    assert!(refusal.to_string().contains("cannot write the audit log"), "{refusal}");
    assert_eq!(setting(&rules, "4711", 1000, "perf/cycles", 0), format!("{kept}: every 1s"));
    fs::remove_dir(dir.path().join("audit.jsonl")).unwrap();
    add(&mut rules, &alice(), rule("4711 perf/* 1ms 10s"), 0).unwrap();
}

#[test]
fn the_audit_log_says_who_what_when_and_from_what_to_what() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rules, _) = open(dir.path(), 0);
    let id = add(&mut rules, &alice(), rule("4711 perf/*,tasks/** 100ms 10s"), S).unwrap().rule.unwrap();
    add(&mut rules, &alice(), rule("4711 perf/cycles 1ms 20s"), 2 * S).unwrap();
    add(&mut rules, &bob(), rule("4711 perf/* off 10s"), 3 * S).unwrap_err();
    rules.execute(&JobsCommand { who: root(), action: JobsAction::Remove(id) }, &jobs(), 4 * S).unwrap();
    rules
        .execute(&JobsCommand { who: root(), action: JobsAction::Try(rule("4711 perf/* off 10s")) }, &jobs(), 5 * S)
        .unwrap();
    rules.expire(30 * S);
    let path = dir.path().join("audit.jsonl");
    let lines = lines(&path);
    let verbs: Vec<&str> = lines.iter().map(|line| line["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["add", "add", "refused", "remove", "end"]);
    let first = &lines[0];
    assert_eq!(first["time"], "1970-01-01T00:00:01Z");
    assert_eq!(
        (&first["who"], &first["role"], &first["uid"]),
        (&"uid 1000 (alice)".into(), &"user".into(), &1000.into())
    );
    assert_eq!(
        (&first["rule"]["id"], &first["rule"]["every"], &first["rule"]["jobs"]),
        (&id.into(), &"100ms".into(), &"4711".into())
    );
    assert_eq!(
        first["changes"],
        serde_json::json!([
            {"old": "every 1s (rule 1)", "new": "every 100ms (rule 10001)", "metrics": 2, "such_as": ["perf/cycles", "perf/instructions"]},
            {"old": "every 10s (rule 2)", "new": "every 100ms (rule 10001)", "metrics": 1, "such_as": ["tasks/running"]},
        ])
    );
    assert_eq!(lines[1]["changes"][0]["old"], "every 100ms (rule 10001)");
    assert_eq!(lines[2]["who"], "token bob");
    assert!(lines[2]["action"].as_str().unwrap().starts_with("add {\"metrics\":[\"perf/*\"]"), "{}", lines[2]);
    assert!(lines[2]["why"].as_str().unwrap().contains("does not run here"), "{}", lines[2]);
    assert_eq!(lines[3]["who"], "uid 0");
    assert_eq!(lines[3]["changes"][0]["new"], "every 1s (rule 1)");
    assert_eq!((&lines[4]["who"], &lines[4]["rule"]["id"]), (&"the clock".into(), &10_002.into()));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn refusals_do_not_fill_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rules, _) = open(dir.path(), 0);
    let long = RawRule { metrics: vec!["é".repeat(500); 100], ..rule("4711 perf/* 1ms") };
    for _ in 0..1000 {
        add(&mut rules, &root(), long.clone(), 0).unwrap_err();
    }
    add(&mut rules, &alice(), rule("99 perf/* 1ms 1m"), 0).unwrap_err();
    let path = dir.path().join("audit.jsonl");
    let refusals = lines(&path);
    let each = REFUSALS_PER_MINUTE.0 as usize;
    assert_eq!(refusals.len(), each + 1, "so many of one caller, and others are still written");
    assert_eq!(refusals[each]["not_written"], 1000 - each);
    assert!(fs::metadata(&path).unwrap().len() < 64 << 10);
}

#[test]
fn the_audit_log_is_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rules, _) = open(dir.path(), 0);
    let path = dir.path().join("audit.jsonl");
    for round in 0..FILES_MAX + 3 {
        let filler = format!("{{\"verb\":\"filler {round}\"}}{}\n", " ".repeat(FILE_BYTES_MAX as usize - 40));
        fs::write(&path, filler).unwrap();
        add(&mut rules, &root(), rule("4711 perf/* 1s"), 0).unwrap();
    }
    let mut names: Vec<String> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("audit"));
    assert_eq!(names.len(), FILES_MAX as usize, "{names:?}");
    assert_eq!(lines(&path).len(), 1);
    let newest = &lines(&dir.path().join("audit.1.jsonl"))[0];
    assert_eq!(newest["verb"], format!("filler {}", FILES_MAX + 2));
}
