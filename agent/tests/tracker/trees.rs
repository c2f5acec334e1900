//! Recorded trees with a simulated life cycle: the layouts of resource managers that this machine lacks.

use super::*;

/// A job's directories in the order of creation; they are removed in the reverse order.
struct Life<'a> {
    id: &'a str,
    level: &'a str,
    manager: &'a str,
    uid: Option<u32>,
    /// Relative to the cgroup root.
    dirs: &'a [&'a str],
    /// The directory with the totals.
    unified: Option<&'a str>,
    steps: &'a [&'a str],
}

#[track_caller]
fn check(life: &Life, hierarchies: &[&str]) {
    let tree = Tree::new(hierarchies);
    if hierarchies.is_empty() {
        tree.write("cgroup/cgroup.controllers", "cpu memory pids\n");
    }
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), None);
    let dirs: Vec<String> = life.dirs.iter().map(|dir| format!("cgroup/{dir}")).collect();
    dirs.iter().for_each(|dir| tree.make(dir));
    let began = tracked.began(life.id);
    let record = &began.record;
    assert_eq!((record.level.as_str(), record.manager.as_str(), record.uid), (life.level, life.manager, life.uid));
    assert_eq!((record.node.as_str(), record.prefix.as_str()), ("n1", "/lab/n1"));
    let from = fs::metadata(tree.path(&dirs[0])).unwrap().created().unwrap();
    let from = from.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    assert_eq!(record.from, from, "the creation of its first directory");
    if let Some(unified) = life.unified {
        let unified = format!("cgroup/{unified}");
        tree.write(&format!("{unified}/cpu.stat"), "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n");
        tree.write(&format!("{unified}/memory.current"), "4096\n");
        tree.write(&format!("{unified}/cpuset.cpus.effective"), "0-1\n");
    } else {
        for dir in &dirs {
            if dir.contains("/cpuacct/") {
                tree.write(&format!("{dir}/cpuacct.usage"), "1500000000\n");
            }
            if dir.contains("/cpuset/") {
                tree.write(&format!("{dir}/cpuset.cpus"), "0-1\n");
            }
            if dir.contains("/memory/") {
                tree.write(&format!("{dir}/memory.max_usage_in_bytes"), "4096\n");
            }
        }
    }
    let changed = tracked.changed(life.id, |job| job.record.cpus.is_some());
    assert_eq!((changed.record.cpus.as_deref(), &changed.cgroups.cpus[..]), (Some("0-1"), &[0, 1][..]));
    dirs.iter().rev().for_each(|dir| tree.remove(dir));
    let ended = tracked.ended(life.id);
    let record = &ended.record;
    assert_eq!(record.totals.get("cpu/usage"), Some(&1.5), "{:?}", record.totals);
    assert_eq!(record.totals.get("memory/peak"), Some(&4096.0));
    assert!(record.totals_at.is_some() && record.to.unwrap() >= record.from && !record.end_unseen);
    let steps: Vec<&str> = record.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(steps, life.steps);
    assert!(record.steps.iter().all(|step| step.to.is_some()));
    let kept = tracked.record(life.id).unwrap();
    assert_eq!(&kept, record, "the table has the same");
    tracked.tracker.stop();
}

#[test]
fn oar_2() {
    let dirs = ["cpuset/oar/alice_b_42", "cpuacct/oar/alice_b_42", "memory/oar/alice_b_42", "freezer/oar/alice_b_42"];
    check(
        &Life { id: "42", level: "42", manager: "oar", uid: None, dirs: &dirs, unified: None, steps: &[] },
        &["cpuset", "cpuacct", "memory", "freezer"],
    );
}

#[test]
fn oar_2_with_hierarchies_of_its_own() {
    let tree = Tree::new(&["cpuset"]);
    tree.make("links");
    tree.make("mounts/cpuacct/oar/alice_7");
    std::os::unix::fs::symlink(tree.path("mounts/cpuacct"), tree.path("links/cpuacct")).unwrap();
    let config = TrackerConfig { hierarchies: vec![tree.path("links")], ..config(NO_RESCAN) };
    let tracked = Tracked::start(&config, &tree.roots(), None);
    let began = tracked.began("7");
    assert_eq!(began.record.user.as_deref(), Some("alice"));
    assert_eq!(began.cgroups.v1("cpuacct"), Some(&*tree.path("links/cpuacct/oar/alice_7")));
    tree.remove("mounts/cpuacct/oar/alice_7");
    tracked.ended("7");
    tracked.tracker.stop();
}

