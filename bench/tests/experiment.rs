//! `wholegrain-bench experiment` from outside: real processes, real signals, real launchers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use wholegrain_testing::slurm::Slurm;
use wholegrain_testing::{Process, Random, open_to_all, python, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_wholegrain-bench");
const ROOT: u32 = 0;

/// Reports that it samples, and its use when it is stopped in either way.
const MONITOR: &str = r#"
echo '{"ready":{"monitor":"fake","configuration":"own","version":"1.5","interval_ns":1,"metrics":10,"host":"h","configured":"in '$1'"}}'
used() {
    echo '{"used":{"window_ns":1000000000,"processes":[
        {"name":"a","server":false,"cpu_ns":20000000,"rss_kb":2048,"pss_kb":2000},
        {"name":"b","server":true,"cpu_ns":7,"rss_kb":9,"pss_kb":9}],"samples":50,"missed":2}}' | tr -d '\n'
    echo
    exit 0
}
trap used TERM
exec 3<&0
cat <&3 >/dev/null &
wait
used
"#;

/// A folder with an experiment in it, for which `sh` stands in for programs.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    /// `rest` is the file's text below its name.
    fn new(rest: &str) -> Self {
        let bench = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        bench.says(rest);
        std::fs::write(bench.path("monitor.sh"), MONITOR).expect("a script");
        bench
    }

    fn says(&self, rest: &str) {
        let text = format!("name = \"test\"\npause = \"1ms\"\n{rest}\n[quiet]\nwarn = 1000000.0\n");
        std::fs::write(self.path("e.toml"), text.replace("DIR", &self.folder.path().display().to_string()))
            .expect("a file");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["experiment", "run"]).arg(self.path("e.toml")).arg("--dir").arg(self.path("d")).args(more);
        command
    }

    /// Runs it to its end.
    fn run(&self, more: &[&str]) -> Output {
        self.command(more).output().expect("running the experiment")
    }

    #[track_caller]
    fn runs_well(&self, more: &[&str]) -> Vec<Value> {
        let output = self.run(more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.records()
    }

    fn records(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("d/runs.jsonl")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |at| &text[..at]);
        whole.lines().map(|line| serde_json::from_str(line).expect("a run in a line")).collect()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path("d").join(name)).expect(name)).expect("JSON")
    }

    /// Processes of this machine that carry the folder's mark.
    fn left(&self) -> Vec<String> {
        let Ok(state) = std::fs::read(self.path("d/state.json")) else { return Vec::new() };
        let state: Value = serde_json::from_slice(&state).expect("JSON");
        let mark = format!("WHOLEGRAIN_EXPERIMENT_MARK={}", state["mark"].as_str().expect("a mark"));
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let marked = entries.filter(|entry| {
            let variables = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        });
        marked.map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default()).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || self.left().is_empty(), "left: {:?}", self.left());
    }
}

fn workload(name: &str, script: &str) -> String {
    format!("[[workload]]\nname = \"{name}\"\ncommand = [\"sh\", \"-c\", '''{script}''']\n")
}

fn monitor(name: &str, script: &str) -> String {
    format!("[[monitor]]\nname = \"{name}\"\nintervals = [\"1ms\"]\ncommand = [\"sh\", \"-c\", '''{script}''']\n")
}

const FAKE: &str =
    "[[monitor]]\nname = \"fake\"\nintervals = [\"1ms\"]\ncommand = [\"sh\", \"DIR/monitor.sh\", \"{dir}\"]\n";

fn failures(records: &[Value]) -> Vec<(String, String)> {
    let failed = records.iter().filter(|record| !record["failure"].is_null());
    failed
        .map(|r| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (text(&r["condition"]["monitor"]), text(&r["failure"]["reason"]))
        })
        .collect()
}

/// The runs in the order of a plan, as `plan` tells it.
fn planned(bench: &Bench, seed: u64) -> Vec<Value> {
    let mut command = Command::new(PROGRAM);
    command.args(["experiment", "plan", "--json", "--seed", &seed.to_string()]).arg(bench.path("e.toml"));
    let output = command.output().expect("a plan");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(plan["estimated_s"].as_f64() > Some(0.0));
    plan["runs"].as_array().expect("runs").clone()
}

