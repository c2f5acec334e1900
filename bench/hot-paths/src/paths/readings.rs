//! Made-up readings that move as those of a node do, from a fixed seed.

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath};
use wholegrain_transport::payload::encode_batch;

/// One second in nanoseconds.
pub const SECOND: i64 = 1_000_000_000;
/// A whole day, so that the readings begin a block of their own: ns since the Unix epoch.
pub const START: i64 = 20_000 * 86_400 * SECOND;

/// A group whose sensors stand still for the most part, count up or go up and down.
pub struct Moving {
    now: Vec<i64>,
    state: u64,
}

impl Moving {
    pub fn new(sensors: usize) -> Self {
        let mut made = Self { now: vec![0; sensors], state: 0x2545_f491_4f6c_dd1d };
        for index in 0..sensors {
            let width = 40 + made.random() % 20;
            made.now[index] = (made.random() >> width) as i64;
        }
        made
    }

    /// The generator is xorshift64 (Marsaglia 2003).
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// The next sample: two thirds stand still, a sixth changes now and then, a twelfth are busy counters, a twelfth gauges.
    pub fn next(&mut self) -> &[i64] {
        for sensor in 0..self.now.len() {
            let step = match sensor % 12 {
                8 | 9 if self.random().is_multiple_of(8) => (self.random() % 16) as i64,
                10 => 1000 + (self.random() % 400) as i64,
                11 => (self.random() % 2000) as i64 - 1000,
                _ => 0,
            };
            self.now[sensor] += step;
        }
        &self.now
    }
}

/// The schema of one of these groups of a node.
pub fn schema(node: usize, sensors: usize) -> anyhow::Result<Schema> {
    let sensors = (0..sensors).map(|index| SensorDef::gauge(format!("proc/sensor{index}"), "1", "")).collect();
    Ok(Schema::new(SensorPath::new(format!("/lab/n{node}"))?, "proc", sensors)?)
}

/// A batch of the next `samples`, a second apart, the first at `second`.
pub fn payload(schema: &Schema, node: usize, seq: u64, second: usize, samples: usize, moving: &mut Moving) -> Vec<u8> {
    let mut columns: Vec<Vec<i64>> = vec![Vec::with_capacity(samples); schema.len()];
    for _ in 0..samples {
        columns.iter_mut().zip(moving.next()).for_each(|(column, value)| column.push(*value));
    }
    let columns =
        columns.into_iter().map(|values| Column { values: ColumnValues::Int(values), gaps: Gaps::default() }).collect();
    let times = (second..second + samples).map(|second| START + second as i64 * SECOND).collect();
    let header =
        BatchHeader { agent: format!("n{node}"), boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
    encode_batch(&Batch { header, times, columns })
}
