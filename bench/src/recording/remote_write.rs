//! Readings as Prometheus' remote write has them (`prompb/remote.proto` of Prometheus: `WriteRequest`), packed with snappy.
//!
//! A sensor's path below its node is the metric's name, with `_` for characters that names may not have; the node is the label `node`.

use wholegrain_model::Batch;

use super::{Part, Recording};

/// Headers that describe the format.
pub const HEADERS: [(&str, &str); 3] = [
    ("content-encoding", "snappy"),
    ("content-type", "application/x-protobuf"),
    ("x-prometheus-remote-write-version", "0.1.0"),
];

/// The metric's name of a sensor.
fn metric(sensor: &str) -> String {
    sensor.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(field << 3 | 2);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Labels must come in the order of their names.
fn put_label(name: &str, value: &str, out: &mut Vec<u8>) {
    let mut label = Vec::new();
    put_bytes(1, name.as_bytes(), &mut label);
    put_bytes(2, value.as_bytes(), &mut label);
    put_bytes(1, &label, out);
}

fn put_samples(batch: &Batch, column: usize, out: &mut Vec<u8>) {
    let mut sample = Vec::new();
    for (at, time) in batch.times.iter().enumerate() {
        let Some(value) = batch.columns[column].get(at) else { continue };
        sample.clear();
        sample.push(1 << 3 | 1);
        sample.extend_from_slice(&value.as_f64().to_bits().to_le_bytes());
        sample.push(2 << 3);
        put_varint((time / 1_000_000).cast_unsigned(), &mut sample);
        put_bytes(2, &sample, out);
    }
}

/// One request: every sensor's samples of these batches.
fn request(recording: &Recording, parts: &[Part]) -> Vec<u8> {
    let (mut request, mut series) = (Vec::new(), Vec::new());
    for part in parts {
        for (column, def) in recording.schemas[part.group].sensors().iter().enumerate() {
            series.clear();
            put_label("__name__", &metric(&def.name), &mut series);
            put_label("node", &recording.node, &mut series);
            let labels = series.len();
            put_samples(&part.batch, column, &mut series);
            if series.len() > labels {
                put_bytes(1, &series, &mut request);
            }
        }
    }
    request
}

/// A request for each send of the agent, packed.
pub fn messages(recording: &Recording) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut packer = snap::raw::Encoder::new();
    let pack = |parts: &[Part]| Ok((String::new(), packer.compress_vec(&request(recording, parts))?));
    recording.sends().into_iter().map(pack).collect()
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath};

    use super::*;

    #[test]
    fn a_request_is_the_message_that_is_asked_for() {
        let schema = Schema::new(SensorPath::new("/n").unwrap(), "g", vec![SensorDef::gauge("a/b", "1", "")]).unwrap();
        let mut gaps = Gaps::default();
        gaps.set(1, 2);
        let header = BatchHeader { agent: "n".into(), boot: 1, seq: 1, schema: schema.hash(), interval_ns: 1 };
        let columns = vec![Column { values: ColumnValues::Int(vec![1, 9]), gaps }];
        let parts = vec![Part { group: 0, batch: Batch { header, times: vec![300_999_999, 400_000_000], columns } }];
        let recording = Recording { node: "n".into(), schemas: vec![schema], parts };
        let mut wanted =
            b"\x0a\x2a\x0a\x0f\x0a\x08__name__\x12\x03a_b\x0a\x09\x0a\x04node\x12\x01n\x12\x0c\x09".to_vec();
        wanted.extend_from_slice(&1f64.to_le_bytes());
        wanted.extend_from_slice(&[0x10, 0xac, 0x02]);
        assert_eq!(request(&recording, &recording.parts), wanted);
    }
}