#[test]
fn every_run_is_made_once_however_often_the_runner_is_killed() {
    let quick = workload("quick", "echo x >> DIR/begun; sleep 0.03; echo x >> DIR/ended");
    let bare = "[[monitor]]\nname = \"bare\"\nconfigurations = [\"tick\"]\nintervals = [\"1ms\"]\n";
    let bench = Bench::new(&format!("repetitions = 4\nwarm_up = 1\n{quick}{bare}{FAKE}"));
    let mut random = Random::seeded();
    let mut kills = 0;
    loop {
        let mut runner = Process::start(&mut bench.command(&[]), &bench.path("runner.log"));
        // Killed at any moment after a few more runs.
        let (before, after) = (bench.records().len(), random.within(1, 4) as usize);
        wait_until("more runs, or the end", || bench.records().len() >= before + after || !runner.runs());
        std::thread::sleep(std::time::Duration::from_millis(random.within(0, 120)));
        if !runner.runs() {
            assert!(runner.wait().success(), "{}", runner.log());
            break;
        }
        runner.kill();
        kills += 1;
        assert!(kills < 100);
    }
    assert!(kills > 1, "it was never killed");
    let records = bench.records();
    let runs: Vec<u64> = records.iter().map(|record| record["run"].as_u64().expect("a number")).collect();
    assert_eq!(runs, (0..15).collect::<Vec<u64>>(), "each run once, in the order of the plan");
    assert_eq!(failures(&records), []);
    let seed = bench.json("state.json")["seed"].as_u64().expect("the seed that was drawn");
    let plan = planned(&bench, seed);
    assert_eq!(plan.len(), records.len());
    assert!(plan.iter().zip(&records).all(|(planned, record)| planned["condition"] == record["condition"]));
    // No more programs were begun than runs were kept or killed.
    let lines = |name: &str| std::fs::read_to_string(bench.path(name)).unwrap_or_default().lines().count();
    assert!((15..=15 + kills).contains(&lines("begun")), "{} begun, {kills} kills", lines("begun"));
}

