use wholegrain_model::job::JOB_ID_BYTES_MAX;
use wholegrain_model::name::{LEVEL_BYTES_MAX, check_relative};

use super::path::fit_id;
use super::*;
use crate::jobs::tracker::RawPattern;

pub(super) fn config() -> TrackerConfig {
    let pattern = |name: &str, path: &str| RawPattern { name: name.to_owned(), path: path.to_owned(), owner: None };
    TrackerConfig {
        patterns: vec![
            pattern("lsf", r"lsf/[^/]+/job\.(?<job>\d+)(\.\d+)*"),
            pattern("own", r"own/(?<uid>\d+)-(?<user>[a-z]+)/j(?<job>[^/]+)(?:/(?<step>s\d+(?:/t\d+)?))?"),
        ],
        units: Vec::new(),
        ..TrackerConfig::default()
    }
}

/// Layouts where the account flux is 998.
fn layouts(config: &TrackerConfig) -> Layouts {
    Layouts::new(config, &BTreeMap::from([("flux".to_owned(), 998), ("oar".to_owned(), 990)]))
}

/// The role of a path in one line: `above`, `nothing`, or manager, id and further facts.
#[track_caller]
fn check_with(layouts: &Layouts, version: CgroupVersion, path: &str, expected: &str) {
    let text = match layouts.role_of(version, path) {
        DirectoryRole::Nothing => "nothing".to_owned(),
        DirectoryRole::Above(_) => "above".to_owned(),
        DirectoryRole::Job(found) => {
            let mut text = format!("{} {}", found.manager, found.job);
            let add = |text: &mut String, name: &str, value: String| {
                if !value.is_empty() {
                    text.push_str(&format!(" {name}={value}"));
                }
            };
            add(&mut text, "level", if found.level == found.job { String::new() } else { found.level.clone() });
            add(&mut text, "of", found.instance);
            add(&mut text, "uid", found.uid.map(|uid| uid.to_string()).unwrap_or_default());
            add(&mut text, "user", found.user.unwrap_or_default());
            add(&mut text, "step", found.step);
            check_relative(&found.level).unwrap_or_else(|error| panic!("{path}: {error}"));
            text + if found.deeper { " …" } else { "" }
        }
    };
    assert_eq!(text, expected, "{path}");
}

#[track_caller]
fn check(version: CgroupVersion, path: &str, expected: &str) {
    check_with(&layouts(&config()), version, path, expected);
}

use CgroupVersion::{V1, V2};

#[test]
fn slurm_version_1() {
    check(V1, "slurm", "above");
    check(V1, "slurm_n1", "above");
    check(V1, "slurm_", "nothing");
    check(V1, "slurmy", "nothing");
    check(V1, "slurm/uid_1000", "above");
    check(V1, "slurm/uid_x", "nothing");
    check(V1, "slurm/system", "nothing");
    check(V1, "slurm/uid_1000/job_42", "slurm 42 uid=1000 …");
    check(V1, "slurm_node-7_a/uid_0/job_42", "slurm 42 of=node-7_a uid=0 …");
    check(V1, "slurm/uid_1000/job_42/step_batch", "slurm 42 uid=1000 step=step_batch …");
    check(V1, "slurm/uid_1000/job_42/step_0/task_3", "slurm 42 uid=1000 step=step_0/task_3");
    check(V1, "slurm/uid_1000/job_42/step_0/task_3/x", "nothing");
    check(V1, "slurm/uid_1000/job_42/other", "nothing");
    check(V1, "slurm/uid_1000/job_", "nothing");
    check(V1, "slurm/uid_1000/job_4x2", "nothing");
    check(V1, "slurm/uid_99999999999/job_42", "nothing");
    check(V1, "system.slice/slurmstepd.scope/job_42", "nothing");
}

