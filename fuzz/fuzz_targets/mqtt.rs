//! Any bytes as MQTT packets: the same packets however they are cut, and what is taken can be written and means the same.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use wholegrain_transport::mqtt::{CodecError, Packet, Version, decode, encode};

const PACKET_BYTES_MAX: usize = 1 << 16;

fn packets(parts: &[&[u8]], version: Option<Version>) -> (Vec<Packet>, Result<usize, CodecError>) {
    let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
    for part in parts {
        buffer.extend_from_slice(part);
        loop {
            match decode(&mut buffer, version, PACKET_BYTES_MAX) {
                Ok(Some(packet)) => found.push(packet),
                Ok(None) => break,
                Err(error) => return (found, Err(error)),
            }
        }
    }
    (found, Ok(buffer.len()))
}

fuzz_target!(|data: &[u8]| {
    let [first, second, bytes @ ..] = data else { return };
    let version = [None, Some(Version::V311), Some(Version::V5)][usize::from(first % 3)];
    let whole = packets(&[bytes], version);
    let cut = usize::from(*second).min(bytes.len());
    assert_eq!(packets(&[&bytes[..cut], &bytes[cut..]], version), whole);
    for packet in whole.0 {
        let version = match &packet {
            Packet::Connect(connect) => connect.version,
            _ => version.unwrap_or(Version::V5),
        };
        let mut written = BytesMut::new();
        encode(&packet, version, &mut written).expect("what was read can be written");
        assert_eq!(decode(&mut written, Some(version), 2 * PACKET_BYTES_MAX), Ok(Some(packet)));
    }
});