#[test]
fn runs_of_another_file_are_refused_until_the_old_are_moved_aside() {
    let quick = workload("quick", "true");
    let bench = Bench::new(&format!("repetitions = 1\nseed = 5\n{quick}"));
    assert_eq!(bench.runs_well(&[]).len(), 2);
    assert_eq!(bench.runs_well(&[]).len(), 2, "nothing is left to be made");
    bench.says(&format!("repetitions = 2\nseed = 5\n{quick}"));
    let output = bench.run(&[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains("is not the file it was begun with") && error.contains("--fresh"),
        "{error}"
    );
    assert_eq!(bench.records().len(), 2, "nothing was touched");
    assert_eq!(bench.runs_well(&["--fresh"]).len(), 3);
    assert!(bench.path("d.old-1/runs.jsonl").is_file());
    // Another build of a program is another experiment.
    let state = bench.path("d/state.json");
    let text = std::fs::read_to_string(&state).expect("the state");
    let hash = bench.json("state.json")["programs"]["wholegrain-bench"].as_str().expect("a hash").to_owned();
    std::fs::write(&state, text.replace(&hash, "0000")).expect("the state");
    let output = bench.run(&[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("its program wholegrain-bench was 0000"), "{error}");
    assert_eq!(bench.runs_well(&["--fresh-when-changed"]).len(), 3);
    assert!(bench.path("d.old-2/runs.jsonl").is_file());
    bench.runs_well(&["--fresh-when-changed"]);
    assert!(!bench.path("d.old-3").exists(), "nothing had changed");
}

#[test]
fn a_failed_workload_is_kept_and_made_again_only_when_asked_for() {
    let sick = workload("sick", "echo it is out of sorts >&2; test -e DIR/well");
    let bench = Bench::new(&format!("repetitions = 1\nwarm_up = 0\n{sick}{}", workload("well", "true")));
    let records = bench.runs_well(&[]);
    assert_eq!(failures(&records), [("none".to_owned(), "exit status: 1: it is out of sorts".to_owned())]);
    std::fs::write(bench.path("well"), "").expect("a file");
    assert_eq!(bench.runs_well(&[]).len(), 2, "not by itself");
    let records = bench.runs_well(&["--retry-failed"]);
    assert_eq!((records.len(), failures(&records).len()), (3, 1));
    assert_eq!((&records[2]["attempt"], &records[2]["condition"]["workload"]), (&1.into(), &"sick".into()));
    let summary = Command::new(PROGRAM).args(["experiment", "summary", "--json"]).arg(bench.path("d")).output();
    let summary: Value = serde_json::from_slice(&summary.expect("a summary").stdout).expect("JSON");
    let sick = summary["rows"].as_array().expect("rows").iter().find(|row| row["workload"] == "sick");
    assert_eq!(sick.map(|row| (&row["runs"], &row["failed"])), Some((&1.into(), &1.into())));
}

#[test]
fn a_monitor_that_does_not_keep_to_its_part_fails_the_run_and_ends_with_it() {
    let ready = r#"echo "{\"ready\":{\"monitor\":\"m\",\"configuration\":\"own\",\"version\":\"1\",\"interval_ns\":1,\"metrics\":1,\"host\":\"h\",\"configured\":\"\"}}""#;
    let bench = Bench::new(&format!(
        "repetitions = 1\nwarm_up = 0\n{}{}{}{}{}{FAKE}[limits]\nready = \"1s\"\nstop = \"1s\"",
        workload("waits", "sleep 1"),
        monitor("dies", &format!("{ready}; sleep 0.2; echo no more >&2; exit 4")),
        monitor("late", "sleep 600 & wait"),
        monitor("silent", &format!("{ready}; trap 'exit 0' TERM; sleep 600 >/dev/null & wait")),
        monitor("deaf", &format!("trap '' TERM; {ready}; sleep 600")),
    ));
    let records = bench.runs_well(&[]);
    assert_eq!(records.len(), 6);
    let failures: std::collections::BTreeMap<String, String> = failures(&records).into_iter().collect();
    assert_eq!(failures.keys().collect::<Vec<_>>(), ["deaf", "dies", "late", "silent"]);
    assert_eq!(failures["dies"], "it ended during the run (exit status: 4): no more");
    assert_eq!(failures["late"], "1 of its 1 parts did not sample within 1s");
    assert_eq!(failures["silent"], "when stopped: it did not report its use");
    assert_eq!(failures["deaf"], "it did not stop within 1s");
    assert_eq!(bench.left(), Vec::<String>::new());
    let left_out = bench.json("monitors.json")["left_out"].clone();
    assert_eq!(left_out.as_array().map(Vec::len), Some(4), "{left_out}");
}

#[test]
fn what_only_fails_is_given_up_and_the_rest_goes_on() {
    let bench = Bench::new(&format!(
        "repetitions = 5\nwarm_up = 0\n{}{}{FAKE}[limits]\nfailures = 2",
        workload("quick", "true"),
        monitor("broken", "echo not today >&2; exit 1"),
    ));
    let records = bench.runs_well(&[]);
    let failed = failures(&records);
    assert_eq!((records.len(), failed.len()), (5 + 5 + 2, 2));
    assert_eq!(failed[0].1, "it ended before it sampled (exit status: 1): not today");
    let left_out = &bench.json("monitors.json")["left_out"];
    assert_eq!(left_out[0]["monitor"], "broken");
    assert!(left_out[0]["reason"].as_str().is_some_and(|reason| reason.contains("not today")), "{left_out}");
}

#[test]
fn a_signal_ends_everything_and_loses_nothing() {
    let bench = Bench::new(&format!(
        "repetitions = 1\nwarm_up = 0\n{}{}{FAKE}",
        workload("quick", "true"),
        // A program with children of its own, one of which has left its group.
        workload("long", "setsid sleep 600 & sleep 600 & touch DIR/runs; test -e DIR/short || wait; kill $!"),
    ));
    let mut runner = Process::start(&mut bench.command(&[]), &bench.path("runner.log"));
    wait_until("the long program runs", || bench.path("runs").exists());
    assert!(bench.left().len() > 1, "{:?}", bench.left());
    runner.signal(2);
    assert_eq!(runner.wait().code(), Some(130), "{}", runner.log());
    assert_eq!(bench.left(), Vec::<String>::new());
    assert!(bench.records().iter().all(|record| record["failure"].is_null()), "a run that was stopped has not failed");
    std::fs::write(bench.path("short"), "").expect("a file");
    let records = bench.runs_well(&[]);
    let runs: BTreeSet<u64> = records.iter().filter_map(|record| record["run"].as_u64()).collect();
    assert_eq!((records.len(), runs.len()), (4, 4));
}

#[test]
fn two_runners_do_not_share_a_folder() {
    let bench = Bench::new(&format!("repetitions = 1\nwarm_up = 0\n{}", workload("long", "touch DIR/runs; sleep 600")));
    let mut first = Process::start(&mut bench.command(&[]), &bench.path("runner.log"));
    wait_until("the program runs", || bench.path("runs").exists());
    let second = bench.run(&[]);
    let error = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && error.contains("another runner of this experiment is at work"), "{error}");
    first.signal(15);
    assert_eq!(first.wait().code(), Some(143));
}

#[test]
fn the_files_are_as_agreed_and_duckdb_reads_them() {
    let outcome = r#"{"workload":"own","size":"7","ranks":2,"seconds":0.5,"verified":true,"figures":{"gflops":3.5},"histogram":[[100,5],[110,2]]}"#;
    let own = format!(
        "{}size = \"7\"\nranks = 2\ntimed_by = \"program\"\n",
        workload("own", &format!("echo hello; echo '{outcome}'"))
    );
    let wrong = outcome.replace("true", "false");
    let wrong = format!("{}timed_by = \"program\"\n", workload("wrong", &format!("echo '{wrong}'")));
    let bench = Bench::new(&format!("repetitions = 2\nseed = 9\n{own}{wrong}{FAKE}[limits]\nfailures = 100"));
    let records = bench.runs_well(&[]);
    assert_eq!((records.len(), failures(&records).len()), (12, 6));
    let found: Value = serde_json::from_str(&python("experiment_files.py", &[&bench.path("d")])).expect("JSON");
    let columns = |table: &str| -> Vec<String> {
        let columns = found[table]["columns"].as_object().expect("columns").iter();
        columns.map(|(name, kind)| format!("{name} {}", kind.as_str().unwrap_or_default())).collect()
    };
    let agreed = |list: &str| {
        let mut columns: Vec<String> = list.split(", ").map(str::to_owned).collect();
        // serde_json's objects are sorted by name.
        columns.sort();
        columns
    };
    assert_eq!(
        columns("results"),
        agreed(
            "experiment VARCHAR, run BIGINT, round BIGINT, warm_up BOOLEAN, workload VARCHAR, size VARCHAR, ranks BIGINT, hosts BIGINT, \
             monitor VARCHAR, configuration VARCHAR, interval_ns BIGINT, started TIMESTAMP WITH TIME ZONE, seconds DOUBLE, \
             verified BOOLEAN, failure VARCHAR, metrics BIGINT, node_cpu_ns BIGINT, server_cpu_ns BIGINT, window_ns BIGINT, \
             rss_kb BIGINT, pss_kb BIGINT, samples BIGINT, missed BIGINT, figures VARCHAR"
        )
    );
    assert_eq!(
        columns("histogram"),
        agreed(
            "run BIGINT, workload VARCHAR, monitor VARCHAR, configuration VARCHAR, interval_ns BIGINT, bin_ns BIGINT, count BIGINT"
        )
    );
    assert_eq!(
        columns("summary"),
        agreed(
            "workload VARCHAR, size VARCHAR, ranks BIGINT, hosts BIGINT, monitor VARCHAR, configuration VARCHAR, interval_ns BIGINT, \
             runs BIGINT, failed BIGINT, mean_s DOUBLE, ci_low_s DOUBLE, ci_high_s DOUBLE, median_s DOUBLE, ratio DOUBLE, \
             ratio_low DOUBLE, ratio_high DOUBLE, median_ratio DOUBLE, significant BOOLEAN, p_adjusted DOUBLE, \
             node_cpu_share DOUBLE, us_per_metric DOUBLE, rss_kb DOUBLE"
        )
    );
    let rows = |table: &str| found[table]["rows"].as_array().expect("rows").clone();
    assert_eq!((rows("results").len(), rows("summary").len()), (12, 4));
    // Two bins of each good run that counts: two rounds, with and without the monitor.
    assert_eq!(rows("histogram").len(), 8);
    let of = |wanted: fn(&Value) -> bool| rows("results").into_iter().find(wanted).expect("a row");
    let good = of(|row| row[4] == "own" && row[8] == "fake");
    assert_eq!((&good[12], &good[13], &good[14], &good[15]), (&0.5.into(), &true.into(), &Value::Null, &10.into()));
    assert_eq!((&good[16], &good[17], &good[21], &good[22]), (&20_000_000.into(), &7.into(), &50.into(), &2.into()));
    assert_eq!(good[23], r#"{"gflops":3.5}"#);
    let wrong = of(|row| row[4] == "wrong" && row[8] == "none");
    assert_eq!((&wrong[10], &wrong[12], &wrong[13]), (&Value::Null, &Value::Null, &false.into()));
    assert!(wrong[14].as_str().is_some_and(|reason| reason.contains("result wrong")), "{wrong}");
    let monitors = bench.json("monitors.json");
    let first = &monitors["monitors"][0];
    assert_eq!((&first["monitor"], &first["version"], &first["metrics"]), (&"fake".into(), &"1.5".into(), &10.into()));
    assert_eq!(first["configured"], "in {dir}", "where files lay for a run is nobody's matter");
    assert!(bench.json("machine.json")["cores"].as_u64() > Some(0));
}

/// The real program's monitor on one host beside a program, by a launcher's own means.
#[track_caller]
fn check_launched(bench: &Bench) {
    let records = bench.records();
    assert_eq!(records.len(), 4, "{records:?}");
    assert_eq!(failures(&records), []);
    for record in records.iter().filter(|record| record["condition"]["monitor"] == "bare") {
        assert_eq!(record["condition"]["hosts"], 1);
        assert!(record["usage"]["node_cpu_ns"].as_u64() > Some(0), "{record}");
        assert!(record["usage"]["window_ns"].as_u64() >= Some(100_000_000), "it was there as long as the program");
    }
}

const BARE: &str = "[[monitor]]\nname = \"bare\"\nconfigurations = [\"reads\"]\nintervals = [\"1ms\"]\n";

#[test]
fn mpirun_starts_monitors_and_ranks() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("NOT TESTED: mpirun is not installed: `make prepare` installs it");
        return;
    }
    let ranks = "[[workload]]\nname = \"ranks\"\nranks = 2\n\
                 command = [\"{launcher}\", \"sh\", \"-c\", \"sleep 0.2; echo x >> DIR/ranks\"]\n";
    let launcher = "[launcher]\nkind = \"mpirun\"\nhosts = [\"localhost\"]";
    let bench = Bench::new(&format!("repetitions = 1\n{ranks}{BARE}{launcher}"));
    bench.runs_well(&[]);
    check_launched(&bench);
    let ranks = std::fs::read_to_string(bench.path("ranks")).unwrap_or_default();
    assert_eq!(ranks.lines().count(), 4 * 2, "two ranks in each run");
}

