//! Remote read of Prometheus: a Prometheus server evaluates PromQL over the readings in this store.
//!
//! - Input: read requests (protobuf, compressed with snappy), sensors and their readings.
//! - Output: series with labels derived from the sensors' paths; samples in one message, or streamed as XOR chunks.
//! - Never: a sample that was not measured (a gap is a stale marker, which ends a value in Prometheus); a response beyond its bounds; a sensor that
//!   the bearer may not see.
//!
//! `wire.rs` has the messages, `labels.rs` derives labels from paths, `matchers.rs` selects series, `hints.rs` selects the samples that a query
//! needs, `samples.rs` converts readings, and `xor.rs` encodes chunks. The route is in `http/prometheus.rs`; docs/prometheus.md is the user's guide.

pub mod config;
pub(crate) mod hints;
pub(crate) mod labels;
pub(crate) mod matchers;
pub(crate) mod samples;
pub(crate) mod wire;
pub(crate) mod xor;