#[test]
fn oar_3() {
    let job = "oar.slice/oar-u1000.slice/oar-u1000-j42.slice";
    let dirs = [
        job,
        &format!("{job}/oar-u1000-j42-p1.scope"),
        &format!("{job}/oar-u1000-j42-t3.slice"),
        &format!("{job}/oar-u1000-j42-t3.slice/oar-u1000-j42-t3-p2.scope"),
    ];
    let steps = ["p1", "t3", "t3/p2"];
    check(
        &Life {
            id: "42",
            level: "42",
            manager: "oar",
            uid: Some(1000),
            dirs: &dirs,
            unified: Some(job),
            steps: &steps,
        },
        &[],
    );
}

#[test]
fn pbs() {
    let dirs = ["cpuset", "cpuacct", "memory"].map(|name| format!("{name}/pbs_jobs.service/jobid/4711[3].pbs01"));
    let dirs: Vec<&str> = dirs.iter().map(String::as_str).collect();
    let id = "4711[3].pbs01";
    let life = Life { id, level: id, manager: "pbs", uid: None, dirs: &dirs, unified: None, steps: &[] };
    check(&life, &["cpuset", "cpuacct", "memory"]);
}

#[test]
fn flux() {
    let job = "user.slice/user-998.slice/user@998.service/app.slice/shell-0-f2oLkTLb.service";
    let life = Life {
        id: "ƒ2oLkTLb",
        level: "f2oLkTLb",
        manager: "flux",
        uid: Some(998),
        dirs: &[job],
        unified: Some(job),
        steps: &[],
    };
    check(&life, &[]);
}

#[test]
fn slurm_in_the_unified_hierarchy() {
    for id in ["42", "s0123456789ABC"] {
        let name = if id == "42" { "job_42" } else { id };
        let job = format!("system.slice/n1_slurmstepd.scope/{name}");
        let dirs = ["", "/step_batch", "/step_batch/user", "/step_batch/user/task_0", "/step_extern"]
            .map(|step| format!("{job}{step}"));
        let dirs: Vec<&str> = dirs.iter().map(String::as_str).collect();
        let steps = ["step_batch", "step_batch/task_0", "step_extern"];
        let unified = Some(job.as_str());
        check(&Life { id, level: id, manager: "slurm", uid: None, dirs: &dirs, unified, steps: &steps }, &[]);
    }
}

#[test]
fn slurm_with_several_daemons_on_a_node() {
    let tree = Tree::new(&["cpuacct"]);
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), None);
    tree.make("cgroup/cpuacct/slurm_n1/uid_1000/job_5");
    assert_eq!(tracked.began("5").record.level, "5");
    tree.make("cgroup/cpuacct/slurm_n2/uid_1000/job_5");
    assert_eq!(tracked.began("5").record.level, "5-n2");
    tracked.tracker.stop();
}

#[test]
fn a_pattern_with_captures_and_settings_that_change() {
    let tree = Tree::new(&["cpuacct"]);
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), None);
    tree.make("cgroup/cpuacct/slurm/uid_7/job_1");
    tree.make("cgroup/cpuacct/lsf/c1/1000/job.17/3");
    tracked.began("1");
    let path = r"lsf/[^/]+/(?<uid>\d+)/job\.(?<job>\d+)(/(?<step>\d+))?";
    let patterns = vec![pattern("lsf", path)];
    tracked.tracker.configure(TrackerConfig { managers: Vec::new(), patterns, ..config(NO_RESCAN) });
    let began = tracked.began("17");
    assert_eq!((began.record.manager.as_str(), began.record.uid), ("lsf", Some(1000)));
    assert_eq!(began.record.steps[0].name, "3");
    assert!(tracked.ended("1").record.end_unseen, "nobody looks for it any more");
    tree.remove("cgroup/cpuacct/lsf/c1/1000/job.17/3");
    tree.remove("cgroup/cpuacct/lsf/c1/1000/job.17");
    tracked.ended("17");
    tracked.tracker.stop();
}

#[test]
fn systemd_units() {
    let tree = Tree::new(&[]);
    tree.write("cgroup/cgroup.controllers", "cpu\n");
    let config = TrackerConfig {
        managers: vec!["systemd".to_owned()],
        units: vec!["run-*.scope".to_owned()],
        ..config(NO_RESCAN)
    };
    let tracked = Tracked::start(&config, &tree.roots(), None);
    tree.make("cgroup/system.slice/other.scope");
    tree.make("cgroup/user.slice/user-5.slice/user@5.service/app.slice/run-r1.scope");
    let began = tracked.began("run-r1.scope");
    assert_eq!(began.record.uid, Some(5));
    assert!(tracked.record("other.scope").is_none());
    tracked.tracker.stop();
}