#[test]
fn slurm_version_2() {
    let scope = "system.slice/slurmstepd.scope";
    check(V2, "system.slice", "above");
    check(V2, scope, "above");
    check(V2, "system.slice/n1_slurmstepd.scope", "above");
    check(V2, "system.slice/ssh.service", "nothing");
    check(V2, &format!("{scope}/system"), "nothing");
    check(V2, &format!("{scope}/job_7"), "slurm 7 …");
    check(V2, "hpc.slice/hpc-low.slice/n_1_slurmstepd.scope/job_7", "nothing");
    check(V2, "slurmstepd.scope/job_7", "nothing");
    let mut site = config();
    site.slurm_slices = ["hpc-low.slice", "-.slice"].map(str::to_owned).to_vec();
    site.slurm_nodes = vec!["n_*".to_owned()];
    let site = layouts(&site);
    check_with(&site, V2, "hpc.slice", "above");
    check_with(&site, V2, "hpc.slice/hpc-low.slice", "above");
    check_with(&site, V2, "hpc.slice/slurmstepd.scope/job_7", "nothing");
    check_with(&site, V2, "hpc.slice/hpc-low.slice/n_1_slurmstepd.scope/job_7", "slurm 7 of=n_1 …");
    check_with(&site, V2, "hpc.slice/hpc-low.slice/m_slurmstepd.scope/job_7", "nothing");
    check_with(&site, V2, "slurmstepd.scope/job_7", "slurm 7 …");
    check_with(&site, V2, "system.slice/slurmstepd.scope/job_7", "nothing");
    check(V2, "user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_7", "nothing");
    check(V2, &format!("{scope}/job_07"), "nothing");
    check(V2, &format!("{scope}/job_+7"), "nothing");
    check(V2, &format!("{scope}/job_7/step_extern"), "slurm 7 step=step_extern …");
    check(V2, &format!("{scope}/job_7/step_extern/slurm"), "nothing");
    check(V2, &format!("{scope}/job_7/step_0/user"), "above");
    check(V2, &format!("{scope}/job_7/step_0/user/task_12"), "slurm 7 step=step_0/task_12");
    check(V2, &format!("{scope}/job_7/step_0/user/task_special"), "slurm 7 step=step_0/task_special");
    check(V2, &format!("{scope}/job_7/step_0/user/task_1/x"), "nothing");
    check(V2, "slurm/uid_1000/job_42", "nothing");
}

#[test]
fn slurm_with_sluids() {
    let scope = "system.slice/n1_slurmstepd.scope";
    check(V2, &format!("{scope}/s0123456789ABC"), "slurm s0123456789ABC of=n1 …");
    check(V2, &format!("{scope}/s7ZK3MQ9VWXY01/step_batch"), "slurm s7ZK3MQ9VWXY01 of=n1 step=step_batch …");
    check(
        V2,
        &format!("{scope}/s7ZK3MQ9VWXY01/step_batch/user/task_0"),
        "slurm s7ZK3MQ9VWXY01 of=n1 step=step_batch/task_0",
    );
    // Small letters, I, L, O and U are no digits, and the first digit is hexadecimal; 12 digits are too few.
    check(V2, &format!("{scope}/s7zk3mq9vwxy01"), "nothing");
    check(V2, &format!("{scope}/sZ123456789ABC"), "nothing");
    check(V2, &format!("{scope}/job_s0123456789ABC"), "nothing");
    check(V2, &format!("{scope}/s0123456789ABL"), "nothing");
    check(V2, &format!("{scope}/s0123456789AB"), "nothing");
    check(V2, &format!("{scope}/t0123456789ABC"), "nothing");
}

#[test]
fn oar_2_and_3() {
    check(V1, "oar", "above");
    check(V1, "oar/alice_42", "oar 42 user=alice");
    check(V1, "oar/alice_b_42", "oar 42 user=alice_b");
    check(V1, "oar/_42", "nothing");
    check(V1, "oar/alice", "nothing");
    check(V1, "oar/alice_42/x", "nothing");
    check(V2, "oar/alice_42", "nothing");
    let job = "oar.slice/oar-u1000.slice/oar-u1000-j42.slice";
    check(V2, "oar.slice", "above");
    check(V2, "oar.slice/oar-u1000.slice", "above");
    check(V2, job, "oar 42 uid=1000 …");
    check(V2, &format!("{job}/oar-u1000-j42-p1.scope"), "oar 42 uid=1000 step=p1");
    check(V2, &format!("{job}/oar-u1000-j42-t3.slice"), "oar 42 uid=1000 step=t3 …");
    check(V2, &format!("{job}/oar-u1000-j42-t3.slice/oar-u1000-j42-t3-p1.scope"), "oar 42 uid=1000 step=t3/p1");
    check(V2, &format!("{job}/oar-u1000-j43-p1.scope"), "nothing");
    check(V2, "oar.slice/oar-u1000.slice/oar-u1001-j42.slice", "nothing");
    check(V2, &format!("{job}/oar-u1000-j42-x.scope"), "nothing");
}

