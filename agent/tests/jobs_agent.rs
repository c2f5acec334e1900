//! The whole agent and its jobs, on a handmade cgroup tree: `[jobs]` added and removed, sources stopped and started, rules in force at once, the
//! output of `--check` and `--once`.

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use support::Agent;
use wholegrain_agent::engine::Group;
use wholegrain_agent::jobs::rules::RawRule;
use wholegrain_agent::jobs::{CallerIdentity, JobsAction, JobsCommand, Role};
use wholegrain_agent::manager::ManagerError;
use wholegrain_agent::{Config, check, once};
use wholegrain_model::Interval;
use wholegrain_testkit::wait_until;

const HEAD: &str =
    "name = \"n1\"\n[roots]\ncgroup = \"cgroup\"\n[api]\nsocket = \"agent.sock\"\n[sources.tester]\nsensors = 3\n";
const JOBS: &str = "[jobs]\nhooks = \"\"\ngpustat = \"\"\nhierarchies = []\n";

/// A job of Slurm in version 1 hierarchies. As in the kernel's, a directory has its files from the beginning.
fn begin(dir: &Path, id: &str) {
    for (controller, file, content) in [("cpuacct", "cpuacct.usage", "12345\n"), ("pids", "pids.current", "3\n")] {
        let user = dir.join(format!("cgroup/{controller}/slurm/uid_0"));
        let new = dir.join("new");
        fs::create_dir_all(&user).unwrap();
        fs::create_dir(&new).unwrap();
        fs::write(new.join("cgroup.procs"), "1\n").unwrap();
        fs::write(new.join(file), content).unwrap();
        fs::rename(&new, user.join(format!("job_{id}"))).unwrap();
    }
}

fn end(dir: &Path, id: &str) {
    for controller in ["cpuacct", "pids"] {
        fs::remove_dir_all(dir.join(format!("cgroup/{controller}/slurm/uid_0/job_{id}"))).unwrap();
    }
}

fn group(agent: &Agent, name: &str) -> Arc<Group> {
    wait_until(name, || agent.handles.registry.find(name).is_some());
    agent.handles.registry.find(name).unwrap()
}

fn of_jobs(agent: &Agent) -> Vec<String> {
    let live = agent.handles.registry.live();
    live.iter().map(|group| group.name().to_owned()).filter(|name| name.starts_with("job/")).collect()
}

fn rule(metrics: &str, every: &str, within: Option<Interval>) -> JobsCommand {
    let who = CallerIdentity { name: "test".to_owned(), role: Role::Admin, uid: Some(0), user: None, pid: None };
    let rule =
        RawRule { metrics: vec![metrics.to_owned()], jobs: None, every: every.to_owned(), accumulate: None, within };
    JobsCommand { who, action: JobsAction::Add(rule) }
}

#[test]
fn jobs_come_and_go_with_the_configuration_and_nothing_else_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    begin(dir.path(), "7");
    let without = format!("{HEAD}[sources.cgroup]\n");
    let agent = Agent::start(dir.path(), &without);
    let tester = group(&agent, "tester");
    assert!(
        matches!(agent.manager_handle.execute_jobs(rule("**", "1ms", None)), Err(ManagerError::Invalid(why)) if why.contains("[jobs]"))
    );
    fs::write(dir.path().join("agent.toml"), format!("{without}{JOBS}")).unwrap();
    assert_eq!(agent.ask("POST", "/v1/reload").0, 200);
    let first = group(&agent, "job/7/1s");
    wait_until("a first sample", || first.ring.head() > 0);
    // The file has another rule. Metrics that it does not match are unaffected.
    let faster =
        "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"1s\"\n[[jobs.rule]]\nmetrics = [\"pids/**\"]\nevery = \"5ms\"\n";
    fs::write(dir.path().join("agent.toml"), format!("{without}{JOBS}{faster}")).unwrap();
    assert_eq!(agent.ask("POST", "/v1/reload").0, 200);
    let fast = group(&agent, "job/7/5ms");
    wait_until("samples", || fast.ring.head() > 5);
    let others = group(&agent, "job/7/1s");
    assert!(Arc::ptr_eq(&others.stats, &first.stats) && others.schema.len() < first.schema.len());
    begin(dir.path(), "8");
    group(&agent, "job/8/5ms");
    fs::write(dir.path().join("agent.toml"), format!("{without}{JOBS}{faster}# Nothing new.\n")).unwrap();
    assert_eq!(agent.ask("POST", "/v1/reload").0, 200);
    assert!(Arc::ptr_eq(&group(&agent, "job/7/5ms"), &fast), "a reload that changes nothing touches nothing");
    fs::write(dir.path().join("agent.toml"), &without).unwrap();
    assert_eq!(agent.ask("POST", "/v1/reload").0, 200);
    assert!(of_jobs(&agent).is_empty() && agent.handles.jobs.get().jobs.is_empty());
    assert!(Arc::ptr_eq(&group(&agent, "tester"), &tester));
    agent.stop();
}

