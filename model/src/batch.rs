//! Batches: consecutive samples of one group under one schema, column by column.

use crate::schema::{SchemaHash, ValueType};

/// The most samples of one batch.
pub const SAMPLES_MAX: usize = 65_536;
/// The longest name of an agent, in bytes.
pub const AGENT_BYTES_MAX: usize = 128;

/// The value of one reading.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A signed integer, as read.
    Int(i64),
    /// A floating-point number, as read.
    Float(f64),
}

impl Value {
    /// As a float; integers beyond 2^53 lose their last digits.
    pub fn as_f64(self) -> f64 {
        match self {
            Value::Int(v) => v as f64,
            Value::Float(v) => v,
        }
    }

    /// From the 64 bits that rows and payloads carry.
    pub fn from_bits(bits: u64, value_type: ValueType) -> Self {
        match value_type {
            ValueType::Int => Value::Int(bits as i64),
            ValueType::Float => Value::Float(f64::from_bits(bits)),
        }
    }
}

/// What identifies a batch and says how it was sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHeader {
    /// Name of the agent that sampled it.
    pub agent: String,
    /// Start of the agent's process, ns since the Unix epoch: with `seq` it makes redelivery recognisable.
    pub boot: u64,
    /// Number of the batch within (agent, boot), from 1, without holes over all groups of the agent.
    pub seq: u64,
    /// The schema of the columns.
    pub schema: SchemaHash,
    /// The interval asked for when the first sample was taken, ns; 0 for events without a rate.
    pub interval_ns: u64,
}

/// Which samples of a column are gaps: bit `i` is set when sample `i` has no value. Empty when there is no gap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gaps(pub Vec<u64>);

impl Gaps {
    /// Whether sample `index` is a gap.
    pub fn is_gap(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Marks sample `index` of `len` as a gap.
    pub fn set(&mut self, index: usize, len: usize) {
        if self.0.is_empty() {
            self.0.resize(len.div_ceil(64), 0);
        }
        self.0[index / 64] |= 1 << (index % 64);
    }

    /// The number of gaps.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// The values of one sensor, one for each time of the batch; 0 stands at gaps.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnValues {
    Int(Vec<i64>),
    Float(Vec<f64>),
}

/// One sensor's part of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub values: ColumnValues,
    /// Which of them are gaps.
    pub gaps: Gaps,
}

impl Column {
    /// The value of sample `index`; `None` for a gap.
    pub fn get(&self, index: usize) -> Option<Value> {
        if self.gaps.is_gap(index) {
            return None;
        }
        match &self.values {
            ColumnValues::Int(values) => values.get(index).copied().map(Value::Int),
            ColumnValues::Float(values) => values.get(index).copied().map(Value::Float),
        }
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        match &self.values {
            ColumnValues::Int(values) => values.len(),
            ColumnValues::Float(values) => values.len(),
        }
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A decoded batch: times in ns since the Unix epoch, in the order sampled, and a column for each sensor of the schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub header: BatchHeader,
    /// Time of each sample.
    pub times: Vec<i64>,
    /// One column for each sensor, in the schema's order; each as long as `times`.
    pub columns: Vec<Column>,
}

impl Batch {
    /// Readings in it, gaps not counted.
    pub fn readings(&self) -> usize {
        self.columns.iter().map(|column| column.len() - column.gaps.count()).sum()
    }
}
