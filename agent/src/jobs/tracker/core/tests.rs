use wholegrain_model::job::STEPS_MAX;

use super::*;
use crate::jobs::tracker::TrackerConfig;

const S: u64 = 1_000_000_000;
/// The begin of the simulated day, ns since the Unix epoch.
const START: i64 = 1_700_000_000_000_000_000;

/// A core with simulated time and directories.
struct Sim {
    core: TrackerCore,
    mono: u64,
    inode: u64,
    /// All existing directories of jobs with their facts.
    tree: BTreeMap<DirId, DirectoryStamp>,
    events: Vec<String>,
    updates: Vec<JobRecord>,
}

impl Sim {
    fn new(earlier: Vec<EarlierRecord>) -> Self {
        let config = TrackerConfig {
            managers: ["slurm", "oar", "pbs", "systemd"].map(str::to_owned).to_vec(),
            units: vec!["run-*.scope".to_owned()],
            ..TrackerConfig::default()
        };
        let node = NodeFacts { name: "n1".to_owned(), prefix: "/n1".to_owned() };
        let mut core = TrackerCore::new(&config, node, earlier);
        for (number, name) in ["cpuacct", "memory", "freezer", "pids"].into_iter().enumerate() {
            let root = PathBuf::from("/cg").join(name);
            let controllers = vec![name.to_owned()];
            assert_eq!(core.hierarchy(CgroupHierarchy { root, version: CgroupVersion::V1, controllers }), number);
        }
        core.hierarchy(CgroupHierarchy {
            root: "/cg/unified".into(),
            version: CgroupVersion::V2,
            controllers: Vec::new(),
        });
        let mut sim = Self { core, mono: 1, inode: 100, tree: BTreeMap::new(), events: vec![], updates: vec![] };
        sim.flush();
        sim
    }

    fn now(&self) -> TrackerTime {
        TrackerTime { real: START + self.mono as i64, mono: self.mono }
    }

    fn flush(&mut self) {
        let (events, updates) = self.core.flush(self.now());
        for event in events {
            let (what, job) = match &event {
                JobEvent::Began(job) => ("began", job),
                JobEvent::Changed(job) => ("changed", job),
                JobEvent::Ended(job) => ("ended", job),
            };
            self.events.push(format!("{what} {}", job.record.level));
        }
        self.updates.extend(updates.into_iter().map(|updates| updates.record));
    }

    fn wait(&mut self, ns: u64) {
        self.mono += ns;
        self.flush();
    }

    /// Creates a directory; `notified` if the kernel sends an event for it.
    fn make(&mut self, hierarchy: usize, path: &str, announced: bool) {
        self.mono += 1_000;
        self.inode += 1;
        let dir = DirId::new(hierarchy, path);
        let stamp = DirectoryStamp { created: self.now().real, is_birth: false, inode: self.inode };
        if let DirectoryRole::Job(found) = self.core.role_of(&dir) {
            self.tree.insert(dir.clone(), stamp);
            if announced {
                self.core.created(dir, &found, stamp, self.now());
            }
        }
    }

    fn remove(&mut self, hierarchy: usize, path: &str, announced: bool) {
        self.mono += 1_000;
        let dir = DirId::new(hierarchy, path);
        self.tree.retain(|other, _| !other.is_within(&dir));
        if announced {
            self.core.removed(&dir, self.now());
        }
    }

    fn scan(&mut self) {
        let now = self.now();
        for (dir, stamp) in &self.tree {
            if let DirectoryRole::Job(found) = self.core.role_of(dir) {
                self.core.created(dir.clone(), &found, *stamp, now);
            }
        }
        self.core.scanned(&self.tree.keys().cloned().collect(), &[], now);
        self.flush();
    }

    #[track_caller]
    fn announced(&mut self, expected: &[&str]) {
        self.flush();
        assert_eq!(std::mem::take(&mut self.events), expected);
    }

    fn last(&self) -> &JobRecord {
        self.updates.last().expect("a record")
    }
}

