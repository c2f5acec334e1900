//! The scripts in packaging/hooks, run by a small POSIX shell, and the tracker that reads what they write.

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use super::*;

fn hooks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("packaging/hooks")
}

/// Runs a hook as a resource manager does: only with the manager's variables in the environment.
#[track_caller]
fn run(script: &Path, dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let start = Instant::now();
    let mut command = Command::new("dash");
    command.arg(script).args(args).env_clear().env("WHOLEGRAIN_HOOKS", dir).envs(env.iter().copied());
    let output = command.output().unwrap();
    println!("{}: {:?}", script.display(), start.elapsed());
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    output
}

const SLURM: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_JOB_UID", "1234"),
    ("SLURM_JOB_USER", "alice"),
    ("SLURM_JOB_PARTITION", "debug"),
    ("SLURM_JOB_NODELIST", "n[1-2]"),
    ("SLURM_JOB_GPUS", "0,3"),
];

#[test]
fn slurm_from_prolog_to_epilog() {
    let tree = Tree::new(&["cpuacct"]);
    let dir = tree.path("run/hooks");
    let config = TrackerConfig { hooks: Some(dir.clone()), ..config(Interval::from_ms(200)) };
    let tracked = Tracked::start(&config, &tree.roots(), None);
    let file = dir.join("slurm-4711");
    run(&hooks().join("slurm-prolog"), &dir, &[], SLURM);
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        "manager=slurm\njob=4711\nuid=1234\nuser=alice\npartition=debug\nnodes=n[1-2]\ndevices=gpu/0,gpu/3\n"
    );
    tree.make("cgroup/cpuacct/slurm/uid_1234/job_4711");
    let reported = tracked.job_with("4711", |job| job.record.partition.is_some());
    let record = &reported.record;
    assert_eq!((record.user.as_deref(), record.nodes.as_deref()), (Some("alice"), Some("n[1-2]")));
    assert_eq!(record.devices, ["gpu/0", "gpu/3"]);
    tree.remove("cgroup/cpuacct/slurm/uid_1234/job_4711");
    tracked.ended("4711");
    wait_until("the file to be removed", || !file.exists());
    // The epilog's facts are added to the record of the ended job.
    let env = [SLURM, &[("SLURM_JOB_NAME", "late"), ("SLURM_JOB_ACCOUNT", "lab")]].concat();
    run(&hooks().join("slurm-epilog"), &dir, &[], &env);
    wait_until("the epilog's news", || tracked.record("4711").is_some_and(|record| record.name.is_some()));
    let record = tracked.record("4711").unwrap();
    assert!(
        record.to.is_some() && record.account.as_deref() == Some("lab") && record.partition.as_deref() == Some("debug")
    );
    wait_until("the file to be removed", || !file.exists());
    tracked.tracker.stop();
}

/// The first prolog creates the directory of hooks, which is not watched yet.
#[test]
fn the_first_prolog_of_all_is_known_when_its_job_begins() {
    let tree = Tree::new(&["cpuacct"]);
    let dir = tree.path("run/hooks");
    let config = TrackerConfig { hooks: Some(dir.clone()), ..config(NO_RESCAN) };
    let tracked = Tracked::start(&config, &tree.roots(), None);
    tree.make("cgroup/cpuacct/slurm/uid_1234/job_1");
    tracked.began("1");
    run(&hooks().join("slurm-prolog"), &dir, &[], SLURM);
    tree.make("cgroup/cpuacct/slurm/uid_1234/job_4711");
    assert_eq!(tracked.began("4711").record.partition.as_deref(), Some("debug"));
    // From then on the directory is watched.
    run(&hooks().join("slurm-prolog"), &dir, &[], &[("SLURM_JOB_ID", "1"), ("SLURM_JOB_PARTITION", "later")]);
    tracked.changed("1", |job| job.record.partition.as_deref() == Some("later"));
    tracked.tracker.stop();
}

/// A node's first jobs can begin at the same time: each of their prologs finds no directory and creates it.
#[test]
fn prologs_that_begin_at_once_all_write() {
    let tree = Tree::new(&[]);
    for round in 0..10 {
        let dir = tree.path(&format!("run{round}/hooks"));
        let begin = |job: usize| {
            let mut prolog = Command::new("dash");
            prolog.arg(hooks().join("slurm-prolog")).env_clear().env("WHOLEGRAIN_HOOKS", &dir);
            prolog.env("SLURM_JOB_ID", job.to_string()).spawn().unwrap()
        };
        let mut prologs: Vec<_> = (0..8).map(begin).collect();
        assert!(prologs.iter_mut().all(|prolog| prolog.wait().unwrap().success()));
        let missing: Vec<usize> = (0..8).filter(|job| !dir.join(format!("slurm-{job}")).exists()).collect();
        assert!(missing.is_empty(), "round {round}: nothing was written of {missing:?}");
    }
}

