//! `verdicts.txt`: real and forged paths, with the owners that their directories have.

use super::tests::config;
use super::*;
use crate::jobs::tracker::trust::{Ownership, TrustedUser};

/// Resource managers of the table without a layout: a slot or a pod has no batch job's id. Their real paths are no jobs here.
const NOT_LOOKED_FOR: &[&str] = &["htcondor", "pod"];

fn site() -> Layouts {
    let config = TrackerConfig {
        patterns: Vec::new(),
        slurm_slices: ["system.slice", "hpc.slice"].map(str::to_owned).to_vec(),
        slurm_nodes: ["n17", "gamba1"].map(str::to_owned).to_vec(),
        ..config()
    };
    Layouts::new(&config, &BTreeMap::from([("flux".to_owned(), 982), ("oar".to_owned(), 990)]))
}

fn owned(uid: u32) -> Ownership {
    Ownership { uid, gid: uid, mode: 0o040_755, is_dir: true }
}

/// The result in the words of the table.
fn words(found: &JobPath) -> String {
    let mut words = format!("{} {}", found.manager, found.job);
    for (name, value) in [("uid", found.uid.map(|uid| uid.to_string())), ("user", found.user.clone())] {
        words += &value.map(|value| format!(" {name} {value}")).unwrap_or_default();
    }
    words
}

#[test]
fn every_path_of_the_table_has_its_verdict() {
    let agent = TrustedUser { uid: 500, gid: 500 };
    let layouts = site();
    let (mut accepted, mut rejected) = (0, 0);
    for line in include_str!("verdicts.txt").lines().filter(|line| !line.starts_with('#')) {
        let [verdict, hierarchy, path, owners, result] =
            line.split('|').map(str::trim).collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{line}"));
        let version = if hierarchy == "v2" { CgroupVersion::V2 } else { CgroupVersion::V1 };
        let path = path.strip_prefix('/').unwrap();
        let levels: Vec<&str> = path.split('/').collect();
        let owners: Vec<Ownership> = match owners {
            "0*" => vec![owned(0); levels.len()],
            list => list.split(',').map(|uid| owned(uid.parse().unwrap())).collect(),
        };
        assert_eq!(owners.len(), levels.len(), "{line}");
        // As the tracker walks: one directory after the other, and never below a refused one.
        let mut job = None;
        for depth in 1..=levels.len() {
            let (asked, found) = match layouts.role_of(version, &levels[..depth].join("/")) {
                DirectoryRole::Nothing => break,
                DirectoryRole::Above(owners) => (owners, None),
                DirectoryRole::Job(found) => (vec![found.owners.clone()], Some(found)),
            };
            if !asked.iter().any(|asked| agent.refuses(asked, &owners[..depth]).is_none()) {
                break;
            }
            job = found.or(job);
        }
        let kind = result.split(' ').next().unwrap();
        let expected = verdict == "accept" && !NOT_LOOKED_FOR.contains(&kind);
        let counts = if expected { &mut accepted } else { &mut rejected };
        *counts += 1;
        match (&job, expected) {
            (None, false) => {}
            // Below a real job's directory: it belongs to that job, and the forged id never counts.
            (Some(found), false) => {
                assert!(result.contains(&format!("counts to job {}", found.job)), "{line}: {found:?}");
            }
            (None, true) => panic!("{line}: no job"),
            (Some(found), true) => {
                let id = found.job.strip_prefix('\u{192}').map_or(found.job.clone(), |id| format!("f{id}"));
                let id = id.split_once('[').map_or(id.clone(), |(number, _)| number.to_owned());
                let has_id = result.contains("SLUID") || result.contains(&id);
                assert!(result.starts_with(&found.manager) && has_id, "{line}: {}", words(found));
                if let Some(uid) = found.uid {
                    assert!(
                        result.contains(&format!("uid {uid}")) || result.starts_with("oar job 552"),
                        "{line}: {uid}"
                    );
                }
                let last = *levels.last().unwrap();
                let is_step = !found.step.is_empty();
                let says_step =
                    ["step", "task", "-p"].iter().any(|part| last.contains(part)) || last == "user" || last == "slurm";
                assert!(!is_step || says_step, "{line}: {}", found.step);
            }
        }
    }
    assert_eq!((accepted, rejected), (13, 17), "15 real ones, of which two are of managers that are not looked for");
}

