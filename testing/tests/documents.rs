//! Runs every command line in README.md and the documents on an installation that `wholegrain up --demo` started. Output must have the form that the
//! document shows.
//!
//! - Input: fenced blocks and inline code of the documents in [`documents`].
//! - Output: a list of all commands that do not do what their document says.
//! - Never: a command skipped without a reason: [`NOT_RUN`] lists them, and an unused entry is an error.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wholegrain_testing::{DEADLINE, Process, checkout, free_port, program, wait_until};

/// The document with the commands by task.
const COMMANDS: &str = "docs/commands.md";
const COMMAND_TIME_MAX: Duration = Duration::from_secs(120);

/// Commands that are not run: the document, the beginning of the command, the reason.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "make ", "builds the programs or runs this very test"),
    (
        "docs/import-export.md",
        "python3 -c",
        "blocks of this machine's readings come after a minute; python_package.rs reads such files with DuckDB",
    ),
    (
        "docs/commands.md",
        "wholegrain auth user add node0042",
        "asks for a password on a terminal; cli/tests/security.rs has it",
    ),
    ("docs/commands.md", "wholegrain plugin new", "plugins.rs has it"),
    (
        "docs/commands.md",
        "wholegrain ctl plugin",
        "this machine's agent has no plug-in; the agent's plugins.rs has them",
    ),
    ("docs/scale-out.md", "wholegrain init --cassandra", "needs a Cassandra; cassandra.rs has it"),
    ("docs/demonstration.md", "wholegrain up --demo", "is what this test has started"),
    ("docs/devices.md", "wholegrain query --job`", "names the option"),
    ("docs/import-export.md", "wholegrain import`", "names the command"),
    ("docs/import-export.md", "wholegrain export`", "names the command"),
    ("docs/interoperability.md", "mosquitto_pub", "another program, with the name of a host; mqtt_clients.rs has it"),
    ("docs/interoperability.md", "curl ", "the name of a host; server's tests have the route"),
    ("docs/jobs.md", "wholegrain jobs stats ID", "a placeholder"),
    ("docs/jobs.md", "wholegrain jobs energy ID", "a placeholder"),
    (
        "docs/jobs.md",
        "wholegrain ctl rule add --job 4711",
        "this machine's agent has no such job; job_marks.rs and jobs.rs have it",
    ),
    ("docs/operation.md", "apt install", "installs on this machine; package.rs does so below a root of its own"),
    ("docs/operation.md", "chgrp ", "changes this machine; package.rs"),
    ("docs/operation.md", "systemctl ", "changes this machine"),
    ("docs/operation.md", "wholegrain init --system", "a placeholder; package.rs runs it"),
    ("docs/operation.md", "wholegrain query`", "names the command"),
    ("docs/operation.md", "wholegrain config lost --acknowledge ID", "a placeholder"),
    ("docs/operation.md", "wholegrain ctl`", "names the command"),
    (
        "docs/operation.md",
        "wholegrain config backup`",
        "its directory is on the next line; the block above has the command",
    ),
    (
        "docs/operation.md",
        "wholegrain config compact",
        "another test of this program's size: takes long beside a busy server; data.rs has it",
    ),
    ("docs/plugins.md", "make && make test", "plugins.rs runs it in the folder of `plugin new`"),
    (
        "docs/plugins.md",
        "wholegrain ctl plugin",
        "this machine's agent has no plug-in; the agent's plugins.rs has them",
    ),
    ("docs/prometheus.md", "wholegrain query`", "names the command"),
    ("docs/sums.md", "wholegrain query --op delta --agg sum`", "names the options"),
    ("docs/sums.md", "wholegrain config sensor set PATTERN", "a placeholder"),
    ("docs/security.md", "wholegrain auth`", "names the command"),
    ("docs/security.md", "wholegrain auth user passwd`", "names the command"),
    ("docs/security.md", "wholegrain ca server`", "names the command"),
    ("docs/security.md", "wholegrain init`", "names the command"),
    ("docs/units.md", "wholegrain config sensor set`", "names the command"),
    (
        "docs/virtual-sensors.md",
        "wholegrain config virtual check",
        "query/tests/virtual_document.rs compares them word by word",
    ),
    ("docs/virtual-sensors.md", "wholegrain config virtual apply FILE", "a placeholder"),
];

