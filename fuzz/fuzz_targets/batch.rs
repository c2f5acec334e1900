//! Any bytes as a batch of a schema that fits its count: all ways of reading it agree, and what is taken can be written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wholegrain_model::{Schema, SensorPath, schema::SensorDef};
use wholegrain_transport::payload::{decode_batch, decode_column, encode_batch, for_each_column, last_row, read_header};

/// A schema of so many sensors, those with a set bit floats.
fn schema(sensors: usize, floats: u8) -> Schema {
    let sensor = |index: usize| {
        let sensor = SensorDef::gauge(format!("s{index}"), "1", "");
        if floats >> (index % 8) & 1 == 1 { sensor.float() } else { sensor }
    };
    let prefix = SensorPath::new("/a").expect("a path");
    Schema::new(prefix, "g", (0..sensors).map(sensor).collect()).expect("a schema")
}

/// The bytes with a header that is right as far as the schema: the rest is the fuzzer's.
fn payload(flags: u8, schema: &Schema, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![b'W', b'G', 1, flags, 1, b'a'];
    bytes.extend([0; 8]);
    bytes.push(1);
    bytes.extend(schema.hash().0);
    bytes.push(1);
    bytes.extend(rest);
    bytes
}

fuzz_target!(|data: &[u8]| {
    let _ = read_header(data);
    let [flags, floats, rest @ ..] = data else { return };
    // Samples, then sensors: the schema has as many as the payload says, when that is few.
    let sensors = rest.get(1).map_or(1, |&count| usize::from(count).clamp(1, 40));
    let schema = schema(sensors, *floats);
    let bytes = payload(*flags, &schema, rest);
    let each = for_each_column(&bytes, &schema, |_, _| {});
    let last = last_row(&bytes, &schema);
    let columns: Vec<_> = (0..sensors).map(|sensor| decode_column(&bytes, &schema, sensor)).collect();
    let Ok(batch) = decode_batch(&bytes, &schema) else {
        assert!(each.is_err() && last.is_err());
        return;
    };
    assert_eq!(each.as_ref(), Ok(&batch.times));
    assert!(last.is_ok());
    for (column, wanted) in columns.into_iter().zip(&batch.columns) {
        // NaN differs from itself, so texts are compared.
        assert_eq!(format!("{:?}", column.expect("a column").1), format!("{wanted:?}"));
    }
    let again = decode_batch(&encode_batch(&batch), &schema).expect("what was written itself");
    assert_eq!(format!("{again:?}"), format!("{batch:?}"));
});
