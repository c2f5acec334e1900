//! A simulated agent: a schema, and one batch after the other in the native payload.

use wholegrain_model::{BatchHeader, Schema, SensorPath, ValueType};
use wholegrain_transport::payload::BatchEncoder;
use wholegrain_transport::topics::Topic;

use super::template::{SEQ_FIRST, Template};
use super::values::{self, Walk};
use super::wall_ns;

/// The group of all sensors.
const GROUP: &str = "load";

/// One agent with one group.
pub struct Agent {
    /// Its name, which is its MQTT client's too.
    pub name: String,
    /// Where its schema goes.
    pub schema_topic: String,
    /// Where its batches go.
    batch_topic: String,
    /// Sensors of the group.
    pub sensors: usize,
    /// Samples of a batch.
    pub samples: usize,
    /// From sample to sample, ns.
    pub interval_ns: i64,
    /// The sums of its readings so far.
    pub made: ExpectedSums,
    /// Batches that are sent again and again instead of new ones; none unless [`Agent::prebuild`] was called.
    pub(super) templates: Vec<Template>,
    /// The one sent last.
    template: usize,
    schema: Schema,
    types: Vec<ValueType>,
    header: BatchHeader,
    walk: Walk,
    encoder: BatchEncoder,
    times: Vec<i64>,
    next_time: i64,
    payload: Vec<u8>,
}

/// The sums that the store must hold of an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExpectedSums {
    pub batches: u64,
    pub readings: u64,
    /// Sum of the readings' times, ns.
    pub time_sum: i128,
    /// Sum of all integers.
    pub int_sum: i128,
    /// Sum of all floats, in [`values::FLOAT_STEP`]s.
    pub float_steps: i128,
}

