//! Kills the server with SIGKILL at random moments while it receives, seals, merges and drops readings; publishers record its acknowledgements.
//! Afterwards every acknowledged reading is in the store exactly once, except those of the day that retention drops, of which none remain.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath};
use wholegrain_testing::{Process, Random, Site, python, wait_until};
use wholegrain_transport::client::{Client, ClientConfig, Event};
use wholegrain_transport::tls::Identity;
use wholegrain_transport::topics::Topic;
use wholegrain_transport::{payload, tls};

const ROUNDS: usize = 110;
/// In one of this number of rounds the server is killed so early that it may still be opening its store.
const EARLY_ROUND: u64 = 5;
/// The days before now of each publisher's first sample: today, a past day whose blocks are merged repeatedly, and a day that retention drops.
const DAYS_AGO: [i64; 4] = [0, 0, 2, 25];
/// Days after which readings are dropped.
const RETENTION_DAYS: i64 = 20;
const DAY_NS: i64 = 86_400_000_000_000;
const SAMPLES: usize = 10;
const SENSORS: usize = 5;

/// A publisher that behaves like an agent: keeps unacknowledged batches and sends them again, marked as duplicates or not.
struct Publisher {
    name: String,
    port: u16,
    schema: Schema,
    /// The time of the first sample, ns; later ones follow every ms.
    start: i64,
    tls: Arc<rustls::ClientConfig>,
    /// The numbers of the acknowledged batches.
    acknowledged: Mutex<Vec<u64>>,
    stop: AtomicBool,
}

impl Publisher {
    fn new(site: &Site, index: usize, start: i64) -> Arc<Self> {
        let name = format!("publisher{index}");
        let (certificate, key): (PathBuf, PathBuf) = site.agent_certificate(&name);
        let sensors = (0..SENSORS).map(|i| SensorDef::counter(format!("load/s{i}"), "1", "")).collect();
        let prefix = SensorPath::new(format!("/{name}")).expect("a good prefix");
        Arc::new(Self {
            schema: Schema::new(prefix, "load", sensors).expect("a good schema"),
            tls: tls::client_config(&site.path("ca.pem"), Some(Identity { cert: &certificate, key: &key }))
                .expect("TLS"),
            port: site.mqtt_port,
            start,
            name,
            acknowledged: Mutex::default(),
            stop: AtomicBool::new(false),
        })
    }

    /// The batch with a number: every value encodes batch, sample and sensor.
    fn batch(&self, seq: u64) -> Vec<u8> {
        let first = (seq - 1) * SAMPLES as u64;
        let column = |sensor: usize| Column {
            values: ColumnValues::Int(
                (0..SAMPLES as u64).map(|i| ((first + i) * SENSORS as u64) as i64 + sensor as i64).collect(),
            ),
            gaps: Gaps::default(),
        };
        payload::encode_batch(&Batch {
            header: BatchHeader {
                agent: self.name.clone(),
                boot: 1,
                seq,
                schema: self.schema.hash(),
                interval_ns: 1_000_000,
            },
            times: (0..SAMPLES as u64).map(|i| self.start + (first + i) as i64 * 1_000_000).collect(),
            columns: (0..SENSORS).map(column).collect(),
        })
    }

    fn acknowledged(&self) -> MutexGuard<'_, Vec<u64>> {
        self.acknowledged.lock().expect("no panic elsewhere")
    }

    fn run(&self, mut random: Random) {
        let (mut next, mut unacknowledged) = (1, VecDeque::new());
        while !(self.stop.load(Ordering::Relaxed) && unacknowledged.is_empty()) {
            let before = next;
            // Broken connections are part of the test: continues with the unacknowledged batches.
            if self.one_connection(&mut next, &mut unacknowledged).is_err() {
                // Sometimes so late that durable, unacknowledged batches have moved from the journal into a block.
                let late = next > before && random.within(0, 3) == 0;
                std::thread::sleep(Duration::from_millis(if late { random.within(300, 900) } else { 5 }));
            }
        }
    }

    fn one_connection(
        &self,
        next: &mut u64,
        unacknowledged: &mut VecDeque<u64>,
    ) -> Result<(), wholegrain_transport::client::ClientError> {
        let config = ClientConfig {
            url: format!("mqtts://localhost:{}", self.port),
            client_id: self.name.clone(),
            tls: Some(self.tls.clone()),
            ..ClientConfig::default()
        };
        let mut client = Client::connect(&config)?;
        let topic = Topic::Schema { agent: &self.name, group: "load" }.to_string();
        client.publish(&topic, &self.schema.encode(), true, true)?;
        let topic = Topic::Batch { agent: &self.name, group: "load" }.to_string();
        let mut sent: BTreeMap<u16, u64> = BTreeMap::new();
        for seq in unacknowledged.iter() {
            sent.insert(client.publish(&topic, &self.batch(*seq), true, false)?, *seq);
        }
        while !(self.stop.load(Ordering::Relaxed) && unacknowledged.is_empty()) {
            while unacknowledged.len() < 8 && !self.stop.load(Ordering::Relaxed) {
                unacknowledged.push_back(*next);
                let id = client.publish(&topic, &self.batch(*next), true, false)?;
                sent.insert(id, *next);
                *next += 1;
            }
            if let Some(Event::Acked { packet_id, reason }) = client.poll(Duration::from_millis(20))?
                && let Some(seq) = sent.remove(&packet_id)
            {
                assert!(!reason.is_error(), "the server refused batch {seq}: {reason:?}");
                unacknowledged.retain(|s| *s != seq);
                self.acknowledged().push(seq);
            }
        }
        Ok(())
    }
}

