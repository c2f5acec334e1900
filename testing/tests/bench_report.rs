//! The Python of the benchmarks: types and tests of the experiment's statistics (`bench/experiment`) and of the report (`bench/report`).

use std::process::Command;

use wholegrain_testing::checkout;

fn run(folder: &str, arguments: &[&str]) {
    let mut command = Command::new(checkout().join(".venv/bin/python"));
    let output =
        command.args(arguments).current_dir(checkout().join(folder)).output().expect("make prepare makes .venv");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    println!("{out}{err}");
}

#[test]
fn the_types_of_the_report_are_checked() {
    run("bench/report", &["-m", "mypy", "--config-file", "mypy.ini", "--no-incremental", "."]);
}

#[test]
fn the_tests_of_the_report_pass() {
    run("bench/report", &["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", "."]);
}

#[test]
fn the_types_of_the_experiment_are_checked() {
    run("bench", &["-m", "mypy", "--config-file", "report/mypy.ini", "--no-incremental", "-p", "experiment"]);
}

#[test]
fn the_tests_of_the_experiment_pass() {
    run("bench", &["-m", "unittest", "experiment.test_experiment"]);
}
