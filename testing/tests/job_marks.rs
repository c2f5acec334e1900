//! The interface of applications: the C and Python libraries and the shell command, in processes of a real job (its own cgroup and user), with the
//! real agent and server.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use wholegrain_testing::{Process, Site, checkout, program, wait_until};

/// Users without an account.
const OWNER: u32 = 54_321;
const OTHER: u32 = 54_322;
/// The version 1 hierarchy that the tests use.
const HIERARCHY: &str = "/sys/fs/cgroup/pids";

/// The libraries and the test programs, built once for this file; every user may read and run them.
fn built() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        open(dir.path());
        let out = dir.path();
        let (source, tests) = (checkout().join("runtime/c"), checkout().join("testing/runtime"));
        // The Makefile builds the library with -Wall -Wextra -Werror -std=c99 -pedantic.
        run(Command::new("make").arg("-C").arg(&source).arg(format!("OUT={}", out.display())).arg("CC=gcc"));
        let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-I"];
        let link = |command: &mut Command, file: &str, to: &str| {
            let command = command.args(strict).arg(&source).arg(tests.join(file));
            run(command.arg(out.join("libwholegrain.a")).arg("-o").arg(out.join(to)).arg("-pthread"));
        };
        link(Command::new("gcc").arg("-std=c99"), "app.c", "app");
        link(Command::new("g++").arg("-std=c++98"), "app.cpp", "app-cpp");
        // Links with the shared library of `make install` and pkg-config.
        let installed = out.join("installed");
        let prefix = format!("PREFIX={}", installed.display());
        run(Command::new("make")
            .arg("-C")
            .arg(&source)
            .args(["install", "CC=gcc", "OUT=.", &prefix])
            .arg(format!("OUT={}/again", out.display())));
        let flags = [format!("-I{}/include", installed.display()), format!("-L{}/lib", installed.display())];
        let rpath = format!("-Wl,-rpath,{}/lib", installed.display());
        let mut shared = Command::new("gcc");
        run(shared.args(flags).arg(tests.join("app.c")).arg("-o").arg(out.join("app-shared")).args([
            "-lwholegrain",
            "-pthread",
            &rpath,
        ]));
        run(Command::new("cp").arg("-r").arg(checkout().join("runtime/python/wholegrain_runtime")).arg(out));
        run(Command::new("cp").arg(tests.join("app.py")).arg(out));
        run(Command::new("chmod").args(["-R", "a+rX"]).arg(out));
        dir
    });
    dir.path()
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn open(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// A cgroup below [`HIERARCHY`], removed with its subdirectories and processes.
struct Cgroup(PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        let below = |dir: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()).collect()
        };
        let mut all = vec![self.0.clone()];
        let mut at = 0;
        while at < all.len() {
            all.extend(below(&all[at]));
            at += 1;
        }
        for dir in all.iter().rev() {
            for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
                // SAFETY: takes integers only; the process is in a cgroup of this test.
                unsafe { libc::kill(pid.parse().unwrap_or(0), libc::SIGKILL) };
            }
            // A killed process leaves shortly after.
            let start = std::time::Instant::now();
            while fs::remove_dir(dir).is_err() && dir.exists() && start.elapsed().as_secs() < 5 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }
}

/// An agent that finds jobs below its own root, and its server.
struct Node {
    site: Site,
    root: Cgroup,
}

impl Node {
    fn new(name: &str, marks: &str) -> Self {
        let root = Cgroup(Path::new(HIERARCHY).join(format!("wg-{name}-{}", std::process::id())));
        fs::create_dir(&root.0).expect("a cgroup (the test needs root)");
        let site = Site::new();
        open(site.dir());
        let (certificate, key) = site.agent_certificate("n1");
        let root_name = root.0.file_name().expect("a name").to_string_lossy().into_owned();
        let config = format!(
            r#"name = "n1"
prefix = "/lab/n1"
[mqtt]
url = "mqtts://localhost:{port}"
ca = "{ca}"
cert = "{certificate}"
key = "{key}"
send_interval = "100ms"
[api]
socket = "{admin}"
[jobs]
socket = "{users}"
managers = []
hooks = ""
rescan = "1s"
[[jobs.pattern]]
name = "test"
path = "{root_name}/uid_(?<uid>\\d+)/job_(?<job>[^/]+)"
[[jobs.rule]]
metrics = ["**"]
every = "10ms"
[jobs.marks]
{marks}
[sources.cgroup]
"#,
            port = site.mqtt_port,
            ca = site.path("ca.pem").display(),
            certificate = certificate.display(),
            key = key.display(),
            admin = site.path("agent.sock").display(),
            users = site.path("jobs.sock").display(),
        );
        fs::write(site.path("n1.toml"), config).expect("a writable folder");
        Self { site, root }
    }