const JOB: &str = "slurm/uid_1000/job_42";
const JOB_V2: &str = "system.slice/slurmstepd.scope/job_42";

#[test]
fn one_job_across_controllers_that_vanish_one_by_one() {
    let mut sim = Sim::new(vec![]);
    for hierarchy in [2, 0, 1] {
        sim.make(hierarchy, JOB, true);
    }
    sim.announced(&["began 42"]);
    let record = sim.last().clone();
    assert_eq!((record.from, record.uid, record.revision), (START + 1_001, Some(1000), 1));
    sim.make(3, JOB, true);
    sim.make(4, JOB_V2, true);
    sim.announced(&[]);
    sim.wait(CHANGE_DELAY_NS);
    sim.announced(&["changed 42"]);
    let cgroups = sim.core.jobs().next().unwrap().1.cgroups.clone();
    assert_eq!(cgroups.v1.keys().collect::<Vec<_>>(), ["cpuacct", "freezer", "memory", "pids"]);
    assert!(cgroups.v2.is_some());
    for hierarchy in [1, 3, 0] {
        sim.remove(hierarchy, JOB, true);
        sim.wait(CHANGE_DELAY_NS);
        sim.announced(&["changed 42"]);
    }
    let cgroups = sim.core.jobs().next().unwrap().1.cgroups.clone();
    assert_eq!(cgroups.v1.keys().collect::<Vec<_>>(), ["freezer"]);
    sim.remove(4, JOB_V2, true);
    sim.announced(&["ended 42"]);
    assert_eq!(sim.last().to, Some(sim.now().real));
    // The freezer remains, and is no new job, however often it is found.
    sim.scan();
    sim.scan();
    sim.announced(&[]);
    sim.remove(2, JOB, true);
    // The same id again is another record.
    sim.make(2, JOB, true);
    sim.announced(&["began 42"]);
    assert!(sim.last().from > record.from && sim.last().to.is_none());
    assert!(sim.core.leftovers.is_empty());
}

#[test]
fn a_job_without_accounting_ends_with_its_last_directory() {
    let mut sim = Sim::new(vec![]);
    sim.make(2, JOB, true);
    sim.announced(&["began 42"]);
    sim.remove(2, "slurm/uid_1000", true);
    sim.announced(&["ended 42"]);
}

#[test]
fn what_inotify_lost_a_scan_repairs() {
    let mut sim = Sim::new(vec![]);
    sim.make(0, JOB, false);
    sim.make(1, JOB, false);
    sim.scan();
    sim.announced(&["began 42"]);
    // Removed and created again between two scans: two jobs, not one.
    for hierarchy in [0, 1] {
        sim.remove(hierarchy, JOB, false);
    }
    for hierarchy in [0, 1] {
        sim.make(hierarchy, JOB, false);
    }
    sim.scan();
    sim.announced(&["ended 42", "began 42"]);
    let froms: BTreeSet<i64> = sim.updates.iter().map(|record| record.from).collect();
    assert_eq!(froms.len(), 2);
    // An unreadable directory is not removed.
    let seen = BTreeSet::new();
    sim.core.scanned(&seen, &[DirId::new(0, "slurm"), DirId::new(1, "")], sim.now());
    sim.announced(&[]);
    sim.core.scanned(&seen, &[DirId::new(0, "slurm")], sim.now());
    sim.announced(&[]);
    sim.core.scanned(&seen, &[], sim.now());
    sim.announced(&["ended 42"]);
}

