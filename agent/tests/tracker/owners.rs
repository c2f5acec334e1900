//! The owner of a directory decides whether it is a job. With root's rights the trees have the owners that the managers give them; without, refusals
//! are tested with permissions and links only.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use super::*;

const ALICE: u32 = 51_000;
const BOB: u32 = 51_001;
const FLUX: u32 = 50_982;
const OAR: u32 = 50_990;

fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!(
            "not root: trees with the owners of other users are tried by the unit tests of `layout` and `trust` alone"
        );
    }
    root
}

impl Tree {
    /// Creates a directory with all missing levels, and gives the last levels to these `owners`.
    fn owned(&self, path: &str, owners: &[u32]) {
        let levels: Vec<&str> = path.split('/').collect();
        for end in 1..=levels.len() {
            let dir = self.path(&levels[..end].join("/"));
            if fs::create_dir(&dir).is_ok() {
                fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
            }
            let from_end = levels.len() - end;
            if let Some(owner) = owners.len().checked_sub(from_end + 1).map(|at| owners[at]) {
                chown(&dir, Some(owner), Some(owner)).unwrap();
            }
        }
    }
}

fn settings() -> TrackerConfig {
    let managers = ["slurm", "oar", "pbs", "flux", "systemd"].map(str::to_owned).to_vec();
    let units = vec!["run-*.scope".to_owned()];
    TrackerConfig { managers, units, flux_user: FLUX.to_string(), oar_user: OAR.to_string(), ..config(NO_RESCAN) }
}

fn unified() -> Tree {
    let tree = Tree::new(&[]);
    tree.write("cgroup/cgroup.controllers", "cpu memory pids\n");
    tree
}

const FLUX_JOB: &str = "app.slice/imp-shell-0-fTE9HHdZvi3.service";

fn manager_of(uid: u32) -> String {
    format!("cgroup/user.slice/user-{uid}.slice/user@{uid}.service")
}

/// A past attack: bob's unit with the name of alice's job took her job.
#[test]
fn a_units_name_replaces_no_flux_job() {
    if !is_root() {
        return;
    }
    let tree = unified();
    let records = tempfile::tempdir().unwrap();
    let (job, forged) = (format!("{}/{FLUX_JOB}", manager_of(FLUX)), format!("{}/{FLUX_JOB}", manager_of(BOB)));
    // Bob's directory exists first.
    tree.owned(&forged, &[BOB; 3]);
    tree.owned(&job, &[FLUX; 3]);
    tree.write("proc/10/status", &format!("Name:\tflux-imp\nUid:\t{FLUX}\t0\t0\t0\n"));
    tree.write("proc/11/status", &format!("Name:\tsh\nUid:\t{ALICE}\t{ALICE}\t{ALICE}\t{ALICE}\n"));
    tree.write(&format!("{job}/cgroup.procs"), "10\n11\n");
    tree.write("proc/12/status", &format!("Name:\tsh\nUid:\t{BOB}\t{BOB}\t{BOB}\t{BOB}\n"));
    tree.write(&format!("{forged}/cgroup.procs"), "12\n");
    for start in 0..2 {
        let tracked = Tracked::start(&settings(), &tree.roots(), Some(records.path()));
        let id = "\u{192}TE9HHdZvi3";
        let job_with = tracked.job_with(id, |job| job.record.uid.is_some());
        assert_eq!(
            (job_with.record.uid, job_with.record.level.as_str()),
            (Some(ALICE), "fTE9HHdZvi3"),
            "start {start}"
        );
        assert_eq!(job_with.cgroups.v2.as_deref(), Some(&*tree.path(&job)));
        let other = format!("{}/app.slice/imp-shell-0-f2uT.service", manager_of(FLUX));
        if start == 1 {
            // Bob's directory is removed: alice's job stays.
            tree.remove(&forged);
            tree.owned(&other, &[FLUX; 3]);
            tracked.began("\u{192}2uT");
            assert!(tracked.record(id).unwrap().to.is_none());
            tree.remove(&job);
            tracked.ended(id);
        }
        assert!(tracked.record(id).is_some_and(|record| record.owner.is_empty() && record.uid == Some(ALICE)));
        tracked.tracker.stop();
    }
}

