//! The messages that a subscriber of the broker receives.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use wholegrain_agent::engine::clock;
use wholegrain_model::{Batch, Schema, SchemaHash};
use wholegrain_testkit::DEADLINE;
use wholegrain_transport::client::{Client, Event};
use wholegrain_transport::payload::{decode_batch, read_header};
use wholegrain_transport::topics::Topic;

#[derive(Default)]
pub struct Arrived {
    pub schemas: HashMap<SchemaHash, Schema>,
    /// The number of arrivals of each schema.
    pub announced: HashMap<SchemaHash, usize>,
    /// (boot, seq) in the order of arrival, and the batch.
    pub batches: Vec<(u64, u64, Batch)>,
    /// Batches that arrived before their schema.
    pub orphans: usize,
    /// The arrival times of the batches, ns since the Unix epoch; never too early.
    pub at: Vec<i64>,
}

impl Arrived {
    /// Receives messages until `done`.
    pub fn listen(&mut self, client: &mut Client, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !done(self) {
            assert!(Instant::now() < deadline, "waited in vain for {what}; {} batches came", self.batches.len());
            let Some(Event::Message { topic, payload, .. }) = client.poll(Duration::from_millis(50)).unwrap() else {
                continue;
            };
            match Topic::parse(topic.as_str()).expect("a topic of Wholegrain") {
                Topic::Schema { agent, group } => {
                    let schema = Schema::decode(&payload).unwrap();
                    assert_eq!((agent, group), ("n1", schema.group()));
                    *self.announced.entry(schema.hash()).or_default() += 1;
                    self.schemas.insert(schema.hash(), schema);
                }
                Topic::Batch { agent, group } => {
                    let (header, _) = read_header(&payload).unwrap();
                    assert_eq!((agent, header.agent.as_str()), ("n1", "n1"));
                    match self.schemas.get(&header.schema) {
                        Some(schema) => {
                            assert_eq!(schema.group(), group);
                            self.at.push(clock::real());
                            self.batches.push((header.boot, header.seq, decode_batch(&payload, schema).unwrap()));
                        }
                        None => self.orphans += 1,
                    }
                }
                Topic::Need { .. } | Topic::Job { .. } | Topic::Control { .. } | Topic::Response { .. } => {}
            }
        }
    }

    /// The number of arrivals of each sequence number.
    pub fn seqs(&self, boot: u64) -> BTreeMap<u64, usize> {
        let mut seqs = BTreeMap::new();
        for (_, seq, _) in self.batches.iter().filter(|(its, _, _)| *its == boot) {
            *seqs.entry(*seq).or_default() += 1;
        }
        seqs
    }

    /// Whether all numbers from 1 to `last` arrived.
    pub fn has_all(&self, boot: u64, last: u64) -> bool {
        self.seqs(boot).range(1..=last).count() as u64 == last
    }
}