#[test]
fn the_same_id_again_has_all_directories_that_account() {
    // Created again before the end of the first job was noticed; or never removed, and used again.
    for is_new_directory in [true, false] {
        let mut sim = Sim::new(vec![]);
        for hierarchy in [0, 1, 2] {
            sim.make(hierarchy, JOB, true);
        }
        sim.announced(&["began 42"]);
        sim.remove(0, JOB, false);
        if is_new_directory {
            sim.remove(1, JOB, true);
            sim.make(1, JOB, true);
        }
        sim.make(0, JOB, true);
        sim.announced(&["ended 42", "began 42"]);
        let second = sim.last().clone();
        assert_eq!(second.from, sim.now().real, "not the first one's");
        let cgroups = sim.core.jobs().next().unwrap().1.cgroups.clone();
        assert_eq!(cgroups.v1.keys().collect::<Vec<_>>(), ["cpuacct", "memory"]);
        sim.scan();
        sim.remove(0, JOB, true);
        sim.wait(CHANGE_DELAY_NS);
        sim.announced(&["changed 42"]);
        sim.remove(1, JOB, true);
        sim.announced(&["ended 42"]);
        assert_eq!(sim.last().from, second.from);
        sim.scan();
        sim.announced(&[]);
    }
    // A directory that stayed unnoticed belongs to the second job until the next scan at most.
    let mut sim = Sim::new(vec![]);
    sim.make(0, JOB, true);
    sim.make(1, JOB, true);
    sim.remove(1, JOB, false);
    sim.remove(0, JOB, false);
    sim.make(0, JOB, true);
    sim.scan();
    let cgroups = sim.core.jobs().next().unwrap().1.cgroups.clone();
    assert_eq!(cgroups.v1.keys().collect::<Vec<_>>(), ["cpuacct"]);
    sim.announced(&["began 42", "ended 42", "began 42"]);
    sim.remove(0, JOB, true);
    sim.announced(&["ended 42"]);
}

#[test]
fn old_news_of_a_directory_that_is_known_is_no_second_job() {
    let mut sim = Sim::new(vec![]);
    sim.make(0, JOB, true);
    sim.announced(&["began 42"]);
    // A scan found it first; it no longer exists when the event of its creation arrives.
    let DirectoryRole::Job(found) = sim.core.role_of(&DirId::new(0, JOB)) else { panic!() };
    let gone = DirectoryStamp { created: sim.now().real, ..DirectoryStamp::default() };
    sim.core.created(DirId::new(0, JOB), &found, gone, sim.now());
    sim.announced(&[]);
    sim.remove(0, JOB, true);
    sim.announced(&["ended 42"]);
    assert_eq!(sim.updates.iter().map(|record| record.from).collect::<BTreeSet<_>>().len(), 1);
}

#[test]
fn steps_come_and_go_with_bounds() {
    let mut sim = Sim::new(vec![]);
    sim.make(0, JOB, true);
    sim.make(1, JOB, true);
    sim.announced(&["began 42"]);
    let step = format!("{JOB}/step_0");
    for hierarchy in [0, 1] {
        sim.make(hierarchy, &step, true);
        sim.make(hierarchy, &format!("{step}/task_0"), true);
    }
    sim.wait(STEPS_DELAY_NS);
    sim.announced(&["changed 42"]);
    let names: Vec<&str> = sim.last().steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["step_0", "step_0/task_0"]);
    sim.remove(0, &format!("{step}/task_0"), true);
    sim.remove(1, &format!("{step}/task_0"), true);
    sim.wait(STEPS_DELAY_NS);
    assert_eq!(sim.last().steps.iter().map(|step| step.to.is_some()).collect::<Vec<_>>(), [false, true]);
    for number in 1..2000 {
        sim.make(0, &format!("{JOB}/step_{number}"), true);
    }
    sim.remove(0, JOB, true);
    sim.remove(1, JOB, true);
    sim.flush();
    let record = sim.last();
    assert_eq!((record.steps.len(), record.steps_dropped), (STEPS_MAX, 2001 - STEPS_MAX as u64));
    assert!(record.steps.iter().all(|step| step.to.is_some()));
    assert!(sim.updates.len() < 10, "a thousand steps are few records: {}", sim.updates.len());
    assert!(serde_json::to_vec(record).unwrap().len() < wholegrain_model::job::JOB_RECORD_BYTES_MAX);
}

