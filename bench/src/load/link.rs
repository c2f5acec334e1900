//! One MQTT connection, never waiting: bytes out as the socket takes them, packets in as they are whole.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::{Buf, BytesMut};
use rustls::ClientConnection;
use wholegrain_transport::mqtt::{
    self, Connect, Packet, Properties, PublishParts, QoS, ReasonCode, Version, encode_publish,
};

/// The largest packet taken from the server.
const PACKET_BYTES_MAX: usize = 1 << 20;
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Announced to the server, s.
const KEEP_ALIVE_S: u16 = 600;

/// A packet of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerPacket {
    /// It accepts the client; the limit of unacknowledged publishes.
    Connected(u16),
    /// A publish is durable.
    Acked(u16),
    Other,
}

/// A connection and its send buffer.
pub struct Link {
    tcp: TcpStream,
    tls: Option<Box<ClientConnection>>,
    version: Version,
    /// The send buffer; the bytes before `sent` were sent.
    output: BytesMut,
    input: BytesMut,
    next_id: u16,
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.tcp.as_raw_fd()
    }
}

impl Link {
    /// Connects (on a loopback, at once) and queues CONNECT; with `tls` the handshake begins.
    pub fn open(
        address: SocketAddr,
        tls: Option<Arc<rustls::ClientConfig>>,
        version: Version,
        client_id: &str,
    ) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        tcp.set_nonblocking(true)?;
        tcp.set_nodelay(true)?;
        let tls = match tls {
            None => None,
            Some(config) => {
                let mut connection = ClientConnection::new(config, "localhost".try_into()?)?;
                // The window bounds the buffer; another bound would only cut publishes in two.
                connection.set_buffer_limit(None);
                Some(Box::new(connection))
            }
        };
        let (output, input) = (BytesMut::new(), BytesMut::new());
        let mut link = Self { tcp, tls, version, output, input, next_id: 0 };
        let connect = Connect::new(version, client_id, KEEP_ALIVE_S);
        mqtt::encode(&Packet::Connect(Box::new(connect)), version, &mut link.output)?;
        Ok(link)
    }

    /// The number of the next publish with quality of service 1.
    pub fn take_id(&mut self) -> u16 {
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.next_id
    }

    /// Queues a publish with quality of service 1; returns its number.
    pub fn publish(&mut self, topic: &str, payload: &[u8], retain: bool) -> anyhow::Result<u16> {
        let id = self.take_id();
        let properties = Properties::new();
        let parts = PublishParts {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain,
            topic,
            packet_id: Some(id),
            payload,
            properties: &properties,
        };
        encode_publish(&parts, self.version, &mut self.output)?;
        Ok(id)
    }

    /// Queues bytes that are packets already.
    pub fn queue(&mut self, packets: &[u8]) {
        self.output.extend_from_slice(packets);
    }

    /// Bytes that wait to be sent.
    pub fn waiting(&self) -> usize {
        self.output.len()
    }

    /// Sends as much as the socket accepts; whether something is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            if !tls.is_handshaking() && !self.output.is_empty() {
                tls.writer().write_all(&self.output)?;
                self.output.clear();
            }
            while tls.wants_write() {
                match tls.write_tls(&mut self.tcp) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
        } else {
            while !self.output.is_empty() {
                match self.tcp.write(&self.output) {
                    Ok(count) => self.output.advance(count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
        }
        // Ten thousand connections: memory for a burst is freed.
        if self.output.capacity() > READ_BYTES && self.output.is_empty() {
            self.output = BytesMut::new();
        }
        Ok(false)
    }

    /// Reads the received packets and passes each to `each`, in order.
    pub fn receive(&mut self, mut each: impl FnMut(ServerPacket) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut buffer = [0; READ_BYTES];
        loop {
            let count = match &mut self.tls {
                None => self.tcp.read(&mut buffer),
                Some(tls) => read_tls(tls, &mut self.tcp, &mut buffer),
            };
            match count {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("reading from the server"),
            }
        }
        while let Some(heard) = self.next()? {
            each(heard)?;
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<Option<ServerPacket>> {
        // PUBACK with success, by the million: not worth a packet of its own.
        if let [0x40, 2, high, low, ..] = self.input[..] {
            self.input.advance(4);
            return Ok(Some(ServerPacket::Acked(u16::from_be_bytes([high, low]))));
        }
        let Some(packet) = mqtt::decode(&mut self.input, Some(self.version), PACKET_BYTES_MAX)? else {
            return Ok(None);
        };
        Ok(Some(match packet {
            Packet::ConnAck(answer) if answer.reason == ReasonCode::SUCCESS => {
                ServerPacket::Connected(answer.properties.receive_maximum().copied().unwrap_or(u16::MAX))
            }
            Packet::PubAck(ack) if !ack.reason.is_error() => ServerPacket::Acked(ack.packet_id),
            refused @ (Packet::ConnAck(_) | Packet::PubAck(_) | Packet::Disconnect(_)) => {
                bail!("the server refuses: {refused:?}")
            }
            _ => ServerPacket::Other,
        }))
    }
}

/// Plain bytes out of TLS records. Would block when none are there.
fn read_tls(tls: &mut ClientConnection, tcp: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match tls.reader().read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => return result,
        }
        if tls.read_tls(tcp)? == 0 {
            return Ok(0);
        }
        tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    }
}