    fn start(&self) -> Process {
        let mut command = Command::new(program("wholegrain-agent"));
        let mut agent =
            Process::start(command.arg("--config").arg(self.site.path("n1.toml")), &self.site.path("n1.log"));
        wait_until("the users' socket", || {
            assert!(agent.runs(), "the agent ended: {}", agent.log());
            self.ctl_runs()
        });
        agent
    }

    fn ctl_runs(&self) -> bool {
        std::os::unix::net::UnixStream::connect(self.site.path("jobs.sock")).is_ok()
    }

    /// Creates the cgroup of a job.
    fn job(&self, id: &str, uid: u32) -> PathBuf {
        let dir = self.root.0.join(format!("uid_{uid}/job_{id}"));
        fs::create_dir_all(&dir).expect("a job's cgroup");
        dir
    }

    /// Returns a command that runs as a user, in a job or outside.
    fn command(&self, job: Option<&Path>, uid: u32, words: &[&str]) -> Command {
        let procs = job.map_or("/dev/null".into(), |job| job.join("cgroup.procs"));
        let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(procs);
        command.args(["setpriv", &ids[0], &ids[1], "--clear-groups", "--"]).args(words);
        command.env("WHOLEGRAIN_SOCKET", self.site.path("jobs.sock")).env("PYTHONPATH", built());
        command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir("/");
        command
    }

    #[track_caller]
    fn output(&self, job: Option<&Path>, uid: u32, words: &[&str]) -> Output {
        self.command(job, uid, words).stdin(Stdio::null()).output().expect("the command")
    }

    #[track_caller]
    fn answer(&self, job: Option<&Path>, uid: u32, words: &[&str]) -> String {
        let answer = run(self.command(job, uid, words).stdin(Stdio::null()));
        print!("{answer}");
        answer
    }

