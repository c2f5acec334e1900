//! A PUBLISH with quality of service 1 into bytes, and out of them.

use std::hint::black_box;

use anyhow::ensure;
use bytes::BytesMut;
use wholegrain_transport::mqtt::{Packet, Properties, PublishParts, QoS, Version, decode, encode_publish};

use super::Work;

const PUBLISHES: u64 = 100;
const PAYLOAD_BYTES: usize = 4096;
const TOPIC: &str = "wholegrain/v1/n0042/b/proc/meminfo";

fn put(payload: &[u8], out: &mut BytesMut) -> anyhow::Result<()> {
    for id in 1..=PUBLISHES {
        let publish = PublishParts {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: TOPIC,
            packet_id: Some(id as u16),
            payload,
            properties: &Properties::default(),
        };
        encode_publish(&publish, Version::V5, out)?;
    }
    Ok(())
}

struct Write {
    payload: Vec<u8>,
    out: BytesMut,
}

pub fn write() -> anyhow::Result<Box<dyn Work>> {
    Ok(Box::new(Write { payload: vec![7; PAYLOAD_BYTES], out: BytesMut::new() }))
}

impl Work for Write {
    fn work(&mut self) -> anyhow::Result<u64> {
        self.out.clear();
        put(black_box(&self.payload), &mut self.out)?;
        black_box(&self.out);
        Ok(PUBLISHES)
    }
}

struct Read {
    bytes: BytesMut,
}

pub fn read() -> anyhow::Result<Box<dyn Work>> {
    Ok(Box::new(Read { bytes: BytesMut::new() }))
}

impl Work for Read {
    fn prepare(&mut self) -> anyhow::Result<()> {
        self.bytes = BytesMut::new();
        put(&[7; PAYLOAD_BYTES], &mut self.bytes)
    }

    fn work(&mut self) -> anyhow::Result<u64> {
        let mut read = 0;
        while let Some(packet) = decode(&mut self.bytes, Some(Version::V5), 1 << 20)? {
            ensure!(matches!(black_box(packet), Packet::Publish(_)), "a PUBLISH comes back as another packet");
            read += 1;
        }
        Ok(read)
    }
}
