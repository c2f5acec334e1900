//! The real binary as server and as client, with readings published over MQTT in between.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampNanosecondType};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, JobRecord, Schema, SensorDef, SensorPath, StepRecord, Timestamp,
};
use wholegrain_testkit::wait_for;
use wholegrain_transport::client::{Client, ClientConfig, ClientError, Event};
use wholegrain_transport::payload::encode_batch;
use wholegrain_transport::tls;
use wholegrain_transport::topics::Topic;

const TIMEOUT: Duration = Duration::from_secs(120);
const AGENT: &str = "n1";
const SAMPLES: i64 = 60;
const SECOND: i64 = 1_000_000_000;
/// Equals 2026-01-31T12:00:00Z, in ns.
const BEGIN: i64 = 1_769_860_800 * SECOND;
const RANGE: [&str; 4] = ["--from", "2026-01-31T12:00:00Z", "--to", "2026-01-31T12:01:00Z"];

/// An installation in a directory of its own, with its server running.
struct Server {
    dir: tempfile::TempDir,
    process: Child,
    mqtt: String,
}

impl Server {
    fn start() -> Self {
        Self::start_with("", |_| ())
    }

    /// With more in the `[mqtt]` of server.toml, and something done before the start.
    fn start_with(mqtt: &str, before: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = command(dir.path()).args(["init", "var", "--agent", AGENT]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let toml = dir.path().join("var/server/server.toml");
        let text = fs::read_to_string(&toml)
            .unwrap()
            .replace("localhost:8883", "localhost:0")
            .replace("localhost:8443", "localhost:0")
            .replace("[mqtt]\n", &format!("[mqtt]\n{mqtt}\n"))
            // The readings are of a day of their own, wherever the clock stands.
            + "\n[store]\npast_max = \"36500d\"\nfuture_max = \"36500d\"\n";
        fs::write(&toml, text).unwrap();
        before(dir.path());
        let mut server = command(dir.path());
        server.args(["server", "--config", "var/server/server.toml"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = server.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut find = |what: &str| {
            let line = lines
                .by_ref()
                .map(Result::unwrap)
                .find(|line| line.contains(&format!("listening for {what} on ")))
                .unwrap();
            line.rsplit_once(':').unwrap().1.trim().to_owned()
        };
        let (mqtt, http) = (find("MQTT over TLS"), find("HTTPS"));
        // Read on, or the server would block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let client = dir.path().join("var/client.toml");
        fs::write(&client, fs::read_to_string(&client).unwrap().replace(":8443", &format!(":{http}"))).unwrap();
        Self { dir, process, mqtt }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        command(self.dir.path()).args(arguments).output().unwrap()
    }

    /// Runs, wants the exit code 0, and gives the lines of standard output.
    #[track_caller]
    fn lines(&self, arguments: &[&str]) -> Vec<String> {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32, part: &str) {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }

    fn publisher(&self) -> Publisher {
        let path = |name: &str| self.path("var").join(name);
        let (cert, key) = (path("agent/agent.pem"), path("agent/agent.key"));
        let tls = tls::client_config(&path("ca.pem"), Some(tls::Identity { cert: &cert, key: &key })).unwrap();
        let url = format!("mqtts://localhost:{}", self.mqtt);
        let config = ClientConfig { url, client_id: AGENT.into(), tls: Some(tls), ..ClientConfig::default() };
        let mut publisher = Publisher { client: Client::connect(&config).unwrap(), schema: schema(), seq: 0 };
        let topic = Topic::Schema { agent: AGENT, group: "test" }.to_string();
        publisher.publish(&topic, &schema().encode(), true);
        publisher
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

fn schema() -> Schema {
    let sensors = vec![
        SensorDef::gauge("mem/free", "By", "Unused memory.").scaled(1024.0),
        SensorDef::counter("net/rx", "By", "Received."),
        SensorDef::gauge("load", "1", "").float(),
    ];
    Schema::new(SensorPath::new("/n1").unwrap(), "test", sensors).unwrap()
}

/// An agent that publishes and waits for each acknowledgement.
struct Publisher {
    client: Client,
    schema: Schema,
    seq: u64,
}

impl Publisher {
    fn publish(&mut self, topic: &str, payload: &[u8], retain: bool) {
        let id = self.client.publish(topic, payload, true, retain).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "no acknowledgement");
            if let Some(Event::Acked { packet_id, reason }) = self.client.poll(Duration::from_millis(100)).unwrap() {
                assert_eq!(packet_id, id);
                assert!(!reason.is_error(), "{reason}");
                return;
            }
        }
    }

    /// Samples `first..first + count` after `begin`, one a second: mem/free is i KiB with a gap at 5, net/rx grows by 10 and
    /// restarts at 30, load is i / 4.
    fn batch(&mut self, begin: i64, count: i64) {
        self.seq += 1;
        let header = BatchHeader {
            agent: AGENT.into(),
            boot: 1,
            seq: self.seq,
            schema: self.schema.hash(),
            interval_ns: SECOND as u64,
        };
        let mut gaps = Gaps::default();
        if count > 5 {
            gaps.set(5, count as usize);
        }
        let free = (0..count).map(|i| if i == 5 { 0 } else { i }).collect();
        let rx = (0..count).map(|i| if i < 30 { 1000 + i * 10 } else { (i - 30) * 10 }).collect();
        let load = (0..count).map(|i| i as f64 / 4.0).collect();
        let columns = vec![
            Column { values: ColumnValues::Int(free), gaps },
            Column { values: ColumnValues::Int(rx), gaps: Gaps::default() },
            Column { values: ColumnValues::Float(load), gaps: Gaps::default() },
        ];
        let times = (0..count).map(|i| begin + i * SECOND).collect();
        let payload = encode_batch(&Batch { header, times, columns });
        self.publish(&Topic::Batch { agent: AGENT, group: "test" }.to_string(), &payload, false);
    }
}

fn with(arguments: &[&'static str]) -> Vec<&'static str> {
    arguments.iter().chain(&RANGE).copied().collect()
}

#[test]
fn sensors_queries_and_streams() {
    let server = Server::start();
    server.fails(&["sensors"], 1, "no sensor matches /**");
    let mut publisher = server.publisher();
    publisher.batch(BEGIN, SAMPLES);
    sensors(&server);
    shells_complete_names(&server);
    queries(&server);
    aggregates(&server);
    parquet_is_read_back(&server);
    refusals(&server);
    head_closes_early(&server);
    watching(&server, publisher);
    other_authority_and_token(&server);
}

fn sensors(server: &Server) {
    let lines = server.lines(&["sensors"]);
    assert!(lines[0].starts_with("SENSOR"), "{lines:?}");
    let paths: Vec<&str> = lines[1..].iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(paths, ["/n1/load", "/n1/mem/free", "/n1/net/rx"]);
    assert!(
        lines[2].contains("By") && lines[2].contains("gauge") && lines[2].contains("1s") && lines[2].contains("ago"),
        "{lines:?}"
    );
    let tree = server.lines(&["sensors", "--tree"]);
    assert!(tree[0] == "/n1/" && tree.iter().any(|line| line.starts_with("    free  [By] gauge every 1s")), "{tree:?}");
    let json = server.lines(&["sensors", "net/*", "--format", "json"]);
    let sensor: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    assert_eq!((json.len(), &sensor["path"], &sensor["kind"]), (1, &"/n1/net/rx".into(), &"counter".into()));
    let csv = server.lines(&["sensors", "load", "--format", "csv"]);
    assert!(csv[1].starts_with("/n1/load,1,gauge,float,1,1000000000,2026-01-31T12:00:59Z,,n1"), "{csv:?}");
    server.fails(&["sensors", "nothing"], 1, "no sensor matches nothing; `wholegrain sensors` lists all sensors");
    server.fails(&["sensors", "laod"], 1, "did you mean `load`?");
    server.fails(&["query", "/n1/mem/fre"], 1, "did you mean `/n1/mem/free`?");
    server.fails(&["watch", "/n1/mam/*"], 1, "did you mean `/n1/mem/*`?");
}

/// What a real bash offers for the last of these words.
fn completed(server: &Server, words: &[&str]) -> Vec<String> {
    let script = format!(
        "eval \"$(wholegrain completions bash)\"; COMP_WORDS=({}); COMP_CWORD={}; COMP_TYPE=9
         _clap_complete_wholegrain wholegrain '{}' ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
        words[words.len() - 1]
    );
    let folder = Path::new(env!("CARGO_BIN_EXE_wholegrain")).parent().unwrap();
    let path = std::env::join_paths([folder, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(server.path(""))
        .env("PATH", path)
        .env("WHOLEGRAIN_CLIENT", server.path("var/client.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn shells_complete_names(server: &Server) {
    assert_eq!(completed(server, &["wholegrain", "quer"]), ["query"]);
    assert_eq!(completed(server, &["wholegrain", "query", "/n1/"]), ["/n1/load", "/n1/mem/", "/n1/net/"]);
    assert_eq!(completed(server, &["wholegrain", "watch", "lo"]), ["load"]);
    assert_eq!(completed(server, &["wholegrain", "export", "/n1/me"]), ["/n1/mem/"]);
    assert!(completed(server, &["wholegrain", "jobs", "show", ""]).iter().all(|word| word.starts_with('-')));
}

fn queries(server: &Server) {
    let csv = server.lines(&with(&["query", "mem/free", "--format", "csv"]));
    assert_eq!(csv.len() as i64, SAMPLES + 1);
    assert_eq!(csv[0], "sensor,time,value,unit");
    assert_eq!(csv[5], "/n1/mem/free,2026-01-31T12:00:04Z,4096,By");
    assert_eq!(csv[6], "/n1/mem/free,2026-01-31T12:00:05Z,,By", "a gap has no value");
    let json = server.lines(&with(&["query", "load", "--format", "json", "--limit", "2"]));
    assert_eq!(
        json,
        [
            r#"{"sensor":"/n1/load","time":"2026-01-31T12:00:00Z","value":0.0,"unit":"1"}"#,
            r#"{"sensor":"/n1/load","time":"2026-01-31T12:00:01Z","value":0.25,"unit":"1"}"#
        ]
    );
    let table = server.lines(&with(&["query", "/**", "--limit", "61"]));
    assert_eq!(table[0], "SENSOR        TIME                  VALUE UNIT");
    assert_eq!(table[2], "/n1/load      2026-01-31T12:00:01Z   0.25 1");
    assert_eq!(table[61], "/n1/mem/free  2026-01-31T12:00:00Z      0 By");
    // The ending of the file's name says how it is written.
    server.lines(&with(&["query", "mem/free", "--output", "a.csv"]));
    assert!(fs::read_to_string(server.path("a.csv")).unwrap().starts_with("sensor,time,value,unit\n"));
    server.lines(&with(&["export", "mem/free", "--output", "a.parquet"]));
    assert!(fs::read(server.path("a.parquet")).unwrap().starts_with(b"PAR1"));
    let file = server.path("out.csv");
    let output = server.lines(&with(&["query", "mem/free", "--format", "csv", "--output", "out.csv"]));
    assert_eq!((output.len(), fs::read_to_string(file).unwrap().lines().count() as i64), (0, SAMPLES + 1));
}

fn aggregates(server: &Server) {
    let values = |arguments: &[&'static str]| -> Vec<f64> {
        let lines = server.lines(&with(arguments));
        lines[1..].iter().map(|line| line.split(',').nth(2).unwrap().parse().unwrap()).collect()
    };
    assert_eq!(values(&["query", "load", "--every", "20s", "--format", "csv"]), [2.5, 7.5, 12.375]);
    assert_eq!(values(&["query", "mem/free", "--every", "30s", "--agg", "count", "--format", "csv"]), [29.0, 30.0]);
    // 29 differences of 10, then the counter restarts with 0, then 29 more.
    assert_eq!(values(&["query", "net/rx", "--op", "delta", "--every", "1min", "--format", "csv"]), [580.0]);
    assert_eq!(values(&["query", "net/rx", "--op", "rate", "--agg", "max", "--format", "csv"]), [10.0]);
    assert_eq!(
        values(&["query", "load", "--op", "integral", "--every", "1min", "--format", "csv"]),
        [59.0 * 59.0 / 8.0]
    );
    let table = server.lines(&with(&["query", "net/rx", "--op", "rate", "--agg", "last"]));
    assert!(table[1].ends_with("10 By/s"), "{table:?}");
}

fn parquet_is_read_back(server: &Server) {
    server.lines(&with(&["query", "mem/free", "--format", "parquet", "--output", "out.parquet"]));
    let file = File::open(server.path("out.parquet")).unwrap();
    let batches: Vec<_> =
        ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(|batch| batch.num_rows() as i64).sum::<i64>(), SAMPLES);
    let batch = &batches[0];
    let names = batch.column(0).as_dictionary::<Int32Type>();
    assert_eq!(names.values().as_string::<i32>().value(names.keys().value(0) as usize), "/n1/mem/free");
    assert_eq!(batch.column(1).as_primitive::<TimestampNanosecondType>().value(59), BEGIN + 59 * SECOND);
    let values: Vec<_> = batch.column(2).as_primitive::<Int64Type>().iter().collect();
    assert_eq!((values[4], values[5], values[59]), (Some(4096), None, Some(59 * 1024)));
    let piped = server.run(&with(&["query", "mem/free", "--format", "parquet"]));
    assert!(piped.stdout.starts_with(b"PAR1") && piped.stdout.ends_with(b"PAR1"));
}

fn refusals(server: &Server) {
    server.fails(&with(&["query", "nothing"]), 1, "no sensor matches nothing");
    server.fails(&["query", "load", "--from", "2020-01-01", "--to", "2020-01-02"], 1, "no reading of 1 sensors");
    server.fails(&with(&["query", "load", "--op", "rate"]), 2, "use derivative");
    server.fails(&["watch", "nothing"], 1, "no sensor matches nothing");
    assert!(!server.path("none.csv").exists());
}

/// `wholegrain query | head -1`: quiet, exit code 0.
fn head_closes_early(server: &Server) {
    let mut query = command(server.dir.path());
    let mut query = query
        .args(with(&["query", "/**", "--format", "csv"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(query.stdout.take());
    let output = query.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stderr.len()),
        (Some(0), 0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Watches while an agent publishes, until each form has seen enough.
fn watching(server: &Server, mut publisher: Publisher) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            let mut time = BEGIN + 3600 * SECOND;
            while !done.load(Ordering::Relaxed) {
                publisher.batch(time, 2);
                time += 2 * SECOND;
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let table = server.lines(&["watch", "mem/free", "--count", "3"]);
        let json = server.lines(&["watch", "load", "net/rx", "--count", "4", "--format", "json"]);
        let csv = server.lines(&["watch", "load", "--for", "1s", "--format", "csv"]);
        done.store(true, Ordering::Relaxed);
        publishing.join().unwrap();
        assert_eq!(table.len(), 4, "{table:?}");
        assert!(table[1].starts_with("/n1/mem/free  2026-01-31T13:") && table[1].ends_with(" By"), "{table:?}");
        let sensors: Vec<serde_json::Value> = json.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(sensors.len(), 4);
        assert!(sensors.iter().all(|line| line["sensor"] == "/n1/load" || line["sensor"] == "/n1/net/rx"), "{json:?}");
        assert!(csv.len() > 1 && csv[0] == "sensor,time,value,unit" && csv[1].starts_with("/n1/load,"), "{csv:?}");
    });
}

fn other_authority_and_token(server: &Server) {
    assert!(server.run(&["init", "other"]).status.success());
    let client = fs::read_to_string(server.path("var/client.toml")).unwrap();
    fs::write(server.path("other/client.toml"), &client).unwrap();
    server.fails(&["--client", "other/client.toml", "sensors"], 3, "authority of this server");
    let wrong_token = client.replace("\"token\"", "\"../other/token\"");
    fs::write(server.path("var/wrong.toml"), wrong_token).unwrap();
    server.fails(&["--client", "var/wrong.toml", "sensors"], 2, "token_file in var/wrong.toml");
}

/// `wholegrain auth hash` with the password on standard input.
fn hash(dir: &Path, arguments: &[&str], password: &str) -> Output {
    let mut command = command(dir);
    command.args(["auth", "hash"]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    process.wait_with_output().unwrap()
}

#[test]
fn an_agent_with_a_password_of_auth_hash_comes_in_and_a_wrong_one_does_not() {
    let server = Server::start_with("", |dir| {
        let mut file = Vec::new();
        for (user, password) in [("n5", "correct horse\n"), ("n6", "battery staple")] {
            let output = hash(dir, &["--user", user], password);
            assert!(output.status.success(), "{output:?}");
            assert!(output.stdout.starts_with(format!("{user}:$argon2id$").as_bytes()), "{output:?}");
            file.extend(output.stdout);
        }
        fs::write(dir.join("var/server/passwords"), file).unwrap();
    });
    for (user, password, good) in [
        ("n5", "correct horse", true),
        ("n5", "wrong", false),
        ("n6", "battery staple", true),
        ("n6", "correct horse", false),
    ] {
        let config = ClientConfig {
            url: format!("mqtts://localhost:{}", server.mqtt),
            client_id: user.into(),
            user: Some(user.into()),
            password: Some(password.into()),
            tls: Some(tls::client_config(&server.path("var/ca.pem"), None).unwrap()),
            ..ClientConfig::default()
        };
        match Client::connect(&config) {
            Ok(client) => assert!(good && client.disconnect().is_ok(), "{user} {password}"),
            Err(ClientError::Refused { .. }) => assert!(!good, "{user} {password}"),
            Err(error) => panic!("{error}"),
        }
    }
    let alone = hash(server.dir.path(), &[], "x\n");
    assert!(alone.stdout.starts_with(b"$argon2id$"), "{alone:?}");
    for (arguments, password, part) in
        [(&[][..], "", "is empty"), (&[][..], " x\n", "begins or ends"), (&["--user", "a:b"][..], "x", "a:b")]
    {
        let output = hash(server.dir.path(), arguments, password);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && output.stdout.is_empty() && said.contains(part), "{output:?}");
    }
}

#[test]
fn a_node_is_added_by_one_command() {
    let server = Server::start();
    let address = format!("localhost:{}", server.mqtt);
    let arguments = ["ca", "agent", "n7", "--prefix", "/lab/rack1/n7", "--server", &address];
    let said = server.lines(&arguments).join("\n");
    for part in
        ["made var/agents/n7.pem", "made var/agents/n7.toml", "scp var/ca.pem", &address, "cannot reach", "[::]:"]
    {
        assert!(said.contains(part), "no {part:?}: {said}");
    }
    assert!(!said.contains("mqtt.prefixes") && !said.contains("refuse"), "{said}");
    // What the configuration says is enough to connect and to publish below the prefix.
    let toml = fs::read_to_string(server.path("var/agents/n7.toml")).unwrap();
    assert!(
        toml.contains(&format!("url = \"mqtts://{address}\"")) && toml.contains("prefix = \"/lab/rack1/n7\""),
        "{toml}"
    );
    let path = |name: &str| server.path("var/agents").join(name);
    let (cert, key) = (path("n7.pem"), path("n7.key"));
    let identity = tls::Identity { cert: &cert, key: &key };
    let config = ClientConfig {
        url: format!("mqtts://{address}"),
        client_id: "n7".into(),
        tls: Some(tls::client_config(&server.path("var/ca.pem"), Some(identity)).unwrap()),
        ..ClientConfig::default()
    };
    let sensors = vec![SensorDef::gauge("load", "1", "")];
    let schema = Schema::new(SensorPath::new("/lab/rack1/n7").unwrap(), "g", sensors).unwrap();
    let mut publisher = Publisher { client: Client::connect(&config).unwrap(), schema: schema.clone(), seq: 0 };
    publisher.publish(&Topic::Schema { agent: "n7", group: "g" }.to_string(), &schema.encode(), true);
    assert_eq!(server.lines(&["sensors", "--format", "csv"]).len(), 2);
    // Never overwritten; and what else can go wrong says what to do.
    let again = server.lines(&["ca", "agent", "n7", "--prefix", "/n7"]).join("\n");
    assert!(again.contains("kept var/agents/n7.toml") && again.contains("had no effect"), "{again}");
    assert_eq!(fs::read_to_string(server.path("var/agents/n7.toml")).unwrap(), toml);
    let notes = server.lines(&["ca", "agent", "n8", "--prefix", "/lab", "--server", "elsewhere.example"]).join("\n");
    assert!(notes.contains("[mqtt.prefixes]") && notes.contains("wholegrain ca server --dir var --host"), "{notes}");
    server.fails(&["ca", "agent", "n8", "--dir", "none"], 2, "no authority at none/ca.pem");
    fs::remove_file(server.path("var/ca.key")).unwrap();
    server.fails(&["ca", "agent", "n9"], 2, "no authority at var/ca.key");
    server.fails(&["ca", "agent", "a/b"], 2, "cannot be an agent's name");
}

/// A Parquet file in `dir` or below.
fn parquet_file(dir: &Path) -> Option<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).find_map(|path| match path.is_dir() {
        true => parquet_file(&path),
        false => path.extension().is_some_and(|extension| extension == "parquet").then_some(path),
    })
}

#[test]
fn what_is_missing_from_an_answer_is_said() {
    let server = Server::start_with("", |dir| {
        let toml = dir.join("var/server/server.toml");
        let text = fs::read_to_string(&toml).unwrap();
        fs::write(&toml, text + "\nseal_after = \"100ms\"\n").unwrap();
    });
    server.publisher().batch(BEGIN, SAMPLES);
    let blocks = server.path("var/server/store/blocks");
    let block = wait_for("a block", || parquet_file(&blocks));
    let length = fs::metadata(&block).unwrap().len() as usize;
    // In place, so that whoever has the file open sees it too.
    OpenOptions::new().write(true).open(&block).unwrap().write_all(&vec![0; length]).unwrap();
    // The damage is found by a first reader; from then on each answer says beforehand what it lacks.
    let said = wait_for("a warning", || {
        let output = server.run(&with(&["query", "mem/free"]));
        Some(String::from_utf8_lossy(&output.stderr).into_owned()).filter(|said| said.contains("warning:"))
    });
    assert!(said.contains("cannot be read"), "{said}");
}

#[test]
fn relative_times_reach_the_newest_readings_and_sigterm_ends_the_server() {
    let mut server = Server::start();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    server.publisher().batch(now - 30 * SECOND, 20);
    let lines = server.lines(&["query", "load", "--format", "csv", "--from", "-5m"]);
    assert_eq!(lines.len(), 21, "{lines:?}");
    assert!(lines[1].contains(&Timestamp(now - 30 * SECOND).to_string()), "{lines:?}");
    server.fails(&["query", "load", "--from", "-2h", "--to", "-1h"], 1, "no reading");
    // SAFETY: kill takes plain numbers; the process is our own child, not yet waited for.
    unsafe { libc::kill(server.process.id() as i32, libc::SIGTERM) };
    assert!(server.process.wait().unwrap().success());
    server.fails(&["query", "load"], 3, "is the server running");
}

/// A job of a minute on n1: CPU at half a core, memory with a gap, a region from 10 s to 25 s.
fn publish_job(publisher: &mut Publisher) {
    let mut record = JobRecord {
        job: "4711".to_owned(),
        level: "4711".to_owned(),
        manager: "slurm".to_owned(),
        node: AGENT.to_owned(),
        prefix: "/n1".to_owned(),
        uid: Some(1000),
        user: Some("anna".to_owned()),
        cpus: Some("0-1".to_owned()),
        devices: vec!["gpu/0".to_owned()],
        from: BEGIN,
        to: Some(BEGIN + SAMPLES * SECOND),
        name: Some("solve it".to_owned()),
        end_unseen: true,
        steps: vec![StepRecord { name: "step_0".to_owned(), from: BEGIN + SECOND, to: Some(BEGIN + 50 * SECOND) }],
        revision: 3,
        ..JobRecord::default()
    };
    record.totals = [("cpu/usage", 30.25), ("memory/peak", 2e6)].map(|(name, value)| (name.to_owned(), value)).into();
    let topic = Topic::Job { agent: AGENT }.to_string();
    publisher.publish(&topic, &serde_json::to_vec(&record).unwrap(), false);
    record.job = "4712".to_owned();
    (record.level, record.from, record.to) = ("4712".to_owned(), BEGIN + 100 * SECOND, None);
    publisher.publish(&topic, &serde_json::to_vec(&record).unwrap(), false);

    let timed = vec![
        SensorDef::counter("job/4711/cpu/usage", "s", "").scaled(1e-6),
        SensorDef::gauge("job/4711/memory/usage", "By", ""),
    ];
    let marks = vec![SensorDef::gauge("job/4711/region/solve", "1", "")];
    let mut gaps = Gaps::default();
    gaps.set(5, SAMPLES as usize);
    let usage = (0..SAMPLES).map(|i| i * 500_000).collect();
    let memory = (0..SAMPLES).map(|i| if i == 5 { 0 } else { 1_000_000 + i * 1000 }).collect();
    let columns = [(usage, Gaps::default()), (memory, gaps)];
    let of_job = [
        (
            "job/4711/1s",
            timed,
            SECOND as u64,
            (0..SAMPLES).map(|i| BEGIN + i * SECOND).collect::<Vec<_>>(),
            columns.to_vec(),
        ),
        ("region/solve", marks, 0, vec![BEGIN + 10 * SECOND, BEGIN + 25 * SECOND], vec![(vec![1, 0], Gaps::default())]),
    ];
    for (group, sensors, interval_ns, times, columns) in of_job {
        let schema = Schema::new(SensorPath::new("/n1").unwrap(), group, sensors).unwrap();
        publisher.publish(&Topic::Schema { agent: AGENT, group }.to_string(), &schema.encode(), true);
        publisher.seq += 1;
        let header =
            BatchHeader { agent: AGENT.into(), boot: 1, seq: publisher.seq, schema: schema.hash(), interval_ns };
        let columns =
            columns.into_iter().map(|(values, gaps)| Column { values: ColumnValues::Int(values), gaps }).collect();
        let payload = encode_batch(&Batch { header, times, columns });
        publisher.publish(&Topic::Batch { agent: AGENT, group }.to_string(), &payload, false);
    }
}

#[test]
fn jobs_are_listed_and_shown() {
    let server = Server::start();
    server.fails(&["jobs"], 1, "the server knows no job yet");
    server.fails(&["jobs", "--user", "anna"], 1, "no job matches");
    server.fails(&["jobs", "show", "4711"], 1, "there is no job 4711");
    server.fails(&["jobs", "boost", "4711", "--metrics", "cpu/**", "--every", "10ms"], 1, "there is no job 4711");
    server.fails(&["jobs", "unboost", "4711"], 1, "there is no job 4711");
    let mut publisher = server.publisher();
    publish_job(&mut publisher);

    let table = server.lines(&["jobs", "--until", "2026-01-31T12:01:30Z"]);
    let expected = [
        "JOB   USER  MANAGER  STATE  NODES  START                 DURATION  CPU s  MEMORY PEAK  NAME",
        "4711  anna  slurm    ended      1  2026-01-31T12:00:00Z      1min   30.2       1.9MiB  solve it",
    ];
    assert_eq!(table, expected);
    let ids = |arguments: &[&str]| -> Vec<String> {
        let lines = server.lines(&[&["jobs", "--format", "csv"], arguments].concat());
        lines[1..].iter().map(|line| line.split(',').next().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&[]), ["4712", "4711"]);
    assert_eq!(ids(&["--running", "--user", "anna", "--node", "n*"]), ["4712"]);
    assert_eq!(ids(&["--ended", "--name", "solve*", "--manager", "slurm"]), ["4711"]);
    assert_eq!(ids(&["--since", "2026-01-31T12:01:30Z"]), ["4712"]);
    assert_eq!(ids(&["-n", "1"]), ["4712"]);
    server.fails(&["jobs", "--user", "bert"], 1, "no job matches");

    let json = server.lines(&["jobs", "show", "4711", "--format", "json"]).join("\n");
    let shown: serde_json::Value = serde_json::from_str(&json).unwrap();
    let node = &shown["node_statistics"][0];
    assert_eq!((&node["node"], &node["cpu_s"], &node["end_unseen"]), (&"n1".into(), &30.25.into(), &true.into()));
    let near = |value: &serde_json::Value, expected: f64| {
        let value = value.as_f64().unwrap_or(f64::NAN);
        assert!((value - expected).abs() < 1e-9 * expected, "{value} is not {expected}: {json}");
    };
    for (value, expected) in [("min", 0.5), ("mean", 0.5), ("max", 0.5)] {
        near(&node["cpus_used"][value], expected);
    }
    near(&node["utilisation"], 0.25);
    near(&node["memory"]["min"], 1_000_000.0);
    near(&node["memory"]["max"], 1_059_000.0);
    let groups = shown["sensors"].as_array().unwrap();
    let group = |name: &str| groups.iter().find(|group| group["group"] == name).unwrap();
    assert_eq!((&group("cpu")["requested"], &group("cpu")["got"]), (&60.into(), &60.into()));
    let memory = group("memory");
    assert_eq!((&memory["requested"], &memory["got"], &memory["missing_ns"]), (&60.into(), &59.into(), &SECOND.into()));
    assert_eq!((&group("region")["requested"], &group("region")["got"]), (&serde_json::Value::Null, &2.into()));
    assert_eq!((&shown["regions"][0]["region"], &shown["regions"][0]["count"]), (&"solve".into(), &1.into()));
    near(&shown["regions"][0]["seconds"], 15.0);

    let text = server.lines(&["jobs", "show", "4711"]).join("\n");
    for part in [
        "user         anna",
        "cpus         2",
        "devices      1: gpu/0",
        "the agent was not running at the end",
        "step_0  2026-01-31T12:00:01.000Z",
        "n1    30.250  0.50 / 0.50 / 0.50       25.0 %",
        "not running at the end",
        "98.3 %",
        "solve       1  15.000",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    server.fails(&["jobs", "show", "4711", "--at", "2026-01-31T11:00:00Z"], 1, "that had begun by then");
}
