//! Plug-ins in the running agent: written in C, well-behaved and not. A source of the agent beside them loses no sample.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::Agent as Running;
use wholegrain_testkit::{wait_for, wait_until};

/// The plug-in `plant.c` in a folder that only this user can write to.
fn plant(dir: &Path, options: &[&str]) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"])
        .arg(root.join("../sources/abi"))
        .args(options)
        .arg(root.join("tests/plugins/plant.c"))
        .arg("-o")
        .arg(dir.join("plant.so"))
        .status()
        .unwrap();
    assert!(status.success(), "cc refuses plant.c");
    fs::set_permissions(dir.join("plant.so"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// The configuration: the plug-in with these lines in its table, and a source of the agent every 10 ms.
fn config(keys: &str) -> String {
    format!(
        "name = \"n1\"\n[api]\nsocket = \"agent.sock\"\n[cache]\nduration = \"10min\"\n\
         [sources.tester]\nsensors = 1\nshape = \"counter\"\namplitude = 1\ninterval = \"10ms\"\n\
         [plugins]\ndir = \".\"\n[plugins.plant]\n{keys}"
    )
}

struct Case {
    dir: tempfile::TempDir,
    agent: Option<Running>,
}

impl Case {
    fn start(keys: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        plant(dir.path(), &[]);
        Self::start_in(dir, keys)
    }

    fn start_in(dir: tempfile::TempDir, keys: &str) -> Self {
        wholegrain_agent::plugins::set_host_program(env!("CARGO_BIN_EXE_wholegrain-agent").into());
        let agent = Running::start(dir.path(), &config(keys));
        Self { dir, agent: Some(agent) }
    }

    fn ask(&self, method: &str, target: &str) -> (u16, Value) {
        self.agent.as_ref().unwrap().ask(method, target)
    }

    fn get(&self, target: &str) -> Value {
        let (code, answer) = self.ask("GET", target);
        assert_eq!(code, 200, "{answer}");
        answer
    }

    fn plugin(&self) -> Value {
        self.get("/v1/plugins")["plugins"][0].clone()
    }

    fn newest(&self, sensor: &str) -> Value {
        self.get(&format!("/v1/newest?pattern={sensor}"))["readings"][0]["value"].clone()
    }

    fn wait_value(&self, sensor: &str, expected: &Value) {
        wait_until(&format!("{sensor} = {expected}"), || self.newest(sensor) == *expected);
    }

    fn wait_fault(&self, part: &str) -> Value {
        wait_for(&format!("the fault {part:?}"), || {
            let plugin = self.plugin();
            plugin["fault"].as_str().is_some_and(|fault| fault.contains(part)).then_some(plugin)
        })
    }

    fn pid(&self) -> u32 {
        wait_for("the process of the plug-in", || self.plugin()["pid"].as_u64()) as u32
    }

    /// Ends the agent. The other source has each of its values once, in order: it lost no sample.
    fn finish(mut self) {
        let mut history = Value::Null;
        wait_until("samples of the other source", || {
            history = self.get("/v1/history?pattern=tester/0");
            history["readings"].as_array().is_some_and(|readings| !readings.is_empty())
        });
        let groups = self.get("/v1/groups");
        let readings = history["readings"].as_array().unwrap();
        let values: Vec<i64> = readings.iter().map(|reading| reading["value"].as_i64().expect("no gap")).collect();
        assert!(!values.is_empty() && values.windows(2).all(|pair| pair[1] == pair[0] + 1), "{values:?}");
        let group = groups["groups"].as_array().unwrap().iter().find(|group| group["group"] == "tester").unwrap();
        assert_eq!(group["overruns"], 0, "{group}");
        self.agent.take().unwrap().stop();
    }
}

fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn a_plug_in_in_c_is_sampled_isolated_and_within_the_agent() {
    for isolate in [true, false] {
        let case = Case::start(&format!("isolate = {isolate}\nmode = \"work\"\n"));
        case.wait_value("plant/flow", &1.5.into());
        wait_until("the counter", || case.newest("plant/count").as_i64() > Some(3));
        assert_eq!(case.newest("plant/gap"), Value::Null, "what the plug-in does not set is a gap");
        let plugin = case.plugin();
        assert_eq!((&plugin["state"], &plugin["version"]), (&"running".into(), &"1.2".into()), "{plugin}");
        assert_eq!((&plugin["isolated"], plugin["pid"].is_null()), (&isolate.into(), !isolate));
        wait_until("the groups", || case.plugin()["sensors"] == 3);
        let sensors = case.get("/v1/sensors?pattern=plant/flow");
        assert_eq!(sensors["sensors"][0]["unit"], "l/s");
        assert_eq!(case.ask("POST", "/v1/plugins/plant/unload").0, 200);
        wait_until("it is stopped", || case.plugin()["state"] == "stopped");
        case.finish();
    }
}

#[test]
fn a_crash_ends_the_plug_in_only_and_it_runs_again() {
    let case = Case::start("mode = \"crash in read\"\n");
    case.wait_value("plant/flow", &1.5.into());
    let plugin = case.wait_fault("SIGSEGV");
    assert!(plugin["faults"].as_u64() > Some(0), "{plugin}");
    wait_until("its values are gaps", || case.newest("plant/flow").is_null() || case.plugin()["restarts"] != 0);
    wait_until("it runs again", || case.plugin()["restarts"].as_u64() > Some(0) && case.newest("plant/flow") == 1.5);
    assert!(case.newest("agent/plugin_faults").as_u64() > Some(0));
    case.finish();
}

#[test]
fn hangs_crashes_and_refusals_at_each_step() {
    for (mode, part) in [
        ("crash in configure", "SIGSEGV: a wrong address when it should configure"),
        ("crash in discover", "SIGSEGV: a wrong address when it should discover"),
        ("hang in configure", "it did not configure within 200ms"),
        ("hang in discover", "it did not discover within 200ms"),
        ("hang in read", "group plant: a read took longer than 100ms"),
        ("exit in read", "its process ended with code 3"),
        ("fail without a word", "it refused its settings without a reason (code 7)"),
    ] {
        let keys = format!("deadline = \"100ms\"\ndiscover_deadline = \"200ms\"\nmode = \"{mode}\"\n");
        let case = Case::start(&keys);
        case.wait_fault(part);
        case.finish();
    }
}

#[test]
fn a_crash_when_it_is_freed_harms_nobody() {
    let case = Case::start("mode = \"crash in free\"\n");
    case.wait_value("plant/flow", &1.5.into());
    let pid = case.pid();
    assert_eq!(case.ask("POST", "/v1/plugins/plant/unload").0, 200);
    wait_until("its end", || !is_running(pid));
    case.finish();
}

#[test]
fn an_error_in_its_settings_names_file_and_line() {
    let case = Case::start("library = \"plant.so\"\n\nother = 1\nmode = \"refuse\"\n");
    let plugin = case.wait_fault("is no mode");
    let file = case.dir.path().join("agent.toml");
    let expected = format!("{}:17:1: mode: \"refuse\" is no mode", file.display());
    assert_eq!((&plugin["fault"], &plugin["state"]), (&expected.into(), &"refused".into()));
    case.finish();
}

#[test]
fn memory_processes_and_cpu_are_bounded() {
    let leak = Case::start("memory_bytes_max = \"64MiB\"\nmode = \"leak\"\n");
    leak.wait_fault("SIGABRT");
    leak.finish();
    // Files in memory are nobody's resident memory.
    let hidden = Case::start("memory_bytes_max = \"64MiB\"\nmode = \"hide\"\n");
    hidden.wait_fault("of memory; at most 64MiB");
    hidden.finish();
    let forbidden = Case::start("mode = \"fork\"\n");
    forbidden.wait_value("plant/flow", &(-1.0).into());
    forbidden.finish();
    let forks = Case::start("processes_max = 5\nmode = \"fork\"\n");
    let pid = forks.pid();
    let mut below = Vec::new();
    wait_until("some processes", || {
        let found = processes_below(pid);
        below.extend(found.iter().copied());
        found.len() > 5
    });
    forks.wait_fault("processes; at most 6");
    wait_until("the end of all", || !below.iter().any(|pid| is_running(*pid)));
    forks.finish();
}

/// The processes of this name.
fn named(name: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == name))
        .count()
}