#[test]
fn within_an_allocation_of_slurm_steps_are_started() {
    if let Some(why) = Slurm::missing() {
        eprintln!("NOT TESTED: {why}");
        return;
    }
    let ranks = "[[workload]]\nname = \"ranks\"\nranks = 2\n\
                 command = [\"srun\", \"--overlap\", \"--ntasks={ranks}\", \"sh\", \"-c\", \"sleep 0.2; echo x >> DIR/ranks\"]\n";
    let bench = Bench::new(&format!("repetitions = 1\n{ranks}{BARE}[launcher]\nkind = \"slurm\""));
    open_to_all(bench.folder.path());
    // Outside an allocation it says how to start it in one.
    let output = bench.run(&[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("start it within an allocation"), "{error}");
    let slurm = Slurm::start("");
    let script = format!(
        "{PROGRAM} experiment run {} --dir {} >{} 2>&1",
        bench.path("e.toml").display(),
        bench.path("d").display(),
        bench.path("job.log").display()
    );
    let job = slurm.submit(ROOT, &["--ntasks=2"], &script);
    wait_until("the job ends", || !slurm.has(&job));
    eprintln!("{}", std::fs::read_to_string(bench.path("job.log")).unwrap_or_default());
    check_launched(&bench);
    let ranks = std::fs::read_to_string(bench.path("ranks")).unwrap_or_default();
    assert_eq!(ranks.lines().count(), 4 * 2, "two ranks in each run");
    drop(slurm);
}

/// A monitor's parts on the nodes of Slurm: each reports a use of 20 ms, the second node's 40 ms, of a second.
const ON_NODES: &str = r#"
used() {
    cpu=20000000
    case $SLURMD_NODENAME in *n2) cpu=40000000 ;; esac
    test "$1" = server && server=true || server=false
    printf '{"used":{"window_ns":1000000000,"processes":[{"name":"a","server":%s,"cpu_ns":%s,"rss_kb":%s,"pss_kb":1}],"samples":50,"missed":2}}\n' \
        $server $cpu $((cpu / 10000))
    exit 0
}
trap 'used $1' TERM
if test "$2" = sick; then
    case $1$SLURMD_NODENAME in
    node*n1) echo all is well >&2 ;;
    node*n2) echo no sensors here >&2; exit 3 ;;
    esac
