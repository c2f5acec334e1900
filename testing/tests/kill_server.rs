//! The server is killed with SIGKILL at random moments under load while publishers record its acknowledgements. Afterwards
//! every acknowledged reading is in the store exactly once.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath};
use wholegrain_testing::{Random, Site, python, wait_until};
use wholegrain_transport::client::{Client, ClientConfig, Event};
use wholegrain_transport::tls::Identity;
use wholegrain_transport::topics::Topic;
use wholegrain_transport::{payload, tls};

const ROUNDS: usize = 30;
const AGENTS: usize = 3;
const SAMPLES: usize = 10;
const SENSORS: usize = 5;
/// Time of the first sample, ns; each sample is 1 ms after the one before.
const START: i64 = 1_790_000_000_000_000_000;

/// One publisher as an agent would be: keeps what is not acknowledged and sends it again, marked as a duplicate or not.
struct Publisher {
    name: String,
    port: u16,
    schema: Schema,
    tls: Arc<rustls::ClientConfig>,
    /// Numbers of the batches that the server has acknowledged.
    acknowledged: Mutex<Vec<u64>>,
    stop: AtomicBool,
}

impl Publisher {
    fn new(site: &Site, index: usize) -> Arc<Self> {
        let name = format!("publisher{index}");
        let (certificate, key): (PathBuf, PathBuf) = site.agent_certificate(&name);
        let sensors = (0..SENSORS).map(|i| SensorDef::counter(format!("load/s{i}"), "1", "")).collect();
        let prefix = SensorPath::new(format!("/{name}")).expect("a good prefix");
        Arc::new(Self {
            schema: Schema::new(prefix, "load", sensors).expect("a good schema"),
            tls: tls::client_config(&site.path("ca.pem"), Some(Identity { cert: &certificate, key: &key }))
                .expect("TLS"),
            port: site.mqtt_port,
            name,
            acknowledged: Mutex::default(),
            stop: AtomicBool::new(false),
        })
    }

    /// The batch of a number: every value tells its batch, its sample and its sensor.
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
            times: (0..SAMPLES as u64).map(|i| START + (first + i) as i64 * 1_000_000).collect(),
            columns: (0..SENSORS).map(column).collect(),
        })
    }

    fn run(&self) {
        let (mut next, mut unacknowledged) = (1, VecDeque::new());
        while !(self.stop.load(Ordering::Relaxed) && unacknowledged.is_empty()) {
            // A connection that breaks is what this test is about: try again with what is left.
            if self.one_connection(&mut next, &mut unacknowledged).is_err() {
                std::thread::sleep(Duration::from_millis(5));
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
                self.acknowledged.lock().expect("no panic elsewhere").push(seq);
            }
        }
        Ok(())
    }
}

#[test]
fn every_acknowledged_reading_is_there_exactly_once() {
    let mut random = Random::announced();
    let site = Site::new();
    site.set("server/server.toml", "store", "seal_after", "\"100ms\"");
    // The readings are of a day of their own, wherever the clock stands.
    site.set("server/server.toml", "store", "past_max", "\"36500d\"");
    site.set("server/server.toml", "store", "future_max", "\"36500d\"");
    let publishers: Vec<_> = (0..AGENTS).map(|index| Publisher::new(&site, index)).collect();
    let threads: Vec<_> = publishers.iter().cloned().map(|p| std::thread::spawn(move || p.run())).collect();
    let total = || publishers.iter().map(|p| p.acknowledged.lock().expect("no panic elsewhere").len()).sum::<usize>();
    let killed_under_load = AtomicUsize::new(0);

    for round in 0..ROUNDS {
        let before = total();
        let mut server = site.start_server();
        // The moment is random after the first acknowledgement, so that every round has something to lose.
        wait_until("a first acknowledgement", || total() > before);
        std::thread::sleep(Duration::from_millis(random.within(0, 400)));
        server.kill();
        killed_under_load.fetch_add(1, Ordering::Relaxed);
        println!("round {round}: {} batches acknowledged", total());
    }
    let mut server = site.start_server();
    publishers.iter().for_each(|p| p.stop.store(true, Ordering::Relaxed));
    threads.into_iter().for_each(|thread| thread.join().expect("a publisher failed"));

    for publisher in &publishers {
        let acknowledged = publisher.acknowledged.lock().expect("no panic elsewhere");
        let last = *acknowledged.iter().max().expect("something was acknowledged");
        assert_eq!(acknowledged.len() as u64, last, "each batch acknowledged once, none left out");
        check_answers(&site, publisher, last);
    }
    let expected: usize = total() * SAMPLES * SENSORS;
    assert!(server.stop().success(), "a clean stop");
    check_files(&site, expected);
}

/// What the server answers: each value once, in order, nothing else.
fn check_answers(site: &Site, publisher: &Publisher, last: u64) {
    for sensor in 0..SENSORS {
        let path = format!("/{}/load/s{sensor}", publisher.name);
        let csv = site.answer(&["query", &path, "--from", "2026-01-01", "--to", "2027-01-01", "--format", "csv"]);
        let values: Vec<i64> = csv
            .lines()
            .skip(1)
            .map(|line| line.rsplit(',').next().unwrap_or_default().parse().expect("a whole number"))
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

/// What the files hold when the journal is sealed: a query removes duplicates of a time, so they are counted in the files.
fn check_files(site: &Site, expected: usize) {
    let mut server = site.start_server();
    wait_until("the journal is sealed", || site.metric("wholegrain_server_journal_bytes ") == Some(0.0));
    assert!(server.stop().success(), "a clean stop");
    let counts = python("count_rows.py", &[&site.path("server/store")]);
    assert_eq!(counts.trim(), format!("{expected} {expected}"), "rows and distinct rows of all blocks");
}