/// Directories with correct names and wrong owners, for each manager.
#[test]
fn a_tree_of_a_users_own_has_no_jobs_of_others() {
    if !is_root() {
        return;
    }
    let tree = unified();
    let own = manager_of(BOB);
    for (path, owners) in [
        (format!("{own}/system.slice/slurmstepd.scope/job_1/step_0"), 5),
        (format!("{own}/oar.slice/oar-u{ALICE}.slice/oar-u{ALICE}-j2.slice"), 4),
        (format!("{own}/pbs_jobs.service/jobid/3.pbs"), 4),
        (format!("{own}/user.slice/user-{FLUX}.slice/user@{FLUX}.service/{FLUX_JOB}"), 6),
        // At the root, which an administrator may have given to a user by mistake.
        ("cgroup/system.slice/slurmstepd.scope/job_5".to_owned(), 1),
        ("cgroup/system.slice/n1_slurmstepd.scope/job_6".to_owned(), 2),
        (format!("cgroup/oar.slice/oar-u{ALICE}.slice/oar-u{ALICE}-j7.slice"), 3),
        ("cgroup/pbs_jobs.service/jobid/8.pbs".to_owned(), 1),
    ] {
        tree.owned(&path, &vec![BOB; owners]);
    }
    let open = "cgroup/system.slice/n2_slurmstepd.scope";
    tree.owned(&format!("{open}/job_9"), &[0]);
    fs::set_permissions(tree.path(open), fs::Permissions::from_mode(0o777)).unwrap();
    tree.owned("elsewhere/job_10", &[0, 0]);
    std::os::unix::fs::symlink(tree.path("elsewhere"), tree.path("cgroup/system.slice/n3_slurmstepd.scope")).unwrap();
    tree.owned(&format!("{own}/app.slice/run-mine.scope"), &[BOB; 3]);
    tree.owned("cgroup/system.slice/n4_slurmstepd.scope/job_11", &[0, 0]);
    let tracked = Tracked::start(&settings(), &tree.roots(), None);
    assert_eq!(tracked.began("11").record.uid, None);
    let mine = tracked.began("run-mine.scope").record.clone();
    assert_eq!((mine.uid, mine.owner, mine.level), (Some(BOB), format!("own:{BOB}"), format!("run-mine.scope-u{BOB}")));
    // The kernel sends an event, too.
    tree.owned("cgroup/system.slice/n5_slurmstepd.scope", &[BOB]);
    tree.owned("cgroup/system.slice/n5_slurmstepd.scope/job_12", &[0]);
    tree.owned("cgroup/system.slice/n4_slurmstepd.scope/job_13", &[0, 0]);
    tracked.began("13");
    let ids: Vec<String> = tracked.job_table.pending(99).into_iter().map(|record| record.job).collect();
    assert!(ids.iter().all(|id| ["run-mine.scope", "11", "13"].contains(&id.as_str())), "{ids:?}");
    tracked.tracker.stop();
}

#[test]
fn a_step_that_was_given_to_its_user_has_no_tasks() {
    if !is_root() {
        return;
    }
    let tree = Tree::new(&["memory"]);
    let job = format!("cgroup/memory/slurm/uid_{ALICE}/job_1");
    tree.owned(&format!("{job}/step_0"), &[ALICE]);
    tree.owned(&format!("{job}/step_0/task_0"), &[ALICE]);
    tree.owned(&format!("{job}/step_1/task_0"), &[ALICE]);
    let tracked = Tracked::start(&settings(), &tree.roots(), None);
    let steps = |job: &Job| job.record.steps.iter().map(|step| step.name.clone()).collect::<Vec<_>>();
    let job_with = tracked.job_with("1", |job| job.record.steps.len() >= 3);
    assert_eq!(steps(&job_with), ["step_0", "step_1", "step_1/task_0"]);
    tracked.tracker.stop();
}

#[test]
fn the_accounts_directories_are_oars() {
    if !is_root() {
        return;
    }
    let tree = Tree::new(&["cpuset"]);
    tree.owned("cgroup/cpuset/oar/anna_1", &[OAR, OAR]);
    tree.owned("cgroup/cpuset/oar/anna_2", &[BOB]);
    let tracked = Tracked::start(&settings(), &tree.roots(), None);
    assert_eq!(tracked.began("1").record.owner, "user:anna");
    tree.owned("cgroup/cpuset/oar/bert_1", &[OAR]);
    assert_eq!(tracked.began("1").record.level, "1-bert");
    tree.remove("cgroup/cpuset/oar/anna_1");
    assert_eq!(tracked.ended("1").record.owner, "user:anna");
    let records = tracked.job_table.pending(99);
    assert!(records.iter().all(|record| record.job == "1"), "{records:?}");
    assert!(records.iter().any(|record| record.owner == "user:bert" && record.to.is_none()));
    tracked.tracker.stop();
}

/// For any user: directories that others can write to are ignored, and so are targets of links.
#[test]
fn what_is_open_to_others_is_no_job() {
    let tree = unified();
    assert!(fs::metadata(tree.path("cgroup")).unwrap().uid() < u32::MAX);
    tree.make("cgroup/system.slice/n1_slurmstepd.scope/job_1");
    tree.make("cgroup/system.slice/n2_slurmstepd.scope/job_2");
    tree.make("elsewhere/job_3");
    std::os::unix::fs::symlink(tree.path("elsewhere"), tree.path("cgroup/system.slice/n3_slurmstepd.scope")).unwrap();
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(tree.path("cgroup/system.slice/n1_slurmstepd.scope"), open).unwrap();
    let tracked = Tracked::start(&settings(), &tree.roots(), None);
    tracked.began("2");
    assert_eq!(tracked.job_table.count(), 1);
    tracked.tracker.stop();
    fs::set_permissions(tree.path("cgroup"), fs::Permissions::from_mode(0o777)).unwrap();
    let tracked = Tracked::start(&TrackerConfig { rescan: Interval::from_ms(100), ..settings() }, &tree.roots(), None);
    fs::set_permissions(tree.path("cgroup"), fs::Permissions::from_mode(0o755)).unwrap();
    tracked.began("2");
    tracked.tracker.stop();
}
