//! Properties of sensors from the command line, with the real binary as server and as client; readings come over HTTP.

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
        command(self.dir.path()).args(arguments).output().unwrap()
    }

    /// Runs, wants the exit code, and gives standard output and standard error.
    #[track_caller]
    fn says(&self, arguments: &[&str], code: i32) -> (String, String) {
        let output = self.run(arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{err}");
        (out, err)
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

/// The cells of a table's rows, split where there are two blanks or more.
fn cells(table: &str) -> Vec<Vec<&str>> {
    let split =
        |line: &'static str| -> Vec<&str> { line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect() };
    table.to_owned().leak().lines().skip(1).map(split).collect()
}

#[test]
fn properties_are_set_shown_imported_and_taken_back() {
    let server = Server::start();
    server.write("power,host=n1 value=1500i\npower,host=n2 value=2500i\ninlet,host=n1 value=20.5");
    let (listed, _) = server.says(&["sensors", "--format", "csv"], 0);
    let path = |part: &[&str]| -> String {
        let line = listed
            .lines()
            .find(|line| part.iter().all(|part| line.contains(part)))
            .unwrap_or_else(|| panic!("{listed}"));
        line.split(',').next().unwrap().to_owned()
    };
    let (power, inlet) = (path(&["n1", "power"]), path(&["n1", "inlet"]));
    let config =
        |rest: &[&str]| -> Vec<String> { ["config", "sensor"].iter().chain(rest).map(|s| (*s).to_owned()).collect() };
    let says = |rest: &[&str], code: i32| {
        let arguments = config(rest);
        server.says(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), code)
    };
    // Set, and seen in everything.
    assert_eq!(says(&["set", "/**/power/**", "--unit", "W", "--dry-run"], 0).0, "would apply to 2 sensors\n");
    assert_eq!(
        says(&["set", "/**/power/**", "--unit", "W", "--description", "Of the node."], 0).0,
        "set; applies to 2 sensors\n"
    );
    assert_eq!(
        says(&["set", "/later/**", "--unit", "Cel", "--ttl", "7d"], 0).0,
        "set; applies to no sensor yet, and to later sensors that match\n"
    );
    assert_eq!(says(&["set", &inlet, "--unit", "Cel", "--scale", "-1"], 0).0, "set; applies to 1 sensor\n");
    let query = |path: &str, rest: &[&str], code: i32| {
        let head = ["query", path, "--agg", "mean", "--format", "csv"];
        server.says(&head.iter().chain(rest).copied().collect::<Vec<_>>(), code)
    };
    let value = |text: String| text.lines().last().unwrap().split(',').nth(2).unwrap().to_owned();
    assert_eq!(value(query(&power, &["--unit", "kW"], 0).0), "1.5");
    assert_eq!(value(query(&inlet, &["--unit", "K"], 0).0).parse::<f64>().unwrap(), 252.65);
    let (_, said) = query(&power, &["--unit", "K"], 2);
    assert!(said.contains(&power) && said.contains("W (power) cannot be converted to K (temperature)"), "{said}");
    assert!(query(&power, &["--unit", "kw"], 2).1.contains("did you mean `kW`?"));
    // Shown with where it comes from.
    let (shown, _) = says(&["show", &power], 0);
    let rows = cells(&shown);
    assert_eq!(rows[0][1..3], ["unit", "W"], "{shown}");
    assert!(rows[0][3].starts_with("/**/power/**, ") && rows[0][3].ends_with("; sent: nothing"), "{shown}");
    assert!(rows.iter().any(|row| row[1..3] == ["ttl", "forever"]), "{shown}");
    let (json, _) = says(&["show", &inlet, "--json"], 0);
    assert!(json.contains("\"scale\":{") && json.contains("\"value\":-1.0"), "{json}");
    assert!(says(&["show", "/none"], 1).1.contains("no sensor matches /none"));
    assert_eq!(cells(&says(&["list"], 0).0).len(), 6);
    // Removed: one property, then the rest, then there is nothing.
    assert_eq!(says(&["unset", &inlet, "--scale"], 0).0, "1 settings removed\n");
    assert_eq!(says(&["unset", &inlet], 0).0, "1 settings removed\n");
    assert!(says(&["unset", &inlet], 1).1.contains("no setting has the pattern"));
    let (history, _) = says(&["history", &inlet], 0);
    let mut changes: Vec<Vec<&str>> = cells(&history).into_iter().map(|row| row[3..].to_vec()).collect();
    // What one request set has one time and no order.
    changes[..2].sort_unstable();
    assert_eq!(changes, [["scale", "-1"], ["unit", "Cel"], ["scale", "(removed)"], ["unit", "(removed)"]], "{history}");
    // What makes no sense.
    assert!(says(&["set", "/x"], 2).1.contains("nothing to set"));
    assert!(says(&["set", "/x", "--unit", "°C"], 2).1.contains("did you mean `Cel`?"));
    assert!(says(&["set", "/x", "--scale", "0"], 2).1.contains("finite number other than 0"));
    imports(&server, &power, &inlet);
}

fn imports(server: &Server, power: &str, inlet: &str) {
    let file = server.dir.path().join("edit.csv");
    // The server's own list says nothing new.
    let (listed, _) = server.says(&["sensors", "--format", "csv"], 0);
    fs::write(&file, &listed).unwrap();
    let import = |rest: &[&str], code: i32| {
        let head = ["config", "sensor", "import", "edit.csv"];
        server.says(&head.iter().chain(rest).copied().collect::<Vec<_>>(), code)
    };
    let (said, _) = import(&[], 0);
    assert!(said.starts_with("0 properties set, ") && said.ends_with(" 0 of 3 lines bad\n"), "{said}");
    fs::write(&file, format!("sensor;unit;scale\n{power};kW;0.001\n{inlet};celsius;\n\n/none;;0\n{inlet};Cel;\n"))
        .unwrap();
    let (_, said) = import(&[], 2);
    for part in [
        "edit.csv, line 3: unit \"celsius\"",
        "did you mean `Cel`?",
        "edit.csv, line 5: scale",
        "2 of 4 lines are bad and nothing was set",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (said, _) = import(&["--dry-run", "--skip-bad"], 2);
    assert!(said.starts_with("3 properties would be set, 0 had this value already, 2 of 4 lines bad"), "{said}");
    assert!(cells(&server.says(&["config", "sensor", "show", power], 0).0)[0][2] == "W");
    let (said, _) = import(&["--skip-bad"], 2);
    assert!(said.starts_with("3 properties set, 0 had this value already, 2 of 4 lines bad"), "{said}");
    let rows = server.says(&["config", "sensor", "show", power], 0).0;
    assert_eq!((cells(&rows)[0][2], cells(&rows)[1][2]), ("kW", "0.001"), "{rows}");
}

/// More sensors than the server gives at a time.
#[test]
fn a_long_list_comes_page_by_page_and_a_short_one_says_that_there_is_more() {
    const SENSORS: usize = 10_003;
    let server = Server::start();
    let fields: Vec<String> = (0..SENSORS).map(|at| format!("f{at}=1")).collect();
    fields.chunks(1_000).for_each(|some| server.write(&format!("wide,host=a {}", some.join(","))));
    let show = ["config", "sensor", "show", "/a/wide/**", "--json", "--limit"];
    let shown = |limit: &str| {
        let (out, err) = server.says(&[&show[..], &[limit]].concat(), 0);
        let mut lines: Vec<&str> = out.lines().collect();
        let count = lines.len();
        lines.dedup();
        assert_eq!(lines.len(), count);
        (count, err)
    };
    let more = |count: usize| (count, format!("note: more than {count} sensors match; --limit shows more\n"));
    assert_eq!(shown("20000"), (SENSORS, String::new()));
    assert_eq!(shown(&SENSORS.to_string()), (SENSORS, String::new()));
    assert_eq!((shown("10001"), shown("3")), (more(10_001), more(3)));
}