#[test]
fn slurm_with_a_sluid() {
    let tree = Tree::new(&[]);
    tree.write("cgroup/cgroup.controllers", "cpu\n");
    let config = TrackerConfig { hooks: Some(tree.path("hooks")), ..config(Interval::from_ms(200)) };
    let tracked = Tracked::start(&config, &tree.roots(), None);
    tree.make("cgroup/system.slice/slurmstepd.scope/s0123456789ABC");
    tracked.began("s0123456789ABC");
    let env = [SLURM, &[("SLURM_JOB_SLUID", "s0123456789ABC"), ("SLURM_JOB_NAME", "n")]].concat();
    run(&hooks().join("slurm-prolog"), &tree.path("hooks"), &[], &env);
    let changed = tracked.changed("s0123456789ABC", |job| job.record.also.is_some());
    assert_eq!((changed.record.also.as_deref(), changed.record.uid), (Some("4711"), Some(1234)));
    tree.remove("cgroup/system.slice/slurmstepd.scope/s0123456789ABC");
    tracked.ended("s0123456789ABC");
    wait_until("the file to be removed", || !tree.path("hooks/slurm-4711").exists());
    tracked.tracker.stop();
}

#[test]
fn oar_from_prologue_to_epilogue() {
    let tree = Tree::new(&["cpuacct"]);
    let dir = tree.path("hooks");
    tree.write("nodes", "n1\nn1\nn2\nn2\n");
    let nodes = tree.path("nodes");
    let args = ["42", "alice", nodes.to_str().unwrap()];
    let env = [("OAR_JOB_NAME", "run 1"), ("OAR_PROJECT_NAME", "lab")];
    run(&hooks().join("oar-prologue"), &dir, &args, &env);
    let text = fs::read_to_string(dir.join("oar-42")).unwrap();
    assert_eq!(text, "manager=oar\njob=42\nuser=alice\nname=run 1\naccount=lab\nnodes=n1,n2\n");
    // A link or a file of the job's user could point to any file that root may read.
    std::os::unix::fs::symlink(&nodes, tree.path("link")).unwrap();
    run(&hooks().join("oar-prologue"), &dir, &["43", "alice", tree.path("link").to_str().unwrap()], &env);
    run(&hooks().join("oar-prologue"), &dir, &["44", "root", "/etc/passwd"], &env);
    for job in [43, 44] {
        let text = fs::read_to_string(dir.join(format!("oar-{job}"))).unwrap();
        assert!(!text.contains("nodes="), "{text}");
        fs::remove_file(dir.join(format!("oar-{job}"))).unwrap();
    }
    run(&hooks().join("oar-epilogue"), &dir, &args, &env);
    let again = fs::read_to_string(dir.join("oar-42")).unwrap();
    assert_eq!(again, format!("{text}{text}ended=1\n"));
    let config = TrackerConfig { hooks: Some(dir.clone()), ..config(Interval::from_ms(200)) };
    let tracked = Tracked::start(&config, &tree.roots(), None);
    wait_until("the file to be removed", || !dir.join("oar-42").exists());
    tracked.tracker.stop();
}

#[test]
fn hostile_names_are_text() {
    let tree = Tree::new(&[]);
    let dir = tree.path("hooks");
    let trap = tree.path("trap");
    let trap = trap.to_str().unwrap();
    let names = [
        format!("$(touch {trap})"),
        format!("`touch {trap}`"),
        format!("'; touch {trap}; '"),
        format!("\"; touch {trap} #"),
        "a\nuid=0\nmanager=pbs\n\tb\\n\\0101%s%n\u{7f}".to_owned(),
        "-n".to_owned(),
        "ü".repeat(5000),
        "*".to_owned(),
    ];
    for (number, name) in names.iter().enumerate() {
        let id = number.to_string();
        let env = [("SLURM_JOB_ID", id.as_str()), ("SLURM_JOB_NAME", name), ("SLURM_JOB_GPUS", name)];
        run(&hooks().join("slurm-prolog"), &dir, &[], &env);
        let text = fs::read(dir.join(format!("slurm-{id}"))).unwrap();
        let text = String::from_utf8_lossy(&text);
        let keys: Vec<&str> = text.lines().map(|line| line.split_once('=').expect("key=value").0).collect();
        assert!(["manager", "job", "name"] == keys[..3] && keys.len() <= 4, "{text:?}");
        assert!(text.len() < 2200, "{}", text.len());
    }
    assert!(!Path::new(trap).exists(), "a name was executed");
    let text = fs::read_to_string(dir.join("slurm-4")).unwrap();
    assert!(text.contains("name=a uid=0 manager=pbs  b\\n\\0101%s%n \n"), "{text:?}");
    for id in ["", "../../etc/passwd", "a/b", "a b", ".x", "$(id)"] {
        run(&hooks().join("slurm-prolog"), &dir, &[], &[("SLURM_JOB_ID", id)]);
    }
    let mut files: Vec<String> =
        fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, (0..names.len()).map(|number| format!("slurm-{number}")).collect::<Vec<_>>());
}