#[test]
fn a_process_that_flees_is_ended_with_its_plug_in() {
    let name = format!("c{}", std::process::id());
    let case = Case::start(&format!("processes_max = 100\nmode = \"comet\"\ncomet = {}\n", std::process::id()));
    wait_until("the process", || named(&name) > 0);
    assert_eq!(case.ask("POST", "/v1/plugins/plant/unload").0, 200);
    assert_eq!((0..20).map(|_| named(&name)).max(), Some(0));
    case.finish();
}

/// A sensor has one group, also if plug-ins are loaded while the agent runs.
#[test]
fn a_sensor_of_two_plug_ins_stays_with_the_first() {
    let case = Case::start("mode = \"work\"\n");
    case.wait_value("plant/flow", &1.5.into());
    let second = |mode: &str| {
        let text =
            config("mode = \"work\"\n") + &format!("[plugins.second]\nlibrary = \"plant.so\"\nmode = \"{mode}\"\n");
        fs::write(case.dir.path().join("agent.toml"), text).unwrap();
    };
    let groups = || -> Vec<String> {
        let groups = case.get("/v1/groups");
        let names =
            groups["groups"].as_array().unwrap().iter().map(|group| group["group"].as_str().unwrap().to_owned());
        names.filter(|name| ["plant", "another"].contains(&name.as_str())).collect()
    };
    for (mode, note) in [
        ("work", "group plant is left out: source plant has a group of this name"),
        ("another group", "group another is left out: group plant has its sensor plant/flow already"),
    ] {
        second(mode);
        assert_eq!(case.ask("POST", "/v1/plugins/second/load").0, 200);
        wait_until(note, || case.get("/v1/sources").to_string().contains(note));
        // The reload finds the same.
        assert_eq!((case.ask("POST", "/v1/reload").0, groups()), (200, vec!["plant".to_owned()]));
        assert_eq!(case.ask("POST", "/v1/plugins/second/unload").0, 200);
    }
    // Once the first is unloaded, the sensor is free.
    assert_eq!(case.ask("POST", "/v1/plugins/plant/unload").0, 200);
    assert_eq!(case.ask("POST", "/v1/plugins/second/load").0, 200);
    wait_until("the group of the second", || groups() == ["another"]);
    case.wait_value("plant/flow", &1.5.into());
    assert_eq!(case.ask("POST", "/v1/plugins/plant/load").0, 200);
    let note = "group plant is left out: group another has its sensor plant/flow already";
    wait_until(note, || case.get("/v1/sources").to_string().contains(note));
    case.finish();
}