#[test]
fn looks_double_their_pause_and_at_what_is_empty_are_a_second_apart() {
    let ages = |has_processes: bool| {
        let mut sim = Sim::new(vec![]);
        sim.make(0, JOB, true);
        let begin = sim.mono;
        let mut ages = Vec::new();
        while sim.mono < begin + 20 * S {
            for key in sim.core.reads_due(sim.now()) {
                sim.core.apply_facts(&key, JobFacts { has_processes, ..JobFacts::default() }, sim.now());
                ages.push((sim.mono - begin) / 1_000_000);
            }
            sim.mono += 1_000_000;
        }
        ages
    };
    let full = ages(true);
    assert_eq!(full, [0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10120, 15120]);
    let empty = ages(false);
    assert_eq!((&empty[..9], empty[9], empty.len()), (&full[..9], 2280, 27));
}

#[test]
fn totals_travel_with_the_end_and_say_when_they_were_whole() {
    let mut sim = Sim::new(vec![]);
    sim.make(0, JOB, true);
    sim.announced(&["began 42"]);
    let key = sim.core.jobs().next().unwrap().0.clone();
    sim.core.apply_totals(&key, &TotalsByMetric::from([("cpu/usage", 1.0), ("memory/peak", 9.0)]), 77);
    sim.core.apply_totals(&key, &TotalsByMetric::from([("memory/peak", 5.0)]), 88);
    sim.wait(S);
    sim.announced(&[]);
    sim.remove(0, JOB, true);
    sim.announced(&["ended 42"]);
    let expected = BTreeMap::from([("cpu/usage".to_owned(), 1.0), ("memory/peak".to_owned(), 9.0)]);
    assert_eq!((&sim.last().totals, sim.last().totals_at), (&expected, Some(77)));
}

#[test]
fn the_agent_was_away() {
    let mut sim = Sim::new(vec![]);
    sim.make(0, JOB, true);
    sim.make(0, &format!("{JOB}/step_0"), true);
    sim.make(0, &format!("{JOB}/step_1"), true);
    sim.make(0, "slurm/uid_1000/job_43", true);
    sim.make(0, "slurm/uid_1000/job_44", true);
    sim.wait(2 * S);
    let seen = sim.now().real;
    let running = sim.core.running().into_iter().map(|updates| updates.record);
    let earlier: Vec<EarlierRecord> = running
        .map(|record| EarlierRecord {
            dirs: if record.job == "43" { vec![] } else { vec![("/gone".into(), 1)] },
            record,
            seen,
        })
        .collect();
    let before: BTreeMap<String, JobRecord> =
        earlier.iter().map(|earlier| (earlier.record.job.clone(), earlier.record.clone())).collect();
    let (tree, mono) = (std::mem::take(&mut sim.tree), sim.mono);
    let mut sim = Sim::new(earlier);
    (sim.tree, sim.mono, sim.inode) = (tree, mono + 60 * S, 1000);
    // The second job has ended, and its id runs again; the third ends between the read of its directory and the scan.
    sim.remove(0, "slurm/uid_1000/job_43", false);
    sim.make(0, "slurm/uid_1000/job_43", false);
    sim.remove(0, "slurm/uid_1000/job_44", false);
    sim.remove(0, &format!("{JOB}/step_0"), false);
    sim.scan();
    sim.core.close_lost_steps(seen, sim.now());
    sim.announced(&["began 42", "began 43"]);
    sim.wait(STEPS_DELAY_NS);
    let of = |job: &str| -> Vec<JobRecord> { sim.updates.iter().filter(|record| record.job == job).cloned().collect() };
    let first = of("42").pop().unwrap();
    assert_eq!((first.from, first.end_unseen, first.to), (before["42"].from, false, None));
    assert!(first.revision > before["42"].revision);
    assert_eq!(first.steps.iter().map(|step| step.to).collect::<Vec<_>>(), [Some(seen), None]);
    let [over, again] = &of("43")[..] else { panic!("{:?}", of("43")) };
    assert_eq!((over.from, over.to, over.end_unseen), (before["43"].from, Some(seen), true));
    assert!(again.from > seen && again.to.is_none() && again.level == "43");
    let third = of("44").pop().unwrap();
    assert_eq!((third.to, third.end_unseen), (Some(seen), true));
}