    /// The stored readings of a sensor of a job, in order of time.
    fn stored(&self, job: &str, name: &str) -> Vec<Value> {
        let sensor = format!("/lab/n1/job/{job}/{name}");
        let output = self.site.run(&["query", &sensor, "--from", "-1h", "--format", "json", "--limit", "1000000"]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON lines"));
        rows.map(|row| row["value"].clone()).collect()
    }

    #[track_caller]
    fn wait_stored(&self, job: &str, name: &str, expected: &[f64]) {
        wait_until(&format!("{name} = {expected:?} at the server"), || {
            let stored: Vec<f64> = self.stored(job, name).iter().filter_map(Value::as_f64).collect();
            stored == expected
        });
    }
}

fn tool(name: &str) -> String {
    built().join(name).display().to_string()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The interpreter that every user may run.
fn python() -> [String; 4] {
    let system = "/usr/bin/python3";
    let interpreter = if Path::new(system).exists() { system } else { "python3" };
    [interpreter.into(), "-W".into(), "error".into(), tool("app.py")]
}

fn words<'a>(head: &'a [String], rest: &[&'a str]) -> Vec<&'a str> {
    head.iter().map(String::as_str).chain(rest.iter().copied()).collect()
}

#[test]
fn every_library_marks_the_phases_of_its_job() {
    let node = Node::new("marks", "per_second = 1000\nburst = 1000");
    let mut server = node.site.start_server();
    let mut agent = node.start();
    let job = node.job("4711", OWNER);
    let own = Some(job.as_path());
    let out = node.answer(own, OWNER, &[&tool("app"), "threads"]);
    assert!(out.contains("good sent 104 dropped 0 connected 1") && out.contains("bad sent 104 dropped 7"), "{out}");
    // Depths are right for any order of threads: the rows of a name are in the order of events.
    let depths = |name: &str| -> Vec<i64> { node.stored("4711", name).iter().filter_map(Value::as_i64).collect() };
    wait_until("all rows of the threads", || depths("region/shared").len() == 40 && depths("region/main").len() == 2);
    assert!(
        depths("region/shared").windows(2).all(|pair| (pair[0] - pair[1]).abs() == 1),
        "{:?}",
        depths("region/shared")
    );
    assert_eq!((depths("region/shared").last(), depths("region/main")), (Some(&0), vec![1, 0]));
    assert_eq!(depths("region/one"), [1, 0].repeat(10));
    node.wait_stored("4711", "region/h\u{f6}he/a.b:c@0", &[1.0, 0.0]);
    assert_eq!(node.stored("4711", "app/progress").len(), 20);
    for program in ["app", "app-shared"] {
        let out = node.answer(own, OWNER, &[&tool(program), "fork"]);
        // The child's end of its parent's region has no effect; the parent's connection is its own.
        assert!(out.contains("child sent 2 dropped 1 connected 1") && out.contains("parent sent 2 dropped 0"), "{out}");
    }
    node.wait_stored("4711", "region/parent", &[1.0, 0.0, 1.0, 0.0]);
    node.wait_stored("4711", "region/child", &[1.0, 0.0, 1.0, 0.0]);
    node.answer(own, OWNER, &[&tool("app-cpp")]);
    node.wait_stored("4711", "region/cpp/part", &[1.0, 0.0]);
    node.wait_stored("4711", "region/cpp/all", &[1.0, 0.0]);
    node.wait_stored("4711", "app/cpp/value", &[2.5]);
    assert!(node.answer(own, OWNER, &words(&python(), &["marks"])).contains("done"));
    node.wait_stored("4711", "region/py/outer", &[1.0, 0.0]);
    node.wait_stored("4711", "region/py/failing", &[1.0, 0.0]);
    wait_until("both calls of the decorated function", || depths("region/py/decorated").len() == 4);
    // Shell: a region that outlives the command that began it, and one around a command, which ends with the command.
    let mark = tool("wholegrain-mark");
    for line in [&["begin", "step"][..], &["value", "residual", "1e-9", "1"], &["end", "step"]] {
        node.answer(own, OWNER, &words(std::slice::from_ref(&mark), line));
    }
    node.wait_stored("4711", "region/step", &[1.0, 0.0]);
    let status = node.output(own, OWNER, &[&mark, "run", "around", "sh", "-c", "exit 7"]).status;
    assert_eq!(status.code(), Some(7));
    node.wait_stored("4711", "region/around", &[1.0, 0.0]);
    let counted = node.answer(own, OWNER, &[&mark, "job"]);
    let numbers: Vec<u64> = counted.split(' ').skip(3).take(3).map(|word| word.parse().expect("a number")).collect();
    assert_eq!(numbers[1..], [0, 3], "dropped and refused: {counted}");
    // At the job's end its open region is closed, and its groups are removed.
    node.answer(own, OWNER, &[&mark, "begin", "open"]);
    fs::remove_dir(&job).expect("the job's end");
    node.wait_stored("4711", "region/open", &[1.0, 0.0]);
    wait_until("the end of the job's groups", || !groups(&node).contains("job/4711/"));
    assert!(agent.stop().success() && server.stop().success());
}

/// The agent's groups, as its API shows them to an administrator.
fn groups(node: &Node) -> String {
    let socket = node.site.path("agent.sock");
    run(Command::new("curl").args(["--silent", "--unix-socket"]).arg(socket).arg("http://agent/v1/groups"))
}

#[test]
fn access_to_values_and_marks_depends_on_the_owner() {
    let node = Node::new("who", "");
    let mut agent = node.start();
    let (first, second) = (node.job("1", OWNER), node.job("2", OTHER));
    let mark = tool("wholegrain-mark");
    for (job, uid, value) in [(&first, OWNER, "1"), (&second, OTHER, "2")] {
        for name in 0..20 {
            node.answer(Some(job), uid, &[&mark, "value", &format!("v{name:02}"), value, "By"]);
        }
    }
    // Users see only sensors of their own job, with any pattern.
    for pattern in ["**", "@/**", "/lab/n1/job/*/app/*", "v*"] {
        let out = node.answer(Some(&first), OWNER, &[&mark, "newest", pattern]);
        assert!(out.contains("/lab/n1/job/1/app/v00 ") && out.contains(" 1.0 By") && !out.contains("/job/2/"), "{out}");
    }
    let refused: &[(Option<&Path>, u32, &[&str], &str)] = &[
        (Some(&first), OWNER, &["newest", "/lab/n1/job/2/app/v00"], "is not a sensor of a running job of yours"),
        (Some(&first), OWNER, &["newest", "/lab/n1/agent/cpu"], "is not a sensor of a running job of yours"),
        (Some(&first), OWNER, &["newest", "/lab/n1/job/2/**"], "no sensor of a running job of yours matches"),
        (Some(&first), OWNER, &["--job", "2", "begin", "x"], "no job \"2\" of yours runs here"),
        (Some(&first), OTHER, &["begin", "x"], "is in job 1, which is not yours"),
        (Some(&first), OTHER, &["value", "v00", "9"], "is in job 1, which is not yours"),
        (None, OWNER, &["begin", "x"], "is in no running job that this agent knows"),
        (None, OTHER, &["--job", "1", "begin", "x"], "no job \"1\" of yours runs here"),
        (None, 54_323, &["newest", "**"], "no sensor of a running job of yours matches"),
        (Some(&first), OWNER, &["begin", "a//b"], "empty level"),
        (Some(&first), OWNER, &["value", "v00", "1", "s"], "another name"),
    ];
    for (job, uid, arguments, part) in refused {
        let output = node.output(*job, *uid, &words(std::slice::from_ref(&mark), arguments));
        let said = text(&output);
        assert!(
            output.status.code() == Some(1) && said.contains(part),
            "{arguments:?} of {uid}: {:?} {said}",
            output.status
        );
    }
    let out =
        node.answer(Some(&second), OTHER, &words(&python(), &["refused", "/lab/n1/job/1/app/v00", "/lab/n1/job/1/**"]));
    assert!(out.lines().count() == 2 && out.lines().all(|line| line.starts_with("refused: ")), "{out}");
    let values = node.answer(Some(&first), OWNER, &[&mark, "newest", "@/app/v00"]);
    assert!(values.contains(" 1.0 By"), "nobody else's value is there: {values}");
    // A process outside of the job but of its user; and root, who may do everything.
    node.answer(None, OWNER, &["env", "--", &mark, "--job", "1", "begin", "named"]);
    node.answer(None, 0, &[&mark, "newest", "/lab/n1/agent/cpu"]);
    node.answer(Some(&first), 0, &[&mark, "end", "named"]);
    let output = node.output(Some(&first), OWNER, &[&mark, "begin", "a b"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    // Metrics of the job that the agent samples, beside its own values.
    let metric = "@/pids/current";
    wait_until("a reading of a metric of the job", || {
        let output = node.output(Some(&first), OWNER, &[&mark, "newest", metric]);
        output.status.success() && text(&output).split(' ').nth(2).is_some_and(|value| value.parse() == Ok(1))
    });
    node.answer(Some(&first), OWNER, &[&mark, "sensors", "@/pids/*"]);
    // The time of a read is printed, not checked.
    node.answer(Some(&first), OWNER, &[&tool("latency"), "@/app/v00", "2000", "1000"]);
    node.answer(Some(&first), OWNER, &[&tool("latency"), "@/app/*", "2000", "1000"]);
    node.answer(Some(&first), OWNER, &words(&python(), &["latency", "2000", "@/app/v00"]));
    node.answer(Some(&first), OWNER, &words(&python(), &["latency", "2000", "@/app/*"]));
    assert!(agent.stop().success());
    let output = node.output(Some(&first), OWNER, &[&mark, "begin", "x"]);
    assert!(
        output.status.code() == Some(3) && text(&output).contains("cannot connect to the agent"),
        "{}",
        text(&output)
    );
    let output = node.output(Some(&first), OWNER, &[&mark, "run", "x", "echo", "it runs all the same"]);
    assert!(output.status.success() && text(&output).contains("it runs all the same"), "{}", text(&output));
}

#[test]
fn a_failed_selection_keeps_its_error() {
    // The command works without an agent and without a job.
    let run =
        |socket: &str| run(Command::new(tool("app")).args(["choose", "@/cpu/usage"]).env("WHOLEGRAIN_SOCKET", socket));
    let out = run("/nonexistent/jobs.sock");
    let why = "cannot connect to the agent: No such file or directory; does it run, and has it a [jobs] socket?";
    assert_eq!(out, format!("-1 {why}\n-1 {why}\n-1 7 is no selection\n"));
}

#[test]
fn an_application_outlives_its_agent() {
    let node = Node::new("outlives", "per_second = 1000\nburst = 1000");
    let job = node.job("7", OWNER);
    let mut command = node.command(Some(&job), OWNER, &[&tool("app"), "loop"]);
    // It starts without an agent.
    let mut child: Child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the application");
    let mark = tool("wholegrain-mark");
    let newest = |name: &str| -> Option<f64> {
        let output = node.output(Some(&job), OWNER, &[&mark, "newest", &format!("@/{name}")]);
        String::from_utf8_lossy(&output.stdout).split(' ').nth(2)?.parse().ok()
    };
    let mut last = 0.0;
    for round in 0..3 {
        let mut agent = node.start();
        wait_until("the region that is open all the time", || newest("region/long") == Some(1.0));
        wait_until("values after a start", || newest("app/step").is_some_and(|step| step > last));
        last = newest("app/step").expect("a value");
        if round < 2 {
            agent.kill();
            continue;
        }
        drop(child.stdin.take());
        wait_until("the end of the region", || newest("region/long") == Some(0.0));
        assert!(agent.stop().success());
    }
    let output = child.wait_with_output().expect("the end of the application");
    let out = text(&output);
    assert!(output.status.success() && out.contains("connected 1"), "{out}");
    let dropped: u64 =
        out.split("dropped ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).expect("a count");
    assert!(dropped > 0, "what was marked without an agent is counted: {out}");
}

#[test]
fn a_flood_of_marks_is_counted_and_affects_no_other_job() {
    let node = Node::new("flood", "per_second = 20\nburst = 100\nnames_max = 4");
    let mut agent = node.start();
    let (noisy, calm) = (node.job("noisy", OWNER), node.job("calm", OTHER));
    let mark = tool("wholegrain-mark");
    let mut floods: Vec<Child> = (0..4)
        .map(|_| {
            let mut command = node.command(Some(&noisy), OWNER, &[&tool("app"), "flood", "300000"]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("a flood")
        })
        .collect();
    let (before, mut marks) = (agent.cpu_ns(), 0);
    let start = std::time::Instant::now();
    while floods.iter_mut().any(|flood| flood.try_wait().expect("a child").is_none()) && marks < 60 {
        node.answer(Some(&calm), OTHER, &[&mark, "value", "quiet", &marks.to_string()]);
        marks += 1;
    }
    let share = (agent.cpu_ns() - before) as f64 / start.elapsed().as_nanos() as f64;
    println!("{marks} marks of the calm job beside the flood; the agent took {:.1} % of a processor", share * 100.0);
    for flood in floods {
        let out = text(&flood.wait_with_output().expect("the end of a flood"));
        print!("{out}");
        let count = |word: &str| -> u64 {
            let rest = out.split(&format!("{word} ")).nth(1).unwrap_or_default();
            rest.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        assert_eq!(count("sent") + count("dropped"), 300_000, "every mark is counted: {out}");
    }
    assert!(marks > 0);
    let counts = |job: &Path, uid: u32| -> Vec<u64> {
        let line = node.answer(Some(job), uid, &[&mark, "job"]);
        line.split(' ').skip(3).take(3).map(|word| word.parse().expect("a number")).collect()
    };
    assert_eq!(counts(&calm, OTHER), [marks, 0, 0], "the calm job has all its marks");
    let flooded = counts(&noisy, OWNER);
    let bound = 100 + 20 * (start.elapsed().as_secs() + 1) + 4;
    assert!(flooded[0] <= bound && flooded[1] > 0, "{flooded:?}, at most {bound}");
    let own = node.answer(None, 0, &[&mark, "newest", "/lab/n1/agent/marks_dropped", "/lab/n1/agent/missed_ticks"]);
    let shown: BTreeSet<&str> = own.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(shown.len(), 2, "{own}");
    assert!(agent.stop().success());
    let _ = std::io::stdout().flush();
}
