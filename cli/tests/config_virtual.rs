//! Virtual sensors from the command line, with the real binary as server and as client; readings come over HTTP.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

struct Server {
    dir: tempfile::TempDir,
    process: Child,
    http: String,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = command(dir.path()).args(["init", "var", "--agent", "n1"]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let toml = dir.path().join("var/server/server.toml");
        let text = fs::read_to_string(&toml).unwrap();
        fs::write(&toml, text.replace("localhost:8883", "localhost:0").replace("localhost:8443", "localhost:0"))
            .unwrap();
        let mut server = command(dir.path());
        server.args(["server", "--config", "var/server/server.toml"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = server.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let listening = lines.find(|line| line.contains("listening for HTTPS on ")).unwrap();
        let http = listening.rsplit_once(':').unwrap().1.trim().to_owned();
        // Read on, or the server would block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let client = dir.path().join("var/client.toml");
        fs::write(&client, fs::read_to_string(&client).unwrap().replace(":8443", &format!(":{http}"))).unwrap();
        Self { dir, process, http }
    }

    /// Readings as InfluxDB's clients send them.
    fn write(&self, lines: &str) {
        let token = fs::read_to_string(self.dir.path().join("var/token")).unwrap();
        let token = token.lines().find(|line| !line.starts_with('#') && !line.is_empty()).unwrap().trim().to_owned();
        let sent = Command::new("curl")
            .args(["--silent", "--show-error", "--fail-with-body", "--max-time", "60", "--cacert", "var/ca.pem"])
            .args(["--header", &format!("Authorization: Bearer {token}"), "--data-binary", lines])
            .arg(format!("https://localhost:{}/write", self.http))
            .current_dir(self.dir.path())
            .output()
            .expect("Debian package curl");
        assert!(sent.status.success(), "{sent:?}");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = command(self.dir.path());
        command.args(["config", "virtual"]).args(arguments).output().unwrap()
    }

    /// Runs `config virtual …`, wants the exit code, and gives standard output and standard error.
    #[track_caller]
    fn says(&self, arguments: &[&str], code: i32) -> (String, String) {
        let output = self.run(arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{err}");
        (out, err)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain"));
    command.current_dir(dir).env("HOME", dir).env_remove("WHOLEGRAIN_CLIENT");
    command
}

/// A server that has heard of the power of two parts, and the place that they are below.
fn with_nodes() -> (Server, String) {
    let server = Server::start();
    server.write("a,hostname=n1 power=1500i\nb,hostname=n1 power=2500i");
    (server, "/n1".to_owned())
}

#[test]
fn defined_shown_and_removed() {
    let (server, place) = with_nodes();
    let (total, double) = (format!("{place}/total"), format!("{place}/*/double"));
    let sum = format!("sum(<{place}/*/power>)");
    assert_eq!(server.says(&["check", &total, &sum, "--unit", "1"], 0).1, format!("{total}: would be defined\n"));
    server.says(&["list"], 1);
    assert_eq!(server.says(&["define", &total, &sum, "--unit", "1"], 0).1, format!("{total}: defined\n"));
    let (_, said) = server.says(&["define", &double, "2 * <power>", "--unit", "1", "--interval", "1s"], 0);
    assert_eq!(said, format!("{double}: defined, 2 sensors\n"));
    let (_, said) = server.says(&["define", &total, &format!("{sum} +"), "--unit", "1"], 2);
    assert!(said.contains("found the end") && said.lines().any(|line| line.trim() == "^"), "{said}");
    let (listed, _) = server.says(&["list"], 0);
    assert!(listed.contains(&double) && listed.contains("2 * <power>"), "{listed}");
    let (listed, _) = server.says(&["list", "--json", &total], 0);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((listed["path"].as_str(), listed["expression"].as_str()), (Some(total.as_str()), Some(sum.as_str())));
    let (shown, _) = server.says(&["show", &double], 0);
    assert!(shown.contains("interval     1s") && shown.contains(&format!("{place}/b/double")), "{shown}");
    let (_, said) = server.says(&["remove", &total, "/nothing"], 2);
    assert!(said.contains("/nothing: this definition does not exist"), "{said}");
    let (said, _) = server.says(&["remove", &total, "--json"], 0);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&said).unwrap()["removed"], serde_json::json!([total]));
    let (history, _) = server.says(&["history", &total], 0);
    assert!(history.contains("(removed)") && history.lines().count() == 3, "{history}");
    server.says(&["show", &total], 1);
}

#[test]
fn files_are_applied_exported_and_pruned() {
    let (server, place) = with_nodes();
    let wanted = format!(
        "[[virtual]]\npath = \"{place}/total\"\nexpression = '''\nsum(\n  <*/power>)'''\nunit = \"1\"\n\
         [[virtual]]\npath = \"{place}/*/half\"\nexpression = \"<power> / 2\"\nunit = \"%\"\nmissing = \"skip\"\n"
    );
    let file = server.file("virtual.toml", &wanted);
    let (_, said) = server.says(&["apply", &file, "--dry-run"], 0);
    assert_eq!(said, format!("{place}/total: would be defined\n{place}/*/half: would be defined, 2 sensors\n"));
    server.says(&["list"], 1);
    assert!(server.says(&["apply", &file], 0).1.contains(": defined"));
    assert_eq!(server.says(&["apply", &file], 0).1, "2 unchanged\n");
    // What is exported is what was applied.
    let (exported, _) = server.says(&["export"], 0);
    let again = server.file("exported.toml", &exported);
    assert_eq!(server.says(&["apply", &again, "--prune"], 0).1, "2 unchanged\n", "{exported}");
    // Something else beside it goes with --prune, and nothing when anything is refused.
    server.says(&["define", &format!("{place}/other"), "<total>", "--unit", "1"], 0);
    let bad = server.file("bad.toml", &wanted.replace("<power> / 2", "<pover> / 2"));
    let (_, said) = server.says(&["apply", &bad, "--prune"], 2);
    assert!(said.contains("did you mean") && said.contains("<pover> / 2\n  ^^^^^^^"), "{said}");
    assert_eq!(server.says(&["list", "--json"], 0).0.lines().count(), 3);
    let (_, said) = server.says(&["apply", &file, "--prune"], 0);
    assert_eq!(said, format!("{place}/other: removed\n2 unchanged\n"));
    let (_, said) = server.says(&["apply", &server.file("odd.toml", "[[virtual]]\npth = \"/x\"\n")], 2);
    assert!(said.contains("odd.toml:2:1") && said.contains("`path`"), "{said}");
    server.says(&["apply", "/nowhere.toml"], 4);
}

#[test]
fn the_library_is_listed_and_what_fits_is_applied() {
    let (server, place) = with_nodes();
    let (listed, _) = server.says(&["library"], 0);
    assert!(["cpu", "energy", "facility", "perf"].iter().all(|name| listed.contains(name)), "{listed}");
    let (text, _) = server.says(&["library", "energy"], 0);
    assert!(text.contains("[[virtual]]") && text.contains("energy_of_hour"), "{text}");
    assert!(server.says(&["library", "enrgy"], 2).1.contains("energy"));
    // Without a unit, power is no power.
    let at = format!("{place}/*");
    server.says(&["apply", "--library", "energy", "--at", &at], 1);
    let set = command(server.dir.path())
        .args(["config", "sensor", "set", &format!("{place}/*/power"), "--unit", "W"])
        .output()
        .unwrap();
    assert!(set.status.success(), "{set:?}");
    let (_, said) = server.says(&["apply", "--library", "energy", "--at", &at], 0);
    assert!(said.contains(&format!("Left out {at}/powercap/power: ")), "{said}");
    assert!(said.contains(&format!("{at}/energy_of_hour: defined, 2 sensors")), "{said}");
    // The library does not replace the definition of somebody else, unless that is asked for.
    let (path, again) = (format!("{at}/energy_of_hour"), ["apply", "--library", "energy", "--at", &at]);
    server.says(&["define", &path, "integral(<power>, 2h)", "--unit", "J"], 0);
    let (_, said) = server.says(&again, 0);
    assert!(
        said.contains(&format!("Left out {path}: another definition has this path; --force replaces it")),
        "{said}"
    );
    let (_, said) = server.says(&[&again[..], &["--force"]].concat(), 0);
    assert!(said.contains(&format!("{path}: redefined")), "{said}");
    let (_, said) = server.says(&["apply", "--library", "energy", "--at", &at, "--set", "pwer=x"], 2);
    assert!(said.contains("did you mean `power`") || said.contains("power"), "{said}");
    server.says(&["apply", "--library", "cpu"], 2);
}