#[test]
fn hooks_before_while_and_after() {
    let hook = |text: &str| Hook::parse(&format!("manager=slurm\njob=42\n{text}")).unwrap();
    let mut sim = Sim::new(vec![]);
    sim.core.apply_hook(hook("name=first\n"), sim.now());
    sim.core.apply_hook(hook("name=a job\ndevices=gpu/1,gpu/0\n"), sim.now());
    sim.make(0, JOB, true);
    sim.announced(&["began 42"]);
    assert_eq!(sim.last().name.as_deref(), Some("a job"));
    assert_eq!(sim.last().devices, ["gpu/0", "gpu/1"]);
    sim.core.apply_hook(hook("partition=debug\n"), sim.now());
    sim.core.apply_hook(hook("partition=debug\n"), sim.now());
    sim.wait(CHANGE_DELAY_NS);
    sim.announced(&["changed 42"]);
    sim.remove(0, JOB, true);
    sim.announced(&["ended 42"]);
    let revision = sim.last().revision;
    sim.core.apply_hook(hook("account=lab\nended=1\n"), sim.now());
    sim.announced(&[]);
    let last = sim.last();
    assert_eq!((last.account.as_deref(), last.partition.as_deref()), (Some("lab"), Some("debug")));
    assert!(last.to.is_some() && last.revision == revision + 1);
    let updates = sim.updates.len();
    sim.wait(ended::EPILOG_NS + S);
    sim.core.apply_hook(hook("account=late\nended=1\n"), sim.now());
    sim.flush();
    assert_eq!(sim.updates.len(), updates, "by then its record is final");
    for job in 0..HOOKS_MAX + 10 {
        sim.core.apply_hook(Hook { manager: "slurm".into(), job: job.to_string(), ..Hook::default() }, sim.now());
    }
    assert_eq!(sim.core.hooks.len(), HOOKS_MAX);
}

#[test]
fn levels_are_each_jobs_own() {
    let mut sim = Sim::new(vec![]);
    sim.make(0, JOB, true);
    sim.make(0, "oar/alice_42", true);
    sim.make(0, "slurm_n2/uid_1000/job_42", true);
    sim.make(0, "pbs_jobs.service/jobid/42", true);
    sim.make(0, "pbs_jobs.service/jobid/4 2", true);
    sim.announced(&["began 42", "began 42-oar", "began 42-n2", "began 42-pbs", "began 4_2-2c083311"]);
    assert_eq!(sim.core.take_lookups(), BTreeSet::from([UserLookup::Uid(1000), UserLookup::User("alice".to_owned())]));
    sim.core.apply_name(&UserLookup::User("alice".to_owned()), 1001, "alice", sim.now());
    sim.core.apply_name(&UserLookup::Uid(1000), 1000, "bob", sim.now());
    sim.wait(CHANGE_DELAY_NS);
    let of = |level: &str| {
        let record = sim.updates.iter().rfind(|record| record.level == level);
        record.map(|record| (record.uid, record.user.as_deref()))
    };
    assert_eq!(of("42-oar"), Some((Some(1001), Some("alice"))));
    assert_eq!(of("42-n2"), Some((Some(1000), Some("bob"))));
    sim.remove(0, JOB, true);
    sim.make(0, "slurm_n3/uid_1000/job_42", true);
    sim.flush();
    assert_eq!(sim.last().level, "42", "free again");
}

#[test]
fn jobs_beyond_the_bound_are_counted() {
    let mut sim = Sim::new(vec![]);
    sim.core.bounds = JobBounds { jobs: 5, jobs_per_user: 3, ..JobBounds::default() };
    for job in 0..5 {
        sim.make(0, &format!("slurm/uid_1/job_{job}"), true);
    }
    assert_eq!((sim.core.jobs().count(), sim.core.skipped()), (3, 2), "of one user");
    for job in 0..5 {
        sim.make(0, &format!("slurm/uid_2/job_1{job}"), true);
    }
    assert_eq!((sim.core.jobs().count(), sim.core.skipped()), (5, 5), "of all");
    sim.remove(0, "slurm/uid_1/job_0", true);
    sim.core.reset_skipped();
    sim.make(0, "slurm/uid_2/job_12", true);
    assert_eq!((sim.core.jobs().count(), sim.core.skipped()), (5, 0), "another's end makes room");
}