/// Paths on a reader's machine, and their replacements in the test.
const PLACES: &[(&str, &str)] = &[
    ("/backup/wholegrain", "backup"),
    ("runuser -u wholegrain -- ", ""),
    ("--dir /var/lib/wholegrain/store", "--dir restored"),
    ("--dir /etc/wholegrain", "--dir var"),
];

/// Commands without an end: they must print something.
const ENDLESS: &[&str] = &["wholegrain watch"];

/// Commands with an exit code other than 0 in the test, and the reason.
const ENDS: &[(&str, i32, &str)] = &[("wholegrain ctl jobs", 1, "the agent of this machine sees no job")];

/// Files that commands of the documents read.
const FILES: &[(&str, &str)] = &[
    ("old.csv", "time,/demo/old/power\n2026-01-01T00:00:00Z,1\n2026-01-01T00:00:10Z,2\n"),
    ("hall.csv", "time,power,inlet\n2026-01-01T00:00:00Z,1,20.5\n2026-01-01T00:00:10Z,2,20.6\n"),
    (
        "meminfo.csv",
        "#Time,Time_usec,ProducerName,component_id,job_id,MemFree,MemTotal\n1767225600.000000,0,n1,1,0,5,9\n1767225601.000000,0,n1,1,0,6,9\n",
    ),
    ("properties.csv", "sensor,unit\n/demo/rack01/n001/power,W\n"),
];

/// A command line of a document.
#[derive(Debug, Clone)]
struct DocumentedCommand {
    document: String,
    line: usize,
    command: String,
    /// The output in the document; empty if it shows none.
    output: Vec<String>,
    /// Whether it is code within a line of prose or a table.
    inline: bool,
}

impl DocumentedCommand {
    fn at(&self) -> String {
        format!("{}:{}: {}", self.document, self.line, self.command)
    }
}

/// README.md, the documents except the journal, and those of the packages.
fn documents() -> Vec<String> {
    let mut all = vec!["README.md".to_owned()];
    for folder in ["docs", "packaging/hooks", "packaging/virtual"] {
        let mut names: Vec<String> = fs::read_dir(checkout().join(folder))
            .expect("a folder of documents")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .filter(|name| name.ends_with(".md"))
            .map(|name| format!("{folder}/{name}"))
            .collect();
        names.sort();
        all.extend(names);
    }
    all
}

/// The content of a block of this language: prompts and output, commands only, or neither.
fn is_shell(language: &str) -> bool {
    matches!(language, "" | "sh" | "bash" | "console")
}

/// Whether a line of a block without prompts is a command.
fn is_command(line: &str) -> bool {
    let programs =
        ["wholegrain", "make", "apt", "dnf", "curl", "mosquitto_pub", "systemctl", "chgrp", "runuser", "python3"];
    line.split_whitespace().next().is_some_and(|word| programs.contains(&word))
}

