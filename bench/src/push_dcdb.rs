//! One reading a message, as DCDB's pushers send them: 16 bytes, value and timestamp, to the sensor's path as topic. A part of `dcdb-messages`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use serde_json::json;
use wholegrain_transport::mqtt::Version;

use crate::load::fleet::Target;
use crate::load::latencies::Latencies;
use crate::load::link::{Link, ServerPacket};
use crate::load::poll::Poller;
use crate::load::{own_cpu_ns, wall_ns};

/// Sensors of one connection.
const SENSORS: usize = 100;
/// Bytes that wait on a connection beyond which nothing more is made for it.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// How long the server may do nothing.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// One value and its timestamp.
const PAYLOAD_BYTES: usize = 16;

#[derive(clap::Args)]
pub struct PushDcdbOptions {
    /// The server's port on the loopback addresses.
    #[arg(long)]
    port: u16,
    /// Connections, each with its own sensors.
    #[arg(long)]
    connections: usize,
    /// Quality of service, 0 or 1.
    #[arg(long)]
    qos: u8,
    /// Length of the load, seconds.
    #[arg(long)]
    seconds: f64,
    /// Messages of one connection that wait for their acknowledgement.
    #[arg(long)]
    window: usize,
    /// Messages a second of all connections together; 0 sends as fast as the server accepts them.
    #[arg(long)]
    rate: f64,
}

/// Connects, prints a line, sends when a line comes on standard input, and prints the totals. The connections end with standard input.
pub fn run(options: &PushDcdbOptions) -> anyhow::Result<()> {
    let mut pushers = Pushers::open(options.connections, &Target::on_loopback(options.port), options.qos)?;
    let before = own_cpu_ns();
    println!("connected");
    let mut lines = std::io::stdin().lines();
    if lines.next().transpose()?.is_some() {
        pushers.run(options)?;
        pushers
            .until(|pushers| pushers.all.iter().all(|pusher| pusher.sent.is_empty() && pusher.link.waiting() == 0))?;
        let cpu_ns = own_cpu_ns() - before;
        println!("{}", json!({ "messages": pushers.made(), "acks_ms": pushers.acks.json(), "cpu_ns": cpu_ns }));
        lines.for_each(drop);
    }
    Ok(())
}

/// One connection with its messages encoded already: values, times and numbers are written over.
struct Pusher {
    link: Link,
    connected: bool,
    wants_room: bool,
    qos: u8,
    /// A PUBLISH for each sensor, one after the other.
    messages: Vec<u8>,
    /// Ends of the encoded messages.
    ends: Vec<usize>,
    values: Vec<u64>,
    next: usize,
    last_time: u64,
    made: u64,
    sent: VecDeque<(u16, Instant)>,
}

/// A PUBLISH of 16 bytes that are still zero.
fn message(topic: &str, qos: u8) -> Vec<u8> {
    let id_bytes = if qos > 0 { 2 } else { 0 };
    let length = 2 + topic.len() + id_bytes + PAYLOAD_BYTES;
    assert!(length < 128, "a length of one byte");
    let mut bytes = vec![0x30 | qos << 1, length as u8, 0, topic.len() as u8];
    bytes.extend_from_slice(topic.as_bytes());
    bytes.resize(2 + length, 0);
    bytes
}

impl Pusher {
    fn open(index: usize, target: &Target, qos: u8) -> anyhow::Result<Self> {
        let link =
            Link::open(target.addresses[index % target.addresses.len()], None, Version::V311, &format!("n{index}"))?;
        let (mut messages, mut ends) = (Vec::new(), Vec::new());
        for sensor in 0..SENSORS {
            messages.extend(message(&format!("/bench/n{index}/s{sensor}"), qos));
            ends.push(messages.len());
        }
        Ok(Self {
            link,
            connected: false,
            wants_room: false,
            qos,
            messages,
            ends,
            values: vec![0; SENSORS],
            next: 0,
            last_time: 0,
            made: 0,
            sent: VecDeque::new(),
        })
    }

    /// Queues the next message; `wall` is the time of day, ns.
    fn push(&mut self, wall: u64, now: Instant) {
        let sensor = self.next;
        if sensor == 0 {
            // Each sensor has each time once, however fast.
            self.last_time = wall.max(self.last_time + 1);
        }
        self.next = (sensor + 1) % SENSORS;
        self.values[sensor] += (wall ^ self.made) & 7;
        let start = if sensor == 0 { 0 } else { self.ends[sensor - 1] };
        let end = self.ends[sensor];
        let packet = &mut self.messages[start..end];
        let length = packet.len();
        packet[length - 16..length - 8].copy_from_slice(&self.values[sensor].to_le_bytes());
        packet[length - 8..].copy_from_slice(&self.last_time.to_le_bytes());
        if self.qos > 0 {
            let id = self.link.take_id();
            packet[length - 18..length - 16].copy_from_slice(&id.to_be_bytes());
            self.sent.push_back((id, now));
        }
        self.link.queue(&self.messages[start..end]);
        self.made += 1;
    }

