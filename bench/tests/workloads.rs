//! The workloads, compiled by the real compiler and started by the real mpirun. Their times are not checked.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Programs of our own.
const OWN: [&str; 6] = ["ep", "cg", "wavefront", "noise", "compute", "memory"];

fn workload(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain-bench"));
    command.args(["workload", "run"]).args(arguments).arg("--dir").arg(dir);
    command.output().expect("wholegrain-bench")
}

/// The outcome of a run that came to its end.
#[track_caller]
fn outcome(dir: &Path, arguments: &[&str]) -> Value {
    let output = workload(dir, arguments);
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {errors}");
    assert_eq!(text.lines().count(), 1, "one line of JSON: {text}");
    let outcome: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(outcome["seconds"].as_f64().is_some_and(|s| s > 0.0), "{outcome}");
    outcome
}

/// The compiled programs in a folder, and when each was made.
fn programs(dir: &Path) -> Vec<(std::path::PathBuf, std::time::SystemTime)> {
    let entries = std::fs::read_dir(dir).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> =
        entries.map(|p| (p.clone(), p.metadata().and_then(|m| m.modified()).expect("a time"))).collect();
    found.sort();
    found
}

#[test]
fn each_program_is_right_on_one_rank_and_on_two() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut made = Vec::new();
    for ranks in ["1", "2"] {
        for name in OWN {
            let outcome = outcome(folder.path(), &[name, "--size", "S", "--ranks", ranks]);
            assert_eq!(outcome["verified"], true, "{outcome}");
            assert_eq!((&outcome["workload"], &outcome["size"]), (&name.into(), &"S".into()));
            assert_eq!(outcome["ranks"].to_string(), ranks);
        }
        // The programs and the noise loop's units; nothing of a run stays, and nothing is made twice.
        let now = programs(folder.path());
        assert_eq!(now.len(), OWN.len() + 1, "{now:?}");
        if !made.is_empty() {
            assert_eq!(made, now);
        }
        made = now;
    }
}

#[test]
fn a_program_that_does_something_else_is_not_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in OWN {
        let outcome = outcome(folder.path(), &[name, "--size", "S", "--ranks", "2", "--cflags", "-DBROKEN"]);
        assert_eq!(outcome["verified"], false, "{outcome}");
    }
}

#[test]
fn the_wavefront_comes_to_the_same_however_it_is_divided() {
    let folder = tempfile::tempdir().expect("a folder");
    // Three and four ranks: columns of unequal width, and a rectangle of two by two. A size whose sum is not known: rank 0 does it again.
    for (ranks, size) in [("3", "S"), ("4", "S"), ("4", "7x5x2")] {
        let outcome = outcome(folder.path(), &["wavefront", "--size", size, "--ranks", ranks]);
        assert_eq!(outcome["verified"], true, "{outcome}");
    }
}

#[test]
fn the_noise_loop_counts_every_turn_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let outcome = outcome(folder.path(), &["noise", "--size", "700x20us", "--ranks", "2", "--binding", "none"]);
    let bins: Vec<(u64, u64)> = serde_json::from_value(outcome["histogram"].clone()).expect("bins");
    assert_eq!(bins.iter().map(|(_, count)| count).sum::<u64>(), 1400, "{outcome}");
    assert!(bins.is_sorted_by(|a, b| a.0 < b.0) && bins.iter().all(|(_, count)| *count > 0), "{bins:?}");
    let figure = |name: &str| outcome["figures"][name].as_f64().unwrap_or_else(|| panic!("{name}: {outcome}"));
    assert_eq!(figure("quanta"), 1400.0);
    assert!((0.0..1.0).contains(&figure("noise_share")), "{outcome}");
    let (first, last) = (bins[0].0 as f64, bins[bins.len() - 1].0 as f64);
    assert!(first <= figure("minimum_ns") && last <= figure("maximum_ns"), "{outcome}");
}

#[test]
fn hpcc_gives_each_part_its_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let outcome = outcome(folder.path(), &["hpcc", "--size", "200", "--ranks", "2"]);
    assert_eq!(outcome["verified"], true, "{outcome}");
    for part in ["hpl", "stream", "fft", "ptrans", "random_access", "dgemm", "latency", "hpcc"] {
        let seconds = outcome["figures"][format!("{part}_s")].as_f64();
        // At this size a section may end before its beginning was seen: it has no time then, and never one of 0.
        let reported_by_hpcc = ["hpl", "latency", "hpcc"].contains(&part);
        assert!(seconds.map_or(!reported_by_hpcc, |s| s > 0.0), "{part}: {outcome}");
    }
    assert_eq!(outcome["seconds"], outcome["figures"]["hpcc_s"]);
}

#[test]
fn a_part_of_hpcc_is_run_by_the_given_launcher() {
    let folder = tempfile::tempdir().expect("a folder");
    let launcher = "mpirun --allow-run-as-root --oversubscribe --bind-to none -np {ranks}";
    let outcome = outcome(folder.path(), &["hpl", "--size", "200", "--ranks", "3", "--launcher", launcher]);
    assert_eq!((&outcome["verified"], &outcome["ranks"]), (&true.into(), &3.into()), "{outcome}");
    assert_eq!(outcome["seconds"], outcome["figures"]["hpl_s"]);
}

#[test]
fn what_cannot_be_run_is_an_error_without_an_outcome() {
    let folder = tempfile::tempdir().expect("a folder");
    for (arguments, why) in [
        (["nothing", "--size", "S", "--ranks", "1"], "no workload called nothing"),
        (["ep", "--size", "Z", "--ranks", "1"], "the classes of ep are"),
        (["ep", "--size", "S", "--ranks", "0"], "no ranks"),
        (["ep", "--size", "S", "--launcher", "no-such-launcher {ranks}"], "no-such-launcher"),
        (["ep", "--size", "S", "--launcher", "false {ranks}"], "failed"),
        // It prints nothing that is known.
        (["ep", "--size", "S", "--launcher", "echo {ranks}"], "did not print its seconds"),
        (["ep", "--size", "S", "--cflags", "-no-such-flag"], "cannot be compiled"),
    ] {
        let output = workload(folder.path(), &arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(errors.contains(why), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_run_that_takes_too_long_is_stopped_with_its_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    // A thousand times the largest class: more than a day.
    let output = workload(folder.path(), &["ep", "--size", "Bx1000", "--ranks", "2", "--timeout-s", "2"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("was stopped"));
    let dir = folder.path().canonicalize().expect("the folder");
    wholegrain_testing::wait_until("the ranks are gone", || {
        let entries = std::fs::read_dir("/proc").expect("processes").flatten();
        let programs = entries.filter_map(|entry| std::fs::read_link(entry.path().join("exe")).ok());
        !programs.into_iter().any(|program| program.starts_with(&dir))
    });
}
