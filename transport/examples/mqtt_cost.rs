//! What the MQTT codec costs: `cargo run --release -p wholegrain-transport --example mqtt_cost`.
//!
//! Prints nanoseconds of CPU time a PUBLISH for reading and for writing, by version and payload; the least of several rounds,
//! for the machine may have other work.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use wholegrain_transport::mqtt::{Packet, Properties, Property, Publish, QoS, Version, decode, encode};

/// Packets in a round.
const PACKETS: usize = 20_000;
const ROUNDS: usize = 15;
/// Packets that lie behind each other in one read.
const IN_BUFFER: usize = 100;

fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the out-pointer is to a live variable of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn least(mut round: impl FnMut()) -> f64 {
    let once = |_| {
        let start = cpu_ns();
        round();
        (cpu_ns() - start) as f64 / PACKETS as f64
    };
    (0..ROUNDS).map(once).fold(f64::INFINITY, f64::min)
}

fn measure(what: &str, version: Version, properties: Properties, payload_bytes: usize) {
    let packet = Packet::Publish(Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: "wholegrain/v1/batch/node0123/meminfo".into(),
        packet_id: Some(77),
        payload: Bytes::from(vec![7; payload_bytes]),
        properties,
    });
    let mut out = BytesMut::new();
    let write = least(|| {
        for at in 0..PACKETS {
            if at % IN_BUFFER == 0 {
                out.clear();
            }
            encode(black_box(&packet), version, &mut out).expect("a packet that can be written");
        }
    });
    let mut one = BytesMut::new();
    encode(&packet, version, &mut one).expect("a packet that can be written");
    let many = one.repeat(IN_BUFFER);
    // The copy into the buffer is the socket's part and measured apart.
    let copy = least(|| {
        for _ in 0..PACKETS / IN_BUFFER {
            black_box(BytesMut::from(black_box(&many[..])));
        }
    });
    let read = least(|| {
        for _ in 0..PACKETS / IN_BUFFER {
            let mut buffer = BytesMut::from(black_box(&many[..]));
            while let Ok(Some(packet)) = decode(&mut buffer, Some(version), 1 << 20) {
                black_box(packet);
            }
        }
    }) - copy;
    println!("{what:44} read {read:6.0} ns  write {write:6.0} ns  together {:6.0} ns", read + write);
}

fn main() {
    let properties = || {
        Properties::new()
            .with(Property::MessageExpiryInterval(60))
            .with(Property::ContentType("text/plain".into()))
            .with(Property::UserProperty("site".into(), "hall 3".into()))
    };
    for payload_bytes in [16, 300, 4096] {
        let what = |rest: &str| format!("{payload_bytes} bytes, {rest}");
        measure(&what("3.1.1"), Version::V311, Properties::new(), payload_bytes);
        measure(&what("5"), Version::V5, Properties::new(), payload_bytes);
        measure(&what("5, three properties"), Version::V5, properties(), payload_bytes);
    }
}