/// For each manager: directories that an ordinary user can create below their own systemd manager, or in a directory that was given to them.
#[test]
fn a_user_makes_nobody_elses_job() {
    let agent = TrustedUser { uid: 500, gid: 500 };
    let mut config = config();
    config.managers.push("systemd".to_owned());
    config.units = vec!["*.scope".to_owned(), "*.service".to_owned()];
    config.patterns.push(crate::jobs::tracker::RawPattern {
        name: "anywhere".to_owned(),
        path: r".*slurm.*/job_(?<job>\d+)(?<user>x)?".to_owned(),
        owner: None,
    });
    let layouts = Layouts::new(&config, &BTreeMap::from([("flux".to_owned(), 982), ("oar".to_owned(), 990)]));
    let own = "user.slice/user-1000.slice/user@1000.service";
    let ends = [
        "slurm/uid_1001/job_42",
        "slurmstepd.scope/job_42",
        "system.slice/slurmstepd.scope/job_42x",
        "oar/anna_42",
        "oar.slice/oar-u1001.slice/oar-u1001-j42.slice",
        "pbs_jobs.service/jobid/42.pbs",
        "pbspro/42.pbs",
        "app.slice/imp-shell-0-fTE9HHdZvi3.service",
        "app.slice/shell-0-fTE9HHdZvi3.service",
        "user.slice/user-982.slice/user@982.service/app.slice/imp-shell-0-fTE9HHdZvi3.service",
        "user.slice/user-1001.slice/user@1001.service/app.slice/x.scope",
        "run-r1.scope",
    ];
    let mut found_some = 0;
    for end in ends {
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            let path = format!("{own}/{end}");
            let DirectoryRole::Job(found) = layouts.role_of(version, &path) else { continue };
            found_some += 1;
            assert_eq!((&found.owner, found.uid, &found.user), (&PathOwner::Own(1000), Some(1000), &None), "{path}");
            assert!(["systemd", "anywhere"].contains(&found.manager.as_str()), "{path}: {}", found.manager);
            assert!(found.level.ends_with("-u1000"), "{path}: {}", found.level);
            // And only where the directories belong to that user.
            let levels = path.split('/').count();
            let real: Vec<Ownership> = (0..levels).map(|level| owned(if level < 2 { 0 } else { 1000 })).collect();
            assert_eq!(agent.refuses(&found.owners, &real), None, "{path}");
            let other: Vec<Ownership> = (0..levels).map(|level| owned(if level < 2 { 0 } else { 1001 })).collect();
            assert_eq!(agent.refuses(&found.owners, &other), Some(2), "{path}");
        }
    }
    assert!(found_some >= 4, "{found_some}");
    // A user's tree at the root of the hierarchy.
    for path in [
        "slurm/uid_1001/job_42",
        "system.slice/slurmstepd.scope/job_42",
        "oar/anna_42",
        "oar.slice/oar-u1001.slice/oar-u1001-j42.slice",
        "pbs_jobs.service/jobid/42.pbs",
        "user.slice/user-982.slice/user@982.service/app.slice/imp-shell-0-fTE9HHdZvi3.service",
    ] {
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            let DirectoryRole::Job(found) = layouts.role_of(version, path) else { continue };
            for from in 0..path.split('/').count() {
                let owners: Vec<Ownership> =
                    (0..path.split('/').count()).map(|level| owned(if level < from { 0 } else { 1000 })).collect();
                let last = from + 1 == owners.len() && found.owners.last() == Some(&AllowedOwner::Anyone);
                assert_eq!(agent.refuses(&found.owners, &owners).is_none(), last, "{path} from {from}: {found:?}");
            }
        }
    }
}
