//! Import and export with the real command and a real server: every layout and format, wrong lines, a kill in the middle, and back again.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Equals 2026-01-31T12:00:00Z, in s.
const BEGIN: i64 = 1_769_860_800;
const RANGE: [&str; 4] = ["--from", "2026-01-31T11:00:00Z", "--to", "2026-02-02T00:00:00Z"];

/// An installation in a directory of its own, with its server running.
struct Server {
    dir: tempfile::TempDir,
    process: Child,
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
        let process = Self::serve(dir.path());
        Self { dir, process }
    }

    /// Starts the server; the client's file gets its port.
    fn serve(dir: &Path) -> Child {
        let mut server = command(dir);
        server.args(["server", "--config", "var/server/server.toml"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = server.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let line = lines.by_ref().map(Result::unwrap).find(|line| line.contains("listening for HTTPS on ")).unwrap();
        let port = line.rsplit_once(':').unwrap().1.trim().to_owned();
        // Read on, or the server would block on a full pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let client = dir.join("var/client.toml");
        let text = fs::read_to_string(&client).unwrap();
        let url = text.lines().find(|line| line.starts_with("url")).unwrap().to_owned();
        fs::write(&client, text.replace(&url, &format!("url = \"https://localhost:{port}\""))).unwrap();
        process
    }

    fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Self::serve(self.dir.path());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        command(self.dir.path()).args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs, wants this exit code, and gives standard output and standard error.
    #[track_caller]
    fn says(&self, arguments: &[&str], code: i32) -> (String, String) {
        let output = self.run(arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, said) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{said}");
        (out, said)
    }

    /// Imports, wants this exit code, and gives what it says as JSON.
    #[track_caller]
    fn import(&self, arguments: &[&str], code: i32) -> Value {
        let arguments: Vec<&str> = ["import"].iter().chain(arguments).chain(&["--yes", "--json"]).copied().collect();
        let (out, said) = self.says(&arguments, code);
        let last = out.lines().last().unwrap_or_else(|| panic!("{said}"));
        serde_json::from_str(last).unwrap()
    }

    /// The readings of a pattern, as lines of CSV without the head and the units.
    #[track_caller]
    fn query(&self, pattern: &str) -> Vec<String> {
        let arguments: Vec<&str> = ["query", pattern, "--format", "csv"].iter().chain(&RANGE).copied().collect();
        let (lines, _) = self.says(&arguments, 0);
        lines.lines().skip(1).map(|line| line.rsplit_once(',').unwrap().0.to_owned()).collect()
    }

    fn units(&self) -> Vec<(String, String, String)> {
        let (out, _) = self.says(&["sensors", "--format", "json"], 0);
        let sensor = |line: &str| {
            let sensor: Value = serde_json::from_str(line).unwrap();
            let text = |name: &str| sensor[name].as_str().unwrap().to_owned();
            (text("path"), text("unit"), text("kind"))
        };
        out.lines().map(sensor).collect()
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

fn strings(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[test]
fn wide_tables_are_shown_asked_for_and_imported_once() {
    let server = Server::start();
    let text = "\u{feff}Zeit;Leistung [W];\"T;in\";Kommentar\r\n\
        31.01.2026 13:00:00;1,5;20;gut\r\n\
        31.01.2026 13:00:01;;21;gut\r\n\
        31.01.2026 13:00:02;3;NA;schlecht\r\n";
    server.write("halle.csv", text);
    let (_, said) = server.says(&["import", "csv", "halle.csv", "--time-zone", "Europe/Berlin"], 2);
    for part in [
        "wide",
        "';'",
        "decimals follow a comma",
        "day, month, year",
        "Europe/Berlin",
        "/import/halle/Leistung",
        "2026-01-31T12:00:00Z",
        "it holds text",
        "--yes",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let options = ["csv", "halle.csv", "--time-zone", "Europe/Berlin", "--prefix", "/hall", "--unit", "T;in=Cel"];
    let dry: Vec<&str> = ["import"].iter().chain(&options).chain(&["--dry-run"]).copied().collect();
    let (_, said) = server.says(&dry, 0);
    assert!(
        said.contains("6 readings of 2 sensors from 2026-01-31T12:00:00Z to 2026-01-31T12:00:02Z would be"),
        "{said}"
    );
    server.says(&["sensors"], 1);
    let done = server.import(&options, 0);
    assert_eq!((&done["readings"], &done["readings_there_before"]), (&6.into(), &0.into()), "{done}");
    let expected = strings(&[
        "/hall/Leistung,2026-01-31T12:00:00Z,1.5",
        "/hall/Leistung,2026-01-31T12:00:01Z,",
        "/hall/Leistung,2026-01-31T12:00:02Z,3",
        "/hall/T_in,2026-01-31T12:00:00Z,20",
        "/hall/T_in,2026-01-31T12:00:01Z,21",
        "/hall/T_in,2026-01-31T12:00:02Z,",
    ]);
    assert_eq!(server.query("/hall/*"), expected);
    let units: Vec<String> = server.units().into_iter().map(|unit| unit.1).collect();
    assert_eq!(units, ["W", "Cel"]);
    let again = server.import(&options, 0);
    assert_eq!((&again["readings_there_before"], &again["id"]), (&6.into(), &done["id"]), "{again}");
    let arguments: Vec<&str> = ["import"].iter().chain(&options).chain(&["--yes"]).copied().collect();
    assert!(server.says(&arguments, 0).1.contains("was imported before"));
    // Another content is another import, and its values count from now on.
    server.write("halle.csv", text.replace("1,5", "2,5"));
    assert_ne!(server.import(&options, 0)["id"], done["id"]);
    assert_eq!(server.query("/hall/Leistung")[0], "/hall/Leistung,2026-01-31T12:00:00Z,2.5");
    // An import is in the audit log once, not once for each part.
    let deadline = Instant::now() + TIMEOUT;
    let audit = loop {
        let audit = fs::read_to_string(server.path("var/server/audit.jsonl")).unwrap();
        if audit.matches("begins: part 0, 6 readings of 2 sensors such as /hall/").count() == 2 {
            break audit;
        }
        assert!(Instant::now() < deadline, "{audit}");
    };
    assert!(!audit.contains("POST /api/v1/import"), "{audit}");
    // With --empty none an empty cell is nothing; a word for a gap still is one.
    let options = ["csv", "halle.csv", "--time-zone", "Europe/Berlin", "--prefix", "/none", "--empty", "none"];
    server.import(&options, 0);
    assert_eq!(server.query("/none/*").len(), 5);
    // What was deleted stays away until the file is imported once more, under a label.
    let readings = server.query("/none/*");
    server.says(&["config", "delete", "/none/T_in", "--from", RANGE[1], "--to", RANGE[3], "--yes"], 0);
    let kept = server.query("/none/*");
    assert!(kept.len() < readings.len(), "{kept:?}");
    let arguments: Vec<&str> = ["import"].iter().chain(&options).chain(&["--yes"]).copied().collect();
    let (_, said) = server.says(&arguments, 0);
    assert!(said.contains("stay deleted; --again LABEL"), "{said}");
    assert_eq!(server.query("/none/*"), kept);
    let again = [&options[..], &["--again", "2"]].concat();
    assert_eq!(server.import(&again, 0)["readings_there_before"], 0);
    assert_eq!(server.query("/none/*"), readings);
    assert_eq!(server.import(&again, 0)["readings_there_before"], readings.len());
}

#[test]
fn long_tables_packed_or_not_with_units_and_exact_integers() {
    let server = Server::start();
    let text = "# from somewhere\nsensor,timestamp,value,unit\n\
        /lab/n1/power,1769860800000,215.5,W\n\
        \"/lab/n1/ticks\",1769860800000,9007199254740993,1\n\
        /lab/n1/power,1769860799000,NaN,W\n\
        rack 1/temp,1769860800000,-3.25e1,Cel\n\
        /lab/n1/power,1769860800000,216.5,W\n\
        /lab/n1/power,1769860801000,,W\n";
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    server.write("a.csv.gz", packed.finish().unwrap());
    let done = server.import(&["csv", "a.csv.gz", "--counter", "ticks"], 0);
    assert_eq!((&done["lines"], &done["other_lines"], &done["sensors"]), (&6.into(), &2.into(), &3.into()), "{done}");
    let expected = strings(&[
        "/import/a/rack_1/temp,2026-01-31T12:00:00Z,-32.5",
        "/lab/n1/power,2026-01-31T11:59:59Z,NaN",
        "/lab/n1/power,2026-01-31T12:00:00Z,216.5",
        "/lab/n1/power,2026-01-31T12:00:01Z,",
    ]);
    assert_eq!([server.query("/import/**"), server.query("/lab/n1/power")].concat(), expected);
    assert_eq!(server.query("ticks"), ["/lab/n1/ticks,2026-01-31T12:00:00Z,9007199254740993"]);
    let kind = |path: &str| server.units().into_iter().find(|unit| unit.0 == path).unwrap();
    assert_eq!(kind("/lab/n1/ticks").2, "counter");
    assert_eq!(kind("/import/a/rack_1/temp").1, "Cel");
}

#[test]
fn every_wrong_line_is_listed_with_its_number_and_the_others_are_there() {
    let server = Server::start();
    let wrong = [
        ("2026-01-31 12:00:01,1", "2 fields, expected 3"),
        ("2026-01-31 12:00:02,1,2,3", "4 fields, expected 3"),
        ("yesterday,1,2", "the time cannot be read: \"yesterday\""),
        ("2026-02-30 12:00:00,1,2", "the time cannot be read"),
        ("2016-12-31 23:59:60,1,2", "leap second"),
        ("2026-03-29 02:30:00,1,2", "set forward"),
        ("2026-10-25 02:30:00,1,2", "set back"),
        ("2400-01-01 00:00:00,1,2", "1678 to 2261"),
        ("2026-01-31 12:00:03,on,2", "column \"a\": no number: \"on\""),
        ("2026-01-31 12:00:04,1,99999999999999999999", "column \"b\": an integer that does not fit"),
        ("2026-01-31 12:00:05,1e999,2", "too large"),
        ("\"2026-01-31 12:00:06,1,2", "quote that is not closed"),
        ("2026-01-31 12:00:07,\"1\"x,2", "after a closing quote"),
        ("2026-01-31 12:00:08,1,\u{0}", "no number"),
    ];
    let mut text = String::from("time,a,b\n");
    let mut good = 0;
    for (line, _) in wrong {
        text.push_str(&format!("2026-01-31 13:00:{good:02},1,2\n{line}\n\n"));
        good += 1;
    }
    server.write("a.csv", &text);
    let options = ["csv", "a.csv", "--time-zone", "Europe/Berlin", "--prefix", "/w", "--delimiter", ","];
    let strict: Vec<&str> = options.iter().chain(&["--strict"]).copied().collect();
    let refused = server.import(&strict, 4);
    assert_eq!((&refused["refused_lines"], &refused["readings"]), (&wrong.len().into(), &0.into()), "{refused}");
    server.says(&["sensors"], 1);
    fs::remove_file(server.path("a.csv.bad")).unwrap();
    let done = server.import(&options, 4);
    assert_eq!((&done["refused_lines"], &done["readings"]), (&wrong.len().into(), &(2 * good).into()), "{done}");
    let list = fs::read_to_string(server.path("a.csv.bad")).unwrap();
    let lines: Vec<&str> = list.split_terminator('\n').collect();
    assert_eq!(lines.len(), wrong.len(), "{list}");
    for (at, (listed, (line, why))) in lines.iter().zip(wrong).enumerate() {
        let fields: Vec<&str> = listed.splitn(3, '\t').collect();
        assert_eq!(fields[0], (3 + 3 * at).to_string(), "{listed}");
        assert!(fields[1].contains(why), "{listed}: {why}");
        assert_eq!(fields[2], line);
    }
    assert_eq!(server.query("/w/a").len(), good);
    // The exit code, the count and the list are the same when it is there already.
    let again = server.import(&options, 4);
    assert_eq!((&again["refused_lines"], &again["readings_there_before"]), (&wrong.len().into(), &(2 * good).into()));
    let (_, said) = server.says(&["import", "csv", "a.csv", "--delimiter", ",", "--dry-run", "--bad", "list"], 4);
    assert!(said.contains("refused: line 3: 2 fields") && said.contains("more are listed in list"), "{said}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let refused = |name: &str, text: &[u8], options: &[&str], part: &str| {
        server.write(name, text);
        let arguments: Vec<&str> = ["import", "csv", name, "--yes"].iter().chain(options).copied().collect();
        let (_, said) = server.says(&arguments, 2);
        assert!(said.contains(part), "{name}: {part}: {said}");
    };
    refused("empty.csv", b"", &[], "no lines");
    refused("doubt.csv", b"time,a\n01/02/2026 10:00,1\n", &[], "--time-format dmy or mdy");
    refused("utf16.csv", b"\xff\xfet\0i\0", &[], "iconv");
    refused("mac.csv", b"time,a\r1769860800,1\r", &[], "CR alone");
    refused("same.csv", b"time,a b,a_b\n1769860800,1,2\n", &[], "are both /import/same/a_b");
    refused("times.csv", b"a,b\nx,y\n", &[], "--time-column");
    refused("ok.csv", b"time,a\n1769860800,1\n", &["--time-column", "when"], "no column \"when\"");
    refused("ok.csv", b"time,a\n1769860800,1\n", &["--prefix", "lab"], "must begin with");
    refused("ok.csv", b"time,a\n1769860800,1\n", &["--time-zone", "Mars/Base"], "--time-zone");
    let (_, said) = server.says(&["import", "csv", "nothing.csv", "--yes"], 4);
    assert!(said.contains("cannot read nothing.csv"), "{said}");
    server.says(&["sensors"], 1);
    // Another unit than the sensor has is refused by the server, and nothing of the file is stored.
    server.write("a.csv", "sensor,time,value,unit\n/u/a,1769860800,1,W\n");
    server.import(&["csv", "a.csv"], 0);
    refused(
        "b.csv",
        b"sensor,time,value,unit\n/u/a,1769860801,1,kW\n/u/b,1769860801,1,kW\n",
        &[],
        "\"kW\" in the import",
    );
    assert_eq!(server.units().len(), 1);
    // Only administrators import.
    let token = server.says(&["auth", "token", "create", "anna", "--role", "user"], 0).0;
    let file = fs::read_to_string(server.path("var/client.toml")).unwrap();
    let line = file.lines().find(|line| line.starts_with("token_file")).unwrap().to_owned();
    let path = server.path("anna.token");
    fs::write(&path, token.trim()).unwrap();
    server.write(
        "anna.toml",
        file.replace(&line, &format!("token_file = {path:?}")).replace("\"ca.pem\"", "\"var/ca.pem\""),
    );
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let output = server.run(&["--client", "anna.toml", "import", "csv", "a.csv", "--yes"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        if said.contains("has role user, which may not") {
            break;
        }
        assert!(Instant::now() < deadline, "{said}");
    }
}

#[test]
fn ldms_with_its_header_within_and_beside() {
    let server = Server::start();
    let head = "#Time,Time_usec,ProducerName,component_id,job_id,MemFree,rx#eth0";
    let body = "1769860800.001500,1500,nid1,7,0,1024,5\n1769860800.002000,2000,nid2,8,0,2048,6\n";
    let more = "1769860801.000000,0,nid1,7,4711,1025,7\n";
    server.write("meminfo.csv", format!("{head}\n{body}{head}\n{more}"));
    let done = server.import(&["ldms", "meminfo.csv", "--prefix", "/lrz", "--unit", "MemFree=kBy"], 0);
    assert_eq!((&done["readings"], &done["sensors"]), (&12.into(), &8.into()), "{done}");
    let expected = strings(&[
        "/lrz/nid1/MemFree,2026-01-31T12:00:00.0015Z,1024",
        "/lrz/nid1/MemFree,2026-01-31T12:00:01Z,1025",
        "/lrz/nid2/MemFree,2026-01-31T12:00:00.002Z,2048",
    ]);
    assert_eq!(server.query("MemFree"), expected);
    assert_eq!(server.query("/lrz/nid1/eth0/rx").len(), 2);
    server.write("body.csv", format!("{body}{more}"));
    server.write("body.HEADER", head);
    server.import(&["ldms", "body.csv", "--header-file", "body.HEADER", "--prefix", "/beside"], 0);
    assert_eq!(server.query("/beside/*/MemFree").len(), 3);
    // Back again, into another place.
    let export = ["export", "/lrz/*/MemFree", "/lrz/*/eth0/rx", "--format", "ldms", "--output", "out.csv"];
    let export: Vec<&str> = export.iter().chain(&RANGE).chain(&["--producer-level", "2"]).copied().collect();
    let (_, said) = server.says(&export, 0);
    assert!(said.contains("--prefix /lrz"), "{said}");
    server.import(&["ldms", "out.csv", "--prefix", "/back", "--empty", "none"], 0);
    let back: Vec<String> = server.query("/back/**").iter().map(|line| line.replace("/back/", "/lrz/")).collect();
    assert_eq!(back, [server.query("/lrz/*/MemFree"), server.query("/lrz/*/eth0/rx")].concat().sorted());
}

trait Sorted {
    fn sorted(self) -> Self;
}

impl Sorted for Vec<String> {
    fn sorted(mut self) -> Self {
        self.sort();
        self
    }
}

/// Readings of every kind: integers that no double has, floats, NaN, gaps, times with nanoseconds, and sensors whose times differ.
fn example() -> String {
    let mut text = String::from("sensor,time,value,unit\n");
    for i in 0..3_000i64 {
        let second = BEGIN + i;
        text.push_str(&format!("/x/n1/count,{second},{},By\n", 9_007_199_254_740_993 + i));
        let value = match i % 50 {
            7 => String::new(),
            8 => "NaN".to_owned(),
            9 => "-inf".to_owned(),
            _ => format!("{}", i as f64 / 7.0),
        };
        text.push_str(&format!("/x/n1/load,{second}.{:09},{value},1\n", i % 3));
        if i % 10 == 0 {
            text.push_str(&format!("/x/n2/temp,{second},{}.5,Cel\n", i % 30));
        }
    }
    text
}

#[test]
fn what_is_exported_and_imported_again_is_the_same() {
    let server = Server::start();
    server.write("a.csv", example());
    server.import(&["csv", "a.csv", "--time-format", "s"], 0);
    let (all, units) = (server.query("/x/**"), server.units());
    assert_eq!(all.len(), 6_300);
    for (format, ending, subcommand, more) in [
        ("csv", "csv", "csv", &[][..]),
        ("csv-wide", "csv", "csv", &["--empty", "none"][..]),
        ("parquet", "parquet", "parquet", &[]),
        ("arrow", "arrow", "arrow", &[]),
    ] {
        let file = format!("{format}.{ending}");
        let export: Vec<&str> =
            ["export", "/x/**", "--format", format, "--output", &file].iter().chain(&RANGE).copied().collect();
        let (_, said) = server.says(&export, 0);
        assert!(said.contains("6300 readings of 3 sensors in 1 file"), "{said}");
        // Into the same server below another prefix, and into one that knows nothing.
        let prefix = format!("/back/{format}");
        let import: Vec<&str> = [subcommand, &file, "--prefix", &prefix].iter().chain(more).copied().collect();
        let done = server.import(&import, 0);
        assert_eq!(done["sensors"], 3, "{format}: {done}");
        let back: Vec<String> =
            server.query(&format!("{prefix}/**")).iter().map(|line| line.replacen(&prefix, "", 1)).collect();
        assert_eq!(back, all, "{format}");
        let found: Vec<_> = server.units().into_iter().filter(|unit| unit.0.starts_with(&prefix)).collect();
        let expected: Vec<_> =
            units.iter().cloned().map(|unit| (format!("{prefix}{}", unit.0), unit.1, unit.2)).collect();
        assert_eq!(found, expected, "{format}");
    }
    let names: Vec<String> = fs::read_dir(server.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(!names.iter().any(|name| name.ends_with(".part") || name.ends_with(".bad")), "{names:?}");
}

#[test]
fn exports_are_split_by_time_and_size() {
    let server = Server::start();
    server.write("a.csv", example());
    server.import(&["csv", "a.csv", "--time-format", "s"], 0);
    let all = server.query("/x/**");
    let names = |dir: &str| {
        let entries = fs::read_dir(server.path(dir)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>().sorted()
    };
    let export = |more: &[&str]| {
        let arguments: Vec<&str> = ["export", "/x/**"].iter().chain(&RANGE).chain(more).copied().collect();
        server.says(&arguments, 0)
    };
    export(&["--output", "hours/", "--split", "hour"]);
    assert_eq!(names("hours"), ["2026-01-31T12.csv"]);
    export(&["--output", "days/", "--split-bytes", "64KiB"]);
    let parts = names("days");
    assert!(
        parts.len() > 3 && parts[0] == "2026-01-31-2.csv" && parts.contains(&"2026-01-31.csv".to_owned()),
        "{parts:?}"
    );
    let files: Vec<String> = parts.iter().map(|name| format!("days/{name}")).collect();
    let import: Vec<&str> =
        ["csv"].into_iter().chain(files.iter().map(String::as_str)).chain(["--prefix", "/back"]).collect();
    server.import(&import, 0);
    let back: Vec<String> = server.query("/back/**").iter().map(|line| line.replacen("/back", "", 1)).collect();
    assert_eq!(back, all);
    let (_, said) =
        server.says(&["export", "/x/**", "--from", "2020-01-01", "--to", "2020-01-02", "--output", "n.csv"], 1);
    assert!(said.contains("no reading") && !server.path("n.csv").exists(), "{said}");
    server.says(&["export", "/x/**", "--from", "-1d", "--output", "n.csv", "--split", "day"], 2);
}

/// A wide table of so many lines with 100 columns.
fn large(lines: i64) -> String {
    let mut text = String::from("time");
    (0..100).for_each(|column| text.push_str(&format!(",c{column}")));
    for line in 0..lines {
        text.push_str(&format!("\n{}", BEGIN + line));
        (0..100).for_each(|column| text.push_str(&format!(",{}", line * 100 + column)));
        if line % 1_000 == 500 {
            text.push_str(",one too many");
        }
    }
    text
}

#[test]
fn an_import_that_was_killed_goes_on_and_one_whose_server_was_killed_too() {
    let mut server = Server::start();
    server.write("a.csv", large(60_000));
    let arguments = ["import", "csv", "a.csv", "--prefix", "/big", "--yes", "--json"];
    let state = |server: &Server, id: &str| -> u64 {
        let output = server.run(&[
            "query",
            "/big/c0",
            "--from",
            "2026-01-31",
            "--to",
            "2026-02-02",
            "--agg",
            "count",
            "--format",
            "csv",
        ]);
        let _ = id;
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().nth(1).and_then(|line| line.split(',').nth(2)?.parse().ok()).unwrap_or(0)
    };
    let mut child = command(server.dir.path())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while state(&server, "") == 0 {
        assert!(child.try_wait().unwrap().is_none(), "done before it could be killed");
        assert!(Instant::now() < deadline);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let some = state(&server, "");
    assert!(some > 0 && some < 60_000 - 60, "{some}");
    server.restart();
    assert!(state(&server, "") >= some, "a part that was stored is gone");
    let done = server.import(&["csv", "a.csv", "--prefix", "/big"], 4);
    assert_eq!((&done["lines"], &done["refused_lines"]), (&60_000.into(), &60.into()), "{done}");
    let before = done["readings_there_before"].as_u64().unwrap();
    assert!(before > 0 && before < 100 * (60_000 - 60), "{done}");
    assert_eq!(state(&server, ""), 60_000 - 60);
    let list = fs::read_to_string(server.path("a.csv.bad")).unwrap();
    let numbers: Vec<String> = list.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect();
    let expected: Vec<String> = (0..60).map(|k| (k * 1_000 + 500 + 2).to_string()).collect();
    assert_eq!(numbers, expected, "each wrong line once, also those before the kill");
    let rows = server.query("/big/c7");
    assert_eq!(rows.len(), 60_000 - 60);
    assert!(rows[3].ends_with(",307"), "{}", rows[3]);
}

/// Units and scales that are set for a pattern hold for what an import makes new.
#[test]
fn values_of_new_sensors_are_in_the_unit_and_scale_that_are_set() {
    let server = Server::start();
    server.says(&["config", "sensor", "set", "/demo/**/power", "--unit", "W"], 0);
    server.says(&["config", "sensor", "set", "/demo/**", "--scale", "0.1"], 0);
    for unit in ["kW", "J"] {
        server.write("other.csv", format!("time,power [{unit}]\n{BEGIN},5.4321\n"));
        let arguments = ["import", "csv", "other.csv", "--prefix", "/demo/other", "--yes"];
        let output = server.run(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        let is_named = ["/demo/other/power", "W", unit].iter().all(|part| said.contains(part));
        assert!(!output.status.success() && is_named, "{said}");
    }
    for (at, unit) in [" [W]", "", " [W]"].iter().enumerate() {
        let name = format!("{at}.csv");
        server.write(&name, format!("time,power{unit}\n{},1\n", BEGIN + at as i64));
        server.import(&["csv", &name, "--prefix", "/demo/hall"], 0);
    }
    let lines = (0..3).map(|at| format!("/demo/hall/power,2026-01-31T12:00:0{at}Z,1"));
    assert_eq!(server.query("/demo/**"), lines.collect::<Vec<_>>());
    assert_eq!(server.units(), [("/demo/hall/power".to_owned(), "W".to_owned(), "gauge".to_owned())]);
}