impl Agent {
    /// An agent with this number of sensors below `/bench/<name>`, sampled at an interval.
    pub fn new(name: String, sensors: usize, samples: usize, interval_ns: i64) -> anyhow::Result<Self> {
        let prefix = SensorPath::new(format!("/bench/{name}"))?;
        let schema = Schema::new(prefix, GROUP, values::sensors(sensors))?;
        let seed = name.bytes().fold(1, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        Ok(Self {
            schema_topic: Topic::Schema { agent: &name, group: GROUP }.to_string(),
            batch_topic: Topic::Batch { agent: &name, group: GROUP }.to_string(),
            sensors,
            samples,
            interval_ns,
            made: ExpectedSums::default(),
            templates: Vec::new(),
            template: 0,
            types: values::types(sensors),
            header: BatchHeader {
                agent: name.clone(),
                boot: wall_ns() as u64,
                seq: SEQ_FIRST - 1,
                schema: schema.hash(),
                interval_ns: interval_ns as u64,
            },
            schema,
            name,
            walk: Walk::new(sensors, samples, seed),
            encoder: BatchEncoder::new(),
            times: vec![0; samples],
            next_time: 0,
            payload: Vec::new(),
        })
    }

    /// Shares the memory of the sensor definitions with `other`, which has the same sensors.
    pub fn share_sensors(&mut self, other: &Agent) {
        self.schema = self.schema.sharing(&other.schema);
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Readings of a batch.
    pub fn batch_readings(&self) -> u64 {
        (self.sensors * self.samples) as u64
    }

    /// From batch to batch, ns.
    pub fn period_ns(&self) -> i64 {
        self.interval_ns * self.samples as i64
    }

    /// Encodes this number of batches once; from now on they are sent in turn, with new sequence numbers and times.
    pub fn prebuild(&mut self, count: usize) {
        for _ in 0..count {
            let (ints, floats) = (self.walk.int_sum, self.walk.float_steps);
            self.header.seq = SEQ_FIRST;
            self.encode(0);
            let payload = self.payload.clone();
            self.templates.push(Template::new(payload, self.walk.int_sum - ints, self.walk.float_steps - floats));
        }
        self.header.seq = SEQ_FIRST - 1;
    }

    /// Lets the next batch begin at the last multiple of the interval up to `time`, but never before the end of earlier batches.
    pub fn go_to(&mut self, time: i64) {
        self.next_time = self.next_time.max(time - time.rem_euclid(self.interval_ns));
    }

    /// When the last sample of the next batch is taken, ns since the Unix epoch.
    pub fn next_end(&self) -> i64 {
        self.next_time + (self.samples as i64 - 1) * self.interval_ns
    }

    /// Makes the next batch, which [`Agent::message`] then returns.
    pub fn make(&mut self) {
        let first = self.next_time;
        self.next_time += self.period_ns();
        self.header.seq += 1;
        let (samples, sensors) = (self.samples as i128, self.sensors as i128);
        let steps = samples * (samples - 1) / 2;
        self.made.time_sum += sensors * (samples * i128::from(first) + steps * i128::from(self.interval_ns));
        self.made.readings += self.batch_readings();
        let batch = self.made.batches as usize;
        self.made.batches += 1;
        if self.templates.is_empty() {
            let (ints, floats) = (self.walk.int_sum, self.walk.float_steps);
            self.encode(first);
            self.made.int_sum += self.walk.int_sum - ints;
            self.made.float_steps += self.walk.float_steps - floats;
            return;
        }
        self.template = batch % self.templates.len();
        let template = &mut self.templates[self.template];
        self.made.int_sum += template.int_sum;
        self.made.float_steps += template.float_steps;
        template.stamp(self.header.seq, first);
    }

    /// Topic and payload of the batch made last.
    pub fn message(&self) -> (&str, &[u8]) {
        let payload = self.templates.get(self.template).map_or(&self.payload[..], Template::payload);
        (&self.batch_topic, payload)
    }

    fn encode(&mut self, first: i64) {
        self.walk.advance();
        for (at, time) in self.times.iter_mut().enumerate() {
            *time = first + at as i64 * self.interval_ns;
        }
        self.payload.clear();
        self.encoder.encode(&self.header, &self.types, &self.times, &self.walk, &mut self.payload);
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::ColumnValues;
    use wholegrain_transport::payload::decode_batch;

    use super::*;

    fn next(agent: &mut Agent) -> &[u8] {
        agent.make();
        agent.message().1
    }

    /// Decodes an agent's batches and adds them up as the store would.
    fn check(mut agent: Agent) {
        let schema = agent.schema().clone();
        let mut found = ExpectedSums::default();
        let mut last = i64::MIN;
        for seq in 0..30 {
            agent.go_to(1_000_000_000_000 + seq * 5_000_000_000);
            let batch = decode_batch(next(&mut agent), &schema).unwrap();
            assert_eq!(batch.header.seq, SEQ_FIRST + seq as u64);
            assert!(batch.times[0] > last, "no time twice");
            last = *batch.times.last().unwrap();
            found.batches += 1;
            found.readings += (batch.times.len() * batch.columns.len()) as u64;
            let times: i128 = batch.times.iter().map(|time| i128::from(*time)).sum();
            found.time_sum += times * batch.columns.len() as i128;
            for column in &batch.columns {
                match &column.values {
                    ColumnValues::Int(values) => found.int_sum += values.iter().map(|v| i128::from(*v)).sum::<i128>(),
                    ColumnValues::Float(values) => {
                        found.float_steps += (values.iter().sum::<f64>() / values::FLOAT_STEP) as i128
                    }
                }
            }
        }
        assert_eq!(found, agent.made);
    }

    #[test]
    fn what_is_made_is_what_decodes() {
        check(Agent::new("n1".to_owned(), 250, 10, 77_000_000).unwrap());
        check(Agent::new("n2".to_owned(), 20, 1, 1_000_000_000).unwrap());
    }

    #[test]
    fn what_is_made_from_templates_is_what_decodes() {
        let mut agent = Agent::new("n3".to_owned(), 250, 10, 77_000_000).unwrap();
        agent.prebuild(7);
        check(agent);
    }
}
