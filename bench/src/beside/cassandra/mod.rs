//! Apache Cassandra with rows as DCDB stores them (Netti et al., SC 2019, sections 3 and 4.3): partitioned by sensor and week,
//! clustered by timestamp, a 64-bit integer each.

mod cql;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use wholegrain_model::Value;
use wholegrain_testing::{Process, free_port};

use self::cql::{Connection, Prepared};
use super::recording::{Recording, Sum, Sums};
use super::system::{About, Chosen, How, Lane, Request, Span, Stored, System, span};
use super::victoria::until;
use crate::installation::bytes_below;

/// Where `bench/prepare` puts the program and what it needs.
const JARS: &str = "target/bench/cassandra";
/// Rows of one batch, all of one partition.
const BATCH_ROWS: usize = 100;
/// Rows that are inserted one by one when ingest is measured.
const ROWS_ONE_BY_ONE: u64 = 200_000;
const WEEK_NS: i64 = 7 * 86_400 * 1_000_000_000;
/// What Java must open to it, as the distribution's jvm17-server.options has it.
const OPENS: &str = "java.base/java.lang java.base/java.lang.reflect java.base/java.lang.module java.base/java.io java.base/java.nio \
    java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic java.base/sun.nio.ch \
    java.base/jdk.internal.ref java.base/jdk.internal.loader java.base/jdk.internal.reflect java.base/jdk.internal.math \
    java.base/jdk.internal.module java.base/jdk.internal.util.jar java.base/jdk.internal.misc \
    java.management.rmi/javax.management.remote.rmi java.rmi/sun.rmi.transport jdk.management/com.sun.management.internal";
const EXPORTS: &str = "java.rmi/sun.rmi.registry java.rmi/sun.rmi.server java.rmi/sun.rmi.transport.tcp java.sql/java.sql \
    jdk.unsupported/sun.misc java.base/java.lang.ref jdk.attach/sun.tools.attach java.management.rmi/com.sun.jmx.remote.internal.rmi";
/// Without a file of its own the log library writes everything there is to say.
const LOGBACK: &str = "<configuration><appender name=\"OUT\" class=\"ch.qos.logback.core.ConsoleAppender\"><encoder>\
    <pattern>%-5level %msg%n</pattern></encoder></appender><root level=\"WARN\"><appender-ref ref=\"OUT\"/></root></configuration>";

/// One that runs, or will.
pub struct Cassandra {
    jars: PathBuf,
    version: String,
    running: Option<Running>,
    keyspaces: usize,
}

struct Running {
    process: Process,
    connection: Connection,
    dir: PathBuf,
    port: u16,
    jmx: u16,
    insert: Prepared,
    range: Prepared,
    newest: Prepared,
}

