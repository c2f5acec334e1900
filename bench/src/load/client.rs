//! A client that waits for each response: for measurements of single packets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::{Bytes, BytesMut};
use wholegrain_transport::mqtt::{
    self, Connect, Packet, Properties, PublishParts, QoS, RetainHandling, Subscribe, Subscription, Text, Version,
};

/// The largest packet that it takes, in bytes.
const PACKET_BYTES_MAX: usize = 1 << 20;
/// How long it waits for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);

/// A client that waits for each answer.
pub struct Client {
    stream: TcpStream,
    input: BytesMut,
}

impl Client {
    /// Connects, as a user with a password or as nobody.
    pub fn connect(address: SocketAddr, id: &str, user: Option<(&str, &str)>) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        let mut client = Self { stream, input: BytesMut::new() };
        let mut connect = Connect::new(Version::V311, id, 0);
        connect.user = user.map(|(name, _)| Text::from(name));
        connect.password = user.map(|(_, password)| Bytes::copy_from_slice(password.as_bytes()));
        client.send(&Packet::Connect(Box::new(connect)))?;
        match client.next()? {
            Packet::ConnAck(ack) if !ack.reason.is_error() => Ok(client),
            other => bail!("{id}: {other:?} where CONNACK was expected"),
        }
    }

    fn send(&mut self, packet: &Packet) -> anyhow::Result<()> {
        let mut output = BytesMut::new();
        mqtt::encode(packet, Version::V311, &mut output)?;
        Ok(self.stream.write_all(&output)?)
    }

    fn next(&mut self) -> anyhow::Result<Packet> {
        let mut buffer = [0; 64 << 10];
        loop {
            if let Some(packet) = mqtt::decode(&mut self.input, Some(Version::V311), PACKET_BYTES_MAX)? {
                return Ok(packet);
            }
            let count = self.stream.read(&mut buffer).context("waiting for a packet")?;
            ensure!(count > 0, "the broker closed the connection");
            self.input.extend_from_slice(&buffer[..count]);
        }
    }

    /// Its socket, which it has no longer.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    pub fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Subscribes and receives this number of messages.
    pub fn subscribe(&mut self, filters: &[String], messages: usize) -> anyhow::Result<()> {
        self.send(&subscribing(filters))?;
        let (mut acknowledged, mut found) = (false, 0);
        while !acknowledged || found < messages {
            match self.next()? {
                Packet::SubAck(_) => acknowledged = true,
                Packet::Publish(publish) if publish.retain => found += 1,
                other => bail!("{other:?} where a retained message was expected"),
            }
        }
        Ok(())
    }

    pub fn publish(&mut self, topic: &str) -> anyhow::Result<()> {
        let mut output = BytesMut::new();
        put(&mut output, topic, &Bytes::from_static(b"x"), Some(1), false)?;
        self.stream.write_all(&output)?;
        match self.next()? {
            Packet::PubAck(_) => Ok(()),
            other => bail!("{other:?} where PUBACK was expected"),
        }
    }
}

/// Adds a PUBLISH of QoS 1 with a packet identifier, or of QoS 0 without.
pub fn put(
    out: &mut BytesMut,
    topic: &str,
    payload: &Bytes,
    packet_id: Option<u16>,
    retain: bool,
) -> anyhow::Result<()> {
    let qos = if packet_id.is_some() { QoS::AtLeastOnce } else { QoS::AtMostOnce };
    let properties = &Properties::new();
    let parts = PublishParts { dup: false, qos, retain, topic, packet_id, payload, properties };
    Ok(mqtt::encode_publish(&parts, Version::V311, out)?)
}

pub fn subscribing(filters: &[String]) -> Packet {
    let one = |filter: &String| Subscription {
        filter: Text::from(filter.as_str()),
        qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let filters = filters.iter().map(one).collect();
    Packet::Subscribe(Subscribe { packet_id: 1, filters, properties: Properties::new() })
}