/// Starts the server without waiting for it: publishers retry by themselves.
fn start(site: &Site) -> Process {
    let mut command = site.command(&["server", "--config"]);
    Process::start(command.arg(site.path("server/server.toml")), &site.path("server.log"))
}

/// A counter of the server since its start; 0 while it does not answer.
fn count(site: &Site, name: &str) -> u64 {
    site.metric(&format!("wholegrain_server_{name} ")).unwrap_or(0.0) as u64
}

#[test]
fn every_acknowledged_reading_is_stored_exactly_once() {
    let mut random = Random::seeded();
    let site = Site::new();
    site.set("server/server.toml", "store", "seal_after", "\"100ms\"");
    site.set("server/server.toml", "store", "retention_age", &format!("\"{RETENTION_DAYS}d\""));
    let now = std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as i64;
    // An hour after midnight, so that no publisher's readings reach the next day.
    let first = |days: i64| if days == 0 { now } else { now - now % DAY_NS - days * DAY_NS + DAY_NS / 24 };
    let publishers: Vec<_> =
        DAYS_AGO.iter().enumerate().map(|(index, days)| Publisher::new(&site, index, first(*days))).collect();
    let mut begin = |publisher: &Arc<Publisher>| {
        random.draw();
        let (publisher, random) = (publisher.clone(), random.clone());
        std::thread::spawn(move || publisher.run(random))
    };
    let threads: Vec<_> = publishers.iter().map(&mut begin).collect();
    let total = || publishers.iter().map(|p| p.acknowledged().len()).sum::<usize>();
    let (mut seals, mut merges, mut drops) = (0, 0, 0);

    for round in 0..ROUNDS {
        let before = total();
        let mut server = start(&site);
        if random.within(0, EARLY_ROUND) == 0 {
            std::thread::sleep(Duration::from_millis(random.within(0, 300)));
        } else {
            // At a random moment after the first acknowledgement, so that the round can lose data.
            wait_until("a first acknowledgement", || {
                assert!(server.runs(), "the server ended: {}", server.log());
                total() > before
            });
            std::thread::sleep(Duration::from_millis(random.within(0, 400)));
        }
        if round % 4 == 0 {
            seals += count(&site, "store_seals_total");
            merges += count(&site, "store_merges_total");
            drops += count(&site, "store_retention_blocks_total");
        }
        server.kill();
    }
    println!(
        "{} batches acknowledged in {ROUNDS} rounds; every fourth reported {seals} seals, {merges} merges, {drops} dropped blocks",
        total()
    );
    assert!(seals > 0 && merges > 0 && drops > 0, "seals, merges and retention went on under fire");
    let mut server = site.start_server();
    publishers.iter().for_each(|p| p.stop.store(true, Ordering::Relaxed));
    threads.into_iter().for_each(|thread| thread.join().expect("a publisher failed"));

    let mut expected = 0;
    for (publisher, days) in publishers.iter().zip(DAYS_AGO) {
        let acknowledged = publisher.acknowledged();
        let last = *acknowledged.iter().max().expect("something was acknowledged");
        assert_eq!(acknowledged.len() as u64, last, "each batch acknowledged once, none left out");
        if days < RETENTION_DAYS {
            check_answers(&site, publisher, last);
            expected += acknowledged.len() * SAMPLES * SENSORS;
        }
    }
    assert!(server.stop().success(), "a clean stop");
    check_files(&site, expected);
}

/// Checks the server's answers: each value once, in order, nothing else.
fn check_answers(site: &Site, publisher: &Publisher, last: u64) {
    for sensor in 0..SENSORS {
        let path = format!("/{}/load/s{sensor}", publisher.name);
        let csv = site.answer(&["query", &path, "--from", "2020-01-01", "--to", "2100-01-01", "--format", "csv"]);
        let values: Vec<i64> = csv
            .lines()
            .skip(1)
            .map(|line| line.split(',').nth(2).unwrap_or_default().parse().expect("a whole number"))
            .collect();
        let count = last as usize * SAMPLES;
        let expected: Vec<i64> = (0..count).map(|i| (i * SENSORS + sensor) as i64).collect();
        assert!(
            values == expected,
            "{path}: {} values, {} expected; first difference at {:?}",
            values.len(),
            count,
            values.iter().zip(&expected).position(|(a, b)| a != b)
        );
    }
}

/// Checks the files after a seal and after retention: a query removes duplicates, so that rows are counted in the files.
fn check_files(site: &Site, expected: usize) {
    let mut server = site.start_server();
    wait_until("the journal is sealed and the old day dropped", || {
        site.metric("wholegrain_server_journal_bytes ") == Some(0.0)
            && count(site, "store_block_rows") as usize <= expected
    });
    assert!(server.stop().success(), "a clean stop");
    let counts = python("count_rows.py", &[&site.path("server/store")]);
    assert_eq!(counts.trim(), format!("{expected} {expected}"), "rows and distinct rows of all blocks");
}