/// All commands that a document shows.
fn commands(document: &str) -> Vec<DocumentedCommand> {
    let text = fs::read_to_string(checkout().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"));
    let mut found: Vec<DocumentedCommand> = Vec::new();
    let mut language: Option<String> = None;
    let mut goes_on = false;
    for (number, line) in text.lines().enumerate() {
        let documented = |command: &str, inline| DocumentedCommand {
            document: document.to_owned(),
            line: number + 1,
            command: command.to_owned(),
            output: Vec::new(),
            inline,
        };
        if let Some(fence) = line.trim_start().strip_prefix("```") {
            language = if language.is_some() { None } else { Some(fence.trim().to_owned()) };
            goes_on = false;
        } else if let Some(language) = &language {
            if !is_shell(language) {
                continue;
            }
            let last = found.last_mut().filter(|last| !last.inline);
            match (line.strip_prefix("$ "), last) {
                (Some(command), _) => {
                    found.push(documented(command, false));
                    goes_on = true;
                }
                // A quotation that continues on the next line.
                (None, Some(last))
                    if goes_on
                        && last.output.is_empty()
                        && last.command.replace("\\\"", "").matches('"').count() % 2 == 1 =>
                {
                    last.command = format!("{}\n{line}", last.command);
                }
                (None, Some(last)) if goes_on => last.output.push(line.to_owned()),
                (None, _) if is_command(line) => found.push(documented(line, false)),
                (None, _) => {}
            }
        } else {
            let code = line.split('`').skip(1).step_by(2).map(str::trim);
            let code = code.filter(|code| code.starts_with("wholegrain "));
            found.extend(code.map(|code| documented(code, true)));
        }
    }
    found
}

/// The entry of [`NOT_RUN`] for a command. Names of commands end with a backtick there.
fn not_run(documented: &DocumentedCommand) -> Option<usize> {
    let command = if documented.inline { format!("{}`", documented.command) } else { documented.command.clone() };
    NOT_RUN.iter().position(|(document, begin, _)| *document == documented.document && command.starts_with(begin))
}

/// An installation with a small demonstration.
struct Demo {
    dir: tempfile::TempDir,
    _up: Process,
}

impl Demo {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in FILES {
            fs::write(dir.path().join(name), text).expect("a file");
        }
        let mut up = Command::new(program("wholegrain"));
        up.current_dir(dir.path()).env("HOME", dir.path()).env_remove("WHOLEGRAIN_CLIENT");
        up.args(["up", "--demo", "--demo-nodes", "16", "--demo-days", "2"]);
        up.args(["--http-port", &free_port().to_string(), "--mqtt-port", &free_port().to_string()]);
        let mut up = Process::start(&mut up, &dir.path().join("up.log"));
        let began = Instant::now();
        while !up.log().contains("Ctrl-C stops") {
            assert!(up.runs() && began.elapsed() < 3 * DEADLINE, "no demonstration: {}", up.log());
            std::thread::sleep(Duration::from_millis(100));
        }
        Self { dir, _up: up }
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("bash");
        let folder = program("wholegrain").parent().expect("a folder").display().to_string();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
        shell.args(["-o", "pipefail", "-c", command]).current_dir(self.dir.path()).env("PATH", path);
        shell.env("HOME", self.dir.path()).env_remove("WHOLEGRAIN_CLIENT").env("LC_ALL", "C.UTF-8");
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        shell
    }

    /// Runs a command to its end; returns exit code, standard output, standard error.
    fn run(&self, command: &str) -> (Option<i32>, String, String) {
        let mut child = self.shell(command).spawn().expect("bash");
        let mut stderr = child.stderr.take().expect("a pipe");
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            text
        });
        let mut stdout = child.stdout.take().expect("a pipe");
        let output = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stdout.read_to_end(&mut text);
            text
        });
        let deadline = Instant::now() + COMMAND_TIME_MAX;
        let status = loop {
            match child.try_wait().expect("bash") {
                Some(status) => break status.code(),
                None if Instant::now() > deadline => {
                    end(&mut child);
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (status, text(output.join().expect("a reader")), text(errors.join().expect("a reader")))
    }

    /// Whether a command without an end prints something.
    fn prints(&self, command: &str) -> bool {
        let mut child = self.shell(command).spawn().expect("bash");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(lines.next().is_some_and(|line| line.is_ok())));
        let printed = receiver.recv_timeout(DEADLINE).unwrap_or(false);
        end(&mut child);
        printed
    }

    /// Compares a command with its document; the error says what differs.
    fn check(&self, documented: &DocumentedCommand, places: &mut BTreeSet<usize>) -> Result<(), String> {
        let mut command = documented.command.clone();
        for (index, (from, to)) in PLACES.iter().enumerate().filter(|(_, (from, _))| documented.command.contains(from))
        {
            command = command.replace(from, to);
            places.insert(index);
        }
        if ENDLESS.iter().any(|begin| command.starts_with(begin)) {
            let printed = self.prints(&command);
            return if printed { Ok(()) } else { Err(format!("{}\n    prints nothing", documented.at())) };
        }
        let (code, output, errors) = self.run(&command);
        let expected = ENDS.iter().find(|(begin, _, _)| command.starts_with(begin)).map_or(0, |(_, code, _)| *code);
        if code != Some(expected) {
            return Err(format!("{}\n    ends with {code:?}: {}{}", documented.at(), last(&output), last(&errors)));
        }
        let (expected, found) = (form(&documented.output.join("\n")), form(&output));
        if documented.output.is_empty() || expected == found {
            return Ok(());
        }
        Err(format!("{}\n    prints {found:?}\n    where {expected:?} is documented", documented.at()))
    }
}