fi
metrics=10
case $SLURMD_NODENAME in *n2) metrics=20 ;; esac
test "$1" = server && metrics=0
echo '{"ready":{"monitor":"fake","configuration":"own","version":"1.5","interval_ns":1,"metrics":'$metrics',"host":"h","configured":""}}'
if test "$2" = dies; then case $1$SLURMD_NODENAME in node*n2) sleep 0.3; echo out of memory >&2; exit 4 ;; esac; fi
exec 3<&0
cat <&3 >/dev/null &
wait
used $1
"#;

/// Two nodes, which are one machine under two names: starting and naming parts on both is tested; a network
/// between machines is not.
#[test]
fn on_two_nodes_of_slurm_monitors_run_on_both_and_what_fails_is_named_by_its_node() {
    if let Some(why) = Slurm::missing() {
        eprintln!("NOT TESTED: {why}");
        return;
    }
    let ranks = |name: &str, hosts: usize| {
        format!(
            "[[workload]]\nname = \"{name}\"\nranks = 2\nhosts = {hosts}\ncommand = [\"{{launcher}}\", \"sh\", \"-c\", \
             \"sleep 1; echo $SLURMD_NODENAME >> DIR/{name}\"]\n"
        )
    };
    let on_nodes = |name: &str, how: &str| {
        format!(
            "[[monitor]]\nname = \"{name}\"\nintervals = [\"1ms\"]\nworkloads = [\"both\"]\n\
             command = [\"sh\", \"DIR/nodes.sh\", \"{{role}}\", \"{how}\"]\n"
        )
    };
    let ours = "[[monitor]]\nname = \"wholegrain\"\nconfigurations = [\"same\"]\nintervals = [\"10ms\"]\nworkloads = [\"both\"]\n";
    let bench = Bench::new(&format!(
        "repetitions = 1\nwarm_up = 0\n{}{}{BARE}{ours}{}{}{}[launcher]\nkind = \"slurm\"\n\
         workload = \"srun --overlap --nodes={{nodes}} --nodelist={{hosts}} --ntasks={{ranks}}\"\n",
        ranks("both", 2),
        ranks("one", 1),
        on_nodes("fine", "well"),
        on_nodes("sick", "sick"),
        on_nodes("dies", "dies"),
    ));
    std::fs::write(bench.path("nodes.sh"), ON_NODES).expect("a script");
    open_to_all(bench.folder.path());
    let slurm = Slurm::start_nodes(2, "");
    let (first, second) = (slurm.nodes()[0].clone(), slurm.nodes()[1].clone());
    let script = format!(
        "{PROGRAM} experiment run {} --dir {} >{} 2>&1",
        bench.path("e.toml").display(),
        bench.path("d").display(),
        bench.path("job.log").display()
    );
    let job = slurm.submit(ROOT, &["--nodes=2", "--ntasks-per-node=2"], &script);
    wait_until("the job ends", || !slurm.has(&job));
    eprintln!("{}", std::fs::read_to_string(bench.path("job.log")).unwrap_or_default());
    let records = bench.records();
    // One beside nothing and the bare loop; both also beside ours and the three scripts.
    assert_eq!(records.len(), 2 + 6, "{records:?}");
    let of = |monitor: &str, workload: &str| {
        let mut found = records
            .iter()
            .filter(|record| record["condition"]["monitor"] == monitor && record["condition"]["workload"] == workload);
        found.next().unwrap_or_else(|| panic!("no run of {workload} beside {monitor}"))
    };
    // The words of that node's part and those of srun, in either order, without those of the other node.
    let failed = failures(&records);
    for (monitor, reason, words) in [
        ("dies", format!("{second}: it ended during the run (exit status: 4): "), "out of memory"),
        ("sick", format!("{second}: it ended before it sampled (exit status: 3): "), "no sensors here"),
    ] {
        let named = |why: &str| why.starts_with(&reason) && why.contains(words) && !why.contains("all is well");
        assert!(failed.iter().any(|(name, why)| name == monitor && named(why)), "{reason}{words}: {failed:?}");
    }
    assert_eq!(failed.len(), 2, "{failed:?}");
    let fine = of("fine", "both");
    assert_eq!(fine["seen"]["metrics"], 15, "the mean over the nodes: {fine}");
    let usage = |name: &str| fine["usage"][name].as_u64();
    assert_eq!((usage("node_cpu_ns"), usage("rss_kb")), (Some(30_000_000), Some(3000)), "means over the nodes: {fine}");
    assert_eq!((usage("server_cpu_ns"), usage("samples")), (Some(20_000_000), Some(100)), "{fine}");
    // The real ones: two loops, or two agents that are two names to one server, and on one node one.
    for (monitor, workload, hosts) in [("bare", "both", 2), ("bare", "one", 1), ("wholegrain", "both", 2)] {
        let record = of(monitor, workload);
        assert_eq!(record["condition"]["hosts"], hosts, "{record}");
        assert!(record["usage"]["node_cpu_ns"].as_u64() > Some(0), "{record}");
        assert!(record["seen"]["metrics"].as_u64() > Some(100), "{record}");
    }
    let samples = |workload: &str| of("bare", workload)["usage"]["samples"].as_u64().expect("samples");
    let window_ms = |workload: &str| of("bare", workload)["usage"]["window_ns"].as_u64().expect("ns") / 1_000_000;
    // A loop ticks each ms and counts missed ticks: more ticks than one loop can have made in the time are two loops'.
    let missed = of("bare", "both")["usage"]["missed"].as_u64().expect("missed");
    assert!(samples("both") + missed > window_ms("both") * 3 / 2, "{}", of("bare", "both"));
    assert!(samples("one") <= window_ms("one") * 3 / 2, "{}", of("bare", "one"));
    let ranks = |name: &str| {
        let text = std::fs::read_to_string(bench.path(name)).unwrap_or_default();
        let count = |node: &str| text.lines().filter(|line| *line == node).count();
        (count(&first), count(&second))
    };
    // Of the six runs of `both`, `dies` ended one in the middle and `sick` one before it began.
    assert_eq!(ranks("both"), (4, 4), "a rank on each node");
    assert_eq!(ranks("one"), (4, 0), "both ranks on the first");
    drop(slurm);
}

