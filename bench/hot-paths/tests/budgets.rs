//! The budgets of the hot paths hold, and the check names a missing program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Builds the program with the profile that the budgets are of, in the target folder of this test, and says where it is.
fn program() -> PathBuf {
    // <target>/debug/deps/budgets-…: the folder of targets is three levels up.
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let output = Command::new(env!("CARGO"))
        .args(["build", "--profile", "hot-paths", "--locked", "-p", "wholegrain-hot-paths", "--target-dir"])
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo");
    assert!(output.status.success(), "building the hot paths: {}", text(&output));
    target.join("hot-paths/wholegrain-hot-paths")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn check(arguments: &[&str]) -> Output {
    Command::new(program()).arg("check").args(arguments).output().expect("the check")
}

#[test]
fn no_hot_path_takes_more_instructions_than_its_budget() {
    let output = check(&[]);
    println!("{}", text(&output));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A budgets' file in which one path has `factor` of its budget.
fn changed(path: &str, factor: f64, dir: &Path) -> PathBuf {
    let budgets = concat!(env!("CARGO_MANIFEST_DIR"), "/../budgets/hot-paths.toml");
    let text = std::fs::read_to_string(budgets).expect("the budgets");
    let line = text.lines().find(|line| line.starts_with(&format!("{path} = "))).expect("the path's line");
    let budget: f64 = line.split_whitespace().nth(2).expect("a budget").parse().expect("a number");
    let file = dir.join("budgets.toml");
    std::fs::write(&file, text.replace(line, &format!("{path} = {:.1}", budget * factor))).expect("a file");
    file
}

#[test]
fn what_exceeds_its_budget_fails_with_the_figure_and_what_to_do() {
    if cfg!(not(all(target_arch = "x86_64", target_env = "gnu"))) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // A folder of its own: the other test has callgrind's files of the same path.
    let run = |factor: f64, more: &[&str]| {
        let budgets = changed("encode-sample", factor, dir.path());
        let files = dir.path().join("files");
        let mut arguments = vec!["--only", "encode-sample", "--budgets", budgets.to_str().unwrap()];
        arguments.extend(["--dir", files.to_str().unwrap()]);
        arguments.extend(more);
        check(&arguments)
    };
    let over = run(0.5, &[]);
    assert_eq!(over.status.code(), Some(1), "{}", text(&over));
    for part in
        ["encode-sample: ", "% over it", "callgrind_annotate", "encode-sample.out", "--update --only encode-sample"]
    {
        assert!(text(&over).contains(part), "{part:?} in {}", text(&over));
    }
    let below = run(2.0, &[]);
    assert!(below.status.success() && text(&below).contains("lower it"), "{}", text(&below));
    let without = run(1.0, &["--valgrind", "/nowhere/valgrind"]);
    assert_eq!(without.status.code(), Some(2), "{}", text(&without));
    assert!(text(&without).contains("install Debian's package valgrind"), "{}", text(&without));
}
