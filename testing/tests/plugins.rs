//! Plug-ins as their authors make them: `wholegrain plugin new`, the commands of its README, and the agent.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use wholegrain_testing::{checkout, program};

fn run(dir: &Path, command: &mut Command) -> String {
    let output = command.current_dir(dir).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// Makes a plug-in, runs its commands, and checks it with the agent, with the recorded input and with the machine's.
fn try_plugin(name: &str, arguments: &[&str], commands: &[&[&str]]) {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let new = ["plugin", "new", name, "--lang"];
    let said = run(parent.path(), Command::new(program("wholegrain")).args(new).args(arguments));
    assert!(said.contains(&format!("made {name}")), "{said}");
    let dir = parent.path().join(name);
    for command in commands {
        // What the test of a workspace builds is not the plug-in's.
        run(
            &dir,
            Command::new(command[0]).args(&command[1..]).env_remove("CARGO_TARGET_DIR").env("CARGO_INCREMENTAL", "0"),
        );
    }
    let agent = |argument: &str| {
        run(&dir, Command::new(program("wholegrain-agent")).args(["--config", "agent.toml", argument]))
    };
    let checked = agent("--check");
    let line = checked.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{checked}"));
    assert!(line.split_whitespace().nth(1) == Some("3"), "{line}");
    let once = agent("--once");
    assert!(once.contains(&format!("/try/{name}/load15")), "{once}");
    let config = fs::read_to_string(dir.join("agent.toml")).unwrap();
    fs::write(dir.join("agent.toml"), config.replace("# file =", "file =")).unwrap();
    let once = agent("--once");
    for (sensor, value) in [("load1", "0.52"), ("load5", "0.58"), ("load15", "0.59")] {
        let path = format!("/try/{name}/{sensor} ");
        let line = once.lines().find(|line| line.starts_with(&path)).unwrap_or_else(|| panic!("{once}"));
        assert!(line.ends_with(&format!(" {value} 1")), "{line}");
    }
}

#[test]
fn a_plug_in_in_c() {
    // Users of many systems have this umask.
    try_plugin("chiller", &["c"], &[&["sh", "-c", "umask 002; make && make test"]]);
}

/// Makes a plug-in. Its folder, and the function that gives its configuration to `--check` and returns what the agent says.
fn checker(name: &str, lang: &str) -> (tempfile::TempDir, String, impl Fn(&str, i32) -> String) {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
    run(parent.path(), Command::new(program("wholegrain")).args(["plugin", "new", name, "--lang", lang]));
    let dir = parent.path().join(name);
    let config = fs::read_to_string(dir.join("agent.toml")).unwrap();
    let check = move |config: &str, code: i32| {
        fs::write(dir.join("agent.toml"), config).unwrap();
        let mut agent = Command::new(program("wholegrain-agent"));
        let output = agent.args(["--config", "agent.toml", "--check"]).current_dir(&dir).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    };
    (parent, config, check)
}

#[test]
fn a_plug_in_in_c_refuses_a_mistyped_key() {
    let (parent, config, check) = checker("chiller", "c");
    run(&parent.path().join("chiller"), &mut Command::new("make"));
    let said = check(&config.replace("# file =", "\n# of the test\nfiel ="), 1);
    assert!(said.contains("agent.toml:10:1: fiel: is not a key of this plug-in, which has: file"), "{said}");
    let said = check(&config.replace("# file = \"recorded/loadavg\"", "file = \"none\""), 0);
    assert!(said.contains("/none: No such file or directory"), "{said}");
}

/// What Python raises keeps its type and its place.
#[test]
fn exceptions_of_a_plug_in_in_python() {
    let (parent, config, check) = checker("pump", "python");
    let file = parent.path().join("pump/pump.py");
    let template = fs::read_to_string(&file).unwrap();
    let read = "        with open(self.file, encoding=\"utf-8\") as file:\n            return parse(file.read())\n";
    assert!(template.contains(read));
    let line = template.lines().position(|line| line.contains("with open(self.file")).unwrap() + 1;
    for (code, expected) in [
        ("1 / 0", format!("ZeroDivisionError: division by zero (pump.py:{line})")),
        ("__import__('subprocess').run(['true'])", "to start programs it needs processes_max".to_owned()),
        ("open('/nonexistent')", format!("(pump.py:{line})")),
    ] {
        fs::write(&file, template.replace(read, &format!("        {code}\n"))).unwrap();
        let said = check(&config, 0);
        let problem = said.lines().find(|line| line.starts_with("problem: pump: ")).unwrap_or_else(|| panic!("{said}"));
        assert!(problem.contains(&expected), "{problem}");
    }
    for (code, expected) in [
        ("import nosuch", "ModuleNotFoundError: No module named 'nosuch' (pump.py:1)\n"),
        ("def (", "SyntaxError: invalid syntax (pump.py:1)\n"),
    ] {
        fs::write(&file, format!("{code}\n{template}")).unwrap();
        let said = check(&config, 1);
        let failed = said.lines().find(|line| line.starts_with("failed: ")).unwrap_or_else(|| panic!("{said}"));
        assert!(format!("{failed}\n").contains(expected), "{failed}");
    }
}

#[test]
fn a_plug_in_in_python() {
    try_plugin("pump", &["python"], &[&["python3", "-m", "py_compile", "pump.py"], &["python3", "-m", "unittest"]]);
}

#[test]
fn a_plug_in_in_rust() {
    let sources = checkout();
    let sources = sources.to_str().unwrap();
    // Only crates of the workspace are on this machine: their versions are those of its lock file.
    let lock = format!("cp {sources}/Cargo.lock .");
    let commands: [&[&str]; 3] =
        [&["sh", "-c", &lock], &["cargo", "build", "--offline"], &["cargo", "test", "--offline"]];
    try_plugin("valve", &["rust", "--sources", sources], &commands);
}

#[test]
fn errors_of_a_plug_in_in_python_name_file_and_line() {
    let (_parent, config, check) = checker("pump", "python");
    let said = check(&config.replace("# file =", "fil ="), 1);
    assert!(said.contains("agent.toml:8:1: fil: is not a key of this plug-in, which has: file"), "{said}");
    let said = check(&config.replace("# file = \"recorded/loadavg\"", "file = \"none\""), 0);
    assert!(said.contains("No such file or directory"), "{said}");
}