#[test]
fn whose_job_it_is_shows_in_its_processes() {
    let tree = Tree::new(&[]);
    tree.write("cgroup/cgroup.controllers", "cpu\n");
    tree.write("proc/10/status", "Name:\tslurmstepd\nUid:\t0\t0\t0\t0\n");
    tree.write("proc/11/status", "Name:\tsh\nUid:\t4242\t4242\t4242\t4242\n");
    let job = "cgroup/system.slice/slurmstepd.scope/job_9";
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), None);
    tree.make(&format!("{job}/step_0/user/task_0"));
    assert_eq!(tracked.began("9").record.uid, None);
    tree.write(&format!("{job}/step_0/cgroup.procs"), "10\n");
    tree.write(&format!("{job}/step_0/user/task_0/cgroup.procs"), "11\n");
    let changed = tracked.changed("9", |job| job.record.uid.is_some());
    assert_eq!((changed.record.uid, changed.cgroups.uid), (Some(4242), Some(4242)));
    tracked.tracker.stop();
}

#[test]
fn names_of_users_come_from_the_system() {
    let tree = Tree::new(&["memory"]);
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), None);
    tree.make("cgroup/memory/slurm/uid_0/job_1");
    tracked.began("1");
    assert_eq!(tracked.changed("1", |job| job.record.user.is_some()).record.user.as_deref(), Some("root"));
    tree.make("cgroup/memory/oar/root_2");
    tracked.began("2");
    assert_eq!(tracked.changed("2", |job| job.record.uid.is_some()).record.uid, Some(0));
    // Known in time for the event of the begin.
    tree.make("cgroup/memory/slurm/uid_0/job_3");
    assert_eq!(tracked.began("3").record.user.as_deref(), Some("root"));
    tracked.tracker.stop();
}

#[test]
fn gpus_of_a_job() {
    let tree = Tree::new(&["memory"]);
    tree.write("gpustat/0", "5 1\n");
    let config = TrackerConfig { gpustat: Some(tree.path("gpustat")), ..config(NO_RESCAN) };
    let tracked = Tracked::start(&config, &tree.roots(), None);
    tree.make("cgroup/memory/slurm/uid_1/job_4");
    tracked.began("4");
    tree.make("cgroup/memory/slurm/uid_1/job_5");
    assert_eq!(tracked.began("5").record.devices, ["gpu/0"]);
    tree.write("gpustat/2", "5 1000\n");
    tree.write("gpustat/1", "5 1\n");
    assert_eq!(tracked.changed("5", |job| job.record.devices.len() > 1).record.devices, ["gpu/0", "gpu/1"]);
    tracked.tracker.stop();
}

#[test]
fn the_agent_restarts_in_the_middle() {
    let tree = Tree::new(&["cpuacct", "memory"]);
    let dir = tree.path("records");
    let make = |id: u32| {
        for name in ["cpuacct", "memory"] {
            tree.make(&format!("cgroup/{name}/slurm/uid_1000/job_{id}/step_0"));
        }
    };
    let remove = |id: u32| {
        for name in ["cpuacct", "memory"] {
            tree.remove(&format!("cgroup/{name}/slurm/uid_1000/job_{id}/step_0"));
            tree.remove(&format!("cgroup/{name}/slurm/uid_1000/job_{id}"));
        }
    };
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), Some(&dir));
    (1..=3).for_each(&make);
    let before: Vec<_> = (1..=3).map(|id| tracked.began(&id.to_string()).record.clone()).collect();
    tracked.job_table.acknowledged(&tracked.record("1").unwrap());
    tracked.tracker.stop();
    // While the tracker is stopped, the first job continues, the second ends, and the third ends and its id is used again.
    remove(2);
    remove(3);
    make(3);
    make(4);
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), Some(&dir));
    let again: Vec<_> = ["1", "3", "4"].map(|id| tracked.began(id).record.clone()).into_iter().collect();
    assert_eq!((again[0].from, &again[0].level), (before[0].from, &before[0].level));
    assert!(again[0].revision > before[0].revision && again[0].to.is_none());
    assert!(again[1].from > before[2].from && again[1].level == "3");
    let over = tracked.record("2").unwrap();
    assert!(over.end_unseen && over.from == before[1].from && over.to.unwrap() >= over.from);
    assert!(over.to.unwrap() <= again[2].from, "last seen before what began while the agent was away");
    assert!(over.steps.iter().all(|step| step.to.is_some()), "{over:?}");
    let third: Vec<_> = tracked.job_table.pending(99).into_iter().filter(|record| record.job == "3").collect();
    assert_eq!(third.iter().map(|record| record.end_unseen).collect::<Vec<_>>(), [true, false]);
    remove(1);
    tracked.ended("1");
    tracked.tracker.stop();
    // Nothing was acknowledged since: all records remain.
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), Some(&dir));
    let last = tracked.record("1").unwrap();
    assert!(last.to.is_some() && !last.end_unseen && last.from == before[0].from);
    tracked.job_table.pending(99).iter().for_each(|record| tracked.job_table.acknowledged(record));
    tracked.began("4");
    tracked.tracker.stop();
}