#[test]
fn nothing_holds_a_job_up() {
    let tree = Tree::new(&[]);
    tree.write("file", "");
    for script in ["slurm-prolog", "slurm-epilog", "oar-prologue", "oar-epilogue"] {
        // An impossible directory, no variables, a read-only file system.
        run(&hooks().join(script), &tree.path("file/hooks"), &["1"], SLURM);
        run(&hooks().join(script), &tree.path("none"), &[], &[]);
        run(&hooks().join(script), Path::new("/proc/1"), &["1"], SLURM);
        // Without the file that it reads.
        let copy = tree.path(script);
        fs::copy(hooks().join(script), &copy).unwrap();
        run(&copy, &tree.path("alone"), &["1"], SLURM);
    }
    assert!(!tree.path("alone").exists());
    // A hanging disk.
    let text = fs::read_to_string(hooks().join("hook.sh")).unwrap();
    let hanging = text.replace("umask 022", "exec sleep 1000");
    assert_ne!(text, hanging);
    tree.write("hook.sh", &hanging);
    let start = Instant::now();
    run(&tree.path("slurm-epilog"), &tree.path("hung"), &[], SLURM);
    assert!(start.elapsed() < Duration::from_secs(900), "it waited for the disk");
}

#[test]
fn what_others_write_is_not_believed() {
    let tree = Tree::new(&["cpuacct"]);
    let dir = tree.path("hooks");
    tree.write("hooks/slurm-1", "manager=slurm\njob=1\nuid=0\nname=mine\n");
    tree.write("hooks/slurm-2", "manager=slurm\njob=1\nname=open\n");
    tree.write("hooks/slurm-3", "manager=slurm\njob=1\npartition=good\n");
    let mode = |name: &str, mode: u32| fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
    mode("slurm-2", 0o622);
    std::os::unix::fs::chown(dir.join("slurm-1"), Some(54_321), None).unwrap();
    let config = TrackerConfig { hooks: Some(dir), ..config(NO_RESCAN) };
    let tracked = Tracked::start(&config, &tree.roots(), None);
    tree.make("cgroup/cpuacct/slurm/uid_7/job_1");
    let reported = tracked.job_with("1", |job| job.record.partition.is_some());
    assert_eq!((reported.record.uid, reported.record.name.as_deref()), (Some(7), None));
    tracked.tracker.stop();
}

/// Links at all names that a hook could write next, all to one file.
fn traps(dir: &Path, victim: &Path) {
    let link = |name: String| std::os::unix::fs::symlink(victim, dir.join(name)).unwrap();
    // The name ended with the number of the process.
    let next: u32 = fs::read_to_string("/proc/sys/kernel/ns_last_pid").unwrap().trim().parse().unwrap();
    (next..next + 3000).for_each(|pid| link(format!(".slurm-4711.{pid}")));
    link("slurm-4711".to_owned());
}