fn end(child: &mut Child) {
    // SAFETY: kill takes plain numbers; the group is that of a child that is not waited for yet.
    unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
    let _ = child.wait();
}

fn last(text: &str) -> String {
    text.lines().rev().take(4).map(|line| format!("\n      {line}")).collect()
}

/// The form of an output: the kinds of words in each line.
fn form(text: &str) -> Vec<String> {
    let kind = |word: &str| {
        if word.starts_with('/') {
            "PATH".to_owned()
        } else if word.parse::<f64>().is_ok() {
            "NUMBER".to_owned()
        } else if word.len() > 10 && word.starts_with("20") && word.contains('T') {
            "TIME".to_owned()
        } else {
            word.to_owned()
        }
    };
    text.lines().map(|line| line.split_whitespace().map(kind).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn every_command_in_the_documents_works_as_described() {
    let all: Vec<DocumentedCommand> = documents().iter().flat_map(|document| commands(document)).collect();
    let wholegrain = all.iter().filter(|documented| documented.command.starts_with("wholegrain ")).count();
    assert!(wholegrain > 80, "only {wholegrain} commands were found: is the test blind?");
    let exempt: BTreeSet<usize> = all.iter().filter_map(not_run).collect();
    let demo = Demo::start();
    // The example of rates in README.md needs three windows of five seconds.
    wait_until("a quarter of a minute of this machine's readings", || {
        demo.run("wholegrain query ctxt --op rate --every 5s --from -1m").1.lines().count() >= 3
    });
    let (mut places, mut wrong, mut done) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    let run = all.iter().filter(|documented| not_run(documented).is_none());
    // Runs each command once; the document with most changes comes last.
    let (changing, others): (Vec<&DocumentedCommand>, Vec<&DocumentedCommand>) =
        run.partition(|documented| documented.document == COMMANDS);
    let mut again = Vec::new();
    for documented in others.into_iter().chain(changing) {
        if done.insert((documented.command.clone(), documented.output.clone()))
            && demo.check(documented, &mut places).is_err()
        {
            again.push(documented);
        }
    }
    // Some commands read files that a later one writes, such as an export.
    wrong.extend(again.into_iter().filter_map(|documented| demo.check(documented, &mut places).err()));
    wrong.extend(
        (0..NOT_RUN.len())
            .filter(|at| !exempt.contains(at))
            .map(|at| format!("NOT_RUN: no document has {:?}", NOT_RUN[at])),
    );
    wrong.extend(
        (0..PLACES.len())
            .filter(|at| !places.contains(at))
            .map(|at| format!("PLACES: no command has {:?}", PLACES[at])),
    );
    assert!(wrong.is_empty(), "{} of {} commands:\n{}", wrong.len(), done.len(), wrong.join("\n"));
}

#[test]
fn commands_are_found_in_blocks_and_in_lines() {
    let of = |name: &str| commands(name);
    let readme = of("README.md");
    let find = |begin: &str| readme.iter().find(|documented| documented.command.starts_with(begin));
    assert_eq!(find("wholegrain query MemAvailable --from -1m").map(|documented| documented.output.len()), Some(4));
    let import_export = of("docs/import-export.md");
    let python = import_export.iter().find(|documented| documented.command.starts_with("python3 -c"));
    assert!(python.is_some_and(|documented| documented.command.ends_with(".show()\"") && documented.output.len() > 3));
    assert!(of(COMMANDS).iter().any(|documented| documented.inline && documented.command == "wholegrain ca list"));
    assert!(
        of("docs/units.md")
            .iter()
            .any(|documented| !documented.inline && documented.command.contains("sensor history"))
    );
    assert_eq!(form("/a/b  2026-11-21T11:01:13Z  306.4 1/s"), ["PATH TIME NUMBER 1/s"]);
}
