//! Decoding a batch as the store does.

use std::hint::black_box;

use wholegrain_model::Schema;
use wholegrain_transport::payload::{for_each_column, read_header};

use super::Work;
use super::readings::{Moving, payload, schema};

const SENSORS: usize = 285;
/// How often each is decoded.
const TIMES: u64 = 20;

struct Decode {
    schema: Schema,
    payload: Vec<u8>,
}

fn of(samples: usize) -> anyhow::Result<Box<dyn Work>> {
    let schema = schema(0, SENSORS)?;
    let payload = payload(&schema, 0, 1, 0, samples, &mut Moving::new(SENSORS));
    Ok(Box::new(Decode { schema, payload }))
}

pub fn decode_batch() -> anyhow::Result<Box<dyn Work>> {
    of(100)
}

pub fn decode_sample() -> anyhow::Result<Box<dyn Work>> {
    of(1)
}

impl Work for Decode {
    fn work(&mut self) -> anyhow::Result<u64> {
        for _ in 0..TIMES {
            black_box(read_header(black_box(&self.payload))?);
            black_box(for_each_column(black_box(&self.payload), &self.schema, |_, column| _ = black_box(column))?);
        }
        Ok(TIMES)
    }
}