/// All processes below one.
fn processes_below(pid: u32) -> Vec<u32> {
    let children = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    };
    let (mut found, mut at) = (children(pid), 0);
    while at < found.len() {
        found.extend(children(found[at]));
        at += 1;
    }
    found
}

#[test]
fn a_plug_in_that_only_computes_is_ended() {
    let case = Case::start("deadline = \"100s\"\ncpu_percent_max = 20\nmode = \"spin\"\n");
    case.wait_fault("% of a CPU for");
    case.finish();
}

#[test]
fn garbage_is_left_out_and_the_rest_keeps_its_places() {
    for isolate in [true, false] {
        let case = Case::start(&format!("isolate = {isolate}\nmode = \"garbage\"\n"));
        case.wait_value("plant/flow", &1.5.into());
        wait_until("the counter", || case.newest("plant/count").as_i64() > Some(0));
        let sources = case.get("/v1/sources").to_string();
        for part in ["it is in no group", "unknown kind", "its scale NaN", "missing or too short", "not UTF-8"] {
            assert!(sources.contains(part), "{part:?} is not in {sources}");
        }
        case.finish();
    }
}

#[test]
fn problems_changed_layouts_and_old_answers() {
    let problem = Case::start("mode = \"problem\"\n");
    wait_until("the problem", || problem.get("/v1/groups").to_string().contains("the pump is dry"));
    problem.finish();
    let more = Case::start("mode = \"more sensors\"\n");
    more.wait_value("plant/more", &33.into());
    more.finish();
    let old = Case::start("mode = \"old\"\n");
    wait_until("some answers", || {
        let history = old.get("/v1/history?pattern=plant/count");
        let count = history["readings"].as_array().map_or(0, Vec::len);
        let values: Vec<i64> =
            history["readings"].as_array().unwrap().iter().filter_map(|r| r["value"].as_i64()).collect();
        assert!(values.windows(2).all(|pair| pair[1] - pair[0] >= 9), "each answer is one sample: {values:?}");
        count > 3
    });
    old.finish();
}