#[test]
fn root_is_believed_late() {
    let mut sim = Sim::new(vec![]);
    sim.make(4, "system.slice/slurmstepd.scope/job_7", true);
    let key = sim.core.jobs().next().unwrap().0.clone();
    let facts = |uid| JobFacts { uid: Some(uid), cpus: Some("0-1".to_owned()), ..JobFacts::default() };
    sim.core.apply_facts(&key, facts(0), sim.now());
    assert_eq!(sim.core.job(&key).unwrap().record.uid, None);
    sim.mono += 2 * S;
    sim.core.apply_facts(&key, facts(0), sim.now());
    assert_eq!(sim.core.job(&key).unwrap().record.uid, Some(0));
    sim.core.apply_facts(&key, facts(1000), sim.now());
    sim.core.apply_facts(&key, facts(1001), sim.now());
    sim.core.apply_facts(&key, facts(0), sim.now());
    let job = sim.core.job(&key).unwrap();
    assert_eq!((job.record.uid, job.cgroups.uid, &job.cgroups.cpus[..]), (Some(1000), Some(1000), &[0, 1][..]));
}

/// Directories created and removed in any order, with or without events, with scans in between: after a last scan the core knows exactly the existing
/// ones, and the events of every job were in order.
#[test]
fn any_order_of_events_and_losses() {
    let clock = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
    println!("SEED={seed}");
    let mut state = seed | 1;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    let mut sim = Sim::new(vec![]);
    let mut announced = Vec::new();
    for _ in 0..20_000 {
        let hierarchy = random(4) as usize;
        let job = format!("slurm/uid_1000/job_{}", random(6));
        let path = match random(3) {
            0 => job.clone(),
            1 => format!("{job}/step_{}", random(3)),
            _ => format!("{job}/step_{}/task_0", random(3)),
        };
        let (loss, dir) = (random(4) == 0, DirId::new(hierarchy, &path));
        let parent = path.rsplit_once('/').map(|(parent, _)| DirId::new(hierarchy, parent));
        let has_parent = path == job || parent.is_some_and(|parent| sim.tree.contains_key(&parent));
        match random(20) {
            0..=9 if !sim.tree.contains_key(&dir) && has_parent => sim.make(hierarchy, &path, !loss),
            10..=17 if sim.tree.contains_key(&dir) => sim.remove(hierarchy, &path, !loss),
            18 => sim.wait(random(2 * S)),
            19 => sim.scan(),
            _ => {}
        }
        if random(3) == 0 {
            sim.flush();
        }
        announced.append(&mut sim.events);
    }
    // Directories that a job adopted in the first scan from one before it are known by their inodes after the second.
    for is_second in [false, true] {
        sim.scan();
        for (_, live) in sim.core.jobs() {
            for dir in live.dirs.iter().map(|(dir, _)| dir).chain(live.step_dirs()) {
                assert!(sim.tree.contains_key(dir), "{dir:?} is not there");
            }
        }
        // Remaining directories of ended jobs are no jobs; accounting ones are.
        let accounting = |dir: &DirId| dir.hierarchy != 2 && dir.path.matches('/').count() == 2;
        for (dir, stamp) in sim.tree.iter().filter(|(dir, _)| accounting(dir)) {
            let DirectoryRole::Job(found) = sim.core.role_of(dir) else { panic!("{dir:?}") };
            let live = sim.core.job(&JobKey::of(&found)).unwrap_or_else(|| panic!("{dir:?} is no job's"));
            let known = live.dirs.iter().find(|(known, _)| *known == dir).map(|(_, known)| known);
            let is_known = known.is_some_and(|known| known.inode == stamp.inode || known.inode == 0 && !is_second);
            assert!(is_known, "{dir:?} {stamp:?} {known:?}");
        }
        assert!(sim.core.leftovers.keys().all(|dir| dir.hierarchy == 2), "{:?}", sim.core.leftovers);
    }
    sim.tree.clear();
    sim.scan();
    announced.append(&mut sim.events);
    assert_eq!((sim.core.jobs().count(), sim.core.leftovers.len(), sim.core.reads.len()), (0, 0, 0));
    assert!(sim.core.changed.is_empty() && sim.core.levels.is_empty() && sim.core.begun.is_empty());
    let mut running = BTreeSet::new();
    for event in &announced {
        let (what, level) = event.split_once(' ').unwrap();
        match what {
            "began" => assert!(running.insert(level), "{event} twice"),
            "ended" => assert!(running.remove(level), "{event} without a beginning"),
            _ => assert!(running.contains(level), "{event}"),
        }
    }
    assert!(running.is_empty() && announced.len() > 100, "{running:?} {}", announced.len());
    let mut last: BTreeMap<(String, i64), &JobRecord> = BTreeMap::new();
    for record in &sim.updates {
        if let Some(before) = last.insert((record.job.clone(), record.from), record) {
            assert!(record.revision > before.revision && before.to.is_none_or(|to| record.to == Some(to)));
        }
    }
    assert!(last.values().all(|record| record.to.is_some() && record.steps.iter().all(|step| step.to.is_some())));
}