/// A past attack: the agent owned a directory that root's hooks write into, and made root write any file.
#[test]
fn a_hook_writes_through_no_link_and_into_no_directory_of_others() {
    // SAFETY: takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let tree = Tree::new(&[]);
    let victim = tree.path("victim");
    fs::write(&victim, "whole").unwrap();
    let scripts = ["slurm-prolog", "slurm-epilog"];
    let untouched = |what: &str| {
        assert_eq!(fs::read_to_string(&victim).unwrap(), "whole", "{what}");
        assert!(fs::symlink_metadata(&victim).unwrap().is_file(), "{what}");
    };
    let mode = |path: &str, mode: u32| fs::set_permissions(tree.path(path), fs::Permissions::from_mode(mode)).unwrap();
    // In a safe directory the links are not followed.
    tree.make("safe/hooks");
    traps(&tree.path("safe/hooks"), &victim);
    for script in scripts {
        run(&hooks().join(script), &tree.path("safe/hooks"), &[], SLURM);
        untouched("links in a directory of one's own");
    }
    let file = fs::symlink_metadata(tree.path("safe/hooks/slurm-4711")).unwrap();
    assert!(file.is_file() && file.permissions().mode() & 0o777 == 0o644, "the link was replaced");
    // A directory that others can write into, or rename.
    for open in ["open/hooks", "above/hooks"] {
        tree.make(open);
        traps(&tree.path(open), &victim);
        mode(if open == "above/hooks" { "above" } else { open }, 0o777);
        scripts.iter().for_each(|script| _ = run(&hooks().join(script), &tree.path(open), &[], SLURM));
        untouched(open);
        assert!(
            fs::symlink_metadata(tree.path(open).join("slurm-4711")).unwrap().is_symlink(),
            "{open}: nothing is written"
        );
    }
    // For a parent, the sticky bit is enough.
    tree.make("sticky/hooks");
    mode("sticky", 0o1777);
    run(&hooks().join("slurm-prolog"), &tree.path("sticky/hooks"), &[], SLURM);
    assert!(tree.path("sticky/hooks/slurm-4711").is_file());
    // A link on the path to a safe directory.
    tree.make("home");
    tree.make("home/hooks");
    std::os::unix::fs::symlink(tree.path("home"), tree.path("sticky/link")).unwrap();
    for through in ["sticky/link", "sticky/link/hooks", "sticky/link/new"] {
        scripts.iter().for_each(|script| _ = run(&hooks().join(script), &tree.path(through), &[], SLURM));
    }
    assert_eq!(fs::read_dir(tree.path("home")).unwrap().count(), 1, "nothing was written through the link");
    assert_eq!(fs::read_dir(tree.path("home/hooks")).unwrap().count(), 0);
    // A dangling link in place of the directory.
    tree.make("parent");
    std::os::unix::fs::symlink(tree.path("made"), tree.path("parent/hooks")).unwrap();
    run(&hooks().join("slurm-prolog"), &tree.path("parent/hooks"), &[], SLURM);
    assert!(!tree.path("made").exists());
    if !is_root {
        println!("not root: directories of other users are not tried");
        return;
    }
    for (dir, agents) in [("agent/hooks", "agent/hooks"), ("run/wholegrain/hooks", "run/wholegrain")] {
        tree.make(dir);
        traps(&tree.path(dir), &victim);
        std::os::unix::fs::chown(tree.path(agents), Some(54_321), Some(54_321)).unwrap();
        scripts.iter().for_each(|script| _ = run(&hooks().join(script), &tree.path(dir), &[], SLURM));
        untouched(dir);
        assert!(
            fs::symlink_metadata(tree.path(dir).join("slurm-4711")).unwrap().is_symlink(),
            "{dir}: nothing is written"
        );
    }
    // Nor is a missing directory created in another user's directory.
    std::os::unix::fs::chown(tree.path("parent"), Some(54_321), None).unwrap();
    run(&hooks().join("slurm-prolog"), &tree.path("parent/new/hooks"), &[], SLURM);
    assert!(!tree.path("parent/new").exists());
}

#[test]
fn an_epilog_removes_what_is_over() {
    let tree = Tree::new(&[]);
    for (name, text, minutes) in [
        ("slurm-1", "manager=slurm\njob=1\nended=1\n", 20),
        ("slurm-2", "manager=slurm\njob=2\nended=1\n", 1),
        ("slurm-3", "manager=slurm\njob=3\nname=ended=1 not\n", 20),
        ("slurm-4", "manager=slurm\njob=4\n", 50_000),
        (".slurm-5.abcdef", "half", 20),
        (".slurm-6.abcdef", "half", 1),
        ("not-of-hooks", "ended=1\n", 50_000),
        (".profile", "not of hooks", 20),
    ] {
        tree.write(&format!("hooks/{name}"), text);
        let then = std::time::SystemTime::now() - Duration::from_secs(minutes * 60);
        fs::File::options().write(true).open(tree.path("hooks").join(name)).unwrap().set_modified(then).unwrap();
    }
    run(&hooks().join("slurm-epilog"), &tree.path("hooks"), &[], SLURM);
    let names =
        fs::read_dir(tree.path("hooks")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(names, [".profile", ".slurm-6.abcdef", "not-of-hooks", "slurm-2", "slurm-3", "slurm-4711"]);
}