#[test]
fn other_versions_of_the_interface() {
    for (options, part) in [
        (&["-DABI=2"][..], "it is built for version 2 of the interface, and this agent has version 1"),
        (&["-DABI=0"], "it is built for version 0 of the interface"),
        (&["-DSIZE=40"], "its descriptor is missing or shorter than 88 bytes"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        plant(dir.path(), options);
        let case = Case::start_in(dir, "mode = \"work\"\n");
        let plugin = case.wait_fault(part);
        assert_eq!(plugin["state"], "refused");
        case.finish();
    }
    // Of the same version, with the fields that an older header had, and with more than this one has.
    for options in [&["-DSIZE=88"], &["-DSIZE=5000"]] {
        let dir = tempfile::tempdir().unwrap();
        plant(dir.path(), options);
        let case = Case::start_in(dir, "mode = \"work\"\n");
        case.wait_value("plant/flow", &1.5.into());
        case.finish();
    }
}

#[test]
fn plug_ins_are_loaded_unloaded_and_restarted_and_nobody_else_loses_a_sample() {
    let case = Case::start("mode = \"work\"\n");
    case.wait_value("plant/flow", &1.5.into());
    let first = case.pid();
    let (code, done) = case.ask("POST", "/v1/plugins/plant/restart");
    assert_eq!((code, &done["done"]), (200, &"restarted plug-in plant".into()));
    let second = case.pid();
    assert!(first != second && !is_running(first));
    case.wait_value("plant/flow", &1.5.into());
    assert_eq!(case.ask("POST", "/v1/plugins/plant/unload").1["done"], "unloaded plug-in plant");
    assert!(!is_running(second) && case.plugin()["state"] == "stopped");
    assert!(case.get("/v1/sensors?pattern=plant/*")["sensors"].as_array().unwrap().is_empty());
    // It stays unloaded, also after a reload.
    assert_eq!(case.ask("POST", "/v1/reload").0, 200);
    assert_eq!(case.plugin()["state"], "stopped");
    // Loaded with its table as it is now.
    let file = case.dir.path().join("agent.toml");
    fs::write(&file, config("mode = \"problem\"\n")).unwrap();
    assert_eq!(case.ask("POST", "/v1/plugins/plant/load").1["done"], "loaded plug-in plant");
    wait_until("the problem", || case.get("/v1/groups").to_string().contains("the pump is dry"));
    let (code, error) = case.ask("POST", "/v1/plugins/plnt/restart");
    assert_eq!(code, 404);
    assert!(error["error"].as_str().unwrap().contains("did you mean \"plant\"?"), "{error}");
    let (code, error) = case.ask("POST", "/v1/plugins/none/load");
    assert_eq!(code, 404);
    assert!(error["error"].as_str().unwrap().contains("has no table [plugins.none]"), "{error}");
    // A reload changes, removes and adds it.
    fs::write(&file, config("mode = \"work\"\n")).unwrap();
    assert_eq!(case.ask("POST", "/v1/reload").0, 200);
    case.wait_value("plant/flow", &1.5.into());
    let pid = case.pid();
    fs::write(&file, format!("# another place\n{}", config("mode = \"work\"\n"))).unwrap();
    assert_eq!(case.ask("POST", "/v1/reload").0, 200);
    assert_eq!(case.pid(), pid, "an unchanged plug-in runs on");
    let without = config("").replace("[plugins.plant]\n", "");
    fs::write(&file, without).unwrap();
    assert_eq!(case.ask("POST", "/v1/reload").0, 200);
    assert!(!is_running(pid) && case.get("/v1/plugins")["plugins"].as_array().unwrap().is_empty());
    fs::write(&file, config("mode = \"work\"\n")).unwrap();
    assert_eq!(case.ask("POST", "/v1/reload").0, 200);
    case.wait_value("plant/flow", &1.5.into());
    case.finish();
}

#[test]
fn a_hostile_file_is_refused_and_a_mended_one_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    plant(dir.path(), &[]);
    let library = dir.path().join("plant.so");
    fs::set_permissions(&library, fs::Permissions::from_mode(0o666)).unwrap();
    let case = Case::start_in(dir, "mode = \"work\"\n");
    let plugin = case.wait_fault("can be written by others (mode 0666): chmod go-w");
    assert_eq!(plugin["state"], "refused");
    let (code, error) = case.ask("POST", "/v1/plugins/plant/restart");
    assert_eq!(code, 422);
    assert!(error["error"].as_str().unwrap().contains("is refused: it can be written by others"), "{error}");
    fs::set_permissions(&library, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(case.ask("POST", "/v1/plugins/plant/restart").0, 200);
    case.wait_value("plant/flow", &1.5.into());
    case.finish();
}

/// A refusal is the answer of the command, and what was mended beside the table is seen by each command that starts plug-ins.
#[test]
fn a_refused_plug_in_is_no_success_and_is_tried_again() {
    let case = Case::start("mode = \"credentials\"\n");
    let plugin = case.wait_fault("cannot open the file");
    assert_eq!((&plugin["state"], &plugin["faults"], plugin["pid"].is_null()), (&"refused".into(), &1.into(), true));
    assert!(plugin["fault_time"].as_str().is_some_and(|time| time.ends_with('Z')), "{plugin}");
    wait_until("the counter", || case.newest("agent/plugin_faults").as_u64() > Some(0));
    let file = case.dir.path().join("credentials");
    let commands = ["/v1/plugins/plant/load", "/v1/plugins/plant/restart", "/v1/reload"].map(|target| ("POST", target));
    for (method, target) in commands {
        let (code, error) = case.ask(method, target);
        let text = error["error"].as_str().unwrap_or_default();
        let is_named = text.contains("plug-in plant is refused: ") && text.contains("cannot open the file");
        assert!(code == 422 && is_named, "{target}: {code} {error}");
        assert_eq!(case.plugin()["state"], "refused", "{target}");
    }
    for (method, target) in commands {
        fs::write(&file, "x").unwrap();
        let (code, done) = case.ask(method, target);
        assert_eq!(code, 200, "{target}: {done}");
        assert_eq!(case.plugin()["state"], "running", "the command waits for the start: {target}");
        case.wait_value("plant/flow", &1.5.into());
        fs::remove_file(&file).unwrap();
        assert_eq!(case.ask("POST", "/v1/plugins/plant/restart").0, 422);
    }
    // One that was never loaded.
    assert_eq!(case.ask("POST", "/v1/plugins/plant/unload").0, 200);
    assert_eq!(case.ask("POST", "/v1/plugins/plant/load").0, 422);
    case.finish();
}

#[test]
fn a_load_applies_a_changed_table_and_a_reload_says_what_runs_on() {
    let case = Case::start("mode = \"work\"\n");
    case.wait_value("plant/flow", &1.5.into());
    let pid = case.pid();
    let done = case.ask("POST", "/v1/plugins/plant/load").1["done"].as_str().unwrap().to_owned();
    assert!(done.contains("was loaded already, with this table") && case.pid() == pid, "{done}");
    let done = case.ask("POST", "/v1/reload").1["done"].as_str().unwrap().to_owned();
    assert!(done.contains("; 1 plug-in runs on, ") && case.pid() == pid, "{done}");
    fs::write(case.dir.path().join("agent.toml"), config("mode = \"problem\"\n")).unwrap();
    assert_eq!(case.ask("POST", "/v1/plugins/plant/load").1["done"], "loaded plug-in plant");
    wait_until("the problem", || case.get("/v1/groups").to_string().contains("the pump is dry"));
    fs::write(case.dir.path().join("agent.toml"), config("mode = \"crash in discover\"\n")).unwrap();
    let done = case.ask("POST", "/v1/reload").1["done"].as_str().unwrap().to_owned();
    assert!(
        done.contains("plug-in plant fails and is started again later: its process was ended by SIGSEGV"),
        "{done}"
    );
    case.finish();
}

#[test]
fn a_missing_file_is_named_with_its_line_and_a_similar_one() {
    let dir = tempfile::tempdir().unwrap();
    plant(dir.path(), &[]);
    fs::write(dir.path().join("agent.toml"), config("") + "[plugins.plnat]\n").unwrap();
    let (code, out, error) = agent(dir.path(), "--check");
    assert!(code == Some(1) && out.contains("agent.toml:14:10: the plug-in "), "{out}{error}");
    assert!(
        out.contains("plnat.so is refused: cannot open it") && out.contains("; did you mean \"plant.so\"?"),
        "{out}"
    );
}

fn agent(dir: &Path, argument: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain-agent"));
    let output = command.arg("--config").arg(dir.join("agent.toml")).arg(argument).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn check_and_once_cover_plug_ins() {
    let dir = tempfile::tempdir().unwrap();
    plant(dir.path(), &[]);
    let write = |keys: &str| fs::write(dir.path().join("agent.toml"), config(keys)).unwrap();
    write("mode = \"work\"\n");
    let (code, out, error) = agent(dir.path(), "--check");
    assert!(code == Some(0) && out.contains("plant"), "{out}{error}");
    let (code, out, error) = agent(dir.path(), "--once");
    assert!(code == Some(0) && out.contains("/n1/plant/flow") && out.contains(" 1.5 l/s\n"), "{out}{error}");
    write("mode = \"refuse\"\n");
    let (_, out, error) = agent(dir.path(), "--check");
    assert!(out.contains("agent.toml:14:1: mode: \"refuse\" is no mode"), "{out}{error}");
    assert_eq!(format!("{out}{error}").matches("is no mode").count(), 1, "{out}{error}");
    write("deadline = \"100ms\"\nmode = \"hang in read\"\n");
    let (code, out, error) = agent(dir.path(), "--check");
    let failed = "failed: plug-in plant: group plant: a read took longer than 100ms\n";
    assert!(code == Some(1) && out.contains(failed) && !error.contains("socket"), "{code:?} {out}{error}");
    write("mode = \"exit in read\"\n");
    let (code, out, error) = agent(dir.path(), "--check");
    let failed = "failed: plug-in plant: its process ended with code 3\n";
    assert!(code == Some(1) && out.contains(failed), "{code:?} {out}{error}");
    write("discover_deadline = \"100ms\"\nmode = \"hang in discover\"\n");
    let (_, out, error) = agent(dir.path(), "--check");
    assert!(out.contains("it did not discover within 100ms"), "{out}{error}");
}