#[test]
fn a_workload_of_ours_runs_beside_our_agent() {
    let missing = ["mpirun", "mpicc"].into_iter().find(|name| Command::new(name).arg("--version").output().is_err());
    if let Some(name) = missing {
        eprintln!("NOT TESTED: {name} is not installed: `make prepare` installs it");
        return;
    }
    let bench = Bench::new(
        "repetitions = 1\nwarm_up = 0\n[[workload]]\nname = \"ep\"\nsize = \"S\"\nranks = 2\n\
         [[monitor]]\nname = \"wholegrain\"\nintervals = [\"10ms\"]\n",
    );
    let records = bench.runs_well(&[]);
    assert_eq!((records.len(), failures(&records)), (2, Vec::new()));
    assert!(records.iter().all(|record| record["outcome"]["verified"] == true), "{records:?}");
    let with = records.iter().find(|record| record["condition"]["monitor"] == "wholegrain").expect("a run with it");
    assert!(with["seen"]["metrics"].as_u64() > Some(100) && with["usage"]["node_cpu_ns"].as_u64() > Some(0), "{with}");
}

#[test]
fn experiments_of_this_project_are_readable() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("bench/experiments").flatten() {
        if entry.path().extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        seen += 1;
        let output = Command::new(PROGRAM).args(["experiment", "plan"]).arg(entry.path()).output().expect("a plan");
        let error = String::from_utf8_lossy(&output.stderr);
        // The cluster's needs an allocation, which it asks for when everything else is right.
        assert!(
            output.status.success() || error.contains("within an allocation"),
            "{}: {error}",
            entry.path().display()
        );
    }
    assert!(seen >= 3, "{seen} files");
}