#[test]
fn pbs_and_flux() {
    check(V1, "pbs_jobs.service/jobid", "above");
    check(V1, "pbs_jobs.service/jobid/4711.pbs01", "pbs 4711.pbs01");
    check(V1, "pbs_jobs.service/jobid/4711[3].pbs01.lab.example", "pbs 4711[3].pbs01.lab.example");
    check(V1, "pbs_jobs.service/other", "nothing");
    check(V1, "pbs_jobs.service/jobid/4711.pbs01.orphan", "nothing");
    check(V1, "pbspro/4711.pbs01", "pbs 4711.pbs01");
    check(V1, "pbspro.slice", "above");
    check(V1, r"pbspro.slice/pbspro-47\x5b3\x5d.pbs\x2d01.slice", "pbs 47[3].pbs-01");
    check(V1, r"pbspro.slice/pbspro-47\x5.slice", "nothing");
    check(V1, r"pbspro.slice/pbspro-47\x+1.slice", "nothing");
    check(V1, "pbspro.slice/pbspro-47-3.slice", "nothing");
    let user = "user.slice/user-998.slice/user@998.service";
    check(V2, user, "above");
    check(V2, &format!("{user}/app.slice"), "above");
    check(V2, &format!("{user}/shell-0-f2oLkTLb.service"), "flux ƒ2oLkTLb level=f2oLkTLb of=0 uid=998");
    check(V2, &format!("{user}/app.slice/imp-shell-12-fabc.service"), "flux ƒabc level=fabc of=12");
    check(V2, &format!("{user}/app.slice/dbus.service"), "nothing");
    check(V2, &format!("{user}/other.slice/shell-0-fabc.service"), "nothing");
    check(V2, "user.slice/user-998.slice/user@999.service/shell-0-fabc.service", "nothing");
    check(V2, "user.slice/user-999.slice/user@999.service/shell-0-fabc.service", "nothing");
    check(V2, "app.slice/imp-shell-0-fabc.service", "nothing");
    let nobody = Layouts::new(&config(), &BTreeMap::new());
    check_with(&nobody, V2, &format!("{user}/shell-0-fabc.service"), "nothing");
    check(V2, &format!("{user}/shell-0-x2oLk.service"), "nothing");
    check(V2, &format!("{user}/shell-0-f0OIl.service"), "nothing");
    check(V2, &format!("{user}/shell-x-fabc.service"), "nothing");
}

#[test]
fn systemd_units_by_name() {
    let mut config = config();
    check(V2, "machine.slice/vm-1.scope", "nothing");
    config.managers.push("systemd".to_owned());
    config.units = vec!["*.scope".to_owned(), "batch-*.service".to_owned()];
    let layouts = layouts(&config);
    check_with(&layouts, V2, "machine.slice/vm-1.scope", "systemd vm-1.scope");
    check_with(&layouts, V1, "system.slice/batch-17.service", "systemd batch-17.service");
    check_with(&layouts, V2, "system.slice/ssh.service", "nothing");
    check_with(
        &layouts,
        V2,
        "user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope",
        "systemd run-r1.scope level=run-r1.scope-u1000 uid=1000",
    );
    check_with(&layouts, V2, "user.slice/user-1000.slice/session-4.scope", "systemd session-4.scope uid=1000");
    check_with(&layouts, V2, "user.slice/user-1001.slice/user@1000.service/app.slice/run-r1.scope", "nothing");
    check_with(&layouts, V2, "app.slice/user@1000.service/run-r1.scope", "nothing");
    check_with(&layouts, V2, "machine.slice/vm-1.scope/inner.scope", "nothing");
    // Units of another manager are that manager's, in any order of the setting, and no jobs that end the search.
    for scope in ["slurmstepd.scope", "n17_slurmstepd.scope"] {
        check_with(&layouts, V2, &format!("system.slice/{scope}"), "above");
    }
    check_with(&layouts, V2, "machine.slice/slurmstepd.scope", "systemd slurmstepd.scope");
    config.managers.reverse();
    let layouts = self::layouts(&config);
    check_with(&layouts, V2, "system.slice/slurmstepd.scope", "above");
    config.units = vec!["*".to_owned()];
    let any = self::layouts(&config);
    check_with(&any, V1, "pbs_jobs.service", "above");
    check_with(&any, V1, "pbs_jobs.service/jobid/17.pbs01", "pbs 17.pbs01");
    check_with(&layouts, V2, "system.slice/slurmstepd.scope/job_7", "slurm 7 …");
}

