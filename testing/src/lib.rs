//! The harness of tests and benchmarks across crates. It starts the real programs as processes on an installation in a temporary directory, and
//! kills them with real signals.

pub mod cassandra;
pub mod cassandra_proxy;
pub mod cgroups;
pub mod conformance;
pub mod facility;
pub mod jobs;
pub mod probe;
pub mod publisher;
pub mod slurm;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

pub use wholegrain_testkit::checkout::root as checkout;
pub use wholegrain_testkit::{DEADLINE, Random, free_port, wait_for, wait_until};

/// Returns the path of a program of this workspace, built in the caller's profile.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the path of the running program");
    let folder = own.ancestors().find(|dir| dir.join(name).is_file());
    folder
        .unwrap_or_else(|| panic!("{name} is not built beside {}; run `cargo build --workspace`", own.display()))
        .join(name)
}

/// Lets all users enter and read a directory; temporary directories are private to their owner.
pub fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("the mode of a directory");
}

/// A process that is killed at the end of the test, also after a panic.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` and writes its output to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log).expect("a log file");
        let error = file.try_clone().expect("a second handle");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(error).spawn();
        Self { child: child.unwrap_or_else(|e| panic!("starting {command:?}: {e}")), log: log.to_owned() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for, so that its number still refers to it.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("the end of a killed process");
    }

    /// Sends SIGTERM and waits for the end within [`DEADLINE`].
    #[track_caller]
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.wait()
    }

    /// Waits for the end within [`DEADLINE`].
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the end of a process", || {
            status = self.child.try_wait().expect("the state of a child");
            status.is_some()
        });
        status.expect("it ended")
    }

    /// Whether the process is running.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The path by which other processes reach the file that this process sees as `path`, if it has its own mounts.
    pub fn sees(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix("/").unwrap_or(path);
        PathBuf::from(format!("/proc/{}/root", self.child.id())).join(relative)
    }

    /// The output until now.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The CPU time until now, ns: user and system, all threads.
    pub fn cpu_ns(&self) -> u64 {
        let mut clock = 0;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both out-pointers are to live variables of the right type.
        let failed = unsafe {
            libc::clock_getcpuclockid(self.child.id() as i32, &mut clock) != 0
                || libc::clock_gettime(clock, &mut time) != 0
        };
        assert!(!failed, "the processor time of a running child");
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// Reads a field of `/proc/<pid>/status` in kB, such as `VmRSS`.
    pub fn status_kb(&self, field: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// The names of its threads, sorted.
    pub fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
        let mut names: Vec<String> = tasks.filter_map(name).map(|name| name.trim_end().to_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- the last lines of {}", self.log.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// An installation: certificates, token, configuration, data, and its own ports.
pub struct Site {
    folder: tempfile::TempDir,
    pub mqtt_port: u16,
    pub http_port: u16,
}

impl Site {
    /// Creates an installation with `wholegrain init`.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let site = Self { folder, mqtt_port: free_port(), http_port: free_port() };
        let (mqtt, http) = (site.mqtt_port.to_string(), site.http_port.to_string());
        let output = site.command(&["init", "--mqtt-port", &mqtt, "--http-port", &http]).arg(site.dir()).output();
        let output = output.expect("wholegrain init");
        assert!(output.status.success(), "wholegrain init: {}", String::from_utf8_lossy(&output.stderr));
        site
    }

    /// The directory of the installation.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a path within the directory.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    /// Returns the `wholegrain` command with the installation's client configuration.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("wholegrain"));
        command.args(arguments).env("WHOLEGRAIN_CLIENT", self.path("client.toml")).stdin(Stdio::null());
        command
    }

    /// Runs `wholegrain` with arguments to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("running wholegrain")
    }

    /// Runs `wholegrain` and returns its output; panics if it fails.
    #[track_caller]
    pub fn answer(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "wholegrain {arguments:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Changes a setting in a generated file: the first line that begins with `key =` below `[table]` gets `value`, or is added.
    pub fn set(&self, file: &str, table: &str, key: &str, value: &str) {
        let path = self.path(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (head, wanted, line) = (format!("[{table}]"), format!("{key} ="), format!("{key} = {value}"));
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let start = match lines.iter().position(|l| l.trim() == head) {
            Some(at) => at + 1,
            None if table.is_empty() => 0,
            None => {
                lines.extend([String::new(), head]);
                lines.len()
            }
        };
        let end = lines[start..].iter().position(|l| l.starts_with('[')).map_or(lines.len(), |at| start + at);
        match lines[start..end].iter().position(|l| l.trim_start().starts_with(&wanted)) {
            Some(at) => lines[start + at] = line,
            None => lines.insert(start, line),
        }
        std::fs::write(&path, lines.join("\n") + "\n").expect("a writable configuration");
    }

    /// Starts the server and waits until it answers.
    #[track_caller]
    pub fn start_server(&self) -> Process {
        let config = self.path("server/server.toml");
        let mut command = self.command(&["server", "--config"]);
        let mut server = Process::start(command.arg(config), &self.path("server.log"));
        wait_until("the server answers", || {
            assert!(server.runs(), "the server ended: {}", server.log());
            self.healthy()
        });
        server
    }

    /// Starts the server with its store on its own file system of `size` (as in `mount -o size`), and waits until it answers.
    #[track_caller]
    pub fn start_server_on_small_disk(&self, size: &str) -> Process {
        let mut command = self.on_small_disk(size, "server/store", &program("wholegrain"));
        let command = command.args(["server", "--config"]).arg(self.path("server/server.toml"));
        let mut server = Process::start(command, &self.path("server.log"));
        wait_until("the server answers", || {
            assert!(server.runs(), "the server ended: {}", server.log());
            self.healthy()
        });
        server
    }

    /// Returns a command that runs `program` with a memory file system of this size on the directory `dir` of the installation. Others reach its
    /// files through [`Process::sees`].
    pub fn on_small_disk(&self, size: &str, dir: &str, program: &Path) -> Command {
        let dir = self.path(dir);
        std::fs::create_dir_all(&dir).expect("a mount point");
        let script = format!("mount -t tmpfs -o size={size} none \"$0\" && exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", &script]).arg(dir).arg(program);
        command.env("WHOLEGRAIN_CLIENT", self.path("client.toml"));
        command
    }

    /// Whether the server answers a query now; independent of the number of sensors.
    pub fn healthy(&self) -> bool {
        let output = self.run(&["sensors", "/no/sensor/of/this/path", "--format", "json"]);
        matches!(output.status.code(), Some(0 | 1))
    }

    /// Starts the agent with the installation's configuration.
    pub fn start_agent(&self) -> Process {
        let mut command = Command::new(program("wholegrain-agent"));
        Process::start(command.arg("--config").arg(self.path("agent/agent.toml")), &self.path("agent.log"))
    }

    /// Issues an agent's certificate; returns the paths of certificate and key.
    pub fn agent_certificate(&self, name: &str) -> (PathBuf, PathBuf) {
        wholegrain_server::init::issue_agent_certificate(self.dir(), name).expect("an agent's certificate")
    }

    /// Reads one of the server's own metrics; `name` is followed by a space or by its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics")?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// Returns the JSON response of the server's API to a path with its query.
    pub fn api(&self, path: &str) -> Option<serde_json::Value> {
        serde_json::from_str(&self.get(path)?).ok()
    }

    /// Requests a path with curl; `None` if the server does not answer or returns an error.
    fn get(&self, path: &str) -> Option<String> {
        let token = std::fs::read_to_string(self.path("token")).ok()?;
        let output = Command::new("curl")
            .args(["--silent", "--fail", "--globoff", "--max-time", "10", "--cacert"])
            .arg(self.path("ca.pem"))
            .arg("--header")
            .arg(format!("Authorization: Bearer {}", token.trim()))
            .arg(format!("https://localhost:{}{path}", self.http_port))
            .output()
            .ok()?;
        output.status.success().then(|| String::from_utf8(output.stdout).ok()).flatten()
    }
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs a Python program of `testing/python` with the tests' interpreter; returns its output.
#[track_caller]
pub fn python(script: &str, arguments: &[&Path]) -> String {
    let interpreter = checkout().join(".venv/bin/python");
    assert!(interpreter.exists(), "{} is missing: `make prepare` installs it", interpreter.display());
    let output = Command::new(interpreter)
        .arg(checkout().join("testing/python").join(script))
        .args(arguments)
        .output()
        .expect("python");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}