#[test]
fn a_damaged_file_of_records_is_renamed() {
    let tree = Tree::new(&["cpuacct"]);
    tree.write("records/records.json", "{\"version\":1,\"boo");
    tree.make("cgroup/cpuacct/slurm/uid_1/job_1");
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), Some(&tree.path("records")));
    tracked.began("1");
    assert!(tree.path("records/records.json.damaged").exists());
    wait_until("a new file", || tree.path("records/records.json").exists());
    tracked.tracker.stop();
}

#[test]
fn a_tree_that_comes_later_and_odd_names() {
    let tree = Tree::new(&[]);
    fs::remove_dir(tree.path("cgroup")).unwrap();
    let tracked = Tracked::start(&config(Interval::from_ms(100)), &tree.roots(), None);
    tree.make("cgroup/cpuacct/pbs_jobs.service/jobid/1$(reboot) \n'x");
    let began = tracked.began("1$(reboot) \n'x");
    wholegrain_model::name::check_relative(&began.record.level).unwrap();
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    fs::create_dir(tree.path("cgroup/cpuacct/pbs_jobs.service/jobid").join(odd)).unwrap();
    tree.make(&format!("cgroup/cpuacct/pbs_jobs.service/jobid/1{}", "x".repeat(254)));
    let began = tracked.wait("a long id", |event| matches!(event, JobEvent::Began(_)));
    assert_eq!(began.record.job.len(), wholegrain_model::job::JOB_ID_BYTES_MAX);
    tracked.tracker.stop();
}

/// A named pipe: opening it for reading waits for a writer.
fn pipe(path: &Path) {
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "{}", std::io::Error::last_os_error());
}

/// The writing end of a pipe, once a reader waits: the reader continues, and no further reader waits.
#[track_caller]
fn release(path: &Path) -> fs::File {
    use std::os::unix::fs::OpenOptionsExt;
    let mut end = None;
    wait_until("somebody who opens the pipe", || {
        end = fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).ok();
        end.is_some()
    });
    end.unwrap()
}

/// Totals are read when a directory is found, before the tracker handles the kernel's events about others: here it waits for files of two other jobs.
#[test]
fn a_job_that_is_gone_before_the_tracker_has_taken_all_news_leaves_totals() {
    let tree = Tree::new(&["cpuacct"]);
    let tracked = Tracked::start(&config(NO_RESCAN), &tree.roots(), None);
    tree.make("cgroup/cpuacct/slurm/uid_1/job_9");
    tracked.began("9");
    // Renamed, so that directories appear with their files.
    let slow = |id: &str| {
        tree.make(&format!("new/{id}"));
        ["cpuacct.usage", "cpuacct.stat"].iter().for_each(|file| pipe(&tree.path(&format!("new/{id}/{file}"))));
    };
    let begin = |id: &str| {
        fs::rename(tree.path(&format!("new/{id}")), tree.path(&format!("cgroup/cpuacct/slurm/uid_1/job_{id}")))
            .unwrap();
    };
    let release = |id: &str, file: &str| release(&tree.path(&format!("cgroup/cpuacct/slurm/uid_1/job_{id}/{file}")));
    slow("1");
    slow("2");
    tree.write("new/3/cpuacct.usage", "2500000000\n");
    begin("1");
    let mut ends = vec![release("1", "cpuacct.usage")];
    // The tracker waits for the first job's second pipe: the events of the next two arrive together.
    begin("3");
    begin("2");
    ends.push(release("1", "cpuacct.stat"));
    ends.push(release("2", "cpuacct.usage"));
    // Now it waits for the second pipe of the last job.
    tree.remove("cgroup/cpuacct/slurm/uid_1/job_3");
    ends.push(release("2", "cpuacct.stat"));
    let ended = tracked.ended("3");
    assert_eq!(ended.record.totals.get("cpu/usage"), Some(&2.5), "{:?}", ended.record);
    drop(ends);
    tracked.tracker.stop();
}
