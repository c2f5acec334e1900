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
    Int(i64),
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

/// The identity of a batch and its sampling interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHeader {
    /// The name of the agent.
    pub agent: String,
    /// The start of the agent's process, ns since the Unix epoch. Together with `seq` it detects redelivery.
    pub boot: u64,
    /// The sequence number within (agent, boot), from 1, consecutive over all groups of the agent.
    pub seq: u64,
    /// The schema of the columns.
    pub schema: SchemaHash,
    /// The configured interval at the first sample, ns; 0 for events without an interval.
    pub interval_ns: u64,
}

/// The gaps of a column: bit `i` is set if sample `i` has no value. Empty without gaps.
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

    /// The number of gaps in the column.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// The values of one sensor, one for each time of the batch; 0 at gaps.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnValues {
    Int(Vec<i64>),
    Float(Vec<f64>),
}

/// One sensor's part of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub values: ColumnValues,
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

    /// The number of samples, gaps included.
    pub fn len(&self) -> usize {
        match &self.values {
            ColumnValues::Int(values) => values.len(),
            ColumnValues::Float(values) => values.len(),
        }
    }

    /// Whether the column has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A decoded batch: times in ns since the Unix epoch, in the order sampled, and a column for each sensor of the schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub header: BatchHeader,
    pub times: Vec<i64>,
    /// One column for each sensor, in the schema's order; each as long as `times`.
    pub columns: Vec<Column>,
}

impl Batch {
    /// The number of readings without gaps.
    pub fn readings(&self) -> usize {
        self.columns.iter().map(|column| column.len() - column.gaps.count()).sum()
    }
}