    fn has_room(&self, window: usize) -> bool {
        self.connected && self.sent.len() < window && self.link.waiting() < WAITING_BYTES_MAX
    }
}

struct Pushers {
    all: Vec<Pusher>,
    poller: Poller,
    ready: Vec<usize>,
    acks: Latencies,
}

impl Pushers {
    fn open(count: usize, target: &Target, qos: u8) -> anyhow::Result<Self> {
        let poller = Poller::new()?;
        let mut all = Vec::new();
        for index in 0..count {
            let pusher = Pusher::open(index, target, qos)?;
            poller.add(&pusher.link, index)?;
            all.push(pusher);
        }
        let mut pushers = Self { all, poller, ready: Vec::new(), acks: Latencies::default() };
        (0..count).try_for_each(|index| pushers.flush(index))?;
        pushers.until(|pushers| pushers.all.iter().all(|pusher| pusher.connected))?;
        Ok(pushers)
    }

    fn flush(&mut self, index: usize) -> anyhow::Result<()> {
        let pusher = &mut self.all[index];
        let left = pusher.link.flush()?;
        if left != pusher.wants_room {
            pusher.wants_room = left;
            self.poller.want_room(&pusher.link, index, left)?;
        }
        Ok(())
    }

    fn turn(&mut self, timeout: Duration) -> anyhow::Result<bool> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(timeout, &mut ready)?;
        let now = Instant::now();
        for &index in &ready {
            let Pusher { link, connected, sent, .. } = &mut self.all[index];
            link.receive(|heard| {
                match heard {
                    ServerPacket::Connected(_) => *connected = true,
                    ServerPacket::Acked(id) => match sent.pop_front() {
                        Some((expected, since)) if expected == id => self.acks.record(now - since),
                        other => bail!("acknowledgement of {id} where {other:?} was next"),
                    },
                    ServerPacket::Other => {}
                }
                Ok(())
            })?;
            self.flush(index)?;
        }
        self.ready = ready;
        Ok(!self.ready.is_empty())
    }

    fn until(&mut self, condition: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let mut heard = Instant::now();
        while !condition(self) {
            if self.turn(Duration::from_millis(100))? {
                heard = Instant::now();
            }
            ensure!(heard.elapsed() < SILENCE_MAX, "the server has said nothing for {SILENCE_MAX:?}");
        }
        Ok(())
    }

    fn made(&self) -> u64 {
        self.all.iter().map(|pusher| pusher.made).sum()
    }

    fn run(&mut self, options: &PushDcdbOptions) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let now = Instant::now();
            let elapsed = (now - start).as_secs_f64();
            if elapsed >= options.seconds {
                return Ok(());
            }
            let may = if options.rate > 0.0 { (options.rate * elapsed) as u64 } else { u64::MAX };
            let left = may.saturating_sub(self.made());
            let share = (left / self.all.len() as u64).min(4 * SENSORS as u64);
            let wall = wall_ns() as u64;
            let mut pushed = false;
            for index in 0..self.all.len() {
                let pusher = &mut self.all[index];
                for _ in 0..share {
                    if !pusher.has_room(options.window) {
                        break;
                    }
                    pusher.push(wall, now);
                    pushed = true;
                }
                self.flush(index)?;
            }
            self.turn(if pushed { Duration::ZERO } else { Duration::from_millis(1) })?;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use wholegrain_transport::mqtt::{Packet, QoS, decode};

    use super::*;

    #[test]
    fn messages_are_publishes_of_sixteen_bytes() {
        for (qos, expected) in [(0, QoS::AtMostOnce), (1, QoS::AtLeastOnce)] {
            let mut bytes = BytesMut::from(&message("/bench/n17/s42", qos)[..]);
            if qos > 0 {
                bytes[19] = 9;
            }
            let Ok(Some(Packet::Publish(publish))) = decode(&mut bytes, Some(Version::V311), 4096) else { panic!() };
            assert_eq!((publish.topic.as_str(), publish.qos, publish.payload.len()), ("/bench/n17/s42", expected, 16));
            assert_eq!(publish.packet_id, (qos > 0).then_some(9));
            assert!(bytes.is_empty());
        }
    }
}
