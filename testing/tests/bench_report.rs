//! The Python of the benchmarks: its types and its tests. Those that start real monitors, workloads and launchers are in `bench/tests`.

use std::process::Command;

use wholegrain_testing::checkout;

fn run(arguments: &[&str]) {
    let mut command = Command::new(checkout().join(".venv/bin/python"));
    command.args(arguments).env("PYTHONPATH", checkout().join("bench")).current_dir(checkout().join("bench"));
    let output = command.output().expect("make prepare makes .venv");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    println!("{out}{err}");
}

#[test]
fn the_types_of_the_benchmarks_are_checked() {
    run(&["-m", "mypy", "--config-file", "mypy.ini", "--no-incremental", "."]);
}

#[test]
fn the_tests_of_the_benchmarks_pass() {
    run(&["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", "."]);
}
