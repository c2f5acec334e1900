//! Schemas that the server refuses for now: their batches wait, those of other groups are sent.
//!
//! MQTT 5 tells which message is refused. MQTT 3.1.1 has no reasons: the server closes the connection, and the agent finds the schema by itself. After a
//! connection that ended with new schemas in flight, each of them is announced alone; if the connection ends again meanwhile, it is the one.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use wholegrain_model::SchemaHash;
use wholegrain_transport::payload;
use wholegrain_transport::spool::Record;
use wholegrain_transport::topics::Topic;

/// The time until a refused schema is announced again: 10 s; it doubles with each further refusal.
const HOLD_MIN: Duration = Duration::from_secs(10);
/// The longest time until the next attempt: 10 min.
const HOLD_MAX: Duration = Duration::from_secs(600);
/// The most schemas that are remembered, accepted ones and others. Beyond it, all are new again.
const SCHEMAS_MAX: usize = 16_384;

#[derive(Debug)]
struct SchemaHold {
    until: Instant,
    refusals: u32,
    group: String,
}

/// What is known of the server's answers to schemas, over all connections of the process.
#[derive(Debug, Default)]
pub struct SchemaHolds {
    accepted: HashSet<SchemaHash>,
    /// New schemas whose connection ended before their answer.
    suspects: HashSet<SchemaHash>,
    holds: HashMap<SchemaHash, SchemaHold>,
}

impl SchemaHolds {
    /// Whether batches of this schema wait.
    pub fn is_held(&self, schema: SchemaHash, now: Instant) -> bool {
        self.holds.get(&schema).is_some_and(|hold| now < hold.until)
    }

    /// Whether batches of any schema wait.
    pub fn is_any_held(&self, now: Instant) -> bool {
        self.holds.values().any(|hold| now < hold.until)
    }

    /// Whether any schema is refused at present or was before its last attempt.
    pub fn is_any(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Whether the schema must be announced alone.
    pub fn is_suspect(&self, schema: SchemaHash) -> bool {
        self.suspects.contains(&schema)
    }

    /// The time until a held schema is announced again.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        self.holds.values().map(|hold| hold.until.saturating_duration_since(now)).filter(|left| !left.is_zero()).min()
    }

    /// Another server may accept what the one before has refused: every held schema may be announced at once.
    pub fn try_again(&mut self, now: Instant) {
        self.holds.values_mut().for_each(|hold| hold.until = hold.until.min(now));
    }

    /// The server has accepted a schema.
    pub fn accepted(&mut self, schema: SchemaHash) {
        if self.accepted.len() >= SCHEMAS_MAX {
            self.accepted.clear();
        }
        self.accepted.insert(schema);
        self.suspects.remove(&schema);
        if let Some(hold) = self.holds.remove(&schema) {
            tracing::info!("the server accepts the schema of group {} now; its batches are sent", hold.group);
        }
    }

    /// The server has refused a schema for now. Each schema is named once.
    pub fn refused(&mut self, schema: SchemaHash, group: &str, why: &str, now: Instant) {
        if self.holds.len() >= SCHEMAS_MAX && !self.holds.contains_key(&schema) {
            // Most are of jobs that have ended. The one that may be announced first is forgotten: without a hold this one would be sent all the time.
            let first = self.holds.iter().min_by_key(|(_, hold)| hold.until).map(|(schema, _)| *schema);
            if let Some(first) = first {
                self.holds.remove(&first);
                self.suspects.remove(&first);
            }
        }
        let new = || SchemaHold { until: now, refusals: 0, group: group.to_owned() };
        let hold = self.holds.entry(schema).or_insert_with(new);
        hold.until = now + HOLD_MIN.saturating_mul(1 << hold.refusals.min(10)).min(HOLD_MAX);
        if hold.refusals == 0 {
            tracing::warn!(
                "the server refuses the schema of group {group}: {why}; its batches are kept within the bounds of queue and spool, \
                 the other groups are sent, and it is tried again; see the server's log"
            );
        }
        hold.refusals = hold.refusals.saturating_add(1);
        // A schema that was refused once is announced alone where that is the only way to see the next refusal.
        self.suspects.insert(schema);
    }