#[test]
fn patterns() {
    check(V1, "lsf", "above");
    check(V1, "lsf/cluster1", "above");
    check(V1, "lsf/cluster1/job.17.3", "lsf 17");
    check(V1, "lsf/cluster1/other", "nothing");
    check(V1, "lsf/cluster1/deep/er", "nothing");
    // Steps in a group with a slash: every directory may be above.
    check(V2, "own/1000-alice", "above");
    check(V2, "own/1000-alice/x/y", "above");
    check(V2, "own/1000", "nothing");
    check(V2, "own/1000/x/y", "nothing");
    check(V2, "own/1000-alice/j5", "own 5 uid=1000 user=alice …");
    check(V2, "own/1000-alice/j5/s1", "own 5 uid=1000 user=alice step=s1 …");
    check(V2, "own/1000-alice/j5/s1/t2", "own 5 uid=1000 user=alice step=s1/t2 …");
}

#[test]
fn odd_ids_get_levels_of_their_own() {
    let a = "pbs_jobs.service/jobid/1 b";
    check(V1, a, "pbs 1 b level=1_b-395a9ba2");
    check(V1, "pbs_jobs.service/jobid/1?b", "pbs 1?b level=1_b-431dd5a1");
    check(V1, "pbs_jobs.service/jobid/1_b", "pbs 1_b");
    check(V1, "pbs_jobs.service/jobid/..", "nothing");
    check(V1, "pbs_jobs.service/jobid/1$(id)", "pbs 1$(id) level=1__id-81fbf2bc");
    for length in [127, 128, 129, 200, 255] {
        let DirectoryRole::Job(found) =
            layouts(&config()).role_of(V1, &format!("pbs_jobs.service/jobid/1{}", "ä".repeat(length)))
        else {
            panic!("{length}")
        };
        assert!(found.job.len() <= JOB_ID_BYTES_MAX && found.level.len() <= LEVEL_BYTES_MAX, "{length}: {found:?}");
    }
    assert_ne!(fit_id(&"x".repeat(200)), fit_id(&"x".repeat(201)));
}

#[test]
fn deep_and_empty_paths() {
    check(V2, &"a.slice/".repeat(DEPTH_MAX - 1), "nothing");
    let layouts = layouts(&TrackerConfig { managers: vec!["systemd".to_owned()], ..config() });
    check_with(&layouts, V2, &["a.slice"; DEPTH_MAX].join("/"), "above");
    check_with(&layouts, V2, &["a.slice"; DEPTH_MAX + 1].join("/"), "nothing");
    check(V2, "", "nothing");
}

#[test]
fn bad_patterns_are_explained() {
    for (path, expected) in [
        ("a/b", "no capture `job`"),
        ("a/(?<jbo>x)", "no capture `job`"),
        ("a/(?<job>x)(?<usr>y)", "unknown capture `usr`; did you mean `user`?"),
        ("a/(?<job>[z-a])", "is invalid from character 10, `[z-a])`"),
        ("a/(?<job>x", "is invalid from character 10"),
        ("a)(?<job>x)", "is invalid from character 2, `)(?<job>x)`"),
        ("ä/*/(?<job>**)", "is invalid from character"),
    ] {
        let raw = RawPattern { name: "p".to_owned(), path: path.to_owned(), owner: None };
        let error = JobPathPattern::new(&raw).err().unwrap_or_else(|| panic!("{path} was taken"));
        assert!(error.contains(expected), "{path}: {error:?} does not say {expected:?}");
    }
}