/// Two users with one id: each job has its own level, record and end, in any order.
#[track_caller]
fn two_owners(hierarchy: usize, first: &str, second: &str, levels: [&str; 2], owners: [&str; 2]) {
    for is_first_gone_first in [true, false] {
        let mut sim = Sim::new(vec![]);
        sim.make(hierarchy, first, true);
        sim.make(hierarchy, second, true);
        sim.announced(&[&format!("began {}", levels[0]), &format!("began {}", levels[1])]);
        let announced: Vec<(&str, &str)> =
            sim.updates.iter().map(|record| (record.level.as_str(), record.owner.as_str())).collect();
        assert_eq!(announced, [(levels[0], owners[0]), (levels[1], owners[1])]);
        assert!(!sim.updates[0].is_same(&JobRecord { from: sim.updates[0].from, ..sim.updates[1].clone() }));
        // An agent that starts again and finds them in the other order.
        let seen = sim.now().real;
        let earlier = sim
            .core
            .running()
            .into_iter()
            .map(|RecordUpdate { record, dirs }| EarlierRecord { record, dirs, seen })
            .collect();
        let (tree, mono) = (std::mem::take(&mut sim.tree), sim.mono);
        let mut sim = Sim::new(earlier);
        (sim.tree, sim.mono, sim.inode) = (tree, mono + S, 1000);
        let order: Vec<(DirId, DirectoryStamp)> =
            sim.tree.iter().map(|(dir, stamp)| (dir.clone(), *stamp)).rev().collect();
        for (dir, stamp) in order {
            let DirectoryRole::Job(found) = sim.core.role_of(&dir) else { panic!("{dir:?}") };
            sim.core.created(dir, &found, stamp, sim.now());
        }
        sim.scan();
        let began: BTreeSet<String> = std::mem::take(&mut sim.events).into_iter().collect();
        assert_eq!(
            began,
            levels.iter().map(|level| format!("began {level}")).collect(),
            "nothing ended or began again"
        );
        let again: BTreeMap<&str, &str> =
            sim.updates.iter().map(|record| (record.level.as_str(), record.owner.as_str())).collect();
        assert_eq!(
            again,
            BTreeMap::from([(levels[0], owners[0]), (levels[1], owners[1])]),
            "nobody's took another's place"
        );
        let (goes, stays) = if is_first_gone_first { (0, 1) } else { (1, 0) };
        let paths = [first, second];
        sim.remove(hierarchy, paths[goes], true);
        sim.announced(&[&format!("ended {}", levels[goes])]);
        assert_eq!(sim.last().owner, owners[goes]);
        sim.wait(S);
        sim.scan();
        sim.announced(&[]);
        let left: Vec<&LiveJob> = sim.core.jobs().map(|(_, live)| live).collect();
        assert_eq!((left.len(), left[0].record.level.as_str()), (1, levels[stays]));
        let path = PathBuf::from(paths[stays]);
        let cgroups = &left[0].cgroups;
        assert!(cgroups.v2.iter().chain(cgroups.v1.values()).all(|dir| dir.ends_with(&path)), "{cgroups:?}");
        // A job that begins again does not get the level of the one that stays.
        sim.make(hierarchy, paths[goes], true);
        sim.flush();
        assert_eq!((sim.last().level.as_str(), sim.last().owner.as_str()), (levels[goes], owners[goes]));
    }
}