    /// The connection ended with these schemas unanswered. If one was alone in flight, it is the reason. Whether the reason is known.
    pub fn unanswered(&mut self, schemas: &[(SchemaHash, String)], is_alone: bool, now: Instant) -> bool {
        match schemas {
            [(schema, group)] if is_alone && self.is_suspect(*schema) => {
                self.refused(*schema, group, "it closes the connection when only this is sent", now);
                true
            }
            several => {
                let new = several.iter().map(|(schema, _)| *schema).filter(|schema| !self.accepted.contains(schema));
                if self.suspects.len() < SCHEMAS_MAX {
                    self.suspects.extend(new);
                }
                false
            }
        }
    }
}

/// The schema of a record of the spool, if it is one, with its group.
pub fn announced(record: &Record) -> Option<(SchemaHash, String)> {
    match Topic::parse(&record.topic) {
        Some(Topic::Schema { group, .. }) => Some((SchemaHash::of(&record.payload), group.to_owned())),
        _ => None,
    }
}

/// The schema that a record of the spool is or needs.
pub fn schema_of(record: &Record) -> Option<SchemaHash> {
    match Topic::parse(&record.topic) {
        Some(Topic::Schema { .. }) => Some(SchemaHash::of(&record.payload)),
        Some(Topic::Batch { .. }) => payload::read_header(&record.payload).ok().map(|(header, _)| header.schema),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u8) -> SchemaHash {
        SchemaHash([number; 16])
    }

    #[test]
    fn a_schema_that_ends_the_connection_alone_is_held_and_tried_again() {
        let (mut holds, mut now) = (SchemaHolds::default(), Instant::now());
        let both = [(hash(1), "a".to_owned()), (hash(2), "b".to_owned())];
        holds.accepted(hash(3));
        assert!(!holds.unanswered(&both, false, now));
        assert!(holds.is_suspect(hash(1)) && holds.is_suspect(hash(2)) && !holds.is_held(hash(1), now));
        holds.accepted(hash(1));
        holds.unanswered(&both[1..], false, now);
        assert!(!holds.is_held(hash(2), now), "batches were in flight too");
        for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
            assert!(holds.unanswered(&both[1..], true, now));
            assert_eq!(holds.due_in(now), Some(Duration::from_secs(seconds)));
            assert!(holds.is_held(hash(2), now) && !holds.is_held(hash(1), now));
            now += Duration::from_secs(seconds);
            assert!(!holds.is_held(hash(2), now) && holds.is_suspect(hash(2)) && holds.is_any());
        }
        holds.refused(hash(2), "b", "no", now);
        holds.try_again(now);
        assert!(!holds.is_held(hash(2), now) && holds.is_suspect(hash(2)), "another server may accept it");
        holds.accepted(hash(2));
        assert!(!holds.is_suspect(hash(2)) && !holds.is_any() && holds.due_in(now).is_none());
        // An accepted schema is announced on each connection and is never the reason.
        holds.unanswered(&[(hash(3), "c".to_owned())], true, now);
        assert!(!holds.is_suspect(hash(3)) && !holds.is_held(hash(3), now));
    }

    #[test]
    fn every_refused_schema_is_held_however_many_there_are() {
        let (mut holds, now) = (SchemaHolds::default(), Instant::now());
        let hash = |number: usize| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            SchemaHash(bytes)
        };
        for number in 0..SCHEMAS_MAX + 10 {
            let now = now + Duration::from_millis(number as u64);
            holds.refused(hash(number), "job/1s", "quota exceeded", now);
            assert!(holds.is_held(hash(number), now), "{number}");
        }
        assert_eq!((holds.holds.len(), holds.suspects.len()), (SCHEMAS_MAX, SCHEMAS_MAX));
        assert!(!holds.is_held(hash(0), now) && holds.is_held(hash(11), now));
    }
}