#[test]
fn rules_are_in_force_when_the_answer_comes_and_end_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    begin(dir.path(), "7");
    let agent = Agent::start(dir.path(), &format!("{HEAD}[sources.cgroup]\n{JOBS}"));
    let slow = group(&agent, "job/7/1s");
    wait_until("a first sample", || slow.ring.head() > 0);
    let done = agent.manager_handle.execute_jobs(rule("pids/*", "1ms", Some(Interval::from_ms(1500)))).unwrap();
    assert_eq!(done.jobs, ["7"]);
    assert_eq!(of_jobs(&agent), ["job/7/1ms", "job/7/1s"], "at once");
    let view = agent.handles.jobs.get();
    let metric = view.jobs[0].metrics.iter().find(|metric| metric.name == "pids/current").unwrap();
    assert_eq!((metric.interval_ns, metric.group.as_deref()), (Some(1_000_000), Some("job/7/1ms")));
    // Unaffected metrics stay in their group, and their newest values are available before the next tick.
    let now = group(&agent, "job/7/1s");
    assert!(now.schema.len() + 1 == slow.schema.len() && agent.handles.readings.newest_row(&now).is_some());
    wait_until("the end of the rule", || of_jobs(&agent) == ["job/7/1s"]);
    assert_eq!(group(&agent, "job/7/1s").schema, slow.schema);
    let (status, answer) = agent.ask("POST", "/v1/groups/job%2F7%2F1s/interval?value=5s");
    assert!(status == 422 && answer["error"].as_str().unwrap().contains("rules"), "{status} {answer}");
    end(dir.path(), "7");
    wait_until("the end of the job", || of_jobs(&agent).is_empty() && agent.handles.jobs.get().jobs.is_empty());
    agent.stop();
}

#[test]
fn a_source_is_stopped_and_started_at_both_scopes() {
    let dir = tempfile::tempdir().unwrap();
    begin(dir.path(), "7");
    let agent = Agent::start(dir.path(), &format!("{HEAD}[sources.cgroup]\n{JOBS}"));
    group(&agent, "job/7/1s");
    assert_eq!(agent.ask("POST", "/v1/sources/cgroup/stop").0, 200);
    assert!(of_jobs(&agent).is_empty());
    assert_eq!(agent.handles.jobs.get().jobs.len(), 1, "the job is still known");
    assert_eq!(agent.ask("POST", "/v1/reload").0, 200);
    assert!(of_jobs(&agent).is_empty(), "what was stopped stays so");
    assert_eq!(agent.ask("POST", "/v1/sources/cgroup/start").0, 200);
    assert_eq!(of_jobs(&agent), ["job/7/1s"]);
    agent.stop();
}

#[test]
fn check_and_once_tell_of_jobs() {
    let dir = tempfile::tempdir().unwrap();
    begin(dir.path(), "7");
    begin(dir.path(), "8");
    let file = dir.path().join("agent.toml");
    fs::write(&file, format!("{HEAD}[sources.cgroup]\n{JOBS}")).unwrap();
    let config = Config::load(&file).unwrap();
    let report = check::check(&config);
    let groups: Vec<&str> = report.groups.iter().map(|group| group.group.as_str()).collect();
    assert!(groups.contains(&"job/7/1s") && groups.contains(&"job/8/1s"), "{groups:?}");
    assert!(report.notes.contains(&"jobs: 2 run on this node now".to_owned()), "{:?}", report.notes);
    let once = once::once(&config);
    let usage = once.readings.iter().find(|shown| shown.path == "/n1/job/8/cpu/usage").expect("the job's CPU time");
    assert!(usage.value.is_some() && usage.unit == "s");
}