#[test]
fn one_id_of_two_users() {
    let (jobs, user) = ("slurm/uid", |uid: u32| format!("user.slice/user-{uid}.slice/user@{uid}.service/app.slice"));
    let slurm = [1000, 1001].map(|uid| format!("{jobs}_{uid}/job_42"));
    two_owners(0, &slurm[0], &slurm[1], ["42", "42-u1001"], ["uid:1000", "uid:1001"]);
    two_owners(0, "oar/anna_42", "oar/bert_42", ["42", "42-bert"], ["user:anna", "user:bert"]);
    let oar = [1000, 1001].map(|uid| format!("oar.slice/oar-u{uid}.slice/oar-u{uid}-j42.slice"));
    two_owners(4, &oar[0], &oar[1], ["42", "42-u1001"], ["uid:1000", "uid:1001"]);
    let units = [1000, 1001].map(|uid| format!("{}/run-r1.scope", user(uid)));
    let levels = ["run-r1.scope-u1000", "run-r1.scope-u1001"];
    two_owners(4, &units[0], &units[1], levels, ["own:1000", "own:1001"]);
    let with_root = format!("system.slice/{}", "run-r1.scope");
    two_owners(4, &with_root, &units[0], ["run-r1.scope", "run-r1.scope-u1000"], ["", "own:1000"]);
    // PBS, Flux and Slurm in the unified hierarchy have an id once on a node, and directories that users create are not theirs.
    let mut sim = Sim::new(vec![]);
    sim.make(0, "pbs_jobs.service/jobid/42.pbs", true);
    sim.make(4, JOB_V2, true);
    sim.announced(&["began 42.pbs", "began 42"]);
    for forged in ["pbs_jobs.service/jobid/42.pbs", JOB_V2, "oar/anna_42", "slurm/uid_1001/job_42"] {
        for hierarchy in [0, 4] {
            sim.make(hierarchy, &format!("{}/{forged}", user(1001)), true);
            sim.remove(hierarchy, &user(1001), true);
        }
    }
    sim.wait(S);
    sim.announced(&[]);
}

#[test]
fn a_hook_is_of_its_own_users_job_alone() {
    let mut sim = Sim::new(vec![]);
    sim.core.apply_hook(Hook::parse("manager=slurm\njob=42\nuid=1001\nname=second\n").unwrap(), sim.now());
    sim.core.apply_hook(Hook::parse("manager=slurm\njob=42\nuid=1000\nname=first\n").unwrap(), sim.now());
    sim.make(0, JOB, true);
    sim.flush();
    assert_eq!(sim.last().name.as_deref(), Some("first"));
    sim.make(0, "slurm/uid_1001/job_42", true);
    sim.flush();
    assert_eq!((sim.last().uid, sim.last().name.as_deref()), (Some(1001), Some("second")));
    sim.core.apply_hook(Hook::parse("manager=slurm\njob=42\nuid=1000\naccount=lab\n").unwrap(), sim.now());
    sim.wait(S);
    let accounts: Vec<Option<&str>> = sim.core.jobs().map(|(_, live)| live.record.account.as_deref()).collect();
    assert_eq!(accounts, [Some("lab"), None]);
}