/// A sensor's number, of 128 bits as DCDB's are: eight bytes for the node and eight for what is below it.
fn sid(node: &str, sensor: &str) -> [u8; 16] {
    let hash = |text: &str| {
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let mut sid = [0; 16];
    sid[..8].copy_from_slice(&hash(node).to_be_bytes());
    sid[8..].copy_from_slice(&hash(sensor).to_be_bytes());
    sid
}

fn week(time: i64) -> [u8; 2] {
    ((time / WEEK_NS) as i16).to_be_bytes()
}

fn weeks(span: Span) -> impl Iterator<Item = [u8; 2]> {
    (span.from / WEEK_NS..=span.to / WEEK_NS).map(|week| (week as i16).to_be_bytes())
}

impl Cassandra {
    /// Finds it.
    pub fn find() -> anyhow::Result<Self> {
        let jars =
            std::path::absolute(std::env::var_os("WHOLEGRAIN_CASSANDRA").map_or_else(|| JARS.into(), PathBuf::from))?;
        let names = std::fs::read_dir(&jars)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let version =
            names.filter_map(|name| Some(name.strip_prefix("cassandra-all-")?.strip_suffix(".jar")?.to_owned())).next();
        let version = version
            .with_context(|| format!("Cassandra is not in {}: `bench/prepare` puts it there", jars.display()))?;
        ensure!(
            Command::new("java").arg("-version").output().is_ok(),
            "java is not there: install openjdk-17-jre-headless"
        );
        Ok(Self { jars, version, running: None, keyspaces: 0 })
    }

    fn running(&mut self) -> anyhow::Result<&mut Running> {
        self.running.as_mut().context("Cassandra does not run")
    }

    fn keyspace(&self) -> String {
        format!("dcdb{}", self.keyspaces)
    }

    fn java(&self) -> Command {
        let mut command = Command::new("java");
        for module in OPENS.split_whitespace() {
            command.args([
                "--add-opens",
                &format!("{module}=ALL-UNNAMED"),
                "--add-exports",
                &format!("{module}=ALL-UNNAMED"),
            ]);
        }
        for module in EXPORTS.split_whitespace() {
            command.args(["--add-exports", &format!("{module}=ALL-UNNAMED")]);
        }
        command.arg("-Djava.security.manager=allow");
        command
    }

    fn start(&self, dir: &Path) -> anyhow::Result<Running> {
        let (port, jmx, storage) = (free_port(), free_port(), free_port());
        let text = configuration(dir, port, storage);
        std::fs::write(dir.join("cassandra.yaml"), text)?;
        std::fs::write(dir.join("logback.xml"), LOGBACK)?;
        let mut command = self.java();
        command
            .args(["-Xms1g", "-Xmx1g", "-Dcassandra.skip_wait_for_gossip_to_settle=0"])
            .arg(format!("-Dcassandra.config=file://{}/cassandra.yaml", dir.display()))
            .arg(format!("-Dcassandra.storagedir={}", dir.display()))
            .arg(format!("-Dcassandra.jmx.local.port={jmx}"))
            .arg(format!("-Dlogback.configurationFile={}/logback.xml", dir.display()))
            .arg("-cp")
            .arg(format!("{}:{}/*", dir.display(), self.jars.display()))
            .arg("org.apache.cassandra.service.CassandraDaemon");
        let mut process = Process::start(&mut command, &dir.join("log"));
        let mut connection = None;
        until("Cassandra answers", || {
            ensure!(process.runs(), "Cassandra ended: {}", process.log());
            connection = Connection::open(port).ok();
            Ok(connection.is_some())
        })?;
        let connection = connection.context("no connection")?;
        let none = Vec::new;
        Ok(Running {
            process,
            connection,
            dir: dir.to_owned(),
            port,
            jmx,
            insert: none(),
            range: none(),
            newest: none(),
        })
    }

    /// Cassandra's own tool, over JMX.
    fn nodetool(&self, work: &str) -> anyhow::Result<()> {
        let running = self.running.as_ref().context("Cassandra does not run")?;
        let mut command = self.java();
        command
            .arg(format!("-Dlogback.configurationFile={}/logback.xml", running.dir.display()))
            .arg("-cp")
            .arg(format!("{}:{}/*", running.dir.display(), self.jars.display()))
            .args([
                "org.apache.cassandra.tools.NodeTool",
                "-h",
                "127.0.0.1",
                "-p",
                &running.jmx.to_string(),
                work,
                &self.keyspace(),
            ]);
        let output = command.output().context("starting NodeTool")?;
        ensure!(
            output.status.success(),
            "NodeTool {work}: {}",
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
        );
        Ok(())
    }

    fn table(&self) -> anyhow::Result<PathBuf> {
        Ok(self.running.as_ref().context("Cassandra does not run")?.dir.join("data").join(self.keyspace()))
    }

    /// The rows of each of these sensors within a span.
    fn rows(&mut self, sids: &[[u8; 16]], span: Span, mut each: impl FnMut(usize, [i64; 2])) -> anyhow::Result<()> {
        let Running { connection, range, .. } = self.running()?;
        let (from, to) = (span.from.to_be_bytes(), span.to.to_be_bytes());
        let (mut frames, mut of) = (Vec::new(), Vec::new());
        for (place, sid) in sids.iter().enumerate() {
            for week in weeks(span) {
                frames.push(cql::execute(range, &[sid, &week, &from, &to]));
                of.push(place);
            }
        }
        connection.all(&frames, |at, answer| {
            cql::rows(&answer)?.into_iter().for_each(|row| each(of[at], row));
            Ok(())
        })
    }
}

fn configuration(dir: &Path, port: u16, storage: u16) -> String {
    let dir = dir.display();
    format!(
        "cluster_name: bench\nnum_tokens: 1\npartitioner: org.apache.cassandra.dht.Murmur3Partitioner\ncommitlog_sync: periodic\n\
         commitlog_sync_period: 10000ms\ndata_file_directories: [{dir}/data]\ncommitlog_directory: {dir}/commitlog\n\
         saved_caches_directory: {dir}/caches\nhints_directory: {dir}/hints\ncdc_raw_directory: {dir}/cdc\nlisten_address: 127.0.0.1\n\
         rpc_address: 127.0.0.1\nnative_transport_port: {port}\nstorage_port: {storage}\nstart_native_transport: true\nendpoint_snitch: SimpleSnitch\n\
         auto_snapshot: false\nwrite_request_timeout: 60s\nread_request_timeout: 60s\nrequest_timeout: 60s\nnative_transport_timeout: 60s\nseed_provider: [{{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{{seeds: \
         '127.0.0.1:{storage}'}}]}}]\n"
    )
}

/// Rows of a recording: partition and values, sensor by sensor in the order of its batches.
struct Rows {
    sid: [u8; 16],
    week: [u8; 2],
    rows: Vec<[[u8; 8]; 2]>,
}

fn rows_of(recording: &Recording) -> anyhow::Result<Vec<Rows>> {
    let mut all = Vec::new();
    for part in &recording.parts {
        for (def, column) in recording.schemas[part.group].sensors().iter().zip(&part.batch.columns) {
            let sid = sid(&recording.node, &def.name);
            let mut rows: Vec<Rows> = Vec::new();
            for (at, time) in part.batch.times.iter().enumerate() {
                let value = match column.get(at) {
                    Some(Value::Int(value)) => value,
                    Some(Value::Float(_)) => bail!("{} has floats, which DCDB's rows cannot have", def.name),
                    None => continue,
                };
                let week = week(*time);
                if rows.last().is_none_or(|last| last.week != week) {
                    rows.push(Rows { sid, week, rows: Vec::new() });
                }
                let Some(last) = rows.last_mut() else { continue };
                last.rows.push([time.to_be_bytes(), value.to_be_bytes()]);
            }
            all.extend(rows);
        }
    }
    Ok(all)
}

/// The same with rows of one partition brought together from several batches.
fn together(all: Vec<Rows>) -> Vec<Rows> {
    let mut joined = std::collections::BTreeMap::<([u8; 16], [u8; 2]), Vec<[[u8; 8]; 2]>>::new();
    for Rows { sid, week, rows } in all {
        joined.entry((sid, week)).or_default().extend(rows);
    }
    joined.into_iter().map(|((sid, week), rows)| Rows { sid, week, rows }).collect()
}

impl System for Cassandra {
    fn about(&self) -> About {
        About {
            system: "cassandra".into(),
            version: self.version.clone(),
            configured: format!(
                "one node, 1 GB heap, PRIMARY KEY ((sid blob, ws smallint), ts bigint), value bigint, TimeWindowCompactionStrategy of a day, LZ4; \
                 ingest: {ROWS_ONE_BY_ONE} prepared inserts of one row, 128 of a connection on their way (the rest of the readings, and those whose bytes \
                 are counted, as unlogged batches of {BATCH_ROWS} rows of a partition); sums over sensors are made by the asking side"
            ),
            durable: "log synced every 10 s: a crash of the machine takes what came since",
            counted: "all files of the table after flush and compact; not the log",
        }
    }

    fn fresh(&mut self, dir: &Path) -> anyhow::Result<()> {
        if self.running.is_none() {
            self.running = Some(self.start(dir)?);
        }
        self.keyspaces += 1;
        let table = format!("{}.sensordata", self.keyspace());
        let keyspace = self.keyspace();
        let running = self.running()?;
        let connection = &mut running.connection;
        connection.query(&format!(
            "CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        ))?;
        connection.query(&format!(
            "CREATE TABLE {table} (sid blob, ws smallint, ts bigint, value bigint, PRIMARY KEY ((sid, ws), ts)) WITH compaction = \
             {{'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'DAYS', 'compaction_window_size': 1}}"
        ))?;
        running.insert =
            connection.prepare(&format!("INSERT INTO {table} (sid, ws, ts, value) VALUES (?, ?, ?, ?)"))?;
        running.range = connection
            .prepare(&format!("SELECT ts, value FROM {table} WHERE sid = ? AND ws = ? AND ts >= ? AND ts <= ?"))?;
        running.newest = connection
            .prepare(&format!("SELECT ts, value FROM {table} WHERE sid = ? AND ws = ? ORDER BY ts DESC LIMIT 1"))?;
        Ok(())
    }

    fn measured_max(&self) -> Option<u64> {
        Some(ROWS_ONE_BY_ONE)
    }

    fn prepare(&self, recording: &Recording, how: How) -> anyhow::Result<Lane> {
        let insert = &self.running.as_ref().context("Cassandra does not run")?.insert;
        let all = rows_of(recording)?;
        let mut requests = Vec::new();
        let mut add = |body| requests.push(Request { to: String::new(), body });
        match how {
            How::Measured => all.iter().for_each(|Rows { sid, week, rows }| {
                rows.iter().for_each(|[time, value]| add(cql::execute(insert, &[sid, week, time, value])));
            }),
            How::Filling => together(all).iter().for_each(|Rows { sid, week, rows }| {
                for chunk in rows.chunks(BATCH_ROWS) {
                    add(cql::batch(
                        insert,
                        chunk.iter().map(|[time, value]| [&sid[..], &week[..], &time[..], &value[..]]),
                    ));
                }
            }),
        }
        Ok(Lane { node: recording.node.clone(), requests, readings: recording.readings() })
    }

    fn ingest(&mut self, lanes: &[Lane]) -> anyhow::Result<()> {
        let port = self.running()?.port;
        let send = |lane: &Lane| Connection::open(port)?.all(&lane.requests, |_, _| Ok(()));
        std::thread::scope(|scope| {
            let threads: Vec<_> = lanes.iter().map(|lane| scope.spawn(move || send(lane))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a sender ended")))
        })
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        self.nodetool("flush")?;
        self.nodetool("compact")
    }

    fn cpu_ns(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.process.cpu_ns())
    }

    fn rss_kb(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.process.status_kb("VmRSS"))
    }

    fn stored(&self) -> anyhow::Result<Stored> {
        let table = self.table()?;
        let dir = &self.running.as_ref().context("Cassandra does not run")?.dir;
        Ok(Stored { bytes: bytes_below(&table), all: bytes_below(&table) + bytes_below(&dir.join("commitlog")) })
    }

    fn sums(&mut self, recording: &Recording) -> anyhow::Result<Sums> {
        let names: Vec<String> = recording.sums().into_keys().collect();
        let sids: Vec<_> = names.iter().map(|name| sid(&recording.node, name)).collect();
        let mut found = vec![Sum::default(); names.len()];
        self.rows(&sids, span(recording), |place, [_, value]| {
            found[place].count += 1;
            found[place].sum += value as f64;
        })?;
        Ok(names.into_iter().zip(found).collect())
    }

    fn one_sensor(&mut self, node: &str, sensor: &str, span: Span) -> anyhow::Result<usize> {
        let mut count = 0;
        self.rows(&[sid(node, sensor)], span, |_, _| count += 1)?;
        Ok(count)
    }

    fn windows(&mut self, chosen: &Chosen, span: Span, window_s: u64) -> anyhow::Result<usize> {
        let window = window_s as i64 * 1_000_000_000;
        let all = chosen.nodes.iter().flat_map(|node| chosen.summed.iter().map(|sensor| sid(node, sensor)));
        let sids: Vec<_> = all.collect();
        let count = (span.to / window - span.from / window + 1) as usize;
        let mut last = vec![None::<[i64; 2]>; sids.len() * count];
        self.rows(&sids, span, |place, row| {
            let at = place * count + (row[0] / window - span.from / window) as usize;
            if last[at].is_none_or(|before| before[0] <= row[0]) {
                last[at] = Some(row);
            }
        })?;
        let sum = |at: usize| last.iter().skip(at).step_by(count).flatten().map(|row| row[1]).reduce(i64::wrapping_add);
        Ok((0..count).filter_map(sum).count())
    }

    fn newest(&mut self, chosen: &Chosen, span: Span) -> anyhow::Result<usize> {
        let Running { connection, newest, .. } = self.running()?;
        let mut frames = Vec::new();
        for node in &chosen.nodes {
            for sensor in &chosen.all {
                frames.extend(weeks(span).last().map(|week| cql::execute(newest, &[&sid(node, sensor), &week])));
            }
        }
        let mut count = 0;
        connection.all(&frames, |_, answer| {
            count += cql::rows::<2>(&answer)?.len();
            Ok(())
        })?;
        Ok(count)
    }
}
