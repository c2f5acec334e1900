//! The report of the benchmarks (bench/report): its types, and its own tests.

use std::process::Command;

use wholegrain_testing::checkout;

fn run(arguments: &[&str]) {
    let folder = checkout().join("bench/report");
    let mut command = Command::new(checkout().join(".venv/bin/python"));
    let output = command.args(arguments).current_dir(folder).output().expect("make prepare makes .venv");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    println!("{out}");
}

#[test]
fn its_types_are_checked() {
    run(&["-m", "mypy", "--config-file", "mypy.ini", "--no-incremental", "."]);
}

#[test]
fn its_tests_pass() {
    run(&["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", "."]);
}
